"""`switch` and `merge`, on which `tf.cond` stood and which copied sources call themselves.

In TensorFlow the side of a switch that is not chosen is dead, and so is all that is made of it.
Here a merge finds, when it is built, what lies between it and the switches; when it runs, it runs
that for the side that is alive, and nothing else of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import op
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.building import invalid

__all__ = ("Merge", "Switch", "merge", "switch")

_SWITCH = "Switch"


class Switch(NamedTuple):
    """The two sides of a switch.

    Attributes:
        output_false: the data, alive where the predicate is false.
        output_true: the data, alive where it is true.
    """

    output_false: Tensor
    output_true: Tensor


class Merge(NamedTuple):
    """What a merge has.

    Attributes:
        output: the value of the input that is alive.
        value_index: which one that is, an int32 scalar.
    """

    output: Tensor
    value_index: Tensor


def switch(data: Any, pred: Any, dtype: Any = None, name: str | None = None) -> Switch:
    """The same data twice; in each run a predicate decides which one is alive.

    Args:
        data: a tensor or a value.
        pred: a bool scalar.
        dtype: of the data, if it is no tensor yet.
        name: of the scope.

    Raises:
        TypeError: `pred` is no bool.
    """
    with name_scope(name, _SWITCH, [data, pred]) as scope:
        tensor = convert_to_tensor(data, dtype, name="data")
        condition = convert_to_tensor(pred, name="pred")
        if condition.dtype is not dtypes.bool:
            raise TypeError(
                f"Input 'pred' of 'Switch' Op has type {condition.dtype.name} that does not match"
                " expected type of bool."
            )
        return Switch(
            _side(tensor, condition, False, scope), _side(tensor, condition, True, "true")
        )


def _side(data: Tensor, pred: Tensor, side: bool, name: str) -> Tensor:
    def kernel(step: Any, value: Any, chosen: Any) -> Any:
        if bool(chosen) is not side:
            raise invalid("Retval[0] does not have value")
        return value

    inputs, kinds = [data, pred], [(data.dtype, data.shape)]
    return op(_SWITCH, inputs, kinds, kernel, name=name, attrs={"side": side}).outputs[0]


def merge(inputs: Sequence[Any], name: str | None = None) -> Merge:
    """The first of some tensors that is alive: not made of the side of a switch that is not chosen.

    Args:
        inputs: tensors or values of one dtype.
        name: of the scope.

    Raises:
        ValueError: there are no inputs, or one is None.
        TypeError: their dtypes differ.
        InvalidArgumentError: in a run, none is alive.
    """
    if not inputs:
        raise ValueError("List argument 'inputs' to 'Merge' Op with length 0 shorter than 1.")
    if any(one is None for one in inputs):
        raise ValueError(f"At least one of the merge inputs is None: {inputs}")
    with name_scope(name, "Merge", inputs) as scope:
        tensors = [convert_to_tensor(one) for one in inputs]
        kinds = [one.dtype for one in tensors]
        if any(one is not kinds[0] for one in kinds):
            names = ", ".join(one.name for one in kinds)
            raise TypeError(
                "Tensors in list passed to 'inputs' of 'Merge' Op have types"
                f" [{names}] that don't all match."
            )
        sides = [_Side(one) for one in tensors]
        given = list(dict.fromkeys(one for side in sides for one in side.needed))
        places = {tensor: place for place, tensor in enumerate(given)}

        def kernel(step: Any, *values: Any) -> Any:
            for index, side in enumerate(sides):
                found = side.run(step, [values[places[one]] for one in side.needed])
                if found is not None:
                    return found[0], np.int32(index)
            raise invalid("Retval[0] does not have value")

        shapes = [(kinds[0], _common_shape(tensors)), (dtypes.int32, TensorShape(()))]
        waits = any(side.waits for side in sides)
        attrs = {"scoped": False}
        made = op("Merge", given, shapes, kernel, name=scope, waits=waits, attrs=attrs)
        return Merge(*made.outputs)


def _common_shape(tensors: Sequence[Tensor]) -> TensorShape:
    shape = tensors[0].shape
    for one in tensors[1:]:
        shape = shape.most_general_compatible_shape(one.shape)
    return shape


class _Side:
    """One input of a merge, with what lies between it and the switches that it is made of.

    Attributes:
        needed: the tensors whose values it needs when it runs: of each switch the predicate and
            the data, and what the operations between use besides.
        waits: whether an operation between may have to wait.
    """

    def __init__(self, output: Tensor) -> None:
        self._output = output
        between = _made_of_switches(output.op)
        self._switched: list[Tensor] = []
        besides: list[Tensor] = []
        for one in [output, *(tensor for made in between for tensor in made.inputs)]:
            if one.op.type == _SWITCH:
                self._switched.append(one)
            elif one.op not in between:
                besides.append(one)
        self._switched = list(dict.fromkeys(self._switched))
        self._besides = list(dict.fromkeys(besides))
        preds = [one.op.inputs[1] for one in self._switched]
        self.needed = [*preds, *(one.op.inputs[0] for one in self._switched), *self._besides]
        self.waits = any(one.waits for one in between)

    def run(self, step: Any, values: Sequence[Any]) -> list[Any] | None:
        """Its value, in a list; None if it is dead."""
        count = len(self._switched)
        for one, chosen in zip(self._switched, values[:count], strict=True):
            if bool(chosen) is not one.op.attrs["side"]:
                return None
        given = [*self._switched, *self._besides]
        found: list[Any] = step.run_body([self._output], given, values[count:])
        return found


def _made_of_switches(last: Operation) -> set[Operation]:
    """The operations between the switches and the last one, that one included.

    Depth first, without recursion; an operation is decided on after those before it.
    """
    depends: dict[Operation, bool] = {}
    path = [last]
    while path:
        current = path[-1]
        makers = [one.op for one in current.inputs]
        undecided = [] if current.type == _SWITCH else [one for one in makers if one not in depends]
        if undecided:
            path.extend(undecided)
            continue
        path.pop()
        depends[current] = current.type == _SWITCH or any(depends[one] for one in makers)
    return {one for one, is_made in depends.items() if is_made and one.type != _SWITCH}
