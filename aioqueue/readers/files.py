"""Files: `files` finds them, and the functions here open local files and URLs, compressed or not.

A path is local unless it contains ``://``. Otherwise it is a URL, and fsspec, an extra, opens it.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import io
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any, Final, TypeAlias

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.arguments import checked_count
from aioqueue.base.display_text import without_secrets
from aioqueue.base.extras import required
from aioqueue.base.json_files import MANIFEST
from aioqueue.errors import add_note
from aioqueue.items.positions import digest_of, misplaced, relative
from aioqueue.readers.braces import names_of
from aioqueue.readers.compression import checked_compression, compressed, decompressed, is_damage
from aioqueue.sources.base import Determined
from aioqueue.sources.kinds.mixture import Mixture
from aioqueue.sources.kinds.sequences import Sequential, Shard
from aioqueue.sources.kinds.source import Source

FilePath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
StorageOptions: TypeAlias = Mapping[str, Any] | None

MAX_LINE_BYTES: Final = 2**26
MAX_RECORD_BYTES: Final = 2**28
"""The largest line and record that readers accept by default.

A few kilobytes of a compressed file, or of a sparse one in an archive, can stand for gigabytes. So
a reader that holds a whole record counts its bytes while it reads, and gives up at this limit.
"""

_BUFFER: Final = 2**18
_LARGEST_READ: Final = 2**24
_PORTION: Final = 2**20
_MOST_SIZES: Final = 1000
_NOWHERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_LOCAL: Final = {"file", "local"}
"""fsspec's name for the local file system."""


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
    """Make a source of the paths of all files that a pattern matches.

    The call searches once, and sorts the paths by their bytes, whatever the locale. A local file
    that several patterns match comes once, however they spell its path. So does a file with
    symbolic links that match as well: the first pattern decides the spelling. (Hard links count as
    files of their own, because some stores link equal contents. So do links to a file that no
    pattern matches.) Directories are left out, and so are hidden files unless the pattern has the
    dot. The lists of files that `Pipeline.write` and caches keep, ``_*.aioqueue.json``, count as
    hidden: only a pattern that begins with the underscore matches them. Everything else that
    matches is in the source. A match that cannot be reached is an error.

    Args:
        pattern: a glob, or several: ``*``, ``?``, ``[...]``, and ``**`` for any number of
            directories. Each matches local paths, or is a URL that fsspec can list
            (``s3://bucket/*.csv``). ``{000..127}`` and ``{train,valid}`` stand for several
            patterns, and each must match. If a file with these very brackets or braces in its
            name exists, the pattern means that file.
        epochs: as for `items`; so are the rest.
        shuffle: whether to shuffle the files each epoch.
        seed: the seed of the order and of the items' generators.
        shard: (index, count) of the shard to yield.
        drop_remainder: leave out items so that all shards have one length.
        allow_empty: whether to accept that no file matches.
        storage_options: the options of fsspec for a URL's file system, such as credentials.
        name: the name in messages and in the names of workers.

    Returns:
        A source of paths, as strings.

    Raises:
        FileNotFoundError: no file matches; or a broken link matches, or is in the place of a
            directory to search.
        PermissionError: a directory to search cannot be read.
        InvalidArgumentError: any argument is not as described.
        ModuleNotFoundError: the pattern is a URL, and fsspec is not installed.
    """
    patterns: list[Any] = (
        list(pattern)
        if isinstance(pattern, Iterable) and not isinstance(pattern, str | bytes | os.PathLike)
        else [pattern]
    )
    found: list[str] = []
    for one in (name for given in patterns for name in names_of(given, "pattern")):
        if not isinstance(one, str | os.PathLike):
            raise InvalidArgumentError(f"pattern: got {one!r}; expected a string, or several")
        matches = _matches(os.fspath(one), storage_options)
        if not matches and not allow_empty:
            why = f"no file matches the pattern{_likely_cause(os.fspath(one))}"
            raise FileNotFoundError(errno.ENOENT, why, without_secrets(os.fspath(one)))
        found += matches
    if not patterns and not allow_empty:
        raise InvalidArgumentError(f"pattern: got {pattern!r}; expected at least one")
    return Files(
        sorted(_different(found), key=os.fsencode),
        name or without_secrets(f"files({', '.join(repr(os.fspath(one)) for one in patterns)})"),
        epochs=epochs,
        shuffle=shuffle,
        seed=seed,
        shard=shard,
        drop_remainder=drop_remainder,
    )


