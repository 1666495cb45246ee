"""``--check``: what a script will miss, found without running it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.__main__ import main
from aioqueue.compat.v1.absent import CHECKPOINTS, DEVICES, GRAPHS, LAYERS, TRAINING
from aioqueue.compat.v1.checking import INERT, NEEDS, REFUSED, SUMMARIES, check
from aioqueue.compat.v1.protos import example_classes, summary_classes
from aioqueue.compat.v1.shim import find
from aioqueue.compat.v1.summaries import writer as backends
from aioqueue.readers.tfrecord import required_crc32c
from tests.compat import op_cases, test_ops
from tests.compat.steps import refused

assert test_ops.RECORD  # its module has imported all that registers cases


def written(folder: Path, **sources: str) -> str:
    """Some files, ``__`` in whose names stands for a slash; the path of ``script.py``."""
    for name, source in sources.items():
        parts = name.replace("INIT", "~").split("__")
        path = folder.joinpath(*(part.replace("~", "__init__") for part in parts))
        path = path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return str(folder / "script.py")


def absent(folder: Path, source: str, **others: str) -> list[tuple[str, tuple[int, ...]]]:
    """The absent names of a script, each with its lines."""
    report = check(written(folder, script=source, **others))
    return [(one.name, one.lines) for one in report.absent]


class TestNames:
    def test_all_of_them_are_reported_at_once(self, tmp_path: Path) -> None:
        script = written(
            tmp_path,
            script=(
                "import tensorflow as tf\n"
                "opt = tf.train.AdamOptimizer(0.1)\n"
                "x = tf.nn.conv2d(tf.zeros([1]), 2)\n"
                "manager = tf.train.CheckpointManager()\n"
                "opt = tf.train.AdamOptimizer(0.1)\n"
            ),
        )
        found = check(script).absent
        assert [(one.name, one.lines) for one in found] == [
            ("train.AdamOptimizer", (2, 5)),
            ("nn.conv2d", (3,)),
            ("train.CheckpointManager", (4,)),
        ]
        for one, reason in zip(found, (TRAINING, LAYERS, CHECKPOINTS), strict=True):
            assert reason in one.why
            assert str(one).startswith(f"{script}:")

    @pytest.mark.parametrize(
        "source",
        [
            "import tensorflow.compat.v1 as tf\ntf.gradients",
            "from tensorflow.compat import v1 as tf\ntf.gradients",
            "import aioqueue.compat.v1 as tf\ntf.gradients",
            "import tensorflow\ntensorflow.gradients",
            "import tensorflow.train\ntensorflow.gradients",
            "import tensorflow as tf\nother = tf\nother.gradients",
            "import tensorflow as tf\ntf.logging.__dict__['gradients'](1)",
            "from tensorflow.python.ops import math_ops\nmath_ops.gradients",
            "import tensorflow as tf\nclass A:\n    def f(self): return [tf.gradients(1, 2)]",
        ],
    )
    def test_however_it_is_imported(self, source: str, tmp_path: Path) -> None:
        ((name, _),) = absent(tmp_path, source)
        assert name.rpartition(".")[2] == "gradients"

    def test_what_an_import_lacks(self, tmp_path: Path) -> None:
        source = (
            "from tensorflow.python.training import adam\n"
            "adam.AdamOptimizer; import tensorflow.contrib.layers as unused\n"
            "from tensorflow.keras.layers import Dense\n"
            "import tensorflow.estimator\n"
            "from tensorflow.train import Coordinator, AdamOptimizer\n"
        )
        assert absent(tmp_path, source) == [
            ("python.training.adam.AdamOptimizer", (2,)),
            ("keras.layers.Dense", (3,)),
            ("estimator", (4,)),
            ("train.AdamOptimizer", (5,)),
        ]

    @pytest.mark.parametrize(
        "source",
        [
            "import tensorflow as tf\ntry:\n    tf.gradients\nexcept AttributeError:\n    pass",
            "try:\n    from tensorflow.keras import x\nexcept ImportError:\n    x = None",
            "try:\n    import tensorflow.keras\nexcept (OSError, ImportError):\n    pass",
            "from tensorflow.python.client import session\ndef f(session): session.zork()",
            "from tensorflow.python.client import session\nf = lambda session: session.zork()",
            "from tensorflow.python.client import session\ndef f():\n session = 1\n session.zork",
            "import tensorflow as tf\nFLAGS = tf.app.flags.FLAGS\nprint(FLAGS.zork)",
            "import tensorflow as tf\ntf = object()\ntf.gradients",
            "import tensorflow as tf\ntf.logging.set_verbosity(tf.logging.__dict__['INFO'])",
            "import tensorflow as tf\nfor level in ('INFO', 'zork'): tf.logging.__dict__[level]",
            "tf.gradients",
            "import numpy as tf\ntf.gradients",
        ],
    )
    def test_what_is_expected_or_nothing_of_tensorflow(self, source: str, tmp_path: Path) -> None:
        assert absent(tmp_path, source) == []

    def test_what_a_class_lacks(self, tmp_path: Path) -> None:
        source = "import tensorflow as tf\ntf.GraphKeys.SUMMARIES\ntf.GraphKeys.ZORK\n"
        assert absent(tmp_path, source) == [("GraphKeys.ZORK", (3,))]

    def test_arguments(self, tmp_path: Path) -> None:
        source = (
            "import tensorflow as tf\n"
            "tf.decode_raw('a', tf.uint8, zork=1)\n"
            "tf.train.Saver(saver_def='here')\n"
            "tf.train.Saver(saver_def=None)\n"
            "tf.decode_raw('a', out_type=tf.uint8, **{})\n"
            "tf.ConfigProto(allow_soft_placement=True)\n"
        )
        report = check(written(tmp_path, script=source))
        assert [(one.name, one.lines) for one in report.absent] == [
            ("decode_raw(zork=)", (2,)),
            ("train.Saver(saver_def=)", (3,)),
        ]
        assert "it has: input_bytes, out_type" in report.absent[0].why
        assert GRAPHS in report.absent[1].why

    def test_options_with_a_timeout_only_have_an_effect(self, tmp_path: Path) -> None:
        source = (
            "import tensorflow as tf\n"
            "tf.ConfigProto(operation_timeout_in_ms=60000)\n"
            "tf.RunOptions(timeout_in_ms=5)\n"
            "tf.ConfigProto(operation_timeout_in_ms=60000, log_device_placement=True)\n"
            "tf.RunOptions(trace_level=1)\n"
        )
        report = check(written(tmp_path, script=source))
        assert [(one.name, one.lines) for one in report.inert] == [
            ("ConfigProto", (4,)),
            ("RunOptions", (5,)),
        ]

    def test_what_datasets_lack(self, tmp_path: Path) -> None:
        source = (
            "import tensorflow as tf\n"
            "d = tf.data.TFRecordDataset(['f'], num_parallel_reads=tf.zork)\n"
            "d = d.map(lambda x: tf.gradients(x, x)).repeat(2).batch(3).window(2)\n"
            "d = d.apply(f).shuffle(3, zork=1)\n"
            "it = d.make_one_shot_iterator().anything()\n"
            "d = it.get_next()\n"
            "d.window\n"
            "print(tf.data.Dataset.range(3).repeat().output_types, tf.data.Dataset.zip)\n"
        )
        report = check(written(tmp_path, script=source))
        assert {(one.name, one.lines) for one in report.absent} == {
            ("zork", (2,)),
            ("gradients", (3,)),
            ("data.Dataset.window", (3,)),
            ("data.Dataset.shuffle(zork=)", (4,)),
        }
        (window,) = (one for one in report.absent if one.name == "data.Dataset.window")
        assert "Dataset.from_generator" in window.why


class TestFiles:
    def test_what_is_imported_from_beside_the_script(self, tmp_path: Path) -> None:
        use = "import tensorflow as tf\ntf.gradients\n"
        script = written(
            tmp_path,
            script="import one, os\nfrom package import two\nfrom package.deep import *\n",
            one=use,
            package__INIT="from . import three\n",
            package__two="from .three import x\nfrom .. import one\nimport numpy\n",
            package__three=use,
            package__deep__INIT="",
            never=use,
        )
        report = check(script)
        names = [Path(path).relative_to(tmp_path).as_posix() for path in report.files]
        assert names[0] == "script.py"
        assert set(names[1:]) == {
            "one.py",
            *("package/__init__.py", "package/two.py", "package/three.py"),
            "package/deep/__init__.py",
        }
        assert sorted(Path(one.path).name for one in report.absent) == ["one.py", "three.py"]

    def test_one_that_is_python_2(self, tmp_path: Path) -> None:
        report = check(written(tmp_path, script="import two\n", two="x = 1\nprint 'x'\n"))
        (found,) = report.absent
        assert "not Python 3" in found.why
        assert found.lines == (2,)

    def test_nothing_is_run(self, tmp_path: Path) -> None:
        assert absent(tmp_path, "raise SystemExit('it ran')\n") == []


class TestInert:
    def test_they_are_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backends, "CHOICES", (("no_such_library",),))
        backends.can_write.cache_clear()
        source = (
            "import tensorflow as tf\n"
            "with tf.device('/cpu:0'):\n"
            "    tf.summary.scalar('x', 1)\n"
            "writer = tf.train.SummaryWriter('logs')\n"
        )
        try:
            report = check(written(tmp_path, script=source))
        finally:
            backends.can_write.cache_clear()
        assert report.absent == []
        assert [(one.name, one.lines) for one in report.inert] == [
            ("device", (2,)),
            ("summary.scalar", (3,)),
            ("train.SummaryWriter", (4,)),
        ]
        assert DEVICES in report.inert[0].why
        assert "'.[summaries]'" in report.inert[1].why

    def test_the_names_are_there(self) -> None:
        names = [*INERT, *(one.rstrip(".") for one in SUMMARIES), *REFUSED]
        assert [name for name in names if find(name) is None] == []


BLOCKED = ("PIL", "PIL.Image", "google_crc32c", "google.protobuf", "fsspec", "fsspec.core")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed that is an extra."""
    for module in BLOCKED:
        monkeypatch.setitem(sys.modules, module, None)
    for cached in (example_classes, summary_classes, required_crc32c):
        cached.cache_clear()


