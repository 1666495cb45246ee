"""All errors of aioqueue, in one tree.

The middle column says what has happened. The right column names the classes that each error *also*
is, so that the ``except`` clauses of existing programs keep working::

    AioQueueError
    ├── InvalidArgumentError   the caller's argument is wrong   ValueError
    ├── QueueFull              would have to wait for room      asyncio.QueueFull, queue.Full
    ├── QueueEmpty             would have to wait for elements  asyncio.QueueEmpty, queue.Empty
    ├── DeadlineExceededError  the caller's timeout has expired TimeoutError
    ├── ItemTimeoutError       an item has taken too long      TimeoutError
    ├── CancelledError         its CancelScope was cancelled    concurrent.futures.CancelledError
    ├── OutOfRangeError        closed, and not enough is left   anyio.EndOfStream, *ShutDown
    ├── QueueClosedError       closed, nothing can be put in   anyio.ClosedResourceError, *ShutDown
    ├── StillRunningError      workers outlived their grace     RuntimeError
    ├── UndeliveredError       a drain had too little time      RuntimeError
    ├── PreemptedError         this process will end soon
    ├── WorkerDiedError        a worker was killed              RuntimeError
    ├── StarvedError           every group of rollouts refused  RuntimeError
    └── DataLossError          a file is damaged, or cut off    ValueError

``*ShutDown`` stands for ``asyncio.QueueShutDown`` and ``queue.ShutDown``, which exist since Python
3.13.

`OutOfRangeError` is the normal end of a run: everything that was put in has been taken out. It is a
*clean stop*, which coordinators and runners do not report. Producers that come too late get
`QueueClosedError`. If a failure closed the queue, it is the ``__cause__`` of both.

Every error can be pickled with its attributes, so it can cross a process boundary. A part of it may
not survive pickling by itself, such as a cause whose class takes other arguments than it keeps.
Such a part is rebuilt without a call of its class, or arrives in words.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
import queue as stdlib_queue
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from types import GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final

import anyio

from aioqueue.base.display_text import on_one_line, without_secrets

__all__ = (
    "AioQueueError",
    "CancelledError",
    "DataLossError",
    "DeadlineExceededError",
    "InvalidArgumentError",
    "ItemTimeoutError",
    "OutOfRangeError",
    "PickledByParts",
    "PreemptedError",
    "QueueClosedError",
    "QueueEmpty",
    "QueueFull",
    "SealedFailure",
    "StarvedError",
    "StillRunningError",
    "UndeliveredError",
    "WorkerDiedError",
    "add_note",
    "copy_exception",
    "copy_for_caller",
    "counted",
    "describe_exception",
    "exception_text",
    "interrupt_of",
    "open_cause",
    "out_of_range_error",
    "queue_label",
    "rebuild_exception",
    "sent_as",
    "set_cause",
    "with_article",
    "without_frames",
)

if TYPE_CHECKING or sys.version_info < (3, 13):

    class _ShutDown(Exception):  # noqa: N818  # named as what it stands in for
        """Replaces the two ``ShutDown`` classes, which are new in Python 3.13."""

else:

    class _ShutDown(asyncio.QueueShutDown, stdlib_queue.ShutDown):
        """Both of the classes that Python 3.13 raises from a queue that was shut down."""


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, once. Exceptions that refuse notes, if frozen say, have none."""
    try:
        if note not in getattr(error, "__notes__", ()):
            error.add_note(without_secrets(note) if "://" in note else note)
    except Exception:  # its class may refuse attributes in any way
        return


def set_cause(error: BaseException, cause: BaseException | None) -> None:
    """Set the cause of an exception, even if its class refuses attributes."""
    BaseException.__setattr__(error, "__cause__", cause)


