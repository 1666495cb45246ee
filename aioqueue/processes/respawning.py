"""What deaths of processes mean: when one is replaced, and when an item is given up."""

from __future__ import annotations

import signal
from typing import Final, Protocol

from aioqueue.processes.fork_server.bootstrap import imports_main

MOST_USELESS: Final = 10
"""How many processes in a row may die without having done anything."""

MOST_DEATHS: Final = 3
"""An item fails if this many processes have died while they prepared it: it kills them."""

_SEE_OUTPUT: Final = ": its error output says more"
_GUARD: Final = (
    ". Processes import the main module of the program: if that starts"
    ' work when it is imported, put that under `if __name__ == "__main__":`'
)


class DeadProcess(Protocol):
    """A process that has died.

    Attributes:
        is_ready: it had reported that it was ready.
        has_begun: it had begun its own work.
        was_of_use: it has sent something, or its death has a known cause.
    """

    is_ready: bool
    has_begun: bool
    was_of_use: bool


class RespawnPolicy:
    """Decides whether a process that has died is replaced, from how its predecessors ended."""

    def __init__(self) -> None:
        self._useless = 0  # processes in a row that did nothing

    def why_not_replaced(self, name: str, process: DeadProcess, exitcode: int) -> str | None:
        """Return the reason not to start another process, in words; ``None`` to start one.

        A process that was killed says nothing about the next one, unless all of them are killed.
        One that ended by itself before it was ready would do so again.
        """
        self._useless = 0 if process.was_of_use else self._useless + 1
        ended = f"worker process {name} {how_it_ended(exitcode)}"
        if exitcode >= 0 and not process.is_ready:
            why = _SEE_OUTPUT if process.has_begun else why_not_begun()
            return f"{ended} while it started{why}"
        if self._useless < MOST_USELESS:
            return None
        when = "before it had done anything" if process.is_ready else "while it started"
        return f"{ended} {when}, as did {self._useless - 1} before it"


def why_not_begun() -> str:
    """Say why a process may have ended by itself before it began its own work."""
    return _SEE_OUTPUT + (_GUARD if imports_main() else "")


def how_it_ended(exitcode: int) -> str:
    if exitcode >= 0:
        return f"has ended with exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
