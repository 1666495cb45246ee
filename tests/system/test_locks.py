"""A lock that a signal handler may interrupt is released, whatever interrupts it and whenever.

First every moment in which a handler can raise is tried, one or two at a time, with a lock that
raises there. Then a real signal strikes thousands of times, at random moments.
"""

from __future__ import annotations

import asyncio
import dis
import itertools
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import aioqueue
from aioqueue.system.locks import call_with_lock, is_held_here, release_if_held, synchronized
from aioqueue.worlds.waker import running_loop

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(aioqueue.__file__).parent
ROUNDS = 1000


class InjectedError(BaseException):
    """What the handler raises."""


class HandlerError(RuntimeError):
    """What a handler raises that does not mind the class."""


class InterruptedLock:
    """A lock that calls a handler when one of its methods is about to return, or is waiting.

    As in `threading.RLock`, no handler comes between the call of a method and what it does.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.handler: Callable[[str], None] = lambda moment: None

    def acquire(self, blocking: bool = True, /) -> bool:
        self.handler("waiting")
        self._lock.acquire(blocking)
        self.handler("acquired")
        return True

    def release(self) -> None:
        self._lock.release()
        self.handler("released")

    def _is_owned(self) -> bool:
        owned = self.is_held()
        self.handler("asked")
        return owned

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def is_held(self) -> bool:
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]


class Handler:
    """Raises at some of the moments in which it is called, which are counted."""

    def __init__(
        self, injected: Collection[int], kind: type[BaseException] = InjectedError
    ) -> None:
        self.injected = injected
        self.kind = kind
        self.calls = 0
        self.last: BaseException | None = None
        """What was raised last, by the handler or else."""

    def __call__(self, moment: str) -> None:
        self.calls += 1
        if self.calls in self.injected:
            self.last = self.kind(moment)
            raise self.last


class Guarded:
    def __init__(self, lock: Any, body: Callable[[], Any]) -> None:
        self._lock = lock
        self.body = body

    @synchronized
    def call(self) -> Any:
        return self.body()


def by_synchronized(lock: Any, body: Callable[[], Any]) -> Any:
    return Guarded(lock, body).call()


WAYS = pytest.mark.parametrize("way", [call_with_lock, by_synchronized])
PAIRS = [*itertools.combinations(range(1, 8), 2), *((one,) for one in range(1, 8))]


@WAYS
@pytest.mark.parametrize("kind", [InjectedError, HandlerError])
@pytest.mark.parametrize("body_raises", [False, True])
@pytest.mark.parametrize("injected", PAIRS, ids=str)
def test_a_handler_may_raise_anywhere(
    way: Callable[[Any, Callable[[], Any]], Any],
    injected: tuple[int, ...],
    body_raises: bool,
    kind: type[BaseException],
) -> None:
    """The lock is free afterwards, and what was raised last is what comes out."""
    lock, handler = InterruptedLock(), Handler(injected, kind)

    def body() -> str:
        assert lock.is_held()
        handler("in the body")
        if body_raises:
            handler.last = ValueError("of the body")
            raise handler.last
        return "result"

    lock.handler = handler
    try:
        assert way(lock, body) == "result"
    except (InjectedError, HandlerError, ValueError) as error:
        assert error is handler.last
    else:
        assert handler.last is None
    assert not lock.is_held()


@WAYS
def test_a_handler_that_raises_within_the_interrupted_call(
    way: Callable[[Any, Callable[[], Any]], Any],
) -> None:
    """A call that is interrupted with the lock held lets go of it, not the handler."""
    lock = InterruptedLock()
    held: list[bool] = []

    def inject() -> None:
        raise InjectedError

    def handle(moment: str) -> None:
        if moment == "acquired":
            lock.handler = lambda moment: None
            with pytest.raises(InjectedError):
                way(lock, inject)
            held.append(lock.is_held())

    lock.handler = handle
    assert way(lock, lock.is_held) is True
    assert held == [True]
    assert not lock.is_held()


@WAYS
def test_a_thread_that_holds_it_proceeds_and_keeps_it(
    way: Callable[[Any, Callable[[], Any]], Any],
) -> None:
    lock = threading.RLock()
    with lock:
        assert way(lock, lambda: way(lock, lambda: "inner")) == "inner"
        with pytest.raises(ZeroDivisionError):
            way(lock, lambda: 1 // 0)
        assert is_held_here(lock)
    assert not is_held_here(lock)


class TestWhatIsPrivateInTheStandardLibrary:
    """Each is used in one place, and still is what that place takes it for."""

    def test_a_lock_knows_its_holder(self) -> None:
        lock = threading.RLock()
        elsewhere: list[bool] = []
        asking = threading.Thread(target=lambda: elsewhere.append(is_held_here(lock)))
        assert is_held_here(lock) is False
        with lock, lock:
            assert is_held_here(lock) is True
            asking.start()
            asking.join()
        assert elsewhere == [False]
        assert is_held_here(lock) is False

    def test_a_loop_is_known_while_it_runs(self) -> None:
        async def here() -> tuple[object, object]:
            return running_loop(), asyncio.get_running_loop()

        assert running_loop() is None
        found, expected = asyncio.run(here())
        assert found is expected
        assert running_loop() is None
        assert "_get_running_loop" in asyncio.__all__

    @pytest.mark.parametrize(
        ("name", "places"),
        [
            # The others make such locks.
            ("_is_owned", {"system/locks.py", "system/forks.py"}),
            ("_get_running_loop", {"worlds/waker.py"}),
            ("popen_forkserver", {"processes/fork_server/client.py"}),
            ("resource_tracker", {"processes/fork_server/bootstrap.py"}),
            # The public list reaps children that have ended; the caller that joins needs the code.
            # (In `rl/queue.py`, it is the attribute of an `asyncio.gather`.)
            (
                "_children",
                {"processes/fork_server/spawn.py", "rl/queue.py", "sharing/coordinator.py"},
            ),
        ],
    )
    def test_it_is_used_in_one_place(self, name: str, places: set[str]) -> None:
        users = {
            path.relative_to(PACKAGE).as_posix()
            for path in PACKAGE.rglob("*.py")
            if re.search(rf"\b{name}\b", path.read_text(encoding="utf-8"))
        }
        assert users == places


def test_arguments_and_results_pass_through() -> None:
    def reported(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    class Owner:
        def __init__(self) -> None:
            self._lock = threading.RLock()

        @synchronized
        def reported(self, /, *args: Any, **kwargs: Any) -> Any:
            """What it does."""
            return args, kwargs

    named = {"lock": 1, "call": 2, "method": 3}
    assert call_with_lock(threading.RLock(), reported, 1, 2, **named) == ((1, 2), named)
    assert Owner().reported(1, 2, **named, self=4) == ((1, 2), {**named, "self": 4})
    assert (Owner.reported.__name__, Owner.reported.__doc__) == ("reported", "What it does.")


def test_releasing_what_is_held_and_what_is_not() -> None:
    lock = threading.RLock()
    release_if_held(lock)
    lock.acquire()
    release_if_held(lock)
    assert not is_held_here(lock)


@WAYS
def test_one_thread_at_a_time(way: Callable[[Any, Callable[[], Any]], Any]) -> None:
    lock, inside, crowded = threading.RLock(), [0], [False]

    def body() -> None:
        inside[0] += 1
        crowded[0] |= inside[0] > 1
        for _ in range(20):
            pass
        inside[0] -= 1

    threads = [
        threading.Thread(target=lambda: [way(lock, body) for _ in range(2000)]) for _ in range(4)
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert (inside, crowded) == ([0], [False])


HEAD = f"""
import asyncio, json, random, signal, threading
from aioqueue import FIFOQueue
from aioqueue.core.attempts import Attempt, NEITHER
from aioqueue.system.locks import synchronized, call_with_lock
from aioqueue.worlds.scopes import CancelScope, Gate, unwatch, watch
from aioqueue.worlds.asyncio import AsyncioWaker

