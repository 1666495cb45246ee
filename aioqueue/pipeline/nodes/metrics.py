"""`NodePart`: the time that is spent in one node, measured while a monitor looks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable
from random import Random
from time import perf_counter
from typing import Any, Final, Protocol

from aioqueue.core.meters import Durations, Tracer
from aioqueue.telemetry import FUNCTION, EndingPart, Histogram, StageNumbers

_QUICK: Final = 5e-6
"""Calls that take fewer seconds are sampled, and not measured each time."""


_MOST: Final = 64
"""About how many calls one measured call may stand for."""


class _MeasuredNode(Protocol):
    """A node of a pipeline, as far as it is measured."""

    def calls_of(self, given: tuple[Any, ...], result: Any) -> int:
        """Return how many calls of the function a call of a measured method has made."""


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
        node: _MeasuredNode,
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
        """Whether its node was dropped, so that the numbers no longer change."""
        return self._node() is None

    def queues(self) -> list[Any]:
        """Its queues: a node has none."""
        return []

    def sample(self, now: float) -> None:
        if not self._is_on:
            self._is_on = True
            node = self._node()
            for name in self._methods if node is not None else ():
                setattr(node, name, self._measured(getattr(type(node), name)))

    def stop_sampling(self) -> None:
        node = self._node()
        if self._is_on and node is not None:
            for name in self._methods:
                vars(node).pop(name, None)
        self._is_on = False

    def trace(self, tracer: Tracer | None) -> None:
        """Do nothing: the node has no workers to trace."""

    def numbers(self, now: float) -> StageNumbers:
        """The time that was spent so far, as the numbers of a stage."""
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
