"""A stream in the place of the terminal's: whole lines go above the table, bars stay below it."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from aioqueue.system.locks import synchronized

_MOST_BARS: Final = 4
"""Most lines below the table; with more, finished bars move above it."""


class RedirectedStream(io.TextIOBase):
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
        self._line = ""  # the unfinished line, if it is no bar
        self._bars = [""]
        self._bar = 0  # the bar that the cursor is in

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(getattr(self._stream, "encoding", "utf-8"))

    def isatty(self) -> bool:
        return bool(self._stream.isatty())

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        for line in self._finish(text):
            self._emit(line)
        return len(text)

    @synchronized
    def bars(self) -> list[str]:
        """Return the lines that may still change."""
        return [bar for bar in (*self._bars, self._line) if bar.strip()]

    def end(self) -> None:
        """Emit the rest; nothing changes any more."""
        for line in self._finish_all():
            self._emit(line.rstrip())

    # Emit lines without the lock: drawing the bars takes rich's lock first and then this one.

    @synchronized
    def _finish(self, text: str) -> list[str]:
        # tqdm writes a bar as a carriage return and the text, without a line end. Other text that
        # has no line end yet is an unfinished line, until a carriage return shows that it is a bar.
        is_bar = text.startswith("\r")
        for part in _PARTS.findall(text):
            self._accept(part, is_bar)
        while len(self._bars) > _MOST_BARS + 1:
            self._finished.append(self._bars.pop(0).rstrip())
            self._bar = max(0, self._bar - 1)
        finished, self._finished = self._finished, []
        return finished

    @synchronized
    def _finish_all(self) -> list[str]:
        finished = self.bars()
        self._line, self._bars, self._bar = "", [""], 0
        return finished

    def _accept(self, part: str, is_bar: bool) -> None:
        if part == "\n":
            self._end_line()
        elif part == "\r" or _CLEAR_LINE.fullmatch(part):
            if self._line:
                self._line = ""  # it turned out to be a bar
            else:
                self._bars[self._bar] = ""
        elif _CURSOR_UP.fullmatch(part):
            self._bar = max(0, self._bar - 1)
        elif _HIDE_CURSOR.fullmatch(part):
            pass
        elif is_bar:
            self._bars[self._bar] += part
        else:
            self._line += part

    def _end_line(self) -> None:
        if self._line or not any(self._bars):
            self._finished.append(self._line)
            self._line = ""
            return
        self._bar += 1
        if self._bar == len(self._bars):
            self._bars.append("")


_CURSOR_UP: Final = re.compile(r"\x1b\[1?A")
_CLEAR_LINE: Final = re.compile(r"\x1b\[[0-2]?K")
_HIDE_CURSOR: Final = re.compile(r"\x1b\[\?\d+[hl]")
"""Control sequences that move a cursor up a line, clear its line, and hide it."""

_CONTROL_SEQUENCES: Final = r"\x1b\[1?A|\x1b\[[0-2]?K|\x1b\[\?\d+[hl]"
_PARTS: Final = re.compile(rf"\r|\n|{_CONTROL_SEQUENCES}|(?:(?!{_CONTROL_SEQUENCES})[^\r\n])+")


def redirect(redirected: RedirectedStream, stream: Any) -> Callable[[], None]:
    """Put `redirected` in the place of the terminal's streams, also for log handlers.

    Returns:
        A function that restores them, except those that other code has replaced in the meantime.
    """
    streams = [
        name for name in ("stdout", "stderr") if _is_same_terminal(getattr(sys, name), stream)
    ]
    before = {name: getattr(sys, name) for name in streams}
    handlers = [
        handler for handler in _handlers() if any(handler.stream is one for one in before.values())
    ]
    for name in streams:
        setattr(sys, name, redirected)
    changed = [(handler, handler.setStream(redirected)) for handler in handlers]

    def restore() -> None:
        for name, one in before.items():
            if getattr(sys, name) is redirected:
                setattr(sys, name, one)
        for handler, one in changed:
            if handler.stream is redirected:
                handler.setStream(one)

    return restore


def _is_same_terminal(one: Any, stream: Any) -> bool:
    """Return whether a stream writes to the same place as that of the table."""
    if one is stream:
        return True
    try:
        return bool(one.isatty() and stream.isatty())
    except (AttributeError, ValueError):
        return False


def _handlers() -> Iterator[logging.StreamHandler[Any]]:
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler):
                yield handler
