"""The state of a `Latest`: what is published, and who waits for a newer version.

The current value and its version are one tuple, which is replaced as a whole. So reading takes no
lock, and never finds a value with another one's version. Moves happen under one lock, and wakes are
delivered after its release, as in the machine of a queue.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Hashable, Iterable, Mapping
from time import perf_counter
from types import FrameType
from typing import Any, Final, Generic, NamedTuple, TypeVar

from aioqueue.base.public_names import public
from aioqueue.core.attempts import DEQUEUE, DONE, PENDING, WITHDRAWN, Attempt, Waker
from aioqueue.core.meters import current_meter
from aioqueue.errors import InvalidArgumentError, OutOfRangeError, QueueClosedError
from aioqueue.system.locks import is_held_here, not_reentrant, synchronized
from aioqueue.telemetry.explain.explanation import ExplainedWait
from aioqueue.telemetry.explain.registry import note_waits
from aioqueue.worlds.scopes import register_wait, unregister_wait
from aioqueue.worlds.waker import Owner, ThreadWaker, apply_deferred, deliver

T = TypeVar("T")

UNSET: Final[Any] = object()
_numbers = itertools.count(1)


@public("aioqueue")
class Versioned(NamedTuple, Generic[T]):
    """A published value with its version.

    Attributes:
        version: 1 for the first value that was published, and one more for each that followed.
        value: the value.
    """

    version: int
    value: T


class PendingRead(Attempt):
    """One caller that waits for a version after ``after``."""

    __slots__ = ("after", "found")
    side = DEQUEUE  # for meters: a worker that waits here waits for data

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after: int = after
        self.found: Versioned[Any] | None = None


class LatestCore:
    """The state of one `Latest`, shared by its faces.

    Args:
        name: for messages; ``None`` generates one.
    """

    def __init__(self, name: str | None) -> None:
        if name is not None and not isinstance(name, str):
            raise InvalidArgumentError(f"name: got {name!r}; expected a string or None")
        self.name: str = name or f"Latest-{next(_numbers)}"
        self.whose: str = ""  # what its text says of the process that shares it, elsewhere
        self.current: Versioned[Any] = Versioned(0, UNSET)
        self.is_closed: bool = False
        self.has_begun: bool = False
        self._lock = threading.RLock()  # guards what changes; reading `current` needs no lock
        self.cause: BaseException | None = None
        # Those that wait, and perhaps some that have been woken. Each removes itself.
        self._waiting: dict[PendingRead, None] = {}
        # How the processes of this machine share it (`aioqueue.sharing`); ``None``: they do not.
        self.shared: Any = None
        note_waits(self)

    def __str__(self) -> str:
        return f"Latest '{self.name}'"

    def renew(self) -> None:
        """Begin anew in a fork: nobody holds a new lock there."""
        self._lock = threading.RLock()
        note_waits(self)

    def publish(self, value: Any) -> int:
        """Make a value the newest one, and wake those that wait for it. See `LatestFace`."""
        try:
            # A finalizer of the value before may wait for somebody: it must not run under the lock.
            version, wakers, _before = self._publish(value)
            deliver(wakers)
        except BaseException:
            self._complete_after_interrupt()
            raise
        return version

    @not_reentrant
    def _publish(self, value: Any) -> tuple[int, Collection[Waker], Versioned[Any]]:
        if self.is_closed:
            closed = QueueClosedError(f"{self} is closed", queue=self.name)
            raise self._with_cause(closed)
        self.has_begun = True
        # One assignment: a reader without the lock sees the old pair or the new one. `before` is
        # returned, so that the last reference to the old value is dropped without the lock.
        before = self.current
        self.current = Versioned(before.version + 1, value)
        return self.current.version, self._complete_ready(), before

    def _interrupted(self) -> RuntimeError:
        return RuntimeError(
            f"{self}: publish() was called by a signal handler or a finalizer in the middle of"
            " another call on the same thread; nothing was published"
        )

    @synchronized
    def _complete_ready(self) -> Collection[Waker]:
        """End the readings that need not wait any more; return the wakers to wake.

        Those that have ended before and not yet left are woken once more, which does no harm.
        """
        wakers: dict[Waker, None] = {}
        for reading in list(self._waiting):
            is_newer = reading.after < self.current.version
            # One that has ended and not left yet is woken, too: the caller that has ended it may
            # have been interrupted before the wake.
            if reading.state is PENDING and not (is_newer or self.is_closed):
                continue
            assert reading.waker is not None
            if reading.state is PENDING:
                reading.found = self.current if is_newer else None
                reading.state = DONE
                reading.waker.notify(reading)
            else:
                self._waiting.pop(reading, None)
            wakers[reading.waker] = None
        return wakers

    def _complete_after_interrupt(self) -> None:
        """Undo the effect of a signal handler that has raised before all were ended and woken."""
        deliver(self._complete_ready(), from_anywhere=True)

    def close(self, cause: BaseException | None) -> None:
        """Publish no more, and end the waits. See `LatestFace`."""
        if cause is not None and not isinstance(cause, BaseException):
            raise InvalidArgumentError(f"cause: got {cause!r}; expected an exception or None")
        try:
            apply_deferred(self._close, cause)
        except BaseException:
            self._complete_after_interrupt()
            raise

    @synchronized
    def _close(self, cause: BaseException | None) -> Collection[Waker]:
        if self.is_closed:
            return ()
        self.has_begun = True
        self.cause = cause
        self.is_closed = True  # last: readers look at it without the lock
        return self._complete_ready()

    def newest(self) -> Versioned[Any]:
        """Return the current value and its version, which is 0 before the first."""
        return self.current

    def newer(self, version: int) -> Versioned[Any] | None:
        """Return the newest value, if its version is after the given one; ``None`` to wait for it.

        Raises:
            OutOfRangeError: it will never come.
        """
        # In this order: once closed, the current value is the last one.
        # The other way round, a value that is published in between, before the close, would be
        # missed: the reader would get the end instead.
        is_closed, current = self.is_closed, self.current
        if current.version > version:
            return current
        if is_closed:
            raise self.end_error(version)
        return None

    def end_error(self, version: int) -> BaseException:
        """Make the error of a reader that waits for a version that will never come."""
        after = f"after {version}" if version else "at all"
        end = OutOfRangeError(
            f"{self} is closed, and no version {after} was published", queue=self.name
        )
        return self._with_cause(end)

    def _with_cause(self, error: BaseException) -> BaseException:
        error.__cause__ = self.cause
        return error

    def new_waker(self) -> Any:
        """Make a waker for a thread that waits here."""
        return ThreadWaker()

    def begin(self, reading: PendingRead, waker: Waker, runner: Any) -> None:
        """Begin to wait. The reading may be done at once.

        Args:
            reading: the caller's attempt.
            waker: the caller's waker.
            runner: the caller's thread or task.
        """
        reading.began, reading.owner = perf_counter(), Owner(runner)
        reading.host, reading.waker = self, waker
        meter = current_meter.get()
        if meter is not None:
            meter.wait_started(reading, self.name, reading.began)
        register_wait(reading, runner)
        deliver(self._begin(reading))

    @synchronized
    def _begin(self, reading: PendingRead) -> Collection[Waker]:
        self.has_begun = True
        # `newer` has looked without the lock. What was published or closed since is seen here;
        # a later one finds the reading in the table.
        self._waiting[reading] = None
        is_over = self.is_closed or reading.after < self.current.version
        return self._complete_ready() if is_over else ()

    def end(self, reading: PendingRead) -> None:
        """Clean up after a wait, whatever ended it."""
        meter = current_meter.get()
        if meter is not None:
            meter.wait_ended(perf_counter())
        unregister_wait(reading)
        apply_deferred(self.withdraw, reading)

    def outcome(self, reading: PendingRead) -> Versioned[Any]:
        """Return what a reading that is done has found.

        Raises:
            OutOfRangeError: the end.
        """
        if reading.found is None:
            raise self.end_error(reading.after)
        return reading.found

    # What wakers and `apply_deferred` require of a host, as of a machine.

    @synchronized
    def withdraw(
        self, attempt: Attempt, waited: float = 0.0, *, if_pending: bool = False
    ) -> Collection[Waker]:
        """End the wait of a caller that is not to wait any more. It has taken nothing."""
        assert isinstance(attempt, PendingRead)
        self._waiting.pop(attempt, None)
        if attempt.state is PENDING:
            attempt.state = WITHDRAWN
        return ()

    def is_entered_here(self) -> bool:
        return is_held_here(self._lock)

    # What explanations require of a place where callers wait.

    def _pending(self) -> list[PendingRead]:
        return [reading for reading in list(self._waiting) if reading.state is PENDING]

    def waits(self, frames: Mapping[int, FrameType]) -> Iterable[ExplainedWait]:
        for reading in self._pending():
            seconds = perf_counter() - reading.began
            name = reading.owner.name
            what = f"waits for a version after {reading.after} of {self}"
            what += f", whose version is {self.current.version}"
            # No root cause: the publisher may have nothing new now.
            yield ExplainedWait(name, what, seconds, key=reading.owner.key)

    def waits_move(self) -> Hashable:
        """Return the version: it changes with each value."""
        return self.current.version

    def longest_of_waits(self) -> float:
        return max((perf_counter() - one.began for one in self._pending()), default=0.0)

    def waits_for(self, coordinator: object) -> bool:
        """Return false: a reader may rightly wait for long, so a watchdog ignores it."""
        return False
