"""What a worker of the loader does: `prepare` calls it with one message after the other.

A worker is told to begin an epoch, and then which batches to make. On a thread it has its copy of
the dataset from the start; in a process it unpickles that when it is first told to begin.
"""

from __future__ import annotations

import os
import pickle
import random
import reprlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from aioqueue import InvalidArgumentError, WorkerDiedError
from aioqueue.coordination.outcomes import add_note
from aioqueue.processes.worker import UnknownToOthersError, dumped
from aioqueue.torch.copies import copy_for_thread
from aioqueue.torch.fetching import Exhausted, Fetcher, Recipe, Standing, Start, fetcher_of
from aioqueue.torch.initialising import Initialising, is_initialising
from aioqueue.torch.memory import BatchMemory
from aioqueue.torch.parcels import packed
from aioqueue.torch.sharing import SharingPickler
from aioqueue.torch.worker_info import be_the_worker, seeds_of, this_is_worker, worker_info

__all__ = ("Begin", "Crew", "Pin", "ProcessWorker", "Reply", "Task", "ThreadWorker", "pickled")


class Begin(NamedTuple):
    """The message by which an epoch begins."""

    epoch: int
    start: Start


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
class Reply:
    """What has become of a task."""

    worker: int
    batch: Any = None
    """On its way out of a process it is a `Parcel`."""
    standing: Standing | None = None
    """Where an iterable dataset is after this batch."""
    has_ended: bool = False
    """There is no batch: the iterable dataset of this worker has no more."""


@dataclass(frozen=True)
class Crew:
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
        self._number = number
        self._memory = memory
        self._epoch = 0  # before the first
        self._fetcher: Fetcher | None = None

    def __call__(self, message: Begin | Task) -> Reply | None:
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

    def _set_up(self) -> Crew:
        """Make this thread or process a worker, the first time."""
        raise NotImplementedError

    def _reply(self, task: Task) -> Reply:
        if self._fetcher is None or task.epoch != self._epoch:
            raise WorkerDiedError(
                f"the process of DataLoader worker {self._number} has died (the log says of what),"
                " and what it knew of the epoch with it: its batches are not made again"
            )
        try:
            batch = self._finished(self._fetcher.fetch(task.index))
        except Exhausted:
            return Reply(self._number, has_ended=True)
        return Reply(self._number, batch, self._fetcher.standing())

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
        crew: Crew,
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

    def __call__(self, message: Begin | Task) -> Reply | None:
        if not self._is_inference:
            return super().__call__(message)
        with torch.inference_mode():
            return super().__call__(message)

    def wait_until_set_up(self) -> None:
        """Wait until ``worker_init_fn`` has returned, or failed."""
        self._has_tried.wait()

    def _set_up(self) -> Crew:
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
        self._crew: Crew | None = None

    def _set_up(self) -> Crew:
        if self._crew is not None:
            return self._crew
        crew: Crew = pickle.loads(self._payload)
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


def pickled(crew: Crew) -> bytes:
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
