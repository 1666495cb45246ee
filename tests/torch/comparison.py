"""Comparing loaders: batch for batch, bit for bit."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader

from aioqueue.torch import DataLoader
from tests.kit.worlds import spin_until


def same(ours: Any, theirs: Any) -> bool:
    """Whether two batches are equal in every part, and of the same types."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, torch.Tensor):
        return bool(ours.dtype == theirs.dtype and torch.equal(ours, theirs))
    if isinstance(ours, np.ndarray):
        return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs)


def assert_same(ours: Iterable[Any], theirs: Iterable[Any]) -> None:
    """Assert that the batches of two loaders are the same."""
    mine, others = list(ours), list(theirs)
    assert len(mine) == len(others)
    for number, (one, other) in enumerate(zip(mine, others, strict=True)):
        assert same(one, other), f"batch {number}: {one} is not {other}"


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings about more workers than cores, and about forks of threaded programs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork")
        yield


def ours(*arguments: Any, **options: Any) -> DataLoader[Any]:
    """A loader of ours."""
    with quiet():
        return DataLoader(*arguments, **options)


def theirs(*arguments: Any, **options: Any) -> Any:
    """A loader of PyTorch's; its workers are forks."""
    if options.get("num_workers"):
        options.setdefault("multiprocessing_context", "fork")
    with quiet():
        return TorchLoader(*arguments, **options)


def epoch_of(loader: Any) -> list[Any]:
    """All batches of an epoch."""
    with quiet():
        return list(loader)


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def own_threads() -> list[str]:
    """The names of the threads that loaders have started and that run."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if "aioqueue" in name and "aioqueue-shar" not in name]


def no_thread_is_left() -> None:
    """Wait until all threads of loaders have ended."""
    spin_until(lambda: not own_threads())
