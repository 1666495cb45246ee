"""Rows that pyarrow has read together, cut and regrouped, each with its place in the file.

A file consists of row groups or record batches. `Portion` is a part of one of them, or what a
filter has left of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from aioqueue import DataLossError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ("Portion", "beginning_at", "of_size")


class Portion(NamedTuple):
    """Rows that were read together."""

    number: int
    """The number of their row group or record batch."""
    row: int
    """The number of the first row in it."""
    first: int
    """The number of the first row in the file."""
    rows: Any
    """A ``pyarrow.RecordBatch``."""
    offset: int
    """The offset of the row group or record batch, in bytes."""
    kept: NDArray[Any] | None = None
    """The numbers of the rows, counted from ``first``; ``None`` if they are consecutive."""

    @property
    def mark(self) -> tuple[int, int, int]:
        """The mark of the first row."""
        return self.number, self.row, self.first

    @property
    def numbers(self) -> Any:
        """The numbers of the rows in the file."""
        if self.kept is not None:
            return (self.first + self.kept).tolist()
        return range(self.first, self.first + self.rows.num_rows)

    def behind(self, count: int) -> Portion:
        """Return the rows without the first ones."""
        rows = self.rows.slice(count)
        if self.kept is None or not rows.num_rows:
            return self._replace(row=self.row + count, first=self.first + count, rows=rows)
        left_out = int(self.kept[count])
        kept = self.kept[count:] - left_out
        return self._replace(
            row=self.row + left_out, first=self.first + left_out, rows=rows, kept=kept
        )


def beginning_at(row: int, portions: Iterator[Portion]) -> Iterator[Portion]:
    """Skip this many rows of the first row group or record batch."""
    number: int | None = None
    for portion in portions:
        if number is None:
            number = portion.number
        left_out = row - portion.row if portion.number == number else 0
        if left_out >= portion.rows.num_rows:
            continue
        yield portion.behind(left_out) if left_out > 0 else portion


def of_size(pa: Any, portions: Iterator[Portion], size: int) -> Iterator[Portion]:
    """Regroup rows to ``size`` at a time; fewer at the end, or before damage."""
    held: list[Any] = []
    begin: Portion | None = None
    count = 0
    try:
        for portion in portions:
            left = portion
            while left.rows.num_rows:
                # The first row may come behind rows that a filter has left out.
                begin = begin or left
                taken = min(size - count, left.rows.num_rows)
                held.append(left.rows.slice(0, taken))
                count += taken
                left = left.behind(taken)
                if count == size:
                    yield begin._replace(rows=_joined(pa, held))
                    held, begin, count = [], None, 0
    except DataLossError:
        if begin is not None:
            yield begin._replace(rows=_joined(pa, held))
        raise
    if begin is not None:
        yield begin._replace(rows=_joined(pa, held))


def _joined(pa: Any, batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
