"""The quick form of `proofs.resume`: a few kills in a few shapes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from proofs.resume import Outcome, Runs, judge, prove, runs
from proofs.resume_run import EPOCH_ENDS, SAVING, KillPlan, Request
from tests.kit.resuming import write_files

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are forks of one process")


@pytest.fixture(scope="module")
def starter() -> Iterator[Runs]:
    with runs() as starter:
        yield starter


@pytest.mark.slow(but="shuffle after")
@pytest.mark.parametrize(
    "name",
    [
        "shuffle after",
        "skips, listed",
        "lines, shuffled",
        "three in a row",
        "unordered:generators, shuffled",
        "stream:shuffled lines",
        "unordered stream:shuffled generators",
        "ranks:generators, shuffled",
        "ranks:lines, shuffled",
        "ranks:skips, listed",
        "example:bucket",
        "example:repeated lines",
    ],
)
def test_killed_runs_end_as_undisturbed_ones(starter: Runs, name: str) -> None:
    outcome = prove(starter, name, kills=3)
    assert outcome.kills.total() >= 3
    assert not outcome.faults, str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shuffle after", "unordered:shuffle"])
def test_killed_at_every_moment_that_matters(starter: Runs, name: str, tmp_path: Path) -> None:
    """In the middle of `save_position`, wherever that is; and between two epochs."""
    folder = write_files(tmp_path)
    fates = [KillPlan(moment, after) for moment in SAVING for after in (0, 1)]
    for number, plan in enumerate([*fates, *map(KillPlan, EPOCH_ENDS)]):
        code = starter.exit_code(Request(name, str(folder), number, plan))
        assert code == -signal.SIGKILL, plan
        assert not (folder / "ended").exists()
    assert starter.exit_code(Request(name, str(folder), 99, KillPlan())) == 0
    outcome = Outcome(name)
    judge(name, folder, outcome)
    assert not outcome.faults, str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shuffle after", "unordered:shuffle"])
@pytest.mark.parametrize("tamper", ["lost", "twice"])
def test_what_is_lost_or_comes_twice_is_found(
    starter: Runs, name: str, tamper: str, tmp_path: Path
) -> None:
    folder = write_files(tmp_path)
    assert starter.exit_code(Request(name, str(folder), 1, KillPlan())) == 0
    log = folder / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[1:] if tamper == "lost" else [lines[0], *lines]))
    outcome = Outcome(name)
    judge(name, folder, outcome)
    assert "another result" in str(outcome)
    assert json.loads(lines[0])[0] == 0


@pytest.mark.slow
def test_a_run_that_fails_is_a_fault(starter: Runs, tmp_path: Path) -> None:
    (tmp_path / "position.json").write_text("torn")
    code = starter.exit_code(Request("batches", str(tmp_path), 1, KillPlan()))
    assert code == 1
