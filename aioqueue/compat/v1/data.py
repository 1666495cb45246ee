"""``tf.data``: as far as scripts with queues use it."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of, namespace
from aioqueue.compat.v1.datasets import dataset as _dataset
from aioqueue.compat.v1.datasets import iterator as _iterator
from aioqueue.compat.v1.datasets.dataset import *
from aioqueue.compat.v1.datasets.iterator import *

__all__: tuple[str, ...] = ("experimental",)
__all__ += _dataset.__all__
__all__ += _iterator.__all__

experimental = namespace(
    f"{__name__}.experimental",
    "``tf.data.experimental``: functions for `Dataset.apply`.",
    *(_dataset.bucket_by_sequence_length, _dataset.group_by_window, _dataset.map_and_batch),
    *(_dataset.parallel_interleave, _dataset.shuffle_and_repeat, _dataset.unbatch),
)

__getattr__ = names_of(__name__)
