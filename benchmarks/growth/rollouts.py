"""Rollouts: what a group costs in the machine, however many there were, and however many exist."""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

from benchmarks.growth.rows import Run, count, instructions

_GROUP = 4


def train_groups(
    groups: int, *, batch_size: int, steps_ahead: float, stuck: int = -1, **options: Any
) -> Any:
    """Take groups through a machine, with a trainer that publishes each step; return the machine.

    Args:
        groups: how many.
        batch_size: of the machine.
        steps_ahead: of the machine.
        stuck: the ordinal of a prompt whose rollouts never end.
        options: further ones of the machine.
    """
    from aioqueue.rl.machine import RolloutMachine

    machine = RolloutMachine(batch_size=batch_size, steps_ahead=steps_ahead, **options)
    pending: deque[Any] = deque([machine.begin(), machine.take()])
    while pending:
        effects = pending.popleft()
        if effects.pull is not None:
            if effects.pull < groups:
                pending.append(machine.prompt(effects.pull, _GROUP)[1])
            else:
                pending.append(machine.source_end())
        for call in effects.starts:
            machine.enter(call)
            if call.group.ordinal != stuck:
                pending.append(machine.finished(call))
        for group in effects.judge:
            pending.append(machine.judged(group))
        if effects.step is not None:
            pending += [machine.pause(), machine.resume(machine.step), machine.take()]
    return machine


def _history(**options: Any) -> Any:
    def make(n: int) -> Run:
        return lambda: train_groups(n, batch_size=8, steps_ahead=1, **options)

    return make


def _existing(**options: Any) -> Any:
    """As many groups as slots, and three times as many in all."""

    def make(n: int) -> Run:
        return lambda: train_groups(3 * n, batch_size=8, steps_ahead=n // 8 - 1, **options)

    return make


def _size(n: int) -> float:
    """How large the machine is, with a prompt that all others overtake."""
    machine = train_groups(n, batch_size=8, steps_ahead=1, order="ready", stuck=3)
    return float(len(pickle.dumps(machine)))


_ORDERS: dict[str, dict[str, Any]] = {
    "the order of prompts": {},
    "a strict order": {"order": "strict"},
    "waits for old groups": {"order": "ready", "on_stale": "wait", "max_staleness": 200},
    "drops old groups": {"on_stale": "drop", "max_staleness": 200},
}
for _title, _options in _ORDERS.items():
    instructions(
        f"a group of rollouts, of so many, {_title}", (200, 600, 1800), _history(**_options)
    )
    instructions(
        f"a group of rollouts, while so many exist, {_title}",
        (64, 256, 1024),
        _existing(**_options),
        growth=1.3,
    )
count(
    "a group of rollouts that was trained, in what the machine keeps",
    "bytes",
    (1_000, 8_000, 64_000),
    _size,
    growth=0.1,
)
