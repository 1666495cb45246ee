"""How work ends: with the last run that fills a queue, at exit, in a join, and by a drain.

**The end of a queue.** A queue has one end. Any number of runs may fill it, of any kind of runner
and through either face; the queue is closed when the last of them has ended. A run that ends
earlier leaves its part of the closing to one that continues. Once the last run has ended, the queue
counts as closed, however long its `close_op` takes: a run that begins then is too late. This file
keeps neither queues nor runs alive, so a run that is dropped before its end does not hold a queue
open.

**Exit.** A script may end without a ``finally`` that stops its workers. Python then waits for each
thread that is not a daemon. It would wait for ever for a worker that waits for room in a queue
without consumers. So, when the main thread has ended:

1. The program's other threads are joined, as Python does. They may be consumers, which should get
   all their data.
2. Every coordinator and runner that has threads is asked to stop. Workers that wait, in a queue or
   for the stop, end at once. One that computes ends after its current call; Python waits for it.
3. Daemon threads end with the interpreter, wherever they are. Before that they are asked to stop,
   too, and have `DAEMON_GRACE` seconds, so that few of them are cut off in the middle of a call.

Elements in the queues are lost with the process. So is an element that a worker cannot enqueue into
a closed queue: no consumer is left.

Python allows no new threads once the interpreter ends, and it runs `threading`'s own exit hooks
before ours. So a daemon thread, started with the first worker, joins the main thread. Python lets
threads join it like any other.

**Join.** The helpers of a join: what it waits for, which workers it gives up, what it raises.

**Drain.** A drain ends the sources of a coordinator and still delivers what is in flight. It ends
the runs that fill queues. A run that takes from a queue continues until that queue ends, so the end
passes through a chain of queues like any other end, just earlier. `Draining` keeps track of the
runs and queues, and `undelivered` reports what is left when the time is up.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any, Final, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

from aioqueue.base.display_text import LogLines, on_one_line
from aioqueue.base.tracebacks import shorten, title_of
from aioqueue.coordination.classify import leaves_of
from aioqueue.coordination.no_queue import NoQueue
from aioqueue.coordination.workers import Worker, format_with_places
from aioqueue.errors import StillRunningError, UndeliveredError, copy_exception, counted
from aioqueue.queues.queue_core import QueueCore, QueueFace
from aioqueue.system.locks import call_with_lock, synchronized
from aioqueue.telemetry.explain.registry import forget_run, note_run
from aioqueue.worlds.scopes import StopScope, all_waits, watch
from aioqueue.worlds.waker import in_event_loop

MIN_CLEAN_UP: Final = 10.0
"""How many seconds tasks have at least for their clean-up, once they were cancelled again."""

DEFAULT_GRACE: Final = 120.0
"""How many seconds workers have to end after a stop."""

DAEMON_GRACE: Final = 1.0
"""How many seconds all daemon threads together have to end at exit."""

_log = logging.getLogger("aioqueue")


class Stoppable(Protocol):
    """An object that has workers on threads and can ask them to end."""

    def worker_threads(self) -> list[threading.Thread]:
        """Return the threads. Some may have ended."""

    def stop_at_exit(self) -> None:
        """Ask the threads to end. Does not wait."""


_lock = threading.RLock()  # guards everything below
_stoppables: WeakSet[Stoppable] = WeakSet()
_watcher: threading.Thread | None = None
_is_registered = False


def stop_at_exit(stoppable: Stoppable) -> None:
    """Register an object whose threads are to be asked to stop when the program ends.

    Args:
        stoppable: the object; it is not kept alive.
    """
    call_with_lock(_lock, _register_stoppable, stoppable)


def is_watcher(thread: threading.Thread) -> bool:
    """Return whether a thread is our watcher of the main thread, which is never joined."""
    return thread is _watcher


def _register_stoppable(stoppable: Stoppable) -> None:
    global _is_registered, _watcher
    _stoppables.add(stoppable)
    # At the first worker: hooks run in reverse order, so this one runs before those of all that was
    # imported until then, and the workers still find it.
    if not _is_registered:
        _is_registered = True
        atexit.register(stop_daemons)
    if all(thread.daemon for thread in stoppable.worker_threads()):
        return
    if _watcher is None or not _watcher.is_alive():  # a fork has no watcher
        watcher = threading.Thread(
            target=_stop_when_main_has_ended, name="MainThreadWatcher", daemon=True
        )
        try:
            watcher.start()
        except RuntimeError:
            return  # no thread is available, or the program is ending; the next worker tries again
        _watcher = watcher


def _stop_when_main_has_ended() -> None:
    threading.main_thread().join()
    # Threads of the program may start others. When only workers are left, nobody consumes any more.
    while others := _running_threads(threading.enumerate()) - _workers():
        for thread in others:
            thread.join()
    _stop_all(daemon=False)


def stop_daemons() -> None:
    """Ask daemon threads to stop at exit, and give them a moment to end."""
    threads = _stop_all(daemon=True)
    # All are asked before any is joined: they end together, within one second in all.
    deadline = monotonic() + DAEMON_GRACE
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))


def _stop_all(*, daemon: bool) -> list[threading.Thread]:
    """Ask all objects with living threads of one kind to stop; return these threads."""
    found: list[threading.Thread] = []
    for stoppable in _all_stoppables():
        threads = _running_threads(stoppable.worker_threads(), daemon=daemon)
        if not threads:
            continue
        found += threads
        names = " ".join(sorted(thread.name for thread in threads))
        _log.info("the program has ended; its workers are asked to stop: %s", names)
        try:
            stoppable.stop_at_exit()
        except Exception:  # from a `cancel_op`, say: the others must be asked nevertheless
            _log.exception("workers could not be stopped at exit")
    return found


def _running_threads(
    threads: Iterable[threading.Thread], *, daemon: bool = False
) -> set[threading.Thread]:
    return {thread for thread in threads if thread.is_alive() and thread.daemon is daemon}


def _workers() -> set[threading.Thread]:
    return {thread for stoppable in _all_stoppables() for thread in stoppable.worker_threads()}


def _all_stoppables() -> list[Stoppable]:
    return call_with_lock(_lock, list, _stoppables)


SLOW_STOP: Final = 5.0
"""How many seconds a stop may take before a warning names the workers that it waits for."""


def failure_group(failures: list[BaseException]) -> BaseExceptionGroup[BaseException]:
    """Make one group of all failures: an `ExceptionGroup` if each of them is an `Exception`."""
    group = BaseExceptionGroup(title_of(failures), failures)
    shorten(group)
    return group


class RaisedFailures:
    """Failures that a join has raised as themselves, instead of a group of one.

    They belong to the code that catches them, with the frames in their tracebacks. So copies take
    their places in the reports of later joins, and as the causes of queues: else these
    would keep alive what the frames keep, the queues themselves among it.
    """

    def __init__(self) -> None:
        self._copies: dict[int, BaseException] = {}  # by the identity of what was given away

    def __iter__(self) -> Iterator[int]:
        return iter(self._copies)

    def includes(self, error: BaseException) -> bool:
        return type(self._copies.get(id(error))) is type(error)

    def exception_to_raise(
        self,
        raised: BaseException,
        block_error: BaseException | None,
        failures: list[BaseException],
        queues: Iterable[QueueCore],
    ) -> BaseException:
        """Return what to raise instead of a group: its failure itself, if it has only one.

        Args:
            raised: what a join has raised.
            block_error: what has left the block that is joined.
            failures: what the coordinator keeps, where a copy takes the place of the failure.
            queues: those that may have it as their cause: a copy takes its place there, too.
        """
        if not isinstance(raised, BaseExceptionGroup) or len(raised.exceptions) > 1:
            return raised
        single: BaseException = raised.exceptions[0]
        # The block was left by this failure, or by one that a join inside has raised and whose copy
        # is reported since. `__exit__` lets it pass, with its own traceback.
        if block_error is not None and (
            single is block_error or single is self._copies.get(id(block_error))
        ):
            return block_error
        copy = copy_exception(single)
        # If it cannot be copied, it stays in the reports: rather a cycle than a lost failure.
        if copy is not None:
            self._copies[id(single)] = copy
            failures[:] = [copy if one is single else one for one in failures]
            for queue in queues:
                queue.machine.replace_cause(single, copy)
        return single


def end_join(failures: list[BaseException], stragglers: list[Worker], ignore_live: bool) -> None:
    if stragglers:
        error = still_running(stragglers)
        if ignore_live:
            _log.warning("%s", LogLines(error))
        else:
            failures.append(error)
    if failures:
        raise failure_group(failures)


def still_running(workers: list[Worker]) -> StillRunningError:
    """Make the error for workers that a join gives up; it says where each of them is."""
    names = tuple(worker.name for worker in workers)
    return StillRunningError(
        f"coordinator stopped with workers still running: {on_one_line(' '.join(names))}"
        + format_with_places(workers),
        workers=names,
    )


def joinable(workers: list[Worker]) -> list[Worker]:
    """Return the workers that can be waited for: alive, and not the caller."""
    return [worker for worker in workers if worker.is_alive() and not worker.is_current()]


def refuse_blocked_tasks(workers: list[Worker]) -> None:
    """Refuse to wait for tasks whose event loop the wait itself would block.

    This concerns only the cell of a notebook: elsewhere, a call that blocks a loop raises earlier.

    Raises:
        RuntimeError: there are such tasks among the workers.
    """
    names = [worker.name for worker in workers if worker.is_blocked_by_caller()]
    if names and not in_event_loop():
        raise RuntimeError(
            f"join would have to wait for {counted(len(names), 'task')} of the event loop that runs"
            f" this cell ({' '.join(names)}), and they cannot run before the cell ends: use"
            " `await coord.aio.join(...)` here, or run them on threads"
        )


def cancel_all(workers: list[Worker]) -> list[Worker]:
    return [worker for worker in workers if worker.cancel()]


def warn_of_interrupt(workers: list[Worker]) -> None:
    if workers:
        _log.warning(
            "the join was interrupted, with %s still running:%s",
            counted(len(workers), "worker"),
            format_with_places(workers),
        )


def warn_of_stragglers(failure: BaseException | None, workers: Sequence[Worker]) -> None:
    """Log a warning that names the tasks that a block goes on waiting for, and where they are.

    They are reported when the block ends. That may be never.

    Args:
        failure: what the join of the block raises: only if it has given up some.
        workers: the tasks that have not ended.
    """
    leaves = () if failure is None else leaves_of(failure)
    if workers and any(isinstance(leaf, StillRunningError) for leaf in leaves):
        _log.warning(
            "%s still running after the grace period, and as long again; the block that started"
            " them goes on waiting:%s",
            counted(len(workers), "task"),
            format_with_places(workers),
        )


def warn_of_slow_stop(
    workers: list[Worker], grace: float, *, whose: str = "", until: str = ""
) -> None:
    """Log a warning that names the workers that delay a stop, and where they are.

    Args:
        workers: the workers that have not ended.
        grace: how many seconds the wait for them lasts in all.
        whose: what waits, if it is not a coordinator.
        until: what the wait is for, if it is an end and not a stop.
    """
    if workers:
        _log.warning(
            "%s%s still running %g s after %s; waiting for %s:%s",
            f"{whose}: " if whose else "",
            counted(len(workers), "worker"),
            SLOW_STOP,
            "the end" if until else "the stop",
            until or f"{grace:g} s in all",
            format_with_places(workers),
        )


def end_waits(scopes: Collection[StopScope]) -> None:
    """End the calls in which the workers of some scopes wait now, or will wait."""
    # A call that begins while its worker has a scope finds that by itself. One that began before,
    # as the worker was not registered yet, is looked for here, at the stop: once for all workers.
    # (To look at each registration would cost the square of the workers.) A call that both find
    # is watched twice, which does no harm.
    by_worker = {scope.key: scope for scope in scopes}
    if by_worker:
        for attempt, waiting in all_waits():
            scope = by_worker.get(id(waiting))
            if scope is not None:
                watch((scope,), attempt, attempt.began)
    for scope in scopes:
        scope.cancel()


class Drainable(Protocol):
    """A run that fills a queue."""

    @property
    def filled(self) -> QueueFace | NoQueue:
        """The queue that it fills, if any."""

    def drain(self) -> None:
        """Accept nothing new, finish what has begun, and end. Returns at once; thread-safe."""

    def in_flight(self) -> int:
        """Return how many items were taken from the source and are not in the queue, if known."""

    def unfinished_workers(self) -> tuple[str, ...]:
        """Return the names of the workers that have not ended."""


class Draining:
    """The runs of a coordinator that have not ended, and the queues that they fill. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards everything below
        self._runs: dict[Drainable, None] = {}
        self._queues: WeakSet[QueueCore] = WeakSet()
        self._drain: object | None = None

    @property
    def current(self) -> object | None:
        """The token of the requested drain; ``None`` if none was requested."""
        return self._drain

    def add_run(self, run: Drainable) -> None:
        """Register a run. If a drain was requested, the run ends at once."""
        # Under the lock of `request`: either the drain lists the run, or the drain is seen here.
        # Both may happen; a second call of `Drainable.drain` changes nothing.
        if self._register(run):
            run.drain()

    @synchronized
    def remove_run(self, run: Drainable) -> None:
        self._runs.pop(run, None)

    @synchronized
    def request(self) -> object:
        """Request a drain, if none was requested; return its token."""
        if self._drain is None:
            self._drain = object()
        return self._drain

    @synchronized
    def reset(self) -> None:
        self._drain = None

    @synchronized
    def runs(self) -> list[Drainable]:
        return list(self._runs)

    @synchronized
    def queues(self) -> list[QueueCore]:
        return list(self._queues)

    @synchronized
    def _register(self, run: Drainable) -> bool:
        self._runs[run] = None
        if not isinstance(run.filled, NoQueue):
            self._queues.add(run.filled._core)
        return self._drain is not None


