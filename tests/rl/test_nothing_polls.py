"""A `RolloutQueue` at which all wait has no timer and no thread that polls, in any process.

The program runs in a thread of its own, and its states are observed from the thread of the test:
in each of them, every thread of the program, and of its child process, must come to wait in a call
of the system that has no limit. See `tests.kit.blocked`.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import aioqueue
from aioqueue.rl import Retry
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from tests.kit.blocked import can_be_seen, threads_of, with_a_limit
from tests.kit.processing import pids, start_the_forkserver
from tests.kit.sharing import children, sharing_ended
from tests.kit.worlds import PATIENCE, AsyncioWorld, ThreadWorld, World, spin_until
from tests.rl import functions, test_processes
from tests.rl.kit import Engine, Trainer, generating
from tests.rl.test_queue import queue

pytestmark = pytest.mark.skipif(
    not can_be_seen(), reason="this system does not say in which call a thread waits"
)


class Observed:
    """A program whose states are observed.

    Attributes:
        limits: what has a limit in the state that was observed last, while that does not change.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.limits: set[str] = set()
        self._others = threads_of()
        self._children = {*pids()}
        self._states: SimpleQueue[tuple[str, Gate] | None] = SimpleQueue()
        self._error: BaseException | None = None

    async def observed(self, state: str) -> None:
        """Report that the program is in a state, and stay there until the test has observed it."""
        gate = Gate()
        self._states.put((state, gate))
        if isinstance(self.world, ThreadWorld):
            gate.wait_blocking()
        else:
            await gate.wait(current_waker())

    def run(
        self,
        body: Callable[[], Awaitable[None]],
        check: Callable[[str, set[str]], bool] = lambda state, limits: not limits,
        pid: int | None = None,
    ) -> list[str]:
        """Run a program to its end; return the states that it was in.

        Args:
            body: its coroutine function.
            check: whether a state is as it should be, sooner or later.
            pid: another process of it.
        """
        program = threading.Thread(target=self._run, args=(body,), name="program")
        program.start()
        without = set(self._others)
        if isinstance(self.world, ThreadWorld):
            # It waits for the thread of the test, and gives up some time.
            without.add(program.native_id or 0)
        states = []
        while (asked := self._states.get(timeout=PATIENCE)) is not None:
            state, gate = asked
            try:
                spin_until(lambda: check(state, self._observe(without, pid)))  # noqa: B023
            except AssertionError:
                self._error = AssertionError(f"{state}: {sorted(self.limits)}")
            states.append(state)
            gate.open()
        program.join(PATIENCE)
        if self._error is not None:
            raise self._error
        return states

    def _observe(self, without: set[int], pid: int | None) -> set[str]:
        self.limits = with_a_limit(without=without)
        for child in {*pids(), *([] if pid is None else [pid])} - self._children:
            self.limits |= with_a_limit(child)
        return self.limits

    def _run(self, body: Any) -> None:
        try:
            self.world.run(body)
        except BaseException as error:
            self._error = error
        finally:
            self._states.put(None)


class HeldInProcess:
    """Generates in a child process, and holds the rollouts of some prompts, without a clock."""

    def __init__(self, world: World, folder: Path, *prompts: Any) -> None:
        on_threads = isinstance(world, ThreadWorld)
        function = functions.on_thread if on_threads else functions.until_closed
        self.function = partial(function, folder)
        self._paths = [folder / f"pipe-{prompt}" for prompt in prompts]
        self._locked = test_processes.Engine(world, folder)
        self._locked.hold(*prompts)
        for path in self._paths:
            os.mkfifo(path)
        self._pipes = [os.open(path, os.O_RDWR) for path in self._paths]

    def release(self) -> None:
        self._locked.release()
        for path in self._paths:
            path.unlink(missing_ok=True)
        while self._pipes:
            os.close(self._pipes.pop())


STATES = [
    "all slots are ready, and nobody asks",
    "in a publication",
    "the trainer, an evaluation and a publication wait for rollouts",
    "the trainer waits in a pause",
]


@pytest.mark.parametrize("where", [None, "process"])
def test_while_all_wait(world: World, where: str | None, tmp_path: Path) -> None:
    """Every thread waits without a limit, in each state in which nothing can happen."""
    start_the_forkserver()

    async def body() -> None:
        rollouts = queue(14, batch_size=2, steps_ahead=2, order="strict")
        options = {"where": where, "retry": Retry(3)}
        async with generating(world, rollouts, engine.function, **options):
            trainer = Trainer(world, rollouts)
            await world.until(lambda: rollouts.statistics().ready == 6)
            await observer.observed(STATES[0])
            first, *_ = [await trainer.get() for _ in range(3)]
            async with trainer.publishing():
                first.done()
                await world.until(lambda: rollouts.statistics().open == 2)
                await observer.observed(STATES[1])
            evaluating = world.spawn(trainer.evaluate, ["q"])
            taking = world.spawn(trainer.get)
            # All but what is held has ended, for the pause that follows lets nothing else begin.
            await world.until(lambda: rollouts.statistics().ready == 5)
            await world.until(lambda: rollouts.statistics().running == 1 + 2)
            await world.until(lambda: rollouts._core.waiting_takers())
            publishing = world.spawn(trainer.publish_drained)
            await world.until(lambda: rollouts._core.machine.is_paused)
            await observer.observed(STATES[2])
            rollouts.set(max_in_flight=0)
            engine.release()
            for one in (evaluating, taking, publishing):
                await one.result()
            await trainer.publish()
            for _ in range(2):
                await trainer.get()
            taking = world.spawn(trainer.get)
            await world.until(lambda: rollouts._core.waiting_takers())
            await observer.observed(STATES[3])
            rollouts.set(max_in_flight=None)
            assert (await taking.result()).step == 6

    held = ("q", 7)
    engine: Any = Engine(world, holds=lambda prompt, rollout: prompt in held)
    if where is not None:
        engine = HeldInProcess(world, tmp_path, *held)
    observer = Observed(world)
    try:
        assert observer.run(body) == STATES
    finally:
        engine.release()


