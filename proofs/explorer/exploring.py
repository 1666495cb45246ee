"""Through all states that a world can reach, breadth first."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from proofs.explorer.model import Setting
from proofs.explorer.stand_ins import ViolationError
from proofs.explorer.world import Event, Saved, World

Path = tuple[Any, ...]
"""The path before its last event, and that event: so paths share what they have in common."""


@dataclass
class Result:
    """How much was explored."""

    states: int = 1
    transitions: int = 0
    depth: int = 0
    finished: bool = True
    kinds: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.states} states, {self.transitions} transitions, depth {self.depth}" + (
            "" if self.finished else ", NOT finished"
        )


def explore(setting: Setting, *, deadline: float | None = None, progress: bool = False) -> Result:
    """Visit every state that a world can reach.

    Args:
        setting: the world.
        deadline: when to give up, on `time.monotonic`'s clock; then the result is not ``finished``.
        progress: print each depth as it is done.

    Raises:
        ViolationError: the machine and the rules disagree, or the machine raised something.
    """
    world = World(setting)
    kinds = (
        *(
            "begin",
            "enter_standby",
            "retry",
            "start",
            "resume",
            "withdraw",
            "expire",
            "close",
            "resize",
        ),
        *("task_done", "fail"),
    )
    result = Result(kinds=dict.fromkeys(kinds, 0))
    visited = {world.digest()}
    frontier: list[tuple[Saved, Path]] = [(world.save(), ())]
    while frontier:
        deeper: list[tuple[Saved, Path]] = []
        frontier.reverse()
        while frontier:
            saved, path = frontier.pop()
            world.restore(saved)
            if deadline is not None and time.monotonic() > deadline:
                result.finished = False
                return result
            for event in list(world.events()):
                world.restore(saved)
                try:
                    world.apply(event)
                except Exception as error:
                    raise ViolationError(
                        f"{error}\n{setting}\n{_formatted((path, event))}"
                    ) from error
                result.transitions += 1
                result.kinds[event[0]] += 1
                digest = world.digest()
                if digest not in visited:
                    visited.add(digest)
                    deeper.append((world.save(), (path, event)))
        result.states = len(visited)
        if deeper:
            result.depth += 1
            if progress:
                print(f"  depth {result.depth}: {result.states} states", flush=True)
        frontier = deeper
    return result


def _formatted(path: Path) -> str:
    events: list[Event] = []
    while path:
        path, event = path
        events.append(event)
    return "\n".join(map(str, reversed(events)))
