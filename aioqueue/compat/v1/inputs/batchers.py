"""`tf.train`'s batchers: a queue of examples, a runner that fills it, and batches out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from aioqueue.compat.v1.coordination.runners import QueueRunner, add_queue_runner
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape
from aioqueue.compat.v1.inputs.fullness import summarize_fullness
from aioqueue.compat.v1.ops.control import cond, group, no_op
from aioqueue.compat.v1.ops.indexing import boolean_mask
from aioqueue.compat.v1.ops.sparse import (
    SparseTensor,
    convert_to_tensor_or_sparse_tensor,
    pack_sparse,
    pack_sparse_rows,
    unpack_sparse,
)
from aioqueue.compat.v1.ops.static import constant_value
from aioqueue.compat.v1.queues.base import QueueBase
from aioqueue.compat.v1.queues.queues import FIFOQueue, PaddingFIFOQueue, RandomShuffleQueue

__all__ = (
    "Components",
    "as_original_type",
    "batch",
    "batch_join",
    "checked_keep_input",
    "common_dtypes",
    "common_shapes",
    "fifo_class",
    "if_kept",
    "in_order",
    "maybe_batch",
    "maybe_batch_join",
    "maybe_shuffle_batch",
    "maybe_shuffle_batch_join",
    "shuffle_batch",
    "shuffle_batch_join",
)

Tensors = Sequence[Any] | Mapping[Any, Any]
"""The tensors of an example: a list of them, or a dict."""

_AT_LEAST_ONE: Final = "Expected at least one tensor in batch()."


def batch(
    tensors: Tensors,
    batch_size: Any,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Sequence[Any] | None = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of examples, in order.

    Args:
        tensors: one example: a list or a dict of tensors.
        batch_size: how many examples a batch has.
        num_threads: how many threads make examples; with more than one the order is theirs.
        capacity: of the queue.
        enqueue_many: whether `tensors` holds many examples, one per row.
        shapes: of an example's tensors, where they are not known.
        dynamic_pad: whether examples of different sizes are padded within a batch.
        allow_smaller_final_batch: whether the last examples make a smaller batch; else they are
            never returned.
        shared_name: of the queue.
        name: of the operations.

    Returns:
        A tensor for a list of one, a list for several, a dict for a dict.

    Raises:
        ValueError: there are no tensors, or a shape is not known.
    """
    return maybe_batch(
        tensors,
        True,
        batch_size,
        num_threads,
        capacity,
        enqueue_many,
        shapes,
        dynamic_pad,
        allow_smaller_final_batch,
        shared_name,
        name,
    )


