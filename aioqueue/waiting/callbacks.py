"""A waker that calls back instead of waking, for code without a thread or task to wait in."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aioqueue.attempts import DONE, Attempt

__all__ = ("CallbackWaker",)


class CallbackWaker:
    """Calls back, in the thread that ends the attempt.

    `wake` is called with no lock of a machine held, by the caller that makes the move: any thread,
    a signal handler or a finalizer. It may be called more often than needed, so the callback must
    tolerate a second call.

    Args:
        attempt: the attempt to wait for.
        callback: called when the attempt is done; it must neither wait nor raise.
    """

    __slots__ = ("_attempt", "_callback", "two_step")

    def __init__(self, attempt: Attempt, callback: Callable[[], object]) -> None:
        self.two_step: bool = False
        # Kept only until the call: the attempt refers to this waker, and the callback may, too.
        self._attempt: Attempt | None = attempt
        self._callback: Callable[[], object] | None = callback

    def notify(self, attempt: Attempt, /) -> None:
        """Do nothing: there is only one attempt."""

    def wake(self, from_anywhere: bool = False) -> Iterable[Attempt]:
        attempt, callback = self._attempt, self._callback
        if attempt is not None and callback is not None and attempt.state is DONE:
            callback()
            self.forget()
        return ()

    def forget(self) -> None:
        """Cancel the callback."""
        self._attempt = self._callback = None

    def is_dead(self) -> bool:
        return False
