"""Graphs of deferred operations: `Graph`, `Operation`, `Tensor` and `Body`.

A graph knows its operations, an operation its graph, its tensors and the function body that it is
part of, a tensor its operation: one structure, and therefore one file. Nothing here computes. An
operation holds a *kernel*, a function of values; a session calls the kernels of the operations that
a fetch needs, each once, in an order that inputs and control inputs allow.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, NoReturn

from aioqueue.compat.v1.core.blocks import Blocks
from aioqueue.compat.v1.core.collections import Collections
from aioqueue.compat.v1.core.defaults import default_graphs, session_for
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.kernels import Kernel
from aioqueue.compat.v1.core.names import NameScopes, check_operation_name
from aioqueue.compat.v1.core.node_def import NodeDef, calling_line
from aioqueue.compat.v1.core.operators import Operators
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape, check_equal_dims

__all__ = ("Body", "Graph", "Operation", "Tensor")

_NO_ATTRIBUTES: Mapping[str, Any] = MappingProxyType({})


class Tensor(Operators["Tensor"]):
    """A handle on one output of an operation: no value, but a name, a dtype and a static shape.

    Made by operations only. Two tensors are equal if they are the same one.
    """

    def __init__(self, op: Operation, value_index: int, dtype: DType, shape: TensorShape) -> None:
        self._op = op
        self._value_index = value_index
        self._dtype = dtype
        self._shape = shape
        self._consumers: list[Operation] = []

    @property
    def op(self) -> Operation:
        """The operation that makes the value."""
        return self._op

    @property
    def value_index(self) -> int:
        """Which of its operation's outputs this is."""
        return self._value_index

    @property
    def name(self) -> str:
        """``"<operation>:<index>"``."""
        return f"{self._op.name}:{self._value_index}"

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._dtype

    @property
    def shape(self) -> TensorShape:
        """What is known of the shape before anything runs."""
        return self._shape

    @property
    def graph(self) -> Graph:
        """The graph that the operation is part of."""
        return self._op.graph

    @property
    def device(self) -> str:
        """Always empty: there is one device."""
        return ""

    def get_shape(self) -> TensorShape:
        """The same as `shape`."""
        return self._shape

    def set_shape(self, shape: Any) -> None:
        """Add to what is known of the shape."""
        shape = as_shape(shape)
        check_equal_dims(self._shape, shape)
        self._shape = self._shape.merge_with(shape)

    def consumers(self) -> list[Operation]:
        """The operations that have this tensor as an input."""
        return list(self._consumers)

    def eval(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> Any:
        """The value, computed by `session` or else by the default session."""
        return session_for(
            session, self.graph, "evaluate tensor", "eval", "the tensor's graph"
        ).run(self, feed_dict)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> Any:
        return self is other

    def __ne__(self, other: object) -> Any:
        return self is not other

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "Using a symbolic `tf.Tensor` as a Python `bool` is not allowed: it has no value until "
            "a session runs it. Use `tf.cond` to make the graph decide, or `sess.run` first."
        )

    def __len__(self) -> NoReturn:
        raise TypeError(
            f"len is not well defined for a symbolic Tensor ({self.name}). Please call `x.shape` "
            "rather than `len(x)` for shape information."
        )

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "Iterating over a symbolic `tf.Tensor` is not allowed: it has no value until a session "
            "runs it. Use `tf.unstack` for a known number of rows."
        )

    def __str__(self) -> str:
        shape = "" if self._shape.ndims is None else f", shape={self._shape}"
        return f'Tensor("{self.name}"{shape}, dtype={self._dtype.name})'

    def __repr__(self) -> str:
        return f"<tf.Tensor '{self.name}' shape={self._shape} dtype={self._dtype.name}>"


