"""The workers of a `prepare`: they take items, have them prepared, and enqueue the examples.

An enqueue op here is the whole life of one worker, and it always ends by an exception: by
`OutOfRangeError` when there is nothing more to do, whatever the reason, and else by the failure
that ends the pipeline.

What is in flight is counted by a `Window`. Where the order of the source is kept, a worker lays
down what it has made and goes on; whoever lays down what everybody waits for enqueues that, and
all that can follow it, while the others prepare.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final
from weakref import WeakSet

import anyio
import anyio.lowlevel

from aioqueue import (
    AsyncQueue,
    CancelledError,
    InvalidArgumentError,
    OutOfRangeError,
    QueueClosedError,
    sync,
)
from aioqueue.inputs.calls import STRAY, Call, Item
from aioqueue.inputs.feeds import Feed, next_of
from aioqueue.inputs.limits import Window, size_of
from aioqueue.inputs.ordering import Reordering
from aioqueue.inputs.totals import Totals

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


_claimed: Final[WeakSet[sync.BlockingQueue]] = WeakSet()
_claiming: Final = threading.Lock()


def _claim(queue: sync.BlockingQueue) -> None:
    """Note that a run fills a queue, and is going to close it.

    Raises:
        RuntimeError: another run does, or has done: what this one makes would be lost when the
            other one closes the queue, as if a consumer had left.
    """
    with _claiming:
        if queue in _claimed:
            raise RuntimeError(
                f"'{queue.name}' is filled by another prepare, which closes it when its source has"
                " ended: give each prepare a queue of its own; mix(...) makes one source of several"
            )
        _claimed.add(queue)


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
        self._lock = threading.Lock()  # guards the window, the order, and all below
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

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """The life of a worker; the last one to leave ends the run."""
        with self._lock:
            self._begun += 1
            if self._begun > self._count:
                raise RuntimeError(
                    f"what prepares into '{self._into.name}' has run already, and its queue is"
                    " closed: make another with prepare(...), and another queue"
                )
            if self._has_ended:
                raise self._nothing_more()
            self._inside += 1
            is_first, self._has_begun = not self._has_begun, True
        came_to_the_end = False
        try:
            if is_first:
                _claim(self._into.sync)
            yield
        except OutOfRangeError:
            came_to_the_end = not self._into.is_closed()
            raise
        except BaseException:
            self.halt()
            raise
        finally:
            with self._lock:
                self._inside -= 1
                # Others may not have begun, and after a stop never will; but then there is nothing
                # more to be done.
                is_over = self._inside == 0 and (self._source_ended or self._into.is_closed())
                self._has_ended = is_over
            if is_over:
                self._ended()
                if came_to_the_end:
                    self._totals.check_share()

    def _ended(self) -> None:
        """The last worker has gone."""
        self._totals.log(self._into.name)

    def _end_source(self, cause: BaseException | None) -> None:
        with self._lock:
            if not self._source_ended:
                self._source_ended, self._end_cause = True, cause
            self._room_came()

    def _nothing_more(self) -> OutOfRangeError:
        error = OutOfRangeError("the source has ended")
        error.__cause__ = self._end_cause
        return error

    def _source_failed(self, error: BaseException) -> None:
        """The source has raised: no other worker is to ask it again."""
        with self._lock:
            self._window.gave_up()  # the item that did not come
        if isinstance(error, OutOfRangeError):
            self._end_source(error.__cause__)
        else:
            self._end_source(error)
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                error.add_note("in the source of a prepare")

    @abstractmethod
    def _room_came(self) -> None:
        """Wake who waits for room in the window. Called under the lock."""

    def _made(self, prepared: Prepared) -> bool:
        """Count what was made; tell whether the caller has to enqueue (and all that follows)."""
        if self._window.limit_bytes is not None and not prepared.size:
            prepared.size = size_of(prepared.examples)
        with self._lock:
            if self._window.made(prepared.size):
                self._room_came()
            if self._order is None:
                return True
            self._order.put(prepared.item.number, prepared)
            if self._is_flushing:
                return False
            self._is_flushing = True
            return True

    def _next_in_order(self) -> Prepared | None:
        assert self._order is not None
        with self._lock:
            prepared = self._order.pop()
            if prepared is None:
                self._is_flushing = False
            return prepared

    def _left(self, prepared: Prepared) -> None:
        """The examples of an item are in the queue."""
        if prepared.release is not None:
            prepared.release()
        with self._lock:
            self._window.left(prepared.size)
            if prepared.is_skipped:
                self._totals.entered(prepared.entered)
            else:
                self._totals.ended(prepared.entered)
            self._room_came()

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
        self._is_watched = False
        self._enqueue = self._into.sync.enqueue
        self._crossing = self._feed.crossing(self._count) if self._feed.is_async_only else None
        self._items = (self._crossing or self._feed).items()

    def enqueue_ops(self) -> list[EnqueueOp]:
        ops: list[EnqueueOp] = [self.prepare_items] * self._count
        return ops if self._crossing is None else [*ops, self._crossing.read_source]

    def prepare_items(self) -> None:
        """The whole life of a worker."""
        with self._at_work():
            self._watch()
            try:
                with self._scope:
                    self._work()
            except CancelledError:
                raise self._nothing_more() from None
            finally:
                if self._halted.is_set():
                    self._close_source()

    def _ended(self) -> None:
        self._close_source()
        super()._ended()

    def _work(self) -> None:
        while True:
            self._deliver(self._prepare(self._take()))

    def _watch(self) -> None:
        """Have someone wait for the end of the run, once."""
        with self._lock:
            if self._is_watched:
                return
            self._is_watched = True
        threading.Thread(
            target=self._halt_when_closed, name="aioqueue-prepare-watch", daemon=True
        ).start()

    def _halt_when_closed(self) -> None:
        self._into.sync.wait_closed()
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
            except BaseException as raised:
                error = self._failure_of_source(raised)
                self._source_failed(error)
                if isinstance(error, StopIteration):
                    raise self._nothing_more() from None
                if error is not raised:
                    raise error from raised
                raise

    def _failure_of_source(self, error: BaseException) -> BaseException:
        """What the source has raised; what would pass for a stop that nobody wanted is wrapped."""
        if isinstance(error, (*STRAY, CancelledError)) and not self._halted.is_set():
            return RuntimeError(f"the source raised {type(error).__name__}: {error}")
        return error

    def _prepare(self, item: Item) -> Prepared:
        failures = 0
        while True:
            try:
                examples = self._examples(item)
                if not self._streams:
                    examples = tuple(examples)
                return Prepared(item, examples, failures=failures)
            except (Exception, *STRAY) as error:
                if self._halted.is_set():
                    raise self._nothing_more() from error
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
            except QueueClosedError:
                raise self._nothing_more() from None
            except InvalidArgumentError as error:
                self._refused(prepared, error)
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
            except (Exception, *STRAY) as error:
                if self._halted.is_set():
                    raise self._nothing_more() from error
                self._refused(prepared, error)
                return
            yield example  # out of the `try`: what closes us is no failure of the generator

    def _close_source(self) -> None:
        try:
            getattr(self._items, "close", bool)()
        except ValueError:
            pass  # another worker is still in it, and ends it


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
        with self._at_work(), anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                while True:
                    await self._deliver(await self._prepare(await self._take()))
            finally:
                self._scopes.discard(scope)
                if self._inside == 1:
                    with anyio.CancelScope(shield=True):
                        await self._items.aclose()
        raise self._nothing_more()

    async def watch_queue(self) -> None:
        """Wait until somebody closes the queue, and cancel the workers then."""
        with anyio.CancelScope() as self._watch:
            if not self._has_ended:  # else the last worker was here before us
                await self._into.aio.wait_closed()
                self.halt()
        raise self._nothing_more()

    def _ended(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super()._ended()

    def halt(self) -> None:
        self._end_source(None)
        for scope in self._scopes:
            scope.cancel()

    def _room_came(self) -> None:
        if self._room is not None:
            self._room.set()

    async def _take(self) -> Item:
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
                self._source_failed(error)
                if isinstance(error, StopAsyncIteration):
                    raise self._nothing_more() from None
                raise

    async def _prepare(self, item: Item) -> Prepared:
        failures = 0
        while True:
            try:
                examples = await self._call.examples_async(item)
                if isinstance(examples, AsyncGenerator) and not self._streams:
                    async with aclosing(examples):
                        examples = [example async for example in examples]
                return Prepared(item, examples, failures=failures)
            except anyio.get_cancelled_exc_class() as cancellation:
                error: Exception = await _foreign(cancellation)
            except Exception as raised:
                error = raised
            failures += 1
            delay = self._totals.failed(item, error, failures)
            if delay is None:
                return Prepared(item, is_skipped=True)
            await anyio.sleep(delay)

    async def _deliver(self, prepared: Prepared) -> None:
        if self._notes_made and not self._made(prepared):
            return
        if self._order is None:
            await self._put(prepared)
            return
        while (turn := self._next_in_order()) is not None:
            await self._put(turn)

    async def _put(self, prepared: Prepared) -> None:
        try:
            async with aclosing(_each(prepared.examples)) as examples:
                await self._put_each(prepared, examples)
        except BaseException:
            self._totals.entered(prepared.entered)
            raise
        self._left(prepared)

    async def _put_each(self, prepared: Prepared, examples: AsyncGenerator[Any, None]) -> None:
        while True:
            try:
                example = await anext(examples)
            except StopAsyncIteration:
                return
            except anyio.get_cancelled_exc_class() as cancellation:
                error = await _foreign(cancellation)
                self._refused(prepared, error)
                return
            except Exception as error:  # only where examples are enqueued as they are made
                self._refused(prepared, error)
                return
            try:
                await self._enqueue(example)
            except QueueClosedError:
                raise self._nothing_more() from None
            except InvalidArgumentError as error:
                self._refused(prepared, error)
                return
            prepared.entered += 1


async def _foreign(cancellation: BaseException) -> Exception:
    """The failure that a cancellation is, unless it is this task which is cancelled."""
    await anyio.lowlevel.checkpoint_if_cancelled()
    error = RuntimeError("what the function awaited was cancelled")
    error.__cause__ = cancellation
    return error


async def _each(examples: Any) -> AsyncGenerator[Any, None]:
    """Examples that are there, or that an async generator is making, and is closed after."""
    if isinstance(examples, AsyncGenerator):
        async with aclosing(examples):
            async for example in examples:
                yield example
    else:
        for example in examples:
            yield example
