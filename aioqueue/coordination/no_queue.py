"""What a queue runner whose ops fill no queue has in place of one."""

from __future__ import annotations

from collections.abc import Callable

from aioqueue.worlds.waker import AsyncWaker


class NoQueue:
    """In place of the queue that a run fills: it is never closed, so only its workers end the run.

    Each run has one of its own, since runs that fill the same queue wait for each other.

    Args:
        name: what the workers do, for reports.
    """

    last_end: str | None = None

    def __init__(self, name: str) -> None:
        self.name: str = name

    @property
    def _core(self) -> NoQueue:
        return self

    def is_closed(self) -> bool:
        return False

    def close(
        self, cancel_pending_enqueues: bool = False, *, cause: BaseException | None = None
    ) -> None:
        """Do nothing: no consumer waits for the end."""

    def call_when_closed(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Never call back; return a function that cancels the callback."""
        return _nothing

    def count_filler(self, waker: AsyncWaker, change: int) -> None:
        """Do nothing: no consumer waits for this worker."""


def _nothing() -> None:
    pass
