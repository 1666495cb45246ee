"""Forecast a series of readings from windows of it; start it again when it was stopped.

    python forecast_series.py FOLDER [--stop-after WINDOWS]

Windows are kept as TFRecords, and what is forecast as JSON lines. ``python -m aioqueue inspect
forecast_series.py:windows`` shows what a window is.
"""

from __future__ import annotations

import argparse
import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from aioqueue.inputs import (
    Pipeline,
    numbers,
    read_json_lines,
    read_tfrecords,
    to_json_lines,
    to_tfrecord,
)

SIZE, STRIDE, READINGS = 12, 4, 400
STOP = count(1)


def reading(at: int, rng: np.random.Generator) -> dict[str, Any]:
    return {"at": at, "value": np.float32(np.sin(at / 5) + rng.normal(0, 0.01))}


def windows() -> Pipeline[Any]:
    """Windows of twelve readings. Each window shares eight of them with the next one."""
    return numbers(READINGS, seed=1).prepare(reading, workers=2).window(SIZE, STRIDE)


def forecast(record: bytes) -> dict[str, Any]:
    """The last reading of a window, from the two before it: a sine is such a recurrence."""
    values = np.frombuffer(record, np.float32)
    expected = 2 * np.cos(1 / 5) * values[-2] - values[-3]
    return {"expected": round(float(expected), 4), "was": values[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stop-after", type=int, default=None)
    given = parser.parse_args()

    def packed(window: dict[str, Any]) -> bytes:
        if next(STOP) == given.stop_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return bytes(window["value"])

    spec = windows().element_spec()
    assert (spec["value"].shape, spec["value"].dtype) == ((SIZE,), np.float32)
    sink = to_tfrecord(given.folder / "windows", rows_per_file=20)
    kept = windows().prepare(packed, workers=1).write(sink)
    forecasts = read_tfrecords([str(path) for path in kept.paths]).prepare(forecast)
    written = forecasts.write(to_json_lines(given.folder / "forecasts", rows_per_file=64))
    rows = list(read_json_lines([str(path) for path in written.paths]))
    wrong = max(abs(row["expected"] - row["was"]) for row in rows)
    print(f"{kept.rows} windows in {len(kept.paths)} files, wrong by {wrong:.2f} at most")
    print(f"resumed at {kept.resumed}")


if __name__ == "__main__":
    main()
