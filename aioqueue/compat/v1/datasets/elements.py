"""What an iterator goes through: elements of a known form, and how they come into being."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core.convert import convert_to_tensor, freeze
from aioqueue.compat.v1.core.dtypes import DType, as_dtype, variant
from aioqueue.compat.v1.core.graph import Body, Tensor
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape
from aioqueue.compat.v1.datasets import nest
from aioqueue.compat.v1.datasets.stages import Row, Rows
from aioqueue.compat.v1.ops.building import invalid
from aioqueue.compat.v1.ops.sparse import SparseTensor, pack_sparse, unpack_one

Start = Callable[[], Rows]  # what begins to go through a dataset; once for each repetition of it


class TensorInfo:
    """What is known of one tensor of the elements."""

    def __init__(self, dtype: Any, shape: Any, is_sparse: bool = False) -> None:
        self.dtype: DType = as_dtype(dtype)
        self.shape: TensorShape = as_shape(shape)
        self.is_sparse = is_sparse

    @property
    def held(self) -> tuple[DType, TensorShape]:
        """The dtype and shape of what rows have of it."""
        return (variant, TensorShape([])) if self.is_sparse else (self.dtype, self.shape)

    def given(self, held: Tensor) -> Any:
        """What functions and scripts get: the tensor, or the sparse tensor that it holds."""
        return unpack_one(held, self.dtype, self.shape) if self.is_sparse else held


def as_leaf(value: Any) -> tuple[TensorInfo, Tensor]:
    """What is known of a tensor or a value, and the tensor that rows have of it."""
    if isinstance(value, SparseTensor):
        return TensorInfo(value.dtype, value.shape, is_sparse=True), pack_sparse(value)
    tensor = convert_to_tensor(value)
    return TensorInfo(tensor.dtype, tensor.shape), tensor


class DatasetRun:
    """An iterator's way through a dataset, from its initialisation on."""

    def __init__(self, values: Mapping[Tensor, Any], step: Any) -> None:
        # Copies, for who feeds an array may change it afterwards.
        self.values: dict[Tensor, Any] = {
            tensor: freeze(_copied(value)) for tensor, value in values.items()
        }
        self.step = step

    def call(self, body: Body, given: Sequence[Tensor], row: Row) -> Row:
        """The value of a traced function."""
        captures = [self.values[one] for one in body.captures]
        outputs = self.step.run_body(body.outputs, [*given, *body.captures], [*row, *captures])
        return tuple(freeze(value) for value in outputs)


class InnerRun(DatasetRun):
    """A way through a dataset that a function has made of an element, within another way."""

    def __init__(self, values: Mapping[Tensor, Any], outer: DatasetRun) -> None:
        self._outer = outer
        super().__init__(values, outer.step)

    @property
    def step(self) -> Any:
        """The run that asks for an element now."""
        return self._outer.step

    @step.setter
    def step(self, value: Any) -> None:
        """It is the outer one's to set."""


class Described:
    """The form of elements."""

    _spec: Any
    """What is known of the tensors of an element, in its nesting."""

    @property
    def output_types(self) -> Any:
        """The dtypes of an element, in its nesting."""
        return nest.mapped(lambda info: info.dtype, self._spec)

    @property
    def output_shapes(self) -> Any:
        """The static shapes of an element, in its nesting."""
        return nest.mapped(lambda info: info.shape, self._spec)

    @property
    def output_classes(self) -> Any:
        """`Tensor` or `SparseTensor` for each tensor of an element, in its nesting."""
        return nest.mapped(lambda info: SparseTensor if info.is_sparse else Tensor, self._spec)


class Elements(Described):
    """The form of elements, what begins to make them, and the tensors whose values it needs."""

    def __init__(
        self,
        spec: Any,
        begin: Callable[[DatasetRun], Start],
        inputs: Sequence[Elements] = (),
        tensors: Iterable[Tensor] = (),
    ) -> None:
        self._spec = spec
        self._begin = begin
        needed = [*tensors, *(one for dataset in inputs for one in dataset._sources)]
        self._sources: tuple[Tensor, ...] = tuple(dict.fromkeys(needed))


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def check_shard(count: int, index: int) -> None:
    """Refuse a shard that is not there."""
    at_least_one(
        count, f"Number of shards must be greater than zero (currently num_shards = {count})."
    )
    if not 0 <= index < count:
        raise invalid(f"Index must be between 0 and {count - 1} (currently index = {index}).")


def at_least_one(value: Any, message: str) -> int:
    """A number that must be positive."""
    if value < 1:
        raise invalid(message)
    return int(value)
