"""`Variable`: a value that lasts from run to run, in each session its own.

A variable is four operations: its initial value, itself, the assignment that initialises it, and a
read. Used like a tensor it is that read.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, NoReturn, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import (
    constant,
    convert_to_tensor,
    freeze,
    register_tensor_conversion_function,
)
from aioqueue.compat.v1.core.default_graph import get_default_graph, op
from aioqueue.compat.v1.core.dtypes import DType, as_dtype
from aioqueue.compat.v1.core.graph import Graph, Operation, Tensor
from aioqueue.compat.v1.core.names import named
from aioqueue.compat.v1.core.operators import Operators
from aioqueue.compat.v1.core.scopes import (
    GraphKeys,
    add_to_collections,
    control_dependencies,
    get_collection,
    init_scope,
    name_scope,
)
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape, check_equal_dims, unknown_shape
from aioqueue.compat.v1.errors import FailedPreconditionError, OutOfRangeError
from aioqueue.compat.v1.ops import random
from aioqueue.compat.v1.ops.control import cond, group, identity, no_op

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
    """A value that lasts from run to run.

    It has to be initialised in each session, by `global_variables_initializer` for instance.

    `caching_device`, `variable_def`, `expected_shape`, `import_scope`, `constraint`,
    `use_resource`, `synchronization` and `aggregation` have no effect: all variables are alike.
    """

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
        del caching_device, variable_def, expected_shape, import_scope, use_resource
        del synchronization, aggregation
        if initial_value is None:
            raise ValueError("initial_value must be specified.")
        if isinstance(collections, str):
            raise ValueError(
                f"collections argument to Variable constructor must be a list, tuple, or set. Got "
                f"{collections} of type {type(collections)}"
            )
        self._trainable = trainable is not False
        self.constraint = constraint
        values = [] if callable(initial_value) else [initial_value]
        with init_scope(), name_scope(name, "Variable", values) as scope:
            wanted = None if dtype is None else as_dtype(dtype)
            self._initial = _initial_tensor(initial_value, wanted)
            self._make(scope, None if shape is None else as_shape(shape), validate_shape)
        names = list([GraphKeys.GLOBAL_VARIABLES] if collections is None else collections)
        if self._trainable and GraphKeys.TRAINABLE_VARIABLES not in names:
            names.append(GraphKeys.TRAINABLE_VARIABLES)
        add_to_collections(names, self)

    def _make(self, scope: str, shape: TensorShape | None, validate_shape: bool) -> None:
        """Make the variable, its first assignment and its read."""
        known = self._initial.shape
        if shape is None:
            shape = known if validate_shape else unknown_shape()
            if validate_shape and not known.is_fully_defined():
                raise ValueError(f"initial_value must have a shape specified: {self._initial}")
        kind = (self._initial.dtype, shape)
        made = self._operation = get_default_graph().create_op(
            "VariableV2",
            (),
            [kind],
            lambda step: variable_cell(step, made).read(made.name),
            name=scope,
            attrs={"variable": True, "container": ""},  # the graph says which
        )
        assigned = _change(self, "Assign", self._initial, None, Cell.write)
        self._initializer = assigned.op
        self._snapshot = identity(self._operation.outputs[0], name="read")

    # What it is.

    @property
    def name(self) -> str:
        """``"<operation>:0"``."""
        return self._operation.outputs[0].name

    @property
    def op(self) -> Operation:
        """The operation of the variable itself."""
        return self._operation

    @property
    def graph(self) -> Graph:
        """The graph that it is part of."""
        return self._operation.graph

    @property
    def device(self) -> str:
        """Always empty: there is one device."""
        return ""

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._initial.dtype

    @property
    def shape(self) -> TensorShape:
        """What is known of the shape."""
        return self._operation.outputs[0].shape

    def get_shape(self) -> TensorShape:
        """The same as `shape`."""
        return self.shape

    def set_shape(self, shape: Any) -> None:
        """Add to what is known of the shape."""
        self._operation.outputs[0].set_shape(shape)
        self._snapshot.set_shape(shape)

    @property
    def trainable(self) -> bool:
        """Whether it is in the collection of what an optimizer changes."""
        return self._trainable

    @property
    def initializer(self) -> Operation:
        """The operation that gives it its initial value."""
        return self._initializer

    @property
    def initial_value(self) -> Tensor:
        """The tensor of its initial value."""
        return self._initial

    # Reading.

    def value(self) -> Tensor:
        """Its value in a run, read once per run."""
        return self._snapshot

    def read_value(self) -> Tensor:
        """A read of its own, which takes place when its control dependencies say."""
        variable = self._operation
        made = self.graph.create_op(
            "Identity",
            (),
            [(self.dtype, self.shape)],
            lambda step: variable_cell(step, variable).read(variable.name),
            name="read",
            attrs={"read_of": variable},
        )
        return made.outputs[0]

    def initialized_value(self) -> Tensor:
        """Its value, or its initial value while it is not initialised: for other initial values."""
        with init_scope():
            made = cond(is_variable_initialized(self), self.read_value, lambda: self._initial)
        assert isinstance(made, Tensor)
        return made

    def eval(self, session: Any = None) -> Any:
        """Its value in `session`, or else in the default session."""
        return self._operation.outputs[0].eval(session=session)

    def load(self, value: Any, session: Any = None) -> None:
        """Give it a value in `session`, or else in the default session."""
        self._initializer.run({self._initializer.inputs[0]: value}, session)

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
        return self._operation.outputs[0]

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
    with name_scope("Initializer"):
        return convert_to_tensor(initial_value(), dtype, name="initial_value")


def _to_tensor(
    value: Variable, dtype: DType | None = None, name: str | None = None, as_ref: bool = False
) -> Tensor:
    del name, as_ref
    if dtype is not None and dtype is not value.dtype:
        raise ValueError(
            f"Incompatible type conversion requested to type '{dtype.name}' for variable of type "
            f"'{value.dtype.name}'"
        )
    return value.value()


register_tensor_conversion_function(Variable, _to_tensor)


# Changing a variable.


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
        made = op(
            op_type,
            [value],
            [(value.dtype, static)],
            lambda step, given: function(variable_cell(step, variable), given),
            name=name,
            attrs={"variable_op": variable},
        )
    return made.outputs[0]


def _operand(ref: Any, value: Any, op_type: str) -> Tensor:
    """What is assigned or added, as a tensor of the variable's dtype."""
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
    """A tensor with a variable's new value; running it sets the variable.

    `use_locking` has no effect.
    """
    del use_locking
    with name_scope(name, "Assign") as scope:
        tensor = _operand(ref, value, "Assign")
        if validate_shape is False:
            return _change(ref, "Assign", tensor, scope, Cell.write, tensor.shape)
        check_equal_dims(variable_op(ref).outputs[0].shape, tensor.shape)
        return _change(ref, "Assign", tensor, scope, Cell.write)


