"""What is left of an epoch whose ranks read whole files, in files and their records.

The records of a file that were delivered are *spans*: numbers of records from one to another. As
the parts of a file (`DeliveredParts`) each span has a number that says both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aioqueue.items.provenance import DeliveredParts

_STOP_BITS: Final = 32

_RECORD_BITS: Final = 40

Span = tuple[int, int]
"""Where a run of records begins, and where it ends."""


class FileSegment(NamedTuple):
    """Records of one file that follow each other."""

    number: int
    """The number of the first one among the records of the rank."""
    file: int
    """The number of the file among those of the rank."""
    record: int
    """The number of the first one in its file."""

    def record_of(self, number: int) -> int:
        """Return the number of a record in its file, from its number among those of the rank."""
        return self.record + number - self.number


def part_number(start: int, stop: int) -> int:
    """Return the number of a span, as the part of its file."""
    return start << _STOP_BITS | stop


def span_of(part: int) -> Span:
    """Return the span that has this number."""
    return part >> _STOP_BITS, part & (1 << _STOP_BITS) - 1


def spans_of(cuts: DeliveredParts) -> Iterator[tuple[Span, DeliveredParts | None]]:
    """Yield the delivered spans of a file; of a record that was delivered in part, its parts."""
    for part, cut in cuts.items():
        yield span_of(part), cut


def place_of_record(place: int, record: int) -> int:
    """Return a number for a record: its file's place in the common order, and its own number."""
    return place << _RECORD_BITS | record


def partly_delivered(parts: Mapping[int, DeliveredParts]) -> dict[int, DeliveredParts]:
    """Return the parts that were delivered of single records, by `place_of_record`.

    Args:
        parts: the delivered parts of files, by the file's place in the common order.
    """
    return {
        place_of_record(place, span[0]): cut
        for place, cuts in parts.items()
        for span, cut in spans_of(cuts)
        if cut is not None
    }


def is_delivered(record: int, spans: Iterable[Span]) -> bool:
    return any(start <= record < stop for start, stop in spans)


def left_in_files(
    segments: Sequence[FileSegment],
    missing: Iterable[int],
    upto: int,
    cuts: DeliveredParts,
    count: int | None,
) -> tuple[list[int], int, DeliveredParts]:
    """Say in files what a rank has left of an epoch.

    Args:
        segments: the files that it has read, from the first that has missing records on, in order.
        missing: the numbers of the records that were taken, and are not done.
        upto: the number of the first record that was not taken.
        cuts: the parts that were delivered of some of the missing records.
        count: how many files the rank has, if it has read all of them to their ends.

    Returns:
        The numbers of the files that were begun, and have records left; the number of the first
        file that was not begun; and the parts of these files that were delivered.
    """
    left: dict[int, list[Span]] = {}  # the records that are left, by file
    ends: dict[int, int] = {}  # behind the last record that was read
    parts: dict[int, DeliveredParts] = {}
    by_number = sorted(missing)
    at = 0
    for place, segment in enumerate(segments):
        stop = segments[place + 1].number if place + 1 < len(segments) else upto
        ends[segment.file] = segment.record_of(stop)
        left.setdefault(segment.file, [])
        while at < len(by_number) and by_number[at] < stop:
            number = by_number[at]
            at += 1
            if number < segment.number:
                continue  # of a file that is done: an item that is finished twice, say
            record = segment.record_of(number)
            left[segment.file].append((record, record + 1))
            if cuts.get(number):
                own = parts.setdefault(segment.file, {})
                own[part_number(record, record + 1)] = cuts[number]
    last = segments[-1].file if segments else -1
    begun = []
    for file, records in left.items():
        # The last file may have more records behind those that were read.
        if records or (file == last and count is None):
            begun.append(file)
            own = parts.setdefault(file, {})
            own.update(
                (part_number(start, stop), None) for start, stop in _between(records, ends[file])
            )
    return begun, last + 1 if count is None else count, {at: parts[at] for at in begun}


def _between(spans: Sequence[Span], end: int) -> Iterator[Span]:
    """Yield what lies between spans, from 0 to an end."""
    upto = 0
    for start, stop in (*spans, (end, end)):
        if upto < start:
            yield upto, start
        upto = max(upto, stop)


def segments_between(segments: Sequence[FileSegment], first: int, upto: int) -> list[FileSegment]:
    """Return those of some segments that have records of the rank from one number to another.

    Reading is ahead of what was taken, so there may be more.
    """
    read = [one for one in segments if one.number < upto]
    behind = bisect_right(read, first, key=lambda one: one.number)
    return read[max(0, behind - 1) :]


def segments_in(state: Mapping[str, Any]) -> list[FileSegment]:
    """Read segments from the state of a ledger."""
    return [FileSegment(*one) for one in state["files"]]
