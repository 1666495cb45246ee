"""The items of a quarantine file, as a source to prepare again."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from typing import Any

from aioqueue import InvalidArgumentError
from aioqueue.inputs.core.items import Entry, Quarantined
from aioqueue.inputs.core.quarantine import lines_of, record_of
from aioqueue.inputs.sources.source import Source
from aioqueue.public_names import public

__all__ = ("QuarantinedItems", "read_quarantine")


@public("aioqueue.inputs")
class QuarantinedItems(Source[Any]):
    """The items of a quarantine file, as a source to prepare again. See `read_quarantine`.

    Attributes:
        records: all that the file says about them.
    """

    def __init__(self, records: list[Quarantined], name: str, seed: int | None) -> None:
        super().__init__(name, seed)
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def entries(self) -> Iterator[Entry[Any]]:
        for record in self.records:
            yield Entry(record.item, record.epoch, record.index)


def read_quarantine(path: str | PathLike[str], *, trusted: bool = False) -> QuarantinedItems:
    """Read a file that ``prepare(..., quarantine=path)`` has written.

    Args:
        path: the file.
        trusted: whether items that were pickled may be unpickled, which can run any code: say so
            only of a file that nobody else could have written.

    Returns:
        A source of the items, with the epoch, index and seed that they had, so that preparing them
        again gives them the same ``rng``; its ``records`` tell the rest. An item that was in the
        file twice is there twice.

    Raises:
        OSError: the file cannot be read.
        DataLossError: a line is damaged.
        InvalidArgumentError: an item was pickled and the file is not trusted; an item was neither
            JSON nor could be pickled; or the records have several seeds.
    """
    where = str(path)
    with open(path, "rb") as file:
        records = [record_of(line, trusted=trusted, replay=True) for line in lines_of(file, where)]
    seeds = {record.seed for record in records}
    if len(seeds) > 1:
        raise InvalidArgumentError(
            f"path: got {where!r}, which holds records of {len(seeds)} runs with different seeds;"
            " expected one run, or runs with one seed"
        )
    return QuarantinedItems(records, f"quarantine {where}", seeds.pop() if seeds else None)
