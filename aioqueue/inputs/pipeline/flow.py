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
from collections.abc import Generator
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from aioqueue.inputs.sources.item import EpochEnd

__all__ = ("Flow", "Node", "Row", "Span", "Taken", "Want", "drive", "drive_async")

T = TypeVar("T")


Row: TypeAlias = tuple[Any, int, int, int]
"""An example, and where it comes from: ``(value, number, index, sub)``.

``number`` is the place of its item among all that the stage before has given out in this epoch,
``index`` the index of that item in its source, the same whatever the order, and ``sub`` the place
of the example among those of its item. They say which generator later functions are given. (A plain
tuple: there is one of them for every example.)
"""


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

    @abstractmethod
    def take(self, n: int) -> Flow[Taken]:
        """The next rows of the epoch, 1 to n of them; or its end.

        After the end of an epoch the next one begins.
        """

    @abstractmethod
    def skip_to(self, epoch: int) -> None:
        """Forget the epochs before this one, of which nobody wants any more; this one is next."""

    def defer(self) -> None:  # noqa: B027  # most nodes have nothing to defer
        """Leave the making of batches to who takes them, if this node makes any: from now on they
        may be `Uncollated`, or have such parts.
        """


def drive(flow: Flow[T]) -> T:
    """Run a flow in the calling thread."""
    try:
        want = next(flow)
        while True:
            want = flow.send(want.take())
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]


async def drive_async(flow: Flow[T]) -> T:
    """Run a flow in the calling task.

    Cancellation:
        A cancelled call has lost nothing; what it waits for is as cancellable as that says.
    """
    try:
        want = next(flow)
        while True:
            want = flow.send(await want.take_async())
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
