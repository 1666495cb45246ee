"""What limits a run that generates rollouts and trains on them: the generation, or the trainer."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from aioqueue.base.display_text import share
from aioqueue.errors import counted

Limit: TypeAlias = Literal["generation", "trainer", "gate"]

_IDLE: Final = 0.05
"""Below this share of the time, a wait is no bottleneck."""


def limit_of(trainer: float, slots: float, gate: float) -> Limit:
    """Return what limits the run.

    Args:
        trainer: the share of the time for which trainers waited for steps.
        slots: that in which nothing was generated, for want of slots.
        gate: that in which nothing was generated, since weights were published.
    """
    if gate >= _IDLE and gate > slots and gate >= trainer / 2:
        return "gate"
    return "trainer" if trainer < _IDLE else "generation"


def limit_sentence(
    limit: Limit, *, trainer: float, gate: float, ready: int, existing: int, missing: str
) -> str:
    """Return what limits the run in words.

    Args:
        limit: what `limit_of` has returned.
        trainer: the share of the time for which trainers waited for steps.
        gate: that in which nothing was generated, since weights were published.
        ready: how many groups are ready.
        existing: how many groups exist.
        missing: what a waiting trainer lacks; may be empty.
    """
    if limit == "gate":
        return (
            f"the gate is the bottleneck: nothing is generated for {share(gate)} of the time, since"
            " weights are published"
        )
    if limit == "trainer":
        return (
            "the trainer is the bottleneck: it waits for"
            f" {share(trainer)} of its time, and {ready} of {counted(existing, 'group')} are ready"
        )
    text = f"generation is the bottleneck: the trainer waits for {share(trainer)} of its time"
    return f"{text}; {missing}" if missing else text
