"""Arbitrary input into every public function: the right result or the documented error.

After an error the queue is as it was. What is right is said by NumPy itself: an array goes in if it
has the shape and can be cast under the ``same_kind`` rule, and comes out as ``astype`` makes it,
unless that would make other ints of some.

With ``AIOQUEUE_FUZZ_EXAMPLES=100000``, this file tries more, and others each time.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="input is made by hypothesis, which is not installed")

from hypothesis import HealthCheck, example, find, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import aioqueue
from aioqueue import InvalidArgumentError, OutOfRangeError, QueueEmpty, QueueFull, sync
from aioqueue.base.display_text import on_one_line

# In a new checkout, Hypothesis makes its tables of Unicode first: 2 s that belong to no test.
find(st.text(), lambda text: True)

EXAMPLES = int(os.environ.get("AIOQUEUE_FUZZ_EXAMPLES", "150"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="AIOQUEUE_FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

fuzz_less = settings(fuzz, max_examples=max(10, EXAMPLES // 15))

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
        and bool(np.array_equal(got, expected, equal_nan=expected.dtype.kind in "fcmM"))
    )


def numpy_would(array: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any] | None:
    """What an array is as another dtype, under the rule; None if it is refused."""
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    if np.dtype(dtype).kind in "iu" and cast.tolist() != array.tolist():
        return None  # it wraps around what is too large
    return cast


ARGUMENTS = st.tuples(
    st.sampled_from(["capacity", "dtypes", "shapes", "names", "name", "seed", "keep"]), ANYTHING
)


class TestArrays:
    @pytest.mark.slow
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

    @pytest.mark.slow
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

    @pytest.mark.slow
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


LAID_OUT: dict[str, Any] = {
    "bool": np.dtype(bool),
    "float16": np.dtype("float16"),
    "complex64": np.dtype("complex64"),
    "big-endian": np.dtype(">i4"),
    "big-endian floats": np.dtype(">f8"),
    "times": np.dtype("datetime64[s]"),
    "durations": np.dtype("timedelta64[ms]"),
    "fixed text": np.dtype("U3"),
    "big-endian text": np.dtype(">U2"),
    "fixed bytes": np.dtype("S3"),
    "raw memory": np.dtype("V4"),
    "structured": np.dtype([("a", "int32"), ("b", ">f8")]),
    "nested": np.dtype([("a", [("x", "int16"), ("y", "datetime64[s]")]), ("b", "U2")]),
    "with gaps": np.dtype([("a", "int8"), ("b", "float64")], align=True),
    "sub-array": np.dtype([("a", "float32", (2, 2)), ("b", "bool")]),
    "zero-size": np.dtype([("a", "float32", (0,)), ("b", "int8")]),
    "no size at all": np.dtype([]),
    "with objects": np.dtype([("a", "object"), ("b", "int8")]),
    "objects": np.dtype(object),
}
VALUES = st.none() | st.integers() | st.text(max_size=3) | st.floats()


@st.composite
def laid_out(draw: st.DrawFn, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Arrays of any of these dtypes, in any memory layout."""
    array: Any = np.zeros(shape, dtype)
    if dtype.hasobject:
        field = array["a"] if dtype.names else array
        for index in np.ndindex(shape):
            field[index] = draw(VALUES)
    elif dtype.names is None and dtype.kind == "V":
        raw = draw(st.binary(min_size=array.nbytes, max_size=array.nbytes))
        array = np.frombuffer(raw, dtype).reshape(shape).copy()
    elif dtype.itemsize:
        array = draw(hnp.arrays(dtype, shape, fill=st.nothing()))
        if dtype.kind in "mM" and array.size and draw(st.booleans()):
            array.flat[0] = "NaT"
    how = draw(st.sampled_from(["plain", "reversed", "swapped", "read-only", "strided"]))
    if how == "reversed":
        array = array[::-1]
    if how == "swapped":
        array = array.astype(dtype.newbyteorder())
    if how == "strided":
        array = np.repeat(array, 2, axis=0)[::2]
    if how == "read-only":
        array.setflags(write=False)
    return array  # type: ignore[no-any-return]


def content(rows: Any, dtype: np.dtype[Any]) -> list[Any]:
    """What rows say, one by one, as what can be compared: NaN and NaT are equal to themselves."""
    array = np.array(rows, dtype=dtype) if isinstance(rows, np.ndarray) else np.asarray(rows)
    assert array.dtype.newbyteorder("=") == dtype.newbyteorder("=")
    return [repr(array[place : place + 1].tolist()) for place in range(len(array))]


def scribble(value: Any) -> None:
    """Overwrite a result, as its only owner may."""
    if isinstance(value, np.void) and value.dtype.names:
        for name in value.dtype.names:
            value[name] = np.zeros((), value.dtype[name].base)
    elif isinstance(value, np.ndarray) and value.size and value.flags.writeable:
        value[...] = np.zeros((), value.dtype)


WAYS_IN = ("one by one", "copied", "handed over")
WAYS_OUT = ("one by one", "batch", "up to", "into out")


