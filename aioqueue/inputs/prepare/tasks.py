"""Preparing in tasks: workers take items, await what prepares them, and enqueue the examples."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import anyio

from aioqueue.coordination.loops import soon
from aioqueue.coordination.outcomes import add_note, running_task
from aioqueue.functions import EnqueueOp
from aioqueue.inputs.prepare.feed import close_items, next_of, worst_of
from aioqueue.inputs.prepare.inbox import Inbox
from aioqueue.inputs.prepare.job import Job, Prepared
from aioqueue.inputs.prepare.limits import NOTE_OF_KEY, Pending
from aioqueue.inputs.sources.item import Item

__all__ = ("TaskExecutor",)


class TaskExecutor:
    """Has the function awaited by the workers themselves, which are tasks of one event loop.

    Args:
        job: what is to be done.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._source = _TaskSource(job)
        self._delivery = _TaskDelivery(job)
        self._inbox: _TaskInbox | None = None
        if job.key_limit is not None:
            self._inbox = _TaskInbox(job, self._source, self._delivery)
        self._scopes: set[anyio.CancelScope] = set()  # of the workers, and of who helps them
        self._soon: Callable[[Callable[[], object]], None] | None = None  # into their loop

    def enqueue_ops(self) -> list[EnqueueOp]:
        ops: list[EnqueueOp] = [self.prepare_items] * self._job.count
        return ops if self._inbox is None else [*ops, self.take_items]

    async def prepare_items(self) -> None:
        """The whole life of a worker."""
        job, owner = self._job, running_task()
        job.enter()
        work = self._work if self._inbox is None else self._work_by_key
        ended = await self._till_stopped(work, owner)
        closing = None
        # Else nobody runs us any more; or others go on, or somebody else takes from the source.
        if owner is running_task() and job.is_last_inside and self._inbox is None:
            closing = await self._source.close(owner)
        try:
            raise job.leave(ended, closing)
        finally:
            del ended, closing  # which have this frame in their tracebacks

    async def take_items(self) -> None:
        """The whole life of the task that takes items for the others."""
        assert self._inbox is not None
        job, owner = self._job, running_task()
        ended = await self._till_stopped(self._inbox.take_items, owner)
        if not isinstance(ended, Exception):
            job.stop()  # it was cancelled: nobody would wake those that wait for items
        closing = await self._source.close(owner) if owner is running_task() else None
        try:
            raise ended if closing is None else worst_of([ended, closing])
        finally:
            del ended, closing  # as above

    async def _till_stopped(
        self, work: Callable[[object], Awaitable[object]], owner: object
    ) -> BaseException:
        """Work until there is nothing more to do, or the stop; returns what it has ended by."""
        if self._soon is None:
            self._soon = self._job.soon = soon()
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        if self._job.is_halted:
            scope.cancel()  # those that were there have been; so the next wait ends this one
        try:
            with scope:
                await work(owner)
        except BaseException as error:
            return error
        finally:
            self._scopes.discard(scope)
        return self._job.nothing_more()

    def stop(self) -> None:
        if self._soon is not None:
            self._soon(self._cancel)

    def _cancel(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    def room_came(self) -> None:
        self._source.room_came()
        if self._inbox is not None:
            self._inbox.room_came()

    def end(self) -> BaseException | None:
        return None

    async def _work(self, owner: object) -> None:
        """The work of one worker, until there is none."""
        take, deliver = self._source.take, self._delivery.deliver
        while True:
            await deliver(await self._prepare(await take(owner), owner), owner)

    async def _prepare(self, item: Item, owner: object) -> Prepared:
        """Prepare an item, as often as it may be tried."""
        job = self._job
        failures = 0
        while True:
            try:
                return Prepared(item, await self._examples(item), failures=failures)
            except BaseException as raised:
                error = job.failure_of_item(raised, owner)
            failures += 1
            delay = job.progress.failed(item, error, failures)
            if delay is None:
                return Prepared(item, failures=failures - 1, is_skipped=True)
            await anyio.sleep(delay)

    async def _examples(self, item: Item) -> Any:
        """The examples of an item; or what is making them, if they may be enqueued meanwhile."""
        examples = await self._job.call.examples_async(item)
        if isinstance(examples, AsyncGenerator) and not self._job.streams:
            async with aclosing(examples):
                return [example async for example in examples]
        return examples

    async def _work_by_key(self, owner: object) -> None:
        """The same where keys are limited: an item is tried once, and what failed comes again."""
        assert self._inbox is not None
        while True:
            await self._try(await self._inbox.take(owner), self._inbox, owner)

    async def _try(self, pending: Pending, inbox: _TaskInbox, owner: object) -> None:
        """Prepare an item that has its place, which it keeps for as long as that takes."""
        try:
            examples = await self._examples(pending.item)
        except BaseException as raised:
            inbox.give_back(pending)
            await inbox.failed(pending, self._job.failure_of_item(raised, owner), owner)
            return
        if not isinstance(examples, AsyncGenerator):
            inbox.give_back(pending)
        prepared = Prepared(pending.item, examples, failures=pending.failures)
        await self._delivery.deliver(prepared, owner)
        inbox.give_back(pending)  # if it was being made until now


class _TaskSource:
    """The source of a job, for tasks, which take turns."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._turn: anyio.Lock | None = None  # made in the loop
        self._room: anyio.Event | None = None
        self._items = job.feed.items_async()

    async def take(self, owner: object) -> Item:
        """The next item, which is counted as being in flight from now on.

        Raises:
            NothingMore: there is none, or none is wanted.
            BaseException: the failure of the source, or the cancellation of the task.
        """
        job = self._job
        if self._turn is None:
            self._turn = anyio.Lock()
        async with self._turn:
            await self._wait_for_room()
            if job.source_ended:
                raise job.nothing_more()
            job.window.enter()
            try:
                return await next_of(self._items)
            except BaseException as error:
                raise job.source_raised(error, owner)  # noqa: B904  # as for threads

    async def _wait_for_room(self) -> None:
        """Wait until one more item may come in, or none will."""
        job = self._job
        while not (job.source_ended or job.window.has_room()):
            self._room = anyio.Event()
            job.is_room_awaited = True  # by one at most, since it is a turn
            await self._room.wait()
        job.is_room_awaited = False

    def room_came(self) -> None:
        if self._room is not None:
            self._room.set()

    async def close(self, owner: object) -> BaseException | None:
        """Close it; returns what fails in that."""
        return await close_items(self._items, owner)


class _TaskDelivery:
    """Puts examples into the queue of a job, from tasks; waits there if it must."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._enqueue = job.into.aio.enqueue

    async def deliver(self, prepared: Prepared, owner: object) -> None:
        """Enqueue the examples of an item; in order, if that is kept: then perhaps later, or
        together with others.

        Raises:
            BaseException: what ends the worker.
        """
        job = self._job
        if job.notes_made and not job.made(prepared):
            return
        if not job.is_ordered:
            await self._put(prepared, owner)
            return
        while (turn := job.next_in_order()) is not None:
            await self._put(turn, owner)

    async def _put(self, prepared: Prepared, owner: object) -> None:
        try:
            async with aclosing(_each(prepared.examples)) as examples:
                await self._put_each(prepared, examples, owner)
        except BaseException:
            self._job.progress.entered(prepared.entered)
            raise
        self._job.left(prepared)

    async def _put_each(
        self, prepared: Prepared, examples: AsyncGenerator[Any, None], owner: object
    ) -> None:
        job = self._job
        while True:
            try:
                example = await anext(examples)
            except StopAsyncIteration:
                return
            except BaseException as error:  # only where examples are enqueued as they are made
                job.refused(prepared, job.failure_of_item(error, owner))
                return
            try:
                await self._enqueue(example)
            except BaseException as error:
                job.not_enqueued(prepared, error, owner)
                return
            prepared.entered += 1


async def _each(examples: Any) -> AsyncGenerator[Any, None]:
    """Examples that are there, or that an async generator is making, and is closed after."""
    if isinstance(examples, AsyncGenerator):
        async with aclosing(examples):
            async for example in examples:
                yield example
    else:
        for example in examples:
            yield example


class _TaskInbox:
    """Items that a task of their own takes from the source, for workers that are tasks.

    The twin of `ThreadInbox`, used in one event loop only.
    """

    def __init__(self, job: Job, source: _TaskSource, delivery: _TaskDelivery) -> None:
        self._job = job
        self._source = source
        self._delivery = delivery
        self._inbox = Inbox(job.key_limit)
        self._work_came: anyio.Event | None = None

    async def take_items(self, owner: object) -> None:
        """Take items from the source until there are no more."""
        while True:
            self._inbox.put(Pending(await self._source.take(owner)))
            self._wake()

    async def take(self, owner: object) -> Pending:
        """Take what is to be prepared next, and has its place.

        Raises:
            NothingMore: everything has been prepared.
            BaseException: the failure to get the key of an item, if that is to end all.
        """
        while True:
            for pending in self._inbox.take(1):
                if await self._is_admitted(pending, owner):
                    return pending
                break
            else:
                await self._wait()

    async def _wait(self) -> None:
        if self._job.source_ended and self._job.window.items == 0:
            raise self._job.nothing_more()
        if self._work_came is None or self._work_came.is_set():
            self._work_came = anyio.Event()
        with anyio.move_on_after(self._inbox.seconds()):
            await self._work_came.wait()

    async def _is_admitted(self, pending: Pending, owner: object) -> bool:
        """Whether an item may be prepared now; else it is put aside, or has failed."""
        assert self._job.key_limit is not None
        try:
            self._job.key_limit.note_key(pending)
        except BaseException as error:
            add_note(error, NOTE_OF_KEY)
            await self.failed(pending, self._job.failure_of_item(error, owner), owner)
            return False
        return self._inbox.admit(pending)

    def give_back(self, pending: Pending) -> None:
        """An item is not in preparation any more: it has ended, or is going to be tried again."""
        if self._inbox.give_back(pending):
            self._wake()

    async def failed(self, pending: Pending, error: BaseException, owner: object) -> None:
        """The preparation of an item has failed: it is tried again, or skipped.

        Raises:
            BaseException: the failure, if it ends all; or what else ends the worker.
        """
        pending.failures += 1
        delay = self._job.progress.failed(pending.item, error, pending.failures)
        if delay is None:
            skipped = Prepared(pending.item, failures=pending.failures - 1, is_skipped=True)
            await self._delivery.deliver(skipped, owner)
            return
        self._inbox.put_off(pending, delay)
        self._wake()

    def room_came(self) -> None:
        """It may be over."""
        if self._job.source_ended:
            self._wake()

    def _wake(self) -> None:
        if self._work_came is not None:
            self._work_came.set()
