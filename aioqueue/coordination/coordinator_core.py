"""The state of a coordinator, shared by its faces: the stop, the failures, the workers, the join.

Any thread or task may call everything here, and no call waits. A join is several waits with
decisions in between: the generator `CoordinatorCore.joining` decides and yields what to wait for.
Each face waits in its own way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from functools import partial
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from aioqueue.base.public_names import World
from aioqueue.coordination.classify import (
    Classification,
    checked_clean_types,
    classify,
    failures_behind,
    leaves_of,
    part_without,
)
from aioqueue.coordination.misuse import name_failed_worker
from aioqueue.coordination.shutdown import (
    MIN_CLEAN_UP,
    SLOW_STOP,
    Draining,
    RaisedFailures,
    cancel_all,
    end_join,
    end_waits,
    failure_group,
    joinable,
    refuse_blocked_tasks,
    stop_at_exit,
    undelivered,
    warn_of_interrupt,
    warn_of_slow_stop,
)
from aioqueue.coordination.watchdog import Join, Watchdog, WatchdogTarget, end_callback
from aioqueue.coordination.workers import (
    StartedTask,
    Worker,
    as_worker,
    current_worker_name,
    threads_of,
    when_all_ended,
)
from aioqueue.core.elements.values import is_iterable
from aioqueue.errors import InvalidArgumentError, describe_exception, sent_as, without_frames
from aioqueue.system.locks import call_with_lock, is_held_here, synchronized
from aioqueue.telemetry.explain.frame_cleanup import forget_locals
from aioqueue.telemetry.explain.frames import current_frames
from aioqueue.telemetry.explain.registry import known_workers, note_coordinator, note_waits
from aioqueue.telemetry.metrics.watch import Watch
from aioqueue.worlds.scopes import Gate, StopScope
from aioqueue.worlds.waker import apply_deferred

if TYPE_CHECKING:
    from aioqueue.telemetry.explain.explanation import (
        ExplainedCoordinator,
        ExplainedWait,
        Explanation,
    )

BLOCK_NAME: Final = "the block of the coordinator"
"""The name that reports give to the code inside the block, which is no worker."""

_PRUNE_AT: Final = 64

_MAX_STOP_ATTEMPTS: Final = 1000
"""How often an interrupted stop starts again before it gives up."""

_log = logging.getLogger("aioqueue")


class CoordinatorCore(WatchdogTarget):
    """The state of one coordinator, shared by its faces.

    Args:
        clean_stop_exception_types: exceptions that end a run normally and are not reported.
        watchdog: seconds without progress after which to warn; ``None`` for never.
    """

    def __init__(
        self,
        clean_stop_exception_types: Iterable[type[BaseException]] | None,
        watchdog: float | None = None,
    ) -> None:
        self.clean_types: tuple[type[BaseException], ...] = checked_clean_types(
            clean_stop_exception_types
        )
        self.stopped: Gate = Gate()
        self.draining: Draining = Draining()
        self.joined: bool = False
        self.was_entered = False
        self.watch: Watch = Watch()
        self._lock = threading.RLock()  # guards everything below, `joined` and the faces
        self._joining = 0  # joins that have begun and not ended
        self._blocks = 0  # blocks that have been entered and are not being left yet
        self._stop_time = 0.0
        self._stops = 0  # how often it was stopped; `clear_stop` allows another one
        self._waits_ended_at = 0  # the latest stop that has ended the waits of all workers
        self._stopped_by: str | None = None
        self._failures: list[BaseException] = []
        self._stand_ins: dict[int, BaseException] = {}  # of the block's: see `stop_cause`
        self._raised_failures = RaisedFailures()
        self._workers: dict[int, Worker] = {}  # by the id of the registered object
        self._prune_at = _PRUNE_AT  # at this number of workers, forget those that have ended
        self._stop_scopes: dict[int, StopScope] = {}  # end the workers' waits, by the same ids
        self._on_stop: dict[Callable[[], None], None] = {}
        self.watchdog = watchdog
        # How the processes of this machine share it (`aioqueue.sharing`); ``None``: they do not.
        self.shared: Any = None
        self._waiting_joins: dict[object, Join] = {}
        note_coordinator(self)
        note_waits(self)

    def explain(self) -> Explanation:
        from aioqueue.telemetry.explain.gather import explain_for

        return explain_for([self])

    def elsewhere(self) -> tuple[Explanation, ...]:
        """Return the explanations of the other processes that share this coordinator: none do."""
        return ()

    def explained(
        self, belonging: frozenset[int], frames: Mapping[int, FrameType]
    ) -> ExplainedCoordinator:
        """Describe the coordinator and its workers, but those that belong to a stage (by key)."""
        from aioqueue.telemetry.explain.explanation import ExplainedCoordinator

        workers, failures = call_with_lock(self._lock, self._workers_and_failures)
        state = "joined" if self.joined else "stopping" if self.stopped.is_open else "running"
        alive = [worker for worker in workers if worker.is_alive()]
        return ExplainedCoordinator(
            state,
            self._stopped_by,
            monotonic() - self._stop_time if self.stopped.is_open else 0.0,
            tuple(map(describe_exception, failures)),
            tuple(one.explained(frames) for one in alive if one.key not in belonging),
        )

    def _workers_and_failures(self) -> tuple[list[Worker], list[BaseException]]:
        return list(self._workers.values()), list(self._failures)

    def pickled(self, world: World) -> tuple[Any, ...]:
        """Return what a face of it is pickled as.

        Raises:
            TypeError: it is not shared.
        """
        if self.shared is not None:
            found: tuple[Any, ...] = self.shared.pickled(world)
            return found
        raise TypeError(
            "a coordinator cannot be pickled or copied: it lives in one process. Share it"
            " (`coord.share()`), and send that to other processes of this machine"
        )

    @property
    def has_begun(self) -> bool:
        """Whether it has state that a fork could not use: workers, a stop, or an entered block."""
        return bool(self.was_entered or self._workers or self.joined or self.stopped.is_open)

    def renew(self) -> None:
        """Make a new lock in a fork, where nobody may release the old one, and be known there."""
        self._lock = threading.RLock()
        # One that has begun is refused in the fork: its workers exist in the parent only, so an
        # explanation there must not name it.
        if not self.has_begun:
            note_coordinator(self)
            note_waits(self)

    def waits(self, frames: Mapping[int, FrameType]) -> list[ExplainedWait]:
        return [join.explained(frames) for join in list(self._waiting_joins.values())]

    def waits_move(self) -> Hashable:
        """Return where the joined workers are. A worker that computes moves, so this changes."""
        joins = list(self._waiting_joins.values())
        if not joins:
            return ()
        with current_frames() as frames:
            return tuple(join.places(frames) for join in joins)

    def longest_of_waits(self) -> float:
        """Return for how long a join has waited for a worker that no runner knows."""
        joins = list(self._waiting_joins.values())
        known = known_workers() if joins else frozenset()
        return max((join.seconds for join in joins if join.has_others(known)), default=0.0)

    def waits_for(self, coordinator: object) -> bool:
        return coordinator is self

    def should_stop(self) -> bool:
        return self.stopped.is_open

    def request_stop(self, error: BaseException | None = None, worker: str | None = None) -> None:
        """Record a failure, if there is one, and stop.

        Args:
            error: the reason; ``None`` and clean stops are not failures.
            worker: the name of the worker that failed; ``None`` for the current task or thread.
        """
        if error is not None and not isinstance(error, BaseException):
            raise InvalidArgumentError(f"error: got {error!r}; expected an exception or None")
        if error is not None and not self.is_clean(error) and self._is_over():
            # No join is left that could report the failure: the caller gets it back, at once.
            raise error
        self.stop(error, worker or current_worker_name())

    def stop(self, error: BaseException | None, worker: str) -> None:
        """Record a failure and stop, even after a join: the caller is going to join again."""
        if error is not None and self.is_clean(error):
            error = None
        # A signal handler may request a stop while the thread that it interrupts holds the lock,
        # in the middle of a change. Another thread stops then, once the lock is free.
        apply_deferred(self._stop, self.unrecorded_part(error), worker)

    def stop_despite_interrupts(
        self, error: BaseException | None, worker: str
    ) -> BaseException | None:
        """Record a failure and stop, in spite of interruptions; return the first interruption.

        It may be what a signal handler raises, or a `BaseException` from a `cancel_op`. Each
        callback is removed before it is called, so a stop that starts again reaches exactly those
        that are left.
        """
        first_interrupt: BaseException | None = None
        for _ in range(_MAX_STOP_ATTEMPTS):
            try:
                self.stop(error, worker)
                break
            except BaseException as cause:
                first_interrupt = cause if first_interrupt is None else first_interrupt
                # Again even if all callbacks were called: the interruption may have come before
                # the last scope was cancelled. What is done is not done twice: the failure, if the
                # interrupted attempt has recorded it, is not passed again.
                if error is not None and self._is_known(error):
                    error = None
        return first_interrupt

    @synchronized
    def enter_block(self) -> None:
        """Enter a block. Its exit reports all failures, even after earlier joins inside."""
        self._blocks += 1

    def report(self, error: BaseException, worker: str) -> None:
        """Record a worker's failure, or log it if the last join is over and cannot raise it."""
        if self._is_over() and not self.is_clean(error):
            _log.error("worker %s failed after the join", worker, exc_info=error)
        else:
            self.stop(error, worker)

    def is_clean(self, error: BaseException) -> bool:
        """Return whether an exception, or everything in a group, ends a run normally.

        The end of a queue that a failure has closed does so only if that failure was reported.
        """
        is_end = classify(error, self.clean_types) is Classification.END
        return is_end and call_with_lock(self._lock, self._knows_all_causes, error)

    def _knows_all_causes(self, error: BaseException) -> bool:
        """Return whether the failures that caused the ends in an exception are all known."""
        known = {id(leaf) for failure in self._failures for leaf in leaves_of(failure)}
        known.update(self._raised_failures, map(id, (*self._failures, *self._stand_ins.values())))
        behind = failures_behind(error, self.clean_types, of_producers=False)
        unknown = [one for one in behind if id(one) not in known]
        if not unknown:
            return True
        # The failure of another process comes twice: as the cause of the queues that it has closed,
        # and by the coordinator. These are two objects with one name.
        names = {
            sent_as(one)
            for failure in self._failures
            for one in (failure, *leaves_of(failure))
            if sent_as(one) is not None
        }
        return names.issuperset(map(sent_as, unknown))

    def drain(self, seconds: float | None) -> None:
        """Request the end of all sources. Stop if that takes longer than ``seconds``."""
        drain = self.draining.request()
        if seconds is not None:
            threading.Thread(
                target=self._end_drain, args=(drain, seconds), name="aioqueue-drain", daemon=True
            ).start()
        for run in self.draining.runs():
            run.drain()

    def _end_drain(self, drain: object, seconds: float) -> None:
        """Stop if the drain has not ended in time; runs in a thread of its own."""
        # A stop ends the drain, too. Another token means that `clear_stop` has come in between,
        # and that this deadline belongs to a drain of before.
        if self.stopped.wait_blocking(seconds) or self.draining.current is not drain:
            return
        runs, queues = self.draining.runs(), self.draining.queues()
        error = undelivered(runs, queues, self._known(), seconds)
        if error is not None:
            self.report(error, "that drains")

    @synchronized
    def _known(self) -> list[Worker]:
        return list(self._workers.values())

    @synchronized
    def clear_stop(self) -> None:
        self.draining.reset()
        self.joined = False
        self._failures, self._stand_ins, self._raised_failures = [], {}, RaisedFailures()
        self._stopped_by = None
        self.stopped.shut()
        for scope in self._all_stop_scopes():
            scope.renew()

    def register(self, worker: Any) -> None:
        known = as_worker(worker)
        # In this order: a stop that comes in between finds the worker in the table, or is seen by
        # `wake_at_stop`. The failure of a task that has ended already is collected last.
        self._add_worker(id(worker), known)
        if not isinstance(worker, StartedTask):  # their coordinator stops those, and they report
            self.wake_at_stop(id(worker), worker)
            self._collect_when_ended(known)
        self.start_watchdog()
        if isinstance(worker, threading.Thread):
            stop_at_exit(self)

    def wake_at_stop(self, key: int, worker: object) -> None:
        """Let the stop end the calls in which a worker waits.

        Args:
            key: the key of the worker in this coordinator.
            worker: its thread or task.
        """
        scope = call_with_lock(self._lock, self._stop_scope_of, key, worker)
        # The stop opens its gate before it lists the scopes. So either it finds this one, or the
        # gate is seen open here. Both may happen; the second cancellation changes nothing.
        if scope is not None and self.stopped.is_open:
            end_waits((scope,))

    def exempt_from_stop(self, worker: object) -> None:
        """Exempt the calling worker from the stop: from now on it may wait, for its clean-up."""
        scope = call_with_lock(self._lock, self._stop_scopes.pop, id(worker), None)
        if scope is not None:
            scope.leave()

    def _stop_scope_of(self, key: int, worker: object) -> StopScope | None:
        if key not in self._workers:
            return None  # the worker has ended
        if key not in self._stop_scopes:
            self._stop_scopes[key] = StopScope(worker)
        return self._stop_scopes[key]

    @synchronized
    def _all_stop_scopes(self) -> list[StopScope]:
        return list(self._stop_scopes.values())

    @synchronized
    def worker_threads(self) -> list[threading.Thread]:
        return threads_of(self._workers.values())

    def stop_at_exit(self) -> None:
        """Stop because the program ends without having requested a stop."""
        self.stop(None, "at the end of the program")

    def call_on_stop(self, callback: Callable[[], None]) -> None:
        """Call back at the stop, in the thread that requests it; now, if it was requested."""
        if not self._add_stop_callback(callback):
            callback()  # without the lock: it may close queues, and run code of the user

    @synchronized
    def forget_on_stop(self, callback: Callable[[], None]) -> None:
        self._on_stop.pop(callback, None)

    @synchronized
    def failures(self) -> list[BaseException]:
        """Return the failures so far, in the order of the reports, without echoes. An echo is the
        end of a queue that was reported before the failure that has closed the queue."""
        return [
            error
            for error in self._failures
            if classify(error, self.clean_types) is not Classification.END
            or not self._knows_all_causes(error)
        ]

    def stop_cause(self) -> BaseException | None:
        """Return the first failure, for queues; the block's as a copy without its frames."""
        first = next(iter(self.failures()), None)
        return self._stand_ins.get(id(first), first)

    @synchronized
    def unwrap_single(
        self, raised: BaseException, block_error: BaseException | None = None
    ) -> BaseException:
        """Return what to raise instead of what a join raised: its failure itself, if it is single.

        Args:
            raised: the exception that the join raised.
            block_error: the exception that leaves the joined block.
        """
        return self._raised_failures.exception_to_raise(
            raised, block_error, self._failures, self.draining.queues()
        )

    def joining(
        self,
        workers: Iterable[Any] | None,
        grace: float,
        ignore_live: bool,
        *,
        blocking: bool = False,
        leaving: bool = False,
    ) -> Generator[tuple[Gate, float | None], None, None]:
        """Decide what a join waits for: yield gates, each with the most seconds to wait for it.

        Args:
            workers: workers to join besides the registered ones.
            grace: seconds that workers have after a stop.
            ignore_live: whether workers that do not end in time are not a failure.
            blocking: whether the join blocks the calling thread.
            leaving: whether the join ends the block: the last one that can report also waits for
                workers that start meanwhile.
        """
        if workers is not None and not is_iterable(workers):
            raise InvalidArgumentError(f"workers: got {workers!r}; expected an iterable of workers")
        things = [] if workers is None else list(workers)
        given = {id(worker): as_worker(worker) for worker in things}
        to_join, unregistered = self._begin_join(given, leaving)
        # The stop wakes registered workers. Those that only this join knows need scopes of their
        # own, or they would wait in their queues until the grace period ends.
        known = set(map(id, self._known()))
        scopes = [StopScope(one) for one in things if id(given[id(one)]) not in known]
        end = partial(end_waits, scopes)
        try:
            if scopes:
                self.call_on_stop(end)
            stragglers, failures = yield from self._join_rounds(
                to_join, unregistered, grace, blocking, leaving
            )
        except BaseException as error:
            # Cancelled, interrupted or closed: the workers go on, and another join may report.
            self._give_up_join()
            failures = self.failures()
            if failures and isinstance(error, Exception):  # no thread could be started for the wait
                raise failure_group([*failures, error]) from None
            raise
        finally:
            self.forget_on_stop(end)
        end_join(failures, stragglers, ignore_live)

    def _join_rounds(
        self,
        to_join: list[Worker],
        unregistered: list[Worker],
        grace: float,
        blocking: bool,
        leaving: bool,
    ) -> Generator[tuple[Gate, float | None], None, tuple[list[Worker], list[BaseException]]]:
        """Wait for workers, and for those that start meanwhile; return stragglers and failures."""
        while True:
            # Only this join knows those workers: what they failed with before is recorded here.
            self._collect_all_when_ended(unregistered)
            stragglers = yield from self._wait_for_workers(joinable(to_join), grace, blocking)
            yield from self._wait_after_workers()
            # A worker that just ended may not have reported its failure yet: fetch it.
            self._collect_all(to_join)
            # Whether workers have started meanwhile is decided under the lock that they register
            # with: one that registers later is left to the next join.
            failures = self._note_join(to_join, leaving)
            if failures is not None:
                return stragglers, failures
            to_join, unregistered = self._known(), []

    def _wait_for_workers(
        self, alive: list[Worker], grace: float, blocking: bool
    ) -> Generator[tuple[Gate, float | None], None, list[Worker]]:
        """Wait until the workers have ended; return those that the join gives up."""
        if blocking:
            refuse_blocked_tasks(alive)
        # `changed` opens at whichever comes first, the end of all workers or the stop; `ended` only
        # at the end. The grace period counts from the stop, so it cannot be known before.
        ended, changed = Gate(), Gate()

        def all_have_ended() -> None:
            ended.open()
            changed.open()

        forget = when_all_ended(alive, all_have_ended)
        try:
            self.call_on_stop(changed.open)
            if alive:  # a join counts as waiting until it ends, even after a stop
                self._waiting_joins[changed] = Join(alive)
                self.start_watchdog()
            try:
                yield changed, None
            finally:
                self.forget_on_stop(changed.open)
            if not ended.is_open and grace > SLOW_STOP:
                yield ended, self._grace_left(SLOW_STOP)
                if not ended.is_open:
                    warn_of_slow_stop(joinable(alive), grace)
            if not ended.is_open:
                yield ended, self._grace_left(grace)
        finally:
            self._waiting_joins.pop(changed, None)
            forget()
        if ended.is_open:
            return []
        # The grace is over: tasks are cancelled, the first time or once more, and have as long
        # again for their clean-up. Threads cannot be cancelled: they are given up here.
        alive = joinable(alive)
        cancelled = cancel_all(alive)
        tasks_ended = Gate()
        forget = when_all_ended(cancelled, tasks_ended.open)
        try:
            yield tasks_ended, max(grace, MIN_CLEAN_UP)
        finally:
            forget()
        return joinable(alive)

    def _wait_after_workers(self) -> Generator[tuple[Gate, float | None], None, None]:
        """Wait for more after all workers have ended; here, for nothing."""
        yield from ()

    def begin_work(self) -> object:
        """Note work by a thread or task that is not registered; return the token for `end_work`."""
        return None

    def end_work(self, work: object) -> None:
        """Note that such work has ended."""

    def warn_of_interrupt(self) -> None:
        """Warn, after Ctrl-C has ended a join, which workers it leaves behind, and where."""
        warn_of_interrupt(joinable(self._known()))

    def is_entered_here(self) -> bool:
        return is_held_here(self._lock)

    def _grace_left(self, seconds: float) -> float:
        """Return how many of the ``seconds`` after the stop remain."""
        return max(0.0, self._stop_time + seconds - monotonic())

    @synchronized
    def _is_over(self) -> bool:
        """Return whether no join is left that could report a failure."""
        return self.joined and not self._joining and not self._blocks

    @synchronized
    def _add_worker(self, key: int, worker: Worker) -> None:
        self._workers.setdefault(key, worker)
        if len(self._workers) < self._prune_at:
            return
        # Forget our own tasks that have ended. They report failures themselves, so no join asks.
        self._workers = {
            key: worker
            for key, worker in self._workers.items()
            if worker.is_alive() or not isinstance(worker, StartedTask)
        }
        self._forget_stop_scopes()
        self._prune_at = max(_PRUNE_AT, 2 * len(self._workers))

    def _forget_stop_scopes(self) -> None:
        scopes = self._stop_scopes
        self._stop_scopes = {key: scopes[key] for key in scopes if key in self._workers}

    @synchronized
    def _add_stop_callback(self, callback: Callable[[], None]) -> bool:
        if not self.stopped.is_open:
            self._on_stop[callback] = None
        return not self.stopped.is_open

    def _stop(self, error: BaseException | None, worker: str) -> tuple[()]:
        call_with_lock(self._lock, self._note_stop, error, worker)
        # Two threads may stop at once: each callback is taken by one of them. One by one, because
        # if Ctrl-C interrupts the loop, the next stop (in `__exit__`) calls the rest.
        while callback := self._next_on_stop():
            try:
                callback()
            except Exception as failure:  # the others must be called nevertheless
                self.request_stop(failure, worker)
        # Last: a worker that waits for a queue should see the queue closed, not a cancelled call.
        # Each worker that fails requests the stop again. The waits of all are ended once, or the
        # cost would be the square of the workers. An interrupted stop has not noted it: the next
        # one does it again.
        stop = self._stops
        if self._waits_ended_at != stop:
            end_waits(self._all_stop_scopes())
            self._waits_ended_at = stop
        return ()

    def _note_stop(self, error: BaseException | None, worker: str) -> None:
        first = not self.stopped.is_open
        if error is not None:
            self._note_failure(error, worker)
        if first:
            self._stop_time = monotonic()
            self._stops += 1
            self._stopped_by = worker
            self.stopped.open()  # under the lock: a concurrent `call_on_stop` must not miss it

    def _note_failure(self, error: BaseException, worker: str) -> None:
        # Before the stop, a closed queue or a cancellation is a failure. After it, workers raise
        # these because of the stop.
        if not self.stopped.is_open or not self._is_caused_by_stopping(error):
            self._record(error, worker)

    def _is_caused_by_stopping(self, error: BaseException) -> bool:
        meaning = classify(error, self.clean_types, stopping=True)
        return meaning is not Classification.FAILURE and self._knows_all_causes(error)

    @synchronized
    def _next_on_stop(self) -> Callable[[], None] | None:
        callback = next(iter(self._on_stop), None)
        if callback is not None:
            del self._on_stop[callback]
        return callback

    def was_raised_by_join(self, error: BaseException) -> bool:
        """Return whether a join raised this exception: then nothing in it is new."""
        return isinstance(error, BaseExceptionGroup) and self.unrecorded_part(error) is None

    def unrecorded_part(self, error: BaseException | None) -> BaseException | None:
        """Return the part of an exception that is not recorded yet: of a group, the new leaves."""
        known = {id(leaf) for failure in self.failures() for leaf in leaves_of(failure)}
        known.update(self._raised_failures)
        return error if error is None else part_without(known, error)

    def _record(self, error: BaseException, worker: str) -> None:
        if worker == BLOCK_NAME and self._raised_failures.includes(error):
            return  # a join in the block has raised it
        name_failed_worker(error, worker if worker == BLOCK_NAME else f"worker {worker}")
        # A worker may raise a group with failures that others have reported. Each is listed once.
        new = self.unrecorded_part(error)
        if new is not None and not self._is_known(new):
            self._failures.append(new)
            if worker == BLOCK_NAME:
                # Its frames are those of the block, which hold the queues. A queue that keeps the
                # failure as its cause would keep itself alive.
                self._stand_ins[id(new)] = without_frames(new)

    def _is_known(self, error: BaseException) -> bool:
        return any(error is one for known in self._failures for one in (known, *leaves_of(known)))

    def _collect_all_when_ended(self, workers: list[Worker]) -> None:
        for worker in workers:
            self._collect_when_ended(worker)

    def _collect_all(self, workers: list[Worker]) -> None:
        for worker in workers:
            self._collect(worker)

    def start_watchdog(self) -> None:
        """Start the watchdog, if you asked for one, since workers have started."""
        if self.watchdog is not None and call_with_lock(self._lock, self._claim_watch):
            Watchdog(self, self.watchdog, self.stopped, end_callback(self)).start()

    def _collect_when_ended(self, worker: Worker) -> None:
        """Record a worker's failure when it ends, if the worker keeps it; now, if it has ended."""
        if not worker.keeps_error:
            return
        if worker.is_alive():
            worker.when_ended(lambda: self._collect(worker))
        # It may have ended between the two lines, or before. The first call takes the failure.
        self._collect(worker)

    def _collect(self, worker: Worker) -> None:
        """Fetch and record the failure of a worker that has ended: no other code would see it."""
        if not worker.keeps_error:
            return
        error, is_noted = call_with_lock(self._lock, self._take_error, worker)
        if is_noted:
            self.stop(None, worker.name)  # without the lock: callbacks run code of the user
        elif error is not None:
            self.report(error, worker.name)

    def _take_error(self, worker: Worker) -> tuple[BaseException | None, bool]:
        """Take a worker's failure, once; return it, and whether it was recorded as a failure.

        Both under the lock, or a join of another thread could end in between and lose the failure.
        """
        error = worker.take_error()
        if error is None or self.is_clean(error) or self._is_over():
            return error, False
        self._note_failure(error, worker.name)
        return error, True

    @synchronized
    def _begin_join(
        self, given: dict[int, Worker], leaving: bool
    ) -> tuple[list[Worker], list[Worker]]:
        """Count a join; return the workers to join, and those of them that are not registered."""
        # Together: in between, a failure would find neither a block nor a join, and be raised.
        self._joining += 1
        self._blocks -= leaving
        unregistered = [worker for key, worker in given.items() if key not in self._workers]
        return list((given | self._workers).values()), unregistered

    @synchronized
    def _give_up_join(self) -> None:
        self._joining -= 1

    @synchronized
    def _note_join(self, joined: list[Worker], leaving: bool) -> list[BaseException] | None:
        """Note that a join has ended; return the failures that it has to report.

        Workers that started meanwhile are left to the next join. If this one leaves a block, there
        is no next join: it returns ``None`` as long as such workers run.
        """
        # All under the lock: a failure is either in this report, or finds that no join is left.
        ended = set(map(id, joined))
        left = {key: one for key, one in self._workers.items() if id(one) not in ended}
        if leaving and joinable(list(left.values())):
            return None
        if self._blocks:  # leaving the block waits once more for workers that this join gave up
            left = {key: one for key, one in self._workers.items() if key in left or one.is_alive()}
        self._joining -= 1
        self.joined = True
        failures = self.failures()
        for failure in failures:
            forget_locals(failure)
        if leaving:  # the failures are raised now, and then belong to the code that catches them
            without_frames_of, self._stand_ins = self._stand_ins, {}
            self._failures = [without_frames_of.get(id(one), one) for one in self._failures]
        self._workers = left
        self._forget_stop_scopes()
        return failures
