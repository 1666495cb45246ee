"""The op library beside TensorFlow itself: dtypes, static shapes, values, and errors.

Each case is a function of the module ``tf``, called once with TensorFlow's and once with ours.
Runs where TensorFlow is installed: ``pip install 'aioqueue[oracle]'``.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as ours

Case = Callable[[Any], Any]
CASES: dict[str, Case] = {}

INTS = ("int8", "int16", "int32", "int64", "uint8")
FLOATS = ("float16", "float32", "float64")


@pytest.fixture(scope="module")
def theirs() -> Any:
    """TensorFlow, in graph mode."""
    pytest.importorskip(
        "tensorflow", reason="compares with TensorFlow: pip install 'aioqueue[oracle]'"
    )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module("tensorflow.compat.v1")
        module.disable_v2_behavior()
        module.logging.set_verbosity(module.logging.ERROR)
    return module


def case(name: str, function: Case) -> None:
    assert name not in CASES, name
    CASES[name] = function


def values(dtype: str, *shape: int, start: int = -3) -> Any:
    """Small numbers, some of them negative unless the dtype has none."""
    count = int(np.prod(shape, dtype=int))
    numbers = np.arange(count) % 11 + (start if dtype[0] != "u" else 1)
    made = numbers.reshape(shape)
    return made.astype(dtype) if dtype[0] != "f" else (made * 0.75 + 0.1).astype(dtype)


def unknown(tf: Any, value: Any, shape: Any = None) -> Any:
    """`value` with a static shape that says less than it could."""
    return tf.placeholder_with_default(value, shape)


# Elementwise.

UNARY = {
    "abs": INTS[:4] + FLOATS,
    "negative": INTS[:4] + FLOATS,
    "sign": ("int32", "int64") + FLOATS,
    "square": ("int32", "int64") + FLOATS,
    "floor": FLOATS,
    "ceil": FLOATS,
    "round": ("int32", "int64") + FLOATS,
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
    "reduce_sum": ("int32", "int64") + FLOATS,
    "reduce_mean": ("int32", "int64") + FLOATS,
    "reduce_max": INTS + FLOATS,
    "reduce_min": INTS + FLOATS,
    "reduce_prod": ("int32", "int64", "float32", "float64"),
    "reduce_logsumexp": ("float32", "float64"),
    "argmax": ("int32", "int64") + FLOATS,
    "argmin": ("int32", "int64") + FLOATS,
    "cumsum": ("int32", "int64", "float32", "float64"),
    "cumprod": ("int32", "int64", "float32", "float64"),
    "transpose": INTS + FLOATS,
    "squeeze": ("int32",),
    "where": ("bool", "int32", "float32"),
    "count_nonzero": ("int32", "float32"),
    "sort": ("float32", "int32"),
    "argsort": ("float32", "int32"),
}  # fmt: skip
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
    "1>x": lambda tf: 1 > tf.constant([-5, 5]),
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
}  # fmt: skip
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
}  # fmt: skip
for _name, _index in INDEXES.items():
    for _shape in ((2, 3, 4), (2, 3)):
        for _known in ("known", "part", "none"):

            def _indexed(
                tf: Any, index: Any = _index, shape: Any = _shape, known: str = _known
            ) -> Any:
                array = values("int32", *shape)
                static = {"known": shape, "part": [None, *shape[1:]], "none": None}[known]
                return index(tf, unknown(tf, array, static))

            case(f"x[{_name}] of {_shape} {_known}", _indexed)

# Everything else.


def u(tf: Any, value: Any) -> Any:
    return unknown(tf, value, None)


def part(tf: Any) -> Any:
    return unknown(tf, values("float32", 2, 3), [None, 3])


OTHERS: dict[str, Case] = {
    "cast f->i": lambda tf: tf.cast([1.9, -1.9], tf.int32),
    "cast i->f": lambda tf: tf.cast([1, -1], tf.float64),
    "cast i->b": lambda tf: tf.cast([1, 0, -1], tf.bool),
    "cast b->f": lambda tf: tf.cast([True, False], tf.float32),
    "cast wrap": lambda tf: tf.cast([300, -1], tf.uint8),
    "cast i64": lambda tf: tf.cast(np.array([2**40 + 5]), tf.int32),
    "cast same": lambda tf: tf.cast(tf.constant([1.0]), tf.float32),
    "cast unknown": lambda tf: tf.cast(u(tf, [1.5]), "int64"),
    "cast string": lambda tf: tf.cast(["1"], tf.int32),
    "saturate": lambda tf: tf.saturate_cast([300.0, -5.0, 7.5], tf.uint8),
    "saturate i": lambda tf: tf.saturate_cast([300, -5, 7], tf.int8),
    "saturate big": lambda tf: tf.saturate_cast(np.array([1e20, -1e20]), tf.int64),
    "clip": lambda tf: tf.clip_by_value([1.0, 5.0, 9.0], 2.0, 6.0),
    "clip int": lambda tf: tf.clip_by_value(tf.constant([1, 5, 9]), 2, 6),
    "clip part": lambda tf: tf.clip_by_value(part(tf), -1.0, 1.0),
    "logical_and": lambda tf: tf.logical_and([True, False], [True, True]),
    "logical_or": lambda tf: tf.logical_or([True, False], False),
    "logical_xor": lambda tf: tf.logical_xor([True, False], True),
    "logical_not": lambda tf: tf.logical_not([True, False]),
    "logical int": lambda tf: tf.logical_and(tf.constant([1]), tf.constant([0])),
    "equal str": lambda tf: tf.equal(tf.constant(["a", "b\0"]), "b\0"),
    "equal bool": lambda tf: tf.equal(tf.constant([True, False]), True),
    "less str": lambda tf: tf.less(tf.constant("a"), tf.constant("b")),
    "sin int": lambda tf: tf.sin(tf.constant([1])),
    "add_n": lambda tf: tf.add_n([tf.constant([1, 2]), tf.constant([3, 4]), [5, 6]]),
    "add_n one": lambda tf: tf.add_n([tf.constant([1, 2])]),
    "add_n mixed": lambda tf: tf.add_n([tf.constant([1]), tf.constant([1.0])]),
    "add_n shapes": lambda tf: tf.add_n([tf.constant([1]), tf.constant([1, 2])]),
    "add_n none": lambda tf: tf.add_n([]),
    "add_n part": lambda tf: tf.add_n([part(tf), np.ones([2, 3], np.float32)]),
    "matmul": lambda tf: tf.matmul([[1.0, 2.0], [3.0, 4.0]], [[1.0], [2.0]]),
    "matmul int": lambda tf: tf.matmul(tf.constant([[1, 2]]), tf.constant([[1], [2]])),
    "matmul ta": lambda tf: tf.matmul(values("float32", 3, 2), values("float32", 3, 4), transpose_a=True),
    "matmul tb": lambda tf: tf.matmul(values("float64", 2, 3), values("float64", 4, 3), transpose_b=True),
    "matmul batch": lambda tf: tf.matmul(values("float32", 5, 2, 3), values("float32", 5, 3, 4)),
    "matmul part": lambda tf: tf.matmul(part(tf), values("float32", 3, 4)),
    "matmul unknown": lambda tf: tf.matmul(u(tf, values("float32", 2, 3)), values("float32", 3, 4)),
    "matmul bad": lambda tf: tf.matmul([[1.0, 2.0]], [[1.0, 2.0]]),
    "matmul bad run": lambda tf: tf.matmul(u(tf, [[1.0]]), u(tf, [[1.0], [2.0]])),
    "matmul rank": lambda tf: tf.matmul(tf.constant([1.0]), tf.constant([1.0])),
    "tensordot 1": lambda tf: tf.tensordot(values("float32", 2, 3), values("float32", 3, 4), 1),
    "tensordot 2": lambda tf: tf.tensordot(values("float32", 2, 3), values("float32", 2, 3), 2),
    "tensordot lists": lambda tf: tf.tensordot(values("float32", 2, 3, 4), values("float32", 4, 2), [[0, 2], [1, 0]]),
    "sum axis": lambda tf: tf.reduce_sum(values("float32", 2, 3, 4), 1),
    "sum axes": lambda tf: tf.reduce_sum(values("float32", 2, 3, 4), [0, -1]),
    "sum keep": lambda tf: tf.reduce_sum(values("float32", 2, 3, 4), [0, -1], keepdims=True),
    "sum keep_dims": lambda tf: tf.reduce_sum(values("float32", 2, 3), 0, keep_dims=True),
    "sum indices": lambda tf: tf.reduce_sum(values("float32", 2, 3), reduction_indices=[1]),
    "sum empty axes": lambda tf: tf.reduce_sum(values("float32", 2, 3), []),
    "sum unknown": lambda tf: tf.reduce_sum(u(tf, values("float32", 2, 3)), 1),
    "sum part": lambda tf: tf.reduce_sum(part(tf), 1),
    "sum part 0": lambda tf: tf.reduce_sum(part(tf), 0),
    "sum fed axis": lambda tf: tf.reduce_sum(part(tf), unknown(tf, 1, [])),
    "sum bad": lambda tf: tf.reduce_sum(values("float32", 2, 3), 2),
    "sum bad run": lambda tf: tf.reduce_sum(u(tf, values("float32", 2, 3)), 5),
    "sum int8": lambda tf: tf.reduce_sum(np.full(3, 100, np.int8)),
    "sum bool": lambda tf: tf.reduce_sum(tf.constant([True])),
    "mean int": lambda tf: tf.reduce_mean([-3, -4]),
    "mean axis": lambda tf: tf.reduce_mean(values("int32", 2, 3), 1),
    "mean empty": lambda tf: tf.reduce_mean(np.zeros([0], np.float32)),
    "max empty": lambda tf: tf.reduce_max(np.zeros([0], np.float32)),
    "min empty int": lambda tf: tf.reduce_min(np.zeros([0, 2], np.int32), 0),
    "max nan": lambda tf: tf.reduce_max([1.0, np.nan]),
    "max axis": lambda tf: tf.reduce_max(values("int64", 2, 3), -1),
    "all": lambda tf: tf.reduce_all([[True, False], [True, True]], 1),
    "any": lambda tf: tf.reduce_any([[True, False], [False, False]], 1),
    "all empty": lambda tf: tf.reduce_all(np.zeros([0], bool)),
    "logsumexp big": lambda tf: tf.reduce_logsumexp([1000.0, 1000.0]),
    "logsumexp axis": lambda tf: tf.reduce_logsumexp(values("float32", 2, 3), 1, keepdims=True),
    "argmax axis": lambda tf: tf.argmax(values("float32", 2, 3), 1),
    "argmax -1": lambda tf: tf.argmax(values("float32", 2, 3, 4), -1),
    "argmax ties": lambda tf: tf.argmax([1, 3, 3]),
    "argmax int32": lambda tf: tf.argmax([1, 3, 3], output_type=tf.int32),
    "argmax bad": lambda tf: tf.argmax([1, 3, 3], 2),
    "argmax bad run": lambda tf: tf.argmax(u(tf, [1, 3, 3]), 2),
    "argmax dimension": lambda tf: tf.argmax(values("float32", 2, 3), dimension=1),
    "cumsum axis": lambda tf: tf.cumsum(values("float32", 2, 3), 1),
    "cumsum exclusive": lambda tf: tf.cumsum([1, 2, 3], exclusive=True),
    "cumsum reverse": lambda tf: tf.cumsum([1, 2, 3], reverse=True),
    "cumsum both": lambda tf: tf.cumsum([1, 2, 3], exclusive=True, reverse=True),
    "cumprod both": lambda tf: tf.cumprod([1, 2, 3], exclusive=True, reverse=True),
    "cumsum bad": lambda tf: tf.cumsum(u(tf, [1, 2, 3]), 3),
    "reshape": lambda tf: tf.reshape(values("int32", 2, 3), [3, 2]),
    "reshape -1": lambda tf: tf.reshape(values("int32", 2, 3), [-1]),
    "reshape 3,-1": lambda tf: tf.reshape(values("int32", 2, 3), [3, -1]),
    "reshape []": lambda tf: tf.reshape([1], []),
    "reshape str": lambda tf: tf.reshape("a", [1, 1]),
    "reshape np": lambda tf: tf.reshape(values("int32", 2, 3), np.array([6])),
    "reshape unknown": lambda tf: tf.reshape(u(tf, values("int32", 2, 3)), [-1, 2]),
    "reshape part": lambda tf: tf.reshape(part(tf), [-1, 3, 1]),
    "reshape fed": lambda tf: tf.reshape(part(tf), unknown(tf, [3, 2], [2])),
    "reshape fed2": lambda tf: tf.reshape(part(tf), u(tf, [3, 2])),
    "reshape stack": lambda tf: tf.reshape(part(tf), tf.stack([tf.shape(part(tf))[0], 3, 1])),
    "reshape list": lambda tf: tf.reshape(part(tf), [tf.shape(part(tf))[0], 3]),
    "reshape concat": lambda tf: tf.reshape(part(tf), tf.concat([tf.shape(part(tf)), [1]], 0)),
    "reshape shape": lambda tf: tf.reshape(values("int32", 6), tf.shape(values("int32", 2, 3))),
    "reshape TensorShape": lambda tf: tf.reshape(values("int32", 6), tf.TensorShape([2, 3])),
    "reshape Dimension": lambda tf: tf.reshape(values("int32", 6), [tf.TensorShape([2, 3])[0], 3]),
    "reshape bad": lambda tf: tf.reshape([1, 2], [3]),
    "reshape bad -1": lambda tf: tf.reshape([1, 2], [3, -1]),
    "reshape bad run": lambda tf: tf.reshape(u(tf, [1, 2]), [3]),
    "reshape bad -1 run": lambda tf: tf.reshape(u(tf, [1, 2]), [3, -1]),
    "reshape two -1": lambda tf: tf.reshape(u(tf, [1, 2]), [-1, -1]),
    "reshape float": lambda tf: tf.reshape([1, 2], [2.0]),
    "expand 0": lambda tf: tf.expand_dims([1, 2], 0),
    "expand -1": lambda tf: tf.expand_dims([1, 2], -1),
    "expand str": lambda tf: tf.expand_dims("a", 0),
    "expand part": lambda tf: tf.expand_dims(part(tf), 1),
    "expand unknown": lambda tf: tf.expand_dims(u(tf, [1]), 1),
    "expand dim": lambda tf: tf.expand_dims([1, 2], dim=1),
    "expand bad": lambda tf: tf.expand_dims([1, 2], 4),
    "expand bad run": lambda tf: tf.expand_dims(u(tf, [1, 2]), 4),
    "squeeze 1": lambda tf: tf.squeeze(values("int32", 2, 1, 3), 1),
    "squeeze [-2]": lambda tf: tf.squeeze(values("int32", 2, 1, 3), [-2]),
    "squeeze bad": lambda tf: tf.squeeze(values("int32", 2, 1, 3), [0]),
    "squeeze far": lambda tf: tf.squeeze(values("int32", 2, 1, 3), [7]),
    "squeeze bad run": lambda tf: tf.squeeze(u(tf, values("int32", 2, 1, 3)), [0]),
    "squeeze part": lambda tf: tf.squeeze(unknown(tf, values("int32", 1, 3), [None, 3]), 0),
    "stack": lambda tf: tf.stack([[1, 2], [3, 4]]),
    "stack 1": lambda tf: tf.stack([tf.constant([1, 2]), [3, 4], [5, 6]], 1),
    "stack -1": lambda tf: tf.stack([tf.constant([1, 2]), [3, 4], [5, 6]], -1),
    "stack scalars": lambda tf: tf.stack([1.0, tf.constant(2.0)]),
    "stack str": lambda tf: tf.stack(["a", "b"]),
    "stack part": lambda tf: tf.stack([part(tf), part(tf)]),
    "stack merge": lambda tf: tf.stack([part(tf), tf.constant(values("float32", 2, 3))]),
    "stack bad": lambda tf: tf.stack([tf.constant([1, 2]), tf.constant([1, 2, 3])]),
    "stack bad run": lambda tf: tf.stack([u(tf, [1, 2]), u(tf, [1, 2, 3])]),
    "stack axis": lambda tf: tf.stack([[1, 2], [3, 4]], 5),
    "stack mixed": lambda tf: tf.stack([tf.constant(1), tf.constant(1.0)]),
    "unstack 1": lambda tf: tf.unstack(values("int32", 2, 3), axis=1),
    "unstack num": lambda tf: tf.unstack(part(tf), 2),
    "unstack str": lambda tf: tf.unstack(tf.constant(["a", "b"])),
    "unstack part": lambda tf: tf.unstack(part(tf)),
    "unstack axis": lambda tf: tf.unstack(part(tf), axis=1),
    "unstack bad": lambda tf: tf.unstack(part(tf), axis=4),
    "unstack num bad": lambda tf: tf.unstack([1, 2, 3], 2),
    "concat": lambda tf: tf.concat([[1, 2], [3]], 0),
    "concat 1": lambda tf: tf.concat([values("int32", 2, 3), values("int32", 2, 1)], 1),
    "concat -1": lambda tf: tf.concat([values("int32", 2, 3), values("int32", 2, 1)], -1),
    "concat one": lambda tf: tf.concat([tf.constant([1, 2])], 0),
    "concat str": lambda tf: tf.concat([["a"], ["b", "c"]], 0),
    "concat part": lambda tf: tf.concat([part(tf), part(tf)], 0),
    "concat part 1": lambda tf: tf.concat([part(tf), part(tf)], 1),
    "concat merge": lambda tf: tf.concat([part(tf), tf.constant(values("float32", 2, 1))], 1),
    "concat unknown": lambda tf: tf.concat([u(tf, [1]), tf.constant([2])], 0),
    "concat bad": lambda tf: tf.concat([values("int32", 2, 3), values("int32", 3, 2)], 0),
    "concat rank": lambda tf: tf.concat([tf.constant([[1]]), tf.constant([1])], 0),
    "concat rank run": lambda tf: tf.concat([u(tf, [[1]]), u(tf, [1])], 0),
    "concat bad run": lambda tf: tf.concat([u(tf, [[1]]), u(tf, [[1, 2]])], 0),
    "concat axis": lambda tf: tf.concat([tf.constant([1]), tf.constant([1])], 3),
    "concat mixed": lambda tf: tf.concat([tf.constant([1]), tf.constant([1.0])], 0),
    "split": lambda tf: tf.split(values("int32", 6), 3),
    "split 1": lambda tf: tf.split(values("int32", 2, 4), 2, 1),
    "split one": lambda tf: tf.split(values("int32", 6), 1),
    "split sizes": lambda tf: tf.split(values("int32", 6), [1, 2, 3]),
    "split -1": lambda tf: tf.split(values("int32", 2, 6), [1, -1], 1),
    "split part": lambda tf: tf.split(part(tf), 2),
    "split part 1": lambda tf: tf.split(part(tf), 3, 1),
    "split bad": lambda tf: tf.split([1, 2], 3),
    "split bad run": lambda tf: tf.split(u(tf, [1, 2]), 3),
    "split sizes bad": lambda tf: tf.split(u(tf, [1, 2]), [1, 2]),
    "tile": lambda tf: tf.tile([1, 2], [3]),
    "tile 2": lambda tf: tf.tile(values("int32", 2, 3), [1, 2]),
    "tile str": lambda tf: tf.tile(["a"], [2]),
    "tile part": lambda tf: tf.tile(part(tf), [2, 2]),
    "tile fed": lambda tf: tf.tile(part(tf), unknown(tf, [2, 2], [2])),
    "tile bad": lambda tf: tf.tile([1, 2], [1, 2]),
    "tile bad run": lambda tf: tf.tile(u(tf, [1, 2]), [1, 2]),
    "pad": lambda tf: tf.pad([1, 2], [[1, 2]]),
    "pad 2": lambda tf: tf.pad(values("float32", 2, 3), [[1, 0], [0, 2]], constant_values=7),
    "pad reflect": lambda tf: tf.pad([1, 2, 3], [[2, 1]], "REFLECT"),
    "pad symmetric": lambda tf: tf.pad([1, 2, 3], [[2, 1]], "SYMMETRIC"),
    "pad part": lambda tf: tf.pad(part(tf), [[1, 1], [0, 1]]),
    "pad fed": lambda tf: tf.pad(part(tf), unknown(tf, [[1, 1], [0, 1]], [2, 2])),
    "pad bad": lambda tf: tf.pad([1, 2], [[1, 1], [1, 1]]),
    "pad bad run": lambda tf: tf.pad(u(tf, [1, 2]), [[1, 1], [1, 1]]),
    "pad mode": lambda tf: tf.pad([1, 2], [[1, 1]], "wrap"),
    "transpose perm": lambda tf: tf.transpose(values("int32", 2, 3, 4), [1, 2, 0]),
    "transpose part": lambda tf: tf.transpose(part(tf), [1, 0]),
    "transpose bad": lambda tf: tf.transpose([1, 2], [1, 0]),
    "transpose bad run": lambda tf: tf.transpose(u(tf, [1, 2]), [1, 0]),
    "reverse": lambda tf: tf.reverse(values("int32", 2, 3), [1]),
    "reverse both": lambda tf: tf.reverse(values("int32", 2, 3), [0, -1]),
    "reverse bad run": lambda tf: tf.reverse(u(tf, [1, 2]), [3]),
    "roll": lambda tf: tf.roll(values("int32", 2, 3), [1, -1], [0, 1]),
    "gather": lambda tf: tf.gather([1, 2, 3], [2, 0]),
    "gather scalar": lambda tf: tf.gather([1, 2, 3], 1),
    "gather rows": lambda tf: tf.gather(values("float32", 4, 2), [[0, 3]]),
    "gather axis": lambda tf: tf.gather(values("float32", 4, 2), [1, 1], axis=1),
    "gather str": lambda tf: tf.gather(["a", "b"], [1]),
    "gather part": lambda tf: tf.gather(part(tf), [0, 1, 0]),
    "gather far": lambda tf: tf.gather(u(tf, [1, 2]), u(tf, [0, 7])),
    "gather far scalar": lambda tf: tf.gather(u(tf, [1, 2]), u(tf, -1)),
    "gather_nd": lambda tf: tf.gather_nd(values("int32", 2, 3), [[0, 1], [1, 2]]),
    "gather_nd rows": lambda tf: tf.gather_nd(values("int32", 2, 3), [[1], [0]]),
    "gather_nd one": lambda tf: tf.gather_nd(values("int32", 2, 3), [1, 2]),
    "gather_nd far": lambda tf: tf.gather_nd(u(tf, [1, 2]), u(tf, [[7]])),
    "slice": lambda tf: tf.slice(values("int32", 3, 4), [1, 0], [2, 3]),
    "slice -1": lambda tf: tf.slice(values("int32", 3, 4), [1, 1], [-1, -1]),
    "slice part": lambda tf: tf.slice(part(tf), [0, 1], [1, -1]),
    "slice part -1": lambda tf: tf.slice(part(tf), [1, 0], [-1, 2]),
    "slice fed": lambda tf: tf.slice(part(tf), unknown(tf, [1, 0], [2]), [1, 2]),
    "slice bad": lambda tf: tf.slice([1, 2], [1], [5]),
    "slice bad run": lambda tf: tf.slice(u(tf, [1, 2]), [1], [5]),
    "slice begin run": lambda tf: tf.slice(u(tf, [1, 2]), [4], [1]),
    "strided": lambda tf: tf.strided_slice(values("int32", 6), [1], [5], [2]),
    "strided none": lambda tf: tf.strided_slice(values("int32", 3, 4), [0, 1], [2, 3]),
    "strided masks": lambda tf: tf.strided_slice(values("int32", 3, 4), [1, 1], [2, 3], [1, 1], begin_mask=2, end_mask=1, shrink_axis_mask=0),
    "strided shrink": lambda tf: tf.strided_slice(values("int32", 3, 4), [1, 1], [2, 3], [1, 1], shrink_axis_mask=1),
    "strided negative": lambda tf: tf.strided_slice(values("int32", 6), [4], [0], [-2]),
    "boolean_mask": lambda tf: tf.boolean_mask([1, 2, 3], [True, False, True]),
    "boolean_mask 2": lambda tf: tf.boolean_mask(values("int32", 2, 3), [[True, False, True], [False, True, False]]),
    "boolean_mask rows": lambda tf: tf.boolean_mask(values("int32", 2, 3), [True, False]),
    "boolean_mask axis": lambda tf: tf.boolean_mask(values("int32", 2, 3), [True, False, True], axis=1),
    "boolean_mask part": lambda tf: tf.boolean_mask(part(tf), unknown(tf, [True, False], [None])),
    "boolean_mask scalar": lambda tf: tf.boolean_mask([1], True),
    "boolean_mask unknown": lambda tf: tf.boolean_mask([1, 2], u(tf, [True, False])),
    "boolean_mask bad": lambda tf: tf.boolean_mask([1, 2], [True]),
    "where 1": lambda tf: tf.where([[True, False], [True, True]]),
    "where 3": lambda tf: tf.where([True, False], [1, 2], [3, 4]),
    "where rows": lambda tf: tf.where([True, False], values("int32", 2, 3), -values("int32", 2, 3)),
    "where scalar": lambda tf: tf.where(True, [1, 2], [3, 4]),
    "where str": lambda tf: tf.where([True, False], ["a", "b"], ["c", "d"]),
    "where one": lambda tf: tf.where([True], [1], None),
    "where shapes": lambda tf: tf.where([True, False], [1, 2], [3]),
    "where mixed": lambda tf: tf.where([True], tf.constant([1]), tf.constant([1.0])),
    "one_hot": lambda tf: tf.one_hot([0, 2, 5, -1], 3),
    "one_hot values": lambda tf: tf.one_hot([0, 2], 3, 5, -5),
    "one_hot on": lambda tf: tf.one_hot([0, 2], 3, on_value=True, off_value=False),
    "one_hot dtype": lambda tf: tf.one_hot([0, 2], 3, dtype=tf.int64),
    "one_hot axis": lambda tf: tf.one_hot([0, 2], 3, axis=0),
    "one_hot scalar": lambda tf: tf.one_hot(1, 3),
    "one_hot 2": lambda tf: tf.one_hot([[0], [1]], 2),
    "one_hot fed": lambda tf: tf.one_hot([0, 1], unknown(tf, 2, [])),
    "one_hot part": lambda tf: tf.one_hot(unknown(tf, [0, 1], [None]), 4),
    "one_hot mixed": lambda tf: tf.one_hot([0, 1], 4, tf.constant(1), tf.constant(1.0)),
    "fill": lambda tf: tf.fill([2, 3], 7),
    "fill str": lambda tf: tf.fill([2], "a"),
    "fill fed": lambda tf: tf.fill(unknown(tf, [2], [1]), 1.5),
    "fill negative": lambda tf: tf.fill(u(tf, [-1]), 1.5),
    "zeros": lambda tf: tf.zeros([2, 3]),
    "zeros int": lambda tf: tf.zeros([2, 3], tf.int32),
    "zeros []": lambda tf: tf.zeros([]),
    "zeros str": lambda tf: tf.zeros([2], tf.string),
    "zeros bool": lambda tf: tf.zeros([2], tf.bool),
    "zeros big": lambda tf: tf.zeros([2000]),
    "zeros shape": lambda tf: tf.zeros(tf.shape(part(tf))),
    "zeros list": lambda tf: tf.zeros([tf.shape(part(tf))[0], 2]),
    "zeros TensorShape": lambda tf: tf.zeros(tf.TensorShape([2, 3])),
    "zeros int shape": lambda tf: tf.zeros(3),
    "ones": lambda tf: tf.ones([2, 3], tf.float64),
    "ones bool": lambda tf: tf.ones([2], tf.bool),
    "ones str": lambda tf: tf.ones([2], tf.string),
    "zeros_like dtype": lambda tf: tf.zeros_like([1, 2], tf.float32),
    "ones_like dtype": lambda tf: tf.ones_like(part(tf), tf.int32),
    "zeros_like str": lambda tf: tf.zeros_like(tf.constant(["a"])),
    "range": lambda tf: tf.range(4),
    "range 2": lambda tf: tf.range(3, 7),
    "range 3": lambda tf: tf.range(10, 1, -3),
    "range float": lambda tf: tf.range(0.0, 1.0, 0.1),
    "range mixed": lambda tf: tf.range(0, 1.0, 0.3),
    "range dtype": lambda tf: tf.range(4, dtype=tf.int64),
    "range int64": lambda tf: tf.range(tf.constant(4, tf.int64)),
    "range np": lambda tf: tf.range(np.int64(4)),
    "range fed": lambda tf: tf.range(unknown(tf, 4, [])),
    "range size": lambda tf: tf.range(tf.size([1, 2, 3])),
    "range bad": lambda tf: tf.range(3, 1),
    "range zero": lambda tf: tf.range(0, 1, 0),
    "range bad run": lambda tf: tf.range(unknown(tf, 3, []), 1),
    "range empty": lambda tf: tf.range(0),
    "linspace": lambda tf: tf.linspace(0.0, 1.0, 5),
    "linspace 1": lambda tf: tf.linspace(2.0, 3.0, 1),
    "linspace 64": lambda tf: tf.linspace(np.float64(1), np.float64(9), 4),
    "eye": lambda tf: tf.eye(3),
    "eye 2": lambda tf: tf.eye(2, 3, dtype=tf.int32),
    "eye batch": lambda tf: tf.eye(2, batch_shape=[3]),
    "shape int64": lambda tf: tf.shape(part(tf), out_type=tf.int64),
    "shape str": lambda tf: tf.shape("abc"),
    "shape_n": lambda tf: tf.shape_n([tf.constant([1]), tf.constant([[1, 2]])]),
    "size part": lambda tf: tf.size(part(tf)),
    "rank unknown": lambda tf: tf.rank(u(tf, [1])),
    "meshgrid": lambda tf: tf.meshgrid([1, 2, 3], [4, 5]),
    "meshgrid ij": lambda tf: tf.meshgrid([1, 2, 3], [4, 5], indexing="ij"),
    "top_k": lambda tf: list(tf.nn.top_k([1.0, 3.0, 2.0, 3.0], 3)),
    "top_k rows": lambda tf: list(tf.nn.top_k(values("int32", 2, 5), 2)),
    "top_k part": lambda tf: list(tf.nn.top_k(part(tf), 2)),
    "top_k bad": lambda tf: list(tf.nn.top_k([1.0], 2)),
    "sort down": lambda tf: tf.sort([3.0, 1.0, 2.0], direction="DESCENDING"),
    "sort axis": lambda tf: tf.sort(values("float32", 3, 2), 0),
    "argsort down": lambda tf: tf.argsort([3.0, 1.0, 2.0], direction="DESCENDING", stable=True),
    "unique": lambda tf: list(tf.unique([3, 1, 3, 2, 1])),
    "unique str": lambda tf: list(tf.unique(["b", "a", "b"])),
    "unique int64": lambda tf: list(tf.unique([3, 1, 3], tf.int64)),
    "unique counts": lambda tf: list(tf.unique_with_counts([3, 1, 3, 2, 1])),
    "unique rank": lambda tf: list(tf.unique([[1]])),
    "sequence_mask": lambda tf: tf.sequence_mask([1, 3, 0]),
    "sequence_mask max": lambda tf: tf.sequence_mask([1, 3, 0], 5),
    "sequence_mask dtype": lambda tf: tf.sequence_mask([1, 3], 2, dtype=tf.float32),
    "sequence_mask 2": lambda tf: tf.sequence_mask([[1], [2]]),
    "broadcast_to": lambda tf: tf.broadcast_to([1, 2], [3, 2]),
    "broadcast_to bad": lambda tf: tf.broadcast_to(u(tf, [1, 2]), [3, 3]),
    "broadcast_to fed": lambda tf: tf.broadcast_to([1, 2], unknown(tf, [2, 2], [2])),
    "broadcast shape": lambda tf: tf.broadcast_dynamic_shape(tf.constant([2, 1]), tf.constant([3])),
    "reduce_join": lambda tf: tf.reduce_join([["a", "b"], ["c", "d"]], 1),
    "reduce_join all": lambda tf: tf.reduce_join([["a", "b"], ["c", "d"]]),
    "reduce_join sep": lambda tf: tf.reduce_join([["a", "b"], ["c", "d"]], 0, separator=","),
    "softmax": lambda tf: tf.nn.softmax(values("float32", 2, 3)),
    "relu": lambda tf: tf.nn.relu([-1.0, 2.0]),
    "accumulate": lambda tf: tf.accumulate_n([tf.constant([1, 2]), tf.constant([3, 4])]),
    "repeat": lambda tf: tf.repeat([1, 2], [2, 3]),
    "repeat axis": lambda tf: tf.repeat(values("int32", 2, 3), 2, axis=1),
}  # fmt: skip
for _name, _function in OTHERS.items():
    case(_name, _function)


class Outcome:
    """What a case gives: tensors with their values, or an error."""

    def __init__(self, tf: Any, function: Case, same: tuple[type, ...]) -> None:
        self.error: BaseException | None = None
        self.kinds: list[tuple[str, Any]] = []
        self.values: list[Any] = []
        self.when = "build"
        graph = tf.Graph()
        with graph.as_default():
            try:
                made = function(tf)
                tensors = list(made) if isinstance(made, list | tuple) else [made]
                self.kinds = [(one.dtype.base_dtype.name, static(one)) for one in tensors]
                self.when = "run"
                with tf.Session(graph=graph) as session:
                    self.values = session.run(tensors)
            except Exception as error:
                self.error = error


def static(tensor: Any) -> Any:
    return tensor.shape.as_list() if tensor.shape.ndims is not None else None


def agree(one: Any, two: Any) -> None:
    one, two = np.asarray(one), np.asarray(two)
    assert one.dtype == two.dtype
    assert one.shape == two.shape
    if one.dtype.kind == "f":
        tolerance = {2: 2e-3, 4: 2e-6, 8: 1e-14}[one.dtype.itemsize]
        np.testing.assert_allclose(one, two, rtol=tolerance, atol=tolerance)
    else:
        assert one.tolist() == two.tolist()


ERRORS = {"OperatorNotAllowedInGraphError": "TypeError"}
"""Names of theirs that are called otherwise here."""


@pytest.mark.parametrize("name", CASES)
def test_agrees(theirs: Any, name: str) -> None:
    mine = Outcome(ours, CASES[name], ())
    their = Outcome(theirs, CASES[name], ())
    if their.error is not None:
        expected = ERRORS.get(type(their.error).__name__, type(their.error).__name__)
        assert type(mine.error).__name__ == expected, (
            mine.error or mine.values,
            str(their.error)[:300],
        )
        assert mine.when == their.when, their.error
        return
    if mine.error is not None:
        raise mine.error
    assert mine.kinds == their.kinds
    for one, two in zip(mine.values, their.values, strict=True):
        agree(one, two)


def _unused() -> Iterator[None]:
    yield
