"""Calls ``worker_init_fn`` in worker threads.

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
from typing import Any, Final

import numpy as np
import torch

_log: Final = logging.getLogger("aioqueue")

_init_lock = threading.Lock()  # held during a call, so that all changes are that function's
_thread_state = threading.local()


class WorkerInit:
    """Calls ``worker_init_fn`` for the workers of one loader, and warns once if its seeds are
    undone."""

    def __init__(self) -> None:
        self._has_warned = False

    def __call__(
        self, init_fn: Callable[[int], object], worker: int, *, restores_generators: bool
    ) -> None:
        """Call a function in the thread of a worker.

        Args:
            init_fn: the function.
            worker: the worker's number.
            is_apart: whether to restore the program's generators afterwards.
        """
        if not restores_generators:
            init_fn(worker)
            return
        with _init_lock:
            before = _generators()
            _thread_state.is_initialising = True
            try:
                init_fn(worker)
            finally:
                # Still under the lock, so that every change since `before` is this function's; and
                # also after a failure, which must not leave its seeds.
                _thread_state.is_initialising = False
                changed = _restore_changed(before)
                if changed and not self._has_warned:
                    self._has_warned = True
                    _warn(changed)


def is_initialising() -> bool:
    """Return whether the calling thread is in such a function, with the generators to be
    restored."""
    return getattr(_thread_state, "is_initialising", False)


def _warn(changed: list[str]) -> None:
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


def _restore_changed(before: dict[str, tuple[Any, Callable[[Any], object]]]) -> list[str]:
    """Restore what has changed; return the libraries concerned."""
    after = _generators()
    changed = []
    for name, (state, restore) in before.items():
        if _as_bytes(state) != _as_bytes(after[name][0]):
            restore(state)
            changed.append(name)
    return changed


def _as_bytes(state: Any) -> bytes:
    if isinstance(state, torch.Tensor):
        return bytes(state.numpy())
    if isinstance(state, list):  # one state per device
        return b"".join(map(_as_bytes, state))
    return pickle.dumps(state)


def _after_fork() -> None:
    """Replace the lock in a fork, where its holder does not exist."""
    global _init_lock
    _init_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
