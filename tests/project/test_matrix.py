"""The public CI and `.ci/matrix`, which runs its jobs on a contributor's machine, are one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
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


def jobs_of_workflow() -> dict[str, str]:
    """The jobs that the workflow asks the script for, with the versions of its matrix; and their
    versions of Python."""
    found = {}
    for job in re.split(
        r"\n  (?=\w+:\n)", WORKFLOW.read_text(encoding="utf-8").split("\njobs:\n")[1]
    ):
        (call,) = re.findall(r"- run: (.*)", job)
        asked = call.removeprefix(".ci/matrix ")
        assert asked != call, f"{call}: expected a job of .ci/matrix"
        (python,) = re.findall(r"python-version: (.*)", job)
        versions = re.search(r"python: \[(.*)\]", job)
        expanded = versions.group(1).replace('"', "").split(", ") if versions else [""]
        for version in expanded:
            one = asked.replace("${{ matrix.python }}", version)
            found[one] = python.replace("${{ matrix.python }}", version).strip('"')
    return found


def versions_of(job: str) -> list[str]:
    """The versions of Python that the script looks for, the first one first."""
    if "-3." in job:
        return [job.rpartition("-")[2]]
    text = SCRIPT.read_text(encoding="utf-8").split("versions_of() {")[1].split("\n}")[0]
    for names, versions in re.findall(r"^ +([\w| ]+)\) echo ([\d. ]+) ;;", text, re.MULTILINE):
        if job in names.split(" | "):
            return list(versions.split())
    raise LookupError(job)


def test_the_workflow_has_the_jobs_of_the_script() -> None:
    assert jobs_of_workflow().keys() == jobs_of_script()


def test_a_job_has_the_first_python_of_the_script() -> None:
    wanted = {job: versions_of(job)[0] for job in jobs_of_script()}
    assert jobs_of_workflow() == wanted


def test_each_version_of_the_metadata_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = {one.rpartition(" ")[2] for one in project["classifiers"] if ":: 3." in one}
    tested = {job.removeprefix("test-") for job in jobs_of_script() if job.startswith("test-")}
    assert tested == named


@pytest.mark.parametrize("name", ["release.yml", "wheels.yml"])
def test_other_workflows_build_by_jobs_of_the_script(name: str) -> None:
    text = (WORKFLOW.parent / name).read_text(encoding="utf-8")
    calls = {run for run in re.findall(r"- run: (.*)", text) if not run.startswith("test -f ")}
    assert {call.removeprefix(".ci/matrix ") for call in calls} <= jobs_of_script()


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
