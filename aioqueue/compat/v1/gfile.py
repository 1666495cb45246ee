"""``tf.gfile`` and ``tf.io.gfile``: files right away; URLs need fsspec (the extra ``files``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.core.convert import as_bytes
from aioqueue.compat.v1.ops.building import invalid
from aioqueue.compat.v1.ops.files import (
    Local,
    file_errors,
    filesystem,
    glob_files,
    make_directories,
    path_text,
)

__all__ = (
    "Copy", "DeleteRecursively", "Exists", "FastGFile", "FileStatistics", "GFile", "Glob",
    "IsDirectory", "ListDirectory", "MakeDirs", "MkDir", "Open", "Remove", "Rename", "Stat", "Walk",
    "copy", "exists", "glob", "isdir", "listdir", "makedirs", "mkdir", "remove", "rename", "rmtree",
    "stat", "walk",
)  # fmt: skip

_MODES = ("r", "w", "a", "r+", "w+", "a+")


class GFile:
    """A file, opened when it is first read or written."""

    def __init__(self, name: Any, mode: str = "r") -> None:
        if mode.replace("b", "") not in _MODES:
            raise invalid(f"mode: got {mode!r}; expected one of {', '.join(_MODES)}, and b")
        self.name = name
        self.mode = mode
        self._file: Any = None

    def _opened(self, to: str) -> Any:
        plain = self.mode.replace("b", "")
        allowed = plain[-1] == "+" or (plain == "r") == (to == "read")
        if not allowed:
            raise errors.PermissionDeniedError(
                None, None, f"File isn't open for {'reading' if to == 'read' else 'writing'}"
            )
        if self._file is None:
            system, place = filesystem(self.name)
            with file_errors(self.name):
                self._file = system.open(place, f"{plain[0]}b{plain[1:]}")
        return self._file

    def _read(self, method: str, *arguments: int) -> Any:
        file = self._opened("read")
        with file_errors(self.name):
            data: bytes = getattr(file, method)(*arguments)
        return data if "b" in self.mode else data.decode()

    def size(self) -> int:
        """Bytes in the file."""
        return Stat(self.name).length

    def read(self, n: int = -1) -> Any:
        """The next `n` bytes, or all that are left."""
        return self._read("read", n)

    def readline(self) -> Any:
        """The next line with its end; empty at the end of the file."""
        return self._read("readline")

    def readlines(self) -> list[Any]:
        """The lines that are left."""
        return list(self)

    def write(self, file_content: str | bytes) -> None:
        """Write text, in UTF-8, or bytes."""
        file = self._opened("write")
        with file_errors(self.name):
            file.write(as_bytes(file_content))

    def seek(self, offset: int | None = None, whence: int = 0, position: int | None = None) -> None:
        """Go to a byte: from the beginning (`whence` 0), from here (1), from the end (2)."""
        place = position if offset is None else offset
        if place is None:
            raise TypeError("seek(): offset argument required")
        self._opened("read").seek(place, whence)

    def tell(self) -> int:
        """The byte that comes next."""
        return 0 if self._file is None else int(self._file.tell())

    def flush(self) -> None:
        """Hand on to the system what has been written."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close the file, if it was opened."""
        if self._file is not None:
            with file_errors(self.name):
                self._file.close()
            self._file = None

    def __del__(self) -> None:
        # Scripts write `tf.gfile.GFile(path).read()`, and TensorFlow closes such a file in silence.
        file = getattr(self, "_file", None)
        if file is not None:
            with suppress(Exception):
                file.close()

    def seekable(self) -> bool:
        """Whether `seek` works: it does."""
        return True

    def __enter__(self) -> GFile:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        while line := self.readline():
            yield line

    def __next__(self) -> Any:
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def __repr__(self) -> str:
        return f"GFile({self.name!r}, mode={self.mode!r})"


Open = GFile
FastGFile = GFile


class FileStatistics(NamedTuple):
    """What `Stat` knows of a file."""

    length: int
    mtime_nsec: int
    is_directory: bool


def Exists(filename: Any) -> bool:  # noqa: N802
    """Whether there is a file or directory of that name."""
    system, place = filesystem(filename)
    return bool(system.exists(place))


def IsDirectory(dirname: Any) -> bool:  # noqa: N802
    """Whether there is a directory of that name."""
    system, place = filesystem(dirname)
    return bool(system.isdir(place))


