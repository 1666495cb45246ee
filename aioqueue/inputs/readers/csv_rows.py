"""The rows of CSV files: lines, except where a quoted field contains newlines.

A line can end within a quoted field. Then the row continues on the next line, perhaps in the next
block. So `row_blocks` holds the start of such a row back, and joins it with the lines that follow.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from aioqueue import DataLossError
from aioqueue.inputs.readers.files import exceeds
from aioqueue.inputs.readers.reader import Mark
from aioqueue.inputs.readers.text_lines import LineBlock

__all__ = ("RowBlock", "Syntax", "row_blocks")


class Syntax(NamedTuple):
    """How fields are separated and quoted, as in Python's `csv` and in NumPy."""

    delimiter: str
    quote: str | None

    def fields_of(self, row: str) -> list[str]:
        """Split a row."""
        if self.quote is None:
            reader = csv.reader([row], delimiter=self.delimiter, quoting=csv.QUOTE_NONE)
        else:
            reader = csv.reader([row], delimiter=self.delimiter, quotechar=self.quote)
        return next(reader, [])

    def count(self, row: str) -> int:
        """Return the number of fields in a row."""
        if self.quote is None or self.quote not in row:
            return row.count(self.delimiter) + 1
        return self._scan(row, is_quoted=False)[0]

    def ends_quoted(self, line: str, *, is_quoted: bool) -> bool:
        """Return whether a line ends within a quoted field.

        Args:
            line: the line.
            is_quoted: whether it begins within a quoted field.
        """
        if self.quote is None or self.quote not in line:
            return is_quoted
        return self._scan(line, is_quoted=is_quoted)[1]

    def _scan(self, line: str, *, is_quoted: bool) -> tuple[int, bool]:
        """Return how many fields there are, and whether the last one has no closing quote.

        Only a quote at the start of a field opens it. What follows the closing one belongs to the
        field as it is.
        """
        quote, delimiter = self.quote or "", self.delimiter
        at, fields = 0, 1
        if not is_quoted:
            is_quoted = line.startswith(quote)
            at += is_quoted
        while True:
            if is_quoted:
                at = line.find(quote, at)
                if at < 0:
                    return fields, True
                if line.startswith(quote, at + 1):  # a doubled quote stands for one
                    at += 2
                    continue
                at += 1
            at = line.find(delimiter, at)
            if at < 0:
                return fields, False
            fields += 1
            at += 1
            is_quoted = line.startswith(quote, at)
            at += is_quoted


class RowBlock(NamedTuple):
    """Consecutive whole rows of a file."""

    lines: LineBlock
    """The lines that they consist of."""
    mark: Mark
    """The mark of the first row; ``None`` if none can begin there."""
    header: str | None
    """The last header line, if it is among the lines."""
    numbers: Sequence[int]
    """The number of the first line of each row."""
    rows: list[str]

    def offset_of(self, number: int) -> int:
        """Return the offset of a line, in bytes."""
        return self.lines.offset_of(number)


def row_blocks(
    blocks: Iterator[LineBlock],
    syntax: Syntax,
    skip: int,
    path: str,
    most: int | None,
    *,
    has_state: bool = False,
) -> Iterator[RowBlock]:
    """Yield the rows of a file.

    Args:
        blocks: its lines, or those from a mark on; with the returns before their ends.
        syntax: how fields are separated and quoted.
        skip: the number of header lines.
        path: the file's path, for errors.
        most: the longest row, in bytes; ``None`` for any.
        has_state: whether decoding can begin only at a block, and not at any of its lines.

    Raises:
        DataLossError: a quoted field has no end, or a row is too long; the rows before it come.
    """
    held: list[LineBlock] = []  # the lines of a row that continues
    for block in blocks:
        starts, is_open = _starts(block, syntax, skip, is_quoted=bool(held))
        if held and not starts and is_open:  # the row goes on behind this block
            held.append(block)
            _check_size(held, path, most)
            continue
        whole = _joined([*held, block])
        held_lines = len(whole.lines) - len(block.lines)
        if held:
            starts = [0, *(start + held_lines for start in starts)]
        mark = None if held and has_state else whole.mark
        held = []
        if is_open:
            whole, rest = _cut(whole, starts.pop())
            held = [rest]
            _check_size(held, path, most)
        header = None
        if 0 <= skip - block.first < len(block.lines):
            header = block.lines[skip - block.first].removesuffix("\r")
        numbers, rows = _rows(whole, starts)
        yield RowBlock(whole, mark, header, numbers, rows)
    if held:
        first = held[0]
        fault = "a quoted field has no end"
        raise DataLossError(
            f"{path}: line {first.first}: {fault}", path=path, offset=first.offset, fault=fault
        )


def _starts(
    block: LineBlock, syntax: Syntax, skip: int, *, is_quoted: bool
) -> tuple[list[int], bool]:
    """Return where rows begin among the lines of a block, and whether the last one continues."""
    first = max(0, skip + 1 - block.first)
    quote = syntax.quote
    if not is_quoted and (quote is None or not any(quote in line for line in block.lines)):
        return list(range(first, len(block.lines))), False
    starts = []
    for at in range(first, len(block.lines)):
        if not is_quoted:
            starts.append(at)
        is_quoted = syntax.ends_quoted(block.lines[at], is_quoted=is_quoted)
    return starts, is_quoted


def _rows(block: LineBlock, starts: Sequence[int]) -> tuple[Sequence[int], list[str]]:
    """Return the numbers and the texts of rows that begin at some lines and go up to the next."""
    lines = block.lines
    if not starts:
        return (), []
    if len(starts) == len(lines) - starts[0]:  # each line is a row
        numbers = range(block.first + starts[0], block.first + len(lines))
        return numbers, _without_returns(lines[starts[0] :])
    ends = [*starts[1:], len(lines)]
    rows = ["\n".join(lines[begin:end]) for begin, end in zip(starts, ends, strict=True)]
    return [block.first + start for start in starts], _without_returns(rows)


def _without_returns(rows: list[str]) -> list[str]:
    return [row.removesuffix("\r") for row in rows] if any("\r" in row for row in rows) else rows


def _joined(blocks: list[LineBlock]) -> LineBlock:
    if len(blocks) == 1:
        return blocks[0]
    raw = b"\n".join(block.raw for block in blocks)
    return blocks[0]._replace(raw=raw, lines=[line for block in blocks for line in block.lines])


def _cut(block: LineBlock, at: int) -> tuple[LineBlock, LineBlock]:
    """Cut a block before one of its lines."""
    number = block.first + at
    offset = block.offset_of(number)
    size = offset - block.offset
    before = block._replace(raw=block.raw[: max(0, size - 1)], lines=block.lines[:at])
    behind = LineBlock(offset, block.raw[size:], number, block.lines[at:])
    return before, behind


def _check_size(held: list[LineBlock], path: str, most: int | None) -> None:
    if most is not None and sum(len(block.raw) for block in held) > most:
        fault = exceeds("a row", "max_line_bytes", most)
        raise DataLossError(path=path, offset=held[0].offset, fault=fault)
