"""The connection of a program to the actor of a queue: numbered calls, answers and heartbeats.

Each method is written once, as a generator that yields its calls. `Client.drive` waits for the
answers in a thread, `Client.drive_async` in a task.
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
    WorkerDiedError,
)
from aioqueue.ray.client_registry import CallerId, HandleState
from aioqueue.ray.messages import LEASE_SECONDS, Answer, Description
from aioqueue.ray.packing import unpacked_answer
from aioqueue.remote.failures import message_of_cause, set_closing_cause
from aioqueue.workers.executors.ray_cluster import (
    connected,
    plain,
    required_ray,
    session_of,
    was_refused,
    why_failed,
)
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate

T = TypeVar("T")

CallFlow = Generator[Any, Any, T]
"""A generator that yields Ray's references of answers, and receives the answers."""

_HEARTBEAT_SECONDS: Final = LEASE_SECONDS / 6

_SILENCE_SECONDS: Final = 50.0
"""Seconds without an answer after which the actor counts as dead."""


class Client:
    """The client of the actor of a queue.

    Args:
        name: name of the queue.
        actor: Ray's handle.
        description: the kind of queue expected.
        consumer: the consumer's name; generated if ``None``.
        last_committed: the number of the last lease that this consumer used in an earlier life.
        owned: whether its batches are to belong to the actor.
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
        self.id: str = consumer or life
        self.has_name: bool = self.id != life
        node = str(ray.get_runtime_context().get_node_id())
        self.caller: CallerId = CallerId(self.id, life, last_committed, description, node)
        keeps = description.journal is not None
        self.handle_state: HandleState = HandleState(ray.cloudpickle, keeps=keeps, owned=owned)
        self.connection: ActorConnection = ActorConnection(
            ray, name, self.caller, actor, self.handle_state
        )
        self.connection.start()
        self.leave: Callable[[], object] = weakref.finalize(self, self.connection.leave)

    @property
    def actor(self) -> Any:
        """Ray's handle of the actor.

        Raises:
            RuntimeError: this process is a fork of the one that made the handle.
            WorkerDiedError: the connection has ended.
        """
        self.connection.check()
        return self.connection.actor

    def raise_error(self, answer: Answer) -> None:
        """Raise the error of an answer, if it has one."""
        error = answer.error
        if error is None:
            return
        set_closing_cause(error, answer.cause, self.ray.cloudpickle.loads)
        raise error

    def message_of(self, cause: BaseException | None) -> bytes | None:
        """Return the failure that closes the queue, in the form that is sent."""
        cloudpickle = self.ray.cloudpickle
        return message_of_cause(cause, cloudpickle.dumps, cloudpickle.loads)

    def rejoin(self, starts: int = 0) -> CallFlow[None]:
        """Rejoin an actor that has restarted.

        Args:
            starts: how often the actor has started.
        """
        if not self.handle_state.keeps:
            return
        reference = self.connection.rejoin(starts)
        while reference is not None:
            answer: Answer = yield reference
            self.raise_error(answer)
            if not answer.is_outdated:
                self.connection.note_rejoined(answer.starts)
            reference = self.connection.rejoin(answer.starts)

    def request(self, ask: Callable[[], Any]) -> CallFlow[Any]:
        """Return the actor's answer to a call; repeat the call if the actor restarts in between."""
        yield from self.rejoin()
        return (yield from self.await_answer(ask(), ask))

    def await_answer(self, reference: Any, ask: Callable[[], Any]) -> CallFlow[Any]:
        while True:
            answer = unpacked_answer((yield reference))
            if not (isinstance(answer, Answer) and answer.starts):
                return answer
            yield from self.rejoin(answer.starts)
            reference = ask()

    def end_enqueue(self, number: int) -> None:
        if self.handle_state.enqueues.end(number):
            self.connection.skip("enqueue", number)

    def end_dequeue(self, number: int) -> None:
        if self.handle_state.dequeues.end(number):
            self.connection.skip("dequeue", number)

    def delete(self) -> CallFlow[None]:
        if self.handle_state.keeps:
            with suppress(WorkerDiedError):
                yield self.actor.end.remote()
        actor = self.actor
        self.connection.stop()
        self.ray.kill(actor.actor)

    def drive(self, flow: CallFlow[T], timeout: float | None = None) -> T:
        """Run a generator of calls, and wait for the answers in this thread.

        Args:
            flow: the generator.
            timeout: seconds to wait for the first answer; ``None`` to wait without a limit.
        """
        try:
            reference = next(flow)
            while True:
                pending = _PendingAnswer(self.connection, reference)
                try:
                    if not pending.gate.wait_blocking(timeout):
                        raise DeadlineExceededError(
                            f"queue '{self.name}' did not answer within {timeout} s"
                        )
                    answer = pending.result()
                except BaseException as error:
                    reference, timeout = flow.throw(error), None
                else:
                    reference = flow.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def drive_async(self, flow: CallFlow[T]) -> T:
        """Run a generator of calls in a task. Calls it makes after a cancellation are still
        made."""
        is_cut = False
        try:
            reference = next(flow)
            while True:
                pending = _PendingAnswer(self.connection, reference)
                try:
                    with anyio.CancelScope(shield=is_cut):
                        await pending.gate.wait(current_waker())
                    answer = pending.result()
                except BaseException as error:
                    reference, is_cut = flow.throw(error), True
                else:
                    reference = flow.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


