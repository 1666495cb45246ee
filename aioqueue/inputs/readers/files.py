"""Files: finding them, and opening them wherever they are and however they are compressed.

A path is local unless it has a ``://`` in it. Then it is a URL, and fsspec, an extra, opens it.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any, Final, TypeAlias

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.coordination.outcomes import add_note
from aioqueue.inputs.readers.compression import (
    checked_compression,
    compressed,
    decompressed,
    is_damage,
    required,
)
from aioqueue.inputs.sources.base import Resumed, Shard, Source
from aioqueue.inputs.sources.contents import relative
from aioqueue.inputs.sources.mixing import Mixture
from aioqueue.inputs.sources.positions import digest_of, misplaced
from aioqueue.inputs.sources.sequences import Sequential

__all__ = (
    "FilePath",
    "Files",
    "StorageOptions",
    "create",
    "files",
    "forward",
    "is_path",
    "listing_of",
    "open_for_reading",
    "path_name",
    "paths_of",
    "read_up_to",
)

FilePath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
StorageOptions: TypeAlias = Mapping[str, Any] | None

_BUFFER: Final = 2**18
_LARGEST_READ: Final = 2**24
_MOST_SIZES: Final = 1000


def files(
    pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard: Shard | None = None,
    *,
    drop_remainder: bool = False,
    allow_empty: bool = False,
    storage_options: StorageOptions = None,
    name: str | None = None,
) -> Sequential[str]:
    """The paths of the files that a pattern matches, epoch after epoch.

    They are looked for once, here, and sorted by their bytes, whatever the locale; a file that
    several patterns match comes once. Directories are left out, and hidden files unless the pattern
    has the dot.

    Args:
        pattern: a glob: ``*``, ``?``, ``[...]`` and, for any number of directories, ``**``; or
            several; each of local paths, or a URL that fsspec can list (``s3://bucket/*.csv``).
        epochs: as for `items`; so are the rest.
        shuffle: whether to shuffle the files each epoch.
        seed: for the order and the generators of the items.
        shard: (index, count) of the part to give out.
        drop_remainder: leave out what would make shards differ in length.
        allow_empty: whether it is fine if nothing matches.
        storage_options: what fsspec needs to know about a URL's file system: credentials, say.
        name: what messages and worker names call the source.

    Returns:
        A source of paths: strings.

    Raises:
        FileNotFoundError: nothing matches.
        InvalidArgumentError: an argument is wrong.
        ModuleNotFoundError: it is a URL, and fsspec is not installed.
    """
    patterns: list[Any] = (
        list(pattern)
        if isinstance(pattern, Iterable) and not isinstance(pattern, str | bytes | os.PathLike)
        else [pattern]
    )
    found: set[str] = set()
    for one in patterns:
        if not isinstance(one, str | os.PathLike):
            raise InvalidArgumentError(f"pattern: got {one!r}; expected a string, or several")
        matches = _matches(os.fspath(one), storage_options)
        if not matches and not allow_empty:
            why = f"no file matches the pattern{_likely_cause(os.fspath(one))}"
            raise FileNotFoundError(errno.ENOENT, why, os.fspath(one))
        found.update(matches)
    if not patterns and not allow_empty:
        raise InvalidArgumentError(f"pattern: got {pattern!r}; expected at least one")
    return Files(
        sorted(found, key=os.fsencode),
        name or f"files({', '.join(repr(os.fspath(one)) for one in patterns)})",
        epochs=epochs,
        shuffle=shuffle,
        seed=seed,
        shard=shard,
        drop_remainder=drop_remainder,
    )


class Files(Sequential[Any]):
    """A source of paths, whose positions are refused where the files have other names."""

    def __init__(
        self,
        paths: Sequence[Any],
        name: str,
        *,
        epochs: int | None = 1,
        shuffle: bool = False,
        seed: int | None = None,
        shard: Shard | None = None,
        drop_remainder: bool = False,
    ) -> None:
        super().__init__(
            paths,
            name,
            epochs=epochs,
            shuffle=shuffle,
            seed=seed,
            shard=shard,
            drop_remainder=drop_remainder,
        )

    def locate(self, index: int) -> str:
        super().locate(index)
        return path_name(self.sequence[index])

    def _telling(self) -> dict[str, str]:
        return {"names": digest_of(_relative(paths_of(self)))}


def paths_of(source: Source[Any]) -> list[Any]:
    """The paths that a source is made of, as far as that can be known."""
    if isinstance(source, Sequential):
        return [source.sequence[number] for number in range(len(source.sequence))]
    if isinstance(source, Mixture):
        return [path for part in source.sources for path in paths_of(part)]
    return paths_of(source.source) if isinstance(source, Resumed) else []


def listing_of(paths: Sequence[Any], storage_options: StorageOptions) -> dict[str, Any]:
    """What tells some files from others: how many, digests of their names and of their sizes.

    Names count from the folder that all files share, which may be moved. Of more than 1000 files,
    so many are asked for their sizes, evenly spread: it has to be quick over a network too.

    Args:
        paths: of the files.
        storage_options: for fsspec.

    Returns:
        Plain JSON types.

    Raises:
        OSError: a size cannot be found out, though the file is there.
    """
    asked = paths[:: max(1, -(-len(paths) // _MOST_SIZES))]
    return {
        "count": len(paths),
        "names": digest_of(_relative(paths)),
        "sizes": digest_of([_size_of(path_name(path), storage_options) for path in asked]),
    }


def _relative(paths: Sequence[Any]) -> list[str]:
    return relative([path_name(path) for path in paths])


def _size_of(path: str, storage_options: StorageOptions) -> int | None:
    """How long a file is, in bytes; ``None`` if it has no length, or is not there."""
    try:
        if _is_url(path):
            system, inside = _fsspec().core.url_to_fs(path, **(storage_options or {}))
            size: int | None = system.size(inside)
            return size
        status = os.stat(path)
    except FileNotFoundError:
        return None  # reading it will say so
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _matches(pattern: str, storage_options: StorageOptions) -> list[str]:
    if not _is_url(pattern):
        return [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    system, path = _fsspec().core.url_to_fs(pattern, **(storage_options or {}))
    _, *rest = pattern.split("::")  # what the file system is in: the archive of a zip://
    return [
        "::".join([system.unstrip_protocol(match), *rest])
        for match, details in system.glob(path, detail=True).items()
        if details["type"] == "file"
    ]


def _likely_cause(pattern: str) -> str:
    """Why no local file may match a pattern: what a shell would have done, and nobody does here."""
    if _is_url(pattern):
        return ""
    if pattern.startswith("~"):
        return f", in which ~ is not expanded: {os.path.expanduser(pattern)!r} it may be"
    if os.path.isdir(pattern):
        return f", since it is a folder: {os.path.join(pattern, '*')!r} has the files in it"
    return ""


def is_path(value: object) -> bool:
    """Whether a value is one path."""
    return isinstance(value, str | bytes | os.PathLike)


def path_name(path: Any) -> str:
    """Check a path; return it as a string.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not is_path(path):
        raise InvalidArgumentError(f"path: got {path!r}; expected a string, bytes or os.PathLike")
    return os.fsdecode(path)


@contextmanager
def open_for_reading(
    path: str, compression: str | None, storage_options: StorageOptions = None
) -> Iterator[IO[bytes]]:
    """Open a file or a URL, decompressed; what goes wrong within says where.

    Args:
        path: of the file.
        compression: ``"infer"`` (from the suffix), ``None``, or what it is compressed with.
        storage_options: for fsspec.

    Raises:
        DataLossError: the compressed data is damaged.
        OSError: the file cannot be opened or read; the path is its ``filename``, or in a note.
    """
    kind = checked_compression(compression, path)
    try:
        with _open(path, "rb", storage_options) as raw:
            if kind is None:
                yield raw
                return
            with decompressed(raw, kind) as stream:
                try:
                    yield stream
                except Exception as error:
                    if not is_damage(error):
                        raise
                    raise DataLossError(
                        path=path, offset=stream.tell(), fault=f"damaged {kind} data ({error})"
                    ) from error
    except OSError as error:
        if error.filename is None:
            add_note(error, f"while reading {path}")
        if isinstance(error, FileNotFoundError) and glob.has_magic(path):
            add_note(
                error, f"readers take paths and no patterns, as in read_lines(files({path!r}))"
            )
        raise


def create(
    path: str, compression: str | None, storage_options: StorageOptions = None
) -> tuple[IO[bytes], ExitStack]:
    """Make a file, or empty it, to write to.

    Returns:
        The stream to write to, and the stack that closes all there is to be closed.
    """
    kind = checked_compression(compression, path)
    closing = ExitStack()
    with closing:
        stream = closing.enter_context(_open(path, "wb", storage_options))
        if kind is not None:
            stream = closing.enter_context(compressed(stream, kind))
        return stream, closing.pop_all()


def read_up_to(stream: IO[bytes], size: int) -> bytes:
    """Read so many bytes, or fewer where the file ends.

    A damaged file may claim any size: no more memory is taken than there are bytes.
    """
    data = stream.read(min(size, _LARGEST_READ))
    if len(data) == size or not data:
        return data
    parts = [data]
    left = size - len(data)
    while left and (data := stream.read(min(left, _LARGEST_READ))):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


def forward(stream: IO[bytes], offset: int, path: str) -> None:
    """Go on to an offset: by a seek, or where the stream has none, by reading what comes before.

    Args:
        stream: which stands at its start, or anywhere before the offset if it can seek.
        offset: in bytes from the start (decompressed).
        path: what errors call the file.

    Raises:
        InvalidArgumentError: the file is shorter.
    """
    if stream.seekable():
        size = stream.seek(0, os.SEEK_END)
        stream.seek(offset)
    else:
        size = stream.tell()
        while size < offset and (data := stream.read(min(offset - size, _LARGEST_READ))):
            size += len(data)
    if size < offset:
        raise misplaced(f"offset {offset} in {path}", f"{size} at most, which is its length")


def _open(path: str, mode: str, storage_options: StorageOptions) -> Any:
    if _is_url(path):
        return _fsspec().open(path, mode, **(storage_options or {}))
    return open(path, mode, buffering=_BUFFER)


def _is_url(path: str) -> bool:
    return "://" in path


def _fsspec() -> Any:
    return required("fsspec", "files", "opening a URL")
