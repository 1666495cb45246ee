"""`RecordInput`: the records of TFRecord files in random order, epoch after epoch, in batches."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.default_graph import op
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.arrays import reshape, split
from aioqueue.compat.v1.ops.files import glob_files
from aioqueue.compat.v1.readers.formats import tf_record_file
from aioqueue.compat.v1.readers.records import TFRecordOptions

__all__ = ("RecordInput",)


class RecordInput:
    """Reads TFRecord files for ever: in each epoch each record once, in another order.

    Records are read when they are asked for. With one seed their order is the same in each session;
    TensorFlow's differs from run to run.

    Args:
        file_pattern: the path of the files, perhaps with wildcards.
        batch_size: how many records a run gives.
        buffer_size: among how many records the next one is drawn.
        parallelism: accepted.
        shift_ratio: the part of the files by which each epoch begins further on.
        seed: of the order.
        name: of the op.
        batches: how many batches a run gives, in a list of lists; None for a single one.
        compression_type: as for `TFRecordOptions`.

    Raises:
        ValueError: there is no such compression.
    """

    def __init__(
        self,
        file_pattern: str,
        batch_size: int = 1,
        buffer_size: int = 1,
        parallelism: int = 1,
        shift_ratio: float = 0,
        seed: int = 0,
        name: str | None = None,
        batches: int | None = None,
        compression_type: Any = None,
    ) -> None:
        del parallelism
        self._file_pattern = file_pattern
        self._batch_size = batch_size if batches is None else batch_size * batches
        self._batches = batches
        self._buffer_size = buffer_size
        self._shift_ratio = shift_ratio
        self._seed = seed
        self._name = name
        self._compression = TFRecordOptions.get_compression_type_string(compression_type)

    def get_yield_op(self) -> Any:
        """A string tensor of the next records; running it raises for files that cannot be read.

        Returns:
            A vector; if there are several batches, a list of them, each a list of scalars.
        """
        size, key = self._batch_size, object()

        def kernel(step: Any) -> Any:
            shuffled = step.own_resources.get_or_create(
                ("record_input", key), self._shuffled, _Shuffled.close
            )
            batch = np.empty(size, object)
            batch[:] = shuffled.take(size)
            return batch

        outputs = [(dtypes.string, TensorShape([size]))]
        records = op("RecordInput", [], outputs, kernel, name=self._name or "RecordInput").outputs[
            0
        ]
        if self._batches is None:
            return records
        with name_scope(self._name, "RecordInput"):
            scalars = [reshape(one, []) for one in split(records, size, 0)]
        return [scalars[number :: self._batches] for number in range(self._batches)]

    def _shuffled(self) -> _Shuffled:
        return _Shuffled(self._records(), self._buffer_size, self._seed)

    def _records(self) -> Iterator[Iterator[bytes]]:
        """The records of each epoch."""
        for epoch in itertools.count(1):
            paths = glob_files(self._file_pattern)
            if not paths:
                raise errors.NotFoundError(
                    None, None, f"Found no files at {os.fsdecode(self._file_pattern)}"
                )
            random.Random(f"{self._seed} {epoch}").shuffle(paths)
            if 0 <= self._shift_ratio < 1:
                shift = int(self._shift_ratio * len(paths))
                paths = paths[shift:] + paths[:shift]
            yield (
                record.value for path in paths for record in tf_record_file(path, self._compression)
            )


class _Shuffled:
    """The records of one session, drawn at random from a buffer.

    Args:
        epochs: the records of each epoch.
        size: how many records the buffer holds.
        seed: the seed of the order.
    """

    def __init__(self, epochs: Iterator[Iterator[bytes]], size: int, seed: int) -> None:
        self._lock = threading.Lock()  # guards all below
        self._random = random.Random(seed)
        self._failure: tuple[Any, str] | None = None
        self._drawn = self._drawn_from(epochs, max(1, size))

    def take(self, count: int) -> list[bytes]:
        """The next records; what a failure ended fails again."""
        with self._lock:
            if self._failure is not None:
                kind, message = self._failure
                raise kind(None, None, message)
            try:
                return list(itertools.islice(self._drawn, count))
            except errors.OpError as error:
                self._failure = type(error), error.message
                raise

    def close(self) -> None:
        """Close the file in progress: the session is over."""
        with self._lock:
            self._failure = errors.CancelledError, "Session has been closed."
            self._drawn.close()

    def _drawn_from(
        self, epochs: Iterator[Iterator[bytes]], size: int
    ) -> Generator[bytes, None, None]:
        for records in epochs:
            yield from self._shuffled(records, size)

    def _shuffled(self, records: Iterator[bytes], size: int) -> Iterator[bytes]:
        """The records of one epoch: a buffer that is kept full gives a random one of its own."""
        buffer = list(itertools.islice(records, size))
        if not buffer:
            raise errors.OutOfRangeError(None, None, "The files have no records")
        for record in records:
            place = self._random.randrange(size)
            drawn, buffer[place] = buffer[place], record
            yield drawn
        self._random.shuffle(buffer)
        yield from buffer
