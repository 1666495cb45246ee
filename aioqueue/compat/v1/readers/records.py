"""Files of records, by the native readers under TensorFlow's rules, and ``tf.python_io``."""

from __future__ import annotations

import operator
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeAlias

import aioqueue
from aioqueue import inputs
from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.ops.files import file_errors, filesystem
from aioqueue.compat.v1.protos import summary_classes

__all__ = ("TFRecordCompressionType", "TFRecordOptions", "TFRecordWriter", "tf_record_iterator")


class Record(NamedTuple):
    key: bytes
    value: bytes


Opener: TypeAlias = Callable[[bytes], Iterator[Record]]
"""What starts on a file: opens it, or raises, and returns its records."""

_FRAME = 16  # a TFRecord's length and two checksums

COMPRESSIONS = {"GZIP": "gzip", "ZLIB": "zlib"}
"""TensorFlow's names for what `aioqueue.inputs` can undo."""


class _Remembering(Iterator[Record]):
    """Records of an open file, the first read at once; a failure is raised again each time."""

    def __init__(self, records: Iterator[Record]) -> None:
        self._records = records
        self._failure: tuple[Any, str] | None = None
        self._first: Record | None = None
        try:
            self._first = next(records, None)
        except errors.DataLossError as error:
            self._failure = type(error), error.message

    def __next__(self) -> Record:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._failure is not None:
            kind, message = self._failure
            raise kind(None, None, message)
        try:
            return next(self._records)
        except errors.OpError as error:
            self._failure = type(error), error.message
            raise

    def close(self) -> None:
        close = getattr(self._records, "close", None)
        if close is not None:
            close()


def opener(records: Callable[[str], Iterator[Record]]) -> Opener:
    """What starts on a file whose records a function of its path gives."""
    return lambda work: _Remembering(records(os.fsdecode(work)))


def line_file(path: str, skip_header_lines: int, compression: str) -> Iterator[Record]:
    """Lines of a text file, without their ends; header lines count in their keys."""
    reader = inputs.read_lines(
        path,
        encoding=None,
        skip_header_lines=skip_header_lines,
        max_line_bytes=None,  # as TensorFlow, which has no limits
        compression=COMPRESSIONS.get(compression),
    )
    with file_errors(path):
        try:
            yield from _keyed(reader)
        except aioqueue.DataLossError as error:
            raise errors.DataLossError(None, None, str(error)) from error


def fixed_length_file(
    path: str,
    encoding: str,
    record_bytes: int,
    header_bytes: int,
    footer_bytes: int,
    hop_bytes: int,
) -> Iterator[Record]:
    """Records of one length; a file without room for its header is the end of the input."""
    reader = inputs.read_records(
        path,
        record_bytes,
        header_bytes=header_bytes,
        footer_bytes=footer_bytes,
        hop_bytes=hop_bytes or None,
        compression=COMPRESSIONS.get(encoding),
    )
    with file_errors(path):
        try:
            yield from _keyed(reader)
        except aioqueue.DataLossError as error:
            if error.fault == "truncated header":
                raise errors.OutOfRangeError(None, None, "reached end of file") from error
            if not error.fault.startswith("truncated"):
                raise errors.DataLossError(None, None, str(error)) from error


def tf_record_file(path: str, compression: str) -> Iterator[Record]:
    """Records of a TFRecord file; a compressed stream may end behind any of them."""
    with file_errors(path):
        reader = inputs.read_tfrecords(
            path, compression=COMPRESSIONS.get(compression), max_record_bytes=None
        )
        record: Record | None = None
        try:
            for record in _keyed(reader):
                yield record
        except aioqueue.DataLossError as error:
            # Where the record behind the last one begins: its key says where that one does.
            end = 0 if record is None else _offset(record) + len(record.value) + _FRAME
            ends_early = isinstance(error.__cause__, EOFError)  # without its end marker
            if ends_early and error.offset == end:
                return
            message = f"{error.fault} at {error.offset}"
            if ends_early:
                message = f"truncated record at {end}' failed with EOF reached"
            elif error.fault == "truncated record":
                message += "' failed with Read less bytes than requested"
            elif error.fault == "corrupted record" and error.offset == 0:
                message += " (Is this even a TFRecord file?)"
            raise errors.DataLossError(None, None, message) from error


def _offset(record: Record) -> int:
    return int(record.key.rpartition(b":")[2])


class WholeFile(Iterator[Record]):
    """The contents of one file. One that cannot be read is tried again by every read."""

    def __init__(self, work: bytes) -> None:
        self._work = work
        self._is_done = False

    def __next__(self) -> Record:
        if self._is_done:
            raise StopIteration
        path = os.fsdecode(self._work)
        with file_errors(path):
            (data,) = inputs.read_whole_files(path, compression=None, max_record_bytes=None)
        self._is_done = True
        return Record(self._work, data)


