"""The state of samplers, saved with the position of a loader.

Samplers may have state of their own: a ``state_dict``, or generators. To yield the same order, a
sampler must be as it was when the epoch began, so that state is saved and restored. A sampler may
also count epochs or steps in plain attributes; these are the attributes that change during an
epoch. Attributes that the user sets between epochs, as by ``set_epoch``, are not restored. Both are
looked for in containers as well, and generators also in the plain objects that a sampler refers to.
"""

from __future__ import annotations

import copy
import functools
import itertools
import random
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import Sampler

from aioqueue import InvalidArgumentError
from aioqueue.torch.fetchers import StatefulDataset
from aioqueue.torch.loader_state import as_text, from_text

_HELD: Final = ("batch_sampler", "sampler")
"""Attribute names under which samplers hold other samplers."""


_PLAIN: Final = frozenset({bool, int, float, str, type(None)})
"""Types of the attributes in which samplers may count."""

_MAX_VALUES: Final = 1024
"""The longest list, and the largest array, in which a sampler may count. Longer ones are data."""

_DATA: Final = ("data_source", "dataset")
"""Attributes that have no state, but may be large."""

_METHODS: Final = (MethodType, BuiltinMethodType)

_MAX_DEPTH: Final = 4
"""How deep within a sampler its generators and counters may be."""

_COUNTERS: Final = "counters"
"""Key of these attributes in a sampler's state."""


class SamplerCounters:
    """The plain attributes of samplers that change during an epoch."""

    def __init__(self) -> None:
        self._before: list[dict[str, Any]] = []
        self._names: list[set[str]] = []

    def begin(self, sampler: Any, states: list[Any]) -> None:
        """Remember the attributes at the beginning of an epoch.

        Args:
            sampler: the loader's sampler.
            states: the restored states of the samplers, which may name other attributes.
        """
        self._before = [_plain_attributes(one) for one in _samplers_within(sampler)]
        if len(self._names) != len(self._before):
            self._names = [set() for _ in self._before]
        for names, state in zip(self._names, states, strict=False):
            names.update((state or {}).get(_COUNTERS, ()))

    def find_changed(self, sampler: Any) -> None:
        """Find the attributes that have changed since then.

        Call it only when the user cannot have changed them: during an epoch, or right after its
        end.
        """
        for one, before, names in zip(
            _samplers_within(sampler), self._before, self._names, strict=False
        ):
            current_values = _plain_attributes(one)
            names |= {
                name for name, value in before.items() if current_values.get(name, value) != value
            }

    def values_at_start(self) -> list[dict[str, Any]]:
        return [
            {name: before[name] for name in sorted(names) if name in before}
            for before, names in zip(self._before, self._names, strict=True)
        ]

    def current_values(self, sampler: Any) -> list[dict[str, Any]]:
        return [
            {name: value for name, value in _plain_attributes(one).items() if name in names}
            for one, names in zip(_samplers_within(sampler), self._names, strict=False)
        ]


class _Kind(NamedTuple):
    """A kind of random generator."""

    save: Callable[[Any], Any]
    """Returns its state in plain types."""
    load: Callable[[Any, Any], object]


def _set_legacy_state(generator: Any, state: Any) -> None:
    inner = {**state["state"], "key": np.array(state["state"]["key"], np.uint32)}
    generator.set_state({**state, "state": inner})


_KINDS: Final[dict[type, _Kind]] = {
    torch.Generator: _Kind(
        lambda generator: as_text(generator.get_state()),
        lambda generator, state: generator.set_state(from_text(state)),
    ),
    np.random.Generator: _Kind(
        lambda generator: _plain(generator.bit_generator.state),
        lambda generator, state: setattr(generator.bit_generator, "state", state),
    ),
    np.random.BitGenerator: _Kind(
        lambda generator: _plain(generator.state),
        lambda generator, state: setattr(generator, "state", state),
    ),
    np.random.RandomState: _Kind(
        lambda generator: _plain(generator.get_state(legacy=False)), _set_legacy_state
    ),
    random.Random: _Kind(
        lambda generator: _plain(generator.getstate()),
        lambda generator, state: generator.setstate((state[0], tuple(state[1]), state[2])),
    ),
}


def states_of_samplers(sampler: Any, generator: Any) -> list[Any]:
    """Return the own states of a sampler and of those that it holds.

    Args:
        sampler: the loader's sampler.
        generator: the loader's generator, whose state is saved separately.

    Returns:
        One state for each, outermost first; empty if none has any.
    """
    found = [_state_of(one, generator) for one in _samplers_within(sampler)]
    return found if any(state is not None for state in found) else []


