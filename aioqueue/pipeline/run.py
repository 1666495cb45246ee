"""A run of a pipeline: its nodes, its workers, and the coordinator that stops them.

A run for threads has a coordinator of threads. A run for tasks has an async coordinator in a task
of its own. It could not be in the user's task: asyncio does not notify us of a ``break`` out of an
``async for``, so a cancel scope that was entered in that task would stay behind.

A run that has failed, was closed or was interrupted is over: its nodes may have lost rows.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from contextlib import suppress
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import anyio

import aioqueue
from aioqueue import CancelledError, DeadlineExceededError, Explanation, PreemptedError, sync
from aioqueue.base.tracebacks import reraise
from aioqueue.coordination.cancellations import running_task
from aioqueue.coordination.classify import ended_by_scope
from aioqueue.coordination.tasks import spawn, threadsafe_caller
from aioqueue.errors import interrupt_of
from aioqueue.items.quarantined import Quarantined
from aioqueue.pipeline.batches.batch_shape import BatchShape
from aioqueue.pipeline.build import Builder
from aioqueue.pipeline.nodes.flow import RunOver
from aioqueue.pipeline.nodes.node import Node, Taken
from aioqueue.pipeline.nodes.progress import DeliveredRows, ResumePoint, first_epoch_of
from aioqueue.pipeline.nodes.rows import EpochRange
from aioqueue.pipeline.nodes.stepping import BegunFlow, RunLock, Stepping
from aioqueue.pipeline.queue_loans import RunLoans
from aioqueue.pipeline.stages.base import BasePipeline
from aioqueue.pipeline.state.checkpoint import rest_from_epoch
from aioqueue.preemption import ALARM
from aioqueue.system.locks import call_with_lock
from aioqueue.telemetry import StepMeters, Watch, note_waits
from aioqueue.telemetry.explain.explanation import ExplainedWait, loop_wait
from aioqueue.telemetry.explain.frame_cleanup import (
    forget_locals,
    interrupts_aioqueue,
    without_outermost,
)
from aioqueue.workers.statistics import StageStatistics
from aioqueue.worlds.waker import current_loops, in_event_loop, running_loop

if TYPE_CHECKING:
    from aioqueue.items.journal import JournalWriter

_log: Final = logging.getLogger("aioqueue")

_GRACE_AFTER_LEAVING: Final = 5.0
"""Seconds that workers have to end after a loop was left. Then the log names those that run on."""

_GRACE_OF_JOIN: Final = 120.0
"""Seconds that workers have to end if the caller gets the failure, as in a coordinator."""

_LEFT: Final = "the loop or the block that it belongs to was left"
_DROPPED: Final = (
    "its `pipeline.epochs(...)` was dropped, or you left the loop over it; keep the epochs in a"
    " variable while you take batches (`next(iter(pipeline))` needs no variable)"
)
_FAILED: Final = "it has failed"
_INTERRUPTED: Final = (
    "it was interrupted in the middle of a step; epochs(start=...) begins again at an epoch"
)
_PREEMPTED: Final = "this process will be preempted"


class _Run(ABC):
    """What the runs for threads and for tasks share.

    Args:
        pipeline: the pipeline.
        stop: the first epoch that is not part of the run; ``None`` without an end.
        resume_point: where to begin.
        watch: where monitors find the parts of the run.
        loop: the lock of the run. It identifies the user's loop, so that monitors can tell the
            steps of several loops apart.
        watchdog: seconds without movement after which to warn; ``None`` for never.
        journal: records the items of each batch.
        raise_single: whether a single failure is raised as itself.
    """

    _coord: sync.Coordinator | aioqueue.Coordinator
    _node: Node | None = None
    _builder: Builder | None = None
    _loans: RunLoans | None = None
    _why_over: str | None = None
    """Why the run is over; ``None`` while it is not."""
    _alarm: str | None = None
    """The reason of a preemption, after which no step may wait."""
    _is_program_ending = staticmethod(sys.is_finalizing)
    """An attribute, because `abandon` may run when the names of this module are gone already."""

    def __init__(
        self,
        pipeline: BasePipeline[Any],
        stop: int | None,
        resume_point: ResumePoint,
        watch: Watch,
        loop: RunLock,
        *,
        watchdog: float | None = None,
        journal: JournalWriter | None = None,
        raise_single: bool = False,
    ) -> None:
        self._watch = watch
        self.loop = loop
        self._journal = journal
        self._raise_single = raise_single
        self._delivered = DeliveredRows(resume_point.handed, journal)
        self._process = os.getpid()
        self._begin_point = resume_point
        self._steps = Stepping(loop.lock, resume_point.skip, self._delivered.add)
        self._step = self._steps.step
        self._waiting_caller: tuple[Any, float] | None = (
            None  # the caller that waits, and since when
        )
        self._pipeline = pipeline
        self._span = EpochRange(first_epoch_of(resume_point), stop)
        note_waits(self)
        self._begin(watchdog)  # last: workers and monitors may use everything above at once

    @abstractmethod
    def _begin(self, watchdog: float | None) -> None:
        """Make the coordinator, and have the workers started."""

    def _build(self, coord: sync.Coordinator | aioqueue.Coordinator, *, is_async: bool) -> None:
        # Workers inherit it. What they take from a queue is never kept from them by their own loop.
        token = current_loops.set((*current_loops.get(), object()))
        try:
            self._build_in_loop(coord, is_async=is_async)
        finally:
            current_loops.reset(token)

    def _build_in_loop(
        self, coord: sync.Coordinator | aioqueue.Coordinator, *, is_async: bool
    ) -> None:
        resume_point = self._begin_point
        self._builder = Builder(
            self._pipeline,
            self._span,
            coord.start,
            self._watch,
            is_async=is_async,
            rest=resume_point.rest,
            has_journal=self._journal is not None,
        )
        self._loans = self._builder.loans
        if self._loans is not None:
            self._delivered.deliver = self._loans.deliver
        self._node = self._builder.run(resume_point.node, resume_point.stages, resume_point.layouts)
        self._note_last_queue()
        coord._core.start_watchdog()

    @abstractmethod
    def wake(self, reason: str) -> None:
        """Wake a waiting step after a preemption. Any thread or signal handler may call it."""

    def _watch_preemption(self) -> None:
        """Let a preemption wake it from now on; immediately, if one was already announced."""
        ALARM.sleepers.add(self)  # first: a signal handler may ring before the next line
        if ALARM.reasons:
            ALARM.wake(self)

    @property
    def steps(self) -> StepMeters | None:
        """The meter of the loop's steps; ``None`` without a monitor."""
        return self._watch.steps

    @property
    def batch_shape(self) -> BatchShape | None:
        """The shape of the rows, if these are batches."""
        return None if self._node is None else self._node.batch_shape

    def _note_last_queue(self) -> None:
        """Report to monitors at which queue the loop waits."""
        assert self._builder is not None
        self._watch.last_queue = self._builder.last_queue

    def resume_point(self) -> ResumePoint:
        """Where the run stands behind the last batch that was delivered, with deferred parts. Any
        thread may call it.

        Raises:
            RuntimeError: a signal handler calls it that has interrupted the making of a batch; or
                an interrupt was raised in the making of a batch; or the pipeline has no positions.
        """
        return self._steps.between(self._resume_point)

    def _resume_point(self) -> ResumePoint:
        if self._node is None:
            return self._begin_point
        state = self._node.state()
        return ResumePoint(
            state["epoch"],
            state["given"],
            self._steps.skip,
            state,
            rest=rest_from_epoch(self._begin_point.rest, state["epoch"]),
            stages=[] if self._builder is None else self._builder.tallies(),
            handed=self._delivered.count,
            run=self._begin_point.run,
            layouts=() if self._builder is None else self._builder.layouts(),
        )

    @property
    def delivered(self) -> int:
        """How many rows were delivered, over all epochs and all runs before."""
        return self._delivered.count

    def delivered_in(self, epoch: int, otherwise: int) -> int:
        """How many rows of an epoch were delivered; `otherwise` if the run is in another epoch."""
        if self._node is None:
            return otherwise
        at, given = self._node.given
        return given + self._steps.skip if at == epoch else otherwise

    def waits(self, frames: Mapping[int, FrameType]) -> list[ExplainedWait]:
        """The wait of the user's loop, if it makes the next batch itself."""
        asks = self._waiting_caller
        if asks is None:
            return []
        return [loop_wait(asks[0], perf_counter() - asks[1], frames)]

    def waits_move(self) -> Hashable:
        return self._delivered.count, self._waiting_caller

    def longest_of_waits(self) -> float:
        asks = self._waiting_caller
        return 0.0 if asks is None else perf_counter() - asks[1]

    def waits_for(self, coordinator: object) -> bool:
        return self._coord._core is coordinator

    def request_stop(self, error: BaseException | None = None) -> None:
        """Wake a waiting step, and end the run, with a failure perhaps. Any thread may call it."""
        try:
            self._coord.request_stop(error)
        except BaseException as raised:
            if raised is not error:  # which a coordinator raises that is over
                raise

    @property
    def is_over(self) -> bool:
        return self._why_over is not None

    def statistics(self) -> tuple[StageStatistics, ...]:
        return () if self._builder is None else self._builder.statistics()

    def explain(self) -> Explanation:
        return self._coord.explain()

    def quarantine(self) -> list[Quarantined]:
        return [] if self._builder is None else self._builder.quarantine()

    def abandon(self) -> None:
        """Stop all workers. Failures are logged and not raised."""
        if self._is_program_ending():
            return
        self._end(_DROPPED)
        if self.steps is not None:
            self.steps.stop(self.loop)
        # A fork has no threads to stop, nor an event loop that would run on.
        if self._process == os.getpid():
            self._stop_quietly()

    def leave(self) -> None:
        """Stop all workers, because a block was left by an exception. Failures are logged."""
        self._end(_LEFT)
        self.abandon()

    def skip_to(self, epoch: int) -> None:
        if self._node is not None and not self.is_over:
            self._step(self._node.skip_to, epoch)

    def _give_back(self) -> None:
        """Give what was taken from queues back to them, unless the user has received it. Called
        when the workers have ended."""
        if self._loans is not None:
            self._loans.give_back()

    def _unwrap_if_asked(self, failure: BaseException) -> BaseException:
        """The exception to raise: a single failure as itself, if the user has asked for it."""
        # Without our frames: the failures in the group have their own tracebacks.
        failure = failure.with_traceback(None)
        if self._raise_single:
            failure = self._coord._core.unwrap_single(failure)
        return interrupt_of(failure)

    @abstractmethod
    def _stop_quietly(self) -> None: ...

    def _end(self, why: str) -> None:
        self._why_over = self._why_over or why

    def check(self) -> None:
        """Raise an error if the run is over.

        Raises:
            PreemptedError: a step would have had to wait after a preemption.
            RuntimeError: the run is over for another reason.
        """
        if self._why_over is _PREEMPTED:
            raise PreemptedError(
                f"{_PREEMPTED} (notice: {self._alarm}), so no step waits for another batch; save"
                " state_dict(), the position behind the last one",
                reason=self._alarm or "",
            )
        if self._why_over is not None:
            raise RuntimeError(f"this run of the pipeline is over: {self._why_over}")


