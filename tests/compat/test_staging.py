"""`StagingArea` and `RecordInput`, which benchmark scripts have between their files and a step."""

from __future__ import annotations

import importlib.util
import random
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.queues.staging import StagingArea
from aioqueue.compat.v1.readers.readers import RecordInput
from tests.compat.steps import Step, refused

needs_crc = pytest.mark.skipif(
    importlib.util.find_spec("google_crc32c") is None, reason="the extra `tfrecord` is missing"
)


class TestStagingArea:
    @pytest.mark.parametrize("seed", range(3))
    def test_it_is_a_bounded_deque(self, sess: Any, seed: int) -> None:
        """Any order of calls that need not wait does what a list does."""
        draw = random.Random(seed)
        capacity = draw.choice((1, 3, 0))
        area = StagingArea([tf.int64, tf.string], capacity=capacity)
        number = tf.placeholder(tf.int64, [])
        index = tf.placeholder(tf.int32, [])
        ops = {
            "put": area.put([number, tf.as_string(number)]), "get": area.get(),
            "peek": area.peek(index), "size": area.size(), "clear": area.clear(),
        }  # fmt: skip
        held: deque[int] = deque()
        for at in range(60):
            what = draw.choice(
                ("put", "put", "get", "peek", "size", "clear" if at % 9 == 0 else "get")
            )
            place = draw.randrange(3)
            full = bool(capacity) and len(held) == capacity
            if (what == "put" and full) or (what == "get" and not held):
                continue
            if what == "peek" and place >= len(held):
                continue
            got = sess.run(ops[what], {number: at, index: place})
            if what == "put":
                held.append(at)
            elif what == "get":
                first = held.popleft()
                assert got == [first, str(first).encode()]
            elif what == "peek":
                assert got == [held[place], str(held[place]).encode()]
            elif what == "size":
                assert got == len(held)
            else:
                held.clear()

    @pytest.mark.parametrize("bound", [{"capacity": 1}, {"memory_limit": 6}])
    def test_a_put_waits_for_room(self, sess: Any, bound: dict[str, Any]) -> None:
        area = StagingArea([tf.float32], shapes=[[]], **bound)
        put, get, clear = area.put([tf.constant(1.0)]), area.get(), area.clear()
        for make_room in (get, clear):
            sess.run(put)
            waiting = Step(lambda: sess.run(put))
            while not waiting.done:
                sess.run(make_room if sess.run(area.size()) else [])
            waiting.result()
            sess.run(clear)

    def test_a_get_waits_for_a_put_of_the_same_run(self, sess: Any) -> None:
        area = StagingArea([tf.int32])
        put, get, peek = area.put([tf.constant([1, 2])]), area.get(), area.peek(1)
        assert sess.run([get, put])[0][0].tolist() == [1, 2]
        peeking = Step(lambda: sess.run(peek))
        for _ in range(2):
            sess.run(put)
        assert peeking.result()[0].tolist() == [1, 2]

    def test_a_wait_ends_with_its_time_and_with_its_session(self, sess: Any) -> None:
        area = StagingArea([tf.int32])
        put, get = area.put([tf.constant(5)]), area.get()
        with pytest.raises(tf.errors.DeadlineExceededError):
            sess.run(get, options=tf.RunOptions(timeout_in_ms=5))
        sess.run(put)
        assert sess.run(get) == [5]
        with tf.Session() as other:
            step = Step(lambda: other.run(get))
            other.run(area.size())
        refused((tf.errors.CancelledError, RuntimeError), "", step.result)

    def test_what_is_inside_is_nobody_elses(self, sess: Any) -> None:
        area = StagingArea([tf.int32])
        fed = tf.placeholder(tf.int32, [2])
        put, get, peek = area.put([fed]), area.get(), area.peek(0)
        given = np.array([1, 2], np.int32)
        sess.run(put, {fed: given})
        given[:] = 7
        (seen,) = sess.run(peek)
        seen[:] = 8
        assert sess.run(get)[0].tolist() == [1, 2]

    def test_names_make_dicts(self, sess: Any) -> None:
        area = StagingArea([tf.int32, tf.float32], names=["a", "b"], shared_name="both")
        same = StagingArea([tf.int32, tf.float32], names=["a", "b"], shared_name="both")
        sess.run(area.put({"b": tf.constant(2.0), "a": tf.constant(1)}))
        assert sess.run(same.get()) == {"a": 1, "b": 2.0}

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"a": 1}, "must have names"),
            ([1, 2], "Unexpected number of inputs 2 vs 1"),
            ([np.zeros(2, np.int32)], "incompatible"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, values: Any, message: str) -> None:
        refused(ValueError, message, lambda: StagingArea([tf.int32], shapes=[[]]).put(values))


@needs_crc
class TestRecordInput:
    @pytest.fixture
    def pattern(self, tmp_path: Path) -> str:
        for shard in range(3):
            with tf.python_io.TFRecordWriter(str(tmp_path / f"part-{shard}")) as writer:
                for number in range(5):
                    writer.write(str(shard * 5 + number))
        return str(tmp_path / "part-*")

    @pytest.mark.parametrize("buffer", [1, 4, 100])
    def test_each_epoch_has_each_record_once(self, sess: Any, pattern: str, buffer: int) -> None:
        records = RecordInput(pattern, batch_size=5, buffer_size=buffer, seed=3).get_yield_op()
        orders = []
        for _ in range(3):
            orders.append([int(one) for _ in range(3) for one in sess.run(records)])
            assert sorted(orders[-1]) == list(range(15))
        assert orders[0] != orders[1]
        with tf.Session() as again:
            assert [int(one) for _ in range(3) for one in again.run(records)] == orders[0]

    def test_batches_are_dealt_out(self, sess: Any, pattern: str) -> None:
        batches = RecordInput(pattern, batch_size=2, batches=3, name="input").get_yield_op()
        assert [len(batch) for batch in batches] == [2, 2, 2]
        assert len({one for batch in sess.run(batches) for one in batch}) == 6

    def test_a_failure_stays(self, sess: Any, tmp_path: Path) -> None:
        with pytest.raises(tf.errors.NotFoundError, match=r"Found no files at .*nothing"):
            sess.run(RecordInput(str(tmp_path / "nothing*")).get_yield_op())
        (tmp_path / "bad").write_bytes(b"no record at all")
        records = RecordInput(str(tmp_path / "bad")).get_yield_op()
        for _ in range(2):
            refused(tf.errors.DataLossError, "", sess.run, records)
        with pytest.raises(ValueError, match="compression_type"):
            RecordInput(str(tmp_path / "bad"), compression_type="zip")
