"""Functions for `Dataset.apply`: groups of elements, buckets by length, and short forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.bodies import trace
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import get_default_graph, op
from aioqueue.compat.v1.core.graph import Body, Tensor
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.datasets import nest
from aioqueue.compat.v1.datasets.dataset import Dataset
from aioqueue.compat.v1.datasets.elements import DatasetRun, InnerRun, Start
from aioqueue.compat.v1.datasets.stages import Flattened, Row, Rows, Windows
from aioqueue.compat.v1.ops.building import invalid
from aioqueue.compat.v1.ops.casting import cast
from aioqueue.compat.v1.ops.control import identity, placeholder

__all__ = (
    "batch_and_drop_remainder",
    "bucket_by_sequence_length",
    "group_by_window",
    "map_and_batch",
    "parallel_interleave",
    "shuffle_and_repeat",
    "unbatch",
)

Transformation = Callable[[Dataset], Dataset]
SCALAR = TensorShape([])
_ENDS = np.iinfo(np.int32)


class _Window:
    """The rows of a group as one value."""

    __slots__ = ("rows",)

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows


def group_by_window(
    key_func: Callable[..., Any],
    reduce_func: Callable[[Any, Dataset], Dataset],
    window_size: int | None = None,
    window_size_func: Callable[[Any], Any] | None = None,
) -> Transformation:
    """For `Dataset.apply`: groups of elements with one key, and what a function makes of each.

    Args:
        key_func: takes an element; returns its key, an int64 scalar.
        reduce_func: takes a key and the dataset of a group; returns a dataset.
        window_size: how many elements make a group; at the end, fewer do.
        window_size_func: takes a key; returns how many of that key do, an int64 scalar.

    Raises:
        ValueError: not exactly one of the last two is given.
    """
    if (window_size is None) == (window_size_func is None):
        raise ValueError("Must pass either `window_size` or `window_size_func`.")

    def size_of(key: Any) -> Any:
        return window_size if window_size_func is None else window_size_func(key)

    def apply(dataset: Dataset) -> Dataset:
        given, key_body, key = dataset._traced(key_func)
        _returns_number(key_body, key, "key_func")
        size_given, size_body, size = _traced_key(size_of)
        _returns_number(size_body, size, "window_size_func")
        (key_tensor, window), reduce_body, inner = _traced_window(dataset, reduce_func)

        def begin(run: DatasetRun) -> Start:
            start = dataset._begin(run)

            def key_of(row: Row) -> int:
                return int(run.call(key_body, given, row)[0])

            def size_for(key: int) -> int:
                return int(run.call(size_body, size_given, (np.int64(key),))[0])

            def make(group: Any) -> Rows:
                key, rows = group
                pair = (np.int64(key), _Window(rows))
                values = run.call(reduce_body, [key_tensor, window], pair)
                found = dict(zip(inner._sources, values, strict=True))
                return inner._begin(InnerRun(found, run))()

            return lambda: Flattened(Windows(start(), key_of, size_for), make)

        captures = [*key_body.captures, *size_body.captures, *reduce_body.captures]
        return Dataset(inner._spec, begin, [dataset], captures)

    return apply


def _returns_number(body: Body, result: Any, what: str) -> None:
    """Make a function's body give an int64 scalar.

    Raises:
        ValueError: the function returned something else.
    """
    with get_default_graph().building_in(body):
        found = convert_to_tensor(result, preferred_dtype=dtypes.int64)
        if not found.dtype.is_integer or found.shape.ndims not in (None, 0):
            raise ValueError(
                f"Invalid `{what}`. `{what}` must return a single `tf.int64` scalar tensor, but its"
                f" return type is {found.dtype.name} of shape {found.shape}."
            )
        body.outputs = [identity(cast(found, dtypes.int64))]


def _traced_key(function: Callable[[Any], Any]) -> tuple[list[Tensor], Body, Any]:
    given: list[Tensor] = []

    def call() -> Any:
        given.append(placeholder(dtypes.int64, [], name="key"))
        return function(given[0])

    body, result = trace(get_default_graph(), call)
    return given, body, result


def _traced_window(
    dataset: Dataset, reduce_func: Callable[[Any, Dataset], Dataset]
) -> tuple[tuple[Tensor, Tensor], Body, Dataset]:
    given: list[Tensor] = []

    def call() -> Any:
        key = placeholder(dtypes.int64, [], name="key")
        window = placeholder(dtypes.variant, [], name="window")
        given.extend((key, window))
        rows = Dataset(
            dataset._spec, lambda run: lambda: iter(run.values[window].rows), tensors=[window]
        )
        return reduce_func(key, rows)

    body, inner = trace(get_default_graph(), call)
    if not isinstance(inner, Dataset):
        raise TypeError("`reduce_func` must return a `Dataset` object.")
    with get_default_graph().building_in(body):
        body.outputs = [identity(one) for one in inner._sources]
    return (given[0], given[1]), body, inner


def bucket_by_sequence_length(
    element_length_func: Callable[..., Any],
    bucket_boundaries: Sequence[int],
    bucket_batch_sizes: Sequence[int],
    padded_shapes: Any = None,
    padding_values: Any = None,
    pad_to_bucket_boundary: bool = False,
    no_padding: bool = False,
    drop_remainder: bool = False,
) -> Transformation:
    """For `Dataset.apply`: batches of elements whose lengths are between the same two boundaries.

    Args:
        element_length_func: takes an element; returns its length, an int32 scalar.
        bucket_boundaries: increasing lengths; bucket k has those from boundary k-1, itself
            included, to boundary k.
        bucket_batch_sizes: the size of the batches of each bucket: one more than boundaries.
        padded_shapes: as for `Dataset.padded_batch`.
        padding_values: the same.
        pad_to_bucket_boundary: whether unknown sizes are filled up to just below the bucket's
            boundary; an element beyond the last one is refused.
        no_padding: whether elements have one shape and are not filled up.
        drop_remainder: as for `Dataset.batch`.

    Raises:
        ValueError: there is not one batch size more than boundaries.
    """
    if len(bucket_batch_sizes) != len(bucket_boundaries) + 1:
        raise ValueError("len(bucket_batch_sizes) must equal len(bucket_boundaries) + 1")
    edges = np.array(bucket_boundaries, np.int64)
    sizes = np.array(bucket_batch_sizes, np.int64)

    def bucket_of(*element: Any) -> Tensor:
        length = convert_to_tensor(element_length_func(*element))

        def kernel(step: Any, value: Any) -> Any:
            return np.int64(np.searchsorted(edges, np.ravel(value)[0], side="right"))

        return op("Bucketize", [length], [(dtypes.int64, SCALAR)], kernel).outputs[0]

    def size_of(bucket: Any) -> Tensor:
        def kernel(step: Any, number: Any) -> Any:
            return sizes[number]

        return op("Gather", [bucket], [(dtypes.int64, SCALAR)], kernel).outputs[0]

    def batches(bucket: Any, window: Dataset) -> Dataset:
        size = size_of(bucket)
        if no_padding:
            return window.batch(size, drop_remainder=drop_remainder)
        shapes = padded_shapes
        if pad_to_bucket_boundary:
            shapes = _up_to_boundary(window, padded_shapes, bucket, edges)
        return window.padded_batch(size, shapes, padding_values, drop_remainder)

    return group_by_window(bucket_of, batches, window_size_func=size_of)


def _up_to_boundary(window: Dataset, shapes: Any, bucket: Tensor, edges: Any) -> Any:
    """The shapes with the boundary of a bucket, less one, in the place of unknown sizes."""

    def target(shape: Any) -> Tensor:
        listed = [-1 if one is None else one for one in TensorShape(shape).as_list()]

        def kernel(step: Any, number: Any) -> Any:
            if number >= len(edges):
                raise invalid(
                    "When pad_to_bucket_boundary=True, elements must have length <"
                    " max(bucket_boundaries)."
                )
            return np.array([edges[number] - 1 if one < 0 else one for one in listed], np.int64)

        outputs = [(dtypes.int64, TensorShape([len(listed)]))]
        return op("Select", [bucket], outputs, kernel).outputs[0]

    given = window.output_shapes if shapes is None else shapes
    return nest.mapped(target, given) if not _is_shape(given) else target(given)


def _is_shape(value: Any) -> bool:
    return isinstance(value, TensorShape | list) or (
        isinstance(value, tuple) and all(isinstance(one, int | None) for one in value)
    )


# Short forms.


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: Any,
    num_parallel_batches: int | None = None,
    drop_remainder: bool = False,
    num_parallel_calls: int | None = None,
) -> Transformation:
    """For `Dataset.apply`: `Dataset.map`, then `Dataset.batch`."""
    del num_parallel_batches, num_parallel_calls
    return lambda dataset: dataset.map(map_func).batch(batch_size, drop_remainder)


def shuffle_and_repeat(
    buffer_size: Any, count: Any = None, seed: int | None = None
) -> Transformation:
    """For `Dataset.apply`: `Dataset.shuffle`, then `Dataset.repeat`."""
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def batch_and_drop_remainder(batch_size: Any) -> Transformation:
    """For `Dataset.apply`: `Dataset.batch` without a smaller last one."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def parallel_interleave(
    map_func: Callable[..., Dataset],
    cycle_length: int,
    block_length: int = 1,
    sloppy: bool = False,
    buffer_output_elements: int | None = None,
    prefetch_input_elements: int | None = None,
) -> Transformation:
    """For `Dataset.apply`: `Dataset.interleave`; nothing is made ahead."""
    del sloppy, buffer_output_elements, prefetch_input_elements
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length)


def unbatch() -> Transformation:
    """For `Dataset.apply`: the rows of each element, along its first axis, as elements."""
    return Dataset.unbatch
