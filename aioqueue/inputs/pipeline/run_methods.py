"""The methods that go through a source or pipeline: its epochs, one of them, or a look at it."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_count
from aioqueue.inputs.pipeline.build import checked, length_of, sources_of
from aioqueue.inputs.pipeline.checkpoint import checked_standing
from aioqueue.inputs.pipeline.description import BasePipeline, watch_of
from aioqueue.inputs.pipeline.diagram import svg, text
from aioqueue.inputs.pipeline.element_spec import spec_of_all
from aioqueue.inputs.pipeline.epochs import Epoch, Epochs
from aioqueue.inputs.pipeline.node import EpochRange
from aioqueue.inputs.pipeline.progress import ResumePoint
from aioqueue.inputs.pipeline.slicing_stages import Take
from aioqueue.locks import holding
from aioqueue.migration_hints import no_attribute, not_searched
from aioqueue.telemetry import Monitor, Watch

if TYPE_CHECKING:
    from aioqueue.inputs.core.items import Origin

__all__ = ("IterablePipeline", "RunMethods")

_log: Final = logging.getLogger("aioqueue")

T_co = TypeVar("T_co", covariant=True)


class RunMethods(ABC, Generic[T_co]):
    """The methods of sources and pipelines that go through epochs, or look at the first one."""

    @abstractmethod
    def _pipeline(self) -> BasePipeline[Any]:
        """This as a pipeline: a source alone is one without stages."""

    def epochs(
        self,
        count: int | None = None,
        *,
        start: int = 0,
        resume: Mapping[str, Any] | None = None,
        watchdog: float | None = None,
        journal: str | PathLike[str] | None = None,
        raise_single: bool = False,
    ) -> Epochs[T_co]:
        """Go through several epochs, which are prepared as one run.

        Each has another order and other generators than the one before. Workers live on from one
        to the next, and the next is prepared while this one is still used.

        Args:
            count: how many; ``None`` goes on for ever.
            start: the number of the first: where an earlier run has ended. Not with ``resume``.
            resume: what ``state_dict()`` of an earlier run gave, or `merge_positions` of those of
                another number of ranks: the batches behind it come, first those that are left of
                its epoch. Where the order is kept they are exactly those that the earlier run would
                have made. Functions, workers, limits, and the size of batches that are made last
                may be others than they were.
            watchdog: seconds after which the log has a warning that says why, when nothing has
                moved and someone has waited for so long: see `aioqueue.Coordinator`.
            journal: a file that notes which items each batch is made of, before it is handed out:
                see `read_journal`. With ``resume``, writing goes on in the same file: entries of
                batches behind the position, which come again, are removed. The file of another run
                is renamed, and not written over.
            raise_single: whether a single failure is raised as itself, so that an ``except
                KeyError`` around the loop works. Several are one `ExceptionGroup` in any case.

        Returns:
            An iterable, with ``for`` and ``async for``, of epochs, each of which is an iterable of
            what the pipeline makes (or of the items, of a source that no stage follows), with
            ``len`` where that is known. Leaving it ends the workers.

        Raises:
            InvalidArgumentError: an argument is wrong; or the position is damaged, or belongs to
                another pipeline: the message names the field that differs, and both values.
        """
        start = checked_count(start, "start")
        stop = None if count is None else start + checked_count(count, "count")
        if start and resume is not None:
            raise InvalidArgumentError(
                f"start: got {start} beside resume; expected one of both: a position has the epoch"
                " to go on in, and the count is that of all epochs from 0 on"
            )
        return Epochs(
            self._pipeline(), EpochRange(start, stop), resume, watchdog, journal, raise_single
        )

    def peek(self, count: int = 1) -> list[T_co]:
        """Look at the first elements of the first epoch, which stay where they are.

        This is a run of its own, which ends before you get them: later epochs begin at their
        beginning. It costs what the first elements cost: workers start, a `shuffle` fills its
        buffer, and functions are called with some items more than that, which are under way.

        Args:
            count: how many, >= 0; an epoch may have fewer.

        Returns:
            The elements, as a loop would have them.

        Raises:
            InvalidArgumentError: you can go through the source only once, so that it would lose
                them; or the count is no such int.
            ExceptionGroup: what has failed, as of a loop.
            RuntimeError: in an event loop; await `apeek` there.
        """
        with self._peeking(count) as epochs:
            return [element for epoch in epochs for element in epoch]

    async def apeek(self, count: int = 1) -> list[T_co]:
        """`peek` for coroutines.

        Args:
            count: how many, >= 0; an epoch may have fewer.

        Returns:
            The elements, as a loop would have them.

        Raises:
            InvalidArgumentError: as of `peek`.
            ExceptionGroup: what has failed, as of a loop.

        Cancellation:
            A cancelled call ends its run, and has taken nothing.
        """
        async with self._peeking(count) as epochs:
            return [element async for epoch in epochs async for element in epoch]

    def element_spec(self, count: int = 2) -> Any:
        """What the elements look like: found by a `peek`, and at its cost.

        Args:
            count: how many elements to look at, >= 1. A dimension in which they differ is ``None``,
                as is the first one of batches, unless all are full (``drop_remainder=True``).

        Returns:
            An element, with `ArraySpec` in the place of each array (of NumPy, PyTorch or JAX), and
            a type in the place of other objects.

        Raises:
            InvalidArgumentError: as of `peek`; or the first epoch is empty.
            ExceptionGroup: what has failed, as of a loop.
            RuntimeError: in an event loop; await `aelement_spec` there.
        """
        return self._spec_of(self.peek(checked_count(count, "count", least=1)))

    async def aelement_spec(self, count: int = 2) -> Any:
        """`element_spec` for coroutines.

        Args:
            count: how many elements to look at, >= 1.

        Returns:
            As `element_spec` does.

        Raises:
            InvalidArgumentError: as of `peek`; or the first epoch is empty.
            ExceptionGroup: what has failed, as of a loop.

        Cancellation:
            A cancelled call ends its run, and has taken nothing.
        """
        return self._spec_of(await self.apeek(checked_count(count, "count", least=1)))

    def _spec_of(self, elements: list[Any]) -> Any:
        if not elements:
            raise InvalidArgumentError(
                f"element_spec: got {self!r}, whose first epoch is empty; expected an element to"
                " look at"
            )
        return spec_of_all(elements, self._pipeline().stages)

    def _peeking(self, count: int) -> Epochs[T_co]:
        pipeline = self._pipeline()
        for source in sources_of(pipeline):
            if source._is_once or source._is_consumed:
                raise InvalidArgumentError(
                    f"peek: got a pipeline of {source!r}, which would lose what is looked at;"
                    " expected a source for several iterations"
                )
        stages = (*pipeline.stages, Take(checked_count(count, "count")))
        return Epochs(checked(pipeline._made_of(pipeline.source, stages)), EpochRange(0, 1))

    def __contains__(self, element: object) -> NoReturn:
        """Refuse to be searched, which would use up what is iterated.

        Raises:
            TypeError: always.
        """
        not_searched(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            kind = "a pipeline" if isinstance(self, BasePipeline) else "a source"
            no_attribute(self, name, kind=kind)


class IterablePipeline(BasePipeline[T_co]):
    """A pipeline that is an iterable of its first epoch."""

    def __str__(self) -> str:
        return text(self)

    def _repr_svg_(self) -> str:
        """What notebooks show."""
        return svg(self)

    def __bool__(self) -> bool:
        """A pipeline is always true, also an empty one."""
        return True

    def __len__(self) -> int:
        """How much one epoch gives: as if no item were skipped.

        Raises:
            TypeError: it depends on the data, or the source does not say how many items it has.
        """
        length = length_of(self)
        if length is None:
            raise TypeError(
                f"the length of {self!r} is not known: it depends on the data, or the source does"
                " not say how many items it has"
            )
        return length

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._first_epoch())

    def __aiter__(self) -> AsyncIterator[T_co]:
        return aiter(self._first_epoch())

    def _first_epoch(self) -> Epoch[T_co]:
        _warn_if_reiterated(self)
        return Epoch(self, ResumePoint(0), watch_of(self))

    def resume(self, state: Mapping[str, Any]) -> Epoch[T_co]:
        """The rest of the epoch in which a position is.

        Args:
            state: what ``state_dict()`` of an epoch, or of epochs, gave.

        Returns:
            What comes behind the position, once, with ``for`` or with ``async for``.

        Raises:
            InvalidArgumentError: it is no position, is damaged, or belongs to another pipeline: the
                message names the field that differs, and both values.
        """
        return Epoch(*checked_standing(self, state), watch_of(self))

    def monitor(self, *, log: bool = False) -> Monitor:
        """Watch all that goes through this pipeline from now on, and tell what limits it.

        Loops over the pipeline, its epochs included, tell their waits for data from their work by
        themselves. Stages have the names of their functions.

        Args:
            log: write a line a minute to the log (``aioqueue``), and a warning when data are late.

        Returns:
            The monitor, which ends with its ``with`` block.
        """
        return Monitor(self, log=log)

    def _watched(self) -> Watch:
        return watch_of(self)

    def locate(self, item: Origin) -> str:
        """What an item is that a journal names, in words, as far as its source knows.

        Of a sequence that is its name and index; of a file its path and which of its records it is,
        with the offset in bytes where they are of one length; of a mixture of sources that of the
        source which it is from.

        Args:
            item: one of the ``items`` of a `JournalEntry`.

        Raises:
            InvalidArgumentError: this pipeline has no such item.
        """
        sources = sources_of(self)
        if not 0 <= item.source < len(sources):
            raise InvalidArgumentError(
                f"item: got one of source {item.source}; expected less than {len(sources)}, as many"
                " sources as this pipeline has"
            )
        return sources[item.source].locate(item.index)


_lock: Final = threading.RLock()  # guards _passes
_passes: Final[WeakKeyDictionary[BasePipeline[Any], int]] = WeakKeyDictionary()


def _warn_if_reiterated(pipeline: BasePipeline[Any]) -> None:
    """Somebody iterates over a pipeline itself, which is its first epoch: the second time, say so
    in the log, unless all epochs are the same.

    Loops over loaders of other libraries get another order each time: ``for epoch in range(3): for
    batch in train: ...`` would train on the same one three times, and nobody would see it.
    """
    if holding(_lock, _counted, pipeline) == 2 and _is_random(pipeline):
        _log.warning(
            "%r is iterated over again: each time that is epoch 0, with the same order and the same"
            " random generators. Use `for epoch in pipeline.epochs(n):` for another one each time",
            pipeline,
        )


def _counted(pipeline: BasePipeline[Any]) -> int:
    count = _passes[pipeline] = _passes.get(pipeline, 0) + 1
    return count


def _is_random(pipeline: BasePipeline[Any]) -> bool:
    return any(source._is_shuffled for source in sources_of(pipeline)) or any(
        stage.draws() or any(map(_is_random, stage.branches())) for stage in pipeline.stages
    )
