"""What a program knows of a queue that lives in an actor: its name there, its numbers, its calls.

What a method does is written once, as a generator that yields the calls it makes; a thread waits
for their answers in `Client.drive`, a task in `Client.drive_async`.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Final, TypeVar

import anyio

import aioqueue
from aioqueue.errors import WorkerDiedError
from aioqueue.inputs.prepare.ray.cluster import required_ray
from aioqueue.ray.actor import LEASE_SECONDS, Caller, Description

__all__ = ("Asking", "Client", "Numbers")

T = TypeVar("T")

Asking = Generator[Any, Any, T]
"""Yields Ray's references of answers, and is sent these."""

_BEAT: Final = LEASE_SECONDS / 6


class Numbers:
    """Numbers of the calls of one client, and which of their answers it has. Thread-safe.

    Args:
        first: the number of the first call.
    """

    def __init__(self, first: int = 0) -> None:
        self._lock = threading.Lock()
        self._next = first
        self._open: set[int] = set()

    def begin(self, call: Callable[[int, int], Any]) -> tuple[int, Any]:
        """Make the next call: it is given its number, and below which all have been answered."""
        with self._lock:  # so calls leave in the order of their numbers
            number, self._next = self._next, self._next + 1
            self._open.add(number)
            return number, call(number, min(self._open))

    def end(self, number: int) -> None:
        """A call has been answered."""
        with self._lock:
            self._open.discard(number)


class Client:
    """The connection of this program to the actor of a queue.

    Args:
        name: of the queue.
        actor: Ray's handle.
        description: what the queue is.
        consumer: what it calls itself where it takes out; made up if ``None``.
        after: the number of the last lease that this consumer has used in an earlier life.
    """

    def __init__(
        self,
        ray: Any,
        name: str,
        actor: Any,
        description: Description,
        consumer: str | None,
        after: int | None,
    ) -> None:
        self.ray = ray
        self.name = name
        self.actor = actor
        self.description = description
        life = f"client-{uuid.uuid4().hex[:12]}"
        self.id = consumer or life
        self.caller = Caller(self.id, life, after, description)
        self.puts = Numbers()
        self.takes = Numbers(0 if after is None else after + 1)
        stopped = threading.Event()
        beat = threading.Thread(
            target=_beat, args=(actor, self.id, stopped), name=f"aioqueue-ray-{name}", daemon=True
        )
        beat.start()
        self.leave = weakref.finalize(self, _leave, actor, self.id, stopped)

    def drive(self, asking: Asking[T], timeout: float | None = None) -> T:
        """Have a generator ask, and wait in this thread.

        Args:
            asking: what it asks.
            timeout: seconds for the first answer; ``None`` waits for ever.
        """
        try:
            reference = next(asking)
            while True:
                ended = _Ended(self.name, reference)
                try:
                    ended.gate.sync.wait_closed(timeout=timeout)
                    answer = ended.result()
                except BaseException as error:
                    reference, timeout = asking.throw(error), None
                else:
                    reference = asking.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def drive_async(self, asking: Asking[T]) -> T:
        """The same in a task. What it asks after it was cancelled is asked all the same."""
        is_cut = False
        try:
            reference = next(asking)
            while True:
                ended = _Ended(self.name, reference)
                try:
                    with anyio.CancelScope(shield=is_cut):
                        await ended.gate.wait_closed()
                    answer = ended.result()
                except BaseException as error:
                    reference, is_cut = asking.throw(error), True
                else:
                    reference = asking.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


class _Ended:
    """An answer that is coming: a gate that closes when it is there, for tasks and threads.

    Args:
        name: of the queue.
        reference: Ray's, of the answer.
    """

    def __init__(self, name: str, reference: Any) -> None:
        self._name = name
        self.gate: aioqueue.FIFOQueue[None] = aioqueue.FIFOQueue(1, name=name)
        self._future = reference.future()
        self._future.add_done_callback(lambda _: self.gate.close())

    def result(self) -> Any:
        """The answer.

        Raises:
            WorkerDiedError: the actor has died.
            Exception: what Ray raises, of an object that is lost say.
        """
        error = self._future.exception()
        if error is None:
            return self._future.result()
        if isinstance(error, required_ray().exceptions.RayActorError):
            raise WorkerDiedError(
                f"the actor of queue '{self._name}' has died, and what was inside with it"
            ) from error
        raise error


def _beat(actor: Any, client: str, stopped: threading.Event) -> None:
    import ray

    while True:
        if not ray.is_initialized():
            return
        try:
            actor.beat.remote(client)
        except Exception:
            return  # the connection is gone
        if stopped.wait(_BEAT):
            return


def _leave(actor: Any, client: str, stopped: threading.Event) -> None:
    """Nobody uses the queue here any more."""
    stopped.set()
    with suppress(Exception):  # at the end of the program there may be no connection any more
        import ray

        if ray.is_initialized():
            actor.leave.remote(client)
