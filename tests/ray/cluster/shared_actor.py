"""One actor that holds many queues, for tests: an actor takes a second to start.

Each queue is a `QueueActor` of its own there. It is called through Ray, in the usual concurrency
groups, and its elements are in the usual places. Only the process is shared.
"""

from __future__ import annotations

import inspect
from typing import Any

from aioqueue.ray.messages import Description
from aioqueue.ray.queue_actor import QueueActor

__all__ = ("Builder", "shared_actor_of")

_GROUPS = {"enqueue": "put", "dequeue": "take"} | dict.fromkeys(
    ("begin_filling", "drain", "end_filling", "wait_closed"), "end"
)
_CALLS = 100_000


class SharedActor:
    """The actor."""

    def __init__(self) -> None:
        self._queues: dict[str, QueueActor] = {}

    def build(self, name: str, description: Description) -> None:
        """Create a queue, unless it exists."""
        if name not in self._queues:
            self._queues[name] = QueueActor(name, description)

    def remove(self, name: str) -> None:
        """Forget it."""
        self._queues.pop(name, None)

    async def ask(self, name: str, method: str, *args: Any) -> Any:
        """Return the answer of a queue; ``None`` if it was removed."""
        queue = self._queues.get(name)
        if queue is None:
            return None
        answer = getattr(queue, method)(*args)
        return await answer if inspect.isawaitable(answer) else answer

    async def put(self, *args: Any) -> Any:
        """The same, in another loop."""
        return await self.ask(*args)

    async def take(self, *args: Any) -> Any:
        """The same, in another loop."""
        return await self.ask(*args)

    async def end(self, *args: Any) -> Any:
        """The same, in another loop."""
        return await self.ask(*args)


def shared_actor_of(ray: Any) -> Any:
    """A new one."""
    groups = sorted(set(_GROUPS.values()))
    ways = {name: ray.method(concurrency_group=name)(getattr(SharedActor, name)) for name in groups}
    made = ray.remote(num_cpus=0, concurrency_groups=dict.fromkeys(groups, _CALLS))
    return made(type("Street", (SharedActor,), ways)).remote()


class House:
    """The handle of one of its queues, as if that were an actor of its own."""

    def __init__(self, shared_actor: Any, name: str) -> None:
        self._shared_actor = shared_actor
        self._name = name

    def __getattr__(self, method: str) -> _Method:
        group = getattr(self._shared_actor, _GROUPS.get(method, "ask"))
        return _Method(group, self._name, method)


class _Method:
    def __init__(self, group: Any, name: str, method: str) -> None:
        self._group = group
        self._what = name, method

    def remote(self, *args: Any) -> Any:
        """Ask it."""
        return self._group.remote(*self._what, *args)


class Builder:
    """What makes houses, as `aioqueue.ray.actor_handle.remote_class` gives what makes actors."""

    def __init__(self, ray: Any, shared_actor: Any) -> None:
        self._ray = ray
        self._shared_actor = shared_actor

    def options(self, **_: Any) -> Builder:
        """Where it runs, and how often, is that of the shared actor."""
        return self

    def remote(self, name: str, description: Description) -> House:
        """The one of this name."""
        self._ray.get(self._shared_actor.build.remote(name, description))  # calls come in any order
        return House(self._shared_actor, name)
