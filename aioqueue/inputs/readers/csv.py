"""`read_csv`: the rows of text tables, such as CSV files, parsed by NumPy."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, overload

import numpy as np

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.arguments import checked_count, counted, is_int
from aioqueue.inputs.options import Array, DType
from aioqueue.inputs.readers.files import MAX_LINE_BYTES, StorageOptions, checked_limit
from aioqueue.inputs.readers.reader import Mark, Paths, Reader, Records
from aioqueue.inputs.readers.text_lines import AHEAD, LineBlock, blocks_of, decoder_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ("read_csv",)

_OBJECT: Final = np.dtype(object)
_PARSED: Final = "biufcSUOmM"
"""The kinds of dtypes that a text field can be parsed as."""


@overload
def read_csv(
    paths: Paths,
    dtypes: DType,
    *,
    columns: Sequence[int] | Sequence[str] | None = None,
    delimiter: str = ",",
    quotechar: str | None = '"',
    skip_header_lines: int = 0,
    max_line_bytes: int | None = MAX_LINE_BYTES,
    encoding: str = "utf-8",
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
) -> Reader[Array]: ...
@overload
def read_csv(
    paths: Paths,
    dtypes: Mapping[str, Any],
    *,
    columns: Sequence[int] | Sequence[str] | None = None,
    delimiter: str = ",",
    quotechar: str | None = '"',
    skip_header_lines: int = 0,
    max_line_bytes: int | None = MAX_LINE_BYTES,
    encoding: str = "utf-8",
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
) -> Reader[dict[str, Any]]: ...
@overload
def read_csv(
    paths: Paths,
    dtypes: Sequence[Any],
    *,
    columns: Sequence[int] | Sequence[str] | None = None,
    delimiter: str = ",",
    quotechar: str | None = '"',
    skip_header_lines: int = 0,
    max_line_bytes: int | None = MAX_LINE_BYTES,
    encoding: str = "utf-8",
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
) -> Reader[tuple[Any, ...]]: ...
def read_csv(
    paths: Paths,
    dtypes: Any,
    *,
    columns: Sequence[int] | Sequence[str] | None = None,
    delimiter: str = ",",
    quotechar: str | None = '"',
    skip_header_lines: int = 0,
    max_line_bytes: int | None = MAX_LINE_BYTES,
    encoding: str = "utf-8",
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
) -> Reader[Any]:
    """Read the rows of text tables, such as CSV files. NumPy parses them.

    Every line that is not blank is a row: a quoted field may contain delimiters, but no newline. A
    line is blank if it has only spaces, none of them the delimiter. Keys are ``path:number``, with
    the line's number from 1; header lines count.

    If columns have names, each file's last header line must list them.

    Args:
        paths: one path or URL, a source of paths such as `files`, or any iterable of paths.
        dtypes: the dtypes of the columns, which also decide what a row is. With one dtype for all,
            a row is an array. With a list or tuple of one per column, it is a tuple of NumPy
            scalars. With a dict by column name, it is a dict of NumPy scalars. ``str`` and
            ``bytes`` give strings of any length: the text, or the bytes in the file. Each column
            has a number, a string or a time.
        columns: the columns to use, in this order: numbers from 0, or names. ``None`` uses all (if
            ``dtypes`` is a dict, the columns it names). Unused columns must be there too: each row
            must have as many fields as the header with the names, or as the rows above.
        delimiter: the separator of fields: one character.
        quotechar: the character that may enclose a field; ``None`` for none.
        skip_header_lines: the number of lines at the start of each file that are not rows.
        max_line_bytes: as for `read_lines`.
        encoding: the encoding of the files. A newline must be the single byte 10 in it.
        compression: as for `read_lines`.
        storage_options: as for `read_lines`.
        seed: as for `read_lines`.

    Returns:
        A reader of rows. Iterating over it raises `DataLossError`, with the line's number in the
        message, if a row has too few or too many fields, or if a field does not fit its dtype: a
        string that is too long, a number that is out of range or not an int, or a time that is more
        precise than the dtype. It raises `OSError` if a file cannot be read.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """
    if not _is_character(delimiter):
        raise InvalidArgumentError(f"delimiter: got {delimiter!r}; expected one character")
    if quotechar is not None and (not _is_character(quotechar) or quotechar == delimiter):
        raise InvalidArgumentError(
            f"quotechar: got {quotechar!r}; expected one character that is not the delimiter,"
            " or None"
        )
    if encoding is None:
        raise InvalidArgumentError("encoding: got None; expected the encoding of the files")
    decoder = decoder_of(encoding, "strict")
    table = _Table(dtypes, columns, delimiter, quotechar, decoder.encoding if decoder else "")
    skip = checked_count(skip_header_lines, "skip_header_lines")
    most = checked_limit(max_line_bytes, "max_line_bytes")
    if table.named and not skip:
        raise InvalidArgumentError(
            "skip_header_lines: got 0 for columns with names; expected the number of header lines"
            " (the last one lists the names)"
        )

    def cut(stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[Any]]:
        begin, located = mark or (None, None)
        return table.runs(blocks_of(stream, path, decoder, begin, most), path, skip, located)

    return Reader(
        "read_csv",
        paths,
        cut,
        ahead=AHEAD,
        compression=compression,
        storage_options=storage_options,
        seed=seed,
        options={
            "skip_header_lines": skip,
            "columns": table.columns,
            "delimiter": delimiter,
        },
    )


def _is_character(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 1 and value not in "\r\n"


class _Table:
    """Converts lines to rows."""

    def __init__(
        self, dtypes: Any, columns: Any, delimiter: str, quotechar: str | None, encoding: str
    ) -> None:
        self._delimiter = delimiter
        self._quotechar = quotechar
        self._encoding = encoding
        self._keys = list(dtypes) if isinstance(dtypes, Mapping) else None
        if self._keys is not None:
            if columns is not None:
                raise InvalidArgumentError(
                    f"columns: got {columns!r}; expected None, as the dict of dtypes names them"
                )
            columns, dtypes = self._keys, list(dtypes.values())
        self.columns = _checked_columns(columns)
        self.named = self.columns is not None and isinstance(self.columns[0], str)
        self._uniform = not isinstance(dtypes, list | tuple)
        if not self._uniform and (
            not dtypes or (self.columns is not None and len(dtypes) != len(self.columns))
        ):
            raise InvalidArgumentError(
                f"dtypes: got {dtypes!r}; expected one dtype, or one for each column"
            )
        self._dtypes = [_dtype(dtype) for dtype in ([dtypes] if self._uniform else dtypes)]
        parsed = [_parsed_dtype(dtype) for dtype in self._dtypes]
        self._dtype = (
            parsed[0]
            if self._uniform
            else np.dtype([(f"f{at}", dtype) for at, dtype in enumerate(parsed)])
        )

    def runs(
        self,
        blocks: Iterator[LineBlock],
        path: str,
        skip: int,
        columns: Sequence[int] | None,
    ) -> Iterator[Records[Any]]:
        """Yield the rows of a file.

        Args:
            blocks: its lines, or those from a mark on.
            path: the file's path, for errors.
            skip: the number of header lines.
            columns: the columns' numbers, if they have names and the header was read before.
        """
        # The number of fields in the header with the names, or in the first row: all must have it.
        width: int | None = None
        if not self.named:
            columns = self.columns
        elif columns is not None:  # after a mark, which also has the number of fields
            *columns, width = columns
        for block in blocks:
            if self.named and columns is None and skip < block.first + len(block.lines):
                columns, width = self._located(block, skip, path)
            where = [*columns, width] if self.named and columns is not None else None
            mark = block.mark and (block.mark, where)
            numbers, lines = _without_blanks(*block.after(skip), self._delimiter)
            failure: DataLossError | None = None
            try:
                rows = self._rows(lines, columns, width)
            except ValueError:
                rows, failure = self._one_by_one(block, numbers, lines, columns, width, path)
            if rows:
                width = self._width_of(lines[0], rows[0], columns)
                yield Records(numbers[: len(rows)], rows, mark)
            if failure is not None:
                raise failure

    def _width_of(self, line: str, row: Any, columns: Any) -> int:
        """Return the number of fields in a sound line, given its row."""
        return len(row) if columns is None else self._fields(line)

    def _fields(self, line: str) -> int:
        """Return the number of fields in a line, used or not."""
        if self._quotechar is None or self._quotechar not in line:
            return line.count(self._delimiter) + 1
        return len(next(self._split([line])))

    def _split(self, lines: list[str]) -> Iterator[list[str]]:
        if self._quotechar is None:
            return csv.reader(lines, delimiter=self._delimiter, quoting=csv.QUOTE_NONE)
        return csv.reader(lines, delimiter=self._delimiter, quotechar=self._quotechar)

    def _check_fields(self, lines: list[str], width: int | None) -> None:
        """Check the number of fields: NumPy ignores those after the last used column.

        Raises:
            ValueError: a line has another number of fields than the others.
        """
        for fields in set(map(self._fields, lines)):
            width = fields if width is None else width
            if fields != width:
                has = counted(fields, "column")
                raise ValueError(f"it has {has}, and lines above have {width}")

    def _rows(self, lines: list[str], columns: Any, width: int | None) -> list[Any]:
        """Parse lines.

        Raises:
            ValueError: a line does not fit.
        """
        if not lines:
            return []
        quote = self._quotechar
        if quote is not None and any(line.count(quote) % 2 for line in lines):
            raise ValueError("a quoted field has no end")  # NumPy would search the next lines
        if columns is not None:
            self._check_fields(lines, width)
        parsed = self._parsed(lines, columns, self._dtype)
        if len(parsed) != len(lines):
            raise ValueError("it is not a row")
        if self._uniform:
            if columns is None and width is not None and parsed.shape[1] != width:
                has = counted(parsed.shape[1], "column")
                raise ValueError(f"it has {has}, and lines above have {width}")
            fields = _Fields(parsed, lambda: self._parsed(lines, columns, _OBJECT), columns)
            return list(fields.kept_as(self._dtypes[0], self._encoding))
        rows = list(zip(*self._kept(parsed, lines, columns), strict=True))
        return (
            rows
            if self._keys is None
            else [dict(zip(self._keys, row, strict=True)) for row in rows]
        )

    def _kept(self, parsed: NDArray[Any], lines: list[str], columns: Any) -> Iterator[NDArray[Any]]:
        """Return the columns of the lines, each converted to its dtype."""
        texts: list[NDArray[Any]] = []  # the text of all columns, once a check needs one

        def texts_of(at: int) -> NDArray[Any]:
            if not texts:
                texts.append(self._parsed(lines, columns, _OBJECT))
            return texts[0][:, at : at + 1]

        for at, dtype in enumerate(self._dtypes):
            places = (at,) if columns is None else (columns[at],)
            fields = _Fields(parsed[f"f{at}"][:, None], partial(texts_of, at), places)
            yield fields.kept_as(dtype, self._encoding)[:, 0]

    def _parsed(self, lines: list[str], columns: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
        return np.loadtxt(
            lines,
            dtype,
            comments=None,
            delimiter=self._delimiter,
            quotechar=self._quotechar,
            usecols=columns,
            ndmin=1 if dtype.names else 2,
        )

    def _one_by_one(
        self,
        block: LineBlock,
        numbers: Sequence[int],
        lines: list[str],
        columns: Any,
        width: int | None,
        path: str,
    ) -> tuple[list[Any], DataLossError | None]:
        """Return the rows before the one that does not fit, and the error for that one."""
        rows: list[Any] = []
        for number, line in zip(numbers, lines, strict=True):
            try:
                rows += self._rows([line], columns, width)
            except ValueError as error:
                failure = _damaged(path, block, number, str(error))
                failure.__cause__ = error
                return rows, failure
            width = self._width_of(line, rows[0], columns)
        return rows, None

    def _located(self, block: LineBlock, number: int, path: str) -> tuple[list[int], int]:
        """Return the columns' numbers from the header line with this number, and its width."""
        line = block.lines[number - block.first]
        names = [name.strip() for name in next(self._split([line]), [])]
        assert self.columns is not None
        missing = [name for name in self.columns if name not in names]
        if missing:
            raise _damaged(path, block, number, f"no column {missing[0]!r} among {names}")
        doubled = [name for name in self.columns if names.count(name) > 1]
        if doubled:
            times = names.count(doubled[0])
            fault = f"column {doubled[0]!r} occurs {times} times among {names}"
            raise _damaged(path, block, number, fault)
        return [names.index(name) for name in self.columns], len(names)


