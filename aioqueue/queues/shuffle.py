"""RandomShuffleQueue, async and blocking: elements leave in random order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from aioqueue.base.arguments import checked_count
from aioqueue.base.public_names import public
from aioqueue.core.elements.philox import Seed
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
from aioqueue.core.storage.protocol import Storage
from aioqueue.core.storage.shelf import ObjectShelf, shelf_for
from aioqueue.core.storage.shuffle import ShuffleStorage
from aioqueue.core.storage.sized import WeighedStorage, brings_sizes, most_rows
from aioqueue.errors import InvalidArgumentError
from aioqueue.queues.base import AsyncQueue, BlockingQueue
from aioqueue.queues.element_arguments import spec_for
from aioqueue.queues.queue_core import QueueCore, QueueFace, checked_bytes, checked_capacity


def shuffle_storage(
    spec: Spec,
    capacity: int | None,
    max_bytes: int | None = None,
    *,
    seed: Seed = None,
    redraws: bool = True,
) -> Storage:
    if max_bytes is not None and brings_sizes(spec):
        entries = ShuffleStorage(ObjectShelf(), seed, redraws=redraws)
        return WeighedStorage(entries, spec)
    shelf = shelf_for(spec, most_rows(spec, capacity, max_bytes))
    return ShuffleStorage(shelf, seed, redraws=redraws)


class RandomShuffleConstructor(QueueFace[ElementT]):
    """Each dequeue draws an element uniformly at random from those inside.

    Args:
        capacity: how many elements fit: an int >= 1, or ``None`` for no bound.
        min_after_dequeue: how many elements a dequeue leaves inside until the queue is closed, so
            that there is always a pool to draw from: ``0 <= min_after_dequeue < capacity``.
        dtypes: as for `FIFOQueue`.
        shapes: as for `FIFOQueue`.
        names: as for `FIFOQueue`.
        seed: ``None`` for fresh entropy, an int, or a pair of ints (the graph seed and the op seed
            of TensorFlow 1). The same seed and the same operations give the same order on every
            platform and in every version. It is the order of TensorFlow 1.
        max_bytes: as for `FIFOQueue`.
        name: as for `FIFOQueue`.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    _kind = "RandomShuffleQueue"
    _redraws = True  # rows that an unfinished batch gives back are drawn anew, as in TensorFlow

    def __init__(
        self,
        capacity: int | None,
        min_after_dequeue: int,
        dtypes: Any = None,
        shapes: Any = None,
        names: Any = None,
        *,
        seed: Seed = None,
        max_bytes: int | None = None,
        name: str | None = None,
    ) -> None:
        capacity = checked_capacity(capacity)
        max_bytes = checked_bytes(max_bytes)
        keep = checked_count(min_after_dequeue, "min_after_dequeue")
        if capacity is not None and keep >= capacity:
            raise InvalidArgumentError(
                f"min_after_dequeue: got {keep}; expected less than the capacity, {capacity}"
            )
        spec = spec_for(dtypes, shapes, names)
        storage = shuffle_storage(spec, capacity, max_bytes, seed=seed, redraws=self._redraws)
        size = storage.row_bytes
        if keep and max_bytes is not None and size and max_bytes // size <= keep:
            raise InvalidArgumentError(
                f"max_bytes: got {max_bytes}; expected room for more than the {keep} elements of"
                f" {size} bytes that min_after_dequeue keeps inside"
            )
        super().__init__(
            QueueCore(
                self._kind,
                spec,
                storage,
                capacity=capacity,
                max_bytes=max_bytes,
                keep=keep,
                name=name,
            )
        )

    @property
    def min_after_dequeue(self) -> int:
        """How many elements a dequeue leaves inside until the queue is closed."""
        return self._core.keep


