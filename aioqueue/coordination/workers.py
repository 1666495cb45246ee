"""Workers: threads and tasks behind one interface, and the plans from which a run starts them.

`Worker` is what a coordinator joins. `WorkerPlan` is a worker of a run before it begins: its op,
its name, and how reports describe its end. `AddedWorkers` are workers that are added during a run.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from aioqueue.base.arguments import EnqueueOp, function_name
from aioqueue.base.display_text import LogLines, on_one_line
from aioqueue.base.folded_lines import folded
from aioqueue.coordination.cancellations import Call, is_cancellation, running_task
from aioqueue.coordination.classify import as_failure, without_stops
from aioqueue.coordination.misuse import describe_argument
from aioqueue.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    describe_exception,
    exception_text,
)
from aioqueue.system.locks import call_with_lock, synchronized
from aioqueue.telemetry.explain import stacks
from aioqueue.telemetry.explain.frames import current_frames
from aioqueue.telemetry.explain.stacks import stack_of
from aioqueue.worlds.waker import Owner, in_event_loop, loaded_trio, running_loop

if TYPE_CHECKING:
    from aioqueue.telemetry.explain.explanation import ExplainedWorker, WorkerState


class Worker(Protocol):
    """A task or thread that a coordinator waits for."""

    keeps_error: bool
    """Whether it keeps its exception until `take_error` is called."""

    @property
    def name(self) -> str: ...

    def is_alive(self) -> bool: ...

    def is_current(self) -> bool:
        """Return whether it is the caller, which cannot wait for itself."""

    def is_blocked_by_caller(self) -> bool:
        """Return whether it cannot run while the calling thread waits: the thread runs its loop."""

    def cancel(self) -> bool:
        """Cancel it if possible; return whether it was."""

    def take_error(self) -> BaseException | None:
        """Return the exception of an ended worker that keeps it; only the first call gets it."""

    def when_ended(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Call back when it has ended; now, if it has. Return a function that cancels this."""

    def where(self, frames: Mapping[int, FrameType]) -> str:
        """Return where in its code it is now; empty if that is not known.

        Args:
            frames: those of all threads at one moment.
        """

    @property
    def key(self) -> int:
        """An identifier of its thread or task; 0 if that is not known."""

    def explained(self, frames: Mapping[int, FrameType]) -> ExplainedWorker:
        """Describe it; the frames are those of all threads at one moment."""


class LoopThread(threading.Thread):
    """A thread with an event loop, whose workers are tasks: those can be cancelled.

    Attributes:
        tasks: the tasks.
        cancel_tasks_again: cancels them once more, from any thread; ``None`` while no loop runs.
    """

    def __init__(self, target: Callable[..., object], name: str, *, daemon: bool) -> None:
        super().__init__(target=target, name=name, daemon=daemon)
        self.tasks: list[StartedTask] = []
        self.cancel_tasks_again: Callable[[], object] | None = None

    def cancel_again(self) -> bool:
        """Cancel the tasks again after their grace period; return whether there are any."""
        # Read once: the loop's thread sets it to None when its tasks have ended.
        again = self.cancel_tasks_again
        if again is not None:
            again()
        return again is not None

    def task_places(self, frames: Mapping[int, FrameType]) -> str:
        running = [task for task in list(self.tasks) if task.is_alive()]
        return ", ".join(f"{task.name} at {task.where(frames)}" for task in running)


class _ThreadWorker:
    """A thread. It cannot be cancelled, and it does not report how it ended."""

    keeps_error = False

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = thread

    @property
    def name(self) -> str:
        return self.thread.name

    def is_alive(self) -> bool:
        return self.thread.is_alive()

    def is_current(self) -> bool:
        return self.thread is threading.current_thread()

    def is_blocked_by_caller(self) -> bool:
        return False

    def cancel(self) -> bool:
        thread = self.thread
        return isinstance(thread, LoopThread) and thread.cancel_again()

    def take_error(self) -> BaseException | None:
        return None

    def when_ended(self, callback: Callable[[], object]) -> Callable[[], object]:
        return when_all_ended([self], callback)

    def where(self, frames: Mapping[int, FrameType]) -> str:
        thread = self.thread
        found = thread.task_places(frames) if isinstance(thread, LoopThread) else ""
        return found or stacks.of_thread(thread, frames)

    @property
    def key(self) -> int:
        return id(self.thread)

    def explained(self, frames: Mapping[int, FrameType]) -> ExplainedWorker:
        return _running(self.name, self.thread, frames)


