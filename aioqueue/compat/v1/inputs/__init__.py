"""`tf.train`'s input pipelines: producers, batchers, buckets, sparse tensors."""

from __future__ import annotations

__all__ = ()
