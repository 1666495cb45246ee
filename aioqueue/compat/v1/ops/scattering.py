"""Slices written to places: of variables (`scatter_update` and its kin), zeros and tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import default_graph
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor, named
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.ops.building import (
    INDICES,
    NUMBERS,
    Dims,
    OpBuilder,
    Pure,
    array,
    dtype_hint,
    invalid,
    merge,
    shape_text,
)
from aioqueue.compat.v1.ops.static import shape_value
from aioqueue.compat.v1.ops.variables import Variable, variable_cell, variable_op

__all__ = (
    "scatter_add",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_nd",
    "scatter_nd_add",
    "scatter_nd_sub",
    "scatter_nd_update",
    "scatter_sub",
    "scatter_update",
    "tensor_scatter_add",
    "tensor_scatter_sub",
    "tensor_scatter_update",
)

Write = Callable[[NDArray[Any], Any, Any], None]
"""Writes slices to places of an array: its arguments are the array, the index, and the slices."""


def _set(target: NDArray[Any], index: Any, updates: Any) -> None:
    target[index] = updates


def _divide(target: NDArray[Any], index: Any, updates: Any) -> None:
    if target.dtype.kind == "f":
        np.divide.at(target, index, updates)
        return
    for place, divisor in zip(np.ravel(index), _each(target, index, updates), strict=True):
        wide = target[place] - np.fmod(target[place], divisor)  # towards zero, as in C
        target[place] = np.floor_divide(wide, divisor)


def _each(target: NDArray[Any], index: Any, updates: Any) -> NDArray[Any]:
    """The slice of each place."""
    rest = target.shape[1:]
    return np.broadcast_to(updates, (*np.shape(index), *rest)).reshape(-1, *rest)


def scatter_update(
    ref: Any, indices: Any, updates: Any, use_locking: bool = True, name: str | None = None
) -> Tensor:
    """A variable's new value, some of whose rows are set when it runs, at once for other threads.

    Args:
        ref: the variable.
        indices: int32 or int64, of any shape: the numbers of rows.
        updates: the new rows: their shape is that of `indices`, then that of a row; or one number
            for all of them.
        use_locking: accepted; changes are atomic.
        name: name of the op.

    Raises:
        TypeError: they are of another dtype than the variable.
        ValueError: the shapes do not fit.
        InvalidArgumentError: when it runs: there is no such row. Nothing is changed then.
    """
    del use_locking
    return _scatter("ScatterUpdate", _set, ref, indices, updates, name)


def scatter_nd_update(
    ref: Any, indices: Any, updates: Any, use_locking: bool = True, name: str | None = None
) -> Tensor:
    """A variable's new value, some of whose slices are set when it runs, at once for other threads.

    Args:
        ref: the variable.
        indices: int32 or int64 ``[..., depth]``: places in the first `depth` axes.
        updates: the new slices, ``[..., *rest]``.
        use_locking: accepted; changes are atomic.
        name: name of the op.

    Raises:
        TypeError: they are of another dtype than the variable.
        ValueError: the shapes do not fit.
        InvalidArgumentError: when it runs: there is no such place. Nothing is changed then.
    """
    del use_locking
    return _scatter("ScatterNdUpdate", _set, ref, indices, updates, name, _places)


def _rows(indices: NDArray[Any], updates: NDArray[Any], shape: tuple[int, ...]) -> Any:
    """The index of rows: all rows exist, and their updates fit."""
    if updates.ndim and updates.shape != (*indices.shape, *shape[1:]):
        raise invalid(
            "updates shape must be indices.shape + params.shape[1:], got "
            f"updates.shape {shape_text(updates.shape)}, indices.shape"
            f" {shape_text(indices.shape)}, params.shape {shape_text(shape)}"
        )
    wrong = np.argwhere((indices < 0) | (indices >= shape[0]))
    if len(wrong):
        place = tuple(wrong[0].tolist())
        where = shape_text(place) if indices.ndim else ""
        raise invalid(f"indices{where} = {indices[place]} is not in [0, {shape[0]})")
    return indices


def _places(indices: NDArray[Any], updates: NDArray[Any], shape: tuple[int, ...]) -> Any:
    """The index of slices: all slices exist, and their updates fit."""
    depth = indices.shape[-1]
    outer = indices.ndim - 1
    if updates.shape[:outer] != indices.shape[:-1]:
        raise invalid(
            f"Dimensions [0,{outer}) of indices[shape={shape_text(indices.shape)}] must match"
            f" dimensions [0,{outer}) of updates[shape={shape_text(updates.shape)}]"
        )
    if depth > len(shape) or updates.shape[outer:] != tuple(shape[depth:]):
        raise invalid(
            f"Dimensions [{depth},{len(shape)}) of input[shape={shape_text(shape)}] must match"
            f" dimensions [{outer},{updates.ndim}) of updates[shape={shape_text(updates.shape)}]"
        )
    flat = indices.reshape(-1, depth)
    wrong = ((flat < 0) | (flat >= np.array(shape[:depth]))).any(axis=1)
    if wrong.any():
        number = int(np.flatnonzero(wrong)[-1])  # TensorFlow tells the last one
        raise invalid(
            f"indices[{number}] = {shape_text(flat[number])} does not index into shape"
            f" {shape_text(shape)}"
        )
    return tuple(np.moveaxis(indices, -1, 0))


def _scatter(
    op_type: str,
    write: Write,
    ref: Any,
    indices: Any,
    updates: Any,
    name: str | None,
    index_of: Callable[..., Any] = _rows,
) -> Tensor:
    """An operation that changes places of a variable, and gives its new value."""
    variable = variable_op(ref)
    kind = variable.outputs[0]

    def kernel(step: Any, indices: Any, updates: Any) -> Any:
        index, slices = np.asarray(indices), array(updates)

        def changed(old: Any) -> Any:
            made = array(old).copy()
            with np.errstate(all="ignore"):
                write(made, index_of(index, slices, made.shape), slices)
            return made

        return variable_cell(step, variable).change(variable.name, changed)

    with name_scope(name, op_type) as scope:
        places = convert_to_tensor(indices, name="indices")
        if places.dtype.name not in INDICES:
            raise TypeError(
                f"Value passed to parameter 'indices' has DataType {places.dtype.name} not in list"
                " of allowed values: int32, int64"
            )
        slices = _slices(updates, kind.dtype, op_type)
        known = [one.shape.as_tuple() for one in (places, slices, kind)]
        (_check_rows if index_of is _rows else _check_places)(*known)
        before = [] if isinstance(ref, Variable) or ref.op is variable else [ref]
        with variable.graph.control_dependencies(before):
            made = default_graph.op(
                op_type,
                [places, slices],
                [(kind.dtype, kind.shape)],
                kernel,
                name=scope,
                attrs={"variable_op": variable},
            )
    return made.outputs[0]


def _check_rows(places: Dims, slices: Dims, shape: Dims) -> None:
    """Raise ValueError if updates of rows are known not to fit."""
    if places is not None and slices and shape:
        merge(slices, (*places, *shape[1:]))


def _check_places(places: Dims, slices: Dims, shape: Dims) -> None:
    """Raise ValueError if updates of slices are known not to fit."""
    if not places or slices is None:
        return
    outer = len(places) - 1
    try:
        merge(places[:-1], slices[:outer])
    except ValueError as error:
        raise ValueError(
            f"Dimensions [0,{outer}) of indices[shape={shape_text(places)}] ="
            f" {shape_text(places[:-1])} must match dimensions [0,{outer}) of"
            f" updates[shape={shape_text(slices)}] = {shape_text(slices[:outer])}: {error}"
        ) from None
    depth = places[-1]
    if shape is None or depth is None:
        return
    try:
        merge(shape[depth:], slices[outer:])
    except ValueError as error:
        raise ValueError(
            f"Dimensions [{depth},{len(shape)}) of input[shape={shape_text(shape)}] ="
            f" {shape_text(shape[depth:])} must match dimensions [{outer},{len(slices)}) of"
            f" updates[shape={shape_text(slices)}] = {shape_text(slices[outer:])}: {error}"
        ) from None


def _slices(updates: Any, dtype: DType, op_type: str) -> Tensor:
    hint = dtype_hint(updates)
    if hint is not None and hint != dtype:
        raise TypeError(
            f"Input 'updates' of '{op_type}' Op has type {hint.name} that does not match type"
            f" {dtype.name} of argument 'ref'."
        )
    return convert_to_tensor(updates, dtype, name="updates")


class _Scattering(Protocol):
    """What makes an op that changes places of a variable."""

    def __call__(
        self, ref: Any, indices: Any, updates: Any, use_locking: bool = False, name: Any = None
    ) -> Tensor:
        """The variable's new value."""


