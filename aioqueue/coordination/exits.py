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
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Iterable
from time import monotonic
from typing import Final, Protocol
from weakref import WeakSet

from aioqueue.locks import holding

__all__ = ("LAST_CALL", "Stoppable", "is_watcher", "stop_at_exit", "stop_daemons")

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
        atexit.register(stop_daemons)
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


def stop_daemons() -> None:
    """The program ends: ask those who have daemons to stop, and give these a moment to end."""
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
