"""The child process of a generation, as the trainer's process sees it.

The rules stay here, with the trainer; the calls run in the child, and so does the gate for their
first steps (see `aioqueue.rl.child`). Each call that the rules start is *granted*: the child starts
it in its turn, without a question. The rules therefore start all calls that the slots allow, and
the child keeps ``max_in_flight``. Nothing more could be admitted while the trainer is busy, with
the rules in whatever process: a slot gets free by a step that is done, or by ``accept=``.

Two threads talk to the child, neither of them with an event loop. One sends, all that there is at a
time. The other starts the process, receives, and starts another one when it has died. It also
unpickles results, and calls a plain ``accept=``.

**A publication** revokes what was granted, and begins when the child has confirmed that
(`RolloutCore.pause`). A child that has died, or is not ready, has nothing to confirm.

**A death** fails the calls that had begun, as `WorkerDiedError`: retries and ``on_error`` decide as
for other failures. Calls that had not begun start in the next process.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from aioqueue.coordination.cancellations import is_scope_cancelled
from aioqueue.errors import WorkerDiedError, add_note, counted
from aioqueue.processes.arena import unpack
from aioqueue.processes.failures import failure_of_message
from aioqueue.processes.fork_server.bootstrap import CannotStartError
from aioqueue.processes.function_pickles import not_importable
from aioqueue.processes.respawning import RespawnPolicy, how_it_ended
from aioqueue.processes.worker_process import WorkerProcess, cannot_start, end_at_exit
from aioqueue.rl.child import ChildSetup, Starts
from aioqueue.rl.child import work as child_work
from aioqueue.rl.rollout import Rollout
from aioqueue.system.locks import call_with_lock
from aioqueue.worlds.scopes import Gate
from aioqueue.worlds.waker import running_loop

if TYPE_CHECKING:
    from aioqueue.rl.core import RolloutCore
    from aioqueue.rl.hosts import LoopHost, Work
    from aioqueue.rl.machine import MachineGroup, RolloutCall

_ARENA: Final = 128 * 2**20
"""Bytes for the large parts of results on their way. Unused pages take no memory; parts that do not
fit go through the pipe."""

_ANSWER: Final = 0.25
"""Seconds that a process has to say where a call is."""

_log: Final = logging.getLogger("aioqueue")

Outbox = SimpleQueue[tuple[Any, ...] | None]
"""Messages on their way to the child; ``None`` for the last."""


class _Granted:
    """A call that the child has.

    Attributes:
        call: the call.
        has_begun: whether the child has reported its first step.
        rollout: that of a call that has begun and was wanted then.
    """

    __slots__ = ("call", "has_begun", "rollout")

    def __init__(self, call: RolloutCall) -> None:
        self.call = call
        self.has_begun = False
        self.rollout: Rollout[Any] | None = None


class ProcessCalls:
    """Has the calls of one function run in a child process. Made in an event loop.

    Attributes:
        ended: opens when the last process has ended, after `close`.
    """

    def __init__(self, core: RolloutCore, host: LoopHost, work: Work) -> None:
        self._core = core
        self._host = host
        self._work = work
        self._backend = _backend()
        self.ended: Final = Gate()
        self._policy = RespawnPolicy()
        self._numbers = itertools.count()
        self._lock = threading.RLock()  # guards everything below; taken after that of the core
        self._granted: dict[int, _Granted] = {}
        self._by_call: dict[RolloutCall, int] = {}
        self._groups: dict[MachineGroup, list[int]] = {}
        """What the child has: the number of each group, and of how many calls."""
        self._outbox: Outbox = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process: WorkerProcess | None = None
        self._is_up = False
        """Whether the process has the gate: it must confirm that it has closed it."""
        self._is_closing = False
        self._has_sent_stop = False
        self._publication = 0
        self._reported = 0
        """How many starts the process has reported."""
        self._broken: BaseException | None = None
        self._times_cancelled = 0
        self._start_began: float | None = None
        """When the process was started, while it is not ready; else ``None``."""
        self._answers: dict[int, SimpleQueue[str]] = {}

    # ---- from any thread ---------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether no call is left."""
        return not self._granted

    def start(self, call: RolloutCall) -> None:
        """Grant a call."""
        prompt: bytes | None = None
        error = self._broken
        if error is None and call.group not in self._groups:
            try:
                prompt = pickle.dumps(call.group.prompt.value, 5)
            except Exception as raised:
                add_note(raised, "while pickling the prompt for the process of the generation")
                error = raised
        if error is not None:
            self._core.failed(call, error, None)
            return
        with self._lock:
            number = next(self._numbers)
            self._granted[number] = _Granted(call)
            self._by_call[call] = number
            group = self._groups.get(call.group)
            if group is None:
                if prompt is None:  # the last call of its group has ended just now
                    prompt = pickle.dumps(call.group.prompt.value, 5)
                group = self._groups[call.group] = [next(self._numbers), 0]
                evaluation = call.group.payload.evaluation
                ordinal = call.group.ordinal if evaluation is None else evaluation.number
                self._outbox.put(("group", group[0], ordinal, prompt, evaluation is not None))
            group[1] += 1
            self._outbox.put(("start", number, _key(call), group[0], call.index, call.attempt))
            is_first, thread = self._thread is None, None
            if is_first:
                end_at_exit(self)
                name = f"aioqueue-{self._core.name}-process"
                thread = self._thread = threading.Thread(target=self._talk, name=name, daemon=True)
        if thread is not None:
            self._core.add_child(self)
            thread.start()

    def cancel(self, call: RolloutCall) -> None:
        lost: list[_Granted] = []
        with self._lock:
            number = self._by_call.get(call)
            if number is None:
                return
            if not self._is_up and self._core.machine.is_stopped:
                lost = self._take_all()  # the process may be importing for a long time
            else:
                if self._core.machine.is_stopped and not self._has_sent_stop:
                    # Otherwise the end of one call would start the next, before its own turn here.
                    self._has_sent_stop = True
                    self._outbox.put(("stop",))
                self._outbox.put(("cancel", number))
        for granted in lost:
            self._core.turn_away(granted.call)
        self._report_if_idle()

    def cancel_again(self) -> None:
        """Cancel all calls once more; kill the process if that was to no avail.

        A scope that is cancelled interrupts its task again at once, which is no second wish. The
        coordinator's patience is at its end otherwise.
        """
        self._times_cancelled += 1
        if self._times_cancelled == 1 and is_scope_cancelled():
            return
        if not self._core.machine.is_stopped:
            self._send("cancel_again")
        else:
            self._kill()

    def set_limit(self, limit: float) -> None:
        self._send("limit", limit)

    def described(self) -> str:
        process = self._process
        name = f"aioqueue-{self._core.name}" if process is None else process.name
        return f"process {name}"

    def seconds_of_start(self) -> float | None:
        began = self._start_began
        return None if began is None else perf_counter() - began

    def place_of(self, call: RolloutCall) -> str:
        """Return where in the user's code a call is; empty if the process does not answer."""
        with self._lock:
            number = self._by_call.get(call)
            if number is None or not self._is_up:
                return ""
            question = next(self._numbers)
            answer: SimpleQueue[str] = SimpleQueue()
            self._answers[question] = answer
            self._outbox.put(("where", question, number))
        try:
            return answer.get(timeout=_ANSWER)
        except Empty:
            return ""
        finally:
            self._answers.pop(question, None)

    def close(self) -> None:
        """End the process, which has no calls any more."""
        with self._lock:
            self._is_closing = True
            self._outbox.put(None)
            has_begun = self._thread is not None
            if has_begun and not self._is_up:
                self._kill()  # it is importing, for whatever time
        if not has_begun:
            self.ended.open()

    def stop_replacing(self) -> None:
        self._is_closing = True

    def kill_at_exit(self) -> None:
        process = self._process
        if process is not None:
            process.kill_at_exit()

    def _send(self, *message: Any) -> None:
        with self._lock:
            if self._thread is not None:
                self._outbox.put(message)

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()

    # ---- the gate: called under the lock of the core -----------------------------------------

    def revoke(self, *, is_parking: bool) -> list[RolloutCall] | None:
        """Have the child start nothing, until `reopen`.

        Args:
            is_parking: whether calls wait at safe points meanwhile.

        Returns:
            The calls that are turned away, if nothing can have begun; ``None`` if the child must
            confirm: see `RolloutCore.child_closed`.
        """
        with self._lock:
            if self._is_up:
                self._publication += 1
                self._outbox.put(("pause", self._publication, is_parking))
                return None
            return [granted.call for granted in self._take_all()]

    def reopen(self, version: int) -> None:
        with self._lock:
            # An answer that is on its way belongs to no publication any more.
            self._publication += 1
            if self._is_up:
                self._outbox.put(("resume", version))

    # ---- the thread that receives ------------------------------------------------------------

    def _talk(self) -> None:
        """Run one process after the other: the body of the thread."""
        try:
            # Nothing starts after a stop, so a process that dies then has no successor.
            while not self._is_closing and not self._core.machine.is_stopped:
                try:
                    self._run_process()
                except CannotStartError as error:
                    self._give_up(cannot_start(f"aioqueue-{self._core.name}", error))
                except WorkerDiedError as error:
                    self._give_up(error)
        finally:
            self._core.remove_child(self)
            for granted in self._lost():
                self._report_lost(granted, None)
            self.ended.open()
            self._report_if_idle()

    def _run_process(self) -> None:
        self._start_began = perf_counter()
        process = WorkerProcess(f"aioqueue-{self._core.name}", _ARENA, child_work)
        with self._lock:
            self._process = process
            self._reported = 0
            if self._is_closing:
                process.kill()
        assert self._work.payload is not None
        ready = process.assign(self._work.payload)
        if ready is not None and ready.refusal is not None:
            refused = not_importable(self._work.function)
            refused.__cause__ = failure_of_message(ready.refusal)
            process.end(at_once=True)
            self._give_up(refused)
            return
        sender: threading.Thread | None = None
        if ready is not None:
            begin, outbox = call_with_lock(self._core._lock, self._come_up)
            process.send_message(pickle.dumps(begin, 5))
            name = f"aioqueue-{self._core.name}-sender"
            sender = threading.Thread(
                target=self._send_all, args=(process, outbox), name=name, daemon=True
            )
            sender.start()
            is_over = False
            while not is_over and (events := process.receive_reply()) is not None:
                for event in events:
                    self._handle(process, *event)
                is_over = any(event[0] == "over" for event in events)
                del events
                self._report_if_idle()
        self._handle_end(process, sender)

    def _come_up(self) -> tuple[ChildSetup, Outbox]:
        core = self._core
        with self._lock:
            self._is_up = True
            self._start_began = None
            backend, options = self._backend
            is_open = not (core.is_revoking or core.machine.is_paused)
            begin = ChildSetup(
                name=core.name,
                seed=core.seed,
                version=core.machine.version,
                is_open=is_open,
                limit=core.machine.limit,
                backend=backend,
                options=options,
            )
            return begin, self._outbox

    def _send_all(self, process: WorkerProcess, outbox: Outbox) -> None:
        """Send messages: the body of a thread."""
        while True:
            batch = [outbox.get()]
            with suppress(Empty):
                while True:
                    batch.append(outbox.get_nowait())
            messages = [one for one in batch if one is not None]
            if messages:
                process.send_message(pickle.dumps(messages, 5))
            if None in batch:
                process.send_message(b"")
                return

    def _handle(self, process: WorkerProcess, kind: str, number: int, *more: Any) -> None:
        """Report to the rules what the child has reported."""
        core = self._core
        if kind == "closed":
            if number == self._publication:
                core.child_closed(self)
            return
        if kind == "over":
            return
        if kind == "where":
            answer = self._answers.get(number)
            if answer is not None:
                answer.put(more[0])
            return
        is_end = kind in ("finished", "failed", "ended", "turned")
        granted = self._take(number) if is_end else self._granted.get(number)
        self._reported += kind == "entered"
        if granted is None:
            return  # of a call that was turned away here
        call = granted.call
        if kind == "entered":
            granted.has_begun = True
            granted.rollout = core.entered(call, Rollout)
        elif kind == "finished":
            process.was_of_use = True
            self._finished(process, granted, *more)
        elif kind == "failed":
            process.was_of_use = True
            self._failed(call, failure_of_message(more[0]))
        elif kind == "expired":
            process.was_of_use = True
            error, delay = self._host.failure(call, self._work, failure_of_message(more[0]))
            if core.expired(call, error, delay):
                assert delay is not None
                self._host.retry_later(call, delay)
        elif kind == "ended":
            core.call_ended(call)
        elif kind == "turned":
            core.turn_away(call)
        elif kind == "frozen":
            core.freeze(call)
        elif kind == "parked":
            core.parks(call)
        else:
            assert kind == "unparked"
            core.unpark(call)

    def _finished(
        self,
        process: WorkerProcess,
        granted: _Granted,
        message: bytes,
        blocks: Any,
        spans: list[tuple[int, int]] | None,
    ) -> None:
        core, call, rollout = self._core, granted.call, granted.rollout
        try:
            (result,) = unpack(message, blocks, process.arena, bytearray)
        except Exception as error:
            add_note(error, "while unpickling what the function returned")
            self._failed(call, error)
            return
        finally:
            if blocks:
                self._send("freed", [start for start, _ in blocks])
        if rollout is None:
            core.call_ended(call)  # it was cancelled before the report of its first step
            return
        rollout._spans = spans
        core.finished(call, rollout, result)

    def _failed(self, call: RolloutCall, error: BaseException) -> None:
        error, delay = self._host.failure(call, self._work, error)
        if self._core.failed(call, error, delay):
            assert delay is not None
            self._host.retry_later(call, delay)

    def _handle_end(self, process: WorkerProcess, sender: threading.Thread | None) -> None:
        """Report what is lost with a process that has ended; the next one starts then."""
        core = self._core
        exitcode = process.exitcode()
        for number in Starts.after(process.arena, self._reported):
            unreported = self._granted.get(number)
            if unreported is not None:
                unreported.has_begun = True
        lost = self._lost()
        if sender is not None:
            sender.join()
        begun = sum(granted.has_begun for granted in lost)
        process.was_of_use = process.was_of_use or begun > 0
        process.end(at_once=True)
        # The gate first: what fails now, and is tried again, starts after the publication.
        core.child_closed(self)
        error: WorkerDiedError | None = None
        if not self._is_closing and not core.machine.is_stopped:
            how = how_it_ended(exitcode)
            when = f" while {counted(begun, 'rollout')} ran" if process.is_ready else ""
            text = f"worker process {process.name} {how}{when or ' while it started'}"
            error = WorkerDiedError(text, exitcode=exitcode)
            _log.warning("%s: %s", str(core), text)  # a record that is kept keeps no queue
            why = self._policy.why_not_replaced(process.name, process, exitcode)
            if why is not None:
                error = WorkerDiedError(why, exitcode=exitcode)
                self._give_up(error)
        for granted in lost:
            self._report_lost(granted, error)
        self._report_if_idle()

    def _lost(self) -> list[_Granted]:
        """Forget the process, and return what it had."""
        with self._lock:
            self._process = None
            self._is_up = False
            self._start_began = None
            self._outbox.put(None)
            return self._take_all()

    def _report_lost(self, granted: _Granted, error: WorkerDiedError | None) -> None:
        if not granted.has_begun:
            self._core.turn_away(granted.call)
        elif error is None:
            self._core.call_ended(granted.call)
        else:
            # One for each call: notes are added to it.
            self._failed(granted.call, WorkerDiedError(str(error), exitcode=error.exitcode))

    def _give_up(self, error: BaseException) -> None:
        """End everything, since no process can be started."""
        self._broken = error
        self._is_closing = True
        lost = self._lost()
        if self._host is self._core.host:
            self._core.apply(self._core.machine.stop, error)
        for granted in lost:
            if granted.has_begun:
                self._core.call_ended(granted.call)
            else:
                self._core.failed(granted.call, error, None)

    def _take(self, number: int) -> _Granted | None:
        with self._lock:
            granted = self._granted.pop(number, None)
            if granted is not None:
                del self._by_call[granted.call]
                group = self._groups[granted.call.group]
                group[1] -= 1
                if not group[1]:
                    del self._groups[granted.call.group]
                    self._outbox.put(("forget", group[0]))
            return granted

    def _take_all(self) -> list[_Granted]:
        """Take all calls from a process that has not got them, or has ended. Under the lock."""
        lost = list(self._granted.values())
        self._granted = {}
        self._by_call = {}
        self._groups = {}
        self._outbox = SimpleQueue()
        if self._is_closing:
            self._outbox.put(None)
        return lost

    def _report_if_idle(self) -> None:
        if not self._granted:
            self._host.threads_are_idle()


def _key(call: RolloutCall) -> tuple[int, ...]:
    """The turn of a call: evaluations with priority first, then by the order of the prompts."""
    group = call.group
    if not group.is_evaluation:
        return (1, group.ordinal, 1, call.index)
    if group.threshold is None:
        return (0, group.ordinal, call.index)
    return (1, group.threshold, 0, group.ordinal, call.index)


def _backend() -> tuple[str, dict[str, Any]]:
    """Return the kind of the event loop that runs now, and its options, for ``anyio.run``."""
    loop = running_loop()
    if loop is None:
        return "trio", {}
    return "asyncio", {"use_uvloop": type(loop).__module__.split(".")[0] == "uvloop"}
