"""Queues on a Ray cluster, with many producers and several consumers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import aioqueue
from aioqueue import InvalidArgumentError, Statistics
from aioqueue.base.arguments import checked_count, checked_flag, checked_seconds
from aioqueue.base.hints import Hinted, hint_attributes, refuse_search
from aioqueue.base.public_names import with_sections
from aioqueue.queues.aio import AsyncBatches
from aioqueue.queues.blocking import Batches
from aioqueue.ray.actor_handle import remote_class
from aioqueue.ray.messages import Description
from aioqueue.ray.queue_calls import QueueCalls
from aioqueue.ray.queue_connection import Client
from aioqueue.ray.replay_filler import ReplayFiller
from aioqueue.workers.executors.ray_cluster import checked_options, connected, not_connected

NAMESPACE = "aioqueue"
"""The Ray namespace of the actors of queues and coordinators, whatever namespace a program uses."""


@hint_attributes("a queue on Ray")
class _SharedMethods(Hinted):
    """The methods that never wait, shared by both APIs."""

    def __init__(self, calls: QueueCalls) -> None:
        self._calls = calls
        self._client = calls.client

    def __repr__(self) -> str:
        description = self._client.description
        return (
            f"<{type(self).__module__}.{type(self).__name__} {description.kind}"
            f" '{self._client.name}' [{self._calls.core.spec!r}], as '{self._client.id}'>"
        )

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"the handle of queue '{self._client.name}' cannot be sent elsewhere: make one there"
            " with the same name"
        )

    @property
    def name(self) -> str:
        """Its name in the cluster."""
        return self._client.name

    @property
    def consumer(self) -> str:
        """The consumer name of this handle."""
        return self._client.id

    @property
    def last(self) -> int | None:
        """The number of the last lease received; save it together with your results. ``None`` if
        there was none. No number is reused in any life of this consumer."""
        return self._calls.last


class RayQueue(_SharedMethods):
    """A queue on a Ray cluster, for coroutines; `sync` is the same for threads.

    Create it with one of its subclasses, such as `FIFOQueue`.
    """

    def _open(
        self,
        name: str,
        description: Description,
        local: Any,
        *,
        owned: bool,
        autocommit: bool,
        consumer: str | None,
        last_committed: int | None,
        options: Mapping[str, Any] | None,
    ) -> None:
        for argument, value in (("name", name), ("consumer", consumer)):
            if not isinstance(value, str) and (argument == "name" or value is not None):
                raise InvalidArgumentError(f"{argument}: got {value!r}; expected a string")
        checked_flag(owned, "owned")
        checked_flag(autocommit, "autocommit")
        if last_committed is not None:
            last_committed = checked_count(last_committed, "last_committed")
            if consumer is None:
                raise InvalidArgumentError(
                    f"last_committed: got {last_committed} without consumer; expected both,"
                    " since leases are numbered for a named consumer"
                )
        ray = connected()
        if ray is None:
            raise not_connected()
        # With a journal, the actor restarts and Ray repeats calls; their numbers make that safe.
        often = 0 if description.journal is None else -1
        placed = {"num_cpus": 0, **(options or {})}
        actor = (
            remote_class()
            .options(
                name=f"queue {name}",
                namespace=NAMESPACE,
                get_if_exists=True,
                lifetime="detached",
                enable_task_events=False,  # Ray would report each call to the head node
                **{**checked_options(placed), "max_restarts": often, "max_task_retries": often},
            )
            .remote(name, description)
        )
        client = Client(ray, name, actor, description, consumer, last_committed, owned=owned)
        calls = QueueCalls(local, client, owned=owned, autocommit=autocommit)
        super().__init__(calls)

    @property
    def sync(self) -> BlockingRayQueue:
        """The same queue for threads."""
        return BlockingRayQueue(self._calls)

    async def enqueue(self, element: Any) -> None:
        """Enqueue one element, waiting while the queue is full.

        Args:
            element: as for the same kind of queue in one program.

        Raises:
            QueueClosedError: `close` was called.
            InvalidArgumentError: wrong dtype, shape or components; the queue is unchanged.
            WorkerDiedError: the actor has died.

        Cancellation:
            A cancelled call has enqueued nothing, unless its exception's ``enqueued`` is 1.
        """
        columns = self._calls.columns_of(element)
        await self._client.drive_async(self._calls.put(columns, 1))

    async def enqueue_many(self, batch: Any) -> None:
        """Enqueue the rows of a batch one after another, waiting whenever the queue is full.

        A batch of at least 64 KiB goes into the object store once, and stays there until its last
        row is committed.

        Args:
            batch: per component an array of shape ``(n, *shape)``; any iterable for a queue of
                objects.

        Raises:
            QueueClosedError: `close` was called; ``enqueued`` is the number of rows enqueued.
            InvalidArgumentError: wrong dtype, shape or components; the queue is unchanged.
            WorkerDiedError: the actor has died.

        Cancellation:
            Rows that were enqueued stay; ``enqueued`` of the exception is their number.
        """
        columns, n = self._calls.columns_of_batch(batch)
        if n:
            await self._client.drive_async(self._calls.put(columns, n))

    async def fill(self, make_batch: Callable[[int], Any], *, producer: str) -> None:
        """Enqueue the batches ``make_batch(0)``, ``make_batch(1)``, ..., until it returns ``None``.

        Each batch is enqueued exactly once over all lives of the producer. A program that calls
        this with the same name continues where the previous one stopped, and makes lost batches
        again while their consumers wait. So `make_batch` must return the same batch for the same
        number. When all batches are in, the uncommitted ones are copied to the queue's actor, so
        they outlive this program. Only one program at a time fills under a name: the last one that
        started.

        Args:
            make_batch: returns the batch of a number, in the form that `enqueue_many` takes; may be
                a coroutine function.
            producer: name of this producer, the same in every program that continues it.

        Raises:
            QueueClosedError: `close` was called.
            InvalidArgumentError: an argument or a batch is not as described, or a batch has a
                different number of rows than before.
            WorkerDiedError: the actor has died, or another program now fills under this name.

        Cancellation:
            Enqueued batches stay, and the next call continues there.
        """
        filler = ReplayFiller(self._calls, make_batch, producer)
        while (number := await self._client.drive_async(filler.due())) is not None:
            batch = make_batch(number)
            if inspect.isawaitable(batch):
                batch = await batch
            await self._client.drive_async(filler.put(number, batch))

    async def dequeue(self) -> Any:
        """Dequeue one element, waiting until there is one. It is leased; see `commit`.

        Raises:
            OutOfRangeError: the queue is closed and empty, and no lease can return elements.
            WorkerDiedError: the actor has died; or the element's producer has, and the element is
                lost.

        Cancellation:
            A cancelled call has dequeued nothing.
        """
        columns = await self._client.drive_async(self._calls.take(1))
        return self._calls.element_of(columns)

    async def dequeue_many(self, n: int) -> Any:
        """Dequeue a batch of exactly n elements, waiting until there are enough.

        Args:
            n: number of elements, >= 0.

        Returns:
            Read-only arrays of shape ``(n, *shape)``; a list for a queue of objects.

        Raises:
            OutOfRangeError: the queue is closed with fewer elements, and no lease can return
                enough.
            InvalidArgumentError: ``n`` is not as described.
            WorkerDiedError: the actor has died; or a producer has, and its elements are lost.

        Cancellation:
            A cancelled call has dequeued nothing.
        """
        n = self._calls.core.check_batch_size(n)
        if n == 0:
            return self._calls.core.empty_batch()
        return self._calls.batch_of(await self._client.drive_async(self._calls.take(n)))

    async def dequeue_up_to(self, n: int, max_wait: float | None = None) -> Any:
        """Dequeue a batch of up to n elements: fewer if the queue is closed, or after some time.

        Args:
            n: most elements, >= 0.
            max_wait: seconds after which the call takes what is there, or else the first elements
                to arrive; ``None`` waits for all n.

        Returns:
            As `dequeue_many`, with 1 to n elements.

        Raises:
            OutOfRangeError: the queue is closed and empty, and no lease can return elements.
            InvalidArgumentError: an argument is not as described.
            WorkerDiedError: as for `dequeue_many`.

        Cancellation:
            A cancelled call has dequeued nothing.
        """
        n = self._calls.core.check_batch_size(n)
        if max_wait is not None:
            max_wait = checked_seconds(max_wait, "max_wait")
        if n == 0:
            return self._calls.core.empty_batch()
        columns = await self._client.drive_async(self._calls.take(n, True, max_wait))
        return self._calls.batch_of(columns)

    def batches(
        self, n: int, *, drop_remainder: bool = False, max_wait: float | None = None
    ) -> AsyncBatches[Any]:
        """Iterate over batches until the queue is closed and empty: see `dequeue_up_to`."""
        n, max_wait = self._calls.core.check_batches(n, drop_remainder, max_wait)
        return AsyncBatches(self, n, drop_remainder, max_wait)  # type: ignore[arg-type]

    def __aiter__(self) -> RayQueue:
        """Iterate over elements, dequeuing each, until the queue is closed and empty.

        If a failure closed the queue, the iteration ends with an `OutOfRangeError` whose cause is
        the failure.
        """
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.dequeue()
        except aioqueue.OutOfRangeError as end:
            if end.__cause__ is not None:  # a failure is not a normal end
                raise
            raise StopAsyncIteration from None

    async def commit(self, upto: int | None = None) -> None:
        """Commit leases: their elements have been used, and will not return to the queue.

        With ``autocommit``, the next dequeue does this for you.

        Args:
            upto: the number of a lease (`last`), to commit it and all earlier ones; ``None`` for
                all.
        """
        await self._client.drive_async(self._calls.commit(upto))

    async def task_done(self, n: int = 1) -> None:
        """Say that you are done with n elements that this handle has dequeued; see `join`.

        That is not a commit. Elements that go back to the queue, because their consumer has died,
        are not done after all, and the next consumer that gets them counts them again. What a
        handle has committed counts as done at the latest when the handle ends.

        Args:
            n: the number of elements, >= 0.

        Raises:
            InvalidArgumentError: this handle has dequeued fewer elements with which it is not done;
                nothing has changed. It is a `ValueError`.
            WorkerDiedError: the actor has died.

        Cancellation:
            A cancelled call has taken effect, unless it would have been refused.
        """
        n = checked_count(n, "n")
        await self._client.drive_async(self._calls.task_done(n))

    async def join(self) -> None:
        """Wait until `task_done` has been called for every element that went in.

        Raises:
            QueueClosedError: a failure has closed the queue: it is the ``__cause__``.
            WorkerDiedError: the actor has died.

        Cancellation:
            A cancelled call has changed nothing.
        """
        await self._client.drive_async(self._calls.join())

    async def close(
        self, *, cancel_pending_enqueues: bool = False, cause: BaseException | None = None
    ) -> None:
        """Close the queue for enqueues. You can call it repeatedly.

        Args:
            cancel_pending_enqueues: whether to fail waiting enqueues at once.
            cause: the failure that later errors have as their cause; the first one given counts.
        """
        await self._client.drive_async(self._calls.close(cancel_pending_enqueues, cause))

    async def wait_closed(self) -> None:
        """Wait until the queue is closed."""
        await self._client.drive_async(self._calls.ask("wait_closed"))

    async def statistics(self) -> Statistics:
        """Return counts and current state.

        Elements count as dequeued when they are committed. Until then, leased ones are ``granted``.
        """
        found: Statistics = await self._client.drive_async(self._calls.ask("statistics"))
        return found

    async def leases(self) -> int:
        """Return the number of uncommitted leases of all consumers."""
        count: int = await self._client.drive_async(self._calls.ask("leases"))
        return count

    async def drain(self, node: str | None = None, *, timeout: float | None = None) -> None:
        """Release what belongs to this handle, or to all handles on a node, before it is taken
        away.

        What they have enqueued is copied to the queue's actor, now and from now on. What they have
        dequeued, they must commit; the call waits for that. If the actor itself is on that node, it
        recovers elsewhere from its journal. In that case the call also waits until consumers have
        committed all elements that no producer could send again.

        Args:
            node: a node id, from ``ray.get_runtime_context().get_node_id()``; ``None`` for this
                handle alone.
            timeout: most seconds to wait; ``None`` for no limit.

        Raises:
            DeadlineExceededError: the timeout has passed; the message says what is left.
            InvalidArgumentError: the actor itself is on that node, and has no journal.
            WorkerDiedError: the actor has died.

        Cancellation:
            What was copied stays copied.
        """
        await self._client.drive_async(self._calls.drain(*_checked_drain(node, timeout)))

    async def delete(self) -> None:
        """End the actor, and delete its elements and its journal. Waiting calls fail."""
        await self._client.drive_async(self._client.delete())


class BlockingRayQueue(_SharedMethods):
    """A queue on a Ray cluster, for threads: `RayQueue.sync`.

    It has the methods of `RayQueue`, with a ``timeout`` in seconds where they may wait.
    """

    @property
    def sync(self) -> BlockingRayQueue:
        """This queue itself."""
        return self

    def enqueue(self, element: Any, *, timeout: float | None = None) -> None:
        """See `RayQueue.enqueue`; raises `DeadlineExceededError` after the timeout."""
        columns = self._calls.columns_of(element)
        self._client.drive(self._calls.put(columns, 1), timeout)

    def enqueue_many(self, batch: Any, *, timeout: float | None = None) -> None:
        """See `RayQueue.enqueue_many`."""
        columns, n = self._calls.columns_of_batch(batch)
        if n:
            self._client.drive(self._calls.put(columns, n), timeout)

    def fill(self, make_batch: Callable[[int], Any], *, producer: str) -> None:
        """See `RayQueue.fill`."""
        filler = ReplayFiller(self._calls, make_batch, producer)
        while (number := self._client.drive(filler.due())) is not None:
            self._client.drive(filler.put(number, make_batch(number)))

    def dequeue(self, *, timeout: float | None = None) -> Any:
        """See `RayQueue.dequeue`."""
        columns = self._client.drive(self._calls.take(1), timeout)
        return self._calls.element_of(columns)

    def dequeue_many(self, n: int, *, timeout: float | None = None) -> Any:
        """See `RayQueue.dequeue_many`."""
        n = self._calls.core.check_batch_size(n)
        if n == 0:
            return self._calls.core.empty_batch()
        return self._calls.batch_of(self._client.drive(self._calls.take(n), timeout))

    def dequeue_up_to(
        self, n: int, max_wait: float | None = None, *, timeout: float | None = None
    ) -> Any:
        """See `RayQueue.dequeue_up_to`."""
        n = self._calls.core.check_batch_size(n)
        if max_wait is not None:
            max_wait = checked_seconds(max_wait, "max_wait")
        if n == 0:
            return self._calls.core.empty_batch()
        columns = self._client.drive(self._calls.take(n, True, max_wait), timeout)
        return self._calls.batch_of(columns)

    def batches(
        self, n: int, *, drop_remainder: bool = False, max_wait: float | None = None
    ) -> Batches[Any]:
        """See `RayQueue.batches`."""
        n, max_wait = self._calls.core.check_batches(n, drop_remainder, max_wait)
        return Batches(self, n, drop_remainder, max_wait)  # type: ignore[arg-type]

    def __contains__(self, element: object) -> NoReturn:
        """Refuse ``in``, which would consume the elements.

        Raises:
            TypeError: always.
        """
        refuse_search(self)

    def __iter__(self) -> BlockingRayQueue:
        """Iterate over elements, dequeuing each, until the queue is closed and empty.

        If a failure closed the queue, the iteration ends with an `OutOfRangeError` whose cause is
        the failure.
        """
        return self

    def __next__(self) -> Any:
        try:
            return self.dequeue()
        except aioqueue.OutOfRangeError as end:
            if end.__cause__ is not None:  # a failure is not a normal end
                raise
            raise StopIteration from None

    def commit(self, upto: int | None = None) -> None:
        """See `RayQueue.commit`."""
        self._client.drive(self._calls.commit(upto))

    def task_done(self, n: int = 1) -> None:
        """See `RayQueue.task_done`."""
        n = checked_count(n, "n")
        self._client.drive(self._calls.task_done(n))

    def join(self, *, timeout: float | None = None) -> None:
        """See `RayQueue.join`; raises `DeadlineExceededError` after the timeout."""
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        self._client.drive(self._calls.join(), timeout)

    def close(
        self, *, cancel_pending_enqueues: bool = False, cause: BaseException | None = None
    ) -> None:
        """See `RayQueue.close`."""
        self._client.drive(self._calls.close(cancel_pending_enqueues, cause))

    def wait_closed(self, *, timeout: float | None = None) -> None:
        """See `RayQueue.wait_closed`."""
        self._client.drive(self._calls.ask("wait_closed"), timeout)

    def statistics(self) -> Statistics:
        """See `RayQueue.statistics`."""
        found: Statistics = self._client.drive(self._calls.ask("statistics"))
        return found

    def leases(self) -> int:
        """See `RayQueue.leases`."""
        count: int = self._client.drive(self._calls.ask("leases"))
        return count

    def drain(self, node: str | None = None, *, timeout: float | None = None) -> None:
        """See `RayQueue.drain`."""
        self._client.drive(self._calls.drain(*_checked_drain(node, timeout)))

    def delete(self) -> None:
        """See `RayQueue.delete`."""
        self._client.drive(self._client.delete())


_ARGUMENTS = """
    Args:
        name: the name in the cluster. The first program that uses it creates the queue.
        {arguments}
        journal: absolute path of a folder that all nodes share. The actor keeps a file of numbers
            there, from which it recovers after its death, on another node if necessary. Producers
            keep their elements until these are committed, and send them again. ``None``: if the
            actor dies, its elements are lost, and all waiting calls fail.
        owned: whether large batches are copied to the queue's actor, so that they outlive their
            producer. Otherwise they are lost with it, and their consumer gets an error.
        autocommit: whether each dequeue commits the previous one of this handle. Otherwise call
            `commit`; do that if you do not save `last` after every batch.
        consumer: a name that this consumer keeps when it is restarted. Only one handle at a time
            may use it. ``None`` generates one.
        last_committed: with ``consumer``, the number of the last lease that it used in an earlier
            life: `last`, saved together with your results. Later leases of it are delivered
            again, first. ``None`` continues after the last commit.
        ray: resources and placement of the actor: options as for `prepare`, such as
            ``{{"label_selector": {{"market": "on-demand"}}}}``. Only the first program's options
            count.

    Raises:
        InvalidArgumentError: an argument is not as described; or, on the first use, the queue was
            made with other arguments, or ``last_committed`` is older than this consumer's last
            commit, or is no lease of it.
        WorkerDiedError: on the first use, the lease ``last_committed`` had gone back to the queue.
        RuntimeError: this program is not connected to a Ray cluster.
