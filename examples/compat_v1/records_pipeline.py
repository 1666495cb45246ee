"""From text files to TFRecord files, and from those to shuffled batches of parsed examples.

The classic input pipeline: a producer of file names, a reader, a parser, `shuffle_batch`, epochs
that are counted. Needs the extra ``tfrecord``.
"""

from __future__ import annotations

import collections
import tempfile
from pathlib import Path
from typing import Any

import aioqueue.compat.v1 as tf

FILES = 3
LINES = 40
EPOCHS = 2
BATCH = 16


def write_text(folder: Path) -> list[str]:
    """Some files with lines of a word and two numbers."""
    paths = [folder / f"part{number}.csv" for number in range(FILES)]
    for number, path in enumerate(paths):
        lines = [f"word{number}-{line},{number},{line / 2}" for line in range(LINES)]
        path.write_text("word,number,half\n" + "\n".join(lines) + "\n")
    return [str(path) for path in paths]


def as_records(path: str) -> str:
    """Turn the lines of a file into records of another one."""
    with tf.Graph().as_default(), tf.Session() as sess:
        reader = tf.TextLineReader(skip_header_lines=1)
        queue = tf.train.string_input_producer([path], num_epochs=1)
        _, line = reader.read(queue)
        word, number, half = tf.decode_csv(line, [[""], [0], [0.0]])
        sess.run(tf.local_variables_initializer())
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess, coord)
        target = path.replace(".csv", ".tfrecord")
        with tf.python_io.TFRecordWriter(target) as writer:
            try:
                while not coord.should_stop():
                    writer.write(serialized(*sess.run([word, number, half])))
            except tf.errors.OutOfRangeError:
                pass  # the file has ended
        coord.request_stop()
        coord.join(threads)
    return target


def serialized(word: bytes, number: int, half: float) -> bytes:
    feature = {
        "word": tf.train.Feature(bytes_list=tf.train.BytesList(value=[word])),
        "number": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
        "halves": tf.train.Feature(float_list=tf.train.FloatList(value=[half] * (number + 1))),
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    data: bytes = example.SerializeToString()
    return data


def batches(paths: list[str]) -> tuple[Any, Any]:
    queue = tf.train.string_input_producer(paths, num_epochs=EPOCHS, seed=3)
    _, record = tf.TFRecordReader().read(queue)
    features = tf.parse_single_example(
        record,
        {
            "word": tf.FixedLenFeature([], tf.string),
            "number": tf.FixedLenFeature([], tf.int64),
            "halves": tf.VarLenFeature(tf.float32),
        },
    )
    total = tf.reduce_sum(features["halves"].values)
    words, totals = tf.train.shuffle_batch(
        [features["word"], total],
        BATCH,
        capacity=64,
        min_after_dequeue=32,
        num_threads=2,
        allow_smaller_final_batch=True,
    )
    return words, totals


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [as_records(path) for path in write_text(Path(folder))]
        words, totals = batches(paths)
        seen: collections.Counter[bytes] = collections.Counter()
        total = 0.0
        with tf.train.MonitoredSession() as sess:
            while not sess.should_stop():
                some_words, some_totals = sess.run([words, totals])
                seen.update(some_words.tolist())
                total += float(some_totals.sum())
    expected = EPOCHS * sum(range(LINES)) / 2 * sum(range(1, FILES + 1))
    (times,) = set(seen.values())  # the same for all of them: nothing is lost or repeated
    print(f"{len(seen)} examples, each {times} times, sum {total:g} of {expected:g}")


if __name__ == "__main__":
    main()
