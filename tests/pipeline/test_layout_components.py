"""What examples are made of, in every stage that looks into them: none is cut, wrapped or mixed up.

`batch`, `bucket` and `pack` take values by one rule, that of the queues; `unbatch` gives them back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioqueue import InvalidArgumentError
from aioqueue.inputs import items
from tests.kit.going import packed, plain

STRINGS: Any = getattr(np.dtypes, "StringDType", lambda: "U")()  # NumPy 2 has them
RECORD = np.dtype([("id", "i4"), ("word", "U3"), ("code", "S2")])


class Pair(NamedTuple):
    """A named example."""

    ids: Any
    weights: Any


def only(pipeline: Any) -> Any:
    """The one thing that it gives."""
    (one,) = pipeline
    return one


def failure_of(pipeline: Any) -> str:
    """What going through it is refused with."""
    with pytest.raises(ExceptionGroup) as raised:
        list(pipeline)
    (failure,) = raised.value.exceptions
    assert isinstance(failure, InvalidArgumentError)
    return str(failure)


BOTH: dict[str, Callable[[Any], Any]] = {
    "batch": lambda source: source.batch(2, pad=True),
    "bucket": lambda source: source.bucket([10], 2),
    "pack": lambda source: source.pack(8),
}


@pytest.mark.parametrize("stage", BOTH)
class TestOneRule:
    """Each of these was right in `batch`, and is to be so wherever components are put together."""

    def refused(self, stage: str, *examples: Any) -> str:
        return failure_of(BOTH[stage](items(examples)))

    def first(self, stage: str, *examples: Any) -> Any:
        """How a stage changes the first component."""
        made = only(BOTH[stage](items(examples)))
        return made[1] if stage == "bucket" else made if stage == "batch" else made[0]

    def test_numbers_do_not_wrap(self, stage: str) -> None:
        assert "[300], outside -128 to 127" in self.refused(stage, np.array([1], np.int8), [300])

    def test_numbers_of_numpy_do_not_wrap_either(self, stage: str) -> None:
        large = np.array([2**40])
        assert "int64[1], outside -2147483648" in self.refused(stage, np.array([1], "i4"), large)
        large = np.array([2**63], "u8")
        assert "uint64[1], outside -92233720" in self.refused(stage, np.array([-1]), large)
        far = np.array(["3000-01-01"], "M8[D]")
        near = np.array(["2026-01-01"], "M8[ns]")
        assert "[1], outside what it can hold" in self.refused(stage, near, far)

    def test_times_are_not_cut_off(self, stage: str) -> None:
        days = np.array(["2026-01-01"], "M8[D]")
        noon = np.array(["2026-01-02T12"], "M8[h]")
        assert "[1], outside what it can hold" in self.refused(stage, days, noon)
        midnight = np.array(["2026-01-02T00"], "M8[h]")
        assert self.first(stage, days, midnight).dtype == "M8[D]"

    def test_numbers_that_fit_are_narrowed(self, stage: str) -> None:
        made = self.first(stage, np.array([1], "i4"), np.array([2**31 - 1]))
        assert made.dtype == np.int32
        assert made.max() == 2**31 - 1

    def test_fields_are_not_exchanged(self, stage: str) -> None:
        names = [("x", "f4"), ("y", "f4")]
        turned = np.ones(1, names[::-1])
        assert "first example had [('x', '<f4')" in self.refused(stage, np.ones(1, names), turned)

    def test_a_float_is_no_int(self, stage: str) -> None:
        assert "first example had int64[1]" in self.refused(stage, [1], [1.5])

    @pytest.mark.parametrize("kind", [list, np.array])
    def test_strings_are_not_cut(self, stage: str, kind: Any) -> None:
        made = self.first(stage, kind(["a"]), kind(["hello"]))
        assert [word for word in made.ravel().tolist() if word] == ["a", "hello"]
        assert made.dtype == object

    @pytest.mark.parametrize(
        "listed",
        [["a", 1], [b"a", "b"], ["a", True, 2.5], ["a\0", "b\0\0"], [b"\0\0", b""], ["é", b"\xff"]],
        ids=repr,
    )
    def test_what_is_beside_text_is_kept(self, stage: str, listed: list[Any]) -> None:
        """NumPy makes strings of numbers and of bytes there, and strips zeros off the ends."""
        made = self.first(stage, listed)
        found = made.ravel().tolist()[: len(listed)]
        assert found == listed
        assert list(map(type, found)) == list(map(type, listed))

    def test_what_comes_after_text_is_kept(self, stage: str) -> None:
        found = self.first(stage, ["a"], [1]).ravel().tolist()
        assert "a" in found
        assert 1 in found

    def test_masks_are_refused(self, stage: str) -> None:
        masked = np.ma.array([1, 2], mask=[False, True])
        assert "masked array" in self.refused(stage, masked)

    def test_keys_are_names_and_not_places(self, stage: str) -> None:
        one, other = {"a": [1, 1], "b": [2, 2]}, {"b": [2, 2], "a": [1, 1]}
        made = only(BOTH[stage](items([one, other])))
        made = made[1] if stage == "bucket" else made
        assert {*made["a"].ravel().tolist()} <= {0, 1}
        assert {*made["b"].ravel().tolist()} <= {0, 2}

    def test_another_structure_is_refused(self, stage: str) -> None:
        assert "['b', 'c']; the first one had the keys" in self.refused(
            stage, {"a": [1], "b": [2]}, {"b": [1], "c": [2]}
        )
        assert "a tuple of 1; the first one" in self.refused(stage, ([1], [2]), ([1],))

    @pytest.mark.parametrize(
        ("dtype", "value", "blank"),
        [(STRINGS, "abc", ""), ("U3", "abc", ""), ("S3", b"abc", b"")],
    )
    def test_strings_are_padded_with_empty_ones(
        self, stage: str, dtype: Any, value: Any, blank: Any
    ) -> None:
        made = self.first(stage, np.array([value] * 2, dtype), np.array([value], dtype))
        assert {*made.ravel().tolist()} == {value, blank}
        assert {*map(type, made.ravel().tolist())} == {type(value)}

    def test_records_are_padded_with_blank_ones(self, stage: str) -> None:
        record = (1, "abc", b"ab")
        made = self.first(stage, np.array([record] * 2, RECORD), np.array([record], RECORD))
        assert {*made.ravel().tolist()} == {record, (0, "", b"")}

    @pytest.mark.parametrize(
        ("dtype", "padding"), [("u1", -1), ("i4", 1.5), ("i4", np.nan), (RECORD, -1)]
    )
    def test_a_padding_that_does_not_fit_is_refused(
        self, stage: str, dtype: Any, padding: Any
    ) -> None:
        padded: dict[str, Callable[[Any], Any]] = {
            "batch": lambda source: source.batch(2, pad=True, padding_value=padding),
            "bucket": lambda source: source.bucket([10], 2, padding_value=padding),
            "pack": lambda source: source.pack(8, padding_value=padding),
        }
        message = failure_of(padded[stage](items([np.zeros(2, dtype), np.zeros(1, dtype)])))
        assert "expected a value that fits its dtype" in message

    def test_each_component_has_its_padding(self, stage: str) -> None:
        paddings = {"a": -1, "b": -2}
        padded: dict[str, Callable[[Any], Any]] = {
            "batch": lambda source: source.batch(2, pad=True, padding_value=paddings),
            "bucket": lambda source: source.bucket([10], 2, padding_value=paddings),
            "pack": lambda source: source.pack(8, padding_value=paddings),
        }
        examples = [{"a": [1, 1], "b": [2, 2]}, {"a": [1], "b": [2]}]
        made = only(padded[stage](items(examples)))
        made = made[1] if stage == "bucket" else made
        assert {*made["a"].ravel().tolist()} == {1, -1}
        assert {*made["b"].ravel().tolist()} == {2, -2}


def test_numbers_of_other_libraries_are_padded_by_value() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    examples = [np.ones(2, ml_dtypes.int4), np.ones(1, ml_dtypes.int4)]
    assert only(items(examples).batch(2, pad=True, padding_value=-1))[1].tolist() == [1, -1]
    message = failure_of(items(examples).batch(2, pad=True, padding_value=100))
    assert "expected a value that fits its dtype, int4" in message


def test_the_option_that_pads_is_called_as_where_it_is() -> None:
    message = failure_of(items([np.zeros(2), np.zeros(3)]).batch(2))
    assert "(pad=True pads what differs in size)" in message
    message = failure_of(items([np.zeros(2), np.zeros(3)]).window(2))
    assert message.endswith("and all must fit it")


def test_none_in_the_first_example_alone() -> None:
    message = failure_of(items([{"a": None, "b": 1}, {"a": 1, "b": 1}]).batch(2))
    assert "example at a: got 1; the first one was None (fill in a value" in message


@pytest.mark.parametrize(
    ("examples", "pad"),
    [([np.zeros(2), np.zeros((2, 2))], False), ([1, np.zeros(2)], False), ([[1], [[2]]], True)],
)
def test_padding_is_not_offered_where_dimensions_differ(examples: Any, pad: bool) -> None:
    message = failure_of(items(examples).batch(2, pad=pad))
    assert "got a value of shape [" in message
    assert "pad=True" not in message


@pytest.mark.parametrize(
    ("examples", "reported"),
    [
        ([1, 2.5], "2.5, of dtype float64; the first example had int64[]; float(x)"),
        ([True, 2], "2, of dtype int64; the first example had bool[]; int(x)"),
        ([1.5, 1j], "1j, of dtype complex128; the first example had float64[]; complex(x)"),
        (
            [np.int8(1), 300],
            "300, outside -128 to 127; the first example had int8[]; np.asarray(x, 'int64')",
        ),
        (
            [np.zeros(2, "i4"), np.zeros(2)],
            "an array float64[2], of dtype float64; the first example had int32[2];"
            " x.astype('float64')",
        ),
        ([1, "a"], "'a', of dtype <U1; the first example had int64[]"),
    ],
)
def test_what_does_not_fit_is_reported_once(examples: Any, reported: str) -> None:
    got, first, *way = reported.split("; ")
    hint = f" (convert all of them, for example with {way[0]})" if way else ""
    message = failure_of(items(examples).batch(2)).splitlines()[0]
    assert message == f"component 0: got {got}; {first}, and all must fit it{hint}"


def test_none_decides_as_well_as_any_first_example() -> None:
    batches = list(items([None, 1.0, 2.0, 3.0]).batch(2, objects=True))
    assert [(batch.dtype, batch.tolist()) for batch in batches] == [
        (np.dtype(object), [None, 1.0]),
        (np.dtype(object), [2.0, 3.0]),
    ]


class TestPacking:
    def test_all_rows_have_one_dtype(self) -> None:
        rows = items([np.array([1.5, 2.5]), [1, 2]]).pack(2)
        assert [row.dtype for row, _, _ in rows] == [np.float64] * 2

    def test_entries_have_one_shape(self) -> None:
        message = failure_of(items([np.ones((1, 2)), np.ones((1, 3))]).pack(4))
        assert "got entries of shape [3]; expected shape [2], which the first" in message

    def test_its_own_keys_are_not_written_over(self) -> None:
        message = failure_of(items([{"ids": [1], "segment_ids": [2]}]).pack(4))
        assert "expected others than 'segment_ids' and 'positions'" in message


class TestUnbatching:
    def test_named_tuples_stay(self) -> None:
        rows = list(items([Pair([1], 2.0)] * 3).batch(2).unbatch())
        assert [type(row) for row in rows] == [Pair] * 3

    @pytest.mark.parametrize("dtype", ["f4", RECORD])
    @pytest.mark.parametrize("shape", [(4,), (4, 2)])
    def test_rows_do_not_keep_their_batch(self, dtype: Any, shape: tuple[int, ...]) -> None:
        batch = np.zeros(shape, dtype)
        for row in items([batch]).unbatch():
            owner = row if isinstance(row, np.ndarray) else getattr(row, "base", None)
            assert owner is None or (owner.base is None and owner.size < batch.size)

    @pytest.mark.parametrize("shape", [(4,), (4, 2)])
    def test_tensors_do_not_share_memory_either(self, shape: tuple[int, ...]) -> None:
        torch: Any = pytest.importorskip("torch", reason="torch is not installed")
        batch = torch.zeros(shape)
        for row in items([(batch, list(range(4)))]).unbatch():
            row[0].add_(1)
        assert not batch.any()

    def test_what_has_no_rows_is_refused(self) -> None:
        assert "expected arrays or lists" in failure_of(items([np.array(5)]).unbatch())


Components = list[np.ndarray[Any, Any]]
Model = Iterator[Components]


@st.composite
def structured(draw: st.DrawFn) -> list[Any]:
    """Sequences of ints with as many weights, all of them arrays, pairs or mappings."""
    lengths = draw(st.lists(st.integers(0, 12), max_size=30))
    kind = draw(st.sampled_from(["array", "pair", "mapping"]))
    turned = draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    examples: list[Any] = []
    for number, (length, is_turned) in enumerate(zip(lengths, turned, strict=True)):
        ids = np.arange(length) + 100 * number
        weights = ids.astype(np.float32) / 2
        if kind == "array":
            examples.append(ids.tolist() if is_turned and length else ids)
        elif kind == "pair":
            examples.append(Pair(ids, weights) if is_turned else (ids, weights))
        else:
            named = {"ids": ids, "weights": weights}
            examples.append(dict(reversed(named.items())) if is_turned else named)
    return examples


def components(value: Any) -> Components:
    """Of an example, or of what was made of some, in a fixed order."""
    if isinstance(value, dict):
        own = [name for name in value if name not in ("ids", "weights")]
        return [np.asarray(value[name]) for name in ("ids", "weights", *own)]
    return [np.asarray(one) for one in (value if isinstance(value, tuple) else (value,))]


def padded(values: Components) -> np.ndarray[Any, Any]:
    column = np.full((len(values), max(map(len, values))), -1, values[0].dtype)
    for row, value in zip(column, values, strict=True):
        row[: len(value)] = value
    return column


def batch_of(group: list[Components]) -> Components:
    return [padded(list(column)) for column in zip(*group, strict=True)]


def packed_in_python(length: int, open_rows: int, on_too_long: str, examples: list[Any]) -> Model:
    opened: list[list[Components]] = []
    for example in map(components, examples):
        starts = range(0, len(example[0]), length)
        if len(starts) > 1 and on_too_long == "skip":
            continue
        for start in starts:
            piece = [one[start : start + length] for one in example]
            room = len(piece[0])
            fitting = [row for row in opened if sum(len(p[0]) for p in row) + room <= length]
            if not fitting and len(opened) == open_rows:
                yield row_of(opened.pop(0), length)
            row = fitting[0] if fitting else []
            if not fitting:
                opened.append(row)
            row.append(piece)
            if sum(len(p[0]) for p in row) == length:
                opened = [one for one in opened if one is not row]
                yield row_of(row, length)
    for row in opened:
        yield row_of(row, length)


def row_of(pieces: list[Components], length: int) -> Components:
    segments = [np.full(len(piece[0]), number) for number, piece in enumerate(pieces, 1)]
    positions = [np.arange(len(piece[0])) for piece in pieces]
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    own = [np.concatenate(segments), np.concatenate(positions)]
    fill = length - len(own[0])
    return [
        *(np.pad(column, (0, fill), constant_values=-1) for column in columns),
        *(np.pad(column, (0, fill)) for column in own),
    ]


def bucketed_in_python(
    boundaries: list[int], size: int | None, tokens: int, examples: list[Any]
) -> Model:
    groups: list[list[Components]] = [[] for _ in range(len(boundaries) + 1)]

    def fits(group: list[Components]) -> bool:
        longest = max(len(one[0]) for one in group)
        return len(group) <= size if size else len(group) * max(longest, 1) <= tokens

    def emptied(bucket: int) -> Components:
        group, groups[bucket] = groups[bucket], []
        return [np.array([len(one[0]) for one in group]), *batch_of(group)]

    for example in map(components, examples):
        length = len(example[0])
        if not size and length > tokens:
            continue
        bucket = bisect_right(boundaries, length)
        if groups[bucket] and not fits([*groups[bucket], example]):
            yield emptied(bucket)
        groups[bucket].append(example)
        longest = max(groups[bucket], key=lambda one: len(one[0]))
        if not fits([*groups[bucket], longest]):
            yield emptied(bucket)
    for bucket in range(len(groups)):
        if groups[bucket]:
            yield emptied(bucket)


def unbatched_in_python(size: int, examples: list[Any]) -> Model:
    for start in range(0, len(examples), size):
        group = list(map(components, examples[start : start + size]))
        yield from (list(row) for row in zip(*batch_of(group), strict=True))


@st.composite
def made(draw: st.DrawFn) -> tuple[Callable[[Any], Any], Callable[[list[Any]], Model]]:
    """A stage that looks into examples, and what it does by hand."""
    kind = draw(st.sampled_from(["pack", "bucket", "unbatch"]))
    if kind == "pack":
        length, open_rows = draw(st.integers(1, 16)), draw(st.integers(1, 4))
        on_too_long = draw(st.sampled_from(["skip", "split"]))
        options: dict[str, Any] = {"padding_value": -1, "on_too_long": on_too_long}
        return (
            lambda before: packed(before, length, open_rows, **options),
            partial(packed_in_python, length, open_rows, on_too_long),
        )
    if kind == "bucket":
        boundaries = sorted(draw(st.sets(st.integers(1, 12), min_size=1, max_size=3)))
        size = draw(st.one_of(st.none(), st.integers(1, 5)))
        tokens = draw(st.integers(1, 30))
        options = {"padding_value": -1, "on_too_long": "skip"}
        options |= {"batch_size": size} if size else {"tokens_per_batch": tokens}
        return (
            lambda before: before.bucket(boundaries, **options),
            partial(bucketed_in_python, boundaries, size, tokens),
        )
    size = draw(st.integers(1, 6))
    return (
        lambda before: before.batch(size, pad=True, padding_value=-1).unbatch(),
        partial(unbatched_in_python, size),
    )


def in_order(value: Any) -> list[Any]:
    """The components of what a stage has made, as plain values."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], tuple | dict):
        return [plain(value[0]), *map(plain, components(value[1]))]  # of a bucket
    return list(map(plain, components(value)))


