"""``tf.contrib.training``: buckets by length, and parameters by name."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.contrib.hparam import HParams
from aioqueue.compat.v1.inputs.buckets import (
    bucket,
    bucket_by_sequence_length,
)

__all__ = (
    "HParams",
    "bucket",
    "bucket_by_sequence_length",
)

__getattr__ = names_of(__name__)
