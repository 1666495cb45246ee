"""The node behind a stage with workers: it gives the rows that workers have put into a queue.

Its state says which items were delivered. If the workers keep the order of the source, that is one
number: the next item. If they do not, it is a set: the items that are missing below a number
(``upto``). In both cases the state contains a state of the input at or before the first item that
is needed (``from``, ``upstream``); the input goes back to it, and prepares only what is missing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aioqueue import OutOfRangeError, sync
from aioqueue.items.item import (
    Delivered,
    EpochEnd,
    Item,
    ItemCounts,
    delivered_examples,
    delivered_failure,
    delivered_number,
)
from aioqueue.items.provenance import DROPPED, UNKNOWN, RowOrigin, make_none, split
from aioqueue.pipeline.batches.batch_shape import BatchShape
from aioqueue.pipeline.nodes.flow import Flow, RunOver
from aioqueue.pipeline.nodes.node import Node, NoPositionError, Taken
from aioqueue.pipeline.nodes.progress import (
    ArrivedItems,
    FinishedItems,
    KeptItems,
    PartialItem,
    ProgressCounter,
    id_of,
    id_text,
    packed,
    unpacked,
)
from aioqueue.pipeline.nodes.rows import (
    END,
    ROW_NUMBER,
    Id,
    LazyRows,
    Row,
    State,
    WantedRows,
    id_in,
)
from aioqueue.pipeline.stage_input import StageInput
from aioqueue.system.locks import synchronized
from aioqueue.workers.flow_control import OutputBuffer

_BURST: Final = 32
"""How many items to take out together, if so many are there, also if fewer are needed."""

_LEAST_VECTORIZED: Final = 4
"""From so many items on it is faster to take them in together than one by one."""

_SINGLE_EXAMPLE: Final = frozenset((0,))
"""The subs of the examples of an item that has only one."""


_WAIT_FOR_MORE: Final = 0.005
"""Seconds that a consumer waits for more than one item if it is unknown how many will come."""


class QueueNode(Node):
    """Gives the examples that workers have put into a queue, item by item, as rows.

    If the workers do not keep the order of the source, items of a later epoch may arrive before the
    last items of an earlier one; the node puts them aside. It finds the end of an epoch by
    counting: the entry for the end says how many items the epoch has.

    Args:
        queue: the queue of `Delivered` items.
        source: the input of the workers.
        items: returns how many items an epoch has, or ``None`` if that is unknown.
        is_one_to_one: whether every item becomes one example.
        keeps_order: whether the workers keep the order of their input.
        at_once: how many items may be taken out together; ``None`` for the default.
        output_buffer: the buffer in which workers collect items for the queue, if they have one.
        is_traced: whether rows carry their provenance.
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
        output_buffer: OutputBuffer | None = None,
        is_traced: bool = False,
    ) -> None:
        super().__init__(source.span)
        self._queue = queue
        self._output_buffer = output_buffer
        self._source = source
        self._items_of = items
        self._items = items(self._epoch)  # how many items this epoch has, if that is known
        self._is_traced = is_traced
        self._is_one_to_one = is_one_to_one
        self._keeps_order = keeps_order
        self.is_ordered: bool = keeps_order and source.is_ordered
        self._at_once = at_once or min(_BURST, queue.capacity or _BURST)
        self._of_later_epochs: list[Delivered] = []  # items of later epochs
        self._arrived = 0  # how many items of this epoch have arrived, also without examples
        self._expected: int | None = None  # how many will arrive; None before the end is known
        self._count = 0  # how many items the epoch has, once the end is known
        self._kept = KeptItems()
        self._next = 0  # the number behind the last item that has arrived
        self._done = FinishedItems()
        self._partial: dict[int, PartialItem] = {}  # items that a run before has delivered in part
        # The finished items of the epoch before, until the first row of this one is given out.
        self._previous_done: FinishedItems | None = None
        self._tally = ProgressCounter()
        # If another stage with workers follows, its workers move this node, while another thread
        # may ask for the tally. The counts, and the items that they count, must be of one moment.
        self._lock = threading.RLock()
        self.items_of_epoch: int = 0
        """How many items the epoch that ended last had, also those without examples."""

    @property
    def batch_shape(self) -> BatchShape | None:
        return self._source._batch_shape  # a function may keep the containers of its batches

    def limit(self, rows: int) -> None:
        super().limit(rows)
        self._source.limit(rows)

    def take(self, n: int) -> Flow[Taken]:
        while not self._ready and self._arrived != self._expected:
            if self.is_limited:
                # No more in flight than are missing: an item may give no example, or several. The
                # caller is entitled to the n rows, even if it has announced none: after a resume,
                # a node takes rows again that it has given before.
                missing = max(n, self._still_wanted)
                self._source.allow(self._epoch, self._arrived + missing)
            rows = self._accept((yield self._demand(n)), n)
            if rows is not None:
                return rows
        if self._ready:
            return self.take_ready(n)
        end = EpochEnd(self._epoch, self._given)
        self.items_of_epoch = self._count  # `_begin_epoch` takes in items of the next epoch
        self._begin_epoch(self._epoch + 1)
        return end

    def take_ready(self, n: int) -> list[Row]:
        rows = super().take_ready(n)
        if rows and not self._keeps_order:
            self._mark_given(rows)
        return rows

    @synchronized
    def _mark_given(self, rows: list[Row]) -> None:
        self._previous_done = None
        self._done.give(rows)

    def _skip_to(self, epoch: int) -> None:
        self._source.skip_to(epoch)
        self._ready = deque()
        self._begin_epoch(epoch)

    def close(self) -> None:
        """Do nothing: the workers close what they have opened."""

    def state(self, held: Sequence[Id] = ()) -> State:
        if held and (self._keeps_order or not self._source.is_ordered):
            raise NoPositionError(
                "this pipeline has no position: a stage holds examples from workers that do not"
                " keep the order (ordered=False), and another `prepare` or `prefetch` is in"
                " between; keep the order, or move that stage before the other `prepare`"
            )
        if self._keeps_order:
            return self._ordered_state()
        if not self._source.is_ordered:
            raise NoPositionError(
                "this pipeline has no position: two consecutive `prepare` do not keep the order"
                " (ordered=False); keep the order in one of them"
            )
        return self._unordered_state(held)

    def restore(self, state: State, wanted: WantedRows | None = None) -> None:
        self._epoch, self._given = state["epoch"], state["given"]
        self._items = self._items_of(self._epoch)
        if "missing" in state:  # without order
            kept = KeptItems(frozenset(unpacked(state["missing"])), state["upto"])
            # Of an item that was delivered in part, only the listed examples are wanted.
            self._partial = {
                number: PartialItem(END, frozenset(subs)) for number, subs in state["partial"]
            }
            self._done = FinishedItems(kept)
        else:
            _, number, sub = id_of(f"{self._epoch}:{state['next']}")
            kept = KeptItems(upto=number)
            # The replay of a later node may need only some of the items before it stood.
            if wanted is not None and wanted.epoch == self._epoch:
                kept = KeptItems.of(wanted, number)
            self._partial = {number: PartialItem(sub)} if sub else {}
            self._next = number
        self._kept = kept
        self._source.restore(state.get("upstream"), self._epoch, state["from"], kept)

    @synchronized
    def tally(self) -> State:
        """The counts of items so far, and which items they count, in plain JSON types.

        Any thread may call it.
        """
        counts, before = self._tally.counts._asdict(), self._tally.before
        if self._keeps_order:  # earlier runs kept it, too, so the items are all below one number
            epoch, low = max((self._epoch, self._next), before[:2])
            return {"counts": {"upto": id_text((epoch, low, 0)), **counts}}
        epoch, low, above = self._arrived_so_far().joined(before)
        upto, beyond = id_text((epoch, low, 0)), packed(sorted(above))
        return {"counts": {"upto": upto, "beyond": beyond, **counts}}

    def restore_counts(self, tally: State) -> tuple[ItemCounts, Callable[[Item], bool]]:
        """Continue the `tally` of an earlier run.

        Returns:
            The counts, and a function: whether they include an item of this stage already.
        """
        found = tally["counts"]
        epoch, low, _ = id_of(found["upto"])
        counts = ItemCounts(*(found[field] for field in ItemCounts._fields))
        above = frozenset(unpacked(found.get("beyond", "")))
        before = ArrivedItems(epoch, low, above)
        self._tally.restore(counts, before)
        number_of = self._source.number_of
        return counts, lambda item: before.has(item.epoch, number_of(item.number))

    def _arrived_so_far(self) -> ArrivedItems:
        if self._keeps_order:
            return ArrivedItems(self._epoch, self._next)
        return self._done.arrived_in(self._epoch)

    def _ordered_state(self) -> State:
        # The first row that was not given out: it may be in the middle of an item.
        number, sub = self._next, 0
        if self._ready:
            _, number, sub = id_in(self._epoch, self._ready[0])
        elif number in self._partial:  # no item has arrived since the resume at this one
            sub = self._partial[number].upto
        if sub > 1 and not self._source.is_ordered:
            raise NoPositionError(
                "this pipeline has no position here: only some examples of an item were delivered,"
                " and the `prepare` before this stage does not keep the order (ordered=False), so"
                " another item would come in its place after a resume; keep the order there, or"
                " take the state between two items"
            )
        # Items behind `number` that have arrived already are not in the state: a resumed run
        # prepares them again, with the same generators and so with the same result.
        begin, upstream = self._source.state_before(self._epoch, number)
        return {
            "epoch": self._epoch,
            "given": self._given,
            "next": f"{number}.{sub}" if sub else number,
            "from": begin,
            "upstream": upstream,
        }

    def _unordered_state(self, held: Sequence[Id]) -> State:
        # The examples of items that have to come again: those that later nodes hold, and those of
        # items that were given out in part.
        again: dict[int, set[int]] = {}
        for _, number, sub in held:
            again.setdefault(number, set()).add(sub)
        if held and {epoch for epoch, _, _ in held} != {self._epoch}:
            return self._ended_state(held[0][0], again)
        # An item that was given out in part comes again as a whole, but only the examples in
        # `partial` are wanted of it: those that are ready here, and those that later nodes hold.
        missing, upto = self._done.missing(again)
        for number in self._done.cut():
            again.setdefault(number, set())
        # Of an item that comes again, the rows that are ready were not given out either.
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
                if subs != _SINGLE_EXAMPLE  # an item with one example comes again as a whole
            ],
            "from": begin,
            "upstream": upstream,
        }

    def _ended_state(self, epoch: int, again: dict[int, set[int]]) -> State:
        """The state at the end of the epoch before, where only the held rows are missing."""
        if self._previous_done is None or epoch != self._epoch - 1:
            raise NoPositionError(
                "this pipeline has no position: batches mix epochs (across_epochs=True), and the"
                " workers do not keep the order (ordered=False); keep the order"
            )
        missing, upto = self._previous_done.missing(again)
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

    def _demand(self, n: int) -> _ItemDemand:
        """Return what to wait for: n items if they surely come; otherwise those that come soon."""
        # Few rows: what is there is enough. And if an item may give no example, or several, n rows
        # are not n items, so waiting for n items could wait for one that is not needed.
        if n < self._at_once or not self._is_one_to_one:
            return _ItemDemand(self._queue, self._output_buffer, self._at_once, 0.0)
        if self._items is None:  # the epoch may end before n items, so the wait has an end
            return _ItemDemand(self._queue, self._output_buffer, n, _WAIT_FOR_MORE)
        # All of them come, except those that an earlier run has delivered. At least one, because
        # the entry for the end follows the last item.
        left = self._items - self._kept.left_out(self._items) - self._arrived
        return _ItemDemand(self._queue, self._output_buffer, max(1, min(n, left)), None)

    @synchronized
    def _accept(self, items: list[Delivered], n: int = 0) -> LazyRows | None:
        """Take in items that have arrived. Returns rows that can be given out directly; others are
        put into `_ready`.

        Args:
            items: the items, of any epoch.
            n: how many rows may be given out directly.
        """
        before = self._tally.before
        # Whether no earlier run has counted any of these items, so that nobody need look each up.
        is_new = self._epoch > before.epoch or (
            self._epoch == before.epoch and self._next >= before.low and not before.above
        )
        is_whole = not (self._is_traced or self._partial)
        rows = self._accept_burst(items) if is_new and is_whole and self._keeps_order else None
        if rows is None:
            self._accept_each(items, is_new=is_new, is_whole=is_whole)
        elif self._ready or len(rows) > n:
            self._ready.extend(rows)
            rows = None
        else:  # the usual case: one batch
            self._given += len(rows)
        if self._keeps_order:  # then no state will need marks before the first row that is left
            first = self._ready[0][ROW_NUMBER] if self._ready else self._next
            self._source.forget(self._epoch, first)
        return rows

    def _accept_burst(self, items: list[Delivered]) -> LazyRows | None:
        """Take in items together, if they are the usual ones; otherwise return ``None``.

        The usual ones all belong to this epoch, have one example each, and were neither retried nor
        skipped. The workers must keep the order.
        """
        count = len(items)
        # They are in order, so the first and the last one say whether all are of this epoch.
        if count < _LEAST_VECTORIZED or not items[0][0] == items[-1][0] == self._epoch:
            return None
        if any(map(delivered_failure, items)):
            return None
        try:
            values = [value for (value,) in map(delivered_examples, items)]
        except ValueError:  # an item has no example, or several
            return None
        if isinstance(values[-1], EpochEnd):
            return None
        first, last = items[0][1], items[-1][1]
        is_row = last - first == count - 1  # whether no place is missing in between
        places = range(first, last + 1) if is_row else list(map(delivered_number, items))
        numbers = self._source.numbers_of(places)
        self._arrived += count
        self._next = numbers[-1] + 1
        self._tally.add_plain(count, count)
        return LazyRows(values, numbers, items)

    def _accept_each(self, items: list[Delivered], *, is_new: bool, is_whole: bool) -> None:
        """Take in items one by one, whatever they are.

        Args:
            items: the items, of any epoch.
            is_new: whether an earlier run has counted none of them.
            is_whole: whether all their examples are wanted, and their provenance is not recorded.
        """
        current, append, number_of = self._epoch, self._ready.append, self._source.number_of
        before, keeps_order = self._tally.before, self._keeps_order
        arrived = plain = plain_examples = 0
        for item in items:
            epoch, place, index, examples, failure = item
            if epoch != current:
                # Without order, workers may begin the next epoch before the last item of this one.
                # Items of an earlier epoch were left by the user, and are dropped.
                if epoch > current:
                    self._of_later_epochs.append(item)
                continue
            size = len(examples)
            # The end says how many items the epoch has. Without order others may still follow it.
            if size == 1 and isinstance(examples[0], EpochEnd):
                self._count = examples[0].count
                self._expected = self._count - self._kept.left_out(self._count)
                continue
            number, count, is_cut = number_of(place), 1, False
            if size == 1 and is_whole:  # the usual case
                append((examples[0], number, index, 0, None))
            else:
                count, is_cut = self._add_rows(number, index, examples)
            if is_new and size and failure is None:
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

    def _add_rows(self, number: int, index: int, examples: Sequence[Any]) -> tuple[int, bool]:
        """Add the wanted examples of an item. Returns how many, and whether an earlier run may have
        delivered others."""
        partial = self._partial.pop(number, None)
        origins: Iterable[RowOrigin] = UNKNOWN
        if self._is_traced:
            origins = self._origins(number, index, len(examples))
        first = len(examples) != 1  # several examples of an item count from 1; see `Row`
        rows = [
            (value, number, index, sub, origin)
            for sub, (value, origin) in enumerate(zip(examples, origins, strict=False), first)
            if (partial is None or partial.keeps(sub)) and origin is not DROPPED
        ]
        self._ready.extend(rows)
        return len(rows), partial is not None

    def _origins(self, number: int, index: int, examples: int) -> Iterable[RowOrigin]:
        origin = self._source.origin_of(self._epoch, number, index)
        if examples == 1:
            return (origin,)
        if not examples:
            make_none(origin)
            return ()
        return split(origin, examples)

    @synchronized
    def _begin_epoch(self, epoch: int) -> None:
        # Later nodes may hold rows of the epoch that ends, until they get rows of the next one.
        self._previous_done = self._done if epoch == self._epoch + 1 else None
        self._epoch, self._given = epoch, 0
        self._items = self._items_of(epoch)
        self._source.forget_epochs_before(epoch)
        self._arrived, self._expected, self._next = 0, None, 0
        self._kept, self._done, self._partial = KeptItems(), FinishedItems(), {}
        later, self._of_later_epochs = (
            self._of_later_epochs,
            [],
        )  # `_accept` puts items of still later epochs back
        self._accept(later)


