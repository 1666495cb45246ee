"""Processes that write are killed at random moments, again and again, and lose no row."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.inputs.sinks.killed import FORMATS
from tests.test_docs import ROOT, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="nothing kills it here"),
]

MODULES = {"parquet": "pyarrow", "tfrecord": "google_crc32c"}


def run(name: str, folder: Path, milliseconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.inputs.sinks.killed", name, str(folder), str(milliseconds)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def contents(folder: Path) -> dict[str, bytes]:
    """What other programs see in a folder."""
    return {path.name: path.read_bytes() for path in folder.glob("part-*")}


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_those_of_an_undisturbed_run(name: str, tmp_path: Path) -> None:
    pytest.importorskip(MODULES.get(name, "aioqueue"))
    whole = run(name, tmp_path / "whole", 0)
    assert whole.stderr == ""
    rows = int(whole.stdout.split()[0])
    random = Random(name)
    kills, found, committed = 0, [0, 0], set()
    for limit in range(40, 4000, 40):
        done = run(name, tmp_path / "killed", random.uniform(1, limit))
        if done.returncode == 0:
            found = [int(one) for one in done.stdout.split()]
            break
        assert done.returncode == -signal.SIGALRM, done.stderr
        kills += 1
        committed.add(len(contents(tmp_path / "killed")))
    assert found[0] == rows
    assert found[1] == rows or found[1] % 230 == 0
    assert kills >= 3
    assert len(committed) >= 2, "all kills struck before the first part"
    if name == "lines":  # gzip writes the time of day
        import gzip

        def lines(folder: Path) -> bytes:
            found = sorted(contents(folder).items())
            return b"".join(gzip.decompress(data) for _, data in found)

        assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    else:
        assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
