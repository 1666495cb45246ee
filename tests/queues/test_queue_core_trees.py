"""Queues whose elements are trees: the same containers on the way in and on the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aioqueue import FIFOQueue, InvalidArgumentError, PriorityQueue, sync
from aioqueue.core.elements.trees import path_text
from tests.kit.exact import plain_form
from tests.kit.trees import Both, Frozen, Inner, leaves, stacked
from tests.kit.worlds import World

F, I = np.dtype("f4"), np.dtype("i8")  # noqa: E741  # as the arrays' kinds are written
TREES: dict[str, tuple[Any, Any, Callable[[int], Any]]] = {
    "dicts": (
        {"x": {"a": F, "b": I}, "y": I},
        {"x": {"a": (2,), "b": ()}, "y": ()},
        lambda n: {"x": {"a": np.full(2, n, "f4"), "b": np.int64(n)}, "y": np.int64(-n)},
    ),
    "a flat dict": (
        {"a": F, "b": I},
        {"a": (2,), "b": ()},
        lambda n: {"a": np.full(2, n, "f4"), "b": np.int64(n)},
    ),
    "a list with a dict": (
        [{"a": F}, I],
        [{"a": (2,)}, ()],
        lambda n: ({"a": np.full(2, n, "f4")}, np.int64(n)),
    ),
    "a tuple with a tuple": (
        ((F, I), I),
        (((2,), ()), ()),
        lambda n: ((np.full(2, n, "f4"), np.int64(n)), np.int64(n)),
    ),
    "a list in a dict": (
        {"x": [F, {"a": I}]},
        {"x": [(), {"a": (1,)}]},
        lambda n: {"x": [np.float32(n), {"a": np.full(1, n)}]},
    ),
    "a named tuple": (
        Inner(F, {"a": I}),
        Inner((), {"a": ()}),
        lambda n: Inner(np.float32(n), {"a": np.int64(n)}),
    ),
    "a dataclass": (
        {"x": Frozen(F, Both(I, I))},
        {"x": Frozen((), Both((), ()))},
        lambda n: {"x": Frozen(np.float32(n), Both(np.int64(n), np.int64(n)))},
    ),
    "None": (
        {"x": None, "y": {"a": I}},
        {"x": None, "y": {"a": ()}},
        lambda n: {"x": None, "y": {"a": np.int64(n)}},
    ),
    "text and objects": (
        {"x": {"a": str, "b": object}},
        {"x": {"a": (), "b": ()}},
        lambda n: {"x": {"a": "x" * n, "b": f"any {n}"}},
    ),
    "records": (
        {"x": {"r": [("u", "f4"), ("v", "i4")], "s": ("f4", (2,))}},
        {"x": {"r": (), "s": ()}},
        lambda n: {
            "x": {"r": np.array((n, n), [("u", "f4"), ("v", "i4")])[()], "s": np.full(2, n, "f4")}
        },
    ),
}
COUNT = 5

MAKERS: dict[str, Callable[[World, Any, Any], Any]] = {
    "FIFOQueue": lambda world, dtypes, shapes: world.fifo(9, dtypes, shapes),
    "PaddingFIFOQueue": lambda world, dtypes, shapes: world.padding(9, dtypes, shapes),
    "RandomShuffleQueue": lambda world, *given: world.shuffle(9, 0, *given, seed=1),
    "PriorityQueue": lambda world, dtypes, shapes: world.priority(9, dtypes, shapes),
    "max_bytes": lambda world, *given: world.fifo(None, *given, max_bytes=2**20),
}


class Elements:
    """Elements of one kind of queue: those of a `PriorityQueue` have a priority."""

    def __init__(self, kind: str, tree: str) -> None:
        self.dtypes, self.shapes, self._make = TREES[tree]
        self._is_ranked = kind == "PriorityQueue"
        self._is_joined = type(self.dtypes) in (tuple, list)

    def element(self, number: int) -> Any:
        made = self._make(number)
        if not self._is_ranked:
            return made
        rank = np.int64(number)
        return (rank, *made) if self._is_joined else (rank, made)

    def batch(self, numbers: Any) -> Any:
        return stacked(list(map(self.element, numbers)))


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("kind", MAKERS)
class TestEveryKind:
    async def test_one_by_one(self, world: World, kind: str, tree: str) -> None:
        elements = Elements(kind, tree)
        queue = MAKERS[kind](world, elements.dtypes, elements.shapes)
        for number in range(COUNT):
            await queue.enqueue(elements.element(number))
        found = [await queue.dequeue() for _ in range(COUNT)]
        right = list(map(elements.element, range(COUNT)))
        assert sorted(map(repr, map(plain_form, found))) == sorted(
            map(repr, map(plain_form, right))
        )

    async def test_in_batches(self, world: World, kind: str, tree: str) -> None:
        elements = Elements(kind, tree)
        queue = MAKERS[kind](world, elements.dtypes, elements.shapes)
        await queue.enqueue_many(elements.batch(range(3)))
        await queue.enqueue_many(elements.batch([3, 4]))
        found = await queue.dequeue_many(COUNT)
        if kind != "RandomShuffleQueue":
            assert plain_form(found) == plain_form(elements.batch(range(COUNT)))
        assert [len(leaf) for leaf in leaves(found)] == [COUNT] * len(leaves(elements.element(0)))
        await queue.enqueue_many(found)  # a batch is what a queue takes
        assert queue.size() == COUNT
        assert queue.dequeue_nowait() is not None
        assert len(leaves(await queue.dequeue_many(0))[0]) == 0

    async def test_into_the_callers_arrays(self, world: World, kind: str, tree: str) -> None:
        elements = Elements(kind, tree)
        queue = MAKERS[kind](world, elements.dtypes, elements.shapes)
        await queue.enqueue_many(elements.batch(range(3)))
        out = elements.batch([7, 8, 9])
        found = await queue.dequeue_many(3, out=out)
        for one, other in zip(leaves(found), leaves(out), strict=True):
            assert one is other
        assert 7 not in leaves(out)[0].tolist()

    async def test_describes_itself(self, world: World, kind: str, tree: str) -> None:
        elements = Elements(kind, tree)
        queue = MAKERS[kind](world, elements.dtypes, elements.shapes)
        indices = leaves(queue.structure)
        assert indices == list(range(len(queue.dtypes))) == list(range(len(queue.shapes)))
        assert repr(queue).count("[") >= len(indices)
        assert queue.names == (["a", "b"] if tree == "a flat dict" and "Prio" not in kind else None)


def test_what_the_structure_of_others_is() -> None:
    assert FIFOQueue(1).structure is None
    assert FIFOQueue(1, "f4").structure == 0
    assert FIFOQueue(1, ["f4", "i8"]).structure == (0, 1)
    assert FIFOQueue(1, ["f4", "i8"], names=["a", "b"]).structure == {"a": 0, "b": 1}
    assert PriorityQueue(1, {"x": {"a": "f4"}}).structure == (0, {"x": {"a": 1}})
    assert PriorityQueue(1).structure is None


def test_without_shapes() -> None:
    queue = sync.FIFOQueue(3, {"x": {"a": "f4"}})
    queue.enqueue({"x": {"a": [1, 2]}})
    assert queue.dequeue()["x"]["a"].tolist() == [1, 2]
    assert queue.shapes is None
    with pytest.raises(InvalidArgumentError, match="without shapes"):
        queue.dequeue_many(1)


def test_padding_by_place() -> None:
    queue = sync.PaddingFIFOQueue(3, {"x": {"a": "i8", "b": "f4"}}, {"x": {"a": (None,), "b": ()}})
    for size in (1, 3):
        queue.enqueue({"x": {"a": [size] * size, "b": size}})
    made = queue.dequeue_many(2)
    assert made["x"]["a"].tolist() == [[1, 0, 0], [3, 3, 3]]
    queue.enqueue_many({"x": {"a": [[1], [2, 2]], "b": [1, 2]}})
    assert queue.dequeue()["x"]["a"].tolist() == [1]


def test_a_dataclass_comes_out_unchecked() -> None:
    """Its ``__init__`` may check single values, and a batch has arrays of them."""
    queue = sync.FIFOQueue(3, Both("f4", "i8"), Both((), ()))
    queue.enqueue_many(stacked([Both(1, 2), Both(3, 4)]))
    assert queue.dequeue_many(2).right.tolist() == [2, 4]


def test_tuples_and_lists_are_taken_for_each_other() -> None:
    queue = sync.FIFOQueue(3, {"x": ["f4", "i8"], "y": ("f4", "i8")})
    queue.enqueue({"x": (1, 2), "y": [1, 2]})
    assert queue.dequeue() == {"x": [1.0, 2], "y": (1.0, 2)}


def test_dtypes_of_numpy_stay_one_dtype() -> None:
    assert len(FIFOQueue(1, {"names": ["a"], "formats": ["f4"]}).dtypes or ()) == 1
    assert FIFOQueue(1, [[("a", "f4"), ("b", "i4")], ("f4", (2,))], [(), ()]).shapes == [(), (2,)]
    assert FIFOQueue(1, [("f4", "i4"), "i8"]).structure == ((0, 1), 2), "NumPy would make one of it"


DTYPES: Any = {"x": {"a": "i4", "b": ["f4", "f4"]}}
SHAPES: Any = {"x": {"a": (), "b": [(), ()]}}

REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "another key": (
        lambda queue: queue.enqueue({"x": {"a": 1, "c": [1, 2]}}),
        r"^element at x: got \['a', 'c'\]; expected a dict with the keys \['a', 'b'\]",
    ),
    "keys that are no strings": (
        lambda queue: queue.enqueue({"x": {1: 1, "b": [1, 2]}}),
        r"^element at x: got \[1, 'b'\]; expected a dict with the keys \['a', 'b'\]",
    ),
    "no dict": (lambda queue: queue.enqueue({"x": 1}), "^element at x: got 1; expected a dict"),
    "a longer list": (
        lambda queue: queue.enqueue({"x": {"a": 1, "b": [1, 2, 3]}}),
        "^element at x.b: got a list of 3; expected a list of 2 parts",
    ),
    "a number for a list": (
        lambda queue: queue.enqueue({"x": {"a": 1, "b": 2}}),
        "^element at x.b: got an int; expected a list of 2 parts",
    ),
    "a dtype": (
        lambda queue: queue.enqueue({"x": {"a": 1.5, "b": [1, 2]}}),
        "^component x.a: got 1.5, of dtype float64; expected int32",
    ),
    "a shape": (
        lambda queue: queue.enqueue({"x": {"a": 1, "b": [1, [2]]}}),
        r"^component x.b\[1\]: got \[2\] of shape \[1\]",
    ),
    "rows": (
        lambda queue: queue.enqueue_many([{"x": {"a": 1, "b": [1, 2]}}]),
        "^batch: got a list of 1 row; expected one batch with the containers of an element",
    ),
    "columns of several lengths": (
        lambda queue: queue.enqueue_many({"x": {"a": [1], "b": [[1, 2], [3]]}}),
        r"^batch: got 2 rows for component x.b\[0\] and 1 for component x.a",
    ),
    "out": (
        lambda queue: queue.dequeue_many(0, out={"x": {"a": np.empty(0, "i8"), "b": [0, 0]}}),
        r"^out: got int64\[0\] for component x.a; expected a writable array int32\[0\]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_changes_nothing(case: str) -> None:
    call, message = REFUSED[case]
    queue = sync.FIFOQueue(3, DTYPES, SHAPES)
    with pytest.raises(InvalidArgumentError, match=message):
        call(queue)
    assert queue.size() == 0


CONSTRUCTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "a dtype": (({"x": {"a": "nope"}},), "dtypes: got 'nope' for component x.a"),
    "no dtype": (({"x": {}},), r"dtypes: got \{'x': \{\}\}; expected at least one dtype"),
    "keys": (({"x": {1: "f4"}},), r"dtypes at x: got the keys \[1\]; expected strings"),
    "shapes": ((DTYPES, {"x": {"a": ()}}), r"shapes at x: got \['a'\]; expected a dict with"),
    "one shape": ((DTYPES, (2,)), "shapes: got .2,.; expected a dict with the keys"),
    "a size": (({"x": {"a": "f4"}}, {"x": {"a": 3}}), "shapes: got 3 for component x.a; expected"),
    "names": ((DTYPES, None, ["x"]), r"names: got \['x'\] with dtypes in containers; expected"),
    "a size that varies": (({"x": {"a": "f4"}}, {"x": {"a": (None,)}}), "expected fixed sizes"),
}


@pytest.mark.parametrize("case", CONSTRUCTED)
def test_what_no_queue_is_made_of(case: str) -> None:
    arguments, message = CONSTRUCTED[case]
    with pytest.raises(InvalidArgumentError, match=message):
        sync.FIFOQueue(3, *arguments)
    with pytest.raises(InvalidArgumentError):
        sync.PriorityQueue(3, *arguments)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("x",), "x"),
        (("a b",), "a b"),
        ((0,), "0"),
        (("x", "a", 0), "x.a[0]"),
        ((1, "a", "b c"), "1.a['b c']"),
        (("a.b", "c"), "['a.b'].c"),
        ((0, 1), "0[1]"),
    ],
)
def test_paths_are_written_as_in_python(path: Any, text: str) -> None:
    assert path_text(path) == text
