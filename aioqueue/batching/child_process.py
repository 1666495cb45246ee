"""What a process of a batcher does: call the function with the batches that come through a pipe.

The main thread calls it. A second one reads the pipe and does nothing else, so a process whose
program is gone ends at once, whatever the function is doing (see also `aioqueue.processes.start`).

Requests and results are pickled one by one, so that one which cannot be (un)pickled fails alone.
What is large in them lies in the arena: requests in its first half, which the program fills, and
results in its second half, which this process fills. One batch at a time is under way, so who has
the next message knows that the other side has read all of the last one.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, NamedTuple

from aioqueue.batching.function_calls import call, failure_of
from aioqueue.errors import add_note
from aioqueue.processes.arena import Allocator, Arena, Block, pack, unpack
from aioqueue.processes.channels import Channel
from aioqueue.processes.remote_failures import message_of_failure
from aioqueue.processes.start import PARENT_GONE

__all__ = ("Outcome", "ProcessReply", "Sent", "requests_half", "results_half", "work")

Sent = tuple[bytes, list[Block]]
"""A request on its way: itself, and where its large parts lie."""

Outcome = tuple[bytes, list[Block], bool]
"""What has become of one request: its result or its failure, where the large parts of the result
lie, and whether it has failed. The callers of a batch that has failed share one message."""


class ProcessReply(NamedTuple):
    """What a process sends: the first one, without outcomes, when it is ready."""

    outcomes: list[Outcome]
    refusal: bytes | None = None
    """Why it cannot work."""


def requests_half(arena: Arena) -> Allocator:
    """Who keeps book of the places for requests: the program."""
    return Allocator(arena.size // 2)


def results_half(arena: Arena) -> Allocator:
    """Who keeps book of the places for results: the process."""
    return Allocator(arena.size, arena.size // 2)


def work(channel: Channel, arena: Arena) -> None:
    """The main function of a process."""
    arena.begin()
    inbox: SimpleQueue[bytes | bytearray] = SimpleQueue()
    threading.Thread(target=_read, args=(channel, inbox), daemon=True).start()
    try:
        function = pickle.loads(inbox.get())
    except Exception as error:
        _send(channel, ProcessReply([], message_of_failure(error)))
        return
    _send(channel, ProcessReply([]))
    desk = _Desk(function, arena)
    while message := inbox.get():
        _send(channel, ProcessReply(desk.outcomes(message)))
        del message  # nothing is kept of what is answered


def _read(channel: Channel, inbox: SimpleQueue[bytes | bytearray]) -> None:
    """Read what the program sends, until the empty message that ends the work."""
    message: bytes | bytearray = b"start"
    while message:
        try:
            message = channel.receive()
        except (EOFError, OSError):
            os._exit(PARENT_GONE)
        inbox.put(message)


def _send(channel: Channel, reply: ProcessReply) -> None:
    """Send a reply; without a program there is nothing left to do."""
    try:
        channel.send(pickle.dumps(reply, 5))
    except OSError:
        os._exit(PARENT_GONE)


class _Desk:
    """Where batches are worked on."""

    def __init__(self, function: Callable[..., Any], arena: Arena) -> None:
        self._function = function
        self._arena = arena
        self._allocator = results_half(arena)
        self._taken: list[int] = []  # by the results of the last batch

    def outcomes(self, message: bytes | bytearray) -> list[Outcome]:
        """What becomes of the requests of a batch."""
        number: int
        sent: list[Sent]
        number, sent = pickle.loads(message)
        self._arena.item = number  # from now on it is this batch that we die of
        self._allocator.give_back(self._taken)
        values = [self._unpacked(request) for request in sent]
        answers = iter(self._called([value for value, has_failed in values if not has_failed]))
        made = [value if has_failed else next(answers) for value, has_failed in values]
        outcomes = self._packed(made)
        self._taken = [start for _, blocks, _ in outcomes for start, _ in blocks]
        return outcomes

    def _unpacked(self, request: Sent) -> tuple[Any, bool]:
        """The value of a request, or the failure to unpickle it, and whether it has failed."""
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
        except BaseException as error:  # ending the process is not a function's business
            return [failure_of(self._function, error)] * n

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
        if id(made) not in failures:
            failures[id(made)] = message_of_failure(made)
        return failures[id(made)], [], True
