"""The ways to look at a run, and to send its numbers on, as methods of a monitor.

Each is a file of its own, which is imported when it is used, and so is the package that it needs.

`Monitor`: the numbers of a run over time, and what they say.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from aioqueue.arguments import checked_flag, checked_seconds
from aioqueue.errors import InvalidArgumentError
from aioqueue.meters import Tracer
from aioqueue.telemetry.bottleneck import Verdict, scalars_of, verdict_of
from aioqueue.telemetry.collector import Collector
from aioqueue.telemetry.metrics import Snapshot
from aioqueue.telemetry.registry import MonitorTarget, Watch, WorkerChange
from aioqueue.telemetry.step_timer import Steps

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

    from aioqueue.telemetry.exporters import RunCollector, ScalarSender, ScalarWriter
    from aioqueue.telemetry.table import RunTable, Waits
    from aioqueue.telemetry.terminal import Live
    from aioqueue.telemetry.trace import Trace


__all__ = ("Monitor", "MonitorExports")


_PICTURES: Final = ("png", "svg", "pdf")


class MonitorExports(ABC):
    """What a monitor has besides: it only asks for the numbers, as anybody else could."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """All numbers as they are now."""

    @property
    @abstractmethod
    def history(self) -> Sequence[Snapshot]:
        """Snapshots of the last minutes, oldest first."""

    @abstractmethod
    def verdict(self, seconds: float | None = None) -> Verdict:
        """What limits the run."""

    @abstractmethod
    def scalars(self, seconds: float = 10.0) -> dict[str, float]:
        """Numbers for a dashboard."""

    @abstractmethod
    def _trace(self, tracer: Tracer) -> None:
        """Tell of each worker that there is, and that comes."""

    @abstractmethod
    def _sizes(self) -> dict[str, int]:
        """How many elements are in each queue now, by name."""

    @abstractmethod
    def _trace_no_more(self, tracer: Tracer) -> None:
        """Tell no more."""

    @abstractmethod
    def _call_on_step(self, call: Callable[[int], None]) -> None:
        """Call with the number of each step of the training that has ended."""

    # To look at.

    def live(
        self,
        *,
        every: float = 0.5,
        seconds: float = 5.0,
        log_interval: float | None = 60.0,
        console: Console | None = None,
    ) -> Live:
        """Show a table of the stages in the terminal, for a ``with`` block.

        What is printed and logged in the block comes above the table; bars of tqdm stay below it.
        In a notebook it is below the cell. Where ``sys.stderr`` is neither, a line is written there
        now and then. Needs rich, if there is a terminal or a notebook: ``pip install
        'aioqueue[rich]'``.

        Args:
            every: seconds from one table to the next, > 0.
            seconds: over how long a time rates and shares are taken, > 0.
            log_interval: seconds from one line to the next, > 0; ``None`` for no lines.
            console: a console of rich to show it in; ``None`` for ``sys.stderr``.

        Returns:
            A context manager.

        Raises:
            InvalidArgumentError: a number of seconds is none.
        """
        from aioqueue.telemetry.terminal import Live

        return Live(
            self,
            every=_positive(every, "every"),
            seconds=_positive(seconds, "seconds"),
            log_interval=(
                None if log_interval is None else _positive(log_interval, "log_interval")
            ),
            console=console,
        )

    def table(self, seconds: float = 5.0) -> RunTable:
        """The same table for a console or a layout of rich: it has the numbers of when it is drawn.

        Args:
            seconds: over how long a time rates and shares are taken, > 0.

        Raises:
            InvalidArgumentError: it is no number of seconds.
            ImportError: rich is not installed.
        """
        from aioqueue.telemetry.table import RunTable

        return RunTable(self, _positive(seconds, "seconds"))

    def save(self, path: str | os.PathLike[str], *, dark: bool = False) -> None:
        """Write what is known of the last five minutes as one page, or as a picture.

        It shows the verdict, also over time, throughput, the waits of the training step, how the
        workers of each stage spent their time, and how full each queue was.

        Args:
            path: ends in ``.html`` for a page that needs nothing else, neither the network nor a
                script, and is light or dark as its reader wishes; in ``.png``, ``.svg`` or
                ``.pdf`` for a picture, for which Matplotlib is needed: ``pip install
                'aioqueue[pictures]'``.
            dark: whether a picture is dark; a page always is both.

        Raises:
            InvalidArgumentError: the path has another ending.
            ImportError: Matplotlib is needed and not installed.
            OSError: the file cannot be written.
        """
        path = Path(path)
        kind = path.suffix.lower().removeprefix(".")
        checked_flag(dark, "dark")
        if kind != "html" and kind not in _PICTURES:
            raise InvalidArgumentError(
                f"path: got {str(path)!r}; expected one that ends in .html, .png, .svg or .pdf"
            )
        from aioqueue.telemetry.intervals import recorded

        snapshots = recorded(self.history, self.snapshot())
        if kind == "html":
            from aioqueue.telemetry.page import page

            path.write_text(page(snapshots, self.verdict(), verdict_of), encoding="utf-8")
        else:
            from aioqueue.telemetry.picture import picture

            path.write_bytes(picture(snapshots, self.verdict(), verdict_of, kind=kind, dark=dark))

    def trace(self, path: str | os.PathLike[str], *, seconds: float = 5.0) -> Trace:
        """Begin to write down what every worker does, for Perfetto; the run goes on.

        The file is written when the seconds are over, when the ``with`` block of what is returned
        ends, or at its ``stop()``; ``wait()`` waits for it. Open it at https://ui.perfetto.dev: it
        has a track for every worker, with a slice for every item and every wait, counters of how
        full queues are, and the training step. Where items are quick, one in some has a slice.

        Args:
            path: the file, of JSON.
            seconds: how long it goes on at most, > 0.

        Returns:
            The trace that is being taken.

        Raises:
            InvalidArgumentError: it is no number of seconds.
        """
        from aioqueue.telemetry.trace import Trace

        return Trace(self, path, _positive(seconds, "seconds"))

    def waits(self, seconds: float = 5.0) -> Waits:
        """``waits 3 %`` beside a bar of tqdm: ``tqdm(batches, postfix=monitor.waits())``.

        Args:
            seconds: of how much of the past, > 0.

        Raises:
            InvalidArgumentError: it is no number of seconds.
        """
        from aioqueue.telemetry.table import Waits

        return Waits(self, _positive(seconds, "seconds"))

    def column(self, seconds: float = 5.0) -> ProgressColumn:
        """The same as a column for a `rich.progress.Progress`.

        Args:
            seconds: of how much of the past, > 0.

        Raises:
            InvalidArgumentError: it is no number of seconds.
            ImportError: rich is not installed.
        """
        from aioqueue.telemetry.table import waits_column

        return waits_column(self, _positive(seconds, "seconds"))

    # To send.

    def prometheus(self, labels: Mapping[str, object] | None = None) -> RunCollector:
        """A collector for Prometheus: ``REGISTRY.register(monitor.prometheus())``.

        Args:
            labels: put on every metric, as ``{"rank": 3}``.

        Raises:
            InvalidArgumentError: a label has a name that cannot be.
            ImportError: ``prometheus_client`` is not installed.
        """
        from aioqueue.telemetry.exporters import RunCollector

        return RunCollector(self, labels)

    def opentelemetry(
        self,
        meter: Any = None,
        attributes: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        """Make asynchronous instruments of OpenTelemetry that read the numbers of the run.

        Args:
            meter: makes them; ``None`` for the one named ``aioqueue`` of the global provider.
            attributes: put on every value, as ``{"rank": 3}``.

        Raises:
            ImportError: ``opentelemetry-api`` is not installed.
        """
        from aioqueue.telemetry.exporters import instrument

        instrument(self, meter, attributes)

    def to(self, writer: ScalarWriter, *, every: int = 100) -> ScalarSender:
        """Write `scalars` to TensorBoard, once in so many steps of the training.

        Steps are counted where the monitor sees them: of a pipeline, or in `steps`. Else call
        ``step()`` of what is returned, once for each.

        Args:
            writer: a ``SummaryWriter`` of ``torch.utils.tensorboard`` or tensorboardX, or another
                that has ``add_scalar(tag, value, step)``.
            every: how many steps, >= 1.

        Returns:
            What writes them.

        Raises:
            InvalidArgumentError: an argument is not as described.
        """
        from aioqueue.telemetry.exporters import ScalarSender

        sender = ScalarSender(self, writer, every)
        self._call_on_step(sender.step)
        return sender


def _positive(seconds: object, what: str) -> float:
    found = checked_seconds(seconds, what)
    if not found:
        raise InvalidArgumentError(f"{what}: got {seconds!r}; expected a number of seconds > 0")
    return found


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


class Monitor(MonitorExports):
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

    def __init__(self, of: MonitorTarget, *, log: bool = False) -> None:
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
    def changes(self) -> Sequence[WorkerChange]:
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
