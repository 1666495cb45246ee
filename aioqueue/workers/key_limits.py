"""How many items of one key are prepared at a time (`KeyLimit`), and how often (`TokenBuckets`).

`Inbox` holds the items that wait for a worker: ready ones, those to retry later, and those that
wait for their key.

A key is a host, say, or a file. Rates follow the generic cell rate algorithm (ITU-T I.371, in the
form of virtual scheduling): for each key it keeps one time, at which all of its burst is there
again. So a key costs a number, and one that was not used for a while costs nothing.
"""

from __future__ import annotations

import heapq
import reprlib
from collections import deque
from collections.abc import Callable, Hashable
from math import inf
from operator import itemgetter
from time import monotonic, perf_counter
from typing import Any, Final

from aioqueue.base.arguments import Answers
from aioqueue.coordination.classify import as_failure
from aioqueue.core.meters import current_meter
from aioqueue.errors import counted, describe_exception
from aioqueue.items.item import EpochEnd
from aioqueue.workers.flow_control import Pending
from aioqueue.workers.rates import AdaptiveRate, Rate

_KEYS_BEFORE_CLEANUP: Final = 1024
"""With so many keys it is not yet worth looking for those that can be forgotten."""


class KeyLimit:
    """Gives items their key's places, and puts aside items that find none free.

    A place may have to wait for a rate, too. A freed place goes to the item of that key that was
    put aside first, before any later item. So keys do not starve each other, and items of one key
    keep their order. A key without items takes no memory. Not thread-safe, except for `note_key`
    and the methods that report its state.

    Args:
        key_of: returns the key of an item's value; ``None``: all items have one key.
        max_per_key: the number of items of one key that may have a place at the same time;
            ``None`` for any.
        rate: how often items of one key may get a place; ``None`` for any.
    """

    def __init__(
        self,
        key_of: Callable[[Any], Hashable] | None,
        max_per_key: int | None,
        rate: TokenBuckets | None = None,
    ) -> None:
        self._key_of: Callable[[Any], Hashable] = key_of or _one_key
        self._answers = Answers("concurrency_key", self._key_of, "have it return the key itself")
        self.max_per_key = max_per_key
        self._most: float = inf if max_per_key is None else max_per_key
        self._rate = rate
        self.now: Callable[[], float] = monotonic
        """The clock of the workers, which only they may read."""
        self._asked_at = 0.0  # when an item was last given a place, or refused one by its rate
        self._inside: dict[Hashable, int] = {}
        self._aside: dict[Hashable, deque[Pending]] = {}
        self._due: dict[Hashable, float] = {}  # when keys may have a place again, by their rate
        self.is_newly_due: bool = False
        """Whether idle workers must look again how long they may sleep."""
        self._waiting = 0  # idle workers
        self._short = (0.0, 0.0)  # seconds in which one was idle while items waited; since, or 0

    def note_key(self, pending: Pending) -> None:
        """Call the key function for an item whose key is unknown.

        Raises:
            BaseException: what the function raised.
            TypeError: the key is not hashable, or is an awaitable.
        """
        if not pending.has_key:
            value = pending.item.value
            began = perf_counter()
            key = None if isinstance(value, EpochEnd) else self._key_of(value)
            meter = current_meter.get()
            if meter is not None:
                meter.key_computed(perf_counter() - began)
            self._answers.check(key)
            hash(key)
            pending.key = key

    def admit(self, pending: Pending) -> bool:
        """Give an item a place and return ``True``; or put it aside, if none is free."""
        if pending.has_place:
            return True  # `due` or `release_place` has given it one
        key = pending.key
        # Items that were put aside go first, even if there is a place by now.
        if key not in self._aside and self._has_place_for(pending):
            return True
        self._aside.setdefault(key, deque()).append(pending)
        self._update_shortage()
        return False

    def due(self, most: int) -> list[Pending]:
        """Return items that were put aside and whose rates give them a place now."""
        found: list[Pending] = []
        now = self.now() if self._due else 0.0
        for key in [key for key, at in self._due.items() if at <= now]:
            del self._due[key]
            while len(found) < most and (next_pending := self._admit_next(key)) is not None:
                found.append(next_pending)
            # If the loop has ended because this worker has enough, another one may get the next
            # item now. If the rate has refused the next item, `_has_place_for` has noted a new
            # time. If all places are taken, no time helps: `release_place` continues. (A time that
            # has come would keep idle workers awake until then.)
            if len(found) >= most and key in self._aside and key not in self._due:
                self._due[key] = now
                self.is_newly_due = True
        return found

    def seconds(self) -> float | None:
        """Return the seconds until `due` may have an item; ``None`` if only a place can help."""
        return max(0.0, min(self._due.values()) - self.now()) if self._due else None

    def _has_place_for(self, pending: Pending) -> bool:
        """Give an item a place if there is one; if only the rate forbids it, note until when."""
        key = pending.key
        inside = self._inside.get(key, 0)
        if inside >= self._most:
            return False
        rate = self._rate
        if isinstance(pending.item.value, EpochEnd):
            rate = None  # the end of an epoch calls no function
        if rate is not None:
            now = self._asked_at = self.now()
            if not rate.take(key, now):
                self._due[key] = rate.next(key)
                self.is_newly_due = True
                return False
            pending.placed_at = now
        self._inside[key] = inside + 1
        pending.has_place = True
        return True

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether a failure is a refusal, to which the rate adapts.

        Raises:
            BaseException: what the function ``on`` of the `AdaptiveRate` raised.
        """
        rate = self._rate
        if not (isinstance(rate, AdaptiveBuckets) and isinstance(error, Exception)):
            return False
        try:
            return rate.options.is_refusal(error)
        except BaseException as raised:  # nothing is awaited here, so no task was cancelled
            raise as_failure(raised, f"on raised {describe_exception(raised)}")  # noqa: B904

    def call_refused(self, pending: Pending, delay: float | None) -> None:
        """Slow down an item's key, whose call was refused.

        Args:
            pending: the item, which still has its place.
            delay: the seconds after which it is to be retried; ``None``: it is not.
        """
        assert isinstance(self._rate, AdaptiveBuckets)
        key = pending.key
        self._rate.refuse(key, pending.placed_at, self.now(), delay or 0.0)
        # Items that are put aside may have a time from before the refusal.
        if key in self._due:
            self._due[key] = self._rate.next(key)
            self.is_newly_due = True

    def _admit_next(self, key: Hashable) -> Pending | None:
        """Admit and return the first waiting item of a key, if it can have a place now."""
        aside = self._aside.get(key)
        if aside is None or not self._has_place_for(aside[0]):
            return None
        next_pending = aside.popleft()
        if not aside:
            del self._aside[key]
            self._update_shortage()
        return next_pending

    def describe_waiting(self) -> list[str]:
        """Return the keys that have items waiting for a place, in words."""
        return [self._describe(key, len(aside)) for key, aside in list(self._aside.items())]

    def _describe(self, key: Hashable, aside: int) -> str:
        items = f"{counted(aside, 'item')} put aside"
        if key in self._due:
            of = "" if self._key_of is _one_key else f" of key {key!r}"
            slowed = "" if self._rate is None else self._rate.describe(key, self._asked_at)
            return f"rate: the next one{of} may begin later{slowed}, {items}"
        return f"concurrency_key: all {self.max_per_key} of key {key!r} are in preparation, {items}"

    def count_idle(self, more: int) -> None:
        """Note that more workers are idle, or fewer if negative."""
        self._waiting += more
        self._update_shortage()

    def _update_shortage(self) -> None:
        """Start or stop counting the time in which a worker is idle while items are put aside."""
        is_short = bool(self._waiting and self._aside)
        seconds, since = self._short
        if is_short != bool(since):
            now = perf_counter()
            self._short = (seconds, now) if is_short else (seconds + now - since, 0.0)

    def seconds_short(self, now: float) -> float:
        """Return the seconds in which a worker was idle while items were put aside, until now."""
        seconds, since = self._short
        return seconds + (max(0.0, now - since) if since else 0.0)

    def fullest(self) -> str | None:
        """Return the key with the most items put aside, abbreviated; ``None`` without any."""
        aside = [(len(pendings), key) for key, pendings in list(self._aside.items())]
        return reprlib.repr(max(aside, key=itemgetter(0))[1]) if aside else None

    def release_place(self, pending: Pending) -> Pending | None:
        """Free the place of an item, if it had one.

        Returns:
            The item that was put aside before and gets the place now.
        """
        if not pending.has_place:
            return None
        pending.has_place = False
        key = pending.key
        inside = self._inside.pop(key) - 1
        if inside:
            self._inside[key] = inside
        # The rate still forbids the next item of this key: `due` gives it the place in time.
        return None if key in self._due else self._admit_next(key)


def _one_key(value: Any) -> Hashable:
    return None


class TokenBuckets:
    """Decides whether a call of a key may begin now. Not thread-safe.

    In any t seconds, at most ``burst + t * rate`` calls of one key begin.

    Args:
        rate: of each key.
        burst: how many calls may begin at once after a pause, >= 1.
    """

    def __init__(self, rate: Rate, burst: int) -> None:
        self.rate: Rate = rate
        self._each = rate.seconds / rate.count
        self._tolerance = (burst - 1) * self._each
        self._full_at: dict[Hashable, float] = {}  # when all of its burst is there again
        self._most = _KEYS_BEFORE_CLEANUP

    def take(self, key: Hashable, now: float) -> bool:
        """Begin a call, if that is allowed now."""
        full_at = self._full_at.get(key, now)
        if full_at - self._tolerance > now:
            return False
        # Each call moves the time at which all of the burst is there again by one interval.
        self._full_at[key] = max(full_at, now) + self._each
        if len(self._full_at) > self._most:
            self._forget(now)
        return True

    def next(self, key: Hashable) -> float:
        """Return when the next call of a key may begin; a time in the past means now."""
        return self._full_at.get(key, -inf) - self._tolerance

    def describe(self, key: Hashable, now: float) -> str:
        """Return in words how far the rate of a key is below the given one, if it is."""
        return ""

    def _forget(self, now: float) -> None:
        """Forget the keys whose buckets are full again: they are as if never used."""
        self._full_at = {key: at for key, at in self._full_at.items() if at > now}
        # Only when there are twice as many again, so that the cost per call stays constant.
        self._most = max(_KEYS_BEFORE_CLEANUP, 2 * len(self._full_at))


class AdaptiveBuckets(TokenBuckets):
    """The same, with rates that give way to refusals. Not thread-safe.

    The rate of a key grows with the time alone, so no call has to report that it went well, and a
    key that was not used recovers, too.

    Args:
        options: the rates.
        burst: how many calls may begin at once after a pause, >= 1. After a refusal none may,
            until the rate has recovered.
    """

    def __init__(self, options: AdaptiveRate, burst: int) -> None:
        super().__init__(options.most, burst)
        self.options: AdaptiveRate = options
        self._highest = 1 / options.most.interval
        self._lowest = self._highest / 100 if options.least is None else 1 / options.least.interval
        # For each key that has not recovered: calls per second after the last cut, and when that
        # was; and the time before which no call begins.
        self._cuts: dict[Hashable, tuple[float, float]] = {}
        self._paused: dict[Hashable, float] = {}

    def take(self, key: Hashable, now: float) -> bool:
        """Begin a call, if that is allowed now."""
        if not self._cuts:
            return super().take(key, now)
        if self._paused.get(key, -inf) > now:
            return False
        rate = self._rate_of(key, now)
        if rate is None:
            return super().take(key, now)
        full_at = self._full_at.get(key, now)
        if full_at > now:
            return False
        self._full_at[key] = now + 1 / rate
        return True

    def next(self, key: Hashable) -> float:
        """Return when the next call of a key may begin; a time in the past means now."""
        if key not in self._cuts:
            return super().next(key)
        return max(self._full_at.get(key, -inf), self._paused.get(key, -inf))

    def refuse(self, key: Hashable, began: float, now: float, delay: float) -> None:
        """Note that a call was refused.

        Args:
            key: its key.
            began: when the call began.
            now: the time.
            delay: the seconds for which no call of this key is to begin.
        """
        cut = self._cuts.get(key)
        # Several calls were under way. One cut answers them all: those that began before it would
        # not have been refused at the new rate. (In TCP: one cut for each round trip.)
        if cut is None or began >= cut[1]:
            rate = self._rate_of(key, now) or self._highest
            self._cuts[key] = (max(rate * self.options.cut, self._lowest), now)
        self._paused[key] = max(self._paused.get(key, -inf), now + delay)
        # A burst that was saved up must not follow; the next call has the interval of the new rate.
        self._full_at[key] = max(self._full_at.get(key, now), now + 1 / self._cuts[key][0])

    def describe(self, key: Hashable, now: float) -> str:
        """Return in words how far the rate of a key is below the given one, if it is."""
        rate = self._rate_of(key, now)
        return "" if rate is None else f" (after refusals {rate:.3g} per second)"

    def _rate_of(self, key: Hashable, now: float) -> float | None:
        """Return the calls per second of a key; ``None``: it has recovered, or was never cut."""
        cut = self._cuts.get(key)
        if cut is None:
            return None
        rate, since = cut
        # While it is paused, nothing shows that the server would accept more.
        seconds = max(0.0, now - max(since, self._paused.get(key, since)))
        rate += seconds / self.options.recovery * self._highest
        if rate < self._highest:
            return rate
        self._cuts.pop(key, None)
        self._paused.pop(key, None)
        return None

    def _forget(self, now: float) -> None:
        for key in list(self._cuts):
            self._rate_of(key, now)
        super()._forget(now)


class Inbox:
    """Items between the source and the workers. Not thread-safe.

    Args:
        limit: the key limit; ``None`` for no limit.
    """

    def __init__(self, limit: KeyLimit | None = None) -> None:
        self._limit = limit
        self._now: Callable[[], float] = monotonic
        self._ready: deque[Pending] = deque()
        self._later: list[tuple[float, int, Pending]] = []  # a heap of (when, number, item)

    def set_clock(self, clock: Callable[[], float]) -> None:
        """Measure times by another clock from now on: that of an event loop."""
        self._now = clock
        if self._limit is not None:
            self._limit.now = clock

    def put(self, pending: Pending) -> None:
        self._ready.append(pending)

    def put_back(self, pendings: list[Pending]) -> None:
        """Add items that were sent out before; they go first."""
        self._ready.extendleft(reversed(pendings))

    def put_off(self, pending: Pending, seconds: float) -> None:
        """Add an item that is to be retried after some time."""
        heapq.heappush(self._later, (self._now() + seconds, pending.item.number, pending))

    def take(self, n: int) -> list[Pending]:
        """Return up to n items; due retries go first."""
        now = self._now()
        if self._limit is not None:
            self._ready.extendleft(reversed(self._limit.due(n)))
        pendings: list[Pending] = []
        while self._later and self._later[0][0] <= now and len(pendings) < n:
            pendings.append(heapq.heappop(self._later)[2])
        while self._ready and len(pendings) < n:
            pendings.append(self._ready.popleft())
        return pendings

    def seconds(self) -> float | None:
        """Return the seconds until the next retry, or the next item by a rate; ``None`` if no item
        waits for a time."""
        due = None if self._limit is None else self._limit.seconds()
        if not self._later:
            return due
        later = max(0.0, self._later[0][0] - self._now())
        return later if due is None else min(later, due)

    def is_newly_due(self) -> bool:
        """Return once whether idle workers must compute again how long they may sleep."""
        limit = self._limit
        if limit is None or not limit.is_newly_due:
            return False
        limit.is_newly_due = False
        return True

    def share(self, workers: int) -> int:
        """Return how many of the ready items each worker can have."""
        return -(-len(self._ready) // workers)

    def admit(self, pending: Pending) -> bool:
        """Return whether an item may be prepared now; otherwise put it aside."""
        return self._limit is None or self._limit.admit(pending)

    def release_place(self, pending: Pending) -> bool:
        """Free an item's place; return whether another item gets it; that one goes first."""
        next_pending = None if self._limit is None else self._limit.release_place(pending)
        if next_pending is None:
            return False
        self._ready.appendleft(next_pending)
        return True
