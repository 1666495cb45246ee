"""Helpers for tests: faults on demand, waits for states, and time that passes at once.

No helper sleeps or polls. They work in any test framework; aioqueue's own tests use them.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import selectors
import threading
import types
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from typing import Any, Final, TypeVar, cast

from aioqueue.base.arguments import (
    checked_count,
    checked_seconds,
    function_name,
    is_async,
    is_coroutine_function,
    makes_several,
)
from aioqueue.base.public_names import World
from aioqueue.coordination.shutdown import is_watcher
from aioqueue.core.attempts import Statistics
from aioqueue.errors import DeadlineExceededError, InvalidArgumentError
from aioqueue.items.item import closing_run
from aioqueue.latest.latest import LatestFace
from aioqueue.pipeline.stages.base import BasePipeline
from aioqueue.queues.queue_core import QueueFace
from aioqueue.sources.base import BaseSource, Scan
from aioqueue.system.locks import call_with_lock
from aioqueue.telemetry.explain import stacks
from aioqueue.telemetry.explain.frames import current_frames
from aioqueue.telemetry.explain.gather import explain
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from aioqueue.worlds.waker import in_event_loop

__all__ = (
    "VirtualClock",
    "failing",
    "no_threads_left",
    "until_waiting",
    "wait_until_waiting",
)

T = TypeVar("T")
QueueT = TypeVar("QueueT", bound=QueueFace)

_OPERATIONS: Final = (
    "enqueue",
    "enqueue_many",
    "enqueue_nowait",
    "dequeue",
    "dequeue_many",
    "dequeue_up_to",
    "dequeue_nowait",
)
_OPERATIONS_OF_LATEST: Final = ("publish", "get", "get_nowait", "wait_newer")


def failing(
    queue: T,
    n: int,
    error: BaseException | None = None,
    *,
    operations: Iterable[str] | None = None,
) -> T:
    """Return something like what it is given, which fails at the n-th use.

    The n-th use raises the error and changes nothing. All others are as ever.

    * **A queue** gives another face of the same queue. The n-th operation fails, counted over all
      operations, and over both faces of the result (its ``sync`` and its ``aio``). Iteration counts
      as the dequeues that it makes. Calls of the original queue do not count, and do not fail.
    * **A `Latest`** gives another face of the same value in the same way. What counts is publishing
      and reading.
    * **A source** of `aioqueue.inputs`, or any other iterable or async iterable, gives one in which
      reading the n-th item fails. Items are counted over all epochs, and so are those that are read
      ahead or read again.
    * **A function**, plain or async, for `prepare` or anything else, gives one whose n-th call
      fails. Calls are counted in one process, so that it is not for ``where="process"``.

    Args:
        queue: the queue or the `Latest`, as either of its faces; or the source, the iterable, or
            the function.
        n: which use fails, >= 1.
        error: the error to raise; ``None`` for an `OSError`.
        operations: of a queue or a `Latest`, the names of the methods that count, such as
            ``["enqueue", "enqueue_many"]``; ``None`` for all that put in or take out.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """
    n = checked_count(n, "n", least=1)
    if error is not None and not isinstance(error, BaseException):
        raise InvalidArgumentError(f"error: got {error!r}; expected an exception or None")
    if isinstance(queue, QueueFace):
        names = _checked_operations(operations, _OPERATIONS)
        return cast(T, _failing_face(queue, _Fault(n, error, "the failing queue"), names))
    if isinstance(queue, LatestFace):
        names = _checked_operations(operations, _OPERATIONS_OF_LATEST)
        fault = _Fault(n, error, f"the failing Latest '{queue.name}'")
        return cast(T, _failing_latest(queue, fault, names))
    if operations is not None:
        raise InvalidArgumentError(
            f"operations: got {operations!r} for {queue!r}, which is neither a queue nor a Latest;"
            " expected None"
        )
    if isinstance(queue, BaseSource):
        fault = _Fault(n, error, f"the failing source '{queue.name}'")
        return cast(T, _failing_source(queue, fault))
    if isinstance(queue, BasePipeline):
        raise InvalidArgumentError(
            f"queue: got {queue!r}, a pipeline; expected its source or the function of a stage, as"
            " in failing(source, 3).prepare(function)"
        )
    if isinstance(queue, Iterable | AsyncIterable) and not isinstance(queue, type):
        return cast(T, _FailingIterable(queue, _Fault(n, error, "the failing iterable")))
    if callable(queue):
        fault = _Fault(n, error, f"the failing function {function_name(queue)}")
        return cast(T, _counted_function(queue, fault))
    raise InvalidArgumentError(
        f"queue: got {queue!r}; expected a queue, a Latest, a source, an iterable or a function"
    )


def _checked_operations(
    operations: Iterable[str] | None, known: tuple[str, ...]
) -> tuple[str, ...]:
    names = known if operations is None else tuple(operations)
    if isinstance(operations, str) or not set(names) <= set(known):
        raise InvalidArgumentError(
            f"operations: got {operations!r}; expected some of {', '.join(known)}"
        )
    return names


def _failing_source(source: BaseSource[Any], fault: _Fault) -> BaseSource[Any]:
    kind: Any = type(source)

    def scan(self: Any, epoch: int | None, after: Any) -> Scan[Any]:
        return _FailingScan(kind._scan(self, epoch, after), fault)

    async def ascan(self: Any, epoch: int | None, after: Any) -> AsyncIterator[Any]:
        async with _closing_async(kind._ascan(self, epoch, after)) as run:
            async for one in run:
                fault.count("an item")
                yield one

    def pick(self: Any, epoch: int | None, places: Any) -> Iterator[Any] | None:
        found = kind._pick(self, epoch, places)
        return None if found is None else _counted(found, fault)

    methods = {"_scan": scan, "_ascan": ascan, "_pick": pick, "__module__": kind.__module__}
    # It is no kind of source of its own: messages and positions have the original's name.
    failing_kind = types.new_class(
        kind.__name__, (kind,), {"is_kind": False}, lambda space: space.update(methods)
    )
    made = copy.copy(source)
    made.__class__ = failing_kind
    return made


class _FailingScan(Scan[Any]):
    """A scan whose items are counted as they are read."""

    __slots__ = ("_fault", "_scan")

    def __init__(self, scan: Scan[Any], fault: _Fault) -> None:
        self._scan = scan
        self._fault = fault

    def values(self) -> Iterator[Any]:
        return _counted(self._scan.values(), self._fault)

    def entries(self) -> Iterator[Any]:
        return _counted(self._scan.entries(), self._fault)

    def placed(self) -> Iterator[Any]:
        return _counted(self._scan.placed(), self._fault)


def _counted(items: Iterator[Any], fault: _Fault) -> Iterator[Any]:
    with closing_run(items) as run:
        for item in run:
            fault.count("an item")
            yield item


@asynccontextmanager
async def _closing_async(items: AsyncIterator[Any]) -> AsyncIterator[AsyncIterator[Any]]:
    """Close an async iterator at the end, if it can be closed."""
    try:
        yield items
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


class _FailingIterable:
    """An iterable, or an async one, whose items are counted as they are read."""

    def __init__(self, given: Any, fault: _Fault) -> None:
        self._given = given
        self._fault = fault

    def __iter__(self) -> Iterator[Any]:
        for item in self._given:
            self._fault.count("an item")
            yield item

    async def __aiter__(self) -> AsyncIterator[Any]:
        async with _closing_async(aiter(self._given)) as run:
            async for item in run:
                self._fault.count("an item")
                yield item


def _counted_function(function: Callable[..., Any], fault: _Fault) -> Callable[..., Any]:
    """A function of the same kind, whose calls are counted."""
    name = "a call"

    @functools.wraps(function)
    def counted(*arguments: Any, **options: Any) -> Any:
        fault.count(name)
        return function(*arguments, **options)

    @functools.wraps(function)
    async def counted_coroutine(*arguments: Any, **options: Any) -> Any:
        fault.count(name)
        return await function(*arguments, **options)

    @functools.wraps(function)
    def counted_generator(*arguments: Any, **options: Any) -> Any:
        fault.count(name)
        yield from function(*arguments, **options)

    @functools.wraps(function)
    async def counted_async_generator(*arguments: Any, **options: Any) -> Any:
        fault.count(name)
        async with _closing_async(function(*arguments, **options)) as run:
            async for one in run:
                yield one

    if is_coroutine_function(function):
        return counted_coroutine
    if makes_several(function):
        return counted_async_generator if is_async(function) else counted_generator
    return counted


def _failing_face(queue: QueueT, fault: _Fault, names: tuple[str, ...]) -> QueueT:
    kind = type(queue)

    def peer(self: QueueFace, world: World) -> Any:
        return _failing_face(queue._peer(world), fault, names)

    methods = {name: _counted_method(getattr(kind, name), fault) for name in names}
    face: Any = type(kind.__name__, (kind,), {**methods, "_peer": peer, "__doc__": kind.__doc__})
    made: QueueT = face.__new__(face)
    made._bind(queue._core)
    return made


def _failing_latest(
    latest: LatestFace[Any], fault: _Fault, names: tuple[str, ...]
) -> LatestFace[Any]:
    kind = type(latest)

    def other_face(self: LatestFace[Any], face_class: type[LatestFace[Any]]) -> LatestFace[Any]:
        return _failing_latest(latest._as(face_class), fault, names)

    methods = {name: _counted_method(getattr(kind, name), fault) for name in names}
    body = {**methods, "_as": other_face, "__doc__": kind.__doc__}
    face: Any = type(kind.__name__, (kind,), body)
    made: LatestFace[Any] = face.__new__(face)
    made._core = latest._core
    return made


def _counted_method(method: Callable[..., Any], fault: _Fault) -> Callable[..., Any]:
    @functools.wraps(method)
    def counted(self: Any, /, *arguments: Any, **options: Any) -> Any:
        fault.count(method.__name__)
        return method(self, *arguments, **options)

    @functools.wraps(method)
    async def counted_when_awaited(self: Any, /, *arguments: Any, **options: Any) -> Any:
        fault.count(method.__name__)
        return await method(self, *arguments, **options)

    return counted_when_awaited if inspect.iscoroutinefunction(method) else counted


class _Fault:
    """Counts calls, and makes the n-th one fail."""

    def __init__(self, n: int, error: BaseException | None, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()  # guards the count below
        self._left = n
        self._n = n
        self._error = error

    def count(self, operation: str) -> None:
        """Count a use; raise the error if it is the n-th one."""
        with self._lock:
            self._left -= 1
            if self._left != 0:
                return
        if self._error is not None:
            raise self._error
        raise OSError(f"call {self._n} of {self._what}, {operation}, fails")


class VirtualClock:
    """The time of a test with coroutines: it passes at once when nothing else can happen.

    An event loop of this clock never sleeps. When all of its tasks wait, and nothing has come from
    another thread or a socket for a moment, the time jumps to the next timer. So a test of a
    timeout of an hour takes as long as one of a millisecond. What waits in tasks follows this
    clock: `asyncio.sleep` and `asyncio.timeout`, `anyio` and its scopes; ``max_wait``, the
    ``backoff``, ``rate`` and ``item_timeout`` of a `prepare` in tasks. Threads and processes have
    the time of the machine, and so have `time.monotonic` and what is measured by it, such as
    statistics.

    It is for asyncio. In trio, use ``trio.testing.MockClock(autojump_threshold=0)``.

    When all tasks wait and there is no timer either, only a thread or a socket can help. A test
    that waits for neither would hang, so `run` raises instead.

    Args:
        idle: seconds of the machine in which nothing has happened before the time jumps. If threads
            work for the test, such as plain functions of a `prepare`, it must be longer than they
            need.
        patience: seconds of the machine in which nothing has happened, while all tasks wait without
            a timer, before `run` raises; ``None``: it waits for ever. If threads or other processes
            work for the test, it must be longer than they need.

    Raises:
        InvalidArgumentError: ``idle`` or ``patience`` is not a number of seconds.
    """

    def __init__(self, *, idle: float = 0.01, patience: float | None = 10.0) -> None:
        self._idle = checked_seconds(idle, "idle")
        self._patience = None if patience is None else checked_seconds(patience, "patience")
        self._now = 0.0

    def __repr__(self) -> str:
        return f"<aioqueue.testing.VirtualClock at {self._now:g} s>"

    @property
    def now(self) -> float:
        """The seconds that have passed, from 0. `asyncio.AbstractEventLoop.time` returns it too."""
        return self._now

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Return a new event loop of this clock, for ``asyncio.Runner(loop_factory=...)``."""
        return _VirtualLoop(self)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in an event loop of this clock, as `asyncio.run` does.

        Args:
            main: the coroutine.

        Returns:
            What it returned.

        Raises:
            RuntimeError: all tasks wait, no timer is set, and nothing has come from a thread or a
                socket for ``patience`` seconds. The message explains what they wait for.
            BaseException: what it raised.
        """
        with asyncio.Runner(loop_factory=self.new_event_loop) as runner:
            return runner.run(main)


class _VirtualSelector(selectors.DefaultSelector):
    """Waits for files and sockets as ever, and for time by a `VirtualClock`."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:  # no timer to jump to
            patience = self._clock._patience
            found = super().select(patience)
            if not found and patience is not None:
                raise RuntimeError(
                    "all tasks wait, and no timer is set: nothing has come from a thread or a"
                    f" socket for {patience:g} s (patience).\n{explain()}"
                )
            return found
        if timeout <= 0:
            return super().select(timeout)  # tasks can run
        found = super().select(self._clock._idle)
        if not found:
            self._clock._now += timeout
        return found


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with the time of a `VirtualClock`."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        super().__init__(_VirtualSelector(clock))

    def time(self) -> float:
        return self._clock._now


