"""`pack`: sequences share rows of a fixed length.

There are two ways. *First fit* (`FirstFitNode`) leaves sequences whole. *Concatenate and cut*
(`CutNode`) fills each row to its end: a sequence that does not fit is cut there, and the next row
begins with the rest of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import checked_count, checked_flag
from aioqueue.items.positions import misplaced
from aioqueue.items.provenance import (
    DROPPED,
    RowOrigin,
    dropped_parts,
    joined,
    split,
    split_into,
)
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


LOSS_MASK: Final = "loss_mask"


_STOP_BITS: Final = 32
"""The bits of a part's number that tell where the part of a sequence ends; see `_part_number`."""


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
    """The base of the nodes that pack; see `Pipeline.pack`."""

    measured: tuple[Literal["_take_in"], Literal["more"]] = ("_take_in", "more")

    def __init__(
        self, upstream: Node, length: int, padding_value: Any, *, loss_mask: bool = False
    ) -> None:
        super().__init__(upstream)
        self._length = length
        self.collator: Collator = Collator(pad=True, padding_value=padding_value)
        self._marks = (SEGMENT_IDS, POSITIONS, LOSS_MASK)[: 3 if loss_mask else 2]
        self._components: list[ExampleComponent] = []  # the components of every sequence
        self._joins: Callable[..., Any] = _beside  # makes a row of the columns and the marks

    @property
    def batch_shape(self) -> BatchShape | None:
        return None

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
            if not example.keys().isdisjoint(self._marks):
                names = [repr(mark) for mark in self._marks]
                raise InvalidArgumentError(
                    f"example: got the keys {sorted(example)}; expected others than"
                    f" {', '.join(names[:-1])} and {names[-1]}, which `pack` adds to each row"
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
        marks = {SEGMENT_IDS: segments, POSITIONS: positions}
        if LOSS_MASK in self._marks:
            marks[LOSS_MASK] = _loss_mask(segments)
        origin = joined(piece.origin for piece in row.pieces)
        return self._row(self._joins(self.collator.joined(columns), marks), origin)


class FirstFitNode(PackNode):
    """Puts each sequence into the first row that has room.

    Args:
        upstream: the node before.
        length: of a row.
        open_rows: how many rows stay open.
        padding_value: fills the rest of a row.
        on_too_long: what happens to longer sequences.
        loss_mask: whether rows have one.
    """

    def __init__(
        self,
        upstream: Node,
        length: int,
        open_rows: int,
        padding_value: Any,
        on_too_long: TooLong,
        *,
        loss_mask: bool = False,
    ) -> None:
        super().__init__(upstream, length, padding_value, loss_mask=loss_mask)
        self._most_open = open_rows
        self._too_long = on_too_long
        self._open: list[_OpenRow] = []
        self._waiting: deque[_Piece] = deque()  # pieces that are not yet in a row
        # After a restore: how many pieces each open row had, and the place of each piece.
        self._counts: list[int] = []
        self._places: list[int] = []
        # Without order, after a restore: sequences that were given out in part come again as a
        # whole. These are the pieces of them that are still wanted.
        self._wanted_pieces: dict[Id, frozenset[int]] = {}

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


class _Document:
    """A sequence in a `CutNode`, as far as it is still to be put into rows.

    Attributes:
        row: the row that it came as.
        arrays: its components.
        spans: where its parts begin and end that are still to be put into rows.
        origin: the items that it was made of.
    """

    __slots__ = ("arrays", "origin", "row", "spans")

    def __init__(
        self, row: Id, arrays: list[NDArray[Any]], spans: list[_Span], origin: RowOrigin
    ) -> None:
        self.row = row
        self.arrays = arrays
        self.spans = spans
        self.origin = origin

    @property
    def is_whole(self) -> bool:
        return self.spans == [(0, len(self.arrays[0]))]

    def pieces(self, spans: Sequence[_Span]) -> list[_Piece]:
        """Return its parts, each with an origin of its own."""
        parts = [_part_number(*span) for span in spans]
        is_one = self.is_whole and len(spans) == 1
        origins = [self.origin] if is_one else split_into(self.origin, parts)
        return [
            _Piece([array[start:stop] for array in self.arrays], self.row, part, 0, origin)
            for (start, stop), part, origin in zip(spans, parts, origins, strict=True)
        ]


class CutNode(PackNode):
    """Fills rows to their ends, and cuts sequences there.

    Where a sequence is cut depends on those before it. So its parts are named by where they begin
    and end in it, in positions, too. After a change of ranks, when others come before it, that
    still tells which part of it was delivered (`_spans_left`): only the rest is put into rows.

    Args:
        upstream: the node before.
        length: of a row.
        padding_value: fills the rest of the last row.
        loss_mask: whether rows have one.
    """

    def __init__(
        self, upstream: Node, length: int, padding_value: Any, *, loss_mask: bool = False
    ) -> None:
        super().__init__(upstream, length, padding_value, loss_mask=loss_mask)
        self._open = _OpenRow(length)
        self._next: deque[_Piece] = deque()  # the other parts of the sequence that is being cut
        self._waiting: deque[_Document] = deque()
        # After a restore: how many parts the open row had, and the number of each part.
        self._count = 0
        self._parts: list[int] = []
        self._wanted: dict[Id, list[_Span]] = {}  # without order: the parts that are still wanted

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        try:
            for row, one in zip(rows, self._ids(rows), strict=True):
                document = self._document(row, one)
                if document is not None:
                    wanted = self._wanted.pop(one, None)
                    document.spans = document.spans if wanted is None else wanted
                    self._waiting.append(document)
        except BaseException:
            self._failed_at = (row,)
            raise
        return ()

    def more(self) -> Row | None:
        while self._next or self._waiting:
            if not self._next:
                # All of its parts are known now: what is left of the open row, and whole rows.
                document = self._waiting.popleft()
                self._next.extend(document.pieces(self._cut(document.spans)))
            self._open.add(self._next.popleft())
            if not self._open.left:
                return self._made_of(self._closed())
        return self._made_of(self._closed()) if self._has_ended and self._open.pieces else None

    def clear(self) -> None:
        self._open = _OpenRow(self._length)
        self._next.clear()
        self._waiting.clear()
        self._wanted.clear()

    def _closed(self) -> _OpenRow:
        full, self._open = self._open, _OpenRow(self._length)
        return full

    def _cut(self, spans: Iterable[_Span]) -> list[_Span]:
        """Cut parts of a sequence where the rows end that they go into."""
        cut = []
        left = self._open.left
        for start, stop in spans:
            while start < stop:
                size = min(left, stop - start)
                cut.append((start, start + size))
                start, left = start + size, left - size or self._length
        return cut

    def _document(self, row: Row, one: Id) -> _Document | None:
        """The sequence of a row; ``None`` if it is empty."""
        arrays, origin = self._sequences(row[ROW_VALUE]), row[ROW_ORIGIN]
        if not len(arrays[0]):
            split(origin, 0)
            return None
        return _Document(one, arrays, _spans_left(len(arrays[0]), origin), origin)

    def _held(self) -> list[Id]:
        held = [piece.row for piece in (*self._open.pieces, *self._next)]
        return [*held, *(one.row for one in self._waiting for _ in one.spans)]

    def _held_count(self) -> int:
        return len(self._open.pieces) + len(self._next) + len(self._waiting)

    def _held_parts(self) -> list[int]:
        """The numbers of the parts of sequences that it holds, in the order of `_held`."""
        held = [piece.place for piece in (*self._open.pieces, *self._next)]
        return [*held, *(_part_number(*span) for one in self._waiting for span in one.spans)]

    def _buffer_state(self) -> State:
        state: State = {"made": self._made - len(self._ready)}
        if not self.is_ordered:
            # As for first fit: the sequences will come again as a whole, in another order.
            again: dict[Id, list[int]] = {
                one: [_part_number(*span) for span in spans] for one, spans in self._wanted.items()
            }
            held = zip(self._held(), self._held_parts(), strict=True)
            for one, parts in groupby(held, lambda pair: pair[0]):
                again[one] = [*again.get(one, ()), *(part for _, part in parts)]
            return {**state, "again": [[id_text(one), parts] for one, parts in again.items()]}
        return {
            **state,
            "pieces": [len(self._open.pieces)],
            "places": packed(self._held_parts()),
        }

    def _restore_buffer(self, state: State) -> None:
        self._made = state["made"]
        self._wanted = {
            id_of(one): _merged(map(_span_of, parts)) for one, parts in state.get("again", ())
        }
        self._count = sum(state.get("pieces", ()))
        self._parts = unpacked(state.get("places", ""))

    def _put_back(self, rows: list[Row]) -> None:
        if len(rows) != len(self._parts) or self._count > len(rows):
            raise misplaced(f"{len(rows)} rows of {len(self._parts)} parts", "one for each")
        ids = self._ids(rows)
        held: dict[Id, tuple[Row, list[_Span]]] = {}
        for row, one, part in zip(rows, ids, self._parts, strict=True):
            held.setdefault(one, (row, []))[1].append(_span_of(part))
        in_row = {*ids[: self._count]}
        pieces: list[_Piece] = []
        for one, (row, spans) in held.items():
            document = self._document(row, one)
            if document is None:
                raise misplaced("an empty sequence", "the one that was there before")
            document.spans = spans
            if one in in_row:  # it is cut already, to its end
                pieces += document.pieces(spans)
            else:
                self._waiting.append(document)
        for piece in pieces[: self._count]:
            self._open.add(piece)
        self._next.extend(pieces[self._count :])


_Span = tuple[int, int]
"""Where a part of a sequence begins, and where it ends."""


def _part_number(start: int, stop: int) -> int:
    """Return the number of a part of a sequence, which says where it begins and ends."""
    return start << _STOP_BITS | stop


def _span_of(part: int) -> _Span:
    return part >> _STOP_BITS, part & (1 << _STOP_BITS) - 1


def _spans_left(size: int, origin: RowOrigin) -> list[_Span]:
    """Return what is left of a sequence, without the parts that earlier ranks have delivered.

    Rows may have been shuffled before they were delivered, so these may be any parts of it.
    """
    left, upto = [], 0
    for start, stop in sorted(map(_span_of, dropped_parts(origin))):
        if start > upto:
            left.append((upto, start))
        upto = max(upto, stop)
    return [*left, (upto, size)] if upto < size else left


def _merged(spans: Iterable[_Span]) -> list[_Span]:
    """Return these parts of a sequence; those that follow each other without a gap are one."""
    merged: list[_Span] = []
    for start, stop in spans:
        if merged and merged[-1][1] == start:
            start = merged.pop()[0]
        merged.append((start, stop))
    return merged


def _loss_mask(segments: NDArray[Any]) -> NDArray[Any]:
    """Whether the next entry of the row belongs to the same segment."""
    mask = np.zeros(len(segments), np.bool_)
    mask[:-1] = (segments[:-1] == segments[1:]) & (segments[1:] != 0)
    return mask


def _among(packed: Any, marks: Mapping[str, Any]) -> Any:
    return packed | marks


def _behind(packed: Any, marks: Mapping[str, Any]) -> Any:
    return (*packed, *marks.values())


def _beside(packed: Any, marks: Mapping[str, Any]) -> Any:
    return (packed, *marks.values())


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
    cut: bool = False
    loss_mask: bool = False

    def __post_init__(self) -> None:
        checked_count(self.row_length, "length", least=1)
        checked_flag(self.cut, "cut")
        checked_flag(self.loss_mask, "loss_mask")
        if self.on_too_long not in ("fail", "skip", "split"):
            raise InvalidArgumentError(
                f"on_too_long: got {self.on_too_long!r}; expected 'fail', 'skip' or 'split'"
            )
        if self.cut and self.on_too_long != "fail":
            raise InvalidArgumentError(
                f"on_too_long: got {self.on_too_long!r} with cut=True, which cuts every sequence"
                " that does not fit; expected one of them"
            )

    def details(self) -> str:
        return f"into rows of {self.row_length}" + (", cut" if self.cut else "")

    def copies(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        length, loss_mask = int(self.row_length), self.loss_mask
        if self.cut:
            return CutNode(upstream, length, self.padding_value, loss_mask=loss_mask)
        return FirstFitNode(
            upstream,
            length,
            int(self.open_rows),
            self.padding_value,
            self.on_too_long,
            loss_mask=loss_mask,
        )

    def fingerprint(self) -> dict[str, Any]:
        return {
            "length": int(self.row_length),
            "open_rows": int(self.open_rows),
            "on_too_long": self.on_too_long,
            # Only if they are given, so that positions from before these options still fit.
            **({"cut": True} if self.cut else {}),
            **({"loss_mask": True} if self.loss_mask else {}),
        }

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return None

    def length(self, rows: int | None) -> int | None:
        return None