def with_counters(states: list[Any], counters: list[dict[str, Any]]) -> list[Any]:
    """Return the same states, with the samplers' counters.

    Args:
        states: from `states_of_samplers`.
        counters: by sampler, from `SamplerCounters`.
    """
    if not any(counters) or len(states) not in (0, len(counters)):
        return states
    states = states or [None] * len(counters)
    return [
        {**(state or {}), _COUNTERS: counted} if counted else state
        for state, counted in zip(states, counters, strict=True)
    ]


def restore_samplers(sampler: Any, generator: Any, states: list[Any]) -> None:
    """Restore the result of `states_of_samplers`.

    Raises:
        InvalidArgumentError: the samplers are different ones.
    """
    samplers = list(_samplers_within(sampler))
    if states and len(states) != len(samplers):
        raise _other_samplers(sampler)
    for one, state in zip(samplers if states else (), states, strict=True):
        if state is None:
            continue
        if not isinstance(state, dict):
            raise _other_samplers(sampler)
        if "state" in state:
            if not isinstance(one, StatefulDataset):
                raise _other_samplers(one)
            one.load_state_dict(copy.deepcopy(state["state"]))
            continue
        generators = _generators_of(one, generator)
        state = dict(state)  # the caller's stays whole: the resumption may be tried again
        counters = state.pop(_COUNTERS, {})
        parts = {part.path: part for part in _parts_of(one) if part.is_own}
        if not isinstance(counters, dict) or not counters.keys() <= parts.keys():
            raise _other_samplers(one)
        for path, value in counters.items():
            try:
                parts[path].set(value)
            except (TypeError, ValueError, OverflowError, RuntimeError) as error:
                raise _other_samplers(one) from error
        if set(generators) != set(state):
            raise _other_samplers(one)
        for name, found in generators.items():
            try:
                _kind_of(found).load(found, state[name])
            except (TypeError, ValueError, KeyError, IndexError) as error:
                raise _other_samplers(one) from error


def _samplers_within(sampler: Any) -> Iterator[Any]:
    """Return a sampler and those that it holds."""
    pending, seen = [sampler], set[int]()
    while pending:
        one = pending.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        held = _attributes_of(one)
        pending += [held[name] for name in _HELD if name in held]
        pending += [part.value for part in _parts_of(one) if isinstance(part.value, Sampler)]


def _state_of(sampler: Any, generator: Any) -> Any:
    if isinstance(sampler, StatefulDataset):
        # A sampler may return the object that it continues to modify.
        return {"state": copy.deepcopy(sampler.state_dict())}
    found = _generators_of(sampler, generator)
    return {name: _kind_of(one).save(one) for name, one in found.items()} or None


def _generators_of(sampler: Any, generator: Any) -> dict[str, Any]:
    """Return a sampler's own generators, by attribute name."""
    return {
        path: value
        for path, value, *_ in _parts_of(sampler)
        if isinstance(value, tuple(_KINDS)) and value is not generator
    }


def _plain_attributes(sampler: Any) -> dict[str, Any]:
    """Return the attributes in which a sampler may count; none if it has a state of its own."""
    if isinstance(sampler, StatefulDataset):
        return {}
    found = {part.path: _plain_value(part.value) for part in _parts_of(sampler) if part.is_own}
    return {path: value for path, value in found.items() if value is not _NOT_PLAIN}


_NOT_PLAIN: Final[Any] = object()


