"""Small rows of a typed queue in a message: the bytes of each value, one after the other.

Both sides know the spec, so a message says nothing of dtypes and shapes. A pickle of some small
arrays takes several times as long.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

from aioqueue.core.elements.spec import Columns, Row
from aioqueue.sharing.memory import LARGE

if TYPE_CHECKING:
    from aioqueue.core.elements.spec import Spec

PACKED: Final = b"\3"
"""The first byte of a body that has rows in it."""


class RowPacker:
    """Packs and unpacks rows of one spec. `row_packer` makes it.

    Args:
        components: the components of a row, each of one fixed shape, without references.
        row_bytes: how many bytes a row takes: more than none.
    """

    def __init__(self, components: tuple[Any, ...], row_bytes: int) -> None:
        import numpy as np

        from aioqueue.core.storage.columns import RowReader

        self._asarray = np.asarray
        self._ndarray = np.ndarray
        self._row_bytes = row_bytes
        self._dtypes = [component.dtype for component in components]
        self._layout = [
            (one.dtype, one.shape, one.dtype.itemsize * prod(one.shape)) for one in components
        ]
        self._read_row = RowReader(components).row

    def packed(self, values: Columns | Row, n: int = 1) -> bytes | None:
        """Return the body of a message that has a row, or columns of n rows, in it.

        ``None``: they are large, and go through memory.
        """
        if n * self._row_bytes >= LARGE:
            return None
        asarray = self._asarray
        # Values are checked, and not cast yet: see `Spec.row`.
        return PACKED + b"".join(
            [
                asarray(value, dtype).tobytes()
                for value, dtype in zip(values, self._dtypes, strict=True)
            ]
        )

    def columns(self, body: memoryview) -> tuple[Columns, int]:
        """Return the columns in a body, which are views of it, and how many rows they have."""
        at = len(PACKED)
        n = (len(body) - at) // self._row_bytes
        found = []
        for dtype, shape, size in self._layout:
            found.append(self._ndarray((n, *shape), dtype, body, at))
            at += n * size
        return found, n

    def row(self, body: memoryview) -> Row:
        """Return a copy of the row in a body."""
        return self._read_row(self.columns(body)[0], 0)


def row_packer(spec: Spec) -> RowPacker | None:
    """Return what packs the rows of a spec, unless only a pickle can have them."""
    if spec.components is None:
        return None
    from aioqueue.core.storage.columns import common_bytes  # it loads NumPy

    row_bytes = common_bytes(spec.components)
    return RowPacker(spec.components, row_bytes) if row_bytes else None
