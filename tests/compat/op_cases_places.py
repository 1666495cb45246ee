"""Cases of segments, places that are written to, counts, and sparse tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compat.op_cases import Case, case, u, unknown


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
    "places snd": lambda tf: tf.scatter_nd([[0], [2], [0]], [1, 2, 3], [4]),
    "places snd2": lambda tf: tf.scatter_nd([[0, 1], [2, 0]], [1.0, 2.0], [3, 2]),
    "places snd rows": lambda tf: tf.scatter_nd([[1]], [[1.0, 2.0]], [3, 2]),
    "places snd far": lambda tf: tf.scatter_nd([[0], [7]], [1, 2], [4]),
    "places snd bad": lambda tf: tf.scatter_nd([[0], [1]], [1, 2, 3], [4]),
    "places snd bad run": lambda tf: tf.scatter_nd(u(tf, [[0], [1]]), u(tf, [1, 2, 3]), [4]),
    "places snd fed": lambda tf: tf.scatter_nd([[0], [1]], [1, 2], unknown(tf, [4], [1])),
    "places floormod": lambda tf: tf.floormod([5, -5], 3),
    "places realdiv": lambda tf: tf.realdiv([5.0, -5], 3.0),
    "places scalar_mul": lambda tf: tf.scalar_mul(2, tf.constant([5.0, -5])),
    "places comp": lambda tf: tf.decode_compressed(["abc"], ""),
    "places tsu": lambda tf: tf.tensor_scatter_update([1, 2, 3], [[0], [2]], [7, 8]),
    "places tsa": lambda tf: tf.tensor_scatter_add([1, 2, 3], [[0], [0]], [7, 8]),
    "places tss": lambda tf: tf.tensor_scatter_sub([1, 2, 3], [[0], [0]], [7, 8]),
    "places tsu far": lambda tf: tf.tensor_scatter_update([1, 2, 3], [[0], [5]], [7, 8]),
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
