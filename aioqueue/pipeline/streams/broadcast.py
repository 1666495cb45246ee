"""`broadcast`: the same batches for several consumers, each with its own queue."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args, overload

import numpy as np

import aioqueue
from aioqueue import (
    FIFOQueue,
    InvalidArgumentError,
    OutOfRangeError,
    QueueClosedError,
    QueueEmpty,
    QueueFull,
    sync,
)
from aioqueue.base.arguments import checked_count, checked_flag
from aioqueue.core.elements.trees import mapped
from aioqueue.pipeline.stream import (
    AnyCoordinator,
    AnyQueue,
    AsyncBatchStream,
    BatchStream,
    QueuePipe,
    checked_coordinator,
)
from aioqueue.pipeline.streams.forward import Delivery, forwarder, start_worker
from aioqueue.workers.statistics import ConsumerStatistics

Policy = Literal["slowest", "drop_oldest", "sample"]


class Consumer(QueuePipe):
    """The pipe of one consumer.

    Args:
        queue: the batches that wait for this consumer.
        policy: what to do when the queue is full.
        copy: whether to copy each batch for this consumer.
    """

    def __init__(self, queue: FIFOQueue, policy: Policy, *, copy: bool) -> None:
        self.queue: AnyQueue = queue
        self.policy = policy
        self._copy = copy
        self._lock = threading.Lock()  # guards the counts
        self._dropped_oldest = 0
        self._dropped_newest = 0

    def offer(self, batch: Any) -> bool:
        """Offer a batch without waiting; return whether it was either queued or dropped."""
        while True:
            try:
                self.queue.enqueue_nowait(batch)
                return True
            except QueueFull:
                if self.policy == "slowest":
                    return False
                if self.policy == "sample":
                    with self._lock:
                        self._dropped_newest += 1
                    return True
            with self._lock:
                try:
                    self.queue.dequeue_nowait()
                except (QueueEmpty, OutOfRangeError):
                    continue  # the consumer was faster, or has left
                self._dropped_oldest += 1

    def deliver(self, taken: Any) -> Any:
        """Return the batch in new containers, so that consumers share only arrays."""
        return mapped(_copied if self._copy else _same, taken)

    def statistics(self) -> ConsumerStatistics:
        with self._lock:
            queue = self.queue.statistics()
            return ConsumerStatistics(
                taken=queue.dequeued - self._dropped_oldest,
                dropped=self._dropped_oldest + self._dropped_newest,
                waiting=queue.size,
            )

    def close(self) -> None:
        self.queue.close(cancel_pending_enqueues=True)

    def describe(self) -> str:
        return f"of a broadcast ({self.policy}) from {self.queue!r}"


class Broadcaster:
    """The sink that gives each batch to all remaining consumers.

    Args:
        consumers: all consumers.
        coord: knows the reason of a stop.
        read_only: whether to protect batches, because consumers share them.
    """

    def __init__(
        self, consumers: Sequence[Consumer], coord: AnyCoordinator, *, read_only: bool
    ) -> None:
        self._consumers = consumers
        self._coord = coord
        self._read_only = read_only
        self._cause: BaseException | None = None

    def accept(self, batch: Any) -> Iterable[Delivery]:
        """Give a batch to all consumers with room, then to those that have to wait for room."""
        if self._read_only:
            batch = mapped(_protected, batch)
        slow = []
        for consumer in self._consumers:
            try:
                if not consumer.offer(batch):
                    slow.append(consumer)
            except QueueClosedError:
                pass  # it has left
        return [(consumer.queue, batch) for consumer in slow]

    def finish(self) -> Iterable[Delivery]:
        return ()

    def refused(self, queue: AnyQueue, error: QueueClosedError) -> None:
        """Ignore a consumer that left while we waited for room; the others continue."""

    def is_over(self) -> bool:
        return all(consumer.queue.is_closed() for consumer in self._consumers)

    def ended(self, cause: BaseException | None) -> None:
        self._cause = cause

    def close(self) -> None:
        """End with the source: consumers take what is in their queues, and end too."""
        for consumer in self._consumers:
            consumer.queue.close(cause=self._cause)

    def cancel(self) -> None:
        """Stop: as `close`, but at once."""
        cause = self._cause
        try:
            self._coord.raise_requested_exception()
        except (BaseExceptionGroup, KeyboardInterrupt) as raised:
            group = raised.__cause__ if isinstance(raised, KeyboardInterrupt) else raised
            if cause is None and isinstance(group, BaseExceptionGroup):
                cause = group.exceptions[0]
        for consumer in self._consumers:
            consumer.queue.close(cancel_pending_enqueues=True, cause=cause)


@overload
def broadcast(
    source: Any,
    n: int,
    *,
    coord: aioqueue.Coordinator,
    policy: Policy | Sequence[Policy] = "slowest",
    capacity: int = 2,
    copy: bool = False,
    name: str = "broadcast",
) -> tuple[AsyncBatchStream[ConsumerStatistics], ...]: ...


@overload
def broadcast(
    source: Any,
    n: int,
    *,
    coord: sync.Coordinator,
    policy: Policy | Sequence[Policy] = "slowest",
    capacity: int = 2,
    copy: bool = False,
    name: str = "broadcast",
) -> tuple[BatchStream[ConsumerStatistics], ...]: ...


def broadcast(
    source: Any,
    n: int,
    *,
    coord: AnyCoordinator,
    policy: Policy | Sequence[Policy] = "slowest",
    capacity: int = 2,
    copy: bool = False,
    name: str = "broadcast",
) -> tuple[AsyncBatchStream[ConsumerStatistics], ...] | tuple[BatchStream[ConsumerStatistics], ...]:
    """Send the same batches to n consumers, such as a trainer and a monitor.

    One worker takes batches from the source and puts each into the queue of every consumer. The
    policy decides what it does when a queue is full. You can choose one for all, or one for each:

    * ``"slowest"``: wait, and so do all other consumers. Every consumer gets every batch, in order,
      and the slowest sets the pace.
    * ``"drop_oldest"``: drop the oldest batch in the queue. The consumer sees the newest batches.
    * ``"sample"``: drop the new batch. The consumer sees as many as it can, and finishes what it
      has begun.

    The worker never waits for consumers with the last two policies. Without a ``"slowest"``, the
    source sets the pace. ``statistics().dropped`` counts the batches that a consumer misses.
    Nothing is dropped unless a queue is full.

    A consumer that has enough calls `close`; then the others no longer wait for it. Under
    ``"slowest"``, a consumer that merely stops iterating holds up the others. When all have left,
    the worker takes nothing more from the source, except for one batch that may be in flight.

    Args:
        source: a stream of batches, or any iterable, async iterable or queue. Its elements are
            broadcast as they are; ``queue.batches(n)`` makes batches of a queue's elements.
        n: the number of consumers, >= 1.
        coord: as for `batch`.
        policy: ``"slowest"``, ``"drop_oldest"`` or ``"sample"``; or a list with one per consumer.
        capacity: batches that may wait for each consumer, >= 1.
        copy: whether each consumer gets its own arrays, which it may write to. Otherwise all share
            the same arrays, which are made read-only.
        name: the name in messages and in the names of workers. The consumers' queues add a number
            to it.

    Returns:
        One `AsyncBatchStream` or `BatchStream` per consumer.

    Raises:
        InvalidArgumentError: any argument is not as described.
        RuntimeError: the coordinator's block has not been entered.
    """
    checked_coordinator(coord)
    n = checked_count(n, "n", least=1)
    capacity = checked_count(capacity, "capacity", least=1)
    checked_flag(copy, "copy")
    consumers = [
        Consumer(FIFOQueue(capacity, name=f"{name}-{number}"), policy, copy=copy)
        for number, policy in enumerate(_checked_policies(policy, n))
    ]
    fan = Broadcaster(consumers, coord, read_only=n > 1 and not copy)
    start_worker(
        coord,
        consumers[0].queue,
        forwarder(source, fan),
        close_op=fan.close,
        cancel_op=fan.cancel,
    )
    if isinstance(coord, aioqueue.Coordinator):
        return tuple(AsyncBatchStream(consumer) for consumer in consumers)
    return tuple(BatchStream(consumer) for consumer in consumers)


def _checked_policies(policy: Any, n: int) -> list[Policy]:
    known = get_args(Policy)
    listed = [policy] * n if isinstance(policy, str) else policy
    is_right = isinstance(listed, Sequence) and len(listed) == n
    if not is_right or not all(one in known for one in listed):
        raise InvalidArgumentError(
            f"policy: got {policy!r}; expected one of {', '.join(known)}, or a list of {n}, one for"
            " each consumer"
        )
    return list(listed)


def _same(leaf: Any) -> Any:
    return leaf


def _copied(leaf: Any) -> Any:
    return np.copy(leaf) if isinstance(leaf, np.ndarray) else leaf


def _protected(leaf: Any) -> Any:
    """Return a read-only view of an array. A consumer that writes to it gets an error, instead of
    changing the data of the others."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    view = leaf.view()
    view.flags.writeable = False
    return view