def _plain_value(value: Any) -> Any:
    """Return a private copy of a value in plain types; `_NOT_PLAIN` if it has none."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist() if value.dtype.kind in "biufU" else _NOT_PLAIN
    if isinstance(value, torch.Tensor):
        return _NOT_PLAIN if value.is_complex() else value.tolist()
    if isinstance(value, itertools.count):
        return [int(one) for one in re.findall(r"-?\d+", repr(value))] or _NOT_PLAIN
    if type(value) in (list, deque):
        return list(value) if _PLAIN.issuperset(map(type, value)) else _NOT_PLAIN
    return _NOT_PLAIN


class _SamplerPart(NamedTuple):
    """A value within a sampler: of an attribute, or of what an attribute refers to."""

    path: str
    value: Any
    set: Callable[[Any], object]
    """Replaces it, by a value in plain types."""
    is_own: bool
    """Whether it is an attribute of the sampler, or within a container that is one. What counts in
    another object, such as the steps of a trainer, may be restored by who owns it."""


def _parts_of(sampler: Any) -> Iterator[_SamplerPart]:
    """Yield the values within a sampler, without those of other samplers and of datasets."""
    seen: set[int] = set()
    pending = deque([("", sampler, 0, True)])
    while pending and len(seen) < _MAX_VALUES:
        before, holder, depth, is_own = pending.popleft()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for name, value, assign in _members_of(holder):
            if name in _DATA and not depth:  # large, and not part of the order
                continue
            path = f"{before}{name}"
            part = _SamplerPart(path, value, _setter(value, assign), is_own)
            if _is_small(value):
                yield part
            if depth < _MAX_DEPTH and _may_hold_state(value):
                is_inside = is_own and isinstance(value, list | tuple | dict)
                pending.append((f"{path}.", value, depth + 1, is_inside))


def _members_of(holder: Any) -> Iterator[tuple[str, Any, Callable[[Any], object]]]:
    if isinstance(holder, list):
        for at, value in enumerate(holder):
            yield str(at), value, functools.partial(holder.__setitem__, at)
    elif isinstance(holder, tuple):
        for at, value in enumerate(holder):
            yield str(at), value, functools.partial(_cannot_set, holder)
    elif isinstance(holder, FunctionType):
        cells = holder.__closure__ or ()
        for name, cell in zip(holder.__code__.co_freevars, cells, strict=True):
            with suppress(ValueError):  # it has no content yet
                yield name, cell.cell_contents, functools.partial(setattr, cell, "cell_contents")
    elif isinstance(holder, _METHODS):
        yield "__self__", holder.__self__, functools.partial(_cannot_set, holder)
    elif isinstance(holder, functools.partial):
        yield from _members_of([*holder.args, *holder.keywords.values(), holder.func])
    elif isinstance(holder, dict):
        for key, value in holder.items():
            if type(key) in (str, int):
                yield str(key), value, functools.partial(holder.__setitem__, key)
    else:
        for name, value in _attributes_of(holder).items():
            yield name, value, functools.partial(setattr, holder, name)


def _cannot_set(holder: Any, value: Any) -> None:
    raise TypeError(f"{holder!r:.60} cannot change")


def _setter(value: Any, assign: Callable[[Any], object]) -> Callable[[Any], object]:
    if isinstance(value, list):
        return functools.partial(value.__setitem__, slice(None))
    if isinstance(value, deque):
        return functools.partial(_refill, value)
    if isinstance(value, torch.Tensor):  # in place: it may be shared memory
        return lambda plain: value.copy_(torch.as_tensor(plain, dtype=value.dtype))
    if isinstance(value, np.ndarray):
        return functools.partial(value.__setitem__, ...)
    if isinstance(value, itertools.count):
        return lambda plain: assign(itertools.count(*plain))
    if isinstance(value, np.generic):
        return lambda plain: assign(np.asarray(plain, value.dtype)[()])
    return assign


def _refill(holder: deque[Any], plain: Any) -> None:
    holder.clear()
    holder.extend(plain)


def _is_small(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return bool(value.numel() <= _MAX_VALUES)
    if isinstance(value, np.ndarray):
        return value.size <= _MAX_VALUES
    return not isinstance(value, list | deque) or len(value) <= _MAX_VALUES


def _may_hold_state(value: Any) -> bool:
    """Return whether to look into a value: a short container, or a plain object."""
    if isinstance(value, list | tuple | dict):
        return len(value) <= _MAX_VALUES
    if isinstance(value, (Sampler, torch.Tensor, np.ndarray, np.generic, *_KINDS)):
        return False
    if isinstance(value, (FunctionType, functools.partial, *_METHODS)):
        return True
    is_data = isinstance(value, torch.nn.Module) or hasattr(value, "__getitem__")
    return not (is_data or callable(value) or type(value) in _PLAIN)


def _kind_of(generator: Any) -> _Kind:
    return next(kind for base, kind in _KINDS.items() if isinstance(generator, base))


def _attributes_of(sampler: Any) -> dict[str, Any]:
    slots = {
        name: getattr(sampler, name)
        for kind in type(sampler).__mro__
        for name in _slots_of(kind)
        if hasattr(sampler, name)
    }
    return {**slots, **getattr(sampler, "__dict__", {})}


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _plain(state: Any) -> Any:
    """Return the state of a generator in JSON types."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return [_plain(value) for value in state]
    return state.tolist() if isinstance(state, np.ndarray | np.generic) else state


def _other_samplers(sampler: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"state: got one with the states of other samplers than a {type(sampler).__name__} with"
        " what it holds; expected a loader with the same kinds of samplers as the one that was"
        " saved"
    )
