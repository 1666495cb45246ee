"""Playing a program on both libraries, telling what differs, and making it short."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from proofs.oracle.kinder import agree, allowed
from proofs.oracle.libraries import ours, theirs
from proofs.oracle.outcomes import Outcome
from proofs.oracle.program import Program
from proofs.oracle.stage import GUARD, Compiled, Sight, play

__all__ = ("Difference", "Verdict", "compare", "shrunk")

AGAIN = 2
"""How often a difference must show again: machines that are busy are late."""

HASTE = 400
"""Milliseconds after which a run is cut short while a program is made shorter."""


@dataclass(frozen=True)
class Difference:
    """Where the two libraries did not do the same.

    Attributes:
        program: what was played.
        line: which line was played when it showed; one more than there are: at the end.
        theirs: what TensorFlow did then.
        ours: what we did.
    """

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
    """What came of comparing a program.

    Attributes:
        difference: the first one, if there is any.
        kinder: the name of what we did better on purpose, if they parted there.
        unsteady: one that showed, and then did not show again.
        lost: which library did not come back, and what became of it, if one did not.
    """

    difference: Difference | None = None
    kinder: str | None = None
    unsteady: Difference | None = None
    lost: str | None = None


Notify = Callable[[str], None]
"""Is told which library is about to play."""


def compare(program: Program, notify: Notify = lambda library: None) -> Verdict:
    """Play a program on both libraries.

    Args:
        program: to be played; several times if a difference shows.
        notify: called with the name of the library that runs next.
    """
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
    """The same difference, or one like it, with as few lines as possible.

    Args:
        difference: found by `compare`.
        notify: called with the name of the library that runs next.
    """
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
