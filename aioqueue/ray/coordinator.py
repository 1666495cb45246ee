"""A coordinator for a Ray cluster: one per program, kept in agreement by an actor."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Generator, Iterable
from typing import Any, Final, NoReturn

import aioqueue
from aioqueue.base.arguments import checked_flag, checked_grace, checked_watchdog
from aioqueue.coordination.coordinator_core import BLOCK_NAME, CoordinatorCore
from aioqueue.coordination.shutdown import DEFAULT_GRACE
from aioqueue.coordination.workers import as_worker, current_worker_name, when_all_ended
from aioqueue.core.elements.values import is_iterable
from aioqueue.errors import describe_exception
from aioqueue.processes.failures import failure_of_message, message_of_failure
from aioqueue.ray.coordinator_actor import ActiveWorker, Failure, News, ProgramReport, remote_class
from aioqueue.ray.coordinator_connection import CoordinatorConnection, place_here, task_here
from aioqueue.ray.queues import NAMESPACE, checked_name
from aioqueue.ray.remote_workers import (
    OtherProgramWorker,
    RayTask,
    await_other_programs,
    is_reference,
)
from aioqueue.system.locks import call_with_lock
from aioqueue.workers.executors.ray_cluster import connected, log, not_connected
from aioqueue.worlds.scopes import Gate

_UNKNOWN: Final = -1
"""The run of a program that has no news yet."""

_Waits = Generator[tuple[Gate, float | None], None, None]


class ClusterCore(CoordinatorCore):
    """The coordinator of one program that takes part in a cluster's coordinator.

    It reports its decisions to the actor, and follows the actor's news. So whatever uses a
    coordinator in this program uses that of the cluster.

    Args:
        clean_stop_exception_types: failures that end a run normally and are not reported.
        watchdog: seconds without progress after which to warn; ``None`` for never.
        ray: the library.
        name: the name in the cluster.
        actor: Ray's handle.
    """

    def __init__(
        self,
        clean_stop_exception_types: Iterable[type[BaseException]] | None,
        watchdog: float | None,
        ray: Any,
        name: str,
        actor: Any,
    ) -> None:
        super().__init__(clean_stop_exception_types, watchdog)
        self._ray = ray
        self._life = f"program-{uuid.uuid4().hex[:12]}"
        self._place = place_here()
        # All below is synchronized by the lock of the coordinator.
        self._run = _UNKNOWN
        self._first_run = 0  # news of earlier runs is ignored
        self._number = 0  # of the next report
        self._seen = 0  # number of the cluster's failures seen here
        self._shared: list[BaseException] = []  # failures that the actor has or will get
        self._local_failures: list[Failure] = []  # those of them from this program
        self._local_stopped_by: str | None = None
        self._active_workers: list[ActiveWorker] = []
        self._joining_keys: list[str] = []  # the tasks that wait in a join
        self._tasks: weakref.WeakValueDictionary[int, RayTask] = weakref.WeakValueDictionary()
        self.connection: CoordinatorConnection = CoordinatorConnection(
            ray, name, actor, weakref.ref(self)
        )
        self.connection.start()
        weakref.finalize(self, self.connection.leave)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"coordinator '{self.connection.name}' cannot be sent elsewhere: make one there with"
            " the same name"
        )

    # Local decisions.

    def stop(self, error: BaseException | None, worker: str) -> None:
        """Record a failure, and stop all programs.

        With a failure, it returns once the actor has the failure, or after five seconds. So a
        caller that waits for this worker learns of the failure.
        """
        self.connection.check()
        error = self.unrecorded_part(error)
        # Without the lock, since it pickles an exception of the user; and before the core records
        # the failure, since a join may raise it then, and what was raised is not sent.
        failure = self._failure(error, worker)
        super().stop(error, worker)
        count = call_with_lock(self._lock, self._queue_failure, error, failure, worker)
        self.connection.schedule_report()
        if count and worker != BLOCK_NAME:  # the join reports it
            self.connection.until_acknowledged(count)

    def _failure(self, error: BaseException | None, worker: str) -> Failure | None:
        """Convert a failure for sending, before it is recorded here."""
        if error is None or self.is_clean(error) or self.was_raised_by_join(error):
            return None
        sent: Exception = (
            error if isinstance(error, Exception) else RuntimeError(describe_exception(error))
        )
        if sent is not error:  # a Ctrl-C here is not a Ctrl-C elsewhere
            sent.__cause__ = error
        pickle = self._ray.cloudpickle
        message = message_of_failure(sent, pickle.dumps, pickle.loads)
        return Failure(message, worker, place_here())

    def _queue_failure(
        self, error: BaseException | None, failure: Failure | None, worker: str
    ) -> int:
        """Queue a failure for the actor; return how many failures of this program it will then
        have."""
        self._local_stopped_by = self._local_stopped_by or worker
        # The core may have refused it, as when a join has ended. One in `_shared` came from another
        # program, or was sent before: to send it again would count it twice.
        is_recorded = any(error is known for known in self._failures)
        if failure is None or not is_recorded or any(error is known for known in self._shared):
            return 0
        assert error is not None
        self._shared.append(error)
        self._local_failures.append(failure)
        return len(self._local_failures)

    def clear_stop(self) -> None:
        super().clear_stop()
        run = call_with_lock(self._lock, self._leave_run)
        self.connection.schedule_request(bool, "clear", run)

    def _leave_run(self) -> int:
        # Unknown until news of the next run comes. Otherwise a report made by then would bring a
        # new failure to the run that is being cleared.
        run, self._run = self._run, _UNKNOWN
        self._first_run = max(self._first_run, run + 1)
        self._reset()
        return run

    def _reset(self) -> None:
        self._seen = 0
        self._shared, self._local_failures = [], []
        self._local_stopped_by = None
        self.connection.reset()

    # Local workers.

    def register(self, worker: Any) -> None:
        worker = self._as_task(worker)
        super().register(worker)
        self.connection.schedule_report()
        when_all_ended([as_worker(worker)], self.connection.schedule_report)

    def _as_task(self, worker: Any) -> Any:
        """Return the task for a Ray reference: the same one at every call."""
        return call_with_lock(self._lock, self._task_of, worker) if is_reference(worker) else worker

    def _task_of(self, ref: Any) -> RayTask:
        key = ref.task_id().hex()
        for task in self._tasks.values():
            if task.key == key:
                return task
        task = RayTask(ref, self.connection)
        self._tasks[id(task)] = task
        return task

    def begin_work(self) -> ActiveWorker:
        work = self._current_worker()
        call_with_lock(self._lock, self._active_workers.append, work)
        self.connection.schedule_report()
        return work

    def end_work(self, work: object) -> None:
        assert isinstance(work, ActiveWorker)
        call_with_lock(self._lock, self._active_workers.remove, work)
        self.connection.schedule_report()

    def _current_worker(self) -> ActiveWorker:
        """Return the caller: a task of Ray, or a thread or task of this program."""
        found = task_here()
        if found is not None:
            return ActiveWorker(*found)
        return ActiveWorker(f"{self._life}/{uuid.uuid4().hex[:8]}", current_worker_name())

    # Joins.

    def joining(
        self,
        workers: Iterable[Any] | None,
        grace: float,
        ignore_live: bool,
        *,
        blocking: bool = False,
        leaving: bool = False,
    ) -> _Waits:
        """Join as in one program, and also wait for the workers of other programs that do not
        join."""
        given: Any = workers
        if is_iterable(workers):
            given = [self._as_task(one) for one in given]
        key = self._current_worker().key
        # Before asking for the others: two tasks that join at once must not wait for each other.
        call_with_lock(self._lock, self._joining_keys.append, key)
        other_workers: list[OtherProgramWorker] = []
        is_over = False
        try:
            yield from self._find_other_workers(key, other_workers)
            await_other_programs(self.connection, other_workers, lambda: is_over)
            if other_workers:
                given = [*(given or ()), *other_workers]
            yield from super().joining(
                given, grace, ignore_live, blocking=blocking, leaving=leaving
            )
        finally:
            is_over = True
            call_with_lock(self._lock, self._joining_keys.remove, key)
            self.connection.schedule_report()

    def _find_other_workers(self, key: str, other_workers: list[OtherProgramWorker]) -> _Waits:
        """Ask for the workers of other programs, once the actor knows that this one joins."""
        found = Gate()

        def on_workers(workers: list[ActiveWorker] | None) -> None:
            known_keys = {task.key for task in self._tasks.values()} | {key}
            other_workers.extend(
                OtherProgramWorker(one) for one in workers or () if one.key not in known_keys
            )
            found.open()

        self.connection.call_when_settled(
            lambda: self.connection.schedule_request(on_workers, "other_workers", self._life)
        )
        yield found, None

    def _wait_after_workers(self) -> _Waits:
        """Wait for reports in flight, after all workers have ended."""
        settled = Gate()
        self.connection.call_when_settled(settled.open)
        yield settled, None

    # Calls by the thread of the connection. No signal handler runs there, so a plain `with`
    # releases the lock in any case. A finalizer that runs there may take it again: it is reentrant.

    def program_report(self) -> ProgramReport:
        with self._lock:
            self._number += 1
            acknowledged = self.connection.acknowledged
            return ProgramReport(
                self._life,
                self._place,
                self._run,
                self._number,
                [*self._active_workers, *self._workers_here()],
                acknowledged,
                self._local_failures[acknowledged:],
                self._local_stopped_by,
                self.joined,
                list(self._joining_keys),
                self._seen,
            )

    def _workers_here(self) -> Iterable[ActiveWorker]:
        for key, worker in self._workers.items():
            if worker.is_alive():
                task = self._tasks.get(key)
                if task is not None:
                    yield ActiveWorker(task.key, worker.name, is_local=False)
                else:
                    yield ActiveWorker(f"{self._life}/{key}", worker.name)

    def known_state(self) -> tuple[str, int, int, bool]:
        with self._lock:
            return self._life, self._run, self._seen, self.stopped.is_open

    def accept_news(self, news: News) -> None:
        """Accept news of the cluster. Decisions made elsewhere are not reported again."""
        with self._lock:
            if not self._is_of_this_run(news):
                return
        # The answers to a report and to the pending call for news may bring the same failure.
        for number, failure in news.failures:
            if number >= self._seen:
                self._accept_failure(failure)
        self._seen = max(self._seen, news.total)
        if news.stopped_by is not None:
            super().stop(None, news.stopped_by)

    def _is_of_this_run(self, news: News) -> bool:
        if news.run < self._first_run:
            return False  # news of a run that was cleared
        if news.run != self._run:
            if self._run != _UNKNOWN:  # another program has called `clear_stop`
                super().clear_stop()
                self._reset()
            self._run = news.run
            self.connection.schedule_report()
        return True

    def _accept_failure(self, failure: Failure) -> None:
        error = failure_of_message(failure.message, failure.place, self._ray.cloudpickle.loads)
        worker = f"{failure.worker} ({failure.place})"
        if self._is_over():
            log.error("worker %s failed after the join", worker, exc_info=error)
            return
        self._shared.append(error)
        with self._lock:
            self._record(error, worker)
        # Not `self.stop`, which would send it to the cluster again.
        super().stop(None, worker)

    def connection_lost(self, error: Exception) -> None:
        """Handle the loss of the connection: no more stops and, without Ray, no ends of tasks."""
        if not self._is_over():
            super().stop(error, f"coordinator '{self.connection.name}'")
        if connected() is None:
            for task in list(self._tasks.values()):
                task.give_up()


class Coordinator(aioqueue.Coordinator):
    """Stops all workers of a cluster together, joins them, and reports failures.

    All programs that use the same name share one coordinator; the first one creates it. In each
    program you use it as an `aioqueue.Coordinator` (`sync` is the same for threads): it starts
    runners, you pass it to `prepare`, and so on. In addition:

    * A stop reaches every program, and so all its workers. It is pushed to them, so `should_stop`
      makes no remote call.
    * Every failure reaches every program, with its traceback and with the names of its worker,
      actor or task, process and node. `request_stop` with a failure, and a failing worker, wait
      until the failure has been sent. That takes a few milliseconds as a rule, and five seconds at
      most. So a program that waits for them to end knows of the failure by then.
    * `register` and `join` also accept Ray's references of tasks and actor calls. If one fails, or
      its process or node dies, that is a failure. When the grace period ends, those that can be
      cancelled are cancelled.
    * A program inside ``with coord.stop_on_exception():`` counts as working. Joins elsewhere wait
      for it, and its death is a failure after half a minute of silence. The same holds for other
      registered workers.
    * `join`, and leaving the block, wait for the workers of all programs, except those that are in
      a join themselves. A drain concerns the runners of this program only.

    The actor runs on the node of the program that created it, and is detached: it stays until
    `delete`. When no program uses it any more and some join has reported all failures, the next
    program starts afresh. `clear_stop` starts afresh for everybody. If the actor dies, all programs
    stop with a `WorkerDiedError`. A program that calls ``ray.shutdown()`` stops the same way within
    five seconds.

    Args:
        name: the name in the cluster.
        clean_stop_exception_types: failures that end a run normally and are not reported; ``None``
            for ``(OutOfRangeError,)``.
        stop_grace_period: seconds that workers have to end after a stop, when a block is left.
        raise_single: as for `aioqueue.Coordinator`.
        watchdog: as for `aioqueue.Coordinator`; it watches this program.

    Raises:
        InvalidArgumentError: an argument is not as described.
        RuntimeError: this program is not connected to a Ray cluster.
    """

    _core: ClusterCore

    def __init__(
        self,
        name: str,
        clean_stop_exception_types: Iterable[type[BaseException]] | None = None,
        *,
        stop_grace_period: float = DEFAULT_GRACE,
        raise_single: bool = False,
        watchdog: float | None = None,
    ) -> None:
        # Like the base class, with another core.
        name = checked_name(name)
        self._grace = checked_grace(stop_grace_period, "stop_grace_period")
        checked_flag(raise_single, "raise_single")
        watchdog = checked_watchdog(watchdog)
        CoordinatorCore(clean_stop_exception_types)  # validates them before creating an actor
        ray = connected()
        if ray is None:
            raise not_connected()
        strategies = ray.util.scheduling_strategies
        # With zero CPUs there is always a place for it; Ray sometimes ignores a soft constraint.
        home = strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        actor = (
            remote_class()
            .options(
                name=f"coordinator {name}",
                scheduling_strategy=home,
                namespace=NAMESPACE,
                get_if_exists=True,
                lifetime="detached",
                num_cpus=0,
                max_restarts=0,
            )
            .remote(name)
        )
        self._core = ClusterCore(clean_stop_exception_types, watchdog, ray, name, actor)
        self._raise_single = raise_single
        self._peer = None

    @property
    def name(self) -> str:
        """Its name in the cluster."""
        return self._core.connection.name

    def delete(self) -> None:
        """End the actor. Programs that still use it stop with a `WorkerDiedError`."""
        core = self._core
        core.connection.check()
        core.connection.leave()
        core._ray.kill(core.connection.actor)
