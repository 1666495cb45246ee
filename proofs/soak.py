"""Soak: a mixed load with random stops and cancellations, for as long as you like.

    python -m proofs.soak                      60 seconds
    python -m proofs.soak --elements 1e8       until so many elements have been moved
    python -m proofs.soak --seed 7             another sequence of rounds

Round after round a queue of a random kind and capacity is filled and emptied by threads, and by
tasks on asyncio, uvloop and trio, all at once. Their calls are cut short at random by timeouts,
cancel scopes and cancelled tasks; the round is ended by closing, by closing with pending enqueues
cancelled, or by a stop of the coordinator. Then what was put in is compared with what came out, by
count and by two sums over all elements, of which one is of hashes: nothing may be lost, and nothing
come twice. A worker that fails fails the round: else its last call would look like elements that
are lost or come twice. At the end: how much memory, how many threads and how many file descriptors
were left.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import anyio
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from aioqueue import (
    CancelledError,
    Coordinator,
    DeadlineExceededError,
    OutOfRangeError,
    QueueClosedError,
    sync,
)

__all__ = ("Round", "Soak", "Tally", "main")

ROWS = (1, 1, 1, 3, 30, 300, 3000)
"""How many rows one call moves, each as likely as the others."""

WIDE = 32
"""Numbers in a wide row."""

UNTOUCHED = -1
"""No id."""

LIMITS = (None, None, 0.0, 1e-4, 1e-3)
"""Seconds after which a call is cut short."""


def mixed(ids: NDArray[np.int64]) -> int:
    """The sum of the hashes of some ids, modulo 2**64 (the finalizer of SplitMix64)."""
    x = ids.astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((x ^ (x >> np.uint64(31))).sum(dtype=np.uint64))


@dataclass
class Tally:
    """What one worker has put in or taken out; equal for equal multisets of ids."""

    count: int = 0
    total: int = 0
    hashes: int = 0
    cut_short: int = 0
    """Calls that were cancelled or timed out."""

    def add(self, ids: NDArray[np.int64]) -> None:
        self.count += len(ids)
        self.total += int(ids.sum())
        self.hashes = (self.hashes + mixed(ids)) % 2**64

    def __iadd__(self, other: Tally) -> Tally:
        self.count += other.count
        self.total += other.total
        self.hashes = (self.hashes + other.hashes) % 2**64
        self.cut_short += other.cut_short
        return self

    def same(self, other: Tally) -> bool:
        return (self.count, self.total, self.hashes) == (other.count, other.total, other.hashes)


KINDS = ("FIFOQueue", "RandomShuffleQueue", "PaddingFIFOQueue", "PriorityQueue")


@dataclass
class Round:
    """One queue, its workers and how it ends."""

    seed: int
    put: Tally = field(default_factory=Tally)
    taken: Tally = field(default_factory=Tally)
    out_of_order: int = 0

    def __post_init__(self) -> None:
        draw = self.draw = random.Random(self.seed)
        self.kind = draw.choice(KINDS)
        capacity = draw.choice((1, 2, 10, 100, 1000, 10_000))
        self.queue: Any
        # Wide rows make batches large enough to be copied without the lock.
        self.width = draw.choice((1, WIDE)) if self.kind == "FIFOQueue" else 1
        if self.kind == "FIFOQueue":
            self.queue = sync.FIFOQueue(capacity, "int64", (self.width,))
        elif self.kind == "PaddingFIFOQueue":
            self.queue = sync.PaddingFIFOQueue(capacity, "int64", [(None,)])
        elif self.kind == "PriorityQueue":
            self.queue = sync.PriorityQueue(capacity, "int64", [()])
        else:
            keep = draw.choice((0, capacity // 2))
            self.queue = sync.RandomShuffleQueue(capacity, keep, "int64", (), seed=self.seed)
        self.most = capacity if self.kind == "PriorityQueue" else max(ROWS)
        self.ending = draw.choice(("close", "cancel", "stop"))
        self.is_ending = threading.Event()
        self.scopes: list[sync.CancelScope] = []  # of the threads, by worker
        self.failures: list[BaseException] = []

    def __repr__(self) -> str:
        return f"round {self.seed}: {self.queue!r}, ended by {self.ending}"

    # Rows: ids of a producer ascend; they carry its number in their upper bits.

    def batch(self, producer: int, start: int, n: int, draw: random.Random) -> tuple[Any, Any]:
        ids = (producer << 40) + np.arange(start, start + n, dtype=np.int64)
        if self.kind == "PaddingFIFOQueue":
            return ids, ids[:, None]
        if self.kind == "PriorityQueue":
            return ids, ((ids * draw.getrandbits(16)) % 1000, ids)
        if self.kind == "FIFOQueue":
            return ids, np.repeat(ids[:, None], self.width, axis=1)
        return ids, ids

    def ids(self, batch: Any) -> NDArray[np.int64]:
        ids = batch[1] if self.kind == "PriorityQueue" else batch
        if self.kind == "FIFOQueue":
            if (ids != ids[:, :1]).any():
                raise AssertionError(f"{self!r}: rows are mixed up: {ids}")
            ids = ids[:, 0].copy()
        return np.asarray(ids).reshape(-1)

    def check_order(self, ids: NDArray[np.int64]) -> None:
        """Within a batch, what came of one producer ascends, in a queue that keeps the order.

        From one batch to the next it need not: what a cancelled caller had in its hands comes back.
        """
        if self.kind not in {"FIFOQueue", "PaddingFIFOQueue"}:
            return
        producers = ids >> 40
        for producer in np.unique(producers):
            if (np.diff(ids[producers == producer]) <= 0).any():
                self.out_of_order += 1

    # Workers in threads.

    def produce(self, worker: int, tally: Tally) -> None:
        draw, start = random.Random(self.seed * 1000 + worker), 0
        while not self.is_ending.is_set():
            n = draw.choice(ROWS)
            ids, batch = self.batch(worker, start, n, draw)
            start += n
            done, closed = n, False
            scope = self.scopes[worker] = sync.CancelScope()
            try:
                with scope:
                    self.queue.enqueue_many(batch, timeout=draw.choice(LIMITS))
            except (DeadlineExceededError, CancelledError) as error:
                done = error.enqueued
                tally.cut_short += 1
            except QueueClosedError as error:
                done, closed = error.enqueued, True
            tally.add(ids[:done])
            if closed:
                return

    def consume(self, worker: int, tally: Tally) -> None:
        draw = random.Random(self.seed * 1000 + worker)
        claimed = np.full((max(ROWS), self.width), UNTOUCHED)
        while True:
            n = min(draw.choice(ROWS), self.most)
            scope = self.scopes[worker] = sync.CancelScope()
            if (claimed != UNTOUCHED).any():
                raise AssertionError(f"{self!r}: arrays were written to after the call had ended")
            takes = [self.queue.dequeue_many, self._up_to]
            if self.kind == "FIFOQueue":
                takes.append(partial(self.queue.dequeue_many, out=claimed[:n]))
            try:
                with scope:
                    ids = self.ids(draw.choice(takes)(n, timeout=draw.choice(LIMITS)))
            except (DeadlineExceededError, CancelledError):
                tally.cut_short += 1
                continue
            except OutOfRangeError:
                return
            finally:
                claimed[:n] = UNTOUCHED
            self.check_order(ids)
            tally.add(ids)

    def _up_to(self, n: int, *, timeout: float | None) -> Any:
        return self.queue.dequeue_up_to(n, timeout=timeout)

    # The same workers as tasks.

    async def produce_async(self, worker: int, tally: Tally) -> None:
        draw, start = random.Random(self.seed * 1000 + worker), 0
        cancelled_class = anyio.get_cancelled_exc_class()
        while not self.is_ending.is_set():
            n = draw.choice(ROWS)
            ids, batch = self.batch(worker, start, n, draw)
            start += n
            done, closed = n, False
            with anyio.move_on_after(draw.choice(LIMITS)) as scope:
                try:
                    await self.queue.aio.enqueue_many(batch)
                except cancelled_class as error:
                    done = getattr(error, "enqueued", 0)
                    raise
                except QueueClosedError as error:
                    done, closed = error.enqueued, True
                finally:
                    tally.add(ids[:done])
            tally.cut_short += scope.cancelled_caught
            if closed:
                return

    async def consume_async(self, worker: int, tally: Tally) -> None:
        draw = random.Random(self.seed * 1000 + worker)
        while True:
            n = min(draw.choice(ROWS), self.most)
            ids = None
            with anyio.move_on_after(draw.choice(LIMITS)) as scope:
                queue = self.queue.aio
                take = queue.dequeue_many if draw.random() < 0.5 else queue.dequeue_up_to
                try:
                    ids = self.ids(await take(n))
                except OutOfRangeError:
                    return
            tally.cut_short += scope.cancelled_caught
            if ids is not None:
                self.check_order(ids)
                tally.add(ids)

    def run_tasks(self, backend: str, jobs: Sequence[Callable[[], Any]]) -> None:
        async def together() -> None:
            async with anyio.create_task_group() as group:
                for job in jobs:
                    group.start_soon(job)

        if backend == "uvloop":
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(together())
        else:
            anyio.run(together, backend=backend)

    # The round.

    def work(self, job: Callable[..., None], *arguments: Any) -> None:
        """What a thread does: a job, whose failure is noted."""
        try:
            job(*arguments)
        except BaseException as failure:
            self.failures.append(failure)

    def run(self, seconds: float, backends: Sequence[str]) -> None:
        coord = Coordinator().sync
        tallies: list[Tally] = []
        jobs: dict[str, list[Callable[[], Any]]] = {backend: [] for backend in backends}
        threads: list[threading.Thread] = []
        for worker in range(2 * (len(backends) + 2)):
            tally = Tally()
            tallies.append(tally)
            self.scopes.append(sync.CancelScope())
            makes, place = worker % 2 == 0, worker // 2
            if place < len(backends):
                job = self.produce_async if makes else self.consume_async
                jobs[backends[place]].append(partial(job, worker, tally))
            else:
                target = self.produce if makes else self.consume
                threads.append(threading.Thread(target=self.work, args=(target, worker, tally)))
        for backend, its in jobs.items():
            threads.append(threading.Thread(target=self.work, args=(self.run_tasks, backend, its)))
        for thread in threads:
            coord.register(thread)
            thread.start()
        self._disturb(seconds)
        if self.ending == "stop":
            coord.request_stop()
        self.is_ending.set()
        self.queue.close(cancel_pending_enqueues=self.ending != "close")
        for thread in threads:
            thread.join(60)
            if thread.is_alive():
                why = next(iter(self.failures), None)
                raise AssertionError(f"{self!r}: {thread.name} hangs") from why
        if self.failures:
            raise AssertionError(f"{self!r}: a worker failed") from self.failures[0]
        for worker, tally in enumerate(tallies):
            if worker % 2 == 0:
                self.put += tally
            else:
                self.taken += tally
        for batch in self.queue.batches(self.most):
            self.taken.add(self.ids(batch))
        if not self.put.same(self.taken) or self.out_of_order:
            raise AssertionError(
                f"{self!r}: put in {self.put}, came out {self.taken},"
                f" {self.out_of_order} batches out of order"
            )

    def _disturb(self, seconds: float) -> None:
        """Cancel scopes of threads at random moments, until the round is to end."""
        end = perf_counter() + seconds
        breath = threading.Event()
        while perf_counter() < end:
            self.draw.choice(self.scopes).cancel()
            breath.wait(self.draw.choice((0.0, 1e-4, 1e-3)))


def resident() -> int:
    """Bytes of memory that the process has in use, after a collection."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def objects() -> int:
    """How many objects are alive that may refer to others, after a collection."""
    return len(gc.get_objects())


