"""Keeping positions in files: either the new one is there whole, or the old one still is."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar, overload

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.checks import checked_count
from aioqueue.inputs.sources.positions import digest_of, misplaced, place_in, position_of

__all__ = ("Position", "load_position", "save_position")

T = TypeVar("T")

_FORMAT: Final = "aioqueue.position-file"
_MISSING: Final[Any] = object()


class Position(dict[str, Any]):
    """What ``state_dict()`` of a pipeline's epochs gave, as `load_position` returns it: a dict."""

    def skip(self, batches: int) -> Position:
        """The position so many batches further on.

        The next ``batches`` batches are prepared but not handed out: to step over data that have
        made the loss diverge, say.

        Args:
            batches: how many, >= 0. Those that an epoch no longer has are taken from the next.

        Returns:
            Another position; this one stays as it is.

        Raises:
            InvalidArgumentError: it is no such int; or the position is not that of a pipeline.
        """
        count = checked_count(batches, "batches")
        after = place_in(self)
        if not isinstance(after, Mapping) or "skip" not in after:
            raise misplaced("one of a source", "one that state_dict() of a pipeline has made")
        return Position(position_of(self["source"], {**after, "skip": after["skip"] + count}))


def save_position(path: str | PathLike[str], state: Mapping[str, Any]) -> None:
    """Write a position to a file, so that at any moment the file holds a whole one.

    The state is written to a temporary file in the same folder, flushed to the disk (``fsync``) and
    renamed over ``path``. Whenever the process or the machine is stopped, ``path`` holds the
    earlier state or this one, whole. Other plain JSON types may be saved with it, as a step:
    ``save_position(path, {"step": step, "data": state})``.

    Args:
        path: the file; its folder must exist.
        state: what ``state_dict()`` gave, or another dict of plain JSON types.

    Raises:
        InvalidArgumentError: the state is no dict of plain JSON types, whose keys are strings.
        OSError: the file cannot be written, and the earlier one is as it was; or its folder cannot
            be flushed, and the new one is there.
    """
    if not isinstance(state, Mapping):
        raise InvalidArgumentError(f"state: got {state!r}; expected a dict, as state_dict() gives")
    try:
        content = {"format": _FORMAT, "checksum": digest_of(state), "state": state}
        text = json.dumps(content, separators=(",", ":"))
        _check_keys(state)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"state: {error}; expected plain JSON types") from error
    target = Path(path)
    # Of this call alone: another thread may save there too, or a signal handler in the midst of it.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _bring_to_disk(target.parent)


@overload
def load_position(path: str | PathLike[str]) -> Position: ...
@overload
def load_position(path: str | PathLike[str], default: T) -> Position | T: ...
def load_position(path: str | PathLike[str], default: Any = _MISSING) -> Any:
    """Read what `save_position` has written.

    Args:
        path: the file.
        default: what to return if there is no such file: ``None``, for a run that begins.

    Returns:
        The position.

    Raises:
        FileNotFoundError: there is no such file, and no default.
        DataLossError: the file is torn or damaged, or is none of these.
        OSError: it cannot be read.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        if default is _MISSING:
            raise
        return default
    try:
        content = json.loads(data)
    except ValueError as error:
        raise DataLossError(path=str(path), offset=0, fault="torn position file") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise DataLossError(path=str(path), offset=0, fault="no position file")
    state = content.get("state")
    if not isinstance(state, dict) or content.get("checksum") != digest_of(state):
        raise DataLossError(path=str(path), offset=0, fault="wrong checksum of a position file")
    return Position(state)


def _check_keys(value: Any) -> None:
    """JSON makes strings of other keys, so that what is loaded would not be what was saved.

    Raises:
        TypeError: there are such.
    """
    if isinstance(value, Mapping):
        for key, one in value.items():
            if not isinstance(key, str):
                raise TypeError(f"got the key {key!r}, which is no string")
            _check_keys(one)
    elif isinstance(value, list | tuple):
        for one in value:
            _check_keys(one)


def _bring_to_disk(folder: Path) -> None:
    """Make sure that names in a folder survive a loss of power, where the system can."""
    if os.name == "nt":  # folders cannot be opened there, and renaming is written through
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
