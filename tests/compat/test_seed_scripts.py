"""Scripts of the kind that public documents about TensorFlow 1's queues show, run unmodified.

Each is written here as a script that says ``import tensorflow as tf``; the runner gives it this
package. What was Python 2 is Python 3, and what was left out of the documents is filled in.
"""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.compat.warm import WARM
from tests.kit.children import environment

FOUR_THREADS = """
    import numpy as np
    import tensorflow as tf

    N_SAMPLES = 1000
    NUM_THREADS = 4
    data = 10 * np.random.randn(N_SAMPLES, 4) + 1
    target = np.random.randint(0, 2, size=N_SAMPLES)
    queue = tf.FIFOQueue(capacity=50, dtypes=[tf.float32, tf.int32], shapes=[[4], []])
    enqueue_op = queue.enqueue_many([data, target])
    dequeue_op = queue.dequeue()
    qr = tf.train.QueueRunner(queue, [enqueue_op] * NUM_THREADS)
    rows = 0
    with tf.Session() as sess:
        coord = tf.train.Coordinator()
        enqueue_threads = qr.create_threads(sess, coord=coord, start=True)
        for step in range(100):
            if coord.should_stop():
                break
            data_batch, label_batch = sess.run(dequeue_op)
            assert np.array_equal(data_batch, data[step].astype(np.float32))
            assert label_batch == target[step]
            rows += 1
        coord.request_stop()
        coord.join(enqueue_threads)
    print(rows, len(enqueue_threads), any(thread.is_alive() for thread in enqueue_threads))
"""

COORDINATOR_LOOPS = """
    import random
    import threading
    import tensorflow as tf

    def worker(coord):
        while not coord.should_stop():
            if random.randint(0, 10) > 5:
                print("request stop")
                coord.request_stop()
        print("stopped")

    coord = tf.train.Coordinator()
    threads = [threading.Thread(target=worker, args=(coord,), name=str(i)) for i in range(10)]
    for t in threads:
        t.start()
    coord.join(threads)
    print(coord.joined, coord.should_stop())
"""

SHUFFLE_BATCH = """
    import tensorflow as tf

    def simple_shuffle_batch(source, capacity, batch_size=10):
        queue = tf.RandomShuffleQueue(capacity=capacity,
                                      min_after_dequeue=int(0.9 * capacity),
                                      shapes=source.shape, dtypes=source.dtype)
        enqueue = queue.enqueue(source)
        num_threads = 4
        qr = tf.train.QueueRunner(queue, [enqueue] * num_threads)
        tf.train.add_queue_runner(qr)
        return queue.dequeue_many(batch_size)

    input = tf.constant(list(range(1, 100)))
    input = tf.data.Dataset.from_tensor_slices(input)
    input = input.make_one_shot_iterator().get_next()
    get_batch = simple_shuffle_batch(input, capacity=20)
    seen = []
"""

DIRECTLY = """
    sess = tf.Session()
    with sess.as_default() as sess:
        tf.train.start_queue_runners()
        while True:
            try:
                seen.append(sess.run(get_batch))
            except tf.errors.OutOfRangeError as e:
                print("(requested 10, current size 9)" in e.message)
                print("queue is empty")
                break
"""

MONITORED = """
    with tf.train.MonitoredSession() as sess:
        while not sess.should_stop():
            seen.append(sess.run(get_batch))
"""

TELL = """
    numbers = [int(number) for batch in seen for number in batch]
    print([len(batch) for batch in seen] == [10] * 9, len(set(numbers)),
          numbers != sorted(numbers), set(numbers) <= set(range(1, 100)))
"""

INCREMENT = """
    import tensorflow as tf

    q = tf.FIFOQueue(3, "float")
    init = q.enqueue_many(([0., 0., 0.],))
    x = q.dequeue()
    y = x + 1
    q_inc = q.enqueue([y])
    with tf.Session() as sess:
        init.run()
        q_inc.run()
        q_inc.run()
        q_inc.run()
        q_inc.run()
        print([float(sess.run(x)) for _ in range(3)], sess.run(q.size()))
"""

TRAINING = """
    import tensorflow as tf

    example = tf.random_uniform([4])
    queue = tf.RandomShuffleQueue(capacity=100, min_after_dequeue=10, dtypes=[tf.float32],
                                  shapes=[[4]])
    enqueue_op = queue.enqueue(example)
    inputs = queue.dequeue_many(8)
    train_op = tf.reduce_mean(inputs)
    qr = tf.train.QueueRunner(queue, [enqueue_op] * 4)
    sess = tf.Session()
    coord = tf.train.Coordinator()
    enqueue_threads = qr.create_threads(sess, coord=coord, start=True)
    steps = 0
    try:
        for step in range(1000000):
            if coord.should_stop():
                break
            sess.run(train_op)
            steps += 1
            if steps == 50:
                %s
    except Exception as e:
        coord.request_stop(e)
    finally:
        coord.request_stop()
        try:
            coord.join(enqueue_threads)
        except Exception as e:
            print("join raised", type(e).__name__, e)
    print(steps, any(thread.is_alive() for thread in enqueue_threads))
"""

SCRIPTS = {
    "the FIFO queue with four threads": (FOUR_THREADS, "100 5 False\n"),
    "a shuffled batch, runners started directly": (
        SHUFFLE_BATCH + DIRECTLY + TELL,
        "True\nqueue is empty\nTrue 90 True True\n",
    ),
    "a shuffled batch in a monitored session": (
        SHUFFLE_BATCH + MONITORED + TELL,
        "True 90 True True\n",
    ),
    "the graph that increments": (INCREMENT, "[1.0, 1.0, 2.0] 0\n"),
    "the training loop": (TRAINING % "coord.request_stop()", "50 False\n"),
    "the training loop that fails": (
        TRAINING % "raise ValueError('this step failed')",
        "join raised ValueError this step failed\n50 False\n",
    ),
}


def run(path: Path) -> subprocess.CompletedProcess[str]:
    return WARM.run(
        *("-W", "error", "-m", "aioqueue.compat.v1", str(path)),
        cwd=path.parent,
        environment=environment(),
    )


def written(tmp_path: Path, source: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_gives_the_documented_result(tmp_path: Path, name: str) -> None:
    source, printed = SCRIPTS[name]
    done = run(written(tmp_path, source))
    assert done.stdout == printed, done.stderr
    assert done.returncode == 0
    assert done.stderr == ""


def test_coordinated_loops_stop_together(tmp_path: Path) -> None:
    done = run(written(tmp_path, COORDINATOR_LOOPS))
    # Lines of several threads may run into each other.
    assert done.stdout.count("stopped") == 10, done.stderr
    assert done.stdout.count("request stop") >= 1
    assert done.stdout.endswith("True True\n")
    assert done.stderr == ""
