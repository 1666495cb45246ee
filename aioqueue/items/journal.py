"""Journals: which items were in each batch of a run, in a file beside it.

The file begins with a line that says what it is, and one of JSON that says whose it is. Then there
is one record for each batch that was handed out, in order: a head of fixed size, and the indices of
its items as differences from one to the next, in as few bytes as all of them need: 1, 2, 4, 8 or
16. (So items of a shuffled source of up to two thousand million take 4 bytes each; those of
readers, whose indices have the number of the file in their upper bits, 8.) Sources and epochs of
the items are only there where they are not all the same.

Each record is written at once and in one piece, before its batch is handed out; a checksum tells
what is whole. It is not forced to the disk, which would take longer than the batch: a process that
is killed loses nothing, a machine that loses its power the last records.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple
from zlib import crc32

import numpy as np

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.arguments import checked_count
from aioqueue.base.display_text import print_to
from aioqueue.base.json_files import DocumentError, Schema, read_document
from aioqueue.base.public_names import public
from aioqueue.items.item import Origin

if TYPE_CHECKING:
    import argparse

    from numpy.typing import NDArray

_log: Final = logging.getLogger("aioqueue")

_MAGIC: Final = b"aioqueue journal 1\n"
_HEAD: Final = struct.Struct("<IIQIIIB")
"""Length and checksum of what follows these two; number of the batch; its epoch; its place there;
how many items; how they are written."""
_RUN: Final = Schema({"run": str}, is_open=True)
_LONGEST_RUN: Final = 2**16
_BLOCK: Final = 2**20
_LEAD: Final = 8
_WIDTHS: Final = (1, 2, 4, 8)
_WIDE: Final = 16
_HAS_SOURCES: Final = 32
_HAS_EPOCHS: Final = 64


@public("aioqueue.inputs")
@dataclass(frozen=True)
class JournalEntry:
    """What a journal says of one batch.

    Attributes:
        batch: its number among all that were handed out in the run, from 0.
        epoch: the epoch in which it was.
        place: how many batches of that epoch came before.
        items: the items that it was made of, in the order in which they are in it: each its source
            (0 is the one that the pipeline begins with, others were mixed in, in their order), its
            epoch and its index there. If a function made several examples of an item, each example
            has an entry.
    """

    batch: int
    epoch: int
    place: int
    items: tuple[Origin, ...]

    @property
    def indices(self) -> NDArray[np.int64]:
        """The indices of the items: shape ``(items,)``.

        Raises:
            OverflowError: one has more than 63 bits.
        """
        return np.array([item.index for item in self.items], np.int64)


class _Found(NamedTuple):
    """Where the record of a batch is."""

    batch: int
    offset: int
    end: int


@public("aioqueue.inputs", hints="inputs")
class Journal:
    """The journal of a run. See `read_journal`, which makes it.

    ``journal[18231]`` is what it says of that batch; iterating over it gives all entries, in order.

    Attributes:
        path: the file.
        run: what tells the run from others.
        damage: what is wrong with the file, or ``None``. Records behind that cannot be read.
        is_torn: whether the last record is not whole, as where a machine has lost its power.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: DataLossError | None = None
        self.is_torn: bool = False
        with path.open("rb") as file:
            run, offset = _begun(file, path)
            self.run: str = run
            self._found = list(self._scanned(file, offset))

    def __repr__(self) -> str:
        torn = ", torn at the end" if self.is_torn else ""
        damage = ", damaged" if self.damage else ""
        return f"<aioqueue.inputs.Journal {str(self.path)!r}, {len(self)} batches{torn}{damage}>"

    @property
    def first(self) -> int:
        """The number of the first batch that has a record."""
        return self._found[0].batch if self._found else 0

    def __len__(self) -> int:
        """How many batches have a record."""
        return len(self._found)

    def __iter__(self) -> Iterator[JournalEntry]:
        with self.path.open("rb") as file:
            for one in self._found:
                yield self._read(file, one)

    def __getitem__(self, batch: int) -> JournalEntry:
        """The entry of a batch, by its number.

        Raises:
            IndexError: it has no record; the message says which ones have.
        """
        place = int(np.searchsorted([one.batch for one in self._found], batch))
        if place == len(self._found) or self._found[place].batch != batch:
            last = self._found[-1].batch if self._found else None
            held = "no batch" if last is None else f"batches {self.first} to {last}"
            raise IndexError(f"batch {batch} is not in {str(self.path)!r}, which has {held}")
        with self.path.open("rb") as file:
            return self._read(file, self._found[place])

    def _scanned(self, file: BinaryIO, offset: int) -> Iterator[_Found]:
        file.seek(0, os.SEEK_END)
        size = file.tell()
        expected = None
        while offset < size:
            file.seek(offset)
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                self.is_torn = True
                return
            length, checksum, batch, _, _, count, how = _HEAD.unpack(head)
            end = offset + _LEAD + length
            body = head[_LEAD:] + file.read(max(0, end - offset - _HEAD.size))
            is_whole = (
                checksum == crc32(body) and length == _length_of(count, how) and _is_written(how)
            )
            if not is_whole or (expected is not None and batch < expected):
                # The last one may have been written in part, or its bytes not at all.
                is_last = end >= size and length == _length_of(count, how)
                file.seek(offset)
                self.is_torn = is_last or not any(map(any, iter(partial(file.read, _BLOCK), b"")))
                if not self.is_torn:
                    self.damage = DataLossError(
                        path=str(self.path), offset=offset, fault="damaged record of a journal"
                    )
                return
            yield _Found(batch, offset, end)
            offset, expected = end, batch + 1

    def _read(self, file: BinaryIO, one: _Found) -> JournalEntry:
        file.seek(one.offset)
        return _entry_of(file.read(one.end - one.offset))


