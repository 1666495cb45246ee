"""Nested structures: lists, tuples, named tuples and dicts, flattened and packed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ("assert_same_structure", "flatten", "is_nested", "map_structure", "pack_sequence_as")


def is_nested(structure: Any) -> bool:
    """Whether it has parts: a list, a tuple, a named tuple or a dict."""
    return isinstance(structure, list | tuple | Mapping)


def flatten(structure: Any) -> list[Any]:
    """The parts that have no parts, in order; dicts are taken in the order of their sorted keys."""
    return list(_leaves(structure))


def _leaves(structure: Any) -> Iterator[Any]:
    if not is_nested(structure):
        yield structure
        return
    for part in _parts(structure):
        yield from _leaves(part)


def _parts(structure: Any) -> list[Any]:
    if isinstance(structure, Mapping):
        return [structure[key] for key in sorted(structure)]
    return list(structure)


def pack_sequence_as(structure: Any, flat_sequence: Sequence[Any]) -> Any:
    """The parts in `flat_sequence`, put together like `structure`."""
    flat = list(flat_sequence)
    wanted = len(flatten(structure))
    if wanted != len(flat):
        raise ValueError(
            f"Could not pack sequence. Structure had {wanted} elements, but flat_sequence had "
            f"{len(flat)} elements. Structure: {structure}, flat_sequence: {flat}."
        )
    return _packed(structure, iter(flat))


def _packed(structure: Any, values: Iterator[Any]) -> Any:
    if not is_nested(structure):
        return next(values)
    kind: Any = type(structure)
    parts = [_packed(part, values) for part in _parts(structure)]
    if isinstance(structure, Mapping):
        by_key = dict(zip(sorted(structure), parts, strict=True))
        return kind((key, by_key[key]) for key in structure)
    return kind(*parts) if hasattr(structure, "_fields") else kind(parts)


def map_structure(function: Callable[..., Any], *structures: Any) -> Any:
    """`function` of the corresponding parts of some structures, put together like the first one."""
    for other in structures[1:]:
        assert_same_structure(structures[0], other)
    flat = zip(*map(flatten, structures), strict=True)
    return pack_sequence_as(structures[0], [function(*parts) for parts in flat])


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """Raise unless two structures have the same nesting."""
    problem = _difference(nest1, nest2, check_types)
    if problem is not None:
        kind, text = problem
        raise kind(
            "The two structures don't have the same nested structure.\n\n"
            f"First structure: type={type(nest1).__name__} str={nest1}\n\n"
            f"Second structure: type={type(nest2).__name__} str={nest2}\n\n"
            f"More specifically: {text}"
        )


def _difference(one: Any, two: Any, check_types: bool) -> tuple[type[Exception], str] | None:
    if not is_nested(one) and not is_nested(two):
        return None
    if is_nested(one) != is_nested(two):
        nested, plain = (one, two) if is_nested(one) else (two, one)
        return ValueError, (
            f'Substructure "type={type(nested).__name__} str={nested}" is a sequence, while '
            f'substructure "type={type(plain).__name__} str={plain}" is not'
        )
    if check_types and type(one) is not type(two):
        return TypeError, (
            f"The two structures don't have the same sequence type. First structure has type "
            f"{type(one).__name__}, while second structure has type {type(two).__name__}"
        )
    if isinstance(one, Mapping) and isinstance(two, Mapping) and set(one) != set(two):
        return ValueError, f"The two dictionaries don't have the same keys: {[*one]} and {[*two]}"
    mine, theirs = _parts(one), _parts(two)
    if len(mine) != len(theirs):
        return ValueError, (
            f"The two structures don't have the same number of elements: {len(mine)} and "
            f"{len(theirs)}"
        )
    differences = (_difference(a, b, check_types) for a, b in zip(mine, theirs, strict=True))
    return next(filter(None, differences), None)
