"""Compressed files: which kind a name tells of, and the streams that undo and do it."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import sys
import zlib
from types import ModuleType
from typing import IO, Any, Final
from urllib.parse import urlsplit

from aioqueue import InvalidArgumentError

__all__ = ("checked_compression", "compressed", "decompressed", "is_damage", "required")

_BY_SUFFIX: Final = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
_KINDS: Final = (*_BY_SUFFIX.values(), "zlib")
_BLOCK: Final = 2**16


def checked_compression(compression: Any, path: str) -> str | None:
    """The kind of compression of a file: what was asked for, or what its suffix tells.

    Raises:
        InvalidArgumentError: there is no such kind.
    """
    if compression == "infer":
        # Of "zip://a.csv.gz::archive.zip" and "https://host/a.csv.gz?version=2", too.
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


def decompressed(raw: IO[bytes], kind: str) -> IO[bytes]:
    """What is read from a file, decompressed. Closing it leaves the file itself open."""
    if kind == "zlib":
        return io.BufferedReader(_Inflated(raw))
    return _module(kind).open(raw, "rb")  # type: ignore[no-any-return]


def compressed(raw: IO[bytes], kind: str) -> IO[bytes]:
    """A stream that compresses into a file. Closing it leaves the file itself open."""
    if kind == "zlib":
        return io.BufferedWriter(_Deflated(raw))
    module = _module(kind)
    # zstd alone has no checksum unless asked for: damage would go unseen.
    options = {"options": {module.CompressionParameter.checksum_flag: 1}} if kind == "zstd" else {}
    return module.open(raw, "wb", **options)  # type: ignore[no-any-return]


def is_damage(error: Exception) -> bool:
    """Whether this says that compressed data is damaged, or ends too early.

    An `OSError` of the system has an ``errno``, and one of a network is of a class of its own, such
    as `TimeoutError`; those of the decompressors have neither.
    """
    if isinstance(error, OSError):
        return type(error) in (OSError, gzip.BadGzipFile) and error.errno is None
    return isinstance(error, EOFError | zlib.error | lzma.LZMAError) or (
        type(error).__name__ == "ZstdError"  # its module may not be there
    )


def _module(kind: str) -> Any:
    if kind == "zstd":
        name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        return required(name, "files", "reading and writing .zst files")
    return {"gzip": gzip, "bz2": bz2, "xz": lzma}[kind]


def required(name: str, extra: str, purpose: str) -> ModuleType:
    """Import a module that comes with an extra.

    Raises:
        ModuleNotFoundError: it is not installed; the message says the command that installs it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{purpose} needs the package that has '{name}': pip install 'aioqueue[{extra}]'",
            name=name,
        ) from error


class _Inflated(io.RawIOBase):
    """The data of a zlib stream (RFC 1950)."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._inflate = zlib.decompressobj()
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._inflate.eof:
            waiting = self._inflate.unconsumed_tail or self._raw.read(_BLOCK)
            if not waiting:
                raise EOFError("it ended before its end marker")
            data = self._inflate.decompress(waiting, len(buffer))
            if data:
                buffer[: len(data)] = data
                self._position += len(data)
                return len(data)
        return 0

    def tell(self) -> int:
        return self._position


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
