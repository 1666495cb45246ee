"""FIFOQueue and PaddingFIFOQueue, async and blocking: first in, first out; padded or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from aioqueue.base.public_names import public
from aioqueue.core.elements.spec import (
    ArrayElements,
    DType,
    ElementT,
    ListedElements,
    NamedElements,
    RecordT,
    Spec,
    TreeElements,
    TupleElements,
    Typed,
)
from aioqueue.core.storage.objects import ObjectStorage
from aioqueue.core.storage.protocol import Storage
from aioqueue.core.storage.sized import WeighedStorage, brings_sizes, most_rows
from aioqueue.errors import InvalidArgumentError
from aioqueue.queues.base import AsyncQueue, BlockingQueue
from aioqueue.queues.element_arguments import spec_for
from aioqueue.queues.queue_core import QueueCore, QueueFace, checked_bytes, checked_capacity


def fifo_storage(spec: Spec, capacity: int | None, max_bytes: int | None = None) -> Storage:
    """Make the FIFO that fits the elements: blocks of arrays if all rows have one fixed shape."""
    if max_bytes is not None and brings_sizes(spec):
        return WeighedStorage(ObjectStorage(), spec)
    if spec.components is None or (spec.rows_private and not spec.ragged):
        return ObjectStorage()
    from aioqueue.core.storage.blocks import BlockStorage
    from aioqueue.core.storage.padded import PaddedStorage

    if spec.rows_private:
        return PaddedStorage(spec.components)
    return BlockStorage(spec.components, most_rows(spec, capacity, max_bytes))


class FIFOConstructor(QueueFace[ElementT]):
    """First in, first out.

    Args:
        capacity: how many elements fit: an int >= 1, or ``None`` for no bound.
        dtypes: one dtype, or a list with one dtype per component: anything that `numpy.dtype`
            accepts. ``str`` and ``bytes`` mean strings of any length, ``object`` any Python value.
            Dtypes in dicts, tuples, lists and dataclasses make elements and batches with the same
            containers. ``None`` makes a queue of plain Python objects, whose batches are lists.
        shapes: one shape per dtype, in the same containers; or one bare shape if there is one
            dtype. Without shapes, elements may have any shape, and you cannot take batches.
        names: one name per component. Elements and batches are then dicts with these keys.
        max_bytes: how many bytes of elements fit: an int >= 1, or ``None`` for no bound. An enqueue
            waits while its element would bring the queue above the bound, but never if the next
            dequeue needs the element: an empty queue accepts one of any size. With shapes and
            dtypes of fixed size this is exactly a bound on the number of elements. Otherwise the
            queue measures each element as you put it in: arrays by ``nbytes``, strings by their
            length, other objects by ``nbytes`` or `sys.getsizeof`.
        name: the name of the queue in error messages and worker names.

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
        max_bytes: int | None = None,
        name: str | None = None,
    ) -> None:
        capacity = checked_capacity(capacity)
        max_bytes = checked_bytes(max_bytes)
        spec = spec_for(dtypes, shapes, names)
        storage = fifo_storage(spec, capacity, max_bytes)
        super().__init__(
            QueueCore(self._kind, spec, storage, capacity=capacity, max_bytes=max_bytes, name=name)
        )


@public("aioqueue", hints="queues")
class FIFOQueue(FIFOConstructor[ElementT], AsyncQueue[ElementT]):
    __doc__ = FIFOConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def sync(self) -> BlockingFIFOQueue[ElementT]: ...
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
            self: FIFOQueue[ArrayElements],
            capacity: int | None,
            dtypes: DType | tuple[DType],
            shapes: Any = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: FIFOQueue[TupleElements],
            capacity: int | None,
            dtypes: tuple[DType, DType, *tuple[DType, ...]],
            shapes: Any = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: FIFOQueue[ListedElements],
            capacity: int | None,
            dtypes: Sequence[Any],
            shapes: Any = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: FIFOQueue[TreeElements],
            capacity: int | None,
            dtypes: Mapping[str, Any],
            shapes: Any = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: FIFOQueue[Typed[RecordT, RecordT]],
            capacity: int | None,
            dtypes: RecordT,
            shapes: Any = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: FIFOQueue[NamedElements],
            capacity: int | None,
            dtypes: DType | Sequence[Any],
            shapes: Any = None,
            names: str | Sequence[str] | None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...


