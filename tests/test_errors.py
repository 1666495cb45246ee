"""The tree of errors: which ``except`` clauses catch what, and what survives pickling."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import dataclasses
import pickle
import queue as stdlib_queue
import random
import sys
import threading
import traceback
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
    StarvedError,
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
    StarvedError: (RuntimeError,),
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
    StarvedError("refused", refused=40, dropped={"stale": 2}),
    DataLossError(path="a.tfrecord", offset=18, fault="corrupted record"),
]
EACH = pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)


def is_error(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, AioQueueError)


def test_all_errors_are_in_the_tree() -> None:
    leaves = {found for found in vars(errors).values() if is_error(found)} - {AioQueueError}
    assert leaves == set(ALSO)
    assert {type(error) for error in EXAMPLES} == {AioQueueError, *ALSO}


@pytest.mark.parametrize("kind", ALSO, ids=lambda kind: kind.__name__)
def test_clauses_that_catch_it(kind: type[AioQueueError]) -> None:
    for base in (kind, AioQueueError, Exception, *ALSO[kind]):
        with pytest.raises(base):
            raise kind("caught")


@pytest.mark.parametrize("kind", ALSO, ids=lambda kind: kind.__name__)
def test_clauses_that_do_not_catch_it(kind: type[AioQueueError]) -> None:
    others = {*ALSO, *FOREIGN} - {kind, *ALSO[kind]}
    assert not issubclass(kind, tuple(others))


@pytest.mark.parametrize("kind", [OutOfRangeError, QueueClosedError])
def test_shut_down_where_python_has_it(kind: type[AioQueueError]) -> None:
    names = {f"{base.__module__}.{base.__name__}" for base in kind.__mro__}
    stdlib = {"asyncio.queues.QueueShutDown", "queue.ShutDown"}
    assert names & stdlib == (stdlib if sys.version_info >= (3, 13) else set())


def test_common_clauses() -> None:
    """Clauses for `asyncio.Queue`, `queue.Queue` and timeouts catch the same as before."""
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
    arrived = pickle.loads(pickle.dumps(error, protocol))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.args == error.args
    assert vars(arrived) == vars(error)


@EACH
def test_pickling_keeps_notes(error: AioQueueError) -> None:
    noted = type(error)("with a note")
    noted.add_note("enqueue_many: 3 of 5 rows are in the queue")
    arrived = pickle.loads(pickle.dumps(noted))
    assert arrived.__notes__ == noted.__notes__


@pytest.mark.parametrize("kind", [OutOfRangeError, QueueClosedError])
def test_pickling_keeps_the_cause(kind: type[AioQueueError]) -> None:
    """A consumer in another process sees why the queue was closed."""
    queue: Any = sync.FIFOQueue(1, name="images")
    queue.close(cause=OSError(5, "disk on fire"))
    with pytest.raises(kind) as caught:
        queue.dequeue() if kind is OutOfRangeError else queue.enqueue(1)
    arrived = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(arrived.__cause__, OSError)
    assert arrived.__cause__.args == (5, "disk on fire")
    assert arrived.queue == "images"


class TwoArgumentsError(Exception):
    """Takes more arguments than it keeps, as in many client libraries."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class RepeatingError(Exception):
    """Calling it with its ``args`` changes its text."""

    def __init__(self, text: str) -> None:
        super().__init__(f"failed: {text}")


class SlottedError(Exception):
    __slots__ = ("code",)

    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    tokens: int


class KeywordError(Exception):
    def __new__(cls, *, key: str) -> KeywordError:
        return super().__new__(cls, key)

    def __init__(self, *, key: str) -> None:
        super().__init__(key)


