"""What is behind a queue op in a session: a queue of `aioqueue.sync` under TensorFlow's rules.

A `QueuePlan` is what an op asks for; a `QueueResource` is the queue that a session, or a server,
has made of it. Said here is where the rules differ: a plain close waits for the enqueues before it,
a second one is an error, and nothing fits a capacity of 0.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import aioqueue
from aioqueue import QueueState, sync
from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import WOULD_WAIT
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.building import invalid

_UNBOUNDED: Final = 2**31 - 1
_ENQUEUE_CANCELLED: Final = "Enqueue operation was cancelled"
_DEQUEUE_CANCELLED: Final = "Dequeue operation was cancelled"
_SHORT_TYPE_NAMES: Final = {"float16": "half", "float32": "float", "float64": "double"}
_private = itertools.count()

_Native = sync.BlockingQueue


def private_name(op_name: str) -> str:
    """What messages call a queue that is not shared; numbered over the process."""
    return f"_{next(_private)}_{op_name}"


def native_dtype(dtype: DType) -> Any:
    """The dtype of a native queue's component: strings have any length there."""
    return bytes if dtype.name == "string" else dtype.numpy


def type_names(types: list[DType]) -> str:
    """Dtypes as TensorFlow's messages spell them: ``int32, float``."""
    return ", ".join(_SHORT_TYPE_NAMES.get(one.name, one.name) for one in types)


@dataclass(frozen=True, eq=False)
class QueuePlan:
    """What a queue op asks for. Each op has a plan of its own."""

    kind: str
    capacity: int
    types: list[DType]
    shapes: list[TensorShape] | None
    min_after_dequeue: int = 0
    seeds: tuple[int, int] = (0, 0)

    @property
    def shown_capacity(self) -> int:
        return _UNBOUNDED if self.capacity < 0 else self.capacity

    @property
    def shown_shapes(self) -> str:
        return f"[{', '.join(_brackets(shape.as_tuple()) for shape in self.shapes or ())}]"

    def build(self, name: str) -> QueueResource:
        keep = self.min_after_dequeue
        if keep < 0:
            raise invalid(f"min_after_dequeue {keep} must be >= 0")
        if self.kind == "RandomShuffleQueue" and keep >= self.shown_capacity:
            raise invalid(f"min_after_dequeue {keep} must be < capacity {self.shown_capacity}")
        return QueueResource(self, name)

    def check_shared(self, name: str, existing: QueuePlan) -> None:
        if existing.kind != self.kind:
            raise invalid(f"Expected {existing.kind}, found {self.kind}V2")
        had = f"Shared queue '{name}' has"
        if existing.shown_capacity != self.shown_capacity:
            raise invalid(
                f"{had} capacity {existing.shown_capacity}"
                f" but requested capacity was {self.shown_capacity}"
            )
        if existing.min_after_dequeue != self.min_after_dequeue:
            raise invalid(
                f"{had} min_after_dequeue {existing.min_after_dequeue}"
                f" but requested min_after_dequeue was {self.min_after_dequeue}."
            )
        if self.seeds not in ((0, 0), existing.seeds):
            raise invalid(
                f"{had} random seeds {existing.seeds} but requested seeds are {self.seeds}."
            )
        if existing.types != self.types:
            raise invalid(
                f"{had} component types {type_names(existing.types)}"
                f" but requested component types were {type_names(self.types)}"
            )
        if not self._has_shapes_of(existing):
            raise invalid(
                f"{had} component shapes {existing.shown_shapes}"
                f" but requested component shapes were {self.shown_shapes}"
            )

    def _has_shapes_of(self, existing: QueuePlan) -> bool:
        if self.shapes is None or existing.shapes is None:
            return self.shapes is existing.shapes
        if self.kind == "PaddingFIFOQueue":
            pairs = zip(self.shapes, existing.shapes, strict=True)
            return all(ours.is_compatible_with(theirs) for ours, theirs in pairs)
        return self.shapes == existing.shapes

    def native(self, name: str, capacity: int | None) -> _Native:
        dtypes = [native_dtype(dtype) for dtype in self.types]
        shapes = None if self.shapes is None else [shape.as_tuple() for shape in self.shapes]
        if self.kind == "RandomShuffleQueue":
            seed = None if self.seeds == (0, 0) else self.seeds
            return sync.RandomShuffleQueue(
                capacity, self.min_after_dequeue, dtypes, shapes, seed=seed, name=name
            )
        if self.kind == "PaddingFIFOQueue":
            return sync.PaddingFIFOQueue(capacity, dtypes, shapes, name=name)
        if self.kind == "PriorityQueue":
            assert shapes is not None
            return sync.PriorityQueue(capacity, dtypes[1:], shapes[1:], name=name)
        return sync.FIFOQueue(capacity, dtypes, shapes, name=name)


