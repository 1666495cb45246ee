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
steps, also while the user's loop waits for a batch. `RunLock` makes several users of one run take
turns.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import repeat
from operator import itemgetter
from threading import RLock
from typing import (
    Any,
    Final,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

import anyio

from aioqueue import OutOfRangeError
from aioqueue.coordination.classify import as_failure
from aioqueue.errors import describe_exception
from aioqueue.inputs.core.batch_shape import BatchShape
from aioqueue.inputs.core.items import Delivered, EpochEnd, RowOrigin, brief, finish
from aioqueue.locks import call_with_lock

T = TypeVar("T")

_INDEX: Final = itemgetter(2)  # the index in a `Delivered`

Row: TypeAlias = tuple[Any, int, int, int, RowOrigin]
"""An example with its provenance: ``(value, number, index, sub, origin)``.

- ``number`` and ``sub`` name the row among those of its node in this epoch. They grow from row to
  row. ``number`` is the place of its item among all items of the epoch at this node.
- ``index`` is the index of that item in its source, whatever the order.
- ``sub`` is the place of the example, from 1, among the examples of its item; 0 for the only one.
- ``origin`` is the provenance: the items of the sources that the example was made from, if a run
  records them.

``index`` and ``sub`` select the random generator that later functions receive.

A row is a plain tuple, because every example has one: making a named tuple takes four times as
long, which would cost a pipeline without user functions a third more time. The places have names:
`ROW_VALUE` and the others.
"""

ROW_VALUE: Final = 0
ROW_NUMBER: Final = 1
ROW_INDEX: Final = 2
ROW_SUB: Final = 3
ROW_ORIGIN: Final = 4

value_of: Final = itemgetter(ROW_VALUE)
"""Gets the value of a row, for `map`; the following three get other places."""
number_of: Final = itemgetter(ROW_NUMBER)
sub_of: Final = itemgetter(ROW_SUB)
origin_of: Final = itemgetter(ROW_ORIGIN)


Id: TypeAlias = tuple[int, int, int]
"""The name of a row among those of a node: its epoch, ``number`` and ``sub``."""


def id_in(epoch: int, row: Row) -> Id:
    """The name of a row of an epoch."""
    return epoch, row[ROW_NUMBER], row[ROW_SUB]


END: Final = 2**62
"""A number that stands for the end of an epoch, behind its last row."""

State: TypeAlias = dict[str, Any]
"""The position of a node, in plain JSON types."""


class WantedRows(NamedTuple):
    """Which rows of an epoch a resume needs: these, and all from a number on."""

    epoch: int
    numbers: list[int]
    """Ascending."""
    upto: int


class EpochRange(NamedTuple):
    """The epochs of a run."""

    start: int
    stop: int | None
    """The first epoch that is not part of the run; ``None`` without an end."""

    def is_last(self, epoch: int) -> bool:
        """Whether an epoch is the last one."""
        return self.stop is not None and epoch + 1 >= self.stop


class LazyRows(Sequence[Row]):
    """Rows that are made on demand. A batch needs only their values, so most are never made.

    Each row is the only example of its item, and its provenance is not recorded.

    Args:
        values: the examples.
        numbers: the numbers of their items, ascending.
        items: the items as the workers delivered them.
    """

    __slots__ = ("_items", "_numbers", "values")

    def __init__(
        self, values: list[Any], numbers: Sequence[int], items: Sequence[Delivered]
    ) -> None:
        self.values: list[Any] = values
        self._numbers = numbers
        self._items = items

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Row]:
        indices = map(_INDEX, self._items)
        return zip(self.values, self._numbers, indices, repeat(0), repeat(None), strict=False)

    @overload
    def __getitem__(self, at: int) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Row]: ...

    def __getitem__(self, at: int | slice) -> Row | Sequence[Row]:
        if isinstance(at, slice):
            return list(self)[at]
        return self.values[at], self._numbers[at], _INDEX(self._items[at]), 0, None


Taken: TypeAlias = Sequence[Row] | EpochEnd


class Demand(Protocol):
    """Something that a flow waits for."""

    def take(self) -> Any:
        """Wait in a thread."""

    async def take_async(self) -> Any:
        """Wait in a task."""


Flow: TypeAlias = Generator[Demand, Any, T]


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

    is_limited: bool = False
    """Whether the nodes behind want only a part of each epoch; see `limit`."""

    _wanted_upto: int = 0
    """How many rows of the epoch the nodes behind want in all, by their latest request."""

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
        """About how many rows its state names: a measure of what a state costs."""
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
        """How many more rows the nodes behind want, as they have said."""
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


class RunOver(OutOfRangeError):  # noqa: N818  # it is no error
    """The queue of a node was closed: the run has ended, for a reason that its coordinator knows.

    It is a class of its own, because a user function may raise an `OutOfRangeError`, too. That is a
    failure, and not the end of a run.
    """


_INDEX_BITS: Final = 128
"""How many bits the index of a random generator may have."""


