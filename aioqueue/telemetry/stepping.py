"""Telling a training loop's waits for data from its work: where it asks for batches."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from aioqueue.durations import Durations
from aioqueue.errors import InvalidArgumentError
from aioqueue.meters import Meter, current_meter
from aioqueue.telemetry.numbers import Histogram, StepNumbers

__all__ = ("StepMeter", "Steps")

T = TypeVar("T")

_log: Final = logging.getLogger("aioqueue")


class _State(NamedTuple):
    """Where the time of the loop has gone; replaced as a whole, so that readers need no lock."""

    waited: float = 0.0
    worked: float = 0.0
    since: float = 0.0  # when it began with what it does now; 0 before the loop and after it
    is_waiting: bool = False


class StepMeter:
    """How long a loop waits for each batch, and works with it. Written by the loop alone.

    Args:
        on_step: called with the number of each step that has ended, from 0. What they raise goes
            to the log: the loop is not theirs.
    """

    def __init__(self, on_step: Sequence[Callable[[int], None]] = ()) -> None:
        self._on_step = on_step
        self.steps = 0
        self.queue: str | None = None
        """Name of the queue that it reads from, where that is known."""
        self._waits = Durations()
        self._state = _State()
        self._reader = Meter("training step")

    @property
    def meter(self) -> Meter:
        """Of the loop as a worker."""
        return self._reader

    def asks(self) -> None:
        """The loop asks for a batch."""
        if self._on_step and self._state.since and not self._state.is_waiting:
            self._tell()
        now = perf_counter()
        waited, worked, since, is_waiting = self._state
        if since and not is_waiting:
            worked += now - since
            ring = self._reader.ring
            if ring is not None:
                ring.worked(since, now, self.steps - 1)
        self._state = _State(waited, worked, now, True)

    def _tell(self) -> None:
        for call in self._on_step:
            try:
                call(self.steps - 1)
            except Exception:
                _log.exception("what is told of the steps of the training has failed")

    def has(self) -> None:
        """It has one, and begins to work with it."""
        now = perf_counter()
        waited, worked, since, _ = self._state
        self._waits.add(now - since)
        self.steps += 1
        self._state = _State(waited + now - since, worked, now, False)
        ring = self._reader.ring
        if ring is not None:
            ring.waited("next item", since, now)

    def gives_up(self) -> None:
        """There is none: the loop is over, or its wait was cut short."""
        now = perf_counter()
        waited, worked, since, is_waiting = self._state
        if since and is_waiting:
            waited += now - since
        self._state = _State(waited, worked)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around what waits for a batch."""
        self.asks()
        token = current_meter.set(self._reader)
        try:
            yield
        except BaseException:
            self.gives_up()
            raise
        else:
            self.has()
        finally:
            current_meter.reset(token)

    def numbers(self, now: float) -> StepNumbers:
        """What it has measured."""
        waited, worked, since, is_waiting = self._state
        going_on = max(0.0, now - since) if since else 0.0
        counted = Histogram(*self._waits.counted())
        return StepNumbers(
            steps=self.steps,
            # Waits that have ended without a batch are in the sum.
            waits=Histogram(counted.counts, waited, counted.longest),
            waiting=going_on if is_waiting else 0.0,
            worked=worked if is_waiting else worked + going_on,
            queue=self.queue or self._reader.reads,
        )


class Steps(Generic[T]):
    """Batches as they come, for ``for`` or ``async for``; made by `Monitor.steps`.

    Args:
        batches: an iterable, or an async one.
        meter: told of each step.

    Raises:
        InvalidArgumentError: it is neither.
    """

    def __init__(self, batches: Iterable[T] | AsyncIterable[T], meter: StepMeter) -> None:
        if not isinstance(batches, Iterable | AsyncIterable):
            raise InvalidArgumentError(
                f"batches: got {batches!r}; expected an iterable or an async iterable"
            )
        self._batches: Any = batches
        self._meter = meter

    def __len__(self) -> int:
        """How many there are, where the batches know that."""
        return len(self._batches)

    def __iter__(self) -> Iterator[T]:
        batches = iter(self._batches)
        try:
            while True:
                try:
                    with self._meter.step():
                        batch = next(batches)
                except StopIteration:
                    return
                yield batch
        finally:
            self._meter.gives_up()

    async def __aiter__(self) -> AsyncIterator[T]:
        batches = aiter(self._batches)
        try:
            while True:
                try:
                    with self._meter.step():
                        batch = await anext(batches)
                except StopAsyncIteration:
                    return
                yield batch
        finally:
            self._meter.gives_up()
