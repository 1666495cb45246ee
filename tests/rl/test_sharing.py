"""A `RolloutQueue` whose trainers are in other processes."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    OutOfRangeError,
    WorkerDiedError,
)
from aioqueue.rl import Batch, RolloutQueue
from aioqueue.rl import sharing as rl_sharing
from tests.kit.sharing import METHODS, PATIENCE, Child, children, sharing_ended
from tests.kit.worlds import TaskOperation, TaskWorld, World, spin_until
from tests.rl.functions import Opened, quick
from tests.rl.kit import Engine, Trainer, generating, handle_of

Start = Callable[..., Child]


@pytest.fixture
def child() -> Iterator[Start]:
    """Starts processes that call a function; see `tests.kit.sharing.Child`."""
    with sharing_ended(), children() as start:
        yield start


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets `handle_of` stand for a handle in another process."""
    monkeypatch.setattr(rl_sharing, "running_server", lambda: None)
    with sharing_ended():
        yield


def prompts_of(batch: Batch[Any, Any]) -> list[Any]:
    return [group.prompt for group in batch.groups]


def shared(prompts: int = 12, **options: Any) -> RolloutQueue[Any, Any]:
    options = {"batch_size": 2, "group_size": 2, "order": "strict", **options}
    return RolloutQueue(range(prompts), **options).share()


@asynccontextmanager
async def generated(rollouts: RolloutQueue[Any, Any], function: Any = quick) -> AsyncIterator[None]:
    async with aioqueue.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(function))
        yield


def in_background(rollouts: RolloutQueue[Any, Any], function: Any = quick) -> sync.Coordinator:
    coordinator = sync.Coordinator()
    coordinator.start(rollouts.generate(function))
    return coordinator


def check_sums(rollouts: RolloutQueue[Any, Any]) -> None:
    counts = rollouts.statistics()
    left = counts.trained + counts.refused + counts.dropped + counts.returned + counts.existing
    assert counts.admitted == left


# What other processes do.


def train(rollouts: Any) -> Any:
    found = []
    for batch in rollouts.sync.batches():
        found.append((batch.step, prompts_of(batch)))
        with rollouts.sync.publishing({"of": batch.step}, drain=True) as publication:
            assert publication == (batch.step + 1, batch.step)
    weights = rollouts.sync.policy.get()
    counts = rollouts.statistics()
    return found, weights.value, counts.trained, rollouts.version, repr(rollouts)


def train_async(rollouts: Any, steps: int) -> Any:
    async def body() -> list[Any]:
        found = []
        async for batch in rollouts.batches(steps):
            found.append(prompts_of(batch))
            await rollouts.publish()
        return found

    return asyncio.run(body())


def hold(rollouts: Any, number: int, pipe: Any) -> None:
    batches = [rollouts.sync.get() for _ in range(number)]
    pipe.send([(batch.step, prompts_of(batch)) for batch in batches])
    pipe.recv()


def wait_at(rollouts: Any, pipe: Any) -> None:
    pipe.send("waits")
    rollouts.sync.get()


def publish_for_ever(rollouts: Any, pipe: Any) -> None:
    rollouts.sync.get()
    with rollouts.sync.publishing():
        pipe.send("inside")
        pipe.recv()


def evaluate_for_ever(rollouts: Any, pipe: Any) -> None:
    pipe.send("evaluates")
    rollouts.sync.evaluate(["question"])


def end_part(part: Any) -> int:
    part.done()
    part.done()
    return len(part)


def own(name: str, pipe: Any) -> None:
    """Share a queue, whose rollouts of one prompt never end, until a message comes."""
    rollouts = RolloutQueue(range(8), batch_size=4, steps_ahead=0)
    rollouts.share(name=name)
    with in_background(rollouts, never_for_questions):
        pipe.send("shares")
        pipe.recv()


async def never_for_questions(prompt: Any, rollout: Any) -> Any:
    if prompt == "question":
        await anyio.sleep_forever()
    return prompt


def own_to_the_end(name: str, pipe: Any) -> Any:
    rollouts = RolloutQueue(range(4), batch_size=2)
    rollouts.share(name=name)
    with sync.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(quick))
        pipe.send("shares")
        coordinator.join()
    return rollouts.statistics().trained


