"""Preparing in worker processes.

Every process has a thread here that talks to it through a pipe: it sends items in chunks, one ahead
of what is being prepared, and enqueues what comes back. One more thread takes items from the
source. Arrays come back through shared memory; they are copied from there into the queue.

The parent keeps book of which items a process has, and takes them off when their outcome has come,
in one piece. So when a process dies, at whatever moment, it is known what has to be prepared again:
exactly what is left; and every item arrives once.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import weakref
from contextlib import ExitStack, closing
from multiprocessing import reduction
from typing import Any, Final

from aioqueue import InvalidArgumentError, WorkerDiedError
from aioqueue.coordination.outcomes import add_note, said
from aioqueue.functions import EnqueueOp, function_name
from aioqueue.inputs.prepare.blocking import (
    ThreadDelivery,
    ThreadInbox,
    ThreadSource,
    WorkerThreads,
)
from aioqueue.inputs.prepare.call import Call
from aioqueue.inputs.prepare.job import Job, NothingMore, Prepared
from aioqueue.inputs.prepare.limits import Pending
from aioqueue.inputs.prepare.processes.arena import Arena, unpack
from aioqueue.inputs.prepare.processes.books import (
    Books,
    Pace,
    Succession,
    how_it_ended,
    why_not_begun,
)
from aioqueue.inputs.prepare.processes.channels import channels
from aioqueue.inputs.prepare.processes.child import Outcome, Report, Sent, failure_of_message, work
from aioqueue.inputs.prepare.processes.start import (
    CannotStartError,
    StartedProcess,
    is_ending,
    is_importing_main,
    no_more,
    one_at_a_time,
)
from aioqueue.locks import guarded

__all__ = ("ProcessExecutor",)

_ENDING: Final = 1.0
"""Seconds that a process has to end after it was told so."""

_log: Final = logging.getLogger("aioqueue")


def _pickled(call: Call) -> bytes:
    """The call, as it is sent to every process.

    Raises:
        InvalidArgumentError: its function cannot be pickled.
    """
    try:
        return bytes(reduction.ForkingPickler.dumps(call))
    except Exception as error:
        raise InvalidArgumentError(
            f"function: got {function_name(call.function)!r}, which cannot be pickled and so cannot"
            f" be sent to a process ({said(error)}); expected a function at the top level of a"
            " module (not a lambda or an inner one), a functools.partial of one, or a picklable"
            " object with __call__; or use where='thread'"
        ) from error


class _Process:
    """One worker process, as its thread sees it. It is started at once.

    Args:
        name: what it is called.
        arena_size: bytes of the memory that it shares with us.

    Raises:
        WorkerDiedError: it could not be started.
        CannotStartError: nor could any other.
    """

    def __init__(self, name: str, arena_size: int) -> None:
        self.books = Books()
        try:
            self._start(name, arena_size)
        except (OSError, EOFError) as error:
            raise WorkerDiedError(f"worker process {name} cannot be started: {error!r}") from error
        self.name = f"{name} (pid {self._process.pid})"

    def _start(self, name: str, arena_size: int) -> None:
        """Start it; if that fails, all that it would have had is closed again."""
        with one_at_a_time(), ExitStack() as undo:
            self.arena = Arena(arena_size)
            undo.callback(self.arena.close)
            self.channel, theirs = channels()
            undo.callback(self.channel.close)
            self._process: Any = StartedProcess(
                target=work, args=(theirs, self.arena), name=name, daemon=True
            )
            with closing(theirs):
                self._process.start()
            self.arena.handed_over()
            self.channel.watch(self._process.sentinel)
            undo.pop_all()

    def send(self, message: bytes) -> None:
        """Send a message; a process that has died is noticed when reading from it."""
        try:
            self.channel.send(message)
        except (EOFError, OSError):
            pass

    def receive(self) -> Report | None:
        """Wait for its next report; ``None`` if it has died."""
        try:
            message = self.channel.receive()
        except (EOFError, OSError):
            return None  # it may have died in the midst of sending: that counts as not sent
        report: Report = pickle.loads(message)
        return report

    def exitcode(self) -> int:
        """How it has ended; one that no longer speaks to us is ended."""
        self._process.join(_ENDING)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.books.has_begun = self.arena.has_begun
        exitcode: int = self._process.exitcode
        return exitcode

    def kill(self) -> None:
        """End it, whatever it is doing, and whichever signals it does not listen to. May be called
        from any thread, and at any time."""
        try:
            self._process.kill()
        except (AttributeError, ValueError):
            pass  # its thread has ended it already, or is just about to close it

    def kill_at_exit(self) -> None:
        """The same when the program ends, and nobody is to wait for it."""
        self._process.disown()
        self.kill()

    def end(self, *, at_once: bool) -> None:
        """End it and forget it."""
        if not at_once:
            self.send(b"")
            self._process.join(_ENDING)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        if not is_ending():
            self._process.close()
        self.channel.close()
        self.arena.close()


_executors: Final[weakref.WeakSet[ProcessExecutor]] = weakref.WeakSet()
"""Those that may have processes."""


def _end_all() -> None:
    """The program ends, and may not have stopped its jobs.

    It comes before multiprocessing's own step, which was registered when that was imported.
    """
    executors = list(_executors)
    for executor in executors:
        executor.start_no_more()
    no_more()
    for executor in executors:
        executor.kill_at_exit()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_executors.clear)  # they are the program's, not its fork's


class ProcessExecutor:
    """Has the function called in processes, each of which has a thread here that feeds it.

    Args:
        job: what is to be done.

    Raises:
        InvalidArgumentError: the function cannot be pickled.
        RuntimeError: this is a new process itself, which is importing the main module.
    """

    def __init__(self, job: Job) -> None:
        if is_importing_main():
            raise RuntimeError(
                "where='process': the main module is being imported by a new process, and would"
                ' start processes in turn; put what it does under `if __name__ == "__main__":`'
            )
        self._job = job
        self._lock = job.lock  # guards all below
        self._payload = _pickled(job.call)
        self._source = ThreadSource(job, waits_till_low=True)
        self._delivery = ThreadDelivery(job)
        self._inbox = ThreadInbox(job, self._source, self._delivery)
        self._threads = WorkerThreads(job, self._source, self._work)
        self._processes: set[_Process] = set()
        self._pace = Pace()
        self._started = 0
        self._none_can_work = False
        self._is_ending = False  # the program
        dtypes = job.into.dtypes
        keeps = dtypes is None or any(dtype.hasobject for dtype in dtypes)
        self._copy = bytearray if keeps else None
        """How to make an array private; a queue of typed components copies it by itself."""
        limit = job.window.limit_bytes
        assert limit is not None
        self._arena_size = 2 * min(max(limit, 2**20), 2**40)  # a larger one could not be mapped
        _executors.add(self)

    def enqueue_ops(self) -> list[EnqueueOp]:
        return [*self._threads.enqueue_ops(), *self._source.enqueue_ops(), self.take_items]

    def take_items(self) -> None:
        """The whole life of the thread that takes items from the source."""
        self._threads.helper(self._inbox.take_items)

    def stop(self) -> None:
        self._source.stop()
        self._threads.stop()
        self._inbox.stop()
        for process in self._all():
            process.kill()

    def room_came(self) -> None:
        self._source.room_came()
        self._inbox.room_came()

    def end(self) -> BaseException | None:
        return self._source.close()

    def start_no_more(self) -> None:
        """The program ends: what ends from now on is not replaced."""
        self._is_ending = True

    def kill_at_exit(self) -> None:
        """End all processes, at the end of the program; their threads end with it."""
        for process in self._all():
            process.kill_at_exit()

    @guarded
    def _all(self) -> list[_Process]:
        return list(self._processes)

    def _is_over(self) -> bool:
        """Whether nothing more is to be started, nor replaced."""
        return self._job.is_halted or self._is_ending

    def _work(self) -> None:
        """The work of the thread of one worker, until there is none."""
        succession = Succession()
        while True:
            process = self._started_process()
            exitcode = self._work_till_its_end(process)
            why = succession.why_the_last(process.name, process.books, exitcode)
            if why is not None:
                raise self._once(WorkerDiedError(why, exitcode=exitcode))

    def _started_process(self) -> _Process:
        """A new process."""
        if self._is_over():
            raise self._job.nothing_more()
        with self._lock:
            self._started += 1
            name = f"aioqueue-{self._job.into.name}-{self._started}"
        try:
            process = _Process(name, self._arena_size)
        except CannotStartError as error:
            why = "" if error.exitcode is None else why_not_begun()
            message = f"worker process {name} cannot be started: {error}{why}"
            raise self._once(WorkerDiedError(message, exitcode=error.exitcode or 0)) from error
        with self._lock:
            self._processes.add(process)
        if self._is_over():  # which may have missed this one
            process.kill()
        return process

    def _work_till_its_end(self, process: _Process) -> int:
        """`_work_with` a process, which is ended afterwards."""
        at_once = True
        try:
            return self._work_with(process)
        except NothingMore:
            at_once = self._is_over()
            raise
        finally:
            process.end(at_once=at_once)
            with self._lock:  # not before: until then it is for us to kill
                self._processes.discard(process)

    def _work_with(self, process: _Process) -> int:
        """Have a process prepare until nothing is left to do, or it has died.

        Returns:
            Its exit code, if it has died.
        """
        process.send(self._payload)
        report = process.receive()
        if report is None:
            return self._recover(process)
        process.books.is_ready = True
        if report.refusal is not None:
            error = InvalidArgumentError(
                f"function: got {function_name(self._job.call.function)!r}, which a new process"
                " cannot import; expected a function of a module that can be imported there"
            )
            error.__cause__ = failure_of_message(report.refusal)
            raise self._once(error)
        while True:
            self._feed_process(process)
            report = process.receive()
            if report is None:
                return self._recover(process)
            self._accept(process, report)

    def _once(self, error: Exception) -> Exception:
        """A failure that every process is going to have: the first one tells it for all."""
        with self._lock:
            is_first, self._none_can_work = not self._none_can_work, True
        return error if is_first else self._job.nothing_more()

    def _feed_process(self, process: _Process) -> None:
        """Send items, until the process has some ahead or there are none; wait for the first."""
        books = process.books
        size, ahead = self._chunk()
        while len(books) <= ahead:
            pendings = self._inbox.take(size, wait=not books)
            if not pendings:
                return
            chunk: list[Sent] = []
            for pending in pendings:
                try:
                    chunk.append(books.enter(pending))
                except Exception as error:
                    add_note(error, "while pickling the item")
                    self._failed(pending, error)
            process.send(books.message(chunk))

    def _chunk(self) -> tuple[int, int]:
        """See `Pace.chunk`. Nothing is sent ahead where keys are limited: what only waits would
        have the place of one that could be prepared."""
        return self._pace.chunk() if self._job.key_limit is None else (1, 0)

    def _accept(self, process: _Process, report: Report) -> None:
        """Take what has come from a process to where it belongs."""
        if report.outcomes:
            self._pace.note(report.seconds, len(report.outcomes))
        for outcome in report.outcomes:
            number, message, _, has_failed = outcome
            pending = process.books.take_off(number)
            if has_failed:
                self._failed(pending, failure_of_message(message))
            else:
                self._arrived(process, pending, outcome)

    def _arrived(self, process: _Process, pending: Pending, outcome: Outcome) -> None:
        _, message, blocks, _ = outcome
        release = process.books.release_of(blocks)
        try:
            examples = unpack(message, blocks, process.arena, self._copy)
        except Exception as error:
            if release is not None:
                release()
            add_note(error, "while unpickling what the function returned")
            self._failed(pending, error)
            return
        self._inbox.give_back(pending)
        prepared = Prepared(pending.item, examples, failures=pending.failures, release=release)
        if examples:  # the size of none tells nothing
            prepared.size = len(message) + sum([size for _, size in blocks])
        self._delivery.deliver(prepared)

    def _failed(self, pending: Pending, error: Exception) -> None:
        self._inbox.give_back(pending)
        self._inbox.failed(pending, error)

    def _recover(self, process: _Process) -> int:
        """A process has died: what it had is prepared again.

        Returns:
            Its exit code.

        Raises:
            NothingMore: we have ended it ourselves.
        """
        job = self._job
        if self._is_over():
            raise job.nothing_more()
        exitcode = process.exitcode()
        job.progress.worker_died()
        loss = process.books.lost(process.arena.item)
        _log.warning(
            "worker process %s %s%s; %d items that it had are prepared again",
            process.name,
            how_it_ended(exitcode),
            "" if process.books.is_ready else " while it started",
            len(loss.to_do),
        )
        self._inbox.put_back(loss.to_do)
        if loss.given_up is not None:
            self._give_up(loss.given_up, exitcode)
        return exitcode

    def _give_up(self, culprit: Pending, exitcode: int) -> None:
        """Too many processes have died of an item; the last one has ended so."""
        self._inbox.give_back(culprit)
        error = WorkerDiedError(
            f"{culprit.deaths} worker processes have died of one item; the last one"
            f" {how_it_ended(exitcode)}",
            exitcode=exitcode,
        )
        self._job.progress.give_up(culprit.item, error, culprit.failures + culprit.deaths)
        skipped = Prepared(culprit.item, failures=culprit.failures, is_skipped=True)
        self._delivery.deliver(skipped)
