"""Where the records of items go that could not be prepared: a list, or a file."""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import secrets
import threading
from os import PathLike
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.checks import counted
from aioqueue.inputs.sources.quarantined import (
    SIGN,
    Line,
    Quarantined,
    as_json,
    record_of,
    signed_in,
)

__all__ = ("Quarantine", "QuarantineFile", "QuarantineList")


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
        self._key = secrets.token_bytes(32)

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
    """Records in a file, of which nothing stays in memory.

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
        self._sign = secrets.token_hex(8)
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
                line = Line(path, len(found) + 1, 0, json.loads(own))
                found.append(record_of(line, trusted=True))
            if len(found) == count:
                break
        return found
