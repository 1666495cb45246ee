"""What the methods of a coordinator do, written once for both faces; see `aioqueue.docstrings`.

Here stand those that wait; those that never do are the same for both: see `core`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ("CoordinatorMethods",)


class CoordinatorMethods:
    """What a coordinator can do that waits. Both faces override all of it."""

    def wait_for_stop(self) -> Any:
        """Wait until a stop is requested.

        Args:
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Returns:
            Whether a stop was requested: always true, unless there was a timeout.

        Raises:
            DeadlineExceededError: in threads, the time of a `CancelScope` around the call has run
                out, before the timeout.
            CancelledError: in threads, such a scope was cancelled.
            InvalidArgumentError: in threads, the timeout is not a number of seconds.
            RuntimeError: in threads, it would have to wait on a thread whose event loop is
                running.

        Cancellation:
            A cancelled call has changed nothing.
        """
        raise NotImplementedError

    def join(
        self,
        workers: Iterable[Any] | None = None,
        *,
        stop_grace_period: float = 0.0,
        ignore_live: bool = False,
    ) -> Any:
        """Wait until all workers have ended, and report what failed. It does not request a stop.

        Args:
            workers: threads, tasks or other futures, besides those that are registered or started.
            stop_grace_period: seconds that they have to end, counted from the stop (120 by
                default). Then tasks are cancelled, and threads that still run are a failure.
            ignore_live: such threads are not a failure.

        Raises:
            ExceptionGroup: all failures recorded, in the order reported, each with a note that
                names its worker; among them a `StillRunningError` that names the workers still
                running. (A `BaseExceptionGroup`, if a worker raised `SystemExit` or the like.)
            DeadlineExceededError: in threads, (a `TimeoutError`) the time of a `CancelScope` around
                the call has run out; workers that it would have waited for go on.
            CancelledError: in threads, such a scope was cancelled; they go on as well.
            InvalidArgumentError: any argument is not as described.
            RuntimeError: in threads, it would have to wait on a thread whose event loop is
                running.

        Cancellation:
            A cancelled call has changed nothing; workers that it would have waited for go on.
        """
        raise NotImplementedError
