"""Other processes for tests of what is shared: each calls a function, and its result comes back."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

from aioqueue.sharing import owner

PATIENCE: Final = 30.0
"""Seconds after which a process is taken never to answer."""

METHODS: Final = ("fork", "spawn", "forkserver")
"""The ways to start a process."""


class Child:
    """A process that calls a function: a public one of a module, with arguments that pickle.

    Args:
        function: what it calls, with this object's end of a pipe as a keyword argument `pipe`, if
            `talks`.
        arguments: its arguments.
        method: how the process is started.
        talks: whether the function is given a pipe.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        method: str = "fork",
        talks: bool = False,
    ) -> None:
        context: Any = multiprocessing.get_context(method)
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_call, args=(theirs, function, arguments, talks), daemon=True
        )
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        pid: int = self.process.pid
        return pid

    def reported(self) -> Any:
        """Wait for the next object that the function sends by its pipe."""
        assert self.pipe.poll(PATIENCE), f"process {self.pid} says nothing"
        return self.pipe.recv()

    def result(self) -> Any:
        """Wait for what the function returns, or raise what it raises."""
        kind, value = self.reported()
        assert kind in ("returned", "raised"), f"got {value!r} before the result"
        self.wait()
        if kind == "raised":
            raise value
        return value

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send it a signal, and wait for its end."""
        os.kill(self.pid, signum)
        self.wait()

    def wait(self) -> None:
        """Wait for its end. (`Process.join` would also wait for its forks.)"""
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # a fork server's, or somebody has asked for its exit code
            self.process.join(PATIENCE)

    def end(self) -> None:
        if self.process.exitcode is None:
            self.kill()
        assert self.process.exitcode is not None  # which asks for it, and so forgets the process
        self.pipe.close()


def _call(
    pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...], talks: bool
) -> None:
    try:
        options = {"pipe": pipe} if talks else {}
        answer: tuple[str, Any] = ("returned", function(*arguments, **options))
    except BaseException as error:
        answer = ("raised", error)
    try:
        sent = pickle.dumps(answer)
    except Exception as error:
        sent = pickle.dumps(("raised", RuntimeError(f"{answer[1]!r} does not pickle: {error}")))
    pipe.send_bytes(sent)


@contextmanager
def children() -> Iterator[Callable[..., Child]]:
    """Yield a function that starts children; all are ended at the end."""
    started: list[Child] = []

    def start(function: Callable[..., Any], *arguments: Any, **options: Any) -> Child:
        child = Child(function, *arguments, **options)
        started.append(child)
        return child

    try:
        yield start
    finally:
        for child in started:
            child.end()


@contextmanager
def sharing_ended() -> Iterator[None]:
    """End what this process shares at the end, as at the end of the process."""
    try:
        yield
    finally:
        server = owner.running_server()
        if server is not None:
            server.close()
