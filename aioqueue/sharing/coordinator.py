"""A coordinator that the processes of one machine share.

Each process has a coordinator of its own, which takes part: it reports what it decides to the
owner's register, and follows what the others decide. So whatever uses a coordinator in a process
uses that of all processes.

**Threads.** The owner's server and a client's thread must not run code of the user. A stop does: it
closes queues and calls callbacks, and failures are unpickled. So each process that takes part has
one more thread, which makes all its calls. In the owner, the register runs in that thread, too.

**Ends.** A process reports the exception that ends it, and waits until the owner has it. How a
process has ended otherwise, its exit status tells.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import re
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import util
from multiprocessing.process import BaseProcess, current_process, parent_process
from time import sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aioqueue.coordination.classify import Classification, classify, failures_behind
from aioqueue.coordination.coordinator import BlockingCoordinator, Coordinator
from aioqueue.coordination.coordinator_core import CoordinatorCore
from aioqueue.coordination.methods import CoordinatorFace
from aioqueue.coordination.workers import current_worker_name
from aioqueue.errors import (
    InvalidArgumentError,
    WorkerDiedError,
    add_note,
    exception_text,
    sent_as,
    set_cause,
)
from aioqueue.processes.failures import RemoteTraceback
from aioqueue.queues.queue_core import QueueCore
from aioqueue.remote.member_connection import MemberConnection
from aioqueue.remote.member_core import MemberCore
from aioqueue.remote.members import ActiveWorker, Failure, MemberRegister, ProgramReport
from aioqueue.sharing import frames
from aioqueue.sharing.addresses import checked_name
from aioqueue.sharing.connection import SharingConnection, connection_to, failure_in
from aioqueue.sharing.owner import Address, ConnectedClient, Server, server, shared_by
from aioqueue.sharing.peers import Peer, how_ended
from aioqueue.sharing.queues import RemoteQueueCore
from aioqueue.system import posix
from aioqueue.system.forks import PROCESS, inherited_error, note_for_forks
from aioqueue.system.locks import call_with_lock
from aioqueue.telemetry.explain.gather import explain_for
from aioqueue.telemetry.explain.registry import known_coordinators
from aioqueue.telemetry.metrics.merging import ProcessNumbers, final, one_after_another
from aioqueue.telemetry.metrics.watch import Watch

if TYPE_CHECKING:
    from aioqueue.base.public_names import World
    from aioqueue.telemetry.explain.explanation import Explanation
    from aioqueue.telemetry.monitor import LocalMonitor

CALL: Final = frames.FIRST_OF_SERVICE
"""A call to the register: its method and arguments."""

_SETTLE_SECONDS: Final = 5.0
"""How long a process waits at most, at its start and its end, until the owner knows its state."""

_ARRIVAL_SECONDS: Final = 2.0
"""How long a process waits at most for a failure that has closed a queue before it has arrived."""

_DEATH_SECONDS: Final = 1.0
"""How long after the end of its connection a process is given to end."""

_CODE_TRIES: Final = 5
_CODE_PAUSE: Final = 0.002
"""How often, and with which pause in seconds, to read an exit code that another thread stores."""

_ANSWER_SECONDS: Final = 0.5
"""How long an explanation, or a monitor, waits for other processes."""


_FRAME: Final = re.compile(r'  File "(.+)", line (\d+)')

_log: Final = logging.getLogger("aioqueue")


class SharedAt(NamedTuple):
    """Where a shared coordinator is."""

    address: Address
    thing: int


class CoordinatorOptions(NamedTuple):
    """What all processes know of a shared coordinator."""

    label: str
    clean_types: tuple[type[BaseException], ...]
    grace: float
    raise_single: bool
    watchdog: float | None


def place_here() -> str:
    """Return what this process is called in messages."""
    processes = sys.modules.get("multiprocessing.process")
    name = "MainProcess" if processes is None else processes.current_process().name
    return f"process {os.getpid()}{'' if name == 'MainProcess' else f' ({name})'}"


class ProcessMember(MemberCore):
    """The coordinator of one process of several."""

    def place(self) -> str:
        return place_here()

    def dumps(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def loads(self, pickled: bytes) -> Any:
        return pickle.loads(pickled)

    def elsewhere(self) -> tuple[Explanation, ...]:
        found: list[Explanation] = []
        answered = threading.Event()

        def receive(explanations: list[bytes] | None) -> None:
            found.extend(map(pickle.loads, explanations or ()))
            answered.set()

        if not self.connection.is_current():
            self.connection.schedule_request(receive, "ask", self._life, "explanation")
            # The owner answers by then, with what it has got.
            answered.wait(2 * _ANSWER_SECONDS)
        return tuple(found)

    def stop(self, error: BaseException | None, worker: str) -> None:
        # A failure elsewhere closes queues there, before its report has come: both travel by
        # themselves. The end of such a queue is no failure of its own, so wait for the real one.
        if error is not None and not self.stopped.is_open and not self.connection.is_current():
            self._wait_for_failure_behind(error)
        super().stop(error, worker)

    def _wait_for_failure_behind(self, error: BaseException) -> None:
        """Wait, for a limited time, for the failure elsewhere that has caused an end."""
        if classify(error, self.clean_types, stopping=True) is Classification.FAILURE:
            return
        if any(sent_as(cause) is not None for cause in failures_behind(error, self.clean_types)):
            self.stopped.wait_blocking(_ARRIVAL_SECONDS)

    _monitor: LocalMonitor | None = None

    def numbers_here(self) -> bytes:
        """Return the numbers of this process, pickled. The first call begins to measure them."""
        if self._monitor is None:
            from aioqueue.telemetry import monitor  # only if anybody watches the run

            self._monitor = monitor.LocalMonitor(self)
        return pickle.dumps(self._monitor.numbers_here(_is_handle))

    def last_numbers(self) -> bytes | None:
        """Return the numbers of this process at its end, if they are measured."""
        return None if self._monitor is None else self.numbers_here()

    def _watched(self) -> Watch:
        return self.watch


def _is_handle(queue: QueueCore) -> bool:
    """Return whether another process owns a queue."""
    return isinstance(queue, RemoteQueueCore)


class Elsewhere:
    """The other processes of a coordinator, for its monitors.

    Args:
        core: the coordinator of this process.
    """

    def __init__(self, core: ProcessMember) -> None:
        self._core = weakref.ref(core)
        self._numbers: list[ProcessNumbers] = []

    def ask(self) -> threading.Event:
        answered = threading.Event()  # of this question: several may be under way
        core = self._core()
        if core is None:
            answered.set()
        else:
            receive = partial(self._receive, answered)
            core.connection.schedule_request(receive, "ask", core.life, "numbers")
        return answered

    def _receive(self, answered: threading.Event, numbers: list[bytes] | None) -> None:
        if numbers is not None:
            self._numbers = list(map(pickle.loads, numbers))
        answered.set()

    def wait(self, answered: threading.Event) -> None:
        core = self._core()
        if core is not None and not core.connection.is_current():
            answered.wait(2 * _ANSWER_SECONDS)

    def numbers(self) -> list[ProcessNumbers]:
        return self._numbers


# The owner.


class OwnerConnection(MemberConnection):
    """Connects the owner's coordinator to the register, which is in the same process.

    Its thread runs the register, for all processes.
    """

    def __init__(self, label: str, core: OwnerCore) -> None:
        super().__init__(label, weakref.ref(core), "aioqueue-shared-coordinator")
        self.service: CoordinatorService | None = None

    def is_connected(self) -> bool:
        return True

    def send(
        self, method: str, arguments: Any, answer: Callable[[Any, Exception | None], object]
    ) -> None:
        assert self.service is not None
        self.service.call(None, method, arguments, lambda value: answer(value, None))

    def send_last(self, report: Any) -> None:
        """Do nothing: the register ends with the owner's coordinator."""

    def died_error(self, error: BaseException) -> WorkerDiedError:
        found = WorkerDiedError(f"{self.label} does not reach the other processes any more")
        found.__cause__ = error
        return found

    def ended_error(self) -> WorkerDiedError:
        return WorkerDiedError(f"{self.label} is no longer shared")


