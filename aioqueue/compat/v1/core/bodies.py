"""Function bodies: operations that run zero, one or many times within one run.

The branches of a ``cond``, the body of a ``while_loop`` and the function of a ``Dataset.map`` are
Python functions, called once to add their operations to the graph. Those operations are part of a
`Body`; what they use from outside is *captured*, and becomes an input of the operation that
owns the body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioqueue.compat.v1.core.graph import Body, Graph

__all__ = ("trace",)


def trace(graph: Graph, function: Callable[[], Any]) -> tuple[Body, Any]:
    """Call `function` so that the operations that it makes are part of a new body."""
    body = Body(graph)
    with graph.as_default(), graph.building_in(body):
        return body, function()