class _ItemDemand:
    """The demand for items of a queue: n items, or those that arrive in time."""

    __slots__ = ("_max_wait", "_n", "_output_buffer", "_queue")

    def __init__(
        self,
        queue: sync.FIFOQueue,
        output_buffer: OutputBuffer | None,
        n: int,
        max_wait: float | None,
    ) -> None:
        self._queue = queue
        self._output_buffer = output_buffer
        self._n = n
        self._max_wait = max_wait

    def take(self) -> list[Delivered]:
        self._report_demand()
        try:
            items = self._queue.dequeue_up_to(self._n, self._max_wait)
        except OutOfRangeError as end:
            raise RunOver(str(end)) from end.__cause__
        return self._report_taken(items)

    async def take_async(self) -> list[Delivered]:
        self._report_demand()
        try:
            items = await self._queue.aio.dequeue_up_to(self._n, self._max_wait)
        except OutOfRangeError as end:
            raise RunOver(str(end)) from end.__cause__
        return self._report_taken(items)

    def _report_demand(self) -> None:
        # The workers collect items in a buffer. They have to know how many the consumer waits for,
        # so that they enqueue them in time. Where the wait has an end, the queue returns what has
        # come by then, so the workers must not hold back even one.
        if self._output_buffer is not None:
            self._output_buffer.want(self._n if self._max_wait is None else 1)

    def _report_taken(self, items: list[Delivered]) -> list[Delivered]:
        if self._output_buffer is not None:
            self._output_buffer.took(len(items))
        return items
