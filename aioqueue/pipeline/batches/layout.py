"""What the first example decides for all: the structure, and the dtype and shape of each component.

`layout_of` finds it in the first example, and `components_of` makes the components of it. The rules
are those of `aioqueue.pipeline.batches.collation`.

A `Layout` has a form in a position. A resumed run must not take the layout from the next example:
that may be an int where there were floats before, and the batches would have another dtype.
"""

from __future__ import annotations

import re
import reprlib
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aioqueue import InvalidArgumentError
from aioqueue.core.elements import component
from aioqueue.core.elements.structure import (
    Structure,
    Wording,
    flat_structure,
    of_plain,
    structure_of,
)
from aioqueue.core.elements.trees import Path, branch_of, is_array_like, leaves_of, path_text
from aioqueue.core.elements.values import short_repr
from aioqueue.errors import exception_text

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
    layouts: list[ValueLayout]
    """Of each leaf, in the order of the structure."""

    def plain(self) -> dict[str, Any] | None:
        """Return the layout in plain JSON types; ``None`` if a dtype has no name.

        ``example`` is the kind; ``components`` has the dtype and the shape of each, as in
        ``<f4[28,28]``, and its label if it has one. The components of a ``tree`` are in containers
        as in the example.
        """
        texts = []
        for dtype, shape in self.layouts:
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
        theirs = dict(zip(other.structure.paths(), other.layouts, strict=True))
        layouts = []
        for path, layout in zip(self.structure.paths(), self.layouts, strict=True):
            joined = layout.joined(theirs[path])
            if joined is None:
                return None
            layouts.append(joined)
        return self._replace(layouts=layouts)

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
        return cls(structure, list(map(_layout_in, texts)))


def _layout_in(text: str) -> ValueLayout:
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


Objects: TypeAlias = bool | tuple[str, ...]
"""Which values are kept as objects: none, all that are no arrays, or those at these paths."""

WORDING: Final = Wording(
    "example",
    "the first one had the keys {}",
    "the first one was {}",
    "the first one was None (fill in a value, such as np.nan)",
)
"""How messages speak of examples."""

SCALARS: Final = (int, float, complex, str, bytes, np.generic)
"""The types of numbers and text."""

_MAX_AXES: Final = 64
"""The most axes that NumPy's arrays can have. A list that contains itself has no end."""

PYTHON_NUMBERS: Final[Mapping[type, Any]] = {
    bool: np.bool_,
    int: np.int64,
    float: np.float64,
    complex: np.complex128,
}


@dataclass(frozen=True, slots=True)
class ExampleComponent:
    """What the first example decides for one component."""

    label: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_object: bool
    """Whether to keep values unchanged, as objects."""
    is_text: bool
    """Whether these must be text or numbers."""
    padding: Any
    """The value that pads smaller values to the largest of their batch."""
    _rule: component.Component | None = field(init=False, repr=False, compare=False, default=None)

    @property
    def rule(self) -> component.Component:
        """The rule that values must fit, except for their shapes, as in a queue.

        It is made when the first value asks for it: most batches are of one type, and need none.
        """
        if self._rule is None:
            rule = component.Component(self.label, self.dtype, None)
            object.__setattr__(self, "_rule", rule)
            return rule
        return self._rule


def values_of(example: Any) -> Iterator[Any]:
    if isinstance(example, SCALARS) or type(example) is np.ndarray:
        return iter((example,))
    return leaves_of(example, _is_listed)


def _is_listed(value: Any) -> bool:
    """Return whether it is a list that is one array, to judge by its first part."""
    if not isinstance(value, list):
        return False
    for _ in range(_MAX_AXES):
        if not isinstance(value, list | tuple):
            break
        if not value:
            return True
        value = value[0]
    return isinstance(value, SCALARS)


def checked_objects(objects: Any) -> Objects:
    """Return which values the user wants as objects.

    Raises:
        InvalidArgumentError: it is neither a bool nor names of components.
    """
    if isinstance(objects, bool):
        return objects
    paths = (objects,) if isinstance(objects, str) else objects
    if isinstance(paths, list | tuple) and all(isinstance(path, str) for path in paths):
        return tuple(paths)
    raise InvalidArgumentError(
        f"objects: got {objects!r}; expected True, False, or the paths of components, such as"
        " 'meta' or 'image.exif'"
    )


