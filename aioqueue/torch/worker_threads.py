"""What PyTorch gives a worker process of its own, for threads: information, generators, a dataset.

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

**The dataset.** Each worker process has its own copy, and datasets rely on that: they open a file
at the first item and keep it, or ``worker_init_fn`` assigns them a part. So every worker thread
gets a writable copy that shares large data:

* Of a map-style dataset, the object itself and the datasets that it holds are copied, and nothing
  else that they hold. They are found in attributes (including ``__slots__``) and in lists, tuples
  and dicts there, however nested.
* Of an iterable dataset, everything is copied (it has buffers and generators), except arrays and
  tensors.

A held object counts as a dataset if it is a `Dataset`; if a wrapper of PyTorch (such as `Subset`)
holds it as its dataset; or if it has ``__getitem__`` and ``__len__`` like one, and is not data: a
container, array, table, string or module.
"""

from __future__ import annotations

import copy
import logging
import os
import pickle
import random
import threading
from collections import OrderedDict, UserList, UserString, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import FunctionType, MemberDescriptorType
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    StackDataset,
    Subset,
    get_worker_info,
)
from torch.utils.data import _utils as torch_utils
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

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


_MANY: Final = 1000
"""A container with this many members counts as data: it is searched only for a `Dataset`."""

_WRAPPERS: Final = (Subset, ConcatDataset, StackDataset, ChainDataset)
"""Classes whose ``dataset``, or whose members of ``datasets``, are datasets of any class."""

_CONTAINERS: Final = {list, tuple, dict, OrderedDict, defaultdict}

_DATA: Final = (
    *(str, bytes, range, list, tuple, AbstractSet, Mapping, UserList, UserString, type),
    *(torch.Tensor, torch.nn.Module, np.ndarray, np.generic),
)

_OF_ARRAYS: Final = ("__array__", "__array_interface__", "__dataframe__")
"""Attributes of other libraries' arrays and tables, whose copies may copy all their data."""

_OF_COPYING: Final = (
    *("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"),
    *("__getnewargs__", "__getnewargs_ex__", "__new__"),
)
"""Methods by which a class controls its copies; C classes with data of their own have the last."""

_ATOMS: Final = str | bytes | int | float | complex | type(None) | type


def copy_for_thread(dataset: Any, *, is_iterable: bool) -> Any:
    """Return the copy of a dataset for one worker thread.

    Raises:
        TypeError: the dataset, or a `Dataset` in it, cannot be copied.
    """
    try:
        return _copied_all(dataset) if is_iterable else _Shells().of(dataset)
    except Exception as error:
        raise TypeError(
            f"dataset: got a {type(dataset).__name__} that cannot be copied for a worker thread"
            f" ({type(error).__name__}: {error}); expected a dataset that can, with"
            " __deepcopy__ or __copy__ if necessary; or use num_workers=0"
        ) from error


