"""Packing sequences into rows of a fixed length, so that hardly any of a row is padding.

First fit: a sequence goes into the first open row that has room for it (Johnson, "Near-optimal bin
packing algorithms", 1973). The number of open rows is bounded, so that what comes in leaves again:
if a sequence fits in none of them, the oldest is given out (next-k-fit).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from aioqueue import InvalidArgumentError
from aioqueue.inputs.batches.collating import components_of
from aioqueue.inputs.pipeline.flow import Node, Row
from aioqueue.inputs.pipeline.transforms import Transform

__all__ = ("SEGMENT_IDS", "Packing", "TooLong")

TooLong = Literal["fail", "skip", "split"]

SEGMENT_IDS: Final = "segment_ids"
POSITIONS: Final = "positions"


class _OpenRow:
    """A row that has room left."""

    __slots__ = ("left", "pieces")

    def __init__(self, length: int) -> None:
        self.left = length
        self.pieces: list[list[NDArray[Any]]] = []  # for each sequence, its components

    def add(self, piece: list[NDArray[Any]]) -> None:
        self.pieces.append(piece)
        self.left -= len(piece[0])


class Packing(Transform):
    """The node that packs; see `Stages.pack`."""

    def __init__(
        self, upstream: Node, length: int, open_rows: int, padding_value: Any, too_long: TooLong
    ) -> None:
        super().__init__(upstream)
        self._length = length
        self._most = open_rows
        self._padding_value = padding_value
        self._too_long = too_long
        self._open: list[_OpenRow] = []
        self._example: Any = None  # whose structure the rows have
        self._made = 0  # rows of this epoch

    def begin(self, epoch: int) -> None:
        self._made = 0

    def accept(self, rows: list[Row]) -> Iterable[Row]:
        for example, *_ in rows:
            for piece in self._pieces(example):
                yield from self._place(piece)

    def finish(self) -> Iterable[Row]:
        rows = [self._made_of(row) for row in self._open]
        self._open = []
        return rows

    def clear(self) -> None:
        self._open = []

    def _place(self, piece: list[NDArray[Any]]) -> Iterable[Row]:
        size = len(piece[0])
        for row in self._open:
            if row.left >= size:
                row.add(piece)
                if row.left:
                    return
                self._open.remove(row)
                yield self._made_of(row)
                return
        if len(self._open) == self._most:
            yield self._made_of(self._open.pop(0))
        self._open.append(_OpenRow(self._length))
        yield from self._place(piece)

    def _pieces(self, example: Any) -> Iterable[list[NDArray[Any]]]:
        """The components of an example, in pieces that fit a row."""
        if self._example is None:
            self._example = example
        labels, values = components_of(example)
        arrays = [np.asarray(value) for value in values]
        sizes = {
            label: len(array) if array.ndim else None
            for label, array in zip(labels, arrays, strict=True)
        }
        if None in sizes.values() or len({*sizes.values()}) > 1:
            raise InvalidArgumentError(
                f"example: got components of the lengths {sizes}; expected sequences, all of one"
                " length"
            )
        size = len(arrays[0])
        if size <= self._length:
            return [arrays] if size else []
        if self._too_long == "fail":
            raise InvalidArgumentError(
                f"example: got one of length {size}; expected at most {self._length}, the length"
                ' of a row (too_long="skip" leaves such examples out, "split" cuts them)'
            )
        if self._too_long == "skip":
            return []
        starts = range(0, size, self._length)
        return [[array[start : start + self._length] for array in arrays] for start in starts]

    def _made_of(self, row: _OpenRow) -> Row:
        length, used = self._length, self._length - row.left
        columns = []
        for arrays in zip(*row.pieces, strict=True):
            first = arrays[0]
            column = np.full((length, *first.shape[1:]), self._padding_value, first.dtype)
            np.concatenate(arrays, out=column[:used], casting="same_kind")
            columns.append(column)
        sizes = [len(piece[0]) for piece in row.pieces]
        segments = np.zeros(length, np.int32)
        segments[:used] = np.repeat(np.arange(1, len(sizes) + 1, dtype=np.int32), sizes)
        positions = np.zeros(length, np.int32)
        positions[:used] = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
        number = self._made
        self._made += 1
        return self._joined(columns, segments, positions), number, number, 0

    def _joined(self, columns: list[Any], segments: Any, positions: Any) -> Any:
        if isinstance(self._example, Mapping):
            named = dict(zip(self._example, columns, strict=True))
            return named | {SEGMENT_IDS: segments, POSITIONS: positions}
        return (*columns, segments, positions)
