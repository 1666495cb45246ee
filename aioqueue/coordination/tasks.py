"""Tasks and event loops, in asyncio and trio.

It has four parts: calling into a loop from any thread, and running one in a thread of its own
(`threadsafe_caller`, `new_loop_runner`); waiting in spite of cancellation (`wait_shielded`); the
tasks that a block runs beside its body (`Tasks`); and yielding to other tasks
(`CooperativeYield`).

A cancelled task of a block ends alone: neither the other tasks nor the block are cancelled with it.
The block has no supervisor task of its own that other code could cancel.
"""

from __future__ import annotations

import asyncio
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Final

import anyio
import anyio.lowlevel

from aioqueue.coordination.cancellations import (
    WorkerScope,
    WorkerTask,
    is_cancellation,
    is_scope_cancelled,
    running_task,
    stop_workers,
)
from aioqueue.coordination.classify import leaves_of
from aioqueue.coordination.workers import StartedTask
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from aioqueue.worlds.waker import current_worker, defers_ctrl_c, in_trio, loaded_trio, running_loop

_BACKEND: Final = "anyio._backends._asyncio"  # imported by `anyio.run`


def threadsafe_caller() -> Callable[[Callable[[], object]], None]:
    """Return a function that makes a call in the event loop that runs now, from any thread.

    If the loop has ended by then, the call is not made.
    """
    if running_loop() is not None:
        ask: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
    else:
        ask = loaded_trio().lowlevel.current_trio_token().run_sync_soon

    def make(call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed, or trio's run has ended
            ask(call)

    return make


def new_loop_runner(body: Callable[..., Awaitable[object]], *args: object) -> Callable[..., Any]:
    """Return a function for a new thread that runs a coroutine in an event loop of its own.

    The loop is uvloop's if it is installed.

    The thread that calls this imports what the loop needs. Otherwise the new thread would, and a
    Ctrl-C that ends the program meanwhile would be lost: CPython forgets it if another thread runs
    the code of a module just then. The exit status would be 1, not that of a signal.

    Args:
        body: the coroutine function that the loop runs.
        args: its first arguments. The function that is returned takes the others.
    """
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    for needed in (_BACKEND, *(["uvloop"] if has_uvloop else [])):
        with suppress(ImportError):  # then the loop imports it, or fails, when it begins
            importlib.import_module(needed)
    return partial(anyio.run, body, *args, backend_options={"use_uvloop": has_uvloop})


_ONE_LOOP: Final = (
    "Do it there. In a test suite, run the fixture and the test in one loop, for example with"
    ' `@pytest_asyncio.fixture(scope="module", loop_scope="module")` and'
    ' `@pytest.mark.asyncio(loop_scope="module")`'
)

Body = Callable[[], Awaitable[object]]
Report = Callable[[BaseException], object]


def _running_world() -> object:
    """Return the asyncio loop or the trio run of this thread; ``None`` if neither runs here.

    A trio run is identified by its token, which is the same for all its tasks.
    """
    if (loop := running_loop()) is not None:
        return loop
    token: object = loaded_trio().lowlevel.current_trio_token() if in_trio() else None
    return token


def mark_ending(task: object) -> None:
    """Note that one of our tasks ends: the exit of the program must not interrupt its clean-up.

    Args:
        task: any task.
    """
    if isinstance(task, WorkerTask):
        task.is_ending = True


async def wait_shielded(
    gate: Gate, seconds: float | None = None, cancelled: Callable[[], object] = lambda: None
) -> None:
    """Wait until a gate is open, even if the caller is cancelled meanwhile.

    `asyncio.Task.cancel` interrupts one wait, which then starts again. An anyio scope would
    interrupt every wait as long as it lasts, so a shield keeps it out once it has been noticed. In
    trio the shield is there from the beginning, because a scope reaches the block's tasks by
    itself. To learn whether there was a cancellation, ask a `Call` that began before. The caller
    raises it again, if it wants to, with `cancellation`.

    Args:
        gate: the gate to wait for.
        seconds: how long to wait at most; ``None`` for no limit.
        cancelled: called back after each interruption.

    Raises:
        KeyboardInterrupt: Ctrl-C struck during the wait, in trio; raised when the wait has ended.
    """
    interrupt: KeyboardInterrupt | None = None
    deadline = None if seconds is None else monotonic() + seconds
    # asyncio begins without a shield: with one, the cancellation of a scope around the block
    # would be noticed only at the end, and the block's tasks could not be cancelled with it.
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
            # `Task.cancel` interrupts once: the next wait lasts. A scope interrupts each wait, and
            # the loop would spin until its end.
            shield = is_scope_cancelled()
        except KeyboardInterrupt as error:
            if running_loop() is not None:
                raise  # in asyncio, Ctrl-C ends the loop
            interrupt = interrupt or error
            cancelled()
    if interrupt is not None:
        raise interrupt


class Tasks(ABC):
    """Tasks of one event loop, beside the task that makes this object. See `new_tasks`."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._home = _running_world()
        self._call_soon = threadsafe_caller()
        self._scopes: dict[WorkerScope, StartedTask] = {}

    @abstractmethod
    async def begin(self) -> None:
        """Prepare to start tasks. It does not wait."""

    @abstractmethod
    def start(
        self, name: str, body: Body, never_ran: Callable[[], object]
    ) -> tuple[StartedTask, WorkerScope]:
        """Start a task.

        Args:
            name: the name of the task.
            body: the coroutine function that it runs, which reports its own failures.
            never_ran: called instead of the body if the task is cancelled before its first step.

        Returns:
            The task, and the scope around it.
        """

    def check_loop(self, doing: str) -> None:
        """Check that the running event loop is that of these tasks.

        Raises:
            RuntimeError: another event loop is running, or none.
        """
        if _running_world() is not self._home:
            raise RuntimeError(
                f"{doing}: this is not the event loop in which the coordinator's block was entered."
                f" {_ONE_LOOP}"
            )

    def check_running(self, called: object) -> None:
        """Check that these tasks can run while the caller waits for them.

        Args:
            called: what the caller has called; its text is for the message.

        Raises:
            RuntimeError: their event loop is closed, or does not run while another one does.
        """
        home = self._home
        if home is running_loop() or not isinstance(home, asyncio.AbstractEventLoop):
            return
        if not home.is_running():
            state = "has been closed" if home.is_closed() else "does not run while this one does"
            raise RuntimeError(
                f"a call of {called}: the event loop in which its block was entered {state}, so the"
                f" call would wait for ever. {_ONE_LOOP}"
            )

    def check_leaving(self) -> None:
        """Check that the block can be left here.

        Raises:
            RuntimeError: the running event loop is not that of these tasks.
        """
        self.check_loop("leaving the block")

    def cancel(self) -> None:
        """Cancel all tasks that were not cancelled yet. Call it in their own thread."""
        self.stop(list(self._scopes))

    def scopes(self) -> list[WorkerScope]:
        return list(self._scopes)

    def running(self) -> list[StartedTask]:
        return list(self._scopes.values())

    def cancel_again(self) -> None:
        self.stop(list(self._scopes), WorkerScope.cancel_again)

    def stop(
        self,
        scopes: Collection[WorkerScope],
        how: Callable[[WorkerScope], object] = WorkerScope.cancel,
    ) -> None:
        """Stop some of the tasks. Call it in their own thread.

        Args:
            scopes: the scopes around them.
            how: the method that stops one.
        """
        stop_workers(scopes, self._call_soon, how)

    def call_soon(self, call: Callable[[], object]) -> None:
        """Make a call in the tasks' thread; callable from any thread."""
        self._call_soon(call)

    def start_from_any_thread(self, call: Callable[[], object]) -> None:
        """Make a call that starts a task, in the tasks' thread; callable from any thread."""
        self._call_soon(call)

    @abstractmethod
    async def end(self) -> BaseException | None:
        """Cancel the remaining tasks and wait for all of them, even if the caller is cancelled.

        Returns:
            The cancellation to raise, if a scope around the caller was cancelled.
        """

    def _new_entry(self, name: str) -> tuple[StartedTask, WorkerScope]:
        scope = WorkerScope()
        # A scope may only be cancelled in its own thread, and a stop comes from any.
        again = partial(self.stop, (scope,), WorkerScope.cancel_again)
        self._scopes[scope] = task = StartedTask(name, partial(self._call_soon, again))
        return task, scope

    @defers_ctrl_c
    async def _run(self, task: StartedTask, scope: WorkerScope, body: Body) -> None:
        # Also tells `done` that the body has begun, so that it will report its end itself.
        task.task = running_task()
        work = body()
        del body  # breaks a cycle: coordinator -> failure -> this frame -> body -> coordinator
        try:
            with scope:
                await scope.observed(work)
        except BaseException as error:
            if in_trio() and isinstance(error, asyncio.CancelledError):
                return  # what a stopped worker has made of trio's: no scope of trio would catch it
            if is_cancellation(error) or isinstance(error, GeneratorExit):
                raise
            # Not raised: it would cancel the other tasks in trio, and be logged by asyncio as
            # never retrieved.
            self._report(error)
        finally:
            self._ended(task, scope)

    def _ended(self, task: StartedTask, scope: WorkerScope) -> None:
        self._scopes.pop(scope, None)
        scope.end()
        task.ended()


def _new_task(body: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is not None:  # respect the program's own factory
        return loop.create_task(body, name=name)
    return WorkerTask(body, loop=loop, name=name)


class _AsyncioTasks(Tasks):
    """Tasks in asyncio, without a task group: a group would be cancelled along with one of them."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self._tasks: set[asyncio.Task[None]] = set()
        self._starters: set[asyncio.Task[None]] = set()
        self._all_ended: Gate | None = None

    async def begin(self) -> None:
        pass  # asyncio needs no preparation

    def start(
        self, name: str, body: Body, never_ran: Callable[[], object]
    ) -> tuple[StartedTask, WorkerScope]:
        task_entry, scope = self._new_entry(name)
        task = _new_task(self._run(task_entry, scope, body), name)
        self._tasks.add(task)

        # Called by the loop in a later round than the end, so after `_run` has reported.
        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task_entry.task is None:  # cancelled before its first step, so `_run` has not run
                never_ran()
                self._ended(task_entry, scope)
            if not self._tasks and self._all_ended is not None:
                self._all_ended.open()

        task.add_done_callback(done)
        return task_entry, scope

    def start_from_any_thread(self, call: Callable[[], object]) -> None:
        async def start() -> None:
            call()

        def spawn() -> None:  # a callback of the loop is not in a task, and scopes need one
            task = asyncio.get_running_loop().create_task(start())
            self._starters.add(task)
            task.add_done_callback(self._starters.discard)

        self._call_soon(spawn)

    async def end(self) -> BaseException | None:
        self.cancel()
        # No task can end between the check and the wait: callbacks run only while this one waits.
        self._all_ended = Gate()
        if self._tasks:
            await wait_shielded(self._all_ended)
        self._report = _ignore_report  # it refers to the coordinator, which would be a cycle
        return None


class _TrioTasks(Tasks):
    """Tasks in trio, where only a scope can cancel a task."""

    _group: Any
    _owner: object

    def check_leaving(self) -> None:
        super().check_leaving()
        if running_task() is not self._owner:
            raise RuntimeError(
                "leaving the block: this is not the task in which the coordinator's block was"
                " entered, and trio binds a block to its task. Enter and leave it by one `async"
                " with`; in a test suite, in one fixture of pytest-trio (`@pytest.fixture` and"
                " `async def` with `yield`) or of anyio's plugin. Across several cells of a"
                " notebook, use `aioqueue.sync.Coordinator`, whose workers are threads"
            )

    @defers_ctrl_c
    async def begin(self) -> None:
        current_waker()  # defers Ctrl-C from here on, so that it cannot strike in `__aenter__`
        self._owner = running_task()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()

    def start(
        self, name: str, body: Body, never_ran: Callable[[], object]
    ) -> tuple[StartedTask, WorkerScope]:
        task_entry, scope = self._new_entry(name)
        self._group.start_soon(self._run, task_entry, scope, body, name=name)
        return task_entry, scope

    @defers_ctrl_c
    async def end(self) -> BaseException | None:
        self.cancel()
        try:
            # This waits for all tasks. They report their failures and raise only cancellations,
            # so what is raised here belongs to the caller.
            await self._group.__aexit__(None, None, None)
        except BaseException as error:
            leaves = list(leaves_of(error))
            if all(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
                return leaves[0]  # not in a group, as in asyncio
            return error
        finally:
            self._report = _ignore_report
        return None


def _ignore_report(error: BaseException) -> None:
    """Ignore a report after the end, so that these tasks do not keep the coordinator alive."""


def new_tasks(report: Report) -> Tasks:
    """Make the tasks of the running event loop.

    Args:
        report: called with each exception of a body that is not a cancellation.
    """
    if running_loop() is not None:
        return _AsyncioTasks(report)
    return _TrioTasks(report)


_MAX_BURST: Final = 0.005
"""How many seconds a worker may keep its loop: as long as a thread keeps the interpreter.
It is not known whether the worker has waited meanwhile, so a worker that does yields, too."""

_MAX_CALLS: Final = 64
"""The most calls between two looks at the clock: later calls may take longer than earlier ones."""


class CooperativeYield:
    """Lets other tasks run while one task awaits a function in a loop that may never suspend.

    An op may enqueue through the blocking face, or into a queue with much room. It returns without
    a suspension, so no other task of the loop would run, and no timeout or cancellation would be
    delivered.

    Attributes:
        calls: how many calls to make before the next `yield_if_due`.
    """

    __slots__ = ("_began", "_checked", "calls")

    def __init__(self) -> None:
        self._began = self._checked = perf_counter()
        self.calls: int = 1

    async def yield_if_due(self) -> None:
        # Doubled while calls are quick, so that the clock is read for few of them; halved as soon
        # as they take long.
        now = perf_counter()
        is_quick = now - self._checked < _MAX_BURST / 4
        self.calls = min(2 * self.calls, _MAX_CALLS) if is_quick else max(self.calls // 2, 1)
        if now - self._began >= _MAX_BURST:
            await anyio.lowlevel.checkpoint()
            now = self._began = perf_counter()
        self._checked = now


_spawned: Final[set[asyncio.Task[None]]] = set()
"""Event loops keep weak references to tasks only."""


def spawn(host: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in its own task, until it ends or its event loop does."""
    # What is said of the program around the loop holds for its workers too, in trio as in asyncio.
    # But the stop of a worker that reads a pipeline does not end the waits of that pipeline's own.
    context = copy_context()
    context.run(current_worker.set, None)
    if in_trio():

        async def run() -> None:
            await host

        loaded_trio().lowlevel.spawn_system_task(run, context=context)
        return
    task = context.run(asyncio.get_running_loop().create_task, host)
    _spawned.add(task)
    task.add_done_callback(_spawned_has_ended)


def _spawned_has_ended(task: asyncio.Task[None]) -> None:
    _spawned.discard(task)
    # A `SystemExit`, or Ctrl-C, that struck in there has ended the event loop, which raises it: so
    # nobody else has to ask the task for it.
    if not task.cancelled():
        task.exception()
