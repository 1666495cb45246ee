"""Live tables of a run: in the terminal, and below the cell of a notebook.

Whatever the program writes to ``sys.stdout`` and ``sys.stderr`` (prints, log messages) appears
above the table, line by line. Bars that rewrite their own line, such as those of tqdm, stay below
it. In a notebook, the table is HTML below its cell, with plain text for readers without one. Where
there is neither a terminal nor a notebook, a plain line is written from time to time.
"""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TextIO

from aioqueue.system.locks import synchronized
from aioqueue.telemetry.registry import MonitoredRun
from aioqueue.telemetry.table import RunTable, line_of, rich

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


_log: Final = logging.getLogger("aioqueue")

_COLUMNS: Final = 100

_HTML: Final = (
    '<pre style="white-space:pre;line-height:1.3;font-family:ui-monospace,Menlo,Consolas,'
    '\'DejaVu Sans Mono\',monospace"><code style="font-family:inherit">{code}</code></pre>'
)


def is_in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
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

        self._shown: Any = display(self._drawn(), raw=True, display_id=True)  # type: ignore[no-untyped-call]
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
        self._shown.update(self._drawn(), raw=True)

    def _drawn(self) -> dict[str, str]:
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


_BARS: Final = 4
"""Most lines below the table; with more, finished bars move above it."""


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
        self._inside = ExitStack()

    def __enter__(self) -> Live:
        stream = _living(sys.stderr)
        has_terminal = self._console is not None or (stream is not None and stream.isatty())
        with ExitStack() as entered:
            if has_terminal:
                self._show(entered, self._console or _console(stream))
            elif is_in_notebook():
                table = RunTable(self._watched, self._seconds)
                entered.enter_context(InNotebook(table, self._every))
            elif self._log_interval is not None and stream is not None:
                entered.enter_context(_Lines(self._watched, stream, self._log_interval))
            self._inside = entered.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._inside.close()
        except (OSError, ValueError) as failure:
            # The terminal has been closed, say. Nobody looks, and the run goes on.
            stream = sys.stderr if self._console is None else self._console.file
            if isinstance(failure, ValueError) and _living(stream) is not None:
                raise

    def _show(self, entered: ExitStack, console: Console) -> None:
        from rich.live import Live as RichLive

        table = _Kept(RunTable(self._watched, self._seconds), self._every)
        written = Written(console.file, lambda text: _print(console, text))
        shown = RichLive(
            console=console,
            get_renderable=lambda: _Screen(table, written),
            refresh_per_second=max(4.0, 1 / self._every),
            redirect_stdout=False,
            redirect_stderr=False,
        )
        entered.enter_context(shown)
        shown.refresh()
        entered.callback(table.renew)  # the screen keeps the final numbers
        entered.callback(written.end)
        entered.callback(_redirect(written, console.file))


def _living(stream: Any) -> Any:
    """Return a stream; ``None`` if it is closed, or missing, as without a console."""
    return None if getattr(stream, "closed", False) else stream


def _console(stream: TextIO | None) -> Console:
    console: Console = rich().console.Console(file=stream)
    return console


def _print(console: Console, text: str) -> None:
    from rich.text import Text

    console.print(Text.from_ansi(text), soft_wrap=True)


class _Kept:
    """A table that is recomputed only when due, however often it is drawn."""

    def __init__(self, table: RunTable, every: float) -> None:
        self._table = table
        self._every = every
        self._made: list[Any] = []
        self._until = 0.0

    def renew(self) -> None:
        """Recompute the table at the next drawing."""
        self._until = 0.0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if time.monotonic() >= self._until:
            self._made = list(self._table.__rich_console__(console, options))
            self._until = time.monotonic() + self._every
        return self._made


class _Screen:
    """The table, and the bars below it."""

    def __init__(self, table: _Kept, written: Written) -> None:
        self._table = table
        self._written = written

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield self._table
        for bar in self._written.bars():
            yield Text.from_ansi(bar, no_wrap=True, overflow="crop")


