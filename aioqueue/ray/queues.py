"""Queues on a Ray cluster: many programs put in, and several take out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import aioqueue
from aioqueue import InvalidArgumentError, Statistics
from aioqueue.arguments import checked_count, checked_flag, checked_seconds
from aioqueue.docstrings import with_sections
from aioqueue.inputs.prepare.ray_cluster import checked_options, connected, not_connected
from aioqueue.migration_hints import no_attribute, not_searched
from aioqueue.queues.aio import AsyncBatches
from aioqueue.queues.blocking import Batches
from aioqueue.ray.client import Client
from aioqueue.ray.messages import Description
from aioqueue.ray.queue_client import QueueCalls
from aioqueue.ray.remote import remote_class
from aioqueue.ray.replay_filler import ReplayFiller

__all__ = (
    "NAMESPACE",
    "BlockingRayQueue",
    "FIFOQueue",
    "PaddingFIFOQueue",
    "PriorityQueue",
    "RandomShuffleQueue",
    "RayQueue",
    "checked_name",
)

NAMESPACE = "aioqueue"
"""Ray's: where the actors of queues and coordinators have their names, whichever namespace a
program is in."""


class _Face:
    """What the two faces have in common: all that never waits."""

    def __init__(self, questions: QueueCalls) -> None:
        self._questions = questions
        self._client = questions.client

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            no_attribute(self, name, kind="a queue on Ray")

    def __repr__(self) -> str:
        description = self._client.description
        return (
            f"<{type(self).__module__}.{type(self).__name__} {description.kind}"
            f" '{self._client.name}' [{self._questions.core.spec!r}], as '{self._client.id}'>"
        )

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"the handle of queue '{self._client.name}' cannot be sent elsewhere: make one there,"
            " by the same name"
        )

    @property
    def name(self) -> str:
        """What it is called, all over the cluster."""
        return self._client.name

    @property
    def consumer(self) -> str:
        """What this handle calls itself where it takes out."""
        return self._client.id

    @property
    def last(self) -> int | None:
        """The number of the last lease that was handed over: to be saved with what was made of it;
        ``None`` if there was none. None is used twice, in whichever life of this consumer."""
        return self._questions.last


class RayQueue(_Face):
    """A queue on a Ray cluster, for coroutines; `sync` is the same for threads.

    Made by one of its kinds, such as `FIFOQueue`.
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
                    f"last_committed: got {last_committed} without consumer; expected both: the"
                    " numbers are those of a consumer that has a name"
                )
        ray = connected()
        if ray is None:
            raise not_connected()
        # With a journal it comes back, and what was asked is asked again: calls are numbered.
        often = 0 if description.journal is None else -1
        placed = {"num_cpus": 0, **(options or {})}
        actor = (
            remote_class()
            .options(
                name=f"queue {name}",
                namespace=NAMESPACE,
                get_if_exists=True,
                lifetime="detached",
                enable_task_events=False,  # the head node would be told of each call
                **{**checked_options(placed), "max_restarts": often, "max_task_retries": often},
            )
            .remote(name, description)
        )
        client = Client(ray, name, actor, description, consumer, last_committed, owned=owned)
        questions = QueueCalls(local, client, owned=owned, autocommit=autocommit)
        super().__init__(questions)

    @property
    def sync(self) -> BlockingRayQueue:
        """The same queue for threads."""
        return BlockingRayQueue(self._questions)

    async def enqueue(self, element: Any) -> None:
        """Put one element in, waiting while the queue is full.

        Args:
            element: as for the queue of this kind in one program.

        Raises:
            QueueClosedError: `close` has been called.
            InvalidArgumentError: wrong dtype, shape or components; the queue is unchanged.
            WorkerDiedError: the actor has died.

        Cancellation:
            A cancelled call has put nothing in, or its exception's ``enqueued`` is 1.
        """
        columns = self._questions.columns_of(element)
        await self._client.drive_async(self._questions.put(columns, 1))

    async def enqueue_many(self, batch: Any) -> None:
        """Put the rows of a batch in, one after another, waiting whenever the queue is full.

        A batch of 64 KiB and more goes into the object store, once, and stays there until its last
        row has been used.

        Args:
            batch: per component an array of shape ``(n, *shape)``; any iterable in a queue of
                objects.

        Raises:
            QueueClosedError: `close` has been called; ``enqueued`` tells how many rows are in.
            InvalidArgumentError: wrong dtype, shape or components; the queue is unchanged.
            WorkerDiedError: the actor has died.

        Cancellation:
            The rows that were in stay in; ``enqueued`` of the exception tells how many.
        """
        columns, n = self._questions.columns_of_batch(batch)
        if n:
            await self._client.drive_async(self._questions.put(columns, n))

    async def fill(self, make_batch: Callable[[int], Any], *, producer: str) -> None:
        """Put in the batches ``make_batch(0)``, ``make_batch(1)``, ..., until it gives ``None``.

        Each of them is in once, over all lives of the producer: a program that calls this under the
        same name goes on where the one before has ended, and what was lost with that is made again,
        while its consumers wait. So a batch must be the same whenever it is made. When all are in,
        what is not used yet is copied to the queue's actor, and nothing is lost with this program
        any more. One program at a time fills under a name: the last one that has begun.

        Args:
            make_batch: makes a batch by its number, as `enqueue_many` takes it; or a coroutine
                function.
            producer: what this producer is called, whichever program it is.

        Raises:
            QueueClosedError: `close` has been called.
            InvalidArgumentError: an argument is not as described, or a batch is not, or has other
                rows than when it was made before.
            WorkerDiedError: the actor has died; or somebody else fills under this name now.

        Cancellation:
            What was put in stays in, and the next call goes on there.
        """
        filler = ReplayFiller(self._questions, make_batch, producer)
        while (number := await self._client.drive_async(filler.due())) is not None:
            batch = make_batch(number)
            if inspect.isawaitable(batch):
                batch = await batch
            await self._client.drive_async(filler.put(number, batch))

    async def dequeue(self) -> Any:
        """Take one element out, waiting while there is none. It is leased: see `commit`.

        Raises:
            OutOfRangeError: the queue is closed and empty, and no lease can bring anything back.
            WorkerDiedError: the actor has died; or who had put the element in, and it is lost.

        Cancellation:
            A cancelled call has taken nothing.
        """
        columns = await self._client.drive_async(self._questions.take(1))
        return self._questions.element_of(columns)

    async def dequeue_many(self, n: int) -> Any:
        """Take a batch of n elements, waiting until all of them are there.

        Args:
            n: how many, >= 0.

        Returns:
            Arrays of shape ``(n, *shape)``, read-only; a list in a queue of objects.

        Raises:
            OutOfRangeError: the queue is closed and has fewer, and no lease can bring more back.
            InvalidArgumentError: ``n`` is not as described.
            WorkerDiedError: the actor has died; or who had put elements in, and they are lost.

        Cancellation:
            A cancelled call has taken nothing.
        """
        n = self._questions.core.check_batch_size(n)
        if n == 0:
            return self._questions.core.empty_batch()
        return self._questions.batch_of(await self._client.drive_async(self._questions.take(n)))

    async def dequeue_up_to(self, n: int, max_wait: float | None = None) -> Any:
        """Take a batch of n elements; fewer when the queue is closed, or after some time.

        Args:
            n: how many at most, >= 0.
            max_wait: seconds after which it takes what is there, or else the first that comes;
                ``None`` waits for all.

        Returns:
            As `dequeue_many`, with 1 to n elements.

        Raises:
            OutOfRangeError: the queue is closed and empty, and no lease can bring anything back.
            InvalidArgumentError: an argument is not as described.
            WorkerDiedError: as for `dequeue_many`.

        Cancellation:
            A cancelled call has taken nothing.
        """
        n = self._questions.core.check_batch_size(n)
        if max_wait is not None:
            max_wait = checked_seconds(max_wait, "max_wait")
        if n == 0:
            return self._questions.core.empty_batch()
        columns = await self._client.drive_async(self._questions.take(n, True, max_wait))
        return self._questions.batch_of(columns)

    def batches(self, n: int, *, drop_remainder: bool = False) -> AsyncBatches[Any]:
        """Iterate over batches until the queue is closed and empty: see `dequeue_up_to`."""
        if self._questions.core.check_batch_size(n) == 0:
            raise InvalidArgumentError("n: got 0; expected an int >= 1")
        return AsyncBatches(self, n, drop_remainder)  # type: ignore[arg-type]

    def __aiter__(self) -> RayQueue:
        """Iterate over elements, taking each out, until the queue is closed and empty.

        If a failure has closed it, `OutOfRangeError` comes then, with the failure as its cause.
        """
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.dequeue()
        except aioqueue.OutOfRangeError as end:
            if end.__cause__ is not None:  # a failure is no end
                raise
            raise StopAsyncIteration from None

    async def commit(self, upto: int | None = None) -> None:
        """Say that what was taken has been used, and need not come back.

        With ``autocommit`` the next dequeue says so by itself.

        Args:
            upto: the number of a lease (`last`): it and those before it; ``None`` for all.
        """
        await self._client.drive_async(self._questions.commit(upto))

    async def close(
        self, *, cancel_pending_enqueues: bool = False, cause: BaseException | None = None
    ) -> None:
        """Let nothing more in; any number of times.

        Args:
            cancel_pending_enqueues: fail the enqueues that have not ended yet, at once.
            cause: the failure that later errors name as their cause; the first one given counts.
        """
        await self._client.drive_async(self._questions.close(cancel_pending_enqueues, cause))

    async def wait_closed(self) -> None:
        """Wait until nothing more comes in."""
        await self._client.drive_async(self._questions.ask("wait_closed"))

    async def statistics(self) -> Statistics:
        """What the queue has done and is doing; what was taken counts when it is committed."""
        found: Statistics = await self._client.drive_async(self._questions.ask("statistics"))
        return found

    async def leases(self) -> int:
        """How many leases there are, of all consumers, that were not committed."""
        count: int = await self._client.drive_async(self._questions.ask("leases"))
        return count

    async def drain(self, node: str | None = None, *, timeout: float | None = None) -> None:
        """Let go of what belongs to this handle, or to all on a node, before it is taken away.

        What they have put in is copied to the queue's actor, now and from now on. What they have
        taken out they have to use, and say so: it is waited for that. If the actor itself is on
        that node, it comes back elsewhere by its journal; so it is waited until consumers have used
        all that nobody else could send again.

        Args:
            node: Ray's number of a node, as ``ray.get_runtime_context().get_node_id()`` gives it;
                ``None`` for this handle alone.
            timeout: seconds that it may take; ``None`` for as long as it takes.

        Raises:
            DeadlineExceededError: what is told is still left.
            InvalidArgumentError: the actor itself is on that node, and has no journal.
            WorkerDiedError: the actor has died.

        Cancellation:
            What was copied stays copied.
        """
        await self._client.drive_async(self._questions.drain(*_checked_drain(node, timeout)))

    async def delete(self) -> None:
        """End the actor, and forget what is inside, and its journal. Whoever waits there fails."""
        await self._client.drive_async(self._client.delete())