def layout_of(example: Any, objects: Objects) -> Layout:
    """Return the layout of an example.

    Raises:
        InvalidArgumentError: it cannot be in a batch.
    """
    wanted = () if isinstance(objects, bool) else objects
    found: set[str] = set()

    def is_leaf(value: Any, path: Path) -> bool:
        if wanted and (label := path_text(path) or "0") in wanted:
            found.add(label)
            return True
        if value is None:
            return objects is True
        return isinstance(value, SCALARS) or (isinstance(value, list) and is_one_array(value))

    structure = structure_of(example, WORDING, is_leaf)
    labels = structure.labels()
    if not labels:
        raise InvalidArgumentError(
            f"example: got {short_repr(example)}; expected at least one component"
        )
    if missing := set(wanted) - found:
        raise InvalidArgumentError(
            f"objects: got {sorted(missing)}; expected paths of an example: {', '.join(labels)}"
        )
    values = structure.leaves(example, WORDING)
    layouts = [
        ValueLayout(None, ())
        if label in wanted
        else _layout_of(label, value, keeps_objects=objects is True)
        for label, value in zip(labels, values, strict=True)
    ]
    return Layout(structure, layouts)


def is_one_array(values: Any, depth: int = _MAX_AXES) -> bool:
    """Return whether a list contains only numbers and text, or lists of them."""
    return depth > 0 and all(
        isinstance(value, SCALARS)
        or (isinstance(value, list | tuple) and is_one_array(value, depth - 1))
        for value in values
    )


def components_of(
    structure: Structure, layouts: Sequence[ValueLayout], padding: Any
) -> list[ExampleComponent]:
    """Return the components of all examples.

    Args:
        structure: of an example.
        layouts: of each component.
        padding: the user's value to pad with, for all or for each.

    Raises:
        InvalidArgumentError: the padding does not fit.
    """
    rows = zip(structure.labels(), layouts, _paddings(padding, structure), strict=True)
    return [_component(*row) for row in rows]


def _paddings(given: Any, structure: Structure) -> list[Any]:
    """Return the padding of each leaf.

    Raises:
        InvalidArgumentError: it is neither a number nor a tree of numbers like the example.
    """
    found = _paddings_below(given, structure)
    if found is None:
        raise InvalidArgumentError(
            f"padding_value: got {given!r}; expected a number, or one per component of an"
            f" example ({', '.join(structure.labels())})"
        )
    return found


def _paddings_below(given: Any, structure: Structure) -> list[Any] | None:
    if _is_number(given):
        return [given for _ in structure.paths()]
    if structure.is_leaf:
        return None
    if isinstance(given, Mapping):
        if not set(given) <= set(structure.keys):
            return None
        parts: Sequence[Any] = [given.get(key, 0) for key in structure.keys]
    else:
        branch = branch_of(given)
        if branch is None or structure.kind == "mapping":
            return None
        parts = branch.parts
    if len(parts) != len(structure.children):
        return None
    below = list(map(_paddings_below, parts, structure.children))
    return None if None in below else [one for found in below for one in found or ()]


def _layout_of(label: str, value: Any, *, keeps_objects: bool) -> ValueLayout:
    """Return the dtype and shape of one value.

    Raises:
        InvalidArgumentError: it is an object, and objects are not kept.
    """
    kind = type(value)
    if kind in PYTHON_NUMBERS:
        return ValueLayout(np.dtype(PYTHON_NUMBERS[kind]), ())
    if isinstance(value, str | bytes):
        return ValueLayout(np.dtype("U" if isinstance(value, str) else "S"), ())
    is_list = isinstance(value, list)
    if not (is_list or isinstance(value, SCALARS) or is_array_like(value)):
        if not keeps_objects:
            raise no_array(label, value)
        return ValueLayout(None, ())
    array = as_array(label, value)
    text = _text_in(array) if is_list else array.dtype.kind
    return ValueLayout(
        np.dtype(text) if text in ("U", "S") else array.dtype, array.shape
    )  # of any length


