"""Cases of elementwise ops, operators, indexing and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compat.op_cases import FLOATS, INTS, case, expression, unknown, values

WIDE = ("int32", "int64")
EXACT = ("float32", "float64")
UNARY = {
    "abs negative": INTS[:4] + FLOATS,
    "sign square round reduce_sum reduce_mean argmax argmin": WIDE + FLOATS,
    "floor ceil exp sqrt rsqrt log log1p expm1 sin cos tanh sigmoid reciprocal": FLOATS,
    "is_nan is_inf is_finite": FLOATS, "tan asin acos atan sinh cosh rint": EXACT,
    "to_float to_int32 to_int64 to_double reduce_max reduce_min transpose": INTS + FLOATS,
    "zeros_like ones_like": (*INTS, *FLOATS, "bool"), "size shape rank unstack squeeze": ("int32",),
    "reduce_prod cumsum cumprod": WIDE + EXACT, "where": ("bool", "int32", "float32"),
    "count_nonzero": ("int32", "float32"),
}  # fmt: skip
SHAPES = ((), (5,), (2, 3), (2, 1, 3), (0,), (0, 3))
NEED_AN_AXIS = ("argmax", "argmin", "cumsum", "cumprod", "unstack", "where")
NEED_ELEMENTS = ("argmax", "argmin", "unstack")
SPECIAL = np.array(
    [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30, -7.0]
)
OF_SPECIAL = "abs sign floor ceil round exp sqrt rsqrt log tanh sigmoid reciprocal is_nan is_inf"

BINARY = {
    "add subtract multiply divide truediv floordiv maximum minimum": INTS + FLOATS,
    "equal not_equal less less_equal greater greater_equal": INTS + FLOATS,
    "div squared_difference": ("int32", "float32"),
    "mod": WIDE + EXACT,
    "pow": FLOATS,
    "div_no_nan atan2": EXACT,
}
PAIRS = (((), ()), ((4,), ()), ((2, 3), (3,)), ((2, 1), (1, 4)), ((0,), (1,)), ((2,), (3,)))


def unary(name: str, what: str, array: Any, shape: Any = "known") -> None:
    """A case of an op of one tensor, of whose shape something else may be known."""

    def made(tf: Any) -> Any:
        tensor = tf.constant(array) if shape == "known" else unknown(tf, array, shape)
        return getattr(tf, name)(tensor)

    case(f"{name}-{what}", made)


def binary(name: str, what: str, one: Any, two: Any, shape: Any = "known") -> None:
    """A case of an op of two tensors."""

    def made(tf: Any) -> Any:
        first = tf.constant(one) if shape == "known" else unknown(tf, one, shape)
        second = unknown(tf, two) if what == "incompatible" else tf.constant(two)
        return getattr(tf, name)(first, second)

    case(f"{name}-{what}", made)


for _names, _dtypes in UNARY.items():
    for _name in _names.split():
        for _dtype in _dtypes:
            for _shape in SHAPES:
                if (_shape or _name not in NEED_AN_AXIS) and not (
                    0 in _shape and _name in NEED_ELEMENTS
                ):
                    unary(_name, f"{_dtype}-{_shape}", values(_dtype, *_shape))
        for _known in (None, [None, 3]):
            if _name != "unstack":
                unary(_name, f"unknown-{_known}", values(_dtypes[-1], 2, 3), _known)
for _name in [*OF_SPECIAL.split(), "is_finite"]:
    for _dtype in EXACT:
        unary(_name, f"special-{_dtype}", SPECIAL.astype(_dtype))

for _names, _dtypes in BINARY.items():
    for _name in _names.split():
        for _dtype in _dtypes:
            for _one, _two in PAIRS:
                _what = f"{_dtype}-{_one}-{_two}"
                binary(_name, _what, values(_dtype, *_one), values(_dtype, *_two, start=2))
        _dtype = _dtypes[-1]
        for _known in (None, [None, 3], [2, None]):
            _pair = values(_dtype, 2, 3), values(_dtype, 1, 3, start=2)
            binary(_name, f"unknown-{_known}", *_pair, _known)
        _pair = values(_dtype, 2), values(_dtype, 3, start=2)
        binary(_name, "incompatible", *_pair, None)
        binary(_name, "mismatch", np.array([1, 2], "int32"), np.array([1, 2], "float32"))

for _name in ("floordiv", "mod", "div", "pow", "truediv"):
    for _dtype in ("int32", "float32"):
        for _y in (3, -3, 2, -2):
            _x, _by = np.array([-7, -6, -1, 0, 1, 6, 7], _dtype), np.array(_y, _dtype)
            binary(_name, f"signs-{_dtype}-{_y}", _x, abs(_by) if _name == "pow" else _by)

OPERATORS = """
constant([1, 2]) + 1 ; 1 + constant([1, 2]) ; constant([1.0, 2.0]) + 1.5 ; constant([1, 2]) + 1.5
constant([1.0, 2.0]) + 1 ; constant([1.0, 2.0]) - np.array([0.25, 1.0])
np.array([0.25, 1.0]) - constant([1.0, 2.0]) ; np.float64(2.5) * constant([1.0, 2.0])
np.int64(2) * constant([1.0, 2.0]) ; np.array([0.25, 3.0]) < constant([1.0, 2.0])
np.array([5, -7]) // constant([2, 2]) ; 2 - constant([1, 2]) ; constant([1, 2]) * constant([1, 2])
constant([1, 2]) / 2 ; constant([1, 2], int8) / constant(2, int8) ; 1 / constant([1, 2])
constant([-5, 5]) // 2 ; constant([-5, 5]) % 3 ; constant([-5.0, 5.0]) ** 2
2.0 ** constant([-5.0, 5.0]) ; -constant([-5, 5]) ; constant([-5, 5]).__abs__()
constant([-5, 5]) < 1 ; constant([-5, 5]) <= 1 ; constant([-5, 5]) >= constant([-5, 6])
constant([True, False]) & True ; constant([True, False]) | constant([False, False])
constant([True, False]) ^ True ; ~constant([True, False]) ; constant([6, 5]) & 3
constant([6, 5]) | 3 ; constant([6, 5]) ^ 3 ; ~constant([6, 5]) ; 1.0 in constant([1.0])
constant([[1.0, 2.0]]) @ constant([[3.0], [4.0]]) ; constant(['a', 'b']) + 'c'
'c' + constant(['a', 'b']) ; constant([1.0, -1.0, 0.0]) / 0.0 ; constant([1.0]) & constant([1.0])
constant([1, 2]) // constant([0, 1]) ; constant([1, 2]) % constant([0, 1]) ; [*constant([1.0])]
constant(2 ** 31 - 1) + 1 ; constant([127], int8) + constant([1], int8) ; constant([1.0]) + None
constant([1, 2]) + constant([1.0, 2.0]) ; constant([1, 2]) + constant([1, 2, 3])
len(constant([1.0])) ; 1 if constant(1.0) else 0 ; np.asarray(constant([1.0]))
"""
for _text in OPERATORS.strip().replace("\n", " ; ").split(" ; "):
    case(f"operator {_text}", expression(_text))

INDEXES = """
0 ; -1 ; 1: ; :1 ; ::2 ; ::-1 ; -1::-1 ; :, 0 ; :, -1 ; ..., 0 ; 0, ... ; None ; :, None ; ..., None
None, 0 ; :, newaxis, 1 ; 1:2, 1: ; 5: ; -9:9 ; 2:1 ; 0, 0 ; 0, 0, 0 ; 0, 0, 0, 0 ; 7 ; -7
constant(1) ; constant(1): ; unknown(1, []) ; :unknown(1, []) ; :, unknown(1, []) ; unknown(9, [])
np.int64(1) ; constant([True, False]) ; np.array([True, False]) ; :TensorShape([1])[0] ; 'a' ; 1.0
[0, 1] ; True ; ..., 0, ... ; constant(1.0)
"""
for _text in INDEXES.strip().replace("\n", " ; ").split(" ; "):
    for _shape in ((2, 3, 4), (2, 3)):
        for _how in (list(_shape), [None, *_shape[1:]], None):
            _made = f"unknown(i{_shape}, {_how})[{_text}]"
            case(_made, expression(_made))
