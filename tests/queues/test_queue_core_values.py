"""A value that enters comes out the same, or is refused: and the same by every way in.

One table, enumerated: every kind of value, into every kind of component, by every entry point. Two
values are the same if they are equal and of one kind; a float may lose digits to a narrower one,
and never its size.
"""

from __future__ import annotations

import math
from collections import ChainMap, UserDict
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError, sync
from aioqueue.inputs import batch, from_iterable, items
from aioqueue.pipeline.batches.collation import Collator

RECORD = np.dtype([("a", "i4"), ("b", "f4")])
HAS_TEXT = hasattr(np.dtypes, "StringDType")  # NumPy 2

DTYPES: dict[str, Any] = {
    **{name: name for name in ("bool", "int8", "uint8", "int64", "uint64")},
    **{name: name for name in ("float16", "float32", "float64", "complex64")},
    **{name: name for name in ("M8[s]", "M8[ns]", "m8[s]", "U3", "S3")},
    "object": object,
    "str": str,
    "bytes": bytes,
    "record": RECORD,
    **({"text": np.dtypes.StringDType()} if HAS_TEXT else {}),
}

NUMBERS = (0, 1, -1, 300, 2**40, 2**63, -(2**63), 2**64 - 1)
FLOATS = (0.5, 1e6, 1e300, math.inf, -1e39)
TEXTS: tuple[Any, ...] = ("", "ab", "abcd", "a\0", b"ab", b"a\0", b"abcd")
DATES = ("2020-01-01", "2500-01-01", "NaT")

VALUES: list[Any] = [
    *NUMBERS,
    *FLOATS,
    *TEXTS,
    *(np.array(number).astype(kind)[()] for number in (0, 1, 100) for kind in ("i1", "u8", "f2")),
    *(np.int64(number) for number in NUMBERS if -(2**63) <= number < 2**63),
    np.uint64(2**63),
    *map(np.float64, FLOATS),
    *map(np.str_, ("", "ab")),
    np.bytes_(b"ab"),
    *(np.datetime64(date, unit) for date in DATES for unit in ("D", "s")),
    np.datetime64("2020-01-01", "ns"),
    *(np.timedelta64(5, unit) for unit in ("s", "ns", "D")),
    np.array([(1, 2.5)], RECORD)[0],
    True,
    None,
    1j,
    complex(1e300, 0),
    Fraction(1, 3),
]


def queues(dtype: Any) -> Iterator[sync.BlockingQueue]:
    yield sync.FIFOQueue(None, dtype, ())
    yield sync.RandomShuffleQueue(None, 0, dtype, ())
    yield sync.PaddingFIFOQueue(None, dtype, ())
    yield sync.FIFOQueue(None, dtype)


def by_itself(queue: sync.BlockingQueue, value: Any) -> Any:
    queue.enqueue(value)
    return queue.dequeue()


def at_once(queue: sync.BlockingQueue, value: Any) -> Any:
    queue.enqueue_nowait(value)
    return queue.dequeue_nowait()


def in_a_list(queue: sync.BlockingQueue, value: Any) -> Any:
    queue.enqueue_many([value])
    return queue.dequeue()


def out_in_a_batch(queue: sync.BlockingQueue, value: Any) -> Any:
    queue.enqueue(value)
    return queue.dequeue_many(1)[0]


def in_an_array(queue: sync.BlockingQueue, value: Any) -> Any:
    is_object = not isinstance(value, np.generic)
    if is_object and queue.dtypes != [np.dtype(object)]:
        return in_a_list(queue, value)  # an array would have a dtype of its own
    array = np.empty(1, object if is_object else value.dtype)
    array[0] = value
    queue.enqueue_many(array)
    return queue.dequeue()


WAYS: list[Callable[[sync.BlockingQueue, Any], Any]] = [
    by_itself,
    at_once,
    in_a_list,
    in_an_array,
    out_in_a_batch,
]


def result(way: Callable[..., Any], *arguments: Any) -> Any:
    """What comes out, or ``InvalidArgumentError``."""
    try:
        return way(*arguments)
    except InvalidArgumentError:
        return InvalidArgumentError


def is_same(value: Any, result: Any) -> bool:
    if isinstance(value, np.void):
        return bool(value == result) and value.dtype == result.dtype
    if isinstance(value, str | bytes):
        return isinstance(result, type(value) if type(value) in (str, bytes) else str | bytes) and (
            value == result
        )
    if isinstance(value, np.datetime64 | np.timedelta64) and np.isnat(value):
        return bool(np.isnat(result))
    if isinstance(result, np.timedelta64) and not isinstance(value, np.timedelta64):
        return not np.isnat(result) and int(result.astype("i8")) == value
    if isinstance(result, np.floating | np.complexfloating):
        if not np.isfinite(value):
            return bool(result == value)
        return bool(np.isfinite(result)) and bool(np.isclose(complex(result), complex(value), 1e-3))
    return type(result) is not str and bool(value == result)


