"""Summaries: ops that do nothing, and event files where something writes them."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.summaries import writer as backends
from aioqueue.compat.v1.summaries import writer as writers
from tests.compat.steps import refused


@pytest.fixture
def inert(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is installed that writes event files."""
    monkeypatch.setattr(backends, "CHOICES", (("no_such_library",),))
    monkeypatch.setattr(writers, "_has_said_so", threading.Event())
    backends.can_write.cache_clear()
    yield
    backends.can_write.cache_clear()


@pytest.fixture
def events() -> Any:
    """What reads the values of event files back; with a backend that writes them."""
    pytest.importorskip("tensorboardX", reason="the extra `summaries` is not installed")
    pytest.importorskip("google_crc32c", reason="the extra `tfrecord` is not installed")

    def read(folder: Path) -> list[tuple[int, str, Any]]:
        return [
            (event.step, value.tag, value)
            for path in sorted(folder.iterdir())
            for event in tf.train.summary_iterator(str(path))
            for value in event.summary.value
        ]

    return read


@pytest.mark.usefixtures("inert")
class TestInert:
    def test_every_kind_gives_an_empty_summary(self, sess: Any) -> None:
        pictures = tf.zeros([1, 2, 2, 3])
        made = [
            tf.summary.scalar("a", 1.0), tf.summary.histogram("b", [1.0, 2.0]),
            tf.summary.image("c", pictures), tf.summary.audio("d", [[0.0]], 8000),
            tf.summary.text("e", "text"), tf.summary.tensor_summary("f", [1]),
            tf.scalar_summary("g", 1.0), tf.histogram_summary("h", [1.0]),
            tf.image_summary("i", pictures), tf.audio_summary("j", [[0.0]], 8000),
        ]  # fmt: skip
        merged = tf.summary.merge_all()
        assert merged is not None
        assert sess.run(made) == [b""] * len(made)
        assert sess.run([merged, tf.merge_all_summaries(), tf.merge_summary(made)]) == [b""] * 3

    def test_a_writer_writes_nothing_and_says_so_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "tensorflow"):
            for name in ("one", "two"):
                with tf.summary.FileWriter(str(tmp_path / name), tf.get_default_graph()) as writer:
                    writer.add_summary(b"", 1)
                    writer.add_graph(tf.get_default_graph())
                    writer.add_event(None)
                    writer.flush()
                    writer.close()
                    writer.reopen()
                    assert writer.get_logdir() == str(tmp_path / name)
                assert list((tmp_path / name).iterdir()) == []
        told = [one for one in caplog.messages if "'.[summaries]'" in one]
        assert len(told) == 1

    def test_hooks_run(self, tmp_path: Path) -> None:
        step = tf.train.get_or_create_global_step()
        tf.summary.scalar("x", 1.0)
        train = tf.assign_add(step, 1)
        hooks = [tf.train.StopAtStepHook(last_step=3)]
        with tf.train.MonitoredTrainingSession(
            hooks=hooks, summary_dir=str(tmp_path), save_summaries_steps=1
        ) as sess:
            while not sess.should_stop():
                sess.run(train)
        tf.summary.FileWriterCache.clear()
        assert list(tmp_path.iterdir()) == []

    def test_what_they_summarize_is_computed_all_the_same(self, sess: Any) -> None:
        calls = []

        def call() -> np.float32:
            calls.append(1)
            return np.float32(1)

        summary = tf.summary.scalar("x", tf.py_func(call, [], tf.float32))
        sess.run(summary)
        assert len(calls) == 1


class TestFolders:
    """Scripts save into the folder of their writer, which TensorFlow's writer makes."""

    @pytest.fixture(params=["inert", "as installed"], autouse=True)
    def with_and_without_a_backend(self, request: Any) -> None:
        if request.param == "inert":
            request.getfixturevalue("inert")

    @pytest.mark.parametrize("scheme", ["", "file://"])
    def test_a_writer_makes_its_folder(self, tmp_path: Path, sess: Any, scheme: str) -> None:
        tf.Variable(1, name="v")
        saver = tf.train.Saver()
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            with tf.summary.FileWriter(f"{scheme}{tmp_path}/a/b", sess.graph) as writer:
                assert writer.get_logdir() == f"{scheme}{tmp_path}/a/b"
        saver.save(sess, f"{tmp_path}/a/b/model")
        assert [one.name for one in tmp_path.iterdir()] == ["a"]

    def test_a_folder_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(tf.errors.FailedPreconditionError, match="file is not a directory"):
            tf.summary.FileWriter(str(tmp_path / "file"))

    def test_a_cache_and_a_training_session_make_theirs(self, tmp_path: Path) -> None:
        train = tf.assign_add(tf.train.get_or_create_global_step(), 1)
        tf.summary.FileWriterCache.get(str(tmp_path / "cached"))
        tf.summary.FileWriterCache.clear()
        for options in (
            {"summary_dir": str(tmp_path / "s" / "1")},
            {"checkpoint_dir": str(tmp_path / "s" / "2"), "save_checkpoint_secs": None},
        ):
            with tf.train.MonitoredTrainingSession(**options) as sess:
                sess.run(train)
        assert (tmp_path / "cached").is_dir()
        assert sorted(one.name for one in (tmp_path / "s").iterdir()) == ["1", "2"]


