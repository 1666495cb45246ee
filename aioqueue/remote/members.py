"""A coordinator of several programs: the programs, their workers, and all failures.

It holds an ordinary coordinator, which decides what counts as a failure. Programs and this register
exchange their state rather than changes of it, so repeated, reordered or lost messages do no harm.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from aioqueue.coordination.coordinator_core import CoordinatorCore
from aioqueue.errors import WorkerDiedError, counted
from aioqueue.processes.failures import failure_of_message, message_of_failure
from aioqueue.telemetry.explain.registry import forget_coordinator


class ActiveWorker(NamedTuple):
    """A worker that has not ended, as its program reports it."""

    key: str
    """Identifies the worker; for a task of Ray, its id."""
    name: str
    """Its name in messages."""
    is_local: bool = True
    """Whether it runs in the reporting program; otherwise that program waits for a task
    elsewhere."""


class Failure(NamedTuple):
    """A failure, as it is sent."""

    message: bytes
    """The result of `message_of_failure`."""
    worker: str
    """The worker that failed."""
    place: str
    """Where it failed: the process, and on a cluster the actor, task and node."""


class ProgramReport(NamedTuple):
    """The state of a program."""

    life: str
    """Identifies the program."""
    place: str
    """Where it runs, as text."""
    run: int
    """The run that it is in; `clear_stop` starts a new one."""
    number: int
    """How many reports it has made before."""
    workers: Sequence[ActiveWorker]
    """Its workers that have not ended."""
    acknowledged: int
    """How many of its failures the register is known to have."""
    failures: Sequence[Failure]
    """Its later failures."""
    stopped_by: str | None
    """Who requested a stop there."""
    is_joined: bool
    """Whether a join there has reported all failures."""
    joining: Sequence[str]
    """Its tasks that wait in a join; other joins do not wait for them."""
    seen: int
    """How many failures of the cluster it knows."""


class News(NamedTuple):
    """The state of the cluster."""

    run: int
    total: int
    """Number of failures."""
    failures: Sequence[tuple[int, Failure]]
    """Failures of others that the requesting program does not have yet, with their numbers."""
    stopped_by: str | None
    """Who requested the stop; ``None`` if nobody did."""
    taken: int
    """How many failures of the requesting program the register has."""


class _Member:
    """A program that takes part.

    Attributes:
        place: where it runs.
        number: number of its latest report.
        workers: its workers that have not ended.
        joining: its tasks that wait in a join.
        taken: how many of its failures were recorded.
        has_joined: whether a join there has reported all failures.
    """

    def __init__(self, taken: int) -> None:
        self.place = ""
        self.number = -1
        self.workers: dict[str, ActiveWorker] = {}
        self.joining: frozenset[str] = frozenset()
        self.taken = taken
        self.has_joined = False

    def local_names(self) -> list[str]:
        """Return the names of the workers that end with it."""
        return [worker.name for worker in self.workers.values() if worker.is_local]


def _judge() -> CoordinatorCore:
    """Make the coordinator that decides what counts as a failure; it has no workers itself."""
    core = CoordinatorCore(())  # the program of a clean stop has filtered it already
    forget_coordinator(core)
    return core


_Wait: TypeAlias = tuple[Callable[[], bool], Callable[[], object]]
"""Whether a request is due, and what answers it."""


class MemberRegister:
    """The programs of one coordinator. All its calls come from one thread.

    Args:
        label: what the coordinator is called in messages.
        dumps: pickles failures.
        loads: unpickles failures.
    """

    def __init__(
        self,
        label: str,
        dumps: Callable[[Any], bytes] = pickle.dumps,
        loads: Callable[[bytes], Any] = pickle.loads,
    ) -> None:
        self._label = label
        self._dumps, self._loads = dumps, loads
        self._run = 0
        self._core = _judge()
        self._failures: list[tuple[str, Failure]] = []  # with the program of each
        self._has_unreported_failure = False  # whether some failure was in no join's report
        self._stopped_by: str | None = None
        self._members: dict[str, _Member] = {}
        self._ended: set[str] = set()  # tasks known to have ended
        self._waits: list[_Wait] = []  # requests that wait for a change

    # Reports of programs.

    def report(self, report: ProgramReport) -> News:
        """Accept the report of a program; return the news for it."""
        member = self._members.setdefault(report.life, _Member(report.acknowledged))
        member.place = report.place
        if report.run == self._run:
            self._accept_failures(member, report)
            if report.stopped_by is not None:
                self._stop(report.stopped_by)
            member.has_joined = report.is_joined
            if report.is_joined:
                self._has_unreported_failure = False
            # Failures are counted, so a late report does no harm. A late list of workers would
            # bring back workers that have ended.
            if report.number > member.number:
                member.number = report.number
                member.joining = frozenset(report.joining)
                self._update_workers(member, report.workers)
        self.answer_waiting()
        return self._news(report.life, report.seen if report.run == self._run else 0)

    def leave(self, report: ProgramReport) -> None:
        """Accept the last report of a program."""
        self.report(report)
        self.dismiss(report.life)

    def clear(self, run: int) -> int:
        """Forget the stop and all failures, unless another program already has; return the new
        run."""
        if run == self._run:
            self._reset()
        return self._run

    def _accept_failures(self, member: _Member, report: ProgramReport) -> None:
        # The report repeats the failures whose acknowledgement the program does not have yet.
        for failure in report.failures[member.taken - report.acknowledged :]:
            member.taken += 1
            self._record(report.life, failure)

    def _record(self, life: str, failure: Failure) -> None:
        error = failure_of_message(failure.message, failure.place, self._loads)
        self._core.stop(error, failure.worker)
        if any(error is known for known in self._core.failures()):
            self._failures.append((life, failure))
            self._has_unreported_failure = True
        if self._stopped_by is None:
            self._stopped_by = failure.worker

    def stop(self, stopped_by: str) -> None:
        """Stop all programs, without a failure."""
        self._stop(stopped_by)
        self.answer_waiting()

    def _stop(self, stopped_by: str) -> None:
        self._core.stop(None, stopped_by)
        if self._stopped_by is None:
            self._stopped_by = stopped_by

    def _update_workers(self, member: _Member, workers: Sequence[ActiveWorker]) -> None:
        now = {worker.key: worker for worker in workers}
        # A program that waits for a task learns of its end even if the task's process died and
        # cannot report it.
        over = {key for key, one in member.workers.items() if not one.is_local and key not in now}
        self._ended |= over
        member.workers = now
        # Also in the list of the task's own process, which may have died without a report.
        for one in self._members.values():
            for key in self._ended & one.workers.keys():
                del one.workers[key]

    # Requests of programs.

    def news(
        self,
        life: str,
        run: int,
        seen: int,
        is_stopped: bool,
        then: Callable[[News], object],
        has_left: Callable[[], bool] = bool,
    ) -> None:
        """Answer with the state of the cluster as soon as it has news for a program.

        Args:
            life: the program.
            run: the run that it knows.
            seen: how many failures it knows.
            is_stopped: whether it knows of a stop.
            then: called with the news.
            has_left: returns whether nobody waits for the answer any more.
        """
        self._answer_when(
            lambda: (
                has_left()
                or self._run != run
                or len(self._failures) > seen
                or (self._stopped_by is not None and not is_stopped)
            ),
            lambda: then(self._news(life, seen if self._run == run else 0)),
        )

    def other_workers(self, life: str) -> list[ActiveWorker]:
        """Return the workers of all other programs that have not ended and are in no join."""
        joining = self._joining()
        return [
            worker._replace(name=f"{worker.name} ({member.place})")
            for other, member in self._members.items()
            if other != life
            for worker in member.workers.values()
            if worker.key not in joining
        ]

    def wait_ended(
        self,
        keys: Collection[str],
        then: Callable[[list[str]], object],
        has_left: Callable[[], bool] = bool,
    ) -> None:
        """Answer with those of some workers that have ended, as soon as one has."""
        self._answer_when(
            lambda: has_left() or bool(self._ended_among(keys)),
            lambda: then(self._ended_among(keys)),
        )

    def place_of(self, key: str) -> str:
        """Return where a worker runs; empty if unknown."""
        for member in self._members.values():
            worker = member.workers.get(key)
            if worker is not None and worker.is_local:
                return f"{worker.name}, {member.place}"
        return ""

    def place_of_program(self, life: str) -> str:
        """Return where a program runs."""
        member = self._members.get(life)
        return "" if member is None else member.place

    def has_raised_failure(self, life: str) -> bool:
        """Return whether a program has failed, or a join there has raised what failed elsewhere."""
        member = self._members.get(life)
        if member is None:
            return False
        return bool(member.taken or (member.has_joined and self._failures))

    # For observers.

    @property
    def is_stopped(self) -> bool:
        return self._stopped_by is not None

    def joining(self) -> int:
        return sum(len(member.joining) for member in self._members.values())

    def programs(self) -> int:
        return len(self._members)

    def _news(self, life: str, seen: int) -> News:
        member = self._members.get(life)
        fresh = [
            (number, failure)
            for number, (whose, failure) in enumerate(self._failures[seen:], seen)
            if whose != life
        ]
        taken = 0 if member is None else member.taken
        return News(self._run, len(self._failures), fresh, self._stopped_by, taken)

    def _ended_among(self, keys: Collection[str]) -> list[str]:
        alive = {key for member in self._members.values() for key in member.workers}
        alive -= self._joining()
        return [key for key in keys if key not in alive]

    def _joining(self) -> set[str]:
        return {key for member in self._members.values() for key in member.joining}

    def _answer_when(self, is_due: Callable[[], bool], answer: Callable[[], object]) -> None:
        if is_due():
            answer()
        else:
            self._waits.append((is_due, answer))

    def answer_waiting(self) -> None:
        """Answer the requests that are due; their programs may have left."""
        # An answer may bring a request that waits again: it goes into the new list.
        waits, self._waits = self._waits, []
        for is_due, answer in waits:
            self._answer_when(is_due, answer)

    # Members.

    def end(
        self,
        lives: Iterable[str],
        describe: Callable[[str], str],
        *,
        died: str = "died",
        exitcode: int = 0,
        if_idle: bool = False,
    ) -> None:
        """Remove programs that have died. Workers that they had are a failure.

        Args:
            lives: the programs.
            describe: returns what has happened to a program; called with where it ran.
            died: what its workers did.
            exitcode: the exit code of their processes, or minus the signal, if that is known.
            if_idle: whether it is a failure even if the program had no workers.
        """
        dead = [life for life in lives if life in self._members]
        for life in dead:
            # With no program left, nobody needs the news, and a later program starts afresh.
            if len(dead) < len(self._members):
                text = self._text_of_death(self._members[life], describe, died, if_idle)
                if text:
                    self._record_death(self._members[life], text, exitcode)
        for life in dead:
            self.dismiss(life)

    def _text_of_death(
        self, member: _Member, describe: Callable[[str], str], died: str, if_idle: bool
    ) -> str:
        """Return the message about a program that has died; empty if it is no failure."""
        what = describe(member.place)
        kept = member.local_names()
        if kept:
            return f"{counted(len(kept), 'worker')} ({', '.join(kept)}) {died}: {what}"
        return what if if_idle else ""

    def _record_death(self, member: _Member, text: str, exitcode: int) -> None:
        error = WorkerDiedError(f"{self._label}: {text}", exitcode=exitcode)
        message = message_of_failure(error, self._dumps, self._loads)
        names = ", ".join(member.local_names())
        self._record("", Failure(message, names or member.place, member.place))

    def dismiss(self, life: str) -> None:
        """Remove a program that has left."""
        del self._members[life]
        # A failure that no join has reported waits for the next program.
        if not self._members and not self._has_unreported_failure:
            self._reset()
        self.answer_waiting()

    def _reset(self) -> None:
        self._run += 1
        self._core = _judge()
        self._failures = []
        self._has_unreported_failure = False
        self._stopped_by = None
        self._ended = set()
        for member in self._members.values():
            member.taken, member.has_joined = 0, False
        self.answer_waiting()
