"""A pipeline and its stages as descriptions, and what monitors see of them.

A stage is an immutable description. A `BuildContext` gives it what it needs to run, and it then
makes a `Node`, which does the work.

A pipeline has one watch, which all its runs share. Stages with workers measure themselves. The code
between them, such as a ``collate`` or the source, is measured node by node (`NodePart`), and only
while a monitor looks: then the methods of nodes are replaced by measuring ones. So a run without a
monitor pays nothing.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from random import Random
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

from aioqueue.inputs.core.base_source import BaseSource
from aioqueue.locks import holding
from aioqueue.meters import Durations, Tracer
from aioqueue.telemetry import EndingPart, Watch
from aioqueue.telemetry.explanation import Culprit, ExplainedWait, seconds_told
from aioqueue.telemetry.stacks import named, place_of, stack_of

if TYPE_CHECKING:
    from aioqueue.inputs.pipeline.node import Node
    from aioqueue.telemetry import StageNumbers

__all__ = ("BasePipeline", "BaseStage", "BuildContext", "NodePart", "explained_wait", "watch_of")


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
        self.source = source
        self.stages: tuple[BaseStage, ...] = tuple(stages)

    def __repr__(self) -> str:
        stages = [f"{stage.name} {stage.details()}".strip() for stage in self.stages]
        return f"<aioqueue.inputs.Pipeline of {' | '.join([repr(self.source), *stages])}>"

    def _made_of(self, source: BaseSource[Any], stages: Iterable[BaseStage]) -> Self:
        """A pipeline of the same class with another source or other stages."""
        return type(self)(source, stages)


_QUICK: Final = 5e-6
"""Calls that take fewer seconds are sampled, and not measured each time."""

_MOST: Final = 64
"""About how many calls one measured call may stand for."""

_lock: Final = threading.RLock()  # guards _watches
_watches: Final[WeakKeyDictionary[BasePipeline[Any], Watch]] = WeakKeyDictionary()


def watch_of(pipeline: BasePipeline[Any]) -> Watch:
    """The watch of a pipeline; it lives as long as the pipeline."""
    return holding(_lock, _watch_of, pipeline)


def _watch_of(pipeline: BasePipeline[Any]) -> Watch:
    watch = _watches.get(pipeline)
    if watch is None:
        watch = _watches[pipeline] = Watch(comes_again=True)
    return watch


class NodePart(EndingPart):
    """The time that is spent in one node: in a function of the user, or in the source.

    Args:
        node: the node. It is not kept alive.
        key: identifies the node in all runs of the pipeline.
        name: the name of the function; of the stage, if it calls none.
        kind: the name of the stage.
        methods: the names of the methods that are measured.
        is_sampled: whether calls may be so many and so fast that only some of them are measured.
    """

    def __init__(
        self,
        node: Node,
        key: Hashable,
        name: str,
        kind: str,
        methods: Iterable[str],
        *,
        is_sampled: bool,
    ) -> None:
        self.key = key
        self.name = name
        self.within: str | None = None
        """The key of the stage that reads it; ``None`` if the user's loop does."""
        self._kind = kind
        self._node = weakref.ref(node)
        self._methods = tuple(methods)
        self._is_sampled = is_sampled
        self._is_on = False
        self._random = Random(0)
        self._stride = 1
        self._left = 0  # how many of the next calls are not measured
        self._passed_over = 0  # unmeasured calls that the next measured one stands for
        self._service = Durations()
        self._since = 0.0
        self._begun = 0.0  # seconds spent so far without a finished call of the function

    @property
    def is_over(self) -> bool:
        """Whether its node is gone, so that the numbers will not change any more."""
        return self._node() is None

    def queues(self) -> list[Any]:
        """Its queues: a node has none."""
        return []

    def look(self, now: float) -> None:
        """Start to measure the node."""
        if not self._is_on:
            self._is_on = True
            node = self._node()
            for name in self._methods if node is not None else ():
                setattr(node, name, self._measured(getattr(type(node), name)))

    def look_no_more(self) -> None:
        """Stop measuring the node."""
        node = self._node()
        if self._is_on and node is not None:
            for name in self._methods:
                vars(node).pop(name, None)
        self._is_on = False

    def trace(self, tracer: Tracer | None) -> None:
        """Do nothing: the node has no workers to trace."""

    def numbers(self, now: float) -> StageNumbers:
        """The time that was spent so far, as the numbers of a stage."""
        from aioqueue.telemetry import FUNCTION, Histogram, StageNumbers

        service, since = Histogram(*self._service.counted()), self._since
        spent = service.seconds + self._begun
        return StageNumbers(
            name=self.name,
            where=FUNCTION,
            source=self._kind,
            into=self.within or "",
            workers=(),
            resizable=False,
            taken=service.count,
            delivered=service.count,
            skipped=0,
            retried=0,
            in_flight=0,
            in_flight_bytes=None,
            max_in_flight=None,
            service=service,
            cpu_sampled=0.0,
            cpu=0.0,
            source_waits=Histogram(),
            blocked=0.0,
            starved=0.0,
            seconds_window_full=0.0,
            ordered=True,
            busy=spent + (max(0.0, now - since) if since else 0.0),
        )

    def _measured(self, call: Callable[..., Any]) -> Callable[..., Any]:
        referent = self._node  # a weak reference: the node holds this function, so no cycle forms

        def measured(*arguments: Any) -> Any:
            node = referent()
            assert node is not None
            if self._left:
                self._left -= 1
                return call(node, *arguments)
            began = self._since = perf_counter()
            result = None
            try:
                result = call(node, *arguments)
            finally:
                seconds = perf_counter() - began
                self._since = 0.0
                self._add(seconds, node.calls_of(arguments, result))
            return result

        return measured

    def _add(self, seconds: float, calls: int) -> None:
        seconds += self._begun
        self._begun = 0.0 if calls else seconds
        if calls:
            self._service.add(seconds / calls, calls * (1 + self._passed_over))
        if self._is_sampled:
            self._stride = min(_MOST, 2 * self._stride) if seconds < _QUICK else 1
            # The distance is random, so that a periodic slow call is sampled as often as it occurs.
            self._left = self._passed_over = self._random.randrange(2 * self._stride - 1)


def explained_wait(loop: Any, seconds: float, frames: Mapping[int, FrameType]) -> ExplainedWait:
    """The wait of a loop that makes the next batch of a pipeline itself.

    Args:
        loop: the thread or the task of the loop.
        seconds: for how long it has waited for the batch.
        frames: the current frames of all threads.
    """
    name, key = named(loop)
    stack = stack_of(loop, frames)
    place = place_of(stack)
    at = "" if place is None else f", at {place}"
    what = "waits for the next batch of a pipeline"
    culprit = Culprit(
        "worker",
        f"{name} makes the next batch itself, and has been busy with it for"
        f" {seconds_told(seconds)}{at}",
        (f"{name} {what}, for {seconds_told(seconds)}",),
        worker=name,
    )
    return ExplainedWait(name, what, seconds, (culprit,), stack, key=key)
