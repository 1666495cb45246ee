"""Workers that are not in this program: Ray's tasks, by their references; and those of others."""

from __future__ import annotations

import concurrent.futures
import re
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from aioqueue.errors import WorkerDiedError, exception_text, set_cause
from aioqueue.inputs.prepare.ray_cluster import is_loss, required_ray, why_lost
from aioqueue.processes.remote_failures import RemoteTraceback
from aioqueue.ray.link import Link
from aioqueue.ray.members import ActiveWorker

__all__ = ("Elsewhere", "RayTask", "await_elsewhere", "is_reference")

_COLOURS: Final = re.compile(r"\x1b\[\d*m")
"""What Ray puts into its texts for terminals."""


def is_reference(thing: object) -> bool:
    """Whether it is Ray's, of what a task or a method of an actor will return."""
    return isinstance(thing, required_ray().ObjectRef)


class RayTask:
    """A task of Ray, or a call of an actor's method, with the methods of a future.

    Args:
        ref: Ray's reference of what it returns.
        link: to the actor of the coordinator, which may know where it runs.
    """

    def __init__(self, ref: Any, link: Link) -> None:
        self.key: str = ref.task_id().hex()
        self._ref = ref
        self._link = link
        self._lock = threading.RLock()  # guards all below
        self._done = False
        self._cancelled = False
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []
        future = ref.future()
        future.add_done_callback(lambda future: link.soon(partial(self._came, future)))

    def get_name(self) -> str:
        """What messages call it."""
        return f"Ray task {self.key[:16]}"

    def done(self) -> bool:
        """Whether it has ended, and what it has ended by is known."""
        return self._done

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled

    def exception(self) -> BaseException | None:
        """What it has failed by, with its traceback there; a `WorkerDiedError` if it was lost."""
        return self._error

    def cancel(self) -> bool:
        """Ask Ray to cancel it."""
        if not self._done:
            self._link.soon(self._cancel)
        return not self._done

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call back when it has ended, in another thread; now, if it has."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback(self)

    def give_up(self) -> None:
        """The connection to Ray has ended: nothing more will be heard of it."""
        self._finish(None, cancelled=True)

    def _cancel(self) -> None:
        ray = required_ray()
        try:
            ray.cancel(self._ref)
        except Exception:  # a call of an actor that runs in threads cannot be
            return

    def _came(self, future: concurrent.futures.Future[Any]) -> None:
        exceptions = required_ray().exceptions
        error = future.exception()
        if error is None:
            self._finish(None)
        elif isinstance(error, exceptions.TaskCancelledError):
            self._finish(None, cancelled=True)
        elif isinstance(error, exceptions.RayTaskError):
            self._finish(_failure_there(error))
        elif is_loss(error):
            self._link.ask_soon(partial(self._is_lost, error), "who", self.key)
        else:
            self._finish(error)

    def _is_lost(self, error: BaseException, where: str | None) -> None:
        # Where it ran is known to the actor, if it has taken part there; or to Ray, if it was one.
        told = where or _said_of_actor(error)
        died = WorkerDiedError(f"{self.get_name()}{told and f' ({told})'} {why_lost(error)}")
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
        self._link.tell_soon()


class Elsewhere(concurrent.futures.Future[None]):
    """A worker of another program, as long as somebody waits for it here.

    Args:
        working: what is known of it.
    """

    def __init__(self, working: ActiveWorker) -> None:
        super().__init__()
        self._working = working

    def get_name(self) -> str:
        """What messages call it."""
        return self._working.name

    @property
    def key(self) -> str:
        """Tells it from all others."""
        return self._working.key

    def cancel(self) -> bool:
        """It can be cancelled by its own program only."""
        return False

    def end(self) -> None:
        """It has ended, or nothing more will be heard of it."""
        if not self.done():
            self.set_result(None)


def await_elsewhere(link: Link, workers: Iterable[Elsewhere], is_over: Callable[[], bool]) -> None:
    """End workers of other programs when those say so; or when nothing more is heard of them.

    Args:
        link: to the actor.
        workers: which.
        is_over: whether nobody waits for them any more.
    """
    left = {worker.key: worker for worker in workers}
    if not left or is_over():
        return

    def heard(keys: list[str] | None) -> None:
        for key in list(left) if keys is None else keys:
            left.pop(key).end()
        await_elsewhere(link, left.values(), is_over)

    link.ask_soon(heard, "ended", list(left))


def _failure_there(error: Any) -> BaseException:
    """What a task has raised, with the traceback that it had, and where that was."""
    text = exception_text(error)
    cause = (
        error.cause
        if isinstance(error.cause, Exception)
        else RuntimeError(exception_text(error.cause))
    )
    # Ray begins with a line for it: ``ray::Class.method() (pid=1, ip=127.0.0.1, actor_id=2)``.
    where = next((line for line in text.splitlines() if "ray::" in line), "a Ray task")
    set_cause(cause, RemoteTraceback(text, f"in {_COLOURS.sub('', where).strip()}"))
    return cause


def _said_of_actor(error: BaseException) -> str:
    """What Ray says of an actor that is lost: its class, its name, its process."""
    lines = [line.strip() for line in str(error).splitlines()]
    wanted = ("class_name:", "actor_id:", "pid:", "name:", "ip:")
    return ", ".join(line for line in lines if line.startswith(wanted))