def assign_add(
    ref: Any, value: Any, use_locking: bool | None = None, name: str | None = None
) -> Tensor:
    """A tensor with a variable's new value; running it adds `value` to the variable, atomically.

    `use_locking` has no effect.
    """
    del use_locking
    return _changed_by(ref, value, "AssignAdd", name, np.add)


def assign_sub(
    ref: Any, value: Any, use_locking: bool | None = None, name: str | None = None
) -> Tensor:
    """A tensor with a variable's new value; running it subtracts `value`, atomically.

    `use_locking` has no effect.
    """
    del use_locking
    return _changed_by(ref, value, "AssignSub", name, np.subtract)


def _changed_by(
    ref: Any, value: Any, op_type: str, name: str | None, function: Callable[[Any, Any], Any]
) -> Tensor:
    variable = variable_op(ref)
    label = variable.name

    def apply(cell: Cell, given: Any) -> Any:
        with np.errstate(over="ignore"):  # integers wrap around
            return cell.change(label, lambda old: function(old, given))

    with name_scope(name, op_type) as scope:
        tensor = _operand(ref, value, op_type)
        check_equal_dims(variable.outputs[0].shape, tensor.shape)
        return _change(ref, op_type, tensor, scope, apply)


def count_up_to(ref: Any, limit: int, name: str | None = None) -> Tensor:
    """A tensor with a variable's value before it is increased by one, atomically.

    Running it when the value has reached `limit` raises `OutOfRangeError` and changes nothing.
    """
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
    made = variable.graph.create_op(
        "IsVariableInitialized",
        (),
        [(dtypes.bool, TensorShape(()))],
        lambda step: np.bool_(variable_cell(step, variable).is_set),
        name=name,
    )
    return made.outputs[0]


class _Listing(Protocol):
    def __call__(self, scope: str | None = None) -> list[Any]:
        """Those of the default graph; those whose names match `scope`."""


