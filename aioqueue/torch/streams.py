"""The workers as the iterator sees them: a queue of tasks in, a `prepare`, a queue of replies out.

Each worker has a coordinator of its own. So what one fails with is met where its batch is due, as
the batches before it have come, and all are stopped then.
"""

from __future__ import annotations

import atexit
import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Literal

from aioqueue import OutOfRangeError, QueueEmpty, inputs, sync
from aioqueue.checks import counted
from aioqueue.forks import PROCESS
from aioqueue.torch.parcels import unpacked
from aioqueue.torch.worker import Begin, Pin, Reply, Task, ThreadWorker

__all__ = ("Stream", "Streams", "Where")

Where = Literal["thread", "process"]

_STOPPING: Final = 5.0
"""Seconds that workers have to end before a failure is raised without them, or the program ends."""

_numbers: Final = itertools.count(1)


class Stream:
    """One worker.

    Args:
        name: what messages call it.
        worker: what is called with each message.
        where: what the worker is.
        replies: where its replies go.
        ahead: how many tasks it may be given before their replies are taken.
        pin: for a process, what a thread of ours is to do with each batch.
    """

    def __init__(
        self,
        name: str,
        worker: Callable[[Begin | Task], Reply | None],
        where: Where,
        replies: sync.BlockingQueue,
        ahead: int,
        pin: Pin | None = None,
    ) -> None:
        self._worker = worker
        self.tasks = sync.FIFOQueue(None, name=f"{name} tasks")
        self.replies = replies
        self.coord = sync.Coordinator()
        into = replies if pin is None else sync.FIFOQueue(None, name=f"{name} unpinned")
        self._runners = [
            inputs.prepare(
                self.tasks,
                worker,
                into=into,
                workers=1,
                where=where,
                ordered=True,
                limit=ahead + 1,
                skip_none=True,
            )
        ]
        if pin is not None:
            pinned = _Pinned(pin)
            self._runners.append(
                inputs.prepare(into, pinned, into=replies, workers=1, ordered=True)
            )

    def start(self) -> None:
        """Start the worker."""
        for runner in self._runners:
            self.coord.start(runner)

    def let_go(self) -> None:
        """It has ended: keep nothing of what it has made, or has open."""
        for queue in (self.tasks, self.replies):
            with suppress(OutOfRangeError, QueueEmpty):
                while True:
                    queue.dequeue_nowait()
        if isinstance(self._worker, ThreadWorker):
            with suppress(ValueError):  # it has not ended in time, and is in its generator
                self._worker.close()


class _Pinned:
    """Replies of a process, with their batches in pinned memory."""

    def __init__(self, pin: Pin) -> None:
        self._pin = pin

    def __call__(self, reply: Reply) -> Reply:
        if reply.has_ended:
            return reply
        return replace(reply, batch=self._pin(unpacked(reply.batch)))


class Streams:
    """All workers of one iterator.

    Args:
        workers: what is called with each message, for each worker.
        where: what they are.
        in_order: whether each worker has replies of its own; else they come as they are made.
        ahead: how many tasks a worker may be given before their replies are taken.
        pin: for processes, what threads of ours are to do with each batch.
    """

    def __init__(
        self,
        workers: Sequence[Callable[[Begin | Task], Reply | None]],
        where: Where,
        *,
        in_order: bool,
        ahead: int,
        pin: Pin | None,
    ) -> None:
        self._come_packed = where == "process" and pin is None
        number = next(_numbers)
        common = None if in_order else sync.FIFOQueue(None, name=f"aioqueue-dataloader-{number}")
        self._process = PROCESS.number
        self._streams = []
        for worker_number, worker in enumerate(workers):
            name = f"aioqueue-dataloader-{number}-worker-{worker_number}"
            replies = sync.FIFOQueue(None, name=name) if common is None else common
            self._streams.append(Stream(name, worker, where, replies, ahead, pin))
        for stream in self._streams:
            stream.start()
        _running.add(self)

    def send(self, worker: int, message: Begin | Task) -> None:
        """Give a worker something to do. Never waits."""
        self._streams[worker].tasks.enqueue(message)

    def receive(self, worker: int, timeout: float | None) -> Reply:
        """Wait for the next reply of a worker; of any, if they are not in order.

        Raises:
            OutOfRangeError: there will be none.
            DeadlineExceededError: the timeout has run out.
        """
        reply: Reply = self._streams[worker].replies.dequeue(timeout=timeout)
        return reply

    def batch_of(self, reply: Reply) -> Any:
        """The batch of a reply that has one.

        Raises:
            Exception: what unpickling it has raised.
        """
        return unpacked(reply.batch) if self._come_packed else reply.batch

    def end(self) -> None:
        """Let the workers end, which have done all that they were told, and wait for that.

        Raises:
            ExceptionGroup: what has failed and was not raised before.
        """
        for stream in self._streams:
            stream.tasks.close()
        self._join(first=0)

    def fail(self, worker: int) -> None:
        """Stop all workers, since one has failed, and raise what has failed.

        Raises:
            ExceptionGroup: the failures, those of that worker first.
        """
        self.stop()
        self._join(first=worker)

    def stop(self) -> None:
        """Stop all workers. Does not wait; may be called from any thread, and by a finalizer."""
        if self._process != PROCESS.number:
            return  # a fork, which has none of them
        for stream in self._streams:
            stream.coord.request_stop()

    def join(self) -> None:
        """Wait until the workers have ended that were stopped; what has failed is nobody's."""
        try:
            self._join(first=0)
        except BaseExceptionGroup:
            pass  # of batches that nobody has asked for

    def let_go(self) -> None:
        """Keep nothing of what the workers have made, or have open: they have ended."""
        for stream in self._streams:
            stream.let_go()

    def _join(self, first: int) -> None:
        failures: list[BaseException] = []
        for stream in sorted(self._streams, key=lambda one: one is not self._streams[first]):
            try:
                stream.coord.join(stop_grace_period=_STOPPING, ignore_live=True)
            except BaseExceptionGroup as group:
                failures += map(_without_our_words, group.exceptions)
        _running.discard(self)
        if failures:
            count = counted(len(failures), "failure")
            raise BaseExceptionGroup(f"{count} among the workers of a DataLoader", failures)


def _without_our_words(failure: BaseException) -> BaseException:
    """A failure without the note of `prepare`, to which a message of ours was its item.

    The worker has noted which batch that was.
    """
    notes = getattr(failure, "__notes__", [])
    notes[:] = [note for note in notes if not note.startswith(_OUR_WORDS)]
    return failure


_OUR_WORDS: Final = tuple(f"while preparing item {kind.__name__}(" for kind in (Begin, Task))

_running: Final[weakref.WeakSet[Streams]] = weakref.WeakSet()
"""Those that may have workers."""


def _end_all() -> None:
    """The program ends: threads that compute then would be struck in the middle of that."""
    streams = list(_running)
    for one in streams:
        one.stop()
    for one in streams:
        one.join()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)  # their threads are not in the fork
