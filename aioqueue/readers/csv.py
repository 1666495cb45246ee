"""`read_csv`: the rows of text tables, such as CSV files, parsed by NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, overload

import numpy as np

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.arguments import checked_count, is_int
from aioqueue.errors import counted
from aioqueue.items.quarantine import OnDamage, QuarantinePath
from aioqueue.readers.csv_parsing import (
    Fields,
    Header,
    RowBlock,
    Syntax,
    Tokens,
    checked_dtype,
    checked_fill,
    holds_null,
    is_blank,
    null_of,
    parsed_dtype,
    row_blocks,
)
from aioqueue.readers.files import MAX_LINE_BYTES, StorageOptions, checked_limit
from aioqueue.readers.lines import (
    AHEAD,
    Decoder,
    blocks_of,
    checked_end,
    decoder_of,
    line_end_option,
)
from aioqueue.readers.reader import FileFormat, Mark, Paths, Reader, Records
from aioqueue.workers.options import Array, DType

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRUE: Final = ("1", "true", "True", "TRUE")
FALSE: Final = ("0", "false", "False", "FALSE")
"""The texts that stand for bools by default."""

_OBJECT: Final = np.dtype(object)


@overload
def read_csv(
    paths: Paths,
    dtypes: DType,
    *,
    columns: Sequence[int] | Sequence[str] | None = None,
    delimiter: str = ",",
    quotechar: str | None = '"',
    skip_header_lines: int = 0,
    null_values: str | Sequence[str] = (),
    fill_null: Any = None,
    true_values: str | Sequence[str] = TRUE,
    false_values: str | Sequence[str] = FALSE,
    lineterminator: str | None = None,
    max_line_bytes: int | None = MAX_LINE_BYTES,
    encoding: str = "utf-8",
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
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
    null_values: str | Sequence[str] = (),
    fill_null: Any = None,
    true_values: str | Sequence[str] = TRUE,
    false_values: str | Sequence[str] = FALSE,
    lineterminator: str | None = None,
    max_line_bytes: int | None = MAX_LINE_BYTES,
    encoding: str = "utf-8",
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
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
    null_values: str | Sequence[str] = (),
    fill_null: Any = None,
    true_values: str | Sequence[str] = TRUE,
    false_values: str | Sequence[str] = FALSE,
    lineterminator: str | None = None,
    max_line_bytes: int | None = MAX_LINE_BYTES,
    encoding: str = "utf-8",
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[tuple[Any, ...]]: ...
def read_csv(
    paths: Paths,
    dtypes: Any,
    *,
    columns: Sequence[int] | Sequence[str] | None = None,
    delimiter: str = ",",
    quotechar: str | None = '"',
    skip_header_lines: int = 0,
    null_values: str | Sequence[str] = (),
    fill_null: Any = None,
    true_values: str | Sequence[str] = TRUE,
    false_values: str | Sequence[str] = FALSE,
    lineterminator: str | None = None,
    max_line_bytes: int | None = MAX_LINE_BYTES,
    encoding: str = "utf-8",
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[Any]:
    """Read the rows of text tables, such as CSV files. NumPy parses them.

    Every line that is not blank is a row. A quoted field may contain delimiters and newlines; so a
    row may have several lines. A line is blank if it has only spaces, none of them the delimiter.
    Keys are ``path:number``, with the number of the row's first line, from 1; header lines count.

    If columns have names, each file's last header line must list them. Spaces around a name count
    only if you write them, too. That line is a row, too: if a quoted name contains newlines, the
    header goes on to the end of that row, and counts as one line in ``skip_header_lines``. A byte
    order mark at the start of a file is no part of the text.

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
        skip_header_lines: the number of lines at the start of each file that are not rows of
            values; the last of them may go on in further lines, as above.
        null_values: the texts of fields that stand for null, such as ``["", "NA"]``, quoted or not.
            A null is ``None`` in a tuple or dict. In an array it is NaN, NaT, or ``None`` among
            objects. Other arrays need ``fill_null``.
        fill_null: what replaces nulls: one value, or a dict of values by column (its name, or its
            number as in ``columns``). The dtype must be able to hold the value.
        true_values: the texts of fields of dtype bool that stand for true, quoted or not.
        false_values: those that stand for false.
        lineterminator: what ends a row: ``None`` for ``\\n`` or ``\\r\\n``; ``"\\r"`` for the files
            of old Macs.
        max_line_bytes: as for `read_lines`; here it is the longest row.
        encoding: the encoding of the files. A newline must be the single byte 10 in it.
        compression: as for `read_lines`.
        storage_options: as for `read_lines`.
        seed: as for `read_lines`.
        on_error: as for `read_lines`.
        quarantine: as for `read_lines`.

    Returns:
        A reader of rows. Iterating over it raises `DataLossError`, with the line's number in the
        message, if a row has too few or too many fields, if a quoted field has no end, if a field
        without quotes contains a return, or if a field does not fit its dtype: a string that is too
        long, a number that is out of range or not an int, or a time that is more precise than the
        dtype. It raises `OSError` if a file cannot be read.

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
    assert decoder is not None
    decoder = decoder._replace(keeps_returns=True)  # within quotes, they belong to the field
    syntax = Syntax(delimiter, quotechar)
    tokens = Tokens.checked(null_values, true_values, false_values)
    table = _Table(dtypes, columns, syntax, tokens, fill_null, decoder.encoding)
    skip = checked_count(skip_header_lines, "skip_header_lines")
    end = checked_end(lineterminator)
    if end in (delimiter, quotechar):
        raise InvalidArgumentError(
            f"lineterminator: got {lineterminator!r}; expected another than delimiter and quotechar"
        )
    most = checked_limit(max_line_bytes, "max_line_bytes")
    if table.named and not skip:
        raise InvalidArgumentError(
            "skip_header_lines: got 0 for columns with names; expected the number of header lines"
            " (the last one lists the names)"
        )

    options = {
        "skip_header_lines": skip,
        "columns": table.columns,
        "delimiter": delimiter,
        "quotechar": quotechar,
        "dtypes": table.dtypes,
        "encoding": encoding,
        "null_values": null_values,
        "fill_null": fill_null,
        "true_values": true_values,
        "false_values": false_values,
        **line_end_option(end),
    }
    return CsvFormat(table, decoder, syntax, skip, end, most, options).reader(
        paths,
        compression=compression,
        storage_options=storage_options,
        seed=seed,
        on_error=on_error,
        quarantine=quarantine,
    )


