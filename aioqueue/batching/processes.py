"""Calling the function of a batcher in processes.

Each worker of the batcher is a thread here that has one process. It sends a batch and waits for
its outcomes, so that a process has one batch or none. When it dies, its arena tells whether it had
begun with the batch that it was sent: if so, exactly its callers are told; else nothing was called
with it, and the next process gets it.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

from aioqueue.batching.child_process import Outcome, ProcessReply, requests_half, work
from aioqueue.batching.core import BatcherCore
from aioqueue.batching.function_calls import failure_of
from aioqueue.errors import OutOfRangeError, WorkerDiedError, add_note
from aioqueue.locks import guarded
from aioqueue.processes.arena import pack, unpack
from aioqueue.processes.remote_failures import Succession, failure_of_message, how_it_ended
from aioqueue.processes.start import CannotStartError
from aioqueue.processes.worker import (
    WorkerProcess,
    cannot_start,
    ended_at_exit,
    not_importable,
)

__all__ = ("ProcessCaller",)

_ARENA: Final = 128 * 2**20
"""Bytes for the large parts of one batch, requests and results. Pages that were never used take no
memory, and what does not fit goes through the pipe."""

_log: Final = logging.getLogger("aioqueue")


class _Process(WorkerProcess):
    """One process, and what is known of it. See `WorkerProcess`.

    Attributes:
        is_ready: it has imported the function.
        has_begun: it had come to its own work when it died.
        was_of_use: something has come from it, or it has died of a batch.
    """

    def __init__(self, name: str) -> None:
        self.is_ready = self.has_begun = self.was_of_use = False
        super().__init__(name, _ARENA, work)
        self._number = 0  # of the batch that it has got last
        self._allocator = requests_half(self.arena)

    def receive(self) -> ProcessReply | None:
        """Wait for its next reply; ``None`` if it has died."""
        message = self.receive_message()
        if message is None:
            return None
        reply: ProcessReply = pickle.loads(message)
        return reply

    def has_begun_the_batch(self) -> bool:
        """Whether it had come to the batch that it got last, if it is dead."""
        return self.arena.item == self._number

    def ask(self, values: list[Any], function: Any) -> list[Any] | None:
        """Have the function called with a batch.

        Returns:
            One outcome per value; those that are exceptions are failures. ``None``: it has died.
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
        """A request as it is sent, or the failure to pickle it."""
        try:
            return pack((value,), self.arena, self._allocator)
        except Exception as error:
            add_note(error, "while pickling the request")
            return failure_of(function, error)

    def _unpacked(self, outcomes: list[Outcome], function: Any) -> Iterator[Any]:
        """The results and failures that it has sent; the callers of a batch share a failure."""
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
    """Calls the function in a process, which is replaced when it dies. See `Caller`.

    Args:
        core: whose function it is.
        name: what its processes are called.
    """

    def __init__(self, core: BatcherCore, name: str) -> None:
        assert core.payload is not None
        self._core = core
        self._name = name
        self._payload = core.payload
        self._succession = Succession()
        self._started = 0
        self._lock = threading.RLock()  # guards all below
        self._process: _Process | None = None
        self._has_batch = False
        self._is_told_to_end = False  # by us, and not just dead
        self._is_ending = False  # the program

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
        """Have a process that waits for a batch, unless that is over.

        Raises:
            WorkerDiedError: there can be none.
            InvalidArgumentError: none can import the function.
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
                raise refused
            else:
                process.is_ready = True

    def __call__(self, batch: list[Any]) -> list[Any]:
        while True:
            self.make_ready()
            process = self._take_for_batch()
            if process is None:
                return [self._core.stop_error() for _ in batch]
            outcomes = process.ask(batch, self._core.function)
            self._note_end_of_batch()
            if outcomes is not None:
                return outcomes
            died = self._bury(process, len(batch))
            if died is not None:
                return [died] * len(batch)

    def start_no_more(self) -> None:
        """See `HasProcesses`."""
        self._is_ending = True

    def kill_at_exit(self) -> None:
        """See `HasProcesses`."""
        process = self._process
        if process is not None:
            process.kill_at_exit()

    def _is_over(self) -> bool:
        """Whether no process is to be started any more."""
        return self._core.is_stopped or self._is_ending

    def _start(self) -> _Process:
        self._started += 1
        name = f"{self._name}-{self._started}"
        try:
            process = _Process(name)
        except CannotStartError as error:
            raise cannot_start(name, error) from error
        self._keep(process)
        if self._is_over():  # which may have missed this one
            self._end_it()
        return process

    def _bury(self, process: _Process, requests: int) -> WorkerDiedError | None:
        """A process has died.

        Args:
            process: that has.
            requests: how many it has got, and not answered.

        Returns:
            What their callers are told; ``None`` if nothing was called with these requests.

        Raises:
            WorkerDiedError: it is not replaced.
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

    # In any thread.

    @guarded
    def _keep(self, process: _Process) -> None:
        self._process = process

    @guarded
    def _forget(self) -> bool:
        """There is no process any more; returns whether we have ended it."""
        self._process = None
        return self._is_told_to_end

    @guarded
    def _take_for_batch(self) -> _Process | None:
        """The process, which is going to get a batch; ``None`` if there is none."""
        self._has_batch = self._process is not None
        return self._process

    @guarded
    def _note_end_of_batch(self) -> None:
        self._has_batch = False

    @guarded
    def _end_if_idle(self) -> None:
        """The batcher is stopped: a batch goes on to its end, and nothing else does."""
        if not self._has_batch:
            self._end_it()

    @guarded
    def _end_it(self) -> None:
        if self._process is not None:
            self._is_told_to_end = True
            self._process.kill()
