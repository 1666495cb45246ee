"""Failures on their way between processes, and the causes of closed queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioqueue.errors import OutOfRangeError, QueueClosedError, describe_exception
from aioqueue.processes.failures import RemoteTraceback, failure_of_message, message_of_failure


def sendable(error: BaseException) -> Exception:
    """Return what another process gets for a failure: a Ctrl-C here is not a Ctrl-C there."""
    if isinstance(error, Exception):
        return error
    sent = RuntimeError(describe_exception(error))
    sent.__cause__ = error
    return sent


def message_of_cause(
    cause: BaseException | None,
    dumps: Callable[[Any], bytes],
    loads: Callable[[bytes], Any],
) -> bytes | None:
    """Return the failure that closes a queue, in the form that is sent."""
    return None if cause is None else message_of_failure(sendable(cause), dumps, loads)


def set_closing_cause(
    error: BaseException, cause: bytes | None, loads: Callable[[bytes], Any]
) -> None:
    """Give an error of a closed queue the failure that closed it, with its remote traceback."""
    if cause is not None and isinstance(error, OutOfRangeError | QueueClosedError):
        error.__cause__ = failure_of_message(cause, "where the queue was closed", loads)


def has_frames(cause: BaseException | None) -> bool:
    """Return whether the cause of a failure from elsewhere shows where it was raised."""
    return not isinstance(cause, RemoteTraceback) or '  File "' in cause.text
