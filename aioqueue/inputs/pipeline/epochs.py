"""Going through a pipeline: epochs, one after another, in threads and in tasks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from aioqueue import Explanation, explain
from aioqueue.arguments import checked_flag, checked_watchdog
from aioqueue.forks import note_for_forks, refusing
from aioqueue.inputs.core.items import EpochEnd, Quarantined
from aioqueue.inputs.core.journal import JournalWriter
from aioqueue.inputs.core.positions import misplaced
from aioqueue.inputs.pipeline.build import length_of, most_empty, once_only
from aioqueue.inputs.pipeline.checkpoint import PipelinePositions, ResumePoint, checked_standing
from aioqueue.inputs.pipeline.description import BasePipeline
from aioqueue.inputs.pipeline.inspection import watch_of
from aioqueue.inputs.pipeline.node import ROW_VALUE, EpochRange
from aioqueue.inputs.pipeline.run import AsyncRun, ThreadRun
from aioqueue.inputs.pipeline.run_lock import RunLock, refuse_in_loop
from aioqueue.inputs.statistics import StageStatistics
from aioqueue.locks import holding
from aioqueue.migration_hints import no_attribute, not_searched
from aioqueue.public_names import public
from aioqueue.telemetry.stacks import forget_locals
from aioqueue.tracebacks import SHORTENED, shorten

if TYPE_CHECKING:
    from aioqueue.telemetry import Monitor, Watch

__all__ = ("Epoch", "Epochs")

RunT = TypeVar("RunT", ThreadRun, AsyncRun)
T = TypeVar("T")


@public("aioqueue.inputs")
class Epochs(Generic[T]):
    """Epochs of a pipeline, in one run: workers live on from one to the next.

    `Pipeline.epochs` makes it. Iterate over it once, with ``for`` or with ``async for``: each item
    is an `Epoch`. Going on to the next one leaves what is left of the one before; it is not
    prepared then. When this object is dropped, as by leaving the loop, the workers end, and its
    epochs with them.

    Cancellation:
        A cancelled step of ``async for`` has lost nothing.

    Args:
        pipeline: what is gone through.
        span: which epochs.
        resume: a position to begin at.
        watchdog: seconds without movement after which to warn; ``None`` for never.
        journal: a file that notes the items of each batch.
        raise_single: whether a single failure is raised as itself, and not as a group of one.

    Raises:
        InvalidArgumentError: the position does not fit, or an argument is wrong. Of a step: an
            iterator was given that can be gone through once, and was.
        ExceptionGroup: of a step: what workers and stages have raised, as a coordinator reports it.
        PreemptedError: of a step: it would have to wait, and nobody is to; see `Preemption`.
        RuntimeError: of a step: all of it was left, or has failed before; or a ``for`` loop would
            stop the running event loop; or there is no end, and two epochs in a row gave nothing.
        TypeError: of a step: it was begun with ``for`` and is gone on with by ``async for``, or the
            other way round.
    """

    _run: ThreadRun | AsyncRun | None = None

    def __init__(
        self,
        pipeline: BasePipeline[T],
        span: EpochRange,
        resume: Mapping[str, Any] | None = None,
        watchdog: float | None = None,
        journal: str | PathLike[str] | None = None,
        raise_single: bool = False,
    ) -> None:
        self._journal = journal
        self._raise_single = checked_flag(raise_single, "raise_single")
        self._pipeline = pipeline
        self._span = span
        # Nothing is prepared ahead of what cannot begin again, lest that fail in the epoch before.
        self._once = once_only(pipeline)
        self._standing = ResumePoint(span.start)
        self._positions: PipelinePositions | None = None
        self._epoch: Epoch[T] | None = None
        self._empty = 0  # epochs in a row that have ended without anything
        self._next = span.start
        self._is_closed = False
        self._turns = RunLock()
        self._watchdog = checked_watchdog(watchdog)
        self._watch = watch_of(pipeline)
        note_for_forks(self)
        if resume is not None:
            self.load_state_dict(resume)

    def _was_forked(self) -> None:
        _refuse_if_begun(self, "this run of a pipeline", self._run is not None)

    def __repr__(self) -> str:
        start, stop = self._span
        upto = "" if stop is None else stop
        return f"<aioqueue.inputs.Epochs {start}:{upto} of {self._pipeline!r}>"

    def __len__(self) -> int:
        """How many epochs there are.

        Raises:
            TypeError: there is no end.
        """
        if self._span.stop is None:
            raise TypeError("these epochs have no length: they have no end (count=None)")
        return self._span.stop - self._span.start

    def __bool__(self) -> bool:
        """Epochs are always true, also if there are none."""
        return True

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            no_attribute(self, name, kind="a run of epochs")

    def __contains__(self, element: object) -> NoReturn:
        """Refuse to be searched, which would use up what is iterated.

        Raises:
            TypeError: always.
        """
        not_searched(self)

    def __iter__(self) -> Iterator[Epoch[T]]:
        return self

    def __next__(self) -> Epoch[T]:
        try:
            return holding(self._turns.lock, self._begin_next)
        except StopIteration:
            raise
        except BaseException as error:
            _stop_if_interrupted(self._run, error)
            forget_locals(error)
            shorten(error)
            del self  # nor does this frame keep the run: the failure leads to it
            raise

    def __aiter__(self) -> AsyncIterator[Epoch[T]]:
        return self

    async def __anext__(self) -> Epoch[T]:
        with SHORTENED:
            async with self._turns.aio:
                return await self._begin_next_async()

    def __enter__(self) -> Epochs[T]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if exc_info[0] is None:
            with SHORTENED:
                self.close()
            return
        self._is_closed = True
        if self._run is not None:
            self._run.leave()  # quietly: what the block has raised is what is to be seen

    async def __aenter__(self) -> Epochs[T]:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if exc_info[0] is None:
            try:
                await self.aclose()
            except BaseException as error:
                await self._aleave(error)
                shorten(error)
                raise
        else:
            await self._aleave(exc_info[1])

    def statistics(self) -> tuple[StageStatistics, ...]:
        """What the stages that have workers have done so far, one after another.

        Each stage that calls a function on workers has a record, and `Stages.prefetch` has one;
        those of a pipeline that was mixed in come where it was. There are none before the first
        epoch has begun. Any thread may ask, also when all is over.
        """
        return () if self._run is None else self._run.statistics()

    def explain(self) -> Explanation:
        """Tell who waits for whom, since when, and for what in the end: see `aioqueue.explain`."""
        return explain() if self._run is None else self._run.explain()

    @property
    def quarantine(self) -> list[Quarantined]:
        """The items that were skipped so far, stage by stage, in the order of their giving up.

        Those of a stage that writes them to a file are read from it. In a run that was resumed
        those of the run before, up to its state, are not among them, nor written a second time:
        `statistics` counts them, and the file has them.

        Raises:
            OSError: the file cannot be read.
            DataLossError: records of this run are no longer in the file.
        """
        return [] if self._run is None else self._run.quarantine()

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was handed out, to go on from another time.

        What is under way is not in it: it will be prepared again, and become the same. It may be
        called at any time by any thread, before the first batch and after the last, and stops no
        worker.

        Returns:
            A dict of plain JSON types. See `Pipeline.epochs` for what goes on from it.

        Raises:
            RuntimeError: the order of the pipeline is not kept in a way that has no position; or a
                signal handler asks that has interrupted the making of a batch.
            InvalidArgumentError: the source cannot be gone through again.
            OSError: the size of a file cannot be found out.
        """
        standing = self._standing if self._run is None else self._run.standing()
        if self._positions is None:
            self._positions = PipelinePositions(self._pipeline)
        return self._positions.behind(standing)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind a position, instead of at the beginning.

        Args:
            state: what `state_dict` gave, in this process or another.

        Raises:
            InvalidArgumentError: it is no position, is damaged, or belongs to another pipeline: the
                message names the field that differs, and both values.
            RuntimeError: the first epoch was asked for already.
        """
        if self._run is not None or self._next != self._span.start:
            raise RuntimeError(
                "a state was loaded after the first epoch was asked for, so batches from the"
                " beginning are under way: make new epochs with it,"
                " pipeline.epochs(count, resume=state)"
            )
        self._pipeline, standing = checked_standing(self._pipeline, state)
        self._positions = None
        stop = self._span.stop
        if stop is not None and standing.epoch > stop:
            raise misplaced(f"epoch {standing.epoch}", f"{stop} at most, where these epochs end")
        self._standing = standing
        self._span = EpochRange(standing.epoch, stop)
        self._next = standing.epoch

    def monitor(self, *, log: bool = False) -> Monitor:
        """Watch these epochs, and tell what limits them: see `Pipeline.monitor`.

        Args:
            log: write a line a minute to the log (``aioqueue``), and a warning when data are late.
        """
        from aioqueue.telemetry import Monitor

        return Monitor(self, log=log)

    def _watched(self) -> Watch:
        return self._watch

    def close(self) -> None:
        """Leave: stop the workers and wait until they have ended. It may be called again.

        Raises:
            ExceptionGroup: what has failed and was not told yet.
            RuntimeError: it was begun with ``async for``; await `aclose`.
        """
        if isinstance(self._run, AsyncRun):
            raise RuntimeError("close would have to wait for tasks: use `await epochs.aclose()`")
        self._is_closed = True
        with SHORTENED:
            if self._run is not None:
                self._run.close()

    async def aclose(self) -> None:
        """The same, for a run that was begun with ``async for``.

        Raises:
            ExceptionGroup: what has failed and was not told yet.
            RuntimeError: it was begun with ``for``; call `close`, in a thread.

        Cancellation:
            A cancelled call has asked for the stop; it is not waited for.
        """
        if isinstance(self._run, ThreadRun):
            raise RuntimeError("aclose would have to wait for threads: use `epochs.close()`")
        self._is_closed = True
        with SHORTENED:
            if self._run is not None:
                await self._run.aclose()

    def __del__(self) -> None:
        self._is_closed = True
        if self._run is not None:
            self._run.abandon()

    async def _aleave(self, error: object) -> None:
        """A block is left by an exception, which is what is to be seen."""
        self._is_closed = True
        if self._run is not None:
            self._run.leave()
        # After a `GeneratorExit` nobody runs us any more.
        if isinstance(self._run, AsyncRun) and not isinstance(error, GeneratorExit):
            await self._run.outlast()

    @property
    def _stop(self) -> int | None:
        """The first epoch that the run does not go through."""
        return self._span.stop if self._once is None else self._span.start + 1

    def _is_at_end(self) -> bool:
        return self._is_closed or (self._span.stop is not None and self._next >= self._span.stop)

    def _begin_next(self) -> Epoch[T]:
        if self._is_at_end():
            self.close()
            raise StopIteration
        if self._once is not None and self._run is not None:
            self.close()
            raise self._once._used_up()
        if self._run is None:
            refuse_in_loop()
            self._run = self._begin_run(ThreadRun)
        if not isinstance(self._run, ThreadRun):
            raise TypeError("these epochs were begun with `async for`; go on with `async for`")
        return self._epoch_of(self._run)

    async def _begin_next_async(self) -> Epoch[T]:
        if self._is_at_end():
            await self.aclose()
            raise StopAsyncIteration
        if self._once is not None and self._run is not None:
            await self.aclose()
            raise self._once._used_up()
        if self._run is None:
            self._run = self._begin_run(AsyncRun)
        if not isinstance(self._run, AsyncRun):
            raise TypeError("these epochs were begun with `for`; go on with `for`")
        await self._run.begin()
        return self._epoch_of(self._run)

    def _begin_run(self, kind: type[RunT]) -> RunT:
        standing, journal = self._begun()
        run = kind(
            self._pipeline,
            self._stop,
            standing,
            self._watch,
            watchdog=self._watchdog,
            journal=journal,
            raise_single=self._raise_single,
        )
        run.loop = self._turns
        return run

    def _begun(self) -> tuple[ResumePoint, JournalWriter | None]:
        """Where the run begins, and what notes its batches."""
        if self._journal is None:
            return self._standing, None
        run = self._standing.run or os.urandom(8).hex()
        self._standing = self._standing._replace(run=run)
        return self._standing, JournalWriter(self._journal, run, self._standing.handed)

    def _epoch_of(self, run: ThreadRun | AsyncRun) -> Epoch[T]:
        run.check()
        number = self._next
        self._next += 1
        if self._epoch is not None:
            self._refuse_to_spin(self._epoch)
            if self._epoch._leave():
                run.skip_to(number)
        standing = ResumePoint(number, rest=self._standing.rest)
        if number == self._standing.epoch:  # the rest of it
            done, skip = self._standing.batches, self._standing.skip
            standing = standing._replace(batches=done, skip=skip)
        self._epoch = Epoch(self._pipeline, standing, self._watch, run, self._turns)
        return self._epoch

    def _refuse_to_spin(self, last: Epoch[T]) -> None:
        """Refuse to go on for ever where there is nothing.

        Raises:
            RuntimeError: two epochs in a row have given nothing. (One may: its items can have been
                skipped, or handed out before a resume.)
        """
        self._empty = self._empty + 1 if last._gave_nothing else 0
        if self._span.stop is None and self._empty > most_empty(self._pipeline):
            if self._run is not None:
                self._run.leave()
            raise RuntimeError(
                f"{self._empty} epochs in a row have given nothing, and epochs(None) would go on"
                " for ever; expected a source with items, of which the stages leave some"
                " (drop_remainder=True leaves out all that do not fill a batch)"
            )


@public("aioqueue.inputs")
class Epoch(Generic[T]):
    """One epoch of a pipeline: what it makes, once, with ``for`` or with ``async for``.

    Several threads, or several tasks, may take from it at once; each batch goes to one of them.
    Each batch is the taker's alone. A step raises what a step of `Epochs` does.

    Cancellation:
        A cancelled step of ``async for`` has lost nothing: the batch comes with the next one.

    Args:
        pipeline: what is gone through.
        standing: where it begins.
        watch: what monitors see of it.
        run: what runs it; ``None`` starts one with the first that is taken, and ends it with the
            last, or when this object is dropped.
        turns: those of that run.
    """

    _run: ThreadRun | AsyncRun | None = None
    _is_own = False

    def __init__(
        self,
        pipeline: BasePipeline[T],
        standing: ResumePoint,
        watch: Watch,
        run: ThreadRun | AsyncRun | None = None,
        turns: RunLock | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._standing = standing
        self._number = standing.epoch
        self._watch = watch
        self._run = run
        self._is_own = run is None
        self._turns = turns or RunLock()
        self._positions: PipelinePositions | None = None
        self._done_before = self._done = standing.batches + standing.skip
        self._has_ended = False
        self._was_left = False
        note_for_forks(self)

    def _was_forked(self) -> None:
        _refuse_if_begun(self, "this epoch of a pipeline", self._run is not None)

    @property
    def number(self) -> int:
        """Which epoch it is, from 0."""
        return self._number

    def __repr__(self) -> str:
        return f"<aioqueue.inputs.Epoch {self._number} of {self._pipeline!r}>"

    def __len__(self) -> int:
        """How much it gives: as if no item were skipped.

        After a resume inside the epoch that is what was left of it then; `done` is what was handed
        out, that before the resume included. It does not change while batches are taken.

        Raises:
            TypeError: it depends on the data, or the source does not say how many items it has.
        """
        length = length_of(self._pipeline, self._standing.rest, self._number)
        if length is None:
            raise TypeError(
                f"the length of {self!r} is not known: it depends on the data, or the source does"
                " not say how many items it has"
            )
        return max(0, length - self._done_before)

    @property
    def done(self) -> int:
        """How many batches of the epoch were handed out, those before a resume included."""
        if self._run is not None and not (self._has_ended or self._was_left):
            self._done = self._run.given_of(self._number, self._done)
        return self._done

    @property
    def left(self) -> int | None:
        """How many are to come, as if no item were skipped; ``None`` where that is not known."""
        if self._has_ended:
            return 0
        length = length_of(self._pipeline, self._standing.rest, self._number)
        return None if length is None else max(0, length - self.done)

    def __bool__(self) -> bool:
        """An epoch is always true, also an empty one."""
        return True

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            no_attribute(self, name, kind="an epoch")

    def __contains__(self, element: object) -> NoReturn:
        """Refuse to be searched, which would use up what is iterated.

        Raises:
            TypeError: always.
        """
        not_searched(self)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return holding(self._turns.lock, self._stepped)
        except StopIteration:
            raise
        except BaseException as error:
            _stop_if_interrupted(self._run, error)
            forget_locals(error)
            shorten(error)
            del self  # nor does this frame keep the run: the failure leads to it
            raise

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        turn, steps = self._turns.aio, self._watch.steps
        try:
            if steps is not None:
                async with turn:
                    with steps.step(self._turns):
                        return await self._next_async()
            is_current = not (self._was_left or self._has_ended)
            if is_current and isinstance(self._run, AsyncRun) and not turn.locked():
                taken = self._run.take_ready()
                if taken:
                    return taken[0][ROW_VALUE]  # type: ignore[no-any-return]
            async with turn:
                return await self._next_async()
        except BaseException as error:
            shorten(error)
            raise

    def explain(self) -> Explanation:
        """Tell who waits for whom, since when, and for what in the end: see `aioqueue.explain`."""
        return explain() if self._run is None else self._run.explain()

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was handed out: see `Epochs.state_dict`."""
        standing = self._standing if self._run is None else self._run.standing()
        if self._positions is None:
            self._positions = PipelinePositions(self._pipeline)
        return self._positions.behind(standing)

    def __del__(self) -> None:
        if self._is_own and self._run is not None:
            self._run.abandon()

    def _stepped(self) -> T:
        steps = self._watch.steps
        if steps is None:
            return self._next()
        with steps.step(self._turns):
            return self._next()

    def _next(self) -> T:
        if self._has_ended:
            raise StopIteration
        if self._run is None:
            refuse_in_loop()
            self._run = ThreadRun(self._pipeline, self._number + 1, self._standing, self._watch)
            self._run.loop = self._turns
        if not isinstance(self._run, ThreadRun):
            raise TypeError("this epoch was begun with `async for`; go on with `async for`")
        self._check_current()
        taken = self._run.take()
        if isinstance(taken, EpochEnd):
            self._end(taken)
            if self._is_own:
                self._run.close()
            raise StopIteration
        return taken[0][ROW_VALUE]  # type: ignore[no-any-return]

    async def _next_async(self) -> T:
        if self._has_ended:
            raise StopAsyncIteration
        if self._run is None:
            self._run = AsyncRun(self._pipeline, self._number + 1, self._standing, self._watch)
            self._run.loop = self._turns
        if not isinstance(self._run, AsyncRun):
            raise TypeError("this epoch was begun with `for`; go on with `for`")
        self._check_current()
        taken = await self._run.take()
        if isinstance(taken, EpochEnd):
            self._end(taken)
            if self._is_own:
                await self._run.aclose()
            raise StopAsyncIteration
        return taken[0][ROW_VALUE]  # type: ignore[no-any-return]

    def _end(self, end: EpochEnd) -> None:
        self._done, self._has_ended = end.count, True

    @property
    def _gave_nothing(self) -> bool:
        """Whether it has ended, and there was nothing in all of it."""
        return self._has_ended and not self._done

    def _leave(self) -> bool:
        """The next epoch begins; tells whether something of this one is left."""
        self._done = self.done
        self._was_left = not self._has_ended
        return self._was_left

    def _check_current(self) -> None:
        if self._was_left:
            raise RuntimeError(
                f"epoch {self._number} was left when the next one began; take its batches first"
            )


def _refuse_if_begun(begun: Any, what: str, has_run: bool) -> None:
    """In a fork: a run goes on in its own process alone. What has none may begin in this one."""
    if has_run:
        begun._run = refusing(what, begun._run)
        begun._turns = refusing(what)
    else:
        begun._turns = RunLock()  # whoever was about to begin is not here


def _stop_if_interrupted(run: ThreadRun | AsyncRun | None, error: BaseException) -> None:
    """Ctrl-C has struck, wherever that was: the loop is left, and the workers end.

    Not only when the epochs are dropped: a notebook keeps the traceback, and with it all that the
    frames in it have, until something else fails.
    """
    if not isinstance(error, Exception) and isinstance(run, ThreadRun):
        run.interrupt()
        run.join_interrupted()
