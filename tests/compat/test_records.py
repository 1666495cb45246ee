"""TFRecord files: written, read in a graph and without one, damaged ones."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import refused

pytest.importorskip("google_crc32c", reason="the extra `tfrecord` is not installed")

Options = tf.python_io.TFRecordOptions
VALUES = [b"one", b"", b"two" * 1000]


def write(path: Path, options: Any = None) -> Path:
    with tf.python_io.TFRecordWriter(str(path), options) as writer:
        for value in VALUES:
            writer.write(value)
    return path


def reading(sess: Any, path: Path, options: Any = None) -> Any:
    """The tensors of the next record of a file."""
    queue = tf.FIFOQueue(1, tf.string, [()])
    sess.run(queue.enqueue(str(path)))
    sess.run(queue.close())
    return tf.TFRecordReader(options=options).read(queue)


def test_keys_are_offsets(sess: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "r", Options("GZIP", compression_level=3))
    read = reading(sess, path, Options("GZIP"))
    found = [sess.run(read).key for _ in VALUES]
    assert found == [f"{path}:{at}".encode() for at in (0, 19, 35)]


DAMAGED = [
    pytest.param(lambda data: data[:-1], 2, r"^truncated record at 35' failed with Read", id="end"),
    pytest.param(lambda data: data[:37], 2, r"^truncated record at 35", id="within the length"),
    pytest.param(
        lambda data: data[:31] + b"X" + data[32:], 1, r"^corrupted record at 31", id="data"
    ),
    pytest.param(
        lambda data: b"\x05" + data[1:],
        0,
        r"^corrupted record at 0 \(Is this even a TFRecord file\?\)",
        id="length",
    ),
]


@pytest.mark.parametrize(("damage", "good", "message"), DAMAGED)
def test_damage_is_reported_and_not_got_past(
    sess: Any, tmp_path: Path, damage: Any, good: int, message: str
) -> None:
    path = write(tmp_path / "r")
    path.write_bytes(damage(path.read_bytes()))
    iterator = tf.python_io.tf_record_iterator(str(path))
    assert [next(iterator) for _ in range(good)] == VALUES[:good]
    refused(tf.errors.DataLossError, message, next, iterator)
    read = reading(sess, path)
    assert [sess.run(read).value for _ in range(good)] == VALUES[:good]
    for _ in range(3):
        refused(tf.errors.DataLossError, message, sess.run, read)


def test_read_up_to_gives_what_comes_before_the_damage(sess: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "r")
    path.write_bytes(path.read_bytes()[:-1])
    queue = tf.FIFOQueue(1, tf.string, [()])
    sess.run(queue.enqueue(str(path)))
    some = tf.TFRecordReader().read_up_to(queue, 10)
    assert sess.run(some).values.tolist() == VALUES[:2]
    refused(tf.errors.DataLossError, "truncated record", sess.run, some)


def test_a_file_compressed_otherwise(sess: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "r")
    with pytest.raises(tf.errors.DataLossError, match="damaged gzip data"):
        list(tf.python_io.tf_record_iterator(str(path), Options("GZIP")))
    with pytest.raises(tf.errors.DataLossError, match="corrupted record at 0"):
        list(tf.python_io.tf_record_iterator(str(write(tmp_path / "z", "GZIP"))))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.NotFoundError, match="missing; No such file or directory"):
        list(tf.python_io.tf_record_iterator(str(tmp_path / "missing")))
    with pytest.raises(tf.errors.NotFoundError, match="No such file or directory"):
        tf.python_io.TFRecordWriter(str(tmp_path / "missing" / "r"))


def test_a_writer_that_is_closed(tmp_path: Path) -> None:
    writer = tf.python_io.TFRecordWriter(str(tmp_path / "r"))
    writer.write("text becomes UTF-8: ä")
    writer.flush()
    writer.close()
    writer.close()
    refused(tf.errors.FailedPreconditionError, r"Writer is closed\.", writer.write, b"")
    refused(tf.errors.FailedPreconditionError, r"Writer is closed\.", writer.flush)
    (found,) = tf.python_io.tf_record_iterator(str(tmp_path / "r"))
    assert found.decode().endswith("ä")


def test_options_know_their_arguments() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'level'"):
        Options("GZIP", level=3)  # type: ignore[call-arg]
    options = Options("ZLIB", zlib.Z_FULL_FLUSH, mem_level=3)
    assert (options.flush_mode, options.mem_level, options.window_bits) == (3, 3, None)


NOISE = random.Random(1).randbytes(9000)
"""It can be compressed only by what knows of it, when it comes again."""


def size_with(path: Path, kind: str, **tuning: Any) -> int:
    """How large a file is that is written with some options, and read again."""
    records = [NOISE, b"", NOISE]
    with tf.python_io.TFRecordWriter(str(path), Options(kind, **tuning)) as writer:
        for record in records:
            writer.write(record)
    assert list(tf.python_io.tf_record_iterator(str(path), kind)) == records
    return path.stat().st_size


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_options_of_zlib_have_their_effect(tmp_path: Path, kind: str) -> None:
    bits = 16 if kind == "GZIP" else 0
    size = size_with(tmp_path / "r", kind)
    without_effect: dict[str, Any]
    for without_effect in (
        {"flush_mode": zlib.Z_NO_FLUSH},
        {"input_buffer_size": 100},
        {"output_buffer_size": 100},
        {"window_bits": 15 + bits},
        {"compression_level": -1},
        {"compression_method": zlib.DEFLATED},
        {"mem_level": 9},
        {"compression_strategy": zlib.Z_DEFAULT_STRATEGY},
    ):
        assert size_with(tmp_path / "r", kind, **without_effect) == size
    larger: dict[str, Any]
    for larger in (
        {"flush_mode": zlib.Z_FULL_FLUSH, "input_buffer_size": 100},
        {"window_bits": 9 + bits},
        {"compression_level": 0},
        {"compression_strategy": zlib.Z_HUFFMAN_ONLY},
    ):
        assert size_with(tmp_path / "r", kind, **larger) > size


@pytest.mark.parametrize(
    "number",
    [
        ("flush_mode", 200),
        ("flush_mode", 2.0),
        ("window_bits", "15"),
        ("mem_level", -129),
        ("input_buffer_size", 2**63),
    ],
)
def test_a_number_that_is_none(tmp_path: Path, number: tuple[str, Any]) -> None:
    name, value = number
    path = tmp_path / "r"
    for kind in ("", "GZIP"):
        with pytest.raises(TypeError, match=rf"^{name}: got {value!r}; expected an int from -"):
            tf.python_io.TFRecordWriter(str(path), Options(kind, **{name: value}))
    assert not path.exists()


@pytest.mark.parametrize(
    "number",
    [
        ("window_bits", 7),
        ("window_bits", 47),
        ("compression_level", 10),
        ("compression_method", 7),
        ("mem_level", 0),
        ("compression_strategy", 5),
        ("output_buffer_size", 1),
        ("input_buffer_size", -1),
    ],
)
def test_a_number_that_zlib_does_not_take(tmp_path: Path, number: tuple[str, int]) -> None:
    """It ended the program, in TensorFlow."""
    name, value = number
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{name}={value}\b"):
        tf.python_io.TFRecordWriter(str(tmp_path / "r"), Options("ZLIB", **{name: value}))
    tf.python_io.TFRecordWriter(str(tmp_path / "r"), Options("", **{name: value})).close()


def test_a_flush_mode_that_there_is_not(tmp_path: Path) -> None:
    options = Options("ZLIB", flush_mode=9, input_buffer_size=10)
    writer = tf.python_io.TFRecordWriter(str(tmp_path / "r"), options)
    with pytest.raises(tf.errors.DataLossError, match=r"deflate\(\) failed with error -2"):
        writer.write(b"more than the buffer holds")
    writer.close()


@pytest.mark.parametrize("kind", ["", "GZIP", "ZLIB"])
def test_what_is_flushed_is_read(sess: Any, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "r"
    with tf.python_io.TFRecordWriter(str(path), kind) as writer:
        writer.flush()
        for count, value in enumerate(VALUES, 1):
            writer.write(value)
            writer.flush()
            assert list(tf.python_io.tf_record_iterator(str(path), kind)) == VALUES[:count]
        read = reading(sess, path, Options(kind))
        assert [sess.run(read).value for _ in VALUES] == VALUES
        refused(tf.errors.OutOfRangeError, "", sess.run, read)
        dataset = tf.data.TFRecordDataset(str(path), kind)
        following = tf.data.make_one_shot_iterator(dataset).get_next()
        assert [sess.run(following) for _ in VALUES] == VALUES
        refused(tf.errors.OutOfRangeError, "", sess.run, following)


@pytest.mark.parametrize(("kind", "bits"), [("GZIP", 31), ("ZLIB", 15)])
@pytest.mark.parametrize("size", [0, 5, 15, 19, 25, 34, 35])
def test_a_compressed_stream_may_end_behind_a_record(
    tmp_path: Path, kind: str, bits: int, size: int
) -> None:
    """`inputs.read_tfrecords` takes each of these for damage."""
    whole = write(tmp_path / "r").read_bytes()
    compressor = zlib.compressobj(wbits=bits)
    path = tmp_path / "c"
    path.write_bytes(compressor.compress(whole[:size]) + compressor.flush(zlib.Z_SYNC_FLUSH))
    records = tf.python_io.tf_record_iterator(str(path), kind)
    ends = (0, 19, 35)
    begun = sum(end <= size for end in ends) - 1
    assert [next(records) for _ in range(begun)] == VALUES[:begun]
    if size in ends:
        assert list(records) == []
        return
    message = rf"^truncated record at {ends[begun]}' failed with EOF reached"
    refused(tf.errors.DataLossError, message, next, records)


def test_urls_are_written_and_read() -> None:
    fsspec = pytest.importorskip("fsspec", reason="the extra `files` is not installed")
    with tf.python_io.TFRecordWriter("memory://a.records", "GZIP") as writer:
        writer.write(b"hello")
    assert list(tf.python_io.tf_record_iterator("memory://a.records", "GZIP")) == [b"hello"]
    fsspec.filesystem("memory").rm("/a.records")
