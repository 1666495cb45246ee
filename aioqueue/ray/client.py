"""What a program knows of a queue that lives in an actor: its name there, its numbers, its calls.

What a method does is written once, as a generator that yields the calls it makes; a thread waits
for their answers in `Client.drive`, a task in `Client.drive_async`.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from time import monotonic
from typing import Any, Final, TypeVar

import anyio

from aioqueue.errors import (
    DeadlineExceededError,
    OutOfRangeError,
    QueueClosedError,
    WorkerDiedError,
    describe_exception,
)
from aioqueue.inputs.prepare.ray_cluster import (
    connected,
    plain,
    required_ray,
    session_of,
    was_refused,
    why_failed,
)
from aioqueue.processes.remote_failures import failure_of_message, message_of_failure
from aioqueue.ray.clients import CallerId, HandleState
from aioqueue.ray.messages import LEASE_SECONDS, Answer, Description
from aioqueue.ray.packing import unpacked_answer
from aioqueue.waiting import Gate, current_waker

__all__ = ("Asking", "Client", "Connection")

T = TypeVar("T")

Asking = Generator[Any, Any, T]
"""Yields Ray's references of answers, and is sent these."""

_BEAT: Final = LEASE_SECONDS / 6

_SILENT: Final = 50.0
"""How long the actor may say nothing until who waits for it is told."""


class Client:
    """The connection of this program to the actor of a queue.

    Args:
        name: of the queue.
        actor: Ray's handle.
        description: what the queue is.
        consumer: what it calls itself where it takes out; made up if ``None``.
        last_committed: the number of the last lease that this consumer has used in an earlier life.
        owned: whether what it puts in is to belong to the actor.
    """

    def __init__(
        self,
        ray: Any,
        name: str,
        actor: Any,
        description: Description,
        consumer: str | None,
        last_committed: int | None,
        *,
        owned: bool,
    ) -> None:
        self.ray = ray
        self.name = name
        self.description = description
        life = f"client-{uuid.uuid4().hex[:12]}"
        self.id = consumer or life
        self.has_name = self.id != life
        node = str(ray.get_runtime_context().get_node_id())
        self.caller = CallerId(self.id, life, last_committed, description, node)
        keeps = description.journal is not None
        self.standings = HandleState(ray.cloudpickle, keeps=keeps, owned=owned)
        self.connection = Connection(ray, name, self.caller, actor, self.standings)
        self.connection.start()
        self.leave = weakref.finalize(self, self.connection.leave)

    @property
    def actor(self) -> Any:
        """Ray's handle of the actor.

        Raises:
            RuntimeError: this process was forked from the one that has made the handle.
            WorkerDiedError: the connection has ended.
        """
        self.connection.check()
        return self.connection.actor

    def raise_error(self, answer: Answer) -> None:
        """Raise what a call has failed by, if it has."""
        error = answer.error
        if error is None:
            return
        if answer.cause is not None and isinstance(error, OutOfRangeError | QueueClosedError):
            loads = self.ray.cloudpickle.loads
            error.__cause__ = failure_of_message(answer.cause, "where the queue was closed", loads)
        raise error

    def message_of(self, cause: BaseException | None) -> bytes | None:
        """The failure that closes the queue, as it is sent."""
        if cause is None:
            return None
        if not isinstance(cause, Exception):  # Ctrl-C there is no Ctrl-C here
            cause, what = RuntimeError(describe_exception(cause)), cause
            cause.__cause__ = what
        cloudpickle = self.ray.cloudpickle
        return message_of_failure(cause, cloudpickle.dumps, cloudpickle.loads)

    def meet(self, began: int = 0) -> Asking[None]:
        """See that an actor that comes back knows how this program stands.

        Args:
            began: how often it has started, as it says.
        """
        if not self.standings.keeps:
            return
        reference = self.connection.rejoin(began)
        while reference is not None:
            answer: Answer = yield reference
            self.raise_error(answer)
            if not answer.is_outdated:
                self.connection.note_met(answer.began)
            reference = self.connection.rejoin(answer.began)

    def asked(self, ask: Callable[[], Any]) -> Asking[Any]:
        """What the actor answers to a call; asked again, if it has come back meanwhile."""
        yield from self.meet()
        return (yield from self.settled(ask(), ask))

    def settled(self, reference: Any, ask: Callable[[], Any]) -> Asking[Any]:
        """What it answers to a call that was made."""
        while True:
            answer = unpacked_answer((yield reference))
            if not (isinstance(answer, Answer) and answer.began):
                return answer
            yield from self.meet(answer.began)
            reference = ask()

    def end_put(self, number: int) -> None:
        """An enqueue has been answered."""
        if self.standings.puts.end(number):
            self.connection.skip("enqueue", number)

    def end_take(self, number: int) -> None:
        """A dequeue has been answered."""
        if self.standings.takes.end(number):
            self.connection.skip("dequeue", number)

    def delete(self) -> Asking[None]:
        """End the actor."""
        if self.standings.keeps:
            with suppress(WorkerDiedError):
                yield self.actor.end.remote()
        actor = self.actor
        self.connection.stop()
        self.ray.kill(actor.actor)

    def drive(self, asking: Asking[T], timeout: float | None = None) -> T:
        """Have a generator ask, and wait in this thread.

        Args:
            asking: what it asks.
            timeout: seconds for the first answer; ``None`` waits for ever.
        """
        try:
            reference = next(asking)
            while True:
                ended = _Ended(self.connection, reference)
                try:
                    if not ended.gate.wait_blocking(timeout):
                        raise DeadlineExceededError(
                            f"queue '{self.name}' has not answered within {timeout} s"
                        )
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
                ended = _Ended(self.connection, reference)
                try:
                    with anyio.CancelScope(shield=is_cut):
                        await ended.gate.wait(current_waker())
                    answer = ended.result()
                except BaseException as error:
                    reference, is_cut = asking.throw(error), True
                else:
                    reference = asking.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


