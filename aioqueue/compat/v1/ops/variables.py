"""`Variable`: its initial value, itself, the assignment of the one to the other, and a read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from aioqueue.compat.v1.core import dtypes, scopes
from aioqueue.compat.v1.core.convert import (
    constant,
    convert_to_tensor,
    freeze,
    register_tensor_conversion_function,
)
from aioqueue.compat.v1.core.default_graph import get_default_graph, op
from aioqueue.compat.v1.core.dtypes import DType, as_dtype
from aioqueue.compat.v1.core.graph import Graph, Operation, Operators, Tensor, named
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape, check_equal_dims, unknown_shape
from aioqueue.compat.v1.errors import FailedPreconditionError, OutOfRangeError
from aioqueue.compat.v1.ops.control import cond, group, identity, no_op

__all__ = (
    "Variable", "all_variables", "assign", "assign_add", "assign_sub", "count_up_to",
    "global_variables", "global_variables_initializer", "initialize_all_tables",
    "initialize_all_variables", "initialize_local_variables", "initialize_variables",
    "is_variable_initialized", "local_variables", "local_variables_initializer", "model_variables",
    "moving_average_variables", "report_uninitialized_variables", "tables_initializer",
    "trainable_variables", "variables_initializer",
)  # fmt: skip

_NUMBERS = (dtypes.int32, dtypes.int64)


class Cell:
    """The value that a variable has in one session; None before it is initialised."""

    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: Any = None

    @property
    def is_set(self) -> bool:
        return self._value is not None

    def read(self, name: str) -> Any:
        if self._value is None:
            raise FailedPreconditionError(
                None, None, f"Attempting to use uninitialized value {name}"
            )
        return self._value

    def write(self, value: Any) -> Any:
        """Set the value, to a copy that nobody else can change."""
        # The copy is made before the lock is taken: increments of other threads wait for that.
        kept = freeze(np.array(value) if isinstance(value, np.ndarray) else value)
        with self._lock:
            self._value = kept
        return kept

    def change(self, name: str, function: Callable[[Any], Any]) -> Any:
        """Set the value to a function of it, at once for all other threads."""
        # A thread that reads between another's read and write would lose one of two increments.
        with self._lock:
            self._value = kept = freeze(function(self.read(name)))
        return kept


def variable_cell(step: Any, variable: Operation) -> Cell:
    container = variable.attrs["container"]
    found: Cell = step.resources.get_or_create(
        ("variable", variable.name), Cell, container=container
    )
    return found


class Variable(Operators[Tensor]):
    """A value that lasts from run to run, once it is initialised in each session."""

    op: Operation
    name: str
    graph: Graph
    dtype: DType
    device: str = ""

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = True,
        collections: Iterable[str] | None = None,
        validate_shape: bool = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: Any = None,
        dtype: Any = None,
        expected_shape: Any = None,
        import_scope: str | None = None,
        constraint: Any = None,
        use_resource: bool | None = None,
        synchronization: Any = None,
        aggregation: Any = None,
        shape: Any = None,
    ) -> None:
        if initial_value is None:
            raise ValueError("initial_value must be specified.")
        if isinstance(collections, str):
            raise ValueError(
                f"collections argument to Variable constructor must be a list, tuple, or set. Got "
                f"{collections} of type {type(collections)}"
            )
        self.trainable: bool = trainable is not False
        self.constraint = constraint
        values = [] if callable(initial_value) else [initial_value]
        with scopes.init_scope(), scopes.name_scope(name, "Variable", values) as scope:
            wanted = None if dtype is None else as_dtype(dtype)
            self.initial_value: Tensor = _initial_tensor(initial_value, wanted)
            self._make(scope, None if shape is None else as_shape(shape), validate_shape)
        names = list([scopes.GraphKeys.GLOBAL_VARIABLES] if collections is None else collections)
        if self.trainable and scopes.GraphKeys.TRAINABLE_VARIABLES not in names:
            names.append(scopes.GraphKeys.TRAINABLE_VARIABLES)
        scopes.add_to_collections(names, self)

    def _make(self, scope: str, shape: TensorShape | None, validate_shape: bool) -> None:
        known = self.initial_value.shape
        if shape is None:
            shape = known if validate_shape else unknown_shape()
            if validate_shape and not known.is_fully_defined():
                raise ValueError(f"initial_value must have a shape specified: {self.initial_value}")
        kind = (self.initial_value.dtype, shape)
        made = self.op = get_default_graph().create_op(
            "VariableV2",
            (),
            [kind],
            lambda step: variable_cell(step, made).read(made.name),
            name=scope,
            attrs={"variable": True, "container": ""},  # the graph says which
        )
        assigned = _change(self, "Assign", self.initial_value, None, Cell.write)
        self.initializer: Operation = assigned.op
        self.name, self.graph, self.dtype = made.outputs[0].name, made.graph, kind[0]
        self._snapshot = identity(made.outputs[0], name="read")

    # What it is.

    @property
    def shape(self) -> TensorShape:
        """What is known of the shape."""
        return self.op.outputs[0].shape

    def get_shape(self) -> TensorShape:
        return self.shape

    def set_shape(self, shape: Any) -> None:
        """Add to what is known of the shape."""
        self.op.outputs[0].set_shape(shape)
        self._snapshot.set_shape(shape)

    # Reading.

    def value(self) -> Tensor:
        """Its value in a run, read once per run."""
        return self._snapshot

    def read_value(self) -> Tensor:
        """A read of its own, which takes place when its control dependencies say."""
        variable = self.op
        kernel = lambda step: variable_cell(step, variable).read(variable.name)  # noqa: E731
        outputs, attrs = [(self.dtype, self.shape)], {"read_of": variable}
        create = self.graph.create_op
        return create("Identity", (), outputs, kernel, name="read", attrs=attrs).outputs[0]

    def initialized_value(self) -> Tensor:
        """Its value, or its initial value while it is not initialised: for other initial values."""
        with scopes.init_scope():
            made = cond(is_variable_initialized(self), self.read_value, lambda: self.initial_value)
        assert isinstance(made, Tensor)
        return made

    def eval(self, session: Any = None) -> Any:
        """Its value in `session`, or else in the default session."""
        return self.op.outputs[0].eval(session=session)

    def load(self, value: Any, session: Any = None) -> None:
        """Give it a value in `session`, or else in the default session."""
        self.initializer.run({self.initializer.inputs[0]: value}, session)

    # Writing.

    def assign(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """A tensor with the new value, which sets it; see `assign`."""
        made = assign(self, value, use_locking=use_locking, name=name)
        return made if read_value else made.op

    def assign_add(
        self,
        delta: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """A tensor with the new value, which adds to the old one; see `assign_add`."""
        made = assign_add(self, delta, use_locking=use_locking, name=name)
        return made if read_value else made.op

    def assign_sub(
        self,
        delta: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """A tensor with a variable's new value; running it subtracts `value`; see `assign_add`."""
        made = assign_sub(self, delta, use_locking=use_locking, name=name)
        return made if read_value else made.op

    def count_up_to(self, limit: int) -> Tensor:
        """A tensor with the value before it is increased by one; see `count_up_to`."""
        return count_up_to(self, limit)

    # As a Python object.

    def _as_graph_element(self) -> Tensor:
        return self.op.outputs[0]

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> Any:
        return self is other

    def __ne__(self, other: object) -> Any:
        return self is not other

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "Using a `tf.Variable` as a Python `bool` is not allowed: it has no value until a "
            "session runs it. Use `tf.cond` to make the graph decide, or `sess.run` first."
        )

    def __iter__(self) -> NoReturn:
        raise TypeError("'Variable' object is not iterable.")

    def __repr__(self) -> str:
        return f"<tf.Variable '{self.name}' shape={self.shape} dtype={self.dtype.name}>"


