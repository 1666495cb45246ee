"""Moving the nodes of a run one step at a time, so that any thread may ask where they are.

Who takes from a run takes turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import anyio

from aioqueue.inputs.core.items import EpochEnd
from aioqueue.inputs.pipeline.node import Flow, Node, Row, Taken, failure_of_step
from aioqueue.locks import holding
from aioqueue.waiting.caller import in_event_loop

__all__ = ("RunLock", "Stepping", "refuse_in_loop")


T = TypeVar("T")


class Stepping:
    """Makes the steps of flows under a lock, which is not held while they wait.

    Args:
        skip: how many of the rows that come are left out.
        hand_out: told of each row that is not, with its node, in the step in which it comes. It may
            not lead to who has this object: that would be a cycle, which keeps what is in the nodes
            until the garbage collector runs.
    """

    def __init__(
        self, skip: int = 0, hand_out: Callable[[Node, Row], object] = lambda node, row: None
    ) -> None:
        self.skip = skip
        """How many are still to be left out."""
        self._hand_out = hand_out
        self._lock = threading.RLock()
        self._is_moving = False
        self._why_torn = ""  # why nobody knows where the nodes are

    def step(self, move: Callable[[Any], Any], argument: Any) -> Any:
        """Make one step: a `Step` of `drive` and `drive_async`, or a call of a node.

        Raises:
            RuntimeError: an earlier one has failed, or was interrupted: rows may have been lost.
        """
        return holding(self._lock, self._move, move, argument)

    def at_hand(self, node: Node) -> list[Row]:
        """The next row of a node, in a list, if it is at hand; else nothing."""
        rows: list[Row] = self.step(self._take_ready, node)
        return rows

    def taking(self, node: Node) -> Flow[Taken]:
        """The next row of a node that is not left out, in a list; or the end of the epoch.

        Drive it by `step`.
        """
        while True:
            taken = yield from node.take(1)
            if isinstance(taken, EpochEnd):
                return taken
            if not self.skip:
                self._hand_out(node, taken[0])
                return taken
            self.skip -= 1

    def _take_ready(self, node: Node) -> list[Row]:
        rows = [] if self.skip else node.take_ready(1)
        if rows:
            self._hand_out(node, rows[0])
        return rows

    def between(self, ask: Callable[[], T]) -> T:
        """Ask nodes for something between two steps, in any thread.

        Raises:
            RuntimeError: a signal handler asks that has interrupted a step, or has raised in one;
                or a step has failed.
        """
        return holding(self._lock, self._between, ask)

    def _between(self, ask: Callable[[], T]) -> T:
        if self._is_moving:
            raise RuntimeError(
                "a signal handler asked for the state in the middle of a step; let the handler set"
                " a flag, and ask for the state between two batches"
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
            self._why_torn = "a stage has failed" if is_failure else "it was interrupted in a step"
            if failure is error:
                raise
            raise failure  # noqa: B904  # it says its cause
        finally:
            self._is_moving = False

    def _check(self) -> None:
        if self._why_torn:
            raise RuntimeError(
                f"this run has no position any more: {self._why_torn}; go on from an earlier one"
            )


class RunLock:
    """Who takes from a run takes turns, whatever part of it that is."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    @cached_property
    def aio(self) -> anyio.Lock:
        """The same for tasks."""
        return anyio.Lock()


def refuse_in_loop() -> None:
    """A `for` loop would stop all other tasks.

    Raises:
        RuntimeError: this thread's event loop is running.
    """
    if in_event_loop():
        raise RuntimeError(
            "a `for` loop would have to wait, and this thread's event loop is running:"
            " use `async for` here"
        )
