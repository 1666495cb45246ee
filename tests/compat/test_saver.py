"""`tf.train.Saver`: what it writes, what it gives back, and what TensorFlow has written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.record_checkpoints import FOLDER, MANY, VALUES

STATE = 'model_checkpoint_path: "{0}/m-4"\nall_model_checkpoint_paths: "{0}/m-3"\n' + (
    'all_model_checkpoint_paths: "{0}/m-4"\n'
)


def variables() -> list[Any]:
    """One for each of the values, of the same shape and type, with nothing in it."""
    return [
        tf.Variable(
            np.full(np.asarray(one).shape, b"", object) if _is_text(one) else np.zeros_like(one),
            name=name,
        )
        for name, one in VALUES.items()
    ]


def _is_text(value: Any) -> bool:
    return isinstance(value, bytes) or value.dtype == object


def the_same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, bytes):
        return bool(found == wanted)
    is_same_type = np.asarray(found).dtype == np.asarray(wanted).dtype
    return is_same_type and np.array_equal(found, wanted)


class TestValues:
    def test_every_type_comes_back(self, sess: Any, tmp_path: Path) -> None:
        made = variables()
        saver = tf.train.Saver()
        for variable, value in zip(made, VALUES.values(), strict=True):
            variable.load(value, sess)
        path = saver.save(sess, str(tmp_path / "m"), global_step=made[0])
        assert path == str(tmp_path / "m-7")
        sess.run(tf.global_variables_initializer())
        saver.restore(sess, path)
        found = sess.run(made)
        pairs = zip(VALUES, found, VALUES.values(), strict=True)
        assert [name for name, one, wanted in pairs if not the_same(one, wanted)] == []

    def test_random_values_come_back(self, sess: Any, tmp_path: Path) -> None:
        draw = np.random.default_rng(5)
        wanted: list[Any] = []
        for number in range(25):
            shape = tuple(draw.integers(0, 4, draw.integers(0, 4)).tolist())
            if number % 3:
                kind = draw.choice(["f4", "f8", "i1", "i4", "i8", "u1", "u2", "?", "c8"])
                wanted.append(draw.integers(0, 200, shape).astype(kind))
            else:
                texts = np.empty(shape, object)
                for place in np.ndindex(*shape):
                    texts[place] = draw.bytes(int(draw.integers(0, 9)))
                wanted.append(texts)
        made = [tf.Variable(one, name=f"scope/v{n}") for n, one in enumerate(wanted)]
        empty = [tf.assign(one, tf.zeros_like(one)) for one in made]
        sess.run(tf.global_variables_initializer())
        saver = tf.train.Saver(made)
        path = saver.save(sess, str(tmp_path / "m"))
        sess.run(empty)
        saver.restore(sess, path)
        found = [np.asarray(one).tolist() for one in sess.run(made)]
        assert found == [one.tolist() for one in wanted]

    def test_names_of_ones_own_and_other_shapes(self, sess: Any, tmp_path: Path) -> None:
        one = tf.Variable([[1, 2, 3], [4, 5, 6]])
        sess.run(one.initializer)
        path = tf.train.Saver({"file": one}).save(sess, str(tmp_path / "m"))
        two = tf.Variable(tf.zeros([3, 2], tf.int32))
        tf.train.Saver({"file": two}, reshape=True).restore(sess, path)
        assert sess.run(two).tolist() == [[1, 2], [3, 4], [5, 6]]

    def test_a_finalized_graph_is_enough(self, sess: Any, tmp_path: Path) -> None:
        one = tf.Variable(3)
        sess.run(one.initializer)
        saver = tf.train.Saver()
        sess.graph.finalize()
        saver.restore(sess, saver.save(sess, str(tmp_path / "m")))
        assert sess.run(one) == 3


class TestFromTensorFlow:
    def test_every_type(self, sess: Any) -> None:
        made = variables()
        tf.train.Saver(made).restore(sess, str(FOLDER / "kinds"))
        pairs = zip(VALUES, sess.run(made), VALUES.values(), strict=True)
        assert [name for name, one, wanted in pairs if not the_same(one, wanted)] == []

    def test_many_names_that_begin_alike(self, sess: Any) -> None:
        numbers = (0, 7, 99, MANY - 1)
        made = [tf.Variable(-1, name=f"layer_{number}/kernel") for number in numbers]
        tf.train.Saver().restore(sess, str(FOLDER / "many"))
        assert tuple(sess.run(made)) == numbers

    def test_no_wrong_byte_gives_other_values(self, sess: Any, tmp_path: Path) -> None:
        pytest.importorskip("google_crc32c", reason="the extra `tfrecord` is not installed")
        made = variables()
        saver = tf.train.Saver(made)
        names = ("kinds.index", "kinds.data-00000-of-00001")
        whole = {name: (FOLDER / name).read_bytes() for name in names}
        for name, data in whole.items():
            for place in range(0, len(data), 7):
                for damaged in (data[:place], data[:place] + b"\xee" + data[place + 1 :]):
                    for one in names:
                        (tmp_path / one).write_bytes(damaged if one == name else whole[one])
                    try:
                        saver.restore(sess, str(tmp_path / "kinds"))
                    except tf.errors.OpError:
                        continue
                    # Not all of the table is about tensors.
                    pairs = zip(sess.run(made), VALUES.values(), strict=True)
                    assert all(the_same(one, wanted) for one, wanted in pairs), (name, place)


class TestFiles:
    def test_so_many_are_kept(self, sess: Any, tmp_path: Path) -> None:
        one = tf.Variable(0)
        sess.run(one.initializer)
        saver = tf.train.Saver(max_to_keep=2)
        shutil.copy(FOLDER / "many.index", tmp_path / "m-1.index")
        for step in range(1, 5):
            saver.save(sess, str(tmp_path / "m"), global_step=step)
        assert sorted(os.listdir(tmp_path)) == ["checkpoint", "m-3.npz", "m-4.npz"]
        assert (tmp_path / "checkpoint").read_text() == STATE.format(tmp_path)
        assert saver.last_checkpoints == [f"{tmp_path}/m-3", f"{tmp_path}/m-4"]
        assert tf.train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/m-4"
        again = tf.train.Saver(max_to_keep=1)
        state = tf.train.get_checkpoint_state(str(tmp_path))
        assert state is not None
        again.recover_last_checkpoints([*state.all_model_checkpoint_paths, "gone"])
        assert again.last_checkpoints == saver.last_checkpoints
        again.save(sess, str(tmp_path / "m"), global_step=9)
        assert sorted(os.listdir(tmp_path)) == ["checkpoint", "m-9.npz"]

    def test_one_of_each_so_many_hours_stays(self, sess: Any, tmp_path: Path) -> None:
        one = tf.Variable(0)
        sess.run(one.initializer)
        saver = tf.train.Saver(max_to_keep=1, keep_checkpoint_every_n_hours=0.0)
        for step in range(3):
            saver.save(sess, str(tmp_path / "m"), global_step=step)
        assert len(list(tmp_path.glob("*.npz"))) == 3

    def test_all_are_kept(self, sess: Any, tmp_path: Path) -> None:
        one = tf.Variable(0)
        sess.run(one.initializer)
        saver = tf.train.Saver(max_to_keep=None, pad_step_number=True)
        for step in range(7):
            saver.save(sess, str(tmp_path / "m"), global_step=step)
        assert len(list(tmp_path.glob("m-0000000?.npz"))) == 7
        assert saver.last_checkpoints == []

    def test_a_folder_can_be_moved(
        self, sess: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = tf.Variable(0)
        sess.run(one.initializer)
        monkeypatch.chdir(tmp_path)
        for relative, folder in ((True, tmp_path / "a"), (False, Path("b"))):
            folder.mkdir()
            saver = tf.train.Saver(save_relative_paths=relative)
            saver.save(sess, os.path.join(folder, 'm "é\\'))
            moved = tmp_path / f"moved {folder.name}"
            folder.rename(moved)
            assert tf.train.latest_checkpoint(str(moved)) == str(moved / 'm "é\\')

    def test_what_tensorflow_has_written_there(self, tmp_path: Path) -> None:
        assert tf.train.latest_checkpoint(str(tmp_path)) is None
        assert tf.train.get_checkpoint_state(str(tmp_path / "not there")) is None
        state = tmp_path / "checkpoint"
        state.write_text(
            'model_checkpoint_path: "\\303\\251"\nall_model_checkpoint_paths: "a"\n'
            "all_model_checkpoint_timestamps: 1.5\nlast_preserved_timestamp: 1.5\n"
        )
        found = tf.train.get_checkpoint_state(str(tmp_path))
        assert found is not None
        assert found.model_checkpoint_path == str(tmp_path / "é")
        assert found.all_model_checkpoint_paths == [str(tmp_path / "a")]
        assert tf.train.latest_checkpoint(str(tmp_path)) is None  # the files are not there
        state.write_text("what is this")
        assert tf.train.get_checkpoint_state(str(tmp_path)) is None
        state.write_text("")
        with pytest.raises(ValueError, match="Invalid checkpoint state"):
            tf.train.get_checkpoint_state(str(tmp_path))

    def test_a_save_that_fails_leaves_what_was_there(
        self, sess: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = tf.Variable(1)
        sess.run(one.initializer)
        saver = tf.train.Saver()
        path = saver.save(sess, str(tmp_path / "m"))
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

        def full(*arguments: Any, **options: Any) -> None:
            raise OSError("no space")

        monkeypatch.setattr(np.lib.format, "write_array", full)
        one.load(2, sess)
        with pytest.raises(OSError, match="no space"):
            saver.save(sess, str(tmp_path / "m"))
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
        saver.restore(sess, path)
        assert sess.run(one) == 1


class TestErrors:
    def test_of_making_one(self) -> None:
        with pytest.raises(ValueError, match="No variables to save"):
            tf.train.Saver()
        tf.train.Saver(allow_empty=True)
        late = tf.train.Saver(defer_build=True)
        with pytest.raises(RuntimeError, match="has not been built"):
            late.restore(None, "x")
        one = tf.Variable(1, name="one")
        late.build()
        with pytest.raises(TypeError, match=r"should be passed in a dict or a list\. Got 3"):
            tf.train.Saver(3)
        with pytest.raises(TypeError, match="Not a variable: "):
            tf.train.Saver({"a": tf.constant(1)})
        with pytest.raises(ValueError, match="At least two variables have the same name: one"):
            tf.train.Saver([one, one])

    def test_of_saving(self, sess: Any, tmp_path: Path) -> None:
        tf.Variable(1, name="one")
        saver = tf.train.Saver()
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value one"):
            saver.save(sess, str(tmp_path / "m"))
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(TypeError, match="'sess' must be a Session; 3"):
            saver.save(3, str(tmp_path / "m"))
        with pytest.raises(ValueError, match=r"Parent directory of .* doesn't exist, can't save\."):
            saver.save(sess, str(tmp_path / "no" / "m"))
        with pytest.raises(ValueError, match="collides with 'save_path'"):
            saver.save(sess, str(tmp_path / "checkpoint"))
        with pytest.raises(ValueError, match="must not contain path components"):
            saver.save(sess, str(tmp_path / "m"), latest_filename="a/b")

    def test_of_restoring(self, sess: Any, tmp_path: Path) -> None:
        kept = tf.Variable(np.zeros([2, 3], np.float32), name="a/w")
        sess.run(kept.initializer)
        with pytest.raises(ValueError, match="Can't load save_path when it is None"):
            tf.train.Saver().restore(sess, None)
        with pytest.raises(ValueError, match=r"not a valid checkpoint: .*zork"):
            tf.train.Saver().restore(sess, str(tmp_path / "zork"))
        wrong = {
            "Key other not found in checkpoint": (tf.errors.NotFoundError, "other", 1),
            r"lhs shape= \[3\] rhs shape= \[\]": (
                tf.errors.InvalidArgumentError,
                "double",
                [0.0] * 3,
            ),
            r"expected dtype int32 does not equal original dtype int64": (
                *(tf.errors.InvalidArgumentError, "global_step", 1),
            ),
        }
        for message, (kind, name, value) in wrong.items():
            dtype = tf.float64 if name == "double" else None
            saver = tf.train.Saver({"a/w": kept, name: tf.Variable(value, dtype=dtype)})
            with pytest.raises(kind, match=message):
                saver.restore(sess, str(FOLDER / "kinds"))
        assert not sess.run(kept).any()
        (tmp_path / "bad.npz").write_bytes(b"PK nothing of the kind")
        with pytest.raises(tf.errors.DataLossError, match=r"bad\.npz: damaged"):
            tf.train.Saver().restore(sess, str(tmp_path / "bad"))


class TestMonitoredSessions:
    def test_a_session_that_is_lost_goes_on_from_the_latest_checkpoint(
        self, tmp_path: Path
    ) -> None:
        more = tf.assign_add(tf.train.get_or_create_global_step(), 1)
        server = tf.train.Server.create_local_server()
        with tf.train.MonitoredTrainingSession(
            server.target, checkpoint_dir=str(tmp_path / "new"), save_checkpoint_steps=2
        ) as sess:
            assert [sess.run(more) for _ in range(3)] == [1, 2, 3]
            tf.Session.reset(server.target)
            assert sess.run(more) == 3  # 2 was saved
        assert tf.train.latest_checkpoint(str(tmp_path / "new")) == str(
            tmp_path / "new/model.ckpt-3"
        )

    def test_one_begins_with_a_checkpoint_of_tensorflow(self) -> None:
        step = tf.train.get_or_create_global_step()
        with tf.train.SingularMonitoredSession(
            checkpoint_filename_with_path=str(FOLDER / "kinds")
        ) as sess:
            assert sess.run(step) == 7

    def test_a_hook_needs_one_saver(self, tmp_path: Path) -> None:
        tf.train.get_or_create_global_step()
        made = [tf.train.Saver(), tf.train.Saver()]
        for saver in made:
            tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
        hook = tf.train.CheckpointSaverHook(str(tmp_path), save_steps=1)
        with pytest.raises(RuntimeError, match="More than one item in collection savers"):
            tf.train.MonitoredSession(hooks=[hook])
        given = tf.train.CheckpointSaverHook(str(tmp_path), save_steps=1, saver=made[1])
        tf.train.MonitoredSession(hooks=[given]).close()
        assert made[1].last_checkpoints == [str(tmp_path / "model.ckpt-0")]
