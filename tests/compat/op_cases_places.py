"""Cases of segments, places that are written to, counts, and sparse tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compat.op_cases import Case, case, part, parts, u, unknown, values


def sparse_one(tf: Any) -> Any:
    return tf.SparseTensor([[0, 1], [1, 0], [1, 2]], [1.0, 2.0, 3.0], [3, 3])


def sparse_two(tf: Any) -> Any:
    return tf.SparseTensor([[0, 1], [2, 2]], [-1.0, 5.0], [3, 3])


def ids(tf: Any) -> Any:
    return tf.SparseTensor([[0, 0], [1, 0], [1, 1]], np.array([3, 0, 5]), [2, 2])


def weights(tf: Any) -> Any:
    return tf.SparseTensor([[0, 0], [1, 0], [1, 1]], [0.5, 0.25, 0.75], [2, 2])


def scattered(op: str, value: Any, places: Any, updates: Any) -> Case:
    """A variable with some of its places written to, once it is initialised."""

    def made(tf: Any) -> Any:
        variable = tf.Variable(value, name="v")
        with tf.control_dependencies([variable.initializer]):
            indices = tf.identity(tf.constant(places))
        return getattr(tf, op)(variable, indices, updates)

    return made


PLACES: dict[str, Case] = {
    "segments ss": lambda tf: tf.segment_sum([[1.0, 2], [3, 4], [5, 6]], [0, 0, 2]),
    "segments ss unsorted": lambda tf: tf.segment_sum([1.0, 2.0], [1, 0]),
    "segments ss neg": lambda tf: tf.segment_sum([1.0, 2.0], [-1, 0]),
    "segments ss size": lambda tf: tf.segment_sum([1.0, 2.0], u(tf, [0])),
    "segments ss size build": lambda tf: tf.segment_sum([1.0, 2.0], [0]),
    "segments ss rank": lambda tf: tf.segment_sum([1.0, 2.0], [[0, 0]]),
    "segments ss empty": lambda tf: tf.segment_sum(
        np.zeros((0, 2), np.float32), np.zeros(0, np.int32)
    ),
    "segments ss part": lambda tf: tf.segment_sum(part(tf), [0, 1]),
    "segments sm int": lambda tf: tf.segment_mean([1, 2, 4], [0, 0, 2]),
    "segments sm neg int": lambda tf: tf.segment_mean([-1, -2, 4], [0, 0, 2]),
    "segments sp": lambda tf: tf.segment_prod([1, 2, 4], [0, 0, 2]),
    "segments smax": lambda tf: tf.segment_max([-1.0, -2, -4], [0, 0, 2]),
    "segments smin": lambda tf: tf.segment_min([1.0, 2, 4], [0, 0, 2]),
    "segments us": lambda tf: tf.unsorted_segment_sum([1.0, 2, 4], [2, -1, 0], 4),
    "segments us2": lambda tf: tf.unsorted_segment_sum([[1.0, 2], [4, 5]], [[2, 1], [0, 2]], 3),
    "segments us far": lambda tf: tf.unsorted_segment_sum([1.0, 2, 4], [2, 4, 0], 3),
    "segments us far2": lambda tf: tf.unsorted_segment_sum([[1.0, 2], [4, 5]], [[2, 1], [0, 5]], 3),
    "segments us neg": lambda tf: tf.unsorted_segment_sum([1.0, 2, 4], [2, 1, 0], u(tf, -3)),
    "segments us shape": lambda tf: tf.unsorted_segment_sum([1.0, 2, 4], u(tf, [2, 1]), 3),
    "segments us shape build": lambda tf: tf.unsorted_segment_sum([1.0, 2, 4], [2, 1], 3),
    "segments us fed": lambda tf: tf.unsorted_segment_sum(
        [1.0, 2, 4], [2, 1, 0], unknown(tf, 3, [])
    ),
    "segments umax": lambda tf: tf.unsorted_segment_max([1.0, 2, 4], [2, 2, 0], 4),
    "segments umax int": lambda tf: tf.unsorted_segment_max([1, 2, 4], [2, 2, 0], 4),
    "segments umin": lambda tf: tf.unsorted_segment_min([1.0, 2, 4], [2, 2, 0], 4),
    "segments uprod": lambda tf: tf.unsorted_segment_prod([1.0, 2, 4], [2, 2, 0], 4),
    "segments umean": lambda tf: tf.unsorted_segment_mean([[1.0, 2], [4, 5], [7, 8]], [2, 2, 0], 4),
    "segments umean int": lambda tf: tf.unsorted_segment_mean([1, 2, 4], [2, 2, 0], 4),
    "segments usqrt": lambda tf: tf.unsorted_segment_sqrt_n([1.0, 2, 4], [2, 2, 0], 4),
    "places snd": lambda tf: tf.scatter_nd([[0], [2], [0]], [1, 2, 3], [4]),
    "places snd2": lambda tf: tf.scatter_nd([[0, 1], [2, 0]], [1.0, 2.0], [3, 2]),
    "places snd rows": lambda tf: tf.scatter_nd([[1]], [[1.0, 2.0]], [3, 2]),
    "places snd far": lambda tf: tf.scatter_nd([[0], [7]], [1, 2], [4]),
    "places snd bad": lambda tf: tf.scatter_nd([[0], [1]], [1, 2, 3], [4]),
    "places snd bad run": lambda tf: tf.scatter_nd(u(tf, [[0], [1]]), u(tf, [1, 2, 3]), [4]),
    "places snd fed": lambda tf: tf.scatter_nd([[0], [1]], [1, 2], unknown(tf, [4], [1])),
    "places ens": lambda tf: tf.ensure_shape(u(tf, [[1, 2]]), [None, 2]),
    "places ens2": lambda tf: tf.ensure_shape(part(tf), [2, None]),
    "places ens bad": lambda tf: tf.ensure_shape(u(tf, [[1, 2]]), [3]),
    "places ens bad build": lambda tf: tf.ensure_shape([1, 2], [3]),
    "places ens bad rank": lambda tf: tf.ensure_shape([1, 2], [2, 1]),
    "places rs": lambda tf: tf.reverse_sequence(
        [[1, 2, 3], [4, 5, 6]], [2, 3], seq_axis=1, batch_axis=0
    ),
    "places rs dim": lambda tf: tf.reverse_sequence(
        [[1, 2, 3], [4, 5, 6]], [2, 1], seq_dim=1, batch_dim=0
    ),
    "places rs axis": lambda tf: tf.reverse_sequence(
        values("int32", 3, 2, 2), [2, 3], seq_axis=0, batch_axis=1
    ),
    "places rs far": lambda tf: tf.reverse_sequence(
        [[1, 2, 3], [4, 5, 6]], [2, 4], seq_axis=1, batch_axis=0
    ),
    "places rs neg": lambda tf: tf.reverse_sequence(
        [[1, 2, 3], [4, 5, 6]], [2, -1], seq_axis=1, batch_axis=0
    ),
    "places rs len": lambda tf: tf.reverse_sequence(
        [[1, 2, 3], [4, 5, 6]], u(tf, [2]), seq_axis=1, batch_axis=0
    ),
    "places rs len build": lambda tf: tf.reverse_sequence(
        [[1, 2, 3], [4, 5, 6]], [2], seq_axis=1, batch_axis=0
    ),
    "places rs same": lambda tf: tf.reverse_sequence(
        [[1, 2, 3], [4, 5, 6]], [2, 1], seq_axis=0, batch_axis=0
    ),
    "places rs str": lambda tf: tf.reverse_sequence([["a", "b"]], [2], seq_axis=1, batch_axis=0),
    "places rs part": lambda tf: tf.reverse_sequence(part(tf), [2, 1], seq_axis=1, batch_axis=0),
    "places floormod": lambda tf: tf.floormod([5, -5], 3),
    "places realdiv": lambda tf: tf.realdiv([5.0, -5], 3.0),
    "places scalar_mul": lambda tf: tf.scalar_mul(2, tf.constant([5.0, -5])),
    "places bincount": lambda tf: tf.bincount([1, 1, 3]),
    "places bincount m": lambda tf: tf.bincount([1, 1, 3], minlength=6),
    "places bincount x": lambda tf: tf.bincount([1, 1, 3], maxlength=2),
    "places bincount w": lambda tf: tf.bincount([1, 1, 3], weights=[0.5, 0.25, 1.0]),
    "places bincount d": lambda tf: tf.bincount([1, 1, 3], dtype=tf.int64),
    "places bincount 2": lambda tf: tf.bincount([[1, 1], [3, 0]]),
    "places bincount e": lambda tf: tf.bincount(np.zeros(0, np.int32)),
    "places hist": lambda tf: tf.histogram_fixed_width(
        [-1.0, 0.0, 1.5, 2.0, 5.0, 15], [0.0, 5.0], nbins=5
    ),
    "places inv": lambda tf: tf.invert_permutation([2, 0, 1]),
    "places inv bad": lambda tf: tf.invert_permutation([2, 0, 2]),
    "places ss left": lambda tf: tf.searchsorted([1, 3, 5], [0, 3, 9]),
    "places ss right": lambda tf: tf.searchsorted([[1, 3, 5]], [[0, 3, 9]], side="right"),
    "places lshift": lambda tf: tf.bitwise.left_shift([1, -2], [3, 1]),
    "places rshift": lambda tf: tf.bitwise.right_shift([8, -8], [2, 1]),
    "places hash": lambda tf: tf.string_to_hash_bucket(
        ["a", "hello world", "", "12345678", "x" * 40], 1000
    ),
    "places comp": lambda tf: tf.decode_compressed(["abc"], ""),
    "places tsu": lambda tf: tf.tensor_scatter_update([1, 2, 3], [[0], [2]], [7, 8]),
    "places tsa": lambda tf: tf.tensor_scatter_add([1, 2, 3], [[0], [0]], [7, 8]),
    "places tss": lambda tf: tf.tensor_scatter_sub([1, 2, 3], [[0], [0]], [7, 8]),
    "places tsu far": lambda tf: tf.tensor_scatter_update([1, 2, 3], [[0], [5]], [7, 8]),
    "places bg": lambda tf: tf.batch_gather([[1, 2], [3, 4]], [[1], [0]]),
    "sparse sadd": lambda tf: parts(tf.sparse_add(sparse_one(tf), sparse_two(tf))),
    "sparse sadd t": lambda tf: parts(tf.sparse_add(sparse_one(tf), sparse_two(tf), thresh=2.5)),
    "sparse sadd t2": lambda tf: parts(tf.sparse_add(sparse_one(tf), sparse_two(tf), thresh=6.0)),
    "sparse sadd dense": lambda tf: tf.sparse_add(sparse_one(tf), np.ones((3, 3), np.float32)),
    "sparse sadd dense bad": lambda tf: tf.sparse_add(
        sparse_one(tf), u(tf, np.ones((2, 3), np.float32))
    ),
    "sparse sadd bad": lambda tf: parts(
        tf.sparse_add(sparse_one(tf), tf.SparseTensor([[0, 1]], [1.0], [2, 3]))
    ),
    "sparse sadd dtype": lambda tf: parts(
        tf.sparse_add(sparse_one(tf), tf.SparseTensor([[0, 1]], [1], [3, 3]))
    ),
    "sparse sadd dd": lambda tf: tf.sparse_add([1.0], [2.0]),
    "sparse srs": lambda tf: tf.sparse_reduce_sum(sparse_one(tf), 1),
    "sparse srs all": lambda tf: tf.sparse_reduce_sum(sparse_one(tf)),
    "sparse srs keep": lambda tf: tf.sparse_reduce_sum(sparse_one(tf), [0], keep_dims=True),
    "sparse srs -1": lambda tf: tf.sparse_reduce_sum(sparse_one(tf), [-1, 0]),
    "sparse srs bad": lambda tf: tf.sparse_reduce_sum(sparse_one(tf), 3),
    "sparse srm": lambda tf: tf.sparse_reduce_max(sparse_one(tf), 1),
    "sparse smerge": lambda tf: parts(tf.sparse_merge(ids(tf), weights(tf), 10)),
    "sparse smerge sorted": lambda tf: parts(
        tf.sparse_merge(ids(tf), weights(tf), 10, already_sorted=True)
    ),
    "sparse smerge list": lambda tf: parts(
        tf.sparse_merge([ids(tf), ids(tf)], weights(tf), [10, 7])
    ),
    "sparse smerge bad": lambda tf: parts(tf.sparse_merge(weights(tf), weights(tf), 10)),
    "sparse smerge type": lambda tf: parts(tf.sparse_merge(5, weights(tf), 10)),
    "sparse sslice": lambda tf: parts(tf.sparse_slice(sparse_one(tf), [0, 1], [2, 2])),
    "sparse sslice over": lambda tf: parts(tf.sparse_slice(sparse_one(tf), [1, 0], [5, 2])),
    "sparse sslice beyond": lambda tf: parts(tf.sparse_slice(sparse_one(tf), [5, 0], [5, 2])),
    "sparse ssplit": lambda tf: [
        q for s in tf.sparse_split(sp_input=sparse_one(tf), num_split=2, axis=1) for q in parts(s)
    ],
    "sparse ssplit bad": lambda tf: [
        q for s in tf.sparse_split(sp_input=sparse_one(tf), num_split=5, axis=1) for q in parts(s)
    ],
    "sparse ssplit none": lambda tf: [
        q for s in tf.sparse_split(sp_input=sparse_one(tf), num_split=5) for q in parts(s)
    ],
    "sparse ssplit pos": lambda tf: [
        q for s in tf.sparse_split(sparse_one(tf), 5, 1) for q in parts(s)
    ],
    "sparse strans": lambda tf: parts(tf.sparse_transpose(sparse_one(tf))),
    "sparse strans perm": lambda tf: parts(tf.sparse_transpose(sparse_one(tf), [0, 1])),
    "sparse sfill": lambda tf: [
        *parts(tf.sparse_fill_empty_rows(sparse_one(tf), 9.0)[0]),
        tf.sparse_fill_empty_rows(sparse_one(tf), 9.0)[1],
    ],
    "sparse sreset": lambda tf: parts(tf.sparse_reset_shape(sparse_one(tf))),
    "sparse sreset new": lambda tf: parts(tf.sparse_reset_shape(sparse_one(tf), [4, 5])),
    "sparse sreset small": lambda tf: parts(tf.sparse_reset_shape(sparse_one(tf), [2, 5])),
    "sparse sreset small run": lambda tf: parts(
        tf.sparse_reset_shape(sparse_one(tf), unknown(tf, np.array([2, 5]), [2]))
    ),
    "sparse sreset rank": lambda tf: parts(tf.sparse_reset_shape(sparse_one(tf), [4])),
    "sparse smm": lambda tf: tf.sparse_tensor_dense_matmul(sparse_one(tf), values("float32", 3, 2)),
    "sparse smm a": lambda tf: tf.sparse_tensor_dense_matmul(
        sparse_one(tf), values("float32", 3, 2), adjoint_a=True
    ),
    "sparse smm b": lambda tf: tf.sparse_tensor_dense_matmul(
        sparse_one(tf), values("float32", 2, 3), adjoint_b=True
    ),
    "sparse smm bad": lambda tf: tf.sparse_tensor_dense_matmul(
        sparse_one(tf), u(tf, values("float32", 2, 3))
    ),
    "sparse sfrom": lambda tf: parts(tf.sparse.from_dense([[0, 1], [2, 0]])),
    "sparse sfrom str": lambda tf: parts(tf.sparse.from_dense(["", "a"])),
    "sparse sexp": lambda tf: parts(tf.sparse.expand_dims(sparse_one(tf), 1)),
    "sparse sexp none": lambda tf: parts(tf.sparse.expand_dims(sparse_one(tf))),
    "sparse sexp bad": lambda tf: parts(tf.sparse.expand_dims(sparse_one(tf), 7)),
    "scatter update": scattered("scatter_update", [1.0, 2.0, 4.0], [0, 2], [3.0, 5.0]),
    "scatter add": scattered("scatter_add", [1.0, 2.0, 4.0], [0, 2], [3.0, 5.0]),
    "scatter sub": scattered("scatter_sub", [1.0, 2.0, 4.0], [0, 2], [3.0, 5.0]),
    "scatter mul": scattered("scatter_mul", [1.0, 2.0, 4.0], [0, 2], [3.0, 5.0]),
    "scatter div": scattered("scatter_div", [1.0, 2.0, 4.0], [0, 2], [3.0, 5.0]),
    "scatter min": scattered("scatter_min", [1.0, 2.0, 4.0], [0, 2], [3.0, 5.0]),
    "scatter max": scattered("scatter_max", [1.0, 2.0, 4.0], [0, 2], [3.0, 5.0]),
    "scatter scalar": scattered("scatter_update", [1.0, 2.0, 4.0], [0, 2], 3.0),
    "scatter rows": scattered("scatter_update", [[1.0, 2.0], [4.0, 5.0]], [1], [[7.0, 8.0]]),
    "scatter far": scattered("scatter_update", [1.0, 2.0, 4.0], [0, 7], [3.0, 5.0]),
    "scatter shape": scattered("scatter_update", [1.0, 2.0, 4.0], [0, 1], [3.0, 5.0, 6.0]),
    "scatter dup": scattered("scatter_add", [1.0, 2.0, 4.0], [0, 0], [3.0, 5.0]),
    "scatter dtype": scattered("scatter_add", [1.0, 2.0, 4.0], [0, 0], np.array([3, 5])),
    "scatter idx": scattered("scatter_add", [1.0, 2.0, 4.0], [0.0, 0.0], [3.0, 5.0]),
    "scatter idiv": scattered("scatter_div", [7, -7, 4], [0, 1], [2, 2]),
    "scatter nd": scattered("scatter_nd_update", [1.0, 2.0, 4.0], [[0], [2]], [3.0, 5.0]),
    "scatter nda": scattered("scatter_nd_add", [1.0, 2.0, 4.0], [[0], [0]], [3.0, 5.0]),
    "scatter nds": scattered("scatter_nd_sub", [1.0, 2.0, 4.0], [[0], [2]], [3.0, 5.0]),
    "scatter nd far": scattered("scatter_nd_update", [1.0, 2.0, 4.0], [[0], [9]], [3.0, 5.0]),
    "scatter nd bad": scattered("scatter_nd_update", [1.0, 2.0, 4.0], [[0], [1]], [3.0, 5.0, 6.0]),
}
for _name, _function in PLACES.items():
    case(_name, _function)
