"""Arithmetic: the table of elementwise ops. Integers wrap around; no fault of floats warns."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes, scopes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Tensor, named
from aioqueue.compat.v1.ops.building import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    REALS,
    Binary,
    Function,
    OpBuilder,
    Pure,
    Unary,
    dtype_hint,
    elementwise,
    invalid,
    shape_text,
)
from aioqueue.compat.v1.ops.casting import cast

__all__ = (
    "abs", "acos", "add", "add_n", "asin", "atan", "atan2", "ceil", "cos", "cosh",
    "divide", "equal", "exp", "expm1", "floor", "floordiv", "floormod", "greater",
    "greater_equal", "is_finite", "is_inf", "is_nan", "less", "less_equal", "log", "log1p",
    "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "mod",
    "multiply", "negative", "not_equal", "pow", "reciprocal", "rint", "round", "rsqrt",
    "scalar_mul", "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "squared_difference",
    "subtract", "tan", "tanh", "truediv",
)  # fmt: skip

_BOOLS = frozenset(("bool",))
_COMPARABLE = NUMBERS | {"bool", "string"}


def _type_of(name: str) -> str:
    """The op's type: ``FloorDiv`` for ``floor_div``."""
    return "".join(part.capitalize() for part in name.split("_"))


def _one(
    name: str,
    function: Function,
    doc: str,
    allowed: frozenset[str] = FLOATS,
    op_type: str = "",
    **options: Any,
) -> Unary:
    kind = op_type or _type_of(name)

    def made(x: Any, name: str | None = None) -> Tensor:
        return elementwise(kind, function, name, allowed, {"x": x}, **options)

    return named(made, name, doc)


def _two(
    name: str,
    function: Function,
    doc: str,
    allowed: frozenset[str] = NUMBERS,
    op_type: str = "",
    **options: Any,
) -> Binary:
    kind = op_type or _type_of(name)

    def made(x: Any, y: Any, name: str | None = None) -> Tensor:
        return elementwise(kind, function, name, allowed, {"x": x, "y": y}, **options)

    return named(made, name, doc)


def _comparison(name: str, function: Function, symbol: str) -> Binary:
    allowed = REALS if symbol[0] in "<>" else _COMPARABLE
    doc = f"Whether ``x {symbol} y``, element by element."
    return _two(name, function, doc, allowed, result=dtypes.bool)


def _question(name: str, function: Function, what: str) -> Unary:
    return _one(name, function, f"Whether each element is {what}.", result=dtypes.bool)


def _logistic(x: Any) -> Any:
    one = x.dtype.type(1)
    return np.true_divide(one, np.add(one, np.exp(np.negative(x))))


def _dividing(function: Function) -> Function:
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


