"""What users write is checked: sixteen programs, by mypy and pyright at their strictest.

Those in `tests/typing` whose names begin with ``wrong_`` have mistakes on purpose: both checkers
must complain about each line that says ``# WRONG``, and about no other. The rest must pass, and
run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "typing"
PROGRAMS = sorted(FOLDER.glob("*.py"))
RIGHT = [path for path in PROGRAMS if not path.name.startswith("wrong_")]
WRONG = [path for path in PROGRAMS if path not in RIGHT]

Found = dict[str, dict[int, str]]
"""What a checker has found, by the program's name and the number of the line."""


def run(*command: str, timeout: float = 50) -> subprocess.CompletedProcess[str]:
    """Run a program of this Python with the package as it stands here."""
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=FOLDER,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=timeout,
    )


def found_by_mypy() -> Found:
    ran = run(
        "-m",
        "mypy",
        *("--strict", "--config-file=", "--no-error-summary", "--hide-error-context"),
        *("--cache-dir", str(ROOT / ".mypy_cache" / "of_test_typing")),
        *(path.name for path in PROGRAMS),
        timeout=280,
    )
    assert not ran.stderr, ran.stderr
    found: Found = {}
    for line in ran.stdout.splitlines():
        match = re.match(r"(\w+\.py):(\d+): error: (.*)", line)
        if match:
            found.setdefault(match[1], {})[int(match[2])] = match[3]
        else:
            assert ": note: " in line, line
    return found


def found_by_pyright() -> Found:
    # The checker of pyright, in a build that brings Node.js along instead of downloading it.
    ran = run("-m", "basedpyright", "--project", ".", "--outputjson", timeout=280)
    try:
        report = json.loads(ran.stdout)
    except ValueError:
        pytest.fail(f"{ran.stdout}\n{ran.stderr}")
    assert report["summary"]["filesAnalyzed"] == len(PROGRAMS)
    found: Found = {}
    for one in report["generalDiagnostics"]:
        line = one["range"]["start"]["line"] + 1
        found.setdefault(Path(one["file"]).name, {})[line] = one["message"]
    return found


CHECKERS = [
    pytest.param(
        find,
        id=name,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(module) is None,
            reason=f"{module} is not installed: pip install '.[test]'",
        ),
    )
    for name, module, find in (
        ("mypy", "mypy", found_by_mypy),
        ("pyright", "basedpyright", found_by_pyright),
    )
]


def wrong_lines(path: Path) -> list[int]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith("# WRONG")]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("find", CHECKERS)
def test_a_checker_finds_what_is_wrong_and_nothing_else(find: Callable[[], Found]) -> None:
    found = {name: {*lines} for name, lines in find().items()}
    expected = {path.name: {*wrong_lines(path)} for path in WRONG}
    assert found == expected


@pytest.mark.slow(but="service")
@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.stem)
def test_what_is_right_runs(path: Path) -> None:
    ran = run("-W", "error", path.name)
    assert ran.returncode == 0, ran.stderr


def test_there_are_programs_that_are_right_and_others() -> None:
    assert len(RIGHT) == 11
    assert len(WRONG) == 6
    assert all("assert_type" in path.read_text(encoding="utf-8") for path in RIGHT)
    assert all(map(wrong_lines, WRONG))
    assert not any(map(wrong_lines, RIGHT))
