"""`tf.train.Saver`: what it writes, what it gives back, and what TensorFlow has written."""

from __future__ import annotations

import os
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.record_checkpoints import FOLDER, MANY, VALUES
from tests.compat.steps import refused

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
        refused(OSError, "no space", lambda: saver.save(sess, str(tmp_path / "m")))
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
        saver.restore(sess, path)
        assert sess.run(one) == 1

    def test_what_a_saver_is_and_counts(self, sess: Any, tmp_path: Path) -> None:
        one = tf.Variable(0)
        sess.run(one.initializer)
        saver = tf.train.Saver(write_version=tf.train.SaverDef.V1, max_to_keep=1)
        plain = saver.as_saver_def()
        assert (plain.version, plain.max_to_keep, plain.sharded) == (1, 1, False)
        assert plain.keep_checkpoint_every_n_hours == 10000.0
        paths = [saver.save(sess, str(tmp_path / "m"), global_step=step) for step in range(2)]
        times = tf.train.get_checkpoint_mtimes([*paths, str(FOLDER / "kinds"), "not there"])
        assert len(times) == 2
        saver.set_last_checkpoints(paths[1:])
        saver.save(sess, str(tmp_path / "m"), global_step=2)
        assert len(list(tmp_path.glob("*.npz"))) == 2, "what is counted so is never removed"
        saver.set_last_checkpoints_with_time([(paths[1], 0.0)])
        saver.save(sess, str(tmp_path / "m"), global_step=3)
        assert not tf.train.checkpoint_exists(paths[1])
        tf.train.remove_checkpoint(str(tmp_path / "m-2"))
        assert sorted(os.listdir(tmp_path)) == ["checkpoint", "m-3.npz"]

    def test_a_script_writes_which_one_is_the_latest(self, tmp_path: Path) -> None:
        folder, latest = str(tmp_path), f"{tmp_path}/m-2"
        tf.train.update_checkpoint_state(folder, latest, ["x/m-1"], "latest", [1.5, 2.0], 1.0)
        assert (tmp_path / "latest").read_text() == (
            f'model_checkpoint_path: "{latest}"\nall_model_checkpoint_paths: "x/m-1"\n'
            f'all_model_checkpoint_paths: "{latest}"\nall_model_checkpoint_timestamps: 1.5\n'
            "all_model_checkpoint_timestamps: 2.0\nlast_preserved_timestamp: 1.0\n"
        )
        with pytest.raises(ValueError, match="timestamps, if provided, must match"):
            tf.train.update_checkpoint_state(folder, latest, all_model_checkpoint_timestamps=[1, 2])
        with pytest.raises(RuntimeError, match="conflicts with path used for checkpoint state"):
            tf.train.update_checkpoint_state(folder, f"{tmp_path}/checkpoint")

    def test_another_checkpoint_is_noticed(
        self, sess: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = tf.Variable(0)
        sess.run(one.initializer)
        saver = tf.train.Saver()
        more = iter(range(2, 4))
        monkeypatch.setattr(  # another program saves while the iterator sleeps
            "time.sleep", lambda _: saver.save(sess, str(tmp_path / "m"), global_step=next(more))
        )
        saver.save(sess, str(tmp_path / "m"), global_step=1)
        found = tf.train.checkpoints_iterator(str(tmp_path), timeout=1.5)
        assert [Path(next(found)).name for _ in range(2)] == ["m-1", "m-2"]
        ends = iter([False, True])
        found = tf.train.checkpoints_iterator(str(tmp_path), 0, 0, lambda: next(ends))
        assert [Path(path).name for path in found] == ["m-2"]
        assert len(list(tf.train.checkpoints_iterator(str(tmp_path / "none"), timeout=0))) == 0


class TestDamage:
    """What is damaged is reported as that, or read as it was: never as something else."""

    def test_of_a_checkpoint(self, sess: Any, tmp_path: Path) -> None:
        made = variables()
        saver = tf.train.Saver(made)
        for variable, value in zip(made, VALUES.values(), strict=True):
            variable.load(value, sess)
        whole = Path(saver.save(sess, str(tmp_path / "m")) + ".npz").read_bytes()
        draw = random.Random(4)
        for number in range(2000):
            (tmp_path / "m.npz").write_bytes(mutated(whole, draw))
            try:
                saver.restore(sess, str(tmp_path / "m"))
            except tf.errors.DataLossError:
                continue
            pairs = zip(sess.run(made), VALUES.values(), strict=True)
            assert all(the_same(one, wanted) for one, wanted in pairs), number

    def test_of_lengths_and_shapes(self, sess: Any, tmp_path: Path) -> None:
        made = tf.Variable(["a", "bc"], name="v")
        path = str(tmp_path / "m.npz")
        for lengths in ([1, 3], [1, 1], [4, -1]):
            arrays: Any = {"v:lengths": lengths, "v:bytes": np.frombuffer(b"abc", np.uint8)}
            np.savez(path, **arrays)
            with pytest.raises(tf.errors.DataLossError, match="do not add up"):
                tf.train.Saver().restore(sess, str(tmp_path / "m"))
        np.savez_compressed(path, v=[1])
        with pytest.raises(tf.errors.DataLossError, match=r"v\.npy is compressed"):
            tf.train.Saver([made]).restore(sess, str(tmp_path / "m"))
        with zipfile.ZipFile(path, "w") as archive, archive.open("v.npy", "w") as member:
            np.lib.format.write_array(member, np.array([1]))
            member.write(b"more")
        with pytest.raises(tf.errors.DataLossError, match="longer than its shape"):
            tf.train.Saver([made]).restore(sess, str(tmp_path / "m"))

    def test_of_which_one_is_the_latest(self, tmp_path: Path) -> None:
        whole = STATE.format("/somewhere/\\303\\251 and").encode()
        draw = random.Random(4)
        for _ in range(2000):
            (tmp_path / "checkpoint").write_bytes(mutated(whole, draw))
            try:
                found = tf.train.get_checkpoint_state(str(tmp_path))
            except ValueError as error:
                assert "Invalid checkpoint state loaded" in str(error)
            else:
                assert found is None or found.model_checkpoint_path


def mutated(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    match draw.randrange(4):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + draw.randbytes(draw.randrange(1, 9)) + data[place:]
        case 2:
            return data[:place] + data[place + draw.randrange(1, 9) :]
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 4)):
        changed[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(changed)


class TestErrors:
    def test_of_making_one(self) -> None:
        refused(ValueError, "No variables to save", tf.train.Saver)
        tf.train.Saver(allow_empty=True)
        late = tf.train.Saver(defer_build=True)
        refused(RuntimeError, "has not been built", late.restore, None, "x")
        one = tf.Variable(1, name="one")
        late.build()
        with pytest.raises(ValueError, match="then build cannot be deferred"):
            tf.train.Saver([one], defer_build=True)
        refused(TypeError, r"should be passed in a dict or a list\. Got 3", tf.train.Saver, 3)
        refused(TypeError, "Not a variable: ", lambda: tf.train.Saver({"a": tf.constant(1)}))
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
            refused(kind, message, saver.restore, sess, str(FOLDER / "kinds"))
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
