"""Corners of the storages that mutation testing found no test for; see `docs/mutation.md`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aioqueue import philox
from aioqueue.elements import Columns, Component, ElementSpec
from aioqueue.philox import PhiloxWords, philox_blocks, resolve_seed
from aioqueue.storage import (
    HeapStorage,
    Held,
    ObjectShelf,
    ObjectStorage,
    RingStorage,
    ShuffleStorage,
    Storage,
    TypedShelf,
    columns,
    fifo_storage,
    shelf_for,
)

NUMBER = (Component("number", "int64", ()),)
OBJECT = (Component("object", object, ()),)
SEED = (1, 2)


def numbers(*values: int) -> Columns:
    return [np.array(values, np.int64)]


def pulled(storage: Storage, n: int) -> list[Any]:
    found: list[Any] = storage.pull(n)[0].tolist()
    return found


# Memory: as much as the capacity at once if that is reasonable, then by doubling, never beyond it.


def ring(capacity: int | None) -> Storage:
    return RingStorage(NUMBER, capacity)


def shuffle(capacity: int | None) -> Storage:
    return ShuffleStorage(TypedShelf(NUMBER, capacity), SEED)


def slots(storage: Any) -> int:
    """For how many rows there is memory."""
    keeper = storage if isinstance(storage, RingStorage) else storage._shelf
    return len(keeper._columns[0])


def put_singly(storage: Storage, n: int) -> None:
    for number in range(n):
        storage.put((number,))


def put_at_once(storage: Storage, n: int) -> None:
    storage.put_many(numbers(*range(n)), 0, n, False)


either = pytest.mark.parametrize("make", [ring, shuffle])
both_ways = pytest.mark.parametrize("put", [put_singly, put_at_once])


@either
@both_ways
def test_memory_for_a_small_capacity_is_there_at_once(
    make: Callable[[int | None], Storage], put: Callable[[Storage, int], None]
) -> None:
    storage = make(100)
    assert slots(storage) == 100
    put(storage, 100)
    assert slots(storage) == 100


@either
@both_ways
@pytest.mark.parametrize(
    ("capacity", "n", "expected"),
    [(None, 64, 64), (None, 65, 128), (None, 128, 128), (65, 65, 65), (100, 70, 100)],
)
def test_memory_grows_by_doubling_up_to_the_capacity(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[int | None], Storage],
    put: Callable[[Storage, int], None],
    capacity: int | None,
    n: int,
    expected: int,
) -> None:
    monkeypatch.setattr(columns, "_EAGER_BYTES", 0)
    storage = make(capacity)
    assert slots(storage) == 64
    put(storage, n)
    assert slots(storage) == expected


@either
def test_one_large_batch_gets_the_memory_that_it_needs(
    make: Callable[[int | None], Storage],
) -> None:
    storage = make(None)
    put_singly(storage, 10)
    put_at_once(storage, 200)
    assert slots(storage) == 210


def test_the_capacity_is_passed_on() -> None:
    spec = ElementSpec("int64", ())
    assert slots(fifo_storage(spec, 100)) == 100
    assert slots(ShuffleStorage(shelf_for(spec, 100), SEED)) == 100


@pytest.mark.parametrize(
    ("row_bytes", "capacity", "expected"),
    [
        (1, None, 64),
        (1, 100, 100),
        (2**28, 10, 10),
        (2**23, 128, 128),
        (2**23, 129, 64),
        (2**27, 100, 64),
    ],
)
def test_how_many_slots_are_there_from_the_start(
    row_bytes: int, capacity: int | None, expected: int
) -> None:
    assert columns.first_slots((Component("x", "int8", (row_bytes,)),), capacity) == expected


@pytest.mark.parametrize(
    ("now", "needed", "limit", "expected"),
    [(64, 65, None, 128), (64, 200, None, 200), (64, 65, 100, 100), (64, 120, 100, 120)],
)
def test_growth(now: int, needed: int, limit: int | None, expected: int) -> None:
    assert columns.grow(now, needed, limit) == expected


# The ring.


def test_a_slice_of_a_batch_wraps_around() -> None:
    storage = ring(5)
    put_at_once(storage, 3)
    storage.pull(2)
    storage.put_many(numbers(9, 10, 11, 12, 13, 9), 1, 5, False)
    assert pulled(storage, 5) == [2, 10, 11, 12, 13]


def test_a_batch_takes_only_a_part_of_the_rows_between_two_handed_over_ones() -> None:
    storage = ring(None)
    storage.put_many(numbers(0), 0, 1, True)
    storage.put_many(numbers(1, 2, 3), 0, 3, False)
    storage.put_many(numbers(4), 0, 1, True)
    assert pulled(storage, 2) == [0, 1]
    assert pulled(storage, 3) == [2, 3, 4]


def test_what_leaves_across_the_end_of_the_ring_takes_nothing_else_along() -> None:
    storage = RingStorage(OBJECT, 3)
    for value in "abc":
        storage.put((value,))
    storage.pull(2)
    for value in "de":
        storage.put((value,))
    assert pulled(storage, 2) == ["c", "d"]
    assert pulled(storage, 1) == ["e"]


# Rows in hands.


def test_single_rows_come_back_in_the_order_in_which_they_left() -> None:
    storage = ObjectStorage()
    storage.extend("abcd")
    hands = [Held() for _ in range(4)]
    for one in hands:
        storage.hold_one(one)
    for index in (2, 0, 3, 1):
        storage.restore(hands[index])
    batch = Held()
    storage.hold(batch, 4)
    assert storage.columns(batch) == list("abcd")


def test_a_row_that_comes_back_takes_its_place_among_its_equals() -> None:
    storage = HeapStorage(ObjectShelf(), typed=False)
    for name in "abc":
        storage.put((7, name))
    hands = Held()
    storage.hold_one(hands)
    storage.restore(hands)
    assert [storage.take()[1] for _ in range(3)] == list("abc")


def test_a_claim_counts_the_rows_that_are_back() -> None:
    storage = shuffle(None)
    put_singly(storage, 2)
    hands = Held()
    storage.hold_one(hands)
    storage.restore(hands)
    storage.claim(2)
    batch = Held()
    storage.hold(batch, 2)
    assert sorted(np.concatenate([chunk[0] for chunk in batch.chunks]).tolist()) == [0, 1]


@pytest.mark.parametrize(
    "make",
    [ObjectStorage, lambda: HeapStorage(ObjectShelf(), typed=False)],
    ids=["objects", "heap"],
)
def test_each_row_that_comes_back_has_its_ticket(make: Callable[[], Storage]) -> None:
    storage, hands = make(), Held()
    storage.put_many([(1, "a"), (2, "b")], 0, 2, False)
    storage.hold(hands, 2)
    hands.tickets = hands.tickets[:1]
    with pytest.raises(ValueError, match="longer"):
        storage.restore(hands)


# Half a row is never stored nor taken, not even if a caller should forget a component.

PAIR = (Component("number", "int64", ()), Component("half", "float64", ()))
WIDE: list[Callable[[], Storage]] = [
    lambda: RingStorage(PAIR, None),
    lambda: ShuffleStorage(TypedShelf(PAIR, None), SEED),
    lambda: HeapStorage(TypedShelf(PAIR, None), typed=True),
]
wide = pytest.mark.parametrize("make", WIDE, ids=["ring", "shuffle", "heap"])


def pairs(n: int) -> Columns:
    return [np.arange(n), np.arange(n) / 2]


@wide
@pytest.mark.parametrize("owned", [False, True])
def test_half_a_batch_does_not_go_in(make: Callable[[], Storage], owned: bool) -> None:
    storage = make()
    with pytest.raises(ValueError, match="shorter"):
        storage.put_many(pairs(3)[:1], 0, 3, owned)
    assert len(storage) == 0
    storage.put_many(pairs(3), 0, 3, owned)
    assert sorted(storage.pull(3)[1].tolist()) == [0, 0.5, 1]


@wide
@pytest.mark.parametrize("owned", [False, True])
def test_half_a_batch_does_not_come_out(make: Callable[[], Storage], owned: bool) -> None:
    storage = make()
    storage.put_many(pairs(3), 0, 3, owned)
    with pytest.raises(ValueError, match="shorter"):
        storage.pull(3, [np.empty(3, np.int64)])
    assert len(storage) == 3
    assert sorted(storage.pull(3)[1].tolist()) == [0, 0.5, 1]


@wide
def test_columns_and_rows_are_made_of_whole_rows(make: Callable[[], Storage]) -> None:
    storage = make()
    with pytest.raises(ValueError, match="shorter"):
        storage.stack([(1, 0.5), (2,)])
    with pytest.raises(ValueError, match="shorter"):
        storage.split(pairs(2)[:1])
    with pytest.raises(ValueError, match="shorter"):
        storage.concatenate([pairs(2), pairs(2)[:1]])


# The shelf.


def heap() -> Storage:
    return HeapStorage(TypedShelf(NUMBER, None), typed=True)


def test_a_copied_row_leaves_before_handed_over_ones() -> None:
    storage = heap()
    storage.put_many(numbers(5, 6), 0, 2, True)
    storage.put_many(numbers(1, 7), 0, 2, False)
    assert pulled(storage, 2) == [1, 5]
    assert pulled(storage, 2) == [6, 7]


def test_handed_over_rows_wait_while_copied_ones_leave_beside_others() -> None:
    storage = heap()
    storage.put_many(numbers(1, 3, 9), 0, 3, True)
    storage.put_many(numbers(2, 4, 5, 6), 0, 4, False)
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
    storage.put_many(rows, 1, 3, False)
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
