"""How a plain op is made: its scope, its arguments as tensors, its node, and its kernel::

    with OpBuilder("Add", name) as op:
        x, y = op.alike(NUMBERS, x=x, y=y)
        return op.output(x.dtype, op.broadcast(x, y), Elementwise(np.add))

Constants made of arguments within the block are called ``Add/x`` and ``Add/y``.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from aioqueue import AioQueueError
from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import default_graph, dtypes, scopes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.shapes import TensorShape

Function = Callable[..., Any]
Attrs = Mapping[str, Any] | None
Dims = tuple[int | None, ...] | None
"""A static shape: sizes, None where a size is unknown; None if not even the rank is known."""

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_REAL_FLOATS = ("float16", "float32", "float64")

ANY: Final[frozenset[str]] = frozenset()
INDICES: Final = frozenset(("int32", "int64"))
INTEGERS: Final = frozenset(_INTEGERS)
REALS: Final = frozenset((*_REAL_FLOATS, *_INTEGERS))
FLOATS: Final = frozenset((*_REAL_FLOATS, "complex64", "complex128"))
NUMBERS: Final = REALS | FLOATS


def invalid(message: str) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(None, None, message)


def shape_text(shape: Sequence[int | None] | None) -> str:
    """A shape as TensorFlow's messages print it: ``[2,?]``."""
    if shape is None:
        return "<unknown>"
    return "[" + ",".join("?" if size is None else str(size) for size in shape) + "]"


def one_text(value: Any, refusal: str) -> bytes:
    """A kernel's input that must be one string; else an error: `refusal` and the shape."""
    if isinstance(value, bytes):
        return value
    raise invalid(f"{refusal}{shape_text(np.shape(value))}")


def array(value: Any) -> NDArray[Any]:
    """A kernel's input as an array: scalars become arrays of rank 0, and `bytes` stay whole."""
    if isinstance(value, np.ndarray):
        return value
    return np.asarray(value, object if isinstance(value, bytes) else None)


class Pure:
    """A kernel of its inputs alone, which may run while a graph is built; warns of nothing."""

    def __init__(self, function: Function) -> None:
        self.function: Function = function

    def __call__(self, step: Any, *values: Any) -> Any:
        with np.errstate(all="ignore"):
            result = self.function(*values)
        if type(result) is np.ndarray:
            return result if result.ndim else result[()]
        if isinstance(result, tuple | list):
            return tuple(one[()] if isinstance(one, np.ndarray) else one for one in result)
        return result


class Elementwise(Pure):
    def __call__(self, step: Any, *values: Any) -> Any:
        try:
            return Pure.__call__(self, step, *values)
        except ValueError as error:
            shapes = [np.shape(value) for value in values]
            try:
                np.broadcast_shapes(*shapes)
            except ValueError:
                text = " vs. ".join(map(shape_text, shapes))
                raise invalid(f"Incompatible shapes: {text}") from None
            raise invalid(str(error)) from error


def merge(first: Dims, second: Dims) -> Dims:
    """What is known of a shape from both; ValueError if they contradict each other."""
    if first is None or second is None:
        return second if first is None else first
    if len(first) != len(second):
        raise ValueError(f"Shapes must be equal rank, but are {len(first)} and {len(second)}")
    for place, (one, two) in enumerate(zip(first, second, strict=True)):
        if one is not None and two is not None and one != two:
            raise ValueError(
                f"Dimension {place} in both shapes must be equal, but are {one} and {two}. Shapes"
                f" are {shape_text(first)} and {shape_text(second)}."
            )
    return tuple(two if one is None else one for one, two in zip(first, second, strict=True))


def broadcast(first: Dims, second: Dims) -> Dims:
    """The static shape of two broadcast operands; ValueError if no sizes make them fit."""
    if first is None or second is None:
        return None
    rank = max(len(first), len(second))
    sizes: list[int | None] = []
    for index in range(-rank, 0):
        one = first[index] if -index <= len(first) else 1
        two = second[index] if -index <= len(second) else 1
        if one == 1 or two == 1:
            sizes.append(two if one == 1 else one)
        elif one is not None and two is not None and one != two:
            raise ValueError(f"Dimensions must be equal, but are {one} and {two}")
        else:
            sizes.append(two if one is None else one)
    return tuple(sizes)


def broadcast_shapes(shapes: Sequence[Dims]) -> Dims:
    scalar: Dims = ()
    return functools.reduce(broadcast, shapes, scalar)


def dtype_hint(value: Any) -> DType | None:
    """The dtype of a tensor or a variable; None for everything that is still to be converted."""
    dtype = getattr(value, "dtype", None)
    return dtype.base_dtype if isinstance(dtype, DType) else None


def unless_given(value: Any, old_value: Any, name: str, old_name: str) -> Any:
    """The one of an argument's two names that was used; ValueError if both were."""
    if old_value is None:
        return value
    if value is not None and value is not False:
        raise ValueError(f"Cannot specify both '{old_name}' and '{name}'.")
    return old_value