class _Ended:
    """An answer that is coming: a gate that opens when it is there, for tasks and threads.

    Args:
        connection: by which it comes.
        reference: Ray's, of the answer.
    """

    def __init__(self, connection: Connection, reference: Any) -> None:
        self._connection = connection
        self.gate = Gate()
        self._future = reference.future()
        connection.expect(self)
        # Without this object: a cycle would keep the answer, which may be a whole batch in the
        # object store, until Python looks for cycles.
        gate = self.gate
        self._future.add_done_callback(lambda _: gate.open())

    def result(self) -> Any:
        """The answer.

        Raises:
            WorkerDiedError: the actor has died, or the connection has ended.
            Exception: what Ray raises, of an object that is lost say.
        """
        if not self._future.done():
            raise self._connection.ended()
        error = self._future.exception()
        if error is None:
            return self._future.result()
        if isinstance(error, required_ray().exceptions.RayActorError):
            raise WorkerDiedError(
                f"the actor of queue '{self._connection.name}' has died, and what was inside with"
                f" it{_why(error)}"
            ) from error
        if isinstance(error, required_ray().exceptions.RayTaskError):  # its text is a traceback
            raise RuntimeError(
                f"the actor of queue '{self._connection.name}' has failed: {why_failed(error)}"
            ) from getattr(error, "cause", None)
        raise error


