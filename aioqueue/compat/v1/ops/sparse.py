"""`tf.SparseTensor`: three tensors that stand for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import op
from aioqueue.compat.v1.core.dtypes import DType, as_dtype
from aioqueue.compat.v1.core.graph import Graph, Operation, Tensor, default_sessions
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape
from aioqueue.compat.v1.ops.placeholders import placeholder
from aioqueue.compat.v1.ops.static import shape_value

__all__ = (
    "GROUPED",
    "SparseTensor",
    "SparseTensorValue",
    "as_sparse",
    "check_counts",
    "check_indices",
    "convert_to_tensor_or_sparse_tensor",
    "is_tensor",
    "sparse_placeholder",
    "sparse_tensor_to_dense",
)


class SparseTensorValue(NamedTuple):
    """The value of a `SparseTensor`.

    Attributes:
        indices: int64 ``[n, rank]``: where the values are.
        values: ``[n]``.
        dense_shape: int64 ``[rank]``.
    """

    indices: Any
    values: Any
    dense_shape: Any


class SparseTensor:
    """A tensor that stores only some elements; the others are zero, or missing.

    Args:
        indices: int64 ``[n, rank]``: where the values are, in row-major order.
        values: ``[n]``.
        dense_shape: int64 ``[rank]``.

    Raises:
        ValueError: the static shapes do not fit each other.
    """

    _known: TensorShape | None = None

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        with name_scope(None, "SparseTensor", [indices, values, dense_shape]):
            self._indices = convert_to_tensor(indices, dtypes.int64, name="indices")
            self._values = convert_to_tensor(values, name="values")
            self._dense_shape = convert_to_tensor(dense_shape, dtypes.int64, name="dense_shape")
        places = self._indices.shape.with_rank(2)
        count = self._values.shape.with_rank(1)
        rank = self._dense_shape.shape.with_rank(1)
        places[0].assert_is_compatible_with(count[0])
        places[1].assert_is_compatible_with(rank[0])

    @classmethod
    def from_value(cls, sparse_tensor_value: Any) -> SparseTensor:
        """A constant of a `SparseTensorValue`; a `SparseTensor` is returned as it is.

        Raises:
            TypeError: it is neither.
        """
        if isinstance(sparse_tensor_value, SparseTensor):
            return sparse_tensor_value
        if not isinstance(sparse_tensor_value, SparseTensorValue):
            raise TypeError(
                "Neither a SparseTensor nor SparseTensorValue:"
                f" {sparse_tensor_value!r} of type {type(sparse_tensor_value).__name__}."
            )
        return cls(*sparse_tensor_value)

    @property
    def indices(self) -> Tensor:
        """Where the values are: int64 ``[n, rank]``."""
        return self._indices

    @property
    def values(self) -> Tensor:
        """The values: ``[n]``."""
        return self._values

    @property
    def dense_shape(self) -> Tensor:
        """The shape, as a tensor: int64 ``[rank]``."""
        return self._dense_shape

    @property
    def shape(self) -> TensorShape:
        """What is known of the shape before anything runs."""
        found = as_shape(shape_value(self._dense_shape))
        return found if self._known is None else found.merge_with(self._known)

    def note_shape(self, shape: TensorShape) -> SparseTensor:
        """Itself, whose shape the op that makes it knows better than the tensor `dense_shape`."""
        self._known = shape
        return self

    def get_shape(self) -> TensorShape:
        """The same as `shape`."""
        return self.shape

    @property
    def dtype(self) -> DType:
        """The type of the values."""
        return self._values.dtype

    @property
    def op(self) -> Operation:
        """The operation that makes the values."""
        return self._values.op

    @property
    def graph(self) -> Graph:
        """The graph that it is part of."""
        return self._indices.graph

    @property
    def name(self) -> str:
        """The name of the values."""
        return self._values.name

    def eval(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> Any:
        """Its value, as from `Tensor.eval`."""
        session = session or default_sessions.top()
        if session is None:
            return self._values.eval(feed_dict)  # which says what is missing
        return session.run(self, feed_dict)

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Indices, values and dense shape."""
        return self._indices, self._values, self._dense_shape

    def __repr__(self) -> str:
        indices, values, shape = self.parts
        return f"SparseTensor(indices={indices}, values={values}, dense_shape={shape})"


def convert_to_tensor_or_sparse_tensor(
    value: Any, dtype: Any = None, name: str | None = None
) -> Tensor | SparseTensor:
    """A tensor for `value`; sparse ones stay sparse.

    Args:
        value: what `convert_to_tensor` takes, a `SparseTensor` or a `SparseTensorValue`.
        dtype: the type that it must have.
        name: of the operation, if one is made.

    Raises:
        RuntimeError: a sparse tensor has another dtype.
    """
    if isinstance(value, SparseTensorValue):
        value = SparseTensor.from_value(value)
    if not isinstance(value, SparseTensor):
        return convert_to_tensor(value, dtype, name=name)
    if dtype is not None and as_dtype(dtype) != value.dtype:
        raise RuntimeError(
            f"Sparse dtype: requested = {as_dtype(dtype).name}, actual = {value.dtype.name}"
        )
    return value


