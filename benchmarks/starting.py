"""Row 40: worker processes of a program whose main module imports much, in short runs.

``python -m benchmarks.starting PEER RUNS COUNT`` is such a program: it makes so many examples
that often, one run after the other, and prints the seconds of each as JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from aioqueue.inputs import numbers
from benchmarks.harness import Comparison, Mode, Row, installed
from benchmarks.pipelines import MakeInPython

if __name__ in ("__main__", "__mp_main__"):  # what makes such a program heavy: 2 to 4 s of imports
    import cv2  # noqa: F401
    import torch

__all__ = ("measure",)

BATCH = 32
WORKERS = 2
COUNT = 1_500
ROUNDS = 5
RUNS = 4
"""Of one program: the first one starts all there is, the others should not."""


def by_aioqueue(count: int) -> int:
    pipeline = numbers(count).prepare(MakeInPython(), where="process", workers=WORKERS)
    return sum(len(numbers) for _, numbers in pipeline.batch(BATCH))


class Examples:
    """A map-style dataset."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.make = MakeInPython()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return self.make(i)


def by_torch(count: int) -> int:
    dataset: Any = Examples(count)
    loader = torch.utils.data.DataLoader(
        dataset, BATCH, num_workers=WORKERS, multiprocessing_context="fork"
    )
    return sum(len(numbers) for _, numbers in loader)


PEERS: dict[str, Callable[[int], int]] = {"aioqueue": by_aioqueue, "torch": by_torch}


def main(peer: str, runs: int, count: int) -> None:
    """Be the program."""
    seconds = []
    for _ in range(runs):
        began = perf_counter()
        assert PEERS[peer](count) == count
        seconds.append(perf_counter() - began)
    print(json.dumps(seconds))


def run_apart(peer: str, runs: int, count: int) -> list[float]:
    """The seconds of the runs of one program."""
    command = [sys.executable, "-m", "benchmarks.starting", peer, str(runs), str(count)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds: list[float] = json.loads(output.splitlines()[-1])
    return seconds


def measure(mode: Mode) -> Iterator[Comparison]:
    """The first run of a program, and the median of its later ones."""
    if not (installed("torch") and installed("cv2")):
        return
    count = mode.scaled(COUNT)
    found: dict[str, list[list[float]]] = {peer: [] for peer in PEERS}
    for _ in range(1 if mode.quick else ROUNDS):
        for peer, runs in found.items():
            runs.append(run_apart(peer, RUNS, count))
    sides: dict[str, tuple[float, Callable[[list[float]], float]]] = {
        "first run of a program": (0.5, lambda runs: runs[0]),
        "later runs": (1.2, lambda runs: statistics.median(runs[1:])),
    }
    for title, (target, of) in sides.items():
        seconds = {peer: [of(runs) for runs in many] for peer, many in found.items()}
        yield Comparison(
            Row("40", f"pycpu, {COUNT:,} examples, heavy main module: {title}", "torch", target),
            [b / a for a, b in zip(seconds["aioqueue"], seconds["torch"], strict=True)],
            {
                peer: f"{count / statistics.median(values):,.0f} examples/s"
                for peer, values in seconds.items()
            },
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
