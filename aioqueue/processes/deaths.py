"""What the end of a worker process tells, and whether it gets a successor."""

from __future__ import annotations

import signal
from typing import Final, Protocol

from aioqueue.processes.program import imports_main

__all__ = ("Life", "Succession", "how_it_ended", "why_not_begun")

MOST_IN_VAIN: Final = 10
"""How many processes in a row may die that nothing has come from."""

_SEE_OUTPUT: Final = ": its error output says more"
_GUARD: Final = (
    ". Processes import the main module of the program: if that starts"
    ' work when it is imported, put that under `if __name__ == "__main__":`'
)


class Life(Protocol):
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

    def why_the_last(self, name: str, life: Life, exitcode: int) -> str | None:
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
