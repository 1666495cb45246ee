"""Failures on their way from a worker process to its program."""

from __future__ import annotations

import pickle
import traceback

from aioqueue.errors import set_cause, told

__all__ = ("RemoteTraceback", "failure_of_message", "message_of_failure")


class RemoteTraceback(Exception):  # noqa: N818  # it is no failure of its own
    """Stands as the cause of a failure that happened in a worker process, to show where."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'in a worker process:\n"""\n{self.text}"""'


def message_of_failure(error: Exception) -> bytes:
    """A failure as it is sent; one that cannot be pickled is told in words."""
    text = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # many exceptions can be pickled, and not be unpickled
    except Exception:
        pickled = pickle.dumps(RuntimeError(told(error)))
    return pickle.dumps((pickled, text))


def failure_of_message(message: bytes) -> Exception:
    """The failure that a worker has reported, with its traceback there as the cause."""
    pickled, text = pickle.loads(message)
    error: Exception
    try:
        error = pickle.loads(pickled)
        if not isinstance(error, Exception):
            raise TypeError(f"{error!r} is no exception")
    except Exception as unpickling:  # its class exists only there
        error = RuntimeError(f"a failure that cannot be unpickled here: {unpickling}")
    set_cause(error, RemoteTraceback(text))
    return error
