"""A dataset for each worker thread, as each worker process has one of its own.

Datasets rely on it: they open a file when they are first asked for an item and keep it, or are told
by ``worker_init_fn`` which part is theirs. So every worker has a copy that can be written to, while
what is large is shared:

* a map-style dataset: it, and the datasets that it holds, are copied, and nothing else;
* an iterable dataset: everything is copied (it has buffers and generators), but arrays and tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

__all__ = ("copy_for_thread",)


def copy_for_thread(dataset: Any, *, is_iterable: bool) -> Any:
    """The dataset that one worker thread is to use.

    Raises:
        TypeError: it cannot be copied.
    """
    try:
        return _copied_all(dataset) if is_iterable else _copied_shell(dataset, {})
    except Exception as error:
        raise TypeError(
            f"dataset: got a {type(dataset).__name__} that cannot be copied for a worker thread"
            f" ({type(error).__name__}: {error}); expected one that can, by a method"
            " __deepcopy__ or __copy__ if need be; or use num_workers=0"
        ) from error


def _copied_shell(thing: Any, done: dict[int, Any]) -> Any:
    """A dataset and the datasets in it; each once, however many ways lead to it."""
    if id(thing) in done:
        return done[id(thing)]
    if not hasattr(thing, "__dict__") or isinstance(thing, type | torch.Tensor | np.ndarray):
        return thing
    copied = done[id(thing)] = copy.copy(thing)
    for name, value in list(vars(copied).items()):
        if isinstance(value, Dataset):
            vars(copied)[name] = _copied_shell(value, done)
        elif type(value) in (list, tuple) and value and isinstance(value[0], Dataset):
            vars(copied)[name] = type(value)(_copied_shell(one, done) for one in value)
    return copied


def _copied_all(dataset: Any) -> Any:
    shared = {id(one): one for one in _arrays_in(dataset, set())}
    return copy.deepcopy(dataset, shared)


def _arrays_in(thing: Any, seen: set[int]) -> Iterator[Any]:
    """The arrays and tensors that can be reached by attributes and containers."""
    pending = [thing]
    while pending:
        one = pending.pop()
        if isinstance(one, str | bytes | int | float | type(None)) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor | np.ndarray):
            yield one
        elif isinstance(one, dict):
            pending.extend(one.values())
        elif isinstance(one, list | tuple | set | frozenset):
            pending.extend(one)
        elif hasattr(one, "__dict__") and not isinstance(one, type):
            pending.extend(vars(one).values())