class CsvFormat(FileFormat[Any]):
    """Text tables. A mark is that of a `LineBlock`, and where the columns with names are.

    Args:
        table: converts the rows.
        decoder: decodes the lines.
        syntax: how a line is cut into fields.
        skip: the number of header lines.
        end: what ends a row.
        most: the longest row, in bytes; ``None`` for no limit.
        options: the arguments of the user that decide what the rows are.
    """

    function = "read_csv"
    extra: ClassVar[str | None] = None
    suffix: ClassVar[str | None] = ".csv"
    key: ClassVar[str | None] = "line"
    page = "howto/records.md"

    ahead = AHEAD

    def __init__(
        self,
        table: _Table,
        decoder: Decoder,
        syntax: Syntax,
        skip: int,
        end: str,
        most: int | None,
        options: dict[str, Any],
    ) -> None:
        self._table = table
        self._decoder = decoder
        self._syntax = syntax
        self._skip = skip
        self._end = end
        self._most = most
        self._options = options

    def options(self) -> dict[str, Any]:
        return self._options

    def limits(self) -> dict[str, Any]:
        return {"max_line_bytes": self._most}

    def cut(self, stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[Any]]:
        begin, located = mark or (None, None)
        decoder, skip, most = self._decoder, self._skip, self._most
        lines = blocks_of(stream, path, decoder, begin, most, self._end)
        rows = row_blocks(lines, self._syntax, skip, path, most, has_state=decoder.has_state)
        return self._table.runs(rows, path, skip, located)


