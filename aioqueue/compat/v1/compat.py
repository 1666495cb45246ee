"""``tf.compat``: text and bytes, and ``tf.compat.v1``, which is the package itself."""

from __future__ import annotations

import numbers
import os
import sys
from typing import Any

import numpy as np

from aioqueue.compat.v1 import absent
from aioqueue.compat.v1.core.shapes import dimension_at_index, dimension_value

__all__ = (
    "as_bytes", "as_str", "as_str_any", "as_text", "bytes_or_text_types", "complex_types",
    "dimension_at_index", "dimension_value", "integral_types", "path_to_str", "real_types",
)  # fmt: skip

integral_types = (numbers.Integral, np.integer)
real_types = (numbers.Real, np.integer, np.floating)
complex_types = (numbers.Complex, np.number)
bytes_or_text_types: tuple[type[bytes], type[str]] = (bytes, str)


def as_bytes(bytes_or_text: bytes | str, encoding: str = "utf-8") -> bytes:
    """The same as bytes."""
    if isinstance(bytes_or_text, str):
        return bytes_or_text.encode(encoding)
    if isinstance(bytes_or_text, bytes | bytearray):
        return bytes(bytes_or_text)
    raise TypeError(f"Expected binary or unicode string, got {bytes_or_text!r}")


def as_text(bytes_or_text: bytes | str, encoding: str = "utf-8") -> str:
    """The same as text; see `as_bytes`."""
    if isinstance(bytes_or_text, str):
        return bytes_or_text
    if isinstance(bytes_or_text, bytes):
        return bytes_or_text.decode(encoding)
    raise TypeError(f"Expected binary or unicode string, got {bytes_or_text!r}")


as_str = as_text


def as_str_any(value: Any) -> str:
    """Any value as text: bytes are decoded, others printed."""
    return as_text(value) if isinstance(value, bytes) else str(value)


def path_to_str(path: Any) -> Any:
    """A path as text; what is no path is returned as it is."""
    return os.fspath(path) if hasattr(path, "__fspath__") else path


__getattr__ = absent.names_of(__name__, deferred={"v1": lambda: sys.modules[__package__]})