class Written(io.TextIOBase):
    """Replaces a stream: emits whole lines, and keeps bars. Thread-safe.

    A bar is a line that a carriage return restarts, as in tqdm. It may still change, and so may
    several bars if the cursor moves up and down between them.

    Args:
        stream: the stream that it replaces.
        emit: called with each line that is final, without its line end.
    """

    def __init__(self, stream: Any, emit: Callable[[str], object]) -> None:
        self._stream = stream
        self._emit = emit
        self._lock = threading.RLock()  # guards all below; a collected bar may write at any time
        self._finished: list[str] = []
        self._plain = ""  # the unfinished line, if it is no bar
        self._bars = [""]
        self._bar = 0  # the bar that the cursor is in

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return str(getattr(self._stream, "encoding", "utf-8"))

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return bool(self._stream.isatty())

    def fileno(self) -> int:
        """Return the file descriptor of the stream."""
        return int(self._stream.fileno())

    def writable(self) -> bool:
        """Return true."""
        return True

    def write(self, text: str, /) -> int:
        """Accept text."""
        for line in self._finish(text):
            self._emit(line)
        return len(text)

    @synchronized
    def bars(self) -> list[str]:
        """Return the lines that may still change."""
        return [bar for bar in (*self._bars, self._plain) if bar.strip()]

    def end(self) -> None:
        """Emit the rest; nothing changes any more."""
        for line in self._finish_all():
            self._emit(line.rstrip())

    # Emit lines without the lock: drawing the bars takes rich's lock first and then this one.

    @synchronized
    def _finish(self, text: str) -> list[str]:
        is_bar = text.startswith("\r")
        for part in _PARTS.findall(text):
            self._take(part, is_bar)
        while len(self._bars) > _BARS + 1:
            self._finished.append(self._bars.pop(0).rstrip())
            self._bar = max(0, self._bar - 1)
        finished, self._finished = self._finished, []
        return finished

    @synchronized
    def _finish_all(self) -> list[str]:
        finished = self.bars()
        self._plain, self._bars, self._bar = "", [""], 0
        return finished

    def _take(self, part: str, is_bar: bool) -> None:
        if part == "\n":
            self._end_line()
        elif part == "\r" or _CLEAR.fullmatch(part):
            if self._plain:
                self._plain = ""  # it turned out to be a bar
            else:
                self._bars[self._bar] = ""
        elif _UP.fullmatch(part):
            self._bar = max(0, self._bar - 1)
        elif _HIDDEN.fullmatch(part):
            pass
        elif is_bar:
            self._bars[self._bar] += part
        else:
            self._plain += part

    def _end_line(self) -> None:
        if self._plain or not any(self._bars):
            self._finished.append(self._plain)
            self._plain = ""
            return
        self._bar += 1
        if self._bar == len(self._bars):
            self._bars.append("")


_UP: Final = re.compile(r"\x1b\[1?A")
_CLEAR: Final = re.compile(r"\x1b\[[0-2]?K")
_HIDDEN: Final = re.compile(r"\x1b\[\?\d+[hl]")
"""Control sequences that move a cursor up a line, clear its line, and hide it."""

_MOVES: Final = r"\x1b\[1?A|\x1b\[[0-2]?K|\x1b\[\?\d+[hl]"
_PARTS: Final = re.compile(rf"\r|\n|{_MOVES}|(?:(?!{_MOVES})[^\r\n])+")


def _redirect(written: Written, stream: Any) -> Callable[[], None]:
    """Put `written` in the place of the terminal's streams, also for log handlers.

    Returns:
        A function that restores them, except those that other code has replaced in the meantime.
    """
    streams = [name for name in ("stdout", "stderr") if _shows(getattr(sys, name), stream)]
    before = {name: getattr(sys, name) for name in streams}
    handlers = [
        handler for handler in _handlers() if any(handler.stream is one for one in before.values())
    ]
    for name in streams:
        setattr(sys, name, written)
    were = [(handler, handler.setStream(written)) for handler in handlers]

    def put_back() -> None:
        for name, one in before.items():
            if getattr(sys, name) is written:
                setattr(sys, name, one)
        for handler, one in were:
            if handler.stream is written:
                handler.setStream(one)

    return put_back


def _shows(one: Any, stream: Any) -> bool:
    """Return whether a stream writes to the same place as that of the table."""
    if one is stream:
        return True
    try:
        return bool(one.isatty() and stream.isatty())
    except (AttributeError, ValueError):
        return False


def _handlers() -> Iterator[logging.StreamHandler[Any]]:
    """Return the handlers of all loggers that write to a stream."""
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler):
                yield handler


class _Lines:
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
        line = f"aioqueue: {line_of(self._watched, self._every)}\n"
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):  # it has been closed, or its disk is full: nobody looks
            self._over.set()