class _PendingAnswer:
    """A pending answer, with a gate that opens when it arrives, for tasks and threads.

    Args:
        connection: the connection.
        reference: Ray's reference of the answer.
    """

    def __init__(self, connection: ActorConnection, reference: Any) -> None:
        self._connection = connection
        self.gate: Gate = Gate()
        self._future = reference.future()
        connection.add_pending(self)
        # The callback must not refer to this object: a cycle would keep the answer, a batch in the
        # object store perhaps, until the garbage collector runs.
        gate = self.gate
        self._future.add_done_callback(lambda _: gate.open())

    def result(self) -> Any:
        """Return the answer.

        Raises:
            WorkerDiedError: the actor has died, or the connection has ended.
            Exception: an error of Ray, such as for a lost object.
        """
        if not self._future.done():
            raise self._connection.ended_error()
        error = self._future.exception()
        if error is None:
            return self._future.result()
        if isinstance(error, required_ray().exceptions.RayActorError):
            raise WorkerDiedError(
                f"the actor of queue '{self._connection.name}' has died, and its elements are"
                f" lost{_refusal_reason(error)}"
            ) from error
        if isinstance(
            error, required_ray().exceptions.RayTaskError
        ):  # `str(error)` is a whole traceback
            raise RuntimeError(
                f"the actor of queue '{self._connection.name}' has failed: {why_failed(error)}"
            ) from getattr(error, "cause", None)
        raise error