@pytest.mark.filterwarnings("ignore:Attempting to use a closed FileWriter")
class TestReopening:
    """A writer in any order of its calls: what is added while it is open is there, once."""

    def test_calls_in_any_order(self, tmp_path: Path, events: Any) -> None:
        draw = random.Random(46)
        for number in range(30):
            folder, is_open, expected = tmp_path / str(number), True, []
            writer = tf.summary.FileWriter(str(folder))
            for step in range(draw.randint(1, 7)):
                call = draw.choice(("add", "add event", "close", "reopen", "flush"))
                if call == "add":
                    writer.add_summary(summary(), step)
                elif call == "add event":
                    writer.add_event(tf.Event(step=step, summary=summary()))
                else:
                    getattr(writer, call)()
                is_open = (is_open or call == "reopen") and call != "close"
                expected += [step] if is_open and call.startswith("add") else []
            writer.close()
            assert sorted(step for step, _, _ in events(folder)) == expected

    def test_writers_of_one_folder_do_not_share_a_file(self, tmp_path: Path, events: Any) -> None:
        writers = [tf.summary.FileWriter(str(tmp_path), filename_suffix=".x") for _ in range(3)]
        for step, one in enumerate(writers):
            one.add_summary(summary(), step)
        for one in writers:
            one.close()
        assert [step for step, _, _ in events(tmp_path)] == [0, 1, 2]
        assert {one.suffix for one in tmp_path.iterdir()} == {".x"}

    def test_a_supervisor_manages_one_session_after_another(
        self, tmp_path: Path, events: Any
    ) -> None:
        step = tf.train.get_or_create_global_step()
        train = tf.assign_add(step, 1)
        tf.summary.scalar("x", 1.0)
        supervisor = tf.train.Supervisor(logdir=str(tmp_path), save_model_secs=0)
        assert supervisor.summary_writer is not None
        for turn in (1, 2, 3):
            with supervisor.managed_session() as sess:
                assert sess.run(train) == turn
                supervisor.summary_writer.add_summary(summary(), turn)
                supervisor.saver.save(sess, supervisor.save_path, step)
        mine = {one for one in tmp_path.iterdir() if "tfevents" not in one.name}
        for one in mine:
            one.unlink()
        assert {1, 2, 3} <= {number for number, tag, _ in events(tmp_path) if tag == "by hand"}


def summary() -> Any:
    return tf.Summary(value=[tf.Summary.Value(tag="by hand", simple_value=1.0)])


class TestGraph:
    def test_names_and_collections(self) -> None:
        with tf.name_scope("train"):
            one = tf.summary.scalar("loss rate", 1.0)
            two = tf.summary.scalar("loss rate", 1.0, family="all")
        three = tf.summary.scalar("x", 1.0, collections=["mine"])
        assert [one.op.name, two.op.name] == ["train/loss_rate", "train/all/loss_rate"]
        assert tf.get_collection(tf.GraphKeys.SUMMARIES) == [one, two]
        assert tf.get_collection("mine") == [three]
        assert tf.summary.merge_all("none") is None

    def test_text_is_of_strings(self) -> None:
        refused(ValueError, "to have dtype string", tf.summary.text, "t", 1)

    def test_input_pipelines_summarize_how_full_they_are(self) -> None:
        names = tf.train.string_input_producer(["a", "b"])
        key = names.dequeue()
        tf.train.batch([key], 2)
        tf.train.shuffle_batch([key], 2, capacity=10, min_after_dequeue=4)
        found = [one.op.name for one in tf.get_collection(tf.GraphKeys.SUMMARIES)]
        assert found == [
            "input_producer/fraction_of_32_full",
            "batch/fraction_of_32_full",
            "shuffle_batch/fraction_over_4_of_6_full",
        ]


