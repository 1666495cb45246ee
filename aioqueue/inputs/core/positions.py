"""Positions: where a run through a source stands, in plain JSON types.

A *place* is what a source needs to go on behind an item: ints, strings and sequences of them. It is
small and cheap, so it can travel with every item. A *position* is a place and what it belongs to:
the fingerprint of the source, a version and a checksum. It is what is kept in a file, and what is
refused where it does not fit.

The place is JSON within JSON, as one text. So all positions in one source have the same entries, as
whatever saves and loads each entry of a dict by itself asks for.

What tells the items of a source from others, so that no run goes on among other items.

A list that comes from `os.listdir` has another order on another machine, and the same length. To
compare all items would take long, and a position is small: it has a digest of some of them.

Keeping positions in files: either the new one is there whole, or the old one still is.
"""

from __future__ import annotations

import json
import marshal
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain, islice, takewhile, zip_longest
from os import PathLike
from pathlib import Path, PurePath
from typing import Any, Final, TypeAlias, TypeVar, overload

import numpy as np

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.arguments import checked_count, is_int

__all__ = (
    "Place",
    "Position",
    "Positions",
    "checked_place",
    "differences",
    "digest_of",
    "digest_of_items",
    "fingerprint_in",
    "load_position",
    "misplaced",
    "place_in",
    "plain_int",
    "position_of",
    "relative",
    "save_position",
)


Place: TypeAlias = Any
"""Ints, strings, ``None``, and lists or tuples of them; ``None`` is the beginning."""

_FORMAT: Final = "aioqueue.position"
_VERSION: Final = 1
_MISSING: Final = "nothing"
_SWAPPED: Final = str.maketrans("\"'", "'\"")
"""Both kinds of quotes, for JSON within JSON: one kind has to be escaped there, the other has not;
to do it twice is to do nothing."""


def position_of(fingerprint: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """The position that a place is in a source.

    Args:
        fingerprint: of the source.
        place: in it.

    Returns:
        A dict of plain JSON types.
    """
    return Positions(fingerprint).at(place)


class Positions:
    """The positions in one source, whose fingerprint is written down once for all of them.

    Args:
        fingerprint: of the source.
    """

    def __init__(self, fingerprint: Mapping[str, Any]) -> None:
        plain = _plain(fingerprint)
        self._fingerprint = marshal.dumps(plain)  # which is copied sooner than JSON is read
        self._rest = _hashed({"format": _FORMAT, "source": plain, "version": _VERSION})

    def at(self, place: Place) -> dict[str, Any]:
        """The position that a place is: a dict of plain JSON types, which nobody else has."""
        return self.at_text(_PLACES.encode(place))

    def at_text(self, after: str) -> dict[str, Any]:
        """The same of a place that is JSON already."""
        # A place seldom has an apostrophe in it, and then one kind is replaced in a fraction of the
        # time: for whoever wants a state behind each batch.
        after = after.translate(_SWAPPED) if "'" in after else after.replace('"', "'")
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "source": marshal.loads(self._fingerprint),
            "after": after,
            "checksum": _checksum(self._rest, after),
        }


def fingerprint_in(position: Any) -> Mapping[str, Any]:
    """The fingerprint of the source that a position belongs to.

    Raises:
        InvalidArgumentError: it is no position, or one of a newer version.
    """
    if not isinstance(position, Mapping) or position.get("format") != _FORMAT:
        raise misplaced(
            _bounded(position), "a dict that Source.position() has made, or state_dict()"
        )
    version = position.get("version")
    if is_int(version) and version > _VERSION:
        raise misplaced(
            f"version {version}, which a newer aioqueue has written", f"version {_VERSION} at most"
        )
    if version != _VERSION:
        raise misplaced(f"version {version!r}", f"version {_VERSION}")
    fingerprint = position.get("source")
    if not isinstance(fingerprint, Mapping):
        raise misplaced(f"source {_bounded(fingerprint)}", "a dict")
    return fingerprint


def checked_place(position: Any, fingerprint: Mapping[str, Any]) -> Place:
    """The place that a position is, if it belongs to the source with this fingerprint.

    Raises:
        InvalidArgumentError: it is no position, is damaged, or belongs to another source; the
            message names the field that differs, and both values.
    """
    _check_same(fingerprint_in(position), _plain(fingerprint), "source")
    after = position.get("after")
    if not isinstance(after, str):
        raise misplaced(f"after {_bounded(after)}", "JSON text")
    rest = {key: value for key, value in position.items() if key not in ("after", "checksum")}
    try:
        digest = _checksum(_hashed(_plain(rest)), after)
    except (TypeError, ValueError) as error:
        raise misplaced(_bounded(position), f"plain JSON types ({error})") from error
    if position.get("checksum") != digest:
        raise misplaced(
            f"checksum {position.get('checksum', _MISSING)!r}",
            f"{digest!r}, which its content has: it was changed or damaged",
        )
    return place_in(position)


def place_in(position: Mapping[str, Any]) -> Place:
    """The place that a position is, of whatever source.

    Raises:
        InvalidArgumentError: it has none.
    """
    place = position.get("after")
    try:
        return json.loads(place.translate(_SWAPPED))  # type: ignore[union-attr]  # or anything else
    except (AttributeError, TypeError, ValueError) as error:
        raise misplaced(f"after {_bounded(place)}", "JSON text") from error


