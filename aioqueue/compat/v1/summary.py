"""``tf.summary``: ops that do nothing, unless something is installed that writes event files."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.protos import SUMMARY_MESSAGES, summary_classes
from aioqueue.compat.v1.summaries import ops as _ops
from aioqueue.compat.v1.summaries.ops import *
from aioqueue.compat.v1.summaries.writer import FileWriter, FileWriterCache

__all__: tuple[str, ...] = ("FileWriter", "FileWriterCache")
__all__ += _ops.__all__

# They need protobuf, an extra, and are made when they are asked for.
__getattr__ = names_of(
    __name__,
    deferred={name: lambda name=name: summary_classes()[name] for name in SUMMARY_MESSAGES},  # type: ignore[misc]
)
