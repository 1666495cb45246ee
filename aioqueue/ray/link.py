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
from aioqueue.ray.members import News
from aioqueue.ray.messages import LEASE_SECONDS
from aioqueue.workers.executors.ray_cluster import connected, session_of, why_lost

_BEAT: Final = LEASE_SECONDS / 6
_ACKNOWLEDGED_SECONDS: Final = 5.0


class CoordinatorView(Protocol):
    """The coordinator of this program, as the link's thread calls it."""

    def standing(self) -> Any:
        """Return the state of this program."""

    def heard(self, news: News) -> None:
        """Accept news of the cluster."""

    def asks_from(self) -> tuple[str, int, int, bool]:
        """Return what is known here: the arguments of `CoordinatorActor.news`."""

    def lost(self, error: Exception) -> None:
        """Handle the loss of the connection."""


class Link:
    """The connection of one program to the actor.

    Args:
        ray: the library.
        name: name of the coordinator.
        actor: Ray's handle.
        standing: returns the coordinator of this program, while it is in use.
    """

    def __init__(
        self, ray: Any, name: str, actor: Any, standing: Callable[[], CoordinatorView | None]
    ) -> None:
        self.name = name
        self.actor = actor
        self._standing = standing
        self._pid = os.getpid()
        self._session = session_of(ray)
        self._inbox: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._pending: dict[object, Callable[[Any], object]] = {}  # calls without an answer
        self._acknowledged = 0  # failures that the actor has
        self._waiting: dict[threading.Event, int] = {}  # each event waits for this many
        self._lock = threading.RLock()  # guards the two above
        self.ended_by: Exception | None = None
        self._thread = threading.Thread(target=self._talk, name=f"aioqueue-ray-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    # Callable in any thread, in signal handlers, and by finalizers.

    def soon(self, call: Callable[[], object]) -> None:
        """Schedule a call in the link's thread."""
        self._inbox.put(call)

    def tell_soon(self) -> None:
        """Schedule a report, because something has changed here."""
        self.soon(self._tell)

    def settle_soon(self, then: Callable[[], object]) -> None:
        """Schedule a callback for when this program and the actor know each other's state."""
        self.soon(partial(self._tell, then))

    def leave(self) -> None:
        """Note that the coordinator is no longer in use here."""
        self._inbox.put(None)

    def ask_soon(self, then: Callable[[Any], object], method: str, *arguments: Any) -> None:
        """Schedule a call to the actor.

        Args:
            then: called with the answer in the link's thread; with ``None`` if no answer came.
            method: method of the actor.
            arguments: its arguments.
        """
        self.soon(partial(self._ask, then, method, arguments))

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

        The thread of the link does not wait for itself.
        """
        if threading.current_thread() is self._thread:
            return
        event = threading.Event()
        with self._lock:
            if self._acknowledged >= count or self.ended_by is not None:
                return
            self._waiting[event] = count
        event.wait(_ACKNOWLEDGED_SECONDS)
        with self._lock:
            self._waiting.pop(event, None)

    def begin_anew(self) -> None:
        """Restart the count of failures at 0."""
        with self._lock:
            self._acknowledged = 0

    @property
    def acknowledged(self) -> int:
        """How many failures of this program the actor has."""
        return self._acknowledged

    # In the thread of the link.

    def _talk(self) -> None:
        self._listen()
        self._tell()
        next_beat = monotonic() + _BEAT
        while self._is_there():
            try:
                call = self._inbox.get(timeout=max(0.0, next_beat - monotonic()))
            except queue.Empty:
                next_beat = monotonic() + _BEAT
                call = self._tell
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
            self._end(_over(self.name))
        self._serve_the_last()

    def _serve_the_last(self) -> None:
        """After the connection has ended, answer all calls with that."""
        if self.ended_by is None:
            self.ended_by = _over(self.name)
            report = self._last_report
            if report is not None and self._is_there():
                with suppress(Exception):
                    self.actor.leave.remote(report)
            return
        while self._standing() is not None:
            call = self._inbox.get()
            if call is None:
                return
            call()
            del call

    _last_report: Any = None

    def _is_there(self) -> bool:
        ray = connected()
        return ray is not None and session_of(ray) == self._session

    def _tell(self, then: Callable[[], object] = bool) -> None:
        standing = self._standing()
        if standing is None or self.ended_by is not None:
            then()
            return
        report = standing.standing()
        # Created early, while there still is a thread to create it.
        self._last_report = report._replace(workers=(), joining=(), number=report.number + 1)
        self._ask(partial(self._told, report.run, then), "tell", (report,))

    def _told(self, run: int, then: Callable[[], object], news: News | None) -> None:
        standing = self._standing()
        if news is not None and standing is not None:
            if news.run == run:
                self._note_acknowledged(news.taken)
            standing.heard(news)
        then()

    def _note_acknowledged(self, taken: int) -> None:
        with self._lock:
            self._acknowledged = max(self._acknowledged, taken)
            if self._last_report is not None:
                already = self._acknowledged - self._last_report.acknowledged
                self._last_report = self._last_report._replace(
                    acknowledged=self._acknowledged, failures=self._last_report.failures[already:]
                )
            for event, count in self._waiting.items():
                if count <= self._acknowledged:
                    event.set()

    def _listen(self) -> None:
        standing = self._standing()
        if standing is not None:
            self._ask(self._heard, "news", standing.asks_from())

    def _heard(self, news: News | None) -> None:
        standing = self._standing()
        if news is not None and standing is not None:
            standing.heard(news)
            self._listen()

    def _ask(self, then: Callable[[Any], object], method: str, arguments: Any) -> None:
        if self.ended_by is not None:
            then(None)
            return
        call_id = object()
        self._pending[call_id] = then
        if not self._is_there():  # a call would make Ray start a cluster
            self._end(_over(self.name))
            return
        try:
            future = getattr(self.actor, method).remote(*arguments).future()
        except Exception as error:  # the connection is just ending
            self._end(self._death(error))
            return
        future.add_done_callback(lambda future: self.soon(partial(self._answer, call_id, future)))

    def _answer(self, call_id: object, future: Any) -> None:
        error = future.exception()
        if error is not None:
            self._end(self._death(error))
            return
        then = self._pending.pop(call_id, None)
        if then is not None:
            then(future.result())

    def _death(self, error: BaseException) -> WorkerDiedError:
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
        standing = self._standing()
        if standing is not None:
            standing.lost(error)
        pending, self._pending = self._pending, {}
        for then in pending.values():
            then(None)


def _over(name: str) -> WorkerDiedError:
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
