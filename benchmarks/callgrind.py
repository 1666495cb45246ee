"""Counting the instructions of a child process: what `instructions` and `growth` share.

The child calls `os.getppid` around the work that counts. Before each call, callgrind writes down
how many instructions there were since the last one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

SLOWER = 50
"""How many times slower valgrind runs Python."""


def counters(module: str, arguments: Iterable[str]) -> list[int]:
    """Run a module under callgrind; return its counters, in their order.

    Raises:
        RuntimeError: valgrind is not installed, or the child failed.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise RuntimeError("valgrind: not found; it counts the instructions")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        child = subprocess.run(
            [
                *(valgrind, "--tool=callgrind", "--dump-before=getppid", "--combine-dumps=yes"),
                *("--dump-line=no", f"--callgrind-out-file={out}"),
                *(sys.executable, "-m", module, *arguments),
            ],
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
        if child.returncode:
            raise RuntimeError(f"{module} failed under valgrind:\n{child.stderr[-4000:]}")
        return counters_in(out.read_text(encoding="utf-8", errors="replace"))


def counters_in(profile: str) -> list[int]:
    """Return the counters that callgrind wrote down."""
    return [int(number) for number in re.findall(r"^summary: (\d+)", profile, re.MULTILINE)]
