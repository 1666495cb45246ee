"""Text files: their lines, whole blocks of them at a time."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Final, NamedTuple, overload

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.arguments import checked_count
from aioqueue.inputs.core.positions import misplaced
from aioqueue.inputs.readers.files import StorageOptions, forward
from aioqueue.inputs.readers.reader import Mark, Paths, Reader, Records

__all__ = ("AHEAD", "Decoder", "LineBlock", "blocks_of", "decoder_of", "read_lines")

AHEAD: Final = 4096
"""How many lines, or rows, async iteration may read ahead."""

_BLOCK: Final = 2**16
_STATEFUL: Final = ("iso2022_", "hz", "utf-7")
"""How the names of encodings begin in which bytes mean what an earlier line says, or may."""
_NO_TEXT: Final = ("raw-unicode-escape", "idna", "punycode")
"""Codecs of Python whose text may have other ends of lines than the bytes have."""


@overload
def read_lines(
    paths: Paths,
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    skip_header_lines: int = 0,
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
) -> Reader[str]: ...
@overload
def read_lines(
    paths: Paths,
    *,
    encoding: None,
    errors: str = "strict",
    skip_header_lines: int = 0,
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
) -> Reader[bytes]: ...
def read_lines(
    paths: Paths,
    *,
    encoding: str | None = "utf-8",
    errors: str = "strict",
    skip_header_lines: int = 0,
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
) -> Reader[Any]:
    r"""The lines of text files, without their ends (``\n`` or ``\r\n``).

    The last line need not have an end. Keys are ``path:number``, from 1; header lines count.

    Args:
        paths: one path or URL, a source of them such as `files`, or any iterable of them.
        encoding: of the files; one in which a newline is the one byte 10. ``None`` gives bytes.
            Where what bytes mean depends on lines before, as in ISO-2022, it goes on from these.
        errors: what to do about bytes that are no text, as for `bytes.decode`.
        skip_header_lines: how many lines to leave out at the start of each file.
        compression: ``"infer"`` (from the suffix: .gz, .bz2, .xz, .zst), ``None``, or ``"gzip"``,
            ``"bz2"``, ``"xz"``, ``"zstd"`` or ``"zlib"``.
        storage_options: what fsspec needs to know about a URL's file system: credentials, say.
        seed: for the generators of the records, and for the order of paths that have no seed;
            ``None`` takes that of a source of paths, or fresh entropy.

    Returns:
        A reader of strings, or of bytes. Going through it raises `DataLossError` where bytes are no
        text, and `OSError` for a file that cannot be read.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """
    decoder = decoder_of(encoding, errors)
    skip = checked_count(skip_header_lines, "skip_header_lines")

    def cut(stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[Any]]:
        for block in blocks_of(stream, path, decoder, mark):
            yield Records(*block.after(skip), block.mark)

    return Reader(
        "read_lines",
        paths,
        cut,
        ahead=AHEAD,
        compression=compression,
        storage_options=storage_options,
        seed=seed,
        options={"skip_header_lines": skip},
    )


class Decoder(NamedTuple):
    """How the bytes of lines become text."""

    encoding: str
    errors: str
    mark: bytes = b""
    """What may stand at the start of a file without being part of the text."""
    has_state: bool = False
    """Whether it depends on the lines before what the bytes of a line mean."""

    def lines_of(self, raw: bytes, state: int) -> tuple[list[str], int]:
        """Whole lines, of bytes without the last one's end.

        Args:
            raw: of the lines.
            state: of the decoder before them.

        Returns:
            The lines, and the state behind the end of the last one.

        Raises:
            UnicodeDecodeError: they are no text.
        """
        if not self.has_state:
            return _split(raw.decode(self.encoding, self.errors), "\n", "\r"), 0
        decoder = codecs.getincrementaldecoder(self.encoding)(self.errors)
        if state:
            decoder.setstate((b"", state))
        # With its end: it ends what has been begun, and may change what follows means.
        text = decoder.decode(raw + b"\n")
        held, state = decoder.getstate()
        if held:
            reason = "a character goes on behind the end of the line"
            raise UnicodeDecodeError(self.encoding, raw, len(raw) - len(held), len(raw), reason)
        return _split(text.removesuffix("\n"), "\n", "\r"), state


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
        return Decoder("utf-8", errors, codecs.BOM_UTF8)
    try:
        newline = "\n".encode(name)
    except (LookupError, UnicodeError):  # a codec that is none of text
        newline = b""
    if newline != b"\n" or name in _NO_TEXT:
        raise InvalidArgumentError(
            f"encoding: got {encoding!r}; expected one in which a newline is the one byte 10"
            " (read others with read_whole_files, and decode them then)"
        )
    return Decoder(name, errors, has_state=name.startswith(_STATEFUL))


class LineBlock(NamedTuple):
    """Whole lines of a file that follow each other."""

    offset: int
    """Where it begins, in bytes."""
    raw: bytes
    first: int
    """The number of its first line, from 1."""
    lines: list[Any]
    state: int = 0
    """Of the decoder, where it begins."""

    @property
    def mark(self) -> tuple[int, ...] | None:
        """Where it begins: the offset, the number of the line, and the state of the decoder, if it
        has one; ``None`` for the start."""
        if self.first == 1:
            return None
        return (self.offset, self.first, *([self.state] if self.state else []))

    def after(self, number: int) -> tuple[range, list[Any]]:
        """The lines whose number is greater than this one, and their numbers."""
        skipped = max(0, number + 1 - self.first)
        numbers = range(self.first, self.first + len(self.lines))
        return (numbers[skipped:], self.lines[skipped:]) if skipped else (numbers, self.lines)

    def offset_of(self, number: int) -> int:
        """Where the line with this number begins, in bytes."""
        before = self.raw.split(b"\n", number - self.first)[: number - self.first]
        return self.offset + sum(map(len, before)) + len(before)


def blocks_of(
    stream: IO[bytes], path: str, decoder: Decoder | None, mark: Sequence[int] | None
) -> Iterator[LineBlock]:
    """The lines of a file, from the mark of a block on."""
    begin, first, *states = mark or (0, 1)
    state = states[0] if states else 0
    for offset, raw in _whole_lines(stream, begin, path):
        before = state
        if decoder is None:
            lines = _split(raw, b"\n", b"\r")
        else:
            if not offset and decoder.mark and raw.startswith(decoder.mark):
                offset, raw = len(decoder.mark), raw[len(decoder.mark) :]
            try:
                lines, state = decoder.lines_of(raw, state)
            except UnicodeDecodeError as error:
                block = LineBlock(offset, raw, first, [], before)
                yield from _blocks_before(error, block, path, decoder)
                return
        yield LineBlock(offset, raw, first, lines, before)
        first += len(lines)


def _blocks_before(
    error: UnicodeDecodeError, block: LineBlock, path: str, decoder: Decoder
) -> Iterator[LineBlock]:
    """The lines of a block before the one that is no text; then that is reported."""
    end = block.raw.rfind(b"\n", 0, error.start)
    if end >= 0:
        yield block._replace(lines=decoder.lines_of(block.raw[:end], block.state)[0])
    number = block.first + block.raw.count(b"\n", 0, error.start)
    offset = block.offset + error.start
    raise DataLossError(
        f"{path}: line {number} is not {decoder.encoding} text at {offset}: {error.reason}",
        path=path,
        offset=offset,
        fault=f"invalid {decoder.encoding}",
    ) from error


def _whole_lines(stream: IO[bytes], offset: int, path: str) -> Iterator[tuple[int, bytes]]:
    """Blocks of one whole line or more, without the last one's end, and their offsets."""
    if offset:
        forward(stream, offset - 1, path)
        if stream.read(1) != b"\n":
            raise misplaced(f"offset {offset} in {path}", "that of the start of a line")
    # Of a pipe, take what is there.
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    begun: list[bytes] = []  # of a line whose end has not been read
    while data := read(_BLOCK):
        end = data.rfind(b"\n")
        if end < 0:
            begun.append(data)
            continue
        raw = b"".join([*begun, data[:end]])
        yield offset, raw
        offset += len(raw) + 1
        begun = [data[end + 1 :]]
    if rest := b"".join(begun):
        yield offset, rest


def _split(data: Any, end: Any, before_end: Any) -> list[Any]:
    lines: list[Any] = data.split(end)
    if before_end in data:
        return [line.removesuffix(before_end) for line in lines]
    return lines
