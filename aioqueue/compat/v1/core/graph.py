"""Graphs of deferred operations: `Graph`, `Operation`, `Tensor` and `Body`.

They know each other, and therefore stand in one file. Nothing here computes: an operation holds a
*kernel*, a function of values, and a session calls the kernels that a fetch needs.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar

from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape, check_equal_dims

__all__ = ("Graph", "Operation", "Tensor")

Kernel = Callable[..., Any]
"""``kernel(step, *values)``; returns nothing, a bare value or a tuple, as the op has outputs."""

WOULD_WAIT: Any = type("WouldWait", (), {"__repr__": lambda self: "WOULD_WAIT"})()
"""What ``attrs["try_now"]`` answers instead of blocking; nothing has happened then."""

T_co = TypeVar("T_co", covariant=True)


class _Unary(Protocol[T_co]):
    def __call__(self) -> T_co: ...


class _Binary(Protocol[T_co]):
    def __call__(self, other: Any, /) -> T_co: ...


class Operators(Generic[T_co]):
    """Arithmetic, logic, indexing and NumPy's functions make ops; ``==`` and ``!=`` do not."""

    __slots__ = ()

    __array_priority__ = 100

    __add__: _Binary[T_co]
    __radd__: _Binary[T_co]
    __sub__: _Binary[T_co]
    __rsub__: _Binary[T_co]
    __mul__: _Binary[T_co]
    __rmul__: _Binary[T_co]
    __truediv__: _Binary[T_co]
    __rtruediv__: _Binary[T_co]
    __floordiv__: _Binary[T_co]
    __rfloordiv__: _Binary[T_co]
    __mod__: _Binary[T_co]
    __rmod__: _Binary[T_co]
    __pow__: _Binary[T_co]
    __rpow__: _Binary[T_co]
    __matmul__: _Binary[T_co]
    __rmatmul__: _Binary[T_co]
    __and__: _Binary[T_co]
    __rand__: _Binary[T_co]
    __or__: _Binary[T_co]
    __ror__: _Binary[T_co]
    __xor__: _Binary[T_co]
    __rxor__: _Binary[T_co]
    __lt__: _Binary[T_co]
    __le__: _Binary[T_co]
    __gt__: _Binary[T_co]
    __ge__: _Binary[T_co]
    __getitem__: _Binary[T_co]
    __neg__: _Unary[T_co]
    __abs__: _Unary[T_co]
    __invert__: _Unary[T_co]
    __array_ufunc__: Callable[..., Any]
    __array_function__: Callable[..., Any]

    OVERLOADABLE_OPERATORS: ClassVar[frozenset[str]]
    """Those declared above, and no others, can be given a function."""

    @classmethod
    def _override_operator(cls, operator: str, function: Callable[..., Any]) -> None:
        """Define what an operator does with tensors. You can define each operator once."""
        if operator not in cls.OVERLOADABLE_OPERATORS:
            raise ValueError(f"Overriding {operator} is disallowed")
        # Not `getattr`: it finds what every object has, such as `object.__lt__`, and what every
        # class has, such as `type.__or__`.
        if any(operator in vars(one) for one in cls.__mro__ if one is not object):
            raise ValueError(f"operator {operator} cannot be overwritten again on class {cls}.")
        setattr(cls, operator, function)

    def __pos__(self) -> Operators[T_co]:
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        name = getattr(self, "name", "")
        raise NotImplementedError(
            f"Cannot convert a symbolic tf.Tensor ({name}) to a numpy array: it has no value until"
            " a session runs it. NumPy's functions take tensors, and make ops."
        )


Operators.OVERLOADABLE_OPERATORS = frozenset(
    name for name in Operators.__annotations__ if name.startswith("__")
)

_LIBRARY = str(Path(__file__).parents[1])


class NodeDef:
    """What an operation is, as a record: its name, its type, its inputs' names, its attributes."""

    __slots__ = ("attr", "input", "name", "op")

    def __init__(self, name: str, op: str, inputs: Sequence[str], attr: Mapping[str, Any]) -> None:
        self.name: str = name
        self.op: str = op
        self.input: list[str] = list(inputs)
        self.attr: dict[str, Any] = dict(attr)

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeDef, (self.name, self.op, self.input, {})  # attributes may be functions

    def __repr__(self) -> str:
        lines = [f'name: "{self.name}"', f'op: "{self.op}"']
        return "\n".join([*lines, *(f'input: "{one}"' for one in self.input)])