def lacking(folder: Path, source: str) -> list[tuple[str, str]]:
    """What lacks an extra in a script, each with the extra."""
    report = check(written(folder, script=source))
    found = [(one.name, re.search(r"'\.\[(\w+)\]'", one.why)) for one in report.lacking]
    return [(name, extra[1]) for name, extra in found if extra is not None]


class TestExtras:
    @pytest.mark.usefixtures("bare")
    def test_all_that_are_missing_are_reported(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = (
            "import tensorflow as tf\n"
            "from tensorflow.train import Example\n"
            "tf.io.decode_png(tf.read_file('gs://bucket/a.png'))\n"
            "def f(path='s3://unused'): return tf.gfile.Glob(['https://host/*', 'file:///a'])\n"
            "writer = tf.python_io.TFRecordWriter('a')\n"
            "tf.parse_single_sequence_example\n"
            "tf.train.Example, tf.train.Coordinator, tf.reshape\n"
        )
        script = written(tmp_path, script=source)
        assert lacking(tmp_path, source) == [
            ("train.Example", "tfrecord"),
            ("io.decode_png", "images"),
            ("gs://bucket/a.png", "files"),
            ("https://host/*", "files"),
            ("python_io.TFRecordWriter", "tfrecord"),
            ("parse_single_sequence_example", "tfrecord"),
        ]
        assert main(["--check", script]) == 1
        told = capsys.readouterr().out
        assert f"Missing extras:\n  {script}:2, 7: " in told
        assert "0 absent, 6 without an extra that they need and 0 without effect" in told
        assert "tf.train.Example" not in told.split("Missing extras:")[0]

    @pytest.mark.usefixtures("bare")
    @pytest.mark.parametrize("name", NEEDS)
    def test_what_is_reported_is_true(self, name: str, tmp_path: Path) -> None:
        """Whoever calls it then gets the very error."""
        (tmp_path / "x").write_bytes(b"")
        path = str(tmp_path / "x")
        with tf.Session() as sess, pytest.raises(ModuleNotFoundError) as caught:
            made = CALLS.get(name, lambda found, path: found(b""))(find(name), path)
            try:
                sess.run(made)
            except tf.errors.OpError as error:
                raise error.__cause__ or error from None
        assert f"'.[{NEEDS[name][2]}]'" in str(caught.value)

    @pytest.mark.usefixtures("bare")
    def test_no_op_is_forgotten(self) -> None:
        """All cases of the ops that are compared with TensorFlow's, with nothing installed."""
        names = {name.rpartition(".")[2] for name in NEEDS}
        forgotten = []
        for title, case in op_cases.CASES.items():
            with tf.Graph().as_default():
                try:
                    case(tf)
                except ModuleNotFoundError as error:
                    made = case.__code__
                    codes = [made, *(c for c in made.co_consts if isinstance(c, CodeType))]
                    used = {name for code in codes for name in code.co_names}
                    used |= {str(one) for one in (case.__defaults__ or ())}
                    cells = [cell.cell_contents for cell in case.__closure__ or ()]
                    used |= {one for one in cells if isinstance(one, str)}
                    if not used & names:
                        forgotten.append((title, str(error)))
                except Exception:  # what the case is about
                    pass
        assert forgotten == []


FEATURES = {"x": tf.FixedLenSequenceFeature([], tf.int64)}

CALLS: dict[str, Any] = {
    "image.decode_and_crop_jpeg": lambda f, path: f(b"", [0, 0, 1, 1]),
    "image.encode_jpeg": lambda f, path: f(tf.zeros([1, 1, 3], tf.uint8)),
    "contrib.slim.tfexample_decoder.Image": lambda f, path: f("a", "b").tensors_to_item(
        {"a": tf.constant(b""), "b": tf.constant(b"png")}
    ),
    "TFRecordReader": lambda f, path: f().read(filled(path)),
    "data.TFRecordDataset": lambda f, path: f(path).make_one_shot_iterator().get_next(),
    "python_io.TFRecordWriter": lambda f, path: f(path),
    "python_io.tf_record_iterator": lambda f, path: next(f(path)),
    "train.summary_iterator": lambda f, path: next(f(path)),
    "python.ops.data_flow_ops.RecordInput": lambda f, path: f(path).get_yield_op(),
    "io.parse_single_sequence_example": lambda f, path: f(b"", sequence_features=FEATURES)[1]["x"],
}
"""How to use what does not take one string."""


def filled(path: str) -> Any:
    queue = tf.FIFOQueue(1, tf.string, [[]])
    tf.get_default_session().run(queue.enqueue(path))
    return queue


class TestCommand:
    def test_it_prints_all_and_tells_by_its_status(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        script = written(
            tmp_path, script="import tensorflow as tf\nwith tf.device(''): tf.gradients\n"
        )
        assert main(["--check", script]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "Absent:"
        assert lines[1].startswith(f"  {script}:2: tf.gradients is not in aioqueue.compat.v1: ")
        assert lines[2] == "Without effect:"
        assert lines[-1] == "1 absent and 1 without effect, in 1 file"

    def test_one_that_is_not_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--check", "no_such_script.py"]) == 2
        assert "can't open file 'no_such_script.py'" in capsys.readouterr().err
        assert main(["--check"]) == 2

    def test_tensorflow_is_not_taken_over(self, tmp_path: Path) -> None:
        before = [one for one in sys.modules if one.split(".")[0] == "tensorflow"]
        check(written(tmp_path, script="import tensorflow.python.ops.array_ops as a\na.reshape\n"))
        assert [one for one in sys.modules if one.split(".")[0] == "tensorflow"] == before


def test_names_are_found_as_a_script_finds_them() -> None:
    assert find("") is tf
    assert find("compat.v1.train.Coordinator") is tf.train.Coordinator
    assert find("python.training.coordinator.Coordinator") is tf.train.Coordinator
    assert find("python.ops.array_ops").reshape is tf.reshape
    refused(AttributeError, "", find, "ops")


def test_a_notebook_is_no_script(tmp_path: Path) -> None:
    notebook = tmp_path / "train.ipynb"
    notebook.write_text('{"cells": [{"source": ["import tensorflow as tf"]}]}', encoding="utf-8")
    (found,) = check(str(notebook)).absent
    assert "nbconvert --to script" in str(found)
