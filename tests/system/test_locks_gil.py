# mypy: disable-error-code="misc,has-type"
"""The lock of a queue's machine: one at a time, and nobody left asleep, in every order there is.

It is explored on the source itself, interpreted, with a bell at which the explorer's threads
switch, as they do before each line: a line without a call is atomic. The fast path, which repeats
the lock's steps, is explored in the same way.
"""

from __future__ import annotations

import dis
import importlib.util
import re
import sys
import sysconfig
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import aioqueue
from aioqueue.core.fast_path import NOTHING, FastPath
from aioqueue.core.machine import Machine
from aioqueue.core.storage.objects import ObjectStorage
from aioqueue.system import locks
from aioqueue.system.locks import NOT_HELD, call_with_lock, is_held_here
from proofs.scheduling import Choices, ScheduleError, Scheduler, explore
from tests.system.test_locks import InjectedError


def interpreted() -> ModuleType:
    """The module as its file says, whether or not it was compiled."""
    file = Path(locks.__file__).with_name("locks.py")
    spec = importlib.util.spec_from_file_location("gil_lock_interpreted", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOURCE = interpreted()
BASE: Any = SOURCE.GilLock


class Bell:
    """A queue in place of `queue.SimpleQueue`, at which the threads of a scheduler switch.

    Args:
        scheduler: theirs.
        choices: when a handler raises.
        interrupted: when one may raise: "waiting", at any time; or "woken", after a wait.
    """

    def __init__(self, scheduler: Scheduler, choices: Choices, interrupted: str = "") -> None:
        self.scheduler = scheduler
        self.choices = choices
        self.interrupted = interrupted
        self.rung = 0

    def put(self, item: None) -> None:
        self.rung += 1
        assert self.rung <= 2, "it is rung again and again"
        self.scheduler.point()

    def get(self) -> None:
        seconds = 1.0 if self.interrupted == "waiting" else None
        if not self.scheduler.wait(lambda: self.rung > 0, seconds):
            raise InjectedError
        self.rung -= 1
        self.scheduler.point()  # it was woken, and waits for the interpreter
        if self.interrupted == "woken" and self.choices.choose(2):
            raise InjectedError


CROWDS = ("twice again", "once once once", "called once trying", "called twice")


class Crowd:
    """Threads that take a lock, some of them twice, and may be stopped before each line of it."""

    def __init__(
        self, lock_type: Callable[[Any], Any], interrupted: str, names: str, choices: Choices
    ) -> None:
        preemptions = 1 if interrupted and len(names.split()) > 2 else 2
        self.scheduler = Scheduler(choices, preemptions=preemptions, lines=(SOURCE.__name__,))
        self.bell = Bell(self.scheduler, choices, interrupted)
        self.lock = lock_type(lambda: self.bell)
        self.inside: list[str] = []
        work: dict[str, Callable[[str], object]] = {
            "once": partial(self.work, 1, 1),
            "twice": partial(self.work, 2, 1),
            "again": partial(self.work, 1, 2),
            "called": self.call,
            "trying": self.work_if_free,
        }
        for number, name in enumerate(names.split()):
            self.scheduler.add(name, partial(work[name], f"{name} {number}"))

    def run(self) -> None:
        asleep = left = self.scheduler.run()
        while left:  # whoever was forgotten is to end, too
            self.bell.rung += 1
            left = self.scheduler.run()
        self.scheduler.finish()
        assert asleep == []
        assert (self.lock._owner, self.lock._depth, self.lock._waiting) == (0, 0, 0)
        assert self.lock.acquire(False)

    def call(self, name: str) -> None:
        """Stay inside, twice, by a call that the lock makes."""
        with suppress(InjectedError):
            self.lock.run(self.lock.run, (self.stay, (name,), {}), {})

    def work(self, depth: int, times: int, name: str) -> None:
        for _ in range(times):
            try:
                self.lock.acquire()
            except InjectedError:
                assert not is_held_here(self.lock)
                return
            self.stay(name)
            for _ in range(depth - 1):
                assert self.lock.acquire(False)
                self.stay(name)
                self.lock.release()
            self.stay(name)
            self.lock.release()
            self.scheduler.point()

    def work_if_free(self, name: str) -> None:
        if self.lock.acquire(False):
            self.stay(name)
            self.lock.release()

    def stay(self, name: str) -> None:
        assert is_held_here(self.lock)
        self.inside.append(name)
        self.scheduler.point()
        assert self.inside == [name], "two have it at the same time"
        self.inside.pop()


@pytest.mark.slow
@pytest.mark.parametrize("names", CROWDS)
@pytest.mark.parametrize("interrupted", ["", "waiting", "woken"])
def test_every_order(interrupted: str, names: str) -> None:
    explored = explore(lambda choices: Crowd(SOURCE.GilLock, interrupted, names, choices).run())
    assert explored.finished
    assert explored.schedules > 100


class Forgetful(BASE):
    """A waiter that is done does not request the bell for those that still wait."""

    __slots__ = ()

    def _wait(self, here: int) -> None:
        self._sleep(here)
        self._rings_on_release = False


class Generous(BASE):
    """A woken waiter takes the lock although another thread holds it."""

    __slots__ = ()

    def _sleep(self, here: int) -> None:
        self._rings_on_release = True
        if self._owner:
            self._listen()
        self._owner = here


class Late(BASE):
    """Who waits asks only after it has tried."""

    __slots__ = ()

    def _sleep(self, here: int) -> None:
        while True:
            was, self._owner = self._owner, self._owner or here
            if not was:
                return
            self._ring.__self__.scheduler.point()
            self._rings_on_release = True
            self._listen()


class Torn(BASE):
    """It is taken in two lines."""

    __slots__ = ()

    def acquire(self, blocking: bool = True) -> bool:
        if self._owner:
            return bool(super().acquire(blocking))
        self._ring.__self__.scheduler.point()
        self._owner = threading.get_ident()
        return True


class Silent(BASE):
    """A waiter interrupted after the bell wakes no other in its place."""

    __slots__ = ()

    def _wait(self, here: int) -> None:
        self._waiting += 1
        try:
            self._sleep(here)
        finally:
            self._waiting -= 1
            self._rings_on_release = self._waiting > 0


@pytest.mark.slow("Forgetful", "Generous")
@pytest.mark.parametrize("broken", [Forgetful, Generous, Late, Torn, Silent])
def test_such_a_mistake_is_found(broken: type[Any]) -> None:
    with pytest.raises(ScheduleError):
        interrupted = "woken" if broken is Silent else ""
        explore(lambda choices: Crowd(broken, interrupted, "once once once", choices).run())


class Steps(ObjectStorage):
    """A storage that notes how many are inside a step of it at a time."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.inside = 0
        self.put, self.take = self.in_step(self.put), self.in_step(self.take)  # type: ignore[method-assign]

    def in_step(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            self.inside += 1
            assert self.inside == 1, "two are inside at the same time"
            self.scheduler.point()
            try:
                return call(*args)
            finally:
                self.inside -= 1

        return step


class Tries:
    """Threads that put rows in and take them out by the fast path, and one that takes the lock."""

    def __init__(self, choices: Choices) -> None:
        self.scheduler = Scheduler(choices, preemptions=2, lines=("aioqueue.core.fast_path",))
        self.lock = locks.GilLock(lambda: Bell(self.scheduler, choices))
        self.path = FastPath(Steps(self.scheduler), self.lock, lambda lock: lock.acquire())
        self.path._bound_in, self.path._bound_out = 9, 0
        self.out: list[Any] = []

    def run(self) -> None:
        self.scheduler.add("in", lambda: [self.path.try_enqueue(n) for n in range(2)])
        self.scheduler.add("out", self.take)
        self.scheduler.add("slow", lambda: call_with_lock(self.lock, self.scheduler.point))
        assert self.scheduler.run() == []
        self.scheduler.finish()
        self.take()
        assert [row for row in self.out if row is not NOTHING] == [0, 1]
        assert (self.lock._owner, self.lock._depth, self.lock._waiting) == (0, 0, 0)

    def take(self) -> None:
        for _ in range(2):
            self.out.append(self.path.try_dequeue())


@pytest.mark.slow
@pytest.mark.skipif(aioqueue.__compiled__, reason="compiled code has no lines to stop at")
def test_every_order_of_the_fast_path() -> None:
    explored = explore(lambda choices: Tries(choices).run())
    assert explored.finished
    assert explored.schedules > 100


TAKING: list[Any] = [
    *(BASE.acquire, BASE.run, BASE._sleep),
    *(FastPath.try_enqueue, FastPath.try_dequeue, Machine.begin, Machine.commit),
]


@pytest.mark.skipif(aioqueue.__compiled__, reason="compiled code has no bytecode")
@pytest.mark.parametrize("function", TAKING)
def test_the_line_that_takes_it_makes_no_call(function: Any) -> None:
    """So CPython lets neither a thread nor a handler run in its middle."""
    code = function.__code__
    line: int | None = None
    found: list[list[dis.Instruction]] = []
    for instruction in dis.get_instructions(code):
        if instruction.starts_line:
            line = instruction.positions.lineno if instruction.positions else None
            found.append([])
        if line is not None:
            found[-1].append(instruction)
    taking = [
        each
        for each in found
        if any(one.opname == "STORE_ATTR" and one.argval == "_owner" for one in each)
        and any(one.opname == "LOAD_ATTR" and one.argval == "_owner" for one in each)
    ]
    assert len(taking) == 1
    for one in taking[0]:
        assert not re.search("CALL|RESUME|BACKWARD|SEND|YIELD|IMPORT|WITH", one.opname), one


LOCKS = pytest.mark.parametrize("lock_type", [locks.GilLock, SOURCE.GilLock, threading.RLock])


@LOCKS
def test_it_knows_its_owner(lock_type: Callable[[], Any]) -> None:
    lock = lock_type()
    with pytest.raises(RuntimeError) as refused:
        lock.release()
    assert refused.value.args == NOT_HELD
    seen: list[object] = []

    def elsewhere() -> None:
        seen.extend([is_held_here(lock), lock.acquire(False)])
        try:
            lock.release()
        except RuntimeError as error:
            seen.append(error.args)

    with lock:
        assert lock.acquire() is True
        asking = threading.Thread(target=elsewhere)
        asking.start()
        asking.join()
        assert seen == [False, False, NOT_HELD]
        lock.release()
        assert is_held_here(lock) is True
    assert is_held_here(lock) is False


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_machine_of_a_queue_has_it_where_the_global_lock_is_never_off(
    monkeypatch: pytest.MonkeyPatch, is_enabled: bool
) -> None:
    """That it is on now says nothing: it may be on just while a module is imported."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: is_enabled, raising=False)
    lock: Any = locks.machine_lock()
    is_of_use = not sysconfig.get_config_var("Py_GIL_DISABLED")
    assert locks.COMPILED is aioqueue.__compiled__
    assert isinstance(lock, locks.GilLock) is is_of_use
    assert (locks.as_gil_lock(lock) is lock) is is_of_use


@pytest.mark.parametrize("core", ["as it is", "as compiled code takes it"])
def test_one_at_a_time_has_the_lock_of_a_machine(core: str) -> None:
    """Truly at the same time, where there is no global lock."""
    lock: Any = locks.machine_lock()
    if core == "as compiled code takes it":
        lock = locks.as_gil_lock(lock)
    total = [0]

    def add(times: int) -> None:
        for _ in range(times):
            with lock, lock:
                before = total[0]
                total[0] = before + 1

    threads = [threading.Thread(target=add, args=(20_000,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == [80_000]


@pytest.mark.skipif(aioqueue.__compiled__, reason="compiled code has its lock for good")
def test_queues_work_with_the_lock_of_a_python_without_a_global_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locks, "_CAN_BE_OFF", True)
    queue = aioqueue.sync.FIFOQueue(2)
    got: list[int] = []
    taking = threading.Thread(target=lambda: got.extend(queue))
    taking.start()
    for number in range(100):
        queue.enqueue(number)
    queue.enqueue_many(range(100, 110))
    queue.close()
    taking.join()
    assert got == list(range(110))
    assert queue.statistics().dequeued == 110
    assert queue.is_closed()


def test_another_lock_is_called_as_it_is() -> None:
    """Whatever lock a machine is given, compiled or not."""
    lock: Any = threading.RLock()
    taken: Any = locks.as_gil_lock(lock)
    assert taken.acquire(False) is True
    assert is_held_here(lock) is is_held_here(taken) is True
    taken.release()
    with pytest.raises(RuntimeError) as refused:
        taken.release()
    assert refused.value.args == NOT_HELD