def calling_line() -> tuple[str, int] | None:
    """File and line of the innermost frame outside this package; None if all frames are inside."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


T = TypeVar("T")


class DefaultStack(threading.local, Generic[T]):
    """What ``with thing.as_default():`` has made the default in a thread; new threads have none."""

    def __init__(self) -> None:
        self._stack: list[T] = []

    def top(self) -> T | None:
        """The innermost default, or None."""
        return self._stack[-1] if self._stack else None

    def __len__(self) -> int:
        return len(self._stack)

    def push(self, thing: T) -> None:
        """Make `thing` the default until it is removed."""
        self._stack.append(thing)

    def remove(self, thing: T) -> None:
        """Take `thing`'s innermost place away, wherever it is."""
        for index in reversed(range(len(self._stack))):
            if self._stack[index] is thing:
                del self._stack[index]
                return

    @contextmanager
    def using(self, thing: T) -> Iterator[T]:
        """`thing` is the default within the block."""
        self.push(thing)
        try:
            yield thing
        finally:
            self.remove(thing)


default_graphs: DefaultStack[Any] = DefaultStack()
"""Graphs: here, so that a graph can make itself the default."""

default_sessions: DefaultStack[Any] = DefaultStack()
"""Sessions: here, so that `Tensor.eval` finds one without knowing what a session is."""


def session_for(session: Any, graph: object, doing: str, method: str, whose: str) -> Any:
    """The session given, or else the default one, if it is one of this graph."""
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


F = TypeVar("F", bound=Callable[..., Any])

_NAME = re.compile(r"^[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*$")

_SCOPE_NAME = re.compile(r"^[A-Za-z0-9_.\\/>-]*$")


def named(function: F, name: str, doc: str) -> F:
    """A function that was made by another one, as if it had been defined by itself."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def check_operation_name(name: str) -> None:
    """Raise ValueError if no operation can have this name."""
    if not _NAME.match(name):
        raise ValueError(
            f"`{name}` is not a valid node name. Accepted names conform to Regex /{_NAME.pattern}/"
        )


class _Scope(threading.local):
    def __init__(self) -> None:
        self.name = ""


class _Controller:
    """One ``with control_dependencies(...)``: its operations, and who depends on them already."""

    __slots__ = ("clears", "operations", "seen")

    def __init__(self, operations: Collection[Operation] | None) -> None:
        self.clears = operations is None
        self.operations = tuple(operations or ())
        self.seen: set[Operation] = set()


class _Blocks(threading.local):
    """What applies to a thread's new operations: control dependencies, function body, container."""

    def __init__(self, beginning: list[_Controller]) -> None:
        self.body: Body | None = None
        self.container = ""
        self.controllers = list(beginning)

    @contextmanager
    def after(self, operations: Collection[Operation] | None) -> Iterator[None]:
        controller = _Controller(operations)
        around = [] if controller.clears else self.controllers
        with self._replaced("controllers", [*around, controller]):
            yield

    @contextmanager
    def inside(self, body: Body | None) -> Iterator[None]:
        with self._replaced("body", body), self._replaced("controllers", []):
            yield

    @contextmanager
    def within(self, container: str) -> Iterator[None]:
        with self._replaced("container", container):
            yield

    def controls(self, makers: Collection[Operation]) -> list[Operation]:
        """What must come before a new operation, less what its inputs imply."""
        found: dict[Operation, None] = {}
        for controller in self.controllers:
            if controller.seen.isdisjoint(makers):
                found.update(
                    dict.fromkeys(one for one in controller.operations if one not in makers)
                )
        return list(found)

    def note(self, made: Operation) -> None:
        for controller in self.controllers:
            controller.seen.add(made)

    @contextmanager
    def _replaced(self, attribute: str, value: Any) -> Iterator[None]:
        before = getattr(self, attribute)
        setattr(self, attribute, value)
        try:
            yield
        finally:
            setattr(self, attribute, before)


_NO_ATTRIBUTES: Mapping[str, Any] = MappingProxyType({})


class Tensor(Operators["Tensor"]):
    """A handle on one output of an operation; two are equal if they are the same one.

    ``shape`` is what is known of it before anything runs; ``value_index``, which output it is.
    """

    device: str = ""

    def __init__(self, op: Operation, value_index: int, dtype: DType, shape: TensorShape) -> None:
        self.op: Operation = op
        self.graph: Graph = op.graph
        self.name: str = f"{op.name}:{value_index}"
        self.value_index: int = value_index
        self.dtype: DType = dtype
        self.shape: TensorShape = shape
        self._consumers: list[Operation] = []

    def get_shape(self) -> TensorShape:
        """The same as `shape`."""
        return self.shape

    def set_shape(self, shape: Any) -> None:
        """Add to what is known of the shape."""
        shape = as_shape(shape)
        check_equal_dims(self.shape, shape)
        self.shape = self.shape.merge_with(shape)

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
        shape = "" if self.shape.ndims is None else f", shape={self.shape}"
        return f'Tensor("{self.name}"{shape}, dtype={self.dtype.name})'

    def __repr__(self) -> str:
        return f"<tf.Tensor '{self.name}' shape={self.shape} dtype={self.dtype.name}>"


