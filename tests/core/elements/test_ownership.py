"""Nobody else's memory: what waits for its batch is private, however the user makes it.

The table is enumerated: everything that gives an example again and again in the same memory, by
every way into a pipeline, in every stage that holds examples. What is right is said by the same
pipeline whose function copies what it gives.
"""

from __future__ import annotations

import asyncio
import copy
import random
import time
from array import array
from collections import (
    ChainMap,
    Counter,
    OrderedDict,
    UserDict,
    UserList,
    defaultdict,
    deque,
    namedtuple,
)
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aioqueue import sync
from aioqueue.inputs import Pipeline, arrays, batch, from_iterable, items, numbers, prepare
from tests.kit.going import plain

Pair = namedtuple("Pair", "left right")


@dataclass
class Example:
    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class FrozenExample:
    left: Any
    right: Any


class OwnTuple(tuple[Any, ...]):
    """Has no `_make`, unlike a named tuple."""


class OwnDict(dict[str, Any]):
    """Has attributes of its own, and arguments."""

    def __init__(self, source: str = "unknown", **values: Any) -> None:
        super().__init__(**values)
        self.source = source


class KeyDict(dict[str, Any]):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class FixedDict(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("it cannot be changed")


class OwnList(list[Any]):
    """As it says."""


RECORD = np.dtype([("n", "i8"), ("x", "f8")])
COUNT = 6


class Scratch:
    """Makes examples of a kind, each in the memory of the one before."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.array = np.zeros((2, 3))
        self.records = np.zeros(2, RECORD)
        self.dict: dict[str, Any] = {"a": 0}
        self.list = [0, 0]
        self.bytes = bytearray(2)
        self.tuple = (self.array, 0)
        self.example = Example(0, [0])
        self.namespace = SimpleNamespace(left=0, right=[0])
        self.deque = deque([[0], 0])
        self.packed = array("i", [0, 0])
        self.counts: Counter[str] = Counter(a=2)

    def __call__(self, number: int) -> Any:
        self.array[:] = number
        self.records["n"] = number
        self.dict["a"] = number
        self.list[:] = [number, number]
        self.bytes[:] = bytes([number, number])
        records: list[Any] = [self.example, self.namespace]
        for record in records:
            record.left, record.right[0] = number, number
        self.counts["a"] = number
        inner: Any = self.deque[0]
        inner[0] = self.packed[1] = number
        return KINDS[self.kind](self)

    def each(self) -> Iterator[Any]:
        for number in range(COUNT):
            yield self(number)

    async def later(self, number: int) -> Any:
        return self(number)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> Any:
        return self(number)


KINDS: dict[str, Callable[[Scratch], Any]] = {
    "array": lambda scratch: scratch.array,
    "row": lambda scratch: scratch.array[1],
    "transposed": lambda scratch: scratch.array.T,
    "read-only view": lambda scratch: np.broadcast_to(scratch.array, (2, 3)),
    "of a buffer": lambda scratch: np.frombuffer(scratch.bytes, "u1"),
    "record": lambda scratch: scratch.records[1],
    "tuple": lambda scratch: scratch.tuple,
    "tuple of views": lambda scratch: (scratch.array[0], scratch.array[1]),
    "named tuple": lambda scratch: Pair(scratch.array, scratch.array[0, 0]),
    "dict": lambda scratch: scratch.dict,
    "dict of arrays": lambda scratch: {"image": scratch.array, "n": 1},
    "list": lambda scratch: scratch.list,
    "dataclass": lambda scratch: scratch.example,
    "dataclass of arrays": lambda scratch: Example(scratch.array, [scratch.array[0]]),
    "frozen dataclass": lambda scratch: FrozenExample(scratch.array, scratch.list),
    "namespace": lambda scratch: scratch.namespace,
    "deque": lambda scratch: scratch.deque,
    "packed": lambda scratch: scratch.packed,
    "memory": lambda scratch: memoryview(scratch.bytes),
    "list of arrays": lambda scratch: [scratch.array[0], scratch.array[1]],
    "tuple of a class": lambda scratch: OwnTuple((scratch.array, 1)),
    "dict of a class": lambda scratch: OwnDict(image=scratch.array),
    "dict whose attributes are keys": lambda scratch: KeyDict(image=scratch.array),
    "dict that cannot be changed": lambda scratch: FixedDict(image=scratch.array),
    "list of a class": lambda scratch: OwnList([scratch.array, OwnDict(image=scratch.array)]),
    "wrapped dict": lambda scratch: UserDict(image=scratch.array),
    "wrapped list": lambda scratch: UserList([scratch.array]),
    "chained dicts": lambda scratch: ChainMap({"n": 1}, {"image": scratch.array}),
    "read-only dict": lambda scratch: MappingProxyType({"image": scratch.array}),
    "counts": lambda scratch: scratch.counts,
    "ordered": lambda scratch: OrderedDict(b=scratch.array, a=1),
    "defaults": lambda scratch: defaultdict(list, a=scratch.array),
    "values of a dict": lambda scratch: {"image": scratch.array}.values(),
    "pairs of a dict": lambda scratch: OrderedDict(image=scratch.array).items(),
    "view of a dict": lambda scratch: scratch.dict.values(),
}

WAYS: dict[str, Callable[[Scratch], Any]] = {
    "a function": lambda scratch: numbers(COUNT).prepare(scratch, workers=1),
    "a coroutine function": lambda scratch: numbers(COUNT).prepare(scratch.later, workers=1),
    "flat": lambda scratch: numbers(1).flat(lambda _: scratch.each(), workers=1),
    "flat by a list": lambda scratch: numbers(COUNT).flat(lambda n: [scratch(n)], workers=1),
    "an iterable": lambda scratch: from_iterable(scratch.each),
    "a dataset": lambda scratch: items(scratch),
    "a dataset, prepared": lambda scratch: items(scratch).prepare(lambda x: x, workers=2),
    "an iterable, prepared": lambda scratch: from_iterable(scratch.each).prepare(
        lambda x: x, workers=2
    ),
}

HOLDING: dict[str, Callable[[Pipeline[Any]], Pipeline[Any]]] = {
    "batch": lambda pipeline: pipeline.batch(COUNT),
    "shuffle": lambda pipeline: pipeline.shuffle(4).batch(COUNT),
    "prefetch": lambda pipeline: pipeline.prefetch(4).batch(COUNT),
    "collate": lambda pipeline: pipeline.batch(COUNT, collate=list),
}


def fresh(kind: str) -> list[Any]:
    """The examples as they would be in memory of their own."""
    return [plain(KINDS[kind](scratch)) for scratch in map(_scratch_at(kind), range(COUNT))]


def _scratch_at(kind: str) -> Callable[[int], Scratch]:
    def made(number: int) -> Scratch:
        scratch = Scratch(kind)
        scratch(number)
        return scratch

    return made


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_memory_each_time(kind: str) -> None:
    wanted = fresh(kind)
    for way, make in WAYS.items():
        assert [plain(one) for (one,) in make(Scratch(kind)).batch(1, collate=tuple)] == wanted, way
        (held,) = make(Scratch(kind)).batch(COUNT, collate=list)
        assert [plain(one) for one in held] == wanted, way


def test_a_copy_has_the_attributes_too() -> None:
    given = OwnDict("here", image=np.zeros(1), nested=OwnList([OwnTuple((1,))]))
    (kept,) = items([given]).prepare(lambda x: x, workers=1)
    assert (kept.source, type(kept["nested"]), type(kept["nested"][0])) == (
        "here",
        OwnList,
        OwnTuple,
    )


def test_types_of_results() -> None:
    """Tuples that only their own class can make, such as PyTorch's."""
    moment = time.localtime()
    assert list(items([moment])) == [moment]
    assert type(next(iter(items([moment])))) is type(moment)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_has_the_class_of_what_it_copies(kind: str) -> None:
    scratch = Scratch(kind)
    own = scratch(0)
    ((made,),) = numbers(1).prepare(scratch, workers=1).batch(1, collate=tuple)
    assert type(made) is type(own)
    if isinstance(own, defaultdict):
        assert made.default_factory is own.default_factory


@pytest.mark.parametrize("stage", HOLDING)
def test_in_what_holds_examples(stage: str) -> None:
    (made,) = HOLDING[stage](numbers(COUNT).prepare(Scratch("array"), workers=1))
    assert sorted(one[0][0] for one in made) == list(range(COUNT))


def test_on_the_streams_of_coordinators() -> None:
    makes: tuple[Callable[[Any], Any], ...] = (
        lambda coord: batch(Scratch("row").each(), COUNT, coord=coord),
        lambda coord: batch(range(COUNT), COUNT, function=Scratch("row"), workers=1, coord=coord),
        lambda coord: batch(Scratch("row").each(), COUNT, function=abs, workers=1, coord=coord),
        lambda coord: batch(items(Scratch("row"), 1), COUNT, coord=coord, resume=None),
    )
    for make in makes:
        with sync.Coordinator() as coord:
            assert sorted(next(make(coord))[:, 0]) == list(range(COUNT))


def test_in_tasks() -> None:
    async def held() -> Any:
        return [one async for one in numbers(COUNT).prepare(Scratch("row").later).batch(COUNT)]

    (made,) = asyncio.run(held())
    assert sorted(made[:, 0]) == list(range(COUNT))


def test_batches_of_a_collate_that_uses_its_memory_again() -> None:
    out = np.zeros(2, "i8")

    def collate(examples: list[int]) -> Any:
        out[:] = examples
        return out

    assert [plain(one) for one in list(numbers(6).batch(2, collate=collate))] == [
        [0, 1],
        [2, 3],
        [4, 5],
    ]


def write(item: Any) -> Any:
    """Writes into its item, wherever the arrays are."""
    if isinstance(item, dict):
        item["x"] += 1
        return item["x"]
    if isinstance(item, Example):
        item.left += 1
        return item.left
    given = item[0] if isinstance(item, tuple) else item
    given += 1
    return given


@pytest.mark.parametrize("where", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_function_that_writes_into_its_item(where: Any) -> None:
    """It changes neither the caller's data nor the next epoch; views of arrays are read-only."""
    data = np.zeros((4, 2))
    for given in (
        [*data],
        [(row,) for row in data],
        [{"x": row} for row in data],
        [Example(row, 0) for row in data],
    ):
        pipeline = items(given, seed=1).prepare(write, workers=2, where=where).batch(4)
        epochs = [[plain(one) for one in epoch] for epoch in pipeline.epochs(2)]
        assert epochs == [[[[1, 1]] * 4]] * 2
        assert not data.any()
    with pytest.raises(ExceptionGroup) as caught:
        list(items(data).prepare(write, workers=2, where=where).batch(4))
    assert caught.group_contains(ValueError, match="read-only")
    notes = [note for error in caught.value.exceptions for note in error.__notes__]
    assert any("item.copy()" in note for note in notes)
    assert not data.any()


def append(value: Any) -> Any:
    """Writes into the first list that it finds."""
    if isinstance(value, dict | np.void):
        append(value["x"])
    elif isinstance(value, list):
        value.append(99)
    return 0 if value is None else value


def with_lists() -> Any:
    found = np.empty(2, object)
    found[:] = [[0], [1]]
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda: items(with_lists()),
        lambda: arrays(with_lists()),
        lambda: arrays({"x": with_lists()}),
        lambda: items(np.array([(0, [0]), (1, [1])], [("n", "i8"), ("x", object)])),
        lambda: arrays({"x": np.array([([0],), ([1],)], [("x", object)])}),
        lambda: items([{"x": np.array([([0],)], [("x", object)])[0]}] * 2),
        lambda: items([None, {"x": [0]}]),
        lambda: items((5, [0])),
    ],
    ids=[
        *("objects", "arrays of objects", "columns of objects", "records of objects"),
        *("columns of records", "records in dicts", "a dict after None", "a list after an int"),
    ],
)
@pytest.mark.parametrize("step", ["consumer", "function", "filter"])
def test_objects_of_arrays_and_lists_are_not_the_callers(make: Any, step: str) -> None:
    pipeline = make()
    if step == "function":
        pipeline = pipeline.prepare(append)
    elif step == "filter":
        pipeline = pipeline.filter(lambda x: [append(x)])
    epochs: list[list[str]] = []
    for epoch in pipeline.epochs(3):
        epochs.append([])
        for item in epoch:
            epochs[-1].append(repr(item))
            append(item)
    assert epochs[0] == epochs[1] == epochs[2]


