"""What a queue needs to know about its elements, and the names of types for it.

A *row* is an element inside the queue, and *columns* are the rows of a batch. There are two kinds
of specs: `aioqueue.core.elements.object_spec` for plain Python objects, and
`aioqueue.core.elements.element_spec` for typed elements. The latter loads NumPy, which a program
without typed queues need not have in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    # Type checkers know it even if it is not installed. Python itself has it since 3.13.
    from typing_extensions import TypeVar

    from aioqueue.core.elements.component import Component
    from aioqueue.core.elements.structure import Structure

    ElementT = TypeVar("ElementT", default=Any)
    BatchT = TypeVar("BatchT", default=Any)
    RecordT = TypeVar("RecordT", bound="Record")
else:
    from typing import TypeVar

    ElementT = TypeVar("ElementT")
    BatchT = TypeVar("BatchT")
    RecordT = TypeVar("RecordT", bound="Record")


class Record(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


class Typed(Generic[ElementT, BatchT]):
    """The type parameter of queues whose elements have dtypes; it has no instances.

    ``FIFOQueue[Request]`` is a queue of objects: its elements are ``Request`` objects, and its
    batches are lists of them. ``FIFOQueue[Typed[E, B]]`` is a queue that returns elements of type
    ``E`` and batches of type ``B``. What you put in is checked at run time, as NumPy casts much of
    it.
    """


ArrayElements: TypeAlias = Typed[Any, Array]
"""One component: an element is an array or a scalar, a batch is an array."""

TupleElements: TypeAlias = Typed[tuple[Any, ...], tuple[Array, ...]]
"""Several components: an element is a tuple of arrays or scalars, a batch a tuple of arrays."""

ListedElements: TypeAlias = Typed[Any, Any]
"""As many components as a list has dtypes: a type checker does not count them. Of one dtype, an
element and a batch are as those of `ArrayElements`, of several as those of `TupleElements`. In a
tuple of dtypes, it does count them."""

NamedElements: TypeAlias = Typed[dict[str, Any], dict[str, Array]]
"""Named components: elements and batches are dicts."""

TreeElements: TypeAlias = Typed[dict[str, Any], dict[str, Any]]
"""Components in dicts: elements and batches have the same containers as the dtypes. Those of a
dataclass of dtypes are of its class, which is `Typed` twice."""

DType: TypeAlias = "str | type[Any] | np.dtype[Any]"
"""One dtype, as users write it."""

Row = Any
"""One element inside a queue: a tuple of component values, or the object itself."""

Columns = list[Any]
"""The rows of a batch by component; in a queue of objects, the list of rows."""

PackedRow = tuple[Any, ...]
"""A row of typed values in the form in which many are joined fastest: see `RowPacking`."""


class Spec(Protocol):
    """What a queue needs to know about its elements."""

    @property
    def components(self) -> tuple[Component, ...] | None:
        """The components of typed elements; ``None`` in a queue of objects."""

    @property
    def batchable(self) -> bool:
        """Whether rows can be stacked into a batch."""

    @property
    def rows_private(self) -> bool:
        """Whether rows are kept one by one, by reference; otherwise they lie in arrays."""

    @property
    def ragged(self) -> bool:
        """Whether batches are padded."""

    @property
    def names(self) -> list[str]:
        """The components' names; empty if they have none."""

    @property
    def structure(self) -> Structure | None:
        """The containers of an element; ``None`` in a queue of objects."""

    @property
    def row_is_identity(self) -> bool:
        """Whether `row` returns its argument, because there is nothing to check."""

    @property
    def element_is_identity(self) -> bool:
        """Whether `element` returns its argument, because there is nothing to convert."""

    def row(self, element: Any) -> Row:
        """Check an element and convert it to a row."""

    def columns(self, batch: Any) -> tuple[Columns, int]:
        """Check a batch; return its columns and the number of rows."""

    def element(self, row: Row) -> Any:
        """Convert a row to the element that the user gets."""

    def batch(self, columns: Columns) -> Any:
        """Convert columns to the batch that the user gets."""

    def outputs(self, out: Any, n: int) -> Columns:
        """Check the arrays that are to receive a batch of n rows."""
