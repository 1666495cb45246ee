"""The table of a run below the cell of a notebook, made anew while the cell runs.

What the cell prints stands beside it, as always. It is shown as HTML, which every notebook has, and
as plain text for who reads the file without one.

A table of the stages in the terminal that is kept up to date while a block runs.

What the program writes in the meantime goes above the table, line by line: prints, log messages,
whatever goes to ``sys.stdout`` and ``sys.stderr``. Bars that rewrite their own line, as those of
tqdm do, stay below it. In a notebook the table is below its cell. Where there is neither, a plain
line is written now and then instead.
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

from aioqueue.locks import guarded
from aioqueue.telemetry.registry import MonitoredRun
from aioqueue.telemetry.table import RunTable, line_of, rich

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


__all__ = ("InNotebook", "Live", "Written", "is_in_notebook")


_log: Final = logging.getLogger("aioqueue")

_COLUMNS: Final = 100

_HTML: Final = (
    '<pre style="white-space:pre;line-height:1.3;font-family:ui-monospace,Menlo,Consolas,'
    '\'DejaVu Sans Mono\',monospace"><code style="font-family:inherit">{code}</code></pre>'
)


def is_in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    if "ipykernel" not in sys.modules:
        return False
    from IPython import get_ipython

    return get_ipython() is not None  # else somebody has only imported it


class InNotebook:
    """Shows a table while a block runs, and leaves it as it was at the end.

    Args:
        table: what is shown.
        every: seconds between two of them.
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
            _log.exception("the table of a run is not kept up to date any more")

    def _draw(self) -> None:
        self._shown.update(self._drawn(), raw=True)

    def _drawn(self) -> dict[str, str]:
        """The table of now, as what a notebook can show."""
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
"""Lines below the table at most: bars that have ended go above it when there are more."""


class Live:
    """A context manager in which the table of a run is shown, or lines are written.

    Args:
        watched: the run.
        every: seconds between two tables, > 0.
        seconds: over how long a time rates and shares are taken, > 0.
        log_interval: seconds between two lines where there is no terminal, > 0; `None` writes none.
        console: a console of rich to show it in; `None`: ``sys.stderr``.

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
        stream = sys.stderr
        has_terminal = self._console is not None or stream.isatty()
        with ExitStack() as entered:
            if has_terminal:
                self._show(entered, self._console or _console(stream))
            elif is_in_notebook():
                table = RunTable(self._watched, self._seconds)
                entered.enter_context(InNotebook(table, self._every))
            elif self._log_interval is not None:
                entered.enter_context(_Lines(self._watched, stream, self._log_interval))
            self._inside = entered.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inside.close()

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
        entered.callback(table.renew)  # so that what stays on the screen is the end
        entered.callback(written.end)
        entered.callback(_redirect(written, console.file))


def _console(stream: TextIO) -> Console:
    console: Console = rich().console.Console(file=stream)
    return console


def _print(console: Console, text: str) -> None:
    from rich.text import Text

    console.print(Text.from_ansi(text), soft_wrap=True)


class _Kept:
    """A table that is made anew no more often than it has to be, however often it is drawn."""

    def __init__(self, table: RunTable, every: float) -> None:
        self._table = table
        self._every = every
        self._made: list[Any] = []
        self._until = 0.0

    def renew(self) -> None:
        """Have it made anew when it is drawn next."""
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
    """Takes the place of a stream: whole lines are handed on, bars are kept. Thread-safe.

    A bar is a line that is begun anew by a carriage return, as in tqdm: it may still change, and
    so may several of them, between which the cursor is moved up and down.

    Args:
        stream: the one whose place it takes.
        emit: called with each line that will not change any more, without its end.
    """

    def __init__(self, stream: Any, emit: Callable[[str], object]) -> None:
        self._stream = stream
        self._emit = emit
        self._lock = threading.RLock()  # guards all below; a collected bar may write at any time
        self._finished: list[str] = []
        self._plain = ""  # a line that is no bar, as far as it has come
        self._bars = [""]
        self._bar = 0  # where the cursor is

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the stream."""
        return str(getattr(self._stream, "encoding", "utf-8"))

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return bool(self._stream.isatty())

    def fileno(self) -> int:
        """Of the stream."""
        return int(self._stream.fileno())

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str, /) -> int:
        """Take what is written."""
        for line in self._finish(text):
            self._emit(line)
        return len(text)

    @guarded
    def bars(self) -> list[str]:
        """The lines that may still change."""
        return [bar for bar in (*self._bars, self._plain) if bar.strip()]

    def end(self) -> None:
        """Nothing will change any more: hand on what is left."""
        for line in self._finish_all():
            self._emit(line.rstrip())

    # Lines are handed on without the lock: who draws the bars holds another one, and needs it.

    @guarded
    def _finish(self, text: str) -> list[str]:
        is_bar = text.startswith("\r")
        for part in _PARTS.findall(text):
            self._take(part, is_bar)
        while len(self._bars) > _BARS + 1:
            self._finished.append(self._bars.pop(0).rstrip())
            self._bar = max(0, self._bar - 1)
        finished, self._finished = self._finished, []
        return finished

    @guarded
    def _finish_all(self) -> list[str]:
        finished = self.bars()
        self._plain, self._bars, self._bar = "", [""], 0
        return finished

    def _take(self, part: str, is_bar: bool) -> None:
        if part == "\n":
            self._end_line()
        elif part == "\r" or _CLEAR.fullmatch(part):
            if self._plain:
                self._plain = ""  # it was the beginning of a bar
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
"""What moves a cursor up a line, clears the line that it is in, and hides it."""

_MOVES: Final = r"\x1b\[1?A|\x1b\[[0-2]?K|\x1b\[\?\d+[hl]"
_PARTS: Final = re.compile(rf"\r|\n|{_MOVES}|(?:(?!{_MOVES})[^\r\n])+")


def _redirect(written: Written, stream: Any) -> Callable[[], None]:
    """Put `written` in the place of the terminal's streams, and where log messages go there.

    Returns:
        What puts everything back, except what somebody else has replaced meanwhile.
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
    """Whether a stream goes to the same place as that of the table."""
    if one is stream:
        return True
    try:
        return bool(one.isatty() and stream.isatty())
    except (AttributeError, ValueError):
        return False


def _handlers() -> Iterator[logging.StreamHandler[Any]]:
    """The handlers that write to a stream, of all loggers."""
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler):
                yield handler


class _Lines:
    """Writes a line now and then from a thread of its own, and one at the end."""

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
        self._stream.write(f"aioqueue: {line_of(self._watched, self._every)}\n")
        self._stream.flush()
