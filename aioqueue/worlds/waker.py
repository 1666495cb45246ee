"""The base of every way of waiting: the caller that waits, its waker, and the delivery of wakes.

A *waker* wakes the callers of one world: the tasks of one asyncio loop, the tasks of one trio run,
or one blocked thread. When an attempt ends, the machine notifies its waker (`Waker.notify`, under
the machine's lock, hence in the order of the grants) and returns the notified wakers. After the
release of the lock, `deliver` calls `Waker.wake` once for all attempts that ended in the move. So a
wake from another thread costs one call into the event loop, however many callers it wakes.

A blocked thread has a waker of its own for every wait, with a lock that is taken; the wake releases
it. The machine's lock decides whether a timeout or a grant came first, so grant and commit are one
step. The main thread is the exception: Ctrl-C can raise in it between the two, so they are two
steps there. `CallbackWaker` serves code without a thread or task to wait in.

The *world* of a caller is an event loop of asyncio, a trio run, or neither. `Owner` is the thread
or task that an attempt belongs to, recorded when it begins to wait.

In a notebook the kernel's event loop runs in the thread that executes the cells. asyncio cannot
tell a cell's plain code from a coroutine; blocking stops the loop in both cases. In a plain cell
that is what the user wants: the kernel itself waits for the cell's end before it does anything
else, `time.sleep` would do the same, and an interrupt reaches the cell as a `KeyboardInterrupt`. A
coroutine shares the loop with others and must not block it. Nor may a cell that contains an
``await``: it runs as a task, and an interrupt only asks the loop to cancel that task, which cannot
happen while the loop is blocked.

The call stack tells them apart. From the inside outwards, one of two comes first: a coroutine or
the code that runs a loop's callbacks; or the function with which a notebook runs plain cells, and
that alone (notebooks are coroutines themselves). This sees through functions, generators, magics,
and nested loops. In a notebook that is built otherwise nothing is found, and a call is refused as
in any coroutine.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from contextvars import ContextVar
from time import sleep
from types import FrameType
from typing import Any, Final, Protocol, TypeVar

from aioqueue.core.attempts import DONE, Attempt, Waker
from aioqueue.system.locks import OwnedLock

running_loop: Final[Callable[[], asyncio.AbstractEventLoop | None]] = asyncio._get_running_loop
"""The event loop of asyncio that runs in the calling thread, or ``None``.