def refuse(rollouts: Any) -> list[str]:
    messages = []
    blocking = rollouts.sync
    for wrong in (
        lambda: rollouts.set(batch_size=0),
        lambda: blocking.publish(steps=9),
        lambda: blocking.publishing(drain="some"),
        lambda: blocking.batches(steps=-1),
        lambda: blocking.evaluate(["q"], group_size=0),
        lambda: rollouts.share(name="another"),
        lambda: rollouts.load_state_dict({}),
        lambda: rollouts.generate(quick),
        lambda: blocking.get(timeout=-1),
    ):
        with pytest.raises((InvalidArgumentError, RuntimeError)) as caught:
            wrong()  # type: ignore[no-untyped-call]
        messages.append(f"{type(caught.value).__name__}: {caught.value}")
    with blocking.publishing():
        for wrong in (blocking.get, lambda: blocking.evaluate(["q"]), blocking.publish):
            with pytest.raises(RuntimeError, match="would wait for itself"):
                wrong()
    return messages


class TestTraining:
    @pytest.mark.parametrize(
        "method", [METHODS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in METHODS[1:])]
    )
    def test_a_process_trains(self, child: Start, method: str) -> None:
        rollouts = shared()
        with in_background(rollouts):
            training = child(train, rollouts, method=method)
            found, weights, trained, version, text = training.result()
        assert found == [(step, [2 * step, 2 * step + 1]) for step in range(6)]
        assert (weights, trained, version) == ({"of": 5}, 12, 6)
        assert text == f"<aioqueue.rl.RolloutQueue '{rollouts.name}', of process {os.getpid()}>"
        check_sums(rollouts)

    def test_it_is_found_by_its_name(self, child: Start) -> None:
        rollouts = shared(6)
        rollouts.share(name=f"rollouts-{os.getpid()}")
        with in_background(rollouts):
            name = f"rollouts-{os.getpid()}"
            assert child(connect_and_train, name).result() == [[0, 1], [2, 3]]
            assert aioqueue.connect(name) is rollouts
            assert rollouts.sync.get().step == 2

    def test_several_trainers_get_different_steps(self, child: Start) -> None:
        rollouts = shared(40, steps_ahead=3)
        with in_background(rollouts):
            trainers = [child(train_alone, rollouts) for _ in range(3)]
            found = [prompt for one in trainers for prompt in one.result()]
        assert sorted(found) == list(range(40))
        assert rollouts.statistics().trained == 40

    @pytest.mark.slow
    def test_ranks_end_their_parts(self, child: Start) -> None:
        rollouts = shared(4, batch_size=3)
        with in_background(rollouts):
            batch = rollouts.sync.get()
            ranks = [
                child(end_part, part, method=method)
                for part, method in zip(batch.split(3), ("fork", "spawn", "fork"), strict=True)
            ]
            assert [rank.result() for rank in ranks] == [1, 1, 1]
            spin_until(lambda: rollouts.statistics().trained == 3)
            assert rollouts.sync.get().step == 1

    def test_a_handle_that_comes_home_is_the_queue_itself(self, child: Start) -> None:
        rollouts = shared()
        assert pickle.loads(pickle.dumps(rollouts)) is rollouts
        assert pickle.loads(pickle.dumps(rollouts.sync)).aio is rollouts
        rollouts.share()

    def test_a_batch_that_comes_home_is_of_its_step(self, child: Start) -> None:
        rollouts = shared()
        with in_background(rollouts) as coordinator:
            copied = pickle.loads(pickle.dumps(rollouts.sync.get()))
            copied.done()
            assert rollouts.statistics().trained == 2
            coordinator.request_stop()

    def test_a_queue_that_is_not_shared_cannot_be_pickled(self) -> None:
        with pytest.raises(TypeError, match=r"Share it \(`rollouts\.share\(\)`\)"):
            pickle.dumps(RolloutQueue(range(2), batch_size=1))


def connect_and_train(name: str) -> Any:
    rollouts = sync.connect(name)
    return train_async(rollouts.aio, steps=2)


def train_alone(rollouts: Any) -> Any:
    found = []
    for batch in rollouts.sync.batches():
        found += prompts_of(batch)
    return found


