"""PaddingFIFOQueue, async and blocking: first in, first out, with padded batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from aioqueue.elements import (
    ArrayElements,
    DType,
    ElementT,
    ListedElements,
    NamedElements,
    RecordT,
    TreeElements,
    TupleElements,
    Typed,
    element_spec,
)
from aioqueue.errors import InvalidArgumentError
from aioqueue.public_names import public
from aioqueue.queues.core import QueueCore, QueueFace, checked_bytes, checked_capacity
from aioqueue.queues.faces import AsyncQueue, BlockingQueue
from aioqueue.queues.fifo import fifo_storage

__all__ = ("BlockingPaddingFIFOQueue", "PaddingFIFOConstructor", "PaddingFIFOQueue")


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
