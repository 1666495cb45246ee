"""Failures on their way between processes, and the causes of closed queues."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from aioqueue.errors import (
    AioQueueError,
    OutOfRangeError,
    PickledByParts,
    QueueClosedError,
    SealedFailure,
    describe_exception,
)
from aioqueue.processes.failures import (
    RemoteTraceback,
    failure_of_message,
    message_of_failure,
    name_for_sending,
)


def sendable(error: BaseException) -> Exception:
    """Return what another process gets for a failure: a Ctrl-C here is not a Ctrl-C there."""
    if isinstance(error, Exception):
        return error
    sent = RuntimeError(describe_exception(error))
    name_for_sending(sent, name_for_sending(error))
    sent.__cause__ = error
    return sent


def message_of_cause(
    cause: BaseException | None,
    dumps: Callable[[Any], bytes],
    loads: Callable[[bytes], Any],
) -> bytes | None:
    """Return the failure that closes a queue, in the form that is sent."""
    if type(cause) is SealedFailure:
        return cause.message
    return None if cause is None else message_of_failure(sendable(cause), dumps, loads)


_CLOSING: Final = "where the queue was closed"


def closing_cause(failure: BaseException) -> SealedFailure:
    """Return what keeps a failure of this process that closes a queue, for all processes."""
    message = message_of_failure(sendable(failure))
    return SealedFailure(message, partial(failure_of_message, place=_CLOSING), failure)


def received_cause(message: bytes | None) -> SealedFailure | None:
    """Return the same for a failure of another process."""
    if message is None:
        return None
    return SealedFailure(message, partial(failure_of_message, place=_CLOSING))


def set_closing_cause(
    error: BaseException, cause: bytes | None, loads: Callable[[bytes], Any]
) -> None:
    """Give an error of a closed queue the failure that closed it, with its remote traceback."""
    if cause is not None and isinstance(error, OutOfRangeError | QueueClosedError):
        error.__cause__ = failure_of_message(cause, _CLOSING, loads)


def has_frames(cause: BaseException | None) -> bool:
    """Return whether the cause of a failure from elsewhere shows where it was raised."""
    return not isinstance(cause, RemoteTraceback) or '  File "' in cause.text


_OURS: Final = b"\0"
"""The first byte of an error of this package; a pickle does not begin with it."""


def message_of_error(error: BaseException) -> bytes:
    """Return what a call raises, in the form that is sent.

    An error of this package says what has become of the call. Its traceback would show our own
    code, so only its cause has one. Any other exception is a failure, with its traceback.
    """
    error = sendable(error)
    if not isinstance(error, AioQueueError):
        return message_of_failure(error)
    cause = message_of_cause(error.__cause__, pickle.dumps, pickle.loads)
    place = _CLOSING if type(error.__cause__) is SealedFailure else None
    return _OURS + pickle.dumps((PickledByParts(error), cause, place))


def error_of_message(message: bytes, place: str) -> Exception:
    """Return what a call raises.

    Args:
        message: what `message_of_error` or `message_of_failure` has returned.
        place: where the failure happened.
    """
    if message[:1] != _OURS:
        return failure_of_message(message, place)
    error: Exception
    error, cause, place_of_cause = pickle.loads(message[1:])
    if cause is not None:
        error.__cause__ = failure_of_message(cause, place_of_cause or place)
    return error
