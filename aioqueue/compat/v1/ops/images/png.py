"""PNG files from arrays (W3C, "Portable Network Graphics", third edition)."""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ("encode",)

_COLOUR_TYPES: Final = {1: 0, 2: 4, 3: 2, 4: 6}
_UP: Final = 2
"""The filter that keeps the difference to the row above."""


def encode(pixels: NDArray[Any], compression: int = -1) -> bytes:
    """A file with pixels.

    Args:
        pixels: uint8 or uint16 ``[height, width, channels]``, with 1 to 4 channels.
        compression: from 0, none, to 9, the best; -1 for zlib's own choice.
    """
    height, width, channels = pixels.shape
    stored = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder(">")).view(np.uint8)
    rows = stored.reshape(height, -1)
    filtered = np.empty((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = _UP
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    head = struct.pack(
        ">IIBBBBB", width, height, 8 * pixels.dtype.itemsize, _COLOUR_TYPES[channels], 0, 0, 0
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in (
            (b"IHDR", head),
            (b"IDAT", zlib.compress(filtered.tobytes(), compression)),
            (b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