def open_files() -> int:
    """How many file descriptors are open."""
    return len(os.listdir("/proc/self/fd"))


@dataclass
class Soak:
    """Rounds, one after the other."""

    seconds: float
    elements: float
    seed: int
    round_seconds: float = 0.25

    def run(self) -> bool:
        """Run, and print what has come of it; tell whether all was well."""
        backends = ["asyncio"]
        backends += [name for name in ("uvloop", "trio") if importlib.util.find_spec(name)]
        began, rounds, total = perf_counter(), 0, Tally()
        ends: dict[str, int] = {}
        states: list[tuple[int, int, int, int]] = []
        bar = tqdm(unit=" elements", unit_scale=True, disable=None)
        while perf_counter() - began < self.seconds and total.count < self.elements:
            one = Round(self.seed + rounds)
            try:
                one.run(self.round_seconds, backends)
            except AssertionError as error:
                bar.close()
                print(f"FAILED in {error}")
                traceback.print_exception(error, file=sys.stdout)
                return False
            rounds += 1
            ends[one.ending] = ends.get(one.ending, 0) + 1
            bar.update(one.put.count)
            total += one.put
            total.cut_short += one.taken.cut_short
            if rounds >= 8:  # warm: every kind of loop and queue has been there
                states.append((resident(), objects(), threading.active_count(), open_files()))
        bar.close()
        took = perf_counter() - began
        print(
            f"{total.count:,} elements in {took:.0f} s, {rounds} rounds, on {', '.join(backends)}"
        )
        print("each came out exactly once; batches in order where that is kept")
        print(f"{total.cut_short:,} calls cancelled or timed out; rounds ended by {ends}")
        if states:
            parts = [states[len(states) * part // 4 - (part > 0)] for part in range(5)]
            memory = ", ".join(f"{state[0] / 2**20:.1f}" for state in parts)
            alive = ", ".join(f"{state[1]:,}" for state in parts)
            threads, files = (states[-1][i] - states[0][i] for i in (2, 3))
            print("after round 8, and after each quarter of the others:")
            print(f"  MiB resident {memory} (the allocator keeps some of what was freed)")
            print(f"  objects alive {alive}")
            print(f"{threads:+d} threads, {files:+d} files")
        return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Mixed load with random stops and cancellations.")
    parser.add_argument("--seconds", type=float, help="how long (default: 60, or no limit)")
    parser.add_argument("--elements", type=float, help="how many, for instance 1e8")
    parser.add_argument("--seed", type=int, default=1, help="of the first round (default: 1)")
    given = parser.parse_args(arguments)
    seconds = given.seconds or (float("inf") if given.elements else 60.0)
    soak = Soak(seconds, given.elements or float("inf"), given.seed)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        return 0 if soak.run() else 1
    finally:
        sys.setswitchinterval(before)


if __name__ == "__main__":
    sys.exit(main())
