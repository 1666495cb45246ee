"""Ten threads loop until one of them has had enough; then a thread fails, and `join` says so."""

from __future__ import annotations

import threading

import aioqueue.compat.v1 as tf

LIMIT = 100


class Counter:
    """A number that threads increase."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def increase(self) -> int:
        with self._lock:
            self.value += 1
            return self.value


def count_until_enough(coord: tf.train.Coordinator, counter: Counter) -> None:
    while not coord.should_stop():
        if counter.increase() >= LIMIT:
            coord.request_stop()


def fail(coord: tf.train.Coordinator) -> None:
    with coord.stop_on_exception():
        raise ValueError("a worker is broken")


def main() -> None:
    coord = tf.train.Coordinator()
    counter = Counter()
    threads = [
        threading.Thread(target=count_until_enough, args=(coord, counter)) for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    coord.join(threads)
    print(f"stopped at {LIMIT} or soon after: {LIMIT <= counter.value < LIMIT + 10}")

    coord.clear_stop()
    worker = threading.Thread(target=fail, args=(coord,))
    worker.start()
    try:
        coord.join([worker])
    except ValueError as error:
        print(f"join raised: {error}")


if __name__ == "__main__":
    main()
