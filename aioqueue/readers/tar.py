"""`read_tar`: the members of tar archives, or the samples that they form, as in WebDataset.

The parser here supports POSIX (ustar and pax) and GNU archives: long names, sizes above 8 GiB and
sparse files of every kind. Python's own `tarfile` takes a damaged header, or a file that was cut
off between two members, for the end of the archive. Here that is damage: an archive ends with two
blocks of zeros. After these, another archive may follow, as `cat` makes it, or zeros up to the end
of the file.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from typing import IO, Any, ClassVar, Final, Literal, NamedTuple, overload

from aioqueue import DataLossError
from aioqueue.base.arguments import checked_flag
from aioqueue.items.quarantine import OnDamage, QuarantinePath
from aioqueue.readers.files import (
    MAX_RECORD_BYTES,
    StorageOptions,
    checked_limit,
    exceeds,
    forward,
    read_up_to,
)
from aioqueue.readers.reader import FileFormat, Mark, Paths, Reader, Records

_BLOCK: Final = 512
_ZEROS: Final = bytes(_BLOCK)
_CHECKSUM: Final = slice(148, 156)
_FILES: Final = (b"0", b"\0", b"7")
_LEFT_OUT: Final = (b"5", b"D", b"V")
"""Directories, GNU tar's lists of their contents, and the name of the archive."""
_LINKS: Final = {b"1": "a hard link", b"2": "a symbolic link"}
_OTHERS: Final = {b"3": "a character device", b"4": "a block device", b"6": "a FIFO"}
_SPARSE_FIELDS: Final = range(386, 482, 24)
_MORE_SPARSE_FIELDS: Final = range(0, 504, 24)
_MOST_HEADER_BYTES: Final = 2**20
"""Extended headers hold names and numbers. Those of real archives have a few hundred bytes."""
_MOST_SEGMENTS: Final = 2**20
"""The number of segments in a sparse file."""
_MOST_DIGITS: Final = 32
_COPIED: Final = 2**20
"""The number of bytes to copy, or to skip, at a time."""


class Member(NamedTuple):
    """A file in an archive."""

    name: str
    data: bytes
    offset: int
    """The offset of its first header in the archive, in bytes."""


class _Extended(NamedTuple):
    """Extended headers of a member, for what its own header has no room for."""

    name: str | None = None
    fields: tuple[tuple[str, str], ...] = ()
    """The pax fields in order; a field may occur several times."""

    def last(self, key: str) -> str | None:
        """Return the last value of a field, which is the one that counts."""
        return next((value for name, value in reversed(self.fields) if name == key), None)


class _Damage(Exception):  # noqa: N818  # `_Archive.next` adds the offset and raises another error
    """A header is invalid."""


def members(
    stream: IO[bytes], path: str, offset: int, most: int | None = None
) -> Iterator[Member | None]:
    """Yield the files in an archive, with ``None`` at its end, after which another may follow.

    Args:
        stream: an open archive (decompressed), at its start.
        path: the archive's path, for errors.
        offset: the offset to begin at: 0, or that of a member.
        most: the largest file to read, in bytes, with the holes of a sparse one; ``None`` for any.

    Raises:
        DataLossError: the archive is damaged or ends too early; or it has a member without data,
            such as a link, which would be lost; or a file that is too large.
    """
    if offset:
        forward(stream, offset, path)
    archive = _Archive(stream, path, offset, most)
    while True:
        member = archive.next()
        yield member  # also the end mark: it completes the last sample
        if member is None and not archive.has_more():
            return