def nested(depth: int) -> Any:
    value: Any = [0]
    for _ in range(depth):
        value = [value]
    return value


def linked(length: int) -> Any:
    found = None
    for number in range(length):
        found = Example(number, found)
    return found


def endless() -> Any:
    found = np.empty(1, object)
    found[0] = [found]
    return found


@pytest.mark.parametrize(
    "make",
    [partial(nested, 5000), partial(linked, 5000), endless],
    ids=["deep", "linked", "endless"],
)
def test_what_has_no_end_is_forwarded_as_it_is(make: Any) -> None:
    value = make()
    for pipeline in (items([value] * 2), from_iterable([value] * 2), items([value] * 2).cache()):
        assert [one is value for one in pipeline.prepare(_same)] == [True] * 2


def test_what_is_owned_is_not_copied() -> None:
    from aioqueue.core.elements.ownership import copy_if_shared

    data = np.zeros((4, 2))
    data.flags.writeable = False
    for make in (
        lambda: np.zeros(3),
        lambda: np.zeros((4, 4))[1:],
        lambda: np.zeros(6).reshape(2, 3),
        lambda: (np.zeros(3), 1),
        lambda: (np.zeros((3, 3)).T, np.float32(1), data[1]),
        lambda: {"image": np.zeros((3, 3)).T, "names": ["a", "b"]},
        lambda: Example(np.zeros(3), [np.zeros(2)]),
        lambda: FrozenExample(np.zeros(3), "a"),
        lambda: SimpleNamespace(left=np.zeros(3)),
        lambda: deque([np.zeros(3), 1]),
        lambda: memoryview(b"abc"),
        lambda: np.frombuffer(b"12345678"),
        lambda: data[1],
        lambda: "text",
    ):
        made = make()
        identity = id(made)
        kept = copy_if_shared(made)
        assert id(kept) == identity