def _scattering(
    name: str, op_type: str, write: Write, what: str, index_of: Callable[..., Any] = _rows
) -> _Scattering:
    def scatter(
        ref: Any, indices: Any, updates: Any, use_locking: bool = False, name: Any = None
    ) -> Tensor:
        del use_locking
        return _scatter(op_type, write, ref, indices, updates, name, index_of)

    like = "scatter_update" if index_of is _rows else "scatter_nd_update"
    return named(scatter, name, f"A variable's new value, with numbers {what}; see `{like}`.")


scatter_add: _Scattering = _scattering("scatter_add", "ScatterAdd", np.add.at, "increased")
scatter_sub: _Scattering = _scattering("scatter_sub", "ScatterSub", np.subtract.at, "decreased")
scatter_mul: _Scattering = _scattering("scatter_mul", "ScatterMul", np.multiply.at, "multiplied")
scatter_div: _Scattering = _scattering("scatter_div", "ScatterDiv", _divide, "divided")
scatter_min: _Scattering = _scattering("scatter_min", "ScatterMin", np.minimum.at, "lowered")
scatter_max: _Scattering = _scattering("scatter_max", "ScatterMax", np.maximum.at, "raised")
scatter_nd_add: _Scattering = _scattering(
    "scatter_nd_add", "ScatterNdAdd", np.add.at, "increased", _places
)
scatter_nd_sub: _Scattering = _scattering(
    "scatter_nd_sub", "ScatterNdSub", np.subtract.at, "decreased", _places
)


