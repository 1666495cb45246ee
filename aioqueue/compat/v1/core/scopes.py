"""Scopes and collections of the default graph, seeds, and switches between ways of working."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.graph import Graph, Operation, Tensor
from aioqueue.core.elements.philox import DEFAULT_GRAPH_SEED

__all__ = (
    "GraphKeys", "add_to_collection", "add_to_collections", "colocate_with", "container",
    "control_dependencies", "device", "disable_control_flow_v2", "disable_eager_execution",
    "disable_resource_variables", "disable_tensor_equality", "disable_v2_behavior",
    "disable_v2_tensorshape", "enable_resource_variables", "executing_eagerly", "get_collection",
    "get_collection_ref", "get_seed", "init_scope", "name_scope", "op_scope", "set_random_seed",
)  # fmt: skip


def executing_eagerly() -> bool:
    """False: operations are deferred until a session runs them."""
    return False


def disable_v2_behavior() -> None:
    """Accepted and without effect: there is one way of working here, that of version 1."""


disable_control_flow_v2 = disable_v2_behavior
disable_eager_execution = disable_v2_behavior
disable_resource_variables = disable_v2_behavior
disable_tensor_equality = disable_v2_behavior
disable_v2_tensorshape = disable_v2_behavior
enable_resource_variables = disable_v2_behavior


class GraphKeys:
    """The names of the collections that are known by name."""

    GLOBAL_VARIABLES = "variables"
    VARIABLES = "variables"
    LOCAL_VARIABLES = "local_variables"
    METRIC_VARIABLES = "metric_variables"
    MODEL_VARIABLES = "model_variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"
    SUMMARIES = "summaries"
    QUEUE_RUNNERS = "queue_runners"
    TABLE_INITIALIZERS = "table_initializer"
    ASSET_FILEPATHS = "asset_filepaths"
    REGULARIZATION_LOSSES = "regularization_losses"
    LOSSES = "losses"
    WEIGHTS = "weights"
    BIASES = "biases"
    ACTIVATIONS = "activations"
    CONCATENATED_VARIABLES = "concatenated_variables"
    SAVERS = "savers"
    UPDATE_OPS = "update_ops"
    TRAIN_OP = "train_op"
    GLOBAL_STEP = "global_step"
    EVAL_STEP = "eval_step"
    COND_CONTEXT = "cond_context"
    WHILE_CONTEXT = "while_context"
    INIT_OP = "init_op"
    LOCAL_INIT_OP = "local_init_op"
    READY_OP = "ready_op"
    READY_FOR_LOCAL_INIT_OP = "ready_for_local_init_op"
    SUMMARY_OP = "summary_op"
    SAVEABLE_OBJECTS = "saveable_objects"
    RESOURCES = "resources"
    LOCAL_RESOURCES = "local_resources"


class name_scope:  # noqa: N801  # TensorFlow's name
    """Names of operations made within the block begin with `name`, in the graph of `values`."""

    def __init__(
        self, name: str | None, default_name: str | None = None, values: Iterable[Any] | None = None
    ) -> None:
        for what, given in (("name", name), ("default_name", default_name)):
            if given is not None and not isinstance(given, str):
                raise TypeError(
                    f"`{what}` type ({type(given)}) is not a string type. You likely meant to pass "
                    "this into the `values` kwarg."
                )
        if name is None and default_name is None and values is not None:
            raise ValueError(
                "At least one of name (None) and default_name (None) must be provided."
            )
        self._name = default_name if name is None else name
        self._values = list(values or ())
        self._entered: list[ExitStack] = []

    @property
    def name(self) -> str | None:
        """The name that was asked for."""
        return self._name

    def __enter__(self) -> str:
        graph = next(
            (one.graph for one in self._values if isinstance(one, Tensor | Operation)),
            get_default_graph(),
        )
        stack = ExitStack()
        stack.enter_context(graph.as_default())
        scope = stack.enter_context(graph.name_scope(self._name))
        self._entered.append(stack)
        return scope

    def __exit__(self, *details: Any) -> None:
        self._entered.pop().__exit__(*details)


def op_scope(
    values: Iterable[Any], name: str | None, default_name: str | None = None
) -> name_scope:
    """`name_scope` with its arguments in the order of old."""
    return name_scope(name, default_name, values)


def control_dependencies(control_inputs: Iterable[Any] | None) -> AbstractContextManager[None]:
    """Operations of the default graph made within the block run after these."""
    return get_default_graph().control_dependencies(control_inputs)


def container(container_name: str) -> AbstractContextManager[str]:
    """What the default graph's operations keep is kept in this container; see `Graph.container`."""
    return get_default_graph().container(container_name)


def device(device_name_or_function: Any) -> AbstractContextManager[None]:
    """Accepted and without effect: there is one device."""
    return get_default_graph().device(device_name_or_function)


def colocate_with(op: Any, ignore_existing: bool = False) -> AbstractContextManager[None]:
    """Accepted and without effect: there is one device."""
    return get_default_graph().colocate_with(op, ignore_existing)


def init_scope() -> AbstractContextManager[None]:
    """Operations made within the block are part of no function body and have no order."""
    return get_default_graph().building_in(None)


def add_to_collection(name: Any, value: Any) -> None:
    """Append `value` to the default graph's collection of that name."""
    get_default_graph().add_to_collection(name, value)


def add_to_collections(names: Any, value: Any) -> None:
    """Append `value` to several of the default graph's collections."""
    get_default_graph().add_to_collections(names, value)


def get_collection(key: Any, scope: str | None = None) -> list[Any]:
    """A copy of the default graph's collection of that name; see `Graph.get_collection`."""
    return get_default_graph().get_collection(key, scope)


def get_collection_ref(key: Any) -> list[Any]:
    """The default graph's collection of that name itself."""
    return get_default_graph().get_collection_ref(key)


def set_random_seed(seed: int | None) -> None:
    """Give the default graph a seed, from which ops made afterwards have theirs."""
    get_default_graph().seed = seed


def get_seed(op_seed: int | None, graph: Graph | None = None) -> tuple[int | None, int | None]:
    """The seeds of a random op made now; None without any: TensorFlow's rule."""
    graph = get_default_graph() if graph is None else graph
    if graph.seed is None and op_seed is None:
        return None, None
    if graph.seed is None:
        graph_seed = DEFAULT_GRAPH_SEED
    else:
        graph_seed = graph.seed
        if op_seed is None:
            op_seed = graph.version
    assert op_seed is not None
    most = 2**31 - 1
    seeds = graph_seed % most, op_seed % most
    # Two zeros would mean "no seed" to the generators.
    return (0, most) if seeds == (0, 0) else seeds
