"""`Monitor`: the numbers of a run over time, the verdict, and methods to view and export them.

Each view and each exporter is a module of its own, imported on first use together with the package
that it needs.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from aioqueue.base.arguments import checked_flag, checked_period, checked_seconds
from aioqueue.base.hints import hint_attributes
from aioqueue.base.public_names import name_methods, public
from aioqueue.core.meters import Tracer
from aioqueue.errors import InvalidArgumentError
from aioqueue.queues.queue_core import QueueFace
from aioqueue.telemetry.metrics.collector import Collector
from aioqueue.telemetry.metrics.scalars import scalars_of
from aioqueue.telemetry.metrics.snapshots import Snapshot
from aioqueue.telemetry.metrics.step_timer import Steps
from aioqueue.telemetry.metrics.watch import MonitorTarget, Watch, WorkerChange
from aioqueue.telemetry.verdict.bottleneck import Verdict, verdict_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

    from aioqueue.queues.queue_core import QueueCore
    from aioqueue.telemetry.export.prometheus import RunCollector
    from aioqueue.telemetry.export.tensorboard import ScalarSender, ScalarWriter
    from aioqueue.telemetry.metrics.merging import ProcessNumbers
    from aioqueue.telemetry.views.table import RunTable, Waits
    from aioqueue.telemetry.views.terminal import Live
    from aioqueue.telemetry.views.trace import Trace


_PICTURES: Final = ("png", "svg", "pdf")


@hint_attributes("a monitor")
class MonitorExports(ABC):
    """The views and exporters of a monitor; they only use its public numbers."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Return all numbers as of now."""

    @property
    @abstractmethod
    def history(self) -> Sequence[Snapshot]:
        """Return the snapshots of the last minutes, oldest first."""

    @abstractmethod
    def verdict(self, seconds: float | None = None) -> Verdict:
        """Return the bottleneck of the run."""

    @abstractmethod
    def scalars(self, seconds: float = 10.0) -> dict[str, float]:
        """Return numbers for a dashboard."""

    @abstractmethod
    def _trace(self, tracer: Tracer) -> None:
        """Report each worker, existing or new."""

    @abstractmethod
    def _sizes(self) -> dict[str, int]:
        """Return the size of each queue, by name."""

    @abstractmethod
    def _stop_tracing(self, tracer: Tracer) -> None:
        """Stop reporting workers."""

    @abstractmethod
    def _call_on_step(self, call: Callable[[int], None]) -> None:
        """Register a callback that gets the number of each training step that has ended."""

    # Views.

    def live(
        self,
        *,
        every: float = 0.5,
        seconds: float = 5.0,
        log_interval: float | None = 60.0,
        console: Console | None = None,
    ) -> Live:
        """Show a table of the stages in the terminal, for a ``with`` block.

        Whatever the block prints or logs appears above the table; tqdm bars stay below it. In a
        notebook the table is below the cell. If ``sys.stderr`` is neither a terminal nor in a
        notebook, a line is written there from time to time. A terminal or a notebook needs rich:
        ``pip install '.[rich]'``.

        Args:
            every: seconds between two tables, > 0.
            seconds: how many of the last seconds rates and shares cover, > 0.
            log_interval: seconds between two lines, > 0; ``None`` for no lines.
            console: the rich console to show it in; ``None`` for ``sys.stderr``.

        Returns:
            A context manager.

        Raises:
            InvalidArgumentError: an argument is not a number of seconds > 0.
        """
        from aioqueue.telemetry.views.terminal import Live

        return Live(
            self,
            every=checked_period(every, "every"),
            seconds=checked_period(seconds, "seconds"),
            log_interval=(
                None if log_interval is None else checked_period(log_interval, "log_interval")
            ),
            console=console,
        )

    def table(self, seconds: float = 5.0) -> RunTable:
        """Return the table of `live` for a console or a layout of rich; it updates whenever it is
        drawn.

        Args:
            seconds: how many of the last seconds rates and shares cover, > 0.

        Raises:
            InvalidArgumentError: `seconds` is not a number > 0.
            ImportError: rich is not installed.
        """
        from aioqueue.telemetry.views.table import RunTable

        return RunTable(self, checked_period(seconds, "seconds"))

    def save(self, path: str | os.PathLike[str], *, dark: bool = False) -> None:
        """Save the last five minutes as a web page or a picture.

        It shows the verdict and the bottleneck over time, throughput, the waits of the training
        step, how the workers of each stage spent their time, and how full each queue was.

        Args:
            path: the file. ``.html`` saves a page that needs no network and no script, and follows
                the light or dark preference of its reader. ``.png``, ``.svg`` and ``.pdf`` save a
                picture, which needs Matplotlib: ``pip install '.[pictures]'``.
            dark: whether a picture is dark; a page is always both.

        Raises:
            InvalidArgumentError: the path has another suffix.
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
        from aioqueue.telemetry.metrics.intervals import recorded

        snapshots = recorded(self.history, self.snapshot())
        if kind == "html":
            from aioqueue.telemetry.views.html_page import page

            path.write_text(page(snapshots, self.verdict(), verdict_of), encoding="utf-8")
        else:
            from aioqueue.telemetry.views.matplotlib_picture import picture

            path.write_bytes(picture(snapshots, self.verdict(), verdict_of, kind=kind, dark=dark))

    def trace(self, path: str | os.PathLike[str], *, seconds: float = 5.0) -> Trace:
        """Start recording what every worker does, for Perfetto, while the run continues.

        The file is written after `seconds`, at the end of the ``with`` block of the returned trace,
        or at its ``stop()``; ``wait()`` waits for it. Open the file at https://ui.perfetto.dev. It
        has a track for every worker with a slice for every item and every wait, counters of how
        full queues are, and the training step. Where items are quick, only some of them have a
        slice.

        Args:
            path: the JSON file.
            seconds: most seconds to record, > 0.

        Returns:
            The trace in progress.

        Raises:
            InvalidArgumentError: `seconds` is not a number > 0.
        """
        from aioqueue.telemetry.views.trace import Trace

        return Trace(self, path, checked_period(seconds, "seconds"))

    def waits(self, seconds: float = 5.0) -> Waits:
        """Return ``waits 3 %`` for a tqdm bar: ``tqdm(batches, postfix=monitor.waits())``.

        Args:
            seconds: how many of the last seconds it covers, > 0.

        Raises:
            InvalidArgumentError: `seconds` is not a number > 0.
        """
        from aioqueue.telemetry.views.table import Waits

        return Waits(self, checked_period(seconds, "seconds"))

    def column(self, seconds: float = 5.0) -> ProgressColumn:
        """Return the same as a column for a `rich.progress.Progress`.

        Args:
            seconds: how many of the last seconds it covers, > 0.

        Raises:
            InvalidArgumentError: `seconds` is not a number > 0.
            ImportError: rich is not installed.
        """
        from aioqueue.telemetry.views.table import waits_column

        return waits_column(self, checked_period(seconds, "seconds"))

    # Exports.

    def prometheus(self, labels: Mapping[str, object] | None = None) -> RunCollector:
        """Return a collector for Prometheus: ``REGISTRY.register(monitor.prometheus())``.

        A registry takes any number of them. Beside another open monitor with the same labels, one
        also has the label ``monitor="2"``; after that one has ended, it has the same labels.

        Args:
            labels: added to every metric, such as ``{"rank": 3}``.

        Raises:
            InvalidArgumentError: ``labels`` is no mapping, or Prometheus does not allow a name.
            ImportError: ``prometheus_client`` is not installed.
        """
        from aioqueue.telemetry.export.prometheus import RunCollector

        return RunCollector(self, labels)

    def opentelemetry(
        self,
        meter: Any = None,
        attributes: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        """Create asynchronous OpenTelemetry instruments that read the numbers of the run.

        A meter takes any number of monitors. Beside another open one with the same attributes, one
        also has ``aioqueue.monitor="2"``; after that one has ended, it has the same attributes.

        Args:
            meter: creates them; ``None`` for the one named ``aioqueue`` of the global provider.
            attributes: added to every value, such as ``{"rank": 3}``.

        Raises:
            ImportError: ``opentelemetry-api`` is not installed.
            InvalidArgumentError: ``meter`` is no meter, or ``attributes`` no mapping.
        """
        from aioqueue.telemetry.export.opentelemetry import instrument

        instrument(self, meter, attributes)

    def to(self, writer: ScalarWriter, *, every: int = 100) -> ScalarSender:
        """Write `scalars` to TensorBoard every few training steps.

        The monitor counts the steps of a pipeline and of `steps`. For any other loop, call
        ``step()`` of the returned object once per step. Beside another open monitor of the same
        writer, tags begin with ``data-2``.

        Args:
            writer: a ``SummaryWriter`` of ``torch.utils.tensorboard`` or tensorboardX, or another
                object with ``add_scalar(tag, value, step)``.
            every: write once per this many steps, >= 1.

        Returns:
            An object that writes them.

        Raises:
            InvalidArgumentError: an argument is not as described.
        """
        from aioqueue.telemetry.export.tensorboard import ScalarSender

        sender = ScalarSender(self, writer, every)
        self._call_on_step(sender._writing.step)
        return sender


T = TypeVar("T")

_SAMPLES_PER_SECOND: Final = 10
"""Samples of queues and workers per second."""

_MOST_SNAPSHOTS: Final = 300
"""Snapshots to keep, one per second."""

_MINUTE: Final = 60
_LATE_SHARE: Final = 0.10
"""Share of a minute that the training step may wait for data before the log warns."""

_log: Final = logging.getLogger("aioqueue")

_monitors: Final[weakref.WeakSet[Monitor]] = weakref.WeakSet()
"""The monitors of this process; a fork closes its copies."""


@public("aioqueue")
class Monitor(MonitorExports):
    """Watches a run, and finds its bottleneck.

    It counts from its creation on. A thread samples queues and workers ten times a second, and
    keeps a snapshot of all numbers for each of the last 300 seconds. It ends with `close`, at the
    end of its ``with`` block, or when you drop it; you can still read what it has seen. In a forked
    process, where the run does not continue, it starts out closed.

    No clock is read for an element. Workers measure themselves while they are watched, a sample of
    the calls where these are quick. The benchmarks include the cost.

    If the coordinator is shared (`Coordinator.share`), the numbers of all its processes add up.
    Those of the other processes are up to a second old.

    Args:
        of: a coordinator of either API, with all its runners, also later ones; a pipeline or its
            epochs, with all its runs; or a queue. `watch` adds queues.
        log: whether to log one line a minute (logger ``aioqueue``, INFO), and a WARNING for each
            minute in which the training step waited for data more than a tenth of the time.

    Raises:
        InvalidArgumentError: an argument is not as described.
    """

    _asks_elsewhere = True

    def __init__(self, of: MonitorTarget | QueueFace[Any], *, log: bool = False) -> None:
        if isinstance(of, QueueFace):
            self._watch: Watch = Watch()
        elif isinstance(of, type) or not hasattr(of, "_watched"):
            raise InvalidArgumentError(
                f"of: got {of!r}; expected a coordinator, a pipeline, its epochs or a queue"
            )
        else:
            self._watch = of._watched()
        self._logs = checked_flag(log, "log")
        self._collector = Collector(self._watch)
        if isinstance(of, QueueFace):
            self._collector.add_queue(of._core)
        self._ask_elsewhere()
        if self._watch.is_repeatable:
            self._watch.watch_steps()  # so that the watch meters the steps
        self._history: deque[Snapshot] = deque([self.snapshot()], maxlen=_MOST_SNAPSHOTS)
        self._step_callbacks: list[Callable[[int], None]] = []  # ours among those of the watch
        self._closed = threading.Event()
        self._sampler = threading.Thread(
            target=_sample_until_closed,
            args=(weakref.ref(self), self._closed),
            name="aioqueue-monitor",
            daemon=True,
        )
        _monitors.add(self)
        self._sampler.start()

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

    _is_program_ending = staticmethod(sys.is_finalizing)

    def __del__(self) -> None:
        closed = getattr(self, "_closed", None)
        # At the end of the program, names of modules may be gone that the calls below need.
        if closed is not None and not self._is_program_ending():
            closed.set()
            self._collector.stop_sampling()
            self._collector.detach()

    def watch(self, *queues: QueueFace[Any]) -> Self:
        """Watch queues, too, that no runner of the run fills or reads.

        Such as those that the handlers of a service fill, or threads of your own. They are in all
        numbers, views and exporters, from now on. The queues of runners and stages are there by
        themselves.

        Args:
            queues: the queues, as either of their faces. The monitor does not keep them alive.

        Returns:
            The monitor itself.

        Raises:
            InvalidArgumentError: an argument is not a queue.
        """
        for queue in queues:
            if not isinstance(queue, QueueFace):
                raise InvalidArgumentError(f"queues: got {queue!r}; expected queues")
            self._collector.add_queue(queue._core)
        return self

    def close(self) -> None:
        """Stop watching. You can call it repeatedly, from any thread."""
        if not self._closed.is_set():
            self._ask_elsewhere(wait=True)
            self._history.append(self._collector.snapshot())
        self._closed.set()
        self._collector.stop_sampling()
        for call in self._step_callbacks:
            with suppress(ValueError):  # another thread closes it, too
                self._watch.on_step.remove(call)

    def snapshot(self) -> Snapshot:
        """Return all numbers as of now. Any thread may call it, and no worker waits for it.

        If you call it hundreds of times a second, it repeats a snapshot for a few milliseconds.
        """
        return self._collector.recent_snapshot()

    @property
    def history(self) -> Sequence[Snapshot]:
        """Snapshots of the last five minutes, one per second, oldest first; at least one."""
        return tuple(self._snapshots())

    @property
    def changes(self) -> Sequence[WorkerChange]:
        """The latest thousand changes made by ``autotune``, in order."""
        return self._watch.changes()

    def verdict(self, seconds: float | None = None) -> Verdict:
        """Return the bottleneck of the run, and what would help.

        Args:
            seconds: how many seconds to cover, up to now or to the end of the run; ``None`` for the
                last five minutes, without the time before the first batch.

        Returns:
            The verdict; its ``str`` is one sentence.

        Raises:
            InvalidArgumentError: `seconds` is not a number > 0.
        """
        if seconds is not None:
            seconds = checked_seconds(seconds, "seconds", otherwise=", or None")
        earlier, later = self._window(seconds)
        return verdict_of(earlier, later)

    def scalars(self, seconds: float = 10.0) -> dict[str, float]:
        """Return numbers for a dashboard: a flat dict, with names such as ``data/step_wait``.

        ======================== ==================================================================
        name                     meaning
        ======================== ==================================================================
        data/rate                batches per second; elements, if no loop is watched
        data/step_wait           share of the time that the training step waited for data, 0 to 1
        data/<queue>/fill        how full the queue is, 0 to 1; its size, if it is unbounded
        data/<queue>/rate        elements dequeued per second
        data/<stage>/busy        share of its workers' time in the function, 0 to 1
        data/<stage>/blocked     share of their time waiting for room, 0 to 1
        data/<stage>/starved     share of their time waiting for items, 0 to 1
        data/<stage>/rate        items delivered per second
        data/<stage>/seconds     mean time of a call, in seconds
        data/<stage>/workers     number of workers; of a generation, rollouts in flight
        ======================== ==================================================================

        The generation of a `RolloutQueue` is a stage, with its queue's name, and has further ones:
        ``staleness`` (the mean), ``worst_staleness``, ``publish_lag``, and the shares of the time
        in which it generates nothing, ``waits_for_slots`` and ``waits_at_gate``.

        Args:
            seconds: how many of the last seconds it covers.

        Raises:
            InvalidArgumentError: `seconds` is not a number > 0.
        """
        earlier, later = self._window(checked_seconds(seconds, "seconds"))
        return scalars_of(earlier, later)

    def steps(self, batches: Iterable[T] | AsyncIterable[T]) -> Steps[T]:
        """Iterate over batches, and separate the time waiting for them from the time working on
        them.

        A watched pipeline does this by itself; use it for loops over anything else.

        Args:
            batches: an iterable, for ``for``; or an async iterable, for ``async for``.

        Returns:
            The same batches.

        Raises:
            InvalidArgumentError: `batches` is neither.
        """
        return Steps(batches, self._watch.watch_steps())

    def _sizes(self) -> dict[str, int]:
        return self._collector.sizes()

    def _snapshots(self) -> list[Snapshot]:
        return list(self._history.copy())  # `copy` is atomic; without a GIL, `list` is not

    def _trace(self, tracer: Tracer) -> None:
        self._watch.trace(tracer)

    def _stop_tracing(self, tracer: Tracer) -> None:
        self._watch.stop_tracing(tracer)

    def _call_on_step(self, call: Callable[[int], None]) -> None:
        if not self._closed.is_set():
            self._step_callbacks.append(call)
            self._watch.on_step.append(call)

    def _window(self, seconds: float | None) -> tuple[Snapshot, Snapshot]:
        seen = self._snapshots()
        if not self._closed.is_set():
            seen.append(self.snapshot())
        # The idle time after the end of a run is no part of what limited it.
        while len(seen) > 1 and not _is_active(seen[-2], seen[-1]):
            seen.pop()
        later = seen.pop()
        if seconds is not None:
            before = [one for one in seen if one.seconds < later.seconds - seconds]
            within = [*before[-1:], *seen[len(before) :], later]
            # Neither is the time before its first worker started.
            begun = next((i for i, one in enumerate(within) if _has_begun(one)), 0)
            return within[max(0, begun - 1)], later
        first = (seen or [later])[0]
        # Leave out the start, until the first batch has arrived; but not if most batches arrived in
        # that snapshot, as in a run of a second: then the rest says little.
        flowing = next((one for one in seen if _count_arrived(one)), first)
        if _count_arrived(later) - _count_arrived(flowing) < 0.5 * (
            _count_arrived(later) - _count_arrived(first)
        ):
            return first, later
        return flowing, later

    def _close_in_fork(self) -> None:
        """Close this copy in a forked process.

        A fork has no sampling thread and no run to watch, and may hold locks that nobody releases.
        """
        self._closed = threading.Event()
        self._closed.set()
        self._collector.freeze()

    def _take_sample(self, count: int) -> None:
        """Run the sampling thread, step by step."""
        self._collector.sample()
        if (count + _SAMPLES_PER_SECOND // 2) % _SAMPLES_PER_SECOND == 0:
            self._ask_elsewhere()  # half a second before the next snapshot
        if count % _SAMPLES_PER_SECOND == 0:
            self._history.append(self._collector.snapshot())
            self._each_second()
        if self._logs and count % (_SAMPLES_PER_SECOND * _MINUTE) == 0:
            self._log_verdict()

    def _ask_elsewhere(self, *, wait: bool = False) -> None:
        """Ask the other processes of a shared coordinator for their numbers, which come later."""
        elsewhere = self._watch.elsewhere
        if elsewhere is not None and self._asks_elsewhere:
            answered = elsewhere.ask()
            if wait:
                elsewhere.wait(answered)

    def _each_second(self) -> None:
        """Hook for monitors that act on what they see."""

    def _log_verdict(self) -> None:
        verdict = self.verdict(_MINUTE)
        if verdict.cause == "nothing":
            return
        _log.info("%.4g per second; %s", verdict.rate, verdict)
        if verdict.starved > _LATE_SHARE:
            _log.warning(
                "the training step waited for data %.0f %% of the last minute: %s",
                100 * verdict.starved,
                verdict,
            )


name_methods(MonitorExports, "Monitor")


class LocalMonitor(Monitor):
    """Measures this process, for monitors in other processes that share the coordinator."""

    _asks_elsewhere = False

    def numbers_here(self, is_shared: Callable[[QueueCore], bool]) -> ProcessNumbers:
        """Return the numbers of this process alone; see `Collector.numbers_here`."""
        return self._collector.numbers_here(is_shared)


def _sample_until_closed(monitor: weakref.ref[Monitor], closed: threading.Event) -> None:
    """Sample periodically until the monitor is closed or dropped."""
    count = 0
    while not closed.wait(1 / _SAMPLES_PER_SECOND):
        count += 1
        one = monitor()
        if one is None:
            return
        try:
            one._take_sample(count)
        except Exception:
            with suppress(Exception):  # if it is the log's handler that fails
                _log.exception("a monitor failed to take a sample; it continues")
        del one


def _has_begun(snapshot: Snapshot) -> bool:
    """Return whether any worker has started; the run begins there."""
    return any(stage.alive for stage in snapshot.stages)


def _count_arrived(snapshot: Snapshot) -> int:
    """Return how many batches or elements have reached the end of the run."""
    if snapshot.steps is not None:
        return snapshot.steps.steps
    return snapshot.queues[-1].dequeued if snapshot.queues else 0


def _is_active(earlier: Snapshot, later: Snapshot) -> bool:
    """Return whether anything has moved in between, or a caller waits."""
    return _progress_marks(earlier) != _progress_marks(later) or any(
        one.dequeue_waiting for one in later.queues
    )


def _progress_marks(snapshot: Snapshot) -> list[Any]:
    steps = snapshot.steps
    counts = [(one.enqueued, one.dequeued) for one in snapshot.queues]
    if steps is None:
        return [counts, any(not queue.is_closed for queue in snapshot.queues) and snapshot.seconds]
    return [counts, steps.steps, steps.worked, steps.waits.seconds + steps.waiting]


def _after_fork() -> None:
    for monitor in _monitors:
        monitor._close_in_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
