"""Processes that take part in a shared coordinator, and what they do: light to import there."""

from __future__ import annotations

import asyncio
import contextlib
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import anyio.lowlevel

import aioqueue
from aioqueue import sync
from aioqueue.sharing.coordinator import _end_members
from tests.kit.worlds import PATIENCE

__all__ = ("FORKSERVER", "STARTS", "Member", "members")

FORKSERVER = "forkserver"
STARTS = ("fork", "spawn", FORKSERVER)


class Member:
    """A process that calls a function with a coordinator.

    Args:
        function: called with the coordinator, and with a function that reports something to the
            test and returns what the test answers.
        coord: the coordinator.
        start: how the process is started.
    """

    def __init__(
        self, function: Callable[[Any, Callable[[Any], Any]], object], coord: Any, start: str
    ) -> None:
        context: Any = multiprocessing.get_context(start)
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_run, args=(function, coord, theirs), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def reported(self) -> Any:
        """What it reports next."""
        assert self._connection.poll(PATIENCE), "it reports nothing"
        return self._connection.recv()

    def answer(self, value: Any = None) -> None:
        self._connection.send(value)

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended in the meantime
            os.kill(self.pid, number)

    def end(self) -> int:
        """Its exit code, once it has ended."""
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, "it does not end"
        return int(self.process.exitcode)

    def close(self) -> None:
        self._connection.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join(PATIENCE)
        self.process.close()


@contextlib.contextmanager
def members() -> Iterator[Callable[..., Member]]:
    """Starts processes, which end with the block."""
    made: list[Member] = []

    def start(function: Any, coord: Any, how: str = FORKSERVER) -> Member:
        made.append(Member(function, coord, how))
        return made[-1]

    try:
        yield start
    finally:
        for member in made:
            member.close()


def _run(function: Any, coord: Any, connection: Connection) -> None:
    def report(value: Any) -> Any:
        connection.send(value)
        return connection.recv()

    function(coord, report)


def quiet() -> None:
    """Show nothing of the exception that `multiprocessing` prints."""
    sys.stderr = io.StringIO()


# What they do.


def work(coord: Any, report: Callable[[Any], Any]) -> None:
    """Count as a worker until the stop."""
    with coord.stop_on_exception():
        report("working")
        coord.sync.wait_for_stop()
    report("stopped")


def fail(coord: Any, report: Callable[[Any], Any]) -> None:
    with coord.stop_on_exception():
        raise ValueError("a bad example")


def fail_unnoticed(coord: Any, report: Callable[[Any], Any]) -> None:
    """End by an exception, without a block around."""
    quiet()
    assert not coord.should_stop()
    raise ValueError("a bad example")


def exit_with_a_code(coord: Any, report: Callable[[Any], Any]) -> None:
    assert not coord.should_stop()
    sys.exit(3)


def vanish(coord: Any, report: Callable[[Any], Any]) -> None:
    assert not coord.should_stop()
    os._exit(4)


def return_at_once(coord: Any, report: Callable[[Any], Any]) -> None:
    coord.should_stop()


def hold(coord: Any, report: Callable[[Any], Any]) -> None:
    """Take part, without a worker, until the test answers."""
    assert not coord.should_stop()
    report("holding")


def work_in_a_late_thread(coord: Any, report: Callable[[Any], Any]) -> None:
    """A thread is registered, and started then; it ends when the test answers."""
    go = threading.Event()
    thread = threading.Thread(target=go.wait, daemon=True)
    coord.register(thread)
    coord.should_stop()
    thread.start()
    report("started")
    go.set()
    report("ended")


def work_while_no_thread_can_be_started(coord: Any, report: Callable[[Any], Any]) -> None:
    """The system has no thread that would wait for the worker's end, for a moment."""
    start, refused = threading.Thread.start, threading.Event()

    def start_others(thread: threading.Thread) -> None:
        if thread.name == "aioqueue-join":
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    ending = threading.Event()
    worker = threading.Thread(target=ending.wait, args=(PATIENCE,), name="worker")
    worker.start()
    threading.Thread.start = start_others  # type: ignore[assignment, method-assign]
    coord.register(worker)
    assert refused.wait(PATIENCE)
    threading.Thread.start = start  # type: ignore[method-assign]
    report("registered")
    ending.set()
    report(coord.should_stop())


def stop(coord: Any, report: Callable[[Any], Any]) -> None:
    coord.request_stop()


def stop_with_a_failure(coord: Any, report: Callable[[Any], Any]) -> None:
    coord.request_stop(KeyError("lost"))
    report(repr(coord.should_stop()))


def press_ctrl_c(coord: Any, report: Callable[[Any], Any]) -> None:
    """Be interrupted while it works."""
    quiet()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with coord.stop_on_exception():
        report("working")
        coord.sync.wait_for_stop()


def wait_in_a_queue(coord: Any, report: Callable[[Any], Any]) -> None:
    """Registered threads wait at a local queue, which nobody fills."""
    queue = sync.FIFOQueue(3, name="quiet")
    ended: list[str] = []

    def take() -> None:
        try:
            queue.dequeue()
        except aioqueue.CancelledError:
            ended.append("cancelled")

    threads = [threading.Thread(target=take, name=f"taker {i}") for i in range(2)]
    for thread in threads:
        coord.register(thread)
        thread.start()
    while queue.statistics().waiting_dequeues < 2:
        pass
    report("waiting")
    for thread in threads:
        thread.join()
    report(ended)


