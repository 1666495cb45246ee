"""Compressed files as TensorFlow's writers make them: its options for zlib, and what they do."""

from __future__ import annotations

import operator
import zlib
from typing import Any, Final

from aioqueue.compat.v1 import errors

__all__ = ("OPTIONS", "Deflating", "checked_options")

_BYTE: Final = 2**7
_WORD: Final = 2**63
_DEFAULTS: Final = {
    "flush_mode": zlib.Z_NO_FLUSH,
    "input_buffer_size": 2**18,
    "output_buffer_size": 2**18,
    "window_bits": zlib.MAX_WBITS,
    "compression_level": zlib.Z_DEFAULT_COMPRESSION,
    "compression_method": zlib.DEFLATED,
    "mem_level": 9,
    "compression_strategy": zlib.Z_DEFAULT_STRATEGY,
}
_GZIP: Final = 16  # added to the bits of the window: a head and an end of gzip's

OPTIONS: Final = tuple(_DEFAULTS)
"""What may be said of the compression, beside its kind."""


def checked_options(compression: str, given: dict[str, Any]) -> dict[str, int]:
    """The numbers of a compression: those that were given, or else TensorFlow's own.

    Args:
        compression: ``"GZIP"``, ``"ZLIB"`` or ``""``.
        given: values by the names of `OPTIONS`; None for TensorFlow's default.

    Raises:
        TypeError: a value is not an int, or is too large for TensorFlow's field.
    """
    gzip = {"window_bits": zlib.MAX_WBITS + _GZIP} if compression == "GZIP" else {}
    found = {**_DEFAULTS, **gzip}
    for name, value in given.items():
        if value is not None:
            found[name] = _checked(name, value)
    return found


def _checked(name: str, value: Any) -> int:
    limit = _WORD if name.endswith("_size") else _BYTE
    try:
        number = operator.index(value)
    except TypeError:
        number = limit
    if not -limit <= number < limit:
        raise TypeError(f"{name}: got {value!r}; expected an int from {-limit} to {limit - 1}")
    return number


class Deflating:
    """A stream that compresses what is written to it into a file.

    It collects what is written, and compresses it when it has collected ``input_buffer_size``
    bytes, with ``flush_mode``. With the same zlib, the same bytes as TensorFlow's come out, unless
    a flush mode or a small buffer was asked for.

    Args:
        file: to write to; closing the stream closes it.
        options: as `checked_options` returns them.

    Raises:
        InvalidArgumentError: zlib does not take these numbers. TensorFlow ended the program.
    """

    def __init__(self, file: Any, options: dict[str, int]) -> None:
        if options["output_buffer_size"] < 2:
            raise _refused("output_buffer_bytes should be greater than 1", options)
        if options["input_buffer_size"] < 0:
            raise _refused("input_buffer_bytes should not be negative", options)
        try:
            self._deflate = zlib.compressobj(
                options["compression_level"],
                options["compression_method"],
                options["window_bits"],
                options["mem_level"],
                options["compression_strategy"],
            )
        except ValueError as error:
            raise _refused("deflateInit failed with status -2", options) from error
        self._file = file
        self._flush_mode = options["flush_mode"]
        self._room = options["input_buffer_size"]
        self._collected: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> int:
        """Take some data.

        Raises:
            DataLossError: zlib cannot go on, after a ``flush_mode`` that ends the stream, say.
        """
        if self._size and self._size + len(data) > self._room:
            self._compress(self._flush_mode)
        self._collected.append(data)
        self._size += len(data)
        if self._size > self._room:
            self._compress(self._flush_mode)
        return len(data)

    def flush(self) -> None:
        """Make all that was written readable, from the file as it is then.

        Raises:
            DataLossError: zlib cannot go on.
        """
        self._compress(zlib.Z_PARTIAL_FLUSH)
        self._file.flush()

    def close(self) -> None:
        """Write what is left, and the end of the stream; close the file, whatever happens.

        Raises:
            DataLossError: zlib cannot go on.
        """
        try:
            self._compress(zlib.Z_FINISH)
        finally:
            self._file.close()

    def _compress(self, mode: int) -> None:
        data = b"".join(self._collected)
        self._collected.clear()
        self._size = 0
        try:
            compressed = self._deflate.compress(data) + self._deflate.flush(mode)
        except (zlib.error, ValueError) as error:
            message = "deflate() failed with error -2"
            raise errors.DataLossError(None, None, message) from error
        self._file.write(compressed)


def _refused(why: str, options: dict[str, int]) -> errors.OpError:
    given = ", ".join(f"{name}={value}" for name, value in options.items())
    return errors.InvalidArgumentError(None, None, f"{why}: {given}")
