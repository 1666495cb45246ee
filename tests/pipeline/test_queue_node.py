"""What workers have delivered is the same rows, however much of it arrives together."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from aioqueue import sync
from aioqueue.inputs import numbers
from aioqueue.items.item import Delivered, EpochEnd, ItemCounts, ItemFailure
from aioqueue.pipeline.nodes.flow import drive
from aioqueue.pipeline.nodes.rows import EpochRange, Row
from aioqueue.pipeline.queue_node import QueueNode
from aioqueue.pipeline.source_node import SourceNode
from aioqueue.pipeline.stage_input import StageInput
from aioqueue.sources.shards import EpochEntries, Rank

ITEMS = 40
EPOCHS = 3

Became = tuple[tuple[Any, ...], ItemFailure | None]


def plain(number: int) -> Became:
    return (number,), None


def with_some_left_out(number: int) -> Became:
    return ((), None) if number % 9 == 4 else plain(number)


def with_some_several(number: int) -> Became:
    return ((number, -number), None) if number % 7 == 3 else plain(number)


def with_some_in_trouble(number: int) -> Became:
    if number % 11 == 5:
        return (), ItemFailure(1, True)
    return ((number,), ItemFailure(2, False)) if number % 13 == 6 else plain(number)


@pytest.mark.parametrize(
    "became", [plain, with_some_left_out, with_some_several, with_some_in_trouble]
)
@pytest.mark.parametrize("together", [3, 8, 64, 1_000])
def test_rows_are_those_of_items_that_come_one_by_one(became: Any, together: int) -> None:
    assert found(became, together) == found(became, 1)


def test_they_are_numbered_in_their_epochs() -> None:
    rows, ends, counts = found(plain, 64)
    assert [row[1:4] for row in rows] == [(n, n, 0) for _ in range(EPOCHS) for n in range(ITEMS)]
    assert ends == [EpochEnd(epoch, ITEMS) for epoch in range(EPOCHS)]
    assert counts == ItemCounts(prepared=EPOCHS * ITEMS, examples=EPOCHS * ITEMS)


def found(became: Any, together: int) -> tuple[list[Row], list[EpochEnd], ItemCounts]:
    """All that comes out, the ends of the epochs, and what was counted."""
    span = EpochRange(0, EPOCHS)
    feeding = StageInput(SourceNode(EpochEntries(numbers(ITEMS), Rank()), span), 0, blocking=False)
    queue = sync.FIFOQueue(None)
    queue.enqueue_many(delivered(feeding, became))
    node = QueueNode(
        queue,
        feeding,
        items=lambda _: ITEMS,
        is_one_to_one=False,
        keeps_order=True,
        at_once=together,
    )
    rows: list[Row] = []
    ends: list[EpochEnd] = []
    while len(ends) < EPOCHS:
        taken = drive(node.take(together))
        if isinstance(taken, EpochEnd):
            ends.append(taken)
        else:
            rows += taken
    counts = node.tally()["counts"]
    return rows, ends, ItemCounts(*(counts[field] for field in ItemCounts._fields))


def delivered(feeding: StageInput, became: Any) -> list[Delivered]:
    """What workers deliver of all that they are fed with."""
    items: list[Delivered] = []
    for place, (value, epoch, index) in zip(count(), feeding.entries(), strict=False):
        examples, trouble = ((value,), None) if isinstance(value, EpochEnd) else became(value)
        items.append((epoch, place, index, examples, trouble))
    return items