class _FutureWorker:
    """An asyncio task, or another object with the methods of a future."""

    keeps_error = True

    def __init__(self, future: Any) -> None:
        self._future = future
        get_loop = getattr(future, "get_loop", None)
        self._loop: asyncio.AbstractEventLoop | None = None if get_loop is None else get_loop()
        self._error_was_taken = False

    @property
    def name(self) -> str:
        get_name = getattr(self._future, "get_name", None)
        return str(get_name()) if get_name is not None else repr(self._future)

    def is_alive(self) -> bool:
        # A task of a closed loop never ends. To wait for it would be to wait for ever.
        return not self._future.done() and (self._loop is None or not self._loop.is_closed())

    def is_current(self) -> bool:
        return running_loop() is not None and asyncio.current_task() is self._future

    def is_blocked_by_caller(self) -> bool:
        return _is_running_here(self._loop)

    def cancel(self) -> bool:
        if self._loop is None:
            return bool(self._future.cancel())
        return self._in_loop(self._future.cancel)

    def take_error(self) -> BaseException | None:
        # Called under the coordinator's lock: a join and the done callback both ask.
        if self._error_was_taken or not self._future.done():
            return None
        self._error_was_taken = True
        if self._future.cancelled():
            return None
        error = self._future.exception()
        return error if isinstance(error, BaseException) else None

    def when_ended(self, callback: Callable[[], object]) -> Callable[[], object]:
        # `forget` may run in another thread than the loop's. `list.pop` and `clear` are atomic, so
        # either the call is made or it is cancelled.
        kept = [callback]  # emptied by the first of `ended` and `forget`: at most one call

        def ended(_: object) -> None:
            while kept:
                kept.pop()()

        def forget() -> None:
            kept.clear()  # also for futures that cannot remove a callback
            remove = getattr(self._future, "remove_done_callback", None)
            if remove is not None and (self._loop is None or running_loop() is self._loop):
                remove(ended)
            elif remove is not None:
                self._in_loop(remove, ended)

        if self._loop is None or running_loop() is self._loop:
            self._future.add_done_callback(ended)
        elif not self._in_loop(self._future.add_done_callback, ended):
            callback()  # the loop is closed, so the future will never end
        return forget

    def where(self, frames: Mapping[int, FrameType]) -> str:
        return stacks.of_task(self._future)

    @property
    def key(self) -> int:
        return id(self._future)

    def explained(self, frames: Mapping[int, FrameType]) -> ExplainedWorker:
        return _running(self.name, self._future, frames)

    def _in_loop(self, call: Callable[..., object], *arguments: Any) -> bool:
        """Make a call in the loop's own thread, as futures require; return False if closed."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            return False
        return True


class StartedTask:
    """A task that a coordinator has started. It reports its failures itself.

    Args:
        name: the name in reports.
        cancel: cancels the task; called in any thread.
    """

    keeps_error = False

    def __init__(self, name: str, cancel: Callable[[], object]) -> None:
        self.name = name
        self.task: object = None  # the task sets it in its first step
        self._loop = running_loop()  # the loop that starts it; None in trio
        self._cancel = cancel
        self._lock = threading.RLock()  # guards everything below
        self._ended = False
        self._callbacks: dict[Callable[[], object], None] = {}

    def is_alive(self) -> bool:
        return not self._ended

    def is_current(self) -> bool:
        return self.task is not None and self.task is running_task()

    def is_blocked_by_caller(self) -> bool:
        return _is_running_here(self._loop)

    def cancel(self) -> bool:
        self._cancel()
        return True

    def take_error(self) -> BaseException | None:
        return None

    def when_ended(self, callback: Callable[[], object]) -> Callable[[], object]:
        # Kept or called, never both: `_end` takes the callbacks under the same lock.
        if not self._add_callback(callback):
            callback()
        return partial(self._forget, callback)

    def where(self, frames: Mapping[int, FrameType]) -> str:
        return stacks.of_task(self.task)

    @property
    def key(self) -> int:
        return 0 if self.task is None else id(self.task)

    def explained(self, frames: Mapping[int, FrameType]) -> ExplainedWorker:
        return _running(self.name, self.task, frames)

    def ended(self) -> None:
        """Note that the task is done. You may call it more than once."""
        for callback in self._end():
            callback()

    @synchronized
    def _add_callback(self, callback: Callable[[], object]) -> bool:
        if not self._ended:
            self._callbacks[callback] = None
        return not self._ended

    def _forget(self, callback: Callable[[], object]) -> None:
        if not self._ended:  # else `_end` has taken it, or is about to
            call_with_lock(self._lock, self._remove_callback, callback)

    def _remove_callback(self, callback: Callable[[], object]) -> None:
        self._callbacks.pop(callback, None)

    @synchronized
    def _end(self) -> list[Callable[[], object]]:
        self._ended = True
        callbacks, self._callbacks = self._callbacks, {}
        return list(callbacks)


def _running(name: str, thing: object, frames: Mapping[int, FrameType]) -> ExplainedWorker:
    from aioqueue.telemetry.explain.explanation import ExplainedWorker

    return ExplainedWorker(name, "running", stack=stack_of(thing, frames), key=id(thing))


def _is_running_here(loop: asyncio.AbstractEventLoop | None) -> bool:
    return loop is not None and running_loop() is loop


def as_worker(worker: Any) -> Worker:
    if isinstance(worker, threading.Thread):
        return _ThreadWorker(worker)
    if isinstance(worker, StartedTask):
        return worker
    # By its methods: futures of other libraries have them without a common base class.
    if all(hasattr(worker, name) for name in ("add_done_callback", "done", "cancel")):
        return _FutureWorker(worker)
    is_coroutine = asyncio.iscoroutine(worker)
    raise InvalidArgumentError(
        f"worker: got {describe_argument(worker)};"
        " expected a threading.Thread, an asyncio.Task or another future"
        + (": write `asyncio.create_task(...)` around the call" if is_coroutine else "")
    )


def threads_of(workers: Iterable[Worker]) -> list[threading.Thread]:
    return [worker.thread for worker in workers if isinstance(worker, _ThreadWorker)]


def format_with_places(workers: Iterable[Worker]) -> LogLines:
    """Format lines about workers: their names, the items that they prepare, and where they are.

    Of those at the same place, only the first three have a line; the others are counted.
    """
    from aioqueue.telemetry.explain.gather import items_in_progress

    items = items_in_progress()
    places: list[str] = []
    lines: list[str] = []
    with current_frames() as frames:
        for worker in workers:
            item, place = items.get(worker.key), worker.where(frames)
            doing = f"{' at ' + item if item else ''}{' in ' + place if place else ''}"
            places.append(f"{item is None} {place}")
            lines.append(on_one_line(worker.name + doing))
    shown = folded(range(len(lines)), places.__getitem__, lambda index: lines[index : index + 1])
    return LogLines("".join(f"\n  {line}" for line in shown))


def when_all_ended(
    workers: Iterable[Worker], callback: Callable[[], object]
) -> Callable[[], object]:
    """Call back once, from any thread, when all of the workers have ended; now, if they have.

    `Thread.join` is the only way to learn that a thread has ended. So one daemon thread joins all
    of them, one after the other.

    Returns:
        A function that cancels the callback.
    """
    current = threading.current_thread()
    threads: list[threading.Thread] = []
    others: list[Worker] = []
    for worker in workers:
        if not isinstance(worker, _ThreadWorker):
            others.append(worker)
        elif worker.is_alive() and worker.thread is not current:
            threads.append(worker.thread)
    # One entry per worker to wait for, and one for all threads together. Each takes one, from the
    # end, and `list.pop` is atomic: so whichever takes the first entry, the true one, is the last
    # to end, and calls back. The list has its full length before anything is registered: a worker
    # that ends at once cannot take the last entry too early.
    left = [False] * (len(others) + bool(threads))
    if not left:
        callback()
        return _do_nothing
    left[0] = True

    def ended() -> None:
        if left.pop():
            callback()

    def make_callback() -> Callable[[], None]:
        return partial(ended)  # a new object for each: callbacks are distinguished by identity

    forgets: list[Callable[[], object]] = []
    # Threads first: if the joining thread cannot be started, nothing was registered yet.
    if threads:
        forgets.append(_when_threads_ended(frozenset(threads), make_callback()))
    forgets += [worker.when_ended(make_callback()) for worker in others]

    def forget() -> None:
        while forgets:
            forgets.pop()()

    return forget


def _do_nothing() -> None:
    """Cancel nothing: the callback has been called."""


_joins: dict[frozenset[threading.Thread], dict[Callable[[], object], None]] = {}
_joins_lock = threading.RLock()  # guards _joins


def _when_threads_ended(
    threads: frozenset[threading.Thread], callback: Callable[[], object]
) -> Callable[[], object]:
    """Call back when all threads have ended. Joins of the same threads share one joining thread.

    Raises:
        RuntimeError: the joining thread cannot be started. Then nothing is left behind.
    """
    call_with_lock(_joins_lock, _await_threads, threads, callback)
    return partial(call_with_lock, _joins_lock, _forget_join, threads, callback)


def _forget_join(threads: frozenset[threading.Thread], callback: Callable[[], object]) -> None:
    if threads in _joins:
        _joins[threads].pop(callback, None)


def _await_threads(threads: frozenset[threading.Thread], callback: Callable[[], object]) -> None:
    if threads in _joins:
        _joins[threads][callback] = None
        return
    _joins[threads] = {callback: None}
    try:
        # Under the lock: another join must not rely on a thread that turns out not to start.
        threading.Thread(
            target=_join_threads, args=(threads,), name="aioqueue-join", daemon=True
        ).start()
    except BaseException:
        del _joins[threads]
        raise


def _join_threads(threads: frozenset[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
    # Removed before the calls: a join that comes now must not add to a set that nobody calls.
    callbacks: dict[Callable[[], object], None] = call_with_lock(
        _joins_lock, _joins.pop, threads, {}
    )
    for callback in callbacks:
        callback()


def current_worker_name() -> str:
    trio = loaded_trio()
    if trio is not None and trio.lowlevel.in_trio_task():
        return str(trio.lowlevel.current_task().name)
    if running_loop() is not None and in_event_loop():
        task = asyncio.current_task()
        if task is not None:
            return task.get_name()
    return threading.current_thread().name


def failure_of_worker(
    plan: WorkerPlan, error: BaseException, owner: Call | None = None
) -> BaseException:
    """Return the failure that ended a worker; a cancellation not requested of a task is wrapped.

    Args:
        plan: the worker.
        error: the exception that its op has raised.
        owner: the call of the op, if the worker is a task.
    """
    # A group may hold the requested cancellation beside failures: only those are reported.
    rest = without_stops(error, owner)
    error = error if rest is None else rest  # an exception may be false, or have no truth at all
    if not plan.is_task or isinstance(error, Exception):
        return error
    what = f"enqueue op {function_name(plan.op)!r} raised {type(error).__name__}"
    if is_cancellation(error):
        what += ", but was not cancelled: something that it awaits was"
    return as_failure(error, what)


def format_end(error: BaseException) -> str:
    """Format the exception that ended a worker, with the public name of its class."""
    if isinstance(error, OutOfRangeError):
        return f"{OutOfRangeError.__name__}: {exception_text(error)}"
    return describe_exception(error)


class WorkerPlan:
    """One worker of a run: its op and its name.

    Args:
        op: what the worker calls.
        number: tells the worker from the others of the run.
        work: what the name of the worker says that it does.
        is_task: whether it is a task, as its op is a coroutine function; else it is a thread.
    """

    __slots__ = ("has_ended", "is_task", "name", "number", "op", "owner", "paused")

    def __init__(self, op: EnqueueOp, number: int, work: str, is_task: bool) -> None:
        self.op: EnqueueOp = op
        self.is_task: bool = is_task
        self.number: int = number
        self.name: str = f"aioqueue-{work}-{number}"
        self.owner: Owner | None = None  # the thread or task, once it has begun
        self.paused: str = ""  # why it waits for a restart, if it does
        self.has_ended: bool = False

    def explained(self, frames: Mapping[int, FrameType]) -> ExplainedWorker:
        from aioqueue.telemetry.explain.explanation import ExplainedWorker

        owner = self.owner
        if owner is None or self.has_ended:
            return ExplainedWorker(self.name, "ended" if self.has_ended else "not started")
        if self.paused:
            state: WorkerState = "waits for its restart"
            return ExplainedWorker(self.name, state, note=self.paused, key=owner.key)
        stack = stack_of(owner.thing, frames)
        return ExplainedWorker(self.name, "running", stack=stack, key=owner.key)


class _Plan(Protocol):
    @property
    def is_task(self) -> bool: ...


PlanT = TypeVar("PlanT", bound=_Plan)


class AddedWorkers(Generic[PlanT]):
    """Workers that are added during a run, until it is known how to start them. Thread-safe.

    Args:
        is_over: returns whether no worker may be started any more.
        ended: called with each worker that was not started.
    """

    def __init__(self, is_over: Callable[[], bool], ended: Callable[[PlanT], object]) -> None:
        self._is_over, self._ended = is_over, ended
        self._lock = threading.RLock()  # guards everything below
        self._waiting: list[PlanT] = []
        self._start: dict[bool, Callable[[PlanT], object]] = {}  # is a task -> how to start it
        self._has_ended = False

    def set_starter(self, start: Callable[[PlanT], object], *, tasks: bool) -> None:
        """Set how threads or tasks are started, and start those that have waited for it."""
        self._add_start(start, tasks)
        self._start_all()

    @synchronized
    def _add_start(self, start: Callable[[PlanT], object], tasks: bool) -> None:
        if not self._has_ended:
            self._start[tasks] = start

    def add(self, plan: PlanT) -> None:
        """Add a worker and start it. A task waits here until its event loop has begun.

        Raises:
            RuntimeError: it cannot be started, for want of threads say.
        """
        self._waiting.append(plan)
        self._start_all()

    @synchronized
    def close(self) -> None:
        """Accept no more workers, and drop the functions that start and end them.

        Those functions refer to the run, and the run refers to this object. The cycle would keep
        the run's queue alive until the garbage collector runs.
        """
        self._has_ended = True
        self._start.clear()
        self._is_over, self._ended = _always_true, _always_true

    @synchronized
    def take_waiting(self) -> list[PlanT]:
        """Take the workers that still wait and will not be started."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def _start_all(self) -> None:
        # Any number of threads may be here. Each takes one worker at a time under the lock, and
        # starts it without: starting runs code that may add another.
        while (found := self._next()) is not None:
            start, plan = found
            try:
                if self._is_over():  # a stop has come while it waited: it counts as ended
                    self._ended(plan)
                else:
                    start(plan)
            except BaseException:
                self._ended(plan)
                raise

    @synchronized
    def _next(self) -> tuple[Callable[[PlanT], object], PlanT] | None:
        for plan in self._waiting:
            if plan.is_task in self._start:
                self._waiting.remove(plan)
                return self._start[plan.is_task], plan
        return None


