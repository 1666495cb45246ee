"""The lock of the compiled core: one at a time, and nobody left asleep, in every order there is.

Its algorithm is explored on the source itself, interpreted, with a bolt at which the explorer's
threads switch: there, and where the tests say so, a compiled lock lets the interpreter go, and
nowhere else.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import aioqueue
from aioqueue import locks
from aioqueue.locks import REFUSAL, is_held_here
from tests.proof.scheduling import Choices, ScheduleError, Scheduler, explore
from tests.test_locks import StruckError


def interpreted() -> ModuleType:
    """The module as it stands in its file, whether or not it was compiled."""
    file = Path(locks.__file__).with_name("locks.py")
    spec = importlib.util.spec_from_file_location("gil_lock_interpreted", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOURCE = interpreted()


class Bolt:
    """A plain lock at which the threads of a scheduler switch as at one that lets go of the GIL.

    Args:
        scheduler: theirs.
        fails: whether a handler may raise in a wait, at any time.
    """

    def __init__(self, scheduler: Scheduler, fails: bool) -> None:
        self.scheduler = scheduler
        self.seconds = 1.0 if fails else None
        self.shut = False

    def acquire(self, blocking: bool = True) -> bool:
        if self.shut and not blocking:
            return False
        if self.shut:
            if not self.scheduler.wait(lambda: not self.shut, self.seconds):
                raise StruckError
            self.shut = True
            self.scheduler.point()  # it has it, and waits for the interpreter
        self.shut = True
        return True

    def release(self) -> None:
        if not self.shut:
            raise RuntimeError("release unlocked lock")
        self.shut = False

    def locked(self) -> bool:
        return self.shut


class Crowd:
    """Threads that take a lock, some of them twice, and may be stopped while they have it."""

    def __init__(self, lock_type: Callable[[Any], Any], fails: bool, choices: Choices) -> None:
        self.scheduler = Scheduler(choices, preemptions=2)
        self.bolt = Bolt(self.scheduler, fails)
        self.lock = lock_type(lambda: self.bolt)
        self.inside: list[str] = []

    def run(self) -> None:
        self.scheduler.add("twice", partial(self.work, "twice", 2, 1))
        self.scheduler.add("again", partial(self.work, "again", 1, 2))
        self.scheduler.add("trying", self.work_if_free)
        asleep = left = self.scheduler.run()
        while left:  # whoever was forgotten is to end, too
            self.bolt.shut = False
            left = self.scheduler.run()
        self.scheduler.finish()
        assert asleep == []
        assert (self.lock._depth, self.lock._waiting) == (0, 0)
        assert self.lock.acquire(False)

    def work(self, name: str, depth: int, times: int) -> None:
        for _ in range(times):
            try:
                self.lock.acquire()
            except StruckError:
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

    def work_if_free(self) -> None:
        if self.lock.acquire(False):
            self.stay("trying")
            self.lock.release()

    def stay(self, name: str) -> None:
        assert is_held_here(self.lock)
        self.inside.append(name)
        self.scheduler.point()
        assert self.inside == [name], "two have it at the same time"
        self.inside.pop()


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True], ids=["patient", "struck"])
def test_every_order(fails: bool) -> None:
    explored = explore(lambda choices: Crowd(SOURCE.GilLock, fails, choices).run())
    assert explored.finished
    assert explored.schedules > 100


class Forgetful(SOURCE.GilLock):  # type: ignore[misc, name-defined]
    """Who lets go wakes nobody who came to wait behind another."""

    __slots__ = ()

    def _wait(self) -> None:
        self._sleep()


class Generous(SOURCE.GilLock):  # type: ignore[misc, name-defined]
    """Who was woken takes it, whoever has it."""

    __slots__ = ()

    def _sleep(self) -> None:
        self._shut(False)
        self._shut()


@pytest.mark.parametrize("broken", [Forgetful, Generous])
def test_such_a_mistake_is_found(broken: type[Any]) -> None:
    with pytest.raises(ScheduleError):
        explore(lambda choices: Crowd(broken, False, choices).run())


LOCKS = pytest.mark.parametrize("lock_type", [locks.GilLock, SOURCE.GilLock, threading.RLock])


@LOCKS
def test_it_knows_its_owner(lock_type: Callable[[], Any]) -> None:
    lock = lock_type()
    with pytest.raises(RuntimeError) as refused:
        lock.release()
    assert refused.value.args == REFUSAL
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
        assert seen == [False, False, REFUSAL]
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
    is_of_use = aioqueue.__compiled__ and not sysconfig.get_config_var("Py_GIL_DISABLED")
    assert locks.COMPILED is aioqueue.__compiled__
    assert isinstance(lock, locks.GilLock) is is_of_use
    assert (locks.as_gil_lock(lock) is lock) is (is_of_use or not aioqueue.__compiled__)


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


def test_another_lock_is_called_as_it_is() -> None:
    """Whatever lock a machine is given, compiled or not."""
    lock: Any = threading.RLock()
    taken: Any = locks.as_gil_lock(lock)
    assert taken.acquire(False) is True
    assert is_held_here(lock) is is_held_here(taken) is True
    taken.release()
    with pytest.raises(RuntimeError) as refused:
        taken.release()
    assert refused.value.args == REFUSAL
