"""What kernels raise, as a session raises it: aioqueue's errors and Python's as TensorFlow's."""

from __future__ import annotations

from typing import Any

import aioqueue
from aioqueue.compat.v1.core.graph import Operation
from aioqueue.compat.v1.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    ResourceExhaustedError,
    UnimplementedError,
    UnknownError,
)

__all__ = ("from_aioqueue", "from_exception")

_FROM_PYTHON: tuple[tuple[type[BaseException], type[Any]], ...] = (
    (StopIteration, OutOfRangeError),
    (MemoryError, ResourceExhaustedError),
    (NotImplementedError, UnimplementedError),
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
)


def from_aioqueue(error: aioqueue.AioQueueError | OpError, op: Operation | None = None) -> OpError:
    """One of aioqueue's errors as the error that a session raises; ``error`` is its cause."""
    made: OpError
    if isinstance(error, OpError):
        made = error
    elif isinstance(error, aioqueue.DeadlineExceededError):
        made = DeadlineExceededError(None, None, "Timed out waiting for notification")
        op = None  # the run was too slow, not this operation
    elif isinstance(error, aioqueue.CancelledError):
        made = CancelledError(None, None, _withdrawn(op))
    elif isinstance(error, aioqueue.QueueClosedError):
        made = CancelledError(None, None, str(error))
    elif isinstance(error, aioqueue.OutOfRangeError):
        made = OutOfRangeError(None, None, str(error))
    elif isinstance(error, aioqueue.InvalidArgumentError):
        made = InvalidArgumentError(None, None, str(error))
    else:
        made = UnknownError(None, None, f"{type(error).__name__}: {error}")
    if made is not error:
        for name in ("queue", "requested", "remaining", "held", "enqueued"):
            if hasattr(made, name) and hasattr(error, name):
                setattr(made, name, getattr(error, name))
        made.__cause__ = error
    if op is not None:
        made.blame(op)
    return made


def _withdrawn(op: Operation | None) -> str:
    kind = "" if op is None else op.type
    if "Dequeue" in kind:
        return "Dequeue operation was cancelled"
    if "Enqueue" in kind or "QueueClose" in kind:
        return "Enqueue operation was cancelled"
    return "Operation was cancelled"


def from_exception(error: Exception, op: Operation | None = None) -> OpError:
    """Whatever a kernel raised as the error that a session raises; ``error`` is its cause."""
    if isinstance(error, OpError):
        if op is not None:
            error.blame(op)
        return error
    if isinstance(error, aioqueue.AioQueueError):
        return from_aioqueue(error, op)
    ours = next((ours for kind, ours in _FROM_PYTHON if isinstance(error, kind)), UnknownError)
    made: OpError = ours(None, None, f"{type(error).__name__}: {error}")
    made.__cause__ = error
    if op is not None:
        made.blame(op)
    return made
