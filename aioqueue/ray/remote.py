"""The class of the actors of queues, as Ray wants it."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any, Final

from aioqueue.ray.actor import QueueActor
from aioqueue.ray.journal import Journal
from aioqueue.ray.messages import Description

__all__ = ("remote_class",)

_CALLS: Final = 100_000
"""How many calls may wait in one group: Ray has those behind them wait before they begin."""


@functools.cache
def remote_class() -> Any:
    """The class of the actors."""
    import ray

    def group(name: str, method: Any) -> Any:
        return ray.method(concurrency_group=name)(method)

    class Remote(QueueActor):
        def __init__(self, name: str, description: Description) -> None:
            super().__init__(name, description, _journal(description), _node())

        enqueue = group("in", QueueActor.enqueue)
        dequeue = group("out", QueueActor.dequeue)
        wait_closed = group("end", QueueActor.wait_closed)
        drain = group("end", QueueActor.drain)
        begin_filling = group("end", QueueActor.begin_filling)
        end_filling = group("end", QueueActor.end_filling)

    Remote.__name__ = Remote.__qualname__ = QueueActor.__name__
    return ray.remote(concurrency_groups={"in": _CALLS, "out": _CALLS, "end": _CALLS})(Remote)


def _journal(description: Description) -> Journal | None:
    """That of this actor, of which no other one has the number."""
    if description.journal is None:
        return None
    import ray

    context = ray.get_runtime_context()
    folder = Path(description.journal)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{context.get_actor_id()}.journal"
    if path.exists():
        return Journal(path, is_new=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and there is nothing else that says it
        is_new = not context.was_current_actor_reconstructed
    return Journal(path, is_new=is_new)


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
