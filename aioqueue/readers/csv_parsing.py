"""The rows of CSV files, and their fields: from text to dtypes, unchanged or not at all.

NumPy parses most fields. It would cut strings off, wrap or round some numbers, and knows no nulls.
So this module checks what it made, and handles bools and null tokens itself.

A row is a line, except where a quoted field contains newlines. A line can end within a quoted
field. Then the row continues on the next line, perhaps in the next block. So `row_blocks` holds the
start of such a row back, and joins it with the lines that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.readers.files import exceeds
from aioqueue.readers.lines import LineBlock
from aioqueue.readers.reader import Mark

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OBJECT: Final = np.dtype(object)
_PARSED: Final = "biufcSUOmM"
"""The kinds of dtypes that a text field can be parsed as."""
_TEXT: Final = "SUO"
_NO_DELIMITER: Final = "\x1f"
_NAT: Final = ("", "nat")
_CLOCK: Final = ("now", "today")
"""What NumPy would read as the time of the reading."""


class Tokens(NamedTuple):
    """The texts with a meaning of their own."""

    null: frozenset[str] = frozenset()
    true: frozenset[str] = frozenset()
    false: frozenset[str] = frozenset()

    @classmethod
    def checked(cls, null: Any, true: Any, false: Any) -> Tokens:
        """Check the arguments of `read_csv`.

        Raises:
            InvalidArgumentError: any is not a string or several, or a text has two meanings.
        """
        given = {"null_values": null, "true_values": true, "false_values": false}
        found = {name: _texts(value, name) for name, value in given.items()}
        names = list(found)
        for at, name in enumerate(names):
            for other in names[:at]:
                if both := sorted(found[name] & found[other]):
                    raise InvalidArgumentError(
                        f"{name}: got {both[0]!r}, which {other} has too; expected different texts"
                    )
        return cls(*found.values())

    def nulls_in(self, texts: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[np.bool_]:
        """Return which texts stand for null. Spaces around a text count only in strings."""
        null = self.null

        def is_null(text: str) -> bool:
            return text in null

        def is_null_stripped(text: str) -> bool:
            return text.strip() in null

        test = is_null if dtype.kind in _TEXT else is_null_stripped
        found: NDArray[np.bool_] = np.frompyfunc(test, 1, 1)(texts).astype(bool)
        return found

    def bool_of(self, text: str) -> bool | None:
        """Return the bool that a text stands for; ``None`` if it stands for none."""
        text = text.strip()
        return True if text in self.true else False if text in self.false else None


def _texts(value: Any, name: str) -> frozenset[str]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list | tuple | set | frozenset) or not all(
        isinstance(one, str) for one in found
    ):
        raise InvalidArgumentError(f"{name}: got {value!r}; expected a list of strings")
    return frozenset(found)


class Fields(NamedTuple):
    """Fields that NumPy has parsed, maybe with a loss."""

    values: NDArray[Any]
    """The values, of shape (lines, columns)."""
    texts: Callable[[], NDArray[Any]]
    """Parses them again, as text."""
    places: Sequence[int] | None
    """Their columns in the file, from 0; ``None`` for all."""

    def kept_as(self, dtype: np.dtype[Any], encoding: str, tokens: Tokens) -> NDArray[Any]:
        """Return the values as a dtype, unchanged.

        Raises:
            ValueError: the dtype would change a value, which the message names.
        """
        values = self.values
        if dtype.kind == "S":  # NumPy itself would encode ASCII only
            values = np.frompyfunc(lambda text: text.encode(encoding), 1, 1)(values)
        if dtype.kind in "SU":
            if not dtype.itemsize:
                return values
            made = values.astype(dtype)  # cuts off what is too long, silently
            self._check(made.astype(object) != values, dtype)
            return made
        if dtype.kind == "b":
            found = np.frompyfunc(tokens.bool_of, 1, 1)(values)
            unknown = np.frompyfunc(lambda value: value is None, 1, 1)(found)
            self._check(unknown.astype(bool), dtype)
            return np.asarray(found, dtype)
        if dtype.kind in "fc" and np.isinf(values).any():
            # The parser makes infinity of a number that is too large. Only its text tells.
            named = np.frompyfunc(lambda text: "inf" in text.lower(), 1, 1)(self.texts())
            self._check(np.isinf(values) & ~named.astype(bool), dtype)
        elif dtype.kind == "m":
            # NumPy caps a timedelta at the largest.
            numbers = values.astype("int64").astype(object)
            self._check(np.frompyfunc(_differs, 2, 1)(numbers, self.texts()).astype(bool), dtype)
        elif dtype.kind == "M":
            # The parser rounds a time to the unit of the dtype. In the unit that its own text asks
            # for, it is the same only if nothing was rounded off.
            texts, is_known = self.texts(), ~np.isnat(values)
            exact = texts[is_known].astype("M8")  # of NaT alone, NumPy would not know the unit
            wrong = np.frompyfunc(lambda text: text.strip().lower() not in _NAT, 1, 1)(texts)
            wrong[is_known] = values[is_known].astype(exact.dtype) != exact
            # NumPy takes these for the time at which the program runs.
            wrong |= np.frompyfunc(lambda text: text.strip().lower() in _CLOCK, 1, 1)(texts)
            self._check(wrong.astype(bool), dtype)
        return values

    def with_nulls(
        self, dtype: np.dtype[Any], encoding: str, tokens: Tokens
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return texts as a dtype, with anything in the places of nulls; and these places.

        Raises:
            ValueError: a text that does not stand for null does not fit.
        """
        nulls = tokens.nulls_in(self.values, dtype)
        texts = self.values
        if nulls.any():  # the parser would refuse them, and with them all rows of the block
            texts = texts.copy()
            texts[nulls] = _neutral(dtype, tokens)
        plain = parsed_dtype(dtype)
        values = texts if plain == _OBJECT else self._parsed(texts, plain)
        fields = Fields(values, lambda: texts, self.places)
        return fields.kept_as(dtype, encoding, tokens), nulls

    def _parsed(self, texts: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Parse texts, one a line.

        Raises:
            ValueError: one does not fit.
        """
        lines = texts.ravel().tolist()
        blank = next((at for at, line in enumerate(lines) if not line.strip()), None)
        if blank is not None:  # NumPy would leave it out
            raise ValueError(self._unfit(texts, divmod(blank, texts.shape[1]), dtype))
        try:
            found = _parsed(lines, dtype)
        except ValueError as error:
            bad = next(at for at, line in enumerate(lines) if not _fits(line, dtype))
            raise ValueError(self._unfit(texts, divmod(bad, texts.shape[1]), dtype)) from error
        return found.reshape(texts.shape)

    def _check(self, lost: NDArray[np.bool_], dtype: np.dtype[Any]) -> None:
        if lost.any():
            line, column = np.argwhere(lost)[0]
            raise ValueError(self._unfit(self.texts(), (line, column), dtype))

    def _unfit(self, texts: NDArray[Any], at: tuple[int, int], dtype: np.dtype[Any]) -> str:
        line, column = at
        place = column if self.places is None else self.places[column]
        return f"{texts[line, column]!r} does not fit {dtype} in column {place + 1}"


def _parsed(lines: list[str], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Parse lines that have one field each.

    Raises:
        ValueError: one does not fit.
    """
    found = np.loadtxt(
        lines, dtype, comments=None, delimiter=_NO_DELIMITER, quotechar=None, ndmin=1
    )
    if found.shape != (len(lines),):
        raise ValueError("a field is several")
    return found


def _fits(line: str, dtype: np.dtype[Any]) -> bool:
    try:
        _parsed([line], dtype)
    except ValueError:
        return False
    return True


def _neutral(dtype: np.dtype[Any], tokens: Tokens) -> str:
    """Return a text that any dtype of this kind can hold."""
    if dtype.kind == "b":
        return next(iter(tokens.false or tokens.true), "")
    return {"M": "NaT", **dict.fromkeys(_TEXT, "")}.get(dtype.kind, "0")


def holds_null(dtype: np.dtype[Any]) -> bool:
    """Return whether an array that is read as this dtype can hold a null."""
    return dtype.kind in "fcmMO" or (dtype.kind in "SU" and not dtype.itemsize)


def null_of(dtype: np.dtype[Any]) -> Any:
    """Return what stands for null in an array: NaN, NaT or ``None``."""
    return np.array("NaT", dtype) if dtype.kind in "mM" else np.nan if dtype.kind in "fc" else None


def _differs(number: int, text: str) -> bool:
    try:
        return int(text) != number
    except ValueError:
        return False  # not a time


def parsed_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype for NumPy's parser, which would cut strings off, ignores encodings, and
    takes any int but 0 for a true bool."""
    return _OBJECT if dtype.kind in "SUb" else dtype


def checked_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype of a column.

    Raises:
        InvalidArgumentError: it is not a dtype, or text cannot be parsed as it.
    """
    try:
        if dtype is None:
            raise TypeError("None is not a dtype")  # NumPy would use float64
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise InvalidArgumentError(
            f"dtypes: got {dtype!r}; expected what numpy.dtype accepts"
        ) from error
    if found.kind not in _PARSED:
        raise InvalidArgumentError(
            f"dtypes: got {dtype!r}; expected a number, string or time dtype for each column"
        )
    return found


def checked_fill(fill: Any, columns: Sequence[Any] | None, dtypes: Any) -> Mapping[Any, Any]:
    """Return what replaces nulls, by column; the key ``None`` has what replaces them anywhere.

    Args:
        fill: one value, a mapping by column, or ``None``.
        columns: the columns that are read; ``None`` for all.
        dtypes: one dtype, or one for each column.

    Raises:
        InvalidArgumentError: there is no such column, or its dtype cannot hold the value.
    """
    given = dict(fill) if isinstance(fill, Mapping) else {} if fill is None else {None: fill}
    uniform = isinstance(dtypes, np.dtype)
    known = columns if columns is not None else None if uniform else range(len(dtypes))
    for column, value in given.items():
        if column is None:
            for dtype in {dtypes} if uniform else set(dtypes):
                _check_fill(value, dtype)
            continue
        if known is None:
            is_known = isinstance(column, int) and not isinstance(column, bool) and column >= 0
        else:
            is_known = column in known
        if not is_known:
            what = "numbers from 0" if known is None else f"some of {list(known)}"
            raise InvalidArgumentError(
                f"fill_null: got a value for column {column!r}; expected {what}"
            )
        dtype = dtypes if uniform or known is None else dtypes[list(known).index(column)]
        _check_fill(value, dtype)
    return given


def _check_fill(value: Any, dtype: np.dtype[Any]) -> None:
    try:
        if dtype.kind in "SU" and not dtype.itemsize:
            is_kept = isinstance(value, bytes if dtype.kind == "S" else str)
        elif dtype == _OBJECT:
            is_kept = value is not None
        else:
            made = np.asarray(value).astype(dtype, casting="same_kind")
            is_nan = bool(made != made)
            is_kept = made.shape == () and (is_nan or bool(made == np.asarray(value)))
            if dtype.kind == "f" and not is_nan:
                is_kept = made.shape == () and bool(np.isinf(made) == np.isinf(value))
    except (TypeError, ValueError, OverflowError):
        is_kept = False
    if not is_kept:
        raise InvalidArgumentError(
            f"fill_null: got {value!r}; expected a value that {dtype} can hold"
        )


class Syntax(NamedTuple):
    """How fields are separated and quoted, as in Python's `csv` and in NumPy."""

    delimiter: str
    quote: str | None

    def parsed(
        self, rows: list[str], dtype: np.dtype[Any], columns: Sequence[int] | None = None
    ) -> NDArray[Any]:
        """Parse rows that are not blank.

        Returns:
            An array of shape (rows, fields), or (rows,) for a dtype that has fields.

        Raises:
            ValueError: one does not fit.
        """
        return np.loadtxt(
            rows,
            dtype,
            comments=None,
            delimiter=self.delimiter,
            quotechar=self.quote,
            usecols=columns,
            ndmin=1 if dtype.names else 2,
        )

    def fields_of(self, row: str) -> list[str]:
        """Split a row, as the parser of all rows does.

        Raises:
            ValueError: it is not a row.
        """
        if is_blank(row, self.delimiter):
            return []
        found = self.parsed([row], _OBJECT)
        if len(found) != 1:
            raise ValueError("it is not a row")
        return list(found[0])

    def count(self, row: str) -> int:
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


def is_blank(row: str, delimiter: str) -> bool:
    """Return whether a line is no row.

    Empty fields between delimiters count as fields, even if the delimiters are spaces.
    """
    return not row or (row.isspace() and delimiter not in row)


class Header(NamedTuple):
    """The header of a file."""

    number: int
    """The number of the last header line: that in which the row of names begins, or ends."""
    offset: int
    """The offset of that line, in bytes."""
    rows: list[str]
    """What may be the row of names: first what begins in that line."""


class _HeaderLines:
    """Finds the end of the header among the lines of a file.

    The last of the header lines is a row, as the names of columns are one: a quoted name may
    contain newlines, so the row may go on behind that line, or have begun before it. The lines
    before are no rows: a title may have a quote that none closes.

    Args:
        syntax: how fields are separated and quoted.
        skip: the number of header lines.
        path: the file's path, for errors.
        most: the longest row, in bytes; ``None`` for any.
    """

    def __init__(self, syntax: Syntax, skip: int, path: str, most: int | None) -> None:
        self._syntax = syntax
        self._skip = skip
        self._path = path
        self._most = most
        self._all: list[str] = []  # a row, if the lines from the first on are rows
        self._are_open = False  # whether it goes on
        self._last: list[str] = []  # the row that begins in the last header line
        self._is_open = False
        self._offset = 0  # of the last header line
        self.is_over: bool = skip == 0
        """Whether the next line is no part of it."""

    def take(self, block: LineBlock) -> tuple[int, Header | None]:
        """Take the lines of a block.

        Returns:
            How many of them belong to the header; and the header, if it ends there.

        Raises:
            DataLossError: a row of the header is too long.
        """
        if self.is_over or (not self._last and block.first > self._skip):
            self.is_over = True  # or it begins at a mark behind the header
            return 0, None
        for at, line in enumerate(block.lines):
            if self._ends_with(line, block, block.first + at):
                rows = [] if self._is_open else [self._last]
                rows += [] if self._are_open or len(self._all) == len(self._last) else [self._all]
                texts = _without_returns([block.end.join(row) for row in rows], block.end)
                return at + 1, Header(self._skip, self._offset, texts)
        return len(block.lines), None

    def _ends_with(self, line: str, block: LineBlock, number: int) -> bool:
        """Take a line. Returns whether the header ends with it."""
        ends_quoted = self._syntax.ends_quoted
        # Two readings go side by side, because nothing says where the row of names begins: with the
        # last header line (`_last`), or before it, if that line is within a quoted name (`_all`).
        # Whichever row is complete first ends the header. An open quote in a title would otherwise
        # take the whole file for the header.
        if not self._are_open:
            self._all = []
        if number <= self._skip or self._are_open:
            self._all.append(line)
            self._are_open = ends_quoted(line, is_quoted=self._are_open)
        if number == self._skip:
            self._offset = block.offset_of(number)
        if number >= self._skip:
            self._last.append(line)
            self._is_open = ends_quoted(line, is_quoted=self._is_open)
            self.is_over = not (self._is_open and self._are_open)
            size = sum(map(len, self._last))
            if not self.is_over and self._most is not None and size > self._most:
                fault = exceeds("a row", "max_line_bytes", self._most)
                raise DataLossError(path=self._path, offset=self._offset, fault=fault)
        return self.is_over

    def check_end(self) -> None:
        """Check that it is over, at the end of the file.

        Raises:
            DataLossError: a quoted field in it has no end.
        """
        if self._last and not self.is_over:
            raise _endless(self._path, self._skip, self._offset)


def _endless(path: str, number: int, offset: int) -> DataLossError:
    fault = "a quoted field has no end"
    return DataLossError(f"{path}: line {number}: {fault}", path=path, offset=offset, fault=fault)


class RowBlock(NamedTuple):
    """Consecutive whole rows of a file."""

    lines: LineBlock
    """The lines that they consist of."""
    mark: Mark
    """The mark of the first row; ``None`` if none can begin there."""
    header: Header | None
    """The header, if it ends among the lines."""
    numbers: Sequence[int]
    """The number of the first line of each row."""
    rows: list[str]

    def offset_of(self, number: int) -> int:
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
    # Lines come in blocks, and a row in quotes may cross their ends. Its lines are held back until
    # it is complete, and go in front of the next block: so each block has whole rows only.
    held: list[LineBlock] = []  # the lines of a row that continues
    head = _HeaderLines(syntax, skip, path, most)
    for block in blocks:
        is_behind = head.is_over
        header_lines, header = head.take(block)
        is_behind |= not header_lines
        starts, is_open = _starts(block, syntax, header_lines, is_quoted=bool(held))
        if held and not starts and is_open:  # the row goes on behind this block
            held.append(block)
            _check_size(held, path, most)
            continue
        whole = _joined([*held, block])
        held_lines = len(whole.lines) - len(block.lines)
        if held:
            starts = [0, *(start + held_lines for start in starts)]
        # Where the header ends, only who reads it from its first line on knows. And a decoder with
        # state can begin at a block of its own, but not at a row that was cut off one.
        mark = whole.mark if is_behind and not (held and has_state) else None
        held = []
        if is_open:
            whole, rest = _cut(whole, starts.pop())
            held = [rest]
            _check_size(held, path, most)
        numbers, rows = _rows(whole, starts)
        yield RowBlock(whole, mark, header, numbers, rows)
    head.check_end()
    if held:
        raise _endless(path, held[0].first, held[0].offset)


def _starts(
    block: LineBlock, syntax: Syntax, first: int, *, is_quoted: bool
) -> tuple[list[int], bool]:
    """Return where rows begin among the lines of a block, and whether the last one continues.

    Args:
        block: the lines.
        syntax: how fields are separated and quoted.
        first: the first line that is no header.
        is_quoted: whether it begins within a quoted field.
    """
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
        return numbers, _without_returns(lines[starts[0] :], block.end)
    ends = [*starts[1:], len(lines)]
    rows = [block.end.join(lines[begin:end]) for begin, end in zip(starts, ends, strict=True)]
    return [block.first + start for start in starts], _without_returns(rows, block.end)


def _without_returns(rows: list[str], end: str) -> list[str]:
    if end != "\n":
        return rows
    return [row.removesuffix("\r") for row in rows] if any("\r" in row for row in rows) else rows


def _joined(blocks: list[LineBlock]) -> LineBlock:
    if len(blocks) == 1:
        return blocks[0]
    raw = blocks[0].end.encode("ascii").join(block.raw for block in blocks)
    return blocks[0]._replace(raw=raw, lines=[line for block in blocks for line in block.lines])


def _cut(block: LineBlock, at: int) -> tuple[LineBlock, LineBlock]:
    number = block.first + at
    offset = block.offset_of(number)
    size = offset - block.offset
    # The last line of a block lacks its end, so the end between both parts belongs to neither.
    before = block._replace(raw=block.raw[: max(0, size - 1)], lines=block.lines[:at])
    behind = LineBlock(offset, block.raw[size:], number, block.lines[at:], end=block.end)
    return before, behind


def _check_size(held: list[LineBlock], path: str, most: int | None) -> None:
    if most is not None and sum(len(block.raw) for block in held) > most:
        fault = exceeds("a row", "max_line_bytes", most)
        raise DataLossError(path=path, offset=held[0].offset, fault=fault)
