"""Rollouts that are generated in a child process: deaths, publications, a trainer that blocks."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import anyio
import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import InvalidArgumentError, ItemTimeoutError, WorkerDiedError
from aioqueue.rl import Retry
from tests.kit.processing import (
    ROOT,
    is_running,
    open_files,
    pids,
    shared_memory,
    start_the_forkserver,
)
from tests.kit.worlds import AsyncioWorld, TaskWorld, ThreadWorld, World, spin_until
from tests.rl import functions
from tests.rl.kit import Trainer, generating
from tests.rl.test_queue import check_sums, queue
from tests.rl.test_queue_failures import only

try:
    import fcntl
except ImportError:
    pass

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL, no flock"),
    pytest.mark.slow(every=3),  # each starts processes
]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process, no thread of ours, no shared memory and no open file outlives a test."""
    start_the_forkserver()
    files, shared, processes = open_files(), shared_memory(), {*pids()}
    before = {*threading.enumerate()}
    yield
    spin_until(lambda: {*pids()} <= processes)
    spin_until(lambda: not [t for t in {*threading.enumerate()} - before if "Rollout" in t.name])
    gc.collect()
    assert shared_memory() <= shared
    assert open_files() <= files


class Note(NamedTuple):
    """The start of a call, as the child has noted it."""

    prompt: str
    rollout: int
    attempt: int
    version: int
    pid: int
    is_inside: bool


class Engine:
    """Generates in a child process, and holds calls of some prompts."""

    def __init__(self, world: World, folder: Path) -> None:
        self.folder = folder
        on_threads = isinstance(world, ThreadWorld)
        self.function = partial(functions.on_thread if on_threads else functions.in_task, folder)
        self._gates: dict[Any, int] = {}

    def hold(self, *prompts: Any) -> None:
        for prompt in prompts:
            gate = os.open(self.folder / f"gate-{prompt}", os.O_CREAT | os.O_RDWR)
            self._gates[prompt] = gate
            fcntl.flock(gate, fcntl.LOCK_EX)

    def release(self, *prompts: Any) -> None:
        """Let the calls of some prompts end; of all, without prompts."""
        for prompt in prompts or list(self._gates):
            os.close(self._gates.pop(prompt))

    def lines(self) -> list[str]:
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def started(self) -> list[Note]:
        words = [line.split() for line in self.lines() if not line.startswith("cancelled")]
        return [
            Note(one[0], int(one[1]), int(one[2]), int(one[3]), int(one[4]), one[5] == "True")
            for one in words
        ]


@pytest.fixture
def engine(world: World, tmp_path: Path) -> Iterator[Engine]:
    made = Engine(world, tmp_path)
    yield made
    made.release()


def in_process(world: World, rollouts: Any, function: Any, **options: Any) -> Any:
    function = function.function if isinstance(function, Engine) else function
    return generating(world, rollouts, function, where="process", **options)


class TestMonitoring:
    def test_statistics_do_not_hold_up_the_reports_of_the_process(
        self, world: World, engine: Engine
    ) -> None:
        """The process says where a rollout is, and its answer comes behind other reports."""

        async def body() -> None:
            rollouts = queue(3, batch_size=1, group_size=1, steps_ahead=2)
            engine.hold(2)
            async with in_process(world, rollouts, engine):
                trainer = Trainer(world, rollouts)
                for _ in range(2):
                    (await trainer.get()).done()
                taking = world.spawn(trainer.get)
                await world.until(lambda: rollouts._core.waiting_takers())
                await world.until(lambda: "functions.py" in rollouts.statistics().verdict)
                engine.release()
                await taking.result()

        world.run(body)

    def test_a_monitor_sees_the_rollouts_there(self, world: World, engine: Engine) -> None:
        async def body() -> None:
            rollouts = queue(3, batch_size=1, group_size=1, name="grpo")
            engine.hold(1)
            async with in_process(world, rollouts, engine) as coordinator:
                with aioqueue.Monitor(coordinator) as monitor:
                    trainer = Trainer(world, rollouts)
                    (await trainer.get()).done()
                    await world.until(lambda: rollouts.statistics().running == 1)
                    await world.until(lambda: rollouts.statistics().ready == 1)
                    stage = monitor._collector.snapshot().stage("grpo")
                    assert (stage.where, stage.in_flight, stage.delivered) == ("process", 1, 2)
                    engine.release()
                    await trainer.train_all()

        world.run(body)


