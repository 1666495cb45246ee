"""What rests in the queue of an actor: handles of elements, whose data are elsewhere.

A batch goes to the cluster once, as a *segment*: into the object store where it is large, and into
the memory of the actor where it is small. Each of its rows is a `Handle` in an ordinary queue of
objects, so order, waiting, closing and batch sizes are those of the library. What is dequeued is
*runs* of rows of segments; the consumer gathers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from aioqueue.elements import Columns, Spec
from aioqueue.storage.padded import padded

__all__ = ("Handle", "Payload", "Run", "Segment", "gathered", "runs_of")

_SEGMENT: Final = attrgetter("segment")
_ROW: Final = attrgetter("row")


class Payload(NamedTuple):
    """The rows of a batch on their way, or where they are."""

    columns: Columns | None
    """The rows themselves, where shapes differ a list of arrays per component; ``None`` if they are
    in the object store."""
    ref: tuple[Any, ...] = ()
    """There, by this one reference: in a tuple, for Ray would fetch what an argument refers to."""


class Segment:
    """One batch that was put in.

    Args:
        producer: whose it is.
        number: of the call that has put it in.
        payload: its rows, or where they are.
        rows: how many.
        row_bytes: how many bytes a row has, about.

    Attributes:
        is_here: whether its rows are with this actor, or belong to it.
        is_awaited: whether its rows have to be sent again: this actor has come back without them,
            or its producer has, which can make them again.
        is_lost: whether they are gone for good.
        is_told: whether somebody was told so.
    """

    __slots__ = (
        *("__weakref__", "is_awaited", "is_here", "is_lost", "is_told"),
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
        self.is_here = payload.columns is not None
        self.is_awaited = False
        self.is_lost = False
        self.is_told = False


class Handle:
    """One row of a segment.

    Attributes:
        segment: which.
        row: its place there.
    """

    __slots__ = ("row", "segment")

    def __init__(self, segment: Segment, row: int) -> None:
        self.segment = segment
        self.row = row

    @property
    def nbytes(self) -> int:
        """Bytes of the element."""
        return self.segment.row_bytes


Run: TypeAlias = tuple[Payload, Sequence[int]]
"""A segment, and rows of it in the order in which they leave: a `range`, if they follow each other.
"""


def runs_of(handles: Iterable[Handle]) -> list[tuple[Segment, Sequence[int]]]:
    """Handles in order, as runs: as few as there can be."""
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
    """The rows of runs as the columns of one batch.

    Args:
        spec: what the elements are.
        runs: the columns of each segment, and which rows of it.
        is_padded: whether arrays of different shapes are padded to the largest.

    Returns:
        A list of objects, or one array per component: a view where it is one run. Read-only.
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
