"""`broadcast`: the same batches to several consumers, each with a queue of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray

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
from aioqueue.arguments import checked_count, checked_flag
from aioqueue.inputs.batches.examples import (
    Delivery,
    checked_coordinator,
    pump,
    start,
)
from aioqueue.inputs.core.iteration import (
    AnyCoordinator,
    AnyQueue,
    AsyncBatchStream,
    BatchStream,
    PreparationInfo,
)
from aioqueue.inputs.statistics import ConsumerStatistics

__all__ = ("Broadcaster", "Consumer", "broadcast")

Policy = Literal["slowest", "drop_oldest", "sample"]


class Consumer:
    """The pipe of one consumer.

    Args:
        queue: what was broadcast and not yet taken.
        policy: what happens when that is full.
        copy: whether its batches are copied for it.
    """

    size: int | None = None
    drop_remainder = False
    max_wait: float | None = None
    runner: PreparationInfo | None = None
    examples: AnyQueue | None = None

    def __init__(self, queue: FIFOQueue, policy: Policy, *, copy: bool) -> None:
        self.queue: AnyQueue = queue
        self.policy = policy
        self._copy = copy
        self._lock = threading.Lock()  # guards the counts
        self._pushed_out = 0
        self._not_let_in = 0

    def offer(self, batch: Any) -> bool:
        """Give it a batch without waiting; tell whether that is settled, one way or the other."""
        while True:
            try:
                self.queue.enqueue_nowait(batch)
                return True
            except QueueFull:
                if self.policy == "slowest":
                    return False
                if self.policy == "sample":
                    with self._lock:
                        self._not_let_in += 1
                    return True
            with self._lock:
                try:
                    self.queue.dequeue_nowait()
                except (QueueEmpty, OutOfRangeError):
                    continue  # the consumer was faster; it may have left, too
                self._pushed_out += 1

    def give(self, taken: Any) -> Any:
        """Containers are made anew, so that only arrays are shared."""
        return _mapped(np.copy if self._copy else _same, taken)

    def statistics(self) -> ConsumerStatistics:
        with self._lock:
            queue = self.queue.statistics()
            return ConsumerStatistics(
                taken=queue.dequeued - self._pushed_out,
                dropped=self._pushed_out + self._not_let_in,
                waiting=queue.size,
            )

    def close(self) -> None:
        self.queue.close(cancel_pending_enqueues=True)

    def describe(self) -> str:
        return f"of a broadcast ({self.policy}) from {self.queue!r}"


class Broadcaster:
    """The stage that gives each batch to all consumers that are still there.

    Args:
        consumers: all of them.
        coord: knows why everybody stops.
        read_only: whether batches are protected, because consumers share them.
    """

    def __init__(
        self, consumers: Sequence[Consumer], coord: AnyCoordinator, *, read_only: bool
    ) -> None:
        self._consumers = consumers
        self._coord = coord
        self._read_only = read_only
        self._cause: BaseException | None = None

    def accept(self, batch: Any) -> Iterable[Delivery]:
        """Give a batch to all that need not wait for room, then to those that must."""
        if self._read_only:
            batch = _mapped(_protected, batch)
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
        """A consumer has left while we waited for it: the others go on."""

    def is_over(self) -> bool:
        return all(consumer.queue.is_closed() for consumer in self._consumers)

    def ended(self, cause: BaseException | None) -> None:
        self._cause = cause

    def close(self) -> None:
        """The source has ended: consumers take what they have, and end too."""
        for consumer in self._consumers:
            consumer.queue.close(cause=self._cause)

    def cancel(self) -> None:
        """A stop: the same, at once."""
        cause = self._cause
        try:
            self._coord.raise_requested_exception()
        except BaseExceptionGroup as group:
            cause = cause or group.exceptions[0]
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
    """The same batches to n consumers: say a trainer, and something that looks over its shoulder.

    One worker takes batches from the source and puts each into the queue of every consumer. What it
    does when such a queue is full, the policy says, for all or for each:

    * ``"slowest"``: it waits, and so do all others: everybody gets every batch, in order, and the
      slowest sets the pace;
    * ``"drop_oldest"``: the oldest batch in the queue makes room: the consumer sees the newest;
    * ``"sample"``: the new batch is left out: the consumer sees as many as it can, and finishes
      what it has begun.

    Nobody waits for the last two, so if there is no ``"slowest"``, the source sets the pace. What
    they miss is counted in ``statistics().dropped``. Without a full queue, nothing is dropped.

    A consumer that has enough calls `close`: from then on the others do not wait for it. One that
    merely stops iterating holds up the others, under ``"slowest"``. When all have left, no more is
    taken from the source, but for one batch that may be on its way.

    Args:
        source: where batches come from: a stream, or any iterable, async iterable or queue, whose
            elements are then what is broadcast: ``queue.batches(n)`` makes batches of them.
        n: how many consumers, >= 1.
        coord: as for `batch`.
        policy: ``"slowest"``, ``"drop_oldest"`` or ``"sample"``; or a list of them, one per
            consumer.
        capacity: batches that may wait for each consumer, >= 1.
        copy: whether each consumer gets arrays of its own, which it may write to. Else all share
            the same ones, which are made read-only.
        name: what messages and worker names call it; the consumers' queues have a number behind it.

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
    start(
        coord,
        consumers[0].queue,
        pump(source, fan),
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
            f"policy: got {policy!r}; expected one of {', '.join(known)}, or one for each of {n}"
            " consumers"
        )
    return list(listed)


def _mapped(change: Callable[[NDArray[Any]], NDArray[Any]], batch: Any) -> Any:
    """A batch of the same structure, whose arrays are what `change` makes of them."""
    if isinstance(batch, np.ndarray):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: _mapped(change, value) for name, value in batch.items()}
    if isinstance(batch, tuple):
        make = getattr(type(batch), "_make", tuple)
        return make([_mapped(change, value) for value in batch])
    if isinstance(batch, list):
        return [_mapped(change, value) for value in batch]
    return batch


def _same(array: NDArray[Any]) -> NDArray[Any]:
    return array


def _protected(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory, read-only: a consumer that writes to it gets an error, and no one else a
    surprise."""
    view = array.view()
    view.flags.writeable = False
    return view
