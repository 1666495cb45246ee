"""Functions that the tests of `prepare` send to processes, which import them from here.

So nothing is imported here that takes long.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import re
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import numpy as np

from aioqueue.processes.arena import Allocator
from aioqueue.processes.fork_server.spawn import IgnoresSignals


def double(number: int) -> int:
    return 2 * number


def refuse_even(number: int) -> int:
    if number % 2 == 0:
        raise ValueError(f"{number} is even")
    return number


def starts_a_process(number: int) -> int:
    multiprocessing.Process(target=double, args=(number,)).start()
    return number


def negative_too(number: int) -> Iterator[int]:
    yield number
    yield -number


def noise(number: Any, rng: np.random.Generator) -> tuple[Any, float]:
    return number, float(rng.random())


async def noise_in_a_task(number: Any, rng: np.random.Generator) -> tuple[Any, float]:
    return noise(number, rng)


def refuses_five(number: int) -> int:
    if number == 5:
        raise ValueError("no five")
    return number


async def refuses_five_in_a_task(number: int) -> int:
    return refuses_five(number)


def delayed(number: int) -> int:
    """Takes up to half a millisecond, differently for each number."""
    time.sleep(random.Random(number).random() / 2000)
    return number


def picture(number: int) -> Any:
    """600 KB, all of it the number modulo 256."""
    return np.full((200, 1000, 3), number % 256, "uint8")


def striped(number: int) -> Any:
    """The same size, but with gaps in memory."""
    return np.full((400, 1000, 3), number % 256, "uint8")[::2]


def refuses_thirteens(number: int) -> int:
    if number % 13 == 0:
        raise ValueError(f"{number} is unlucky")
    return number


def fails_at_first(path: str, number: int) -> int:
    """Fails when it is called for the first time, in whatever process."""
    mark = Path(path, str(number))
    if not mark.exists():
        mark.touch()
        raise OSError(f"{number} is not there yet")
    return number


def kills_itself(number: int) -> int:
    if number == 37:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def exits(number: int) -> int:
    raise SystemExit(3)


class KillsBefore:
    """A process to which it comes is killed when it has got items, and before it begins one."""

    def __call__(self, number: int) -> int:
        return number

    def __reduce__(self) -> Any:
        return _killing_before, ()


def _killing_before() -> KillsBefore:
    Allocator.free = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    return KillsBefore()


def ignores_termination(path: str, number: int) -> int:
    """Never ends, and makes a file when nobody can ask it to any more."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(path).touch()
    return never_ends(number)


def stops_its_process(number: int) -> int:
    """Stop this process, as by SIGSTOP from outside, unless the number is 0."""
    if number:
        os.kill(os.getpid(), signal.SIGSTOP)
    return number


def never_ends(number: int) -> int:
    while number > 1:
        time.sleep(60)
    return number


def unpicklable_result(number: int) -> Any:
    return lambda: number


class OddError(Exception):
    """Can be pickled, and not be unpickled by a call of its class."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one}, {two}")


def raises_odd_error(number: int) -> int:
    raise OddError(number, number)


class NoError(Exception):
    """Becomes something else on its way."""

    def __reduce__(self) -> Any:
        return str, ("a string",)


class MuteError(Exception):
    """Has nothing to say, and cannot be pickled either."""

    def __str__(self) -> str:
        raise ValueError

    def __reduce__(self) -> Any:
        raise ValueError


def raises_no_error(number: int) -> int:
    raise NoError


def raises_mute_error(number: int) -> int:
    raise MuteError


def busy_or_unlucky(number: int) -> int:
    return never_ends(number) if number % 13 else refuses_thirteens(number)


def slow_from_fifty(number: int) -> int:
    return never_ends(number) if number >= 50 else number


class SpawnedProcess(IgnoresSignals, SpawnProcess):
    """As processes are started where there is no fork server."""


class LeavesBefore:
    """A process to which it comes ends by itself, before it can work."""

    def __call__(self, number: int) -> int:
        return number

    def __reduce__(self) -> Any:
        return os._exit, (3,)


def pid_of(number: int) -> int:
    return os.getpid()


def forked_helper(path: str) -> None:
    """Start a process that lives on, and has a copy of all files that we have open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this process has threads
        pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    Path(path, f"helper-{os.getpid()}").write_text(str(pid))


def sends_much(path: str, number: int) -> list[bytes]:
    """More than a pipe holds, from a process that has forked a helper."""
    if not list(Path(path).glob("helper-*")):
        forked_helper(path)
    return [bytes(2_000_000)]


def ends_a_program(number: int) -> int:
    """Ask a program to end, in the usual way; it has nothing against that."""
    with subprocess.Popen(["sleep", "600"]) as running:
        running.terminate()
        return running.wait()


def never_ends_that_way(path: str, how: str, number: int) -> int:
    """Never ends, in one way or another; makes a file when it has begun."""
    if "forked" in how:
        forked_helper(path)
    if "deaf" in how:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL})
    Path(path, f"begun-{os.getpid()}").touch()
    if "holds the GIL" in how:
        ctypes.PyDLL(None).sleep(600)
    return never_ends(2)


def waits_for_seven(path: str, number: int) -> Any:
    """A million bytes; those of the first item when the eighth has come."""
    if number == 0:
        while not Path(path, "7").exists():
            time.sleep(0.001)
    Path(path, str(number)).touch()
    return np.full(1_000_000, number % 256, "uint8")


class OneWay:
    """An object that can be pickled, and then never again be made."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _never, ()


def _never() -> None:
    raise ValueError("only once")


def cannot_come_back(number: int) -> Any:
    return number or OneWay()


def waits_for_go(path: str, item: tuple[str, int]) -> tuple[str, int]:
    """Tells that it has begun; those of key "a" end when they may."""
    key, number = item
    Path(path, f"begun-{key}-{number}").touch()
    while key == "a" and not Path(path, "go").exists():
        time.sleep(0.001)
    return item


def alone(path: str, number: int) -> int:
    """Fails if another one with the same remainder is being prepared, in whatever process."""
    with open(Path(path, f"inside-{number % 5}"), "x"):
        delayed(number)
    os.unlink(Path(path, f"inside-{number % 5}"))
    return number


def alone_at_last(path: str, number: int) -> int:
    """The same, but fails at first, each number once; then nobody else fails because of it."""
    alone(path, number)
    return fails_at_first(path, number)


def remainder(number: int) -> int:
    return number % 5


def holds_the_gil(number: int) -> object:
    """A call into C that gives nobody else a turn, for longer than any test."""
    return re.match(r"(a+)+$", "a" * (30 + number) + "b")


def slow_at(slow: frozenset[int], number: int) -> int:
    """Never ends for some."""
    return never_ends(number + 2) if number in slow else number
