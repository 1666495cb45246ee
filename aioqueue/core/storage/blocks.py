"""A FIFO of typed rows, in blocks of contiguous arrays.

Rows are written straight into the last block. A batch leaves as slices of one or more blocks. Rows
inside are never moved or overwritten. A *segment* says which rows of a block have which place
in the line; every operation on a batch is an operation on segments::

    first in line                                                     last
    ┌──────────────┬──────────────────┬───────────┬──────────────────┐
    │ block 1      │ block 2, a batch │ block 1   │ block 3          │
    │ rows 40..63  │ rows 0..127      │ rows 64.. │ rows 0..17       │ ◄─ rows are written here
    └──────────────┴──────────────────┴───────────┴──────────────────┘

* A **large batch** is copied to a block of its own (`fill`), without the machine's lock, and goes
  in as one segment. A batch that the caller gives away (`wrap`) becomes such a block as it is. If
  only a few of its rows go in, they are copied, so that they do not keep the whole batch alive.
* A dequeued batch holds segments, and its owner copies from them without the lock. If the batch is
  all there is in one of our blocks, its owner gets the block itself, and nothing is copied.
* That should be the usual case if workers are slower than the consumer. So the rows that a waiting
  batch lacks are written into a block of exactly its size (`expect`).

A block is reused when it has no segment any more: for rows, or for another batch of its size. When
the storage runs empty, writing starts again at the block's first row. So a short queue reuses the
same few rows, which are still in the processor's cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from aioqueue.core.elements.component import Component
from aioqueue.core.elements.spec import Columns, Row
from aioqueue.core.storage.columns import (
    LARGE_BYTES,
    RowPacking,
    RowReader,
    allocate,
    as_dtypes,
    common_bytes,
    empty_value,
    is_large,
    row_bytes,
    row_writer,
)
from aioqueue.core.storage.protocol import Held, Storage

_BLOCK_BYTES: Final = 2**22


_BLOCK_OBJECTS: Final = 1024
"""Arrays of references are filled with None when they are allocated, so their blocks are short."""


_MOST_EXPECTED: Final = 2**30
"""Waiting batches of more bytes than this get no block of their own in advance."""


_SPARE_BYTES: Final = 2**26
"""How many bytes of spare blocks are kept if the capacity is unbounded."""


class Block(list[Any]):
    """Columns of a number of rows, with a count of their users.

    Attributes:
        rows: how many rows fit.
        uses: its segments, in line and held; plus one while a batch is not completely in, and one
            while rows will still be written to it.
        is_private: whether no code outside has ever seen its arrays.
        place: where other processes read its rows; ``None``: they do not.
    """

    __slots__ = ("is_private", "place", "rows", "uses")
    __hash__ = object.__hash__  # type: ignore[assignment]  # blocks are compared by identity

    def __init__(
        self, columns: Columns, rows: int, *, is_private: bool = True, place: Any = None
    ) -> None:
        super().__init__(columns)
        self.place: Any = place
        self.rows: int = rows
        self.uses: int = 0
        self.is_private: bool = is_private


class _Segment:
    """Rows ``start`` to ``stop`` of a block.

    All rows that ever went in are numbered; ``origin + start`` is the number of its first row.
    """

    __slots__ = ("block", "columns", "limit", "origin", "start", "stop")

    def __init__(self, block: Block, start: int, stop: int, origin: int) -> None:
        self.block = block
        self.columns = tuple(block)  # CPython unpacks it faster than a list of a class of our own
        self.start = start
        self.stop = stop
        self.origin = origin
        self.limit = block.rows  # a copy, because every row that goes in reads it
        block.uses += 1


class BlockStorage(Storage):
    """A FIFO of typed rows.

    Args:
        components: the components of a row, each of one fixed shape.
        capacity: how many rows there will usually be at most; ``None`` for any number.
    """

    def __init__(self, components: tuple[Component, ...], capacity: int | None) -> None:
        super().__init__()
        self._components = components
        self._row_bytes = row_bytes(components)
        self.row_bytes: int | None = common_bytes(components)
        self._read_row = RowReader(components).row
        self._write_row = row_writer(len(components))
        self._references = [
            (index, empty_value(component.dtype))
            for index, component in enumerate(components)
            if component.dtype.hasobject
        ]
        self._block_rows = block_rows(components, capacity)
        self._count = 0
        self._segments: deque[_Segment] = deque()  # only the tail may be an empty segment
        self._no_tail = _Segment(Block([], 0), 0, 0, 0)
        self._tail = (
            self._no_tail
        )  # the last segment, if rows can be written behind it; else `_no_tail`
        self._rows_entered = 0  # rows that ever went in, up to the tail
        self._next_slot: tuple[Block, int] | None = None  # where to write next: block and first row
        self._expected: tuple[Block, int] | None = None  # a waiting batch's: its first row's number
        self._spares: deque[Block] = deque()
        self._spare_rows = 0
        rows = _SPARE_BYTES // max(1, self._row_bytes) if capacity is None else capacity
        self._most_spare_rows = max(rows, self._block_rows)
        self._make_shared: Callable[[int], tuple[Columns, Any] | None] | None = None

    def __len__(self) -> int:
        return self._count

    def is_large(self, n: int) -> bool:
        return is_large(n, self._row_bytes)

    # The way in.

    def put(self, row: Row, /) -> None:
        tail = self._tail
        slot = tail.stop
        if slot == tail.limit:
            tail = self._open_segment()
            slot = tail.stop
        write_row = self._write_row
        write_row(tail.columns, slot, row)
        # Up to here the row is not inside: a handler that has raised leaves a slot that is written
        # again. No call follows, so no handler runs between the two counts.
        tail.stop = slot + 1
        self._count += 1

    def put_many(self, columns: Columns, start: int, stop: int) -> None:
        if isinstance(columns, Block):
            self._put_block(columns, start, stop)
            return
        n = stop - start
        tail = self._tail
        if n > tail.limit - tail.stop:
            if n > self._block_rows:  # too many for one block, and a row must not be split
                rows = [column[start:stop] for column in columns]
                self._put_block(self.fill(None, rows, n), 0, n)
                return
            tail = self._open_segment(n)
        for column, values in zip(tail.block, columns, strict=True):
            column[tail.stop : tail.stop + n] = values[start:stop]
        tail.stop += n
        self._count += n

    def row_packing(self, n: int) -> RowPacking | None:
        if self._references or self.is_large(n) or n > self._block_rows:
            return None
        return RowPacking(self._components, n)

    def reserve(self, n: int) -> Block | None:
        block = self._pop_spare(n)
        if block is not None:
            block.uses = 1  # until the whole batch is in
        return block

    def fill(self, reserved: Block | None, columns: Columns, n: int) -> Block:
        block = reserved
        if block is None:
            block = self._new_block(n)
            block.uses = 1
        for column, values in zip(block, columns, strict=True):
            column[...] = values
        return block

    def wrap(self, columns: Columns, n: int) -> Block:
        block = Block(as_dtypes(self._components, columns), n, is_private=False)
        block.uses = 1
        return block

    def discard(self, columns: Columns, start: int) -> None:
        if isinstance(columns, Block):
            self._clear_references(columns, start, columns.rows)
            self._compact_last(columns)
            self._release_use(columns)

    def expect(self, n: int) -> None:
        # 1. A waiting batch is identified by its size and the number of the first row in line.
        #    It may have a block already: the machine calls this each time the batch waits.
        # 2. Rows that are inside stay where they are, since moving them would be a copy under
        #    the lock. The batch gets a block for all n rows. New rows are written behind as
        #    many places as rows are inside. The owner fills those places (`columns`).
        # 3. If the batch is cancelled, or rows come back before it, the block is one like any
        #    other, whose rows begin in the middle. It is filled before there is another one:
        #    otherwise repeated cancellations would leave a block with one row each.
        if self._make_shared is not None and self.is_large(1):
            return  # such rows go in as blocks of their own
        number = self._number_of(0) if self._count else self._next_number()
        if self._expected is not None:
            block, first = self._expected
            if (block.rows, first) == (n, number) or self._is_partly_written(block):
                return
        if self._references or not LARGE_BYTES <= n * self._row_bytes <= _MOST_EXPECTED:
            return
        try:
            block = self._pop_spare(n) or self._new_block(n)
        except MemoryError:
            return
        self._close_tail()
        self._set_next_slot(block, self._count)
        self._expected = (block, number)

    # The way out.

    def take(self) -> Row:
        head = self._segments[0]
        start, read_row = head.start, self._read_row
        row = read_row(head.block, start)
        if head.stop > start + 1 and not self._references:  # what `_remove_rows` does then
            self._count -= 1
            head.start = start + 1
        else:
            self._remove_rows(head, 1)
        return row

    def pull(self, n: int, into: Columns | None = None) -> Columns:
        columns = allocate(self._components, n) if into is None else into
        done = 0
        # All rows are copied before any is removed: a copy may fail, or be interrupted.
        for segment in self._segments:
            if done == n:
                break
            step = min(n - done, segment.stop - segment.start)
            _copy(segment, step, columns, done)
            done += step
        while n:
            head = self._segments[0]
            step = min(n, head.stop - head.start)
            self._remove_rows(head, step)
            n -= step
        return columns

    def hold(self, held: Held, n: int) -> None:
        self._expected = None  # the batch that waited for this block is this one, or has ended
        parts: list[_Segment] = []
        try:
            self._move_rows(n, parts)
        except BaseException:
            self._reinsert(parts)
            raise
        held.parts, held.count = parts, n

    def hold_one(self, held: Held) -> None:
        if held.in_place:
            self.hold(held, 1)
            return
        number = self._number_of(0)  # the ticket by which the row finds its place if it comes back
        row = self.take()
        held.single, held.tickets, held.count = row, [number], 1

    def restore(self, held: Held) -> None:
        if held.tickets:  # a single row, which is a copy: its slot may have another row by now
            block = Block(allocate(self._components, 1), 1)
            for column, value in zip(block, held.single, strict=True):
                column[0] = value
            held.parts = [_Segment(block, 0, 1, held.tickets[0])]
        self._reinsert(held.parts)
        held.clear()

    def columns(self, held: Held) -> Columns:
        # 1. The caller's own arrays, if it has passed some.
        # 2. Otherwise the block of the batch's last rows, if they end it, all rows fit before that
        #    end, and there is no other user. So a batch leaves that was filled as one, or that was
        #    expected. Rows in other blocks are copied to its start.
        # 3. Otherwise new arrays, with a copy of everything.
        columns = held.out
        if columns is None:
            columns = self._whole_block(held) or allocate(self._components, held.count)
        done = 0
        for part in held.parts:
            n = part.stop - part.start
            if part.block is not columns:
                _copy(part, n, columns, done)
            done += n
        return list(columns) if isinstance(columns, Block) else columns

    def free(self, held: Held) -> None:
        parts = held.parts
        held.clear()  # first: after a Ctrl-C here, rows that are being reused must not come back
        for part in parts:
            self._clear_references(part.block, part.start, part.stop)
            self._release_use(part.block)

    def empty(self) -> Columns:
        return allocate(self._components, 0)

    # Memory that other processes read.

    def share_blocks(self, make: Callable[[int], tuple[Columns, Any] | None]) -> None:
        """Write new rows to blocks that other processes can read, as long as there is room.

        Rows that are inside stay where they are.

        Args:
            make: returns the columns of a block for some rows, and its place; ``None``: there is
                no room. It is called with and without the machine's lock.
        """
        self._close_tail()
        self._set_next_slot(None)
        self._spares.clear()
        self._spare_rows = 0
        self._make_shared = make

    def block_of(self, reserved: Block | None, row: Row) -> Block:
        """Copy a row to a block of its own, for `put_shared`. No lock.

        Args:
            reserved: what `reserve` returned for one row.
            row: the row.
        """
        block = reserved
        if block is None:
            block = self._new_block(1)
            block.uses = 1
        self._write_row(block, 0, row)
        return block

    def put_shared(self, row: Row, /) -> None:
        """Put a row in, or a block of one row, which is not copied any more."""
        if type(row) is not Block:
            self.put(row)
            return
        if self._tail is not self._no_tail:
            self._close_tail()
        segment = _Segment(row, 0, 1, self._rows_entered)
        row.uses = 1
        # No call follows, as in `put`.
        self._segments += (segment,)
        self._rows_entered += 1
        self._count += 1

    def shared_rows(self, held: Held) -> list[tuple[Any, int, int, int]] | None:
        """Return where other processes find the rows of a batch that is held: of each part, the
        place and the rows of its block, and which of these it has. ``None``: they cannot."""
        parts: Sequence[_Segment] = held.parts
        found = [(part.block.place, part.limit, part.start, part.stop) for part in parts]
        return None if any(place is None for place, *_ in found) else found

    def row(self, held: Held) -> Row:
        """Return a copy of a single row that is held in place."""
        (part,) = held.parts
        return self._read_row(part.block, part.start)

    def _new_block(self, n: int) -> Block:
        if self._make_shared is not None:
            made = self._make_shared(n)
            if made is not None:
                return Block(made[0], n, place=made[1])
        return Block(allocate(self._components, n), n)

    # Segments, and the users of blocks.

    def _number_of(self, place: int) -> int:
        segment = self._segments[place]
        return segment.origin + segment.start

    def _next_number(self) -> int:
        tail = self._tail
        return self._rows_entered if tail is self._no_tail else tail.origin + tail.stop

    def _put_block(self, block: Block, start: int, stop: int) -> None:
        last = self._segments[-1] if self._segments else None
        if last is not None and last.block is block and last.stop == start:
            last.stop = stop  # an earlier part of this batch is the last segment: extend it
            self._rows_entered += stop - start
            self._count += stop - start
        else:
            self._close_tail()
            segment = _Segment(block, start, stop, self._rows_entered - start)
            self._rows_entered += stop - start
            self._count += stop - start
            self._segments.append(segment)
        if stop == block.rows:
            self._release_use(block)  # the batch is completely in

    def _compact_last(self, block: Block) -> None:
        """Copy the few rows of a batch that are in: they must not keep the memory of all alive."""
        last = self._segments[-1] if self._segments else None
        if last is None or last.block is not block:
            return
        n = last.stop - last.start
        if 2 * n > block.rows or n * self._row_bytes > LARGE_BYTES:
            return  # most of it is used, or the copy would take too long under the lock
        try:
            compact = Block(allocate(self._components, n), n)
            _copy(last, n, compact, 0)
        except MemoryError:
            return
        start = last.start
        compact.uses = 1
        last.block, last.columns, last.origin = compact, tuple(compact), last.origin + start
        last.start, last.stop, last.limit = 0, n, n
        self._clear_references(block, start, start + n)
        self._release_use(block)

    def _open_segment(self, n: int = 1) -> _Segment:
        """Begin a segment with room for n rows or more."""
        self._close_tail()
        block, start = self._next_slot or (None, 0)
        if block is None or start + n > block.rows:
            block, start = self._pop_spare(self._block_rows), 0
            if block is None:
                block = self._new_block(self._block_rows)
        self._tail = _Segment(block, start, start, self._rows_entered - start)
        self._segments.append(self._tail)
        self._set_next_slot(None)
        return self._tail

    def _is_partly_written(self, block: Block) -> bool:
        """Return whether a block has rows and will get more."""
        tail, room = self._tail, self._next_slot
        if tail.block is block:
            return tail.stop > tail.start or block.uses > 1
        return room is not None and room[0] is block and block.uses > 1

    def _close_tail(self) -> None:
        """End the last segment: the next rows must not go behind it."""
        tail, self._tail = self._tail, self._no_tail
        if tail is self._no_tail:
            return
        self._rows_entered = tail.origin + tail.stop
        is_empty = tail.start == tail.stop
        if is_empty:  # only a tail may be empty, and this is one no more
            del self._segments[-1]
        # The next slot becomes a user of the block before the segment leaves it. Otherwise the
        # block could become a spare one, and be given to a batch.
        self._set_next_slot(tail.block if tail.stop < tail.limit else None, tail.stop)
        if is_empty:
            self._release_use(tail.block)

    def _set_next_slot(self, block: Block | None, start: int = 0) -> None:
        before, self._next_slot = self._next_slot, None if block is None else (block, start)
        if block is not None:
            block.uses += 1
        if before is not None:
            self._release_use(before[0])

    def _remove_rows(self, head: _Segment, n: int) -> None:
        """Remove the next n rows, all of one segment, after they have been copied."""
        # Out of line first, then the memory: an interruption in between loses a slot at worst. In
        # the other order, two rows could get the same slot.
        start = head.start
        self._count -= n
        head.start += n
        is_used_up = head.start == head.stop and head is not self._tail
        if is_used_up:
            del self._segments[0]
        elif head.start == head.stop and head.block.uses == 1:  # reuse it from its first row
            head.origin += head.start
            head.start = head.stop = 0
        if self._references:
            self._clear_references(head.block, start, start + n)
        if is_used_up:
            self._release_use(head.block)

    def _move_rows(self, n: int, parts: list[_Segment]) -> None:
        """Move the next n rows into a batch that will hold them."""
        while n:
            head = self._segments[0]
            step = min(n, head.stop - head.start)
            is_all = step == head.stop - head.start
            if is_all and head is self._tail and head.stop == head.limit:
                self._close_tail()  # a full one: it can leave as it is
            # `parts +=`, where `append` would be a call: no handler may run while a segment is in
            # neither list, or a row in both.
            if is_all and head is not self._tail:
                del self._segments[0]
                parts += (head,)
            else:
                part = _Segment(head.block, head.start, head.start + step, head.origin)
                head.start += step
                parts += (part,)
            self._count -= step
            n -= step

    def _reinsert(self, parts: Sequence[_Segment]) -> None:
        """Put segments back to where they were in the line."""
        # By number, since batches may come back in another order than they left.
        for part in reversed(parts):
            place, number = 0, part.origin + part.start
            while place < len(self._segments) and self._number_of(place) < number:
                place += 1
            self._count += part.stop - part.start
            self._segments.insert(place, part)

    def _whole_block(self, held: Held) -> Block | None:
        """Return the block that a batch can have as it is: its rows end it, without other users."""
        if not held.parts:
            return None
        last = held.parts[-1]
        block: Block = last.block
        if not (block.is_private and block.uses == 1 and last.stop == block.rows == held.count):
            return None
        if block.place is not None:
            return None  # its memory is not a caller's alone, in a fork above all
        block.is_private = False  # the caller copies the missing rows to its start
        return block

    def _clear_references(self, block: Block, start: int, stop: int) -> None:
        """Release the objects that some rows refer to."""
        if block.is_private:
            for index, empty in self._references:
                block[index][start:stop] = empty

    def _release_use(self, block: Block) -> None:
        block.uses -= 1
        if block.uses or not block.is_private:
            return
        if block.place is None and self._make_shared is not None:
            return  # from before: the next rows are to be where other processes can read them
        self._spare_rows += block.rows
        self._spares.append(block)
        while self._spare_rows > self._most_spare_rows:
            self._spare_rows -= self._spares[0].rows
            del self._spares[0]

    def _pop_spare(self, n: int) -> Block | None:
        """Return a spare block of exactly this many rows."""
        for index in range(len(self._spares) - 1, -1, -1):
            block = self._spares[index]
            if block.rows == n:
                del self._spares[index]
                self._spare_rows -= n
                return block
        return None


def block_rows(components: tuple[Component, ...], capacity: int | None) -> int:
    """Return how many rows a block for single rows has.

    A quarter of the capacity, so that little memory is unused behind the first row and before the
    last one. Small rows get more, large ones fewer, and references never many.
    """
    size = max(1, row_bytes(components))
    least, most = max(1, LARGE_BYTES // size), max(1, _BLOCK_BYTES // size)
    if any(component.dtype.hasobject for component in components):
        least, most = min(least, _BLOCK_OBJECTS), min(most, _BLOCK_OBJECTS)
    if capacity is None:
        return most
    return min(capacity, max(min(most, -(-capacity // 4)), least))


def _copy(segment: _Segment, n: int, columns: Columns, offset: int) -> None:
    """Copy the first n rows of a segment to columns, from row ``offset`` on."""
    start = segment.start
    for column, target in zip(segment.block, columns, strict=True):
        target[offset : offset + n] = column[start : start + n]
