"""Worker processes: what runs in one, and which items each of them has.

The code of a worker process prepares the items that arrive through a pipe, and sends examples.

The main thread prepares. A second thread reads the pipe and never waits for anything else. So the
parent need not wait for a busy worker, and they cannot wait for each other. When the parent is
gone, even killed, the worker ends at once, whatever it is doing. (`start` handles calls that hold
the GIL, and signals.) Examples are held until several fit into one message. A third thread sends
them if the next one takes long.

The parent decides which items each process gets, how many to send it, and what its death means for
them. That code neither talks to a process nor waits, so you can test it without processes.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from time import perf_counter, thread_time
from typing import Any, Final, NamedTuple

from aioqueue import ItemTimeoutError
from aioqueue.errors import add_note, describe_exception
from aioqueue.inputs.core.items import Item
from aioqueue.inputs.prepare.calls_and_retries import ItemCall
from aioqueue.inputs.prepare.flow_control import Pending
from aioqueue.processes.arena import NONE, Allocator, Arena, Block, pack
from aioqueue.processes.channel import Channel
from aioqueue.processes.failures import message_of_failure
from aioqueue.processes.fork_server.bootstrap import (
    PARENT_GONE,
)

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
    """A message of a worker. The first one, without outcomes, says that it is ready."""

    outcomes: list[Outcome]
    seconds: float
    """The seconds of their preparation."""
    refusal: bytes | None = None
    """Why the worker cannot work."""
    cpu: float = 0.0
    """The processor seconds of the calls that were measured."""
    cpu_sampled: float = 0.0
    """The seconds that these calls took."""


def work(channel: Channel, arena: Arena) -> None:
    """Run a worker process."""
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
    latest = _QUICK  # the seconds of the latest call
    while chunk := inbox.get():
        freed: list[int]
        sent: list[Sent]
        freed, sent = pickle.loads(chunk)
        outbox.allocator.give_back(freed)
        for number, epoch, index, value in sent:
            arena.take(number)  # kept until the next item begins, for what the function left behind
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
    """Read the parent's messages, until the empty message that ends the work."""
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
    """Return the examples of a received item, or its failure, and whether it has failed."""
    try:
        number, value, epoch, index = item
        return tuple(call.examples(Item(number, pickle.loads(value), epoch, index))), False
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
        """Send what is held."""
        with self._lock:
            if self._outcomes:
                self._flush()

    def hold(self) -> None:
        """Hold outcomes from now on."""
        self._may_hold = True

    def let_go(self) -> None:
        """Have held outcomes sent, and from now on each as it arrives. Does not wait."""
        self._may_hold = False
        self._is_late.set()

    def _send_late(self) -> None:
        while self._is_late.wait():
            self._is_late.clear()
            self.flush()

    def send(self, report: WorkerReport) -> None:
        """Send a report. If the parent is gone, end the process."""
        try:
            self._channel.send(pickle.dumps(report, 5))
        except OSError:
            os._exit(PARENT_GONE)

    def _flush(self) -> None:
        self.send(WorkerReport(self._outcomes, self._seconds, None, self._cpu, self._cpu_sampled))
        self._outcomes = []
        self._bytes = 0
        self._seconds = self._cpu = self._cpu_sampled = 0.0


MOST_DEATHS: Final = 3
"""The number of processes that may die of one item."""

_MOST_ITEMS: Final = 64
_CHUNK_SECONDS: Final = 0.01
"""The seconds of work that a chunk should take."""

_WEIGHT: Final = 0.2
"""The weight of the latest report in the estimated seconds per item."""

_LONG: Final = 0.02
"""If items take longer than this many seconds, none are sent ahead."""


