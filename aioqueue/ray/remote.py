"""The class of the actors of queues, as Ray wants it, and their handles."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from aioqueue.ray.actor import QueueActor
from aioqueue.ray.clients import CallerId
from aioqueue.ray.journal import QueueJournal
from aioqueue.ray.messages import Answer, Description
from aioqueue.ray.packing import Packed, packed, packed_answer, unpacked

__all__ = ("ActorHandle", "Actors", "remote_class")

_CALLS: Final = 100_000
"""How many calls may wait in one group: Ray has those behind them wait before they begin."""


class ActorHandle:
    """The handle of an actor: the calls for each batch are packed, all others are Ray's own.

    Args:
        actor: Ray's handle.
        dumps: Ray's pickle.
    """

    def __init__(self, actor: Any, dumps: Callable[[Any], bytes]) -> None:
        self.actor = actor
        self.enqueue = _PackedMethod(actor.enqueue, dumps)
        self.dequeue = _PackedMethod(actor.dequeue, dumps)

    def __getattr__(self, method: str) -> Any:
        return getattr(self.actor, method)


class _PackedMethod:
    """A method whose arguments are sent as one; its answer is for `unpacked_answer`."""

    def __init__(self, method: Any, dumps: Callable[[Any], bytes]) -> None:
        self._method = method
        self._dumps = dumps
        self._caller: tuple[CallerId, bytes] | None = None

    def remote(self, caller: CallerId, *arguments: Any) -> Any:
        """Call it."""
        last = self._caller
        if last is None or last[0] is not caller:
            # What a queue is made of may be the user's, so it is Ray's to pickle: once.
            last = self._caller = caller, self._dumps(caller)
        return self._method.remote(packed(last[1], *arguments))


class Actors:
    """The class of the actors, as it is used: with options, to make one or to find it.

    Args:
        remote: Ray's.
        dumps: Ray's pickle.
    """

    def __init__(self, remote: Any, dumps: Callable[[Any], bytes]) -> None:
        self._remote = remote
        self._dumps = dumps

    def options(self, **options: Any) -> Actors:
        """Where it runs, and what it is called: see Ray."""
        return Actors(self._remote.options(**options), self._dumps)

    def remote(self, name: str, description: Description) -> ActorHandle:
        """The actor of this queue."""
        return ActorHandle(self._remote.remote(name, description), self._dumps)


@functools.cache
def remote_class() -> Actors:
    """The class of the actors."""
    import ray

    def group(name: str) -> Any:
        return ray.method(concurrency_group=name)

    class Remote(QueueActor):
        def __init__(self, name: str, description: Description) -> None:
            super().__init__(name, description, _journal(description), _node())

        @group("in")  # type: ignore[untyped-decorator]
        async def enqueue(self, sent: Packed) -> Answer | bytes:
            return packed_answer(await super().enqueue(*unpacked(sent)))

        @group("out")  # type: ignore[untyped-decorator]
        async def dequeue(self, sent: Packed) -> Answer | bytes:
            return packed_answer(await super().dequeue(*unpacked(sent)))

        wait_closed = group("end")(QueueActor.wait_closed)
        drain = group("end")(QueueActor.drain)
        begin_filling = group("end")(QueueActor.begin_filling)
        end_filling = group("end")(QueueActor.end_filling)

    Remote.__name__ = Remote.__qualname__ = QueueActor.__name__
    groups = {"in": _CALLS, "out": _CALLS, "end": _CALLS}
    return Actors(ray.remote(concurrency_groups=groups)(Remote), ray.cloudpickle.dumps)


def _journal(description: Description) -> QueueJournal | None:
    """That of this actor, of which no other one has the number."""
    if description.journal is None:
        return None
    import ray

    context = ray.get_runtime_context()
    folder = Path(description.journal)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{context.get_actor_id()}.journal"
    if path.exists():
        return QueueJournal(path, is_new=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and there is nothing else that says it
        is_new = not context.was_current_actor_reconstructed
    return QueueJournal(path, is_new=is_new)


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
