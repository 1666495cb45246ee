"""Detect wrong ops of runners, and coroutines and plain code that are mixed up: say what to write.

Python raises for most mistakes of this kind, but it does not know that a queue has another face.
`add_advice` adds that to Python's messages.

Python does not raise for a coroutine that is made and never awaited. An op that returns one, as
``lambda: queue.enqueue(x)`` with an async queue does, would do nothing, again and again:
`refuse_result` and `refuse_returned_coroutine` refuse it at its first call. An op that drops a
coroutine, as ``def op(): queue.enqueue(x)`` does, is reported by Python's own warning alone:
only private functions of the interpreter could tell which op it was.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from aioqueue.base.arguments import (
    EnqueueOp,
    function_name,
    is_coroutine_function,
    makes_several,
    refuse_awaitable,
)
from aioqueue.base.tracebacks import FailureNote, shorten
from aioqueue.core.elements.values import is_iterable
from aioqueue.errors import InvalidArgumentError, add_note, exception_text
from aioqueue.queues.queue_core import QueueFace

_QUEUE: Final = r"'?(FIFO|RandomShuffle|PaddingFIFO|Priority)Queue'?"

_ADVICE: Final = (
    (
        r"can't be (used in 'await' expression|awaited)",
        "if this is the result of a method of a blocking queue or coordinator: those are not"
        " awaited, and block their thread; write `await queue.aio.dequeue()`, with the async face",
    ),
    (
        rf"'async for' requires an object with __aiter__ method, got ({_QUEUE}|Batches)$",
        "a queue of aioqueue.sync is for plain loops; write `async for element in queue.aio`",
    ),
    (
        rf"({_QUEUE}|'AsyncBatches') object is not (iterable|an iterator)",
        "an async queue is for coroutines; write `async for element in queue` there,"
        " or `for element in queue.sync` in a thread",
    ),
)
"""Patterns of Python's messages, and what to write instead."""


def add_advice(error: BaseException) -> None:
    """Add a note to Python's exception where the two faces are mixed up: what to write instead.

    A note rather than methods that raise a better error: any ``__aiter__`` would turn a blocking
    queue into an async iterable for code that checks.
    """
    if type(error) is TypeError:
        for pattern, advice in _ADVICE:
            if re.search(pattern, exception_text(error)):
                add_note(error, advice)


def name_failed_worker(error: BaseException, worker: str) -> None:
    """Note on a failure which worker it ended, add advice, and shorten its traceback.

    Args:
        error: the failure.
        worker: ``worker`` and its name, or what else has failed.
    """
    add_note(error, FailureNote(f"in {worker}", f"{worker.removeprefix('worker ')} failed"))
    add_advice(error)
    shorten(error)


def describe_argument(given: Any) -> str:
    """Describe an argument. A coroutine is closed, since it will not be awaited."""
    if not inspect.iscoroutine(given):
        return repr(given)
    given.close()
    return f"the coroutine that {given.__name__}() has returned"


def refuse_generators(target: Any) -> None:
    """Refuse a generator function as a looper's target: calling it runs none of its code.

    Raises:
        InvalidArgumentError: it is a generator function, plain or async.
    """
    if makes_several(target):
        raise InvalidArgumentError(
            f"target: got the generator function {function_name(target)!r}: calling it runs none"
            " of its code; expected a function that does one step per call"
        )


def cannot_start(worker: Any, parameter: str, *, in_threads: bool) -> InvalidArgumentError:
    """Make the error of `Coordinator.start` for an object that it cannot start.

    Args:
        worker: the object. A coroutine is closed, since it will not be awaited.
        parameter: the name of the parameter.
        in_threads: whether the coordinator is that of `aioqueue.sync`.
    """
    expected = (
        "an aioqueue.sync.QueueRunner" if in_threads else "an aioqueue.QueueRunner or LooperTask"
    )
    got = describe_argument(worker)
    advice = _advice(worker, in_threads=in_threads)
    return InvalidArgumentError(f"{parameter}: got {got}; expected {expected}{advice}")


