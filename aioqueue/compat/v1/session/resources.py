"""What outlives a run: variables, queues, readers, iterators, by key.

One graph may run in several sessions, so an operation holds no state. Its kernel asks the step for
a container and gets, or makes, what belongs to it there.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Hashable
from typing import Any, Protocol

from aioqueue.compat.v1.errors import CancelledError

__all__ = ("DIRECT", "Connected", "ResourceContainer", "container_at", "register_target")


class Connected(Protocol):
    """A session, as the server that it is connected to knows it."""

    def abort(self) -> None:
        """The server has been reset."""


class ResourceContainer:
    """Holds resources by key. The first caller that needs a resource makes it.

    It may hold named containers; the same key stands for another resource in each of them.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._things: dict[tuple[str, Hashable], Any] = {}
        self._releases: dict[tuple[str, Hashable], Callable[[], object]] = {}
        self._closed = False
        self._sessions: weakref.WeakSet[Connected] = weakref.WeakSet()

    def connect(self, session: Connected) -> None:
        """Let `reset` end a session."""
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
        """What `get_or_create` has made for this key; None if it has not."""
        return self._things.get(("", key))

    def get_or_create(
        self,
        key: Hashable,
        factory: Callable[[], Any],
        release: Callable[[Any], object] | None = None,
        container: str = "",
    ) -> Any:
        """What belongs to this key, made by ``factory()`` if it is not there yet."""
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
        """Release what is there and forget it."""
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
        """Release everything, and let nothing new be made."""
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
