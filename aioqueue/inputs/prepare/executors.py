"""The choice of an executor: what each value of ``where`` stands for, and `InterpreterExecutor`.

Subinterpreters have one GIL each, in one process, from Python 3.14 on. Each has a thread here that
passes it one item at a time. They cannot import NumPy, nor most other extension modules. So use
them for functions of plain Python: parsing, tokenizing.
"""

from __future__ import annotations

import concurrent.futures
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, get_args

from aioqueue import InvalidArgumentError
from aioqueue.arguments import EnqueueOp, function_name, is_async
from aioqueue.inputs.core.items import Item
from aioqueue.inputs.options import Where
from aioqueue.inputs.prepare.calls_and_retries import ItemCall, takes_rng
from aioqueue.inputs.prepare.executor import Executor
from aioqueue.inputs.prepare.job import Job

__all__ = ("PLACES", "ExecutorChoice", "InterpreterExecutor", "checked_place")


_MOST: Final = 256
"""The largest number of interpreters; they are made on demand."""


class InterpreterExecutor:
    """Calls the function in subinterpreters, with threads that wait for the results.

    Args:
        job: the job.

    Raises:
        InvalidArgumentError: this Python has no subinterpreters, or they cannot run the function.
    """

    def __init__(self, job: Job) -> None:
        function = job.call.function
        pool_class = getattr(concurrent.futures, "InterpreterPoolExecutor", None)
        if pool_class is None:
            raise InvalidArgumentError(
                "where: got 'interpreter', which needs Python 3.14 or later, and this is"
                f" {sys.version_info.major}.{sys.version_info.minor}; expected 'process' for"
                " functions that hold the GIL"
            )
        if inspect.isgeneratorfunction(function) or takes_rng(function):
            raise InvalidArgumentError(
                f"function: got {function_name(function)!r}, which is a generator function or"
                " takes `rng`; expected a function that returns one example, because generators"
                " and NumPy do not work in a subinterpreter; or use where='process'"
            )
        if job.item_timeout is not None:
            raise InvalidArgumentError(
                f"item_timeout: got {job.item_timeout!r} with where='interpreter'; expected None,"
                " because nothing can cut a subinterpreter short; or use where='process'"
            )
        from aioqueue.inputs.prepare.thread_executor import ThreadExecutor

        self._pool: concurrent.futures.Executor = pool_class(max_workers=_MOST)
        self._threads = ThreadExecutor(job, partial(_examples, self._pool, job.call))

    def enqueue_ops(self) -> list[EnqueueOp]:
        return self._threads.enqueue_ops()

    def stop(self) -> None:
        self._threads.stop()

    def room_came(self) -> None:
        self._threads.room_came()

    def resized(self) -> None:
        self._threads.resized()

    def end(self) -> BaseException | None:
        self._pool.shutdown(wait=False)
        return self._threads.end()


def _examples(pool: concurrent.futures.Executor, call: ItemCall, item: Item) -> Iterable[Any]:
    """Return the examples of an item, prepared in the pool."""
    made = pool.submit(call.function, item.value).result()
    return call.examples_of(made)


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
    from aioqueue.inputs.prepare.task_executor import TaskExecutor

    return TaskExecutor(job)


def _of_threads(job: Job) -> Executor:
    from aioqueue.inputs.prepare.thread_executor import ThreadExecutor, TimedThreadExecutor

    return ThreadExecutor(job) if job.item_timeout is None else TimedThreadExecutor(job)


def _of_processes(job: Job) -> Executor:
    from aioqueue.inputs.prepare.process_executor import ProcessExecutor

    return ProcessExecutor(job)


def _of_ray(job: Job, options: Any) -> Executor:
    from aioqueue.inputs.prepare.ray_executor import RayExecutor

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
