"""No more is read than was asked for, of what cannot be read again; and what was goes back."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

import aioqueue
from aioqueue import OutOfRangeError, sync
from aioqueue.inputs import from_iterable, items, numbers, prepare
from aioqueue.items.quota import ItemQuota
from tests.kit.going import Counting
from tests.kit.taking import flat_numbers, kept_upto, random_chain, same, same_async
from tests.kit.worlds import spin_until

ENOUGH = 400


class Counted:
    """An iterator of numbers that counts what was asked of it."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(ENOUGH):
            self.read += 1
            yield number


async def all_of(pipeline: Any) -> list[Any]:
    return [one async for one in pipeline]


def through(pipeline: Any, is_async: bool) -> list[Any]:
    return asyncio.run(all_of(pipeline)) if is_async else list(pipeline)


def check_bound(seed: int) -> None:
    """One random pipeline, of which some elements are taken."""
    draw = Random(seed)
    kind = draw.choice(("exact", "exact", "left out", "flat"))
    chain = random_chain(draw, leaves_out=kind == "left out", with_flat=kind == "flat")
    count, is_async = draw.randint(0, 9), draw.random() < 0.4
    source = Counted()
    found = through(chain.apply(from_iterable(iter(source), seed=1)).take(count), is_async)
    reported = f"seed {seed}: {', '.join(chain.described)}, take {count}, async {is_async}"
    taken_before = next((one for one in chain.described if one.startswith("take")), None)
    assert len(found) == count or taken_before, reported
    if len(found) < count:
        return
    needed = kept_upto(chain, chain.needs(count))
    if chain.is_exact:
        assert source.read == needed, reported
    else:
        assert source.read <= needed, reported


