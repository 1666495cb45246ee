"""No more calls begin than a rate allows, overall or for each key, wherever they run."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="times are drawn by hypothesis, which is not installed")

from hypothesis import given
from hypothesis import strategies as st

from aioqueue import InvalidArgumentError, sync
from aioqueue.inputs import AdaptiveRate, Rate, Retry, numbers, per_minute, per_second, prepare
from aioqueue.items.item import Item
from aioqueue.workers import key_limits
from aioqueue.workers.flow_control import Pending
from aioqueue.workers.key_limits import AdaptiveBuckets, Inbox, KeyLimit, TokenBuckets
from tests.kit import functions
from tests.kit.going import results
from tests.kit.preparing import Gate, fitting
from tests.kit.worlds import StillClock, World, spin_until

steps = st.floats(0, 3)
"""Seconds between two requests, in units of the rate."""


class TestBuckets:
    @given(st.floats(0.01, 1000), st.integers(1, 5), st.lists(steps, max_size=40))
    def test_no_more_begin_than_the_burst_and_the_rate_allow(
        self, rate: float, burst: int, pauses: list[float]
    ) -> None:
        buckets = TokenBuckets(per_second(rate), burst)
        now, begun = 0.0, []
        for pause in pauses:
            now += pause / rate
            if buckets.take("key", now):
                begun.append(now)
            else:
                assert buckets.next("key") > now
        for first, since in enumerate(begun):
            for count, until in enumerate(begun[first:], 1):
                assert count <= burst + (until - since) * rate + 1e-6

    @given(st.floats(0.01, 1000), st.integers(1, 5), st.integers(1, 30))
    def test_as_many_begin_as_they_allow(self, rate: float, burst: int, count: int) -> None:
        buckets = TokenBuckets(per_second(rate), burst)
        now = 0.0
        for _ in range(count):
            now = max(now, buckets.next("key"))
            assert buckets.take("key", now)
        assert now <= max(0, count - burst) / rate * (1 + 1e-6)

    def test_keys_are_forgotten(self) -> None:
        buckets = TokenBuckets(per_second(1), 2)
        for second in range(10_000):
            assert buckets.take(second, float(second))
        assert len(buckets._full_at) < 3000


def adapting(**options: Any) -> AdaptiveBuckets:
    rate = AdaptiveRate(per_second(10), on=ConnectionError, recovery=100, **options)
    return AdaptiveBuckets(rate, 3)


def begins(buckets: AdaptiveBuckets, now: float, count: int, key: Hashable = "a") -> list[float]:
    """Return when calls begin if there are always some to begin."""
    begun = []
    for _ in range(count):
        now = max(now, buckets.next(key))
        assert buckets.take(key, now)
        begun.append(round(now, 6))
    return begun


class TestAdaptiveBuckets:
    def test_without_refusals_it_is_the_rate(self) -> None:
        assert begins(adapting(), 5, 5) == [5, 5, 5, 5.1, 5.2]

    def test_a_refusal_halves_the_rate_of_its_key_which_grows_again(self) -> None:
        buckets = adapting()
        assert begins(buckets, 0, 1) == [0]
        buckets.refuse("a", 0, 1, 0)
        found = begins(buckets, 1, 200)
        assert found[0] == 1.2, "no burst follows a refusal"
        intervals = [later - now for now, later in pairwise(found)]
        assert intervals[0] == pytest.approx(0.2, rel=0.01)
        assert intervals == sorted(intervals, reverse=True)
        assert "after refusals" in buckets.describe("a", found[-1])
        assert begins(buckets, 5, 2, "b") == [5, 5], "another key is as fast as ever"
        # By a tenth per second in 100 s: after 50 s it is as before.
        assert buckets.describe("a", 51.1) == ""
        assert begins(buckets, 60, 4) == [60, 60, 60, 60.1]
        assert not buckets._cuts
        assert not buckets._paused

    def test_calls_from_before_the_cut_do_not_cut_again(self) -> None:
        buckets = adapting()
        for _ in range(3):
            buckets.refuse("a", 0.5, 1, 0)
        assert buckets._rate_of("a", 1) == 5
        buckets.refuse("a", 1, 2, 0)
        assert buckets._rate_of("a", 2) == pytest.approx(2.55)

    @given(st.lists(st.floats(0, 5), max_size=60))
    def test_it_stays_between_its_bounds(self, pauses: list[float]) -> None:
        buckets, now = adapting(least=per_second(2)), 0.0
        for pause in pauses:
            now += pause
            buckets.refuse("a", now, now, 0)
            assert buckets.next("a") <= now + 0.5 + 1e-9
        last = begins(buckets, now, 40)
        for one, other in pairwise(last):
            assert 0 <= other - one <= 0.5 + 1e-9

    def test_no_call_begins_while_the_refused_one_waits(self) -> None:
        buckets = adapting()
        buckets.refuse("a", 0, 1, 30)
        assert not buckets.take("a", 30.9)
        assert begins(buckets, 1, 2)[0] == 31
        assert buckets._rate_of("a", 31) == 5, "it does not grow during the pause"

    def test_keys_that_have_recovered_are_forgotten(self) -> None:
        buckets = adapting()
        for second in range(5000):
            assert buckets.take(second, float(second))
            buckets.refuse(second, second, second, 0)
        assert len(buckets._cuts) < 3000


class TestPlaces:
    """`KeyLimit` and `Inbox` by a clock that stands still."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> StillClock:
        clock = StillClock()
        monkeypatch.setattr(key_limits, "monotonic", clock)
        return clock

    def test_the_first_of_a_key_continues_when_its_time_has_come(self, clock: StillClock) -> None:
        limit = KeyLimit(lambda value: value[0], None, TokenBuckets(per_second(2), 1))
        inbox = Inbox(limit)
        pendings = [
            Pending(Item(number, (key, number), 0, number)) for number, key in enumerate("aaaba")
        ]
        admitted = []
        for one in pendings:
            limit.note_key(one)
            admitted.append(inbox.admit(one))
        assert admitted == [True, False, False, True, False]
        assert inbox.is_newly_due()
        assert not inbox.is_newly_due()
        assert inbox.seconds() == 0.5
        assert inbox.take(3) == []
        clock.now += 0.5
        assert inbox.take(3) == [pendings[1]]
        assert inbox.is_newly_due(), "those who sleep learn when the next one may begin"
        late = Pending(Item(9, ("a", 9), 0, 9))
        limit.note_key(late)
        clock.now += 0.5
        assert not inbox.admit(late), "others of its key have come before"
        assert inbox.take(3) == [pendings[2]]
        clock.now += 100
        assert inbox.take(3) == [pendings[4]], "the burst is 1"

    def test_places_and_rates_together(self, clock: StillClock) -> None:
        limit = KeyLimit(lambda value: 0, 1, TokenBuckets(per_second(1), 5))
        pendings = [Pending(Item(number, number, 0, number)) for number in range(3)]
        for one in pendings:
            limit.note_key(one)
        assert [limit.admit(one) for one in pendings] == [True, False, False]
        assert limit.release_place(pendings[0]) is pendings[1]
        assert "all 1 of key 0 are in preparation" in limit.describe_waiting()[0]

    def test_idle_workers_sleep_while_all_places_are_taken(self, clock: StillClock) -> None:
        """The rate gives the second item its place late, and the third one finds none free."""
        limit = KeyLimit(lambda value: 0, 2, TokenBuckets(per_second(1), 1))
        inbox = Inbox(limit)
        pendings = [Pending(Item(number, number, 0, number)) for number in range(3)]
        for one in pendings:
            limit.note_key(one)
        assert [inbox.admit(one) for one in pendings] == [True, False, False]
        clock.now += 10
        assert inbox.take(1) == [pendings[1]]
        assert inbox.take(1) == []
        assert inbox.seconds() is None, "no time helps, only a place"
        assert not inbox.release_place(pendings[0]), "the rate forbids it until its time"
        assert inbox.take(1) == []
        assert inbox.seconds() == 1.0