def scatter_nd(indices: Any, updates: Any, shape: Any, name: str | None = None) -> Tensor:
    """Zeros, to some of whose slices something is added.

    Args:
        indices: int32 or int64 ``[..., depth]``: places in the first `depth` axes.
        updates: the slices, ``[..., *rest]``; those of one place are added up.
        shape: the shape: a vector of the dtype of `indices`.
        name: name of the op.

    Raises:
        InvalidArgumentError: when it runs: there is no such place, or the shapes do not fit.
    """

    def scattered(indices: Any, updates: Any, shape: Any) -> Any:
        slices = array(updates)
        made = np.zeros(tuple(shape.tolist()), slices.dtype)
        np.add.at(made, _places(np.asarray(indices), slices, made.shape), slices)
        return made

    with OpBuilder("ScatterNd", name) as op:
        places = op.tensor(indices, "indices", None, INDICES)
        slices = op.tensor(updates, "updates", None, NUMBERS)
        sizes = op.tensor(shape, "shape", places.dtype, like="indices")
        known = shape_value(sizes)
        _check_places(places.shape.as_tuple(), slices.shape.as_tuple(), known)
        return op.output(slices.dtype, known, Pure(scattered))


def tensor_scatter_update(
    tensor: Any, indices: Any, updates: Any, name: str | None = None
) -> Tensor:
    """A tensor, some of whose slices are others.

    Args:
        tensor: the tensor.
        indices: int32 or int64 ``[..., depth]``: places in its first `depth` axes.
        updates: the new slices, ``[..., *rest]``.
        name: name of the op.

    Raises:
        ValueError: the shapes do not fit.
        InvalidArgumentError: when it runs: there is no such place.
    """
    return _tensor_scatter("TensorScatterUpdate", _set, tensor, indices, updates, name)


def tensor_scatter_add(tensor: Any, indices: Any, updates: Any, name: str | None = None) -> Tensor:
    """A tensor, to whose slices something is added; see `tensor_scatter_update`."""
    return _tensor_scatter("TensorScatterAdd", np.add.at, tensor, indices, updates, name)


def tensor_scatter_sub(tensor: Any, indices: Any, updates: Any, name: str | None = None) -> Tensor:
    """A tensor, from whose slices something is taken; see `tensor_scatter_update`."""
    return _tensor_scatter("TensorScatterSub", np.subtract.at, tensor, indices, updates, name)


def _tensor_scatter(
    op_type: str, write: Write, tensor: Any, indices: Any, updates: Any, name: str | None
) -> Tensor:
    def scattered(values: Any, indices: Any, updates: Any) -> Any:
        made, slices = array(values).copy(), array(updates)
        write(made, _places(np.asarray(indices), slices, made.shape), slices)
        return made

    with OpBuilder(op_type, name) as op:
        values = op.tensor(tensor, "tensor")
        places = op.tensor(indices, "indices", None, INDICES)
        slices = op.tensor(updates, "updates", values.dtype, like="tensor")
        known = values.shape.as_tuple()
        _check_places(places.shape.as_tuple(), slices.shape.as_tuple(), known)
        return op.output(values.dtype, known, Pure(scattered))
