"""Through all states that a world can reach, breadth first."""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import dataclass
from typing import Any

from proofs.rollouts.process_world import ProcessWorld
from proofs.rollouts.world import INTERRUPTIONS, Setting, ViolationError, World


@dataclass(frozen=True)
class Result:
    """How much was explored; ``violation`` is empty if every guarantee holds."""

    states: int
    violation: str = ""


def explore(
    setting: Setting, *, max_states: int = 2_000_000, kind: type[World] | None = None
) -> Result:
    """Visit every state that a world can reach, and check that no run goes round in a circle.

    Args:
        setting: the configuration.
        max_states: after how many states to give up.
        kind: the class of the world; ``None`` for that of the configuration.
    """
    if kind is None:
        kind = ProcessWorld if setting.in_process else World
    try:
        world = kind(setting)
    except (ViolationError, AssertionError, LookupError, RuntimeError) as error:
        return Result(0, f"{type(error).__name__}: {error}")
    start = world.key()
    numbers: dict[Any, int] = {start: 0}
    came_by: list[tuple[int, Any]] = [(0, None)]
    successors: list[list[int]] = []
    pending = deque([pickle.dumps(world, -1)])

    def path(number: int) -> list[Any]:
        events = []
        while number:
            number, event = came_by[number]
            events.append(event)
        return events[::-1]

    while pending:
        saved = pending.popleft()
        number = len(successors)
        successors.append([])
        world = _load(saved)
        events = world.events()
        try:
            if world.needs_nothing():
                world.check_end()
            elif all(event[0] in INTERRUPTIONS for event in events) and not world.is_ended:
                raise ViolationError(f"stuck: the trainer is {world.trainer}")
        except ViolationError as error:
            return Result(len(numbers), f"{error}, after {path(number)}")
        for event in events:
            world = _load(saved)
            try:
                world.happen(event)
            except (ViolationError, AssertionError, LookupError, RuntimeError) as error:
                reason = f"{type(error).__name__}: {error}, after {[*path(number), event]}"
                return Result(len(numbers), reason)
            key = world.key()
            successor = numbers.get(key)
            if successor is None:
                if len(numbers) >= max_states:
                    return Result(len(numbers), "too many states")
                successor = numbers[key] = len(numbers)
                came_by.append((number, event))
                pending.append(pickle.dumps(world, -1))
            if event[0] != "untake":  # a trainer that asks again and again needs no end
                successors[number].append(successor)
    circle = _states_in_circles(successors)
    if circle:
        return Result(len(numbers), f"a circle of {len(circle)} states, after {path(circle[0])}")
    return Result(len(numbers))


def _load(saved: bytes) -> World:
    world: World = pickle.loads(saved)
    return world


def _states_in_circles(successors: list[list[int]]) -> list[int]:
    """The states that are left when those without a predecessor are removed, again and again."""
    incoming = [0] * len(successors)
    for targets in successors:
        for target in targets:
            incoming[target] += 1
    pending = [number for number, count in enumerate(incoming) if not count]
    while pending:
        for target in successors[pending.pop()]:
            incoming[target] -= 1
            if not incoming[target]:
                pending.append(target)
    return [number for number, count in enumerate(incoming) if count]
