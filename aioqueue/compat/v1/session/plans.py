"""Plans: which operations a run needs, in which order, and where their values go.

A plan is made once for some fetches and some fed tensors, and used for every run that asks for the
same. It numbers the tensors; a run's values are a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.kernels import Kernel

__all__ = ("Node", "Plan", "compile_plan")


class Node:
    """One operation in a plan.

    Attributes:
        op: the operation.
        kernel: what computes its outputs.
        try_now: the kernel that answers `WOULD_WAIT` instead of blocking, or None.
        waits: whether the kernel may block.
        scoped: whether it is to block within the step's scope, where cancelling reaches it; if not,
            the kernel looks after that itself.
        inputs: the places of the inputs' values.
        output: where the only output goes; -1 if there are no outputs, or several.
        outputs: which of several outputs are wanted, and where they go.
        needs: how many nodes must have run before this one.
        followers: the nodes that wait for this one, by number.
    """

    __slots__ = (
        "followers", "inputs", "kernel", "needs", "op", "output", "outputs", "scoped", "try_now",
        "waits",
    )  # fmt: skip

    def __init__(self, op: Operation, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.op: Operation = op
        self.kernel: Kernel = op.kernel
        self.try_now: Kernel | None = op.attrs.get("try_now") if op.waits else None
        self.waits: bool = op.waits
        self.scoped: bool = bool(op.attrs.get("scoped", True))
        self.inputs: tuple[int, ...] = tuple(inputs)
        self.output: int = outputs[0] if len(outputs) == 1 else -1
        wanted = [pair for pair in enumerate(outputs) if pair[1] >= 0]
        self.outputs: tuple[tuple[int, int], ...] | tuple[()] = (
            tuple(wanted) if len(outputs) > 1 else ()
        )
        self.needs: int = 0
        self.followers: list[int] = []

    def store(self, result: Any, values: list[Any]) -> None:
        """Put what the kernel returned into its places."""
        if self.output >= 0:
            values[self.output] = result
        elif self.outputs:
            for index, place in self.outputs:
                values[place] = result[index]


class Plan:
    """What to do for some fetches, given values for some tensors.

    Attributes:
        nodes: the operations, in an order that is allowed; those that need not wait for any
            blocking one come first.
        template: the values before anything runs: constants, and room for the rest.
        feeds: the places of the fed values, in the order of the fed tensors.
        fetches: the places of the fetched values; -1 for an operation.
        concurrent: whether two operations that may block do not depend on each other.
    """

    __slots__ = ("concurrent", "feeds", "fetches", "nodes", "template")

    def __init__(
        self,
        nodes: Sequence[Node],
        template: Sequence[Any],
        feeds: Sequence[int],
        fetches: Sequence[int],
        concurrent: bool,
    ) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)
        self.template: list[Any] = list(template)
        self.feeds: tuple[int, ...] = tuple(feeds)
        self.fetches: tuple[int, ...] = tuple(fetches)
        self.concurrent: bool = concurrent


def compile_plan(fetches: Iterable[Tensor | Operation], fed: Sequence[Tensor]) -> Plan:
    """The plan for these fetches when these tensors are fed.

    Args:
        fetches: what is wanted.
        fed: the tensors whose values each run brings along; the operations that make them do not
            run, unless something else needs them.
    """
    fetches = list(fetches)
    planner = _Planner(fed)
    for one in fetches:
        planner.need(one)
    return planner.plan(fetches)


def _add(nodes: list[Node], node: Node, needed: Iterable[int]) -> int:
    """Add a node that needs others, by number; return its own."""
    for one in needed:
        nodes[one].followers.append(len(nodes))
        node.needs += 1
    nodes.append(node)
    return len(nodes) - 1


def _variable_of(tensor: Tensor) -> Operation | None:
    """The variable whose value a tensor is, as that is read once per run."""
    made = tensor.op
    if made.type == "Identity" and not made.control_inputs and made.inputs:
        made = made.inputs[0].op
    return made if made.type == "VariableV2" else None


class _Planner:
    def __init__(self, fed: Sequence[Tensor]) -> None:
        self._fed = fed
        self._places: dict[Tensor, int] = {}
        self._template: list[Any] = []
        self._order: dict[Operation, None] = {}
        self._replaced = {one.op for one in fed if one.op.type.startswith("Placeholder")}
        for one in fed:
            self._place(one)
        self._given = set(self._places)

    def _place(self, tensor: Tensor) -> int:
        place = self._places.get(tensor)
        if place is None:
            place = self._places[tensor] = len(self._template)
            self._template.append(None)
        return place

    def _before(self, operation: Operation) -> list[Operation]:
        """What must have run first, control inputs first.

        In that order a variable that is read by name after an assignment is read after it.
        """
        makers = [one.op for one in operation.inputs if one not in self._given]
        return [one for one in (*operation.control_inputs, *makers) if one not in self._replaced]

    def need(self, element: Tensor | Operation) -> None:
        """Put what makes `element`, and all that it needs, into the order."""
        if isinstance(element, Tensor):
            if element in self._given:
                return
            element = element.op
        if element in self._order or element in self._replaced:
            return
        # Depth first, without recursion: graphs made by loops are deep.
        path = [(element, iter(self._before(element)))]
        while path:
            operation, rest = path[-1]
            following = next((one for one in rest if one not in self._order), None)
            if following is None:
                path.pop()
                self._order[operation] = None
            else:
                path.append((following, iter(self._before(following))))

    def plan(self, fetches: Sequence[Tensor | Operation]) -> Plan:
        """The plan, once everything needed is in the order."""
        operations, concurrent = self._arranged()
        for one in fetches:
            if isinstance(one, Tensor):
                self._place(one)
        for operation in operations:
            for tensor in operation.inputs:
                self._place(tensor)
        nodes: list[Node] = []
        numbers: dict[Operation, int] = {}
        read_anew = self._read_anew()
        for operation in operations:
            if operation.type == "Const" and not operation.control_inputs:
                tensor = operation.values()[0]
                if tensor in self._places and tensor not in self._given:
                    self._template[self._places[tensor]] = operation.attrs["value"]
                continue
            before = dict.fromkeys(self._before(operation))
            needed = [numbers[one] for one in before if one in numbers]  # constants are not
            places = {one: self._places[one] for one in operation.inputs}
            reads = []
            for tensor, variable in read_anew.get(operation, {}).items():
                places[tensor] = len(self._template)
                self._template.append(None)
                reads.append(_add(nodes, Node(variable, (), [places[tensor]]), needed))
            node = self._node(operation, [places[one] for one in operation.inputs])
            numbers[operation] = _add(nodes, node, [*needed, *reads])
        return Plan(
            nodes,
            self._template,
            [self._places[one] for one in self._fed],
            [self._places[one] if isinstance(one, Tensor) else -1 for one in fetches],
            concurrent,
        )

    def _node(self, operation: Operation, inputs: Sequence[int]) -> Node:
        wanted = [
            -1 if one in self._given else self._places.get(one, -1) for one in operation.values()
        ]
        return Node(operation, inputs, wanted)

    def _read_anew(self) -> dict[Operation, dict[Tensor, Operation]]:
        """Which of their inputs operations must read from a variable itself, and from which one.

        TensorFlow hands the memory of a variable around. So who runs after an assignment finds the
        new value there, though the operation that reads the variable has run before.
        """
        above: dict[Operation, frozenset[Operation]] = {}  # the variables assigned to before
        found: dict[Operation, dict[Tensor, Operation]] = {}
        for operation in self._order:
            assigned: frozenset[Operation] = frozenset()
            for one in self._before(operation):
                assigned |= above[one]
            reads = {
                tensor: variable
                for tensor in operation.inputs
                if tensor not in self._given and (variable := _variable_of(tensor)) in assigned
            }
            if reads:
                found[operation] = reads
            variable = operation.attrs.get("variable_op")
            above[operation] = assigned if variable is None else assigned | {variable}
        return found

    def _arranged(self) -> tuple[list[Operation], bool]:
        """The order, less waiting first; and whether two that wait are independent."""
        waiting: dict[Operation, int] = {}
        depths: dict[Operation, int] = {}
        above: dict[Operation, int] = {}  # the waiting ones that must come before, as bits
        concurrent = False
        for operation in self._order:
            before = self._before(operation)
            bits = 0
            for one in before:
                bits |= above[one]
            depth = max((depths[one] for one in before), default=0)
            if operation.waits:
                concurrent = concurrent or bits.bit_count() < len(waiting)
                waiting[operation] = len(waiting)
                bits |= 1 << waiting[operation]
                depth += 1
            above[operation], depths[operation] = bits, depth
        for operation in self._variables_read_by_nobody():
            depths[operation] = len(depths) + 1
        return sorted(self._order, key=depths.__getitem__), concurrent

    def _variables_read_by_nobody(self) -> list[Operation]:
        """Variables that are only fetched: a run returns what they are at its end."""
        read = {one.op for operation in self._order for one in operation.inputs}
        return [one for one in self._order if one.type == "VariableV2" and one not in read]
