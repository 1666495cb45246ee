"""Preparing in subinterpreters: one GIL each, in one process. Python has them from 3.14 on.

Each has a thread here that hands it one item at a time. Subinterpreters cannot import NumPy, nor
most other extension modules, so this is for functions of plain Python: parsing, tokenizing.
"""

from __future__ import annotations

import concurrent.futures
import inspect
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from aioqueue import InvalidArgumentError
from aioqueue.functions import EnqueueOp, function_name
from aioqueue.inputs.prepare.call import Call, takes_rng
from aioqueue.inputs.prepare.job import Job
from aioqueue.inputs.prepare.threads import ThreadExecutor
from aioqueue.inputs.sources.item import Item

__all__ = ("InterpreterExecutor",)

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


def _examples(pool: concurrent.futures.Executor, call: Call, item: Item) -> Iterable[Any]:
    """The examples of an item, which is prepared in the pool."""
    made = pool.submit(call.function, item.value).result()
    return call.examples_of(made)
