"""The four worlds in which one body of tests runs: asyncio, uvloop, trio and threads.

A test is written once, as a coroutine function that takes a `world`. `World.run` brings that world
to life around it. In three of the worlds a queue is the async face itself. In the fourth it is the
thread face behind `AwaitedQueue`, whose waiting methods are *spelled* like the async ones but block
the calling thread; its coroutines never suspend, so `drive` runs them, and "beside" means: in
another thread.

Nothing here sleeps to synchronise. `World.begin` starts an operation and returns when it stands in
line; `World.until` waits for a state. Whatever a test leaves behind is ended when its world is.
"""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import OutOfRangeError
from aioqueue.worlds.scopes import Gate

# A world whose package is missing is skipped, with that as the reason (see `World.missing`).
HAS_TRIO = importlib.util.find_spec("trio") is not None
if TYPE_CHECKING or HAS_TRIO:
    import trio
if TYPE_CHECKING or importlib.util.find_spec("uvloop") is not None:
    import uvloop

__all__ = (
    "HAS_TRIO",
    "KINDS",
    "LARGE",
    "STRUCTURED",
    "TASK_WORLDS",
    "WORLDS",
    "AsyncioWorld",
    "AwaitedQueue",
    "CancelledError",
    "Kind",
    "Operation",
    "StillClock",
    "TaskOperation",
    "TaskWorld",
    "ThreadWorld",
    "TrioWorld",
    "UvloopWorld",
    "World",
    "core_of",
    "ctrl_c",
    "drive",
    "needs_trio",
    "sampling",
    "spin_until",
    "switching_often",
    "threads_of_work",
    "waiting",
    "waiting_at",
)

needs_trio = pytest.mark.skipif(not HAS_TRIO, reason="trio is not installed")

AnyQueue = aioqueue.AsyncQueue
QueueT = TypeVar("QueueT", bound=AnyQueue)
Body = Callable[[], Coroutine[Any, Any, Any]]
Method = Callable[..., Coroutine[Any, Any, Any]]

LARGE = 2**13
"""Numbers in a large element: of 64 KiB, so that a batch of them is copied without the lock."""
STRUCTURED = np.dtype([("id", "int64"), ("weight", "float32")])
"""Scalars of which NumPy gives views."""
_LARGE_KINDS = ("large", "large-shuffle")

PATIENCE = 20.0
"""Seconds after which a state that was waited for is taken never to come."""


class StillClock:
    """A clock that stands still unless a test moves it; the time is `now`, in seconds."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class CancelledError(Exception):
    """What `Operation.result` raises for an operation that was cancelled, in every world."""


class Operation(ABC):
    """An operation that runs beside the test."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""

    @abstractmethod
    async def result(self) -> Any:
        """Wait until it ends; return what it returned, or raise what it raised."""


class TaskOperation(Operation):
    """An operation that is a task, and so can be cancelled from outside."""

    @abstractmethod
    def cancel(self) -> None:
        """Ask for its cancellation; `result` shows whether that comes in time."""

    async def was_cancelled(self) -> bool:
        """Wait until it ends; tell whether by cancellation. What else it raised is raised here."""
        try:
            await self.result()
        except CancelledError:
            return True
        return False


class World(ABC):
    """A place where operations can wait.

    Queues are made by the methods named after them, and closed when the test has ended.
    """

    name: str
    package: str | None = None
    """What has to be installed for it."""

    @classmethod
    def missing(cls) -> str:
        """Why it cannot be run here; empty if it can."""
        if cls.package is None or importlib.util.find_spec(cls.package) is not None:
            return ""
        return f"{cls.package} is not installed"

    def __init__(self) -> None:
        self._queues: list[AnyQueue] = []

    @abstractmethod
    def run(self, body: Body) -> None:
        """Bring this world to life, run a test in it, and end all that the test has left."""

    @abstractmethod
    async def until(self, condition: Callable[[], object]) -> None:
        """Let others run until the condition holds."""

    @abstractmethod
    def spawn(self, method: Method, *arguments: Any, **options: Any) -> Operation:
        """Start an operation beside the test."""

    async def begin(self, method: Method, *arguments: Any, **options: Any) -> Operation:
        """Start an operation of a queue, and return when it stands in line (or has ended)."""
        before = waiting(cast(MethodType, method).__self__)
        operation = self.spawn(method, *arguments, **options)
        await self.in_line(operation, method, before)
        return operation

    async def in_line(self, operation: Operation, method: Method, before: int = 0) -> None:
        """Wait until more operations than before wait, of the queue whose method this is."""
        queue = cast(MethodType, method).__self__
        await self.until(lambda: operation.done or waiting(queue) > before)

    def fifo(self, *arguments: Any, **options: Any) -> aioqueue.FIFOQueue:
        return self._made(aioqueue.FIFOQueue(*arguments, **options))

    def shuffle(self, *arguments: Any, **options: Any) -> aioqueue.RandomShuffleQueue:
        return self._made(aioqueue.RandomShuffleQueue(*arguments, **options))

    def padding(self, *arguments: Any, **options: Any) -> aioqueue.PaddingFIFOQueue:
        return self._made(aioqueue.PaddingFIFOQueue(*arguments, **options))

    def priority(self, *arguments: Any, **options: Any) -> aioqueue.PriorityQueue:
        return self._made(aioqueue.PriorityQueue(*arguments, **options))

    def close_all(self) -> None:
        for queue in self._queues:
            queue.close(cancel_pending_enqueues=True)

    def _made(self, queue: QueueT) -> QueueT:
        self._queues.append(queue)
        return queue