def work_in_tasks(coord: Any, report: Callable[[Any], Any]) -> None:
    """A runner of an event loop fails, and the block around it raises that."""

    async def op() -> None:
        raise ValueError("a bad example")

    async def main() -> None:
        async with coord.aio as stopping:
            stopping.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(2), [op]))
            await stopping.wait_for_stop()

    run = loops()[report("which event loop?")]
    with contextlib.suppress(ExceptionGroup):
        run(main)
    report(repr(coord))


def wait_in_a_task(coord: Any, report: Callable[[Any], Any]) -> None:
    """A task waits at a queue that nobody fills, while the block waits for a stop."""
    ended: list[str] = []
    quiet = aioqueue.FIFOQueue(2)

    async def op() -> None:
        try:
            await quiet.dequeue()
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    async def main() -> None:
        async with coord.aio as stopping:
            stopping.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(2), [op]))
            while not quiet.statistics().waiting_dequeues:
                await anyio.lowlevel.checkpoint()
            report("waiting")
            await stopping.wait_for_stop()

    run = loops()[report("which event loop?")]
    run(main)
    report(len(ended))


def loops() -> dict[str, Callable[..., Any]]:
    """What runs a coroutine function, by the name of the event loop."""

    def run_in_trio(main: Any) -> None:
        import trio

        trio.run(main)

    def run_in_uvloop(main: Any) -> None:
        import uvloop

        uvloop.run(main())

    return {
        "asyncio": lambda main: asyncio.run(main()),
        "uvloop": run_in_uvloop,
        "trio": run_in_trio,
    }


def run_runners(coord: Any, report: Callable[[Any], Any]) -> None:
    """A runner of threads that is restarted once, and fails for good then."""
    queue = sync.FIFOQueue(2)
    calls: list[int] = []

    def op() -> None:
        calls.append(1)
        raise ValueError("a bad example")

    runner = sync.QueueRunner(queue, [op], restart=aioqueue.Restart(1, backoff=0.0))
    for thread in runner.create_threads(coord=coord.sync, start=True):
        thread.join()
    report(len(calls))


def fill(coord: Any, report: Callable[[Any], Any]) -> None:
    """Runners fill a shared queue, and one of this process, and wait for the stop then."""
    shared = report("which queue?")
    local = sync.FIFOQueue(100, name="local")
    threads, filled = [], []
    for queue in (shared.sync, local):
        left, is_filled = iter(range(5)), threading.Event()

        def op(queue: Any = queue, left: Any = left, is_filled: Any = is_filled) -> None:
            for number in left:
                queue.enqueue(number)
                return
            is_filled.set()
            coord.sync.wait_for_stop()
            raise aioqueue.OutOfRangeError

        filled.append(is_filled)
        threads += sync.QueueRunner(queue, [op]).create_threads(coord=coord.sync, start=True)
    for one in filled:
        one.wait()
    report("filled")
    for thread in threads:
        thread.join()


def fork(coord: Any, report: Callable[[Any], Any]) -> None:
    """Fork twice while it takes part: one fork uses the coordinator, the other does not."""
    with coord.stop_on_exception():
        codes = []
        for uses_it in (False, True):
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    if uses_it:
                        with coord.stop_on_exception():
                            code = int(coord.should_stop())
                    _end_members()
                    code = 0
                finally:
                    os._exit(code)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        report(codes)
        report("working")
        coord.sync.wait_for_stop()


def join_too(coord: Any, report: Callable[[Any], Any]) -> None:
    """Join, and report what that raises."""
    report("joining")
    try:
        coord.sync.join()
    except ExceptionGroup as group:
        report([repr(error) for error in group.exceptions])
    else:
        report([])


def fail_under_a_launcher(coord: Any, report: Callable[[Any], Any]) -> None:
    """Fail in a block; what has started the process catches that, as that of PyTorch does."""
    try:
        with coord.sync:
            raise ValueError("a bad example")
    except ExceptionGroup:
        sys.exit(1)


def join_under_a_launcher(coord: Any, report: Callable[[Any], Any]) -> None:
    try:
        with coord.sync:
            report("working")
            coord.sync.wait_for_stop()
    except ExceptionGroup:
        sys.exit(1)


def join_and_report_what_is_printed(coord: Any, report: Callable[[Any], Any]) -> None:
    report("joining")
    report(["".join(traceback.format_exception(error)) for error in _raised_by_join(coord)])


def fail_with_a_group(coord: Any, report: Callable[[Any], Any]) -> None:
    with coord.stop_on_exception():
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ExceptionGroup("two examples", [error, ValueError("second")]) from None


def learn_of_the_end(coord: Any, report: Callable[[Any], Any]) -> None:
    """Wait for a stop, then join; for the end of the owner."""
    coord.sync.wait_for_stop(0)
    report("waiting")
    coord.sync.wait_for_stop()
    join_too(coord, report)


def own(connection: Connection) -> None:
    """Share a coordinator, and have it until the connection is closed."""
    coord = sync.Coordinator()
    connection.send(coord.share())
    what = connection.recv()
    if what == "exit":
        return
    os._exit(5)


def program(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program, and wait for it."""
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )


def fail_as_a_filler(coord: Any, report: Callable[[Any], Any]) -> None:
    """A runner fills a shared queue, and its worker fails."""
    shared = report("which queue?")

    def op() -> None:
        raise KeyError("boss level")

    threads = sync.QueueRunner(shared.sync, [op]).create_threads(coord=coord.sync, start=True)
    for thread in threads:
        thread.join()
    report([str(error) for error in _raised_by_join(coord)])


def _raised_by_join(coord: Any) -> list[BaseException]:
    try:
        coord.sync.join()
    except BaseExceptionGroup as group:
        return list(group.exceptions)
    return []
