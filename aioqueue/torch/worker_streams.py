"""The streams to and from the workers of a loader.

For the iterator, the workers are a queue of tasks, a `prepare`, and a queue of replies. Each worker
has a coordinator of its own, so its failure surfaces when its batch is due, after the batches
before it; then all workers are stopped.
"""

from __future__ import annotations

import atexit
import itertools
import os
import re
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Literal

from aioqueue import OutOfRangeError, QueueEmpty, inputs
from aioqueue.base.tracebacks import FailureNote, reraise, title_of
from aioqueue.errors import interrupt_of
from aioqueue.sync import BlockingQueue, Coordinator, FIFOQueue
from aioqueue.system.forks import PROCESS
from aioqueue.telemetry import Watch
from aioqueue.torch.batch_pickle import unpacked
from aioqueue.torch.loader_metrics import QUEUE_NAME, LoaderStage
from aioqueue.torch.loader_workers import Begin, Pin, Task, TaskReply, ThreadWorker

_prepare: Final = inputs.prepare
"""It is imported when it is first looked up. The first batch would wait for that."""


Where = Literal["thread", "process"]

_STOP_SECONDS: Final = 5.0
"""Seconds that workers have to end before a failure is raised, or the program ends, without
them."""

_numbers: Final = itertools.count(1)


class WorkerStream:
    """One worker with its queues.

    Args:
        name: its name in messages.
        worker: called with each message.
        where: the kind of worker.
        replies: the queue for its replies.
        ahead: most tasks that may wait for their replies.
        pin: for a process, a last step for each batch in a thread here.
    """

    def __init__(
        self,
        name: str,
        worker: Callable[[Begin | Task], TaskReply | None],
        where: Where,
        replies: BlockingQueue,
        ahead: int,
        pin: Pin | None = None,
    ) -> None:
        self._worker = worker
        self.tasks: FIFOQueue[Any] = FIFOQueue(None, name=f"{name} tasks")
        self.replies = replies
        self.coord: Coordinator = Coordinator()
        # `WorkerStreams` collects the failures of all workers, and only then turns one of them into
        # an interrupt.
        self.coord._keeps_groups = True
        into = replies if pin is None else FIFOQueue(None, name=f"{name} unpinned")
        self._runners = [
            _prepare(
                self.tasks,
                worker,
                into=into,
                workers=1,
                where=where,
                ordered=True,
                max_in_flight=ahead + 1,
                drop_none=True,
            )
        ]
        into._core.series_name = replies._core.series_name = QUEUE_NAME
        self.stage: Any = self._runners[0]._stage
        if pin is not None:
            pinned = _Pinned(pin)
            self._runners.append(_prepare(into, pinned, into=replies, workers=1, ordered=True))

    def start(self) -> None:
        for runner in self._runners:
            self.coord.start(runner)

    def died(self) -> int:
        """Return how many processes of this worker have died."""
        return self._runners[0].statistics().workers_died

    def release(self) -> None:
        """Release everything the worker made or opened, after its end."""
        for queue in (self.tasks, self.replies):
            with suppress(OutOfRangeError, QueueEmpty):
                while True:
                    queue.dequeue_nowait()
        if isinstance(self._worker, ThreadWorker):
            with suppress(
                ValueError
            ):  # the worker has not ended in time, and still runs the generator
                self._worker.close()


class _Pinned:
    """Replies of a process, with their batches in pinned memory."""

    def __init__(self, pin: Pin) -> None:
        self._pin = pin

    def __call__(self, reply: TaskReply) -> TaskReply:
        if reply.has_ended or reply.is_empty:
            return reply
        return replace(reply, batch=self._pin(unpacked(reply.batch)))


