"""What graphs consist of: `Operation` and `Tensor`, handles without a value.

An operation holds a *kernel*, a function of values, and a session calls the kernels of the
operations that a fetch needs, each once, in an order that inputs and control inputs allow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from aioqueue.compat.v1.core.defaults import default_sessions
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape, check_equal_dims
from aioqueue.compat.v1.ops.operators import Operators

if TYPE_CHECKING:
    from aioqueue.compat.v1.core.bodies import Body
    from aioqueue.compat.v1.core.graph import Graph

__all__ = ("WOULD_WAIT", "Kernel", "NodeDef", "Operation", "Tensor")

Kernel = Callable[..., Any]
"""``kernel(step, *values)``; returns nothing, a bare value or a tuple, as the op has outputs."""

WOULD_WAIT: Any = type("WouldWait", (), {"__repr__": lambda self: "WOULD_WAIT"})()
"""What ``attrs["try_now"]`` answers instead of blocking; nothing has happened then."""

_LIBRARY = str(Path(__file__).parents[1])


class NodeDef:
    """What an operation is, as a record: its name, its type, its inputs' names, its attributes."""

    __slots__ = ("attr", "input", "name", "op")

    def __init__(self, name: str, op: str, inputs: Sequence[str], attr: Mapping[str, Any]) -> None:
        self.name = name
        self.op = op
        self.input = list(inputs)
        self.attr = dict(attr)

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeDef, (self.name, self.op, self.input, {})  # attributes may be functions

    def __repr__(self) -> str:
        lines = [f'name: "{self.name}"', f'op: "{self.op}"']
        return "\n".join([*lines, *(f'input: "{one}"' for one in self.input)])


class Tensor(Operators):
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
        """Add to what is known of the shape.

        Raises:
            ValueError: it contradicts what is known.
        """
        shape = as_shape(shape)
        check_equal_dims(self._shape, shape)
        self._shape = self._shape.merge_with(shape)

    def consumers(self) -> list[Operation]:
        """The operations that have this tensor as an input."""
        return list(self._consumers)

    def eval(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> Any:
        """The value, computed by `session` or else by the default session.

        Raises:
            ValueError: there is no session, or its graph is another one.
        """
        return _session_for(
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
        self.defined_at = _caller()
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
        """One of `attrs`.

        Raises:
            ValueError: it has none of that name.
        """
        try:
            return self.attrs[name]
        except KeyError:
            raise ValueError(
                f"Operation '{self._name}' has no attr named '{name}'. It has: {sorted(self.attrs)}"
            ) from None

    def run(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> None:
        """Run it, in `session` or else in the default session.

        Raises:
            ValueError: there is no session, or its graph is another one.
        """
        _session_for(session, self._graph, "execute operation", "run", "the operation's graph").run(
            self, feed_dict
        )

    def __str__(self) -> str:
        return repr(self.node_def)

    def __repr__(self) -> str:
        return f"<tf.Operation '{self._name}' type={self._type}>"


def _input_name(tensor: Tensor) -> str:
    return tensor.name if tensor.value_index else tensor.op.name


def _caller() -> tuple[str, int] | None:
    """File and line of the innermost frame that is not this package's."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _session_for(session: Any, graph: Graph, doing: str, method: str, whose: str) -> Any:
    if session is not None:
        if session.graph is not graph:
            raise ValueError(
                f"Cannot use the given session to {doing}: {whose} is different from the session's "
                "graph."
            )
        return session
    session = default_sessions.top()
    if session is None:
        colon = ":" if method == "run" else ""
        raise ValueError(
            f"Cannot {doing} using `{method}()`: No default session is registered. Use `with "
            f"sess.as_default(){colon}` or pass an explicit session to `{method}(session=sess)`"
        )
    if session.graph is not graph:
        raise ValueError(
            f"Cannot use the default session to {doing}: {whose} is different from the session's "
            f"graph. Pass an explicit session to `{method}(session=sess)`."
        )
    return session
