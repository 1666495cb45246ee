"""`Latest`, async and blocking: a value that one side publishes and many read.

A queue delivers each element once. Here each reader wants the newest value only, and may want it
again: the weights of a policy, a configuration, the position of a stream. `LatestCore` decides; the
faces only wait, as those of a queue do. They share this file so that type checkers see that each
leads to the other.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, Self

from aioqueue.base.arguments import checked_count, checked_seconds
from aioqueue.base.display_text import on_one_line
from aioqueue.base.hints import hint_attributes, refuse_overrides, refuse_search
from aioqueue.base.public_names import (
    DeferredModule,
    World,
    describe,
    name_methods,
    public,
    with_sections,
)
from aioqueue.base.tracebacks import SHORTENED, shorten_again
from aioqueue.core.attempts import PENDING
from aioqueue.errors import (
    CancelledError,
    DeadlineExceededError,
    OutOfRangeError,
    QueueEmpty,
    counted,
)
from aioqueue.latest.state import UNSET, LatestCore, PendingRead, Versioned
from aioqueue.system.forks import inherited_object, is_inherited, note_for_forks
from aioqueue.system.locks import call_with_lock
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import (
    CancelScope,
    cancelled_by,
    current_scopes,
    sleep_while_pending,
    stop_scopes,
    unwatch,
    watch,
)
from aioqueue.worlds.waker import AsyncWaker, in_event_loop

_sharing: Any = DeferredModule("aioqueue.sharing.latest")  # above this room; used by `share` alone

if TYPE_CHECKING:  # Python's own has defaults since 3.13
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
FaceT = TypeVar("FaceT", bound="LatestFace[Any]")

_ARGUMENTS: Final = """\
Args:
    value: the first value, version 1; without it, readers wait for the first `publish`.
    name: the name in messages; ``None`` generates one.

Raises:
    InvalidArgumentError: the name is no string.