class ThreadRun(_Run):
    """A run for threads, which take turns; but any thread may close it at any time."""

    _coord: sync.Coordinator
    _is_made = False
    """Whether there is a coordinator to stop; Ctrl-C may strike before, within ``__init__``."""

    def _begin(self, watchdog: float | None) -> None:
        self._coord = sync.Coordinator(watchdog=watchdog)
        self._coord._keeps_groups = True
        self._is_joined = False
        self._is_taking = False
        self._waiting = sync.CancelScope()
        self._taking_thread = threading.get_ident()
        self._is_made = True
        try:
            self._build(self._coord, is_async=False)
            self._watch_preemption()
        except BaseException:
            self._coord.request_stop()
            self._coord.join()
            self._give_back()
            raise

    def wake(self, reason: str) -> None:
        self._alarm = reason
        self._waiting.cancel()

    def __del__(self) -> None:
        if self._is_made:
            self.abandon()  # usually done already; but Ctrl-C may strike before the caller has us

    def begin_take(self, n: int = 1) -> Taken | BegunFlow | Exception:
        """Take rows that are ready, in one step; otherwise return what `take` has to wait for, or
        the exception that was raised instead.

        The calling thread holds the lock of the run, so nothing is closed or joined here.
        """
        self._taking_thread = threading.get_ident()
        # Set before the question whether the run is over. `close` does both in the other order, so
        # one of the two threads sees the other, and closes the nodes.
        self._is_taking = True
        begun: Taken | BegunFlow | Exception = RunOver()
        try:
            if self._node is not None and self._why_over is None:
                if self._loans is not None:
                    self._loans.set_user()
                begun = self._steps.begin_locked(self._node, n)
        except Exception as error:
            begun = error
        except BaseException:
            self.interrupt()  # Ctrl-C may have struck anywhere in a node, so rows may be lost
            raise
        self._is_taking = isinstance(begun, BegunFlow)
        try:
            return begun
        finally:
            del begun  # a failure, whose traceback has this frame: that would be a cycle

    def take(self, n: int = 1, begun: Taken | BegunFlow | Exception | None = None) -> Taken:
        """The next rows of the epoch, 1 to n of them; or its end.

        Args:
            n: how many, at most.
            begun: the result of `begin_take`, if it was called.

        Raises:
            ExceptionGroup: what has failed, as the coordinator reports it.
            PreemptedError: the step would have to wait after a preemption.
            RuntimeError: the run is over.
        """
        taken = call_with_lock(self.loop.lock, self.begin_take, n) if begun is None else begun
        del begun
        if isinstance(taken, BegunFlow):
            taken = self._finish(taken)
        try:
            if isinstance(taken, Exception):
                reraise(self._failure_after(taken))
            if self._why_over is not None:
                # Another thread has closed the run meanwhile, and left this to us.
                self._close_nodes()
            return taken
        finally:
            del taken  # a failure, whose traceback has this frame: that would be a cycle

    def fail(self, error: BaseException) -> BaseException:
        """Stop the run because the code that takes its rows failed; return the run's failure."""
        self._end(_FAILED)
        return self._failure(error)

    def interrupt(self) -> None:
        """Ask all workers to end, after a step was interrupted. It does not wait."""
        self._is_taking = False
        self._end(_INTERRUPTED)
        self._coord.request_stop()

    def join_interrupted(self) -> None:
        """Wait for the workers, so that none still runs when the interrupt propagates."""
        if not self._is_joined:
            with suppress(CancelledError, DeadlineExceededError):  # of a scope around us
                self._join_quietly()

    def leave(self) -> None:
        self._taking_thread = threading.get_ident()  # the user's own thread: it may wait, see below
        super().leave()

    def close(self) -> None:
        """Stop and join all workers.

        Raises:
            ExceptionGroup: what has failed.
        """
        self._end(_LEFT)
        if not self._is_joined:
            self._coord.request_stop()
            self._close_nodes()
            failure: BaseException | None = None
            try:
                self._join()
            except BaseExceptionGroup as group:
                failure = self._unwrap_if_asked(group)
            try:
                if failure is not None:
                    reraise(failure)
            finally:
                del failure  # its traceback has this frame: that would be a cycle

    def _finish(self, begun: BegunFlow) -> Taken | Exception:
        """Wait for rows. Returns them, or the exception that was raised instead."""
        self._waiting_caller = (threading.current_thread(), perf_counter())
        try:
            with self._waiting:
                return self._steps.finish(begun)
        except Exception as error:
            return error
        except BaseException:
            self.interrupt()  # Ctrl-C may have struck anywhere in a node, so rows may be lost
            raise
        finally:
            self._waiting_caller = None
            self._is_taking = False

    def _failure_after(self, raised: Exception) -> BaseException:
        """The exception to raise in place of the one that a node has raised.

        Raises:
            PreemptedError: as `take` does.
            RuntimeError: the run is over.
        """
        if isinstance(raised, CancelledError) and self._alarm is not None:
            # If this thread reads the source itself, the cancellation has ended the source, too.
            self._end(_PREEMPTED)
            self.check()
        if isinstance(raised, RunOver):
            self.check()  # if this raises nothing, the run has ended by itself
        self._end(_FAILED)
        return self._failure(raised)

    def _failure(self, error: BaseException) -> BaseException:
        """Stop the run after an exception of a node. Returns the failure of the run."""
        forget_locals(error)  # the coordinator keeps the error, and must not keep rows with it
        is_left = ended_by_scope(error)
        # A closed queue is not a failure: the coordinator knows why it was closed.
        self._coord.request_stop(None if is_left or isinstance(error, RunOver) else error)
        self._close_nodes()
        try:
            self._join()
        except BaseExceptionGroup as failure:
            return self._unwrap_if_asked(failure)
        except Exception as failure:
            return failure.with_traceback(None)
        over = "the pipeline was stopped from outside before its end"
        return error if is_left else RuntimeError(over)

    def _stop_quietly(self) -> None:
        if self._is_joined:
            return
        self._coord.request_stop()
        # If the user's thread drops the run, it waits, so that all workers have ended behind the
        # loop. But the garbage collector may drop the run in any thread: one that must not wait, a
        # worker, or one that holds a lock which workers need. Then a thread of its own waits.
        is_here = self._taking_thread == threading.get_ident() and not in_event_loop()
        if is_here and not interrupts_aioqueue():
            with suppress(CancelledError, DeadlineExceededError):  # of a scope around us
                self._join_quietly()
                return
        with suppress(RuntimeError):  # no thread can start when the program ends
            threading.Thread(
                target=self._join_quietly, name="aioqueue-pipeline-left", daemon=True
            ).start()

    def _join_quietly(self) -> None:
        self._close_nodes()
        try:
            self._join(_GRACE_AFTER_LEAVING)
        except (CancelledError, DeadlineExceededError):
            raise
        except (Exception, BaseExceptionGroup) as failure:
            _log.error("a pipeline that was left has failed", exc_info=failure)

    def _join(self, grace: float = _GRACE_OF_JOIN) -> None:
        try:
            self._coord.join(stop_grace_period=grace)
        except BaseExceptionGroup:
            self._is_joined = True
            self._give_back()
            raise
        self._is_joined = True
        self._give_back()

    def _close_nodes(self) -> None:
        """Close the nodes. If a thread is in the middle of a step, it closes them afterwards."""
        try:
            if self._node is not None and not self._is_taking:
                self._node.close()
        except Exception as error:
            self._coord.request_stop(error)


