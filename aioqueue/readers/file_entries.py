"""Ranks that read whole files: `shard(..., by="file")`.

The ranks divide the *paths* of an epoch, place by place, as they divide items otherwise. Each reads
the records of its own files only. How many records a file has is known when it was read.

A rank numbers its records from 0. Its ledger goes by these numbers. Another number of ranks has
other files in another order, so what is left of an epoch is said in files then (`left_in_files`):
which files are left, and which records of them were delivered, as the parts of the file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from aioqueue.items.item import Entry, closing_run
from aioqueue.items.positions import Place, checked_numbers
from aioqueue.items.provenance import DeliveredParts
from aioqueue.sources.file_parts import FileSegment, is_delivered, place_of_record, spans_of
from aioqueue.sources.shards import EpochEntries, EpochStart, Rank, RemainingItems

_BEGINNING: Final = EpochStart()


class FileEntries(EpochEntries):
    """The records that one rank has in an epoch: those of its own files.

    Args:
        reader: reads the files of all ranks.
        rank: the rank.
        rests: what is left of epochs that an earlier number of ranks has begun, in files.
        parts: for these epochs, which records of a file were delivered, by the file's place.
    """

    def __init__(
        self,
        reader: Any,
        rank: Rank,
        rests: Mapping[int, RemainingItems] | None = None,
        parts: Mapping[int, Mapping[int, DeliveredParts]] | None = None,
    ) -> None:
        super().__init__(reader, rank)
        self._reader = reader
        self._files = EpochEntries(reader._paths, rank._replace(by="item"), rests)
        self._delivered: Mapping[int, Mapping[int, DeliveredParts]] = parts or {}
        # Where each file begins, or continues behind records that were delivered, by epoch. The
        # thread that reads adds to the lists; others copy them.
        self._segments: dict[int, list[FileSegment]] = {}
        self._keeps_segments = False

    def length(self, epoch: int | None = None) -> int | None:
        """``None``: nobody knows how many records the files have."""
        return None

    def beginning(self) -> EpochStart:
        return EpochStart()

    def check_place(self, place: Place) -> None:
        before, number, mark, taken = place
        if before is not None:
            checked_numbers(before[0], before[1])
        self._reader._check_place((None, number, mark, taken))

    def counted(self, epoch: int, taken: int) -> int:
        """How many files of an epoch this rank has."""
        return self._files.length(epoch) or 0

    def segments(self, epoch: int) -> list[FileSegment]:
        """Where the files of an epoch begin that were read so far."""
        return list(self._segments.get(epoch, ()))

    def keep_segments(self) -> None:
        self._keeps_segments = True

    def restore_segments(self, epoch: int, segments: Sequence[FileSegment]) -> None:
        self._segments[epoch] = list(segments)

    def forget(self, epoch: int) -> None:
        for at in [at for at in list(self._segments) if at < epoch]:
            del self._segments[at]

    def placed(
        self, epoch: int, start: EpochStart = _BEGINNING
    ) -> Iterator[tuple[Entry[Any], EpochStart]]:
        """The records of an epoch, each with a start behind it; see `EpochEntries.placed`."""
        number, after = start
        segments = self._segments.setdefault(epoch, []) if self._keeps_segments else None
        before = None if after is None else after[0]
        file = -1
        delivered: list[tuple[int, int]] = []
        with closing_run(self._reader._blocks(after, self._paths(epoch, before))) as blocks:
            for block in blocks:
                at = 0 if block.before is None else block.before[0]
                if at != file:
                    file = at
                    delivered = self._spans(epoch, file)
                for record, one in enumerate(block.placed(), block.number):
                    if delivered and is_delivered(record, delivered):
                        continue
                    if segments is not None:
                        _note(segments, number, file, record)
                    number += 1
                    yield one.entry, EpochStart(number, one.place)

    def entries(self, epoch: int, number: int = 0) -> Iterator[Entry[Any]]:
        raise NotImplementedError("a reader has no random access")

    def place_of(self, epoch: int, number: int) -> int | None:
        """The file's place in the common order of the paths, and the record within it."""
        segments = self._segments.get(epoch, [])
        at = bisect_right(segments, number, key=lambda one: one.number) - 1
        if at < 0:
            return None
        segment = segments[at]
        place = self._files.place_of(epoch, segment.file)
        return None if place is None else place_of_record(place, segment.record_of(number))

    def _spans(self, epoch: int, file: int) -> list[tuple[int, int]]:
        """The records of a file that earlier ranks have delivered."""
        parts = self._delivered.get(epoch)
        place = None if parts is None else self._files.place_of(epoch, file)
        if parts is None or place is None:
            return []
        return sorted(span for span, cut in spans_of(parts.get(place, {})) if cut is None)

    def _paths(
        self, epoch: int, before: Sequence[Any] | None
    ) -> Iterator[tuple[Entry[Any], tuple[int, int, Place]]]:
        """Yield the paths of this rank, each with what is behind it: the number of its next file,
        and where the paths can be read from."""
        file, number, place = before or (0, 0, None)
        with closing_run(self._files.placed(epoch, EpochStart(number, place))) as paths:
            for at, (entry, behind) in enumerate(paths, number):
                if at >= file:
                    yield entry, (at + 1, *behind)


def _note(segments: list[FileSegment], number: int, file: int, record: int) -> None:
    """Note a record that is read, unless the segments tell already which one it is."""
    if segments:
        last = segments[-1]
        # Records are read again, from an earlier place, behind a resume.
        is_known = number < last.number
        if is_known or (last.file == file and last.record_of(number) == record):
            return
    segments.append(FileSegment(number, file, record))
