"""Every order of events that a machine can meet, tried one by one against a naive model.

A *world* is a machine with a few producers and consumers, each of which makes a few operations,
one after the other. `explore` walks, breadth first, through all states that the world can reach
by these events, in any order:

* a caller begins an operation, of any kind: by the fast path (``try_*``) and, if that is
  refused, with an attempt, exactly as both faces of a queue do;
* a caller whose attempt has ended or was granted runs on and commits it. The callers of a
  *two-step* waker (asyncio) run on in the order in which their attempts were notified; those of a
  *one-step* waker (threads, trio) in any order;
* a caller in flight is withdrawn: while it waits, after it was granted, and after it has ended
  without having run on;
* a caller whose take is *leased*, wherever it waits, commits it at any time later, or withdraws it,
  even if it had its rows at once: it is on another machine;
* a caller that has its batch has copied it, without the lock, and lets go of the rows; or that
  fails, and it is withdrawn (with storages whose batches are copied by their owners);
* the deadline of a waiting ``take_up_to`` passes;
* the queue is closed, plainly or with its pending enqueues cancelled;
* its capacity is set to another one.

After every event the machine is compared with `Model`, which follows the rules literally
(plain lists; a waiting batch simply takes its rows; no claims, no bounds, no tickets): the
state of every attempt, the rows in every hand and in the storage, in order, what was notified and
which wakers are to be woken, errors and statistics. Since the model lets everything proceed
that may, an attempt left waiting that could proceed is found too. The guarantees are asserted
once more on what was observed, without relying on how the model moves: no row lost or repeated,
rows in order, batches contiguous, capacity respected.

**What counts as one state.** Rows are renamed by the order in which they went in; callers of
one waker with as many operations left are interchangeable; what was delivered, the totals of the
statistics and tickets are left out, since the machine decides nothing by them. All else that
the machine keeps is in the key, its claims and bounds included. Keys are kept as 128-bit
digests.

**What bounds it.** Worlds are finite: every caller makes ``operations`` operations, of one row
or two. Withdrawals, closes and changes of the capacity are also bounded, to so many in one path
(``withdrawals``, ``closes``, ``resizes``); as many as there are operations is no bound.
Closing a closed queue again, and plainly closing a closing one, are not tried: they change nothing
(`test_machine` shows it). Everything else within the stated size is tried, in every order.

Run it by hand, for one number of callers, all kinds of wakers and all capacities up to one::

    python -m proofs.explorer --producers 3 --consumers 3 --operations 1 --capacity 3
    python -m proofs.explorer --producers 3 --consumers 3 --operations 2 --capacity 3

The first ends within minutes; the second is for a machine with hours and tens of gigabytes, and
``--seconds`` lets it stop early and say so.
"""

from __future__ import annotations

from proofs.explorer.exploring import Result, explore
from proofs.explorer.model import Setting
from proofs.explorer.stand_ins import (
    EagerStorage,
    FakeLock,
    LendingStorage,
    PlainStorage,
    ViolationError,
    WholeStorage,
)

__all__ = (
    "EagerStorage",
    "FakeLock",
    "LendingStorage",
    "PlainStorage",
    "Result",
    "Setting",
    "ViolationError",
    "WholeStorage",
    "explore",
)
