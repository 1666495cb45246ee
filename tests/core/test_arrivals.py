"""Rows that threads write without the lock: no order of their steps keeps one from a consumer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aioqueue.core.attempts import Put, Take
from aioqueue.core.elements.element_spec import ElementSpec
from aioqueue.core.machine import Machine
from aioqueue.core.storage.blocks import BlockStorage
from aioqueue.core.storage.columns import RowPacking
from aioqueue.system.locks import machine_lock

MOST = 4
"""The rows that may wait to enter together."""


class Sleeper:
    """A waker that counts the notifications."""

    two_step = False

    def __init__(self) -> None:
        self.notified: list[Any] = []
        self.notify = self.notified.append


def machine_of(capacity: int | None = 100, keep: int = 0) -> Machine:
    spec = ElementSpec(["int64"], [()])
    storage = BlockStorage(spec.components, capacity)
    return Machine(storage, machine_lock(), capacity=capacity, keep=keep)


class Writer:
    """Writes rows in steps. Another thread may come between any two."""

    def __init__(self, machine: Machine, rows: list[int]) -> None:
        packing = RowPacking(ElementSpec(["int64"], [()]).components, MOST)
        self.machine, self.rows = machine, rows
        self.arrivals = machine.prepare_arrivals(packing.joined, packing.most)
        self.rest: list[int] = []  # rows for which there was no room
        machine.open_arrivals(self)

    def steps(self) -> Iterator[None]:
        arrivals = self.arrivals
        for row in self.rows:
            arrivals.rows.append((row,))
            yield
            count = len(arrivals.rows)
            yield
            if count >= arrivals.limit:
                self.collect()
            yield

    def collect(self) -> None:
        _, rest = self.machine.collect()
        self.rest += [row for (row,) in rest]


def orders(*lengths: int) -> Iterator[tuple[int, ...]]:
    """Yield all orders in which that many steps of each may come."""
    if not any(lengths):
        yield ()
    for index, length in enumerate(lengths):
        if length:
            left = list(lengths)
            left[index] -= 1
            for rest in orders(*left):
                yield (index, *rest)


def taken(take: Take, machine: Machine) -> list[int]:
    if take.single:
        return [int(take.held.single[0])]
    return [int(row) for row in machine.storage.columns(take.held)[0]]


@pytest.mark.slow(but="every 201")
@pytest.mark.parametrize("every", [1, 201], ids="every {}".format)
@pytest.mark.parametrize(
    ("n", "single"), [(1, False), (2, False), (3, False), (4, False), (1, True)]
)
def test_a_dequeue_has_its_rows_when_they_are_written(n: int, single: bool, every: int) -> None:
    """Two writers of two rows each, and a dequeue that begins between any of their steps."""
    for order in itertools.islice(orders(6, 6), 0, None, every):
        for at in range(13):
            machine = machine_of()
            writers = [Writer(machine, [1, 2]), Writer(machine, [3, 4])]
            steps = [writer.steps() for writer in writers]
            take = Take(n, single)
            for place, index in enumerate(order):
                if place == at:
                    machine.begin(take, Sleeper())  # type: ignore[arg-type]
                next(steps[index], None)
                if take.host is not None and take.is_pending:
                    # A writer has appended its row, and is about to read the limit.
                    rows = len(machine.arrivals.rows)
                    is_between = rows >= machine.arrivals.limit
                    assert machine._enqueued + rows < n or is_between
            if at == 12:
                machine.begin(take, Sleeper())  # type: ignore[arg-type]
            assert not take.is_pending, (order, at)
            found = taken(take, machine)
            assert len(found) == n
            for writer in writers:
                writer.collect()
            rest = [machine.try_dequeue() for _ in range(4 - n)]
            assert sorted([*found, *(int(row[0]) for row in rest)]) == [1, 2, 3, 4]


def write(writer: Writer) -> None:
    for _ in writer.steps():
        pass


def sizes(machine: Machine) -> tuple[int, int]:
    return machine.size, machine.statistics().enqueued


class TestMoves:
    """Each move takes in what has arrived."""

    @pytest.fixture
    def machine(self) -> Machine:
        return machine_of()

    @pytest.fixture
    def writer(self, machine: Machine) -> Writer:
        writer = Writer(machine, [1, 2])
        write(writer)
        assert machine.storage.size == 0
        return writer

    @pytest.mark.parametrize(
        "move",
        [
            lambda machine: machine.size,
            lambda machine: machine.weight,
            lambda machine: machine.statistics(),
            lambda machine: machine.close(),
            lambda machine: machine.resize(50),
            lambda machine: machine.begin(Put((7,)), None),
            lambda machine: machine.begin(Take(2), None),
            lambda machine: machine.begin(Take(9), None),
        ],
    )
    def test_it_does(
        self, machine: Machine, writer: Writer, move: Callable[[Machine], Any]
    ) -> None:
        move(machine)
        assert machine.arrivals.rows == []
        assert machine._enqueued >= 2

    def test_a_task_does_not_stand_by(self, machine: Machine, writer: Writer) -> None:
        assert not machine.stand_by(Take(1, True), Sleeper())  # type: ignore[arg-type]

    def test_a_dequeue_at_its_deadline(self, machine: Machine, writer: Writer) -> None:
        take = Take(3, up_to=True)
        machine.begin(take, Sleeper())  # type: ignore[arg-type]
        assert take.is_pending
        machine.expire(take)
        assert taken(take, machine) == [1, 2]


class TestRoom:
    def test_no_more_than_fit(self) -> None:
        machine = machine_of(2)
        writer = Writer(machine, [1, 2, 3])
        write(writer)
        assert sizes(machine) == (2, 2)
        assert writer.rest == [3]

    def test_a_waiting_enqueue_goes_first(self) -> None:
        machine = machine_of(1)
        machine.try_enqueue((0,))
        machine.begin(Put((1,)), Sleeper())  # type: ignore[arg-type]
        writer = Writer(machine, [2])
        write(writer)
        assert writer.rest == [2]

    def test_not_into_a_closed_queue(self) -> None:
        machine = machine_of()
        writer = Writer(machine, [1])
        machine.close()
        write(writer)
        assert writer.rest == [1]
        assert sizes(machine) == (0, 0)

    def test_the_fast_path_ends_before_both_could_complete_a_batch(self) -> None:
        machine = machine_of()
        writer = Writer(machine, [1, 2])
        take = Take(5)
        machine.begin(take, Sleeper())  # type: ignore[arg-type]
        write(writer)
        for row in range(3):
            if not machine.try_enqueue((row,)):
                machine.begin(Put((row,)), None)
        assert not take.is_pending

    def test_a_closed_writer_bounds_nothing(self) -> None:
        machine = machine_of()
        writer = Writer(machine, [])
        machine.close_arrivals(writer)
        take = Take(5)
        machine.begin(take, Sleeper())  # type: ignore[arg-type]
        assert machine._bound_in == 4

    def test_rows_that_must_remain(self) -> None:
        machine = machine_of(keep=2)
        writer = Writer(machine, [1, 2, 3])
        take = Take(1, True)
        machine.begin(take, Sleeper())  # type: ignore[arg-type]
        write(writer)
        assert not take.is_pending
