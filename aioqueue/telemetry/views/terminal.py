"""Live tables of a run: in the terminal, and below the cell of a notebook.

Whatever the program writes to ``sys.stdout`` and ``sys.stderr`` (prints, log messages) appears
above the table, line by line. Bars that rewrite their own line, such as those of tqdm, stay below
it. In a notebook, the table is HTML below its cell, with plain text for readers without one. Where
there is neither a terminal nor a notebook, a plain line is written from time to time.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TextIO

from aioqueue.telemetry.verdict.monitored_run import MonitoredRun
from aioqueue.telemetry.views.redirected_stream import RedirectedStream, redirect
from aioqueue.telemetry.views.table import RunTable, rich, status_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


_log: Final = logging.getLogger("aioqueue")

_COLUMNS: Final = 100

_HTML: Final = (
    '<pre style="white-space:pre;line-height:1.3;font-family:ui-monospace,Menlo,Consolas,'
    '\'DejaVu Sans Mono\',monospace"><code style="font-family:inherit">{code}</code></pre>'
)


def is_in_notebook() -> bool:
    if "ipykernel" not in sys.modules:
        return False
    from IPython import get_ipython

    return get_ipython() is not None  # otherwise IPython was only imported


class InNotebook:
    """Shows a table while a block runs, and leaves the final one.

    Args:
        table: the table.
        every: seconds between two updates.
    """

    def __init__(self, table: RunTable, every: float) -> None:
        self._table = table
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aioqueue-live", daemon=True)

    def __enter__(self) -> None:
        from IPython.display import display

        self._shown: Any = display(self._rendered(), raw=True, display_id=True)  # type: ignore[no-untyped-call]
        self._thread.start()

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()
        self._draw()

    def _run(self) -> None:
        try:
            while not self._over.wait(self._every):
                self._draw()
        except Exception:
            _log.exception("the table of a run failed to update; it is no longer kept up to date")

    def _draw(self) -> None:
        self._shown.update(self._rendered(), raw=True)

    def _rendered(self) -> dict[str, str]:
        """Return the current table in the formats of a notebook."""
        console = rich().console.Console(
            file=io.StringIO(), record=True, width=_COLUMNS, force_jupyter=False
        )
        console.print(self._table)
        text = console.export_text(clear=False)
        return {
            "text/plain": text,
            "text/html": console.export_html(inline_styles=True, code_format=_HTML),
        }


class Live:
    """A context manager that shows the table of a run, or writes lines.

    Args:
        watched: the run.
        every: seconds between two tables, > 0.
        seconds: how many of the last seconds rates and shares cover, > 0.
        log_interval: seconds between two lines without a terminal, > 0; `None` for no lines.
        console: the rich console to show it in; `None` for ``sys.stderr``.

    Raises:
        ImportError: there is a terminal or a notebook, and rich is not installed. Raised on
            entering.
    """

    def __init__(
        self,
        watched: MonitoredRun,
        *,
        every: float = 0.5,
        seconds: float = 5.0,
        log_interval: float | None = 60.0,
        console: Console | None = None,
    ) -> None:
        self._watched = watched
        self._every = every
        self._seconds = seconds
        self._log_interval = log_interval
        self._console = console
        self._entered = ExitStack()

    def __enter__(self) -> Live:
        stream = _unless_closed(sys.stderr)
        has_terminal = self._console is not None or (stream is not None and stream.isatty())
        with ExitStack() as entered:
            if has_terminal:
                self._show(entered, self._console or _console(stream))
            elif is_in_notebook():
                table = RunTable(self._watched, self._seconds)
                entered.enter_context(InNotebook(table, self._every))
            elif self._log_interval is not None and stream is not None:
                entered.enter_context(_PeriodicLines(self._watched, stream, self._log_interval))
            self._entered = entered.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._entered.close()
        except (OSError, ValueError) as failure:
            # The terminal has been closed, say. Nobody looks, and the run goes on.
            stream = sys.stderr if self._console is None else self._console.file
            if isinstance(failure, ValueError) and _unless_closed(stream) is not None:
                raise

    def _show(self, entered: ExitStack, console: Console) -> None:
        from rich.live import Live as RichLive

        table = _CachedTable(RunTable(self._watched, self._seconds), self._every)
        redirected = RedirectedStream(console.file, lambda text: _print(console, text))
        shown = RichLive(
            console=console,
            get_renderable=lambda: _Screen(table, redirected),
            refresh_per_second=max(4.0, 1 / self._every),
            redirect_stdout=False,
            redirect_stderr=False,
        )
        entered.enter_context(shown)
        shown.refresh()
        entered.callback(table.expire)  # the screen keeps the final numbers
        entered.callback(redirected.end)
        entered.callback(redirect(redirected, console.file))


def _unless_closed(stream: Any) -> Any:
    """Return a stream; ``None`` if it is closed, or missing, as without a console."""
    return None if getattr(stream, "closed", False) else stream


def _console(stream: TextIO | None) -> Console:
    console: Console = rich().console.Console(file=stream)
    return console


def _print(console: Console, text: str) -> None:
    from rich.text import Text

    console.print(Text.from_ansi(text), soft_wrap=True)


class _CachedTable:
    """A table that is recomputed only when due, however often it is drawn."""

    def __init__(self, table: RunTable, every: float) -> None:
        self._table = table
        self._every = every
        self._rendering: list[Any] = []
        self._until = 0.0

    def expire(self) -> None:
        """Recompute the table at the next drawing."""
        self._until = 0.0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if time.monotonic() >= self._until:
            self._rendering = list(self._table.__rich_console__(console, options))
            self._until = time.monotonic() + self._every
        return self._rendering


class _Screen:
    """The table, and the bars below it."""

    def __init__(self, table: _CachedTable, redirected: RedirectedStream) -> None:
        self._table = table
        self._redirected = redirected

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield self._table
        for bar in self._redirected.bars():
            yield Text.from_ansi(bar, no_wrap=True, overflow="crop")


class _PeriodicLines:
    """Writes a line periodically from a thread of its own, and one at the end."""

    def __init__(self, watched: MonitoredRun, stream: TextIO, every: float) -> None:
        self._watched = watched
        self._stream = stream
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aioqueue-live", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()
        self._write()

    def _run(self) -> None:
        while not self._over.wait(self._every):
            self._write()

    def _write(self) -> None:
        line = f"aioqueue: {status_line(self._watched, self._every)}\n"
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):  # it has been closed, or its disk is full: nobody looks
            self._over.set()