"""


@hint_attributes("a Latest")
class LatestFace(Generic[T]):
    """One face of a `Latest`: here, everything that never waits."""

    _peer: Callable[[], LatestFace[T] | None] | None = None
    _world: ClassVar[World]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        refuse_overrides(cls, "a Latest")

    def __init__(self, value: T = UNSET, *, name: str | None = None) -> None:
        self._core = LatestCore(name)
        if value is not UNSET:
            self._core.publish(value)
        note_for_forks(self)

    def _was_forked(self) -> None:
        core = self._core
        if is_inherited(core):
            return
        if core.shared is not None:
            core.shared.adopt_in_fork(self)
        elif core.has_begun:
            self._core = inherited_object(str(core), core)
        else:
            core.renew()

    def __repr__(self) -> str:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        core = self._core
        if is_inherited(core):
            return f"<{kind} of another process>"
        state = "closed" if core.is_closed else f"{counted(len(core._pending()), 'reader')} waiting"
        version = core.current.version
        return on_one_line(f"<{kind} '{core.name}', version {version}, {state}{core.whose}>")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a `Latest` that is shared; see `share`.

        Raises:
            TypeError: it is not shared.
        """
        core = self._core
        if not is_inherited(core) and core.shared is not None:
            pickled: tuple[Any, ...] = core.shared.pickled(self._world)
            return pickled
        raise TypeError(
            f"{core} cannot be pickled or copied: it lives in one process. Share it"
            " (`latest.share()`), and send that to other processes of this machine; or send its"
            " values"
        )

    def share(self, *, name: str | None = None) -> Self:
        """Share it with the other processes of this machine.

        From now on it can be pickled: pass it to a process as an argument, or inside of anything
        that is. In the other process it is a *handle* of the same `Latest`, with both faces, all
        methods and errors. This process owns it, and goes on using it directly.

        A process gets each value once, however many of its callers read it, and they share the
        copy. Values are pickled by the caller that publishes them, and unpickled by the first
        caller of a process that reads them. `get` on a handle asks this process for the newest
        version; `publish`, `close` and the rest take a short trip, too. If this process dies, calls
        on handles raise `WorkerDiedError`; if it ends in order, `OutOfRangeError` and
        `QueueClosedError`. Only processes of the same user can connect.

        It lives with its value until this process ends, even if nothing here refers to it any more:
        nobody can know where a pickled handle still is.

        Args:
            name: a name by which other processes of this user find it (`connect`): letters, digits,
                ``-``, ``_`` and ``.``; ``None`` for none.

        Returns:
            The `Latest` itself.

        Raises:
            InvalidArgumentError: the name is not as described, or a living process shares something
                by that name.
            OSError: this system has no Unix sockets, or the socket cannot be made.
        """
        _sharing.share_latest(self, name)
        return self

    def __contains__(self, value: object) -> NoReturn:
        """Refuse ``in``, which would wait for ever.

        Raises:
            TypeError: always.
        """
        refuse_search(self, "the search would wait for newer values; get() has the newest one")

    @property
    def name(self) -> str:
        """The name in messages."""
        return self._core.name

    @property
    def version(self) -> int:
        """The version of the newest value; 0 before the first."""
        return self._core.current.version

    def publish(self, value: T) -> int:
        """Make a value the newest one, and wake those that wait for it. Returns at once.

        Any thread or task may call it. Readers get the object itself, not a copy, and they share
        it: publish a new object rather than change one that you have published.

        Args:
            value: any object.

        Returns:
            Its version.

        Raises:
            QueueClosedError: `close` has been called; the failure that was its cause is the
                ``__cause__``.
            RuntimeError: a signal handler or a finalizer makes the call in the middle of another
                one on its thread. Nothing was published.
        """
        return self._core.publish(value)

    def get_nowait(self) -> Versioned[T]:
        """Return the newest value with its version, also after `close`. Never waits.

        Raises:
            QueueEmpty: nothing has been published yet.
        """
        current = self._core.newest()
        if not current.version:
            raise QueueEmpty(f"nothing has been published in {self._core}")
        return current

    def close(self, *, cause: BaseException | None = None) -> None:
        """Publish no more, and wake those that wait. Returns at once.

        The newest value can still be read. Waits for a later one raise `OutOfRangeError`, so a
        worker that reads ends as at the end of a queue. Any thread, task, signal handler or
        finalizer may call it, more than once; the first call counts.

        Args:
            cause: the failure that ends the publishing: it becomes the ``__cause__`` of
                the `OutOfRangeError` and `QueueClosedError` that follow.

        Raises:
            InvalidArgumentError: ``cause`` is not an exception.
        """
        self._core.close(cause)

    def is_closed(self) -> bool:
        """Return whether `close` has been called."""
        return self._core.is_closed

    def _as(self, face_class: type[FaceT]) -> FaceT:
        """Return the other face; the first call makes it."""
        return call_with_lock(self._core._lock, self._peer_of, face_class)

    def _peer_of(self, face_class: type[FaceT]) -> FaceT:
        face: Any = None if self._peer is None else self._peer()
        if face is None:
            face = face_class.__new__(self._class_of(face_class))
            face._core = self._core
            # A weak reference in one direction: a cycle would need the garbage collector.
            face._peer, self._peer = partial(_itself, self), weakref.ref(face)
            note_for_forks(face)
        assert isinstance(face, face_class)
        return face

    def _class_of(self, face_class: type[FaceT]) -> type[FaceT]:
        """Return the class of its other face."""
        return face_class


def _itself(face: LatestFace[T]) -> LatestFace[T]:
    return face


