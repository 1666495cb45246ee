"""Functions that the tests of `prepare` send to processes, which import them from here.

So nothing is imported here that takes long.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from aioqueue.inputs.shared_memory import Allocator


def double(number: int) -> int:
    return 2 * number


def negative_too(number: int) -> Iterator[int]:
    yield number
    yield -number


def noise(number: int, rng: np.random.Generator) -> tuple[int, float]:
    return number, float(rng.random())


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
    Allocator.give_back = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    return KillsBefore()


def ignores_being_told(path: str, number: int) -> int:
    """Never ends, and makes a file when nobody can ask it to any more."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(path).touch()
    return never_ends(number)


def never_ends(number: int) -> int:
    while number > 1:
        time.sleep(60)
    return number


def unpicklable_result(number: int) -> Any:
    return lambda: number


class OddError(Exception):
    """Can be pickled, and cannot be unpickled."""

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
