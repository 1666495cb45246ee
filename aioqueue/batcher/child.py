"""What runs in a child process of a batcher: it calls the function with the batches that arrive.

Requests and results are pickled one by one, so one that cannot be pickled or unpickled fails alone.
Their large parts are in the arena: the parent fills the first half with requests, this process the
second half with results. Only one batch is in flight at a time. So a side that receives a message
knows that the other side has read all of the last one, and reuses its half.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

from aioqueue.batcher.function_calls import FailedBatch, call, failure_of
from aioqueue.errors import add_note
from aioqueue.processes.arena import Allocator, Arena, Block, pack, unpack
from aioqueue.processes.channel import Channel
from aioqueue.processes.child import read_messages, reply, unpickled_function
from aioqueue.processes.failures import message_of_failure

Sent = tuple[bytes, list[Block]]
"""A request in transit: its pickle, and where its large parts are."""

Outcome = tuple[bytes, list[Block], bool]
"""The outcome of one request: the pickled result or failure, where the large parts of the result
are, and whether it is a failure. All callers of a batch that has failed share one pickle."""

Reply = tuple[list[Outcome], bool]
"""The outcomes of a batch, and whether it is a `FailedBatch`."""


def requests_half(arena: Arena) -> Allocator:
    """Return the allocator of the half for requests. The parent uses it."""
    return Allocator(arena.size // 2)


def results_half(arena: Arena) -> Allocator:
    """Return the allocator of the half for results. The child uses it."""
    return Allocator(arena.size, arena.size // 2)


def work(channel: Channel, arena: Arena) -> None:
    arena.begin()
    messages = read_messages(channel.receive)
    function = unpickled_function(channel, messages)
    if function is None:
        return
    server = _BatchServer(function, arena)
    while message := messages.get():
        reply(channel, server.answer(message))
        del message  # keep nothing of an answered batch while waiting for the next


class _BatchServer:
    """Processes batches: unpickles requests, calls the function, pickles results."""

    def __init__(self, function: Callable[..., Any], arena: Arena) -> None:
        self._function = function
        self._arena = arena
        self._allocator = results_half(arena)
        self._taken: list[int] = []  # places in the arena that hold the results of the last batch

    def answer(self, message: bytes | bytearray) -> Reply:
        number: int
        sent: list[Sent]
        number, sent = pickle.loads(message)
        # Before a request is unpickled, which may run code of the user: if the process dies from
        # now on, this batch is the cause, and no other process may get it.
        self._arena.item = number
        self._allocator.free(self._taken)
        values = [self._unpacked(request) for request in sent]
        results = self._called([value for value, has_failed in values if not has_failed])
        answers = iter(results)
        made = [value if has_failed else next(answers) for value, has_failed in values]
        outcomes = self._packed(made)
        self._taken = [start for _, blocks, _ in outcomes for start, _ in blocks]
        return outcomes, isinstance(results, FailedBatch)

    def _unpacked(self, request: Sent) -> tuple[Any, bool]:
        """Return the value of a request, or the failure to unpickle it; and whether it failed."""
        message, blocks = request
        try:
            (value,) = unpack(message, blocks, self._arena, bytearray)
            return value, False
        except Exception as error:
            add_note(error, "while unpickling the request in a worker process")
            return failure_of(self._function, error), True

    def _called(self, values: list[Any]) -> list[Any]:
        n = len(values)
        if not n:
            return []
        try:
            return call(self._function, values)
        except BaseException as error:  # even `SystemExit`: a function must not end the process
            return FailedBatch([failure_of(self._function, error)] * n)

    def _packed(self, made: Iterable[Any]) -> list[Outcome]:
        failures: dict[int, bytes] = {}
        return [self._outcome(one, failures) for one in made]

    def _outcome(self, made: Any, failures: dict[int, bytes]) -> Outcome:
        if not isinstance(made, Exception):
            try:
                return *pack((made,), self._arena, self._allocator), False
            except Exception as error:
                add_note(error, "while pickling what the function returned")
                made = failure_of(self._function, error)
                return message_of_failure(made), [], True
        # Callers that share a failure share its pickle, by which the parent knows it again.
        if id(made) not in failures:
            failures[id(made)] = message_of_failure(made)
        return failures[id(made)], [], True