class Operation:
    """One deferred computation of a graph.

    Made by `Graph.create_op`. A session that needs it calls its kernel once per run.

    Attributes:
        kernel: ``kernel(step, *input values)``, which computes the outputs' values.
        waits: whether the kernel may block until another thread acts.
        attrs: what the operation's type says besides inputs; never changed.
        body: the function body that it is part of, if it runs zero or many times per run.
        defined_at: file and line of the script that made it; None if that is not known.
    """

    def __init__(
        self,
        graph: Graph,
        name: str,
        op_type: str,
        inputs: Sequence[Tensor],
        control_inputs: Sequence[Operation],
        outputs: Sequence[tuple[DType, TensorShape]],
        kernel: Kernel,
        waits: bool,
        attrs: Mapping[str, Any],
        body: Body | None,
    ) -> None:
        self._graph = graph
        self._name = name
        self._type = op_type
        self._inputs = tuple(inputs)
        self._control_inputs = tuple(control_inputs)
        self._outputs = tuple(
            Tensor(self, index, dtype, shape) for index, (dtype, shape) in enumerate(outputs)
        )
        self.kernel = kernel
        self.waits = waits
        self.attrs = attrs
        self.body = body
        self.defined_at: tuple[str, int] | None = calling_line()
        for one in self._inputs:
            one._consumers.append(self)

    @property
    def graph(self) -> Graph:
        """The graph that it is part of."""
        return self._graph

    @property
    def name(self) -> str:
        """Its full name, unique in the graph."""
        return self._name

    @property
    def type(self) -> str:
        """What it does, such as ``"Identity"``."""
        return self._type

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors whose values the kernel gets."""
        return self._inputs

    @property
    def control_inputs(self) -> list[Operation]:
        """The operations that must have run before."""
        return list(self._control_inputs)

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors that stand for what it computes."""
        return list(self._outputs)

    @property
    def device(self) -> str:
        """Always empty: there is one device."""
        return ""

    @property
    def node_def(self) -> NodeDef:
        """What it is, as a record."""
        inputs = [_input_name(one) for one in self._inputs]
        inputs += [f"^{one.name}" for one in self._control_inputs]
        return NodeDef(self._name, self._type, inputs, self.attrs)

    def values(self) -> tuple[Tensor, ...]:
        """The same as `outputs`, as a tuple."""
        return self._outputs

    def get_attr(self, name: str) -> Any:
        """One of `attrs`; text as bytes."""
        try:
            found = self.attrs[name]
        except KeyError:
            raise ValueError(
                f"Operation '{self._name}' has no attr named '{name}'. It has: {sorted(self.attrs)}"
            ) from None
        return found.encode() if isinstance(found, str) else found

    def run(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> None:
        """Run it, in `session` or else in the default session."""
        session_for(session, self._graph, "execute operation", "run", "the operation's graph").run(
            self, feed_dict
        )

    def __str__(self) -> str:
        return repr(self.node_def)

    def __repr__(self) -> str:
        return f"<tf.Operation '{self._name}' type={self._type}>"


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
        self.outer: Body | None = graph.body
        self.captures: dict[Tensor, None] = {}
        self.controls: dict[Operation, None] = {}
        self.operations: list[Operation] = []
        self.outputs: list[Tensor | Operation] = []

    @property
    def waits(self) -> bool:
        """Whether running it may block."""
        return any(one.waits for one in self.operations)

    def admit(self, inputs: Sequence[Tensor], controls: Sequence[Operation]) -> list[Operation]:
        """Note what a new operation takes from outside: its control inputs that are inside."""
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


class Graph(NameScopes, Collections):
    """Operations and the tensors between them, by name.

    Any number of sessions may run one graph, from any threads. Several threads may add to it; each
    of them has name scopes and control dependencies of its own.
    """

    def __init__(self) -> None:
        NameScopes.__init__(self)
        Collections.__init__(self)
        self._lock = threading.RLock()
        self._thread_begins_with: list[Any] = []
        self._blocks: Blocks[Operation, Body] = Blocks(self._thread_begins_with)
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
            attrs: what else is to be known of it. An operation that keeps something from run to run
                has a ``"container"`` among them, which is filled in here.
        """
        self.check_not_finalized()
        for one in inputs:
            if one.graph is not self:
                raise ValueError(f"{one} is not an element of this graph.")
        if name is None or name == "":
            name = op_type
        check_operation_name(name)
        with self._lock:
            name = name[:-1] if name.endswith("/") else self.unique_name(name)
            if name in self._operations:
                raise ValueError(f"Duplicate node name in graph: '{name}'")
            body = self._blocks.body
            controls = self._blocks.controls({one.op for one in inputs})
            if body is not None:
                controls = body.admit(inputs, controls)
            if attrs is None:
                attrs = _NO_ATTRIBUTES
            elif "container" in attrs:
                attrs = {**attrs, "container": self._blocks.container}
            made = Operation(
                self, name, op_type, inputs, controls, outputs, kernel, waits, attrs, body
            )
            self._last_id += 1
            self._operations[name] = made
            if body is not None:
                body.operations.append(made)
            self._blocks.note(made)
        return made

    def get_operations(self) -> list[Operation]:
        """All operations, in the order in which they were made."""
        return list(self._operations.values())

    def get_operation_by_name(self, name: str) -> Operation:
        """The operation of that name."""
        if not isinstance(name, str):
            raise TypeError(f"Operation names are strings (or similar), not {_kind(name)}.")
        found = self.as_graph_element(name, allow_tensor=False)
        assert isinstance(found, Operation)
        return found

    def get_tensor_by_name(self, name: str) -> Tensor:
        """The tensor of that name, ``"<operation>:<index>"``."""
        if not isinstance(name, str):
            raise TypeError(f"Tensor names are strings (or similar), not {_kind(name)}.")
        found = self.as_graph_element(name, allow_operation=False)
        assert isinstance(found, Tensor)
        return found

    def as_graph_element(
        self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True
    ) -> Tensor | Operation:
        """The tensor or operation that `obj` is, names, or stands for."""
        if type(obj) is Tensor and allow_tensor and obj.graph is self:
            return obj  # nearly always
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

    # Order, places, function bodies.

    @contextmanager
    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> Iterator[None]:
        """Operations made within the block run after these."""
        if control_inputs is not None and not isinstance(control_inputs, Iterable):
            raise TypeError(
                f"control_inputs: got {control_inputs!r}; expected a list of operations and "
                "tensors, or None"
            )
        operations = None
        if control_inputs is not None:
            found = (_operation(self.as_graph_element(one)) for one in control_inputs)
            operations = list(dict.fromkeys(found))
        with self._blocks.after(operations):
            yield

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

    @contextmanager
    def container(self, container_name: str) -> Iterator[str]:
        """What operations made within the block keep from run to run is kept in this container.

        Those of one shared name in two containers are two, and `Session.reset` can release the
        containers of a server one by one.
        """
        with self._blocks.within(container_name):
            yield container_name

    def switch_to_thread_local(self) -> None:
        """Threads that are new to the graph begin with the caller's control dependencies.

        Each thread has control dependencies of its own, whether this is called or not.
        """
        if not self._thread_begins_with:
            self._thread_begins_with += self._blocks.controllers

    @property
    def body(self) -> Body | None:
        """The function body that is being traced, if one is."""
        return self._blocks.body

    def building_in(self, body: Body | None) -> AbstractContextManager[None]:
        """Operations made within the block are part of `body`, free of order from outside."""
        return self._blocks.inside(body)

    def as_default(self) -> AbstractContextManager[Graph]:
        """Operations made within ``with graph.as_default():``, in this thread, are added here."""
        return default_graphs.using(self)


def _input_name(tensor: Tensor) -> str:
    return tensor.name if tensor.value_index else tensor.op.name


def _operation(element: Tensor | Operation) -> Operation:
    return element.op if isinstance(element, Tensor) else element


def _kind(thing: Any) -> str:
    return type(thing).__name__
