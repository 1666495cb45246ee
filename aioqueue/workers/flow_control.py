"""Flow control: how many items may be in flight, and be read together.

`InFlightWindow` bounds the items that were taken from the source and have not left yet. An
`ItemQuota` bounds those of an epoch, where only the first rows are wanted. A `Tally`
counts those that left through one thread, without a lock. `ReadPace`
decides how many items to read ahead together, and `RoundPace` when tasks pause. `OutputBuffer`
collects prepared items, to enqueue several at once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Sequence, Sized
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol, Self

from aioqueue import QueueClosedError, QueueFull, sync
from aioqueue.items.item import Delivered, Item, Prepared
from aioqueue.items.quota import ItemQuota
from aioqueue.system.locks import call_with_lock, synchronized
from aioqueue.worlds.waker import is_free_threaded

_WEIGHT = 1 / 16  # the weight of the latest size in the mean


class InFlightWindow:
    """Counts what is in flight, and decides whether another item may come in.

    It counts the bytes of prepared examples that wait to be enqueued. It assumes that items in
    preparation will be as large as recent ones, and lets nothing in that would then be too much.
    Before any size is known, as many items may come in as can be prepared at once, because reading
    more would be of no use yet. One item may always come in, however large, so nothing ever waits
    for itself. Not thread-safe.

    So the bytes of prepared examples are at most

    - ``limit_bytes``, or one item, if all items have one size, and the items prepared at once do
      not exceed it;
    - more, if sizes change and the items in preparation turn out larger than those before them: by
      that difference for each of them. There are at most ``max_in_flight`` of them, and at most
      ``at_once`` while no size is known.

    Args:
        max_in_flight: the largest number of items.
        limit_bytes: the largest number of bytes; ``None`` for no bound (then `mark_ready` need not
            be called).
        at_once: the number of items that are prepared at the same time.

    Attributes:
        came: the items that the reader of the source has let in without the lock. Nobody else
            changes it.
        may_come: the value up to which it may do so; see `grant`.
    """

    __slots__ = (
        "_at_once",
        "_bytes",
        "_came",
        "_closed",
        "_max_in_flight",
        "_mean",
        "_tallies",
        "_waiting",
        "ahead",
        "asked",
        "came",
        "limit_bytes",
        "may_come",
        "quota",
    )

    def __init__(self, max_in_flight: int, limit_bytes: int | None, at_once: int) -> None:
        self._came = (
            0  # the items that came in under the lock, less those that left without a tally
        )
        self.came: int = 0
        self.may_come: int = 0
        self._tallies: list[Tally] = []
        self._closed = 0  # the total of the tallies that were closed
        self.ahead: Sized = ()  # items that were read, but not yet taken by a worker
        # Items that came in, and that a helper awaits from the source. It may still be in there
        # when the last worker has ended.
        self.asked: int = 0
        self.limit_bytes: int | None = limit_bytes
        self.quota: ItemQuota | None = None  # of a source whose later stages want a part of it
        self._max_in_flight = max_in_flight
        self._at_once = at_once
        self._waiting = 0  # prepared items
        self._bytes = 0  # the bytes of these
        self._mean = 0.0  # 0: no size is known yet

    def has_room(self) -> bool:
        if self.quota is not None and not self.quota.remaining:
            return False
        items = self.items if self._tallies else self._came + self.came - self._closed
        if items == 0:
            return True
        if items >= self._max_in_flight:
            return False
        if self.limit_bytes is None:
            return True
        coming = items - self._waiting + 1  # the items in preparation, and the next one
        if not self._mean:
            return coming <= self._at_once
        return self._bytes + coming * self._mean <= self.limit_bytes

    @property
    def items(self) -> int:
        return self._came + self.came - self.singles

    @property
    def singles(self) -> int:
        """The total of all tallies: the items that have left as single examples."""
        return self._closed + sum([tally.count for tally in self._tallies])

    def open_tally(self, tally: Tally) -> None:
        """Include a tally in `singles`."""
        self._tallies.append(tally)

    def close_tally(self, tally: Tally) -> None:
        """Keep only the total of a tally, whose thread ends."""
        if tally in self._tallies:
            self._tallies.remove(tally)
            self._closed += tally.count

    @property
    def max_in_flight(self) -> int:
        return self._max_in_flight

    @property
    def is_full_of_bytes(self) -> bool:
        """Return whether ``limit_bytes``, rather than ``max_in_flight``, keeps items out."""
        return self.limit_bytes is not None and 0 < self.items < self._max_in_flight

    @property
    def taken(self) -> int:
        """The number of items that workers have taken or ask for, and that have not left."""
        return max(0, self.items - len(self.ahead))

    @property
    def held(self) -> int:
        """The number of items that workers have taken and that have not left."""
        return max(0, self.items - len(self.ahead) - self.asked)

    @property
    def bytes(self) -> int:
        """The bytes of prepared examples that wait to be enqueued."""
        return self._bytes

    @property
    def is_low(self) -> bool:
        """Return whether there is enough room to wake a reader that brings many items."""
        return self.items <= self._max_in_flight - self._max_in_flight // 4

    @property
    def mean_bytes(self) -> float:
        """The approximate bytes of an item's examples; 0.0 if unknown."""
        return self._mean

    def resize(self, max_in_flight: int, at_once: int) -> None:
        """Let in more items from now on, or fewer; those in flight stay."""
        self._max_in_flight, self._at_once = max_in_flight, at_once
        self.may_come = 0  # the reader has to come back, and compare with the new number

    def enter(self) -> None:
        self._came += 1

    def try_enter(self) -> bool:
        """Let an item in if there is room; return whether there is."""
        if (
            self.limit_bytes is None
            and self.quota is None
            and not self._tallies
            and self._came + self.came - self._closed < self._max_in_flight
        ) or self.has_room():
            self._came += 1
            return True
        return False

    def grant(self) -> None:
        """Let the only reader take as many items as there is room for, without the lock.

        Items only leave meanwhile, so there is room for those to the end, unless the window is
        resized. If more than their number counts, the reader has to ask for each.
        """
        if self.limit_bytes is None and self.quota is None:
            self.may_come = self.came + self._max_in_flight - self.items

    def enter_some(self, wanted: int) -> int:
        """Let in several items, as far as there is room: at least one if `has_room`.

        Only for windows without ``limit_bytes``.

        Args:
            wanted: the most items to let in.

        Returns:
            The number of items.
        """
        n = max(1, min(wanted, self._max_in_flight - self.items))
        if self.quota is not None:
            n = min(n, self.quota.remaining)
        self._came += n
        return n

    def mark_ready(self, size: int) -> bool:
        """Note that an item was prepared, with this many bytes, or 0 without examples.

        Returns:
            Whether there may be room now that this first size is known.
        """
        is_first = size > 0 and not self._mean
        self._waiting += 1
        self._bytes += size
        self._mean += (size - self._mean) * (_WEIGHT if self._mean else 1.0)
        return is_first

    def release(self, size: int) -> None:
        """Note that a prepared item has left."""
        self._came -= 1
        self._waiting -= 1
        self._bytes -= size

    def leave(self, n: int) -> None:
        """Note that prepared items have left, as `release`, in a window that counts no bytes."""
        self._came -= n

    def abort(self, n: int = 1) -> None:
        """Remove items that came in and will never be prepared."""
        self.asked = max(0, self.asked - n)
        self._came -= n