class SendPace:
    """Estimates the seconds per item from processes' reports, and so how many to send at a time.

    Args:
        chunk_seconds: the seconds of work that a chunk should take.
        long: if items take longer than this many seconds, none are sent ahead.
    """

    def __init__(self, chunk_seconds: float = _CHUNK_SECONDS, long: float = _LONG) -> None:
        self._chunk_seconds = chunk_seconds
        self._long = long
        self._seconds = 0.0  # the estimate per item; 0: unknown

    def note(self, seconds: float, items: int) -> None:
        """Note that this many items (at least one) took this many seconds."""
        each = max(1e-6, seconds / items)
        self._seconds += (each - self._seconds) * (_WEIGHT if self._seconds else 1.0)

    def chunk(self) -> tuple[int, int]:
        """Return how many items to send at a time, and the backlog at which to send more.

        The backlog is 0 if items are slow: an item that is sent ahead waits for the one before it,
        even if another process is idle.
        """
        if not 0 < self._seconds < self._long:
            return 1, 0
        size = max(1, min(_MOST_ITEMS, int(self._chunk_seconds / self._seconds)))
        return size, size


class Loss(NamedTuple):
    """The unfinished work of a dead process."""

    to_do: list[Pending]
    """The items to prepare again, in the order in which they were sent."""
    given_up: Pending | None
    """The item that has killed too many processes, this one included."""


class Assignments:
    """The items of one process. The thread that talks to the process owns them; only the callbacks
    of `release_of` run in other threads.

    Attributes:
        is_ready: the process has reported that it is ready.
        has_begun: it had reached its own code when it died.
        was_of_use: it has returned something, or shows which item to blame.
        overdue: why it is being killed, and the number of the item that took too long.
    """

    def __init__(self) -> None:
        self.is_ready = False
        self.has_begun = False
        self.was_of_use: bool = False
        self.overdue: tuple[int, ItemTimeoutError] | None = None
        self._pending: dict[int, Pending] = {}  # its items, by number
        self._freed: deque[int] = deque()  # places in the arena that it may reuse

    def __len__(self) -> int:
        """The number of items that it has to prepare."""
        return len(self._pending)

    def find(self, number: int) -> Pending | None:
        """Return one of its items by number, or ``None``. Any thread may call it."""
        return self._pending.get(number)

    def enter(self, pending: Pending) -> Sent:
        """Register an item that is about to be sent.

        Returns:
            The item in the form to send.

        Raises:
            Exception: the item cannot be pickled. Then it is not registered.
        """
        number, value, epoch, index = pending.item
        pickled = pickle.dumps(value, 5)
        self._pending[number] = pending
        return number, epoch, index, pickled

    def message(self, chunk: list[Sent]) -> bytes:
        """Return the message with a chunk of items, and the places that were freed meanwhile."""
        freed = [self._freed.popleft() for _ in range(len(self._freed))]
        return pickle.dumps((freed, chunk), 5)

    def take_off(self, number: int) -> Pending:
        """Remove an item whose outcome has arrived."""
        self.was_of_use = True
        return self._pending.pop(number)

    def release_of(self, blocks: Sequence[Block]) -> Callable[[], None] | None:
        """Return a callback that frees places once they were read; ``None`` if there are none.

        Any thread may call it.
        """
        return partial(self._freed.extend, [start for start, _ in blocks]) if blocks else None

    def cut_short(self) -> tuple[Pending, ItemTimeoutError] | None:
        """If the process was killed for a slow item, remove that item and return it with its
        failure; ``None`` if it was not killed for one, or if the item was done after all."""
        if self.overdue is None:
            return None
        self.was_of_use = True
        number, error = self.overdue
        pending = self._pending.pop(number, None)
        return None if pending is None else (pending, error)

    def lost(self, number: int) -> Loss:
        """Remove all items of the process, which died at this item, just after it, or at none.

        The number is that of the item that it prepared last.
        """
        culprit = self._pending.get(number)
        to_do = list(self._pending.values())
        self._pending.clear()
        if culprit is None:
            return Loss(to_do, None)
        self.was_of_use = True
        culprit.deaths += 1
        if culprit.deaths < MOST_DEATHS:
            return Loss(to_do, None)
        to_do.remove(culprit)
        return Loss(to_do, culprit)
