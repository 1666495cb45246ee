"""The machine in every state that a few callers can bring it to; see `proofs.explorer`.

These worlds are small enough for every run of the suite. Larger ones are a command away::

    python -m proofs.explorer --producers 3 --consumers 3 --operations 1 --capacity 3
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from aioqueue.core.attempts import (
    Attempt,
    AttemptState,
    Put,
    PutMany,
    QueueState,
    Statistics,
    Take,
    Waker,
)
from aioqueue.core.machine import Machine
from proofs.explorer import Setting, ViolationError, explore
from proofs.explorer.__main__ import main
from proofs.explorer.model import LEASES, NOWAIT, PUTS, TAKES, WEIGHTY_PUTS
from proofs.explorer.world import Event, World

ANY_NUMBER = 99

WORLDS = [
    # One caller on each side, two operations each, withdrawn and closed as often as can be.
    (Setting("A", "A", 2, 1, withdrawals=ANY_NUMBER), 750),
    (Setting("A", "B", 2, 1, withdrawals=ANY_NUMBER), 760),
    (Setting("A", "A", 2, 2, withdrawals=ANY_NUMBER), 430),
    (Setting("A", "t", 2, 3, withdrawals=ANY_NUMBER), 340),
    (Setting("t", "A", 2, 1, withdrawals=ANY_NUMBER), 630),
    (Setting("t", "t", 2, None, withdrawals=ANY_NUMBER), 250),
    # Two on each side: in one loop, in two, in threads, and in a loop and a thread.
    (Setting("AA", "AA", 1, 1), 1440),
    (Setting("AB", "AB", 1, 2, withdrawals=1, closes=1), 1490),
    (Setting("tt", "tt", 1, 1), 1130),
    (Setting("At", "At", 1, 1, withdrawals=1, closes=1), 2520),
    # Producers that wait for each other: three of them before one consumer.
    (Setting("AAB", "A", 1, 1, withdrawals=1, closes=1, takes=("take", "take_many")), 1060),
    (Setting("AA", "A", 2, 1, withdrawals=1, closes=1, puts=("put",), takes=("take_up_to",)), 680),
    # With rows that have to stay inside, and storages of the other three temperaments.
    (Setting("A", "AA", 1, 2, keep=1), 170),
    (Setting("A", "tA", 1, 2, keep=1, storage="eager"), 270),
    (Setting("A", "A", 2, 2, keep=1, storage="eager"), 430),
    (Setting("A", "AB", 1, 2, storage="whole"), 290),
    (Setting("A", "A", 2, 1, withdrawals=ANY_NUMBER, storage="lending"), 750),
    (Setting("A", "At", 1, 1, withdrawals=1, closes=1, storage="lending"), 640),
    # Callers that cannot wait, and those that wait for the end.
    (Setting("A", "A", 2, 1, puts=(*PUTS, NOWAIT[0]), takes=(*TAKES, NOWAIT[1])), 750),
    (Setting("AA", "At", 1, 1, takes=("take", "until_closed")), 1020),
    # With a bound on bytes, and rows of one, two and four of them.
    (Setting("A", "A", 2, None, max_bytes=2, puts=WEIGHTY_PUTS), 1470),
    (Setting("A", "t", 2, 2, max_bytes=3, puts=WEIGHTY_PUTS), 1100),
    (Setting("t", "t", 2, None, max_bytes=2, puts=WEIGHTY_PUTS), 1240),
    (Setting("AB", "A", 1, None, max_bytes=3, puts=WEIGHTY_PUTS), 680),
    (
        Setting(
            *("AAt", "A", 1, 3),
            max_bytes=3,
            puts=WEIGHTY_PUTS,
            takes=("take",),
            withdrawals=1,
            closes=1,
        ),
        1490,
    ),
    (
        Setting(
            *("AA", "AA", 1, None),
            max_bytes=2,
            puts=WEIGHTY_PUTS,
            takes=("take", "take_many"),
            withdrawals=1,
            closes=1,
        ),
        950,
    ),
    (Setting("AA", "A", 1, None, max_bytes=3, puts=WEIGHTY_PUTS, storage="whole"), 460),
    (Setting("A", "tA", 1, None, keep=1, max_bytes=2, puts=WEIGHTY_PUTS, storage="eager"), 450),
    (Setting("A", "A", 2, None, keep=1, max_bytes=2, puts=WEIGHTY_PUTS, storage="eager"), 930),
    (
        Setting(
            *("A", "A", 2, None),
            max_bytes=2,
            puts=WEIGHTY_PUTS,
            storage="lending",
            withdrawals=1,
            closes=1,
        ),
        1110,
    ),
    (
        Setting(
            *("A", "A", 2, None),
            max_bytes=3,
            puts=("put", "put_heavy", "put_nowait"),
            takes=(*TAKES, "take_nowait"),
        ),
        780,
    ),
    # With consumers that are elsewhere, and may be lost for as long as they have not committed.
    (Setting("A", "A", 2, 1, takes=LEASES, withdrawals=ANY_NUMBER), 1170),
    (Setting("A", "AA", 1, 2, takes=LEASES), 210),
    (Setting("t", "At", 1, 2, takes=("take", *LEASES[1:]), closes=1), 100),
    (Setting("A", "AB", 1, 2, takes=LEASES, storage="whole"), 100),
    # With a capacity that changes.
    (Setting("A", "A", 2, 1, withdrawals=1, closes=1, resizes=1), 1150),
    (Setting("t", "t", 2, 2, withdrawals=1, closes=1, resizes=1), 1010),
    (Setting("AA", "A", 1, 1, withdrawals=1, closes=1, resizes=2), 1710),
    (Setting("A", "AB", 1, 2, withdrawals=1, closes=1, resizes=2, storage="whole"), 1000),
    (Setting("A", "A", 2, 3, keep=1, resizes=1, capacities=(2, 3), storage="eager"), 860),
    (
        Setting("A", "A", 1, 1, max_bytes=2, puts=WEIGHTY_PUTS, resizes=2),
        300,
    ),
]
IN_STANDBY = [
    # Tasks that stand by before they wait, beside each other, threads, batches and all that moves.
    (Setting("A", "A", 2, 1, withdrawals=ANY_NUMBER, has_standby=True), 1180),
    (Setting("A", "A", 2, 2, withdrawals=ANY_NUMBER, has_standby=True), 650),
    (Setting("AA", "AA", 1, 1, has_standby=True), 2590),
    (Setting("AB", "AB", 1, 2, withdrawals=1, closes=1, has_standby=True), 2860),
    (Setting("At", "At", 1, 1, withdrawals=1, closes=1, has_standby=True), 3870),
    (
        Setting(
            *("AAB", "A", 1, 1),
            withdrawals=1,
            closes=1,
            takes=("take", "take_many"),
            has_standby=True,
        ),
        1910,
    ),
    (Setting("A", "AA", 1, 2, keep=1, has_standby=True), 240),
    (Setting("A", "tA", 1, 2, keep=1, storage="eager", has_standby=True), 380),
    (Setting("A", "AB", 1, 2, storage="whole", has_standby=True), 470),
    (Setting("A", "A", 2, 1, withdrawals=1, closes=1, resizes=1, has_standby=True), 2280),
    (Setting("A", "At", 1, 1, withdrawals=1, closes=1, storage="lending", has_standby=True), 810),
    (Setting("A", "A", 2, None, max_bytes=2, puts=WEIGHTY_PUTS, has_standby=True), 1600),
    (Setting("AA", "At", 1, 1, takes=("take", "until_closed"), has_standby=True), 1730),
    (
        Setting(
            *("A", "A", 2, 1),
            puts=(*PUTS, NOWAIT[0]),
            takes=(*TAKES, NOWAIT[1]),
            has_standby=True,
        ),
        1220,
    ),
    (Setting("A", "AA", 1, 2, takes=("take", "take_leased"), has_standby=True), 160),
]

JOINS = [
    # With joins, and what ends them: the last row that is done with, a failure.
    (Setting("A", "A", 1, 1, takes=("take", "join"), dones=2, failures=1), 300),
    (Setting("A", "A", 2, 1, takes=("take", "join"), dones=2, failures=1, closes=1), 2700),
    (
        Setting(*("AA", "AB", 1, 2), takes=("take_many", "join"), dones=3, withdrawals=1, closes=1),
        2800,
    ),
    (Setting("A", "tt", 1, None, takes=("take", "join"), dones=2, failures=2, closes=0), 500),
    (Setting("t", "At", 1, 1, takes=("take_up_to", "join"), dones=2, failures=1), 2300),
    (Setting("A", "AA", 1, 2, takes=("take_leased", "join"), dones=2, failures=1), 690),
    (Setting("A", "AA", 1, 2, keep=1, takes=("take", "join"), dones=2, storage="eager"), 300),
]

QUICK = 300
"""States, at least so many: more of them take long to explore."""


@pytest.mark.slow(every=4)
@pytest.mark.parametrize(
    ("setting", "least"),
    [
        pytest.param(*world, marks=[pytest.mark.slow] if world[1] > QUICK else [])
        for world in [*WORLDS, *IN_STANDBY, *JOINS]
    ],
    ids=str,
)
def test_no_order_of_events_breaks_a_rule(setting: Setting, least: int) -> None:
    """The least number of states keeps the exploration from shrinking unnoticed."""
    result = explore(setting)
    print(f"\n{setting}: {result}")
    assert result.finished
    assert result.states >= least
    assert all(result.kinds[kind] for kind in ("begin", "resume", "withdraw"))
    assert bool(result.kinds["close"]) is bool(setting.closes)
    assert bool(result.kinds["task_done"]) is bool(setting.dones)
    assert bool(result.kinds["fail"]) is bool(setting.failures)
    kinds = [result.kinds[kind] for kind in ("enter_standby", "retry", "start")]
    assert all(kinds) if setting.has_standby else not any(kinds)


class OvertakesPlaces(Machine):
    def _may_join_places(self, attempt: Put | PutMany) -> bool:
        return True


class CommitsEarly(Machine):
    def _finish(self, attempt: Attempt, state: AttemptState, wakers: dict[Waker, None]) -> None:
        super()._finish(attempt, state, wakers)
        if attempt in self._places:
            super().commit(attempt)


class ForgetsWhatCame(Machine):
    def _disable_fast_path(self) -> None:
        self._batch_waits = False
        super()._disable_fast_path()


class LeavesTheFastPathOpen(Machine):
    def _set_bounds(self) -> None:
        super()._set_bounds()
        self._bound_in = self._capacity


class KicksNoOne(Machine):
    def _finish(self, attempt: Attempt, state: AttemptState, wakers: dict[Waker, None]) -> None:
        super()._finish(attempt, state, wakers)
        wakers.clear()


class GivesUpTooEarly(Machine):
    def _rows_for(self, attempt: Take, available: int) -> int | None:
        is_closed = self._state is QueueState.CLOSED
        return 0 if is_closed else super()._rows_for(attempt, available)


class LosesWhatWasHeld(Machine):
    def _release_rows(self, attempt: Attempt) -> None:
        if isinstance(attempt, Take):
            attempt.held.clear()


class KeepsWhatWasReserved(Machine):
    def _release_rows(self, attempt: Attempt) -> None:
        if isinstance(attempt, Take):
            super()._release_rows(attempt)


class ReleasesTooEarly(Machine):
    def commit(self, attempt: Attempt, waited: float = 0.0) -> Collection[Waker]:
        wakers = super().commit(attempt, waited)
        if isinstance(attempt, Take) and not attempt.single:
            self.storage.free(attempt.held)
        return wakers


class TakesWhatIsThereForUsed(Machine):
    """Commits what a lease has got at once, though its owner is elsewhere."""

    def _in_two_steps(self, attempt: Attempt) -> bool:
        return attempt is not self._beginning and super()._in_two_steps(attempt)


class ReportsTheEndDuringLeases(Machine):
    def _no_rows_can_return(self, attempt: Take, available: int) -> bool:
        return True


@pytest.mark.parametrize("machine", [TakesWhatIsThereForUsed, ReportsTheEndDuringLeases])
def test_mistakes_with_leases_are_found(machine: type[Machine]) -> None:
    setting = Setting("A", "AA", 1, 2, takes=LEASES, machine=machine)
    with pytest.raises(ViolationError, match="begin"):
        explore(setting)


class EndsAJoinWhenEmpty(Machine):
    """Takes an empty queue for a finished one, as users do."""

    def _join_is_over(self, attempt: Attempt, wakers: dict[Waker, None]) -> bool:
        finished, self._finished = self._finished, self._enqueued - self.storage.size
        try:
            return super()._join_is_over(attempt, wakers)
        finally:
            self._finished = finished


class ForgetsJoins(Machine):
    def _end_joins(self, wakers: dict[Waker, None]) -> None:
        pass


class WakesOneJoin(Machine):
    def _end_joins(self, wakers: dict[Waker, None]) -> None:
        joins = self._wait_lists.until_done
        if joins and self._wait_is_over(next(iter(joins)), wakers):
            joins.popitem(False)


class CountsAnyNumber(Machine):
    def task_done(self, n: int) -> Collection[Waker] | None:
        return super().task_done(min(n, self._enqueued - self._finished))


class TakesWhatComesBackForDone(Machine):
    def _release_rows(self, attempt: Attempt) -> None:
        if isinstance(attempt, Take):
            self._finished += attempt.held.count
        super()._release_rows(attempt)


class HidesWhatIsGranted(Machine):
    def statistics(self) -> Statistics:
        return replace(super().statistics(), granted=0)


@pytest.mark.parametrize(
    "machine",
    [
        EndsAJoinWhenEmpty,
        ForgetsJoins,
        WakesOneJoin,
        CountsAnyNumber,
        TakesWhatComesBackForDone,
        HidesWhatIsGranted,
    ],
)
def test_mistakes_with_joins_are_found(machine: type[Machine]) -> None:
    setting = Setting(
        *("A", "AA", 1, 1),
        takes=("take", "join"),
        dones=2,
        withdrawals=1,
        closes=0,
        machine=machine,
    )
    with pytest.raises(ViolationError, match=r"'(begin|task_done)'"):
        explore(setting)


@pytest.mark.parametrize(
    ("machine", "producers", "capacity"),
    [
        (OvertakesPlaces, "AAB", 2),
        (CommitsEarly, "AAA", 1),
        (ForgetsWhatCame, "AB", 2),
        (LeavesTheFastPathOpen, "AB", 1),
        (KicksNoOne, "AB", 1),
        (GivesUpTooEarly, "AB", 1),
        (LosesWhatWasHeld, "AB", 1),
    ],
)
def test_mistakes_are_found(machine: type[Machine], producers: str, capacity: int) -> None:
    setting = Setting(producers, "A", 1, capacity, withdrawals=1, closes=1, machine=machine)
    with pytest.raises(ViolationError, match="begin"):
        explore(setting)


class OvertakesStandby(Machine):
    def stand_by(self, attempt: Put | Take, waker: Waker) -> bool:
        bounds = self._bound_in, self._bound_out
        has_standby = super().stand_by(attempt, waker)
        self._bound_in, self._bound_out = bounds
        return has_standby


class ForgetsStandby(Machine):
    def _admit_standby(self) -> None:
        self._standby_put = self._standby_take = None


class LinesUpWithoutALook(Machine):
    """Puts standby attempts in line without checking whether they can proceed."""

    def begin(self, attempt: Attempt, waker: Waker | None) -> Collection[Waker]:
        if attempt.host is not None:
            self._leave_standby(attempt)
        self._disable_fast_path()
        self._set_bounds()
        return super().begin(attempt, waker)


class EntersStandbyBesideAnother(Machine):
    def stand_by(self, attempt: Put | Take, waker: Waker) -> bool:
        self._standby_take = None
        if isinstance(attempt, Take):
            self._set_bounds()
        return super().stand_by(attempt, waker)


class BeginsAgainWhatIsInLine(Machine):
    def begin(self, attempt: Attempt, waker: Waker | None) -> Collection[Waker]:
        attempt.waits = False
        return super().begin(attempt, waker)


class PutsInWithoutRoom(Machine):
    def retry(self, attempt: Put | Take, waited: float) -> bool:
        capacity, self._capacity = self._capacity, float("inf")
        done = super().retry(attempt, waited)
        self._capacity = capacity
        return done


@pytest.mark.parametrize(
    "machine",
    [
        OvertakesStandby,
        ForgetsStandby,
        LinesUpWithoutALook,
        EntersStandbyBesideAnother,
        BeginsAgainWhatIsInLine,
        PutsInWithoutRoom,
    ],
)
def test_standby_mistakes_are_found(machine: type[Machine]) -> None:
    setting = Setting(
        "AA",
        "AA",
        1,
        1,
        withdrawals=1,
        closes=1,
        puts=("put",),
        has_standby=True,
        machine=machine,
    )
    with pytest.raises(ViolationError, match="enter_standby"):
        explore(setting)


class IgnoresSizes(Machine):
    def _rows_within_bytes(self, attempt: Put | PutMany, n: int) -> int:
        return n


class ForgetsWhatWasPromised(Machine):
    def _rows_within_bytes(self, attempt: Put | PutMany, n: int) -> int:
        promised, self._wait_lists.promised = self._wait_lists.promised, 0
        n = super()._rows_within_bytes(attempt, n)
        self._wait_lists.promised = promised
        return n


class LetsNoHeavyRowIn(Machine):
    def _shortage(self) -> int:
        return 0


class LeavesWhatABatchLacksOutside(Machine):
    def _shortage(self) -> int:
        return min(1, 1 - self._available() - len(self._places))


@pytest.mark.slow("ForgetsWhatWasPromised-fifo")
@pytest.mark.parametrize(
    ("machine", "storage"),
    [
        (IgnoresSizes, "fifo"),
        (ForgetsWhatWasPromised, "fifo"),
        (LetsNoHeavyRowIn, "fifo"),
        (LeavesWhatABatchLacksOutside, "whole"),
        (LeavesTheFastPathOpen, "fifo"),
    ],
)
def test_mistakes_with_bytes_are_found(machine: type[Machine], storage: str) -> None:
    with pytest.raises(ViolationError, match="begin"):
        explore(
            Setting(
                *("AAA", "A", 1, None),
                max_bytes=2,
                puts=WEIGHTY_PUTS,
                storage=storage,
                withdrawals=1,
                closes=1,
                machine=machine,
            )
        )


class WakesNoWaiterWhenThereIsRoom(Machine):
    def resize(self, capacity: int | None) -> Collection[Waker]:
        self._given_capacity = capacity
        self._capacity = self._rows_that_fit()
        self._set_bounds()
        return ()


class LeavesABatchWithoutRoom(Machine):
    def _limit(self) -> float:
        return self._capacity


class NeverShrinks(Machine):
    def resize(self, capacity: int | None) -> Collection[Waker]:
        before = self._capacity
        wakers = super().resize(capacity)
        self._capacity = max(self._capacity, before)
        self._set_bounds()
        return wakers


@pytest.mark.parametrize(
    ("machine", "storage"),
    [
        (WakesNoWaiterWhenThereIsRoom, "fifo"),
        (LeavesABatchWithoutRoom, "whole"),
        (NeverShrinks, "fifo"),
    ],
)
def test_mistakes_with_another_capacity_are_found(machine: type[Machine], storage: str) -> None:
    with pytest.raises(ViolationError, match="resize"):
        explore(
            Setting(
                *("AA", "A", 1, 2),
                storage=storage,
                withdrawals=1,
                closes=1,
                resizes=2,
                machine=machine,
            )
        )


@pytest.mark.parametrize("machine", [KeepsWhatWasReserved, ReleasesTooEarly, LosesWhatWasHeld])
def test_mistakes_with_what_is_copied_are_found(machine: type[Machine]) -> None:
    with pytest.raises(ViolationError, match="begin"):
        explore(
            Setting("A", "A", 1, 1, withdrawals=1, closes=1, storage="lending", machine=machine)
        )


def test_going_back_to_a_state_brings_all_of_it_back() -> None:
    world = World(Setting("AA", "A", 2, 1))
    before: list[Event] = [("begin", 0, "put_many"), ("begin", 1, "put"), ("begin", 2, "take_many")]
    for event in before:
        world.apply(event)
    saved, digest = world.save(), world.digest()
    after: list[Event] = [("close", True), ("resume", 0), ("withdraw", 1), ("begin", 2, "take")]
    for event in after:
        world.apply(event)
    assert world.digest() != digest
    world.restore(saved)
    assert world.digest() == digest
    for event in after:
        world.apply(event)


def test_the_command_reports_what_it_explored(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--producers 1 --consumers 1 --operations 1 --capacity 1 --wakers threads"
    assert main(arguments.split()) == 0
    assert "states" in capsys.readouterr().out
    assert main([*arguments.split(), "--bytes", "2"]) == 0
    assert "bytes 2" in capsys.readouterr().out
    assert main([*arguments.split(), "--seconds", "-1"]) == 1
    assert "NOT finished" in capsys.readouterr().out
