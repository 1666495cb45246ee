"""Detect wrong ops of runners, and coroutines and plain code that are mixed up: say what to write.

Python raises for most mistakes of this kind, but it does not know that a queue has another face.
`add_advice` adds that to Python's messages.

Python does not raise for a coroutine that is made and never awaited. ``def op():
queue.enqueue(x)`` with an async queue does nothing, again and again. ``async def op():
queue.enqueue(x)`` does the same and never yields to its event loop. Python's warning is easily
overlooked, so `Unawaited` watches the first call of every op, and refuses such an op.

The interpreter reports an unawaited coroutine in the thread that drops it, by calling
`warnings._warn_unawaited_coroutine`. (PEP 492 requires the warning; CPython looks the function up
in `warnings` each time, so that asyncio's debug mode can replace it.) `Unawaited` replaces that
function while it watches. It passes calls on that do not concern it, and also those of a watched
block that raises, as that exception hides ours. On an interpreter without this function, or one
that collects coroutines later, the warning is all there is.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from types import CodeType, TracebackType
from typing import Any, Final

from aioqueue.base.arguments import (
    EnqueueOp,
    function_name,
    is_coroutine_function,
    makes_several,
    refuse_awaitable,
)
from aioqueue.base.tracebacks import FailureNote, shorten
from aioqueue.coordination.cancellations import running_task
from aioqueue.core.elements.spec import is_iterable
from aioqueue.errors import InvalidArgumentError, add_note, describe_exception, exception_text
from aioqueue.queues.core import QueueFace
from aioqueue.system.locks import holding

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


def say_whose(error: BaseException, worker: str) -> None:
    """Say on a failure whose it is, and make ready what a user reads of it.

    Args:
        error: the failure.
        worker: ``worker`` and its name, or what else has failed.
    """
    add_note(error, FailureNote(f"in {worker}", f"{worker.removeprefix('worker ')} failed"))
    add_advice(error)
    shorten(error)


def described(given: Any) -> str:
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


_HOOK: Final = "_warn_unawaited_coroutine"

_lock = threading.RLock()  # guards the two names below
_watches: dict[object, Unawaited] = {}  # by the watched task, or by the id of the thread
_python_hook: Callable[[Any], object] | None = None


class Unawaited:
    """A context in which the running task or thread must not drop a coroutine unawaited.

    A dropped coroutine is recorded instead of warned about, and `refuse` raises it. If an exception
    leaves the context, Python's warning is issued after all.

    Args:
        what: the name of the watched code, for the message.
        can_await: whether it is a coroutine function, which could have awaited the coroutine.
        at_once: called with the error when the first coroutine is dropped, for code that may run
            for ever; `refuse` then raises nothing. It interrupts the watched code, so it must not
            wait.
    """

    def __init__(
        self,
        what: str,
        *,
        can_await: bool,
        at_once: Callable[[TypeError], object] | None = None,
    ) -> None:
        self._what = what
        self._can_await = can_await
        self._at_once = at_once
        self._error: TypeError | None = None
        self._is_reported = False  # whether `at_once` was called: nothing is recorded any more
        # One coroutine per function, however many are dropped. They must stay alive, because
        # Python's warning shows where each was made.
        self._dropped: dict[CodeType, Any] = {}
        self._key: object = None
        self._is_task = False
        self._depth: int | None = None

    def __enter__(self) -> Unawaited:
        task = running_task()
        self._is_task = task is not None
        self._key = task if task is not None else threading.get_ident()
        if not self._is_task:
            # From here on, a coroutine that this thread makes records its origin. One without an
            # origin belongs to other code: the garbage collector just happens to free it here.
            self._depth = sys.get_coroutine_origin_tracking_depth()
            sys.set_coroutine_origin_tracking_depth(max(1, self._depth))
        holding(_lock, _begin, self._key, self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        hook = holding(_lock, _end, self._key)
        if self._depth is not None:
            sys.set_coroutine_origin_tracking_depth(self._depth)
        dropped, self._dropped = self._dropped, {}
        if error is not None and hook is not None:
            for coroutine in dropped.values():
                try:
                    hook(coroutine)
                except Exception as warning:  # the user's filters turn warnings into errors
                    add_note(error, describe_exception(warning))

    def refuse(self) -> None:
        """Raise the recorded error, if any.

        Raises:
            TypeError: a coroutine was made and not awaited; the message says what to write.
        """
        error, self._error = self._error, None
        if error is None:
            return
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def takes(self, coroutine: Any) -> bool:
        """Record a coroutine that is being dropped, if it is ours; return whether it is."""
        if not self._is_task and coroutine.cr_origin is None:
            return False
        if self._is_reported:
            return True
        error = self._error or TypeError(f"{self._what} {self._describe_call(coroutine)}")
        if self._at_once is None:
            self._error = error
            self._dropped.setdefault(coroutine.cr_code, coroutine)
        else:
            self._is_reported = True
            self._at_once(error)
        return True

    def _describe_call(self, coroutine: Any) -> str:
        called = coroutine.__name__
        owner = None if coroutine.cr_frame is None else coroutine.cr_frame.f_locals.get("self")
        if not isinstance(owner, QueueFace):
            fix = "await it" if self._can_await else "make this a coroutine function and await it"
            return f"called the coroutine function {called!r} and did not await it: {fix}"
        mistake = f"called `{called}` of the async {type(owner).__name__} '{owner.name}'"
        if self._can_await:
            return f"{mistake} without `await`: write `await queue.{called}(...)`"
        return (
            f"is a plain function, but {mistake}, which must be awaited: write `async def` and"
            f" `await queue.{called}(...)` to run it as a task,"
            f" or `queue.sync.{called}(...)` to run it on a thread"
        )


def call_watched(
    what: str, call: Callable[[], Any], at_once: Callable[[TypeError], object] | None = None
) -> None:
    """Call a plain function and check that it neither returns nor drops an awaitable.

    Args:
        what: the function's name, for the message.
        call: the function.
        at_once: see `Unawaited`.

    Raises:
        TypeError: the function returned something to await, or dropped it.
    """
    unawaited = Unawaited(what, can_await=False, at_once=at_once)
    try:
        with unawaited:
            refuse_result(what, call())
        unawaited.refuse()
    finally:
        del call, at_once, unawaited  # a failure's traceback refers to this frame


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


def _begin(key: object, watch: Unawaited) -> None:
    global _python_hook
    _watches[key] = watch
    if _python_hook is None and hasattr(warnings, _HOOK):
        _python_hook = getattr(warnings, _HOOK)
        setattr(warnings, _HOOK, _dropped)


def _end(key: object) -> Callable[[Any], object] | None:
    """Stop watching; return Python's hook, which issues the warning."""
    global _python_hook
    _watches.pop(key, None)
    python_hook = _python_hook
    # Do not restore it if other code has replaced our hook meanwhile: that code may call ours.
    if not _watches and _python_hook is not None and getattr(warnings, _HOOK) is _dropped:
        hook, _python_hook = _python_hook, None
        setattr(warnings, _HOOK, hook)
    return python_hook


def _dropped(coroutine: Any) -> None:
    """Handle the interpreter's report that a coroutine is dropped unawaited: the hook."""
    task = running_task()
    watch = _watches.get(task if task is not None else threading.get_ident())
    hook = _python_hook
    if (watch is None or not watch.takes(coroutine)) and hook is not None:
        hook(coroutine)


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
    if not isinstance(queue, QueueFace):
        raise InvalidArgumentError(f"queue: got {queue!r}; expected a queue of aioqueue")
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
    for enqueue_op in ops:
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
    """Describe what is wrong with the argument ``enqueue_ops``."""
    wrong = [one for one in given if not callable(one)] if isinstance(given, list) else [given]
    results = [described(one) for one in wrong if inspect.iscoroutine(one)]
    if results:
        return f"got {results[0]}; expected the function itself, which is called again and again"
    return f"got {given!r}; expected callables, one per worker"
