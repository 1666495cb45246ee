"""Write a pipeline into a folder, and be killed after some milliseconds:

    python -m tests.inputs.sinks.killed FORMAT FOLDER MILLISECONDS

With 0 nothing kills it. `test_kills` starts this program again and again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from aioqueue.inputs import (
    Pipeline,
    Sink,
    numbers,
    to_json_lines,
    to_parquet,
    to_tar,
    to_tfrecord,
)

ROWS: Final = 3000


def example(number: int, rng: np.random.Generator) -> dict[str, Any]:
    return {"number": number, "draws": rng.integers(0, 100, 4)}


def row(example: dict[str, Any]) -> dict[str, Any]:
    return {"number": int(example["number"]), "draws": example["draws"].tolist()}


def sample(example: dict[str, Any]) -> dict[str, Any]:
    return {"cls": int(example["number"]), "npy": example["draws"]}


def record(example: dict[str, Any]) -> bytes:
    return str(row(example)).encode()


def examples() -> Pipeline[dict[str, Any]]:
    shuffled = numbers(ROWS, shuffle=True, seed=5).prepare(example, workers=2)
    return shuffled.filter(lambda one: one["number"] % 7 != 0).shuffle(50)


FORMATS: Final[Mapping[str, tuple[Callable[[], Pipeline[Any]], Callable[[str], Sink]]]] = {
    "lines": (
        lambda: examples().prepare(row),
        lambda folder: to_json_lines(folder, rows_per_file=230, compression="gzip"),
    ),
    "parquet": (
        lambda: examples().batch(100),
        lambda folder: to_parquet(folder, rows_per_file=230),
    ),
    "tar": (
        lambda: examples().prepare(sample),
        lambda folder: to_tar(folder, rows_per_file=230),
    ),
    "tfrecord": (
        lambda: examples().prepare(record),
        lambda folder: to_tfrecord(folder, rows_per_file=230),
    ),
}


def main() -> None:
    name, folder, milliseconds = sys.argv[1:]
    pipeline, sink = FORMATS[name]
    if float(milliseconds):
        signal.setitimer(signal.ITIMER_REAL, float(milliseconds) / 1000)  # SIGALRM ends it
    if name == "lines":
        done = asyncio.run(pipeline().awrite(sink(folder)))
    else:
        done = pipeline().write(sink(folder))
    print(done.rows, done.resumed)


if __name__ == "__main__":
    main()
