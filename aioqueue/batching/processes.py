"""Call the function of a batcher in child processes.

Each worker of the batcher is a thread here that has one process. It sends a batch and waits for the
outcomes, so a process has at most one batch. When the process dies, its arena tells whether it had
begun the batch. If so, the callers of that batch fail, and no others. If not, the function was not
called, and the next process gets the batch.

The child process calls the function with the batches that a pipe delivers. Its main thread calls
the function. A second thread only reads the pipe. So a process whose parent is gone ends at once,
whatever the function is doing (see also `aioqueue.processes.start`).

Requests and results are pickled one by one, so one that cannot be pickled or unpickled fails alone.
Their large parts are in the arena: the parent fills the first half with requests, this process the
second half with results. Only one batch is in flight at a time. So a side that receives a message
knows that the other side has read all of the last one, and reuses its half.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, NamedTuple

from aioqueue.batching.core import BatcherCore
from aioqueue.batching.function_calls import call, failure_of
from aioqueue.errors import OutOfRangeError, WorkerDiedError, add_note
from aioqueue.processes.arena import Allocator, Arena, Block, pack, unpack
from aioqueue.processes.messages import (
    Channel,
    Succession,
    failure_of_message,
    how_it_ended,
    message_of_failure,
)
from aioqueue.processes.program import PARENT_GONE, CannotStartError
from aioqueue.processes.worker import (
    WorkerProcess,
    cannot_start,
    ended_at_exit,
    not_importable,
)
from aioqueue.system.locks import synchronized

Sent = tuple[bytes, list[Block]]
"""A request in transit: its pickle, and where its large parts are."""

Outcome = tuple[bytes, list[Block], bool]
"""The outcome of one request: the pickled result or failure, where the large parts of the result
are, and whether it is a failure. All callers of a batch that has failed share one pickle."""


class ProcessReply(NamedTuple):
    """A message of the process. The first has no outcomes: it says that the process is ready."""

    outcomes: list[Outcome]
    refusal: bytes | None = None
    """Why the process cannot work, if it cannot."""


def requests_half(arena: Arena) -> Allocator:
    """Return the allocator of the half for requests. The parent uses it."""
    return Allocator(arena.size // 2)


def results_half(arena: Arena) -> Allocator:
    """Return the allocator of the half for results. The child uses it."""
    return Allocator(arena.size, arena.size // 2)


def work(channel: Channel, arena: Arena) -> None:
    """Run the child process: its main function."""
    arena.begin()
    inbox: SimpleQueue[bytes | bytearray] = SimpleQueue()
    threading.Thread(target=_read, args=(channel, inbox), daemon=True).start()
    try:
        function = pickle.loads(inbox.get())
    except Exception as error:
        _send(channel, ProcessReply([], message_of_failure(error)))
        return
    _send(channel, ProcessReply([]))
    desk = _BatchServer(function, arena)
    while message := inbox.get():
        _send(channel, ProcessReply(desk.outcomes(message)))
        del message  # keep nothing of an answered batch while waiting for the next


def _read(channel: Channel, inbox: SimpleQueue[bytes | bytearray]) -> None:
    """Read what the parent sends, until the empty message that ends the work."""
    message: bytes | bytearray = b"start"
    while message:
        try:
            message = channel.receive()
        except (EOFError, OSError):
            os._exit(PARENT_GONE)
        inbox.put(message)


def _send(channel: Channel, reply: ProcessReply) -> None:
    """Send a reply. If the parent is gone, end the process."""
    try:
        channel.send(pickle.dumps(reply, 5))
    except OSError:
        os._exit(PARENT_GONE)


class _BatchServer:
    """Processes batches: unpickles requests, calls the function, pickles results."""

    def __init__(self, function: Callable[..., Any], arena: Arena) -> None:
        self._function = function
        self._arena = arena
        self._allocator = results_half(arena)
        self._taken: list[int] = []  # places in the arena that hold the results of the last batch

    def outcomes(self, message: bytes | bytearray) -> list[Outcome]:
        """Return the outcomes of the requests in a batch."""
        number: int
        sent: list[Sent]
        number, sent = pickle.loads(message)
        self._arena.item = number  # if the process dies from now on, this batch is the cause
        self._allocator.give_back(self._taken)
        values = [self._unpacked(request) for request in sent]
        answers = iter(self._called([value for value, has_failed in values if not has_failed]))
        made = [value if has_failed else next(answers) for value, has_failed in values]
        outcomes = self._packed(made)
        self._taken = [start for _, blocks, _ in outcomes for start, _ in blocks]
        return outcomes

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


_ARENA: Final = 128 * 2**20
"""Bytes for the large parts of one batch, requests and results. Unused pages take no memory; parts
that do not fit go through the pipe."""

_log: Final = logging.getLogger("aioqueue")


class _Process(WorkerProcess):
    """One process and its state. See `WorkerProcess`.

    Attributes:
        is_ready: it has imported the function.
        has_begun: it had begun its own work when it died.
        was_of_use: it has sent a reply, or a batch has killed it.
    """

    def __init__(self, name: str) -> None:
        self.is_ready = self.has_begun = self.was_of_use = False
        super().__init__(name, _ARENA, work)
        self._number = 0  # the number of the latest batch
        self._allocator = requests_half(self.arena)

    def receive(self) -> ProcessReply | None:
        """Wait for the next reply; return ``None`` if the process has died."""
        message = self.receive_message()
        if message is None:
            return None
        reply: ProcessReply = pickle.loads(message)
        return reply

    def has_begun_the_batch(self) -> bool:
        """Return whether a dead process had begun its latest batch."""
        return self.arena.item == self._number

    def ask(self, values: list[Any], function: Any) -> list[Any] | None:
        """Have the process call the function with a batch.

        Returns:
            One outcome per value; an exception is a failure. ``None`` if the process has died.
        """
        self._number += 1
        packed = [self._packed(value, function) for value in values]
        sent = [one for one in packed if not isinstance(one, BaseException)]
        outcomes: list[Any] = packed
        if sent:
            self.send(pickle.dumps((self._number, sent), 5))
            reply = self.receive()
            if reply is None:
                return None
            self.was_of_use = True
            answers = iter(self._unpacked(reply.outcomes, function))
            outcomes = [one if isinstance(one, BaseException) else next(answers) for one in packed]
        self._allocator.give_back(start for _, blocks in sent for start, _ in blocks)
        return outcomes

    def _packed(self, value: Any, function: Any) -> Any:
        """Pickle a request; return the failure if that is impossible."""
        try:
            return pack((value,), self.arena, self._allocator)
        except Exception as error:
            add_note(error, "while pickling the request")
            return failure_of(function, error)

    def _unpacked(self, outcomes: list[Outcome], function: Any) -> Iterator[Any]:
        """Yield the results and failures of a reply; the callers of a batch share a failure."""
        failures: dict[int, Exception] = {}
        for message, blocks, has_failed in outcomes:
            if has_failed:
                if id(message) not in failures:
                    failures[id(message)] = failure_of_message(message)
                yield failures[id(message)]
                continue
            try:
                (result,) = unpack(message, blocks, self.arena, bytearray)
                yield result
            except Exception as error:
                add_note(error, "while unpickling what the function returned")
                yield failure_of(function, error)


class ProcessCaller:
    """Calls the function in a process, and replaces a process that dies. See `FunctionCaller`.

    Args:
        core: the batcher.
        name: the prefix of the processes' names.
    """

    def __init__(self, core: BatcherCore, name: str) -> None:
        assert core.payload is not None
        self._core = core
        self._name = name
        self._payload = core.payload
        self._succession = Succession()
        self._started = 0
        self._lock = threading.RLock()  # guards everything below
        self._process: _Process | None = None
        self._has_batch = False
        self._was_ended_by_us = False  # whether we have ended it: then its death is no failure
        self._is_ending = False  # whether the program ends

    def __enter__(self) -> ProcessCaller:
        ended_at_exit(self)
        self._core.call_on_stop(self._end_if_idle)
        self._core.call_on_giving_up(self._end_it)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            is_closed = isinstance(error, OutOfRangeError)
            self._process.end(at_once=not is_closed or self._is_over())
            self._forget()

    def make_ready(self) -> None:
        """Have a process wait for a batch, unless the batcher has ended.

        Raises:
            WorkerDiedError: no process can be started.
            InvalidArgumentError: a process cannot import the function.
        """
        while self._process is None and not self._is_over():
            process = self._start()
            process.send(self._payload)
            reply = process.receive()
            if reply is None:
                self._bury(process, 0)
            elif reply.refusal is not None:
                refused = not_importable(self._core.function)
                refused.__cause__ = failure_of_message(reply.refusal)
                try:
                    raise refused
                finally:
                    del refused  # its traceback contains this frame
            else:
                process.is_ready = True

    def __call__(self, batch: list[Any], **more: Any) -> list[Any]:
        assert not more, "contexts cannot be pickled"
        while True:
            self.make_ready()
            process = self._take_for_batch()
            if process is None:
                return [self._core.stop_error() for _ in batch]
            worker = id(threading.current_thread())
            self._core.processes[worker] = process
            try:
                outcomes = process.ask(batch, self._core.function)
            finally:
                self._core.processes.pop(worker, None)
            self._note_end_of_batch()
            if outcomes is not None:
                return outcomes
            died = self._bury(process, len(batch))
            if died is not None:
                return [died] * len(batch)

    def start_no_more(self) -> None:
        """Implement `HasProcesses`: the program ends."""
        self._is_ending = True

    def kill_at_exit(self) -> None:
        """Implement `HasProcesses`: kill the process at exit."""
        process = self._process
        if process is not None:
            process.kill_at_exit()

    def _is_over(self) -> bool:
        """Return whether no process may be started any more."""
        return self._core.is_stopped or self._is_ending

    def _start(self) -> _Process:
        self._started += 1
        name = f"{self._name}-{self._started}"
        try:
            process = _Process(name)
        except CannotStartError as error:
            raise cannot_start(name, error) from error
        self._keep(process)
        if self._is_over():  # the stop may have come before it could see this process
            self._end_it()
        return process

    def _bury(self, process: _Process, requests: int) -> WorkerDiedError | None:
        """Handle the death of a process.

        Args:
            process: the dead process.
            requests: how many requests it has got and not answered.

        Returns:
            The error for the callers; ``None`` if the function was not called with these requests.

        Raises:
            WorkerDiedError: the process cannot be replaced.
        """
        exitcode = process.exitcode()
        process.has_begun = process.arena.has_begun
        had_begun = requests > 0 and process.has_begun_the_batch()
        process.was_of_use = process.was_of_use or had_begun
        process.end(at_once=True)
        is_ours = self._forget()
        how = "was ended with its batcher" if is_ours else how_it_ended(exitcode)
        when = "" if process.is_ready else " while it started"
        if had_begun:
            when = f" while it worked on a batch of {requests}"
        if not is_ours and not self._is_ending:
            self._core.process_died()
            _log.warning("worker process %s of %s %s%s", process.name, self._core, how, when)
            why = self._succession.why_the_last(process.name, process, exitcode)
            if why is not None:
                raise WorkerDiedError(why, exitcode=exitcode)
        if not had_begun:
            return None
        return WorkerDiedError(f"worker process {process.name} {how}{when}", exitcode=exitcode)

    # Called in any thread.

    @synchronized
    def _keep(self, process: _Process) -> None:
        self._process = process

    @synchronized
    def _forget(self) -> bool:
        """Forget the process; return whether we have ended it ourselves."""
        self._process = None
        return self._was_ended_by_us

    @synchronized
    def _take_for_batch(self) -> _Process | None:
        """Return the process, which is about to get a batch; ``None`` if no process runs."""
        self._has_batch = self._process is not None
        return self._process

    @synchronized
    def _note_end_of_batch(self) -> None:
        self._has_batch = False

    @synchronized
    def _end_if_idle(self) -> None:
        """End the process unless it has a batch, since the batcher stops. A batch is finished."""
        if not self._has_batch:
            self._end_it()

    @synchronized
    def _end_it(self) -> None:
        if self._process is not None:
            self._was_ended_by_us = True
            self._process.kill()
