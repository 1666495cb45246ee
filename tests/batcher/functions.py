"""What batchers call in processes, which import it from here.

So nothing is imported here that takes long.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # on Windows, where the tests of processes that must be held up are left out
    fcntl = None  # type: ignore[assignment]


def results(values: list[Any]) -> list[Any]:
    """Return what the function of a `Model` returns for a batch."""
    if "boom" in values:
        raise FloatingPointError("boom")
    if "exit" in values:
        raise SystemExit("the model has had enough")
    return [value if isinstance(value, Exception) else 2 * value for value in values]


def modelled(folder: Path, values: list[Any]) -> list[Any]:
    """The function of a `Model` in a process."""
    note(folder, values)
    if "die at once" in values:
        die()
    with open(folder / "gate") as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)
    if "die" in values:
        die()
    return results(values)


def recorded(folder: Path, numbers: list[int]) -> list[Any]:
    """The function of the model in `test_batcher_load.py`, in a process."""
    note(folder, numbers)
    with open(folder / "gate") as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)
    return recorded_results(numbers)


class UnluckyBatchError(Exception):
    """That model raises it for batches that have an unlucky request."""


class UnluckyRequestError(Exception):
    """That model returns it for an unlucky request."""


def recorded_results(numbers: list[int]) -> list[Any]:
    """What it returns."""
    if any(number % 53 == 0 for number in numbers):
        raise UnluckyBatchError
    return [2 * n if n % 17 else UnluckyRequestError(n) for n in numbers]


def die() -> None:
    """End the process that runs this."""
    os.kill(os.getpid(), signal.SIGKILL)


def note(folder: Path, batch: list[Any]) -> None:
    """Note a batch, so that another process sees it whole or not at all."""
    with open(folder / "batches", "ab", buffering=0) as file:
        file.write(pickle.dumps(batch))


def noted(folder: Path) -> Iterator[list[Any]]:
    """The batches that were noted."""
    (folder / "batches").touch()
    with open(folder / "batches", "rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return


class Value:
    """An object whose double is 2."""

    def __rmul__(self, factor: int) -> int:
        return factor


def empties(values: list[Any]) -> list[Any]:
    """Takes its values out of their list, and may fail then, or exit."""
    made = [2 * values.pop(0) for _ in range(len(values))]
    if any(isinstance(one, str) for one in made):
        raise SystemExit("enough") if "exit" in made[0] else FloatingPointError("boom")
    return made


def doubled(values: list[Any]) -> list[Any]:
    return [2 * value for value in values]


def whose(values: list[Any]) -> list[int]:
    """Return the pid for each request."""
    return [os.getpid() for _ in values]


class FileGate:
    """A gate for processes, as `aioqueue.worlds.scopes.Gate` is for threads and tasks.

    Args:
        folder: where its file is.
    """

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / "gate", "wb")  # noqa: SIM115  # as long as we are

    def shut(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def open(self) -> None:
        if fcntl is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        self._file.close()


def dies_of_words(values: list[Any]) -> list[Any]:
    if any(isinstance(value, str) for value in values):
        die()
    return doubled(values)


def exits_of_words(values: list[Any]) -> list[int]:
    if any(isinstance(value, str) for value in values):
        raise SystemExit("enough")
    return whose(values)


def odd_results(values: list[Any]) -> list[Any]:
    """Return the values, except for some words."""
    if "boom" in values:
        raise FloatingPointError("boom")
    odd: dict[Any, Any] = {"return bad": BadThere(), "return lambda": lambda: 1}
    return [odd.get(value, value) for value in values]


class BadThere:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise ValueError("it does not travel")


class _Function:
    """A function that does something when it is unpickled in a process."""

    def __call__(self, values: list[Any]) -> list[Any]:
        return values


class CannotBeUnpickled(_Function):
    def __reduce__(self) -> Any:
        return _fail, ()


class EndsWhenItComes(_Function):
    def __reduce__(self) -> Any:
        return os._exit, (3,)


class DiesWhenItComes(_Function):
    def __reduce__(self) -> Any:
        return die, ()


class WaitsToCome(_Function):
    """Its unpickling waits for the gate in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return _arrive, (self.folder,)


def _arrive(folder: Path) -> WaitsToCome:
    (folder / "begun").touch()
    with open(folder / "gate") as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)
    return WaitsToCome(folder)