def _parsed_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype for NumPy's parser, which would cut strings off and ignores encodings."""
    return _OBJECT if dtype.kind in "SU" else dtype


class _Fields(NamedTuple):
    """Fields that NumPy has parsed, maybe with a loss."""

    values: NDArray[Any]
    """The values, of shape (lines, columns)."""
    texts: Callable[[], NDArray[Any]]
    """Parses them again, as text."""
    places: Sequence[int] | None
    """Their columns in the file, from 0; ``None`` for all."""

    def kept_as(self, dtype: np.dtype[Any], encoding: str) -> NDArray[Any]:
        """Return the values as a dtype, unchanged.

        Raises:
            ValueError: the dtype would change a value, which the message names.
        """
        values = self.values
        if dtype.kind == "S":
            values = np.frompyfunc(lambda text: text.encode(encoding), 1, 1)(values)
        if dtype.kind in "SU":
            if not dtype.itemsize:
                return values
            made = values.astype(dtype)
            self._check(made.astype(object) != values, dtype)
            return made
        if dtype.kind in "fc" and np.isinf(values).any():
            named = np.frompyfunc(lambda text: "inf" in text.lower(), 1, 1)(self.texts())
            self._check(np.isinf(values) & ~named.astype(bool), dtype)
        elif dtype.kind in "bm":
            # NumPy parses any int but 0 as True, and caps a timedelta at the largest.
            numbers = values.astype("int64").astype(object)
            self._check(np.frompyfunc(_differs, 2, 1)(numbers, self.texts()).astype(bool), dtype)
        elif dtype.kind == "M":
            exact = self.texts().astype("M8")
            same = (values.astype(exact.dtype) == exact) | (np.isnat(values) & np.isnat(exact))
            self._check(~same, dtype)
        return values

    def _check(self, lost: NDArray[np.bool_], dtype: np.dtype[Any]) -> None:
        if lost.any():
            line, column = np.argwhere(lost)[0]
            place = column if self.places is None else self.places[column]
            raise ValueError(
                f"{self.texts()[line, column]!r} does not fit {dtype} in column {place + 1}"
            )