def test_tuples_of_any_parts_are_private() -> None:
    """Of any mixture of parts, with any item: what others can reach, they cannot change."""
    from aioqueue.core.elements.ownership import copy_if_shared

    rng = random.Random(7)
    fixed = np.arange(6)
    fixed.flags.writeable = False
    for _ in range(150):
        reached = [np.arange(6) for _ in range(4)]
        item = rng.choice([None, 3, "a", [reached[0]], reached[0]])
        kinds: list[Callable[[], Any]] = [
            lambda: 5,
            lambda: np.int64(5),
            lambda: np.arange(6),
            lambda: np.arange(8)[2:],
            lambda: fixed[1:],
            partial(_same, reached[1]),
            partial(reached[2].__getitem__, slice(None, None, 2)),
            partial(reached[3].reshape, 2, 3),
            partial(_same, [reached[1], 1]),
            lambda: np.array([[1], "a"], object),
            partial(_same, item),
        ]
        made = tuple(rng.choice(kinds)() for _ in range(rng.randint(0, 4)))
        before = copy.deepcopy(made)
        kept = copy_if_shared(made, item)
        is_own = {id(part) for part in (item, *(item if isinstance(item, list) else ()))}
        for array_reached in reached:
            if id(array_reached) not in is_own:
                array_reached[:] = -1
        del made
        assert repr(kept) == repr(before)