def undelivered(
    runs: Iterable[Drainable],
    queues: Iterable[QueueCore],
    workers: Sequence[Worker],
    seconds: float,
) -> UndeliveredError | None:
    """Return the error of a drain that ran out of time; ``None`` if everything was delivered.

    Args:
        runs: the runs that have not ended.
        queues: all queues that were filled.
        workers: the known workers.
        seconds: the time that the drain had.
    """
    inside, items = Counter[str](), Counter[str]()  # names need not be unique
    for queue in queues:
        inside[queue.name] += queue.recent_statistics().size
    inside = +inside
    unfinished = [(run, names) for run in runs if (names := run.unfinished_workers())]
    if not inside and not unfinished:
        return None
    for run, _ in unfinished:
        items[run.filled.name] += run.in_flight()
    items = +items
    names = tuple(name for _, some in unfinished for name in some)
    parts = [f"{counted(size, 'element')} in '{name}'" for name, size in inside.items()]
    parts += [f"up to {counted(n, 'item')} on the way to '{name}'" for name, n in items.items()]
    if names:
        parts.append(f"{counted(len(names), 'worker')} had not ended")
    places = format_with_places([one for one in workers if one.name in names and one.is_alive()])
    return UndeliveredError(
        f"a drain did not deliver everything within its {seconds:g} s: {', '.join(parts)}" + places,
        elements=dict(inside),
        items=dict(items),
        workers=names,
    )


