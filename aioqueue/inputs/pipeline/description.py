"""A pipeline and its stages as descriptions, and what its elements look like.

A stage is an immutable description. A `BuildContext` gives it what it needs to run, and it then
makes a `Node`, which does the work. A pipeline has one watch, which all its runs share.

What elements look like is found by looking at some: the dtype and shape of each of their arrays.
What they differ in is not fixed: a dimension becomes ``None``, and a dtype the one that holds the
values of all.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
)
from weakref import WeakKeyDictionary

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.display_text import on_one_line
from aioqueue.inputs.core.base_source import BaseSource
from aioqueue.locks import call_with_lock
from aioqueue.public_names import public
from aioqueue.telemetry import Watch
from aioqueue.trees import Branch, branch_of
from aioqueue.waiting.waker import in_event_loop

if TYPE_CHECKING:
    from aioqueue.inputs.pipeline.node import Node

T_co = TypeVar("T_co", covariant=True)


class BuildContext(Protocol):
    """What a stage needs in order to make its node. `Builder` is the only one."""

    def seed(self, kind: str) -> int:
        """A seed for the next stage of this kind."""

    def workers(
        self,
        upstream: Node,
        function: Callable[..., Any],
        *,
        buffer_size: int,
        options: dict[str, Any],
        at_once: int | None = None,
    ) -> Node:
        """Start workers that prepare the rows of a node.

        Args:
            upstream: the node.
            function: called with each row's value.
            buffer_size: how many prepared rows may wait.
            options: the options of the `prepare`.
            at_once: how many waiting rows may be taken out together; ``None`` for the default.
        """

    def branch(self, pipeline: BasePipeline[Any]) -> Node:
        """Build a pipeline that is mixed into this one. Returns its last node."""

    def largest_batch(self) -> int:
        """How many rows of this stage the later stages may need for one row."""


class BaseStage(ABC):
    """One step of a pipeline."""

    name: ClassVar[str]
    combines: ClassVar[bool] = False
    """Whether it mixes in other pipelines: only such a stage has `branches`."""

    @abstractmethod
    def details(self) -> str:
        """The most important arguments, in few words."""

    @abstractmethod
    def node(self, upstream: Node, building: BuildContext) -> Node:
        """Make the node that does the work of this stage."""

    def function_name(self) -> str:
        """The name of the user's function that it calls; its own name without a function."""
        return self.name

    def length(self, rows: int | None) -> int | None:
        """How many rows it makes of this many; ``None`` if that is unknown."""
        return rows

    def depends_on_data(self) -> bool:
        """Whether it may make different numbers of rows of equally many, on two ranks, say."""
        return self.length(2**40) is None

    def needs(self) -> int:
        """How many rows it may need to make one row."""
        return 1

    def goes_on(self) -> bool:
        """Whether it keeps rows of one epoch for the next one."""
        return False

    def fingerprint(self) -> dict[str, Any]:
        """The arguments that must be the same for a position to fit, in plain JSON types."""
        return {}

    def branches(self) -> list[BasePipeline[Any]]:
        """The pipelines that it mixes in."""
        return []

    def is_elastic(self) -> bool:
        """Whether another number of ranks can continue an epoch that was begun."""
        return True

    def passes_on(self) -> bool:
        """Whether it passes on the same objects that it receives, each to one later stage."""
        return False

    def copies(self) -> bool:
        """Whether it copies the arrays that it receives into what it makes."""
        return False

    def makes_batches(self) -> bool | None:
        """Whether it makes batches, or single examples of them; ``None`` if neither."""
        return None

    def depth_of_batches(self, depth: int) -> int:
        """How deep batches are in batches behind it: 0 for single examples.

        Args:
            depth: before it.
        """
        makes = self.makes_batches()
        return depth if makes is None else depth + 1 if makes else 0

    def draws(self) -> bool:
        """Whether its output is random, so that it differs between epochs."""
        return False


class BasePipeline(Generic[T_co]):
    """A source and the stages after it: the part of a `Pipeline` that nodes and runs use.

    Args:
        source: where the items come from.
        stages: what is done with them, in order.
    """

    def __init__(self, source: BaseSource[Any], stages: Iterable[BaseStage] = ()) -> None:
        if not isinstance(source, BaseSource):
            raise InvalidArgumentError(
                f"source: got {source!r}; expected a source, such as items(...) or numbers(...)"
            )
        self.source = source
        self.stages: tuple[BaseStage, ...] = tuple(stages)

    def __repr__(self) -> str:
        stages = [f"{stage.name} {stage.details()}".strip() for stage in self.stages]
        parts = " | ".join([repr(self.source), *stages])
        return on_one_line(f"<aioqueue.inputs.Pipeline of {parts}>")

    def _made_of(self, source: BaseSource[Any], stages: Iterable[BaseStage]) -> Self:
        """A pipeline of the same class with another source or other stages."""
        return type(self)(source, stages)