async def until_waiting(queue: QueueFace, *, enqueues: int = 0, dequeues: int = 0) -> Statistics:
    """Wait until at least this many calls wait on a queue; in asyncio and trio.

    It returns as soon as the last of them is in line, in whatever task or thread.

    Args:
        queue: any queue that this process owns, as either of its faces.
        enqueues: how many enqueues must wait for room, >= 0.
        dequeues: how many dequeues must wait for elements, >= 0.

    Returns:
        The statistics of that moment.

    Raises:
        InvalidArgumentError: any argument is not as described.

    Cancellation:
        A cancelled call has changed nothing. There is no timeout argument: use `asyncio.timeout`,
        `anyio.fail_after` or `trio.fail_after`, so that a test fails instead of hanging.
    """
    callers = _WaitingCallers(queue, enqueues, dequeues)
    with callers.observed_queue():
        await callers.reached.wait(current_waker())
    return callers.statistics


def wait_until_waiting(
    queue: QueueFace, *, enqueues: int = 0, dequeues: int = 0, timeout: float | None = 10.0
) -> Statistics:
    """Wait until at least this many calls wait on a queue; the blocking form, for threads.

    Args:
        queue: any queue that this process owns, as either of its faces.
        enqueues: how many enqueues must wait for room, >= 0.
        dequeues: how many dequeues must wait for elements, >= 0.
        timeout: seconds to wait at most; ``None`` waits for ever.

    Returns:
        The statistics of that moment.

    Raises:
        DeadlineExceededError: the timeout has expired; the message says how many calls wait.
        InvalidArgumentError: any argument is not as described.
        RuntimeError: the call would block a thread whose event loop is running.
    """
    if timeout is not None:
        timeout = checked_seconds(timeout, "timeout")
    callers = _WaitingCallers(queue, enqueues, dequeues)
    with callers.observed_queue():
        if in_event_loop() and not callers.reached.is_open:
            raise RuntimeError(
                "wait_until_waiting would have to wait, and this thread's event loop is running:"
                " use `await until_waiting(...)` here"
            )
        if not callers.reached.wait_blocking(timeout):
            now = queue.statistics()
            raise DeadlineExceededError(
                f"after {timeout:g} s {now.waiting_enqueues} enqueues and {now.waiting_dequeues}"
                f" dequeues wait on '{queue.name}'; expected {enqueues} and {dequeues}"
            )
    return callers.statistics