class OwnerCore(ProcessMember):
    """The coordinator of the process that shares it. `take_part` makes it of an ordinary one."""

    connection: OwnerConnection
    at: SharedAt

    def take_part(self, label: str) -> None:
        """Take part from now on, with all workers and failures that there are."""
        MemberCore.become_member(self)  # it may be an ordinary one still
        self.watch.elsewhere = Elsewhere(self)
        self.connection = OwnerConnection(label, self)

    def report_what_was_before(self) -> None:
        """Report the workers, failures and the stop from before this coordinator was shared."""
        for error in self.failures():
            name = self._stopped_by or "a worker"
            failure = self._failure(error, name)
            call_with_lock(self._lock, self._queue_failure, error, failure, name)
        if self.stopped.is_open:
            self._local_stopped_by = self._local_stopped_by or self._stopped_by
        for worker in self._known():
            if worker.is_alive():
                worker.when_ended(self.connection.schedule_report)
        self.connection.schedule_report()


class _ClientState:
    """What the owner knows of a process that takes part.

    Attributes:
        life: its life in the register; empty before its first report.
        has_left: whether it does not use the coordinator any more.
        is_exiting: whether its interpreter ends, and has reported why.
        has_reported_end: whether that was an exception.
        question: what answers its request for a question, while there is one.
        backlog: questions that it has not asked for yet.
        numbers: its latest numbers, pickled, if a monitor has asked for them.
        process: the `multiprocessing.Process`, if this process has started it so.
    """

    __slots__ = (
        *("has_left", "has_reported_end", "is_exiting"),
        *("backlog", "life", "numbers", "process", "question"),
    )

    def __init__(self, process: Any) -> None:
        self.life = ""
        self.has_left = False
        self.is_exiting = False
        self.has_reported_end = False
        self.question: Callable[[tuple[int, str]], object] | None = None
        self.backlog: deque[tuple[int, str]] = deque()
        self.numbers: bytes | None = None
        self.process = process

    def ask(self, question: tuple[int, str]) -> None:
        """Pass a question on, now or when the process asks for one."""
        answer, self.question = self.question, None
        if answer is not None:
            answer(question)
        else:
            self.backlog.append(question)


