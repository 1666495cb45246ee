"""Functions of batchers that share memory in every way: kept buffers, one row for all, requests.

A `Sharer` gives the right results, in memory that is not its callers' alone. A caller that writes
into its result must change neither another result, nor a request, nor what the function keeps. A
process imports this file: so nothing is imported here that takes long.
"""

from __future__ import annotations

from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

SIZE = 3

Rows = list[np.ndarray[Any, Any]]


@dataclass
class Answer:
    """A result that is a record."""

    array: Any


class OwnSequence(Sequence[Any]):
    """A sequence that is no list, and that keeps its parts."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, at: Any) -> Any:
        return self._parts[at]


class OwnList(list[Any]):
    """A list of another class."""


def _each(parts: Sequence[Any]) -> Iterator[Any]:
    yield from parts


CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": lambda parts: parts,
    "tuple": tuple,
    "list of a class": OwnList,
    "wrapped list": UserList,
    "deque": deque,
    "values of a dict": lambda parts: dict(enumerate(parts)).values(),
    "values of an ordered dict": lambda parts: OrderedDict(enumerate(parts)).values(),
    "own sequence": OwnSequence,
    "iterator": iter,
    "generator": _each,
    "map": lambda parts: map(parts.__getitem__, range(len(parts))),
    "reversed": lambda parts: reversed(list(reversed(parts))),
    "objects": lambda parts: _objects(parts),
}

WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "bare": lambda array: array,
    "tuple": lambda array: (array, 1),
    "nested": lambda array: [{"x": (array,)}],
    "dict": lambda array: {"x": array},
    "record": Answer,
    "namespace": lambda array: SimpleNamespace(x=array),
    "wrapped dict": lambda array: UserDict(x=array),
    "values of a dict": lambda array: {"x": array}.values(),
    "memory": lambda array: memoryview(array),
}

SHARING = (
    "fresh",
    "kept",
    "kept views",
    "one kept for all",
    "one for all",
    "one view for all",
    "pairs",
    "windows",
    "diagonals",
    "requests",
    "views of requests",
    "another's request",
    "rows of a kept array",
)
"""What of the memory of a result others have, too."""


def _objects(parts: list[Any]) -> Any:
    made = np.empty(len(parts), object)
    for at, part in enumerate(parts):
        made[at] = part
    return made


class Sharer:
    """A function for a batcher whose result for a request is an array that starts with the same
    number, in shared memory.

    Args:
        sharing: one of `SHARING`.
        container: one of `CONTAINERS`.
        wrapper: one of `WRAPPERS`; with ``"one"`` each caller gets the very same wrapped object
            where they may get the same array.
        is_one: whether equal results are one object.
    """

    def __init__(self, sharing: str, container: str, wrapper: str, is_one: bool = False) -> None:
        self.sharing, self.container, self.wrapper = sharing, container, wrapper
        self.is_one = is_one
        self.kept = np.zeros((64, SIZE))
        self.list: list[Any] = []

    def is_right(self, first: float, number: float, numbers: list[float]) -> bool:
        """Return whether a result for a request with this number, in a batch with these, may start
        so. (The order of the requests in the batch is not known here.)"""
        if self.sharing in ("one kept for all", "one for all", "one view for all"):
            return first == max(numbers)
        if self.sharing in ("pairs", "another's request"):
            return first in numbers
        if self.sharing in ("windows", "diagonals"):
            return min(numbers) <= first < max(numbers) + len(numbers)
        return first == number

    def __call__(self, rows: Rows) -> Any:
        arrays = self._arrays(rows)
        wrap = WRAPPERS[self.wrapper]
        made: dict[int, Any] = {}
        parts = []
        for array in arrays:
            if not (self.is_one and id(array) in made):
                made[id(array)] = wrap(array)
            parts.append(made[id(array)])
        if self.sharing.startswith("kept"):
            self.list[:] = parts  # the list is kept, too
            parts = self.list
        return CONTAINERS[self.container](parts)

    async def later(self, rows: Rows) -> Any:
        """The same as a coroutine function."""
        return self(rows)

    def _arrays(self, rows: Rows) -> Rows:
        sharing, n = self.sharing, len(rows)
        kept = self.kept
        if sharing in ("kept", "kept views", "rows of a kept array"):
            for at, row in enumerate(rows):
                kept[at] = row
            return [
                kept[at] if sharing != "kept views" else kept[at : at + 1][0] for at in range(n)
            ]
        if sharing == "one kept for all":
            kept[0] = max(rows, key=lambda row: row[0])
            return list(repeat(kept[0], n))
        if sharing in ("one for all", "one view for all"):
            top = max(rows, key=lambda row: row[0])
            return [top[:SIZE] for _ in rows] if "view" in sharing else [top] * n
        if sharing == "pairs":
            own = [row + 0 for row in rows]
            return [own[at - at % 2] for at in range(n)]
        if sharing == "another's request":
            return [rows[at - at % 2] for at in range(n)]
        if sharing in ("windows", "diagonals"):
            base = np.arange(n + SIZE, dtype=float) + rows[0][0]
            if sharing == "windows":
                return [base[at : at + SIZE] for at in range(n)]
            return list(as_strided(base, (n, SIZE), (base.itemsize,) * 2))
        if sharing == "requests":
            return rows
        if sharing == "views of requests":
            return [row[:SIZE] for row in rows]
        return [row + 0 for row in rows]


def array_of(result: Any) -> Any:
    """The array in a result, however it is wrapped."""
    while not isinstance(result, np.ndarray):
        if isinstance(result, memoryview):
            return np.asarray(result)
        if isinstance(result, Answer):
            result = result.array
        elif isinstance(result, SimpleNamespace):
            result = result.x
        elif isinstance(result, tuple | list):
            result = result[0]
        elif isinstance(result, dict | UserDict):
            result = result["x"]
        else:
            (result,) = result  # values of a dict
    return result
