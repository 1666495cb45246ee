"""Trees: values in dicts, tuples, lists, named tuples and dataclasses, however deep.

A *leaf* is a value that is not taken apart: an array, a number, text, ``None``, or an object of any
type that is no container. `branch_of` knows the containers: dicts and other mappings, tuples,
lists, named tuples, dataclasses, and the types that a program has registered with JAX, PyTorch or
optree (`registered`).

A path is written as you would write it in Python, except that a key of a dict looks like an
attribute where it can: ``image.size[0]`` is ``example["image"]["size"][0]``.

JAX, PyTorch and optree each keep a registry of types that hold other values, and how to take them
apart and put them together: `jax.tree_util`, `torch.utils._pytree`, `optree`. They are asked only
where they are loaded already: a type cannot be registered with a library that the program has not
imported. Their entries for Python's own types do not count: a value is the same tree, whatever is
imported. With optree, a type is registered in a namespace: the global one and ``"aioqueue"`` count
here. What is not an array of a registered type, such as the name of a unit, is in its *definition*,
which the registries compare.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

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
    if type(value) in _PYTHONS_OWN:
        return None
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


_PYTHONS_OWN: Final = frozenset({dict, list, tuple, OrderedDict, defaultdict, deque})
"""Types of Python that the registries have from the start, not all of them the same ones."""

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


Kind: TypeAlias = Literal[
    "leaf", "none", "mapping", "tuple", "list", "named tuple", "dataclass", "registered"
]

Path: TypeAlias = tuple[str | int, ...]
"""The keys, names and indices that lead to a place in a tree."""


MAX_DEPTH: Final = 24
"""How deep the containers of an example may be in each other. One that contains itself has no
end."""


class Branch(NamedTuple):
    """A container, taken apart one level deep."""

    kind: Kind
    keys: Sequence[Any]
    """How each part is found: the keys of a mapping, the names of fields, or indices."""
    parts: Sequence[Any]
    make: Callable[[Sequence[Any]], Any]
    """Makes a container of the same kind of other parts."""
    definition: Any = None
    """What a value of a registered type holds besides its parts; its type, of a dataclass."""


_LEAVES: Final[set[type[Any]]] = {int, float, complex, bool, str, bytes, type(None)}
"""Types whose values are leaves, so that most are recognised at once; NumPy's when one was met."""


def branch_of(value: Any) -> Branch | None:
    """Take a value apart; ``None`` if it is a leaf."""
    kind = type(value)
    if kind in _LEAVES:
        return None
    if kind is dict:
        return _branch_of_mapping(value)
    if kind is tuple or kind is list:
        return _branch_of_sequence(value)
    if isinstance(value, str | bytes | type):
        return None
    if is_array_like(value):
        if kind.__module__ == "numpy":
            _LEAVES.add(kind)
        return None
    names = fields_of_tuple(value)
    if names is not None:
        return Branch("named tuple", names, value, kind._make, kind)
    known = registered(value)
    if known is not None:
        return Branch("registered", known.keys, known.parts, known.make, known.definition)
    if isinstance(value, Mapping):
        return _branch_of_mapping(value)
    if isinstance(value, tuple | list):
        return _branch_of_sequence(value)
    if dataclasses.is_dataclass(value):
        fields = [one.name for one in dataclasses.fields(value) if hasattr(value, one.name)]
        parts = [getattr(value, name) for name in fields]
        return Branch("dataclass", fields, parts, partial(_record_like, value, fields), kind)
    return None


def _branch_of_mapping(value: Mapping[Any, Any]) -> Branch:
    keys = list(value)
    return Branch("mapping", keys, [value[key] for key in keys], partial(dict_of, keys))


def _branch_of_sequence(value: tuple[Any, ...] | list[Any]) -> Branch:
    if isinstance(value, tuple):
        return Branch("tuple", range(len(value)), value, tuple)
    return Branch("list", range(len(value)), value, list)


def is_array_like(value: Any) -> bool:
    """Return whether a value is an array or a tensor, of NumPy or another library."""
    if isinstance(value, dict):  # its attributes may be keys, and any name another error
        return hasattr(type(value), "__array__")
    return hasattr(value, "__array__")


def fields_of_tuple(value: Any) -> list[str] | None:
    """Return the field names of a named tuple; ``None`` for anything else."""
    is_named = isinstance(value, tuple) and hasattr(type(value), "_make")
    return list(type(value)._fields) if is_named else None


def dict_of(keys: Iterable[Any], parts: Iterable[Any]) -> dict[Any, Any]:
    return dict(zip(keys, parts, strict=True))


def record_of(kind: type[Any], names: Iterable[str], parts: Iterable[Any]) -> Any:
    """Make a dataclass of its fields. Its ``__init__`` does not run, because it may check or
    convert the values of a single example."""
    return _with_fields(object.__new__(kind), names, parts)


def _with_fields(made: Any, names: Iterable[str], parts: Iterable[Any]) -> Any:
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(made, name, part)  # the class may be frozen
    return made


def _record_like(value: Any, names: Iterable[str], parts: Iterable[Any]) -> Any:
    """Make a dataclass with other fields, and with the attributes of a value that are no fields."""
    made = object.__new__(type(value))
    getattr(made, "__dict__", {}).update(getattr(value, "__dict__", {}))
    return _with_fields(made, names, parts)


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of the same form with the results of a function of each leaf."""
    branch = branch_of(tree)
    if branch is None:
        return function(tree)
    return branch.make([mapped(function, part) for part in branch.parts])


def leaves_of(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None, depth: int = MAX_DEPTH
) -> Iterator[Any]:
    """Return the leaves of a tree, one by one.

    Args:
        tree: any value.
        is_leaf: returns whether to keep a container whole.
        depth: how deep to go; containers below that are not taken apart either.
    """
    is_end = depth < 0 or (is_leaf is not None and is_leaf(tree))
    branch = None if is_end else branch_of(tree)
    if branch is None:
        yield tree
        return
    for part in branch.parts:
        yield from leaves_of(part, is_leaf, depth - 1)


def path_text(path: Path) -> str:
    """Return a path as messages show it. A path of one step is the bare key, name or index."""
    if not path:
        return ""
    first, *rest = path
    is_bare = not rest or isinstance(first, int) or first.isidentifier()
    text = str(first) if is_bare else f"[{first!r}]"
    return text + "".join(
        f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]" for key in rest
    )