def _same(value: Any) -> Any:
    return value


def test_an_item_that_is_forwarded_is_not_copied() -> None:
    seen: list[int] = []

    def note(array: Any) -> Any:
        seen.append(array.ctypes.data)
        return array

    made = numbers(3).prepare(lambda n: np.full(5, n), workers=1)
    for _ in made.prepare(note, workers=1).prepare(note, workers=1).batch(3):
        pass
    assert len(set(seen)) == 3


INTO: dict[str, tuple[Callable[[], sync.BlockingQueue[Any]], Callable[[Any], Any]]] = {
    "objects": (lambda: sync.FIFOQueue(1), lambda array: array),
    "one shape": (lambda: sync.FIFOQueue(1, "f8", (3,)), lambda array: array),
    "any shape": (lambda: sync.FIFOQueue(1, "f8"), lambda array: array),
    "strings too": (lambda: sync.FIFOQueue(1, ["f8", str], [(3,), ()]), lambda array: (array, "")),
    "names": (
        lambda: sync.RandomShuffleQueue(1, 0, ["f8"], [(3,)], ["x"]),
        lambda array: {"x": array},
    ),
}
"""Queues for one element, and what a function that fills them makes of its array."""


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("kind", INTO)
def test_a_function_may_use_its_array_again(kind: str, ordered: bool) -> None:
    """Some queues copy what they are given, and then nobody else does; it makes no difference."""
    make_queue, element = INTO[kind]
    scratch, queue = np.zeros(3), make_queue()

    def fill(number: int) -> Any:
        scratch[:] = number
        return element(scratch)

    with sync.Coordinator() as coord:
        source = numbers(20, epochs=1)
        coord.start(prepare(source, fill, into=queue, workers=1, where="thread", ordered=ordered))
        taken = list(queue)
    arrays = [found[0] if kind == "strings too" else found for found in taken]
    arrays = [found["x"] if kind == "names" else found for found in arrays]
    assert [array.tolist() for array in arrays] == [[float(n)] * 3 for n in range(20)]