class AsyncRun(_Run):
    """A run for the tasks of one event loop, which take turns."""

    _coord: aioqueue.Coordinator

    def _begin(self, watchdog: float | None) -> None:
        self._coord = aioqueue.Coordinator(watchdog=watchdog)
        self._coord._keeps_groups = True
        self._failure: BaseException | None = None
        self._has_begun = anyio.Event()
        self._has_ended = anyio.Event()
        self._is_reported = False  # whether the failure was raised, or left to the log
        self._is_abandoned = False
        self._waiting: anyio.CancelScope | None = None  # the scope of the task that waits
        self._call_soon = threadsafe_caller()
        self._loop = running_loop()  # of asyncio
        spawn(self._host())
        self._watch_preemption()

    def wake(self, reason: str) -> None:
        self._alarm = reason
        self._call_soon(self._cancel_waiting)

    async def begin(self) -> None:
        """Wait until its workers have been started.

        Cancellation:
            A cancelled call has changed nothing.
        """
        await self._has_begun.wait()

    def begin_take(self, n: int = 1) -> Taken | BegunFlow | None:
        """Take rows that are ready, in one step; otherwise return what `take` has to wait for.

        The result is ``None`` if the run has not begun or is over, for which `take` has the reason.
        """
        if self._node is None or self.is_over:
            return None
        if self._loans is not None:
            self._loans.set_user()
        try:
            return self._steps.begin(self._node, n)
        except Exception as error:
            self._stop_after(error)
            return None

    async def take(self, n: int = 1, begun: Taken | BegunFlow | None = None) -> Taken:
        """The next rows of the epoch, 1 to n of them; or its end.

        Args:
            n: how many, at most.
            begun: the result of `begin_take`, if it was called.

        Raises:
            ExceptionGroup: what has failed, as the coordinator reports it.
            PreemptedError: the step would have to wait after a preemption.
            RuntimeError: the run is over.

        Cancellation:
            A cancelled call has lost nothing.
        """
        if begun is None:
            await self._check_begun()
            begun = self.begin_take(n)
        if isinstance(begun, BegunFlow):
            try:
                begun = await self._finish(begun)
            except Exception as error:
                self._stop_after(error)
                begun = None
            else:
                if begun is None:
                    self._end(_PREEMPTED)
                    self.check()
        if begun is None:
            await self._check_begun()
            return reraise(await self._reported())
        return begun

    async def _check_begun(self) -> None:
        """Wait until the run has begun.

        Raises:
            ExceptionGroup: it has failed.
            PreemptedError: a step would have had to wait after a preemption.
            RuntimeError: it is over for another reason.
        """
        if self._node is None:
            await self._has_begun.wait()
        if self._why_over is None and self._node is None:
            self._end(_FAILED)
        if self._why_over == _FAILED and not self._is_reported:
            # Perhaps a call has found the failure, and was cancelled before it could raise it.
            reraise(await self._reported())
        self.check()

    def _stop_after(self, error: Exception) -> None:
        """Stop the run after a step has raised an exception, which the coordinator reports."""
        if isinstance(error, RunOver):
            if not self.is_over:  # the run has ended by itself; the coordinator knows why
                self._end(_FAILED)
                self._coord.request_stop()
            return
        self._end(_FAILED)
        # Without the frame of the caller, which waits for the coordinator.
        self._coord.request_stop(without_outermost(error))

    async def fail(self, error: BaseException) -> BaseException:
        """Stop the run because the code that takes its rows failed; return the run's failure."""
        self._end(_FAILED)
        self.request_stop(error)
        return await self._reported()

    async def _finish(self, begun: BegunFlow) -> Taken | None:
        """The next rows, or the end of the epoch; ``None`` if a preemption forbids to wait."""
        self._waiting_caller = (running_task(), perf_counter())
        try:
            with anyio.CancelScope() as self._waiting:
                if self._alarm is not None:
                    self._waiting.cancel()
                return await self._steps.finish_async(begun)
            return None
        finally:
            self._waiting_caller = None

    def _cancel_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def aclose(self) -> None:
        """Stop and join all workers.

        Raises:
            ExceptionGroup: what has failed.

        Cancellation:
            A cancelled call has requested the stop, and does not wait for the workers.
        """
        self._end(_LEFT)
        if self._is_reported:
            return
        self._coord.request_stop()
        await self._has_ended.wait()
        self._is_reported = True
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                reraise(self._unwrap_if_asked(failure))
        finally:
            del failure  # its traceback has this frame: that would be a cycle

    async def wait_shielded(self) -> None:
        """Wait until all workers have ended after `leave`.

        Cancellation:
            A cancelled scope does not interrupt it. Another `asyncio.Task.cancel` does.
        """
        with anyio.move_on_after(_GRACE_AFTER_LEAVING, shield=True):
            await self._has_ended.wait()

    def _stop_quietly(self) -> None:
        if not self._is_reported:
            self._is_reported = self._is_abandoned = True
            self._coord._grace = _GRACE_AFTER_LEAVING
            self._coord.request_stop()
            self._log_failure()
        if self._loop is not None and self._loop.is_closed():
            self._give_back()  # the task that would do so never runs again

    async def _host(self) -> None:
        """The body of the task in which the coordinator lives."""
        try:
            async with self._coord as coord:
                self._build(coord, is_async=True)
                self._has_begun.set()
                try:
                    await coord.wait_for_stop()
                finally:
                    self._close_nodes()
        except (Exception, BaseExceptionGroup) as failure:  # of a `SystemExit` in a worker, say
            forget_locals(failure)
            self._failure = failure
            if self._is_abandoned:
                self._log_failure()
        finally:
            self._give_back()  # the block has joined all workers
            # If it has failed before it began, a task waits for the beginning, and finds no node.
            self._has_begun.set()
            self._has_ended.set()

    def _close_nodes(self) -> None:
        try:
            if self._node is not None:
                self._node.close()
        except Exception as error:
            self._coord.request_stop(error)

    def _log_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            _log.error("a pipeline that was left has failed", exc_info=failure)

    async def _reported(self) -> BaseException:
        await self._has_ended.wait()
        self._is_reported = True
        failure, self._failure = self._failure, None
        if failure is not None:
            return self._unwrap_if_asked(failure)
        return RuntimeError("the pipeline was stopped from outside before its end")