class Operation:
    """One deferred computation of a graph, whose kernel a session calls once per run.

    Attributes:
        kernel: ``kernel(step, *input values)``, which computes the outputs' values.
        waits: whether the kernel may block until another thread acts.
        attrs: what the operation's type says besides inputs; never changed.
        body: the function body that it is part of, if it runs zero or many times per run.
        defined_at: file and line of the script that made it; None if that is not known.
    """

    device: str = ""

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
        self.graph: Graph = graph
        self.name: str = name
        self.type: str = op_type
        self.inputs: tuple[Tensor, ...] = tuple(inputs)
        self._control_inputs = tuple(control_inputs)
        self._outputs = tuple(
            Tensor(self, index, dtype, shape) for index, (dtype, shape) in enumerate(outputs)
        )
        self.kernel: Kernel = kernel
        self.waits: bool = waits
        self.attrs: Mapping[str, Any] = attrs
        self.body: Body | None = body
        self.defined_at: tuple[str, int] | None = calling_line()
        for one in self.inputs:
            one._consumers.append(self)

    @property
    def control_inputs(self) -> list[Operation]:
        """The operations that must have run before."""
        return list(self._control_inputs)

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors that stand for what it computes."""
        return list(self._outputs)

    @property
    def node_def(self) -> NodeDef:
        """What it is, as a record."""
        inputs = [_input_name(one) for one in self.inputs]
        inputs += [f"^{one.name}" for one in self._control_inputs]
        return NodeDef(self.name, self.type, inputs, self.attrs)

    def values(self) -> tuple[Tensor, ...]:
        """The same as `outputs`, as a tuple."""
        return self._outputs

    def get_attr(self, name: str) -> Any:
        """One of `attrs`; text as bytes."""
        try:
            found = self.attrs[name]
        except KeyError:
            raise ValueError(
                f"Operation '{self.name}' has no attr named '{name}'. It has: {sorted(self.attrs)}"
            ) from None
        return found.encode() if isinstance(found, str) else found

    def run(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> None:
        """Run it, in `session` or else in the default session."""
        session_for(session, self.graph, "execute operation", "run", "the operation's graph").run(
            self, feed_dict
        )

    def __str__(self) -> str:
        return repr(self.node_def)

    def __repr__(self) -> str:
        return f"<tf.Operation '{self.name}' type={self.type}>"


class Body:
    """The operations of a function that was traced, and what they take from outside.

    Attributes:
        captures: the tensors from outside that they use, in the order of first use.
        controls: the operations from outside that must run before any of them.
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


class Graph:
    """Operations and the tensors between them, by name; threads may add to it and run it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._thread_begins_with: list[Any] = []
        self._blocks: _Blocks = _Blocks(self._thread_begins_with)
        self._operations: dict[str, Operation] = {}
        self._names_in_use: dict[str, int] = {}
        self._scope = _Scope()
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
            waits: whether the kernel may block; ``attrs["try_now"]`` is then a kernel that answers
                `WOULD_WAIT` instead.
            attrs: what else is to be known of it; a ``"container"`` among them is filled in here.
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

    # Names, collections.

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """`name` in the current name scope, with ``_1``, ``_2``, ... if it is taken."""
        with self._lock:
            full = f"{self._scope.name}/{name}" if self._scope.name else name
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
        """Names made within the block begin with this one, made unique, and ``/``."""
        outer = self._scope.name
        if name:
            pattern = _SCOPE_NAME if outer else _NAME
            if not pattern.match(name):
                where = "" if outer else "root "
                raise ValueError(
                    f"'{name}' is not a valid {where}scope name. A {where}scope name has to match "
                    f"the following pattern: {pattern.pattern}"
                )
            self._scope.name = name[:-1] if name.endswith("/") else self.unique_name(name)
        else:
            self._scope.name = ""
        try:
            yield f"{self._scope.name}/" if self._scope.name else ""
        finally:
            self._scope.name = outer

    def get_name_scope(self) -> str:
        """The current name scope, without a ``/`` at its end."""
        return self._scope.name

    @property
    def finalized(self) -> bool:
        """Whether operations can no longer be added."""
        return self._finalized

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
        """A copy of a collection."""
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
        yield

    @contextmanager
    def colocate_with(self, op: Any, ignore_existing: bool = False) -> Iterator[None]:
        """Accepted and without effect: there is one device."""
        yield

    @contextmanager
    def container(self, container_name: str) -> Iterator[str]:
        """A name for what operations made within the block keep, which `Session.reset` takes."""
        with self._blocks.within(container_name):
            yield container_name

    def switch_to_thread_local(self) -> None:
        """Threads that are new to the graph begin with the caller's control dependencies."""
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


def trace(graph: Graph, function: Callable[[], Any]) -> tuple[Body, Any]:
    """Call `function` so that the operations that it makes are part of a new body."""
    body = Body(graph)
    with graph.as_default(), graph.building_in(body):
        return body, function()
