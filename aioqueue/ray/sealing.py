"""Sealed objects: their sender pickles them, and only the process that takes them unpickles them.

What carries them in between runs no code of the user, and need not be able to import their classes.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from aioqueue.core.elements.spec import Columns


def is_plain_column(column: Any) -> bool:
    """Return whether a column has no object of the user: it is sent as it is."""
    return type(column) is bytes or (type(column) is np.ndarray and not column.dtype.hasobject)


def sealed(columns: Columns, pickler: type[pickle.Pickler], *, is_typed: bool) -> Columns | bytes:
    """Return columns with the objects of users as bytes.

    Args:
        columns: an array or a list of arrays per component, or a list of objects.
        pickler: the class that pickles them.
        is_typed: whether the elements have components.

    Returns:
        Columns in which those of objects are bytes; or bytes, for a list of objects.

    Raises:
        Exception: an object cannot be pickled.
    """
    if all(map(is_plain_column, columns)):
        return columns  # also a list of objects, if none of them has a class of the user

    def dumped(value: Any) -> bytes:
        with io.BytesIO() as file:
            pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
            return file.getvalue()

    if not is_typed:
        return dumped(columns)
    return [one if is_plain_column(one) else dumped(one) for one in columns]


def sealed_bytes(columns: Columns | bytes, *, is_typed: bool) -> int:
    if isinstance(columns, bytes):
        return len(columns)
    return sum(len(one) for one in columns if type(one) is bytes) if is_typed else 0


def opened(columns: Columns | bytes, loads: Any, *, is_typed: bool) -> Columns:
    """Return what `sealed` has got.

    Args:
        columns: what `sealed` has returned.
        loads: unpickles bytes.
        is_typed: whether the elements have components.

    Raises:
        Exception: an object cannot be unpickled here.
    """
    if isinstance(columns, bytes):
        found: Columns = loads(columns)
        return found
    if not is_typed:
        return columns
    return [loads(one) if type(one) is bytes else one for one in columns]
