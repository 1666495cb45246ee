"""Where rollouts are generated: tasks of one event loop of asyncio or trio, or threads beside it.

The tasks of rollouts are bare tasks: thousands may be in flight. A host is entered by a task of its
own, which waits for the ends of all calls, also if it is cancelled. User code runs in the context
that the host was entered in, so no rollout sees the context variables of another one.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Protocol, Self

import anyio

from aioqueue.base.arguments import function_name, refuse_awaitable
from aioqueue.coordination.cancellations import is_cancellation, running_task, shielded
from aioqueue.coordination.classify import as_failure, is_fatal
from aioqueue.coordination.tasks import threadsafe_caller, wait_shielded
from aioqueue.errors import ItemTimeoutError, add_note, describe_exception
from aioqueue.rl.core import Prompt, RolloutCore
from aioqueue.rl.machine import RolloutCall
from aioqueue.rl.prompts import NEEDS_TO_WAIT
from aioqueue.rl.rollout import Rollout, ThreadRollout
from aioqueue.telemetry.explain.stacks import Stack, place_of, stack_of, stack_of_traceback
from aioqueue.workers.retries import FailurePolicy
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from aioqueue.worlds.waker import running_loop


class Work:
    """The function that generates, and what happens to an attempt that fails or takes too long.

    Args:
        function: the user's function.
        is_async: whether it is a coroutine function.
        policy: when a rollout is tried again.
        timeout: seconds that an attempt may take.
        threads: how many threads call a plain function at most.
        payload: the function and its options, pickled, if it runs in a child process.
        new_child: makes what has the calls run there.
    """

    def __init__(
        self,
        function: Callable[[Any, Rollout[Any]], Any],
        *,
        is_async: bool,
        policy: FailurePolicy,
        timeout: float | None,
        threads: int,
        payload: bytes | None = None,
        new_child: Callable[[RolloutCore, LoopHost, Work], ChildCalls] | None = None,
    ) -> None:
        self.function: Final = function
        self.is_async: Final = is_async
        self.policy: Final = policy
        self.timeout: Final = timeout
        self.threads: Final = threads
        self.payload: Final = payload
        self.new_child: Final = new_child


class ChildCalls(Protocol):
    """Has calls run in a child process: `aioqueue.rl.processes`, which the child does without."""

    @property
    def ended(self) -> Gate:
        """Opens when the process has ended, after `close`."""

    @property
    def is_empty(self) -> bool:
        """Whether no call is left."""

    def start(self, call: RolloutCall) -> None: ...

    def cancel(self, call: RolloutCall) -> None: ...

    def cancel_again(self) -> None: ...

    def place_of(self, call: RolloutCall) -> str: ...

    def close(self) -> None:
        """End the process, which has no calls any more."""


class LoopHost(ABC):
    """Runs rollouts in the event loop that runs now, on threads, and has them run in a process.

    See `new_host`.
    """

    def __init__(
        self, core: RolloutCore, work: Work, register: Callable[[threading.Thread], object] | None
    ) -> None:
        self._core = core
        self._work = work
        self._call_soon = threadsafe_caller()
        self._thread = threading.get_ident()
        self._context = copy_context()
        self._idle = Gate()
        self._is_leaving = False
        self._timers: dict[object, Callable[[], object]] = {}
        self._threads = ThreadPool(core, self, register)
        self._child: ChildCalls | None = None
        if work.new_child is not None:
            self._child = work.new_child(core, self, work)
        self._next = core.first_ordinal
        self.closes_prompts: bool = False

    # Entered and left by one task.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Wait until all calls have ended, even if the task is cancelled meanwhile."""
        self._is_leaving = True
        if self._core.machine.is_stopped:
            self._cancel_ours()
        for cancel in self._timers.copy().values():
            cancel()
        self._timers.clear()
        self._check_idle()
        await wait_shielded(self._idle, cancelled=self._cancel_all_again)
        self._threads.close()
        if self._child is not None:
            self._child.close()
            await wait_shielded(self._child.ended, cancelled=self._child.cancel_again)
        if self.closes_prompts:
            with shielded():
                await self._core.prompts.close()

    @abstractmethod
    def _cancel_ours(self) -> None:
        """Cancel the tasks of no call: what they would report is not wanted any more."""

    @property
    @abstractmethod
    def _is_empty(self) -> bool:
        """Whether no task is left."""

    def _check_idle(self) -> None:
        if (
            self._is_leaving
            and self._is_empty
            and self._threads.may_be_left
            and (self._child is None or self._child.is_empty)
        ):
            self._idle.open()

    def threads_are_idle(self) -> None:
        """Report that no call runs on a thread, or in the child; from any thread."""
        if self._is_leaving:
            self._call_soon(self._check_idle)

    @abstractmethod
    def cancel_again(self) -> None:
        """Cancel all tasks once more, at the end of the coordinator's patience."""

    def _cancel_all_again(self) -> None:
        self.cancel_again()
        if self._child is not None:
            self._child.cancel_again()

    # From any thread.

    def start(self, call: RolloutCall) -> None:
        evaluation = call.group.payload.evaluation
        work = self._work if evaluation is None else evaluation.work or self._work
        if work is self._work and self._child is not None:
            self._child.start(call)
        elif not work.is_async:
            self._threads.add(call, work)
        elif threading.get_ident() == self._thread:
            self._start_call(call, work)
        else:
            self._call_soon(partial(self._start_call, call, work))

    def _work_of(self, call: RolloutCall) -> Work:
        evaluation = call.group.payload.evaluation
        if evaluation is not None and evaluation.work is not None:
            work: Work = evaluation.work
            return work
        return self._work

    def cancel(self, call: RolloutCall) -> None:
        if self._child is not None and self._work_of(call) is self._work:
            self._child.cancel(call)
        elif threading.get_ident() == self._thread:
            self._cancel(call)
        else:
            self._call_soon(partial(self._cancel, call))

    def spawn(self, body: Callable[[], Awaitable[object]]) -> None:
        if threading.get_ident() == self._thread:
            self._start(body)
        else:
            self._call_soon(partial(self._start, body))

    def pull(self, ordinal: int) -> None:
        if threading.get_ident() == self._thread:
            self._pull(ordinal)
        else:
            self._call_soon(partial(self._pull, ordinal))

    def running_thing(self, call: RolloutCall) -> object:
        return self._threads.runs.get(call) or self._task_of(call)

    def remote_place_of(self, call: RolloutCall) -> str:
        return "" if self._child is None else self._child.place_of(call)

    @abstractmethod
    def _task_of(self, call: RolloutCall) -> object:
        """Return the task of a call; ``None`` if it has none."""

    # In the thread of the loop.

    @abstractmethod
    def _start(self, body: Callable[[], Awaitable[object]]) -> None:
        """Start a task for something of ours."""

    @abstractmethod
    def _start_call(self, call: RolloutCall, work: Work) -> None:
        """Start a task for a call, whose body is `_run`."""

    @abstractmethod
    def _call_begins(self, call: RolloutCall) -> None:
        """Note that the task of a call has begun."""

    @abstractmethod
    def _call_ends(self, call: RolloutCall) -> None:
        """Note that the task of a call ends in this very step."""

    @abstractmethod
    def _cancel(self, call: RolloutCall) -> None:
        """Cancel the task of a call, if it has one that has begun."""

    def _pull(self, ordinal: int) -> None:
        """Read the prompts up to one, and report it."""
        reader = self._core.prompts
        try:
            while True:
                mark = reader.mark()
                value = reader.take_nowait()
                if value is NEEDS_TO_WAIT:
                    self._start(partial(self._pull_waiting, ordinal))
                    return
                self._next += 1
                if self._next > ordinal:
                    break
        except StopIteration:
            self._core.apply(self._core.machine.source_end)
        except Exception as error:
            self._source_failed(error)
        else:
            self._core.admit(Prompt(value, mark))

    async def _pull_waiting(self, ordinal: int) -> None:
        reader = self._core.prompts
        try:
            while True:
                mark = reader.mark()
                value = await reader.take()
                self._next += 1
                if self._next > ordinal:
                    break
        except StopAsyncIteration:
            self._core.apply(self._core.machine.source_end)
        except Exception as error:
            self._source_failed(error)
        else:
            self._core.admit(Prompt(value, mark))

    def _source_failed(self, error: Exception) -> None:
        add_note(error, f"in the prompts of {self._core}")
        self._core.apply(self._core.machine.source_end, error)

    async def _run(self, call: RolloutCall, work: Work) -> None:
        """Run one attempt at a rollout: the body of its task."""
        core = self._core
        self._call_begins(call)
        try:
            rollout: Rollout[Any] | None = core.enter(call, Rollout)
            if rollout is None:
                return
            try:
                if work.timeout is None:
                    result = await work.function(call.group.prompt.value, rollout)
                else:
                    result = await self._run_in_time(call, work, rollout)
            except BaseException as error:
                rollout._end()  # a reference to it must not keep the queue alive
                self._raised(call, work, error)
                if is_fatal(error):
                    raise
            else:
                core.finished(call, rollout, result)
        finally:
            self._call_ends(call)

    async def _run_in_time(self, call: RolloutCall, work: Work, rollout: Rollout[Any]) -> Any:
        # The stack must be read inside the scope, which takes the cancellation with its traceback.
        stack: Stack = ()
        with anyio.move_on_after(work.timeout) as scope:
            try:
                return await work.function(call.group.prompt.value, rollout)
            except BaseException as error:
                if scope.cancel_called:
                    stack = stack_of_traceback(error.__traceback__)
                raise
        raise self.timeout_error(call, work, stack)

    def timeout_error(self, call: RolloutCall, work: Work, stack: Stack) -> ItemTimeoutError:
        """Return the failure of an attempt that has taken too long."""
        place = place_of(stack)
        where = "" if place is None else str(place)
        assert work.timeout is not None
        return ItemTimeoutError(
            f"{self._core.describe_call(call)} was not generated within timeout={work.timeout:g} s"
            + (f"; it was at {where}" if where else ""),
            seconds=work.timeout,
            where=where,
        )

    def _raised(self, call: RolloutCall, work: Work, error: BaseException) -> None:
        """Report what the user's function has raised."""
        core = self._core
        if not call.is_current:
            core.call_ended(call)  # we have cancelled it, or nobody wants it any more
            return
        delay = None
        if is_cancellation(error) or isinstance(error, GeneratorExit):
            what = f"{core.describe_call(call)} raised {type(error).__name__}"
            error = as_failure(error, f"{what}, but was not cancelled by the queue")
        error, delay = self.failure(call, work, error)
        if core.failed(call, error, delay):
            assert delay is not None
            self._wait_for_retry(call, delay)

    def failure(
        self, call: RolloutCall, work: Work, error: BaseException
    ) -> tuple[BaseException, float | None]:
        """Return a failure, and the seconds after which to try again; ``None`` for never."""
        try:
            return error, work.policy.delay(error, call.attempt)
        except Exception as raised:  # the user's ``backoff``
            return raised, None

    def retry_later(self, call: RolloutCall, delay: float) -> None:
        """Report that a rollout is due after some seconds; from any thread."""
        if threading.get_ident() == self._thread:
            self._wait_for_retry(call, delay)
        else:
            self._call_soon(partial(self._wait_for_retry, call, delay))

    def _wait_for_retry(self, call: RolloutCall, delay: float) -> None:
        self._call_later(delay, partial(self._retry, call))

    def _retry(self, call: RolloutCall) -> None:
        self._core.due(call)

    def _call_later(self, seconds: float, callback: Callable[[], object]) -> object:
        """Call back after some seconds, unless the host is left; return a key to cancel it."""
        key = object()
        if self._is_leaving:
            return key

        def fire() -> None:
            if self._timers.pop(key, None) is not None:
                callback()

        self._timers[key] = current_waker().call_later(seconds, fire)
        return key


