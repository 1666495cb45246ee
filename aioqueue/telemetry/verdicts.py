"""What the numbers say: which part limits the run, and what would help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ("Advice", "Cause", "Verdict")

Cause = Literal["step", "stage", "source", "unknown", "nothing"]
"""What limits: the training step (data are ahead), a stage, the source of the first stage,
something that is not measured; or nothing has moved yet that could be judged."""

Advice = Literal[
    "none",
    "fewer workers",
    "more workers",
    "more cores",
    "processes",
    "wider limit",
    "faster source",
    "slow item",
    "prefetch",
    "faster function",
    "wider limit_bytes",
    "less locking",
    "wider at_most",
]
"""What would help."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a run, over a window of time; `str` gives the sentence.

    Attributes:
        sentence: in the user's words.
        cause: what limits.
        stage: name of the limiting stage, or of the function between stages (a ``collate``, say);
            `None` if none limits.
        advice: what would help.
        workers: how many workers more (or fewer) it would take; 0 if that does not help.
        starved: share of the window that the training step waited for data, from 0 to 1.
        rate: batches (or elements, where no loop is watched) handed over per second.
        seconds: length of the window.
    """

    sentence: str
    cause: Cause
    stage: str | None
    advice: Advice
    workers: int
    starved: float
    rate: float
    seconds: float

    def __str__(self) -> str:
        return self.sentence
