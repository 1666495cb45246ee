"""The layout that the first example sets for all others, and its form in a position.

A resumed run must not take the layout from the next example: that may be an int where there were
floats before, and the batches would have another dtype.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

__all__ = ("Kind", "Layout", "ValueLayout", "dtype_of", "text_of")

Kind: TypeAlias = Literal["one", "mapping", "tuple", "named tuple"]
"""The structure of an example; ``"one"`` for anything that is a single component."""


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
    """The structure of an example, which all must have."""

    kind: Kind
    labels: list[str]
    looks: list[ValueLayout]

    def plain(self) -> dict[str, Any] | None:
        """Return the layout in plain JSON types; ``None`` if a dtype has no name.

        ``example`` is the kind; ``components`` has the dtype and the shape of each, as in
        ``<f4[28,28]``, and its label if it has one.
        """
        texts = []
        for dtype, shape in self.looks:
            name = _OBJECT if dtype is None else text_of(dtype)
            if name is None:
                return None
            texts.append(f"{name}[{','.join(map(str, shape))}]" if shape else name)
        if self.kind in ("mapping", "named tuple"):
            named = zip(self.labels, texts, strict=True)
            return {"example": self.kind, "components": [list(one) for one in named]}
        return {"example": self.kind, "components": texts}

    def joined(self, other: Layout) -> Layout | None:
        """Return the layout that holds examples of both without loss, or ``None``."""
        if self.kind != other.kind or {*self.labels} != {*other.labels}:
            return None
        theirs = dict(zip(other.labels, other.looks, strict=True))
        looks = []
        for label, look in zip(self.labels, self.looks, strict=True):
            joined = look.joined(theirs[label])
            if joined is None:
                return None
            looks.append(joined)
        return self._replace(looks=looks)

    @classmethod
    def of_plain(cls, given: Mapping[str, Any]) -> Layout:
        """Return the layout that `plain` has converted."""
        kind, texts = given["example"], given["components"]
        labels = list(map(str, range(len(texts))))
        if kind in ("mapping", "named tuple"):
            labels, texts = [label for label, _ in texts], [text for _, text in texts]
        looks = []
        for text in texts:
            found = _SHAPE.search(text)
            shape = tuple(map(int, found[1].split(","))) if found else ()
            name = text[: found.start()] if found else text
            looks.append(ValueLayout(None if name == _OBJECT else dtype_of(name), shape))
        return cls(kind, labels, looks)


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
