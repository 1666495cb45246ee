"""A pipeline and its stages as descriptions: what they are, whatever runs them.

A stage is a description that never changes. What it needs in order to be run, a `BuildContext`
has; what it becomes then is a `Node`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from aioqueue.inputs.core.base_source import BaseSource

if TYPE_CHECKING:
    from aioqueue.inputs.pipeline.node import Node

__all__ = ("BasePipeline", "BaseStage", "BuildContext")

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