class _Question:
    """A question to all processes.

    Attributes:
        what: the subject, "explanation", "numbers" or "report".
        missing: the lives that have not answered.
        answers: what has come, by life.
        then: called once, at the end.
    """

    __slots__ = ("answers", "missing", "then", "what")

    def __init__(self, what: str, then: Callable[[_Question], object]) -> None:
        self.what = what
        self.missing: set[str] = set()
        self.answers: dict[str, bytes] = {}
        self.then: Callable[[_Question], object] | None = then

    def finish(self) -> None:
        then, self.then = self.then, None
        if then is not None:
            then(self)


class CoordinatorService:
    """Serves the register of a shared coordinator to all processes.

    Args:
        server: the thread that talks to them.
        core: the coordinator of this process.
        options: what all processes know of it.
    """

    def __init__(self, server: Server, core: OwnerCore, options: CoordinatorOptions) -> None:
        self.label: str = options.label
        self._server = server
        self._core = weakref.ref(core)
        self._kept: OwnerCore | None = None  # while other processes take part
        self._options = options
        self._connection = core.connection
        self._register = MemberRegister(options.label)
        # All below is of the connection's thread.
        self._clients: dict[ConnectedClient, _ClientState] = {}
        self._questions: dict[int, _Question] = {}
        self._question_count = 0
        self._ended: ProcessNumbers | None = None  # of processes that have ended, together
        # Of the server's thread.
        self._waiting: dict[tuple[ConnectedClient, int], None] = {}
        self._is_over = False
        core.connection.service = self
        core.connection.start()

    # In the server's thread.

    def pickled(self, world: World) -> tuple[Any, ...]:
        core = self._core()
        if core is None:
            raise LookupError(f"{self.label} has ended")
        return core.pickled(world)

    def begin(self, client: ConnectedClient, kind: int, number: int, body: memoryview) -> None:
        method, arguments = pickle.loads(body)  # names, texts and pickled failures only
        if self._is_over:
            self._answer_now(client, number, _ENDED)
            return
        self._waiting[client, number] = None
        answer = partial(self._answer, client, number)
        self._connection.call_soon(partial(self.call, client, method, arguments, answer))

    def acknowledge(self, client: ConnectedClient, number: int) -> None:
        """Do nothing: nothing is on lease."""

    def cancel(self, client: ConnectedClient, number: int, body: memoryview) -> bytes:
        """Do nothing: nobody cancels these calls."""
        return b""

    def leave(self, client: ConnectedClient) -> None:
        for key in [key for key in self._waiting if key[0] is client]:
            del self._waiting[key]
        peer = Peer(0)
        peer.pid = client.pid
        if client.peer.sentinel is not None:
            peer.sentinel = os.dup(client.peer.sentinel)
        self._connection.call_soon(partial(self._client_ended, client, peer))

    def finish(self) -> None:
        self._is_over = True
        for client, number in list(self._waiting):
            self._answer_now(client, number, _ENDED)
        self._connection.leave()

    def was_forked(self) -> None:
        """Do nothing: the faces know (`Sharing.adopt_in_fork`)."""

    def _answer_now(self, client: ConnectedClient, number: int, value: Any) -> None:
        self._waiting.pop((client, number), None)
        if not client.has_left:
            client.answer(number, pickle.dumps(value))

    # In the thread of the connection.

    def _answer(self, client: ConnectedClient, number: int, value: Any) -> None:
        self._server.call_soon(partial(self._answer_if_waiting, client, number, value))

    def _answer_if_waiting(self, client: ConnectedClient, number: int, value: Any) -> None:
        if (client, number) in self._waiting:
            self._answer_now(client, number, value)

    def call(
        self,
        client: ConnectedClient | None,
        method: str,
        arguments: Any,
        answer: Callable[[Any], object],
    ) -> None:
        """Make a call to the register; the owner's own calls have no client."""
        state = None
        if client is not None:
            state = self._clients.get(client)
            if state is None:
                state = self._clients[client] = _ClientState(_started_process(client.pid))
                self._kept = self._core()
        register = self._register
        if method == "report":
            (report,) = arguments
            if state is not None:
                if state.life != report.life and not state.has_left:
                    self._end_life(state)  # it has dropped its handle, and got another one
                state.life, state.has_left = report.life, False
            answer(register.report(report))
        elif method in ("news", "wait_ended"):
            has_left = bool if client is None else partial(getattr, client, "has_left")
            getattr(register, method)(*arguments, answer, has_left)
        elif method == "ask":
            self._ask_all(arguments[0], arguments[1], answer)
        elif method == "other_workers":
            # A join must not miss a worker that has just begun: ask for all of now.
            (life,) = arguments
            self._ask_all(life, "report", lambda _: answer(register.other_workers(life)))
        elif state is None:
            answer(getattr(register, method)(*arguments))
        elif method == "leave":
            (report,) = arguments
            state.has_left = state.life == report.life
            if state.has_left:
                self._end_life(state)
            register.leave(report)
            answer(None)
        elif method == "exiting":
            state.is_exiting = True
            state.has_reported_end, numbers = arguments
            state.numbers = numbers or state.numbers
            answer(None)
        elif method == "question":
            if state.backlog:
                answer(state.backlog.popleft())
            else:
                state.question = answer
        elif method == "answer":
            self._take_answer(state, *arguments)
            answer(None)
        else:
            answer(getattr(register, method)(*arguments))

    def _client_ended(self, client: ConnectedClient, peer: Peer) -> None:
        """Remove a process that has ended, and report how, if nobody has requested that end."""
        try:
            state = self._clients.pop(client, None)
            if state is None or not state.life or state.has_left:
                return
            self._end_life(state)
            code = _exit_code(peer, state.process)
            self._end_member(state, code)
        finally:
            peer.close()
            if not self._clients:
                self._kept = None
            self._register.answer_waiting()  # drops what this client has waited for

    def _end_member(self, state: _ClientState, code: int | None) -> None:
        register, life = self._register, state.life
        core = self._core()
        is_over = core is None or core._is_over()
        if code == -signal.SIGINT:
            # Ctrl-C at the terminal reaches all processes at once. It is a stop, no failure.
            register.stop(register.place_of_program(life))
        has_raised = state.has_reported_end or register.has_raised_failure(life)
        is_orderly = (
            code == 0
            or code == -signal.SIGINT
            or (code == -signal.SIGTERM and register.is_stopped)
            or (code is None and state.is_exiting)
            # Its exception has come, with its traceback, or was raised by its join; the exit code
            # follows from it. A launcher may have caught the exception, and exited with the code.
            or (code is not None and code > 0 and has_raised)
            or is_over
        )
        if is_orderly:
            register.dismiss(life)
        else:
            how = how_ended(0, code)
            register.end(
                [life],
                lambda place: f"{place} {how}",
                exitcode=code or 0,
                if_idle=code is not None,
            )

    # Questions.

    def _ask_all(self, life: str, what: str, answer: Callable[[list[bytes]], object]) -> None:
        """Answer with what all processes say, but for the one that asks."""
        self._question_count += 1
        token = self._question_count

        def then(question: _Question) -> None:
            answers = list(question.answers.values())
            if what == "numbers":
                answers = self._all_numbers(question, life)
            answer(answers)

        question = self._questions[token] = _Question(what, then)
        for state in self._clients.values():
            if state.life and state.life != life and not state.has_left:
                question.missing.add(state.life)
                state.ask((token, what))
        core = self._core()
        if core is not None and core.life != life and what == "report":
            self._register.report(core.program_report())
        elif core is not None and core.life != life:
            with suppress(Exception):  # the others have answers nevertheless
                question.answers[core.life] = answer_here(core, what)
        if question.missing:
            finish = partial(self._connection.call_soon, partial(self._finish, token))
            self._server.call_soon(partial(self._server.call_later, _ANSWER_SECONDS, finish))
        else:
            self._finish(token)

    def _all_numbers(self, question: _Question, life: str) -> list[bytes]:
        """Return the latest numbers of all processes but one, also of those that have ended.

        They are those of now, whatever a process has answered to this question: a process may have
        ended since, and counts among those, or have answered a later question.
        """
        here = question.answers.values()
        others = [state.numbers for state in self._clients.values() if state.life != life]
        ended = [] if self._ended is None else [pickle.dumps(self._ended)]
        return [*here, *(one for one in others if one is not None), *ended]

    def _take_answer(self, state: _ClientState, token: int, what: str, answer: bytes) -> None:
        # Also if the question is over: a busy process always answers late. But not after the last
        # numbers, which come with the end of a process: they may overtake an answer from before.
        is_last = state.is_exiting and state.numbers is not None
        if what == "numbers" and not is_last:
            state.numbers = answer
        question = self._questions.get(token)
        if question is not None and state.life in question.missing:
            if what != "numbers":
                question.answers[state.life] = answer
            self._miss(question, state.life)

    def _end_life(self, state: _ClientState) -> None:
        """Note that a process has ended, or does not use the coordinator any more."""
        numbers, state.numbers = state.numbers, None
        if numbers is not None:
            self._ended = one_after_another(self._ended, final(pickle.loads(numbers)))
        # Now: a question that only this process has not answered is over with this.
        for question in list(self._questions.values()):
            self._miss(question, state.life)

    def _miss(self, question: _Question, life: str) -> None:
        question.missing.discard(life)
        if not question.missing:
            question.finish()

    def _finish(self, token: int) -> None:
        question = self._questions.pop(token, None)
        if question is not None:
            question.finish()


