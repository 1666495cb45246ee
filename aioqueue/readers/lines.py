"""`read_lines`: the lines of text files, decoded in blocks of whole lines; `read_json_lines`.

Files with a JSON value on each line are also called JSONL or NDJSON.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, ClassVar, Final, NamedTuple, overload

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.arguments import checked_count
from aioqueue.items.positions import misplaced
from aioqueue.items.quarantine import OnDamage, QuarantinePath
from aioqueue.readers.files import MAX_LINE_BYTES, StorageOptions, checked_limit, exceeds, forward
from aioqueue.readers.reader import FileFormat, Mark, Paths, Reader, Records

AHEAD: Final = 4096
"""The number of lines, or rows, that async iteration may read ahead."""

_BLOCK: Final = 2**16
_STATEFUL: Final = ("iso2022_", "hz", "utf-7")
"""Name prefixes of encodings in which a line's meaning may depend on earlier lines."""
_MARK: Final = "\ufeff"
"""A byte order mark, decoded."""
_WIDE_MARKS: Final = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_NO_TEXT: Final = ("raw-unicode-escape", "idna", "punycode")
"""Python's codecs whose text may have line ends where the bytes have none."""


@overload
def read_lines(
    paths: Paths,
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    skip_header_lines: int = 0,
    lineterminator: str | None = None,
    max_line_bytes: int | None = MAX_LINE_BYTES,
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[str]: ...
@overload
def read_lines(
    paths: Paths,
    *,
    encoding: None,
    errors: str = "strict",
    skip_header_lines: int = 0,
    lineterminator: str | None = None,
    max_line_bytes: int | None = MAX_LINE_BYTES,
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[bytes]: ...
def read_lines(
    paths: Paths,
    *,
    encoding: str | None = "utf-8",
    errors: str = "strict",
    skip_header_lines: int = 0,
    lineterminator: str | None = None,
    max_line_bytes: int | None = MAX_LINE_BYTES,
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[Any]:
    r"""Read the lines of text files, without their ends (``\n`` or ``\r\n``).

    The last line need not have an end. Keys are ``path:number``, from 1; header lines count. A byte
    order mark at the start of a file is no part of the text.

    Args:
        paths: one path or URL, a source of paths such as `files`, or any iterable of paths.
        encoding: the encoding of the files, in which a newline must be the single byte 10. ``None``
            yields bytes, a byte order mark included. In encodings such as ISO-2022, where a line
            depends on the lines before it, decoding continues from those lines. Decode files in
            UTF-16 and UTF-32 behind `read_whole_files`.
        errors: how to handle bytes that are not valid text, as for `bytes.decode`.
        skip_header_lines: the number of lines to leave out at the start of each file.
        lineterminator: what ends a line: ``None`` for ``\n`` or ``\r\n``; ``"\r"`` for the files of
            old Macs.
        max_line_bytes: the longest line, in bytes (decompressed): 64 MiB by default. A file without
            line ends would otherwise fill the memory. ``None`` for no limit.
        compression: ``"infer"`` (from the suffix: .gz, .bz2, .xz, .zst), ``None``, or ``"gzip"``,
            ``"bz2"``, ``"xz"``, ``"zstd"`` or ``"zlib"``.
        storage_options: the options of fsspec for a URL's file system, such as credentials.
        seed: the seed of the records' generators, and of the order of paths that have no seed;
            ``None`` takes the seed of a source of paths, or fresh entropy.
        on_error: what happens at a damaged file. ``"stop"`` raises `DataLossError`, after the
            records before the damage. ``"skip"`` leaves out the rest of the file, and reads the
            next. The log and the reader's ``quarantine`` say which files, and where.
        quarantine: a file that lists them, too, with one JSON object per line; see
            `read_quarantine`. A damage that it has already is not listed again.

    Returns:
        A reader of strings, or of bytes. Iterating over it raises `DataLossError` if bytes are not
        valid text or a line is too long, and `OSError` if a file cannot be read.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """
    lines = LineFormat(
        encoding,
        errors,
        decoder_of(encoding, errors),
        checked_count(skip_header_lines, "skip_header_lines"),
        checked_end(lineterminator),
        checked_limit(max_line_bytes, "max_line_bytes"),
    )
    return lines.reader(
        paths,
        compression=compression,
        storage_options=storage_options,
        seed=seed,
        on_error=on_error,
        quarantine=quarantine,
    )


@dataclass(frozen=True)
class LineFormat(FileFormat[Any]):
    """Lines of text, or of bytes. A mark is that of a `LineBlock`."""

    function = "read_lines"
    extra: ClassVar[str | None] = None
    suffix: ClassVar[str | None] = ".txt"
    key: ClassVar[str | None] = "line"
    page = "howto/records.md"

    encoding: str | None
    errors: str
    decoder: Decoder | None
    """``None`` to leave the lines as bytes."""
    skip: int
    """The number of header lines."""
    end: str
    """What ends a line."""
    most: int | None
    """The longest line, in bytes; ``None`` for no limit."""

    ahead = AHEAD

    def options(self) -> dict[str, Any]:
        return {
            "skip_header_lines": self.skip,
            "encoding": self.encoding,
            "errors": self.errors,
            **line_end_option(self.end),
        }

    def limits(self) -> dict[str, Any]:
        return {"max_line_bytes": self.most}

    def cut(self, stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[Any]]:
        for block in blocks_of(stream, path, self.decoder, mark, self.most, self.end):
            yield Records(*block.after(self.skip), block.mark)


def checked_end(lineterminator: Any) -> str:
    """Return the character that ends a line.

    Raises:
        InvalidArgumentError: it is neither ``None`` nor a return.
    """
    if lineterminator not in (None, "\r"):
        raise InvalidArgumentError(
            f"lineterminator: got {lineterminator!r}; expected '\\r', or None (lines end with '\\n'"
            " or '\\r\\n' then)"
        )
    return lineterminator or "\n"


def line_end_option(end: str) -> dict[str, Any]:
    """Return the option that a position and a reader must share; empty for the default."""
    return {} if end == "\n" else {"lineterminator": end}


class Decoder(NamedTuple):
    """Decodes the bytes of lines."""

    encoding: str
    errors: str
    mark: bytes = b""
    """An optional prefix of a file that is not part of the text."""
    has_state: bool = False
    """Whether the meaning of a line depends on the lines before it."""
    keeps_returns: bool = False
    r"""Whether a ``\r`` before the end belongs to the line."""

    def lines_of(self, raw: bytes, state: int, end: str = "\n") -> tuple[list[str], int]:
        """Decode bytes to whole lines; the last one lacks its end.

        Args:
            raw: the bytes of the lines.
            state: the decoder's state before them.
            end: what ends a line.

        Returns:
            The lines, and the decoder's state after the end of the last line.

        Raises:
            UnicodeDecodeError: the bytes are not valid text.
        """
        if not self.has_state:
            return self._split(raw.decode(self.encoding, self.errors), end), 0
        decoder = codecs.getincrementaldecoder(self.encoding)(self.errors)
        if state:
            decoder.setstate((b"", state))
        # Decode the end too: it completes characters, and may change the meaning of what follows.
        text = decoder.decode(raw + end.encode("ascii"))
        held, state = decoder.getstate()
        if held:
            reason = "a character continues after the end of the line"
            raise UnicodeDecodeError(self.encoding, raw, len(raw) - len(held), len(raw), reason)
        if not text.endswith(end):  # as after the ~ of HZ, which joins two lines
            reason = "the line continues after its end"
            raise UnicodeDecodeError(self.encoding, raw, max(0, len(raw) - 1), len(raw), reason)
        return self._split(text.removesuffix(end), end), state

    def _split(self, text: str, end: str) -> list[str]:
        return text.split(end) if self.keeps_returns or end != "\n" else _split(text, "\n", "\r")


def decoder_of(encoding: Any, errors: Any) -> Decoder | None:
    if encoding is None:
        return None
    try:
        name = codecs.lookup(encoding).name
        codecs.lookup_error(errors)
    except (LookupError, TypeError) as error:
        raise InvalidArgumentError(
            f"encoding, errors: got {encoding!r}, {errors!r}; expected what bytes.decode accepts"
        ) from error
    if name == "utf-8-sig":
        name = "utf-8"
    try:
        newline = "\n".encode(name)
    except (LookupError, UnicodeError):  # not a text codec
        newline = b""
    if newline != b"\n" or name in _NO_TEXT:
        raise InvalidArgumentError(
            f"encoding: got {encoding!r}; expected one in which a newline is the single byte 10"
            " (read other files with read_whole_files, then decode them)"
        )
    try:
        mark = _MARK.encode(name)
    except UnicodeError:  # an encoding without one, such as Latin-1
        mark = b""
    return Decoder(name, errors, mark, has_state=name.startswith(_STATEFUL))


class LineBlock(NamedTuple):
    """Consecutive whole lines of a file."""

    offset: int
    """The offset of the block, in bytes."""
    raw: bytes
    first: int
    """The number of its first line, from 1."""
    lines: list[Any]
    state: int = 0
    """The decoder's state at the start of the block."""
    end: str = "\n"
    """What ends a line."""

    @property
    def mark(self) -> tuple[int, ...] | None:
        """The mark of the block: its offset, the number of its first line, and the decoder's state
        if it has one; ``None`` for the start."""
        if self.first == 1:
            return None
        return (self.offset, self.first, *([self.state] if self.state else []))

    def after(self, number: int) -> tuple[range, list[Any]]:
        """Return the lines whose numbers are greater than this one, and their numbers."""
        skipped = max(0, number + 1 - self.first)
        numbers = range(self.first, self.first + len(self.lines))
        return (numbers[skipped:], self.lines[skipped:]) if skipped else (numbers, self.lines)

    def offset_of(self, number: int) -> int:
        end = self.end.encode("ascii")
        before = self.raw.split(end, number - self.first)[: number - self.first]
        return self.offset + sum(map(len, before)) + len(before)


def blocks_of(
    stream: IO[bytes],
    path: str,
    decoder: Decoder | None,
    mark: Sequence[int] | None,
    most: int | None = None,
    end: str = "\n",
) -> Iterator[LineBlock]:
    """Yield the lines of a file, from the mark of a block on.

    Raises:
        DataLossError: a line is not text, or is longer than ``most`` bytes; those before it come.
    """
    begin, first, *states = mark or (0, 1)
    state = states[0] if states else 0
    empty = b"" if decoder is None else decoder.mark
    end_byte = end.encode("ascii")
    for offset, raw in _whole_lines(stream, begin, path, most, empty, end_byte):
        before = state
        if decoder is None:
            lines = _split(raw, b"\n", b"\r") if end == "\n" else raw.split(end_byte)
        else:
            is_first = not offset
            if is_first and not decoder.has_state and raw.startswith(decoder.mark):
                offset, raw = len(decoder.mark), raw[len(decoder.mark) :]
            try:
                lines, state = decoder.lines_of(raw, state, end)
            except UnicodeDecodeError as error:
                block = LineBlock(offset, raw, first, [], before, end)
                yield from _blocks_before(error, block, path, decoder)
                return
            if is_first and decoder.has_state:
                lines[0] = lines[0].removeprefix(_MARK)
        yield LineBlock(offset, raw, first, lines, before, end)
        first += len(lines)


def _blocks_before(
    error: UnicodeDecodeError, block: LineBlock, path: str, decoder: Decoder
) -> Iterator[LineBlock]:
    """Yield the lines of a block before the invalid one, and then raise the error for that."""
    end_byte = block.end.encode("ascii")
    end = block.raw.rfind(end_byte, 0, error.start)
    if end >= 0:
        lines, _ = decoder.lines_of(block.raw[:end], block.state, block.end)
        if not block.offset and decoder.has_state:
            lines[0] = lines[0].removeprefix(_MARK)
        yield block._replace(lines=lines)
    number = block.first + block.raw.count(end_byte, 0, error.start)
    offset = block.offset + error.start
    reason = error.reason
    wide = next((name for mark, name in _WIDE_MARKS.items() if block.raw.startswith(mark)), None)
    if not block.offset and wide is not None:
        reason += (
            f" (it begins with the byte order mark of {wide}: decode it behind read_whole_files)"
        )
    raise DataLossError(
        f"{path}: line {number} is not {decoder.encoding} text at {offset}: {reason}",
        path=path,
        offset=offset,
        fault=f"invalid {decoder.encoding}",
    ) from error


def _whole_lines(
    stream: IO[bytes], offset: int, path: str, most: int | None, empty: bytes, end_byte: bytes
) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, the last without its end, and their offsets.

    A file that consists of ``empty``, a byte order mark, has no lines.
    """
    if offset:
        forward(stream, offset - 1, path)
        if stream.read(1) != end_byte:
            raise misplaced(f"offset {offset} in {path}", "that of the start of a line")
    # From a pipe, take what has arrived.
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    begun: list[bytes] = []  # the start of a line whose end was not read yet
    size = 0
    while data := read(_BLOCK):
        if most is not None and (size + len(data) > most):
            sound, fault_at = _sound(begun, data, most, end_byte)
            if fault_at is not None:
                if sound is not None:
                    yield offset, sound
                fault = exceeds("a line", "max_line_bytes", most)
                raise DataLossError(path=path, offset=offset + fault_at, fault=fault)
        end = data.rfind(end_byte)
        if end < 0:
            begun.append(data)
            size += len(data)
            continue
        raw = b"".join([*begun, data[:end]])
        yield offset, raw
        offset += len(raw) + 1
        begun = [data[end + 1 :]]
        size = len(begun[0])
    rest = b"".join(begun)
    if rest and (offset or rest != empty):
        yield offset, rest


def _sound(
    begun: list[bytes], data: bytes, most: int, end_byte: bytes
) -> tuple[bytes | None, int | None]:
    """Find a line that is too long.

    Args:
        begun: the start of the first line.
        data: what follows.
        most: the longest line, in bytes.
        end_byte: what ends a line.

    Returns:
        The lines before it, without the last end, or ``None`` if it is the first one; and where it
        begins, or ``None`` if no line is too long.
    """
    size = sum(map(len, begun))
    at = 0
    for line in data.split(end_byte):
        size += len(line)
        if size > most:
            before = b"".join([*begun, data[:at]])
            return (before[:-1], len(before)) if at else (None, 0)
        at += len(line) + 1
        size = 0
    return None, None


def _split(data: Any, end: Any, before_end: Any) -> list[Any]:
    lines: list[Any] = data.split(end)
    if before_end in data:
        return [line.removesuffix(before_end) for line in lines]
    return lines


_parse: Final[Callable[[str], Any]] = json.JSONDecoder().decode


def read_json_lines(
    paths: Paths,
    *,
    encoding: str = "utf-8",
    max_line_bytes: int | None = MAX_LINE_BYTES,
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[Any]:
    """Read files that have a JSON value on each line (JSON lines, JSONL, NDJSON).

    Every line that is not blank is a record: usually an object, which becomes a dict. Python's
    `json` parses the lines. Keys are ``path:number``, with the line's number from 1.

    Args:
        paths: one path or URL, a source of paths such as `files`, or any iterable of paths.
        encoding: the encoding of the files, as for `read_lines`.
        max_line_bytes: as for `read_lines`.
        compression: as for `read_lines`.
        storage_options: as for `read_lines`.
        seed: as for `read_lines`.
        on_error: as for `read_lines`.
        quarantine: as for `read_lines`.

    Returns:
        A reader of dicts, lists, strings, numbers, bools and ``None``. Iterating over it raises
        `DataLossError`, with the line's number in the message, if a line is not one JSON value;
        and `OSError` if a file cannot be read.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """
    if encoding is None:
        raise InvalidArgumentError("encoding: got None; expected the encoding of the files")
    lines = JsonLineFormat(
        encoding,
        decoder_of(encoding, "strict"),
        checked_limit(max_line_bytes, "max_line_bytes"),
    )
    return lines.reader(
        paths,
        compression=compression,
        storage_options=storage_options,
        seed=seed,
        on_error=on_error,
        quarantine=quarantine,
    )


@dataclass(frozen=True)
class JsonLineFormat(FileFormat[Any]):
    """A JSON value on each line. A mark is that of a `LineBlock`."""

    function = "read_json_lines"
    extra: ClassVar[str | None] = None
    suffix: ClassVar[str | None] = ".jsonl"
    key: ClassVar[str | None] = "line"
    page = "howto/records.md"

    encoding: str
    decoder: Decoder | None
    most: int | None
    """The longest line, in bytes; ``None`` for no limit."""

    ahead = AHEAD

    def options(self) -> dict[str, Any]:
        return {"encoding": self.encoding}

    def limits(self) -> dict[str, Any]:
        return {"max_line_bytes": self.most}

    def cut(self, stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[Any]]:
        for block in blocks_of(stream, path, self.decoder, mark, self.most):
            yield from _values_in(block, path)


def _values_in(block: LineBlock, path: str) -> Iterator[Records[Any]]:
    """Yield the values of a block of lines; before a line that is not JSON, those before it."""
    numbers: list[int] = []
    values: list[Any] = []
    failure: DataLossError | None = None
    for number, line in enumerate(block.lines, block.first):
        if not line or line.isspace():
            continue
        try:
            values.append(_parse(line))
        except (ValueError, RecursionError) as error:
            failure = _damaged(path, block, number, error)
            break
        numbers.append(number)
    try:
        if values:
            yield Records(numbers, values, block.mark)
        if failure is not None:
            raise failure
    finally:
        del failure  # its traceback, and that of its cause, have this frame


def _damaged(path: str, block: LineBlock, number: int, error: Exception) -> DataLossError:
    if block.lines[number - block.first].startswith(_MARK):
        why = "it begins with a byte order mark, which only the start of a file may have"
    elif isinstance(error, json.JSONDecodeError):
        why = f"{error.msg} at column {error.colno}"
        if number == 1 and error.doc.lstrip().startswith("[") and error.pos >= len(error.doc):
            why += " (for a file that is one JSON array, write items(json.load(file)))"
    elif isinstance(error, RecursionError):
        why = "nested too deeply"
    else:  # an int with more digits than Python converts
        why = str(error)
    fault = f"not a JSON value: {why}"
    found = DataLossError(
        f"{path}: line {number}: {fault}", path=path, offset=block.offset_of(number), fault=fault
    )
    found.__cause__ = error
    return found
