"""Processes that share a queue are killed at random; then every element is accounted for.

    python -m proofs.killed_processes [ROUNDS] [SEED]

In each round, one process has the queue and feeds it, two consume, one produces. Some of them are
killed with SIGKILL at random moments: clients, or the owner. Each keeps a log in memory that
outlives it, by plain stores:

* a consumer, of the rows that its calls have returned; in half of the rounds, of those that it is
  about to acknowledge, which is the step before;
* a producer, of how many of its calls have returned, and how many have begun;
* the owner, of what it has put in, and at the end of what was left.

What may be missing is what a consumer took in the step in which it died: acknowledged, and not yet
returned, so the rows of one call at most. With the other log, these rows may come twice. Nothing
else may be missing, or come twice, or come without having been put in.

The processes are forks of one that runs no thread, so a round takes a tenth of a second.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import os
import pickle
import random
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, sleep
from typing import Any, Final

import aioqueue
from aioqueue.sharing.memory import SharedMemory
from aioqueue.sharing.queues import RemoteMachine
from proofs.codec import Codec

__all__ = ("Totals", "play")

KINDS: Final = ("objects", "fifo", "large", "priority")
OWN: Final = 10**6
"""Rows from here on are a producer's."""
PATIENCE: Final = 20.0
_LONGEST: Final = 5  # rows of a call
_CAPACITY: Final = 20


class Log:
    """Numbers in memory that all processes share: a count, and that many numbers."""

    def __init__(self, size: int = 1 << 16) -> None:
        self._memory = memoryview(mmap.mmap(-1, 8 * (size + 2))).cast("q")

    def add(self, number: int) -> None:
        count = self._memory[0] + 1
        self._memory[count + 1] = number
        self._memory[0] = count  # the last store: a number that is cut short does not count

    @property
    def mark(self) -> int:
        """One number more, apart from the others."""
        return self._memory[1]

    @mark.setter
    def mark(self, number: int) -> None:
        self._memory[1] = number

    def numbers(self) -> list[int]:
        return self._memory[2 : self._memory[0] + 2].tolist()

    def clear(self) -> None:
        self._memory[0] = self._memory[1] = 0


@dataclass
class Totals:
    """What many rounds have come to."""

    rounds: int = 0
    rows: int = 0
    returned: int = 0
    missing: int = 0
    twice: int = 0
    owners: int = 0
    reports: int = 0
    slowest: float = 0.0
    """Seconds from the death of an owner until the last of its clients has got an error."""
    outcomes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds: {self.rows} rows; {self.missing} of them went with a consumer"
            f" that was acknowledging them, and {self.twice} came twice for that reason;"
            f" {self.owners} owners killed, {self.reports} reports of that within"
            f" {self.slowest:.2f} s"
        )


# What the processes do.


def _guarded(work: Callable[[], None], failed: Log) -> None:
    try:
        work()
    except BaseException:
        traceback.print_exc()
        failed.add(1)
        os._exit(1)
    os._exit(0)


def _own(kind: str, handle: Any, fed: Log, left: Log, is_over: Any, may_close: Any) -> None:
    """Have the queue, feed it until it is over; then close it, and take what is left."""
    codec = Codec(kind)
    queue = codec.queue(_CAPACITY, 0)
    handle.send_bytes(pickle.dumps(queue.share()))
    face = queue.sync

    def feed() -> None:
        row = 0
        while not is_over.is_set():
            fed.mark = row + 1
            with suppress(aioqueue.DeadlineExceededError):
                face.enqueue(codec.element(row), timeout=0.05)
                fed.add(row)
                row += 1

    feeder = threading.Thread(target=feed)
    feeder.start()
    assert may_close.wait(PATIENCE)
    feeder.join(PATIENCE)
    face.close()
    # It ends when the last of what killed consumers had under way has come back: until then,
    # `dequeue` waits.
    with suppress(aioqueue.OutOfRangeError):
        while True:
            left.add(codec.row(face.dequeue(timeout=PATIENCE)))


def _consume(kind: str, handle: bytes, log: Log, before: bool, seed: int, style: str) -> None:
    codec, rng = Codec(kind), random.Random(seed)
    queue = pickle.loads(handle)
    if before:
        _log_before_acknowledging(codec, log)

    def note(rows: Iterable[int]) -> None:
        for row in () if before else rows:
            log.add(row)

    with suppress(aioqueue.WorkerDiedError, aioqueue.OutOfRangeError):
        if style == "threads":
            _consume_on_threads(queue.sync, codec, note, rng)
        else:
            import asyncio

            asyncio.run(_consume_in_tasks(queue.aio, codec, note, rng))
    log.mark = int(monotonic() * 1e6)


def _consume_on_threads(face: Any, codec: Codec, note: Any, rng: random.Random) -> None:
    while True:
        n = rng.randint(1, _LONGEST)
        with suppress(aioqueue.DeadlineExceededError):
            note(codec.rows(face.dequeue_up_to(n, timeout=rng.choice([None, 0.0, 0.001]))))


async def _consume_in_tasks(face: Any, codec: Codec, note: Any, rng: random.Random) -> None:
    import asyncio

    while True:
        n = rng.randint(1, _LONGEST)
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.choice([None, 0.0, 0.001])):
                rows = await face.dequeue_up_to(n)
                note(codec.rows(rows))


