"""Failures on their way home from another process, with their traceback there."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any, Final

from aioqueue.errors import set_cause, told

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


class _AsItIs:
    """Is pickled in the place of an exception, and unpickled as that.

    An exception is unpickled by a call of its class with what it has as ``args``: those that it has
    given to the class above it, and no others. A class whose ``__init__`` takes something else
    cannot be called so; here it is not called.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        error = self._error
        args: Any = error.__reduce__()[1]
        if isinstance(error, ExceptionGroup):
            args = error.message, list(map(_AsItIs, error.exceptions))
        return _remade, (type(error), args, error.__dict__)


def _remade(kind: type[Exception], args: tuple[Any, ...], attributes: dict[str, Any]) -> Exception:
    """An exception without a call of its class: made as that of Python's own which it is one of."""
    error = kind.__new__(kind, *args)
    own = next(one for one in kind.__mro__ if one.__module__ == "builtins")
    own.__init__(error, *args)  # type: ignore[misc]
    error.__dict__.update(attributes)
    return error


def message_of_failure(
    error: Exception,
    dumps: Callable[[Any], bytes] = pickle.dumps,
    loads: Callable[[bytes], Any] = pickle.loads,
) -> bytes:
    """A failure as it is sent; one that cannot be pickled is told in words."""
    text = "".join(traceback.format_exception(error))
    for sent in (error, _AsItIs(error)):
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
