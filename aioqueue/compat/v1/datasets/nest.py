"""Elements of datasets: tuples, dicts and tensors in any nesting, and the flat rows of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def flatten(nest: Any) -> list[Any]:
    """The leaves of a nest, those of a dict in the order of its keys; lists are leaves."""
    if isinstance(nest, tuple):
        return [leaf for part in nest for leaf in flatten(part)]
    if isinstance(nest, Mapping):
        return [leaf for key in sorted(nest) for leaf in flatten(nest[key])]
    return [nest]


def packed(nest: Any, leaves: Iterable[Any]) -> Any:
    """Other leaves in the nesting of a nest."""
    return _packed(nest, iter(leaves))


def mapped(function: Callable[[Any], Any], nest: Any) -> Any:
    """A function of each leaf, in the same nesting."""
    return packed(nest, map(function, flatten(nest)))


def arguments(nest: Any) -> tuple[Any, ...]:
    """The arguments of a function that gets an element: a tuple is spread over several."""
    return tuple(nest) if isinstance(nest, tuple) else (nest,)


def _packed(nest: Any, leaves: Any) -> Any:
    if isinstance(nest, tuple):
        parts = [_packed(part, leaves) for part in nest]
        return type(nest)(*parts) if hasattr(nest, "_fields") else tuple(parts)
    if isinstance(nest, Mapping):
        found = {key: _packed(nest[key], leaves) for key in sorted(nest)}
        return {key: found[key] for key in nest}
    return next(leaves)
