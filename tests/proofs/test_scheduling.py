"""Every order of grant, wake, cancellation, timeout and close around a hand-over, one by one."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pytest

import aioqueue
from aioqueue.core.attempts import WITHDRAWN
from aioqueue.core.machine import Machine
from aioqueue.worlds.asyncio import AsyncioWaker
from aioqueue.worlds.waker import ThreadWaker
from proofs.call_record import CallRecord
from proofs.effort import EFFORT, IS_LONG
from proofs.loops import SteppedLoop
from proofs.scheduling import Choices, ControlledLock, ScheduleError, Scheduler, explore, replay
from tests.kit.worlds import core_of

# Tasks: one or two event loops, stepped by hand. What comes from outside comes between any two of
# their steps, in any order, and from within a loop or from another thread.

Call = tuple[Any, ...]
Event = tuple[Any, ...]


@dataclass(frozen=True)
class Scene:
    """Tasks that wait, and what happens to them.

    Attributes:
        waiters: ``(loop, method, *arguments)``, in the order in which they begin.
        events: ``("now", method, *arguments)``, ``("cancel", waiter)``, ``("close", cancel)``,
            ``("end", loop)``, each of which comes at any time after those of its own thread: an
            event within a list follows the one before it.
        capacity: of the queue.
        inside: how many are inside at first.
    """

    waiters: tuple[Call, ...]
    events: tuple[tuple[Event, ...], ...]
    capacity: int = 2
    inside: int = 0
    inner: bool = False
    """Whether events come from within the first loop, and not from another thread."""

    def __str__(self) -> str:
        waiters = "+".join("-".join(map(str, waiter)) for waiter in self.waiters)
        events = "+".join("-".join(map(str, each)) for line in self.events for each in line)
        return f"{waiters} {events}{' inner' if self.inner else ''}"


GRANTS = (("now", "enqueue_nowait", 10), ("now", "enqueue_nowait", 11))
TAKES = (("now", "dequeue_nowait"), ("now", "dequeue_nowait"))
TWO = ((0, "dequeue"), (1, "dequeue"))
THREE = ((0, "dequeue"), (0, "dequeue"), (0, "dequeue"))

SCENES = [
    # Those who take, in one loop and in two; one of them is cancelled, or two are.
    Scene(THREE, (GRANTS, (("cancel", 0),))),
    Scene(THREE, (GRANTS, (("cancel", 1),), (("cancel", 0),))),
    Scene(THREE, (GRANTS, (("cancel", 0),)), inner=True),
    Scene(TWO, (GRANTS, (("cancel", 0),))),
    Scene(TWO, (GRANTS[:1], GRANTS[1:], (("cancel", 1),))),
    Scene(TWO, (GRANTS[:1], (("cancel", 0),), (("close", False),))),
    Scene(THREE[:2], (GRANTS[:1], (("cancel", 0),), (("close", False),)), inner=True),
    # Those who put in.
    Scene(((0, "enqueue", 5), (0, "enqueue", 6)), (TAKES, (("cancel", 0),)), inside=2),
    Scene(((0, "enqueue", 5), (1, "enqueue", 6)), (TAKES, (("cancel", 0),)), inside=2),
    Scene(((0, "enqueue", 5), (1, "enqueue", 6)), (TAKES, (("cancel", 1),)), inside=2),
    Scene(((0, "enqueue", 5), (0, "enqueue", 6)), (TAKES, (("close", True),)), inside=2),
    Scene(((0, "enqueue", 5), (1, "enqueue", 6)), (TAKES[:1], (("close", False),)), inside=2),
    Scene(
        ((0, "enqueue", 5), (0, "enqueue_many", (6, 7, 8)), (1, "enqueue", 9)),
        (TAKES, (("cancel", 1),)),
        inside=2,
    ),
    Scene(((0, "enqueue_many", (5, 6, 7)), (1, "enqueue", 8)), (TAKES, (("cancel", 0),)), inside=2),
    Scene(((0, "enqueue", 5),), (TAKES[:1], GRANTS[:1], (("cancel", 0),)), inside=2),
    # Batches, which hold rows while they wait.
    Scene(((0, "dequeue_many", 2), (0, "dequeue")), (GRANTS, (("cancel", 0),))),
    Scene(((0, "dequeue_many", 3), (1, "dequeue_many", 2)), (GRANTS, (("cancel", 0),)), capacity=1),
    Scene(
        ((0, "dequeue_many", 2), (1, "dequeue")), (GRANTS, (("cancel", 0),), (("close", False),))
    ),
    Scene(((0, "dequeue_up_to", 3), (1, "dequeue")), (GRANTS, (("close", False),)), capacity=1),
    Scene(((0, "dequeue_up_to", 2, 1.0), (0, "dequeue")), (GRANTS, (("cancel", 0),))),
    Scene(((0, "dequeue_up_to", 2, 1.0), (1, "dequeue")), (GRANTS[:1], (("close", False),))),
    # Both sides.
    Scene(
        ((0, "dequeue_many", 3), (1, "enqueue_many", (5, 6, 7))),
        (GRANTS[:1], (("cancel", 0),)),
        capacity=1,
    ),
    # Waiting for the end.
    Scene(
        ((0, "enqueue", 5), (1, "wait_closed"), (0, "wait_closed")),
        ((("close", False),), TAKES[:1], (("cancel", 2),)),
        inside=2,
    ),
    # A loop that is closed while its tasks wait.
    Scene(((0, "dequeue"), (1, "dequeue")), (GRANTS, (("end", 0),))),
    Scene(((0, "dequeue"), (0, "dequeue"), (1, "dequeue")), (GRANTS, (("end", 0),))),
    Scene(((0, "dequeue_many", 2), (1, "dequeue")), (GRANTS, (("end", 0),), (("cancel", 1),))),
    Scene(((0, "enqueue", 5), (1, "enqueue", 6)), (TAKES, (("end", 0),)), inside=2),
    Scene(
        ((0, "enqueue", 5), (1, "enqueue", 6)),
        (TAKES, (("end", 0),), (("close", False),)),
        inside=2,
    ),
    Scene(((0, "enqueue_many", (5, 6)), (1, "enqueue", 7)), (TAKES, (("end", 0),)), inside=2),
    Scene(((0, "dequeue"), (1, "dequeue")), (GRANTS, (("end", 0),), (("end", 1),))),
]


class TaskRun:
    """One run of a scene."""

    def __init__(self, scene: Scene, choices: Choices) -> None:
        self.scene = scene
        self.choices = choices
        self.loops = (SteppedLoop(), SteppedLoop())
        self.record = CallRecord(scene.capacity, scene.inside)
        self.first = len(self.record.entries)
        self.tasks: list[asyncio.Task[None]] = []
        for index, method, *arguments in scene.waiters:
            loop = self.loops[index]
            with loop.entered():
                self.tasks.append(loop.create_task(self.record.task(method, *arguments)))
            self.settle()

    def run(self) -> None:
        """Play it to the end, and check what it has come to."""
        events = [list(line) for line in self.scene.events]
        while True:
            moves: list[Callable[[], object]] = [loop.step for loop in self.loops if loop.has_work]
            moves += [partial(self.happen, line) for line in events if line]
            moves += [loop.let_time_pass for loop in self.loops if loop.has_timers and moves]
            if not moves:
                break
            moves[self.choices.choose(len(moves))]()
        if any(loop.is_closed() for loop in self.loops):
            # Each call that does not wait does so first; who waits already may have to wait for it.
            core_of(self.record.queue).drop_dead_loops()
        self.settle()
        self.record.check_sleepers()
        self.record.close(cancel=True)
        self.settle()
        self.record.check(in_turn=True)
        for loop in self.loops:
            assert loop.complaints == []
            loop.put_away()

    def settle(self) -> None:
        while any(loop.has_work for loop in self.loops):
            for loop in self.loops:
                if loop.has_work:
                    loop.step()

    def happen(self, line: list[Event]) -> None:
        kind, *arguments = line.pop(0)
        if kind == "end":
            self.end(arguments[0])
        elif kind == "cancel":
            task = self.tasks[arguments[0]]
            loop = self.loops[self.scene.waiters[arguments[0]][0]]
            if not loop.is_closed():
                with loop.entered():
                    task.cancel()
        else:
            act = self.record.now if kind == "now" else self.record.close
            if self.scene.inner:
                with self.loops[0].entered():
                    act(*arguments)
            else:
                act(*arguments)

    def end(self, index: int) -> None:
        self.loops[index].close()
        for entry, waiter in zip(
            self.record.entries[self.first :], self.scene.waiters, strict=False
        ):
            if waiter[0] == index and entry.is_alive:
                entry.has_left = True


def play(scene: Scene, choices: Choices) -> None:
    TaskRun(scene, choices).run()


@pytest.mark.slow("end-0+", "cancel-0+close", "dequeue_up_to-2-1.0+1", "wait_closed")
@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_tasks(scene: Scene) -> None:
    explored = explore(partial(play, scene))
    print(f"\n{explored.schedules} schedules")
    assert explored.finished
    assert explored.schedules > 1


TAKING: tuple[Call, ...] = (("dequeue",), ("dequeue_many", 2))
PUTTING: tuple[Call, ...] = (("enqueue", 5), ("enqueue_many", (6, 7)))
ALSO_PUTTING: tuple[Call, ...] = (("enqueue", 8), ("enqueue_many", (8, 9)))
if IS_LONG:
    TAKING += (("dequeue_up_to", 2, 1.0),)  # whose deadline passes at any time
DISTURBANCES = {
    "cancel the first": ("cancel", 0),
    "cancel the second": ("cancel", 1),
    "close": ("close", False),
    "close and cancel": ("close", True),
    "end a loop": ("end", 0),
}


def pairs(disturbance: Event, inner: bool) -> list[Scene]:
    """Any two that wait on the same side, in one loop or two, and what disturbs their hand-over."""
    scenes = []
    for first, second, events, inside in (
        (TAKING, TAKING, GRANTS, 0),
        (PUTTING, ALSO_PUTTING, TAKES, 2),
    ):
        for one, other, loop in product(first, second, (0, 1)):
            has_batch = any(name.endswith("_many") for name, *_ in (one, other))
            if has_batch and bool(loop) == inner and not IS_LONG:
                continue  # in two loops from outside, and in one from within
            waiters = ((0, *one), (loop, *other))
            scenes.append(Scene(waiters, (events, (disturbance,)), 2, inside, inner))
    return scenes


@pytest.mark.slow
@pytest.mark.parametrize("inner", [False, True], ids=["from outside", "from within"])
@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_any_two_tasks(disturbance: str, inner: bool) -> None:
    schedules = 0
    for scene in pairs(DISTURBANCES[disturbance], inner):
        explored = explore(partial(play, scene))
        assert explored.finished
        schedules += explored.schedules
    print(f"\n{schedules} schedules")


# Threads, and event loops that run in threads: every order in which they can take their locks, and
# sleep, and wake, with so many preemptions.

Plot = Callable[[Scheduler, CallRecord], None]


def consumers_and_a_producer(scheduler: Scheduler, record: CallRecord) -> None:
    scheduler.add("consumer 0", record.thread("dequeue"))
    scheduler.add("consumer 1", record.thread("dequeue"))
    scheduler.add("producer", record.thread("enqueue_many", [10, 11]))


def producers_and_a_consumer(scheduler: Scheduler, record: CallRecord) -> None:
    scheduler.add("producer 0", record.thread("enqueue", 10))
    scheduler.add("producer 1", record.thread("enqueue", 11))
    scheduler.add("consumer", record.thread("dequeue_many", 3))


def timeout_and_grant(scheduler: Scheduler, record: CallRecord) -> None:
    scheduler.add("impatient", record.thread("dequeue", timeout=1.0))
    scheduler.add("patient", record.thread("dequeue"))
    scheduler.add("producer", record.thread("enqueue", 10))


def timeout_of_a_batch(scheduler: Scheduler, record: CallRecord) -> None:
    scheduler.add("impatient", record.thread("dequeue_many", 2, timeout=1.0))
    scheduler.add("patient", record.thread("dequeue"))
    scheduler.add("producer", record.thread("enqueue", 10))


def timeout_of_an_enqueue(scheduler: Scheduler, record: CallRecord) -> None:
    scheduler.add("impatient", record.thread("enqueue_many", [10, 11], timeout=1.0))
    scheduler.add("patient", record.thread("enqueue", 12))
    scheduler.add("consumer", record.thread("dequeue_up_to", 2))


def haste(scheduler: Scheduler, record: CallRecord) -> None:
    scheduler.add("expiring", record.thread("dequeue_up_to", 2, 1.0))
    scheduler.add("producer 0", record.thread("enqueue", 10))
    scheduler.add("producer 1", record.thread("enqueue", 11))


def close_and_grant(scheduler: Scheduler, record: CallRecord) -> None:
    scheduler.add("consumer", record.thread("dequeue_many", 2))
    scheduler.add("producer", record.thread("enqueue", 10))
    scheduler.add("closer", record.close)


def close_and_cancel(scheduler: Scheduler, record: CallRecord) -> None:
    scheduler.add("producer", record.thread("enqueue_many", [10, 11]))
    scheduler.add("waiter", record.thread("wait_closed"))
    scheduler.add("closer", partial(record.close, True))


def task_and_thread(scheduler: Scheduler, record: CallRecord) -> None:
    """One task in a loop that waits, and is woken from outside."""
    loop = SteppedLoop(scheduler)
    scheduler.add("loop", lambda: loop.run(record.task("dequeue")))
    scheduler.add("producer", record.thread("enqueue", 10))


def two_wakes_of_one_loop(scheduler: Scheduler, record: CallRecord) -> None:
    """Two threads tell the same loop at the same time."""
    loop = SteppedLoop(scheduler)

    async def main() -> None:
        await asyncio.wait([loop.create_task(record.task("dequeue")) for _ in range(2)])

    scheduler.add("loop", lambda: loop.run(main()))
    scheduler.add("producer 0", record.thread("enqueue", 10))
    scheduler.add("producer 1", record.thread("enqueue", 11))


def cancelled_during_transfer(scheduler: Scheduler, record: CallRecord) -> None:
    """A task is cancelled by its loop while a thread grants it what it waits for."""
    loop = SteppedLoop(scheduler)

    async def main() -> None:
        task = loop.create_task(record.task("dequeue"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    scheduler.add("loop", lambda: loop.run(main()))
    scheduler.add("producer", record.thread("enqueue", 10))
    scheduler.add("consumer", record.thread("dequeue"))


def place_of_a_task(scheduler: Scheduler, record: CallRecord) -> None:
    """A task that puts in, between two threads that do."""
    loop = SteppedLoop(scheduler)
    scheduler.add("loop", lambda: loop.run(record.task("enqueue", 10)))
    scheduler.add("producer", record.thread("enqueue", 11))
    scheduler.add("consumer", record.thread("dequeue_many", 3))


def loop_ends(scheduler: Scheduler, record: CallRecord) -> None:
    """A loop is closed while a thread wakes a task of it."""
    loop = SteppedLoop(scheduler)

    async def main() -> None:
        loop.create_task(record.task("dequeue"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def run() -> None:
        loop.run(main())
        loop.close()
        for entry in record.entries:
            if entry.is_alive and entry.method == "dequeue":
                entry.has_left = True

    scheduler.add("loop", run)
    scheduler.add("producer", record.thread("enqueue", 10))
    scheduler.add("other", record.thread("dequeue_many", 1))


@dataclass(frozen=True)
class Setting:
    """A plot, and the queue that it is played with.

    Attributes:
        is_long: whether there are too many lines to stop at, in every run of the suite.
    """

    plot: Plot
    capacity: int = 2
    inside: int = 0
    is_long: bool = False

    def __str__(self) -> str:
        return self.plot.__name__


SETTINGS = [
    Setting(consumers_and_a_producer),
    Setting(producers_and_a_consumer, 1, 1, is_long=True),
    Setting(timeout_and_grant),
    Setting(timeout_of_a_batch, is_long=True),
    Setting(timeout_of_an_enqueue, 1, 1, is_long=True),
    Setting(haste, 1),
    Setting(close_and_grant),
    Setting(close_and_cancel, 1, 1),
    Setting(task_and_thread),
    Setting(two_wakes_of_one_loop),
    Setting(cancelled_during_transfer),
    Setting(place_of_a_task, 1, 1, is_long=True),
    Setting(loop_ends),
]


def thread_run(
    setting: Setting, choices: Choices, *, preemptions: int, lines: tuple[str, ...] = ()
) -> None:
    """One run of a plot."""
    scheduler = Scheduler(choices, preemptions=preemptions, lines=lines)
    with scheduler.installed():
        record = CallRecord(setting.capacity, setting.inside)
        setting.plot(scheduler, record)
        scheduler.run()
        core_of(record.queue).drop_dead_loops()  # each call that does not wait does so first
        scheduler.no_more_choices()
        scheduler.run()
        record.check_sleepers()
        record.close(cancel=True)
        sleeping = scheduler.run()
        assert sleeping == [], f"asleep for ever: {sleeping}"
        scheduler.finish()
        record.check()


@pytest.mark.slow(every=7)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_threads(setting: Setting) -> None:
    """They are stopped before they take a lock, and after they have released it."""
    preemptions = 1 + IS_LONG + (EFFORT >= 100)
    explored = explore(partial(thread_run, setting, preemptions=preemptions))
    print(f"\n{explored.schedules} schedules")
    assert explored.finished


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", [one for one in SETTINGS if IS_LONG or not one.is_long], ids=str
)
def test_threads_between_lines(setting: Setting) -> None:
    """They are also stopped between any two lines of the waiting code."""
    lines = ("aioqueue.worlds", "aioqueue.queues") if IS_LONG else ("aioqueue.worlds",)
    explored = explore(partial(thread_run, setting, preemptions=1, lines=lines))
    print(f"\n{explored.schedules} schedules")
    assert explored.finished


# The explorers themselves.


def run_of(setting: Setting) -> Callable[[Choices], None]:
    return partial(thread_run, setting, preemptions=1)


def _fall_asleep_late(waker: AsyncioWaker) -> None:
    """In place of `AsyncioWaker._resume_scheduled`, whose flag should fall before it looks."""
    waker._resume()
    with waker._lock:
        waker._is_scheduled = False


def _withdraw_in_any_case(machine: Machine, attempt: Any, *_: Any, **__: Any) -> Any:
    """In place of `Machine.withdraw`: what was granted is thrown away."""
    with machine._lock:
        machine._remove_attempt(attempt)
        attempt.state = WITHDRAWN
        return machine._settle()


class TestTheExplorers:
    def test_all_choices_are_made_once(self) -> None:
        seen = []

        def run(choices: Choices) -> None:
            first = choices.choose(3)
            seen.append((first, choices.choose(2) if first else None, choices.choose(1)))

        explored = explore(run)
        assert seen == [(0, None, 0), (1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0)]
        assert (explored.schedules, explored.finished) == (5, True)
        assert not explore(run, limit=2).finished

    def test_a_failure_lists_the_choices_that_lead_to_it(self) -> None:
        def run(choices: Choices) -> None:
            if (choices.choose(2), choices.choose(3)) == (1, 2):
                raise ValueError("found")

        with pytest.raises(ScheduleError, match=re.escape("found\nwith the choices (1, 2)")):
            explore(run)
        with pytest.raises(ValueError, match="found"):
            replay(run, (1, 2))

    def test_a_run_that_is_left_to_chance_is_refused(self) -> None:
        sizes = iter([3, 3, 2, 1])

        def run(choices: Choices) -> None:
            choices.choose(next(sizes))

        with pytest.raises(ScheduleError, match="left to chance"):
            explore(run)

    def test_two_threads_that_add_without_a_lock(self) -> None:
        """The classic: without preemption nothing is lost, with one of them it is."""

        def run(choices: Choices, preemptions: int) -> None:
            scheduler = Scheduler(choices, preemptions=preemptions)
            total = 0

            def add() -> None:
                nonlocal total
                before = total
                scheduler.point()
                total = before + 1

            scheduler.add("one", add)
            scheduler.add("other", add)
            assert scheduler.run() == []
            scheduler.finish()
            assert total == 2

        assert explore(partial(run, preemptions=0)).finished
        with pytest.raises(ScheduleError):
            explore(partial(run, preemptions=1))

    def test_two_threads_that_wait_for_each_other(self) -> None:
        def run(choices: Choices) -> None:
            scheduler = Scheduler(choices, preemptions=1)
            locks = [ControlledLock(scheduler) for _ in range(2)]

            def take(first: ControlledLock, second: ControlledLock) -> None:
                first.acquire()
                second.acquire()
                first.release()
                second.release()

            scheduler.add("one", partial(take, *locks))
            scheduler.add("other", partial(take, *reversed(locks)))
            asleep = scheduler.run()
            for lock in locks if asleep else ():
                lock.release()
            if asleep:
                with pytest.raises(RuntimeError, match="unlocked"):
                    scheduler.run()
            assert asleep == []

        with pytest.raises(ScheduleError, match="one"):
            explore(run)

    @pytest.mark.parametrize(
        ("where", "name", "broken", "plot"),
        [
            (AsyncioWaker, "_resume_scheduled", _fall_asleep_late, two_wakes_of_one_loop),
            (ThreadWaker, "wake", lambda *_, **__: (), consumers_and_a_producer),
            (Machine, "withdraw", _withdraw_in_any_case, timeout_and_grant),
            (Machine, "withdraw", _withdraw_in_any_case, cancelled_during_transfer),
        ],
    )
    @pytest.mark.skipif(
        aioqueue.__compiled__, reason="what is compiled cannot be broken from the outside"
    )
    def test_a_race_is_found_again(
        self,
        where: type[Any],
        name: str,
        broken: Callable[..., Any],
        plot: Plot,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        run = run_of(next(setting for setting in SETTINGS if setting.plot is plot))
        with monkeypatch.context() as context:
            context.setattr(where, name, broken)
            with pytest.raises(ScheduleError) as caught:
                explore(run)
            reported = str(caught.value).rpartition("with the choices ")[2]
            choices = ast.literal_eval(reported)
            with pytest.raises(AssertionError):
                replay(run, choices)
        replay(run, choices)
