"""Items of sources as runs have them: with what tells each from the others, and where it is."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

from aioqueue.inputs.sources.positions import Place

__all__ = ("ClosingRun", "Entry", "Placed", "closing_run")

T = TypeVar("T")


class Entry(NamedTuple, Generic[T]):
    """An item of a source, and what tells it from every other one.

    Attributes:
        value: the item itself.
        epoch: how often the source has been gone through before, from 0.
        index: its place in the whole sequence, before sharding and shuffling, from 0.
    """

    value: T
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody misses here


class Placed(NamedTuple, Generic[T]):
    """An entry, and where a run stands that has taken it.

    Attributes:
        entry: the item, with its epoch and index.
        place: behind it, for `Source.position` and `Source.placed_after`: ints, strings, ``None``,
            and sequences of them.
    """

    entry: Entry[T]
    place: Place


def closing_run(run: Iterator[T]) -> ClosingRun[T]:
    """Close a run through a source when it is left, if that can be: files are open in it."""
    return ClosingRun(run)


class ClosingRun(Generic[T]):
    """A block at whose end a run through a source is closed. `closing_run` makes it.

    It is not a `contextlib.contextmanager`, which writes to the exceptions that leave it: a frozen
    one refuses that, and would be replaced by its refusal.

    Args:
        run: what is closed.
    """

    __slots__ = ("_run",)

    def __init__(self, run: Iterator[T]) -> None:
        self._run = run

    def __enter__(self) -> Iterator[T]:
        return self._run

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        getattr(self._run, "close", bool)()
