"""``tf.sparse``: sparse tensors, under their later names."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.sparse import SparseTensor
from aioqueue.compat.v1.ops.sparse import sparse_placeholder as placeholder
from aioqueue.compat.v1.ops.sparse import sparse_tensor_to_dense as to_dense
from aioqueue.compat.v1.ops.sparse_arithmetic import sparse_add as add
from aioqueue.compat.v1.ops.sparse_arithmetic import sparse_maximum as maximum
from aioqueue.compat.v1.ops.sparse_arithmetic import sparse_minimum as minimum
from aioqueue.compat.v1.ops.sparse_arithmetic import sparse_reduce_max as reduce_max
from aioqueue.compat.v1.ops.sparse_arithmetic import sparse_reduce_max_sparse as reduce_max_sparse
from aioqueue.compat.v1.ops.sparse_arithmetic import sparse_reduce_sum as reduce_sum
from aioqueue.compat.v1.ops.sparse_arithmetic import sparse_reduce_sum_sparse as reduce_sum_sparse
from aioqueue.compat.v1.ops.sparse_arithmetic import sparse_tensor_dense_matmul as matmul
from aioqueue.compat.v1.ops.sparse_arithmetic import (
    sparse_tensor_dense_matmul as sparse_dense_matmul,
)
from aioqueue.compat.v1.ops.sparse_changes import sparse_concat as concat
from aioqueue.compat.v1.ops.sparse_changes import sparse_reorder as reorder
from aioqueue.compat.v1.ops.sparse_changes import sparse_reshape as reshape
from aioqueue.compat.v1.ops.sparse_changes import sparse_retain as retain
from aioqueue.compat.v1.ops.sparse_changes import sparse_to_indicator as to_indicator
from aioqueue.compat.v1.ops.sparse_parts import from_dense
from aioqueue.compat.v1.ops.sparse_parts import sparse_expand_dims as expand_dims
from aioqueue.compat.v1.ops.sparse_parts import sparse_fill_empty_rows as fill_empty_rows
from aioqueue.compat.v1.ops.sparse_parts import sparse_merge as merge
from aioqueue.compat.v1.ops.sparse_parts import sparse_reset_shape as reset_shape
from aioqueue.compat.v1.ops.sparse_parts import sparse_slice as slice
from aioqueue.compat.v1.ops.sparse_parts import sparse_split as split
from aioqueue.compat.v1.ops.sparse_parts import sparse_transpose as transpose

__all__ = (
    "SparseTensor",
    "add",
    "concat",
    "expand_dims",
    "fill_empty_rows",
    "from_dense",
    "matmul",
    "maximum",
    "merge",
    "minimum",
    "placeholder",
    "reduce_max",
    "reduce_max_sparse",
    "reduce_sum",
    "reduce_sum_sparse",
    "reorder",
    "reset_shape",
    "reshape",
    "retain",
    "slice",
    "sparse_dense_matmul",
    "split",
    "to_dense",
    "to_indicator",
    "transpose",
)

__getattr__ = names_of(__name__)
