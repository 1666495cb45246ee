"""However a run of a `RolloutQueue` ends, it leaves nothing behind, in either process.

Each end is met in each form: the trainer in a task or a plain script, rollouts in tasks or on
threads, here or in a child process. The garbage collector is off meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.rl import RolloutQueue
from tests.kit.left_behind import left_behind
from tests.kit.processing import is_running, pids, shared_memory, start_the_forkserver
from tests.kit.worlds import CancelledError, ThreadWorld, World, spin_until
from tests.rl import functions, test_processes
from tests.rl.kit import Engine, Trainer, generating
from tests.rl.test_queue import check_sums, queue

Where = Literal["here", "process"]
needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL, flock")


class Run:
    """One run, in one of the forms.

    Attributes:
        options: those of `generate`.
    """

    def __init__(self, world: World, where: Where, function: str, folder: Path) -> None:
        self.world = world
        self.options: dict[str, Any] = {} if where == "here" else {"where": "process"}
        is_threaded = isinstance(world, ThreadWorld) is (function == "own")
        self._engine: Any
        if where == "here":
            self._engine = Engine(world, holds=held, result=functions.result)
            name = "_on_thread" if is_threaded else "_in_task"
            self.function = getattr(self._engine, name)
        else:
            self._engine = test_processes.Engine(world, folder)
            self._engine.hold(HELD)
            function_there = functions.on_thread if is_threaded else functions.in_task
            self.function = partial(function_there, folder)
        self._is_threaded = is_threaded
        self.rollouts: RolloutQueue[Any, Any] = queue(0)

    def make(self, *prompts: Any, **options: Any) -> RolloutQueue[Any, Any]:
        self.rollouts = queue(list(prompts), group_size=2, batch_size=2, **options)
        return self.rollouts

    def generating(self, rollouts: RolloutQueue[Any, Any]) -> Any:
        return generating(self.world, rollouts, self.function, **self.options)

    async def until_held(self) -> None:
        """Wait until rollouts run that do not end by themselves."""
        await self.world.until(lambda: self.rollouts.statistics().running >= 2)
        if self._is_threaded:
            self.release()  # the end waits for a call on a thread

    def release(self) -> None:
        """Let all rollouts end, also those that start later."""
        if isinstance(self._engine, Engine):
            self._engine.end_all()
        else:
            self._engine.release()


HELD = "held"


def held(prompt: Any, rollout: Any) -> bool:
    return bool(prompt == HELD)


async def by_itself(run: Run) -> None:
    rollouts = run.make(*range(6))
    async with run.generating(rollouts):
        assert len(await Trainer(run.world, rollouts).train_all()) == 3
        assert len(await Trainer(run.world, rollouts).evaluate(["q"])) == 1


async def by_a_failure_of_generate(run: Run) -> None:
    rollouts = run.make(0, 1, 2, "boom", 4)
    with suppress(ExceptionGroup):
        async with run.generating(rollouts):
            await Trainer(run.world, rollouts).train_all()
    assert rollouts.statistics().trained < 4


async def by_a_failure_of_accept(run: Run) -> None:
    def fail(group: Any) -> bool:
        raise LookupError("my bug")

    rollouts = run.make(*range(6), accept=fail)
    with suppress(ExceptionGroup):
        async with run.generating(rollouts):
            await Trainer(run.world, rollouts).train_all()
    assert rollouts.step == 0


async def by_starving(run: Run) -> None:
    rollouts = run.make(*range(6), accept=lambda group: False, max_refused=1)
    with suppress(ExceptionGroup):
        async with run.generating(rollouts):
            await Trainer(run.world, rollouts).train_all()
    assert rollouts.statistics().refused == 2


async def by_a_failure_of_the_trainer(run: Run) -> None:
    rollouts = run.make(0, 1, HELD, 3, order="strict")
    with suppress(ExceptionGroup):
        async with run.generating(rollouts):
            await Trainer(run.world, rollouts).get()
            await run.until_held()
            raise LookupError("of the trainer")


async def by_a_failure_in_a_publication(run: Run) -> None:
    rollouts = run.make(0, 1, HELD, 3, order="strict")
    with suppress(ExceptionGroup):
        async with run.generating(rollouts):
            trainer = Trainer(run.world, rollouts)
            await trainer.get()
            await run.until_held()
            async with trainer.publishing():
                raise LookupError("of the engine")
    assert rollouts.version == 0


async def by_a_cancellation(run: Run) -> None:
    rollouts = run.make(HELD, 1)
    world = run.world

    if isinstance(world, ThreadWorld):
        with suppress(ExceptionGroup, aioqueue.errors.CancelledError):
            async with run.generating(rollouts):
                with sync.CancelScope() as scope:
                    canceller = world.spawn(cancel_later, scope, run)
                    await Trainer(world, rollouts).get()
        await canceller.result()
        return

    async def train() -> None:
        async with run.generating(rollouts):
            await Trainer(world, rollouts).get()

    training: Any = world.spawn(train)
    await world.until(lambda: rollouts._core.waiting_takers())
    await run.until_held()
    training.cancel()
    with suppress(CancelledError):
        await training.result()


async def cancel_later(scope: Any, run: Run) -> None:
    spin_until(run.rollouts._core.waiting_takers)
    await run.until_held()
    scope.cancel()


async def by_a_stop(run: Run) -> None:
    rollouts = run.make(HELD, *range(5))
    async with run.generating(rollouts) as coordinator:
        trainer = Trainer(run.world, rollouts)
        taking = run.world.spawn(trainer.get)
        publishing = run.world.spawn(trainer.publish_drained)
        await run.until_held()
        coordinator.request_stop()
        for one in (taking, publishing):
            with suppress(aioqueue.OutOfRangeError, CancelledError):
                await one.result()
    assert rollouts.statistics().existing == rollouts.statistics().held


async def by_leaving_the_loop(run: Run) -> None:
    rollouts = run.make(*range(20))
    async with run.generating(rollouts):
        if isinstance(run.world, ThreadWorld):
            for batch in rollouts.sync.batches():
                assert batch.step == 0
                break
            return
        async for batch in rollouts.batches():
            assert batch.step == 0
            break


async def without_a_beginning(run: Run) -> None:
    """What waits to be started, entered or iterated over is nothing."""
    rollouts = run.make(*range(6))
    face: Any = rollouts.sync if isinstance(run.world, ThreadWorld) else rollouts
    for unused in (
        rollouts.generate(run.function, **run.options),
        face.batches(),
        face.publishing(),
    ):
        assert repr(unused)


async def after_a_second_start_was_refused(run: Run) -> None:
    rollouts = run.make(*range(6))
    async with run.generating(rollouts) as coordinator:
        with suppress(RuntimeError):
            coordinator.start(rollouts.generate(run.function, **run.options))
            raise AssertionError("it was started twice")
        assert len(await Trainer(run.world, rollouts).train_all()) == 3


ENDS: list[Callable[[Run], Awaitable[None]]] = [
    by_itself,
    by_a_failure_of_generate,
    by_a_failure_of_accept,
    by_starving,
    by_a_failure_of_the_trainer,
    by_a_failure_in_a_publication,
    by_a_cancellation,
    by_a_stop,
    by_leaving_the_loop,
    without_a_beginning,
    after_a_second_start_was_refused,
]


QUICK: Final = ("here-own", "process-own-by_itself", "process-own-by_a_failure_of_the_trainer")
"""Cases of the default run."""


def check_nothing_is_left(world: World, run: Run, end: Callable[[Run], Awaitable[None]]) -> None:
    """Let a run end, and check what is left of it."""
    cores: list[weakref.ref[Any]] = []

    async def body() -> None:
        await end(run)
        rollouts = run.rollouts
        if rollouts._core.has_started:
            check_sums(rollouts)
            assert rollouts.statistics().running == 0
        assert not rollouts._core.takers
        assert not rollouts._core.publishers
        assert not rollouts._core.backoffs
        assert rollouts._core.publisher is None
        cores.append(weakref.ref(rollouts._core))
        if not isinstance(world, ThreadWorld) and not world.name.startswith("trio"):
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            assert not [task for task in tasks if not task.done()]

    def program() -> None:
        world.run(body)
        run.rollouts = None  # type: ignore[assignment]
        if isinstance(world, ThreadWorld):
            world._operations.clear()

    shared, processes = shared_memory(), {*pids()}
    more, _ = left_behind(program)
    assert not more
    gc.collect()
    assert cores[0]() is None
    spin_until(lambda: {*pids()} <= processes)
    assert shared_memory() <= shared


@pytest.mark.slow("other", "process", but=QUICK)
@pytest.mark.parametrize("end", ENDS, ids=[end.__name__ for end in ENDS])
@pytest.mark.parametrize("function", ["own", "other"])
@pytest.mark.parametrize("where", ["here", pytest.param("process", marks=needs_signals)])
def test_a_run_ends(
    world: World,
    where: Where,
    function: str,
    end: Callable[[Run], Awaitable[None]],
    tmp_path: Path,
) -> None:
    start_the_forkserver()
    run = Run(world, where, function, tmp_path)
    try:
        check_nothing_is_left(world, run, end)
    finally:
        run.release()


@needs_signals
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_process_is_ended_from_outside(world: World, number: int, tmp_path: Path) -> None:
    """It ignores SIGTERM, which a whole group of processes may get: its parent decides."""
    ended: list[int] = []
    noticed: list[BaseException] = []

    async def by_a_signal(run: Run) -> None:
        rollouts = run.make(HELD, 1)
        with suppress(ExceptionGroup):
            async with run.generating(rollouts):
                taking = run.world.spawn(Trainer(run.world, rollouts).get)
                started = run._engine.started
                await run.world.until(lambda: [one.prompt for one in started()].count(HELD) == 2)
                (pid,) = {one.pid for one in started()}
                ended.append(pid)
                os.kill(pid, number)
                if number == signal.SIGTERM:
                    run.release()
                try:
                    await taking.result()
                except aioqueue.WorkerDiedError as error:
                    noticed.append(type(error)(*error.args))

    start_the_forkserver()
    run = Run(world, "process", "own", tmp_path)
    try:
        check_nothing_is_left(world, run, by_a_signal)
    finally:
        run.release()
    assert not is_running(ended[0])
    assert len(noticed) == (number == signal.SIGKILL)
