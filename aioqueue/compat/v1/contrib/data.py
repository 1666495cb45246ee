"""``tf.contrib.data``: functions for `Dataset.apply`."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.datasets import grouping as _grouping
from aioqueue.compat.v1.datasets.dataset import Dataset
from aioqueue.compat.v1.datasets.files import TextLineDataset, TFRecordDataset
from aioqueue.compat.v1.datasets.grouping import *
from aioqueue.compat.v1.datasets.iterator import Iterator

__all__: tuple[str, ...] = (
    "Dataset",
    "Iterator",
    "TFRecordDataset",
    "TextLineDataset",
)
__all__ += _grouping.__all__

__getattr__ = names_of(__name__)
