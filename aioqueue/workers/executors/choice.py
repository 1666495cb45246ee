"""Which executor runs the workers of a `prepare`: by `where`, and by the kind of function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, get_args

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import function_name, is_async
from aioqueue.workers.executor import Executor
from aioqueue.workers.executors.interpreters import InterpreterExecutor
from aioqueue.workers.executors.threads import ThreadExecutor
from aioqueue.workers.executors.timed_threads import TimedThreadExecutor
from aioqueue.workers.job import Job
from aioqueue.workers.options import Where


@dataclass(frozen=True)
class ExecutorChoice:
    """One kind of worker that functions can run in."""

    executor: Callable[..., Executor]
    """Makes the executor for the job, and for the options ``ray`` if it takes them."""
    name: str
    """The name of one worker."""
    plural: str
    per_worker: int = 16
    """The default of ``max_in_flight``, per worker."""
    limit_bytes: int | None = None
    """The default of ``limit_bytes``."""
    most: int | None = 64
    """The most workers that tuning starts; ``None``: the number of cores."""
    is_async: bool = False
    """Whether it runs coroutine functions, rather than plain ones."""
    is_ray: bool = False
    """Whether it takes the option ``ray``."""

    def counted(self, count: int) -> str:
        """Return a number of workers, in words."""
        return f"{count} {self.plural}" if count > 1 else f"{count} {self.name}"


# Each executor is imported when a job needs it: those of processes and Ray bring much along.
def _of_tasks(job: Job) -> Executor:
    from aioqueue.workers.executors.tasks import TaskExecutor

    return TaskExecutor(job)


def _of_threads(job: Job) -> Executor:
    return ThreadExecutor(job) if job.item_timeout is None else TimedThreadExecutor(job)


def _of_processes(job: Job) -> Executor:
    from aioqueue.workers.executors.processes import ProcessExecutor

    return ProcessExecutor(job)


def _of_ray(job: Job, options: Any) -> Executor:
    from aioqueue.workers.executors.ray import RayExecutor

    return RayExecutor(job, options)


PLACES: Final[dict[Where, ExecutorChoice]] = {
    "task": ExecutorChoice(_of_tasks, "task", "tasks", is_async=True),
    "thread": ExecutorChoice(_of_threads, "thread", "threads"),
    "process": ExecutorChoice(
        _of_processes,
        "process",
        "processes",
        per_worker=128,
        limit_bytes=64 * 2**20,
        most=None,
    ),
    "interpreter": ExecutorChoice(InterpreterExecutor, "interpreter", "interpreters", most=None),
    "ray": ExecutorChoice(
        _of_ray, "actor", "actors", per_worker=128, limit_bytes=256 * 2**20, is_ray=True
    ),
}
"""The values of ``where``, except for ``"auto"``, which is one of the first two."""


def checked_place(where: Any, function: Any) -> ExecutorChoice:
    """Look up the kind of worker that a function is to run in.

    Raises:
        InvalidArgumentError: there is no such kind, or it does not run such functions.
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
