"""How several users of one run take turns: `Stepping` for its nodes, `RunLock` for its loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import RLock
from typing import Any, Final

import anyio

from aioqueue import OutOfRangeError
from aioqueue.items.item import EpochEnd
from aioqueue.items.provenance import finish
from aioqueue.pipeline.nodes.flow import (
    Demand,
    Flow,
    T,
    drive,
    drive_async,
    failure_of_step,
    reraise_unexpected_end,
)
from aioqueue.pipeline.nodes.node import Node, Taken
from aioqueue.pipeline.nodes.rows import ROW_ORIGIN, Row
from aioqueue.system.locks import call_with_lock

_NESTED: Final = (
    "a signal handler asked for a batch while its thread was making one; set a flag in the handler,"
    " and take the batch in the loop"
)


@dataclass(slots=True)
class BegunFlow:
    """A flow whose first step has been made, and what it waits for.

    No row has left the nodes yet, so the flow can be dropped: the next one begins where it stopped.
    """

    flow: Flow[Taken]
    want: Demand


class Stepping:
    """Makes the steps of flows under a lock, and releases the lock while they wait.

    Args:
        lock: the lock of the run, under which its users also take turns: see `RunLock`.
        skip: how many of the next rows to drop.
        deliver: called with the other rows and their node, in the step that takes them. It must
            not refer to the owner of this object: that would be a cycle, which keeps the rows in
            the nodes until the garbage collector runs.
    """

    def __init__(
        self,
        lock: RLock,
        skip: int = 0,
        deliver: Callable[[Node, Sequence[Row]], object] = lambda node, rows: None,
    ) -> None:
        self.skip: int = skip
        """How many of the next rows to drop."""
        self._deliver = deliver
        self._lock = lock
        self._is_moving = False
        self._why_torn = ""  # why the state of the nodes is unknown; empty if it is known

    def step(self, move: Callable[[Any], Any], argument: Any) -> Any:
        """Make one step: a `Step` of `drive` and `drive_async`, or a call of a node.

        Raises:
            RuntimeError: an earlier step has failed, or was interrupted: rows may have been lost.
        """
        return call_with_lock(self._lock, self._move, move, argument)

    def begin(self, node: Node, n: int = 1) -> Taken | BegunFlow:
        """Take the next rows of a node, 1 to n of them, or the end of the epoch, in one step.

        Where they are not ready, the result is a flow that waits for them: see `finish`.
        """
        return call_with_lock(self._lock, self.begin_locked, node, n)

    def begin_locked(self, node: Node, n: int = 1) -> Taken | BegunFlow:
        """Do the same where the calling thread holds the lock of the run."""
        taken: Taken | BegunFlow = self._move(self._begin, (node, n))
        return taken

    def finish(self, begun: Taken | BegunFlow) -> Taken:
        """Wait in a thread for what `begin` has begun."""
        if isinstance(begun, BegunFlow):
            return drive(begun.flow, self.step, begun.want)
        return begun

    async def finish_async(self, begun: Taken | BegunFlow) -> Taken:
        """Wait in a task for what `begin` has begun.

        Cancellation:
            A cancelled call has lost nothing.
        """
        if isinstance(begun, BegunFlow):
            return await drive_async(begun.flow, self.step, begun.want)
        return begun

    def _begin(self, asked: tuple[Node, int]) -> Taken | BegunFlow:
        node, n = asked
        if n == 1 and (rows := self._take_ready(node)):
            return rows
        flow = self._taking(node, n)
        try:
            return BegunFlow(flow, flow.send(None))
        except StopIteration as ended:
            taken: Taken = ended.value
            return taken
        except OutOfRangeError as error:
            raise reraise_unexpected_end(error)  # noqa: B904  # it says its cause

    def _taking(self, node: Node, n: int = 1) -> Flow[Taken]:
        while True:
            taken = yield from node.take(n)
            if isinstance(taken, EpochEnd):
                return taken
            # In the step that takes these rows: a state in between would drop as many of the next
            # rows once more.
            if self.skip:
                dropped = min(self.skip, len(taken))
                self.skip -= dropped
                for row in taken[:dropped]:
                    finish(row[ROW_ORIGIN])
                taken = taken[dropped:]
            if taken:
                self._deliver(node, taken)
                return taken

    def _take_ready(self, node: Node) -> list[Row]:
        # While rows are to be dropped, only `taking` takes some.
        rows = [] if self.skip else node.take_ready(1)
        if rows:
            self._deliver(node, rows)
        return rows

    def between(self, ask: Callable[[], T]) -> T:
        """Call a function between two steps, in any thread.

        Raises:
            RuntimeError: a signal handler that has interrupted a step calls it; or a step has
                failed or was interrupted.
        """
        return call_with_lock(self._lock, self._between, ask)

    def _between(self, ask: Callable[[], T]) -> T:
        # The lock is reentrant, so a signal handler that interrupts a step of its own thread gets
        # here. In the middle of a step, rows may be in no node.
        if self._is_moving:
            raise RuntimeError(
                "a signal handler asked for the state in the middle of a step; set a flag in the"
                " handler, and take the state between two batches"
            )
        self._check()
        return ask()

    def _move(self, move: Callable[[Any], Any], argument: Any) -> Any:
        if self._is_moving:
            raise RuntimeError(_NESTED)
        if self._why_torn:
            self._check()
        self._is_moving = True
        try:
            return move(argument)
        except StopIteration:  # of a flow that has ended
            raise
        except BaseException as error:
            failure = failure_of_step(error)
            is_failure = isinstance(failure, Exception)
            # Some nodes may have given rows that others have not taken yet. Nobody can tell which,
            # so that a state from now on would lose them.
            self._why_torn = "a stage has failed" if is_failure else "it was interrupted in a step"
            try:
                if failure is error:
                    raise
                raise failure  # it says its cause
            finally:
                del failure  # its traceback has this frame: that would be a circle
        finally:
            self._is_moving = False

    def _check(self) -> None:
        if self._why_torn:
            raise RuntimeError(
                f"this run has no position any more: {self._why_torn}; resume from an earlier one"
            )


class RunLock:
    """Makes the users of a run and of its epochs take turns.

    One lock guards the steps of the nodes and says whose turn it is. So a batch that is ready
    passes it once: nobody has a turn then, and the batch is taken under the lock. A call that has
    to wait for a batch, or that starts or joins workers, keeps the turn and releases the lock:
    meanwhile any thread may ask for a state, and no other call makes a step. A turn is an object
    of the call that has it.
    """

    def __init__(self) -> None:
        self.lock: RLock = threading.RLock()
        self._turn_ended = threading.Condition(self.lock)
        self._turn: object = None
        self._thread = 0  # of the turn

    @cached_property
    def aio(self) -> anyio.Lock:
        """The lock for tasks."""
        return anyio.Lock()

    def turn(self, call: Callable[[], T]) -> T:
        """Call a function in a turn of its own, without the lock."""
        turn = object()
        try:
            call_with_lock(self.lock, self._begin, turn)
            result = call()
            self.end(turn)
        except BaseException:
            self.end(turn)  # again, if a signal handler has raised in the call above
            raise
        return result

    def wait_until_free(self) -> None:
        """Wait until nobody has the turn. The calling thread holds the lock.

        Raises:
            RuntimeError: a signal handler calls it, which has interrupted the turn of its thread.
        """
        if self._turn is not None:
            if self._thread == threading.get_ident():
                raise RuntimeError(_NESTED)
            while self._turn is not None:
                self._turn_ended.wait()

    def keep(self, turn: object) -> None:
        """Keep the turn until `end`. The calling thread holds the lock, and the turn is free."""
        self._turn, self._thread = turn, threading.get_ident()

    def end(self, turn: object) -> None:
        """End a turn if it was kept. Further calls do nothing."""
        call_with_lock(self.lock, self._end, turn)

    def _begin(self, turn: object) -> None:
        self.wait_until_free()
        self.keep(turn)

    def _end(self, turn: object) -> None:
        if self._turn is turn:
            self._turn = None
            # All of them: a signal handler may raise in the one that is woken, before it takes the
            # turn, and no one would wake the others.
            self._turn_ended.notify_all()
