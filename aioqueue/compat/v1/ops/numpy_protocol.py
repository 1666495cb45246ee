"""NumPy's own functions on tensors, by NEP 13 and NEP 18: ``np.sin(x)``, ``np.stack([x, y])``.

There is no list of functions. Whatever NumPy function meets a tensor becomes an op that calls that
function on the values when it runs. What comes out, how many arrays of which dtypes and shapes, is
found out beforehand: for ufuncs from their signature, for other functions by trying them on small
samples. What the samples disagree on stays unknown, and so does everything about functions that
are given other functions or that write files, which are not tried.

The operators' ufuncs treat an array beside a tensor as TensorFlow's operators do: it takes the
tensor's dtype, so that ``array + tensor`` is ``tensor + array``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops import comparison, math, products
from aioqueue.compat.v1.ops.building import (
    Dims,
    OpBuilder,
    Pure,
    array,
    broadcast_shapes,
    dtype_hint,
)

__all__ = ("apply_function", "apply_ufunc")

_MOST_ELEMENTS = 4096
"""Samples are as large as the static shape says up to here, and beyond that are small."""

_OPERATORS: Mapping[np.ufunc, Callable[..., Tensor]] = {
    np.add: math.add,
    np.subtract: math.subtract,
    np.multiply: math.multiply,
    np.true_divide: math.truediv,
    np.floor_divide: math.floordiv,
    np.remainder: math.mod,
    np.power: math.pow,
    np.matmul: products.matmul,
    np.less: comparison.less,
    np.less_equal: comparison.less_equal,
    np.greater: comparison.greater,
    np.greater_equal: comparison.greater_equal,
    np.equal: comparison.equal,
    np.not_equal: comparison.not_equal,
}
"""The ufuncs behind Python's operators, and the ops that do the same."""

_WRITES_FILES = (np.save, np.savez, np.savez_compressed, np.savetxt)
_CHANGES_ITS_ARGUMENT = (
    *(np.copyto, np.put, np.place, np.putmask, np.put_along_axis, np.fill_diagonal),
)


def apply_ufunc(
    ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The op for a call of a ufunc, or of its ``reduce``, ``accumulate``, ``outer``, ...

    Raises:
        TypeError: it would change a tensor, or the operands' dtypes do not fit.
    """
    if method == "at" or kwargs.get("out") is not None:
        _refuse_change(f"numpy.{ufunc.__name__}")
    if method == "__call__" and not kwargs and ufunc in _OPERATORS and _one_is_a_value(inputs):
        return _OPERATORS[ufunc](*inputs)
    function = getattr(ufunc, method)
    call = _Call(function, inputs, kwargs)
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}_{method}"
    return call.build(name, call.of_ufunc(ufunc) if method == "__call__" else None)


def _one_is_a_value(inputs: Sequence[Any]) -> bool:
    return len(inputs) == 2 and sum(dtype_hint(one) is None for one in inputs) == 1


def apply_function(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The op for a call of any other NumPy function, with tensors anywhere in its arguments.

    Returns:
        A tensor, or a tuple or list of them, as the function returns arrays.

    Raises:
        TypeError: it would change a tensor.
    """
    if function in _CHANGES_ITS_ARGUMENT or kwargs.get("out") is not None:
        _refuse_change(f"numpy.{function.__name__}")
    return _Call(function, args, kwargs).build(function.__name__, None)


def _refuse_change(name: str) -> None:
    raise TypeError(f"{name} would write into a tensor, which never changes; use what it returns")


class _Output:
    """What a result is known to be beforehand."""

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: DType, shape: Dims) -> None:
        self.dtype = dtype
        self.shape = shape


class _Results:
    """The outputs of a function, and whether it returns them bare, in a tuple or in a list."""

    __slots__ = ("container", "outputs")

    def __init__(self, outputs: list[_Output], container: Callable[[Any], Any] | None) -> None:
        self.outputs = outputs
        self.container = container


