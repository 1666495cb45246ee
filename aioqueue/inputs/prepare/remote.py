"""Failures on their way home from another process, with their traceback there."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from aioqueue.coordination.outcomes import set_cause, told

__all__ = ("RemoteFailure", "RemoteTraceback", "failure_at_home", "remote_failure")


class RemoteTraceback(Exception):  # noqa: N818  # it is no failure of its own
    """Stands as the cause of a failure that happened in another process, to show where.

    Args:
        text: the traceback.
        place: where it happened.
    """

    def __init__(self, text: str, place: str = "in a worker process") -> None:
        super().__init__(text, place)
        self.text = text
        self.place = place

    def __str__(self) -> str:
        return f'{self.place}:\n"""\n{self.text}"""'


class RemoteFailure(NamedTuple):
    """A failure as it is sent."""

    pickled: bytes
    text: str
    """Its traceback."""


def remote_failure(
    error: Exception,
    dumps: Callable[[Any], bytes] = pickle.dumps,
    loads: Callable[[bytes], Any] = pickle.loads,
) -> RemoteFailure:
    """Pack a failure where it has happened; what cannot be pickled becomes a `RuntimeError`."""
    text = "".join(traceback.format_exception(error))
    try:
        pickled = dumps(error)
        loads(pickled)  # many exceptions can be pickled, and not be unpickled
    except Exception:
        pickled = dumps(RuntimeError(told(error)))
    return RemoteFailure(pickled, text)


def failure_at_home(
    failure: RemoteFailure,
    place: str = "in a worker process",
    loads: Callable[[bytes], Any] = pickle.loads,
) -> Exception:
    """The failure, with its traceback there as the cause."""
    error: Exception
    try:
        error = loads(failure.pickled)
        if not isinstance(error, Exception):
            raise TypeError(f"{error!r} is no exception")
    except Exception as unpickling:  # its class exists only there
        error = RuntimeError(f"a failure that cannot be unpickled here: {unpickling}")
    set_cause(error, RemoteTraceback(failure.text, place))
    return error
