"""Assertions: ``tf.assert_equal`` and its like, at run time or already when the graph is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.names import named
from aioqueue.compat.v1.core.scopes import control_dependencies, name_scope
from aioqueue.compat.v1.errors import InvalidArgumentError
from aioqueue.compat.v1.ops import comparison, math
from aioqueue.compat.v1.ops.arrays import rank as rank_of
from aioqueue.compat.v1.ops.arrays import shape as shape_of
from aioqueue.compat.v1.ops.building import FLOATS, OpBuilder, Pure, invalid
from aioqueue.compat.v1.ops.control import identity, no_op, with_dependencies
from aioqueue.compat.v1.ops.effects import Assert
from aioqueue.compat.v1.ops.reductions import reduce_all, reduce_any
from aioqueue.compat.v1.ops.sparse import SparseTensor
from aioqueue.compat.v1.ops.static import constant_value

__all__ = (
    "assert_equal",
    "assert_greater",
    "assert_greater_equal",
    "assert_integer",
    "assert_less",
    "assert_less_equal",
    "assert_near",
    "assert_negative",
    "assert_non_negative",
    "assert_non_positive",
    "assert_none_equal",
    "assert_positive",
    "assert_proper_iterable",
    "assert_rank",
    "assert_rank_at_least",
    "assert_rank_in",
    "assert_same_float_dtype",
    "assert_scalar",
    "assert_type",
    "check_numerics",
    "is_non_decreasing",
    "is_numeric_tensor",
    "is_strictly_increasing",
    "verify_tensor_all_finite",
)

Data = Iterable[Any] | None


def _elementwise(
    symbol: str,
    name: str,
    compare: Callable[..., Tensor],
    x: Any,
    y: Any,
    data: Data,
    summarize: int | None,
    message: str | None,
    scope: str | None,
) -> Operation:
    """An assertion that a comparison holds for all elements."""
    with name_scope(scope, name, [x, y, data]):
        x, y = convert_to_tensor(x, name="x"), convert_to_tensor(y, name="y")
        if data is None:
            what = f"Condition x {symbol} y did not hold element-wise:"
            data = [what, f"x ({x.name}) = ", x, f"y ({y.name}) = ", y]
        at_once = x.op.type in _KNOWN and y.op.type in _KNOWN
        return _asserted(reduce_all(compare(x, y)), data, summarize, message, at_once)


_KNOWN = ("Const", "Shape", "Size", "Rank", "Range", "Cast", "Pack", "ConcatV2", "Fill")
"""Ops whose values TensorFlow looks at while it builds a graph; those of arithmetic it does not."""


def _asserted(
    condition: Tensor,
    data: Iterable[Any],
    summarize: int | None,
    message: str | None,
    at_once: bool,
) -> Operation:
    """An assertion; one that is known to fail does so at once, if it is to."""
    shown = [*([] if message is None else [message]), *data]
    known = constant_value(condition) if at_once else None
    if known is not None and not known.all():
        raise InvalidArgumentError(None, None, "\n".join(str(_known(one)) for one in shown))
    return Assert(condition, shown, summarize=summarize)


def _known(value: Any) -> Any:
    found = constant_value(value) if isinstance(value, Tensor) else None
    return value if found is None else found


class _Comparing(Protocol):
    """What makes an assertion about two tensors."""

    def __call__(
        self,
        x: Any,
        y: Any,
        data: Data = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Operation:
        """The op, which fails if it does not hold."""


class _Signed(Protocol):
    """What makes an assertion about the signs of a tensor's elements."""

    def __call__(
        self,
        x: Any,
        data: Data = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Operation:
        """The op, which fails if it does not hold."""


def assert_equal(
    x: Any,
    y: Any,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """An op that fails unless ``x == y`` for all elements.

    Args:
        x: a tensor.
        y: one of the same dtype, whose shape fits.
        data: what to show if it fails; None for both.
        summarize: how many elements of each are shown; None for 3.
        message: what the error begins with.
        name: of the scope.

    Raises:
        InvalidArgumentError: both are known already, and it does not hold.
    """
    # TensorFlow opens its scope twice, and names what is within by the second.
    with name_scope(name, "assert_equal", [x, y, data]):
        if x is y:
            return no_op()
    compare = comparison.equal
    return _elementwise("==", "assert_equal", compare, x, y, data, summarize, message, name)


def _comparing(called: str, symbol: str, compare: Callable[..., Tensor]) -> _Comparing:
    def check(
        x: Any,
        y: Any,
        data: Data = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Operation:
        return _elementwise(symbol, called, compare, x, y, data, summarize, message, name)

    doc = f"An op that fails unless ``x {symbol} y`` for all elements; see `assert_equal`."
    return named(check, called, doc)


assert_none_equal: _Comparing = _comparing("assert_none_equal", "!=", comparison.not_equal)
assert_less: _Comparing = _comparing("assert_less", "<", comparison.less)
assert_less_equal: _Comparing = _comparing("assert_less_equal", "<=", comparison.less_equal)
assert_greater: _Comparing = _comparing("assert_greater", ">", comparison.greater)
assert_greater_equal: _Comparing = _comparing(
    "assert_greater_equal", ">=", comparison.greater_equal
)


def _against_zero(
    symbol: str,
    name: str,
    holds: Callable[..., Operation],
    x: Any,
    data: Data,
    summarize: int | None,
    message: str | None,
    scope: str | None,
) -> Operation:
    with name_scope(scope, name, [x, data]):
        x = convert_to_tensor(x, name="x")
        if data is None:
            what, which = f"Condition x {symbol} did not hold element-wise:", f"x ({x.name}) = "
            # TensorFlow has forgotten a comma between them in one case.
            said = [what + which] if symbol == "<= 0" else [what, which]
            data = [_prefix(message), *said, x]
        zero = convert_to_tensor(0, x.dtype)
        pair = (zero, x) if symbol.startswith(">") else (x, zero)
        return holds(*pair, data, summarize)


def _signed(called: str, symbol: str, holds: _Comparing) -> _Signed:
    def check(
        x: Any,
        data: Data = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Operation:
        return _against_zero(symbol, called, holds, x, data, summarize, message, name)

    doc = f"An op that fails unless ``x {symbol}`` for all elements; see `assert_equal`."
    return named(check, called, doc)


assert_negative: _Signed = _signed("assert_negative", "< 0", assert_less)
assert_positive: _Signed = _signed("assert_positive", "> 0", assert_less)
assert_non_negative: _Signed = _signed("assert_non_negative", ">= 0", assert_less_equal)
assert_non_positive: _Signed = _signed("assert_non_positive", "<= 0", assert_less_equal)


def assert_near(
    x: Any,
    y: Any,
    rtol: Any = None,
    atol: Any = None,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """An op that fails unless ``|x - y| < atol + rtol * |y|`` for all elements; see `assert_equal`.

    Args:
        rtol: ten times the precision of the dtype if None.
        atol: the same.
    """
    with name_scope(name, "assert_near", [x, y, rtol, atol, data]):
        x = convert_to_tensor(x, name="x")
        y = convert_to_tensor(y, x.dtype, name="y")
        precision = 10 * float(np.finfo(x.dtype.numpy).eps)
        relative, absolute = (
            convert_to_tensor(precision if one is None else one, x.dtype, name=called)
            for one, called in ((rtol, "rtol"), (atol, "atol"))
        )
        if data is None:
            what = f"x and y not equal to tolerance rtol = {relative}, atol = {absolute}"
            data = [_prefix(message), what, f"x ({x.name}) = ", x, f"y ({y.name}) = ", y]
        limit = math.add(absolute, math.multiply(relative, math.abs(y)))
        holds = comparison.less(math.abs(math.subtract(x, y)), limit)
        return Assert(reduce_all(holds), data, summarize=summarize)


def _prefix(message: str | None) -> str:
    return "" if message is None else f"{message}.  "


# Ranks.


def _rank_checked(
    x: Any,
    ranks: Sequence[Any],
    how: str,
    holds: Callable[[int, list[int]], bool],
    compare: Callable[[Tensor, Tensor], Tensor],
    data: Data,
    summarize: int | None,
    message: str | None,
) -> Operation:
    x = x if isinstance(x, SparseTensor) else convert_to_tensor(x, name="x")
    wanted = [convert_to_tensor(one, dtypes.int32, name="rank") for one in ranks]
    prefix, name = _prefix(message), getattr(x, "name", "")
    known = [constant_value(one) for one in wanted]
    if all(one is not None for one in known):
        if any(one.ndim for one in known):
            raise ValueError("Rank must be a scalar.")
        numbers = [int(one) for one in known]
        if x.shape.ndims is not None:
            if not holds(x.shape.ndims, numbers):
                shown = numbers[0] if len(numbers) == 1 and how != "in" else tuple(numbers)
                raise ValueError(
                    f"{prefix}Tensor {name} must have rank{' ' if how else ''}{how} {shown}."
                    f"  Received rank {x.shape.ndims}, shape {x.shape}"
                )
            return no_op("static_checks_determined_all_ok")
    if data is None:
        what = f"Tensor {name} must have rank{' ' if how else ''}{how}"
        data = [prefix, what, *wanted, "Received shape: ", shape_of(x)]
    actual = rank_of(x)
    met = [compare(actual, one) for one in wanted]
    return Assert(reduce_any(convert_to_tensor(met)), data, summarize=summarize)


def assert_rank(
    x: Any,
    rank: Any,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """An op that fails unless a tensor has a rank; the rest is as for `assert_equal`.

    Raises:
        ValueError: it is known already that it has another one.
    """
    with name_scope(name, "assert_rank", [x, rank, *(data or ())]):

        def holds(actual: int, ranks: list[int]) -> bool:
            return actual == ranks[0]

        equal = comparison.equal
        return _rank_checked(x, [rank], "", holds, equal, data, summarize, message)


def assert_rank_at_least(
    x: Any,
    rank: Any,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """An op that fails unless a tensor has a rank, or a larger one; see `assert_rank`."""
    with name_scope(name, "assert_rank_at_least", [x, rank, *(data or ())]):

        def holds(actual: int, ranks: list[int]) -> bool:
            return actual >= ranks[0]

        at_least = comparison.greater_equal
        return _rank_checked(x, [rank], "at least", holds, at_least, data, summarize, message)


def assert_rank_in(
    x: Any,
    ranks: Sequence[Any],
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """An op that fails unless a tensor has one of some ranks; see `assert_rank`."""
    with name_scope(name, "assert_rank_in", [x, *ranks, *(data or ())]):

        def holds(actual: int, ranks: list[int]) -> bool:
            return actual in ranks

        equal = comparison.equal
        return _rank_checked(x, ranks, "in", holds, equal, data, summarize, message)


# Types.


def assert_integer(x: Any, message: str | None = None, name: str | None = None) -> Operation:
    """An op that does nothing, if a tensor's dtype is one of integers.

    Raises:
        TypeError: it is another one.
    """
    with name_scope(name, "assert_integer", [x]):
        tensor = convert_to_tensor(x, name="x")
        if not tensor.dtype.is_integer:
            raise TypeError(
                f'{_prefix(message)}Expected "x" to be integer type.  Found: {tensor.name} of dtype'
                f" {tensor.dtype!s}"
            )
        return no_op("statically_determined_was_integer")


def assert_type(
    tensor: Any, tf_type: Any, message: str | None = None, name: str | None = None
) -> Operation:
    """An op that does nothing, if a tensor has a dtype.

    Raises:
        TypeError: it has another one.
    """
    wanted = dtypes.as_dtype(tf_type)
    with name_scope(name, "assert_type", [tensor]):
        found = tensor if isinstance(tensor, SparseTensor) else convert_to_tensor(tensor)
        if found.dtype != wanted:
            raise TypeError(
                f"{_prefix(message)}{found.name} must be of type {wanted!r}; got {found.dtype!r}"
            )
        return no_op("statically_determined_correct_type")


def assert_scalar(tensor: Any, name: str | None = None, message: str | None = None) -> Tensor:
    """The tensor, if it is a scalar.

    Raises:
        ValueError: it is not a scalar, or its rank is unknown.
    """
    with name_scope(name, "assert_scalar", [tensor]):
        found = convert_to_tensor(tensor)
        if found.shape.ndims != 0:
            raise ValueError(
                f"{_prefix(message)}Expected scalar shape for {found.name}, saw shape:"
                f" {found.shape}."
            )
        return found


def assert_same_float_dtype(tensors: Sequence[Any] | None = None, dtype: Any = None) -> Any:
    """The dtype of floats that all tensors have; float32 if there are none.

    Args:
        tensors: tensors or values; None among them is ignored.
        dtype: what it must be, if given.

    Raises:
        ValueError: the dtypes differ, or are not of floats.
    """
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    first = ""
    for one in tensors or ():
        if one is not None:
            found = convert_to_tensor(one)
            if wanted is None:
                wanted, first = found.dtype, f" as {found.name}"
            if found.dtype != wanted:
                raise ValueError(
                    f"{found.name}, type={found.dtype!s}, must be of the same type"
                    f" ({wanted!s}){first}."
                )
    wanted = wanted or dtypes.float32
    if not wanted.is_floating:
        raise ValueError(f"Expected floating point type, got {wanted.name}.")
    return wanted


def assert_proper_iterable(values: Any) -> None:
    """Raise TypeError unless a value is iterable, and not a tensor, an array or a string."""
    improper = (Tensor, SparseTensor, np.ndarray, bytes, str)
    if isinstance(values, improper):
        wanted = 'a "proper" iterable'
    elif not hasattr(values, "__iter__"):
        wanted = "iterable"
    else:
        return
    raise TypeError(f'Expected argument "values" to be {wanted}.  Found: {type(values)}')


def is_numeric_tensor(tensor: Any) -> bool:
    """Whether something is a tensor of numbers."""
    return isinstance(tensor, Tensor) and (
        tensor.dtype.is_integer or tensor.dtype.is_floating or tensor.dtype.is_complex
    )


# Values.


def is_strictly_increasing(x: Any, name: str | None = None) -> Tensor:
    """Whether each element is larger than the one before it, in row-major order."""
    return _increasing("is_strictly_increasing", np.greater, x, name)


def is_non_decreasing(x: Any, name: str | None = None) -> Tensor:
    """Whether no element is smaller than the one before it, in row-major order."""
    return _increasing("is_non_decreasing", np.greater_equal, x, name)


def _increasing(op_type: str, compare: np.ufunc, x: Any, name: str | None) -> Tensor:
    def holds(x: Any) -> Any:
        flat = np.ravel(x)
        return np.bool_(compare(flat[1:], flat[:-1]).all())

    with OpBuilder(op_type, name) as op:
        op.tensor(x, "x")
        return op.output(dtypes.bool, (), Pure(holds))


def check_numerics(tensor: Any, message: str, name: str | None = None) -> Tensor:
    """The tensor; running it fails if an element is infinite or no number.

    Args:
        tensor: floats.
        message: what the error begins with.
        name: name of the op.
    """

    def checked(value: Any) -> Any:
        kinds = [
            *(["Inf"] if np.isposinf(value).any() or np.isneginf(value).any() else []),
            *(["NaN"] if np.isnan(value).any() else []),
        ]
        if kinds:
            raise invalid(f"{message} : Tensor had {' and '.join(kinds)} values")
        return value

    with OpBuilder("CheckNumerics", name) as op:
        found = op.tensor(tensor, "tensor", None, FLOATS)
        return op.output(found.dtype, found.shape.as_tuple(), Pure(checked))


def verify_tensor_all_finite(
    t: Any = None, msg: str = "", name: str | None = None, x: Any = None, message: str = ""
) -> Tensor:
    """The tensor; running it fails if an element is infinite or no number.

    Args:
        t: floats.
        msg: what the error begins with.
        name: name of the op.
        x: another name of `t`.
        message: another name of `msg`.
    """
    with name_scope(name, "VerifyFinite", [t, x]):
        tensor = convert_to_tensor(x if t is None else t, name="t")
        check = check_numerics(tensor, msg or message)
        with control_dependencies([check]):
            return identity(with_dependencies([check], tensor))
