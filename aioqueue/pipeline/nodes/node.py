"""Nodes: how rows flow through a pipeline, written once for threads and tasks.

A *node* gives the rows of its stage, in order, epoch after epoch. It takes rows from the node
before it. The first node of the chain reads a queue that workers fill, or the source itself.

`Node.take` is a generator (a `Flow`). It yields what it has to wait for (a `Demand`) and is sent
the result. `drive` does the waiting in a thread, and `drive_async` in a task. All state is in the
node and never in such a generator: so an interrupted or cancelled call has lost nothing, and you
can repeat it.

No node takes more rows from the node before than it needs. So when the user receives a batch, rows
behind it are still in the queues, except those in a buffer, such as that of a shuffle.

`Stepping` moves the nodes of a run one step at a time. Any thread can take a state between two
steps, also while the user's loop waits for a batch. `RunLock` has the lock of these steps, and
makes several users of one run take turns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from aioqueue.items.item import EpochEnd
from aioqueue.pipeline.batches.batch_shape import BatchShape
from aioqueue.pipeline.nodes.flow import Flow
from aioqueue.pipeline.nodes.rows import Element, EpochRange, Id, Row, State, WantedRows

Taken: TypeAlias = Sequence[Row] | EpochEnd

READ_TOGETHER: Final = 32
"""How many rows to take at a time from a node that never waits, also if fewer are needed."""


class Node(ABC):
    """Gives the rows of one stage. Not thread-safe: its users take turns.

    Args:
        span: the epochs of the run.
    """

    def __init__(self, span: EpochRange) -> None:
        self.span = span
        self._epoch = span.start
        self._ready: deque[Row] = deque()  # the next rows of this epoch
        self._given = 0  # how many rows of this epoch were given

    part: Any = None
    """What monitors see of the node."""

    element: Element = Element()
    """What the value of each row is."""

    is_limited: bool = False
    """Whether the nodes behind want only a part of each epoch; see `limit`."""

    _wanted_upto: int = 0
    """How many rows of the epoch the nodes behind want in all, by their latest request."""

    never_waits: bool = False
    """Whether taking rows waits for nothing, calls no function of the user's, and can be repeated:
    then a node may take more rows than it needs now."""

    is_ordered: bool = True
    """Whether every run gives the same rows in the same order, with growing numbers."""

    @abstractmethod
    def state(self, held: Sequence[Id] = ()) -> State:
        """The position of the node. A node that restores it gives the rows that follow here.

        Args:
            held: rows that the node has given, and has to give again after the restore, because a
                later node holds them. Only for nodes that are not ordered: an ordered one is
                restored to a state before those rows.

        Raises:
            NoPositionError: the rows are not in order, so that their names do not identify them.
        """

    @abstractmethod
    def restore(self, state: State, wanted: WantedRows | None = None) -> None:
        """Restore a state of an earlier run, before any row is taken.

        Args:
            state: the state of a node of the same kind.
            wanted: the rows that are needed; the node may omit others.
        """

    @property
    def batch_shape(self) -> BatchShape | None:
        """What is known of its values, if these are batches. It is made when a stage asks for it:
        most pipelines have none that does."""
        return None

    @property
    def given(self) -> tuple[int, int]:
        """The current epoch, and how many of its rows were given."""
        return self._epoch, self._given

    def weight(self) -> int:
        """About how many rows its state names: a measure of what a state costs.

        Marks are made the more rarely, the more a state costs. So a node that counts less than it
        names makes an epoch quadratic.
        """
        return 1

    def limit(self, rows: int) -> None:
        """Say that the nodes behind want at most this many rows of each epoch, for all that is
        known before it begins. Called before anything is taken or restored.

        From then on they say before each `take` how many they still want (`expect`). Workers and
        threads that read ahead keep within that.
        """
        self.is_limited = True

    def expect(self, rows: int) -> None:
        """Say how many more rows of the epoch the nodes behind want, for all that is known now.

        A row may turn out not to count, as in a filter: then they say so again. Only where there
        is a limit.
        """
        self._wanted_upto = self._given + rows

    @property
    def _still_wanted(self) -> int:
        """How many more rows the later nodes have asked for."""
        return max(0, self._wanted_upto - self._given)

    @abstractmethod
    def take(self, n: int) -> Flow[Taken]:
        """Take the next rows of the epoch, 1 to n of them, or its end.

        After the end of an epoch the next one begins.
        """

    def skip_to(self, epoch: int) -> None:
        """Drop the rest of the epochs before this one; this one is next.

        If the node has reached this epoch already, it changes nothing: a node may be an epoch
        ahead of the nodes behind it.
        """
        if epoch > self._epoch:
            self._skip_to(epoch)

    @abstractmethod
    def _skip_to(self, epoch: int) -> None:
        """Do the work of `skip_to` for an epoch that is not reached yet."""

    @abstractmethod
    def close(self) -> None:
        """Close open files and iterators. No rows are taken afterwards."""

    def calls_of(self, given: Sequence[Any], result: Any) -> int:
        """How often a measured method has called the node's function.

        Args:
            given: the arguments of the method.
            result: its result; ``None`` if it raised.
        """
        return 1

    def defer(self) -> None:  # noqa: B027  # most nodes have nothing to defer
        """Give batches whose arrays are not yet made (`Uncollated`), if this node makes batches.

        A stage that copies batches anyway can then make them directly in its own memory.
        """

    def take_ready(self, n: int) -> list[Row]:
        """Take up to n rows that are ready, without any work; the result may be empty."""
        ready = self._ready
        if not ready:
            return []
        if n == 1:  # the user's loop asks so
            self._given += 1
            return [ready.popleft()]
        if n >= len(ready):
            rows = list(ready)
            ready.clear()
        else:
            rows = [ready.popleft() for _ in range(n)]
        self._given += len(rows)
        return rows


class NoPositionError(RuntimeError):
    """A node has no state: its rows are not in order, so their names do not identify them."""
