"""Call the function of a batcher in child processes.

Each worker of the batcher is a thread here that has one process. It sends a batch and waits for the
outcomes, so a process has at most one batch. When the process dies, its arena tells whether it had
begun the batch. If so, the callers of that batch fail, and no others: the function may have had
effects, and nobody asked for them twice. If not, the function was not called, and the next process
gets the batch.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

from aioqueue.batcher.child import Outcome, Reply, Sent, requests_half, work
from aioqueue.batcher.function_calls import FailedBatch, failure_of
from aioqueue.batcher.rules import BatcherCore
from aioqueue.errors import OutOfRangeError, WorkerDiedError, add_note
from aioqueue.processes.arena import pack, unpack
from aioqueue.processes.failures import failure_of_message
from aioqueue.processes.fork_server.bootstrap import CannotStartError
from aioqueue.processes.function_pickles import not_importable
from aioqueue.processes.respawning import RespawnPolicy, how_it_ended
from aioqueue.processes.worker_process import WorkerProcess, cannot_start, end_at_exit
from aioqueue.system.locks import synchronized

_ARENA: Final = 128 * 2**20
"""Bytes for the large parts of one batch, requests and results. Unused pages take no memory; parts
that do not fit go through the pipe."""

_log: Final = logging.getLogger("aioqueue")


class _BatchProcess(WorkerProcess):
    """A worker process that answers one batch at a time."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _ARENA, work)
        self._number = 0  # the number of the latest batch
        self._allocator = requests_half(self.arena)

    def has_begun_the_batch(self) -> bool:
        return self.arena.item == self._number

    def call(self, function: Any, values: list[Any]) -> list[Any] | None:
        """Have the process call the function with a batch.

        Returns:
            One outcome per value; an exception is a failure. ``None`` if the process has died.
        """
        self._number += 1
        packed = [self._packed(value, function) for value in values]
        sent: list[Sent] = [one for one in packed if not isinstance(one, BaseException)]
        outcomes: list[Any] = packed
        if sent:
            self.send_message(pickle.dumps((self._number, sent), 5))
            reply: Reply | None = self.receive_reply()
            if reply is None:
                return None
            self.was_of_use = True
            replied, has_failed = reply
            answers = iter(self._unpacked(replied, function))
            outcomes = [one if isinstance(one, BaseException) else next(answers) for one in packed]
            if has_failed:
                outcomes = FailedBatch(outcomes)
        # The process has answered, so it has read the requests.
        self._allocator.free(start for _, blocks in sent for start, _ in blocks)
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
        self._policy = RespawnPolicy()
        self._started = 0
        self._lock = threading.RLock()  # guards everything below
        self._process: _BatchProcess | None = None
        self._has_batch = False
        self._was_ended_by_us = False  # whether we have ended it: then its death is no failure
        self._is_ending = False  # whether the program ends

    def __enter__(self) -> ProcessCaller:
        end_at_exit(self)
        self._core.call_on_stop(self._end_if_idle)
        self._core.call_on_giving_up(self._end_process)
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
            ready = process.assign(self._payload)
            if ready is None:
                self._handle_death(process, 0)
            elif ready.refusal is not None:
                refused = not_importable(self._core.function)
                refused.__cause__ = failure_of_message(ready.refusal)
                try:
                    raise refused
                finally:
                    del refused  # its traceback contains this frame

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
                outcomes = process.call(self._core.function, batch)
            finally:
                self._core.processes.pop(worker, None)
            self._note_end_of_batch()
            if outcomes is not None:
                return outcomes
            died = self._handle_death(process, len(batch))
            if died is not None:
                return [died] * len(batch)

    def stop_replacing(self) -> None:
        self._is_ending = True

    def kill_at_exit(self) -> None:
        process = self._process
        if process is not None:
            process.kill_at_exit()

    def _is_over(self) -> bool:
        return self._core.is_stopped or self._is_ending

    def _start(self) -> _BatchProcess:
        self._started += 1
        name = f"{self._name}-{self._started}"
        try:
            process = _BatchProcess(name)
        except CannotStartError as error:
            raise cannot_start(name, error) from error
        self._keep(process)
        # First keep, then look: a stop that came before could not see this process.
        if self._is_over():
            self._end_process()
        return process

    def _handle_death(self, process: _BatchProcess, requests: int) -> WorkerDiedError | None:
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
        had_begun = requests > 0 and process.has_begun_the_batch()
        # A death in a batch is the fault of the batch: however many there are, the next batch may
        # be a good one.
        process.was_of_use = process.was_of_use or had_begun
        process.end(at_once=True)
        is_ours = self._forget()
        how = "was ended with its batcher" if is_ours else how_it_ended(exitcode)
        when = "" if process.is_ready else " while it started"
        if had_begun:
            when = f" while it worked on a batch of {requests}"
        if not is_ours and not self._is_ending:
            self._core.count_death()
            _log.warning("worker process %s of %s %s%s", process.name, self._core, how, when)
            why = self._policy.why_not_replaced(process.name, process, exitcode)
            if why is not None:
                raise WorkerDiedError(why, exitcode=exitcode)
        if not had_begun:
            return None
        return WorkerDiedError(f"worker process {process.name} {how}{when}", exitcode=exitcode)

    # Called in any thread.

    @synchronized
    def _keep(self, process: _BatchProcess) -> None:
        self._process = process

    @synchronized
    def _forget(self) -> bool:
        """Forget the process; return whether we have ended it ourselves."""
        self._process = None
        return self._was_ended_by_us

    @synchronized
    def _take_for_batch(self) -> _BatchProcess | None:
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
            self._end_process()

    @synchronized
    def _end_process(self) -> None:
        if self._process is not None:
            self._was_ended_by_us = True
            self._process.kill()