class InjectedError(BaseException):
    pass

class Machine:
    def __init__(self):
        self._lock = threading.RLock()

    @synchronized
    def synchronized(self, body):
        return body()

    def call_with_lock(self, body):
        return call_with_lock(self._lock, body)

def body():
    return 1

def failing():
    raise ValueError

def looping():
    for number in range(50):
        if number in nothing:
            break

def strike(*_):
    global left
    left -= 1
    if left:  # the next one comes while this one is on its way out
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + rng.random() * 2e-5)
    in_handler()
    raise InjectedError

def in_handler():
    pass

def attempt(step):
    try:
        step()
    except ValueError:
        pass

def struck_again_and_again(step, locks):
    global left
    kept = strikes = 0
    for _ in range({ROUNDS}):
        left = 2
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-5 + rng.random() * 2e-4)
                while True:
                    step()
            except InjectedError:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except InjectedError:
            pass  # the second one
        strikes += 2 - left
        for lock in locks:
            while lock._is_owned():
                kept += 1
                lock.release()
    print(json.dumps({{"kept": kept, "struck": strikes >= {ROUNDS}}}))

rng = random.Random(1)
nothing = {{}}
machine = Machine()
locks = [machine._lock]
signal.signal(signal.SIGALRM, strike)
"""

STEPS = {
    "call_with_lock": "step = lambda: machine.call_with_lock(body)",
    "synchronized": "step = lambda: machine.synchronized(body)",
    "call_with_lock, failing": "step = lambda: attempt(lambda: machine.call_with_lock(failing))",
    "synchronized, failing": "step = lambda: attempt(lambda: machine.synchronized(failing))",
    "call_with_lock, looping": "step = lambda: machine.call_with_lock(looping)",
    "synchronized, looping": "step = lambda: machine.synchronized(looping)",
    "the handler calls too": """
