"""``tf.contrib.data``: functions for `Dataset.apply`."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.datasets.dataset import Dataset
from aioqueue.compat.v1.datasets.files import TextLineDataset, TFRecordDataset
from aioqueue.compat.v1.datasets.grouping import (
    batch_and_drop_remainder,
    bucket_by_sequence_length,
    group_by_window,
    map_and_batch,
    parallel_interleave,
    shuffle_and_repeat,
    unbatch,
)
from aioqueue.compat.v1.datasets.iterator import Iterator
from aioqueue.compat.v1.datasets.options import AUTOTUNE
from aioqueue.compat.v1.datasets.transforming import (
    choose_from_datasets,
    copy_to_device,
    enumerate_dataset,
    ignore_errors,
    prefetch_to_device,
)
from aioqueue.compat.v1.datasets.transforming import counter as Counter  # noqa: N812

__all__ = (
    "AUTOTUNE",
    "Counter",
    "Dataset",
    "Iterator",
    "TFRecordDataset",
    "TextLineDataset",
    "batch_and_drop_remainder",
    "bucket_by_sequence_length",
    "choose_from_datasets",
    "copy_to_device",
    "enumerate_dataset",
    "group_by_window",
    "ignore_errors",
    "map_and_batch",
    "parallel_interleave",
    "prefetch_to_device",
    "shuffle_and_repeat",
    "unbatch",
)

__getattr__ = names_of(__name__)
