"""How several users of one run take turns: `Stepping` for its nodes, `RunLock` for its loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from threading import RLock
from typing import Any

import anyio

from aioqueue.items.item import EpochEnd
from aioqueue.items.provenance import finish
from aioqueue.pipeline.nodes.flow import Flow, T, failure_of_step
from aioqueue.pipeline.nodes.node import Node, Taken
from aioqueue.pipeline.nodes.rows import ROW_ORIGIN, Row
from aioqueue.system.locks import call_with_lock


class Stepping:
    """Makes the steps of flows under a lock, and releases the lock while they wait.

    Args:
        skip: how many of the next rows to drop.
        deliver: called with the other rows and their node, in the step that takes them. It must
            not refer to the owner of this object: that would be a cycle, which keeps the rows in
            the nodes until the garbage collector runs.
    """

    def __init__(
        self,
        skip: int = 0,
        deliver: Callable[[Node, Sequence[Row]], object] = lambda node, rows: None,
    ) -> None:
        self.skip: int = skip
        """How many of the next rows to drop."""
        self._deliver = deliver
        self._lock = threading.RLock()
        self._is_moving = False
        self._why_torn = ""  # why the state of the nodes is unknown; empty if it is known

    def step(self, move: Callable[[Any], Any], argument: Any) -> Any:
        """Make one step: a `Step` of `drive` and `drive_async`, or a call of a node.

        Raises:
            RuntimeError: an earlier step has failed, or was interrupted: rows may have been lost.
        """
        return call_with_lock(self._lock, self._move, move, argument)

    def ready_row(self, node: Node) -> list[Row]:
        """Return the next row of a node in a list if it is ready; otherwise an empty list."""
        rows: list[Row] = self.step(self._take_ready, node)
        return rows

    def taking(self, node: Node, n: int = 1) -> Flow[Taken]:
        """A flow that takes the next rows of a node that are not dropped, 1 to n of them, or the
        end of the epoch.

        Drive it with `step`.
        """
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
    """Makes the users of a run and of its epochs take turns."""

    def __init__(self) -> None:
        self.lock: RLock = threading.RLock()

    @cached_property
    def aio(self) -> anyio.Lock:
        """The lock for tasks."""
        return anyio.Lock()