class SealedFailure(Exception):  # noqa: N818  # it is a cause, and never raised
    """Stands for the failure that has closed something which several processes share.

    To pickle or unpickle a failure runs code of the user. The threads that serve other processes
    must not, so they have this in its place. A caller gets the failure itself (`open_cause`).

    Args:
        message: the failure as it is sent.
        load: unpickles it.
        failure: the failure, where this process has it.
    """

    def __init__(
        self,
        message: bytes,
        load: Callable[[bytes], BaseException],
        failure: BaseException | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self._load = load
        self._opened = [] if failure is None else [failure]

    def is_of(self, failure: BaseException) -> bool:
        return any(one is failure for one in self._opened)

    def opened(self) -> BaseException:
        """Return the failure, to each caller the same; the first call unpickles it."""
        if not self._opened:
            self._opened.append(self._load(self.message))  # or another thread did, before
        return self._opened[0]


def open_cause(error: BaseException) -> None:
    """Give an error the failure that is its cause, in the thread that is about to raise it."""
    cause = error.__cause__
    if type(cause) is SealedFailure:
        set_cause(error, cause.opened())


def exception_text(error: BaseException) -> str:
    """Return the text of an exception, even if its class fails to make one."""
    try:
        return str(error)
    except Exception as failure:
        return f"<{type(error).__name__} whose str raises {type(failure).__name__}>"


def describe_exception(error: BaseException) -> str:
    """Return the class and text of an exception, as in a traceback."""
    return f"{type(error).__name__}: {exception_text(error)}"


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: ``1 worker``, ``2 workers``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def queue_label(kind: str, name: str) -> str:
    """Return how messages call a queue, on one line whatever its name is."""
    return on_one_line(f"{kind} '{name}'")


def with_article(noun: str) -> str:
    """Return a noun, such as the name of a type, with its article: ``an int``, ``a list``."""
    return f"an {noun}" if noun.startswith((*"aeioAEIO", "nd")) else f"a {noun}"


_OF_A_RAISE: Final = frozenset(
    (
        *("__cause__", "__context__", "__suppress_context__", "__traceback__"),
        *("__dict__", "__weakref__", "args", "exceptions", "message"),
    )
)
"""Attributes that are not copied as fields: `copy_exception` sets them itself, or they say where
and how the exception was raised."""


def _fields(kind: type[BaseException]) -> Iterator[tuple[str, Any]]:
    """Yield what exceptions of a class keep outside of ``__dict__``: slots and built-in fields."""
    for base in kind.__mro__:
        for name, member in vars(base).items():
            is_field = isinstance(member, MemberDescriptorType | GetSetDescriptorType)
            if is_field and name not in _OF_A_RAISE:
                yield name, member


def _kept(error: BaseException) -> dict[str, Any]:
    """Return the fields of an exception that are set, by name."""
    kept = {}
    for name, member in _fields(type(error)):
        try:
            value = member.__get__(error)
        except AttributeError:
            continue
        if value is not None:
            kept[name] = value
    return kept


def rebuild_exception(
    kind: type[BaseException],
    args: tuple[Any, ...],
    attributes: Mapping[str, Any],
    fields: Mapping[str, Any],
) -> BaseException:
    """Make an exception of any class without calling that class.

    Many classes take other arguments than they pass to their base class, and an exception keeps
    only the latter. A call with those would fail, or repeat text. So this makes the built-in
    exception that it derives from, and sets its class.

    Args:
        kind: the class.
        args: the exception's ``args``; for a group, its message and its exceptions.
        attributes: the exception's ``__dict__``.
        fields: what it keeps elsewhere (`_kept`).

    Raises:
        TypeError: the class has another base than a built-in exception.
    """
    for base in kind.__mro__:
        if base.__module__ == "builtins" and issubclass(base, BaseException):
            try:
                made = base.__new__(kind, *args)
                break
            except TypeError:  # another base class determines the layout
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
                continue  # a read-only field
    return made


def copy_exception(error: BaseException) -> BaseException | None:
    """Copy an exception with its history; return ``None`` if that is impossible.

    The copy has the class, arguments, attributes, notes, cause and present traceback. Whatever is
    added later to one does not appear in the other. The members of a group are copied, too.
    """
    try:
        args = error.args
        if isinstance(error, BaseExceptionGroup):
            args = error.message, [copy_exception(one) for one in error.exceptions]
        attributes = dict(error.__dict__)
        notes = attributes.get("__notes__")
        if isinstance(notes, list):
            attributes["__notes__"] = list(notes)
        made = rebuild_exception(type(error), args, attributes, _kept(error))
        if type(made) is not type(error) or exception_text(made) != exception_text(error):
            return None
        BaseException.with_traceback(made, error.__traceback__)
        BaseException.__setattr__(made, "__context__", error.__context__)
        BaseException.__setattr__(made, "__cause__", error.__cause__)
        BaseException.__setattr__(made, "__suppress_context__", error.__suppress_context__)
    except Exception:  # its class, or that of a member, may refuse in any way
        return None
    return made


SENT_AS: Final = "_aioqueue_sent_as"
"""The attribute of an exception that has crossed a process boundary: its name on all sides."""


def sent_as(error: BaseException) -> str | None:
    """Return the name under which a failure was sent to other processes, or came from one.

    It is the identity of the failure: each message of it makes another object.
    """
    found: str | None = error.__dict__.get(SENT_AS)
    return found


def without_frames(error: BaseException) -> BaseException:
    """Copy an exception without traceback, cause and context, so that it keeps no frame alive.

    An exception that cannot be copied is returned as it is.
    """
    made = copy_exception(error)
    if made is None:
        return error
    pending = [made]
    while pending:
        one = pending.pop()
        for name in ("__traceback__", "__cause__", "__context__"):
            BaseException.__setattr__(one, name, None)
        if isinstance(one, BaseExceptionGroup):
            pending += one.exceptions
    return made


def interrupt_of(error: BaseException) -> BaseException:
    """Return one `KeyboardInterrupt` for a group of nothing but those; else the error itself.

    Python ends a program quietly, and with the exit status of Ctrl-C, only after an interrupt that
    is in no group. The group is the cause of the one that is made.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    pending: list[BaseException] = [error]
    first: KeyboardInterrupt | None = None
    while pending:
        one = pending.pop()
        if isinstance(one, BaseExceptionGroup):
            pending += reversed(one.exceptions)
        elif isinstance(one, KeyboardInterrupt):
            first = first or one
        else:
            return error
    made = KeyboardInterrupt() if first is None else KeyboardInterrupt(*first.args)
    made.__cause__ = error
    return made


def copy_for_caller(error: BaseException, *, is_shared: bool = True) -> BaseException:
    """Return an exception to raise in one of several callers that share a failure.

    Each caller gets its own, because it may add notes, its frames to the traceback, and a context,
    and the others must not see those.

    Args:
        error: the failure.
        is_shared: whether other callers get the failure, too. If not, a failure that cannot be
            copied is returned itself.
    """
    made = copy_exception(error)
    if made is None and not is_shared:
        return error
    if made is None:
        made = AioQueueError(describe_exception(error))
        made.__cause__ = error
    return made


_PLAIN: Final = (str, int, float, bool, bytes, type(None))
_DEEPEST: Final = 16
_depth: Final[ContextVar[int]] = ContextVar("aioqueue.errors.depth", default=0)
"""How many nested errors are being pickled. Errors can refer to each other in a circle."""


def _contained(value: Any) -> Any:
    """Wrap a value for pickling with an error, so that a failure to unpickle it is contained."""
    if type(value) in _PLAIN:
        return value
    is_error = isinstance(value, BaseException)
    words = describe_exception(value) if is_error else _safe_repr(value)
    depth = _depth.get()
    token = _depth.set(depth + 1)
    try:
        for one in (value, PickledByParts(value))[: is_error + 1] if depth < _DEEPEST else ():
            try:
                message = pickle.dumps(one, 4)
                arrived = pickle.loads(message)
            except Exception:
                continue
            # Many values can be pickled but not unpickled, or change on the way: try it.
            if type(arrived) is type(value) and (
                not is_error or describe_exception(arrived) == words
            ):
                return _Contained(message, words, is_error)
    finally:
        _depth.reset(token)
    return _as_text(words, is_error)


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as failure:
        return f"<{type(value).__name__} whose repr raises {type(failure).__name__}>"


def _as_text(words: str, is_error: bool) -> Any:
    return AioQueueError(words) if is_error else words


class _Contained:
    """A wrapper that is unpickled as the value inside, or as text if that fails."""

    def __init__(self, message: bytes, words: str, is_error: bool) -> None:
        self._all = message, words, is_error

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_contained, self._all


def _unpickle_contained(message: bytes, words: str, is_error: bool) -> Any:
    try:
        return pickle.loads(message)
    except Exception:  # the class may not exist in this process, for example
        return _as_text(words, is_error)


class PickledByParts:
    """A wrapper that is unpickled as an exception, without a call of the exception's class.

    Args:
        error: the exception.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        error = self._error
        args: tuple[Any, ...] = error.args
        if isinstance(error, BaseExceptionGroup):
            args = error.message, [PickledByParts(one) for one in error.exceptions]
        return rebuild_exception, (type(error), args, dict(error.__dict__), _kept(error))


def _rebuild_error(
    kind: type[AioQueueError],
    args: tuple[Any, ...],
    attributes: dict[str, Any],
    fields: dict[str, Any],
    cause: BaseException | None,
    is_bare: bool,
) -> BaseException:
    error = rebuild_exception(kind, args, attributes, fields)
    BaseException.__setattr__(error, "__cause__", cause)
    BaseException.__setattr__(error, "__suppress_context__", is_bare)
    return error


class AioQueueError(Exception):
    """The base class of all errors of aioqueue."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Include the cause, which pickle leaves out. No part may keep the error from arriving: an
        # unreadable reply would break a pool, or let it wait for ever.
        return _rebuild_error, (
            type(self),
            tuple(map(_contained, self.args)),
            {name: _contained(value) for name, value in self.__dict__.items()},
            {name: _contained(value) for name, value in _kept(self).items()},
            _contained(self.__cause__),
            self.__suppress_context__,
        )

    def __copy__(self) -> BaseException:
        made = copy_exception(self)
        return self if made is None else made


class InvalidArgumentError(AioQueueError, ValueError):
    """An argument is wrong. The message names it, shows the value, and says what is valid.

    The queue is as it was before the call. Passwords in URLs are left out of the message.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(without_secrets(one) if type(one) is str else one for one in args))


