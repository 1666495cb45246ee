"""The global step: one counter per graph, which training loops and hooks share."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import constant
from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.graph import Graph
from aioqueue.compat.v1.core.scopes import GraphKeys
from aioqueue.compat.v1.ops.variables import Variable

__all__ = (
    "assert_global_step",
    "create_global_step",
    "get_global_step",
    "get_or_create_global_step",
    "global_step",
)


def get_global_step(graph: Graph | None = None) -> Any:
    """The global step of a graph; None if it has none.

    Args:
        graph: the graph; None for the default one.

    Raises:
        TypeError: what is in its collection, or has its name, is no integer scalar.
    """
    graph = get_default_graph() if graph is None else graph
    found = graph.get_collection(GraphKeys.GLOBAL_STEP)
    if len(found) != 1:
        by_name = [
            one
            for one in graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
            if one.name == "global_step:0"
        ]
        if not by_name:
            return None
        found = by_name
    assert_global_step(found[0])
    return found[0]


def create_global_step(graph: Graph | None = None) -> Any:
    """Make the global step of a graph: an int64 variable, 0 at first.

    Args:
        graph: the graph; None for the default one.

    Raises:
        ValueError: it has one.
    """
    graph = get_default_graph() if graph is None else graph
    if get_global_step(graph) is not None:
        raise ValueError('"global_step" already exists.')
    with graph.as_default(), graph.name_scope(None):
        return Variable(
            lambda: constant(np.int64(0), name="zeros"),
            trainable=False,
            name=GraphKeys.GLOBAL_STEP,
            collections=[GraphKeys.GLOBAL_VARIABLES, GraphKeys.GLOBAL_STEP],
        )


def get_or_create_global_step(graph: Graph | None = None) -> Any:
    """The global step of a graph, made if it has none.

    Args:
        graph: the graph; None for the default one.
    """
    found = get_global_step(graph)
    return create_global_step(graph) if found is None else found


def global_step(sess: Any, global_step_tensor: Any) -> int:
    """The number of steps taken in a session.

    Args:
        sess: the session.
        global_step_tensor: the global step.
    """
    return int(sess.run(global_step_tensor))


def assert_global_step(global_step_tensor: Any) -> None:
    """Raise TypeError unless it is an integer scalar, a variable or a tensor."""
    if not hasattr(global_step_tensor, "dtype") or not hasattr(global_step_tensor, "shape"):
        raise TypeError(
            f'Existing "global_step" must be a Variable or Tensor: {global_step_tensor}.'
        )
    if global_step_tensor.dtype not in (dtypes.int32, dtypes.int64):
        raise TypeError(
            f'Existing "global_step" does not have integer type: {global_step_tensor.dtype}'
        )
    if global_step_tensor.shape.ndims not in (None, 0):
        raise TypeError(f'Existing "global_step" is not scalar: {global_step_tensor.shape}')
