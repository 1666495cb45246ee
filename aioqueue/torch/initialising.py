"""`worker_init_fn` on threads: the program's random generators are as before when it has returned.

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
from typing import Any, Final

import numpy as np
import torch

__all__ = ("Initialising", "is_initialising")

_log: Final = logging.getLogger("aioqueue")

_lock = threading.Lock()  # held while a function is called: what it sets belongs to nobody else
_here = threading.local()


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
            _here.is_initialising = True
            try:
                init_fn(worker)
            finally:
                _here.is_initialising = False
                changed = _put_back(before)
                if changed and not self._has_told:
                    self._has_told = True
                    _tell(changed)


def is_initialising() -> bool:
    """Whether the calling thread is in such a function, after which the generators are put back."""
    return getattr(_here, "is_initialising", False)


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


def _after_fork() -> None:
    """Whoever holds the lock is not in the fork."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
