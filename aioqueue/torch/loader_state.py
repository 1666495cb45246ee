"""The position in an epoch: which batches were returned, as a few plain numbers.

For a map-style dataset, these are the number of batches, and the state of the random generator from
which the sampler drew its order. On resumption the sampler yields that order again, which is cheap,
and no sample is loaded twice. A checksum of the indices detects a sampler that yields another
order. An iterable dataset reports each worker's position itself, or is reread.

Samplers may have state of their own: a ``state_dict``, or generators. To yield the same order, a
sampler must be as it was when the epoch began, so that state is saved and restored. A sampler may
also count epochs or steps in plain attributes; these are the attributes that change during an
epoch. Attributes that the user sets between epochs, as by ``set_epoch``, are not restored. Both are
looked for in containers as well, and generators also in the plain objects that a sampler refers to.
"""

from __future__ import annotations

import base64
import copy
import functools
import itertools
import random
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import BuiltinMethodType, FunctionType, MethodType, UnionType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import Sampler

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import is_int
from aioqueue.torch.collate import DatasetStart, DatasetState, StatefulDataset

VERSION: Final = 3
"""Version of saved states."""

_ENCODING: Final = "zlib+base64:"
"""Before the state of a generator of PyTorch."""

_DEEPEST: Final = 10
"""Deepest nesting of objects within an index that has a checksum."""


@dataclass
class LoaderPosition:
    """The position in one epoch.

    Args:
        random: state of the generator before the epoch drew from it.
        base_seed: the base of the workers' seeds.
        is_first: whether this epoch drew it; persistent workers keep the first one.
        starts: position of each worker in an iterable dataset.
        batches: number of returned batches, from the first one without a gap.
        order: checksum of their indices.
        beyond: batches returned after such a gap, if the order is not kept, with their checksums.
        turn: the worker whose batch is next.
        ended: the workers whose part of an iterable dataset has ended.
        is_over: whether the epoch has ended.
        samplers: the samplers' own states before the epoch drew anything.
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
        """Record that a batch was returned.

        Args:
            number: its place in the sampler's order, from 0.
            mark: checksum of its index, from `mark_of`.
        """
        self.beyond[number] = mark
        while self.batches in self.beyond:
            self.order = _folded(self.order, self.beyond.pop(self.batches))
            self.batches += 1

    def handed_out_by(self, worker: int, standing: DatasetState) -> None:
        """Record that a worker's batch of an iterable dataset was returned."""
        batches = self.starts[worker].batches + 1
        self.starts[worker] = DatasetStart(batches, standing.state, standing.has_ended)
        self.turn = (worker + 1) % len(self.starts)

    def is_unknown(self) -> bool:
        """Whether an iterable dataset has not reported its position."""
        return any(start.batches and start.state is None for start in self.starts)

    def as_dict(self) -> dict[str, Any]:
        """Return the position in plain types."""
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
        """Return the position from the result of `as_dict`.

        Args:
            state: that result.

        Raises:
            InvalidArgumentError: the state is not valid.
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


@dataclass
class LoaderKind:
    """How a loader draws from its generator, which PyTorch lets depend on its workers.

    A resumed loader goes on as the saved one: else the epochs after the resumed one would have
    another order than those of the saved loader.

    Args:
        has_workers: whether it has any: then it iterates its sampler twice when it draws a seed.
        is_persistent: whether it draws the base of its workers' seeds once, not in each epoch.
        epochs: how many epochs have begun with that one since another kind of loader resumed it.
    """

    has_workers: bool
    is_persistent: bool
    epochs: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "has_workers": self.has_workers,
            "is_persistent": self.is_persistent,
            "epochs": self.epochs,
        }

    @classmethod
    def from_dict(cls, state: Any) -> LoaderKind:
        """Return it from the result of `as_dict`.

        Raises:
            InvalidArgumentError: the state is not valid.
        """
        return cls(
            field_of(state, "has_workers", bool),
            field_of(state, "is_persistent", bool),
            field_of(state, "epochs", int),
        )

    def seed_of_workers(self, base_seed: int) -> int:
        """Return the base of the seeds of workers that start anew for an epoch.

        A loader with persistent workers draws it once, and they keep using their generators. Those
        that start anew with the same seed would draw the same numbers in each epoch.
        """
        if not self.epochs:
            return base_seed
        words = [base_seed & 0xFFFFFFFF, base_seed >> 32, self.epochs]
        return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))


def mark_of(index: Any) -> int:
    """Return a checksum of an index of the sampler; 0 if it has no reproducible one."""
    if is_int(index):
        return zlib.crc32(str(int(index)).encode())
    try:
        values = np.asarray(index)
    except Exception:  # such as a failing `__array__`, or rows of different lengths
        values = None
    if values is not None and values.dtype.kind in "biufUS":
        return zlib.crc32(values.tobytes())
    text = _stable_text(index)
    return 0 if text is None else zlib.crc32(text.encode())


def _stable_text(thing: Any, depth: int = 0) -> str | None:
    """Return an object as text that is the same in every process; ``None`` without such a text."""
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
        text = [_stable_text(one, depth + 1) for one in thing]
        return None if None in text else f"{name} {sorted(map(str, text))}"
    elif isinstance(thing, dict):
        members = [part for pair in thing.items() for part in pair]
    elif hasattr(thing, "__dict__") and not callable(thing):
        members = [part for pair in sorted(vars(thing).items()) for part in pair]
    elif kind.__repr__ is not object.__repr__ and not callable(thing):
        return f"{name} {thing!r}"  # such as a date, a path or a UUID
    else:
        return None
    text = [_stable_text(one, depth + 1) for one in members]
    return None if None in text else f"{name} {text}"


def _folded(order: int, mark: int) -> int:
    return zlib.crc32(mark.to_bytes(4, "little"), order)


def as_text(random: Any) -> str:
    """Return the state of a generator as text: its encoding, then its compressed bytes."""
    return _ENCODING + base64.b64encode(zlib.compress(random.numpy().tobytes(), 1)).decode()


def from_text(text: str) -> Any:
    """Return the state of a generator from its text.

    Raises:
        InvalidArgumentError: it is not such a text.
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
            f"state: got {text!r:.60} as the state of a generator; expected a state of state_dict"
        ) from error


