"""Measures how long a training loop waits for each batch, and how long it works on it."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from weakref import ref

from aioqueue.core.meters import Durations, Meter, current_meter
from aioqueue.errors import InvalidArgumentError
from aioqueue.system.locks import call_with_lock

if TYPE_CHECKING:
    from aioqueue.telemetry.metrics.snapshots import StepNumbers

T = TypeVar("T")

_log: Final = logging.getLogger("aioqueue")


class _State(NamedTuple):
    """How the time of the loop was spent; replaced as a whole, so that readers need no lock."""

    waited: float = 0.0
    worked: float = 0.0
    since: float = 0.0  # start of the current activity; 0 outside the loop
    is_waiting: bool = False


class StepMeter:
    """Measures how long a loop waits for each batch, and works on it. Only the loop writes to it.

    Args:
        on_step: callbacks that get the number of each step that has ended, from 0. Their exceptions
            are logged and do not reach the loop.
        count: returns the number of steps, including those of other loops; ``None`` if there are no
            others.

    Attributes:
        owner: the loop that it belongs to.
    """

    def __init__(
        self,
        on_step: Sequence[Callable[[int], None]] = (),
        count: Callable[[], int] | None = None,
    ) -> None:
        self._on_step = on_step
        self._count = count
        self.steps: int = 0
        self.owner: object = None
        self.queue: str | None = None
        """Name of the queue that the loop reads, if known."""
        self._waits = Durations()
        self._state = _State()
        self._meter = Meter("training step")

    @property
    def meter(self) -> Meter:
        """The meter of the loop as a worker."""
        return self._meter

    @property
    def is_idle(self) -> bool:
        """Whether the loop is not running."""
        return not self._state.since

    def wait_started(self) -> None:
        """Note that the loop begins to wait for a batch."""
        # The loop asks for the next batch: so the step on the last one has ended. The callbacks run
        # before the clock is read, and count as part of that step.
        if self._on_step and self._state.since and not self._state.is_waiting:
            self._report_step()
        now = perf_counter()
        waited, worked, since, is_waiting = self._state
        if since and not is_waiting:
            worked += now - since
            ring = self._meter.ring
            if ring is not None:
                ring.worked(since, now, self.steps - 1)
        self._state = _State(waited, worked, now, True)

    def _report_step(self) -> None:
        number = (self.steps if self._count is None else self._count()) - 1
        for call in tuple(self._on_step):  # a monitor that is closed removes its own
            try:
                call(number)
            except Exception:
                _log.exception("a callback for the end of a training step failed")

    def batch_received(self) -> None:
        """Note that the loop has a batch, and begins to work on it."""
        now = perf_counter()
        waited, worked, since, _ = self._state
        self._waits.add(now - since)
        self.steps += 1
        self._state = _State(waited + now - since, worked, now, False)
        ring = self._meter.ring
        if ring is not None:
            ring.waited("next item", since, now)

    def stop(self) -> None:
        """Note that there is no batch: the loop has ended, or its wait was cut short."""
        now = perf_counter()
        waited, worked, since, is_waiting = self._state
        if since and is_waiting:
            waited += now - since
        self._state = _State(waited, worked)

    def numbers(self, now: float) -> StepNumbers:
        """Return what it has measured."""
        from aioqueue.core.meters import Histogram
        from aioqueue.telemetry.metrics.snapshots import StepNumbers

        waited, worked, since, is_waiting = self._state
        current = max(0.0, now - since) if since else 0.0
        counted = Histogram(*self._waits.counted())
        return StepNumbers(
            steps=self.steps,
            # The sum includes waits that ended without a batch.
            waits=Histogram(counted.counts, waited, counted.longest),
            waiting=current if is_waiting else 0.0,
            worked=worked if is_waiting else worked + current,
            queue=self.queue or self._meter.reads,
        )


class StepMeters:
    """Meters for concurrent loops, at most as many as have run at once.

    Args:
        on_step: callbacks that get the number of each step that has ended, from 0, in its loop.
    """

    def __init__(self, on_step: Sequence[Callable[[int], None]] = ()) -> None:
        self._on_step = on_step
        self._lock = threading.RLock()  # guards all below
        self._meters: list[StepMeter] = []
        self.tracer: Callable[[StepMeter], object] | None = None
        """Called with each new meter."""

    def all(self) -> list[StepMeter]:
        """Return all meters."""
        return list(self._meters)

    def steps(self) -> int:
        """Return the number of steps of all loops."""
        return sum(meter.steps for meter in self._meters)

    @contextmanager
    def step(self, owner: object) -> Iterator[None]:
        """Wrap a wait for a batch.

        Args:
            owner: the loop.
        """
        meter = call_with_lock(self._lock, self._wait_started, owner)
        token = current_meter.set(meter.meter)
        try:
            yield
        except BaseException:
            meter.stop()
            raise
        else:
            meter.batch_received()
        finally:
            current_meter.reset(token)

    def stop(self, owner: object) -> None:
        """Note that a loop has ended, or was left."""
        meter = self._of(owner)
        if meter is not None:
            meter.stop()

    def _of(self, owner: object) -> StepMeter | None:
        return next((meter for meter in self._meters if meter.owner is owner), None)

    def _wait_started(self, owner: object) -> StepMeter:
        """Return the meter of a loop that asks for a batch; a new loop reuses an idle meter."""
        meter = self._of(owner)
        if meter is None:
            meter = next((one for one in self._meters if one.is_idle), None)
        if meter is None:
            meter = StepMeter(self._on_step, partial(_steps_of, ref(self)))
            self._meters = [*self._meters, meter]
            if self.tracer is not None:
                self.tracer(meter)
        meter.owner = owner
        meter.wait_started()
        return meter

    def numbers(self, now: float) -> list[StepNumbers]:
        """Return what each meter has measured."""
        return [meter.numbers(now) for meter in self._meters]


def _steps_of(meters: ref[StepMeters]) -> int:
    """Return the number of steps. A meter calls this, as it must not refer to all meters."""
    found = meters()
    return 0 if found is None else found.steps()


class Steps(Generic[T]):
    """Yields batches and measures the loop, for ``for`` or ``async for``; see `Monitor.steps`.

    Args:
        batches: an iterable, or an async iterable.
        meters: records each step.

    Raises:
        InvalidArgumentError: `batches` is neither.
    """

    def __init__(self, batches: Iterable[T] | AsyncIterable[T], meters: StepMeters) -> None:
        if not isinstance(batches, Iterable | AsyncIterable):
            raise InvalidArgumentError(
                f"batches: got {batches!r}; expected an iterable or an async iterable"
            )
        self._batches: Any = batches
        self._meters = meters

    def __len__(self) -> int:
        """Return the number of batches, if they know it."""
        return len(self._batches)

    def __iter__(self) -> Iterator[T]:
        batches = iter(self._batches)
        try:
            while True:
                try:
                    with self._meters.step(batches):
                        batch = next(batches)
                except StopIteration:
                    return
                yield batch
        finally:
            self._meters.stop(batches)

    async def __aiter__(self) -> AsyncIterator[T]:
        batches = aiter(self._batches)
        try:
            while True:
                try:
                    with self._meters.step(batches):
                        batch = await anext(batches)
                except StopAsyncIteration:
                    return
                yield batch
        finally:
            self._meters.stop(batches)
