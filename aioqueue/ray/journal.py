"""The journal file from which a queue's actor recovers after its death.

It has one line of JSON for each record of a `QueueLedger`. A record is appended and forced to disk
before any caller gets an answer that depends on it; many records go to disk together when many
calls wait. An incomplete last line, left by a crash, was never confirmed to a caller and is
ignored. When most records are obsolete, a short version is written beside the file and replaces it.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from aioqueue.base.json_files import parsed
from aioqueue.errors import DataLossError, WorkerDiedError
from aioqueue.ray.ledger import QueueLedger, Record, check_record

_FIRST: Final = '["aioqueue queue", 2]\n'

_MIN_REWRITE: Final = 4096
"""Records that a file must have before it is rewritten."""


class NoJournal:
    """Takes the place of a journal for a queue without one, whose actor does not recover."""

    starts = 0

    def __init__(self) -> None:
        self.ledger: QueueLedger = QueueLedger()

    def append(self, *record: object) -> None:
        pass

    async def flushed(self) -> None:
        pass

    def freed(self, life: str) -> list[int]:
        return []

    def answered(self, life: str, number: int) -> int | None:
        return None

    def droppable_of(self, life: str, numbers: Iterable[int]) -> list[int]:
        return list(numbers)

    def end(self, *, remove: bool) -> None:
        pass


class QueueJournal:
    """A ledger and its file.

    Args:
        path: the file.
        is_new: whether the file does not exist yet.

    Raises:
        OSError: the file cannot be read or written.
        WorkerDiedError: the file should exist and does not.
        DataLossError: the file is damaged, or of another version.
    """

    def __init__(self, path: str | os.PathLike[str], *, is_new: bool) -> None:
        self.path: Path = Path(path)
        self._lock = threading.Lock()  # guards all below, and the ledger
        self._has_work = threading.Condition(self._lock)  # there is something to write
        self.ledger: QueueLedger = QueueLedger()
        self._lines: list[str] = []  # to be written
        self._appended = 0  # how many records there are
        self._flushed = 0  # how many of them are on disk
        # The finished batches of each producer (nothing of them is left in the queue), each with
        # the number of records up to the one that says so.
        self._freed: dict[str, list[tuple[int, int]]] = {}
        self._waiting: list[tuple[int, Callable[[], object]]] = []
        self._failure: OSError | None = None
        self._is_ended = False
        if not is_new:
            self._read()
            self._note_freed()
        self._length = 0  # records in the file
        # On disk before any call is answered. Clients rejoin once for each start count, so two
        # starts must never have the same.
        self.ledger.apply(["start", self.ledger.starts + 1])
        self._rewrite(list(self.ledger.records()))
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115  # as long as the actor
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    @property
    def starts(self) -> int:
        """How often the actor has started."""
        return self.ledger.starts

    def append(self, *record: object) -> None:
        """Record an event; it is written soon."""
        with self._lock:
            self.ledger.apply(list(record))
            self._lines.append(json.dumps(record, separators=(",", ":")) + "\n")
            self._appended += 1
            if record[0] == "gone":  # nobody asks for its batches any more
                self._freed.pop(str(record[1]), None)
            self._note_freed()
            self._has_work.notify()

    def _note_freed(self) -> None:
        for life in self.ledger.producers_of_freed():
            numbers = [(self._appended, number) for number in self.ledger.freed(life)]
            self._freed.setdefault(life, []).extend(numbers)

    async def flushed(self) -> None:
        """Wait until all records so far are on disk.

        Raises:
            WorkerDiedError: they cannot be written.
        """
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            if self._flushed < self._appended and self._failure is None:
                wake = partial(loop.call_soon_threadsafe, woken.set)
                self._waiting.append((self._appended, wake))
            else:
                woken.set()
        await woken.wait()
        if self._failure is not None:
            raise WorkerDiedError(
                f"the journal '{self.path}' of the queue cannot be written, so the effect of this"
                " call may be lost"
            ) from self._failure

    def freed(self, life: str) -> list[int]:
        """See `QueueLedger.freed`.

        It returns only batches whose release is on disk. Otherwise a restarted actor would ask for
        them after their producer has dropped them.
        """
        with self._lock:
            freed = self._freed.pop(life, [])
            unflushed = [one for one in freed if one[0] > self._flushed]
            if unflushed:
                self._freed[life] = unflushed
            return [number for written, number in freed if written <= self._flushed]

    def end(self, *, remove: bool) -> None:
        with self._lock:
            self._is_ended = True
            self._has_work.notify()
        self._thread.join()
        self._file.close()
        if remove:
            self.path.unlink(missing_ok=True)

    def answered(self, life: str, number: int) -> int | None:
        """Return how many rows an enqueue put in that was answered before the actor died."""
        with self._lock:
            return self.ledger.answered.get(life, {}).get(number)

    def droppable_of(self, life: str, numbers: Iterable[int]) -> list[int]:
        """Return which of these enqueues their producer can drop, according to the disk."""
        with self._lock:
            unflushed = {number for at, number in self._freed.get(life, ()) if at > self._flushed}
            batches = self.ledger.batches
            return [one for one in numbers if (life, one) not in batches and one not in unflushed]

    def _read(self) -> None:
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            raise WorkerDiedError(
                f"the actor of the queue has died and was started again on a node without its"
                f" journal '{self.path}': pass journal= a folder that all nodes share"
            ) from None
        *lines, _ = text.split(b"\n")  # the rest is empty, or an incomplete line
        if not lines or lines[0] + b"\n" != _FIRST.encode():
            raise DataLossError(f"'{self.path}' is not a queue journal of this version")
        for place, line in enumerate(lines[1:], 2):
            try:
                record = parsed(line)
                check_record(record)
                self.ledger.apply(record)
            except ValueError as error:
                raise DataLossError(
                    f"'{self.path}' is damaged in line {place}: {error}",
                    path=str(self.path),
                    fault="damaged record",
                ) from error

    def _rewrite(self, records: list[Record]) -> None:
        beside = self.path.with_name(f"{self.path.name}.new")
        lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in records]
        with open(beside, "wb") as file:
            file.write("".join([_FIRST, *lines]).encode())
            file.flush()
            os.fsync(file.fileno())
        # A crash leaves the old file or the new one, each complete. The folder is forced to disk,
        # too: else the old file could be back after a power failure.
        os.replace(beside, self.path)
        with suppress(OSError):  # some systems cannot open folders
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        self._length = len(records)

    def _write(self) -> None:
        while True:
            with self._lock:
                while not (self._lines or self._is_ended):
                    self._has_work.wait()
                if not self._lines:
                    return
                # All that has gathered while the disk was busy goes out in one write.
                lines, self._lines = self._lines, []
                written = self._appended
                # Under the lock, so that the ledger holds exactly the records up to `written`.
                is_long = self._length + len(lines) > max(_MIN_REWRITE, 4 * self.ledger.size)
                compacted = list(self.ledger.records()) if is_long else None
            try:
                self._write_lines(lines, compacted)
            except OSError as error:
                self._fail(error)
                return
            self._notify_flushed(written)

    def _write_lines(self, lines: list[str], compacted: list[Record] | None) -> None:
        if compacted is None:
            # An unbuffered write may be partial, as on a disk that is nearly full.
            text = memoryview("".join(lines).encode())
            while text:
                text = text[self._file.write(text) :]
            os.fsync(self._file.fileno())
            self._length += len(lines)
            return
        self._rewrite(compacted)  # it includes the content of the lines
        self._file.close()
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115

    def _notify_flushed(self, written: int) -> None:
        with self._lock:
            self._flushed = written
            due = [wake for number, wake in self._waiting if number <= written]
            self._waiting = [one for one in self._waiting if one[0] > written]
        for wake in due:
            wake()

    def _fail(self, error: OSError) -> None:
        with self._lock:
            self._failure = error  # before the callers wake, who look at it
            # Nothing more counts as flushed: a restarted actor reads what the disk has, and asks
            # producers for the batches that are unfinished there. So they must not drop these.
            waiting, self._waiting = self._waiting, []
        for _, wake in waiting:
            wake()
