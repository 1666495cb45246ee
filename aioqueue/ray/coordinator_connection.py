"""The connection between a program and the actor of its coordinator, and where a caller runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from aioqueue.errors import WorkerDiedError
from aioqueue.ray.messages import LEASE_SECONDS
from aioqueue.remote.member_connection import CoordinatorView, MemberConnection
from aioqueue.workers.executors.ray_cluster import connected, session_of, why_lost


class CoordinatorConnection(MemberConnection):
    """The connection of one program to the actor.

    Args:
        ray: the library.
        name: name of the coordinator.
        actor: Ray's handle.
        coordinator: returns the coordinator of this program, while it is in use.
    """

    report_seconds: float | None = LEASE_SECONDS / 6  # the actor takes a silent program for dead

    def __init__(
        self, ray: Any, name: str, actor: Any, coordinator: Callable[[], CoordinatorView | None]
    ) -> None:
        super().__init__(f"coordinator '{name}'", coordinator, f"aioqueue-ray-{name}")
        self.name = name
        self.actor = actor
        self._pid = os.getpid()
        self._session = session_of(ray)

    def check(self) -> None:
        """Check that this process owns the connection.

        Raises:
            RuntimeError: it is a fork of the process that does.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"the handle of coordinator '{self.name}' belongs to the process that this one was"
                " forked from: call ray.init() here and make a new one with the same name"
            )

    def is_connected(self) -> bool:
        ray = connected()  # a call would make Ray start a cluster
        return ray is not None and session_of(ray) == self._session

    def send(
        self, method: str, arguments: Any, answer: Callable[[Any, Exception | None], object]
    ) -> None:
        def answered(future: Any) -> None:
            error = future.exception()
            answer(None if error is not None else future.result(), error)

        getattr(self.actor, method).remote(*arguments).future().add_done_callback(answered)

    def send_last(self, report: Any) -> None:
        self.actor.leave.remote(report)

    def died_error(self, error: BaseException) -> WorkerDiedError:
        found = WorkerDiedError(
            f"coordinator '{self.name}': its actor {why_lost(error)}; stops and failures of"
            " other programs no longer arrive"
        )
        found.__cause__ = error
        return found

    def ended_error(self) -> WorkerDiedError:
        return WorkerDiedError(
            f"coordinator '{self.name}': the connection has ended: ray.shutdown() was called; stops"
            " and failures of other programs no longer arrive"
        )


def place_here() -> str:
    """Return where the caller runs: actor or task, process, node."""
    process = f"process {os.getpid()}"
    ray = connected()
    if ray is None:  # after shutdown, reading Ray's context starts a cluster
        return process
    context = ray.get_runtime_context()
    what = ""
    if context.worker.mode != ray.WORKER_MODE:
        what = "the program in "
    elif context.get_actor_id() is not None:
        what = f"actor {context.get_actor_name() or context.get_actor_id()[:12]}, "
    elif context.get_task_name():
        what = f"task {context.get_task_name()}, "
    return f"{what}{process} on node {context.get_node_id()}"


def task_here() -> tuple[str, str] | None:
    """Return the Ray task that the caller runs in, with its name; ``None`` outside a task."""
    ray = connected()
    if ray is None:
        return None
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return None
    name = context.get_task_name()
    return None if name is None else (context.get_task_id(), name)
