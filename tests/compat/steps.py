"""Runs of a session in the background, and waiting until they block, by state and not by time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.core.default_graph import op
from tests.kit.worlds import spin_until

__all__ = ("Step", "blocked", "calling", "drained", "native", "refused", "waiting")


class Step(threading.Thread):
    """A call in a thread of its own; `result` waits for what it returns or raises."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._returned: Any = None
        self._raised: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._returned = self._call()
        except BaseException as error:
            self._raised = error

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return not self.is_alive()

    def result(self, timeout: float = 30) -> Any:
        """What the call returns, or raises."""
        self.join(timeout)
        assert self.done, "still blocked"
        if self._raised is not None:
            raise self._raised
        return self._returned


def refused(kind: Any, words: str, call: Callable[..., object], *args: Any, **options: Any) -> None:
    """Check that a call raises an error of some kind whose text matches."""
    with pytest.raises(kind, match=words or None):
        call(*args, **options)


def native(sess: Any, queue: Any) -> Any:
    """The queue of aioqueue behind a queue of a session."""
    return sess.run(queue.queue_ref).inlet


def calling(function: Callable[..., Any], dtype: Any, inputs: Sequence[Any] = ()) -> Any:
    """A tensor of what a function returns; unlike `py_func`, an `OpError` of it passes as it is."""
    given = [tf.convert_to_tensor(one) for one in inputs]
    outputs = [(dtype, tf.TensorShape(None))]
    return op("Calling", given, outputs, lambda step, *values: function(*values)).outputs[0]


def waiting(sess: Any, queue: Any) -> int:
    """How many enqueues and dequeues wait at a queue."""
    behind = sess.run(queue.queue_ref)
    count = 0
    for one in {id(part): part for part in (behind.queue, behind.inlet)}.values():
        statistics = one.statistics()
        count += statistics.waiting_enqueues + statistics.waiting_dequeues
    return count


def blocked(sess: Any, queue: Any, fetch: Any, feed_dict: Any = None, **options: Any) -> Step:
    """Run something that blocks at a queue, in the background; returns when it does."""
    before = waiting(sess, queue)
    step = Step(lambda: sess.run(fetch, feed_dict, **options))
    spin_until(lambda: step.done or waiting(sess, queue) > before)
    assert not step.done, f"{fetch} did not block"
    return step


def drained(sess: Any, fetch: Any, most: int = 1000) -> list[Any]:
    """Run all queue runners and return what a fetch gives until the end of the input."""
    sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    coord = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(sess, coord)
    got: list[Any] = []
    try:
        while len(got) < most:
            got.append(sess.run(fetch))
    except tf.errors.OutOfRangeError:
        pass
    finally:
        coord.request_stop()
        coord.join(threads)
    return got
