"""Who needs what: blocks and slots are counted exactly, whatever is done to a storage.

Seeded programs of all that a machine may do to a storage: rows and batches go in, whole or in part,
copied, wrapped or discarded; they leave for good, or into hands from which they come back in any
order. After each step everything is counted: every block is needed by just those who use it and
spare if nobody does, every slot is free or in one place, and the rows are those that went in.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from aioqueue.core.attempts import Put, PutMany, Take
from aioqueue.core.elements.component import Component
from aioqueue.core.elements.spec import Columns
from aioqueue.core.machine import Machine
from aioqueue.core.storage import blocks
from aioqueue.core.storage.blocks import BlockStorage
from aioqueue.core.storage.columns import allocate
from aioqueue.core.storage.heap import HeapStorage
from aioqueue.core.storage.protocol import Held, Storage
from aioqueue.core.storage.shelf import HeldBatch
from aioqueue.core.storage.shuffle import ShuffleStorage
from aioqueue.core.storage.typed_shelf import TypedShelf
from aioqueue.errors import OutOfRangeError
from aioqueue.system.locks import OwnedLock
from tests.kit.invariants import violations
from tests.kit.striking import interrupted_everywhere

NUMBERS = (Component("number", "int64", ()), Component("pair", "float32", (2,)))
TOKENS = (*NUMBERS, Component("token", object, ()))
STEPS = 400


def row_of(components: tuple[Component, ...], number: int) -> tuple[Any, ...]:
    row = (np.int64(number), np.full(2, number % 1000, np.float32), [number])
    return row[: len(components)]


def columns_of(components: tuple[Component, ...], numbers: list[int]) -> Columns:
    tokens = np.empty(len(numbers), object)
    tokens[:] = [[number] for number in numbers]
    pairs = np.repeat(np.array(numbers, np.float32) % 1000, 2).reshape(-1, 2)
    return [np.array(numbers, np.int64), pairs, tokens][: len(components)]


def disguised(columns: Columns, way: int) -> Columns:
    """The same values in arrays that cannot be used just as they are."""
    if way == 1:  # every other row of a larger array
        return [np.repeat(column, 2, axis=0)[::2] for column in columns]
    if way == 2:  # of dtypes that are to be cast
        wider = [np.dtype(">i4"), np.dtype(">f8"), np.dtype(object)]
        return [column.astype(dtype) for column, dtype in zip(columns, wider, strict=False)]
    if way == 3:
        for column in columns:
            column.flags.writeable = False
    return columns


def numbers_of(columns: Columns) -> list[int]:
    """Which rows these are; checks that the components of each belong together."""
    numbers: list[int] = columns[0].tolist()
    assert columns[1].tolist() == [[number % 1000] * 2 for number in numbers]
    if len(columns) > 2:
        assert columns[2].tolist() == [[number] for number in numbers]
    return numbers


class Program:
    """One storage, everything that is out of it, and what to do next."""

    def __init__(
        self, storage: Storage, components: tuple[Component, ...], rng: random.Random
    ) -> None:
        self.storage: Any = storage
        self.is_shared = isinstance(storage, BlockStorage) and storage._make_shared is not None
        self.components = components
        self.rng = rng
        self.next = 0
        self.inside: set[int] = set()
        self.arrivals: dict[int, int] = {}  # of every row that ever went in
        self.batches: list[tuple[Any, list[int]]] = []  # made ready, and not begun to go in
        self.entering: tuple[Any, list[int], int] | None = None  # in as far as some row
        self.claimed: list[tuple[Held, list[int]]] = []

    def fresh(self, n: int) -> list[int]:
        numbers = list(range(self.next, self.next + n))
        self.next += n
        return numbers

    def some(self) -> int:
        return self.rng.choice((1, 2, 3, 5, 8, 13))

    def step(self) -> None:
        names = [name for name in dir(self) if name.startswith("do_")]
        getattr(self, self.rng.choice(names))()

    # In.

    def do_put(self) -> None:
        if self.entering is None:
            [number] = self.fresh(1)
            row: Any = row_of(self.components, number)
            if self.is_shared and self.rng.random() < 0.5:
                reserved = self.storage.reserve(1)
                row = self.storage.block_of(reserved, row)
            put = self.storage.put_shared if self.is_shared else self.storage.put
            put(row)
            self.entered([number])

    def do_put_many(self) -> None:
        if self.entering is None:
            numbers = self.fresh(self.some() + 2)
            start, stop = sorted(self.rng.sample(range(len(numbers) + 1), 2))
            self.storage.put_many(columns_of(self.components, numbers), start, stop)
            self.entered(numbers[start:stop])

    def do_fill(self) -> None:
        numbers = self.fresh(self.some())
        columns = disguised(columns_of(self.components, numbers), self.rng.randrange(4))
        reserved = self.storage.reserve(len(numbers))
        if self.rng.random() < 0.1:
            if reserved is not None:  # the copy has failed
                self.storage.discard(reserved, 0)
            return
        self.batches.append((self.storage.fill(reserved, columns, len(numbers)), numbers))

    def do_wrap(self) -> None:
        numbers = self.fresh(self.some())
        columns = disguised(columns_of(self.components, numbers), self.rng.randrange(4))
        self.batches.append((self.storage.wrap(columns, len(numbers)), numbers))

    def do_enter(self) -> None:
        """Some more of a batch, as there is room."""
        if self.entering is None:
            if not self.batches:
                return
            batch, numbers = self.batches.pop(self.rng.randrange(len(self.batches)))
            self.entering = (batch, numbers, 0)
        batch, numbers, done = self.entering
        stop = self.rng.randint(done + 1, len(numbers))
        self.storage.put_many(batch, done, stop)
        self.entered(numbers[done:stop])
        self.entering = (batch, numbers, stop) if stop < len(numbers) else None

    def do_discard(self) -> None:
        if self.entering is not None:
            batch, _, done = self.entering
            self.storage.discard(batch, done)
            self.entering = None
        elif self.batches:
            batch, _ = self.batches.pop()
            self.storage.discard(batch, 0)

    def do_expect(self) -> None:
        self.storage.expect(self.storage.size + self.some())

    # Out.

    def do_take(self) -> None:
        if not self.storage.returned and len(self.storage):
            self.left([int(self.storage.take()[0])])

    def do_pull(self) -> None:
        if not self.storage.returned:
            n = min(self.some(), len(self.storage))
            out = columns_of(self.components, [0] * n) if self.rng.random() < 0.5 else None
            self.left(numbers_of(self.storage.pull(n, out)))

    def do_claim(self) -> None:
        if self.storage.eager:
            self.storage.claim(min(self.some(), self.storage.size))

    def do_hold(self) -> None:
        n = min(self.some(), self.storage.size)
        if n:
            out = columns_of(self.components, [0] * n) if self.rng.random() < 0.3 else None
            held = Held(out)
            self.storage.hold(held, n)
            numbers = self.seen(held)
            self.claimed.append((held, numbers))
            self.left(numbers)

    def do_hold_one(self) -> None:
        if self.storage.size:
            held = Held()
            held.in_place = self.is_shared and self.rng.random() < 0.5
            self.storage.hold_one(held)
            row = self.storage.row(held) if held.in_place else held.single
            self.claimed.append((held, [int(row[0])]))
            self.left([int(row[0])])

    def do_end_claim(self) -> None:
        """A caller has what it wanted; or it is cancelled, before or after it has copied that."""
        if not self.claimed:
            return
        held, numbers = self.claimed.pop(self.rng.randrange(len(self.claimed)))
        chance = self.rng.random()
        if held.parts and chance < 0.8:
            assert numbers_of(self.storage.columns(held)) == numbers
        if held.parts and chance < 0.6:
            self.storage.free(held)
        elif held.parts or chance < 0.5:
            self.storage.restore(held)
            self.inside.update(numbers)

    do_end_claim_too = do_end_claim
    do_end_claim_again = do_end_claim

    def do_release(self) -> None:
        self.storage.release(Held())

    def seen(self, held: Held) -> list[int]:
        """Which rows are held; reading them changes nothing."""
        if isinstance(self.storage, BlockStorage):
            parts = [part.block[0][part.start : part.stop].tolist() for part in held.parts]
            return [number for part in parts for number in part]
        copy = Held()
        copy.parts, copy.count = held.parts, held.count
        return numbers_of(self.storage.columns(copy))

    def entered(self, numbers: list[int]) -> None:
        for number in numbers:
            self.arrivals[number] = len(self.arrivals)
        self.inside.update(numbers)

    def left(self, numbers: list[int]) -> None:
        assert self.inside.issuperset(numbers)
        assert len(set(numbers)) == len(numbers)
        self.inside.difference_update(numbers)

    def check(self) -> None:
        assert self.storage.size == len(self.inside)
        if isinstance(self.storage, BlockStorage):
            check_blocks(self, self.storage)
        else:
            check_slots(self, self.storage)

    def empty(self) -> None:
        """Everything leaves: nothing is needed any more."""
        while self.batches or self.entering:
            self.do_discard()
        while self.claimed:
            self.do_end_claim()
        while self.storage.size:
            self.do_hold()
            self.do_end_claim()
        self.check()


def check_blocks(program: Program, storage: Any) -> None:
    needed: Counter[int] = Counter()
    line = list(storage._segments)
    segments = [*line, *(part for held, _ in program.claimed for part in held.parts)]
    rows: set[tuple[int, int]] = set()
    for segment in segments:
        needed[id(segment.block)] += 1
        of_it = {(id(segment.block), row) for row in range(segment.start, segment.stop)}
        assert not of_it & rows, "two segments have the same row"
        rows |= of_it
        assert segment.stop <= segment.block.rows
    batches = [batch for batch, _ in program.batches]
    batches += [program.entering[0]] if program.entering else []
    needed.update(map(id, batches))
    known = [segment.block for segment in segments] + batches
    if storage._next_slot is not None:
        block, start = storage._next_slot
        needed[id(block)] += 1
        known.append(block)
        assert not {(id(block), row) for row in range(start, block.rows)} & rows
    for block in known:
        assert block.uses == needed[id(block)]
    spares = list(storage._spares)
    assert len(set(map(id, spares))) == len(spares)
    assert all(block.uses == 0 and block.is_private and not needed[id(block)] for block in spares)
    assert storage._spare_rows == sum(block.rows for block in spares) <= storage._most_spare_rows
    assert len(storage) == sum(segment.stop - segment.start for segment in line)
    assert all(segment.stop > segment.start for segment in line if segment is not storage._tail)
    assert storage._tail is storage._no_tail or storage._tail is line[-1]
    order = [segment.origin + segment.start for segment in line]
    assert order == sorted(order)
    values = [number for s in line for number in s.block[0][s.start : s.stop].tolist()]
    assert values == sorted(program.inside, key=program.arrivals.__getitem__)


def check_slots(program: Program, storage: Any) -> None:
    shelf = storage._shelf
    places = [*shelf._free, *storage, *(entry for _, entry in storage.returned)]
    for held, _ in program.claimed:
        places += held.parts
    for batch, _ in program.batches:
        places += batch
    if program.entering is not None:
        batch, _, done = program.entering
        places += batch[done:]
    assert all(isinstance(batch, HeldBatch) for batch, _ in program.batches)
    slots = [place for place in places if isinstance(place, int)]
    assert sorted(slots) == list(range(shelf._first_unused)), "a slot is in no place, or in two"


def shared_blocks(components: tuple[Component, ...], n: int | None) -> Storage:
    """A storage whose blocks other processes read, as long as there is room."""
    rooms = iter([True, True, False] * STEPS)
    storage = BlockStorage(components, n)
    storage.put(row_of(components, 0))
    storage.take()
    has_room = components is NUMBERS
    storage.share_blocks(
        lambda rows: (allocate(components, rows), object()) if next(rooms) and has_room else None
    )
    return storage


MAKERS: list[tuple[str, Callable[[tuple[Component, ...], int | None], Storage]]] = [
    ("blocks", BlockStorage),
    ("shared blocks", shared_blocks),
    ("heap", lambda components, n: HeapStorage(TypedShelf(components, n), typed=True)),
    ("shuffle", lambda components, n: ShuffleStorage(TypedShelf(components, n), (1, 2))),
    (
        "shuffle once",
        lambda components, n: ShuffleStorage(TypedShelf(components, n), (1, 2), redraws=False),
    ),
]


@pytest.mark.slow("blocks-numbers-5")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("components", [NUMBERS, TOKENS], ids=["numbers", "tokens"])
@pytest.mark.parametrize(("name", "make"), MAKERS, ids=[name for name, _ in MAKERS])
def test_everything_is_counted(
    name: str,
    make: Callable[[tuple[Component, ...], int | None], Storage],
    components: tuple[Component, ...],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "LARGE_BYTES", 40)  # so that a few rows are a large batch
    rng = random.Random(seed)
    program = Program(make(components, rng.choice((4, 16, None))), components, rng)
    for _ in range(STEPS):
        program.step()
        program.check()
    program.empty()


class Interrupted:
    """A machine over a storage in the middle of some work, and a move that is interrupted."""

    def __init__(self, make: Callable[..., Storage], components: tuple[Component, ...]) -> None:
        self.components = components
        self.storage: Any = make(components, 40)
        self.machine = Machine(self.storage, cast(OwnedLock, threading.RLock()), capacity=40)
        self.sent: set[int] = set()

    def row(self, number: int) -> Any:
        self.sent.add(number)
        return row_of(self.components, number)

    def batch(self, *numbers: int, way: str = "copied") -> Columns:
        self.sent.update(numbers)
        columns = columns_of(self.components, list(numbers))
        if way == "wrapped":
            return cast(Columns, self.storage.wrap(columns, len(numbers)))
        if way == "filled":
            reserved = self.storage.reserve(len(numbers))
            return cast(Columns, self.storage.fill(reserved, columns, len(numbers)))
        return columns

    def put(self, *numbers: int, way: str = "copied") -> None:
        self.machine.begin(PutMany(self.batch(*numbers, way=way), len(numbers)), Waker())

    def fill(self) -> None:
        """Rows of several segments, of which some are back."""
        self.put(0, 1, 2)
        self.put(*range(3, 8), way="wrapped")
        self.put(*range(8, 24), way="filled")
        self.machine.begin(Put(self.row(24)), Waker())

    def wait_for(self, n: int, *, single: bool = False) -> Take:
        take = Take(n, single=single)
        self.machine.begin(take, Waker())
        return take

    def numbers(self, take: Take) -> list[int]:
        if take.single:
            return [int(take.held.single[0])]
        columns = self.storage.columns(take.held)
        self.storage.free(take.held)
        return numbers_of(columns)

    def drained(self) -> list[int]:
        """Everything that is left, by ones and by threes; no row of it is damaged."""
        self.machine.close(cancel_pending_enqueues=True)
        broken = violations(self.machine)
        # Whether what has been struck is counted, nobody can tell.
        assert [one for one in broken if "counts" not in one] == []
        numbers: list[int] = []
        for turn in range(100):
            take = Take(3, up_to=True) if turn % 2 else Take(1, single=True)
            self.machine.begin(take, Waker())
            if take.error is not None:
                assert isinstance(take.error, OutOfRangeError)
                return numbers
            numbers += self.numbers(take)
        raise AssertionError("it never ends")

    def check(self, moving: int, waiting: Take | None = None) -> None:
        """At most the moving rows are lost or duplicated, and waiting callers have their rows."""
        number = 1000
        while waiting is not None and waiting.is_pending:
            assert number < 1020, "somebody waits for ever"
            self.machine.begin(Put(self.row(number)), Waker())
            number += 1
        got = []
        if waiting is not None:
            assert waiting.error is None
            assert waiting.held.count == waiting.n
            got += self.numbers(waiting)
        got += self.drained()
        assert self.machine.size == len(self.storage) == 0
        counts = Counter(got)
        assert set(counts) <= self.sent
        assert len(self.sent - set(counts)) <= moving
        assert counts.total() - len(counts) <= moving


class Waker:
    """Where nobody sleeps."""

    def __init__(self, *, two_step: bool = False) -> None:
        self.two_step = two_step

    def notify(self, attempt: object, /) -> None:
        """The test looks for itself."""

    def wake(self, *, from_anywhere: bool = False) -> tuple[Any, ...]:
        """Nobody sleeps here."""
        return ()

    def is_dead(self) -> bool:
        return False


Case = tuple[Callable[[], Any], Callable[[], None]]


def one_goes_in(interrupted: Interrupted) -> Case:
    interrupted.fill()
    row = interrupted.row(30)
    return lambda: interrupted.machine.try_enqueue(row), lambda: interrupted.check(1)


def a_batch_goes_in(interrupted: Interrupted, way: str) -> Case:
    interrupted.fill()
    columns = interrupted.batch(*range(30, 40), way=way)
    return lambda: interrupted.machine.try_enqueue_many(columns, 10), lambda: interrupted.check(10)


def one_leaves(interrupted: Interrupted) -> Case:
    interrupted.fill()
    return interrupted.machine.try_dequeue, lambda: interrupted.check(1)


def a_batch_leaves(interrupted: Interrupted, n: int) -> Case:
    interrupted.fill()
    return lambda: interrupted.machine.try_dequeue_many(n), lambda: interrupted.check(n)


def claim_batch(interrupted: Interrupted, *, back: int) -> Case:
    interrupted.fill()
    if back:
        waker = Waker(two_step=True)
        takes = [Take(back), Take(1, single=True)]
        for take in takes:
            interrupted.machine.begin(take, waker)
        for take in takes:
            interrupted.machine.withdraw(take)
    return lambda: interrupted.machine.begin(Take(9), Waker()), lambda: interrupted.check(9)


def claim_restored_row(interrupted: Interrupted) -> Case:
    call, _ = claim_batch(interrupted, back=7)
    del call
    take = Take(1, single=True)
    return lambda: interrupted.machine.begin(take, Waker()), lambda: interrupted.check(1)


def one_wakes_another(interrupted: Interrupted, n: int, *, single: bool = False) -> Case:
    """The enqueue of the last row moves the batch for its owner: all of its rows, or none."""
    take = interrupted.wait_for(n, single=single)
    if n > 1:
        interrupted.fill()
        for number in range(25, n - 1):
            interrupted.machine.begin(Put(interrupted.row(number)), Waker())
    row = interrupted.row(100)
    return lambda: interrupted.machine.begin(Put(row), Waker()), lambda: interrupted.check(1, take)


def one_makes_room(interrupted: Interrupted, way: str) -> Case:
    """A call that takes a row out moves the rows of a batch that waits for room."""
    interrupted.fill()
    columns = interrupted.batch(*range(100, 130), way=way)
    interrupted.machine.begin(PutMany(columns, 30), Waker())
    interrupted.sent -= set(range(115, 130))  # these may come in, or not
    interrupted.sent |= {115}
    take = Take(1, single=True)
    return lambda: interrupted.machine.begin(take, Waker()), lambda: interrupted.check(2)


CASES: dict[str, Callable[[Interrupted], Case]] = {
    "one goes in": one_goes_in,
    "a copied batch goes in": lambda interrupted: a_batch_goes_in(interrupted, "copied"),
    "a filled batch goes in": lambda interrupted: a_batch_goes_in(interrupted, "filled"),
    "a wrapped batch goes in": lambda interrupted: a_batch_goes_in(interrupted, "wrapped"),
    "one leaves": one_leaves,
    "a few leave": lambda interrupted: a_batch_leaves(interrupted, 2),
    "many leave": lambda interrupted: a_batch_leaves(interrupted, 18),
    "a batch goes into hands": lambda interrupted: claim_batch(interrupted, back=0),
    "a batch goes into hands, some of it back": lambda interrupted: claim_batch(
        interrupted, back=3
    ),
    "one that is back goes into hands": claim_restored_row,
    "one wakes another": lambda interrupted: one_wakes_another(interrupted, 1, single=True),
    "one wakes a batch": lambda interrupted: one_wakes_another(interrupted, 28),
    "one makes room for a copied batch": lambda interrupted: one_makes_room(interrupted, "copied"),
    "one makes room for a filled batch": lambda interrupted: one_makes_room(interrupted, "filled"),
    "one makes room for a wrapped batch": lambda interrupted: one_makes_room(
        interrupted, "wrapped"
    ),
}


@pytest.mark.slow("heap", "shuffle")
@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces this run")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("components", [TOKENS], ids=["tokens"])
@pytest.mark.parametrize(("name", "make"), MAKERS[:4], ids=[name for name, _ in MAKERS[:4]])
def test_a_handler_raises_somewhere_in_a_move(
    name: str,
    make: Callable[[tuple[Component, ...], int | None], Storage],
    components: tuple[Component, ...],
    case: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever it raises: the rest is unchanged, and waiting callers get what they asked for."""
    monkeypatch.setattr(blocks, "LARGE_BYTES", 40)
    assert interrupted_everywhere(lambda: CASES[case](Interrupted(make, components))) > 3