def _differs(number: int, text: str) -> bool:
    try:
        return int(text) != number
    except ValueError:
        return False  # not a time


def _damaged(path: str, block: LineBlock, number: int, fault: str) -> DataLossError:
    # NumPy numbers the lines that it got, and it got a single one.
    fault = fault.replace(" at row 0,", " in").replace(" at row 1;", ";").rstrip(".")
    return DataLossError(
        f"{path}: line {number}: {fault}", path=path, offset=block.offset_of(number), fault=fault
    )


def _without_blanks(
    numbers: Sequence[int], lines: list[str], delimiter: str
) -> tuple[Sequence[int], list[str]]:
    """Leave out blank lines. NumPy would do so too, but does not say which lines.

    Empty fields between delimiters count as fields, even if the delimiters are spaces.
    """
    blank = [
        at
        for at, line in enumerate(lines)
        if not line or (line.isspace() and delimiter not in line)
    ]
    if not blank:
        return numbers, lines
    left = sorted(set(range(len(lines))) - set(blank))
    return [numbers[at] for at in left], [lines[at] for at in left]


def _checked_columns(columns: Any) -> list[Any] | None:
    if columns is None:
        return None
    chosen = list(columns) if isinstance(columns, list | tuple | range) else []
    numbers = all(is_int(column) and column >= 0 for column in chosen)
    names = all(isinstance(column, str) for column in chosen)
    if not chosen or not (numbers or names):
        raise InvalidArgumentError(
            f"columns: got {columns!r}; expected a list of ints >= 0, or of names, or None"
        )
    return chosen


def _dtype(dtype: Any) -> np.dtype[Any]:
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
