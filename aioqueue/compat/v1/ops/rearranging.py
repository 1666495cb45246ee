"""The same elements elsewhere, `reverse_sequence` for instance; and what makes sure of a shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioqueue.compat.v1.core import default_graph
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape
from aioqueue.compat.v1.ops.building import (
    INDICES,
    OpBuilder,
    Pure,
    array,
    invalid,
    merge,
    shape_text,
    unless_given,
)

__all__ = ("batch_gather", "ensure_shape", "invert_permutation", "reverse_sequence")


def reverse_sequence(
    input: Any,
    seq_lengths: Any,
    seq_axis: int | None = None,
    batch_axis: int | None = None,
    name: str | None = None,
    seq_dim: int | None = None,
    batch_dim: int | None = None,
) -> Tensor:
    """Each slice of a batch with its first elements in reversed order.

    Args:
        input: the batch.
        seq_lengths: int32 or int64: how many elements of each slice are reversed.
        seq_axis: the axis along which they are.
        batch_axis: the axis of the slices; the first if None.
        name: name of the op.
        seq_dim: the old name of `seq_axis`.
        batch_dim: the old name of `batch_axis`.

    Raises:
        ValueError: there are not as many lengths as slices.
        InvalidArgumentError: when it runs: a length is negative, or there are fewer elements.
    """
    along = unless_given(seq_axis, seq_dim, "seq_axis", "seq_dim")
    of_batch = unless_given(batch_axis, batch_dim, "batch_axis", "batch_dim") or 0
    if along is None:
        raise ValueError("seq_axis: got None; expected the axis along which to reverse")

    def reversed_beginnings(x: Any, lengths: Any) -> Any:
        x = array(x)
        _check_lengths(x.shape, lengths, along, of_batch)
        made = x.copy()
        rows, given = (
            np.moveaxis(made, (of_batch, along), (0, 1)),
            np.moveaxis(x, (of_batch, along), (0, 1)),
        )
        for number, length in enumerate(lengths.tolist()):
            rows[number, :length] = given[number, :length][::-1]
        return made

    with OpBuilder("ReverseSequence", name) as op:
        tensor = op.tensor(input, "input")
        lengths = op.tensor(seq_lengths, "seq_lengths", None, INDICES)
        shape, count = tensor.shape.as_tuple(), op.rank(lengths, 1)
        if shape is not None and count is not None and of_batch < len(shape):
            size, other = shape[of_batch], count[0]
            if None not in (size, other) and size != other:
                raise op.refuse(f"Dimensions must be equal, but are {size} and {other}")
            shape = (*shape[:of_batch], other if size is None else size, *shape[of_batch + 1 :])
        return op.output(tensor.dtype, shape, Pure(reversed_beginnings))


def _check_lengths(shape: tuple[int, ...], lengths: Any, along: int, of_batch: int) -> None:
    if along == of_batch:
        raise invalid(f"batch_dim == seq_dim == {along}")
    for what, axis in (("seq_dim", along), ("batch_dim", of_batch)):
        if not axis < len(shape):
            raise invalid(f"{what} must be < input rank ( {axis} vs. {len(shape)})")
    if len(lengths) != shape[of_batch]:
        raise invalid(
            f"Length of seq_lengths != input.dims({of_batch}), ({len(lengths)} vs."
            f" {shape[of_batch]})"
        )
    for number, length in enumerate(lengths.tolist()):
        if length < 0:
            raise invalid(f"seq_lens({number}) < 0")
        if length > shape[along]:
            raise invalid(f"seq_lens({number}) > input.dims({along})")


def invert_permutation(x: Any, name: str | None = None) -> Tensor:
    """The permutation that undoes one.

    Args:
        x: int32 or int64: the numbers below its length, each once.
        name: name of the op.

    Raises:
        InvalidArgumentError: when it runs: a number comes twice, or is too large.
    """

    def inverted(x: Any) -> Any:
        made = np.full_like(x, -1)
        for place, number in enumerate(x.tolist()):
            if not 0 <= number < len(x):
                raise invalid(f"{number} is not between 0 and {len(x)}")
            if made[number] != -1:
                raise invalid(f"{number} is duplicated in the input.")
            made[number] = place
        return made

    with OpBuilder("InvertPermutation", name) as op:
        tensor = op.tensor(x, "x", None, INDICES)
        return op.output(tensor.dtype, op.rank(tensor, 1), Pure(inverted))


def batch_gather(params: Any, indices: Any, name: str | None = None) -> Tensor:
    """Of each of a batch of vectors the elements at some places.

    Args:
        params: ``[..., n, *rest]``.
        indices: int32 or int64 ``[..., m]``.
        name: name of the op.

    Raises:
        InvalidArgumentError: when it runs: there is no such place.
    """

    def gathered(params: Any, indices: Any) -> Any:
        params, axis = array(params), indices.ndim - 1
        wrong = np.argwhere((indices < 0) | (indices >= params.shape[axis]))
        if len(wrong):
            place = tuple(wrong[0].tolist())
            raise invalid(
                f"indices{shape_text(place)} = {indices[place]} is not in [0, {params.shape[axis]})"
            )
        wide = indices.reshape(*indices.shape, *[1] * (params.ndim - indices.ndim))
        return np.take_along_axis(params, wide, axis)

    with OpBuilder("BatchGather", name) as op:
        tensor = op.tensor(params, "params")
        places = op.tensor(indices, "indices", None, INDICES)
        shape, outer = tensor.shape.as_tuple(), places.shape.as_tuple()
        known = None if shape is None or outer is None else (*outer, *shape[len(outer) :])
        return op.output(tensor.dtype, known, Pure(gathered))


def ensure_shape(x: Any, shape: Any, name: str | None = None) -> Tensor:
    """A tensor with a value of another one, whose shape is known from then on.

    Args:
        x: the tensor.
        shape: what its shape must be; None for sizes that may be any.
        name: name of the op.

    Raises:
        ValueError: it is known to have another shape.
        InvalidArgumentError: when it runs: it has.
    """
    wanted = as_shape(shape)
    with name_scope(name, "EnsureShape") as scope:
        tensor = convert_to_tensor(x)
        if None not in (wanted.ndims, tensor.shape.ndims) and wanted.ndims != tensor.shape.ndims:
            raise ValueError(f"Shape must be rank {wanted.ndims} but is rank {tensor.shape.ndims}")
        known = merge(wanted.as_tuple(), tensor.shape.as_tuple())

        def checked(step: Any, value: Any) -> Any:
            found = np.shape(value)
            if not wanted.is_compatible_with(TensorShape(found)):
                raise invalid(
                    f"Shape of tensor {tensor.op.name} {shape_text(found)} is not compatible with"
                    f" expected shape {shape_text(wanted.as_tuple())}."
                )
            return value

        outputs = [(tensor.dtype, TensorShape(known))]
        return default_graph.op("EnsureShape", [tensor], outputs, checked, name=scope).outputs[0]
