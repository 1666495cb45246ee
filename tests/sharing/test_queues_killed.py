"""Clients and owners are killed at random: see `proofs.killed_processes`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.kit.children import ROOT, environment

SHARES = 5
ROUNDS = 200
"""Of each share; a quick run has some of the first one."""


@pytest.mark.skipif(sys.platform != "linux", reason="sharing is tested on Linux")
@pytest.mark.slow(but="quick")
@pytest.mark.parametrize(
    ("seed", "rounds"),
    [
        pytest.param(0, 5, id="quick"),
        pytest.param(0, ROUNDS, id="0"),
        *[pytest.param(n, ROUNDS, id=f"{n}", marks=pytest.mark.long) for n in range(1, SHARES)],
    ],
)
def test_nothing_is_lost_but_within_the_step_of_a_death(seed: int, rounds: int) -> None:
    # In a process of its own: it forks, and must run no thread.
    done = subprocess.run(
        [sys.executable, "-m", "proofs.killed_processes", str(rounds), str(seed)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=10 + 2 * rounds,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    print(done.stdout)
    found = re.match(r"(\d+) rounds: (\d+) rows", done.stdout)
    assert found is not None
    assert int(found[1]) == rounds
    assert int(found[2]) > rounds
    within = re.search(r"within ([\d.]+) s", done.stdout)
    assert within is not None
