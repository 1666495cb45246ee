"""Ninety-nine numbers through a shuffle queue, in batches of ten: nine batches, then the end.

The queue holds back what would not fill a batch, so the last nine numbers never come out. Once
with queue runners that are started by hand, once under a `MonitoredSession`.
"""

from __future__ import annotations

from typing import Any

import aioqueue.compat.v1 as tf


def simple_shuffle_batch(source: Any, capacity: int, batch_size: int = 10) -> Any:
    queue = tf.RandomShuffleQueue(
        capacity=capacity,
        min_after_dequeue=int(0.9 * capacity),
        shapes=source.shape,
        dtypes=source.dtype,
    )
    runner = tf.train.QueueRunner(queue, [queue.enqueue(source)] * 4)
    tf.train.add_queue_runner(runner)
    return queue.dequeue_many(batch_size)


def batches_of_numbers() -> Any:
    numbers = tf.data.Dataset.from_tensor_slices(tf.constant(list(range(1, 100))))
    source = numbers.make_one_shot_iterator().get_next()
    return simple_shuffle_batch(source, capacity=20)


def started_by_hand() -> list[int]:
    get_batch = batches_of_numbers()
    numbers: list[int] = []
    sess = tf.Session()
    with sess.as_default():
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(coord=coord)
        while True:
            try:
                numbers += sess.run(get_batch).tolist()
            except tf.errors.OutOfRangeError:
                print("the queue is empty")
                break
        coord.request_stop()
        coord.join(threads)
    sess.close()
    return numbers


def monitored() -> list[int]:
    get_batch = batches_of_numbers()
    numbers: list[int] = []
    with tf.train.MonitoredSession() as sess:
        while not sess.should_stop():
            numbers += sess.run(get_batch).tolist()
    return numbers


def main() -> None:
    for numbers in (started_by_hand(), monitored()):
        assert len(set(numbers)) == len(numbers)
        assert numbers != sorted(numbers)
        print(f"{len(numbers) // 10} batches of ten, no number twice")
        tf.reset_default_graph()


if __name__ == "__main__":
    main()
