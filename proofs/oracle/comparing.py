"""Playing a program on both libraries, telling what differs, and making it short."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from proofs.oracle.kinder import agree, allowed
from proofs.oracle.libraries import ours, theirs
from proofs.oracle.program import Program
from proofs.oracle.stage import GUARD, Compiled, Outcome, Sight, play

AGAIN = 2
"""How often a difference must show again: machines that are busy are late."""

HASTE = 400
"""Milliseconds after which a run is cut short while a program is made shorter."""


@dataclass(frozen=True)
class Difference:
    """Where the two libraries did not do the same."""

    program: Program
    line: int
    theirs: list[Sight]
    ours: list[Sight]

    def __str__(self) -> str:
        return f"{self.program.script()}\n{self.summary()}"

    def summary(self) -> str:
        """Where they differ, and how, as comments of the script."""
        lines = self.program.lines
        where = f"line {self.line}: {lines[self.line]}" if self.line < len(lines) else "the end"
        return (
            f"# They differ at {where}\n"
            f"#   TensorFlow: {_shown(self.theirs, self.line)}\n"
            f"#   aioqueue:   {_shown(self.ours, self.line)}\n"
        )


@dataclass(frozen=True)
class Verdict:
    """What came of comparing a program."""

    difference: Difference | None = None
    kinder: str | None = None
    unsteady: Difference | None = None
    lost: str | None = None


Notify = Callable[[str], None]
"""Is told which library is about to play."""


def compare(program: Program, notify: Notify = lambda library: None) -> Verdict:
    """Play a program on both libraries."""
    verdict = _once(program, notify)
    for _ in range(AGAIN):
        if verdict.difference is None:
            break
        again = _once(program, notify)
        if again.difference is None:
            return replace(again, unsteady=verdict.difference)
        verdict = again
    return verdict


def shrunk(difference: Difference, notify: Notify = lambda library: None) -> Difference:
    """The same difference, or one like it, with as few lines as possible."""
    lines = difference.program.lines[: difference.line + 1]
    difference = replace(difference, program=replace(difference.program, lines=lines))
    size = max(1, len(lines) // 2)
    while True:
        at = 0
        while at < len(lines):
            fewer = lines[:at] + lines[at + size :]
            found = _once(replace(difference.program, lines=fewer), notify, HASTE).difference
            if found is not None and _alike(found, difference):
                lines, difference = fewer, found
            else:
                at += size
        if size == 1:
            return difference
        size //= 2


def _once(program: Program, notify: Notify, guard: int = GUARD) -> Verdict:
    lines = [Compiled(line) for line in program.lines]
    seen = []
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "files"  # the same for both: its name is in what readers return
        for name, library in (("TensorFlow", theirs()), ("aioqueue", ours())):
            notify(name)
            folder.mkdir()
            seen.append(play(library, lines, str(folder), guard))
            shutil.rmtree(folder)
    for number, (expected, got) in enumerate(zip(*seen, strict=True)):
        if len(expected) == len(got) and all(map(agree, expected, got)):
            continue
        kinder = allowed(program.lines, number, *seen)
        if kinder is not None:
            return Verdict(kinder=kinder)
        return Verdict(Difference(program, number, expected, got))
    return Verdict()


def _alike(one: Difference, other: Difference) -> bool:
    """Whether two differences are of the same kind, so that one stands for the other."""
    return _gist(one.theirs) == _gist(other.theirs) and _gist(one.ours) == _gist(other.ours)


def _gist(seen: list[Sight]) -> list[Outcome]:
    return [outcome[:3] if outcome[0] == "raises" else outcome[:1] for _, outcome in seen]


def _shown(seen: list[Sight], line: int) -> str:
    parts = [
        f"{outcome}" if number == line else f"line {number} ends: {outcome}"
        for number, outcome in seen
    ]
    return "; ".join(parts) or "nothing is seen: it blocks"


LIMIT = 60.0
"""Seconds that one library may take for a program: many times what a run that waits is given."""

START = 300.0
"""Seconds that a process may take to import TensorFlow on a machine that is busy."""

Work = Callable[[Connection, str], None]


class Watched:
    """What `comparing` does, done in a process of its own; a context manager.

    A library that hangs or crashes takes that process with it and nothing else: the program is
    reported as lost, and the next one gets a new process.
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
