"""The workers of a loader: what each does with its messages, on a thread or in a process.

`prepare` calls a worker with one message after another: first to begin an epoch, then for each
batch. A thread has its copy of the dataset from the start; a process unpickles it when its first
epoch begins.
"""

from __future__ import annotations

import os
import pickle
import random
import reprlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch

from aioqueue import InvalidArgumentError, WorkerDiedError
from aioqueue.base.global_generators import DrawsFinder
from aioqueue.errors import add_note
from aioqueue.inputs import Quarantined
from aioqueue.processes.function_pickles import UnknownToOthersError, dumped
from aioqueue.torch.batch_pickle import SharingPickler, packed
from aioqueue.torch.collate import BatchMemory
from aioqueue.torch.dataset_copies import copy_for_thread
from aioqueue.torch.fetchers import (
    DatasetStart,
    DatasetState,
    Empty,
    Exhausted,
    Fetcher,
    Recipe,
    fetcher_of,
)
from aioqueue.torch.generator_states import GeneratorStates, States
from aioqueue.torch.worker_info import (
    make_process_worker,
    make_thread_worker,
    seeds_of,
    worker_info,
)
from aioqueue.torch.worker_init import WorkerInit, is_initialising


class Begin(NamedTuple):
    """The message that begins an epoch."""

    epoch: int
    start: DatasetStart
    generators: States | None = None
    """The states of the worker's generators, from which it goes on; ``None`` for its own."""


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
    dataset_state: DatasetState | None = None
    """The position of an iterable dataset after this batch."""
    has_ended: bool = False
    """Whether there is no batch, since this worker's part of an iterable dataset has ended."""
    is_empty: bool = False
    """Whether there is no batch, since all of its samples were skipped."""
    generators: States | None = None
    """The states of the worker's generators after this batch; ``None`` if it has not drawn."""
    skipped: tuple[Quarantined, ...] = ()
    """The samples that were left out of the batch."""


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


_ADVICE: Final = (
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
        self._generators: GeneratorStates | None = None

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
        shared = self._set_up()
        start = message.start
        self._fetcher = fetcher_of(shared.recipe, start, self._memory)
        # After `worker_init_fn` and the beginning of the dataset, which have drawn before. A
        # dataset that is read again from its start draws again what it drew then.
        is_reread = start.batches > 0 and start.state is None
        if message.generators is not None and self._generators is not None and not is_reread:
            self._generators.restore(message.generators)
        self._epoch = message.epoch

    def _set_up(self) -> SharedWorkerState:
        """Make this thread or process a worker, the first time."""
        raise NotImplementedError

    def _reply(self, task: Task) -> TaskReply:
        # A process that took the place of a dead one has not seen the `Begin` of this epoch.
        if self._fetcher is None or task.epoch != self._epoch:
            raise WorkerDiedError(
                f"the process of DataLoader worker {self._number} has died (see the log),"
                " and its position in the epoch is lost: its batches cannot be made again"
            )
        try:
            batch = self._finished(self._fetcher.fetch(task.index))
        except Exhausted:
            return TaskReply(self._number, has_ended=True)
        except Empty:
            batch, is_empty = None, True
        else:
            is_empty = False
        return TaskReply(
            self._number,
            batch,
            self._fetcher.dataset_state(),
            is_empty=is_empty,
            generators=None if self._generators is None else self._generators.changed(),
            skipped=tuple(self._fetcher.take_skipped()),
        )

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
        shared: SharedWorkerState,
        pin: Pin | None,
        memory: BatchMemory,
        worker_init: WorkerInit,
    ) -> None:
        super().__init__(number, memory)
        recipe = shared.recipe
        dataset = copy_for_thread(recipe.dataset, is_iterable=recipe.is_iterable)
        self._shared = replace(shared, recipe=replace(recipe, dataset=dataset))
        self._pin = pin
        self._draws = DrawsFinder(f"a sample of {type(dataset).__qualname__}", _ADVICE)
        self._worker_init = worker_init
        self._restores_generators = not is_initialising()
        self._is_set_up = False
        self._init_ended = threading.Event()
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
        self._init_ended.wait()

    def _set_up(self) -> SharedWorkerState:
        shared, number = self._shared, self._number
        if self._is_set_up:
            return shared
        # Once, even if it fails: PyTorch calls the function once for each worker.
        self._is_set_up = True
        try:
            _limit_to_one_thread()
            torch.set_grad_enabled(self._has_grad)
            dataset = shared.recipe.dataset
            info = worker_info(number, shared.size, shared.base_seed, dataset, "thread")
            self._generators = GeneratorStates(info.rng, has_globals=False)
            make_thread_worker(info)
            if shared.init_fn is not None:
                self._worker_init(
                    shared.init_fn, number, restores_generators=self._restores_generators
                )
        finally:
            self._init_ended.set()
        return shared

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
        self._shared: SharedWorkerState | None = None

    def _set_up(self) -> SharedWorkerState:
        if self._shared is not None:
            return self._shared
        shared: SharedWorkerState = pickle.loads(self._payload)
        self._shared, self._payload = shared, b""
        torch.set_num_threads(1)
        seed, words = seeds_of(shared.base_seed, self._number)
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(words)
        dataset = shared.recipe.dataset
        info = worker_info(self._number, shared.size, shared.base_seed, dataset, "process")
        self._generators = GeneratorStates(info.rng, has_globals=True)
        make_process_worker(info)
        if shared.init_fn is not None:
            shared.init_fn(self._number)
        return shared

    def _finished(self, batch: Any) -> Any:
        return packed(batch)


def pickled(shared: SharedWorkerState) -> bytes:
    """Return the pickled state for all processes.

    Tensors are sent by value, except tensors in shared memory: workers see what the program writes
    to these.

    Raises:
        InvalidArgumentError: it cannot be pickled, or a process could not import it.
    """
    try:
        return dumped(shared, SharingPickler)
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


_threads_lock = threading.Lock()
_default_threads: int | None = None
"""The default number of PyTorch's threads, while a different one is set."""


def _limit_to_one_thread() -> None:
    """Make PyTorch compute only in the calling thread, since the workers already run in parallel.

    PyTorch uses a thread's setting as the default of threads that start later. So a helper thread
    restores the default.
    """
    global _default_threads
    with _threads_lock:
        _default_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        restorer = threading.Thread(target=torch.set_num_threads, args=(_default_threads,))
        restorer.start()
        restorer.join()
        _default_threads = None


def _after_fork() -> None:
    """Restore the default in a fork, where the helper thread does not exist."""
    global _threads_lock, _default_threads
    _threads_lock = threading.Lock()
    if _default_threads is not None:
        torch.set_num_threads(_default_threads)
        _default_threads = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
