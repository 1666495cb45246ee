"""Each of those who use a queue is killed at each call and each reply of a run, one after another.

With a journal, a producer that has a book, and a consumer that keeps the number of its last lease,
what has come out in the end is what a queue in one program gives, digest by digest. Without them,
each row has come at least once, or somebody is told.

The long form kills twice in a run, at all pairs of moments::

    python -m tests.ray.test_every_call
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import Any

import numpy as np
import pytest

from aioqueue.errors import OutOfRangeError, WorkerDiedError
from aioqueue.ray import client
from tests.ray.wire import Killed, Program, Wire

BATCHES = 3
SMALL, LARGE = 2, 9_000
"""int64s of a row: its batches are with the actor, or lie in the object store."""

Strikes = Mapping[int, Callable[[Wire], None]]

VICTIMS: Mapping[str, Callable[[Wire], None]] = {
    "actor": Wire.kill_actor,
    "producer": lambda wire: wire.kill("producer"),
    "consumer": lambda wire: wire.kill("consumer"),
}


def page(number: int, row: int) -> Any:
    """A batch of the book: two rows."""
    if number == BATCHES:
        return None
    return np.random.default_rng(number).integers(0, 1 << 40, (2, row))


def digest(row: Any) -> str:
    return hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).hexdigest()


def local(row: int) -> list[str]:
    """What a queue in one program gives."""
    return [digest(one) for number in range(BATCHES) for one in page(number, row)]


class Run:
    """A producer and a consumer, which are started again whenever they have been killed.

    Args:
        row: int64s of a row.
        is_safe: whether the queue has a journal, and the consumer the number of its last lease.

    Attributes:
        saved: what the consumer has put down.
        told: what both were told.
        wire: by which they called the actor.
    """

    wire: Wire

    def __init__(self, row: int, *, is_safe: bool = True) -> None:
        self.saved: list[str] = []
        self.told: list[str] = []
        self._last: int | None = None  # put down together with it
        self._row = row
        self._is_safe = is_safe

    def go(self, strikes: Strikes) -> Run:
        """Do all of it, with these deaths at these moments."""
        asyncio.run(self._go(strikes))
        return self

    async def _go(self, strikes: Strikes) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            self.wire = Wire(monkeypatch, strikes)
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
            self.told.append(str(error))

    async def _consume(self, program: Program) -> None:
        name = {"consumer": "rank 0", "after": self._last} if self._is_safe else {}
        queue = self._open(program, **name)
        while True:
            try:
                batch = await queue.dequeue_up_to(3)
            except OutOfRangeError:
                return
            except WorkerDiedError as error:
                self.told.append(str(error))
                if "elements are lost" not in str(error):
                    return
                continue
            self.saved += [digest(one) for one in batch]
            self._last = queue.last


def each_moment(row: int, victim: str, *, is_safe: bool = True) -> Iterator[Run]:
    """A run for each moment of a run."""
    for moment in itertools.count(1):
        run = Run(row, is_safe=is_safe).go({moment: VICTIMS[victim]})
        yield run
        if len(run.wire.moments) < moment:
            return


@pytest.mark.slow("actor-9000", "producer-2", "producer-9000")
@pytest.mark.parametrize("row", [SMALL, LARGE])
@pytest.mark.parametrize("victim", sorted(VICTIMS))
def test_what_comes_out_is_the_same_whoever_dies_when(victim: str, row: int) -> None:
    deaths = 0
    for run in each_moment(row, victim):
        assert (run.saved, run.told) == (local(row), [])
        deaths += run.wire.deaths
    assert deaths >= 20  # else there was nobody to kill


@pytest.mark.parametrize("row", [SMALL, LARGE])
def test_each_comes_at_least_once_to_who_keeps_no_number(row: int) -> None:
    """Again comes what it had got last, and nothing else."""
    again = set()
    for run in each_moment(row, "consumer", is_safe=False):
        assert run.told == []
        assert list(dict.fromkeys(run.saved)) == local(row)
        again.add(len(run.saved) - len(local(row)))
    assert {0, 3} <= again <= {0, 1, 2, 3}


@pytest.mark.parametrize("row", [SMALL, LARGE])
def test_all_who_ask_are_told_of_an_actor_that_does_not_come_back(row: int) -> None:
    for run in each_moment(row, "actor", is_safe=False):
        assert run.saved == local(row)[: len(run.saved)]
        assert all("the actor of queue 'wire' has died" in told for told in run.told)
        if run.wire.deaths and run.saved != local(row):
            assert run.told


def test_who_waits_for_an_actor_that_is_silent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody says that it has died, but for some time it has not answered that it lives."""

    async def main() -> None:
        wire = Wire(monkeypatch, {})
        program = Program(wire, "consumer")
        waiting = asyncio.ensure_future(program.open(3).dequeue())
        while not wire.moments:  # it has not asked yet
            await asyncio.sleep(0)
        (connection,) = program.connections
        connection._heard = monotonic() - client._SILENT - 1
        connection._beat()  # as a thread does it every few seconds: it is the last time
        with pytest.raises(WorkerDiedError, match="nothing was heard of the actor of queue 'wire'"):
            await waiting
        await wire.end()

    assert client._SILENT + client._BEAT < 60
    asyncio.run(asyncio.wait_for(main(), 60))


def pairs(row: int) -> Iterator[Strikes]:
    """Two deaths at any two moments."""
    count = len(Run(row).go({}).wire.moments) + 12  # one death more, and what is said of it
    for first, second in itertools.combinations(range(1, count + 1), 2):
        for one, other in itertools.product(VICTIMS.values(), repeat=2):
            yield {first: one, second: other}


if __name__ == "__main__":
    for row in (SMALL, LARGE):
        runs = same = 0
        for strikes in pairs(row):
            run = Run(row).go(strikes)
            runs += 1
            same += run.saved == local(row)
            # What was with the actor alone, since its producer had ended, is lost with that.
            assert run.saved == local(row) or run.told, strikes
            assert [one for one in local(row) if one in run.saved] == run.saved, strikes
        print(
            f"{runs:,} runs with two deaths: {same:,} the same, {runs - same:,} told what is lost"
        )