class _AsyncioHost(LoopHost):
    def __init__(
        self, core: RolloutCore, work: Work, register: Callable[[threading.Thread], object] | None
    ) -> None:
        super().__init__(core, work, register)
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[RolloutCall, asyncio.Task[Any]] = {}
        self._not_begun: dict[asyncio.Task[Any], RolloutCall] = {}
        """Tasks of calls before their first step. Other code may cancel them: they never begin."""
        self._ours: set[asyncio.Task[Any]] = set()
        self._on_end_before_begin = self._never_began

    @property
    def _is_empty(self) -> bool:
        return not (self._tasks or self._ours)

    def _start(self, body: Callable[[], Awaitable[object]]) -> None:
        coroutine: Any = body()
        task = self._loop.create_task(coroutine, context=self._context.copy())
        self._ours.add(task)
        task.add_done_callback(self._one_of_ours_ended)

    def _one_of_ours_ended(self, task: asyncio.Task[Any]) -> None:
        self._ours.discard(task)
        if self._is_leaving:
            self._check_idle()

    def _start_call(self, call: RolloutCall, work: Work) -> None:
        task = self._loop.create_task(self._run(call, work), context=self._context.copy())
        if call in self._tasks or task.done():
            return  # with an eager task factory it has begun, and perhaps ended, by now
        self._tasks[call] = task
        self._not_begun[task] = call
        task.add_done_callback(self._on_end_before_begin, context=self._context)

    def _call_begins(self, call: RolloutCall) -> None:
        task = self._tasks.get(call)
        if task is None:
            current = asyncio.current_task()
            assert current is not None
            self._tasks[call] = current
        else:
            # From here on the body reports its end: that saves a callback for each call.
            del self._not_begun[task]
            task.remove_done_callback(self._on_end_before_begin)

    def _call_ends(self, call: RolloutCall) -> None:
        del self._tasks[call]
        if self._is_leaving:
            self._check_idle()

    def _never_began(self, task: asyncio.Task[Any]) -> None:
        call = self._not_begun.pop(task)
        del self._tasks[call]
        self._core.apply(self._core.machine.turned_away, call)
        if self._is_leaving:
            self._check_idle()

    def _cancel(self, call: RolloutCall) -> None:
        # A call that has not begun finds that it may not enter. Cancelled before its first step, it
        # would never report its end.
        task = self._tasks.get(call)
        if task is not None and call in self._core.calls:
            task.cancel()

    def _task_of(self, call: RolloutCall) -> object:
        return self._tasks.get(call)

    def _cancel_ours(self) -> None:
        for task in self._ours:
            task.cancel()

    def cancel_again(self) -> None:
        for task in (*self._ours, *self._tasks.values()):
            task.cancel()


