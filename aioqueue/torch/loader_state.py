"""Where an epoch is: what was handed out of it, in a few plain numbers.

Of a map-style dataset that is the number of batches, and the state of the random generator from
which the sampler made its order: after a resume the sampler goes through that order again, which
costs nothing, and no sample is loaded twice. A checksum of the indices tells when a sampler does
not come to the same order again. An iterable dataset says itself where each worker is in it; or
what was handed out is read again.

What samplers have of their own: a state, or generators that they draw their order from.

A position says how many batches of the sampler's order were handed out. For the same order to come
again, the sampler has to be as it was when the epoch began: so that is saved, and given back to it.

A sampler may also count its epochs, or where it is in one, in plain attributes. Which those are is
seen by looking: they change while an epoch is gone through. What the user sets between epochs, as
by ``set_epoch``, is none of them.
"""

from __future__ import annotations

import base64
import copy
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import Sampler

from aioqueue import InvalidArgumentError
from aioqueue.arguments import is_int
from aioqueue.torch.fetch import DatasetStart, DatasetState, StatefulDataset

__all__ = (
    "VERSION",
    "Counters",
    "LoaderPosition",
    "as_text",
    "field_of",
    "from_text",
    "mark_of",
    "restore_samplers",
    "samplers_in",
    "states_of_samplers",
    "with_counters",
)


VERSION: Final = 3
"""Of the states that loaders save."""

_ENCODING: Final = "zlib+base64:"
"""Before the state of a generator of PyTorch."""

_DEEPEST: Final = 10
"""How deep objects may lie within an index that has a checksum."""


@dataclass
class LoaderPosition:
    """Where one epoch is.

    Args:
        random: the state of the generator before the epoch had drawn anything.
        base_seed: what the workers' seeds are made of.
        is_first: whether that was drawn by this epoch; persistent workers keep the first one.
        starts: where each worker is in an iterable dataset.
        batches: how many batches were handed out, from the first on without a gap.
        order: a checksum of their indices.
        beyond: batches handed out after such a gap, when the order is not kept, and their
            checksums.
        turn: the worker whose batch is next.
        ended: the workers whose part of an iterable dataset has ended.
        is_over: whether the epoch has ended.
        samplers: what samplers had of their own before the epoch had drawn anything; see
            `aioqueue.torch.loader_state`.
    """

    random: Any
    base_seed: int
    is_first: bool
    starts: list[DatasetStart]
    batches: int = 0
    order: int = 0
    beyond: dict[int, int] = field(default_factory=dict)
    turn: int = 0
    ended: set[int] = field(default_factory=set)
    is_over: bool = False
    samplers: list[Any] = field(default_factory=list)

    def handed_out(self, number: int, mark: int) -> None:
        """Note that a batch was handed out.

        Args:
            number: its place in the order of the sampler, from 0.
            mark: of its index, by `mark_of`.
        """
        self.beyond[number] = mark
        while self.batches in self.beyond:
            self.order = _folded(self.order, self.beyond.pop(self.batches))
            self.batches += 1

    def handed_out_by(self, worker: int, standing: DatasetState) -> None:
        """Note that a worker's batch of an iterable dataset was handed out."""
        batches = self.starts[worker].batches + 1
        self.starts[worker] = DatasetStart(batches, standing.state, standing.has_ended)
        self.turn = (worker + 1) % len(self.starts)

    def is_unknown(self) -> bool:
        """Whether an iterable dataset has not said where it is."""
        return any(start.batches and start.state is None for start in self.starts)

    def as_dict(self) -> dict[str, Any]:
        """The position in plain types."""
        return {
            "batches": self.batches,
            "order_checksum": self.order,
            "beyond": [
                {"batch": number, "checksum": mark} for number, mark in sorted(self.beyond.items())
            ],
            "random_state": as_text(self.random),
            "base_seed": self.base_seed,
            "drew_base_seed": self.is_first,
            "workers": [
                {"batches": one.batches, "state": one.state, "has_ended": one.has_ended}
                for one in self.starts
            ],
            "next_worker": self.turn,
            "ended_workers": sorted(self.ended),
            "samplers": self.samplers,
        }

    @classmethod
    def from_dict(cls, state: Any) -> LoaderPosition:
        """The position that `as_dict` has told.

        Args:
            state: what it gave.

        Raises:
            InvalidArgumentError: it is not as `as_dict` makes it.
        """
        return cls(
            random=from_text(field_of(state, "random_state", str)),
            base_seed=field_of(state, "base_seed", int),
            is_first=field_of(state, "drew_base_seed", bool),
            starts=[
                DatasetStart(
                    field_of(one, "batches", int),
                    field_of(one, "state", object),
                    field_of(one, "has_ended", bool),
                )
                for one in field_of(state, "workers", list)
            ],
            batches=field_of(state, "batches", int),
            order=field_of(state, "order_checksum", int),
            beyond={
                field_of(one, "batch", int): field_of(one, "checksum", int)
                for one in field_of(state, "beyond", list)
            },
            turn=field_of(state, "next_worker", int),
            ended=set(_ints_of(field_of(state, "ended_workers", list))),
            samplers=samplers_in(state),
        )


