"""Write a pipeline into a folder, in processes that are killed after some milliseconds each:

    python -m tests.kit.killed FORMAT FOLDER MILLISECONDS...

The processes are forks, so what the program imports is imported once. Each begins when the former
one has ended. The first one that nothing kills is the last; 0 kills none. A line is printed for
each: the rows that it has written and found, or the signal that ended it and the parts so far.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from aioqueue.inputs import Pipeline, Sink, numbers, to_json_lines, to_parquet, to_tar, to_tfrecord

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


def write(name: str, folder: str, milliseconds: float) -> None:
    """Write all rows, or be killed."""
    pipeline, sink = FORMATS[name]
    if milliseconds:
        signal.setitimer(signal.ITIMER_REAL, milliseconds / 1000)  # SIGALRM ends the process
    if name == "lines":
        done = asyncio.run(pipeline().awrite(sink(folder)))
    else:
        done = pipeline().write(sink(folder))
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(done.rows, done.resumed, flush=True)


def main() -> None:
    name, folder, *limits = sys.argv[1:]
    for milliseconds in limits:
        process = os.fork()
        if not process:
            write(name, folder, float(milliseconds))
            return
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if not status:
            return
        parts = len(list(Path(folder).glob("part-*")))
        print(signal.Signals(-status).name if status < 0 else status, parts, flush=True)


if __name__ == "__main__":
    main()
