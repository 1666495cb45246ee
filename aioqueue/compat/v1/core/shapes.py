"""Static shapes, of dimensions whose ``.value`` is an ``int``, or ``None`` if unknown."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, SupportsIndex, overload

__all__ = ("Dimension", "TensorShape", "dimension_at_index", "dimension_value")


class _Arithmetic(Protocol):
    def __call__(self, other: Any, /) -> Dimension: ...


def _arithmetic(function: Callable[[int, int], int]) -> Any:
    def calculate(self: Dimension, other: Any) -> Dimension:
        try:
            value = as_dimension(other).value
        except (TypeError, ValueError):
            return NotImplemented  # type: ignore[no-any-return]
        if self.value is None or value is None:
            return Dimension(None)
        return Dimension(function(self.value, value))

    return calculate


class Dimension:
    """A size, or unknown: then sums are unknown too, and comparisons are ``None``."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value: int | None
        if value is None:
            self._value = None
        elif isinstance(value, Dimension):
            self._value = value.value
        else:
            try:
                self._value = operator.index(value)
            except TypeError:
                raise TypeError(
                    "Dimension value must be integer or None or have an __index__ method, got "
                    f"value '{value!r}' with type '{type(value)!r}'"
                ) from None
            if self._value < 0:
                raise ValueError(f"Dimension {self._value} must be >= 0")

    @property
    def value(self) -> int | None:
        """The number of elements; None if it is not known."""
        return self._value

    def is_compatible_with(self, other: Any) -> bool:
        """Whether both could be the same number: equal, or one unknown."""
        other = as_dimension(other)
        return self._value is None or other.value is None or self._value == other.value

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raise ValueError unless `other` could be the same number."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Dimensions {self} and {as_dimension(other)} are not compatible")

    def merge_with(self, other: Any) -> Dimension:
        """What is known from both."""
        known = as_dimension(other)
        self.assert_is_compatible_with(known)
        return known if self._value is None else self

    __add__: _Arithmetic = _arithmetic(operator.add)
    __radd__: _Arithmetic = _arithmetic(operator.add)
    __mul__: _Arithmetic = _arithmetic(operator.mul)
    __rmul__: _Arithmetic = _arithmetic(operator.mul)
    __sub__: _Arithmetic = _arithmetic(operator.sub)
    __rsub__: _Arithmetic = _arithmetic(lambda mine, theirs: theirs - mine)
    __floordiv__: _Arithmetic = _arithmetic(operator.floordiv)
    __rfloordiv__: _Arithmetic = _arithmetic(lambda mine, theirs: theirs // mine)
    __mod__: _Arithmetic = _arithmetic(operator.mod)
    __rmod__: _Arithmetic = _arithmetic(lambda mine, theirs: theirs % mine)

    def _compare(self, other: Any, function: Callable[[int, int], bool]) -> Any:
        try:
            other = as_dimension(other)
        except (TypeError, ValueError):
            return NotImplemented
        if self._value is None or other.value is None:
            return None
        return function(self._value, other.value)

    def __eq__(self, other: object) -> Any:
        return self._compare(other, operator.eq)

    def __ne__(self, other: object) -> Any:
        return self._compare(other, operator.ne)

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._compare(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, operator.ge)

    def __hash__(self) -> int:
        return hash(self._value)

    def __index__(self) -> int:
        if self._value is None:
            raise TypeError("an unknown dimension is no integer")
        return self._value

    def __int__(self) -> int:
        return self.__index__()

    def __bool__(self) -> bool:
        return bool(self._value)

    def __str__(self) -> str:
        return "?" if self._value is None else str(self._value)

    def __repr__(self) -> str:
        return f"Dimension({self._value})"


def as_dimension(value: Any) -> Dimension:
    """`value` as a `Dimension`: itself, an integer >= 0, or None for unknown."""
    return value if isinstance(value, Dimension) else Dimension(value)


class TensorShape:
    """The static shape of a tensor: dimensions, some of them unknown, or nothing known at all."""

    __slots__ = ("_dims",)

    def __init__(self, dims: Any) -> None:
        self._dims: tuple[int | None, ...] | None
        if dims is None:
            self._dims = None
        elif isinstance(dims, TensorShape):
            self._dims = dims._dims
        elif isinstance(dims, Iterable):
            self._dims = tuple(
                # By far the most frequent, with every array that is fed: a dimension of an array.
                one if type(one) is int and one >= 0 else as_dimension(one).value
                for one in dims
            )
        else:
            self._dims = (as_dimension(dims).value,)

    @property
    def dims(self) -> list[Dimension] | None:
        """The dimensions; None if their number is unknown."""
        return None if self._dims is None else [Dimension(one) for one in self._dims]

    @property
    def ndims(self) -> int | None:
        """The number of dimensions; None if unknown."""
        return None if self._dims is None else len(self._dims)

    rank = ndims

    def as_list(self) -> list[int | None]:
        """The dimensions as integers or None."""
        if self._dims is None:
            raise ValueError("as_list() is not defined on an unknown TensorShape.")
        return list(self._dims)

    def as_tuple(self) -> tuple[int | None, ...] | None:
        """The dimensions as integers or None, or None if their number is unknown."""
        return self._dims

    def num_elements(self) -> int | None:
        """How many elements there are; None if that is not known."""
        if self._dims is None:
            return None
        product = 1
        for one in self._dims:
            if one is None:
                return None
            product *= one
        return product

    def is_fully_defined(self) -> bool:
        """Whether every dimension is known."""
        return self._dims is not None and None not in self._dims

    def assert_is_fully_defined(self) -> None:
        """Raise ValueError unless every dimension is known."""
        if not self.is_fully_defined():
            raise ValueError(f"Shape {self} is not fully defined")

    def is_compatible_with(self, other: Any) -> bool:
        """Whether one value could have both shapes."""
        other = as_shape(other)
        if self._dims is None or other._dims is None:
            return True
        return len(self._dims) == len(other._dims) and all(
            one is None or two is None or one == two
            for one, two in zip(self._dims, other._dims, strict=True)
        )

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raise ValueError unless one value could have both shapes."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Shapes {self} and {as_shape(other)} are incompatible")

    def merge_with(self, other: Any) -> TensorShape:
        """What is known from both."""
        known = as_shape(other)
        if self._dims is None:
            return known
        if known._dims is None or known._dims == self._dims:
            return self
        if not self.is_compatible_with(known):
            raise ValueError(f"Shapes {self} and {known} are not compatible")
        pairs = zip(self._dims, known._dims, strict=True)
        return TensorShape([two if one is None else one for one, two in pairs])

    def most_general_compatible_shape(self, other: Any) -> TensorShape:
        """What holds for both: dimensions that differ become unknown."""
        other = as_shape(other)
        if self._dims is None or other._dims is None or len(self._dims) != len(other._dims):
            return unknown_shape()
        pairs = zip(self._dims, other._dims, strict=True)
        return TensorShape([one if one == two else None for one, two in pairs])

    def concatenate(self, other: Any) -> TensorShape:
        """The dimensions of this shape and then those of `other`."""
        other = as_shape(other)
        if self._dims is None or other._dims is None:
            return unknown_shape()
        return TensorShape(self._dims + other._dims)

    def with_rank(self, rank: int) -> TensorShape:
        """This shape, known to have `rank` dimensions."""
        if self._dims is None:
            return unknown_shape(rank)
        if len(self._dims) != rank:
            raise ValueError(f"Shape {self} must have rank {rank}")
        return self

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """This shape."""
        if self._dims is not None and len(self._dims) < rank:
            raise ValueError(f"Shape {self} must have rank at least {rank}")
        return self

    def __len__(self) -> int:
        if self._dims is None:
            raise ValueError("Cannot take the length of shape with unknown rank.")
        return len(self._dims)

    def __bool__(self) -> bool:
        return self._dims is not None

    def __iter__(self) -> Iterator[Dimension]:
        if self._dims is None:
            raise ValueError("Cannot iterate over a shape with unknown rank.")
        return (Dimension(one) for one in self._dims)

    @overload
    def __getitem__(self, key: SupportsIndex) -> Dimension: ...

    @overload
    def __getitem__(self, key: slice) -> TensorShape: ...

    def __getitem__(self, key: SupportsIndex | slice) -> Dimension | TensorShape:
        if isinstance(key, slice):
            return unknown_shape() if self._dims is None else TensorShape(self._dims[key])
        return Dimension(None if self._dims is None else self._dims[key])

    def __add__(self, other: Any) -> TensorShape:
        return self.concatenate(other)

    def __radd__(self, other: Any) -> TensorShape:
        return as_shape(other).concatenate(self)

    def __eq__(self, other: object) -> bool:
        try:
            return self._dims == as_shape(other)._dims
        except (TypeError, ValueError):
            return NotImplemented

    def __hash__(self) -> int:
        return hash(self._dims)

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorShape, (self._dims,)

    def __str__(self) -> str:
        if self._dims is None:
            return "<unknown>"
        inside = ", ".join("?" if one is None else str(one) for one in self._dims)
        return f"({inside},)" if len(self._dims) == 1 else f"({inside})"

    def __repr__(self) -> str:
        return f"TensorShape({self.dims})"