`asyncio.get_running_loop` raises if no loop runs. In threads that is the usual case, and catching
it would cost time in every call. This function has an underscore because it is meant for authors of
event loops, but ``asyncio.__all__`` exports it, and its source documents it.
"""

_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
"""Flags of code that a loop runs step by step."""

_RUNNERS: Final = {
    # Jupyter, JupyterLab, VS Code, Colab, nbconvert; and IPython in a terminal. A cell with an
    # ``await`` is run by another runner, or as a task by the kernel.
    "_pseudo_sync_runner": ("IPython.core.async_helpers", True),
    # Cells that are coroutines are tasks, which do not run inside this function.
    "evaluate_interruptible": ("marimo._runtime.runner.cell_runner", True),
    # The functions with which loops run their callbacks.
    "_run": ("asyncio.events", False),
    "unrolled_run": ("trio._core._run", False),
}
"""A function that runs user code: its module, and whether that code is a plain cell."""

_NOTEBOOKS: Final = frozenset(("IPython", "marimo"))
"""The packages of notebooks. Their own coroutines are between a cell and the code that runs it."""


def in_event_loop() -> bool:
    """Return whether blocking this thread would block a running event loop.

    In the plain code of a notebook's cell it is false, because that may block the loop.
    """
    if running_loop() is None and not in_trio():
        return False
    if sys.modules.keys().isdisjoint(_NOTEBOOKS):
        return True
    return not _in_plain_cell(sys._getframe())  # ours, or the caller's if this file is compiled


def _in_plain_cell(frame: FrameType | None) -> bool:
    """Return whether a call comes from a plain cell, with no coroutine or callback in between."""
    while frame is not None:  # from the call outwards: the first frame of either kind decides
        code = frame.f_code
        module, runs_cells = _RUNNERS.get(code.co_name, (None, False))
        if module is not None and module == _module(frame):
            return runs_cells
        if code.co_flags & _ASYNC and _module(frame).split(".")[0] not in _NOTEBOOKS:
            return False
        frame = frame.f_back
    return False


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def in_task() -> bool:
    """Return whether a task of asyncio runs in this thread: no callback, and no sleeping loop.

    A task of trio does not count: a signal handler that interrupts it must not wake that same task.
    """
    return running_loop() is not None and asyncio.current_task() is not None


def loaded_trio() -> Any:
    """Return the trio package if it has been imported; this never imports it."""
    trio = sys.modules.get("trio")
    # Another thread may be importing it just now, so no run of it exists yet.
    return trio if hasattr(trio, "lowlevel") and hasattr(trio, "Cancelled") else None


def in_trio() -> bool:
    # Checked before asyncio, because a trio run may be a guest of an asyncio loop.
    if "trio" not in sys.modules:
        return False
    trio = loaded_trio()
    return trio is not None and trio.lowlevel.in_trio_run()


current_worker: Final[ContextVar[Any]] = ContextVar("aioqueue_worker", default=None)
"""The scope of the worker that the running code belongs to, if its worker is a task. The tasks that
it starts inherit it, and the threads that it waits for."""

current_loops: Final[ContextVar[tuple[object, ...]]] = ContextVar("aioqueue_loops", default=())
"""The loops through pipelines whose workers the running code belongs to, the outermost first. All
that these workers start inherits it. `aioqueue.queues.leases` says what for."""


class Owner:
    """A thread or task, with its name. It is not kept alive.

    Args:
        thing: a `threading.Thread`, or a task of asyncio or trio.

    Attributes:
        worker: the worker that the code which made it belongs to (`current_worker`).
        reference: returns the thread or task; ``None`` after it was collected. (`thing` does the
            same; a caller that compares it each time it waits saves the call of a property.)
    """

    __slots__ = ("_name", "reference", "worker")

    def __init__(self, thing: Any) -> None:
        self.reference: weakref.ref[Any] = weakref.ref(thing)
        self.worker: Any = current_worker.get()
        self._name = _name(thing)

    @property
    def name(self) -> str:
        """The name of the thread or task; after its end, the name that was recorded."""
        thing = self.reference()
        return self._name if thing is None else _name(thing)

    @property
    def thing(self) -> Any:
        """The thread or task; ``None`` after it was collected."""
        return self.reference()

    @property
    def key(self) -> int:
        """An identifier, unique among living threads and tasks; 0 after it was collected."""
        thing = self.reference()
        return 0 if thing is None else id(thing)

    def has_ended(self) -> bool:
        """Whether it will never run again."""
        thing = self.reference()
        if thing is None:
            return True
        if isinstance(thing, threading.Thread):
            return not thing.is_alive()
        done = getattr(thing, "done", None)
        if done is not None:
            return bool(done())
        coroutine = getattr(thing, "coro", None)  # in trio, only a task's coroutine shows its end
        return coroutine is not None and getattr(coroutine, "cr_frame", coroutine) is None


class LoopOwner(Owner):
    """An owner that may belong to a loop through a pipeline.

    Args:
        thing: as for `Owner`.

    Attributes:
        loops: those that it works for (`current_loops`).
        thread: returns the thread that runs it; ``None`` after that was collected.
    """

    __slots__ = ("loops", "thread")

    def __init__(self, thing: Any) -> None:
        super().__init__(thing)
        self.loops: tuple[object, ...] = current_loops.get()
        self.thread: weakref.ref[Any] = weakref.ref(threading.current_thread())

    def is_current_owner(self, runner: object) -> bool:
        """Return whether it describes the code that runs now, in this thread or task."""
        is_same = self.reference() is runner and self.worker is current_worker.get()
        return is_same and self.loops is current_loops.get()


def _name(thing: Any) -> str:
    name = getattr(thing, "name", None)
    return str(thing.get_name() if name is None else name)  # asyncio's tasks have a method for it


_BACKOFF_SECONDS: Final = 2e-5  # seconds: long enough for another thread to get the interpreter
_BACKOFF_TRIES: Final = 100


class AsyncWaker(Waker, Protocol):
    """A waker whose callers are tasks. Only its own thread calls its methods.

    Attributes:
        next_round: await it to let the event loop run for one round; ``None`` if a caller must not
            stand by for what another task may bring in that round.
    """

    next_round: Awaitable[None] | None

    def allowance(self) -> int:
        """Return how many elements tasks may now move without waiting before one must ask."""

    def renew_budget(self) -> int:
        """Return the same after a call that has let other tasks run."""

    def spend(self, n: int) -> bool:
        """Count a call; return whether it must let other tasks run after its move.

        Args:
            n: how many elements it moves.
        """

    def await_first(self) -> Awaitable[None] | None:
        """Return what a call that is due must await, at once, before it moves anything: a
        cancellation is delivered there. Nearly always ``None`` in asyncio."""

    async def yield_shielded(self) -> None:
        """Let other tasks run, after a move that cannot be undone.

        A cancellation that comes meanwhile is delivered at the next await of the task.
        """

    async def yield_cancellable(self) -> None:
        """Let other tasks run, after a move that the caller undoes if this raises."""

    async def pause(self, n: int) -> None:
        """Let other tasks run, and deliver a cancellation: always, or from time to time. For calls
        that change nothing.

        Args:
            n: as how many elements the call counts.
        """

    def wait(self, attempt: Attempt) -> Awaitable[None]:
        """Sleep until the attempt is no longer pending. Await the result at once."""

    async def wait_shielded(self, attempt: Attempt) -> None:
        """Sleep until the attempt is no longer pending, whatever cancels the task meanwhile.

        Such a cancellation is raised at the end.
        """

    def cancellations(self) -> int:
        """Return how often the running task was cancelled before this call of ours."""

    def defer(self, error: BaseException, asked: int) -> bool:
        """Have a cancellation delivered at the task's next await, since the call has taken effect.

        Args:
            error: what the wait of the call has raised.
            asked: the `cancellations` when the call began.

        Returns:
            Whether it is deferred. If not, raise the error: it is no cancellation, or nobody could
            repeat it.
        """

    def has_woken(self, attempt: Attempt) -> bool:
        """Return whether it has woken the owner of an attempt, which has not waited yet."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Callable[[], object]:
        """Call back after some seconds; return a function that cancels this."""

    def is_current(self) -> bool:
        """Return whether the running task belongs to this waker."""

    def runner(self) -> Any:
        """Return the running task; in code of the loop itself, the thread."""


