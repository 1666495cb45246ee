"""`tf.contrib.training`'s buckets: batches of examples that are alike, in length for instance.

Each bucket has a queue, and one more holds the batches. One runner fills the buckets, another takes
batches out; at the end of the input, the last thread of each closes what it fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.coordination.runners import QueueRunner, add_queue_runner
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import constant, convert_to_tensor
from aioqueue.compat.v1.core.default_graph import op
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.inputs import batchers
from aioqueue.compat.v1.ops.control import group
from aioqueue.compat.v1.ops.static import constant_value
from aioqueue.compat.v1.queues.queues import PaddingFIFOQueue, QueueBase

_CLOSED: Final = (errors.OutOfRangeError, errors.CancelledError)


def bucket(
    tensors: Any,
    which_bucket: Any,
    batch_size: Any,
    num_buckets: int,
    num_threads: int = 1,
    capacity: int = 32,
    bucket_capacities: Sequence[int] | None = None,
    shapes: Sequence[Any] | None = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    keep_input: Any = True,
    shared_name: str | None = None,
    name: str | None = None,
) -> tuple[Tensor, Any]:
    """Batches of examples of one bucket each."""
    sizes = list(batch_size) if isinstance(batch_size, list | tuple) else None
    if sizes is not None and len(sizes) != num_buckets:
        raise ValueError("If batch_size is a list it must have num_buckets elements")
    capacities = [capacity] * num_buckets if bucket_capacities is None else list(bucket_capacities)
    if len(capacities) != num_buckets:
        raise ValueError(
            f"The list bucket_capacities ({capacities}) must have exactly num_buckets"
            f" ({num_buckets}) elements."
        )
    listed = batchers.in_order(tensors)
    with name_scope(name, "bucket", listed):
        if not listed:
            raise ValueError("Expected at least one tensor in bucket().")
        keep = batchers.checked_keep_input(keep_input, False)
        components = batchers.Components([listed], enqueue_many=False)
        types = components.dtypes
        which = convert_to_tensor(which_bucket, dtypes.int32, name="which_bucket")
        example_shapes = batchers.common_shapes(components.sources, shapes, False)
        buckets = [
            batchers.fifo_class(dynamic_pad)(
                capacity=bucket_capacity,
                dtypes=types,
                shapes=example_shapes,
                shared_name=None if shared_name is None else f"{shared_name}_{number}",
                name=f"bucket_queue_{number}",
            )
            for number, bucket_capacity in enumerate(capacities)
        ]
        rows = None
        if sizes is None:
            size = convert_to_tensor(batch_size, dtypes.int32, name="batch_size")
            sizes = [size] * num_buckets
            known = constant_value(size)
            if known is not None and not allow_smaller_final_batch:
                rows = int(known.item())
        # Sizes that differ make a shape that is not fully known, which only this one takes.
        batches = PaddingFIFOQueue(
            capacity=capacity,
            dtypes=[dtypes.int32, *types],
            shapes=[[], *(TensorShape([rows]).concatenate(one) for one in buckets[0].shapes)],
            shared_name=shared_name,
            name="top_queue",
        )
        source = components.sources[0]
        put = batchers.if_kept(keep, lambda: _enqueue_to(buckets, which, source), source)
        takes = [
            _batch_from(queue, size, batches, number, allow_smaller_final_batch)
            for number, (queue, size) in enumerate(zip(buckets, sizes, strict=True))
        ]
        add_queue_runner(
            QueueRunner(
                buckets[0],
                takes,
                close_op=batches.close(),
                cancel_op=batches.close(cancel_pending_enqueues=True),
                queue_closed_exception_types=_CLOSED,
            )
        )
        add_queue_runner(
            QueueRunner(
                batches,
                [put] * num_threads,
                close_op=group(*(queue.close() for queue in buckets)),
                cancel_op=group(*(queue.close(cancel_pending_enqueues=True) for queue in buckets)),
                queue_closed_exception_types=_CLOSED,
            )
        )
        number, *batch = batches.dequeue(name="dequeue_top")
        return number, batchers.as_original_type(tensors, components.restored(batch))


def bucket_by_sequence_length(
    input_length: Any,
    tensors: Any,
    batch_size: Any,
    bucket_boundaries: Sequence[int],
    num_threads: int = 1,
    capacity: int = 32,
    bucket_capacities: Sequence[int] | None = None,
    shapes: Sequence[Any] | None = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    keep_input: Any = True,
    shared_name: str | None = None,
    name: str | None = None,
) -> tuple[Tensor, Any]:
    """Batches of examples whose lengths are between the same two boundaries."""
    options = locals()
    for name_of_ours in ("input_length", "tensors", "bucket_boundaries", "name"):
        del options[name_of_ours]
    _check_boundaries(bucket_boundaries)
    listed = batchers.in_order(tensors)
    with name_scope(name, "bucket_by_sequence_length", [input_length, *listed]):
        length = convert_to_tensor(input_length, dtypes.int32, name="input_length")
        options["shapes"] = None if shapes is None else [[], *shapes]
        which, count = _bucket_of(length, bucket_boundaries), len(bucket_boundaries) + 1
        _, (lengths, *batch) = bucket([length, *listed], which, num_buckets=count, **options)
        return lengths, batchers.as_original_type(tensors, batch)


def _check_boundaries(boundaries: Any) -> None:
    if not isinstance(boundaries, list | tuple):
        raise TypeError(f"bucket_boundaries must be a list or tuple, but received: {boundaries}")
    if not boundaries:
        raise ValueError("bucket_boundaries must not be empty")
    for one, two in pairwise(boundaries):
        if not isinstance(one, int) or not isinstance(two, int):
            raise TypeError(f"bucket boundaries must be integers, but saw: {one} and {two}")
        if one >= two:
            raise ValueError(
                f"Buckets must contain sequential increasing lengths, but saw: {one} before {two}"
            )


def _bucket_of(length: Tensor, boundaries: Sequence[int]) -> Tensor:
    edges = np.array(boundaries, np.int64)

    def kernel(step: Any, value: Any) -> Any:
        return np.int32(np.searchsorted(edges, np.ravel(value)[0], side="right"))

    return op("Bucketize", [length], [(dtypes.int32, TensorShape([]))], kernel).outputs[0]


def _enqueue_to(buckets: Sequence[QueueBase], which: Tensor, example: list[Tensor]) -> Operation:
    """An op that puts an example into the bucket of a number, if there is one."""
    for tensor, shape in zip(example, buckets[0].shapes, strict=True):
        tensor.shape.assert_is_compatible_with(shape)
    count, single = len(buckets), len(example) == 1

    def put(number: Any, rest: Sequence[Any], how: str) -> Any:
        if 0 <= number < count:
            values = rest[count:]
            return getattr(rest[number], how)(values[0] if single else values)
        return None

    refs = [queue.queue_ref for queue in buckets]
    return op(
        "QueueEnqueueV2",
        [which, *refs, *example],
        [],
        lambda step, number, *rest: put(number, rest, "enqueue"),
        name="group_enqueues",
        waits=True,
        attrs={"try_now": lambda step, number, *rest: put(number, rest, "try_enqueue")},
    )


def _batch_from(
    queue: QueueBase, size: Any, batches: QueueBase, number: int, may_be_smaller: bool
) -> Operation:
    """An op that takes a batch out of a bucket and puts it into the queue of batches."""
    take = queue.dequeue_up_to if may_be_smaller else queue.dequeue_many
    batch = take(size, name=f"read_bucket_{number}")
    columns = batch if isinstance(batch, list) else [batch]
    return batches.enqueue(
        [constant(number, dtypes.int32), *columns], name=f"enqueue_from_bucket_{number}"
    )