def is_alike(one: Any, other: Any) -> bool:
    """Whether two ways had the same result, type and all."""
    if one is InvalidArgumentError or other is InvalidArgumentError:
        return one is other
    is_missing = isinstance(one, np.datetime64 | np.timedelta64) and np.isnat(one)
    if is_missing:
        return bool(np.isnat(other))
    if isinstance(one, np.generic) and isinstance(other, np.generic):
        return one.dtype == other.dtype and bool(one == other)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_by_every_way_in(name: str) -> None:
    for queue in queues(DTYPES[name]):
        for value in VALUES:
            ways = WAYS if queue.shapes is not None else WAYS[:2]
            results = {way.__name__: result(way, queue, value) for way in ways}
            first = results["by_itself"]
            message = f"{value!r} ({type(value).__name__}) into {name} of {queue!r}: {results}"
            assert all(is_alike(first, other) for other in results.values()), message
            if first is not InvalidArgumentError:
                assert is_same(value, first), message
                assert name != "object" or type(first) is type(value), message
            assert queue.size() == 0


@pytest.mark.parametrize("name", [name for name in DTYPES if name not in ("str", "bytes")])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_in_a_batch_of_a_pipeline_as_in_a_queue(name: str) -> None:
    """The first example decides for all that follow, as dtypes do for a queue."""
    dtype = np.dtype(DTYPES[name])
    first = np.zeros(1, dtype)[0] if name != "object" else object()
    if dtype.kind in "UST":
        return  # text of a first example may have any length
    queue = sync.FIFOQueue(None, dtype, ())
    for value in VALUES:
        wanted = result(by_itself, queue, value)
        for examples in ([first, value], [first, value, first]):
            got = result(Collator(objects=name == "object"), examples)
            got = got if got is InvalidArgumentError else got[1]
            message = f"{value!r} ({type(value).__name__}) after {dtype}: {got!r}, not {wanted!r}"
            if name == "object" and isinstance(value, np.str_ | np.bytes_):
                value = value.item()  # text of a batch is Python's
                wanted = value
            assert is_alike(wanted, got), message


def test_the_ways_of_streams_and_pipelines() -> None:
    """All that make batches ask the same rule."""
    bad = [np.zeros(2, "f4"), np.array([1e300, 0])]
    makes: tuple[Callable[[Any], Any], ...] = (
        lambda coord: items(bad).batch(2),
        lambda coord: items(bad).batch(2, pad=True),
        lambda coord: items(bad).pack(4),
        lambda coord: items(bad).bucket([9], 2, length=len),
        lambda coord: from_iterable(bad).batch(2),
        lambda coord: batch(bad, 2, coord=coord),
        lambda coord: batch(bad, 2, coord=coord, dtypes="f4", shapes=(2,)),
        lambda coord: batch(bad, 2, coord=coord, dtypes="f4", shapes=(2,), resume=None),
    )
    for make in makes:
        with (
            pytest.raises(BaseException) as caught,  # noqa: PT011
            sync.Coordinator() as coord,
        ):
            next(iter(make(coord)))
        assert caught.group_contains(InvalidArgumentError)