def _advice(worker: Any, *, in_threads: bool) -> str:
    package = "aioqueue.sync" if in_threads else "aioqueue"
    looper = (
        "`sync.LooperThread.loop(coord, seconds, function)`"
        if in_threads
        else "`coord.start(aioqueue.LooperTask(seconds, function))`"
    )
    if _is_looper_thread(worker):
        starts_itself = ": a LooperThread starts itself, with"
        if in_threads:
            return f"{starts_itself} {looper}"
        return f": write {looper}; a LooperThread is for `aioqueue.sync`"
    if isinstance(worker, threading.Thread):
        return ": start a thread with `thread.start()`, then call `coord.register(thread)`"
    if hasattr(worker, "add_done_callback"):
        return (
            ": a task or future is running already; `coord.register(task)` makes join wait for it"
        )
    if "LooperTask" in (getattr(worker, "__name__", ""), type(worker).__name__):
        return f": write {looper}"
    if isinstance(worker, type) and worker.__name__ == "QueueRunner":
        return f": this is a class; write `coord.start({package}.QueueRunner(queue, [function]))`"
    if hasattr(worker, "enqueue_ops"):
        other = "coord.aio" if in_threads else "coord.sync"
        return (
            f": this one is for the other kind of coordinator; write {package}.QueueRunner,"
            f" or `{other}.start(runner)`"
        )
    if callable(worker) or inspect.iscoroutine(worker):
        return (
            f": write `coord.start({package}.QueueRunner(queue, [function]))` if the function"
            f" enqueues, or {looper} to call it again and again"
        )
    return ""


def _is_looper_thread(worker: Any) -> bool:
    kind = worker if isinstance(worker, type) else type(worker)
    return issubclass(kind, threading.Thread) and hasattr(kind, "run_loop")


def refuse_result(what: str, result: object) -> None:
    """Refuse the result of a plain op if it must be awaited.

    Raises:
        TypeError: the result must be awaited.
    """
    refuse_awaitable(
        what,
        result,
        "make it a coroutine function (`async def`) to run it as a task, or enqueue with"
        " `queue.sync` to run it on a thread",
    )


def refuse_returned_coroutine(what: str, result: object) -> None:
    """Refuse the result of an op that is a coroutine function if it is a coroutine, too.

    Tasks and futures pass: they run whether or not somebody awaits them.

    Raises:
        TypeError: it is a coroutine, which nobody awaits; it is closed.
    """
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            f"{what} returned the coroutine of {result.__name__!r}, which nobody awaits: await it"
            " in the op"
        )


def checked_ops(
    enqueue_ops: Iterable[EnqueueOp] | EnqueueOp,
    queue: Any,
    source: Any,
    types: Any,
    close_op: Callable[[], object] | None,
    cancel_op: Callable[[], object] | None,
) -> list[EnqueueOp]:
    """Check the arguments of a runner; return its enqueue ops as a list, one per worker.

    Raises:
        InvalidArgumentError: one of them is not as `RUNNER_ARGUMENTS` says.
    """
    if queue is not None and not isinstance(queue, QueueFace):
        raise InvalidArgumentError(
            f"queue: got {queue!r}; expected a queue of aioqueue, or None if the ops fill none"
        )
    if source is not None and not isinstance(source, QueueFace):
        raise InvalidArgumentError(f"source: got {source!r}; expected a queue of aioqueue, or None")
    ops: list[EnqueueOp] = []
    if callable(enqueue_ops):
        ops = [enqueue_ops]
    elif is_iterable(enqueue_ops):
        ops = list(enqueue_ops)
    if not ops or not all(map(callable, ops)):
        raise InvalidArgumentError(f"enqueue_ops: {_no_ops(ops or enqueue_ops)}")
    if not isinstance(types, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in types
    ):
        raise InvalidArgumentError(
            f"queue_closed_exception_types: got {types!r}; expected a tuple of exception classes"
        )
    for enqueue_op in {id(op): op for op in ops}.values():  # many workers often have one
        if inspect.isgeneratorfunction(enqueue_op) or inspect.isasyncgenfunction(enqueue_op):
            raise InvalidArgumentError(
                f"enqueue_ops: got the generator function {function_name(enqueue_op)!r};"
                " expected a function that makes and enqueues one element per call"
            )
    for what, op in (("close_op", close_op), ("cancel_op", cancel_op)):
        if op is not None and (not callable(op) or is_coroutine_function(op)):
            raise InvalidArgumentError(
                f"{what}: got {op!r}; expected a plain function without arguments, or None"
            )
    return ops


def _no_ops(given: Any) -> str:
    wrong = [one for one in given if not callable(one)] if isinstance(given, list) else [given]
    results = [describe_argument(one) for one in wrong if inspect.iscoroutine(one)]
    if results:
        return f"got {results[0]}; expected the function itself, which is called again and again"
    return f"got {given!r}; expected callables, one per worker"