class _WaitingCallers:
    """The callers that must wait on a queue, and the wait for them."""

    statistics: Statistics

    def __init__(self, queue: QueueFace, enqueues: int, dequeues: int) -> None:
        if not isinstance(queue, QueueFace):
            raise InvalidArgumentError(f"queue: got {queue!r}; expected a queue of aioqueue")
        if queue._core.whose:
            raise InvalidArgumentError(
                f"queue: got {queue!r}; expected a queue of this process: its owner alone sees who"
                " waits there, so call this in that process, or look at queue.statistics() here"
            )
        self._machine = queue._machine
        self._enqueues = checked_count(enqueues, "enqueues")
        self._dequeues = checked_count(dequeues, "dequeues")
        self.reached = Gate()

    @contextmanager
    def observed_queue(self) -> Iterator[None]:
        """Watch the queue in this context: its machine reports each change of its lines."""
        call_with_lock(self._machine._lock, self._begin)
        try:
            yield
        finally:
            call_with_lock(self._machine._lock, self._end)

    def check(self) -> None:
        """Count the waiting callers. The caller holds the lock of the machine."""
        now = self._machine.statistics()
        enough = now.waiting_enqueues >= self._enqueues and now.waiting_dequeues >= self._dequeues
        if enough and not self.reached.is_open:
            self.statistics = now
            self.reached.open()  # safe under the lock: the wake never takes it

    def _begin(self) -> None:
        self._machine.observers += (self.check,)
        self.check()

    def _end(self) -> None:
        others = [check for check in self._machine.observers if check != self.check]
        self._machine.observers = tuple(others)


