"""A dataset for each worker thread, as each worker process has one of its own.

Datasets rely on it: they open a file when they are first asked for an item and keep it, or are told
by ``worker_init_fn`` which part is theirs. So every worker has a copy that can be written to, while
what is large is shared:

* a map-style dataset: the object itself and the datasets that it holds are copied, but not what
  else they hold. They are found in attributes (also of ``__slots__``) and in lists, tuples and
  dicts there, however nested;
* an iterable dataset: everything is copied (it has buffers and generators), but arrays and tensors.

What a dataset holds is one too if it is a `Dataset`, if a wrapper of PyTorch (such as `Subset`) has
it for one, or if it has ``__getitem__`` and ``__len__`` as they do, and is no data: no container,
array, table, string or module.
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

__all__ = ("copy_for_thread",)

_MANY: Final = 1000
"""Members of a container from which on it is data: it is not searched, but for a `Dataset`."""

_WRAPPERS: Final = (Subset, ConcatDataset, StackDataset, ChainDataset)
"""What they have as ``dataset`` is one, and so are the members of ``datasets``, of any class."""

_CONTAINERS: Final = {list, tuple, dict, OrderedDict, defaultdict}

_DATA: Final = (
    *(str, bytes, range, list, tuple, AbstractSet, Mapping, UserList, UserString, type),
    *(torch.Tensor, torch.nn.Module, np.ndarray, np.generic),
)

_OF_ARRAYS: Final = ("__array__", "__array_interface__", "__dataframe__")
"""What arrays and tables of other libraries have; copying those may copy all that is in them."""

_OF_COPYING: Final = (
    *("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"),
    *("__getnewargs__", "__getnewargs_ex__", "__new__"),
)
"""By these a class says how it is copied; those of C that have data of their own have the last."""

_ATOMS: Final = str | bytes | int | float | complex | type(None) | type


def copy_for_thread(dataset: Any, *, is_iterable: bool) -> Any:
    """The dataset that one worker thread is to use.

    Raises:
        TypeError: it, or a `Dataset` in it, cannot be copied.
    """
    try:
        return _copied_all(dataset) if is_iterable else _Shells().of(dataset)
    except Exception as error:
        raise TypeError(
            f"dataset: got a {type(dataset).__name__} that cannot be copied for a worker thread"
            f" ({type(error).__name__}: {error}); expected one that can, by a method"
            " __deepcopy__ or __copy__ if need be; or use num_workers=0"
        ) from error


class _Shells:
    """Copies of datasets and of the datasets in them; each once, however many ways lead to it."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}

    def of(self, dataset: Any) -> Any:
        """The copy of what is a dataset."""
        if id(dataset) in self._done:
            return self._done[id(dataset)]
        if not _has_attributes(dataset) or isinstance(dataset, type | torch.Tensor | np.ndarray):
            return dataset
        copied = self._done[id(dataset)] = _shell_of(dataset)
        if copied is dataset:
            return dataset  # its own `__copy__` wants it to be shared
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
        """What the copy of a dataset is to have for a value that the dataset has."""
        if _is_container(type(value)):
            return self._of_container(value, has_wrapped=False)
        if isinstance(value, Dataset):
            return self.of(value)
        if not (is_wrapped or _looks_like_dataset(value)) or _is_data(value):
            return value
        try:
            return self.of(value)
        except Exception:
            return value  # it has what cannot be copied, such as a file that is open

    def _of_container(self, container: Any, *, has_wrapped: bool) -> Any:
        """A container of what its members become; itself if they stay as they are."""
        if id(container) in self._done:
            return self._done[id(container)]
        self._done[id(container)] = container  # if it is a member of itself
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
    """Whether a `Dataset` is among so many; by their types, which takes 20 ns for each."""
    return any(issubclass(kind, Dataset) for kind in set(map(type, values)))


def _looks_like_dataset(value: Any) -> bool:
    """Whether something is asked for items as datasets are.

    One with a ``__del__`` owns something, which a copy would give back once more.
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
    """An object of the same class with the same attributes."""
    if not _is_copied_as_usual(type(thing)):
        return copy.copy(thing)
    # `copy.copy` would ask the new object for `__setstate__` while it has no attributes: one that
    # passes on what it is asked for, to one of its attributes, would not come to an end.
    shell = object.__new__(type(thing))
    for name, value in _attributes_of(thing):
        _set(shell, name, value)
    return shell


def _is_copied_as_usual(kind: type) -> bool:
    """Whether a class says nothing of how it is copied, and its objects are their attributes."""
    return not any(name in vars(one) for one in kind.__mro__[:-1] for name in _OF_COPYING)


def _slots_of(kind: type) -> Iterator[str]:
    """The names of ``__slots__``, as they are in the instances."""
    for one in kind.__mro__:
        if "__slots__" in vars(one):
            for name, member in vars(one).items():
                if isinstance(member, MemberDescriptorType):
                    yield name


def _has_attributes(thing: Any) -> bool:
    return hasattr(thing, "__dict__") or next(_slots_of(type(thing)), None) is not None


def _attributes_of(thing: Any) -> list[tuple[str, Any]]:
    """What an object has for itself: in its ``__dict__``, and in its ``__slots__``."""
    found = list(vars(thing).items()) if hasattr(thing, "__dict__") else []
    for name in _slots_of(type(thing)):
        try:
            found.append((name, object.__getattribute__(thing, name)))
        except AttributeError:
            pass  # nothing was ever put there
    return found


def _set(thing: Any, name: str, value: Any) -> None:
    """Set an attribute, whatever `__setattr__` has to say: it is only said of the original."""
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
            # `copy.deepcopy` would ask it for what `copy.copy` asks for: see `_shell_of`.
            memo[id(one)] = object.__new__(type(one))
            bare.append(one)
    copied = copy.deepcopy(dataset, memo)
    for one in bare:
        for name, value in _attributes_of(one):
            _set(memo[id(one)], name, copy.deepcopy(value, memo))
    return copied


def _reached_from(thing: Any) -> Iterator[Any]:
    """The objects that can be reached by attributes and containers, each once."""
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