negative: Unary = _one("negative", np.negative, "``-x``.", NUMBERS, "Neg")
sign: Unary = _one("sign", np.sign, "-1, 0 or 1.", NUMBERS)
square: Unary = _one("square", np.square, "``x * x``.", NUMBERS)
round: Unary = _one(
    *("round", lambda x: x if np.asarray(x).dtype.kind in "iu" else np.rint(x)),
    *("The nearest whole number, or even one.", NUMBERS),
)
reciprocal: Unary = _one("reciprocal", np.reciprocal, "``1 / x``.")
sqrt: Unary = _one("sqrt", np.sqrt, "The square root.")
rsqrt: Unary = _one("rsqrt", lambda x: np.reciprocal(np.sqrt(x)), "``1 / sqrt(x)``.")
exp: Unary = _one("exp", np.exp, "``e ** x``.")
expm1: Unary = _one("expm1", np.expm1, "``e ** x - 1``, exact for small ``x``.")
log: Unary = _one("log", np.log, "The natural logarithm.")
log1p: Unary = _one("log1p", np.log1p, "``log(1 + x)``, exact for small ``x``.")
sin: Unary = _one("sin", np.sin, "The sine of an angle in radians.")
cos: Unary = _one("cos", np.cos, "The cosine of an angle in radians.")
tan: Unary = _one("tan", np.tan, "The tangent of an angle in radians.")
asin: Unary = _one("asin", np.arcsin, "The angle whose sine is ``x``, in radians.")
acos: Unary = _one("acos", np.arccos, "The angle whose cosine is ``x``, in radians.")
atan: Unary = _one("atan", np.arctan, "The angle whose tangent is ``x``, in radians.")
sinh: Unary = _one("sinh", np.sinh, "The hyperbolic sine.")
cosh: Unary = _one("cosh", np.cosh, "The hyperbolic cosine.")
tanh: Unary = _one("tanh", np.tanh, "The hyperbolic tangent.")
sigmoid: Unary = _one("sigmoid", _logistic, "``1 / (1 + exp(-x))``.")
floor: Unary = _one("floor", np.floor, "The largest whole number not above ``x``.")
ceil: Unary = _one("ceil", np.ceil, "The smallest whole number not below ``x``.")
rint: Unary = _one("rint", np.rint, "The nearest whole number, or even one.")
invert: Unary = _one("invert", np.invert, "Every bit flipped.", INTEGERS)
is_nan: Unary = _question("is_nan", np.isnan, "not a number")
is_inf: Unary = _question("is_inf", np.isinf, "infinite")
is_finite: Unary = _question("is_finite", np.isfinite, "a number and not infinite")
logical_not: Unary = _one(
    "logical_not", np.logical_not, "Whether it is false.", _BOOLS, dtype=dtypes.bool
)

subtract: Binary = _two("subtract", np.subtract, "``x - y``.", op_type="Sub")
multiply: Binary = _two("multiply", np.multiply, "``x * y``.", op_type="Mul")
realdiv: Binary = _two("realdiv", np.true_divide, "``x / y`` of floats.", FLOATS, "RealDiv")
div_no_nan: Binary = _two(
    "div_no_nan",
    lambda x, y: np.where(y == 0, np.zeros_like(y), np.true_divide(x, y)),
    *("``x / y``, and 0 where ``y`` is 0.", FLOATS),
    default="div_no_nan",
)
floordiv: Binary = _two(
    "floordiv", _floor_divide, "``x // y``, rounded down.", REALS, "FloorDiv", default="floordiv"
)
floor_div: Binary = _two("floor_div", _floor_divide, "``x // y``, rounded down.", REALS)
mod: Binary = _two(
    "mod", _dividing(np.remainder), "``x % y``, of the sign of ``y``.", REALS, "FloorMod"
)
pow: Binary = _two("pow", np.power, "``x ** y``; negative powers of integers are an error.")
maximum: Binary = _two("maximum", np.maximum, "The larger of the two.", REALS)
minimum: Binary = _two("minimum", np.minimum, "The smaller of the two.", REALS)
squared_difference: Binary = _two(
    "squared_difference", lambda x, y: np.square(np.subtract(x, y)), "``(x - y) ** 2``."
)
bitwise_and: Binary = _two("bitwise_and", np.bitwise_and, "The bits set in both.", INTEGERS)
bitwise_or: Binary = _two("bitwise_or", np.bitwise_or, "The bits set in either.", INTEGERS)
bitwise_xor: Binary = _two("bitwise_xor", np.bitwise_xor, "The bits set in just one.", INTEGERS)
equal: Binary = _comparison("equal", np.equal, "==")
not_equal: Binary = _comparison("not_equal", np.not_equal, "!=")
less: Binary = _comparison("less", np.less, "<")
less_equal: Binary = _comparison("less_equal", np.less_equal, "<=")
greater: Binary = _comparison("greater", np.greater, ">")
greater_equal: Binary = _comparison("greater_equal", np.greater_equal, ">=")
logical_and: Binary = _two(
    "logical_and", np.logical_and, "Whether both are true.", _BOOLS, dtype=dtypes.bool
)
logical_or: Binary = _two(
    "logical_or", np.logical_or, "Whether either is true.", _BOOLS, dtype=dtypes.bool
)

