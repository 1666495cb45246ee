"""The quarantine: records of items that a run skips, and of files that are damaged.

The file has one JSON object per line. ``item`` holds an item that JSON can represent. ``pickle``
holds any other item, pickled and in base64; `read_quarantine` opens it only if you declare the
file as trusted. ``repr`` describes an item that cannot be pickled.

Several runs, and anybody else, may write to one file. A run recognises its own lines by their
``seal``. Only the holder of the run's key can make a seal, and the key exists only in the run's
memory. So a run need not remember the lines that it has written, and it unpickles no other lines.
All processes of one run share the ``run`` of their lines, also a process that resumes where
another was killed.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import json
import logging
import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple, TypeAlias

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.json_files import (
    COUNT,
    MAX_BYTES,
    MAX_DEPTH,
    DocumentError,
    Schema,
    is_json,
    parsed,
    read_document,
)
from aioqueue.errors import counted
from aioqueue.items.item import Item
from aioqueue.items.quarantined import Quarantined
from aioqueue.items.value_text import safe_repr

SIGN: Final = "run"
"""The field of a line that tells which run has written it."""

_LINE: Final = Schema(
    {
        "epoch": COUNT,
        "index": COUNT,
        "error": str,
        "traceback": str,
        "attempts": COUNT,
        "seed": int,
    },
    {"item": None, "pickle": str, "repr": str, "offset": COUNT, SIGN: str, "seal": str},
)
_LONGEST_REPR: Final = 10_000
_LONGEST_ITEM: Final = MAX_BYTES // 2
"""A line has the traceback too. Of a longer item only the repr is written."""


def as_json(record: Quarantined) -> dict[str, Any]:
    fields = {**record.__dict__}
    item = fields.pop("item")
    if record.offset is None:
        del fields["offset"]
    # What is too deep for JSON, pickle may know to handle.
    if is_json(item, MAX_DEPTH - 1) and len(json.dumps(item)) <= _LONGEST_ITEM:
        return {"item": item, **fields}
    try:
        pickled = pickle.dumps(item)
    except Exception:
        return {"repr": safe_repr(item), **fields}
    if len(pickled) > _LONGEST_ITEM // 2:
        return {"repr": safe_repr(item)[:_LONGEST_REPR], **fields}
    text = safe_repr(item)[:200]
    return {"pickle": base64.b64encode(pickled).decode("ascii"), "repr": text, **fields}


class QuarantineLine(NamedTuple):
    path: str
    number: int
    offset: int
    fields: dict[str, Any]

    def damaged(self, why: object) -> DataLossError:
        """Return the error for a line that contains no record of a quarantine."""
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
    for number, text in enumerate(iter(partial(file.readline, MAX_BYTES + 1), b""), 1):
        line = QuarantineLine(path, number, offset, {})
        offset += len(text)
        if text == b"\n":
            continue  # which ended a line that another run had left without an end
        try:
            fields = read_document(text, _LINE)
        except DocumentError as error:
            raise line.damaged(error) from None
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
        for text in iter(partial(file.readline, MAX_BYTES + 1), b""):
            if mark in text:  # else it is not looked into
                with suppress(ValueError, KeyError, TypeError):
                    fields = parsed(text)
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
        except Exception as error:  # a damaged pickle may raise anything
            raise line.damaged(f"{type(error).__name__}: {error}") from error
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


class _Seal:
    """Tells the lines of one run, and their order, from all else that a file may hold."""

    _BEFORE: Final = b', "seal": "'
    _BEHIND: Final = b'"}\n'
    _DIGITS: Final = 32

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def sealed(self, number: int, record: bytes) -> bytes:
        return record[:-1] + self._BEFORE + self._of(number, record) + self._BEHIND

    def opened(self, number: int, line: bytes) -> bytes | None:
        """Return the JSON object if this line is sealed under this number; otherwise ``None``."""
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

    A process that continues a killed run prepares items again, and skips some again.
    So all processes of a run sign its lines alike, and what stands there signed is not written a
    second time; such records, as many as were skipped after the last position was saved, are kept
    in memory.

    Args:
        path: the file. Records are added to what is in it.

    Raises:
        InvalidArgumentError: it cannot be written to.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path: Path = Path(path)
        self._lock = threading.Lock()  # lines are written one at a time, and counted
        self._seal = _Seal()
        self._count = 0
        self._sign = os.urandom(8).hex()
        # The epochs and indices in the lines of earlier processes of this run.
        self._earlier: set[tuple[int, int]] = set()
        self._skipped_again: list[Quarantined] = []  # of those, what was skipped again
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
        if key in self._earlier:
            with self._lock:
                self._earlier.discard(key)
                self._skipped_again.append(record)
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

    def resume(self, sign: str) -> None:
        """See `Quarantine.resume`.

        Raises:
            OSError: the file cannot be read.
        """
        if sign:
            self._sign = sign
            self._earlier = signed_in(self.path, sign)

    def records(self) -> list[Quarantined]:
        """All that this process has skipped; an item that is no more than described is its repr.

        Raises:
            OSError: the file cannot be read.
            DataLossError: it does not have them any more.
        """
        with self._lock:
            count, skipped_again = self._count, list(self._skipped_again)
        path = str(self.path)
        with self.path.open("rb") as file:
            file.seek(self._start)
            found = self._read_own(file, path, count)
            offset = file.tell()
        if len(found) < count:
            raise DataLossError(
                f"{path}: {count - len(found)} of {counted(count, 'record')} of this run are gone:"
                " the file was changed",
                path=path,
                offset=offset,
                fault="lost records",
            )
        return [*skipped_again, *found]

    def _read_own(self, file: BinaryIO, path: str, count: int) -> list[Quarantined]:
        """Return up to ``count`` of this run's records from the rest of the file."""
        found: list[Quarantined] = []
        for text in iter(partial(file.readline, MAX_BYTES + 1), b""):
            own = self._seal.opened(len(found), text)
            if own is not None:
                line = QuarantineLine(path, len(found) + 1, 0, parsed(own))
                found.append(record_of(line, trusted=True))
            if len(found) == count:
                break
        return found


