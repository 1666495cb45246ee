"""Positions: where a run through a source stands, in plain JSON types, and their files.

A *place* is what a source needs in order to continue behind an item: ints, strings and sequences of
them. It is small and cheap, so every item can carry one. A *position* is a place together with the
fingerprint of its source, a version and a checksum. You save it in a file, and a source refuses a
position that does not fit.

The fingerprint of items in memory contains a digest of what they hold: see
`aioqueue.fingerprints.contents`. A list from `os.listdir` may have the same length on another
machine, and another order.

`save_position` replaces a file so that it always holds the old position or the new one, whole.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import takewhile
from typing import Any, Final, TypeAlias

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.arguments import check_version, is_int
from aioqueue.base.display_text import without_secrets
from aioqueue.base.json_files import MAX_DEPTH, DocumentError, is_too_deep

Place: TypeAlias = Any
"""Ints, strings, ``None``, and lists or tuples of them; ``None`` is the beginning."""


_FORMAT: Final = "aioqueue.position"


_VERSION: Final = 3
"""The version of a position; that of a state is in `aioqueue.pipeline.state.document`."""


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
    """Return a position with this content in plain JSON types, its version and a checksum."""
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
    """Return a short digest of plain JSON types: 16 hexadecimal digits."""
    return blake2b(_CANONICAL.encode(content).encode("ascii"), digest_size=8).hexdigest()


_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def misplaced(given: str, expected: str) -> InvalidArgumentError:
    """Return the error for a position that does not fit."""
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
    """Return the same value in plain JSON types."""
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
    """Return a short `repr` of a value."""
    text = without_secrets(repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


def relative(names: Sequence[str]) -> list[str]:
    """Return the names of files relative to their common folder."""
    # A state must not tell a password, nor depend on it.
    names = [without_secrets(name).replace(os.sep, "/") for name in names]
    first, last = (min(names), max(names)) if names else ("", "")
    # What these two share at their start, all share.
    same = (one == other for one, other in zip(first, last, strict=False))
    shared = first.rfind("/", 0, sum(takewhile(bool, same))) + 1
    return [name[shared:] for name in names]
