"""Leases: what a loop has taken from a queue, until it is known what became of each element.

A pipeline reads ahead of its loop. If the loop is left, what it has not received goes back to the
queue, to the front and in order, whether or not a function has been called with it. So an element
that a pipeline takes stays *granted* in the machine, until one of these is known:

* it was **handed out**: an example that was made of it, or a batch with one, has reached the user
  (`QueueLeases.commit`);
* it **gave nothing**: it was skipped, or a stage has left it out (`QueueLeases.commit`, too);
* it **goes back** (`QueueLeases.give_back`), at the end of the loop, however that comes.

Meanwhile, other consumers of a closed queue wait, as for any granted rows. The loop's own callers
do not, since the loop would wait for itself: its workers, whatever they call (they inherit
`current_loops`); its user, and the loops that the same user runs inside of it or beside it.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable
from threading import current_thread
from typing import Any

from aioqueue.core.attempts import Borrower, Take
from aioqueue.errors import CancelledError
from aioqueue.system.forks import PROCESS, inherited_error, note_for_forks
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.waker import apply_deferred, current_loops, deliver, in_event_loop


class QueueLeases:
    """The elements of a queue that one loop has on lease. Thread-safe.

    Args:
        face: either face of the queue.
        n: how many elements to take as a batch; ``None``: single ones.
        up_to: whether the last batch may have fewer.
        max_wait: seconds after which a batch takes what is there; ``None`` for no limit.
    """

    def __init__(
        self,
        face: Any,
        n: int | None = None,
        *,
        up_to: bool = False,
        max_wait: float | None = None,
    ) -> None:
        self._aio = face.aio
        self._sync = face.sync
        self._core = face._core
        self._machine = face._core.machine
        self._n = n
        self._up_to = up_to
        self._max_wait = max_wait
        self._borrower = Borrower(current_loops.get())
        self._last_owner: weakref.ref[Any] | None = None  # the latest of its owners
        self._user: weakref.ref[Any] | None = None
        self._held: dict[Hashable, Take] = {}
        self._is_over = False
        self._process = PROCESS.number
        self._core.has_leases = True
        note_for_forks(self)

    @property
    def name(self) -> str:
        name: str = self._core.name
        return name

    def __len__(self) -> int:
        """How many elements, or batches of them, are on lease now."""
        return len(self._held)

    def add_owner(self) -> None:
        """Note that the calling thread or task uses the elements: it must not wait for itself."""
        self._add_owner(running_caller())

    def set_user(self) -> None:
        """Note that the calling thread or task waits for the loop, or uses what it gives.

        It would also wait for itself by another loop, whose workers ask the same queue.
        """
        caller, last = running_caller(), self._user
        if last is None or last() is not caller:
            borrower = self._borrower
            borrower.owners.add(caller)
            self._user = weakref.ref(caller)
            borrower.users = (self._user, weakref.ref(current_thread()))
            # Workers of this loop, or of another one, may wait already. Some of them now wait for
            # themselves; a withdrawal of nothing lets the machine find these.
            apply_deferred(self._machine.withdraw_leases, ())

    def _add_owner(self, caller: object) -> None:
        last = self._last_owner
        if last is None or last() is not caller:  # nearly always the same once more
            self._borrower.owners.add(caller)
            self._last_owner = weakref.ref(caller)

    def take(self, key: Hashable) -> Any:
        """Take the next element, or batch, on lease. A thread waits for it.

        Args:
            key: names it in the calls below.

        Raises:
            OutOfRangeError: the queue is closed, and has no more.
            CancelledError: the loop is over.
            RuntimeError: this is a fork of the process of the loop.
        """
        take = self._new_take()
        if not (take.single and self._machine.try_grant(take, None)):
            self._sync._complete(take, "dequeue", None, self._max_wait or None)
            self._machine.count_wait(take, 0.0)  # that of a lease which did not wait
        self._add_owner(current_thread())
        return self._record(key, take)

    async def take_async(self, key: Hashable) -> Any:
        """Do the same in a task.

        Cancellation:
            A cancelled call has taken nothing.
        """
        aio, take = self._aio, self._new_take()
        aio._budget -= take.n
        waker = aio._spend_budget(take.n) if aio._budget < 0 else None
        first = None if waker is None else waker.await_first()
        if first is not None:
            await first
        has_suspended = False
        try:
            if not (take.single and self._machine.try_grant(take, None)):
                has_suspended = await aio._complete(take, self._max_wait or None)
                self._machine.count_wait(take, 0.0)
            # After the grant, so that no other task is served in between. A cancellation here gives
            # the lease back.
            if waker is not None and not has_suspended:
                await waker.yield_cancellable()
        except BaseException:
            apply_deferred(self._machine.withdraw_leases, [take])
            raise
        finally:
            if waker is not None:
                aio._budget = aio._allowance = waker.renew_budget()
        self.add_owner()
        return self._record(key, take)

    def commit(self, keys: Iterable[Hashable], *, is_done: bool = False) -> None:
        """Commit leases: their elements were handed out, or gave nothing.

        Args:
            keys: of the leases; unknown ones are left out.
            is_done: whether they gave nothing, so that nobody else could call `task_done`.
        """
        pop = self._held.pop
        takes = [take for key in keys if (take := pop(key, None)) is not None]
        if takes:
            rows = sum(take.held.count for take in takes) if is_done else 0
            wakers = self._machine.commit_leases(takes)
            if wakers:
                deliver(wakers)
            if rows:
                self._sync.task_done(rows)

    def commit_all(self) -> None:
        """Commit all leases, since results do not say which elements they were made from."""
        self.commit(list(self._held))

    def give_back(self) -> None:
        """End the loop: give what is still on lease back to the front of the queue, in order."""
        if self._process != PROCESS.number:
            return  # the elements are the parent's
        self._is_over = True  # first: see `_record`
        takes = [
            take for key in list(self._held) if (take := self._held.pop(key, None)) is not None
        ]
        if takes:
            apply_deferred(self._machine.withdraw_leases, takes)

    def _was_forked(self) -> None:
        self._is_over = True  # here: the elements are the parent's

    def _over_error(self) -> Exception:
        if self._process != PROCESS.number:
            return inherited_error(f"the loop that reads '{self.name}'")
        return CancelledError(f"the loop that reads '{self.name}' is over")

    def _new_take(self) -> Take:
        if self._is_over:
            raise self._over_error()
        n = self._n
        if n is None:
            return Take(1, True, leased=True, borrower=self._borrower)
        return Take(
            n,
            up_to=self._up_to,
            expired=self._max_wait == 0,
            leased=True,
            borrower=self._borrower,
        )

    def _record(self, key: Hashable, take: Take) -> Any:
        """Record a lease; return the element."""
        take.waker = None  # it waits no more: a lease may outlive the event loop that took it
        self._held[key] = take
        try:
            # Asked after the lease is entered. If `give_back` runs in another thread just now,
            # either that finds the lease, or this call finds that the loop is over.
            if self._is_over:
                raise self._over_error()
            if take.single:
                # Asked for each time: sharing the queue replaces it.
                row, from_row = self._core.row_of(take), self._sync._from_row
                return row if from_row is None else from_row(row)
            return self._batch_from(take)
        except BaseException:
            self._held.pop(key, None)
            apply_deferred(self._machine.withdraw_leases, [take])
            raise

    def _batch_from(self, take: Take) -> Any:
        spec, held = self._core.spec, take.held
        if spec.components is not None and all(one.fixed for one in spec.components):
            import numpy as np  # loaded, for arrays are inside

            # Copies: these rows may go back, and must not be memory of the user's by then.
            held.out = [np.empty((held.count, *one.shape), one.dtype) for one in spec.components]
        return self._core.leased_batch(take)


def running_caller() -> object:
    """Return the task that runs here, or else the thread."""
    return current_waker().runner() if in_event_loop() else current_thread()
