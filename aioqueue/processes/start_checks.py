"""Whether a process may be started.

The program must not be ending. It must not be what multiprocessing has started by mistake, in place
of a worker: then each program would start the next, without end.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import spawn
from typing import Final

__all__ = (
    "PARENT_GONE",
    "STARTS",
    "CannotStartError",
    "handing_over",
    "is_ending",
    "is_importing_main",
    "is_python",
    "no_more",
    "not_in_place_of_a_worker",
)

PARENT_GONE: Final = 70
"""The exit code of a process whose program has ended."""

STARTS: Final = "AIOQUEUE_STARTS_WORKER"
"""An environment variable: the program that is being started as a worker process, if that is no
Python interpreter."""

_INTERPRETER: Final = re.compile(r"(python|pypy|graalpy)", re.IGNORECASE)
"""How the names of interpreters begin."""

_PATIENCE: Final = 1.0
"""How many seconds the program's exit waits for a process that is just getting its data."""

# Only threads that are made for this take this lock, and no signal handler runs in them.
_handing_over = threading.Lock()  # a process, or the server, may exist without its data
_is_ending = False


class CannotStartError(Exception):
    """A process cannot be started, and another try would fail, too.

    Args:
        why: the reason.
        exitcode: the fork server's exit code, if it has ended with one.
    """

    def __init__(self, why: str, exitcode: int | None = None) -> None:
        super().__init__(why)
        self.exitcode = exitcode


def is_importing_main() -> bool:
    """Return whether this is a new process that is importing the program's main module."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def is_ending() -> bool:
    """Return whether the program ends. Then multiprocessing may join what we would close."""
    return _is_ending


def no_more() -> None:
    """Start no process from now on, because the program ends."""
    global _is_ending
    _is_ending = True
    # A process that got half of its data would print an error.
    if _handing_over.acquire(timeout=_PATIENCE):
        _handing_over.release()


@contextmanager
def handing_over() -> Iterator[None]:
    """Let the program's exit wait a moment: a process, or the server, may exist without its data.

    Raises:
        CannotStartError: the program is ending.
    """
    with _handing_over:
        if is_ending():
            raise CannotStartError("the program is ending")
        yield


def is_python() -> bool:
    """Return whether multiprocessing starts a Python interpreter that runs what it is given.

    Frozen programs and those that embed Python do not: they would start themselves. They start
    processes in a way of their own, on which their tools and multiprocessing have agreed.
    """
    if getattr(sys, "frozen", False):
        return False
    executable = os.fsdecode(spawn.get_executable() or "")
    names = (os.path.basename(path) for path in (executable, os.path.realpath(executable)))
    return any(_INTERPRETER.match(name) for name in names)


@contextmanager
def not_in_place_of_a_worker() -> Iterator[None]:
    """Refuse to start a process in a program that was itself started instead of one.

    It would go on for ever: each program would start the next.

    Raises:
        CannotStartError: so it is; or the program does not know what to start.
    """
    if is_python():
        yield
        return
    executable = os.fsdecode(spawn.get_executable() or "")
    if not executable:
        raise CannotStartError(
            "sys.executable is empty, so Python cannot be started; name an interpreter by"
            " multiprocessing.set_executable()"
        )
    if os.environ.get(STARTS) == executable and multiprocessing.parent_process() is None:
        raise CannotStartError(
            f"{executable} has started itself instead of a worker process; call"
            ' multiprocessing.freeze_support() first under `if __name__ == "__main__":`, or name a'
            " Python interpreter by multiprocessing.set_executable()"
        )
    os.environ[STARTS] = executable
    try:
        yield
    finally:
        os.environ.pop(STARTS, None)


def _after_fork() -> None:
    """Reset the lock, in a fork of the program."""
    global _handing_over
    _handing_over = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
