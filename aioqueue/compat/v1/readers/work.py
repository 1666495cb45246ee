"""What is behind a reader's ops in a session: the work in progress and what has been counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import numpy as np

import aioqueue
from aioqueue import sync
from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core.kernels import WOULD_WAIT
from aioqueue.compat.v1.protos.messages import message_classes
from aioqueue.compat.v1.queues.resources import QueueResource
from aioqueue.compat.v1.readers.formats import Opener, Record

__all__ = ("ReaderResource",)

T = TypeVar("T")


class ReaderResource:
    """A reader in a session, or on a server.

    One caller at a time uses the reader. While that caller is blocked on the queue, all others wait
    for it.

    Args:
        kind: the class of the reader, for messages.
        name: what messages call it.
        open_work: starts on an item of work.
        ends_at_once: whether an item of work has one record, and is completed with it; otherwise
            it is completed when a read finds no more records in it.
    """

    def __init__(self, kind: str, name: str, open_work: Opener, *, ends_at_once: bool) -> None:
        self.kind = kind
        self.name = name
        self._open_work = open_work
        self._ends_at_once = ends_at_once
        # A lock whose waiters can be cancelled, as those of a queue can: the token in this queue.
        self._turn = sync.FIFOQueue(1)
        self._turn.enqueue(None)
        self._closed = False
        self._records: Iterator[Record] | None = None
        self._forget()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind} '{self.name}'>"

    def use(self, action: Callable[[], T]) -> T:
        """Have it alone for a call, waiting for others."""
        self._turn.dequeue()
        return self._used(action)

    def try_use(self, action: Callable[[], Any]) -> Any:
        """Have it alone for a call; `WOULD_WAIT` if somebody else has it."""
        try:
            self._turn.dequeue_nowait()
        except aioqueue.QueueEmpty:
            return WOULD_WAIT
        return self._used(action)

    def _used(self, action: Callable[[], T]) -> T:
        try:
            return action()
        finally:
            self._turn.enqueue_nowait(None)
            if self._closed:
                self.close()

    def read(self, queue: QueueResource, take: Callable[[], Any]) -> Any:
        """One record, from the next items of work if need be.

        Args:
            queue: where items of work come from.
            take: takes one from it, or returns `WOULD_WAIT`.
        """
        found = self._read(queue, take, 1)
        return found if found is WOULD_WAIT else found[0]

    def read_up_to(self, queue: QueueResource, take: Callable[[], Any], count: int) -> Any:
        """Some records of one item of work, as arrays of keys and of values.

        Args:
            queue: where items of work come from.
            take: takes one from it, or returns `WOULD_WAIT`.
            count: how many at most.
        """
        if count < 0:
            raise _invalid(f"num_records: got {count}; expected an int >= 0")
        found = self._read(queue, take, count) if count else []
        if found is WOULD_WAIT:
            return found
        arrays = np.empty((2, len(found)), object)
        for at, record in enumerate(found):
            arrays[:, at] = record
        return arrays[0], arrays[1]

    def _read(self, queue: QueueResource, take: Callable[[], Any], count: int) -> Any:
        while True:
            # A restored state may say that more work has ended than begun. TensorFlow trusts it, so
            # `>=`, not `==`.
            if self._records is None or self._finished >= self._started:
                try:
                    item = take()
                except errors.OpError:
                    self._work = b""  # there is no current work, as its state is to say
                    raise
                if item is WOULD_WAIT:
                    return WOULD_WAIT
                self._begin(_checked_work(queue, item))
            assert self._records is not None
            found, is_over = _some(self._records, count)
            if is_over or self._ends_at_once:
                self._finish()
            if found:
                self._produced += len(found)
                return found

    def _begin(self, work: bytes) -> None:
        self._drop()
        self._records = self._open_work(work)
        self._work = work
        self._started += 1

    def _finish(self) -> None:
        self._finished = self._started  # which a restored state may have said less of
        self._drop()

    def _drop(self) -> None:
        records, self._records = self._records, None
        close = getattr(records, "close", None)
        if close is not None:
            close()

    def reset(self) -> None:
        """Be as new; the work in progress is forgotten."""
        self._drop()
        self._forget()

    def _forget(self) -> None:
        self._started = self._finished = self._produced = 0
        self._work = b""

    def close(self) -> None:
        """Close the file in progress, now or when its user is done: the session has ended."""
        self._closed = True
        if self._records is not None:
            self.try_use(self._drop)

    def produced(self) -> Any:
        """How many records it has produced."""
        return np.int64(self._produced)

    def completed(self) -> Any:
        """How many items of work it has noticed the end of."""
        return np.int64(self._finished)

    def serialize(self) -> bytes:
        """Its state, as TensorFlow's ``ReaderBaseState`` message."""
        state = _state_class()(
            work_started=self._started,
            work_finished=self._finished,
            num_records_produced=self._produced,
            current_work=self._work,
        )
        data: bytes = state.SerializeToString()
        return data

    def restore(self, data: bytes) -> None:
        """Be in a state that was serialized; if there is something wrong with it, as new.

        Raises:
            InvalidArgumentError: it is no such state, or not one between two items of work.
        """
        self.reset()
        state = _state_class()()
        try:
            state.ParseFromString(data)
        except Exception as error:  # DecodeError; its place differs between versions of protobuf
            text = data.decode(errors="backslashreplace")
            message = f"Could not parse state for {self.kind} '{self.name}': {text}"
            raise _invalid(message) from error
        numbers = state.work_started, state.work_finished, state.num_records_produced
        if min(numbers) < 0:
            raise _invalid(
                f"Unexpected negative value when restoring in {self.kind} '{self.name}': {state}"
            )
        if state.work_started > state.work_finished:
            raise _invalid(
                "Inconsistent work started vs. finished when restoring in"
                f" {self.kind} '{self.name}': {state}"
            )
        self._started, self._finished, self._produced = numbers
        self._work = state.current_work


def _some(records: Iterator[Record], count: int) -> tuple[list[Record], bool]:
    """Some records, and whether there are no more.

    A failure after the first of them is left for the next time.
    """
    found: list[Record] = []
    try:
        for record in islice(records, count):
            found.append(record)  # noqa: PERF402  # those before a failure must stay
    except errors.OpError:
        if not found:
            raise
        return found, False
    return found, len(found) < count


def _checked_work(queue: QueueResource, item: Any) -> bytes:
    """The string in an element of the queue, which has been taken out of it."""
    types = queue.plan.types
    if len(types) != 1:
        raise _invalid("Expected single component queue")
    if types[0].name != "string":
        raise _invalid("Expected queue with single string component")
    if isinstance(item, np.ndarray):
        if item.size != 1:
            raise _invalid("Expected to dequeue a one-element string tensor")
        item = item.item()
    work: bytes = item
    return work


def _invalid(message: str) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(None, None, message)


@cache
def _state_class() -> Any:
    fields = {
        "work_started": "int64",
        "work_finished": "int64",
        "num_records_produced": "int64",
        "current_work": "bytes",
    }
    schema = {"ReaderBaseState": fields}
    return message_classes("tensorflow/core/framework/reader_base.proto", schema)["ReaderBaseState"]
