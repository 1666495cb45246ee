"""How each kind of reader cuts one file into records, each with the key that says which it is.

The native readers do the work. Said here is where TensorFlow's rules differ from theirs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import aioqueue
from aioqueue import inputs
from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.ops.files import file_errors

__all__ = (
    "COMPRESSIONS",
    "Opener",
    "Record",
    "fixed_length_records",
    "identity",
    "line_file",
    "lines",
    "tf_record_file",
    "tf_records",
    "whole_file",
)


class Record(NamedTuple):
    """One record.

    Attributes:
        key: which one it is, as ``file:line`` for instance.
        value: its data.
    """

    key: bytes
    value: bytes


Opener: TypeAlias = Callable[[bytes], Iterator[Record]]
"""What starts on a file: opens it, or raises, and returns its records."""

_FRAME = 16  # a TFRecord's length and two checksums

COMPRESSIONS = {"GZIP": "gzip", "ZLIB": "zlib"}
"""TensorFlow's names for what `aioqueue.inputs` can undo."""


class _Remembering(Iterator[Record]):
    """Records of an open file; the first is read at once, so that opening fails at once.

    Damaged data is not got past: its failure is raised again by every further attempt. Where a
    file cannot even be opened nothing is made, and its item in the queue has been used up.
    """

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
        """Close the file."""
        close = getattr(self._records, "close", None)
        if close is not None:
            close()


def lines(skip_header_lines: int) -> Opener:
    """Lines of text files; see `line_file`.

    Args:
        skip_header_lines: how many lines to leave out at the start of each file.
    """
    return lambda work: _Remembering(line_file(os.fsdecode(work), skip_header_lines, ""))


def line_file(path: str, skip_header_lines: int, compression: str) -> Iterator[Record]:
    r"""Lines of a text file, without their ends (``\n`` or ``\r\n``).

    Keys are ``file:number``, from 1, header lines counted.

    Args:
        path: of the file.
        skip_header_lines: how many lines to leave out at its start.
        compression: ``"GZIP"``, ``"ZLIB"`` or ``""``.

    Raises:
        DataLossError: the file is damaged.
        OpError: it cannot be read.
    """
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


def fixed_length_records(
    record_bytes: int, header_bytes: int, footer_bytes: int, hop_bytes: int, encoding: str
) -> Opener:
    """Records of one length; keys are ``file:number``, from 0.

    A trailing part of a record is left out. A file without room for its header looks like the end
    of the input, as in TensorFlow.

    Args:
        record_bytes: how long a record is.
        header_bytes: how much to leave out at the start of each file.
        footer_bytes: how much to leave out at its end.
        hop_bytes: from the start of one record to that of the next; 0 for ``record_bytes``.
        encoding: ``"GZIP"``, ``"ZLIB"``, or anything else for files that are not compressed.
    """

    def records(path: str) -> Iterator[Record]:
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

    return lambda work: _Remembering(records(os.fsdecode(work)))


def tf_records(compression: str) -> Opener:
    """Records of TFRecord files; see `tf_record_file`.

    Args:
        compression: ``"GZIP"``, ``"ZLIB"`` or ``""``.
    """
    return lambda work: _Remembering(tf_record_file(os.fsdecode(work), compression))


def tf_record_file(path: str, compression: str) -> Iterator[Record]:
    """Records of a TFRecord file; keys are ``file:offset``, in bytes.

    A compressed stream may end behind any of its records: its writer may be at work still, having
    flushed it there, or have died.

    Args:
        path: of the file.
        compression: ``"GZIP"``, ``"ZLIB"`` or ``""``.

    Raises:
        DataLossError: the file is damaged.
        OpError: it cannot be read.
    """
    with file_errors(path):
        reader = inputs.read_tfrecords(
            path, compression=COMPRESSIONS.get(compression), max_record_bytes=None
        )
        record: Record | None = None
        try:
            for record in _keyed(reader):
                yield record
        except aioqueue.DataLossError as error:
            end = 0 if record is None else _end_of(record)
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


def _end_of(record: Record) -> int:
    """Where the record behind this one begins."""
    return int(record.key.rpartition(b":")[2]) + len(record.value) + _FRAME


class _WholeFile(Iterator[Record]):
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


def whole_file(work: bytes) -> Iterator[Record]:
    """The contents of a file; the key is its name."""
    return _WholeFile(work)


def identity(work: bytes) -> Iterator[Record]:
    """What came from the queue, as key and value."""
    return iter([Record(work, work)])


def _keyed(reader: inputs.Reader[Any]) -> Iterator[Record]:
    for key, value in reader.with_keys():
        yield Record(os.fsencode(key), value)
