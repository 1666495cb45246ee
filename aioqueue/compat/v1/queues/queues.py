"""The four queues: the ops that make them, and what these find or make in a session."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes as tf_dtypes
from aioqueue.compat.v1.core.default_graph import op
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.scopes import get_seed
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.queues.base import QueueBase
from aioqueue.compat.v1.queues.resources import QueuePlan, QueueResource, private_name
from aioqueue.compat.v1.queues.signature import (
    Signature,
    fixed_shapes,
    list_of_dtypes,
    list_of_names,
    padded_shapes,
)

__all__ = (
    "FIFOQueue",
    "PaddingFIFOQueue",
    "PriorityQueue",
    "QueueBase",
    "RandomShuffleQueue",
)

_SCALAR = TensorShape([])


class _QueueHandle:
    """The kernel of an op that makes a queue: finds it in the session, or makes it there."""

    def __init__(self, plan: QueuePlan, shared_name: str | None) -> None:
        self.plan = plan
        self.shared_name = shared_name
        self.op_name = plan.kind
        self.container = ""
        self._key = ("queue", self)

    def __call__(self, step: Any) -> QueueResource:
        """The queue."""
        if self.shared_name:
            found = step.resources.get_or_create(
                ("queue", self.shared_name), self._make_shared, container=self.container
            )
            return found.share(self.plan)  # type: ignore[no-any-return]
        # Even on a server, a queue without a shared name is the session's own.
        return step.own_resources.get_or_create(self._key, self._make_private)  # type: ignore[no-any-return]

    def _make_shared(self) -> QueueResource:
        assert self.shared_name
        return self.plan.build(self.shared_name)

    def _make_private(self) -> QueueResource:
        return self.plan.build(private_name(self.op_name))


class FIFOQueue(QueueBase):
    """First in, first out."""

    def __init__(
        self,
        capacity: int | None,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str | None = "fifo_queue",
    ) -> None:
        listed = list_of_dtypes(dtypes)
        signature = Signature(listed, fixed_shapes(shapes), list_of_names(names, listed))
        ref = _make("FIFOQueue", capacity, signature, shared_name, name)
        super().__init__(signature.dtypes, signature.shapes, signature.names, ref)


class RandomShuffleQueue(QueueBase):
    """Elements leave in random order, each drawn uniformly from what is inside.

    The same seeds and the same operations give the order that TensorFlow gave.
    """

    def __init__(
        self,
        capacity: int | None,
        min_after_dequeue: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        seed: int | None = None,
        shared_name: str | None = None,
        name: str | None = "random_shuffle_queue",
    ) -> None:
        listed = list_of_dtypes(dtypes)
        signature = Signature(listed, fixed_shapes(shapes), list_of_names(names, listed))
        ref = _make(
            "RandomShuffleQueue",
            capacity,
            signature,
            shared_name,
            name,
            min_after_dequeue=_whole("min_after_dequeue", min_after_dequeue),
            seeds=_queue_seeds(seed, shared_name),
        )
        super().__init__(signature.dtypes, signature.shapes, signature.names, ref)


class PaddingFIFOQueue(QueueBase):
    """First in, first out, for components whose sizes vary: batches are padded at the high end."""

    def __init__(
        self,
        capacity: int | None,
        dtypes: Any,
        shapes: Any,
        names: Any = None,
        shared_name: str | None = None,
        name: str | None = "padding_fifo_queue",
    ) -> None:
        listed = list_of_dtypes(dtypes)
        padded, listed_names = padded_shapes(shapes), list_of_names(names, listed)
        if len(padded) != len(listed):
            raise ValueError(
                "Shapes must be provided for all components,"
                f" but received {len(listed)} dtypes and {len(padded)} shapes."
            )
        signature = Signature(listed, padded, listed_names)
        ref = _make("PaddingFIFOQueue", capacity, signature, shared_name, name)
        super().__init__(signature.dtypes, signature.shapes, signature.names, ref)


class PriorityQueue(QueueBase):
    """The element with the smallest priority leaves first; equal ones leave as they came.

    Component 0 of every element is its priority, an int64 scalar that is not listed in `types`.
    """

    def __init__(
        self,
        capacity: int | None,
        types: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str | None = "priority_queue",
    ) -> None:
        listed = list_of_dtypes(types)
        payload = fixed_shapes(shapes)
        if payload is None:
            raise TypeError(
                "Expected list for 'shapes' argument to 'priority_queue_v2' Op, not None."
            )
        signature = Signature([tf_dtypes.int64, *listed], [_SCALAR, *payload], None)
        ref = _make("PriorityQueue", capacity, signature, shared_name, name)
        super().__init__(signature.dtypes, signature.shapes, names, ref)


def _whole(argument: str, value: Any) -> int:
    """A number of rows; as in TensorFlow, what is behind its point is left out."""
    if isinstance(value, int | float | np.integer | np.floating | np.bool_):
        return int(value)
    raise TypeError(f"Expected int for argument {argument!r} not {value!r}.")


def _make(
    kind: str,
    capacity: int | None,
    signature: Signature,
    shared_name: str | None,
    name: str | None,
    *,
    min_after_dequeue: int = 0,
    seeds: tuple[int, int] = (0, 0),
) -> Tensor:
    """Add the op that makes a queue; returns the tensor that stands for it."""
    plan = QueuePlan(
        kind=kind,
        capacity=-1 if capacity is None else _whole("capacity", capacity),
        types=signature.types,
        shapes=signature.shapes,
        min_after_dequeue=min_after_dequeue,
        seeds=seeds,
    )
    handle = _QueueHandle(plan, shared_name)
    attrs = {
        "capacity": plan.capacity,
        "component_types": plan.types,
        "shapes": plan.shapes or [],
        "shared_name": shared_name or "",
        "container": "",  # the graph says which
    }
    made = op(f"{kind}V2", [], [(tf_dtypes.resource, _SCALAR)], handle, name=name, attrs=attrs)
    handle.op_name, handle.container = made.name, made.attrs["container"]
    return made.outputs[0]


def _queue_seeds(seed: int | None, shared_name: str | None) -> tuple[int, int]:
    graph_seed, op_seed = get_seed(seed)
    if graph_seed is None or op_seed is None:
        return 0, 0
    if seed is None and shared_name is not None:
        # Another op of that name, in another place of the graph, must have the same seeds.
        digest = hashlib.md5(f"{graph_seed}{shared_name}".encode(), usedforsecurity=False)
        op_seed = int(digest.hexdigest()[:8], 16) & 0x7FFFFFFF
    return graph_seed, op_seed