class _Methods(LatestFace[T]):
    """The texts of the methods that wait."""

    def get(self) -> Any:
        """Return the newest value with its version; wait only until the first one is published.

        Args:
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Returns:
            ``(version, value)``.

        Raises:
            OutOfRangeError: it was closed before anything was published.
            DeadlineExceededError: in threads, the timeout has expired, or the time of a
                `CancelScope` around the call. It is a `TimeoutError`.
            CancelledError: the coordinator of the calling worker stops, or a `CancelScope` around
                the call was cancelled.
            RuntimeError: in threads, the call would block a thread whose event loop is running.

        Cancellation:
            A cancelled call has changed nothing.
        """

    def wait_newer(self, version: int) -> Any:
        """Wait for a value that is newer than a version, and return the newest one.

        If there is one already, the call does not wait. It skips the values in between.

        Args:
            version: the version that you have; 0 for none.
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Returns:
            ``(version, value)``.

        Raises:
            OutOfRangeError: it is closed, and this version was the last. If a failure was the cause
                of the close, it is the ``__cause__``.
            DeadlineExceededError: in threads, the timeout has expired, or the time of a
                `CancelScope` around the call. It is a `TimeoutError`.
            CancelledError: the coordinator of the calling worker stops, or a `CancelScope` around
                the call was cancelled.
            InvalidArgumentError: the version is no int >= 0.
            RuntimeError: in threads, the call would block a thread whose event loop is running.

        Cancellation:
            A cancelled call has changed nothing. A later one finds the same value, or a newer one.
        """


@public("aioqueue", hints="queues")
class Latest(_Methods[T]):
    """The newest value that one side publishes, for many readers.

    `publish` replaces the value, and never waits. `get` returns the newest one, as often as you
    like, and `wait_newer` waits for one that you do not have yet. Values that nobody has read in
    time are dropped. ``async for version, value in latest:`` goes from one newest value to the next
    until `close`.

    Any number of threads and event loops may use it at the same time. Threads call its other face,
    ``latest.sync``.
    """

    __doc__ = with_sections(__doc__, f"\n\n{_ARGUMENTS}")
    _world = "aio"

    async def get(self) -> Versioned[T]:
        with SHORTENED:
            return await self._newer(0)

    async def wait_newer(self, version: int) -> Versioned[T]:
        with SHORTENED:
            return await self._newer(checked_count(version, "version"))

    async def _newer(self, version: int) -> Versioned[T]:
        core, waker = self._core, current_waker()
        await waker.pause(1)
        found = core.newer(version)
        return found if found is not None else await self._wait(PendingRead(version), waker)

    async def _wait(self, reading: PendingRead, waker: AsyncWaker) -> Versioned[T]:
        core, runner = self._core, waker.runner()
        scopes: Collection[CancelScope] = ()
        try:
            core.begin(reading, waker, runner)
            scopes = stop_scopes(runner)  # after it: a worker that is registered now is found
            watch(scopes, reading, reading.began)
            while reading.state is PENDING:
                await waker.wait(reading)
        finally:
            core.end(reading)
            unwatch(scopes, reading)
        if reading.is_withdrawn:
            by = cancelled_by(stop_scopes(runner))
            raise CancelledError(f"the wait for a value of {core} was {by}")
        return core.outcome(reading)

    def __aiter__(self) -> AsyncVersions[T]:
        """Iterate over the newest values, waiting for each, until `close`.

        If a failure was the cause of the close, the iteration raises `OutOfRangeError` at its end.
        """
        return AsyncVersions(self)

    @property
    def aio(self) -> Self:
        """The async face, for coroutines.

        That is this face itself. Code that is given either face can ask for the one it needs.
        """
        return self

    @property
    def sync(self) -> BlockingLatest[T]:
        """The blocking face of the same value, for threads."""
        return self._as(BlockingLatest)


