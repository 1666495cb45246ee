"""The tree of errors: which ``except`` clauses catch what, and what survives pickling."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
import queue as stdlib_queue
import sys
from typing import Any

import anyio
import pytest

from aioqueue import errors, sync
from aioqueue.errors import (
    AioQueueError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    InvalidArgumentError,
    ItemTimeoutError,
    OutOfRangeError,
    PreemptedError,
    QueueClosedError,
    QueueEmpty,
    QueueFull,
    StillRunningError,
    UndeliveredError,
    WorkerDiedError,
)

ALSO: dict[type[AioQueueError], tuple[type[Exception], ...]] = {
    InvalidArgumentError: (ValueError,),
    QueueFull: (asyncio.QueueFull, stdlib_queue.Full),
    QueueEmpty: (asyncio.QueueEmpty, stdlib_queue.Empty),
    CancelledError: (concurrent.futures.CancelledError,),
    DeadlineExceededError: (TimeoutError, asyncio.TimeoutError, OSError),
    ItemTimeoutError: (TimeoutError, asyncio.TimeoutError, OSError),
    OutOfRangeError: (anyio.EndOfStream,),
    QueueClosedError: (anyio.ClosedResourceError,),
    StillRunningError: (RuntimeError,),
    UndeliveredError: (RuntimeError,),
    PreemptedError: (),
    WorkerDiedError: (RuntimeError,),
    DataLossError: (ValueError,),
}
FOREIGN = {base for bases in ALSO.values() for base in bases}

EXAMPLES: list[AioQueueError] = [
    AioQueueError("all"),
    InvalidArgumentError("capacity: got 0"),
    QueueFull("full"),
    QueueEmpty("empty"),
    DeadlineExceededError("late", enqueued=3),
    ItemTimeoutError("slow", seconds=30.0, where="read.py:8 in read"),
    CancelledError("cancelled", enqueued=2),
    OutOfRangeError("over", queue="images", requested=5, remaining=2, held=1),
    QueueClosedError("closed", queue="images", enqueued=4),
    StillRunningError("alive", workers=("a", "b")),
    UndeliveredError("late", elements={"images": 3}, items={"images": 1}, workers=("a",)),
    PreemptedError("soon", reason="SIGTERM"),
    WorkerDiedError("killed", exitcode=-9),
    DataLossError(path="a.tfrecord", offset=18, fault="corrupted record"),
]
EACH = pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)


def is_error(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, AioQueueError)


def test_the_tree_is_all_there_is() -> None:
    leaves = {found for found in vars(errors).values() if is_error(found)} - {AioQueueError}
    assert leaves == set(ALSO)
    assert {type(error) for error in EXAMPLES} == {AioQueueError, *ALSO}


@pytest.mark.parametrize("kind", ALSO, ids=lambda kind: kind.__name__)
def test_what_catches_it(kind: type[AioQueueError]) -> None:
    for base in (kind, AioQueueError, Exception, *ALSO[kind]):
        with pytest.raises(base):
            raise kind("caught")


@pytest.mark.parametrize("kind", ALSO, ids=lambda kind: kind.__name__)
def test_what_does_not_catch_it(kind: type[AioQueueError]) -> None:
    others = {*ALSO, *FOREIGN} - {kind, *ALSO[kind]}
    assert not issubclass(kind, tuple(others))


@pytest.mark.parametrize("kind", [OutOfRangeError, QueueClosedError])
def test_shut_down_where_python_has_it(kind: type[AioQueueError]) -> None:
    names = {f"{base.__module__}.{base.__name__}" for base in kind.__mro__}
    stdlib = {"asyncio.queues.QueueShutDown", "queue.ShutDown"}
    assert names & stdlib == (stdlib if sys.version_info >= (3, 13) else set())


def test_clauses_that_programs_have() -> None:
    """What an `asyncio.Queue`, a `queue.Queue` or a timeout raises, is caught as before."""
    queue = sync.FIFOQueue(1)
    with pytest.raises(stdlib_queue.Empty):
        queue.dequeue_nowait()
    with pytest.raises(asyncio.QueueEmpty):
        queue.dequeue_nowait()
    with pytest.raises(TimeoutError):
        queue.dequeue(timeout=0)
    queue.enqueue(0)
    with pytest.raises(stdlib_queue.Full):
        queue.enqueue_nowait(1)
    with pytest.raises(asyncio.QueueFull):
        queue.enqueue_nowait(1)
    with pytest.raises(TimeoutError):
        queue.enqueue(1, timeout=0)
    queue.close()
    with pytest.raises(anyio.ClosedResourceError):
        queue.enqueue(1, timeout=0)
    queue.dequeue()
    with pytest.raises(anyio.EndOfStream):
        queue.dequeue(timeout=0)
    with pytest.raises(ValueError, match="n: got -1"):
        queue.dequeue_many(-1)


@EACH
def test_defaults(error: AioQueueError) -> None:
    bare = type(error)()
    assert str(bare) == ""
    for name, value in vars(error).items():
        assert getattr(bare, name) == type(value)()


@EACH
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling(error: AioQueueError, protocol: int) -> None:
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.args == error.args
    assert vars(copy) == vars(error)


@EACH
def test_pickling_keeps_notes(error: AioQueueError) -> None:
    noted = type(error)("with a note")
    noted.add_note("enqueue_many: 3 of 5 rows are in the queue")
    copy = pickle.loads(pickle.dumps(noted))
    assert copy.__notes__ == noted.__notes__


@pytest.mark.parametrize("kind", [OutOfRangeError, QueueClosedError])
def test_pickling_keeps_the_cause(kind: type[AioQueueError]) -> None:
    """A consumer in another process is told why the queue was closed."""
    queue: Any = sync.FIFOQueue(1, name="images")
    queue.close(cause=OSError(5, "disk on fire"))
    with pytest.raises(kind) as caught:
        queue.dequeue() if kind is OutOfRangeError else queue.enqueue(1)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy.__cause__, OSError)
    assert copy.__cause__.args == (5, "disk on fire")
    assert copy.queue == "images"