def read_journal(path: str | PathLike[str]) -> Journal:
    """Read which items were in each batch of a run, as ``epochs(..., journal=path)`` has noted.

    It may be read while the run goes on, and after a crash: all records up to the last whole one
    are there. ``python -m aioqueue journal FILE 18231`` prints one of them.

    Args:
        path: the file.

    Returns:
        A sequence of entries, by the number of the batch.

    Raises:
        OSError: the file cannot be read.
        DataLossError: the file is not a journal. ``journal.damage`` describes damage further
            on; you can read all entries before it.
    """
    return Journal(Path(path))


class JournalWriter:
    """Notes the items of each batch.

    Args:
        path: the file. The writer appends to the journal of an earlier process of the same run. It
            renames the journal of another run, and logs the new name.
        run: what tells this run from others.
        delivered: how many batches were delivered before. The records of later ones, which are
            delivered again, are cut off.

    Raises:
        InvalidArgumentError: there is something else in the file, or it cannot be written to.
    """

    def __init__(self, path: str | PathLike[str], run: str, delivered: int) -> None:
        self._path = Path(path)
        try:
            self._file = self._opened(run, delivered)
        except OSError as error:
            raise InvalidArgumentError(
                f"journal: got {str(path)!r}, which cannot be written to: {error}"
            ) from error

    def add(self, batch: int, epoch: int, place: int, items: Sequence[Origin]) -> None:
        """Note a batch.

        Args:
            batch: its number in the run.
            epoch: in which it is.
            place: its number there.
            items: what it was made of.

        Raises:
            OSError: the file cannot be written to, or not all of the record.
        """
        record = _record_of(batch, epoch, place, items)
        written = self._file.write(record)
        if written != len(record):
            raise OSError(f"{written} of {len(record)} bytes written to {str(self._path)!r}")

    def __del__(self) -> None:
        # One thread may take the last batch while another leaves the epochs.
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()

    def _opened(self, run: str, delivered: int) -> BinaryIO:
        path = self._path
        if path.exists() and path.stat().st_size:
            try:
                journal = Journal(path)
            except DataLossError as error:
                raise InvalidArgumentError(
                    f"journal: got {str(path)!r}, which is not a journal; expected"
                    " a journal, or a new file"
                ) from error
            if journal.run == run and journal.damage is None:
                return self._cut(journal, delivered)
            why = journal.damage or "it is of another run"
            _log.warning("the journal %s is now %s: %s", path, _rename_aside(path), why)
        file = path.open("xb" if not path.exists() else "wb", buffering=0)
        file.write(_MAGIC + json.dumps({"run": run}).encode("ascii") + b"\n")
        return file

    def _cut(self, journal: Journal, delivered: int) -> BinaryIO:
        later = [one.offset for one in journal._found if one.batch >= delivered]
        ends = [one.end for one in journal._found if one.batch < delivered]
        file = self._path.open("r+b", buffering=0)
        with self._path.open("rb") as begun:
            _, start = _begun(begun, self._path)
        file.truncate(later[0] if later else max(ends, default=start))  # or what is torn
        file.seek(0, os.SEEK_END)
        return file


def _begun(file: BinaryIO, path: Path) -> tuple[str, int]:
    """Return which run's journal it is, and where its records begin."""
    if file.readline(len(_MAGIC)) != _MAGIC:
        raise DataLossError(path=str(path), offset=0, fault="no journal")
    try:
        run = read_document(file.readline(_LONGEST_RUN), _RUN)["run"]
    except DocumentError as error:
        fault = f"no journal ({error})"
        raise DataLossError(path=str(path), offset=0, fault=fault) from error
    return run, file.tell()


