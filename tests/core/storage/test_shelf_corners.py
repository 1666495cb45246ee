"""Corners of the storages that mutation testing found no test for; see `docs/mutation.md`."""

from __future__ import annotations

import itertools
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aioqueue.core.elements import philox
from aioqueue.core.elements.component import Component
from aioqueue.core.elements.element_spec import ElementSpec
from aioqueue.core.elements.philox import PhiloxWords, philox_blocks, resolve_seed
from aioqueue.core.elements.spec import Columns
from aioqueue.core.storage import blocks, typed_shelf
from aioqueue.core.storage.blocks import BlockStorage, block_rows
from aioqueue.core.storage.columns import allocate
from aioqueue.core.storage.heap import HeapStorage
from aioqueue.core.storage.objects import ObjectStorage
from aioqueue.core.storage.protocol import Held, Storage
from aioqueue.core.storage.shelf import ObjectShelf, shelf_for
from aioqueue.core.storage.shuffle import ShuffleStorage
from aioqueue.core.storage.typed_shelf import TypedShelf
from aioqueue.queues.fifo import fifo_storage
from tests.core.storage.test_protocol import ready

NUMBER = (Component("number", "int64", ()),)
OBJECT = (Component("object", object, ()),)
SEED = (1, 2)


def numbers(*values: int) -> Columns:
    return [np.array(values, np.int64)]


def pulled(storage: Storage, n: int) -> list[Any]:
    found: list[Any] = storage.pull(n)[0].tolist()
    return found


# Memory.


def ring(capacity: int | None) -> Storage:
    return BlockStorage(NUMBER, capacity)


def shuffle(capacity: int | None) -> Storage:
    return ShuffleStorage(TypedShelf(NUMBER, capacity), SEED)


def put_singly(storage: Storage, n: int) -> None:
    for number in range(n):
        storage.put((number,))


def put_at_once(storage: Storage, n: int) -> None:
    storage.put_many(numbers(*range(n)), 0, n)


