"""What makes the stages of pipelines and runs them, as far as their description knows it.

That is in `aioqueue.inputs.pipeline`, which registers itself here: every source begins a pipeline,
and what runs one needs sources.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aioqueue.telemetry import Monitor, Watch

if TYPE_CHECKING:
    from aioqueue import Explanation
    from aioqueue.inputs.sources.items import Quarantined
    from aioqueue.inputs.sources.iteration import ResumablePipe
    from aioqueue.inputs.statistics import StageStatistics

__all__ = ("Engine", "Epoch", "Epochs", "Stage", "engine", "register")

T_co = TypeVar("T_co", covariant=True)


class Stage(Protocol):
    """One step of a pipeline, as it was asked for."""

    @property
    def name(self) -> str:
        """What it is called."""

    def details(self) -> str:
        """What is special about it, in few words."""


class Epoch(Protocol[T_co]):
    """One epoch of a pipeline that is being gone through."""

    @property
    def number(self) -> int:
        """Which one."""

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[T_co]: ...
    def __next__(self) -> T_co: ...
    def __aiter__(self) -> AsyncIterator[T_co]: ...
    async def __anext__(self) -> T_co: ...


class Epochs(Protocol[T_co]):
    """Epochs of a pipeline, one after another."""

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin behind a position."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Epoch[T_co]]: ...
    def __next__(self) -> Epoch[T_co]: ...
    def __aiter__(self) -> AsyncIterator[Epoch[T_co]]: ...
    async def __anext__(self) -> Epoch[T_co]: ...
    def __enter__(self) -> Epochs[T_co]: ...
    def __exit__(self, *exc_info: object) -> None: ...
    async def __aenter__(self) -> Epochs[T_co]: ...
    async def __aexit__(self, *exc_info: object) -> None: ...
    def close(self) -> None: ...
    async def aclose(self) -> None: ...
    def statistics(self) -> tuple[StageStatistics, ...]: ...
    def explain(self) -> Explanation: ...
    @property
    def quarantine(self) -> list[Quarantined]: ...
    def monitor(self, *, log: bool = False) -> Monitor: ...


class Engine(Protocol):
    """Makes stages of what was asked for, and runs pipelines."""

    def stage(self, kind: str, *arguments: Any, **options: Any) -> Stage:
        """Check a stage, and make it."""

    def checked(self, pipeline: Any) -> Any:
        """Check that the stages of a pipeline fit together."""

    def epochs(
        self,
        pipeline: Any,
        start: int,
        stop: int | None,
        resume: Any,
        watchdog: float | None,
        journal: Any,
    ) -> Epochs[Any]:
        """Go through epochs of a pipeline."""

    def resumed(self, pipeline: Any, state: Any) -> Epoch[Any]:
        """Go through the rest of one epoch, and end."""

    def single(self, pipeline: Any) -> Epoch[Any]:
        """Go through one epoch, and end."""

    def stream(
        self,
        source: Any,
        stages: Sequence[Stage],
        coord: Any,
        *,
        name: str,
        fit: Callable[[Any], Any] | None,
        resume: Mapping[str, Any] | None,
    ) -> ResumablePipe[Any]:
        """Go through one run of a source, by workers of a coordinator of the user's.

        Args:
            source: what is gone through, with all its epochs.
            stages: what is done with its items.
            coord: starts the workers.
            name: what messages and worker names call it.
            fit: makes of every example what is delivered, or refuses it.
            resume: a position to begin at.
        """

    def watch(self, pipeline: Any) -> Watch:
        """What monitors see of the runs of a pipeline."""

    def length(self, pipeline: Any) -> int | None:
        """How much one epoch gives, where that is known."""

    def sources(self, pipeline: Any) -> Sequence[Any]:
        """All sources of a pipeline, those of what is mixed in as well."""

    def text(self, pipeline: Any) -> str:
        """A drawing in letters."""

    def svg(self, pipeline: Any) -> str:
        """A drawing for notebooks and pages."""


_registered: Engine


def register(engine: Engine) -> None:
    """Say what makes stages and runs pipelines."""
    global _registered
    _registered = engine


def engine() -> Engine:
    """What makes stages and runs pipelines."""
    return _registered
