"""Datasets of what is in files: `TextLineDataset` and `TFRecordDataset`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import string
from aioqueue.compat.v1.datasets.dataset import Dataset
from aioqueue.compat.v1.datasets.elements import DatasetRun, Start, TensorInfo
from aioqueue.compat.v1.datasets.stages import Row, Rows
from aioqueue.compat.v1.readers.formats import Record, line_file, tf_record_file
from aioqueue.compat.v1.readers.records import TFRecordOptions

__all__ = ("TFRecordDataset", "TextLineDataset")


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
    """The records of TFRecord files. Needs the extra ``tfrecord``.

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
        _of_files(self, filenames, lambda path: tf_record_file(path, compression))


def _of_files(dataset: Dataset, filenames: Any, read: Callable[[str], Iterator[Record]]) -> None:
    """Make a dataset of the records of files."""
    names = convert_to_tensor(filenames, dtype=string)

    def begin(run: DatasetRun) -> Start:
        def start() -> Rows:
            paths = map(os.fsdecode, np.ravel(np.asarray(run.values[names], object)).tolist())
            return map(_row, chain.from_iterable(map(read, paths)))

        return start

    Dataset.__init__(dataset, TensorInfo(string, ()), begin, tensors=[names])


def _row(record: Record) -> Row:
    return (record.value,)
