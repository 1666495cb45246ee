"""Where the function of a `prepare` can run: what stands behind each value of its ``where``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, get_args

from aioqueue import InvalidArgumentError
from aioqueue.functions import function_name, is_async
from aioqueue.inputs.options import Where
from aioqueue.inputs.prepare.executor import Executor
from aioqueue.inputs.prepare.interpreters import InterpreterExecutor
from aioqueue.inputs.prepare.job import Job
from aioqueue.inputs.prepare.overtime import TimedThreadExecutor
from aioqueue.inputs.prepare.processes.parent import ProcessExecutor
from aioqueue.inputs.prepare.ray.executor import RayExecutor
from aioqueue.inputs.prepare.tasks import TaskExecutor
from aioqueue.inputs.prepare.threads import ThreadExecutor

__all__ = ("PLACES", "Place", "checked_place")


@dataclass(frozen=True)
class Place:
    """One place where functions can run."""

    executor: Callable[..., Executor]
    """Called with the job; and with ``ray``, where that is an option."""
    name: str
    """What one worker there is called."""
    plural: str
    per_worker: int = 16
    """Items in flight per worker, unless ``limit`` says otherwise."""
    limit_bytes: int | None = None
    """Bytes in flight, unless ``limit_bytes`` says otherwise."""
    most: int | None = 64
    """Workers that tuning starts there, at most; ``None``: as many as there are cores."""
    is_async: bool = False
    """Whether it runs coroutine functions, or else plain ones."""
    is_ray: bool = False
    """Whether the option ``ray`` says something there."""

    def counted(self, count: int) -> str:
        """So many workers, in words."""
        return f"{count} {self.plural}" if count > 1 else f"{count} {self.name}"


def _of_threads(job: Job) -> Executor:
    return ThreadExecutor(job) if job.item_timeout is None else TimedThreadExecutor(job)


PLACES: Final[dict[Where, Place]] = {
    "task": Place(TaskExecutor, "task", "tasks", is_async=True),
    "thread": Place(_of_threads, "thread", "threads"),
    "process": Place(
        ProcessExecutor,
        "process",
        "processes",
        per_worker=128,
        limit_bytes=64 * 2**20,
        most=None,
    ),
    "interpreter": Place(InterpreterExecutor, "interpreter", "interpreters", most=None),
    "ray": Place(
        RayExecutor, "actor", "actors", per_worker=128, limit_bytes=256 * 2**20, is_ray=True
    ),
}
"""By the values of ``where``, but for ``"auto"``, which is one of the first two."""


def checked_place(where: Any, function: Any) -> Place:
    """Look up where a function is to run.

    Raises:
        InvalidArgumentError: there is no such place, or it does not run such functions.
    """
    if not callable(function):
        raise InvalidArgumentError(f"function: got {function!r}; expected a callable")
    names = get_args(Where)
    if where not in names:
        *most, last = map(repr, names)
        raise InvalidArgumentError(f"where: got {where!r}; expected {', '.join(most)} or {last}")
    if where == "auto":
        where = "task" if is_async(function) else "thread"
    place = PLACES[where]
    if place.is_async is not is_async(function):
        what = "a coroutine function" if place.is_async else "a plain function"
        raise InvalidArgumentError(
            f"function: got {function_name(function)!r} with where={where!r}; expected {what}, or"
            " where='auto'"
        )
    return place
