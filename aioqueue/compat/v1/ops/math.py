"""Elementwise arithmetic, comparison and logic, casts, and products of matrices.

Operands must have one dtype: a Python or NumPy value takes the tensor's, two tensors of different
dtypes are an error. Shapes broadcast as in NumPy. Integers wrap around; floating-point faults give
infinities and NaN without a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import dtypes, scopes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    REALS,
    Dims,
    Elementwise,
    OpBuilder,
    Pure,
    broadcast,
    dtype_hint,
    invalid,
    merge,
)

__all__ = (
    "abs",
    "accumulate_n",
    "acos",
    "add",
    "add_n",
    "asin",
    "atan",
    "atan2",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "cast",
    "ceil",
    "clip_by_value",
    "cos",
    "cosh",
    "div",
    "div_no_nan",
    "divide",
    "equal",
    "exp",
    "expm1",
    "floor",
    "floordiv",
    "greater",
    "greater_equal",
    "invert",
    "is_finite",
    "is_inf",
    "is_nan",
    "less",
    "less_equal",
    "log",
    "log1p",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "negative",
    "not_equal",
    "pow",
    "reciprocal",
    "relu",
    "rint",
    "round",
    "rsqrt",
    "saturate_cast",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "softmax",
    "sqrt",
    "square",
    "squared_difference",
    "subtract",
    "tan",
    "tanh",
    "tensordot",
    "to_double",
    "to_float",
    "to_int32",
    "to_int64",
    "truediv",
    "truncatediv",
    "truncatemod",
)

_BOOLS = frozenset(("bool",))
_ORDERED = REALS
_COMPARABLE = NUMBERS | {"bool", "string"}


def _unary(
    op_type: str,
    function: Callable[..., Any],
    x: Any,
    name: str | None,
    allowed: frozenset[str] = FLOATS,
    result: DType | None = None,
) -> Tensor:
    with OpBuilder(op_type, name) as op:
        x = op.tensor(x, "x", None, allowed)
        return op.output(result or x.dtype, x.shape.as_tuple(), Elementwise(function))


def _binary(
    op_type: str,
    function: Callable[..., Any],
    x: Any,
    y: Any,
    name: str | None,
    allowed: frozenset[str] = NUMBERS,
    *,
    default: str | None = None,
    result: DType | None = None,
) -> Tensor:
    with OpBuilder(op_type, name, default) as op:
        x, y = op.alike(allowed, x=x, y=y)
        if x.dtype == dtypes.string:
            function = _on_objects(function)
        return op.output(result or x.dtype, op.broadcast(x, y), Elementwise(function))


def _on_objects(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` for strings, whose scalars NumPy would else cut at trailing zeros."""

    def on_objects(*values: Any) -> Any:
        return function(*(np.asarray(value, object) for value in values))

    return on_objects


# Arithmetic.