def _listing(name: str, key: str) -> _Listing:
    def listed(scope: str | None = None) -> list[Any]:
        return get_collection(key, scope)

    doc = f"The default graph's {name.replace('_', ' ')}; those whose names match `scope`."
    return named(listed, name, doc)


global_variables: _Listing = _listing("global_variables", GraphKeys.GLOBAL_VARIABLES)
local_variables: _Listing = _listing("local_variables", GraphKeys.LOCAL_VARIABLES)
trainable_variables: _Listing = _listing("trainable_variables", GraphKeys.TRAINABLE_VARIABLES)
model_variables: _Listing = _listing("model_variables", GraphKeys.MODEL_VARIABLES)
moving_average_variables: _Listing = _listing(
    "moving_average_variables", GraphKeys.MOVING_AVERAGE_VARIABLES
)


def all_variables() -> list[Any]:
    """The old name of `global_variables`."""
    return global_variables()


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
    with control_dependencies(None):
        return group(*[one.initializer for one in var_list], name=name)


def global_variables_initializer() -> Operation:
    """An operation that gives all global variables their initial values."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Operation:
    """An operation that gives all local variables, such as epoch counters, their initial values."""
    return variables_initializer(local_variables())


def tables_initializer(name: str = "init_all_tables") -> Operation:
    """An operation that fills all lookup tables."""
    found = get_collection(GraphKeys.TABLE_INITIALIZERS)
    return group(*found, name=name) if found else no_op(name)


def initialize_variables(var_list: Sequence[Any], name: str = "init") -> Operation:
    """The old name of `variables_initializer`."""
    return variables_initializer(var_list, name)


def initialize_all_variables() -> Operation:
    """The old name of `global_variables_initializer`."""
    return global_variables_initializer()


def initialize_local_variables() -> Operation:
    """The old name of `local_variables_initializer`."""
    return local_variables_initializer()


def initialize_all_tables(name: str = "init_all_tables") -> Operation:
    """The old name of `tables_initializer`."""
    return tables_initializer(name)


class Initializer:
    """Makes the initial value of a variable."""

    def __init__(self, dtype: Any = dtypes.float32) -> None:
        self.dtype = as_dtype(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        """The initial value; `partition_info` has no effect."""
        dims = [int(one or 0) for one in as_shape(shape).as_list()]
        made: Tensor = self._make(dims, self.dtype if dtype is None else as_dtype(dtype))
        return made

    def _make(self, shape: list[int], dtype: DType) -> Any:
        raise NotImplementedError


class Zeros(Initializer):
    """Zeros."""

    def _make(self, shape: list[int], dtype: DType) -> Any:
        fill = b"" if dtype is dtypes.string else 0
        return constant(np.full(shape, fill, dtype.numpy), dtype, name="zeros")


class Ones(Initializer):
    """Ones."""

    def _make(self, shape: list[int], dtype: DType) -> Any:
        return constant(np.ones(shape, dtype.numpy), dtype, name="ones")


class Constant(Initializer):
    """One value everywhere, or given values in order."""

    def __init__(
        self, value: Any = 0, dtype: Any = dtypes.float32, verify_shape: bool = False
    ) -> None:
        super().__init__(dtype)
        self.value = value
        self._verify_shape = verify_shape

    def _make(self, shape: list[int], dtype: DType) -> Any:
        return constant(np.asarray(self.value), dtype, shape=shape, verify_shape=self._verify_shape)


class RandomUniform(Initializer):
    """Uniformly distributed numbers."""

    def __init__(
        self,
        minval: Any = 0,
        maxval: Any = None,
        seed: int | None = None,
        dtype: Any = dtypes.float32,
    ) -> None:
        super().__init__(dtype)
        self.minval, self.maxval, self.seed = minval, maxval, seed

    def _make(self, shape: list[int], dtype: DType) -> Any:
        return random.random_uniform(shape, self.minval, self.maxval, dtype=dtype, seed=self.seed)


class RandomNormal(Initializer):
    """Normally distributed numbers."""

    def __init__(
        self,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        seed: int | None = None,
        dtype: Any = dtypes.float32,
    ) -> None:
        super().__init__(dtype)
        self.mean, self.stddev, self.seed = mean, stddev, seed

    def _make(self, shape: list[int], dtype: DType) -> Any:
        return random.random_normal(shape, self.mean, self.stddev, dtype=dtype, seed=self.seed)


class TruncatedNormal(RandomNormal):
    """Normally distributed numbers, none further than two deviations from the mean."""

    def _make(self, shape: list[int], dtype: DType) -> Any:
        return random.truncated_normal(shape, self.mean, self.stddev, dtype=dtype, seed=self.seed)


class VarianceScaling(Initializer):
    """Random numbers whose variance depends on how many inputs or outputs there are."""

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | None = None,
        dtype: Any = dtypes.float32,
    ) -> None:
        super().__init__(dtype)
        if scale <= 0.0:
            raise ValueError(f"`scale` must be positive float, got {scale}")
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ValueError(f"Invalid `mode` argument: {mode}")
        distribution = distribution.lower()
        if distribution not in ("uniform", "normal", "truncated_normal", "untruncated_normal"):
            raise ValueError(f"Invalid `distribution` argument: {distribution}")
        self.scale, self.mode, self.distribution, self.seed = scale, mode, distribution, seed

    def _make(self, shape: list[int], dtype: DType) -> Any:
        variance = self.scale / max(1.0, _fan(shape, self.mode))
        if self.distribution == "uniform":
            limit = math.sqrt(3.0 * variance)
            return RandomUniform(-limit, limit, self.seed)._make(shape, dtype)
        if self.distribution == "untruncated_normal":
            return RandomNormal(0.0, math.sqrt(variance), self.seed)._make(shape, dtype)
        # Cutting the tails off leaves this share of the standard deviation.
        stddev = math.sqrt(variance) / 0.87962566103423978
        return TruncatedNormal(0.0, stddev, self.seed)._make(shape, dtype)


class GlorotUniform(VarianceScaling):
    """Uniformly distributed numbers between plus and minus ``sqrt(6 / (inputs + outputs))``.

    X. Glorot and Y. Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", AISTATS 2010.
    """

    def __init__(self, seed: int | None = None, dtype: Any = dtypes.float32) -> None:
        super().__init__(1.0, "fan_avg", "uniform", seed, dtype)


class GlorotNormal(VarianceScaling):
    """Truncated normal numbers of variance ``2 / (inputs + outputs)``; see `GlorotUniform`."""

    def __init__(self, seed: int | None = None, dtype: Any = dtypes.float32) -> None:
        super().__init__(1.0, "fan_avg", "truncated_normal", seed, dtype)


def _fan(shape: list[int], mode: str) -> float:
    """How many inputs, outputs, or both on average, weights of this shape connect."""
    if len(shape) < 2:
        fan_in = fan_out = math.prod(shape)
    else:
        field = math.prod(shape[:-2])
        fan_in, fan_out = field * shape[-2], field * shape[-1]
    return {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]


class _AutoReuse:
    def __repr__(self) -> str:
        return "AUTO_REUSE"


AUTO_REUSE: Final = _AutoReuse()
"""``reuse=``: a variable that exists is found, one that does not is made."""


class VariableScope:
    """What `get_variable` goes by: a prefix of names, and whether variables are found or made."""

    def __init__(
        self,
        reuse: Any,
        name: str = "",
        initializer: Any = None,
        dtype: Any = dtypes.float32,
        name_scope: str = "",
    ) -> None:
        self.reuse = reuse
        self.name = name
        self.initializer = initializer
        self.dtype: DType = as_dtype(dtype)
        self.name_scope = name_scope
        self._counts: dict[str, int] = {}

    @property
    def original_name_scope(self) -> str:
        """The name scope that was opened with it, with a ``/`` at its end."""
        return f"{self.name_scope}/" if self.name_scope else ""

    def reuse_variables(self) -> None:
        """From now on variables are only found."""
        self.reuse = True

    def set_initializer(self, initializer: Any) -> None:
        """Set what makes initial values, if a variable is not given its own."""
        self.initializer = initializer

    def global_variables(self) -> list[Any]:
        """The global variables of this scope."""
        return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, self._prefix())

    def local_variables(self) -> list[Any]:
        """The local variables of this scope."""
        return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES, self._prefix())

    def trainable_variables(self) -> list[Any]:
        """The trainable variables of this scope."""
        return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, self._prefix())

    def _prefix(self) -> str:
        return f"{self.name}/" if self.name else ""

    def full_name(self, name: str) -> str:
        """The name of a variable in this scope."""
        return self._prefix() + name

    def unique_name(self, prefix: str) -> str:
        """A name for a scope within this one that no other has."""
        count = self._counts.get(prefix, 0)
        self._counts[prefix] = count + 1
        return f"{prefix}_{count}" if count else prefix

    def within(self, name: str, reuse: Any, initializer: Any, dtype: Any) -> VariableScope:
        """A scope within this one, which inherits what it is not given."""
        return VariableScope(
            reuse or self.reuse,
            self.full_name(name),
            self.initializer if initializer is None else initializer,
            self.dtype if dtype is None else dtype,
        )

    def opened(self, *settings: Any) -> VariableScope:
        """This scope entered again, perhaps with other settings."""
        made = self.within("", *settings)
        made.name, made.name_scope, made._counts = self.name, self.name_scope, self._counts
        return made


class _Store:
    """A graph's variables by name, and the scope that each thread is in."""

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self.root = VariableScope(False)
        self._local = threading.local()

    @property
    def scope(self) -> VariableScope:
        found: VariableScope = getattr(self._local, "scope", self.root)
        return found

    @scope.setter
    def scope(self, scope: VariableScope) -> None:
        self._local.scope = scope


