"""Python's operators and NumPy's functions on tensors and variables: each makes an op.

NumPy's functions follow NEP 13 and NEP 18, all of them: an op calls the function on the values when
it runs. The number of arrays, their dtypes and shapes have to be known before. For ufuncs they
follow from the signature; other functions are tried on small samples, and what those disagree on
stays unknown. Functions that take functions are not tried.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Operators, Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.ops import math, products
from aioqueue.compat.v1.ops.building import (
    Dims,
    OpBuilder,
    Pure,
    array,
    broadcast_shapes,
    dtype_hint,
    invalid,
)

_Function = Callable[..., Any]


def _apply(function: _Function, name: str | None, x: Any, y: Any) -> Any:
    """The op of a binary operator, called `name`; sparse tensors and the like get their turn."""
    for one in (x, y):
        priority = 0 if isinstance(one, Operators) else getattr(one, "__array_priority__", 0)
        if priority > Operators.__array_priority__:
            return NotImplemented
    if name is None:
        return function(x, y)
    with name_scope(None, name) as scope:
        return function(x, y, name=scope)


def _bits_or(logical: _Function, bitwise: _Function) -> _Function:
    """``&``, ``|`` and ``^``: of booleans, or of the bits of integers."""

    def function(x: Any, y: Any, name: str | None = None) -> Any:
        tensor: Any = x if isinstance(x, Operators) else y
        return (logical if tensor.dtype.is_bool else bitwise)(x, y, name=name)

    return function


_UFUNCS: dict[np.ufunc, tuple[str, str]] = {}
"""The ufuncs behind Python's operators, and the methods of a left and of a right operand."""


def _override(
    name: str, function: _Function, ufunc: np.ufunc | None, mirrored: str | None = None
) -> None:
    """Register a binary operator; a comparison has a mirror, all others a method for the right."""
    called = name if mirrored is None else None

    def from_left(self: Any, other: Any) -> Any:
        return _apply(function, called, self, other)

    def from_right(self: Any, other: Any) -> Any:
        return _apply(function, called, other, self)

    Operators._override_operator(f"__{name}__", from_left)
    if mirrored is None:
        Operators._override_operator(f"__r{name}__", from_right)
    if ufunc is not None:
        _UFUNCS[ufunc] = f"__{name}__", f"__{mirrored or f'r{name}'}__"


_override("add", math.add, np.add)
_override("sub", math.subtract, np.subtract)
_override("mul", math.multiply, np.multiply)
_override("truediv", math.truediv, np.true_divide)
_override("floordiv", math.floordiv, np.floor_divide)
_override("mod", math.mod, np.remainder)
_override("pow", math.pow, np.power)
_override("matmul", products.matmul, np.matmul)
_override("and", _bits_or(math.logical_and, math.bitwise_and), None)
_override("or", _bits_or(math.logical_or, math.bitwise_or), None)
_override("xor", _bits_or(math.logical_xor, math.bitwise_xor), None)
_override("lt", math.less, np.less, "gt")
_override("le", math.less_equal, np.less_equal, "ge")
_override("gt", math.greater, np.greater, "lt")
_override("ge", math.greater_equal, np.greater_equal, "le")
for _name, _function in (
    ("invert", lambda x: math.logical_not(x) if x.dtype.is_bool else math.invert(x)),
    ("neg", math.negative),
    ("abs", math.abs),
    ("array_ufunc", lambda x, ufunc, method, *args, **more: _ufunc(ufunc, method, args, more)),
    ("array_function", lambda x, function, types, args, more: _numpy(function, args, more)),
):
    Operators._override_operator(f"__{_name}__", _function)


# NumPy's functions.

_MOST_ELEMENTS = 4096
"""Samples are as large as the static shape says up to here, and beyond that are small."""

_EQUALITY = {np.equal: math.equal, np.not_equal: math.not_equal}
"""Not the operators, which compare tensors as objects."""

_WRITES_FILES = (np.save, np.savez, np.savez_compressed, np.savetxt)
_CHANGES_ITS_ARGUMENT = (
    *(np.copyto, np.put, np.place, np.putmask, np.put_along_axis, np.fill_diagonal),
)