def told_apart(index: int, number: int, count: int | None = None) -> int:
    """Derive a distinct index for each of several things that share one index.

    Args:
        index: the index that they share, >= 0 and < 2**128.
        number: the place of the thing among them, >= 0.
        count: how many things share each index, if that number is fixed: then small indices stay
            small. ``None`` leaves the index of thing 0 unchanged.

    Returns:
        An index >= 0 and < 2**128. If no simple one is free, it is a hash (BLAKE2b) with 127 bits,
        so that two things never share one in practice.
    """
    if count is None and not number:
        return index
    if count is not None and index * count + number < 2 ** (_INDEX_BITS - 1):
        return index * count + number
    name = f"{index}.{number}.{count}".encode("ascii")
    hashed = int.from_bytes(blake2b(name, digest_size=_INDEX_BITS // 8).digest(), "little")
    return hashed | 1 << (_INDEX_BITS - 1)  # no simple index is as large


Step: TypeAlias = Callable[[Callable[[Any], Demand], Any], Demand]
"""Makes one step of a flow: calls its ``send`` with the result of the wait."""


def _at_once(send: Callable[[Any], Demand], come: Any) -> Demand:
    return send(come)


def drive(flow: Flow[T], step: Step = _at_once) -> T:
    """Run a flow in the calling thread.

    Args:
        flow: the flow.
        step: makes its steps. Between two steps this thread waits, and no node is in motion.

    Raises:
        RunOver: the run has ended.
    """
    try:
        want = step(flow.send, None)
        while True:
            want = step(flow.send, want.take())
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    except OutOfRangeError as error:
        raise reraise_unexpected_end(error)  # noqa: B904  # it says its cause


async def drive_async(flow: Flow[T], step: Step = _at_once) -> T:
    """Run a flow in the calling task.

    Args:
        flow: the flow.
        step: makes its steps.

    Raises:
        RunOver: the run has ended.

    Cancellation:
        A cancelled call has lost nothing. You can cancel it whenever its `Demand` can be cancelled.
    """
    try:
        want = step(flow.send, None)
        while True:
            want = step(flow.send, await want.take_async())
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    except OutOfRangeError as error:
        raise reraise_unexpected_end(error)  # noqa: B904  # it says its cause


def briefly(rows: Sequence[Row]) -> str:
    """Return how the title of a failure names rows: by the value of a single one, or a count."""
    return f"item {brief(rows[0][0])}" if len(rows) == 1 else f"{len(rows)} items"


def failure_of_step(error: BaseException) -> BaseException:
    """Turn a cancellation that was raised in a step into a failure. Other errors are not changed.

    A step waits for nothing, so no task can be cancelled in it. A user function must have raised
    the error, as `Future.result` does if the future was cancelled.
    """
    if isinstance(error, Exception):
        return error
    return as_failure(
        error, f"a source or a function of the pipeline raised {describe_exception(error)}"
    )


def reraise_unexpected_end(error: OutOfRangeError) -> Exception:
    """Return the end of the run as it is. An `OutOfRangeError` of a user function is a failure."""
    if isinstance(error, RunOver):
        return error
    failure = RuntimeError(
        f"a source or a function of the pipeline raised {describe_exception(error)}"
    )
    failure.__cause__ = error
    return failure


class Stepping:
    """Makes the steps of flows under a lock, and releases the lock while they wait.

    Args:
        skip: how many of the next rows to drop.
        hand_out: called with the other rows and their node, in the step that takes them. It must
            not refer to the owner of this object: that would be a cycle, which keeps the rows in
            the nodes until the garbage collector runs.
    """

    def __init__(
        self,
        skip: int = 0,
        hand_out: Callable[[Node, Sequence[Row]], object] = lambda node, rows: None,
    ) -> None:
        self.skip: int = skip
        """How many of the next rows to drop."""
        self._hand_out = hand_out
        self._lock = threading.RLock()
        self._is_moving = False
        self._why_torn = ""  # why the state of the nodes is unknown; empty if it is known

    def step(self, move: Callable[[Any], Any], argument: Any) -> Any:
        """Make one step: a `Step` of `drive` and `drive_async`, or a call of a node.

        Raises:
            RuntimeError: an earlier step has failed, or was interrupted: rows may have been lost.
        """
        return call_with_lock(self._lock, self._move, move, argument)

    def at_hand(self, node: Node) -> list[Row]:
        """The next row of a node in a list, if it is ready; otherwise an empty list."""
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
            if self.skip:
                dropped = min(self.skip, len(taken))
                self.skip -= dropped
                for row in taken[:dropped]:
                    finish(row[ROW_ORIGIN])
                taken = taken[dropped:]
            if taken:
                self._hand_out(node, taken)
                return taken

    def _take_ready(self, node: Node) -> list[Row]:
        rows = [] if self.skip else node.take_ready(1)
        if rows:
            self._hand_out(node, rows)
        return rows

    def between(self, ask: Callable[[], T]) -> T:
        """Call a function between two steps, in any thread.

        Raises:
            RuntimeError: a signal handler that has interrupted a step calls it; or a step has
                failed or was interrupted.
        """
        return call_with_lock(self._lock, self._between, ask)

    def _between(self, ask: Callable[[], T]) -> T:
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