class _Enterable(Protocol):
    """An object with a lock that knows its owner."""

    def is_entered_here(self) -> bool:
        """Return whether the calling thread holds the lock already."""


def enter(lock: OwnedLock) -> None:
    """Take the lock of a machine when another thread has it.

    That thread was interrupted in the middle of a move, which takes a microsecond. So this one
    gives way to it first, unless it runs an event loop. Waiting for the lock itself would be worse:
    it is handed to the waiting thread, which then waits for the interpreter; meanwhile the thread
    that has the interpreter finds the lock taken, and waits in turn. From then on every move would
    cost a switch of threads (a lock convoy).

    A thread that runs an event loop does not sleep here, since its tasks would wait, too; they wait
    only for the rest of that move. No convoy forms as long as the other threads give way. Without a
    global interpreter lock there is no interpreter to wait for, and no thread needs to give way.
    """
    if not (in_event_loop() or is_free_threaded()):
        for _ in range(_BACKOFF_TRIES):
            sleep(_BACKOFF_SECONDS)
            if lock.acquire(False):
                return
    lock.acquire()


def is_free_threaded() -> bool:
    """Return whether threads run at the same time, without a global lock, at this moment."""
    is_enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
    return is_enabled is not None and not is_enabled()


def deliver(wakers: Iterable[Waker], from_anywhere: bool = False) -> None:
    """Wake the wakers that a move of the machine has returned. Never call it with its lock held.

    If an event loop has been closed nothing is lost: its attempts are withdrawn, and what they were
    granted goes to the next in line.
    """
    for waker in wakers:
        abandoned = waker.wake(from_anywhere=from_anywhere) if from_anywhere else waker.wake()
        if abandoned:
            withdraw_all(abandoned)


def drain_notified(notified: deque[Attempt]) -> list[Attempt]:
    """Remove and return all attempts that a waker was notified of.

    One by one, because other threads may add or remove attempts at the same time.
    """
    taken: list[Attempt] = []
    with suppress(IndexError):
        while True:
            taken.append(notified.popleft())
    return taken


def withdraw_all(attempts: Iterable[Attempt]) -> None:
    """Withdraw attempts whose owners never run again, and wake the callers that can proceed."""
    # A withdrawal may wake callers of a further loop that is closed. Their attempts are withdrawn
    # in turn, by this loop and not by recursion: such chains may be long.
    waiting = deque(attempts)
    while waiting:
        attempt = waiting.popleft()
        assert attempt.host is not None
        waker: Any
        for waker in attempt.host.withdraw(attempt):
            waiting.extend(waker.wake())