@public("aioqueue.sync", name="Latest")
class BlockingLatest(_Methods[T]):
    """The newest value that one side publishes, for many readers.

    `publish` replaces the value, and never waits. `get` returns the newest one, as often as you
    like, and `wait_newer` waits for one that you do not have yet. Values that nobody has read in
    time are dropped. ``for version, value in latest:`` goes from one newest value to the next until
    `close`.

    Any number of threads and event loops may use it at the same time. Coroutines await its other
    face, ``latest.aio``.
    """

    __doc__ = with_sections(__doc__, f"\n\n{_ARGUMENTS}")
    _world = "sync"

    def get(self, *, timeout: float | None = None) -> Versioned[T]:
        with SHORTENED:
            return self._newer("get", 0, timeout)

    def wait_newer(self, version: int, *, timeout: float | None = None) -> Versioned[T]:
        with SHORTENED:
            return self._newer("wait_newer", checked_count(version, "version"), timeout)

    def _newer(self, method: str, version: int, timeout: float | None) -> Versioned[T]:
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        found = self._core.newer(version)
        if found is not None:
            return found
        if in_event_loop() and timeout != 0:
            raise RuntimeError(
                f"{method} would have to wait, and this thread's event loop is running:"
                f" use `await latest.aio.{method}(...)` here"
            )
        return self._wait(PendingRead(version), timeout)

    def _wait(self, reading: PendingRead, timeout: float | None) -> Versioned[T]:
        core = self._core
        waker = core.new_waker()
        scopes: Collection[CancelScope] = ()
        deadline = None if timeout is None else perf_counter() + timeout
        try:
            core.begin(reading, waker, threading.current_thread())
            scopes = current_scopes()
            watch(scopes, reading, reading.began)
            sleep_while_pending(reading, waker, scopes, deadline)
        finally:
            core.end(reading)
            unwatch(scopes, reading)
        if reading.is_withdrawn:
            raise self._why_withdrawn(timeout, deadline)
        return core.outcome(reading)

    def _why_withdrawn(self, timeout: float | None, deadline: float | None) -> Exception:
        scopes = current_scopes()
        what = f"the wait for a value of {self._core}"
        if any(scope.cancelled for scope in scopes):
            return CancelledError(f"{what} was {cancelled_by(scopes)}")
        if deadline is not None and perf_counter() >= deadline:
            return DeadlineExceededError(f"{what} has lasted its timeout of {timeout:.4g} s")
        return DeadlineExceededError(f"{what} has reached the deadline of its CancelScope")

    def __iter__(self) -> Versions[T]:
        """Iterate over the newest values, waiting for each, until `close`.

        If a failure was the cause of the close, the iteration raises `OutOfRangeError` at its end.
        """
        return Versions(self)

    @property
    def sync(self) -> Self:
        """The blocking face, for threads.

        That is this face itself. Code that is given either face can ask for the one it needs.
        """
        return self

    @property
    def aio(self) -> Latest[T]:
        """The async face of the same value, for coroutines."""
        return self._as(Latest)


class AsyncVersions(Generic[T]):
    """An async iterator over the newest values of a `Latest`."""

    __slots__ = ("_latest", "_version")

    def __init__(self, latest: Latest[T]) -> None:
        self._latest = latest
        self._version = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Versioned[T]:
        try:
            found = await self._latest.wait_newer(self._version)
        except OutOfRangeError as end:
            if end.__cause__ is not None:  # a failure is not an end
                shorten_again(end)
                raise
            raise StopAsyncIteration from None
        except BaseException as error:
            shorten_again(error)
            raise
        self._version = found.version
        return found


class Versions(Generic[T]):
    """An iterator over the newest values of a `BlockingLatest`."""

    __slots__ = ("_latest", "_version")

    def __init__(self, latest: BlockingLatest[T]) -> None:
        self._latest = latest
        self._version = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Versioned[T]:
        try:
            found = self._latest.wait_newer(self._version)
        except OutOfRangeError as end:
            if end.__cause__ is not None:  # a failure is not an end
                shorten_again(end)
                raise
            raise StopIteration from None
        except BaseException as error:
            shorten_again(error)
            raise
        self._version = found.version
        return found


describe(Latest, "aio")
describe(BlockingLatest, "sync")
for _cls in (LatestFace, BlockingLatest):
    name_methods(_cls, "Latest")
del _cls
