"""Python's operators on tensors and variables: declared here, given to them from outside.

What an operator does is an op, and ops are made of tensors. So the class of tensors defines no
operators: the op library, which is built upon it, registers a function for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

__all__ = ("Operators",)

T_co = TypeVar("T_co", covariant=True)


class _Unary(Protocol[T_co]):
    def __call__(self) -> T_co: ...


class _Binary(Protocol[T_co]):
    def __call__(self, other: Any, /) -> T_co: ...


class Operators(Generic[T_co]):
    """Arithmetic, comparison, logic, indexing and NumPy's functions: each makes an op.

    ``==`` and ``!=`` make none. They compare tensors as objects, so that tensors can be keys of a
    ``feed_dict``. `equal` and `not_equal` compare their values.
    """

    __slots__ = ()

    __array_priority__ = 100

    __add__: _Binary[T_co]
    __radd__: _Binary[T_co]
    __sub__: _Binary[T_co]
    __rsub__: _Binary[T_co]
    __mul__: _Binary[T_co]
    __rmul__: _Binary[T_co]
    __truediv__: _Binary[T_co]
    __rtruediv__: _Binary[T_co]
    __floordiv__: _Binary[T_co]
    __rfloordiv__: _Binary[T_co]
    __mod__: _Binary[T_co]
    __rmod__: _Binary[T_co]
    __pow__: _Binary[T_co]
    __rpow__: _Binary[T_co]
    __matmul__: _Binary[T_co]
    __rmatmul__: _Binary[T_co]
    __and__: _Binary[T_co]
    __rand__: _Binary[T_co]
    __or__: _Binary[T_co]
    __ror__: _Binary[T_co]
    __xor__: _Binary[T_co]
    __rxor__: _Binary[T_co]
    __lt__: _Binary[T_co]
    __le__: _Binary[T_co]
    __gt__: _Binary[T_co]
    __ge__: _Binary[T_co]
    __getitem__: _Binary[T_co]
    __neg__: _Unary[T_co]
    __abs__: _Unary[T_co]
    __invert__: _Unary[T_co]
    __array_ufunc__: Callable[..., Any]
    __array_function__: Callable[..., Any]

    OVERLOADABLE_OPERATORS: ClassVar[frozenset[str]]
    """Those declared above, and no others, can be given a function."""

    @classmethod
    def _override_operator(cls, operator: str, function: Callable[..., Any]) -> None:
        """Define what an operator does with tensors. You can define each operator once."""
        if operator not in cls.OVERLOADABLE_OPERATORS:
            raise ValueError(f"Overriding {operator} is disallowed")
        # Not `getattr`: it finds what every object has, such as `object.__lt__`, and what every
        # class has, such as `type.__or__`.
        if any(operator in vars(one) for one in cls.__mro__ if one is not object):
            raise ValueError(f"operator {operator} cannot be overwritten again on class {cls}.")
        setattr(cls, operator, function)

    def __pos__(self) -> Operators[T_co]:
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        name = getattr(self, "name", "")
        raise NotImplementedError(
            f"Cannot convert a symbolic tf.Tensor ({name}) to a numpy array: it has no value until"
            " a session runs it. NumPy's functions take tensors, and make ops."
        )


Operators.OVERLOADABLE_OPERATORS = frozenset(
    name for name in Operators.__annotations__ if name.startswith("__")
)