def _is_character(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 1 and value not in "\r\n"


class _Table:
    """Converts rows of text to rows of values."""

    def __init__(
        self,
        dtypes: Any,
        columns: Any,
        syntax: Syntax,
        tokens: Tokens,
        fill_null: Any,
        encoding: str,
    ) -> None:
        self._syntax = syntax
        self._tokens = tokens
        self._encoding = encoding
        self._keys: list[Any] | None = list(dtypes) if isinstance(dtypes, Mapping) else None
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
        self._dtypes: list[np.dtype[Any]] = [
            checked_dtype(one) for one in ([dtypes] if self._uniform else dtypes)
        ]
        self.dtypes: Any = self._dtypes[0] if self._uniform else self._dtypes
        if self._keys is not None:
            self.dtypes = dict(zip(self._keys, self._dtypes, strict=True))
        parsed = [parsed_dtype(dtype) for dtype in self._dtypes]
        self._dtype: np.dtype[Any] = (
            parsed[0]
            if self._uniform
            else np.dtype([(f"f{at}", dtype) for at, dtype in enumerate(parsed)])
        )
        self._fill = self._checked_fill(fill_null)

    def _checked_fill(self, fill_null: Any) -> Mapping[Any, Any]:
        dtypes = self._dtypes[0] if self._uniform else self._dtypes
        fill = checked_fill(fill_null, self.columns, dtypes)
        if fill and not self._tokens.null:
            raise InvalidArgumentError(
                f"fill_null: got {fill_null!r} without null_values; expected null_values too, such"
                ' as ["", "NA"]'
            )
        dtype = self._dtypes[0]
        needs_fill = self._uniform and not holds_null(dtype) and None not in fill
        is_filled = self.columns is not None and fill.keys() >= set(self.columns)
        if self._tokens.null and needs_fill and not is_filled:
            raise InvalidArgumentError(
                f"fill_null: got {fill_null!r} with null_values; expected a value, because an array"
                f" of {dtype} cannot hold nulls"
            )
        return fill

    def runs(
        self,
        blocks: Iterator[RowBlock],
        path: str,
        skip: int,
        columns: Sequence[int] | None,
    ) -> Iterator[Records[Any]]:
        """Yield the rows of a file.

        Args:
            blocks: its rows, or those from a mark on.
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
            if self.named and columns is None and block.header is not None:
                columns, width = self._located(block.header, path)
            where = [*columns, width] if self.named and columns is not None else None
            mark = block.mark and (block.mark, where)
            numbers, lines = _without_blanks(block.numbers, block.rows, self._syntax.delimiter)
            failure: DataLossError | None = None
            try:
                rows = self._rows(lines, columns, width)
            except ValueError:
                # Parse again, line by line: the rows before the one that does not fit are sound.
                rows, failure = self._one_by_one(block, numbers, lines, columns, width, path)
            try:
                if rows:
                    width = self._width_of(lines[0], rows[0], columns)
                    yield Records(numbers[: len(rows)], rows, mark)
                if failure is not None:
                    raise failure
            finally:
                del failure  # its traceback, and that of its cause, have this frame

    def _width_of(self, line: str, row: Any, columns: Any) -> int:
        """Return the number of fields in a sound line, given its row."""
        return len(row) if columns is None else self._syntax.count(line)

    def _check_fields(self, lines: list[str], width: int | None) -> None:
        """Check the number of fields: NumPy ignores those after the last used column.

        Raises:
            ValueError: a line has another number of fields than the others.
        """
        for fields in set(map(self._syntax.count, lines)):
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
        if columns is not None:  # else the parser itself compares the numbers of fields
            self._check_fields(lines, width)
        dtype = _OBJECT if self._tokens.null else self._dtype
        parsed = self._parsed(lines, columns, dtype)
        if len(parsed) != len(lines):  # a row was left out, or cut at a return
            raise ValueError("it is not a row")
        if self._uniform:
            if columns is None and width is not None and parsed.shape[1] != width:
                has = counted(parsed.shape[1], "column")
                raise ValueError(f"it has {has}, and lines above have {width}")
            return list(self._array(parsed, lines, columns))
        if self._tokens.null:
            if parsed.shape[1] != len(self._dtypes):
                has = counted(parsed.shape[1], "column")
                raise ValueError(f"it has {has}; expected {len(self._dtypes)}, one for each dtype")
            found: Iterator[Any] = self._nullable(parsed, columns)
        else:
            found = self._kept(parsed, lines, columns)
        rows = list(zip(*found, strict=True))
        return (
            rows
            if self._keys is None
            else [dict(zip(self._keys, row, strict=True)) for row in rows]
        )

    def _array(self, parsed: NDArray[Any], lines: list[str], columns: Any) -> NDArray[Any]:
        """Return the rows of columns that have one dtype."""
        (dtype,) = self._dtypes
        fields = Fields(parsed, lambda: self._parsed(lines, columns, _OBJECT), columns)
        if not self._tokens.null:
            return fields.kept_as(dtype, self._encoding, self._tokens)
        values, nulls = fields.with_nulls(dtype, self._encoding, self._tokens)
        for at in np.flatnonzero(nulls.any(axis=0)):
            fill = self._fill_of(int(at))
            values[nulls[:, at], at] = null_of(dtype) if fill is None else fill
        return values

    def _kept(self, parsed: NDArray[Any], lines: list[str], columns: Any) -> Iterator[NDArray[Any]]:
        """Yield the columns of the lines, each converted to its dtype."""
        texts: list[NDArray[Any]] = []  # the text of all columns, once a check needs one

        def texts_of(at: int) -> NDArray[Any]:
            if not texts:
                texts.append(self._parsed(lines, columns, _OBJECT))
            return texts[0][:, at : at + 1]

        for at, dtype in enumerate(self._dtypes):
            places = (at,) if columns is None else (columns[at],)
            fields = Fields(parsed[f"f{at}"][:, None], partial(texts_of, at), places)
            yield fields.kept_as(dtype, self._encoding, self._tokens)[:, 0]

    def _nullable(self, texts: NDArray[Any], columns: Any) -> Iterator[list[Any]]:
        """Return the columns of the lines, some of whose fields are null."""
        for at, dtype in enumerate(self._dtypes):
            places = (at,) if columns is None else (columns[at],)
            column = texts[:, at : at + 1]
            fields = Fields(column, partial(np.asarray, column), places)
            values, nulls = fields.with_nulls(dtype, self._encoding, self._tokens)
            fill = self._fill_of(at)
            if fill is not None:
                values[nulls] = fill
            found = list(values[:, 0])
            if fill is None:
                for line in np.flatnonzero(nulls):
                    found[line] = None
            yield found

    def _fill_of(self, at: int) -> Any:
        """Return what replaces nulls in a column that is read."""
        column = at if self.columns is None else self.columns[at]
        return self._fill.get(column, self._fill.get(None))

    def _parsed(self, lines: list[str], columns: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
        return self._syntax.parsed(lines, dtype, columns)

    def _one_by_one(
        self,
        block: RowBlock,
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
                fault, cause = _fault_of(error), error
            else:
                width = self._width_of(line, rows[0], columns)
                continue
            try:
                failure = _damaged(path, block, number, fault)
                failure.__cause__ = cause
                return rows, failure
            finally:
                del failure, cause  # the cause's traceback has this frame: that would be a circle
        return rows, None

    def _located(self, header: Header, path: str) -> tuple[list[int], int]:
        """Return the columns' numbers from the header, and its width."""
        assert self.columns is not None
        fault: str | None = None
        for row in header.rows:
            try:
                given = self._syntax.fields_of(row)
            except ValueError as error:
                fault = fault or _fault_of(error)
                continue
            # Spaces around a name count only if you write them, too.
            written = {name for name in self.columns if name != name.strip()}
            names = [name if name in written else name.strip() for name in given]
            missing = [name for name in self.columns if name not in names]
            doubled = [name for name in self.columns if names.count(name) > 1]
            if not missing and not doubled:
                return [names.index(name) for name in self.columns], len(names)
            if missing:
                fault = fault or f"no column {missing[0]!r} among {names}"
            else:
                times = names.count(doubled[0])
                fault = fault or f"column {doubled[0]!r} occurs {times} times among {names}"
        raise DataLossError(
            f"{path}: line {header.number}: {fault}",
            path=path,
            offset=header.offset,
            fault=str(fault),
        )


_CHOOSE: Final = "pass columns=[...] to choose some of them"
_RETURN: Final = (
    "a return or newline within a field that is not quoted (if returns alone end the rows, pass"
    " lineterminator='\\r')"
)


def _fault_of(error: Exception) -> str:
    # NumPy numbers the lines that it got, and it got a single one.
    fault = str(error).replace(" at row 0,", " in").replace(" at row 1;", ";").rstrip(".")
    if "unquoted embedded newline" in fault:
        return _RETURN
    return fault.replace("use `usecols` to select a subset and avoid this error", _CHOOSE)


def _damaged(path: str, block: RowBlock, number: int, fault: str) -> DataLossError:
    return DataLossError(
        f"{path}: line {number}: {fault}", path=path, offset=block.offset_of(number), fault=fault
    )


def _without_blanks(
    numbers: Sequence[int], lines: list[str], delimiter: str
) -> tuple[Sequence[int], list[str]]:
    """Leave out blank lines. NumPy would do so too, but does not say which lines."""
    blank = [at for at, line in enumerate(lines) if is_blank(line, delimiter)]
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