class TaskWorld(World):
    """A world of tasks."""

    @abstractmethod
    def spawn(self, method: Method, *arguments: Any, **options: Any) -> TaskOperation: ...

    async def begin(self, method: Method, *arguments: Any, **options: Any) -> TaskOperation:
        operation = await super().begin(method, *arguments, **options)
        assert isinstance(operation, TaskOperation)
        return operation

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = perf_counter() + PATIENCE
        while not condition():
            assert perf_counter() < deadline, "the state that was waited for never came"
            await self.tick()

    @abstractmethod
    async def tick(self) -> None:
        """Let every task that can run now run once."""

    @abstractmethod
    async def within(self, seconds: float, method: Method, *arguments: Any) -> Any:
        """Call and await with a deadline, as users of this world would; raises `CancelledError`."""


class AsyncioWorld(TaskWorld):
    """The stock event loop, in debug mode."""

    name = "asyncio"
    debug = True

    @staticmethod
    def new_loop() -> asyncio.AbstractEventLoop:
        """A new event loop of this kind.

        Debug mode also notes the whole stack at each task and future, if `get_debug` says so.
        Nobody reads those here, and they take a tenth of the time of the tests.
        """
        loop = asyncio.new_event_loop()
        loop.get_debug = lambda: False  # type: ignore[method-assign]
        return loop

    def run(self, body: Body) -> None:
        with asyncio.Runner(debug=self.debug, loop_factory=self.new_loop) as runner:
            try:
                runner.run(body())
            finally:
                self.close_all()

    def spawn(self, method: Method, *arguments: Any, **options: Any) -> TaskOperation:
        return _AsyncioOperation(asyncio.create_task(method(*arguments, **options)))

    async def tick(self) -> None:
        await asyncio.sleep(0)

    async def within(self, seconds: float, method: Method, *arguments: Any) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await method(*arguments)
        except TimeoutError:
            raise CancelledError from None


class UvloopWorld(AsyncioWorld):
    """The event loop that people use in production."""

    name = "uvloop"
    package = "uvloop"
    debug = False

    @staticmethod
    def new_loop() -> asyncio.AbstractEventLoop:
        return uvloop.new_event_loop()


class _AsyncioOperation(TaskOperation):
    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task

    @property
    def done(self) -> bool:
        return self.task.done()

    async def result(self) -> Any:
        await asyncio.wait([self.task])
        if self.task.cancelled():
            raise CancelledError
        return self.task.result()

    def cancel(self) -> None:
        self.task.cancel()


class TrioWorld(TaskWorld):
    """trio, where every operation is a checkpoint and cancellation is a scope."""

    name = "trio"
    package = "trio"
    _nursery: trio.Nursery

    def run(self, body: Body) -> None:
        async def main() -> None:
            test = _TrioOperation()
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await test.run(body)
                self.close_all()
                nursery.cancel_scope.cancel()
            await test.result()

        try:
            trio.run(main)
        finally:
            del self._nursery  # the fixture of this world lives longer than the test

    def spawn(self, method: Method, *arguments: Any, **options: Any) -> TaskOperation:
        operation = _TrioOperation()
        self._nursery.start_soon(operation.run, partial(method, *arguments, **options))
        return operation

    async def tick(self) -> None:
        await trio.lowlevel.checkpoint()

    async def within(self, seconds: float, method: Method, *arguments: Any) -> Any:
        with trio.move_on_after(seconds):
            return await method(*arguments)
        raise CancelledError


class _TrioOperation(TaskOperation):
    def __init__(self) -> None:
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._returned: Any = None
        self._raised: BaseException | None = None

    async def run(self, call: Body) -> None:
        try:
            with self._scope:
                self._returned = await call()
        except Exception as error:
            self._raised = error
        finally:
            self._ended.set()

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    async def result(self) -> Any:
        await self._ended.wait()
        if self._scope.cancelled_caught:
            raise CancelledError
        if self._raised is not None:
            raise self._raised
        return self._returned

    def cancel(self) -> None:
        self._scope.cancel()


