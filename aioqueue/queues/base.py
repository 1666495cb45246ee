"""The base classes of all async queues and of all blocking queues.

Both are faces of one core. At run time a face finds the other by the queue's kind and the world
(`QueueFace._peer`). They share this file so that type checkers see the connection, too.
"""

from __future__ import annotations

from typing import Any, Self

from aioqueue.base.hints import hint_methods
from aioqueue.base.public_names import name_methods, public
from aioqueue.core.elements.spec import ElementT
from aioqueue.queues.aio import AsyncMethods
from aioqueue.queues.blocking import BlockingMethods
from aioqueue.system.locks import COMPILED


@public("aioqueue")
class AsyncQueue(AsyncMethods[ElementT]):
    """The methods of every async queue.

    **Cancelled means it did not happen.** A cancelled dequeue leaves every element in the queue,
    first in line. A cancelled `enqueue` has put nothing in. A cancelled `enqueue_many` has put in a
    prefix of its rows. This holds for cancellation at any moment, by `asyncio.timeout`,
    `anyio.fail_after`, trio's scopes or `Task.cancel`. Use those for timeouts: the methods have no
    timeout arguments.

    You may use one queue from any number of event loops and threads at the same time.

    Type checkers know the elements: ``AsyncQueue[Request]`` is a queue of ``Request`` objects.
    """

    @property
    def aio(self) -> Self:
        """The async face of the same queue, for coroutines.

        That is this face itself. Code that is given either face can ask for the one it needs.
        """
        return self

    @property
    def sync(self) -> BlockingQueue[ElementT]:
        """The blocking face of the same queue, for threads."""
        face: BlockingQueue[ElementT] = self._peer("sync")
        return face


@public("aioqueue.sync")
class BlockingQueue(BlockingMethods[ElementT]):
    """The methods of every blocking queue.

    **Interrupted means it did not happen.** A waiting dequeue that a timeout, a `CancelScope` or
    Ctrl-C ends leaves every element in the queue, first in line. An interrupted `enqueue` has put
    nothing in. An interrupted `enqueue_many` has put in a prefix of its rows; the exception says
    how many.

    You may use one queue from any number of threads and event loops at the same time. A call that
    would block a thread whose event loop is running raises `RuntimeError` at once. In the plain
    code of a notebook's cell the call does wait, unless only tasks of that same loop could end the
    wait.

    Type checkers know the elements: ``BlockingQueue[Request]`` is a queue of ``Request`` objects.
    """

    @property
    def sync(self) -> Self:
        """The blocking face of the same queue, for threads.

        That is this face itself. Code that is given either face can ask for the one it needs.
        """
        return self

    @property
    def aio(self) -> AsyncQueue[ElementT]:
        """The async face of the same queue, for coroutines."""
        face: AsyncQueue[ElementT] = self._peer("aio")
        return face


class PeerFace:
    """The property that returns the other face of a queue.

    A face that has made the other one keeps it in an instance attribute of the same name, which
    takes precedence over this object. So its later look-ups cost no more than those of any other
    attribute. The face that was made gets here each time, since it must not keep its maker alive:
    the two would be a cycle.

    Args:
        getter: the property that it replaces.
    """

    def __init__(self, getter: property) -> None:
        self.fget: Any = getter.fget
        self.__doc__ = getter.__doc__

    def __get__(self, face: Any, owner: type) -> Any:
        return self if face is None else self.fget(face)


# Replaced down here, because type checkers and the reference pages know what a property is.
for _face, _world in ((AsyncQueue, "sync"), (BlockingQueue, "aio")):
    setattr(_face, _world, PeerFace(vars(_face)[_world]))
del _face, _world
name_methods(AsyncMethods, "AsyncQueue")
name_methods(BlockingMethods, "BlockingQueue")
for _cls in (AsyncQueue, BlockingQueue):
    hint_methods(_cls, "queues", ("batches", "close", "join", "share"))
del _cls

if COMPILED:
    # All compiled modules have been imported by now: those of the core, and what the faces need.
    from aioqueue.base.tracebacks import show_sources

    show_sources()
