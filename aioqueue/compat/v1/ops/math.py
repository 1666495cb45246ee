"""Elementwise arithmetic.

Operands must have one dtype: a Python or NumPy value takes the tensor's, two tensors of different
dtypes are an error. Shapes broadcast as in NumPy. Integers wrap around; floating-point faults give
infinities and NaN without a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from aioqueue.compat.v1.core import dtypes, scopes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import (
    FLOATS,
    NUMBERS,
    REALS,
    Elementwise,
    OpBuilder,
    dtype_hint,
    invalid,
    merge,
)
from aioqueue.compat.v1.ops.casting import cast
from aioqueue.compat.v1.ops.elementwise import binary, binary_op, unary, unary_op

if TYPE_CHECKING:
    from aioqueue.compat.v1.ops.elementwise import Binary, Unary

__all__ = (
    "abs",
    "acos",
    "add",
    "asin",
    "atan",
    "atan2",
    "ceil",
    "clip_by_value",
    "cos",
    "cosh",
    "div",
    "div_no_nan",
    "divide",
    "exp",
    "expm1",
    "floor",
    "floor_div",
    "floordiv",
    "floormod",
    "log",
    "log1p",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "multiply",
    "neg",
    "negative",
    "pow",
    "realdiv",
    "reciprocal",
    "rint",
    "round",
    "rsqrt",
    "scalar_mul",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "squared_difference",
    "sub",
    "subtract",
    "tan",
    "tanh",
    "truediv",
    "truncatediv",
    "truncatemod",
)


def add(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x + y``; strings are joined."""
    is_string = dtypes.string in (dtype_hint(x), dtype_hint(y)) or isinstance(x, str | bytes)
    op_type = "Add" if is_string else "AddV2"
    return binary(op_type, np.add, x, y, name, NUMBERS | {"string"}, default="Add")


subtract: Binary = binary_op("subtract", "Sub", np.subtract, "``x - y``.")
multiply: Binary = binary_op("multiply", "Mul", np.multiply, "``x * y``.")


def truediv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x / y`` as in Python 3: integers are divided as float64, those below 32 bits as float32."""
    with scopes.name_scope(name, "truediv") as scope:
        x, y = _same_dtype(x, y)
        wide = _division_dtype(x.dtype)
        if wide is not None:
            x, y = cast(x, wide), cast(y, wide)
        return binary("RealDiv", np.true_divide, x, y, scope, FLOATS)


def _division_dtype(dtype: DType) -> DType | None:
    """What integers become before they are divided."""
    if not dtype.is_integer:
        return None
    return dtypes.float32 if dtype.size < 4 else dtypes.float64


def _same_dtype(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    hint = dtype_hint(x) or dtype_hint(y)
    x = convert_to_tensor(x, dtype=None if dtype_hint(x) else hint, name="x")
    y = convert_to_tensor(y, dtype=None if dtype_hint(y) else x.dtype, name="y")
    if x.dtype != y.dtype:
        raise TypeError(f"`x` and `y` must have the same dtype, got {x.dtype!r} != {y.dtype!r}.")
    return x, y


def divide(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x / y`` as in Python 3."""
    return truediv(x, y, name)


