"""Scripts as they were written for TensorFlow 1, unchanged, beside what TensorFlow printed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from aioqueue.compat.v1.checking import check
from tests.compat.record_scripts import FOLDER
from tests.test_docs import ROOT, environment

SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
EXTRAS = {"google.protobuf": "tfrecord", "google_crc32c": "tfrecord", "PIL": "images"}
NEEDED = {"TFRecord": "google_crc32c", "tf.train.Example": "google.protobuf", "tf.image": "PIL"}


def test_there_are_many() -> None:
    assert len(SCRIPTS) >= 20
    assert all((FOLDER / f"{name}.txt").is_file() for name in SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_prints_what_tensorflow_printed(name: str, tmp_path: Path) -> None:
    script = FOLDER / f"{name}.py"
    source = script.read_text(encoding="utf-8")
    for word, module in NEEDED.items():
        if word in source and importlib.util.find_spec(module.partition(".")[0]) is None:
            pytest.skip(f"the extra `{EXTRAS[module]}` is not installed")
    absent = [one.name for one in check(str(script)).absent]
    if absent and all(one.startswith("image.") for one in absent):
        pytest.skip(f"needs {', '.join(absent)}")
    assert absent == []
    done = subprocess.run(
        [sys.executable, "-m", "aioqueue.compat.v1", str(script)],
        cwd=ROOT,
        env={**environment(), "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (FOLDER / f"{name}.txt").read_text(encoding="utf-8"), done.stderr
