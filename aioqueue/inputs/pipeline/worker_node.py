"""Where the rows of a prepared stage come from: a queue that workers fill."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

from aioqueue import OutOfRangeError, sync
from aioqueue.inputs.core.items import EpochEnd, Item
from aioqueue.inputs.pipeline.checkpoint_state import id_of, id_text, packed, unpacked
from aioqueue.inputs.pipeline.node import (
    END,
    ROW_NUMBER,
    Flow,
    Id,
    LazyRows,
    Node,
    NoPositionError,
    Row,
    RunOver,
    State,
    Taken,
    WantedRows,
    id_in,
)
from aioqueue.inputs.pipeline.progress import (
    ArrivedItems,
    FinishedItems,
    KeptItems,
    PartialItem,
    ProgressCounter,
)
from aioqueue.inputs.pipeline.provenance import GONE, UNKNOWN, RowOrigin, finish, split
from aioqueue.inputs.pipeline.stage_input import StageInput
from aioqueue.inputs.prepare.output_buffer import OutputBuffer
from aioqueue.inputs.prepare.prepared_items import Delivered, ItemCounts
from aioqueue.locks import guarded

__all__ = ("QueueNode",)

_AT_ONCE: Final = 32
"""Items that are taken out together, if as many are there and fewer are needed."""

_MANY: Final = 4
"""Items that are taken in more quickly together than one by one."""

_WHOLE: Final = frozenset((0,))
"""The examples of an item that is only one."""

_PLACE: Final = itemgetter(1)  # of what was `Delivered`
_EXAMPLES: Final = itemgetter(3)
_TROUBLE: Final = itemgetter(4)

_SOON: Final = 0.005
"""Seconds that a consumer waits for more than one item, where it is not known how many come."""


class QueueNode(Node):
    """The examples that workers have put into a queue, item by item, as rows.

    Where the workers do not keep the order of the source, items of a later epoch may come before
    the end of an earlier one; they are put aside. The end is known by counting: what was told to be
    the end of an epoch says how many items it has.

    Args:
        queue: of `Delivered`.
        source: what feeds the workers.
        items: tells how many items an epoch has, where that is known.
        is_one_to_one: whether every item is one example.
        keeps_order: whether the workers do.
        at_once: how many items may be taken out together; ``None`` for the usual number.
        line: where workers lay down what goes into the queue together, if they do.
        is_traced: whether somebody wants to know which items were delivered.
    """

    def __init__(
        self,
        queue: sync.FIFOQueue,
        source: StageInput,
        *,
        items: Callable[[int], int | None],
        is_one_to_one: bool,
        keeps_order: bool,
        at_once: int | None = None,
        line: OutputBuffer | None = None,
        is_traced: bool = False,
    ) -> None:
        super().__init__(source.span)
        self._queue = queue
        self._line = line
        self._source = source
        self._items_of = items
        self._items = items(self._epoch)  # of this epoch
        self._is_traced = is_traced
        self._is_one_to_one = is_one_to_one
        self._keeps_order = keeps_order
        self.is_ordered: bool = keeps_order and source.is_ordered
        self._at_once = at_once or min(_AT_ONCE, queue.capacity or _AT_ONCE)
        self._later: list[Delivered] = []  # of epochs to come
        self._arrived = 0  # items of this epoch, also those without examples
        self._expected: int | None = None  # how many are to arrive, once that was told
        self._count = 0  # how many there are then
        self._kept = KeptItems()
        self._next = 0  # the number behind the last item that has arrived
        self._done = FinishedItems()
        self._partial: dict[int, PartialItem] = {}  # items of which examples were delivered before
        self._before: FinishedItems | None = (
            None  # of the epoch before, until any of this one is given
        )
        self._tally = ProgressCounter()
        # Where a stage with workers follows, theirs are who moves this node, and whoever takes a
        # snapshot asks for the tally meanwhile: counts and what they are of must be of one moment.
        self._lock = threading.RLock()
        self.items_of_epoch: int = 0
        """How many items the epoch had that has ended last, also those without examples."""

    def take(self, n: int) -> Flow[Taken]:
        while not self._ready and self._arrived != self._expected:
            rows = self._accept((yield self._want(n)), n)
            if rows is not None:
                return rows
        if self._ready:
            return self.take_ready(n)
        end = EpochEnd(self._epoch, self._given)
        self.items_of_epoch = self._count  # before those of the next one are looked at
        self._go_to(self._epoch + 1)
        return end

    def take_ready(self, n: int) -> list[Row]:
        rows = super().take_ready(n)
        if rows and not self._keeps_order:
            self._give(rows)
        return rows

    @guarded
    def _give(self, rows: list[Row]) -> None:
        self._before = None
        self._done.give(rows)

    def _skip_to(self, epoch: int) -> None:
        self._source.skip_to(epoch)
        self._ready = deque()
        self._go_to(epoch)

    def close(self) -> None:
        """Nothing is open for it: its workers let go of what they have."""

    def state(self, held: Sequence[Id] = ()) -> State:
        if held and (self._keeps_order or not self._source.is_ordered):
            raise NoPositionError(
                "this pipeline has no position: a stage holds examples that come from workers"
                " which do not keep the order (ordered=False) by way of another `prepare` or"
                " `prefetch`; keep the order, or move that stage before it"
            )
        if self._keeps_order:
            return self._ordered_state()
        if not self._source.is_ordered:
            raise NoPositionError(
                "this pipeline has no position: two `prepare` in a row do not keep the order"
                " (ordered=False); let one of them keep it"
            )
        return self._unordered_state(held)

    def restore(self, state: State, wanted: WantedRows | None = None) -> None:
        self._epoch, self._given = state["epoch"], state["given"]
        self._items = self._items_of(self._epoch)
        if "missing" in state:
            kept = KeptItems(frozenset(unpacked(state["missing"])), state["upto"])
            self._partial = {
                number: PartialItem(END, frozenset(subs)) for number, subs in state["partial"]
            }
            self._done = FinishedItems(kept)
        else:
            _, number, sub = id_of(f"{self._epoch}:{state['next']}")
            kept = KeptItems(upto=number)
            if wanted is not None and wanted.epoch == self._epoch:
                kept = KeptItems.of(wanted, number)
            self._partial = {number: PartialItem(sub)} if sub else {}
            self._next = number
        self._kept = kept
        self._source.restore(state.get("upstream"), self._epoch, state["from"], kept)

    @guarded
    def tally(self) -> State:
        """What has become of the items so far, and which these are: in plain JSON types. For any
        thread."""
        counts, before = self._tally.counts._asdict(), self._tally.before
        if self._keeps_order:  # then earlier runs have: one of both has it all
            epoch, low = max((self._epoch, self._next), before[:2])
            return {"counts": {"upto": id_text((epoch, low, 0)), **counts}}
        epoch, low, above = self._arrived_so_far().joined(before)
        upto, beyond = id_text((epoch, low, 0)), packed(sorted(above))
        return {"counts": {"upto": upto, "beyond": beyond, **counts}}

    def go_on(self, tally: State) -> tuple[ItemCounts, Callable[[Item], bool]]:
        """Begin with the `tally` of an earlier run.

        Returns:
            The counts; and what tells of an item of this stage whether they have it already.
        """
        found = tally["counts"]
        epoch, low, _ = id_of(found["upto"])
        counts = ItemCounts(*(found[field] for field in ItemCounts._fields))
        above = frozenset(unpacked(found.get("beyond", "")))
        before = ArrivedItems(epoch, low, above)
        self._tally.go_on(counts, before)
        number_of = self._source.number_of
        return counts, lambda item: before.has(item.epoch, number_of(item.number))

    def _arrived_so_far(self) -> ArrivedItems:
        if self._keeps_order:
            return ArrivedItems(self._epoch, self._next)
        return self._done.arrived_in(self._epoch)

    def _ordered_state(self) -> State:
        number, sub = self._next, 0
        if self._ready:
            _, number, sub = id_in(self._epoch, self._ready[0])
        elif number in self._partial:  # nothing has come since this one was gone on with
            sub = self._partial[number].upto
        if sub > 1 and not self._source.is_ordered:
            raise NoPositionError(
                "this pipeline has no position here: some examples of an item were given and others"
                " not, and the `prepare` before this stage does not keep the order (ordered=False),"
                " so that another item would come in its place; keep the order there, or ask"
                " between two items"
            )
        begin, upstream = self._source.state_before(self._epoch, number)
        return {
            "epoch": self._epoch,
            "given": self._given,
            "next": f"{number}.{sub}" if sub else number,
            "from": begin,
            "upstream": upstream,
        }

    def _unordered_state(self, held: Sequence[Id]) -> State:
        again: dict[int, set[int]] = {}
        for _, number, sub in held:
            again.setdefault(number, set()).add(sub)
        if held and {epoch for epoch, _, _ in held} != {self._epoch}:
            return self._ended_state(held[0][0], again)
        missing, upto = self._done.missing(again)
        for number in self._done.cut():
            again.setdefault(number, set())
        for _, number, sub in [id_in(self._epoch, row) for row in self._ready]:
            if number in again:
                again[number].add(sub)
        partial = {number: one.subs for number, one in self._partial.items()} | again
        begin, upstream = self._source.state_before(self._epoch, min(missing, default=upto))
        return {
            "epoch": self._epoch,
            "given": self._given - len(held),
            "missing": packed(sorted(missing)),
            "upto": upto,
            "partial": [
                [number, sorted(subs)]
                for number, subs in sorted(partial.items())
                if subs != _WHOLE  # then all of it comes again
            ],
            "from": begin,
            "upstream": upstream,
        }

    def _ended_state(self, epoch: int, again: dict[int, set[int]]) -> State:
        """The state in which all of an epoch was given that has ended, but for some rows."""
        if self._before is None or epoch != self._epoch - 1:
            raise NoPositionError(
                "this pipeline has no position: batches mix epochs (across_epochs=True), whose"
                " examples come from workers that do not keep the order (ordered=False)"
            )
        missing, upto = self._before.missing(again)
        begin, upstream = self._source.state_before(epoch, min(missing, default=upto))
        return {
            "epoch": epoch,
            "given": 0,
            "missing": packed(sorted(missing)),
            "upto": upto,
            "partial": [[number, sorted(subs)] for number, subs in sorted(again.items())],
            "from": begin,
            "upstream": upstream,
        }

    def _want(self, n: int) -> _Items:
        """What to wait for: all that was asked for if it is sure to come; else what is there."""
        if n < self._at_once or not self._is_one_to_one:
            return _Items(self._queue, self._line, self._at_once, 0.0)
        if self._items is None:
            return _Items(self._queue, self._line, n, _SOON)
        left = self._items - self._kept.left_out(self._items) - self._arrived
        return _Items(self._queue, self._line, max(1, min(n, left)), None)

    @guarded
    def _accept(self, items: list[Delivered], n: int = 0) -> LazyRows | None:
        """Take in what has come; returns rows if they are to be handed out as they are, and else
        has them ready.

        Args:
            items: of any epoch.
            n: how many rows may be handed out at once.
        """
        before = self._tally.before
        is_new = self._epoch > before.epoch or (
            self._epoch == before.epoch and self._next >= before.low and not before.above
        )
        is_whole = not (self._is_traced or self._partial)
        rows = self._run_of(items) if is_new and is_whole and self._keeps_order else None
        if rows is None:
            self._accept_each(items, is_new=is_new, is_whole=is_whole)
        elif self._ready or len(rows) > n:
            self._ready.extend(rows)
            rows = None
        else:  # as those of most batches
            self._given += len(rows)
        if self._keeps_order:
            first = self._ready[0][ROW_NUMBER] if self._ready else self._next
            self._source.forget(self._epoch, first)
        return rows

    def _run_of(self, items: list[Delivered]) -> LazyRows | None:
        """Take in items in their order, all of this epoch, each of which is one example and of
        which nothing else is to be told; returns their rows if these are such, as almost always.
        """
        count = len(items)
        # In order, so that the last one tells of all whether the epoch ends among them.
        if count < _MANY or not items[0][0] == items[-1][0] == self._epoch:
            return None
        if any(map(_TROUBLE, items)):
            return None
        try:
            values = [value for (value,) in map(_EXAMPLES, items)]
        except ValueError:  # some are none, or several
            return None
        if isinstance(values[-1], EpochEnd):
            return None
        first, last = items[0][1], items[-1][1]
        is_row = last - first == count - 1  # none is missing in between
        places = range(first, last + 1) if is_row else list(map(_PLACE, items))
        numbers = self._source.numbers_of(places)
        self._arrived += count
        self._next = numbers[-1] + 1
        self._tally.add_plain(count, count)
        return LazyRows(values, numbers, items)

    def _accept_each(self, items: list[Delivered], *, is_new: bool, is_whole: bool) -> None:
        """Take in items one by one, whatever they are.

        Args:
            items: of any epoch.
            is_new: whether no earlier run has counted any of this epoch that comes now.
            is_whole: whether all examples of them are wanted, and nobody asks for their origins.
        """
        current, append, number_of = self._epoch, self._ready.append, self._source.number_of
        before, keeps_order = self._tally.before, self._keeps_order
        arrived = plain = plain_examples = 0
        for item in items:
            epoch, place, index, examples, trouble = item
            if epoch != current:
                if epoch > current:
                    self._later.append(item)
                continue
            size = len(examples)
            if size == 1 and isinstance(examples[0], EpochEnd):
                self._count = examples[0].count
                self._expected = self._count - self._kept.left_out(self._count)
                continue
            number, count, is_cut = number_of(place), 1, False
            if size == 1 and is_whole:  # as almost always
                append((examples[0], number, index, 0, None))
            else:
                count, is_cut = self._add(number, index, examples)
            if is_new and size and trouble is None:
                plain += 1
                plain_examples += size
            elif is_new or not before.has(epoch, number):
                self._tally.add(item)
            arrived += 1
            self._next = number + 1
            if not keeps_order:
                self._done.arrived(number, count, is_cut=is_cut)
        self._arrived += arrived
        self._tally.add_plain(plain, plain_examples)

    def _add(self, number: int, index: int, examples: Sequence[Any]) -> tuple[int, bool]:
        """Add the examples of an item that are wanted; returns how many, and whether some may have
        been given out before."""
        partial = self._partial.pop(number, None)
        origins: Iterable[RowOrigin] = UNKNOWN
        if self._is_traced:
            origins = self._origins(number, index, len(examples))
        first = len(examples) != 1  # those of an item that share it count from 1; see `Row`
        rows = [
            (value, number, index, sub, origin)
            for sub, (value, origin) in enumerate(zip(examples, origins, strict=False), first)
            if (partial is None or partial.keeps(sub)) and origin is not GONE
        ]
        self._ready.extend(rows)
        return len(rows), partial is not None

    def _origins(self, number: int, index: int, examples: int) -> Iterable[RowOrigin]:
        """The origins of the examples of an item that has arrived."""
        origin = self._source.origin_of(self._epoch, number, index)
        if examples == 1:
            return (origin,)
        if not examples:
            finish(origin)
        return split(origin, examples)

    @guarded
    def _go_to(self, epoch: int) -> None:
        self._before = self._done if epoch == self._epoch + 1 else None
        self._epoch, self._given = epoch, 0
        self._items = self._items_of(epoch)
        self._source.let_go(epoch)
        self._arrived, self._expected, self._next = 0, None, 0
        self._kept, self._done, self._partial = KeptItems(), FinishedItems(), {}
        later, self._later = self._later, []
        self._accept(later)


class _Items:
    """The wish for items of a queue: n, or those that come in time."""

    __slots__ = ("_line", "_max_wait", "_n", "_queue")

    def __init__(
        self, queue: sync.FIFOQueue, line: OutputBuffer | None, n: int, max_wait: float | None
    ) -> None:
        self._queue = queue
        self._line = line
        self._n = n
        self._max_wait = max_wait

    def take(self) -> list[Delivered]:
        self._begin()
        try:
            items = self._queue.dequeue_up_to(self._n, self._max_wait)
        except OutOfRangeError as end:
            raise RunOver(str(end)) from end.__cause__
        return self._taken(items)

    async def take_async(self) -> list[Delivered]:
        self._begin()
        try:
            items = await self._queue.aio.dequeue_up_to(self._n, self._max_wait)
        except OutOfRangeError as end:
            raise RunOver(str(end)) from end.__cause__
        return self._taken(items)

    def _begin(self) -> None:
        if self._line is not None:
            self._line.want(self._n if self._max_wait is None else 1)

    def _taken(self, items: list[Delivered]) -> list[Delivered]:
        if self._line is not None:
            self._line.took(len(items))
        return items
