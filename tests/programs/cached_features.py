"""Fit a line to features that take long to make, over several epochs, with a cache.

    python cached_features.py FOLDER [--stop-after FEATURES] [--power N]

The folder keeps the cache. How many features were made in this run is printed, and what was fitted.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from aioqueue.inputs import Pipeline, numbers

EXAMPLES = 2000
MADE: list[int] = []


class Features:
    """Makes the features of an example."""

    def __init__(self, power: int) -> None:
        self.power = power

    def __call__(self, number: int, rng: np.random.Generator) -> dict[str, Any]:
        note(number)
        x = rng.normal(size=1000).astype(np.float32)  # large, so that there are several files
        return {"x": x, "y": np.float32(x[0] ** self.power + number % 2)}


def note(number: int) -> None:
    MADE.append(number)


def pipeline(folder: Path, power: int, rebuild: bool) -> Pipeline[Any]:
    made = numbers(EXAMPLES, shuffle=True, seed=1).prepare(Features(power), workers=2)
    cached = made.cache(folder / "features", on_stale="rebuild" if rebuild else "error")
    return cached.shuffle(100).batch(50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stop-after", type=int, default=None)
    parser.add_argument("--power", type=int, default=1)
    parser.add_argument("--rebuild", action="store_true")
    given = parser.parse_args()
    train = pipeline(given.folder, given.power, given.rebuild)
    seen, total = 0, 0.0
    for epoch in train.epochs(3):
        for batch in epoch:
            seen += len(batch["y"])
            total += float(batch["y"].sum(dtype=np.float64))
            if given.stop_after is not None and seen >= given.stop_after:
                os.kill(os.getpid(), signal.SIGKILL)
    print(f"{seen} seen, total {total:.3f}")
    print(f"{len(MADE)} made")


if __name__ == "__main__":
    main()
