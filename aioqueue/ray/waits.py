"""The calls of clients that wait at the owner of a queue, and how they end.

A call is one attempt in the queue's machine, so a client in another process has its place in the
same order as a caller in the owner.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, TypeAlias

from aioqueue.core.attempts import PENDING, Attempt, QueueState
from aioqueue.errors import OutOfRangeError
from aioqueue.queues.queue_core import QueueCore
from aioqueue.ray.lease_table import DequeueWaiter, LeaseTable

Call: TypeAlias = tuple[str, str, int]
"""A call: its client, its method and its number."""


class Wait:
    """An attempt in progress.

    Attributes:
        attempt: the attempt.
        began: when it began.
        sleeper: wakes its caller.
        error: why it was withdrawn, if the caller is to know.
    """

    __slots__ = ("attempt", "began", "error", "sleeper")

    def __init__(self, attempt: Attempt, sleeper: DequeueWaiter) -> None:
        self.attempt: Attempt = attempt
        self.began: float = monotonic()
        self.sleeper: DequeueWaiter = sleeper
        self.error: BaseException | None = None


class WaitTable:
    """All calls of clients that have an attempt in the queue. Used under the lock of the owner.

    Args:
        core: the queue.
        leases: its leases.
        queue: its kind and name, in messages.
    """

    def __init__(self, core: QueueCore, leases: LeaseTable, queue: tuple[str, str]) -> None:
        self._machine = core.machine
        self._leases = leases
        self._kind, self._name = queue
        self._waits: dict[Call, Wait] = {}

    def begin(self, call: Call, attempt: Attempt, wake: Callable[[], object]) -> Wait:
        """Begin the attempt of a call, which may end or be granted at once.

        Args:
            call: the call.
            attempt: its attempt.
            wake: called in any thread, at least once, when the attempt has ended or was granted.
        """
        wait = self._waits[call] = Wait(attempt, DequeueWaiter(wake))
        self._leases.begin(attempt, wait.sleeper)
        return wait

    def find(self, call: Call) -> Wait | None:
        return self._waits.get(call)

    def remove(self, call: Call) -> None:
        """Forget a call whose attempt has ended."""
        del self._waits[call]

    def end(self, wait: Wait, error: Callable[[], Exception] | None = None) -> None:
        """Withdraw the attempt of a call, unless it has ended, and wake its caller."""
        if wait.attempt.state is PENDING:
            self._leases.withdraw(wait.attempt)
            wait.error = error and error()  # computes what is left, including this client's part
            wait.sleeper.wake()

    def end_client(self, client: str) -> None:
        """End all that a client has: its calls, then its leases."""
        # Before its leases go back: else its own waiting dequeues would get them.
        self.end_calls_of(client)
        self._leases.give_back(client)

    def end_calls_of(self, client: str) -> None:
        for call, wait in list(self._waits.items()):
            if call[0] == client:
                self.end(wait)

    def end_self_waits(self) -> None:
        """Report the end to consumers that would otherwise wait for their own leases."""
        if self._machine.state is not QueueState.CLOSED:
            return
        waits = {call: wait for call, wait in self._waits.items() if call[1] == "dequeue"}
        clients = {client for client, _, _ in waits}
        for (client, _, _), wait in waits.items():
            # Elements inside go to the first waiting call: only a sole consumer is known.
            is_sole = clients == {client} or not self._machine.size
            if is_sole and not self._leases.others_hold_rows(client):
                take: Any = wait.attempt
                self.end(wait, partial(self._self_wait_error, take.n))

    def _self_wait_error(self, n: int) -> OutOfRangeError:
        return OutOfRangeError(
            f"{self._kind} '{self._name}' is closed, and has only elements that this"
            " consumer has taken and not committed",
            queue=self._name,
            requested=n,
            remaining=self._machine.size,
        )