def Glob(filename: Any) -> list[str]:  # noqa: N802
    """The paths that match a pattern, or a list of them, in TensorFlow's order and spelling."""
    patterns = filename if isinstance(filename, list | tuple) else [filename]
    return [path for pattern in patterns for path in glob_files(pattern)]


def ListDirectory(dirname: Any) -> list[str]:  # noqa: N802
    """The names of what is in a directory."""
    if not IsDirectory(dirname):
        message = f"Could not find directory {path_text(dirname)}"
        raise errors.NotFoundError(None, None, message)
    system, place = filesystem(dirname)
    with file_errors(dirname):
        return sorted(os.path.basename(path.rstrip("/")) for path in system.ls(place, detail=False))


def MkDir(dirname: Any) -> None:  # noqa: N802
    """Make a directory; one that is there already is left as it is."""
    system, place = filesystem(dirname)
    try:
        with file_errors(dirname):
            system.mkdir(place, create_parents=False)
    except errors.AlreadyExistsError:
        if not system.isdir(place):
            raise


def MakeDirs(dirname: Any) -> None:  # noqa: N802
    """Make a directory and those above it; nothing happens if it is there already."""
    make_directories(dirname)


def Remove(filename: Any) -> None:  # noqa: N802
    """Remove a file."""
    system, place = filesystem(filename)
    with file_errors(filename):
        system.rm(place)


def DeleteRecursively(dirname: Any) -> None:  # noqa: N802
    """Remove a directory and all that is in it."""
    if not Exists(dirname):
        raise errors.NotFoundError(None, None, f"{path_text(dirname)} not found")
    system, place = filesystem(dirname)
    with file_errors(dirname):
        system.rm(place, recursive=True)


def Rename(oldname: Any, newname: Any, overwrite: bool = False) -> None:  # noqa: N802
    """Give a file another name."""
    _transfer(oldname, newname, overwrite, "mv")


def Copy(oldpath: Any, newpath: Any, overwrite: bool = False) -> None:  # noqa: N802
    """Copy a file; the arguments are those of `Rename`."""
    _transfer(oldpath, newpath, overwrite, "cp_file")


def _transfer(source: Any, target: Any, overwrite: bool, how: str) -> None:
    system, place = filesystem(source)
    other, new_place = filesystem(target)
    if other is not system:
        raise errors.UnimplementedError(
            None, None, f"{path_text(source)} and {path_text(target)} are in different file systems"
        )
    if not overwrite and other.exists(new_place):
        raise errors.AlreadyExistsError(None, None, "file already exists")
    # Of a folder that is in the way, the message names that, and not what was to be put there.
    in_the_way = how == "cp_file" and system.exists(place) and other.isdir(new_place)
    with file_errors(target if in_the_way else source):
        getattr(system, how)(place, new_place)


def Stat(filename: Any) -> FileStatistics:  # noqa: N802
    """The size, in bytes, and age of a file."""
    system, place = filesystem(filename)
    with file_errors(filename):
        is_directory = bool(system.isdir(place))
        changed = system.modified(place)
        seconds = changed if isinstance(changed, float) else changed.timestamp()
        length = 0 if is_directory and not isinstance(system, Local) else int(system.size(place))
    return FileStatistics(length, int(seconds * 1e9), is_directory)


def Walk(  # noqa: N802
    top: Any,
    in_order: bool = True,
    topdown: bool | None = None,
    onerror: Callable[[Any], Any] | None = None,
) -> Iterator[tuple[str, list[str], list[str]]]:
    """A directory and those below it: path, names of directories, names of files."""
    first = in_order if topdown is None else topdown
    here = path_text(top)
    try:
        names = ListDirectory(top)
    except errors.OpError as error:
        if onerror is not None:
            onerror(error)
        return
    directories = [name for name in names if IsDirectory(os.path.join(here, name))]
    files = [name for name in names if name not in directories]
    if first:
        yield here, directories, files
    for name in directories:
        yield from Walk(os.path.join(here, name), first, None, onerror)
    if not first:
        yield here, directories, files


copy = Copy
exists = Exists
glob = Glob
isdir = IsDirectory
listdir = ListDirectory
makedirs = MakeDirs
mkdir = MkDir
remove = Remove
rename = Rename
rmtree = DeleteRecursively
stat = Stat
walk = Walk

__getattr__ = names_of(__name__)
