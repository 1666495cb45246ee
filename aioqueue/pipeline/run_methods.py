"""The methods that go through a source or pipeline: its epochs, one of them, or a look at it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, overload

import aioqueue
from aioqueue import InvalidArgumentError, sync, telemetry
from aioqueue.base.arguments import checked_count
from aioqueue.base.hints import refuse_search
from aioqueue.pipeline.stages.base import BasePipeline, refuse_in_loop, watch_of

if TYPE_CHECKING:
    from aioqueue.items.item import Origin
    from aioqueue.pipeline.epochs import Epoch, Epochs
    from aioqueue.pipeline.sink import Sink
    from aioqueue.pipeline.stream import AsyncBatchStream, BatchStream
    from aioqueue.pipeline.write import Written
    from aioqueue.telemetry import Monitor, Watch
    from aioqueue.workers.statistics import StageStatistics

T_co = TypeVar("T_co", covariant=True)


class RunMethods(ABC, Generic[T_co]):
    """The methods of sources and pipelines that run epochs, or look at the first one."""

    @abstractmethod
    def _pipeline(self) -> BasePipeline[Any]:
        """This as a pipeline: a source is one without stages."""

    def epochs(
        self,
        count: int | None = None,
        *,
        start: int = 0,
        resume: Mapping[str, Any] | None = None,
        watchdog: float | None = None,
        journal: str | PathLike[str] | None = None,
        raise_single: bool = False,
        steps: int | None = None,
    ) -> Epochs[T_co]:
        """Iterate over several epochs in one run.

        Each epoch has another order, and other random generators, than the one before. The workers
        live on from one epoch to the next, and prepare the next one while you still use this one.

        Args:
            count: how many epochs; ``None`` for no end.
            start: the number of the first epoch, to continue where an earlier run has ended. Not
                together with ``resume``.
            resume: what ``state_dict()`` of an earlier run returned, or `merge_positions` for
                another number of ranks. The run begins behind that position, with the rest of its
                epoch. If all stages keep the order, you get exactly the batches that the earlier
                run would have made. You may change functions, workers, limits, and the size of the
                last batches in the pipeline.
            watchdog: if nothing has moved for so many seconds while something waits, the log has a
                warning that explains why: see `aioqueue.Coordinator`.
            journal: a file in which the run records the items of each batch before you receive the
                batch: see `read_journal`. With ``resume``, the same file is continued: entries of
                batches behind the position are removed, because these batches are made again. The
                file of another run is renamed, and not overwritten.
            raise_single: whether a single failure is raised as itself, so that an ``except
                KeyError`` around the loop works. Several failures are always an `ExceptionGroup`.
            steps: how many elements the run has in all, instead of a number of epochs: a new epoch
                begins whenever one ends before. So ranks whose epochs have different lengths make
                equally many steps. With ``resume``, those of the runs before count.

        Returns:
            An iterable of epochs, for ``for`` and ``async for``. Each epoch is an iterable of what
            the pipeline makes (of the items, if the source has no stages), and has a ``len`` if
            that is known. When you leave the loop, the workers end.

        Raises:
            InvalidArgumentError: an argument is wrong; or the position is damaged, or belongs to
                another pipeline: then the message names the field that differs, and both values.
        """
        from aioqueue.pipeline.epochs import Epochs
        from aioqueue.pipeline.nodes.rows import EpochRange

        start = checked_count(start, "start")
        stop = None if count is None else start + checked_count(count, "count")
        if steps is not None:
            steps = checked_count(steps, "steps")
            if count is not None:
                raise InvalidArgumentError(
                    f"steps: got {steps} together with count={count}; expected only one of them:"
                    " epochs begin until all steps are made"
                )
        if start and resume is not None:
            raise InvalidArgumentError(
                f"start: got {start} together with resume; expected only one of them: the position"
                " says in which epoch to begin, and count is the number of all epochs from 0 on"
            )
        return Epochs(
            self._pipeline(),
            EpochRange(start, stop),
            resume,
            watchdog,
            journal,
            raise_single,
            steps,
        )

    @overload
    def start(
        self,
        coord: aioqueue.Coordinator,
        *,
        epochs: int | None = 1,
        resume: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> AsyncBatchStream[tuple[StageStatistics, ...]]: ...

    @overload
    def start(
        self,
        coord: sync.Coordinator,
        *,
        epochs: int | None = 1,
        resume: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> BatchStream[tuple[StageStatistics, ...]]: ...

    def start(
        self,
        coord: aioqueue.Coordinator | sync.Coordinator,
        *,
        epochs: int | None = 1,
        resume: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> AsyncBatchStream[tuple[StageStatistics, ...]] | BatchStream[tuple[StageStatistics, ...]]:
        """Start the workers in a coordinator of yours, and iterate over all epochs as one stream.

        Use it where a program has other workers, and all are to stop together. `epochs` has a
        coordinator of its own.

        * The workers stop with the coordinator: when its block ends, when a stop is requested, or
          when any of its workers has failed. `close` of the stream ends only these workers.
        * A failed worker is reported by the coordinator, as those of a `QueueRunner` are. The
          stream returns what was made before, and then raises `OutOfRangeError` with the failure as
          its cause. The stages behind the last one with workers run in the thread or task that asks
          for an element, and raise their failures there.
        * After a stop you can take the elements that are made already.

        Args:
            coord: an `aioqueue.Coordinator` whose block has been entered, or an
                `aioqueue.sync.Coordinator`.
            epochs: how many epochs; ``None`` for no end. One epoch follows another without a sign;
                batches end with their epoch, unless the stage says ``across_epochs=True``.
            resume: what ``state_dict()`` of an earlier stream or of `epochs` returned. The stream
                begins behind that position.
            name: the name of the stream in messages, and of the workers of the last stage that has
                some; ``None`` for the name of that stage or its function.

        Returns:
            An `AsyncBatchStream` or a `BatchStream`, as the coordinator is. Its ``statistics()``
            are those of `Epochs`: a record for each stage with workers.

        Raises:
            InvalidArgumentError: an argument is wrong; the position does not fit; no stage has
                workers (behind the last `mix`, `zip` or `concat`, if there is one), so there is
                nothing to start: add `prefetch`; or the source is a queue: pass it to `batch`.
            RuntimeError: the coordinator's block has not been entered.
        """
        from aioqueue.pipeline.started import start

        stop = None if epochs is None else checked_count(epochs, "epochs")
        return start(self._pipeline(), coord, stop, resume=resume, name=name)

    def peek(self, count: int = 1) -> list[T_co]:
        """Look at the first elements of the first epoch, which stay where they are.

        This is a run of its own, which ends before you get them: later epochs begin at their
        beginning. It costs what the first elements cost: workers start, a `shuffle` fills its
        buffer, and functions are called with some items more than that, which are under way.
        Items that are skipped are not written to a quarantine file.

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
        refuse_in_loop("peek")
        return self._peeked(count)

    def _peeked(self, count: int) -> list[T_co]:
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
        refuse_in_loop("element_spec")
        return self._spec_of(self._peeked(checked_count(count, "count", least=1)))

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

    def write(
        self,
        sink: Sink,
        *,
        epochs: int = 1,
        existing: Literal["resume", "replace", "fail"] = "resume",
        progress: bool | None = None,
        raise_single: bool = False,
    ) -> Written:
        """Write the elements to files, so that a run that is killed can go on.

        A file is written under a temporary name, flushed to the disk and renamed. It is committed
        together with the position behind its last row. If the process or the machine is stopped at
        any time, the same call goes on behind the last committed file: no row is lost, and none is
        written twice. If all is written already, it only returns what there is. You may change
        functions and workers in between, but not the source, the seed and the stages.

        If you can go through the source only once, or workers do not keep the order and later
        stages hold examples, there is no position: then a run that was stopped cannot go on, and
        ``existing="replace"`` begins anew.

        Ranks (`shard`) may write to one folder: each has files of its own, ``part-1-of-4-00000``.
        That needs ``uneven="allow"``. One process at a time may write the same files.

        Args:
            sink: where the rows go, and in which format: `to_parquet`, `to_json_lines`, `to_tar` or
                `to_tfrecord`. Batches are cut, so that each file has as many rows as it should.
            epochs: how many epochs to write, >= 1.
            existing: what to do if something was written to the folder before: ``"resume"``
                continues it; ``"replace"`` removes it, and begins; ``"fail"`` raises an error.
            progress: whether to show a bar of tqdm. ``None`` shows it if tqdm is installed and
                standard error is a terminal.
            raise_single: whether a single failure is raised as itself, as in `epochs`.

        Returns:
            The files, how many rows and bytes they have, and how many of the rows were there.

        Raises:
            InvalidArgumentError: an argument is wrong; or the folder has something that does not
                fit: another pipeline has written there, say, or another process is writing.
            DataLossError: what was committed before is damaged or no longer there.
            ExceptionGroup: what has failed, as of a loop; also if a row does not fit into the
                format, or a file cannot be written. What is committed stays.
            OSError: the folder cannot be made or read.
            ModuleNotFoundError: ``progress=True``, and tqdm is not installed.
            RuntimeError: in an event loop; await `awrite` there.
        """
        from aioqueue.pipeline.write import write

        return write(
            self._pipeline(),
            sink,
            epochs=epochs,
            existing=existing,
            progress=progress,
            raise_single=raise_single,
        )

    async def awrite(
        self,
        sink: Sink,
        *,
        epochs: int = 1,
        existing: Literal["resume", "replace", "fail"] = "resume",
        progress: bool | None = None,
        raise_single: bool = False,
    ) -> Written:
        """`write` for coroutines: files are written on a thread.

        Args:
            sink: where the rows go, and in which format.
            epochs: how many epochs to write, >= 1.
            existing: what to do if something was written to the folder before.
            progress: whether to show a bar.
            raise_single: whether a single failure is raised as itself.

        Returns:
            As `write` does.

        Raises:
            InvalidArgumentError: as of `write`.
            DataLossError: as of `write`.
            ExceptionGroup: what has failed, as of a loop.
            OSError: the folder cannot be made or read.
            ModuleNotFoundError: ``progress=True``, and tqdm is not installed.

        Cancellation:
            A cancelled call waits for the rows that are being written, and keeps what is committed.
            The same call goes on from there.
        """
        from aioqueue.pipeline.write import awrite

        return await awrite(
            self._pipeline(),
            sink,
            epochs=epochs,
            existing=existing,
            progress=progress,
            raise_single=raise_single,
        )

    def _spec_of(self, elements: list[Any]) -> Any:
        if not elements:
            raise InvalidArgumentError(
                f"element_spec: got {self!r}, whose first epoch is empty; expected an element to"
                " look at"
            )
        from aioqueue.pipeline.array_spec import spec_of_all

        return spec_of_all(elements, self._pipeline().stages)

    def _peeking(self, count: int) -> Epochs[T_co]:
        from aioqueue.pipeline.epochs import Epochs
        from aioqueue.pipeline.nodes.rows import EpochRange
        from aioqueue.pipeline.stages.chain import checked, sources_of
        from aioqueue.pipeline.stages.take import TakeRows

        pipeline = self._pipeline()
        for source in sources_of(pipeline):
            if source._is_once or source._is_consumed:
                raise InvalidArgumentError(
                    f"peek: got a pipeline of {source!r}, which would lose what is looked at;"
                    " expected a source that allows several iterations"
                )
        kept = (
            *(stage.without_quarantine() for stage in pipeline.stages),
            TakeRows(checked_count(count, "count")),
        )
        return Epochs(checked(pipeline._made_of(pipeline.source, kept)), EpochRange(0, 1))

    def _without_files(self) -> BasePipeline[Any]:
        """The same pipeline, whose stages write no quarantine files."""
        from aioqueue.pipeline.stages.chain import checked

        pipeline = self._pipeline()
        stages = [stage.without_quarantine() for stage in pipeline.stages]
        return checked(pipeline._made_of(pipeline.source, stages))

    def __contains__(self, element: object) -> NoReturn:
        """Refuse ``in``: a search would run the pipeline.

        Raises:
            TypeError: always.
        """
        refuse_search(self)