def _initial_tensor(initial_value: Any, dtype: DType | None) -> Tensor:
    if not callable(initial_value):
        return convert_to_tensor(initial_value, dtype, name="initial_value")
    with scopes.name_scope("Initializer"):
        return convert_to_tensor(initial_value(), dtype, name="initial_value")


def _to_tensor(
    value: Variable, dtype: DType | None = None, name: str | None = None, as_ref: bool = False
) -> Tensor:
    if dtype is not None and dtype is not value.dtype:
        raise ValueError(
            f"Incompatible type conversion requested to type '{dtype.name}' for variable of type "
            f"'{value.dtype.name}'"
        )
    return value.value()


register_tensor_conversion_function(Variable, _to_tensor)


def variable_op(ref: Any) -> Operation:
    """The operation of the variable that `ref` stands for: a variable, or an op that changes it."""
    element = ref._as_graph_element() if isinstance(ref, Variable) else ref
    if isinstance(element, Tensor):
        if "variable_op" in element.op.attrs:
            made: Operation = element.op.attrs["variable_op"]
            return made
        if "variable" in element.op.attrs:
            return element.op
    raise TypeError(f"ref: got {ref!r}; expected a tf.Variable")


def _change(
    ref: Any,
    op_type: str,
    value: Tensor,
    name: str | None,
    function: Callable[[Cell, Any], Any],
    shape: TensorShape | None = None,
) -> Tensor:
    """An operation that changes a variable with a value; ``function(cell, value)`` does it."""
    variable = variable_op(ref)
    static = variable.outputs[0].shape.merge_with(value.shape) if shape is None else shape
    before = [] if isinstance(ref, Variable) or ref.op is variable else [ref]
    with variable.graph.control_dependencies(before):
        kernel = lambda step, given: function(variable_cell(step, variable), given)  # noqa: E731
        outputs, attrs = [(value.dtype, static)], {"variable_op": variable}
        return op(op_type, [value], outputs, kernel, name=name, attrs=attrs).outputs[0]


