"""Iteration over a pipeline: `Epochs` and `Epoch`, for threads and for tasks.

A run (`ThreadRun` or `AsyncRun`) does the work. It lives as long as its `Epochs`, or as an `Epoch`
that is used alone.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from aioqueue import Explanation, explain
from aioqueue.base.arguments import checked_flag, checked_watchdog
from aioqueue.base.hints import hint_attributes, refuse_search
from aioqueue.base.public_names import public
from aioqueue.base.tracebacks import SHORTENED, shorten
from aioqueue.items.item import EpochEnd
from aioqueue.items.journal import JournalWriter
from aioqueue.items.positions import misplaced
from aioqueue.items.quarantined import Quarantined
from aioqueue.pipeline.batches.batch_shape import BatchShape
from aioqueue.pipeline.build import length_of
from aioqueue.pipeline.nodes.node import Taken
from aioqueue.pipeline.nodes.progress import ResumePoint
from aioqueue.pipeline.nodes.rows import ROW_VALUE, EpochRange
from aioqueue.pipeline.nodes.stepping import BegunFlow, RunLock
from aioqueue.pipeline.run import AsyncRun, ThreadRun
from aioqueue.pipeline.stages.base import BasePipeline, watch_of
from aioqueue.pipeline.stages.chain import most_empty, once_only
from aioqueue.pipeline.state.checkpoint import PipelinePositions, checked_resume_point
from aioqueue.system.forks import inherited_object, note_for_forks
from aioqueue.system.locks import call_with_lock
from aioqueue.telemetry.explain.frame_cleanup import forget_locals
from aioqueue.workers.statistics import StageStatistics
from aioqueue.worlds.waker import in_event_loop

if TYPE_CHECKING:
    from aioqueue.telemetry import Monitor, Watch

RunT = TypeVar("RunT", ThreadRun, AsyncRun)
T = TypeVar("T")


@public("aioqueue.inputs")
@hint_attributes("a run of epochs")
class Epochs(Generic[T]):
    """Epochs of a pipeline, in one run: the workers live on from one epoch to the next.

    `Pipeline.epochs` makes it. Iterate over it once, with ``for`` or with ``async for``: each item
    is an `Epoch`. If you move on to the next epoch before the end of one, the rest of that epoch is
    dropped, and is not prepared. When you leave the loop, or drop this object, the workers end, and
    so do its epochs.

    Cancellation:
        A cancelled step of ``async for`` has lost nothing.

    Args:
        pipeline: the pipeline.
        span: the first epoch, and the one before which to stop.
        resume: a position to begin at.
        watchdog: seconds without movement after which to warn; ``None`` for never.
        journal: a file in which the items of each batch are recorded.
        raise_single: whether a single failure is raised as itself, and not as a group of one.
        steps: how many elements there are, over all epochs and all runs before; ``None`` for no
            limit.

    Raises:
        InvalidArgumentError: the position does not fit, or an argument is wrong. A step raises it
            if the source is an iterator that was used up in an earlier epoch.
        ExceptionGroup: (of a step) workers or stages have failed, as a coordinator reports it.
        PreemptedError: (of a step) it would have to wait after a preemption; see `Preemption`.
        RuntimeError: (of a step) you have left the loop, or the run has failed before; or a ``for``
            loop would block the running event loop; or two epochs in a row were empty, without end.
        TypeError: (of a step) you have begun with ``for`` and continue with ``async for``, or the
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
        steps: int | None = None,
    ) -> None:
        self._journal = journal
        self._steps = steps
        self._raise_single = checked_flag(raise_single, "raise_single")
        self._pipeline = pipeline
        self._span = span
        # A source that cannot begin again fails in the second epoch. The run ends before it, so
        # that read-ahead cannot raise that failure while the first epoch is still in use.
        self._one_pass_source = once_only(pipeline)
        self._resume_point = ResumePoint(span.start)
        self._positions = PipelinePositions.at_once(pipeline) if resume is None else None
        self._epoch: Epoch[T] | None = None
        self._empty_epochs = 0  # how many epochs in a row were empty
        self._next = span.start
        self._is_closed = False
        self._run_lock = RunLock()
        self._watchdog = checked_watchdog(watchdog)
        self._watch = watch_of(pipeline)
        note_for_forks(self)
        if resume is not None:
            self.load_state_dict(resume)

    def _was_forked(self) -> None:
        _refuse_if_begun(self, "this run of a pipeline", self._run is not None)

    @property
    def _batch_shape(self) -> BatchShape | None:
        """The shape of the elements, if they are batches and the run has begun."""
        return None if self._run is None else self._run.batch_shape

    def __repr__(self) -> str:
        start, stop = self._span
        upto = "" if stop is None else stop
        steps = "" if self._steps is None else f", {self._steps} steps"
        return f"<aioqueue.inputs.Epochs {start}:{upto} of {self._pipeline!r}{steps}>"

    def __len__(self) -> int:
        """How many epochs there are.

        Raises:
            TypeError: there is no end, or the end is a number of steps.
        """
        if self._steps is not None:
            raise TypeError("these epochs have no length: they end after a number of steps")
        if self._span.stop is None:
            raise TypeError("these epochs have no length: they have no end (count=None)")
        return self._span.stop - self._span.start

    def __bool__(self) -> bool:
        """Always true, also without epochs: otherwise ``len`` would decide."""
        return True

    def __contains__(self, element: object) -> NoReturn:
        """Refuse ``in``: a search would use up the batches.

        Raises:
            TypeError: always.
        """
        refuse_search(self)

    def __iter__(self) -> Iterator[Epoch[T]]:
        return self

    def __next__(self) -> Epoch[T]:
        try:
            return self._run_lock.turn(self._begin_next)
        except StopIteration:
            raise
        except BaseException as error:
            _stop_if_interrupted(self._run, error)
            forget_locals(error)
            shorten(error)
            del self  # the failure's traceback has this frame, and must not keep the run alive
            raise

    def __aiter__(self) -> AsyncIterator[Epoch[T]]:
        return self

    async def __anext__(self) -> Epoch[T]:
        with SHORTENED:
            async with self._run_lock.aio:
                return await self._begin_next_async()

    def __enter__(self) -> Epochs[T]:
        if in_event_loop():
            raise RuntimeError(
                "leaving the block would have to wait for workers, and this thread's event loop is"
                " running: use `async with pipeline.epochs(...) as epochs` here"
            )
        return self

    def __exit__(self, *exc_info: object) -> None:
        if exc_info[0] is None:
            with SHORTENED:
                self.close()
            return
        self._is_closed = True
        if self._run is not None:
            self._run.leave()  # further failures go to the log: the user sees that of the block

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
        """The counts of each stage with workers so far, in order.

        Each stage that calls a function on workers has a record, and so has `Stages.prefetch`. The
        stages of a pipeline that is mixed in stand in the place of the `mix`. Before the first
        epoch begins the result is empty. You can call it from any thread, also after the end.
        """
        return () if self._run is None else self._run.statistics()

    def explain(self) -> Explanation:
        """Explain which callers wait, for what and since when; see `aioqueue.explain`."""
        return explain() if self._run is None else self._run.explain()

    @property
    def quarantine(self) -> list[Quarantined]:
        """The damaged files that readers have left out, and the items that were skipped so far,
        stage by stage, in the order in which they failed.

        If a stage writes them to a file, they are read from it. After a resume the list has no
        items that the run before had skipped up to its state, and these are not written a second
        time: `statistics` counts them, and the file has them.

        Raises:
            OSError: the file cannot be read.
            DataLossError: records of this run are no longer in the file.
        """
        return [] if self._run is None else self._run.quarantine()

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that you received, from which to resume later.

        It does not contain what is in flight, which will be prepared again with the same result.
        You can call it at any time from any thread, also before the first batch and after the last.
        It stops no worker.

        Returns:
            A dict of plain JSON types. Pass it to `Pipeline.epochs` as ``resume=``.

        Raises:
            RuntimeError: the pipeline has no position, because its stages do not keep the order; or
                a signal handler has interrupted the making of a batch, and calls this.
            InvalidArgumentError: you can iterate over the source only once.
            OSError: the size of a file cannot be read.
        """
        resume_point = self._resume_point if self._run is None else self._run.resume_point()
        if self._positions is None:
            self._positions = PipelinePositions(self._pipeline)
        return self._positions.behind(resume_point)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin behind a position, instead of at the beginning.

        Args:
            state: what `state_dict` returned, in this process or another.

        Raises:
            InvalidArgumentError: it is not a position, is damaged, or belongs to another pipeline:
                the message names the field that differs, and both values.
            RuntimeError: the first epoch has begun already.
        """
        if self._run is not None or self._next != self._span.start:
            raise RuntimeError(
                "load_state_dict was called after the first epoch had begun: make new epochs with"
                " pipeline.epochs(count, resume=state)"
            )
        self._pipeline, resume_point = checked_resume_point(self._pipeline, state)
        self._positions = None
        stop = self._span.stop
        if stop is not None and resume_point.epoch > stop:
            raise misplaced(
                f"epoch {resume_point.epoch}", f"at most {stop}, where these epochs end"
            )
        self._resume_point = resume_point
        self._span = EpochRange(resume_point.epoch, stop)
        self._next = resume_point.epoch

    def monitor(self, *, log: bool = False) -> Monitor:
        """Watch these epochs, and find their bottleneck: see `Pipeline.monitor`.

        Args:
            log: write a line a minute to the log (``aioqueue``), and a warning when data are late.
        """
        from aioqueue.telemetry import Monitor

        return Monitor(self, log=log)

    def _watched(self) -> Watch:
        return self._watch

    def close(self) -> None:
        """Stop the workers and wait until they have ended. Further calls do nothing.

        Raises:
            ExceptionGroup: the failures that no step has raised yet.
            RuntimeError: you have begun with ``async for``; await `aclose` instead.
        """
        if isinstance(self._run, AsyncRun):
            raise RuntimeError("close would have to wait for tasks: use `await epochs.aclose()`")
        self._is_closed = True
        with SHORTENED:
            if self._run is not None:
                self._run.close()

    async def aclose(self) -> None:
        """Stop the workers and wait until they have ended, after a loop with ``async for``.

        Raises:
            ExceptionGroup: the failures that no step has raised yet.
            RuntimeError: you have begun with ``for``; call `close` instead, in a thread.

        Cancellation:
            A cancelled call has requested the stop, and does not wait for the workers.
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
        """Leave a block because of an exception. Further failures go to the log."""
        self._is_closed = True
        if self._run is not None:
            self._run.leave()
        # A `GeneratorExit` closes the coroutine that runs us, so it must not wait.
        if isinstance(self._run, AsyncRun) and not isinstance(error, GeneratorExit):
            await self._run.wait_shielded()

    @property
    def _stop(self) -> int | None:
        """The first epoch that is not part of the run; ``None`` without an end."""
        return self._span.stop if self._one_pass_source is None else self._span.start + 1

    def _is_at_end(self) -> bool:
        if self._steps is not None and self._delivered() >= self._steps:
            return True
        return self._is_closed or (self._span.stop is not None and self._next >= self._span.stop)

    def _delivered(self) -> int:
        """Return how many elements were delivered, over all epochs and all runs before."""
        return self._resume_point.handed if self._run is None else self._run.delivered

    def _begin_next(self) -> Epoch[T]:
        if self._is_at_end():
            self.close()
            raise StopIteration
        if self._one_pass_source is not None and self._run is not None:
            self.close()
            raise self._one_pass_source._used_up()
        if self._run is None:
            _refuse_in_loop()
            self._run = self._begin_run(ThreadRun)
        if not isinstance(self._run, ThreadRun):
            raise TypeError("you began these epochs with `async for`; continue with `async for`")
        return self._epoch_of(self._run)

    async def _begin_next_async(self) -> Epoch[T]:
        if self._is_at_end():
            await self.aclose()
            raise StopAsyncIteration
        if self._one_pass_source is not None and self._run is not None:
            await self.aclose()
            raise self._one_pass_source._used_up()
        if self._run is None:
            self._run = self._begin_run(AsyncRun)
        if not isinstance(self._run, AsyncRun):
            raise TypeError("you began these epochs with `for`; continue with `for`")
        await self._run.begin()
        return self._epoch_of(self._run)

    def _begin_run(self, kind: type[RunT]) -> RunT:
        resume_point, journal = self._opened_journal()
        return kind(
            self._pipeline,
            self._stop,
            resume_point,
            self._watch,
            self._run_lock,
            watchdog=self._watchdog,
            journal=journal,
            raise_single=self._raise_single,
        )

    def _opened_journal(self) -> tuple[ResumePoint, JournalWriter | None]:
        """Return where the run begins, and the writer of its journal, if it has one."""
        if self._journal is None:
            return self._resume_point, None
        run = self._resume_point.run or os.urandom(8).hex()
        self._resume_point = self._resume_point._replace(run=run)
        return self._resume_point, JournalWriter(self._journal, run, self._resume_point.handed)

    def _epoch_of(self, run: ThreadRun | AsyncRun) -> Epoch[T]:
        run.check()
        number = self._next
        self._next += 1
        if self._epoch is not None:
            self._refuse_endless_empty(self._epoch)
            if self._epoch._leave():  # its other rows are dropped, and not prepared
                run.skip_to(number)
        resume_point = ResumePoint(number, rest=self._resume_point.rest)
        if number == self._resume_point.epoch:  # the rest of it
            done, skip = self._resume_point.batches, self._resume_point.skip
            resume_point = resume_point._replace(batches=done, skip=skip)
        if self._steps is None:
            self._epoch = Epoch(self._pipeline, resume_point, self._watch, run, self._run_lock)
        else:
            self._epoch = LimitedEpoch(
                self._pipeline, resume_point, self._watch, run, self._run_lock, self._steps
            )
        return self._epoch

    def _refuse_endless_empty(self, last: Epoch[T]) -> None:
        """Refuse to loop for ever over empty epochs.

        Raises:
            RuntimeError: two epochs in a row were empty. (One may be: all its items were skipped,
                or were delivered before a resume.)
        """
        self._empty_epochs = self._empty_epochs + 1 if last._was_empty else 0
        if self._span.stop is None and self._empty_epochs > most_empty(self._pipeline):
            if self._run is not None:
                self._run.leave()
            raise RuntimeError(
                f"{self._empty_epochs} epochs in a row were empty, so epochs(None) would loop for"
                " ever; expected a source with items, and stages that do not drop all of them"
                " (drop_remainder=True drops examples that do not fill a batch)"
            )


@public("aioqueue.inputs")
@hint_attributes("an epoch")
class Epoch(Generic[T]):
    """One epoch of a pipeline. Iterate over it once, with ``for`` or with ``async for``.

    Several threads, or several tasks, may iterate over it at once; each batch goes to one of them.
    A batch is yours alone. A step raises the same errors as a step of `Epochs`.

    Cancellation:
        A cancelled step of ``async for`` has lost nothing: the next step returns the batch.

    Args:
        pipeline: the pipeline.
        resume_point: where it begins.
        watch: where monitors find the parts of the run.
        run: the run that it is part of. ``None`` starts a run with the first step, and ends it
            with the last, or when this object is dropped.
        turns: the lock of that run.
    """

    _run: ThreadRun | AsyncRun | None = None
    _owns_run = False

    def __init__(
        self,
        pipeline: BasePipeline[T],
        resume_point: ResumePoint,
        watch: Watch,
        run: ThreadRun | AsyncRun | None = None,
        turns: RunLock | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._resume_point = resume_point
        self._number = resume_point.epoch
        self._watch = watch
        self._run = run
        self._owns_run = run is None
        self._run_lock = turns or RunLock()
        self._positions: PipelinePositions | None = None
        self._done_before = self._done = resume_point.batches + resume_point.skip
        self._has_ended = False
        self._was_left = False
        note_for_forks(self)

    def _was_forked(self) -> None:
        _refuse_if_begun(self, "this epoch of a pipeline", self._run is not None)

    @property
    def number(self) -> int:
        """The number of the epoch, from 0."""
        return self._number

    def __repr__(self) -> str:
        return f"<aioqueue.inputs.Epoch {self._number} of {self._pipeline!r}>"

    def __len__(self) -> int:
        """How many batches it has, as if no item were skipped.

        After a resume inside the epoch this is what was left of it then. It does not change while
        you take batches; `done` does.

        Raises:
            TypeError: the number depends on the data, or the source does not know its length.
        """
        length = length_of(self._pipeline, self._resume_point.rest, self._number)
        if length is None:
            raise TypeError(
                f"the length of {self!r} is not known: it depends on the data, or the source does"
                " not know its length"
            )
        return max(0, length - self._done_before)

    @property
    def done(self) -> int:
        """How many batches of the epoch were delivered, including those before a resume."""
        if self._run is not None and not (self._has_ended or self._was_left):
            self._done = self._run.delivered_in(self._number, self._done)
        return self._done

    @property
    def left(self) -> int | None:
        """How many batches are left, as if no item were skipped; ``None`` if that is unknown."""
        if self._has_ended:
            return 0
        length = length_of(self._pipeline, self._resume_point.rest, self._number)
        return None if length is None else max(0, length - self.done)

    def __bool__(self) -> bool:
        """Always true, also for an empty epoch: otherwise ``len`` would decide."""
        return True

    def __contains__(self, element: object) -> NoReturn:
        """Refuse ``in``: a search would use up the batches.

        Raises:
            TypeError: always.
        """
        refuse_search(self)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        turn = object()
        try:
            begun = call_with_lock(self._run_lock.lock, self._begin, turn)
            if type(begun) is list:  # the usual case: it was ready, and this turn is over
                return begun[0][ROW_VALUE]  # type: ignore[no-any-return]
            return self._finish(turn, begun)
        except StopIteration:
            raise
        except BaseException as error:
            self._run_lock.end(turn)  # a handler may have raised before `_finish` could
            _stop_if_interrupted(self._run, error)
            forget_locals(error)
            shorten(error)
            del self  # the failure's traceback has this frame, and must not keep the run alive
            raise

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        turn, steps = self._run_lock.aio, self._watch.steps
        begun: Taken | BegunFlow | None = None
        try:
            if steps is not None:
                async with turn:
                    with steps.step(self._run_lock):
                        return await self._next_async(None)
            is_current = not (self._was_left or self._has_ended)
            # The usual case: the row is ready, and no other task is in the middle of a step. There
            # is no await between this question and the row, so none can get in between; nor before
            # this task has the turn, if the row is not ready.
            if is_current and isinstance(self._run, AsyncRun) and not turn.locked():
                begun = self._run.begin_take()
                if type(begun) is list:
                    return begun[0][ROW_VALUE]  # type: ignore[no-any-return]
                if isinstance(begun, EpochEnd):
                    self._end(begun)  # now: a cancellation below must not lose it
            async with turn:
                return await self._next_async(begun)
        except BaseException as error:
            shorten(error)
            raise

    def explain(self) -> Explanation:
        """Explain which callers wait, for what and since when; see `aioqueue.explain`."""
        return explain() if self._run is None else self._run.explain()

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that you received: see `Epochs.state_dict`."""
        resume_point = self._resume_point if self._run is None else self._run.resume_point()
        if self._positions is None:
            self._positions = PipelinePositions(self._pipeline)
        return self._positions.behind(resume_point)

    def __del__(self) -> None:
        if self._owns_run and self._run is not None:
            self._run.abandon()

    def _begin(self, turn: object) -> Taken | BegunFlow | Exception | None:
        """Take the next batch if it is ready. Otherwise keep the turn, and return how far it came:
        ``None`` if nothing was begun. The lock of the run is held.
        """
        self._run_lock.wait_until_free()
        run, begun = self._run, None
        is_current = not (self._was_left or self._has_ended)
        if self._watch.steps is None and is_current and isinstance(run, ThreadRun):
            begun = run.begin_take()
            if type(begun) is list and not run.is_over:
                return begun
        self._run_lock.keep(turn)
        try:
            return begun
        finally:
            del begun  # a failure, whose traceback has this frame: that would be a cycle

    def _finish(self, turn: object, begun: Taken | BegunFlow | Exception | None) -> T:
        """Wait for the batch, start the workers, end the epoch, or raise a failure; in a turn."""
        steps = self._watch.steps
        try:
            if steps is None:
                return self._next(begun)
            with steps.step(self._run_lock):
                return self._next(begun)
        finally:
            del begun
            self._run_lock.end(turn)

    def _next(self, begun: Taken | BegunFlow | Exception | None) -> T:
        if self._has_ended:
            raise StopIteration
        if self._run is None:
            _refuse_in_loop()
            self._run = ThreadRun(
                self._pipeline, self._number + 1, self._resume_point, self._watch, self._run_lock
            )
        if not isinstance(self._run, ThreadRun):
            raise TypeError("you began this epoch with `async for`; continue with `async for`")
        self._check_current()
        taken = self._run.take(begun=begun)
        if isinstance(taken, EpochEnd):
            self._end(taken)
            if self._owns_run:
                self._run.close()
            raise StopIteration
        return taken[0][ROW_VALUE]  # type: ignore[no-any-return]

    async def _next_async(self, begun: Taken | BegunFlow | None) -> T:
        if self._has_ended and begun is None:
            raise StopAsyncIteration
        if self._run is None:
            self._run = AsyncRun(
                self._pipeline, self._number + 1, self._resume_point, self._watch, self._run_lock
            )
        if not isinstance(self._run, AsyncRun):
            raise TypeError("you began this epoch with `for`; continue with `for`")
        self._check_current()
        taken = await self._run.take(begun=begun)
        if isinstance(taken, EpochEnd):
            self._end(taken)
            if self._owns_run:
                await self._run.aclose()
            raise StopAsyncIteration
        return taken[0][ROW_VALUE]  # type: ignore[no-any-return]

    def _end(self, end: EpochEnd) -> None:
        self._done, self._has_ended = end.count, True

    @property
    def _was_empty(self) -> bool:
        """Whether it has ended, and was empty."""
        return self._has_ended and not self._done

    def _leave(self) -> bool:
        """Note that the next epoch begins. Returns whether batches of this one are left."""
        self._done = self.done
        self._was_left = not self._has_ended
        return self._was_left

    def _check_current(self) -> None:
        if self._was_left:
            raise RuntimeError(
                f"epoch {self._number} was left when the next one began; take its batches first"
            )