class _Archive:
    """An archive that is read from beginning to end."""

    def __init__(self, stream: IO[bytes], path: str, offset: int, most: int | None) -> None:
        self._stream = stream
        self._path = path
        self._most = most
        self._at = offset
        self._begun = offset
        """The offset of the current member."""
        self._ahead: bytes | None = None
        """A block that was read, but not parsed."""

    def next(self) -> Member | None:
        """Return the next file; ``None`` at the end mark."""
        extended = _Extended()
        self._begun = self._at
        while (header := self._header()) is not None:
            try:
                kind = header[156:157]
                if kind in (b"x", b"X"):
                    extended = extended._replace(fields=_pax_fields(self._header_data(header)))
                elif kind == b"L":
                    name = _text(self._header_data(header).rstrip(b"\0"))
                    extended = extended._replace(name=name)
                elif kind == b"K":
                    self._skip(_size(header))  # the target of a link, which is refused later
                elif kind == b"g":
                    # A run that resumes at a later member never reads this header. So one that
                    # later members would need is refused, and no member begins with it.
                    _check_global(_pax_fields(self._header_data(header)))
                    self._begun = self._at
                else:
                    member = self._member(header, kind, extended)
                    if member is not None:
                        return member
                    # Extended headers count for one member, also for one that is left out.
                    extended = _Extended()
                    self._begun = self._at
            except _Damage as damage:
                raise self._lost(str(damage)) from None
        return None

    def has_more(self) -> bool:
        """Return whether another archive follows the end mark and the zeros after it."""
        # Writers fill the last record (10,240 bytes, by default) with zeros, also before an archive
        # that was appended.
        while (block := read_up_to(self._stream, _BLOCK)) and not block.strip(b"\0"):
            self._at += len(block)
        self._begun = self._at
        if 0 < len(block) < _BLOCK:
            raise self._lost("truncated header")
        self._ahead = block or None
        return bool(block)

    def _member(self, header: bytes, kind: bytes, extended: _Extended) -> Member | None:
        """Return the file of a header; ``None`` if it is not a file, and no data is lost."""
        # The path of a sparse file is made up: programs that know no sparse files extract its
        # segments there.
        name = extended.last("GNU.sparse.name") or extended.last("path") or extended.name
        name = _name(header) if name is None else name
        if kind in _LINKS:
            target = _text(header[157:257].rstrip(b"\0"))
            raise _Damage(f"{name!r} is {_LINKS[kind]} (to {target!r}): the archive lacks its data")
        size = extended.last("size")
        stored = _size(header) if size is None else _decimal(size)
        # Before ustar, only the slash marked a directory. A directory may state a size, as a limit
        # of what it may hold, but has no data.
        if kind in _LEFT_OUT or (kind == b"\0" and name.endswith("/")):
            self._skip(0 if kind == b"5" else stored)
            return None
        if kind == b"S":
            segments = self._gnu_segments(header)
            data = self._unpacked(stored, stored, segments, _number(header[483:495]))
        elif kind in _FILES:
            data = self._file(stored, extended)
        else:
            what = _OTHERS.get(kind, f"a member of kind {kind!r}")
            raise _Damage(f"{name!r} is {what}, which has no data to read")
        return Member(name, data, self._begun)

    def _gnu_segments(self, header: bytes) -> list[tuple[int, int]]:
        """Return the segments of a sparse file, in GNU tar's older format."""
        segments = _segments(header, _SPARSE_FIELDS)
        more = header[482]
        while more:
            block = self._block()
            segments += _segments(block, _MORE_SPARSE_FIELDS)
            _check_count(len(segments))
            more = block[504]
        return segments

    def _file(self, stored: int, extended: _Extended) -> bytes:
        """Return the data of a file, unpacked if pax fields mark it as sparse."""
        left = stored
        if extended.last("GNU.sparse.major") == "1":
            numbers, left = self._pax_map(stored)
            size = extended.last("GNU.sparse.realsize")
        elif (text := extended.last("GNU.sparse.map")) is not None:
            numbers = [_decimal(number) for number in text.split(",")] if text else []
            size = extended.last("GNU.sparse.size")
        elif extended.last("GNU.sparse.numblocks") is not None:
            keys = ("GNU.sparse.offset", "GNU.sparse.numbytes")
            numbers = [_decimal(value) for key, value in extended.fields if key in keys]
            size = extended.last("GNU.sparse.size")
        else:
            return self._data(stored)
        if len(numbers) % 2:
            raise _Damage("corrupted sparse map")
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        return self._unpacked(stored, left, pairs, _decimal(size or ""))

    def _pax_map(self, stored: int) -> tuple[list[int], int]:
        """Return the numbers at the start of a sparse file's data, and the bytes after them."""
        block, at, left = b"", 0, stored

        def number() -> int:
            nonlocal block, at, left
            # The map fills whole blocks. So another block is read only for a number that goes on
            # there, and never one of the data.
            if b"\n" not in block[at : at + _MOST_DIGITS + 1]:
                more = self._exactly(min(left, _BLOCK))
                block, at, left = block[at:] + more, 0, left - len(more)
            digits, end, _ = block[at : at + _MOST_DIGITS + 1].partition(b"\n")
            at += len(digits) + 1
            return _decimal(_text(digits) if end else "")

        count = number()
        _check_count(count)
        return [number() for _ in range(2 * count)], left

    def _unpacked(
        self, stored: int, left: int, segments: list[tuple[int, int]], size: int
    ) -> bytes:
        """Read the data of a sparse file; return it with its holes.

        Args:
            stored: its bytes in the archive.
            left: how many of them were not read yet.
            segments: (offset, length) of the parts that are not holes.
            size: its bytes with the holes.
        """
        end = 0
        for offset, length in segments:
            if offset < end:
                raise _Damage("corrupted sparse map")
            end = offset + length
        if end > size or sum(length for _, length in segments) != left:
            raise _Damage("corrupted sparse map")
        # The holes cost nothing in the archive, so a few bytes of it may ask for any memory.
        self._check_size(size)
        whole = io.BytesIO()  # it returns its data without a copy
        try:
            for offset, length in segments:
                whole.seek(offset)
                for begin in range(0, length, _COPIED):
                    whole.write(self._exactly(min(length - begin, _COPIED)))
            if whole.seek(0, io.SEEK_END) < size:  # a hole at the end: `truncate` never extends
                whole.seek(size - 1)
                whole.write(b"\0")
            data = whole.getvalue()
        except (MemoryError, OverflowError):
            raise _Damage(f"a sparse file of {size} bytes, more than there is memory for") from None
        self._pad(stored)
        return data

    def _header(self) -> bytes | None:
        """Return the next header; ``None`` at the end mark."""
        block = self._block()
        if block == _ZEROS:
            self._begun = self._at - _BLOCK  # what is wrong with the end mark is reported there
            if self._block() != _ZEROS:
                raise self._lost("a single block of zeros")
            return None
        if not _is_header(block):
            raise self._lost("corrupted header")
        return block

    def _block(self) -> bytes:
        block = self._ahead or read_up_to(self._stream, _BLOCK)
        self._ahead = None
        if len(block) < _BLOCK:
            fault = "truncated header" if block else "truncated archive: no end mark"
            raise self._lost(fault)
        self._at += _BLOCK
        return block

    def _header_data(self, header: bytes) -> bytes:
        size = _size(header)
        if size > _MOST_HEADER_BYTES:
            raise _Damage(f"corrupted header: {_abbreviated(size)} bytes of names and numbers")
        return self._data(size)

    def _data(self, size: int) -> bytes:
        self._check_size(size)
        data = self._exactly(size)
        self._pad(size)
        return data

    def _check_size(self, size: int) -> None:
        if self._most is not None and size > self._most:
            raise _Damage(
                exceeds(f"a file of {_abbreviated(size)} bytes", "max_record_bytes", self._most)
            )

    def _skip(self, size: int) -> None:
        """Read past the data after a header."""
        left = size
        while left:
            left -= len(self._exactly(min(left, _COPIED)))
        self._pad(size)

    def _exactly(self, size: int) -> bytes:
        data = read_up_to(self._stream, size)
        if len(data) < size:
            raise self._lost("truncated member")
        return data

    def _pad(self, size: int) -> None:
        """Read past the zeros that fill the last block of data of this size."""
        padding = -size % _BLOCK
        self._exactly(padding)
        self._at += size + padding

    def _lost(self, fault: str) -> DataLossError:
        return DataLossError(path=self._path, offset=self._begun, fault=fault)


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _size(header: bytes) -> int:
    return _number(header[124:136])