def maybe_batch(
    tensors: Tensors,
    keep_input: Any,
    batch_size: Any,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Sequence[Any] | None = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Like `batch`, of those examples for which ``keep_input`` is true.

    Args:
        tensors: as for `batch`, and so is what is not listed here.
        keep_input: a bool tensor; with ``enqueue_many`` it may have one element per row.

    Raises:
        ValueError: there are no tensors, a shape is not known, or ``keep_input`` has another rank.
    """
    listed = in_order(tensors)
    with name_scope(name, "batch", [*listed, keep_input]) as scope:
        batcher = _Batcher([listed], keep_input, enqueue_many, shapes)
        queue = fifo_class(dynamic_pad)(
            capacity=capacity,
            dtypes=batcher.components.dtypes,
            shapes=batcher.shapes,
            shared_name=shared_name,
        )
        batcher.fill(queue, num_threads)
        summarize_fullness(queue, capacity)
        return batcher.batches(queue, batch_size, allow_smaller_final_batch, scope, tensors)


def batch_join(
    tensors_list: Sequence[Tensors],
    batch_size: Any,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Sequence[Any] | None = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of examples from several sources, with one thread for each.

    Args:
        tensors_list: one list or dict of tensors per thread; the rest is as for `batch`.

    Raises:
        ValueError: there are no tensors, or their shapes are not known or do not fit each other.
        TypeError: the dtypes differ.
    """
    return maybe_batch_join(
        tensors_list,
        True,
        batch_size,
        capacity,
        enqueue_many,
        shapes,
        dynamic_pad,
        allow_smaller_final_batch,
        shared_name,
        name,
    )


def maybe_batch_join(
    tensors_list: Sequence[Tensors],
    keep_input: Any,
    batch_size: Any,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Sequence[Any] | None = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Like `batch_join`, of those examples for which ``keep_input``, see `maybe_batch`, is true.

    Raises:
        ValueError: as for `batch_join` and `maybe_batch`.
        TypeError: the dtypes differ.
    """
    listed = _all_in_order(tensors_list)
    flat = [tensor for tensors in listed for tensor in tensors]
    with name_scope(name, "batch_join", [*flat, keep_input]) as scope:
        batcher = _Batcher(listed, keep_input, enqueue_many, shapes)
        queue = fifo_class(dynamic_pad)(
            capacity=capacity,
            dtypes=batcher.components.dtypes,
            shapes=batcher.shapes,
            shared_name=shared_name,
        )
        batcher.fill(queue)
        summarize_fullness(queue, capacity)
        return batcher.batches(queue, batch_size, allow_smaller_final_batch, scope, tensors_list[0])


def shuffle_batch(
    tensors: Tensors,
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Sequence[Any] | None = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of examples in random order.

    Args:
        tensors: as for `batch`, and so is what is not listed here.
        min_after_dequeue: how many examples stay in the queue, to draw from, until the input ends.
        num_threads: how many threads make examples; with more than one no seed settles the order.
        seed: of the shuffle.

    Raises:
        ValueError: there are no tensors, a shape is not known, or the capacity is too small.
    """
    return maybe_shuffle_batch(
        tensors,
        batch_size,
        capacity,
        min_after_dequeue,
        True,
        num_threads,
        seed,
        enqueue_many,
        shapes,
        allow_smaller_final_batch,
        shared_name,
        name,
    )


def maybe_shuffle_batch(
    tensors: Tensors,
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    keep_input: Any,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Sequence[Any] | None = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Like `shuffle_batch`, of those examples for which ``keep_input`` is true; see `maybe_batch`.

    Raises:
        ValueError: as for `shuffle_batch` and `maybe_batch`.
    """
    listed = in_order(tensors)
    with name_scope(name, "shuffle_batch", [*listed, keep_input]) as scope:
        if capacity <= min_after_dequeue:
            raise ValueError(
                f"capacity {capacity} must be bigger than min_after_dequeue {min_after_dequeue}."
            )
        batcher = _Batcher([listed], keep_input, enqueue_many, shapes)
        queue = batcher.shuffle_queue(capacity, min_after_dequeue, seed, shared_name)
        batcher.fill(queue, num_threads)
        summarize_fullness(queue, capacity, min_after_dequeue)
        return batcher.batches(queue, batch_size, allow_smaller_final_batch, scope, tensors)


def shuffle_batch_join(
    tensors_list: Sequence[Tensors],
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Sequence[Any] | None = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches in random order of examples from several sources, with one thread for each.

    The arguments are those of `batch_join` and `shuffle_batch`.

    Raises:
        ValueError: as for `batch_join`.
        TypeError: the dtypes differ.
    """
    return maybe_shuffle_batch_join(
        tensors_list,
        batch_size,
        capacity,
        min_after_dequeue,
        True,
        seed,
        enqueue_many,
        shapes,
        allow_smaller_final_batch,
        shared_name,
        name,
    )


def maybe_shuffle_batch_join(
    tensors_list: Sequence[Tensors],
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    keep_input: Any,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Sequence[Any] | None = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Like `shuffle_batch_join`, of those examples for which ``keep_input`` is true.

    Raises:
        ValueError: as for `batch_join` and `maybe_batch`.
        TypeError: the dtypes differ.
    """
    listed = _all_in_order(tensors_list)
    flat = [tensor for tensors in listed for tensor in tensors]
    with name_scope(name, "shuffle_batch_join", [*flat, keep_input]) as scope:
        batcher = _Batcher(listed, keep_input, enqueue_many, shapes)
        queue = batcher.shuffle_queue(capacity, min_after_dequeue, seed, shared_name)
        batcher.fill(queue)
        summarize_fullness(queue, capacity, min_after_dequeue)
        return batcher.batches(queue, batch_size, allow_smaller_final_batch, scope, tensors_list[0])


class Components:
    """The tensors of examples as a queue holds them: sparse ones as scalars or vectors.

    Args:
        sources: the tensors of each source of examples.
        enqueue_many: whether they hold many examples, one per row.

    Raises:
        TypeError: the dtypes of the sources differ.
    """

    def __init__(self, sources: Sequence[Sequence[Any]], *, enqueue_many: bool) -> None:
        given = [[convert_to_tensor_or_sparse_tensor(one) for one in source] for source in sources]
        common_dtypes([[one.dtype for one in source] for source in given])
        store = pack_sparse_rows if enqueue_many else pack_sparse
        self.sources: list[list[Tensor]] = [
            [store(one) if isinstance(one, SparseTensor) else one for one in source]
            for source in given
        ]
        self.dtypes: list[Any] = common_dtypes(
            [[one.dtype for one in source] for source in self.sources]
        )
        # Of each sparse component, its dtype and its rank in an example.
        self._sparse: list[tuple[dtypes.DType, int | None] | None] = []
        for component in zip(*given, strict=True):
            first = component[0]
            if not isinstance(first, SparseTensor):
                self._sparse.append(None)
                continue
            ranks = {one.shape.ndims for one in component}
            rank = ranks.pop() if len(ranks) == 1 else None
            rows = 1 if enqueue_many else 0
            self._sparse.append((first.dtype, None if rank is None else rank - rows))

    def restored(self, tensors: Any) -> Any:
        """A batch's tensors, with sparse ones where there were some; the only one is bare."""
        listed = tensors if isinstance(tensors, list) else [tensors]
        restored: list[Any] = [
            one if sparse is None else unpack_sparse(one, *sparse)
            for one, sparse in zip(listed, self._sparse, strict=True)
        ]
        return restored[0] if len(restored) == 1 else restored


class _Batcher:
    """What all batchers have in common.

    Args:
        sources: the tensors of each source of examples, in order.
        keep_input: whether an example is wanted.
        enqueue_many: whether they hold many examples.
        shapes: of an example's tensors, or ``None`` for what is known of them.
    """

    def __init__(
        self,
        sources: Sequence[Sequence[Any]],
        keep_input: Any,
        enqueue_many: bool,
        shapes: Sequence[Any] | None,
    ) -> None:
        if not all(sources):
            raise ValueError(_AT_LEAST_ONE)
        self._enqueue_many = enqueue_many
        self._keep = checked_keep_input(keep_input, enqueue_many)
        self.components = Components(sources, enqueue_many=enqueue_many)
        self.shapes = common_shapes(self.components.sources, shapes, enqueue_many)

    def shuffle_queue(
        self, capacity: int, min_after_dequeue: int, seed: int | None, shared_name: str | None
    ) -> RandomShuffleQueue:
        """The queue of the shuffling ones."""
        return RandomShuffleQueue(
            capacity=capacity,
            min_after_dequeue=min_after_dequeue,
            seed=seed,
            dtypes=self.components.dtypes,
            shapes=self.shapes,
            shared_name=shared_name,
        )

    def fill(self, queue: QueueBase, num_threads: int = 1) -> None:
        """Add a runner that fills the queue: so many threads for each source."""
        put = queue.enqueue_many if self._enqueue_many else queue.enqueue
        enqueues: list[Any] = []
        for source in self.components.sources:
            if self._keep.shape.ndims == 1:
                made = put([boolean_mask(one, self._keep) for one in source])
            else:
                made = if_kept(self._keep, partial(put, source), source)
            enqueues += [made] * num_threads
        add_queue_runner(QueueRunner(queue, enqueues))

    def batches(
        self, queue: QueueBase, batch_size: Any, may_be_smaller: bool, name: str, like: Tensors
    ) -> Any:
        """The tensors of a batch, in the form in which examples were given."""
        take = queue.dequeue_up_to if may_be_smaller else queue.dequeue_many
        return as_original_type(like, self.components.restored(take(batch_size, name=name)))


def in_order(tensors: Tensors) -> list[Any]:
    """The tensors of an example as a list; those of a dict in the order of its keys.

    Raises:
        TypeError: it is a bare tensor.
    """
    if isinstance(tensors, Mapping):
        return [tensors[key] for key in sorted(tensors, key=str)]
    if not isinstance(tensors, Sequence) or isinstance(tensors, str | bytes):
        raise TypeError(f"tensors: got {tensors!r}; expected a list or a dict of tensors")
    return list(tensors)


def _all_in_order(tensors_list: Sequence[Tensors]) -> list[list[Any]]:
    if not isinstance(tensors_list, Sequence) or not tensors_list:
        raise ValueError("Expected at least one set of tensors")
    first = tensors_list[0]
    if isinstance(first, Mapping):
        for other in tensors_list:
            if not isinstance(other, Mapping) or set(other) != set(first):
                raise ValueError("All dictionaries in tensors_list must have the same keys")
    return [in_order(tensors) for tensors in tensors_list]


def as_original_type(tensors: Tensors, batch: Any) -> Any:
    """A batch's tensors as a dict, if the example's were one; else as they are."""
    if not isinstance(tensors, Mapping):
        return batch
    keys = sorted(tensors, key=str)
    return {keys[0]: batch} if len(keys) == 1 else dict(zip(keys, batch, strict=True))


def checked_keep_input(keep_input: Any, enqueue_many: bool) -> Tensor:
    """``keep_input`` as a tensor of rank 0, or of rank 1 with ``enqueue_many``.

    Raises:
        ValueError: it has another rank, or that is not known.
    """
    keep = convert_to_tensor(keep_input, dtypes.bool)
    rank = keep.shape.ndims
    if rank is None:
        raise ValueError("`keep_input` dimensions must be known at graph construction.")
    if not enqueue_many and rank == 1:
        raise ValueError("`keep_input` cannot be a vector when `enqueue_many=False`.")
    if rank > 1:
        raise ValueError("`keep_input` must be 0 or 1 dimensions.")
    return keep


def common_dtypes(of_sources: Sequence[Sequence[Any]]) -> list[Any]:
    """The dtypes that all sources have.

    Raises:
        TypeError: they differ.
    """
    first = list(of_sources[0])
    for other in of_sources[1:]:
        if list(other) != first:
            ours, theirs = (", ".join(one.name for one in types) for types in (first, other))
            raise TypeError(f"Expected types to be consistent: {ours} vs. {theirs}.")
    return first


def common_shapes(
    sources: Sequence[Sequence[Tensor]], shapes: Sequence[Any] | None, enqueue_many: bool
) -> list[TensorShape]:
    """The shapes of an example's tensors: those given, or what is known of the first source's.

    Raises:
        ValueError: a rank is not known, or the sources' shapes do not fit each other.
    """
    if shapes is not None:
        return [as_shape(shape) for shape in shapes]
    known: list[TensorShape] = []
    for component in zip(*sources, strict=True):
        for tensor in component:
            if tensor.shape.ndims is None:
                raise ValueError(f"Cannot infer Tensor's rank: {tensor}")
        of_component = [tensor.shape for tensor in component]
        if enqueue_many:
            of_component = [shape.with_rank_at_least(1)[1:] for shape in of_component]
        for other in of_component[1:]:
            of_component[0].merge_with(other)  # only whether they fit: the first one counts
        known.append(of_component[0])
    return known


def fifo_class(dynamic_pad: bool) -> Callable[..., QueueBase]:
    """The class of a queue that keeps the order."""
    return PaddingFIFOQueue if dynamic_pad else FIFOQueue


def if_kept(keep: Tensor, enqueue: Callable[[], Operation], example: Sequence[Tensor]) -> Any:
    """What ``enqueue()`` makes, to be run only if ``keep`` is true; the example is made anyway.

    If it is never true, the input ends all the same. (TensorFlow did not look at it, for ever.)
    """
    always = constant_value(keep)
    if always is not None:
        return enqueue() if always else group(*example)
    return cond(keep, enqueue, no_op)
