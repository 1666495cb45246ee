"""Random workers, stopped at random places, are compared with an exact model.

A worker is a program of steps: awaits, waits in our calls, threads, groups, shields, scopes,
clean-ups, and code that swallows what interrupts it. The stop comes while the worker is in a chosen
step, and a second one, as at the end of the grace period, in a later one. Meanwhile every other
task may run. The model walks through the same program, and says which steps are interrupted.
Everything else must have ended as if there had been no stop.

`python -m tests.coordination.test_coordinator_core_random_stops 10000` tries as many
programs in every world.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

import aioqueue
from tests.kit.worlds import HAS_TRIO, PATIENCE, core_of

if TYPE_CHECKING or HAS_TRIO:
    import trio

SETTLE = 30
"""Rounds of a loop after which a stop has reached whatever it reaches."""


@dataclass
class Step:
    """A step of a program: a leaf has no parts.

    Attributes:
        kind: of leaves: "await", "ours" (a wait in a call of ours), "thread"; of others: "all" (one
            after the other), "shield", "scope", "group" (a task of a group), "swallow", "finally"
            (the second part follows the first, whatever happens).
        parts: the steps within.
    """

    kind: str
    parts: list[Step] = field(default_factory=list)


LEAVES = ("await", "await", "ours", "thread")
OTHERS = ("all", "shield", "scope", "group", "swallow", "finally", "finally")


def program(rng: random.Random, depth: int, others: tuple[str, ...]) -> Step:
    if depth == 0 or rng.random() < 0.25:
        return Step(rng.choice(LEAVES))
    kind = rng.choice(others)
    number = 2 if kind == "finally" else rng.randint(1, 3) if kind == "all" else 1
    return Step(kind, [program(rng, depth - 1, others) for _ in range(number)])


def leaves(step: Step) -> Iterator[Step]:
    if not step.parts:
        yield step
    for part in step.parts:
        yield from leaves(part)


class InterruptedStepError(Exception):
    """Interrupts a step in the model."""


class Model:
    """Walks through a program, and records what must happen.

    Args:
        stops: the numbers of the steps in which the stops come.
        rule: "once", as in asyncio; "level", as in trio; "woken": the first ends waits only.
    """

    def __init__(self, stops: list[int], rule: str) -> None:
        self.log: list[tuple[int, str]] = []
        self.stops = stops
        self.rule = rule
        self.came = 0
        self.is_due = False  # for a cancellation
        self.is_due_for_ours = False
        self.shields = 0
        self.in_group = 0
        self.is_certain = True  # False if a stop comes while the worker leaves its step anyway
        self.is_aborting = False  # the outermost group
        self.was_cancelled = False  # in the group that the walk is in

    def leaf(self, kind: str) -> None:
        number = len(self.log)
        comes_here = number in self.stops
        was_due, was_any_due = self.is_due, self.is_due or self.is_due_for_ours
        if comes_here:
            self.came += 1
            only_wakes = self.rule == "woken" and self.came == 1
            self.is_due = self.is_due or not only_wakes
            self.is_due_for_ours = True
        is_interrupted = self._is_interrupted(kind, comes_here, was_due)
        self.is_certain &= not (is_interrupted and was_any_due and comes_here)
        self.log.append((number, "interrupted" if is_interrupted else "done"))
        if is_interrupted:
            raise InterruptedStepError

    def _is_interrupted(self, kind: str, comes_here: bool, was_due: bool) -> bool:
        # A call in a thread begins with an await. From then on it has a shield of its own. But a
        # group of asyncio cancels its tasks itself, which no shield of anyio keeps out.
        is_in_shield = kind == "thread" and not was_due and not self.in_group
        open_to_it = self.shields == 0 and not is_in_shield
        if self.rule == "level":
            return (self.is_due and open_to_it) or (comes_here and kind == "ours")
        if self.is_due and self.in_group and self.is_aborting and not self.shields:
            self.is_due = self.is_due_for_ours = False  # such a group cancels its tasks once
        if self.is_due and open_to_it:
            self.is_due = self.is_due_for_ours = False
            self.was_cancelled = True
            self.is_aborting = bool(self.in_group)
            return True
        if kind == "ours" and self.in_group:
            # It is that of a task of the worker, which the stop does not reach by this.
            return comes_here or self.is_due_for_ours
        if kind == "ours" and self.is_due_for_ours:
            self.is_due = self.is_due_for_ours = False
            return True
        return False

    def walk(self, step: Step) -> None:
        getattr(self, f"_{step.kind}", lambda _: self.leaf(step.kind))(step.parts)

    def _all(self, parts: list[Step]) -> None:
        for part in parts:
            self.walk(part)

    _scope = _all

    def _shield(self, parts: list[Step]) -> None:
        counts = not self.in_group
        self.shields += counts
        try:
            self._all(parts)
        finally:
            self.shields -= counts

    def _group(self, parts: list[Step]) -> None:
        before, self.was_cancelled = self.was_cancelled, False
        self.is_aborting = self.is_aborting and bool(self.in_group)
        self.in_group += 1
        try:
            self._all(parts)
            if self.was_cancelled:  # its task has swallowed it, but the group was cancelled, too
                raise InterruptedStepError
        finally:
            self.in_group -= 1
            self.was_cancelled = self.was_cancelled or before

    def _swallow(self, parts: list[Step]) -> None:
        with suppress(InterruptedStepError):
            self._all(parts)

    def _finally(self, parts: list[Step]) -> None:
        try:
            self.walk(parts[0])
        finally:
            self.walk(parts[1])


class Worker:
    """Runs the same program, and records what happens.

    Args:
        program: the program.
        stops: the numbers of the steps in which the stops come.
    """

    def __init__(self, program: Step, stops: list[int]) -> None:
        self.program = program
        self.stops = stops
        self.log: list[tuple[int, str]] = []
        self.number = 0
        self.queue = aioqueue.FIFOQueue[int](1)
        self.came = 0
        """How many of the chosen steps it has come to."""
        self.left = 0
        """How many of them it may leave."""
        self.gates = [threading.Event() for _ in stops]
        self.has_ended = False

    async def op(self) -> None:
        try:
            await self.walk(self.program)
        finally:
            self.has_ended = True

    async def leaf(self, kind: str) -> None:
        number, self.number = self.number, self.number + 1
        self.log.append((number, "interrupted"))
        is_held = number in self.stops
        gate = self.gates[self.came] if is_held else threading.Event()
        self.came += is_held
        if not is_held:
            gate.set()
        if kind == "thread":
            await anyio.to_thread.run_sync(gate.wait, PATIENCE)
        elif kind == "ours" and self.came:
            await self.queue.dequeue()
        else:
            for _ in range(2):
                await anyio.lowlevel.checkpoint()
            while not gate.is_set():
                await anyio.lowlevel.checkpoint()
        self.log[number] = (number, "done")

    async def walk(self, step: Step) -> None:
        kind, parts = step.kind, step.parts
        if not parts:
            await self.leaf(kind)
        elif kind == "finally":
            try:
                await self.walk(parts[0])
            finally:
                await self.walk(parts[1])
        elif kind == "swallow":
            try:
                await self.walk(parts[0])
            except BaseException as error:
                if "Cancelled" not in repr(error):  # of asyncio, of trio, ours, or a group of them
                    raise
        elif kind == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(self.walk(parts[0]))
        else:
            with (
                anyio.CancelScope(shield=True)
                if kind == "shield"
                else anyio.move_on_after(PATIENCE)
                if kind == "scope"
                else nullcontext()
            ):
                for part in parts:
                    await self.walk(part)

    def has_reached(self, number: int) -> bool:
        """Return whether it has reached this gate, or never will."""
        return self.came > number or self.has_ended


async def run(program: Step, stops: list[int], rule: str) -> list[tuple[int, str]]:
    """Run a program in a worker, stop it in its steps, and return what has happened."""
    worker = Worker(program, stops)

    async def rounds() -> None:
        for _ in range(SETTLE):
            await anyio.lowlevel.checkpoint()

    async def until(condition: Callable[[], object]) -> None:
        with anyio.fail_after(PATIENCE):
            while not condition():
                await anyio.lowlevel.checkpoint()

    async def feed() -> None:
        """Complete a wait in a queue call, if nothing has ended it by then."""
        while not worker.has_ended:
            before = core_of(worker.queue).machine.waiting()
            await rounds()
            waits = core_of(worker.queue).machine.waiting()
            if waits and waits == before and worker.left == worker.came:
                worker.queue.enqueue_nowait(1)

    async with anyio.create_task_group() as tasks, aioqueue.Coordinator() as coord:
        runner: Any = aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [worker.op])
        if rule == "woken":
            runner = aioqueue.LooperTask(None, worker.op)
        coord.start(runner)
        known = coord._core._known()
        tasks.start_soon(feed)
        for number, gate in enumerate(worker.gates):
            await until(partial(worker.has_reached, number))
            if worker.has_ended:
                break
            await rounds()
            if number == 0:
                coord.request_stop()
            else:
                for one in known:
                    one.cancel()  # as a join does when the grace period has ended
            await rounds()
            worker.left += 1
            gate.set()
        await until(lambda: worker.has_ended)
    return worker.log


def one(seed: str, rule: str) -> tuple[Step, list[int], list[tuple[int, str]]]:
    """Make a program, the places of its stops, and what must happen."""
    rng = random.Random(seed)
    others = OTHERS if rule != "level" else tuple(kind for kind in OTHERS if kind != "group")
    while True:
        made = program(rng, rng.randint(1, 5), others)
        stops = [rng.randrange(len(list(leaves(made))))]
        model = walked(made, stops, rule)
        if stops[0] >= len(model.log):
            continue
        if rule != "level" and rng.random() < 0.5 and len(model.log) > stops[0] + 1:
            twice = [*stops, rng.randrange(stops[0] + 1, len(model.log))]
            again = walked(made, twice, rule)
            if again.is_certain:
                return made, twice, again.log
        return made, stops, model.log


def walked(made: Step, stops: list[int], rule: str) -> Model:
    model = Model(stops, rule)
    with suppress(InterruptedStepError):
        model.walk(made)
    return model


def plain_factory(loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coro, loop=loop, **options)


def check(seed: str, world: str, rule: str) -> None:
    """Try one program, and compare."""
    made, stops, expected = one(seed, rule)

    async def body() -> list[tuple[int, str]]:
        if world == "factory":
            asyncio.get_running_loop().set_task_factory(plain_factory)
        return await run(made, stops, rule)

    found: list[tuple[int, str]]
    if world == "trio":
        found = trio.run(body)
    elif world == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(body())
    else:
        found = asyncio.run(body())
    assert found == expected, f"{seed} in {world} ({rule}), stopped at {stops}: {made}"


WORLDS = [
    ("asyncio", "once"),
    ("factory", "once"),
    ("uvloop", "once"),
    ("asyncio", "woken"),
    ("factory", "woken"),
    *([("trio", "level")] if HAS_TRIO else []),
]


@pytest.mark.parametrize(("world", "rule"), WORLDS)
def test_a_few(world: str, rule: str) -> None:
    for number in range(12):
        check(f"few {number}", world, rule)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "rule"), WORLDS)
def test_many(world: str, rule: str) -> None:
    for number in range(300):
        check(f"many {number}", world, rule)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        for world, rule in WORLDS:
            check(f"{sys.argv[2] if len(sys.argv) > 2 else 'by hand'} {number}", world, rule)
