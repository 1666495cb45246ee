"""Where we do better than TensorFlow on purpose: what it does, and what we do."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from proofs.oracle.kinder import KINDER
from proofs.oracle.libraries import MISSING, ours, theirs
from proofs.oracle.stage import described, failed, settle

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

Show = Callable[[Any], Any]
CASES: dict[str, tuple[Show, Any, Any]] = {}
"""By name: what is done, what TensorFlow makes of it, and what we do."""


def case(name: str, *, theirs: Any, ours: Any) -> Callable[[Show], Show]:
    """Add a case; the function is called once with each library."""

    def add(show: Show) -> Show:
        CASES[name] = (show, theirs, ours)
        return show

    return add


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the class of what it raises."""
    try:
        value = call()
    except Exception as error:
        return failed(error)[1]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


@pytest.mark.parametrize("name", KINDER)
def test_kinder(name: str) -> None:
    show, expected_of_theirs, expected_of_ours = CASES[name]
    for library, expected in ((theirs(), expected_of_theirs), (ours(), expected_of_ours)):
        with library.Graph().as_default():
            assert show(library) == expected, library.__name__


def test_every_case_is_listed() -> None:
    assert set(CASES) == set(KINDER)


@case(
    "rows of a cancelled batch",
    theirs=["DeadlineExceededError", 0],
    ours=["DeadlineExceededError", 2],
)
def _(tf: Any) -> Any:
    q = tf.FIFOQueue(5, [tf.int32], [[]])
    with tf.Session() as sess:
        sess.run(q.enqueue_many([[1, 2]]))
        options = tf.RunOptions(timeout_in_ms=20)
        batch = outcome(lambda: sess.run(q.dequeue_many(3), options=options))
        return [batch, sess.run(q.size())]


@case("remainder of a priority queue", theirs=["OutOfRangeError", 0], ours=[[1, 2], 0])
def _(tf: Any) -> Any:
    q = tf.PriorityQueue(5, [tf.int32], [[]])
    with tf.Session() as sess:
        sess.run(q.enqueue_many([[2, 1], [2, 1]]))
        sess.run(q.close())
        batch = outcome(lambda: sess.run(q.dequeue_up_to(3)[1]))
        return [batch, sess.run(q.size())]


@case("oversized batch of a priority queue", theirs=["blocked"], ours=[1])
def _(tf: Any) -> Any:
    q = tf.PriorityQueue(1, [tf.int32], [[]])
    batch, take, put = q.dequeue_many(2), q.dequeue()[1], q.enqueue([1, 1])
    with tf.Session() as sess:
        took: list[Any] = []
        threads = [
            threading.Thread(target=lambda: outcome(lambda: sess.run(batch))),
            threading.Thread(target=lambda: took.append(outcome(lambda: sess.run(take)))),
        ]
        for thread in threads:
            thread.start()
            settle()
        sess.run(put)
        settle()
        seen = list(took) or ["blocked"]
        sess.run(q.close())
        for thread in threads:
            thread.join()
        return seen


@case(
    "equal priorities",
    theirs=[0, 2, 6, 11, 10, 9, 8, 5, 7, 4, 1, 3],
    ours=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
)
def _(tf: Any) -> Any:
    q = tf.PriorityQueue(20, [tf.int32], [[]])
    with tf.Session() as sess:
        sess.run(q.enqueue_many([np.zeros(12, np.int64), np.arange(12)]))
        return sess.run(q.dequeue_many(12)[1]).tolist()


@case("padding of any rank", theirs=["UnimplementedError", 0], ours=[(2, 1, 1, 1, 1, 3), 0])
def _(tf: Any) -> Any:
    q = tf.PaddingFIFOQueue(5, [tf.int32], [[1, 1, 1, 1, None]])
    with tf.Session() as sess:
        for length in (1, 3):
            sess.run(q.enqueue(np.ones((1, 1, 1, 1, length), np.int32)))
        batch = outcome(lambda: sess.run(q.dequeue_many(2)).shape)
        return [batch, sess.run(q.size())]


@case("errors given to request_stop", theirs=["TypeError", "TypeError"], ours=[None, "ValueError"])
def _(tf: Any) -> Any:
    coord = tf.train.Coordinator()
    return [
        outcome(lambda: coord.request_stop(ValueError("given"))),
        outcome(lambda: (coord.request_stop(), coord.join([]))),
    ]


@case("all errors of a coordinator", theirs=["one"], ours=["one", "two"])
def _(tf: Any) -> Any:
    coord = tf.train.Coordinator()
    for word in ("one", "two"):
        with coord.stop_on_exception():
            raise ValueError(word)
    with pytest.raises(ValueError, match="one") as caught:
        coord.join([])
    together = caught.value.__cause__
    errors = together.exceptions if isinstance(together, ExceptionGroup) else [caught.value]
    return [str(error) for error in errors]


@case("join at once", theirs="some have waited", ours="none has waited")
def _(tf: Any) -> Any:
    # TensorFlow's look may be just due, but not every time.
    some = any(_join_waits(tf) for _ in range(3))
    return "some have waited" if some else "none has waited"


def _join_waits(tf: Any) -> bool:
    """Whether join still waits when the thread has ended and all that can be done is done."""
    gate = threading.Event()
    worker = threading.Thread(target=gate.wait)
    worker.start()
    joiner = threading.Thread(target=tf.train.Coordinator().join, args=([worker],))
    joiner.start()
    settle()
    gate.set()
    worker.join()
    settle()
    waits = joiner.is_alive()
    joiner.join()
    return waits


