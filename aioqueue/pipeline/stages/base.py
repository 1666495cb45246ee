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
from collections.abc import Callable, Iterable
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
)
from weakref import WeakKeyDictionary

from aioqueue import InvalidArgumentError
from aioqueue.base.display_text import on_one_line
from aioqueue.sources.base import BaseSource
from aioqueue.system.locks import call_with_lock
from aioqueue.telemetry import Watch
from aioqueue.worlds.waker import in_event_loop

if TYPE_CHECKING:
    from aioqueue.pipeline.nodes.node import Node


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
        watch = _watches[pipeline] = Watch(is_repeatable=True)
    return watch


Spec: TypeAlias = Any
"""An element with `ArraySpec` in the place of arrays, and types in the place of other objects."""


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