class BlockingRayQueue(_Face):
    """A queue on a Ray cluster, for threads: `RayQueue.sync`.

    Every method is that of `RayQueue`, and takes a ``timeout`` in seconds where it may wait.
    """

    @property
    def sync(self) -> BlockingRayQueue:
        """The queue itself."""
        return self

    def enqueue(self, element: Any, *, timeout: float | None = None) -> None:
        """See `RayQueue.enqueue`; raises `DeadlineExceededError` when the timeout has run out."""
        columns = self._questions.columns_of(element)
        self._client.drive(self._questions.put(columns, 1), timeout)

    def enqueue_many(self, batch: Any, *, timeout: float | None = None) -> None:
        """See `RayQueue.enqueue_many`."""
        columns, n = self._questions.columns_of_batch(batch)
        if n:
            self._client.drive(self._questions.put(columns, n), timeout)

    def fill(self, make_batch: Callable[[int], Any], *, producer: str) -> None:
        """See `RayQueue.fill`."""
        filler = ReplayFiller(self._questions, make_batch, producer)
        while (number := self._client.drive(filler.due())) is not None:
            self._client.drive(filler.put(number, make_batch(number)))

    def dequeue(self, *, timeout: float | None = None) -> Any:
        """See `RayQueue.dequeue`."""
        columns = self._client.drive(self._questions.take(1), timeout)
        return self._questions.element_of(columns)

    def dequeue_many(self, n: int, *, timeout: float | None = None) -> Any:
        """See `RayQueue.dequeue_many`."""
        n = self._questions.core.check_batch_size(n)
        if n == 0:
            return self._questions.core.empty_batch()
        return self._questions.batch_of(self._client.drive(self._questions.take(n), timeout))

    def dequeue_up_to(
        self, n: int, max_wait: float | None = None, *, timeout: float | None = None
    ) -> Any:
        """See `RayQueue.dequeue_up_to`."""
        n = self._questions.core.check_batch_size(n)
        if max_wait is not None:
            max_wait = checked_seconds(max_wait, "max_wait")
        if n == 0:
            return self._questions.core.empty_batch()
        columns = self._client.drive(self._questions.take(n, True, max_wait), timeout)
        return self._questions.batch_of(columns)

    def batches(self, n: int, *, drop_remainder: bool = False) -> Batches[Any]:
        """See `RayQueue.batches`."""
        if self._questions.core.check_batch_size(n) == 0:
            raise InvalidArgumentError("n: got 0; expected an int >= 1")
        return Batches(self, n, drop_remainder)  # type: ignore[arg-type]

    def __contains__(self, element: object) -> NoReturn:
        """Refuse to be searched, which would use up what is iterated.

        Raises:
            TypeError: always.
        """
        not_searched(self)

    def __iter__(self) -> BlockingRayQueue:
        """Iterate over elements, taking each out, until the queue is closed and empty.

        If a failure has closed it, `OutOfRangeError` comes then, with the failure as its cause.
        """
        return self

    def __next__(self) -> Any:
        try:
            return self.dequeue()
        except aioqueue.OutOfRangeError as end:
            if end.__cause__ is not None:  # a failure is no end
                raise
            raise StopIteration from None

    def commit(self, upto: int | None = None) -> None:
        """See `RayQueue.commit`."""
        self._client.drive(self._questions.commit(upto))

    def close(
        self, *, cancel_pending_enqueues: bool = False, cause: BaseException | None = None
    ) -> None:
        """See `RayQueue.close`."""
        self._client.drive(self._questions.close(cancel_pending_enqueues, cause))

    def wait_closed(self, *, timeout: float | None = None) -> None:
        """See `RayQueue.wait_closed`."""
        self._client.drive(self._questions.ask("wait_closed"), timeout)

    def statistics(self) -> Statistics:
        """See `RayQueue.statistics`."""
        found: Statistics = self._client.drive(self._questions.ask("statistics"))
        return found

    def leases(self) -> int:
        """See `RayQueue.leases`."""
        count: int = self._client.drive(self._questions.ask("leases"))
        return count

    def drain(self, node: str | None = None, *, timeout: float | None = None) -> None:
        """See `RayQueue.drain`."""
        self._client.drive(self._questions.drain(*_checked_drain(node, timeout)))

    def delete(self) -> None:
        """See `RayQueue.delete`."""
        self._client.drive(self._client.delete())


