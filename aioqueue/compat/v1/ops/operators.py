"""Python's operators on tensors: `Operators`, which tensors and variables inherit.

Each makes an op. ``==`` and ``!=`` do not: tensors are compared as objects, so that they can be
keys of a ``feed_dict``; `equal` and `not_equal` compare their values.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from aioqueue.compat.v1.core.graph import Tensor

__all__ = ("Operators",)


class Operators:
    """Arithmetic, comparison, logic and indexing, each of which makes an op.

    NumPy's functions make one as well, by way of ``__array_ufunc__`` and ``__array_function__``.
    """

    __slots__ = ()

    __array_priority__ = 100

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        name = getattr(self, "name", "")
        raise NotImplementedError(
            f"Cannot convert a symbolic tf.Tensor ({name}) to a numpy array: it has no value until"
            " a session runs it. NumPy's functions take tensors, and make ops."
        )

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from aioqueue.compat.v1.ops import numpy_protocol

        return numpy_protocol.apply_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from aioqueue.compat.v1.ops import numpy_protocol

        return numpy_protocol.apply_function(function, args, kwargs)

    def __getitem__(self, key: Any) -> Tensor:
        from aioqueue.compat.v1.ops import indexing

        return indexing.item(self, key)

    def __add__(self, other: Any) -> Tensor:
        return _binary("math", "add", "add", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return _binary("math", "add", "add", other, self)

    def __sub__(self, other: Any) -> Tensor:
        return _binary("math", "subtract", "sub", self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return _binary("math", "subtract", "sub", other, self)

    def __mul__(self, other: Any) -> Tensor:
        return _binary("math", "multiply", "mul", self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return _binary("math", "multiply", "mul", other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return _binary("math", "truediv", "truediv", self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return _binary("math", "truediv", "truediv", other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return _binary("math", "floordiv", "floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return _binary("math", "floordiv", "floordiv", other, self)

    def __mod__(self, other: Any) -> Tensor:
        return _binary("math", "mod", "mod", self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return _binary("math", "mod", "mod", other, self)

    def __pow__(self, other: Any) -> Tensor:
        return _binary("math", "pow", "pow", self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return _binary("math", "pow", "pow", other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return _binary("products", "matmul", "matmul", self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return _binary("products", "matmul", "matmul", other, self)

    def __lt__(self, other: Any) -> Tensor:
        return _binary("comparison", "less", None, self, other)

    def __le__(self, other: Any) -> Tensor:
        return _binary("comparison", "less_equal", None, self, other)

    def __gt__(self, other: Any) -> Tensor:
        return _binary("comparison", "greater", None, self, other)

    def __ge__(self, other: Any) -> Tensor:
        return _binary("comparison", "greater_equal", None, self, other)

    def __and__(self, other: Any) -> Tensor:
        return _logical("and", self, other)

    def __rand__(self, other: Any) -> Tensor:
        return _logical("and", other, self)

    def __or__(self, other: Any) -> Tensor:
        return _logical("or", self, other)

    def __ror__(self, other: Any) -> Tensor:
        return _logical("or", other, self)

    def __xor__(self, other: Any) -> Tensor:
        return _logical("xor", self, other)

    def __rxor__(self, other: Any) -> Tensor:
        return _logical("xor", other, self)

    def __invert__(self) -> Tensor:
        from aioqueue.compat.v1.ops import bits, comparison

        tensor: Any = self
        if tensor.dtype.is_bool:
            return comparison.logical_not(tensor)
        return bits.invert(tensor)

    def __neg__(self) -> Tensor:
        from aioqueue.compat.v1.ops import math

        return math.negative(self)

    def __pos__(self) -> Operators:
        return self

    def __abs__(self) -> Tensor:
        from aioqueue.compat.v1.ops import math

        return math.abs(self)


def _binary(module: str, function: str, name: str | None, x: Any, y: Any) -> Tensor:
    """The op of a binary operator; sparse tensors and the like get their turn.

    Args:
        module: where in the op library its function is.
        function: the function's name.
        name: what the op is called; the function's default if None.
        x: the left operand.
        y: the right operand.
    """
    from aioqueue.compat.v1.core.scopes import name_scope

    if _knows_better(x, y):
        return NotImplemented  # type: ignore[no-any-return]
    library = importlib.import_module(f"aioqueue.compat.v1.ops.{module}")
    make: Callable[..., Tensor] = getattr(library, function)
    if name is None:
        return make(x, y)
    with name_scope(None, name) as scope:
        return make(x, y, name=scope)


def _logical(name: str, x: Any, y: Any) -> Tensor:
    """``&``, ``|`` and ``^``: of booleans, or of the bits of integers."""
    tensor: Any = x if isinstance(x, Operators) else y
    if tensor.dtype.is_bool:
        return _binary("comparison", f"logical_{name}", name, x, y)
    return _binary("bits", f"bitwise_{name}", name, x, y)


def _knows_better(x: Any, y: Any) -> bool:
    """Whether one operand is a type of its own that handles tensors itself."""
    mine = Operators.__array_priority__
    return any(
        not isinstance(one, Operators) and getattr(one, "__array_priority__", 0) > mine
        for one in (x, y)
    )
