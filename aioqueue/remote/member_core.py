"""The coordinator of one program among several, which follows what the others decide."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import uuid
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final

from aioqueue.coordination.cancellations import running_task
from aioqueue.coordination.coordinator_core import BLOCK_NAME, CoordinatorCore
from aioqueue.coordination.shutdown import end_waits
from aioqueue.coordination.workers import Worker, current_worker_name, when_all_ended
from aioqueue.core.elements.values import is_iterable
from aioqueue.errors import sent_as, set_cause
from aioqueue.processes.failures import failure_of_message, message_of_failure
from aioqueue.remote.failures import has_frames, sendable
from aioqueue.remote.member_connection import MemberConnection
from aioqueue.remote.members import ActiveWorker, Failure, News, ProgramReport
from aioqueue.system.locks import call_with_lock, synchronized
from aioqueue.worlds.scopes import Gate, StopScope
from aioqueue.worlds.waker import AsyncWaker

_log = logging.getLogger("aioqueue")

_UNKNOWN: Final = -1
"""The run of a program that has no news yet."""

_Waits = Generator[tuple[Gate, float | None], None, None]


class _Answer(Gate):
    """Opened by an answer of the register.

    A join that begins after the stop, in the clean-up of a worker, finds all others ended and does
    not wait. Here it has to ask first, so the stop does not end this wait.
    """

    async def wait(self, waker: AsyncWaker, *, until_stop: bool = False) -> None:
        await super().wait(waker)


class MemberCore(CoordinatorCore):
    """The coordinator of one program that takes part in a coordinator of several.

    It reports its decisions to the register, and follows the register's news. So whatever uses a
    coordinator in this program uses that of all programs.

    Args:
        clean_stop_exception_types: failures that end a run normally and are not reported.
        watchdog: seconds without progress after which to warn; ``None`` for never.
    """

    connection: MemberConnection

    def __init__(
        self,
        clean_stop_exception_types: Iterable[type[BaseException]] | None,
        watchdog: float | None,
    ) -> None:
        super().__init__(clean_stop_exception_types, watchdog)
        self.become_member()

    def become_member(self) -> None:
        """Set what a program's coordinator has besides, once it takes part."""
        self._life = f"program-{uuid.uuid4().hex[:12]}"
        # All below is synchronized by the lock of the coordinator.
        self._run = _UNKNOWN
        self._first_run = 0  # news of earlier runs is ignored
        self._number = 0  # of the next report
        self._seen = 0  # number of the failures of all programs that are seen here
        # The names (`sent_as`) of the failures that the register has or will get. The failures have
        # the frames of blocks, which have this coordinator: that would be a reference cycle.
        self._shared: set[str | None] = set()
        self._local_failures: list[Failure] = []  # those of them from this program
        self._local_stopped_by: str | None = None
        # The blocks of `stop_on_exception` that run, each with what ends its waits at a stop.
        self._works: list[tuple[ActiveWorker, StopScope]] = []
        self._joining_keys: list[str] = []  # the tasks that wait in a join
        # Workers that were reported: their end is, too.
        self._observed: weakref.WeakSet[Worker] = weakref.WeakSet()

    @property
    def life(self) -> str:
        """Identifies this program."""
        return self._life

    # What depends on where programs run.

    def place(self) -> str:
        """Return where this program runs, as text."""
        raise NotImplementedError

    def failure_place(self) -> str:
        """Return where the caller runs, in which something has failed."""
        return self.place()

    def dumps(self, value: Any) -> bytes:
        """Pickle a failure."""
        raise NotImplementedError

    def loads(self, pickled: bytes) -> Any:
        """Unpickle a failure."""
        raise NotImplementedError

    def worker_here(self) -> tuple[str, str] | None:
        """Return the key and the name of a worker that other programs know, if it is the caller."""
        return None

    def as_known_worker(self, worker: Any) -> Any:
        """Return what stands here for a worker elsewhere; a worker of this program unchanged."""
        return worker

    def remote_key(self, key: int) -> str | None:
        """Return the key by which other programs know a registered worker elsewhere."""
        return None

    def remote_keys(self) -> set[str]:
        """Return the keys of all workers elsewhere that are registered here."""
        return set()

    # Local decisions.

    def stop(self, error: BaseException | None, worker: str) -> None:
        """Record a failure, and stop all programs.

        With a failure, it returns once the register has the failure, or after five seconds. So a
        caller that waits for this worker learns of the failure.
        """
        self.connection.check()
        error = self.unrecorded_part(error)
        # Without the lock, since it pickles an exception of the user; and before the core records
        # the failure, since a join may raise it then, and what was raised is not sent.
        failure = self._failure(error, worker)
        super().stop(error, worker)
        count = call_with_lock(self._lock, self._queue_failure, error, failure, worker)
        self.connection.schedule_report()
        if count and worker != BLOCK_NAME:  # the join reports it
            self.connection.until_acknowledged(count)

    def _failure(self, error: BaseException | None, worker: str) -> Failure | None:
        """Convert a failure for sending, before it is recorded here."""
        if error is None or self.is_clean(error) or self.was_raised_by_join(error):
            return None
        message = message_of_failure(sendable(error), self.dumps, self.loads)
        return Failure(message, worker, self.failure_place())

    def _queue_failure(
        self, error: BaseException | None, failure: Failure | None, worker: str
    ) -> int:
        """Queue a failure for the register; return how many failures of this program it will
        then have."""
        self._local_stopped_by = self._local_stopped_by or worker
        # The core may have refused it, as when a join has ended. One in `_shared` came from another
        # program, or was sent before: to send it again would count it twice.
        is_recorded = any(error is known for known in self._failures)
        if error is None or failure is None or not is_recorded or sent_as(error) in self._shared:
            return 0
        self._shared.add(sent_as(error))
        self._local_failures.append(failure)
        return len(self._local_failures)

    def clear_stop(self) -> None:
        super().clear_stop()
        run = call_with_lock(self._lock, self._leave_run)
        self.connection.schedule_request(bool, "clear", run)

    def _leave_run(self) -> int:
        # Unknown until news of the next run comes. Otherwise a report made by then would bring a
        # new failure to the run that is being cleared.
        run, self._run = self._run, _UNKNOWN
        self._first_run = max(self._first_run, run + 1)
        self._reset()
        return run

    def _reset(self) -> None:
        self._seen = 0
        self._shared, self._local_failures = set(), []
        self._local_stopped_by = None
        self.connection.reset()

    # Local workers.

    def register(self, worker: Any) -> None:
        worker = self.as_known_worker(worker)
        super().register(worker)
        self.connection.schedule_report()

    def begin_work(self) -> ActiveWorker:
        work = self._current_worker()
        scope = StopScope(running_task() or threading.current_thread())
        call_with_lock(self._lock, self._works.append, (work, scope))
        # Joins of all programs wait for this work, so a stop must end the calls in which it waits.
        # The stop opens its gate before it lists the scopes. So either it finds this one, or the
        # gate is seen open here.
        if self.stopped.is_open:
            end_waits((scope,))
        self.connection.schedule_report()
        return work

    def end_work(self, work: object) -> None:
        if isinstance(work, ActiveWorker):  # else it began before this program took part
            call_with_lock(self._lock, self._end_work, work)
            self.connection.schedule_report()

    def _end_work(self, work: ActiveWorker) -> None:
        # From the innermost outwards: a task of Ray may work in two blocks, which have one key.
        for place in range(len(self._works) - 1, -1, -1):
            if self._works[place][0] == work:
                self._works.pop(place)[1].leave()
                break

    @synchronized
    def _all_stop_scopes(self) -> list[StopScope]:
        return [*super()._all_stop_scopes(), *(scope for _, scope in self._works)]

    def _current_worker(self) -> ActiveWorker:
        found = self.worker_here()
        if found is not None:
            return ActiveWorker(*found)
        return ActiveWorker(f"{self._life}/{uuid.uuid4().hex[:8]}", current_worker_name())

    # Joins.

    def joining(
        self,
        workers: Iterable[Any] | None,
        grace: float,
        ignore_live: bool,
        *,
        blocking: bool = False,
        leaving: bool = False,
    ) -> _Waits:
        """Join as in one program, and also wait for the workers of other programs that do not
        join."""
        given: Any = workers
        if is_iterable(workers):
            given = [self.as_known_worker(one) for one in given]
        key = self._current_worker().key
        # Before asking for the others: two tasks that join at once must not wait for each other.
        call_with_lock(self._lock, self._joining_keys.append, key)
        other_workers: list[OtherProgramWorker] = []
        is_over = False
        try:
            yield from self._find_other_workers(key, other_workers)
            await_other_programs(self.connection, other_workers, lambda: is_over)
            if other_workers:
                given = [*(given or ()), *other_workers]
            yield from super().joining(
                given, grace, ignore_live, blocking=blocking, leaving=leaving
            )
        finally:
            is_over = True
            call_with_lock(self._lock, self._joining_keys.remove, key)
            self.connection.schedule_report()

    def _find_other_workers(self, key: str, other_workers: list[OtherProgramWorker]) -> _Waits:
        """Ask for the workers of other programs, once the register knows that this one joins."""
        found = _Answer()

        def on_workers(workers: list[ActiveWorker] | None) -> None:
            known_keys = self.remote_keys() | {key}
            other_workers.extend(
                OtherProgramWorker(one) for one in workers or () if one.key not in known_keys
            )
            found.open()

        self.connection.call_when_settled(
            lambda: self.connection.schedule_request(on_workers, "other_workers", self._life)
        )
        yield found, None

    def _wait_after_workers(self) -> _Waits:
        """Wait for reports in flight, after all workers have ended."""
        settled = _Answer()
        self.connection.call_when_settled(settled.open)
        yield settled, None

    # Calls by the thread of the connection. No signal handler runs there, so a plain `with`
    # releases the lock in any case. A finalizer that runs there may take it again: it is reentrant.

    def program_report(self) -> ProgramReport:
        with self._lock:
            self._number += 1
            acknowledged = self.connection.acknowledged
            alive = {key: one for key, one in self._workers.items() if one.is_alive()}
            unobserved = [one for one in alive.values() if one not in self._observed]
            self._observed.update(unobserved)
            report = ProgramReport(
                self._life,
                self.place(),
                self._run,
                self._number,
                [*(work for work, _ in self._works), *self._described(alive)],
                acknowledged,
                self._local_failures[acknowledged:],
                self._local_stopped_by,
                self.joined,
                list(self._joining_keys),
                self._seen,
            )
        # Now rather than when it was registered: a thread may be started later than that, and only
        # a running one can be waited for.
        for worker in unobserved:
            try:
                when_all_ended([worker], self.connection.schedule_report)
            except RuntimeError:  # the system has no thread that waits for it: later, it may have
                self._observed.discard(worker)
                self.connection.report_again()
        return report

    def _described(self, workers: Mapping[int, Worker]) -> Iterable[ActiveWorker]:
        for key, worker in workers.items():
            remote = self.remote_key(key)
            if remote is not None:
                yield ActiveWorker(remote, worker.name, is_local=False)
            else:
                yield ActiveWorker(f"{self._life}/{key}", worker.name)

    def known_state(self) -> tuple[str, int, int, bool]:
        with self._lock:
            return self._life, self._run, self._seen, self.stopped.is_open

    def accept_news(self, news: News) -> None:
        """Accept news of all programs. Decisions made elsewhere are not reported again."""
        with self._lock:
            if not self._is_of_this_run(news):
                return
        # The answers to a report and to the pending call for news may bring the same failure.
        for number, failure in news.failures:
            if number >= self._seen:
                self._accept_failure(failure)
        self._seen = max(self._seen, news.total)
        if news.stopped_by is not None:
            super().stop(None, news.stopped_by)

    def _is_of_this_run(self, news: News) -> bool:
        if news.run < self._first_run:
            return False  # news of a run that was cleared
        if news.run != self._run:
            if self._run != _UNKNOWN:  # another program has called `clear_stop`
                super().clear_stop()
                self._reset()
            self._run = news.run
            self.connection.schedule_report()
        return True

    def failure_elsewhere(self, failure: Failure) -> Exception:
        """Return a failure of another program as the joins of this one raise it."""
        error = failure_of_message(failure.message, failure.place, self.loads)
        if not has_frames(error.__cause__):
            set_cause(error, None)  # it was made where nothing runs, to report a death
        return error

    def _accept_failure(self, failure: Failure) -> None:
        error = self.failure_elsewhere(failure)
        worker = failure.worker
        if failure.place not in worker:
            worker = f"{worker} ({failure.place})"
        if self._is_over():
            _log.error("worker %s failed after the join", worker, exc_info=error)
            return
        self._shared.add(sent_as(error))
        with self._lock:
            self._record(error, worker)
        # Not `self.stop`, which would send it to the others again.
        super().stop(None, worker)

    def connection_lost(self, error: Exception) -> None:
        """Handle the loss of the connection: no more stops of other programs arrive."""
        if not self._is_over():
            super().stop(error, self.connection.label)


