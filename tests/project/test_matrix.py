"""The public CI and `.ci/matrix`, which runs its jobs on a contributor's machine, are one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
SCRIPT = ROOT / ".ci" / "matrix"

pytestmark = [
    pytest.mark.skipif(not WORKFLOW.exists(), reason="this is no checkout"),
    pytest.mark.skipif(shutil.which("bash") is None, reason="the script needs bash"),
]


def jobs_of_script() -> set[str]:
    text = SCRIPT.read_text(encoding="utf-8")
    listed = re.findall(r"JOBS\+?=\((.*?)\)", text)
    found = {job for line in listed for job in line.split() if "$" not in job}
    for versions, job in re.findall(
        r"for version in (.*); do JOBS\+=\(\"(\w+)-\$version\"\)", text
    ):
        found |= {f"{job}-{version}" for version in versions.split()}
    return found - {'"'}


def jobs_of_workflow() -> set[str]:
    """The jobs that the workflow asks the script for, with the versions of its matrix."""
    found = set()
    for job in re.split(
        r"\n  (?=\w+:\n)", WORKFLOW.read_text(encoding="utf-8").split("\njobs:\n")[1]
    ):
        (call,) = re.findall(r"- run: (.*)", job)
        asked = call.removeprefix(".ci/matrix ")
        assert asked != call, f"{call}: expected a job of .ci/matrix"
        versions = re.search(r"python: \[(.*)\]", job)
        expanded = versions.group(1).replace('"', "").split(", ") if versions else [""]
        found |= {asked.replace("${{ matrix.python }}", version) for version in expanded}
    return found


def test_the_workflow_has_the_jobs_of_the_script() -> None:
    assert jobs_of_workflow() == jobs_of_script()


def script(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.slow
def test_a_job_names_the_python_it_runs_or_lacks() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    listed = script("--list", f"test-{version}", PYTHON=sys.executable)
    assert listed.returncode == 0, listed.stderr
    assert f"test-{version}: {sys.executable}" in listed.stdout
    other = "3.12" if version == "3.11" else "3.11"
    lacking = script("--list", "lowest", PYTHON="/nowhere/python")
    assert "skipped  lowest: there is no Python 3.11 or 3.12" in lacking.stdout
    assert lacking.returncode == 1
    assert f"test-{other}" not in listed.stdout
    unknown = script("nosuch")
    assert unknown.returncode == 2
    assert "there is no job nosuch" in unknown.stderr
