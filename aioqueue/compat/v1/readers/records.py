"""``tf.python_io``: TFRecord files, written and read without a graph."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from aioqueue import inputs
from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.ops.files import file_errors, filesystem
from aioqueue.compat.v1.protos.summaries import summary_classes
from aioqueue.compat.v1.readers.deflating import OPTIONS, Deflating, checked_options
from aioqueue.compat.v1.readers.formats import tf_record_file

__all__ = (
    "TFRecordCompressionType",
    "TFRecordOptions",
    "TFRecordWriter",
    "summary_iterator",
    "tf_record_iterator",
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
        flush_mode: how a writer flushes each ``input_buffer_size`` bytes: a constant of `zlib`.
        input_buffer_size: how many bytes a writer compresses at a time.
        output_buffer_size: checked, and else without effect.
        window_bits: of zlib; those that a reader takes depend on the kind of compression.
        compression_level: 0 to 9; None, or -1, for zlib's own.
        compression_method: 8, which is all that there is.
        mem_level: 1 to 9.
        compression_strategy: a constant of `zlib`.

    What a number may be is checked by the writer that is given it.

    Raises:
        ValueError: there is no such compression.
    """

    compression_type_map: dict[int, str] = {  # noqa: RUF012  # as TensorFlow has it
        TFRecordCompressionType.ZLIB: "ZLIB",
        TFRecordCompressionType.GZIP: "GZIP",
        TFRecordCompressionType.NONE: "",
    }

    def __init__(
        self,
        compression_type: Any = None,
        flush_mode: int | None = None,
        input_buffer_size: int | None = None,
        output_buffer_size: int | None = None,
        window_bits: int | None = None,
        compression_level: int | None = None,
        compression_method: int | None = None,
        mem_level: int | None = None,
        compression_strategy: int | None = None,
    ) -> None:
        self.get_compression_type_string(compression_type)
        self.compression_type = compression_type
        self.flush_mode = flush_mode
        self.input_buffer_size = input_buffer_size
        self.output_buffer_size = output_buffer_size
        self.window_bits = window_bits
        self.compression_level = compression_level
        self.compression_method = compression_method
        self.mem_level = mem_level
        self.compression_strategy = compression_strategy

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
        OpError: the file cannot be made (`NotFoundError`, for instance), or zlib does not take the
            numbers of the options (`InvalidArgumentError`).
        ValueError: there is no such compression.
        TypeError: a numeric option is not a number.
    """

    def __init__(self, path: Any, options: Any = None) -> None:
        compression = TFRecordOptions.get_compression_type_string(options)
        given = {name: getattr(options, name, None) for name in OPTIONS}
        tuning = checked_options(compression, given)
        system, place = filesystem(path)
        self._closing = ExitStack()
        with file_errors(path), self._closing as closing:
            stream = closing.enter_context(system.open(place, "wb"))
            if compression:
                stream = Deflating(stream, tuning)
                closing.callback(stream.close)
            self._writer = closing.enter_context(inputs.TFRecordWriter(stream))
            self._closing = closing.pop_all()
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
        """Hand what has been written to the operating system: it can be read from then on.

        Raises:
            FailedPreconditionError: the writer is closed.
        """
        self._check()
        self._writer.flush()

    def close(self) -> None:
        """Write what is left, and close the file. A second time does nothing."""
        self._is_closed = True
        self._closing.close()

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