class _Ended:
    """The answer to all calls at the orderly end of the owner."""

    def __reduce__(self) -> str:
        return "_ENDED"


_ENDED: Final = _Ended()


def answer_here(core: ProcessMember, what: str) -> bytes:
    """Return what this process answers to a question, pickled."""
    if what == "numbers":
        return core.numbers_here()
    return pickle.dumps(explain_for(known_coordinators(), everywhere=False))


def _started_process(pid: int) -> Any:
    """Return the `multiprocessing.Process` of a child, which keeps its exit code."""
    processes = sys.modules.get("multiprocessing.process")
    for _ in range(3):
        try:
            children = list(getattr(processes, "_children", ()))
        except RuntimeError:  # another thread has started one in the meantime
            continue
        return next((child for child in children if child.pid == pid), None)
    return None


def _exit_code(peer: Peer, process: Any) -> int | None:
    """Return how a process has ended; ``None`` if that is not known, or if it has not ended."""
    if peer.sentinel is not None and not posix.is_readable(peer.sentinel, _DEATH_SECONDS):
        return None
    code = peer.exit_code()
    for _ in range(_CODE_TRIES if process is not None else 0):
        if code is not None:
            break
        # The kernel has forgotten it, because a thread here has waited for it, and stores it now.
        # Asking for it (`process.exitcode`) could take it from that thread.
        code = getattr(process._popen, "returncode", None)
        if code is None:
            sleep(_CODE_PAUSE)
    return code


