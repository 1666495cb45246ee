"""What runs in the child process of a generation: the user's function, for all calls in flight.

The rules stay with the trainer. It grants calls ahead: all that its slots allow. Here they wait in
the order in which they are to start, and start as places become free (``max_in_flight``). So a
trainer that keeps its interpreter for itself does not stop the generation.

**The gate** stands here, since here a call begins. While it is open, the start of a call's first
step is reported, but nobody is asked. A publication closes it by a message, and the answer says so
(``closed``). Everything that has begun was reported before that, in order; what has not begun is
turned away. A publication begins only with that answer, so nothing starts inside: see
`ChildCore.serve`.

`ChildCore` stands for the `RolloutCore` where the calls run. The hosts of calls are those of the
trainer's process, with their tasks, threads, time limits and cancellations.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, Final, NamedTuple

import anyio

from aioqueue.errors import add_note, describe_exception
from aioqueue.processes.arena import Allocator, Arena, pack
from aioqueue.processes.channel import Channel
from aioqueue.processes.child import Messages, read_messages, reply, unpickled_function
from aioqueue.processes.failures import message_of_failure
from aioqueue.rl.core import Evaluation, RolloutCore
from aioqueue.rl.hosts import LoopHost, Work, new_host
from aioqueue.rl.rollout import Rollout
from aioqueue.telemetry.explain.stacks import place_of, stack_of
from aioqueue.workers.retries import FailurePolicy
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from aioqueue.worlds.waker import Owner

_FIRST: Final = 64
"""Where the list of starts is in the shared memory, behind the header of the arena."""

_STARTS: Final = 65_536
"""How many starts it has. One that is not there any more, and not reported, starts again."""

_INT: Final = 8
RESULTS: Final = _FIRST + _INT * (_STARTS + 64)
"""Where the part for results begins."""


class Starts:
    """The calls that have begun, in memory shared with the parent: there at once.

    Reports of a process that dies may be lost. A call that kills its process at its first step must
    still be known to have begun: it has used up an attempt.
    """

    def __init__(self, arena: Arena) -> None:
        self._numbers = memoryview(arena.memory)[_FIRST:RESULTS].cast("q")
        self._total = 0

    def add(self, number: int) -> None:
        self._numbers[1 + self._total % _STARTS] = number
        self._total += 1
        self._numbers[0] = self._total

    @staticmethod
    def after(arena: Arena, reported: int) -> list[int]:
        """Return the numbers of the calls that have begun after so many ones."""
        with memoryview(arena.memory)[_FIRST:RESULTS] as part, part.cast("q") as numbers:
            total = numbers[0]
            return [
                numbers[1 + one % _STARTS] for one in range(max(reported, total - _STARTS), total)
            ]


class Function(NamedTuple):
    """The function, and how it is called: the first message of the parent.

    Attributes:
        function: the user's function.
        is_async: whether it is a coroutine function.
        timeout: seconds that an attempt may take.
        threads: how many threads call a plain function at most.
    """

    function: Any
    is_async: bool
    timeout: float | None
    threads: int


class ChildSetup(NamedTuple):
    """The second message: the state of the queue when the process is ready.

    Attributes:
        name: the queue's name.
        seed: for the seeds of rollouts.
        version: how many steps the published weights contain.
        is_open: whether calls may begin.
        limit: how many calls run at once.
        backend: the kind of the event loop, as of ``anyio.run``.
        options: those of the backend.
    """

    name: str
    seed: int
    version: int
    is_open: bool
    limit: float
    backend: str
    options: dict[str, Any]


class _Prompt(NamedTuple):
    value: Any


class _Payload(NamedTuple):
    evaluation: Evaluation | None


class _ChildGroup:
    """A group, as far as its calls need it."""

    def __init__(self, ordinal: int, prompt: Any, *, is_evaluation: bool) -> None:
        self.ordinal: int = ordinal
        self.prompt: _Prompt = _Prompt(prompt)
        self.is_evaluation: bool = is_evaluation
        owner = Owner(threading.current_thread())  # the process of the trainer knows who waits
        self.payload: _Payload = _Payload(
            Evaluation(ordinal, None, None, owner) if is_evaluation else None
        )


class _ChildCall:
    """A call that was granted.

    Attributes:
        number: what both processes call it.
        is_current: whether its result would still be used.
        is_placed: whether it has a place among those in flight.
    """

    __slots__ = ("attempt", "group", "index", "is_current", "is_placed", "number", "version")

    def __init__(self, number: int, group: _ChildGroup, index: int, attempt: int) -> None:
        self.number: int = number
        self.group: _ChildGroup = group
        self.index: int = index
        self.attempt: int = attempt
        self.version: int = 0
        self.is_current: bool = True
        self.is_placed: bool = False


class _ChildReports:
    """What hosts report to the rules: here it becomes messages."""

    def __init__(self, core: ChildCore) -> None:
        self._core = core
        self.is_stopped = False

    def turned_away(self, call: _ChildCall) -> None:
        self._core.ended(call, "turned")


class ChildCore:
    """See the module.

    Attributes:
        host: what runs the calls.
        calls: those that have begun, with the times of that.
        publication_over: open while the gate is.
    """

    describe_call: Callable[..., str] = staticmethod(RolloutCore.describe_call)
    first_ordinal = 0

    def __init__(self, begin: ChildSetup, channel: Channel, arena: Arena) -> None:
        self.name: Final = begin.name
        self.seed: Final = begin.seed
        self.version: int = begin.version
        self.machine: Final = _ChildReports(self)
        self.calls: dict[_ChildCall, float] = {}
        self.publication_over: Final = Gate()
        self.host: LoopHost | None = None
        self._is_open = begin.is_open
        self._is_parking = False
        self._is_over = False
        self._limit = begin.limit
        self._channel = channel
        self._arena = arena
        self._starts = Starts(arena)
        self._allocator = Allocator(arena.size, RESULTS)
        self._pack_lock = threading.Lock()
        self._lock = threading.RLock()  # guards everything above and below
        self._granted: dict[int, _ChildCall] = {}
        self._groups: dict[int, _ChildGroup | bytes] = {}
        """By number; in place of one whose prompt cannot be unpickled, the failure."""
        self._waiting: list[tuple[tuple[int, ...], int]] = []
        """A heap of calls without a place; some may have ended."""
        self._in_flight = 0
        self._events: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        if begin.is_open:
            self.publication_over.open()

    def __str__(self) -> str:
        return f"RolloutQueue '{self.name}'"

    # ---- to the trainer's process ------------------------------------------------------------

    def report(self, *event: Any) -> None:
        self._events.put(event)

    def send_events(self) -> None:
        """Send what is reported, all that there is at a time: the body of a thread."""
        events = self._events
        while True:
            batch = [events.get()]
            with suppress(Empty):
                while True:
                    batch.append(events.get_nowait())
            reply(self._channel, batch)

    # ---- what hosts and rollouts need --------------------------------------------------------

    def apply(self, event: Any, *args: Any) -> Any:
        return event(*args)

    def enter(self, call: _ChildCall, kind: type[Rollout[Any]]) -> Rollout[Any] | None:
        """Report that the first step of a call runs; return its rollout, or ``None`` to end."""
        with self._lock:
            may_begin = self._is_open and call.is_current
            if may_begin:
                # In the order of the messages before the ``closed`` of any later publication.
                call.version = self.version
                self.calls[call] = perf_counter()
                self._starts.add(call.number)
                self.report("entered", call.number)
        if not may_begin:
            self.ended(call, "turned")
            return None
        return kind(self, call, self.seed)  # type: ignore[arg-type]

    def finished(self, call: _ChildCall, rollout: Rollout[Any], result: Any) -> None:
        rollout._end()
        if not call.is_current:
            self.ended(call, "ended")
            return
        try:
            with self._pack_lock:
                message, blocks = pack((result,), self._arena, self._allocator)
        except Exception as error:
            add_note(error, "while pickling what the function returned")
            self.failed(call, error, None)
            return
        self.ended(call, "finished", message, blocks, rollout._spans)

    def failed(self, call: _ChildCall, error: BaseException, delay: float | None) -> bool:
        if call.is_current:
            self.ended(call, "failed", _message_of(error))
        else:
            self.ended(call, "ended")
        return False

    def expired(self, call: _ChildCall, error: BaseException, delay: float | None) -> bool:
        """Report that a call on a thread has taken too long. It keeps its place until its end."""
        with self._lock:
            if call.is_current and call in self.calls:
                call.is_current = False
                self.report("expired", call.number, _message_of(error))
        return False

    def call_ended(self, call: _ChildCall) -> None:
        self.ended(call, "ended")

    def ended(self, call: _ChildCall, how: str, *more: Any) -> None:
        """Report the end of a call, and start what its place is for."""
        with self._lock:
            if self._granted.pop(call.number, None) is None:
                return
            self.calls.pop(call, None)
            self._in_flight -= call.is_placed
            self.report(how, call.number, *more)
        self._start_next()

    def parks(self, call: _ChildCall) -> bool:
        """Report that a call is at a safe point; return whether it waits there."""
        with self._lock:
            parks = not self._is_open and self._is_parking and call.is_current
            if parks:
                self.report("parked", call.number)
        return parks

    def unpark(self, call: _ChildCall) -> None:
        self.report("unparked", call.number)

    def freeze(self, call: _ChildCall) -> None:
        self.report("frozen", call.number)

    # ---- what the trainer's process says -----------------------------------------------------

    def serve(self, messages: Messages, over: Gate) -> None:
        """Do what the messages say, until the empty one: the body of a thread.

        The thread of the event loop does most of it. The gate thus closes between two steps of
        tasks: a coroutine function that may begin gets as far as its first wait, and nobody can
        publish between the permission and its first line. (A plain function has begun once its
        thread may call it.)
        """
        assert self.host is not None
        while message := messages.get():
            commands = []
            for command in pickle.loads(message):
                name, *args = command
                if name in ("group", "where", "freed"):
                    # Prompts are code of the user, and the place of a call is of interest also
                    # while the event loop is blocked there.
                    getattr(self, f"_do_{name}")(*args)
                else:
                    commands.append(command)
            if commands:
                self.host._call_soon(partial(self._do_all, commands))
        self.machine.is_stopped = True
        # The parent gives the process some time to end by itself, and then kills it: code of the
        # user may have left a thread that never ends.
        self.report("over", 0)
        over.open()

    def _do_all(self, commands: list[Any]) -> None:
        for name, *args in commands:
            getattr(self, f"_do_{name}")(*args)
        self._start_next()

    def _do_group(self, number: int, ordinal: int, prompt: bytes, is_evaluation: bool) -> None:
        try:
            value = pickle.loads(prompt)
        except Exception as error:
            add_note(error, "while unpickling the prompt in the process of the generation")
            self._groups[number] = message_of_failure(error)
        else:
            self._groups[number] = _ChildGroup(ordinal, value, is_evaluation=is_evaluation)

    def _do_forget(self, number: int) -> None:
        del self._groups[number]

    def _do_freed(self, starts: list[int]) -> None:
        with self._pack_lock:
            self._allocator.free(starts)

    def _do_limit(self, limit: float) -> None:
        self._limit = limit

    def _do_start(
        self, number: int, key: tuple[int, ...], group_number: int, index: int, attempt: int
    ) -> None:
        group = self._groups[group_number]
        if isinstance(group, bytes):
            self.report("failed", number, group)
            return
        with self._lock:
            if not self._is_open:
                # It would wait here, while a publication that drains waits for it.
                self.report("turned", number)
                return
            self._granted[number] = _ChildCall(number, group, index, attempt)
            heappush(self._waiting, (key, number))

    def _do_cancel(self, number: int) -> None:
        with self._lock:
            call = self._granted.get(number)
            if call is None:
                return  # its end is on the way
            call.is_current = False
            is_placed = call.is_placed
        if is_placed:
            assert self.host is not None
            self.host.cancel(call)  # type: ignore[arg-type]
        else:
            self.ended(call, "turned")

    def _do_pause(self, publication: int, is_parking: bool) -> None:
        with self._lock:
            self._is_parking = is_parking
            self.publication_over.shut()
            self._close_gate()
            self.report("closed", publication)

    def _do_stop(self) -> None:
        """Start nothing any more. The calls that run are cancelled one by one."""
        with self._lock:
            self._is_over = True
            self._close_gate()

    def _close_gate(self) -> None:
        self._is_open = False
        self._waiting = []
        for call in [one for one in self._granted.values() if not one.is_placed]:
            del self._granted[call.number]
            self.report("turned", call.number)

    def _do_resume(self, version: int) -> None:
        with self._lock:
            self.version = version
            self._is_open = not self._is_over
        self.publication_over.open()

    def _do_cancel_again(self) -> None:
        assert self.host is not None
        self.host.cancel_again()

    def _do_where(self, question: int, number: int) -> None:
        """Say where in the user's code a call is."""
        with self._lock:
            call: Any = self._granted.get(number)
        thing = None if call is None or self.host is None else self.host.running_thing(call)
        place = None if thing is None else place_of(stack_of(thing))
        self.report("where", question, "" if place is None else str(place))

    def _start_next(self) -> None:
        """Start calls, as many as have places."""
        starting: list[Any] = []
        with self._lock:
            while self._is_open and self._waiting and self._in_flight < self._limit:
                call = self._granted.get(heappop(self._waiting)[1])
                if call is not None:
                    call.is_placed = True
                    self._in_flight += 1
                    starting.append(call)
        for call in starting:
            assert self.host is not None
            self.host.start(call)


