"""The two faces of a queue, each of which knows the other one.

Both are classes over the same core. At run time they find each other by the kind of queue and the
world (`QueueFace._peer`); that they stand in one file lets type checkers know it as well.
"""

from __future__ import annotations

from typing import Self

from aioqueue.elements import ElementT
from aioqueue.queues.aio import AsyncMethods
from aioqueue.queues.blocking import BlockingMethods

__all__ = ("AsyncQueue", "BlockingQueue")


class AsyncQueue(AsyncMethods[ElementT]):
    """What all queues of the async face can do.

    **Cancelled means it did not happen.** A cancelled dequeue leaves every element in the queue,
    first in line; a cancelled `enqueue` has put nothing in; a cancelled `enqueue_many` has put in a
    prefix. That holds for cancellation at any moment, by `asyncio.timeout`, `anyio.fail_after`,
    trio's scopes or `Task.cancel`. So there are no timeout arguments here: use those.

    One queue may be used from any number of event loops and threads at the same time.

    Type checkers know what is inside: ``AsyncQueue[Request]`` is a queue of objects of that class.
    """

    @property
    def aio(self) -> Self:
        """The async face of the same queue, for coroutines.

        That is this face itself, so code can be given either face and ask for the one it needs.
        """
        return self

    @property
    def sync(self) -> BlockingQueue[ElementT]:
        """The blocking face of the same queue, for threads."""
        face: BlockingQueue[ElementT] = self._peer("sync")
        return face


class BlockingQueue(BlockingMethods[ElementT]):
    """What all queues of the thread face can do.

    **Interrupted means it did not happen.** A dequeue that times out, that a `CancelScope` cancels,
    or that Ctrl-C ends while it waits, leaves every element in the queue, first in line; such an
    `enqueue` has put nothing in; such an `enqueue_many` has put in a prefix, which the exception
    tells.

    One queue may be used from any number of threads and event loops at the same time. A call that
    would have to wait on a thread whose event loop is running raises `RuntimeError` at once. In the
    plain code of a notebook's cell it waits all the same, unless what it waits for is up to tasks
    of that very loop.

    Type checkers know what is inside: ``BlockingQueue[Request]`` is a queue of objects of that
    class.
    """

    @property
    def sync(self) -> Self:
        """The blocking face of the same queue, for threads.

        That is this face itself, so code can be given either face and ask for the one it needs.
        """
        return self

    @property
    def aio(self) -> AsyncQueue[ElementT]:
        """The async face of the same queue, for coroutines."""
        face: AsyncQueue[ElementT] = self._peer("aio")
        return face