"""


class _Unseeded(RayQueue):
    """A queue with the arguments of `FIFOQueue`."""

    _local: ClassVar[Callable[..., Any]]
    """The class of the same kind of queue in one program."""

    def __init__(
        self,
        name: str,
        capacity: int | None,
        dtypes: Any = None,
        shapes: Any = None,
        names: Any = None,
        *,
        max_bytes: int | None = None,
        journal: str | PathLike[str] | None = None,
        owned: bool = False,
        autocommit: bool = True,
        consumer: str | None = None,
        last_committed: int | None = None,
        ray: Mapping[str, Any] | None = None,
    ) -> None:
        local = self._local(
            capacity, dtypes, shapes, names, max_bytes=max_bytes, name=checked_name(name)
        )
        description = Description(
            *(type(local)._kind, capacity, 0, dtypes, shapes, names, None, max_bytes),
            journal=_checked_folder(journal),
        )
        self._open(
            name,
            description,
            local,
            owned=owned,
            autocommit=autocommit,
            consumer=consumer,
            last_committed=last_committed,
            options=ray,
        )


class FIFOQueue(_Unseeded):
    """First in, first out: `aioqueue.FIFOQueue` on a Ray cluster."""

    _local = aioqueue.FIFOQueue


class PaddingFIFOQueue(_Unseeded):
    """First in, first out, padded to the largest: `aioqueue.PaddingFIFOQueue` on a Ray cluster."""

    _local = aioqueue.PaddingFIFOQueue


class PriorityQueue(_Unseeded):
    """The smallest priority first: `aioqueue.PriorityQueue` on a Ray cluster."""

    _local = aioqueue.PriorityQueue


class RandomShuffleQueue(RayQueue):
    """In random order: `aioqueue.RandomShuffleQueue` on a Ray cluster."""

    def __init__(
        self,
        name: str,
        capacity: int | None,
        min_after_dequeue: int,
        dtypes: Any = None,
        shapes: Any = None,
        names: Any = None,
        *,
        seed: Any = None,
        max_bytes: int | None = None,
        journal: str | PathLike[str] | None = None,
        owned: bool = False,
        autocommit: bool = True,
        consumer: str | None = None,
        last_committed: int | None = None,
        ray: Mapping[str, Any] | None = None,
    ) -> None:
        local: Any = aioqueue.RandomShuffleQueue(
            capacity,
            min_after_dequeue,
            dtypes,
            shapes,
            names,
            seed=seed,
            max_bytes=max_bytes,
            name=checked_name(name),
        )
        description = Description(
            "RandomShuffleQueue",
            capacity,
            min_after_dequeue,
            dtypes,
            shapes,
            names,
            seed,
            max_bytes,
            _checked_folder(journal),
        )
        self._open(
            name,
            description,
            local,
            owned=owned,
            autocommit=autocommit,
            consumer=consumer,
            last_committed=last_committed,
            options=ray,
        )


def _checked_folder(journal: Any) -> str | None:
    if journal is None:
        return None
    if not isinstance(journal, str | PathLike) or not Path(journal).is_absolute():
        raise InvalidArgumentError(
            f"journal: got {journal!r}; expected the absolute path of a folder that all nodes share"
        )
    return str(Path(journal))


def _checked_drain(node: Any, timeout: Any) -> tuple[str | None, float | None]:
    if node is not None and (not isinstance(node, str) or not node):
        raise InvalidArgumentError(
            f"node: got {node!r}; expected the id of a node, or None for this handle"
        )
    return node, None if timeout is None else checked_seconds(timeout, "timeout")


def checked_name(name: Any) -> str:
    try:
        if isinstance(name, str) and name.encode():
            return name
    except UnicodeEncodeError:  # Ray sends names as UTF-8, which has no place for half characters
        pass
    raise InvalidArgumentError(f"name: got {name!r}; expected valid text, not an empty one")


for _kind in (FIFOQueue, PaddingFIFOQueue, PriorityQueue, RandomShuffleQueue):
    _bounds = "capacity, dtypes, shapes, names, max_bytes: as for the queue in one program."
    _kind.__doc__ = with_sections(_kind.__doc__, _ARGUMENTS.format(arguments=_bounds))
del _kind, _bounds