class LimitedEpoch(Epoch[T]):
    """An epoch of a run that ends after a number of steps: it ends there at the latest.

    It is a class of its own so that other epochs need not ask behind each element.

    Args:
        pipeline: as for `Epoch`, like the next four.
        resume_point: where it begins.
        watch: where monitors find the parts of the run.
        run: the run that it is part of.
        turns: the lock of that run.
        steps: of the run, over all its epochs and all runs before.
    """

    def __init__(
        self,
        pipeline: BasePipeline[T],
        resume_point: ResumePoint,
        watch: Watch,
        run: ThreadRun | AsyncRun,
        turns: RunLock,
        steps: int,
    ) -> None:
        super().__init__(pipeline, resume_point, watch, run, turns)
        self._counted: ThreadRun | AsyncRun = run
        self._steps = steps
        self._steps_left = max(0, steps - run.delivered)  # when it begins

    def __len__(self) -> int:
        return min(super().__len__(), self._steps_left)

    @property
    def left(self) -> int | None:
        left = super().left
        return None if left is None else min(left, max(0, self._steps - self._counted.delivered))

    async def __anext__(self) -> T:
        if not self._run_lock.aio.locked():
            self._end_after_steps()
        return await super().__anext__()

    def _begin(self, turn: object) -> Taken | BegunFlow | Exception | None:
        # Another thread may be about to take the last one: first that is decided.
        self._run_lock.wait_until_free()
        self._end_after_steps()
        return super()._begin(turn)

    def _next(self, begun: Taken | BegunFlow | Exception | None) -> T:
        if begun is None:
            self._end_after_steps()
        return super()._next(begun)

    async def _next_async(self, begun: Taken | BegunFlow | None) -> T:
        if begun is None:
            self._end_after_steps()
        return await super()._next_async(begun)

    def _end_after_steps(self) -> None:
        is_current = not (self._has_ended or self._was_left)
        if is_current and self._counted.delivered >= self._steps:
            self._done, self._has_ended = self.done, True


def _refuse_if_begun(begun: Any, what: str, has_run: bool) -> None:
    """After a fork: a run works only in its own process, but a new one may begin here."""
    if has_run:
        begun._run = inherited_object(what, begun._run)
        begun._run_lock = inherited_object(what)
    else:
        begun._run_lock = RunLock()  # a thread of the parent may hold the old one, and is not here


def _stop_if_interrupted(run: ThreadRun | AsyncRun | None, error: BaseException) -> None:
    """End the workers at once after Ctrl-C.

    It does not wait until the epochs are dropped: a notebook keeps the traceback, and with it
    everything that its frames refer to, until the next failure.
    """
    if not isinstance(error, Exception) and isinstance(run, ThreadRun):
        run.interrupt()
        run.join_interrupted()


def _refuse_in_loop() -> None:
    """Raise RuntimeError for a ``for`` loop in a coroutine, which would block all other tasks."""
    if in_event_loop():
        raise RuntimeError(
            "a `for` loop waits for batches, and would block the event loop that runs in this"
            " thread: use `async for` here"
        )
