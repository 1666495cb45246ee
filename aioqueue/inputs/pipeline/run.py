"""A pipeline that is being gone through: its coordinator, and whoever takes what it makes.

In threads that is a coordinator of threads. For tasks it is an async coordinator in a task of its
own, in the same event loop: so leaving an ``async for``, which tells nobody, leaves no scope behind
that was entered in the user's task.

A run that has failed, was closed or was interrupted is over, and says so to whoever asks it for
more: what its nodes still hold is no longer the whole.
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
from aioqueue.coordination.classify import running_task
from aioqueue.coordination.tasks import spawn, threadsafe_caller
from aioqueue.inputs.core.items import Quarantined
from aioqueue.inputs.pipeline.build import Builder
from aioqueue.inputs.pipeline.checkpoint import ResumePoint, first_epoch_of, rest_from
from aioqueue.inputs.pipeline.description import BasePipeline
from aioqueue.inputs.pipeline.inspection import explained_wait
from aioqueue.inputs.pipeline.node import EpochRange, Node, Row, RunOver, Taken, drive, drive_async
from aioqueue.inputs.pipeline.progress import DeliveredRows
from aioqueue.inputs.pipeline.run_lock import Stepping
from aioqueue.inputs.preemption import ALARM
from aioqueue.inputs.statistics import StageStatistics
from aioqueue.telemetry import StepMeters, Watch, note_waits
from aioqueue.telemetry.explanation import ExplainedWait
from aioqueue.telemetry.stacks import forget_locals, has_struck_ours, without_outermost
from aioqueue.tracebacks import raise_again
from aioqueue.waiting.caller import in_event_loop

if TYPE_CHECKING:
    from aioqueue.inputs.core.journal import JournalWriter

__all__ = ("AsyncRun", "ThreadRun")

_log: Final = logging.getLogger("aioqueue")

_GRACE: Final = 5.0
"""Seconds that workers have to end when a loop was left, before the log names those that do not."""

_WHOLE_GRACE: Final = 120.0
"""The same where the caller is told, which is what a coordinator gives them."""

_LEFT: Final = "the loop or the block that it belongs to was left"
_DROPPED: Final = (
    "its `pipeline.epochs(...)` was dropped, or the loop over that was left; keep them in a"
    " variable while you take from one of them (`next(iter(pipeline))` needs none)"
)
_FAILED: Final = "it has failed"
_INTERRUPTED: Final = (
    "it was interrupted in the middle of a step; epochs(start=...) begins again from an epoch"
)
_PREEMPTED: Final = "this process is to end soon"


class _Run(ABC):
    """What runs of both worlds know."""

    _coord: sync.Coordinator | aioqueue.Coordinator
    _node: Node | None = None
    _builder: Builder | None = None
    _why_over: str | None = None
    """Why nothing more can be taken."""
    _alarm: str | None = None
    """Why nobody is to wait for more."""
    loop: object = None
    """Stands for the loop that goes through it, where steps are told apart."""
    _is_program_ending = staticmethod(sys.is_finalizing)
    """Asked when even the names of this module may be gone."""

    def __init__(
        self,
        standing: ResumePoint,
        watch: Watch,
        journal: JournalWriter | None = None,
        raise_single: bool = False,
    ) -> None:
        self._watch = watch
        self._journal = journal
        self._raise_single = raise_single
        self._handed = DeliveredRows(standing.handed, journal)
        self._process = os.getpid()
        self._begin_at = standing
        self._steps = Stepping(standing.skip, self._handed.add)
        self._step = self._steps.step
        self._asks: tuple[Any, float] | None = None  # who, and since when
        note_waits(self)

    @property
    def steps(self) -> StepMeters | None:
        """Told of the steps of the loop, if anybody wants to know."""
        return self._watch.steps

    def _note(self) -> None:
        """Let monitors see where the loop waits."""
        assert self._builder is not None
        self._watch.last_queue = self._builder.last_queue

    def standing(self) -> ResumePoint:
        """Where it stands behind the last batch that was delivered. For any thread. Parts of it are
        made `Later`.

        Raises:
            RuntimeError: a signal handler asks that has interrupted the making of a batch, or has
                raised in it; or the pipeline has no positions.
        """
        return self._steps.between(self._standing)

    def _standing(self) -> ResumePoint:
        if self._node is None:
            return self._begin_at
        state = self._node.state()
        return ResumePoint(
            state["epoch"],
            state["given"],
            self._steps.skip,
            state,
            rest=rest_from(self._begin_at.rest, state["epoch"]),
            stages=[] if self._builder is None else self._builder.tallies(),
            handed=self._handed.count,
            run=self._begin_at.run,
            layouts=() if self._builder is None else self._builder.layouts(),
        )

    def given_of(self, epoch: int, otherwise: int) -> int:
        """How many rows of an epoch were handed out; what is said otherwise, where it is not in
        that one."""
        if self._node is None:
            return otherwise
        at, given = self._node.given
        return given + self._steps.skip if at == epoch else otherwise

    def waits(self, frames: Mapping[int, FrameType]) -> list[ExplainedWait]:
        """Who goes through it, and where in its functions, if that is no queue."""
        asks = self._asks
        if asks is None:
            return []
        return [explained_wait(asks[0], perf_counter() - asks[1], frames)]

    def waits_move(self) -> Hashable:
        """How many rows have come, and where nodes are."""
        return self._handed.count, self._asks

    def longest_of_waits(self) -> float:
        """How long who goes through it has waited."""
        asks = self._asks
        return 0.0 if asks is None else perf_counter() - asks[1]

    def waits_for(self, coordinator: object) -> bool:
        """Whether it is the coordinator's."""
        return self._coord._core is coordinator

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be taken."""
        return self._why_over is not None

    def statistics(self) -> tuple[StageStatistics, ...]:
        """What the stages that have workers have done so far."""
        return () if self._builder is None else self._builder.statistics()

    def explain(self) -> Explanation:
        """Who waits for whom."""
        return self._coord.explain()

    def quarantine(self) -> list[Quarantined]:
        """What was skipped so far."""
        return [] if self._builder is None else self._builder.quarantine()

    def abandon(self) -> None:
        """Stop all workers, without telling the caller what fails in that: the log does."""
        if self._is_program_ending():
            return
        self._end(_DROPPED)
        if self.steps is not None:
            self.steps.gives_up(self.loop)
        # A fork has no threads to stop, nor an event loop that would run on.
        if self._process == os.getpid():
            self._stop_quietly()

    def leave(self) -> None:
        """The same for who leaves a block by an exception."""
        self._end(_LEFT)
        self.abandon()

    def skip_to(self, epoch: int) -> None:
        """Nobody wants the epochs before this one any more."""
        if self._node is not None and not self.is_over:
            self._step(self._node.skip_to, epoch)

    def _as_asked(self, failure: BaseException) -> BaseException:
        """What to raise of what has failed: a single failure as itself, if so asked for."""
        # Not how we came to join them: the failures say themselves where they happened.
        failure = failure.with_traceback(None)
        return self._coord._core.single_of(failure) if self._raise_single else failure

    @abstractmethod
    def _stop_quietly(self) -> None:
        """Stop all workers; the log tells what has failed."""

    def _end(self, why: str) -> None:
        self._why_over = self._why_over or why

    def check(self) -> None:
        """Refuse to go on where that cannot be.

        Raises:
            PreemptedError: somebody was woken, or would have had to wait after that.
            RuntimeError: the run is over for another reason.
        """
        if self._why_over is _PREEMPTED:
            raise PreemptedError(
                f"{_PREEMPTED}, says {self._alarm}: no batch is waited for; state_dict() is the"
                " position behind the last one",
                reason=self._alarm or "",
            )
        if self._why_over is not None:
            raise RuntimeError(f"this run of the pipeline is over: {self._why_over}")


class ThreadRun(_Run):
    """A run for threads, which take turns; but any thread may close it at any time.

    Args:
        pipeline: what is run.
        stop: the first epoch that is not gone through; ``None`` goes on for ever.
        standing: where to begin.
        watch: what monitors see of it.
        watchdog: seconds without movement after which to warn; ``None`` for never.
        journal: what notes the items of each batch.
        raise_single: whether a single failure is raised as itself.
    """

    _coord: sync.Coordinator
    _is_made = False
    """Whether there is something to end: Ctrl-C may strike before that, too."""

    def __init__(
        self,
        pipeline: BasePipeline[Any],
        stop: int | None,
        standing: ResumePoint,
        watch: Watch,
        *,
        watchdog: float | None = None,
        journal: JournalWriter | None = None,
        raise_single: bool = False,
    ) -> None:
        super().__init__(standing, watch, journal, raise_single)
        span = EpochRange(first_epoch_of(standing), stop)
        self._coord = sync.Coordinator(watchdog=watchdog)
        self._is_joined = False
        self._is_taking = False
        self._waiting = sync.CancelScope()
        self._taker = threading.get_ident()
        self._is_made = True
        try:
            self._builder = Builder(
                pipeline,
                span,
                self._coord.start,
                watch,
                is_async=False,
                rest=standing.rest,
                is_named=journal is not None,
            )
            self._node = self._builder.run(standing.node, standing.stages, standing.layouts)
            self._note()
            self._coord._core.start_watchdog()
            ALARM.listen(self)
        except BaseException:
            self._coord.request_stop()
            self._coord.join()
            raise

    def wake(self, reason: str) -> None:
        """Let nobody wait for more. For any thread or signal handler."""
        self._alarm = reason
        self._waiting.cancel()

    def __del__(self) -> None:
        if self._is_made:
            self.abandon()  # Ctrl-C may strike before anybody has it

    def take(self) -> Taken:
        """The next row, in a list; or the end of the epoch.

        Raises:
            ExceptionGroup: what has failed, as the coordinator reports it.
            PreemptedError: it would have to be waited for, and nobody is to.
            RuntimeError: the run is over.
        """
        self._taker = threading.get_ident()
        taken = self._take()
        try:
            if isinstance(taken, Exception):
                raise_again(self._instead_of(taken))
            if self._why_over is not None:
                self._let_go()  # it was closed meanwhile, by another thread
            return taken
        finally:
            del taken  # which may have this frame in its traceback

    def interrupt(self) -> None:
        """Let all workers end, since whoever wanted a batch was interrupted. Does not wait."""
        self._end(_INTERRUPTED)
        self._coord.request_stop()

    def join_interrupted(self) -> None:
        """Wait for the workers, so that none is left when the interrupt goes on."""
        if not self._is_joined:
            with suppress(CancelledError, DeadlineExceededError):  # of a scope around us
                self._join_quietly()

    def leave(self) -> None:
        self._taker = threading.get_ident()  # this is no garbage: it may wait, whoever took last
        super().leave()

    def close(self) -> None:
        """Stop and join all workers.

        Raises:
            ExceptionGroup: what has failed.
        """
        self._end(_LEFT)
        if not self._is_joined:
            self._coord.request_stop()
            self._let_go()
            failure: BaseException | None = None
            try:
                self._join()
            except BaseExceptionGroup as group:
                failure = self._as_asked(group)
            try:
                if failure is not None:
                    raise_again(failure)
            finally:
                del failure  # which has this frame in its traceback

    def _take(self) -> Taken | Exception:
        """What was taken, or what was raised instead."""
        self._is_taking = True  # first this, then the question: who closes does it the other way
        try:
            if self._node is None or self._why_over is not None:
                return RunOver()
            node = self._node
            return self._steps.at_hand(node) or self._waited_for(node)
        except Exception as error:
            return error
        except BaseException:
            self.interrupt()  # Ctrl-C may have struck anywhere in there: who knows what was lost
            raise
        finally:
            self._is_taking = False

    def _waited_for(self, node: Node) -> Taken:
        self._asks = (threading.current_thread(), perf_counter())
        try:
            with self._waiting:
                return drive(self._steps.taking(node), self._step)
        finally:
            self._asks = None

    def _instead_of(self, raised: Exception) -> BaseException:
        """What to raise instead of what a node has raised.

        Raises:
            PreemptedError: as `take` does.
            RuntimeError: the run is over.
        """
        if isinstance(raised, CancelledError) and self._alarm is not None:
            # Where the source is read in this thread, that has met it too, and is over.
            self._end(_PREEMPTED)
            self.check()
        if isinstance(raised, RunOver):
            self.check()  # else it has ended by itself
        self._end(_FAILED)
        return self._failure(raised)

    def _failure(self, error: Exception) -> BaseException:
        """The failure of the run, which may be that of a node."""
        forget_locals(error)  # the coordinator keeps it, and we that
        # That a queue was closed is no failure of its own: why it was, the coordinator knows.
        self._coord.request_stop(None if isinstance(error, RunOver) else error)
        self._let_go()
        try:
            self._join()
        except BaseExceptionGroup as failure:
            return self._as_asked(failure)
        except Exception as failure:
            return failure.with_traceback(None)
        return RuntimeError("the pipeline was stopped from outside before its end")

    def _stop_quietly(self) -> None:
        if self._is_joined:
            return
        self._coord.request_stop()
        # Who has left a loop finds everything ended. But garbage may be collected anywhere: where
        # waiting is forbidden, in the very workers that would be waited for, or where this thread
        # holds a lock that these need in order to end.
        is_here = self._taker == threading.get_ident() and not in_event_loop()
        if is_here and not has_struck_ours():
            with suppress(CancelledError, DeadlineExceededError):  # of a scope around us
                self._join_quietly()
                return
        with suppress(RuntimeError):  # the program ends
            threading.Thread(
                target=self._join_quietly, name="aioqueue-pipeline-left", daemon=True
            ).start()

    def _join_quietly(self) -> None:
        self._let_go()
        try:
            self._join(_GRACE)
        except (CancelledError, DeadlineExceededError):
            raise
        except (Exception, BaseExceptionGroup) as failure:
            _log.error("a pipeline that was left has failed", exc_info=failure)

    def _join(self, grace: float = _WHOLE_GRACE) -> None:
        try:
            self._coord.join(stop_grace_period=grace)
        except BaseExceptionGroup:
            self._is_joined = True
            raise
        self._is_joined = True

    def _let_go(self) -> None:
        """Close what is open for the nodes; or leave it to whoever is in the middle of them."""
        try:
            if self._node is not None and not self._is_taking:
                self._node.close()
        except Exception as error:
            self._coord.request_stop(error)


class AsyncRun(_Run):
    """A run for the tasks of one event loop, which take turns.

    Args:
        pipeline: what is run.
        stop: the first epoch that is not gone through; ``None`` goes on for ever.
        standing: where to begin.
        watch: what monitors see of it.
        watchdog: seconds without movement after which to warn; ``None`` for never.
        journal: what notes the items of each batch.
        raise_single: whether a single failure is raised as itself.
    """

    _coord: aioqueue.Coordinator

    def __init__(
        self,
        pipeline: BasePipeline[Any],
        stop: int | None,
        standing: ResumePoint,
        watch: Watch,
        *,
        watchdog: float | None = None,
        journal: JournalWriter | None = None,
        raise_single: bool = False,
    ) -> None:
        super().__init__(standing, watch, journal, raise_single)
        self._pipeline = pipeline
        self._span = EpochRange(first_epoch_of(standing), stop)
        self._coord = aioqueue.Coordinator(watchdog=watchdog)
        self._failure: BaseException | None = None
        self._has_begun = anyio.Event()
        self._has_ended = anyio.Event()
        self._is_told = False  # whoever has to know what has failed
        self._is_abandoned = False
        self._waiting: anyio.CancelScope | None = None  # that of the task which waits
        self._soon = threadsafe_caller()
        spawn(self._host())
        ALARM.listen(self)

    def wake(self, reason: str) -> None:
        """Let nobody wait for more. For any thread or signal handler."""
        self._alarm = reason
        self._soon(self._cancel_waiting)

    async def begin(self) -> None:
        """Wait until its workers have been started.

        Cancellation:
            A cancelled call has changed nothing.
        """
        await self._has_begun.wait()

    def take_ready(self) -> list[Row]:
        """The next row, in a list, if it is at hand; else nothing."""
        if self._node is None or self.is_over:
            return []
        return self._steps.at_hand(self._node)

    async def take(self) -> Taken:
        """The next row, in a list; or the end of the epoch.

        Raises:
            ExceptionGroup: what has failed, as the coordinator reports it.
            PreemptedError: it would have to be waited for, and nobody is to.
            RuntimeError: the run is over.

        Cancellation:
            A cancelled call has lost nothing.
        """
        if self._why_over == _FAILED and not self._is_told:
            # A cancelled call has found it, but could not say so.
            raise_again(await self._reported())
        self.check()
        if self._node is None:
            await self._has_begun.wait()
        if self._node is None:
            self._end(_FAILED)
            raise_again(await self._reported())
        try:
            taken = await self._waited_for(self._node)
        except RunOver:
            self.check()  # else it has ended by itself; why, the coordinator knows
            self._end(_FAILED)
            self._coord.request_stop()
        except Exception as error:
            self._end(_FAILED)
            self._coord.request_stop(without_outermost(error))  # this frame goes on, and waits
        else:
            if taken is not None:
                return taken
            self._end(_PREEMPTED)
            self.check()
        return raise_again(await self._reported())

    async def _waited_for(self, node: Node) -> Taken | None:
        """The next row, or the end of the epoch; ``None`` if nobody is to wait for it."""
        self._asks = (running_task(), perf_counter())
        try:
            with anyio.CancelScope() as self._waiting:
                if self._alarm is not None:
                    self._waiting.cancel()
                return await drive_async(self._steps.taking(node), self._step)
            return None
        finally:
            self._asks = None

    def _cancel_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def aclose(self) -> None:
        """Stop and join all workers.

        Raises:
            ExceptionGroup: what has failed.

        Cancellation:
            A cancelled call has asked for the stop; it is not waited for.
        """
        self._end(_LEFT)
        if self._is_told:
            return
        self._coord.request_stop()
        await self._has_ended.wait()
        self._is_told = True
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise_again(self._as_asked(failure))
        finally:
            del failure  # which has this frame in its traceback

    async def outlast(self) -> None:
        """Wait until all workers have ended that were told to, as `leave` does in threads.

        Cancellation:
            A scope that is cancelled does not end it. `asyncio.Task.cancel` does, once more.
        """
        with anyio.move_on_after(_GRACE, shield=True):
            await self._has_ended.wait()

    def _stop_quietly(self) -> None:
        if not self._is_told:
            self._is_told = self._is_abandoned = True
            self._coord.request_stop()
            self._log_failure()

    async def _host(self) -> None:
        """The life of the task that has the coordinator."""
        try:
            async with self._coord as coord:
                standing = self._begin_at
                self._builder = Builder(
                    self._pipeline,
                    self._span,
                    coord.start,
                    self._watch,
                    is_async=True,
                    rest=standing.rest,
                    is_named=self._journal is not None,
                )
                self._node = self._builder.run(standing.node, standing.stages, standing.layouts)
                self._note()
                self._coord._core.start_watchdog()
                self._has_begun.set()
                try:
                    await coord.wait_for_stop()
                finally:
                    self._let_go()
        except (Exception, BaseExceptionGroup) as failure:  # of a `SystemExit` in a worker, say
            forget_locals(failure)
            self._failure = failure
            if self._is_abandoned:
                self._log_failure()
        finally:
            self._has_begun.set()
            self._has_ended.set()

    def _let_go(self) -> None:
        """Close what is open for the nodes."""
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
        self._is_told = True
        failure, self._failure = self._failure, None
        if failure is not None:
            return self._as_asked(failure)
        return RuntimeError("the pipeline was stopped from outside before its end")
