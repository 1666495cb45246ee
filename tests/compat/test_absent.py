"""Names that are not there say so, why, and what is near."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.absent import PACKAGE, REASONS, AbsentNameError
from aioqueue.compat.v1.protos import example_classes
from aioqueue.readers import tfrecord
from tests.compat.steps import refused


def found(path: str) -> Any:
    """What is at a path, such as ``train.Coordinator``."""
    thing: Any = tf
    for name in path.split("."):
        thing = getattr(thing, name)
    return thing


class TestErrors:
    @pytest.mark.parametrize(
        ("path", "why"),
        [
            ("gradients", "gradients and optimisers belong to your framework"),
            ("train.AdamOptimizer", "gradients and optimisers belong to your framework"),
            ("layers", "layers and models belong to your framework"),
            ("keras", "layers and models belong to your framework"),
            ("nn.conv2d", "layers and models belong to your framework"),
            ("contrib.staging.MapStagingArea", "run it from a program that first sets the name"),
            ("train.Checkpoint", "tf.train.Saver saves and restores"),
            ("profiler", "nothing is traced"),
            ("contrib.summary", "tf.summary.FileWriter"),
            ("zork", "run it from a program that first sets the name"),
            ("python.zork", "private to TensorFlow"),
            ("data.experimental.CsvDataset", "tf.data has the part that scripts with queues use"),
            ("LMDBReader", "lmdb"),
        ],
    )
    def test_they_say_what_it_would_need(self, path: str, why: str) -> None:
        refused(AbsentNameError, rf"^tf\.\S+ is not in {PACKAGE}: .*{why}", found, path)

    def test_they_are_what_programs_catch(self) -> None:
        with pytest.raises(AttributeError):
            _ = tf.gradients
        with pytest.raises(NotImplementedError):
            _ = tf.gradients
        assert not hasattr(tf, "gradients")
        assert getattr(tf.train, "AdamOptimizer", None) is None

    @pytest.mark.parametrize(
        ("path", "near"),
        [
            ("Coordinator", "tf.train.Coordinator"),
            ("QueueRunner", "tf.train.QueueRunner"),
            ("train.FIFOQueue", "tf.FIFOQueue"),
            ("TFRecordWriter", "tf.python_io.TFRecordWriter"),
            ("FIFOQeue", "tf.FIFOQueue"),
            ("train.shufle_batch", "tf.train.shuffle_batch"),
            ("fifoqueue", "tf.FIFOQueue"),
            ("bucket", "tf.contrib.training.bucket"),
        ],
    )
    def test_they_name_what_is_near(self, path: str, near: str) -> None:
        with pytest.raises(AbsentNameError, match=r"Near it: ") as caught:
            found(path)
        assert near in str(caught.value).split("Near it: ")[1].split(", ")

    def test_special_names_are_missing_as_from_any_module(self) -> None:
        with pytest.raises(AttributeError, match="has no attribute '__wrapped__'") as caught:
            _ = tf.__wrapped__
        assert not isinstance(caught.value, AbsentNameError)


class TestExtras:
    def test_messages_say_how_to_install_what_they_need(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "google.protobuf", None)
        example_classes.cache_clear()
        with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[tfrecord\]'"):
            _ = tf.train.Example
        with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[tfrecord\]'"):
            exec("from aioqueue.compat.v1.train import Example")

    def test_so_do_records(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setitem(sys.modules, "google_crc32c", None)
        tfrecord.required_crc32c.cache_clear()  # which another test may have asked for
        with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[tfrecord\]'"):
            list(tf.python_io.tf_record_iterator(str(tmp_path / "r")))
        with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[tfrecord\]'"):
            tf.python_io.TFRecordWriter(str(tmp_path / "r"))


class TestReasons:
    def test_what_has_a_reason_is_not_there(self) -> None:
        """Or it is a namespace of which a part is there, and the reason is that of the rest."""
        wrong = []
        for path, reason in REASONS.items():
            try:
                thing = found(path)
            except AbsentNameError as error:
                if reason not in str(error):
                    wrong.append(path)
            else:
                if not isinstance(thing, ModuleType) or hasattr(thing, "something_else"):
                    wrong.append(path)
        assert wrong == []

    def test_every_namespace_explains(self) -> None:
        for name in tf.__all__:
            if isinstance(getattr(tf, name), ModuleType):
                with pytest.raises(AbsentNameError, match=rf"tf\.{name}\.something_else is not in"):
                    _ = getattr(tf, name).something_else
