"""Helpers for tests of programs with queues: faults on demand, and waits for states.

No helper sleeps or polls. They work in any test framework; aioqueue's own tests use them.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, TypeVar

from aioqueue.base.arguments import checked_count, checked_seconds
from aioqueue.base.public_names import World
from aioqueue.coordination.shutdown import is_watcher
from aioqueue.core.attempts import Statistics
from aioqueue.errors import DeadlineExceededError, InvalidArgumentError
from aioqueue.queues.queue_core import QueueFace
from aioqueue.system.locks import call_with_lock
from aioqueue.telemetry.explain import stacks
from aioqueue.telemetry.explain.frames import current_frames
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from aioqueue.worlds.waker import in_event_loop

__all__ = ("failing", "no_threads_left", "until_waiting", "wait_until_waiting")

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


def failing(
    queue: QueueT,
    n: int,
    error: BaseException | None = None,
    *,
    operations: Iterable[str] = _OPERATIONS,
) -> QueueT:
    """Return another face of a queue, on which the n-th operation fails.

    The n-th call raises the error and changes nothing. All other calls are made. Calls are counted
    over all operations, and over both faces of the result (its ``sync`` and its ``aio``). Iteration
    counts as the dequeues that it makes. Calls of the original queue do not count, and do not fail.

    Args:
        queue: any queue, as either of its faces.
        n: which call fails, >= 1.
        error: the error to raise; ``None`` for an `OSError`.
        operations: the names of the methods that count, such as ``["enqueue", "enqueue_many"]``; by
            default all that put in or take out.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """
    if not isinstance(queue, QueueFace):
        raise InvalidArgumentError(f"queue: got {queue!r}; expected a queue of aioqueue")
    n = checked_count(n, "n", least=1)
    if error is not None and not isinstance(error, BaseException):
        raise InvalidArgumentError(f"error: got {error!r}; expected an exception or None")
    names = tuple(operations)
    unknown = [name for name in names if name not in _OPERATIONS]
    if unknown or isinstance(operations, str):
        raise InvalidArgumentError(
            f"operations: got {operations!r}; expected some of {', '.join(_OPERATIONS)}"
        )
    return _failing_face(queue, _Fault(n, error), names)


def _failing_face(queue: QueueT, fault: _Fault, names: tuple[str, ...]) -> QueueT:
    kind = type(queue)

    def peer(self: QueueFace, world: World) -> Any:
        return _failing_face(queue._peer(world), fault, names)

    methods = {name: _counted_method(getattr(kind, name), fault) for name in names}
    face: Any = type(kind.__name__, (kind,), {**methods, "_peer": peer, "__doc__": kind.__doc__})
    made: QueueT = face.__new__(face)
    made._bind(queue._core)
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

    def __init__(self, n: int, error: BaseException | None) -> None:
        self._lock = threading.Lock()  # guards the count below
        self._left = n
        self._n = n
        self._error = error

    def count(self, operation: str) -> None:
        with self._lock:
            self._left -= 1
            if self._left != 0:
                return
        if self._error is not None:
            raise self._error
        raise OSError(f"call {self._n} of the failing queue, {operation}, fails")


async def until_waiting(queue: QueueFace, *, enqueues: int = 0, dequeues: int = 0) -> Statistics:
    """Wait until at least this many calls wait on a queue; in asyncio and trio.

    It returns as soon as the last of them is in line, in whatever task or thread.

    Args:
        queue: any queue, as either of its faces.
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
        queue: any queue, as either of its faces.
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
