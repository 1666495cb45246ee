"""``tf.python_io``: TFRecord files, written and read without a graph."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from aioqueue import inputs
from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.ops.file_errors import file_errors
from aioqueue.compat.v1.protos.summaries import summary_classes
from aioqueue.compat.v1.readers.formats import COMPRESSIONS, tf_record_file

__all__ = (
    "TFRecordCompressionType",
    "TFRecordOptions",
    "TFRecordWriter",
    "summary_iterator",
    "tf_record_iterator",
)

TUNING = (
    "flush_mode",
    "input_buffer_size",
    "output_buffer_size",
    "window_bits",
    "compression_level",
    "compression_method",
    "mem_level",
    "compression_strategy",
)


class TFRecordCompressionType:
    """How TFRecord files are compressed: the old numbers of the kinds."""

    NONE = 0
    ZLIB = 1
    GZIP = 2


class TFRecordOptions:
    """How TFRecord files are compressed.

    Args:
        compression_type: ``"GZIP"``, ``"ZLIB"`` or ``""``; a number of `TFRecordCompressionType`;
            another `TFRecordOptions`; None for no compression.
        tuning: TensorFlow's numbers for zlib, which are accepted and have no effect.

    Raises:
        ValueError: there is no such compression.
        TypeError: there is no such argument.
    """

    compression_type_map = {  # noqa: RUF012  # as TensorFlow has it
        TFRecordCompressionType.ZLIB: "ZLIB",
        TFRecordCompressionType.GZIP: "GZIP",
        TFRecordCompressionType.NONE: "",
    }

    def __init__(self, compression_type: Any = None, **tuning: Any) -> None:
        unknown = [name for name in tuning if name not in TUNING]
        if unknown:
            raise TypeError(f"TFRecordOptions() got an unexpected keyword argument {unknown[0]!r}")
        self.get_compression_type_string(compression_type)
        self.compression_type = compression_type

    @classmethod
    def get_compression_type_string(cls, options: Any) -> str:
        """The kind of compression as a string: ``"GZIP"``, ``"ZLIB"`` or ``""``.

        Args:
            options: a `TFRecordOptions`, or what its ``compression_type`` may be.

        Raises:
            ValueError: there is no such compression.
        """
        while isinstance(options, TFRecordOptions):
            options = options.compression_type
        if not options:
            return ""
        if options in cls.compression_type_map:
            return cls.compression_type_map[options]
        if options in cls.compression_type_map.values():
            return str(options)
        raise ValueError(f'Not a valid compression_type: "{options}"')


class TFRecordWriter:
    """Writes a TFRecord file. Needs the extra ``tfrecord``. For one thread at a time.

    Args:
        path: of the file, which is made, or emptied.
        options: a `TFRecordOptions`, or a kind of compression.

    Raises:
        OpError: the file cannot be made; `NotFoundError`, for instance.
        ValueError: there is no such compression.
    """

    def __init__(self, path: Any, options: Any = None) -> None:
        compression = TFRecordOptions.get_compression_type_string(options)
        name = os.fsdecode(path)
        with file_errors(name):
            self._writer = inputs.TFRecordWriter(name, compression=COMPRESSIONS.get(compression))
        self._is_closed = False

    def write(self, record: bytes | str) -> None:
        """Write one record.

        Args:
            record: its data; text is written as UTF-8.

        Raises:
            FailedPreconditionError: the writer is closed.
        """
        self._check()
        self._writer.write(record.encode() if isinstance(record, str) else record)

    def flush(self) -> None:
        """Hand what has been written to the operating system, as far as compression allows.

        Raises:
            FailedPreconditionError: the writer is closed.
        """
        self._check()
        self._writer.flush()

    def close(self) -> None:
        """Write what is left, and close the file. A second time does nothing."""
        self._is_closed = True
        self._writer.close()

    def _check(self) -> None:
        if self._is_closed:
            raise errors.FailedPreconditionError(None, None, "Writer is closed.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def tf_record_iterator(path: Any, options: Any = None) -> Iterator[bytes]:
    """The records of a TFRecord file. Needs the extra ``tfrecord``.

    Args:
        path: of the file.
        options: a `TFRecordOptions`, or a kind of compression.

    Returns:
        An iterator of bytes. It raises `NotFoundError` and the like for a file that cannot be
        read, and `DataLossError` for a damaged one.

    Raises:
        ValueError: there is no such compression.
    """
    compression = TFRecordOptions.get_compression_type_string(options)
    records = tf_record_file(os.fsdecode(path), compression)
    return (record.value for record in records)


def summary_iterator(path: Any) -> Iterator[Any]:
    """The ``tf.Event`` messages of an event file. Needs the extra ``tfrecord``.

    Args:
        path: of the file.

    Returns:
        An iterator; what it raises is what that of `tf_record_iterator` raises.
    """
    event = summary_classes()["Event"]
    return map(event.FromString, tf_record_iterator(path))