def add(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x + y``; strings are joined."""
    is_string = dtypes.string in (dtype_hint(x), dtype_hint(y)) or isinstance(x, str | bytes)
    op_type = "Add" if is_string else "AddV2"
    return _binary(op_type, np.add, x, y, name, NUMBERS | {"string"}, default="Add")


def subtract(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x - y``."""
    return _binary("Sub", np.subtract, x, y, name)


def multiply(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x * y``."""
    return _binary("Mul", np.multiply, x, y, name)


def truediv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x / y`` as in Python 3: integers are divided as float64, those below 32 bits as float32."""
    with scopes.name_scope(name, "truediv") as scope:
        x, y = _same_dtype(x, y)
        wide = _division_dtype(x.dtype)
        if wide is not None:
            x, y = cast(x, wide), cast(y, wide)
        return _binary("RealDiv", np.true_divide, x, y, scope, FLOATS)


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
        raise TypeError(f"`x` and `y` must have the same dtype, got {x.dtype!r} != {y.dtype!r}")
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
        return _binary("RealDiv", np.true_divide, x, y, scope, FLOATS)


def div_no_nan(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x / y``, and 0 where ``y`` is 0."""

    def divide_unless_zero(x: Any, y: Any) -> Any:
        return np.where(y == 0, np.zeros_like(y), np.true_divide(x, y))

    return _binary("DivNoNan", divide_unless_zero, x, y, name, FLOATS, default="div_no_nan")


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


def floordiv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x // y``, rounded down."""
    return _binary("FloorDiv", _floor_divide, x, y, name, REALS, default="floordiv")


def mod(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x % y``, which has the sign of ``y``."""
    return _binary("FloorMod", _dividing(np.remainder), x, y, name, REALS)


def truncatediv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x / y`` rounded towards zero, as integers are divided in C."""
    return _binary("TruncateDiv", _truncate_divide, x, y, name, REALS)


def truncatemod(x: Any, y: Any, name: str | None = None) -> Tensor:
    """What `truncatediv` leaves, with the sign of ``x``."""
    return _binary("TruncateMod", _dividing(np.fmod), x, y, name, REALS)


def pow(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x`` to the power of ``y``; negative powers of integers are an error."""
    return _binary("Pow", np.power, x, y, name)


def maximum(x: Any, y: Any, name: str | None = None) -> Tensor:
    """The larger of ``x`` and ``y``, element by element."""
    return _binary("Maximum", np.maximum, x, y, name, REALS)


def minimum(x: Any, y: Any, name: str | None = None) -> Tensor:
    """The smaller of ``x`` and ``y``, element by element."""
    return _binary("Minimum", np.minimum, x, y, name, REALS)


def squared_difference(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``(x - y) ** 2``."""

    def squared(x: Any, y: Any) -> Any:
        return np.square(np.subtract(x, y))

    return _binary("SquaredDifference", squared, x, y, name)


def atan2(y: Any, x: Any, name: str | None = None) -> Tensor:
    """The angle of the point ``(x, y)``, in radians."""
    return _binary("Atan2", np.arctan2, y, x, name, FLOATS)


def abs(x: Any, name: str | None = None) -> Tensor:
    """The absolute value; the magnitude of complex numbers, as real ones."""
    hint = convert_to_tensor(x, name="x")
    op_type = "ComplexAbs" if hint.dtype.is_complex else "Abs"
    with OpBuilder(op_type, name, "Abs") as op:
        x = op.tensor(hint, "x", None, NUMBERS)
        return op.output(x.dtype.real_dtype, x.shape.as_tuple(), Elementwise(np.abs))


def negative(x: Any, name: str | None = None) -> Tensor:
    """``-x``."""
    return _unary("Neg", np.negative, x, name, NUMBERS)


def sign(x: Any, name: str | None = None) -> Tensor:
    """-1, 0 or 1."""
    return _unary("Sign", np.sign, x, name, NUMBERS)


def square(x: Any, name: str | None = None) -> Tensor:
    """``x * x``."""
    return _unary("Square", np.square, x, name, NUMBERS)


def reciprocal(x: Any, name: str | None = None) -> Tensor:
    """``1 / x``."""
    return _unary("Reciprocal", np.reciprocal, x, name, FLOATS)


def sqrt(x: Any, name: str | None = None) -> Tensor:
    """The square root."""
    return _unary("Sqrt", np.sqrt, x, name)


def rsqrt(x: Any, name: str | None = None) -> Tensor:
    """``1 / sqrt(x)``."""
    return _unary("Rsqrt", lambda x: np.reciprocal(np.sqrt(x)), x, name)


def exp(x: Any, name: str | None = None) -> Tensor:
    """``e ** x``."""
    return _unary("Exp", np.exp, x, name)


def expm1(x: Any, name: str | None = None) -> Tensor:
    """``e ** x - 1``, exact for small ``x``."""
    return _unary("Expm1", np.expm1, x, name)


def log(x: Any, name: str | None = None) -> Tensor:
    """The natural logarithm."""
    return _unary("Log", np.log, x, name)


def log1p(x: Any, name: str | None = None) -> Tensor:
    """The natural logarithm of ``1 + x``, exact for small ``x``."""
    return _unary("Log1p", np.log1p, x, name)


def sin(x: Any, name: str | None = None) -> Tensor:
    """The sine of an angle in radians."""
    return _unary("Sin", np.sin, x, name)


def cos(x: Any, name: str | None = None) -> Tensor:
    """The cosine of an angle in radians."""
    return _unary("Cos", np.cos, x, name)


def tan(x: Any, name: str | None = None) -> Tensor:
    """The tangent of an angle in radians."""
    return _unary("Tan", np.tan, x, name)


def asin(x: Any, name: str | None = None) -> Tensor:
    """The angle whose sine is ``x``, in radians."""
    return _unary("Asin", np.arcsin, x, name)


def acos(x: Any, name: str | None = None) -> Tensor:
    """The angle whose cosine is ``x``, in radians."""
    return _unary("Acos", np.arccos, x, name)


def atan(x: Any, name: str | None = None) -> Tensor:
    """The angle whose tangent is ``x``, in radians."""
    return _unary("Atan", np.arctan, x, name)


def sinh(x: Any, name: str | None = None) -> Tensor:
    """The hyperbolic sine."""
    return _unary("Sinh", np.sinh, x, name)


def cosh(x: Any, name: str | None = None) -> Tensor:
    """The hyperbolic cosine."""
    return _unary("Cosh", np.cosh, x, name)


def tanh(x: Any, name: str | None = None) -> Tensor:
    """The hyperbolic tangent."""
    return _unary("Tanh", np.tanh, x, name)


def sigmoid(x: Any, name: str | None = None) -> Tensor:
    """``1 / (1 + exp(-x))``."""

    def logistic(x: Any) -> Any:
        one = x.dtype.type(1)
        return np.true_divide(one, np.add(one, np.exp(np.negative(x))))

    return _unary("Sigmoid", logistic, x, name)


def relu(features: Any, name: str | None = None) -> Tensor:
    """``max(features, 0)``."""
    return _unary("Relu", lambda x: np.maximum(x, x.dtype.type(0)), features, name, REALS)


def softmax(logits: Any, axis: int = -1, name: str | None = None) -> Tensor:
    """``exp(logits)`` divided by its sum along `axis`."""

    def normalised(x: Any) -> Any:
        powers = np.exp(np.subtract(x, np.max(x, axis=axis, keepdims=True)))
        return np.true_divide(powers, np.sum(powers, axis=axis, keepdims=True))

    return _unary("Softmax", normalised, logits, name)


def floor(x: Any, name: str | None = None) -> Tensor:
    """The largest whole number not above ``x``."""
    return _unary("Floor", np.floor, x, name)


def ceil(x: Any, name: str | None = None) -> Tensor:
    """The smallest whole number not below ``x``."""
    return _unary("Ceil", np.ceil, x, name)


def round(x: Any, name: str | None = None) -> Tensor:
    """The nearest whole number; the even one of two equally near."""
    return _unary("Round", _rint, x, name, NUMBERS)


def rint(x: Any, name: str | None = None) -> Tensor:
    """The nearest whole number; the even one of two equally near."""
    return _unary("Rint", np.rint, x, name)


def _rint(x: Any) -> Any:
    return x if np.asarray(x).dtype.kind in "iu" else np.rint(x)


# Comparison and logic.


def _compare(
    op_type: str, function: Callable[..., Any], x: Any, y: Any, name: str | None
) -> Tensor:
    allowed = _COMPARABLE if op_type in ("Equal", "NotEqual") else _ORDERED
    return _binary(op_type, function, x, y, name, allowed, result=dtypes.bool)


def equal(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether ``x == y``, element by element."""
    return _compare("Equal", np.equal, x, y, name)


def not_equal(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether ``x != y``, element by element."""
    return _compare("NotEqual", np.not_equal, x, y, name)


def less(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether ``x < y``, element by element."""
    return _compare("Less", np.less, x, y, name)


def less_equal(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether ``x <= y``, element by element."""
    return _compare("LessEqual", np.less_equal, x, y, name)


def greater(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether ``x > y``, element by element."""
    return _compare("Greater", np.greater, x, y, name)


def greater_equal(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether ``x >= y``, element by element."""
    return _compare("GreaterEqual", np.greater_equal, x, y, name)


def logical_and(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether both are true, element by element."""
    return _binary("LogicalAnd", np.logical_and, _bools(x), _bools(y), name, _BOOLS)


def logical_or(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether either is true, element by element."""
    return _binary("LogicalOr", np.logical_or, _bools(x), _bools(y), name, _BOOLS)


def logical_xor(x: Any, y: Any, name: str = "LogicalXor") -> Tensor:
    """Whether just one is true, element by element."""
    return _binary("LogicalXor", np.logical_xor, _bools(x), _bools(y), name, _BOOLS)


def logical_not(x: Any, name: str | None = None) -> Tensor:
    """Whether it is false, element by element."""
    return _unary("LogicalNot", np.logical_not, _bools(x), name, _BOOLS)


def _bools(value: Any) -> Any:
    return convert_to_tensor(value, dtype=None if dtype_hint(value) else dtypes.bool)


def bitwise_and(x: Any, y: Any, name: str | None = None) -> Tensor:
    """The bits that are set in both."""
    return _binary("BitwiseAnd", np.bitwise_and, x, y, name, INTEGERS)


def bitwise_or(x: Any, y: Any, name: str | None = None) -> Tensor:
    """The bits that are set in either."""
    return _binary("BitwiseOr", np.bitwise_or, x, y, name, INTEGERS)


def bitwise_xor(x: Any, y: Any, name: str | None = None) -> Tensor:
    """The bits that are set in just one."""
    return _binary("BitwiseXor", np.bitwise_xor, x, y, name, INTEGERS)


def invert(x: Any, name: str | None = None) -> Tensor:
    """Every bit flipped."""
    return _unary("Invert", np.invert, x, name, INTEGERS)


def is_nan(x: Any, name: str | None = None) -> Tensor:
    """Whether each element is not a number."""
    return _unary("IsNan", np.isnan, x, name, result=dtypes.bool)


def is_inf(x: Any, name: str | None = None) -> Tensor:
    """Whether each element is infinite."""
    return _unary("IsInf", np.isinf, x, name, result=dtypes.bool)


def is_finite(x: Any, name: str | None = None) -> Tensor:
    """Whether each element is a number and not infinite."""
    return _unary("IsFinite", np.isfinite, x, name, result=dtypes.bool)


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


# Casts.


def cast(x: Any, dtype: Any, name: str | None = None) -> Tensor:
    """``x`` as another dtype: fractions are cut off, whole numbers wrap around.

    Raises:
        UnimplementedError: when it runs: strings are no numbers; see `string_to_number`.
    """
    wanted = dtypes.as_dtype(dtype).base_dtype
    if isinstance(x, Tensor) and x.dtype == wanted:
        return x
    with OpBuilder("Cast", name) as op:
        tensor = op.tensor(x, "x")
        if tensor.dtype == wanted:
            return tensor
        caster = _caster(tensor.dtype, wanted)
        return op.output(wanted, tensor.shape.as_tuple(), Elementwise(caster))


def _caster(source: DType, wanted: DType) -> Callable[[Any], Any]:
    to = wanted.numpy

    def convert(x: Any) -> Any:
        return x.astype(to)

    def real_part(x: Any) -> Any:
        return x.real.astype(to)

    def refuse(x: Any) -> Any:
        raise errors.UnimplementedError(
            None, None, f"Cast {source.name} to {wanted.name} is not supported"
        )

    if dtypes.string in (source, wanted):
        return refuse
    return real_part if source.is_complex and not wanted.is_complex else convert


def saturate_cast(value: Any, dtype: Any, name: str | None = None) -> Tensor:
    """``value`` as another dtype, clipped to what that can hold."""
    with scopes.name_scope(name, "saturate_cast") as scope:
        value = convert_to_tensor(value, name="value")
        wanted = dtypes.as_dtype(dtype).base_dtype
        if value.dtype.min < wanted.min:
            value = maximum(value, _inside(wanted.min, value.dtype, wanted))
        if value.dtype.max > wanted.max:
            value = minimum(value, _inside(wanted.max, value.dtype, wanted))
        return cast(value, wanted, name=scope)


def _inside(limit: Any, dtype: DType, wanted: DType) -> Tensor:
    """A limit of `wanted` as `dtype`, rounded towards zero: 2**31 - 1 is no float32."""
    rounded = dtype.numpy.type(limit)
    if (
        wanted.is_integer
        and dtype.is_floating
        and int(rounded) not in range(wanted.min, wanted.max + 1)
    ):
        rounded = np.nextafter(rounded, dtype.numpy.type(0))
    return convert_to_tensor(rounded)


def to_float(x: Any, name: str = "ToFloat") -> Tensor:
    """``x`` as float32."""
    return cast(x, dtypes.float32, name=name)


def to_double(x: Any, name: str = "ToDouble") -> Tensor:
    """``x`` as float64."""
    return cast(x, dtypes.float64, name=name)


def to_int32(x: Any, name: str = "ToInt32") -> Tensor:
    """``x`` as int32."""
    return cast(x, dtypes.int32, name=name)


def to_int64(x: Any, name: str = "ToInt64") -> Tensor:
    """``x`` as int64."""
    return cast(x, dtypes.int64, name=name)


# Sums and products of whole tensors.


def add_n(inputs: Sequence[Any] | Any, name: str | None = None) -> Tensor:
    """The sum of tensors of one dtype and one shape.

    Raises:
        ValueError: there are none, or their shapes differ.
    """
    values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if not values:
        raise ValueError(
            "inputs must be an iterable of at least one Tensor/IndexedSlices with the same dtype and shape"
        )

    def total(*values: Any) -> Any:
        result = values[0]
        for value in values[1:]:
            if np.shape(value) != np.shape(result):
                raise invalid("Inputs to operation of type AddN must have the same size and shape.")
            result = np.add(result, value)
        return result

    with OpBuilder("AddN", name) as op:
        tensors = op.alike_list(values, "inputs")
        shape: Dims = None
        for tensor in tensors:
            try:
                shape = merge(shape, tensor.shape.as_tuple())
            except ValueError as error:
                raise op.refuse(str(error)) from None
        return op.output(tensors[0].dtype, shape, Pure(total))


def accumulate_n(
    inputs: Sequence[Any], shape: Any = None, tensor_dtype: Any = None, name: str | None = None
) -> Tensor:
    """The sum of tensors of one dtype and one shape; the same as `add_n`."""
    result = add_n(inputs, name or "AccumulateNV2")
    if shape is not None:
        result.set_shape(shape)
    return result


def matmul(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """The product of two matrices, or of two stacks of matrices.

    Args:
        a: numbers, of rank 2 or more.
        b: numbers of the same dtype and rank.
        transpose_a: whether the last two dimensions of ``a`` are swapped first.
        transpose_b: the same for ``b``.
        adjoint_a: whether ``a`` is transposed and conjugated first.
        adjoint_b: the same for ``b``.
        a_is_sparse: whether many elements are zero; changes nothing here.
        b_is_sparse: the same for ``b``.
        name: name of the op.

    Raises:
        ValueError: the shapes do not fit, or both of transpose and adjoint are asked for.
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise ValueError("Only one of transpose and adjoint can be True for each of a and b.")
    flips = (transpose_a or adjoint_a, transpose_b or adjoint_b)

    def product(a: Any, b: Any) -> Any:
        one, two = np.asarray(a), np.asarray(b)
        one = one.conj() if adjoint_a else one
        two = two.conj() if adjoint_b else two
        one = np.swapaxes(one, -1, -2) if flips[0] else one
        two = np.swapaxes(two, -1, -2) if flips[1] else two
        if one.shape[-1] != two.shape[-2]:
            raise invalid(f"Matrix size-incompatible: In[0]: {_sizes(one)}, In[1]: {_sizes(two)}")
        return np.matmul(one, two)

    with OpBuilder("MatMul", name) as op:
        a, b = op.alike(NUMBERS, a=a, b=b)
        one, two = a.shape.as_tuple(), b.shape.as_tuple()
        if (one is None or len(one) > 2) and (two is None or len(two) > 2):
            op.type = "BatchMatMulV2"
        for shape in (one, two):
            if shape is not None and len(shape) < 2:
                raise op.refuse(f"Shape must be rank 2 but is rank {len(shape)}")
        return op.output(a.dtype, _product_shape(op, one, two, *flips), Pure(product))


def _sizes(matrix: NDArray[Any]) -> str:
    return "[" + ",".join(map(str, matrix.shape)) + "]"


def _product_shape(op: OpBuilder, one: Dims, two: Dims, flip_a: bool, flip_b: bool) -> Dims:
    if one is None or two is None:
        return None
    rows, inner = (one[-1], one[-2]) if flip_a else (one[-2], one[-1])
    other, columns = (two[-1], two[-2]) if flip_b else (two[-2], two[-1])
    if inner is not None and other is not None and inner != other:
        raise op.refuse(f"Dimensions must be equal, but are {inner} and {other}")
    stacks = broadcast(one[:-2], two[:-2])
    assert stacks is not None
    return (*stacks, rows, columns)


def tensordot(a: Any, b: Any, axes: Any, name: str | None = None) -> Tensor:
    """The sum of products over axes of both.

    Args:
        a: numbers.
        b: numbers of the same dtype.
        axes: how many, the last ones of ``a`` with the first ones of ``b``; or two lists of axes.
        name: name of the op.
    """
    if isinstance(axes, Tensor):
        raise TypeError("tensordot: got a Tensor for axes; expected integers")
    pairs: Any = axes if np.ndim(axes) == 0 else [np.atleast_1d(one).tolist() for one in axes]

    with OpBuilder("Tensordot", name) as op:
        a, b = op.alike(NUMBERS, a=a, b=b)
        shape: Dims = None
        one, two = a.shape.as_tuple(), b.shape.as_tuple()
        if one is not None and two is not None:
            gone = (
                (range(len(one) - int(pairs), len(one)), range(int(pairs)))
                if np.ndim(pairs) == 0
                else ([i % len(one) for i in pairs[0]], [i % len(two) for i in pairs[1]])
            )
            kept = [size for i, size in enumerate(one) if i not in gone[0]]
            shape = (*kept, *(size for i, size in enumerate(two) if i not in gone[1]))
        return op.output(a.dtype, shape, Pure(lambda a, b: np.tensordot(a, b, pairs)))