def as_shape(value: Any) -> TensorShape:
    """`value` as a `TensorShape`."""
    return value if isinstance(value, TensorShape) else TensorShape(value)


def check_equal_dims(first: TensorShape, second: TensorShape) -> None:
    """Raise ValueError, as TensorFlow's operations do, unless one value could have both shapes."""
    old, new = first.as_tuple(), second.as_tuple()
    if old is None or new is None:
        return
    if len(old) != len(new):
        raise ValueError(f"Shapes must be equal rank, but are {len(old)} and {len(new)}")
    for index, (one, two) in enumerate(zip(old, new, strict=True)):
        if one is not None and two is not None and one != two:
            raise ValueError(
                f"Dimension {index} in both shapes must be equal, but are {one} and {two}. Shapes "
                f"are {_brackets(old)} and {_brackets(new)}."
            )


def _brackets(dims: Iterable[int | None]) -> str:
    return f"[{','.join('?' if one is None else str(one) for one in dims)}]"


def unknown_shape(rank: int | None = None) -> TensorShape:
    """A shape with unknown dimensions; their number may be known."""
    return TensorShape(None if rank is None else [None] * rank)


def dimension_value(dimension: Any) -> int | None:
    """The ``int`` or None in a `Dimension`; ``tf.compat.dimension_value``."""
    return dimension.value if isinstance(dimension, Dimension) else dimension


def dimension_at_index(shape: Any, index: int) -> Dimension:
    """The `Dimension` at `index`; ``tf.compat.dimension_at_index``."""
    return as_shape(shape)[index]
