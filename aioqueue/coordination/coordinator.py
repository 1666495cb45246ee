"""Coordinator, async and blocking.

At run time a face finds the other by the world (`CoordinatorFace._as`). They share this file so
that type checkers see the connection, too.
"""

from __future__ import annotations

from aioqueue.base.hints import hint_methods
from aioqueue.base.public_names import name_methods, public, with_sections
from aioqueue.coordination.aio import AsyncCoordinator
from aioqueue.coordination.blocking import ThreadCoordinator
from aioqueue.coordination.methods import CoordinatorFace


@public("aioqueue", hints="coordinators")
class Coordinator(AsyncCoordinator):
    """Stops all workers together, joins them, and reports what failed.

    Leaving ``async with Coordinator()`` requests a stop and joins every worker. It raises all
    failures as one `ExceptionGroup`, including an exception from the block itself. A clean stop
    (`OutOfRangeError`, or a group of nothing else) that leaves the block ends it normally.

    A cancellation of the block, by a scope or by `asyncio.Task.cancel`, stops the coordinator and
    cancels its tasks at once. When all workers have been joined, the block raises the cancellation.
    If workers have failed, it raises the failures instead, as `asyncio.TaskGroup` does. The same
    holds for a cancellation that arrives while the block is being left. If something inside was
    cancelled but not the block, that is a failure.

    Leave the block in the event loop in which you entered it. In asyncio another task may leave it,
    as fixtures of pytest-asyncio and cells of a notebook do; in trio it must be the same task.
    Otherwise leaving stops the workers and raises `RuntimeError`.
    """

    __doc__ = with_sections(__doc__, CoordinatorFace.__doc__)

    @property
    def aio(self) -> Coordinator:
        """The async face of the same coordinator, for coroutines.

        That is this face itself. Code that is given either face can ask for the one it needs.
        """
        return self

    @property
    def sync(self) -> BlockingCoordinator:
        """The blocking face of the same coordinator, for threads."""
        face: BlockingCoordinator = self._as("sync")
        return face


@public("aioqueue.sync", name="Coordinator", hints="coordinators")
class BlockingCoordinator(ThreadCoordinator):
    """Stops all workers together, joins them, and reports what failed.

    Leaving ``with Coordinator()`` requests a stop and joins every worker. It raises all failures as
    one `ExceptionGroup`, including an exception from the block itself. A clean stop
    (`OutOfRangeError`) that leaves the block ends it normally.
    """

    __doc__ = with_sections(__doc__, CoordinatorFace.__doc__)

    @property
    def sync(self) -> BlockingCoordinator:
        """The blocking face of the same coordinator, for threads.

        That is this face itself. Code that is given either face can ask for the one it needs.
        """
        return self

    @property
    def aio(self) -> Coordinator:
        """The async face of the same coordinator, for coroutines."""
        face: Coordinator = self._as("aio")
        return face


for _cls in (CoordinatorFace, AsyncCoordinator, ThreadCoordinator):
    name_methods(_cls, "Coordinator")
for _cls in (Coordinator, BlockingCoordinator):
    hint_methods(
        _cls,
        "coordinators",
        ("drain", "join", "register", "request_stop", "share", "start", "wait_for_stop"),
    )
del _cls
