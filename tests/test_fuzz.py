"""Arbitrary input into every public function: the right result or the documented error.

After an error the queue is as it was. What is right is said by NumPy itself: an array goes in if it
has the shape and can be cast under the ``same_kind`` rule, and comes out as ``astype`` makes it.

``AIOQUEUE_FUZZ_EXAMPLES=100000 python -m pytest tests/test_fuzz.py -o timeout=0`` tries more, and
others each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="input is made by hypothesis, which is not installed")

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import aioqueue
from aioqueue import InvalidArgumentError, OutOfRangeError, QueueEmpty, QueueFull, sync

EXAMPLES = int(os.environ.get("AIOQUEUE_FUZZ_EXAMPLES", "150"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="AIOQUEUE_FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

DTYPES = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes()
    | hnp.floating_dtypes()
    | hnp.complex_number_dtypes()
)
DTYPES = DTYPES.filter(lambda dtype: dtype.name not in {"float128", "complex256", "longdouble"})
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


@st.composite
def arrays(draw: st.DrawFn, shape: Any = SHAPES, dtype: Any = DTYPES) -> np.ndarray[Any, Any]:
    """Arrays of any dtype and byte order, contiguous or not, read-only, broadcast or reversed."""
    chosen: np.dtype[Any] = draw(dtype)
    array: np.ndarray[Any, Any] = draw(
        hnp.arrays(
            chosen, draw(shape) if not isinstance(shape, tuple) else shape, fill=st.nothing()
        )
    )
    how = draw(st.sampled_from(["plain", "fortran", "reversed", "swapped", "read-only", "strided"]))
    if how == "fortran":
        return np.asfortranarray(array).reshape(array.shape)
    if how == "reversed" and array.ndim:
        return array[::-1]
    if how == "swapped":
        return array.astype(array.dtype.newbyteorder())
    if how == "strided" and array.ndim:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if how == "read-only":
        array.setflags(write=False)
    return array


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.just(object()),
    st.just(Ellipsis),
    st.just(len),
    st.just(np.ma.masked_array([1, 2], [True, False])),
    st.just(np.zeros(2, [("a", "int32"), ("b", "float32")])),
    st.just(np.array("2026-01-01", "datetime64[D]")),
    st.just(np.array([None, "x"], object)),
    st.just(np.array(["a", "bc"])),
    st.just({"a": 1}),
    st.just({1, 2}),
    st.just(range(3)),
    st.just(iter([1, 2])),
)
ANYTHING = ODD | st.lists(ODD, max_size=3) | st.tuples(ODD, ODD) | arrays()


def same(got: Any, expected: np.ndarray[Any, Any]) -> bool:
    """Whether a result has the value, the shape and the dtype (NumPy scalars are native)."""
    got = np.asarray(got)
    return (
        got.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
        and got.shape == expected.shape
        and bool(np.array_equal(got, expected, equal_nan=expected.dtype.kind in "fc"))
    )


def numpy_would(array: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any] | None:
    """What an array is as another dtype, under the rule; None if it is refused."""
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        return None
    with np.errstate(all="ignore"):
        return array.astype(dtype)


ARGUMENTS = st.tuples(
    st.sampled_from(["capacity", "dtypes", "shapes", "names", "name", "seed", "keep"]), ANYTHING
)


class TestArrays:
    @fuzz
    @given(st.data())
    def test_one_element(self, data: st.DataObject) -> None:
        dtype, shape = data.draw(DTYPES), data.draw(SHAPES)
        array = data.draw(arrays() | arrays(shape=shape))
        queue = sync.FIFOQueue(4, dtype, [shape])
        expected = numpy_would(array, dtype) if array.shape == shape else None
        with np.errstate(all="ignore"):
            if expected is None:
                with pytest.raises(InvalidArgumentError):
                    queue.enqueue(array)
                assert queue.statistics().enqueued == 0
                return
            queue.enqueue(array)
        assert same(queue.dequeue(), expected)

    @fuzz
    @given(st.data())
    def test_batches(self, data: st.DataObject) -> None:
        """Rows go in and come out in other portions, handed over or copied, on every storage."""
        dtype, shape = data.draw(DTYPES), data.draw(SHAPES)
        n = data.draw(st.integers(0, 7))
        array = data.draw(arrays(shape=(n, *shape)) | arrays())
        make = data.draw(st.sampled_from(["fifo", "padding", "shuffle"]))
        queue: Any
        if make == "fifo":
            queue = sync.FIFOQueue(20, dtype, [shape])
        elif make == "padding":
            queue = sync.PaddingFIFOQueue(20, dtype, [tuple(None for _ in shape)])
        else:
            queue = sync.RandomShuffleQueue(20, 0, dtype, [shape], seed=1)
        fits = array.ndim == len(shape) + 1 and (make == "padding" or array.shape[1:] == shape)
        expected = numpy_would(array, dtype) if fits else None
        copy = data.draw(st.booleans())
        with np.errstate(all="ignore"):
            if expected is None:
                with pytest.raises(InvalidArgumentError):
                    queue.enqueue_many(array, copy=copy)
                assert queue.statistics().enqueued == 0
                return
            queue.enqueue_many(array, copy=copy)
        first = data.draw(st.integers(0, len(expected)))
        batches = [queue.dequeue_many(n) for n in (first, len(expected) - first) if n]
        got = np.concatenate(batches) if batches else expected[:0]
        if make == "shuffle":
            assert sorted(map(repr, got.tolist())) == sorted(map(repr, expected.tolist()))
        else:
            assert same(got.reshape(expected.shape), expected)

    @fuzz
    @given(st.data())
    def test_outputs(self, data: st.DataObject) -> None:
        """A caller's own array is written exactly if it has the shape and dtype, or left alone."""
        dtype, shape = data.draw(DTYPES.map(lambda one: one.newbyteorder("="))), data.draw(SHAPES)
        queue = sync.FIFOQueue(4, dtype, [shape])
        rows = data.draw(hnp.arrays(dtype, (3, *shape), fill=st.nothing()))
        queue.enqueue_many(rows)
        out = data.draw(arrays(shape=(3, *shape), dtype=st.just(dtype)) | arrays())
        fits = out.dtype == dtype and out.shape == rows.shape and out.flags.writeable
        if not fits:
            with pytest.raises(InvalidArgumentError, match="out"):
                queue.dequeue_many(3, out=out)
            assert queue.size() == 3
            return
        assert queue.dequeue_many(3, out=out) is out
        assert np.array_equal(out, rows, equal_nan=dtype.kind in "fc")


