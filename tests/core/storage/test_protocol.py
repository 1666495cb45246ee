"""One contract, which every storage keeps: see `aioqueue.core.storage.protocol`.

A row here has three components: a number (by which heaps order it), two floats, and a token that
can be watched dying. Rows go in by rising number, so that all but the shuffle buffer let them out
as they came; what is said about order is said relative to the order in which rows first leave.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from aioqueue.core.elements.component import Component
from aioqueue.core.elements.element_spec import ElementSpec
from aioqueue.core.elements.object_spec import ObjectSpec, PriorityObjectSpec
from aioqueue.core.elements.spec import Columns, Row
from aioqueue.core.storage import blocks
from aioqueue.core.storage.blocks import BlockStorage
from aioqueue.core.storage.heap import HeapStorage
from aioqueue.core.storage.objects import ObjectStorage
from aioqueue.core.storage.padded import PaddedStorage
from aioqueue.core.storage.protocol import Held, Storage
from aioqueue.core.storage.shelf import ObjectShelf, shelf_for
from aioqueue.core.storage.shuffle import ShuffleStorage
from aioqueue.core.storage.typed_shelf import TypedShelf
from aioqueue.queues.fifo import fifo_storage
from aioqueue.queues.priority import heap_storage

COMPONENTS = (
    Component("number", "int64", ()),
    Component("floats", "float32", (2,)),
    Component("token", object, ()),
)
RAGGED = (COMPONENTS[0], Component("floats", "float32", (None,)), COMPONENTS[2])
SEED = (1, 2)


class Token:
    """Something that a weak reference can watch."""


@dataclass(frozen=True)
class Kind:
    """A storage, and what its rows look like.

    Attributes:
        typed: whether rows are written to arrays; else they are kept as they are.
        in_order: whether rows leave by rising number.
    """

    name: str
    make: Callable[[int | None], Storage]
    typed: bool
    in_order: bool = True

    def row(self, number: int) -> Row:
        return (number, np.full(2, number, np.float32), Token())

    def columns(self, *numbers: int) -> Columns:
        rows = [self.row(number) for number in numbers]
        if not self.typed:
            return rows
        tokens = np.empty(len(rows), object)
        tokens[:] = [row[2] for row in rows]
        floats = np.array([row[1] for row in rows], np.float32).reshape(-1, 2)
        return [np.array(numbers, np.int64), floats, tokens]

    def numbers(self, columns: Columns) -> list[int]:
        """Which rows these are; checks that the components of each belong together."""
        rows = list(zip(*columns, strict=True)) if self.typed else columns
        return [number_of(row) for row in rows]

    def outputs(self, n: int) -> Columns | None:
        if not self.typed:
            return None
        return [np.zeros(n, np.int64), np.zeros((n, 2), np.float32), np.empty(n, object)]


def number_of(row: Row) -> int:
    number, floats, token = row
    assert floats.tolist() == [number, number]
    assert isinstance(token, Token)
    return int(number)


class LargeShuffle(ShuffleStorage):
    """One that is as large as others become, from its first row on."""

    most_listed = 0


KINDS = [
    Kind("objects", lambda capacity: ObjectStorage(), typed=False),
    Kind("padded", lambda capacity: PaddedStorage(RAGGED), typed=False),
    Kind("blocks", lambda capacity: BlockStorage(COMPONENTS, capacity), typed=True),
    Kind(
        "shuffle-typed",
        lambda capacity: ShuffleStorage(TypedShelf(COMPONENTS, capacity), SEED),
        typed=True,
        in_order=False,
    ),
    Kind(
        "shuffle-array",
        lambda capacity: LargeShuffle(TypedShelf(COMPONENTS, capacity), SEED),
        typed=True,
        in_order=False,
    ),
    Kind(
        "shuffle-objects",
        lambda capacity: ShuffleStorage(ObjectShelf(), SEED),
        typed=False,
        in_order=False,
    ),
    Kind(
        "heap-typed",
        lambda capacity: HeapStorage(TypedShelf(COMPONENTS, capacity), typed=True),
        typed=True,
    ),
    Kind("heap-objects", lambda capacity: HeapStorage(ObjectShelf(), typed=False), typed=False),
]
TYPED = [kind for kind in KINDS if kind.typed]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(params=TYPED, ids=lambda kind: kind.name)
def typed(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(params=[4, None], ids=["bounded", "unbounded"])
def capacity(request: pytest.FixtureRequest) -> int | None:
    found: int | None = request.param
    return found


@pytest.fixture(params=["copied", "filled", "wrapped"])
def way(request: pytest.FixtureRequest) -> str:
    """How a batch gets in."""
    found: str = request.param
    return found


def ready(storage: Storage, columns: Columns, way: str) -> Columns:
    """A batch as it is put in that way."""
    n = len(columns[0]) if isinstance(columns[0], np.ndarray) else len(columns)
    if way == "filled":
        return storage.fill(storage.reserve(n), columns, n)
    return storage.wrap(columns, n) if way == "wrapped" else columns


def filled(kind: Kind, n: int, capacity: int | None = None) -> Storage:
    storage = kind.make(capacity)
    for number in range(n):
        storage.put(kind.row(number))
    return storage


def held(storage: Storage, n: int, out: Columns | None = None) -> Held:
    claimed = Held(out)
    storage.hold(claimed, n)
    assert claimed.count == n
    return claimed


def numbers_claimed(kind: Kind, storage: Storage, claimed: Held) -> list[int]:
    return kind.numbers(columns_of(kind, storage, claimed))


def columns_of(kind: Kind, storage: Storage, claimed: Held) -> Columns:
    """The held rows as they are, also where batches are padded."""
    return list(claimed.parts) if kind.name == "padded" else storage.columns(claimed)


def leaving(kind: Kind, storage: Storage) -> list[int]:
    """Everything inside, in the order in which it leaves."""
    return numbers_claimed(kind, storage, held(storage, storage.size))


# In and out.


def test_single_rows_leave_whole_and_in_order(kind: Kind, capacity: int | None) -> None:
    storage = filled(kind, 4, capacity)
    assert (len(storage), storage.size) == (4, 4)
    numbers = [number_of(storage.take()) for _ in range(4)]
    assert sorted(numbers) == [0, 1, 2, 3]
    assert not kind.in_order or numbers == [0, 1, 2, 3]
    assert len(storage) == 0


def test_a_batch_is_what_single_rows_would_have_been(kind: Kind, capacity: int | None) -> None:
    one, other = filled(kind, 4, capacity), filled(kind, 4, capacity)
    numbers = kind.numbers(one.pull(3))
    assert numbers == [number_of(other.take()) for _ in range(3)]
    assert number_of(one.take()) == number_of(other.take())


def test_slices_of_a_batch_go_in(kind: Kind, capacity: int | None, way: str) -> None:
    storage = kind.make(capacity)
    columns = ready(storage, kind.columns(0, 1, 2, 3, 4, 5), way)
    storage.put_many(columns, 1, 3)
    assert len(storage) == 2
    storage.put_many(columns, 3, 5)
    assert sorted(leaving(kind, storage)) == [1, 2, 3, 4]
    columns = ready(storage, kind.columns(0, 1, 2, 3, 4, 5), way)
    storage.put_many(columns, 0, 6)
    assert sorted(leaving(kind, storage)) == [0, 1, 2, 3, 4, 5]


def test_rows_batches_and_wrapped_batches_keep_their_order(kind: Kind) -> None:
    storage = kind.make(None)
    storage.put(kind.row(0))
    storage.put_many(ready(storage, kind.columns(1, 2, 3), "wrapped"), 0, 3)
    storage.put(kind.row(4))
    storage.put_many(kind.columns(5, 6), 0, 2)
    storage.put_many(ready(storage, kind.columns(7, 8), "wrapped"), 0, 2)
    assert len(storage) == 9
    numbers = [number_of(storage.take()), number_of(storage.take())]
    numbers += kind.numbers(storage.pull(1)) + kind.numbers(storage.pull(4))
    storage.put(kind.row(9))
    numbers += kind.numbers(storage.pull(3))
    assert sorted(numbers) == list(range(10))
    assert not kind.in_order or numbers == list(range(10))


def test_room_is_used_again_and_again(kind: Kind, capacity: int | None, way: str) -> None:
    """Round and round a ring, with batches that wrap around; on and off a shelf."""
    storage = kind.make(capacity)
    came: list[int] = []
    for number in range(0, 60, 3):
        storage.put(kind.row(number))
        pair = kind.columns(number + 1, number + 2)
        storage.put_many(ready(storage, pair, way if number % 2 == 0 else "copied"), 0, 2)
        came += kind.numbers(storage.pull(2))
        came.append(number_of(storage.take()))
        if number % 4 == 0:
            # One row stays inside, so that the next round begins elsewhere.
            storage.put(kind.row(number))
            storage.put(kind.row(number))
            assert kind.numbers(storage.pull(1)) == [number]
            came.append(-number_of(storage.take()))
    assert sorted(row for row in came if row > 0) == list(range(1, 60))
    assert len(storage) == 0


def test_a_ring_that_never_runs_empty_wraps_around() -> None:
    kind = KINDS[2]
    storage = filled(kind, 3, 4)
    came = []
    for number in range(3, 30, 2):
        came.append(number_of(storage.take()))
        storage.put_many(kind.columns(number, number + 1), 0, 2)
        came += kind.numbers(storage.pull(1))
    assert came == list(range(len(came)))
    assert len(storage) == 3


def test_it_grows(kind: Kind, way: str) -> None:
    storage = filled(kind, 3)
    assert number_of(storage.take()) in {0, 1, 2}
    storage.put_many(ready(storage, kind.columns(*range(3, 103)), way), 0, 100)
    for number in range(103, 300):
        storage.put(kind.row(number))
    assert len(storage) == 299
    numbers = leaving(kind, storage)
    assert len(set(numbers)) == 299
    assert not kind.in_order or numbers == list(range(1, 300))


def test_it_holds_more_than_the_capacity_when_it_must(kind: Kind) -> None:
    """The rows that a withdrawn batch had claimed may overfill it, and places given meanwhile."""
    storage = filled(kind, 4, 4)
    storage.put(kind.row(4))
    storage.put_many(kind.columns(5, 6), 0, 2)
    assert sorted(leaving(kind, storage)) == list(range(7))


# Hands.


def test_what_is_held_is_out(kind: Kind, capacity: int | None) -> None:
    twin, storage = filled(kind, 4, capacity), filled(kind, 4, capacity)
    claimed = held(storage, 3)
    assert storage.size == 1
    assert numbers_claimed(kind, storage, claimed) == kind.numbers(twin.pull(3))


def test_one_held_row_is_a_row(kind: Kind) -> None:
    twin, storage = filled(kind, 3), filled(kind, 3)
    claimed = Held()
    storage.hold_one(claimed)
    assert (claimed.count, storage.size) == (1, 2)
    first = number_of(claimed.single)
    assert first == number_of(twin.take())
    storage.restore(claimed)
    assert (claimed.count, claimed.single, storage.size) == (0, None, 3)
    storage.hold_one(claimed)
    assert number_of(claimed.single) == first


def test_a_single_row_and_a_batch_come_back_in_order(kind: Kind) -> None:
    storage = filled(kind, 4)
    single = Held()
    storage.hold_one(single)
    first = number_of(single.single)
    batch = held(storage, 2)
    order = [first, *numbers_claimed(kind, storage, batch)]
    storage.restore(batch)
    storage.restore(single)
    assert leaving(kind, storage)[:3] == order


def test_no_rows_make_an_empty_batch(kind: Kind) -> None:
    storage = kind.make(None)
    empty = storage.empty()
    assert len(empty) == (0 if kind.name in ("objects", "shuffle-objects", "heap-objects") else 3)
    if kind.typed:
        assert [column.shape for column in empty] == [(0,), (0, 2), (0,)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_rows_come_back_in_the_order_in_which_they_left(
    kind: Kind, capacity: int | None, order: tuple[int, ...]
) -> None:
    storage = filled(kind, 4, capacity)
    claimed = [held(storage, 1), held(storage, 2), held(storage, 1)]
    left = [number for h in claimed for number in numbers_claimed(kind, storage, h)]
    for index in order:
        storage.restore(claimed[index])
    assert storage.size == 4
    assert all(h.count == 0 for h in claimed)
    assert leaving(kind, storage) == left


def test_rows_that_are_back_leave_before_the_others_once_more(kind: Kind) -> None:
    storage = filled(kind, 4)
    claimed = held(storage, 2)
    left = numbers_claimed(kind, storage, claimed)
    storage.restore(claimed)
    storage.put(kind.row(4))
    first = held(storage, 1)
    assert numbers_claimed(kind, storage, first) == left[:1]
    mixed = held(storage, 3)
    assert numbers_claimed(kind, storage, mixed)[0] == left[1]
    storage.restore(mixed)
    storage.restore(first)
    numbers = leaving(kind, storage)
    assert numbers[:2] == left
    assert sorted(numbers) == [0, 1, 2, 3, 4]


def test_what_is_released_is_inside_again(kind: Kind) -> None:
    storage = filled(kind, 4)
    claimed = held(storage, 3)
    left = numbers_claimed(kind, storage, claimed)
    storage.release(claimed)
    assert (claimed.count, storage.size) == (0, 4)
    numbers = leaving(kind, storage)
    assert sorted(numbers) == [0, 1, 2, 3]
    assert not kind.in_order or numbers[:3] == left


def test_a_claim_settles_what_leaves_next(kind: Kind) -> None:
    storage = filled(kind, 4)
    if not storage.eager:
        with pytest.raises(NotImplementedError):
            storage.claim(1)
        return
    twin = filled(kind, 4)
    twin.claim(2)
    claimed = kind.numbers(twin.pull(2))
    storage.claim(1)
    storage.claim(2)
    storage.put(kind.row(4))
    assert storage.size == 5
    assert kind.numbers(storage.pull(2)) == claimed
    assert sorted(leaving(kind, storage) + claimed) == [0, 1, 2, 3, 4]


# The caller's own arrays.


def test_a_batch_is_written_to_given_arrays(typed: Kind, way: str) -> None:
    storage, twin = typed.make(None), typed.make(None)
    for each in (storage, twin):
        each.put(typed.row(0))
        each.put_many(ready(each, typed.columns(1, 2, 3), way), 0, 3)
    out = typed.outputs(4)
    assert out is not None
    assert storage.pull(4, out) is out
    assert typed.numbers(out) == typed.numbers(twin.pull(4))


def test_rows_that_are_back_are_written_before_the_others(typed: Kind) -> None:
    storage = filled(typed, 5)
    back = held(storage, 2)
    left = numbers_claimed(typed, storage, back)
    storage.restore(back)
    out = typed.outputs(5)
    assert out is not None
    claimed = held(storage, 5, out)
    assert storage.columns(claimed) is out
    numbers = typed.numbers(out)
    assert numbers[:2] == left
    assert sorted(numbers) == [0, 1, 2, 3, 4]
    storage.restore(claimed)
    # What came back no longer depends on the arrays.
    for array in out:
        array[:] = 0
    assert leaving(typed, storage) == numbers


# A batch that waits. Rows of 64 KiB are worth a block for it; that it has one is not to be seen.

LARGE = (Component("number", "int64", ()), Component("page", "int64", (2**13,)))


def page(number: int) -> Row:
    return number, np.full(2**13, number)


def pages(numbers: Iterable[int]) -> Columns:
    rows = [page(number) for number in numbers]
    return [np.array([row[0] for row in rows]), np.array([row[1] for row in rows])]


def check_pages(columns: Columns, *numbers: int) -> None:
    assert columns[0].tolist() == list(numbers)
    assert (columns[1] == columns[0][:, None]).all()
    assert columns[1].shape == (len(numbers), 2**13)


def batch_of(storage: Storage, claimed: Held) -> Columns:
    """The batch of a `Held`, which is freed."""
    columns = storage.columns(claimed)
    storage.free(claimed)
    return columns


@pytest.fixture(params=["own", "given"])
def waiting(request: pytest.FixtureRequest) -> Held:
    """A `Held` with a batch of four rows."""
    return Held(pages([9] * 4) if request.param == "given" else None)


class TestExpectedBatches:
    @pytest.mark.parametrize("inside", [0, 1, 3])
    def test_rows_are_copied_once(self, capacity: int | None, inside: int) -> None:
        storage = BlockStorage(LARGE, capacity)
        for number in range(-2, inside):
            storage.put(page(number))
        storage.pull(2)
        storage.expect(4)
        for number in range(inside, 4):
            storage.expect(4)
            storage.put(page(number))
        claimed = held(storage, 4)
        written_to = claimed.parts[-1].block[1]
        batch = batch_of(storage, claimed)
        check_pages(batch, 0, 1, 2, 3)
        assert np.shares_memory(batch[1], written_to)
        assert len(storage) == 0
        storage.put(page(4))
        check_pages(batch, 0, 1, 2, 3)
        check_pages(storage.pull(1), 4)

    def test_rows_of_a_batch_go_there_too(self, waiting: Held, capacity: int | None) -> None:
        storage = BlockStorage(LARGE, capacity)
        storage.expect(4)
        storage.put_many(pages(range(3)), 0, 3)
        storage.put_many(pages(range(4)), 3, 4)
        storage.hold(waiting, 4)
        check_pages(storage.columns(waiting), 0, 1, 2, 3)

    @pytest.mark.parametrize("way", ["copied", "filled", "wrapped"])
    def test_more_rows_than_it_waits_for(self, waiting: Held, way: str) -> None:
        storage = BlockStorage(LARGE, 20)
        storage.expect(4)
        storage.put(page(0))
        storage.put_many(ready(storage, pages(range(10)), way), 1, 10)
        storage.hold(waiting, 4)
        check_pages(storage.columns(waiting), 0, 1, 2, 3)
        check_pages(storage.pull(6), *range(4, 10))

    def test_it_does_not_wait_any_more(self, capacity: int | None) -> None:
        storage = BlockStorage(LARGE, capacity)
        storage.expect(4)
        storage.put(page(0))
        storage.put(page(1))
        check_pages(storage.pull(1), 0)
        for number in range(2, 7):
            storage.put(page(number))
        check_pages(storage.pull(6), *range(1, 7))

    def test_another_one_waits(self, capacity: int | None) -> None:
        storage = BlockStorage(LARGE, capacity)
        storage.expect(4)
        storage.put(page(0))
        storage.expect(2)
        storage.put(page(1))
        check_pages(batch_of(storage, held(storage, 2)), 0, 1)
        storage.expect(2)
        storage.put(page(2))
        storage.put(page(3))
        check_pages(batch_of(storage, held(storage, 2)), 2, 3)

    def test_fewer_rows_than_it_waits_for(self, waiting: Held) -> None:
        storage = BlockStorage(LARGE, 4)
        storage.expect(4)
        storage.put(page(0))
        storage.put(page(1))
        storage.hold(waiting, 2)
        if waiting.out is None:
            batch = storage.columns(waiting)
            check_pages(batch, 0, 1)
            assert batch[1].base is None, "it keeps memory for rows that never came"
        else:
            waiting.out = [array[:2] for array in waiting.out]
            check_pages(storage.columns(waiting), 0, 1)

    def test_rows_that_come_back_come_first(self, waiting: Held) -> None:
        storage = BlockStorage(LARGE, 4)
        for number in range(2):
            storage.put(page(number))
        early = held(storage, 2)
        storage.expect(4)
        storage.put(page(2))
        storage.restore(early)
        storage.expect(4)
        storage.put(page(3))
        storage.hold(waiting, 4)
        check_pages(storage.columns(waiting), 0, 1, 2, 3)

    def test_a_batch_comes_back(self, waiting: Held) -> None:
        """Also when it has been copied: what its caller does to its arrays then is its affair."""
        storage = BlockStorage(LARGE, 4)
        storage.expect(4)
        for number in range(4):
            storage.put(page(number))
        storage.hold(waiting, 4)
        out = waiting.out
        if out is not None:
            storage.columns(waiting)
        storage.restore(waiting)
        for array in out or ():
            array[:] = -1
        check_pages(batch_of(storage, held(storage, 4)), 0, 1, 2, 3)

    def test_without_memory_for_it_the_queue_still_works(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage = BlockStorage(LARGE, 4)

        def fail(*_: Any) -> Columns:
            raise MemoryError

        with monkeypatch.context() as context:
            context.setattr(blocks, "allocate", fail)
            storage.expect(4)
        for number in range(4):
            storage.put(page(number))
        check_pages(batch_of(storage, held(storage, 4)), 0, 1, 2, 3)

    @pytest.mark.parametrize("n", [10**15, 2**63 - 1, 10**30])
    def test_more_rows_than_there_is_memory_for(self, n: int) -> None:
        storage = BlockStorage(LARGE, 4)
        storage.expect(n)
        storage.put(page(0))
        check_pages(storage.pull(1), 0)


class TestBlocks:
    def test_a_filled_block_is_given_away_whole(self) -> None:
        storage = BlockStorage(LARGE, 20)
        block = ready(storage, pages(range(4)), "filled")
        storage.put_many(block, 0, 4)
        batch = batch_of(storage, held(storage, 4))
        assert np.shares_memory(batch[1], block[1])
        storage.put_many(ready(storage, pages([7] * 4), "filled"), 0, 4)
        check_pages(batch, 0, 1, 2, 3)

    def test_a_wrapped_block_is_copied(self) -> None:
        """Who has given arrays away may still look at them, or give them away once more."""
        storage = BlockStorage(LARGE, 20)
        given = pages(range(4))
        storage.put_many(ready(storage, given, "wrapped"), 0, 4)
        batch = batch_of(storage, held(storage, 4))
        assert not np.shares_memory(batch[1], given[1])

    def test_a_block_is_used_again_when_all_have_copied_from_it(self) -> None:
        storage = BlockStorage(LARGE, 20)
        block = ready(storage, pages(range(4)), "filled")
        storage.put_many(block, 0, 4)
        first, second = held(storage, 2), held(storage, 2)
        check_pages(batch_of(storage, first), 0, 1)
        assert storage.reserve(4) is None
        check_pages(batch_of(storage, second), 2, 3)
        assert storage.reserve(4) is block

    def test_a_block_whose_rest_has_still_to_come_is_not_used_again(self) -> None:
        storage = BlockStorage(LARGE, 20)
        block = ready(storage, pages(range(4)), "filled")
        storage.put_many(block, 0, 2)
        check_pages(storage.pull(2), 0, 1)
        assert storage.reserve(4) is None
        storage.put_many(block, 2, 4)
        check_pages(storage.pull(2), 2, 3)
        assert storage.reserve(4) is block

    def test_a_block_is_used_again_when_its_rest_will_not_come(self) -> None:
        storage = BlockStorage(LARGE, 20)
        block = ready(storage, pages(range(4)), "filled")
        storage.put_many(block, 0, 2)
        storage.discard(block, 2)
        assert storage.reserve(4) is None
        check_pages(storage.pull(2), 0, 1)
        assert storage.reserve(4) is block

    def test_rows_continue_behind_a_block(self) -> None:
        storage = BlockStorage((LARGE[0],), 20)
        storage.put((0,))
        own = held(storage, 1)
        storage.put((1,))
        storage.put_many(ready(storage, [np.arange(2, 5)], "filled"), 0, 3)
        storage.put((5,))
        storage.restore(own)
        assert storage.pull(6)[0].tolist() == list(range(6))

    def test_no_more_is_kept_for_later_than_the_capacity(self) -> None:
        storage = BlockStorage(LARGE, 8)
        for n in (3, 3, 3, 5, 2, 2):
            storage.put_many(ready(storage, pages(range(n)), "filled"), 0, n)
        for _ in range(18):
            storage.take()
        kept = [storage.reserve(n) for n in (2, 2, 3, 3, 3, 5)]
        assert 0 < sum(block.rows for block in kept if block is not None) <= 8


# Privacy.


def test_what_went_in_can_be_changed_afterwards(typed: Kind) -> None:
    storage = typed.make(None)
    row, columns = typed.row(0), typed.columns(1, 2)
    storage.put(row)
    storage.put_many(columns, 0, 2)
    row[1][:] = 99
    columns[0][:] = 99
    columns[1][:] = 99
    assert sorted(leaving(typed, storage)) == [0, 1, 2]


def test_what_came_out_can_be_changed(typed: Kind, way: str) -> None:
    storage = typed.make(None)
    storage.put(typed.row(0))
    storage.put_many(ready(storage, typed.columns(1, 2, 3, 4), way), 0, 4)
    for array in storage.pull(2)[:2]:
        assert array.flags.writeable
        array[:] = 99
    storage.take()[1][:] = 99
    assert len(leaving(typed, storage)) == 2


def test_plain_rows_are_kept_as_they_are(kind: Kind) -> None:
    if kind.typed:
        return
    storage = kind.make(None)
    row = kind.row(1)
    storage.put(row)
    assert storage.take() is row
    storage.put_many([row], 0, 1)
    assert storage.pull(1)[0] is row


@pytest.mark.slow(but=("unbounded-copied-take", "unbounded-filled-restore"))
@pytest.mark.parametrize("leave", ["take", "pull", "hold", "hold_one", "restore"])
def test_what_has_left_is_not_kept_alive(
    kind: Kind, capacity: int | None, way: str, leave: str
) -> None:
    storage = kind.make(capacity)
    row = kind.row(0)
    watch = weakref.ref(row[2])
    storage.put(row)
    columns = kind.columns(1, 2, 3)
    watches = [watch, *map(weakref.ref, (kind_token(kind, columns, i) for i in range(3)))]
    storage.put_many(ready(storage, columns, way), 0, 3)
    del row, columns
    if leave == "take":
        for _ in range(4):
            storage.take()
    elif leave == "pull":
        storage.pull(4)
    elif leave == "hold_one":
        for _ in range(4):
            claimed = Held()
            storage.hold_one(claimed)
            storage.free(claimed)
        del claimed
    else:
        claimed = held(storage, 4)
        if leave == "restore":
            storage.restore(claimed)
            claimed = held(storage, 4)
        storage.columns(claimed)
        storage.free(claimed)
    gc.collect()
    assert storage.size == 0
    assert [watch() for watch in watches] == [None] * 4


def kind_token(kind: Kind, columns: Columns, index: int) -> Token:
    token: Token = columns[2][index] if kind.typed else columns[index][2]
    return token


# Failures.


def test_a_row_that_does_not_fit_changes_nothing(typed: Kind, capacity: int | None) -> None:
    storage = filled(typed, 2, capacity)
    with pytest.raises(ValueError, match="broadcast"):
        storage.put((2, np.zeros(3, np.float32), Token()))
    assert storage.size == 2
    storage.put(typed.row(2))
    assert sorted(leaving(typed, storage)) == [0, 1, 2]


def test_a_batch_that_does_not_fit_changes_nothing(typed: Kind, capacity: int | None) -> None:
    storage = filled(typed, 2, capacity)
    numbers, _, tokens = typed.columns(2, 3)
    with pytest.raises(ValueError, match="broadcast"):
        storage.put_many([numbers, np.zeros((2, 3), np.float32), tokens], 0, 2)
    assert storage.size == 2
    storage.put_many(typed.columns(2, 3), 0, 2)
    assert sorted(leaving(typed, storage)) == [0, 1, 2, 3]


def test_arrays_that_do_not_fit_leave_every_row(typed: Kind) -> None:
    storage = filled(typed, 4)
    numbers, _, tokens = typed.columns(0, 0, 0)
    for wrong in (np.zeros((3, 5), np.float32), np.zeros((2, 2), np.float32)):
        with pytest.raises(ValueError, match=r"broadcast|does not match"):
            storage.pull(3, [numbers, wrong, tokens])
        assert storage.size == 4
    assert sorted(leaving(typed, storage)) == [0, 1, 2, 3]


def test_a_wrapped_batch_that_cannot_be_cast_loses_no_row(typed: Kind) -> None:
    """NumPy may be set to refuse a float64 beyond float32: then the enqueue fails."""
    storage = filled(typed, 2)
    numbers, _, tokens = typed.columns(2, 3)
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        ready(storage, [numbers, np.full((2, 2), 1e300), tokens], "wrapped")
    assert storage.size == 2
    assert sorted(storage.pull(2)[0].tolist()) == [0, 1]


# What suits which elements.


@pytest.mark.parametrize(
    ("spec", "fifo", "shelf"),
    [
        (ObjectSpec(), ObjectStorage, ObjectShelf),
        (ElementSpec(["int32"], [(2,)]), BlockStorage, TypedShelf),
        (ElementSpec(["int32"], [(None,)], ragged=True), PaddedStorage, ObjectShelf),
        (ElementSpec(["int32"], [(2,)], ragged=True), BlockStorage, TypedShelf),
        (ElementSpec(["int32"]), ObjectStorage, ObjectShelf),
    ],
)
def test_the_storage_suits_the_elements(spec: Any, fifo: type, shelf: type) -> None:
    assert type(fifo_storage(spec, 3)) is fifo
    assert type(shelf_for(spec, 3)) is shelf


# Padding.


def test_batches_are_padded_to_their_largest_row() -> None:
    storage = PaddedStorage(RAGGED)
    for number, floats in ((1, [1.0]), (2, []), (3, [2.0, 3.0])):
        storage.put((number, np.array(floats, np.float32), None))
    numbers, padded, tokens = storage.columns(held(storage, 3))
    assert (numbers.dtype, numbers.tolist()) == (np.int64, [1, 2, 3])
    assert (padded.dtype, padded.tolist()) == (np.float32, [[1, 0], [0, 0], [2, 3]])
    assert tokens.tolist() == [None, None, None]


@pytest.mark.parametrize(
    ("dtype", "fill"), [("int8", 0), ("bool", False), (str, ""), (bytes, b""), ("float64", 0.0)]
)
def test_padding_is_empty(dtype: Any, fill: Any) -> None:
    component = Component("0", dtype, (None, 2))
    value = np.zeros((1, 2), component.dtype)
    value[:] = fill
    storage = PaddedStorage((component,))
    empty = np.zeros((3, 2), component.dtype)[:0]
    storage.put_many([(value,), (empty,)], 0, 2)
    (batch,) = storage.columns(held(storage, 2))
    assert batch.shape == (2, 1, 2)
    assert batch[1].tolist() == [[fill, fill]]
    assert batch.dtype == component.dtype


def test_no_rows_are_padded_to_nothing() -> None:
    (batch,) = PaddedStorage((Component("0", "int8", (None, 3)),)).empty()
    assert batch.shape == (0, 0, 3)


@pytest.mark.parametrize("kind", ["fifo", "heap", "fifo with sizes", "heap with sizes"])
def test_any_object_can_be_dropped_at_any_place(kind: str) -> None:
    """Random moves beside a sorted list, which is what each of these storages is."""
    spec = PriorityObjectSpec() if "heap" in kind else ObjectSpec()
    make = heap_storage if "heap" in kind else fifo_storage
    rng = random.Random(kind)
    for _ in range(40):
        storage: Any = make(spec, None, 10**6 if "sizes" in kind else None)
        inside: list[tuple[int, int, bytes]] = []
        claimed: list[tuple[Held, list[tuple[int, int, bytes]]]] = []
        for number in range(60):
            move = rng.choice(["put", "put", "drop", "hold", "restore"])
            if move == "put":
                priority, value = rng.randrange(3) if "heap" in kind else 0, bytes(rng.randrange(9))
                value = bytes(bytearray(value) + b"x" * number)  # an object of its own
                row = (priority, value) if "heap" in kind else value
                storage.put(storage.weighed(row) if "sizes" in kind else row)
                inside.append((priority, number, value))
                inside.sort()
            elif move == "drop":
                held = [one for _, rows in claimed for one in rows]
                chosen = rng.choice(inside + held + [(0, -1, b"of nobody")])
                assert storage.drop(chosen[2]) is (chosen in inside)
                if chosen in inside:
                    inside.remove(chosen)
            elif move == "hold" and inside:
                claim, n = Held(), rng.randrange(1, len(inside) + 1)
                storage.hold(claim, n)
                claimed.append((claim, inside[:n]))
                del inside[:n]
            elif move == "restore" and claimed:
                claim, rows = claimed.pop(rng.randrange(len(claimed)))
                storage.restore(claim)
                inside = sorted([*inside, *rows])
            assert storage.size == len(inside)
            if "sizes" in kind:
                extra = 8 if "heap" in kind else 0
                assert storage.weight == sum(len(value) + extra for _, _, value in inside)
        claim = Held()
        storage.hold(claim, len(inside))
        rows = storage.columns(claim)
        assert [row[1] if "heap" in kind else row for row in rows] == [row[2] for row in inside]
