"""Positions: where a run through a source stands, in plain JSON types.

A *place* is what a source needs to go on behind an item: ints, strings and sequences of them. It is
small and cheap, so it can travel with every item. A *position* is a place and what it belongs to:
the fingerprint of the source, a version and a checksum. It is what is kept in a file, and what is
refused where it does not fit.

The place is JSON within JSON, as one text. So all positions in one source have the same entries, as
whatever saves and loads each entry of a dict by itself asks for.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from aioqueue import InvalidArgumentError
from aioqueue.checks import is_int

__all__ = (
    "Place",
    "Positions",
    "checked_place",
    "differences",
    "digest_of",
    "fingerprint_in",
    "misplaced",
    "place_in",
    "plain_int",
    "position_of",
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
