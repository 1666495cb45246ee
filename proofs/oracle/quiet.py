"""Knowing when everything that threads of this process can do has been done.

TensorFlow does not tell who waits at a queue. But a thread that waits sleeps, and one that still
has something to do runs, or wants to run; the operating system tells which.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

__all__ = ("settle",)

TASKS = Path("/proc/self/task")
PAUSE = 0.0003
"""Seconds between two looks: in them whoever waits for the interpreter's lock gets it."""
BLIND_PAUSE = 0.05
"""Seconds that are taken for long enough where the operating system does not tell."""


def settle() -> None:
    """Wait until all other threads of the process sleep, and go on sleeping."""
    if not TASKS.is_dir():
        time.sleep(BLIND_PAUSE)
        return
    before = None
    while (now := _asleep()) is None or now != before:
        before = now
        time.sleep(PAUSE)


def _asleep() -> dict[str, bytes] | None:
    """For each other thread how long it has run, if all of them sleep; else None."""
    own = str(threading.get_native_id())
    times = {}
    for thread in os.listdir(TASKS):
        if thread == own:
            continue
        try:
            state = _read(f"/proc/self/task/{thread}/stat").rpartition(b") ")[2][:1]
            times[thread] = _read(f"/proc/self/task/{thread}/schedstat")
        except (FileNotFoundError, ProcessLookupError):
            return None  # it has just ended
        if state != b"S":
            return None
    return times


def _read(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 1024)
    finally:
        os.close(file)