_stores: WeakKeyDictionary[Graph, _Store] = WeakKeyDictionary()


def _store() -> _Store:
    return _stores.setdefault(get_default_graph(), _Store())


def get_variable_scope() -> VariableScope:
    """The variable scope that the default graph is in."""
    return _store().scope


class variable_scope:  # noqa: N801  # TensorFlow's name
    """`get_variable` puts a prefix before names within ``with tf.variable_scope(name) as scope:``.

    A name scope of that name is opened as well.

    `regularizer`, `caching_device`, `partitioner`, `use_resource` and `constraint` have no effect;
    `custom_getter` must be None.
    """

    def __init__(
        self,
        name_or_scope: Any,
        default_name: str | None = None,
        values: Iterable[Any] | None = None,
        initializer: Any = None,
        regularizer: Any = None,
        caching_device: Any = None,
        partitioner: Any = None,
        custom_getter: Any = None,
        reuse: Any = None,
        dtype: Any = None,
        use_resource: bool | None = None,
        constraint: Any = None,
        auxiliary_name_scope: bool = True,
    ) -> None:
        del regularizer, caching_device, partitioner, use_resource, constraint
        if custom_getter is not None:
            raise ValueError("custom_getter: variables are made by tf.Variable here; expected None")
        if name_or_scope is None and default_name is None:
            raise TypeError("If default_name is None then name_or_scope is required")
        if name_or_scope is not None and not isinstance(name_or_scope, str | VariableScope):
            raise TypeError(
                f"VariableScope: name_or_scope must be a string or VariableScope, got "
                f"{name_or_scope!r}"
            )
        if name_or_scope is None and reuse:
            raise ValueError("reuse=True cannot be used without a name_or_scope")
        self._given = name_or_scope
        self._default_name = default_name
        self._values = [one for one in values or () if isinstance(one, Tensor)]
        self._settings = (reuse, initializer, dtype)
        self._opens_names = auxiliary_name_scope
        self._entered: list[ExitStack] = []

    def __enter__(self) -> VariableScope:
        stack = ExitStack()
        if self._values:
            stack.enter_context(self._values[0].graph.as_default())
        graph, store = get_default_graph(), _store()
        outer = store.scope
        if isinstance(self._given, VariableScope):
            scope = self._given.opened(*self._settings)
            label = self._given.name.rpartition("/")[2]
        else:
            name = self._given
            if name is None:
                assert self._default_name is not None
                name = outer.unique_name(self._default_name)
            scope = outer.within(name, *self._settings)
            label = name
        if self._opens_names and label:
            opened = stack.enter_context(graph.name_scope(label))
            if not isinstance(self._given, VariableScope):
                scope.name_scope = opened.rstrip("/")
        stack.callback(setattr, store, "scope", outer)
        store.scope = scope
        self._entered.append(stack)
        return scope

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered.pop().__exit__(kind, error, traceback)