def _ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The op for a call of a ufunc, or of its ``reduce``, ``accumulate``, ``outer``, ..."""
    if method == "at" or kwargs.get("out") is not None:
        _refuse_change(f"numpy.{ufunc.__name__}")
    is_call = method == "__call__"
    if is_call and not kwargs and len(inputs) == 2:
        x, y = inputs
        if (dtype_hint(x) is None) != (dtype_hint(y) is None):
            if ufunc in _UFUNCS:
                of_left, of_right = _UFUNCS[ufunc]
                return getattr(x, of_left)(y) if dtype_hint(x) else getattr(y, of_right)(x)
            if ufunc in _EQUALITY:
                return _EQUALITY[ufunc](x, y)
    call = _Call(getattr(ufunc, method), inputs, kwargs)
    name = ufunc.__name__ if is_call else f"{ufunc.__name__}_{method}"
    return call.build(name, call.of_ufunc(ufunc) if is_call else None)


def _numpy(function: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The op for a call of any other NumPy function, with tensors anywhere in its arguments."""
    if function in _CHANGES_ITS_ARGUMENT or kwargs.get("out") is not None:
        _refuse_change(f"numpy.{function.__name__}")
    if function in _WRITES_FILES:
        raise TypeError(f"numpy.{function.__name__} writes a file: call it in a tf.py_func")
    return _Call(function, args, kwargs).build(function.__name__, None)


def _refuse_change(name: str) -> None:
    raise TypeError(f"{name} would write into a tensor, which never changes; use what it returns")


class _Results(NamedTuple):
    outputs: list[tuple[DType, Dims]]
    container: Callable[[list[Any]], Any] | None
    """What it returns several in, such as `tuple`; None if it returns one bare."""


class _Slot(NamedTuple):
    place: int