class TestWhatComesOut:
    """What was put in, whatever its dtype; and it stays so, whatever becomes of the rest."""

    @pytest.mark.slow(but=("fifo-nested", "fifo-structured", "fifo-times", "fifo-fixed text"))
    @pytest.mark.parametrize("name", LAID_OUT)
    @pytest.mark.parametrize("make", ["fifo", "shuffle", "padding", "priority"])
    @fuzz_less
    @given(data=st.data())
    def test_is_what_went_in(self, name: str, make: str, data: st.DataObject) -> None:
        dtype = LAID_OUT[name]
        shape = data.draw(st.sampled_from([(), (2,), (0,), (1, 3)]))
        n = data.draw(st.integers(1, 5))
        array = data.draw(laid_out(dtype, (n, *shape)))
        way_in = data.draw(st.sampled_from(WAYS_IN))
        way_out = data.draw(st.sampled_from(WAYS_OUT if make != "padding" else WAYS_OUT[:3]))
        queues: dict[str, Callable[[], Any]] = {
            "fifo": lambda: sync.FIFOQueue(n, [dtype], [shape]),
            "shuffle": lambda: sync.RandomShuffleQueue(n, 0, [dtype], [shape], seed=1),
            "padding": lambda: sync.PaddingFIFOQueue(n, [dtype], [tuple(None for _ in shape)]),
            "priority": lambda: sync.PriorityQueue(n, [dtype], [shape]),
        }
        queue = queues[make]()
        ordered = make == "priority"
        expected = content(array, dtype)

        def fill(rows: np.ndarray[Any, Any]) -> None:
            places = range(len(rows))
            if way_in == "one by one":
                for place in places:
                    queue.enqueue((place, rows[place]) if ordered else rows[place])
            else:
                batch = (list(places), rows) if ordered else rows
                queue.enqueue_many(batch, copy=way_in == "copied")

        def empty() -> list[Any]:
            """What comes out, as the caller gets it: elements, or one batch."""
            if way_out == "one by one":
                taken = [queue.dequeue(timeout=0) for _ in range(n)]
                return [row for _, row in taken] if ordered else taken
            if way_out == "into out":
                outs = [np.empty(n, "int64"), np.zeros((n, *shape), dtype)]
                queue.dequeue_many(n, out=tuple(outs) if ordered else outs[1], timeout=0)
                return [outs[1]]
            take = queue.dequeue_many if way_out == "batch" else queue.dequeue_up_to
            batch = take(n, timeout=0)
            return [batch[1] if ordered else batch]

        def messages(results: list[Any]) -> list[str]:
            if way_out != "one by one":
                return content(results[0], dtype)
            rows = np.zeros((n, *shape), dtype)
            for place, row in enumerate(results):
                assert np.shape(row) == shape or dtype.hasobject
                rows[place] = row
            return content(rows, dtype)

        fill(array.copy())
        first = empty()
        if make == "shuffle":
            assert sorted(messages(first)) == sorted(expected)
            expected = messages(first)
        assert messages(first) == expected
        # The memory of the queue is used again, and what came out is ours.
        fill(np.zeros_like(array))
        assert messages(first) == expected
        blank = messages(empty())
        fill(array.copy())
        second = empty()
        if make != "shuffle":
            assert messages(second) == expected
        before = messages(second)
        for result in first:
            scribble(result)
        assert messages(second) == before
        assert len(blank) == n


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


def components_of(queue: Any, thing: Any) -> list[Any]:
    """The components of an element or a batch, of what went in or of what came out."""
    if queue.names:
        return [thing[name] for name in queue.names]
    return [thing] if len(queue.dtypes) == 1 else list(thing)


def came_through(dtype: np.dtype[Any], given: Any, got: Any) -> bool:
    """Whether a value is what NumPy makes of the one that went in."""
    if dtype.hasobject:
        return bool(np.asarray(given, object) == np.asarray(got, object))
    with np.errstate(all="ignore"):
        return same(got, np.asarray(given).astype(dtype))


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
            got = queue.dequeue(timeout=0)
            assert queue.statistics().dequeued == 1
            if queue.dtypes is None:
                assert got is value or (got[0] == value[0] and got[1] is value[1])
                return
            went, came = components_of(queue, value), components_of(queue, got)
            assert all(map(came_through, queue.dtypes, went, came))

    @pytest.mark.slow
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
        got = list(queue)
        assert len(got) == rest
        if not got or name in {"shuffle", "priority", "priorities of objects"}:
            return  # in another order
        if queue.dtypes is None:
            assert not isinstance(value, list) or all(map(operator.is_, value, got))
            return
        went = list(zip(*map(list, components_of(queue, value)), strict=True))
        for before, after in zip(went[:rest], got, strict=True):
            assert all(map(came_through, queue.dtypes, before, components_of(queue, after)))

    @pytest.mark.slow
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

    @pytest.mark.slow
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
        assert on_one_line(queue.name) in repr(queue)
        assert queue.size() == 0
        with pytest.raises(QueueEmpty):
            queue.dequeue_nowait()

    @pytest.mark.slow
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


@pytest.mark.slow
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
