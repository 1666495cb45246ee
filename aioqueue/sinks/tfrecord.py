"""`to_tfrecord`: the rows of a pipeline as records of bytes, in the format of TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aioqueue import InvalidArgumentError
from aioqueue.errors import with_article
from aioqueue.pipeline.sink import RowWriter, Sink
from aioqueue.readers.compression import checked_kind, suffix_of
from aioqueue.readers.tfrecord import TFRecordWriter, required_crc32c


def to_tfrecord(
    path: str | os.PathLike[str],
    *,
    rows_per_file: int = 100_000,
    compression: str | None = None,
    batches: bool | None = None,
) -> Sink:
    """Write rows as TFRecord files. Pass it to `Pipeline.write`. Needs the extra ``tfrecord``.

    A row is bytes, or a message of protobuf such as a ``tf.train.Example``, which is serialised.

    Args:
        path: a local folder, which is made; the files in it are ``part-00000.tfrecord`` and so on.
        rows_per_file: how many rows a file has, >= 1. The last one may have fewer.
        compression: ``None``, or ``"gzip"``, ``"bz2"``, ``"xz"``, ``"zstd"``, whose suffix the
            files get. TensorFlow reads the first one.
        batches: whether the pipeline makes batches, whose rows are written; ``None`` to go by its
            stages, such as `batch`.

    Raises:
        InvalidArgumentError: an argument is not as described.
        ModuleNotFoundError: an extra is not installed.
    """
    required_crc32c()
    return _TFRecord(path, rows_per_file, batches, compression)


class _TFRecord(Sink):
    _function = "to_tfrecord"
    _format = "TFRecord"
    _extra = "tfrecord"
    _page = "howto/writing.md"
    _read_by = "read_tfrecords"

    def __init__(self, path: Any, rows_per_file: Any, batches: Any, compression: Any) -> None:
        super().__init__(path, rows_per_file, batches)
        self._compression = checked_kind(compression)

    @property
    def _suffix(self) -> str:
        return f".tfrecord{suffix_of(self._compression)}"

    def _writer(self, carried: dict[str, Any]) -> RowWriter:
        return _Records(self._compression)


class _Records(RowWriter):
    """Writes records.

    Args:
        compression: of the files; ``None`` for none.
    """

    def __init__(self, compression: str | None) -> None:
        self._compression = compression
        self._file: TFRecordWriter | None = None

    def open(self, path: Path) -> None:
        self._file = TFRecordWriter(path, compression=self._compression)

    def write(self, rows: Sequence[Any], first: int) -> None:
        assert self._file is not None
        for number, row in enumerate(rows, first):
            self._file.write(_record_of(row, number))

    def finish(self) -> None:
        assert self._file is not None
        self._file.close()

    def abandon(self) -> None:
        if self._file is not None:
            with suppress(Exception):
                self._file.close()


def _record_of(row: Any, number: int) -> Any:
    serialize = getattr(row, "SerializeToString", None)
    if serialize is not None:
        return serialize()
    if isinstance(row, bytes | bytearray | memoryview):
        return row
    raise InvalidArgumentError(
        f"row {number}: got {with_article(type(row).__name__)}; expected bytes, or a message"
        " of protobuf: serialise others in a prepare before"
    )
