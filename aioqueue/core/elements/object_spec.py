"""Elements that are plain Python objects, alone or behind a priority.

A row is the object itself, or the pair; the columns of a batch are the list of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from aioqueue.base.arguments import is_int
from aioqueue.core.elements.spec import Columns, Row
from aioqueue.core.elements.values import is_iterable, is_table, separate_rows, short_repr
from aioqueue.errors import InvalidArgumentError, with_article

if TYPE_CHECKING:
    from aioqueue.core.elements.component import Component
    from aioqueue.core.elements.structure import Structure

_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1


class ObjectSpec:
    """Elements that are any one Python object; a batch is a list."""

    __slots__ = ()
    components: tuple[Component, ...] | None = None
    batchable = True
    rows_private = True
    ragged = False
    names: ClassVar[list[str]] = []
    structure: Structure | None = None
    row_is_identity = True
    element_is_identity = True

    def __repr__(self) -> str:
        return "objects"

    def row(self, element: Any) -> Row:
        return element

    def columns(self, batch: Any) -> tuple[Columns, int]:
        if isinstance(batch, str | bytes | Mapping) or not is_iterable(batch):
            raise InvalidArgumentError(
                f"batch: got {short_repr(batch)}; expected a list, or another iterable, of elements"
            )
        if is_table(batch):
            raise InvalidArgumentError(
                f"batch: got {with_article(type(batch).__name__)}, which iterates over its columns"
                ' or their names; expected a list of rows, such as frame.to_dict("records")'
            )
        rows = separate_rows(batch) if self.row_is_identity else list(map(self.row, batch))
        return rows, len(rows)

    def element(self, row: Row) -> Any:
        return row

    def batch(self, columns: Columns) -> Any:
        return columns

    def outputs(self, out: Any, n: int) -> Columns:
        raise InvalidArgumentError(
            f"out: got {short_repr(out)}; a queue of objects returns a list and writes to no arrays"
        )


class PriorityObjectSpec(ObjectSpec):
    """Elements that are pairs of an int priority and any one Python object."""

    __slots__ = ()
    row_is_identity = False

    def __repr__(self) -> str:
        return "(priority, object)"

    def row(self, element: Any) -> Row:
        if not isinstance(element, tuple | list) or len(element) != 2:
            raise InvalidArgumentError(
                f"element: got {short_repr(element)}; expected a pair (priority, object)"
            )
        priority, value = element
        if not is_int(priority) or not _LEAST <= int(priority) <= _MOST:
            raise InvalidArgumentError(
                f"element: got the priority {short_repr(priority)}; expected an int of 64 bits"
            )
        return (int(priority), value)