def _rename_aside(path: Path) -> Path:
    number = 1
    while (other := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return path.rename(other)  # so nothing is lost


def _record_of(batch: int, epoch: int, place: int, items: Sequence[Origin]) -> bytes:
    sources, epochs, indices = zip(*items, strict=True) if items else ((), (), ())
    how, content = _packed(indices)
    if any(sources):
        how |= _HAS_SOURCES
        content += np.array(sources, "<u2").tobytes()
    if any(one != epoch for one in epochs):
        how |= _HAS_EPOCHS
        content += np.array(epochs, "<u4").tobytes()
    length = _length_of(len(items), how)
    head = _HEAD.pack(length, 0, batch, epoch, place, len(items), how)
    body = head[_LEAD:] + content
    return struct.pack("<II", length, crc32(body)) + body


def _length_of(count: int, how: int) -> int:
    """Return the length in bytes of a record of that many items, without its lead."""
    each = (how & 31) + 2 * bool(how & _HAS_SOURCES) + 4 * bool(how & _HAS_EPOCHS)
    return _HEAD.size - _LEAD + count * each


def _is_written(how: int) -> bool:
    """Return whether ``how`` is a valid format of records."""
    return how & 31 in (*_WIDTHS, _WIDE) and how < 2 * _HAS_EPOCHS


def _entry_of(record: bytes) -> JournalEntry:
    _, _, batch, epoch, place, count, how = _HEAD.unpack(record[: _HEAD.size])
    content = record[_HEAD.size :]
    width = how & 31
    indices = _unpacked(content[: count * width], width)
    rest = content[count * width :]
    sources, epochs = [0] * count, [epoch] * count
    if how & _HAS_SOURCES:
        sources, rest = np.frombuffer(rest[: 2 * count], "<u2").tolist(), rest[2 * count :]
    if how & _HAS_EPOCHS:
        epochs = np.frombuffer(rest, "<u4").tolist()
    items = map(Origin, sources, epochs, indices)
    return JournalEntry(batch, epoch, place, tuple(items))


def _packed(indices: Sequence[int]) -> tuple[int, bytes]:
    """Return the width of the numbers that encode some indices, and these numbers as bytes."""
    if max(indices, default=0) >= 2**63:
        return _WIDE, b"".join(index.to_bytes(_WIDE, "little") for index in indices)
    differences = np.diff(np.array(indices, np.int64), prepend=np.int64(0))
    most = int(np.abs(differences).max()) if indices else 0
    width = next(width for width in _WIDTHS if most < 2 ** (8 * width - 1))
    return width, differences.astype(f"<i{width}").tobytes()


def _unpacked(content: bytes, width: int) -> list[int]:
    if width == _WIDE:
        starts = range(0, len(content), _WIDE)
        return [int.from_bytes(content[at : at + _WIDE], "little") for at in starts]
    found: list[int] = np.frombuffer(content, f"<i{width}").cumsum(dtype=np.int64).tolist()
    return found


def _format_entry(entry: JournalEntry) -> str:
    """Return an entry as text: a line for the batch, and one for each item."""
    lines = [f"batch {entry.batch}: number {entry.place} of epoch {entry.epoch}"]
    for source, epoch, index in entry.items:
        of = f" of source {source}" if source else ""
        lines.append(f"  item {index}{of}, epoch {epoch}")
    return "\n".join(lines)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``journal FILE [BATCH ...]`` to the commands of a program."""
    parser = commands.add_parser(
        "journal",
        help="which items were in a batch?",
        description="Prints what a journal says of batches, or which ones it has.",
    )
    parser.add_argument("file", metavar="FILE")
    parser.add_argument(
        "batch",
        nargs="*",
        type=lambda text: checked_count(int(text), "batch"),
        metavar="BATCH",
        help="the number of a batch, from 0",
    )
    parser.set_defaults(do=lambda given: _show(given.file, given.batch, parser.prog))


def _show(path: str, batches: Sequence[int], program: str) -> int:
    """Print some entries, or a summary if none are given; return the exit status."""
    try:
        journal = read_journal(path)
        found = [_format_entry(journal[batch]) for batch in batches]
    except (OSError, DataLossError, IndexError) as error:
        print_to(sys.stderr, f"{program}: {error}")
        return 1
    print_to(sys.stdout, "\n".join(found or [_summary(journal)]))
    if journal.damage is not None:
        print_to(sys.stderr, f"{program}: {journal.damage}")
        return 1
    return 0


def _summary(journal: Journal) -> str:
    if not len(journal):
        return f"{journal.path}: no batch"
    last = journal._found[-1].batch
    torn = "; the last record is torn" if journal.is_torn else ""
    return f"{journal.path}: batches {journal.first} to {last}{torn}"
