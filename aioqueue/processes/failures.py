"""Failures as messages: pickled, with the traceback that they had in their process."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from typing import Any, Final

from aioqueue.base.tracebacks import shorten, text_of
from aioqueue.errors import SENT_AS, OutOfRangeError, PickledByParts, describe_exception, set_cause
from aioqueue.processes.fork_server.bootstrap import is_daemonic, refused_children

_PLACE: Final = "in a worker process"


class RemoteTraceback(Exception):  # noqa: N818  # it is a cause, and never raised
    """The cause of a failure from another process. It shows the traceback in that process.

    Args:
        text: the traceback.
        place: where the failure happened.
    """

    def __init__(self, text: str, place: str = _PLACE) -> None:
        super().__init__(text, place)
        self.text = text
        self.place = place

    def __str__(self) -> str:
        return f'{self.place}:\n"""\n{self.text}"""'


def name_for_sending(error: BaseException, name: str | None = None) -> str:
    """Return the name under which a failure is sent (`sent_as`); the first call chooses it."""
    chosen: str = error.__dict__.setdefault(SENT_AS, name or uuid.uuid4().hex)
    return chosen


def message_of_failure(
    error: Exception,
    dumps: Callable[[Any], bytes] = pickle.dumps,
    loads: Callable[[bytes], Any] = pickle.loads,
) -> bytes:
    """Pickle a failure. One that cannot be pickled becomes a `RuntimeError` with its text."""
    name = name_for_sending(error)
    error = _by_name(error)
    shorten(error)
    text = text_of(error)
    for sent in (error, PickledByParts(error)):
        try:
            pickled = dumps(sent)
            # Many can be pickled but not unpickled, or change on the way: try it.
            arrived = loads(pickled)
            if type(arrived) is type(error) and describe_exception(arrived) == describe_exception(
                error
            ):
                break
        except Exception:
            continue
    else:
        pickled = dumps(RuntimeError(describe_exception(error)))
    return pickle.dumps((pickled, text, name, _name_behind(error)))


def _name_behind(error: BaseException) -> str | None:
    """Return the name of the failure behind the end of a queue, through a chain of such ends.

    An exception arrives without its causes, but a coordinator has to know that this end is only a
    consequence: otherwise it would report the failure twice.
    """
    if not isinstance(error, OutOfRangeError):
        return None
    cause = error.__cause__
    while isinstance(cause, OutOfRangeError) and cause.__cause__ is not None:
        cause = cause.__cause__
    return None if cause is None or isinstance(cause, OutOfRangeError) else name_for_sending(cause)


_MULTIPROCESSING: Final = "daemonic processes are not allowed to have children"
"""The text of the `AssertionError` with which multiprocessing refuses to start a process."""


def _by_name(error: Exception) -> Exception:
    """Return a failure; multiprocessing's refusal is replaced by one that says what to do."""
    if type(error) is not AssertionError or str(error) != _MULTIPROCESSING or not is_daemonic():
        return error
    refusal = RuntimeError(refused_children("multiprocessing"))
    refusal.__cause__ = error
    return refusal


def failure_of_message(
    message: bytes, place: str = _PLACE, loads: Callable[[bytes], Any] = pickle.loads
) -> Exception:
    """Unpickle a failure that a worker has reported; its cause shows the traceback there."""
    pickled, text, name, name_behind = pickle.loads(message)
    error: Exception
    try:
        error = loads(pickled)
        if not isinstance(error, Exception):
            raise TypeError(f"{error!r} is no exception")
    except Exception as unpickling:  # its class exists only in the worker, for example
        error = RuntimeError(f"a failure that cannot be unpickled here: {unpickling}")
    name_for_sending(error, name)
    traceback = RemoteTraceback(text, place)
    if name_behind is not None:
        name_for_sending(traceback, name_behind)  # it stands for the causes, which stay there
    set_cause(error, traceback)
    return error