# Another process.


class _RegisterCall:
    """A call to the register that has no answer yet.

    Args:
        connection: the connection to the owner.
        thing: the number of the coordinator there.
        answer: called with the answer, or with why no answer came.
    """

    def __init__(
        self,
        connection: SharingConnection,
        thing: int,
        answer: Callable[[bytes | None, Exception | None], object],
    ) -> None:
        self.number = 0
        self.thing = thing
        self._connection = connection
        self._answer = answer

    def answered(self, kind: int, body: memoryview) -> None:
        self._connection.forget(self)
        if kind == frames.OK:
            self._answer(bytes(body), None)
        else:
            self._answer(None, failure_in(body))

    def cut_off(self) -> None:
        self._answer(None, _CutOffError())


class _CutOffError(Exception):
    """The connection has ended; why, the thread of the coordinator finds out."""


class ProcessConnection(MemberConnection):
    """The connection of a process to the register in the owner."""

    def __init__(self, shared: SharedAt, label: str, core: ProcessCore) -> None:
        super().__init__(label, weakref.ref(core), "aioqueue-shared-coordinator")
        self._connection = connection_to(shared.address)
        self._thing = shared.thing
        self._process = PROCESS.number
        self._is_ended_in_order = False

    def check(self) -> None:
        if self._process != PROCESS.number:
            raise inherited_error(self.label)

    def is_connected(self) -> bool:
        return not self._connection.has_ended

    @property
    def has_ended_in_order(self) -> bool:
        """Whether the owner has ended the coordinator, or itself, in order."""
        return self._is_ended_in_order or self._connection.ended_in_order or self._exit_code() == 0

    def _exit_code(self) -> int | None:
        """Return how the owner has ended, if that is known."""
        while True:
            try:
                return self._connection.peer.exit_code()
            except (OSError, ValueError):
                # The connection's thread has closed the descriptor just now, and knows the code.
                if self._connection.peer.sentinel is not None:
                    raise

    def send(
        self, method: str, arguments: Any, answer: Callable[[Any, Exception | None], object]
    ) -> None:
        body = pickle.dumps((method, arguments))
        self._connection.begin(_RegisterCall(self._connection, self._thing, answer), CALL, body)
        self._connection.need_reader()

    def answer_questions(self) -> None:
        """Explain this process whenever another one asks."""
        self.schedule_request(self._on_question, "question")

    def _on_question(self, question: tuple[int, str] | None) -> None:
        coordinator: Any = self._coordinator()
        if question is not None and coordinator is not None:
            token, what = question
            try:
                if what == "report":  # first the report, then the word that it has come
                    self.schedule_report()
                    self.schedule_request(bool, "answer", token, what, b"")
                else:
                    answer = answer_here(coordinator, what)
                    self.schedule_request(bool, "answer", token, what, answer)
            except Exception:  # it is no reason to take part no longer
                _log.exception("%s cannot say what others ask of it: its %s", self.label, what)
            self.answer_questions()

    def decoded(self, answer: bytes) -> Any:
        found = pickle.loads(answer)
        if found is _ENDED:
            self._is_ended_in_order = True
            raise self.ended_error()
        return found

    def send_last(self, report: ProgramReport) -> None:
        self.send("leave", (report,), lambda *_: None)

    def died_error(self, error: BaseException) -> WorkerDiedError:
        if isinstance(error, _CutOffError):
            error = self._connection.end_error()
        found = WorkerDiedError(
            f"{self.label}: {exception_text(error)}; stops and failures of other processes no"
            " longer arrive",
            exitcode=getattr(error, "exitcode", 0),
        )
        if not isinstance(error, WorkerDiedError):
            found.__cause__ = error
        return found

    def ended_error(self) -> WorkerDiedError:
        if self._connection.has_ended:
            return self.died_error(_CutOffError())
        return WorkerDiedError(f"{self.label} has ended")


