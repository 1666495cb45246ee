"""A coordinator for a Ray cluster: one per program, kept in agreement by an actor."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Generator, Iterable
from typing import Any, Final, NoReturn

import aioqueue
from aioqueue.base.arguments import checked_flag, checked_grace, checked_watchdog
from aioqueue.coordination.core import (
    BLOCK_NAME,
    CoordinatorCore,
)
from aioqueue.coordination.shutdown import DEFAULT_GRACE
from aioqueue.coordination.workers import as_worker, current_worker_name, when_all_ended
from aioqueue.core.elements.spec import is_iterable
from aioqueue.errors import describe_exception
from aioqueue.processes.failures import failure_of_message, message_of_failure
from aioqueue.ray.link import Link, place_here, task_here
from aioqueue.ray.members import ActiveWorker, Failure, News, ProgramReport, remote_class
from aioqueue.ray.queues import NAMESPACE, checked_name
from aioqueue.ray.tasks import Elsewhere, RayTask, await_elsewhere, is_reference
from aioqueue.system.locks import guarded, holding
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
        # All below is guarded by the lock of the coordinator.
        self._run = _UNKNOWN
        self._first_run = 0  # news of earlier runs is ignored
        self._number = 0  # of the next report
        self._seen = 0  # number of the cluster's failures seen here
        self._shared: list[BaseException] = []  # failures that the actor has or will get
        self._to_tell: list[Failure] = []  # those of them from this program
        self._stopped_here: str | None = None
        self._works: list[ActiveWorker] = []
        self._tasks_that_join: list[str] = []  # the tasks that wait in a join
        self._tasks: weakref.WeakValueDictionary[int, RayTask] = weakref.WeakValueDictionary()
        self.link: Link = Link(ray, name, actor, weakref.ref(self))
        self.link.start()
        weakref.finalize(self, self.link.leave)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"coordinator '{self.link.name}' cannot be sent elsewhere: make one there with the same"
            " name"
        )

    # Local decisions.

    def stop(self, error: BaseException | None, worker: str) -> None:
        """Record a failure, and stop all programs.

        With a failure, it returns once the actor has the failure, or after five seconds. So a
        caller that waits for this worker learns of the failure.
        """
        self.link.check()
        error = self.unrecorded_part(error)
        failure = self._failure(error, worker)
        super().stop(error, worker)
        count = holding(self._lock, self._note_own, error, failure, worker)
        self.link.tell_soon()
        if count and worker != BLOCK_NAME:  # the join reports it
            self.link.until_acknowledged(count)

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

    def _note_own(self, error: BaseException | None, failure: Failure | None, worker: str) -> int:
        """Queue a failure for the actor; return how many failures of this program it will then
        have."""
        self._stopped_here = self._stopped_here or worker
        is_recorded = any(error is known for known in self._failures)
        if failure is None or not is_recorded or any(error is known for known in self._shared):
            return 0
        assert error is not None
        self._shared.append(error)
        self._to_tell.append(failure)
        return len(self._to_tell)

    def clear_stop(self) -> None:
        super().clear_stop()
        run = holding(self._lock, self._forget)
        self.link.ask_soon(bool, "clear", run)

    def _forget(self) -> int:
        run, self._run = self._run, _UNKNOWN
        self._first_run = max(self._first_run, run + 1)
        self._begin_anew()
        return run

    def _begin_anew(self) -> None:
        self._seen = 0
        self._shared, self._to_tell = [], []
        self._stopped_here = None
        self.link.begin_anew()

    # Local workers.

    def register(self, worker: Any) -> None:
        worker = self._as_task(worker)
        super().register(worker)
        self.link.tell_soon()
        when_all_ended([as_worker(worker)], self.link.tell_soon)

    def _as_task(self, worker: Any) -> Any:
        """Return the task for a Ray reference: the same one at every call."""
        return holding(self._lock, self._task_of, worker) if is_reference(worker) else worker

    def _task_of(self, ref: Any) -> RayTask:
        key = ref.task_id().hex()
        for task in self._tasks.values():
            if task.key == key:
                return task
        task = RayTask(ref, self.link)
        self._tasks[id(task)] = task
        return task

    def begin_work(self) -> ActiveWorker:
        work = self._working_here()
        holding(self._lock, self._works.append, work)
        self.link.tell_soon()
        return work

    def end_work(self, work: object) -> None:
        assert isinstance(work, ActiveWorker)
        holding(self._lock, self._works.remove, work)
        self.link.tell_soon()

    def _working_here(self) -> ActiveWorker:
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
        key = self._working_here().key
        holding(self._lock, self._tasks_that_join.append, key)
        others: list[Elsewhere] = []
        is_over = False
        try:
            yield from self._find_others(key, others)
            await_elsewhere(self.link, others, lambda: is_over)
            if others:
                given = [*(given or ()), *others]
            yield from super().joining(
                given, grace, ignore_live, blocking=blocking, leaving=leaving
            )
        finally:
            is_over = True
            holding(self._lock, self._tasks_that_join.remove, key)
            self.link.tell_soon()

    def _find_others(self, key: str, others: list[Elsewhere]) -> _Waits:
        """Ask for the workers of other programs, once the actor knows that this one joins."""
        found = Gate()

        def heard(workers: list[ActiveWorker] | None) -> None:
            own = {task.key for task in self._tasks.values()} | {key}
            others.extend(Elsewhere(one) for one in workers or () if one.key not in own)
            found.open()

        self.link.settle_soon(lambda: self.link.ask_soon(heard, "others", self._life))
        yield found, None

    def _wait_after_workers(self) -> _Waits:
        """Wait for reports in flight, after all workers have ended."""
        settled = Gate()
        self.link.settle_soon(settled.open)
        yield settled, None

    # Calls by the link.

    @guarded
    def standing(self) -> ProgramReport:
        """Return the state of this program."""
        self._number += 1
        acknowledged = self.link.acknowledged
        return ProgramReport(
            self._life,
            self._place,
            self._run,
            self._number,
            [*self._works, *self._workers_here()],
            acknowledged,
            self._to_tell[acknowledged:],
            self._stopped_here,
            self.joined,
            list(self._tasks_that_join),
            self._seen,
        )

    def _workers_here(self) -> Iterable[ActiveWorker]:
        for key, worker in self._workers.items():
            if worker.is_alive():
                task = self._tasks.get(key)
                if task is not None:
                    yield ActiveWorker(task.key, worker.name, is_kept=False)
                else:
                    yield ActiveWorker(f"{self._life}/{key}", worker.name)

    @guarded
    def asks_from(self) -> tuple[str, int, int, bool]:
        """Return what this program knows of the others."""
        return self._life, self._run, self._seen, self.stopped.is_open

    def heard(self, news: News) -> None:
        """Accept news of the cluster. Decisions made elsewhere are not reported again."""
        if not holding(self._lock, self._is_of_this_run, news):
            return
        for number, failure in news.failures:
            if number >= self._seen:
                self._take(failure)
        self._seen = max(self._seen, news.total)
        if news.stopped_by is not None:
            super().stop(None, news.stopped_by)

    def _is_of_this_run(self, news: News) -> bool:
        if news.run < self._first_run:
            return False  # news of a run that was cleared
        if news.run != self._run:
            if self._run != _UNKNOWN:  # another program has called `clear_stop`
                super().clear_stop()
                self._begin_anew()
            self._run = news.run
            self.link.tell_soon()
        return True

    def _take(self, failure: Failure) -> None:
        error = failure_of_message(failure.message, failure.place, self._ray.cloudpickle.loads)
        worker = f"{failure.worker} ({failure.place})"
        if self._is_over():
            log.error("worker %s failed after the join", worker, exc_info=error)
            return
        self._shared.append(error)
        holding(self._lock, self._record, error, worker)
        super().stop(None, worker)

    def lost(self, error: Exception) -> None:
        """Handle the loss of the connection: no more stops and, without Ray, no ends of tasks."""
        if not self._is_over():
            super().stop(error, f"coordinator '{self.link.name}'")
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
        return self._core.link.name

    def delete(self) -> None:
        """End the actor. Programs that still use it stop with a `WorkerDiedError`."""
        core = self._core
        core.link.check()
        core.link.leave()
        core._ray.kill(core.link.actor)
