"""Real threads, of which exactly one runs, and every switch between them is a choice.

`explore` runs something again and again, each time with other choices, until it has made all of
them: depth first, without keeping any state, by repeating the choices that lead to the next new
one. That is systematic concurrency testing as in CHESS (Musuvathi et al., 2008), and like it
`Scheduler` bounds the *preemptions*: a thread that has to wait may be followed by any other, but
only so many times in one run is one stopped that could have run on. Few are enough to find nearly
all races, and make the number of schedules polynomial.

A thread may be stopped before it takes a lock, after it has released one, and where it calls the
scheduler; with ``lines``, before each line of a package. A timeout runs out when it is chosen to.
Nothing depends on time, so a schedule that fails is reported as its choices, and fails each time::

    replay(run, (0, 0, 1, 0, 2))
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

from aioqueue.queues import blocking, queue_core
from aioqueue.system import forks
from aioqueue.worlds import asyncio as asyncio_waiting
from aioqueue.worlds import waker
from tests.kit.worlds import PATIENCE

__all__ = (
    "Choices",
    "ControlledLock",
    "ControlledRLock",
    "Explored",
    "ScheduleError",
    "Scheduler",
    "explore",
    "replay",
)


class ScheduleError(AssertionError):
    """One order of events breaks a promise; the message tells which choices lead there."""


class Choices:
    """The choices of one run: first those given, then always the first one."""

    def __init__(self, given: Sequence[int] = ()) -> None:
        self._given = given
        self.made: list[tuple[int, int]] = []

    def choose(self, n: int) -> int:
        """One of n, from 0 on."""
        if n == 1:
            return 0
        place = len(self.made)
        choice = self._given[place] if place < len(self._given) else 0
        assert choice < n, "the run is not the same as before: something in it is left to chance"
        self.made.append((choice, n))
        return choice

    def __str__(self) -> str:
        made = [choice for choice, _ in self.made]
        while made and made[-1] == 0:
            made.pop()
        return str(tuple(made))


@dataclass
class Explored:
    """How many runs there were, and whether those were all."""

    schedules: int = 0
    finished: bool = False


def explore(run: Callable[[Choices], object], *, limit: int = 10**9) -> Explored:
    """Run something with all choices that it can be given.

    Raises:
        ScheduleError: a run has failed.
    """
    explored = Explored()
    given: list[int] = []
    while explored.schedules < limit:
        choices = Choices(given)
        try:
            with _without_collections():
                run(choices)
        except Exception as error:
            raise ScheduleError(f"{error}\nwith the choices {choices}") from error
        explored.schedules += 1
        made = choices.made
        while made and made[-1][0] + 1 == made[-1][1]:
            made.pop()
        if not made:
            explored.finished = True
            break
        given = [choice for choice, _ in made]
        given[-1] += 1
    return explored


def replay(run: Callable[[Choices], object], choices: Sequence[int]) -> None:
    """Run something once more with the choices that a failure lists."""
    with _without_collections():
        run(Choices(choices))


@contextmanager
def _without_collections() -> Iterator[None]:
    """Let no finalizer of what an earlier test has left run in the middle, in a loop of ours.

    When that happens depends on how much was allocated before; here it comes between two runs.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(eq=False)
class _Actor:
    """One thread, and what it waits for."""

    name: str
    work: Callable[[], object]
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    wakes: Callable[[], bool] | None = None
    """Whether it need not wait any more; None if it does not wait."""
    seconds: float | None = None
    """After which it gives up waiting."""
    timed_out: bool = False
    has_ended: bool = False
    failure: BaseException | None = None

    @property
    def can_run(self) -> bool:
        return not self.has_ended and (self.wakes is None or self.wakes())

    @property
    def can_time_out(self) -> bool:
        return not self.has_ended and self.wakes is not None and self.seconds is not None


