"""The workers of a loader: what each does with its messages, and the streams to and from them.

`prepare` calls a worker with one message after another: first to begin an epoch, then for each
batch. A thread has its copy of the dataset from the start; a process unpickles it when its first
epoch begins. For the iterator, the workers are a queue of tasks, a `prepare`, and a queue of
replies. Each worker has a coordinator of its own, so its failure surfaces when its batch is due,
after the batches before it; then all workers are stopped.
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
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
import torch

from aioqueue import (
    InvalidArgumentError,
    OutOfRangeError,
    QueueEmpty,
    WorkerDiedError,
    inputs,
)
from aioqueue.base.global_generators import DrawsFinder
from aioqueue.base.tracebacks import FailureNote, raise_again, title_of
from aioqueue.errors import add_note, interrupt_of
from aioqueue.processes.function_pickles import UnknownToOthersError, dumped
from aioqueue.sync import BlockingQueue, Coordinator, FIFOQueue
from aioqueue.system.forks import PROCESS
from aioqueue.torch.batch_pickle import SharingPickler, packed, unpacked
from aioqueue.torch.collate import (
    BatchMemory,
    DatasetStart,
    DatasetState,
    Exhausted,
    Fetcher,
    Recipe,
    fetcher_of,
)
from aioqueue.torch.worker_threads import (
    Initialising,
    be_the_worker,
    copy_for_thread,
    is_initialising,
    seeds_of,
    this_is_worker,
    worker_info,
)

_prepare: Final = inputs.prepare
"""It is imported when it is first looked up. The first batch would wait for that."""


class Begin(NamedTuple):
    """The message that begins an epoch."""

    epoch: int
    start: DatasetStart


class Task(NamedTuple):
    """The message that requests a batch."""

    epoch: int
    number: int
    """Number of the batch in the sampler's order."""
    index: Any
    """What the sampler yielded."""

    def note(self) -> str:
        """The note to add to a failure of this task."""
        indices = [self.index] if not isinstance(self.index, list) else self.index
        if all(index is None for index in indices):  # for an iterable dataset
            return f"while making batch {self.number}"
        what = "indices" if isinstance(self.index, list) else "index"
        return f"while making batch {self.number} of {what} {reprlib.repr(self.index)}"


@dataclass(frozen=True)
class TaskReply:
    """The reply to a task."""

    worker: int
    batch: Any = None
    """The batch; a `Parcel` on its way out of a process."""
    standing: DatasetState | None = None
    """The position of an iterable dataset after this batch."""
    has_ended: bool = False
    """Whether there is no batch, since this worker's part of an iterable dataset has ended."""


@dataclass(frozen=True)
class SharedWorkerState:
    """The state that all workers of an iterator share."""

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


_CURE: Final = (
    "Pass where='process', whose workers have generators of their own, as PyTorch's have; or draw"
    " from torch.utils.data.get_worker_info().rng."
)


class _Worker:
    """The part of a worker that threads and processes share.

    Args:
        number: its number, from 0.
        memory: allocates large batches.
    """

    def __init__(self, number: int, memory: BatchMemory) -> None:
        self.__name__: str = f"dataloader-worker-{number}"  # after which threads are named
        self._number = number
        self._memory = memory
        self._epoch = 0  # 0 before the first
        self._fetcher: Fetcher | None = None

    def __call__(self, message: Begin | Task) -> TaskReply | None:
        """Handle a message; a task gets a reply."""
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
        """Close the dataset's generator for the epoch. Call it after the worker has ended."""
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
                f"the process of DataLoader worker {self._number} has died (see the log),"
                " and its position in the epoch is lost: its batches cannot be made again"
            )
        try:
            batch = self._finished(self._fetcher.fetch(task.index))
        except Exhausted:
            return TaskReply(self._number, has_ended=True)
        return TaskReply(self._number, batch, self._fetcher.standing())

    def _finished(self, batch: Any) -> Any:
        """Return a batch in the form that leaves the worker."""
        raise NotImplementedError


