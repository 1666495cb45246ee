"""Another process that makes queues and shares them; and worlds whose queues are there.

The process runs as long as the tests, so that a test costs no start. What a test makes there ends
with the test.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import aioqueue
from aioqueue import sync
from tests.kit.worlds import (
    PATIENCE,
    AsyncioWorld,
    ThreadWorld,
    TrioWorld,
    UvloopWorld,
    World,
)

__all__ = ("PROCESS_WORLDS", "InAnotherProcess", "MadeElsewhere", "Owner")


class Owner:
    """Another process that makes what it is asked for, and shares it."""

    def __init__(self, start_method: str = "spawn") -> None:
        context = multiprocessing.get_context(start_method)
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)  # type: ignore[attr-defined]
        self.process.start()
        # Tests of others ask which children are left; this one outlives them.
        multiprocessing.process._children.discard(self.process)  # type: ignore[attr-defined]
        theirs.close()
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return int(self.process.pid)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function there; handles among the arguments are the objects themselves there."""
        with self._lock:
            self._connection.send((function, arguments, options))
            assert self._connection.poll(PATIENCE), "the other process does not answer"
            outcome, has_failed = self._connection.recv()
        if has_failed:
            raise outcome
        return outcome

    def make(self, kind: str, *arguments: Any, **options: Any) -> Any:
        """Make an object of `aioqueue` there; return a handle of it."""
        return self.call(_made_and_shared, kind, arguments, options)

    def drop(self) -> None:
        """Close, and drop, all that was made there."""
        self.call(_drop)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.process.join(PATIENCE)

    def close(self) -> None:
        """End it in order."""
        with contextlib.suppress(OSError):
            self._connection.close()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.kill()


class MadeElsewhere:
    """In place of a class: it makes objects of it in another process, and returns handles.

    Args:
        owner: the other process.
        kind: the name of the class in `aioqueue`.
        face: the attribute of a handle with the face that the class in its place has.
    """

    def __init__(self, owner: Owner, kind: str, face: str) -> None:
        self._owner = owner
        self._kind = kind
        self._face = face
        self._class = getattr(sync if face == "sync" else aioqueue, kind)

    def __instancecheck__(self, thing: object) -> bool:
        return isinstance(thing, self._class)

    def __getitem__(self, kind: Any) -> Any:
        return self

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return getattr(self._owner.make(self._kind, *arguments, **options), self._face)


_made: list[Any] = []


def _serve(connection: Connection) -> None:
    # Ctrl-C in a test is not meant for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            function, arguments, options = connection.recv()
        except EOFError:
            return
        try:
            outcome, has_failed = function(*arguments, **options), False
        except BaseException as error:
            outcome, has_failed = error, True
        connection.send((outcome, has_failed))
        del function, arguments, options, outcome


def _made_and_shared(kind: str, arguments: Any, options: Any) -> Any:
    made = getattr(aioqueue, kind)(*arguments, **options)
    _made.append(made)
    return made.share()


def _drop() -> None:
    while _made:
        one = _made.pop()
        if isinstance(one, aioqueue.AsyncQueue):
            one.close(cancel_pending_enqueues=True)


class InAnotherProcess(World):
    """A world whose queues are in another process: the one that `owner` is set to."""

    owner: Owner

    def _new(self, kind: str, arguments: Any, options: Any) -> Any:
        return self._made(self.owner.make(kind, *arguments, **options))

    def fifo(self, *arguments: Any, **options: Any) -> Any:
        return self._new("FIFOQueue", arguments, options)

    def shuffle(self, *arguments: Any, **options: Any) -> Any:
        return self._new("RandomShuffleQueue", arguments, options)

    def padding(self, *arguments: Any, **options: Any) -> Any:
        return self._new("PaddingFIFOQueue", arguments, options)

    def priority(self, *arguments: Any, **options: Any) -> Any:
        return self._new("PriorityQueue", arguments, options)

    def close_all(self) -> None:
        super().close_all()
        self._queues.clear()
        self.owner.drop()


class AsyncioProcessWorld(InAnotherProcess, AsyncioWorld):
    """The stock event loop, and queues of another process."""

    name = "asyncio-process"


class UvloopProcessWorld(InAnotherProcess, UvloopWorld):
    """Uvloop, and queues of another process."""

    name = "uvloop-process"


class TrioProcessWorld(InAnotherProcess, TrioWorld):
    """trio, and queues of another process."""

    name = "trio-process"


class ThreadProcessWorld(InAnotherProcess, ThreadWorld):
    """Threads, and queues of another process."""

    name = "threads-process"


PROCESS_WORLDS: tuple[type[InAnotherProcess], ...] = (
    AsyncioProcessWorld,
    UvloopProcessWorld,
    TrioProcessWorld,
    ThreadProcessWorld,
)
