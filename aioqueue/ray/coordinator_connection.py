"""The connection between a program and the actor of its coordinator.

One thread makes all calls. It reports the state of this program when it changes, and every few
seconds. One call is always pending at the actor, which answers it when something changes elsewhere,
so there is no polling. A caller that stops (in a signal handler, say) only leaves a message for
this thread.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from aioqueue.errors import WorkerDiedError
from aioqueue.ray.coordinator_actor import News
from aioqueue.ray.messages import LEASE_SECONDS
from aioqueue.workers.executors.ray_cluster import connected, session_of, why_lost

_REPORT_SECONDS: Final = LEASE_SECONDS / 6
_ACKNOWLEDGED_SECONDS: Final = 5.0


class CoordinatorView(Protocol):
    """The coordinator of this program, as the connection's thread calls it."""

    def program_report(self) -> Any: ...

    def accept_news(self, news: News) -> None: ...

    def known_state(self) -> tuple[str, int, int, bool]:
        """Return what is known here: the arguments of `CoordinatorActor.news`."""

    def connection_lost(self, error: Exception) -> None: ...


class CoordinatorConnection:
    """The connection of one program to the actor.

    Args:
        ray: the library.
        name: name of the coordinator.
        actor: Ray's handle.
        coordinator: returns the coordinator of this program, while it is in use.
    """

    def __init__(
        self, ray: Any, name: str, actor: Any, coordinator: Callable[[], CoordinatorView | None]
    ) -> None:
        self.name = name
        self.actor = actor
        self._coordinator = coordinator
        self._pid = os.getpid()
        self._session = session_of(ray)
        self._inbox: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._pending: dict[object, Callable[[Any], object]] = {}  # calls without an answer
        self._acknowledged = 0  # failures that the actor has
        self._waiting: dict[threading.Event, int] = {}  # each event waits for this many
        self._lock = threading.RLock()  # guards the two above
        self.ended_by: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"aioqueue-ray-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # Callable in any thread, in signal handlers, and by finalizers.

    def call_soon(self, call: Callable[[], object]) -> None:
        self._inbox.put(call)

    def schedule_report(self) -> None:
        """Schedule a report, because something has changed here."""
        self.call_soon(self._send_report)

    def call_when_settled(self, then: Callable[[], object]) -> None:
        """Schedule a callback for when this program and the actor know each other's state."""
        self.call_soon(partial(self._send_report, then))

    def leave(self) -> None:
        """Note that the coordinator is no longer in use here."""
        self._inbox.put(None)

    def schedule_request(self, then: Callable[[Any], object], method: str, *arguments: Any) -> None:
        """Schedule a call to the actor.

        Args:
            then: called with the answer in that thread; with ``None`` if no answer came.
            method: method of the actor.
            arguments: its arguments.
        """
        self.call_soon(partial(self._request, then, method, arguments))

    def check(self) -> None:
        """Check that this process owns the connection.

        Raises:
            RuntimeError: it is a fork of the process that does.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"the handle of coordinator '{self.name}' belongs to the process that this one was"
                " forked from: call ray.init() here and make a new one with the same name"
            )

    def until_acknowledged(self, count: int) -> None:
        """Wait, for a limited time, until the actor has this many failures of this program.

        The thread of the connection does not wait for itself.
        """
        if threading.current_thread() is self._thread:
            return
        event = threading.Event()
        # Check and register under one lock: an acknowledgement or the end comes before, and is seen
        # here, or afterwards, and sets the event.
        with self._lock:
            if self._acknowledged >= count or self.ended_by is not None:
                return
            self._waiting[event] = count
        event.wait(_ACKNOWLEDGED_SECONDS)
        with self._lock:
            self._waiting.pop(event, None)

    def reset(self) -> None:
        with self._lock:
            self._acknowledged = 0

    @property
    def acknowledged(self) -> int:
        """How many failures of this program the actor has."""
        return self._acknowledged

    # In the thread of the connection.

    def _run(self) -> None:
        self._request_news()
        self._send_report()
        next_report = monotonic() + _REPORT_SECONDS
        while self._is_connected():
            try:
                call = self._inbox.get(timeout=max(0.0, next_report - monotonic()))
            except queue.Empty:
                next_report = monotonic() + _REPORT_SECONDS
                call = self._send_report
            if call is None:
                break
            try:
                call()
            except Exception as error:  # fail all waiting calls, since no answer can come
                self._end(error)
            del call  # it may be the last reference to the coordinator
            if self.ended_by is not None:
                break
        else:
            self._end(_ended_error(self.name))
        self._answer_remaining_calls()

    def _answer_remaining_calls(self) -> None:
        """Answer all remaining calls with the end of the connection."""
        if self.ended_by is None:
            self.ended_by = _ended_error(self.name)
            report = self._last_report
            # The coordinator is gone by now, but other programs still need its last failures.
            if report is not None and self._is_connected():
                with suppress(Exception):
                    self.actor.leave.remote(report)
            return
        # Callers may wait for an answer that no report can bring: each gets `None`.
        while self._coordinator() is not None:
            call = self._inbox.get()
            if call is None:
                return
            call()
            del call

    _last_report: Any = None

    def _is_connected(self) -> bool:
        ray = connected()
        return ray is not None and session_of(ray) == self._session

    def _send_report(self, then: Callable[[], object] = bool) -> None:
        coordinator = self._coordinator()
        if coordinator is None or self.ended_by is not None:
            then()
            return
        report = coordinator.program_report()
        # Created early, while there still is a thread to create it.
        self._last_report = report._replace(workers=(), joining=(), number=report.number + 1)
        self._request(partial(self._on_report_answer, report.run, then), "report", (report,))

    def _on_report_answer(self, run: int, then: Callable[[], object], news: News | None) -> None:
        coordinator = self._coordinator()
        if news is not None and coordinator is not None:
            if news.run == run:  # counts of another run are of other failures
                self._note_acknowledged(news.taken)
            coordinator.accept_news(news)
        then()

    def _note_acknowledged(self, taken: int) -> None:
        with self._lock:
            self._acknowledged = max(self._acknowledged, taken)
            # Nobody updates the last report later: take out now what the actor has.
            if self._last_report is not None:
                already = self._acknowledged - self._last_report.acknowledged
                self._last_report = self._last_report._replace(
                    acknowledged=self._acknowledged, failures=self._last_report.failures[already:]
                )
            for event, count in self._waiting.items():
                if count <= self._acknowledged:
                    event.set()

    def _request_news(self) -> None:
        coordinator = self._coordinator()
        if coordinator is not None:
            self._request(self._on_news, "news", coordinator.known_state())

    def _on_news(self, news: News | None) -> None:
        coordinator = self._coordinator()
        if news is not None and coordinator is not None:
            coordinator.accept_news(news)
            self._request_news()

    def _request(self, then: Callable[[Any], object], method: str, arguments: Any) -> None:
        if self.ended_by is not None:
            then(None)
            return
        # Registered before the call: `_end` answers it if the connection ends in the meantime.
        call_id = object()
        self._pending[call_id] = then
        if not self._is_connected():  # a call would make Ray start a cluster
            self._end(_ended_error(self.name))
            return
        try:
            future = getattr(self.actor, method).remote(*arguments).future()
        except Exception as error:  # the connection is just ending
            self._end(self._died_error(error))
            return
        future.add_done_callback(
            lambda future: self.call_soon(partial(self._on_answer, call_id, future))
        )

    def _on_answer(self, call_id: object, future: Any) -> None:
        error = future.exception()
        if error is not None:
            self._end(self._died_error(error))
            return
        then = self._pending.pop(call_id, None)
        if then is not None:
            then(future.result())

    def _died_error(self, error: BaseException) -> WorkerDiedError:
        found = WorkerDiedError(
            f"coordinator '{self.name}': its actor {why_lost(error)}; stops and failures of"
            " other programs no longer arrive"
        )
        found.__cause__ = error
        return found

    def _end(self, error: Exception) -> None:
        if self.ended_by is not None:
            return
        with self._lock:
            self.ended_by = error
            for event in self._waiting:
                event.set()
        coordinator = self._coordinator()
        if coordinator is not None:
            coordinator.connection_lost(error)
        pending, self._pending = self._pending, {}
        for then in pending.values():
            then(None)


def _ended_error(name: str) -> WorkerDiedError:
    return WorkerDiedError(
        f"coordinator '{name}': the connection has ended: ray.shutdown() was called; stops and"
        " failures of other programs no longer arrive"
    )


def place_here() -> str:
    """Return where the caller runs: actor or task, process, node."""
    process = f"process {os.getpid()}"
    ray = connected()
    if ray is None:  # after shutdown, reading Ray's context starts a cluster
        return process
    context = ray.get_runtime_context()
    what = ""
    if context.worker.mode != ray.WORKER_MODE:
        what = "the program in "
    elif context.get_actor_id() is not None:
        what = f"actor {context.get_actor_name() or context.get_actor_id()[:12]}, "
    elif context.get_task_name():
        what = f"task {context.get_task_name()}, "
    return f"{what}{process} on node {context.get_node_id()}"


def task_here() -> tuple[str, str] | None:
    """Return the Ray task that the caller runs in, with its name; ``None`` outside a task."""
    ray = connected()
    if ray is None:
        return None
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return None
    name = context.get_task_name()
    return None if name is None else (context.get_task_id(), name)
