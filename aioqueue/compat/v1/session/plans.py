"""Plans: which operations a run needs, in which order, and where their values go in a list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from aioqueue.compat.v1.core.graph import Kernel, Operation, Tensor


class Node:
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
        if self.output >= 0:
            values[self.output] = result
        elif self.outputs:
            for index, place in self.outputs:
                values[place] = result[index]


class Plan:
    """What to do for some fetches, given values for some tensors."""

    __slots__ = ("concurrent", "feeds", "fetches", "last", "nodes", "template")

    def __init__(
        self,
        nodes: Sequence[Node],
        template: Sequence[Any],
        feeds: Sequence[int],
        fetches: Sequence[int],
        concurrent: bool,
        last: Sequence[Node] = (),
    ) -> None:
        self.nodes: tuple[Node, ...] = (*nodes, *(() if concurrent else last))
        self.template: list[Any] = list(template)
        self.feeds: tuple[int, ...] = tuple(feeds)
        self.fetches: tuple[int, ...] = tuple(fetches)
        self.concurrent: bool = concurrent
        self.last: tuple[Node, ...] = tuple(last) if concurrent else ()


def compile_plan(fetches: Iterable[Tensor | Operation], fed: Sequence[Tensor]) -> Plan:
    fetches = list(fetches)
    planner = _Planner(fed)
    for one in fetches:
        planner.need(one)
    return planner.plan(fetches)


def _add(nodes: list[Node], node: Node, needed: Iterable[int]) -> int:
    for one in needed:
        nodes[one].followers.append(len(nodes))
        node.needs += 1
    nodes.append(node)
    return len(nodes) - 1


_VIEWS: Final = frozenset({"Identity", "StopGradient", "Reshape", "ExpandDims", "Squeeze"})
"""Operations whose output is the memory of their first input in TensorFlow."""


class _Alias(NamedTuple):
    """A tensor that is the memory of a variable, in TensorFlow."""

    variable: Operation
    views: tuple[Operation, ...]
    """What makes the tensor of the variable, in order, apart from identities."""
    is_assignment: bool
    """Whether it is what an assignment returns, or a view of that."""


def _changed_by(operation: Operation) -> Operation | None:
    """The variable that an operation changes; None if it changes none."""
    variable: Operation | None = operation.attrs.get("variable_op")
    return variable


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
        self._changes: Counter[Operation] = Counter()  # how often the plan changes a variable

    def _place(self, tensor: Tensor) -> int:
        place = self._places.get(tensor)
        if place is None:
            place = self._places[tensor] = len(self._template)
            self._template.append(None)
        return place

    def _before(self, operation: Operation) -> list[Operation]:
        makers = [one.op for one in operation.inputs if one not in self._given]
        return [one for one in (*operation.control_inputs, *makers) if one not in self._replaced]

    def need(self, element: Tensor | Operation) -> None:
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
        ends = {one: alias for one in fetches if (alias := self._read_at_the_end(one)) is not None}
        needed = {one for operation in operations for one in self._before(operation)}
        needed.update(one.op for one in fetches if isinstance(one, Tensor) and one not in ends)
        needed.update(one for one in fetches if isinstance(one, Operation))
        for one in fetches:
            if isinstance(one, Tensor):
                self._place(one)
        for operation in operations:
            for tensor in operation.inputs:
                self._place(tensor)
        nodes: list[Node] = []
        numbers: dict[Operation, int] = {}
        for operation in operations:
            if operation.type == "Const" and not operation.control_inputs:
                tensor = operation.values()[0]
                if tensor in self._places and tensor not in self._given:
                    self._template[self._places[tensor]] = operation.attrs["value"]
                continue
            if operation.type == "VariableV2" and operation not in needed:
                continue  # it is read at the end
            before = dict.fromkeys(self._before(operation))
            needs = [numbers[one] for one in before if one in numbers]  # constants are not
            places = {one: self._places[one] for one in operation.inputs}
            reads: list[int] = []
            for tensor, alias in self._read_anew(operation).items():
                chain, places[tensor] = self._read(alias)
                for number, node in enumerate(chain):
                    reads.append(_add(nodes, node, [*needs, *reads[-1:]] if number else needs))
            node = self._node(operation, [places[one] for one in operation.inputs])
            numbers[operation] = _add(nodes, node, [*needs, *reads])
        last: list[Node] = []
        found: list[int] = []
        for one in fetches:
            place = self._places[one] if isinstance(one, Tensor) else -1
            if one in ends:
                chain, place = self._read(ends[one])
                last += chain
            found.append(place)
        return Plan(
            nodes, self._template, [self._places[one] for one in self._fed], found, concurrent, last
        )

    def _node(self, operation: Operation, inputs: Sequence[int]) -> Node:
        wanted = [
            -1 if one in self._given else self._places.get(one, -1) for one in operation.values()
        ]
        return Node(operation, inputs, wanted)

    # Variables. TensorFlow hands their memory around. So an assignment changes what was read before
    # it, until an operation computes something of that. What a run fetches of a variable is what
    # the variable is at the end of the run.

    def _alias(self, tensor: Tensor) -> _Alias | None:
        """The variable whose memory a tensor is; None if it is a value of its own."""
        views: list[Operation] = []
        while tensor not in self._given:
            made = tensor.op
            changed = _changed_by(made)
            if changed is not None:
                is_value = made.type == "CountUpTo"  # which returns what the variable was
                return None if is_value else _Alias(changed, tuple(reversed(views)), True)
            variable = made if made.type == "VariableV2" else made.attrs.get("read_of")
            if variable is not None:
                return _Alias(variable, tuple(reversed(views)), False)
            if made.type not in _VIEWS or not made.inputs:
                return None
            tensor = made.inputs[0]
            if len(made.inputs) > 1 or made.type == "Squeeze":
                views.append(made)
        return None

    def _read_at_the_end(self, fetch: Tensor | Operation) -> _Alias | None:
        """What a fetched tensor is read from when all else has run; None if it is a value."""
        alias = self._alias(fetch) if isinstance(fetch, Tensor) else None
        if alias is None or (alias.is_assignment and self._changes[alias.variable] < 2):
            # Runs in several threads that fetch an increment get different numbers.
            return None
        return alias

    def _read_anew(self, operation: Operation) -> dict[Tensor, _Alias]:
        """Which inputs an operation must read from a variable itself, since the run changes it."""
        if not self._changes or operation.type in _VIEWS:
            return {}
        found = {}
        for tensor in dict.fromkeys(operation.inputs):
            alias = self._alias(tensor)
            if alias is not None and self._changes[alias.variable] > alias.is_assignment:
                found[tensor] = alias
        return found

    def _read(self, alias: _Alias) -> tuple[list[Node], int]:
        """Nodes that read a variable once more, and the place where the result goes."""
        chain: list[Node] = []
        place = self._new_place()
        chain.append(Node(alias.variable, (), [place]))
        for view in alias.views:
            inputs = [place, *(self._places[one] for one in view.inputs[1:])]
            place = self._new_place()
            chain.append(Node(view, inputs, [place]))
        return chain, place

    def _new_place(self) -> int:
        self._template.append(None)
        return len(self._template) - 1

    def _arranged(self) -> tuple[list[Operation], bool]:
        """The order, less waiting first; and whether two that wait are independent.

        Of those that wait equally long, assignments come last: in TensorFlow they race, and end so.
        """
        waiting: dict[Operation, int] = {}
        depths: dict[Operation, tuple[int, int]] = {}  # what waits, and what assigns, before it
        above: dict[Operation, int] = {}  # the waiting ones that must come before, as bits
        concurrent = False
        for operation in self._order:
            before = self._before(operation)
            bits = 0
            for one in before:
                bits |= above[one]
            depth = max((depths[one][0] for one in before), default=0)
            changes = max((depths[one][1] for one in before), default=0)
            if operation.waits:
                concurrent = concurrent or bits.bit_count() < len(waiting)
                waiting[operation] = len(waiting)
                bits |= 1 << waiting[operation]
                depth += 1
            variable = _changed_by(operation)
            if variable is not None:
                self._changes[variable] += 1
                changes += 1
            above[operation], depths[operation] = bits, (depth, changes)
        return sorted(self._order, key=depths.__getitem__), concurrent
