"""The four kinds of queue: what each is made of. Both faces construct them from here."""

from __future__ import annotations

from typing import Any

from aioqueue.elements import ElementSpec, ObjectSpec, PriorityObjectSpec, Spec
from aioqueue.errors import InvalidArgumentError
from aioqueue.queues.core import QueueCore, QueueFace, checked_capacity, checked_count
from aioqueue.storage import HeapStorage, Seed, ShuffleStorage, fifo_storage, shelf_for

__all__ = (
    "FIFOConstructor",
    "PaddingFIFOConstructor",
    "PriorityConstructor",
    "RandomShuffleConstructor",
)


class FIFOConstructor(QueueFace):
    """First in, first out.

    Args:
        capacity: how many elements fit: an int >= 1, or ``None`` for no bound.
        dtypes: one dtype, or a list of them with one per component: anything `numpy.dtype`
            accepts, where ``str`` and ``bytes`` stand for strings of any length and ``object`` for
            any Python value. ``None`` makes a queue of plain Python objects, whose batches are
            lists.
        shapes: one shape per dtype, or one bare shape where there is one dtype. Without shapes,
            elements may have any shape, and batches cannot be taken.
        names: one per component: elements and batches are then dicts with these keys.
        name: what error messages and worker names call the queue.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    _kind = "FIFOQueue"

    def __init__(
        self,
        capacity: int | None,
        dtypes: Any = None,
        shapes: Any = None,
        names: Any = None,
        *,
        name: str | None = None,
    ) -> None:
        capacity = checked_capacity(capacity)
        spec = _spec(dtypes, shapes, names)
        super().__init__(
            QueueCore(self._kind, spec, fifo_storage(spec, capacity), capacity=capacity, name=name)
        )


class RandomShuffleConstructor(QueueFace):
    """Elements leave in random order, each drawn uniformly from what is inside.

    Args:
        capacity: how many elements fit: an int >= 1, or ``None`` for no bound.
        min_after_dequeue: how many elements a dequeue leaves inside until the queue is closed, so
            that there is always something to draw from: ``0 <= min_after_dequeue < capacity``.
        dtypes: as for `FIFOQueue`.
        shapes: as for `FIFOQueue`.
        names: as for `FIFOQueue`.
        seed: ``None`` for fresh entropy, an int, or a pair of ints (the graph seed and the op seed
            of TensorFlow 1). The same seed and the same operations give the same order, on every
            platform and version, and it is the order that TensorFlow 1 gave.
        name: as for `FIFOQueue`.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    _kind = "RandomShuffleQueue"
    _draws_again = True  # what a batch had drawn that did not get all; as in TensorFlow

    def __init__(
        self,
        capacity: int | None,
        min_after_dequeue: int,
        dtypes: Any = None,
        shapes: Any = None,
        names: Any = None,
        *,
        seed: Seed = None,
        name: str | None = None,
    ) -> None:
        capacity = checked_capacity(capacity)
        keep = checked_count(min_after_dequeue, "min_after_dequeue")
        if capacity is not None and keep >= capacity:
            raise InvalidArgumentError(
                f"min_after_dequeue: got {keep}; expected less than the capacity, {capacity}"
            )
        spec = _spec(dtypes, shapes, names)
        super().__init__(
            QueueCore(
                self._kind,
                spec,
                ShuffleStorage(shelf_for(spec, capacity), seed, draws_again=self._draws_again),
                capacity=capacity,
                keep=keep,
                name=name,
            )
        )

    @property
    def min_after_dequeue(self) -> int:
        """How many elements a dequeue leaves inside until the queue is closed."""
        return self._core.keep


class PaddingFIFOConstructor(QueueFace):
    """First in, first out, for components whose shapes vary: batches are padded.

    A batch is padded per component to the largest size in *this* batch, at the high end, with
    zeros, ``False`` or empty strings. Single dequeues are not padded.

    Args:
        capacity: how many elements fit: an int >= 1, or ``None`` for no bound.
        dtypes: as for `FIFOQueue`; not ``None``.
        shapes: one shape per dtype, in which ``None`` stands for a dimension that varies.
        names: as for `FIFOQueue`.
        name: as for `FIFOQueue`.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    _kind = "PaddingFIFOQueue"

    def __init__(
        self,
        capacity: int | None,
        dtypes: Any,
        shapes: Any,
        names: Any = None,
        *,
        name: str | None = None,
    ) -> None:
        capacity = checked_capacity(capacity)
        if dtypes is None or shapes is None:
            raise InvalidArgumentError(
                f"{'dtypes' if dtypes is None else 'shapes'}: got None; a PaddingFIFOQueue needs"
                " a dtype and a shape per component, to know what to pad"
            )
        spec = ElementSpec(dtypes, shapes, names, ragged=True)
        super().__init__(
            QueueCore(self._kind, spec, fifo_storage(spec, capacity), capacity=capacity, name=name)
        )


class PriorityConstructor(QueueFace):
    """The element with the smallest priority leaves first; equal ones leave as they came.

    Component 0 of every element is its priority, an int64 scalar that is not listed in ``dtypes``:
    elements are ``(priority, *components)``, and ``(priority, object)`` in a queue of objects.

    Args:
        capacity: how many elements fit: an int >= 1, or ``None`` for no bound.
        dtypes: as for `FIFOQueue`, without the priority's.
        shapes: as for `FIFOQueue`, without the priority's.
        names: one per component, the priority's first.
        name: as for `FIFOQueue`.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    _kind = "PriorityQueue"

    def __init__(
        self,
        capacity: int | None,
        dtypes: Any = None,
        shapes: Any = None,
        names: Any = None,
        *,
        name: str | None = None,
    ) -> None:
        capacity = checked_capacity(capacity)
        spec = _priority_spec(dtypes, shapes, names)
        storage = HeapStorage(shelf_for(spec, capacity), typed=_is_typed(spec))
        super().__init__(QueueCore(self._kind, spec, storage, capacity=capacity, name=name))


def _spec(dtypes: Any, shapes: Any, names: Any) -> Spec:
    if dtypes is not None:
        return ElementSpec(dtypes, shapes, names)
    _refuse_without_dtypes(shapes, names)
    return ObjectSpec()


def _priority_spec(dtypes: Any, shapes: Any, names: Any) -> Spec:
    if dtypes is None:
        _refuse_without_dtypes(shapes, names)
        return PriorityObjectSpec()
    # Checked on its own first, so that messages speak of what the caller wrote.
    payload = ElementSpec(dtypes, shapes)
    listed = list(dtypes) if isinstance(dtypes, list | tuple) else [dtypes]
    all_shapes = None
    if payload.batchable:
        all_shapes = [(), *(component.shape for component in payload.components)]
    return ElementSpec(["int64", *listed], all_shapes, names, priority=True)


def _is_typed(spec: Spec) -> bool:
    """Whether the columns of a batch are arrays, and not a list of rows."""
    return isinstance(spec, ElementSpec) and not spec.rows_private


def _refuse_without_dtypes(shapes: Any, names: Any) -> None:
    for argument, value in (("shapes", shapes), ("names", names)):
        if value is not None:
            raise InvalidArgumentError(
                f"{argument}: got {value!r} without dtypes; a queue of plain objects has none"
            )
