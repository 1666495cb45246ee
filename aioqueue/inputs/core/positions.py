"""Positions: where a run through a source stands, in plain JSON types, and their files.

A *place* is what a source needs in order to continue behind an item: ints, strings and sequences of
them. It is small and cheap, so every item can carry one. A *position* is a place together with the
fingerprint of its source, a version and a checksum. You save it in a file, and a source refuses a
position that does not fit.

The fingerprint of items in memory contains a digest of what they hold: see
`aioqueue.inputs.comparison.contents`. A list from `os.listdir` may have the same length on another
machine, and another order.

`save_position` replaces a file so that it always holds the old position or the new one, whole.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from itertools import takewhile
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, overload

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.arguments import check_version, checked_count, is_int
from aioqueue.display_text import without_secrets
from aioqueue.json_files import (
    MAX_BYTES,
    MAX_DEPTH,
    DocumentError,
    Schema,
    is_too_deep,
    read_document,
)
from aioqueue.public_names import public

Place: TypeAlias = Any
"""Ints, strings, ``None``, and lists or tuples of them; ``None`` is the beginning."""

_FORMAT: Final = "aioqueue.position"
_VERSION: Final = 3
"""The version of a position; that of a state is in `aioqueue.inputs.pipeline.state_document`."""
_MISSING: Final = "nothing"


def position_of(fingerprint: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """The position that a place is in a source.

    Args:
        fingerprint: the fingerprint of the source.
        place: the place.

    Returns:
        A dict of plain JSON types.
    """
    return sealed(_plain({"source": fingerprint, "place": place}))


def sealed(content: Mapping[str, Any], version: int = _VERSION) -> dict[str, Any]:
    """A position with this content, in plain JSON types: with a version and a checksum."""
    position = {"format": _FORMAT, "version": version, **content}
    return {**position, "checksum": digest_of(position)}


def fingerprint_in(position: Any, version: int = _VERSION) -> Mapping[str, Any]:
    """The fingerprint of the source that a position belongs to.

    Raises:
        InvalidArgumentError: it is not a position, or has another version.
    """
    if not isinstance(position, Mapping) or position.get("format") != _FORMAT:
        raise misplaced(
            bounded(position), "a dict that Source.position() has made, or state_dict()"
        )
    if is_too_deep(position):
        raise misplaced(f"one nested deeper than {MAX_DEPTH} levels", "one that was not changed")
    check_version(position.get("version"), version, "position")
    fingerprint = position.get("source")
    if not isinstance(fingerprint, Mapping):
        raise misplaced(f"source {bounded(fingerprint)}", "a dict")
    return fingerprint


def checked_place(position: Any, fingerprint: Mapping[str, Any]) -> Place:
    """The place that a position is, if it belongs to the source with this fingerprint.

    Raises:
        InvalidArgumentError: it is not a position, is damaged, or belongs to another source; the
            message names the field that differs, and both values.
    """
    theirs = fingerprint_in(position)
    if "stages" in position:
        raise misplaced("one of a pipeline", "one that position() of a source has made")
    check_same(theirs, _plain(fingerprint), "source")
    check_seal(position)
    return position.get("place")


def check_seal(position: Mapping[str, Any]) -> None:
    """Check that a position is as it was made.

    Raises:
        InvalidArgumentError: it is not.
    """
    content = {key: value for key, value in position.items() if key != "checksum"}
    try:
        digest = digest_of(_plain(content))
    except (TypeError, ValueError) as error:
        raise misplaced(bounded(position), f"plain JSON types ({error})") from error
    if position.get("checksum") != digest:
        raise misplaced(
            f"checksum {position.get('checksum', _MISSING)!r}",
            f"{digest!r}, which its content has: it was changed or damaged",
        )


def checked_numbers(*values: Any) -> None:
    """Check the numbers in a place.

    Raises:
        InvalidArgumentError: one is not an int of 0 to 2**63 - 1.
    """
    for value in values:
        if not is_int(value) or not 0 <= value < 2**63:
            raise misplaced(f"the number {bounded(value)}", "an int >= 0 of 63 bits")


@contextmanager
def refusing_wrong_values() -> Iterator[None]:
    """Refuse a position whose checksum is right, but whose values no aioqueue has written.

    Raises:
        InvalidArgumentError: reading it failed within the block.
    """
    try:
        yield
    except (InvalidArgumentError, DataLossError):
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, zlib.error) as one:
        why = str(one) if isinstance(one, DocumentError) else f"{type(one).__name__}: {one}"
        raise misplaced(f"wrong values ({why[:200]})", "those that were saved") from one


def digest_of(content: Any) -> str:
    """A short digest of plain JSON types: 16 hexadecimal digits."""
    return blake2b(_CANONICAL.encode(content).encode("ascii"), digest_size=8).hexdigest()


_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def misplaced(given: str, expected: str) -> InvalidArgumentError:
    """The error for a position that does not fit."""
    return InvalidArgumentError(f"position: got {given}; expected {expected}")


def check_same(theirs: Any, ours: Any, field: str) -> None:
    """Check that two fingerprints are the same.

    Args:
        theirs: the fingerprint in a position.
        ours: the fingerprint of a source or pipeline.
        field: the name of the field in messages.

    Raises:
        InvalidArgumentError: they differ; the message names the field, and both values.
    """
    for where, one, other in differences(theirs, ours, field):
        hint = ""
        if where.endswith((".items", ".names")):  # digests, which say nothing to anybody
            hint = ": the items differ, or their order does, as in an unsorted list of files"
        raise misplaced(f"{where} {one}", f"{other}, as this source has it{hint}")


def differences(theirs: Any, ours: Any, field: str) -> Iterator[tuple[str, str, str]]:
    """Where two things of plain JSON types differ.

    Args:
        theirs: one of them.
        ours: the other one.
        field: what they are called.

    Returns:
        Fields, each with both values in short.
    """
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            one, other = theirs.get(key, _MISSING), ours.get(key, _MISSING)
            yield from differences(one, other, f"{field}.{key}" if field else key)
    elif isinstance(theirs, list | tuple) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(one, other, f"{field}[{number}]")
    elif theirs != ours or isinstance(theirs, bool) is not isinstance(ours, bool):
        yield field, bounded(theirs), bounded(ours)


def _plain(value: Any) -> Any:
    """The same in plain JSON types."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return int(value) if is_int(value) else value


def plain_int(value: Any) -> int:
    """An int for JSON, which knows none of NumPy's.

    Raises:
        TypeError: the value is not an int.
    """
    if is_int(value):
        return int(value)
    raise TypeError(f"{value!r} is not of a plain JSON type")


def bounded(value: Any) -> str:
    """A short `repr` of a value."""
    text = without_secrets(repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


def relative(names: Sequence[str]) -> list[str]:
    """Names of files, relative to the folder that they have in common."""
    # A state must not tell a password, nor depend on it.
    names = [without_secrets(name).replace(os.sep, "/") for name in names]
    first, last = (min(names), max(names)) if names else ("", "")
    # What these two share at their start, all share.
    same = (one == other for one, other in zip(first, last, strict=False))
    shared = first.rfind("/", 0, sum(takewhile(bool, same))) + 1
    return [name[shared:] for name in names]


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
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        if default is _NO_POSITION:
            raise
        return default
    try:
        content = read_document(data, _FILE)
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
