"""Who asks is told which worker it is: `torch.utils.data.get_worker_info`, on threads too.

PyTorch keeps one worker's information in a variable of the module, since its workers are processes.
Datasets have often imported the function by its name before we come, so it is not enough to put
another one in its place: a dataset that split itself by the old one would give every example once
per worker, and nobody would notice. Hence the function stays, and its code is replaced, when the
first worker thread begins. In all other threads it does what it did.

One who asks is told nothing: where PyTorch stacks tensors, it takes a worker for one of its own
processes and makes each batch in new shared memory. Ours hand batches over without that. It costs a
system call and a fault for every page, and where there is little of it, as in a container, it kills
the process.

`worker_init_fn` on threads: the program's random generators are as before when it has returned.

PyTorch's own recipe seeds the global generators in it, as each of its worker processes has some. On
threads they are the program's: it would shuffle and draw the same in every epoch.
"""

from __future__ import annotations

import logging
import os
import pickle
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import _utils as torch_utils
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

__all__ = (
    "Initialising",
    "WorkerGenerators",
    "be_the_worker",
    "is_initialising",
    "seeds_of",
    "this_is_worker",
    "worker_info",
)


_SEEN_BY_TORCH: Final = "_aioqueue_worker_info"
"""What our function is called where PyTorch's own looks for names."""

_here = threading.local()
_is_worker_process = False
_installing = threading.Lock()


@dataclass(frozen=True)
class WorkerGenerators:
    """Random generators of one worker: ``torch.utils.data.get_worker_info().rng``.

    All are seeded from the base seed of the iterator and the number of the worker, so they give the
    same numbers on threads and in processes, and for the same ``generator`` of the loader. Unlike
    the global generators they belong to one worker alone.

    Args:
        random_generator: of Python's `random`.
        torch_generator: of PyTorch, on the CPU.
        numpy_generator: of NumPy.
    """

    random_generator: random.Random
    torch_generator: torch.Generator
    numpy_generator: np.random.Generator


def seeds_of(base_seed: int, worker: int) -> tuple[int, Any]:
    """The seeds that PyTorch gives to a worker: a number, and four words for NumPy."""
    words = [worker, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    return base_seed + worker, np.random.SeedSequence(words).generate_state(4)


def worker_info(worker: int, workers: int, base_seed: int, dataset: Any, method: str) -> Any:
    """What `torch.utils.data.get_worker_info` is to tell a worker."""
    seed, words = seeds_of(base_seed, worker)
    generators = WorkerGenerators(
        random.Random(seed),
        torch.Generator().manual_seed(seed),
        np.random.default_rng(words),
    )
    return torch_utils.worker.WorkerInfo(
        id=worker,
        num_workers=workers,
        seed=seed,
        dataset=dataset,
        rng=generators,
        worker_method=method,
    )


def be_the_worker(info: Any) -> None:
    """This process is a worker, with all of its threads."""
    global _is_worker_process
    torch_utils.worker._worker_info = info
    _is_worker_process = True
    with _installing:
        _install()


def this_is_worker(info: Any) -> None:
    """The calling thread is a worker."""
    with _installing:
        _install()
    _here.info = info


def _install() -> None:
    # Each step by itself: the program may have been forked between two of them.
    if get_worker_info.__code__ is not _ask.__code__:
        _replace()
    if default_collate_fn_map[torch.Tensor] is collate_tensor_fn:  # else a user's own is there
        default_collate_fn_map[torch.Tensor] = _stacked


def _replace() -> None:
    names = get_worker_info.__globals__
    torchs_own = FunctionType(get_worker_info.__code__, names, get_worker_info.__name__)

    def info_of_this_thread() -> Any:
        if getattr(_here, "is_stacking", False):
            return None
        info = getattr(_here, "info", None)
        return torchs_own() if info is None else info

    names[_SEEN_BY_TORCH] = info_of_this_thread
    get_worker_info.__code__ = _ask.__code__


def _stacked(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Stack tensors as PyTorch does: a worker of ours in ordinary memory."""
    if not _is_worker_process and getattr(_here, "info", None) is None:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    _here.is_stacking = True
    try:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    finally:
        _here.is_stacking = False


def _ask() -> Any:
    return _aioqueue_worker_info()  # type: ignore[name-defined]  # noqa: F821  # in PyTorch's names


def _after_fork() -> None:
    """Whoever holds the lock is not in the fork."""
    global _installing
    _installing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


_log: Final = logging.getLogger("aioqueue")

_lock = threading.Lock()  # held while a function is called: what it sets belongs to nobody else
_initialising_here = threading.local()


class Initialising:
    """Calls the functions of one loader's workers, and says once if they seed for nothing."""

    def __init__(self) -> None:
        self._has_told = False

    def __call__(self, init_fn: Callable[[int], object], worker: int, *, is_apart: bool) -> None:
        """Call a function in the thread of a worker.

        Args:
            init_fn: it.
            worker: what it is told.
            is_apart: whether to put back what it does to the program's generators.
        """
        if not is_apart:
            init_fn(worker)
            return
        with _lock:
            before = _generators()
            _initialising_here.is_initialising = True
            try:
                init_fn(worker)
            finally:
                _initialising_here.is_initialising = False
                changed = _put_back(before)
                if changed and not self._has_told:
                    self._has_told = True
                    _tell(changed)


def is_initialising() -> bool:
    """Whether the calling thread is in such a function, after which the generators are put back."""
    return getattr(_initialising_here, "is_initialising", False)


def _tell(changed: list[str]) -> None:
    _log.warning(
        "worker_init_fn of a DataLoader has set or used the global generators of %s: on threads"
        " these are the program's, so they were put back. Expected a dataset that draws from"
        " torch.utils.data.get_worker_info().rng, which is seeded for each worker; or use"
        " where='process'",
        " and ".join(changed),
    )


def _generators() -> dict[str, tuple[Any, Callable[[Any], object]]]:
    """The states of the global generators, and what sets them."""
    found: dict[str, tuple[Any, Callable[[Any], object]]] = {
        "random": (random.getstate(), random.setstate),
        "numpy.random": (np.random.get_state(legacy=False), np.random.set_state),
        "torch": (torch.get_rng_state(), torch.set_rng_state),
    }
    if torch.cuda.is_initialized():
        found["torch.cuda"] = (torch.cuda.get_rng_state_all(), torch.cuda.set_rng_state_all)
    return found


def _put_back(before: dict[str, tuple[Any, Callable[[Any], object]]]) -> list[str]:
    """Set what has changed; returns whose it is."""
    after = _generators()
    changed = []
    for name, (state, put) in before.items():
        if _as_bytes(state) != _as_bytes(after[name][0]):
            put(state)
            changed.append(name)
    return changed


def _as_bytes(state: Any) -> bytes:
    if isinstance(state, torch.Tensor):
        return bytes(state.numpy())
    if isinstance(state, list):  # one for each device
        return b"".join(map(_as_bytes, state))
    return pickle.dumps(state)


def _forget_initialising() -> None:
    """Whoever holds the lock is not in the fork."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_initialising)