class _Call:
    """A call whose arguments hold tensors: which, and how to put values in their places."""

    def __init__(self, function: _Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.function = function
        self.tensors: list[Tensor] = []
        self._args = [self._without_tensors(one) for one in args]
        self._kwargs = {key: self._without_tensors(one) for key, one in kwargs.items()}

    def _without_tensors(self, value: Any) -> Any:
        """`value` with each tensor in it replaced by a `_Slot`."""
        if isinstance(value, np.ndarray):
            return value.copy()  # the caller's to change
        if dtype_hint(value) is not None:
            self.tensors.append(convert_to_tensor(value))
            return _Slot(len(self.tensors) - 1)
        if type(value) in (tuple, list):
            return type(value)(map(self._without_tensors, value))
        return value

    def __call__(self, *values: Any) -> Any:
        args = [_filled(one, values) for one in self._args]
        kwargs = {key: _filled(one, values) for key, one in self._kwargs.items()}
        return self.function(*args, **kwargs)

    def build(self, name: str, known: _Results | None) -> Any:
        results = known or self._tried()
        wanted = [dtype for dtype, _ in results.outputs]

        def kernel(*values: Any) -> Any:
            made = self(*values)
            parts = [made] if results.container is None else list(made)
            parts = [_as(one, dtype, name) for one, dtype in zip(parts, wanted, strict=True)]
            return tuple(parts) if len(parts) > 1 else parts[0]

        with OpBuilder(name, None) as op:
            for place, tensor in enumerate(self.tensors):
                op.tensor(tensor, f"input_{place}")
            made = op.outputs(results.outputs, Pure(kernel))
        return made[0] if results.container is None else results.container(made)

    def of_ufunc(self, ufunc: np.ufunc) -> _Results | None:
        """The results of an elementwise ufunc without options; None for any other."""
        if self._kwargs or ufunc.signature is not None:
            return None
        shapes = [
            self.tensors[one.place].shape.as_tuple() if isinstance(one, _Slot) else np.shape(one)
            for one in self._args
        ]
        try:
            made = self._called([_of_size(one.dtype, (), np.ones) for one in self.tensors])
        except Exception:
            return None
        parts = made if isinstance(made, tuple) else (made,)
        outputs = [(_dtype_of(one), broadcast_shapes(shapes)) for one in parts]
        return _Results(outputs, tuple if isinstance(made, tuple) else None)

    def _called(self, values: Sequence[Any]) -> Any:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self(*values)

    def _tried(self) -> _Results:
        """What the function makes of samples; TypeError if their number depends on values."""
        made = list(self._made_of_samples())
        if not made:
            # One array of the first tensor's dtype is a guess, which the kernel checks.
            return _Results([(self.tensors[0].dtype, None)], None)
        first, name = made[0], self.function.__name__
        rows = [list(one) if isinstance(one, tuple | list) else [one] for one in made]
        if len({len(row) for row in rows}) != 1:
            raise TypeError(
                f"numpy.{name}: how many arrays it returns depends on what only a run will tell;"
                " call it in a tf.py_func"
            )
        outputs = [_agreed(column, name) for column in zip(*rows, strict=True)]
        if not all(one.shape.ndims is not None for one in self.tensors):
            outputs = [(dtype, None) for dtype, _ in outputs]
        return _Results(outputs, _container(first) if isinstance(first, tuple | list) else None)

    def _made_of_samples(self) -> Iterator[Any]:
        if any(map(callable, [*self._args, *self._kwargs.values()])):
            return  # the caller's function is not to be called before the graph runs
        found = False
        for size, rank, values in _SAMPLES:
            if found and rank == 0:
                return  # scalars promote otherwise than arrays in NumPy 1
            samples = [_sample(one, size, rank, values) for one in self.tensors]
            try:
                made = self._called(samples)
            except Exception:
                continue  # an unlucky sample, or a call that fails when it runs
            found = True
            yield made


def _container(made: Any) -> Callable[[list[Any]], Any]:
    """How to put tensors where a function has put arrays."""
    if hasattr(made, "_fields"):  # a named tuple, such as that of numpy.linalg.svd
        return lambda tensors: type(made)(*tensors)
    return list if isinstance(made, list) else tuple


def _filled(value: Any, values: Sequence[Any]) -> Any:
    if isinstance(value, _Slot):
        given = values[value.place]
        return array(given) if isinstance(given, bytes) else given
    if type(value) in (tuple, list):
        return type(value)(_filled(one, values) for one in value)
    return value


def _varied(sizes: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Different small numbers in no order; square matrices of them have an inverse."""
    numbers = np.arange(int(np.prod(sizes, dtype=np.int64))) * 14 % 31
    return (numbers % 2 if dtype.kind == "b" else numbers).astype(dtype).reshape(sizes)


_SAMPLES: tuple[tuple[int, int, Callable[..., Any]], ...] = (
    *((3, 2, _varied), (3, 1, np.zeros), (2, 2, np.ones), (1, 1, np.ones), (1, 0, np.ones)),
)
"""The size of unknown dimensions, their number if not even that is known, and the values."""


def _sample(tensor: Tensor, size: int, rank: int, make: Callable[..., Any]) -> Any:
    static = tensor.shape.as_tuple()
    static = (None,) * rank if static is None else static
    count = tensor.shape.num_elements()
    small = count is not None and count <= _MOST_ELEMENTS
    sizes = [one if one is not None and (small or one <= 8) else size for one in static]
    return _of_size(tensor.dtype, sizes, make)


def _of_size(dtype: DType, sizes: Sequence[int], make: Callable[..., Any]) -> Any:
    if dtype == dtypes.string:
        return np.full(sizes, b"1", object)
    made = make(sizes, dtype.numpy)
    return made if made.ndim else made[()]


def _dtype_of(value: Any) -> DType:
    if isinstance(value, bytes | str):
        return dtypes.string
    return dtypes.as_dtype(np.asarray(value).dtype)


def _agreed(values: Sequence[Any], name: str) -> tuple[DType, Dims]:
    """What several results have in common; TypeError if not even their dtype."""
    arrays: list[NDArray[Any]] = [array(one) for one in values]
    found = {_dtype_of(one) for one in arrays}
    shapes = {one.shape for one in arrays}
    if len(found) > 1:
        names = ", ".join(sorted(one.name for one in found))
        raise TypeError(
            f"numpy.{name}: whether it returns {names} depends on what only a run will tell; call"
            " it in a tf.py_func"
        )
    if len({len(one) for one in shapes}) > 1:
        return found.pop(), None
    columns = zip(*shapes, strict=True)
    return found.pop(), tuple(_size(set(sizes), len(values)) for sizes in columns)


def _size(sizes: set[int], samples: int) -> int | None:
    """A size that all samples agree on; one sample alone says little about a 1."""
    if len(sizes) > 1 or (samples == 1 and sizes == {1}):
        return None
    return next(iter(sizes))


def _as(value: Any, dtype: DType, name: str) -> Any:
    """A result as its tensor promises it; InvalidArgumentError if it is of another kind."""
    made = array(value)
    if 0 in made.strides and made.size > 1:
        made = made.copy()  # one element seen in many places, as broadcasting makes them
    if dtype == dtypes.string:
        return made if made.dtype == object else made.astype(object)
    if made.dtype == dtype.numpy:
        return made
    if not np.can_cast(made.dtype, dtype.numpy, "same_kind"):
        raise invalid(
            f"numpy.{name} returned {made.dtype.name}, where {dtype.name} was to be expected; call"
            " it in a tf.py_func that says what it returns"
        )
    return made.astype(dtype.numpy)