class ThreadWorker(_Worker):
    """A worker that is a thread of this process.

    Args:
        number: its number, from 0.
        crew: the shared state; the dataset is copied.
        pin: a last step for each batch.
        memory: allocates large batches for all workers.
        initialising: calls ``worker_init_fn``.

    Attributes:
        finds_draws: that it looks itself for draws from the program's generators, see
            `aioqueue.base.global_generators`.

    Raises:
        TypeError: the dataset cannot be copied.
    """

    finds_draws = True

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
        self._draws = DrawsFinder(f"a sample of {type(dataset).__qualname__}", _CURE)
        self._initialising = initialising
        self._is_apart = not is_initialising()
        self._is_set_up = False
        self._has_tried = threading.Event()
        # The settings of the calling thread, which a forked worker would inherit.
        self._has_grad = torch.is_grad_enabled()
        self._is_inference = torch.is_inference_mode_enabled()

    def __call__(self, message: Begin | Task) -> TaskReply | None:
        if not self._is_inference:
            return super().__call__(message)
        with torch.inference_mode():
            return super().__call__(message)

    def _reply(self, task: Task) -> TaskReply:
        return cast("TaskReply", self._draws(super()._reply, task))

    def wait_until_set_up(self) -> None:
        """Wait until ``worker_init_fn`` has returned or failed."""
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
    """A worker that is a process; created in the parent and sent there.

    Args:
        number: its number, from 0.
        payload: the shared state, from `pickled`.
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
    """Return the pickled state for all processes.

    Tensors are sent by value, except tensors in shared memory: workers see what the program writes
    to these.

    Raises:
        InvalidArgumentError: it cannot be pickled, or a process could not import it.
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
"""The default number of PyTorch's threads, while a different one is set."""


def _compute_alone() -> None:
    """Make PyTorch compute in the calling thread alone, since the workers already run in parallel.

    PyTorch uses a thread's setting as the default of threads that start later. So a helper thread
    restores the default.
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
    """Restore the default in a fork, where the helper thread does not exist."""
    global _setting, _default_threads
    _setting = threading.Lock()
    if _default_threads is not None:
        torch.set_num_threads(_default_threads)
        _default_threads = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


Where = Literal["thread", "process"]

_STOPPING: Final = 5.0
"""Seconds that workers have to end before a failure is raised, or the program ends, without
them."""

_numbers: Final = itertools.count(1)


class Stream:
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
        if pin is not None:
            pinned = _Pinned(pin)
            self._runners.append(_prepare(into, pinned, into=replies, workers=1, ordered=True))

    def start(self) -> None:
        """Start the worker."""
        for runner in self._runners:
            self.coord.start(runner)

    def let_go(self) -> None:
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
        if reply.has_ended:
            return reply
        return replace(reply, batch=self._pin(unpacked(reply.batch)))


class Streams:
    """All workers of one iterator.

    Args:
        workers: for each worker, the callable for its messages.
        where: the kind of worker.
        in_order: whether each worker has its own reply queue; otherwise all share one.
        ahead: most tasks per worker that may wait for their replies.
        pin: for processes, a last step for each batch in threads here.
        raise_single: whether to raise a single failure as itself.
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
        common = None if in_order else FIFOQueue(None, name=f"aioqueue-dataloader-{number}")
        self._process = PROCESS.number
        self._streams = []
        for worker_number, worker in enumerate(workers):
            name = f"aioqueue-dataloader-{number}-worker-{worker_number}"
            replies = FIFOQueue(None, name=name) if common is None else common
            self._streams.append(Stream(name, worker, where, replies, ahead, pin))
        for stream in self._streams:
            stream.start()
        _running.add(self)

    def send(self, worker: int, message: Begin | Task) -> None:
        """Send a message to a worker, without waiting."""
        self._streams[worker].tasks.enqueue(message)

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
        return unpacked(reply.batch) if self._come_packed else reply.batch

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

    def let_go(self) -> None:
        """Release everything the workers made or opened, after their end."""
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
            raise_again(interrupt_of(BaseExceptionGroup(title_of(failures), failures)))


def _without_our_words(failure: BaseException) -> BaseException:
    """Return a failure without the note of `prepare`, whose item is one of our messages.

    The worker has added a note that names the batch.
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