@pytest.mark.parametrize("seed", range(40))
def test_no_more_is_read_than_a_take_asks_for(seed: int) -> None:
    check_bound(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_no_more_is_read_than_a_take_asks_for_in_many_pipelines(part: int) -> None:
    for seed in range(1000 + 150 * part, 1150 + 150 * part):
        check_bound(seed)


@pytest.mark.parametrize("where", ["thread", "process"])
def test_functions_of_all_executors_get_no_more(where: Any, nothing_is_left: None) -> None:
    source = Counted()
    pipeline = from_iterable(iter(source)).prepare(same, workers=2, where=where)
    assert list(pipeline.take(5)) == [0, 1, 2, 3, 4]
    assert source.read == 5


def test_each_epoch_has_a_take_of_its_own() -> None:
    source = Counted()
    pipeline = from_iterable(lambda: iter(source)).prepare(same, workers=3).batch(2).take(3)
    assert [len(list(epoch)) for epoch in pipeline.epochs(3)] == [3, 3, 3]
    assert source.read == 18


def test_a_resumed_take_reads_no_more() -> None:
    source = Counted()
    pipeline = from_iterable(lambda: iter(source), replay=True).prepare(same).take(6)
    with pipeline.epochs(1) as epochs:
        run = next(epochs)
        assert [next(run), next(run)] == [0, 1]
        state = epochs.state_dict()
    source.read = 0
    assert list(pipeline.resume(state)) == [2, 3, 4, 5]
    assert source.read == 6  # two of them are read again


def test_later_pipelines_of_a_concat_wait_for_their_turn() -> None:
    source = Counted()
    later = from_iterable(iter(source)).prepare(same)
    assert list(numbers(3).concat(later).take(3)) == [0, 1, 2]
    assert source.read == 0


KINDS: dict[str, Callable[[], Any]] = {
    "fifo": lambda: sync.FIFOQueue(100),
    "typed": lambda: sync.FIFOQueue(100, ["int64"], [()]),
    "padding": lambda: sync.PaddingFIFOQueue(100, ["int64"], [()]),
    "priority": lambda: sync.PriorityQueue(100),
    "shuffle": lambda: sync.RandomShuffleQueue(100, 0, seed=3),
    "bytes": lambda: sync.FIFOQueue(100, max_bytes=10**6),
}


def number_of(value: Any) -> int:
    return int(value[0] if isinstance(value, tuple) else value)


def bad(value: Any) -> Any:
    if flat_numbers(value)[-1] >= 9:
        raise ValueError("bad")
    return value


def check_conserved(seed: int) -> None:
    """One random pipeline over a queue, left in one of all ways at a random moment."""
    draw = Random(seed)
    chain = random_chain(draw, leaves_out=draw.random() < 0.3)
    kind, size = draw.choice(list(KINDS)), draw.randint(5, 40)
    queue: Any = KINDS[kind]()
    for number in range(size):
        queue.enqueue((number, number) if kind == "priority" else number)
    is_closed = draw.random() < 0.5
    if is_closed:
        queue.close()
    end = draw.choice(("take", "break", "failure", "stop", "drop", "end"))
    count, is_async = draw.randint(0, 5), draw.random() < 0.4
    given = queue.aio if draw.random() < 0.5 else queue
    source = from_iterable(given, seed=1)
    pipeline: Any = source.prepare(number_of, workers=2) if kind == "priority" else source
    if end == "failure":
        pipeline = pipeline.prepare(bad, workers=2)
    pipeline = chain.apply(pipeline)
    if end == "take":
        pipeline = pipeline.take(count)
    elif end == "end" or end == "failure":
        queue.close()
        count = ENOUGH
    label = (
        f"seed {seed}: {kind} of {size}, {', '.join(chain.described)}, {end} {count}, {is_async}"
    )
    # Of a shuffle, each that was taken may be one that is left out, but for the first third.
    needed = 3 * chain.needs(count + 1) + 3 if chain.dropped(1) else chain.needs(count + 1)
    if not queue.is_closed() and needed >= size // 3:
        queue.close()  # otherwise it would wait for more
    queue_left = go(pipeline, end, count, is_async)
    handed = [one for value in queue_left for one in flat_numbers(value)]
    machine = queue._core.machine
    spin_until(lambda: not machine._granted)
    queue.close()
    rest = [number_of(queue.dequeue()) for _ in range(queue.size())]
    statistics = queue.statistics()
    assert statistics.dequeued == statistics.enqueued, label
    if kind != "shuffle":
        assert rest == sorted(rest), label
    is_in = {*handed, *rest}
    missing = [one for one in range(size) if one not in is_in and not chain.dropped(one)]
    gaps = [one for one in chain.described if one.startswith("skip") or has_gaps(one)]
    assert not missing or gaps, f"{label}: {missing}"
    overlapping = any(one.startswith("window") for one in chain.described)
    assert not {*handed} & {*rest}, label
    if not overlapping:
        assert len({*handed}) == len(handed), label


def has_gaps(stage: str) -> bool:
    """Whether it is a window that leaves rows out: those between it and the next one."""
    kind, *numbers = stage.split()
    return kind == "window" and int(numbers[0]) < int(numbers[1])


def go(pipeline: Any, end: str, count: int, is_async: bool) -> list[Any]:
    found: list[Any] = []

    async def go_async() -> None:
        async with pipeline.epochs(1) as epochs:
            async for value in await anext(epochs):
                found.append(value)
                if end in ("break", "stop", "drop") and len(found) > count:
                    break

    try:
        if is_async:
            asyncio.run(go_async())
            return found
        if end == "stop":
            with pipeline.epochs(1) as epochs:
                for value in next(epochs):
                    found.append(value)
                    if len(found) > count:
                        break
            return found
        for value in pipeline:
            found.append(value)
            if end in ("break", "drop") and len(found) > count:
                break
        if end == "drop":
            gc.collect()
    except ExceptionGroup as group:
        assert group.subgroup(ValueError) is not None
    return found


@pytest.mark.parametrize("seed", range(40))
def test_what_was_not_delivered_is_in_the_queue(seed: int) -> None:
    check_conserved(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_what_was_not_delivered_is_in_the_queue_of_many_pipelines(part: int) -> None:
    for seed in range(1000 + 100 * part, 1100 + 100 * part):
        check_conserved(seed)


def filled(size: int) -> Any:
    queue = sync.FIFOQueue(100)
    queue.enqueue_many(list(range(size)))
    return queue


def rest_of(queue: Any) -> list[Any]:
    queue.close()
    return [queue.dequeue() for _ in range(queue.size())]


class TestQueues:
    def test_a_take_that_has_ended_gives_nothing_back_that_is_on_its_way(self) -> None:
        queue, found = filled(20), []
        for batch in from_iterable(queue).take(9).batch(3).prepare(same, workers=1):
            found += batch.tolist()
            if len(found) == 6:
                break
        assert found == [0, 1, 2, 3, 4, 5]
        assert rest_of(queue) == list(range(6, 20))

    def test_an_item_whose_function_has_run_goes_back_too(self) -> None:
        queue, made = filled(10), Counting(same)
        for number in from_iterable(queue).prepare(made, workers=1):
            if number == 2:
                spin_until(lambda: len(made.calls) == 10)
                break
        assert rest_of(queue) == [3, 4, 5, 6, 7, 8, 9]

    def test_batches_of_a_queue_go_back_as_elements(self) -> None:
        queue = filled(10)
        run = iter(from_iterable(queue.batches(3)).prepare(same, workers=1))
        assert next(run) == [0, 1, 2]
        del run
        assert rest_of(queue) == [3, 4, 5, 6, 7, 8, 9]

    def test_batches_that_do_not_wait_to_be_full_go_back_too(self) -> None:
        queue = filled(5)
        run = iter(from_iterable(queue.batches(3, max_wait=0)).prepare(same, workers=1))
        assert [next(run), next(run)] == [[0, 1, 2], [3, 4]]
        queue.enqueue(5)
        assert next(run) == [5]
        queue.enqueue(6)
        del run
        assert rest_of(queue) == [6]

    def test_a_skipped_item_does_not_go_back(self) -> None:
        queue = filled(6)

        def refuses(number: int) -> int:
            if number == 1:
                raise ValueError("one")
            return number

        run = iter(from_iterable(queue).prepare(refuses, workers=1, on_error="skip"))
        assert [next(run), next(run)] == [0, 2]
        del run
        assert rest_of(queue) == [3, 4, 5]

    def test_a_partly_delivered_item_does_not_go_back(self) -> None:
        queue = filled(4)
        run = iter(from_iterable(queue).flat(lambda n: [n, n], workers=1))
        assert [next(run), next(run), next(run)] == [0, 0, 1]
        del run
        assert rest_of(queue) == [2, 3]

    def test_rows_of_batches_of_batches_go_back_each_by_itself(self) -> None:
        queue = filled(20)
        pipeline = from_iterable(queue).batch(2).batch(3).prepare(same).unbatch().unbatch()
        run = iter(pipeline)
        assert [next(run) for _ in range(3)] == [0, 1, 2]
        del run
        assert rest_of(queue) == list(range(3, 20))

    def test_what_a_batch_leaves_out_goes_back(self) -> None:
        queue = filled(7)
        queue.close()
        batches = from_iterable(queue).prepare(same).batch(3, drop_remainder=True)
        assert [batch.tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5]]
        assert rest_of(queue) == [6]

    def test_others_wait_for_what_a_loop_holds(self) -> None:
        queue = filled(3)
        queue.close()
        run = iter(from_iterable(queue).prepare(same, workers=1))
        assert next(run) == 0
        spin_until(lambda: queue.size() == 0)
        found: list[int] = []
        other = threading.Thread(target=lambda: found.append(queue.dequeue()))
        other.start()
        spin_until(lambda: queue.statistics().waiting_dequeues == 1)
        with pytest.raises(OutOfRangeError):
            queue.dequeue()  # it would wait for itself
        with pytest.raises(OutOfRangeError):
            queue.dequeue_nowait()
        del run
        other.join()
        assert found == [1]
        assert rest_of(queue) == [2]

    def test_loops_that_share_a_closed_queue_do_not_wait_for_each_other(self) -> None:
        queue = filled(20)
        queue.close()
        found: list[list[int]] = []

        def take_all() -> None:
            for batch in from_iterable(queue).prepare(same, workers=1).batch(7):
                found.append(batch.tolist())  # noqa: PERF401

        loops = [threading.Thread(target=take_all) for _ in range(3)]
        for loop in loops:
            loop.start()
        for loop in loops:
            loop.join()
        assert sorted(one for batch in found for one in batch) == list(range(20))

    def test_a_task_that_is_cancelled_has_lost_nothing(self) -> None:
        asyncio.run(self.cancel_some())

    async def cancel_some(self) -> None:
        queue = filled(0)
        found: list[int] = []

        async def take_all() -> None:
            async for number in from_iterable(queue.aio):
                found.append(number)  # noqa: PERF401

        for number in range(5):
            task = asyncio.ensure_future(take_all())
            while not queue.statistics().waiting_dequeues:
                await asyncio.sleep(0)
            queue.enqueue_nowait(number)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        spin_until(lambda: not queue._core.machine._granted)
        assert sorted(found + rest_of(queue)) == list(range(5))

    def test_an_event_loop_that_was_closed_keeps_nothing(self) -> None:
        queue = filled(10)
        runs: list[Any] = []

        async def begin() -> None:
            runs.append(aiter(from_iterable(queue).prepare(same_async)))
            assert await anext(runs[0]) == 0

        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        loop.close()
        runs.clear()
        gc.collect()
        spin_until(lambda: not queue.statistics().granted)
        assert rest_of(queue) == list(range(1, 10))

    def test_the_loop_of_a_queue_in_a_mixture(self) -> None:
        queue = filled(10)
        mixture = items(["x"] * 50).mix(from_iterable(queue).prepare(same), seed=1)
        run = iter(mixture)
        found = [one for one in (next(run) for _ in range(8)) if one != "x"]
        del run
        assert [*found, *rest_of(queue)] == list(range(10))


class TestPrepare:
    """`prepare` from a queue into another one."""

    def test_what_was_not_enqueued_goes_back(self) -> None:
        queue, into = filled(20), sync.FIFOQueue(2)
        with sync.Coordinator() as coord:
            coord.start(prepare(queue, same, into=into, workers=3))
            found = [into.dequeue() for _ in range(4)]
        found += rest_of(into)
        assert sorted(found + rest_of(queue)) == list(range(20))

    def test_tasks_give_back_too(self) -> None:
        asyncio.run(self.leave_tasks())

    async def leave_tasks(self) -> None:
        queue, into = filled(20), aioqueue.FIFOQueue(2)
        async with aioqueue.Coordinator() as coord:
            coord.start(prepare(queue.aio, same_async, into=into, workers=3))
            found = [await into.dequeue() for _ in range(4)]
        found += rest_of(into.sync)
        assert sorted(found + rest_of(queue)) == list(range(20))

    def test_what_is_skipped_or_gives_nothing_does_not_go_back(self) -> None:
        queue, into = filled(6), sync.FIFOQueue(10)
        queue.close()

        def some(number: int) -> int | None:
            if number == 2:
                raise ValueError("two")
            return number if number % 2 else None

        with sync.Coordinator() as coord:
            coord.start(prepare(queue, some, into=into, drop_none=True, on_error="skip"))
            found = [into.dequeue() for _ in range(3)]
        assert sorted(found) == [1, 3, 5]
        assert queue.statistics().dequeued == 6
        assert rest_of(queue) == []


def test_without_a_limit_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a `take` pays for what it wants: most pipelines have none."""

    def refused(*_: object) -> None:
        raise AssertionError("a quota")

    monkeypatch.setattr(ItemQuota, "__init__", refused)
    pipeline = numbers(40).prepare(abs, workers=2).batch(4)
    assert [list(batch) for batch in pipeline][-1] == [36, 37, 38, 39]
    with pytest.raises(AssertionError, match="a quota"):
        list(pipeline.take(2))


def without_end(queue: Any) -> list[Any]:
    """Take single elements until the queue says its end."""
    found = []
    try:
        while True:
            found.append(queue.dequeue())
    except OutOfRangeError:
        return found


class TestOwnCalls:
    """A loop waits for nothing of a closed queue that only itself could give back."""

    @staticmethod
    def pipeline(queue: Any) -> Any:
        return from_iterable(queue).prepare(same, workers=2)

    @staticmethod
    def check(loop: Callable[[Any], list[Any]], count: int = 8) -> None:
        """Run a loop over a closed queue in a thread. Each element is there once."""
        queue, found = filled(count), []
        queue.close()
        thread = threading.Thread(target=lambda: found.extend(loop(queue)), daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), "the loop waits for itself"
        assert sorted(flat_numbers([*found, *rest_of(queue)])) == list(range(count))
        assert queue.statistics().granted == 0

    @pytest.mark.parametrize(
        "stage",
        [
            lambda one, ask: one.prepare(ask, workers=2),
            lambda one, ask: one.filter(lambda value: ask(value) is not None),
            lambda one, ask: one.batch(2, collate=ask),
            lambda one, ask: one.batch(2, collate=list).map_batches(ask),
            lambda one, ask: one.prepare(same, workers=1).prepare(ask, workers=2),
        ],
    )
    def test_functions_of_all_stages(self, stage: Any) -> None:
        def loop(queue: Any) -> list[Any]:
            taken = []

            def ask(value: Any) -> Any:
                taken.extend(without_end(queue))
                return value

            return [*stage(self.pipeline(queue), ask), taken]

        self.check(loop)

    def test_a_task_of_a_later_stage(self) -> None:
        def loop(queue: Any) -> list[Any]:
            async def ask(value: Any) -> Any:
                try:
                    return [value, await queue.aio.dequeue()]
                except OutOfRangeError:
                    return [value]

            return list(self.pipeline(queue).prepare(ask, workers=2))

        self.check(loop)

    def test_an_event_loop_in_the_body(self) -> None:
        def loop(queue: Any) -> list[Any]:
            async def ask() -> list[Any]:
                try:
                    return [await queue.aio.dequeue()]
                except OutOfRangeError:
                    return []

            return [[number, asyncio.run(ask())] for number in self.pipeline(queue)]

        self.check(loop)

    def test_another_loop_of_the_body(self) -> None:
        def loop(queue: Any) -> list[Any]:
            return [[one, list(self.pipeline(queue))] for one in self.pipeline(queue)]

        self.check(loop)

    def test_another_loop_of_the_body_of_a_task(self) -> None:
        async def nested(queue: Any) -> list[Any]:
            return [[one, await all_of(self.pipeline(queue))] async for one in self.pipeline(queue)]

        self.check(lambda queue: asyncio.run(nested(queue)))

    def test_loops_side_by_side(self) -> None:
        def loop(queue: Any) -> list[Any]:
            first, second = iter(self.pipeline(queue)), iter(self.pipeline(queue))
            return [[one, next(second, [])] for one in first]

        self.check(loop)

    @pytest.mark.parametrize("how", ["mix", "concat"])
    def test_branches_of_one_pipeline(self, how: str) -> None:
        self.check(lambda queue: list(getattr(self.pipeline(queue), how)(self.pipeline(queue))))


@pytest.mark.parametrize("make", [lambda one: one, lambda one: one.batches(1)])
def test_a_queue_is_not_closed_by_its_reader(make: Any) -> None:
    queue = filled(3)
    for source in (from_iterable(make(queue)), from_iterable(lambda: make(queue))):
        for _ in source:
            break
    assert not queue.is_closed()
    queue.enqueue(3)
    assert rest_of(queue) == [2, 3]


def test_an_iterator_that_was_given_is_its_owners() -> None:
    class Rows:
        is_closed = False

        def __iter__(self) -> Rows:
            return self

        def __next__(self) -> int:
            return 0

        def close(self) -> None:
            self.is_closed = True

    rows = Rows()
    for source, is_ours in ((from_iterable(rows), False), (from_iterable(lambda: rows), True)):
        for _ in source:
            break
        assert rows.is_closed is is_ours
