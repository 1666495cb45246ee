"""The components of a queue as scripts write them: dtypes, shapes and names in their many forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aioqueue.compat.v1.core.dtypes import DType, as_dtype
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape, unknown_shape

__all__ = ("Signature", "fixed_shapes", "list_of_dtypes", "list_of_names", "padded_shapes")

_Shapes = list[TensorShape] | None


class Signature:
    """What the components of a queue are."""

    __slots__ = ("dtypes", "names", "shapes", "static_shapes", "types")

    def __init__(self, dtypes: list[Any], shapes: _Shapes, names: Sequence[str] | None) -> None:
        if not dtypes:
            raise ValueError("A queue needs at least one component: dtypes is an empty list.")
        if shapes is not None and len(shapes) != len(dtypes):
            raise ValueError(
                "Queue shapes must have the same length as dtypes,"
                f" received len(shapes)={len(shapes)}, len(dtypes)={len(dtypes)}"
            )
        self.dtypes: list[Any] = dtypes
        self.types: list[DType] = [as_dtype(dtype) for dtype in dtypes]
        self.shapes: list[TensorShape] | None = shapes
        self.static_shapes: list[TensorShape] = shapes or [unknown_shape() for _ in dtypes]
        self.names: Sequence[str] | None = names

    def __repr__(self) -> str:
        parts = zip(self.types, self.static_shapes, strict=True)
        return ", ".join(f"{dtype.name}{shape}" for dtype, shape in parts)


def list_of_dtypes(dtypes: Any) -> list[Any]:
    """One dtype or a list of them, as a list."""
    assert dtypes is not None, "dtypes: got None; expected a dtype or a list of them"
    return list(dtypes) if isinstance(dtypes, list | tuple) else [dtypes]


def list_of_names(names: Any, dtypes: list[Any]) -> list[str] | None:
    """One name or a list of them, as a list with one per dtype."""
    if names is None:
        return None
    if not isinstance(names, list | tuple):
        names = [names]
    if len(names) != len(dtypes):
        raise ValueError(
            "List of names must have the same length as the list of dtypes, received"
            f" len(names)={len(names)},len(dtypes)={len(dtypes)}"
        )
    return list(names)


def fixed_shapes(shapes: Any) -> _Shapes:
    """The shapes of a queue whose components have fixed sizes; ``None`` for any.

    A list of sizes is one shape, and so is the empty list; a size in a list of shapes is a shape of
    one dimension.
    """
    if shapes is None:
        return None
    listed = _list_of_shapes(shapes)
    if not all(shape.is_fully_defined() for shape in listed):
        raise ValueError(f"All shapes must be fully defined: {listed}")
    return listed


def padded_shapes(shapes: Any) -> list[TensorShape]:
    """The shapes of a padding queue, in which sizes may be unknown."""
    if not isinstance(shapes, list | tuple) or all(map(_is_size, shapes)):
        raise ValueError("When providing partial shapes, a list of shapes must be provided.")
    listed = [as_shape(shape) for shape in shapes]
    if any(shape.ndims is None for shape in listed):
        raise ValueError(f"All shapes must have a defined rank: {listed}")
    return listed


def _list_of_shapes(shapes: Any) -> list[TensorShape]:
    if isinstance(shapes, TensorShape):
        return [shapes]
    if not isinstance(shapes, list | tuple):
        raise TypeError(
            "Shapes must be a TensorShape or a list or tuple of TensorShapes,"
            f" got {type(shapes)} instead."
        )
    if all(map(_is_size, shapes)):
        return [as_shape(shapes)]
    return [as_shape(shape) for shape in shapes]


def _is_size(value: Any) -> bool:
    return value is None or isinstance(value, int)
