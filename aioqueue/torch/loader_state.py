"""The position in an epoch: which batches were returned, as a few plain numbers.

For a map-style dataset, these are the number of batches, and the state of the random generator from
which the sampler drew its order. On resumption the sampler yields that order again, which is cheap,
and no sample is loaded twice. A checksum of the indices detects a sampler that yields another
order. An iterable dataset reports each worker's position itself, or is reread.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Final

import numpy as np
import torch

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import is_int
from aioqueue.torch.fetchers import DatasetStart, DatasetState
from aioqueue.torch.generator_states import States, states_as_text, states_from_text

VERSION: Final = 3
"""Version of saved states."""

_ENCODING: Final = "zlib+base64:"
"""Before the state of a generator of PyTorch."""

_MAX_DEPTH: Final = 10
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
        generators: the states of each worker's generators, behind its last batch that was returned.
    """

    random: Any
    base_seed: int
    is_first: bool
    starts: list[DatasetStart]
    batches: int = 0
    order: int = 0
    out_of_order: dict[int, int] = field(default_factory=dict)
    next_worker: int = 0
    ended: set[int] = field(default_factory=set)
    is_over: bool = False
    samplers: list[Any] = field(default_factory=list)
    generators: dict[int, States] = field(default_factory=dict)

    def mark_returned(self, number: int, checksum: int) -> None:
        """Record that a batch was returned.

        Args:
            number: its place in the sampler's order, from 0.
            mark: checksum of its index, from `index_checksum`.
        """
        # The batches without a gap are two numbers, whatever their count. Only those behind a gap
        # are kept one by one.
        self.out_of_order[number] = checksum
        while self.batches in self.out_of_order:
            self.order = _extended_checksum(self.order, self.out_of_order.pop(self.batches))
            self.batches += 1

    def mark_returned_by(self, worker: int, dataset_state: DatasetState) -> None:
        """Record that a worker's batch of an iterable dataset was returned."""
        batches = self.starts[worker].batches + 1
        self.starts[worker] = DatasetStart(batches, dataset_state.state, dataset_state.has_ended)
        self.next_worker = (worker + 1) % len(self.starts)

    def is_unknown(self) -> bool:
        """Whether an iterable dataset has not reported its position."""
        return any(start.batches and start.state is None for start in self.starts)

    def as_dict(self) -> dict[str, Any]:
        return {
            "batches": self.batches,
            "order_checksum": self.order,
            "beyond": [
                {"batch": number, "checksum": checksum}
                for number, checksum in sorted(self.out_of_order.items())
            ],
            "random_state": as_text(self.random),
            "base_seed": self.base_seed,
            "drew_base_seed": self.is_first,
            "workers": [
                {"batches": one.batches, "state": one.state, "has_ended": one.has_ended}
                for one in self.starts
            ],
            "next_worker": self.next_worker,
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
            out_of_order={
                field_of(one, "batch", int): field_of(one, "checksum", int)
                for one in field_of(state, "beyond", list)
            },
            next_worker=field_of(state, "next_worker", int),
            ended=set(_ints_of(field_of(state, "ended_workers", list))),
            samplers=samplers_in(state),
        )


@dataclass
class LoaderKind:
    """How a loader draws from its generator, which PyTorch lets depend on its workers.

    A resumed loader continues as the saved one. Otherwise the epochs after the resumed one would
    have another order than those of the saved loader.

    Args:
        has_workers: whether it has any: then it iterates its sampler twice when it draws a seed.
        is_persistent: whether it draws the base of its workers' seeds once, not in each epoch.
        epochs: how many epochs have begun with that one since another kind of loader resumed it.
    """

    has_workers: bool
    is_persistent: bool
    epochs: int = 0

    def as_dict(self) -> dict[str, Any]:
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


def index_checksum(index: Any) -> int:
    """Return a checksum of an index of the sampler; 0 if it has no reproducible one."""
    if is_int(index):
        return zlib.crc32(str(int(index)).encode())
    try:
        values = np.asarray(index)
    except Exception:  # such as a failing `__array__`, or rows of different lengths
        values = None
    # Not an array of objects: its bytes are addresses, which differ in each process.
    if values is not None and values.dtype.kind in "biufUS":
        return zlib.crc32(values.tobytes())
    text = _stable_text(index)
    return 0 if text is None else zlib.crc32(text.encode())


def _stable_text(thing: Any, depth: int = 0) -> str | None:
    """Return an object as text that is the same in every process; ``None`` without such a text."""
    if depth > _MAX_DEPTH:
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


def _extended_checksum(order: int, checksum: int) -> int:
    return zlib.crc32(checksum.to_bytes(4, "little"), order)


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


def generators_as_dict(workers: int, generators: dict[int, States]) -> dict[str, Any]:
    """Return the states of the generators of all workers, in plain JSON types."""
    return {
        "workers": workers,
        "states": {
            str(worker): states_as_text(states) for worker, states in sorted(generators.items())
        },
    }


def generators_from_dict(state: Any, workers: int) -> dict[int, States]:
    """Return the states from the result of `generators_as_dict`; none for other workers.

    Raises:
        InvalidArgumentError: the state is not valid.
    """
    if state is None or field_of(state, "workers", int) != workers:
        return {}
    return {
        worker: states_from_text(found[str(worker)])
        for found in (field_of(state, "states", dict),)
        for worker in range(workers)
        if str(worker) in found
    }


def _ints_of(values: list[Any]) -> list[int]:
    if not all(map(is_int, values)):
        raise InvalidArgumentError(f"state: got {values!r:.60}; expected a list of ints")
    return values
