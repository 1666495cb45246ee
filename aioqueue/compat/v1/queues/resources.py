"""What is behind a queue op in a session: a queue of `aioqueue.sync` under TensorFlow's rules.

A `QueuePlan` is what an op asks for; a `QueueResource` is the queue that a session, or a server,
has made of it. Blocking, order and closing are the native queue's. Said here is where TensorFlow's
rules differ: a plain close waits until the enqueues before it are in, a second one is an error, a
queue is closed only when closing is done, nothing fits a capacity of 0, and errors have
TensorFlow's classes and texts.
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

__all__ = ("QueuePlan", "QueueResource", "native_dtype", "private_name", "type_names")

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
    """What a queue op asks for. Each op has a plan of its own.

    Attributes:
        kind: the class of the queue.
        capacity: how many elements fit; below zero for no bound.
        types: the dtype of each component, the priority's included.
        shapes: the shape of each component, or ``None`` if elements may have any.
        min_after_dequeue: how many elements a dequeue leaves inside (of a shuffle queue).
        seeds: the graph's and the op's seed (of a shuffle queue); two zeros for fresh entropy.
    """

    kind: str
    capacity: int
    types: list[DType]
    shapes: list[TensorShape] | None
    min_after_dequeue: int = 0
    seeds: tuple[int, int] = (0, 0)

    @property
    def shown_capacity(self) -> int:
        """The capacity as messages show it."""
        return _UNBOUNDED if self.capacity < 0 else self.capacity

    @property
    def shown_shapes(self) -> str:
        """The shapes as messages show them."""
        return f"[{', '.join(_brackets(shape.as_tuple()) for shape in self.shapes or ())}]"

    def build(self, name: str) -> QueueResource:
        """Make the queue.

        Args:
            name: what messages call it.

        Raises:
            InvalidArgumentError: ``min_after_dequeue`` is negative, or not below the capacity.
        """
        keep = self.min_after_dequeue
        if keep < 0:
            raise invalid(f"min_after_dequeue {keep} must be >= 0")
        if self.kind == "RandomShuffleQueue" and keep >= self.shown_capacity:
            raise invalid(f"min_after_dequeue {keep} must be < capacity {self.shown_capacity}")
        return QueueResource(self, name)

    def check_shared(self, name: str, existing: QueuePlan) -> None:
        """Refuse to share a queue that is not what this op asks for.

        Args:
            name: the shared name.
            existing: what the queue was made from.

        Raises:
            InvalidArgumentError: they differ.
        """
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
        """The native queue."""
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

    Args:
        plan: what it is.
        name: what messages call it.

    Attributes:
        queue: the native queue, for looking at: its `statistics` tell who waits.
        inlet: where elements go in: the same queue, unless nothing fits.
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.queue!r}>"

    def share(self, plan: QueuePlan) -> QueueResource:
        """This queue, for an op that has asked for it by name.

        Raises:
            InvalidArgumentError: it is not what that op asks for.
        """
        if plan not in self._agreed:
            plan.check_shared(self.name, self.plan)
            self._agreed.add(plan)
        return self

    def enqueue(self, element: Any) -> None:
        """Put one element in, waiting while the queue is full.

        Raises:
            CancelledError: the queue is closed, or the wait was cancelled.
            InvalidArgumentError: a shape is wrong.
        """
        arrived_open = not self._closing
        try:
            self._put(element)
        except aioqueue.QueueClosedError:
            raise self._refusal(arrived_open) from None
        except aioqueue.InvalidArgumentError:
            raise self._mismatch(element) from None
        except aioqueue.CancelledError:
            raise errors.CancelledError(None, None, _ENQUEUE_CANCELLED) from None

    def try_enqueue(self, element: Any) -> Any:
        """Put one element in, if that needs no waiting."""
        try:
            self.inlet.enqueue_nowait(element)
        except aioqueue.QueueFull:
            return WOULD_WAIT
        except aioqueue.QueueClosedError:
            if self.inlet.state is not QueueState.CLOSED:
                return WOULD_WAIT  # until it is
            raise self._refusal(False) from None
        except aioqueue.InvalidArgumentError:
            raise self._mismatch(element) from None
        return None

    def enqueue_many(self, batch: Any) -> None:
        """Put the rows of a batch in one after another, waiting whenever the queue is full.

        Raises:
            CancelledError: the queue is closed, or the wait was cancelled; some rows may be in.
            InvalidArgumentError: a shape is wrong.
        """
        arrived_open = not self._closing
        try:
            self.inlet.enqueue_many(batch)
        except aioqueue.QueueClosedError:
            raise self._refusal(arrived_open) from None
        except aioqueue.InvalidArgumentError:
            raise self._mismatch(batch, many=True) from None
        except aioqueue.CancelledError:
            raise errors.CancelledError(None, None, _ENQUEUE_CANCELLED) from None

    def try_enqueue_many(self, batch: Any) -> Any:
        """Put the rows of a batch in, if that cannot need waiting.

        The room that a bounded queue has now may be gone before the rows are in.
        """
        first = batch if self._single else batch[0]
        if self.plan.capacity >= 0 and np.ndim(first) and len(first) and not self.is_closed():
            return WOULD_WAIT
        return self.enqueue_many(batch)

    def dequeue(self) -> Any:
        """Take one element out, waiting for one.

        Raises:
            OutOfRangeError: the queue is closed and empty.
            CancelledError: the wait was cancelled.
        """
        try:
            return self._take()
        except aioqueue.OutOfRangeError as error:
            raise self._out_of_range(error, 1, self._kind) from None
        except aioqueue.CancelledError:
            raise errors.CancelledError(None, None, _DEQUEUE_CANCELLED) from None

    def try_dequeue(self) -> Any:
        """Take one element out, if that needs no waiting."""
        try:
            return self.queue.dequeue_nowait()
        except aioqueue.QueueEmpty:
            return WOULD_WAIT
        except aioqueue.OutOfRangeError as error:
            raise self._out_of_range(error, 1, self._kind) from None

    def dequeue_many(self, n: int, *, timeout: float | None = None) -> Any:
        """Take n elements out as one batch, waiting until all of them have come.

        Args:
            n: how many.
            timeout: the seconds to wait at most, whatever the scope says.

        Raises:
            aioqueue.DeadlineExceededError: the time is up; nothing was taken.
            OutOfRangeError: the queue is closed, and fewer are left.
            CancelledError: the wait was cancelled; nothing was taken.
            InvalidArgumentError: n is negative, or the queue has no shapes.
        """
        self._check_batch(n, "DequeueManyOp")
        try:
            if self._exceeds(n):
                self.queue.wait_closed(timeout=timeout)
                raise aioqueue.OutOfRangeError(remaining=self.queue.size())
            return self.queue.dequeue_many(n, timeout=timeout)
        except aioqueue.OutOfRangeError as error:
            raise self._out_of_range(error, n, self.plan.kind) from None
        except aioqueue.CancelledError:
            raise errors.CancelledError(None, None, _DEQUEUE_CANCELLED) from None

    def dequeue_up_to(self, n: int, *, timeout: float | None = None) -> Any:
        """Take n elements out as one batch, or the last ones of a closed queue.

        Args:
            n: how many at most.
            timeout: the seconds to wait at most, whatever the scope says.

        Raises:
            aioqueue.DeadlineExceededError: the time is up; nothing was taken.
            OutOfRangeError: the queue is closed and empty.
            CancelledError: the wait was cancelled; nothing was taken.
            InvalidArgumentError: n is negative, or the queue has no shapes.
        """
        self._check_batch(n, "DequeueUpToOp")
        try:
            if self._exceeds(n):
                self.queue.wait_closed(timeout=timeout)
                return self.queue.dequeue_up_to(self.plan.capacity, timeout=timeout)
            return self.queue.dequeue_up_to(n, timeout=timeout)
        except aioqueue.OutOfRangeError as error:
            raise self._out_of_range(error, n, self.plan.kind) from None
        except aioqueue.CancelledError:
            raise errors.CancelledError(None, None, _DEQUEUE_CANCELLED) from None

    def try_dequeue_batch(self, n: int, *, up_to: bool) -> Any:
        """Take n elements out as one batch, if that needs no waiting."""
        # A shuffle queue must not even begin what it cannot end: rows once drawn go back in
        # another order. But the rows that it has now may be gone before they are taken.
        if n > self._available() and self.plan.shapes is not None and not self.is_closed():
            return WOULD_WAIT
        take = self.dequeue_up_to if up_to else self.dequeue_many
        try:
            return take(n, timeout=0)
        except aioqueue.DeadlineExceededError:
            return WOULD_WAIT

    def close(self, *, cancel_pending_enqueues: bool = False) -> None:
        """Close the queue; a plain close waits until the enqueues before it are in.

        Args:
            cancel_pending_enqueues: fail those enqueues, and closes that wait for them.

        Raises:
            CancelledError: a plain close was asked for before, or is cancelled by another close.
        """
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
        """How many elements are inside now."""
        return self.queue.size()

    def is_closed(self) -> bool:
        """Whether closing is done."""
        return self.inlet.state is QueueState.CLOSED

    def _refusal(self, arrived_open: bool) -> errors.CancelledError:
        """Why an enqueue has failed: it came too late, or it was waiting and was cancelled.

        One that comes while a close is waiting fails when that has its turn.
        """
        waited = arrived_open
        if not arrived_open and not self.is_closed():
            waited = True
            try:
                self.inlet.wait_closed()
            except aioqueue.CancelledError:
                return errors.CancelledError(None, None, _ENQUEUE_CANCELLED)
        if waited and self._cancelled:
            return errors.CancelledError(None, None, _ENQUEUE_CANCELLED)
        return errors.CancelledError(None, None, f"{self._kind} '{self.name}' is closed.")

    def _out_of_range(
        self, error: aioqueue.OutOfRangeError, n: int, kind: str
    ) -> errors.OutOfRangeError:
        """Why a dequeue of n elements has failed."""
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
        """How many rows can come out now without waiting.

        Where rows are free, no dequeue waits for them, for a batch that waits has claimed them.
        Only a priority queue's batches do not claim.
        """
        if self.plan.kind == "PriorityQueue" and self.queue.statistics().waiting_dequeues:
            return 0
        return max(0, self.queue.size() - self.plan.min_after_dequeue)

    def _exceeds(self, n: int) -> bool:
        """Whether this is a priority queue that can never have n elements at once.

        As in TensorFlow, a caller that asks for them waits until the queue is closed. Here only
        that caller waits; in TensorFlow all callers behind it wait, too.
        """
        return self.plan.kind == "PriorityQueue" and 0 <= self.plan.capacity < n

    def _check_batch(self, n: int, op: str) -> None:
        if n < 0:
            raise invalid(f"{op} requested {n} < 0 elements")
        if self.plan.shapes is None:
            both = "DequeueMany and DequeueUpTo require"
            what = "DequeueMany requires" if self.plan.kind == "PriorityQueue" else both
            raise invalid(f"{self.plan.kind}'s {what} the components to have specified shapes.")

    def _mismatch(self, given: Any, *, many: bool = False) -> errors.InvalidArgumentError:
        """What is wrong with the shapes of an element or a batch."""
        values = [given] if self._single else given
        shapes = [np.shape(value) for value in values]
        rows = shapes[0][:1] if many and shapes[0] else ()
        for index, shape in enumerate(shapes):
            if many and self.plan.shapes is None:
                if shape[:1] != rows:
                    return invalid(
                        "All input tensors must have the same size in the 0th dimension. Component"
                        f" {index} has {shape[0] if shape else 'none'},"
                        f" and should have {rows[0] if rows else 'some'}"
                    )
                continue
            expected: tuple[int | None, ...] | None = None
            if self.plan.shapes is not None:
                expected = self.plan.shapes[index].as_tuple()
            if expected is None:
                continue
            if many:
                expected = (*(rows or (None,)), *expected)
            if not TensorShape(expected).is_compatible_with(shape):
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
