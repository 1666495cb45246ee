"""`aioqueue.testing`, the public helpers for test suites."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import aioqueue
from aioqueue import DeadlineExceededError, InvalidArgumentError, sync
from aioqueue.inputs import (
    Retry,
    from_iterable,
    items,
    numbers,
    per_minute,
    prepare,
    read_lines,
)
from aioqueue.testing import (
    VirtualClock,
    failing,
    no_threads_left,
    until_waiting,
    wait_until_waiting,
)
from tests.kit.worlds import PATIENCE, CancelledError, TaskWorld, World, core_of


class TestUntilWaiting:
    @pytest.mark.parametrize("calls", [1, 3])
    async def test_dequeues(self, task_world: TaskWorld, calls: int) -> None:
        queue = task_world.fifo(2)
        operations = [task_world.spawn(queue.dequeue) for _ in range(calls)]
        now = await until_waiting(queue, dequeues=calls)
        assert (now.waiting_dequeues, now.waiting_enqueues) == (calls, 0)
        for number in range(calls):
            await queue.enqueue(number)
        assert sorted([await one.result() for one in operations]) == list(range(calls))

    async def test_enqueues(self, task_world: TaskWorld) -> None:
        queue = task_world.fifo(1)
        await queue.enqueue(0)
        second = task_world.spawn(queue.enqueue, 1)
        third = task_world.spawn(queue.enqueue_many, [2, 3])
        assert (await until_waiting(queue, enqueues=2)).waiting_enqueues == 2
        assert sorted([await queue.dequeue() for _ in range(4)]) == [0, 1, 2, 3]
        await second.result()
        await third.result()

    async def test_calls_that_wait_already_count(self, task_world: TaskWorld) -> None:
        queue = task_world.fifo(1)
        operation = task_world.spawn(queue.dequeue)
        await until_waiting(queue, dequeues=1)
        await until_waiting(queue, dequeues=1)
        await until_waiting(queue)
        await queue.enqueue(1)
        await operation.result()

    async def test_several_watchers_at_once(self, task_world: TaskWorld) -> None:
        queue = task_world.fifo(1)
        lookers = [task_world.spawn(until_waiting, queue, dequeues=n) for n in (1, 2)]
        operations = [task_world.spawn(queue.dequeue) for _ in range(2)]
        for looker in lookers:
            await looker.result()
        await queue.enqueue_many([1, 2])
        for operation in operations:
            await operation.result()
        assert not core_of(queue).machine.observers

    async def test_a_cancelled_call_leaves_nothing(self, task_world: TaskWorld) -> None:
        queue = task_world.fifo(1)
        looker = task_world.spawn(until_waiting, queue, dequeues=1)
        await task_world.until(lambda: bool(core_of(queue).machine.observers))
        looker.cancel()
        with pytest.raises(CancelledError):
            await looker.result()
        assert not core_of(queue).machine.observers

    async def test_threads_wait_for_a_task_and_tasks_for_a_thread(
        self, task_world: TaskWorld
    ) -> None:
        queue = task_world.fifo(1)
        thread = threading.Thread(target=queue.sync.dequeue)
        thread.start()
        await until_waiting(queue, dequeues=1)
        await queue.enqueue(1)
        thread.join(PATIENCE)
        operation = task_world.spawn(queue.dequeue)
        seen: list[Any] = []

        def feed() -> None:
            seen.append(wait_until_waiting(queue, dequeues=1))
            queue.sync.enqueue(2)

        feeder = threading.Thread(target=feed)
        feeder.start()
        assert await operation.result() == 2
        feeder.join(PATIENCE)
        assert seen[0].waiting_dequeues == 1

    def test_waiting_threads_are_never_missed(self) -> None:
        """Threads begin to wait at the moment when the check begins."""
        for _ in range(200):
            queue = sync.FIFOQueue(1)
            threads = [threading.Thread(target=queue.dequeue) for _ in range(3)]
            for thread in threads:
                thread.start()
            wait_until_waiting(queue, dequeues=3)
            for number in range(3):
                queue.enqueue(number)
            for thread in threads:
                thread.join()

    def test_the_blocking_form_has_a_limit(self) -> None:
        queue = sync.FIFOQueue(1, name="images")
        with pytest.raises(
            DeadlineExceededError,
            match=r"after 0 s 0 enqueues and 0 dequeues wait on 'images'; expected 0 and 2",
        ):
            wait_until_waiting(queue, dequeues=2, timeout=0)

    @pytest.mark.parametrize(
        ("given", "options", "named"),
        [
            (3, {}, "queue"),
            (sync.FIFOQueue(1), {"dequeues": -1}, "dequeues"),
            (sync.FIFOQueue(1), {"enqueues": "2"}, "enqueues"),
            (sync.FIFOQueue(1), {"timeout": "2"}, "timeout"),
        ],
    )
    def test_refuses(self, given: Any, options: dict[str, Any], named: str) -> None:
        with pytest.raises(InvalidArgumentError, match=f"^{named}: got"):
            wait_until_waiting(given, **options)
        if named != "timeout":
            with pytest.raises(InvalidArgumentError, match=f"^{named}: got"):
                asyncio.run(until_waiting(given, **options))


class TestFailing:
    async def test_the_nth_call_fails_and_changes_nothing(self, world: World) -> None:
        queue = world.fifo(10)
        face = failing(queue.face if hasattr(queue, "face") else queue, 3)
        calls = [face.enqueue_nowait, face.enqueue_nowait, face.enqueue_nowait]
        calls[0](0)
        calls[1](1)
        with pytest.raises(OSError, match="call 3 of the failing queue, enqueue_nowait, fails"):
            calls[2](2)
        calls[2](3)
        assert [queue.dequeue_nowait() for _ in range(3)] == [0, 1, 3]

    @pytest.mark.parametrize("kind", ["FIFOQueue", "RandomShuffleQueue", "PriorityQueue"])
    async def test_every_operation(self, task_world: TaskWorld, kind: str) -> None:
        more = (0,) if kind == "RandomShuffleQueue" else ()
        queue = getattr(aioqueue, kind)(10, *more, "int64", ())
        one: Any = (1, 1) if kind == "PriorityQueue" else 1
        many: Any = ([1, 1], [1, 1]) if kind == "PriorityQueue" else [1, 1]
        error = ConnectionError("gone")
        for name, arguments in {
            "enqueue": (one,),
            "enqueue_many": (many,),
            "dequeue": (),
            "dequeue_many": (2,),
            "dequeue_up_to": (2,),
        }.items():
            face = failing(queue, 1, error)
            assert type(face).__name__ == kind
            with pytest.raises(ConnectionError) as caught:
                await getattr(face, name)(*arguments)
            assert caught.value is error
            with pytest.raises(ConnectionError):
                getattr(failing(queue, 1, error).sync, name)(*arguments)
        assert queue.size() == 0

    async def test_calls_of_both_faces_are_counted(self, task_world: TaskWorld) -> None:
        face = failing(task_world.fifo(10), 3)
        await face.enqueue(0)
        face.sync.enqueue(1)
        with pytest.raises(OSError, match="call 3"):
            await face.sync.aio.enqueue(2)
        assert face.size() == 2

    async def test_only_some_operations(self, task_world: TaskWorld) -> None:
        face = failing(task_world.fifo(10), 2, operations=["dequeue"])
        await face.enqueue_many([1, 2, 3])
        assert await face.dequeue() == 1
        with pytest.raises(OSError, match="dequeue"):
            async for _ in face:
                pass
        assert await face.dequeue() == 2

    def test_in_a_runner(self) -> None:
        queue = failing(sync.FIFOQueue(100), 5)
        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            coord.start(sync.QueueRunner(queue, [lambda: queue.enqueue(1)]))
            coord.wait_for_stop()
        assert isinstance(caught.value.exceptions[0], OSError)
        assert queue.size() == 4

    def test_in_batches(self) -> None:
        queue = failing(sync.FIFOQueue(10), 2, operations=["dequeue_up_to"])
        queue.enqueue_many(range(6))
        batches = queue.batches(2)
        assert next(batches) == [0, 1]
        with pytest.raises(OSError, match="dequeue_up_to"):
            next(batches)
        assert next(batches) == [2, 3]

    @pytest.mark.parametrize(
        ("arguments", "options", "named"),
        [
            ((3, 1), {}, "queue"),
            ((sync.FIFOQueue(1), 0), {}, "n"),
            ((sync.FIFOQueue(1), 1, "no"), {}, "error"),
            ((sync.FIFOQueue(1), 1), {"operations": ["close"]}, "operations"),
            ((sync.FIFOQueue(1), 1), {"operations": "enqueue"}, "operations"),
            ((sync.Latest(1), 1), {"operations": ["dequeue"]}, "operations"),
            ((sync.Coordinator(), 1), {}, "queue"),
            (([1], 1), {"operations": ["enqueue"]}, "operations"),
            ((numbers(3).batch(2), 1), {}, "queue"),
        ],
    )
    def test_refuses(self, arguments: Any, options: Any, named: str) -> None:
        with pytest.raises(InvalidArgumentError, match=f"^{named}: got"):
            failing(*arguments, **options)


class TestFailingLatest:
    async def test_the_nth_use_fails_and_changes_nothing(self, task_world: TaskWorld) -> None:
        weights = failing(aioqueue.Latest[int](), 3, ConnectionError("reset"))
        assert weights.publish(1) == 1
        assert await weights.get() == (1, 1)
        with pytest.raises(ConnectionError, match="reset"):
            await weights.wait_newer(0)
        assert weights.sync.get_nowait() == (1, 1)

    def test_both_faces_count_together(self) -> None:
        latest = sync.Latest("old")
        weights = failing(latest, 2)
        assert weights.aio.publish("new") == 2
        with pytest.raises(OSError, match=r"call 2 of the failing Latest 'Latest-.*', get, fails"):
            weights.get(timeout=0)
        assert latest.get() == weights.get() == (2, "new")
        assert isinstance(weights, sync.Latest)
        assert isinstance(weights.aio, aioqueue.Latest)

    def test_iterating_counts_as_waiting(self) -> None:
        latest = sync.Latest(0)
        seen = iter(failing(latest, 2, operations=["wait_newer"]))
        assert next(seen) == (1, 0)
        latest.publish(1)
        with pytest.raises(OSError, match="wait_newer"):
            next(seen)
        assert next(seen) == (2, 1)


def twice(number: int) -> int:
    return 2 * number


async def twice_in_a_task(number: int) -> int:
    return 2 * number


def both(number: int) -> Any:
    yield from (number, -number)


async def both_in_a_task(number: int) -> Any:
    for one in (number, -number):
        yield one


class TestFailingSources:
    def test_the_nth_item(self) -> None:
        with pytest.raises(ExceptionGroup, match="the source failed") as caught:
            list(failing(numbers(10), 4).prepare(twice, workers=1, ordered=True))
        assert caught.group_contains(OSError, match="call 4 of the failing source 'numbers', an")

    def test_it_is_the_same_source_otherwise(self, tmp_path: Any) -> None:
        path = tmp_path / "a.txt"
        path.write_text("a\nb\nc\n")
        for source in (numbers(3, shuffle=True, seed=1), items(list("abc")), read_lines(path)):
            never = failing(source, 1000)
            assert repr(never) == repr(source)
            assert type(never).__name__ == type(source).__name__
            assert list(never.epoch(0)) == list(source.epoch(0))
            position = source.batch(2, collate=list).epochs(1).state_dict()
            resumed = never.batch(2, collate=list).epochs(1, resume=position)
            assert [list(epoch) for epoch in resumed] == [list(source.batch(2, collate=list))]

    def test_items_count_over_all_epochs(self) -> None:
        seen: list[int] = []
        with pytest.raises(LookupError):
            for epoch in failing(numbers(3), 5, LookupError()).epochs(4, raise_single=True):
                seen.extend(epoch)
        assert seen == [0, 1, 2, 0]

    def test_any_iterable(self) -> None:
        with pytest.raises(OSError, match="call 2 of the failing iterable, an item, fails"):
            list(failing([1, 2, 3], 2))
        with pytest.raises(ExceptionGroup, match="the source failed"):
            list(from_iterable(failing([1, 2, 3], 3)).prepare(twice, workers=1))

    async def test_an_async_iterable(self, task_world: TaskWorld) -> None:
        run = aiter(failing(both_in_a_task(1), 2))
        assert await anext(run) == 1
        with pytest.raises(OSError, match="call 2"):
            await anext(run)


class TestFailingFunctions:
    @pytest.mark.parametrize("function", [twice, twice_in_a_task, both, both_in_a_task])
    def test_the_nth_call(self, function: Any) -> None:
        expected = sorted(numbers(5).prepare(function))
        on_error = Retry(1, on=ConnectionError)
        broken = failing(function, 3, ConnectionError("reset"))
        assert sorted(numbers(5).prepare(broken, on_error=on_error)) == expected
        with pytest.raises(ExceptionGroup) as caught:
            list(numbers(5).prepare(failing(function, 3, ConnectionError("reset"))))
        assert caught.group_contains(ConnectionError, match="reset")

    def test_it_gets_what_the_function_gets(self) -> None:
        def noisy(number: int, rng: Any) -> float:
            return number + float(rng.random())

        source = numbers(5, seed=3)
        assert list(source.prepare(failing(noisy, 100))) == list(source.prepare(noisy))

    def test_a_function_without_a_pipeline(self) -> None:
        broken = failing(twice, 2)
        assert broken(1) == 2
        with pytest.raises(OSError, match="call 2 of the failing function twice, a call, fails"):
            broken(1)
        assert broken(1) == 2


HOUR = 3600


class TestVirtualClock:
    def test_an_hour_passes_at_once(self) -> None:
        clock = VirtualClock()

        async def main() -> float:
            began = asyncio.get_running_loop().time()
            async with asyncio.timeout(2 * HOUR):
                await asyncio.sleep(HOUR)
            return asyncio.get_running_loop().time() - began

        assert clock.run(main()) == HOUR
        assert clock.now == HOUR
        assert repr(clock) == "<aioqueue.testing.VirtualClock at 3600 s>"

    def test_timers_fire_in_their_order(self) -> None:
        clock, seen = VirtualClock(), []

        async def wait(seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((seconds, clock.now))

        async def main() -> None:
            await asyncio.gather(*[wait(seconds) for seconds in (30, 10, 20)])

        clock.run(main())
        assert seen == [(10, 10), (20, 20), (30, 30)]

    def test_a_batcher_waits_by_it(self) -> None:
        clock = VirtualClock()

        async def echo(values: list[int]) -> list[int]:
            return values

        async def main() -> list[int]:
            async with aioqueue.Batcher(echo, max_batch=9, max_wait=HOUR) as batcher:
                return await asyncio.gather(*map(batcher, range(3)))

        assert clock.run(main()) == [0, 1, 2]
        assert HOUR <= clock.now < HOUR + 1

    def test_queues_retries_and_rates_wait_by_it(self) -> None:
        clock = VirtualClock()
        calls: list[float] = []

        async def refused(number: int) -> int:
            calls.append(clock.now)
            if len(calls) == 2:
                raise ConnectionError
            return number

        async def main() -> list[int]:
            queue = aioqueue.FIFOQueue[int](10)
            async with aioqueue.Coordinator() as coord:
                coord.start(
                    prepare(
                        range(3),
                        refused,
                        into=queue,
                        workers=1,
                        rate=per_minute(1),
                        on_error=Retry(1, backoff=HOUR),
                    )
                )
                return [one async for batch in queue.batches(2, max_wait=60) for one in batch]

        assert sorted(clock.run(main())) == [0, 1, 2]
        assert [round(call) for call in calls] == [0, 60, 120, 60 + HOUR]

    def test_an_item_that_takes_too_long(self) -> None:
        clock = VirtualClock()

        async def main() -> list[int]:
            async def slow(number: int) -> int:
                return await asyncio.sleep(number * HOUR, number)

            return [one async for one in numbers(2).prepare(slow, item_timeout=60)]

        with pytest.raises(ExceptionGroup) as caught:
            clock.run(main())
        assert caught.group_contains(aioqueue.ItemTimeoutError)

    def test_threads_that_work_are_waited_for(self) -> None:
        clock = VirtualClock(idle=PATIENCE)
        gate = threading.Event()

        async def main() -> None:
            async with asyncio.timeout(60):
                waiting = asyncio.create_task(asyncio.to_thread(gate.wait))
                await asyncio.sleep(0)
                gate.set()
                await waiting

        clock.run(main())
        assert clock.now == 0

    def test_tasks_that_wait_for_nothing_that_can_come_do_not_hang(self) -> None:
        async def main() -> None:
            async with aioqueue.Coordinator() as coord:
                await asyncio.sleep(HOUR)
                coord.register(asyncio.create_task(aioqueue.FIFOQueue(1, name="quiet").dequeue()))
                await aioqueue.FIFOQueue(1, name="lone").dequeue()

        with pytest.raises(RuntimeError) as caught:
            VirtualClock(patience=0.05).run(main())
        text = str(caught.value)
        assert text.startswith("all tasks wait, and no timer is set: nothing has come from")
        assert "'lone'" in text
        assert "'quiet'" in text

    def test_threads_are_waited_for_without_a_timer(self) -> None:
        gate = threading.Event()

        async def main() -> bool:
            waiting = asyncio.create_task(asyncio.to_thread(gate.wait))
            await asyncio.sleep(0)
            threading.Timer(0.05, gate.set).start()
            return await waiting

        assert VirtualClock(patience=PATIENCE).run(main())
        assert VirtualClock(patience=None).run(main())

    @pytest.mark.parametrize("name", ["idle", "patience"])
    def test_refuses(self, name: str) -> None:
        options: Any = {name: -1}
        with pytest.raises(InvalidArgumentError, match=f"^{name}: got -1"):
            VirtualClock(**options)


class TestNoThreadsLeft:
    def test_all_have_ended(self) -> None:
        with no_threads_left(), sync.Coordinator() as coord:
            queue = sync.FIFOQueue(1)
            coord.start(sync.QueueRunner(queue, [lambda: queue.enqueue(1)] * 3))
            queue.dequeue_many(5)

    def test_those_that_run_are_named(self) -> None:
        queue = sync.FIFOQueue(1)
        thread = threading.Thread(target=queue.dequeue, name="forgotten")
        with (
            pytest.raises(AssertionError, match=r"threads still run after 0 s:\n  forgotten in .*"),
            no_threads_left(grace=0),
        ):
            thread.start()
            wait_until_waiting(queue, dequeues=1)
        queue.enqueue(1)
        thread.join()

    def test_earlier_threads_do_not_count(self) -> None:
        go = threading.Event()
        thread = threading.Thread(target=go.wait)
        thread.start()
        with no_threads_left(grace=0):
            pass
        go.set()
        thread.join()

    def test_the_watcher_of_the_main_thread_stays(self) -> None:
        with no_threads_left(grace=0):
            queue = sync.FIFOQueue(1)
            coord = sync.Coordinator()
            threads = sync.QueueRunner(queue, [lambda: queue.enqueue(1)]).create_threads(
                coord=coord, start=True
            )
            coord.request_stop()
            coord.join(threads)
            for thread in threads:
                thread.join()
            deferred = [one for one in threading.enumerate() if one.name == "aioqueue-join"]
            for one in deferred:
                one.join()

    def test_an_exception_skips_the_check(self) -> None:
        go = threading.Event()
        thread = threading.Thread(target=go.wait)
        with pytest.raises(ValueError, match="of the test"), no_threads_left(grace=0):
            thread.start()
            raise ValueError("of the test")
        go.set()
        thread.join()

    def test_refuses(self) -> None:
        with pytest.raises(InvalidArgumentError, match=r"^grace: got"), no_threads_left(grace=-1):
            pass
