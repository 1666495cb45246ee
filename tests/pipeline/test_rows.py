"""Rows that come as they are in the queue, and are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from aioqueue import sync
from aioqueue.inputs import numbers
from aioqueue.pipeline.nodes.flow import drive
from aioqueue.pipeline.nodes.rows import EpochRange, LazyRows, Row
from aioqueue.pipeline.queue_node import QueueNode
from aioqueue.pipeline.source_node import SourceNode
from aioqueue.pipeline.stage_input import StageInput
from aioqueue.pipeline.stages.batch import BatchNode
from aioqueue.sources.shards import EpochEntries, Rank
from tests.kit.worlds import switching_often

ITEMS = 40
SIZE = 8
EPOCHS = 2


@pytest.fixture
def quick_switches() -> Iterator[None]:
    with switching_often(20e-6):
        yield


class TestRows:
    def test_are_those_of_a_list(self) -> None:
        listed: list[Row] = [("a", 5, 9, 0, None), ("b", 6, 2, 0, None), ("c", 7, 4, 0, None)]
        rows = together(listed)
        assert list(rows) == list(rows) == listed
        assert len(rows) == 3
        assert [rows[at] for at in (0, 2, -1, -3)] == [listed[at] for at in (0, 2, -1, -3)]
        assert rows[:2] == listed[:2]
        assert rows[2:] == listed[2:]
        with pytest.raises(IndexError):
            rows[3]


class TestNode:
    """What a node does with all that has come, when it was asked for more or for less."""

    def test_delivers_them_as_they_are(self) -> None:
        node = node_with(ITEMS)
        rows = drive(node.take(SIZE))
        assert type(rows) is LazyRows
        assert numbers_in(rows) == list(range(SIZE))
        assert node.given == (0, SIZE)
        assert node.state()["next"] == SIZE

    def test_keeps_what_is_too_much(self) -> None:
        node = node_with(ITEMS, is_sure=False)
        rows = drive(node.take(3))
        assert type(rows) is list
        assert numbers_in(rows) == [0, 1, 2]
        assert node.given == (0, 3)
        assert node.state()["next"] == 3
        assert numbers_in(drive(node.take(5))) == [3, 4, 5, 6, 7]

    def test_has_none_left_for_the_next_epoch(self) -> None:
        node = node_with(6, is_sure=False)  # the items of both epochs come together
        first = drive(node.take(32))
        assert numbers_in(first) == list(range(6))
        drive(node.take(32))
        assert node.given == (1, 0)
        assert numbers_in(drive(node.take(32))) == list(range(6))
        assert node.given == (1, 6)


@pytest.mark.parametrize("cuts", [range(0, 25, 8), [0, 3, 8, 16, 19, 24, 25], [0, 1, 9, 17, 25]])
def test_batches_are_those_of_rows_one_by_one(cuts: Sequence[int]) -> None:
    """However many rows come together; they are as many as a batch has, or fewer."""
    rows = [(f"value {n}", n, ITEMS - n, 0, None) for n in range(25)]
    parts = [rows[start:stop] for start, stop in pairwise(cuts)]
    one_by_one = [[row] for some in parts for row in some]
    assert batched(map(together, parts)) == batched(one_by_one)


def together(rows: Sequence[Row]) -> LazyRows:
    """The same, as those that come together."""
    items = [(0, number, index, (value,), None) for value, number, index, _, _ in rows]
    return LazyRows([row[0] for row in rows], [row[1] for row in rows], items)


def batched(parts: Iterable[Sequence[Row]]) -> list[Row]:
    """The batches of rows of which so many come together."""
    node = BatchNode(node_with(1), SIZE, list, drop_remainder=False, across_epochs=False)
    node.begin(0)
    found = [batch for rows in parts for batch in node.accept(rows)]
    return [*found, *node.finish()]


ODD = [
    False,
    (),
    (0, 0, 0, (1,), None),
    (0, 5),
    ValueError("an example"),
    LazyRows([1], [1], [(0, 0, 1, (1,), None)]),
    [],
    StopIteration,
]


def test_examples_may_be_anything() -> None:
    pipeline = numbers(10 * SIZE).prepare(lambda n: ODD[n % len(ODD)]).batch(SIZE, collate=list)
    found = [example for batch in pipeline for example in batch]
    assert len(found) == 10 * SIZE
    for number, example in enumerate(found):
        expected = ODD[number % len(ODD)]  # which is copied where others have it, too
        assert type(example) is type(expected)
        assert repr(example) == repr(expected)


def nothing(number: int) -> bool:
    return False


def the_first(number: int) -> bool:
    return number < 3


def the_last(number: int) -> bool:
    return number >= ITEMS - 3


def some(number: int) -> bool:
    return number % 11 == 4


@pytest.mark.slow(but="5-")
@pytest.mark.usefixtures("quick_switches")
@pytest.mark.parametrize("is_bad", [nothing, the_first, the_last, some])
@pytest.mark.parametrize("size", [5, SIZE])
def test_every_batch_is_the_same_after_a_restart(is_bad: Any, size: int) -> None:
    """Whether it is made of rows that come as they are, or of some that were put together."""

    def prepared(number: int) -> int:
        if is_bad(number):
            raise ValueError("a bad item")
        return number

    pipeline = numbers(ITEMS).prepare(prepared, workers=3, on_error="skip").batch(size)
    good = [number for number in range(ITEMS) if not is_bad(number)]
    one_epoch = [good[at : at + size] for at in range(0, len(good), size)]
    whole = one_epoch * EPOCHS
    with pipeline.epochs(EPOCHS) as epochs:
        states: list[Any] = [epochs.state_dict()]
        for epoch in epochs:
            for batch in epoch:
                assert batch.tolist() == whole[len(states) - 1]
                states.append(epochs.state_dict())
    assert len(states) == len(whole) + 1
    for behind, state in enumerate(states):
        with pipeline.epochs(EPOCHS, resume=state) as epochs:
            assert [batch.tolist() for epoch in epochs for batch in epoch] == whole[behind:]


def test_all_items_may_be_skipped() -> None:
    def prepared(number: int) -> int:
        raise ValueError("a bad item")

    pipeline = numbers(ITEMS).prepare(prepared, on_error="skip").batch(SIZE)
    assert list(pipeline) == []


def node_with(items: int, *, is_sure: bool = True) -> QueueNode:
    """A node that has two epochs in its queue.

    Args:
        items: in each.
        is_sure: whether it is known how many there are, so that no more are taken out than needed.
    """
    span = EpochRange(0, EPOCHS)
    feeding = StageInput(SourceNode(EpochEntries(numbers(items), Rank()), span), 0, blocking=False)
    queue = sync.FIFOQueue(None)
    queue.enqueue_many(
        [
            (epoch, place, index, (value,), None)
            for place, (value, epoch, index) in enumerate(feeding.entries())
        ]
    )
    return QueueNode(
        queue,
        feeding,
        items=lambda _: items,
        is_one_to_one=is_sure,
        keeps_order=True,
        at_once=SIZE if is_sure else 32,
    )


def numbers_in(taken: Any) -> list[int]:
    return [row[1] for row in taken]
