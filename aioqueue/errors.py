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

Every error survives pickling, attributes included, so that it can cross a process boundary. What of
it does not survive by itself (a cause whose class takes other arguments than it keeps, say) arrives
as the same without a call of its class, or else in words.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
import queue as stdlib_queue
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final

import anyio

__all__ = (
    "AioQueueError",
    "AsItIs",
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
    "copied",
    "counted",
    "describe_exception",
    "exception_text",
    "own",
    "remade",
    "set_cause",
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


def exception_text(error: BaseException) -> str:
    """What an exception says, whatever its class makes of being asked."""
    try:
        return str(error)
    except Exception as failure:
        return f"<{type(error).__name__} whose str raises {type(failure).__name__}>"


def describe_exception(error: BaseException) -> str:
    """What an exception is and says, as a traceback tells it."""
    return f"{type(error).__name__}: {exception_text(error)}"


def counted(n: int, noun: str) -> str:
    """How many there are, in words: ``1 worker``, ``2 workers``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


_OF_A_RAISE: Final = frozenset(
    (
        *("__cause__", "__context__", "__suppress_context__", "__traceback__"),
        *("__dict__", "__weakref__", "args", "exceptions", "message"),
    )
)
"""Members of exceptions that are not among their fields: what `copied` sets by itself, or what
says where and how one was raised."""


def _fields(kind: type[BaseException]) -> Iterator[tuple[str, Any]]:
    """What exceptions of a class keep outside of ``__dict__``: slots, and Python's own fields."""
    for base in kind.__mro__:
        for name, member in vars(base).items():
            is_field = isinstance(member, MemberDescriptorType | GetSetDescriptorType)
            if is_field and name not in _OF_A_RAISE:
                yield name, member


def _kept(error: BaseException) -> dict[str, Any]:
    """The fields of an exception that are set, by name."""
    kept = {}
    for name, member in _fields(type(error)):
        try:
            value = member.__get__(error)
        except AttributeError:
            continue
        if value is not None:
            kept[name] = value
    return kept


def remade(
    kind: type[BaseException],
    args: tuple[Any, ...],
    attributes: Mapping[str, Any],
    fields: Mapping[str, Any],
) -> BaseException:
    """An exception of any class, without a call of that: as that of Python's own which it is.

    Many a class takes other arguments than it hands to the class above it, which are all that an
    exception keeps; to call it with those would fail, or say something twice.

    Args:
        kind: its class.
        args: its ``args``; of a group, its message and its exceptions.
        attributes: its ``__dict__``.
        fields: what it keeps elsewhere (`_kept`).

    Raises:
        TypeError: its class is no child of Python's own alone.
    """
    for base in kind.__mro__:
        if base.__module__ == "builtins" and issubclass(base, BaseException):
            try:
                made = base.__new__(kind, *args)
                break
            except TypeError:  # another base has the layout
                continue
    else:
        raise TypeError(f"{kind.__name__} cannot be made without a call")
    BaseException.__setattr__(made, "args", args)
    made.__dict__.update(attributes)
    for name, member in _fields(kind):
        if name in fields:
            try:
                member.__set__(made, fields[name])
            except (AttributeError, TypeError):
                continue  # it can only be read
    return made


def copied(error: BaseException) -> BaseException | None:
    """Another exception like this one, with the same past; ``None`` if none can be made.

    It has the class, arguments, attributes, notes and cause of this one, and its traceback as of
    now. What is then added to either is not seen in the other. Of a group the members are copied,
    too.
    """
    try:
        args = error.args
        if isinstance(error, BaseExceptionGroup):
            args = error.message, [copied(one) for one in error.exceptions]
        attributes = dict(error.__dict__)
        notes = attributes.get("__notes__")
        if isinstance(notes, list):
            attributes["__notes__"] = list(notes)
        made = remade(type(error), args, attributes, _kept(error))
        if type(made) is not type(error) or exception_text(made) != exception_text(error):
            return None
        BaseException.with_traceback(made, error.__traceback__)
        BaseException.__setattr__(made, "__context__", error.__context__)
        BaseException.__setattr__(made, "__cause__", error.__cause__)
        BaseException.__setattr__(made, "__suppress_context__", error.__suppress_context__)
    except Exception:  # whatever its class makes of being looked at, or a member of a group
        return None
    return made


def own(error: BaseException, *, is_shared: bool = True) -> BaseException:
    """An exception to be raised to one of several who hear of a failure: each gets one of its own.

    What a caller does with its exception (notes, its frames in the traceback, the exception that it
    was handling as the context) is nobody else's to see.

    Args:
        error: the failure.
        is_shared: whether others hear of it. Else, what cannot be copied is given away itself.
    """
    made = copied(error)
    if made is None and not is_shared:
        return error
    if made is None:
        made = AioQueueError(describe_exception(error))
        made.__cause__ = error
    return made


_PLAIN: Final = (str, int, float, bool, bytes, type(None))
_DEEPEST: Final = 16
_depth: Final[ContextVar[int]] = ContextVar("aioqueue.errors.depth", default=0)
"""How many errors, each within the last one, are being pickled; they may go in a circle."""


def _sealed(value: Any) -> Any:
    """A value as it is pickled with an error: what need not arrive is in a cover of its own."""
    if type(value) in _PLAIN:
        return value
    is_error = isinstance(value, BaseException)
    words = describe_exception(value) if is_error else _shown(value)
    depth = _depth.get()
    token = _depth.set(depth + 1)
    try:
        for one in (value, AsItIs(value))[: is_error + 1] if depth < _DEEPEST else ():
            try:
                message = pickle.dumps(one, 4)
                arrived = pickle.loads(message)
            except Exception:
                continue
            # Many can be pickled and not be unpickled, or become another one by that.
            if type(arrived) is type(value) and (
                not is_error or describe_exception(arrived) == words
            ):
                return _Cover(message, words, is_error)
    finally:
        _depth.reset(token)
    return _in_words(words, is_error)


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception as failure:
        return f"<{type(value).__name__} whose repr raises {type(failure).__name__}>"


def _in_words(words: str, is_error: bool) -> Any:
    return AioQueueError(words) if is_error else words


class _Cover:
    """Is pickled in the place of a value, and unpickled as that, or as its words."""

    def __init__(self, message: bytes, words: str, is_error: bool) -> None:
        self._all = message, words, is_error

    def __reduce__(self) -> tuple[Any, ...]:
        return _uncovered, self._all


def _uncovered(message: bytes, words: str, is_error: bool) -> Any:
    try:
        return pickle.loads(message)
    except Exception:  # its class is not there, say
        return _in_words(words, is_error)


class AsItIs:
    """Is pickled in the place of an exception, and unpickled as that, without a call of its class.

    Args:
        error: the exception.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        error = self._error
        args: tuple[Any, ...] = error.args
        if isinstance(error, BaseExceptionGroup):
            args = error.message, [AsItIs(one) for one in error.exceptions]
        return remade, (type(error), args, dict(error.__dict__), _kept(error))


def _arrived(
    kind: type[AioQueueError],
    args: tuple[Any, ...],
    attributes: dict[str, Any],
    fields: dict[str, Any],
    cause: BaseException | None,
    is_bare: bool,
) -> BaseException:
    error = remade(kind, args, attributes, fields)
    BaseException.__setattr__(error, "__cause__", cause)
    BaseException.__setattr__(error, "__suppress_context__", is_bare)
    return error


class AioQueueError(Exception):
    """Base class of every error that aioqueue raises on its own behalf."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The cause, which pickle would leave out, comes along. Nothing of it keeps the error from
        # arriving: a reply that cannot be read ends a pool, or has it wait for ever.
        return _arrived, (
            type(self),
            tuple(map(_sealed, self.args)),
            {name: _sealed(value) for name, value in self.__dict__.items()},
            {name: _sealed(value) for name, value in _kept(self).items()},
            _sealed(self.__cause__),
            self.__suppress_context__,
        )

    def __copy__(self) -> BaseException:
        made = copied(self)
        return self if made is None else made


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