@case("shape of a chosen queue's size", theirs=None, ours=0)
def _(tf: Any) -> Any:
    index = tf.placeholder(tf.int32)
    q = tf.QueueBase.from_list(index, [tf.FIFOQueue(2, [tf.int32])])
    return q.size().shape.ndims


@case(
    "words about closed exception types",
    theirs="<class 'ValueError'>",
    ours="(<class 'ValueError'>,)",
)
def _(tf: Any) -> Any:
    q = tf.FIFOQueue(2, [tf.int32], [[]])
    with pytest.raises(TypeError, match=r"must be a tuple of tf\.error types") as caught:
        tf.train.QueueRunner(q, [q.enqueue(1)], queue_closed_exception_types=(ValueError,))
    return str(caught.value).rpartition("but saw: ")[2]


@case("runner of what is no op", theirs="AttributeError", ours=2)
def _(tf: Any) -> Any:
    runner = tf.train.QueueRunner(tf.FIFOQueue(2, [tf.int32], [[]]), [tf.no_op, tf.no_op])
    with tf.Session() as sess:
        return outcome(lambda: len(runner.create_threads(sess)))


@case("op of an error", theirs=None, ours="two")
def _(tf: Any) -> Any:
    one = tf.FIFOQueue(2, [tf.int32], [[]], shared_name="shared", name="one")
    two = tf.FIFOQueue(2, [tf.int32], [[5]], shared_name="shared", name="two")
    with tf.Session() as sess:
        sess.run(one.size())
        with pytest.raises(tf.errors.InvalidArgumentError, match="component shapes") as caught:
            sess.run(two.size())
    return caught.value.op and caught.value.op.name


@case("integers out of range", theirs=-1294967296, ours="OverflowError")
def _(tf: Any) -> Any:
    q = tf.FIFOQueue(5, [tf.int32], [[]])
    with tf.Session() as sess:
        return outcome(lambda: (sess.run(q.enqueue(3_000_000_000)), sess.run(q.dequeue()))[1])


@case("run of a closed monitored session", theirs="AttributeError", ours="RuntimeError")
def _(tf: Any) -> Any:
    one = tf.constant(1)
    sess = tf.train.MonitoredSession()
    sess.close()
    return outcome(lambda: sess.run(one))


@case("array of file names", theirs="ValueError", ours=b"two")
def _(tf: Any) -> Any:
    names = np.array(["one", "two"])
    made = outcome(lambda: tf.train.string_input_producer(names, shuffle=False, num_epochs=1))
    if isinstance(made, str):
        return made
    (runner,) = tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)
    with tf.Session() as sess:
        sess.run(tf.local_variables_initializer())
        sess.run(runner.enqueue_ops)
        return sess.run(made.dequeue_many(2))[1]


@case("arithmetic with an array of another shape", theirs="NotImplementedError", ours="ValueError")
def _(tf: Any) -> Any:
    tensor = tf.constant(np.zeros((2, 3), "float32"))
    return outcome(lambda: tensor - np.zeros((4, 3), "float32"))


@case("record cut off in its length", theirs=b"whole", ours="DataLossError")
def _(tf: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/cut", "wb") as file:
            file.write(b"\x05\x00")
        with tf.python_io.TFRecordWriter(f"{folder}/good") as writer:
            writer.write(b"whole")
        q = tf.FIFOQueue(5, [tf.string], [[]])
        _, value = tf.TFRecordReader().read(q)
        with tf.Session() as sess:
            sess.run(q.enqueue_many([[f"{folder}/cut", f"{folder}/good"]]))
            return outcome(lambda: sess.run(value))


@case("no repetition of what is shuffled", theirs="InvalidArgumentError", ours="OutOfRangeError")
def _(tf: Any) -> Any:
    data = tf.data.Dataset.range(6).shuffle(3, seed=7, reshuffle_each_iteration=False).repeat(0)
    iterator = tf.data.make_initializable_iterator(data)
    with tf.Session() as sess:
        return outcome(lambda: sess.run(iterator.initializer) or sess.run(iterator.get_next()))


CRASH = """
import sys
import numpy as np
if sys.argv[1].startswith("tensorflow"):
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
else:
    import aioqueue.compat.v1 as tf
q = tf.FIFOQueue(5, [tf.int32], [[0]])
with tf.Session() as sess:
    sess.run(q.enqueue_many([np.zeros((3, 0), np.int32)]))
    print(sess.run(q.size()))
"""


@case("rows of no numbers", theirs="crashed", ours="3")
def _(tf: Any) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", CRASH, tf.__name__], capture_output=True, text=True, check=False
    )
    return "crashed" if done.returncode < 0 else done.stdout.strip()


@case("places of a failed write", theirs=[9, 2], ours=[1, 2])
def _(tf: Any) -> Any:
    variable = tf.Variable([1, 2])
    with tf.Session() as sess:
        sess.run(variable.initializer)
        with pytest.raises(tf.errors.InvalidArgumentError):
            sess.run(tf.scatter_update(variable, [0, 7], [9, 9]))
        return sess.run(variable).tolist()


@case("scalar as a batch", theirs="some number of rows", ours="Expected [?], got []")
def _(tf: Any) -> Any:
    x = tf.placeholder(tf.int32)
    q = tf.FIFOQueue(5, [tf.int32], [[]])
    with tf.Session() as sess:
        try:
            sess.run(q.enqueue_many([x]), {x: 1})
        except tf.errors.InvalidArgumentError as error:
            if "Expected [?], got []" in error.message:
                return "Expected [?], got []"
        return "some number of rows"


def test_described_distinguishes_dtypes() -> None:
    assert described(np.int32(1)) != described(np.int64(1))