QUEUES: dict[str, Callable[[], Any]] = {
    "objects": lambda: sync.FIFOQueue(4),
    "scalars": lambda: sync.FIFOQueue(4, "float32", ()),
    "integers": lambda: sync.FIFOQueue(4, "int8", (2,)),
    "booleans": lambda: sync.FIFOQueue(4, "bool", ()),
    "strings": lambda: sync.FIFOQueue(4, str, ()),
    "bytes": lambda: sync.FIFOQueue(4, bytes, ()),
    "dates": lambda: sync.FIFOQueue(4, "datetime64[s]", ()),
    "structured": lambda: sync.FIFOQueue(4, [np.dtype([("a", "int32")])], [()]),
    "any shape": lambda: sync.FIFOQueue(4, "float32"),
    "two": lambda: sync.FIFOQueue(4, ["float32", "int32"], [(2,), ()]),
    "named": lambda: sync.FIFOQueue(4, ["float32", "int32"], [(2,), ()], ["x", "y"]),
    "padding": lambda: sync.PaddingFIFOQueue(4, ["int32", "float32"], [(None,), ()]),
    "priority": lambda: sync.PriorityQueue(4, ["float32"], [(2,)]),
    "priorities of objects": lambda: sync.PriorityQueue(4),
    "shuffle": lambda: sync.RandomShuffleQueue(4, 0, ["float32"], [(2,)], seed=1),
}


