"""Rows to several tensors and back: `dynamic_partition` and `dynamic_stitch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import OpBuilder, Pure, array, invalid, shape_text
from aioqueue.compat.v1.ops.static import constant_value

__all__ = ("dynamic_partition", "dynamic_stitch")


def dynamic_partition(
    data: Any, partitions: Any, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """The slices of a tensor, by the number of the part that each belongs to.

    Args:
        data: whose shape begins with that of `partitions`.
        partitions: int32: the number of the part of each slice.
        num_partitions: how many parts there are.
        name: name of the op.

    Raises:
        InvalidArgumentError: when it runs: there is no part of a number.
    """

    def parted(data: Any, partitions: Any) -> Any:
        values, numbers = array(data), np.asarray(partitions)
        if values.shape[: numbers.ndim] != numbers.shape:
            raise invalid(
                "data.shape must start with partitions.shape, got data.shape ="
                f" {shape_text(values.shape)}, partitions.shape = {shape_text(numbers.shape)}"
            )
        wrong = np.argwhere((numbers < 0) | (numbers >= num_partitions))
        if len(wrong):
            place = ",".join(map(str, wrong[0]))
            number = numbers[tuple(wrong[0])]
            where = f"[{place}]" if numbers.ndim else ""
            raise invalid(f"partitions{where} = {number} is not in [0, {num_partitions})")
        found = tuple(values[numbers == number] for number in range(num_partitions))
        return found if len(found) > 1 else found[0]

    with OpBuilder("DynamicPartition", name) as op:
        values = op.tensor(data, "data")
        numbers = op.tensor(partitions, "partitions", dtypes.int32)
        shape, of_numbers = values.shape.as_tuple(), numbers.shape.as_tuple()
        known = shape is not None and of_numbers is not None
        rest = (None, *shape[len(of_numbers) :]) if known else None  # type: ignore[arg-type,index]
        return op.outputs([(values.dtype, rest)] * num_partitions, Pure(parted))


def dynamic_stitch(indices: Sequence[Any], data: Sequence[Any], name: str | None = None) -> Tensor:
    """One tensor of slices at the places that are given; later ones cover earlier ones.

    Args:
        indices: tensors of int32: where the slices go.
        data: tensors of slices, whose shapes begin with those of `indices`.
        name: name of the op.
    """
    count = len(indices)

    def stitched(*values: Any) -> Any:
        places, slices = values[:count], values[count:]
        flat = [np.ravel(one) for one in places]
        rows = [
            array(one).reshape(-1, *np.shape(one)[np.ndim(place) :])
            for one, place in zip(slices, places, strict=True)
        ]
        size = max((int(one.max()) + 1 for one in flat if one.size), default=0)
        made = np.zeros((size, *rows[0].shape[1:]), rows[0].dtype)
        for place, row in zip(flat, rows, strict=True):
            made[place] = row
        return made

    with OpBuilder("DynamicStitch", name) as op:
        places = [op.tensor(one, "indices", dtypes.int32) for one in indices]
        slices = op.alike_list(data, "data")
        shape = slices[0].shape.as_tuple()
        begin = places[0].shape.ndims
        known = [constant_value(one) for one in places]
        size = None
        if all(one is not None for one in known):
            size = max((int(one.max()) + 1 for one in known if one.size), default=0)
        static = None if shape is None or begin is None else (size, *shape[begin:])
        return op.output(slices[0].dtype, static, Pure(stitched))
