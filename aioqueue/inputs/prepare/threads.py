"""Preparing in threads: the workers take items, have them prepared, and enqueue the examples.

An enqueue op here is the whole life of one worker, and it always ends by an exception: by
`OutOfRangeError` when there is nothing more to do, whatever the reason, and else by the failure
that ends the pipeline. What an exception means that has come out of the function, the source or
the queue is decided in `aioqueue.coordination.outcomes`: the end of the source is an end, a stop
and the cancellation of a worker are a stop, and all else is the failure of an item or the source.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from aioqueue import CancelledError, sync
from aioqueue.coordination.outcomes import Meaning, meaning_of
from aioqueue.inputs.prepare.call import Call
from aioqueue.inputs.prepare.feed import failure_of_clean_up
from aioqueue.inputs.prepare.job import EnqueueOp, Prepared, Workers
from aioqueue.inputs.sources.item import Item
from aioqueue.locks import guarded

__all__ = ("ThreadWorkers",)


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
        self._crossing = self._feed.async_reader(self._count) if self._feed.is_async_only else None
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
                self._wait_for_room()
                if self._source_ended:
                    raise self._nothing_more()
                self._window.enter()
            try:
                return next(self._items)
            except BaseException as error:
                raise self._source_raised(error)  # noqa: B904  # the cause is the user's affair

    def _wait_for_room(self) -> None:
        """Wait until one more item may come in, or none will. Called under the lock."""
        while not (self._source_ended or self._window.has_room()):
            self._is_awaited = True
            self._room.wait()
        self._is_awaited = False

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
            delay = self._progress.failed(item, error, failures)
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
            self._progress.entered(prepared.entered)
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