class QueueFull(AioQueueError, asyncio.QueueFull, stdlib_queue.Full):  # noqa: N818
    """The queue has no room for `enqueue_nowait`, or other enqueues are waiting for it."""


class QueueEmpty(AioQueueError, asyncio.QueueEmpty, stdlib_queue.Empty):  # noqa: N818
    """The queue has no element for `dequeue_nowait`, or other dequeues are waiting for one."""


class DeadlineExceededError(AioQueueError, TimeoutError):
    """The ``timeout=`` of a blocking call has expired, or the time of a `CancelScope` around it.

    The call is undone.

    Attributes:
        enqueued: how many rows an interrupted `enqueue_many` has put in (0 for other calls).
    """

    def __init__(self, message: str = "", *, enqueued: int = 0) -> None:
        super().__init__(message)
        self.enqueued = enqueued


class ItemTimeoutError(AioQueueError, TimeoutError):
    """The preparation of an item took longer than ``item_timeout`` and was interrupted.

    Attributes:
        seconds: the limit.
        where: the place in the code that was running; empty if that is not known.
    """

    def __init__(self, message: str = "", *, seconds: float = 0.0, where: str = "") -> None:
        super().__init__(message)
        self.seconds = seconds
        self.where = where


class CancelledError(AioQueueError, concurrent.futures.CancelledError):
    """The `CancelScope` around a blocking call was cancelled. The call is undone.

    This is an ordinary exception. asyncio cancels tasks with another class.

    Attributes:
        enqueued: how many rows an interrupted `enqueue_many` has put in (0 for other calls).
    """

    def __init__(self, message: str = "", *, enqueued: int = 0) -> None:
        super().__init__(message)
        self.enqueued = enqueued


