"""Preparing in subinterpreters: one GIL each, in one process. Python has them from 3.14 on.

Each has a thread here that hands it one item at a time. Subinterpreters cannot import NumPy, nor
most other extension modules, so this is for functions of plain Python: parsing, tokenizing.

Where the function of a `prepare` can run: what stands behind each value of its ``where``.
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
from aioqueue.inputs.prepare.call import ItemCall, takes_rng
from aioqueue.inputs.prepare.executor import Executor
from aioqueue.inputs.prepare.job import Job
from aioqueue.inputs.prepare.process_executor import ProcessExecutor
from aioqueue.inputs.prepare.ray_executor import RayExecutor
from aioqueue.inputs.prepare.task_executor import TaskExecutor
from aioqueue.inputs.prepare.thread_executor import ThreadExecutor, TimedThreadExecutor

__all__ = ("PLACES", "ExecutorChoice", "InterpreterExecutor", "checked_place")


_MOST: Final = 256
"""Interpreters that there may be; they are made when they are needed."""


class InterpreterExecutor:
    """Has the function called in subinterpreters, by threads that wait for what it returns.

    Args:
        job: what is to be done.

    Raises:
        InvalidArgumentError: this Python has none, or the function cannot run there.
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
                " takes `rng`; expected a function that returns one example, since neither"
                " generators nor NumPy get into a subinterpreter; or use where='process'"
            )
        if job.item_timeout is not None:
            raise InvalidArgumentError(
                f"item_timeout: got {job.item_timeout!r} with where='interpreter', and what runs in"
                " a subinterpreter cannot be cut short; expected None, or where='process'"
            )
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
    """The examples of an item, which is prepared in the pool."""
    made = pool.submit(call.function, item.value).result()
    return call.examples_of(made)


@dataclass(frozen=True)
class ExecutorChoice:
    """One place where functions can run."""

    executor: Callable[..., Executor]
    """Called with the job; and with ``ray``, where that is an option."""
    name: str
    """What one worker there is called."""
    plural: str
    per_worker: int = 16
    """Items in flight per worker, unless ``max_in_flight`` says otherwise."""
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


PLACES: Final[dict[Where, ExecutorChoice]] = {
    "task": ExecutorChoice(TaskExecutor, "task", "tasks", is_async=True),
    "thread": ExecutorChoice(_of_threads, "thread", "threads"),
    "process": ExecutorChoice(
        ProcessExecutor,
        "process",
        "processes",
        per_worker=128,
        limit_bytes=64 * 2**20,
        most=None,
    ),
    "interpreter": ExecutorChoice(InterpreterExecutor, "interpreter", "interpreters", most=None),
    "ray": ExecutorChoice(
        RayExecutor, "actor", "actors", per_worker=128, limit_bytes=256 * 2**20, is_ray=True
    ),
}
"""By the values of ``where``, but for ``"auto"``, which is one of the first two."""


def checked_place(where: Any, function: Any) -> ExecutorChoice:
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