def itself(example: Any) -> Any:
    return example


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    structured(),
    made(),
    st.integers(0, 3),
    st.sampled_from([None, 1, 3]),
    st.one_of(st.none(), st.integers(0, 5)),
)
def test_as_a_loop_in_python_does_it(
    examples: list[Any],
    stage: tuple[Callable[[Any], Any], Callable[[list[Any]], Model]],
    workers: int,
    ahead: int | None,
    left_after: int | None,
) -> None:
    """Whatever prepares them, also in an epoch after one that was left, and after a restart."""
    add, model = stage
    source: Any = items(examples)
    pipeline = add(
        source.prepare(itself, workers=workers, buffer_size=ahead) if workers else source
    )
    expected = [list(map(plain, one)) for one in model(examples)]
    with pipeline.epochs(2) as epochs:
        found = [in_order(value) for value in islice(next(epochs), left_after)]
        assert found == expected[:left_after]
        state = epochs.state_dict()
        assert list(map(in_order, next(epochs))) == expected
    has_ended = left_after is None or left_after > len(expected)
    rest = expected if has_ended else expected[len(found) :]  # of the next epoch, or of this one
    assert list(map(in_order, pipeline.resume(state))) == rest


@pytest.mark.parametrize(
    "examples",
    [
        [np.int32(1), np.int64(2**40)],
        [np.int64(-1), np.uint64(2**63)],
        [np.datetime64("2026-01-01T01", "ns"), np.datetime64("3000-01-01", "D")],
        [[np.datetime64("2026-01-01T01", "ns")], [np.datetime64("3000-01-01", "D")]],
    ],
    ids=repr,
)
def test_scalars_do_not_wrap(examples: list[Any]) -> None:
    """Not even where NumPy has made one dtype of all, for which some were wrapped already."""
    assert "outside " in failure_of(items(examples).batch(2))
    for example in examples:
        assert len(only(items([example]).batch(1))) == 1
