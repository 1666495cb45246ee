"""What a worker process does: prepare the items that come through a pipe, and send examples back.

The main thread prepares. Another one reads the pipe, for two reasons: the parent never has to wait
for a worker that is busy, so that the two cannot wait for each other; and when the parent is gone,
even killed, the worker ends at once, whatever it is doing.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Final, NamedTuple

from aioqueue.inputs.calls import Call, Item
from aioqueue.inputs.shared_memory import Allocator, Arena, Block, pack

__all__ = ("Outcome", "RemoteTraceback", "Report", "failure_of_message", "work")

_MOST_BYTES: Final = 1024 * 1024
"""Examples that a worker may hold before it sends them."""

_MOST_SECONDS: Final = 0.01
"""How long a worker may hold an example before it sends it."""

_PARENT_GONE: Final = 70


class Outcome(NamedTuple):
    """What has become of one item."""

    number: int
    message: bytes
    """Its examples, or its failure."""
    blocks: list[Block]
    has_failed: bool


class Report(NamedTuple):
    """What a worker sends: the first one, without outcomes, when it is ready."""

    outcomes: list[Outcome]
    seconds: float
    """How long their preparation has taken."""
    refusal: bytes | None = None
    """Why it cannot work."""


class RemoteTraceback(Exception):  # noqa: N818  # it is no failure of its own
    """Stands as the cause of a failure that happened in a worker process, to show where."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'in a worker process:\n"""\n{self.text}"""'


def work(connection: Connection, arena: Arena) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), daemon=True).start()
    outbox = _Outbox(connection, arena)
    try:
        call: Call = pickle.loads(inbox.get())
    except Exception as error:
        outbox.refuse(error)
        return
    outbox.begin()
    outbox.send()
    while chunk := inbox.get():
        outbox.begin()
        freed, tasks = pickle.loads(chunk)
        outbox.allocator.give_back(freed)
        for item, value in tasks:
            arena.item = item.number
            outbox.add(item.number, *_prepared(call, item, value))
            arena.item = -1
        outbox.send()


def _read(connection: Connection, inbox: SimpleQueue[bytes]) -> None:
    """Read what the parent sends, until the empty message that ends the work."""
    message = b"start"
    while message:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(_PARENT_GONE)
        inbox.put(message)


def _prepared(call: Call, item: Item, value: bytes) -> tuple[Any, bool]:
    """The examples of an item, or its failure, and whether it has failed."""
    try:
        item = item._replace(value=pickle.loads(value))
        return tuple(call.examples(item)), False
    except Exception as error:
        return error, True
    except BaseException as error:  # ending the process is not a function's business
        wrapped = RuntimeError(f"the function raised {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        return wrapped, True


class _Outbox:
    """Outcomes on their way to the parent, several at a time."""

    def __init__(self, connection: Connection, arena: Arena) -> None:
        self.allocator = Allocator(arena.size)
        self._connection = connection
        self._arena = arena
        self._outcomes: list[Outcome] = []
        self._bytes = 0
        self._since = 0.0

    def begin(self) -> None:
        """Work begins now, or goes on."""
        self._since = perf_counter()

    def add(self, number: int, made: Any, has_failed: bool) -> None:
        blocks: list[Block] = []
        if not has_failed:
            try:
                message, blocks = pack(made, self._arena, self.allocator)
            except Exception as error:
                error.add_note("while pickling what the function returned")
                made, has_failed = error, True
        if has_failed:
            message = _message_of_failure(made)
        self._outcomes.append(Outcome(number, message, blocks, has_failed))
        self._bytes += len(message) + sum(size for _, size in blocks)
        if self._bytes >= _MOST_BYTES or perf_counter() - self._since >= _MOST_SECONDS:
            self.send()

    def send(self) -> None:
        now = perf_counter()
        self._connection.send_bytes(pickle.dumps(Report(self._outcomes, now - self._since), 5))
        self._outcomes = []
        self._bytes = 0
        self.begin()

    def refuse(self, error: Exception) -> None:
        self._connection.send_bytes(pickle.dumps(Report([], 0.0, _message_of_failure(error)), 5))


def _message_of_failure(error: Exception) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # many exceptions can be pickled, and not be unpickled
    except Exception:
        pickled = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return pickle.dumps((pickled, text))


def failure_of_message(message: bytes) -> Exception:
    """The failure that a worker has reported, with its traceback there as the cause."""
    pickled, text = pickle.loads(message)
    try:
        error = pickle.loads(pickled)
    except Exception as unpickling:  # its class exists only there
        error = RuntimeError(f"a failure that cannot be unpickled here: {unpickling}")
    error.__cause__ = RemoteTraceback(text)
    return error  # type: ignore[no-any-return]
