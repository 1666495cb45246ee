"""Pictures mirrored, turned by right angles and transposed, for certain or by chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops import arrays
from aioqueue.compat.v1.ops.building import Dims, OpBuilder, Pure, array
from aioqueue.compat.v1.ops.images.pictures import check_3d, one_or_many
from aioqueue.compat.v1.ops.random import random_uniform

__all__ = (
    "flip_left_right",
    "flip_up_down",
    "random_flip_left_right",
    "random_flip_up_down",
    "rot90",
    "transpose_image",
)

_HEIGHT, _WIDTH = -3, -2


def flip_left_right(image: Any) -> Tensor:
    """A picture, or each of a batch, with its columns in reversed order.

    Raises:
        ValueError: it has neither three nor four dimensions.
    """
    return _turned(image, "flip_left_right", lambda x: np.flip(x, _WIDTH), lambda shape: shape)


def flip_up_down(image: Any) -> Tensor:
    """A picture, or each of a batch, with its rows in reversed order.

    Raises:
        ValueError: it has neither three nor four dimensions.
    """
    return _turned(image, "flip_up_down", lambda x: np.flip(x, _HEIGHT), lambda shape: shape)


def transpose_image(image: Any, name: str | None = None) -> Tensor:
    """A picture, or each of a batch, with rows for columns.

    Raises:
        ValueError: it has neither three nor four dimensions.
    """

    def exchanged(shape: Dims) -> Dims:
        return shape and (*shape[:-3], shape[_WIDTH], shape[_HEIGHT], shape[-1])

    return _turned(image, "transpose", lambda x: np.swapaxes(x, _HEIGHT, _WIDTH), exchanged, name)


def rot90(image: Any, k: Any = 1, name: str | None = None) -> Tensor:
    """A picture, or each of a batch, turned left by right angles.

    Args:
        image: ``[height, width, channels]``, or a batch of such pictures.
        k: how many right angles; a number or a tensor.
        name: name of the op.

    Raises:
        ValueError: it has neither three nor four dimensions.
    """

    def turned(pixels: Any, k: Any) -> Any:
        pixels = array(pixels)
        check_3d(pixels)
        return np.rot90(pixels, int(k) % 4, (_HEIGHT, _WIDTH))

    with OpBuilder("Rot90", name, "rot90") as op:
        tensor = op.tensor(image, "image")
        shape = one_or_many(tensor)
        op.rank(op.tensor(k, "k", dtypes.int32), 0)
        if shape is not None and shape[_HEIGHT] != shape[_WIDTH]:
            shape = (*shape[:-3], None, None, shape[-1])
        return op.output(tensor.dtype, shape, Pure(turned))


def _turned(
    image: Any,
    default: str,
    function: Callable[[Any], Any],
    static: Callable[[Dims], Dims],
    name: str | None = None,
) -> Tensor:
    def turned(pixels: Any) -> Any:
        pixels = array(pixels)
        check_3d(pixels)
        return function(pixels)

    with OpBuilder("Turn", name, default) as op:
        tensor = op.tensor(image, "image")
        return op.output(tensor.dtype, static(one_or_many(tensor)), Pure(turned))


def random_flip_left_right(image: Any, seed: int | None = None) -> Tensor:
    """A picture as it is or mirrored, with equal odds; of a batch, each by itself.

    Raises:
        ValueError: it has neither three nor four dimensions.
    """
    return _perhaps_flipped(image, _WIDTH, seed, "random_flip_left_right")


def random_flip_up_down(image: Any, seed: int | None = None) -> Tensor:
    """A picture as it is or upside down, with equal odds; of a batch, each by itself.

    Raises:
        ValueError: it has neither three nor four dimensions.
    """
    return _perhaps_flipped(image, _HEIGHT, seed, "random_flip_up_down")


def _perhaps_flipped(image: Any, axis: int, seed: int | None, default: str) -> Tensor:
    def flipped(pixels: Any, chances: Any) -> Any:
        pixels = array(pixels)
        check_3d(pixels)
        if pixels.ndim == 3:
            return np.flip(pixels, axis) if chances < 0.5 else pixels
        # TensorFlow rounds the numbers of a batch, so that it is the other half that turns.
        turns = (chances > 0.5).reshape(-1, 1, 1, 1)
        return np.where(turns, np.flip(pixels, axis), pixels)

    with OpBuilder("RandomFlip", None, default) as op:
        tensor = op.tensor(image, "image")
        shape = one_or_many(tensor)
        is_one = shape is not None and len(shape) == 3
        batch: Any = [] if is_one else arrays.shape(tensor)[:-3]
        op.inputs.append(random_uniform(batch, 0, 1.0, seed=seed))
        return op.output(tensor.dtype, shape, Pure(flipped))