class OutOfRangeError(AioQueueError, anyio.EndOfStream, _ShutDown):
    """The queue is closed and can no longer satisfy the request.

    The elements that are left stay in the queue, and a smaller request can still get them. If a
    failure closed the queue, that failure is the ``__cause__``.

    Attributes:
        queue: the name of the queue.
        requested: how many elements were requested.
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
    """The queue is closed, or was closed while an enqueue was waiting.

    If a failure closed the queue, that failure is the ``__cause__``.

    Attributes:
        queue: the name of the queue.
        enqueued: how many rows an interrupted `enqueue_many` has put in (0 for other calls).
    """

    def __init__(self, message: str = "", *, queue: str = "", enqueued: int = 0) -> None:
        super().__init__(message)
        self.queue = queue
        self.enqueued = enqueued


class StillRunningError(AioQueueError, RuntimeError):
    """Workers were still running at the end of the grace period after a stop.

    Attributes:
        workers: the names of the workers.
    """

    def __init__(self, message: str = "", *, workers: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.workers = workers


class UndeliveredError(AioQueueError, RuntimeError):
    """A drain ran out of time before it had delivered all that was taken from the sources.

    Attributes:
        elements: queue name -> how many elements were inside.
        items: queue name -> how many items its `prepare` had taken and not put in, at most.
        workers: the names of the workers that had not ended; each may have held an item.
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
        self.elements: dict[str, int] = {} if elements is None else elements
        self.items: dict[str, int] = {} if items is None else items
        self.workers = workers


