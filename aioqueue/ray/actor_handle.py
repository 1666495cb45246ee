"""The actor class of queues, in the form that Ray needs, and handles of actors."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from aioqueue.ray.client_registry import CallerId
from aioqueue.ray.journal import QueueJournal
from aioqueue.ray.messages import Answer, Description
from aioqueue.ray.packing import Packed, packed, packed_answer, unpacked
from aioqueue.ray.queue_actor import QueueActor

_CALLS: Final = 100_000
"""Most calls that may wait in one group; Ray does not start the calls behind them."""


class ActorHandle:
    """The handle of an actor. Calls for each batch are packed; all others are Ray's own.

    Args:
        actor: Ray's handle.
        dumps: Ray's pickle function.
    """

    def __init__(self, actor: Any, dumps: Callable[[Any], bytes]) -> None:
        self.actor = actor
        self.enqueue: _PackedMethod = _PackedMethod(actor.enqueue, dumps)
        self.dequeue: _PackedMethod = _PackedMethod(actor.dequeue, dumps)

    def __getattr__(self, method: str) -> Any:
        return getattr(self.actor, method)


class _PackedMethod:
    """A method whose arguments are sent as one; decode its answer with `unpacked_answer`."""

    def __init__(self, method: Any, dumps: Callable[[Any], bytes]) -> None:
        self._method = method
        self._dumps = dumps
        self._caller: tuple[CallerId, bytes] | None = None

    def remote(self, caller: CallerId, *arguments: Any) -> Any:
        last = self._caller
        if last is None or last[0] is not caller:
            # The description may contain user objects, so let Ray pickle it, once.
            last = self._caller = caller, self._dumps(caller)
        return self._method.remote(packed(last[1], *arguments))


class ActorBuilder:
    """The actor class with options, to create an actor or to find it.

    Args:
        remote: Ray's class.
        dumps: Ray's pickle function.
    """

    def __init__(self, remote: Any, dumps: Callable[[Any], bytes]) -> None:
        self._remote = remote
        self._dumps = dumps

    def options(self, **options: Any) -> ActorBuilder:
        """Set placement and name; see Ray."""
        return ActorBuilder(self._remote.options(**options), self._dumps)

    def remote(self, name: str, description: Description) -> ActorHandle:
        return ActorHandle(self._remote.remote(name, description), self._dumps)


@functools.cache
def remote_class() -> ActorBuilder:
    import ray

    def group(name: str) -> Any:
        return ray.method(concurrency_group=name)

    class RemoteQueueActor(QueueActor):
        def __init__(self, name: str, description: Description) -> None:
            super().__init__(name, description, _journal(description), _node())

        @group("in")  # type: ignore[untyped-decorator]
        async def enqueue(self, sent: Packed) -> Answer | bytes:
            return packed_answer(await super().enqueue(*unpacked(sent)))

        @group("out")  # type: ignore[untyped-decorator]
        async def dequeue(self, sent: Packed) -> Answer | bytes:
            return packed_answer(await super().dequeue(*unpacked(sent)))

        wait_closed = group("end")(QueueActor.wait_closed)
        join = group("end")(QueueActor.join)
        drain = group("end")(QueueActor.drain)
        begin_filling = group("end")(QueueActor.begin_filling)
        end_filling = group("end")(QueueActor.end_filling)

    RemoteQueueActor.__name__ = RemoteQueueActor.__qualname__ = QueueActor.__name__
    groups = {"in": _CALLS, "out": _CALLS, "end": _CALLS}
    return ActorBuilder(
        ray.remote(concurrency_groups=groups)(RemoteQueueActor), ray.cloudpickle.dumps
    )


def _journal(description: Description) -> QueueJournal | None:
    """Return the journal of this actor, named after its id."""
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
        warnings.simplefilter("ignore")  # deprecated, without a replacement
        is_new = not context.was_current_actor_reconstructed
    return QueueJournal(path, is_new=is_new)


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