def field_of(state: Any, name: str, kind: type | UnionType) -> Any:
    """Return a field of a saved state.

    Raises:
        InvalidArgumentError: it is missing, or of another type.
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
    """Return the samplers' own states in a saved state.

    Raises:
        InvalidArgumentError: they are missing, or of another type.
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
"""Attribute names under which samplers hold other samplers."""


_PLAIN: Final = frozenset({bool, int, float, str, type(None)})
"""Types of the attributes in which samplers may count."""

_MOST_VALUES: Final = 1024
"""The longest list, and the largest array, in which a sampler may count. Longer ones are data."""

_DATA: Final = ("data_source", "dataset")
"""Attributes that have no state, but may be large."""

_METHODS: Final = (MethodType, BuiltinMethodType)

_DEEPEST_PART: Final = 4
"""How deep within a sampler its generators and counters may be."""

_COUNTERS: Final = "counters"
"""Key of these attributes in a sampler's state."""


class Counters:
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
        self._before = [_plain_attributes(one) for one in _chain(sampler)]
        if len(self._names) != len(self._before):
            self._names = [set() for _ in self._before]
        for names, state in zip(self._names, states, strict=False):
            names.update((state or {}).get(_COUNTERS, ()))

    def look(self, sampler: Any) -> None:
        """Find the attributes that have changed since then.

        Call it only when the user cannot have changed them: during an epoch, or right after its
        end.
        """
        for one, before, names in zip(_chain(sampler), self._before, self._names, strict=False):
            now = _plain_attributes(one)
            names |= {name for name, value in before.items() if now.get(name, value) != value}

    def at_beginning(self) -> list[dict[str, Any]]:
        """Return their values at the beginning of the epoch."""
        return [
            {name: before[name] for name in sorted(names) if name in before}
            for before, names in zip(self._before, self._names, strict=True)
        ]

    def now(self, sampler: Any) -> list[dict[str, Any]]:
        """Return their current values."""
        return [
            {name: value for name, value in _plain_attributes(one).items() if name in names}
            for one, names in zip(_chain(sampler), self._names, strict=False)
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
    found = [_state_of(one, generator) for one in _chain(sampler)]
    return found if any(state is not None for state in found) else []


def with_counters(states: list[Any], counters: list[dict[str, Any]]) -> list[Any]:
    """Return the same states, with the samplers' counters.

    Args:
        states: from `states_of_samplers`.
        counters: by sampler, from `Counters`.
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
        for name, own in generators.items():
            try:
                _kind_of(own).load(own, state[name])
            except (TypeError, ValueError, KeyError, IndexError) as error:
                raise _other_samplers(one) from error


def _chain(sampler: Any) -> Iterator[Any]:
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
    own = _generators_of(sampler, generator)
    return {name: _kind_of(one).save(one) for name, one in own.items()} or None


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


class _Part(NamedTuple):
    """A value within a sampler: of an attribute, or of what an attribute refers to."""

    path: str
    value: Any
    set: Callable[[Any], object]
    """Replaces it, by a value in plain types."""
    is_own: bool
    """Whether it is an attribute of the sampler, or within a container that is one. What counts in
    another object, such as the steps of a trainer, may be restored by who owns it."""


def _parts_of(sampler: Any) -> Iterator[_Part]:
    """Yield the values within a sampler, without those of other samplers and of datasets."""
    seen: set[int] = set()
    pending = deque([("", sampler, 0, True)])
    while pending and len(seen) < _MOST_VALUES:
        before, holder, depth, is_own = pending.popleft()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for name, value, assign in _members_of(holder):
            if name in _DATA and not depth:
                continue
            path = f"{before}{name}"
            part = _Part(path, value, _setter(value, assign), is_own)
            if _is_small(value):
                yield part
            if depth < _DEEPEST_PART and _may_hold_state(value):
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
        return bool(value.numel() <= _MOST_VALUES)
    if isinstance(value, np.ndarray):
        return value.size <= _MOST_VALUES
    return not isinstance(value, list | deque) or len(value) <= _MOST_VALUES


def _may_hold_state(value: Any) -> bool:
    """Return whether to look into a value: a short container, or a plain object."""
    if isinstance(value, list | tuple | dict):
        return len(value) <= _MOST_VALUES
    if isinstance(value, (Sampler, torch.Tensor, np.ndarray, np.generic, *_KINDS)):
        return False
    if isinstance(value, (FunctionType, functools.partial, *_METHODS)):
        return True
    is_data = isinstance(value, torch.nn.Module) or hasattr(value, "__getitem__")
    return not (is_data or callable(value) or type(value) in _PLAIN)


def _kind_of(generator: Any) -> _Kind:
    return next(kind for base, kind in _KINDS.items() if isinstance(generator, base))


def _attributes_of(sampler: Any) -> dict[str, Any]:
    """Return the attributes of an object, and of its slots."""
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