def identity(work: bytes) -> Iterator[Record]:
    """What came from the queue, as key and value."""
    return iter([Record(work, work)])


def _keyed(reader: inputs.Reader[Any]) -> Iterator[Record]:
    for key, value in reader.with_keys():
        yield Record(os.fsencode(key), value)


_DEFAULTS: Final = {
    "flush_mode": zlib.Z_NO_FLUSH, "input_buffer_size": 2**18, "output_buffer_size": 2**18,
    "window_bits": zlib.MAX_WBITS, "compression_level": zlib.Z_DEFAULT_COMPRESSION,
    "compression_method": zlib.DEFLATED, "mem_level": 9,
    "compression_strategy": zlib.Z_DEFAULT_STRATEGY,
}  # fmt: skip
"""TensorFlow's own numbers of a compression."""
_GZIP: Final = 16  # added to the bits of the window: a head and an end of gzip's


def _tuning(compression: str, options: Any) -> dict[str, int]:
    """The numbers of a compression: those that were given, or else TensorFlow's own."""
    gzip = {"window_bits": zlib.MAX_WBITS + _GZIP} if compression == "GZIP" else {}
    found = {**_DEFAULTS, **gzip}
    for name in _DEFAULTS:
        value = getattr(options, name, None)
        if value is None:
            continue
        limit = 2**63 if name.endswith("_size") else 2**7  # of TensorFlow's field
        try:
            found[name] = operator.index(value)
        except TypeError:
            found[name] = limit
        if not -limit <= found[name] < limit:
            raise TypeError(f"{name}: got {value!r}; expected an int from {-limit} to {limit - 1}")
    return found


class _Deflating:
    """A stream that compresses what it has collected, by ``input_buffer_size``, as TensorFlow."""

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
        if self._size and self._size + len(data) > self._room:
            self._compress(self._flush_mode)
        self._collected.append(data)
        self._size += len(data)
        if self._size > self._room:
            self._compress(self._flush_mode)
        return len(data)

    def flush(self) -> None:
        """Make all that was written readable, from the file as it is then."""
        self._compress(zlib.Z_PARTIAL_FLUSH)
        self._file.flush()

    def close(self) -> None:
        """Write what is left, and the end of the stream; close the file, whatever happens."""
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


class TFRecordCompressionType:
    """How TFRecord files are compressed: the old numbers of the kinds."""

    NONE = 0
    ZLIB = 1
    GZIP = 2


@dataclass(eq=False, repr=False)
class TFRecordOptions:
    """How TFRecord files are compressed; a writer checks the numbers."""

    compression_type_map: ClassVar[dict[int, str]] = {
        TFRecordCompressionType.ZLIB: "ZLIB",
        TFRecordCompressionType.GZIP: "GZIP",
        TFRecordCompressionType.NONE: "",
    }

    compression_type: Any = None
    flush_mode: int | None = None
    input_buffer_size: int | None = None
    output_buffer_size: int | None = None
    window_bits: int | None = None
    compression_level: int | None = None
    compression_method: int | None = None
    mem_level: int | None = None
    compression_strategy: int | None = None

    def __post_init__(self) -> None:
        self.get_compression_type_string(self.compression_type)  # refuses what there is not

    @classmethod
    def get_compression_type_string(cls, options: Any) -> str:
        """The kind of compression as a string: ``"GZIP"``, ``"ZLIB"`` or ``""``."""
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
    """Writes a TFRecord file. Needs the extra ``tfrecord``. For one thread at a time."""

    def __init__(self, path: Any, options: Any = None) -> None:
        compression = TFRecordOptions.get_compression_type_string(options)
        tuning = _tuning(compression, options)
        system, place = filesystem(path)
        self._closing = ExitStack()
        with file_errors(path), self._closing as closing:
            stream = closing.enter_context(system.open(place, "wb"))
            if compression:
                stream = _Deflating(stream, tuning)
                closing.callback(stream.close)
            self._writer = closing.enter_context(inputs.TFRecordWriter(stream))
            self._closing = closing.pop_all()
        self._is_closed = False

    def write(self, record: bytes | str) -> None:
        """Write one record."""
        self._check()
        self._writer.write(record.encode() if isinstance(record, str) else record)

    def flush(self) -> None:
        """Hand what has been written to the operating system: it can be read from then on."""
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

    def __exit__(self, *details: object) -> None:
        self.close()


def tf_record_iterator(path: Any, options: Any = None) -> Iterator[bytes]:
    """The records of a TFRecord file. Needs the extra ``tfrecord``."""
    compression = TFRecordOptions.get_compression_type_string(options)
    records = tf_record_file(os.fsdecode(path), compression)
    return (record.value for record in records)


def summary_iterator(path: Any) -> Iterator[Any]:
    """The ``tf.Event`` messages of an event file. Needs the extra ``tfrecord``."""
    event = summary_classes()["Event"]
    return map(event.FromString, tf_record_iterator(path))
