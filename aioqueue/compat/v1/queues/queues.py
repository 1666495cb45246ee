"""The four queues: the ops that make them, and what these find or make in a session."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes as tf_dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import op
from aioqueue.compat.v1.core.dtypes import DType, as_dtype
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.scopes import get_seed, name_scope
from aioqueue.compat.v1.core.shapes import Dimension, TensorShape, as_shape, unknown_shape
from aioqueue.compat.v1.ops.building import invalid
from aioqueue.compat.v1.ops.static import constant_value
from aioqueue.compat.v1.queues.resources import QueuePlan, QueueResource, private_name, type_names

__all__ = ("FIFOQueue", "PaddingFIFOQueue", "PriorityQueue", "QueueBase", "RandomShuffleQueue")

_Shapes = list[TensorShape] | None


class Signature:
    __slots__ = ("dtypes", "names", "shapes", "static_shapes", "types")

    def __init__(self, dtypes: list[Any], shapes: _Shapes, names: Sequence[str] | None) -> None:
        if not dtypes:
            raise ValueError("A queue needs at least one component: dtypes is an empty list.")
        if shapes is not None and len(shapes) != len(dtypes):
            raise ValueError(
                "Queue shapes must have the same length as dtypes,"
                f" received len(shapes)={len(shapes)}, len(dtypes)={len(dtypes)}"
            )
        self.dtypes: list[Any] = dtypes
        self.types: list[DType] = [as_dtype(dtype) for dtype in dtypes]
        self.shapes: list[TensorShape] | None = shapes
        self.static_shapes: list[TensorShape] = shapes or [unknown_shape() for _ in dtypes]
        self.names: Sequence[str] | None = names

    def __repr__(self) -> str:
        parts = zip(self.types, self.static_shapes, strict=True)
        return ", ".join(f"{dtype.name}{shape}" for dtype, shape in parts)


def list_of_dtypes(dtypes: Any) -> list[Any]:
    assert dtypes is not None, "dtypes: got None; expected a dtype or a list of them"
    return list(dtypes) if isinstance(dtypes, list | tuple) else [dtypes]


def list_of_names(names: Any, dtypes: list[Any]) -> list[str] | None:
    if names is None:
        return None
    if not isinstance(names, list | tuple):
        names = [names]
    if len(names) != len(dtypes):
        raise ValueError(
            "List of names must have the same length as the list of dtypes, received"
            f" len(names)={len(names)},len(dtypes)={len(dtypes)}"
        )
    return list(names)


def fixed_shapes(shapes: Any) -> _Shapes:
    """The shapes of a queue's components; a list of sizes, also an empty one, is one shape."""
    if shapes is None:
        return None
    listed = _list_of_shapes(shapes)
    if not all(shape.is_fully_defined() for shape in listed):
        raise ValueError(f"All shapes must be fully defined: {listed}")
    return listed


def padded_shapes(shapes: Any) -> list[TensorShape]:
    if not isinstance(shapes, list | tuple) or all(map(_is_size, shapes)):
        raise ValueError("When providing partial shapes, a list of shapes must be provided.")
    listed = [as_shape(shape) for shape in shapes]
    if any(shape.ndims is None for shape in listed):
        raise ValueError(f"All shapes must have a defined rank: {listed}")
    return listed


def _list_of_shapes(shapes: Any) -> list[TensorShape]:
    if isinstance(shapes, TensorShape):
        return [shapes]
    if not isinstance(shapes, list | tuple):
        raise TypeError(
            "Shapes must be a TensorShape or a list or tuple of TensorShapes,"
            f" got {type(shapes)} instead."
        )
    if all(map(_is_size, shapes)):
        return [as_shape(shapes)]
    return [as_shape(shape) for shape in shapes]


def _is_size(value: Any) -> bool:
    return value is None or isinstance(value, int)


_SCALAR = TensorShape([])