def apply_deferred(move: Callable[..., Collection[Waker]], *arguments: Any, **options: Any) -> None:
    """Make a move that may come at any time, and deliver the wakes.

    A signal handler, or a finalizer of a waiting coroutine, may call `Machine.close` or
    `Machine.withdraw` in the middle of a move of the same object and thread. The move cannot be
    made there, so another thread makes it.

    Args:
        move: a bound method that returns the wakers to wake.
        *arguments: its positional arguments.
        **options: its keyword arguments.
    """
    owner: _Enterable = move.__self__  # type: ignore[attr-defined]
    # The lock is re-entrant, so it would let this thread into the middle of its own move. Another
    # thread waits until that move is over. Nobody joins it: this thread holds the lock it needs.
    if owner.is_entered_here():
        threading.Thread(
            target=_apply,
            args=(move, arguments, options),
            name="aioqueue-deferred-move",
            daemon=True,
        ).start()
    else:
        _apply(move, arguments, options)


def _apply(
    move: Callable[..., Collection[Waker]], arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    wakers: Collection[Waker] = ()
    try:
        wakers = move(*arguments, **options)
        if wakers:
            deliver(wakers, from_anywhere=True)
    except BaseException:  # a signal handler has raised before all were woken
        deliver(wakers, from_anywhere=True)
        raise


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_marked: list[tuple[Any, bool]] = []
_markers: list[Callable[[Any, bool], object]] = []


def defers_ctrl_c(function: FunctionT) -> FunctionT:
    """Decorate a function in which, in trio, Ctrl-C must not raise, nor in what it calls.

    The main task raises it at its next wait instead. Code that opens or closes a nursery, or
    reports a worker's end, must not be left in the middle. (Trio 0.26 and 0.27 know no such marks.)
    """
    return _mark_function(function, True)


def allows_ctrl_c(function: FunctionT) -> FunctionT:
    """Decorate a function in which, in trio, Ctrl-C may raise, whatever calls it: user code."""
    return _mark_function(function, False)


def register_marker(mark: Callable[[Any, bool], object]) -> None:
    """Mark the decorated functions, present and future ones, once trio is in use.

    Args:
        mark: called with a function, and whether it defers Ctrl-C.
    """
    _markers.append(mark)
    for function, defers in _marked:
        mark(function, defers)


def _mark_function(function: FunctionT, defers: bool) -> FunctionT:
    _marked.append((function, defers))
    for mark in _markers:
        mark(function, defers)
    return function


_main_ident = threading.main_thread().ident


def _note_main_thread() -> None:
    global _main_ident
    _main_ident = threading.main_thread().ident


if hasattr(os, "register_at_fork"):
    # The thread that forks is the main thread of the child.
    os.register_at_fork(after_in_child=_note_main_thread)


class ThreadWaker:
    """The waker of one thread that waits for one attempt."""

    __slots__ = ("_asleep", "two_step")

    def __init__(self) -> None:
        # Ctrl-C raises in the main thread alone, perhaps between the grant and the call's return.
        self.two_step: bool = threading.get_ident() == _main_ident
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def notify(self, attempt: Attempt, /) -> None:
        """Do nothing: there is only one attempt."""

    def wake(self, from_anywhere: bool = False) -> Iterable[Attempt]:
        try:
            self._asleep.release()
        except RuntimeError:
            pass  # it was woken already, but has not run yet
        return ()

    def is_dead(self) -> bool:
        return False

    def wait(self, seconds: float | None) -> bool:
        """Sleep until woken, for ``seconds`` at most; return whether it was woken."""
        if seconds is None:
            return self._asleep.acquire()
        return self._asleep.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))


class CallbackWaker:
    """Calls back, in the thread that ends the attempt.

    `wake` is called with no lock of a machine held, by the caller that makes the move: any thread,
    a signal handler or a finalizer. It may be called more often than needed, so the callback must
    tolerate a second call.

    Args:
        attempt: the attempt to wait for.
        callback: called when the attempt is done; it must neither wait nor raise.
    """

    __slots__ = ("_attempt", "_callback", "two_step")

    def __init__(self, attempt: Attempt, callback: Callable[[], object]) -> None:
        self.two_step: bool = False
        # Kept only until the call: the attempt refers to this waker, and the callback may, too.
        self._attempt: Attempt | None = attempt
        self._callback: Callable[[], object] | None = callback

    def notify(self, attempt: Attempt, /) -> None:
        """Do nothing: there is only one attempt."""

    def wake(self, from_anywhere: bool = False) -> Iterable[Attempt]:
        # Ask the attempt: `QueueCore.wake_all` wakes without any attempt having ended.
        attempt, callback = self._attempt, self._callback
        if attempt is not None and callback is not None and attempt.state is DONE:
            callback()
            self.forget()
        return ()

    def forget(self) -> None:
        self._attempt = self._callback = None

    def is_dead(self) -> bool:
        return False
