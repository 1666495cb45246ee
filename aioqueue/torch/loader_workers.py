"""What a worker of the loader does: `prepare` calls it with one message after the other.

A worker is told to begin an epoch, and then which batches to make. On a thread it has its copy of
the dataset from the start; in a process it unpickles that when it is first told to begin.

The workers as the iterator sees them: a queue of tasks in, a `prepare`, a queue of replies out.

Each worker has a coordinator of its own. So what one fails with is met where its batch is due, as
the batches before it have come, and all are stopped then.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pickle
import random
import re
import reprlib
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import torch

from aioqueue import (
    InvalidArgumentError,
    OutOfRangeError,
    QueueEmpty,
    WorkerDiedError,
    inputs,
    sync,
)
from aioqueue.coordination.classify import add_note
from aioqueue.forks import PROCESS
from aioqueue.processes.worker import UnknownToOthersError, dumped
from aioqueue.torch.batch_pickle import SharingPickler, packed, unpacked
from aioqueue.torch.collate import BatchMemory
from aioqueue.torch.dataset_copies import copy_for_thread
from aioqueue.torch.fetch import DatasetStart, DatasetState, Exhausted, Fetcher, Recipe, fetcher_of
from aioqueue.torch.worker_info import (
    Initialising,
    be_the_worker,
    is_initialising,
    seeds_of,
    this_is_worker,
    worker_info,
)
from aioqueue.tracebacks import FailureNote, raise_again, title_of

__all__ = (
    "Begin",
    "Pin",
    "ProcessWorker",
    "SharedWorkerState",
    "Stream",
    "Streams",
    "Task",
    "TaskReply",
    "ThreadWorker",
    "Where",
    "pickled",
)


class Begin(NamedTuple):
    """The message by which an epoch begins."""

    epoch: int
    start: DatasetStart


class Task(NamedTuple):
    """The message that asks for a batch."""

    epoch: int
    number: int
    """Of the batch, in the order of the sampler."""
    index: Any
    """What the sampler has given."""

    def note(self) -> str:
        """What a failure in it is told to have happened in."""
        indices = [self.index] if not isinstance(self.index, list) else self.index
        if all(index is None for index in indices):  # the dataset is iterable
            return f"while making batch {self.number}"
        what = "indices" if isinstance(self.index, list) else "index"
        return f"while making batch {self.number} of {what} {reprlib.repr(self.index)}"


@dataclass(frozen=True)
class TaskReply:
    """What has become of a task."""

    worker: int
    batch: Any = None
    """On its way out of a process it is a `Parcel`."""
    standing: DatasetState | None = None
    """Where an iterable dataset is after this batch."""
    has_ended: bool = False
    """There is no batch: the iterable dataset of this worker has no more."""


@dataclass(frozen=True)
class SharedWorkerState:
    """What all workers of an iterator have in common."""

    recipe: Recipe
    init_fn: Callable[[int], object] | None
    size: int
    base_seed: int


class Pin:
    """Copies batches to pinned memory, in one thread.

    Args:
        device_index: the device that is current where the loader is iterated.
    """

    def __init__(self, device_index: int) -> None:
        self._device_index = device_index
        self._is_set = False

    def __call__(self, batch: Any) -> Any:
        if not self._is_set:
            torch.accelerator.set_device_index(self._device_index)
            self._is_set = True
        return torch.utils.data._utils.pin_memory.pin_memory(batch)


class _Worker:
    """What workers do on threads and in processes alike.

    Args:
        number: which one it is, from 0.
        memory: where it makes large batches.
    """

    def __init__(self, number: int, memory: BatchMemory) -> None:
        self.__name__ = f"dataloader-worker-{number}"  # after which threads are named
        self._number = number
        self._memory = memory
        self._epoch = 0  # before the first
        self._fetcher: Fetcher | None = None

    def __call__(self, message: Begin | Task) -> TaskReply | None:
        """Do what a message says; there is a reply to a task."""
        try:
            if isinstance(message, Task):
                return self._reply(message)
            self._begin(message)
            return None
        except BaseException as error:
            add_note(
                error,
                message.note()
                if isinstance(message, Task)
                else f"while DataLoader worker {self._number} began its epoch",
            )
            raise

    def close(self) -> None:
        """Close what the dataset has open for the epoch. For who has seen the worker end."""
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            fetcher.close()

    def _begin(self, message: Begin) -> None:
        crew = self._set_up()
        self._fetcher = fetcher_of(crew.recipe, message.start, self._memory)
        self._epoch = message.epoch

    def _set_up(self) -> SharedWorkerState:
        """Make this thread or process a worker, the first time."""
        raise NotImplementedError

    def _reply(self, task: Task) -> TaskReply:
        if self._fetcher is None or task.epoch != self._epoch:
            raise WorkerDiedError(
                f"the process of DataLoader worker {self._number} has died (the log says of what),"
                " and what it knew of the epoch with it: its batches are not made again"
            )
        try:
            batch = self._finished(self._fetcher.fetch(task.index))
        except Exhausted:
            return TaskReply(self._number, has_ended=True)
        return TaskReply(self._number, batch, self._fetcher.standing())

    def _finished(self, batch: Any) -> Any:
        """A batch as it leaves the worker."""
        raise NotImplementedError


class ThreadWorker(_Worker):
    """A worker that is a thread of this process.

    Args:
        number: which one it is, from 0.
        crew: what it shares with the others; the dataset is copied.
        pin: what to do with each batch at last.
        memory: where all of them make large batches.
        initialising: what calls ``worker_init_fn``.

    Raises:
        TypeError: the dataset cannot be copied.
    """

    def __init__(
        self,
        number: int,
        crew: SharedWorkerState,
        pin: Pin | None,
        memory: BatchMemory,
        initialising: Initialising,
    ) -> None:
        super().__init__(number, memory)
        recipe = crew.recipe
        dataset = copy_for_thread(recipe.dataset, is_iterable=recipe.is_iterable)
        self._crew = replace(crew, recipe=replace(recipe, dataset=dataset))
        self._pin = pin
        self._initialising = initialising
        self._is_apart = not is_initialising()
        self._is_set_up = False
        self._has_tried = threading.Event()
        # They are those of the thread that asks for batches, as a fork of it would have them.
        self._has_grad = torch.is_grad_enabled()
        self._is_inference = torch.is_inference_mode_enabled()

    def __call__(self, message: Begin | Task) -> TaskReply | None:
        if not self._is_inference:
            return super().__call__(message)
        with torch.inference_mode():
            return super().__call__(message)

    def wait_until_set_up(self) -> None:
        """Wait until ``worker_init_fn`` has returned, or failed."""
        self._has_tried.wait()

    def _set_up(self) -> SharedWorkerState:
        crew, number = self._crew, self._number
        if self._is_set_up:
            return crew
        self._is_set_up = True
        try:
            _compute_alone()
            torch.set_grad_enabled(self._has_grad)
            dataset = crew.recipe.dataset
            this_is_worker(worker_info(number, crew.size, crew.base_seed, dataset, "thread"))
            if crew.init_fn is not None:
                self._initialising(crew.init_fn, number, is_apart=self._is_apart)
        finally:
            self._has_tried.set()
        return crew

    def _finished(self, batch: Any) -> Any:
        return batch if self._pin is None else self._pin(batch)


class ProcessWorker(_Worker):
    """A worker that is a process; it is made in the parent, and sent there.

    Args:
        number: which one it is, from 0.
        payload: the crew, by `pickled`.
    """

    def __init__(self, number: int, payload: bytes) -> None:
        super().__init__(number, BatchMemory())
        self._payload = payload
        self._crew: SharedWorkerState | None = None

    def _set_up(self) -> SharedWorkerState:
        if self._crew is not None:
            return self._crew
        crew: SharedWorkerState = pickle.loads(self._payload)
        self._crew, self._payload = crew, b""
        torch.set_num_threads(1)
        seed, words = seeds_of(crew.base_seed, self._number)
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(words)
        dataset = crew.recipe.dataset
        be_the_worker(worker_info(self._number, crew.size, crew.base_seed, dataset, "process"))
        if crew.init_fn is not None:
            crew.init_fn(self._number)
        return crew

    def _finished(self, batch: Any) -> Any:
        return packed(batch)


def pickled(crew: SharedWorkerState) -> bytes:
    """What is sent to every process. Tensors go by value, but those in shared memory, which stay
    there: what the program writes into them, its workers see.

    Raises:
        InvalidArgumentError: it cannot be pickled, or no process could import it.
    """
    try:
        return dumped(crew, SharingPickler)
    except UnknownToOthersError as error:
        raise InvalidArgumentError(
            "dataset, collate_fn, worker_init_fn: got one that a new process cannot import;"
            f" expected those of modules that can be imported there: {error}"
        ) from error
    except Exception as error:
        raise InvalidArgumentError(
            "dataset, collate_fn, worker_init_fn: got one that cannot be pickled and so cannot be"
            f" sent to a process ({type(error).__name__}: {error}); expected functions at the top"
            " level of a module and picklable objects, or where='thread'"
        ) from error


_setting = threading.Lock()
_default_threads: int | None = None
"""In how many threads PyTorch is to compute by default, while another number is set."""


def _compute_alone() -> None:
    """PyTorch is to compute in the calling thread alone: the workers are what is parallel.

    What one thread sets, PyTorch takes for the default of threads that begin later. So the default
    is put back, by a thread made for that.
    """
    global _default_threads
    with _setting:
        _default_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        putting_back = threading.Thread(target=torch.set_num_threads, args=(_default_threads,))
        putting_back.start()
        putting_back.join()
        _default_threads = None


def _after_fork() -> None:
    """The thread that was at it is not in the fork: nobody else gives back what it had."""
    global _setting, _default_threads
    _setting = threading.Lock()
    if _default_threads is not None:
        torch.set_num_threads(_default_threads)
        _default_threads = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
        worker: Callable[[Begin | Task], TaskReply | None],
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
                max_in_flight=ahead + 1,
                drop_none=True,
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

    def __call__(self, reply: TaskReply) -> TaskReply:
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
        raise_single: whether a single failure is raised as itself.
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
    ) -> None:
        self._raise_single = raise_single
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

    def receive(self, worker: int, timeout: float | None) -> TaskReply:
        """Wait for the next reply of a worker; of any, if they are not in order.

        Raises:
            OutOfRangeError: there will be none.
            DeadlineExceededError: the timeout has run out.
        """
        reply: TaskReply = self._streams[worker].replies.dequeue(timeout=timeout)
        return reply

    def batch_of(self, reply: TaskReply) -> Any:
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
        self._raise(self._join(first=0))

    def fail(self, worker: int) -> None:
        """Stop all workers, since one has failed, and raise what has failed.

        Raises:
            ExceptionGroup: the failures, those of that worker first.
        """
        self.stop()
        self._raise(self._join(first=worker))

    def stop(self) -> None:
        """Stop all workers. Does not wait; may be called from any thread, and by a finalizer."""
        if self._process != PROCESS.number:
            return  # a fork, which has none of them
        for stream in self._streams:
            stream.coord.request_stop()

    def join(self) -> None:
        """Wait until the workers have ended that were stopped; what has failed is nobody's."""
        self._join(first=0)  # what has failed is of batches that nobody has asked for

    def let_go(self) -> None:
        """Keep nothing of what the workers have made, or have open: they have ended."""
        for stream in self._streams:
            stream.let_go()

    def _join(self, first: int) -> list[BaseException]:
        """Wait until the workers have ended; returns what has failed, that of one worker first."""
        failures: list[BaseException] = []
        for stream in sorted(self._streams, key=lambda one: one is not self._streams[first]):
            try:
                stream.coord.join(stop_grace_period=_STOPPING, ignore_live=True)
            except BaseExceptionGroup as group:
                failures += map(_without_our_words, group.exceptions)
        _running.discard(self)
        return failures

    def _raise(self, failures: list[BaseException]) -> None:
        if len(failures) == 1 and self._raise_single:
            raise_again(failures[0], is_kept=True)
        if failures:
            raise BaseExceptionGroup(title_of(failures), failures)


def _without_our_words(failure: BaseException) -> BaseException:
    """A failure without the note of `prepare`, to which a message of ours was its item.

    The worker has noted which batch that was.
    """
    notes = getattr(failure, "__notes__", [])
    notes[:] = [_with_title(note) for note in notes if not note.startswith(_OUR_WORDS)]
    return failure


def _with_title(note: str) -> str:
    """What a worker has noted, so that a group of failures can be called after it."""
    batch = _BATCH.match(note)
    return note if batch is None else FailureNote(note, f"the DataLoader failed on {batch[1]}")


_BATCH: Final = re.compile(r"while making (batch \d+)")

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
