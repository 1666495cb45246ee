"""Items that could not be prepared: their records, and files of them, which can be prepared again.

The file has one JSON object per line. ``item`` holds an item that JSON can represent. ``pickle``
holds any other item, pickled and in base64; `read_quarantine` opens it only if you declare the file
as trusted. ``repr`` describes an item that cannot be pickled.

Several runs may write to one file, and anybody else: a run knows its own lines by their ``seal``,
which nobody can make who has not its key, and the key is nowhere but in its memory. So it needs to
remember nothing about the lines that it has written, and opens none that it has not. The ``run``
of a line is the same in all processes of one run, which go on where another was killed.

Where the records of items go that could not be prepared: a list, or a file.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import json
import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.arguments import counted
from aioqueue.inputs.core.items import Quarantined, safe_repr

__all__ = (
    "SIGN",
    "Quarantine",
    "QuarantineFile",
    "QuarantineLine",
    "QuarantineList",
    "Quarantined",
    "as_json",
    "lines_of",
    "record_of",
    "signed_in",
)


SIGN: Final = "run"
"""The field of a line that tells which run has written it."""

_MOST_BITS: Final = 10_000
"""Ints as long as that are not written in decimals, which Python refuses from 4,300 digits on."""


def as_json(record: Quarantined) -> dict[str, Any]:
    fields = {**record.__dict__}
    item = fields.pop("item")
    try:
        if _is_json(item):
            return {"item": item, **fields}
    except RecursionError:
        pass  # too deep for JSON, which pickle may know to handle
    try:
        pickled = pickle.dumps(item)
    except Exception:
        return {"repr": safe_repr(item), **fields}
    text = safe_repr(item)[:200]
    return {"pickle": base64.b64encode(pickled).decode("ascii"), "repr": text, **fields}


def _is_json(item: Any) -> bool:
    """Whether JSON gives back just what it was given."""
    if item is None or type(item) in (bool, str):
        return True
    if type(item) is int:
        return item.bit_length() < _MOST_BITS
    if type(item) is float:
        return item - item == 0  # it has neither infinities nor NaN
    if type(item) is list:
        return all(map(_is_json, item))
    if type(item) is dict:
        return all(type(key) is str for key in item) and all(map(_is_json, item.values()))
    return False


class QuarantineLine(NamedTuple):
    """One line of a file."""

    path: str
    number: int
    offset: int
    fields: dict[str, Any]

    def damaged(self, why: object) -> DataLossError:
        """What to raise if it makes no record."""
        return DataLossError(
            f"{self}: no record of a quarantine: {why}",
            path=self.path,
            offset=self.offset,
            fault="damaged record",
        )

    def __str__(self) -> str:
        return f"{self.path}:{self.number}"


def lines_of(file: BinaryIO, path: str) -> Iterator[QuarantineLine]:
    offset = 0
    for number, text in enumerate(file, 1):
        line = QuarantineLine(path, number, offset, {})
        offset += len(text)
        if text == b"\n":
            continue  # which ended a line that another run had left without an end
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise line.damaged(error) from None
        if not isinstance(fields, dict):
            raise line.damaged(f"expected an object, not {fields!r}")
        fields.pop("seal", None)
        yield line._replace(fields=fields)


def signed_in(path: Path, sign: str) -> set[tuple[int, int]]:
    """The epochs and indices of the items of one run's lines, also where others are damaged.

    Raises:
        OSError: the file cannot be read.
    """
    found = set()
    mark = json.dumps(sign).encode("ascii")
    with path.open("rb") as file:
        for text in file:
            if mark in text:  # else it is not looked into
                with suppress(ValueError, KeyError, TypeError):
                    fields = json.loads(text)
                    if fields[SIGN] == sign:
                        found.add((fields["epoch"], fields["index"]))
    return found


def record_of(line: QuarantineLine, *, trusted: bool, replay: bool = False) -> Quarantined:
    fields = line.fields
    fields.pop(SIGN, None)
    described = fields.pop("repr", None)
    pickled = fields.pop("pickle", None)
    if pickled is not None:
        if not trusted:
            raise InvalidArgumentError(
                f"trusted: got False, but {line} holds a pickled item ({described}); pass"
                " trusted=True if nobody else could have written this file"
            )
        try:
            fields["item"] = pickle.loads(base64.b64decode(pickled, validate=True))
        except (ValueError, TypeError, EOFError, pickle.UnpicklingError) as error:
            raise line.damaged(error) from error
    elif "item" not in fields and described is not None:
        if replay:
            raise InvalidArgumentError(
                f"{line}: the item could not be written, only described: {described}; look it up"
                f" in its source by epoch {fields.get('epoch')} and index {fields.get('index')}"
            )
        fields["item"] = described
    try:
        return Quarantined(**fields)
    except TypeError as error:
        raise line.damaged(error) from None


class Quarantine(Protocol):
    """Where the records of skipped items go. Thread-safe."""

    def add(self, record: Quarantined) -> None:
        """Put one more in."""

    def records(self) -> list[Quarantined]:
        """All that one run has put in."""

    @property
    def sign(self) -> str:
        """What tells its records from those of others, also to later processes; may be empty."""

    def go_on(self, sign: str) -> None:
        """An earlier process has begun, whose records had this sign: put none in twice."""


class QuarantineList:
    """Records in memory."""

    def __init__(self) -> None:
        self._records: list[Quarantined] = []

    def add(self, record: Quarantined) -> None:
        self._records.append(record)

    def records(self) -> list[Quarantined]:
        return list(self._records)

    @property
    def sign(self) -> str:
        return ""

    def go_on(self, sign: str) -> None:
        """What an earlier process had in its memory is gone."""


class _Seal:
    """Tells the lines of one run, and their order, from all else that a file may hold."""

    _BEFORE: Final = b', "seal": "'
    _BEHIND: Final = b'"}\n'
    _DIGITS: Final = 32

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def sealed(self, number: int, record: bytes) -> bytes:
        """The line for a JSON object."""
        return record[:-1] + self._BEFORE + self._of(number, record) + self._BEHIND

    def opened(self, number: int, line: bytes) -> bytes | None:
        """The JSON object, if it is this line that was sealed; else ``None``."""
        behind = len(line) - len(self._BEHIND)
        seal = line[behind - self._DIGITS : behind]
        record = line[: max(0, behind - self._DIGITS - len(self._BEFORE))] + b"}"
        return record if hmac.compare_digest(seal, self._of(number, record)) else None

    def _of(self, number: int, record: bytes) -> bytes:
        numbered = number.to_bytes(8, "big") + record
        digest = hashlib.blake2b(numbered, key=self._key, digest_size=self._DIGITS // 2)
        return digest.hexdigest().encode("ascii")


class QuarantineFile:
    """Records in a file; none stays in memory.

    A record is written when its item is skipped, at once and in one piece, and the file is closed
    again, so that what is there survives whatever happens next, and others may write to it, too.

    A process that goes on with a run which was killed prepares items again, and skips some again.
    So all processes of a run sign its lines alike, and what stands there signed is not written a
    second time; such records, as many as were skipped after the last position was saved, are kept
    in memory.

    Args:
        path: the file. Records are added to what is in it.

    Raises:
        InvalidArgumentError: it cannot be written to.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()  # lines are written one at a time, and counted
        self._seal = _Seal()
        self._count = 0
        self._sign = os.urandom(8).hex()
        self._there: set[tuple[int, int]] = set()  # epochs and indices of the run's lines before us
        self._again: list[Quarantined] = []  # of those, what was skipped again
        try:
            with self.path.open("a+b") as file:
                self._start = file.tell()
                file.seek(max(0, self._start - 1))
                self._is_torn = file.read(1) not in (b"", b"\n")  # the last line there has no end
        except OSError as error:
            raise InvalidArgumentError(
                f"quarantine: got {str(path)!r}, which cannot be written to: {error}"
            ) from error

    def add(self, record: Quarantined) -> None:
        """Write one more.

        Raises:
            OSError: the file cannot be written to, or not all of the record.
        """
        key = (record.epoch, record.index)
        if key in self._there:
            with self._lock:
                self._there.discard(key)
                self._again.append(record)
            return
        text = json.dumps({**as_json(record), SIGN: self._sign}).encode("ascii")
        # Without a buffer: what is appended in one call is not mixed with what others append.
        with self._lock, self.path.open("ab", buffering=0) as file:
            line = b"\n" * self._is_torn + self._seal.sealed(self._count, text)
            self._is_torn = True
            written = file.write(line)
            if written != len(line):
                raise OSError(errno.EIO, f"{written} of {len(line)} bytes written", str(self.path))
            self._is_torn = False
            self._count += 1

    @property
    def sign(self) -> str:
        return self._sign

    def go_on(self, sign: str) -> None:
        """See `Quarantine.go_on`.

        Raises:
            OSError: the file cannot be read.
        """
        if sign:
            self._sign = sign
            self._there = signed_in(self.path, sign)

    def records(self) -> list[Quarantined]:
        """All that this process has skipped; an item that is no more than described is its repr.

        Raises:
            OSError: the file cannot be read.
            DataLossError: it does not have them any more.
        """
        with self._lock:
            count, again = self._count, list(self._again)
        path = str(self.path)
        with self.path.open("rb") as file:
            file.seek(self._start)
            found = self._own(file, path, count)
            offset = file.tell()
        if len(found) < count:
            raise DataLossError(
                f"{path}: {count - len(found)} of {counted(count, 'record')} of this run are gone:"
                " the file was changed",
                path=path,
                offset=offset,
                fault="lost records",
            )
        return [*again, *found]

    def _own(self, file: BinaryIO, path: str, count: int) -> list[Quarantined]:
        """So many of this run's records, if the rest of the file has them."""
        found: list[Quarantined] = []
        for text in file:
            own = self._seal.opened(len(found), text)
            if own is not None:
                line = QuarantineLine(path, len(found) + 1, 0, json.loads(own))
                found.append(record_of(line, trusted=True))
            if len(found) == count:
                break
        return found