def _message_of(error: BaseException) -> bytes:
    if not isinstance(error, Exception):
        wrapped = RuntimeError(f"the function raised {describe_exception(error)}")
        wrapped.__cause__ = error
        error = wrapped
    return message_of_failure(error)


def work(channel: Channel, arena: Arena) -> None:
    """The main function of the process."""
    arena.begin()
    messages = read_messages(channel.receive)
    function: Function | None = unpickled_function(channel, messages)
    message = b"" if function is None else messages.get()
    if not message or function is None:
        return
    begin: ChildSetup = pickle.loads(message)
    core = ChildCore(begin, channel, arena)
    threading.Thread(target=core.send_events, name="aioqueue-events", daemon=True).start()
    body = partial(_generate, core, function, messages)
    anyio.run(body, backend=begin.backend, backend_options=begin.options)


async def _generate(core: Any, function: Function, messages: Messages) -> None:
    work = Work(
        function.function,
        is_async=function.is_async,
        policy=FailurePolicy("stop", None, has_quarantine=False),  # the trainer decides
        timeout=function.timeout,
        threads=function.threads,
    )
    over = Gate()
    async with new_host(core, work) as host:
        core.host = host
        serve = partial(core.serve, messages, over)
        threading.Thread(target=serve, name="aioqueue-messages", daemon=True).start()
        await over.wait(current_waker())
