"""Where files are: on this machine, or wherever a URL says and fsspec, an extra, can look.

A path is local unless it has a ``://`` in it. `Local` has, of fsspec's methods, those that are
used here.
"""

from __future__ import annotations

import glob
import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aioqueue import extras
from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.ops.file_errors import file_errors

__all__ = ("Local", "failing_as", "filesystem", "path_text")


class Local:
    """The files of this machine."""

    def open(self, path: str, mode: str) -> Any:
        """A binary file."""
        return open(path, mode)

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        return os.path.exists(path)

    def isdir(self, path: str) -> bool:
        """Whether there is a directory."""
        return os.path.isdir(path)

    def glob(self, pattern: str) -> list[str]:
        """The paths that match a pattern; ``*`` matches names that begin with a dot as well."""
        return glob.glob(pattern, include_hidden=True)

    def ls(self, path: str, detail: bool = False) -> list[str]:
        """The paths of what is in a directory."""
        return [os.path.join(path, name) for name in os.listdir(path)]

    def mkdir(self, path: str, create_parents: bool = False) -> None:
        """Make a directory, whose parent is there."""
        os.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = True) -> None:
        """Make a directory and those above it."""
        os.makedirs(path, exist_ok=exist_ok)

    def rm(self, path: str, recursive: bool = False) -> None:
        """Remove a file, or a directory with all that is in it."""
        if recursive and os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)

    def mv(self, path1: str, path2: str) -> None:
        """Rename a file, which may replace another one."""
        os.replace(path1, path2)

    def cp_file(self, path1: str, path2: str) -> None:
        """Copy a file's contents."""
        shutil.copyfile(path1, path2)

    def size(self, path: str) -> int:
        """Bytes in a file."""
        return os.path.getsize(path)

    def modified(self, path: str) -> float:
        """When it was changed last: seconds since 1970."""
        return os.path.getmtime(path)


_LOCAL = Local()


def path_text(path: Any) -> str:
    """A path as text: it may be bytes, as tensors hold it, or a `pathlib.Path`."""
    return os.fsdecode(path)


def filesystem(path: Any) -> tuple[Any, str]:
    """Where a path leads, and what it is called there.

    Raises:
        ModuleNotFoundError: it is a URL, and fsspec is not installed.
    """
    text = path_text(path)
    if "://" not in text:
        return _LOCAL, text
    if text.startswith("file://"):
        return _LOCAL, text.removeprefix("file://")
    try:
        core = importlib.import_module("fsspec.core")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{text!r} is a URL, which needs fsspec: {extras.command_for('files')}", name="fsspec"
        ) from error
    system, place = core.url_to_fs(text)
    return system, place


@contextmanager
def failing_as(path: Any) -> Iterator[None]:
    """Raise what goes wrong with a file within the block as TensorFlow would.

    Other file systems say that a file is missing without the number that the system gives it.
    """
    text = path_text(path)
    with file_errors(text):
        try:
            yield
        except FileNotFoundError as error:
            message = f"{text}; No such file or directory"
            raise errors.NotFoundError(None, None, message) from error