class TestDeaths:
    def test_the_steps_of_a_process_that_dies_come_back(self, child: Start) -> None:
        rollouts = shared(12, steps_ahead=2)
        with in_background(rollouts):
            holding = child(hold, rollouts, 2, talks=True)
            assert holding.reported() == [(0, [0, 1]), (1, [2, 3])]
            holding.kill()
            spin_until(lambda: rollouts.step == 0)
            assert rollouts.statistics().held == 0
            found = [(batch.step, prompts_of(batch)) for batch in rollouts.sync.batches()]
        assert found == [(step, [2 * step, 2 * step + 1]) for step in range(6)]
        check_sums(rollouts)

    def test_an_older_step_comes_back_as_it_was(self, child: Start) -> None:
        rollouts = shared(12, steps_ahead=2)
        with in_background(rollouts):
            holding = child(hold, rollouts, 1, talks=True)
            assert holding.reported() == [(0, [0, 1])]
            newer = rollouts.sync.get()
            holding.kill()
            spin_until(lambda: rollouts._core.machine.given_back)
            again = rollouts.sync.get()
            assert (again.step, prompts_of(again), newer.step) == (0, [0, 1], 1)
            with rollouts.sync.publishing():
                pass
            rest = [(batch.step, prompts_of(batch)) for batch in rollouts.sync.batches()]
        assert rest == [(step, [2 * step, 2 * step + 1]) for step in range(2, 6)]
        assert rollouts.statistics().trained == 12

    def test_a_process_dies_while_it_waits(self, child: Start) -> None:
        rollouts = shared(4)
        rollouts.set(max_in_flight=0)
        with in_background(rollouts):
            waiting = child(wait_at, rollouts, talks=True)
            assert waiting.reported() == "waits"
            spin_until(lambda: len(rollouts._core.takers) == 1)
            assert f"process {waiting.pid} waits for step 0" in str(rollouts.explain())
            waiting.kill()
            spin_until(lambda: not rollouts._core.takers)
            rollouts.set(max_in_flight=4)
            assert [batch.step for batch in rollouts.sync.batches()] == [0, 1]

    @pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
    def test_a_process_dies_while_it_publishes(self, child: Start, signum: int) -> None:
        rollouts = shared(8)
        with in_background(rollouts):
            publishing = child(publish_for_ever, rollouts, talks=True)
            assert publishing.reported() == "inside"
            assert f"publishing() of {rollouts._core} is open" in explained_by_a_trainer(rollouts)
            publishing.kill(signum)
            spin_until(lambda: rollouts.step == 0)
            assert rollouts.version == 0
            assert rollouts._core.publisher is None
            assert len([*rollouts.sync.batches()]) == 4

    def test_a_process_dies_while_it_evaluates(self, child: Start) -> None:
        rollouts = shared(2, max_in_flight=2)
        gate = threading.Event()
        with in_background(rollouts, lambda prompt, rollout: gate.wait(PATIENCE)):
            evaluating = child(evaluate_for_ever, rollouts, talks=True)
            assert evaluating.reported() == "evaluates"
            spin_until(lambda: rollouts.statistics().evaluating == 1)
            evaluating.kill()
            spin_until(lambda: rollouts.statistics().evaluating == 0)
            gate.set()
            assert len([*rollouts.sync.batches()]) == 1

    @pytest.mark.parametrize("end", ["killed", "in order"])
    def test_the_owner_ends(self, child: Start, end: str) -> None:
        name = f"rollouts-{os.getpid()}-{end.replace(' ', '-')}"
        owner = child(own, name, talks=True)
        assert owner.reported() == "shares"
        rollouts = aioqueue.connect(name)
        with pytest.raises(DeadlineExceededError):
            rollouts.sync.get(timeout=0)
        batch = rollouts.sync.get()
        errors: list[BaseException] = []

        def note(call: Callable[[], Any]) -> None:
            try:
                call()
            except BaseException as error:
                errors.append(error)

        with pytest.raises(WorkerDiedError), rollouts.sync.publishing():
            threads = [
                threading.Thread(target=note, args=(rollouts.sync.get,)),
                threading.Thread(target=note, args=(lambda: asyncio.run(take(rollouts)),)),
                threading.Thread(target=note, args=(lambda: rollouts.sync.evaluate(["question"]),)),
            ]
            for thread in threads:
                thread.start()
            spin_until(lambda: len(rollouts._core.waiting) == 3)
            if end == "killed":
                owner.kill()
            else:
                owner.pipe.send("end")
                owner.wait()
            for thread in threads:
                thread.join(PATIENCE)
        # At a stop the trainers get the end, if the owner has the time to say so.
        died = [error for error in errors if isinstance(error, WorkerDiedError)]
        assert len(errors) == 3
        assert len(died) == 3 or end == "in order"
        for error in died:
            assert f"{rollouts._core}: " in str(error)
            assert str(owner.pid) in str(error)
        for call in (
            rollouts.sync.get,
            rollouts.statistics,
            rollouts.close,
            batch.done,
            rollouts.sync.publish,
        ):
            with pytest.raises(WorkerDiedError):
                call()

    def test_the_last_trainer_gets_the_end(self, child: Start) -> None:
        name = f"rollouts-{os.getpid()}-end"
        owner = child(own_to_the_end, name, talks=True)
        assert owner.reported() == "shares"
        rollouts = aioqueue.connect(name)
        assert len([*rollouts.sync.batches()]) == 2
        assert owner.result() == 4


