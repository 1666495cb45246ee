"""The two faces of a coordinator, each of which knows the other one.

At run time they find each other by the world (`CoordinatorFace._as`); that they stand in one file
lets type checkers know it as well.
"""

from __future__ import annotations

from aioqueue.coordination.aio import AsyncCoordinator
from aioqueue.coordination.blocking import ThreadCoordinator
from aioqueue.coordination.face import CoordinatorFace
from aioqueue.docstrings import with_sections

__all__ = ("BlockingCoordinator", "Coordinator")


class Coordinator(AsyncCoordinator):
    """Makes all workers stop together, joins them, and reports what failed.

    Leaving ``async with Coordinator()`` requests a stop and joins every worker; what failed arrives
    as one `ExceptionGroup`, in which an exception from the block is one more member. A clean stop
    (`OutOfRangeError`, or a group of nothing else) that leaves the block ends it normally.

    A cancellation of the block, by a scope or by `asyncio.Task.cancel`, stops it and cancels its
    tasks at once; it goes on when all workers have been joined, unless there are failures, which
    win over it as in `asyncio.TaskGroup`. The same if it comes while the block is being left. What
    was cancelled without anybody having cancelled the block itself is a failure.

    The block is left in the event loop in which it was entered. In asyncio that may be by another
    task, as fixtures of pytest-asyncio and cells of a notebook do; in trio it is the same task.
    Anything else is refused with a `RuntimeError`, and the workers are stopped.
    """

    __doc__ = with_sections(__doc__, CoordinatorFace.__doc__)

    @property
    def aio(self) -> Coordinator:
        """The async face of the same coordinator, for coroutines.

        That is this face itself, so code can be given either face and ask for the one it needs.
        """
        return self

    @property
    def sync(self) -> BlockingCoordinator:
        """The blocking face of the same coordinator, for threads."""
        face: BlockingCoordinator = self._as("sync")
        return face


class BlockingCoordinator(ThreadCoordinator):
    """Makes all workers stop together, joins them, and reports what failed.

    Leaving ``with Coordinator()`` requests a stop and joins every worker; what failed arrives as
    one `ExceptionGroup`, in which an exception from the block is one more member. A clean stop
    (`OutOfRangeError`) that leaves the block ends it normally.
    """

    __doc__ = with_sections(__doc__, CoordinatorFace.__doc__)

    @property
    def sync(self) -> BlockingCoordinator:
        """The blocking face of the same coordinator, for threads.

        That is this face itself, so code can be given either face and ask for the one it needs.
        """
        return self

    @property
    def aio(self) -> Coordinator:
        """The async face of the same coordinator, for coroutines."""
        face: Coordinator = self._as("aio")
        return face
