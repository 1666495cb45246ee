"""A coordinator on a Ray cluster: the one of each program, and an actor that keeps them alike."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Generator, Iterable
from typing import Any, Final, NoReturn

import aioqueue
from aioqueue.arguments import checked_grace, checked_watchdog
from aioqueue.coordination.core import (
    DEFAULT_GRACE,
    THE_BLOCK,
    CoordinatorCore,
)
from aioqueue.coordination.workers import as_worker, current_worker_name, when_all_ended
from aioqueue.elements import is_iterable
from aioqueue.errors import describe_exception
from aioqueue.inputs.prepare.ray_cluster import connected, log, not_connected
from aioqueue.locks import guarded, holding
from aioqueue.processes.remote_failures import failure_of_message, message_of_failure
from aioqueue.ray.link import Link, place_here, task_here
from aioqueue.ray.members import ActiveWorker, Failure, News, ProgramReport, remote_class
from aioqueue.ray.queues import NAMESPACE, checked_name
from aioqueue.ray.tasks import Elsewhere, RayTask, await_elsewhere, is_reference
from aioqueue.waiting import Gate

__all__ = ("ClusterCore", "Coordinator")

_UNKNOWN: Final = -1
"""The run of a program that has heard nothing yet."""

_Waits = Generator[tuple[Gate, float | None], None, None]


class ClusterCore(CoordinatorCore):
    """The coordinator of one program, which takes part in one of the cluster.

    What it decides for itself it tells the actor, and does what the actor tells; so all that uses a
    coordinator here uses that of the cluster.

    Args:
        clean_stop_exception_types: failures that end a run normally and are not reported.
        watchdog: seconds without movement after which to warn; ``None`` for never.
        ray: the library.
        name: all over the cluster.
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
        self._first_run = 0  # before which nothing that is heard counts any more
        self._number = 0  # of the next report
        self._seen = 0  # failures of the cluster
        self._shared: list[BaseException] = []  # failures that the actor has, or is to have
        self._to_tell: list[Failure] = []  # those of them that come from here
        self._stopped_here: str | None = None
        self._works: list[ActiveWorker] = []
        self._tasks_that_join: list[str] = []  # the tasks that wait in a join
        self._tasks: weakref.WeakValueDictionary[int, RayTask] = weakref.WeakValueDictionary()
        self.link = Link(ray, name, actor, weakref.ref(self))
        self.link.start()
        weakref.finalize(self, self.link.leave)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"coordinator '{self.link.name}' cannot be sent elsewhere: make one there, by the same"
            " name"
        )

    # What is decided here.

    def stop(self, error: BaseException | None, worker: str) -> None:
        """Record a failure and stop, here and everywhere.

        With a failure it returns when the actor has it, so that whoever waits for this worker to
        end hears of it; five seconds at most.
        """
        self.link.check()
        error = self.what_is_new(error)
        failure = self._failure(error, worker)
        super().stop(error, worker)
        count = holding(self._lock, self._note_own, error, failure, worker)
        self.link.tell_soon()
        if count and worker != THE_BLOCK:  # whose join tells
            self.link.until_acknowledged(count)

    def _failure(self, error: BaseException | None, worker: str) -> Failure | None:
        """A failure as it is sent: before anything is noted of it here."""
        if error is None or self.is_clean(error) or self.has_raised(error):
            return None
        sent: Exception = (
            error if isinstance(error, Exception) else RuntimeError(describe_exception(error))
        )
        if sent is not error:  # Ctrl-C there is no Ctrl-C elsewhere
            sent.__cause__ = error
        pickle = self._ray.cloudpickle
        message = message_of_failure(sent, pickle.dumps, pickle.loads)
        return Failure(message, worker, place_here())

    def _note_own(self, error: BaseException | None, failure: Failure | None, worker: str) -> int:
        """Note what is to be told; returns how many failures the actor then has from here."""
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

    # Who works here.

    def register(self, worker: Any) -> None:
        worker = self._as_task(worker)
        super().register(worker)
        self.link.tell_soon()
        when_all_ended([as_worker(worker)], self.link.tell_soon)

    def _as_task(self, worker: Any) -> Any:
        """What to call Ray's reference of a task: the same whenever it is asked for."""
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
        """Who calls: a task of Ray, or a thread or task of a program."""
        found = task_here()
        if found is not None:
            return ActiveWorker(*found)
        return ActiveWorker(f"{self._life}/{uuid.uuid4().hex[:8]}", current_worker_name())

    # How a join waits.

    def joining(
        self,
        workers: Iterable[Any] | None,
        grace: float,
        ignore_live: bool,
        *,
        blocking: bool = False,
        leaving: bool = False,
    ) -> _Waits:
        """As in one program; and for the workers of all others, unless they join themselves."""
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
        """Ask which workers other programs have, when the actor knows that this one joins."""
        found = Gate()

        def heard(workers: list[ActiveWorker] | None) -> None:
            own = {task.key for task in self._tasks.values()} | {key}
            others.extend(Elsewhere(one) for one in workers or () if one.key not in own)
            found.open()

        self.link.settle_soon(lambda: self.link.ask_soon(heard, "others", self._life))
        yield found, None

    def _settling(self) -> _Waits:
        """All workers have ended: what they have reported before is at the actor, and comes."""
        settled = Gate()
        self.link.settle_soon(settled.open)
        yield settled, None

    # What the link asks and tells.

    @guarded
    def standing(self) -> ProgramReport:
        """How things stand here."""
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
        """What is known here of how things stand elsewhere."""
        return self._life, self._run, self._seen, self.stopped.is_open

    def heard(self, news: News) -> None:
        """How things stand elsewhere. What is decided there is not decided here again."""
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
            return False  # that was forgotten
        if news.run != self._run:
            if self._run != _UNKNOWN:  # somebody else has called `clear_stop`
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
        """Nothing more will be heard: neither of stops, nor, without Ray, of its tasks."""
        if not self._is_over():
            super().stop(error, f"coordinator '{self.link.name}'")
        if connected() is None:
            for task in list(self._tasks.values()):
                task.give_up()


