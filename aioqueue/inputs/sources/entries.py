"""Items of sources as runs have them: with what tells each from the others, and where it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from aioqueue.inputs.sources.positions import Place

__all__ = ("Entry", "Placed", "closing_run")

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


@contextmanager
def closing_run(run: Iterator[T]) -> Iterator[Iterator[T]]:
    """Close a run through a source when it is left, if that can be: files are open in it."""
    try:
        yield run
    finally:
        getattr(run, "close", bool)()
