"""Each class has a name of its own, and each test file the name of the file that it tests."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "aioqueue"
TESTS = ROOT / "tests"

FACES = (
    "Coordinator",
    "FIFOQueue",
    "PaddingFIFOQueue",
    "PriorityQueue",
    "QueueRunner",
    "RandomShuffleQueue",
    "RolloutQueue",
)
"""Public classes that threads, tasks and programs of a cluster have under the same name."""

PER_SYSTEM = ("Channel", "_ShutDown")
"""Classes that one file defines twice, of which each system or version of Python has one."""

OF_ROLLOUTS = ("Batch",)
"""Public classes of `aioqueue.rl` whose names stages of pipelines have, too."""

ROOMS_OF_OTHERS = ("compat", "contracts", "kit", "programs", "project", "proofs", "typing")
"""Folders of tests without a room in the package, or whose room follows TensorFlow's files."""

CROSS_CUTTING = {
    "ray/cluster/test_ray_data.py": "datasets of Ray as sources, on the cluster that is here",
    "rl/test_ends.py": "each end of a queue of rollouts, and what it leaves behind",
    "rl/test_explanations.py": "what is said of a wait, wherever it is asked",
    "rl/test_nothing_polls.py": "no thread of any process wakes up while all wait",
    "sinks/test_formats.py": "each sink beside the reader of its format, and beside other programs",
    "sinks/test_there_and_back.py": "one table of values for all sinks and the cache",
    "torch/test_shared_queues.py": "what is shared, in processes that PyTorch's launchers start",
}
"""Test files of no single file of their room, and what they are about."""


@pytest.mark.slow
def test_no_two_classes_have_one_name() -> None:
    """The names in `aioqueue.compat` are TensorFlow's: it is not looked at."""
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        if "compat" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(f"{path.relative_to(PACKAGE).as_posix()}:{node.lineno}")
    twice = {name for name, places in found.items() if len(places) > 1}
    where = "\n".join(f"{name}: {', '.join(found[name])}" for name in sorted(twice))
    assert twice == {*FACES, *PER_SYSTEM, *OF_ROLLOUTS}, (
        f"classes of one name; rename all but one:\n{where}"
    )


def subjects(room: Path) -> set[str]:
    """What test files of a room are called after: files and folders of it, and their helpers."""
    beside = TESTS / room
    while not (PACKAGE / room).is_dir():
        room = room.parent
    paths = [*(PACKAGE / room).rglob("*.py"), *(PACKAGE / room).rglob("*/"), *beside.glob("*.py")]
    return {path.stem.strip("_") for path in paths if not path.stem.startswith("test_")}


def test_test_files_are_called_after_what_they_test() -> None:
    """``test_<file>.py``, and ``test_<file>_<aspect>.py`` where a file has several."""
    wrong = []
    for path in sorted(TESTS.rglob("test_*.py")):
        place = path.relative_to(TESTS)
        if place.parts[0] not in ROOMS_OF_OTHERS and place.as_posix() not in CROSS_CUTTING:
            name = path.stem.removeprefix("test_")
            known = subjects(place.parent)
            if not any(name == one or name.startswith(f"{one}_") for one in known if one):
                wrong.append(place.as_posix())
    assert not wrong, f"no file or folder of the package is called so: {', '.join(wrong)}"


def test_exceptions_are_needed() -> None:
    for name in CROSS_CUTTING:
        assert (TESTS / name).exists(), name
    for name in ROOMS_OF_OTHERS:
        assert (TESTS / name).is_dir(), name
