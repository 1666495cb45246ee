"""`tf.SparseTensor`: three tensors that stand for one; what is made of it, and its rows in queues.

In a queue each is one component, a scalar whose value is a `SparseRow`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import op
from aioqueue.compat.v1.core.dtypes import DType, as_dtype
from aioqueue.compat.v1.core.graph import Graph, Operation, Tensor, default_sessions
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape
from aioqueue.compat.v1.ops.building import INDICES, OpBuilder, Pure, array, invalid, shape_text
from aioqueue.compat.v1.ops.control import placeholder
from aioqueue.compat.v1.ops.static import constant_value, shape_value

__all__ = (
    "SparseTensor", "SparseTensorValue", "convert_to_tensor_or_sparse_tensor", "is_tensor",
    "sparse_placeholder", "sparse_reorder", "sparse_reshape", "sparse_tensor_to_dense",
    "sparse_to_dense", "sparse_to_indicator",
)  # fmt: skip


class SparseTensorValue(NamedTuple):
    """The value of a `SparseTensor`."""

    indices: Any
    values: Any
    dense_shape: Any


class SparseTensor:
    """A tensor that stores only some elements; the others are zero, or missing."""

    _known: TensorShape | None = None

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        with name_scope(None, "SparseTensor", [indices, values, dense_shape]):
            self.indices: Tensor = convert_to_tensor(indices, dtypes.int64, name="indices")
            self.values: Tensor = convert_to_tensor(values, name="values")
            self.dense_shape: Tensor = convert_to_tensor(
                dense_shape, dtypes.int64, name="dense_shape"
            )
        self.dtype: DType = self.values.dtype
        self.op: Operation = self.values.op
        self.graph: Graph = self.indices.graph
        self.name: str = self.values.name
        places = self.indices.shape.with_rank(2)
        count = self.values.shape.with_rank(1)
        rank = self.dense_shape.shape.with_rank(1)
        places[0].assert_is_compatible_with(count[0])
        places[1].assert_is_compatible_with(rank[0])

    @classmethod
    def from_value(cls, sparse_tensor_value: Any) -> SparseTensor:
        """A constant of a `SparseTensorValue`; a `SparseTensor` is returned as it is."""
        if isinstance(sparse_tensor_value, SparseTensor):
            return sparse_tensor_value
        if not isinstance(sparse_tensor_value, SparseTensorValue):
            raise TypeError(
                "Neither a SparseTensor nor SparseTensorValue:"
                f" {sparse_tensor_value!r} of type {type(sparse_tensor_value).__name__}."
            )
        return cls(*sparse_tensor_value)

    @property
    def shape(self) -> TensorShape:
        """What is known of the shape before anything runs."""
        found = as_shape(shape_value(self.dense_shape))
        return found if self._known is None else found.merge_with(self._known)

    def note_shape(self, shape: TensorShape) -> SparseTensor:
        """Itself, whose shape the op that makes it knows better than the tensor `dense_shape`."""
        self._known = shape
        return self

    def get_shape(self) -> TensorShape:
        """The same as `shape`."""
        return self.shape

    def eval(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> Any:
        """Its value, as from `Tensor.eval`."""
        session = session or default_sessions.top()
        if session is None:
            return self.values.eval(feed_dict)  # which says what is missing
        return session.run(self, feed_dict)

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.indices, self.values, self.dense_shape

    def __repr__(self) -> str:
        indices, values, shape = self.parts
        return f"SparseTensor(indices={indices}, values={values}, dense_shape={shape})"


def convert_to_tensor_or_sparse_tensor(
    value: Any, dtype: Any = None, name: str | None = None
) -> Tensor | SparseTensor:
    """A tensor for `value`; sparse ones stay sparse."""
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
    """A sparse tensor whose three parts are fed."""
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
    """The same as a dense tensor."""
    dtype = sp_input.dtype
    if default_value is None:
        default_value = b"" if dtype == dtypes.string else np.zeros((), dtype.numpy)[()]
    indices, values, shape = sp_input.parts
    made = sparse_to_dense(indices, shape, values, default_value, validate_indices, name)
    made.set_shape(sp_input.shape)
    return made


def as_sparse(value: Any) -> SparseTensor:
    if isinstance(value, SparseTensor):
        return value
    if isinstance(value, SparseTensorValue):
        return SparseTensor.from_value(value)
    raise TypeError("Input must be a SparseTensor.")


def check_indices(indices: Any, shape: tuple[int, ...], *, in_order: bool) -> None:
    """Refuse indices that are out of bounds, or not in row-major order, if they must be."""
    outside = ((indices < 0) | (indices >= np.array(shape, np.int64))).any(axis=1)
    first = int(outside.argmax()) if outside.any() else None
    if in_order:
        _check_order(indices[:first], shape)  # TensorFlow reports the first wrong one
    if first is None:
        return
    sizes = ",".join(map(str, shape))
    if not in_order:  # TensorFlow notices when it sets them, and knows no more than that
        raise invalid(f"Indices are not valid (out of bounds).  Shape: [{sizes}]")
    raise _wrong_index(indices, first, f"out of bounds: need 0 <= index < [{sizes}]")


_COUNTS = "Number of elements in indices ({}) and values ({}) do not match"


def check_counts(indices: Any, values: Any, text: str = _COUNTS) -> None:
    if len(indices) != len(values):
        raise invalid(text.format(len(indices), len(values)))


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


def _wrong_index(indices: Any, number: int, what: str) -> Exception:
    place = ",".join(map(str, indices[number].tolist()))
    return invalid(f"indices[{number}] = [{place}] is {what}")


def sparse_to_dense(
    sparse_indices: Any,
    output_shape: Any,
    sparse_values: Any,
    default_value: Any = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """A dense tensor made of some elements and a default for all others."""

    def dense(indices: Any, shape: Any, values: Any, default: Any) -> Any:
        places, given = np.asarray(indices), array(values)
        places = places.reshape(-1, 1) if places.ndim < 2 else places
        count, rank = places.shape
        if np.ndim(shape) != 1 or len(shape) != rank:
            raise invalid(
                f"output_shape has incorrect number of elements: {np.size(shape)} should be: {rank}"
            )
        if given.ndim and given.shape != (count,):
            wanted = "[]" if np.ndim(indices) == 0 else f"[] or [{count}]"
            raise invalid(
                f"sparse_values has incorrect shape {shape_text(given.shape)}, should be {wanted}"
            )
        sizes = tuple(int(one) for one in shape)
        check_indices(places, sizes, in_order=validate_indices)
        made = np.full(sizes, default, given.dtype)
        made[tuple(places.T)] = given
        return made

    with OpBuilder("SparseToDense", name) as op:
        places = op.tensor(sparse_indices, "sparse_indices", None, INDICES)
        shape = op.tensor(output_shape, "output_shape", places.dtype, like="sparse_indices")
        values = op.tensor(sparse_values, "sparse_values")
        op.tensor(default_value, "default_value", values.dtype, like="sparse_values")
        return op.output(values.dtype, shape_value(shape), Pure(dense))


def add_parts(
    op: OpBuilder, sparse: SparseTensor, names: str = "indices values dense_shape"
) -> None:
    for argument, one in zip(names.split(), sparse.parts, strict=True):
        op.tensor(one, argument)


def sparse_outputs(dtype: DType, rank: int | None, count: int | None = None) -> list[Any]:
    return [(dtypes.int64, (count, rank)), (dtype, (count,)), (dtypes.int64, (rank,))]


def sparse_output(
    op: OpBuilder,
    dtype: DType,
    rank: int | None,
    function: Callable[..., Any],
    count: int | None = None,
) -> SparseTensor:
    return SparseTensor(*op.outputs(sparse_outputs(dtype, rank, count), Pure(function)))


def sparse_to_indicator(sp_input: Any, vocab_size: Any, name: str | None = None) -> Tensor:
    """Which ids are there: booleans, whose last dimension is that of the ids."""
    sparse = as_sparse(sp_input)
    if not sparse.dtype.is_integer:
        raise TypeError("sp_ids.values must be an int32 or int64 Tensor")
    size = int(vocab_size)

    def dense(indices: Any, values: Any, dense_shape: Any) -> Any:
        shape = (*dense_shape[:-1].tolist(), size)
        places = np.concatenate([indices[:, :-1], values[:, np.newaxis]], axis=1)
        check_indices(places, shape, in_order=False)
        made = np.zeros(shape, np.bool_)
        made[tuple(places.T)] = True
        return made

    with OpBuilder("SparseToIndicator", name) as op:
        add_parts(op, sparse)
        known = sparse.shape.as_tuple()
        return op.output(dtypes.bool, None if known is None else (*known[:-1], size), Pure(dense))


def sparse_reorder(sp_input: Any, name: str | None = None) -> SparseTensor:
    """The same elements in row-major order."""

    def ordered(indices: Any, values: Any, dense_shape: Any) -> Any:
        check_counts(indices, values)
        order = np.lexsort(indices.T[::-1]) if len(indices) else np.arange(0)
        return indices[order], values[order], dense_shape

    sparse = as_sparse(sp_input)
    with OpBuilder("SparseReorder", name) as op:
        add_parts(op, sparse)
        count = sparse.values.shape[0].value if sparse.values.shape.ndims else None
        return sparse_output(op, sparse.dtype, sparse.shape.ndims, ordered, count)


def sparse_reshape(sp_input: Any, shape: Any, name: str | None = None) -> SparseTensor:
    """The same elements in row-major order in another shape."""

    def reshaped(indices: Any, values: Any, dense_shape: Any, shape: Any) -> Any:
        total = math.prod(dense_shape.tolist())
        sizes = [int(one) for one in shape]
        if -1 in sizes:
            place = sizes.index(-1)
            rest = math.prod(sizes[:place] + sizes[place + 1 :])
            sizes[place] = total // rest if rest else 0
        if math.prod(sizes) != total:
            raise invalid(
                f"Input to reshape is a tensor with {total} dense values, but the requested shape"
                f" has {math.prod(sizes)}. input_shape={shape_text(dense_shape.tolist())}"
                f" output_shape={shape_text(sizes)}"
            )
        # As in TensorFlow, indices may be out of bounds here.
        left = indices @ strides(dense_shape.tolist())
        places = np.empty((len(indices), len(sizes)), np.int64)
        for axis, stride in enumerate(strides(sizes)):
            places[:, axis], left = np.divmod(left, max(stride, 1))
        return places, values, np.array(sizes, np.int64)

    sparse = as_sparse(sp_input)
    with OpBuilder("SparseReshape", name) as op:
        add_parts(op, sparse)
        wanted = op.tensor(shape, "shape", dtypes.int64)
        known = _reshaped(sparse.shape, wanted)
        rank = wanted.shape.as_tuple()
        made = sparse_output(op, sparse.dtype, rank[0] if rank else None, reshaped)
        return made if known is None else made.note_shape(known)


def strides(sizes: Sequence[int]) -> NDArray[np.int64]:
    """How many elements each axis of a dense tensor steps over."""
    return np.array([math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))], np.int64)


def _reshaped(given: TensorShape, wanted: Tensor) -> TensorShape | None:
    """What is known of a new shape; None if it says nothing of sizes."""
    count, sizes = given.num_elements(), shape_value(wanted)
    if count is None or sizes is None:
        return None
    asked = constant_value(wanted)
    if asked is not None and np.count_nonzero(asked == -1) > 1:
        raise ValueError(f"At most one dimension can be inferred (-1). Found: {asked}")
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) - 1 or (0 in known and None in sizes):
        return TensorShape(sizes)
    left = count // math.prod(known) if None in sizes else None
    filled = [left if size is None else size for size in sizes]
    if (elements := TensorShape(filled).num_elements()) != count:
        raise ValueError(
            f"Cannot reshape a tensor with {count} elements to shape {list(sizes)} ({elements}"
            " elements)."
        )
    return TensorShape(filled)


@dataclass(slots=True, eq=False)
class SparseRow:
    """The value of a sparse tensor as one object, for queues; arrays do not take it apart."""

    value: SparseTensorValue


def pack_sparse(sparse: SparseTensor) -> Tensor:
    def kernel(step: Any, *parts: Any) -> Any:
        return SparseRow(SparseTensorValue(*parts))

    outputs = [(dtypes.variant, TensorShape([]))]
    return op("SerializeSparse", sparse.parts, outputs, kernel).outputs[0]


def pack_sparse_rows(sparse: SparseTensor) -> Tensor:
    def kernel(step: Any, indices: Any, values: Any, dense_shape: Any) -> Any:
        rows = np.empty(int(dense_shape[0]), dtype=object)
        for number in range(len(rows)):
            of_row = indices[:, 0] == number
            rows[number] = SparseRow(
                SparseTensorValue(indices[of_row, 1:], values[of_row], dense_shape[1:])
            )
        return rows

    count = sparse.shape[0] if sparse.shape.ndims else None
    outputs = [(dtypes.variant, TensorShape([count]))]
    return op("SerializeManySparse", sparse.parts, outputs, kernel).outputs[0]


def unpack_one(held: Tensor, dtype: DType, shape: TensorShape) -> SparseTensor:
    return _unpacked("DeserializeSparse", held, dtype, shape.ndims, lambda held: held.value)


def unpack_sparse(rows: Tensor, dtype: DType, rank: int | None) -> SparseTensor:
    def joined(held: Any) -> SparseTensorValue:
        return join_rows([row.value for row in held], dtype, rank)

    batch_rank = None if rank is None else rank + 1
    return _unpacked("DeserializeManySparse", rows, dtype, batch_rank, joined)


def _unpacked(
    op_type: str, held: Tensor, dtype: DType, rank: int | None, value_of: Callable[..., Any]
) -> SparseTensor:
    with OpBuilder(op_type, None) as op:
        op.inputs.append(held)
        outputs = sparse_outputs(dtype, rank)
        return SparseTensor(*op.outputs(outputs, lambda step, held: tuple(value_of(held))))


def joined_rows(rows: Sequence[SparseRow]) -> SparseRow:
    """One of several, of at least one: the number of the row comes first in its indices."""
    values = [row.value for row in rows]
    return SparseRow(join_rows(values, dtypes.as_dtype(np.asarray(values[0].values).dtype), None))


def join_rows(
    values: Sequence[SparseTensorValue], dtype: DType, rank: int | None
) -> SparseTensorValue:
    """One sparse value of several: the number of the row comes first in its indices."""
    shapes = [value.dense_shape for value in values]
    for number, shape in enumerate(shapes):
        if len(shape) != len(shapes[0]):
            raise invalid(
                f"Inconsistent rank across SparseTensors: rank prior to SparseTensor[{number}]"
                f" was: {len(shapes[0])} but rank of SparseTensor[{number}] is: {len(shape)}"
            )
    known = len(shapes[0]) if shapes else rank or 0
    counts = [len(value.indices) for value in values]
    numbers = np.repeat(np.arange(len(values), dtype=np.int64), counts)
    places = [np.zeros((0, known), np.int64), *(value.indices for value in values)]
    largest = np.max(shapes, axis=0) if shapes else np.zeros(known, np.int64)
    return SparseTensorValue(
        np.concatenate([numbers[:, None], np.concatenate(places)], axis=1),
        np.concatenate([np.empty(0, dtype.numpy), *(value.values for value in values)]),
        np.concatenate([[len(values)], largest]).astype(np.int64),
    )
