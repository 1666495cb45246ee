"""The two faces of a batcher, each of which knows the other one.

That they stand in one file lets type checkers know it as well.
"""

from __future__ import annotations

from typing import Self

from aioqueue.batching.aio import AsyncBatcher
from aioqueue.batching.blocking import ThreadBatcher
from aioqueue.batching.face import BATCHER_ARGUMENTS, ResultT, ValueT
from aioqueue.docstrings import with_sections

__all__ = ("Batcher", "BlockingBatcher")


class Batcher(AsyncBatcher[ValueT, ResultT]):
    """Answers single calls by calling a function with batches of them.

    Within ``async with Batcher(function) as batcher:``, any number of tasks await
    ``batcher(value)``, and each gets the result for its value. Leaving the block answers all calls
    that have begun and then ends the workers; later calls raise `QueueClosedError`. Left by a
    cancellation, also one that comes while it waits for the answers, it refuses the calls whose
    batch has not begun, cancels tasks that run the function, and waits for threads and processes
    that do.

    If a worker itself dies, by `SystemExit` in the function or because somebody has cancelled its
    task, all callers that wait for a batch and all that come later get a `WorkerDiedError`, and
    leaving the block raises it. The death of a process is only that of its batch, unless none can
    be started.

    Tasks of other event loops may call it too, and threads may by its other face, ``batcher.sync``.
    """

    __doc__ = with_sections(__doc__, BATCHER_ARGUMENTS)

    @property
    def aio(self) -> Self:
        """The async face of the same batcher, for coroutines.

        That is this face itself, so code can be given either face and ask for the one it needs.
        """
        return self

    @property
    def sync(self) -> BlockingBatcher[ValueT, ResultT]:
        """The blocking face of the same batcher, for threads."""
        face: BlockingBatcher[ValueT, ResultT] = self._as(BlockingBatcher)
        return face


class BlockingBatcher(ThreadBatcher[ValueT, ResultT]):
    """Answers single calls by calling a function with batches of them.

    Within ``with Batcher(function) as batcher:``, any number of threads call ``batcher(value)``,
    and each gets the result for its value. Leaving the block answers all calls that have begun and
    then ends the workers; later calls raise `QueueClosedError`. Left by what is no `Exception`,
    such as Ctrl-C, it refuses the calls whose batch has not begun.

    If a worker itself dies, by `SystemExit` in the function say, all callers that wait for a batch
    and all that come later get a `WorkerDiedError`, and leaving the block raises it. The death of a
    process is only that of its batch, unless none can be started.

    A coroutine function runs in tasks of one event loop, in one more thread.
    """

    __doc__ = with_sections(__doc__, BATCHER_ARGUMENTS)

    @property
    def sync(self) -> Self:
        """The blocking face of the same batcher, for threads.

        That is this face itself, so code can be given either face and ask for the one it needs.
        """
        return self

    @property
    def aio(self) -> Batcher[ValueT, ResultT]:
        """The async face of the same batcher, for coroutines."""
        face: Batcher[ValueT, ResultT] = self._as(Batcher)
        return face
