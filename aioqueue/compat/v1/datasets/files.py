"""Datasets of what is in files: their lines, their TFRecords, or records of one length."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import string
from aioqueue.compat.v1.datasets.dataset import Dataset
from aioqueue.compat.v1.datasets.elements import DatasetRun, Start, TensorInfo
from aioqueue.compat.v1.datasets.stages import Row, Rows
from aioqueue.compat.v1.ops.building import invalid
from aioqueue.compat.v1.ops.files import file_errors
from aioqueue.compat.v1.readers.formats import (
    Record,
    fixed_length_records,
    line_file,
    tf_record_file,
)
from aioqueue.compat.v1.readers.records import TFRecordOptions

__all__ = ("FixedLengthRecordDataset", "TFRecordDataset", "TextLineDataset")


class TextLineDataset(Dataset):
    r"""The lines of text files, without their ends (``\n`` or ``\r\n``).

    Args:
        filenames: a string tensor: one name, or a vector of them.
        compression_type: ``"GZIP"``, ``"ZLIB"`` or ``""``.
        buffer_size: without effect.
        num_parallel_reads: without effect: files are read one after another.

    Raises:
        ValueError: there is no such compression.
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
    ) -> None:
        compression = TFRecordOptions.get_compression_type_string(compression_type)
        _of_files(self, filenames, lambda path: line_file(path, 0, compression))


class TFRecordDataset(Dataset):
    """The records of TFRecord files; the arguments are those of `TextLineDataset`.

    Needs the extra ``tfrecord``.
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
    ) -> None:
        compression = TFRecordOptions.get_compression_type_string(compression_type)
        _of_files(
            self, filenames, lambda path: tf_record_file(path, compression), keeps_damaged=False
        )


class FixedLengthRecordDataset(Dataset):
    """The records of binary files, which all have the same length.

    Args:
        filenames: a string tensor: one name, or a vector of them.
        record_bytes: how long a record is.
        header_bytes: how much to leave out at the start of each file.
        footer_bytes: how much to leave out at its end.
        buffer_size: without effect.
        compression_type: ``"GZIP"``, ``"ZLIB"`` or ``""``.
        num_parallel_reads: without effect: files are read one after another.

    Raises:
        ValueError: there is no such compression.
        InvalidArgumentError: when it runs: a size is not valid, or a file ends inside a record.
    """

    def __init__(
        self,
        filenames: Any,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        buffer_size: Any = None,
        compression_type: str | None = None,
        num_parallel_reads: Any = None,
    ) -> None:
        compression = TFRecordOptions.get_compression_type_string(compression_type)
        header, footer = header_bytes or 0, footer_bytes or 0

        def read(path: str) -> Iterator[Record]:
            for name, size, least in (
                ("record_bytes", record_bytes, 1),
                ("header_bytes", header, 0),
                ("footer_bytes", footer, 0),
            ):
                if size < least:
                    raise invalid(f"`{name}` must be {'>= 0' if not least else '> 0'}")
            if not compression and "://" not in path:
                _check_multiple(path, record_bytes, header, footer)
            return fixed_length_records(record_bytes, header, footer, 0, compression)(
                os.fsencode(path)
            )

        _of_files(self, filenames, read)


def _check_multiple(path: str, record: int, header: int, footer: int) -> None:
    with file_errors(path):
        body = os.path.getsize(path) - header - footer
    if body < 0 or body % record:
        raise invalid(
            f"Excluding the header ({header} bytes) and footer ({footer} bytes), input file"
            f' "{path}" has body length {body} bytes, which is not an exact multiple of the record'
            f" length ({record} bytes)."
        )


def _of_files(
    dataset: Dataset,
    filenames: Any,
    read: Callable[[str], Iterator[Record]],
    keeps_damaged: bool = True,
) -> None:
    """Make a dataset of the records of files; the arguments are those of `_Records`."""
    names = convert_to_tensor(filenames, dtype=string)

    def begin(run: DatasetRun) -> Start:
        def start() -> Rows:
            paths = map(os.fsdecode, np.ravel(np.asarray(run.values[names], object)).tolist())
            return _Records(list(paths), read, keeps_damaged)

        return start

    Dataset.__init__(dataset, TensorInfo(string, ()), begin, tensors=[names])


class _Records(Iterator[Row]):
    """The records of files, one file after another.

    As in TensorFlow, a file that gives no record because of an error is tried again whenever one is
    asked for; after an error further on, it is passed over.

    Args:
        paths: of the files.
        read: begins to read one.
        keeps_damaged: whether a file that is damaged from the beginning is tried again too.
    """

    def __init__(
        self,
        paths: list[str],
        read: Callable[[str], Iterator[Record]],
        keeps_damaged: bool,
    ) -> None:
        self._paths = paths
        self._read = read
        self._keeps_damaged = keeps_damaged
        self._place = 0
        self._records: Iterator[Record] | None = None
        self._has_begun = False

    def __next__(self) -> Row:
        while self._place < len(self._paths):
            try:
                if self._records is None:
                    self._records = self._read(self._paths[self._place])
                record = next(self._records)
            except StopIteration:
                self._pass_on()
            except errors.OpError as error:
                self._records = None
                if self._has_begun or self._is_final(error):
                    self._pass_on()
                raise
            else:
                self._has_begun = True
                return (record.value,)
        raise StopIteration

    def _is_final(self, error: errors.OpError) -> bool:
        return isinstance(error, errors.DataLossError) and not self._keeps_damaged

    def _pass_on(self) -> None:
        self._place += 1
        self._records, self._has_begun = None, False