class ThreadWorld(World):
    """Threads: the test runs in one that is not the main thread, every operation in one more."""

    name = "threads"

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[_ThreadOperation] = []

    def run(self, body: Body) -> None:
        test = _ThreadOperation(body)
        try:
            drive(test.result())
        finally:
            self.close_all()
            for operation in self._operations:
                operation.thread.join(PATIENCE)
                assert operation.done, "an operation outlived its queue"
            self._operations.clear()  # the fixture of this world lives longer than the test

    async def until(self, condition: Callable[[], object]) -> None:
        spin_until(condition)

    def spawn(self, method: Method, *arguments: Any, **options: Any) -> Operation:
        operation = _ThreadOperation(partial(method, *arguments, **options))
        self._operations.append(operation)
        return operation

    def _made(self, queue: QueueT) -> QueueT:
        self._queues.append(queue)
        return cast(QueueT, AwaitedQueue(queue.sync))


class _ThreadOperation(Operation):
    def __init__(self, call: Body) -> None:
        self._call = call
        self._returned: Any = None
        self._raised: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._returned = drive(self._call())
        except BaseException as error:
            self._raised = error

    @property
    def done(self) -> bool:
        return not self.thread.is_alive()

    async def result(self) -> Any:
        self.thread.join(2 * PATIENCE)
        assert self.done, "the operation never ended"
        if self._raised is not None:
            raise self._raised
        return self._returned