OnDamage: TypeAlias = Literal["stop", "skip"]
"""What happens at a damaged file."""

QuarantinePath: TypeAlias = str | PathLike[str] | None

_log: Final = logging.getLogger("aioqueue")


class DamagedFiles:
    """Lists the damaged files that a reader leaves out, each damage once. Thread-safe.

    A file is met again in each epoch, and by a run that resumes within it. So a damage that the
    list or the quarantine file already has is not added again. With a quarantine file, the records
    are only there; memory has a number for each damage.

    Args:
        on_error: ``"stop"`` or ``"skip"``.
        quarantine: the file that lists them too; ``None`` for none.
        reader: the name of the reader, for the log.

    Raises:
        InvalidArgumentError: an argument is wrong, or the file cannot be written to.
    """

    def __init__(self, on_error: Any, quarantine: Any, reader: str) -> None:
        if on_error not in ("stop", "skip"):
            raise InvalidArgumentError(f"on_error: got {on_error!r}; expected 'stop' or 'skip'")
        if quarantine is not None and on_error == "stop":
            raise InvalidArgumentError(
                "quarantine: given with on_error='stop', which skips nothing; expected"
                " on_error='skip', too"
            )
        self.are_skipped: bool = on_error == "skip"
        self._reader = reader
        self._lock = threading.Lock()
        self._records: list[Quarantined] = []  # empty if there is a file
        self._known: set[int] = set()  # the digests of the damage
        self._file = None if quarantine is None else QuarantineFile(quarantine)
        self._in_file: set[int] | None = None

    def add(self, error: DataLossError, epoch: int, index: int, seed: int) -> None:
        """List a damaged file.

        Args:
            error: the damage.
            epoch: the epoch of the file's path.
            index: the index that the first record behind the sound ones would have.
            seed: the seed of the reader.

        Raises:
            OSError: the quarantine file cannot be read or written.
        """
        damage = _digest(error.path, error.offset)
        with self._lock:
            if damage in self._known:
                return
            self._known.add(damage)
            item = Item(0, error.path, epoch, index)
            record = replace(Quarantined.of(item, error, 1, seed), offset=error.offset)
            if self._file is None:
                self._records.append(record)
            elif damage not in self._listed():
                self._file.add(record)
        _log.warning("%s leaves out the rest of a damaged file: %s", self._reader, error)

    def records(self) -> list[Quarantined]:
        """Return the records of the damaged files that this reader has left out.

        Raises:
            OSError: the quarantine file cannot be read.
            DataLossError: it does not have all of them any more.
        """
        with self._lock:
            records, known = list(self._records), set(self._known)
        if self._file is None or not known:
            return records
        path = self._file.path
        for record in _records_in(path):
            digest = _digest(record.item, record.offset)
            if digest in known:  # the first one of each: the same damage may be listed by others
                known.remove(digest)
                records.append(record)
        if known:
            raise DataLossError(
                f"{path}: the records of {counted(len(known), 'damaged file')} are gone: the file"
                " was changed",
                path=str(path),
                offset=path.stat().st_size,
                fault="lost records",
            )
        return records

    def _listed(self) -> set[int]:
        """Return the damage that the quarantine file had when the first one was met."""
        if self._in_file is None:
            assert self._file is not None
            found = _records_in(self._file.path)
            self._in_file = {_digest(record.item, record.offset) for record in found}
        return self._in_file


def _digest(path: str, offset: int | None) -> int:
    """Return a number that stands for a damage: 8 bytes, however long the path is."""
    text = f"{offset} {path}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _records_in(path: Path) -> Iterator[Quarantined]:
    """Yield the damaged files that a quarantine file lists; other lines are passed over."""
    with path.open("rb") as file:
        for text in iter(partial(file.readline, MAX_BYTES + 1), b""):
            with suppress(DocumentError, DataLossError, KeyError, TypeError):
                fields = read_document(text, _LINE)
                fields.pop("seal", None)
                if isinstance(fields["item"], str) and isinstance(fields["offset"], int):
                    line = QuarantineLine(str(path), 0, 0, fields)
                    yield record_of(line, trusted=False)
