"""How examples flow through a pipeline: who asks whom for what, in one logic for both worlds.

A *node* hands out the rows of its stage, in order, epoch after epoch. It asks the node before it,
down to a queue that workers fill or to the source itself. Asking is written once, as generators
that yield what they have to wait for (a `Want`) and are sent what has come; `drive` waits for it in
a thread, `drive_async` in a task. What a node knows is in the node and never in such a generator,
so a call that is cut short, by whatever, has lost nothing and is just made again.

No node takes more from the one before it than it needs for what it was asked. So when a batch is
handed to the user, nothing of what comes later has left the queues, but for what a buffer (that of
a shuffle, say) has to hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from aioqueue.inputs.sources.item import EpochEnd

__all__ = (
    "END",
    "Flow",
    "Id",
    "Node",
    "Row",
    "Span",
    "State",
    "Taken",
    "Want",
    "Wanted",
    "drive",
    "drive_async",
)

T = TypeVar("T")


Row: TypeAlias = tuple[Any, int, int, int]
"""An example, and where it comes from: ``(value, number, index, sub)``.

``number`` and ``sub`` name it among the rows of its node in this epoch, and grow from row to row.
``number`` is the place of its item among all that the stage before has given out in the epoch, and
``index`` the index of that item in its source, the same whatever the order, and ``sub`` the place
of the example among those of its item. They say which generator later functions are given. (A plain
tuple: there is one of them for every example.)
"""


Id: TypeAlias = tuple[int, int, int]
"""Names a row among those of a node: its epoch, ``number`` and ``sub``."""

END: Final = 2**62
"""In the place of a number: behind the last row of an epoch."""

State: TypeAlias = dict[str, Any]
"""Where a node is, in plain JSON types."""


class Wanted(NamedTuple):
    """Of the rows of one epoch whose numbers are below a limit only these are wanted."""

    epoch: int
    numbers: list[int]
    """Ascending."""
    upto: int


class Span(NamedTuple):
    """The epochs that are gone through."""

    start: int
    stop: int | None
    """The first that is not; ``None`` goes on for ever."""

    def is_last(self, epoch: int) -> bool:
        """Whether no other one follows."""
        return self.stop is not None and epoch + 1 >= self.stop


Taken: TypeAlias = list[Row] | EpochEnd


class Want(Protocol):
    """Something to wait for."""

    def take(self) -> Any:
        """Wait in a thread."""

    async def take_async(self) -> Any:
        """Wait in a task."""


Flow: TypeAlias = Generator[Want, Any, T]


class Node(ABC):
    """Where the rows of one stage come from. Not thread-safe: its users take turns.

    Args:
        span: the epochs that are gone through, one after another.
    """

    def __init__(self, span: Span) -> None:
        self.span = span

    is_ordered: bool = True
    """Whether it gives the same rows in the same order each time, with growing numbers."""

    @abstractmethod
    def state(self, held: Sequence[Id] = ()) -> State:
        """Where it is: what makes another node of its kind give what this one would give next.

        Args:
            held: rows that it has given, and is to give again: of a node that is not ordered.

        Raises:
            RuntimeError: rows that were not kept in order cannot be told apart any more.
        """

    @abstractmethod
    def restore(self, state: State, wanted: Wanted | None = None) -> None:
        """Go to a state of an earlier run, before anything was taken.

        Args:
            state: of a node of the same kind.
            wanted: rows that need not be given.
        """

    def weight(self) -> int:
        """How many rows its state names."""
        return 1

    @abstractmethod
    def take(self, n: int) -> Flow[Taken]:
        """The next rows of the epoch, 1 to n of them; or its end.

        After the end of an epoch the next one begins.
        """

    @abstractmethod
    def skip_to(self, epoch: int) -> None:
        """Forget the epochs before this one, of which nobody wants any more; this one is next."""


Step: TypeAlias = Callable[[Callable[[Any], Want], Any], Want]
"""Makes one step of a flow: calls its ``send`` with what has come."""


def _at_once(send: Callable[[Any], Want], come: Any) -> Want:
    return send(come)


def drive(flow: Flow[T], step: Step = _at_once) -> T:
    """Run a flow in the calling thread.

    Args:
        flow: what is run.
        step: makes its steps; between them it waits, and all nodes are at rest.
    """
    try:
        want = step(flow.send, None)
        while True:
            want = step(flow.send, want.take())
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]


async def drive_async(flow: Flow[T], step: Step = _at_once) -> T:
    """Run a flow in the calling task.

    Args:
        flow: what is run.
        step: makes its steps.

    Cancellation:
        A cancelled call has lost nothing; what it waits for is as cancellable as that says.
    """
    try:
        want = step(flow.send, None)
        while True:
            want = step(flow.send, await want.take_async())
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
