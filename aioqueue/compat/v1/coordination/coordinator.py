"""`tf.train.Coordinator` and `LooperThread`, on `aioqueue.sync`: `join` raises one failure."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import TracebackType
from typing import Any

import aioqueue
from aioqueue import sync

__all__ = ("Coordinator", "LooperThread")

_log = logging.getLogger("aioqueue.compat")

_Report = BaseException | tuple[Any, BaseException | None, TracebackType | None] | None


class Coordinator:
    """Stops a set of threads together, waits for them, and raises the first failure."""

    def __init__(
        self, clean_stop_exception_types: Iterable[type[BaseException]] | None = None
    ) -> None:
        if clean_stop_exception_types is None:
            clean_stop_exception_types = (aioqueue.OutOfRangeError,)
        self._clean_types = tuple(clean_stop_exception_types)
        # This class keeps the failures, so the native coordinator needs no clean stop exceptions.
        self._stopping = sync.Coordinator(clean_stop_exception_types=())
        self._lock = threading.RLock()  # guards all below; a signal handler may request a stop
        self.joined: bool = False
        self._stop_time = 0.0
        self._registered_threads = _Threads(self._stopping)
        self._failures: list[BaseException] = []
        self._first_cause: BaseException | None = None

    def __repr__(self) -> str:
        state = "joined" if self.joined else "stopped" if self.should_stop() else "running"
        return f"<{type(self).__name__} {state}, {len(self._failures)} failures>"

    def request_stop(self, ex: _Report = None) -> None:
        """Ask all threads to stop; `join` raises the first exception that is given.

        Its ``__cause__`` lists those after it. After a stop without an exception, all are dropped.
        """
        error = _exception_of(ex)
        if isinstance(error, self._clean_types):
            error = None
        with self._lock:
            if error is not None and self.joined:
                raise error
            stopped = self._stopping.should_stop()
            if error is not None and (not stopped or self._adds(error)):
                if not self._failures:
                    self._first_cause = error.__cause__
                self._failures.append(error)
            if stopped:
                return
            self._stop_time = monotonic()
        self._stopping.request_stop()

    def _adds(self, error: BaseException) -> bool:
        """Whether to report a failure after the first one: not if the stop has caused it."""
        ended = (aioqueue.CancelledError, aioqueue.QueueClosedError, aioqueue.OutOfRangeError)
        return bool(self._failures) and not (
            isinstance(error, ended) or any(error is one for one in self._failures)
        )

    def clear_stop(self) -> None:
        """Forget the stop and the failures, so that the coordinator can be used again."""
        with self._lock:
            self.joined = False
            self._failures = []
            self._stopping.clear_stop()

    def should_stop(self) -> bool:
        """Whether a stop was requested."""
        return self._stopping.should_stop()

    @contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """A context in which any exception requests a stop, and is not raised further."""
        try:
            yield
        except BaseException as error:  # SystemExit too: as in TensorFlow, `join` raises it
            self.request_stop(error)

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait until a stop is requested."""
        return self._stopping.wait_for_stop(None if timeout is None else max(0.0, timeout))

    def register_thread(self, thread: threading.Thread) -> None:
        """Let `join` wait for a thread."""
        with self._lock:
            self._registered_threads.add(thread)

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait for the threads to end by themselves or after a stop; raise the first failure."""
        still_running: tuple[str, ...] = ()
        found: aioqueue.StillRunningError | None = None  # which says where they are
        try:
            self._stopping.join(
                None if threads is None else map(self._registered_threads.joined, threads),
                stop_grace_period=self._native_grace(stop_grace_period_secs),
                ignore_live=False,
            )
        except* aioqueue.StillRunningError as group:
            for error in group.exceptions:
                assert isinstance(error, aioqueue.StillRunningError)
                still_running += error.workers
                found = error
        with self._lock:
            self.joined = True
            self._registered_threads.clear()
        self.raise_requested_exception()
        if still_running:
            message = f"Coordinator stopped with threads still running: {' '.join(still_running)}"
            if not ignore_live_threads:
                raise RuntimeError(message) from found
            _log.info(message)

    def raise_requested_exception(self) -> None:
        """Raise the first exception that was reported, as `join` does; or return."""
        with self._lock:
            failures = list(self._failures)
        if not failures:
            return
        if len(failures) == 1:
            raise failures[0]
        group = BaseExceptionGroup(f"{len(failures)} failures among threads", failures)
        group.__cause__ = self._first_cause
        raise failures[0] from group

    def _native_grace(self, seconds: float) -> float:
        """The same grace period counted from the stop, as the native coordinator counts it."""
        with self._lock:
            if seconds >= 0 and self._stopping.should_stop():
                return seconds + monotonic() - self._stop_time
            return seconds


class _Threads(set[threading.Thread]):
    """The registered threads of a coordinator; some scripts add to them."""

    def __init__(self, stopping: sync.Coordinator) -> None:
        super().__init__()
        self._stopping = stopping
        self._joined: dict[int, _Joined] = {}

    def add(self, thread: threading.Thread) -> None:
        self._stopping.register(self.joined(thread))
        super().add(thread)

    def joined(self, thread: Any) -> Any:
        """The object that stands for a thread in the native coordinator, always the same one."""
        if not isinstance(thread, threading.Thread):
            return thread
        found = self._joined.get(id(thread))
        if found is None or found.thread is not thread:
            living = {key: one for key, one in self._joined.items() if one.is_alive()}
            found = _Joined(thread)
            self._joined = {**living, id(thread): found}
        return found


class _Joined(threading.Thread):
    """A thread that the native coordinator waits for, without waking it at the stop.

    TensorFlow's stop ends no waits: a consumer still takes the elements that arrive.
    """

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = thread
        super().__init__(name=thread.name, daemon=thread.daemon)

    # It is equal to its thread, because `threading` compares threads at the end of the program.

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.thread

    def __hash__(self) -> int:
        return hash(self.thread)

    @property
    def ident(self) -> int | None:
        return self.thread.ident

    def is_alive(self) -> bool:
        # A thread that calls `join` does not wait for itself.
        return self.thread is not threading.current_thread() and self.thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        self.thread.join(timeout)


class LooperThread(threading.Thread):
    """A daemon thread that calls a function again and again until its coordinator stops.

    Calls follow a fixed grid of times that begins with the first call; missed calls are made up.
    """

    def __init__(
        self,
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., object] | None = None,
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(coord, Coordinator):
            raise ValueError(f"'coord' argument must be a Coordinator: {coord}")
        if target is None and (args or kwargs):
            raise ValueError("'args' and 'kwargs' argument require that you also pass 'target'")
        super().__init__(daemon=True)
        self._coord = coord
        self._timer_interval_secs = timer_interval_secs
        self._looped = target
        self._positional = tuple(args or ())
        self._named = dict(kwargs or {})
        coord.register_thread(self)

    @staticmethod
    def loop(
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., object],
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> LooperThread:
        """Make a looper thread and start it; the arguments are those of the class."""
        looper = LooperThread(coord, timer_interval_secs, target, args, kwargs)
        looper.start()
        return looper

    def run(self) -> None:
        with self._coord.stop_on_exception():
            self.start_loop()
            if self._timer_interval_secs is None:
                while not self._coord.should_stop():
                    self.run_loop()
            else:
                next_call = monotonic()
                while not self._coord.wait_for_stop(next_call - monotonic()):
                    next_call += self._timer_interval_secs
                    self.run_loop()
            self.stop_loop()

    def start_loop(self) -> None:
        """Called once, before the first call."""

    def run_loop(self) -> None:
        """Called again and again; calls the target, if there is one."""
        if self._looped is not None:
            self._looped(*self._positional, **self._named)

    def stop_loop(self) -> None:
        """Called once, after the last call, unless one failed."""


def _exception_of(report: _Report) -> BaseException | None:
    if report is None or isinstance(report, BaseException):
        return report
    if isinstance(report, tuple) and len(report) == 3:
        kind, error, traceback = report
        if error is None and isinstance(kind, type) and issubclass(kind, BaseException):
            error = kind()
        if isinstance(error, BaseException):
            return error.with_traceback(traceback)
        if report == (None, None, None):
            return None
    raise TypeError(f"ex: got {report!r}; expected an exception, sys.exc_info() or None")
