"""Worker information and random generators on worker threads.

`torch.utils.data.get_worker_info` must work on threads, too. PyTorch keeps one worker's information
in a module variable, since its workers are processes. Datasets have often imported the function by
name before this module is loaded. Replacing the function in its module would not reach them: such a
dataset would not split itself, and would silently yield every example once per worker. So the
function object stays, and its code is replaced when the first worker thread starts. In all other
threads it behaves as before.

The stacking of tensors does not see this information. PyTorch would take a thread for one of its
worker processes, and would make each batch in new shared memory. Our workers hand batches over
without that. It costs a system call and a page fault per page, and where shared memory is scarce,
as in a container, it kills the process.

After `worker_init_fn` on a thread, the program's global random generators are restored. PyTorch's
own recipe seeds them there, since each of its worker processes has its own. On threads they belong
to the program, which would shuffle and draw the same in every epoch.
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
"""Name of our function in the namespace of PyTorch's function."""

_here = threading.local()
_is_worker_process = False
_installing = threading.Lock()


@dataclass(frozen=True)
class WorkerGenerators:
    """Random generators of one worker: ``torch.utils.data.get_worker_info().rng``.

    They are seeded from the base seed of the iterator and the worker's number. So they yield the
    same numbers on threads and in processes, and for the same ``generator`` of the loader. Unlike
    the global generators, they belong to one worker alone.

    Args:
        random_generator: a generator of Python's `random`.
        torch_generator: a generator of PyTorch, on the CPU.
        numpy_generator: a generator of NumPy.
    """

    random_generator: random.Random
    torch_generator: torch.Generator
    numpy_generator: np.random.Generator


def seeds_of(base_seed: int, worker: int) -> tuple[int, Any]:
    """Return the seeds that PyTorch gives to a worker: a number, and four words for NumPy."""
    words = [worker, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    return base_seed + worker, np.random.SeedSequence(words).generate_state(4)


def worker_info(worker: int, workers: int, base_seed: int, dataset: Any, method: str) -> Any:
    """Return what `torch.utils.data.get_worker_info` returns in a worker."""
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
    """Make this process a worker, with all its threads."""
    global _is_worker_process
    torch_utils.worker._worker_info = info
    _is_worker_process = True
    with _installing:
        _install()


def this_is_worker(info: Any) -> None:
    """Make the calling thread a worker."""
    with _installing:
        _install()
    _here.info = info


def _install() -> None:
    # Check each step, since a fork may have happened between two of them.
    if get_worker_info.__code__ is not _ask.__code__:
        _replace()
    if (
        default_collate_fn_map[torch.Tensor] is collate_tensor_fn
    ):  # do not replace a user's own function
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
    """Stack tensors as PyTorch does, but in ordinary memory for our workers."""
    if not _is_worker_process and getattr(_here, "info", None) is None:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    _here.is_stacking = True
    try:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    finally:
        _here.is_stacking = False


def _ask() -> Any:
    return _aioqueue_worker_info()  # type: ignore[name-defined]  # noqa: F821  # resolved in PyTorch's module


def _after_fork() -> None:
    """Replace the lock in a fork, where its holder does not exist."""
    global _installing
    _installing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


_log: Final = logging.getLogger("aioqueue")

_lock = threading.Lock()  # held during a call, so that all changes are that function's
_initialising_here = threading.local()


class Initialising:
    """Calls ``worker_init_fn`` for the workers of one loader, and warns once if its seeds are
    undone."""

    def __init__(self) -> None:
        self._has_told = False

    def __call__(self, init_fn: Callable[[int], object], worker: int, *, is_apart: bool) -> None:
        """Call a function in the thread of a worker.

        Args:
            init_fn: the function.
            worker: the worker's number.
            is_apart: whether to restore the program's generators afterwards.
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
    """Return whether the calling thread is in such a function, with the generators to be
    restored."""
    return getattr(_initialising_here, "is_initialising", False)


def _tell(changed: list[str]) -> None:
    _log.warning(
        "worker_init_fn of a DataLoader has set or used  the global generators of %s: on threads"
        " these are the program's, so they were put back. Expected a dataset that draws from"
        " torch.utils.data.get_worker_info().rng, which is seeded for each worker; or use"
        " where='process'",
        " and ".join(changed),
    )


def _generators() -> dict[str, tuple[Any, Callable[[Any], object]]]:
    """Yield the states of the global generators, with functions that restore them."""
    found: dict[str, tuple[Any, Callable[[Any], object]]] = {
        "random": (random.getstate(), random.setstate),
        "numpy.random": (np.random.get_state(legacy=False), np.random.set_state),
        "torch": (torch.get_rng_state(), torch.set_rng_state),
    }
    if torch.cuda.is_initialized():
        found["torch.cuda"] = (torch.cuda.get_rng_state_all(), torch.cuda.set_rng_state_all)
    return found


def _put_back(before: dict[str, tuple[Any, Callable[[Any], object]]]) -> list[str]:
    """Restore what has changed; return the libraries concerned."""
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
    if isinstance(state, list):  # one state per device
        return b"".join(map(_as_bytes, state))
    return pickle.dumps(state)


def _forget_initialising() -> None:
    """Replace the lock in a fork, where its holder does not exist."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_initialising)