class TestAnything:
    @fuzz
    @given(name=st.sampled_from(sorted(QUEUES)), value=ANYTHING | st.tuples(ANYTHING, ANYTHING))
    def test_as_an_element(self, name: str, value: Any) -> None:
        queue = QUEUES[name]()
        try:
            with np.errstate(all="ignore"):  # a float64 may be too large for a float32
                queue.enqueue(value, timeout=0)
        except InvalidArgumentError:
            assert queue.statistics().enqueued == queue.size() == 0
        else:
            assert queue.size() == 1
            queue.dequeue(timeout=0)
            assert queue.statistics().dequeued == 1

    @fuzz
    @given(name=st.sampled_from(sorted(QUEUES)), value=ANYTHING | st.tuples(ANYTHING, ANYTHING))
    def test_as_a_batch(self, name: str, value: Any) -> None:
        queue = QUEUES[name]()
        try:
            with np.errstate(all="ignore"):
                queue.enqueue_many(value, timeout=0)
        except (InvalidArgumentError, aioqueue.DeadlineExceededError) as error:
            assert queue.statistics().enqueued == getattr(error, "enqueued", 0) == queue.size()
        rest = queue.size()
        queue.close()
        assert len(list(queue)) == rest

    @fuzz
    @given(value=ANYTHING)
    def test_as_a_count(self, value: Any) -> None:
        is_count = isinstance(value, int | np.integer) and not isinstance(value, bool)
        for call in ("dequeue_many", "dequeue_up_to", "batches"):
            queue = sync.FIFOQueue(4, "int64", ())
            queue.enqueue_many([1, 2])
            queue.close()
            try:
                getattr(queue, call)(value)
            except InvalidArgumentError as error:
                assert "n: got" in str(error)
                assert not is_count or value < 0 or (call == "batches" and value == 0)
                assert queue.size() == 2
            except OutOfRangeError:
                assert is_count
                assert value > 2
                assert queue.size() == 2
            else:
                assert is_count
                assert value >= 0

    @fuzz
    @given(value=ANYTHING)
    def test_as_seconds(self, value: Any) -> None:
        is_time = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        queue = sync.FIFOQueue(1, "int64", ())
        queue.enqueue(1)
        for arguments in ({"timeout": value}, {"max_wait": value}):
            try:
                queue.dequeue_up_to(0, **arguments)
            except InvalidArgumentError as error:
                assert "expected a number of seconds" in str(error)
                assert not is_time or isinstance(value, complex) or not value >= 0
            else:
                assert value is None or (is_time and value >= 0)
            assert queue.size() == 1

    @fuzz
    @example(("dtypes", ","))  # NumPy raises a SyntaxError
    @given(ARGUMENTS)
    def test_as_any_argument_of_a_queue(self, given: tuple[str, Any]) -> None:
        """A queue is made, and then it works, or the error names the argument."""
        argument, value = given
        arguments: dict[str, Any] = {"capacity": 4, "dtypes": ["int32"], "shapes": [(2,)]}
        kind: Any = sync.FIFOQueue
        if argument in {"seed", "keep"}:
            kind, arguments["min_after_dequeue"] = sync.RandomShuffleQueue, 0
            argument = {"keep": "min_after_dequeue"}.get(argument, argument)
        arguments[argument] = value
        try:
            queue = kind(**arguments)
        except InvalidArgumentError as error:
            assert argument in str(error) or "shapes" in str(error)  # one per dtype
            return
        except MemoryError:
            assert argument == "shapes"  # as large as it was told to be
            return
        assert queue.name in repr(queue)
        assert queue.size() == 0
        with pytest.raises(QueueEmpty):
            queue.dequeue_nowait()

    @fuzz
    @given(value=ANYTHING)
    def test_as_any_argument_of_a_coordinator(self, value: Any) -> None:
        queue = sync.FIFOQueue(1)
        for make in (
            lambda: sync.Coordinator(clean_stop_exception_types=value),
            lambda: sync.Coordinator(stop_grace_period=value),
            lambda: sync.Coordinator().start(value),
            lambda: sync.Coordinator().register(value),
            lambda: sync.Coordinator().join(value),
            lambda: sync.QueueRunner(value, [print]),
            lambda: sync.QueueRunner(queue, value),
            lambda: sync.QueueRunner(queue, [print], close_op=value),
            lambda: sync.QueueRunner(queue, [print], queue_closed_exception_types=value),
        ):
            try:
                make()
            except InvalidArgumentError as error:
                assert ": got" in str(error)


@fuzz
@given(st.lists(st.sampled_from(["put", "many", "take", "take many"]), max_size=30))
def test_never_more_than_fits(calls: list[str]) -> None:
    """Whatever is refused on the way, what is inside is what went in and did not come out."""
    queue = sync.FIFOQueue(5, "int64", ())
    inside: list[int] = []
    for number, call in enumerate(calls):
        try:
            if call == "put":
                queue.enqueue_nowait(number)
                inside.append(number)
            elif call == "many":
                queue.enqueue_many([number, number, "x"], timeout=0)
            elif call == "take":
                assert queue.dequeue_nowait() == inside.pop(0)
            else:
                queue.dequeue_many(-len(inside) - 1)
        except (QueueFull, QueueEmpty, InvalidArgumentError, IndexError):
            pass
        assert queue.size() == len(inside) <= 5
