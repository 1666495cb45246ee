"""What the runs of one session share, from its beginning to its end."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Hashable
from queue import SimpleQueue
from typing import Any, Protocol

from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.errors import CancelledError
from aioqueue.compat.v1.session.plans import Plan, compile_plan
from aioqueue.sync import CancelScope


class Connected(Protocol):
    """A session, as the server that it is connected to knows it."""

    def abort(self) -> None:
        """The server has been reset."""


class ResourceContainer:
    """Holds resources by key, which the first caller makes; also named containers of them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._things: dict[tuple[str, Hashable], Any] = {}
        self._releases: dict[tuple[str, Hashable], Callable[[], object]] = {}
        self._closed = False
        self._sessions: weakref.WeakSet[Connected] = weakref.WeakSet()

    def connect(self, session: Connected) -> None:
        with self._lock:
            self._sessions.add(session)

    def reset(self, containers: Collection[str] | None = None) -> None:
        """End the sessions that are connected, and release what is there."""
        with self._lock:
            sessions = list(self._sessions)
            self._sessions.clear()
        for session in sessions:
            session.abort()
        self.clear(containers)

    def get(self, key: Hashable) -> Any:
        return self._things.get(("", key))

    def get_or_create(
        self,
        key: Hashable,
        factory: Callable[[], Any],
        release: Callable[[Any], object] | None = None,
        container: str = "",
    ) -> Any:
        place = container, key
        found = self._things.get(place)
        if found is not None:
            return found
        with self._lock:
            if self._closed:
                raise CancelledError(None, None, "Session has been closed.")
            found = self._things.get(place)
            if found is None:
                found = self._things[place] = factory()
                if release is not None:
                    self._releases[place] = lambda: release(found)
        return found

    def clear(self, containers: Collection[str] | None = None) -> None:
        with self._lock:
            gone = {one for one in self._things if containers is None or one[0] in containers}
            # What was made later may need what was made before.
            last_first = [one for one in reversed(self._releases) if one in gone]
            releases = [self._releases.pop(one) for one in last_first]
            for one in gone:
                del self._things[one]
        failures: list[Exception] = []
        for release in releases:
            try:
                release()
            except Exception as error:
                failures.append(error)
        if failures:
            raise ExceptionGroup("resources could not be released", failures)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self.clear()


DIRECT = ResourceContainer()
"""What the sessions without a server are connected to; each has resources of its own."""

_targets: dict[str, ResourceContainer] = {"": DIRECT}


def register_target(target: str, container: ResourceContainer) -> None:
    """Let ``Session(target)`` use `container`, which belongs to a server in this process."""
    _targets[target] = container


def container_at(target: str) -> ResourceContainer | None:
    """The container of the server in this process with that target; None without such a server."""
    return _targets.get(target)


Job = Callable[[], None]


class Workers:
    """As many daemon threads as there are jobs at once, none before the first one."""

    def __init__(self) -> None:
        # Re-entrant: a session may be collected, and closed, in a thread that holds it.
        self._lock = threading.RLock()
        self._idle: list[SimpleQueue[Job | None]] = []
        self._closed = False

    def start(self, job: Job) -> None:
        with self._lock:
            # Those that became idle after the end have ended as well.
            inbox = self._idle.pop() if self._idle and not self._closed else None
        if inbox is None:
            inbox = SimpleQueue()
            threading.Thread(
                target=self._work, args=(inbox,), name="aioqueue-session-worker", daemon=True
            ).start()
        inbox.put(job)

    def _work(self, inbox: SimpleQueue[Job | None]) -> None:
        while (job := inbox.get()) is not None:
            job()
            del job  # what it refers to must not live until the next one comes
            with self._lock:
                self._idle.append(inbox)
                if self._closed:
                    return

    def close(self) -> None:
        """Let the threads end: idle ones now, the others after their job."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)


class SessionState:
    """Plans, resources, threads, and the runs that block at the moment."""

    def __init__(self, served: ResourceContainer | None = None) -> None:
        self._lock = threading.RLock()
        self._running: dict[Hashable, CancelScope] = {}
        self._plans: dict[Hashable, Plan] = {}
        self.workers: Workers = Workers()
        self.own_resources: ResourceContainer = ResourceContainer()
        self.resources: ResourceContainer = self.own_resources if served is None else served
        self.closed: bool = False
        self.aborted: bool = False
        (DIRECT if served is None else served).connect(self)

    def plan(self, fetches: tuple[Tensor | Operation, ...], fed: tuple[Tensor, ...]) -> Plan:
        key = (fetches, fed)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = compile_plan(fetches, fed)
        return plan

    def scope_for(self, step: Hashable, timeout: float | None) -> CancelScope:
        """The scope in which a step blocks: `close` cancels it. One per step."""
        with self._lock:
            scope = self._running.get(step)
            if scope is None:
                scope = self._running[step] = CancelScope(timeout)
                if self.closed:
                    scope.cancel()
            return scope

    def forget(self, step: Hashable) -> None:
        with self._lock:
            self._running.pop(step, None)

    def abort(self) -> None:
        """End as `close` does, for `Session.reset`; runs that begin later raise an `OpError`."""
        with self._lock:
            self.aborted = not self.closed
        self._end()

    def close(self) -> None:
        """Blocked steps raise `CancelledError`, and what the session owned is released."""
        self._end()
        self.aborted = False

    def _end(self) -> None:
        with self._lock:
            if self.closed:
                return
            self.closed = True
            running = list(self._running.values())
        # The last first: it may wait for what an earlier one has, and would get it from that.
        for scope in reversed(running):
            scope.cancel()
        self.workers.close()
        self.own_resources.close()
