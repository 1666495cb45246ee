"""Reads the prompts of a `RolloutQueue` one at a time, with marks from which a run can resume."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Final, Protocol

from aioqueue import AsyncQueue, InvalidArgumentError, sync
from aioqueue.inputs import Epochs, Pipeline, Source, from_iterable, items
from aioqueue.sources.base import BaseSource

_SNAPSHOT_EVERY: Final = 16
"""Prompts of a pipeline between two of its states: a state is larger than a place of a source."""

Mark = Any
"""Where the run was before a prompt."""


class PromptReader(Protocol):
    """The prompts of one run, in order."""

    def mark(self) -> Mark:
        """Return where the run is: in front of the prompt that comes next."""

    def take_nowait(self) -> Any:
        """Return the next prompt without waiting; `NEEDS_TO_WAIT` if that cannot be known.

        Raises:
            StopIteration: there are no more.
        """

    async def take(self) -> Any:
        """Return the next prompt.

        Raises:
            StopAsyncIteration: there are no more.
        """

    def position(self, mark: Mark) -> dict[str, Any]:
        """Turn a mark into plain JSON types.

        Raises:
            Exception: prompts of this kind have no positions.
        """

    def seek(self, position: Mapping[str, Any]) -> None:
        """Begin at a position, before anything was taken.

        Raises:
            InvalidArgumentError: it is that of other prompts, or damaged.
        """

    async def close(self) -> None:
        """Close files, and end the workers of a pipeline."""


NEEDS_TO_WAIT: Final = object()


def prompt_reader(prompts: Any) -> PromptReader:
    """Make a reader of whatever a `RolloutQueue` is given.

    Raises:
        InvalidArgumentError: these are no prompts.
    """
    if isinstance(prompts, Pipeline):
        return _PipelineReader(prompts.epochs(None if prompts.source._is_endless else 1))
    if isinstance(prompts, Epochs):
        return _PipelineReader(prompts)
    if isinstance(prompts, BaseSource):
        return _SourceReader(prompts)
    if isinstance(prompts, str | bytes | Mapping):
        raise InvalidArgumentError(
            f"prompts: got {prompts!r}; expected a source or pipeline of aioqueue.inputs, a"
            " sequence, or another iterable of prompts"
        )
    if isinstance(prompts, Sequence) or (
        hasattr(prompts, "__getitem__") and hasattr(prompts, "__len__")
    ):
        return _SourceReader(items(prompts, epochs=1, name="prompts"))
    if isinstance(prompts, Iterable | AsyncIterable | AsyncQueue | sync.BlockingQueue):
        blocking = not isinstance(prompts, Iterator)
        return _SourceReader(from_iterable(prompts, blocking=blocking, name="prompts"))
    raise InvalidArgumentError(
        f"prompts: got {prompts!r}; expected a source or pipeline of aioqueue.inputs, a sequence,"
        " or another iterable of prompts"
    )


class _SourceReader:
    """Takes the items of a source. A mark is a place, which costs next to nothing."""

    def __init__(self, source: BaseSource[Any]) -> None:
        self._source = source
        self._has_places = source._is_repeatable
        self._place: Mark = None
        self._has_taken = False
        self._iterator: Iterator[Any] | None = None
        self._async_iterator: AsyncIterator[Any] | None = None

    def mark(self) -> Mark:
        return self._place

    def take_nowait(self) -> Any:
        source = self._source
        if self._iterator is None:
            if self._async_iterator is not None or not source._never_waits:
                return NEEDS_TO_WAIT
            self._iterator = iter(source.placed() if self._has_places else source.entries())
        return self._entered(next(self._iterator))

    async def take(self) -> Any:
        if self._async_iterator is None:
            source = self._source
            placed = self._has_places and not source._is_read_by_tasks
            self._has_places = placed
            self._async_iterator = aiter(source.aplaced() if placed else source._aentries())
        return self._entered(await anext(self._async_iterator))

    def _entered(self, taken: Any) -> Any:
        if not self._has_places:
            return taken.value
        entry, self._place = taken
        return entry.value

    def position(self, mark: Mark) -> dict[str, Any]:
        if not self._has_places:
            raise self._source._used_up()
        return {"source": self._source.position(mark)}

    def seek(self, position: Mapping[str, Any]) -> None:
        source = self._source
        if not isinstance(source, Source) or not self._has_places:
            raise source._used_up()
        if "source" not in position:
            raise InvalidArgumentError(
                "state: got one of a pipeline; expected one of a RolloutQueue over a source"
            )
        self._source = source.after(position["source"])
        self._place = None

    async def close(self) -> None:
        iterator, self._iterator = self._iterator, None
        async_iterator, self._async_iterator = self._async_iterator, None
        if iterator is not None and hasattr(iterator, "close"):
            iterator.close()
        if async_iterator is not None and hasattr(async_iterator, "aclose"):
            await async_iterator.aclose()


class _PipelineReader:
    """Takes the examples of a pipeline, epoch after epoch.

    A mark is a state of the pipeline, and how many prompts come after it.
    """

    def __init__(self, epochs: Epochs[Any]) -> None:
        self._epochs = epochs
        self._run: AsyncGenerator[Any, None] | None = None
        self._state: Mapping[str, Any] | None = None
        self._why_none: Exception | None = None
        self._behind = 0
        self._skipped = 0
        """Prompts to leave out: they come between the last state and the mark of a resumed run."""

    def mark(self) -> Mark:
        if self._state is None or self._behind >= _SNAPSHOT_EVERY:
            try:
                self._state, self._behind = self._epochs.state_dict(), 0
            except Exception as error:
                self._why_none = error
        return (self._state, self._behind)

    def take_nowait(self) -> Any:
        return NEEDS_TO_WAIT

    async def take(self) -> Any:
        if self._run is None:
            self._run = self._all_epochs()
        while self._skipped:
            self._skipped -= 1
            await anext(self._run)
            self._behind += 1
        prompt = await anext(self._run)
        self._behind += 1
        return prompt

    async def _all_epochs(self) -> AsyncGenerator[Any, None]:
        async for epoch in self._epochs:
            async for prompt in epoch:
                yield prompt

    def position(self, mark: Mark) -> dict[str, Any]:
        state, behind = mark if mark is not None else self.mark()
        if state is None:
            assert self._why_none is not None
            raise self._why_none
        return {"pipeline": state, "behind": behind}

    def seek(self, position: Mapping[str, Any]) -> None:
        if "pipeline" not in position:
            raise InvalidArgumentError(
                "state: got one of a source; expected one of a RolloutQueue over a pipeline"
            )
        self._epochs.load_state_dict(position["pipeline"])
        self._state = position["pipeline"]
        self._behind = 0
        self._skipped = position["behind"]

    async def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            await run.aclose()
            await self._epochs.aclose()
