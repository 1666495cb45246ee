"""The contents of an actor's queue: handles of elements, whose data is elsewhere.

A batch goes to the cluster once, as a *segment*: a large one into the object store, a small one
into the memory of the actor. Each of its rows is a `RowHandle` in an ordinary queue of objects, so
order, waiting, closing and batch sizes work as in the library. A dequeue returns *runs* of rows of
segments, which the consumer gathers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from aioqueue.core.elements.spec import Columns, Spec
from aioqueue.core.storage.padded import padded

_SEGMENT: Final = attrgetter("segment")
_ROW: Final = attrgetter("row")


class Payload(NamedTuple):
    """The rows of a batch, or a reference to them."""

    columns: Columns | bytes | None
    """The rows: an array per component, or a list of arrays if shapes differ, where objects of
    users are sealed; ``None`` if they are in the object store."""
    ref: tuple[Any, ...] = ()
    """The reference in the object store, in a tuple, since Ray would fetch a bare reference
    argument."""


class Segment:
    """One enqueued batch.

    Args:
        producer: its producer.
        number: number of the enqueue.
        payload: its rows, or a reference to them.
        rows: number of rows.
        row_bytes: approximate bytes per row.

    Attributes:
        is_in_actor: whether its rows are in this actor, or belong to it.
        is_awaited: whether its rows must be sent again, because the actor or the producer has
            restarted without them.
        is_lost: whether its rows are lost.
        is_reported: whether a consumer was informed of that.
    """

    __slots__ = (
        *("__weakref__", "is_awaited", "is_in_actor", "is_lost", "is_reported"),
        *("number", "payload", "producer", "row_bytes", "rows"),
    )

    def __init__(
        self, producer: str, number: int, payload: Payload, rows: int, row_bytes: int
    ) -> None:
        self.producer = producer
        self.number = number
        self.payload = payload
        self.rows = rows
        self.row_bytes = row_bytes
        self.is_in_actor: bool = payload.columns is not None
        self.is_awaited = False
        self.is_lost = False
        self.is_reported = False


class RowHandle:
    """One row of a segment.

    Attributes:
        segment: the segment.
        row: its position there.
    """

    __slots__ = ("row", "segment")

    def __init__(self, segment: Segment, row: int) -> None:
        self.segment: Segment = segment
        self.row: int = row

    @property
    def nbytes(self) -> int:
        return self.segment.row_bytes


Run: TypeAlias = tuple[Payload, Sequence[int]]
"""A segment, and rows of it in the order in which they leave: a `range` if they are contiguous."""


def runs_of(handles: Iterable[RowHandle]) -> list[tuple[Segment, Sequence[int]]]:
    """Return handles as the fewest possible runs, in order."""
    return [
        (segment, _as_range(list(map(_ROW, run))))
        for segment, run in groupby(handles, key=_SEGMENT)
    ]


def _as_range(rows: list[int]) -> Sequence[int]:
    first, last = rows[0], rows[-1]
    run = range(first, last + 1)
    return run if len(run) == len(rows) and rows == list(run) else rows


def gathered(
    spec: Spec, runs: Sequence[tuple[Columns, Sequence[int]]], *, is_padded: bool
) -> Columns:
    """Return the rows of runs as the columns of one batch.

    Args:
        spec: the type of the elements.
        runs: for each segment, its columns and the rows to take.
        is_padded: whether to pad arrays of different shapes to the largest.

    Returns:
        A list of objects, or one read-only array per component, which is a view if there is a
        single run.
    """
    if spec.components is None:
        return [columns[row] for columns, rows in runs for row in rows]
    if is_padded and (len(runs) > 1 or any(isinstance(one, list) for one in runs[0][0])):
        rows_of_all = [
            tuple(column[row] for column in columns) for columns, rows in runs for row in rows
        ]
        made = padded(spec.components, rows_of_all)
    else:
        parts = [[_rows_of(column, rows) for column in columns] for columns, rows in runs]
        joined = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        made = [column.view() for column in joined]
    for column in made:
        column.flags.writeable = False
    return made


def _rows_of(column: Any, rows: Sequence[int]) -> Any:
    return column[rows.start : rows.stop] if isinstance(rows, range) else column[rows]