step = lambda: machine.synchronized(lambda: machine.call_with_lock(body))

def in_handler():
    machine.synchronized(lambda: machine.call_with_lock(body))
""",
    "a gate": """
gate = Gate()
locks = [gate._lock]

def step():
    gate.shut()
    gate.wait_blocking(0)
    gate.open()
""",
    "a scope": """
class Passing(Attempt):
    side = NEITHER

scope, scopes = CancelScope(), (CancelScope(),)
locks = [scope._lock, scopes[0]._lock]

def step():
    scope.cancel()
    attempt = Passing()
    watch(scopes, attempt, 0.0)
    unwatch(scopes, attempt)
""",
    "the waker of an event loop": """
loop = asyncio.new_event_loop()
waker = AsyncioWaker(loop)
locks = [waker._lock]
step = waker.wake
threading.Thread(target=loop.run_forever, daemon=True).start()
""",
    "a queue's faces and wakers": """
queue = FIFOQueue(3)
locks = [queue._core.lock]
core = queue._core

def step():
    queue.sync
    core.drop_dead_loops()
    core.wake_all()
""",
}


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no interval timer to interrupt with"
)
@pytest.mark.parametrize("name", STEPS)
def test_signals_at_random_moments(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"{HEAD}\n{STEPS[name]}\nstruck_again_and_again(step, locks)"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=50,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"kept": 0, "struck": True}


BESIDE = """
import json, random, signal, sys, threading
from aioqueue import OutOfRangeError, sync

class InjectedError(Exception):
    pass

def strike(number, frame):
    raise InjectedError