class TestGeneration:
    def test_each_prompt_is_trained_once_by_one_other_process(
        self, world: World, engine: Engine
    ) -> None:
        async def body() -> None:
            rollouts = queue(12, max_in_flight=3, order="strict", seed=5)
            async with in_process(world, rollouts, engine):
                batches = await Trainer(world, rollouts).train_all()
            assert batches == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
            started = engine.started()
            assert len(started) == 24
            (pid,) = {one.pid for one in started}
            assert pid != os.getpid()
            counts = rollouts.statistics()
            assert (counts.trained, counts.running, counts.version) == (12, 0, 6)
            check_sums(rollouts)

        world.run(body)

    def test_a_rollout_is_what_it_is_without_a_process(self, world: World, engine: Engine) -> None:
        async def body() -> None:
            made = []
            for options in ({}, {"where": "process"}):
                rollouts = queue(4, order="strict", seed=5, batch_size=4)
                async with generating(world, rollouts, engine.function, **options):
                    batch = await Trainer(world, rollouts).get()
                    batch.done()
                made.append(
                    [
                        (one.ordinal, one.index, one.attempt, one.seed, one.version, one.result)
                        for group in batch.groups
                        for one in group.rollouts
                    ]
                )
            assert made[0] == made[1]
            assert made[0][-1][:3] == (3, 1, 1)

        world.run(body)

    def test_large_results_come_through_shared_memory(self, task_world: TaskWorld) -> None:
        """Far more in all than the memory has: their places are used again."""

        async def body() -> None:
            rollouts = queue(60, batch_size=1, group_size=2, order="strict")
            async with in_process(task_world, rollouts, functions.large):
                async for batch in rollouts.batches():
                    for group in batch.groups:
                        for one in group.rollouts:
                            assert np.all(one.result == group.ordinal * 10 + one.index)
            assert rollouts.statistics().trained == 60

        task_world.run(body)

    def test_max_in_flight_is_kept_and_can_change(self, world: World, engine: Engine) -> None:
        async def body() -> None:
            engine.hold(*range(8))
            rollouts = queue(8, batch_size=4, group_size=1, max_in_flight=2, order="strict")
            async with in_process(world, rollouts, engine):
                await world.until(lambda: len(engine.started()) == 2)
                assert sorted(one.prompt for one in engine.started()) == ["0", "1"]
                rollouts.set(max_in_flight=3)
                await world.until(lambda: len(engine.started()) == 3)
                rollouts.set(max_in_flight=0)
                await Trainer(world, rollouts).publish(steps=0)  # the child has read both
                engine.release()
                await world.until(lambda: rollouts.statistics().running == 0)
                assert len(engine.started()) == 3
                rollouts.set(max_in_flight=8)
                assert len(await Trainer(world, rollouts).train_all()) == 2

        world.run(body)

    def test_marks_have_the_versions_of_their_tokens(
        self, task_world: TaskWorld, tmp_path: Path
    ) -> None:
        async def body() -> None:
            rollouts = queue(2, batch_size=1, group_size=1, steps_ahead=1, max_in_flight=2)
            started = Engine(task_world, tmp_path).started
            function = partial(functions.with_safe_points, tmp_path)
            async with in_process(task_world, rollouts, function):
                await task_world.until(lambda: len(started()) == 2)
                async with rollouts.publishing(drain="safe"):
                    pass
                (tmp_path / "enough").touch()
                batch = await rollouts.get()
            assert batch.groups[0].rollouts[0].spans == ((0, 3),)

        task_world.run(body)

    def test_frozen_rollouts_do_not_grow_old(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            rollouts = queue(8, group_size=1, batch_size=1, steps_ahead=2)
            async with in_process(task_world, rollouts, functions.frozen):
                async for batch in rollouts.batches():
                    assert batch.staleness == (0,)
                    await rollouts.publish()

        task_world.run(body)

    def test_an_evaluation_runs_there_too_at_any_time(self, world: World, engine: Engine) -> None:
        async def body() -> None:
            rollouts = queue(4, max_in_flight=2)
            trainer = Trainer(world, rollouts)
            async with in_process(world, rollouts, engine):
                groups = await trainer.evaluate(["a", "b"], group_size=2)
                assert [group.prompt for group in groups] == ["a", "b"]
                assert [one.result[:2] for one in groups[1].rollouts] == [("b", 0), ("b", 1)]
                await trainer.train_all()
            (group,) = await trainer.evaluate(["after the end"])
            assert group.rollouts[0].result[0] == "after the end"
            assert os.getpid() not in {int(line.split()[-2]) for line in engine.lines()}

        world.run(body)

    def test_an_evaluation_with_a_function_of_its_own_runs_here(
        self, task_world: TaskWorld
    ) -> None:
        async def body() -> None:
            async def own(prompt: Any, rollout: Any) -> int:
                return os.getpid()

            rollouts = queue(4)
            async with in_process(task_world, rollouts, functions.quick):
                (group,) = await rollouts.evaluate([1], own)
                assert group.rollouts[0].result == os.getpid()

        task_world.run(body)

    def test_a_run_continues_from_a_state(self, world: World, engine: Engine) -> None:
        async def body() -> None:
            first = queue(12, order="strict", seed=1)
            async with in_process(world, first, engine):
                trainer = Trainer(world, first)
                before = await trainer.train_all(2)
                state = first.state_dict()
            second = queue(12, order="strict", seed=1)
            second.load_state_dict(state)
            async with in_process(world, second, engine):
                after = await Trainer(world, second).train_all()
            assert list(chain.from_iterable(before + after)) == list(range(12))

        world.run(body)


class TestABlockedTrainer:
    def test_does_not_stop_the_generation(self, tmp_path: Path) -> None:
        """It keeps the interpreter for itself, until all that its slots allow is generated."""
        fifo = str(tmp_path / "fifo")
        os.mkfifo(fifo)
        read_end = os.open(fifo, os.O_RDWR)
        keeps_the_interpreter = ctypes.PyDLL(None)
        rollouts = queue(40, batch_size=4, group_size=4, steps_ahead=2, max_in_flight=2)
        try:
            with sync.Coordinator() as coordinator:
                function = partial(functions.through, fifo)
                coordinator.start(rollouts.generate(function, where="process"))
                batch = rollouts.sync.get()
                # The slots of two more steps: 32 rollouts. Two of them run at once.
                spin_until(lambda: len(rollouts._core.machine.groups) == 12)
                left = 12 * 4
                # `poll` has a limit, so that the test fails and does not hang.
                poll = (ctypes.c_int * 2)(read_end, 1)
                byte = ctypes.create_string_buffer(1)
                while left and keeps_the_interpreter.poll(poll, 1, 20_000) == 1:
                    keeps_the_interpreter.read(read_end, byte, 1)
                    left -= 1
                assert left == 0
                batch.done()
                rollouts.close()
                for _ in rollouts.sync.batches():
                    pass
        finally:
            os.close(read_end)
        check_sums(rollouts)


class TestPublications:
    def test_nothing_starts_inside(self, world: World, engine: Engine) -> None:
        async def body() -> None:
            engine.hold(0, 1)
            rollouts = queue(12, group_size=1, batch_size=4, max_in_flight=2)
            async with in_process(world, rollouts, engine):
                trainer = Trainer(world, rollouts)
                await world.until(lambda: len(engine.started()) == 2)
                async with trainer.publishing(steps=0):
                    engine.release()
                    await world.until(lambda: rollouts.statistics().running == 0)
                    assert len(engine.started()) == 2
                    assert rollouts.statistics().ready == 2
                await trainer.train_all()
            assert rollouts.statistics().trained == 12

        world.run(body)

    def test_nothing_ever_starts_inside(self, task_world: TaskWorld, tmp_path: Path) -> None:
        """Calls start all the time, and each says whether its first line has run in a block."""

        async def body() -> None:
            engine, world = Engine(task_world, tmp_path), task_world
            rollouts = queue(range(400), group_size=2, batch_size=2, max_in_flight=3, steps_ahead=2)
            inside = engine.folder / "publishing"
            async with in_process(world, rollouts, engine):
                trainer = Trainer(world, rollouts)
                async for batch in trainer.batches():
                    async with trainer.publishing(drain=batch.step % 3 == 0):
                        inside.touch()
                        inside.unlink()
                    for group in batch.groups:
                        for one in group.rollouts:
                            assert one.version <= batch.step
            started = engine.started()
            assert len(started) == 800
            assert not [one for one in started if one.is_inside]
            assert rollouts.version == 200

        task_world.run(body)

    def test_drain_waits_for_what_runs_alone(self, world: World, engine: Engine) -> None:
        """What was granted ahead and has not begun comes back at once."""

        async def body() -> None:
            engine.hold(0)
            rollouts = queue(8, group_size=1, batch_size=4, max_in_flight=1)
            async with in_process(world, rollouts, engine):
                trainer = Trainer(world, rollouts)
                await world.until(lambda: len(engine.started()) == 1)
                draining = world.spawn(trainer.publish_drained)
                await world.until(lambda: rollouts._core.machine.is_paused)
                assert rollouts._core.machine.running == 1
                assert not draining.done
                engine.release()
                assert await draining.result() == (0, 0)
                await trainer.train_all()
            assert rollouts.statistics().trained == 8

        world.run(body)

    def test_safe_points_let_it_through(self, task_world: TaskWorld, tmp_path: Path) -> None:
        async def body() -> None:
            rollouts = queue(6, group_size=1, batch_size=2, max_in_flight=2)
            started = Engine(task_world, tmp_path).started
            function = partial(functions.with_safe_points, tmp_path)
            async with in_process(task_world, rollouts, function):
                await task_world.until(lambda: len(started()) == 2)
                for _ in range(5):
                    async with rollouts.publishing(drain="safe"):
                        machine = rollouts._core.machine
                        assert machine.running == len(machine._parked) == 2
                (tmp_path / "enough").touch()
                await Trainer(task_world, rollouts).train_all()
            assert rollouts.statistics().trained == 6

        task_world.run(body)

    async def test_a_cancelled_block_opens_the_gate(
        self, tmp_path: Path, asyncio_world: AsyncioWorld
    ) -> None:
        """Cancelled at any moment: before the child has confirmed, after it, and inside."""
        rollouts = queue(range(300), group_size=1, batch_size=2, max_in_flight=2)
        chance = random.Random(3)
        function = partial(functions.in_task, tmp_path)
        async with in_process(asyncio_world, rollouts, function):
            async for batch in rollouts.batches():
                with anyio.move_on_after(chance.choice((0, 0, 0.0001, 0.0005, 0.002))):
                    async with rollouts.publishing(drain=chance.choice((False, True))):
                        await anyio.sleep(chance.choice((0, 0.001)))
                assert not rollouts._core.machine.is_paused
                assert rollouts.version in (0, *range(batch.step + 2))
        assert rollouts.statistics().trained == 300
        check_sums(rollouts)


@pytest.fixture
def asyncio_world() -> AsyncioWorld:
    return AsyncioWorld()


def raised_in(group: BaseExceptionGroup[Any]) -> WorkerDiedError:
    error = only(group)
    assert isinstance(error, WorkerDiedError)
    return error


class TestDeaths:
    def test_ends_the_run_and_names_process_and_signal(self, world: World, engine: Engine) -> None:
        async def body() -> None:
            rollouts = queue(["a", "die", "b", "c"], name="grpo")
            with pytest.raises(ExceptionGroup) as caught:
                async with in_process(world, rollouts, engine):
                    await Trainer(world, rollouts).train_all()
            error = raised_in(caught.value)
            pid = next(one.pid for one in engine.started() if one.prompt == "die")
            assert f"(pid {pid}) was killed by SIGKILL" in str(error)
            assert error.exitcode == -signal.SIGKILL
            assert "in RolloutQueue 'grpo'" in "\n".join(error.__notes__)
            assert rollouts.statistics().running == 0
            check_sums(rollouts)

        world.run(body)

    def test_retries_run_in_another_process(self, world: World, engine: Engine) -> None:
        async def body() -> None:
            engine.hold("die")
            rollouts = queue(["a", "die", "b", "c"], max_in_flight=1, order="strict")
            async with in_process(world, rollouts, engine, retry=Retry(5, backoff=0)):
                await world.until(lambda: rollouts.statistics().ready == 1)
                engine.release()
                batches = await Trainer(world, rollouts).train_all()
            assert batches == [["a", "die"], ["b", "c"]]
            started = engine.started()
            # Each rollout of the prompt has killed one. A result that was not sent yet dies, too.
            assert len({one.pid for one in started}) == 3
            again = {(one.prompt, one.rollout) for one in started if one.attempt == 2}
            assert {("die", 0), ("die", 1)} == again - {("b", 0)}
            assert [one.prompt for one in started].count("a") == 2

        world.run(body)

    def test_on_error_decides(self, world: World, engine: Engine) -> None:
        async def body() -> None:
            engine.hold("die")
            rollouts = queue(
                ["a", "die", "b", "c"], max_in_flight=1, order="strict", on_error="drop"
            )
            async with in_process(world, rollouts, engine):
                await world.until(lambda: rollouts.statistics().ready == 1)
                engine.release()
                batches = await Trainer(world, rollouts).train_all()
            assert list(chain.from_iterable(batches)) == ["a", "b", "c"]
            assert rollouts.statistics().dropped_by == {"failed": 1}

        world.run(body)

    def test_does_not_hold_up_a_publication(self, world: World, engine: Engine) -> None:
        """It is stopped, so it does not confirm; then it is killed."""

        async def body() -> None:
            engine.hold(0)
            rollouts = queue(8, group_size=1, batch_size=2, max_in_flight=1)
            async with in_process(world, rollouts, engine, retry=Retry(3)):
                trainer = Trainer(world, rollouts)
                await world.until(lambda: len(engine.started()) == 1)
                (pid,) = {one.pid for one in engine.started()}
                os.kill(pid, signal.SIGSTOP)
                draining = world.spawn(trainer.publish_drained)
                await world.until(lambda: rollouts._core.is_revoking)
                os.kill(pid, signal.SIGKILL)
                assert await draining.result() == (0, 0)
                engine.release()
                await trainer.train_all()
            assert rollouts.statistics().trained == 8

        world.run(body)

    def test_inside_a_publication_the_next_process_waits(
        self, world: World, engine: Engine
    ) -> None:
        async def body() -> None:
            engine.hold(0)
            rollouts = queue(8, group_size=1, batch_size=2, max_in_flight=1)
            async with in_process(world, rollouts, engine, retry=Retry(3)):
                trainer = Trainer(world, rollouts)
                await world.until(lambda: len(engine.started()) == 1)
                async with trainer.publishing(steps=0):
                    os.kill(engine.started()[0].pid, signal.SIGKILL)
                    child: Any = rollouts._core._generating_children[0]
                    first = child._process
                    await world.until(lambda: child._is_up and child._process is not first)
                    engine.release()
                    assert len(engine.started()) == 1
                await trainer.train_all()
            assert engine.started()[1].attempt == 2

        world.run(body)

    @pytest.mark.parametrize("kills", [4, pytest.param(60, marks=pytest.mark.slow)])
    def test_kills_at_random_lose_and_repeat_nothing(
        self, world: World, engine: Engine, kills: int
    ) -> None:
        async def body() -> None:
            chance = random.Random(11)
            rollouts = queue(range(100 * kills), group_size=2, batch_size=2, max_in_flight=3)
            trained: list[int] = []
            options = {"retry": Retry(1000, backoff=0)}
            async with in_process(world, rollouts, engine, **options):
                trainer = Trainer(world, rollouts)
                async for batch in trainer.batches():
                    trained += [group.prompt for group in batch.groups]
                    if chance.random() < 0.02:
                        with suppress(ProcessLookupError):
                            os.kill(engine.started()[-1].pid, signal.SIGKILL)
                    async with trainer.publishing(drain=chance.choice((True, False))):
                        pass
            assert sorted(trained) == list(range(100 * kills))
            check_sums(rollouts)
            assert not [one for one in engine.started() if one.is_inside]

        world.run(body)


class TestFailures:
    def test_of_the_function_are_raised_with_their_traceback(
        self, world: World, engine: Engine
    ) -> None:
        async def body() -> None:
            rollouts = queue(["a", "boom"])
            with pytest.raises(ExceptionGroup) as caught:
                async with in_process(world, rollouts, engine):
                    await Trainer(world, rollouts).train_all()
            error = only(caught.value)
            assert isinstance(error, ConnectionError)
            assert "raise ConnectionError" in str(error.__cause__)
            assert "of prompt 'boom' (ordinal 1), attempt 1" in "\n".join(error.__notes__)

        world.run(body)

    @pytest.mark.parametrize(
        ("function", "expected"),
        [
            (functions.unpicklable, "while pickling what the function returned"),
            (functions.not_unpicklable, "while unpickling what the function returned"),
        ],
    )
    def test_a_result_that_cannot_be_sent_is_named(
        self, task_world: TaskWorld, function: Any, expected: str
    ) -> None:
        async def body() -> None:
            rollouts = queue(["a"])
            with pytest.raises(ExceptionGroup) as caught:
                async with in_process(task_world, rollouts, function):
                    await Trainer(task_world, rollouts).train_all()
            notes = "\n".join(only(caught.value).__notes__)
            assert expected in notes
            assert "of prompt 'a'" in notes

        task_world.run(body)

    @pytest.mark.parametrize(
        ("prompt", "expected"),
        [
            (threading.Lock(), "while pickling the prompt"),
            (functions.Opened(), "while unpickling the prompt"),
        ],
        ids=["pickled", "unpickled"],
    )
    def test_a_prompt_that_cannot_be_sent_fails_alone(
        self, task_world: TaskWorld, prompt: Any, expected: str
    ) -> None:
        async def body() -> None:
            options = {"group_size": 1, "batch_size": 1, "on_error": "drop", "order": "strict"}
            rollouts = queue([1, prompt, 2], **options)
            async with in_process(task_world, rollouts, functions.quick):
                assert await Trainer(task_world, rollouts).train_all() == [[1], [2]]
            assert rollouts.statistics().dropped_by == {"failed": 1}
            rollouts = queue([prompt])
            with pytest.raises(ExceptionGroup) as caught:
                async with in_process(task_world, rollouts, functions.quick):
                    await Trainer(task_world, rollouts).train_all()
            assert expected in "\n".join(only(caught.value).__notes__)

        task_world.run(body)

    def test_a_function_that_the_process_cannot_import_ends_the_run(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def body() -> None:
            module = ModuleType("only_here")
            exec("async def generate(prompt, rollout): pass", vars(module))
            monkeypatch.setitem(sys.modules, "only_here", module)
            rollouts = queue(4)
            with pytest.raises(ExceptionGroup) as caught:
                async with in_process(world, rollouts, module.generate):
                    await Trainer(world, rollouts).train_all()
            error = only(caught.value)
            assert isinstance(error, InvalidArgumentError)
            assert "which a new process cannot import" in str(error)
            assert isinstance(error.__cause__, ModuleNotFoundError)
            assert rollouts.statistics().running == 0
            check_sums(rollouts)

        world.run(body)

    def test_a_time_limit_names_the_line_over_there(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            rollouts = queue(["a"])
            with pytest.raises(ExceptionGroup) as caught:
                async with in_process(task_world, rollouts, functions.for_ever, timeout=0.05):
                    await Trainer(task_world, rollouts).train_all()
            error = only(caught.value)
            assert isinstance(error, ItemTimeoutError)
            assert "functions.py" in error.where
            assert error.seconds == 0.05

        task_world.run(body)

    def test_a_time_limit_on_threads_fails_a_call_that_still_runs(self, tmp_path: Path) -> None:
        world = ThreadWorld()
        engine = Engine(world, tmp_path)

        async def body() -> None:
            engine.hold(0)
            rollouts = queue(3, group_size=1, batch_size=1, on_error="drop", order="strict")
            async with in_process(world, rollouts, engine, timeout=0.05):
                batches = await Trainer(world, rollouts).train_all()
                assert batches == [[1], [2]]
                assert rollouts.statistics().running == 1
                engine.release()

        world.run(body)
        engine.release()

    @pytest.mark.parametrize(
        ("function", "options", "expected"),
        [
            (lambda prompt, rollout: prompt, {}, "cannot be pickled"),
            (functions.quick, {"workers": 3}, "workers: got 3 for a coroutine function"),
            (functions.quick, {"where": "elsewhere"}, "'task', 'thread', 'process' or None"),
        ],
        ids=["function", "workers", "where"],
    )
    def test_wrong_arguments(self, function: Any, options: Any, expected: str) -> None:
        with pytest.raises(InvalidArgumentError, match=expected):
            queue().generate(function, **{"where": "process", **options})


PROGRAM = """
import sys
from functools import partial
from pathlib import Path

from aioqueue import sync
from aioqueue.rl import RolloutQueue
from tests.rl import functions

if __name__ == "__main__":
    function = partial(functions.in_task, Path(sys.argv[1]))
    rollouts = RolloutQueue([0, 1], batch_size=2)
    with sync.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(function, where="process"))
        rollouts.sync.get()
"""


class TestTheProgramsEnd:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_ends_the_process_too(self, tmp_path: Path, number: int) -> None:
        engine = Engine(AsyncioWorld(), tmp_path)
        engine.hold(0, 1)
        script = tmp_path / "program.py"
        script.write_text(PROGRAM)
        program = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.DEVNULL,
        )
        spin_until(lambda: len(engine.started()) == 2)
        pid = engine.started()[0].pid
        program.send_signal(number)
        program.wait(20)
        spin_until(lambda: not is_running(pid))
        engine.release()


class TestStops:
    def test_cancel_what_runs_and_wait_for_its_clean_up(
        self, task_world: TaskWorld, tmp_path: Path
    ) -> None:
        async def body() -> None:
            engine = Engine(task_world, tmp_path)
            engine.hold(*range(8))
            rollouts = queue(8, group_size=1, batch_size=2, max_in_flight=3)
            async with aioqueue.Coordinator() as coordinator:
                coordinator.start(rollouts.generate(engine.function, where="process"))
                await task_world.until(lambda: len(engine.started()) == 3)
                pid = engine.started()[0].pid
                coordinator.request_stop()
            cleaned = [line for line in engine.lines() if line.startswith("cancelled")]
            assert len(cleaned) == 3
            assert not is_running(pid)
            counts = rollouts.statistics()
            assert (counts.returned, counts.existing, counts.running) == (counts.admitted, 0, 0)
            engine.release()

        task_world.run(body)

    def test_of_a_function_that_never_ends_kill_its_process(self, tmp_path: Path) -> None:
        """At the end of the coordinator's patience: a thread could not be ended."""
        engine = Engine(ThreadWorld(), tmp_path)

        async def body() -> None:
            engine.hold(0)
            rollouts = queue(8, group_size=1, batch_size=2, max_in_flight=1)
            async with aioqueue.Coordinator(stop_grace_period=0.05) as coordinator:
                coordinator.start(rollouts.generate(engine.function, where="process"))
                await AsyncioWorld().until(lambda: len(engine.started()) == 1)
                coordinator.request_stop()
            assert not is_running(engine.started()[0].pid)
            engine.release()

        AsyncioWorld().run(body)

    def test_an_explanation_names_the_line_over_there(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            rollouts = queue(["slow"], group_size=1, batch_size=1)
            async with aioqueue.Coordinator() as coordinator:
                coordinator.start(rollouts.generate(functions.for_ever, where="process"))
                waiting = task_world.spawn(rollouts.get)
                await task_world.until(lambda: rollouts.statistics().running == 1)
                text = str(rollouts.explain())
                assert "rollout 0 of prompt 'slow'" in text
                assert "functions.py" in text
                coordinator.request_stop()
                with suppress(BaseException):
                    await waiting.result()

        task_world.run(body)
