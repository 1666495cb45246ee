"""`Pipeline`: what is done with the items of a source, from the first function to the batches.

A pipeline is a description: a source and the stages after it. Threads and coroutines can iterate
over it again and again, and every stage that is added makes a new one. The files beside this one
have the stages, and what runs them.
"""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_count
from aioqueue.inputs.pipeline.build import checked, length_of, sources_of
from aioqueue.inputs.pipeline.checkpoint import checked_standing
from aioqueue.inputs.pipeline.description import BasePipeline, BaseStage, watch_of
from aioqueue.inputs.pipeline.diagram import svg, text
from aioqueue.inputs.pipeline.epochs import Epoch, Epochs
from aioqueue.inputs.pipeline.node import EpochRange
from aioqueue.inputs.pipeline.progress import ResumePoint
from aioqueue.inputs.pipeline.stage_methods import StageMethods
from aioqueue.locks import holding
from aioqueue.migration_hints import no_attribute, not_searched
from aioqueue.telemetry import Monitor, Watch

if TYPE_CHECKING:
    from aioqueue.inputs.core.items import Origin

__all__ = ("Pipeline", "Stages")

_log: Final = logging.getLogger("aioqueue")

T_co = TypeVar("T_co", covariant=True)


class Stages(StageMethods[T_co]):
    """What sources and pipelines have in common: stages can be added, and epochs gone through."""

    @abstractmethod
    def _pipeline(self) -> Pipeline[Any]:
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

    def __contains__(self, element: object) -> NoReturn:
        """Refuse to be searched, which would use up what is iterated.

        Raises:
            TypeError: always.
        """
        not_searched(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            no_attribute(self, name, kind="a source or pipeline")


class Pipeline(Stages[T_co], BasePipeline[T_co]):
    """A source, and what is done with its items. Made by the stages of sources and pipelines.

    It is a description, which never changes. Iterating over it, with ``for`` or ``async for``, is
    one epoch, the first; `epochs` goes through several. Each time queues, workers and a coordinator
    are made; leaving the loop, in whatever way, ends them all. What a worker or stage raises is
    raised where the next batch is asked for, in an `ExceptionGroup` as a coordinator reports it;
    what the body of the loop raises is its own.

    Attributes:
        source: where the items come from.
        stages: what is done with them, in order.
    """

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

    def _with(self, stage: BaseStage) -> Pipeline[Any]:
        return checked(Pipeline(self.source, (*self.stages, stage)))

    def _pipeline(self) -> Pipeline[Any]:
        return self


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
