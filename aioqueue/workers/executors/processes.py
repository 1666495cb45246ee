"""`ProcessExecutor`: prepares items in worker processes, and enforces their time limit.

Each process has a thread here that talks to it through a pipe: it sends items in chunks, one chunk
ahead, and enqueues the results. One more thread takes items from the source. Arrays come back
through shared memory and are copied from there into the queue.

The parent tracks which items a process has, and removes each when its whole outcome has arrived. So
if a process dies, at any moment, exactly its remaining items are prepared again, and every item is
delivered once.

`Clock` is one timer for all processes. A process writes the time when it begins an item into shared
memory, so an item that still waits in a process does not count as slow.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from aioqueue import WorkerDiedError
from aioqueue.base.arguments import EnqueueOp
from aioqueue.errors import add_note
from aioqueue.items.item import Item, Prepared
from aioqueue.processes.arena import NONE, Arena, unpack
from aioqueue.processes.messages import Succession, failure_of_message, how_it_ended
from aioqueue.processes.program import (
    CannotStartError,
)
from aioqueue.processes.start import get_ready
from aioqueue.processes.worker import (
    WorkerProcess,
    cannot_start,
    check_may_start,
    ended_at_exit,
    not_importable,
    pickled,
)
from aioqueue.system.locks import guarded
from aioqueue.telemetry.explanation import ExplainedWorker
from aioqueue.workers.executor import Executor
from aioqueue.workers.executors.worker_process import (
    Assignments,
    Outcome,
    SendPace,
    Sent,
    WorkerReport,
    work,
)
from aioqueue.workers.executors.worker_threads import (
    ThreadDelivery,
    ThreadInbox,
    ThreadSource,
    WorkerThreads,
)
from aioqueue.workers.flow_control import Pending
from aioqueue.workers.job import Job, NothingMore
from aioqueue.workers.stage_metrics import explained_item
from aioqueue.workers.timing import WorkerGauge


class Timed(Protocol):
    """A process, as far as the clock needs it."""

    books: Assignments
    arena: Arena


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

    @guarded
    def stop(self) -> None:
        """End the watch."""
        self._is_over = True
        self._changed.notify_all()

    def _wait(self, processes: Sequence[TimedT]) -> None:
        """Wait until the nearest possible deadline. Called under the lock."""
        if self._is_over or self._job.is_halted:
            raise self._job.nothing_more()
        left = min(map(self._left, filter(_is_busy, processes)), default=None)
        if left is None or left > 0:
            self._is_unlimited = left is None
            self._changed.wait(left)
            self._is_unlimited = False

    def _left(self, process: TimedT) -> float:
        """Return the seconds until a process is too slow: the whole time if it is about to begin an
        item. A process that is being killed gets the whole time again."""
        number = process.arena.item
        if number == NONE or process.books.find(number) is None or process.books.overdue:
            return self._timeout
        return max(0.0, self._timeout - process.arena.seconds)

    def _slow(self, processes: Sequence[TimedT]) -> list[tuple[TimedT, int]]:
        busy = [(process, process.arena.item) for process in processes]
        return [
            (process, number)
            for process, number in busy
            if process.books.find(number) is not None and self._left(process) <= 0
        ]


def _is_busy(process: Timed) -> bool:
    return len(process.books) > 0


_SAYS: Final = 0.25
"""Seconds that a process has to report its stack before it is killed."""

_log: Final = logging.getLogger("aioqueue")


class PreparingProcess(WorkerProcess):
    """A `WorkerProcess`, with its assignments.

    Args:
        name: its name.
        arena_size: the bytes of memory that it shares with us.
        gauge: the gauge of its worker.
    """

    def __init__(self, name: str, arena_size: int, gauge: WorkerGauge) -> None:
        self.books: Assignments = Assignments()
        self.gauge = gauge
        super().__init__(name, arena_size, work)
        gauge.name = self.name
        gauge.get_item = self._item

    def explained(self, seconds: float) -> ExplainedWorker:
        """Return what it does now. Any thread may call it.

        Args:
            seconds: how long to wait for its stack.
        """
        number, age = self.arena.item, self.arena.seconds
        pending = self.books.find(number)
        item = None if pending is None else explained_item(pending.item, pending.failures, age)
        stack, state, note = self.condition(seconds)
        return ExplainedWorker(self.name, state, item, stack=stack, note=note)

    def _item(self) -> Item | None:
        """Return the item that it prepares, if any. Any thread may call it."""
        pending = self.books.find(self.arena.item)
        return None if pending is None else pending.item

    def receive(self) -> WorkerReport | None:
        """Wait for its next report; ``None`` if it has died."""
        message = self.receive_message()
        if message is None:
            return None
        report: WorkerReport = pickle.loads(message)
        return report

    def exitcode(self) -> int:
        """Return the exit code as `WorkerProcess` does, and note how far it came."""
        exitcode = super().exitcode()
        self.books.has_begun = self.arena.has_begun
        return exitcode


class ProcessExecutor(Executor):
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
    limit_bytes = 64 * 2**20
    most_workers = None
    is_async = False
    is_timed = None
    takes_ray = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._lock = job.lock  # guards all below
        self._payload = pickled(job.call, job.call.function)
        self._source = ThreadSource(job, waits_till_low=True)
        self._delivery = ThreadDelivery(job)
        self._inbox = ThreadInbox(job, self._source, self._delivery)
        self._threads = WorkerThreads(job, self._source)
        self._processes: set[PreparingProcess] = set()
        self._pace = SendPace()
        self._started = 0
        self._none_can_work = False
        self._is_ending = False  # the program is
        dtypes = job.into.dtypes
        keeps = dtypes is None or any(dtype.hasobject for dtype in dtypes)
        self._copy = bytearray if keeps else None
        """Makes an array private; a queue of typed components copies it anyway."""
        limit = job.window.limit_bytes
        assert limit is not None
        self._arena_size = 2 * min(max(limit, 2**20), 2**40)  # a larger one cannot be mapped
        self._clock: Clock[PreparingProcess] | None = None
        if job.item_timeout is not None:
            self._clock = Clock(job, job.item_timeout)
        ended_at_exit(self)
        get_ready(work.__module__)

    def enqueue_ops(self) -> list[EnqueueOp]:
        ops = [*self._threads.enqueue_ops(self._work), *self._source.enqueue_ops(), self.take_items]
        return ops if self._clock is None else [*ops, self.watch_time]

    def watch_time(self) -> None:
        """Run the thread that enforces the time limit."""
        assert self._clock is not None
        self._threads.helper(partial(self._clock.watch, self._all, self._cut_short))

    def take_items(self) -> None:
        """Run the thread that takes items from the source."""
        self._threads.helper(self._inbox.take_items)

    def stop(self) -> None:
        self._source.stop()
        self._threads.stop()
        self._inbox.stop()
        if self._clock is not None:
            self._clock.stop()
        for process in self._all():
            process.kill()

    def notify_room(self) -> None:
        self._source.notify_room()
        self._inbox.notify_room()

    def notify_resize(self) -> None:
        self._source.notify_resize()
        self._inbox.notify_resize()

    def end(self) -> BaseException | None:
        if self._clock is not None:
            self._clock.stop()
        return self._source.close()

    def _cut_short(self, process: PreparingProcess, number: int) -> None:
        """Kill a process that takes too long for an item, unless the item is just done."""
        job = self._job
        pending = process.books.find(number)
        stack = process.stack(_SAYS)
        if pending is None or process.arena.item != number:
            return
        process.books.overdue = number, job.timeout_error(pending.item, stack)
        process.kill()

    def start_no_more(self) -> None:
        """Replace no more processes, because the program ends."""
        self._is_ending = True

    def kill_at_exit(self) -> None:
        """Kill all processes at the end of the program; their threads then end too."""
        for process in self._all():
            process.kill_at_exit()

    @guarded
    def _all(self) -> list[PreparingProcess]:
        return list(self._processes)

    def _is_over(self) -> bool:
        """Return whether no process may be started or replaced any more."""
        return self._job.is_halted or self._is_ending

    def _work(self, worker: WorkerGauge) -> None:
        """Do the work of one worker's thread, until no work is left."""
        succession = Succession()
        worker.process_starting()
        while True:
            process = self._started_process(worker)
            worker.in_progress.process = process
            try:
                exitcode = self._work_till_its_end(process)
            finally:
                worker.in_progress.process = worker.get_item = None  # break the reference cycle
            worker.deaths += 1
            why = succession.why_the_last(process.name, process.books, exitcode)
            if why is not None:
                raise self._once(WorkerDiedError(why, exitcode=exitcode))

    def _started_process(self, worker: WorkerGauge) -> PreparingProcess:
        """Start a process.

        Raises:
            RuntimeError: this process is a worker itself, which is importing the main module.
        """
        if self._is_over():
            raise self._job.nothing_more()
        try:
            # Not earlier: a main module may define a pipeline, and iterate under its guard.
            check_may_start()
        except RuntimeError as error:
            raise self._once(error) from None
        with self._lock:
            name = f"aioqueue-{self._job.progress.name}-{self._started}"
            self._started += 1
        try:
            process = PreparingProcess(name, self._arena_size, worker)
        except CannotStartError as error:
            raise self._once(cannot_start(name, error)) from error
        with self._lock:
            self._processes.add(process)
        if self._is_over():  # the stop may have missed this process
            process.kill()
        return process

    def _work_till_its_end(self, process: PreparingProcess) -> int:
        """Run `_work_with`, and end the process afterwards."""
        at_once = True
        try:
            return self._work_with(process)
        except NothingMore:
            at_once = self._is_over()
            raise
        finally:
            process.end(at_once=at_once)
            with self._lock:  # not earlier: until then a stop has to be able to kill it
                self._processes.discard(process)

    def _work_with(self, process: PreparingProcess) -> int:
        """Have a process prepare until nothing is left to do, or it has died.

        Returns:
            Its exit code, if it has died.
        """
        process.send(self._payload)
        report = process.receive()
        if report is None:
            return self._recover(process)
        process.books.is_ready = True
        process.gauge.process_ready()
        if report.refusal is not None:
            error = not_importable(self._job.call.function)
            error.__cause__ = failure_of_message(report.refusal)
            raise self._once(error)
        while True:
            self._feed_process(process)
            report = process.receive()
            if report is None:
                return self._recover(process)
            self._accept(process, report)

    def _once(self, error: Exception) -> Exception:
        """Return a failure that every process will have, so that only the first one reports it."""
        with self._lock:
            is_first, self._none_can_work = not self._none_can_work, True
        return error if is_first else self._job.nothing_more()

    def _feed_process(self, process: PreparingProcess) -> None:
        """Send items until the process has some ahead or there are none; wait for the first."""
        books = process.books
        size, ahead = self._chunk()
        while len(books) <= ahead:
            pendings = self._inbox.take_for(process.gauge, size, is_busy=bool(process.books))
            if not pendings:
                return
            chunk: list[Sent] = []
            for pending in pendings:
                try:
                    chunk.append(books.enter(pending))
                except Exception as error:
                    add_note(error, "while pickling the item")
                    self._failed(pending, error)
            process.send(books.message(chunk))
            if self._clock is not None:
                self._clock.begins()

    def _chunk(self) -> tuple[int, int]:
        """Return `SendPace.chunk`. With a key limit nothing is sent ahead, because an item that
        only waits would take the place of one that could be prepared."""
        return self._pace.chunk() if self._job.key_limit is None else (1, 0)

    def _accept(self, process: PreparingProcess, report: WorkerReport) -> None:
        """Process a report of a process."""
        if report.outcomes:
            calls = len(report.outcomes)
            self._pace.note(report.seconds, calls)
            process.gauge.calls_reported(report.seconds, report.cpu, report.cpu_sampled, calls)
        for outcome in report.outcomes:
            number, message, _, has_failed = outcome
            pending = process.books.take_off(number)
            if has_failed:
                self._failed(pending, failure_of_message(message))
            else:
                self._arrived(process, pending, outcome)

    def _arrived(self, process: PreparingProcess, pending: Pending, outcome: Outcome) -> None:
        _, message, blocks, _ = outcome
        release = process.books.release_of(blocks)
        try:
            examples = unpack(message, blocks, process.arena, self._copy)
        except Exception as error:
            if release is not None:
                release()
            add_note(error, "while unpickling what the function returned")
            self._failed(pending, error)
            return
        self._inbox.release_place(pending)
        prepared = Prepared(pending.item, examples, failures=pending.failures, release=release)
        if examples:  # an item without examples has no size
            prepared.size = len(message) + sum([size for _, size in blocks])
        self._delivery.deliver(prepared)

    def _failed(self, pending: Pending, error: Exception) -> None:
        self._inbox.release_place(pending)
        self._inbox.failed(pending, error)

    def _recover(self, process: PreparingProcess) -> int:
        """Prepare the items of a dead process again.

        Returns:
            Its exit code.

        Raises:
            NothingMore: we have ended it ourselves.
        """
        job = self._job
        if self._is_over():
            raise job.nothing_more()
        exitcode = process.exitcode()
        if process.books.overdue is not None:
            self._go_on_without(process)
            return exitcode
        job.progress.worker_died()
        loss = process.books.lost(process.arena.item)
        _log.warning(
            "worker process %s %s%s; %d of its items will be prepared again",
            process.name,
            how_it_ended(exitcode),
            "" if process.books.is_ready else " while it started",
            len(loss.to_do),
        )
        self._inbox.put_back(loss.to_do)
        if loss.given_up is not None:
            self._give_up(loss.given_up, exitcode)
        return exitcode

    def _go_on_without(self, process: PreparingProcess) -> None:
        """Continue after killing a process: its slow item has failed."""
        late = process.books.cut_short()
        self._inbox.put_back(process.books.lost(NONE).to_do)
        if late is not None:
            self._job.progress.timed_out()
            self._failed(*late)

    def _give_up(self, culprit: Pending, exitcode: int) -> None:
        """Fail an item that too many processes have died of."""
        self._inbox.release_place(culprit)
        error = WorkerDiedError(
            f"{culprit.deaths} worker processes have died of one item; the last one"
            f" {how_it_ended(exitcode)}",
            exitcode=exitcode,
        )
        self._job.progress.give_up(culprit.item, error, culprit.failures + culprit.deaths)
        skipped = Prepared(culprit.item, failures=culprit.failures, is_skipped=True)
        self._delivery.deliver(skipped)