def _operand(ref: Any, value: Any, op_type: str) -> Tensor:
    dtype = variable_op(ref).outputs[0].dtype
    if isinstance(value, Tensor | Variable) and value.dtype is not dtype:
        raise TypeError(
            f"Input 'value' of '{op_type}' Op has type {value.dtype.name} that does not match type "
            f"{dtype.name} of argument 'ref'."
        )
    try:
        return convert_to_tensor(value, dtype, name="value")
    except TypeError as error:
        raise TypeError(
            f"Expected {dtype.name} passed to parameter 'value' of op '{op_type}', got {value} of "
            f"type '{type(value).__name__}' instead. Error: {error}"
        ) from None


def assign(
    ref: Any,
    value: Any,
    validate_shape: bool | None = None,
    use_locking: bool | None = None,
    name: str | None = None,
) -> Tensor:
    """A tensor with a variable's new value; running it sets the variable."""
    with scopes.name_scope(name, "Assign") as scope:
        tensor = _operand(ref, value, "Assign")
        if validate_shape is False:
            return _change(ref, "Assign", tensor, scope, Cell.write, tensor.shape)
        check_equal_dims(variable_op(ref).outputs[0].shape, tensor.shape)
        return _change(ref, "Assign", tensor, scope, Cell.write)


def _changing(
    name: str, op_type: str, verb: str, function: Callable[[Any, Any], Any]
) -> Callable[..., Tensor]:

    def change(
        ref: Any, value: Any, use_locking: bool | None = None, name: str | None = None
    ) -> Tensor:
        variable = variable_op(ref)
        label = variable.name

        def apply(cell: Cell, given: Any) -> Any:
            with np.errstate(over="ignore"):  # integers wrap around
                return cell.change(label, lambda old: function(old, given))

        with scopes.name_scope(name, op_type) as scope:
            tensor = _operand(ref, value, op_type)
            check_equal_dims(variable.outputs[0].shape, tensor.shape)
            return _change(ref, op_type, tensor, scope, apply)

    doc = f"A tensor with a variable's new value; running it {verb} `value`, atomically."
    return named(change, name, doc)


_Changing = Callable[..., Tensor]
assign_add: _Changing = _changing("assign_add", "AssignAdd", "adds", np.add)
assign_sub: _Changing = _changing("assign_sub", "AssignSub", "subtracts", np.subtract)


def count_up_to(ref: Any, limit: int, name: str | None = None) -> Tensor:
    """A variable's value before it is increased by one, atomically; out of range at `limit`."""
    variable = variable_op(ref)
    dtype, shape = variable.outputs[0].dtype, variable.outputs[0].shape
    if dtype not in _NUMBERS:
        raise TypeError(
            f"Value passed to parameter 'ref' has DataType {dtype.name} not in list of allowed "
            "values: int32, int64"
        )
    if shape.ndims not in (None, 0):
        raise ValueError(f"Shape must be rank 0 but is rank {shape.ndims}")
    most = int(limit)

    def count(step: Any) -> Any:
        def increased(old: Any) -> Any:
            if old >= most:
                raise OutOfRangeError(None, None, f"Reached limit of {most}")
            return old + one

        return variable_cell(step, variable).change(variable.name, increased) - one

    one = dtype.as_numpy_dtype(1)
    made = variable.graph.create_op(
        "CountUpTo", (), [(dtype, TensorShape(()))], count, name=name,
        attrs={"variable_op": variable, "limit": most},
    )  # fmt: skip
    return made.outputs[0]