def _is_header(block: bytes) -> bool:
    """Return whether the checksum is right. Old programs sum the bytes as signed."""
    try:
        stated = _number(block[_CHECKSUM])
    except _Damage:
        return False
    others = block[: _CHECKSUM.start] + b" " * 8 + block[_CHECKSUM.stop :]
    checksum = sum(others)
    return stated == checksum or stated == checksum - 256 * sum(byte > 127 for byte in others)


def _number(field: bytes) -> int:
    """Return a number in a header: octal, or binary as in GNU's extension."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip()
    if digits.strip(b"01234567"):
        raise _Damage(f"corrupted header: {digits!r} is not a number")
    return int(digits or b"0", 8)


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise _Damage(f"corrupted header: {_abbreviated(text)!r} is not a number")
    return int(text)


def _abbreviated(value: object) -> str:
    """Return a text, or a number, for a message: a damaged header may have one of any length."""
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _check_count(segments: int) -> None:
    if segments > _MOST_SEGMENTS:
        raise _Damage(f"corrupted sparse map: {_abbreviated(segments)} segments")


def _pax_fields(data: bytes) -> tuple[tuple[str, str], ...]:
    """Return the fields of an extended pax header, each with its length before it."""
    fields = []
    at = 0
    while at < len(data):
        digits, space, _ = data[at : at + 21].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        key, equals, value = data[at + len(digits) + 1 : at + length].partition(b"=")
        if not equals or value[-1:] != b"\n" or at + length > len(data):
            raise _Damage("corrupted header: invalid pax field")
        fields.append((_text(key), _text(value[:-1])))
        at += length
    return tuple(fields)


def _check_global(fields: tuple[tuple[str, str], ...]) -> None:
    """Refuse global headers that would change the names, sizes or data of all later members."""
    for key, value in fields:
        if key in ("path", "size") or key.startswith("GNU.sparse."):
            raise _Damage(f"a global header sets {key}={_abbreviated(value)!r} for all members")


def _segments(block: bytes, starts: range) -> list[tuple[int, int]]:
    """Return (offset, length) of the segments that GNU tar's older sparse format lists."""
    fields = [(block[at : at + 12], block[at + 12 : at + 24]) for at in starts]
    return [(_number(offset), _number(length)) for offset, length in fields if any(length + offset)]


