"""Workers outside this program: Ray tasks, by their references, and workers of other programs."""

from __future__ import annotations

import concurrent.futures
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from aioqueue.errors import WorkerDiedError, exception_text, set_cause
from aioqueue.processes.failures import RemoteTraceback
from aioqueue.ray.coordinator_connection import CoordinatorConnection
from aioqueue.workers.executors.ray_cluster import is_loss, required_ray, why_lost

_COLOURS: Final = re.compile(r"\x1b\[\d*m")
"""Terminal colour codes in Ray's texts."""


def is_reference(thing: object) -> bool:
    """Return whether a value is Ray's reference of a task or an actor call."""
    return isinstance(thing, required_ray().ObjectRef)


class RayTask:
    """A Ray task or actor call, with the methods of a future.

    Args:
        ref: Ray's reference of its result.
        connection: to the coordinator's actor, which may know where it runs.
    """

    def __init__(self, ref: Any, connection: CoordinatorConnection) -> None:
        self.key: str = ref.task_id().hex()
        self._ref = ref
        self._connection = connection
        self._lock = threading.RLock()  # guards all below
        self._done = False
        self._cancelled = False
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []
        future = ref.future()
        future.add_done_callback(
            lambda future: connection.call_soon(partial(self._on_done, future))
        )

    def get_name(self) -> str:
        return f"Ray task {self.key[:16]}"

    def done(self) -> bool:
        """Return whether it has ended, with a known outcome."""
        return self._done

    def cancelled(self) -> bool:
        return self._cancelled

    def exception(self) -> BaseException | None:
        """Return its failure with the remote traceback; a `WorkerDiedError` if it was lost."""
        return self._error

    def cancel(self) -> bool:
        if not self._done:
            self._connection.call_soon(self._cancel)
        return not self._done

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call back when it has ended, in another thread; at once if it already has."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback(self)

    def give_up(self) -> None:
        """End it, because the connection to Ray has ended."""
        self._finish(None, cancelled=True)

    def _cancel(self) -> None:
        ray = required_ray()
        try:
            ray.cancel(self._ref)
        except Exception:  # Ray cannot cancel a call of a threaded actor
            return

    def _on_done(self, future: concurrent.futures.Future[Any]) -> None:
        exceptions = required_ray().exceptions
        error = future.exception()
        if error is None:
            self._finish(None)
        elif isinstance(error, exceptions.TaskCancelledError):
            self._finish(None, cancelled=True)
        elif isinstance(error, exceptions.RayTaskError):
            self._finish(_failure_there(error))
        elif is_loss(error):
            self._connection.schedule_request(partial(self._on_lost, error), "place_of", self.key)
        else:
            self._finish(error)

    def _on_lost(self, error: BaseException, where: str | None) -> None:
        # The coordinator's actor knows where it ran if it took part; Ray knows it for actors.
        place = where or _actor_description(error)
        died = WorkerDiedError(f"{self.get_name()}{place and f' ({place})'} {why_lost(error)}")
        set_cause(died, error)
        self._finish(died)

    def _finish(self, error: BaseException | None, *, cancelled: bool = False) -> None:
        with self._lock:
            if self._done:
                return
            self._error, self._cancelled, self._done = error, cancelled, True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)
        self._connection.schedule_report()


def _failure_there(error: Any) -> BaseException:
    """Return the exception of a task, with its remote traceback and where it was raised."""
    text = exception_text(error)
    cause = (
        error.cause
        if isinstance(error.cause, Exception)
        else RuntimeError(exception_text(error.cause))
    )
    # Ray's text starts with ``ray::Class.method() (pid=1, ip=127.0.0.1, actor_id=2)``.
    where = next((line for line in text.splitlines() if "ray::" in line), "a Ray task")
    set_cause(cause, RemoteTraceback(text, f"in {_COLOURS.sub('', where).strip()}"))
    return cause


def _actor_description(error: BaseException) -> str:
    """Return what Ray says of a lost actor: its class, name and process."""
    lines = [line.strip() for line in str(error).splitlines()]
    prefixes = ("class_name:", "actor_id:", "pid:", "name:", "ip:")
    return ", ".join(line for line in lines if line.startswith(prefixes))
