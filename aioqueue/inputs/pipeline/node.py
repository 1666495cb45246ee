"""How examples flow through a pipeline: who asks whom for what, in one logic for both worlds.

A *node* hands out the rows of its stage, in order, epoch after epoch. It asks the node before it,
down to a queue that workers fill or to the source itself. Asking is written once, as generators
that yield what they have to wait for (a `Demand`) and are sent what has come; `drive` waits for it
in
a thread, `drive_async` in a task. What a node knows is in the node and never in such a generator,
so a call that is cut short, by whatever, has lost nothing and is just made again.

No node takes more from the one before it than it needs for what it was asked. So when a batch is
handed to the user, nothing of what comes later has left the queues, but for what a buffer (that of
a shuffle, say) has to hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from hashlib import blake2b
from itertools import repeat
from operator import itemgetter
from typing import (
    Any,
    Final,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

from aioqueue import OutOfRangeError
from aioqueue.coordination.classify import as_failure, describe_exception
from aioqueue.inputs.core.items import EpochEnd, brief
from aioqueue.inputs.pipeline.provenance import RowOrigin
from aioqueue.inputs.prepare.prepared_items import Delivered

__all__ = (
    "END",
    "ROW_INDEX",
    "ROW_NUMBER",
    "ROW_ORIGIN",
    "ROW_SUB",
    "ROW_VALUE",
    "Demand",
    "EpochRange",
    "Flow",
    "Id",
    "LazyRows",
    "NoPositionError",
    "Node",
    "Row",
    "RunOver",
    "State",
    "Taken",
    "WantedRows",
    "briefly",
    "drive",
    "drive_async",
    "failure_of_step",
    "id_in",
    "number_of",
    "origin_of",
    "reraise_unexpected_end",
    "sub_of",
    "told_apart",
    "value_of",
)


T = TypeVar("T")

_INDEX: Final = itemgetter(2)  # of what was `Delivered`

Row: TypeAlias = tuple[Any, int, int, int, RowOrigin]
"""An example, and where it comes from: ``(value, number, index, sub, origin)``.

``number`` and ``sub`` name it among the rows of its node in this epoch, and grow from row to row.
``number`` is the place of its item among all that the stage before has given out in the epoch, and
``index`` the index of that item in its source, the same whatever the order, and ``sub`` the place
of the example, from 1, among those of its item; 0 if it is the only one. They say which generator
later functions are given. ``origin`` says which items it was made of, in the end, where that has to
be known.

It is a plain tuple, since there is one for every example: a named tuple takes four times as long to
make, and so a third more time for a pipeline without functions of the user's. So its places have
names, `ROW_VALUE` and the others.
"""

ROW_VALUE: Final = 0
ROW_NUMBER: Final = 1
ROW_INDEX: Final = 2
ROW_SUB: Final = 3
ROW_ORIGIN: Final = 4

value_of: Final = itemgetter(ROW_VALUE)
"""The value of a row, for `map`; the others are alike."""
number_of: Final = itemgetter(ROW_NUMBER)
sub_of: Final = itemgetter(ROW_SUB)
origin_of: Final = itemgetter(ROW_ORIGIN)


Id: TypeAlias = tuple[int, int, int]
"""Names a row among those of a node: its epoch, ``number`` and ``sub``."""


def id_in(epoch: int, row: Row) -> Id:
    """What names a row of an epoch."""
    return epoch, row[ROW_NUMBER], row[ROW_SUB]


END: Final = 2**62
"""In the place of a number: behind the last row of an epoch."""

State: TypeAlias = dict[str, Any]
"""Where a node is, in plain JSON types."""


class WantedRows(NamedTuple):
    """Of the rows of one epoch whose numbers are below a limit only these are wanted."""

    epoch: int
    numbers: list[int]
    """Ascending."""
    upto: int


class EpochRange(NamedTuple):
    """The epochs that are gone through."""

    start: int
    stop: int | None
    """The first that is not; ``None`` goes on for ever."""

    def is_last(self, epoch: int) -> bool:
        """Whether no other one follows."""
        return self.stop is not None and epoch + 1 >= self.stop


class LazyRows(Sequence[Row]):
    """Rows that are made when somebody asks for them: a batch needs their values alone.

    Each is the only example of its item, and nobody wants to know where it comes from.

    Args:
        values: the examples.
        numbers: of their items, ascending.
        items: these, as they were delivered.
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
    """Something to wait for."""

    def take(self) -> Any:
        """Wait in a thread."""

    async def take_async(self) -> Any:
        """Wait in a task."""


Flow: TypeAlias = Generator[Demand, Any, T]