class DefaultInFlight(NamedTuple):
    """How many items may be in flight unless the user says it, by the number of workers."""

    per_worker: int
    spare: int
    """Items besides those of the workers."""

    @classmethod
    def of(cls, per_worker: int, item_size: int) -> Self:
        """Return the default for items of a size.

        Args:
            per_worker: how many items of one example each may be in flight per worker.
            item_size: how many examples an item becomes.
        """
        # Each worker has one, however large. One more is read meanwhile, for the first that is
        # done; or it waits for an earlier one whose place in the order comes first.
        return cls(per_worker // item_size, 0) if item_size <= per_worker else cls(1, 1)

    def items(self, workers: int) -> int:
        return workers * self.per_worker + self.spare


class Tally:
    """Counts the items that one thread delivers as single examples, in a ``with`` block.

    Only that thread writes the count, so it takes no lock; any thread may read it. With a lock, the
    counting would cost a tenth of all instructions for a tiny function.

    Args:
        lock: guards the window.
        window: the window that the items leave. It counts no bytes.
    """

    __slots__ = ("_lock", "_window", "count")

    def __init__(self, lock: threading.RLock, window: InFlightWindow) -> None:
        self._lock = lock
        self._window = window
        self.count: int = 0

    def __enter__(self) -> Self:
        call_with_lock(self._lock, self._window.open_tally, self)
        return self

    def __exit__(self, *raised: object) -> None:
        call_with_lock(self._lock, self._window.close_tally, self)


_QUICK_SECONDS: Final = 5e-5
"""Items whose function takes longer than this many seconds are not read together."""

_READ_AHEAD_SECONDS: Final = 5e-4
"""The approximate seconds of work in the items that are read together."""

_MAX_READ_AHEAD: Final = 64


class ReadPace:
    """Decides how many items to read together: one at first, and more and more while they are fast.

    The measure is one call of the function by the worker that reads. The time between two reads
    would be no measure: the more workers share one interpreter lock, the longer it is, although
    then reading together matters most. Not thread-safe.
    """

    __slots__ = ("_n",)

    def __init__(self) -> None:
        self._n = 1

    @property
    def is_quick(self) -> bool:
        """Return whether items are so fast that several were read together the last time."""
        return self._n > 1

    def next(self, seconds: float) -> int:
        """Return how many items to read now, when all earlier ones are in preparation.

        Args:
            seconds: how long the latest call of the function has taken.
        """
        if seconds > _QUICK_SECONDS:
            self._n = 1
        else:
            by_time = int(_READ_AHEAD_SECONDS / max(seconds, 1e-9))
            self._n = max(1, min(2 * self._n, by_time, _MAX_READ_AHEAD))
        return self._n


_MOST_PER_ROUND: Final = 64
"""The most items in one round of an event loop, if nothing in between waits."""

_SLICE_SECONDS: Final = 5e-4
"""The seconds after which other tasks of the loop run, if nothing waits."""


class RoundPace:
    """Decides when workers that are tasks pause, so that the other tasks of their loop run.

    If nothing waits, neither source nor function nor queue, a worker could take all items in one
    round of the loop. It pauses after some of them: after two for each worker, which is about what
    they would take in a round if they waited, or after some time, if items are not quick. Not
    thread-safe.

    A reader that deals items to workers also pauses after 64 of them: if their functions do not
    wait, all of these run in the next round. It learns whether they do. A worker that asks for its
    next item in the very round in which its last one began has not waited.

    Args:
        in_order: whether the tasks of a round run in the order in which they were woken. In trio
            they do not: the first worker of a round may be the last one of the next, and a worker
            may come back behind the reader, though its function never waits.

    Attributes:
        is_pause_due: whether the next worker that takes an item has to pause first.
        do_all_wait: whether the functions of all items have waited that a reader has dealt and
            whose workers have come back in the latest round.
    """

    __slots__ = (
        "_asked",
        "_dealt_in",
        "_first",
        "_in_order",
        "_items",
        "_latest",
        "_returned_at_once",
        "_returned_later",
        "_rounds",
        "_seconds",
        "do_all_wait",
        "is_pause_due",
    )

    def __init__(self, *, in_order: bool = True) -> None:
        self._in_order = in_order
        self.is_pause_due: bool = False
        self.do_all_wait: bool = False
        self._items = 0  # the items since the latest round that is known to have passed
        self._seconds = 0.0  # the seconds of those that may have come without a round in between
        self._latest: object = None  # the worker that has asked for an item last
        self._asked = 0.0  # when it did
        self._first: object = None  # the worker that has asked first since that round
        self._rounds = 0  # the rounds that a reader has let pass so far
        self._dealt_in: dict[object, int] = {}  # worker -> the rounds before its item was dealt
        # Workers that have asked since the latest of these rounds: perhaps in the round in which
        # their item began, and certainly later.
        self._returned_at_once = self._returned_later = 0

    def asked(self, worker: object, workers: int) -> None:
        """Note that a worker asks for its next item.

        Args:
            worker: the worker.
            workers: the number of workers.
        """
        if self._dealt_in:
            rounds = self._dealt_in.pop(worker, None)
            if rounds is not None and rounds == self._rounds:
                self._returned_at_once += 1
            elif rounds is not None:
                self._returned_later += 1
        if worker is self._latest:
            self.dealt(workers)  # no other one has asked since: perhaps no round has passed
            return
        # It runs again after a wait. If all wait, no pause is needed, however many they are.
        if worker is self._first and self._in_order:
            # A round has begun since it was the first to ask. It has waited: in its function, or
            # for its item, which may then have begun in this round.
            self._items, self._seconds = 1, 0.0
        elif self._first is None:
            self._first = worker
        self._items += 1
        self._latest, self._asked = worker, perf_counter()

    def dealt(self, workers: int, worker: object = None) -> None:
        """Note that a worker gets an item, and perhaps no round has passed since the last one.

        Args:
            workers: the number of workers.
            worker: the worker, if a reader has given it the item.
        """
        now = perf_counter()
        self._seconds += now - self._asked
        self._asked = now
        self._items = items = self._items + 1
        if worker is not None:
            self._dealt_in[worker] = self._rounds
        most = 2 * workers
        if most > _MOST_PER_ROUND and not (worker is not None and self.do_all_wait):
            most = _MOST_PER_ROUND
        if items > most or self._seconds > _SLICE_SECONDS:
            self.is_pause_due = True

    def paused(self) -> None:
        """Note that the reader has let a round pass, behind which it takes an item."""
        self._items, self._seconds = 1, 0.0
        self._first = None
        self._rounds += 1
        if self._returned_at_once or self._returned_later:
            self.do_all_wait = self._in_order and not self._returned_at_once
            self._returned_at_once = self._returned_later = 0
        self.is_pause_due, self._asked = False, perf_counter()


NOTE_OF_KEY: Final = "while getting its key for concurrency_key"
"""A note on failures of the key function, to tell them from those of the main function."""

_NO_KEY: Final[Any] = object()


class Pending:
    """An item that is to be prepared, and its history.

    Attributes:
        item: the item.
        failures: how often its preparation has failed.
        deaths: the number of processes that it has killed.
        key: its key for ``concurrency_key``, once known.
        has_place: whether it counts as one of its key's items in preparation.
        placed_at: when it got its latest place, if its key has a rate.
    """

    __slots__ = ("deaths", "failures", "has_place", "item", "key", "placed_at")

    def __init__(self, item: Item) -> None:
        self.item: Item = item
        self.failures: int = 0
        self.deaths: int = 0
        self.key: Hashable = _NO_KEY
        self.has_place: bool = False
        self.placed_at: float = 0.0

    @property
    def has_key(self) -> bool:
        return self.key is not _NO_KEY


_MAX_BUFFERED: Final = 32
"""The number of items at which the buffer is enqueued although no consumer wants them."""

_NONE: Final[Sequence[Delivered]] = ()


class DeliveryCounter(Protocol):
    """Counts the items that have left; see `PrepareProgress`."""

    lock: threading.RLock

    def item_delivered(self, prepared: Prepared) -> None:
        """Count an item whose last example is in the queue. Called under the lock."""

    def plain_items_delivered(self, items: Sequence[Delivered]) -> None:
        """Count items of one example each that have never failed. Called under the lock."""


class OutputBuffer:
    """Holds prepared items until several can be enqueued together. Thread-safe.

    If an item takes microseconds, enqueuing it by itself is a good part of all work. So workers
    hand in their results here, and one of them enqueues several together, in order if the order is
    kept.

    This delays no consumer. A consumer that is about to wait for the queue says how many items it
    wants. If the buffer holds enough, they are enqueued at once. Otherwise the worker that hands in
    the last one wanted enqueues them, even while all other workers are inside a function or wait
    for the source.

    It holds less than half of what may be in flight, so that there is room for more items. So it
    suits windows that count only items. If everything in flight is here, it is enqueued.

    A worker takes no lock to hand in an item: it appends the item to ``arrivals``. Only when there
    are ``enough`` of them does it call `collect`, which takes the lock.

    Args:
        queue: a queue of whole items (`Delivered`), which nothing else fills, and one consumer
            reads.
        window: counts what is in flight, including the items here.
        progress: counts items that have left. Its lock guards this buffer.
        pace: shows whether items are so fast that it is worth collecting them.
        ordered: whether to keep the order of the source.

    Attributes:
        on_room: called, with the lock held, when there may be room for more items.
        arrivals: items that workers have added, in any order. Only a holder of the lock removes.
        enough: the number of arrivals at which a worker must call `collect`. Below it, nothing
            could be due.
    """

    on_room: Callable[[], None] | None = None

    def __init__(
        self,
        queue: sync.BlockingQueue,
        window: InFlightWindow,
        progress: DeliveryCounter,
        pace: ReadPace,
        *,
        ordered: bool,
    ) -> None:
        self._lock = progress.lock
        self._queue = queue
        self._window = window
        self._progress = progress
        self._pace = pace
        self._is_ordered = ordered
        most = sys.maxsize if queue.capacity is None else queue.capacity // 2
        self._most = min(_MAX_BUFFERED, most)
        self.arrivals: list[Delivered] = []
        self.enough: int = 1
        # Items that are more than one example, by their numbers: how they are to be counted.
        self._uncommon: dict[int, Prepared] = {}
        self._ready: list[Delivered] = []  # the next to enqueue, in order
        self._early: dict[int, Delivered] = {}  # items that wait for an earlier one
        self._next = 0  # the number after the ready ones
        self._is_busy = False  # a worker is enqueuing some
        self._entered = 0  # the total of items that were ever enqueued
        self._taken = 0  # the total of these that were taken out
        self._wanted = 0  # the total that the consumer waits for
        # Without a GIL, a worker could read an old `enough` after its append. So each one collects.
        self._always_collects = is_free_threaded()

    @property
    def early(self) -> int:
        """The number of prepared items that wait for an earlier one. Called under the lock."""
        here = {item[1] for item in self.arrivals} | self._early.keys()
        at = self._next
        while at in here:
            at += 1
        return len(here) - (at - self._next) if self._is_ordered else 0

    # For workers.

    def add(self, prepared: Prepared) -> Sequence[Delivered]:
        """Hand in any item, in the form for delivery.

        Returns:
            The items that the caller must enqueue now, followed by a call of `enqueued`.
        """
        # First this: another worker may deliver, and count, the item as soon as it is appended.
        self._uncommon[prepared.item.number] = prepared
        arrivals = self.arrivals
        arrivals += prepared.examples
        return self.collect() if len(arrivals) >= self.enough else _NONE

    @synchronized
    def collect(self) -> Sequence[Delivered]:
        """Take in the arrivals, when there are `enough`.

        Returns:
            The items that the caller must enqueue now, followed by a call of `enqueued`.
        """
        return self._next_run()

    @synchronized
    def enqueued(self, run: Sequence[Delivered]) -> Sequence[Delivered]:
        """Note that items are in the queue.

        Returns:
            The items that the caller must enqueue next.
        """
        self._count(run)
        # What was added meanwhile was left to this worker, whatever number the consumer wants.
        self._is_busy = False
        return self._next_run()

    @synchronized
    def take_rest(self) -> Sequence[Delivered]:
        """Let a worker end.

        Returns:
            The items that it must enqueue first: all that are here, unless another worker is
            enqueuing some and will continue.
        """
        is_due = self._has_due()  # whatever it returns, all that has arrived is ready now, or early
        return self._take_ready() if is_due or (self._ready and not self._is_busy) else _NONE

    def slow_down(self) -> None:
        """Hold back no more than what is here. Called under the lock, when items are slow."""
        self.enough = 1

    # For the consumer.

    def want(self, n: int) -> None:
        """Announce that the consumer is about to wait for n items in the queue. Does not wait.

        Args:
            n: >= 1, and at most as many as are sure to arrive.
        """
        # Without the lock, for speed. The total may grow meanwhile; then `_want` finds that nothing
        # is due. It never falls, so a consumer that has enough announces nothing.
        wanted = self._taken + n
        if self._entered < wanted:
            self._want(wanted)

    def took(self, n: int) -> None:
        self._taken += n

    @synchronized
    def _want(self, wanted: int) -> None:
        # Under the lock, like `collect`: either this finds the item there, or `collect` finds the
        # number.
        self._wanted = wanted
        if not self._has_due():
            return
        # Nobody else is enqueuing (see `_is_due`), and nobody can begin while the lock is held. So
        # the order is kept.
        n = 0
        try:
            for item in self._ready:
                self._queue.enqueue_nowait(item)
                n += 1
        except (QueueFull, QueueClosedError):
            pass  # there is enough, or the consumer learns of the stop
        run = self._ready[:n]
        del self._ready[:n]
        self._count(run)
        self.enough = self._lacking()

    # All methods below need the lock.

    def _next_run(self) -> Sequence[Delivered]:
        return self._take_ready() if self._has_due() else _NONE

    def _has_due(self) -> bool:
        """Take in the arrivals; return whether the ready items should be enqueued now."""
        while True:
            self._take_in()
            if self._is_due():
                return True
            self.enough = self._lacking()
            # A worker appends without the lock, and then compares with `enough`. One that has done
            # both since `_take_in` has compared with an older and larger number. Nobody would
            # collect its item, so that is done here.
            if len(self.arrivals) < self.enough:
                return False

    def _take_in(self) -> None:
        """Move the arrivals to the ready items, or to the early ones."""
        arrivals, ready, early, at = self.arrivals, self._ready, self._early, self._next
        n = len(arrivals)
        if not self._is_ordered:
            ready += arrivals[:n]
            del arrivals[:n]
            return
        in_order: list[Delivered] = []
        for item in arrivals[:n]:
            if item[1] == at:
                in_order.append(item)
                at += 1
            else:
                early[item[1]] = item
        if early:
            while (following := early.get(at)) is not None:
                in_order.append(following)
                at += 1
            early = {number: item for number, item in early.items() if number >= at}
        # These lines make no call, so no signal handler, which might raise, runs between them: each
        # item is in one place. Until here, the loop could begin again.
        ready += in_order
        self._next, self._early = at, early
        del arrivals[:n]

    def _is_due(self) -> bool:
        """Return whether the ready items should be enqueued now."""
        n = len(self._ready)
        if not n or self._is_busy:
            return False
        # Not before all that the consumer wants is here: it would wake, and wait again.
        if self._entered < self._wanted <= self._entered + n:
            return True
        # Otherwise when it has many, when it would soon hold back the source, or when items are so
        # slow that collecting them does not pay.
        return n >= self._most or 2 * n >= self._window.max_in_flight or not self._pace.is_quick

    def _lacking(self) -> int:
        """Return how many more arrivals may make the ready items due, at the least."""
        if self._always_collects or not self._pace.is_quick:
            return 1
        if self._is_busy:
            return sys.maxsize  # the busy worker takes in what has arrived when it is done
        due = min(self._most, (self._window.max_in_flight + 1) // 2)
        if self._entered < self._wanted:
            due = min(due, self._wanted - self._entered)
        # One arrival may be the one for which all early ones wait.
        return max(1, due - len(self._ready) - len(self._early))

    def _take_ready(self) -> Sequence[Delivered]:
        """Return all ready items, for the worker that enqueues them."""
        self._is_busy = True
        self.enough = self._lacking()
        run, self._ready = self._ready, []
        return run

    def _count(self, run: Sequence[Delivered]) -> None:
        uncommon = self._uncommon
        plain = run
        if uncommon:
            plain = [item for item in run if item[1] not in uncommon]
            for item in run:
                prepared = uncommon.pop(item[1], None)
                if prepared is not None:
                    self._progress.item_delivered(prepared)
        self._progress.plain_items_delivered(plain)
        self._entered += len(run)
        self._window.leave(len(run))
        if self.on_room is not None:
            self.on_room()