class Connection:
    """Tells the actor that this program is alive, and those who wait when they wait in vain.

    Ray never answers what was asked before `ray.shutdown`, and starts a cluster for what is asked
    after it; and in a process that was forked it answers nothing at all.

    Args:
        name: of the queue.
        caller: who it speaks for.
        actor: Ray's handle.
        standings: how it stands.

    Attributes:
        caller: see above.
    """

    def __init__(
        self, ray: Any, name: str, caller: CallerId, actor: Any, standings: HandleState
    ) -> None:
        self.name = name
        self.caller = caller
        self.actor = actor
        self._pid = os.getpid()
        self._session = session_of(ray)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._expected: weakref.WeakSet[_Ended] = weakref.WeakSet()
        self._is_over = False
        self._standings = standings
        self._met = 0  # how often the actor had started when it was told how we stand
        self._joining: tuple[int, Any] | None = None
        self._skipped: list[tuple[str, int]] = []  # to be told when it has been met
        self._heard: float | None = None  # when, of the actor

    def start(self) -> None:
        """Begin to tell."""
        name = f"aioqueue-ray-{self.name}"
        threading.Thread(target=self.run, name=name, daemon=True).start()

    def expect(self, ended: _Ended) -> None:
        """Somebody waits for an answer."""
        with self._lock:
            self._expected.add(ended)
            is_over = self._is_over
        if is_over:
            ended.gate.open()

    def rejoin(self, began: int) -> Any:
        """Tell an actor that has come back how this program stands, once.

        Args:
            began: how often it has started by now; 0 if that is not known.

        Returns:
            Ray's reference of its answer; ``None`` if it has answered before.
        """
        with self._lock:
            if self._met and began <= self._met:
                return None
            if self._joining is not None and self._joining[0] >= began:
                return self._joining[1]
            reference = self.actor.rejoin.remote(self.caller, self._standings.told(began))
            self._joining = began, reference
        # Without the lock: it is called back at once if the answer has come by now.
        reference.future().add_done_callback(self._joined)
        return reference

    def note_met(self, began: int) -> None:
        """The actor has been told, when it had started so often."""
        with self._lock:
            if began > self._met:
                self._met, self._joining = began, None
                skipped, self._skipped = self._skipped, []
                for call in skipped:
                    self.actor.skip.remote(self.caller, *call)

    def skip(self, what: str, number: int) -> None:
        """A call will not come again of which the actor was told that it might: others wait."""
        with self._lock:
            if self._joining is not None:
                self._skipped.append((what, number))
            elif self._is_there():
                self.actor.skip.remote(self.caller, what, number)

    def _joined(self, future: Any) -> None:
        if future.exception() is None and not future.result().is_outdated:
            self.note_met(future.result().began)  # else who waits asks again, or the next beat

    def _beaten(self, future: Any) -> None:
        """The actor has answered that it knows of us."""
        if future.exception() is not None:
            return
        self._heard = monotonic()
        answer: Answer = future.result()
        self._standings.forget(answer.freed)
        if answer.began and self._is_there():
            self.rejoin(answer.began)

    def check(self) -> None:
        """See that something can be asked.

        Raises:
            RuntimeError: this process was forked from the one that has made the handle.
            WorkerDiedError: the connection has ended.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"the handle of queue '{self.name}' belongs to the process that this one was forked"
                " from: call ray.init() here and make another, by the same name"
            )
        if self._is_over or not self._is_there():
            raise self.ended()

    def ended(self) -> WorkerDiedError:
        """The connection has ended."""
        if self._is_there():
            return WorkerDiedError(
                f"nothing was heard of the actor of queue '{self.name}' for"
                f" {_SILENT:.0f} s, so it was taken to be dead"
            )
        return WorkerDiedError(
            f"the connection to queue '{self.name}' has ended: ray.shutdown() was called; what was"
            " asked before may have been done"
        )

    def stop(self) -> None:
        """Tell the actor no more that this program is alive: it is being ended."""
        self._stopped.set()

    def leave(self) -> None:
        """Nobody uses the queue here any more."""
        self._stopped.set()
        with suppress(Exception):  # at the end of the program there may be no connection any more
            if os.getpid() == self._pid and self._is_there():
                self.actor.leave.remote(self.caller)

    def _is_there(self) -> bool:
        ray = connected()
        return ray is not None and session_of(ray) == self._session

    def _is_silent(self) -> bool:
        """Whether the actor, which was there, has answered nothing for long."""
        return self._heard is not None and monotonic() - self._heard > _SILENT

    def beat(self) -> None:
        """Tell the actor once that this program is alive.

        Raises:
            Exception: the connection is gone.
        """
        future = self.actor.beat.remote(self.caller, self._standings.kept()).future()
        future.add_done_callback(self._beaten)

    def run(self) -> None:
        """The whole life of the thread that tells it, until the connection ends: then those who
        wait for an answer are told that there will be none."""
        while self._is_there() and not self._is_silent():
            try:
                self.beat()
            except Exception:
                break
            if self._stopped.wait(_BEAT):
                return
        with self._lock:
            self._is_over = True
            expected = list(self._expected)
        for ended in expected:
            ended.gate.open()


def _why(error: BaseException) -> str:
    """What it has ended by, if it could not begin."""
    if not was_refused(error):
        return ""
    told = [line.strip() for line in plain(str(error)).splitlines() if line.strip()]
    return f": {told[-1]}" if told else ""
