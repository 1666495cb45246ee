"""Preparing in tasks: workers take items, await what prepares them, and enqueue the examples."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import anyio

from aioqueue.coordination.outcomes import is_cancellation, running_task
from aioqueue.inputs.prepare.call import Call
from aioqueue.inputs.prepare.feed import close_items, next_of
from aioqueue.inputs.prepare.job import EnqueueOp, Prepared, Workers
from aioqueue.inputs.sources.item import Item

__all__ = ("TaskWorkers",)


class TaskWorkers(Workers):
    """Workers that are tasks, all of one event loop."""

    def __init__(self, *arguments: Any, call: Call, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._call = call
        self._turn: anyio.Lock | None = None  # to take from the source; made in the loop
        self._room: anyio.Event | None = None
        self._scopes: set[anyio.CancelScope] = set()
        self._watch: anyio.CancelScope | None = None
        self._enqueue = self._into.aio.enqueue
        self._items: Any = self._feed.items_async()

    def enqueue_ops(self) -> list[EnqueueOp]:
        return [*[self.prepare_items] * self._count, self.watch_queue]

    async def prepare_items(self) -> None:
        """The whole life of a worker."""
        owner = running_task()
        self._enter()
        ended: BaseException | None = None
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                while True:
                    await self._deliver(await self._prepare(await self._take(owner), owner), owner)
        except BaseException as error:
            ended = error
        self._scopes.discard(scope)
        closing = None
        if owner is running_task() and self._inside == 1:  # else nobody runs us any more
            closing = await close_items(self._items, owner)
        try:
            raise self._leave(self._nothing_more() if ended is None else ended, closing)
        finally:
            del ended, closing  # which have this frame in their tracebacks

    async def watch_queue(self) -> None:
        """Wait until somebody closes the queue, and cancel the workers then."""
        try:
            with anyio.CancelScope() as self._watch:
                if not self._has_ended:  # else the last worker was here before us
                    await self._into.aio.wait_closed()
                    self.halt()
        except BaseException as error:
            if is_cancellation(error):
                self.halt()  # since nobody would see any more that it is closed
            raise
        raise self._nothing_more()

    def _ended(self) -> BaseException | None:
        if self._watch is not None:
            self._watch.cancel()
        return super()._ended()

    def halt(self) -> None:
        self._end_source(None)
        if running_task() is not None:  # else their loop has ended, and so have they
            for scope in self._scopes:
                scope.cancel()

    def _room_came(self) -> None:
        if self._room is not None:
            self._room.set()

    async def _take(self, owner: object) -> Item:
        """The next item of the source."""
        if self._turn is None:
            self._turn = anyio.Lock()
        async with self._turn:
            await self._wait_for_room()
            if self._source_ended:
                raise self._nothing_more()
            self._window.enter()
            try:
                return await next_of(self._items)
            except BaseException as error:
                raise self._source_raised(error, owner)  # noqa: B904  # as for threads

    async def _wait_for_room(self) -> None:
        """Wait until one more item may come in, or none will."""
        while not (self._source_ended or self._window.has_room()):
            self._room = anyio.Event()
            await self._room.wait()

    async def _prepare(self, item: Item, owner: object) -> Prepared:
        failures = 0
        while True:
            try:
                examples = await self._call.examples_async(item)
                if isinstance(examples, AsyncGenerator) and not self._streams:
                    async with aclosing(examples):
                        examples = [example async for example in examples]
                return Prepared(item, examples, failures=failures)
            except BaseException as raised:
                error = self._failure_of_item(raised, owner)
            failures += 1
            delay = self._progress.failed(item, error, failures)
            if delay is None:
                return Prepared(item, is_skipped=True)
            await anyio.sleep(delay)

    async def _deliver(self, prepared: Prepared, owner: object) -> None:
        if self._notes_made and not self._made(prepared):
            return
        if self._order is None:
            await self._put(prepared, owner)
            return
        while (turn := self._next_in_order()) is not None:
            await self._put(turn, owner)

    async def _put(self, prepared: Prepared, owner: object) -> None:
        try:
            async with aclosing(_each(prepared.examples)) as examples:
                await self._put_each(prepared, examples, owner)
        except BaseException:
            self._progress.entered(prepared.entered)
            raise
        self._left(prepared)

    async def _put_each(
        self, prepared: Prepared, examples: AsyncGenerator[Any, None], owner: object
    ) -> None:
        while True:
            try:
                example = await anext(examples)
            except StopAsyncIteration:
                return
            except BaseException as error:  # only where examples are enqueued as they are made
                self._refused(prepared, self._failure_of_item(error, owner))
                return
            try:
                await self._enqueue(example)
            except BaseException as error:
                self._not_enqueued(prepared, error, owner)
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