class ProcessCore(ProcessMember):
    """The coordinator of a process that got a handle.

    Args:
        shared: where the coordinator is.
        options: what all processes know of it.

    Raises:
        WorkerDiedError: its owner has died.
    """

    connection: ProcessConnection

    def __init__(self, shared: SharedAt, options: CoordinatorOptions) -> None:
        super().__init__(options.clean_types, options.watchdog)
        self._owner = shared.address.pid
        self.watch.elsewhere = Elsewhere(self)
        self.connection = ProcessConnection(shared, options.label, self)
        self.connection.start()
        leaving = weakref.finalize(self, self.connection.leave)
        # Since Python 3.13, what a started process does at its exit comes before `_end_members`.
        leaving.atexit = _process_if_started() is None
        self.connection.answer_questions()
        # A stop from before is known once this process and the owner have heard of each other.
        self.settle()
        _end_with_process(self)

    def stop(self, error: BaseException | None, worker: str) -> None:
        # A stop closes queues. That a shared queue is closed may be seen here before the stop has
        # come: the owner knows whether one has caused this.
        if (
            error is not None
            and not self.stopped.is_open
            and classify(error, self.clean_types, stopping=True) is Classification.STOP
        ):
            self.settle()
        super().stop(error, worker)

    def settle(self) -> None:
        """Wait, for a limited time, until the owner knows this process, and the other way round."""
        if self.connection.is_current():
            return
        settled = threading.Event()
        self.connection.call_when_settled(settled.set)
        settled.wait(_SETTLE_SECONDS)

    def begin_work(self) -> ActiveWorker:
        work = super().begin_work()
        self.settle()  # from now on, the owner reports the death of this worker
        return work

    def failure_elsewhere(self, failure: Failure) -> Exception:
        # Each process that joins raises it, so that none goes on as if all were well. But only the
        # owner shows its traceback: else the terminal would have it once per process.
        error = super().failure_elsewhere(failure)
        there = error.__cause__
        if isinstance(there, RemoteTraceback):
            (*_, (file, line)) = _FRAME.findall(there.text)
            whole = f"process {self._owner}, which shares the coordinator, reports its traceback"
            add_note(error, f"raised at {file}:{line}; {whole}")
            set_cause(error, None)
        return error

    def connection_lost(self, error: Exception) -> None:
        """Handle the end of the owner: if it was in order, it is a stop like any other."""
        if not self.connection.has_ended_in_order:
            super().connection_lost(error)
        elif not self._is_over():
            CoordinatorCore.stop(
                self, None, f"the owner of {self.connection.label}, which has ended"
            )

    def end_process(self, error: BaseException | None) -> None:
        """Report the end of this process, and wait until the owner has what it has failed with.

        Args:
            error: the exception that ends it, if one does.
        """
        connection = self.connection
        if connection.ended_by is not None:
            return
        if isinstance(error, SystemExit):
            error = None  # the exit code will tell
        if error is not None:
            traceback = error.__traceback__
            error.__traceback__ = _part_of_user(traceback)
            try:
                self.stop(error if isinstance(error, Exception) else None, current_worker_name())
            finally:
                error.__traceback__ = traceback  # Python prints it
        connection.schedule_request(bool, "exiting", error is not None, self.last_numbers())
        self.settle()


# The end of a process.


