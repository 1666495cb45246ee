"""``tf.contrib.training``: buckets by length."""

from __future__ import annotations

from aioqueue.compat.v1.absent import (
    names_of,
)
from aioqueue.compat.v1.inputs.buckets import (
    bucket,
    bucket_by_sequence_length,
)

__all__ = (
    "bucket",
    "bucket_by_sequence_length",
)

__getattr__ = names_of(__name__)