@public("aioqueue.sync", name="FIFOQueue", hints="queues")
class BlockingFIFOQueue(FIFOConstructor[ElementT], BlockingQueue[ElementT]):
    __doc__ = FIFOConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def aio(self) -> FIFOQueue[ElementT]: ...
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
            self: BlockingFIFOQueue[ArrayElements],
            capacity: int | None,
            dtypes: DType | tuple[DType],
            shapes: Any = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingFIFOQueue[TupleElements],
            capacity: int | None,
            dtypes: tuple[DType, DType, *tuple[DType, ...]],
            shapes: Any = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingFIFOQueue[ListedElements],
            capacity: int | None,
            dtypes: Sequence[Any],
            shapes: Any = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingFIFOQueue[TreeElements],
            capacity: int | None,
            dtypes: Mapping[str, Any],
            shapes: Any = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingFIFOQueue[Typed[RecordT, RecordT]],
            capacity: int | None,
            dtypes: RecordT,
            shapes: Any = None,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingFIFOQueue[NamedElements],
            capacity: int | None,
            dtypes: DType | Sequence[Any],
            shapes: Any = None,
            names: str | Sequence[str] | None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...


class PaddingFIFOConstructor(QueueFace[ElementT]):
    """First in, first out, for components whose shapes vary: batches are padded.

    Each component is padded to its largest size in *this* batch, at the high end, with zeros,
    ``False`` or empty strings. Elements that you dequeue one by one are not padded.

    Args:
        capacity: how many elements fit: an int >= 1, or ``None`` for no bound.
        dtypes: as for `FIFOQueue`; not ``None``.
        shapes: one shape per dtype; ``None`` stands for a dimension that varies.
        names: as for `FIFOQueue`.
        max_bytes: as for `FIFOQueue`.
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
        max_bytes: int | None = None,
        name: str | None = None,
    ) -> None:
        capacity = checked_capacity(capacity)
        max_bytes = checked_bytes(max_bytes)
        if dtypes is None or shapes is None:
            raise InvalidArgumentError(
                f"{'dtypes' if dtypes is None else 'shapes'}: got None; a PaddingFIFOQueue needs"
                " a dtype and a shape per component, to know what to pad"
            )
        from aioqueue.core.elements.element_spec import element_spec

        spec = element_spec(dtypes, shapes, names, ragged=True)
        storage = fifo_storage(spec, capacity, max_bytes)
        super().__init__(
            QueueCore(self._kind, spec, storage, capacity=capacity, max_bytes=max_bytes, name=name)
        )


@public("aioqueue", hints="queues")
class PaddingFIFOQueue(PaddingFIFOConstructor[ElementT], AsyncQueue[ElementT]):
    __doc__ = PaddingFIFOConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def sync(self) -> BlockingPaddingFIFOQueue[ElementT]: ...
        @overload
        def __init__(
            self: PaddingFIFOQueue[ArrayElements],
            capacity: int | None,
            dtypes: DType | tuple[DType],
            shapes: Any,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: PaddingFIFOQueue[TupleElements],
            capacity: int | None,
            dtypes: tuple[DType, DType, *tuple[DType, ...]],
            shapes: Any,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: PaddingFIFOQueue[ListedElements],
            capacity: int | None,
            dtypes: Sequence[Any],
            shapes: Any,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: PaddingFIFOQueue[TreeElements],
            capacity: int | None,
            dtypes: Mapping[str, Any],
            shapes: Any,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: PaddingFIFOQueue[Typed[RecordT, RecordT]],
            capacity: int | None,
            dtypes: RecordT,
            shapes: Any,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: PaddingFIFOQueue[NamedElements],
            capacity: int | None,
            dtypes: DType | Sequence[Any],
            shapes: Any,
            names: str | Sequence[str] | None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...


@public("aioqueue.sync", name="PaddingFIFOQueue", hints="queues")
class BlockingPaddingFIFOQueue(PaddingFIFOConstructor[ElementT], BlockingQueue[ElementT]):
    __doc__ = PaddingFIFOConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def aio(self) -> PaddingFIFOQueue[ElementT]: ...
        @overload
        def __init__(
            self: BlockingPaddingFIFOQueue[ArrayElements],
            capacity: int | None,
            dtypes: DType | tuple[DType],
            shapes: Any,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingPaddingFIFOQueue[TupleElements],
            capacity: int | None,
            dtypes: tuple[DType, DType, *tuple[DType, ...]],
            shapes: Any,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingPaddingFIFOQueue[ListedElements],
            capacity: int | None,
            dtypes: Sequence[Any],
            shapes: Any,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingPaddingFIFOQueue[TreeElements],
            capacity: int | None,
            dtypes: Mapping[str, Any],
            shapes: Any,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingPaddingFIFOQueue[Typed[RecordT, RecordT]],
            capacity: int | None,
            dtypes: RecordT,
            shapes: Any,
            names: None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingPaddingFIFOQueue[NamedElements],
            capacity: int | None,
            dtypes: DType | Sequence[Any],
            shapes: Any,
            names: str | Sequence[str] | None = None,
            *,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
