"""Arithmetic: the table of elementwise ops, casts, and products of matrices.

Operands must have one dtype: a Python or NumPy value takes the tensor's, two tensors of different
dtypes are an error. Shapes broadcast as in NumPy. Integers wrap around; floating-point faults give
infinities and NaN without a warning.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import dtypes, scopes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.names import named
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
    shape_text,
)
from aioqueue.compat.v1.ops.sparse import SparseTensor

# What `tf` and `tf.math` share.
__all__ = ["abs", "negative", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sqrt", "square"]
__all__ += ["acos", "asin", "atan", "atan2", "cos", "cosh", "sin", "sinh", "tan", "tanh"]
__all__ += ["ceil", "exp", "expm1", "floor", "log", "log1p", "rint"]
__all__ += ["accumulate_n", "add", "add_n", "multiply", "scalar_mul", "subtract"]
__all__ += ["divide", "floordiv", "floormod", "mod", "truediv"]
__all__ += ["maximum", "minimum", "pow", "squared_difference"]
__all__ += ["equal", "greater", "greater_equal", "less", "less_equal", "not_equal"]
__all__ += ["is_finite", "is_inf", "is_nan"]
__all__ += ["logical_and", "logical_not", "logical_or", "logical_xor"]

_BOOLS = frozenset(("bool",))
_COMPARABLE = NUMBERS | {"bool", "string"}
_Function = Callable[..., Any]


class Unary(Protocol):
    def __call__(self, x: Any, name: str | None = None) -> Tensor: ...


class Binary(Protocol):
    def __call__(self, x: Any, y: Any, name: str | None = None) -> Tensor: ...


def elementwise(
    op_type: str,
    function: _Function,
    name: str | None,
    allowed: frozenset[str],
    values: dict[str, Any],
    *,
    default: str | None = None,
    dtype: DType | None = None,
    result: DType | None = None,
) -> Tensor:
    """An op of tensors of one dtype whose shapes broadcast.

    Args:
        op_type: its type, and its name if there is no other.
        function: of arrays, such as a ufunc.
        name: the caller's name for it.
        allowed: the dtypes that it takes.
        values: the operands by the names of the arguments.
        default: its name without one.
        dtype: what values that are no tensors become; the tensors' dtype if left out.
        result: the dtype that it gives, if it is another one.
    """
    with OpBuilder(op_type, name, default) as op:
        if dtype is None:
            op.alike(allowed, **values)
        else:
            for argument, value in values.items():
                op.tensor(value, argument, None if dtype_hint(value) else dtype, allowed)
        given = op.inputs[0].dtype
        # NumPy would cut a scalar string at trailing zeros.
        used = _on_objects(function) if given == dtypes.string else function
        return op.output(result or given, op.broadcast(*op.inputs), Elementwise(used))


def _on_objects(function: _Function) -> _Function:
    return lambda *values: function(*(np.asarray(value, object) for value in values))


# The table.


def _type_of(name: str) -> str:
    """The op's type: ``FloorDiv`` for ``floor_div``."""
    return "".join(part.capitalize() for part in name.split("_"))


def _one(
    name: str,
    function: _Function,
    doc: str,
    allowed: frozenset[str] = FLOATS,
    op_type: str = "",
    **options: Any,
) -> Unary:
    """A row: an op of one tensor."""
    kind = op_type or _type_of(name)

    def made(x: Any, name: str | None = None) -> Tensor:
        return elementwise(kind, function, name, allowed, {"x": x}, **options)

    return named(made, name, doc)


def _two(
    name: str,
    function: _Function,
    doc: str,
    allowed: frozenset[str] = NUMBERS,
    op_type: str = "",
    **options: Any,
) -> Binary:
    """A row: an op of two tensors."""
    kind = op_type or _type_of(name)

    def made(x: Any, y: Any, name: str | None = None) -> Tensor:
        return elementwise(kind, function, name, allowed, {"x": x, "y": y}, **options)

    return named(made, name, doc)


def _comparison(name: str, function: _Function, symbol: str) -> Binary:
    allowed = REALS if symbol[0] in "<>" else _COMPARABLE
    doc = f"Whether ``x {symbol} y``, element by element."
    return _two(name, function, doc, allowed, result=dtypes.bool)


def _question(name: str, function: _Function, what: str) -> Unary:
    return _one(name, function, f"Whether each element is {what}.", result=dtypes.bool)


def _rint(x: Any) -> Any:
    return x if np.asarray(x).dtype.kind in "iu" else np.rint(x)


