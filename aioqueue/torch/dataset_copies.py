"""The copy of the dataset that each worker thread gets.

In PyTorch, each worker process has its own copy, and datasets rely on that: they open a file at the
first item and keep it, or ``worker_init_fn`` assigns them a part. So every worker thread gets a
writable copy that shares large data:

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
from collections import OrderedDict, UserList, UserString, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MemberDescriptorType
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import ChainDataset, ConcatDataset, Dataset, StackDataset, Subset

_LARGE_CONTAINER: Final = 1000
"""A container with this many members counts as data: it is searched only for a `Dataset`."""

_WRAPPERS: Final = (Subset, ConcatDataset, StackDataset, ChainDataset)
"""Classes whose ``dataset``, or whose members of ``datasets``, are datasets of any class."""

_CONTAINERS: Final = {list, tuple, dict, OrderedDict, defaultdict}

_DATA: Final = (
    *(str, bytes, range, list, tuple, AbstractSet, Mapping, UserList, UserString, type),
    *(torch.Tensor, torch.nn.Module, np.ndarray, np.generic),
)

_ARRAY_PROTOCOLS: Final = ("__array__", "__array_interface__", "__dataframe__")
"""Attributes of other libraries' arrays and tables, whose copies may copy all their data."""

_COPY_METHODS: Final = (
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
        return _copy_everything(dataset) if is_iterable else _DatasetCopier().copy_of(dataset)
    except Exception as error:
        raise TypeError(
            f"dataset: got a {type(dataset).__name__} that cannot be copied for a worker thread"
            f" ({type(error).__name__}: {error}); expected a dataset that can, with"
            " __deepcopy__ or __copy__ if necessary; or use num_workers=0"
        ) from error


class _DatasetCopier:
    """Copies of datasets and of the datasets in them, each once."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}

    def copy_of(self, dataset: Any) -> Any:
        if id(dataset) in self._done:
            return self._done[id(dataset)]
        if not _has_attributes(dataset) or isinstance(dataset, type | torch.Tensor | np.ndarray):
            return dataset
        copied = self._done[id(dataset)] = _shallow_copy(dataset)
        if copied is dataset:
            return dataset  # its own `__copy__` returns itself, to be shared
        wraps = isinstance(dataset, _WRAPPERS)
        for name, value in _attributes_of(copied):
            if _is_container(type(value)):
                copied_value = self._copy_container(value, has_wrapped=wraps and name == "datasets")
            else:
                copied_value = self._copy_value(value, is_wrapped=wraps and name == "dataset")
            if copied_value is not value:
                _set(copied, name, copied_value)
        return copied

    def _copy_value(self, value: Any, *, is_wrapped: bool) -> Any:
        """Return what the copy of a dataset gets for one of its values."""
        if _is_container(type(value)):
            return self._copy_container(value, has_wrapped=False)
        if isinstance(value, Dataset):
            return self.copy_of(value)
        if not (is_wrapped or _is_like_dataset(value)) or _is_data(value):
            return value
        # Only a guess: it looks like a dataset, so a copy that fails is no error.
        try:
            return self.copy_of(value)
        except Exception:
            return value  # it contains something uncopyable, such as an open file

    def _copy_container(self, container: Any, *, has_wrapped: bool) -> Any:
        """Return a container of the copied members, or the container itself if none was copied."""
        if id(container) in self._done:
            return self._done[id(container)]
        self._done[id(container)] = container  # in case it contains itself
        is_dict = isinstance(container, dict)
        values = list(container.values()) if is_dict else container
        if len(values) > _LARGE_CONTAINER and not has_wrapped and not _has_dataset(values):
            return container
        copied_value = [self._copy_value(value, is_wrapped=has_wrapped) for value in values]
        if all(map(_is_same, copied_value, values)):
            return container
        copied: Any
        if is_dict:
            copied = copy.copy(container)
            copied.update(zip(container, copied_value, strict=True))
        else:
            copied = getattr(type(container), "_make", type(container))(copied_value)
        self._done[id(container)] = copied
        return copied


def _is_same(one: Any, other: Any) -> bool:
    return one is other


def _is_container(kind: type) -> bool:
    return kind in _CONTAINERS or (issubclass(kind, tuple) and hasattr(kind, "_make"))


def _has_dataset(values: Iterable[Any]) -> bool:
    """Return whether a `Dataset` is among many values; by their types, at 20 ns each."""
    return any(issubclass(kind, Dataset) for kind in set(map(type, values)))


def _is_like_dataset(value: Any) -> bool:
    """Return whether an object has the methods of a dataset.

    An object with a ``__del__`` owns something that a copy would release twice.
    """
    kind = type(value)
    has_methods = hasattr(kind, "__getitem__") and hasattr(kind, "__len__")
    return has_methods and not hasattr(kind, "__del__")


def _is_data(value: Any) -> bool:
    if isinstance(value, _DATA) or any(hasattr(type(value), name) for name in _ARRAY_PROTOCOLS):
        return True
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def _shallow_copy(thing: Any) -> Any:
    if not _is_copied_as_usual(type(thing)):
        return copy.copy(thing)
    # `copy.copy` looks up `__setstate__` on the new object before it has attributes: an object
    # that delegates look-ups to one of its attributes would recurse without an end.
    copied = object.__new__(type(thing))
    for name, value in _attributes_of(thing):
        _set(copied, name, value)
    return copied


def _is_copied_as_usual(kind: type) -> bool:
    """Return whether a class does not control its copies, and its objects consist of attributes."""
    return not any(name in vars(one) for one in kind.__mro__[:-1] for name in _COPY_METHODS)


def _slots_of(kind: type) -> Iterator[str]:
    for one in kind.__mro__:
        if "__slots__" in vars(one):
            for name, member in vars(one).items():
                if isinstance(member, MemberDescriptorType):
                    yield name


def _has_attributes(thing: Any) -> bool:
    return hasattr(thing, "__dict__") or next(_slots_of(type(thing)), None) is not None


def _attributes_of(thing: Any) -> list[tuple[str, Any]]:
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


def _copy_everything(dataset: Any) -> Any:
    memo: dict[int, Any] = {}
    delegating = []
    for one in _reachable_from(dataset):
        if isinstance(one, torch.Tensor | np.ndarray):
            memo[id(one)] = one
        elif hasattr(type(one), "__getattr__") and _is_copied_as_usual(type(one)):
            # `copy.deepcopy` has the same problem as `copy.copy`: see `_shallow_copy`.
            memo[id(one)] = object.__new__(type(one))
            delegating.append(one)
    copied = copy.deepcopy(dataset, memo)
    for one in delegating:
        for name, value in _attributes_of(one):
            _set(memo[id(one)], name, copy.deepcopy(value, memo))
    return copied


def _reachable_from(thing: Any) -> Iterator[Any]:
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
