"""What runs on the cluster: an actor that prepares the items which it is sent, in chunks.

It knows nothing of queues, order or failures that are tried again: all books are kept at home, by
`aioqueue.inputs.prepare.ray.executor`.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import threading
import traceback
from time import perf_counter
from typing import Any, Final, NamedTuple

from aioqueue.coordination.outcomes import told
from aioqueue.inputs.prepare.call import Call
from aioqueue.inputs.sources.item import Item
from aioqueue.processes.failures import message_of_failure

__all__ = ("ItemActor", "Outcome", "Report", "Sent", "remote_class")

Sent = tuple[int, int, int, bytes]
"""An item on its way to an actor: number, epoch, index, and its value pickled by itself, so that
one which cannot be unpickled fails alone."""


class Outcome(NamedTuple):
    """What has become of one item."""

    number: int
    examples: tuple[Any, ...]
    """Those of an item that has not failed. Ray keeps the bytes of arrays beside the pickle, and
    maps them where they are wanted."""
    failure: bytes | None
    """What it has failed with, as a message."""


class Report(NamedTuple):
    """What has become of a chunk of items."""

    outcomes: list[Outcome]
    seconds: float
    """How long their preparation has taken."""


class ItemActor:
    """One worker, in a process of its own somewhere in the cluster.

    Args:
        payload: the call, pickled by Ray: a function and all that it closes over. It comes by way
            of the object store, once to each node.

    Raises:
        Exception: it cannot be unpickled here.
    """

    def __init__(self, payload: bytes) -> None:
        self._call: Call = _cloudpickle().loads(payload)
        self._thread: int | None = None

    def place(self) -> str:
        """Where it is: what messages call it. The first thing that it is asked."""
        return f"pid {os.getpid()} on {socket.gethostname()}"

    def prepare(self, chunk: list[Sent]) -> Report:
        """Prepare items, one after the other."""
        self._thread = threading.get_ident()
        began = perf_counter()
        try:
            return Report([self._outcome(*sent) for sent in chunk], perf_counter() - began)
        finally:
            self._thread = None

    def stack(self) -> str | None:
        """Where `prepare` is now, as a traceback; ``None`` if it is at rest."""
        frame = None if self._thread is None else sys._current_frames().get(self._thread)
        return None if frame is None else "".join(traceback.format_stack(frame))

    def _outcome(self, number: int, epoch: int, index: int, value: bytes) -> Outcome:
        try:
            item = Item(number, _cloudpickle().loads(value), epoch, index)
            return Outcome(number, tuple(self._call.examples(item)), None)
        except Exception as error:
            return Outcome(number, (), self._message_of(error))
        except BaseException as error:  # ending the actor is not a function's business
            wrapped = RuntimeError(f"the function raised {told(error)}")
            wrapped.__cause__ = error
            return Outcome(number, (), self._message_of(wrapped))

    def _message_of(self, error: Exception) -> bytes:
        cloudpickle = _cloudpickle()
        return message_of_failure(error, cloudpickle.dumps, cloudpickle.loads)


_STACK_GROUP: Final = "questions"
"""Where `ItemActor.stack` is answered, while the actor prepares."""


@functools.cache
def remote_class() -> Any:
    """The class of the actors, as Ray wants it."""
    import ray

    class Remote(ItemActor):
        stack = ray.method(concurrency_group=_STACK_GROUP)(ItemActor.stack)

    Remote.__name__ = Remote.__qualname__ = ItemActor.__name__
    return ray.remote(concurrency_groups={_STACK_GROUP: 1})(Remote)


def _cloudpickle() -> Any:
    """Ray's pickle, which takes functions and classes of the main module by value."""
    from ray import cloudpickle

    return cloudpickle
