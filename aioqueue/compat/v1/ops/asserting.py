"""Assertions: ``tf.assert_equal`` and its like, at run time or already when the graph is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Operation, Tensor, named
from aioqueue.compat.v1.core.scopes import control_dependencies, name_scope
from aioqueue.compat.v1.errors import InvalidArgumentError
from aioqueue.compat.v1.ops import arrays, math
from aioqueue.compat.v1.ops.building import FLOATS, OpBuilder, Pure, invalid
from aioqueue.compat.v1.ops.control import identity, no_op, with_dependencies
from aioqueue.compat.v1.ops.effects import Assert
from aioqueue.compat.v1.ops.reductions import reduce_all
from aioqueue.compat.v1.ops.sparse import SparseTensor
from aioqueue.compat.v1.ops.static import constant_value

__all__ = (
    "assert_equal", "assert_greater", "assert_greater_equal", "assert_less",
    "assert_less_equal", "assert_negative", "assert_non_negative", "assert_non_positive",
    "assert_none_equal", "assert_positive", "assert_rank", "assert_rank_at_least",
    "check_numerics",
)  # fmt: skip

_Data = Iterable[Any] | None
_KNOWN = ("Const", "Shape", "Size", "Rank", "Range", "Cast", "Pack", "ConcatV2", "Fill")
"""Ops whose values TensorFlow looks at while it builds a graph; those of arithmetic it does not."""


_Check = Callable[..., Operation]


def _comparing(called: str, symbol: str, compare: Callable[..., Tensor]) -> _Check:
    def check(
        x: Any,
        y: Any,
        data: _Data = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Operation:
        if symbol == "==":
            # TensorFlow opens the scope of this one twice, and names what is within by the second.
            with name_scope(name, called, [x, y, data]):
                if x is y:
                    return no_op()
        with name_scope(name, called, [x, y, data]):
            x, y = convert_to_tensor(x, name="x"), convert_to_tensor(y, name="y")
            if data is None:
                what = f"Condition x {symbol} y did not hold element-wise:"
                data = [what, f"x ({x.name}) = ", x, f"y ({y.name}) = ", y]
            shown = [*([] if message is None else [message]), *data]
            condition = reduce_all(compare(x, y))
            if x.op.type in _KNOWN and y.op.type in _KNOWN:
                known = constant_value(condition)
                if known is not None and not known.all():
                    text = "\n".join(str(_known(one)) for one in shown)
                    raise InvalidArgumentError(None, None, text)
            return Assert(condition, shown, summarize=summarize)

    doc = (
        f"An op that fails unless ``x {symbol} y`` for all elements. Known failures raise at once."
    )
    return named(check, called, doc)


def _known(value: Any) -> Any:
    found = constant_value(value) if isinstance(value, Tensor) else None
    return value if found is None else found


def _signed(called: str, symbol: str, holds: _Check) -> _Check:
    def check(
        x: Any,
        data: _Data = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Operation:
        with name_scope(name, called, [x, data]):
            x = convert_to_tensor(x, name="x")
            if data is None:
                what, which = f"Condition x {symbol} did not hold element-wise:", f"x ({x.name}) = "
                # TensorFlow has forgotten a comma between them in one case.
                texts = [what + which] if symbol == "<= 0" else [what, which]
                data = [_prefix(message), *texts, x]
            zero = convert_to_tensor(0, x.dtype)
            x, y = (zero, x) if symbol.startswith(">") else (x, zero)
            return holds(x, y, data, summarize)

    return named(check, called, f"An op that fails unless ``x {symbol}`` for all elements.")


def _prefix(message: str | None) -> str:
    return "" if message is None else f"{message}.  "


assert_equal: _Check = _comparing("assert_equal", "==", math.equal)
assert_none_equal: _Check = _comparing("assert_none_equal", "!=", math.not_equal)
assert_less: _Check = _comparing("assert_less", "<", math.less)
assert_less_equal: _Check = _comparing("assert_less_equal", "<=", math.less_equal)
assert_greater: _Check = _comparing("assert_greater", ">", math.greater)
assert_greater_equal: _Check = _comparing("assert_greater_equal", ">=", math.greater_equal)
assert_negative: _Check = _signed("assert_negative", "< 0", assert_less)
assert_positive: _Check = _signed("assert_positive", "> 0", assert_less)
assert_non_negative: _Check = _signed("assert_non_negative", ">= 0", assert_less_equal)
assert_non_positive: _Check = _signed("assert_non_positive", "<= 0", assert_less_equal)


def _ranked(called: str, how: str, compare: Callable[..., Tensor]) -> _Check:

    def check(
        x: Any,
        rank: Any,
        data: _Data = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Operation:
        with name_scope(name, called, [x, rank, *(data or ())]):
            x = x if isinstance(x, SparseTensor) else convert_to_tensor(x, name="x")
            wanted = convert_to_tensor(rank, dtypes.int32, name="rank")
            must = f"Tensor {getattr(x, 'name', '')} must have rank{how}"
            known, actual = constant_value(wanted), x.shape.ndims
            if known is not None and known.ndim:
                raise ValueError("Rank must be a scalar.")
            if known is not None and actual is not None:
                if actual < known or (actual > known and not how):
                    raise ValueError(
                        f"{_prefix(message)}{must} {known}.  Received rank {actual}, shape"
                        f" {x.shape}"
                    )
                return no_op("static_checks_determined_all_ok")
            if data is None:
                data = [_prefix(message), must, wanted, "Received shape: ", arrays.shape(x)]
            return Assert(compare(arrays.rank(x), wanted), data, summarize=summarize)

    return named(check, called, "An op that fails unless a tensor has a rank; ValueError if known.")


assert_rank: _Check = _ranked("assert_rank", "", math.equal)
assert_rank_at_least: _Check = _ranked("assert_rank_at_least", " at least", math.greater_equal)


def check_numerics(tensor: Any, message: str, name: str | None = None) -> Tensor:
    """The tensor; running it fails, with `message`, if an element is infinite or no number."""

    def checked(value: Any) -> Any:
        kinds = ["Inf"] if np.isinf(value).any() else []
        kinds += ["NaN"] if np.isnan(value).any() else []
        if kinds:
            raise invalid(f"{message} : Tensor had {' and '.join(kinds)} values")
        return value

    with OpBuilder("CheckNumerics", name) as op:
        found = op.tensor(tensor, "tensor", None, FLOATS)
        return op.output(found.dtype, found.shape.as_tuple(), Pure(checked))


def _verify_tensor_all_finite(
    t: Any = None, msg: str = "", name: str | None = None, x: Any = None, message: str = ""
) -> Tensor:
    with name_scope(name, "VerifyFinite", [t, x]):
        tensor = convert_to_tensor(x if t is None else t, name="t")
        check = check_numerics(tensor, msg or message)
        with control_dependencies([check]):
            return identity(with_dependencies([check], tensor))


_DOC = "The tensor; as `check_numerics`, by old names of the arguments or new ones."
verify_tensor_all_finite = named(_verify_tensor_all_finite, "verify_tensor_all_finite", _DOC)