def get_variable(
    name: str,
    shape: Any = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool | None = None,
    collections: Iterable[str] | None = None,
    caching_device: Any = None,
    partitioner: Any = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    custom_getter: Any = None,
    constraint: Any = None,
    synchronization: Any = None,
    aggregation: Any = None,
) -> Variable:
    """The variable of that name in the current variable scope: made, or found again.

    `regularizer`, `caching_device`, `partitioner`, `use_resource`, `constraint`, `synchronization`
    and `aggregation` have no effect; `custom_getter` must be None.
    """
    del regularizer, caching_device, partitioner, use_resource, synchronization, aggregation
    if custom_getter is not None:
        raise ValueError("custom_getter: variables are made by tf.Variable here; expected None")
    store = _store()
    scope = store.scope
    full = scope.full_name(name)
    kind = scope.dtype if dtype is None else as_dtype(dtype)
    static = None if shape is None else as_shape(shape)
    found = store.variables.get(full)
    if found is not None:
        if not scope.reuse:
            where = "" if found.op.defined_at is None else ":".join(map(str, found.op.defined_at))
            raise ValueError(
                f"Variable {full} already exists, disallowed. Did you mean to set reuse=True or "
                f"reuse=tf.AUTO_REUSE in VarScope? Originally defined at: {where}"
            )
        return _again(found, full, static, None if dtype is None else kind)
    if scope.reuse is True:
        raise ValueError(
            f"Variable {full} does not exist, or was not created with tf.get_variable(). Did you "
            "mean to set reuse=tf.AUTO_REUSE in VarScope?"
        )
    chosen = scope.initializer if initializer is None else initializer
    initial, kind_or_none = _initial(full, static, kind, dtype is not None, chosen)
    with get_default_graph().name_scope(None), init_scope():
        made = Variable(
            initial,
            trainable=trainable,
            collections=collections,
            validate_shape=validate_shape,
            name=full,
            dtype=kind_or_none,
            constraint=constraint,
        )
    store.variables[full] = made
    return made