class _Shells:
    """Copies of datasets and of the datasets in them, each once."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}

    def of(self, dataset: Any) -> Any:
        """Return the copy of a dataset."""
        if id(dataset) in self._done:
            return self._done[id(dataset)]
        if not _has_attributes(dataset) or isinstance(dataset, type | torch.Tensor | np.ndarray):
            return dataset
        copied = self._done[id(dataset)] = _shell_of(dataset)
        if copied is dataset:
            return dataset  # its own `__copy__` returns itself, to be shared
        wraps = isinstance(dataset, _WRAPPERS)
        for name, value in _attributes_of(copied):
            if _is_container(type(value)):
                mine = self._of_container(value, has_wrapped=wraps and name == "datasets")
            else:
                mine = self._of_any(value, is_wrapped=wraps and name == "dataset")
            if mine is not value:
                _set(copied, name, mine)
        return copied

    def _of_any(self, value: Any, *, is_wrapped: bool) -> Any:
        """Return what the copy of a dataset gets for one of its values."""
        if _is_container(type(value)):
            return self._of_container(value, has_wrapped=False)
        if isinstance(value, Dataset):
            return self.of(value)
        if not (is_wrapped or _looks_like_dataset(value)) or _is_data(value):
            return value
        try:
            return self.of(value)
        except Exception:
            return value  # it contains something uncopyable, such as an open file

    def _of_container(self, container: Any, *, has_wrapped: bool) -> Any:
        """Return a container of the copied members, or the container itself if none was copied."""
        if id(container) in self._done:
            return self._done[id(container)]
        self._done[id(container)] = container  # in case it contains itself
        is_dict = isinstance(container, dict)
        values = list(container.values()) if is_dict else container
        if len(values) > _MANY and not has_wrapped and not _has_pytorchs(values):
            return container
        mine = [self._of_any(value, is_wrapped=has_wrapped) for value in values]
        if all(map(_is_same, mine, values)):
            return container
        copied: Any
        if is_dict:
            copied = copy.copy(container)
            copied.update(zip(container, mine, strict=True))
        else:
            copied = getattr(type(container), "_make", type(container))(mine)
        self._done[id(container)] = copied
        return copied


def _is_same(one: Any, other: Any) -> bool:
    return one is other


def _is_container(kind: type) -> bool:
    return kind in _CONTAINERS or (issubclass(kind, tuple) and hasattr(kind, "_make"))


def _has_pytorchs(values: Iterable[Any]) -> bool:
    """Return whether a `Dataset` is among many values; by their types, at 20 ns each."""
    return any(issubclass(kind, Dataset) for kind in set(map(type, values)))


def _looks_like_dataset(value: Any) -> bool:
    """Return whether an object has the methods of a dataset.

    An object with a ``__del__`` owns something that a copy would release twice.
    """
    kind = type(value)
    asked = hasattr(kind, "__getitem__") and hasattr(kind, "__len__")
    return asked and not hasattr(kind, "__del__")


def _is_data(value: Any) -> bool:
    if isinstance(value, _DATA) or any(hasattr(type(value), name) for name in _OF_ARRAYS):
        return True
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def _shell_of(thing: Any) -> Any:
    """Return an object of the same class with the same attributes."""
    if not _is_copied_as_usual(type(thing)):
        return copy.copy(thing)
    # `copy.copy` looks up `__setstate__` on the new object before it has attributes: an object
    # that delegates look-ups to one of its attributes would recurse without an end.
    shell = object.__new__(type(thing))
    for name, value in _attributes_of(thing):
        _set(shell, name, value)
    return shell


def _is_copied_as_usual(kind: type) -> bool:
    """Return whether a class does not control its copies, and its objects consist of attributes."""
    return not any(name in vars(one) for one in kind.__mro__[:-1] for name in _OF_COPYING)


def _slots_of(kind: type) -> Iterator[str]:
    """Return the names of ``__slots__``, as instances have them."""
    for one in kind.__mro__:
        if "__slots__" in vars(one):
            for name, member in vars(one).items():
                if isinstance(member, MemberDescriptorType):
                    yield name


def _has_attributes(thing: Any) -> bool:
    return hasattr(thing, "__dict__") or next(_slots_of(type(thing)), None) is not None


def _attributes_of(thing: Any) -> list[tuple[str, Any]]:
    """Return an object's own attributes, in ``__dict__`` and ``__slots__``."""
    found = list(vars(thing).items()) if hasattr(thing, "__dict__") else []
    for name in _slots_of(type(thing)):
        try:
            found.append((name, object.__getattribute__(thing, name)))
        except AttributeError:
            pass  # the slot is empty
    return found


def _set(thing: Any, name: str, value: Any) -> None:
    """Set an attribute, bypassing a `__setattr__` that is meant for the original."""
    if hasattr(thing, "__dict__") and name not in _slots_of(type(thing)):
        vars(thing)[name] = value
    else:
        object.__setattr__(thing, name, value)


def _copied_all(dataset: Any) -> Any:
    memo: dict[int, Any] = {}
    bare = []
    for one in _reached_from(dataset):
        if isinstance(one, torch.Tensor | np.ndarray):
            memo[id(one)] = one
        elif hasattr(type(one), "__getattr__") and _is_copied_as_usual(type(one)):
            # `copy.deepcopy` has the same problem as `copy.copy`: see `_shell_of`.
            memo[id(one)] = object.__new__(type(one))
            bare.append(one)
    copied = copy.deepcopy(dataset, memo)
    for one in bare:
        for name, value in _attributes_of(one):
            _set(memo[id(one)], name, copy.deepcopy(value, memo))
    return copied


def _reached_from(thing: Any) -> Iterator[Any]:
    """Yield the objects reachable through attributes and containers, each once."""
    seen: set[int] = set()
    pending = [thing]
    while pending:
        one = pending.pop()
        if isinstance(one, _ATOMS) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, torch.Tensor | np.ndarray):
            continue
        if isinstance(one, dict):
            pending.extend(one.values())
        elif isinstance(one, list | tuple | set | frozenset):
            pending.extend(one)
        pending.extend(value for _, value in _attributes_of(one))
