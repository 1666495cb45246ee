"""The end of the program: workers that only wait do not keep the process alive.

A script may end without a ``finally`` that stops its workers. Python then waits for every thread
that is no daemon, and a worker that waits for room in a queue which nobody empties any more would
be waited for without end. So, when the main thread has ended:

1. The threads of the program that are no workers are waited for, as Python does: they may be
   consumers, who are to have all that they came for.
2. Then every coordinator and every runner that has threads is asked to stop. Workers that wait, in
   a queue or for the stop, end by it; one that computes ends after its call, and Python waits for
   that.
3. Daemons end with the interpreter, wherever they are. Before that they are asked to stop as well
   and have `LAST_CALL` seconds, so that few are struck down in the middle of a call.

What is in the queues then is gone with the process, and so is an element for which a worker finds
its queue closed: there is nobody left to take it.

No thread may be started once the interpreter ends, and what runs in `threading`'s own hooks runs
before the others that end threads. So a daemon thread that has been there from the first worker on
waits for the end of the main thread, which Python lets threads join as any other.

What a join waits for, gives up, and raises.

Draining: the sources of a coordinator end now, and what is under way is still delivered.

What ends are the runs that fill queues. Those that take from a queue which others fill go on until
it ends; so the end passes through a chain of queues as it does at the end of any input, and nothing
of it is special but that it comes earlier. Here is which runs and queues there are, and what is
left of them when the time is up.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final, Protocol
from weakref import WeakSet

from aioqueue.coordination.workers import Worker, told_with_places
from aioqueue.errors import StillRunningError, UndeliveredError, counted
from aioqueue.locks import guarded, holding
from aioqueue.queues import QueueFace
from aioqueue.queues.core import QueueCore
from aioqueue.queues.forked_queues import living_queues
from aioqueue.waiting import StopScope, in_event_loop, watch

__all__ = (
    "LAST_CALL",
    "SLOW_STOP",
    "Drainable",
    "Draining",
    "Stoppable",
    "cancel_all",
    "end_join",
    "failure_group",
    "is_watcher",
    "living",
    "refuse_to_stop",
    "still_running",
    "stop_at_exit",
    "stop_scope_of",
    "undelivered",
    "warn_of_slow_stop",
)


LAST_CALL: Final = 1.0
"""Seconds that daemons have to end at the exit, all of them together."""

_log = logging.getLogger("aioqueue")


class Stoppable(Protocol):
    """Something that has workers on threads and can ask them to end."""

    def worker_threads(self) -> list[threading.Thread]:
        """The threads, some of which may have ended."""

    def stop_at_exit(self) -> None:
        """Ask them to end. Does not wait."""


_lock = threading.RLock()  # guards all below
_stoppables: WeakSet[Stoppable] = WeakSet()
_watcher: threading.Thread | None = None
_is_registered = False


def stop_at_exit(stoppable: Stoppable) -> None:
    """See to it that workers on threads are asked to stop when the program ends.

    Args:
        stoppable: who has them; it is not kept alive by this.
    """
    holding(_lock, _note, stoppable)


def is_watcher(thread: threading.Thread) -> bool:
    """Whether a thread is the one that waits for the end of the main thread, and stays."""
    return thread is _watcher


def _note(stoppable: Stoppable) -> None:
    global _is_registered, _watcher
    _stoppables.add(stoppable)
    if not _is_registered:
        _is_registered = True
        atexit.register(_stop_daemons)
    if all(thread.daemon for thread in stoppable.worker_threads()):
        return
    if _watcher is None or not _watcher.is_alive():  # after a fork it is not there
        watcher = threading.Thread(
            target=_stop_when_main_has_ended, name="MainThreadWatcher", daemon=True
        )
        try:
            watcher.start()
        except RuntimeError:
            return  # no thread is left, or the program is ending; the next worker tries again
        _watcher = watcher


def _stop_when_main_has_ended() -> None:
    threading.main_thread().join()
    while others := _living(threading.enumerate()) - _workers():
        for thread in others:
            thread.join()
    _stop_all(daemon=False)


def _stop_daemons() -> None:
    threads = _stop_all(daemon=True)
    deadline = monotonic() + LAST_CALL
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))


def _stop_all(*, daemon: bool) -> list[threading.Thread]:
    """Ask all who have living threads of one kind to stop; returns these threads."""
    found: list[threading.Thread] = []
    for stoppable in _listed():
        threads = _living(stoppable.worker_threads(), daemon=daemon)
        if not threads:
            continue
        found += threads
        names = " ".join(sorted(thread.name for thread in threads))
        _log.info("the program has ended; its workers are asked to stop: %s", names)
        try:
            stoppable.stop_at_exit()
        except Exception:
            _log.exception("workers could not be stopped at exit")
    return found


def _living(threads: Iterable[threading.Thread], *, daemon: bool = False) -> set[threading.Thread]:
    return {thread for thread in threads if thread.is_alive() and thread.daemon is daemon}


def _workers() -> set[threading.Thread]:
    return {thread for stoppable in _listed() for thread in stoppable.worker_threads()}


def _listed() -> list[Stoppable]:
    return holding(_lock, list, _stoppables)


SLOW_STOP: Final = 5.0
"""Seconds after which a stop is slow, and a warning names the workers that it waits for."""


def failure_group(failures: list[BaseException]) -> BaseExceptionGroup[BaseException]:
    """One group of all failures; an `ExceptionGroup` if each of them is an `Exception`."""
    count = counted(len(failures), "failure")
    return BaseExceptionGroup(f"{count} among coordinated workers", failures)


def end_join(failures: list[BaseException], stragglers: list[Worker], ignore_live: bool) -> None:
    if stragglers:
        error = still_running(stragglers)
        if ignore_live:
            _log.warning("%s", error)
        else:
            failures.append(error)
    if failures:
        raise failure_group(failures)


def still_running(workers: list[Worker]) -> StillRunningError:
    """The error of workers that are given up, which says where each of them is."""
    names = tuple(worker.name for worker in workers)
    return StillRunningError(
        f"coordinator stopped with workers still running: {' '.join(names)}"
        + told_with_places(workers),
        workers=names,
    )


def living(workers: list[Worker]) -> list[Worker]:
    """Those that can be waited for."""
    return [worker for worker in workers if worker.is_alive() and not worker.is_current()]


def refuse_to_stop(workers: list[Worker]) -> None:
    """Refuse to wait for tasks of the event loop that would stand still meanwhile.

    Only the cell of a notebook gets as far: elsewhere, nothing blocks a running loop.

    Raises:
        RuntimeError: there are such tasks among the workers.
    """
    names = [worker.name for worker in workers if worker.stands_still()]
    if names and not in_event_loop():
        raise RuntimeError(
            f"join would have to wait for {counted(len(names), 'task')} of the event loop that this"
            f" cell runs in ({' '.join(names)}), and none goes on before the cell has ended: use"
            " `await coord.aio.join(...)` here, or run them on threads"
        )


def cancel_all(workers: list[Worker]) -> list[Worker]:
    """Cancel those that can be; returns them."""
    return [worker for worker in workers if worker.cancel()]


def warn_of_slow_stop(
    workers: list[Worker], grace: float, *, whose: str = "", until: str = ""
) -> None:
    """Tell by a warning which workers keep a stop waiting, and where they are.

    Args:
        workers: those that have not ended.
        grace: seconds that are waited for them in all.
        whose: who waits, if that is no coordinator.
        until: what is waited for instead, if it is no stop but an end.
    """
    if workers:
        _log.warning(
            "%s%s still running %g s after %s; waiting for %s:%s",
            f"{whose}: " if whose else "",
            counted(len(workers), "worker"),
            SLOW_STOP,
            "the end" if until else "the stop",
            until or f"{grace:g} s in all",
            told_with_places(workers),
        )


def stop_scope_of(worker: object) -> StopScope:
    """What ends the calls that a worker waits in, and that it waits in already."""
    scope = StopScope(worker)
    for queue in living_queues():
        with suppress(RuntimeError):  # of a queue that belongs to the process that has forked us
            for attempt in queue.machine.waiting():
                owner = attempt.owner
                if owner is not None and owner.thing is worker:
                    watch((scope,), attempt, attempt.began)
    return scope


class Drainable(Protocol):
    """A run that fills a queue."""

    @property
    def filled(self) -> QueueFace:
        """The queue."""

    def drain(self) -> None:
        """Take on nothing new, finish what was begun, and end. Does not wait; any thread."""

    def in_flight(self) -> int:
        """How many items were taken from the source and are not in the queue, as far as that is
        known."""

    def going(self) -> tuple[str, ...]:
        """The names of the workers that have not ended."""


class Draining:
    """The runs of a coordinator that go on, and the queues that they fill. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards all below
        self._runs: dict[Drainable, None] = {}
        self._queues: WeakSet[QueueCore] = WeakSet()
        self._drain: object | None = None

    @property
    def current(self) -> object | None:
        """What stands for the drain that was asked for; ``None`` if none was."""
        return self._drain

    def begins(self, run: Drainable) -> None:
        """A run begins, and ends at once if a drain was asked for."""
        if self._enter(run):
            run.drain()

    @guarded
    def ended(self, run: Drainable) -> None:
        """A run has ended."""
        self._runs.pop(run, None)

    @guarded
    def ask(self) -> object:
        """A drain is asked for, if none was; returns what stands for it."""
        if self._drain is None:
            self._drain = object()
        return self._drain

    @guarded
    def forget(self) -> None:
        """No drain was asked for."""
        self._drain = None

    @guarded
    def runs(self) -> list[Drainable]:
        """Those that go on."""
        return list(self._runs)

    @guarded
    def queues(self) -> list[QueueCore]:
        """All that were filled, as long as somebody has them."""
        return list(self._queues)

    @guarded
    def _enter(self, run: Drainable) -> bool:
        self._runs[run] = None
        self._queues.add(run.filled._core)
        return self._drain is not None


