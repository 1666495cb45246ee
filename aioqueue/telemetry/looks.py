"""The ways to look at a run, and to send its numbers on, as methods of a monitor.

Each is a file of its own, which is imported when it is used, and so is the package that it needs.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aioqueue.checks import checked_flag, checked_seconds
from aioqueue.errors import InvalidArgumentError
from aioqueue.meters import Tracer
from aioqueue.telemetry.numbers import Snapshot
from aioqueue.telemetry.reading import verdict_of
from aioqueue.telemetry.verdicts import Verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

    from aioqueue.telemetry.bars import Waits
    from aioqueue.telemetry.live import Live
    from aioqueue.telemetry.prometheus import RunCollector
    from aioqueue.telemetry.scalars import ScalarSender, ScalarWriter
    from aioqueue.telemetry.table import RunTable
    from aioqueue.telemetry.tracing import Trace

__all__ = ("Looks",)

_PICTURES: Final = ("png", "svg", "pdf")


class Looks(ABC):
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
        plain: float | None = 60.0,
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
            plain: seconds from one line to the next, > 0; ``None`` for no lines.
            console: a console of rich to show it in; ``None`` for ``sys.stderr``.

        Returns:
            A context manager.

        Raises:
            InvalidArgumentError: a number of seconds is none.
        """
        from aioqueue.telemetry.live import Live

        return Live(
            self,
            every=_positive(every, "every"),
            seconds=_positive(seconds, "seconds"),
            plain=None if plain is None else _positive(plain, "plain"),
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
        from aioqueue.telemetry.tracing import Trace

        return Trace(self, path, _positive(seconds, "seconds"))

    def waits(self, seconds: float = 5.0) -> Waits:
        """``waits 3 %`` beside a bar of tqdm: ``tqdm(batches, postfix=monitor.waits())``.

        Args:
            seconds: of how much of the past, > 0.

        Raises:
            InvalidArgumentError: it is no number of seconds.
        """
        from aioqueue.telemetry.bars import Waits

        return Waits(self, _positive(seconds, "seconds"))

    def column(self, seconds: float = 5.0) -> ProgressColumn:
        """The same as a column for a `rich.progress.Progress`.

        Args:
            seconds: of how much of the past, > 0.

        Raises:
            InvalidArgumentError: it is no number of seconds.
            ImportError: rich is not installed.
        """
        from aioqueue.telemetry.bars import waits_column

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
        from aioqueue.telemetry.prometheus import RunCollector

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
        from aioqueue.telemetry.opentelemetry import instrument

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
        from aioqueue.telemetry.scalars import ScalarSender

        sender = ScalarSender(self, writer, every)
        self._call_on_step(sender.step)
        return sender


def _positive(seconds: object, what: str) -> float:
    found = checked_seconds(seconds, what)
    if not found:
        raise InvalidArgumentError(f"{what}: got {seconds!r}; expected a number of seconds > 0")
    return found
