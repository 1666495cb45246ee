"""Items that could not be prepared: their records, and files of them, which can be prepared again.

The file has one JSON object per line. An item that JSON holds as it is stands under ``item``; any
other stands pickled, in base64, under ``pickle``, and `read_quarantine` opens it only if told that
the file can be trusted; one that cannot be pickled either is only described, under ``repr``.

Several runs may write to one file, and anybody else: a run knows its own lines by their ``seal``,
which nobody can make who has not its key, and the key is nowhere but in its memory. So it needs to
remember nothing about the lines that it has written, and opens none that it has not. The ``run``
of a line is the same in all processes of one run, which go on where another was killed.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.inputs.sources.base import Entry, Source
from aioqueue.inputs.sources.item import Quarantined, safe_repr

__all__ = (
    "SIGN",
    "Line",
    "Quarantined",
    "QuarantinedItems",
    "as_json",
    "lines_of",
    "read_quarantine",
    "record_of",
    "signed_in",
)


SIGN: Final = "run"
"""The field of a line that tells which run has written it."""

_MOST_BITS: Final = 10_000
"""Ints as long as that are not written in decimals, which Python refuses from 4,300 digits on."""


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


def as_json(record: Quarantined) -> dict[str, Any]:
    fields = {**record.__dict__}
    item = fields.pop("item")
    try:
        if _is_json(item):
            return {"item": item, **fields}
    except RecursionError:
        pass  # too deep for JSON, which pickle may know to handle
    try:
        pickled = pickle.dumps(item)
    except Exception:
        return {"repr": safe_repr(item), **fields}
    text = safe_repr(item)[:200]
    return {"pickle": base64.b64encode(pickled).decode("ascii"), "repr": text, **fields}


def _is_json(item: Any) -> bool:
    """Whether JSON gives back just what it was given."""
    if item is None or type(item) in (bool, str):
        return True
    if type(item) is int:
        return item.bit_length() < _MOST_BITS
    if type(item) is float:
        return item - item == 0  # it has neither infinities nor NaN
    if type(item) is list:
        return all(map(_is_json, item))
    if type(item) is dict:
        return all(type(key) is str for key in item) and all(map(_is_json, item.values()))
    return False


class Line(NamedTuple):
    """One line of a file."""

    path: str
    number: int
    offset: int
    fields: dict[str, Any]

    def damaged(self, why: object) -> DataLossError:
        """What to raise if it makes no record."""
        return DataLossError(
            f"{self}: no record of a quarantine: {why}",
            path=self.path,
            offset=self.offset,
            fault="damaged record",
        )

    def __str__(self) -> str:
        return f"{self.path}:{self.number}"


def lines_of(file: BinaryIO, path: str) -> Iterator[Line]:
    offset = 0
    for number, text in enumerate(file, 1):
        line = Line(path, number, offset, {})
        offset += len(text)
        if text == b"\n":
            continue  # which ended a line that another run had left without an end
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise line.damaged(error) from None
        if not isinstance(fields, dict):
            raise line.damaged(f"expected an object, not {fields!r}")
        fields.pop("seal", None)
        yield line._replace(fields=fields)


def signed_in(path: Path, sign: str) -> set[tuple[int, int]]:
    """The epochs and indices of the items of one run's lines, also where others are damaged.

    Raises:
        OSError: the file cannot be read.
    """
    found = set()
    mark = json.dumps(sign).encode("ascii")
    with path.open("rb") as file:
        for text in file:
            if mark in text:  # else it is not looked into
                with suppress(ValueError, KeyError, TypeError):
                    fields = json.loads(text)
                    if fields[SIGN] == sign:
                        found.add((fields["epoch"], fields["index"]))
    return found


def record_of(line: Line, *, trusted: bool, replay: bool = False) -> Quarantined:
    fields = line.fields
    fields.pop(SIGN, None)
    described = fields.pop("repr", None)
    pickled = fields.pop("pickle", None)
    if pickled is not None:
        if not trusted:
            raise InvalidArgumentError(
                f"trusted: got False, but {line} holds a pickled item ({described}); pass"
                " trusted=True if nobody else could have written this file"
            )
        try:
            fields["item"] = pickle.loads(base64.b64decode(pickled, validate=True))
        except (ValueError, TypeError, EOFError, pickle.UnpicklingError) as error:
            raise line.damaged(error) from error
    elif "item" not in fields and described is not None:
        if replay:
            raise InvalidArgumentError(
                f"{line}: the item could not be written, only described: {described}; look it up"
                f" in its source by epoch {fields.get('epoch')} and index {fields.get('index')}"
            )
        fields["item"] = described
    try:
        return Quarantined(**fields)
    except TypeError as error:
        raise line.damaged(error) from None
