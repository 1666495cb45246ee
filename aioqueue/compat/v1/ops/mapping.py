"""A function of each row: `map_fn`, `foldl`, `foldr` and `scan`, one row after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import default_graph, dtypes, nest
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.graph import Body, Tensor, trace
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.building import invalid
from aioqueue.compat.v1.ops.control import identity
from aioqueue.compat.v1.ops.placeholders import placeholder

__all__ = ("foldl", "foldr", "map_fn", "scan")

Function = Callable[..., Any]


class _Rows:
    """The rows of tensors of one length, and a function that is traced with placeholders."""

    def __init__(self, elems: Any) -> None:
        self.structure = elems
        flat = nest.flatten(elems)
        if not flat:
            raise ValueError("elems: got none; expected at least one tensor")
        self.tensors = [convert_to_tensor(one, name="elem") for one in flat]
        length = self.tensors[0].shape.with_rank_at_least(1)[0]
        for one in self.tensors[1:]:
            length = length.merge_with(one.shape.with_rank_at_least(1)[0])
        self.length: int | None = length.value

    def placeholders(self) -> list[Tensor]:
        """One for the row of each tensor."""
        return [placeholder(one.dtype, one.shape[1:], name="row") for one in self.tensors]

    def nested(self, flat: Sequence[Tensor]) -> Any:
        """Rows in the nesting of the tensors."""
        return nest.pack_sequence_as(self.structure, flat)


def _checked_body(body: Body, result: Any, wanted: Sequence[Any] | None) -> list[Tensor]:
    """The outputs of a traced function as tensors, of the dtypes that were promised."""
    flat = nest.flatten(result)
    if wanted is not None and len(wanted) != len(flat):
        raise ValueError(f"fn returned {len(flat)} tensors; expected {len(wanted)}, as dtype says")
    with get_default_graph().building_in(body):
        tensors = [
            identity(convert_to_tensor(one, None if wanted is None else wanted[place]))
            for place, one in enumerate(flat)
        ]
    body.outputs = list(tensors)
    return tensors


def _lengths_agree(arrays: Sequence[Any]) -> int:
    lengths = {len(one) for one in arrays}
    if len(lengths) > 1:
        raise invalid(f"elems: the tensors differ in length: {sorted(lengths)}")
    return lengths.pop()


def _stacked(rows: Sequence[Sequence[Any]], tensors: Sequence[Tensor]) -> Any:
    """The values of all rows, stacked, one array for each tensor."""
    columns = []
    for place, tensor in enumerate(tensors):
        column = [row[place] for row in rows]
        if not column:
            known = [one or 0 for one in tensor.shape.as_tuple() or ()]
            columns.append(np.zeros((0, *known), tensor.dtype.numpy))
        elif tensor.dtype == dtypes.string and not tensor.shape.ndims:
            made = np.empty(len(column), object)
            made[:] = column
            columns.append(made)
        else:
            shapes = {np.shape(one) for one in column}
            if len(shapes) > 1:
                raise invalid(f"fn: its results differ in shape: {sorted(shapes)}")
            columns.append(np.stack(column))
    return tuple(columns) if len(columns) > 1 else columns[0]


def map_fn(
    fn: Function,
    elems: Any,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
) -> Any:
    """What a function makes of each row of some tensors, stacked.

    Args:
        fn: called once, with tensors, to build what is run for each row.
        elems: a tensor, or several of one length, nested in any way.
        dtype: the dtypes of what it returns, in its nesting; those of `elems` if None.
        parallel_iterations: without effect: one row after another.
        back_prop: without effect.
        swap_memory: without effect.
        infer_shape: whether all results have the static shape that the function's has.
        name: of the scope.

    Raises:
        TypeError: `fn` cannot be called.
        ValueError: it returns another number of tensors, or tensors of other dtypes.
    """
    del parallel_iterations, back_prop, swap_memory
    if not callable(fn):
        raise TypeError("fn must be callable.")
    with name_scope(name, "map", nest.flatten(elems)) as scope:
        rows = _Rows(elems)
        given: list[Tensor] = []

        def call() -> Any:
            given.extend(rows.placeholders())
            return fn(rows.nested(given))

        body, result = trace(get_default_graph(), call)
        structure = elems if dtype is None else dtype
        wanted = [dtypes.as_dtype(one) for one in nest.flatten(dtype)] if dtype else None
        if dtype is None:
            wanted = [one.dtype for one in rows.tensors]
        outputs = _checked_body(body, result, wanted)
        count = len(rows.tensors)

        def kernel(step: Any, *values: Any) -> Any:
            arrays, captures = values[:count], values[count:]
            length = _lengths_agree(arrays)
            taken = [*given, *body.captures]
            results = [
                step.run_body(body.outputs, taken, [*(one[at] for one in arrays), *captures])
                for at in range(length)
            ]
            return _stacked(results, outputs)

        made = default_graph.op(
            "MapFn",
            [*rows.tensors, *body.captures],
            [
                (one.dtype, TensorShape([rows.length]).concatenate(one.shape))
                if infer_shape
                else (one.dtype, TensorShape(None))
                for one in outputs
            ],
            kernel,
            name=scope,
            waits=body.waits,
        )
        return nest.pack_sequence_as(structure, made.outputs)


class _Fold:
    """A function of what has been accumulated and of a row, traced."""

    def __init__(self, fn: Function, elems: Any, initializer: Any) -> None:
        if not callable(fn):
            raise TypeError("fn must be callable.")
        self.rows = _Rows(elems)
        self.has_first = initializer is not None
        self.structure = initializer if self.has_first else elems
        flat = nest.flatten(initializer) if self.has_first else []
        self.first = [convert_to_tensor(one) for one in flat]
        self.given: list[Tensor] = []
        self.body, result = trace(get_default_graph(), lambda: self._call(fn))
        kinds = [one.dtype for one in (self.first or self.rows.tensors)]
        self.outputs = _checked_body(self.body, result, kinds)

    def _call(self, fn: Function) -> Any:
        like = [(one.dtype, one.shape) for one in self.first] or [
            (one.dtype, one.shape[1:]) for one in self.rows.tensors
        ]
        states = [placeholder(dtype, shape, name="state") for dtype, shape in like]
        rows = self.rows.placeholders()
        self.given = [*states, *rows]
        return fn(nest.pack_sequence_as(self.structure, states), self.rows.nested(rows))

    @property
    def inputs(self) -> list[Tensor]:
        """What the op of the fold takes."""
        return [*self.first, *self.rows.tensors, *self.body.captures]

    def states(self, step: Any, values: Sequence[Any], backwards: bool) -> Iterator[Sequence[Any]]:
        """What is accumulated, from the beginning on."""
        start, count = len(self.first), len(self.rows.tensors)
        arrays = values[start : start + count]
        captures = values[start + count :]
        places = range(_lengths_agree(arrays))
        order = list(reversed(places) if backwards else places)
        if self.has_first:
            state: Sequence[Any] = values[:start]
        else:
            if not order:
                raise invalid("elems: got no rows; expected at least one, or an initializer")
            state = [one[order[0]] for one in arrays]
            order = order[1:]
        yield state
        for at in order:
            row = [one[at] for one in arrays]
            taken = [*self.given, *self.body.captures]
            state = step.run_body(self.body.outputs, taken, [*state, *row, *captures])
            yield state


def _folded(
    kind: str, fn: Function, elems: Any, initializer: Any, backwards: bool, name: str | None
) -> Any:
    with name_scope(name, kind, nest.flatten(elems)) as scope:
        fold = _Fold(fn, elems, initializer)

        def kernel(step: Any, *values: Any) -> Any:
            state: Sequence[Any] = ()
            for reached in fold.states(step, values, backwards):
                state = reached
            return tuple(state) if len(state) > 1 else state[0]

        outputs = [(one.dtype, one.shape) for one in fold.outputs]
        made = default_graph.op(
            kind, fold.inputs, outputs, kernel, name=scope, waits=fold.body.waits
        )
        return nest.pack_sequence_as(fold.structure, made.outputs)


def foldl(
    fn: Function,
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """What a function makes of the rows of some tensors, from the first to the last.

    Args:
        fn: takes what has been accumulated, and a row; returns what is accumulated then.
        elems: a tensor, or several of one length, nested in any way.
        initializer: what there is before the first row; that row itself if None.
        parallel_iterations: without effect.
        back_prop: without effect.
        swap_memory: without effect.
        name: of the scope.

    Raises:
        TypeError: `fn` cannot be called.
    """
    del parallel_iterations, back_prop, swap_memory
    return _folded("foldl", fn, elems, initializer, False, name)


def foldr(
    fn: Function,
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """The same as `foldl` from the last row to the first."""
    del parallel_iterations, back_prop, swap_memory
    return _folded("foldr", fn, elems, initializer, True, name)


def scan(
    fn: Function,
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Any:
    """All that `foldl` accumulates on its way, stacked, one for each row.

    Args:
        fn: as for `foldl`, and so is what is not listed here.
        reverse: whether to go from the last row to the first; results stay with their rows.

    Raises:
        TypeError: `fn` cannot be called.
    """
    del parallel_iterations, back_prop, swap_memory, infer_shape
    with name_scope(name, "scan", nest.flatten(elems)) as scope:
        fold = _Fold(fn, elems, initializer)

        def kernel(step: Any, *values: Any) -> Any:
            states = list(fold.states(step, values, reverse))
            states = states[1:] if fold.has_first else states
            return _stacked(states[::-1] if reverse else states, fold.outputs)

        outputs = [
            (one.dtype, TensorShape([fold.rows.length]).concatenate(one.shape))
            for one in fold.outputs
        ]
        made = default_graph.op(
            "scan", fold.inputs, outputs, kernel, name=scope, waits=fold.body.waits
        )
        return nest.pack_sequence_as(fold.structure, made.outputs)
