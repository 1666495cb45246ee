"""``tf.sparse``: sparse tensors, under their later names."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.sparse import SparseTensor
from aioqueue.compat.v1.ops.sparse import sparse_placeholder as placeholder
from aioqueue.compat.v1.ops.sparse import sparse_reorder as reorder
from aioqueue.compat.v1.ops.sparse import sparse_reshape as reshape
from aioqueue.compat.v1.ops.sparse import sparse_tensor_to_dense as to_dense
from aioqueue.compat.v1.ops.sparse import sparse_to_indicator as to_indicator

__all__ = ("SparseTensor", "placeholder", "reorder", "reshape", "to_dense", "to_indicator")

__getattr__ = names_of(__name__)