def _logistic(x: Any) -> Any:
    one = x.dtype.type(1)
    return np.true_divide(one, np.add(one, np.exp(np.negative(x))))


def _dividing(function: _Function) -> _Function:
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


def _divide_unless_zero(x: Any, y: Any) -> Any:
    return np.where(y == 0, np.zeros_like(y), np.true_divide(x, y))


negative: Unary = _one("negative", np.negative, "``-x``.", NUMBERS, "Neg")
sign: Unary = _one("sign", np.sign, "-1, 0 or 1.", NUMBERS)
square: Unary = _one("square", np.square, "``x * x``.", NUMBERS)
round: Unary = _one("round", _rint, "The nearest whole number, or even one.", NUMBERS)
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
realdiv: Binary = _two(
    "realdiv", np.true_divide, "``x / y`` of floats.", FLOATS, "RealDiv", default="realdiv"
)
div_no_nan: Binary = _two(
    *("div_no_nan", _divide_unless_zero, "``x / y``, and 0 where ``y`` is 0.", FLOATS),
    default="div_no_nan",
)
floordiv: Binary = _two(
    "floordiv", _floor_divide, "``x // y``, rounded down.", REALS, "FloorDiv", default="floordiv"
)
floor_div: Binary = _two("floor_div", _floor_divide, "``x // y``, rounded down.", REALS)
mod: Binary = _two(
    "mod", _dividing(np.remainder), "``x % y``, of the sign of ``y``.", REALS, "FloorMod"
)
truncatediv: Binary = _two(
    "truncatediv", _truncate_divide, "``x / y`` rounded towards zero.", REALS, "TruncateDiv"
)
truncatemod: Binary = _two(
    "truncatemod", _dividing(np.fmod), "What `truncatediv` leaves.", REALS, "TruncateMod"
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


# Ops that are more than a row.


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


def divide(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x / y`` as in Python 3."""
    return truediv(x, y, name)


def div(x: Any, y: Any, name: str | None = None) -> Tensor:
    """``x / y`` as in Python 2: integers are divided with rounding down."""
    with scopes.name_scope(name, "div") as scope:
        x = convert_to_tensor(x, dtype=None if dtype_hint(x) else dtype_hint(y), name="x")
        y = convert_to_tensor(y, dtype=x.dtype, name="y")
        return (floordiv if x.dtype.is_integer else realdiv)(x, y, scope)


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


def clip_by_value(
    t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None
) -> Tensor:
    """``t`` with elements below the minimum, or above the maximum, set to it."""

    def clip(t: Any, low: Any, high: Any) -> Any:
        return np.maximum(np.minimum(t, high), low)

    with OpBuilder("ClipByValue", name, "clip_by_value") as op:
        t, low, high = op.alike(
            REALS, t=t, clip_value_min=clip_value_min, clip_value_max=clip_value_max
        )
        shape = op.broadcast(t, low, high)
        merge(t.shape.as_tuple(), shape)
        return op.output(t.dtype, shape, Elementwise(clip))


def relu(features: Any, name: str | None = None) -> Tensor:
    """``max(features, 0)``."""

    def cut(x: Any) -> Any:
        return np.maximum(x, x.dtype.type(0))

    return elementwise("Relu", cut, name, REALS, {"x": features})


def softmax(logits: Any, axis: int = -1, name: str | None = None) -> Tensor:
    """``exp(logits)`` divided by its sum along `axis`."""

    def normalised(x: Any) -> Any:
        powers = np.exp(np.subtract(x, np.max(x, axis=axis, keepdims=True)))
        return np.true_divide(powers, np.sum(powers, axis=axis, keepdims=True))

    return elementwise("Softmax", normalised, name, FLOATS, {"x": logits})


# Other dtypes for the same numbers.


def cast(x: Any, dtype: Any, name: str | None = None) -> Any:
    """``x`` as another dtype: fractions are cut off, whole numbers wrap around.

    A sparse tensor stays sparse. Strings are refused when it runs: see `string_to_number`.
    """
    wanted = dtypes.as_dtype(dtype).base_dtype
    if isinstance(x, Tensor) and x.dtype == wanted:
        return x
    if isinstance(x, SparseTensor):
        return SparseTensor(x.indices, cast(x.values, wanted, name), x.dense_shape)
    with OpBuilder("Cast", name) as op:
        tensor = op.tensor(x, "x")
        if tensor.dtype == wanted:
            return tensor
        caster = _caster(tensor.dtype, wanted)
        return op.output(wanted, tensor.shape.as_tuple(), Elementwise(caster))


def _caster(source: DType, wanted: DType) -> Callable[[Any], Any]:
    to = wanted.numpy

    def refuse(x: Any) -> Any:
        raise errors.UnimplementedError(
            None, None, f"Cast {source.name} to {wanted.name} is not supported"
        )

    if dtypes.string in (source, wanted):
        return refuse
    if source.is_complex and not wanted.is_complex:
        return lambda x: x.real.astype(to)
    return lambda x: x.astype(to)


def _to(name: str, dtype: DType) -> Unary:
    default = _type_of(name)

    def made(x: Any, name: str | None = default) -> Any:
        return cast(x, dtype, name)

    return named(made, name, f"``x`` as {dtype.name}.")


to_float: Unary = _to("to_float", dtypes.float32)
to_double: Unary = _to("to_double", dtypes.float64)
to_int32: Unary = _to("to_int32", dtypes.int32)
to_int64: Unary = _to("to_int64", dtypes.int64)


def saturate_cast(value: Any, dtype: Any, name: str | None = None) -> Tensor:
    """``value`` as another dtype, clipped to what that can hold."""
    wanted = dtypes.as_dtype(dtype).base_dtype
    with OpBuilder("SaturateCast", name, "saturate_cast") as op:
        tensor = op.tensor(value, "value", None, REALS)
        clipped = saturating(tensor.dtype, wanted)
        return op.output(wanted, tensor.shape.as_tuple(), Elementwise(clipped))


def saturating(dtype: DType, wanted: DType) -> Callable[[Any], Any]:
    """What makes arrays of one dtype those of another, clipped to what that can hold."""
    limits = []
    for ours, theirs, inwards in ((dtype.min, wanted.min, max), (dtype.max, wanted.max, min)):
        limit = dtype.numpy.type(inwards(ours, theirs))
        if wanted.is_integer and dtype.is_floating and not wanted.min <= int(limit) <= wanted.max:
            limit = np.nextafter(limit, dtype.numpy.type(0))  # 2**31 - 1 is no float32
        limits.append(limit)
    low, high = limits
    return lambda x: np.minimum(np.maximum(x, low), high).astype(wanted.numpy)


# Sums of tensors, and products of matrices.


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

    `a_is_sparse` and `b_is_sparse` have no effect.
    """
    for one, both in (("a", transpose_a and adjoint_a), ("b", transpose_b and adjoint_b)):
        if both:
            raise ValueError(
                f"Only one of `transpose_{one}` and `adjoint_{one}` can be True. Received"
                f" `transpose_{one}`=True, `adjoint_{one}`=True."
            )
    flips = (transpose_a or adjoint_a, transpose_b or adjoint_b)

    def product(a: Any, b: Any) -> Any:
        one, two = np.asarray(a), np.asarray(b)
        one = one.conj() if adjoint_a else one
        two = two.conj() if adjoint_b else two
        one = np.swapaxes(one, -1, -2) if flips[0] else one
        two = np.swapaxes(two, -1, -2) if flips[1] else two
        if one.shape[-1] != two.shape[-2]:
            sizes = f"In[0]: {shape_text(one.shape)}, In[1]: {shape_text(two.shape)}"
            raise invalid(f"Matrix size-incompatible: {sizes}")
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
    """The sum of products over axes of both: how many, or two lists of them, as numbers."""
    if isinstance(axes, Tensor):
        raise TypeError("tensordot: got a Tensor for axes; expected integers")
    pairs: Any = axes if np.ndim(axes) == 0 else [np.atleast_1d(one).tolist() for one in axes]

    with OpBuilder("Tensordot", name) as op:
        a, b = op.alike(NUMBERS, a=a, b=b)
        shape: Dims = None
        one, two = a.shape.as_tuple(), b.shape.as_tuple()
        if one is not None and two is not None:
            summed = (
                (range(len(one) - int(pairs), len(one)), range(int(pairs)))
                if np.ndim(pairs) == 0
                else ([i % len(one) for i in pairs[0]], [i % len(two) for i in pairs[1]])
            )
            kept = [size for i, size in enumerate(one) if i not in summed[0]]
            shape = (*kept, *(size for i, size in enumerate(two) if i not in summed[1]))
        return op.output(a.dtype, shape, Pure(lambda a, b: np.tensordot(a, b, pairs)))
