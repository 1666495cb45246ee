"""PriorityQueue, async and blocking: the smallest priority first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from aioqueue.base.public_names import public
from aioqueue.core.elements.spec import (
    DType,
    ElementT,
    ListedElements,
    NamedElements,
    Record,
    Spec,
    TupleElements,
)
from aioqueue.core.storage.heap import HeapStorage
from aioqueue.core.storage.protocol import Storage
from aioqueue.core.storage.shelf import ObjectShelf, shelf_for
from aioqueue.core.storage.sized import WeighedStorage, brings_sizes, most_rows
from aioqueue.queues.base import AsyncQueue, BlockingQueue
from aioqueue.queues.element_arguments import priority_spec_for
from aioqueue.queues.queue_core import QueueCore, QueueFace, checked_bytes, checked_capacity


def heap_storage(spec: Spec, capacity: int | None, max_bytes: int | None = None) -> Storage:
    """Make the heap that fits the elements, whose first component is the priority."""
    if max_bytes is not None and brings_sizes(spec):
        return WeighedStorage(HeapStorage(ObjectShelf(), typed=False), spec)
    shelf = shelf_for(spec, most_rows(spec, capacity, max_bytes))
    return HeapStorage(shelf, typed=not spec.rows_private)


class PriorityConstructor(QueueFace[ElementT]):
    """The element with the smallest priority leaves first; equal ones are first in, first out.

    Component 0 of every element is its priority, an int64 scalar. Do not list it in ``dtypes``.
    Elements are ``(priority, *components)``, or ``(priority, object)`` in a queue of objects.

    As long as elements with small priorities come faster than they are taken, they starve the
    others. If that must not be, let the priorities of later elements grow with the time: see
    the page on choosing a queue, and ``ageing`` of a `Batcher`.

    Args:
        capacity: how many elements fit: an int >= 1, or ``None`` for no bound.
        dtypes: as for `FIFOQueue`, without that of the priority.
        shapes: as for `FIFOQueue`, without that of the priority.
        names: one name per component, the priority first.
        max_bytes: as for `FIFOQueue`.
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
        max_bytes: int | None = None,
        name: str | None = None,
    ) -> None:
        capacity = checked_capacity(capacity)
        max_bytes = checked_bytes(max_bytes)
        spec = priority_spec_for(dtypes, shapes, names)
        storage = heap_storage(spec, capacity, max_bytes)
        super().__init__(
            QueueCore(self._kind, spec, storage, capacity=capacity, max_bytes=max_bytes, name=name)
        )


@public("aioqueue", hints="queues")
class PriorityQueue(PriorityConstructor[ElementT], AsyncQueue[ElementT]):
    __doc__ = PriorityConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def sync(self) -> BlockingPriorityQueue[ElementT]: ...
        @overload
        def __init__(
            self,
            capacity: int | None,
            dtypes: None = None,
            shapes: None = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: PriorityQueue[TupleElements],
            capacity: int | None,
            dtypes: DType | Sequence[Any],
            shapes: Any = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: PriorityQueue[ListedElements],
            capacity: int | None,
            dtypes: Mapping[str, Any] | Record,
            shapes: Any = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: PriorityQueue[NamedElements],
            capacity: int | None,
            dtypes: DType | Sequence[Any],
            shapes: Any = None,
            names: str | Sequence[str] | None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...


@public("aioqueue.sync", name="PriorityQueue", hints="queues")
class BlockingPriorityQueue(PriorityConstructor[ElementT], BlockingQueue[ElementT]):
    __doc__ = PriorityConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def aio(self) -> PriorityQueue[ElementT]: ...
        @overload
        def __init__(
            self,
            capacity: int | None,
            dtypes: None = None,
            shapes: None = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingPriorityQueue[TupleElements],
            capacity: int | None,
            dtypes: DType | Sequence[Any],
            shapes: Any = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingPriorityQueue[ListedElements],
            capacity: int | None,
            dtypes: Mapping[str, Any] | Record,
            shapes: Any = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingPriorityQueue[NamedElements],
            capacity: int | None,
            dtypes: DType | Sequence[Any],
            shapes: Any = None,
            names: str | Sequence[str] | None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
