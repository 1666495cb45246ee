"""What the methods of a coordinator do, written once for both faces; see `aioqueue.docstrings`.

Here stand those that wait; those that never do are the same for both: see `core`.

What the two faces of a coordinator share: all that never waits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import ContextDecorator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from aioqueue.arguments import checked_grace, checked_seconds, checked_watchdog
from aioqueue.coordination.core import DEFAULT_GRACE, CoordinatorCore
from aioqueue.docstrings import World, describe
from aioqueue.errors import counted
from aioqueue.forks import is_refusing, note_for_forks, refusing
from aioqueue.locks import holding
from aioqueue.migration_hints import no_attribute
from aioqueue.telemetry.explanation import Explanation
from aioqueue.telemetry.monitor import Monitor
from aioqueue.telemetry.registry import Watch

__all__ = ("CoordinatorFace", "CoordinatorMethods")


class CoordinatorMethods:
    """What a coordinator can do that waits. Both faces override all of it."""

    def wait_for_stop(self) -> Any:
        """Wait until a stop is requested.

        Args:
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Returns:
            Whether a stop was requested: always true, unless there was a timeout.

        Raises:
            DeadlineExceededError: in threads, the time of a `CancelScope` around the call has run
                out, before the timeout.
            CancelledError: in threads, such a scope was cancelled.
            InvalidArgumentError: in threads, the timeout is not a number of seconds.
            RuntimeError: in threads, it would have to wait on a thread whose event loop is
                running.

        Cancellation:
            A cancelled call has changed nothing.
        """
        raise NotImplementedError

    def join(
        self,
        workers: Iterable[Any] | None = None,
        *,
        stop_grace_period: float = 0.0,
        ignore_live: bool = False,
    ) -> Any:
        """Wait until all workers have ended, and report what failed. It does not request a stop.

        Args:
            workers: threads, tasks or other futures, besides those that are registered or started.
            stop_grace_period: seconds that they have to end, counted from the stop (120 by
                default). Then tasks are cancelled, and threads that still run are a failure.
            ignore_live: such threads are not a failure.

        Raises:
            ExceptionGroup: all failures recorded, in the order reported, each with a note that
                names its worker; among them a `StillRunningError` that names the workers still
                running. (A `BaseExceptionGroup`, if a worker raised `SystemExit` or the like.)
            DeadlineExceededError: in threads, (a `TimeoutError`) the time of a `CancelScope` around
                the call has run out; workers that it would have waited for go on.
            CancelledError: in threads, such a scope was cancelled; they go on as well.
            InvalidArgumentError: any argument is not as described.
            RuntimeError: in threads, it would have to wait on a thread whose event loop is
                running.

        Cancellation:
            A cancelled call has changed nothing; workers that it would have waited for go on.
        """
        raise NotImplementedError


class CoordinatorFace(CoordinatorMethods):
    """A coordinator as one world sees it: here, everything that never waits.

    Args:
        clean_stop_exception_types: failures that end a run normally and are not reported; ``None``
            for ``(OutOfRangeError,)``.
        stop_grace_period: seconds that workers have to end after a stop, when a block is left (120
            by default).
        watchdog: seconds after which the log (``aioqueue``) has a warning with an explanation (see
            `explain`) when nothing has moved and someone has waited for so long: once for each
            time that all stands still, after one to two times these seconds. ``None`` for never.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    _world: ClassVar[World]
    _faces: ClassVar[dict[World, type[CoordinatorFace]]] = {}
    """The class of each world, by which the two faces find each other."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "_world" in vars(cls):
            describe(cls, cls._world)
        else:
            cls._faces.setdefault(cls._world, cls)  # ours, not users' subclasses

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            no_attribute(self, name, kind="a coordinator")

    def __init__(
        self,
        clean_stop_exception_types: Iterable[type[BaseException]] | None = None,
        *,
        stop_grace_period: float = DEFAULT_GRACE,
        watchdog: float | None = None,
    ) -> None:
        self._core = CoordinatorCore(clean_stop_exception_types, checked_watchdog(watchdog))
        self._grace = checked_grace(stop_grace_period, "stop_grace_period")
        self._peer: Callable[[], CoordinatorFace | None] | None = None
        note_for_forks(self)

    def _was_forked(self) -> None:
        core = self._core
        core.renew_lock()
        if core.has_begun:
            self._core = refusing("this coordinator", core)

    def _watched(self) -> Watch:
        return self._core.watch

    def monitor(self, *, log: bool = False) -> Monitor:
        """Watch what is started here, and tell what limits it: see `Monitor`.

        Args:
            log: write a line a minute to the log (``aioqueue``), and a warning when data are late.
        """
        return Monitor(self, log=log)

    def _enter(self) -> None:
        """Refuse to begin a block in which every worker would stop at once, unnoticed.

        Raises:
            RuntimeError: a stop was requested before, and not cleared.
        """
        self._core.was_entered = True
        if self._core.joined:
            raise RuntimeError(
                "this coordinator has been joined: call clear_stop() to use it again, or make a"
                " new one"
            )
        self._core.enter_block()

    def _as(self, world: World) -> Any:
        """The other face of the same coordinator, made when first asked for."""
        return holding(self._core._lock, self._peer_of, self._faces[world])

    def _peer_of(self, face_class: type[CoordinatorFace]) -> CoordinatorFace:
        face = None if self._peer is None else self._peer()
        if face is None:
            face = face_class.__new__(face_class)
            face._core, face._grace = self._core, self._grace
            # The first one does not keep the second: together they would have to be collected.
            face._peer, self._peer = partial(_itself, self), weakref.ref(face)
            note_for_forks(face)
        return face

    def __repr__(self) -> str:
        core = self._core
        if is_refusing(core):
            return f"<{type(self).__module__}.{type(self).__name__} of another process>"
        state = "joined" if core.joined else "stopped" if core.should_stop() else "running"
        failures = counted(len(core.failures()), "failure")
        return f"<{type(self).__module__}.{type(self).__name__} {state}, {failures}>"

    @property
    def joined(self) -> bool:
        """Whether a join has ended, also if it raised."""
        return self._core.joined

    def explain(self) -> Explanation:
        """Tell who waits for whom, since when, and for what in the end.

        It looks at all queues of the process at which someone waits, and at all workers, wherever
        they run: threads, tasks, processes. Any thread or task may ask, at any time; nothing is
        stopped for it. (In a signal handler `aioqueue.explain_on_signal` is to be used instead.)

        Returns:
            Who waits, who is to blame, and what this coordinator knows: as records and, by
            ``str``, as text.
        """
        return self._core.explain()

    def should_stop(self) -> bool:
        """Whether a stop was requested. Workers ask this between two steps."""
        return self._core.should_stop()

    def request_stop(self, error: BaseException | None = None) -> None:
        """Ask all workers to stop. Returns at once; any thread, task or signal handler may call it.

        Args:
            error: the failure that is the reason. It is recorded, the very object, and raised by
                `join`; unless it is of a clean type, or comes after a stop and is one that stopping
                itself causes (`QueueClosedError`, `OutOfRangeError`, a cancellation).

        Raises:
            BaseException: the error itself, if the join that could report it is over.
            InvalidArgumentError: it is not an exception.
        """
        self._core.request_stop(error)

    def clear_stop(self) -> None:
        """Forget the stop and all failures, so that the coordinator can be used again."""
        self._core.clear_stop()

    def drain(self, deadline: float | None = None) -> None:
        """Let all sources end now, and deliver what was taken from them. Returns at once.

        For sources that cannot be gone through again, such as sockets. Runners take on nothing new:
        a `prepare` takes no more items, a `QueueRunner` makes no further calls. What is in flight
        goes on into its queue; then the queues close, one after the other, and whoever takes from
        the last one finds its end as at the end of any input. Those that take from a queue go on
        until that ends (`prepare` and the batchers by themselves, a `QueueRunner` if it was given
        its ``source``); if no runner fills it, it is closed here. What is started later ends at
        once.

        Any thread or task may call it, also the one that consumes, which then goes on until the
        end; `join` waits for the workers. It may be called again, and the earliest deadline counts.
        Not for signal handlers: let those set a flag, as `aioqueue.inputs.Preemption` does.

        Args:
            deadline: seconds from now. If not all was delivered by then, the coordinator stops with
                an `UndeliveredError` that says what was not, which `join` reports. ``None`` for no
                limit.

        Raises:
            InvalidArgumentError: it is no number of seconds.
        """
        if deadline is not None:
            deadline = checked_seconds(deadline, "deadline", otherwise=", or None")
        self._core.drain(deadline)

    @property
    def draining(self) -> bool:
        """Whether a drain was asked for: a source that waits for long may look, and end."""
        return self._core.draining.current is not None

    def register(self, worker: Any) -> None:
        """Let `join` wait for a worker besides those that it is given.

        Args:
            worker: a `threading.Thread`, or an `asyncio.Task` or another future, whose failure is
                recorded when it ends.

        Raises:
            InvalidArgumentError: it is none of these.
        """
        self._core.register(worker)

    def raise_requested_exception(self) -> None:
        """Raise what has been recorded as one `ExceptionGroup`; or return, if nothing has."""
        self._core.raise_failures()

    def stop_on_exception(self) -> _StopOnException:
        """Within this context an exception stops all workers, is recorded, and goes no further.

        Cancellation and other exceptions that are no `Exception` stop all workers and go on.
        """
        return _StopOnException(self._core)


def _itself(face: CoordinatorFace) -> CoordinatorFace:
    return face


class _StopOnException(ContextDecorator):
    """See `CoordinatorFace.stop_on_exception`.

    It is not a `contextlib.contextmanager`, which writes to what passes by: not all take that.
    """

    def __init__(self, core: CoordinatorCore) -> None:
        self._core = core
        self._works: list[object] = []  # of those within: as a decorator it may be entered again

    def __enter__(self) -> None:
        self._works.append(self._core.begin_work())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        is_failure = isinstance(error, Exception)
        try:
            if error is not None:
                self._core.request_stop(error if is_failure else None)
        finally:
            self._core.end_work(self._works.pop())
        return is_failure


# Python's messages about arguments name the class that the user has called.
CoordinatorFace.__init__.__qualname__ = "Coordinator.__init__"
