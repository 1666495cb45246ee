"""Readers, where no record of TensorFlow tells: who waits, what is refused, what is closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aioqueue.compat.v1 as tf
from aioqueue.testing import wait_until_waiting
from tests.compat.steps import Step, blocked, refused
from tests.kit.processing import HAS_PROC, open_files


def work(sess: Any, *items: str | Path, close: bool = True) -> Any:
    """A queue with some items of work."""
    queue = tf.FIFOQueue(100, tf.string, [()], name="work")
    sess.run(queue.enqueue_many([[str(item) for item in items]]))
    if close:
        sess.run(queue.close())
    return queue


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\r\n\nfo\rur")
    return path


class TestBlocking:
    def test_a_blocked_read_has_the_reader_alone(self, sess: Any) -> None:
        queue = work(sess, close=False)
        reader = tf.IdentityReader()
        produced = reader.num_records_produced()
        sess.run(produced)
        reading = blocked(sess, queue, reader.read(queue))
        looking = Step(lambda: sess.run(produced))
        resetting = Step(lambda: sess.run(reader.reset()))
        turn = sess.run(reader.reader_ref)._turn
        wait_until_waiting(turn, dequeues=2)
        assert not looking.done
        assert not resetting.done
        sess.run(queue.enqueue("a"))
        assert reading.result() == (b"a", b"a")
        resetting.result()
        assert looking.result() in (0, 1)

    def test_closing_the_session_ends_those_who_wait(self, graph: Any) -> None:
        sess = tf.Session()
        queue = work(sess, close=False)
        reader = tf.IdentityReader()
        sess.run(reader.num_records_produced())
        reading = blocked(sess, queue, reader.read(queue))
        looking = Step(lambda: sess.run(reader.num_records_produced()))
        turn = sess.run(reader.reader_ref)._turn
        wait_until_waiting(turn, dequeues=1)
        sess.close()
        refused(tf.errors.CancelledError, "", reading.result)
        refused(tf.errors.CancelledError, "", looking.result)

    def test_a_timeout_loses_nothing(self, sess: Any, text: Path) -> None:
        queue = work(sess, close=False)
        read = tf.TextLineReader().read(queue)
        with pytest.raises(tf.errors.DeadlineExceededError):
            sess.run(read, options=tf.RunOptions(timeout_in_ms=1))
        sess.run(queue.enqueue(str(text)))
        assert sess.run(read).value == b"one"

    def test_reading_and_filling_the_queue_in_one_run(self, sess: Any) -> None:
        queue = work(sess, close=False)
        value, _ = sess.run([tf.IdentityReader().read(queue).value, queue.enqueue("a")])
        assert value == b"a"


@pytest.mark.parametrize(
    ("read", "error", "message"),
    [
        (lambda work: tf.TextLineReader().read(work("missing")), "NotFound", "missing; No such"),
        (lambda work: tf.WholeFileReader().read(work("missing")), "NotFound", "missing; No such"),
        (lambda work: tf.TextLineReader(-1).read(work("a")), "InvalidArgument", "must be >= 0"),
        (
            lambda work: tf.FixedLengthRecordReader(1, -1).read(work("a")),
            "InvalidArgument",
            "header_bytes must be >= 0 not -1",
        ),
        # TensorFlow would have read them for ever, or crashed.
        (
            lambda work: tf.FixedLengthRecordReader(0).read(work("a")),
            "InvalidArgument",
            "record_bytes must be > 0",
        ),
        (
            lambda work: tf.TextLineReader().read_up_to(work("a"), -1),
            "InvalidArgument",
            "num_records: got -1",
        ),
        (lambda work: tf.IdentityReader().read(work()), "OutOfRange", "insufficient elements"),
        (lambda work: tf.TextLineReader().serialize_state(), "Unimplemented", "SerializeState"),
        (lambda work: tf.TextLineReader().restore_state(b""), "Unimplemented", "RestoreState"),
    ],
)
def test_what_is_refused_is_reported(sess: Any, read: Any, error: str, message: str) -> None:
    with pytest.raises(getattr(tf.errors, f"{error}Error"), match=message):
        sess.run(read(lambda *items: work(sess, *items)))


@pytest.mark.parametrize(
    ("dtypes", "element", "message"),
    [
        ([tf.string, tf.string], ("a", "b"), "Expected single component queue"),
        ([tf.int32], (1,), "Expected queue with single string component"),
        ([tf.string], (["a", "b"],), "Expected to dequeue a one-element string tensor"),
    ],
)
def test_work_must_be_one_string(sess: Any, dtypes: Any, element: Any, message: str) -> None:
    queue = tf.FIFOQueue(5, dtypes)
    sess.run(queue.enqueue(element))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        sess.run(tf.IdentityReader().read(queue))


def test_nothing_is_read_for_no_records(sess: Any, text: Path) -> None:
    queue = work(sess, text)
    assert sess.run(tf.TextLineReader().read_up_to(queue, 0)).keys.tolist() == []
    assert sess.run(queue.size()) == 1


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (b"garbage", "^Could not parse state for IdentityReader 'reader': garbage"),
        (b"\x08" + b"\xff" * 9 + b"\x01", "^Unexpected negative value .* work_started: -1"),
        (b"\x08\x02\x10\x01\x22\x01B", "^Inconsistent work started vs. finished .*'reader'"),
    ],
)
def test_a_wrong_state_is_refused(sess: Any, state: bytes, message: str) -> None:
    pytest.importorskip("google.protobuf", reason="the extra `tfrecord` is not installed")
    reader = tf.IdentityReader(name="reader")
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"(?s){message}"):
        sess.run(reader.restore_state(state))


def test_a_file_that_fails_after_a_restored_state_is_passed_over(sess: Any, text: Path) -> None:
    """By its state, the reader is not at work on it; else it would try that file again."""
    pytest.importorskip("google.protobuf", reason="states of readers need protobuf")
    reader = tf.WholeFileReader()
    read = reader.read(work(sess, "missing", str(text)))
    sess.run(reader.restore_state(b"\x08\x01\x10\x02"))  # one started, two finished
    refused(tf.errors.NotFoundError, "missing", sess.run, read)
    assert sess.run(read)[0] == str(text).encode()


def test_closing_the_session_closes_the_file(graph: Any, text: Path) -> None:
    """Also while somebody uses the reader: then by whoever does."""
    sess = tf.Session()
    reader = tf.TextLineReader()
    read = reader.read(work(sess, text, close=False))
    before = open_files()
    sess.run(read)
    assert open_files() == before + HAS_PROC
    sess.run(reader.reader_ref).use(sess.close)
    assert open_files() == before
