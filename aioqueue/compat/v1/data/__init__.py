"""``tf.data``: as far as scripts with queues use it."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.data import experimental
from aioqueue.compat.v1.datasets import files as _files
from aioqueue.compat.v1.datasets import iterator as _iterator
from aioqueue.compat.v1.datasets.dataset import Dataset
from aioqueue.compat.v1.datasets.files import *
from aioqueue.compat.v1.datasets.iterator import *

__all__: tuple[str, ...] = (
    "Dataset",
    "experimental",
)
__all__ += _files.__all__
__all__ += _iterator.__all__

__getattr__ = names_of(__name__)