def div(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x / y`` as in Python 2: integers are divided with rounding down."""
    with scopes.name_scope(name, "div") as scope:
        x = convert_to_tensor(x, dtype=None if dtype_hint(x) else dtype_hint(y), name="x")
        y = convert_to_tensor(y, dtype=x.dtype, name="y")
        if x.dtype.is_integer:
            return floordiv(x, y, scope)
        return binary("RealDiv", np.true_divide, x, y, scope, FLOATS)


realdiv: Binary = binary_op(
    "realdiv", "RealDiv", np.true_divide, "``x / y`` of floats.", FLOATS, default="realdiv"
)


def scalar_mul(scalar: Any, x: Any, name: str | None = None) -> Tensor:
    """``scalar * x``, in the dtype of ``x``.

    Raises:
        ValueError: ``scalar`` is not a scalar.
    """
    factor = convert_to_tensor(scalar, dtype=dtype_hint(x), name="scalar")
    if factor.shape.ndims not in (None, 0):
        raise ValueError(f"The input scalar must be a 0-D value. Received shape {factor.shape}.")
    return multiply(factor, x, name)


def div_no_nan(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x / y``, and 0 where ``y`` is 0."""

    def divide_unless_zero(x: Any, y: Any) -> Any:
        return np.where(y == 0, np.zeros_like(y), np.true_divide(x, y))

    return binary("DivNoNan", divide_unless_zero, x, y, name, FLOATS, default="div_no_nan")


def _rint(x: Any) -> Any:
    return x if np.asarray(x).dtype.kind in "iu" else np.rint(x)


def _dividing(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with TensorFlow's error where an integer is divided by zero."""

    def dividing(x: Any, y: Any) -> Any:
        if not np.all(y) and np.asarray(y).dtype.kind in "iu" and np.size(x):
            raise invalid("Integer division by zero")
        return function(x, y)

    return dividing


@_dividing
def _floor_divide(x: Any, y: Any) -> Any:
    if np.asarray(y).dtype.kind == "f":
        return np.floor(np.true_divide(x, y))
    return np.floor_divide(x, y)


@_dividing
def _truncate_divide(x: Any, y: Any) -> Any:
    if np.asarray(y).dtype.kind in "fc":
        return np.true_divide(x, y)
    return np.floor_divide(np.subtract(x, np.fmod(x, y)), y)


floordiv: Binary = binary_op(
    "floordiv", "FloorDiv", _floor_divide, "``x // y``, rounded down.", REALS, default="floordiv"
)
floor_div: Binary = binary_op(
    "floor_div", "FloorDiv", _floor_divide, "``x // y``, rounded down.", REALS
)
mod: Binary = binary_op(
    "mod", "FloorMod", _dividing(np.remainder), "``x % y``, of the sign of ``y``.", REALS
)
truncatediv: Binary = binary_op(
    "truncatediv",
    "TruncateDiv",
    _truncate_divide,
    "``x / y`` rounded towards zero, as integers are divided in C.",
    REALS,
)
truncatemod: Binary = binary_op(
    "truncatemod",
    "TruncateMod",
    _dividing(np.fmod),
    "What `truncatediv` leaves, with the sign of ``x``.",
    REALS,
)
pow: Binary = binary_op(
    "pow", "Pow", np.power, "``x`` to the power of ``y``; negative powers of integers are an error."
)
maximum: Binary = binary_op("maximum", "Maximum", np.maximum, "The larger of the two.", REALS)
minimum: Binary = binary_op("minimum", "Minimum", np.minimum, "The smaller of the two.", REALS)
squared_difference: Binary = binary_op(
    "squared_difference",
    "SquaredDifference",
    lambda x, y: np.square(np.subtract(x, y)),
    "``(x - y) ** 2``.",
)


def atan2(y: Any, x: Any, name: str | None = None) -> Tensor:
    """The angle of the point ``(x, y)``, in radians."""
    return binary("Atan2", np.arctan2, y, x, name, FLOATS)


def abs(x: Any, name: str | None = None) -> Tensor:
    """The absolute value; the magnitude of complex numbers, as real ones."""
    hint = convert_to_tensor(x, name="x")
    op_type = "ComplexAbs" if hint.dtype.is_complex else "Abs"
    with OpBuilder(op_type, name, "Abs") as op:
        x = op.tensor(hint, "x", None, NUMBERS)
        return op.output(x.dtype.real_dtype, x.shape.as_tuple(), Elementwise(np.abs))


negative: Unary = unary_op("negative", "Neg", np.negative, "``-x``.", NUMBERS)
sign: Unary = unary_op("sign", "Sign", np.sign, "-1, 0 or 1.", NUMBERS)
square: Unary = unary_op("square", "Square", np.square, "``x * x``.", NUMBERS)
reciprocal: Unary = unary_op("reciprocal", "Reciprocal", np.reciprocal, "``1 / x``.", FLOATS)
sqrt: Unary = unary_op("sqrt", "Sqrt", np.sqrt, "The square root.")
rsqrt: Unary = unary_op("rsqrt", "Rsqrt", lambda x: np.reciprocal(np.sqrt(x)), "``1 / sqrt(x)``.")
exp: Unary = unary_op("exp", "Exp", np.exp, "``e ** x``.")
expm1: Unary = unary_op("expm1", "Expm1", np.expm1, "``e ** x - 1``, exact for small ``x``.")
log: Unary = unary_op("log", "Log", np.log, "The natural logarithm.")
log1p: Unary = unary_op("log1p", "Log1p", np.log1p, "``log(1 + x)``, exact for small ``x``.")
sin: Unary = unary_op("sin", "Sin", np.sin, "The sine of an angle in radians.")
cos: Unary = unary_op("cos", "Cos", np.cos, "The cosine of an angle in radians.")
tan: Unary = unary_op("tan", "Tan", np.tan, "The tangent of an angle in radians.")
asin: Unary = unary_op("asin", "Asin", np.arcsin, "The angle whose sine is ``x``, in radians.")
acos: Unary = unary_op("acos", "Acos", np.arccos, "The angle whose cosine is ``x``, in radians.")
atan: Unary = unary_op("atan", "Atan", np.arctan, "The angle whose tangent is ``x``, in radians.")
sinh: Unary = unary_op("sinh", "Sinh", np.sinh, "The hyperbolic sine.")
cosh: Unary = unary_op("cosh", "Cosh", np.cosh, "The hyperbolic cosine.")
tanh: Unary = unary_op("tanh", "Tanh", np.tanh, "The hyperbolic tangent.")


def sigmoid(x: Any, name: str | None = None) -> Tensor:
    """``1 / (1 + exp(-x))``."""

    def logistic(x: Any) -> Any:
        one = x.dtype.type(1)
        return np.true_divide(one, np.add(one, np.exp(np.negative(x))))

    return unary("Sigmoid", logistic, x, name)


floor: Unary = unary_op("floor", "Floor", np.floor, "The largest whole number not above ``x``.")
ceil: Unary = unary_op("ceil", "Ceil", np.ceil, "The smallest whole number not below ``x``.")
round: Unary = unary_op("round", "Round", _rint, "The nearest whole number, or even one.", NUMBERS)
rint: Unary = unary_op("rint", "Rint", np.rint, "The nearest whole number, or even one.")


def clip_by_value(
    t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None
) -> Tensor:
    """``t`` with elements below the minimum, or above the maximum, set to it.

    Args:
        t: numbers.
        clip_value_min: the lower limit; broadcasts with ``t``.
        clip_value_max: the upper limit; broadcasts with ``t``.
        name: name of the op.

    Raises:
        ValueError: a limit would make the result larger than ``t``.
    """

    def clip(t: Any, low: Any, high: Any) -> Any:
        return np.maximum(np.minimum(t, high), low)

    with OpBuilder("ClipByValue", name, "clip_by_value") as op:
        t, low, high = op.alike(
            REALS, t=t, clip_value_min=clip_value_min, clip_value_max=clip_value_max
        )
        shape = op.broadcast(t, low, high)
        merge(t.shape.as_tuple(), shape)
        return op.output(t.dtype, shape, Elementwise(clip))


# Names from before TensorFlow 1.0.

sub = subtract
mul = multiply
neg = negative
floormod = mod
