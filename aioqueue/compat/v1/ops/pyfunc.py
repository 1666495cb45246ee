"""Python functions as operations: `py_func` and `numpy_function`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import as_value, convert_to_tensor, plain_value
from aioqueue.compat.v1.core.default_graph import op
from aioqueue.compat.v1.core.dtypes import DType, as_dtype
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import unknown_shape
from aioqueue.compat.v1.errors import InvalidArgumentError
from aioqueue.compat.v1.ops.building import call_python

__all__ = ("numpy_function", "py_func")

_tokens = itertools.count()
_C_NAMES = {"float16": "half", "float32": "float", "float64": "double"}


def py_func(
    func: Callable[..., Any],
    inp: Sequence[Any],
    Tout: Any,  # noqa: N803  # TensorFlow's name
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """What a Python function makes of the values of some tensors, in each run.

    The function may do anything: train a model of another framework, for instance. What it raises
    becomes an `OpError`: ValueError and TypeError an `InvalidArgumentError`, StopIteration an
    `OutOfRangeError`, NotImplementedError an `UnimplementedError`, MemoryError a
    `ResourceExhaustedError`, everything else an `UnknownError`. That includes an `OpError` of a
    session which the function runs: the end of *its* input is not the end of yours.

    Args:
        func: takes arrays, which are its own, NumPy scalars and ``bytes``; returns as many values
            as `Tout` says. NumPy values must have the dtype promised, Python values are converted.
        inp: the tensors.
        Tout: the dtype of the result, or a list of dtypes.
        stateful: accepted; the function is called in each run that needs it.
        name: of the operation.

    Returns:
        A tensor of unknown shape; a list of them if `Tout` is one; the operation if it is empty.

    Raises:
        TypeError: `func` cannot be called.
    """
    del stateful
    if not callable(func):
        raise TypeError(f"func: got {func!r}; expected a function")
    several = isinstance(Tout, list | tuple)
    promised = [as_dtype(one) for one in (Tout if several else [Tout])]
    token = f"pyfunc_{next(_tokens)}"

    def kernel(step: Any, *values: Any) -> Any:
        results = _several(call_python(func, *[_own(one) for one in values]))
        if len(results) != len(promised):
            raise InvalidArgumentError(
                None,
                None,
                f"{token} returns {len(results)} values, but expects to see {len(promised)} "
                "values.",
            )
        checked = tuple(
            _checked(index, one, dtype, token)
            for index, (one, dtype) in enumerate(zip(results, promised, strict=True))
        )
        return checked if len(checked) != 1 else checked[0]

    with name_scope(name, "PyFunc", inp) as scope:
        tensors = [convert_to_tensor(one, name=f"input_{i}") for i, one in enumerate(inp)]
        outputs = [(dtype, unknown_shape()) for dtype in promised]
        made = op("PyFunc", tensors, outputs, kernel, name=scope, attrs={"token": token})
    if not promised:
        return made
    return made.outputs if several else made.outputs[0]


def numpy_function(
    func: Callable[..., Any],
    inp: Sequence[Any],
    Tout: Any,  # noqa: N803  # TensorFlow's name
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """The same as `py_func`, under its later name.

    Args:
        func: as for `py_func`.
        inp: the tensors.
        Tout: the dtype of the result, or a list of dtypes.
        stateful: accepted; the function is called in each run that needs it.
        name: of the operation.
    """
    return py_func(func, inp, Tout, stateful, name)


def _own(value: Any) -> Any:
    """An array that the function may change."""
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return value.copy()
    return value


def _several(result: Any) -> Sequence[Any]:
    if result is None:
        return ()
    return result if isinstance(result, list | tuple) else (result,)


def _checked(index: int, value: Any, dtype: DType, token: str) -> Any:
    """A result as kernels pass it on; a NumPy value must have the dtype that was promised."""
    if isinstance(value, np.ndarray | np.generic):
        found = dtypes.as_dtype(value.dtype)
        if found is not dtype:
            wanted = _C_NAMES.get(dtype.name, dtype.name)
            raise InvalidArgumentError(
                None,
                None,
                f"{index}-th value returned by {token} is "
                f"{_C_NAMES.get(found.name, found.name)}, but expects {wanted}",
            )
        if value.dtype.kind != "O" and value.dtype.kind not in "SU":
            # The function may keep the array and change it later.
            return plain_value(np.array(value))
    return as_value(value, dtype)