@contextmanager
def no_threads_left(grace: float = 5.0) -> Iterator[None]:
    """Check that every thread that starts in this context also ends.

    When you leave the block, threads that still run have ``grace`` seconds to end. If an exception
    leaves the block, nothing is checked.

    Args:
        grace: seconds that all of the threads together have to end.

    Yields:
        Nothing.

    Raises:
        AssertionError: threads still run. It names them and says where they are.
        InvalidArgumentError: ``grace`` is not a number of seconds.
        RuntimeError: the event loop of this thread is running, and the check would block it.
    """
    grace = checked_seconds(grace, "grace")
    if in_event_loop():
        raise RuntimeError(
            "no_threads_left blocks, and this thread's event loop is running: put it around the"
            " call that runs the loop, `with no_threads_left(): asyncio.run(...)`"
        )
    before = set(threading.enumerate())
    yield
    new = [one for one in threading.enumerate() if one not in before and not is_watcher(one)]
    deadline = monotonic() + grace
    for thread in new:
        thread.join(max(0.0, deadline - monotonic()))
    left = [thread for thread in new if thread.is_alive()]
    if left:
        with current_frames() as frames:
            found = [f"\n  {one.name} in {stacks.of_thread(one, frames)}" for one in left]
        places = "".join(found)
        raise AssertionError(f"threads still run after {grace:g} s:{places}")
