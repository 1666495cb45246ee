"""The examples of the compat layer, with its own import line, and as TensorFlow scripts."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from tests.compat.warm import WARM
from tests.kit.children import ROOT, environment

FOLDER = ROOT / "examples" / "compat_v1"
OURS = "import aioqueue.compat.v1 as tf\n"
THEIRS = "import tensorflow as tf\n"

PRINTED = {
    "four_threads": "1000 of 1000 rows as they were, from 4 threads, all ended\n",
    "coordinator_loops": ("stopped at 100 or soon after: True\njoin raised: a worker is broken\n"),
    "shuffle_batch": (
        "the queue is empty\n9 batches of ten, no number twice\n9 batches of ten, no number twice\n"
    ),
    "increment": "the queue holds [1, 1, 2]\n",
    "training_loop": (
        "400 steps: y = 3.00 x + 0.50\njoin raised: ValueError: this example cannot be read\n"
    ),
    "records_pipeline": "120 examples, each 2 times, sum 4680 of 4680\n",
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return WARM.run("-W", "error", *arguments, cwd=ROOT, environment=environment())


QUICK = ("increment",)
"""The default run has these."""


@pytest.fixture(
    params=[
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow], id=name)
        for name in PRINTED
    ]
)
def name(request: pytest.FixtureRequest) -> str:
    """Each example in turn."""
    if request.param == "records_pipeline":
        for module in ("google_crc32c", "google.protobuf"):
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                pytest.skip("the extra `tfrecord` is not installed")
    return str(request.param)


def test_it_prints_what_it_promises(name: str) -> None:
    done = run(str(FOLDER / f"{name}.py"))
    assert (done.stdout, done.stderr) == (PRINTED[name], "")
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["training_loop", "records_pipeline"], indirect=True)
def test_so_it_does_as_a_script_for_tensorflow(name: str, tmp_path: Path) -> None:
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert OURS in source
    script = tmp_path / f"{name}.py"
    script.write_text(source.replace(OURS, THEIRS), encoding="utf-8")
    done = run("-m", "aioqueue.compat.v1", str(script))
    assert (done.stdout, done.stderr) == (PRINTED[name], "")
    assert done.returncode == 0


def test_an_unmodified_script_with_flags() -> None:
    path = FOLDER / "unmodified.py"
    assert "aioqueue.compat" not in path.read_text(encoding="utf-8").partition('"""\n')[2]
    done = run("-m", "aioqueue.compat.v1", str(path), "--rows=1000")
    expected = f"numbers: {sum(range(1000))}, squares: {sum(n * n for n in range(1000))}\n"
    assert (done.stdout, done.stderr) == (expected, "")
    assert done.returncode == 0


def test_every_example_is_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*PRINTED, "unmodified"}