class _TrioHost(LoopHost):
    def __init__(
        self, core: RolloutCore, work: Work, register: Callable[[threading.Thread], object] | None
    ) -> None:
        super().__init__(core, work, register)
        self._scopes: dict[Any, anyio.CancelScope] = {}
        self._tasks: dict[RolloutCall, object] = {}
        self._group = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await super().__aexit__()
        finally:
            await self._group.__aexit__(None, None, None)

    @property
    def _is_empty(self) -> bool:
        return not self._scopes

    def _start(self, body: Callable[[], Awaitable[object]]) -> None:
        self._start_in_scope(body, body)

    def _start_call(self, call: RolloutCall, work: Work) -> None:
        self._start_in_scope(call, partial(self._run, call, work))

    def _start_in_scope(self, key: Any, body: Callable[[], Awaitable[object]]) -> None:
        scope = self._scopes[key] = anyio.CancelScope(shield=True)
        self._context.copy().run(self._group.start_soon, self._run_in_scope, key, scope, body)

    async def _run_in_scope(
        self, key: Any, scope: anyio.CancelScope, body: Callable[[], Awaitable[object]]
    ) -> None:
        try:
            with scope:
                await body()
        finally:
            del self._scopes[key]
            self._check_idle()

    def _call_begins(self, call: RolloutCall) -> None:
        self._tasks[call] = running_task()

    def _call_ends(self, call: RolloutCall) -> None:
        del self._tasks[call]

    def _task_of(self, call: RolloutCall) -> object:
        return self._tasks.get(call)

    def _cancel(self, call: RolloutCall) -> None:
        scope = self._scopes.get(call)
        if scope is not None and call in self._core.calls:
            scope.cancel()

    def _cancel_ours(self) -> None:
        for key, scope in list(self._scopes.items()):
            if not isinstance(key, RolloutCall):
                scope.cancel()

    def cancel_again(self) -> None:
        for scope in list(self._scopes.values()):
            scope.cancel()


