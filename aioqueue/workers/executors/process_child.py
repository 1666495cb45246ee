"""What runs in a worker process of `prepare`: it prepares items, and sends their examples.

Several outcomes go into one message. They are held until it is worth sending, or until the item
that is being prepared takes long: a thread of its own then sends them. (Actors on Ray prepare items
in the same way, but send them in another: `ray_actor`.)
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter, thread_time
from typing import Any, Final, NamedTuple

from aioqueue.errors import add_note, describe_exception
from aioqueue.items.item import Item
from aioqueue.processes.arena import NO_ITEM, Allocator, Arena, Block, pack
from aioqueue.processes.channel import Channel
from aioqueue.processes.child import read_messages, reply, unpickled_function
from aioqueue.processes.failures import message_of_failure
from aioqueue.workers.calls import ItemCall

_MOST_BYTES: Final = 1024 * 1024
"""The bytes of examples that a worker may hold before it sends them."""

_MOST_SECONDS: Final = 0.025
"""How long a worker may hold examples after the parent's last message: usually longer than it takes
until the next message."""

_QUICK: Final = 1e-4
"""Below this many seconds per call, processor time is measured only for one call in `_SOME`."""

_SOME: Final = 16

Sent = tuple[int, int, int, bytes]
"""An item on its way to a worker: number, epoch, index, and its value. The value is pickled by
itself, so that an item that cannot be unpickled fails alone."""

Outcome = tuple[int, bytes, list[Block], bool]
"""The outcome of one item: its number, its examples or its failure, where the large parts of the
examples are, and whether it has failed. (Plain tuples are the fastest to send.)"""


class WorkerReport(NamedTuple):
    """A reply with the outcomes of some items."""

    outcomes: list[Outcome]
    seconds: float
    """The seconds of their preparation."""
    cpu: float = 0.0
    """The processor seconds of the calls that were measured."""
    cpu_sampled: float = 0.0
    """The seconds that these calls took."""


def work(channel: Channel, arena: Arena) -> None:
    arena.begin()
    outbox = _Outbox(channel, arena)
    messages = read_messages(partial(_receive, channel, outbox))
    call: ItemCall | None = unpickled_function(channel, messages)
    if call is None:
        return
    latest = _QUICK  # the seconds of the latest call
    while message := messages.get():
        freed: list[int]
        chunk: list[Sent]
        freed, chunk = pickle.loads(message)
        outbox.allocator.free(freed)
        for sent in chunk:
            number = sent[0]
            # It stays the suspect until the next item begins: what the function leaves behind may
            # kill the process only after its return.
            arena.begin_item(number)
            is_sampled = latest >= _QUICK or number % _SOME == 0
            cpu = thread_time() if is_sampled else 0.0
            began = perf_counter()
            made, has_failed = prepared(call, sent)
            latest = perf_counter() - began
            outbox.add(
                number, made, has_failed, latest, thread_time() - cpu if is_sampled else None
            )
        outbox.flush()
        # After the flush: until the parent has the outcome, a death is that of the last item.
        arena.item = NO_ITEM


def _receive(channel: Channel, outbox: _Outbox) -> bytes | bytearray:
    """Wait for the parent's next message. If that takes long, have held outcomes sent."""
    if not channel.comes_within(_MOST_SECONDS):
        # The parent may have nothing to send before it gets these outcomes.
        outbox.schedule_send()
    message = channel.receive()
    outbox.hold()
    return message


def prepared(
    call: ItemCall, sent: Sent, loads: Callable[[bytes], Any] = pickle.loads
) -> tuple[Any, bool]:
    """Return the examples of a received item, or its failure, and whether it has failed.

    Args:
        call: calls the function.
        sent: the item.
        loads: unpickles its value.
    """
    number, epoch, index, value = sent
    try:
        return tuple(call.examples(Item(number, loads(value), epoch, index))), False
    except Exception as error:
        return error, True
    except BaseException as error:  # a function must not end the process
        wrapped = RuntimeError(f"the function raised {describe_exception(error)}")
        wrapped.__cause__ = error
        return wrapped, True


class _Outbox:
    """Collects outcomes, to send several to the parent at once."""

    def __init__(self, channel: Channel, arena: Arena) -> None:
        self.allocator = Allocator(arena.size)
        self._may_hold = True
        self._is_late = threading.Event()
        self._channel = channel
        self._arena = arena
        self._lock = threading.Lock()  # guards all below, and sending
        self._outcomes: list[Outcome] = []
        self._bytes = 0
        self._seconds = self._cpu = self._cpu_sampled = 0.0
        threading.Thread(target=self._send_late, daemon=True).start()

    def add(
        self, number: int, made: Any, has_failed: bool, seconds: float, cpu: float | None
    ) -> None:
        """Add an item's outcome, the seconds of its preparation, and its processor seconds."""
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
        with self._lock:
            if self._outcomes:
                self._flush()

    def hold(self) -> None:
        self._may_hold = True

    def schedule_send(self) -> None:
        """Have held outcomes sent, and from now on each as it arrives. Does not wait.

        The reading thread calls it. Sending may wait for the parent, and reading must not.
        """
        self._may_hold = False
        self._is_late.set()

    def _send_late(self) -> None:
        while self._is_late.wait():
            self._is_late.clear()
            self.flush()

    def _flush(self) -> None:
        reply(
            self._channel,
            WorkerReport(self._outcomes, self._seconds, self._cpu, self._cpu_sampled),
        )
        self._outcomes = []
        self._bytes = 0
        self._seconds = self._cpu = self._cpu_sampled = 0.0
