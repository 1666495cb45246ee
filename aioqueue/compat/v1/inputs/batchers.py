"""`tf.train`'s batchers: a queue of examples, a runner that fills it, and batches out of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from aioqueue.compat.v1.coordination.runners import QueueRunner, add_queue_runner
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Operation, Tensor, named
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape
from aioqueue.compat.v1.ops.casting import cast
from aioqueue.compat.v1.ops.control import cond, group, no_op
from aioqueue.compat.v1.ops.indexing import boolean_mask
from aioqueue.compat.v1.ops.math import maximum
from aioqueue.compat.v1.ops.sparse import (
    SparseTensor,
    convert_to_tensor_or_sparse_tensor,
    pack_sparse,
    pack_sparse_rows,
    unpack_sparse,
)
from aioqueue.compat.v1.ops.static import constant_value
from aioqueue.compat.v1.queues.queues import (
    FIFOQueue,
    PaddingFIFOQueue,
    QueueBase,
    RandomShuffleQueue,
)
from aioqueue.compat.v1.summaries.ops import scalar

__all__ = (
    "batch", "batch_join", "maybe_batch", "maybe_batch_join", "maybe_shuffle_batch",
    "maybe_shuffle_batch_join", "shuffle_batch", "shuffle_batch_join",
)  # fmt: skip

Tensors = Sequence[Any] | Mapping[Any, Any]  # the tensors of an example: a list of them, or a dict


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
    """Batches of examples, in order."""
    return _batches("batch", **locals())


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
    """Batches of examples from several sources, with one thread for each."""
    return _batches("batch_join", **locals())


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
    """Batches of examples in random order."""
    return _batches("shuffle_batch", **locals())


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
    """Batches in random order of examples from several sources, with one thread for each."""
    return _batches("shuffle_batch_join", **locals())


_Batcher = Callable[..., Any]


def _maybe(batcher: _Batcher, place: int) -> _Batcher:
    """A batcher with ``keep_input`` in one more place."""
    name = batcher.__name__
    keep = inspect.Parameter("keep_input", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Any)
    parameters = [*inspect.signature(batcher).parameters.values()]
    signature = inspect.Signature([*parameters[:place], keep, *parameters[place:]])

    def maybe(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return _batches(name, **given.arguments)

    maybe.__signature__ = signature  # type: ignore[attr-defined]
    doc = f"Like `{name}`, of those examples for which ``keep_input`` is true."
    return named(maybe, f"maybe_{name}", doc)


maybe_batch: _Batcher = _maybe(batch, 1)
maybe_batch_join: _Batcher = _maybe(batch_join, 1)
maybe_shuffle_batch: _Batcher = _maybe(shuffle_batch, 4)
maybe_shuffle_batch_join: _Batcher = _maybe(shuffle_batch_join, 4)


def _batches(
    scope_name: str,
    *,
    batch_size: Any,
    capacity: int,
    enqueue_many: bool,
    shapes: Sequence[Any] | None,
    allow_smaller_final_batch: bool,
    shared_name: str | None,
    name: str | None,
    tensors: Tensors = (),
    tensors_list: Sequence[Tensors] | None = None,
    keep_input: Any = True,
    num_threads: int = 1,
    dynamic_pad: bool = False,
    min_after_dequeue: int | None = None,
    seed: int | None = None,
) -> Any:
    """The tensors of a batch, and a runner that fills their queue: threads for each source."""
    listed: Any = tensors_list if scope_name.endswith("_join") else [tensors]
    sources = _all_in_order(listed)
    flat = [tensor for tensors in sources for tensor in tensors]
    with name_scope(name, scope_name, [*flat, keep_input]) as scope:
        if scope_name == "shuffle_batch" and capacity <= (min_after_dequeue or 0):
            raise ValueError(
                f"capacity {capacity} must be bigger than min_after_dequeue {min_after_dequeue}."
            )
        if not all(sources):
            raise ValueError("Expected at least one tensor in batch().")
        keep = checked_keep_input(keep_input, enqueue_many)
        components = Components(sources, enqueue_many=enqueue_many)
        known_shapes = common_shapes(components.sources, shapes, enqueue_many)
        queue: QueueBase
        if min_after_dequeue is None:
            queue = fifo_class(dynamic_pad)(
                capacity, components.dtypes, known_shapes, shared_name=shared_name
            )
        else:
            kind = components.dtypes, known_shapes, None, seed, shared_name
            queue = RandomShuffleQueue(capacity, min_after_dequeue, *kind)
        put = queue.enqueue_many if enqueue_many else queue.enqueue
        enqueues: list[Any] = []
        for source in components.sources:
            if keep.shape.ndims == 1:
                made = put([boolean_mask(one, keep) for one in source])
            else:
                made = if_kept(keep, partial(put, source), source)
            enqueues += [made] * num_threads
        add_queue_runner(QueueRunner(queue, enqueues))
        summarize_fullness(queue, capacity, min_after_dequeue)
        take = queue.dequeue_up_to if allow_smaller_final_batch else queue.dequeue_many
        return as_original_type(listed[0], components.restored(take(batch_size, name=scope)))


def summarize_fullness(
    queue: QueueBase, capacity: int, min_after_dequeue: int | None = None, *, tag: str = ""
) -> None:
    """Add a summary of how full a queue is, from 0 to 1: TensorFlow adds one for each queue."""
    if min_after_dequeue is None:
        tag, size, room = tag or f"fraction_of_{capacity}_full", queue.size(), capacity
    else:
        room = capacity - min_after_dequeue
        tag = tag or f"fraction_over_{min_after_dequeue}_of_{room}_full"
        size = maximum(0, queue.size() - min_after_dequeue)
    scalar(tag, cast(size, dtypes.float32) * (1.0 / room if room else 0.0))


class Components:
    """The tensors of examples as a queue holds them: sparse ones as scalars or vectors."""

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


def in_order(tensors: Tensors) -> list[Any]:
    """The tensors of an example as a list; those of a dict in the order of its keys."""
    if isinstance(tensors, Mapping):
        return [tensors[key] for key in sorted(tensors, key=str)]
    if not isinstance(tensors, Sequence) or isinstance(tensors, str | bytes):
        raise TypeError(f"tensors: got {tensors!r}; expected a list or a dict of tensors")
    return list(tensors)


def _all_in_order(tensors_list: Any) -> list[list[Any]]:
    if not isinstance(tensors_list, Sequence) or not tensors_list:
        raise ValueError("Expected at least one set of tensors")
    first = tensors_list[0]
    if isinstance(first, Mapping):
        for other in tensors_list:
            if not isinstance(other, Mapping) or set(other) != set(first):
                raise ValueError("All dictionaries in tensors_list must have the same keys")
    listed = [in_order(tensors) for tensors in tensors_list]
    count = len(listed[0])
    for other in listed:
        if len(other) < count:
            raise ValueError(f"Inconsistent SparseTensors list: {listed[0]} vs. {other}")
    return [source[:count] for source in listed]  # as in TensorFlow, surplus tensors are dropped


def as_original_type(tensors: Tensors, batch: Any) -> Any:
    if not isinstance(tensors, Mapping):
        return batch
    keys = sorted(tensors, key=str)
    return {keys[0]: batch} if len(keys) == 1 else dict(zip(keys, batch, strict=True))


def checked_keep_input(keep_input: Any, enqueue_many: bool) -> Tensor:
    """``keep_input`` as a tensor of rank 0, or of rank 1 with ``enqueue_many``."""
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
    first = list(of_sources[0])
    for other in of_sources[1:]:
        if list(other) != first:
            ours, theirs = (", ".join(one.name for one in types) for types in (first, other))
            raise TypeError(f"Expected types to be consistent: {ours} vs. {theirs}.")
    return first


def common_shapes(
    sources: Sequence[Sequence[Tensor]], shapes: Sequence[Any] | None, enqueue_many: bool
) -> list[TensorShape]:
    """The shapes of an example's tensors: those given, or what is known of the first source's."""
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
    return PaddingFIFOQueue if dynamic_pad else FIFOQueue


def if_kept(keep: Tensor, enqueue: Callable[[], Operation], example: Sequence[Tensor]) -> Any:
    """What ``enqueue()`` makes, if ``keep``; if that is never true, the input ends all the same."""
    always = constant_value(keep)
    if always is not None:
        return enqueue() if always else group(*example)
    return cond(keep, enqueue, no_op)
