"""Readers in a session: keys, records, counters, what is skipped, what is tried again."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aioqueue.compat.v1 as tf
from aioqueue.testing import wait_until_waiting
from tests.compat.steps import Step, blocked
from tests.kit.processing import HAS_PROC, open_files

CLOSED = r"FIFOQueue '_\d+_work' is closed and has insufficient elements \(requested 1, current"


def work(sess: Any, *items: str | Path, close: bool = True) -> Any:
    """A queue with some items of work."""
    queue = tf.FIFOQueue(100, tf.string, [()], name="work")
    sess.run(queue.enqueue_many([[str(item) for item in items]]))
    if close:
        sess.run(queue.close())
    return queue


def records(sess: Any, reader: Any, queue: Any) -> list[tuple[str, bytes]]:
    """All records, with the names of the files in their keys instead of the paths."""
    read = reader.read(queue)
    found: list[tuple[str, bytes]] = []
    while True:
        try:
            key, value = sess.run(read)
        except tf.errors.OutOfRangeError as error:
            assert "is closed and has insufficient elements" in error.message
            return found
        found.append((Path(key.decode()).name, value))


def counts(sess: Any, reader: Any) -> tuple[int, int]:
    """Records produced and items of work completed."""
    produced, completed = reader.num_records_produced(), reader.num_work_units_completed()
    assert produced.dtype == completed.dtype == tf.int64
    return int(sess.run(produced)), int(sess.run(completed))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\r\n\nfo\rur")
    return path


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    path = tmp_path / "b.bin"
    path.write_bytes(b"HH" + b"abcdefghij" + b"F")
    return path


class TestTextLineReader:
    def test_lines(self, sess: Any, text: Path) -> None:
        found = records(sess, tf.TextLineReader(), work(sess, text))
        values = [b"one", b"two", b"", b"fo\rur"]
        assert found == [(f"a.txt:{at}", value) for at, value in enumerate(values, 1)]

    def test_the_last_end_of_line_makes_no_line(self, sess: Any, tmp_path: Path) -> None:
        path = tmp_path / "x"
        path.write_bytes(b"a\nb\n")
        assert len(records(sess, tf.TextLineReader(), work(sess, path))) == 2

    def test_header_lines_are_counted_and_left_out(self, sess: Any, text: Path) -> None:
        reader = tf.TextLineReader(skip_header_lines=2)
        found = records(sess, reader, work(sess, text, text))
        assert found == [("a.txt:3", b""), ("a.txt:4", b"fo\rur")] * 2

    def test_a_file_that_is_all_header_is_skipped(self, sess: Any, text: Path) -> None:
        reader = tf.TextLineReader(skip_header_lines=9)
        assert records(sess, reader, work(sess, text)) == []
        assert counts(sess, reader) == (0, 1)

    def test_a_negative_number_of_them_is_refused(self, sess: Any, text: Path) -> None:
        read = tf.TextLineReader(skip_header_lines=-1).read(work(sess, text))
        with pytest.raises(tf.errors.InvalidArgumentError, match="skip_header_lines must be >= 0"):
            sess.run(read)

    def test_a_file_is_completed_when_its_end_is_noticed(self, sess: Any, text: Path) -> None:
        reader = tf.TextLineReader()
        queue = work(sess, text)
        read = reader.read(queue)
        for _ in range(4):
            sess.run(read)
        assert counts(sess, reader) == (4, 0)
        with pytest.raises(tf.errors.OutOfRangeError, match=CLOSED):
            sess.run(read)
        assert counts(sess, reader) == (4, 1)

    def test_a_missing_file_is_told_and_skipped(
        self, sess: Any, text: Path, tmp_path: Path
    ) -> None:
        reader = tf.TextLineReader()
        read = reader.read(work(sess, tmp_path / "missing", text))
        with pytest.raises(tf.errors.NotFoundError, match=r"missing; No such file or directory"):
            sess.run(read)
        assert sess.run(read).value == b"one"
        assert counts(sess, reader) == (1, 0)


class TestFixedLengthRecordReader:
    @pytest.mark.parametrize(
        ("sizes", "values"),
        [
            ((4, 2, 1), [b"abcd", b"efgh"]),
            ((4, 2, 1, 2), [b"abcd", b"cdef", b"efgh", b"ghij"]),
            ((2, 0, 0, 5), [b"HH", b"de", b"ij"]),
            ((13,), [b"HHabcdefghijF"]),
            ((14,), []),
        ],
    )
    def test_records(self, sess: Any, binary: Path, sizes: Any, values: list[bytes]) -> None:
        """What is left at the end of a file, and is no record, is dropped."""
        reader = tf.FixedLengthRecordReader(*sizes)
        found = records(sess, reader, work(sess, binary))
        assert found == [(f"b.bin:{at}", value) for at, value in enumerate(values)]
        assert counts(sess, reader) == (len(values), 1)

    @pytest.mark.parametrize(
        ("encoding", "compress"),
        [("GZIP", gzip.compress), ("ZLIB", zlib.compress), ("", bytes), ("OTHER", bytes)],
    )
    def test_compressed_files(
        self, sess: Any, tmp_path: Path, encoding: str, compress: Callable[[bytes], bytes]
    ) -> None:
        path = tmp_path / "c"
        path.write_bytes(compress(b"-abcde"))
        reader = tf.FixedLengthRecordReader(2, 1, 1, encoding=encoding)
        assert [value for _, value in records(sess, reader, work(sess, path))] == [b"ab", b"cd"]

    def test_a_file_that_is_not_compressed_as_said(self, sess: Any, binary: Path) -> None:
        read = tf.FixedLengthRecordReader(2, encoding="GZIP").read(work(sess, binary))
        for _ in range(2):
            with pytest.raises(tf.errors.DataLossError, match="gzip"):
                sess.run(read)

    def test_a_file_shorter_than_its_header_looks_like_the_end(
        self, sess: Any, binary: Path
    ) -> None:
        """As it did in TensorFlow."""
        read = tf.FixedLengthRecordReader(4, 20).read(work(sess, binary))
        with pytest.raises(tf.errors.OutOfRangeError, match=r"^reached end of file"):
            sess.run(read)
        with pytest.raises(tf.errors.OutOfRangeError, match=CLOSED):
            sess.run(read)

    @pytest.mark.parametrize("name", ["record_bytes", "header_bytes", "footer_bytes", "hop_bytes"])
    def test_negative_sizes_are_refused(self, sess: Any, binary: Path, name: str) -> None:
        sizes: dict[str, Any] = {"record_bytes": 1, name: -1}
        reader = tf.FixedLengthRecordReader(**sizes)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"^{name} must be >= 0 not -1"):
            sess.run(reader.read(work(sess, binary)))

    def test_records_of_nothing_are_refused(self, sess: Any, binary: Path) -> None:
        """TensorFlow would have read them for ever."""
        with pytest.raises(tf.errors.InvalidArgumentError, match="record_bytes must be > 0"):
            sess.run(tf.FixedLengthRecordReader(0).read(work(sess, binary)))


class TestWholeFileReader:
    def test_files(self, sess: Any, text: Path, binary: Path) -> None:
        reader = tf.WholeFileReader()
        found = records(sess, reader, work(sess, text, binary))
        assert found == [("a.txt", text.read_bytes()), ("b.bin", binary.read_bytes())]
        assert counts(sess, reader) == (2, 2)

    def test_a_missing_file_is_tried_again_until_reset(
        self, sess: Any, text: Path, tmp_path: Path
    ) -> None:
        missing = tmp_path / "missing"
        reader = tf.WholeFileReader()
        read = reader.read(work(sess, text, missing, missing, text))
        assert sess.run(read).value == text.read_bytes()
        assert counts(sess, reader) == (1, 1)
        for _ in range(3):
            with pytest.raises(tf.errors.NotFoundError, match="missing; No such file or directory"):
                sess.run(read)
        missing.write_bytes(b"there")
        assert sess.run(read).value == b"there"
        missing.unlink()
        with pytest.raises(tf.errors.NotFoundError):
            sess.run(read)
        sess.run(reader.reset())
        assert sess.run(read).value == text.read_bytes()
        assert counts(sess, reader) == (1, 1)


class TestIdentityReader:
    def test_work_is_the_record(self, sess: Any) -> None:
        reader = tf.IdentityReader()
        assert records(sess, reader, work(sess, "x", "y")) == [("x", b"x"), ("y", b"y")]
        assert counts(sess, reader) == (2, 2)


class TestReadUpTo:
    def test_it_gives_records_of_one_file_at_a_time(
        self, sess: Any, text: Path, tmp_path: Path
    ) -> None:
        reader = tf.TextLineReader()
        queue = work(sess, text, tmp_path / "missing", text)
        some = reader.read_up_to(queue, 3)
        assert some.keys.shape.as_list() == some.values.shape.as_list() == [None]
        assert sess.run(reader.read_up_to(queue, 0)).keys.tolist() == []
        assert sess.run(queue.size()) == 3
        assert sess.run(some).values.tolist() == [b"one", b"two", b""]
        assert sess.run(some).values.tolist() == [b"fo\rur"]
        with pytest.raises(tf.errors.NotFoundError):
            sess.run(some)
        assert sess.run(some).values.tolist() == [b"one", b"two", b""]
        assert [Path(key.decode()).name for key in sess.run(some).keys] == ["a.txt:4"]
        with pytest.raises(tf.errors.OutOfRangeError, match=CLOSED):
            sess.run(some)
        assert counts(sess, reader) == (8, 2)

    def test_a_whole_file_is_one_record(self, sess: Any, text: Path) -> None:
        reader = tf.WholeFileReader()
        assert len(sess.run(reader.read_up_to(work(sess, text, text), 5)).values) == 1

    def test_a_negative_number_is_refused(self, sess: Any, text: Path) -> None:
        """TensorFlow crashed."""
        with pytest.raises(tf.errors.InvalidArgumentError, match="num_records: got -1"):
            sess.run(tf.TextLineReader().read_up_to(work(sess, text), -1))


class TestWork:
    @pytest.mark.parametrize(
        ("dtypes", "element", "message"),
        [
            ([tf.string, tf.string], ("a", "b"), "Expected single component queue"),
            ([tf.int32], (1,), "Expected queue with single string component"),
            ([tf.string], (["a", "b"],), "Expected to dequeue a one-element string tensor"),
        ],
    )
    def test_it_must_be_one_string(
        self, sess: Any, dtypes: Any, element: Any, message: str
    ) -> None:
        queue = tf.FIFOQueue(5, dtypes)
        sess.run(queue.enqueue(element))
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            sess.run(tf.IdentityReader().read(queue))
        assert sess.run(queue.size()) == 0

    def test_a_vector_of_one_will_do(self, sess: Any) -> None:
        queue = tf.FIFOQueue(5, tf.string)
        sess.run(queue.enqueue((["a"],)))
        assert sess.run(tf.IdentityReader().read(queue)).value == b"a"

    def test_the_tensor_of_a_queue_will_do(self, sess: Any) -> None:
        read = tf.IdentityReader().read(work(sess, "a").queue_ref)
        assert sess.run(read) == (b"a", b"a")

    def test_names_and_shapes(self, sess: Any) -> None:
        queue = work(sess)
        reader = tf.TextLineReader(name="lines")
        key, value = reader.read(queue)
        assert (key.name, value.name) == ("ReaderReadV2:0", "ReaderReadV2:1")
        assert key.shape == value.shape == ()
        assert reader.reader_ref.name == "lines:0"
        assert reader.reader_ref.dtype == tf.resource
        assert tf.IdentityReader().reader_ref.op.type == "IdentityReaderV2"
        assert reader.read(queue, name="mine").key.op.name == "mine"

    def test_two_runs_for_key_and_value_read_twice(self, sess: Any) -> None:
        key, value = tf.IdentityReader().read(work(sess, "a", "b"))
        assert (sess.run(key), sess.run(value)) == (b"a", b"b")

    def test_each_session_has_a_reader_of_its_own(self, sess: Any, graph: Any) -> None:
        reader = tf.IdentityReader()
        read = reader.read(work(sess, "a", close=False))
        sess.run(read)
        assert counts(sess, reader) == (1, 1)
        with tf.Session(graph=graph) as other:
            assert counts(other, reader) == (0, 0)


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
        with pytest.raises(tf.errors.CancelledError):
            reading.result()
        with pytest.raises(tf.errors.CancelledError):
            looking.result()

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


class TestState:
    @pytest.fixture
    def reader(self) -> Any:
        pytest.importorskip("google.protobuf", reason="the extra `tfrecord` is not installed")
        return tf.IdentityReader(name="reader")

    def test_it_is_tensorflows_message(self, sess: Any, reader: Any) -> None:
        state = reader.serialize_state()
        assert sess.run(state) == b""
        sess.run(reader.read(work(sess, "A")))
        assert sess.run(state) == b"\x08\x01\x10\x01\x18\x01\x22\x01A"

    def test_it_comes_back(self, sess: Any, reader: Any) -> None:
        state = reader.serialize_state()
        sess.run(reader.read(work(sess, "A")))
        saved = sess.run(state)
        sess.run(reader.restore_state(b""))
        assert counts(sess, reader) == (0, 0)
        sess.run(reader.restore_state(saved))
        assert counts(sess, reader) == (1, 1)
        assert sess.run(state) == saved

    @pytest.mark.parametrize(
        ("state", "message"),
        [
            (b"garbage", "^Could not parse state for IdentityReader 'reader': garbage"),
            (b"\x08" + b"\xff" * 9 + b"\x01", "^Unexpected negative value .* work_started: -1"),
            (b"\x08\x02\x10\x01\x22\x01B", "^Inconsistent work started vs. finished .*'reader'"),
        ],
    )
    def test_a_wrong_one_is_refused_and_the_reader_as_new(
        self, sess: Any, reader: Any, state: bytes, message: str
    ) -> None:
        sess.run(reader.read(work(sess, "A")))
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"(?s){message}"):
            sess.run(reader.restore_state(state))
        assert sess.run(reader.serialize_state()) == b""

    def test_without_work_there_is_none_in_it(self, sess: Any, reader: Any) -> None:
        """What the reader has got from a closed queue is nothing, and replaces what it had."""
        read = reader.read(work(sess, "A"))
        sess.run(read)
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(read)
        assert sess.run(reader.serialize_state()) == b"\x08\x01\x10\x01\x18\x01"

    def test_work_that_is_finished_is_all_that_was_started(self, sess: Any, reader: Any) -> None:
        sess.run(reader.restore_state(b"\x08\x01\x10\x02"))  # one started, two finished
        assert counts(sess, reader) == (0, 2)
        sess.run(reader.read(work(sess, "A")))
        assert counts(sess, reader) == (1, 2)

    def test_a_file_that_fails_after_that_is_passed_over(self, sess: Any, text: Path) -> None:
        """By its state, the reader is not at work on it; else it would try that file again."""
        pytest.importorskip("google.protobuf", reason="states of readers need protobuf")
        reader = tf.WholeFileReader()
        read = reader.read(work(sess, "missing", str(text)))
        sess.run(reader.restore_state(b"\x08\x01\x10\x02"))  # one started, two finished
        with pytest.raises(tf.errors.NotFoundError, match="missing"):
            sess.run(read)
        assert sess.run(read)[0] == str(text).encode()

    @pytest.mark.parametrize("state", [[], ["a", "b"]])
    def test_it_is_a_scalar(self, reader: Any, state: Any) -> None:
        with pytest.raises(ValueError, match="Shape must be rank 0 but is rank 1"):
            reader.restore_state(state)

    def test_some_readers_have_none(self, sess: Any) -> None:
        assert tf.WholeFileReader().supports_serialize
        reader = tf.TextLineReader()
        assert not reader.supports_serialize
        with pytest.raises(tf.errors.UnimplementedError, match=r"^Reader SerializeState"):
            sess.run(reader.serialize_state())
        with pytest.raises(tf.errors.UnimplementedError, match=r"^Reader RestoreState"):
            sess.run(reader.restore_state(b""))

    def test_a_reader_that_cannot_be_restored_is_as_new(self, sess: Any, text: Path) -> None:
        reader = tf.TextLineReader()
        sess.run(reader.read(work(sess, text)))
        assert sess.run(reader.num_records_produced()) == 1
        with pytest.raises(tf.errors.UnimplementedError):
            sess.run(reader.restore_state(b""))
        assert sess.run(reader.num_records_produced()) == 0


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
