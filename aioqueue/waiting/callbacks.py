"""Being called back instead of waiting: for those who have no thread or task to spare for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aioqueue.attempts import DONE, Attempt

__all__ = ("CallbackWaker",)


class CallbackWaker:
    """Calls back, in the thread that ends the attempt, where others would be woken.

    It is woken with no lock of a machine held, by the caller that makes the move: any thread, a
    signal handler, a finalizer. And it may be woken more often than needed, so the callback
    has to bear being called again.

    Args:
        attempt: what is waited for.
        callback: called when the attempt is done; it may neither wait nor raise.
    """

    __slots__ = ("_attempt", "_callback", "two_step")

    def __init__(self, attempt: Attempt, callback: Callable[[], object]) -> None:
        self.two_step = False
        # Both only until it has called: the attempt has us, too, and who is called may lead here.
        self._attempt: Attempt | None = attempt
        self._callback: Callable[[], object] | None = callback

    def notify(self, attempt: Attempt, /) -> None:
        """Nothing to note: there is only one attempt."""

    def wake(self, *, from_anywhere: bool = False) -> Iterable[Attempt]:
        attempt, callback = self._attempt, self._callback
        if attempt is not None and callback is not None and attempt.state is DONE:
            callback()
            self.forget()
        return ()

    def forget(self) -> None:
        """Nobody wants to be called any more."""
        self._attempt = self._callback = None

    def is_dead(self) -> bool:
        return False
