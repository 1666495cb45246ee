"""`tf.train.Supervisor`: sessions that are ready, threads that end, what is raised at the end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import Step, refused
from tests.kit.worlds import spin_until


def test_it_goes_on_from_the_latest_checkpoint(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        with tf.Graph().as_default():
            step = tf.train.get_or_create_global_step()
            more = tf.assign_add(step, 1)
            sv = tf.train.Supervisor(logdir=tmp_path / "deep" / "logs", save_model_secs=0)
            with sv.managed_session() as sess:
                found.append(sess.run(step))
                sess.run(more)
                sv.saver.save(sess, sv.save_path, global_step=sv.global_step)
    assert found == [0, 1]
    assert [path.name for path in sorted((tmp_path / "deep" / "logs").glob("*.npz"))] == [
        "model.ckpt-1.npz",
        "model.ckpt-2.npz",
    ]


def test_it_saves_at_once_and_from_time_to_time(tmp_path: Path) -> None:
    tf.train.get_or_create_global_step()
    sv = tf.train.Supervisor(logdir=tmp_path, save_model_secs=0.01, save_summaries_secs=0)
    with sv.managed_session():
        spin_until(lambda: tf.train.latest_checkpoint(str(tmp_path)) is not None)
        (tmp_path / "checkpoint").unlink()
        spin_until(lambda: tf.train.latest_checkpoint(str(tmp_path)) is not None)


def test_the_end_of_the_input_ends_the_block() -> None:
    queue = tf.train.range_input_producer(3, num_epochs=1, shuffle=False)
    number = queue.dequeue()
    sv = tf.train.Supervisor()
    got = []
    with sv.managed_session() as sess:
        while not sv.should_stop():
            got.append(sess.run(number))
    assert got == [0, 1, 2]
    assert sv.should_stop()
    refused(RuntimeError, "closed Session", sess.run, number)


@pytest.mark.parametrize("where", ["block", "loop", "context"])
def test_a_failure_is_raised_when_the_block_is_left(where: str) -> None:
    sv = tf.train.Supervisor(logdir=None)
    error = ValueError(where)

    def fail() -> None:
        raise error

    with pytest.raises(ValueError, match=where) as caught, sv.managed_session():
        if where == "block":
            fail()
        elif where == "loop":
            sv.loop(None, fail)
        else:
            with sv.stop_on_exception():
                fail()
        sv.wait_for_stop()
    assert caught.value is error


@pytest.mark.parametrize("ended_by", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_ends_the_threads(ended_by: type[BaseException]) -> None:
    sv = tf.train.Supervisor()
    called = threading.Event()
    with pytest.raises(ended_by), sv.managed_session() as sess:
        looper = sv.loop(None, called.set)
        called.wait()
        raise ended_by
    assert not looper.is_alive()
    refused(RuntimeError, "closed Session", sess.run, [])


def test_what_is_not_initialised_is_named_and_the_session_closed() -> None:
    one = tf.Variable(1, name="one")
    tf.Variable(2, name="two")
    sv = tf.train.Supervisor(init_op=one.initializer)
    with (
        pytest.raises(
            RuntimeError, match=r"did not make model ready.*Variables not initialized: two"
        ),
        sv.managed_session(),
    ):
        pass
    with tf.Graph().as_default():
        sv = tf.train.Supervisor(init_op=None, local_init_op=None)
        with pytest.raises(RuntimeError, match="no init_op or init_fn or local_init_op"):
            sv.prepare_or_wait_for_session()


def test_one_that_is_no_chief_waits_for_the_chief() -> None:
    server = tf.train.Server.create_local_server()
    number = tf.Variable(7, name="number")
    chief = tf.train.Supervisor()
    other = tf.train.Supervisor(is_chief=False, recovery_wait_secs=0.005, saver=None)
    with pytest.raises(tf.errors.DeadlineExceededError, match="not ready after waiting 0 secs"):
        other.prepare_or_wait_for_session(server.target, max_wait_secs=0.001)
    waiting = Step(lambda: other.prepare_or_wait_for_session(server.target))
    with chief.managed_session(server.target), waiting.result() as sess:
        assert sess.run(number) == 7
    refused(RuntimeError, "Only chief supervisor", other.start_standard_services, None)


def test_a_summary_goes_to_the_writer(tmp_path: Path) -> None:
    written: list[Any] = []

    class Writer:
        def add_summary(self, summary: Any, step: Any) -> None:
            written.append((summary, step))

        def reopen(self) -> None:
            written.append("reopened")

        def close(self) -> None:
            written.append("closed")

    tf.train.get_or_create_global_step()
    sv = tf.train.Supervisor(
        logdir=tmp_path, summary_op=tf.constant(b"all"), summary_writer=Writer(), saver=None
    )
    with sv.managed_session() as sess:
        spin_until(lambda: len(written) == 2)
        sv.summary_computed(sess, b"one", 5)
    assert written == ["reopened", (b"all", 0), (b"one", 5), "closed"]


def test_what_tensorflow_makes_can_be_left_out_or_be_the_scripts_own() -> None:
    own = tf.constant(np.array([], object), tf.string)
    tf.add_to_collection(tf.GraphKeys.READY_OP, own)
    sv = tf.train.Supervisor(saver=None, global_step=None)
    assert sv.ready_op is own
    assert (sv.saver, sv.global_step, sv.save_path, sv.summary_writer) == (None,) * 4
    assert tf.train.Supervisor.USE_DEFAULT == 0
    assert sv.ShouldStop() is False


def test_a_session_manager_is_the_scripts_own_or_made() -> None:
    value = tf.Variable(3)
    sv = tf.train.Supervisor()
    with sv.session_manager.prepare_session("", init_op=sv.init_op) as sess:
        assert sess.run(value) == 3
    with tf.Graph().as_default():
        own = tf.train.SessionManager(ready_op=tf.no_op())
        assert tf.train.Supervisor(session_manager=own).session_manager is own


class TestSessionManager:
    def test_it_initialises_the_model_or_says_what_is_missing(self) -> None:
        value = tf.Variable(3, name="v")
        manager = tf.train.SessionManager(ready_op=tf.report_uninitialized_variables())
        with pytest.raises(RuntimeError, match="no init_op or init_fn or local_init_op was given"):
            manager.prepare_session("")
        with pytest.raises(RuntimeError, match=r"model ready\.  Init op: nix, .* initialized: v"):
            manager.prepare_session("", init_op=tf.no_op(name="nix"))
        with manager.prepare_session("", init_fn=lambda sess: sess.run(value.initializer)) as sess:
            assert sess.run(value) == 3
        late = tf.train.SessionManager(tf.no_op(), None, tf.report_uninitialized_variables())
        with pytest.raises(RuntimeError, match=r"ready for local_init\.  .* initialized: v"):
            late.prepare_session("", init_op=tf.no_op())
        with pytest.raises(ValueError, match="you must also pass a local_init_op"):
            tf.train.SessionManager(ready_for_local_init_op=tf.no_op())

    def test_it_recovers_what_was_saved(self, tmp_path: Path) -> None:
        value = tf.Variable(3, name="v")
        manager, saver = tf.train.SessionManager(), tf.train.Saver()
        sess, is_restored = manager.recover_session("", saver, str(tmp_path))
        assert not is_restored
        value.load(5, sess)
        path = saver.save(sess, str(tmp_path / "m"))
        for where in ((str(tmp_path),), (None, path)):
            sess, is_restored = manager.recover_session("", saver, *where)
            assert (is_restored, sess.run(value)) == (True, 5)
        unready = tf.train.SessionManager(ready_op=tf.constant([b"other"]))
        assert unready.recover_session("", saver, str(tmp_path))[1] is False
        with pytest.raises(ValueError, match="Can not provide both"):
            manager.recover_session("", saver, str(tmp_path), path)

    def test_a_check_that_fails_means_not_ready(self) -> None:
        value = tf.Variable(3, name="v")
        server = tf.train.Server.create_local_server()
        with tf.control_dependencies([value.op]):
            manager = tf.train.SessionManager(ready_op=tf.constant([], tf.string))
        unready = tf.train.SessionManager(ready_op=value, recovery_wait_secs=5)
        with pytest.raises(tf.errors.DeadlineExceededError, match="after waiting 0 secs"):
            unready.wait_for_session(server.target, max_wait_secs=0.4)
        manager.prepare_session(server.target, init_op=value.initializer)
        assert unready.wait_for_session(server.target).run(value) == 3
        wrong = tf.placeholder(tf.int32)
        with pytest.raises(tf.errors.InvalidArgumentError, match="must feed a value"):
            tf.train.SessionManager(ready_op=wrong).wait_for_session("")