class AwaitedQueue:
    """The thread face of a queue; its waiting methods block, but are spelled with ``await``."""

    def __init__(self, face: sync.BlockingQueue) -> None:
        self.face = face

    def __getattr__(self, name: str) -> Any:
        return getattr(self.face, name)

    def __len__(self) -> int:
        return len(self.face)

    def __bool__(self) -> bool:
        return bool(self.face)

    def __repr__(self) -> str:
        return repr(self.face)

    async def enqueue(self, *arguments: Any, **options: Any) -> None:
        self.face.enqueue(*arguments, **options)

    async def enqueue_many(self, *arguments: Any, **options: Any) -> None:
        self.face.enqueue_many(*arguments, **options)

    async def dequeue(self, **options: Any) -> Any:
        return self.face.dequeue(**options)

    async def dequeue_many(self, *arguments: Any, **options: Any) -> Any:
        return self.face.dequeue_many(*arguments, **options)

    async def dequeue_up_to(self, *arguments: Any, **options: Any) -> Any:
        return self.face.dequeue_up_to(*arguments, **options)

    async def wait_closed(self, **options: Any) -> None:
        self.face.wait_closed(**options)

    async def join(self, **options: Any) -> None:
        self.face.join(**options)

    async def __aiter__(self) -> AsyncIterator[Any]:
        for element in self.face:
            yield element

    def batches(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        iterator = self.face.batches(*arguments, **options)  # refuses wrong arguments here and now

        async def batches() -> AsyncIterator[Any]:
            for batch in iterator:
                yield batch

        return batches()


@dataclass(frozen=True)
class Kind:
    """One of the four queues, as a queue of whole numbers: the same tests fit all of them."""

    name: str
    ordered: bool = True
    """Whether numbers that go in ascending come out ascending."""

    def make(self, world: World, capacity: int | None = 100) -> AnyQueue:
        if self.name == "fifo":
            return world.fifo(capacity, "int64", ())
        if self.name == "large":
            return world.fifo(capacity, "int64", (LARGE,))
        if self.name == "structured":
            return world.fifo(capacity, STRUCTURED, ())
        if self.name == "shuffle":
            return world.shuffle(capacity, 0, "int64", (), seed=1)
        if self.name == "large-shuffle":
            return world.shuffle(capacity, 0, "int64", (LARGE,), seed=1)
        if self.name == "padding":
            return world.padding(capacity, "int64", [(None,)])
        assert self.name == "priority"
        return world.priority(capacity, "int64", [()])

    def element(self, number: int) -> Any:
        if self.name in _LARGE_KINDS:
            return np.full(LARGE, number)
        if self.name == "structured":
            return np.array((number, number), STRUCTURED)
        return {"padding": [number], "priority": (number, number)}.get(self.name, number)

    def batch(self, numbers: Iterable[int]) -> Any:
        column = np.array(list(numbers), "int64")
        if self.name in _LARGE_KINDS:
            return np.repeat(column[:, None], LARGE, axis=1)
        if self.name == "structured":
            return np.array([(number, number) for number in column], STRUCTURED)
        return {"padding": column[:, None], "priority": (column, column)}.get(self.name, column)

    def number(self, element: Any) -> int:
        if self.name == "priority":
            assert element[0] == element[1]
            return int(element[0])
        if self.name in _LARGE_KINDS:
            assert (element == element[0]).all()
        if self.name == "structured":
            assert element["id"] == element["weight"]
            return int(element["id"])
        return int(np.ravel(element)[0])

    def numbers(self, batch: Any) -> list[int]:
        if self.name == "priority":
            assert np.array_equal(*batch)
            return [int(number) for number in batch[0]]
        if self.name in (*_LARGE_KINDS, "structured"):
            return [self.number(element) for element in batch]
        return [int(number) for number in np.ravel(batch)]

    def in_order(self, numbers: Iterable[int]) -> list[int]:
        """The numbers as they are; ascending, where the queue does not keep an order."""
        return list(numbers) if self.ordered else sorted(numbers)

    async def drain(self, queue: AnyQueue) -> list[int]:
        """Close the queue and take out all that is left, as `in_order` would have it."""
        queue.close()
        numbers = []
        while True:
            try:
                numbers.append(self.number(await queue.dequeue()))
            except OutOfRangeError:
                return self.in_order(numbers)


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    pytest.fail("in the world of threads nothing suspends: it blocks")


def threads_of_work() -> set[threading.Thread]:
    """All threads, but for the one that has reported to joins that the others have ended: it ends
    as well, which takes it a moment where threads run at once."""
    return {one for one in threading.enumerate() if one.name != "aioqueue-join"}


def spin_until(condition: Callable[[], object]) -> None:
    """Let other threads run until the condition holds."""
    deadline = perf_counter() + PATIENCE
    breath = threading.Event()
    while not condition():
        assert perf_counter() < deadline, "the state that was waited for never came"
        breath.wait(0.0005)


@contextmanager
def switching_often(seconds: float = 1e-6) -> Iterator[None]:
    """Let threads take turns much more often than is usual, which shows what goes wrong between."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def sampling(sample: Callable[[], object]) -> Iterator[None]:
    """Have another thread call something again and again meanwhile, which must not fail."""
    is_over = threading.Event()
    outcomes: list[BaseException | None] = []

    def samples() -> None:
        try:
            while not is_over.is_set():
                sample()
                outcomes[:] = [None]
        except BaseException as error:
            outcomes[:] = [error]

    sampler = threading.Thread(target=samples)
    sampler.start()
    try:
        yield
    finally:
        is_over.set()
        sampler.join()
    assert outcomes == [None]


@contextmanager
def ctrl_c(when: Callable[[], object]) -> Iterator[None]:
    """Press Ctrl-C once a condition holds, as often as the main thread needs to feel it once.

    A signal that comes just before that thread falls asleep does not wake it.
    """
    is_felt = threading.Event()

    def feel(*_: object) -> None:
        if not is_felt.is_set():
            is_felt.set()
            raise KeyboardInterrupt

    def press() -> None:
        spin_until(when)
        while not is_felt.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            is_felt.wait(0.02)

    before = signal.signal(signal.SIGINT, feel)
    presser = threading.Thread(target=press)
    try:
        presser.start()  # it may be felt before this returns
        yield
    finally:
        presser.join(PATIENCE)
        signal.signal(signal.SIGINT, before)


def press_until(handled: threading.Event) -> None:
    """Send SIGUSR1 to the main thread until its handler has ended.

    One that comes just before that thread falls asleep is handled when it wakes: try again, and
    give the handler the time to end before the next one strikes it.
    """

    def is_handled() -> bool:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        return handled.wait(0.05)

    spin_until(is_handled)


def core_of(face: Any) -> Any:
    """What both faces of a queue or of a coordinator are made on, for tests of its own contract."""
    return face._core


def waiting_at(gate: Gate) -> int:
    """How many calls wait at a gate, as it says itself."""
    state = repr(gate).removesuffix(" waiting>").rpartition(", ")[2]
    return 0 if state == "open>" else int(state.split()[0])


def waiting(queue: Any) -> int:
    """How many enqueues and dequeues stand in line."""
    statistics = queue.statistics()
    return int(statistics.waiting_enqueues + statistics.waiting_dequeues)


KINDS = (
    Kind("fifo"),
    Kind("large"),
    Kind("structured"),
    Kind("shuffle", ordered=False),
    Kind("large-shuffle", ordered=False),
    Kind("padding"),
    Kind("priority"),
)
TASK_WORLDS: tuple[type[TaskWorld], ...] = (AsyncioWorld, UvloopWorld, TrioWorld)
WORLDS: tuple[type[World], ...] = (*TASK_WORLDS, ThreadWorld)
