"""Examples that are trees of every kind, and what their batches are, for tests of all places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = ("MAKERS", "SEQUENCES", "Both", "Frozen", "Inner", "leaves", "record", "stacked")


class Inner(NamedTuple):
    """A named tuple within an example."""

    left: Any
    right: Any


@dataclass
class Both:
    """A dataclass within an example, which checks single values."""

    left: Any
    right: Any

    def __post_init__(self) -> None:
        assert np.ndim(self.right) == 0 or isinstance(self.right, tuple), "no batch"


@dataclass(frozen=True, slots=True)
class Frozen:
    """A dataclass that nobody can write to."""

    left: Any
    right: Any


def dicts(item: int) -> Any:
    return {"x": {"a": np.full(2, item, "f4"), "b": {"c": item}}, "y": item / 2}


def tuples(item: int) -> Any:
    return {"x": (np.full((2, 2), item), item)}, item


def lists(item: int) -> Any:
    return {"x": [np.full(2, item), {"a": item}], "numbers": [item, 1], "points": [(1, item)] * 2}


def list_of_arrays(item: int) -> Any:
    return [np.full(2, item), np.full(3, item, "i2")]


def named(item: int) -> Any:
    return Inner({"a": np.int8(item % 100)}, (np.full(2, item), "x" * (item % 3)))


def dataclasses(item: int) -> Any:
    return Both({"a": np.full(2, item)}, item)


def frozen(item: int) -> Any:
    return {"x": Frozen(np.full(2, item), Both(b"b", item))}


def with_none(item: int) -> Any:
    return {"x": {"a": item, "mask": None}, "nothing": {}, "neither": [None, np.full(1, item)]}


def none_first(item: int) -> Any:
    return {"nothing": None, "x": (None, item)}


def all_of_it(item: int) -> Any:
    return {"d": dicts(item), "t": tuples(item), "n": named(item), "c": frozen(item)}


MAKERS: dict[str, Callable[[int], Any]] = {
    "dicts": dicts,
    "tuples": tuples,
    "lists": lists,
    "a list of arrays": list_of_arrays,
    "named tuples": named,
    "dataclasses": dataclasses,
    "frozen dataclasses": frozen,
    "None among them": with_none,
    "None first": none_first,
    "all of it": all_of_it,
}


def nested_sequences(item: int) -> Any:
    size = 1 + item % 5
    return {"ids": {"a": np.full(size, item), "b": [item] * size}, "marks": np.full(size, 0.5)}


def tuple_of_sequences(item: int) -> Any:
    size = 1 + item % 5
    return {"a": np.full(size, item)}, [np.full((size, 2), item, "i2"), np.full(size, 1.5)]


def record_of_sequences(item: int) -> Any:
    size = 1 + item % 5
    return Frozen(np.full(size, item), Inner([item] * size, np.full(size, 1.5, "f4")))


SEQUENCES: dict[str, Callable[[int], Any]] = {
    "dicts": nested_sequences,
    "tuples": tuple_of_sequences,
    "dataclasses": record_of_sequences,
}


def stacked(examples: Sequence[Any]) -> Any:
    """What a batch of examples is: the same containers, with one array in each place."""
    first = examples[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {key: stacked([one[key] for one in examples]) for key in first}
    if isinstance(first, Inner):
        return Inner(*map(stacked, zip(*examples, strict=True)))
    if isinstance(first, tuple) or (isinstance(first, list) and not _is_array(first)):
        return type(first)([stacked(parts) for parts in zip(*examples, strict=True)])
    if isinstance(first, Both | Frozen):
        parts = [stacked([getattr(one, name) for one in examples]) for name in ("left", "right")]
        return record(type(first), parts)
    if isinstance(first, str | bytes):
        return np.array(examples, object)
    return np.stack([np.asarray(one) for one in examples])


def record(kind: type[Any], parts: Sequence[Any]) -> Any:
    """A dataclass of any two values, which it cannot check."""
    made = object.__new__(kind)
    for name, part in zip(("left", "right"), parts, strict=True):
        object.__setattr__(made, name, part)
    return made


def _is_array(listed: list[Any]) -> bool:
    return all(isinstance(one, int | tuple) for one in listed)


def leaves(tree: Any) -> list[Any]:
    """All arrays and numbers in a tree."""
    if isinstance(tree, dict):
        return [leaf for one in tree.values() for leaf in leaves(one)]
    if isinstance(tree, tuple | list):
        return [leaf for one in tree for leaf in leaves(one)]
    if isinstance(tree, Both | Frozen):
        return leaves([tree.left, tree.right])
    return [] if tree is None else [tree]
