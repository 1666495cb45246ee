"""Values of any kind: how messages show them, and the rows of a batch of them.

Nothing here loads NumPy: a program that has an array has loaded it.
"""

from __future__ import annotations

from typing import Any, Final

from aioqueue.base.arguments import numpy_class
from aioqueue.errors import with_article

_TABLES: Final = ("iloc", "__dataframe__", "__arrow_c_stream__", "__arrow_c_array__")


def is_table(given: Any) -> bool:
    """Return whether it is a data frame or table, which iterates over columns or their names."""
    return (
        hasattr(given, "columns")
        and any(hasattr(given, name) for name in _TABLES)
        and not isinstance(given, type)
    )


def is_iterable(value: Any) -> bool:
    """Return whether it is iterable. An array of no dimensions only looks so."""
    try:
        iter(value)
    except TypeError:
        return False
    return True


def separate_rows(batch: Any) -> list[Any]:
    """Return the rows of a batch of objects. Rows of an array are copied: its memory is not kept.

    Raises:
        TypeError: the batch is not iterable.
    """
    rows = list(batch)
    if not isinstance(batch, numpy_class("ndarray")):
        return rows
    has_views = batch.ndim > 1 or batch.dtype.kind == "V"
    return [row.copy() for row in rows] if has_views else rows


def short_repr(value: Any, limit: int = 60) -> str:
    if isinstance(value, numpy_class("ndarray")):
        return f"an array {value.dtype}{list(value.shape)}"
    try:
        text = repr(value)
    except Exception:
        return with_article(type(value).__name__)
    return text if len(text) <= limit else text[: limit - 3] + "..."
