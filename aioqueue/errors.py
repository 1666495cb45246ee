"""Everything that can go wrong, in one tree.

The left column is whose doing it is; the right column names the classes that each error *also* is,
so that the ``except`` clause which a program already has keeps working::

    AioQueueError
    ├── InvalidArgumentError   the caller's argument is wrong   ValueError
    ├── QueueFull              would have to wait for room      asyncio.QueueFull, queue.Full
    ├── QueueEmpty             would have to wait for elements  asyncio.QueueEmpty, queue.Empty
    ├── DeadlineExceededError  the caller's timeout has run out TimeoutError
    ├── ItemTimeoutError       an item has taken too long      TimeoutError
    ├── CancelledError         its CancelScope was cancelled    concurrent.futures.CancelledError
    ├── OutOfRangeError        closed, and not enough is left   anyio.EndOfStream, *ShutDown
    ├── QueueClosedError       closed, nothing can be put in   anyio.ClosedResourceError, *ShutDown
    ├── StillRunningError      workers outlived their grace     RuntimeError
    ├── UndeliveredError       a drain had too little time      RuntimeError
    ├── PreemptedError         this process is to end soon
    ├── WorkerDiedError        a worker was killed              RuntimeError
    └── DataLossError          a file is damaged, or cut off    ValueError

``*ShutDown`` stands for ``asyncio.QueueShutDown`` and ``queue.ShutDown``, which exist from
Python 3.13 on.

`OutOfRangeError` is the normal end of a run: what was put in has been taken out. It is a *clean
stop*, which coordinators and runners do not report. `QueueClosedError` meets producers that come
too late. Both carry the failure that closed the queue as their ``__cause__``, if one did.

Every error survives pickling, attributes included, so that it can cross a process boundary.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue as stdlib_queue
import sys
from typing import TYPE_CHECKING, Any

import anyio

__all__ = (
    "AioQueueError",
    "CancelledError",
    "DataLossError",
    "DeadlineExceededError",
    "InvalidArgumentError",
    "ItemTimeoutError",
    "OutOfRangeError",
    "PreemptedError",
    "QueueClosedError",
    "QueueEmpty",
    "QueueFull",
    "StillRunningError",
    "UndeliveredError",
    "WorkerDiedError",
    "add_note",
    "counted",
    "said",
    "set_cause",
    "told",
)

if TYPE_CHECKING or sys.version_info < (3, 13):

    class _ShutDown(Exception):  # noqa: N818  # named as what it stands in for
        """Stands in for the two ``ShutDown`` classes that Python 3.13 brought."""

else:

    class _ShutDown(asyncio.QueueShutDown, stdlib_queue.ShutDown):
        """Both of the classes that Python 3.13 raises from a queue that was shut down."""


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, once; not to one that takes none, such as a frozen dataclass."""
    try:
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    except Exception:  # whatever its class makes of being written to
        return


def set_cause(error: BaseException, cause: BaseException) -> None:
    """Say what an exception comes from, whatever its class makes of being written to."""
    BaseException.__setattr__(error, "__cause__", cause)


def said(error: BaseException) -> str:
    """What an exception says, whatever its class makes of being asked."""
    try:
        return str(error)
    except Exception as failure:
        return f"<{type(error).__name__} whose str raises {type(failure).__name__}>"


def told(error: BaseException) -> str:
    """What an exception is and says, as a traceback tells it."""
    return f"{type(error).__name__}: {said(error)}"


def counted(n: int, noun: str) -> str:
    """How many there are, in words: ``1 worker``, ``2 workers``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


class AioQueueError(Exception):
    """Base class of every error that aioqueue raises on its own behalf."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Attributes are set after the call, the cause among them, which pickle would leave out.
        return type(self), self.args, {**self.__dict__, "__cause__": self.__cause__}


class InvalidArgumentError(AioQueueError, ValueError):
    """An argument is wrong; the message names it, what was given and what would be right.

    The queue is as it was before the call.
    """


class QueueFull(AioQueueError, asyncio.QueueFull, stdlib_queue.Full):  # noqa: N818
    """`enqueue_nowait` found no room, or others waiting for it."""


class QueueEmpty(AioQueueError, asyncio.QueueEmpty, stdlib_queue.Empty):  # noqa: N818
    """`dequeue_nowait` found no element, or others waiting for it."""


class DeadlineExceededError(AioQueueError, TimeoutError):
    """The ``timeout=`` of a blocking call has run out, or that of a `CancelScope` around it.

    What the call had begun is undone.

    Attributes:
        enqueued: how many rows an interrupted `enqueue_many` has put in (0 for any other call).
    """

    def __init__(self, message: str = "", *, enqueued: int = 0) -> None:
        super().__init__(message)
        self.enqueued = enqueued


