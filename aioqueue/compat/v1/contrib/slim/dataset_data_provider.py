"""``slim.dataset_data_provider``: the tensors of a data set that is read in parallel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.contrib.slim.data_provider import DataProvider
from aioqueue.compat.v1.contrib.slim.dataset import Dataset
from aioqueue.compat.v1.contrib.slim.parallel_reader import parallel_read

__all__ = ("DatasetDataProvider",)


class DatasetDataProvider(DataProvider):
    """The tensors of an example of a data set, and the key of its record.

    Args:
        dataset: the data set.
        num_readers: how many readers read at once.
        reader_kwargs: arguments of each.
        shuffle: whether files and records come in random order.
        num_epochs: how often each file is read; None for no end.
        common_queue_capacity: of the queue of records.
        common_queue_min: how many stay in it, to draw from.
        record_key: the name of the item that is the key.
        seed: of both orders.
        scope: of the ops.

    Raises:
        ValueError: an item of the data set has the name of the key.
    """

    def __init__(
        self,
        dataset: Dataset,
        num_readers: int = 1,
        reader_kwargs: Mapping[str, Any] | None = None,
        shuffle: bool = True,
        num_epochs: int | None = None,
        common_queue_capacity: int = 256,
        common_queue_min: int = 128,
        record_key: str = "record_key",
        seed: int | None = None,
        scope: str | None = None,
    ) -> None:
        key, data = parallel_read(
            dataset.data_sources,
            dataset.reader,
            num_epochs,
            num_readers,
            reader_kwargs,
            shuffle,
            capacity=common_queue_capacity,
            min_after_dequeue=common_queue_min,
            seed=seed,
            scope=scope,
        )
        items = dataset.decoder.list_items()
        if record_key in items:
            raise ValueError(
                f"The item name used for `record_key` cannot also be used for a dataset item:"
                f" {record_key}"
            )
        tensors = dataset.decoder.decode(data, items)
        pairs = zip([*items, record_key], [*tensors, key], strict=True)
        super().__init__(dict(pairs), dataset.num_samples)


__getattr__ = names_of(__name__)
