"""`task_done` and `join`, and the numbers that tell where every element is."""

from __future__ import annotations

import asyncio
import queue as stdlib
import random
import signal
import threading
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    QueueClosedError,
)
from aioqueue.inputs import prepare
from tests.kit.invariants import violations
from tests.kit.worlds import (
    PATIENCE,
    AsyncioWorld,
    Kind,
    TaskWorld,
    ThreadWorld,
    World,
    core_of,
    spin_until,
)


def joins(queue: Any) -> int:
    """How many joins wait."""
    return len(core_of(queue).machine._wait_lists.until_done)


async def waiting_join(world: World, queue: Any) -> Any:
    """A join that waits."""
    before = joins(queue)
    operation = world.spawn(queue.join)
    await world.until(lambda: joins(queue) > before)
    return operation


class TestJoin:
    async def test_ends_with_the_last_task_done(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        await queue.join()  # nothing went in
        for number in range(3):
            await queue.enqueue(kind.element(number))
        joining = [await waiting_join(world, queue) for _ in range(3)]
        assert queue.statistics().unfinished == 3
        await queue.dequeue_many(2)
        queue.task_done(2)
        await queue.dequeue()
        assert queue.size() == 0
        assert not any(join.done for join in joining)  # the last one is in our hands
        queue.task_done()
        for join in joining:
            await join.result()
        await queue.join()
        assert queue.statistics().unfinished == 0

    async def test_waits_for_what_went_in_meanwhile(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        await queue.enqueue(kind.element(0))
        join = await waiting_join(world, queue)
        await queue.enqueue(kind.element(1))
        queue.task_done()
        assert joins(queue) == 1
        queue.task_done()
        await join.result()

    async def test_does_not_end_by_an_ordinary_close(self, world: World) -> None:
        """What is inside still counts, and consumers go on."""
        queue = world.fifo(9)
        await queue.enqueue_many([1, 2])
        join = await waiting_join(world, queue)
        queue.close()
        assert [await queue.dequeue() for _ in range(2)] == [1, 2]
        queue.close(cancel_pending_enqueues=True)
        assert joins(queue) == 1
        queue.task_done(2)
        await join.result()
        await queue.join()

    async def test_ends_by_a_failure_for_each_caller(self, world: World) -> None:
        queue = world.fifo(9)
        await queue.enqueue_many([1, 2])
        joining = [await waiting_join(world, queue) for _ in range(2)]
        why = OSError("the disk")
        queue.close(cause=why)
        raised = []
        for join in joining:
            with pytest.raises(QueueClosedError, match="2 elements are unfinished") as caught:
                await join.result()
            assert caught.value.__cause__ is why
            raised.append(caught.value)
        assert raised[0] is not raised[1]
        queue.task_done(2)
        with pytest.raises(QueueClosedError, match="was closed by a failure") as caught:
            await queue.join()  # an end is not a failure
        assert caught.value.__cause__ is why

    async def test_a_failure_that_comes_after_the_close_counts(self, world: World) -> None:
        queue = world.fifo(9)
        await queue.enqueue(1)
        queue.close()
        join = await waiting_join(world, queue)
        queue.close(cause=KeyError("late"))
        with pytest.raises(QueueClosedError):
            await join.result()

    async def test_returned_elements_stay_unfinished(self, task_world: TaskWorld) -> None:
        queue = task_world.fifo(9)
        taking = await task_world.begin(queue.dequeue)
        await task_world.until(lambda: core_of(queue).machine.waiting()[0].waits)
        queue.enqueue_nowait(1)  # granted, and perhaps cancelled before its task runs
        assert queue.statistics().granted == 1
        taking.cancel()
        came = 0 if await taking.was_cancelled() else 1
        assert came == (task_world.name == "trio")  # whose hand-over cannot be undone
        counts = queue.statistics()
        assert (counts.size, counts.granted, counts.dequeued) == (1 - came, 0, came)
        assert counts.unfinished == 1

    def test_a_timeout(self) -> None:
        queue = sync.FIFOQueue(9)
        queue.enqueue(1)
        with pytest.raises(DeadlineExceededError, match="join on FIFOQueue"):
            queue.join(timeout=0.001)
        with pytest.raises(TimeoutError):
            queue.join(timeout=0)
        assert joins(queue) == 0

    def test_where_the_loop_runs(self) -> None:
        async def main() -> None:
            queue = aioqueue.FIFOQueue(9)
            queue.sync.join()
            queue.enqueue_nowait(1)
            with pytest.raises(RuntimeError, match=r"use `await queue.aio.join\(...\)` here"):
                queue.sync.join()
            with pytest.raises(TimeoutError):
                queue.sync.join(timeout=0)
            queue.close(cause=OSError())
            with pytest.raises(QueueClosedError):
                queue.sync.join()

        asyncio.run(main())

    def test_of_a_thread_and_a_task(self, loop_world: AsyncioWorld) -> None:
        async def body() -> None:
            queue = loop_world.fifo(9)
            await queue.enqueue_many(range(100, 105))
            join = asyncio.create_task(queue.join())
            threads = [threading.Thread(target=queue.sync.join) for _ in range(2)]
            for thread in threads:
                thread.start()
            await loop_world.until(lambda: joins(queue) == 3)

            def finish() -> None:
                for _ in range(5):
                    queue.sync.dequeue()
                    queue.task_done()

            worker = threading.Thread(target=finish)
            worker.start()
            await join
            for thread in [*threads, worker]:
                thread.join(PATIENCE)
                assert not thread.is_alive()

        loop_world.run(body)


class TestTaskDone:
    async def test_too_many_change_nothing(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        await queue.enqueue(kind.element(0))
        await queue.enqueue(kind.element(1))
        before = queue.statistics()
        with pytest.raises(ValueError, match=r"task_done: got n=3 for .*, which has 2 unfinished"):
            queue.task_done(3)
        wrong: Any
        for wrong in (-1, 1.0, "1", None, True):
            with pytest.raises(InvalidArgumentError, match=r"n: got .*; expected an int >= 0"):
                queue.task_done(wrong)
        queue.task_done(0)
        assert queue.statistics() == before
        queue.task_done(2)
        with pytest.raises(ValueError, match="0 unfinished elements"):
            queue.task_done()

    def test_it_may_come_before_the_element_is_out(self) -> None:
        """As in the standard library, it only counts."""
        queue = sync.FIFOQueue(9)
        queue.enqueue(1)
        queue.task_done()
        queue.join()
        assert queue.dequeue() == 1

    def test_a_signal_handler_may_call_it(self) -> None:
        queue = sync.FIFOQueue(9)
        queue.enqueue(1)

        def kill() -> None:
            spin_until(lambda: joins(queue))
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        former = signal.signal(signal.SIGUSR1, lambda *_: queue.task_done())
        try:
            killing = threading.Thread(target=kill)
            killing.start()
            queue.join(timeout=PATIENCE)
            killing.join()
        finally:
            signal.signal(signal.SIGUSR1, former)

    def test_of_threads_that_race(self) -> None:
        """No call is lost, and the join ends with the last of them."""
        queue = sync.FIFOQueue(16)
        took: list[int] = []

        def consume() -> None:
            for _ in range(500):
                took.append(queue.dequeue())
                queue.task_done()

        consumers = [threading.Thread(target=consume) for _ in range(4)]
        for thread in consumers:
            thread.start()
        queue.enqueue_many(range(2000))
        queue.join(timeout=PATIENCE)
        assert sorted(took) == list(range(2000))
        for thread in consumers:
            thread.join(PATIENCE)
        with pytest.raises(ValueError, match="0 unfinished"):
            queue.task_done()


# The same calls on the standard library's queues.


class Theirs:
    """A queue of the standard library, with our names."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue

    def enqueue_nowait(self, element: int) -> None:
        self.queue.put_nowait(element)

    def dequeue_nowait(self) -> Any:
        return self.queue.get_nowait()

    def task_done(self) -> None:
        self.queue.task_done()


STEPS = ("put", "put", "get", "done", "done", "join")


def observed(queue: Any, step: str, number: int) -> Any:
    """What a step comes to, as far as both should agree."""
    try:
        if step == "put":
            queue.enqueue_nowait(number)
        elif step == "get":
            return queue.dequeue_nowait()
        else:
            queue.task_done()
    except (aioqueue.QueueEmpty, asyncio.QueueEmpty, stdlib.Empty):
        return "empty"
    except (aioqueue.QueueFull, asyncio.QueueFull, stdlib.Full):
        return "full"
    except ValueError:
        return "too many"
    return None


class TestTheStandardLibrary:
    @pytest.mark.parametrize("seed", range(20))
    def test_tasks_see_the_same(self, loop_world: AsyncioWorld, seed: int) -> None:
        choices = random.Random(seed)

        async def body() -> None:
            ours = loop_world.fifo(4)
            theirs = Theirs(asyncio.Queue(4))
            joining: list[tuple[asyncio.Task[Any], asyncio.Task[Any]]] = []
            for number in range(200):
                step = choices.choice(STEPS)
                if step == "join":
                    pair = (ours.join(), theirs.queue.join())
                    joining.append(tuple(map(asyncio.create_task, pair)))  # type: ignore[arg-type]
                else:
                    assert observed(ours, step, number) == observed(theirs, step, number)
                if choices.random() < 0.8:
                    for _ in range(5):
                        await asyncio.sleep(0)
                    for our, their in joining:
                        assert our.done() is their.done()
                if joining and choices.random() < 0.1:
                    for one in joining.pop(choices.randrange(len(joining))):
                        one.cancel()
            unfinished = ours.statistics().unfinished
            assert unfinished == theirs.queue._unfinished_tasks
            for _ in range(unfinished):
                ours.task_done()
                theirs.task_done()
            for our, their in joining:
                await our
                await their

        loop_world.run(body)

    @pytest.mark.parametrize("seed", range(20))
    def test_threads_see_the_same(self, seed: int) -> None:
        choices = random.Random(seed)
        ours, theirs = sync.FIFOQueue(4), Theirs(stdlib.Queue(4))
        joining: list[tuple[threading.Thread, threading.Thread]] = []
        for number in range(100):
            step = choices.choice(STEPS)
            if step == "join" and len(joining) < 3:
                pair = (
                    threading.Thread(target=ours.join, daemon=True),
                    threading.Thread(target=theirs.queue.join, daemon=True),
                )
                for thread in pair:
                    thread.start()
                joining.append(pair)
            elif step != "join":
                assert observed(ours, step, number) == observed(theirs, step, number)
            assert ours.statistics().unfinished == theirs.queue.unfinished_tasks
        for _ in range(ours.statistics().unfinished):
            ours.task_done()
            theirs.task_done()
        for pair in joining:
            for thread in pair:
                thread.join(PATIENCE)
                assert not thread.is_alive()


# Programs that feed their own queue.


def site(choices: random.Random, pages: int) -> dict[int, list[int]]:
    """Links of pages; all can be reached from page 0."""
    links: dict[int, list[int]] = {page: [] for page in range(pages)}
    for page in range(1, pages):
        links[choices.randrange(page)].append(page)
        links[choices.randrange(pages)].append(choices.randrange(pages))
    return links


class TestSpider:
    @pytest.mark.slow(every=4)
    @pytest.mark.parametrize("seed", range(8))
    async def test_a_join_ends_when_all_is_fetched(self, world: World, seed: int) -> None:
        choices = random.Random(seed)
        links = site(choices, 60)
        frontier = world.fifo(None)
        seen, fetched, lock = {0}, [], threading.Lock()

        async def work() -> None:
            async for page in frontier:
                for _ in range(choices.randrange(3)):
                    if isinstance(world, TaskWorld):
                        await world.tick()
                for link in links[page]:
                    with lock:
                        is_new = link not in seen
                        seen.add(link)
                    if is_new:
                        await frontier.enqueue(link)
                fetched.append(page)
                frontier.task_done()

        await frontier.enqueue(0)
        working = [world.spawn(work) for _ in range(5)]
        await frontier.join()
        assert sorted(fetched) == list(range(60))
        frontier.close()
        for worker in working:
            await worker.result()

    @pytest.mark.slow(every=4)
    @pytest.mark.parametrize("seed", range(8))
    def test_on_one_loop_the_statistics_agree(self, task_world: TaskWorld, seed: int) -> None:
        """Nobody is busy, and nothing is inside or granted: then all is done, and not before."""
        choices = random.Random(seed)
        links = site(choices, 60)

        async def body() -> None:
            frontier = task_world.fifo(None)
            seen, fetched, is_over = {0}, [], False
            busy = early = 0

            async def work() -> None:
                nonlocal busy, early, is_over
                async for page in frontier:
                    busy += 1
                    for _ in range(choices.randrange(4)):
                        await task_world.tick()
                    for link in links[page]:
                        if link not in seen:
                            seen.add(link)
                            frontier.enqueue_nowait(link)
                    fetched.append(page)
                    busy -= 1
                    counts = frontier.statistics()
                    if not busy and not counts.size and not counts.granted:
                        assert len(fetched) == 60
                        is_over = True
                    elif not busy and not counts.size:
                        early += 1  # here the size alone would have ended it

            frontier.enqueue_nowait(0)
            working = [task_world.spawn(work) for _ in range(5)]
            await task_world.until(lambda: is_over)
            frontier.close()
            for worker in working:
                await worker.result()

        task_world.run(body)

    def test_in_a_block(self, task_world: TaskWorld) -> None:
        """The workers are those of a runner; leaving the block stops them."""
        links = site(random.Random(1), 60)

        async def body() -> None:
            frontier = task_world.fifo(None)
            seen, fetched = {0}, []

            async def work() -> None:
                page = await frontier.dequeue()
                await task_world.tick()
                for link in links[page]:
                    if link not in seen:
                        seen.add(link)
                        await frontier.enqueue(link)
                fetched.append(page)
                frontier.task_done()

            await frontier.enqueue(0)
            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(frontier, [work] * 10))
                await frontier.join()
            assert sorted(fetched) == list(range(60))

        task_world.run(body)

    def test_with_prepare_and_pages_that_are_skipped(self, loop_world: AsyncioWorld) -> None:
        links = site(random.Random(2), 60)

        async def fetch(page: int) -> tuple[int, list[int]] | None:
            await asyncio.sleep(0)
            if page % 7 == 3:
                raise ConnectionError("gone")
            return None if page % 7 == 4 else (page, links[page])

        async def body() -> None:
            frontier, pages = loop_world.fifo(None), loop_world.fifo(4)
            seen = {0}

            async def follow() -> None:
                _, found = await pages.dequeue()
                for link in found:
                    if link not in seen:
                        seen.add(link)
                        await frontier.enqueue(link)
                frontier.task_done()

            await frontier.enqueue(0)
            async with aioqueue.Coordinator() as coord:
                coord.start(prepare(frontier, fetch, into=pages, on_error="skip", drop_none=True))
                coord.start(aioqueue.LooperTask(None, follow))
                async with asyncio.timeout(PATIENCE):
                    await frontier.join()
            counts = frontier.statistics()
            assert (counts.enqueued, counts.unfinished) == (len(seen), 0)

        loop_world.run(body)


class TestStops:
    def test_of_a_worker(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = task_world.fifo(9)
            await queue.enqueue(1)

            async def work() -> None:
                await queue.join()

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.LooperTask(None, work))
                await task_world.until(lambda: joins(queue))
                coord.request_stop()
            assert joins(queue) == 0

        task_world.run(body)

    @pytest.mark.parametrize("late", [False, True])
    def test_of_a_thread(self, late: bool) -> None:
        queue = sync.FIFOQueue(9)
        queue.enqueue(1)
        raised: list[BaseException] = []

        def work() -> None:
            try:
                queue.join()
            except CancelledError as error:
                raised.append(error)

        thread = threading.Thread(target=work)
        with sync.Coordinator() as coord:
            if not late:
                coord.register(thread)
            thread.start()
            spin_until(lambda: joins(queue))
            if late:
                coord.register(thread)
        assert "stop of its coordinator" in str(raised[0])

    @pytest.mark.parametrize("call", ["join", "wait_closed"])
    def test_of_a_task_that_is_registered_while_it_waits(
        self, loop_world: AsyncioWorld, call: str
    ) -> None:
        async def body() -> None:
            queue = loop_world.fifo(9)
            await queue.enqueue(1)
            task = asyncio.create_task(getattr(queue, call)())
            lines = core_of(queue).machine._wait_lists
            await loop_world.until(lambda: lines.until_done or lines.until_closed)
            async with aioqueue.Coordinator() as coord:
                coord.register(task)
            assert task.done()

        loop_world.run(body)

    @pytest.mark.parametrize("fails", [False, True])
    def test_of_the_block_itself(self, task_world: TaskWorld, fails: bool) -> None:
        """Its workers have ended: nobody finishes the rest."""

        async def body() -> None:
            queue, other = task_world.fifo(None), task_world.fifo(9)
            await queue.enqueue(1)

            async def work(item: int) -> int:
                if fails:
                    raise KeyError(item)
                coord.request_stop()
                return item

            async with aioqueue.Coordinator() as coord:
                coord.start(prepare(queue, work, into=other))
                await queue.join()
                raise AssertionError("it cannot end well")

        if not fails:
            task_world.run(body)
            return
        with pytest.raises((KeyError, ExceptionGroup)) as caught:
            task_world.run(body)
        error: Any = caught.value
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        assert isinstance(error, KeyError)

    def test_of_the_block_of_a_thread(self) -> None:
        queue = sync.FIFOQueue(None)
        queue.enqueue(1)
        with sync.Coordinator() as coord:

            def stop() -> None:
                spin_until(lambda: joins(queue))
                coord.request_stop()

            threading.Thread(target=stop).start()
            with pytest.raises(CancelledError, match="was ended by the stop of its coordinator"):
                queue.join(timeout=PATIENCE)
            with pytest.raises(TimeoutError):
                queue.join(timeout=0)  # what begins after the stop may wait
        assert joins(queue) == 0


# Where every element is, at every moment.


class TestEveryElementIsInANumber:
    async def test_of_what_is_granted(self, task_world: TaskWorld, kind: Kind) -> None:
        queue = kind.make(task_world)
        taking = [await task_world.begin(queue.dequeue) for _ in range(2)]
        await task_world.until(lambda: all(one.waits for one in core_of(queue).machine.waiting()))
        queue.enqueue_nowait(kind.element(0))
        counts = queue.statistics()
        assert (counts.size, counts.granted, counts.dequeued) == (0, 1, 0)
        assert "1 granted" in repr(queue)
        queue.enqueue_nowait(kind.element(1))
        for operation in taking:
            await operation.result()
        counts = queue.statistics()
        assert (counts.size, counts.granted, counts.dequeued) == (0, 0, 2)
        assert "granted" not in repr(queue)

    async def test_of_what_a_batch_has_claimed(self, world: World, kind: Kind) -> None:
        queue = kind.make(world)
        taking = await world.begin(queue.dequeue_many, 3)
        for number in range(2):
            await queue.enqueue(kind.element(number))
        counts = queue.statistics()
        waits_outside = kind.name != "priority"  # which cannot take early
        assert (counts.size, counts.claimed) == ((0, 2) if waits_outside else (2, 0))
        assert ("2 claimed" in repr(queue)) is waits_outside
        await queue.enqueue(kind.element(2))
        await taking.result()
        assert queue.statistics().dequeued == 3

    @pytest.mark.slow(every=4)
    async def test_while_tasks_are_cancelled(self, task_world: TaskWorld, kind: Kind) -> None:
        """At each step of random programs of tasks, whatever has just been granted or undone."""
        choices = random.Random(kind.name)
        queue = kind.make(task_world, 3)
        machine = core_of(queue).machine
        operations: list[Any] = []
        for number in range(300):
            step = choices.randrange(6)
            if step == 0:
                operations.append(task_world.spawn(queue.enqueue, kind.element(number)))
            elif step == 1:
                operations.append(task_world.spawn(queue.dequeue))
            elif step == 2:
                operations.append(task_world.spawn(queue.dequeue_many, choices.randint(1, 3)))
            elif step == 3 and operations:
                operations.pop(choices.randrange(len(operations))).cancel()
            elif step == 4 and queue.statistics().unfinished:
                queue.task_done()
            else:
                await task_world.tick()
            assert not violations(machine)
            counts = queue.statistics()
            outside = counts.dequeued + counts.granted + counts.claimed
            assert counts.enqueued == counts.size + outside
        for operation in operations:
            operation.cancel()

    def test_of_an_observer_while_threads_work(self) -> None:
        queue = sync.FIFOQueue(7)

        def consume(n: int) -> None:
            try:
                while True:
                    queue.dequeue_many(n)
                    queue.task_done(n)
            except aioqueue.OutOfRangeError:
                pass

        def produce() -> None:
            for number in range(1500):
                queue.enqueue(number)

        threads = [threading.Thread(target=consume, args=(n,)) for n in (1, 2, 3)]
        threads += [threading.Thread(target=produce) for _ in range(2)]
        for thread in threads:
            thread.start()
        seen = 0
        while any(thread.is_alive() for thread in threads):
            counts = queue.statistics()
            inside = counts.size + counts.granted + counts.claimed
            assert counts.enqueued == counts.dequeued + inside
            assert 0 <= counts.unfinished <= counts.enqueued
            assert min(counts.size, counts.granted, counts.claimed, counts.dequeued) >= 0
            seen += 1
            if counts.enqueued == 3000:
                queue.close()
        assert seen

    def test_size_is_what_can_be_taken_now(self) -> None:
        world = ThreadWorld()

        async def body() -> None:
            queue = world.fifo(9)
            taking = await world.begin(queue.dequeue_many, 5)
            await queue.enqueue_many([1, 2])
            counts = queue.statistics()
            assert (queue.size(), len(queue), counts.size, counts.claimed) == (0, 0, 0, 2)
            await queue.enqueue_many([3, 4, 5])
            await taking.result()

        world.run(body)


class TestAJoinThatHangs:
    def test_of_a_task_done_that_was_forgotten(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = task_world.fifo(9, name="frontier")
            for number in range(4):
                await queue.enqueue(number)
            taking = await task_world.begin(queue.dequeue_many, 9)  # which takes all of them
            join = await waiting_join(task_world, queue)
            reported = aioqueue.explain()
            (culprit,) = [one for one in reported.culprits if one.kind == "unfinished"]
            assert culprit.queue == "frontier"
            assert culprit.sentence == (
                "4 elements of 'frontier' are unfinished: 4 with dequeues that have not ended"
            )
            taking.cancel()
            assert await taking.was_cancelled()
            await queue.dequeue_many(3)
            reported = aioqueue.explain()
            (culprit,) = [one for one in reported.culprits if one.kind == "unfinished"]
            assert culprit.sentence == (
                "4 elements of 'frontier' are unfinished: 1 inside, 3 taken out, without a"
                " task_done() yet"
            )
            assert "waits in join of 'frontier'" in str(reported)
            queue.task_done(4)
            await join.result()
            assert not [one for one in aioqueue.explain().culprits if one.kind == "unfinished"]

        task_world.run(body)