def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[Hashable, list[float]]:
    """When calls of each key were let begin."""
    begun: dict[Hashable, list[float]] = defaultdict(list)
    take = TokenBuckets.take

    def taken(self: TokenBuckets, key: Hashable, now: float) -> bool:
        is_taken = take(self, key, now)
        if is_taken:
            begun[key].append(now)
        return is_taken

    monkeypatch.setattr(TokenBuckets, "take", taken)
    return begun


def check(begun: list[float], rate: float, burst: int) -> None:
    for first, since in enumerate(begun):
        for count, until in enumerate(begun[first:], 1):
            assert count <= burst + (until - since) * rate + 1e-6


async def doubled_in_a_task(number: int) -> int:
    return 2 * number


class TestRuns:
    @pytest.mark.slow(but="thread")
    @pytest.mark.parametrize("where", ["thread", "task", "process"])
    def test_all_items_come_in_order(self, where: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        begun = recorded(monkeypatch)
        function: Any = doubled_in_a_task if where == "task" else functions.double
        pipeline = numbers(60).prepare(
            function, workers=3, where=where, rate=per_second(400), burst=7
        )
        with pipeline.epochs(2) as epochs:
            found = [list(epoch) for epoch in epochs]
        assert found == [[2 * number for number in range(60)]] * 2
        assert len(begun[None]) == 120, "the end of an epoch is no call"
        check(begun[None], 400, 7)

    async def test_each_key_has_its_own(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun = recorded(monkeypatch)
        pipeline = numbers(60).prepare(
            functions.double,
            workers=2,
            rate=per_second(500),
            concurrency_key=lambda number: number % 3,
            max_per_key=1,
        )
        assert await results(world, pipeline) == [2 * number for number in range(60)]
        assert {key: len(times) for key, times in begun.items()} == {0: 20, 1: 20, 2: 20}
        for times in begun.values():
            check(times, 500, 1)

    def test_a_retry_is_a_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        begun = recorded(monkeypatch)
        seen: set[int] = set()

        def second_time(number: int) -> int:
            if number not in seen:
                seen.add(number)
                raise ValueError("the first time")
            return number

        found = numbers(20).prepare(
            second_time, rate=per_second(1000), on_error=Retry(1, backoff=0)
        )
        assert list(found) == list(range(20))
        assert len(begun[None]) == 40

    @pytest.mark.slow(but="thread")
    @pytest.mark.parametrize("where", ["thread", "task", "process"])
    @pytest.mark.parametrize("timed", [None, 100])
    def test_refusals_are_counted_and_slow_down(self, where: Any, timed: float | None) -> None:
        queue = sync.FIFOQueue(30)
        function = functions.refuse_even
        runner = prepare(
            range(9),
            function if where == "process" else fitting(function, where),
            into=queue,
            where=where,
            rate=AdaptiveRate(per_second(10_000), on=ValueError, least=per_second(5000)),
            on_error=Retry(1, backoff=0.001, then="skip"),
            item_timeout=timed,
        )
        with sync.Coordinator() as coord:
            coord.start(runner)
            assert sorted(queue) == [1, 3, 5, 7]
        counts = runner.statistics()
        assert (counts.refused, counts.retried, counts.skipped) == (10, 5, 5)

    def test_what_is_no_refusal(self) -> None:
        queue = sync.FIFOQueue(30)
        runner = prepare(
            range(3),
            functions.refuse_even,
            into=queue,
            rate=AdaptiveRate(per_second(10_000), on=lambda error: "3" in str(error)),
            on_error="skip",
        )
        with sync.Coordinator() as coord:
            coord.start(runner)
            assert list(queue) == [1]
        assert runner.statistics().refused == 0

    def test_what_the_question_raises_is_reported(self) -> None:
        def broken(error: Exception) -> bool:
            raise LookupError("no status")

        rate = AdaptiveRate(per_second(10_000), on=broken)
        with pytest.raises(ExceptionGroup) as caught:
            list(numbers(3).prepare(functions.refuse_even, rate=rate, on_error="skip"))
        assert caught.group_contains(LookupError, match="no status")

    @pytest.mark.slow
    @pytest.mark.parametrize("where", ["thread", "task"])
    def test_a_place_released_before_its_time_wakes_a_sleeping_worker(self, where: Any) -> None:
        """The one that has given it back may be busy with its example for long."""
        gate, more, queue = Gate(0, 1), sync.FIFOQueue(2), sync.FIFOQueue(1)
        more.enqueue_many([0, 1])
        queue.enqueue(9)
        with sync.Coordinator() as coord:
            runner = prepare(
                more,
                fitting(gate, where),
                into=queue,
                workers=2,
                rate=per_second(4),
                concurrency_key=lambda number: 0,
                max_per_key=1,
            )
            coord.start(runner)
            spin_until(lambda: gate.came == [0] and "1 item put aside" in str(coord.explain()))
            gate.opened.set()  # a quarter of a second before the next one may begin
            spin_until(lambda: gate.came == [0, 1])
            assert queue.size() == 1
            more.close()
            assert list(queue) == [9, 0, 1]

    @pytest.mark.parametrize("workers", [1, 3])
    def test_leaving_does_not_wait_for_it(self, workers: int) -> None:
        pipeline = numbers(50).prepare(abs, workers=workers, rate=per_minute(0.01))
        with pipeline.epochs(1) as epochs:
            assert next(next(epochs)) == 0
        assert not [one for one in threading.enumerate() if one.name.startswith("aioqueue-abs")]

    def test_an_explanation_names_what_waits_for_the_rate(self) -> None:
        pipeline = numbers(50).prepare(abs, workers=1, rate=per_minute(0.01))
        with pipeline.epochs(1) as epochs:
            assert next(next(epochs)) == 0
            spin_until(lambda: "rate: the next one may begin later" in str(epochs.explain()))


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"rate": 100}, r"rate: got 100; expected per_second\(100\)"),
            ({"burst": 3}, "burst: got 3 without rate"),
            ({"rate": per_second(1), "burst": 0}, "burst: got 0"),
            ({"concurrency_key": abs}, "given without max_per_key"),
        ],
    )
    def test_of_prepare(self, options: dict[str, Any], why: str) -> None:
        with pytest.raises(InvalidArgumentError, match=why):
            numbers(3).prepare(abs, **options)

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"most": 9}, r"most: got 9; expected per_second\(100\)"),
            ({"on": "429"}, "on: got '429'; expected an exception class"),
            ({"least": per_second(11)}, r"least: got per_second\(11\); expected a rate of at most"),
            ({"least": 1}, "least: got 1"),
            ({"cut": 1}, r"cut: got 1; expected a number in \(0, 1\)"),
            ({"cut": 0}, "cut: got 0"),
            ({"recovery": 0}, "recovery: got 0"),
        ],
    )
    def test_of_adaptive_rates(self, options: dict[str, Any], why: str) -> None:
        with pytest.raises(InvalidArgumentError, match=f"^{why}"):
            AdaptiveRate(**{"most": per_second(10), "on": OSError, **options})

    def test_of_rates(self) -> None:
        assert per_minute(30) == Rate(30, 60.0)
        for count in (0, -1, float("nan"), float("inf"), "3", True):
            with pytest.raises(InvalidArgumentError, match="count: got"):
                per_second(count)  # type: ignore[arg-type]
