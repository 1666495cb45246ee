"""``slim.parallel_reader``: several readers that fill one queue of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aioqueue.compat.v1 import gfile
from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.coordination.runners import QueueRunner, add_queue_runner
from aioqueue.compat.v1.core import dtypes as types
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.inputs.fullness import summarize_fullness
from aioqueue.compat.v1.inputs.producers import string_input_producer
from aioqueue.compat.v1.ops.math import add_n
from aioqueue.compat.v1.queues.base import QueueBase
from aioqueue.compat.v1.queues.queues import FIFOQueue, RandomShuffleQueue

__all__ = ("ParallelReader", "get_data_files", "parallel_read", "single_pass_read")


class ParallelReader:
    """Several readers whose records go through one queue, in the order in which they come.

    Args:
        reader_class: makes a reader.
        common_queue: the queue.
        num_readers: how many readers there are.
        reader_kwargs: arguments of each.

    Raises:
        ValueError: `num_readers` is not positive.
    """

    def __init__(
        self,
        reader_class: Callable[..., Any],
        common_queue: QueueBase,
        num_readers: int = 4,
        reader_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if num_readers < 1:
            raise ValueError(f"num_readers: got {num_readers!r}; expected at least 1")
        self._readers = [reader_class(**(reader_kwargs or {})) for _ in range(num_readers)]
        self._common_queue = common_queue

    @property
    def common_queue(self) -> QueueBase:
        """The queue."""
        return self._common_queue

    @property
    def num_readers(self) -> int:
        """How many readers there are."""
        return len(self._readers)

    def read(self, queue: QueueBase, name: str | None = None) -> Any:
        """Key and value of a record; adds a runner that fills the queue.

        Args:
            queue: of names of files.
            name: of the op.
        """
        self._fill([self._common_queue.enqueue(one.read(queue)) for one in self._readers])
        return self._common_queue.dequeue(name=name)

    def read_up_to(self, queue: QueueBase, num_records: int, name: str | None = None) -> Any:
        """Keys and values of several records, of fewer at the end; adds a runner."""
        self._fill(
            [
                self._common_queue.enqueue_many(one.read_up_to(queue, num_records))
                for one in self._readers
            ]
        )
        return self._common_queue.dequeue_up_to(num_records, name=name)

    def _fill(self, enqueues: list[Any]) -> None:
        add_queue_runner(QueueRunner(self._common_queue, enqueues))

    def num_records_produced(self, name: str | None = None) -> Tensor:
        """How many records the readers have read, int64."""
        return add_n([one.num_records_produced() for one in self._readers], name=name)

    def num_work_units_completed(self, name: str | None = None) -> Tensor:
        """How many files the readers have finished, int64."""
        return add_n([one.num_work_units_completed() for one in self._readers], name=name)


def parallel_read(
    data_sources: Any,
    reader_class: Callable[..., Any],
    num_epochs: int | None = None,
    num_readers: int = 4,
    reader_kwargs: Mapping[str, Any] | None = None,
    shuffle: bool = True,
    dtypes: Sequence[Any] | None = None,
    capacity: int = 256,
    min_after_dequeue: int = 128,
    seed: int | None = None,
    scope: str | None = None,
) -> Any:
    """Key and value of a record of some files, which several readers read at once.

    Args:
        data_sources: names of files, or patterns.
        reader_class: makes a reader.
        num_epochs: how often each file is read; None for no end.
        num_readers: how many readers there are.
        reader_kwargs: arguments of each.
        shuffle: whether files and records come in random order.
        dtypes: of key and value; strings if None.
        capacity: of the queue of records.
        min_after_dequeue: how many stay in it, to draw from.
        seed: of both orders.
        scope: of the ops.

    Raises:
        ValueError: there are no files.
    """
    files = get_data_files(data_sources)
    kinds = list(dtypes or [types.string, types.string])
    with name_scope(scope, "parallel_read", []):
        names = string_input_producer(files, num_epochs, shuffle, seed, name="filenames")
        queue: QueueBase
        if shuffle:
            queue = RandomShuffleQueue(
                capacity, min_after_dequeue, kinds, seed=seed, name="common_queue"
            )
        else:
            queue = FIFOQueue(capacity, kinds, name="common_queue")
        summarize_fullness(queue, capacity)
        return ParallelReader(reader_class, queue, num_readers, reader_kwargs).read(names)


def single_pass_read(
    data_sources: Any,
    reader_class: Callable[..., Any],
    reader_kwargs: Mapping[str, Any] | None = None,
    scope: str | None = None,
) -> Any:
    """Key and value of a record of some files, each read once, one after another.

    Args:
        data_sources: names of files, or patterns.
        reader_class: makes the reader.
        reader_kwargs: its arguments.
        scope: of the ops.

    Raises:
        ValueError: there are no files.
    """
    files = get_data_files(data_sources)
    with name_scope(scope, "single_pass_read", []):
        names = string_input_producer(
            files, num_epochs=1, shuffle=False, capacity=1, name="filenames"
        )
        return reader_class(**(reader_kwargs or {})).read(names)


def get_data_files(data_sources: Any) -> list[str]:
    """The names of files that names and patterns stand for.

    Args:
        data_sources: one of them, or lists of them.

    Raises:
        ValueError: there are none.
    """
    if isinstance(data_sources, list | tuple):
        files = [path for one in data_sources for path in get_data_files(one)]
    elif any(mark in data_sources for mark in "*?["):
        files = gfile.Glob(data_sources)
    else:
        files = [data_sources]
    if not files:
        raise ValueError(f"No data files found in {data_sources}")
    return files


__getattr__ = names_of(__name__)
