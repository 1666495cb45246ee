"""Text files: their lines, whole blocks of them at a time."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, NamedTuple, overload

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.checks import checked_count
from aioqueue.inputs.readers.base import Mark, Paths, Reader, Records
from aioqueue.inputs.readers.files import StorageOptions, forward
from aioqueue.inputs.sources.positions import misplaced

__all__ = ("AHEAD", "Block", "Decoder", "blocks_of", "decoder_of", "read_lines")

AHEAD: Final = 4096
"""How many lines, or rows, async iteration may read ahead."""

_BLOCK: Final = 2**16


@overload
def read_lines(
    paths: Paths,
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    skip_header_lines: int = 0,
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
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
) -> Reader[bytes]: ...
def read_lines(
    paths: Paths,
    *,
    encoding: str | None = "utf-8",
    errors: str = "strict",
    skip_header_lines: int = 0,
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
) -> Reader[Any]:
    r"""The lines of text files, without their ends (``\n`` or ``\r\n``).

    The last line need not have an end. Keys are ``path:number``, from 1; header lines count.

    Args:
        paths: one path or URL, a source of them such as `files`, or any iterable of them.
        encoding: of the files; one in which a newline is the one byte 10. ``None`` gives bytes.
        errors: what to do about bytes that are no text, as for `bytes.decode`.
        skip_header_lines: how many lines to leave out at the start of each file.
        compression: ``"infer"`` (from the suffix: .gz, .bz2, .xz, .zst), ``None``, or ``"gzip"``,
            ``"bz2"``, ``"xz"``, ``"zstd"`` or ``"zlib"``.
        storage_options: what fsspec needs to know about a URL's file system: credentials, say.

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
        options={"skip_header_lines": skip},
    )


class Decoder(NamedTuple):
    """How the bytes of lines become text."""

    encoding: str
    errors: str
    mark: bytes = b""
    """What may stand at the start of a file without being part of the text."""


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
    if newline != b"\n":
        raise InvalidArgumentError(
            f"encoding: got {encoding!r}; expected one in which a newline is the one byte 10"
            " (read others with read_whole_files, and decode them then)"
        )
    return Decoder(name, errors)


class Block(NamedTuple):
    """Whole lines of a file that follow each other."""

    offset: int
    """Where it begins, in bytes."""
    raw: bytes
    first: int
    """The number of its first line, from 1."""
    lines: list[Any]

    @property
    def mark(self) -> tuple[int, int] | None:
        """Where it begins: the offset, and the number of the line; ``None`` for the start."""
        return (self.offset, self.first) if self.first > 1 else None

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
    stream: IO[bytes], path: str, decoder: Decoder | None, mark: tuple[int, int] | None
) -> Iterator[Block]:
    """The lines of a file, from the mark of a block on."""
    begin, first = mark or (0, 1)
    for offset, raw in _whole_lines(stream, begin, path):
        if decoder is None:
            block = Block(offset, raw, first, _split(raw, b"\n", b"\r"))
        else:
            if not offset and decoder.mark and raw.startswith(decoder.mark):
                offset, raw = len(decoder.mark), raw[len(decoder.mark) :]
            try:
                text = raw.decode(decoder.encoding, decoder.errors)
            except UnicodeDecodeError as error:
                yield from _blocks_before(error, Block(offset, raw, first, []), path, decoder)
                return
            block = Block(offset, raw, first, _split(text, "\n", "\r"))
        yield block
        first += len(block.lines)


def _blocks_before(
    error: UnicodeDecodeError, block: Block, path: str, decoder: Decoder
) -> Iterator[Block]:
    """The lines of a block before the one that is no text; then that is reported."""
    end = block.raw.rfind(b"\n", 0, error.start)
    if end >= 0:
        lines = _split(block.raw[:end].decode(decoder.encoding, decoder.errors), "\n", "\r")
        yield block._replace(lines=lines)
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
