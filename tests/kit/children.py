"""Programs that tests start, and what they say on stderr."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_SLOW_CALLBACK = re.compile(r"^Executing <.*> took \d+\.\d+ seconds\n", re.MULTILINE)


def environment() -> dict[str, str]:
    """Ours, with this checkout importable also where the package is not installed; and Ray's
    workers do not give way to whatever else the machine does."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    return {"RAY_worker_niceness": "0", **os.environ, "PYTHONPATH": path}


def complaints(stderr: str) -> str:
    """What a program said on stderr, without what only a loaded machine makes it say.

    With `-X dev`, asyncio remarks on each callback that took 100 ms, be it only because another
    process had the processor.
    """
    return _SLOW_CALLBACK.sub("", stderr)


def output_of_module(*arguments: str) -> str:
    """Run a module of this checkout as a program: its name, and arguments. Return what it prints.

    It must end well, and say nothing on stderr.
    """
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