class TestLimitsOfTheUser:
    """What these tests find if there is something to find: exactly what the user has asked for."""

    @pytest.mark.parametrize("where", [None, "process"])
    def test_a_timeout_and_a_backoff(self, world: World, where: str | None, tmp_path: Path) -> None:
        """One event loop has a timer, wherever calls run."""
        start_the_forkserver()

        async def body() -> None:
            rollouts = queue(["hung"], batch_size=1, group_size=1)
            options: dict[str, Any] = {"where": where, "timeout": 5000}
            async with generating(world, rollouts, engine.function, **options):
                await world.until(lambda: rollouts.statistics().running == 1)
                await observer.observed("a call has a time limit")
                engine.release()
                await Trainer(world, rollouts).get()
                await observer.observed("it has ended")
            rollouts = queue(["boom"], batch_size=1, group_size=1)
            options = {"where": where, "retry": Retry(1, backoff=5000)}
            async with generating(world, rollouts, failing.function, **options) as coordinator:
                await world.until(lambda: rollouts._core.retried)
                await observer.observed("a call waits for its backoff")
                coordinator.request_stop()

        def check(state: str, limits: set[str]) -> bool:
            if state == "it has ended":
                return not limits
            (only, *more) = limits or [""]
            return not more and bool(re.search(r"waits in e?poll\w* for \d+ ms", only))

        engine: Any = Engine(world, holds=lambda prompt, rollout: True)
        failing: Any = Engine(world, result=functions.result)
        if where is not None:
            engine = HeldInProcess(world, tmp_path, "hung")
            failing = test_processes.Engine(world, tmp_path)
        observer = Observed(world)
        try:
            assert len(observer.run(body, check)) == 3
        finally:
            engine.release()

    def test_a_watchdog(self) -> None:
        async def body() -> None:
            engine = Engine(world, holds=lambda prompt, rollout: True)
            rollouts = queue(1, batch_size=1, group_size=1)
            async with aioqueue.Coordinator(watchdog=5000) as coordinator:
                coordinator.start(rollouts.generate(engine.function))
                taking = world.spawn(rollouts.get)
                await observer.observed("it is watched")
                engine.release()
                await taking.result()

        world = AsyncioWorld()
        observer = Observed(world)
        observer.run(body, lambda _, limits: len(limits) == 1 and "futex" in limits.pop())


def wait_in_all_ways(rollouts: Any, pipe: Any) -> None:
    """Wait for what the owner of a queue has not, in threads and event loops of this process."""
    calls: list[Callable[[], Any]] = [
        rollouts.sync.get,
        lambda: asyncio.run(take(rollouts)),
        lambda: rollouts.sync.evaluate(["q"]),
        lambda: asyncio.run(evaluate(rollouts)),
        rollouts.sync.publishing(drain=True).__enter__,
    ]
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    pipe.recv()
    for thread in threads[:-1]:
        thread.start()
    pipe.recv()
    threads[-1].start()
    for thread in threads:
        thread.join()


async def take(rollouts: Any) -> None:
    await rollouts.get()


async def evaluate(rollouts: Any) -> None:
    await rollouts.evaluate(["q"])


def test_trainers_in_another_process(world: World) -> None:
    """Neither they nor the owner of the queue poll."""

    async def body() -> None:
        engine = Engine(world, holds=lambda prompt, rollout: prompt == "q" or prompt > 1)
        async with generating(world, rollouts, engine):
            (await Trainer(world, rollouts).get()).done()
            # Else an evaluation takes some of the places, and the pause lets nothing else begin.
            await world.until(lambda: rollouts.statistics().running == 8)
            trainer.pipe.send("begin")
            await world.until(lambda: len(rollouts._core.takers) == 2)
            await world.until(lambda: rollouts.statistics().evaluating == 2)
            trainer.pipe.send("publish")
            await world.until(lambda: rollouts._core.machine.is_paused)
            await observer.observed("all wait")
            engine.end_all()
            await world.until(lambda: rollouts.statistics().held == 4)
            await world.until(lambda: rollouts._core.machine.running == 0)

    with sharing_ended(), children() as start:
        rollouts = queue(6, max_in_flight=8).share()
        trainer = start(wait_in_all_ways, rollouts, talks=True)
        observer = Observed(world)
        observer.run(body, pid=trainer.pid)
