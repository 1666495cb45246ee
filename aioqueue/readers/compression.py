"""Compressed files: detecting the kind by name, and streams that decompress and compress.

A compressed file is one complete stream, or several, as `cat` and parallel compressors make them.
If the format allows it, zeros may follow a stream. This rule holds for every kind: a file that can
be read to its end is complete, and anything else in it is damage. (Python's own readers ignore data
after a stream that is not a stream itself.)
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import IO, Any, Final, Protocol
from urllib.parse import urlsplit

from aioqueue import InvalidArgumentError
from aioqueue.base.extras import required

_BY_SUFFIX: Final = {
    ".gz": "gzip",
    ".tgz": "gzip",
    ".bz2": "bz2",
    ".tbz2": "bz2",
    ".xz": "xz",
    ".txz": "xz",
    ".zst": "zstd",
    ".tzst": "zstd",
}
_KINDS: Final = (*dict.fromkeys(_BY_SUFFIX.values()), "zlib")
_BLOCK: Final = 2**16
_BUFFER: Final = 2**16
_MUCH: Final = 2**20
_XZ_MEMORY: Final = 2**28
"""A damaged file may ask for any memory. The strongest preset of the program takes 65 MiB."""


def checked_compression(compression: Any, path: str) -> str | None:
    """Return the kind of compression of a file: the user's choice, or that of its suffix.

    Raises:
        InvalidArgumentError: there is no such kind.
    """
    if compression == "infer":
        # Also works for "zip://a.csv.gz::archive.zip" and "https://host/a.csv.gz?version=2".
        name = path.split("::")[0]
        if name.startswith(("http://", "https://")):
            name = urlsplit(name).path
        return next((kind for suffix, kind in _BY_SUFFIX.items() if name.endswith(suffix)), None)
    if compression is not None and compression not in _KINDS:
        known = ", ".join(map(repr, _KINDS))
        raise InvalidArgumentError(
            f"compression: got {compression!r}; expected 'infer', None, or one of {known}"
        )
    return compression  # type: ignore[no-any-return]


def checked_kind(compression: Any) -> str | None:
    """Return the kind of compression of files that are to be written.

    Raises:
        InvalidArgumentError: there is no such kind, or files that have it get no suffix.
        ModuleNotFoundError: it needs an extra that is not installed.
    """
    kinds = dict.fromkeys(_BY_SUFFIX.values())
    if compression is None:
        return None
    if compression not in kinds:
        known = ", ".join(map(repr, kinds))
        raise InvalidArgumentError(
            f"compression: got {compression!r}; expected None, or one of {known}"
        )
    _module(compression)
    return str(compression)


def suffix_of(kind: str | None) -> str:
    """Return what the names of compressed files end with; nothing for files that are not."""
    return next((suffix for suffix, one in _BY_SUFFIX.items() if one == kind), "")


def decompressed(raw: IO[bytes], kind: str) -> IO[bytes]:
    """Return a stream that decompresses a file. Closing it leaves the file open."""
    return io.BufferedReader(_Decompressed(raw, kind), _BUFFER)


def compressed(raw: IO[bytes], kind: str) -> IO[bytes]:
    """Return a stream that compresses into a file. Closing it leaves the file open."""
    if kind == "zlib":
        return io.BufferedWriter(_Deflated(raw))
    if kind == "gzip":  # without a name and a time: the same data is the same file
        return gzip.GzipFile("", "wb", fileobj=raw, mtime=0)  # type: ignore[return-value]
    module = _module(kind)
    # Only zstd has no checksum by default: damage would go unnoticed.
    options = {"options": {module.CompressionParameter.checksum_flag: 1}} if kind == "zstd" else {}
    return module.open(raw, "wb", **options)  # type: ignore[no-any-return]


def is_damage(error: Exception) -> bool:
    """Return whether an error means that compressed data is damaged, or ends too early.

    An `OSError` of the system has an ``errno``, and one of a network has a class of its own, such
    as `TimeoutError`. Those of the decompressors have neither.
    """
    if isinstance(error, OSError):
        return type(error) in (OSError, gzip.BadGzipFile) and error.errno is None
    return isinstance(error, EOFError | zlib.error | lzma.LZMAError) or (
        type(error).__name__ == "ZstdError"  # its module may not be installed
    )


def _module(kind: str) -> Any:
    if kind == "zstd":
        name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        return required(name, "files", "reading and writing .zst files")
    return {"gzip": gzip, "bz2": bz2, "xz": lzma}[kind]


class _Decompressor(Protocol):
    """Decompresses one stream. The decompressors of bz2, lzma and zstd have this interface."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool:
        """Whether it has nothing to return before it gets more of the file."""

    @property
    def unused_data(self) -> bytes:
        """The input after the end of the stream."""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Take more of the file; return some of the decompressed data."""


class _Inflator:
    """The same interface for zlib and gzip: its decompressor checks more than Python's reader.

    Args:
        format: the format of the stream's header and trailer, in zlib's terms.
    """

    def __init__(self, format: int) -> None:
        self._inflate = zlib.decompressobj(format)

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        return not self._inflate.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)


def _decompressor(kind: str) -> Callable[[], _Decompressor]:
    """Return a function that makes a decompressor for another stream."""
    if kind == "zstd":
        return _module(kind).ZstdDecompressor  # type: ignore[no-any-return]
    known: dict[str, Callable[[], _Decompressor]] = {
        "gzip": partial(_Inflator, 16 + zlib.MAX_WBITS),
        "zlib": partial(_Inflator, zlib.MAX_WBITS),
        "bz2": bz2.BZ2Decompressor,
        # Its older format, .lzma, has no checksum: damage would go unnoticed.
        "xz": partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=_XZ_MEMORY),
    }
    return known[kind]


_PADDING: Final = {"gzip": 1, "xz": 4}
"""Kinds that allow zeros after a stream, in multiples of this number; others allow none."""


class _Decompressed(io.RawIOBase):
    """The decompressed data of the consecutive streams in a file."""

    def __init__(self, raw: IO[bytes], kind: str) -> None:
        self._raw = raw
        self._kind = kind
        self._make = _decompressor(kind)
        self._stream = self._make()
        self._unused = b""  # read from the file, but not yet passed to a decompressor
        self._ended = False
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._some(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return b"".join(iter(partial(self._some, _MUCH), b""))

    def _some(self, most: int) -> bytes:
        """Return the next data; nothing at the end of the file."""
        # A stream may take input and return nothing yet, as for its header. An empty result would
        # end the file for the reader, so go on until there is data.
        while not self._ended:
            if self._stream.eof:
                self._begin_next()
                continue
            waiting = b""
            # A decompressor that has reached `most` keeps the rest of its input. With more input,
            # that rest would grow, up to the whole file.
            if self._stream.needs_input:
                if not (self._unused or self._read_more()):
                    raise EOFError("it ended before its end marker")
                waiting, self._unused = self._unused, b""
            data = self._stream.decompress(waiting, most)
            if data:
                self._position += len(data)
                return data
        return b""

    def _begin_next(self) -> None:
        """Begin another stream after one has ended, unless the file ends here."""
        unit = _PADDING.get(self._kind, 0)
        zeros = 0
        # The block in which the stream ends was read as a whole: the next stream may begin there.
        self._unused = self._stream.unused_data
        while self._unused or self._read_more():
            padded = len(self._unused)
            if unit:
                self._unused = self._unused.lstrip(b"\0")
            zeros += padded - len(self._unused)
            if self._unused:
                break  # another stream, or data that its decompressor refuses
        if unit and zeros % unit:
            raise EOFError(f"{zeros} zeros behind a stream; expected a multiple of {unit}")
        self._ended = not self._unused
        self._stream = self._make()

    def _read_more(self) -> bool:
        self._unused = self._raw.read(_BLOCK)
        return bool(self._unused)


class _Deflated(io.RawIOBase):
    """Writes a zlib stream."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._deflate = zlib.compressobj()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._raw.write(self._deflate.compress(data))
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._raw.write(self._deflate.flush())
        super().close()
