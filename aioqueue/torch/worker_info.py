"""The information and the generators of a worker, for threads as for processes.

`torch.utils.data.get_worker_info` must work on threads, too. PyTorch keeps one worker's information
in a module variable, since its workers are processes. Datasets have often imported the function by
name before this module is loaded. Replacing the function in its module would not reach them: such a
dataset would not split itself, and would silently yield every example once per worker. So the
function object stays, and its code is replaced when the first worker thread starts. In all other
threads it behaves as before.

The stacking of tensors does not see this information. PyTorch would take a thread for one of its
worker processes, and would make each batch in new shared memory. Our workers return batches
without that. It costs a system call and a page fault per page, and where shared memory is scarce,
as in a container, it kills the process.
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import _utils as torch_utils
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

_SEEN_BY_TORCH: Final = "_aioqueue_worker_info"
"""Name of our function in the namespace of PyTorch's function."""

_thread_state = threading.local()
_is_worker_process = False
_install_lock = threading.Lock()


@dataclass(frozen=True)
class WorkerGenerators:
    """Random generators of one worker: ``torch.utils.data.get_worker_info().rng``.

    They are seeded from the base seed of the iterator and the worker's number. So they yield the
    same numbers on threads and in processes, and for the same ``generator`` of the loader. Unlike
    the global generators, they belong to one worker only.

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


def make_process_worker(info: Any) -> None:
    """Make this process a worker, with all its threads."""
    global _is_worker_process
    torch_utils.worker._worker_info = info
    _is_worker_process = True
    with _install_lock:
        _install()


def make_thread_worker(info: Any) -> None:
    with _install_lock:
        _install()
    _thread_state.info = info


def _install() -> None:
    # Check each step, since a fork may have happened between two of them.
    if get_worker_info.__code__ is not _patched_get_worker_info.__code__:
        _patch_get_worker_info()
    if (
        default_collate_fn_map[torch.Tensor] is collate_tensor_fn
    ):  # do not replace a user's own function
        default_collate_fn_map[torch.Tensor] = _stack_in_private_memory


def _patch_get_worker_info() -> None:
    names = get_worker_info.__globals__
    original_function = FunctionType(get_worker_info.__code__, names, get_worker_info.__name__)

    def info_of_this_thread() -> Any:
        if getattr(_thread_state, "is_stacking", False):
            return None
        info = getattr(_thread_state, "info", None)
        return original_function() if info is None else info

    # First the name, then the code that looks it up: another thread may call in between.
    names[_SEEN_BY_TORCH] = info_of_this_thread
    get_worker_info.__code__ = _patched_get_worker_info.__code__


def _stack_in_private_memory(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Stack tensors as PyTorch does, but in ordinary memory for our workers."""
    if not _is_worker_process and getattr(_thread_state, "info", None) is None:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    _thread_state.is_stacking = True
    try:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    finally:
        _thread_state.is_stacking = False


def _patched_get_worker_info() -> Any:
    return _aioqueue_worker_info()  # type: ignore[name-defined]  # noqa: F821  # resolved in PyTorch's module


def _after_fork() -> None:
    """Replace the lock in a fork, where its holder does not exist."""
    global _install_lock
    _install_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
