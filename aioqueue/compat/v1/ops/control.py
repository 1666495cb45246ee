"""Order and grouping: `identity`, `no_op`, `group`, `tuple` and `with_dependencies`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aioqueue.compat.v1.core import nest
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import get_default_graph, op
from aioqueue.compat.v1.core.graph import Graph, Operation, Tensor
from aioqueue.compat.v1.core.scopes import name_scope

__all__ = (
    "group",
    "identity",
    "identity_n",
    "no_op",
    "stop_gradient",
    "tuple",
    "with_dependencies",
)


def _nothing(step: Any) -> None:
    """The kernel of what only has an order."""


def _same(step: Any, value: Any) -> Any:
    return value


def _all_the_same(step: Any, *values: Any) -> Any:
    return values if len(values) > 1 else values[0]


def no_op(name: str | None = None) -> Operation:
    """An operation that does nothing: something to have control dependencies on.

    Args:
        name: of the operation.
    """
    return get_default_graph().create_op("NoOp", (), (), _nothing, name=name)


def identity(input: Any, name: str | None = None) -> Tensor:
    """A tensor with the value of another one.

    Within ``with tf.control_dependencies(...)`` it has that value after something else.

    Args:
        input: a tensor, a variable or a value.
        name: of the operation.
    """
    return _identity("Identity", input, name)


def stop_gradient(input: Any, name: str | None = None) -> Tensor:
    """The same as `identity`, here, where there are no gradients.

    Args:
        input: a tensor, a variable or a value.
        name: of the operation.
    """
    return _identity("StopGradient", input, name)


def _identity(op_type: str, input: Any, name: str | None) -> Tensor:
    with name_scope(name, op_type) as scope:
        tensor = convert_to_tensor(input, name="input")
        outputs = [(tensor.dtype, tensor.shape)]
        return op(op_type, [tensor], outputs, _same, name=scope).outputs[0]


def identity_n(input: Sequence[Any], name: str | None = None) -> list[Tensor]:
    """Tensors with the values of others, all of them there before any is used.

    Args:
        input: tensors, variables or values.
        name: of the operation.
    """
    tensors = [convert_to_tensor(one) for one in input]
    outputs = [(one.dtype, one.shape) for one in tensors]
    return op("IdentityN", tensors, outputs, _all_the_same, name=name).outputs


def group(*inputs: Any, name: str | None = None) -> Operation:
    """An operation that has run when all of these have.

    Args:
        inputs: operations, tensors, variables, or nested lists of them.
        name: of the operation.

    Raises:
        TypeError: something else is among them.
    """
    elements = [_element(one) for one in nest.flatten(inputs)]
    graph = elements[0].graph if elements else get_default_graph()
    return _group(graph, elements, "group_deps" if name is None else name)


def _group(graph: Graph, elements: Iterable[Tensor | Operation], name: str) -> Operation:
    with graph.control_dependencies(elements):
        return graph.create_op("NoOp", (), (), _nothing, name=name)


def _element(thing: Any) -> Tensor | Operation:
    convert = getattr(thing, "_as_graph_element", None)
    element = thing if convert is None else convert()
    if not isinstance(element, Tensor | Operation):
        raise TypeError(
            f"'inputs' should be zero or more (nested) Tensors. Received '{thing}' with type "
            f"'{type(thing)}'."
        )
    return element


def tuple(
    tensors: Sequence[Any], name: str | None = None, control_inputs: Iterable[Any] | None = None
) -> list[Tensor | None]:
    """Tensors that have their values when all of these have been computed.

    Args:
        tensors: tensors, variables or operations; None stays None.
        name: of the scope.
        control_inputs: what else must have run.

    Raises:
        ValueError: there is no tensor among them.
    """
    with name_scope(name, "tuple", [one for one in tensors if isinstance(one, Tensor)]):
        given = [None if one is None else _element(one) for one in tensors]
        elements = [one for one in given if one is not None]
        if not elements:
            raise ValueError(f"Must have at least one Tensor: {tensors}")
        gate = group(*elements, *(control_inputs or ()))
        return [
            with_dependencies([gate], one) if isinstance(one, Tensor) else None for one in given
        ]


def with_dependencies(
    dependencies: Iterable[Any], output_tensor: Any, name: str | None = None
) -> Tensor:
    """The value of a tensor, after something else has run.

    Args:
        dependencies: operations or tensors that come first.
        output_tensor: the tensor.
        name: of the operation.
    """
    tensor = convert_to_tensor(output_tensor)
    with (
        name_scope(name, "control_dependency", [tensor]) as scope,
        tensor.graph.control_dependencies(dependencies),
    ):
        return identity(tensor, name=scope)
