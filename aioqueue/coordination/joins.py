"""What a join waits for, gives up, and raises."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from aioqueue.coordination.workers import Worker, told_with_places
from aioqueue.errors import StillRunningError, counted
from aioqueue.queues.forks import living_queues
from aioqueue.waiting import StopScope, in_event_loop, watch

__all__ = (
    "SLOW_STOP",
    "cancel_all",
    "end_join",
    "failure_group",
    "living",
    "refuse_to_stop",
    "still_running",
    "stop_scope_of",
    "warn_of_slow_stop",
)

SLOW_STOP: Final = 5.0
"""Seconds after which a stop is slow, and a warning names the workers that it waits for."""

_log = logging.getLogger("aioqueue")


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
