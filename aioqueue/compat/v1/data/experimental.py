"""``tf.data.experimental``: functions for `Dataset.apply`."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.datasets.dataset import (
    bucket_by_sequence_length,
    group_by_window,
    map_and_batch,
    parallel_interleave,
    shuffle_and_repeat,
    unbatch,
)

__all__ = (
    "bucket_by_sequence_length",
    "group_by_window",
    "map_and_batch",
    "parallel_interleave",
    "shuffle_and_repeat",
    "unbatch",
)

__getattr__ = names_of(__name__)
