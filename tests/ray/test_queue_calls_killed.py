"""Every user of a queue is killed at every call and every reply of a run, one after another.

With a journal, a replayable producer, and a consumer that saves the number of its last lease, the
output equals that of a queue in one program, digest by digest. Without them, each row arrives at
least once, or its loss is reported. A restarted consumer continues at the lease that it names, or
gets an error that says why it cannot.

The long form kills twice in a run, at all pairs of moments::

    python -m tests.ray.test_queue_calls_killed
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import Any

import numpy as np
import pytest

from aioqueue.errors import InvalidArgumentError, OutOfRangeError, WorkerDiedError
from aioqueue.ray import queue_connection
from aioqueue.ray.messages import LEASE_SECONDS
from tests.ray.simulation import Killed, Program, Wire

BATCHES = 3
SMALL, LARGE = 2, 9_000
"""int64s of a row: its batches are with the actor, or lie in the object store."""

Faults = Mapping[int, Callable[[Wire], None]]

VICTIMS: Mapping[str, Callable[[Wire], None]] = {
    "actor": Wire.kill_actor,
    "producer": lambda wire: wire.kill("producer"),
    "consumer": lambda wire: wire.kill("consumer"),
}


def page(number: int, row: int) -> Any:
    """Return the batch of a number: two rows."""
    if number == BATCHES:
        return None
    return np.random.default_rng(number).integers(0, 1 << 40, (2, row))


def digest(row: Any) -> str:
    return hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).hexdigest()


def local(row: int) -> list[str]:
    """What a queue in one program gives."""
    return [digest(one) for number in range(BATCHES) for one in page(number, row)]


class Run:
    """A producer and a consumer, which are restarted whenever they were killed.

    Args:
        row: int64s of a row.
        is_safe: whether the queue has a journal, and the consumer the number of its last lease.
        size: how many rows the consumer takes at a time.
        every: after how many batches it saves what it has made of them.
        autocommit: as of the queue; without, what is saved is committed then.

    Attributes:
        saved: what the consumer has put down.
        failures: the errors of both.
        blind: whether the consumer was started again without a position, as it had saved none.
        wire: by which they called the actor.
    """

    wire: Wire

    def __init__(
        self,
        row: int,
        *,
        is_safe: bool = True,
        size: int = 3,
        every: int = 1,
        autocommit: bool = True,
    ) -> None:
        self.saved: list[str] = []
        self.failures: list[str] = []
        self.blind: bool | None = None
        self._last: int | None = None  # put down together with it
        self._row = row
        self._is_safe = is_safe
        self._size = size
        self._every = every
        self._autocommit = autocommit

    def go(self, faults: Faults) -> Run:
        """Do all of it, with these deaths at these moments."""
        asyncio.run(self._go(faults))
        return self

    async def _go(self, faults: Faults) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            self.wire = Wire(monkeypatch, faults)
            try:
                async with asyncio.timeout(60), asyncio.TaskGroup() as both:
                    both.create_task(self._lives("producer", self._produce))
                    both.create_task(self._lives("consumer", self._consume))
            finally:
                await self.wire.end()

    async def _lives(self, name: str, live: Callable[[Program], Any]) -> None:
        while True:
            program = Program(self.wire, name)
            try:
                await live(program)
                return
            except Killed:
                if name == "producer" or not self._is_safe:  # else it comes again before that
                    self.wire.notice(program)
            finally:
                program.kill()  # it has ended, in one way or the other

    def _open(self, program: Program, **options: Any) -> Any:
        journal = "/journal" if self._is_safe else None
        return program.open(3, ["int64"], [(self._row,)], journal=journal, **options)

    async def _produce(self, program: Program) -> None:
        queue = self._open(program)
        try:
            await queue.fill(lambda number: page(number, self._row), producer="book")
            await queue.close()
        except WorkerDiedError as error:
            self.failures.append(str(error))

    async def _consume(self, program: Program) -> None:
        name = {"consumer": "rank 0", "last_committed": self._last} if self._is_safe else {}
        if self._last is None:
            self.blind = self.blind is not None
        queue = self._open(program, autocommit=self._autocommit, **name)
        made: list[str] = []
        for number in itertools.count(1):
            try:
                batch = await queue.dequeue_up_to(self._size)
            except OutOfRangeError:
                self.saved += made
                return
            except InvalidArgumentError as error:  # it may go on, but has lost something
                self.failures.append(str(error))
                self._last = None
                await self._consume(program)
                return
            except WorkerDiedError as error:
                self.failures.append(str(error))
                if "the actor of queue" in str(error):  # else only some elements are lost
                    return
                continue
            made += [digest(one) for one in batch]
            if number % self._every == 0:
                self.saved += made
                made.clear()
                self._last = queue.last
                if not self._autocommit:
                    await queue.commit(self._last)


def each_moment(row: int, victim: str, **options: Any) -> Iterator[Run]:
    """A run for each moment of a run."""
    for moment in itertools.count(1):
        run = Run(row, **options).go({moment: VICTIMS[victim]})
        yield run
        if len(run.wire.moments) < moment:
            return


@pytest.mark.slow(but="actor-2")
@pytest.mark.parametrize("row", [SMALL, LARGE])
@pytest.mark.parametrize("victim", sorted(VICTIMS))
def test_the_output_is_the_same_despite_any_death(victim: str, row: int) -> None:
    deaths = 0
    for run in each_moment(row, victim):
        assert (run.saved, run.failures) == (local(row), [])
        deaths += run.wire.deaths
    assert deaths >= 20  # else there was nobody to kill


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("row", [SMALL, LARGE])
def test_at_least_once_without_saved_lease_numbers(row: int) -> None:
    """Its last batch is delivered again, and nothing else."""
    again = set()
    for run in each_moment(row, "consumer", is_safe=False):
        assert run.failures == []
        assert list(dict.fromkeys(run.saved)) == local(row)
        again.add(len(run.saved) - len(local(row)))
    assert {0, 3} <= again <= {0, 1, 2, 3}


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("row", [SMALL, LARGE])
def test_every_caller_gets_the_death_of_the_actor(row: int) -> None:
    for run in each_moment(row, "actor", is_safe=False):
        assert run.saved == local(row)[: len(run.saved)]
        assert all("the actor of queue 'wire' has died" in failures for failures in run.failures)
        if run.wire.deaths and run.saved != local(row):
            assert run.failures


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["actor", "consumer"])
def test_commits_after_saving_allow_rarer_saving(victim: str) -> None:
    for run in each_moment(SMALL, victim, size=2, every=2, autocommit=False):
        assert (run.saved, run.failures) == (local(SMALL), [])


@pytest.mark.slow
def test_saving_less_often_than_committing_is_refused() -> None:
    """Its position is older than its last commit. Then the loss must be reported."""
    failures = 0
    for run in each_moment(SMALL, "consumer", size=1, every=2):
        assert run.saved == local(SMALL) or run.failures or run.blind
        assert all("has committed its leases up to number" in one for one in run.failures)
        failures += len(run.failures)
    assert failures


LEASES, ROWS = 3, 10


class Lives:
    """A consumer that begins anew, of a queue of ten rows, by leases of two.

    Args:
        ending: how its former life ends: ``alive`` goes on, ``killed`` is not noticed yet, and
            ``given up`` was; or the actor dies as well, ``with the actor``.
        journal: whether the actor comes back.
        autocommit: as of the queue.
        leases: how many the former life had.
        committed: the last of them that it has committed, if that is for it to say.
        first: what the actor hears of the new life before all else: that it ``asks`` how the queue
            is, ``takes`` rows, or is alive (it ``beats``).
    """

    def __init__(
        self,
        ending: str,
        *,
        journal: bool,
        autocommit: bool,
        leases: int,
        committed: int,
        first: str,
    ) -> None:
        self._first = first
        self._ending = ending
        self._options = {
            "journal": "/journal" if journal else None,
            "autocommit": autocommit,
            "consumer": "rank 0",
        }
        self._leases = leases
        self._commits = None if autocommit else committed
        self.committed = max(-1, leases - 2) if autocommit else committed

    async def go(self, after: int | None) -> None:
        """Start its next life there; return what it receives, or its error."""
        with pytest.MonkeyPatch.context() as monkeypatch:
            wire = Wire(monkeypatch, {})
            try:
                async with asyncio.timeout(20):
                    await self._go(wire, after)
            finally:
                await wire.end()

    async def _go(self, wire: Wire, after: int | None) -> None:
        producer = self._opened(wire, "producer")
        await producer.enqueue_many(np.arange(ROWS))
        await producer.close()
        former = self._opened(wire, "former")
        for _ in range(self._leases):
            await former.dequeue_many(2)
        if self._commits is not None:
            await former.commit(self._commits)
        if self._ending == "with the actor":
            wire.kill_actor()
        if self._ending != "alive":
            wire.kill("former")
        if self._ending == "given up":
            wire.notice(next(one for one in wire.programs if one.name == "former"))
        new = self._opened(wire, "new", last_committed=after)
        if self._first == "beats":
            next(one for one in wire.programs if one.name == "new").heartbeat()
        failures = await self._errors(new, after)
        if failures is None:
            assert await self._rest(new) == self._rows(self.committed if after is None else after)
            return
        with pytest.raises(type(failures)):  # and once more
            await new.dequeue()
        if self._ending == "alive":  # and nothing has changed for who goes on
            assert (await former.dequeue_many(2)).tolist() == self._rows(self._leases - 1)[:2]
            assert former.last == self._leases
        else:
            fresh = self._opened(wire, "fresh")
            assert await self._rest(fresh) == self._rows(self.committed)

    def _opened(self, wire: Wire, name: str, **options: Any) -> Any:
        options = {**self._options, **options}
        if name == "producer":
            del options["consumer"]
        return Program(wire, name).open(None, "int64", (), **options)

    async def _errors(self, new: Any, after: int | None) -> Exception | None:
        """Check the first error of the new life."""
        try:
            if self._first != "takes":
                await new.statistics()
            elif not self._can_continue(after):  # else it takes what is to come first, all the same
                await new.dequeue_up_to(2)
        except (InvalidArgumentError, WorkerDiedError) as error:
            failures: Exception | None = error
        else:
            failures = None
        if after is None or after == self.committed:
            assert failures is None
        elif after < self.committed:
            numbers = f"got {after} for .* has committed its leases up to number {self.committed}:"
            assert isinstance(failures, InvalidArgumentError)
            assert re.search(numbers, str(failures))
        elif after >= self._leases:
            last = f"last lease has number {self._leases - 1};" if self._leases else "had no lease;"
            assert isinstance(failures, InvalidArgumentError)
            assert re.search(f"got {after} for .* {last}", str(failures))
        elif self._ending == "given up":
            assert isinstance(failures, WorkerDiedError)
            assert f"it used them up to number {after}" in str(failures)
        else:
            assert failures is None
        return failures

    def _can_continue(self, after: int | None) -> bool:
        if after is None or after == self.committed:
            return True
        return self.committed < after < self._leases and self._ending != "given up"

    async def _rest(self, queue: Any) -> list[int]:
        found: list[int] = []
        for number in itertools.count(self._leases):
            try:
                found += (await queue.dequeue_up_to(2)).tolist()
            except OutOfRangeError:
                return found
            assert queue.last == number  # none is used twice
        raise AssertionError("unreachable")

    @staticmethod
    def _rows(after: int) -> list[int]:
        return list(range(2 * (after + 1), ROWS))


@pytest.mark.slow(but=("alive-False-True-beats", "killed-True-False-beats"))
@pytest.mark.parametrize(
    "first",
    [
        "beats",
        pytest.param("asks", marks=pytest.mark.slow),
        pytest.param("takes", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize(
    ("ending", "journal"),
    [
        ("alive", False),
        ("killed", True),
        pytest.param("alive", True, marks=pytest.mark.slow),
        pytest.param("killed", False, marks=pytest.mark.slow),
        pytest.param("given up", True, marks=pytest.mark.slow),
        pytest.param("with the actor", True, marks=pytest.mark.slow),
    ],
)
def test_a_new_life_continues_at_its_lease_or_is_refused(
    ending: str, journal: bool, autocommit: bool, first: str
) -> None:
    async def main() -> None:
        for leases in range(LEASES + 1):
            for committed in [-1] if autocommit else range(-1, leases):
                options: dict[str, Any] = {
                    "journal": journal,
                    "autocommit": autocommit,
                    "committed": committed,
                }
                for after in (None, *range(leases + 1)):
                    await Lives(ending, leases=leases, first=first, **options).go(after)

    asyncio.run(main())


def test_a_silent_actor_ends_the_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray does not report its death, but it answers no heartbeat for some time."""

    async def main() -> None:
        wire = Wire(monkeypatch, {})
        program = Program(wire, "consumer")
        waiting = asyncio.ensure_future(program.open(3).dequeue())
        while not wire.moments:  # it has not asked yet
            await asyncio.sleep(0)
        (connection,) = program.connections
        connection.heartbeat()
        while "the reply to heartbeat" not in wire.moments:
            await asyncio.sleep(0)
        # As a thread does it, the last time within a minute.
        now = monotonic() + 60 - LEASE_SECONDS / 6
        monkeypatch.setattr(queue_connection, "monotonic", lambda: now)
        connection.run()
        with pytest.raises(WorkerDiedError, match="the actor of queue 'wire' was silent"):
            await waiting
        await wire.end()

    asyncio.run(asyncio.wait_for(main(), 60))


def pairs(row: int) -> Iterator[Faults]:
    """Two deaths at any two moments."""
    count = len(Run(row).go({}).wire.moments) + 12  # one death more, and what is said of it
    for first, second in itertools.combinations(range(1, count + 1), 2):
        for one, other in itertools.product(VICTIMS.values(), repeat=2):
            yield {first: one, second: other}


if __name__ == "__main__":
    for row in (SMALL, LARGE):
        runs = same = 0
        for faults in pairs(row):
            run = Run(row).go(faults)
            runs += 1
            same += run.saved == local(row)
            # What was with the actor alone, since its producer had ended, is lost with that.
            assert run.saved == local(row) or run.failures, faults
            assert [one for one in local(row) if one in run.saved] == run.saved, faults
        print(
            f"{runs:,} runs with two deaths: {same:,} the same, {runs - same:,} told what is lost"
        )
