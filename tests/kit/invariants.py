"""What holds of a machine between two moves, whenever its lock is free: each move restores it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aioqueue.core.attempts import CLOSED, CLOSING, GRANTED, OPEN, PENDING, Put, PutMany, Take
from aioqueue.core.fast_path import INFINITY
from aioqueue.core.machine import Machine
from aioqueue.system.locks import call_with_lock

__all__ = ("violations",)


def violations(machine: Machine) -> list[str]:
    """Return the invariants that are violated, in words; empty if there are none."""
    return call_with_lock(machine._lock, _found, machine)


def _found(machine: Any) -> list[str]:
    checks = (_lines, _standby, _grants, _waits, _phase, _waiting, _joins, _bounds, _counts)
    return [problem for check in checks for problem in check(machine)]


def _lines(m: Any) -> Iterator[str]:
    """Attempts in line are pending, are in the right line, and hold nothing."""
    for attempt in [*m._enqueues, *m._dequeues, *m._wait_lists.until_closed]:
        if attempt.state is not PENDING:
            yield f"an attempt in line is {attempt.state.value}"
        if attempt.host is not m or attempt.waker is None:
            yield "an attempt in line has another host, or no waker"
    if not all(isinstance(attempt, Put | PutMany) for attempt in m._enqueues):
        yield "an attempt in the line of enqueues is not an enqueue"
    if not all(isinstance(attempt, Take) for attempt in m._dequeues):
        yield "an attempt in the line of dequeues is not a dequeue"
    if any(attempt.held.count for attempt in m._dequeues):
        yield "a dequeue that waits holds rows"
    if any(isinstance(put, PutMany) and put.done >= put.n for put in m._enqueues):
        yield "a batch is completely in and still waits"
    if any(isinstance(put, PutMany) and put.done for put in list(m._enqueues)[1:]):
        yield "a batch that is not first in line has begun to go in"


def _standby(m: Any) -> Iterator[str]:
    """Attempts that stand by are pending; nobody waits, and the queue is open."""
    for attempt in m._standby_attempts():
        if attempt.state is not PENDING or attempt.waits or attempt.host is not m:
            yield "an attempt that stands by is not pending, waits, or has another host"
        if m._enqueues or m._dequeues or m._state is not OPEN:
            yield "an attempt stands by, but others wait, or the queue is not open"


def _grants(m: Any) -> Iterator[str]:
    """Granted attempts are marked so; the places belong to one waker of two steps."""
    if any(put.state is not GRANTED for put in m._places):
        yield "an enqueue has a place but is not granted"
    if any(take.state is not GRANTED or not take.held.count for take in m._granted):
        yield "a dequeue in the list of grants is not granted, or holds no rows"
    wakers = {id(put.waker) for put in m._places}
    if len(wakers) > 1 or any(not put.waker.two_step for put in m._places):
        yield "places belong to several wakers, or to a waker of one step"
    if m._wait_lists.promised != sum(m._places.values()):
        yield "the bytes of the places do not add up to `promised`"
    if m._beginning is not None:
        yield "an attempt is still beginning"


def _waits(m: Any) -> Iterator[str]:
    """Each waiting attempt is noted as such, and no other but one that was just granted. A lease
    that was granted at once has not waited."""
    granted = [take for take in m._granted if take.waits]
    noted = [*m._enqueues, *m._dequeues, *m._places, *granted, *m._standby_attempts()]
    for attempt in noted:
        if attempt not in m._waiting:
            yield "the wait of an attempt is not noted"


def _phase(m: Any) -> Iterator[str]:
    """Closing ends with the last enqueue that began before it."""
    comes = bool(m._enqueues or m._places)
    if m._state is CLOSING and not comes:
        yield "it is closing, but nothing can still come in"
    if m._state is CLOSED and (comes or m._wait_lists.until_closed):
        yield "it is closed, but an enqueue or a `wait_closed` waits"


def _waiting(m: Any) -> Iterator[str]:
    """No attempt waits that could proceed."""
    put, take = next(iter(m._enqueues), None), next(iter(m._dequeues), None)
    if put is not None and m._rows_to_enter(put) and (not m._places or m._may_join_places(put)):
        yield "the first enqueue in line could proceed"
    if take is not None:
        available = m._available()
        least = 1 if take.expired else take.n
        if available >= least:
            yield "the first dequeue in line has all that it needs"
        if m._state is CLOSED and m._no_rows_can_return(take, available):
            yield "a dequeue waits for rows that will not come"


def _joins(m: Any) -> Iterator[str]:
    """A join waits only for rows that somebody may still finish."""
    joins = m._wait_lists.until_done
    if any(join.state is not PENDING or join.host is not m for join in joins):
        yield "a join in line is not pending, or has another host"
    if joins and (m._enqueued == m._finished or m._has_failed()):
        yield "a join waits, though all is done, or cannot be"


def _bounds(m: Any) -> Iterator[str]:
    """The bounds of the fast path follow from the state."""
    bounds = (m._bound_in, m._bound_out)
    m._set_bounds()
    if m._standby_put is not None:
        m._bound_in = -1
    if m._standby_take is not None:
        m._bound_out = INFINITY
    if bounds != (m._bound_in, m._bound_out):
        yield f"the bounds were {bounds}; they should be {(m._bound_in, m._bound_out)}"
    if m._bound_in >= 0 and (m._state is not OPEN or m._enqueues or m._places):
        yield "the fast path in is open but should not be"
    if m._bound_out != float("inf") and (m._dequeues or m._enqueues or m.storage.returned):
        yield "the fast path out is open but should not be"


def _counts(m: Any) -> Iterator[str]:
    """Every row that went in is inside, claimed, held by an attempt, or out."""
    counts = m.statistics()
    numbers = (counts.size, counts.dequeued, counts.granted, counts.claimed)
    if min(numbers) < 0 or sum(numbers) != counts.enqueued:
        yield f"the counts do not add up: {counts}"
    if not 0 <= counts.unfinished <= counts.enqueued:
        yield f"more is finished than went in, or less than nothing: {counts}"
    if m._brings_sizes and (m._bound_in >= 0 or counts.bytes is None):
        yield "rows with sizes go in by the fast path, or are not counted"
    if counts.bytes and not m.storage.size:
        yield f"{counts.bytes} bytes but no rows are inside"
    tickets = [ticket for ticket, _ in m.storage.returned]
    if tickets != sorted(tickets):
        yield "rows that are back are out of order"
