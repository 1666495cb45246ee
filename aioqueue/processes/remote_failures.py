"""Failures on their way home from another process, with their traceback there.

What the end of a worker process tells, and whether it gets a successor.
"""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any, Final, Protocol

from aioqueue.errors import AsItIs, describe_exception, set_cause
from aioqueue.processes.program import imports_main

__all__ = (
    "DeadProcess",
    "RemoteTraceback",
    "Succession",
    "failure_of_message",
    "how_it_ended",
    "message_of_failure",
    "why_not_begun",
)


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
            if type(arrived) is type(error) and describe_exception(arrived) == describe_exception(
                error
            ):
                return pickle.dumps((pickled, text))
        except Exception:
            continue
    return pickle.dumps((dumps(RuntimeError(describe_exception(error))), text))


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


MOST_IN_VAIN: Final = 10
"""How many processes in a row may die that nothing has come from."""

_SEE_OUTPUT: Final = ": its error output says more"
_GUARD: Final = (
    ". Processes import the main module of the program: if that starts"
    ' work when it is imported, put that under `if __name__ == "__main__":`'
)


class DeadProcess(Protocol):
    """What is known of a process that has died.

    Attributes:
        is_ready: it has said so.
        has_begun: it had come to its own work when it died.
        was_of_use: something has come from it, or it tells what to blame.
    """

    is_ready: bool
    has_begun: bool
    was_of_use: bool


class Succession:
    """Whether a process that has died is replaced, by what became of those in its place before."""

    def __init__(self) -> None:
        self._in_vain = 0  # in a row

    def why_the_last(self, name: str, life: DeadProcess, exitcode: int) -> str | None:
        """Why there is to be no other, in words; ``None`` if there is.

        One that was killed says nothing about the next one, unless that happens to all of them. One
        that has ended by itself before it was ready would do so again.
        """
        self._in_vain = 0 if life.was_of_use else self._in_vain + 1
        ended = f"worker process {name} {how_it_ended(exitcode)}"
        if exitcode >= 0 and not life.is_ready:
            why = _SEE_OUTPUT if life.has_begun else why_not_begun()
            return f"{ended} while it started{why}"
        if self._in_vain < MOST_IN_VAIN:
            return None
        when = "before it had done anything" if life.is_ready else "while it started"
        return f"{ended} {when}, as did {self._in_vain - 1} before it"


def why_not_begun() -> str:
    """Why a process may have ended by itself before it came to its own work, in words."""
    return _SEE_OUTPUT + (_GUARD if imports_main() else "")


def how_it_ended(exitcode: int) -> str:
    """How a process has ended, in words."""
    if exitcode >= 0:
        return f"has ended with exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
