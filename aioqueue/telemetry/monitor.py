"""`Monitor`: the numbers of a run over time, and what they say."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from aioqueue.checks import checked_flag, checked_seconds
from aioqueue.errors import InvalidArgumentError
from aioqueue.meters import Tracer
from aioqueue.telemetry.collecting import Collector
from aioqueue.telemetry.looks import Looks
from aioqueue.telemetry.numbers import Snapshot
from aioqueue.telemetry.parts import Change, Watch, Watchable
from aioqueue.telemetry.reading import scalars_of, verdict_of
from aioqueue.telemetry.stepping import Steps
from aioqueue.telemetry.verdicts import Verdict

__all__ = ("Monitor",)

T = TypeVar("T")

_LOOKS: Final = 10
"""Times a second that queues and workers are looked at."""

_HISTORY: Final = 300
"""Snapshots that are kept, one a second."""

_MINUTE: Final = 60
_LATE: Final = 0.10
"""Share of a minute that the training step may wait for data before the log warns of it."""

_log: Final = logging.getLogger("aioqueue")

_monitors: Final[weakref.WeakSet[Monitor]] = weakref.WeakSet()
"""Those of this process, for its forks."""


class Monitor(Looks):
    """Watches a run, and tells what limits it.

    It counts from when it is made: a thread looks at queues and workers ten times a second, and
    keeps a snapshot of all numbers every second, for five minutes. It ends with `close`, at the end
    of its ``with`` block, or when it is dropped; what it has seen can be asked for afterwards. In a
    forked process, where nothing of the run goes on, it is closed from the beginning.

    Nothing is measured on the way of an element; workers measure themselves while they are watched,
    where calls are quick one in some. What that costs is among the benchmarks.

    Args:
        of: a coordinator, of either face, whose runners are watched, those started later too; or a
            pipeline, or its epochs, all runs of which are watched.
        log: write one line a minute to the log (``aioqueue``, INFO), and a WARNING for each minute
            of which the training step has waited for data for more than a tenth.

    Raises:
        InvalidArgumentError: an argument is not as described.
    """

    def __init__(self, of: Watchable, *, log: bool = False) -> None:
        if isinstance(of, type) or not hasattr(of, "_watched"):
            raise InvalidArgumentError(
                f"of: got {of!r}; expected a coordinator, a pipeline or its epochs"
            )
        self._watch: Watch = of._watched()
        self._logs = checked_flag(log, "log")
        self._collector = Collector(self._watch)
        if self._watch.comes_again:
            self._watch.watch_steps()  # it is told of its steps
        self._history: deque[Snapshot] = deque([self.snapshot()], maxlen=_HISTORY)
        self._closed = threading.Event()
        self._looker = threading.Thread(
            target=_look_on,
            args=(weakref.ref(self), self._closed),
            name="aioqueue-monitor",
            daemon=True,
        )
        _monitors.add(self)
        self._looker.start()

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "running"
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return f"<{kind} {state}, {len(self._history)} snapshots>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        closed = getattr(self, "_closed", None)
        if closed is not None:
            closed.set()
            self._collector.look_no_more()
            self._collector.end()

    def close(self) -> None:
        """Watch no more. May be called again, by any thread."""
        if not self._closed.is_set():
            self._history.append(self._collector.snapshot())
        self._closed.set()
        self._collector.look_no_more()

    def snapshot(self) -> Snapshot:
        """All numbers as they are now. Any thread may ask; no worker waits for that.

        Who asks hundreds of times a second is given the same for some milliseconds.
        """
        return self._collector.shared()

    @property
    def history(self) -> Sequence[Snapshot]:
        """Snapshots of the last five minutes, one a second, the oldest first; one at least."""
        return tuple(self._seen())

    @property
    def changes(self) -> Sequence[Change]:
        """What ``autotune`` has changed, in order: the latest thousand changes."""
        return self._watch.changes()

    def verdict(self, seconds: float | None = None) -> Verdict:
        """What limits the run, and what would help.

        Args:
            seconds: of how much of the past, up to now or to the end of the run; ``None`` for all
                of the last five minutes, without what went before the first batch.

        Returns:
            The verdict; as a string it is one sentence.

        Raises:
            InvalidArgumentError: it is no number of seconds.
        """
        if seconds is not None:
            seconds = checked_seconds(seconds, "seconds", otherwise=", or None")
        earlier, later = self._window(seconds)
        return verdict_of(earlier, later)

    def scalars(self, seconds: float = 10.0) -> dict[str, float]:
        """Numbers for a dashboard: a flat dict, with names such as ``data/step_wait``.

        ======================== ==================================================================
        name                     meaning
        ======================== ==================================================================
        data/rate                batches per second; elements, where no loop is watched
        data/step_wait           share of the time that the training step waited for data, 0 to 1
        data/<queue>/fill        how full the queue is, 0 to 1; of one that has no bound, elements
        data/<queue>/rate        elements that were taken out, per second
        data/<stage>/busy        share of its workers' time in the function, 0 to 1
        data/<stage>/blocked     share of their time that they waited for room, 0 to 1
        data/<stage>/starved     share of their time that they waited for items, 0 to 1
        data/<stage>/rate        items that were delivered, per second
        data/<stage>/seconds     mean time of a call, in seconds
        data/<stage>/workers     how many there are
        ======================== ==================================================================

        Args:
            seconds: of how much of the past.

        Raises:
            InvalidArgumentError: it is no number of seconds.
        """
        earlier, later = self._window(checked_seconds(seconds, "seconds"))
        return scalars_of(earlier, later)

    def steps(self, batches: Iterable[T] | AsyncIterable[T]) -> Steps[T]:
        """Go through batches, and tell the waits for them from the work with them.

        A pipeline that is watched does so by itself; this is for loops over anything else.

        Args:
            batches: an iterable, for ``for``; or an async iterable, for ``async for``.

        Returns:
            The same batches.

        Raises:
            InvalidArgumentError: it is neither.
        """
        return Steps(batches, self._watch.watch_steps())

    def _sizes(self) -> dict[str, int]:
        return self._collector.sizes()

    def _seen(self) -> list[Snapshot]:
        return list(self._history.copy())  # which is one step: only with the GIL, `list` is, too

    def _trace(self, tracer: Tracer) -> None:
        self._watch.trace(tracer)

    def _trace_no_more(self, tracer: Tracer) -> None:
        self._watch.trace_no_more(tracer)

    def _call_on_step(self, call: Callable[[int], None]) -> None:
        self._watch.on_step.append(call)

    def _window(self, seconds: float | None) -> tuple[Snapshot, Snapshot]:
        seen = self._seen()
        if not self._closed.is_set():
            seen.append(self.snapshot())
        while len(seen) > 1 and not _is_going_on(seen[-2], seen[-1]):
            seen.pop()  # the run had ended
        later = seen.pop()
        if seconds is not None:
            before = [one for one in seen if one.seconds < later.seconds - seconds]
            within = [*before[-1:], *seen[len(before) :], later]
            begun = next((i for i, one in enumerate(within) if _has_begun(one)), 0)
            return within[max(0, begun - 1)], later
        first = (seen or [later])[0]
        flowing = next((one for one in seen if _come(one)), first)
        if _come(later) - _come(flowing) < 0.5 * (_come(later) - _come(first)):
            return first, later  # most had come by then
        return flowing, later

    def _was_forked(self) -> None:
        """This process is a fork of the one that has the run: neither are threads there that could
        look, nor is there anything to be seen; and locks may be held by nobody."""
        self._closed = threading.Event()
        self._closed.set()
        self._collector.freeze()

    def _look(self, count: int) -> None:
        """The life of the thread that looks, step by step."""
        self._collector.look()
        if count % _LOOKS == 0:
            self._history.append(self._collector.snapshot())
            self._each_second()
        if self._logs and count % (_LOOKS * _MINUTE) == 0:
            self._write_log()

    def _each_second(self) -> None:
        """For monitors that act on what they see."""

    def _write_log(self) -> None:
        verdict = self.verdict(_MINUTE)
        if verdict.cause == "nothing":
            return
        _log.info("%.4g per second; %s", verdict.rate, verdict)
        if verdict.starved > _LATE:
            _log.warning(
                "the training step has waited %.0f %% of the last minute for data: %s",
                100 * verdict.starved,
                verdict,
            )


def _look_on(monitor: weakref.ref[Monitor], closed: threading.Event) -> None:
    """Look from time to time, until the monitor is closed or dropped."""
    count = 0
    while not closed.wait(1 / _LOOKS):
        count += 1
        one = monitor()
        if one is None:
            return
        try:
            one._look(count)
        except Exception:
            _log.exception("a monitor has failed; it goes on")
        del one


def _has_begun(snapshot: Snapshot) -> bool:
    """Whether any worker has been there: what was before is no part of a run."""
    return any(stage.alive for stage in snapshot.stages)


def _come(snapshot: Snapshot) -> int:
    """How much has come to the end."""
    if snapshot.steps is not None:
        return snapshot.steps.steps
    return snapshot.queues[-1].dequeued if snapshot.queues else 0


def _is_going_on(earlier: Snapshot, later: Snapshot) -> bool:
    """Whether anything has happened in between, or somebody waits."""
    return _marks(earlier) != _marks(later) or any(one.dequeue_waiting for one in later.queues)


def _marks(snapshot: Snapshot) -> list[Any]:
    steps = snapshot.steps
    counts = [(one.enqueued, one.dequeued) for one in snapshot.queues]
    if steps is None:
        return [counts, any(not queue.is_closed for queue in snapshot.queues) and snapshot.seconds]
    return [counts, steps.steps, steps.worked, steps.waits.seconds + steps.waiting]


def _after_fork() -> None:
    for monitor in _monitors:
        monitor._was_forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
