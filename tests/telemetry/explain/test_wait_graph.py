"""Fifteen ways to hang: in each, the explanation names the root cause."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue import Culprit, Explanation, OutOfRangeError, sync
from aioqueue.inputs import from_iterable, items, numbers, prepare
from aioqueue.telemetry.explain.wait_graph import culprits_of
from tests.kit import functions
from tests.kit.worlds import PATIENCE, TASK_WORLDS, TaskWorld, spin_until

HERE = Path(__file__).name


class Hang:
    """A coordinator of threads whose workers hang, until the test lets them go."""

    def __init__(self) -> None:
        self.coord = sync.Coordinator()
        self.go = threading.Event()
        self.queues: list[sync.FIFOQueue] = []
        self._threads: list[threading.Thread] = []

    def queue(self, capacity: int, name: str) -> sync.FIFOQueue:
        queue = sync.FIFOQueue(capacity, name=name)
        self.queues.append(queue)
        return queue

    def thread(self, name: str, call: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                call()
            except aioqueue.AioQueueError:
                pass  # the end of the test

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def explained(
        self,
        is_there: Callable[[Explanation], object],
        explain: Callable[[], Explanation] | None = None,
    ) -> Explanation:
        """The explanation, once it is of the hang."""
        found: list[Explanation] = []

        def is_blocked() -> object:
            found[:] = [(explain or self.coord.explain)()]
            return is_there(found[0])

        spin_until(is_blocked)
        return found[0]

    def close(self) -> None:
        self.go.set()
        self.coord.request_stop()
        for queue in self.queues:
            queue.close(cancel_pending_enqueues=True)
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        try:
            self.coord.join()
        except ExceptionGroup:
            pass  # what the hang has left


LEFT: set[str] = set()
"""Queues of other tests, at which somebody has been left waiting."""


@pytest.fixture
def hang() -> Iterator[Hang]:
    gc.collect()  # explanations tell of all queues, also of those that other tests have left
    LEFT.clear()
    LEFT.update(culprit.queue for culprit in aioqueue.explain().culprits if culprit.queue)
    one = Hang()
    yield one
    one.close()


def culprits_here(found: Explanation) -> list[Culprit]:
    """The culprits, without those of other tests."""
    return [one for one in found.culprits if one.queue not in LEFT]


def culprit_of(found: Explanation, kind: str, **named: str) -> Culprit:
    """The first culprit, which must match."""
    culprits = culprits_here(found)
    assert culprits, str(found)
    culprit = culprits[0]
    assert culprit.kind == kind, str(found)
    for name, value in named.items():
        assert value in str(getattr(culprit, name)), str(found)
    assert culprit.sentence in str(found)
    return culprit


def has_waiter(name: str, side: str = "dequeue") -> Callable[[Explanation], object]:
    """Whether somebody waits at a queue."""
    return lambda found: any(
        caller.side == side for one in found.queues if one.name == name for caller in one.callers
    )


def both(*conditions: Callable[[Explanation], object]) -> Callable[[Explanation], object]:
    return lambda found: all(condition(found) for condition in conditions)


def held_value(value: str, function: str) -> Callable[[Explanation], object]:
    """Whether a worker has an item, and has come to the function, where it waits."""
    return lambda found: any(
        worker.item is not None
        and worker.item.text == value
        and any(function in frame.function for frame in worker.stack)
        for stage in found.stages
        for worker in stage.workers
    )


class TestHangs:
    def test_a_dead_read(self, hang: Hang) -> None:
        def read(number: int) -> int:
            if number == 37:
                hang.go.wait(PATIENCE)
            return number

        examples = hang.queue(8, "examples")
        hang.coord.start(prepare(range(100), read, into=examples, workers=2, ordered=True))
        hang.thread("trainer", lambda: [examples.dequeue() for _ in range(100)])
        found = hang.explained(both(has_waiter("examples"), held_value("37", "read")))
        culprit = culprit_of(found, "item", stage="read (2 threads)", sentence="item 37 (epoch 0")
        assert culprit.item is not None
        assert (culprit.item.index, culprit.item.attempt) == (37, 1)
        assert f"{HERE}:" in culprit.sentence
        assert (
            "in TestHangs.test_a_dead_read.<locals>.read: hang.go.wait(PATIENCE)"
            in culprit.sentence
        )
        assert culprit.chain[0].startswith("trainer waits for 1 element in 'examples' (0/8)")
        assert culprit.chain[1] == "'examples' is filled by read (2 threads)"

    def test_a_lock_cycle(self, hang: Hang) -> None:
        locks = threading.Lock(), threading.Lock()
        have_one = threading.Barrier(2)

        def take_both(number: int) -> int:
            locks[number].acquire()
            have_one.wait(PATIENCE)
            locks[1 - number].acquire()  # the other has it
            return number

        examples = hang.queue(8, "examples")
        hang.coord.start(prepare([0, 1], take_both, into=examples, workers=2))
        hang.thread("trainer", examples.dequeue)

        def is_there(found: Explanation) -> bool:
            return str(found).count("take_both: locks[1 - number].acquire()") >= 4

        found = hang.explained(both(has_waiter("examples"), is_there))
        culprit_of(found, "item", stage="take_both")
        items = {culprit.item.text for culprit in found.culprits if culprit.item is not None}
        assert items == {"0", "1"}  # both of them, each with its line
        for lock in locks:
            lock.release()  # to whoever waits for it

    def test_a_full_queue_without_a_consumer(self, hang: Hang) -> None:
        examples = hang.queue(8, "examples")
        hang.coord.start(sync.QueueRunner(examples, [lambda: examples.enqueue(1)] * 2))
        found = hang.explained(has_waiter("examples", "enqueue"))
        culprit = culprit_of(found, "nobody takes", queue="examples", sentence="full (8/8)")
        assert "nobody has ever waited to take from it" in culprit.sentence

    def test_a_runner_that_has_ended(self, hang: Hang) -> None:
        examples = hang.queue(8, "examples")

        def ends() -> None:
            raise OutOfRangeError("no more files")

        runner = sync.QueueRunner(examples, ends, close_op=lambda: None)  # which forgets to
        hang.coord.start(runner)
        hang.thread("trainer", examples.dequeue)
        found = hang.explained(
            lambda found: (
                has_waiter("examples")(found)
                and any(one.name == "examples" and one.last_end for one in found.queues)
            )
        )
        culprit = culprit_of(found, "nobody fills", queue="examples")
        assert culprit.sentence == (
            "nobody fills 'examples': its runner has ended: OutOfRangeError: no more files, and"
            " has not closed it"
        )

    @pytest.mark.skipif(sys.platform != "linux", reason="the state of a process is read there")
    def test_a_stopped_process(self, hang: Hang) -> None:
        examples = hang.queue(8, "examples")
        runner = prepare([7], functions.never_ends, into=examples, workers=1, where="process")
        hang.coord.start(runner)
        hang.thread("trainer", examples.dequeue)
        found = hang.explained(both(has_waiter("examples"), held_value("7", "never_ends")))
        culprit = culprit_of(found, "item", stage="never_ends", sentence="in never_ends")
        pid = int(str(culprit.worker).partition("pid ")[2].rstrip(")"))
        os.kill(pid, signal.SIGSTOP)
        found = hang.explained(lambda found: culprits_here(found)[0].kind == "process")
        culprit = culprit_of(found, "process", sentence="is stopped (SIGSTOP)", worker=f"pid {pid}")
        assert "item 7 (" in culprit.sentence

    def test_a_forgotten_close(self, hang: Hang) -> None:
        examples = hang.queue(8, "examples")
        hang.thread("reader", lambda: examples.enqueue(1)).join(PATIENCE)
        hang.thread("trainer", lambda: [examples.dequeue() for _ in range(2)])
        found = hang.explained(has_waiter("examples"))
        # This very thread could still fill it: then it is no root cause, but a hint.
        assert not culprits_here(found)
        (hint,) = (one for one in found.hints if one.queue == "examples")
        assert "or its producers have ended without closing it" in hint.sentence
        assert hint.chain[0].startswith("trainer waits for 1 element in 'examples' (0/8), for")
        assert hint.sentence in str(found)
        # If no thread is left that could, it is one.
        (culprit,) = culprits_of(found.queues, found.stages, found.waits)
        assert "after 1 element nobody has closed it (is a close() missing?)" in culprit.sentence

    def test_a_consumer_that_has_ended(self, hang: Hang) -> None:
        examples = hang.queue(2, "examples")
        trainer = hang.thread("trainer", examples.dequeue)
        spin_until(lambda: examples.statistics().waiting_dequeues)
        hang.coord.start(sync.QueueRunner(examples, lambda: examples.enqueue(1)))
        trainer.join(PATIENCE)
        found = hang.explained(has_waiter("examples", "enqueue"))
        culprit = culprit_of(found, "nobody takes", queue="examples", worker="trainer")
        assert "trainer, who took from it last, has ended" in culprit.sentence

    def test_a_cycle_of_two_queues(self, hang: Hang) -> None:
        there, back = hang.queue(2, "there"), hang.queue(2, "back")
        there.enqueue(0)
        hang.coord.start(prepare(there, twice, into=back, workers=1))
        hang.coord.start(prepare(back, twice, into=there, workers=1))
        found = hang.explained(both(has_waiter("there", "enqueue"), has_waiter("back", "enqueue")))
        culprit = culprit_of(found, "cycle", sentence="these wait for each other")
        assert "'there'" in culprit.sentence
        assert "'back'" in culprit.sentence

    def test_two_queues_filled_and_emptied_in_another_order(self, hang: Hang) -> None:
        images, labels = hang.queue(2, "images"), hang.queue(2, "labels")

        def fill() -> None:
            for _ in range(9):
                images.enqueue(0)
            labels.enqueue(0)

        hang.thread("reader", fill)
        hang.thread("trainer", lambda: (labels.dequeue(), images.dequeue()))
        found = hang.explained(both(has_waiter("images", "enqueue"), has_waiter("labels")))
        culprit = culprit_of(found, "cycle", worker="reader")
        assert culprit.sentence.startswith("trainer and reader wait for each other")

    def test_a_blocked_source(self, hang: Hang) -> None:
        def lines() -> Iterator[int]:
            yield 1
            hang.go.wait(PATIENCE)  # a socket that says no more

        examples = hang.queue(8, "examples")
        hang.coord.start(prepare(lines(), float, into=examples, workers=2))
        hang.thread("trainer", lambda: [examples.dequeue() for _ in range(2)])
        found = hang.explained(
            lambda found: has_waiter("examples")(found) and "hang.go.wait(PATIENCE)" in str(found)
        )
        culprit = culprit_of(found, "source", stage="float (2 threads)")
        assert "the source of float (2 threads) has yielded nothing for" in culprit.sentence
        assert "lines: hang.go.wait(PATIENCE)" in culprit.sentence

    def test_a_lost_wake_in_the_code_of_the_user(self, hang: Hang) -> None:
        condition = threading.Condition()

        def wait_for_another() -> None:
            with condition:
                condition.wait(PATIENCE)  # whoever notifies has done so already

        examples = hang.queue(8, "examples")
        hang.coord.start(sync.QueueRunner(examples, wait_for_another))
        hang.thread("trainer", examples.dequeue)
        found = hang.explained(
            lambda found: has_waiter("examples")(found) and "condition.wait" in str(found)
        )
        culprit = culprit_of(found, "worker", stage="the QueueRunner of wait_for_another")
        assert "wait_for_another: condition.wait(PATIENCE)" in culprit.sentence
        with condition:
            condition.notify_all()
        hang.coord.request_stop()

    def test_an_exhausted_limit(self, hang: Hang) -> None:
        def fetch(url: str) -> str:
            if url == "a/0":
                hang.go.wait(PATIENCE)
            return url

        examples = hang.queue(8, "examples")
        urls = ["a/0", "a/1", "a/2"]
        runner = prepare(
            urls,
            fetch,
            into=examples,
            workers=2,
            concurrency_key=lambda url: url.split("/")[0],
            max_per_key=1,
        )
        hang.coord.start(runner)
        hang.thread("trainer", examples.dequeue)
        found = hang.explained(
            lambda found: has_waiter("examples")(found) and "2 items put aside" in str(found)
        )
        culprit_of(found, "item", sentence="item 'a/0'", stage="fetch")
        assert "concurrency_key: all 1 of key 'a' are in preparation, 2 items put aside" in str(
            found
        )

    @pytest.mark.parametrize("world_type", TASK_WORLDS, ids=lambda world: world.name)
    def test_a_task(self, world_type: type[TaskWorld]) -> None:
        """In asyncio, uvloop and trio, and behind an async generator."""
        if world_type.missing():
            pytest.skip(world_type.missing())
        world = world_type()

        async def parts() -> Any:
            await anyio.sleep(3600)
            yield 1

        async def download(number: int) -> int:
            async for _ in parts():
                break
            return number

        async def body() -> None:
            examples = world.fifo(8, name="examples")
            async with aioqueue.Coordinator() as coord:
                coord.start(prepare([37], download, into=examples, workers=2))
                consumer = await world.begin(examples.dequeue)
                await world.until(lambda: "anyio.sleep(3600)" in str(coord.explain()))
                culprit = culprit_of(coord.explain(), "item", stage="download (2 tasks)")
                assert "parts: await anyio.sleep(3600)" in culprit.sentence
                assert "item 37" in culprit.sentence
                coord.request_stop()
                with pytest.raises(OutOfRangeError):
                    await consumer.result()

        world.run(body)


class TestPipelines:
    def test_the_stage_that_hangs_is_named_from_the_end_of_the_pipeline(self, hang: Hang) -> None:
        def decode(number: int) -> int:
            if number == 5:
                hang.go.wait(PATIENCE)
            return number

        pipeline = numbers(100).prepare(decode, workers=2).batch(2).prepare(float_of, workers=1)
        epochs = pipeline.epochs(1)
        hang.thread("trainer", lambda: [list(epoch) for epoch in epochs])

        def is_there(found: Explanation) -> bool:
            culprits = culprits_here(found)
            return bool(culprits) and culprits[0].kind == "item"

        # The trainer still moves now and then, so ask once, and look at that answer.
        found = hang.explained(is_there, epochs.explain)
        culprit = culprit_of(found, "item", stage="decode (2 threads)")
        assert culprit.item is not None
        assert culprit.item.text == "5"
        hang.go.set()

    def test_no_caller_waits_before_and_after_a_run(self) -> None:
        epochs = items([1]).batch(1).epochs(1)
        assert epochs.explain().pid == os.getpid()
        assert [[batch.tolist() for batch in epoch] for epoch in epochs] == [[[1]]]
        assert "joined, no failures" in str(epochs.explain())


class TestWaitsAtNoQueue:
    """Waits in a batcher, in a join, and in the functions of a pipeline."""

    def test_callers_of_a_batcher_whose_function_is_stuck(self, hang: Hang) -> None:
        def answer(batch: list[int]) -> list[int]:
            hang.go.wait(PATIENCE)
            return batch

        with sync.Batcher(answer, max_batch=1, name="model") as ask:
            for number in range(3):
                hang.thread(f"caller-{number}", lambda: ask(1))
            found = hang.explained(lambda found: found.waits and "answer" in str(found))
            culprit = culprit_of(found, "worker", sentence="answer: hang.go.wait(PATIENCE)")
            assert culprit.stage is not None
            assert culprit.stage.endswith("answer")
            assert "1 caller waits for Batcher 'model'" in culprit.chain[0]
            hang.go.set()

    def test_callers_of_a_batcher_in_tasks(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            go = anyio.Event()

            async def answer(batch: list[int]) -> list[int]:
                await go.wait()
                return batch

            async with aioqueue.Batcher(answer, max_batch=4, max_wait=0.05) as ask:
                callers = [task_world.spawn(ask, number) for number in range(3)]
                await task_world.until(lambda: "await go.wait()" in str(aioqueue.explain()))
                found = aioqueue.explain()
                culprit_of(found, "worker", sentence="answer: await go.wait()")
                assert [wait.name for wait in found.waits] == ["3 callers"]
                go.set()
                assert [await caller.result() for caller in callers] == [0, 1, 2]

        task_world.run(body)

    @pytest.mark.parametrize("what", ["filter", "source", "collate"])
    def test_the_loops_own_thread(self, hang: Hang, what: str) -> None:
        def stuck(given: Any) -> Any:
            hang.go.wait(PATIENCE)
            return given

        pipelines: dict[str, Any] = {
            "filter": items(range(50)).prepare(abs, workers=1).filter(stuck),
            "source": from_stuck(stuck),
            "collate": items(range(50)).prepare(abs, workers=1).batch(4, collate=stuck),
        }
        epochs = pipelines[what].epochs(1)
        hang.thread("trainer", lambda: [list(epoch) for epoch in epochs])
        found = hang.explained(lambda found: "stuck" in str(culprits_here(found)[:1]))
        culprit = culprit_of(found, "worker", worker="trainer", sentence="stuck: hang.go.wait")
        assert "trainer waits for the next batch of a pipeline" in culprit.chain[0]
        hang.go.set()

    def test_a_join_of_a_thread_that_is_stuck(self, hang: Hang) -> None:
        def work() -> None:
            hang.go.wait(PATIENCE)

        with sync.Coordinator() as coord:
            coord.register(hang.thread("worker", work))
            hang.thread("joiner", lambda: coord.join())
            found = hang.explained(lambda found: found.waits and "hang.go.wait" in str(found))
            culprit = culprit_of(found, "worker", worker="worker", sentence="work: hang.go.wait")
            assert "joiner waits in join for worker" in culprit.chain[0]
            hang.go.set()

    def test_leaving_a_block_with_a_stuck_thread(self, hang: Hang) -> None:
        """A stop was requested; it waits in a join all the same."""

        def work() -> None:
            hang.go.wait(PATIENCE)

        def leave() -> None:
            with sync.Coordinator() as coord:
                coord.register(hang.thread("worker", work))

        hang.thread("leaver", leave)
        found = hang.explained(lambda found: found.waits and "hang.go.wait" in str(found))
        culprit = culprit_of(found, "worker", worker="worker", sentence="work: hang.go.wait")
        assert "leaver waits in join for worker" in culprit.chain[0]
        hang.go.set()

    def test_a_join_of_a_worker_that_waits_at_a_queue(self, hang: Hang) -> None:
        """It is the queue that is to blame, and not the worker."""
        queue = hang.queue(8, "examples")
        with sync.Coordinator() as coord:
            coord.register(hang.thread("worker", queue.dequeue))
            hang.thread("joiner", lambda: coord.join())
            found = hang.explained(lambda found: found.waits and has_waiter("examples")(found))
            assert not culprits_here(found)
            assert [one.queue for one in found.hints if one.queue == "examples"] == ["examples"]
            queue.close()

    def test_a_thread_that_does_not_wait_is_left_out(self) -> None:
        assert not aioqueue.explain().waits


def from_stuck(stuck: Callable[[Any], Any]) -> Any:
    """A source that the loop itself reads."""

    def read() -> Iterator[int]:
        yield stuck(1)

    return from_iterable(read).batch(1)


def twice(number: int) -> Iterator[int]:
    yield number
    yield number


def float_of(batch: Any) -> Any:
    return batch
