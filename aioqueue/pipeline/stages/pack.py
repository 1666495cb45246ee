"""`pack`: sequences share rows of a fixed length."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import checked_count
from aioqueue.items.positions import misplaced
from aioqueue.items.provenance import DROPPED, RowOrigin, joined, split
from aioqueue.pipeline.batches.batch_shape import BatchShape
from aioqueue.pipeline.batches.collation import Collator
from aioqueue.pipeline.batches.layout import ExampleComponent
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.progress import id_of, id_text, packed, unpacked
from aioqueue.pipeline.nodes.rows import ROW_ORIGIN, ROW_VALUE, Id, Row, State
from aioqueue.pipeline.nodes.state_fields import (
    HELD,
    LAYOUT,
    NUMBER,
    NUMBERS,
    TEXT,
    Field,
    Fields,
    is_number,
    is_text,
    list_of,
    pairs_of,
)
from aioqueue.pipeline.stages.base import BaseStage, BuildContext
from aioqueue.pipeline.stages.transform import MakingTransform

if TYPE_CHECKING:
    from numpy.typing import NDArray

TooLong = Literal["fail", "skip", "split"]


SEGMENT_IDS: Final = "segment_ids"


POSITIONS: Final = "positions"


_OWN_KEYS: Final = frozenset({SEGMENT_IDS, POSITIONS})


class _Piece(NamedTuple):
    """A sequence, or a piece of one, with the row that it comes from."""

    components: list[NDArray[Any]]
    row: Id
    place: int
    """The place among the pieces of its sequence."""
    count: int  # type: ignore[assignment]  # hides tuple.count
    """The number of pieces of its sequence."""
    origin: RowOrigin

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


class PackNode(MakingTransform):
    """The node that packs; see `Stages.pack`."""

    measured: tuple[Literal["_take_in"], Literal["more"]] = ("_take_in", "more")

    def __init__(
        self, upstream: Node, length: int, open_rows: int, padding_value: Any, on_too_long: TooLong
    ) -> None:
        super().__init__(upstream)
        self._length = length
        self._most_open = open_rows
        self.collator: Collator = Collator(pad=True, padding_value=padding_value)
        self._too_long = on_too_long
        self._open: list[_OpenRow] = []
        self._waiting: deque[_Piece] = deque()  # pieces that are not yet in a row
        # After a restore: how many pieces each open row had, and the place of each piece.
        self._counts: list[int] = []
        self._places: list[int] = []
        # Without order, after a restore: sequences that were given out in part come again as a
        # whole. These are the pieces of them that are still wanted.
        self._wanted_pieces: dict[Id, frozenset[int]] = {}
        self._components: list[ExampleComponent] = []  # the components of every sequence
        self._joins: Callable[..., Any] = _beside  # makes a row of the columns and the marks

    @property
    def batch_shape(self) -> BatchShape | None:
        return None

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        try:
            for row, one in zip(rows, self._ids(rows), strict=True):
                wanted = self._wanted_pieces.pop(one, None) if self._wanted_pieces else None
                for piece in self._pieces_of(row, one):
                    if piece.origin is not DROPPED and (wanted is None or piece.place in wanted):
                        self._waiting.append(piece)
        except BaseException:
            self._failed_at = (row,)
            raise
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
        self._wanted_pieces.clear()

    def _place(self) -> _OpenRow | None:
        """Put the next piece into a row; return a row that is full, or that has to make room."""
        piece = self._waiting[0]
        row = next((row for row in self._open if row.left >= piece.size), None)
        if row is None:
            if len(self._open) == self._most_open:
                return self._open.pop(0)
            row = _OpenRow(self._length)
            self._open.append(row)
        row.add(self._waiting.popleft())
        if row.left:
            return None
        self._open.remove(row)
        return row

    def _held(self) -> list[Id]:
        return [piece.row for piece in self._all_pieces()]

    def _held_count(self) -> int:
        return sum([len(row.pieces) for row in self._open]) + len(self._waiting)

    def _buffer_state(self) -> State:
        state: State = {"made": self._made - len(self._ready)}
        if not self.is_ordered:
            # The held sequences will come again as a whole, in another order. So the state has no
            # rows, only which pieces of sequences are wanted.
            split = self._split_over().items()
            again = [[id_text(one), sorted(places)] for one, places in split]
            return {**state, "again": again}
        return {
            **state,
            "pieces": [len(row.pieces) for row in self._open],
            "places": packed([piece.place for piece in self._all_pieces()]),
        }

    def _restore_buffer(self, state: State) -> None:
        self._made = state["made"]
        self._wanted_pieces = {
            id_of(one): frozenset(places) for one, places in state.get("again", ())
        }
        self._counts = state.get("pieces", [])
        self._places = unpacked(state.get("places", ""))

    def _split_over(self) -> dict[Id, frozenset[int]]:
        """Return the held pieces of sequences whose other pieces were already given out."""
        places: dict[Id, set[int]] = {}
        counts: dict[Id, int] = {}
        for piece in self._all_pieces():
            places.setdefault(piece.row, set()).add(piece.place)
            counts[piece.row] = piece.count
        held = {one: frozenset(here) for one, here in places.items() if len(here) < counts[one]}
        return {**self._wanted_pieces, **held}

    def _put_back(self, rows: list[Row]) -> None:
        made: dict[Id, list[_Piece]] = {}  # a sequence is named once for each of its held pieces
        pieces = []
        if len(rows) != len(self._places):
            raise misplaced(f"{len(rows)} rows of {len(self._places)} pieces", "one for each")
        for row, one, place in zip(rows, self._ids(rows), self._places, strict=True):
            if one not in made:
                made[one] = self._pieces_of(row, one)
            pieces.append(made[one][place])
        back = iter(pieces)
        for count in self._counts:
            opened = _OpenRow(self._length)
            for piece in islice(back, count):
                opened.add(piece)
            self._open.append(opened)
        self._waiting.extend(back)

    def _all_pieces(self) -> list[_Piece]:
        return [*(piece for row in self._open for piece in row.pieces), *self._waiting]

    def _pieces_of(self, row: Row, one: Id) -> list[_Piece]:
        """The pieces of a row; none if its sequence is dropped."""
        made = list(self._pieces(row[ROW_VALUE]))
        count = len(made)
        origins = [row[ROW_ORIGIN]] if count == 1 else split(row[ROW_ORIGIN], count)
        return [
            _Piece(components, one, place, count, origin)
            for place, (components, origin) in enumerate(zip(made, origins, strict=True))
        ]

    def _pieces(self, example: Any) -> Iterable[list[NDArray[Any]]]:
        """The components of an example, in pieces that fit a row."""
        arrays = self._sequences(example)
        size = len(arrays[0])
        if size <= self._length:
            return [arrays] if size else []
        if self._too_long == "fail":
            raise InvalidArgumentError(
                f"example: got one of length {size}; expected at most {self._length}, the length"
                ' of a row (on_too_long="skip" drops such examples, and "split" cuts them)'
            )
        if self._too_long == "skip":
            return []
        starts = range(0, size, self._length)
        return [[array[start : start + self._length] for array in arrays] for start in starts]

    def _sequences(self, example: Any) -> list[NDArray[Any]]:
        """The components of an example, checked against those of all others except for the length.

        Raises:
            InvalidArgumentError: they do not fit.
        """
        parts = self.collator.parts(example)
        sizes = {component.label: len(array) if array.ndim else None for component, array in parts}
        if None in sizes.values() or len({*sizes.values()}) > 1:
            raise InvalidArgumentError(
                f"example: got components of the lengths {sizes}; expected sequences of equal"
                " length"
            )
        for component, array in parts:
            if array.shape[1:] != component.shape[1:]:
                raise InvalidArgumentError(
                    f"component {component.label}: got entries of shape {list(array.shape[1:])};"
                    f" expected shape {list(component.shape[1:])}, which the first example has"
                    " fixed"
                )
        self._components = [component for component, _ in parts]
        if isinstance(example, Mapping):
            self._joins = _among
            if not _OWN_KEYS.isdisjoint(example):
                raise InvalidArgumentError(
                    f"example: got the keys {sorted(example)}; expected others than"
                    f" {SEGMENT_IDS!r} and {POSITIONS!r}, which `pack` adds to each row"
                )
        else:
            self._joins = _behind if isinstance(example, tuple) else _beside
        return [array for _, array in parts]

    def _made_of(self, row: _OpenRow) -> Row:
        length, used = self._length, self._length - row.left
        columns = []
        pieces = zip(*(piece.components for piece in row.pieces), strict=True)
        for component, arrays in zip(self._components, pieces, strict=True):
            column = np.empty((length, *component.shape[1:]), component.dtype)
            np.concatenate(arrays, out=column[:used], casting="same_kind")
            column[used:] = component.padding
            columns.append(column)
        sizes = [piece.size for piece in row.pieces]
        segments = np.zeros(length, np.int32)
        segments[:used] = np.repeat(np.arange(1, len(sizes) + 1, dtype=np.int32), sizes)
        positions = np.zeros(length, np.int32)
        positions[:used] = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
        origin = joined(piece.origin for piece in row.pieces)
        return self._row(self._joins(self.collator.joined(columns), segments, positions), origin)


def _among(packed: Any, segments: Any, positions: Any) -> Any:
    return packed | {SEGMENT_IDS: segments, POSITIONS: positions}


def _behind(packed: Any, segments: Any, positions: Any) -> Any:
    return (*packed, segments, positions)


def _beside(packed: Any, segments: Any, positions: Any) -> Any:
    return (packed, segments, positions)


@dataclass(frozen=True)
class Pack(BaseStage):
    """Packs sequences into rows of a fixed length."""

    name: ClassVar[str] = "pack"
    state_fields: ClassVar[Fields] = {
        "made": NUMBER,
        "pieces": NUMBERS,
        "places": TEXT,
        "again": Field(pairs_of(is_text, list_of(is_number)), "a list of rows"),
        **HELD,
        **LAYOUT,
    }
    row_length: int
    padding_value: Any
    on_too_long: TooLong
    open_rows: int = 8
    """How many rows stay open for more sequences. If one fits in none, the oldest is given out."""

    def __post_init__(self) -> None:
        checked_count(self.row_length, "length", least=1)
        if self.on_too_long not in ("fail", "skip", "split"):
            raise InvalidArgumentError(
                f"on_too_long: got {self.on_too_long!r}; expected 'fail', 'skip' or 'split'"
            )

    def details(self) -> str:
        return f"into rows of {self.row_length}"

    def copies(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return PackNode(
            upstream,
            int(self.row_length),
            int(self.open_rows),
            self.padding_value,
            self.on_too_long,
        )

    def fingerprint(self) -> dict[str, Any]:
        return {
            "length": int(self.row_length),
            "open_rows": int(self.open_rows),
            "on_too_long": self.on_too_long,
        }

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return None

    def length(self, rows: int | None) -> int | None:
        return None