class Allocated:
    """For how many rows storages have memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        for module in (blocks, typed_shelf):
            monkeypatch.setattr(module, "allocate", self.allocate)

    def allocate(self, components: tuple[Component, ...], n: int) -> Columns:
        self.rows += n
        return allocate(components, n)


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> Allocated:
    return Allocated(monkeypatch)


def bytes_of(n: int) -> tuple[Component, ...]:
    return (Component("x", "int8", (n,)),)


@pytest.mark.parametrize("put", [put_singly, put_at_once])
def test_a_shelf_has_memory_for_its_capacity_from_the_start(
    put: Callable[[Storage, int], None], allocated: Allocated
) -> None:
    storage = shuffle(100)
    assert allocated.rows == 100
    put(storage, 100)
    assert allocated.rows == 100
    storage.put((100,))
    assert allocated.rows == 200  # claimed rows, or reserved


@pytest.mark.parametrize(
    ("row_bytes", "capacity", "expected"),
    [(8, None, 4096), (8, 100, 100), (2**23, 100, 100), (2**23, 1000, 128), (2**27, 100, 64)],
)
def test_how_many_slots_a_shelf_begins_with(
    row_bytes: int, capacity: int | None, expected: int, allocated: Allocated
) -> None:
    ShuffleStorage(TypedShelf(bytes_of(row_bytes), capacity), SEED)
    assert allocated.rows == expected


def test_a_shelf_of_many_blocks_keeps_every_row() -> None:
    storage = ShuffleStorage(TypedShelf(NUMBER, 10), SEED)
    put_singly(storage, 25)
    storage.put_many(numbers(*range(25, 60)), 0, 35)
    storage.put_many(ready(storage, numbers(*range(60, 75)), "wrapped"), 0, 15)
    out = pulled(storage, 30) + [int(storage.take()[0]) for _ in range(5)] + pulled(storage, 40)
    assert sorted(out) == list(range(75))


def test_the_capacity_is_passed_on(allocated: Allocated) -> None:
    spec = ElementSpec("int64", ())
    fifo_storage(spec, 100).put((1,))
    assert allocated.rows == 100
    ShuffleStorage(shelf_for(spec, 200), SEED)
    assert allocated.rows == 300


@pytest.mark.parametrize(
    ("row_bytes", "capacity", "expected"),
    [
        (1, None, 2**22),  # 4 MiB
        (1, 100, 100),  # all of them, as they fit in 64 KiB
        (2**10, 100, 64),  # 64 KiB
        (2**10, 1000, 250),  # a quarter
        (2**10, 10**6, 4096),  # 4 MiB
        (2**20, 100, 4),
        (2**24, 100, 1),
        (0, 2**70, 2**22),
    ],
)
def test_how_many_rows_a_block_has(row_bytes: int, capacity: int | None, expected: int) -> None:
    assert block_rows(bytes_of(row_bytes), capacity) == expected


def test_blocks_of_references_are_short() -> None:
    assert block_rows(OBJECT, None) == 1024
    assert block_rows(OBJECT, 10**6) == 1024
    assert block_rows(OBJECT, 100) == 100


# Blocks.


def test_a_slice_of_a_batch_wraps_around() -> None:
    storage = ring(5)
    put_at_once(storage, 3)
    storage.pull(2)
    storage.put_many(numbers(9, 10, 11, 12, 13, 9), 1, 5)
    assert pulled(storage, 5) == [2, 10, 11, 12, 13]


def test_a_batch_takes_a_part_of_the_rows_between_two_wrapped_batches() -> None:
    storage = ring(None)
    storage.put_many(ready(storage, numbers(0), "wrapped"), 0, 1)
    storage.put_many(numbers(1, 2, 3), 0, 3)
    storage.put_many(ready(storage, numbers(4), "wrapped"), 0, 1)
    assert pulled(storage, 2) == [0, 1]
    assert pulled(storage, 3) == [2, 3, 4]


def test_what_leaves_across_the_end_of_the_ring_takes_nothing_else_along() -> None:
    storage = BlockStorage(OBJECT, 3)
    for value in "abc":
        storage.put((value,))
    storage.pull(2)
    for value in "de":
        storage.put((value,))
    assert pulled(storage, 2) == ["c", "d"]
    assert pulled(storage, 1) == ["e"]


# Claimed rows.


def test_single_rows_come_back_in_the_order_in_which_they_left() -> None:
    storage = ObjectStorage()
    storage.extend("abcd")
    claimed = [Held() for _ in range(4)]
    for one in claimed:
        storage.hold_one(one)
    for index in (2, 0, 3, 1):
        storage.restore(claimed[index])
    batch = Held()
    storage.hold(batch, 4)
    assert storage.columns(batch) == list("abcd")


def test_a_row_that_comes_back_takes_its_place_among_its_equals() -> None:
    storage = HeapStorage(ObjectShelf(), typed=False)
    for name in "abc":
        storage.put((7, name))
    claimed = Held()
    storage.hold_one(claimed)
    storage.restore(claimed)
    assert [storage.take()[1] for _ in range(3)] == list("abc")


def test_a_claim_counts_the_rows_that_are_back() -> None:
    storage = shuffle(None)
    put_singly(storage, 2)
    claimed = Held()
    storage.hold_one(claimed)
    storage.restore(claimed)
    storage.claim(2)
    batch = Held()
    storage.hold(batch, 2)
    assert sorted(storage.columns(batch)[0].tolist()) == [0, 1]


@pytest.mark.parametrize(
    "make",
    [ObjectStorage, lambda: HeapStorage(ObjectShelf(), typed=False)],
    ids=["objects", "heap"],
)
def test_each_row_that_comes_back_has_its_ticket(make: Callable[[], Storage]) -> None:
    storage, claimed = make(), Held()
    storage.put_many([(1, "a"), (2, "b")], 0, 2)
    storage.hold(claimed, 2)
    claimed.tickets = claimed.tickets[:1]
    with pytest.raises(ValueError, match="longer"):
        storage.restore(claimed)


# Half a row is never stored nor taken, not even if a caller should forget a component.

PAIR = (Component("number", "int64", ()), Component("half", "float64", ()))
WIDE: list[Callable[[], Storage]] = [
    lambda: BlockStorage(PAIR, None),
    lambda: ShuffleStorage(TypedShelf(PAIR, None), SEED),
    lambda: HeapStorage(TypedShelf(PAIR, None), typed=True),
]
wide = pytest.mark.parametrize("make", WIDE, ids=["ring", "shuffle", "heap"])


def pairs(n: int) -> Columns:
    return [np.arange(n), np.arange(n) / 2]


@wide
@pytest.mark.parametrize("way", ["copied", "filled", "wrapped"])
def test_half_a_batch_does_not_go_in(make: Callable[[], Storage], way: str) -> None:
    storage = make()
    with pytest.raises(ValueError, match="shorter"):
        storage.put_many(ready(storage, pairs(3)[:1], way), 0, 3)
    assert len(storage) == 0
    storage.put_many(ready(storage, pairs(3), way), 0, 3)
    assert sorted(storage.pull(3)[1].tolist()) == [0, 0.5, 1]


@wide
@pytest.mark.parametrize("way", ["copied", "filled", "wrapped"])
def test_half_a_batch_does_not_come_out(make: Callable[[], Storage], way: str) -> None:
    storage = make()
    storage.put_many(ready(storage, pairs(3), way), 0, 3)
    with pytest.raises(ValueError, match="shorter"):
        storage.pull(3, [np.empty(3, np.int64)])
    assert len(storage) == 3
    assert sorted(storage.pull(3)[1].tolist()) == [0, 0.5, 1]


# The shelf.


def heap() -> Storage:
    return HeapStorage(TypedShelf(NUMBER, None), typed=True)


def test_a_copied_row_leaves_before_wrapped_rows() -> None:
    storage = heap()
    storage.put_many(ready(storage, numbers(5, 6), "wrapped"), 0, 2)
    storage.put_many(numbers(1, 7), 0, 2)
    assert pulled(storage, 2) == [1, 5]
    assert pulled(storage, 2) == [6, 7]


def test_wrapped_rows_wait_while_copied_ones_leave_beside_others() -> None:
    storage = heap()
    storage.put_many(ready(storage, numbers(1, 3, 9), "wrapped"), 0, 3)
    storage.put_many(numbers(2, 4, 5, 6), 0, 4)
    assert [pulled(storage, n) for n in (2, 3, 2)] == [[1, 2], [3, 4, 5], [6, 9]]


def test_no_rows_leave_a_shelf() -> None:
    assert pulled(heap(), 0) == []


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (3, 1, 2, 0), (1, 0), (2, 3, 0, 1)])
def test_a_batch_goes_to_scattered_slots(order: tuple[int, ...]) -> None:
    """Rows leave in some order, so their slots are free in another; then a batch comes."""
    storage = HeapStorage(TypedShelf(NUMBER, 4), typed=True)
    priority = {slot: place for place, slot in enumerate(order)}
    for slot in range(len(order)):
        storage.put((priority[slot],))
    storage.pull(len(order))
    put_at_once(storage, len(order))
    assert pulled(storage, len(order)) == list(range(len(order)))


def test_a_slice_of_a_batch_of_objects_is_not_the_whole_of_it() -> None:
    rows = [(3, "d"), (1, "b"), (2, "c"), (0, "a")]
    storage = HeapStorage(ObjectShelf(), typed=False)
    storage.put_many(rows, 1, 3)
    assert len(storage) == 2
    assert storage.pull(2) == [(1, "b"), (2, "c")]


# Philox.


def test_fresh_seeds_are_int64() -> None:
    for _ in range(64):
        assert all(0 <= half < 2**63 for half in resolve_seed(None))


def test_words_are_made_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def blocks(seed: int, seed2: int, first: int, count: int) -> Any:
        assert first == sum(made)
        made.append(count)
        return philox_blocks(seed, seed2, first, count)

    monkeypatch.setattr(philox, "philox_blocks", blocks)
    words = PhiloxWords(SEED)
    taken = words.take(64)
    assert made == [16]
    taken += words.take(64) + words.take(1000)
    assert made == [16, 32, 250]
    assert taken == philox_blocks(*SEED, 0, 282).tolist()


@pytest.mark.parametrize("stride", [1, 3])
def test_many_blocks_are_what_each_is(stride: int) -> None:
    seed, seed2, first = 0x0123456789ABCDEF, 0xFEDCBA9876543210, 2**33 - 5
    many = philox_blocks(seed, seed2, first, 20, stride=stride)
    singly = [philox_blocks(seed, seed2, first + index * stride, 1) for index in range(20)]
    assert many.dtype == singly[0].dtype == np.uint32
    assert many.tolist() == np.concatenate(singly).tolist()


# What strikes while rows move.


class Interrupted(Held):
    """An interruption after the row was taken out and recorded."""

    @property
    def single(self) -> Any:
        return None

    @single.setter
    def single(self, row: Any) -> None:
        if row is not None:
            raise KeyboardInterrupt


@pytest.mark.parametrize("came_back", [False, True])
@pytest.mark.parametrize(
    "make",
    [ObjectStorage, lambda: ShuffleStorage(ObjectShelf(), SEED)],
    ids=["objects", "shuffled"],
)
def test_a_row_interrupted_on_its_way_out_stays(make: Callable[[], Any], came_back: bool) -> None:
    storage, other = make(), make()
    for each in (storage, other):
        each.put_many([*"abcde"], 0, 5)
        if came_back:
            held = Held()
            each.hold(held, 2)
            each.restore(held)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            storage.hold_one(Interrupted())
    order = []
    for each in (storage, other):
        held, took = Held(), list[Any]()
        while len(took) < 5:
            each.hold_one(held)
            took.append(each.columns(held))
            each.free(held)
        order.append(took)
    assert order[0] == order[1]


def test_rows_still_inside_are_not_held() -> None:
    class Interrupted(ObjectStorage):
        left = 2

        def popleft(self) -> Any:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            return super().popleft()

    storage, held = Interrupted(), Held()
    storage.put_many([*"abcde"], 0, 5)
    with pytest.raises(KeyboardInterrupt):
        storage.hold(held, 4)
    assert (held.count, list(held.parts)) == (0, [])
    assert list(storage) == ["c", "d", "e"]
    storage.left = 3
    storage.hold(held, 5)
    assert storage.columns(held) == [*"abcde"]


# Rows that come back, and batches that are left half way.


def filled() -> BlockStorage:
    """The numbers from 0 to 10, that came in every way."""
    storage = BlockStorage(NUMBER, 16)
    batch: Any = storage.fill(None, numbers(*range(6)), 6)
    storage.put_many(batch, 0, 2)
    storage.put_many(batch, 2, 6)  # which had waited for room
    storage.put((6,))
    storage.put((7,))
    storage.put_many(numbers(0, 8, 9, 0), 1, 3)
    storage.put((10,))
    return storage


@pytest.mark.parametrize("first", range(5))
def test_rows_come_back_to_their_places_in_any_order(first: int) -> None:
    for order in itertools.permutations(range(5)):
        if order[0] == first:
            storage, claimed = filled(), [Held() for _ in range(5)]
            for held, n in zip(claimed, (1, 2, 4, 1, 2), strict=True):
                storage.hold(held, n)
            assert len(storage) == 1
            for place in order:
                storage.restore(claimed[place])
            assert pulled(storage, 11) == list(range(11))


def test_a_few_rows_of_a_batch_do_not_keep_the_memory_of_all() -> None:
    storage = BlockStorage(NUMBER, 100)
    storage.put((-1,))
    batch: Any = storage.fill(None, numbers(*range(50)), 50)
    storage.put_many(batch, 0, 4)
    assert (storage.take(), storage.take()) == ((-1,), (0,))
    storage.discard(batch, 4)
    line = Held()
    storage.hold(line, 3)
    assert line.parts[0].block.rows == 3
    storage.restore(line)
    assert batch.uses == 0
    storage.put((4,))
    one, other = Held(), Held()
    storage.hold(one, 2)
    storage.hold(other, 2)
    storage.restore(one)
    storage.restore(other)
    assert pulled(storage, 4) == [1, 2, 3, 4]


def test_most_rows_of_a_batch_stay_where_they_are() -> None:
    storage = BlockStorage(NUMBER, 100)
    batch: Any = storage.fill(None, numbers(*range(5)), 5)
    storage.put_many(batch, 0, 3)
    storage.discard(batch, 3)
    line = Held()
    storage.hold(line, 3)
    assert line.parts[0].block is batch
    storage.restore(line)
    assert pulled(storage, 3) == [0, 1, 2]


def test_a_batch_of_which_nothing_is_in_is_forgotten() -> None:
    storage = BlockStorage(NUMBER, 100)
    storage.put((7,))
    batch: Any = storage.fill(None, numbers(*range(5)), 5)
    storage.discard(batch, 0)
    assert batch.uses == 0
    assert pulled(storage, 1) == [7]


class TestOrderOfAShuffle:
    """Its entries are in a list, or in an array where they are many; what leaves is the same."""

    @pytest.mark.parametrize("most_listed", [0, 5, 10**6])
    def test_what_leaves_is_the_same(self, most_listed: int) -> None:
        class Small(ShuffleStorage):
            pass

        Small.most_listed = most_listed
        storage, usual = Small(TypedShelf(NUMBER, 8), SEED), shuffle(8)
        for first in range(0, 60, 6):
            for one in (storage, usual):
                put_singly(one, first % 4)
                batch = numbers(*range(first, first + 6))
                # Rows of a batch that was given away have no number.
                way = "wrapped" if first == 30 else "filled" if first == 42 else "copied"
                one.put_many(ready(one, batch, way), 1, 6)
            assert pulled(storage, 3) == pulled(usual, 3)
            assert storage.take() == usual.take()
        assert pulled(storage, storage.size) == pulled(usual, usual.size)

    def test_a_number_of_a_slot_takes_eight_bytes_if_there_are_many(self) -> None:
        n = 2 * ShuffleStorage.most_listed
        tracemalloc.start()
        try:
            storage = shuffle(n)
            put_at_once(storage, n)
            assert tracemalloc.get_traced_memory()[0] <= 20 * n  # 8 of them are the row itself
        finally:
            tracemalloc.stop()


class TestItemsOfAHeap:
    """The heap of numbers of slots has one int for each row, of its priority, arrival and slot."""

    PAIR = (Component("priority", "int64", ()), Component("number", "int64", ()))

    def heap(self, capacity: int) -> Storage:
        return HeapStorage(TypedShelf(self.PAIR, capacity), typed=True)

    @pytest.mark.parametrize("way", ["copied", "filled", "wrapped"])
    def test_all_priorities_keep_their_order(self, way: str) -> None:
        priorities = [0, -1, 2**63 - 1, -(2**63), 1, -1, 0, -(2**63), 2**40, -(2**40)]
        n = len(priorities)
        storage = self.heap(n)
        columns = [np.array(priorities, np.int64), np.arange(n)]
        storage.put_many(ready(storage, columns, way), 0, n)
        storage.put((-1, n))
        expected = sorted(range(n + 1), key=lambda number: ([*priorities, -1][number], number))
        held = Held()
        storage.hold(held, 4)
        assert storage.columns(held)[1].tolist() == expected[:4]
        storage.restore(held)
        assert [storage.take()[1] for _ in range(2)] == expected[:2]
        assert storage.pull(n - 1)[1].tolist() == expected[2:]
        assert len(storage) == 0

    def test_rows_that_were_given_away_are_not_kept(self) -> None:
        storage = self.heap(4)
        columns = [np.arange(4), np.arange(4)]
        storage.put_many(ready(storage, columns, "wrapped"), 0, 4)
        watched = weakref.ref(columns[1])
        del columns
        storage.take()
        storage.pull(3)
        assert watched() is None

    def test_a_row_takes_sixty_bytes_besides_its_own(self) -> None:
        n = 10_000
        tracemalloc.start()
        try:
            storage = self.heap(n)
            storage.put_many([np.arange(n), np.arange(n)], 0, n)
            assert tracemalloc.get_traced_memory()[0] <= (16 + 60) * n
        finally:
            tracemalloc.stop()