class Coordinator(aioqueue.Coordinator):
    """Makes all workers of a cluster stop together, joins them, and reports what failed.

    All programs that say the same name have the same one; who comes first makes it. In each of them
    it is used as an `aioqueue.Coordinator`, and `sync` is the same for threads: it starts runners,
    is given to `prepare`, and so on. What it does besides:

    * A stop reaches every program that has one, and so all of its workers: as soon as it is told,
      and `should_stop` asks nobody.
    * Every failure comes to every program, and so home: with the traceback that it had, and with
      the names of the worker, of its actor or task, its process and its node. `request_stop` with a
      failure, and a worker that fails, wait until it has been told, a few milliseconds as a rule,
      and five seconds at most: whoever waits for them to end has heard of it by then.
    * `register` and `join` take Ray's references of tasks, and of calls of actors, besides. One
      that fails, or whose process or node dies, is a failure; when the grace period has run out,
      those that can be cancelled are.
    * Within ``with coord.stop_on_exception():`` its program is known to work: joins elsewhere wait
      for that, and its death is a failure, after half a minute in which nothing was heard of it. So
      are the deaths of other workers that are registered.
    * `join`, and leaving the block, wait for the workers of all programs, but for those that are in
      a join themselves. A drain concerns the runners of this program.

    The actor lives on the node of who comes first, and is detached: it stays until `delete`. When
    no program uses it any more, and all failures were told by some join, whoever comes then begins
    anew; so does everybody by `clear_stop`. If it dies, all programs stop by a `WorkerDiedError`,
    and so does one that calls ``ray.shutdown()``, within five seconds.

    Args:
        name: all over the cluster.
        clean_stop_exception_types: failures that end a run normally and are not reported; ``None``
            for ``(OutOfRangeError,)``.
        stop_grace_period: seconds that workers have to end after a stop, when a block is left.
        watchdog: as for `aioqueue.Coordinator`; it looks at this program.

    Raises:
        InvalidArgumentError: any argument is not as described.
        RuntimeError: this program is connected to no Ray cluster.
    """

    _core: ClusterCore

    def __init__(
        self,
        name: str,
        clean_stop_exception_types: Iterable[type[BaseException]] | None = None,
        *,
        stop_grace_period: float = DEFAULT_GRACE,
        watchdog: float | None = None,
    ) -> None:
        # All that its base does, but with another core.
        name = checked_name(name)
        self._grace = checked_grace(stop_grace_period, "stop_grace_period")
        watchdog = checked_watchdog(watchdog)
        CoordinatorCore(clean_stop_exception_types)  # refuses them before an actor is made
        ray = connected()
        if ray is None:
            raise not_connected()
        strategies = ray.util.scheduling_strategies
        # It takes no CPU, so there is always a place; Ray takes a softer wish as none at times.
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
        self._peer = None

    @property
    def name(self) -> str:
        """What it is called, all over the cluster."""
        return self._core.link.name

    def delete(self) -> None:
        """End the actor. Other programs that still use it stop, by a `WorkerDiedError`."""
        core = self._core
        core.link.check()
        core.link.leave()
        core._ray.kill(core.link.actor)
