"""How threads deliver items of one example: in their order, and with few passes of the lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from aioqueue import QueueClosedError, sync
from aioqueue.inputs import numbers, prepare
from aioqueue.items.item import Prepared
from aioqueue.workers import retries
from aioqueue.workers.executors.worker_threads import OrderedDelivery
from aioqueue.workers.flow_control import InFlightWindow, ReadPace, Tally
from aioqueue.workers.job import NothingMore
from tests.kit.alone import Made
from tests.kit.preparing import drained


class Turn:
    """The turn of an `OrderedDelivery`; a test may have another worker run before its release."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.before_release: Callable[[], object] | None = None

    def acquire(self, blocking: bool) -> bool:
        assert not blocking
        return self.lock.acquire(blocking)

    def release(self) -> None:
        act, self.before_release = self.before_release, None
        if act is not None:
            act()
        self.lock.release()


class OrderedSetup:
    """An `OrderedDelivery` with a queue of nine places."""

    def __init__(self) -> None:
        self.made = Made(ordered=True)
        self.delivery = OrderedDelivery(self.made.job)
        self.turn = Turn()
        self.delivery._turn = self.turn  # type: ignore[assignment]
        self.tally = self.made.job.tally()

    def hand_in(self, *numbers: int) -> None:
        for number in numbers:
            self.delivery.deliver_single(self.made.taken(number), number, self.tally)

    def out(self) -> list[int]:
        return [self.made.queue.dequeue_nowait() for _ in range(self.made.queue.size())]


class TestInOrder:
    def test_an_early_item_waits_for_those_before(self) -> None:
        setup = OrderedSetup()
        setup.hand_in(2, 1)
        assert setup.out() == []
        assert setup.made.job.waiting_in_order() == 2
        setup.hand_in(0)
        assert setup.out() == [0, 1, 2]
        assert setup.made.job.waiting_in_order() == 0

    def test_a_result_that_arrives_after_the_last_check_follows(self) -> None:
        """Another worker finds the turn taken, and leaves its item to the one that has it."""
        setup = OrderedSetup()
        setup.turn.before_release = lambda: setup.hand_in(1)
        setup.hand_in(0)
        assert setup.out() == [0, 1]

    def test_items_of_any_kind_follow_each_other(self) -> None:
        setup = OrderedSetup()
        setup.delivery.deliver(Prepared(setup.made.taken(1), (10, 11)))
        setup.hand_in(2)
        setup.delivery.deliver(Prepared(setup.made.taken(3), is_skipped=True))
        setup.hand_in(4, 0)
        assert setup.out() == [0, 10, 11, 2, 4]
        with setup.tally:
            statistics = setup.made.progress.statistics()
        assert (statistics.examples, statistics.prepared, statistics.in_flight) == (5, 4, 0)

    def test_single_examples_that_another_kind_has_waited_for_are_counted(self) -> None:
        setup = OrderedSetup()
        setup.hand_in(1)
        setup.delivery.deliver(Prepared(setup.made.taken(0), ()))
        assert setup.out() == [1]
        statistics = setup.made.progress.statistics()
        assert (statistics.prepared, statistics.left_out, statistics.in_flight) == (1, 1, 0)

    def test_nothing_follows_after_a_worker_has_ended_by_it(self) -> None:
        setup = OrderedSetup()
        setup.hand_in(1)
        setup.made.queue.close()
        with pytest.raises(NothingMore):
            setup.hand_in(0)
        setup.hand_in(2)  # the turn stays taken
        assert setup.out() == []
        with pytest.raises(QueueClosedError):
            setup.made.queue.enqueue_nowait(0)


class TestRoomWithoutTheLock:
    def test_as_much_as_there_is(self) -> None:
        window = InFlightWindow(5, None, at_once=2)
        window.enter()
        window.enter()
        window.grant()
        assert window.may_come - window.came == 3
        window.came += 3
        assert window.items == 5
        assert not window.has_room()

    @pytest.mark.parametrize("limit", ["bytes", "quota"])
    def test_none_where_more_than_the_number_counts(self, limit: str) -> None:
        window = InFlightWindow(5, 100 if limit == "bytes" else None, at_once=2)
        if limit == "quota":
            window.quota = SimpleNamespace(remaining=3)  # type: ignore[assignment]
        window.grant()
        assert window.may_come == window.came == 0

    def test_none_after_a_change_of_the_number(self) -> None:
        window = InFlightWindow(5, None, at_once=2)
        window.grant()
        window.came += 1
        window.resize(3, at_once=1)
        assert window.may_come <= window.came

    def test_what_has_left_counts(self) -> None:
        window = InFlightWindow(3, None, at_once=1)
        window.grant()
        window.came += 3
        with Tally(threading.RLock(), window) as tally:
            tally.count = 2
            window.grant()
            assert window.may_come - window.came == 2


class CountingLock:
    """A lock that counts how often it is taken."""

    taken = 0

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        CountingLock.taken += 1
        return self._lock.acquire(blocking, timeout)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


ITEMS = 960


def _pipeline(**options: Any) -> list[int]:
    batches = numbers(ITEMS, seed=0).prepare(int, where="thread", **options).batch(32)
    return [int(value) for batch in batches for value in batch]


def _into_queue(source: Callable[[], Any], **options: Any) -> list[int]:
    queue = sync.FIFOQueue(ITEMS)
    return drained(queue, prepare(source(), int, into=queue, where="thread", **options))


class TestLocks:
    @pytest.mark.parametrize("workers", [1, 8])
    @pytest.mark.parametrize(
        "run",
        [
            pytest.param(_pipeline, id="pipeline"),
            pytest.param(lambda **o: _into_queue(lambda: range(ITEMS), **o), id="read together"),
            pytest.param(lambda **o: _into_queue(lambda: iter(range(ITEMS)), **o), id="one by one"),
        ],
    )
    @pytest.mark.parametrize("ordered", [True, False])
    def test_an_item_of_a_quick_function_rarely_takes_the_lock(
        self,
        run: Callable[..., Iterable[int]],
        workers: int,
        ordered: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(ReadPace, "next", lambda pace, seconds: 16)
        monkeypatch.setattr(ReadPace, "is_quick", True)
        monkeypatch.setattr(retries, "threading", SimpleNamespace(RLock=CountingLock))
        monkeypatch.setattr(CountingLock, "taken", 0)
        found = run(workers=workers, ordered=ordered, max_in_flight=64)
        assert sorted(found) == [*range(ITEMS)]
        if ordered:
            assert found == [*range(ITEMS)]
        assert CountingLock.taken < ITEMS / 2
