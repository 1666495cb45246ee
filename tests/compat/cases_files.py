"""Cases of readers, of files of records, and of ``tf.gfile``."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.compat.recorded import Report, case, outcome, unnamed

TEXT = b"one\ntwo\r\n\nfo\rur"
BINARY = b"HH" + b"abcdefghij" + b"F"
VALUES = [b"one", b"", b"two" * 1000]


def files() -> None:
    """A text file, a binary one, and the same compressed."""
    Path("a.txt").write_bytes(TEXT)
    Path("b.txt").write_bytes(b"a\nb\n")
    Path("b.bin").write_bytes(BINARY)
    Path("gzip").write_bytes(gzip.compress(b"-abcde"))
    Path("zlib").write_bytes(zlib.compress(b"-abcde"))
    Path("plain").write_bytes(b"-abcde")


def attempts(tf: Any, reader: Any, items: list[str], count: int, up_to: int = 0) -> Any:
    """What so many reads give, and what has been counted afterwards."""
    queue = tf.FIFOQueue(100, tf.string, [()], name="work")
    read = reader.read_up_to(queue, up_to) if up_to else reader.read(queue)
    counts = [reader.num_records_produced(), reader.num_work_units_completed()]
    with tf.Session() as sess:
        sess.run(queue.enqueue_many([items]))
        sess.run(queue.close())
        found = [outcome(lambda: tuple(sess.run(read))) for _ in range(count)]
        return [*found, outcome(sess.run, counts)]


@unnamed
def lines(tf: Any) -> Any:
    files()
    reader = tf.TextLineReader
    return [
        *attempts(tf, reader(), ["a.txt"], 4),
        *attempts(tf, reader(), ["a.txt", "b.txt"], 7),
        *attempts(tf, reader(skip_header_lines=2), ["a.txt", "a.txt"], 5),
        *attempts(tf, reader(skip_header_lines=9), ["a.txt"], 1),
        *attempts(tf, reader(skip_header_lines=-1), ["a.txt"], 1),
        *attempts(tf, reader(), ["missing", "a.txt"], 2),
        *attempts(tf, reader(), ["a.txt", "missing", "a.txt"], 6, up_to=3),
    ]


@unnamed
def records_of_one_length(tf: Any) -> Any:
    files()
    sizes = ((4, 2, 1), (4, 2, 1, 2), (2, 0, 0, 5), (13,), (14,), (4, 20))
    wrong = ("record_bytes", "header_bytes", "footer_bytes", "hop_bytes")
    reader = tf.FixedLengthRecordReader
    return [
        *(attempts(tf, reader(*one), ["b.bin"], 6) for one in sizes),
        *(attempts(tf, reader(**{"record_bytes": 1, one: -1}), ["b.bin"], 1) for one in wrong),
        *(
            attempts(tf, reader(2, 1, 1, encoding=encoding), [name], 3)
            for encoding, name in (
                ("GZIP", "gzip"),
                ("ZLIB", "zlib"),
                ("", "plain"),
                ("?", "plain"),
            )
        ),
        attempts(tf, reader(2, encoding="GZIP"), ["b.bin"], 2),
    ]


@unnamed
def whole_files(tf: Any) -> Any:
    files()
    reader = tf.WholeFileReader()
    queue = tf.FIFOQueue(100, tf.string, [()], name="work")
    read, counts = reader.read(queue), reader.num_work_units_completed()
    with tf.Session() as sess:
        sess.run(queue.enqueue_many([["a.txt", "missing", "missing", "a.txt"]]))
        found = [outcome(lambda: tuple(sess.run(read))) for _ in range(3)]
        Path("missing").write_bytes(b"there")
        found += [outcome(lambda: tuple(sess.run(read))), sess.run(counts)]
        Path("missing").unlink()
        found.append(outcome(sess.run, read))
        sess.run(reader.reset())
        found += [outcome(lambda: tuple(sess.run(read))), sess.run(counts)]
    return [
        *(*found, attempts(tf, tf.WholeFileReader(), ["a.txt", "b.bin"], 3)),
        attempts(tf, tf.WholeFileReader(), ["a.txt", "b.bin"], 1, up_to=5),
        attempts(tf, tf.IdentityReader(), ["x", "y"], 3),
    ]


@unnamed
def work_of_readers(tf: Any) -> Any:
    cases: tuple[Any, ...] = (
        *(([tf.string, tf.string], ("a", "b")), ([tf.int32], (1,)), ([tf.string], (["a", "b"],))),
        ([tf.string], (["a"],)),
    )
    found: list[Any] = []
    with tf.Session() as sess:
        for dtypes, element in cases:
            queue = tf.FIFOQueue(5, dtypes)
            sess.run(queue.enqueue(element))
            read = tf.IdentityReader().read(queue)
            found += [outcome(lambda read=read: tuple(sess.run(read))), sess.run(queue.size())]
        queue, reader = tf.FIFOQueue(5, tf.string, [()]), tf.IdentityReader()
        key, value = reader.read(queue)
        sess.run(queue.enqueue_many([["a", "b", "c"]]))
        found += [sess.run(key), sess.run(value), sess.run(reader.num_records_produced())]
        found += [tuple(sess.run(reader.read(queue.queue_ref)))]
    with tf.Session() as other:
        found.append(other.run(reader.num_records_produced()))
    return found


@case
def names_of_readers(tf: Any) -> Any:
    queue, reader = tf.FIFOQueue(5, tf.string, [()]), tf.TextLineReader(name="lines")
    made = [*reader.read(queue), *reader.read_up_to(queue, 3), reader.num_records_produced()]
    made += [reader.num_work_units_completed(), reader.reset().name, reader.reader_ref.name]
    kinds = [one.reader_ref.op.type for one in (tf.IdentityReader(), tf.WholeFileReader())]
    return [*made, *kinds, reader.read(queue, name="mine").key]


@unnamed
def states_of_readers(tf: Any) -> Any:
    reader = tf.IdentityReader(name="reader")
    queue, state = tf.FIFOQueue(9, tf.string, [()]), tf.placeholder(tf.string, [])
    counts = [reader.num_records_produced(), reader.num_work_units_completed()]
    read, saved, restore = reader.read(queue), reader.serialize_state(), reader.restore_state(state)
    states = (
        *(b"", b"\x08\x01\x10\x01\x18\x01\x22\x01A", b"\x08\x01\x10\x02"),
        *(b"garbage", b"\x08" + b"\xff" * 9 + b"\x01", b"\x08\x02\x10\x01\x22\x01B"),
    )
    found: list[Any] = []
    with tf.Session() as sess:
        sess.run(queue.enqueue_many([["A", *"BCDEF"]]))
        for one in states:
            sess.run(read)
            found += [sess.run(saved), outcome(sess.run, restore, {state: one})]
            found += [sess.run(saved), sess.run(counts)]
        sess.run(queue.close())
        found += [outcome(sess.run, read), sess.run(saved)]
        other = tf.TextLineReader()
        found += [
            outcome(sess.run, one) for one in (other.serialize_state(), other.restore_state(b""))
        ]
    wrong: tuple[Any, ...] = ([], ["a", "b"])
    return [
        *(*found, tf.WholeFileReader().supports_serialize, other.supports_serialize),
        *(outcome(reader.restore_state, one) for one in wrong),
    ]


def written(tf: Any, path: str, options: Any) -> bytes:
    with tf.python_io.TFRecordWriter(path, options) as writer:
        for value in VALUES:
            writer.write(value)
    return Path(path).read_bytes()


@unnamed
def tf_records(tf: Any) -> Any:
    io = tf.python_io
    options = (None, io.TFRecordOptions("GZIP"), io.TFRecordOptions("ZLIB"), "GZIP", "")
    found: list[Any] = []
    for number, one in enumerate(options):
        data = written(tf, f"r{number}", one)
        found += [data[:2], list(io.tf_record_iterator(f"r{number}", one))]
        if not isinstance(one, str):
            reader = tf.TFRecordReader(options=one)
            found.append(attempts(tf, reader, [f"r{number}"], 4))
    kinds = (0, 1, 2, None, "GZIP", "ZLIB", "")
    text = io.TFRecordOptions.get_compression_type_string
    found += [text(io.TFRecordOptions(one)) for one in kinds]
    return [*found, *(outcome(io.TFRecordOptions, one) for one in ("x", 9, "gzip"))]


@unnamed
def damaged_tf_records(tf: Any) -> Any:
    whole = written(tf, "whole", None)
    damaged = (whole[:-1], whole[:31] + b"X" + whole[32:], b"\x05" + whole[1:], b"x" * 20)

    def listed(name: str) -> Any:
        found: list[Any] = []
        try:
            for record in tf.python_io.tf_record_iterator(name):
                found.append(record)  # noqa: PERF402  # those before a failure count
        except tf.OpError as error:
            found.append(type(error).__name__)
        return found

    found: list[Any] = []
    for number, data in enumerate(damaged):
        name = f"d{number}"
        Path(name).write_bytes(data)
        found += [listed(name), attempts(tf, tf.TFRecordReader(), [name], 4)]
    return [*found, listed("missing"), outcome(tf.python_io.TFRecordWriter, "missing/r")]


@unnamed
def files_at_once(tf: Any) -> Any:
    """``tf.gfile``: what it says of files, and what it refuses."""
    gfile = tf.gfile
    Path("a/b").mkdir(parents=True)
    Path("a/x.txt").write_text("one\ntwo\n")
    Path("a/b/y.txt").write_text("three")

    def read(mode: str = "r", action: Callable[[Any], Any] = lambda file: file.read()) -> Report:
        return outcome(lambda: action(gfile.GFile("a/x.txt", mode)))

    calls: list[Callable[[], Any]] = [
        *(lambda: gfile.Exists("a"), lambda: gfile.Exists("z"), lambda: gfile.IsDirectory("a")),
        *(lambda: gfile.IsDirectory("a/x.txt"), lambda: sorted(gfile.ListDirectory("a"))),
        *(
            lambda: gfile.ListDirectory("z"),
            lambda: gfile.Glob("a/*.txt"),
            lambda: gfile.Glob("z*"),
        ),
        *(lambda: sorted(gfile.Glob(["a/*", "a/b/*"])), lambda: gfile.MkDir("a/c")),
        *(
            lambda: gfile.MkDir("z/c"),
            *[lambda: gfile.MakeDirs("d/e")] * 2,
            lambda: gfile.Glob("z*"),
        ),
        *(lambda: gfile.Copy("a/x.txt", "c.txt"), lambda: gfile.Copy("a/x.txt", "c.txt")),
        *(lambda: gfile.Copy("a/x.txt", "c.txt", True), lambda: gfile.Copy("z", "q")),
        *(lambda: gfile.Rename("c.txt", "d.txt"), lambda: gfile.Rename("z", "q")),
        *(lambda: gfile.Rename("a/b/y.txt", "d.txt"), lambda: gfile.Remove("d.txt")),
        *(lambda: gfile.Remove("d.txt"), lambda: gfile.DeleteRecursively("d")),
        *(lambda: gfile.DeleteRecursively("d"), lambda: gfile.Stat("a/x.txt").length),
        *(
            lambda: gfile.Stat("z"),
            lambda: [(one, sorted(two), three) for one, two, three in gfile.Walk("a")],
        ),
        lambda: [one for one, _, _ in gfile.Walk("a", in_order=False)],
    ]
    return [
        *(*map(outcome, calls), read(), read("rb"), read("r", lambda file: file.readline())),
        *(read("r", lambda file: file.readlines()), read("r", lambda file: list(file))),
        *(read("r", lambda file: (file.read(2), file.tell(), file.seek(1), file.read())),),
        *(
            read("r", lambda file: (file.size(), file.name, file.mode)),
            read("w", lambda f: f.read()),
        ),
        *(read("r", lambda file: file.write("x")), read("q"), read("r", lambda file: file.seek())),
        *(read("a", lambda file: (file.write("x"), file.flush(), file.close())), read()),
        outcome(lambda: gfile.GFile("z").read()),
    ]