class Files(Sequential[Any]):
    """A source of paths, which rejects positions if the files have other names."""

    _functions = ("files",)

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

    def _compare_items(self) -> dict[str, str]:
        return {"names": digest_of(_relative(paths_of(self)))}

    def _determined(self) -> Determined:
        return Determined()  # the names may be those of a folder that was moved


def paths_of(source: Source[Any]) -> list[Any]:
    """Return the paths that a source consists of, as far as they are known."""
    if isinstance(source, Sequential):
        return [source._sequence[number] for number in range(len(source._sequence))]
    if isinstance(source, Mixture):
        return [path for part in source._sources for path in paths_of(part)]
    inner = getattr(source, "_source", None)  # of a repeated source, of one epoch, and the like
    return paths_of(inner) if isinstance(inner, Source) else []


def listing_of(paths: Sequence[Any], storage_options: StorageOptions) -> dict[str, Any]:
    """Return the identity of a set of files: their number, and digests of names and sizes.

    Names are relative to the folder that all files share, so you may move it. Above 1000 files,
    only 1000 are asked for their sizes, evenly spread, so that it is fast over a network too.

    Args:
        paths: the paths of the files.
        storage_options: the options of fsspec.

    Returns:
        Plain JSON types.

    Raises:
        OSError: the size of an existing file cannot be determined.
    """
    asked = paths[:: max(1, -(-len(paths) // _MOST_SIZES))]
    return {
        "count": len(paths),
        "names": digest_of(_relative(paths)),
        "sizes": digest_of([_size_of(path_name(path), storage_options) for path in asked]),
    }


def times_of(paths: Sequence[Any], storage_options: StorageOptions) -> str:
    """Return a digest of the sizes of files, and of when they were changed.

    Every local file counts; of files elsewhere 1000 are asked for, evenly spread.

    Raises:
        OSError: an existing file cannot be looked at.
    """
    names = [path_name(path) for path in paths]
    remote = [name for name in names if _is_url(name)]
    asked = set(remote[:: max(1, -(-len(remote) // _MOST_SIZES))])
    return digest_of(
        [_changed(name, storage_options) for name in names if not _is_url(name) or name in asked]
    )


def _changed(path: str, storage_options: StorageOptions) -> list[Any] | None:
    try:
        if not _is_url(path):
            status = os.stat(path)
            return [status.st_size, status.st_mtime_ns]
        system, inside = _fsspec().core.url_to_fs(path, **(storage_options or {}))
        details = system.info(inside)
    except FileNotFoundError:
        return None  # reading the file will raise the error
    names = ("size", "mtime", "LastModified", "last_modified", "updated", "ETag", "etag")
    return [str(details[name]) for name in names if details.get(name) is not None]


def _relative(paths: Sequence[Any]) -> list[str]:
    return relative([path_name(path) for path in paths])


def _size_of(path: str, storage_options: StorageOptions) -> int | None:
    """Return a file's length in bytes; ``None`` if it has none, or does not exist."""
    try:
        if _is_url(path):
            system, inside = _fsspec().core.url_to_fs(path, **(storage_options or {}))
            size: int | None = system.size(inside)
            return size
        status = os.stat(path)
    except FileNotFoundError:
        return None  # reading the file will raise the error
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _matches(pattern: str, storage_options: StorageOptions) -> list[str]:
    if not _is_url(pattern):
        return _local_matches(pattern)
    system, path = _fsspec().core.url_to_fs(pattern, **(storage_options or {}))
    _, *rest = pattern.split("::")  # the container of the file system: the archive of a zip://
    if _is_local(system) and not rest:
        found = _local_matches(path)
    elif "[" in path and system.isfile(path):
        found = [path]
    else:
        details = system.glob(path, detail=True)
        name = path.rpartition("/")[2]
        found = [
            match
            for match, one in details.items()
            if one["type"] != "directory" and (name.startswith("_") or not match.endswith(MANIFEST))
        ]
    return ["::".join([system.unstrip_protocol(match), *rest]) for match in found]


def _is_local(system: Any) -> bool:
    protocol = system.protocol
    return bool(_LOCAL & ({protocol} if isinstance(protocol, str) else set(protocol)))


def _local_matches(pattern: str) -> list[str]:
    """Return all that a pattern matches, except directories.

    `glob.glob` would not do: it hides what it cannot reach, and follows cyclic links until the
    system's limit.
    """
    return [path for path in _matching(pattern) if not _is_folder(path)]


def _matching(pattern: str, *, only_folders: bool = False) -> Iterator[str]:
    """Yield the paths that match; links come after their possible targets.

    Args:
        pattern: a pattern of local paths.
        only_folders: whether to leave out files.

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
            for entry in _entries(folder, hidden=name.startswith((".", "_"))):
                if matches(os.path.normcase(entry.name)):
                    yield os.path.join(folder, entry.name)
        elif name and _is_there(path):
            yield path


def _below(folder: str, seen: set[Any], *, only_folders: bool) -> Iterator[str]:
    """Yield a folder and everything in it, at any depth; each folder once, despite links.

    Args:
        folder: the folder to begin with.
        seen: the folders that were visited.
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
    """Return the entries of a folder, by name, links last."""
    with os.scandir(folder or os.curdir) as entries:
        found = [entry for entry in entries if hidden or not _is_hidden(entry.name)]
    return sorted(found, key=lambda entry: (entry.is_symlink(), os.fsencode(entry.name)))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and name.endswith(MANIFEST))


def _is_there(path: str) -> bool:
    """Return whether a path exists, even as a broken link."""
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno not in _NOWHERE:
            raise
        return False
    return True


def _is_folder(path: str) -> bool:
    """Return whether a path is a folder; the empty path is one.

    Raises:
        FileNotFoundError: the path is a broken link.
    """
    try:
        return not path or stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        if error.errno not in _NOWHERE:
            raise
        if not os.path.islink(path):
            return False
        why = (
            f"it is a link to {os.readlink(path)!r}, which does not exist, so its files would be"
            " left out (remove the link, or choose a pattern that does not match it)"
        )
        raise FileNotFoundError(errno.ENOENT, why, path) from error


def _different(paths: Iterable[str]) -> list[str]:
    """Leave out other spellings of one file, and links to a file among the paths.

    A file is identified by the real path of its folder and its name there. Comparing inodes would
    leave out distinct files that a store has linked because their contents are equal.
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
    """Yield the targets of a link, and of the links that it leads to."""
    while os.path.islink(place):
        folder, name = os.path.split(os.path.join(os.path.dirname(place), os.readlink(place)))
        place = os.path.join(os.path.realpath(folder), name)
        yield place


def _local_path(path: str) -> str | None:
    """Return the local path of a path or URL; ``None`` if it is not local."""
    if not _is_url(path):
        return path
    if "::" in path or path.partition("://")[0] not in _LOCAL:
        return None
    return str(_fsspec().core.url_to_fs(path)[1])


def _likely_cause(pattern: str) -> str:
    """Return why no local file may match: often the user expects the expansion of a shell."""
    if _is_url(pattern):
        return ""
    if pattern.startswith("~"):
        return f", in which ~ is not expanded: try {os.path.expanduser(pattern)!r}"
    if os.path.isdir(pattern):
        return f", since it is a folder: {os.path.join(pattern, '*')!r} matches the files in it"
    if "[" in pattern:
        return (
            ", in which [...] stands for one character: use glob.escape(...) for a folder or name"
            " that has brackets"
        )
    return ""


def is_path(value: object) -> bool:
    return isinstance(value, str | bytes | os.PathLike)


def path_name(path: Any) -> str:
    """Check a path; return it as a string.

    Raises:
        InvalidArgumentError: it is not a path.
    """
    if not is_path(path):
        raise InvalidArgumentError(f"path: got {path!r}; expected a string, bytes or os.PathLike")
    return os.fsdecode(path)


@contextmanager
def open_for_reading(
    path: str, compression: str | None, storage_options: StorageOptions = None
) -> Iterator[IO[bytes]]:
    """Open a file or a URL for reading, decompressed. Errors within the block name the path.

    Args:
        path: the file's path.
        compression: ``"infer"`` (from the suffix), ``None``, or the kind of compression.
        storage_options: the options of fsspec.

    Raises:
        DataLossError: the compressed data is damaged.
        OSError: the file cannot be opened or read. The path is its ``filename``, or in a note.
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
        _hide_secrets(error)
        if error.filename is None:
            add_note(error, f"while reading {path}")
        if isinstance(error, FileNotFoundError | IsADirectoryError):
            advice = _advice_for(path)
            if advice:
                add_note(error, advice)
        raise


def _hide_secrets(error: BaseException) -> None:
    """Hide what signs a URL in the messages of an exception and of those that led to it.

    fsspec names the whole URL where a file is missing.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.args = tuple(
            without_secrets(text) if isinstance(text, str) else text for text in one.args
        )
        if isinstance(one, OSError):  # its message is made of these
            if isinstance(one.strerror, str):
                one.strerror = without_secrets(one.strerror)
            if isinstance(one.filename, str):
                one.filename = without_secrets(one.filename)
        left += [one.__cause__, one.__context__]


def _advice_for(path: str) -> str:
    """Return what to write instead of a path that names no file; empty if that is unknown."""
    if os.path.isdir(path):
        names = sorted(name for name in os.listdir(path) if name[0] not in "._")
        pattern = f"*{os.path.splitext(names[0])[1] if names else ''}"
        return f"readers take files, not folders: write files({os.path.join(path, pattern)!r})"
    if glob.has_magic(path):
        return f"readers take paths, not patterns: write files({path!r})"
    if path.startswith("pipe:"):
        return "readers take paths and URLs, not commands: write the URL, such as s3://..."
    if "::" in path:
        return "readers take a list of paths: write [path, path], or a range as in {000..127}"
    return ""


def create(
    path: str, compression: str | None, storage_options: StorageOptions = None
) -> tuple[IO[bytes], ExitStack]:
    """Create a file, or empty it, for writing.

    Returns:
        The stream to write to, and the stack that closes everything.
    """
    kind = checked_compression(compression, path)
    closing = ExitStack()
    with closing:
        stream = closing.enter_context(_open(path, "wb", storage_options))
        if kind is not None:
            stream = closing.enter_context(compressed(stream, kind))
        return stream, closing.pop_all()


def checked_limit(value: Any, name: str) -> int | None:
    """Return the largest number of bytes to accept; ``None`` for any.

    Raises:
        InvalidArgumentError: it is neither ``None`` nor an int of at least 1.
    """
    return None if value is None else checked_count(value, name, least=1)


def exceeds(what: str, option: str, limit: int) -> str:
    """Return the fault of a line or record that is too large."""
    return f"{what} exceeds {option}={limit} (pass a larger one, or None, if you trust the file)"


def read_up_to(stream: IO[bytes], size: int) -> bytes:
    """Read this many bytes, or fewer if the file ends.

    A damaged file may claim any size, so this never allocates much more memory than there are
    bytes, and it holds none of them twice.
    """
    data = stream.read(min(size, _PORTION))
    if len(data) == size or not data:
        return data
    whole = io.BytesIO()  # it returns its data without a copy
    left = size
    while data:
        whole.write(data)
        left -= len(data)
        data = stream.read(min(left, _PORTION)) if left else b""
    return whole.getvalue()


def forward(stream: IO[bytes], offset: int, path: str) -> None:
    """Move a stream forward to an offset, by a seek or, if it cannot seek, by reading.

    Args:
        stream: the stream, at its start, or anywhere before the offset if it can seek.
        offset: the offset in bytes from the start (decompressed).
        path: the file's path, for errors.

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
        raise misplaced(f"offset {offset} in {path}", f"at most {size}, the length of the file")


def _open(path: str, mode: str, storage_options: StorageOptions) -> Any:
    if _is_url(path):
        return _fsspec().open(path, mode, **(storage_options or {}))
    return open(path, mode, buffering=_BUFFER)


def _is_url(path: str) -> bool:
    return "://" in path


def _fsspec() -> Any:
    return required("fsspec", "files", "opening a URL")
