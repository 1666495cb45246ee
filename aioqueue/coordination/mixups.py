"""Coroutines and plain code mixed up: what to write instead.

Python refuses most of it by itself, but does not know of the other face, which a newcomer has not
met yet.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

from aioqueue.errors import InvalidArgumentError, add_note, said
from aioqueue.functions import function_name, makes_several

__all__ = ("add_advice", "cannot_start", "described", "refusal", "refuse_generators")

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
"""What Python says, and what to write instead."""


def add_advice(error: BaseException) -> None:
    """Say on an exception that Python raises where the two faces are mixed up what to write.

    A note, and no methods that raise something better: a queue with an ``__aiter__`` of any kind is
    an async iterable to whoever asks.
    """
    if type(error) is TypeError:
        for pattern, advice in _ADVICE:
            if re.search(pattern, said(error)):
                add_note(error, advice)


def refusal(message: str) -> Callable[..., NoReturn]:
    """A method that says that it is not there, and what to write instead."""

    def refuse(self: object, *arguments: object) -> NoReturn:
        raise TypeError(message)

    return refuse


def described(given: Any) -> str:
    """What was given as an argument. A coroutine is closed, as nobody is going to await it."""
    if not inspect.iscoroutine(given):
        return repr(given)
    given.close()
    return f"the coroutine that the call {given.__name__}() has returned"


def refuse_generators(target: Any) -> None:
    """Refuse a looper's target of which a call runs nothing.

    Raises:
        InvalidArgumentError: it is a generator function of either kind.
    """
    if makes_several(target):
        raise InvalidArgumentError(
            f"target: got the generator function {function_name(target)!r}, of which a call runs"
            " nothing; expected a function that does one step per call"
        )


def cannot_start(worker: Any, parameter: str, *, in_threads: bool) -> InvalidArgumentError:
    """The error of a `Coordinator.start` that was given something it cannot start.

    Args:
        worker: what it was given. A coroutine is closed: nobody will await it.
        parameter: the name of that parameter.
        in_threads: whether it is the coordinator of `aioqueue.sync`.
    """
    expected = (
        "an aioqueue.sync.QueueRunner" if in_threads else "an aioqueue.QueueRunner or LooperTask"
    )
    got = described(worker)
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
        return ": start a thread by itself, `thread.start()`, and then `coord.register(thread)`"
    if hasattr(worker, "add_done_callback"):
        return ": a task or future runs already; `coord.register(task)` lets the join wait for it"
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