class Producer(Protocol):
    """A run, as far as its queue is concerned."""

    def inherit(self, other: Any) -> None:
        """Take over the closing of an ended run that filled the same queue."""


FillerT = TypeVar("FillerT", bound=Producer)

_filling: Final = threading.RLock()  # guards everything below, and what runs leave to each other
_runs: Final[WeakKeyDictionary[object, WeakSet[Producer]]] = WeakKeyDictionary()
_closing: Final[WeakSet[object]] = WeakSet()  # queues that their last run is closing now


def begin_to_fill(queue: QueueFace | NoQueue, run: Producer) -> bool:
    """Register a run that fills a queue: no other run closes the queue until this one has ended.

    Returns:
        Whether the run is in time; if not, the queue is closed or just being closed.
    """
    # Registered even if it is too late: its end finds it here. `_closing` is asked besides
    # `is_closed`, because a `close_op` may take long before it closes the queue.
    return not call_with_lock(_filling, _begin, queue._core, run) and not queue.is_closed()


def end_to_fill(queue: QueueFace | NoQueue, run: FillerT) -> FillerT | None:
    """Unregister a run that has ended; return a run that continues and takes over its closing.

    If it returns ``None``, the run has to close the queue itself, and then call `note_closed`.
    """
    return cast(FillerT | None, call_with_lock(_filling, _end, queue._core, run))


def note_closed(queue: QueueFace | NoQueue) -> None:
    """Note that the last run has closed the queue, by whatever its `close_op` does."""
    call_with_lock(_filling, _closing.discard, queue._core)


def close_unless_filled(queue: QueueFace) -> None:
    """Close a queue that no run fills. Its elements can still be taken."""
    if not call_with_lock(_filling, _is_filled, queue._core):
        queue.close()


def _is_filled(queue: object) -> bool:
    return bool(_runs.get(queue))


def _begin(queue: object, run: Producer) -> bool:
    """Register a run; return whether it is too late."""
    if queue not in _runs:
        _runs[queue] = WeakSet()
    _runs[queue].add(run)
    note_run(run)
    return queue in _closing


def _end(queue: object, run: Producer) -> Producer | None:
    runs = _runs.get(queue, WeakSet())
    runs.discard(run)
    forget_run(run)
    successor = next(iter(runs), None)
    if successor is None:
        # In one step with the removal: a run that begins now must see that it is too late.
        _runs.pop(queue, None)
        _closing.add(queue)
    else:
        successor.inherit(run)
    return successor