class IterablePipeline(BasePipeline[T_co]):
    """A pipeline as an iterable of its first epoch."""

    def __str__(self) -> str:
        from aioqueue.pipeline.diagram import text

        return text(self)

    def _repr_svg_(self) -> str:
        """The diagram that notebooks show."""
        from aioqueue.pipeline.diagram import svg

        return svg(self)

    def __bool__(self) -> bool:
        """Always true, also for an empty pipeline: otherwise ``len`` would decide."""
        return True

    def __len__(self) -> int:
        """How many batches (or rows) one epoch has, as if no item were skipped.

        Raises:
            TypeError: the number depends on the data, or the source does not know its length.
        """
        from aioqueue.pipeline.build import length_of

        length = length_of(self)
        if length is None:
            raise TypeError(
                f"the length of {self!r} is not known: it depends on the data, or the source does"
                " not know its length"
            )
        return length

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._first_epoch())

    def __aiter__(self) -> AsyncIterator[T_co]:
        return aiter(self._first_epoch())

    def _first_epoch(self) -> Epoch[T_co]:
        from aioqueue.pipeline.epochs import Epoch
        from aioqueue.pipeline.nodes.progress import ResumePoint
        from aioqueue.pipeline.reiteration import warn_if_reiterated

        warn_if_reiterated(self)
        return Epoch(self, ResumePoint(0), watch_of(self))

    def resume(self, state: Mapping[str, Any]) -> Epoch[T_co]:
        """Resume at a position, for the rest of its epoch.

        Args:
            state: what ``state_dict()`` of an epoch, or of epochs, returned.

        Returns:
            An epoch that begins behind the position. Iterate over it once, with ``for`` or with
            ``async for``.

        Raises:
            InvalidArgumentError: the state is not a position, is damaged, or belongs to another
                pipeline: then the message names the field that differs, and both values.
        """
        from aioqueue.pipeline.epochs import Epoch
        from aioqueue.pipeline.state.checkpoint import checked_resume_point

        return Epoch(*checked_resume_point(self, state), watch_of(self))

    def monitor(self, *, log: bool = False) -> Monitor:
        """Watch all runs of this pipeline from now on, and find their bottleneck.

        Loops over the pipeline and over its epochs are measured, too: how long they wait for data,
        and how long they work. The stages are named after their functions.

        Args:
            log: write a line a minute to the log (``aioqueue``), and a warning when data are late.

        Returns:
            The monitor, which ends with its ``with`` block.
        """
        return telemetry.Monitor(self, log=log)

    def _watched(self) -> Watch:
        return watch_of(self)

    def locate(self, item: Origin) -> str:
        """Describe an item that a journal names, in words, as precisely as its source can.

        For a sequence you get its name and the index. For a file you get its path and the number of
        the record, and the offset in bytes if all records have one length. For a mixture you get
        the description of the source that the item is from.

        Args:
            item: one of the ``items`` of a `JournalEntry`.

        Raises:
            InvalidArgumentError: this pipeline has no such item.
        """
        from aioqueue.pipeline.stages.chain import sources_of

        sources = sources_of(self)
        if not 0 <= item.source < len(sources):
            raise InvalidArgumentError(
                f"item: got one of source {item.source}; expected a source below {len(sources)},"
                " because this pipeline has no more"
            )
        return sources[item.source].locate(item.index)


def methods_of(*classes: type) -> list[str]:
    """The names of the public methods that classes define."""
    return [
        name
        for cls in classes
        for name, method in vars(cls).items()
        if name[0] != "_" and callable(method)
    ]
