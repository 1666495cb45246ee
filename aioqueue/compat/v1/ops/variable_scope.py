"""Variables found by name: `get_variable`, the scopes that it goes by, and initializers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import constant
from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.dtypes import DType, as_dtype
from aioqueue.compat.v1.core.graph import Graph, Tensor
from aioqueue.compat.v1.core.scopes import GraphKeys, init_scope
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape
from aioqueue.compat.v1.ops import random
from aioqueue.compat.v1.ops.variables import Variable

__all__ = (
    "AUTO_REUSE", "VariableScope", "get_local_variable", "get_variable", "get_variable_scope",
    "variable_scope",
)  # fmt: skip


class Initializer:
    """Makes the initial value of a variable."""

    dtype: Any

    def __init__(self, dtype: Any = dtypes.float32) -> None:
        self.dtype = as_dtype(dtype)

    def __post_init__(self) -> None:
        self.dtype = as_dtype(self.dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        """The initial value; `partition_info` has no effect."""
        dims = [int(one or 0) for one in as_shape(shape).as_list()]
        made: Tensor = self._make(dims, self.dtype if dtype is None else as_dtype(dtype))
        return made

    def _make(self, shape: list[int], dtype: DType) -> Any:
        raise NotImplementedError


class Zeros(Initializer):
    def _make(self, shape: list[int], dtype: DType) -> Any:
        fill = b"" if dtype is dtypes.string else 0
        return constant(np.full(shape, fill, dtype.numpy), dtype, name="zeros")


class Ones(Initializer):
    def _make(self, shape: list[int], dtype: DType) -> Any:
        return constant(np.ones(shape, dtype.numpy), dtype, name="ones")


@dataclass(eq=False, repr=False)
class Constant(Initializer):
    """One value everywhere, or given values in order."""

    value: Any = 0
    dtype: Any = dtypes.float32
    verify_shape: bool = False

    def _make(self, shape: list[int], dtype: DType) -> Any:
        return constant(np.asarray(self.value), dtype, shape=shape, verify_shape=self.verify_shape)


@dataclass(eq=False, repr=False)
class RandomUniform(Initializer):
    """Uniformly distributed numbers."""

    minval: Any = 0
    maxval: Any = None
    seed: int | None = None
    dtype: Any = dtypes.float32

    def _make(self, shape: list[int], dtype: DType) -> Any:
        return random.random_uniform(shape, self.minval, self.maxval, dtype=dtype, seed=self.seed)


@dataclass(eq=False, repr=False)
class RandomNormal(Initializer):
    """Normally distributed numbers."""

    mean: Any = 0.0
    stddev: Any = 1.0
    seed: int | None = None
    dtype: Any = dtypes.float32

    def _make(self, shape: list[int], dtype: DType) -> Any:
        return random.random_normal(shape, self.mean, self.stddev, dtype=dtype, seed=self.seed)


class TruncatedNormal(RandomNormal):
    """Normally distributed numbers, none further than two deviations from the mean."""

    def _make(self, shape: list[int], dtype: DType) -> Any:
        return random.truncated_normal(shape, self.mean, self.stddev, dtype=dtype, seed=self.seed)


@dataclass(eq=False, repr=False)
class VarianceScaling(Initializer):
    """Random numbers whose variance depends on how many inputs or outputs there are."""

    scale: float = 1.0
    mode: str = "fan_in"
    distribution: str = "truncated_normal"
    seed: int | None = None
    dtype: Any = dtypes.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale <= 0.0:
            raise ValueError(f"`scale` must be positive float, got {self.scale}")
        if self.mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ValueError(f"Invalid `mode` argument: {self.mode}")
        self.distribution = kind = self.distribution.lower()
        if kind not in ("uniform", "normal", "truncated_normal", "untruncated_normal"):
            raise ValueError(f"Invalid `distribution` argument: {kind}")

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
    """Uniform numbers of variance ``2 / (inputs + outputs)``."""

    def __init__(self, seed: int | None = None, dtype: Any = dtypes.float32) -> None:
        super().__init__(1.0, "fan_avg", "uniform", seed, dtype)


class GlorotNormal(VarianceScaling):
    """Truncated normal numbers of variance ``2 / (inputs + outputs)``."""

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
        return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, self._prefix())

    def local_variables(self) -> list[Any]:
        return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES, self._prefix())

    def trainable_variables(self) -> list[Any]:
        return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, self._prefix())

    def _prefix(self) -> str:
        return f"{self.name}/" if self.name else ""

    def full_name(self, name: str) -> str:
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
    """A prefix of the names of `get_variable`, and a name scope; no custom getters."""

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

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)


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
    """The variable of that name in the current variable scope: made, or found again."""
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
