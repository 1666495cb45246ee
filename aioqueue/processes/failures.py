"""Failures on their way home from another process, with their traceback there."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any, Final

from aioqueue.errors import AsItIs, set_cause, told

__all__ = ("RemoteTraceback", "failure_of_message", "message_of_failure")

_PLACE: Final = "in a worker process"


class RemoteTraceback(Exception):  # noqa: N818  # it is no failure of its own
    """Stands as the cause of a failure that happened in another process, to show where.

    Args:
        text: the traceback.
        place: where it happened.
    """

    def __init__(self, text: str, place: str = _PLACE) -> None:
        super().__init__(text, place)
        self.text = text
        self.place = place

    def __str__(self) -> str:
        return f'{self.place}:\n"""\n{self.text}"""'


def message_of_failure(
    error: Exception,
    dumps: Callable[[Any], bytes] = pickle.dumps,
    loads: Callable[[bytes], Any] = pickle.loads,
) -> bytes:
    """A failure as it is sent; one that cannot be pickled is told in words."""
    text = "".join(traceback.format_exception(error))
    for sent in (error, AsItIs(error)):
        try:
            pickled = dumps(sent)
            # Many can be pickled and not be unpickled, or become another one by that.
            arrived = loads(pickled)
            if type(arrived) is type(error) and told(arrived) == told(error):
                return pickle.dumps((pickled, text))
        except Exception:
            continue
    return pickle.dumps((dumps(RuntimeError(told(error))), text))


def failure_of_message(
    message: bytes, place: str = _PLACE, loads: Callable[[bytes], Any] = pickle.loads
) -> Exception:
    """The failure that a worker has reported, with its traceback there as the cause."""
    pickled, text = pickle.loads(message)
    error: Exception
    try:
        error = loads(pickled)
        if not isinstance(error, Exception):
            raise TypeError(f"{error!r} is no exception")
    except Exception as unpickling:  # its class exists only there
        error = RuntimeError(f"a failure that cannot be unpickled here: {unpickling}")
    set_cause(error, RemoteTraceback(text, place))
    return error
