"""Position files: `save_position` and `load_position`."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar, overload

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.arguments import checked_count
from aioqueue.base.json_files import (
    MAX_DEPTH,
    DocumentError,
    Schema,
    content_of,
    is_too_deep,
    read_document,
)
from aioqueue.base.public_names import public
from aioqueue.items.positions import _VERSION, digest_of, misplaced, sealed

T = TypeVar("T")


_FILE_FORMAT: Final = "aioqueue.position-file"


_FILE: Final = Schema({"format": str, "checksum": str, "state": dict})


_NO_POSITION: Final[Any] = object()


@public("aioqueue.inputs")
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
        if "skip" not in self:
            raise misplaced("one of a source", "one that state_dict() of a pipeline has made")
        seal = ("format", "version", "checksum")
        content = {key: value for key, value in self.items() if key not in seal}
        return Position(
            sealed({**content, "skip": self["skip"] + count}, self.get("version", _VERSION))
        )


def save_position(path: str | PathLike[str], state: Mapping[str, Any]) -> None:
    """Write a position to a file, so that at any moment the file holds a whole one.

    The state is written to a temporary file in the same folder, flushed to the disk (``fsync``) and
    renamed over ``path``. Whenever the process or the machine is stopped, ``path`` holds the
    earlier state or this one, whole. If ``path`` is a symbolic link, the file that it leads to is
    written. An earlier file's permissions stay. Other plain JSON types may be saved with the state,
    such as a step: ``save_position(path, {"step": step, "data": state})``.

    Args:
        path: the file; its folder must exist.
        state: what ``state_dict()`` gave, or another dict of plain JSON types.

    Raises:
        InvalidArgumentError: the state is not a dict of plain JSON types with strings as keys.
        OSError: the file cannot be written, and the earlier one is as it was; or its folder cannot
            be flushed, and the new one is there.
    """
    if not isinstance(state, Mapping):
        raise InvalidArgumentError(f"state: got {state!r}; expected a dict, as state_dict() gives")
    if is_too_deep({"state": state}):
        raise InvalidArgumentError(
            f"state: got a dict nested deeper than {MAX_DEPTH} levels; expected plain JSON types,"
            " less deep"
        )
    try:
        content = {"format": _FILE_FORMAT, "checksum": digest_of(state), "state": state}
        text = json.dumps(content, separators=(",", ":"))
        _check_keys(state)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"state: {error}; expected plain JSON types") from error
    target = Path(path)
    if target.is_symlink():  # replacing the link would leave the state where nobody looks for it
        target = Path(os.path.realpath(target))
    # A name of this call alone: another thread, or a signal handler, may save there meanwhile.
    temporary = target.with_name(f".{target.name}.{os.urandom(8).hex()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with suppress(OSError):  # there is no earlier file, or its permissions cannot be kept
            os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _bring_to_disk(target.parent)


@overload
def load_position(path: str | PathLike[str]) -> Position: ...


@overload
def load_position(path: str | PathLike[str], default: T) -> Position | T: ...


def load_position(path: str | PathLike[str], default: Any = _NO_POSITION) -> Any:
    """Read what `save_position` has written.

    Args:
        path: the file.
        default: what to return if there is no such file: ``None``, for a run that begins.

    Returns:
        The position.

    Raises:
        FileNotFoundError: there is no such file, and no default.
        DataLossError: the file is torn or damaged, or is not a position file.
        OSError: it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            content = read_document(content_of(file), _FILE)
    except FileNotFoundError:
        if default is _NO_POSITION:
            raise
        return default
    except DocumentError as error:
        fault = f"torn position file, or none ({error})"
        raise DataLossError(path=str(path), offset=0, fault=fault) from error
    if content["format"] != _FILE_FORMAT:
        raise DataLossError(path=str(path), offset=0, fault="no position file")
    state = content["state"]
    if content["checksum"] != digest_of(state):
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
                raise TypeError(f"got the key {key!r}, which is not a string")
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
