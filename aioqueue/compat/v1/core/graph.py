"""Graphs of deferred operations: `Graph`, the default one, and `op`, which adds to it.

Nothing here computes. Names are made as TensorFlow makes them, because scripts and error messages
use them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aioqueue.compat.v1.core.defaults import DefaultStack
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.operations import WOULD_WAIT, Kernel, NodeDef, Operation, Tensor
from aioqueue.compat.v1.core.shapes import TensorShape

if TYPE_CHECKING:
    from aioqueue.compat.v1.core.bodies import Body

__all__ = (
    "WOULD_WAIT",
    "Graph",
    "Kernel",
    "NodeDef",
    "Operation",
    "Tensor",
    "default_graphs",
    "get_default_graph",
    "graph_of",
    "op",
    "reset_default_graph",
)

_NAME = re.compile(r"^[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*$")
_SCOPE_NAME = re.compile(r"^[A-Za-z0-9_.\\/>-]*$")
_NO_ATTRIBUTES: Mapping[str, Any] = MappingProxyType({})


class _Controller:
    """One ``with control_dependencies(...)``: its operations, and who depends on them already."""

    __slots__ = ("clears", "operations", "seen")

    def __init__(self, operations: Sequence[Operation] | None) -> None:
        self.clears = operations is None
        self.operations = tuple(operations or ())
        self.seen: set[Operation] = set()


class _Building(threading.local):
    """Where in a graph the calling thread is building."""

    def __init__(self) -> None:
        self.scope = ""
        self.controllers: list[_Controller] = []
        self.body: Body | None = None


class Graph:
    """Operations and the tensors between them, by name.

    Any number of sessions may run one graph, from any threads. Several threads may add to it; each
    of them has name scopes and control dependencies of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._building = _Building()
        self._operations: dict[str, Operation] = {}
        self._names_in_use: dict[str, int] = {}
        self._collections: dict[Any, list[Any]] = {}
        self._last_id = 0
        self._finalized = False
        self.seed: int | None = None

    @property
    def version(self) -> int:
        """How many operations there are: grows with each one."""
        return self._last_id

    @property
    def finalized(self) -> bool:
        """Whether operations can no longer be added."""
        return self._finalized

    @property
    def building_function(self) -> bool:
        """Whether a function body is being traced."""
        return self._building.body is not None

    def finalize(self) -> None:
        """Let nothing be added from now on."""
        self._finalized = True

    def unfinalize(self) -> None:
        """Let operations be added again."""
        self._finalized = False

    def check_not_finalized(self) -> None:
        """Raise RuntimeError if operations can no longer be added."""
        if self._finalized:
            raise RuntimeError("Graph is finalized and cannot be modified.")

    # Operations.

    def create_op(
        self,
        op_type: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[tuple[DType, TensorShape]],
        kernel: Kernel,
        *,
        name: str | None = None,
        waits: bool = False,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Add an operation.

        Args:
            op_type: what it does, such as ``"Identity"``; also its name, if none is given.
            inputs: the tensors whose values the kernel gets.
            outputs: dtype and static shape of each result.
            kernel: ``kernel(step, *values)``; values are NumPy arrays, NumPy scalars for rank 0,
                ``bytes`` for scalar strings and arrays of them for others. It changes none of
                them, and returns nothing for no outputs, the bare value for one, else a tuple.
            name: made unique in the current name scope; one that ends in ``/`` is taken as it is.
            waits: whether the kernel may block. Such an operation may have
                ``attrs["try_now"]``, a kernel that answers `WOULD_WAIT` instead of blocking.
            attrs: what else is to be known of it.

        Raises:
            RuntimeError: the graph is finalized.
            ValueError: the name is none, or an input is of another graph.
        """
        self.check_not_finalized()
        for one in inputs:
            if one.graph is not self:
                raise ValueError(f"{one} is not an element of this graph.")
        if name is None or name == "":
            name = op_type
        if not _NAME.match(name):
            raise ValueError(
                f"`{name}` is not a valid node name. Accepted names conform to Regex "
                f"/{_NAME.pattern}/"
            )
        with self._lock:
            name = name[:-1] if name.endswith("/") else self.unique_name(name)
            if name in self._operations:
                raise ValueError(f"Duplicate node name in graph: '{name}'")
            body = self._building.body
            controls = self._controls_for(inputs)
            if body is not None:
                controls = body.admit(inputs, controls)
            made = Operation(
                self, name, op_type, inputs, controls, outputs, kernel, waits,
                _NO_ATTRIBUTES if attrs is None else attrs, body,
            )  # fmt: skip
            self._last_id += 1
            self._operations[name] = made
            if body is not None:
                body.operations.append(made)
            for controller in self._building.controllers:
                controller.seen.add(made)
        return made

    def get_operations(self) -> list[Operation]:
        """All operations, in the order in which they were made."""
        return list(self._operations.values())

    def get_operation_by_name(self, name: str) -> Operation:
        """The operation of that name.

        Raises:
            KeyError: there is none.
            TypeError: `name` is no string.
        """
        if not isinstance(name, str):
            raise TypeError(f"Operation names are strings (or similar), not {_kind(name)}.")
        found = self.as_graph_element(name, allow_tensor=False)
        assert isinstance(found, Operation)
        return found

    def get_tensor_by_name(self, name: str) -> Tensor:
        """The tensor of that name, ``"<operation>:<index>"``.

        Raises:
            KeyError: there is none.
            TypeError: `name` is no string.
        """
        if not isinstance(name, str):
            raise TypeError(f"Tensor names are strings (or similar), not {_kind(name)}.")
        found = self.as_graph_element(name, allow_operation=False)
        assert isinstance(found, Tensor)
        return found

    def as_graph_element(
        self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True
    ) -> Tensor | Operation:
        """The tensor or operation that `obj` is, names, or stands for.

        Args:
            obj: a `Tensor`, an `Operation`, a name, or anything with ``_as_graph_element()``,
                such as a variable.
            allow_tensor: whether it may be a tensor.
            allow_operation: whether it may be an operation.

        Raises:
            KeyError: nothing has that name.
            TypeError: it stands for nothing of the kind allowed.
            ValueError: it is of another graph, or a name of the wrong form.
        """
        wanted = " or ".join(
            kind
            for kind, allowed in (("Tensor", allow_tensor), ("Operation", allow_operation))
            if allowed
        )
        convert = getattr(obj, "_as_graph_element", None)
        element = convert() if convert is not None else obj
        if isinstance(element, bytes):
            element = element.decode()
        if isinstance(element, str):
            return self._named(element, allow_tensor, allow_operation, wanted)
        kinds = (Tensor,) * allow_tensor + (Operation,) * allow_operation
        if not isinstance(element, kinds):
            raise TypeError(f"Can not convert a {_kind(obj)} into a {wanted}.")
        if element.graph is not self:
            raise ValueError(f"{_kind(element)} {element} is not an element of this graph.")
        return element

    def _named(self, name: str, tensor: bool, operation: bool, wanted: str) -> Tensor | Operation:
        form = 'Tensor names must be of the form "<op_name>:<output_index>".'
        if ":" in name and tensor:
            return self._named_tensor(name, form)
        if ":" in name:
            raise ValueError(f"Name '{name}' appears to refer to a Tensor, not a {wanted}.")
        if not operation:
            if name in self._operations:
                raise ValueError(
                    f"The name '{name}' refers to an Operation, not a {wanted}. {form}"
                )
            raise ValueError(
                f"The name '{name}' looks like an (invalid) Operation name, not a {wanted}. {form}"
            )
        if name not in self._operations:
            raise KeyError(f"The name '{name}' refers to an Operation not in the graph.")
        return self._operations[name]

    def _named_tensor(self, name: str, form: str) -> Tensor:
        operation, _, index = name.partition(":")
        if not index.isdecimal():
            raise ValueError(
                f"The name '{name}' looks a like a Tensor name, but is not a valid one. {form}"
            )
        begin = f"The name '{name}' refers to a Tensor which does not exist. The operation, "
        if operation not in self._operations:
            raise KeyError(f"{begin}'{operation}', does not exist in the graph.")
        outputs = self._operations[operation].values()
        if int(index) >= len(outputs):
            raise KeyError(f"{begin}'{operation}', exists but only has {len(outputs)} outputs.")
        return outputs[int(index)]

    def is_fetchable(self, tensor_or_op: Tensor | Operation) -> bool:
        """Whether a session may be asked for it: not if it is part of a function body."""
        return _operation(tensor_or_op).body is None

    def is_feedable(self, tensor: Tensor) -> bool:
        """Whether a session may be given its value: not if it is part of a function body."""
        return tensor.op.body is None

    # Names.

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """`name` in the current name scope, with ``_1``, ``_2``, ... if it is taken.

        Args:
            name: of an operation or a scope.
            mark_as_used: whether the result is taken from now on.
        """
        with self._lock:
            full = f"{self._building.scope}/{name}" if self._building.scope else name
            key = full.lower()  # names differ by more than case: some file systems need it
            used = self._names_in_use.get(key, 0)
            if mark_as_used:
                self._names_in_use[key] = used + 1
            if used == 0:
                return full
            base, number = key, used
            while key in self._names_in_use:
                key = f"{base}_{number}"
                number += 1
            if mark_as_used:
                self._names_in_use[key] = 1
            return f"{full}_{number - 1}"

    @contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Names made within the block begin with this one, made unique, and ``/``.

        Args:
            name: of the scope; with a ``/`` at its end an existing scope is entered again; None
                or ``""`` for the top.

        Raises:
            ValueError: it is no valid name.
        """
        outer = self._building.scope
        if name:
            pattern = _SCOPE_NAME if outer else _NAME
            if not pattern.match(name):
                where = "" if outer else "root "
                raise ValueError(
                    f"'{name}' is not a valid {where}scope name. A {where}scope name has to match "
                    f"the following pattern: {pattern.pattern}"
                )
            self._building.scope = name[:-1] if name.endswith("/") else self.unique_name(name)
        else:
            self._building.scope = ""
        try:
            yield f"{self._building.scope}/" if self._building.scope else ""
        finally:
            self._building.scope = outer

    def get_name_scope(self) -> str:
        """The current name scope, without a ``/`` at its end."""
        return self._building.scope

    # Order, places, function bodies.

    @contextmanager
    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> Iterator[None]:
        """Operations made within the block run after these.

        Args:
            control_inputs: operations, tensors, variables or names; None to be free of those that
                the blocks around it name.
        """
        if control_inputs is not None and not isinstance(control_inputs, Iterable):
            raise TypeError(
                f"control_inputs: got {control_inputs!r}; expected a list of operations and "
                "tensors, or None"
            )
        operations = None
        if control_inputs is not None:
            found = (_operation(self.as_graph_element(one)) for one in control_inputs)
            operations = list(dict.fromkeys(found))
        with self._replaced("controllers", self._controllers_with(_Controller(operations))):
            yield

    def _controllers_with(self, controller: _Controller) -> list[_Controller]:
        return [*([] if controller.clears else self._building.controllers), controller]

    def _controls_for(self, inputs: Sequence[Tensor]) -> list[Operation]:
        """What the blocks around say must come first, less what the inputs imply."""
        found: dict[Operation, None] = {}
        makers = {one.op for one in inputs}
        for controller in self._building.controllers:
            if makers.isdisjoint(controller.seen):
                found.update(
                    dict.fromkeys(one for one in controller.operations if one not in makers)
                )
        return list(found)

    @contextmanager
    def device(self, device_name_or_function: Any) -> Iterator[None]:
        """Accepted and without effect: there is one device."""
        del device_name_or_function
        yield

    @contextmanager
    def colocate_with(self, op: Any, ignore_existing: bool = False) -> Iterator[None]:
        """Accepted and without effect: there is one device."""
        del op, ignore_existing
        yield

    @property
    def body(self) -> Body | None:
        """The function body that is being traced, if one is."""
        return self._building.body

    @contextmanager
    def building_in(self, body: Body | None) -> Iterator[None]:
        """Operations made within the block are part of `body`, free of order from outside."""
        with (
            self._replaced("body", body),
            self._replaced("controllers", []),
        ):
            yield

    @contextmanager
    def _replaced(self, attribute: str, value: Any) -> Iterator[None]:
        before = getattr(self._building, attribute)
        setattr(self._building, attribute, value)
        try:
            yield
        finally:
            setattr(self._building, attribute, before)

    # Collections.

    def add_to_collection(self, name: Any, value: Any) -> None:
        """Append `value` to the collection of that name."""
        self.check_not_finalized()
        with self._lock:
            self._collections.setdefault(name, []).append(value)

    def add_to_collections(self, names: Any, value: Any) -> None:
        """Append `value` to several collections, each once."""
        for name in (names,) if isinstance(names, str) else dict.fromkeys(names):
            self.add_to_collection(name, value)

    def get_collection(self, name: Any, scope: str | None = None) -> list[Any]:
        """A copy of a collection.

        Args:
            name: of the collection; one that nothing was added to is empty.
            scope: a regular expression: only items whose ``.name`` begins with a match.
        """
        with self._lock:
            items = list(self._collections.get(name, ()))
        if scope is None:
            return items
        matches = re.compile(scope).match
        return [one for one in items if hasattr(one, "name") and matches(one.name)]

    def get_collection_ref(self, name: Any) -> list[Any]:
        """The collection itself, made if need be: changing it changes the graph's."""
        with self._lock:
            return self._collections.setdefault(name, [])

    def get_all_collection_keys(self) -> list[Any]:
        """The names of all collections that have something in them."""
        with self._lock:
            return [name for name, items in self._collections.items() if items]

    def clear_collection(self, name: Any) -> None:
        """Empty a collection."""
        self.check_not_finalized()
        with self._lock:
            self._collections.pop(name, None)

    def as_default(self) -> AbstractContextManager[Graph]:
        """Operations made within ``with graph.as_default():``, in this thread, are added here."""
        return default_graphs.using(self)


class _DefaultGraphs(DefaultStack[Graph]):
    """Like every stack of defaults, but never empty: there is one graph per thread at the bottom.

    TensorFlow has one such graph per thread as well: a new thread does not see its starter's.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bottom: Graph | None = None

    def current(self) -> Graph:
        """The default graph of the calling thread."""
        top = self.top()
        if top is not None:
            return top
        if self._bottom is None:
            self._bottom = Graph()
        return self._bottom

    def reset(self) -> None:
        """Begin the calling thread's bottom graph anew."""
        if len(self):
            raise AssertionError(
                "Do not use tf.reset_default_graph() to clear nested graphs. If you need a cleared "
                "graph, exit the nesting and create a new graph."
            )
        self._bottom = None


default_graphs = _DefaultGraphs()


def get_default_graph() -> Graph:
    """The graph that operations are added to: the innermost ``as_default()``, else the thread's."""
    return default_graphs.current()


def reset_default_graph() -> None:
    """Begin the thread's default graph anew.

    Raises:
        AssertionError: within a ``with graph.as_default():`` block.
    """
    default_graphs.reset()


def graph_of(inputs: Sequence[Tensor]) -> Graph:
    """The graph that an operation with these inputs belongs to.

    Raises:
        ValueError: they are of several graphs.
    """
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
    """Add an operation to the graph of its inputs, or to the default graph if it has none.

    The arguments are those of `Graph.create_op`.
    """
    return graph_of(inputs).create_op(
        op_type, inputs, outputs, kernel, name=name, waits=waits, attrs=attrs
    )


def _operation(element: Tensor | Operation) -> Operation:
    return element.op if isinstance(element, Tensor) else element


def _kind(thing: Any) -> str:
    return type(thing).__name__
