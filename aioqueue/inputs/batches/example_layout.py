"""What the first example says that all others have to look like, and how a position holds that.

A run that goes on after a restart must not ask the first example that comes then: it may be an int
where floats came before, and its batches would be of another dtype.
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
"""What an example is made of; ``"one"`` for anything that is a single component."""


_OBJECT: Final = "object"
"""In the place of a dtype, where there is none."""
_SHAPE: Final = re.compile(r"\[(\d+(?:,\d+)*)\]$")
"""Behind a dtype, whose own brackets have more than numbers in them."""


class ValueLayout(NamedTuple):
    """What one value says of its component."""

    dtype: np.dtype[Any] | None
    """``None`` for objects that are kept as they are."""
    shape: tuple[int, ...]

    def joined(self, other: ValueLayout) -> ValueLayout | None:
        """What values of both can be without a loss, with the shape of this one; ``None`` if
        nothing that one of them is."""
        if len(self.shape) != len(other.shape):
            return None  # of one dimension they may be padded, whatever their sizes
        if self.dtype == other.dtype or _holds(self.dtype, other.dtype):
            return self
        return self._replace(dtype=other.dtype) if _holds(other.dtype, self.dtype) else None


class Layout(NamedTuple):
    """What one example says of all."""

    kind: Kind
    labels: list[str]
    looks: list[ValueLayout]

    def plain(self) -> dict[str, Any] | None:
        """The same in plain JSON types; ``None`` if there is a dtype that has no name.

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
        """What examples of both can be without a loss; ``None`` if nothing that one of them is."""
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
        """What `plain` has made."""
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
    """Whether one has all values of another, and of its kind: any may be written as text."""
    if dtype is None or other is None:
        return False
    are_numbers = {dtype.kind, other.kind} <= _NUMBERS
    return (are_numbers or dtype.kind == other.kind in "Mm") and np.can_cast(other, dtype, "safe")


def text_of(dtype: np.dtype[Any]) -> str | None:
    """A dtype as a text that `dtype_of` understands; ``None`` if it has none.

    The dtypes of other libraries have a name, which is known where that library was imported.
    """
    for text in _texts_of(dtype):
        with suppress(TypeError, ValueError):
            found = dtype_of(text)
            if found == dtype and found.type is dtype.type:
                return text
    return None


def dtype_of(text: str) -> np.dtype[Any]:
    """The dtype that a text means.

    Raises:
        TypeError: there is none of that name.
    """
    if not text.startswith("["):
        return np.dtype(text)
    found: np.dtype[Any] = np.lib.format.descr_to_dtype(literal_eval(text))
    return found


def _texts_of(dtype: np.dtype[Any]) -> Iterator[str]:
    if dtype.names is not None:
        with suppress(ValueError):  # fields that lie on one another
            yield repr(dtype.descr)
        return
    yield dtype.str
    yield dtype.kind  # strings of any length
    yield dtype.name