class QueueBase:
    """A queue as a script sees it: every method adds an op to the graph, and a session runs it."""

    def __init__(
        self,
        dtypes: Sequence[Any],
        shapes: Sequence[Any] | None,
        names: Sequence[str] | None,
        queue_ref: Tensor,
    ) -> None:
        if names is not None and len(names) != len(dtypes):
            raise ValueError(
                "Queue names must have the same length as dtypes,"
                f"received len(names)={len(names)},len {len(dtypes)}"
            )
        self._signature = Signature(
            list(dtypes), None if shapes is None else [as_shape(shape) for shape in shapes], names
        )
        self.queue_ref: Tensor = queue_ref
        self.name: str = queue_ref.op.name
        self.dtypes: list[Any] = self._signature.dtypes
        self.shapes: list[TensorShape] = self._signature.static_shapes
        self.names: Sequence[str] | None = names
        self._base_name = queue_ref.op.name.rsplit("/", 1)[-1]

    def __repr__(self) -> str:
        return f"<tf.{type(self).__name__} '{self.name}' [{self._signature!r}]>"

    @staticmethod
    def from_list(index: Any, queues: list[QueueBase]) -> QueueBase:
        """The queue at an index that is known only when ops of it are run."""
        if (
            not isinstance(queues, list)
            or not queues
            or not all(isinstance(queue, QueueBase) for queue in queues)
        ):
            raise TypeError("A list of queues expected")
        first = queues[0]
        if any(queue._signature.types != first._signature.types for queue in queues):
            raise TypeError("Queues do not have matching component dtypes.")
        if any(queue.names != first.names for queue in queues):
            raise TypeError("Queues do not have matching component names.")
        shapes = [
            functools.reduce(TensorShape.most_general_compatible_shape, of_component)
            for of_component in zip(*(queue.shapes for queue in queues), strict=True)
        ]
        position = convert_to_tensor(index, name="index")
        if not position.dtype.is_integer:
            raise TypeError(f"index: got a {position.dtype.name} tensor; expected an integer one")
        refs = [queue.queue_ref for queue in queues]
        gathered = op("GatherV2", [position, *refs], [(tf_dtypes.resource, _SCALAR)], _gather)
        return QueueBase(first.dtypes, shapes, first.names, gathered.outputs[0])

    def enqueue(self, vals: Any, name: str | None = None) -> Operation:
        """An op that puts one element in, and waits while the queue is full.

        Running it on a closed queue raises `tf.errors.CancelledError`.
        """
        with name_scope(name, f"{self._base_name}_enqueue", _listed(vals)) as scope:
            tensors = self._components(vals)
            for tensor, shape in zip(tensors, self.shapes, strict=False):
                tensor.shape.assert_is_compatible_with(shape)
            put = QueueResource.enqueue, QueueResource.try_enqueue
            return self._enqueue_op("QueueEnqueueV2", tensors, *put, scope)

    def enqueue_many(self, vals: Any, name: str | None = None) -> Operation:
        """An op that puts the rows of a batch in; no other enqueue comes between them.

        Running it on a closed queue raises `tf.errors.CancelledError`; rows that are in stay in.
        """
        with name_scope(name, f"{self._base_name}_EnqueueMany", _listed(vals)) as scope:
            tensors = self._components(vals)
            rows = Dimension(None)
            for tensor, shape in zip(tensors, self.shapes, strict=False):
                rows = rows.merge_with(tensor.shape.with_rank_at_least(1)[0])
                tensor.shape[1:].assert_is_compatible_with(shape)
            put = QueueResource.enqueue_many, QueueResource.try_enqueue_many
            return self._enqueue_op("QueueEnqueueManyV2", tensors, *put, scope)

    def dequeue(self, name: str | None = None) -> Any:
        """Tensors of one element taken out; running them waits for one.

        Running it on a queue that is closed and empty raises `tf.errors.OutOfRangeError`.
        """
        made = op(
            "QueueDequeueV2",
            [self.queue_ref],
            list(zip(self._signature.types, self.shapes, strict=True)),
            lambda step, queue: queue.dequeue(),
            name=name or f"{self._base_name}_Dequeue",
            waits=True,
            attrs={"try_now": lambda step, queue: queue.try_dequeue()},
        )
        return self._result(made)

    def dequeue_many(self, n: Any, name: str | None = None) -> Any:
        """Tensors of n elements as one batch; n may be more than the capacity.

        Running it on a closed queue with fewer than n raises `tf.errors.OutOfRangeError`.
        """
        return self._batch("DequeueMany", n, name, up_to=False)

    def dequeue_up_to(self, n: Any, name: str | None = None) -> Any:
        """Tensors of n elements as one batch, or of the last ones of a closed queue."""
        return self._batch("DequeueUpTo", n, name, up_to=True)

    def close(
        self, cancel_pending_enqueues: bool | None = False, name: str | None = None
    ) -> Operation:
        """An op that closes the queue, after the enqueues that came before it.

        What is inside can still be dequeued. A second one raises `tf.errors.CancelledError`.
        """
        cancel = False if cancel_pending_enqueues is None else cancel_pending_enqueues
        if not isinstance(cancel, bool):
            raise TypeError(f"Expected bool for argument 'cancel_pending_enqueues' not {cancel!r}.")

        def kernel(step: Any, resource: QueueResource) -> None:
            try:
                resource.close(cancel_pending_enqueues=cancel)
            finally:
                step.check()  # a close that came too late is late, whatever became of it

        def try_now(step: Any, resource: QueueResource) -> Any:
            return resource.try_close(cancel_pending_enqueues=cancel)

        attrs: dict[str, Any] = {"cancel_pending_enqueues": cancel, "try_now": try_now}
        attrs["scoped"] = False  # a close that has begun is not withdrawn
        name, given = name or f"{self._base_name}_Close", [self.queue_ref]
        return op("QueueCloseV2", given, [], kernel, name=name, waits=not cancel, attrs=attrs)

    def is_closed(self, name: str | None = None) -> Tensor:
        """A bool tensor: whether the queue is closed, that is, closing is done."""
        kernel = lambda step, queue: np.bool_(queue.is_closed())  # noqa: E731
        return self._asked("IsClosed", "Is_Closed", tf_dtypes.bool, kernel, name)

    def size(self, name: str | None = None) -> Tensor:
        """How many elements are inside, besides those that a waiting batch holds, as int32."""
        kernel = lambda step, queue: np.int32(queue.size())  # noqa: E731
        return self._asked("Size", "Size", tf_dtypes.int32, kernel, name)

    def _asked(self, what: str, label: str, dtype: DType, kernel: Any, name: str | None) -> Tensor:
        name, outputs = name or f"{self._base_name}_{label}", [(dtype, _SCALAR)]
        return op(f"Queue{what}V2", [self.queue_ref], outputs, kernel, name=name).outputs[0]

    def _components(self, vals: Any) -> list[Tensor]:
        """The components of an element or a batch as tensors of their dtypes, in order."""
        names = self.names
        if isinstance(vals, Mapping):
            if not names:
                raise ValueError("Queue must have names to enqueue a dictionary")
            if sorted(names, key=str) != sorted(vals, key=str):
                raise ValueError(
                    "Keys in dictionary to enqueue do not match names of Queue. "
                    f" Dictionary: {sorted(vals, key=str)},Queue: {sorted(names, key=str)}"
                )
            values: Sequence[Any] = [vals[name] for name in names]
        elif names:
            raise ValueError("You must enqueue a dictionary in a Queue with names")
        else:
            values = _listed(vals)
        # Not strict: as in TensorFlow, surplus components are dropped, and missing ones are an
        # error when the op runs.
        pairs = zip(values, self._signature.types, strict=False)
        return [
            convert_to_tensor(value, dtype=dtype, name=f"component_{index}")
            for index, (value, dtype) in enumerate(pairs)
        ]

    def _enqueue_op(
        self,
        op_type: str,
        tensors: list[Tensor],
        put: Callable[[QueueResource, Any], None],
        try_put: Callable[[QueueResource, Any], Any],
        name: str,
    ) -> Operation:
        if not tensors:
            raise ValueError(
                f"Attr 'Tcomponents' of '{op_type}' Op passed list of length 0 less than minimum 1."
            )
        kernel: Callable[..., Any]
        try_now: Callable[..., Any]
        if len(tensors) != len(self._signature.types):
            kernel = try_now = self._signature_mismatch(tensors)
        elif len(tensors) == 1:
            kernel = lambda step, queue, value: put(queue, value)  # noqa: E731
            try_now = lambda step, queue, value: try_put(queue, value)  # noqa: E731
        else:
            kernel = lambda step, queue, *values: put(queue, values)  # noqa: E731
            try_now = lambda step, queue, *values: try_put(queue, values)  # noqa: E731
        given, attrs = [self.queue_ref, *tensors], {"try_now": try_now}
        return op(op_type, given, [], kernel, name=name, waits=True, attrs=attrs)

    def _signature_mismatch(self, tensors: list[Tensor]) -> Callable[..., Any]:
        have = type_names([tf_dtypes.resource, *(tensor.dtype for tensor in tensors)])
        expected = type_names([tf_dtypes.resource, *self._signature.types])

        def kernel(step: Any, *values: Any) -> None:
            raise invalid(f"Signature mismatch, have: {have}-> expected: {expected}->")

        return kernel

    def _batch(self, what: str, n: Any, name: str | None, *, up_to: bool) -> Any:
        with name_scope(name, f"{self._base_name}_{what}", [self.queue_ref]) as scope:
            rows = _row_count(n, f"Queue{what}V2")
            known = None if up_to else constant_value(rows)
            size = None if known is None else int(known.item())
            if size is not None and size < 0:
                raise ValueError(
                    f"Input 'n' must be >= 0, but is {size} for '{scope.rstrip('/')}'"
                    f" (op: 'Queue{what}V2')."
                )
            made = op(
                f"Queue{what}V2",
                [self.queue_ref, rows],
                [
                    (dtype, TensorShape([size]).concatenate(shape))
                    for dtype, shape in zip(self._signature.types, self.shapes, strict=True)
                ],
                lambda step, queue, n: queue.dequeue_batch(_count(n), up_to=up_to),
                name=scope,
                waits=True,
                attrs={
                    "try_now": lambda step, queue, n: queue.try_dequeue_batch(
                        _count(n), up_to=up_to
                    )
                },
            )
        return self._result(made)

    def _result(self, made: Operation) -> Any:
        tensors = made.outputs
        if self.names:
            return dict(zip(self.names, tensors, strict=True))
        return tensors[0] if len(tensors) == 1 else tensors