class WorkerStreams:
    """All workers of one iterator.

    Args:
        workers: for each worker, the callable for its messages.
        where: the kind of worker.
        in_order: whether each worker has its own reply queue; otherwise all share one.
        ahead: most tasks per worker that may wait for their replies.
        pin: for processes, a last step for each batch in threads here.
        raise_single: whether to raise a single failure as itself.
        watch: where monitors find the workers.
        dataset: the name of the dataset, for monitors.
    """

    def __init__(
        self,
        workers: Sequence[Callable[[Begin | Task], TaskReply | None]],
        where: Where,
        *,
        in_order: bool,
        ahead: int,
        pin: Pin | None,
        raise_single: bool,
        watch: Watch,
        dataset: str,
    ) -> None:
        self._raise_single = raise_single
        self._replies_are_packed = where == "process" and pin is None
        number = next(_numbers)
        common = None if in_order else FIFOQueue(None, name=f"aioqueue-dataloader-{number}")
        self._process = PROCESS.number
        self._streams = []
        for worker_number, worker in enumerate(workers):
            name = f"aioqueue-dataloader-{number}-worker-{worker_number}"
            replies = FIFOQueue(None, name=name) if common is None else common
            self._streams.append(WorkerStream(name, worker, where, replies, ahead, pin))
        # Monitors know the workers before they start: the first batch may be the slow one.
        self._part = LoaderStage([stream.stage for stream in self._streams], dataset)
        watch.add(self._part)
        for stream in self._streams:
            stream.start()
        _running.add(self)

    def send(self, worker: int, message: Begin | Task) -> None:
        self._streams[worker].tasks.enqueue(message)

    def waiting(self) -> int:
        """Return how many replies wait to be received."""
        queues = {id(stream.replies): stream.replies for stream in self._streams}
        return sum(queue.size() for queue in queues.values())

    def died(self) -> int:
        """Return how many processes have died."""
        return sum(stream.died() for stream in self._streams)

    def receive(self, worker: int, timeout: float | None) -> TaskReply:
        """Wait for the next reply of a worker, or of any worker if they share a queue.

        Raises:
            OutOfRangeError: there will be no further reply.
            DeadlineExceededError: the timeout has passed.
        """
        reply: TaskReply = self._streams[worker].replies.dequeue(timeout=timeout)
        return reply

    def batch_of(self, reply: TaskReply) -> Any:
        """Return the batch of a reply that has one.

        Raises:
            Exception: unpickling it failed.
        """
        return unpacked(reply.batch) if self._replies_are_packed else reply.batch

    def end(self) -> None:
        """Wait for the workers to end after their last messages.

        Raises:
            ExceptionGroup: failures that were not raised before.
        """
        for stream in self._streams:
            stream.tasks.close()
        self._raise(self._join(first=0))

    def fail(self, worker: int) -> None:
        """Stop all workers after the failure of one, and raise all failures.

        Raises:
            ExceptionGroup: the failures, those of that worker first.
        """
        self.stop()
        self._raise(self._join(first=worker))

    def stop(self) -> None:
        """Stop all workers without waiting. Any thread, or a finalizer, may call it."""
        if self._process != PROCESS.number:
            return  # a fork has none of the workers
        for stream in self._streams:
            stream.coord.request_stop()

    def join(self) -> None:
        """Wait until the stopped workers have ended; discard their failures."""
        self._join(first=0)  # failures in batches that were not requested

    def release(self) -> None:
        """Release everything the workers made or opened, after their end."""
        for stream in self._streams:
            stream.release()

    def _join(self, first: int) -> list[BaseException]:
        """Wait until the workers have ended; returns what has failed, that of one worker first."""
        failures: list[BaseException] = []
        for stream in sorted(self._streams, key=lambda one: one is not self._streams[first]):
            try:
                stream.coord.join(stop_grace_period=_STOP_SECONDS, ignore_live=True)
            except BaseExceptionGroup as group:
                failures += map(_without_prepare_note, group.exceptions)
        _running.discard(self)
        return failures

    def _raise(self, failures: list[BaseException]) -> None:
        if len(failures) == 1 and self._raise_single:
            reraise(failures[0], is_kept=True)
        if failures:
            reraise(interrupt_of(BaseExceptionGroup(title_of(failures), failures)))


def _without_prepare_note(failure: BaseException) -> BaseException:
    """Return a failure without the note of `prepare`, whose item is one of our messages.

    The worker has added a note that names the batch.
    """
    notes = getattr(failure, "__notes__", [])
    notes[:] = [_titled_note(note) for note in notes if not note.startswith(_PREPARE_NOTES)]
    return failure


def _titled_note(note: str) -> str:
    """Give a worker's note about a batch a title, which groups of failures can have."""
    batch = _BATCH.match(note)
    return note if batch is None else FailureNote(note, f"the DataLoader failed on {batch[1]}")


_BATCH: Final = re.compile(r"while making (batch \d+)")

_PREPARE_NOTES: Final = tuple(f"while preparing item {kind.__name__}(" for kind in (Begin, Task))

_running: Final[weakref.WeakSet[WorkerStreams]] = weakref.WeakSet()
"""Iterators that may have workers."""


def _end_all() -> None:
    """Stop all workers at exit, since threads that still compute then would crash."""
    streams = list(_running)
    for one in streams:
        one.stop()
    for one in streams:
        one.join()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)  # a fork does not have their threads