sub, mul, neg, floormod = subtract, multiply, negative, mod


def add(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x + y``; strings are joined."""
    is_string = dtypes.string in (dtype_hint(x), dtype_hint(y)) or isinstance(x, str | bytes)
    op_type = "Add" if is_string else "AddV2"
    values = {"x": x, "y": y}
    return elementwise(op_type, np.add, name, NUMBERS | {"string"}, values, default="Add")


def abs(x: Any, name: str | None = None) -> Tensor:
    """The absolute value; the magnitude of complex numbers, as real ones."""
    tensor = convert_to_tensor(x, name="x")
    op_type = "ComplexAbs" if tensor.dtype.is_complex else "Abs"
    result = tensor.dtype.real_dtype
    return elementwise(op_type, np.abs, name, NUMBERS, {"x": tensor}, default="Abs", result=result)


def truediv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x / y`` as in Python 3: integers are divided as float64, those below 32 bits as float32."""
    with scopes.name_scope(name, "truediv") as scope:
        hint = dtype_hint(x) or dtype_hint(y)
        x = convert_to_tensor(x, dtype=None if dtype_hint(x) else hint, name="x")
        y = convert_to_tensor(y, dtype=None if dtype_hint(y) else x.dtype, name="y")
        if x.dtype != y.dtype:
            raise TypeError(
                f"`x` and `y` must have the same dtype, got {x.dtype!r} != {y.dtype!r}."
            )
        if x.dtype.is_integer:
            wide = dtypes.float32 if x.dtype.size < 4 else dtypes.float64
            x, y = cast(x, wide), cast(y, wide)
        return realdiv(x, y, scope)


divide = truediv


def _div(x: Any, y: Any, name: str | None = None) -> Tensor:
    with scopes.name_scope(name, "div") as scope:
        x = convert_to_tensor(x, dtype=None if dtype_hint(x) else dtype_hint(y), name="x")
        y = convert_to_tensor(y, dtype=x.dtype, name="y")
        return (floordiv if x.dtype.is_integer else realdiv)(x, y, scope)


div: Binary = named(_div, "div", "``x / y`` as in Python 2: integers are rounded down.")


def scalar_mul(scalar: Any, x: Any, name: str | None = None) -> Tensor:
    """``scalar * x``, in the dtype of ``x``."""
    factor = convert_to_tensor(scalar, dtype=dtype_hint(x), name="scalar")
    if factor.shape.ndims not in (None, 0):
        raise ValueError(f"The input scalar must be a 0-D value. Received shape {factor.shape}.")
    return multiply(factor, x, name)


def atan2(y: Any, x: Any, name: str | None = None) -> Tensor:
    """The angle of the point ``(x, y)``, in radians."""
    return elementwise("Atan2", np.arctan2, name, FLOATS, {"x": y, "y": x})


def logical_xor(x: Any, y: Any, name: str = "LogicalXor") -> Tensor:
    """Whether just one is true, element by element."""
    # Of four ops, as in TensorFlow, whose names errors and later ops show.
    return logical_and(logical_or(x, y), logical_not(logical_and(x, y)), name)


def add_n(inputs: Sequence[Any] | Any, name: str | None = None) -> Tensor:
    """The sum of tensors of one dtype and one shape."""
    values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if not values:
        raise ValueError(
            "Inputs must be an iterable of at least one Tensor/IndexedSlices with the same dtype"
            " and shape."
        )

    def total(*values: Any) -> Any:
        shapes = [np.shape(value) for value in values]
        for place, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise invalid(
                    f"Inputs to operation {op.name.rstrip('/')} of type AddN must have the same"
                    f" size and shape.  Input 0: {shape_text(shapes[0])} != input {place}:"
                    f" {shape_text(shape)}"
                )
        return functools.reduce(np.add, values)

    with OpBuilder("AddN", name) as op:
        tensors = op.alike_list(values, "inputs")
        return op.output(tensors[0].dtype, op.same_shape(tensors), Pure(total))
