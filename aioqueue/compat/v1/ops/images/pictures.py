"""What ops on pictures share: checks of shapes, and sizes that may be numbers or tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.building import INDICES, Dims, OpBuilder, array, dtype_hint, invalid
from aioqueue.compat.v1.ops.static import constant_value


def at_least_3d(image: Tensor) -> Dims:
    """The static shape of a tensor of three dimensions or more, none of the last three empty."""
    shape = image.shape.as_tuple()
    if shape is None:
        return None
    if len(shape) < 3:
        raise ValueError(f"'image' (shape {image.shape}) must be at least three-dimensional.")
    if 0 in shape[-3:]:
        raise ValueError(f"inner 3 dims of 'image.shape' must be > 0: {image.shape}")
    return shape


def one_or_many(image: Tensor) -> Dims:
    """The static shape of a picture, or of a batch of them."""
    shape = image.shape.as_tuple()
    if shape is not None and len(shape) > 4:
        raise ValueError(f"'image' (shape {image.shape}) must have either 3 or 4 dimensions.")
    return at_least_3d(image)


def one_as_batch(image: Tensor) -> Dims:
    """The static shape, where TensorFlow makes a batch of a single picture before it checks."""
    shape = image.shape.as_tuple()
    if shape is None:
        return None
    if len(shape) not in (3, 4):
        raise ValueError(f"'image' (shape {image.shape}) must have either 3 or 4 dimensions.")
    if 0 in shape[-3:]:
        seen = TensorShape(shape if len(shape) == 4 else (1, *shape))
        raise ValueError(f"inner 3 dims of 'image.shape' must be > 0: {seen}")
    return shape


def check_3d(value: Any) -> NDArray[Any]:
    """The picture, after a check of what `at_least_3d` could not check before it was there."""
    pixels = array(value)
    check_rules(
        (
            (pixels.ndim >= 3, "'image' must be at least three-dimensional."),
            (all(pixels.shape[-3:]), "inner 3 dims of 'image.shape' must be > 0."),
        ),
        fixed=False,
    )
    return pixels


def frame(shape: Dims) -> tuple[int | None, int | None, int | None]:
    """Height, width and channels of a static shape; a picture's if not even the rank is known."""
    if shape is None:
        return (None, None, None)
    height, width, channels = shape[-3:]
    return (height, width, channels)


Rule = tuple[bool | None, str]
"""Whether something holds, None if it is not known yet, and what it is."""


def rule(test: Callable[..., bool], message: str, *numbers: int | None) -> Rule:
    known = [one for one in numbers if one is not None]
    return (test(*known) if len(known) == len(numbers) else None, message)


def positive_sizes(height: int | None, width: int | None) -> Iterator[Rule]:
    yield rule(lambda one: one > 0, "target_width must be > 0.", width)
    yield rule(lambda one: one > 0, "target_height must be > 0.", height)


def check_rules(rules: Iterable[Rule], *, fixed: bool) -> None:
    for holds, message in rules:
        if holds is False:
            raise ValueError(message) if fixed else invalid(f"assertion failed: [{message}]")


class Size:
    """An argument that is a number or a tensor of one: an offset or a size in pixels."""

    def __init__(self, op: OpBuilder, value: Any, argument: str) -> None:
        is_tensor = dtype_hint(value) is not None and not isinstance(value, np.generic | np.ndarray)
        dtype = None if is_tensor else dtypes.int32
        tensor = op.tensor(value, argument, dtype, INDICES)
        found = constant_value(tensor)
        self.known: int | None = None if found is None else int(found)
        self.fixed: int | None = None if is_tensor else self.known