def _log_before_acknowledging(codec: Codec, log: Log) -> None:
    """Log the rows of a call just before the store that makes them the caller's."""
    commit, acknowledge = RemoteMachine.commit, SharedMemory.acknowledge
    current = threading.local()

    def commit_noted(machine: RemoteMachine, attempt: Any, waited: float = 0.0) -> Any:
        current.attempt = attempt
        return commit(machine, attempt, waited)

    def acknowledge_logged(memory: SharedMemory, call: int) -> None:
        for row in codec.rows(current.attempt.held.single):
            log.add(row)
        acknowledge(memory, call)

    RemoteMachine.commit = commit_noted  # type: ignore[method-assign, assignment]
    SharedMemory.acknowledge = acknowledge_logged  # type: ignore[method-assign, assignment]


def _produce(kind: str, handle: bytes, log: Log, first: int) -> None:
    codec = Codec(kind)
    face = pickle.loads(handle).sync
    row = first
    with suppress(aioqueue.WorkerDiedError, aioqueue.QueueClosedError):
        while True:
            log.mark = row + 1
            face.enqueue(codec.element(row))
            log.add(row)
            row += 1


# The rounds.


@dataclass
class _Round:
    """The processes of one round.

    Attributes:
        seed: chooses everything.
        kind: of the queue.
        kills_owner: whether it is the owner that is killed.
        before: whether consumers log before they acknowledge.
        style: how one of the consumers waits: on threads or in tasks.
    """

    seed: int
    kind: str
    kills_owner: bool
    before: bool
    style: str

    def play(self, logs: list[Log], totals: Totals) -> None:
        rng = random.Random(self.seed)
        fed, left, failed, *of_clients = logs
        for log in logs:
            log.clear()
        context = multiprocessing.get_context("fork")
        is_over, may_close = context.Event(), context.Event()
        receiver, sender = context.Pipe(duplex=False)
        owner = self._start(_own, failed, self.kind, sender, fed, left, is_over, may_close)
        sender.close()
        handle = receiver.recv_bytes()
        receiver.close()
        first, second, producer_log = of_clients
        consume = (_consume, failed, self.kind, handle)
        clients = [
            self._start(*consume, first, self.before, self.seed, "threads"),
            self._start(*consume, second, self.before, ~self.seed, self.style),
            self._start(_produce, failed, self.kind, handle, producer_log, OWN),
        ]
        processes = [owner, *clients]
        try:
            sleep(rng.uniform(0.01, 0.1))
            if self.kills_owner:
                killed = [owner]
                _kill(owner)
                died = monotonic()
            else:
                killed = rng.sample(clients, rng.randint(1, 3))
                for process in killed:
                    _kill(process)
                    sleep(rng.choice([0.0, rng.uniform(0.0, 0.003)]))
                is_over.set()
                may_close.set()
            for process in processes:
                process.join(PATIENCE)
                assert process.exitcode is not None, f"{self}: {process.name} hangs"
                expected = -signal.SIGKILL if process in killed else 0
                assert process.exitcode == expected, f"{self}: {process.name} {process.exitcode}"
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                    process.join()
        assert not failed.numbers(), f"{self}: a process has failed"
        totals.rounds += 1
        if self.kills_owner:
            totals.owners += 1
            totals.reports += len(clients)
            reported = max(log.mark for log in (first, second)) / 1e6 - died
            totals.slowest = max(totals.slowest, reported)
        consumers = [log.numbers() for log in (first, second)]
        killed_consumers = sum(process in killed for process in clients[:2])
        self._account(consumers, killed_consumers, logs, totals)

    def _account(
        self, consumers: list[list[int]], killed: int, logs: list[Log], totals: Totals
    ) -> None:
        fed, left, _, _, _, produced = logs
        seen = Counter([row for rows in consumers for row in rows] + left.numbers())
        begun = {*range(fed.mark), *range(OWN, produced.mark)}
        returned = {*fed.numbers(), *produced.numbers()}
        twice = sum(seen.values()) - len(seen)
        missing = returned - seen.keys()
        totals.rows += len(seen)
        totals.returned += len(returned)
        assert seen.keys() <= begun, f"{self}: rows that nobody has put in"
        if self.kills_owner:  # what it had has gone with it
            assert not twice, f"{self}: {twice} rows came twice"
            return
        totals.missing += len(missing)
        totals.twice += twice
        step = killed * _LONGEST
        assert len(missing) <= (0 if self.before else step), f"{self}: {sorted(missing)} missing"
        assert twice <= (step if self.before else 0), f"{self}: {twice} rows came twice"

    @staticmethod
    def _start(work: Callable[..., None], failed: Log, *arguments: Any) -> Any:
        context = multiprocessing.get_context("fork")
        process = context.Process(
            target=_guarded, args=(partial(work, *arguments), failed), name=work.__name__
        )
        process.start()
        return process


def _kill(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)


def play(rounds: int, seed: int) -> Totals:
    """Play rounds, in a process that runs no thread.

    Raises:
        AssertionError: an element was lost or came twice, a process hangs, or one has failed.
    """
    assert threading.active_count() == 1, "processes are forked, so there must be no thread"
    rng, totals = random.Random(seed), Totals()
    logs = [Log() for _ in range(6)]
    for _ in range(rounds):
        one = _Round(
            rng.getrandbits(32),
            rng.choice(KINDS),
            kills_owner=rng.random() < 0.25,
            before=rng.random() < 0.5,
            style=rng.choice(["threads", "tasks"]),
        )
        one.play(logs, totals)
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m proofs.killed_processes")
    parser.add_argument("rounds", type=int, nargs="?", default=100)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    options = parser.parse_args()
    print(play(options.rounds, options.seed))


if __name__ == "__main__":
    main()
