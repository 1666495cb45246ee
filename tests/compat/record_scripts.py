"""Write down what TensorFlow prints: ``python -m tests.compat.record_scripts [name ...]``.

Runs the scripts in ``scripts/`` on TensorFlow 2, in graph mode; `test_scripts` holds the compat
layer to what they print there, without TensorFlow. What needs ``tf.contrib``, which TensorFlow 2
has not, is written by hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).with_name("scripts")
ALIAS = "import tensorflow as tf\n"
GRAPH_MODE = "import tensorflow.compat.v1 as tf; tf.disable_v2_behavior()\n"


def printed(script: Path) -> str:
    """What a script prints on TensorFlow."""
    source = script.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / script.name
        path.write_text(source.replace(ALIAS, GRAPH_MODE), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(path)],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    if done.returncode:
        raise RuntimeError(f"{script.name}: {done.stderr[-2000:]}")
    return done.stdout


def main(names: list[str]) -> None:
    """Record all scripts, or those that are named."""
    for script in sorted(FOLDER.glob("*.py")):
        wanted = script.stem in names if names else "contrib" not in script.read_text("utf-8")
        if wanted:
            script.with_suffix(".txt").write_text(printed(script), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