async def take(rollouts: Any) -> None:
    await rollouts.get()


def explained_by_a_trainer(rollouts: RolloutQueue[Any, Any]) -> str:
    """Explain what an evaluation here waits for, while weights are published elsewhere."""

    async def body() -> str:
        taking = asyncio.ensure_future(rollouts.publish())
        while not rollouts._core.publishers:
            await asyncio.sleep(0)
        asking = asyncio.ensure_future(rollouts.evaluate(["question"]))
        while not rollouts._core.waiting_evaluations():
            await asyncio.sleep(0)
        text = str(rollouts.explain())
        for task in (taking, asking):
            task.cancel()
        await asyncio.gather(taking, asking, return_exceptions=True)
        return text

    return asyncio.run(body())


@pytest.mark.usefixtures("handles")
class TestCancellation:
    @pytest.mark.slow("trio")  # each tick sleeps there
    def test_a_cancelled_trainer_leaves_its_batch(self, task_world: TaskWorld) -> None:
        """At each moment of a call that has something to take: none is lost or comes twice."""
        chance = random.Random(1)

        async def body() -> None:
            rollouts = RolloutQueue(range(200), batch_size=1, order="strict")
            async with generating(task_world, rollouts, Engine(task_world)):
                handle = handle_of(rollouts)
                found: list[Any] = []
                cancelled = 0
                while len(found) < 200:
                    taking = task_world.spawn(handle.get)
                    if chance.random() < 0.5:
                        await task_world.until(partial(is_answered, handle, taking))
                    for _ in range(chance.randrange(3)):
                        await task_world.tick()
                    taking.cancel()
                    if await taking.was_cancelled():
                        cancelled += 1
                        # Over is over: nothing of the call is left at the owner.
                        assert rollouts.statistics().held == 0
                        assert not rollouts._core.takers
                        continue
                    batch = await taking.result()
                    found += prompts_of(batch)
                    batch.done()
                    await task_world.until(lambda: rollouts.statistics().held == 0)
            assert found == list(range(200))
            assert cancelled
            check_sums(rollouts)

        task_world.run(body)

    def test_a_timeout_leaves_the_batch(self) -> None:
        rollouts = RolloutQueue(range(50), batch_size=1, order="strict")
        chance = random.Random(2)
        with in_background(rollouts):
            handle = handle_of(rollouts).sync
            found: list[Any] = []
            while len(found) < 50:
                try:
                    batch = handle.get(timeout=chance.random() * 1e-3)
                except DeadlineExceededError:
                    assert rollouts.statistics().held == 0
                    continue
                found += prompts_of(batch)
                batch.done()
                spin_until(lambda: rollouts.statistics().held == 0)
            assert found == list(range(50))
            with pytest.raises(OutOfRangeError):
                handle.get()

    def test_a_cancelled_publication_changes_nothing(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            rollouts = RolloutQueue(range(20), batch_size=2)
            async with generating(task_world, rollouts, Engine(task_world)):
                handle = handle_of(rollouts)
                await handle.get()
                for turns in range(12):
                    publishing = task_world.spawn(publish_inside, handle)
                    if turns > 5:
                        await task_world.until(lambda: rollouts._core.publisher is not None)
                    for _ in range(turns % 6):
                        await task_world.tick()
                    publishing.cancel()
                    assert await publishing.was_cancelled()
                    assert rollouts._core.publisher is None
                    assert rollouts.version == 0
                assert await handle.publish() == 1

        task_world.run(body)

    def test_two_blocks_take_turns(self, world: World) -> None:
        async def body() -> None:
            rollouts = RolloutQueue(range(20), batch_size=2)
            async with generating(world, rollouts, Engine(world)):
                trainer, handle = Trainer(world, rollouts), Trainer(world, handle_of(rollouts))
                async with handle.publishing():
                    publishing = world.spawn(trainer.publish)
                    await world.until(lambda: len(rollouts._core.publishers) == 1)
                    assert not publishing.done
                await publishing.result()

        world.run(body)


def is_answered(handle: Any, operation: TaskOperation) -> bool:
    """Whether the answer of a call has come, though its caller may not have run on yet."""
    return operation.done or any(call.gate.is_open for call in list(handle._core.waiting))


async def publish_inside(handle: Any) -> None:
    async with handle.publishing():
        await anyio.sleep_forever()


@pytest.mark.usefixtures("handles")
class TestFailures:
    def test_a_batch_that_cannot_be_pickled_stays(self) -> None:
        rollouts = RolloutQueue(range(2), batch_size=2)
        with in_background(rollouts, lambda prompt, rollout: lambda: prompt):
            handle = handle_of(rollouts).sync
            for _ in range(2):
                with pytest.raises(Exception, match="pickle") as caught:
                    handle.get()
                assert "while pickling <aioqueue.rl.Batch of step 0" in notes_of(caught.value)
            assert prompts_of(rollouts.sync.get()) == [0, 1]

    def test_a_batch_that_cannot_be_unpickled_stays(self) -> None:
        rollouts = RolloutQueue(range(2), batch_size=2)
        with in_background(rollouts, lambda prompt, rollout: Opened()):
            handle = handle_of(rollouts).sync
            for _ in range(2):
                with pytest.raises(ValueError) as caught:  # noqa: PT011  # of `int`
                    handle.get()
                assert "cannot be unpickled here" in notes_of(caught.value)
            assert prompts_of(rollouts.sync.get()) == [0, 1]

    def test_weights_that_cannot_be_pickled(self, world: World) -> None:
        async def body() -> None:
            rollouts = RolloutQueue(range(4), batch_size=2)
            async with generating(world, rollouts, Engine(world)):
                handle = Trainer(world, handle_of(rollouts))
                await handle.get()
                with pytest.raises(Exception, match="pickle"):
                    await handle.publish(lambda: None)
                assert rollouts.version == 0
                assert await handle.publish("weights") == 1
                assert rollouts.policy.get_nowait().value == "weights"

        world.run(body)


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


def test_what_is_refused(child: Start) -> None:
    rollouts = shared(4)
    with in_background(rollouts) as coordinator:
        found = child(refuse, rollouts).result()
        coordinator.request_stop()
    expected = (
        "InvalidArgumentError: batch_size: got 0",
        "InvalidArgumentError: steps: got 9; expected 0",
        "InvalidArgumentError: drain: got 'some'",
        "InvalidArgumentError: steps: got -1",
        "InvalidArgumentError: group_size: got 0",
        "InvalidArgumentError: name: got 'another' for RolloutQueue",
        "RuntimeError: load_state_dict was called after the generation had begun",
        "RuntimeError: RolloutQueue",
        "InvalidArgumentError: timeout: got -1",
    )
    for message, begin in zip(found, expected, strict=True):
        assert message.startswith(begin)


class TestForks:
    def test_a_fork_of_the_owner_has_a_handle(self, child: Start) -> None:
        rollouts = shared(4)
        with in_background(rollouts):
            # Not as an argument that is pickled: as what the fork has inherited.
            assert child(Inherited(rollouts)).result() == [[0, 1], [2, 3]]

    def test_a_fork_of_a_trainer_has_a_connection_of_its_own(self, child: Start) -> None:
        rollouts = shared(4)
        with in_background(rollouts):
            assert child(train_in_a_fork, rollouts).result() == ([0, 1], 2)
            spin_until(lambda: rollouts.statistics().trained == 4)


class Inherited:
    """Trains on a queue that a fork has inherited."""

    def __init__(self, rollouts: Any) -> None:
        self.rollouts = rollouts

    def __call__(self) -> Any:
        return [prompts_of(batch) for batch in self.rollouts.sync.batches()]


def train_in_a_fork(rollouts: Any) -> Any:
    first = rollouts.sync.get()
    pid = os.fork()
    if not pid:
        try:
            second = rollouts.sync.get()
            first.done()  # reported by a connection of its own
            second.done()
            os._exit(prompts_of(second)[0])
        finally:
            os._exit(99)
    _, status = os.waitpid(pid, 0)
    return prompts_of(first), os.waitstatus_to_exitcode(status)