class QueueResource:
    """A queue in a session or on a server.

    Elements and batches are the bare value or array where there is one component, else a tuple.
    The ``try_`` methods return `WOULD_WAIT` where the others would block.
    """

    def __init__(self, plan: QueuePlan, name: str) -> None:
        self.plan = plan
        self._agreed = {plan}
        self.name = name
        self.queue: _Native = plan.native(
            name, None if plan.capacity < 0 else max(plan.capacity, 1)
        )
        self.inlet: _Native = self.queue if plan.capacity else _blocked(plan, name)
        self._put, self._take = self.inlet.enqueue, self.queue.dequeue
        self._single = len(plan.types) == 1
        self._lock = threading.Lock()  # guards the first of several closes
        self._closing = False
        self._cancelled = False
        # TensorFlow's padding queue says so only of batches.
        self._kind = "FIFOQueue" if plan.kind == "PaddingFIFOQueue" else plan.kind

    def share(self, plan: QueuePlan) -> QueueResource:
        if plan not in self._agreed:
            plan.check_shared(self.name, self.plan)
            self._agreed.add(plan)
        return self

    def enqueue(self, element: Any) -> None:
        arrived_open = not self._closing
        try:
            self._put(element)
        except aioqueue.AioQueueError as error:
            raise self._not_in(error, element, arrived_open) from None

    def try_enqueue(self, element: Any) -> Any:
        try:
            self.inlet.enqueue_nowait(element)
        except aioqueue.QueueFull:
            return WOULD_WAIT
        except aioqueue.AioQueueError as error:
            # An enqueue that meets a close which waits fails when that has its turn.
            is_early = isinstance(error, aioqueue.QueueClosedError) and not self.is_closed()
            if is_early:
                return WOULD_WAIT
            raise self._not_in(error, element, False) from None
        return None

    def enqueue_many(self, batch: Any) -> None:
        arrived_open = not self._closing
        try:
            self.inlet.enqueue_many(batch)
        except aioqueue.AioQueueError as error:
            raise self._not_in(error, batch, arrived_open, many=True) from None

    def try_enqueue_many(self, batch: Any) -> Any:
        # The room that a bounded queue has now may be gone before the rows are in.
        first = batch if self._single else batch[0]
        if self.plan.capacity >= 0 and np.ndim(first) and len(first) and not self.is_closed():
            return WOULD_WAIT
        return self.enqueue_many(batch)

    def dequeue(self) -> Any:
        try:
            return self._take()
        except aioqueue.AioQueueError as error:
            raise self._not_out(error, 1, self._kind) from None

    def try_dequeue(self) -> Any:
        try:
            return self.queue.dequeue_nowait()
        except aioqueue.QueueEmpty:
            return WOULD_WAIT
        except aioqueue.AioQueueError as error:
            raise self._not_out(error, 1, self._kind) from None

    def dequeue_batch(self, n: int, *, up_to: bool, timeout: float | None = None) -> Any:
        if n < 0:
            raise invalid(f"Dequeue{'UpTo' if up_to else 'Many'}Op requested {n} < 0 elements")
        if self.plan.shapes is None:
            both = "DequeueMany and DequeueUpTo require"
            what = "DequeueMany requires" if self.plan.kind == "PriorityQueue" else both
            raise invalid(f"{self.plan.kind}'s {what} the components to have specified shapes.")
        take, rows = (self.queue.dequeue_up_to if up_to else self.queue.dequeue_many), n
        try:
            # A priority queue never has more elements at once than its capacity. As in TensorFlow,
            # a caller that asks for them waits until the queue is closed. Here only that caller
            # waits; in TensorFlow all callers behind it wait, too.
            if self.plan.kind == "PriorityQueue" and 0 <= self.plan.capacity < n:
                self.queue.wait_closed(timeout=timeout)
                if not up_to:
                    raise aioqueue.OutOfRangeError(remaining=self.queue.size())
                rows = self.plan.capacity
            return take(rows, timeout=timeout)
        except (aioqueue.OutOfRangeError, aioqueue.CancelledError) as error:
            raise self._not_out(error, n, self.plan.kind) from None

    def try_dequeue_batch(self, n: int, *, up_to: bool) -> Any:
        # A shuffle queue must not even begin what it cannot end: rows once drawn go back in
        # another order. But the rows that it has now may be gone before they are taken.
        if n > self._available() and self.plan.shapes is not None and not self.is_closed():
            return WOULD_WAIT
        try:
            return self.dequeue_batch(n, up_to=up_to, timeout=0)
        except aioqueue.DeadlineExceededError:
            return WOULD_WAIT

    def close(self, *, cancel_pending_enqueues: bool = False) -> None:
        """Close the queue; a plain close waits until the enqueues before it are in."""
        if cancel_pending_enqueues:
            self._cancelled = self._closing = True
            self.inlet.close(cancel_pending_enqueues=True)
            self.queue.close()
            return
        with self._lock:
            is_first = not self._closing
            self._closing = True
        self.inlet.close()
        must_wait = not self.is_closed()
        self.inlet.wait_closed()
        self.queue.close()
        if must_wait and self._cancelled:
            raise errors.CancelledError(None, None, _ENQUEUE_CANCELLED)
        if not is_first:
            raise errors.CancelledError(None, None, f"Queue '{self.name}' is already closed.")

    def try_close(self, *, cancel_pending_enqueues: bool = False) -> Any:
        """Close the queue, if that cannot need waiting, as for no enqueue that waits for room."""
        if self.plan.capacity >= 0 and not cancel_pending_enqueues and not self.is_closed():
            return WOULD_WAIT
        return self.close(cancel_pending_enqueues=cancel_pending_enqueues)

    def size(self) -> int:
        return self.queue.size()

    def is_closed(self) -> bool:
        return self.inlet.state is QueueState.CLOSED

    def _not_in(
        self, error: aioqueue.AioQueueError, values: Any, arrived_open: bool, *, many: bool = False
    ) -> Exception:
        """Why an enqueue has failed: its values, or a close before it, or one while it waited."""
        if isinstance(error, aioqueue.InvalidArgumentError):
            return self._mismatch(values, many=many)
        is_cancelled = isinstance(error, aioqueue.CancelledError)
        if isinstance(error, aioqueue.QueueClosedError):
            waited = arrived_open
            if not arrived_open and not self.is_closed():
                waited = True
                try:
                    self.inlet.wait_closed()
                except aioqueue.CancelledError:
                    is_cancelled = True
            is_cancelled = is_cancelled or (waited and self._cancelled)
        elif not is_cancelled:
            return error
        closed = f"{self._kind} '{self.name}' is closed."
        return errors.CancelledError(None, None, _ENQUEUE_CANCELLED if is_cancelled else closed)

    def _not_out(self, error: aioqueue.AioQueueError, n: int, kind: str) -> Exception:
        """Why a dequeue of n elements has failed."""
        if isinstance(error, aioqueue.CancelledError):
            return errors.CancelledError(None, None, _DEQUEUE_CANCELLED)
        if not isinstance(error, aioqueue.OutOfRangeError):
            return error
        # TensorFlow tells what was missing, and left, before the rows of the batch went back.
        made = errors.OutOfRangeError(
            None,
            None,
            f"{kind} '{self.name}' is closed and has insufficient elements"
            f" (requested {n - error.held},"
            f" current size {error.remaining - error.held})",
        )
        made.queue, made.held = self.name, error.held
        made.requested, made.remaining = n, error.remaining
        return made

    def _available(self) -> int:
        """How many rows can come out now without waiting; waiting batches claim theirs."""
        if self.plan.kind == "PriorityQueue" and self.queue.statistics().waiting_dequeues:
            return 0
        return max(0, self.queue.size() - self.plan.min_after_dequeue)

    def _mismatch(self, given: Any, *, many: bool) -> errors.InvalidArgumentError:
        shapes = [np.shape(value) for value in ([given] if self._single else given)]
        rows = shapes[0][:1] if many and shapes[0] else ()
        for index, shape in enumerate(shapes):
            if self.plan.shapes is None:
                if many and shape[:1] != rows:
                    return invalid(
                        "All input tensors must have the same size in the 0th dimension. Component"
                        f" {index} has {shape[0] if shape else 'none'},"
                        f" and should have {rows[0] if rows else 'some'}"
                    )
                continue
            expected: tuple[int | None, ...] | None = self.plan.shapes[index].as_tuple()
            if expected is not None and many:
                expected = (*(rows or (None,)), *expected)
            if expected is not None and not TensorShape(expected).is_compatible_with(shape):
                return invalid(
                    f"Shape mismatch in tuple component {index}."
                    f" Expected {_brackets(expected)}, got {_brackets(shape)}"
                )
        what = "enqueue_many needs arrays with one row per element" if many else "wrong element"
        return invalid(f"{self._kind} '{self.name}': {what}, got shapes {shapes}")


def _blocked(plan: QueuePlan, name: str) -> _Native:
    """An inlet that is full for ever: what a capacity of 0 is."""
    inlet = plan.native(name, 1)
    shapes: Any = plan.shapes or [TensorShape([])] * len(plan.types)
    plug = [
        np.full(
            [size or 0 for size in shape.as_list()],
            b"" if dtype.name == "string" else 0,
            dtype.numpy,
        )[()]
        for dtype, shape in zip(plan.types, shapes, strict=True)
    ]
    inlet.enqueue(plug[0] if len(plug) == 1 else tuple(plug))
    return inlet


def _brackets(shape: tuple[int | None, ...] | None) -> str:
    if shape is None:
        return "<unknown>"
    return "[" + ",".join("?" if size is None else str(size) for size in shape) + "]"