class OtherProgramWorker(concurrent.futures.Future[None]):
    """A worker of another program, while this program waits for it.

    Args:
        working: what is known of it.
    """

    def __init__(self, worker: ActiveWorker) -> None:
        super().__init__()
        self._worker = worker

    def get_name(self) -> str:
        return self._worker.name

    @property
    def key(self) -> str:
        """Identifies the worker."""
        return self._worker.key

    def cancel(self) -> bool:
        """Do nothing: only its own program can cancel it."""
        return False

    def end(self) -> None:
        """Note that it has ended, or that no more news of it can come."""
        if not self.done():
            self.set_result(None)


def await_other_programs(
    connection: MemberConnection,
    workers: Iterable[OtherProgramWorker],
    is_joined: Callable[[], bool],
) -> None:
    """End workers of other programs when those report it, or when the connection is lost.

    Args:
        connection: to the register.
        workers: the workers.
        is_over: returns whether the wait has ended.
    """
    waiting = {worker.key: worker for worker in workers}
    if not waiting or is_joined():
        return

    def on_ended(keys: list[str] | None) -> None:
        for key in list(waiting) if keys is None else keys:
            waiting.pop(key).end()
        await_other_programs(connection, waiting.values(), is_joined)

    connection.schedule_request(on_ended, "wait_ended", list(waiting))
