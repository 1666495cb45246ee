"""What a worker process does: prepare the items that come through a pipe, and send examples back.

The main thread prepares. A second one reads the pipe and never waits for anything else: so the
parent need not wait for a worker that is busy, nor the two for each other; and when the parent is
gone, even killed, the worker ends at once, whatever it is doing. (For a call that holds the GIL,
and for signals, see `start`.) Examples are held until several can go in one message; a third
thread sends them when the next one takes long.
"""

from __future__ import annotations

import os
import pickle
import threading
from queue import SimpleQueue
from time import perf_counter, thread_time
from typing import Any, Final, NamedTuple

from aioqueue.coordination.classify import add_note, describe_exception
from aioqueue.inputs.core.items import Item
from aioqueue.inputs.prepare.call import ItemCall
from aioqueue.processes.arena import NONE, Allocator, Arena, Block, pack
from aioqueue.processes.channels import Channel
from aioqueue.processes.remote_failures import message_of_failure
from aioqueue.processes.start import PARENT_GONE

__all__ = ("Outcome", "Sent", "WorkerReport", "work")

_MOST_BYTES: Final = 1024 * 1024
"""Examples that a worker may hold before it sends them."""

_MOST_SECONDS: Final = 0.025
"""How long after the last message from the parent a worker may hold examples: longer than it takes,
as a rule, until the next one comes."""

_QUICK: Final = 1e-4
"""Seconds of a call below which the processor time of one in `_SOME` is measured."""

_SOME: Final = 16

Sent = tuple[int, int, int, bytes]
"""An item on its way to a worker: number, epoch, index, and its value pickled by itself, so that
one which cannot be unpickled fails alone."""

Outcome = tuple[int, bytes, list[Block], bool]
"""What has become of one item: its number, its examples or its failure, where the large parts of
the examples lie, and whether it has failed. (Plain tuples, which cost least on the way.)"""


class WorkerReport(NamedTuple):
    """What a worker sends: the first one, without outcomes, when it is ready."""

    outcomes: list[Outcome]
    seconds: float
    """How long their preparation has taken."""
    refusal: bytes | None = None
    """Why it cannot work."""
    cpu: float = 0.0
    """Processor seconds of those calls of which that was measured,"""
    cpu_sampled: float = 0.0
    """and how long these have taken."""


def work(channel: Channel, arena: Arena) -> None:
    """The main function of a worker process."""
    arena.begin()
    inbox: SimpleQueue[bytes | bytearray] = SimpleQueue()
    outbox = _Outbox(channel, arena)
    threading.Thread(target=_read, args=(channel, inbox, outbox), daemon=True).start()
    try:
        call: ItemCall = pickle.loads(inbox.get())
    except Exception as error:
        outbox.send(WorkerReport([], 0.0, message_of_failure(error)))
        return
    outbox.send(WorkerReport([], 0.0))
    latest = _QUICK  # seconds of the latest call
    while chunk := inbox.get():
        freed: list[int]
        sent: list[Sent]
        freed, sent = pickle.loads(chunk)
        outbox.allocator.give_back(freed)
        for number, epoch, index, value in sent:
            arena.take(number)  # until the next one begins: it may have left something behind
            is_sampled = latest >= _QUICK or number % _SOME == 0
            cpu = thread_time() if is_sampled else 0.0
            began = perf_counter()
            made, has_failed = _prepared(call, Item(number, value, epoch, index))
            latest = perf_counter() - began
            outbox.add(
                number, made, has_failed, latest, thread_time() - cpu if is_sampled else None
            )
        outbox.flush()
        arena.item = NONE


def _read(channel: Channel, inbox: SimpleQueue[bytes | bytearray], outbox: _Outbox) -> None:
    """Read what the parent sends, until the empty message that ends the work."""
    message: bytes | bytearray = b"start"
    while message:
        try:
            if not channel.comes_within(_MOST_SECONDS):
                outbox.let_go()
            message = channel.receive()
        except (EOFError, OSError):
            os._exit(PARENT_GONE)
        outbox.hold()
        inbox.put(message)


def _prepared(call: ItemCall, item: Item) -> tuple[Any, bool]:
    """The examples of an item as it was sent, or its failure, and whether it has failed."""
    try:
        number, value, epoch, index = item
        return tuple(call.examples(Item(number, pickle.loads(value), epoch, index))), False
    except Exception as error:
        return error, True
    except BaseException as error:  # ending the process is not a function's business
        wrapped = RuntimeError(f"the function raised {describe_exception(error)}")
        wrapped.__cause__ = error
        return wrapped, True


class _Outbox:
    """Outcomes on their way to the parent, several at a time."""

    def __init__(self, channel: Channel, arena: Arena) -> None:
        self.allocator = Allocator(arena.size)
        self._may_hold = True
        self._is_late = threading.Event()
        self._channel = channel
        self._arena = arena
        self._lock = threading.Lock()  # guards all below, and the sending
        self._outcomes: list[Outcome] = []
        self._bytes = 0
        self._seconds = self._cpu = self._cpu_sampled = 0.0
        threading.Thread(target=self._send_late, daemon=True).start()

    def add(
        self, number: int, made: Any, has_failed: bool, seconds: float, cpu: float | None
    ) -> None:
        """Add what has become of an item, and how long that took; of it, on a processor."""
        blocks: list[Block] = []
        if not has_failed:
            try:
                message, blocks = pack(made, self._arena, self.allocator)
            except Exception as error:
                add_note(error, "while pickling what the function returned")
                made, has_failed = error, True
        if has_failed:
            message = message_of_failure(made)
        with self._lock:
            self._outcomes.append((number, message, blocks, has_failed))
            self._bytes += len(message) + sum(size for _, size in blocks)
            self._seconds += seconds
            if cpu is not None:
                self._cpu += cpu
                self._cpu_sampled += seconds
            if self._bytes >= _MOST_BYTES or not self._may_hold:
                self._flush()

    def flush(self) -> None:
        """Send what there is."""
        with self._lock:
            if self._outcomes:
                self._flush()

    def hold(self) -> None:
        """Hold outcomes from now on."""
        self._may_hold = True

    def let_go(self) -> None:
        """Have what there is sent, and from now on each outcome as it comes. Does not wait."""
        self._may_hold = False
        self._is_late.set()

    def _send_late(self) -> None:
        while self._is_late.wait():
            self._is_late.clear()
            self.flush()

    def send(self, report: WorkerReport) -> None:
        """Send a report; without a parent there is nothing left to do."""
        try:
            self._channel.send(pickle.dumps(report, 5))
        except OSError:
            os._exit(PARENT_GONE)

    def _flush(self) -> None:
        self.send(WorkerReport(self._outcomes, self._seconds, None, self._cpu, self._cpu_sampled))
        self._outcomes = []
        self._bytes = 0
        self._seconds = self._cpu = self._cpu_sampled = 0.0