def _part_of_user(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the function on, that `multiprocessing` has called."""
    part = traceback
    while part is not None and part.tb_frame.f_globals.get("__name__") == "multiprocessing.process":
        part = part.tb_next
    return part or traceback


_members: Final[weakref.WeakSet[ProcessCore]] = weakref.WeakSet()
_registered_in: list[int] = []  # the process whose end is watched


def _end_with_process(core: ProcessCore) -> None:
    """Report the end of this process to the owner of a coordinator."""
    _members.add(core)
    if PROCESS.number in _registered_in:
        return
    _registered_in[:] = [PROCESS.number]
    started = _process_if_started()
    if started is None:
        atexit.register(_at_exit)
    else:
        started.name = _NameOfProcess(started.name)
        util.Finalize(None, _end_members, exitpriority=_FINALIZER)


def _process_if_started() -> BaseProcess | None:
    """Return this process if `multiprocessing` has started it, and handles what ends it."""
    return current_process() if parent_process() is not None else None


_FINALIZER: Final = -10
"""After the finalizers of users, and of queues of `multiprocessing`, which send what they have."""


class _NameOfProcess(str):
    """The name of a process that `multiprocessing` has started. It notes what ends the process.

    In Python 3.11 and 3.12.1, finalizers run in the course of that exception. In 3.13, they run
    when it has been handled, and nothing has it any more. Where `multiprocessing` handles it, it
    writes the name of the process.

    Attributes:
        end: the exception.
    """

    end: BaseException | None = None

    def __str__(self) -> str:
        if sys._getframe(1).f_globals.get("__name__") == "multiprocessing.process":
            self.end = sys.exc_info()[1]
        return str.__str__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str.__str__(self),)  # others need only the name


def _at_exit() -> None:
    if not hasattr(sys, "ps1"):  # else it is the last error of an interactive session
        _end_members(getattr(sys, "last_value", None))
    else:
        _end_members()


def _end_members(error: BaseException | None = None) -> None:
    error = error or sys.exc_info()[1]
    if error is None and (started := _process_if_started()) is not None:
        error = getattr(started.name, "end", None)
    for core in list(_members):
        core.end_process(error)
    _members.clear()


# Handles.


if TYPE_CHECKING:
    _Face = CoordinatorFace
else:
    _Face = object  # each handle has a face as its other base


class SharedFace(_Face):
    """What a handle does in another way than the coordinator that its process owns.

    Attributes:
        _shared: where the coordinator is.
        _options: what all processes know of it.
        _is_block_inherited: whether the block that it is in was entered in the parent of this fork.
    """

    _shared: SharedAt
    _options: CoordinatorOptions
    _is_block_inherited = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # The attribute exists once the handle is used in this process.
            if name != "_core":
                return object.__getattribute__(self, name)  # for its error
            core = self._core = _handles.core_at(self._shared, self._options)
            return core

    def _was_forked(self) -> None:
        if "_core" in vars(self):  # else this process has not used it, and has nothing of it
            super()._was_forked()

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (self._world, self._shared, self._options)

    def __repr__(self) -> str:
        if "_core" in vars(self):
            return super().__repr__()
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return f"<{kind} shared by process {self._shared.address.pid}>"

    def _enter(self) -> None:
        super()._enter()
        self._is_block_inherited = False

    def _leaves_inherited_block(self, error: BaseException | None) -> bool:
        # Before any look at the core: this process would take part.
        if self._is_block_inherited and error is None:
            raise inherited_error("the block of this coordinator")
        return self._is_block_inherited


_CLASSES: Final[dict[World, type[CoordinatorFace]]] = {
    "aio": Coordinator,
    "sync": BlockingCoordinator,
}
_handle_classes: Final[dict[type, type]] = {}


def _handle_class(local: type[CoordinatorFace]) -> type:
    """Return the class of the handles of a coordinator; users may have a subclass of ours."""
    found = _handle_classes.get(local)
    if found is None:
        ours = _CLASSES[local._world]
        names = {"__module__": ours.__module__, "__doc__": local.__doc__}
        found = _handle_classes[local] = type(local.__name__, (SharedFace, local), names)
    return found


def restored(world: World, shared: SharedAt, options: CoordinatorOptions) -> Any:
    """Return the face of a coordinator that was pickled: itself, in the process that owns it."""
    local: Any = _CLASSES[world]
    core = _handles.owned(shared)
    if core is not None:
        face = core.shared.face()
        if face is not None:
            return face if face._world == world else face._as(world)
    cls: Any = _handle_class(local) if core is None else local
    face = cls.__new__(cls)
    face._peer, face._grace, face._raise_single = None, options.grace, options.raise_single
    if core is not None:
        face._core = core
    else:
        face._shared, face._options = shared, options
    note_for_forks(face)
    return face


class _Handles:
    """The coordinators behind the handles of this process.

    Attributes:
        kept: those of the parent, in a fork: their ends would concern the parent.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards what follows
        self._cores: weakref.WeakValueDictionary[SharedAt, CoordinatorCore]
        self._cores = weakref.WeakValueDictionary()
        self.kept: list[object] = []
        note_for_forks(self)

    def _was_forked(self) -> None:
        self._lock = threading.RLock()
        _members.clear()  # their ends are the parent's
        self.kept.extend(self._cores.values())
        self._cores = weakref.WeakValueDictionary()

    def add(self, shared: SharedAt, core: CoordinatorCore) -> None:
        """Add the coordinator that this process shares."""
        call_with_lock(self._lock, self._cores.__setitem__, shared, core)

    def owned(self, shared: SharedAt) -> OwnerCore | None:
        """Return a coordinator that this process shares."""
        found = call_with_lock(self._lock, self._cores.get, shared)
        return found if isinstance(found, OwnerCore) else None

    def core_at(self, shared: SharedAt, options: CoordinatorOptions) -> CoordinatorCore:
        """Return the coordinator of this process; the first call takes part.

        Raises:
            WorkerDiedError: the process that shares it has ended.
        """
        return call_with_lock(self._lock, self._found_or_made, shared, options)

    def _found_or_made(self, shared: SharedAt, options: CoordinatorOptions) -> CoordinatorCore:
        core = self._cores.get(shared)
        if core is None:
            if shared.address.pid == os.getpid():
                raise WorkerDiedError(f"{options.label} has ended: this process has dropped it")
            core = self._cores[shared] = ProcessCore(shared, options)
            core.shared = Sharing(None, shared, options)
        return core


_handles: Final = _Handles()


def _nothing() -> None:
    """There is no face."""


class Sharing:
    """How this process shares a coordinator.

    Args:
        face: the face that was asked to share it, in the owner.
        at: where it is.
        options: what all processes know of it.
    """

    def __init__(
        self, face: CoordinatorFace | None, at: SharedAt, options: CoordinatorOptions
    ) -> None:
        self.face: Callable[[], CoordinatorFace | None] = (
            _nothing if face is None else weakref.ref(face)
        )
        self.end: Callable[[], object] = bool
        """Shares it no longer: the other processes stop."""
        self.origin = shared_by(at.address) if face is None else ""
        """Who shares it, for the text of a face, if that is another process."""
        self._at = at
        self._options = options

    def pickled(self, world: World) -> tuple[Any, ...]:
        """Return what a face of it is pickled as."""
        return restored, (world, self._at, self._options)

    def adopt_in_fork(self, face: Any) -> None:
        """Make the parent's face one that takes part in this fork, at its first use here."""
        core = face.__dict__.pop("_core")
        face._is_block_inherited = core.was_entered
        # What has it here has a coordinator of its own: the other processes are the parent's.
        core.__class__ = CoordinatorCore
        core.shared = self
        _handles.kept.append(core)
        if not isinstance(face, SharedFace):
            face.__class__ = _handle_class(type(face))
        face._shared, face._options, face._peer = self._at, self._options, None


def share(face: CoordinatorFace, name: str | None) -> None:
    """Share a coordinator; see `CoordinatorFace.share`."""
    if name is not None:
        name = checked_name(name)
    if isinstance(face, SharedFace):
        if name is not None:
            raise InvalidArgumentError(
                f"name: got {name!r} for {face!r}, which another process owns; name it there"
            )
        return
    owner = server()
    number = call_with_lock(face._core._lock, _shared_number, face, owner, name)
    if name is not None:
        owner.add_name(name, number)


def _shared_number(face: CoordinatorFace, owner: Server, name: str | None) -> int:
    """Return the number of a shared coordinator; the first call shares it."""
    core = face._core
    if isinstance(core, OwnerCore):
        return core.at.thing
    if type(core) is not CoordinatorCore:
        raise TypeError(
            f"{face!r} is a coordinator of a cluster: make one there with the same name"
        )
    label = f"the coordinator of process {os.getpid()}" if name is None else f"coordinator '{name}'"
    options = CoordinatorOptions(
        label, core.clean_types, face._grace, face._raise_single, core.watchdog
    )
    # All that uses this coordinator has this very object: faces, runners, workers. So it becomes
    # one that takes part, rather than another one doing so in its place. Under its lock nobody is
    # in the middle of a change.
    owned: Any = core
    OwnerCore.take_part(owned, label)  # first, since other threads may stop it at any time
    core.__class__ = OwnerCore
    assert isinstance(core, OwnerCore)
    service = CoordinatorService(owner, core, options)
    core.at = SharedAt(owner.address, owner.add(service))
    core.shared = Sharing(face, core.at, options)
    _handles.add(core.at, core)
    # It is served while anybody here has it, or another process takes part.
    core.shared.end = weakref.finalize(core, _end_service, owner, core.at.thing, service)
    core.report_what_was_before()
    return core.at.thing


def _end_service(owner: Server, thing: int, service: CoordinatorService) -> None:
    owner.call_soon(service.finish)
    owner.call_soon(partial(owner.remove, thing))  # then: the others have learned of the end
