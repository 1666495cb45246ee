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
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import aioqueue
from aioqueue import sync
from tests.kit.worlds import PATIENCE

__all__ = ("FORKSERVER", "STARTS", "Member", "members")

FORKSERVER = "forkserver"
STARTS = ("fork", "spawn", FORKSERVER)


class Member:
    """A process that calls a function with a coordinator.

    Args:
        function: called with the coordinator, and with a function that says something to the test
            and returns what the test answers.
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

    def heard(self) -> Any:
        """What it has said next."""
        assert self._connection.poll(PATIENCE), "it says nothing"
        return self._connection.recv()

    def answer(self, value: Any = None) -> None:
        self._connection.send(value)

    def kill(self, number: int = signal.SIGKILL) -> None:
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
    def say(value: Any) -> Any:
        connection.send(value)
        return connection.recv()

    function(coord, say)


def quiet() -> None:
    """Show nothing of the exception that `multiprocessing` prints."""
    sys.stderr = io.StringIO()


# What they do.


def work(coord: Any, say: Callable[[Any], Any]) -> None:
    """Count as a worker until the stop."""
    with coord.stop_on_exception():
        say("working")
        coord.sync.wait_for_stop()
    say("stopped")


def fail(coord: Any, say: Callable[[Any], Any]) -> None:
    with coord.stop_on_exception():
        raise ValueError("a bad example")


def fail_unnoticed(coord: Any, say: Callable[[Any], Any]) -> None:
    """End by an exception, without a block around."""
    quiet()
    assert not coord.should_stop()
    raise ValueError("a bad example")


def exit_with_a_code(coord: Any, say: Callable[[Any], Any]) -> None:
    assert not coord.should_stop()
    sys.exit(3)


def vanish(coord: Any, say: Callable[[Any], Any]) -> None:
    assert not coord.should_stop()
    os._exit(4)


def return_at_once(coord: Any, say: Callable[[Any], Any]) -> None:
    coord.should_stop()


def hold(coord: Any, say: Callable[[Any], Any]) -> None:
    """Take part, without a worker, until the test answers."""
    assert not coord.should_stop()
    say("holding")


def stop(coord: Any, say: Callable[[Any], Any]) -> None:
    coord.request_stop()


def stop_with_a_failure(coord: Any, say: Callable[[Any], Any]) -> None:
    coord.request_stop(KeyError("lost"))
    say(repr(coord.should_stop()))


def press_ctrl_c(coord: Any, say: Callable[[Any], Any]) -> None:
    """Be interrupted while it works."""
    quiet()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with coord.stop_on_exception():
        say("working")
        coord.sync.wait_for_stop()


def wait_in_a_queue(coord: Any, say: Callable[[Any], Any]) -> None:
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
    say("waiting")
    for thread in threads:
        thread.join()
    say(ended)


def work_in_tasks(coord: Any, say: Callable[[Any], Any]) -> None:
    """Runners of an event loop, which fail."""

    async def main() -> None:
        queue = aioqueue.FIFOQueue(2)

        async def op() -> None:
            if coord.should_stop():
                raise AssertionError
            raise ValueError("a bad example")

        async with coord.aio:
            coord.aio.start(aioqueue.QueueRunner(queue, [op]))
            await coord.aio.wait_for_stop()

    with contextlib.suppress(ExceptionGroup):
        asyncio.run(main())
    say(repr(coord))


def run_runners(coord: Any, say: Callable[[Any], Any]) -> None:
    """A runner of threads that is restarted once, and fails for good then."""
    queue = sync.FIFOQueue(2)
    calls: list[int] = []

    def op() -> None:
        calls.append(1)
        raise ValueError("a bad example")

    runner = sync.QueueRunner(queue, [op], restart=aioqueue.Restart(1, backoff=0.0))
    for thread in runner.create_threads(coord=coord.sync, start=True):
        thread.join()
    say(len(calls))


def join_too(coord: Any, say: Callable[[Any], Any]) -> None:
    """Join, and say what that raises."""
    say("joining")
    try:
        coord.sync.join()
    except ExceptionGroup as group:
        say([repr(error) for error in group.exceptions])
    else:
        say([])


def learn_of_the_end(coord: Any, say: Callable[[Any], Any]) -> None:
    """Wait for a stop, then join; for the end of the owner."""
    coord.sync.wait_for_stop(0)
    say("waiting")
    coord.sync.wait_for_stop()
    join_too(coord, say)


def own(say_to: Connection) -> None:
    """Share a coordinator, and have it until the connection is closed."""
    coord = sync.Coordinator()
    say_to.send(coord.share())
    what = say_to.recv()
    if what == "exit":
        return
    os._exit(5)


def program(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program, and wait for it."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
