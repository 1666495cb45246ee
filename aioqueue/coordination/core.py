"""The coordinator itself, whichever face it is seen by: stop, failures, workers, and how to join.

Everything here may be called from any thread or task and never waits. Joining is a matter of
several waits with decisions in between; the decisions are `CoordinatorCore.joining`, a generator
that yields what to wait for, and each face does the waiting in its own way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from time import monotonic
from types import FrameType
from typing import Any, Final

from aioqueue.coordination.classify import (
    Classification,
    add_note,
    checked_clean_types,
    classify,
    describe_exception,
    failures_behind,
    leaves_of,
    running_task,
)
from aioqueue.coordination.misuse import add_advice
from aioqueue.coordination.shutdown import (
    SLOW_STOP,
    Draining,
    cancel_all,
    end_join,
    failure_group,
    living,
    refuse_to_stop,
    stop_at_exit,
    stop_scope_of,
    undelivered,
    warn_of_slow_stop,
)
from aioqueue.coordination.workers import (
    OwnTask,
    Worker,
    as_worker,
    current_worker_name,
    threads_of,
    told_with_places,
    when_all_ended,
)
from aioqueue.elements import is_iterable
from aioqueue.errors import InvalidArgumentError, counted
from aioqueue.locks import guarded, holding, is_held_here
from aioqueue.telemetry.explanation import ExplainedCoordinator, ExplainedWait, Explanation
from aioqueue.telemetry.registry import Watch
from aioqueue.telemetry.stacks import forget_locals
from aioqueue.telemetry.wait_graph import explain_for, note_coordinator, note_waits
from aioqueue.telemetry.watchdog import Join, WatchdogTarget
from aioqueue.waiting import (
    Gate,
    StopScope,
    apply_deferred,
)

__all__ = (
    "DEFAULT_GRACE",
    "THE_BLOCK",
    "CoordinatorCore",
)

DEFAULT_GRACE: Final = 120.0
"""Seconds that workers have to end after a stop."""

THE_BLOCK: Final = "the block of the coordinator"
"""Where a failure has come from that no worker has raised."""

_MANY: Final = 64

_PATIENCE: Final = 1000
"""How often a stop that is interrupted begins anew."""

_CLEANUP: Final = 10.0
"""Seconds that cancelled tasks have at least, for what they do when they are cancelled."""

_log = logging.getLogger("aioqueue")


class CoordinatorCore(WatchdogTarget):
    """The coordinator itself, whichever face it is seen by.

    Args:
        clean_stop_exception_types: failures that end a run normally and are not reported.
        watchdog: seconds without movement after which to warn; ``None`` for never.
    """

    def __init__(
        self,
        clean_stop_exception_types: Iterable[type[BaseException]] | None,
        watchdog: float | None = None,
    ) -> None:
        self.clean_types = checked_clean_types(clean_stop_exception_types)
        self.stopped = Gate()
        self.draining = Draining()
        self.joined = False
        self.was_entered = False
        self.watch = Watch()
        self._lock = threading.RLock()  # guards all below, joined and the faces
        self._joining = 0  # how many joins have begun and not ended
        self._blocks = 0  # how many have been entered and have not begun to be left
        self._stop_time = 0.0
        self._stopped_by: str | None = None
        self._failures: list[BaseException] = []
        self._workers: dict[int, Worker] = {}  # by identity of what was registered
        self._many = _MANY  # how many of them are worth a look for those that have ended
        self._stop_scopes: dict[int, StopScope] = {}  # what ends their waits, by the same keys
        self._on_stop: dict[Callable[[], None], None] = {}
        self._watchdog = watchdog
        self._waiting_joins: dict[object, Join] = {}  # that wait
        note_coordinator(self)
        note_waits(self)

    def explain(self) -> Explanation:
        """Who waits for whom, with what this coordinator knows."""
        return explain_for([self])

    @guarded
    def explained(self, belonging: frozenset[int]) -> ExplainedCoordinator:
        """What it knows; of its workers those that belong to no stage (by their keys)."""
        state = "joined" if self.joined else "stopping" if self.stopped.is_open else "running"
        workers = [worker for worker in self._workers.values() if worker.is_alive()]
        return ExplainedCoordinator(
            state,
            self._stopped_by,
            monotonic() - self._stop_time,
            tuple(map(describe_exception, self._failures)),
            tuple(one.explained() for one in workers if one.key not in belonging),
        )

    @property
    def has_begun(self) -> bool:
        """Whether there is anything here that a fork would not have."""
        return bool(self.was_entered or self._workers or self.joined or self.stopped.is_open)

    def renew_lock(self) -> None:
        """In a fork: whoever holds the lock is not there."""
        self._lock = threading.RLock()

    def waits(self, frames: Mapping[int, FrameType]) -> list[ExplainedWait]:
        """Whose join waits, and for whom."""
        return [join.explained(frames) for join in list(self._waiting_joins.values())]

    def waits_move(self) -> Hashable:
        """Where those are that are joined: who computes is soon somewhere else."""
        return tuple(join.places() for join in list(self._waiting_joins.values()))

    def longest_of_waits(self) -> float:
        """How long a join has waited for somebody of whom no runner knows."""
        return max(
            (join.seconds for join in list(self._waiting_joins.values()) if join.alone()), default=0
        )

    def waits_for(self, coordinator: object) -> bool:
        """Whether it is this one whose joins they are."""
        return coordinator is self

    def should_stop(self) -> bool:
        return self.stopped.is_open

    def request_stop(self, error: BaseException | None = None, worker: str | None = None) -> None:
        """Record a failure, if it is one, and stop.

        Args:
            error: why; ``None`` and clean stops are no failures.
            worker: the name of who failed; the current task's or thread's if ``None``.
        """
        if error is not None and not isinstance(error, BaseException):
            raise InvalidArgumentError(f"error: got {error!r}; expected an exception or None")
        if error is not None and not self.is_clean(error) and self._is_over():
            # There is no join left that could report it.
            raise error
        self.stop(error, worker or current_worker_name())

    def stop(self, error: BaseException | None, worker: str) -> None:
        """Record a failure and stop, even after a join: the caller is going to join again."""
        if error is not None and self.is_clean(error):
            error = None
        apply_deferred(self._stop, self.what_is_new(error), worker)

    def stop_by_all_means(self, error: BaseException | None, worker: str) -> BaseException | None:
        """Record a failure and stop, whatever strikes; returns what has struck first, if it did.

        That is Ctrl-C, or what a way of closing raises that is not an `Exception`. The stop then
        reaches those whom it had not reached: each callback is taken out before it is called.
        """
        struck: BaseException | None = None
        for _ in range(_PATIENCE):
            try:
                self.stop(error, worker)
                break
            except Exception:
                raise
            except BaseException as cause:
                struck = cause if struck is None else struck
                if self.stopped.is_open and not self._on_stop:
                    break
                if error is not None and self._is_known(error):
                    error = None
        return struck

    @guarded
    def enter_block(self) -> None:
        """A block begins: whatever joins end in it, there is one more that reports."""
        self._blocks += 1

    def report(self, error: BaseException, worker: str) -> None:
        """A worker's failure: recorded; or logged, if the join that could tell it is over."""
        if self._is_over() and not self.is_clean(error):
            _log.error("worker %s failed after the join", worker, exc_info=error)
        else:
            self.stop(error, worker)

    def is_clean(self, error: BaseException) -> bool:
        """Whether an exception, or all that a group holds, ends a run normally.

        The end of a queue that a failure has closed does not, unless that failure was reported.
        """
        is_end = classify(error, self.clean_types) is Classification.END
        return is_end and holding(self._lock, self._has_all_behind, error)

    def _has_all_behind(self, error: BaseException) -> bool:
        """Whether the failures that the ends in an exception have as their causes are known."""
        known = {id(leaf) for failure in self._failures for leaf in leaves_of(failure)}
        known.update(map(id, self._failures))
        return known.issuperset(map(id, failures_behind(error, self.clean_types)))

    def drain(self, seconds: float | None) -> None:
        """Let all sources end; stop, if that takes longer than some seconds."""
        drain = self.draining.ask()
        if seconds is not None:
            threading.Thread(
                target=self._end_drain, args=(drain, seconds), name="aioqueue-drain", daemon=True
            ).start()
        for run in self.draining.runs():
            run.drain()

    def _end_drain(self, drain: object, seconds: float) -> None:
        """The life of the thread that waits until the time of a drain is up."""
        if self.stopped.wait_blocking(seconds) or self.draining.current is not drain:
            return
        runs, queues = self.draining.runs(), self.draining.queues()
        error = undelivered(runs, queues, self._known(), seconds)
        if error is not None:
            self.report(error, "that drains")

    @guarded
    def _known(self) -> list[Worker]:
        return list(self._workers.values())

    @guarded
    def clear_stop(self) -> None:
        self.draining.forget()
        self.joined = False
        self._failures = []
        self._stopped_by = None
        self.stopped.shut()
        for scope in self._stop_scopes.values():
            scope.renew()

    def register(self, worker: Any) -> None:
        known = as_worker(worker)
        self._remember(id(worker), known)
        if not isinstance(worker, OwnTask):  # which is cancelled, or sees to it when it runs
            self.wake_at_stop(id(worker), worker)
        self._watch(known)
        self.start_watchdog()
        if isinstance(worker, threading.Thread):
            stop_at_exit(self)

    def wake_at_stop(self, key: int, worker: object) -> None:
        """Have the stop end the calls of ours that a worker waits in.

        Args:
            key: of the worker, as it is known here.
            worker: the thread or task that it is.
        """
        scope = holding(self._lock, self._stop_scope_of, key, worker)
        if scope is not None and self.stopped.is_open:
            scope.cancel()

    def wake_me_at_stop(self) -> None:
        """The same, for the task of ours that is running."""
        for key, worker in holding(self._lock, list, self._workers.items()):
            if worker.is_current():
                self.wake_at_stop(key, running_task())

    def _stop_scope_of(self, key: int, worker: object) -> StopScope | None:
        if key not in self._workers:
            return None  # it has ended
        if key not in self._stop_scopes:
            self._stop_scopes[key] = stop_scope_of(worker)
        return self._stop_scopes[key]

    @guarded
    def _all_stop_scopes(self) -> list[StopScope]:
        return list(self._stop_scopes.values())

    @guarded
    def worker_threads(self) -> list[threading.Thread]:
        """The threads that are registered."""
        return threads_of(self._workers.values())

    def stop_at_exit(self) -> None:
        """The program ends without having stopped."""
        self.stop(None, "at the end of the program")

    def call_on_stop(self, callback: Callable[[], None]) -> None:
        """Call back at the stop, in the thread that requests it; now, if it was requested."""
        if not self._is_kept_for_the_stop(callback):
            callback()

    @guarded
    def forget_on_stop(self, callback: Callable[[], None]) -> None:
        """Do not call back any more."""
        self._on_stop.pop(callback, None)

    @guarded
    def failures(self) -> list[BaseException]:
        """What has been recorded so far, in the order of the reports, without echoes: ends of
        queues, which were reported before the failure that has closed them."""
        return [
            error
            for error in self._failures
            if classify(error, self.clean_types) is not Classification.END
            or not self._has_all_behind(error)
        ]

    def raise_failures(self) -> None:
        """Raise all that has been recorded as one group; or return, if nothing has."""
        failures = self.failures()
        if failures:
            raise failure_group(failures)

    def joining(
        self,
        workers: Iterable[Any] | None,
        grace: float,
        ignore_live: bool,
        *,
        blocking: bool = False,
        leaving: bool = False,
    ) -> Generator[tuple[Gate, float | None], None, None]:
        """Decide what a join waits for: yields gates, and seconds to wait at most.

        Args:
            workers: to join, besides those that are known.
            grace: seconds that they have after a stop.
            ignore_live: whether those that do not end in time are no failure.
            blocking: whether this thread does nothing else while the join waits.
            leaving: whether a block is left by it, so that it is the last to report something;
                it waits for those as well that begin meanwhile.
        """
        workers = () if workers is None else workers
        if not is_iterable(workers):
            raise InvalidArgumentError(f"workers: got {workers!r}; expected an iterable of workers")
        things = list(workers)
        given = {id(worker): as_worker(worker) for worker in things}
        wanted, fresh = self._begin_join(given, leaving)
        failures: list[BaseException] | None = None
        known = set(map(id, self._known()))
        scopes = [stop_scope_of(one) for one in things if id(given[id(one)]) not in known]
        try:
            for scope in scopes:
                self.call_on_stop(scope.cancel)
            while failures is None:
                # Those that have failed already are reported too: nobody else would hear of them.
                self._watch_all(fresh)
                stragglers = yield from self._awaiting(living(wanted), grace, blocking)
                yield from self._settling()
                # What has just ended may not have said so yet, but can be asked.
                self._collect_all(wanted)
                fresh = []
                failures = self._note_join(wanted, leaving)
                if failures is None:
                    wanted = self._known()
        except BaseException as error:
            self._give_up_join()
            failures = self.failures()
            if failures and isinstance(error, Exception):  # no thread is left to wait for others
                raise failure_group([*failures, error]) from None
            raise
        finally:
            for scope in scopes:
                self.forget_on_stop(scope.cancel)
        end_join(failures, stragglers, ignore_live)

    def _awaiting(
        self, alive: list[Worker], grace: float, blocking: bool
    ) -> Generator[tuple[Gate, float | None], None, list[Worker]]:
        """What a join waits for until its workers have ended; returns those that it gives up."""
        if blocking:
            refuse_to_stop(alive)
        ended, changed = Gate(), Gate()

        def all_have_ended() -> None:
            ended.open()
            changed.open()

        forget = when_all_ended(alive, all_have_ended)
        try:
            self.call_on_stop(changed.open)
            if alive:
                self._waiting_joins[changed] = Join(alive)
                self.start_watchdog()
            try:
                yield changed, None
            finally:
                self._waiting_joins.pop(changed, None)
                self.forget_on_stop(changed.open)
            if not ended.is_open and grace > SLOW_STOP:
                yield ended, self._until(SLOW_STOP)
                if not ended.is_open:
                    warn_of_slow_stop(living(alive), grace)
            if not ended.is_open:
                yield ended, self._until(grace)
        finally:
            forget()
        if ended.is_open:
            return []
        alive = living(alive)
        cancelled = cancel_all(alive)
        tasks_ended = Gate()
        forget = when_all_ended(cancelled, tasks_ended.open)
        try:
            yield tasks_ended, max(grace, _CLEANUP)
        finally:
            forget()
        return living(alive)

    def _settling(self) -> Generator[tuple[Gate, float | None], None, None]:
        """What a join waits for when all workers have ended: here, nothing more."""
        yield from ()

    def begin_work(self) -> object:
        """Somebody works here whom nobody has registered; returns what `end_work` is given.

        Of no interest within one program.
        """
        return None

    def end_work(self, work: object) -> None:
        """Somebody has ended that."""

    def warn_of_interrupt(self) -> None:
        """Ctrl-C has ended a join: tell by a warning which workers it leaves behind, and where."""
        workers = living(holding(self._lock, list, self._workers.values()))
        if workers:
            _log.warning(
                "the join was interrupted, with %s still running:%s",
                counted(len(workers), "worker"),
                told_with_places(workers),
            )

    def is_entered_here(self) -> bool:
        """Whether the calling thread holds the lock already."""
        return is_held_here(self._lock)

    def _until(self, seconds: float) -> float:
        """The seconds that are left of some that began with the stop."""
        return max(0.0, self._stop_time + seconds - monotonic())

    @guarded
    def _is_over(self) -> bool:
        """Whether there is no join that could still report something."""
        return self.joined and not self._joining and not self._blocks

    @guarded
    def _remember(self, key: int, worker: Worker) -> None:
        self._workers.setdefault(key, worker)
        if len(self._workers) < self._many:
            return
        # Let go of our own tasks that have ended: they have said why, so joins need not ask.
        self._workers = {
            key: worker
            for key, worker in self._workers.items()
            if worker.is_alive() or not isinstance(worker, OwnTask)
        }
        self._forget_stop_scopes()
        self._many = max(_MANY, 2 * len(self._workers))

    def _forget_stop_scopes(self) -> None:
        scopes = self._stop_scopes
        self._stop_scopes = {key: scopes[key] for key in scopes if key in self._workers}

    @guarded
    def _is_kept_for_the_stop(self, callback: Callable[[], None]) -> bool:
        if not self.stopped.is_open:
            self._on_stop[callback] = None
        return not self.stopped.is_open

    def _stop(self, error: BaseException | None, worker: str) -> tuple[()]:
        holding(self._lock, self._note_stop, error, worker)
        # One by one: what Ctrl-C leaves of them is called by the next stop, that of `__exit__` say.
        while callback := self._next_on_stop():
            try:
                callback()
            except Exception as failure:
                self.request_stop(failure, worker)
        # Last, for whoever waits for a queue that has just been closed is told so.
        for scope in self._all_stop_scopes():
            scope.cancel()
        return ()

    def _note_stop(self, error: BaseException | None, worker: str) -> None:
        first = not self.stopped.is_open
        if error is not None:
            self._note_failure(error, worker)
        if first:
            self._stop_time = monotonic()
            self._stopped_by = worker
            self.stopped.open()  # within the lock: who calls `call_on_stop` now must see it

    def _note_failure(self, error: BaseException, worker: str) -> None:
        if not self.stopped.is_open or not self._is_caused_by_stopping(error):
            self._record(error, worker)

    def _is_caused_by_stopping(self, error: BaseException) -> bool:
        meaning = classify(error, self.clean_types, stopping=True)
        return meaning is not Classification.FAILURE and self._has_all_behind(error)

    @guarded
    def _next_on_stop(self) -> Callable[[], None] | None:
        callback = next(iter(self._on_stop), None)
        if callback is not None:
            del self._on_stop[callback]
        return callback

    def has_raised(self, error: BaseException) -> bool:
        """Whether an exception is what a join has raised, by itself or within other groups."""
        return isinstance(error, BaseExceptionGroup) and self.what_is_new(error) is None

    def what_is_new(self, error: BaseException | None) -> BaseException | None:
        """What of an exception has not been recorded yet: of a group, that which is left of it."""
        known = {id(leaf) for failure in self.failures() for leaf in leaves_of(failure)}
        if not isinstance(error, BaseExceptionGroup) or not known:
            return error
        is_known = [id(leaf) in known for leaf in leaves_of(error)]
        if not any(is_known):
            return error
        if all(is_known):
            return None
        is_new: Callable[[Any], bool] = lambda part: (  # noqa: E731
            not isinstance(part, BaseExceptionGroup) and id(part) not in known
        )
        rest: BaseException | None = error.subgroup(is_new)
        return rest

    def _record(self, error: BaseException, worker: str) -> None:
        add_note(error, f"in {worker}" if worker == THE_BLOCK else f"in worker {worker}")
        add_advice(error)
        if not self._is_known(error):
            self._failures.append(error)

    def _is_known(self, error: BaseException) -> bool:
        return any(error is known for known in self._failures)

    def _watch_all(self, workers: list[Worker]) -> None:
        for worker in workers:
            self._watch(worker)

    def _collect_all(self, workers: list[Worker]) -> None:
        for worker in workers:
            self._collect(worker)

    def _watch(self, worker: Worker) -> None:
        """See to it that the failure of a worker which keeps it is heard of; now, if it has."""
        if worker.keeps_error and worker.is_alive():
            worker.when_ended(lambda: self._collect(worker))
        self._collect(worker)

    def _collect(self, worker: Worker) -> None:
        """A worker may have ended: what it raised would be seen by no one else."""
        error, is_noted = holding(self._lock, self._take_error, worker)
        if is_noted:
            self.stop(None, worker.name)
        elif error is not None:
            self.report(error, worker.name)

    def _take_error(self, worker: Worker) -> tuple[BaseException | None, bool]:
        """What a worker raised, if nobody has taken it; and whether that was noted as a failure.

        In one move: a join of another thread must not end in between, for nobody else would tell.
        """
        error = worker.take_error()
        if error is None or self.is_clean(error) or self._is_over():
            return error, False
        self._note_failure(error, worker.name)
        return error, True

    @guarded
    def _begin_join(
        self, given: dict[int, Worker], leaving: bool
    ) -> tuple[list[Worker], list[Worker]]:
        """Returns all workers to join, and those of them that nobody has registered."""
        self._joining += 1
        self._blocks -= leaving
        fresh = [worker for key, worker in given.items() if key not in self._workers]
        return list((given | self._workers).values()), fresh

    @guarded
    def _give_up_join(self) -> None:
        self._joining -= 1

    @guarded
    def _note_join(self, joined: list[Worker], leaving: bool) -> list[BaseException] | None:
        """The join is over; returns what it has to report.

        Workers that have begun meanwhile are left to the next one. If there is none, because a
        block is left by this, it is not over as long as there are some: ``None``.
        """
        ended = set(map(id, joined))
        left = {key: one for key, one in self._workers.items() if id(one) not in ended}
        if leaving and living(list(left.values())):
            return None
        if self._blocks:  # whose end waits once more for those that this join has given up
            left = {key: one for key, one in self._workers.items() if key in left or one.is_alive()}
        self._joining -= 1
        self.joined = True
        failures = self.failures()
        for failure in failures:
            forget_locals(failure)
        self._workers = left
        self._forget_stop_scopes()
        return failures