def _always_true(*_: object) -> bool:
    return True


RUNNER_ARGUMENTS = """\
Args:
    queue: the queue to fill and to close, through either of its faces. If several runners fill it,
        the last one to end closes it. ``None`` if the ops fill none, such as a learner's step: the
        run then ends with its workers.
    enqueue_ops: one callable per worker. Each makes one element and enqueues it, or without a queue
        does one step of its work, and is called in a loop, without arguments. A coroutine function
        runs in a task; a plain function runs on its own thread.
    queue_closed_exception_types: exceptions that end a worker without a report, because its input
        has ended. Add ``StopIteration`` for plain functions that call `next`. (Python turns it into
        a `RuntimeError` in a coroutine function: raise `OutOfRangeError` there.)
    close_op: closes the queue when the input has ended; ``None`` calls ``queue.close()``, if there
        is a queue.
    cancel_op: closes the queue at a stop; ``None`` calls
        ``queue.close(cancel_pending_enqueues=True)``, if there is a queue.
    source: the queue that the ops take from, if any. `Coordinator.drain` then lets the workers
        continue until that queue has ended; with ``None`` they end after their current call.
    restart: starts a worker again when it has failed, as a `Restart` describes; with ``None``, its
        first failure ends it.

Raises:
    InvalidArgumentError: any argument is not as described.
"""