def is_tensor(x: Any) -> bool:
    """Whether something is a tensor, dense or sparse, or a variable."""
    return isinstance(x, Tensor | SparseTensor) or hasattr(x, "_as_graph_element")


def sparse_placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> SparseTensor:
    """A sparse tensor whose three parts are fed.

    Args:
        dtype: of the values.
        shape: its static shape, if that is known.
        name: of the operations.
    """
    static = as_shape(shape)
    rank = static.ndims
    prefix = "" if name is None else f"{name}/"
    return SparseTensor(
        indices=placeholder(dtypes.int64, [None, rank], f"{prefix}indices" if name else None),
        values=placeholder(dtype, [None], f"{prefix}values" if name else None),
        dense_shape=static.as_list()
        if static.is_fully_defined()
        else placeholder(dtypes.int64, [rank], f"{prefix}shape" if name else None),
    )


def sparse_tensor_to_dense(
    sp_input: SparseTensor,
    default_value: Any = None,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """The same as a dense tensor.

    Args:
        sp_input: the sparse tensor.
        default_value: of the elements that are not given; zero, or the empty string, if ``None``.
        validate_indices: whether indices must be in order and without repetition.
        name: of the operation.
    """
    dtype = sp_input.dtype
    if default_value is None:
        default_value = b"" if dtype == dtypes.string else np.zeros((), dtype.numpy)[()]
    default = convert_to_tensor(default_value, dtype, name="default_value")

    def kernel(step: Any, indices: Any, values: Any, dense_shape: Any, fill: Any) -> Any:
        shape = tuple(dense_shape.tolist())
        check_counts(
            values, indices, "sparse_values has incorrect shape [{}], should be [] or [{}]"
        )
        check_indices(indices, shape, in_order=validate_indices)
        dense = np.full(shape, fill, dtype=dtype.numpy)
        dense[tuple(indices.T)] = values
        return dense if dense.ndim else dense[()]

    outputs = [(dtype, sp_input.shape)]
    return op(
        "SparseToDense", [*sp_input.parts, default], outputs, kernel, name=name or "SparseToDense"
    ).outputs[0]


def as_sparse(value: Any) -> SparseTensor:
    """A `SparseTensor` of one, or of the value of one.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(value, SparseTensor):
        return value
    if isinstance(value, SparseTensorValue):
        return SparseTensor.from_value(value)
    raise TypeError("Input must be a SparseTensor.")


def check_indices(indices: Any, shape: tuple[int, ...], *, in_order: bool) -> None:
    """Refuse indices that are out of bounds, or not in row-major order, if they must be.

    Args:
        indices: ``[n, rank]``.
        shape: the sizes that they are to be below.
        in_order: whether they must be in order, and all different.

    Raises:
        InvalidArgumentError: one is not as it must be.
    """
    outside = ((indices < 0) | (indices >= np.array(shape, np.int64))).any(axis=1)
    first = int(outside.argmax()) if outside.any() else None
    if in_order:
        _check_order(indices[:first], shape)  # TensorFlow reports the first wrong one
    if first is None:
        return
    sizes = ",".join(map(str, shape))
    if not in_order:  # TensorFlow notices when it sets them, and knows no more than that
        raise errors.InvalidArgumentError(
            None, None, f"Indices are not valid (out of bounds).  Shape: [{sizes}]"
        )
    raise _wrong_index(indices, first, f"out of bounds: need 0 <= index < [{sizes}]")


def check_counts(
    indices: Any,
    values: Any,
    text: str = "Number of elements in indices ({}) and values ({}) do not match",
) -> None:
    """Refuse a sparse value that has not as many indices as values.

    Args:
        indices: ``[n, rank]``.
        values: ``[n]``.
        text: what is said, with places for the two numbers.

    Raises:
        InvalidArgumentError: there are not as many.
    """
    if len(indices) != len(values):
        raise errors.InvalidArgumentError(None, None, text.format(len(indices), len(values)))


GROUPED = "indices and values rows (indexing dimension) must match. (indices = {}, values = {})"
"""What `check_counts` says for ops that go through a sparse value by groups."""


def _check_order(indices: Any, shape: tuple[int, ...]) -> None:
    """Refuse indices, all within bounds, that are not in row-major order and all different."""
    if len(indices) < 2:
        return
    places = np.ravel_multi_index(tuple(indices.T), shape) if len(shape) else np.zeros(2)
    steps = np.diff(places)
    if (steps <= 0).any():
        number = int((steps <= 0).argmax())
        what = "repeated" if steps[number] == 0 else f"out of order.{_HINT}"
        raise _wrong_index(indices, number + 1, what)


_HINT = (
    " Many sparse ops require sorted indices.\n    Use `tf.sparse.reorder` to create a correctly"
    " ordered copy.\n\n"
)


def _wrong_index(indices: Any, number: int, what: str) -> errors.InvalidArgumentError:
    place = ",".join(map(str, indices[number].tolist()))
    return errors.InvalidArgumentError(None, None, f"indices[{number}] = [{place}] is {what}")