def undelivered(
    runs: Iterable[Drainable],
    queues: Iterable[QueueCore],
    workers: Sequence[Worker],
    seconds: float,
) -> UndeliveredError | None:
    """What was not delivered when the time of a drain was up; ``None`` if all was.

    Args:
        runs: those that go on.
        queues: all that were filled.
        workers: those that are known.
        seconds: that it had.
    """
    inside, items = Counter[str](), Counter[str]()  # names need not be unique
    for queue in queues:
        inside[queue.name] += queue.machine.statistics().size
    inside = +inside
    going = [(run, names) for run in runs if (names := run.going())]
    if not inside and not going:
        return None
    for run, _ in going:
        items[run.filled.name] += run.in_flight()
    items = +items
    names = tuple(name for _, some in going for name in some)
    parts = [f"{counted(size, 'element')} in '{name}'" for name, size in inside.items()]
    parts += [f"up to {counted(n, 'item')} on the way to '{name}'" for name, n in items.items()]
    if names:
        parts.append(f"{counted(len(names), 'worker')} had not ended")
    places = told_with_places([one for one in workers if one.name in names and one.is_alive()])
    return UndeliveredError(
        f"a drain had {seconds:g} s, which were up before all was delivered: {', '.join(parts)}"
        + places,
        elements=dict(inside),
        items=dict(items),
        workers=names,
    )
