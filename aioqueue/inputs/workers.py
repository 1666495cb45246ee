"""The workers of a `prepare`: they take items, have them prepared, and enqueue the examples.

An enqueue op here is the whole life of one worker, and it always ends by an exception: by
`OutOfRangeError` when there is nothing more to do, whatever the reason, and else by the failure
that ends the pipeline. What an exception means that has come out of the function, the source or
the queue is decided in `aioqueue.coordination.outcomes`: the end of the source is an end, a stop
and the cancellation of a worker are a stop, and all else is the failure of an item or the source.

What is in flight is counted by a `Window`. Where the order of the source is kept, a worker lays
down what it has made and goes on; whoever lays down what everybody waits for enqueues that, and
all that can follow it, while the others prepare.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any

import anyio

from aioqueue import (
    AsyncQueue,
    CancelledError,
    OutOfRangeError,
    QueueClosedError,
    sync,
)
from aioqueue.coordination.outcomes import (
    Meaning,
    add_note,
    as_failure,
    cause_of,
    is_cancellation,
    meaning_of,
    running_task,
    takes_all,
)
from aioqueue.inputs.calls import Call, Item
from aioqueue.inputs.feeds import Feed, closed, failure_of_clean_up, next_of, worst_of
from aioqueue.inputs.limits import Window, size_of
from aioqueue.inputs.ordering import Reordering
from aioqueue.inputs.totals import Totals
from aioqueue.locks import guarded, let_go

__all__ = ("EnqueueOp", "Prepared", "TaskWorkers", "ThreadWorkers", "Workers")

EnqueueOp = Callable[[], Any]


class Prepared:
    """An item that has ended: its examples, of which there are none if it was skipped."""

    __slots__ = ("entered", "examples", "failures", "is_skipped", "item", "release", "size")

    def __init__(
        self,
        item: Item,
        examples: Any = (),
        *,
        failures: int = 0,
        is_skipped: bool = False,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.item = item
        self.examples = examples
        self.failures = failures
        self.is_skipped = is_skipped
        self.release = release  # called when the examples are in the queue
        self.size = 0
        self.entered = 0  # how many examples are in the queue


class Workers(ABC):
    """What workers of one run share, be they tasks or threads.

    Args:
        feed: where items come from.
        into: where examples go.
        totals: counts, and what failures mean.
        window: what may be in flight.
        ordered: whether examples are enqueued in the order of the source.
        count: how many workers there are.
    """

    def __init__(
        self,
        feed: Feed,
        into: AsyncQueue | sync.BlockingQueue,
        totals: Totals,
        window: Window,
        *,
        ordered: bool,
        count: int,
    ) -> None:
        self._feed = feed
        self._into = into
        self._totals = totals
        self._window = window
        self._order: Reordering[Prepared] | None = Reordering() if ordered else None
        is_counted = window.limit_bytes is not None
        # Whether what is made has to be noted before it is enqueued.
        self._notes_made = ordered or is_counted
        # Whether the examples of a generator may be enqueued before the last one is made. Not if
        # the item may be tried again, for then there would be some twice; and not if their size
        # has to be known first.
        self._streams = not (ordered or totals.policy.may_fail_twice or is_counted)
        self._count = count
        self._lock = threading.RLock()  # guards the window, the order, and all below
        self._was_closed = False  # the queue, before the run began
        self._is_flushing = False
        self._inside = 0
        self._begun = 0
        self._has_begun = False
        self._source_ended = False
        self._end_cause: BaseException | None = None
        self._has_ended = False

    @abstractmethod
    def enqueue_ops(self) -> list[EnqueueOp]:
        """The workers, as a `QueueRunner` wants them."""

    @property
    def state(self) -> str:
        """Where the run is, in one word."""
        if self._has_ended:
            return "ended"
        return "running" if self._has_begun else "idle"

    @abstractmethod
    def halt(self) -> None:
        """End all workers, whatever they wait for."""

    def is_closed(self) -> bool:
        """Whether the queue is closed that is filled."""
        return self._into.is_closed()

    def begins(self, was_closed: bool) -> None:
        """The run is going to begin, with a queue that was closed before or not."""
        self._was_closed = was_closed

    def _enter(self) -> None:
        """A worker begins.

        Raises:
            RuntimeError: what it would make can get nowhere.
            OutOfRangeError: there is nothing to be done any more.
        """
        try:
            self._count_in()
        except RuntimeError:
            self._end_source(None)
            raise

    @guarded
    def _count_in(self) -> None:
        self._begun += 1
        name = self._into.name
        if self._begun > self._count:
            raise RuntimeError(
                f"what prepares into '{name}' has run already, and its queue is"
                " closed: make another with prepare(...), and another queue"
            )
        if self._has_ended:
            raise self._nothing_more()
        self._has_begun = True
        if self._was_closed:
            self._has_ended = True
            raise RuntimeError(
                f"'{name}' was closed before what prepares into it was started: nothing of it would"
                " arrive; start all that fill a queue before the first of them has ended"
            )
        self._inside += 1

    def _leave(self, *raised: BaseException | None) -> BaseException:
        """A worker ends; the last one to leave ends the run.

        Args:
            raised: by what it ends: an end or a stop, failures, or several.

        Returns:
            What it is to raise: all failures, or else the stop, or else the end.
        """
        errors = [error for error in raised if error is not None]
        came_to_the_end = all(isinstance(error, OutOfRangeError) for error in errors)
        came_to_the_end &= not self._into.is_closed()
        if not all(isinstance(error, OutOfRangeError) for error in errors):
            self.halt()
        if self._count_out():
            last = (self._ended(), self._check_share() if came_to_the_end else None)
            errors += [error for error in last if error is not None]
        return worst_of(errors)

    @guarded
    def _count_out(self) -> bool:
        """Whether this is the last one of the run."""
        self._inside -= 1
        # Others may not have begun, and after a stop never will; but then there is nothing more to
        # be done.
        is_over = self._inside == 0 and (self._source_ended or self._into.is_closed())
        self._has_ended = is_over
        return is_over

    def _ended(self) -> BaseException | None:
        """The last worker has gone; returns what has failed in that."""
        self._totals.log(self._into.name)
        return None

    def _check_share(self) -> BaseException | None:
        try:
            self._totals.check_share()
        except RuntimeError as error:
            return error
        return None

    @guarded
    def _end_source(self, cause: BaseException | None) -> None:
        if not self._source_ended:
            self._source_ended, self._end_cause = True, cause
        self._room_came()

    def _nothing_more(self) -> OutOfRangeError:
        error = OutOfRangeError("the source has ended")
        error.__cause__ = self._end_cause
        return error

    def _is_stopping(self) -> bool:
        """Whether nobody wants any more examples."""
        return self._into.is_closed()

    @guarded
    def _gave_up(self) -> None:
        self._window.gave_up()

    def _source_raised(self, error: BaseException, owner: object = None) -> BaseException:
        """The source has raised: no other worker is to ask it again.

        Returns:
            What the worker is to raise: an end, a stop, or the failure of the source.
        """
        self._gave_up()  # the item that did not come
        if isinstance(error, StopIteration | StopAsyncIteration):
            self._end_source(None)
            return self._nothing_more()
        meaning = meaning_of(error, (OutOfRangeError,), stopping=self._is_stopping(), owner=owner)
        if meaning is Meaning.FAILURE:
            error = as_failure(error, f"the source raised {type(error).__name__}: {error}")
            add_note(error, "in the source of a prepare")
            self._end_source(error)
            return error
        self._end_source(cause_of(error) if meaning is Meaning.END else None)
        return error if self._must_go_on(error, owner) else self._nothing_more()

    def _failure_of_item(self, error: BaseException, owner: object = None) -> BaseException:
        """An exception that has ended the preparation of an item, if it is the item's failure.

        Raises:
            BaseException: what ends the worker instead.
        """
        meaning = meaning_of(error, stopping=self._is_stopping(), owner=owner)
        if meaning is Meaning.STOP:
            if self._must_go_on(error, owner):
                raise error
            raise self._nothing_more() from error
        if takes_all(error):
            raise error
        if owner is not None and is_cancellation(error):
            failure = RuntimeError("what the function awaited was cancelled")
            failure.__cause__ = error
            return failure
        return error

    @staticmethod
    def _must_go_on(error: BaseException, owner: object) -> bool:
        """Whether a stop is the cancellation of a task, which has to end by nothing else."""
        return owner is not None and not isinstance(error, Exception)

    def _not_enqueued(self, prepared: Prepared, error: BaseException, owner: object = None) -> None:
        """An example was not enqueued: nobody wants it, or its item has failed, retried or not."""
        if isinstance(error, QueueClosedError) and self._into.is_closed():
            raise self._nothing_more() from None
        self._refused(prepared, self._failure_of_item(error, owner))

    @abstractmethod
    def _room_came(self) -> None:
        """Wake who waits for room in the window. Called under the lock."""

    def _made(self, prepared: Prepared) -> bool:
        """Count what was made; tell whether the caller has to enqueue (and all that follows)."""
        if self._window.limit_bytes is not None and not prepared.size:
            prepared.size = size_of(prepared.examples)
        return self._note_made(prepared)

    @guarded
    def _note_made(self, prepared: Prepared) -> bool:
        self._window.made(prepared.size)
        if self._order is None:
            return True
        self._order.put(prepared.item.number, prepared)
        if self._is_flushing:
            return False
        self._is_flushing = True
        return True

    @guarded
    def _next_in_order(self) -> Prepared | None:
        assert self._order is not None
        prepared = self._order.pop()
        if prepared is None:
            self._is_flushing = False
        return prepared

    def _left(self, prepared: Prepared) -> None:
        """The examples of an item are in the queue."""
        if prepared.release is not None:
            prepared.release()
        lock = self._lock
        try:  # as `guarded`, on the way of every item
            lock.acquire()
            self._window.left(prepared.size)
            if prepared.is_skipped:
                self._totals.entered(prepared.entered)
            else:
                self._totals.ended(prepared.entered)
            self._room_came()
            lock.release()
        except BaseException:
            let_go(lock)
            raise

    def _refused(self, prepared: Prepared, error: BaseException) -> None:
        """The queue has refused an example: the item has failed, whatever could be tried."""
        self._totals.give_up(prepared.item, error, prepared.failures + 1)
        prepared.is_skipped = True


class ThreadWorkers(Workers):
    """Workers that are threads.

    One more thread waits for the end of the run, be it a stop or a consumer that has closed the
    queue, and ends whatever the workers wait for.
    """

    def __init__(self, *arguments: Any, call: Call, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._call = call
        self._turn = threading.Lock()  # to take from the source
        self._room = threading.Condition(self._lock)
        self._is_awaited = False  # whether someone waits for room: one at most, since it is a turn
        self._halted = threading.Event()
        self._scope = sync.CancelScope()
        self._watching = sync.CancelScope()
        self._is_watched = False
        self._enqueue = self._into.sync.enqueue
        self._crossing = self._feed.crossing(self._count) if self._feed.is_async_only else None
        self._items = (self._crossing or self._feed).items()

    def enqueue_ops(self) -> list[EnqueueOp]:
        ops: list[EnqueueOp] = [self.prepare_items] * self._count
        return ops if self._crossing is None else [*ops, self._crossing.read_source]

    def prepare_items(self) -> None:
        """The whole life of a worker."""
        self._enter()
        ended: BaseException | None = None
        try:
            self._watch()
            with self._scope:
                self._work()
        except BaseException as error:
            stopping = self._is_stopping()
            is_stop = meaning_of(error, stopping=stopping) is Meaning.STOP
            ended = self._nothing_more() if is_stop else error
        closing = self._closed_source() if self._halted.is_set() else None
        try:
            raise self._leave(ended, closing)
        finally:
            del ended, closing  # which have this frame in their tracebacks

    def _is_stopping(self) -> bool:
        return self._halted.is_set() or super()._is_stopping()

    def _ended(self) -> BaseException | None:
        failure = self._closed_source()
        self._watching.cancel()
        super()._ended()
        return failure

    def _work(self) -> None:
        while True:
            self._deliver(self._prepare(self._take()))

    def _watch(self) -> None:
        """Have someone wait for the end of the run, once."""
        if self._watches_now():
            threading.Thread(
                target=self._halt_when_closed, name="aioqueue-prepare-watch", daemon=True
            ).start()

    @guarded
    def _watches_now(self) -> bool:
        is_first, self._is_watched = not self._is_watched, True
        return is_first

    def _halt_when_closed(self) -> None:
        try:
            with self._watching:
                self._into.sync.wait_closed()
        except CancelledError:
            return  # all workers have ended, and others go on filling the queue
        self.halt()

    def halt(self) -> None:
        self._halted.set()
        self._end_source(None)
        self._scope.cancel()
        if self._crossing is not None:
            self._crossing.close()

    def _room_came(self) -> None:
        if self._is_awaited:
            self._room.notify()

    def _take(self) -> Item:
        """The next item of the source."""
        with self._turn:
            with self._lock:
                while not (self._source_ended or self._window.has_room()):
                    self._is_awaited = True
                    self._room.wait()
                self._is_awaited = False
                if self._source_ended:
                    raise self._nothing_more()
                self._window.enter()
            try:
                return next(self._items)
            except BaseException as error:
                raise self._source_raised(error)  # noqa: B904  # the cause is the user's affair

    def _prepare(self, item: Item) -> Prepared:
        failures = 0
        while True:
            try:
                examples = self._examples(item)
                if not self._streams:
                    examples = tuple(examples)
                return Prepared(item, examples, failures=failures)
            except BaseException as raised:
                error = self._failure_of_item(raised)
            failures += 1
            delay = self._totals.failed(item, error, failures)
            if delay is None:
                return Prepared(item, is_skipped=True)
            if self._halted.wait(delay):
                raise self._nothing_more()

    def _examples(self, item: Item) -> Iterable[Any]:
        return self._call.examples(item)

    def _deliver(self, prepared: Prepared) -> None:
        if self._notes_made and not self._made(prepared):
            return
        if self._order is None:
            self._put(prepared)
            return
        while (turn := self._next_in_order()) is not None:
            self._put(turn)

    def _put(self, prepared: Prepared) -> None:
        try:
            self._put_each(prepared)
        except BaseException:
            self._totals.entered(prepared.entered)
            raise
        self._left(prepared)

    def _put_each(self, prepared: Prepared) -> None:
        examples = prepared.examples
        for example in examples if type(examples) is tuple else self._as_made(prepared):
            try:
                self._enqueue(example)
            except BaseException as error:
                self._not_enqueued(prepared, error)
                return
            prepared.entered += 1

    def _as_made(self, prepared: Prepared) -> Iterator[Any]:
        """The examples that a generator is making; if it fails, so has the item."""
        examples = iter(prepared.examples)
        while True:
            try:
                example = next(examples)
            except StopIteration:
                return
            except BaseException as error:
                self._refused(prepared, self._failure_of_item(error))
                return
            yield example  # out of the `try`: what closes us is no failure of the generator

    def _close_source(self) -> None:
        """Close the source; or leave that to who is in it, and closes it afterwards.

        Raises:
            BaseException: the failure of the source's own clean-up.
        """
        failure = self._closed_source()
        if failure is not None:
            raise failure

    def _closed_source(self) -> BaseException | None:
        """Close the source; returns what has failed in that."""
        if not self._turn.acquire(blocking=False):
            return None
        try:
            getattr(self._items, "close", bool)()
        except BaseException as error:
            return failure_of_clean_up(error)
        finally:
            self._turn.release()
        return None


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
            closing = await closed(self._items, owner)
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
            while not (self._source_ended or self._window.has_room()):
                self._room = anyio.Event()
                await self._room.wait()
            if self._source_ended:
                raise self._nothing_more()
            self._window.enter()
            try:
                return await next_of(self._items)
            except BaseException as error:
                raise self._source_raised(error, owner)  # noqa: B904  # as for threads

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
            delay = self._totals.failed(item, error, failures)
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
            self._totals.entered(prepared.entered)
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
