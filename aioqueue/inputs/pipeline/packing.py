"""Packing sequences into rows of a fixed length, so that hardly any of a row is padding.

First fit: a sequence goes into the first open row that has room for it (Johnson, "Near-optimal bin
packing algorithms", 1973). The number of open rows is bounded, so that what comes in leaves again:
if a sequence fits in none of them, the oldest is given out (next-k-fit).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aioqueue import InvalidArgumentError
from aioqueue.inputs.batches.collating import components_of
from aioqueue.inputs.pipeline.flow import Id, Node, Row, State, made_of
from aioqueue.inputs.pipeline.states import packed, unpacked
from aioqueue.inputs.pipeline.transforms import Holding

__all__ = ("SEGMENT_IDS", "Packing", "TooLong")

TooLong = Literal["fail", "skip", "split"]

SEGMENT_IDS: Final = "segment_ids"
POSITIONS: Final = "positions"


class _Piece(NamedTuple):
    """A sequence, or what of it was cut off, and where it comes from."""

    components: list[NDArray[Any]]
    origin: Id
    index: int  # type: ignore[assignment]  # hides tuple.index
    """That of the row that it comes with."""
    place: int
    """Among the pieces of its sequence."""

    @property
    def size(self) -> int:
        return len(self.components[0])


class _OpenRow:
    """A row that has room left."""

    __slots__ = ("left", "pieces")

    def __init__(self, length: int) -> None:
        self.left = length
        self.pieces: list[_Piece] = []

    def add(self, piece: _Piece) -> None:
        self.pieces.append(piece)
        self.left -= piece.size


class Packing(Holding):
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
        self._waiting: deque[_Piece] = deque()  # to be put into rows
        self._counts: list[int] = []  # of pieces in each row, before a restart
        self._places: list[int] = []  # of the pieces
        self._example: Any = None  # whose structure the rows have
        self._made = 0  # rows of this epoch

    def begin(self, epoch: int) -> None:
        self._made = 0

    def accept(self, rows: list[Row]) -> Iterable[Row]:
        for row, origin in zip(rows, self._ids(rows), strict=True):
            pieces = self._pieces(row[0])
            self._waiting += [
                _Piece(one, origin, row[2], place) for place, one in enumerate(pieces)
            ]
        return ()

    def more(self) -> Row | None:
        while self._waiting:
            full = self._place()
            if full is not None:
                return self._made_of(full)
        return self._made_of(self._open.pop(0)) if self._has_ended and self._open else None

    def clear(self) -> None:
        self._open = []
        self._waiting.clear()

    def weight(self) -> int:
        return sum(len(row.pieces) for row in self._open) + super().weight()

    def _place(self) -> _OpenRow | None:
        """Put the next piece into a row; if one is full by that, or must make room, return it."""
        piece = self._waiting[0]
        row = next((row for row in self._open if row.left >= piece.size), None)
        if row is None:
            if len(self._open) == self._most:
                return self._open.pop(0)
            row = _OpenRow(self._length)
            self._open.append(row)
        row.add(self._waiting.popleft())
        if row.left:
            return None
        self._open.remove(row)
        return row

    def _held(self) -> list[Id]:
        return [piece.origin for piece in self._all_pieces()]

    def _shape(self) -> State:
        return {
            "made": self._made - len(self._ready),
            "counts": [len(row.pieces) for row in self._open],
            "places": packed([piece.place for piece in self._all_pieces()]),
        }

    def _reshape(self, state: State) -> None:
        self._made, self._counts = state["made"], state["counts"]
        self._places = unpacked(state["places"])

    def _put_back(self, rows: list[Row]) -> None:
        origins = self._ids(rows)
        pieces = [
            _Piece(list(self._pieces(row[0]))[place], origin, row[2], place)
            for row, origin, place in zip(rows, origins, self._places, strict=True)
        ]
        back = iter(pieces)
        for count in self._counts:
            row = _OpenRow(self._length)
            for piece in islice(back, count):
                row.add(piece)
            self._open.append(row)
        self._waiting.extend(back)

    def _all_pieces(self) -> list[_Piece]:
        return [*(piece for row in self._open for piece in row.pieces), *self._waiting]

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
        for arrays in zip(*(piece.components for piece in row.pieces), strict=True):
            first = arrays[0]
            column = np.full((length, *first.shape[1:]), self._padding_value, first.dtype)
            np.concatenate(arrays, out=column[:used], casting="same_kind")
            columns.append(column)
        sizes = [piece.size for piece in row.pieces]
        segments = np.zeros(length, np.int32)
        segments[:used] = np.repeat(np.arange(1, len(sizes) + 1, dtype=np.int32), sizes)
        positions = np.zeros(length, np.int32)
        positions[:used] = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
        number = self._made
        self._made += 1
        index = made_of(number, [piece.index for piece in row.pieces])
        return self._joined(columns, segments, positions), number, index, 0

    def _joined(self, columns: list[Any], segments: Any, positions: Any) -> Any:
        if isinstance(self._example, Mapping):
            named = dict(zip(self._example, columns, strict=True))
            return named | {SEGMENT_IDS: segments, POSITIONS: positions}
        return (*columns, segments, positions)
