"""The order in which a replayable producer makes its batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioqueue.errors import InvalidArgumentError
from aioqueue.ray.messages import Answer
from aioqueue.ray.queue_calls import QueueCalls
from aioqueue.ray.queue_connection import CallFlow


class ReplayFiller:
    """One run of a replayable producer; see `RayQueue.fill`.

    Args:
        calls: the calls to the actor.
        make_batch: returns the batch of a number.
        producer: name of the producer.

    Raises:
        InvalidArgumentError: an argument is not as described.
    """

    def __init__(self, calls: QueueCalls, make_batch: Callable[[int], Any], producer: str) -> None:
        if not callable(make_batch):
            raise InvalidArgumentError(
                f"make_batch: got {make_batch!r}; expected a function that returns the batch"
                " of a number"
            )
        if not isinstance(producer, str) or not producer:
            raise InvalidArgumentError(
                f"producer: got {producer!r}; expected a string, not an empty one"
            )
        self._calls = calls
        self._producer = producer
        self._next: int | None = None  # the first batch that is not in
        self._requested: list[int] = []  # batches to make again
        self._is_ended = False

    def due(self) -> CallFlow[int | None]:
        """Return the number of the next batch to make; ``None`` when the actor has all batches."""
        actor, caller = self._calls.client.actor, self._calls.client.caller
        if self._next is None:
            yield from self._calls.agree()
            started = yield from self._request(
                lambda: actor.begin_filling.remote(caller, self._producer)
            )
            self._next, self._requested = started.rows, list(started.requested)
        if self._is_ended and not self._requested:
            ended = yield from self._request(
                lambda: actor.end_filling.remote(caller, self._producer)
            )
            self._requested = list(ended.requested)
        if self._requested:
            return self._requested[0]
        return None if self._is_ended else self._next

    def _request(self, ask: Callable[[], Any]) -> CallFlow[Answer]:
        client = self._calls.client
        answer: Answer = yield from client.request(ask)
        client.raise_error(answer)
        return answer

    def put(self, number: int, batch: Any) -> CallFlow[None]:
        """Enqueue the result of ``make_batch``; ``None`` ends the fill."""
        if batch is None:
            if number != self._next:
                raise InvalidArgumentError(
                    f"make_batch: got None for batch {number}, which it had made before; expected"
                    " the same batch"
                )
            self._is_ended = True
            return
        columns, n = self._calls.columns_of_batch(batch)
        if not n:
            raise InvalidArgumentError(
                f"make_batch: got no rows for batch {number}; expected some, or None after the last"
                " batch"
            )
        answer = yield from self._calls.put(columns, n, (self._producer, number))
        if number == self._next and answer.rows == n:
            self._next += 1
        self._requested = list(answer.requested)