def digest_of(content: Any) -> str:
    """A short digest of plain JSON types: 16 hexadecimal digits."""
    return str(_hashed(content).hexdigest())


def _hashed(content: Any) -> Any:
    """The hash of plain JSON types, to which more can be added."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode("ascii"), digest_size=8)


def _checksum(rest: Any, after: str) -> str:
    """That of a position: the hash of all else in it, and then of its place as it is written."""
    whole = rest.copy()
    whole.update(after.encode("utf-8", "surrogatepass"))
    return str(whole.hexdigest())


def misplaced(given: str, expected: str) -> InvalidArgumentError:
    """What to raise for a position that does not fit."""
    return InvalidArgumentError(f"position: got {given}; expected {expected}")


def _check_same(theirs: Any, ours: Any, field: str) -> None:
    for where, one, other in differences(theirs, ours, field):
        hint = ""
        if where.endswith((".items", ".names")):  # digests, which say nothing to anybody
            hint = ": the items are others, or in another order, as a list that is not sorted is"
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
            yield from differences(one, other, f"{field}.{key}")
    elif isinstance(theirs, list | tuple) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(one, other, f"{field}[{number}]")
    elif theirs != ours or isinstance(theirs, bool) is not isinstance(ours, bool):
        yield field, _bounded(theirs), _bounded(ours)


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
        TypeError: it is none.
    """
    if is_int(value):
        return int(value)
    raise TypeError(f"{value!r} is no plain JSON type")


_PLACES: Final = json.JSONEncoder(separators=(",", ":"), default=plain_int)


def _bounded(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_MOST_ITEMS: Final = 64
_MOST_PARTS: Final = 12
"""Of one item: of a list of numbers, say."""
_LONGEST: Final = 512
"""Of longer text the ends are looked at, and how long it is."""


class _OfAnotherKind(Exception):  # noqa: N818  # nobody else sees it
    """An item is of a kind that may be another one in each process."""


def digest_of_items(sequence: Any) -> str | None:
    """A digest of some items of a sequence: of the first, the last, and 62 in between.

    Paths count from the folder that all have in common, which may be moved.

    Args:
        sequence: of items.

    Returns:
        16 hexadecimal digits. ``None`` if there are no items, if to take one may be more than to
        look it up, or if they are not made of text, bytes, numbers and paths.
    """
    is_vector = type(sequence) is np.ndarray and sequence.ndim == 1
    if not (is_vector or type(sequence) in (list, tuple)) or not len(sequence):
        return None
    last = len(sequence) - 1
    places = {last * at // (_MOST_ITEMS - 1): None for at in range(_MOST_ITEMS)}
    try:
        items = [list(islice(_parts(sequence[place]), _MOST_PARTS)) for place in places]
    except _OfAnotherKind:
        return None
    return digest_of([_from_shared_folder(column) for column in zip_longest(*items)])


def relative(names: Sequence[str]) -> list[str]:
    """The same names of files, counted from the folder that they have in common."""
    names = [name.replace(os.sep, "/") for name in names]
    first, last = (min(names), max(names)) if names else ("", "")
    # What these two share at their start, all share.
    same = (one == other for one, other in zip(first, last, strict=False))
    shared = first.rfind("/", 0, sum(takewhile(bool, same))) + 1
    return [name[shared:] for name in names]


def _from_shared_folder(column: Sequence[Any]) -> list[Any]:
    """One part of all items: of (path, label), the paths alone have a folder in common."""
    names = iter(relative([one for one in column if isinstance(one, str)]))
    return [next(names) if isinstance(one, str) else one for one in column]


def _parts(item: Any) -> Iterator[Any]:
    """What an item is made of, in plain JSON types.

    Raises:
        _OfAnotherKind: it is made of something else.
    """
    if item is None or isinstance(item, bool):
        yield item
    elif isinstance(item, str | PurePath):  # others that have a path may have to fetch a file
        yield _shortened(str(item))
    elif isinstance(item, bytes):
        yield _shortened(item).decode("latin-1")
    elif is_int(item):
        yield int(item)
    elif isinstance(item, float | np.floating | np.bool_):
        yield float(item)
    elif isinstance(item, list | tuple):
        yield len(item)
        yield from chain.from_iterable(map(_parts, item))
    elif isinstance(item, dict) and all(isinstance(key, str) for key in item):
        yield len(item)
        for key in sorted(item):
            yield key
            yield from _parts(item[key])
    else:
        raise _OfAnotherKind


def _shortened(text: Any) -> Any:
    """Text or bytes, of which not all can be looked at if that is a document or an image."""
    if len(text) <= _LONGEST:
        return text
    length = str(len(text))
    half = _LONGEST // 2
    middle = length if isinstance(text, str) else length.encode()
    return text[:half] + middle + text[-half:]


T = TypeVar("T")

_FILE_FORMAT: Final = "aioqueue.position-file"
_NO_POSITION: Final[Any] = object()


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
        content = {"format": _FILE_FORMAT, "checksum": digest_of(state), "state": state}
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
def load_position(path: str | PathLike[str], default: Any = _NO_POSITION) -> Any:
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
        if default is _NO_POSITION:
            raise
        return default
    try:
        content = json.loads(data)
    except ValueError as error:
        raise DataLossError(path=str(path), offset=0, fault="torn position file") from error
    if not isinstance(content, dict) or content.get("format") != _FILE_FORMAT:
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
