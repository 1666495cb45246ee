"""`WriteThread`: does the work of a sink beside the loop that makes the rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import anyio

from aioqueue import OutOfRangeError, QueueClosedError, sync

Job: TypeAlias = Callable[[], object]


class WriteThread:
    """Runs jobs one after another, in a thread of its own.

    Args:
        failed: called in that thread with the failure of a job. No job runs after it.
    """

    def __init__(self, failed: Callable[[BaseException], object]) -> None:
        self._failed = failed
        # One job waits while another runs: memory holds the rows of three.
        self._jobs: Final[sync.FIFOQueue[Any]] = sync.FIFOQueue(1, name="write")
        self._end: Final[sync.FIFOQueue[Any]] = sync.FIFOQueue(1, name="write-end")
        self._is_stopped = False
        self.failure: BaseException | None = None
        """What a job has raised."""
        self._thread = threading.Thread(target=self._run, name="aioqueue-write", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> bool:
        """Queue a job; return false if an earlier one has failed."""
        try:
            self._jobs.enqueue(job)
        except QueueClosedError:
            return False
        return True

    async def aput(self, job: Job) -> bool:
        """Hand over a job. Returns false if an earlier one has failed.

        Cancellation:
            A cancelled call has handed over nothing.
        """
        try:
            await self._jobs.aio.enqueue(job)
        except QueueClosedError:
            return False
        return True

    def join(self) -> None:
        """Wait until all jobs have run, or one has failed. No `put` may follow."""
        self._jobs.close()
        try:
            self._end.dequeue()
        except OutOfRangeError:
            self._thread.join()

    async def ajoin(self) -> None:
        """Wait until all jobs have run, or one has failed. No more are handed over.

        Cancellation:
            A cancelled call does not wait.
        """
        self._jobs.close()
        try:
            await self._end.aio.dequeue()
        except OutOfRangeError:
            pass

    def stop(self) -> None:
        """Wait until the current job has ended, and drop the others."""
        self._is_stopped = True
        self.join()

    async def astop(self) -> None:
        """Wait until the current job has ended, and drop the others. Nothing cancels the wait."""
        self._is_stopped = True
        with anyio.CancelScope(shield=True):
            await self.ajoin()

    def _run(self) -> None:
        try:
            for job in self._jobs:
                if self._is_stopped:
                    break
                job()
                del job  # it has rows
        except BaseException as error:
            self.failure = error
            self._failed(error)
        finally:
            # First the jobs, so that a caller that waits for room learns that there will be no
            # more room; then the end, which `join` waits for.
            self._jobs.close(cancel_pending_enqueues=True)
            self._end.close()
