"""What an iterator goes through: elements of a known form, and how they come into being."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core.convert import freeze
from aioqueue.compat.v1.core.dtypes import as_dtype
from aioqueue.compat.v1.core.graph import Body, Tensor
from aioqueue.compat.v1.core.shapes import as_shape
from aioqueue.compat.v1.datasets import nest
from aioqueue.compat.v1.datasets.stages import Row, Rows

__all__ = ("DatasetRun", "Elements", "Start", "TensorInfo")

Start = Callable[[], Rows]
"""What begins to go through a dataset; once for each repetition of it."""


class TensorInfo:
    """What is known of one tensor of the elements.

    Args:
        dtype: of its elements.
        shape: what all of them have in common.
    """

    def __init__(self, dtype: Any, shape: Any) -> None:
        self.dtype = as_dtype(dtype)
        self.shape = as_shape(shape)


class DatasetRun:
    """An iterator's way through a dataset, from its initialisation on.

    Args:
        values: the values of the tensors that the dataset was made from.
        step: of the run of the session that initialises it.

    Attributes:
        step: of the run that asks for an element now.
    """

    def __init__(self, values: Mapping[Tensor, Any], step: Any) -> None:
        # Copies, for who feeds an array may change it afterwards.
        self.values = {tensor: freeze(_copied(value)) for tensor, value in values.items()}
        self.step = step

    def call(self, body: Body, given: Sequence[Tensor], row: Row) -> Row:
        """The value of a traced function.

        Args:
            body: its operations.
            given: its arguments.
            row: their values.
        """
        captures = [self.values[one] for one in body.captures]
        outputs = self.step.run_body(body.outputs, [*given, *body.captures], [*row, *captures])
        return tuple(freeze(value) for value in outputs)


class Elements:
    """The form of elements, the tensors they depend on, and what begins to make them.

    Args:
        spec: what is known of the tensors of an element, in its nesting.
        begin: prepares one iterator's way through them.
        inputs: what they are made from.
        tensors: whose values are needed besides.
    """

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
        """`Tensor` for each tensor of an element, in its nesting."""
        return nest.mapped(lambda info: Tensor, self._spec)


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value