class TestEventFiles:
    def test_they_are_read_back(self, sess: Any, tmp_path: Path, events: Any) -> None:
        x = tf.placeholder(tf.float32, [None])
        tf.summary.scalar("total", tf.reduce_sum(x))
        tf.summary.histogram("values", x)
        tf.summary.text("words", tf.constant(["a", "b"]))
        tf.summary.audio("tone", tf.reshape(x, [1, -1]), 100, max_outputs=1)
        merged = tf.summary.merge_all()
        with tf.summary.FileWriter(str(tmp_path)) as writer:
            for step in range(2):
                writer.add_summary(sess.run(merged, {x: [step, 0.5, -1.0]}), step)
            value = tf.Summary.Value(tag="own", simple_value=7)
            writer.add_summary(tf.Summary(value=[value]), 9)
        found = events(tmp_path)
        assert [(step, tag) for step, tag, _ in found] == [
            *(
                (step, tag)
                for step in range(2)
                for tag in ("total", "values", "words", "tone/audio")
            ),
            (9, "own"),
        ]
        by_name = {(step, tag): value for step, tag, value in found}
        assert by_name[1, "total"].simple_value == 0.5
        histogram = by_name[1, "values"].histo
        assert (histogram.min, histogram.max, histogram.num) == (-1, 1, 3)
        assert sum(histogram.bucket) == 3
        assert list(by_name[1, "words"].tensor.string_val) == [b"a", b"b"]
        assert by_name[1, "words"].metadata.plugin_data.plugin_name == "text"
        assert by_name[0, "tone/audio"].audio.length_frames == 3
        assert by_name[9, "own"].simple_value == 7

    def test_the_buckets_of_a_histogram_are_those_of_tensorflow(self, sess: Any) -> None:
        pytest.importorskip("google.protobuf", reason="the extra `tfrecord` is not installed")
        from aioqueue.compat.v1.summaries.ops import encoded_histogram

        values = [1, 2, 3, -4, 1e-13, 0, 0.5, *[7] * 10]
        found = tf.Summary.FromString(encoded_histogram("h", np.array(values))).value[0].histo
        assert list(found.bucket_limit) == [
            *(-4.214722379471477, -3.8315657995195243, 0.0, 1e-12, 0.47069243095356195),
            *(0.5177616740489182, 0.917246389039776, 1.0089710279437536, 1.9661990955585713),
            *(2.1628190051144287, 2.8787120958073054, 3.1665833053880363, 6.7878525393626115),
            *(7.466637793298873, 1.7976931348623157e308),
        ]
        assert list(found.bucket) == [0, 1, 0, 2, 0, 1, 0, 1, 0, 1, 0, 1, 0, 10, 0]

    def test_pictures(self, sess: Any, tmp_path: Path, events: Any) -> None:
        pytest.importorskip("PIL", reason="the extra `images` is not installed")
        pictures = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
        summary = tf.summary.image("pictures", pictures)
        with tf.summary.FileWriter(str(tmp_path)) as writer:
            writer.add_summary(sess.run(summary))
        found = events(tmp_path)
        assert [tag for _, tag, _ in found] == ["pictures/image/0", "pictures/image/1"]
        read = tf.image.decode_png(found[1][2].image.encoded_image_string)
        np.testing.assert_array_equal(sess.run(read), pictures[1])

    def test_numbers_become_shades(self, sess: Any, events: Any) -> None:
        pytest.importorskip("PIL", reason="the extra `images` is not installed")
        numbers = np.array([-2.0, 0, 1, 2]).reshape(1, 2, 2, 1)
        for given, shades in ((numbers, [1, 128, 191, 255]), (np.abs(numbers), [255, 0, 127, 255])):
            data = sess.run(tf.summary.image("p", given.astype(np.float32)))
            (value,) = tf.Summary.FromString(data).value
            read = sess.run(tf.image.decode_png(value.image.encoded_image_string))
            assert read.ravel().tolist() == shades

    def test_what_cannot_be_summarized(self, sess: Any, events: Any) -> None:
        for made, message in (
            (tf.summary.scalar("s", [1.0, 2.0]), "not the same shape"),
            (tf.summary.histogram("h", [np.nan]), "Nan in summary histogram for: h"),
            (tf.summary.image("i", [1.0]), "Tensor must be 4-D"),
            (tf.summary.audio("a", [1.0], 8000), "Tensor must be 3-D or 2-D"),
        ):
            refused(tf.errors.InvalidArgumentError, message, sess.run, made)

    def test_a_closed_writer(self, tmp_path: Path, events: Any) -> None:
        writer = tf.train.SummaryWriter(str(tmp_path / "logs"))
        writer.close()
        with pytest.warns(UserWarning, match="closed FileWriter"):
            writer.add_summary(b"", 1)

    def test_events(self, tmp_path: Path, events: Any) -> None:
        with tf.summary.FileWriter(str(tmp_path)) as writer:
            writer.add_event(tf.Event(wall_time=12.5, step=3, file_version="x"))
        (path,) = tmp_path.iterdir()
        found = list(tf.train.summary_iterator(str(path)))[1:]  # the file's version comes first
        assert [(one.step, one.WhichOneof("what")) for one in found] == [(3, "file_version")]
        assert found[0].wall_time == 12.5
