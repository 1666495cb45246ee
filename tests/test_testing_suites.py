"""The test suites of the documentation pass; wrong suites get an error with the fix."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.children import ROOT, environment

PAGE = ROOT / "docs" / "howto" / "testing.md"
SUITES = dict(
    re.findall(
        r"^<!-- suite: (\S+) -->\n```python\n(.*?)^```$",
        PAGE.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
)
OTHERS = {
    "pytest-asyncio": ["-p", "no:trio", "-p", "no:anyio"],
    "anyio": ["-p", "no:trio", "-p", "no:asyncio"],
    "pytest-trio": ["-p", "no:asyncio", "-p", "no:anyio"],
}
"""Which plugins a suite does without, as it would where only its own is installed."""


def run(suite: str, plugin: str, where: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a suite in its own folder, with warnings as errors."""
    for module in ("trio", plugin.replace("-", "_")):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the suite needs {module}")
    (where / "test_suite.py").write_text(suite, encoding="utf-8")
    (where / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
    if plugin == "pytest-asyncio":
        quiet += ["-o", "asyncio_default_fixture_loop_scope=function"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, *OTHERS[plugin], *options, str(where)],
        cwd=where,
        env=environment() | {"PYTEST_ADDOPTS": ""},  # not how we are run ourselves
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=50,
        check=False,
    )


def test_there_is_one_for_each_plugin() -> None:
    assert SUITES.keys() == OTHERS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("plugin", SUITES)
def test_suites_of_the_page_pass(plugin: str, tmp_path: Path) -> None:
    done = run(SUITES[plugin], plugin, tmp_path)
    assert done.returncode == 0, done.stdout
    assert f"{1 if plugin == 'pytest-trio' else 2} passed" in done.stdout


@pytest.mark.slow
def test_in_auto_mode_of_pytest_asyncio(tmp_path: Path) -> None:
    suite = SUITES["pytest-asyncio"].replace("@pytest.mark.asyncio\n", "")
    done = run(suite, "pytest-asyncio", tmp_path, "-o", "asyncio_mode=auto")
    assert done.returncode == 0, done.stdout


FAILS = """

async def fail() -> None:
    raise OSError("no disk")

@{mark}
async def test_that_fails(coord: aioqueue.Coordinator) -> None:
    coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [fail]))
    await coord.wait_for_stop()
"""

MARKS = {
    "pytest-asyncio": "pytest.mark.asyncio",
    "anyio": "pytest.mark.anyio",
    "pytest-trio": "pytest.mark.trio",
}


@pytest.mark.slow
@pytest.mark.parametrize("plugin", MARKS)
def test_a_failure_of_a_worker_fails_the_test(plugin: str, tmp_path: Path) -> None:
    suite = SUITES[plugin] + FAILS.format(mark=MARKS[plugin])
    done = run(suite, plugin, tmp_path, "-k", "test_that_fails")
    assert done.returncode == 1, done.stdout
    assert "OSError: no disk" in done.stdout


@pytest.mark.slow
def test_another_loop_is_refused_with_the_right_fixture(tmp_path: Path) -> None:
    suite = SUITES["pytest-asyncio"].replace(
        "@pytest_asyncio.fixture\n",
        '@pytest_asyncio.fixture(scope="module", loop_scope="module")\n',
    ) + FAILS.format(mark=MARKS["pytest-asyncio"])
    done = run(suite, "pytest-asyncio", tmp_path, "-k", "test_that_fails")
    assert done.returncode == 1, done.stdout
    assert "start: this is not the event loop in which the coordinator's block" in done.stdout
    assert '`@pytest.mark.asyncio(loop_scope="module")`' in done.stdout
