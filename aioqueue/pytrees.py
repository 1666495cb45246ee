"""Container types that a program has registered with JAX, PyTorch or optree.

All three keep a registry of types that hold other values, and how to take them apart and put them
together: JAX's in `jax.tree_util`, PyTorch's in `torch.utils._pytree`, optree's in `optree`. They
are asked only where they are loaded already: a type cannot be registered with a library that the
program has not imported. With optree, a type is registered in a namespace: the global one and
``"aioqueue"`` count here.

What is not an array of a registered type, such as the name of a unit, is in its *definition*, which
the registries compare.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

__all__ = ("NAMESPACE", "Registered", "registered")

NAMESPACE: Final = "aioqueue"
"""The namespace of optree where the types for this library are registered."""


class Registered(NamedTuple):
    """A value of a registered type, taken apart."""

    keys: list[str | int]
    """How each part is found: the name of an attribute or key, or an index."""
    parts: list[Any]
    definition: Any
    """All the rest of the value. Those of two values are equal if they differ in parts alone."""
    make: Callable[[Sequence[Any]], Any]
    """Puts other parts together in the same way."""


def registered(value: Any) -> Registered | None:
    """Take a value apart, one level deep; ``None`` if no loaded library knows its type."""
    for name, take_apart in _REGISTRIES.items():
        library = sys.modules.get(name)
        if library is not None:
            found = take_apart(library, value)
            if found is not None:
                return found
    return None


def _with_jax(library: Any, value: Any) -> Registered | None:
    flatten = getattr(library, "tree_flatten_with_path", None)
    if flatten is None:  # it is being imported
        return None
    pairs, definition = flatten(value, is_leaf=lambda part: part is not value)
    if _is_leaf([part for _, part in pairs], value):
        return None
    keys = [_key(path[-1], index) for index, (path, _) in enumerate(pairs)]
    return Registered(keys, [part for _, part in pairs], definition, definition.unflatten)


def _with_torch(library: Any, value: Any) -> Registered | None:
    if type(value) not in getattr(library, "SUPPORTED_NODES", ()):
        return None
    parts, definition = library.tree_flatten(value, is_leaf=lambda part: part is not value)
    try:
        pairs, _ = library.tree_flatten_with_path(value, is_leaf=lambda part: part is not value)
        keys = [_key(path[-1], index) for index, (path, _) in enumerate(pairs)]
    except Exception:  # the type was registered without names for its parts
        keys = list(range(len(parts)))
    return Registered(keys, parts, definition, lambda new: library.tree_unflatten(new, definition))


def _with_optree(library: Any, value: Any) -> Registered | None:
    flatten = getattr(library, "tree_flatten_with_path", None)
    if flatten is None:
        return None
    paths, parts, definition = flatten(
        value, is_leaf=lambda part: part is not value, none_is_leaf=True, namespace=NAMESPACE
    )
    if _is_leaf(parts, value):
        return None
    keys = [_key(path[-1], index) for index, path in enumerate(paths)]
    return Registered(keys, parts, definition, definition.unflatten)


_REGISTRIES: Final[dict[str, Callable[[Any, Any], Registered | None]]] = {
    "jax.tree_util": _with_jax,
    "torch.utils._pytree": _with_torch,
    "optree": _with_optree,
}


def _is_leaf(parts: Iterable[Any], value: Any) -> bool:
    """Return whether the value itself has come back: then it was not taken apart."""
    return any(part is value for part in parts)


def _key(step: Any, index: int) -> str | int:
    """Return a step of a path as a name or an index; the libraries have classes for them."""
    for name in ("name", "key", "idx"):
        step = getattr(step, name, step)
    return step if isinstance(step, str | int) else index
