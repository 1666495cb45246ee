"""Rows 20, 21, 27 and decoding: `aioqueue.compat.v1` beside TensorFlow, the same programs.

The runner's rows are measured in processes of their own, alternately, since its threads would
disturb the runs after it: ``python -m benchmarks.compat LIBRARY COUNT`` runs one.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.harness import Comparison, Mode, Row, compare, installed

__all__ = ("measure",)

BATCH = 128
THREADS = 4


def library(name: str) -> Any:
    """The module that a script calls ``tf``."""
    if name == "TensorFlow":
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        import tensorflow

        tensorflow.compat.v1.disable_v2_behavior()
        return tensorflow.compat.v1
    import aioqueue.compat.v1

    return aioqueue.compat.v1


def pairs(name: str, n: int) -> Callable[[], float]:
    """Seconds for one enqueue and one dequeue, each a run of the session."""
    tf = library(name)
    graph = tf.Graph()
    with graph.as_default():
        queue = tf.FIFOQueue(50, [tf.float32, tf.int32], [[4], []])
        enqueue = queue.enqueue([tf.constant([1.0, 2, 3, 4]), tf.constant(3)])
        dequeue = queue.dequeue()
    session = tf.Session(graph=graph)

    def run() -> float:
        start = perf_counter()
        for _ in range(n):
            session.run(enqueue)
            session.run(dequeue)
        return (perf_counter() - start) / n

    return run


def decoding(name: str, contents: bytes, n: int) -> Callable[[], float]:
    """Seconds to decode a JPEG file, in a run of the session."""
    tf = library(name)
    graph = tf.Graph()
    with graph.as_default():
        file = tf.placeholder(tf.string, [])
        pixels = tf.image.decode_jpeg(file, channels=3)
    session = tf.Session(graph=graph)

    def run() -> float:
        start = perf_counter()
        for _ in range(n):
            session.run(pixels, {file: contents})
        return (perf_counter() - start) / n

    return run


def picture() -> bytes:
    """A JPEG file of 427 rows and 640 columns, about as hard to decode as a photograph."""
    tf = library("aioqueue")
    y, x = np.mgrid[0:427, 0:640]
    noise = np.random.default_rng(0).integers(0, 40, x.shape)
    pixels = np.stack(((x + noise) % 256, (y + noise) % 256, (x + y) % 256), axis=-1)
    with tf.Graph().as_default(), tf.Session() as session:
        contents: bytes = session.run(tf.image.encode_jpeg(pixels.astype(np.uint8), quality=90))
    return contents


def feed(name: str, count: int) -> float:
    """Examples per second that four threads of a queue runner feed to one consumer."""
    tf = library(name)
    with tf.Graph().as_default():
        queue = tf.FIFOQueue(1000, [tf.float32, tf.int32], [[4], []])
        enqueue = queue.enqueue([tf.constant([1.0, 2, 3, 4]), tf.constant(3)])
        batch = queue.dequeue_many(BATCH)
        tf.train.add_queue_runner(tf.train.QueueRunner(queue, [enqueue] * THREADS))
        with tf.Session() as session:
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(session, coord)
            session.run(batch)
            start = perf_counter()
            for _ in range(count // BATCH):
                session.run(batch)
            rate = count / (perf_counter() - start)
            coord.request_stop()
            coord.join(threads)
    return rate


def feed_apart(name: str, count: int) -> float:
    command = [sys.executable, "-m", "benchmarks.compat", name, str(count)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(output.splitlines()[-1])


LINES = 256


def decode_lines(name: str, n: int) -> Callable[[], float]:
    """Seconds per line of CSV: batches of lines of two ints, two floats and a word."""
    tf = library(name)
    graph = tf.Graph()
    rows = [f"{i},{i * 7919},{i / 8},{i / 3:.5f},word{i}".encode() for i in range(LINES)]
    with graph.as_default():
        lines = tf.placeholder(tf.string, [None])
        columns = tf.decode_csv(lines, [[0], [0], [0.0], [0.0], [""]])
    session = tf.Session(graph=graph)

    def run() -> float:
        start = perf_counter()
        for _ in range(n):
            session.run(columns, {lines: rows})
        return (perf_counter() - start) / (n * LINES)

    return run


def parse_batches(name: str, n: int) -> Callable[[], float]:
    """Seconds per serialized example: batches with a number, a vector, a word and a sparse list."""
    tf = library(name)
    graph = tf.Graph()
    rows = [_example(tf, number) for number in range(LINES)]
    with graph.as_default():
        serialized = tf.placeholder(tf.string, [None])
        parsed = tf.parse_example(
            serialized,
            {
                "label": tf.FixedLenFeature([], tf.int64),
                "vector": tf.FixedLenFeature([16], tf.float32),
                "word": tf.FixedLenFeature([], tf.string),
                "ids": tf.VarLenFeature(tf.int64),
            },
        )
    session = tf.Session(graph=graph)

    def run() -> float:
        start = perf_counter()
        for _ in range(n):
            session.run(parsed, {serialized: rows})
        return (perf_counter() - start) / (n * LINES)

    return run


def _example(tf: Any, number: int) -> bytes:
    ints = [number % 7, *range(number % 4)]
    features = {
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
        "vector": tf.train.Feature(float_list=tf.train.FloatList(value=[number / 8] * 16)),
        "word": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"word"])),
        "ids": tf.train.Feature(int64_list=tf.train.Int64List(value=ints)),
    }
    message = tf.train.Example(features=tf.train.Features(feature=features))
    data: bytes = message.SerializeToString()
    return data


def measure(mode: Mode) -> Iterator[Comparison]:
    """Rows 20, 21, 27, 41 and 42, where TensorFlow is installed."""
    if not installed("tensorflow"):
        return
    n = mode.scaled(10_000)
    yield compare(
        Row("20", "compat.v1: enqueue and dequeue by Session.run", "TensorFlow", 5.0),
        pairs("aioqueue", n),
        pairs("TensorFlow", n // 5),
        mode,
        names=("aioqueue", "TensorFlow"),
    )
    contents = picture()
    n = mode.scaled(100)
    yield compare(
        Row("27", "compat.v1: decode_jpeg, 640 x 427, by Session.run", "TensorFlow", 0.9),
        decoding("aioqueue", contents, n),
        decoding("TensorFlow", contents, n),
        mode,
        names=("aioqueue", "TensorFlow"),
    )
    batches = mode.scaled(400)
    yield compare(
        Row("41", f"compat.v1: decode_csv, {LINES} lines at once", "TensorFlow", 0.8),
        decode_lines("aioqueue", batches),
        decode_lines("TensorFlow", batches),
        mode,
        names=("aioqueue", "TensorFlow"),
    )
    yield compare(
        Row("42", f"compat.v1: parse_example, {LINES} examples at once", "TensorFlow", 0.8),
        parse_batches("aioqueue", batches),
        parse_batches("TensorFlow", batches),
        mode,
        names=("aioqueue", "TensorFlow"),
    )
    names = ("aioqueue", "TensorFlow")
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(max(1, mode.rounds // 2)):
        for name in names:
            rates[name].append(feed_apart(name, 2_000 if mode.quick else 200_000))
    yield Comparison(
        Row("21", "compat.v1: QueueRunner of 4 threads, dequeue_many(128)", "TensorFlow", 2.0),
        [ours / theirs for ours, theirs in zip(*rates.values(), strict=True)],
        {name: f"{statistics.median(each):,.0f} examples/s" for name, each in rates.items()},
    )


if __name__ == "__main__":
    print(feed(sys.argv[1], int(sys.argv[2])))
