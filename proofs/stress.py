"""Real threads and several event loops at one queue, each of their calls recorded.

A `Load` is chosen by a seed: the queue, who works at it and with which operations, whether calls
are interrupted, when and how it is closed. `Load.run` runs it and returns the history. How the
threads meet is the system's choice; what they do is not.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from aioqueue.errors import (
    DeadlineExceededError,
    OutOfRangeError,
    QueueClosedError,
    QueueEmpty,
    QueueFull,
)
from proofs.codec import MAX_BYTES, Codec
from proofs.linearizability import Op, Spec
from tests.kit.worlds import PATIENCE, TrioWorld, UvloopWorld

__all__ = ("LOOPS", "Load")

_OUTCOMES: dict[type[BaseException], str] = {
    QueueFull: "full",
    QueueEmpty: "empty",
    QueueClosedError: "closed",
    OutOfRangeError: "out of range",
    DeadlineExceededError: "undone",
}


def run_asyncio(main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    asyncio.run(main())


def run_uvloop(main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    with asyncio.Runner(loop_factory=UvloopWorld.new_loop) as runner:
        runner.run(main())


def run_trio(main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    import trio

    trio.run(main)


LOOPS = [run_asyncio]
if not UvloopWorld.missing():
    LOOPS.append(run_uvloop)
if not TrioWorld.missing():
    LOOPS.append(run_trio)


@dataclass(frozen=True)
class _Step:
    """What a caller is about to do.

    Attributes:
        patience: seconds after which it is interrupted.
    """

    method: str
    rows: tuple[int, ...] = ()
    n: int = 1
    expired: bool = False
    patience: float | None = None


class _Worker:
    """Makes calls and notes them."""

    def __init__(self, load: Load, name: str, produces: bool, two_step: bool) -> None:
        self.load = load
        self.name = name
        self.produces = produces
        self.two_step = two_step
        self.is_working = True
        self.is_over = False  # the queue is closed, and there is nothing left for this one to do
        self.rng = random.Random(f"{load.seed} {name}")
        self.history: list[Op] = []
        self.turns = load.turns if produces else 10**9
        first = load.first_worker + len(load.workers)
        self.rows = iter(range(first, 10**9, load.most_workers))

    def steps(self) -> Any:
        """What to do, one thing after the other, until it is over."""
        while self.turns and not self.is_over:
            self.turns -= 1
            yield self._step()
        self.is_working = False

    def _step(self) -> _Step:
        rng, load = self.rng, self.load
        patience = None
        if load.interrupts and rng.random() < 0.1:
            patience = rng.choice([0, 1e-5, 1e-4])
        dice = rng.random()
        if rng.random() < 0.02:
            return _Step("join", patience=rng.choice([1e-5, 1e-3]))
        if self.produces:
            n = rng.randint(2, 4) if dice < 0.12 else 1
            rows = tuple(next(self.rows) for _ in range(n))
            if n > 1:
                return _Step("enqueue_many", rows, n, patience=patience)
            method = "enqueue_nowait" if dice > 0.8 else "enqueue"
            return _Step(method, rows, patience=patience)
        if load.ends_with is not None and dice < 0.01:
            return _Step("wait_closed", patience=1e-5)
        n = rng.randint(1, load.largest)
        if dice < 0.15:
            return _Step("dequeue_many", n=n, patience=patience)
        if dice < 0.3:
            return _Step("dequeue_up_to", n=n, expired=rng.random() < 0.5, patience=patience)
        return _Step("dequeue_nowait" if dice > 0.85 else "dequeue", patience=patience)

    def call(self, step: _Step, face: Any) -> Callable[[], Any]:
        codec = self.load.codec
        method = getattr(face, step.method)
        if step.method == "enqueue_many":
            return partial(method, codec.batch(step.rows))
        if step.rows:
            return partial(method, codec.element(step.rows[0]))
        if step.method == "dequeue_many":
            return partial(method, step.n)
        if step.method == "dequeue_up_to":
            return partial(method, step.n, 0 if step.expired else None)
        return partial(method)

    def note(self, step: _Step, start: int, result: Any, error: BaseException | None) -> None:
        """Add a call that has just ended to the history."""
        end = perf_counter_ns()
        outcome = "done" if error is None else _OUTCOMES.get(type(error), "undone")
        rows = step.rows
        if error is not None:
            rows = rows[: getattr(error, "enqueued", 0)]
        elif step.method in ("dequeue_many", "dequeue_up_to"):
            rows = self.load.codec.rows(result)
        elif step.method.startswith("dequeue"):
            rows = (self.load.codec.row(result),)
        if outcome == "closed" or (outcome == "out of range" and step.n == 1):
            self.is_over = True
        op = Op(step.method, start, end, outcome, rows, step.n, step.expired)
        op.two_step, op.caller = self.two_step, self.name
        self.history.append(op)
        if op.is_take and rows:
            start = perf_counter_ns()
            self.load.queue.task_done(len(rows))
            done = Op("task_done", start, perf_counter_ns(), n=len(rows), caller=self.name)
            self.history.append(done)

    def work(self) -> None:
        """In a thread."""
        face = self.load.queue.sync
        for step in self.steps():
            can_wait = not step.method.endswith("nowait")
            options = {"timeout": step.patience} if can_wait else {}
            call = partial(self.call(step, face), **options)
            start = perf_counter_ns()
            try:
                result = call()
            except tuple(_OUTCOMES) as error:
                self.note(step, start, None, error)
            else:
                self.note(step, start, result, None)

    async def work_as_task(self) -> None:
        """In an event loop."""
        for step in self.steps():
            call = self.call(step, self.load.queue)
            start = perf_counter_ns()
            if step.method.endswith("nowait"):
                try:
                    result = call()
                except tuple(_OUTCOMES) as error:
                    self.note(step, start, None, error)
                else:
                    self.note(step, start, result, None)
                await checkpoint()
                continue
            with anyio.move_on_after(step.patience):
                try:
                    result = await call()
                except BaseException as error:
                    self.note(step, start, None, error)
                    if type(error) not in _OUTCOMES:
                        raise
                else:
                    self.note(step, start, result, None)


@dataclass
class Load:
    """A queue and those who work at it, chosen by a seed.

    Attributes:
        seed: chooses everything.
        kind: of the queue.
        turns: how many calls each producer makes.
        interrupts: whether calls are cancelled and time out.
        ends_with: how it is closed: when the producers have ended (None), or in the middle of
            their work, with pending enqueues cancelled or not.
        make: makes the queue elsewhere, from kind, capacity and what a shuffle queue keeps; it
            returns a handle. None makes one here.
        first_worker: the number of the first of those who work here.
        has_others: whether others work at the same queue, elsewhere.
    """

    seed: int
    kind: str
    turns: int = 160
    interrupts: bool = False
    ends_with: bool | None = None
    workers: list[_Worker] = field(default_factory=list)
    most_workers: int = 32
    make: Callable[[str, int | None, int], Any] | None = None
    first_worker: int = 0
    has_others: bool = False

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        self.codec = Codec(self.kind)
        self.capacity = rng.choice([1, 2, 3, 5, 8, None])
        keep = rng.randint(0, 2) if self.kind == "shuffle" and self.capacity not in (1, 2) else 0
        if self.capacity is None and self.kind == "shuffle":
            self.capacity = 16
        make = self.make or (lambda _, capacity, keep: self.codec.queue(capacity, keep))
        self.queue = make(self.kind, self.capacity, keep)
        order = self.kind if self.kind in ("shuffle", "priority") else "fifo"
        self.spec = Spec(order, self.capacity, keep, MAX_BYTES.get(self.kind))
        self.largest = 4
        if self.kind == "priority" and self.capacity is not None:
            self.largest = min(4, self.capacity)
        loops = rng.sample(LOOPS, k=min(rng.randint(0, 2), len(LOOPS)))
        self.has_no_loops = not loops
        self._crowd: list[tuple[str, Callable[[], None]]] = []
        for index in range(4 - len(loops)):
            self._add_thread(f"thread {index} producer", produces=True)
            self._add_thread(f"thread {index} consumer", produces=False)
        for index, run in enumerate(loops):
            self._add_loop(f"loop {index}", run, producers=2, consumers=1 + index)

    def run(self) -> list[Op]:
        """Let them work, until all has been taken out; return all of their calls."""
        failures: list[BaseException] = []
        gate = threading.Barrier(len(self._crowd) + 1)

        def guarded(work: Callable[[], None]) -> None:
            try:
                gate.wait(PATIENCE)
                work()
            except BaseException as failure:
                failures.append(failure)
                self.queue.close(cancel_pending_enqueues=True)

        threads = [
            threading.Thread(target=guarded, args=(work,), name=name, daemon=True)
            for name, work in self._crowd
        ]
        for thread in threads:
            thread.start()
        closes: list[Op] = []
        gate.wait(PATIENCE)
        if self.ends_with is not None:
            self._wait(lambda: self._all_produced() or self._is_half_way() or bool(failures))
        else:
            self._wait(lambda: self._all_produced() or bool(failures))
        start = perf_counter_ns()
        self.queue.close(cancel_pending_enqueues=bool(self.ends_with))
        cancels = bool(self.ends_with)
        closes.append(Op("close", start, perf_counter_ns(), cancels=cancels, caller="main"))
        for thread in threads:
            thread.join(2 * PATIENCE)
        stuck = [thread.name for thread in threads if thread.is_alive()]
        if failures:
            raise BaseExceptionGroup(f"{self}", failures)
        assert not stuck, f"{self}: {stuck} never ended: {self.queue.statistics()}"
        if not self.has_others:
            assert len(self.queue) == 0, f"{self}: something is left, and all consumers have gone"
            self.queue.sync.join(timeout=0)
        return [*closes, *(op for worker in self.workers for op in worker.history)]

    def _all_produced(self) -> bool:
        return not any(worker.produces and worker.is_working for worker in self.workers)

    def _is_half_way(self) -> bool:
        return sum(len(worker.history) for worker in self.workers) > 1000

    def _wait(self, condition: Callable[[], bool]) -> None:
        breath = threading.Event()
        deadline = perf_counter_ns() + 4 * PATIENCE * 1e9
        while not condition() and perf_counter_ns() < deadline:
            breath.wait(0.0005)

    def _worker(self, name: str, produces: bool, two_step: bool = False) -> _Worker:
        worker = _Worker(self, name, produces, two_step)
        self.workers.append(worker)
        return worker

    def _add_thread(self, name: str, produces: bool) -> None:
        # A caller of another process takes in two steps, as a task does: it may give back what it
        # was granted.
        two_step = self.make is not None
        self._crowd.append((name, self._worker(name, produces, two_step).work))

    def _add_loop(
        self,
        name: str,
        run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], None],
        producers: int,
        consumers: int,
    ) -> None:
        two_step = run is not run_trio or self.make is not None
        workers = [self._worker(f"{name} producer {i}", True, two_step) for i in range(producers)]
        workers += [self._worker(f"{name} consumer {i}", False, two_step) for i in range(consumers)]

        async def main() -> None:
            async with anyio.create_task_group() as tasks:
                for worker in workers:
                    tasks.start_soon(worker.work_as_task)

        self._crowd.append((name, lambda: run(main)))
