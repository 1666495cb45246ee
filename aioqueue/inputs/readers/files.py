"""Files: finding them, and opening them wherever they are and however they are compressed.

A path is local unless it has a ``://`` in it. Then it is a URL, and fsspec, an extra, opens it.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any, Final, TypeAlias

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.coordination.classify import add_note
from aioqueue.inputs.core.positions import digest_of, misplaced, relative
from aioqueue.inputs.readers.compression import (
    checked_compression,
    compressed,
    decompressed,
    is_damage,
    required,
)
from aioqueue.inputs.sources.mixture import Mixture
from aioqueue.inputs.sources.sequences import Sequential, Shard
from aioqueue.inputs.sources.source import Resumed, Source

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
_NOWHERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_LOCAL: Final = {"file", "local"}
"""What fsspec calls the file system of this machine."""


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

    They are looked for once, here, and sorted by their bytes, whatever the locale. A local file
    that several patterns match comes once, however they spell its path, and so does a file beside
    links to it: the first pattern decides the spelling. (Hard links, and links to a file that no
    pattern matches, are files of their own: stores that keep equal contents once make such.)
    Directories are left out, and hidden files unless the pattern has the dot. All else that matches
    is given out; what cannot be reached is an error.

    Args:
        pattern: a glob: ``*``, ``?``, ``[...]`` and, for any number of directories, ``**``; or
            several; each of local paths, or a URL that fsspec can list (``s3://bucket/*.csv``).
            Where a name with brackets exists as it is written, that one is meant.
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
        FileNotFoundError: nothing matches; or a link that leads nowhere does, or stands where a
            directory has to be looked into.
        PermissionError: such a directory cannot be read.
        InvalidArgumentError: an argument is wrong.
        ModuleNotFoundError: it is a URL, and fsspec is not installed.
    """
    patterns: list[Any] = (
        list(pattern)
        if isinstance(pattern, Iterable) and not isinstance(pattern, str | bytes | os.PathLike)
        else [pattern]
    )
    found: list[str] = []
    for one in patterns:
        if not isinstance(one, str | os.PathLike):
            raise InvalidArgumentError(f"pattern: got {one!r}; expected a string, or several")
        matches = _matches(os.fspath(one), storage_options)
        if not matches and not allow_empty:
            why = f"no file matches the pattern{_likely_cause(os.fspath(one))}"
            raise FileNotFoundError(errno.ENOENT, why, os.fspath(one))
        found += matches
    if not patterns and not allow_empty:
        raise InvalidArgumentError(f"pattern: got {pattern!r}; expected at least one")
    return Files(
        sorted(_different(found), key=os.fsencode),
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
        return path_name(self._sequence[index])

    def _telling(self) -> dict[str, str]:
        return {"names": digest_of(_relative(paths_of(self)))}


def paths_of(source: Source[Any]) -> list[Any]:
    """The paths that a source is made of, as far as that can be known."""
    if isinstance(source, Sequential):
        return [source._sequence[number] for number in range(len(source._sequence))]
    if isinstance(source, Mixture):
        return [path for part in source._sources for path in paths_of(part)]
    return paths_of(source._source) if isinstance(source, Resumed) else []


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
        return _local_matches(pattern)
    system, path = _fsspec().core.url_to_fs(pattern, **(storage_options or {}))
    _, *rest = pattern.split("::")  # what the file system is in: the archive of a zip://
    if _is_local(system) and not rest:
        found = _local_matches(path)
    elif "[" in path and system.isfile(path):
        found = [path]
    else:
        details = system.glob(path, detail=True)
        found = [match for match, one in details.items() if one["type"] != "directory"]
    return ["::".join([system.unstrip_protocol(match), *rest]) for match in found]


def _is_local(system: Any) -> bool:
    protocol = system.protocol
    return bool(_LOCAL & ({protocol} if isinstance(protocol, str) else set(protocol)))


def _local_matches(pattern: str) -> list[str]:
    """All that a pattern matches but directories.

    This is no `glob.glob`, which keeps silent about what it cannot reach, and goes round in circles
    of links until the system has had enough.
    """
    return [path for path in _matching(pattern) if not _is_folder(path)]


def _matching(pattern: str, *, only_folders: bool = False) -> Iterator[str]:
    """The paths that match, links behind what they may be links to.

    Args:
        pattern: of local paths.
        only_folders: whether files are of no use.

    Raises:
        OSError: something cannot be reached.
    """
    folder, name = os.path.split(pattern)
    if not glob.has_magic(folder) or folder == pattern:
        folders: Iterable[str] = [folder]
    else:
        folders = _matching(folder, only_folders=True)
    seen: set[Any] = set()
    for folder in folders:
        if not _is_folder(folder):
            continue
        path = os.path.join(folder, name)
        if name == "**":
            yield from _below(folder, seen, only_folders=only_folders)
        elif glob.has_magic(name) and not ("[" in name and _is_there(path)):
            matches = re.compile(fnmatch.translate(os.path.normcase(name))).match
            for entry in _entries(folder, hidden=name.startswith(".")):
                if matches(os.path.normcase(entry.name)):
                    yield os.path.join(folder, entry.name)
        elif name and _is_there(path):
            yield path


def _below(folder: str, seen: set[Any], *, only_folders: bool) -> Iterator[str]:
    """A folder and all that is in it, at any depth; each folder once, however links lead to it.

    Args:
        folder: where to begin.
        seen: the folders that were looked into.
        only_folders: whether to leave out files.
    """
    pending = deque([folder])
    linked: deque[str] = deque()
    while pending or linked:
        folder = pending.popleft() if pending else linked.popleft()
        status = os.stat(folder or os.curdir)
        identity = (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(folder)
        if identity in seen:
            continue
        seen.add(identity)
        yield folder
        for entry in _entries(folder, hidden=False):
            path = os.path.join(folder, entry.name)
            if entry.is_symlink():
                is_folder = _is_folder(path)
                if is_folder:
                    linked.append(path)
            else:
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder:
                    pending.append(path)
            if not is_folder and not only_folders:
                yield path


def _entries(folder: str, *, hidden: bool) -> list[os.DirEntry[str]]:
    """What is in a folder, by name, links last."""
    with os.scandir(folder or os.curdir) as entries:
        found = [entry for entry in entries if hidden or not entry.name.startswith(".")]
    return sorted(found, key=lambda entry: (entry.is_symlink(), os.fsencode(entry.name)))


def _is_there(path: str) -> bool:
    """Whether there is something of that name, be it a link that leads nowhere."""
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno not in _NOWHERE:
            raise
        return False
    return True


def _is_folder(path: str) -> bool:
    """Whether a path is that of a folder, which the empty one is.

    Raises:
        FileNotFoundError: it is that of a link that leads nowhere.
    """
    try:
        return not path or stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        if error.errno not in _NOWHERE:
            raise
        if not os.path.islink(path):
            return False
        why = (
            f"it is a link to {os.readlink(path)!r}, which is not there: what it stands for would"
            " be left out (remove the link, or choose a pattern that does not meet it)"
        )
        raise FileNotFoundError(errno.ENOENT, why, path) from error


def _different(paths: Iterable[str]) -> list[str]:
    """The same paths without other spellings of one file, and without links to a file among them.

    A file is where it stands: the real path of its folder, and its name there. To compare inodes
    would leave out files that a store has found to be equal, which is no reason to.
    """
    folders: dict[str, str] = {}
    found: dict[str, str] = {}
    for path in paths:
        folder, name = os.path.split(_local_path(path) or "")
        if not name:
            found.setdefault(path, path)
            continue
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        found.setdefault(os.path.join(folders[folder], name), path)
    return [path for place, path in found.items() if found.keys().isdisjoint(_targets(place))]


def _targets(place: str) -> Iterator[str]:
    """What a link leads to, from one to the next."""
    while os.path.islink(place):
        folder, name = os.path.split(os.path.join(os.path.dirname(place), os.readlink(place)))
        place = os.path.join(os.path.realpath(folder), name)
        yield place


def _local_path(path: str) -> str | None:
    """The path on this machine that a path or a URL is; ``None`` if it is elsewhere."""
    if not _is_url(path):
        return path
    if "::" in path or path.partition("://")[0] not in _LOCAL:
        return None
    return str(_fsspec().core.url_to_fs(path)[1])


def _likely_cause(pattern: str) -> str:
    """Why no local file may match a pattern: what a shell would have done, and nobody does here."""
    if _is_url(pattern):
        return ""
    if pattern.startswith("~"):
        return f", in which ~ is not expanded: {os.path.expanduser(pattern)!r} it may be"
    if os.path.isdir(pattern):
        return f", since it is a folder: {os.path.join(pattern, '*')!r} has the files in it"
    if "[" in pattern:
        return (
            ", in which [...] stands for one character: glob.escape(...) of a folder or a name says"
            " that brackets in it are meant as they are"
        )
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