@pytest.mark.parametrize("name", ["float16", "float32", "complex64"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_floats_are_refused_where_rounding_makes_them_infinite(name: str) -> None:
    """And nowhere before: what NumPy makes of the largest ones is their nearest."""
    dtype = np.dtype(name)
    info = np.finfo(dtype)
    largest = float(info.max)
    last = largest - float(np.nextafter(info.max, info.dtype.type(0)))
    values = [largest + last * part for part in (0.25, 0.499, 0.5, 0.501, 1)]
    values += [math.nextafter(values[2], 0), float(str(info.max))]
    queue = sync.FIFOQueue(None, name, ())
    for value in values:
        for sign in (1, -1):
            is_finite = bool(np.isfinite(np.float64(sign * value).astype(dtype)))
            for way in (by_itself, in_a_list):
                got = result(way, queue, sign * value)
                assert (got is not InvalidArgumentError) == is_finite, (value, got)
                assert got is InvalidArgumentError or np.isfinite(got)


class AnArray:
    """What NumPy makes an array of, though it is none."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(5)


@pytest.mark.skipif(not HAS_TEXT, reason="NumPy 1 has no text of any length")
@pytest.mark.parametrize("value", [np.array(3), np.array(3, ">i4"), AnArray(), np.array(3, object)])
def test_an_array_is_no_text_in_a_list_either(value: Any) -> None:
    for shape in ((), (1,), None):
        queue = sync.FIFOQueue(None, np.dtypes.StringDType(), shape)
        for given in (value, [value]):
            with pytest.raises(InvalidArgumentError, match="component 0"):
                queue.enqueue(given)
        if shape is not None:
            with pytest.raises(InvalidArgumentError, match="component 0"):
                queue.enqueue_many([value])
    queue = sync.FIFOQueue(None, np.dtypes.StringDType(), ())
    queue.enqueue_many([np.array("ab"), "c"])
    assert queue.dequeue_many(2).tolist() == ["ab", "c"]


FIELDS: dict[str, Any] = {
    "i4": 5,
    "i8": 2**62 + 1,
    "f2": 0.5,
    "f8": 0.1,
    "?": True,
    "U5": "ab",
    "U30": "ab",
    "S30": b"ab",
    "V3": b"abc",
    "O": "a",
    "M8[D]": "2020-01-01",
    "M8[ns]": "2020-01-01",
    "m8[s]": 5,
}


@pytest.mark.parametrize("of", FIELDS)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_fields_of_records_stay_what_they_are(of: str, shape: tuple[int, ...]) -> None:
    """NumPy writes numbers as text, and bytes as other text."""
    records = np.zeros(2, [("x", of, shape)])
    records["x"] = FIELDS[of]
    for other in FIELDS:
        dtype = np.dtype([("x", other, shape)])
        queue = sync.FIFOQueue(None, dtype, ())
        try:
            queue.enqueue_many(records)
        except InvalidArgumentError:
            assert of != other
            with pytest.raises(InvalidArgumentError):
                queue.enqueue(records[0])
            with pytest.raises(InvalidArgumentError):
                Collator()([np.zeros(2, dtype), records])
            continue
        got = queue.dequeue_many(2)
        queue.enqueue(records[0])
        for found in (got["x"], queue.dequeue()["x"], Collator()([got, records])[1]["x"]):
            assert np.all(found == records["x"].reshape(-1)[0]), (of, other)
            kinds = {np.asarray(found).dtype.kind in "USVO", records["x"].dtype.kind in "USVO"}
            assert len(kinds) == 1


def test_masked_arrays_are_objects_like_others() -> None:
    masked = np.ma.array([1, 2], mask=[False, True])
    queue = sync.FIFOQueue(None, object, ())
    queue.enqueue(masked)
    queue.enqueue_many([masked])
    assert queue.dequeue() is masked
    assert queue.dequeue() is masked


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "int4", "uint4"])
def test_dtypes_of_other_libraries(name: str) -> None:
    """NumPy takes any two of them for one kind, and would cast floats to ints."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    dtype = np.dtype(getattr(ml_dtypes, name))
    own = np.array([1, 2, 3]).astype(dtype)
    queue = sync.FIFOQueue(None, dtype, ())
    queue.enqueue(own[0])
    queue.enqueue_many(own[1:])
    got = queue.dequeue_many(3)
    assert got.dtype == dtype
    assert got.tolist() == own.tolist()
    assert Collator()([own, own])[1].tolist() == own.tolist()
    others = ("bfloat16", "float8_e5m2", "float8_e4m3fn", "int4", "uint4", "V1", "V2", "V4")
    for other in others:
        strange = np.dtype(getattr(ml_dtypes, other, other))
        if strange == dtype:
            continue
        for given in (own, own[0], own[:1]):
            with pytest.raises(InvalidArgumentError, match="component 0"):
                sync.FIFOQueue(None, strange, given.shape).enqueue(given)
        with pytest.raises(InvalidArgumentError, match="component 0"):
            Collator()([np.zeros(3, strange), own])
    wide = sync.FIFOQueue(None, "f8", ())
    try:
        wide.enqueue_many(own)
    except InvalidArgumentError:
        return
    assert wide.dequeue_many(3).tolist() == [1, 2, 3]


ROWS: dict[str, Any] = {
    "times in ns": np.array(["2020-01-01", "NaT"], "M8[ns]"),
    "days": np.array(["2020-01-01", "2021-01-01"], "M8[D]"),
    "spans": np.array([5, 6], "m8[ns]"),
    "records": np.array([(1, 2.5), (3, 4.5)], RECORD),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_objects_in_a_list_are_what_they_are_alone(name: str) -> None:
    """NumPy turns arrays of times in a list into ints, and records into tuples."""
    row = ROWS[name]

    def types_of(given: Any) -> set[type]:
        assert given.dtype == object
        return set(map(type, given.ravel().tolist()))

    for queue in (
        sync.FIFOQueue(None, object, (2,)),
        sync.PaddingFIFOQueue(None, object, (None,)),
        sync.RandomShuffleQueue(None, 0, object, (2,)),
    ):
        queue.enqueue(row)
        queue.enqueue_many([row, row])
        queue.enqueue_many((row,))
        queue.enqueue(list(row))
        assert types_of(queue.dequeue_many(5)) == {row.dtype.type}
    deep = sync.FIFOQueue(None, object, (2, 2))
    deep.enqueue([row, row])
    deep.enqueue_many([[row, row], [list(row), row]])
    assert types_of(deep.dequeue_many(3)) == {row.dtype.type}
    if name != "records":
        made = Collator()([[1, "a"], row])
        assert set(map(type, made[1])) == {row.dtype.type}


def test_ints_beside_floats_stay_ints_among_objects() -> None:
    made = Collator()([[1, "a"], [2**62 + 1, 0.5]])
    assert made.tolist() == [[1, "a"], [2**62 + 1, 0.5]]
    assert type(made[1][0]) is int
    queue = sync.FIFOQueue(None, object, (2,))
    queue.enqueue_many([[2**62 + 1, 0.5]])
    assert queue.dequeue().tolist() == [2**62 + 1, 0.5]


@pytest.mark.parametrize("kind", [UserDict, ChainMap, MappingProxyType])
def test_the_keys_of_a_mapping_are_no_values(kind: Any) -> None:
    given = kind({1: 10, 2: 20})
    for dtype in ("i8", "f4", object):
        queue = sync.FIFOQueue(None, dtype, (2,))
        for refused, value in (
            (queue.enqueue, given),
            (queue.enqueue_many, given),
            (queue.enqueue_many, [given, given]),
            (sync.FIFOQueue(None, dtype, ()).enqueue_many, given),
        ):
            with pytest.raises(InvalidArgumentError, match="component 0"):
                refused(value)
    for first in ([1, 2], np.array([1, 2]), [1, "a"]):
        with pytest.raises(InvalidArgumentError, match="component 0"):
            Collator()([first, given])
    kept = sync.FIFOQueue(None, object)
    kept.enqueue(given)
    assert kept.dequeue() is given


@pytest.mark.skipif(not HAS_TEXT, reason="NumPy 1 has no text of any length")
def test_text_is_not_true_and_numbers_beside_it_are_no_text() -> None:
    text = np.array(["a", ""], np.dtypes.StringDType())
    with pytest.raises(InvalidArgumentError):
        sync.FIFOQueue(None, "?", (2,)).enqueue(text)
    with pytest.raises(InvalidArgumentError):
        Collator()([np.array([True, False]), text])
    assert Collator()([[1, "a"], text]).tolist() == [[1, "a"], ["a", ""]]


def test_lists_without_an_end_are_refused() -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    for dtype in ("i8", object, str):
        for shape in ((2,), ()):
            if dtype is object and not shape:
                continue  # any object will do
            with pytest.raises(InvalidArgumentError, match="component 0"):
                sync.FIFOQueue(None, dtype, shape).enqueue(endless)


@pytest.mark.parametrize("name", ["twice", "overlapping", "within itself"])
def test_out_needs_memory_for_each_value(name: str) -> None:
    """Or rows would be taken, and lost."""
    memory = np.zeros(3, "f4")
    single = np.lib.stride_tricks.as_strided(memory, (2,), (0,))
    out = {
        "twice": (memory[:2], memory[:2]),
        "overlapping": (memory[:2], memory[1:]),
        "within itself": (single, np.zeros(2, "f4")),
    }[name]
    queue = sync.FIFOQueue(None, ["f4", "f4"], [(), ()])
    queue.enqueue_many(([1, 2], [3, 4]))
    with pytest.raises(InvalidArgumentError, match=r"out: got an array for .* shares"):
        queue.dequeue_many(2, out=out)
    table = np.zeros((2, 2), "f4")
    queue.dequeue_many(2, out=(table[:, 0], table[:, 1]))
    assert table.tolist() == [[1, 3], [2, 4]]


def test_a_void_is_not_filled_with_zeros() -> None:
    queue = sync.FIFOQueue(None, "V4", ())
    queue.enqueue(np.void(b"abcd"))
    assert queue.dequeue() == np.void(b"abcd")
    with pytest.raises(InvalidArgumentError):
        queue.enqueue(np.void(b"ab"))


def test_an_int_that_no_float_holds_is_refused() -> None:
    for dtype in ("longdouble", "clongdouble", "f8"):
        queue = sync.FIFOQueue(None, dtype, ())
        for way in (queue.enqueue, lambda value, queue=queue: queue.enqueue_many([value])):
            with pytest.raises(InvalidArgumentError, match="component 0"):
                way(10**5000)
        queue.enqueue(2**63 + 1)
        assert queue.dequeue() == np.dtype(dtype).type(2**63 + 1)
    queue = sync.FIFOQueue(None, "longdouble", ())
    for number in (np.finfo("longdouble").max, np.finfo(float).max, float(np.finfo(float).max)):
        queue.enqueue(number)
        assert queue.dequeue() == number