_ARGUMENTS = """
    Args:
        name: all that use it say the same name; who comes first makes the queue.
        {arguments}
        journal: a folder that all nodes see, by its whole path: the actor keeps a file of numbers
            there, from which it comes back after it has died, elsewhere if need be; producers keep
            what they have put in until it has been used, and send it again. ``None``: if it dies,
            what was inside is lost, and all who wait are told.
        owned: whether large batches are copied to the queue's actor, so that they outlive the
            program that has put them in; else they are lost with it, and their consumer is told.
        autocommit: whether what was taken counts as used when this handle asks for more; else
            `commit` says so: wherever `last` is not saved after every batch.
        consumer: a name for this consumer, which it keeps when it is started again; one at a time
            has it. Made up if ``None``.
        last_committed: with ``consumer``: the number of the last lease that it has used in an
            earlier life (`last`, saved with what was made of it). What it had got after that comes
            again, first. ``None`` goes on after what was committed.
        ray: what the actor is to have, and where it runs: options as those of `prepare`, such as
            ``{{"label_selector": {{"market": "on-demand"}}}}``. Those of who comes first count.

    Raises:
        InvalidArgumentError: any argument is not as described; or, on the first use, the queue was
            made with others, or ``last_committed`` is older than what this consumer has committed,
            or was never handed out to it.
        WorkerDiedError: on the first use, the lease ``last_committed`` had gone back to the queue.
        RuntimeError: this program is connected to no Ray cluster.
"""


class _Unseeded(RayQueue):
    """What is made with the arguments of a `FIFOQueue`."""

    _local: ClassVar[Callable[..., Any]]
    """The class of its kind in one program."""

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
            f"journal: got {journal!r}; expected the whole path of a folder, as all nodes see it"
        )
    return str(Path(journal))


def _checked_drain(node: Any, timeout: Any) -> tuple[str | None, float | None]:
    if node is not None and (not isinstance(node, str) or not node):
        raise InvalidArgumentError(
            f"node: got {node!r}; expected the number of a node, or None for this handle"
        )
    return node, None if timeout is None else checked_seconds(timeout, "timeout")


def checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f"name: got {name!r}; expected a string, not an empty one")
    return name


for _kind in (FIFOQueue, PaddingFIFOQueue, PriorityQueue, RandomShuffleQueue):
    _bounds = "capacity, dtypes, shapes, names, max_bytes: as for the queue in one program."
    _kind.__doc__ = with_sections(_kind.__doc__, _ARGUMENTS.format(arguments=_bounds))
del _kind, _bounds
