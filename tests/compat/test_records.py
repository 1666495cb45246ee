"""TFRecord files: written, read in a graph and without one, damaged ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aioqueue.compat.v1 as tf

pytest.importorskip("google_crc32c", reason="the extra `tfrecord` is not installed")

CompressionType = tf.python_io.TFRecordCompressionType
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


@pytest.mark.parametrize(
    ("options", "start"),
    [
        (None, b"\x03\x00"),
        (Options(CompressionType.NONE), b"\x03\x00"),
        (Options(CompressionType.GZIP), b"\x1f\x8b"),
        (Options(CompressionType.ZLIB), b"\x78"),
        (Options("GZIP", compression_level=3), b"\x1f\x8b"),
        ("ZLIB", b"\x78"),
    ],
)
def test_what_is_written_is_read(sess: Any, tmp_path: Path, options: Any, start: bytes) -> None:
    path = write(tmp_path / "r", options)
    assert path.read_bytes().startswith(start)
    assert list(tf.python_io.tf_record_iterator(str(path), options)) == VALUES
    read = reading(sess, path, options)
    found = [sess.run(read) for _ in VALUES]
    assert [one.value for one in found] == VALUES
    assert [one.key for one in found] == [f"{path}:{at}".encode() for at in (0, 19, 35)]
    with pytest.raises(tf.errors.OutOfRangeError):
        sess.run(read)


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
def test_damage_is_told_and_not_got_past(
    sess: Any, tmp_path: Path, damage: Any, good: int, message: str
) -> None:
    path = write(tmp_path / "r")
    path.write_bytes(damage(path.read_bytes()))
    iterator = tf.python_io.tf_record_iterator(str(path))
    assert [next(iterator) for _ in range(good)] == VALUES[:good]
    with pytest.raises(tf.errors.DataLossError, match=message):
        next(iterator)
    read = reading(sess, path)
    assert [sess.run(read).value for _ in range(good)] == VALUES[:good]
    for _ in range(3):
        with pytest.raises(tf.errors.DataLossError, match=message):
            sess.run(read)


def test_read_up_to_gives_what_comes_before_the_damage(sess: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "r")
    path.write_bytes(path.read_bytes()[:-1])
    queue = tf.FIFOQueue(1, tf.string, [()])
    sess.run(queue.enqueue(str(path)))
    some = tf.TFRecordReader().read_up_to(queue, 10)
    assert sess.run(some).values.tolist() == VALUES[:2]
    with pytest.raises(tf.errors.DataLossError, match="truncated record"):
        sess.run(some)


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
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"Writer is closed\."):
        writer.write(b"")
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"Writer is closed\."):
        writer.flush()
    (found,) = tf.python_io.tf_record_iterator(str(tmp_path / "r"))
    assert found.decode().endswith("ä")


@pytest.mark.parametrize("wrong", ["x", 9, "gzip"])
def test_there_are_three_kinds_of_compression(wrong: Any) -> None:
    with pytest.raises(ValueError, match=f'Not a valid compression_type: "{wrong}"'):
        Options(wrong)
    assert [Options.get_compression_type_string(Options(kind)) for kind in (0, 1, 2, None)] == [
        "",
        "ZLIB",
        "GZIP",
        "",
    ]


def test_options_know_their_arguments() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'level'"):
        Options("GZIP", level=3)