_lock: Final = threading.RLock()  # guards _watches
_watches: Final[WeakKeyDictionary[BasePipeline[Any], Watch]] = WeakKeyDictionary()


def watch_of(pipeline: BasePipeline[Any]) -> Watch:
    """The watch of a pipeline; it lives as long as the pipeline."""
    return call_with_lock(_lock, _watch_of, pipeline)


def _watch_of(pipeline: BasePipeline[Any]) -> Watch:
    watch = _watches.get(pipeline)
    if watch is None:
        watch = _watches[pipeline] = Watch(comes_again=True)
    return watch


@public("aioqueue.inputs")
class ArraySpec(NamedTuple):
    """An array, or a scalar with a dtype, in an element. See `Pipeline.element_spec`."""

    shape: tuple[int | None, ...]
    """Its dimensions; ``None`` for one that varies."""
    dtype: Any
    """Its dtype: NumPy's, or that of the framework whose array it is."""


Spec: TypeAlias = Any
"""An element with `ArraySpec` in the place of arrays, and types in the place of other objects."""


def spec_of_all(elements: Sequence[Any], stages: Sequence[BaseStage]) -> Spec:
    """The spec that some elements have in common.

    Args:
        elements: one at least.
        stages: that have made them; they know whether the last batch may be smaller.
    """
    first, *others = map(_spec_of, elements)
    for other in others:
        first = _joined(first, other)
    return _leading_varies(first) if _last_is_smaller(stages) else first


def _spec_of(value: Any) -> Spec:
    if isinstance(value, np.generic):
        return ArraySpec((), value.dtype)
    branch = branch_of(value)
    if branch is None:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if dtype is not None and isinstance(shape, Sequence):
            return ArraySpec(tuple(map(int, shape)), dtype)
    return type(value) if branch is None else branch.make(list(map(_spec_of, branch.parts)))


def _parts_of(spec: Spec) -> Branch | None:
    return None if isinstance(spec, ArraySpec) else branch_of(spec)


def _joined(one: Spec, other: Spec) -> Spec:
    """What both have in common; ``object`` if that is nothing."""
    if isinstance(one, ArraySpec) and isinstance(other, ArraySpec):
        if len(one.shape) != len(other.shape):
            return object
        pairs = zip(one.shape, other.shape, strict=True)
        shape = tuple(size if size == found else None for size, found in pairs)
        return ArraySpec(shape, _common(one.dtype, other.dtype))
    ours, theirs = _parts_of(one), _parts_of(other)
    if ours is None or theirs is None or type(one) is not type(other):
        return one if one == other else object
    if {*ours.keys} == {*theirs.keys}:
        others = dict(zip(theirs.keys, theirs.parts, strict=True))
        pairs = zip(ours.keys, ours.parts, strict=True)
        return ours.make([_joined(part, others[key]) for key, part in pairs])
    return list if isinstance(one, list) else object


def _common(one: Any, other: Any) -> Any:
    if one == other or not isinstance(one, np.dtype) or not isinstance(other, np.dtype):
        return one if one == other else object
    try:
        return np.promote_types(one, other)
    except TypeError:
        return np.dtype(object)


def _leading_varies(spec: Spec) -> Spec:
    """The same with a first dimension that is not fixed."""
    if isinstance(spec, ArraySpec):
        return spec._replace(shape=(None, *spec.shape[1:])) if spec.shape else spec
    branch = _parts_of(spec)
    return spec if branch is None else branch.make(list(map(_leading_varies, branch.parts)))


def _last_is_smaller(stages: Sequence[BaseStage]) -> bool:
    """Whether the elements are batches or windows, and the last one may be smaller."""
    for stage in reversed(stages):
        if stage.makes_batches() is not None:
            return not getattr(stage, "drop_remainder", True)
        if not stage.passes_on() and stage.name != "to_device":
            return False  # a function has made what it likes
    return False


def gives_batches(source: BaseSource[Any], stages: Iterable[BaseStage]) -> bool:
    """Whether the elements behind some stages are batches, as far as these and the source tell."""
    depth = int(source._gives_batches)
    for stage in stages:
        depth = stage.depth_of_batches(depth)
    return depth > 0


def refuse_in_loop(method: str) -> None:
    """Refuse a blocking method in a coroutine, where it would block all other tasks.

    Args:
        method: its name; that of coroutines has an ``a`` in front.

    Raises:
        RuntimeError: an event loop runs in this thread.
    """
    if in_event_loop():
        raise RuntimeError(
            f"{method} would block the event loop that runs in this thread: use `await"
            f" pipeline.a{method}(...)` here"
        )
