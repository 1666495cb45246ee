"""What samplers have of their own: a state, or generators that they draw their order from.

A position says how many batches of the sampler's order were handed out. For the same order to come
again, the sampler has to be as it was when the epoch began: so that is saved, and given back to it.

A sampler may also count its epochs, or where it is in one, in plain attributes. Which those are is
seen by looking: they change while an epoch is gone through. What the user sets between epochs, as
by ``set_epoch``, is none of them.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import Sampler

from aioqueue import InvalidArgumentError
from aioqueue.torch.fetching import Stateful
from aioqueue.torch.position import as_text, from_text

__all__ = ("Counters", "restore_samplers", "states_of_samplers", "with_counters")

_HELD: Final = ("batch_sampler", "sampler")
"""The names by which samplers hold others."""


_PLAIN: Final = (bool, int, float, str, type(None))
"""Types of attributes by which samplers may count."""

_COUNTERS: Final = "counters"
"""Under which name their values are in the state of a sampler."""


class Counters:
    """The plain attributes of samplers that change when an epoch is gone through."""

    def __init__(self) -> None:
        self._before: list[dict[str, Any]] = []
        self._names: list[set[str]] = []

    def begin(self, sampler: Any, states: list[Any]) -> None:
        """An epoch begins: remember what the attributes are.

        Args:
            sampler: that of the loader.
            states: what the samplers were given, in which other attributes may be known.
        """
        self._before = [_plain_attributes(one) for one in _chain(sampler)]
        if len(self._names) != len(self._before):
            self._names = [set() for _ in self._before]
        for names, state in zip(self._names, states, strict=False):
            names.update((state or {}).get(_COUNTERS, ()))

    def look(self, sampler: Any) -> None:
        """See which have changed since it began. For whoever knows that the user has changed none:
        the epoch is being gone through, or has just ended."""
        for one, before, names in zip(_chain(sampler), self._before, self._names, strict=False):
            now = _plain_attributes(one)
            names |= {name for name, value in before.items() if now.get(name, value) != value}

    def at_beginning(self) -> list[dict[str, Any]]:
        """What those that count were when the epoch began."""
        return [
            {name: before[name] for name in sorted(names) if name in before}
            for before, names in zip(self._before, self._names, strict=True)
        ]

    def now(self, sampler: Any) -> list[dict[str, Any]]:
        """What they are."""
        return [
            {name: value for name, value in _plain_attributes(one).items() if name in names}
            for one, names in zip(_chain(sampler), self._names, strict=False)
        ]


class _Kind(NamedTuple):
    """A kind of generators."""

    save: Callable[[Any], Any]
    """Gives its state, in plain types."""
    load: Callable[[Any, Any], object]


_KINDS: Final[dict[type, _Kind]] = {
    torch.Generator: _Kind(
        lambda generator: as_text(generator.get_state()),
        lambda generator, state: generator.set_state(from_text(state)),
    ),
    np.random.Generator: _Kind(
        lambda generator: _plain(generator.bit_generator.state),
        lambda generator, state: setattr(generator.bit_generator, "state", state),
    ),
    random.Random: _Kind(
        lambda generator: _plain(generator.getstate()),
        lambda generator, state: generator.setstate((state[0], tuple(state[1]), state[2])),
    ),
}


def states_of_samplers(sampler: Any, generator: Any) -> list[Any]:
    """What a sampler, and those that it holds, have of their own now.

    Args:
        sampler: that of a loader.
        generator: of the loader, whose state is saved by itself.

    Returns:
        One for each, outermost first; none if nobody has any.
    """
    found = [_state_of(one, generator) for one in _chain(sampler)]
    return found if any(state is not None for state in found) else []


def with_counters(states: list[Any], counters: list[dict[str, Any]]) -> list[Any]:
    """The same states, with what samplers count.

    Args:
        states: what `states_of_samplers` gave.
        counters: by sampler, as `Counters` has them.
    """
    if not any(counters) or len(states) not in (0, len(counters)):
        return states
    states = states or [None] * len(counters)
    return [
        {**(state or {}), _COUNTERS: counted} if counted else state
        for state, counted in zip(states, counters, strict=True)
    ]


def restore_samplers(sampler: Any, generator: Any, states: list[Any]) -> None:
    """Give back what `states_of_samplers` has found.

    Raises:
        InvalidArgumentError: these are other samplers.
    """
    chain = list(_chain(sampler))
    if states and len(states) != len(chain):
        raise _other_samplers(sampler)
    for one, state in zip(chain if states else (), states, strict=True):
        if state is None:
            continue
        if not isinstance(state, dict):
            raise _other_samplers(sampler)
        if "state" in state:
            if not isinstance(one, Stateful):
                raise _other_samplers(one)
            one.load_state_dict(copy.deepcopy(state["state"]))
            continue
        generators = _generators_of(one, generator)
        state = dict(state)
        counters = state.pop(_COUNTERS, {})
        if not isinstance(counters, dict) or not counters.keys() <= _attributes_of(one).keys():
            raise _other_samplers(one)
        vars(one).update(counters)
        if set(generators) != set(state):
            raise _other_samplers(one)
        for name, own in generators.items():
            try:
                _kind_of(own).load(own, state[name])
            except (TypeError, ValueError, KeyError, IndexError) as error:
                raise _other_samplers(one) from error


def _chain(sampler: Any) -> Iterator[Any]:
    """A sampler, and those that it holds."""
    pending, seen = [sampler], set[int]()
    while pending:
        one = pending.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        held = _attributes_of(one)
        pending += [held[name] for name in _HELD if name in held]
        pending += [value for value in held.values() if isinstance(value, Sampler)]


def _state_of(sampler: Any, generator: Any) -> Any:
    if isinstance(sampler, Stateful):
        # It may give the very object that it goes on writing to.
        return {"state": copy.deepcopy(sampler.state_dict())}
    own = _generators_of(sampler, generator)
    return {name: _kind_of(one).save(one) for name, one in own.items()} or None


def _generators_of(sampler: Any, generator: Any) -> dict[str, Any]:
    """The generators that a sampler has for itself, by the names of its attributes."""
    return {
        name: value
        for name, value in _attributes_of(sampler).items()
        if isinstance(value, tuple(_KINDS)) and value is not generator
    }


def _plain_attributes(sampler: Any) -> dict[str, Any]:
    """The attributes of a sampler by which it may count; none of one that has a state."""
    if isinstance(sampler, Stateful):
        return {}
    return {name: value for name, value in _attributes_of(sampler).items() if type(value) in _PLAIN}


def _kind_of(generator: Any) -> _Kind:
    return next(kind for base, kind in _KINDS.items() if isinstance(generator, base))


def _attributes_of(sampler: Any) -> dict[str, Any]:
    return vars(sampler) if hasattr(sampler, "__dict__") else {}


def _plain(state: Any) -> Any:
    """The state of a generator in types that JSON knows."""
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
