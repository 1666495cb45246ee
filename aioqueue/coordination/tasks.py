"""Event loops: reaching one from any thread, and having one in a thread of its own.

The tasks that a block runs beside its body, and how its end waits for them.

The cancellation of one of them, no matter by whom, is its own affair: neither the others nor the
block feel it. And there is no task of our own among them that anybody could cancel.

Turns of an event loop: a worker that never waits lets the others have theirs.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from time import monotonic, perf_counter
from types import FrameType
from typing import Any, Final

import anyio
import anyio.lowlevel

from aioqueue.coordination.classify import (
    delivered_cancellations,
    is_cancellation,
    leaves_of,
    running_task,
)
from aioqueue.coordination.workers import OwnTask
from aioqueue.waiting import Gate, current_waker, defers_ctrl_c, in_trio, loaded_trio, running_loop

__all__ = (
    "CooperativeYield",
    "Tasks",
    "ask_again",
    "cancellation",
    "cancellations",
    "loop_of_its_own",
    "new_tasks",
    "outlast",
    "threadsafe_caller",
)


_BACKEND: Final = "anyio._backends._asyncio"  # imported by `anyio.run`


def threadsafe_caller() -> Callable[[Callable[[], object]], None]:
    """What has a call made in the event loop that is running now, from any thread.

    The call is not made if the loop has ended by then.
    """
    if running_loop() is not None:
        ask: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
    else:
        ask = loaded_trio().lowlevel.current_trio_token().run_sync_soon

    def make(call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed, or trio's run has ended
            ask(call)

    return make


def loop_of_its_own(body: Callable[..., Awaitable[object]], *args: object) -> Callable[[], Any]:
    """What a thread is to call that is about to be started, and has an event loop (uvloop, where it
    is installed).

    What that needs is imported here, by the thread that starts it. CPython forgets of a Ctrl-C that
    ends the program if another thread just then runs the code of a module; the exit status would
    be 1, and not that of a signal.

    Args:
        body: what the loop runs.
        args: what it is called with.
    """
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    for needed in (_BACKEND, *(["uvloop"] if has_uvloop else [])):
        with suppress(ImportError):  # then it is imported, or missed, when the loop begins
            importlib.import_module(needed)
    return partial(anyio.run, body, *args, backend_options={"use_uvloop": has_uvloop})


_ONE_LOOP: Final = (
    "Do it there; in a test suite, give the fixture and the test one loop, such as"
    ' `@pytest_asyncio.fixture(scope="module", loop_scope="module")` and'
    ' `@pytest.mark.asyncio(loop_scope="module")`'
)

Body = Callable[[], Awaitable[object]]
Report = Callable[[BaseException], object]


def _running_world() -> object:
    """The asyncio loop or the trio run that is going on in this thread; ``None`` if there is none.

    A run of trio is known by its token, which is the same for all its tasks.
    """
    if (loop := running_loop()) is not None:
        return loop
    token: object = loaded_trio().lowlevel.current_trio_token() if in_trio() else None
    return token


def ask_again(asked: int = 0) -> None:
    """Ask the running task to end once more, if it was asked and something else is raised instead.

    As `asyncio.TaskGroup` does: a failure goes first, and the cancellation comes at the next await.
    Before Python 3.13 that would outlive its `asyncio.timeout`, and it is left at being asked. The
    same if a scope around the task was cancelled: that asks again by itself, for as long as it
    lasts, and would not know what we ask for as its own.

    Args:
        asked: the `cancellations` when the call began that raises.
    """
    task = running_task()
    if sys.version_info >= (3, 13) and isinstance(task, asyncio.Task) and cancellations() > asked:
        if anyio.current_effective_deadline() == -math.inf:
            return
        task.uncancel()
        task.cancel()


def cancellations() -> int:
    """How many requests of `asyncio.Task.cancel` the running task has felt so far; 0 in trio."""
    return delivered_cancellations(running_task())


_SCOPES: Final = frozenset(
    {"asyncio.taskgroups", "asyncio.timeouts", "anyio._backends._asyncio", "async_timeout"}
)
"""Who cancels the task that is within, and takes that back, or forgets to."""


class _WorkerTask(asyncio.Task[None]):
    """A task of ours, which tells who asks it to end from what it asks of itself.

    A task group, timeout or scope that its function has entered cancels it and takes that back when
    it is left. A task group before Python 3.13 may forget to; from then on the count of the task
    says that somebody wants it to end, whom nothing else could tell from somebody who does.
    """

    inner_cancellations = 0
    """Those of `cancelling` that come from within."""

    def cancel(self, msg: Any | None = None) -> bool:
        is_asked = super().cancel(msg)
        if is_asked and _is_scope(sys._getframe(1)):
            self.inner_cancellations += 1
        return is_asked

    def uncancel(self) -> int:
        if self.inner_cancellations and _is_scope(sys._getframe(1)):
            self.inner_cancellations -= 1
        return super().uncancel()


def _is_scope(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in _SCOPES


async def outlast(
    gate: Gate, seconds: float | None = None, cancelled: Callable[[], object] = lambda: None
) -> None:
    """Wait until a gate is open, even if the caller is cancelled meanwhile.

    `asyncio.Task.cancel` interrupts one wait, which then begins anew. A scope of anyio would do so
    for as long as it lasts, so it is kept out by a shield once it has been felt; and in trio from
    the beginning, where it reaches the tasks of a block by itself. Whether there was one is told by
    `cancellations` before and after; to raise it again is up to the caller (`cancellation`).

    Args:
        gate: what to wait for.
        seconds: the most to wait; ``None`` for no limit.
        cancelled: called back when a wait was interrupted.

    Raises:
        KeyboardInterrupt: Ctrl-C has struck meanwhile, in trio; raised when the wait has ended.
    """
    interrupt: KeyboardInterrupt | None = None
    deadline = None if seconds is None else monotonic() + seconds
    shield = running_loop() is None
    while not gate.is_open:
        left = None if deadline is None else deadline - monotonic()
        if left is not None and left <= 0:
            break
        try:
            with anyio.move_on_after(left, shield=shield):
                await gate.wait(current_waker())
        except asyncio.CancelledError:
            cancelled()
            shield = anyio.current_effective_deadline() == -math.inf
        except KeyboardInterrupt as error:
            if running_loop() is not None:
                raise  # it ends the loop of asyncio
            interrupt = interrupt or error
            cancelled()
    if interrupt is not None:
        raise interrupt


async def cancellation() -> asyncio.CancelledError:
    """What to raise for a cancellation that `outlast` has outlasted: its scope knows it by that."""
    task = running_task()
    try:
        if getattr(task, "_must_cancel", False):
            await asyncio.sleep(0)  # it has not been felt yet, and must not be felt twice
        await anyio.lowlevel.checkpoint_if_cancelled()
    except asyncio.CancelledError as error:
        return error
    return asyncio.CancelledError()


class Tasks(ABC):
    """Tasks beside the one that has made this, of one event loop. Made by `new_tasks`."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._home = _running_world()
        self._soon = threadsafe_caller()
        self._scopes: dict[anyio.CancelScope, None] = {}

    @abstractmethod
    async def begin(self) -> None:
        """Get ready to start some. Waits for nothing."""

    @abstractmethod
    def start(
        self, name: str, body: Body, lost: Callable[[], object]
    ) -> tuple[OwnTask, anyio.CancelScope]:
        """Start a task.

        Args:
            name: of the task.
            body: what it runs, which reports its failures by itself.
            lost: called instead of the body if the task is cancelled before it has begun.

        Returns:
            The task, and the scope that it runs in.
        """

    def check_loop(self, doing: str) -> None:
        """Refuse what can be done in the event loop of these tasks only.

        Raises:
            RuntimeError: another one is running, or none.
        """
        if _running_world() is not self._home:
            raise RuntimeError(
                f"{doing}: this is not the event loop in which the coordinator's block was entered."
                f" {_ONE_LOOP}"
            )

    def check_going_on(self, doing: str) -> None:
        """Refuse to wait for these tasks where none of them is going to do anything.

        Raises:
            RuntimeError: their event loop is closed, or does not run while another one does.
        """
        home = self._home
        if home is running_loop() or not isinstance(home, asyncio.AbstractEventLoop):
            return
        if not home.is_running():
            state = "has been closed" if home.is_closed() else "does not run while this one does"
            raise RuntimeError(
                f"{doing}: the event loop in which its block was entered {state}, so that nobody"
                f" would answer. {_ONE_LOOP}"
            )

    def check_leaving(self) -> None:
        """Refuse to be ended where that cannot be done.

        Raises:
            RuntimeError: another event loop is running than that of these tasks.
        """
        self.check_loop("leaving the block")

    def cancel(self) -> None:
        """Cancel all that are there, in their own thread."""
        for scope in list(self._scopes):
            scope.cancel()

    def soon(self, call: Callable[[], object]) -> None:
        """Have a call made in their thread; from any other."""
        self._soon(call)

    def from_outside(self, call: Callable[[], object]) -> None:
        """Have a call made that starts a task; from any thread."""
        self._soon(call)

    @abstractmethod
    async def end(self) -> BaseException | None:
        """Cancel those that are left, and wait for all to end, even if the caller is cancelled.

        Returns:
            The cancellation that goes on from here, if a scope around the caller was cancelled.
        """

    def _own(self, name: str) -> tuple[OwnTask, anyio.CancelScope]:
        scope = anyio.CancelScope()
        self._scopes[scope] = None
        return OwnTask(name, lambda: self._soon(scope.cancel)), scope

    @defers_ctrl_c
    async def _run(self, task: OwnTask, scope: anyio.CancelScope, body: Body) -> None:
        task.task = running_task()
        work = body()
        del body  # what fails keeps this frame, and is kept by the coordinator that this may have
        try:
            with scope:
                await work
        except BaseException as error:
            if is_cancellation(error) or isinstance(error, GeneratorExit):
                raise
            self._report(error)
        finally:
            self._ended(task, scope)

    def _ended(self, task: OwnTask, scope: anyio.CancelScope) -> None:
        self._scopes.pop(scope, None)
        task.ended()


