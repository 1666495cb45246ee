"""A coordinator for a Ray cluster: one per program, kept in agreement by an actor."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NoReturn

import aioqueue
from aioqueue.base.arguments import checked_flag, checked_grace, checked_watchdog
from aioqueue.base.public_names import World
from aioqueue.coordination.coordinator_core import CoordinatorCore
from aioqueue.coordination.shutdown import DEFAULT_GRACE
from aioqueue.ray.coordinator_actor import remote_class
from aioqueue.ray.coordinator_connection import CoordinatorConnection, place_here, task_here
from aioqueue.ray.queues import NAMESPACE, checked_name
from aioqueue.ray.remote_workers import (
    RayTask,
    is_reference,
)
from aioqueue.remote.member_core import MemberCore
from aioqueue.system.locks import call_with_lock
from aioqueue.workers.executors.ray_cluster import connected, not_connected


class ClusterCore(MemberCore):
    """The coordinator of one program that takes part in a cluster's coordinator.

    Args:
        clean_stop_exception_types: failures that end a run normally and are not reported.
        watchdog: seconds without progress after which to warn; ``None`` for never.
        ray: the library.
        name: the name in the cluster.
        actor: Ray's handle.
    """

    connection: CoordinatorConnection

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
        self._place = place_here()
        self._tasks: weakref.WeakValueDictionary[int, RayTask] = weakref.WeakValueDictionary()
        self.connection = CoordinatorConnection(ray, name, actor, weakref.ref(self))
        self.connection.start()
        weakref.finalize(self, self.connection.leave)

    def pickled(self, world: World) -> NoReturn:
        """Refuse to be pickled.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"coordinator '{self.connection.name}' cannot be sent elsewhere: make one there with"
            " the same name"
        )

    def place(self) -> str:
        return self._place

    def failure_place(self) -> str:
        return place_here()

    def dumps(self, value: Any) -> bytes:
        pickled: bytes = self._ray.cloudpickle.dumps(value)
        return pickled

    def loads(self, pickled: bytes) -> Any:
        return self._ray.cloudpickle.loads(pickled)

    def worker_here(self) -> tuple[str, str] | None:
        return task_here()

    def as_known_worker(self, worker: Any) -> Any:
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

    def remote_key(self, key: int) -> str | None:
        task = self._tasks.get(key)
        return None if task is None else task.key

    def remote_keys(self) -> set[str]:
        return {task.key for task in self._tasks.values()}

    def connection_lost(self, error: Exception) -> None:
        """Handle the loss of the connection: no more stops and, without Ray, no ends of tasks."""
        super().connection_lost(error)
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