class ItemTimeoutError(AioQueueError, TimeoutError):
    """The preparation of an item has taken longer than ``item_timeout``, and was cut short.

    Attributes:
        seconds: that limit.
        where: the place in the code where it was then; empty if that cannot be told.
    """

    def __init__(self, message: str = "", *, seconds: float = 0.0, where: str = "") -> None:
        super().__init__(message)
        self.seconds = seconds
        self.where = where


class CancelledError(AioQueueError, concurrent.futures.CancelledError):
    """The `CancelScope` around a blocking call was cancelled; what it had begun is undone.

    It has nothing to do with how asyncio cancels a task: it is an ordinary exception.

    Attributes:
        enqueued: how many rows an interrupted `enqueue_many` has put in (0 for any other call).
    """

    def __init__(self, message: str = "", *, enqueued: int = 0) -> None:
        super().__init__(message)
        self.enqueued = enqueued


class OutOfRangeError(AioQueueError, anyio.EndOfStream, _ShutDown):
    """The queue is closed and cannot satisfy the request any more.

    What is left stays in the queue, and a smaller request can still have it. If a failure closed
    the queue, that failure is the ``__cause__``.

    Attributes:
        queue: name of the queue.
        requested: how many elements were asked for.
        remaining: how many elements are left in the queue.
        held: how many of those the request had already collected when the queue closed; they
            have gone back.
    """

    def __init__(
        self,
        message: str = "",
        *,
        queue: str = "",
        requested: int = 0,
        remaining: int = 0,
        held: int = 0,
    ) -> None:
        super().__init__(message)
        self.queue = queue
        self.requested = requested
        self.remaining = remaining
        self.held = held


class QueueClosedError(AioQueueError, anyio.ClosedResourceError, _ShutDown):
    """The queue is closed for enqueues, or was closed while one was waiting.

    If a failure closed the queue, that failure is the ``__cause__``.

    Attributes:
        queue: name of the queue.
        enqueued: how many rows an interrupted `enqueue_many` has put in (0 for any other call).
    """

    def __init__(self, message: str = "", *, queue: str = "", enqueued: int = 0) -> None:
        super().__init__(message)
        self.queue = queue
        self.enqueued = enqueued


class StillRunningError(AioQueueError, RuntimeError):
    """Workers were still running when the grace period after a stop had run out.

    Attributes:
        workers: their names.
    """

    def __init__(self, message: str = "", *, workers: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.workers = workers


class UndeliveredError(AioQueueError, RuntimeError):
    """The time of a drain was up before all that had been taken from the sources was delivered.

    Attributes:
        elements: how many were inside of queues, by the name of the queue.
        items: how many a `prepare` had taken and not put into its queue, at most, by its name.
        workers: the names of those that had not ended, each of which may have had something.
    """

    def __init__(
        self,
        message: str = "",
        *,
        elements: dict[str, int] | None = None,
        items: dict[str, int] | None = None,
        workers: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.elements = {} if elements is None else elements
        self.items = {} if items is None else items
        self.workers = workers


class PreemptedError(AioQueueError):
    """This process is to end soon, so no batch is waited for any more.

    The position of the pipeline is that of the last batch that was handed out: ask for its
    ``state_dict()`` now. See `aioqueue.inputs.Preemption`.

    Attributes:
        reason: what has said so: the name of a signal, say.
    """

    def __init__(self, message: str = "", *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class WorkerDiedError(AioQueueError, RuntimeError):
    """A worker has died: a process that was killed, ran out of memory or crashed, or a worker of a
    `Batcher`, by `SystemExit` or a cancellation that nobody has asked of it.

    Attributes:
        exitcode: of a process: minus the number of the signal that ended it, or its exit code.
    """

    def __init__(self, message: str = "", *, exitcode: int = 0) -> None:
        super().__init__(message)
        self.exitcode = exitcode


class DataLossError(AioQueueError, ValueError):
    """A file's content is damaged, or ends too early.

    It is no `OSError`: reading the same bytes again will not help.

    Attributes:
        path: of the file.
        offset: of the part that is damaged, in bytes from the start of the file (decompressed).
        fault: what is wrong there: "corrupted record", "truncated record" and the like.
    """

    def __init__(
        self, message: str = "", *, path: str = "", offset: int = 0, fault: str = ""
    ) -> None:
        if fault and not message:
            message = f"{path}: {fault} at {offset}"
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.fault = fault