class Scheduler:
    """Runs threads one at a time.

    Args:
        choices: who runs next.
        preemptions: how many times a thread is stopped that could run on.
        lines: the packages between whose lines a thread can also be stopped.
    """

    def __init__(
        self, choices: Choices, *, preemptions: int = 2, lines: tuple[str, ...] = ()
    ) -> None:
        self.now = 0.0
        self.at_end: list[Callable[[], object]] = []
        self._choices = choices
        self._preemptions = preemptions
        self._wait_lists = lines
        self._actors: list[_Actor] = []
        self._here = threading.local()
        self._is_quiet = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def add(self, name: str, work: Callable[[], object]) -> None:
        """One more thread, for the next `run`."""
        self._actors.append(_Actor(name, work))

    def run(self) -> list[str]:
        """Let the threads run until each has ended, or sleeps; return the names of the latter."""
        for actor in self._actors[len(self._threads) :]:
            thread = threading.Thread(target=self._live, args=(actor,), daemon=True)
            self._threads.append(thread)
            thread.start()
        self._yield_to_next(None)
        assert self._is_quiet.acquire(timeout=PATIENCE), "a thread has left the schedule"
        for actor in self._actors:
            if actor.failure is not None:
                raise actor.failure
        return [actor.name for actor in self._actors if not actor.has_ended]

    def finish(self) -> None:
        """Wait until the threads are gone, and put away what they have left."""
        for thread in self._threads:
            thread.join(PATIENCE)
        for put_away in self.at_end:
            put_away()

    def no_more_choices(self) -> None:
        """Let what is still to come happen in one order only."""
        self._choices = Choices()
        self._preemptions = 0

    @contextmanager
    def installed(self) -> Iterator[Scheduler]:
        """Make the locks of all queues that are made meanwhile this scheduler's."""
        locks = SimpleNamespace(
            Lock=lambda: ControlledLock(self),
            RLock=lambda: ControlledRLock(self),
            get_ident=threading.get_ident,
            TIMEOUT_MAX=threading.TIMEOUT_MAX,
        )
        with ExitStack() as patches:
            for module in (queue_core, asyncio_waiting, waker):
                patches.enter_context(patch.object(module, "threading", locks))
            patches.enter_context(patch.object(queue_core, "machine_lock", locks.RLock))
            patches.enter_context(patch.object(blocking, "perf_counter", lambda: self.now))
            # Kept in each thread, and there are new ones for each run.
            patches.enter_context(patch.object(asyncio_waiting, "_thread_local", threading.local()))
            # Explanations look at all queues, and a lock of these may stay taken for ever.
            patches.enter_context(patch.object(forks, "_queues", WeakSet()))
            yield self

    def point(self) -> None:
        """Here another thread may run first."""
        actor = self._current()
        if actor is not None:
            self._yield_to_next(actor)

    def wait(self, wakes: Callable[[], bool], seconds: float | None = None) -> bool:
        """Sleep until it wakes, or until the time has run out; tell whether it woke.

        The main thread, which is none of the scheduler's, never has to wait.
        """
        actor = self._current()
        if actor is None:
            assert wakes(), "the main thread would have to wait"
            return True
        if seconds is not None and seconds <= 0:
            return wakes()
        actor.wakes, actor.seconds, actor.timed_out = wakes, seconds, False
        self._yield_to_next(actor)
        actor.wakes, actor.seconds = None, None
        if actor.timed_out and seconds is not None:
            self.now += seconds
        return not actor.timed_out

    def _current(self) -> _Actor | None:
        return getattr(self._here, "actor", None)

    def _live(self, actor: _Actor) -> None:
        self._here.actor = actor
        actor.baton.acquire()
        if self._wait_lists:
            sys.settrace(self._trace)
        try:
            actor.work()
        except BaseException as failure:
            actor.failure = failure
        finally:
            sys.settrace(None)
        actor.has_ended = True
        self._yield_to_next(actor)

    def _yield_to_next(self, current: _Actor | None) -> None:
        """Choose who runs next, and wait until it is our turn again."""
        following = self._chosen(current)
        if following is current and current is not None:
            return
        if following is None:
            self._is_quiet.release()
        else:
            following.baton.release()
        if current is not None and not current.has_ended:
            current.baton.acquire()

    def _chosen(self, current: _Actor | None) -> _Actor | None:
        able = [actor for actor in self._actors if actor.can_run]
        timed = [a for a in self._actors if a.can_time_out and a not in able]
        if current is not None and current in able:
            if not self._preemptions:
                return current
            others = [actor for actor in [*able, *timed] if actor is not current]
            following = [current, *others][self._choices.choose(1 + len(others))]
            if following is not current:
                self._preemptions -= 1
        elif able or timed:
            everyone = [*able, *timed]
            following = everyone[self._choices.choose(len(everyone))]
        else:
            return None
        following.timed_out = following not in able
        return following

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not str(frame.f_globals.get("__name__")).startswith(self._wait_lists):
            return None
        if event == "line":
            self.point()
        return self._trace


class ControlledLock:
    """A lock of a scheduler's threads, in place of `threading.Lock`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._scheduler.point()
        if self._is_held:
            seconds = None if timeout < 0 else timeout
            if not self._scheduler.wait(lambda: not self._is_held, seconds):
                return False
        self._is_held = True
        return True

    def release(self) -> None:
        if not self._is_held:
            raise RuntimeError("release unlocked lock")
        self._is_held = False
        self._scheduler.point()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class ControlledRLock:
    """The same, that its owner can take again, in place of `threading.RLock`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, /) -> bool:
        # Who is refused gives way until it is free, which is as good as waiting.
        if not self._is_owned():
            self._scheduler.point()
            if self._owner is not None:
                self._scheduler.wait(lambda: self._owner is None)
            self._owner = threading.get_ident()
        self._depth += 1
        return True

    def release(self) -> None:
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._scheduler.point()

    def _is_owned(self) -> bool:
        return self._owner == threading.get_ident()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