@public("aioqueue", hints="queues")
class RandomShuffleQueue(RandomShuffleConstructor[ElementT], AsyncQueue[ElementT]):
    __doc__ = RandomShuffleConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def sync(self) -> BlockingRandomShuffleQueue[ElementT]: ...
        @overload
        def __init__(
            self,
            capacity: int | None,
            min_after_dequeue: int,
            dtypes: None = None,
            shapes: None = None,
            names: None = None,
            *,
            seed: Seed = None,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: RandomShuffleQueue[ArrayElements],
            capacity: int | None,
            min_after_dequeue: int,
            dtypes: DType | tuple[DType],
            shapes: Any = None,
            names: None = None,
            *,
            seed: Seed = None,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: RandomShuffleQueue[TupleElements],
            capacity: int | None,
            min_after_dequeue: int,
            dtypes: tuple[DType, DType, *tuple[DType, ...]],
            shapes: Any = None,
            names: None = None,
            *,
            seed: Seed = None,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: RandomShuffleQueue[ListedElements],
            capacity: int | None,
            min_after_dequeue: int,
            dtypes: Sequence[Any],
            shapes: Any = None,
            names: None = None,
            *,
            seed: Seed = None,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: RandomShuffleQueue[TreeElements],
            capacity: int | None,
            min_after_dequeue: int,
            dtypes: Mapping[str, Any],
            shapes: Any = None,
            names: None = None,
            *,
            seed: Seed = None,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: RandomShuffleQueue[Typed[RecordT, RecordT]],
            capacity: int | None,
            min_after_dequeue: int,
            dtypes: RecordT,
            shapes: Any = None,
            names: None = None,
            *,
            seed: Seed = None,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: RandomShuffleQueue[NamedElements],
            capacity: int | None,
            min_after_dequeue: int,
            dtypes: DType | Sequence[Any],
            shapes: Any = None,
            names: str | Sequence[str] | None = None,
            *,
            seed: Seed = None,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...


@public("aioqueue.sync", name="RandomShuffleQueue", hints="queues")
class BlockingRandomShuffleQueue(RandomShuffleConstructor[ElementT], BlockingQueue[ElementT]):
    __doc__ = RandomShuffleConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def aio(self) -> RandomShuffleQueue[ElementT]: ...
        @overload
        def __init__(
            self,
            capacity: int | None,
            min_after_dequeue: int,
            dtypes: None = None,
            shapes: None = None,
            names: None = None,
            *,
            seed: Seed = None,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingRandomShuffleQueue[ArrayElements],
            capacity: int | None,
            min_after_dequeue: int,
            dtypes: DType | tuple[DType],
            shapes: Any = None,
            names: None = None,
            *,
            seed: Seed = None,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingRandomShuffleQueue[TupleElements],
            capacity: int | None,
            min_after_dequeue: int,
            dtypes: tuple[DType, DType, *tuple[DType, ...]],
            shapes: Any = None,
            names: None = None,
            *,
            seed: Seed = None,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingRandomShuffleQueue[ListedElements],
            capacity: int | None,
            min_after_dequeue: int,
            dtypes: Sequence[Any],
            shapes: Any = None,
            names: None = None,
            *,
            seed: Seed = None,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingRandomShuffleQueue[TreeElements],
            capacity: int | None,
            min_after_dequeue: int,
            dtypes: Mapping[str, Any],
            shapes: Any = None,
            names: None = None,
            *,
            seed: Seed = None,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingRandomShuffleQueue[Typed[RecordT, RecordT]],
            capacity: int | None,
            min_after_dequeue: int,
            dtypes: RecordT,
            shapes: Any = None,
            names: None = None,
            *,
            seed: Seed = None,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: BlockingRandomShuffleQueue[NamedElements],
            capacity: int | None,
            min_after_dequeue: int,
            dtypes: DType | Sequence[Any],
            shapes: Any = None,
            names: str | Sequence[str] | None = None,
            *,
            seed: Seed = None,
            max_bytes: int | None = None,
            name: str | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