def mark_of(index: Any) -> int:
    """A checksum of what a sampler has given; 0 for what has none that is always the same."""
    if is_int(index):
        return zlib.crc32(str(int(index)).encode())
    try:
        values = np.asarray(index)
    except Exception:  # whatever its own `__array__` says, or rows of several lengths
        values = None
    if values is not None and values.dtype.kind in "biufUS":
        return zlib.crc32(values.tobytes())
    told = _told(index)
    return 0 if told is None else zlib.crc32(told.encode())


def _told(thing: Any, depth: int = 0) -> str | None:
    """An object in words that are the same in every process; ``None`` if there are none."""
    if depth > _DEEPEST:
        return None
    kind: Any = type(thing)
    name = f"{kind.__module__}.{kind.__qualname__}"
    members: list[Any]
    if thing is None or isinstance(thing, str | bytes | int | float | complex):
        return f"{name} {thing!r}"
    if isinstance(thing, np.ndarray | np.generic | torch.Tensor):
        members = np.asarray(thing).tolist()
        return f"{name} {members!r}" if np.asarray(thing).dtype.kind != "O" else None
    if isinstance(thing, list | tuple):
        members = [*thing]
    elif isinstance(thing, set | frozenset):
        told = [_told(one, depth + 1) for one in thing]
        return None if None in told else f"{name} {sorted(map(str, told))}"
    elif isinstance(thing, dict):
        members = [part for pair in thing.items() for part in pair]
    elif hasattr(thing, "__dict__") and not callable(thing):
        members = [part for pair in sorted(vars(thing).items()) for part in pair]
    elif kind.__repr__ is not object.__repr__ and not callable(thing):
        return f"{name} {thing!r}"  # a date, a path, a UUID ...
    else:
        return None
    told = [_told(one, depth + 1) for one in members]
    return None if None in told else f"{name} {told}"


def _folded(order: int, mark: int) -> int:
    return zlib.crc32(mark.to_bytes(4, "little"), order)


def as_text(random: Any) -> str:
    """The state of a generator as text: the name of its encoding, and its bytes, compressed."""
    return _ENCODING + base64.b64encode(zlib.compress(random.numpy().tobytes(), 1)).decode()


def from_text(text: str) -> Any:
    """The state of a generator.

    Raises:
        InvalidArgumentError: it is no such text.
    """
    try:
        if not text.startswith(_ENCODING):
            raise ValueError("another encoding")
        compressed = base64.b64decode(text.removeprefix(_ENCODING), validate=True)
        memory = bytearray(zlib.decompress(compressed))
        random = torch.frombuffer(memory, dtype=torch.uint8)
        torch.Generator().set_state(random)
        return random
    except (AttributeError, TypeError, ValueError, RuntimeError, zlib.error) as error:
        raise InvalidArgumentError(
            f"state: got {text!r:.60} for the state of a generator; expected what state_dict made"
        ) from error


def field_of(state: Any, name: str, kind: type | UnionType) -> Any:
    """A field of a state that was saved.

    Raises:
        InvalidArgumentError: it is not there, or something else.
    """
    if not isinstance(state, dict) or name not in state:
        raise InvalidArgumentError(
            f"state: got {state!r:.60} without {name!r}; expected what state_dict of a DataLoader"
            " of aioqueue.torch made"
        )
    value = state[name]
    if not isinstance(value, kind):
        raise InvalidArgumentError(
            f"state: got {value!r:.60} for {name!r}; expected a value of type"
            f" {getattr(kind, '__name__', kind)}"
        )
    return value


def samplers_in(state: Any) -> list[Any]:
    """What samplers had of their own, as a state has it.

    Raises:
        InvalidArgumentError: it is not there, or something else.
    """
    samplers: list[Any] = field_of(state, "samplers", list)
    if not all(one is None or isinstance(one, dict) for one in samplers):
        raise InvalidArgumentError(
            f"state: got {samplers!r:.60} for 'samplers'; expected what state_dict made"
        )
    return samplers


def _ints_of(values: list[Any]) -> list[int]:
    if not all(map(is_int, values)):
        raise InvalidArgumentError(f"state: got {values!r:.60}; expected a list of ints")
    return values


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
            if not isinstance(one, StatefulDataset):
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
    if isinstance(sampler, StatefulDataset):
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
    if isinstance(sampler, StatefulDataset):
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