_log: Final = logging.getLogger("aioqueue")

_SAMPLE_BLOCK: Final = 2**16
_MOST_FILES: Final = 2**16
"""The number of files in a sample, if its size has a limit. Empty files have no size, but names."""
_AHEAD: Final = 64
_NO_SAMPLES: Final = re.compile(
    r"(\./)*__[^/]*__(/|$)|(.*/)?(PaxHeaders(\.\d+)?|__MACOSX)/|(.*/)?(\.[^/]*|[^/.]*)$", re.DOTALL
)
"""Members that belong to no sample: ``__meta__`` and the like, as in WebDataset; pax headers that
old programs extracted as files; macOS's companion files; hidden files; and files without an
extension."""


@overload
def read_tar(
    paths: Paths,
    *,
    grouped: Literal[True] = True,
    compression: str | None = "infer",
    max_record_bytes: int | None = MAX_RECORD_BYTES,
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[dict[str, Any]]: ...
@overload
def read_tar(
    paths: Paths,
    *,
    grouped: Literal[False],
    compression: str | None = "infer",
    max_record_bytes: int | None = MAX_RECORD_BYTES,
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[tuple[str, bytes]]: ...
def read_tar(
    paths: Paths,
    *,
    grouped: bool = True,
    compression: str | None = "infer",
    max_record_bytes: int | None = MAX_RECORD_BYTES,
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[Any]:
    """Read the samples in tar archives, which are shards in the layout of WebDataset.

    Consecutive files whose names agree up to the first dot of the last part form one sample:
    ``cats/7.jpg`` and ``cats/7.seg.png`` make ``{"__key__": "cats/7", "__url__": path, "jpg":
    bytes, "seg.png": bytes}``. The case of letters is kept. Keys are ``path:cats/7``.

    As in WebDataset, members that belong to no sample are left out, and do not split one: names
    without a dot or with one at the start (``LICENSE``, ``._7.jpg``), names such as ``__meta__``
    and everything below them, and everything below ``PaxHeaders`` or ``__MACOSX``. The log says so
    once for each reader. With ``grouped=False`` you get all members.

    Long names, large files and sparse files work, in POSIX (ustar, pax) and GNU archives.
    Directories are left out. Several archives may follow each other in one file, as ``cat`` makes
    it.

    Args:
        paths: one path or URL, a source of paths such as `files`, or any iterable of paths.
        grouped: whether files form samples. If not, each file is a record (name, data), with the
            key ``path:name``.
        compression: ``"infer"`` (from the suffix: .gz or .tgz, .bz2 or .tbz2, .xz or .txz, .zst or
            .tzst), ``None``, or ``"gzip"``, ``"bz2"``, ``"xz"``, ``"zstd"`` or ``"zlib"``.
        max_record_bytes: the largest sample, or file, in bytes: 256 MiB by default. A sparse file
            counts with its holes, which the archive does not store. ``None`` for no limit.
        storage_options: the options of fsspec for a URL's file system, such as credentials.
        seed: the seed of the records' generators, and of the order of paths that have no seed;
            ``None`` takes the seed of a source of paths, or fresh entropy.
        on_error: as for `read_lines`.
        quarantine: as for `read_lines`.

    Returns:
        A reader of dicts, or of pairs. Iterating over it raises `DataLossError` if an archive is
        damaged or ends too early, if a record has more than ``max_record_bytes``, if a sample has
        two files with one extension, and at links and devices, whose data is not in the archive. It
        raises `OSError` if a file cannot be read. Tar has checksums for headers only: to detect
        damage within the files, compress the archive.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """
    most = checked_limit(max_record_bytes, "max_record_bytes")
    return TarFormat(checked_flag(grouped, "grouped"), most).reader(
        paths,
        compression=compression,
        storage_options=storage_options,
        seed=seed,
        on_error=on_error,
        quarantine=quarantine,
    )


class TarFormat(FileFormat[Any]):
    """Tar archives. A mark is the offset of a member.

    Args:
        grouped: whether members form samples.
        most: the largest sample, or file, in bytes; ``None`` for no limit.
    """

    function = "read_tar"
    extra: ClassVar[str | None] = None
    suffix: ClassVar[str | None] = ".tar"
    key: ClassVar[str | None] = "member"
    page = "howto/records.md"

    ahead = _AHEAD

    def __init__(self, grouped: bool, most: int | None) -> None:
        self._grouped = grouped
        self._most = most
        self._records_of = _SampleAssembler(most).of if grouped else _files

    def options(self) -> dict[str, Any]:
        return {"grouped": self._grouped}

    def limits(self) -> dict[str, Any]:
        return {"max_record_bytes": self._most}

    def cut(self, stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[Any]]:
        return _runs(self._records_of(members(stream, path, mark or 0, self._most), path))


def sample_and_extension(name: str) -> tuple[str, str] | None:
    """Return the key of the sample that a member belongs to, and its extension there; ``None`` if
    it belongs to no sample."""
    if _NO_SAMPLES.match(name):
        return None
    folder, slash, last = name.rpartition("/")
    stem, _, extension = last.partition(".")
    return f"{folder}{slash}{stem}", extension


class _SampleField(NamedTuple):
    key: str
    value: Any
    size: int
    offset: int


def _files(found: Iterator[Member | None], path: str) -> Iterator[_SampleField]:
    for member in found:
        if member is not None:
            name, data, offset = member
            yield _SampleField(name, (name, data), len(data), offset)


class _SampleAssembler:
    def __init__(self, most: int | None) -> None:
        self._most = most
        self._has_warned = False

    def of(self, found: Iterator[Member | None], path: str) -> Iterator[_SampleField]:
        """Yield the samples of an archive, except for one that damage may have cut short."""
        piece: _SampleField | None = None
        for member in found:
            if member is None:  # the end of the archive completes its last sample
                if piece is not None:
                    yield piece
                piece = None
                continue
            name, data, offset = member
            parts = sample_and_extension(name)
            if parts is None:
                self._leave_out(name, path)
                continue
            key, extension = parts
            if piece is None or piece.key != key:
                if piece is not None:
                    yield piece
                piece = _SampleField(key, {"__key__": key, "__url__": path}, 0, offset)
            if extension in piece.value:
                raise DataLossError(
                    f"{path}: sample {key!r} has {extension!r} twice: the second one is {name!r},"
                    f" at {offset}",
                    path=path,
                    offset=offset,
                    fault="duplicate extension",
                )
            if self._most is not None and len(piece.value) > _MOST_FILES:
                fault = (
                    f"sample {key!r} has more than {_MOST_FILES} files (pass max_record_bytes=None"
                    " if you trust the file)"
                )
                raise DataLossError(path=path, offset=piece.offset, fault=fault)
            piece.value[extension] = data
            piece = piece._replace(size=piece.size + len(data))
            if self._most is not None and piece.size > self._most:
                fault = exceeds(f"sample {key!r}", "max_record_bytes", self._most)
                raise DataLossError(path=path, offset=piece.offset, fault=fault)

    def _leave_out(self, name: str, path: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "read_tar leaves out members that belong to no sample, such as %r in %s;"
                " to read them, pass grouped=False",
                name,
                path,
            )


def _runs(pieces: Iterator[_SampleField]) -> Iterator[Records[Any]]:
    """Yield about a block of records at a time. Records before damage are sound."""
    run: list[_SampleField] = []
    size = 0
    try:
        for piece in pieces:
            run.append(piece)
            size += piece.size + _BLOCK  # empty files take memory, too
            if size >= _SAMPLE_BLOCK:
                yield _records(run)
                run, size = [], 0
    except Exception:
        if run:
            yield _records(run)
        raise
    if run:
        yield _records(run)


def _records(run: list[_SampleField]) -> Records[Any]:
    return Records([piece.key for piece in run], [piece.value for piece in run], run[0].offset)