class OpBuilder:
    """One op in the making; within it, its name scope is open."""

    def __init__(self, op_type: str, name: str | None, default: str | None = None) -> None:
        self.type = op_type
        self.name: Any = ""
        self.inputs: list[Tensor] = []
        self._scope: Any = scopes.name_scope(name, default or op_type)

    def __enter__(self) -> OpBuilder:
        self.name = self._scope.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._scope.__exit__(*error)

    def tensor(
        self,
        value: Any,
        argument: str,
        dtype: DType | None = None,
        allowed: frozenset[str] = ANY,
        *,
        like: str = "",
    ) -> Tensor:
        """Make an argument the next input; `dtype` comes from the argument `like`."""
        given = dtype_hint(value)
        if given is not None and dtype is not None and given != dtype:
            wanted = (
                f"that does not match type {dtype.name} of argument '{like}'."
                if like
                else f"that does not match expected type of {dtype.name}."
            )
            raise TypeError(
                f"Input '{argument}' of '{self.type}' Op has type {given.name} {wanted}"
            )
        if dtype is None and allowed == INDICES and isinstance(value, list | tuple) and not value:
            dtype = dtypes.int32  # an empty list of axes or sizes
        tensor = convert_to_tensor(value, dtype=dtype, name=argument)
        if allowed and tensor.dtype.name not in allowed:
            raise TypeError(
                f"Value passed to parameter '{argument}' has DataType {tensor.dtype.name} not in"
                f" list of allowed values: {', '.join(sorted(allowed))}"
            )
        self.inputs.append(tensor)
        return tensor

    def alike(self, allowed: frozenset[str] = ANY, **values: Any) -> list[Tensor]:
        """Convert arguments that must have one dtype: that of the first tensor among them."""
        lead, dtype = next(iter(values)), None
        for argument, value in values.items():
            if dtype_hint(value) is not None:
                lead, dtype = argument, dtype_hint(value)
                break
        converted = []
        for argument, value in values.items():
            like = "" if argument == lead else lead
            tensor = self.tensor(value, argument, dtype, allowed, like=like)
            dtype = tensor.dtype
            converted.append(tensor)
        return converted

    def alike_list(self, values: Sequence[Any], argument: str, dtype: Any = None) -> list[Tensor]:
        """Convert the members of a list, which must have one dtype."""
        found = [one for one in map(dtype_hint, values) if one is not None]
        if len({one.name for one in found}) > 1:
            names = ", ".join(one.name for one in found)
            raise TypeError(
                f"Tensors in list passed to '{argument}' of '{self.type}' Op have types"
                f" [{names}] that don't all match."
            )
        dtype = found[0] if found and dtype is None else dtype
        tensors = []
        for index, value in enumerate(values):
            tensor = self.tensor(value, f"{argument}_{index}" if index else argument, dtype)
            dtype = tensor.dtype
            tensors.append(tensor)
        return tensors

    def refuse(self, message: str) -> ValueError:
        """The error of an op whose inputs cannot work, known before anything runs."""
        shapes = ", ".join(shape_text(one.shape.as_tuple()) for one in self.inputs)
        name = self.name.rstrip("/")
        return ValueError(
            f"{message} for '{name}' (op: '{self.type}') with input shapes: {shapes}."
        )

    def broadcast(self, *tensors: Tensor) -> Dims:
        try:
            return broadcast_shapes([one.shape.as_tuple() for one in tensors])
        except ValueError as error:
            raise self.refuse(str(error)) from None

    def same_shape(self, tensors: Sequence[Tensor]) -> Dims:
        shape: Dims = None
        for place, tensor in enumerate(tensors):
            try:
                shape = merge(shape, tensor.shape.as_tuple())
            except ValueError as error:
                merging = f"\n\tFrom merging shape {place - 1} with other shapes."
                raise self.refuse(f"{error}{merging}") from None
        return shape

    def rank(self, tensor: Tensor, rank: int) -> tuple[int | None, ...]:
        """The static shape of an input that must have `rank` dimensions."""
        shape = tensor.shape.as_tuple()
        if shape is None:
            return (None,) * rank
        if len(shape) != rank:
            raise self.refuse(f"Shape must be rank {rank} but is rank {len(shape)}")
        return shape

    def output(self, dtype: DType, shape: Dims, kernel: Function, attrs: Attrs = None) -> Tensor:
        return self.outputs([(dtype, shape)], kernel, attrs)[0]

    def sink(self, kernel: Function) -> Operation:
        return default_graph.op(self.type, self.inputs, (), kernel, name=self.name)

    def outputs(
        self, outputs: Sequence[tuple[DType, Dims]], kernel: Function, attrs: Attrs = None
    ) -> list[Tensor]:
        kinds = [(dtype, TensorShape(shape)) for dtype, shape in outputs]
        op = default_graph.op(self.type, self.inputs, kinds, kernel, name=self.name, attrs=attrs)
        return list(op.outputs)


class Unary(Protocol):
    def __call__(self, x: Any, name: str | None = None) -> Tensor: ...


class Binary(Protocol):
    def __call__(self, x: Any, y: Any, name: str | None = None) -> Tensor: ...


def elementwise(
    op_type: str,
    function: Function,
    name: str | None,
    allowed: frozenset[str],
    values: dict[str, Any],
    *,
    default: str | None = None,
    dtype: DType | None = None,
    result: DType | None = None,
) -> Tensor:
    """An op of tensors whose shapes broadcast; `dtype` is for values that are no tensors."""
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


def _on_objects(function: Function) -> Function:
    return lambda *values: function(*(np.asarray(value, object) for value in values))


def call_python(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a user's function returns when a kernel calls it."""
    # Queue runners and loops take `OutOfRangeError` and `CancelledError` for the end of the input;
    # one of another run that passes through a user's function says nothing of this input.
    try:
        return function(*arguments)
    except (errors.OpError, AioQueueError, asyncio.CancelledError) as error:
        message = f"{type(error).__name__}: {error}"
        raise errors.UnknownError(None, None, message) from error