def new_host(
    core: RolloutCore,
    work: Work,
    register: Callable[[threading.Thread], object] | None = None,
) -> LoopHost:
    """Make a host in the running event loop.

    Args:
        core: the queue.
        work: the function of the calls that do not bring one.
        register: is called with each thread before it starts, and waits for it. Without it, the
            host waits for its threads itself.
    """
    kind = _AsyncioHost if running_loop() is not None else _TrioHost
    return kind(core, work, register)


class ThreadPool:
    """Threads that call a plain function. They start when needed, and end with the host."""

    def __init__(
        self,
        core: RolloutCore,
        host: LoopHost,
        register: Callable[[threading.Thread], object] | None,
    ) -> None:
        self._core = core
        self._host = host
        self._register = register
        self._queue: SimpleQueue[tuple[RolloutCall, Work] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._waiting = 0
        self._queued = 0
        self._left = 0
        """Calls that were added and have not ended."""
        self.runs: dict[RolloutCall, threading.Thread] = {}

    @property
    def may_be_left(self) -> bool:
        """Whether nobody has to wait for calls here."""
        return not self._left or self._register is not None

    def add(self, call: RolloutCall, work: Work) -> None:
        """Call a function on a thread as soon as one is free."""
        with self._lock:
            self._left += 1
            self._queued += 1
            is_needed = self._queued > self._waiting and len(self._threads) < work.threads
            if is_needed:
                number = len(self._threads)
                thread = threading.Thread(
                    target=copy_context().run,
                    args=(self._loop,),
                    name=f"aioqueue-{self._core.name}-{number}",
                    daemon=True,
                )
                self._threads.append(thread)
        self._queue.put((call, work))
        if is_needed:
            try:
                if self._register is not None:
                    self._register(thread)  # before it starts: a stop must find it
                thread.start()
            except RuntimeError:
                with self._lock:
                    self._threads.remove(thread)
                    if self._threads:
                        return  # the others take it
                raise

    def close(self) -> None:
        """End the threads, which have nothing to do any more."""
        for _ in self._threads:
            self._queue.put(None)
        self._threads = []

    def _loop(self) -> None:
        while True:
            with self._lock:
                self._waiting += 1
            taken = self._queue.get()
            with self._lock:
                self._waiting -= 1
                self._queued -= taken is not None
            if taken is None:
                return
            call, work = taken
            del taken
            try:
                self._run(call, work)
            finally:
                with self._lock:
                    self._left -= 1
                    is_idle = not self._left
                del call, work
                if is_idle:
                    self._host.threads_are_idle()

    def _run(self, call: RolloutCall, work: Work) -> None:
        core, host = self._core, self._host
        timer = None
        self.runs[call] = threading.current_thread()
        if work.timeout is not None:
            timer = Timer(host, call, work, threading.current_thread())
        try:
            entered = host._context.copy().run(_entered, core, call, work)
            if entered is None:
                return
            rollout, result = entered
            refuse_awaitable(function_name(work.function), result)
        except BaseException as error:
            if not isinstance(error, Exception):
                error = as_failure(
                    error, f"{core.describe_call(call)} raised {describe_exception(error)}"
                )
            error, delay = host.failure(call, work, error)
            if core.failed(call, error, delay):
                assert delay is not None
                host.retry_later(call, delay)
            del error
        else:
            core.finished(call, rollout, result)
        finally:
            del self.runs[call]
            if timer is not None:
                timer.cancel()


def _entered(core: RolloutCore, call: RolloutCall, work: Work) -> tuple[Rollout[Any], Any] | None:
    """Call a plain function; return its rollout and what it returns, or ``None`` at a closed gate.

    To ask the gate is the last thing that happens before the call. No code of ours can come closer:
    the interpreter may give another thread its turn at the first instruction of a function, and
    then the block of a publication may begin before the function's first line. So a plain function
    has begun when its thread has passed the gate. To wait for the first line would need a sign from
    it, which only the function itself could give.
    """
    prompt, function = call.group.prompt.value, work.function
    rollout: Rollout[Any] | None = core.enter(call, ThreadRollout)
    if rollout is None:
        return None
    try:
        return rollout, function(prompt, rollout)
    except BaseException:
        rollout._end()
        raise


class Timer:
    """The time limit of a call on a thread: it cannot be cut short, but its rollout can fail."""

    def __init__(
        self, host: LoopHost, call: RolloutCall, work: Work, thread: threading.Thread
    ) -> None:
        self._host, self._call, self._work, self._thread = host, call, work, thread
        self._key: object | None = None
        self._is_over = False
        host._call_soon(self._begin)

    def _begin(self) -> None:
        if not self._is_over:
            assert self._work.timeout is not None
            self._key = self._host._call_later(self._work.timeout, self._fire)

    def _fire(self) -> None:
        host, call = self._host, self._call
        error: BaseException = host.timeout_error(call, self._work, stack_of(self._thread))
        error, delay = host.failure(call, self._work, error)
        if host._core.expired(call, error, delay):
            assert delay is not None
            host._wait_for_retry(call, delay)

    def cancel(self) -> None:
        """End it: the call has ended. From its thread."""
        self._is_over = True
        self._host._call_soon(self._forget)

    def _forget(self) -> None:
        cancel = self._host._timers.pop(self._key, None)
        if cancel is not None:
            with suppress(Exception):
                cancel()
