"""Comparing programs in a process that is given up when a library does not come back."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from proofs.oracle.comparing import Difference, Verdict, compare, shrunk
from proofs.oracle.libraries import ours, theirs
from proofs.oracle.program import Program

__all__ = ("LIMIT", "Watched")

LIMIT = 60.0
"""Seconds that one library may take for a program: many times what a run that waits is given."""
START = 300.0
"""Seconds that a process may take to import TensorFlow on a machine that is busy."""

Work = Callable[[Connection, str], None]


class Watched:
    """What `comparing` does, done in a process of its own; a context manager.

    A library that hangs or crashes takes that process with it and nothing else: the program is
    reported as lost, and the next one gets a new process.

    Args:
        limit: seconds that one library may take for one program.
        work: what the process does, given its end of a pipe and a folder for temporary files.
    """

    def __init__(self, limit: float = LIMIT, work: Work | None = None) -> None:
        self._limit = limit
        self._work = work or _work
        self._worker: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="oracle-")

    def __enter__(self) -> Watched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._give_up()
        self._folder.cleanup()

    def compare(self, program: Program) -> Verdict:
        """The verdict on a program, in which `lost` is set if a library did not come back."""
        answer = self._ask("compare", program)
        return Verdict(lost=answer) if isinstance(answer, str) else answer

    def shrunk(self, difference: Difference) -> Difference:
        """The difference with fewer lines; as it is, if making it shorter makes a library hang."""
        answer = self._ask("shrunk", difference)
        return difference if isinstance(answer, str) else answer

    def _ask(self, what: str, about: Any) -> Any:
        """The worker's answer; if there is none, what became of whom."""
        playing = "the start"
        limit = self._limit if self._pipe is not None else START
        pipe = self._pipe or self._start()
        pipe.send((what, about))
        try:
            while pipe.poll(limit):
                answer = pipe.recv()
                if not isinstance(answer, str):
                    return answer
                playing, limit = answer, self._limit
            became = f"{playing} hangs"
        except (EOFError, ConnectionError):
            became = f"{playing} crashes"
        self._give_up()
        return became

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._pipe, end = context.Pipe()
        self._worker = context.Process(
            target=self._work, args=(end, self._folder.name), daemon=True
        )
        self._worker.start()
        end.close()
        return self._pipe

    def _give_up(self) -> None:
        if self._worker is not None and self._pipe is not None:
            self._worker.kill()
            self._worker.join()
            self._pipe.close()
        self._worker = self._pipe = None


def _work(pipe: Connection, folder: str) -> None:
    """Answer until the other end is gone, telling which library plays before it does."""
    tempfile.tempdir = folder
    theirs(), ours()
    tasks: dict[str, Any] = {"compare": compare, "shrunk": shrunk}
    try:
        while True:
            what, about = pipe.recv()
            pipe.send(tasks[what](about, pipe.send))
    except (EOFError, BrokenPipeError):
        return
