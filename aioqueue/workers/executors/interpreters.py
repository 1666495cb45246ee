"""Workers in subinterpreters."""

from __future__ import annotations

import concurrent.futures
import inspect
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Final

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import EnqueueOp, function_name
from aioqueue.items.item import Item
from aioqueue.workers.calls import ItemCall, takes_rng
from aioqueue.workers.executor import Executor
from aioqueue.workers.executors.threads import ThreadExecutor
from aioqueue.workers.job import Job

_MOST_INTERPRETERS: Final = 256
"""The pool makes them on demand, so this only has to be enough for any number of workers."""


class InterpreterExecutor(Executor):
    """Calls the function in subinterpreters, with threads that wait for the results.

    Args:
        job: the job.

    Raises:
        InvalidArgumentError: this Python has no subinterpreters, or they cannot run the function.
    """

    where = "interpreter"
    worker_name = "interpreter"
    worker_plural = "interpreters"
    per_worker = 16
    limit_bytes: ClassVar[int | None] = None
    most_workers: ClassVar[int | None] = None
    is_async = False
    is_timed: ClassVar[bool | None] = None
    takes_ray = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
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
        self._pool: concurrent.futures.Executor = pool_class(max_workers=_MOST_INTERPRETERS)
        self._threads = ThreadExecutor(job, partial(_examples, self._pool, job.call))

    def enqueue_ops(self) -> list[EnqueueOp]:
        return self._threads.enqueue_ops()

    def stop(self) -> None:
        self._threads.stop()

    def notify_room(self) -> None:
        self._threads.notify_room()

    def notify_resize(self) -> None:
        self._threads.notify_resize()

    def end(self) -> BaseException | None:
        self._pool.shutdown(wait=False)
        return self._threads.end()


def _examples(pool: concurrent.futures.Executor, call: ItemCall, item: Item) -> Iterable[Any]:
    made = pool.submit(call.function, item.value).result()
    return call.examples_of(made)