def _again(found: Variable, full: str, shape: TensorShape | None, dtype: DType | None) -> Variable:
    if shape is not None and not shape.is_compatible_with(found.shape):
        raise ValueError(
            f"Trying to share variable {full}, but specified shape {shape} and found shape "
            f"{found.shape}."
        )
    if dtype is not None and dtype is not found.dtype:
        raise ValueError(
            f"Trying to share variable {full}, but specified dtype {dtype.name} and found dtype "
            f"{found.dtype.name}."
        )
    return found


def _initial(
    full: str, shape: TensorShape | None, dtype: DType, explicit: bool, initializer: Any
) -> tuple[Any, DType | None]:
    """The initial value, and the dtype to make it."""
    if initializer is not None and not callable(initializer):
        if shape is not None:
            raise ValueError("If initializer is a constant, do not specify shape.")
        return initializer, dtype if explicit else None
    if isinstance(initializer, type):
        initializer = initializer()
    if shape is None and not _needs_no_shape(initializer):
        raise ValueError(
            f"Variable {full} did not get an initializer, so its `shape` argument must be "
            "specified."
            if initializer is None
            else f"Shape of a new variable ({full}) must be fully defined, but instead was None."
        )
    if shape is None:
        return initializer, dtype if explicit else None
    if not shape.is_fully_defined():
        raise ValueError(
            f"Shape of a new variable ({full}) must be fully defined, but instead was {shape}."
        )
    maker = initializer or _default_initializer(full, dtype)
    return lambda: _made(maker, shape.as_list(), dtype), dtype


def _needs_no_shape(initializer: Any) -> bool:
    """Whether it is a function without arguments, as `Variable` takes it."""
    code = getattr(initializer, "__code__", None)
    return code is not None and code.co_argcount == len(initializer.__defaults__ or ())


def _made(maker: Callable[..., Any], shape: list[int | None], dtype: DType) -> Any:
    if _needs_no_shape(maker):
        return maker()
    try:
        return maker(shape, dtype=dtype, partition_info=None)
    except TypeError:
        return maker(shape, dtype=dtype)


def _default_initializer(full: str, dtype: DType) -> Callable[..., Any]:
    if dtype.is_floating:
        return GlorotUniform()
    if dtype.is_integer or dtype.is_bool or dtype is dtypes.string:
        return lambda shape, dtype: constant(
            np.full(shape, b"" if dtype is dtypes.string else 0, dtype.numpy), dtype
        )
    raise ValueError(f"An initializer for variable {full} of {dtype} is required")


def get_local_variable(name: str, *args: Any, **kwargs: Any) -> Variable:
    """A variable of the collection of local variables, which is not trainable."""
    kwargs.setdefault("collections", [])
    kwargs["collections"] = [*kwargs["collections"], GraphKeys.LOCAL_VARIABLES]
    kwargs["trainable"] = False
    return get_variable(name, *args, **kwargs)


def no_regularizer(_: Any) -> None:
    """A regularizer that adds nothing to the losses."""


def get_global_step(graph: Graph | None = None) -> Any:
    """The global step of a graph; None if it has none."""
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
    """Make the global step of a graph: an int64 variable, 0 at first."""
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
