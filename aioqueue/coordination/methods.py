"""The methods of a coordinator that both faces share.

`CoordinatorMethods` documents the methods that wait, which each face implements in its own way; see
`aioqueue.base.public_names`. `CoordinatorFace` implements those that never wait.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import ContextDecorator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from aioqueue.base.arguments import checked_flag, checked_grace, checked_seconds, checked_watchdog
from aioqueue.base.hints import hint_attributes, refuse_overrides
from aioqueue.base.public_names import DeferredModule, World, describe
from aioqueue.base.tracebacks import SHORTENED, reraise
from aioqueue.coordination.coordinator_core import CoordinatorCore
from aioqueue.coordination.shutdown import DEFAULT_GRACE, failure_group
from aioqueue.errors import counted, interrupt_of
from aioqueue.system.forks import inherited_object, is_inherited, note_for_forks
from aioqueue.system.locks import call_with_lock
from aioqueue.telemetry.metrics.watch import Watch
from aioqueue.worlds.scopes import end_joins_of
from aioqueue.worlds.waker import Owner

if TYPE_CHECKING:
    from aioqueue.telemetry.explain.explanation import Explanation
    from aioqueue.telemetry.monitor import Monitor


_sharing: Any = DeferredModule("aioqueue.sharing.coordinator")  # above this room; for `share` only


class CoordinatorMethods:
    """The methods of a coordinator that may wait. Each face overrides all of them."""

    def wait_for_stop(self) -> Any:
        """Wait until a stop is requested.

        Args:
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Returns:
            True once a stop is requested; False if the timeout expired first.

        Raises:
            DeadlineExceededError: in threads, the time of a `CancelScope` around the call expired
                before the timeout.
            CancelledError: in threads, a `CancelScope` around the call was cancelled.
            InvalidArgumentError: in threads, the timeout is not a number of seconds.
            RuntimeError: in threads, the call would block a thread whose event loop is running.

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
        """Wait until all workers have ended, then raise what failed. It does not request a stop.

        Args:
            workers: threads, tasks or other futures to wait for, besides those that you have
                registered or started.
            stop_grace_period: seconds that the workers have to end, counted from the stop (120 by
                default). After that, tasks are cancelled, and threads that still run are a failure.
            ignore_live: do not count threads that still run as a failure.

        Raises:
            ExceptionGroup: all recorded failures in the order of the reports, each with a note that
                names its worker. A `StillRunningError` among them names the workers that still run.
                (A `BaseExceptionGroup` if a worker raised `SystemExit` or the like.) With
                ``raise_single=True`` the call raises a single failure as itself.
            DeadlineExceededError: in threads, the time of a `CancelScope` around the call expired;
                the workers continue. It is a `TimeoutError`.
            CancelledError: in threads, a `CancelScope` around the call was cancelled; the workers
                continue.
            InvalidArgumentError: any argument is not as described.
            RuntimeError: in threads, the call would block a thread whose event loop is running.

        Cancellation:
            A cancelled call has changed nothing; the workers continue.
        """
        raise NotImplementedError


