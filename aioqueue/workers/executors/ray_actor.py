"""What runs in an actor of `prepare` on a Ray cluster: it prepares items, chunk by chunk.

It knows nothing of queues, order or retries: `aioqueue.workers.executors.chunks` keeps track of
the items, in the program.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
from time import perf_counter, thread_time
from typing import Any, Final, NamedTuple

from aioqueue.processes.failures import message_of_failure
from aioqueue.telemetry.explain.stacks import Stack, stack_of
from aioqueue.workers.calls import ItemCall
from aioqueue.workers.executors.process_child import Sent, prepared


class Outcome(NamedTuple):
    """The outcome of one item."""

    number: int
    examples: tuple[Any, ...]
    """The examples of an item that has not failed. Ray keeps the bytes of arrays beside the pickle,
    and maps them on use."""
    failure: bytes | None
    """The failure, as a message."""


class ActorReport(NamedTuple):
    """The outcomes of a chunk of items."""

    outcomes: list[Outcome]
    seconds: float
    """The seconds of their preparation."""
    cpu: float
    """The processor seconds of that."""

    @property
    def cpu_sampled(self) -> float:
        """The seconds of the calls whose processor seconds were measured: of all."""
        return self.seconds


class Doing(NamedTuple):
    number: int
    """The number of its item."""
    seconds: float
    """The seconds since it began that item."""
    stack: Stack


class ItemActor:
    """One worker, in its own process somewhere in the cluster.

    Args:
        payload: the call, pickled by Ray: a function and all that it closes over. The object store
            brings it once to each node.

    Raises:
        Exception: it cannot be unpickled here.
    """

    def __init__(self, payload: bytes) -> None:
        self._call: ItemCall = _cloudpickle().loads(payload)
        self._thread: threading.Thread | None = None
        self._number = -1  # of the current item
        self._began = 0.0

    def place(self) -> str:
        """Return its location for messages. This is the first call that it gets."""
        return f"pid {os.getpid()} on {socket.gethostname()}"

    def prepare(self, chunk: list[Sent]) -> ActorReport:
        self._thread = threading.current_thread()
        began, cpu = perf_counter(), thread_time()
        try:
            outcomes = [self._outcome(sent) for sent in chunk]
            return ActorReport(outcomes, perf_counter() - began, thread_time() - cpu)
        finally:
            self._thread = None

    def doing(self) -> Doing | None:
        """Return what `prepare` does now; ``None`` if it is idle."""
        thread, number, began = self._thread, self._number, self._began
        return None if thread is None else Doing(number, perf_counter() - began, stack_of(thread))

    def _outcome(self, sent: Sent) -> Outcome:
        number = sent[0]
        self._began, self._number = perf_counter(), number
        cloudpickle = _cloudpickle()
        made, has_failed = prepared(self._call, sent, cloudpickle.loads)
        if not has_failed:
            return Outcome(number, made, None)
        return Outcome(number, (), message_of_failure(made, cloudpickle.dumps, cloudpickle.loads))


_QUESTIONS: Final = "questions"
"""The group of calls that the actor answers while it prepares."""


@functools.cache
def remote_class() -> Any:
    """Return the class of the actors, in the form that Ray requires."""
    import ray

    class Remote(ItemActor):
        doing = ray.method(concurrency_group=_QUESTIONS)(ItemActor.doing)

    Remote.__name__ = Remote.__qualname__ = ItemActor.__name__
    return ray.remote(concurrency_groups={_QUESTIONS: 1})(Remote)


def _cloudpickle() -> Any:
    """Return Ray's pickle, which takes functions and classes of the main module by value."""
    from ray import cloudpickle

    return cloudpickle