class Node(ABC):
    """Where the rows of one stage come from. Not thread-safe: its users take turns.

    Args:
        span: the epochs that are gone through, one after another.
    """

    def __init__(self, span: EpochRange) -> None:
        self.span = span
        self._epoch = span.start
        self._ready: deque[Row] = deque()  # of this epoch, and next to be handed out
        self._given = 0  # rows of this epoch

    part: Any = None
    """What monitors see of it."""

    is_ordered: bool = True
    """Whether it gives the same rows in the same order each time, with growing numbers."""

    @abstractmethod
    def state(self, held: Sequence[Id] = ()) -> State:
        """Where it is: what makes another node of its kind give what this one would give next.

        Args:
            held: rows that it has given, and is to give again: of a node that is not ordered.

        Raises:
            NoPositionError: rows that were not kept in order cannot be told apart any more.
        """

    @abstractmethod
    def restore(self, state: State, wanted: WantedRows | None = None) -> None:
        """Go to a state of an earlier run, before anything was taken.

        Args:
            state: of a node of the same kind.
            wanted: rows that need not be given.
        """

    @property
    def given(self) -> tuple[int, int]:
        """The epoch, and how many rows of it were given."""
        return self._epoch, self._given

    def weight(self) -> int:
        """How many rows its state names."""
        return 1

    @abstractmethod
    def take(self, n: int) -> Flow[Taken]:
        """The next rows of the epoch, 1 to n of them; or its end.

        After the end of an epoch the next one begins.
        """

    def skip_to(self, epoch: int) -> None:
        """Forget the epochs before this one, of which nobody wants any more; this one is next.

        A node that has come to it already keeps what it has: nodes before one that is left may be
        an epoch ahead of it.
        """
        if epoch > self._epoch:
            self._skip_to(epoch)

    @abstractmethod
    def _skip_to(self, epoch: int) -> None:
        """The same, for an epoch that is to come."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open for it; nothing is taken any more."""

    def calls_of(self, given: Sequence[Any], result: Any) -> int:
        """How many calls of its function one call of a method was that monitors measure.

        Args:
            given: the arguments.
            result: what it returned; ``None`` if it raised.
        """
        return 1

    def defer(self) -> None:  # noqa: B027  # most nodes have nothing to defer
        """Leave the making of batches to who takes them, if this node makes any: from now on they
        may be `Uncollated`, or have such parts.
        """

    def take_ready(self, n: int) -> list[Row]:
        """Those of the next n rows that are at hand, without any more work; perhaps none."""
        ready = self._ready
        if not ready:
            return []
        if n == 1:  # as whoever goes through the epoch asks
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
    """A node has no state, for rows that were not kept in order cannot be told apart any more."""


class RunOver(OutOfRangeError):  # noqa: N818  # it is no error
    """The queue of a node was closed: the run has ended, for a reason that its coordinator knows.

    Only of its own making is it an end: a function of the user's that is called on the way may
    raise an `OutOfRangeError` too, which is a failure.
    """


_INDEX_BITS: Final = 128
"""How large the index of a random generator may be."""


def told_apart(index: int, number: int, count: int | None = None) -> int:
    """An index for one of several things that share one: another one for each (index, number).

    Args:
        index: what they share, >= 0 and < 2**128.
        number: which of them, >= 0.
        count: how many there are, where all indices are told apart by as many numbers: then small
            ones stay small. ``None`` leaves the index of the first one as it is.

    Returns:
        An index >= 0 and < 2**128. Where no simple one is left it is a hash (BLAKE2b), so that two
        of them are as likely to be the same as two random ones of that size: never.
    """
    if count is None and not number:
        return index
    if count is not None and index * count + number < 2 ** (_INDEX_BITS - 1):
        return index * count + number
    said = f"{index}.{number}.{count}".encode("ascii")
    hashed = int.from_bytes(blake2b(said, digest_size=_INDEX_BITS // 8).digest(), "little")
    return hashed | 1 << (_INDEX_BITS - 1)  # no simple index is as large


Step: TypeAlias = Callable[[Callable[[Any], Demand], Any], Demand]
"""Makes one step of a flow: calls its ``send`` with what has come."""


def _at_once(send: Callable[[Any], Demand], come: Any) -> Demand:
    return send(come)


def drive(flow: Flow[T], step: Step = _at_once) -> T:
    """Run a flow in the calling thread.

    Args:
        flow: what is run.
        step: makes its steps; between them it waits, and all nodes are at rest.

    Raises:
        RunOver: there is nothing more to wait for.
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
        flow: what is run.
        step: makes its steps.

    Raises:
        RunOver: there is nothing more to wait for.

    Cancellation:
        A cancelled call has lost nothing; what it waits for is as cancellable as that says.
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
    """Return what the title of a failure says of rows: the value of a single one, else a count."""
    return f"item {brief(rows[0][0])}" if len(rows) == 1 else f"{len(rows)} items"


def failure_of_step(error: BaseException) -> BaseException:
    """What was raised in a step, as a failure if it looks like a cancellation.

    A step waits for nothing, so nobody can cancel a task in it: a function of the user's has
    raised that, as the `result` of a future does that was cancelled.
    """
    if isinstance(error, Exception):
        return error
    return as_failure(
        error, f"a source or a function of the pipeline raised {describe_exception(error)}"
    )


def reraise_unexpected_end(error: OutOfRangeError) -> Exception:
    """The end of the run as it is; any other end is a failure of what has raised it."""
    if isinstance(error, RunOver):
        return error
    failure = RuntimeError(
        f"a source or a function of the pipeline raised {describe_exception(error)}"
    )
    failure.__cause__ = error
    return failure
