"""A pipeline and its stages as descriptions: what they are, whatever runs them.

A stage is a description that never changes. What it needs in order to be run, a `BuildContext`
has; what it becomes then is a `Node`.

Monitors and explanations see a pipeline through `NodePart`. A pipeline has one watch, to which all
its runs come. Code between stages that have workers, such as a ``collate`` or the source, is
measured by node.

Nodes are measured while somebody looks, and not at all else: their methods are replaced for that.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from random import Random
from time import perf_counter
from types import FrameType
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

from aioqueue.durations import Durations
from aioqueue.inputs.core.base_source import BaseSource
from aioqueue.inputs.pipeline.node import Node
from aioqueue.locks import holding
from aioqueue.meters import Tracer
from aioqueue.telemetry import FUNCTION, EndingPart, Histogram, StageNumbers, Watch
from aioqueue.telemetry.explanation import Culprit, ExplainedWait, seconds_told
from aioqueue.telemetry.stacks import named, place_of, stack_of

__all__ = ("BasePipeline", "BaseStage", "BuildContext", "NodePart", "explained_wait", "watch_of")


T_co = TypeVar("T_co", covariant=True)


class BuildContext(Protocol):
    """What stages need in order to become nodes."""

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
            buffer_size: how many rows may wait.
            options: how they are prepared.
            at_once: how many of those that wait may be taken out together; ``None`` for the usual.
        """

    def branch(self, pipeline: BasePipeline[Any]) -> Node:
        """Build another pipeline beside this one."""

    def largest_batch(self) -> int:
        """How many rows one row of a later stage may need."""


class BaseStage(ABC):
    """One step of a pipeline."""

    name: ClassVar[str]

    @abstractmethod
    def details(self) -> str:
        """What is special about it, in few words."""

    @abstractmethod
    def node(self, upstream: Node, building: BuildContext) -> Node:
        """What does it."""

    def function_name(self) -> str:
        """The name of the user's function that it calls; its own, if it calls none."""
        return self.name

    def length(self, rows: int | None) -> int | None:
        """How many rows it makes of so many, where that is known."""
        return rows

    def depends_on_data(self) -> bool:
        """Whether of as many rows it may make more or fewer, on different ranks say."""
        return self.length(2**40) is None

    def needs(self) -> int:
        """How many rows it may need for one that it makes."""
        return 1

    def goes_on(self) -> bool:
        """Whether it keeps rows of an epoch for the next one."""
        return False

    def fingerprint(self) -> dict[str, Any]:
        """What a position must have in common with it, in plain JSON types: by field."""
        return {}

    def branches(self) -> list[BasePipeline[Any]]:
        """What comes in besides."""
        return []

    def is_elastic(self) -> bool:
        """Whether another number of ranks can go on with what is left of an epoch."""
        return True

    def passes_on(self) -> bool:
        """Whether it hands on what comes in, and nobody else is given that."""
        return False

    def copies(self) -> bool:
        """Whether arrays that come in are copied into what it makes."""
        return False

    def draws(self) -> bool:
        """Whether what it makes is random, and so another thing in another epoch."""
        return False


class BasePipeline(Generic[T_co]):
    """A source and the stages after it: what the nodes, runs and positions know of a `Pipeline`.

    Args:
        source: where the items come from.
        stages: what is done with them, in order.
    """

    def __init__(self, source: BaseSource[Any], stages: Iterable[BaseStage] = ()) -> None:
        self.source = source
        self.stages = tuple(stages)

    def __repr__(self) -> str:
        stages = [f"{stage.name} {stage.details()}".strip() for stage in self.stages]
        return f"<aioqueue.inputs.Pipeline of {' | '.join([repr(self.source), *stages])}>"

    def _made_of(self, source: BaseSource[Any], stages: Iterable[BaseStage]) -> Self:
        """One of the same kind, of something else."""
        return type(self)(source, stages)


_QUICK: Final = 5e-6
"""Seconds of a call that is not worth measuring each time."""

_MOST: Final = 64
"""Calls, about, that one may stand for."""

_lock: Final = threading.RLock()  # guards _watches
_watches: Final[WeakKeyDictionary[BasePipeline[Any], Watch]] = WeakKeyDictionary()


def watch_of(pipeline: BasePipeline[Any]) -> Watch:
    """The watch of a pipeline, as long as that lives."""
    return holding(_lock, _watch_of, pipeline)


def _watch_of(pipeline: BasePipeline[Any]) -> Watch:
    watch = _watches.get(pipeline)
    if watch is None:
        watch = _watches[pipeline] = Watch(comes_again=True)
    return watch


class NodePart(EndingPart):
    """What is spent in one node: in functions of the user's, or at the source.

    Args:
        node: which one. It is not kept.
        key: names it, in all runs of a pipeline.
        name: of the function; of the stage, if it has none.
        kind: the stage.
        methods: names of the methods that are measured.
        is_sampled: whether calls may be so many, and so quick, that one stands for several.
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
        """Key of the stage that takes from it; ``None``: the loop itself does."""
        self._kind = kind
        self._node = weakref.ref(node)
        self._methods = tuple(methods)
        self._is_sampled = is_sampled
        self._is_on = False
        self._random = Random(0)
        self._stride = 1
        self._left = 0  # calls that are not measured
        self._passed_over = 0
        self._service = Durations()
        self._since = 0.0
        self._begun = 0.0  # seconds spent on a call that is still to be made

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be done: it goes with its node."""
        return self._node() is None

    def queues(self) -> list[Any]:
        """The queues that are known to it: none."""
        return []

    def look(self, now: float) -> None:
        """Have the node measured, until nobody looks."""
        if not self._is_on:
            self._is_on = True
            node = self._node()
            for name in self._methods if node is not None else ():
                setattr(node, name, self._measured(getattr(type(node), name)))

    def look_no_more(self) -> None:
        """Nobody looks any more."""
        node = self._node()
        if self._is_on and node is not None:
            for name in self._methods:
                vars(node).pop(name, None)
        self._is_on = False

    def trace(self, tracer: Tracer | None) -> None:
        """There is no worker to be told of."""

    def numbers(self, now: float) -> StageNumbers:
        """What was spent so far."""
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
        referent = self._node  # whoever calls keeps it; this must not

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
            # At random: what is slow now and then is seen as often as it is there.
            self._left = self._passed_over = self._random.randrange(2 * self._stride - 1)


def explained_wait(loop: Any, seconds: float, frames: Mapping[int, FrameType]) -> ExplainedWait:
    """The wait of a loop over a pipeline that makes the next batch itself.

    Args:
        loop: the thread or the task.
        seconds: for how long it has asked for the batch.
        frames: the current frames of all threads.
    """
    name, key = named(loop)
    stack = stack_of(loop, frames)
    place = place_of(stack)
    at = "" if place is None else f", at {place}"
    what = "waits for the next batch of a pipeline"
    culprit = Culprit(
        "worker",
        f"{name}, which makes the next batch itself, has been at it for"
        f" {seconds_told(seconds)}{at}",
        (f"{name} {what}, for {seconds_told(seconds)}",),
        worker=name,
    )
    return ExplainedWait(name, what, seconds, (culprit,), stack, key=key)