class ExitsError(Exception):
    """Unpickling it calls a function that raises."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class LockedError(Exception):
    """Nobody can pickle it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def foreign_errors() -> list[BaseException]:
    """Exceptions of every kind."""

    class LocalError(Exception):
        pass

    return [
        ValueError("plain"),
        KeyError("key"),
        OSError(2, "No such file", "a.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        SyntaxError("bad", ("a.py", 3, 1, "x =")),
        StopIteration(3),
        TwoArgumentsError(503, "down"),
        RepeatingError("disk"),
        SlottedError(code=3),
        FrozenError(7),
        KeywordError(key="k"),
        ExitsError("at once"),
        LockedError("for ever"),
        LocalError("here only"),
        KeyboardInterrupt(),
        ExceptionGroup("two", [TwoArgumentsError(1, "a"), ExceptionGroup("in", [KeyError("b")])]),
    ]


def kinds_of_errors() -> list[type[AioQueueError]]:
    """Every error class of the package, private ones included."""
    import aioqueue.inputs
    import aioqueue.telemetry.explain.explain_socket  # noqa: F401  # for their classes

    found, waiting = [], [AioQueueError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind not in found and kind.__module__.startswith("aioqueue"):
            found.append(kind)
    return [kind for kind in found if not kind.__module__.startswith("aioqueue.compat")]


def test_every_error_survives_pickling_whatever_it_carries() -> None:
    """Of every class, with each kind of exception as its cause and among its attributes.

    Else a process pool that one of them comes home from breaks, or waits for ever.
    """
    rng = random.Random(7)
    assert len(kinds_of_errors()) > len(ALSO)
    for kind in kinds_of_errors():
        for cause in foreign_errors():
            takes_all = kind in (InvalidArgumentError, QueueFull, QueueEmpty)
            error = kind("told", threading.Lock()) if takes_all else kind("told")
            error.__cause__ = cause
            error.extra = rng.choice([cause, threading.Lock(), {"a": 1}])  # type: ignore[attr-defined]
            error.add_note("a note")
            arrived = pickle.loads(pickle.dumps(error))
            assert type(arrived) is kind
            assert (arrived.args[0], arrived.__notes__) == ("told", ["a note"])
            assert hasattr(arrived, "extra")
            cause_text = arrived.__cause__
            assert errors.exception_text(cause) in str(cause_text)
            if type(cause_text) is AioQueueError:  # in words
                assert isinstance(cause, LockedError | ExitsError) or "Local" in str(cause_text)
            else:
                assert (type(cause_text), str(cause_text)) == (type(cause), str(cause))


def test_errors_that_name_each_other_survive_pickling() -> None:
    one, two = WorkerDiedError("one"), QueueClosedError("two")
    one.__cause__, two.__cause__ = two, one
    arrived = pickle.loads(pickle.dumps(one))
    assert (str(arrived), str(arrived.__cause__)) == ("one", "two")


def test_a_class_that_the_other_process_lacks_arrives_as_text() -> None:
    error = OutOfRangeError("over", queue="images")
    error.__cause__ = TwoArgumentsError(503, "down")
    sent = pickle.dumps(error)
    module: Any = sys.modules[__name__]
    kind = module.TwoArgumentsError
    del module.TwoArgumentsError
    try:
        arrived = pickle.loads(sent)
    finally:
        module.TwoArgumentsError = kind
    assert (type(arrived), arrived.queue) == (OutOfRangeError, "images")
    assert str(arrived.__cause__) == "TwoArgumentsError: down"


def test_a_copy_shares_its_cause() -> None:
    error = QueueClosedError("closed", queue="images")
    error.__cause__ = LockedError("for ever")
    made = copy.copy(error)
    assert made is not error
    assert made.__cause__ is error.__cause__
    assert vars(made) == vars(error)


def test_each_caller_gets_a_copy() -> None:
    """The copies have the class and text of the original, and share no notes or frames."""
    for error in foreign_errors():
        try:
            raise error from OSError("disk")
        except BaseException as raised:
            one, two = errors.copy_for_caller(raised), errors.copy_for_caller(raised)
        assert len({id(error), id(one), id(two)}) == 3
        assert (type(one), str(one), repr(one)) == (type(error), str(error), repr(error))
        assert traceback.format_tb(one.__traceback__) == traceback.format_tb(error.__traceback__)
        assert one.__cause__ is error.__cause__
        errors.add_note(one, "of one")
        try:
            raise one
        except BaseException:
            assert not getattr(two, "__notes__", ())
            assert traceback.format_tb(two.__traceback__) == traceback.format_tb(
                error.__traceback__
            )
        if isinstance(error, BaseExceptionGroup):
            assert isinstance(one, BaseExceptionGroup)
            assert one.exceptions[0] is not error.exceptions[0]


class UncopyableError(Exception):
    """Its text differs in each instance."""

    def __str__(self) -> str:
        return f"I am {id(self)}"


def test_an_uncopyable_failure_becomes_the_cause() -> None:
    error = UncopyableError()
    made = errors.copy_for_caller(error)
    assert type(made) is AioQueueError
    assert made.__cause__ is error
    assert errors.copy_for_caller(error, is_shared=False) is error
