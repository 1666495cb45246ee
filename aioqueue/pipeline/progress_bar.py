"""`ProgressBar`: how far a write is, where there is a terminal or a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from aioqueue import InvalidArgumentError
from aioqueue.base import extras


class ProgressBar:
    """A bar on standard error, as a context manager. If standard error is or becomes unusable, as a
    terminal that is closed, there is no bar, and the work goes on.

    Args:
        description: what goes on.
        unit: what is counted.
        total: how many there will be; ``None`` if that is unknown.
        done: how many there are already.
        progress: whether to show it. ``None`` shows it if tqdm is installed and standard error is
            a terminal.

    Raises:
        InvalidArgumentError: `progress` is neither a bool nor ``None``.
        ModuleNotFoundError: it is to be shown, and tqdm is not installed.
    """

    _bar: Any = None

    def __init__(
        self, description: str, unit: str, total: int | None, done: int, progress: bool | None
    ) -> None:
        if progress is not None and not isinstance(progress, bool):
            raise InvalidArgumentError(f"progress: got {progress!r}; expected a bool or None")
        if progress is False or not _has_stream() or (progress is None and not sys.stderr.isatty()):
            return
        try:
            from tqdm import tqdm
        except ModuleNotFoundError as error:
            if progress is None:
                return
            raise ModuleNotFoundError(
                f"a progress bar needs the module 'tqdm': {extras.command_for('progress')}",
                name="tqdm",
            ) from error
        self._terminal = _Terminal(sys.stderr)
        self._bar = tqdm(
            desc=description, unit=f" {unit}", total=total, initial=done, file=self._terminal
        )
        self._leave_if_broken()

    def add(self, count: int) -> None:
        if self._bar is not None:
            self._bar.update(count)
            self._leave_if_broken()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def _leave_if_broken(self) -> None:
        if self._terminal.is_broken:
            self._bar.close()
            self._bar = None


class _Terminal:
    """The stream of a bar. Its methods raise nothing.

    If a write of tqdm raises, tqdm keeps the lock of all its bars. The next bar of another thread
    would wait for it for ever.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.is_broken = False

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, call: Callable[..., object], *arguments: str) -> None:
        if self.is_broken:
            return
        try:
            call(*arguments)
        except Exception:
            self.is_broken = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # how wide it is, say


def _has_stream() -> bool:
    # A program without a console has no standard error.
    return sys.stderr is not None and not getattr(sys.stderr, "closed", False)
