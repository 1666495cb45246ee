"""``tf.python_io``: files of TFRecords, written and read without a session."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.readers.records import *
from aioqueue.compat.v1.readers.records import __all__ as __all__

__getattr__ = names_of(__name__)
