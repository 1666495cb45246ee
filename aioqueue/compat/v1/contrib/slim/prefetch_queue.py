"""``slim.prefetch_queue``: a queue of batches that are made ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.coordination.runners import QueueRunner, add_queue_runner
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.inputs.batchers import fifo_class, summarize_fullness
from aioqueue.compat.v1.queues.queues import QueueBase

__all__ = ("prefetch_queue",)


def prefetch_queue(
    tensors: Sequence[Any] | Mapping[str, Any],
    capacity: int = 8,
    num_threads: int = 1,
    dynamic_pad: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> QueueBase:
    """A queue of the values of some tensors, and a runner that fills it.

    Args:
        tensors: a list or a dict of them; of a dict, elements are dicts.
        capacity: of the queue.
        num_threads: how many threads fill it.
        dynamic_pad: whether sizes may be unknown.
        shared_name: of the queue.
        name: of the ops.
    """
    keys = sorted(tensors) if isinstance(tensors, Mapping) else None
    listed = [tensors[key] for key in keys] if isinstance(tensors, Mapping) and keys else tensors
    with name_scope(name, "prefetch_queue", list(listed)):
        found = [convert_to_tensor(one) for one in listed]
        queue = fifo_class(dynamic_pad)(
            capacity=capacity,
            dtypes=[one.dtype for one in found],
            shapes=[one.shape for one in found],
            names=keys,
            shared_name=shared_name,
        )
        example = dict(zip(keys, found, strict=True)) if keys else found
        add_queue_runner(QueueRunner(queue, [queue.enqueue(example)] * num_threads))
        summarize_fullness(queue, capacity)
        return queue


__getattr__ = names_of(__name__)
