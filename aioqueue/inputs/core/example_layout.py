"""The layout that the first example sets for all others, and its form in a position.

A resumed run must not take the layout from the next example: that may be an int where there were
floats before, and the batches would have another dtype.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np

from aioqueue.structures import Structure, flat_structure, of_plain

__all__ = ("Layout", "ValueLayout", "dtype_of", "text_of")

_ONE: Final = "one"
_TREE: Final = "tree"
_NAMED: Final = ("mapping", "named tuple")
_OBJECT: Final = "object"
"""Stands for the dtype of a component that has no dtype."""
_SHAPE: Final = re.compile(r"\[(\d+(?:,\d+)*)\]$")
"""Behind a dtype, whose own brackets have more than numbers in them."""


class ValueLayout(NamedTuple):
    """The dtype and shape of one value, which its component must have."""

    dtype: np.dtype[Any] | None
    """``None`` for objects, which are kept as they are."""
    shape: tuple[int, ...]

    def joined(self, other: ValueLayout) -> ValueLayout | None:
        """Return the layout that holds values of both without loss, with the shape of this one;
        ``None`` if neither holds the other's values."""
        if len(self.shape) != len(other.shape):
            return None  # with the same number of dimensions, padding can handle different sizes
        if self.dtype == other.dtype or _holds(self.dtype, other.dtype):
            return self
        return self._replace(dtype=other.dtype) if _holds(other.dtype, self.dtype) else None


class Layout(NamedTuple):
    """The structure of an example, which all must have, and what is in its places."""

    structure: Structure
    looks: list[ValueLayout]
    """Of each leaf, in the order of the structure."""

    def plain(self) -> dict[str, Any] | None:
        """Return the layout in plain JSON types; ``None`` if a dtype has no name.

        ``example`` is the kind; ``components`` has the dtype and the shape of each, as in
        ``<f4[28,28]``, and its label if it has one. The components of a ``tree`` are in containers
        as in the example.
        """
        texts = []
        for dtype, shape in self.looks:
            name = _OBJECT if dtype is None else text_of(dtype)
            if name is None:
                return None
            texts.append(f"{name}[{','.join(map(str, shape))}]" if shape else name)
        structure = self.structure
        if structure.is_leaf or (structure.is_flat and structure.kind == "tuple"):
            return {"example": _ONE if structure.is_leaf else "tuple", "components": texts}
        if structure.is_flat and structure.kind in _NAMED:
            named = zip(structure.keys, texts, strict=True)
            return {"example": structure.kind, "components": [list(one) for one in named]}
        return {"example": _TREE, "components": structure.plain(iter(texts))}

    def joined(self, other: Layout) -> Layout | None:
        """Return the layout that holds examples of both without loss, or ``None``."""
        if not self.structure.is_like(other.structure):
            return None
        theirs = dict(zip(other.structure.paths(), other.looks, strict=True))
        looks = []
        for path, look in zip(self.structure.paths(), self.looks, strict=True):
            joined = look.joined(theirs[path])
            if joined is None:
                return None
            looks.append(joined)
        return self._replace(looks=looks)

    @classmethod
    def of_plain(cls, given: Mapping[str, Any]) -> Layout:
        """Return the layout that `plain` has converted; its structure is without types."""
        kind, parts = given["example"], given["components"]
        texts: list[str] = []
        if kind == _TREE:
            structure = of_plain(parts, texts)
        elif kind in _NAMED:
            texts = [text for _, text in parts]
            structure = flat_structure(kind, [label for label, _ in parts])
        else:
            texts = parts
            structure = flat_structure("leaf" if kind == _ONE else kind, range(len(parts)))
        return cls(structure, list(map(_look_of, texts)))


def _look_of(text: str) -> ValueLayout:
    """Return the dtype and shape that a text means."""
    found = _SHAPE.search(text)
    shape = tuple(map(int, found[1].split(","))) if found else ()
    name = text[: found.start()] if found else text
    return ValueLayout(None if name == _OBJECT else dtype_of(name), shape)


_NUMBERS: Final = frozenset("biufc")


def _holds(dtype: np.dtype[Any] | None, other: np.dtype[Any] | None) -> bool:
    """Return whether a dtype has all values of another of its kind. Any may be written as text."""
    if dtype is None or other is None:
        return False
    are_numbers = {dtype.kind, other.kind} <= _NUMBERS
    return (are_numbers or dtype.kind == other.kind in "Mm") and np.can_cast(other, dtype, "safe")


def text_of(dtype: np.dtype[Any]) -> str | None:
    """Return a dtype as a text that `dtype_of` understands; ``None`` if it has none.

    The dtypes of other libraries have a name, which NumPy knows once that library is imported.
    """
    for text in _texts_of(dtype):
        with suppress(TypeError, ValueError):
            found = dtype_of(text)
            if found == dtype and found.type is dtype.type:
                return text
    return None


def dtype_of(text: str) -> np.dtype[Any]:
    """Return the dtype that a text means.

    Raises:
        TypeError: there is no dtype of that name.
    """
    if not text.startswith("["):
        return np.dtype(text)
    found: np.dtype[Any] = np.lib.format.descr_to_dtype(literal_eval(text))
    return found


def _texts_of(dtype: np.dtype[Any]) -> Iterator[str]:
    if dtype.names is not None:
        with suppress(ValueError):  # overlapping fields
            yield repr(dtype.descr)
        return
    yield dtype.str
    yield dtype.kind  # strings of any length
    yield dtype.name
