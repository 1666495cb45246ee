"""Several processes share a cache: one fills it, others wait, and take over if it is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.kit.children import ROOT, environment
from tests.kit.filled import ROWS, Noted, cached, digest_of

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="nothing kills it here"),
]


def started(folder: Path, calls: Path, milliseconds: float) -> subprocess.Popen[str]:
    """A process that waits for a line."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.kit.filled"),
            *(str(folder), str(calls), str(milliseconds)),
        ],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Of an undisturbed one."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return digest_of(cached(str(folder / "cache"), Noted(str(folder / "calls"))))


def test_one_fills_and_others_wait(digest: int, tmp_path: Path) -> None:
    folder, calls = tmp_path / "cache", tmp_path / "calls"
    processes = [started(folder, calls, 0) for _ in range(3)]
    found = [process.communicate("begin\n", timeout=50)[0] for process in processes]
    assert found == [f"{digest} {digest}\n"] * 3
    assert Counter(calls.read_text().split()) == Counter(map(str, range(ROWS)))


def test_one_that_is_killed_is_replaced(digest: int, tmp_path: Path) -> None:
    folder, calls = tmp_path / "cache", tmp_path / "calls"
    random = Random(5)
    kills = 0
    for limit in (100, 400, 800):
        processes = [started(folder, calls, random.uniform(1, limit)) for _ in range(2)]
        processes.append(started(folder, calls, 0))
        found = [process.communicate("begin\n", timeout=50)[0] for process in processes]
        killed = [process.returncode == -signal.SIGALRM for process in processes]
        kills += sum(killed)
        for text, is_killed in zip(found, killed, strict=True):
            assert is_killed or text == f"{digest} {digest}\n"
        assert not killed[-1]
        for path in folder.iterdir():
            path.unlink()
    assert kills >= 3
