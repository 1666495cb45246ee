"""The graph that operations are added to when none is named."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Graph, Kernel, Operation, Tensor, default_graphs
from aioqueue.compat.v1.core.shapes import TensorShape

__all__ = ("get_default_graph", "reset_default_graph")


class _Bottom(threading.local):
    """The graph below all that a thread has made the default, made when it is first needed."""

    def __init__(self) -> None:
        self.graph: Graph | None = None


_bottom = _Bottom()


def get_default_graph() -> Graph:
    """The graph that operations are added to: the innermost ``as_default()``, else the thread's."""
    top: Graph | None = default_graphs.top()
    if top is not None:
        return top
    if _bottom.graph is None:
        _bottom.graph = Graph()
    return _bottom.graph


def reset_default_graph() -> None:
    """Begin the thread's default graph anew."""
    if len(default_graphs):
        raise AssertionError(
            "Do not use tf.reset_default_graph() to clear nested graphs. If you need a cleared "
            "graph, exit the nesting and create a new graph."
        )
    _bottom.graph = None


def graph_of(inputs: Sequence[Tensor]) -> Graph:
    """The graph that an operation with these inputs belongs to."""
    if not inputs:
        return get_default_graph()
    first = inputs[0]
    for one in inputs:
        if one.graph is not first.graph:
            raise ValueError(f"{one} must be from the same graph as {first}.")
    return first.graph


def op(
    op_type: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[tuple[DType, TensorShape]],
    kernel: Kernel,
    *,
    name: str | None = None,
    waits: bool = False,
    attrs: Mapping[str, Any] | None = None,
) -> Operation:
    """Add an operation to the graph of its inputs, or the default one; see `Graph.create_op`."""
    return graph_of(inputs).create_op(
        op_type, inputs, outputs, kernel, name=name, waits=waits, attrs=attrs
    )
