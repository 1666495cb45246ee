"""Go through a cache in files, and print what it has:

    python -m tests.kit.filled FOLDER CALLS MILLISECONDS

Each call of the function adds a line to the file CALLS. After some milliseconds the program is
killed; with 0 nothing kills it. `test_cache_processes` starts several at a time.
"""

from __future__ import annotations

import os
import signal
import sys
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from aioqueue.inputs import Pipeline, numbers
from aioqueue.pipeline import cache_file

ROWS: Final = 2000


class Noted:
    """Makes an example, and notes the call."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, number: int, rng: np.random.Generator) -> dict[str, Any]:
        with open(self.path, "ab", buffering=0) as file:
            file.write(b"%d\n" % number)  # one write, so lines of several processes stay whole
        return {"number": number, "noise": rng.random(4)}


def cached(folder: str, function: Callable[..., Any]) -> Pipeline[Any]:
    source = numbers(ROWS, shuffle=True, seed=6)
    return source.prepare(function, workers=2).shuffle(30).cache(folder, key="1")


def digest_of(pipeline: Pipeline[Any]) -> int:
    found = 0
    for one in pipeline:
        found = zlib.crc32(one["noise"].tobytes() + str(one["number"]).encode(), found)
    return found


def main() -> None:
    folder, calls, milliseconds = sys.argv[1:]
    cache_file._MOST_BYTES = 1  # type: ignore[misc]  # many small files
    cache_file._MOST_ROWS = 64  # type: ignore[misc]
    pipeline = cached(folder, Noted(calls))
    print(os.getpid(), flush=True)
    sys.stdin.readline()  # all of them begin together
    if float(milliseconds):
        signal.setitimer(signal.ITIMER_REAL, float(milliseconds) / 1000)
    print(digest_of(pipeline), digest_of(pipeline))


if __name__ == "__main__":
    main()
