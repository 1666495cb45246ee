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

__all__ = (
    "Dataset",
    "Iterator",
    "TFRecordDataset",
    "TextLineDataset",
    "batch_and_drop_remainder",
    "bucket_by_sequence_length",
    "group_by_window",
    "map_and_batch",
    "parallel_interleave",
    "shuffle_and_repeat",
    "unbatch",
)

__getattr__ = names_of(__name__)
