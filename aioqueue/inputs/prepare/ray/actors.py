"""What runs on the cluster: an actor that prepares the items which it is sent, in chunks.

It knows nothing of queues, order or failures that are tried again: all books are kept at home, by
`aioqueue.inputs.prepare.ray.executor`.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
from time import perf_counter, thread_time
from typing import Any, Final, NamedTuple

from aioqueue.coordination.outcomes import told
from aioqueue.inputs.prepare.call import Call
from aioqueue.inputs.sources.item import Item
from aioqueue.processes.failures import message_of_failure
from aioqueue.telemetry.stacks import Stack, stack_of

__all__ = ("Doing", "ItemActor", "Outcome", "Report", "Sent", "remote_class")

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
    cpu: float
    """Processor seconds of that."""


class Doing(NamedTuple):
    """What an actor does at a moment."""

    number: int
    """Of the item that it prepares."""
    seconds: float
    """How long it has been at that."""
    stack: Stack


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
        self._thread: threading.Thread | None = None
        self._number = -1  # of the item that it prepares
        self._began = 0.0

    def place(self) -> str:
        """Where it is: what messages call it. The first thing that it is asked."""
        return f"pid {os.getpid()} on {socket.gethostname()}"

    def prepare(self, chunk: list[Sent]) -> Report:
        """Prepare items, one after the other."""
        self._thread = threading.current_thread()
        began, cpu = perf_counter(), thread_time()
        try:
            outcomes = [self._outcome(*sent) for sent in chunk]
            return Report(outcomes, perf_counter() - began, thread_time() - cpu)
        finally:
            self._thread = None

    def doing(self) -> Doing | None:
        """What `prepare` does now; ``None`` if it is at rest."""
        thread, number, began = self._thread, self._number, self._began
        return None if thread is None else Doing(number, perf_counter() - began, stack_of(thread))

    def _outcome(self, number: int, epoch: int, index: int, value: bytes) -> Outcome:
        self._began, self._number = perf_counter(), number
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


_QUESTIONS: Final = "questions"
"""The group of calls that are answered while the actor prepares."""


@functools.cache
def remote_class() -> Any:
    """The class of the actors, as Ray wants it."""
    import ray

    class Remote(ItemActor):
        doing = ray.method(concurrency_group=_QUESTIONS)(ItemActor.doing)

    Remote.__name__ = Remote.__qualname__ = ItemActor.__name__
    return ray.remote(concurrency_groups={_QUESTIONS: 1})(Remote)


def _cloudpickle() -> Any:
    """Ray's pickle, which takes functions and classes of the main module by value."""
    from ray import cloudpickle

    return cloudpickle