class ActorConnection:
    """Sends heartbeats to the actor, and fails waiting calls when no answer can come.

    Ray never answers calls that were made before `ray.shutdown`, and starts a cluster for calls
    made after it. In a forked process it answers none.

    Args:
        name: name of the queue.
        caller: identity of the client.
        actor: Ray's handle.
        handle_state: the state to report when the actor restarts.

    Attributes:
        caller: identity of the client.
    """

    def __init__(
        self, ray: Any, name: str, caller: CallerId, actor: Any, handle_state: HandleState
    ) -> None:
        self.name = name
        self.caller = caller
        self.actor = actor
        self._pid = os.getpid()
        self._session = session_of(ray)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._pending_answers: weakref.WeakSet[_PendingAnswer] = weakref.WeakSet()
        self._is_over = False
        self._handle_state = handle_state
        self._rejoined_start = 0  # start count of the actor when we last rejoined
        self._joining: tuple[int, Any] | None = None
        self._skipped: list[tuple[str, int]] = []  # to be sent after rejoining
        self._last_heard: float | None = None  # when the actor last answered

    def start(self) -> None:
        name = f"aioqueue-ray-{self.name}"
        threading.Thread(target=self.run, name=name, daemon=True).start()

    def add_pending(self, pending: _PendingAnswer) -> None:
        """Register a call that waits for an answer."""
        with self._lock:
            self._pending_answers.add(pending)
            is_over = self._is_over
        if is_over:
            pending.gate.open()

    def rejoin(self, starts: int) -> Any:
        """Report this program's state to an actor that has restarted, once.

        Args:
            starts: how often the actor has started; 0 if unknown.

        Returns:
            Ray's reference of the answer; ``None`` if the actor already has the report.
        """
        with self._lock:
            if self._rejoined_start and starts <= self._rejoined_start:
                return None
            if self._joining is not None and self._joining[0] >= starts:
                return self._joining[1]
            reference = self.actor.rejoin.remote(self.caller, self._handle_state.report(starts))
            self._joining = starts, reference
        # Without the lock, since the callback runs at once if the answer is already there.
        reference.future().add_done_callback(self._joined)
        return reference

    def note_rejoined(self, starts: int) -> None:
        with self._lock:
            if starts > self._rejoined_start:
                self._rejoined_start, self._joining = starts, None
                skipped, self._skipped = self._skipped, []
                for call in skipped:
                    self.actor.skip.remote(self.caller, *call)

    def skip(self, what: str, number: int) -> None:
        """Tell the actor that a call which it still expects will not come, so that later ones can
        run."""
        with self._lock:
            if self._joining is not None:
                self._skipped.append((what, number))
            elif self._is_connected():
                self.actor.skip.remote(self.caller, what, number)

    def _joined(self, future: Any) -> None:
        if future.exception() is None and not future.result().is_outdated:
            self.note_rejoined(
                future.result().starts
            )  # otherwise a waiting call or the next beat tries again

    def _on_heartbeat(self, future: Any) -> None:
        if future.exception() is not None:
            return
        self._last_heard = monotonic()
        answer: Answer = future.result()
        self._handle_state.forget(answer.freed)
        if answer.starts and self._is_connected():
            self.rejoin(answer.starts)

    def check(self) -> None:
        """Check that calls are possible.

        Raises:
            RuntimeError: this process is a fork of the one that made the handle.
            WorkerDiedError: the connection has ended.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"the handle of queue '{self.name}' belongs to the process that this one was forked"
                " from: call ray.init() here and make a new handle with the same name"
            )
        if self._is_over or not self._is_connected():
            raise self.ended_error()

    def ended_error(self) -> WorkerDiedError:
        if self._is_connected():
            return WorkerDiedError(
                f"the actor of queue '{self.name}' was silent for "
                f" {_SILENCE_SECONDS:.0f} s, so it counts as dead"
            )
        return WorkerDiedError(
            f"the connection to queue '{self.name}' has ended: ray.shutdown() was called; earlier"
            " calls may have taken effect"
        )

    def stop(self) -> None:
        """Stop the heartbeat, because the actor is being ended."""
        self._stopped.set()

    def leave(self) -> None:
        """Tell the actor that this handle is no longer in use."""
        self._stopped.set()
        with suppress(Exception):  # the connection may be gone at exit
            if os.getpid() == self._pid and self._is_connected():
                self.actor.leave.remote(self.caller)

    def _is_connected(self) -> bool:
        ray = connected()
        return ray is not None and session_of(ray) == self._session

    def _is_silent(self) -> bool:
        return self._last_heard is not None and monotonic() - self._last_heard > _SILENCE_SECONDS

    def heartbeat(self) -> None:
        """Send one heartbeat.

        Raises:
            Exception: the connection is gone.
        """
        future = self.actor.heartbeat.remote(self.caller, self._handle_state.kept()).future()
        future.add_done_callback(self._on_heartbeat)

    def run(self) -> None:
        """Run the heartbeat thread until the connection ends, and then fail the waiting calls."""
        while self._is_connected() and not self._is_silent():
            try:
                self.heartbeat()
            except Exception:
                break
            if self._stopped.wait(_HEARTBEAT_SECONDS):
                return
        with self._lock:
            self._is_over = True
            pending_answers = list(self._pending_answers)
        for pending in pending_answers:
            pending.gate.open()


def _refusal_reason(error: BaseException) -> str:
    """Return why the actor has ended, if it could not start."""
    if not was_refused(error):
        return ""
    lines = [line.strip() for line in plain(str(error)).splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""