def _text_in(array: NDArray[Any]) -> str:
    """Return the kind of text that all objects are; otherwise the kind of the array."""
    for kind, of in (("U", str), ("S", bytes)):
        if array.dtype.kind == "O" and array.size and all(isinstance(x, of) for x in array.flat):
            return kind
    return array.dtype.kind


def _component(label: str, layout: ValueLayout, padding: Any) -> ExampleComponent:
    """Return how to handle the values of a component."""
    dtype, shape = layout
    if dtype is None:
        return ExampleComponent(label, np.dtype(object), (), True, False, None)
    if dtype.kind in "US":
        blank = "" if dtype.kind == "U" else b""
        return ExampleComponent(label, np.dtype(object), shape, not shape, True, blank)
    fills = _padding_of(label, dtype, padding) if shape else padding  # scalars need no padding
    return ExampleComponent(label, dtype, shape, False, False, fills)


def _padding_of(label: str, dtype: np.dtype[Any], padding: Any) -> Any:
    """Return the padding for arrays of a dtype: the number, or an empty value if it has none.

    Raises:
        InvalidArgumentError: the number does not fit the dtype.
    """
    if dtype.kind == "T":
        return ""
    is_record = issubclass(dtype.type, np.void)  # a number would become text in some fields
    if is_record and not padding:
        return np.zeros((), dtype)
    if is_record or (padding and dtype.kind not in "OmM" and not _fits(padding, dtype)):
        raise InvalidArgumentError(
            f"padding_value: got {padding!r} for component {label}; expected a value that fits its"
            f" dtype, {dtype}"
        )
    return padding


_WAYS: Final = {
    "datetime": "np.datetime64",
    "date": "np.datetime64",
    "timedelta": "np.timedelta64",
    "Decimal": "float",
    "Fraction": "float",
}
"""What makes a number or a time of some types, by their names."""


def no_array(label: str, value: Any) -> InvalidArgumentError:
    """Return the error for an object in a component that does not keep objects."""
    way = "fill in a value, such as np.nan"
    if value is not None:
        way = f"convert it, for example with {_WAYS.get(type(value).__name__, 'np.asarray')}(x)"
    if isinstance(value, PathLike):
        way = "convert it with str(x)"
    return InvalidArgumentError(
        f"component {label}: got {short_repr(value)}, of type {type(value).__name__}; expected an"
        f" array, numbers or text ({way}; or pass objects={label!r} to keep objects)"
    )


def as_array(label: str, value: Any) -> NDArray[Any]:
    """Return a value as an array.

    Raises:
        InvalidArgumentError: NumPy cannot do that, or it has a mask.
    """
    if type(value) is np.ndarray:
        return value
    component.refuse_unsupported(label, value)
    try:
        if type(value) is int:
            return np.asarray(value, np.int64)  # also where NumPy's own default has 32 bits
        return array_of(value)
    except Exception as error:
        way = component.conversion_hint(value)
        if not way and not isinstance(error, ValueError | TypeError | OverflowError):
            raise  # it has its own reasons
        raise InvalidArgumentError(
            f"component {label}: got {reprlib.repr(value)}, which NumPy cannot make an array of:"
            f" {exception_text(error)}{way}"
        ) from error


def array_of(value: Any) -> NDArray[Any]:
    """Return what NumPy makes of a value, except that it leaves values beside text as they are."""
    try:
        array = np.asarray(value)
    except UnicodeDecodeError:  # a mixture of bytes and text
        return np.array(value, object)
    if array.dtype.kind in "UST" and isinstance(value, list | tuple):
        # NumPy has converted other values beside text to text, and cut off trailing zeros.
        array = np.array(value, object)
    return array


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | complex | np.number | np.bool_)


def _fits(number: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a cast leaves a number unchanged."""
    try:
        with np.errstate(all="ignore"):
            cast = np.asarray(number).astype(dtype)
    except (OverflowError, ValueError, TypeError):
        return False
    return bool(cast == number) or bool(number != number and cast != cast)