class PreemptedError(AioQueueError):
    """This process will end soon, so the pipeline waits for no further batch.

    The pipeline's position is that of the last batch that it returned: take its ``state_dict()``
    now. See `aioqueue.inputs.Preemption`.

    Attributes:
        reason: what has announced the end, such as the name of a signal.
    """

    def __init__(self, message: str = "", *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class WorkerDiedError(AioQueueError, RuntimeError):
    """A worker has died: a process was killed, crashed or ran out of memory; or a worker of a
    `Batcher` ended by `SystemExit` or by a cancellation that the batcher had not requested.

    Attributes:
        exitcode: the exit code of the process, or minus the number of the signal that killed it.
    """

    def __init__(self, message: str = "", *, exitcode: int = 0) -> None:
        super().__init__(message)
        self.exitcode = exitcode


class StarvedError(AioQueueError, RuntimeError):
    """A `RolloutQueue` has given up: it refused or dropped so many groups in a row that nothing
    would ever be trained.

    Attributes:
        refused: how many groups ``accept=`` has refused, in the whole run.
        dropped: how many groups were dropped, by reason: ``"failed"`` or ``"stale"``.
    """

    def __init__(
        self, message: str = "", *, refused: int = 0, dropped: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(message)
        self.refused: int = refused
        self.dropped: dict[str, int] = dict(dropped or {})


class DataLossError(AioQueueError, ValueError):
    """The content of a file is damaged, or ends too early.

    It is not an `OSError`, because reading the same bytes again does not help.

    Attributes:
        path: the path of the file.
        offset: where the damaged part is, in bytes from the start of the (decompressed) file.
        fault: what is wrong there: "corrupted record", "truncated record" and the like.
    """

    def __init__(
        self, message: str = "", *, path: str = "", offset: int = 0, fault: str = ""
    ) -> None:
        if fault and not message:
            message = f"{path}: {fault} at {offset}"
        super().__init__(without_secrets(message))
        self.path = path
        self.offset = offset
        self.fault = fault


def out_of_range_error(
    kind: str, name: str, *, requested: int, remaining: int, held: int
) -> OutOfRangeError:
    """Make the error of a dequeue on a closed queue that has too few elements."""
    return OutOfRangeError(
        f"{queue_label(kind, name)} is closed and has insufficient elements"
        f" (requested {requested}, current size {remaining})",
        queue=name,
        requested=requested,
        remaining=remaining,
        held=held,
    )


for _name in __all__:
    # Tracebacks and pickles show the public path.
    if _name.endswith("Error") or _name in ("QueueEmpty", "QueueFull"):
        globals()[_name].__module__ = "aioqueue"
del _name