def _new_task(body: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is not None:  # which the program has reasons for
        return loop.create_task(body, name=name)
    return _WorkerTask(body, loop=loop, name=name)


class _AsyncioTasks(Tasks):
    """Tasks of asyncio. They are in no task group, which would take the end of one for its own."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self._tasks: set[asyncio.Task[None]] = set()
        self._starters: set[asyncio.Task[None]] = set()
        self._all_ended: Gate | None = None

    async def begin(self) -> None:
        """There is nothing to be done."""

    def start(
        self, name: str, body: Body, lost: Callable[[], object]
    ) -> tuple[OwnTask, anyio.CancelScope]:
        own, scope = self._own(name)
        task = _new_task(self._run(own, scope, body), name)
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if own.task is None:  # cancelled before its first step: nothing of it has run
                lost()
                self._ended(own, scope)
            if not self._tasks and self._all_ended is not None:
                self._all_ended.open()

        task.add_done_callback(done)
        return own, scope

    def from_outside(self, call: Callable[[], object]) -> None:
        async def start() -> None:
            call()

        def spawn() -> None:  # what is called back by the loop is no task, and scopes need one
            task = asyncio.get_running_loop().create_task(start())
            self._starters.add(task)
            task.add_done_callback(self._starters.discard)

        self._soon(spawn)

    async def end(self) -> BaseException | None:
        self.cancel()
        self._all_ended = Gate()
        if self._tasks:
            await outlast(self._all_ended)
        self._report = _nobody
        return None


class _TrioTasks(Tasks):
    """Tasks of trio, where no task can be cancelled but by a scope."""

    _group: Any
    _owner: object

    def check_leaving(self) -> None:
        super().check_leaving()
        if running_task() is not self._owner:
            raise RuntimeError(
                "leaving the block: this is not the task in which the coordinator's block was"
                " entered, and trio's tasks belong to the one that has opened their nursery."
                " Enter and leave it by one `async with`; in a test suite, within one fixture of"
                " pytest-trio (`@pytest.fixture` and `async def` with `yield`) or of anyio's"
                " plugin. Where that cannot be, as in several cells of a notebook, use"
                " `aioqueue.sync.Coordinator`, whose workers are threads"
            )

    @defers_ctrl_c
    async def begin(self) -> None:
        current_waker()
        self._owner = running_task()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()

    def start(
        self, name: str, body: Body, lost: Callable[[], object]
    ) -> tuple[OwnTask, anyio.CancelScope]:
        own, scope = self._own(name)
        self._group.start_soon(self._run, own, scope, body, name=name)
        return own, scope

    @defers_ctrl_c
    async def end(self) -> BaseException | None:
        self.cancel()
        try:
            await self._group.__aexit__(None, None, None)
        except BaseException as error:
            leaves = list(leaves_of(error))
            if all(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
                return leaves[0]  # as it is raised anywhere else
            return error
        finally:
            self._report = _nobody
        return None


def _nobody(error: BaseException) -> None:
    """All have ended: there is nothing to be reported any more, and nobody to be kept for it."""


def new_tasks(report: Report) -> Tasks:
    """Tasks of the event loop that is running.

    Args:
        report: told of what a body has raised that was no cancellation.
    """
    if running_loop() is not None:
        return _AsyncioTasks(report)
    return _TrioTasks(report)


_LONG: Final = 0.005
"""Seconds that a worker may keep its loop to itself: as long as a thread keeps the interpreter.
Whether it has waited is not known, so one that does gives up a turn in each of these as well."""

_MOST: Final = 64
"""Calls after which to look at the clock at the latest, since the next ones may take longer."""


class CooperativeYield:
    """For a task that awaits a function again and again, which may return without having waited.

    Such as one that enqueues by the blocking face, or into a queue with much room: nothing else of
    the loop would ever run, and no timeout or cancellation be felt.

    Attributes:
        calls: after how many of them to give others a turn, if one is due.
    """

    __slots__ = ("_began", "_looked", "calls")

    def __init__(self) -> None:
        self._began = self._looked = perf_counter()
        self.calls = 1

    async def give(self) -> None:
        """Let others run, if that is due."""
        now = perf_counter()
        is_quick = now - self._looked < _LONG / 4
        self.calls = min(2 * self.calls, _MOST) if is_quick else max(self.calls // 2, 1)
        if now - self._began >= _LONG:
            await anyio.lowlevel.checkpoint()
            now = self._began = perf_counter()
        self._looked = now