signal.signal(signal.SIGALRM, strike)
sys.setswitchinterval(1e-6)
chance, struck, wrong = random.Random(5), 0, []
for round in range(40):
    queue = sync.FIFOQueue(3) if round % 2 else sync.RandomShuffleQueue(20, 5, seed=round)
    out, sent, perhaps, number = [], set(range(900)), set(), 1000

    def fill(first):
        for n in range(first, first + 300):
            queue.enqueue(n)

    def empty():
        mine = []
        try:
            while True:
                mine.append(queue.dequeue())
        except OutOfRangeError:
            out.extend(mine)

    fillers = [threading.Thread(target=fill, args=(300 * n,)) for n in range(3)]
    takers = [threading.Thread(target=empty) for _ in range(3)]
    for thread in (*fillers, *takers):
        thread.start()
    while any(thread.is_alive() for thread in fillers):
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 5e-4))
            while True:
                number += 1
                perhaps.add(number)
                queue.enqueue(number)
                sent.add(number)
        except InjectedError:
            struck += 1
    queue.close()
    for thread in takers:
        thread.join()
    if len(set(out)) != len(out) or not sent <= set(out) <= sent | perhaps:
        wrong.append(round)
print(json.dumps({"wrong": wrong, "struck": struck > 1000}))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no interval timer to interrupt with"
)
def test_what_other_threads_put_in_is_neither_lost_nor_repeated_by_a_signal() -> None:
    """The main thread makes moves for them, and is interrupted in the middle of one."""
    ran = subprocess.run(
        [sys.executable, "-c", BESIDE],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"wrong": [], "struck": True}


# What is to be undone is undone.

UNDOING = [
    str(path.relative_to(PACKAGE))
    for part in (
        "*lock*.py",
        "core/fast_path.py",
        "waiting/*.py",
        "queues/*.py",
        "coordination/*.py",
        "inputs/*.py",
    )
    for path in sorted(PACKAGE.glob(part))
]
"""The files in which a handler may interrupt something that has to be undone."""


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and all those within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def unprotected_loops(code: CodeType) -> Iterator[int | None]:
    """The lines of loops in a `try` or `with` that a handler leaves where they go round."""
    bytecode: Any = dis.Bytecode(code)
    names = {step.offset: step.opname for step in bytecode}

    def undoes(target: int) -> bool:
        """Whether a handler does more than deleting names, to break a reference cycle."""
        if names[target] != "PUSH_EXC_INFO":
            return False  # of a comprehension, which undoes nothing of ours
        steps = itertools.takewhile(
            lambda name: name != "RERAISE", (names[at] for at in sorted(names) if at > target)
        )
        return not all(name.startswith("DELETE_") for name in steps)

    def handlers(offset: int) -> set[int]:
        found: set[int] = set()
        while True:
            inner = [
                entry.target
                for entry in bytecode.exception_entries
                if entry.start <= offset < entry.end
            ]
            if not inner or inner[0] in found:
                return set(filter(undoes, found))
            offset = inner[0]
            found.add(offset)

    for step in bytecode:
        if step.opname == "JUMP_BACKWARD" and handlers(step.argval) - handlers(step.offset):
            yield step.positions.lineno


NEVER_INTERRUPTED = {"Run._calls", "Run.loop", "Run.loop_async", "Watchdog._watch"}
"""Other threads than the main one run these, or Ctrl-C is deferred in them."""
UNDOES_NOTHING = {"Run._awaits"}
"""Its handler decides whether the worker begins again, which it never does after Ctrl-C."""


@pytest.mark.skipif(sys.version_info < (3, 13), reason="there the place of the jump says nothing")
@pytest.mark.parametrize("name", UNDOING)
def test_no_loop_is_left_past_what_undoes(name: str) -> None:
    """See `aioqueue.system.locks`: CPython leaves some loops without their `finally` or
    `__exit__`."""
    source = (PACKAGE / name).read_text(encoding="utf-8")
    found = {
        one.co_qualname: lines
        for one in codes(compile(source, name, "exec"))
        if one.co_qualname not in NEVER_INTERRUPTED | UNDOES_NOTHING
        and (lines := list(unprotected_loops(one)))
    }
    assert found == {}


@pytest.mark.skipif(sys.version_info < (3, 13), reason="there the place of the jump says nothing")
def test_such_a_loop_would_be_found() -> None:
    source = "def f():\n with lock:\n  for x in xs:\n   if x in d: break\n"
    assert [line for one in codes(compile(source, "", "exec")) for line in unprotected_loops(one)]
