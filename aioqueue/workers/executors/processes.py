"""`ProcessExecutor`: prepares items in worker processes, and enforces their time limit.

The rules are those of `ChunkExecutor`; here is how a process is started, spoken to and ended.
Arrays come back through shared memory and are copied from there into the queue. A process writes
the number of the item that it begins into shared memory, so its death has a known culprit.

`Clock` is one timer for all processes. A process also writes the time when it begins an item, so an
item that still waits in a process does not count as slow.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from aioqueue import ItemTimeoutError, WorkerDiedError
from aioqueue.base.arguments import EnqueueOp
from aioqueue.errors import add_note
from aioqueue.items.item import Item, Prepared
from aioqueue.processes.arena import NO_ITEM, Arena, Block, unpack
from aioqueue.processes.failures import failure_of_message
from aioqueue.processes.fork_server.bootstrap import CannotStartError
from aioqueue.processes.fork_server.spawn import get_ready
from aioqueue.processes.function_pickles import not_importable, pickled
from aioqueue.processes.respawning import RespawnPolicy, how_it_ended
from aioqueue.processes.worker_process import (
    WorkerProcess,
    cannot_start,
    check_may_start,
    end_at_exit,
)
from aioqueue.system.locks import synchronized
from aioqueue.telemetry.explain.explanation import ExplainedWorker
from aioqueue.workers.executors.chunks import (
    Assignments,
    ChunkExecutor,
    Chunking,
    ConnectionLost,
    Loss,
    WhyNotReplaced,
)
from aioqueue.workers.executors.process_child import Outcome, Sent, WorkerReport, work
from aioqueue.workers.flow_control import Pending
from aioqueue.workers.job import Job
from aioqueue.workers.stage_metrics import explained_item
from aioqueue.workers.timing import WorkerGauge


class Timed(Protocol):
    """A process, as far as the clock needs it."""

    assignments: Assignments
    arena: Arena
    overdue: tuple[int, ItemTimeoutError] | None


TimedT = TypeVar("TimedT", bound=Timed)


class Clock(Generic[TimedT]):
    """Finds processes that take too long for an item.

    Args:
        job: the job of the processes.
        timeout: seconds that an item may take.
    """

    def __init__(self, job: Job, timeout: float) -> None:
        self._job = job
        self._lock = job.lock
        self._timeout = timeout
        self._changed = threading.Condition(job.lock)
        self._is_unlimited = False  # it waits until a process has something to do
        self._is_over = False

    def watch(
        self,
        processes: Callable[[], Sequence[TimedT]],
        too_slow: Callable[[TimedT, int], object],
    ) -> None:
        """Watch until there is nothing more to do.

        Args:
            processes: returns the current processes.
            too_slow: called in the clock's thread with a process and the number of its item.

        Raises:
            NothingMore: there is nothing more to do.
        """
        while True:
            with self._lock:
                self._wait(processes())
            for process, number in self._slow(processes()):
                too_slow(process, number)

    def begins(self) -> None:
        """Note that a process has something to do."""
        if self._is_unlimited:
            with self._lock:
                self._changed.notify_all()

    @synchronized
    def stop(self) -> None:
        self._is_over = True
        self._changed.notify_all()

    def _wait(self, processes: Sequence[TimedT]) -> None:
        """Wait until the nearest possible deadline. Called under the lock."""
        if self._is_over or self._job.is_halted:
            raise self._job.nothing_more()
        # First the flag, then the look. A thread that sends an item does it the other way round and
        # without this lock: it adds the item, then reads the flag (`begins`). So either the item is
        # seen here, or the thread sees the flag and ends the wait.
        self._is_unlimited = True
        left = min(map(self._left, filter(_is_busy, processes)), default=None)
        if left is None or left > 0:
            self._is_unlimited = left is None
            self._changed.wait(left)
        self._is_unlimited = False

    def _left(self, process: TimedT) -> float:
        """Return the seconds until a process is too slow: the whole time if it is about to begin an
        item."""
        number = process.arena.item
        # The number alone may be that of an item whose outcome has arrived. And a process that is
        # being killed must not be found slow again and again until it has ended.
        if number == NO_ITEM or process.assignments.find(number) is None or process.overdue:
            return self._timeout
        return max(0.0, self._timeout - process.arena.seconds)

    def _slow(self, processes: Sequence[TimedT]) -> list[tuple[TimedT, int]]:
        busy = [(process, process.arena.item) for process in processes]
        return [
            (process, number)
            for process, number in busy
            if process.assignments.find(number) is not None and self._left(process) <= 0
        ]


def _is_busy(process: Timed) -> bool:
    return len(process.assignments) > 0


_STACK_SECONDS: Final = 0.25
"""Seconds that a process has to report its stack before it is killed."""


class PreparingProcess(WorkerProcess):
    """A worker process as a `Connection`.

    Args:
        name: its name.
        arena_size: the bytes of memory that it shares with us.
        gauge: the gauge of its worker.
        copy: makes an array private; ``None`` leaves it in the shared memory until it is enqueued.
    """

    def __init__(
        self,
        name: str,
        arena_size: int,
        gauge: WorkerGauge,
        copy: Callable[[memoryview], Any] | None,
    ) -> None:
        self.assignments: Assignments = Assignments()
        self.overdue: tuple[int, ItemTimeoutError] | None = None
        """Why it is being killed: the number of the item that took too long, and its failure."""
        self.gauge = gauge
        self._copy = copy
        self._freed: deque[int] = deque()  # places in the arena that it may reuse
        super().__init__(name, arena_size, work)
        gauge.name = self.name
        gauge.get_item = self._item

    pickled: Any = staticmethod(partial(pickle.dumps, protocol=5))  # no Python call for each item

    def send(self, chunk: list[Sent]) -> None:
        """Send items, and the places in the arena that were freed meanwhile."""
        freed = [self._freed.popleft() for _ in range(len(self._freed))]
        self.send_message(pickle.dumps((freed, chunk), 5))

    def receive(self) -> WorkerReport:
        report: WorkerReport | None = self.receive_reply()
        if report is None:
            raise ConnectionLost
        return report

    def unpacked(self, pending: Pending, outcome: Outcome) -> Prepared | Exception:
        _, message, blocks, has_failed = outcome
        if has_failed:
            return failure_of_message(message)
        release = self.release_of(blocks)
        try:
            examples = unpack(message, blocks, self.arena, self._copy)
        except Exception as error:
            if release is not None:
                release()
            add_note(error, "while unpickling what the function returned")
            return error
        prepared = Prepared(pending.item, examples, failures=pending.failures, release=release)
        if examples:  # an item without examples has no size
            prepared.size = len(message) + sum([size for _, size in blocks])
        return prepared

    def release_of(self, blocks: Iterable[Block]) -> Callable[[], None] | None:
        """Return a callback that frees places once they were read; ``None`` if there are none.

        Any thread may call it.
        """
        return partial(self._freed.extend, [start for start, _ in blocks]) if blocks else None

    def loss(self) -> Loss:
        exitcode = self.exitcode()
        # The process writes the number before it begins an item, and it is the last that it wrote.
        suspects = (self.arena.item,)
        return Loss(how_it_ended(exitcode), exitcode, suspects, True, self.overdue)

    def loss_message(self, loss: Loss, items: int) -> str:
        when = "" if self.is_ready else " while it started"
        return (
            f"worker process {self.name} {loss.how}{when};"
            f" {items} of its items will be prepared again"
        )

    def explained(self, seconds: float) -> ExplainedWorker:
        """Return what it does now. Any thread may call it.

        Args:
            seconds: how long to wait for its stack.
        """
        number, age = self.arena.item, self.arena.seconds
        pending = self.assignments.find(number)
        item = None if pending is None else explained_item(pending.item, pending.failures, age)
        stack, state, note = self.condition(seconds)
        return ExplainedWorker(self.name, state, item, stack=stack, note=note)

    def _item(self) -> Item | None:
        """Return the item that it prepares, if any. Any thread may call it."""
        pending = self.assignments.find(self.arena.item)
        return None if pending is None else pending.item


class ProcessExecutor(ChunkExecutor[PreparingProcess]):
    """Calls the function in processes. Each process has a thread here that feeds it.

    Args:
        job: the job.

    Raises:
        InvalidArgumentError: the function cannot be pickled.
    """

    where = "process"
    worker_name = "process"
    worker_plural = "processes"
    per_worker = 128
    limit_bytes: ClassVar[int | None] = 64 * 2**20
    most_workers: ClassVar[int | None] = None
    is_async = False
    is_timed: ClassVar[bool | None] = None
    takes_ray = False

    def __init__(self, job: Job) -> None:
        super().__init__(job, Chunking(), "worker processes")
        self._payload = pickled(job.call, job.call.function)
        self._processes: set[PreparingProcess] = set()
        self._started = 0
        self._is_ending = False  # the program is
        dtypes = job.into.dtypes
        keeps = dtypes is None or any(dtype.hasobject for dtype in dtypes)
        # A queue of objects keeps the arrays themselves: they must not be in the shared memory,
        # which is reused. A queue of typed components copies them anyway.
        self._copy = bytearray if keeps else None
        limit = job.window.limit_bytes
        assert limit is not None
        self._arena_size = 2 * min(max(limit, 2**20), 2**40)  # a larger one cannot be mapped
        self._clock: Clock[PreparingProcess] | None = None
        if job.item_timeout is not None:
            self._clock = Clock(job, job.item_timeout)
        end_at_exit(self)
        get_ready(work.__module__)

    def connect(self, gauge: WorkerGauge) -> PreparingProcess:
        """Start a process.

        Raises:
            RuntimeError: this process is a worker itself, which is importing the main module.
        """
        if self.is_over():
            raise self._job.nothing_more()
        try:
            # Not earlier: a main module may define a pipeline, and iterate under its guard.
            check_may_start()
        except RuntimeError as error:
            raise self.report_once(error) from None
        with self._lock:
            name = f"aioqueue-{self._job.progress.name}-{self._started}"
            self._started += 1
        try:
            process = PreparingProcess(name, self._arena_size, gauge, self._copy)
        except CannotStartError as error:
            raise self.report_once(cannot_start(name, error)) from error
        with self._lock:
            self._processes.add(process)
        # First add, then look: a stop that came before it was added could not kill it.
        if self.is_over():
            process.kill()
        return process

    def wait_until_ready(self, process: PreparingProcess) -> None:
        ready = process.assign(self._payload)
        if ready is None:
            raise ConnectionLost
        process.gauge.process_ready()
        if ready.refusal is not None:
            error = not_importable(self._job.call.function)
            error.__cause__ = failure_of_message(ready.refusal)
            raise self.report_once(error)

    def disconnect(self, process: PreparingProcess, *, at_once: bool) -> None:
        process.end(at_once=at_once)
        with self._lock:  # not earlier: until then a stop has to be able to kill it
            self._processes.discard(process)

    def replacements(self) -> WhyNotReplaced[PreparingProcess]:
        return partial(_why_not_replaced, RespawnPolicy())

    def is_over(self) -> bool:
        return self._job.is_halted or self._is_ending

    def enqueue_ops(self) -> list[EnqueueOp]:
        ops = super().enqueue_ops()
        return ops if self._clock is None else [*ops, self.watch_time]

    def watch_time(self) -> None:
        assert self._clock is not None
        self._threads.helper(partial(self._clock.watch, self._all, self._end_overdue))

    def stop(self) -> None:
        super().stop()
        if self._clock is not None:
            self._clock.stop()
        for process in self._all():
            process.kill()

    def end(self) -> BaseException | None:
        if self._clock is not None:
            self._clock.stop()
        return super().end()

    def stop_replacing(self) -> None:
        self._is_ending = True

    def kill_at_exit(self) -> None:
        for process in self._all():
            process.kill_at_exit()

    def _send(self, process: PreparingProcess, pendings: list[Pending]) -> None:
        super()._send(process, pendings)
        if self._clock is not None:
            self._clock.begins()

    def _end_overdue(self, process: PreparingProcess, number: int) -> None:
        """Kill a process that takes too long for an item, unless the item is just done."""
        job = self._job
        pending = process.assignments.find(number)
        stack = process.stack(_STACK_SECONDS)
        # The stack takes a while, and the item may have ended meanwhile. If it ends after this
        # look, its outcome may arrive before the kill: then `ChunkExecutor` finds nobody to fail.
        if pending is None or process.arena.item != number:
            return
        process.overdue = number, job.timeout_error(pending.item, stack)
        process.kill()

    @synchronized
    def _all(self) -> list[PreparingProcess]:
        return list(self._processes)


def _why_not_replaced(
    policy: RespawnPolicy, process: PreparingProcess, loss: Loss
) -> WorkerDiedError | None:
    why = policy.why_not_replaced(process.name, process, loss.exitcode)
    return None if why is None else WorkerDiedError(why, exitcode=loss.exitcode)