def _row_count(n: Any, op_type: str) -> Tensor:
    if isinstance(n, Tensor) and n.dtype != tf_dtypes.int32:
        raise TypeError(
            f"Input 'n' of '{op_type}' Op has type {n.dtype.name} that does not match expected type"
            " of int32."
        )
    return convert_to_tensor(n, dtype=tf_dtypes.int32, name="n")


def _count(n: Any) -> int:
    """The number of rows, which TensorFlow also took in a vector of one."""
    if np.size(n) != 1:
        raise invalid(f"n: got shape {list(np.shape(n))}; expected a scalar")
    return int(n.item())


def _gather(step: Any, index: Any, *resources: QueueResource) -> QueueResource:
    if not 0 <= index < len(resources):
        raise invalid(f"indices = {index} is not in [0, {len(resources)})")
    return resources[int(index)]


def _listed(vals: Any) -> list[Any]:
    if isinstance(vals, Mapping):
        return list(vals.values())
    return list(vals) if isinstance(vals, list | tuple) else [vals]


class _QueueHandle:
    """The kernel of an op that makes a queue: finds it in the session, or makes it there."""

    def __init__(self, plan: QueuePlan, shared_name: str | None) -> None:
        self.plan = plan
        self.shared_name = shared_name
        self.op_name = plan.kind
        self.container = ""
        self._key = ("queue", self)

    def __call__(self, step: Any) -> QueueResource:
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
    """Elements leave in random order, that of TensorFlow for the same seeds."""

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
        least, seeds = (
            _whole("min_after_dequeue", min_after_dequeue),
            _queue_seeds(seed, shared_name),
        )
        ref = _make("RandomShuffleQueue", capacity, signature, shared_name, name, least, seeds)
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
    """The element with the smallest priority, component 0, leaves first; then the oldest."""

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
    min_after_dequeue: int = 0,
    seeds: tuple[int, int] = (0, 0),
) -> Tensor:
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
