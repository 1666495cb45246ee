"""Examples in containers: dicts in dicts, tuples, lists, dataclasses, in every stage and place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest

from aioqueue import FIFOQueue, InvalidArgumentError, sync
from aioqueue.core.elements.trees import MAX_DEPTH
from aioqueue.inputs import (
    ArraySpec,
    batch,
    broadcast,
    bucket_by_sequence_length,
    items,
    numbers,
    shuffle_batch,
)
from aioqueue.pipeline.batches.collation import Collator
from tests.kit.exact import Exact, plain_form
from tests.kit.going import packed
from tests.kit.resuming import through_json
from tests.kit.trees import MAKERS, SEQUENCES, Both, Frozen, leaves, stacked

SIZE = 10


async def in_a_task(maker: Callable[[int], Any], item: int) -> Any:
    return maker(item)


def on_threads(maker: Any) -> Any:
    return numbers(SIZE).prepare(maker, workers=2)


PLACES: dict[str, Callable[[Any], Any]] = {
    "threads": on_threads,
    "tasks": lambda maker: numbers(SIZE).prepare(partial(in_a_task, maker), workers=2),
    "processes": lambda maker: numbers(SIZE).prepare(maker, workers=1, where="process"),
    "the source": lambda maker: items(list(map(maker, range(SIZE)))),
    "prefetch": lambda maker: on_threads(maker).prefetch(3),
    "filter": lambda maker: on_threads(maker).filter(lambda example: example is not None),
    "unbatch": lambda maker: on_threads(maker).batch(4).unbatch(),
    "unbatch of windows": lambda maker: on_threads(maker).window(5, 5).prefetch(1).unbatch(),
    "unbatch later": lambda maker: on_threads(maker).batch(4).take(9).filter(bool).unbatch(),
    "broadcast": lambda maker: list(in_streams(maker)),
}
"""All give the examples in their order."""

WAYS: dict[str, Callable[[Any], Any]] = {
    "batch": lambda examples: examples.batch(4),
    "padded": lambda examples: examples.batch(4, pad=True),
    "window": lambda examples: examples.window(4, 4, drop_remainder=False),
    "map_batches": lambda examples: examples.map_batches(the_same, 4),
    "prefetched": lambda examples: examples.batch(4).prefetch(2),
    "prepared": lambda examples: examples.batch(4).prepare(the_same),
}
"""All make the same batches."""


def the_same(value: Any) -> Any:
    return value


def in_streams(maker: Any) -> Any:
    """Examples that go through queues and a broadcast."""
    with sync.Coordinator() as coord:
        (stream,) = broadcast(map(maker, range(SIZE)), 1, coord=coord)
        yield from stream


def batches(maker: Any, size: int = 4) -> list[Any]:
    """What is right."""
    return [
        stacked([maker(item) for item in range(SIZE)[start : start + size]])
        for start in range(0, SIZE, size)
    ]


def same(found: Sequence[Any], right: Sequence[Any]) -> bool:
    return list(map(plain_form, found)) == list(map(plain_form, right))


@pytest.mark.slow("processes")
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("place", PLACES)
def test_examples_come_as_they_are(place: str, maker: str) -> None:
    found = list(PLACES[place](MAKERS[maker]))
    assert same(list(map(_plain, found)), [_plain(MAKERS[maker](item)) for item in range(SIZE)])


def _plain(tree: Any) -> Any:
    """The same with arrays for all numbers: `unbatch` gives those of NumPy."""
    return stacked([tree])


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("way", WAYS)
def test_batches_have_an_array_in_each_place(way: str, maker: str) -> None:
    assert same(list(WAYS[way](on_threads(MAKERS[maker]))), batches(MAKERS[maker]))


@pytest.mark.parametrize("maker", MAKERS)
def test_shuffled_ones_are_the_same_examples(maker: str) -> None:
    found = list(on_threads(MAKERS[maker]).shuffle(4, seed=1).batch(1))
    right = batches(MAKERS[maker], 1)
    assert sorted(repr(plain_form(one)) for one in found) == sorted(
        repr(plain_form(one)) for one in right
    )
    assert not same(found, right)


@pytest.mark.parametrize("maker", MAKERS)
def test_batches_own_their_arrays(maker: str) -> None:
    example = MAKERS[maker](1)
    (made,) = items([example] * 2).batch(2)
    for leaf in leaves(made):
        assert leaf.flags.writeable
        assert not any(np.shares_memory(leaf, one) for one in leaves(example))


@pytest.mark.parametrize("maker", MAKERS)
def test_states_are_resumed(maker: str) -> None:
    """Also where the first example of the rest would decide something else."""

    def pipeline() -> Any:
        return on_threads(MAKERS[maker]).shuffle(3, seed=1).batch(3)

    with pipeline().epochs(2) as epochs:
        whole = [Exact(one) for epoch in epochs for one in epoch]
    for most in (1, 3, 5):
        found: list[Exact] = []
        with pipeline().epochs(2) as epochs:
            for one in (one for epoch in epochs for one in epoch):
                found.append(Exact(one))
                if len(found) == most:
                    break
            state = through_json(epochs.state_dict())
        with pipeline().epochs(2, resume=state) as epochs:
            found += [Exact(one) for epoch in epochs for one in epoch]
        assert found == whole


def test_keys_fit_in_any_order() -> None:
    first = {"x": {"b": 1, "a": 2}, "y": Frozen(1, 2)}
    (made,) = items([first, {"y": Frozen(3, 4), "x": {"a": 5, "b": 6}}]).batch(2)
    assert list(made["x"]) == ["b", "a"]
    assert [leaf.tolist() for leaf in leaves(made)] == [[1, 6], [2, 5], [1, 3], [2, 4]]


def test_a_state_records_what_is_where() -> None:
    collator = Collator()
    collator([{"x": {"a": 1, "b": [np.zeros(2, "f4"), None]}, "y": Both("text", 1.5)}])
    assert collator.layout == {
        "example": "tree",
        "components": [
            "mapping",
            [
                ["x", ["mapping", [["a", "<i8"], ["b", ["list", ["<f4[2]", None]]]]]],
                ["y", ["dataclass", [["left", "<U0"], ["right", "<f8"]]]],
            ],
        ],
    }


def test_a_state_keeps_the_dtypes_of_the_first_example() -> None:
    first, second = Collator(), Collator()
    first([{"x": {"a": np.float32(1), "b": 1.5}}])
    second.restore_layout(through_json(first.layout))
    made = second([{"x": {"b": 2, "a": 3}}])
    assert list(made["x"]) == ["a", "b"]
    assert [one.dtype for one in made["x"].values()] == [np.float32, np.float64]


@pytest.mark.parametrize("maker", SEQUENCES)
class TestSequences:
    def test_padded(self, maker: str) -> None:
        examples = [SEQUENCES[maker](item) for item in (1, 4, 2)]
        (made,) = items(examples).batch(3, pad=True, padding_value=-1)
        for column, *rows in zip(*map(leaves, [made, *map(_arrays, examples)]), strict=True):
            for found, row in zip(column, rows, strict=True):
                assert (found[: len(row)] == row).all()
                assert (found[len(row) :] == -1).all()

    def test_buckets(self, maker: str) -> None:
        found = list(on_threads(SEQUENCES[maker]).bucket([3], 2))
        assert sum(len(lengths) for lengths, _ in found) == SIZE
        for lengths, made in found:
            for column in leaves(made):
                assert column.shape[:2] == (len(lengths), max(lengths))

    def test_packed_rows(self, maker: str) -> None:
        rows = list(packed(on_threads(SEQUENCES[maker]), 8, 2))
        values = [np.asarray(one) for one in leaves(_arrays(SEQUENCES[maker](0)))]
        for row in rows:
            *columns, segments, positions = leaves(row)
            assert segments.dtype == positions.dtype == np.int32
            assert [one.dtype for one in columns] == [one.dtype for one in values]
            assert all(len(one) == 8 for one in columns)
            assert (columns[0][segments == 0] == 0).all()

    def test_packed_rows_and_a_state(self, maker: str) -> None:
        def pipeline() -> Any:
            return packed(on_threads(SEQUENCES[maker]), 8, 2).batch(2)

        whole = list(map(Exact, pipeline()))
        with pipeline().epochs(1) as epochs:
            found = [Exact(next(next(epochs)))]
            state = through_json(epochs.state_dict())
        with pipeline().epochs(1, resume=state) as epochs:
            found += map(Exact, next(epochs))
        assert found == whole


def _arrays(example: Any) -> Any:
    """An example whose lists are arrays."""
    made = stacked([example])
    return _first(made)


def _first(made: Any) -> Any:
    if isinstance(made, dict):
        return {key: _first(one) for key, one in made.items()}
    if isinstance(made, list):
        return list(map(_first, made))
    if isinstance(made, tuple):
        return tuple(map(_first, made))
    if isinstance(made, Both | Frozen):
        return Frozen(_first(made.left), _first(made.right))
    return made[0]


def test_where_packing_adds_its_arrays() -> None:
    (row,) = items([{"x": {"a": [1, 2]}}]).pack(2)
    assert list(row) == ["x", "segment_ids", "positions"]
    (row,) = items([({"a": [1, 2]}, [3, 4])]).pack(2)
    assert [type(one) for one in row] == [dict, *[np.ndarray] * 3]
    (row,) = items([Frozen([1, 2], [3, 4])]).pack(2)
    assert [type(one) for one in row] == [Frozen, np.ndarray, np.ndarray]


PADDINGS = [
    -1,
    {"ids": -1, "marks": -1},
    {"ids": {"a": -1, "b": -1}, "marks": -1},
]


@pytest.mark.parametrize("padding", PADDINGS)
def test_paddings_are_trees_too(padding: Any) -> None:
    examples = [SEQUENCES["dicts"](item) for item in (0, 1)]
    (made,) = items(examples).batch(2, pad=True, padding_value=padding)
    assert [column[0, 1] for column in leaves(made)] == [-1] * 3


@pytest.mark.parametrize("padding", [{"ids": {"c": 1}}, {"ids": [1]}, [1, 2], {"ids": {"a": "x"}}])
def test_a_padding_of_another_structure_is_refused(padding: Any) -> None:
    message = failure_of(items([SEQUENCES["dicts"](0)]).batch(1, pad=True, padding_value=padding))
    assert "one per component of an example (ids.a, ids.b, marks)" in message


def failure_of(pipeline: Any) -> str:
    with pytest.raises(ExceptionGroup) as raised:
        list(pipeline)
    (failure,) = raised.value.exceptions
    assert isinstance(failure, InvalidArgumentError)
    return str(failure).splitlines()[0]


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "another key": ({"x": {"a": 1}}, {"x": {"b": 1}}, "example at x: got ['b']; the first one had"),
    "a key that is no string": ({"x": {"1": 0}}, {"x": {1: 0}}, "example at x: got [1]; the first"),
    "no dict": ({"x": {"a": 1}}, {"x": 1}, "example at x: got 1; the first one had the keys ['a']"),
    "a longer list": (
        {"x": [{"a": 1}]},
        {"x": [{"a": 1}] * 2},
        "example at x: got a list of 2; the first one was a list of 1 part",
    ),
    "a tuple for a list": (
        {"x": [{"a": 1}]},
        {"x": ({"a": 1},)},
        "example at x: got a tuple of 1; the first one was a list of 1 part",
    ),
    "a dtype": (
        {"x": {"a": [{"b": 1}]}},
        {"x": {"a": [{"b": 1.5}]}},
        "component x.a[0].b: got 1.5, of dtype float64; the first example had int64[]",
    ),
    "a shape": (
        ({"a": np.zeros(2)},),
        ({"a": np.zeros(3)},),
        "component 0.a: got a value of shape [3]; the first example had float64[2]",
    ),
    "None later": ({"x": {"a": 1}}, {"x": {"a": None}}, "component x.a: got None, of dtype object"),
    "None first": ({"x": {"a": None}, "y": 1}, {"x": {"a": 1}, "y": 1}, "example at x.a: got 1;"),
    "a dict in the place of a number": ({"x": 1}, {"x": {"a": 1}}, "component x: got {'a': 1}"),
    "another dataclass": (
        Frozen(1, {"a": 1}),
        ("x",),
        "example: got a tuple; the first one was a Frozen with the fields ['left', 'right']",
    ),
    "odd keys": (
        {"a b": {"c.d": 1}},
        {"a b": {"c.d": 1.5}},
        "component ['a b']['c.d']: got 1.5",
    ),
    "a dict after text": (
        {"x": "text"},
        {"x": {"a": 1}},
        "component x: got {'a': 1}, of type dict",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_differs_is_named_by_its_path(case: str) -> None:
    first, other, message = REFUSED[case]
    message_here = failure_of(items([first, other]).batch(2))
    assert message_here.startswith(message), message_here


ODD: dict[str, tuple[Any, str]] = {
    "an object": ({"x": {"a": object()}}, "component x.a: got <object object at"),
    "a number of another kind": ({"x": [Fraction(1, 2)]}, "component x[0]: got Fraction(1, 2), of"),
    "keys that are no names": ({"x": {1: 2}}, "example at x: got the keys [1]; expected strings"),
    "nothing": ({}, "example: got {}; expected at least one component"),
    "None alone": (None, "example: got None; expected at least one component"),
    "a mask": ({"x": {"a": np.ma.array([1])}}, "component x.a: got a masked array"),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_no_array_is_named_by_its_path(case: str) -> None:
    example, message = ODD[case]
    message_here = failure_of(items([example]).batch(1))
    assert message_here.startswith(message), message_here


def test_a_picture_is_no_array() -> None:
    pictures = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    example = {"image": {"raw": pictures.new("RGB", (2, 2))}}
    message = failure_of(items([example]).batch(1))
    assert message.startswith("component image.raw: got <PIL.Image.Image")
    assert "convert it, for example with np.asarray(x); or pass objects='image.raw'" in message
    (made,) = items([example]).batch(1, objects="image.raw")
    assert made["image"]["raw"][0].size == (2, 2)


def test_a_container_in_itself_is_refused() -> None:
    endless: dict[str, Any] = {"a": 1}
    endless["x"] = endless
    with pytest.raises(InvalidArgumentError, match=f"more than {MAX_DEPTH} deep"):
        Collator()([endless])
    listed: list[Any] = []
    listed.append(listed)
    with pytest.raises(InvalidArgumentError, match="deep"):
        Collator()([listed])


class TestObjects:
    def test_one_place(self) -> None:
        thing = {"any": object()}
        (made,) = items([{"x": {"a": 1, "meta": thing}}] * 2).batch(2, objects="x.meta")
        assert made["x"]["a"].tolist() == [1, 1]
        assert made["x"]["meta"].dtype == object
        assert made["x"]["meta"][0]["any"] is thing["any"]

    def test_all_places(self) -> None:
        (made,) = items([{"x": {"a": 1, "b": None, "c": 1j}}, {"x": {"a": 2, "b": "z", "c": 0}}])\
            .batch(2, objects=True)  # fmt: skip
        assert made["x"]["b"].tolist() == [None, "z"]
        assert made["x"]["c"].dtype == np.complex128

    @pytest.mark.parametrize("objects", ["nowhere", ["x.a", "x"], ["x.c"]])
    def test_a_path_that_is_not_there(self, objects: Any) -> None:
        message = failure_of(items([{"x": {"a": 1, "b": 2}}]).batch(1, objects=objects))
        assert message.startswith("objects: got [")
        assert message.endswith(("x.a, x.b", "x"))

    @pytest.mark.parametrize("objects", [1, None, [1], {"x": True}])
    def test_what_they_may_be(self, objects: Any) -> None:
        for way in ("batch", "window"):
            with pytest.raises(InvalidArgumentError, match="objects: got"):
                getattr(items([1]), way)(2, objects=objects)
        with pytest.raises(InvalidArgumentError, match="objects: got"):
            items([1]).bucket([2], 2, objects=objects)

    def test_a_function_of_ones_own_needs_none(self) -> None:
        for way in ("batch", "window"):
            with pytest.raises(InvalidArgumentError, match="objects: got True beside collate=list"):
                getattr(items([1]), way)(2, objects=True, collate=list)

    def test_they_are_in_states(self) -> None:
        first, second = Collator(objects=("x.b",)), Collator()
        first([{"x": {"a": 1, "b": {"c": 2}}}])
        second.restore_layout(through_json(first.layout))
        made = second([{"x": {"a": 1, "b": {"d": 2}}}])
        assert made["x"]["b"].tolist() == [{"d": 2}]


def test_the_spec_of_batches_has_the_same_containers() -> None:
    spec = on_threads(MAKERS["frozen dataclasses"]).batch(2, drop_remainder=True).element_spec()
    assert spec["x"].left == ArraySpec((2, 2), np.dtype("i8"))
    assert spec["x"].right.right == ArraySpec((2,), np.dtype("i8"))
    spec = on_threads(MAKERS["None among them"]).element_spec()
    assert spec["x"] == {"a": int, "mask": type(None)}


@pytest.mark.parametrize("maker", MAKERS)
class TestStreams:
    """The same without a pipeline."""

    def test_batches(self, maker: str) -> None:
        with sync.Coordinator() as coord:
            stream = batch(range(SIZE), 4, coord=coord, function=MAKERS[maker], ordered=True)
            assert same(list(stream), batches(MAKERS[maker]))
            assert stream.statistics().examples == SIZE

    def test_shuffled_batches(self, maker: str) -> None:
        with sync.Coordinator() as coord:
            examples = list(map(MAKERS[maker], range(SIZE)))
            stream = shuffle_batch(examples, 2, coord=coord, min_after_dequeue=3, seed=1)
            found = list(stream)
        assert sum(len(leaves(one)[0]) for one in found) == SIZE
        assert stream.statistics().examples == SIZE

    def test_resumed(self, maker: str) -> None:
        examples = list(map(MAKERS[maker], range(SIZE)))
        with sync.Coordinator() as coord:
            stream = batch(examples, 4, coord=coord, resume=None)
            found = [next(stream)]
            state = through_json(stream.state_dict())
        with sync.Coordinator() as coord:
            found += batch(examples, 4, coord=coord, resume=state)
        assert same(found, batches(MAKERS[maker]))


@pytest.mark.parametrize("where", ["batch", "shuffle_batch"])
def test_streams_of_typed_examples(where: Literal["batch", "shuffle_batch"]) -> None:
    dtypes = {"x": {"a": "f4", "b": {"c": "i8"}}, "y": "f8"}
    shapes: Any = {"x": {"a": (2,), "b": {"c": ()}}, "y": ()}
    examples = list(map(MAKERS["dicts"], range(SIZE)))
    with sync.Coordinator() as coord:
        if where == "batch":
            found = list(batch(examples, 4, coord=coord, dtypes=dtypes, shapes=shapes))
            assert same(found, batches(MAKERS["dicts"]))
            return
        queue = FIFOQueue(SIZE, dtypes, shapes)
        for example in examples:
            queue.enqueue_nowait(example)
        queue.close()
        found = list(shuffle_batch(queue, 2, coord=coord, min_after_dequeue=3, seed=1))
    assert sorted(int(one) for made in found for one in made["x"]["b"]["c"]) == list(range(SIZE))


def test_streams_by_length() -> None:
    with sync.Coordinator() as coord:
        stream = bucket_by_sequence_length(
            range(SIZE), [3], 2, coord=coord, function=SEQUENCES["dicts"]
        )
        assert all(made["ids"]["a"].shape == made["marks"].shape for _, made in stream)


def test_a_broadcast_protects_all_arrays() -> None:
    with sync.Coordinator() as coord:
        one, other = broadcast([MAKERS["all of it"](1)], 2, coord=coord)
        for stream in (one, other):
            assert not any(leaf.flags.writeable for leaf in leaves(next(stream)) if np.ndim(leaf))


class Cached(Both):
    """A dataclass with an attribute that is no field."""

    def __post_init__(self) -> None:
        self.sum = self.left + self.right


@pytest.mark.parametrize("copy", [False, True])
def test_a_broadcast_keeps_all_attributes(copy: bool) -> None:
    with sync.Coordinator() as coord:
        (stream,) = broadcast([Cached(1, 2)], 1, coord=coord, copy=copy)
        (found,) = stream
    assert (found, found.sum) == (Cached(1, 2), 3)


class TestUnbatching:
    def test_lists_of_a_function_are_rows(self) -> None:
        """Nobody but the collator of a batch knows whether a list is one."""
        made = items([1, 2, 3, 4]).batch(2, collate=lambda ones: {"x": {"a": ones}}).unbatch()
        assert list(made) == [{"x": {"a": item}} for item in (1, 2, 3, 4)]

    def test_components_of_several_lengths_are_named_by_their_paths(self) -> None:
        batches = items([{"x": {"a": np.zeros(2)}, "y": np.zeros(3)}])
        assert "{'x.a': 2, 'y': 3}" in failure_of(batches.unbatch())