@hint_attributes("a coordinator")
class CoordinatorFace(CoordinatorMethods):
    """One face of a coordinator: here, all the methods that never wait.

    Args:
        clean_stop_exception_types: exceptions that end a run normally and are not reported;
            ``None`` for ``(OutOfRangeError,)``.
        stop_grace_period: seconds that workers have to end after a stop when you leave the block
            (120 by default).
        raise_single: whether `join` and the end of the block raise a single failure as itself, so
            that an ``except KeyError`` around them works. Several failures are one `ExceptionGroup`
            in any case.
        watchdog: seconds after which to log a warning with an explanation (see `explain`) if
            nothing moves and a caller waits. A hang is reported once, after one to two times these
            seconds, in the log ``aioqueue``. ``None`` for never.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    _world: ClassVar[World]
    _keeps_groups = False  # for a pipeline, which raises what is in the group itself
    _faces: ClassVar[dict[World, type[CoordinatorFace]]] = {}
    """World -> class. The two faces find each other's class here."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        refuse_overrides(cls, "a coordinator", "its workers, and the other face,")
        if "_world" in vars(cls):
            describe(cls, cls._world)
        else:
            cls._faces.setdefault(cls._world, cls)  # ours, not users' subclasses

    def __init__(
        self,
        clean_stop_exception_types: Iterable[type[BaseException]] | None = None,
        *,
        stop_grace_period: float = DEFAULT_GRACE,
        raise_single: bool = False,
        watchdog: float | None = None,
    ) -> None:
        self._core = CoordinatorCore(clean_stop_exception_types, checked_watchdog(watchdog))
        self._raise_single = checked_flag(raise_single, "raise_single")
        self._grace = checked_grace(stop_grace_period, "stop_grace_period")
        self._peer: Callable[[], CoordinatorFace | None] | None = None
        note_for_forks(self)

    def _was_forked(self) -> None:
        core = self._core
        if is_inherited(core):
            return
        core.renew()
        if core.shared is not None:
            core.shared.adopt_in_fork(self)
        elif core.has_begun:
            self._core = inherited_object("this coordinator", core)

    def _watched(self) -> Watch:
        return self._core.watch

    def share(self, *, name: str | None = None) -> Self:
        """Share the coordinator with the other processes of this machine.

        From now on it can be pickled: pass it to a process as an argument, or inside of anything
        that is; a fork may also inherit it. In the other process it is the same coordinator, and
        takes part from its first use there:

        * A stop reaches every worker of every process. It is pushed to them, so `should_stop` asks
          nobody.
        * Every failure reaches every process, with its traceback there. A failing worker waits
          until it has been sent, five seconds at most. So does a process that an exception ends.
        * A process that is killed, or ends with an exit code, is a failure that names the process
          and the signal or the code. Ctrl-C is a stop.
        * `join`, and leaving the block, wait for the workers of all processes, except those that
          are in a join themselves. A process inside ``with coord.stop_on_exception():`` counts as a
          worker. A drain concerns the runners of one process.
        * `explain` includes all processes, and the numbers of a `Monitor` add up.

        Its first use in a process, and the start of a block in it, take a short trip to the process
        that shares it, and block for that long. If that process dies, the others stop with a
        `WorkerDiedError`. If it ends in order, they stop. Only processes of the same user can
        connect.

        Args:
            name: a name by which other processes of this user find the coordinator (`connect`):
                letters, digits, ``-``, ``_`` and ``.``; ``None`` for none.

        Returns:
            The coordinator itself.

        Raises:
            InvalidArgumentError: the name is not as described, or a living process shares something
                by that name.
            OSError: this system has no Unix sockets, or the socket cannot be made.
            TypeError: it is a coordinator of a Ray cluster, which other programs find by its name.
        """
        _sharing.share(self, name)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a coordinator that is shared; see `share`.

        Raises:
            TypeError: it is not shared.
        """
        return self._core.pickled(self._world)

    def monitor(self, *, log: bool = False) -> Monitor:
        """Monitor what you start in this coordinator and report its bottleneck: see `Monitor`.

        Args:
            log: write a line a minute to the log ``aioqueue``, and a warning when data is late.
        """
        from aioqueue.telemetry.monitor import Monitor

        return Monitor(self, log=log)

    def _enter(self) -> None:
        """Refuse to enter a block in which every worker would stop at once, unnoticed.

        Raises:
            RuntimeError: an earlier stop has not been cleared.
        """
        self._core.was_entered = True
        if self._core.joined:
            raise RuntimeError(
                "this coordinator has been joined: call clear_stop() to use it again, or make a"
                " new one"
            )
        self._core.enter_block()

    def _leaves_inherited_block(self, error: BaseException | None) -> bool:
        """Return whether an exception leaves a block that the parent of this fork is in."""
        return is_inherited(self._core) and error is not None

    def _end_joins_at_stop(self, owner: object) -> None:
        """Let the stop end a `join` in which the owner of the block waits: a task or thread."""
        self._core.call_on_stop(partial(end_joins_of, Owner(owner)))

    def _as(self, world: World) -> Any:
        """Return the face of this coordinator in another world; the first call makes it."""
        return call_with_lock(self._core._lock, self._peer_of, self._faces[world])

    def _peer_of(self, face_class: type[CoordinatorFace]) -> CoordinatorFace:
        face = None if self._peer is None else self._peer()
        if face is None:
            face = face_class.__new__(face_class)
            face._core, face._grace = self._core, self._grace
            face._raise_single = self._raise_single
            # A weak reference in one direction: a cycle would need the garbage collector.
            face._peer, self._peer = partial(_itself, self), weakref.ref(face)
            note_for_forks(face)
        return face

    def _unwrap_if_asked(
        self, raised: BaseException, block_error: BaseException | None = None
    ) -> BaseException:
        """Return what to raise instead of what a join raised: with ``raise_single`` a single
        failure itself, and Ctrl-C without a group."""
        if self._raise_single:
            raised = self._core.unwrap_single(raised, block_error)
        return raised if self._keeps_groups else interrupt_of(raised)

    def __repr__(self) -> str:
        core = self._core
        if is_inherited(core):
            return f"<{type(self).__module__}.{type(self).__name__} of another process>"
        state = "joined" if core.joined else "stopped" if core.should_stop() else "running"
        failures = counted(len(core.failures()), "failure")
        origin = "" if core.shared is None else core.shared.origin
        return f"<{type(self).__module__}.{type(self).__name__} {state}, {failures}{origin}>"

    @property
    def joined(self) -> bool:
        """Whether a join has ended, even by raising."""
        return self._core.joined

    def explain(self) -> Explanation:
        """Explain what every blocked caller waits for, since when, and the root cause.

        The explanation covers all queues of the process that have waiting callers, and all workers:
        threads, tasks and processes. Any thread or task may call it at any time; it does not stop
        the workers. (In a signal handler, use `aioqueue.explain_on_signal` instead.)

        Returns:
            The waits, the root cause, and the state of this coordinator, as records. ``str`` gives
            the text.
        """
        return self._core.explain()

    def should_stop(self) -> bool:
        """Return whether a stop was requested. Workers check this between two steps."""
        return self._core.should_stop()

    def request_stop(self, error: BaseException | None = None) -> None:
        """Ask all workers to stop. Returns at once; call it from any thread, task or handler.

        Args:
            error: the failure that is the reason. `join` raises this very object. It is not
                recorded if it is of a clean type, or if a stop has already been requested and this
                is its consequence (`QueueClosedError`, `OutOfRangeError`, a cancellation).

        Raises:
            BaseException: the error itself, if no join is left that could report it.
            InvalidArgumentError: ``error`` is not an exception.
        """
        self._core.request_stop(error)

    def clear_stop(self) -> None:
        """Clear the stop and all failures, so that you can use the coordinator again."""
        self._core.clear_stop()

    def drain(self, deadline: float | None = None) -> None:
        """End all sources now and deliver the items that were already taken. Returns at once.

        Use it for sources that you cannot read again, such as sockets. Runners accept nothing new:
        a `prepare` takes no more items, and a `QueueRunner` makes no further calls. Items in flight
        still reach their queue. Then the queues close one after the other, and the consumer of the
        last one sees a normal end.

        A runner that takes from a queue continues until that queue ends. `prepare` and the batchers
        do so by themselves, a `QueueRunner` if you gave it its ``source``. A source queue that no
        runner fills is closed. Whatever you start later ends at once.

        Any thread or task may call it, even the consumer, which then continues to the end. `join`
        waits for the workers. You may call it again; the earliest deadline counts. Do not call it
        in a signal handler: set a flag there, as `aioqueue.inputs.Preemption` does.

        Args:
            deadline: seconds from now. If not everything has been delivered by then, the
                coordinator stops with an `UndeliveredError` that lists what was not; `join` raises
                it. ``None`` for no limit.

        Raises:
            InvalidArgumentError: ``deadline`` is not a number of seconds.
        """
        if deadline is not None:
            deadline = checked_seconds(deadline, "deadline", otherwise=", or None")
        self._core.drain(deadline)

    @property
    def draining(self) -> bool:
        """Whether a drain was requested. A source that waits for long may check it, and end."""
        return self._core.draining.current is not None

    def register(self, worker: Any) -> None:
        """Register a worker that `join` waits for.

        Args:
            worker: a `threading.Thread`, an `asyncio.Task` or another future. The failure of a
                future is recorded when it ends.

        Raises:
            InvalidArgumentError: the worker is not a thread, a task or a future.
        """
        self._core.register(worker)

    def raise_requested_exception(self) -> None:
        """Raise all recorded failures as one `ExceptionGroup`; return if there are none.

        With ``raise_single=True`` it raises a single failure as itself.
        """
        with SHORTENED:
            failures = self._core.failures()
            if failures:
                reraise(self._unwrap_if_asked(failure_group(failures)))

    def stop_on_exception(self) -> _StopOnException:
        """Return a context in which an exception stops all workers, is recorded, and is swallowed.

        A cancellation, like anything else that is no `Exception`, stops all workers and is raised.

        In a coordinator of several processes, code in the context counts as a worker: joins wait
        for it, and a stop ends the call of aioqueue in which it waits. Otherwise that is so for
        threads and tasks that you `register`.
        """
        return _StopOnException(self._core)


def _itself(face: CoordinatorFace) -> CoordinatorFace:
    return face


class _StopOnException(ContextDecorator):
    """The context of `CoordinatorFace.stop_on_exception`.

    It is not a `contextlib.contextmanager`: that sets attributes of the exceptions that pass, which
    some classes refuse.
    """

    def __init__(self, core: CoordinatorCore) -> None:
        self._core = core
        self._works: list[object] = []  # a stack: a decorator may enter the context recursively

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


# Python's messages about arguments show this name: it must be the class that you call.
CoordinatorFace.__init__.__qualname__ = "Coordinator.__init__"