class _Call:
    """A call whose arguments hold tensors: which, and how to put values in their places."""

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.function = function
        self.tensors: list[Tensor] = []
        self._args = self._without_tensors(tuple(args))
        self._kwargs = {key: self._without_tensors(one) for key, one in kwargs.items()}

    def _without_tensors(self, value: Any) -> Any:
        """`value` with each tensor in it replaced by a `_Slot`."""
        if dtype_hint(value) is not None and not isinstance(value, np.ndarray):
            self.tensors.append(convert_to_tensor(value))
            return _Slot(len(self.tensors) - 1)
        if isinstance(value, tuple | list):
            return type(value)(map(self._without_tensors, value))
        if isinstance(value, np.ndarray):
            return value.copy()  # the caller's to change
        return value

    def __call__(self, *values: Any) -> Any:
        """Call the function, with values in the tensors' places."""
        args = [_filled(one, values) for one in self._args]
        kwargs = {key: _filled(one, values) for key, one in self._kwargs.items()}
        return self.function(*args, **kwargs)

    def build(self, name: str, known: _Results | None) -> Any:
        """Add the op; the tensors of its results."""
        results = known or self._tried()
        wanted = [one.dtype for one in results.outputs]

        def kernel(*values: Any) -> Any:
            made = self(*values)
            parts = [made] if results.container is None else list(made)
            parts = [_as(one, dtype) for one, dtype in zip(parts, wanted, strict=True)]
            return tuple(parts) if len(parts) > 1 else parts[0]

        with OpBuilder(name, None) as op:
            for place, tensor in enumerate(self.tensors):
                op.tensor(tensor, f"input_{place}")
            made = op.outputs([(one.dtype, one.shape) for one in results.outputs], Pure(kernel))
        return made[0] if results.container is None else results.container(made)

    def of_ufunc(self, ufunc: np.ufunc) -> _Results | None:
        """The results of an elementwise ufunc without options; None for any other."""
        if self._kwargs or ufunc.signature is not None:
            return None
        shapes = [
            self.tensors[one.place].shape.as_tuple() if isinstance(one, _Slot) else np.shape(one)
            for one in self._args
        ]
        shape = broadcast_shapes(shapes)
        smallest = [np.ones((), one.dtype.numpy)[()] for one in self.tensors]
        try:
            made = self._called([_string_sample(one) for one in smallest])
        except Exception:
            return None
        parts = made if isinstance(made, tuple) else (made,)
        outputs = [_Output(_dtype_of(one), shape) for one in parts]
        return _Results(outputs, tuple if isinstance(made, tuple) else None)

    def _called(self, values: Sequence[Any]) -> Any:
        with np.errstate(all="ignore"):
            return self(*values)

    def _tried(self) -> _Results:
        """What the function does with samples.

        Raises:
            TypeError: nothing can be told, so that not even a dtype is known.
        """
        made = [one for one in self._samples_results() if one is not None]
        if not made:
            return _Results([_Output(self._likely_dtype(), None)], None)
        container = type(made[0]) if isinstance(made[0], tuple | list) else None
        rows = [list(one) if isinstance(one, tuple | list) else [one] for one in made]
        counts = {len(row) for row in rows}
        if len(counts) != 1:
            raise TypeError(
                f"numpy.{self.function.__name__}: how many arrays it returns depends on values that"
                " only a run will tell; call it in a tf.py_func"
            )
        outputs = [_agreed(column) for column in zip(*rows, strict=True)]
        # A named tuple of NumPy's, such as that of svd, is given back as a plain tuple.
        return _Results(
            outputs, None if container is None else (list if container is list else tuple)
        )

    def _likely_dtype(self) -> DType:
        return self.tensors[0].dtype

    def _samples_results(self) -> Iterator[Any]:
        if not self._may_be_tried():
            return
        for size, values in _SAMPLES:
            samples = [_sample(one, size, values) for one in self.tensors]
            if any(one is None for one in samples):
                continue
            try:
                yield self._called(samples)
            except Exception:
                continue  # an unlucky sample, or a call that fails when it runs

    def _may_be_tried(self) -> bool:
        given = [*self._args, *self._kwargs.values()]
        return self.function not in _WRITES_FILES and not any(map(callable, given))


class _Slot:
    """Stands for a tensor in the arguments of a call."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


def _filled(value: Any, values: Sequence[Any]) -> Any:
    if isinstance(value, _Slot):
        given = values[value.place]
        return array(given) if isinstance(given, bytes) else given
    if isinstance(value, tuple | list):
        return type(value)(_filled(one, values) for one in value)
    return value


_SAMPLES: tuple[tuple[int, Callable[..., Any]], ...] = (
    (2, np.zeros),
    (2, np.ones),
    (3, np.ones),
    (1, np.ones),
)
"""The size of unknown dimensions, and what the samples are filled with."""


def _sample(tensor: Tensor, size: int, make: Callable[..., Any]) -> Any:
    """A small array such as `tensor` might be; None if not even its rank is known."""
    static = tensor.shape.as_tuple()
    if static is None:
        return None
    count = tensor.shape.num_elements()
    small = count is not None and count <= _MOST_ELEMENTS
    sizes = [one if one is not None and (small or one <= 8) else size for one in static]
    if tensor.dtype == dtypes.string:
        return np.full(sizes, b"1" if make is np.ones else b"", object)
    made = make(sizes, tensor.dtype.numpy)
    return made if sizes else made[()]


def _string_sample(value: Any) -> Any:
    return (
        np.array(b"1", object)
        if value is None or (value == 1 and isinstance(value, int))
        else value
    )


def _dtype_of(value: Any) -> DType:
    if isinstance(value, bytes | str):
        return dtypes.string
    return dtypes.as_dtype(np.asarray(value).dtype)


def _agreed(values: Sequence[Any]) -> _Output:
    """What several results have in common.

    Raises:
        TypeError: not even their dtype.
    """
    arrays: list[NDArray[Any]] = [array(one) for one in values]
    found = {_dtype_of(one) for one in arrays}
    shapes = {one.shape for one in arrays}
    if len(found) > 1:
        raise TypeError(
            f"the dtype of the result depends on values that only a run will tell: {found}"
        )
    if len({len(one) for one in shapes}) > 1:
        return _Output(found.pop(), None)
    columns = zip(*shapes, strict=True)
    return _Output(found.pop(), tuple(_size(set(sizes), len(values)) for sizes in columns))


def _size(sizes: set[int], samples: int) -> int | None:
    """A size that all samples agree on; one sample alone says little about a 1."""
    if len(sizes) > 1 or (samples == 1 and sizes == {1}):
        return None
    return next(iter(sizes))


def _as(value: Any, dtype: DType) -> Any:
    """A result as its tensor promises it."""
    made = array(value)
    if dtype == dtypes.string:
        return made if made.dtype == object else made.astype(object)
    return made if made.dtype == dtype.numpy else made.astype(dtype.numpy)
