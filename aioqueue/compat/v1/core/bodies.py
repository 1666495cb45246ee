"""Function bodies: operations that run zero, one or many times within one run.

The branches of a ``cond``, the body of a ``while_loop`` and the function of a ``Dataset.map`` are
Python functions, called once to add their operations to the graph. Those operations are part of a
`Body`; what they use from outside is *captured*, and becomes an input of the operation that
owns the body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aioqueue.compat.v1.core.graph import Graph, Operation, Tensor

__all__ = ("Body", "trace")


class Body:
    """The operations of a function that was traced, and what they take from outside.

    Attributes:
        graph: the graph that they are part of.
        outer: the body around this one, if there is one.
        captures: the tensors from outside that they use, in the order of first use.
        controls: the operations from outside that must run before any of them.
        operations: themselves.
        outputs: the tensors and operations that the function returned, flattened by who traced it.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outer = graph.body
        self.captures: dict[Tensor, None] = {}
        self.controls: dict[Operation, None] = {}
        self.operations: list[Operation] = []
        self.outputs: list[Tensor | Operation] = []

    @property
    def waits(self) -> bool:
        """Whether running it may block."""
        return any(one.waits for one in self.operations)

    def admit(self, inputs: Sequence[Tensor], controls: Sequence[Operation]) -> list[Operation]:
        """Note what a new operation of this body takes from outside.

        Returns:
            Those of its control inputs that are part of the body.
        """
        for one in inputs:
            self.capture(one)
        inside = []
        for control in controls:
            if control.body is self:
                inside.append(control)
            else:
                self._check_is_visible(control)
                self.controls[control] = None
        return inside

    def capture(self, tensor: Tensor) -> None:
        """Note that `tensor` is used here, if it comes from outside."""
        if tensor.op.body is not self:
            self._check_is_visible(tensor.op)
            self.captures[tensor] = None

    def _check_is_visible(self, operation: Operation) -> None:
        around = self.outer
        while around is not None and around is not operation.body:
            around = around.outer
        if around is not operation.body:
            raise ValueError(
                f"Operation '{operation.name}' is part of another function body (a branch of a "
                "cond, a loop, a mapped function) and has no value outside of it"
            )


def trace(graph: Graph, function: Callable[[], Any]) -> tuple[Body, Any]:
    """Call `function` so that the operations that it makes are part of a new body.

    Args:
        graph: to which they are added.
        function: called once; placeholders that it makes are the body's arguments.

    Returns:
        The body and what `function` returned.
    """
    body = Body(graph)
    with graph.as_default(), graph.building_in(body):
        return body, function()
