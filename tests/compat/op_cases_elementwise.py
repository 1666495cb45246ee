"""Cases of elementwise ops, operators, indexing and reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.compat.op_cases import FLOATS, INTS, Case, case, unknown, values

UNARY = {
    "abs": INTS[:4] + FLOATS,
    "negative": INTS[:4] + FLOATS,
    "sign": ("int32", "int64", *FLOATS),
    "square": ("int32", "int64", *FLOATS),
    "floor": FLOATS,
    "ceil": FLOATS,
    "round": ("int32", "int64", *FLOATS),
    "exp": FLOATS,
    "sqrt": FLOATS,
    "rsqrt": FLOATS,
    "log": FLOATS,
    "log1p": FLOATS,
    "expm1": FLOATS,
    "sin": FLOATS,
    "cos": FLOATS,
    "tan": ("float32", "float64"),
    "tanh": FLOATS,
    "asin": ("float32", "float64"),
    "acos": ("float32", "float64"),
    "atan": ("float32", "float64"),
    "sinh": ("float32", "float64"),
    "cosh": ("float32", "float64"),
    "sigmoid": FLOATS,
    "reciprocal": FLOATS,
    "rint": ("float32", "float64"),
    "is_nan": FLOATS,
    "is_inf": FLOATS,
    "is_finite": FLOATS,
    "to_float": INTS + FLOATS,
    "to_int32": INTS + FLOATS,
    "to_int64": INTS + FLOATS,
    "to_double": INTS + FLOATS,
    "zeros_like": INTS + FLOATS + ("bool",),
    "ones_like": INTS + FLOATS + ("bool",),
    "size": ("int32",),
    "shape": ("int32",),
    "rank": ("int32",),
    "unstack": ("int32",),
    "reduce_sum": ("int32", "int64", *FLOATS),
    "reduce_mean": ("int32", "int64", *FLOATS),
    "reduce_max": INTS + FLOATS,
    "reduce_min": INTS + FLOATS,
    "reduce_prod": ("int32", "int64", "float32", "float64"),
    "reduce_logsumexp": ("float32", "float64"),
    "argmax": ("int32", "int64", *FLOATS),
    "argmin": ("int32", "int64", *FLOATS),
    "cumsum": ("int32", "int64", "float32", "float64"),
    "cumprod": ("int32", "int64", "float32", "float64"),
    "transpose": INTS + FLOATS,
    "squeeze": ("int32",),
    "where": ("bool", "int32", "float32"),
    "count_nonzero": ("int32", "float32"),
    "sort": ("float32", "int32"),
    "argsort": ("float32", "int32"),
}
SHAPES = ((), (5,), (2, 3), (2, 1, 3), (0,), (0, 3))

for _name, _dtypes in UNARY.items():
    for _dtype in _dtypes:
        for _shape in SHAPES:
            if (
                _name
                in ("argmax", "argmin", "cumsum", "cumprod", "unstack", "sort", "argsort", "where")
                and not _shape
            ):
                continue
            if _name in ("argmax", "argmin", "unstack") and 0 in _shape:
                continue

            def _unary(tf: Any, name: str = _name, dtype: str = _dtype, shape: Any = _shape) -> Any:
                return getattr(tf, name)(tf.constant(values(dtype, *shape)))

            case(f"{_name}-{_dtype}-{_shape}", _unary)
    for _known in (None, [None, 3]):

        def _partly(
            tf: Any, name: str = _name, dtype: str = _dtypes[-1], known: Any = _known
        ) -> Any:
            return getattr(tf, name)(unknown(tf, values(dtype, 2, 3), known))

        if _name != "unstack":
            case(f"{_name}-unknown-{_known}", _partly)

SPECIAL = np.array(
    [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30, -7.0]
)
for _name in (
    "abs",
    "sign",
    "floor",
    "ceil",
    "round",
    "exp",
    "sqrt",
    "rsqrt",
    "log",
    "tanh",
    "sigmoid",
    "reciprocal",
    "is_nan",
    "is_inf",
    "is_finite",
):
    for _dtype in ("float32", "float64"):

        def _special(tf: Any, name: str = _name, dtype: str = _dtype) -> Any:
            return getattr(tf, name)(tf.constant(SPECIAL.astype(dtype)))

        case(f"{_name}-special-{_dtype}", _special)

BINARY = {
    "add": INTS + FLOATS,
    "subtract": INTS + FLOATS,
    "multiply": INTS + FLOATS,
    "divide": INTS + FLOATS,
    "truediv": INTS + FLOATS,
    "floordiv": INTS + FLOATS,
    "div": ("int32", "float32"),
    "truncatediv": ("int32", "int64"),
    "truncatemod": ("int32", "int64", "float32"),
    "mod": ("int32", "int64", "float32", "float64"),
    "pow": FLOATS,
    "maximum": INTS + FLOATS,
    "minimum": INTS + FLOATS,
    "squared_difference": ("int32", "float32"),
    "div_no_nan": ("float32", "float64"),
    "atan2": ("float32", "float64"),
    "equal": INTS + FLOATS,
    "not_equal": INTS + FLOATS,
    "less": INTS + FLOATS,
    "less_equal": INTS + FLOATS,
    "greater": INTS + FLOATS,
    "greater_equal": INTS + FLOATS,
}
PAIRS = (((), ()), ((4,), ()), ((2, 3), (3,)), ((2, 1), (1, 4)), ((0,), (1,)), ((2,), (3,)))

for _name, _dtypes in BINARY.items():
    for _dtype in _dtypes:
        for _one, _two in PAIRS:

            def _binary(
                tf: Any, name: str = _name, dtype: str = _dtype, one: Any = _one, two: Any = _two
            ) -> Any:
                x = tf.constant(values(dtype, *one))
                y = values(dtype, *two, start=2)
                return getattr(tf, name)(x, tf.constant(y))

            case(f"{_name}-{_dtype}-{_one}-{_two}", _binary)
    for _known in (None, [None, 3], [2, None]):

        def _broadcast(
            tf: Any, name: str = _name, dtype: str = _dtypes[-1], known: Any = _known
        ) -> Any:
            x = unknown(tf, values(dtype, 2, 3), known)
            return getattr(tf, name)(x, values(dtype, 1, 3, start=2))

        case(f"{_name}-unknown-{_known}", _broadcast)

    def _mismatch(tf: Any, name: str = _name) -> Any:
        return getattr(tf, name)(tf.constant([1, 2]), tf.constant([1.0, 2.0]))

    case(f"{_name}-mismatch", _mismatch)

    def _runtime(tf: Any, name: str = _name, dtype: str = _dtypes[-1]) -> Any:
        return getattr(tf, name)(
            unknown(tf, values(dtype, 2)), unknown(tf, values(dtype, 3, start=2))
        )

    case(f"{_name}-incompatible", _runtime)

for _name in ("floordiv", "mod", "div", "truncatediv", "pow", "truediv"):
    for _dtype in ("int32", "float32"):
        for _y in (3, -3, 2, -2):

            def _signs(tf: Any, name: str = _name, dtype: str = _dtype, y: int = _y) -> Any:
                x = np.array([-7, -6, -1, 0, 1, 6, 7], dtype)
                return getattr(tf, name)(
                    tf.constant(x), np.array(abs(y) if name == "pow" else y, dtype)
                )

            if not (_name == "truncatediv" and _dtype == "float32"):
                case(f"{_name}-signs-{_dtype}-{_y}", _signs)

OPERATORS: dict[str, Case] = {
    "x+1": lambda tf: tf.constant([1, 2]) + 1,
    "1+x": lambda tf: 1 + tf.constant([1, 2]),
    "x+1.5": lambda tf: tf.constant([1.0, 2.0]) + 1.5,
    "int+1.5": lambda tf: tf.constant([1, 2]) + 1.5,
    "float+1": lambda tf: tf.constant([1.0, 2.0]) + 1,
    "x-np": lambda tf: tf.constant([1.0, 2.0]) - np.array([0.25, 1.0]),
    "np-x": lambda tf: np.array([0.25, 1.0]) - tf.constant([1.0, 2.0]),
    "np.float64*x": lambda tf: np.float64(2.5) * tf.constant([1.0, 2.0]),
    "np.int64*x": lambda tf: np.int64(2) * tf.constant([1.0, 2.0]),
    "np<x": lambda tf: np.array([0.25, 3.0]) < tf.constant([1.0, 2.0]),
    "np//x": lambda tf: np.array([5, -7]) // tf.constant([2, 2]),
    "2-x": lambda tf: 2 - tf.constant([1, 2]),
    "x*x": lambda tf: tf.constant([1, 2]) * tf.constant([1, 2]),
    "x/2": lambda tf: tf.constant([1, 2]) / 2,
    "x8/2": lambda tf: tf.constant([1, 2], tf.int8) / tf.constant(2, tf.int8),
    "1/x": lambda tf: 1 / tf.constant([1, 2]),
    "x//2": lambda tf: tf.constant([-5, 5]) // 2,
    "x%3": lambda tf: tf.constant([-5, 5]) % 3,
    "x**2": lambda tf: tf.constant([-5.0, 5.0]) ** 2,
    "2**x": lambda tf: 2.0 ** tf.constant([-5.0, 5.0]),
    "-x": lambda tf: -tf.constant([-5, 5]),
    "abs": lambda tf: abs(tf.constant([-5, 5])),
    "x<1": lambda tf: tf.constant([-5, 5]) < 1,
    "x<=1": lambda tf: tf.constant([-5, 5]) <= 1,
    "1>x": lambda tf: tf.constant([-5, 5]) < 1,
    "x>=y": lambda tf: tf.constant([-5, 5]) >= tf.constant([-5, 6]),
    "bool&": lambda tf: tf.constant([True, False]) & True,
    "bool|": lambda tf: tf.constant([True, False]) | tf.constant([False, False]),
    "bool^": lambda tf: tf.constant([True, False]) ^ True,
    "~bool": lambda tf: ~tf.constant([True, False]),
    "int&": lambda tf: tf.constant([6, 5]) & 3,
    "int|": lambda tf: tf.constant([6, 5]) | 3,
    "int^": lambda tf: tf.constant([6, 5]) ^ 3,
    "~int": lambda tf: ~tf.constant([6, 5]),
    "matmul": lambda tf: tf.constant([[1.0, 2.0]]) @ tf.constant([[3.0], [4.0]]),
    "string+": lambda tf: tf.constant(["a", "b"]) + "c",
    "c+string": lambda tf: "c" + tf.constant(["a", "b"]),
    "x/0": lambda tf: tf.constant([1.0, -1.0, 0.0]) / 0.0,
    "x//0": lambda tf: tf.constant([1, 2]) // tf.constant([0, 1]),
    "x%0": lambda tf: tf.constant([1, 2]) % tf.constant([0, 1]),
    "overflow": lambda tf: tf.constant(2**31 - 1) + 1,
    "overflow8": lambda tf: tf.constant([127], tf.int8) + tf.constant([1], tf.int8),
    "mixed": lambda tf: tf.constant([1, 2]) + tf.constant([1.0, 2.0]),
    "shapes": lambda tf: tf.constant([1, 2]) + tf.constant([1, 2, 3]),
    "float&": lambda tf: tf.constant([1.0]) & tf.constant([1.0]),
    "none": lambda tf: tf.constant([1.0]) + None,
    "len": lambda tf: len(tf.constant([1.0])),
    "bool": lambda tf: bool(tf.constant(1.0)),
    "iter": lambda tf: list(tf.constant([1.0])),
    "in": lambda tf: 1.0 in tf.constant([1.0]),
    "array": lambda tf: np.asarray(tf.constant([1.0])),
}
for _name, _function in OPERATORS.items():
    case(f"operator {_name}", _function)

INDEXES: dict[str, Callable[[Any, Any], Any]] = {
    "0": lambda tf, x: x[0],
    "-1": lambda tf, x: x[-1],
    "1:": lambda tf, x: x[1:],
    ":1": lambda tf, x: x[:1],
    "::2": lambda tf, x: x[::2],
    "::-1": lambda tf, x: x[::-1],
    "-1::-1": lambda tf, x: x[-1::-1],
    ":,0": lambda tf, x: x[:, 0],
    ":,-1": lambda tf, x: x[:, -1],
    "...,0": lambda tf, x: x[..., 0],
    "0,...": lambda tf, x: x[0, ...],
    "None": lambda tf, x: x[None],
    ":,None": lambda tf, x: x[:, None],
    "...,None": lambda tf, x: x[..., None],
    "None,0": lambda tf, x: x[None, 0],
    "newaxis": lambda tf, x: x[:, tf.newaxis, 1],
    "1:2,1:": lambda tf, x: x[1:2, 1:],
    "5:": lambda tf, x: x[5:],
    "-9:9": lambda tf, x: x[-9:9],
    "2:1": lambda tf, x: x[2:1],
    "0,0": lambda tf, x: x[0, 0],
    "0,0,0": lambda tf, x: x[0, 0, 0],
    "0,0,0,0": lambda tf, x: x[0, 0, 0, 0],
    "7": lambda tf, x: x[7],
    "-7": lambda tf, x: x[-7],
    "tensor": lambda tf, x: x[tf.constant(1)],
    "tensor:": lambda tf, x: x[tf.constant(1) :],
    "fed": lambda tf, x: x[unknown(tf, 1, [])],
    "fed:": lambda tf, x: x[: unknown(tf, 1, [])],
    ":,fed": lambda tf, x: x[:, unknown(tf, 1, [])],
    "fed far": lambda tf, x: x[unknown(tf, 9, [])],
    "int64": lambda tf, x: x[np.int64(1)],
    "mask": lambda tf, x: x[tf.constant([True, False])],
    "np mask": lambda tf, x: x[np.array([True, False])],
    "Dimension": lambda tf, x: x[: tf.TensorShape([1])[0]],
    "text": lambda tf, x: x["a"],
    "1.0": lambda tf, x: x[1.0],
    "list": lambda tf, x: x[[0, 1]],
    "true": lambda tf, x: x[True],
    "two ellipses": lambda tf, x: x[..., 0, ...],
    "float tensor": lambda tf, x: x[tf.constant(1.0)],
}
for _name, _index in INDEXES.items():
    for _shape in ((2, 3, 4), (2, 3)):
        for _how in ("known", "part", "none"):

            def _indexed(tf: Any, index: Any = _index, shape: Any = _shape, how: str = _how) -> Any:
                array = values("int32", *shape)
                static = {"known": shape, "part": [None, *shape[1:]], "none": None}[how]
                return index(tf, unknown(tf, array, static))

            case(f"x[{_name}] of {_shape} {_how}", _indexed)