def is_variable_initialized(ref: Any, name: str | None = None) -> Tensor:
    """A bool scalar: whether a variable has a value in the session."""
    variable = variable_op(ref)
    kernel = lambda step: np.bool_(variable_cell(step, variable).is_set)  # noqa: E731
    create, outputs = variable.graph.create_op, [(dtypes.bool, TensorShape(()))]
    return create("IsVariableInitialized", (), outputs, kernel, name=name).outputs[0]


_Listing = Callable[..., list[Any]]


def _listing(name: str, key: str) -> _Listing:
    def listed(scope: str | None = None) -> list[Any]:
        return scopes.get_collection(key, scope)

    doc = f"The default graph's {name.replace('_', ' ')}; those whose names match `scope`."
    return named(listed, name, doc)


global_variables: _Listing = _listing("global_variables", scopes.GraphKeys.GLOBAL_VARIABLES)
local_variables: _Listing = _listing("local_variables", scopes.GraphKeys.LOCAL_VARIABLES)
trainable_variables: _Listing = _listing(
    "trainable_variables", scopes.GraphKeys.TRAINABLE_VARIABLES
)
model_variables: _Listing = _listing("model_variables", scopes.GraphKeys.MODEL_VARIABLES)
moving_average_variables: _Listing = _listing(
    "moving_average_variables", scopes.GraphKeys.MOVING_AVERAGE_VARIABLES
)


def report_uninitialized_variables(
    var_list: Sequence[Any] | None = None, name: str = "report_uninitialized_variables"
) -> Tensor:
    """A vector of strings: the names of the variables that have no value in the session."""
    variables = [*global_variables(), *local_variables()] if var_list is None else var_list
    operations = [variable_op(one) for one in variables]

    def kernel(step: Any) -> Any:
        missing = [one.name.encode() for one in operations if not variable_cell(step, one).is_set]
        found = np.empty(len(missing), dtype=object)
        found[:] = missing
        return found

    outputs = [(dtypes.string, TensorShape([None]))]
    return op("ReportUninitializedVariables", (), outputs, kernel, name=name).outputs[0]


def variables_initializer(var_list: Sequence[Any], name: str = "init") -> Operation:
    """An operation that gives variables their initial values."""
    with scopes.control_dependencies(None):
        return group(*[one.initializer for one in var_list], name=name)


def global_variables_initializer() -> Operation:
    """An operation that gives all global variables their initial values."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Operation:
    """An operation that gives all local variables, such as epoch counters, their initial values."""
    return variables_initializer(local_variables())


def tables_initializer(name: str = "init_all_tables") -> Operation:
    """An operation that fills all lookup tables."""
    found = scopes.get_collection(scopes.GraphKeys.TABLE_INITIALIZERS)
    return group(*found, name=name) if found else no_op(name)


# Old names.
all_variables = global_variables
initialize_variables = variables_initializer
initialize_all_variables = global_variables_initializer
initialize_local_variables = local_variables_initializer
initialize_all_tables = tables_initializer


def get_global_step(graph: Graph | None = None) -> Any:
    """The global step of a graph; None if it has none."""
    graph = get_default_graph() if graph is None else graph
    found = graph.get_collection(scopes.GraphKeys.GLOBAL_STEP)
    if len(found) != 1:
        variables = graph.get_collection(scopes.GraphKeys.GLOBAL_VARIABLES)
        found = [one for one in variables if one.name == "global_step:0"]
        if not found:
            return None
    assert_global_step(found[0])
    return found[0]


def create_global_step(graph: Graph | None = None) -> Any:
    """Make the global step of a graph: an int64 variable, 0 at first."""
    graph = get_default_graph() if graph is None else graph
    if get_global_step(graph) is not None:
        raise ValueError('"global_step" already exists.')
    with graph.as_default(), graph.name_scope(None):
        return Variable(
            lambda: constant(np.int64(0), name="zeros"),
            trainable=False,
            name=scopes.GraphKeys.GLOBAL_STEP,
            collections=[scopes.GraphKeys.GLOBAL_VARIABLES, scopes.GraphKeys.GLOBAL_STEP],
        )


def get_or_create_global_step(graph: Graph | None = None) -> Any:
    """The global step of a graph, made if it has none."""
    found = get_global_step(graph)
    return create_global_step(graph) if found is None else found


def global_step(sess: Any, global_step_tensor: Any) -> int:
    """The number of steps taken in a session."""
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
