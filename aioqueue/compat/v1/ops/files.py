"""Files: on this machine, or behind a URL (``://``) that fsspec, an extra, can open."""

from __future__ import annotations

import errno
import importlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from aioqueue.base import extras
from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.ops.building import OpBuilder, invalid, one_text

__all__ = ("matching_files", "read_file", "write_file")

KINDS: dict[int, type[errors.OpError]] = {
    errno.ENOENT: errors.NotFoundError, errno.ENOTDIR: errors.FailedPreconditionError,
    errno.EISDIR: errors.FailedPreconditionError, errno.ENOTEMPTY: errors.FailedPreconditionError,
    errno.EEXIST: errors.AlreadyExistsError, errno.EACCES: errors.PermissionDeniedError,
    errno.EPERM: errors.PermissionDeniedError, errno.ENOSPC: errors.ResourceExhaustedError,
    errno.EMFILE: errors.ResourceExhaustedError,
}  # fmt: skip


@contextmanager
def file_errors(path: Any) -> Iterator[None]:
    """Raise what goes wrong with a file within the block as TensorFlow would."""
    try:
        yield
    except OSError as error:
        code = error.errno
        if code is None and isinstance(error, FileNotFoundError):
            code = errno.ENOENT  # file systems other than the system's leave the number out
        kind: Any = errors.UnknownError if code is None else KINDS.get(code, errors.UnknownError)
        reason = str(error) if code is None else os.strerror(code)
        raise kind(None, None, f"{path_text(path)}; {reason}") from error


class Local:
    """Of fsspec's methods, those that are used here."""

    open = staticmethod(open)
    exists = staticmethod(os.path.exists)
    isdir = staticmethod(os.path.isdir)
    mv = staticmethod(os.replace)
    cp_file = staticmethod(shutil.copyfile)
    size = staticmethod(os.path.getsize)
    modified = staticmethod(os.path.getmtime)

    def glob(self, pattern: str) -> list[str]:
        """The paths that match a pattern, as TensorFlow finds and spells them.

        A pattern that begins with a wildcard, or whose first folder has one, finds paths that begin
        with ``./``. ``*`` matches names that begin with a dot; nothing matches ``/``.
        """
        fixed = _WILDCARD.split(pattern, maxsplit=1)[0]
        part = pattern if _folder_of(fixed) else _joined(".", pattern)
        if pattern.endswith("/"):
            part = _folder_of(part)
        beginnings: list[str] = []
        while part:
            beginnings.insert(0, part)
            above = _folder_of(part)
            part = "" if above == part else above
        wild = [at for at, one in enumerate(beginnings) if _WILDCARD.search(one)]
        if not wild:
            exists = bool(pattern) and os.path.exists(_cleaned(pattern))
            return [pattern] if exists else []
        found = [beginnings[wild[0] - 1]]
        for number, beginning in enumerate(beginnings[wild[0] :], wild[0]):
            wanted = _as_regex(beginning)
            is_last = number == len(beginnings) - 1
            found = [
                path
                for folder in found
                for path in _listed(folder)
                if wanted.fullmatch(path) and (is_last or os.path.isdir(_cleaned(path)))
            ]
        return found

    def ls(self, path: str, detail: bool = False) -> list[str]:
        return [os.path.join(path, name) for name in os.listdir(path)]

    def mkdir(self, path: str, create_parents: bool = False) -> None:
        os.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = True) -> None:
        os.makedirs(path, exist_ok=exist_ok)

    def rm(self, path: str, recursive: bool = False) -> None:
        if recursive and os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)


_WILDCARD = re.compile(r"[*?\[\\]")


def _folder_of(path: str) -> str:
    """The folder of a path: what is before its last ``/``, or the root."""
    before, slash, _ = path.rpartition("/")
    return before or slash


def _joined(folder: str, name: str) -> str:
    return f"{folder}{name}" if folder.endswith("/") else f"{folder}/{name}"


def _cleaned(path: str) -> str:
    """The path without ``.`` and ``..``, as TensorFlow asks the system for it: by its text."""
    return os.path.normpath(path)


def _listed(folder: str) -> list[str]:
    """The paths of what is in a folder; nothing where it cannot be looked into."""
    try:
        return [_joined(folder, name) for name in os.listdir(_cleaned(folder))]
    except OSError:
        return []


_PART = re.compile(
    r"(?P<star>\*+)|(?P<any>\?)"
    r"|\[(?P<not>[!^]?)(?P<set>(?:\]|\[:\w+:\]|\\.|[^\]])(?:\[:\w+:\]|\\.|[^\]])*)\]"
    r"|\\(?P<escaped>.)|\\(?P<end>)|(?P<other>.)",
    re.DOTALL,
)
_CLASSES = {
    "alpha": r"^\W\d_", "digit": "0-9", "alnum": r"^\W_", "space": r"\s", "upper": "A-Z",
    "lower": "a-z", "xdigit": "0-9A-Fa-f", "blank": " \t", "punct": r"!-/:-@\[-`{-~",
}  # fmt: skip


def _as_regex(pattern: str) -> re.Pattern[str]:
    """The paths that ``fnmatch`` of C matches with ``FNM_PATHNAME``."""
    made = []
    for part in _PART.finditer(pattern):
        if part["star"]:
            made.append("[^/]*")
        elif part["any"]:
            made.append("[^/]")
        elif part["set"]:
            one = _set_as_regex(part["set"])
            made.append(f"(?!/)(?!{one})." if part["not"] else f"(?!/){one}")
        elif part["end"] is not None:
            made.append("(?!)")  # a backslash that is followed by nothing matches nothing
        else:
            made.append(re.escape(part["escaped"] or part["other"]))
    return re.compile("".join(made), re.DOTALL)


_MEMBER = re.compile(r"\[:(?P<name>\w+):\]|\\?(?P<low>.)-\\?(?P<high>.)|\\?(?P<one>.)", re.DOTALL)


def _set_as_regex(text: str) -> str:
    """What is between brackets as a group of alternatives, each a set of characters."""
    found = []
    for member in _MEMBER.finditer(text):
        if member["name"]:
            found.append(f"[{_CLASSES.get(member['name'], '^' + chr(0) + '-' + chr(0x10FFFF))}]")
        elif member["one"]:
            found.append(re.escape(member["one"]))
        elif member["low"] <= member["high"]:  # an empty range matches nothing
            found.append(f"[{re.escape(member['low'])}-{re.escape(member['high'])}]")
    return f"(?:{'|'.join(found) or '(?!)'})"


_LOCAL = Local()


def path_text(path: Any) -> str:
    """A path as text: it may be bytes, as tensors hold it, or a `pathlib.Path`."""
    return os.fsdecode(path)


def is_local(path: Any) -> bool:
    text = path_text(path)
    return "://" not in text or text.startswith("file://")


def filesystem(path: Any) -> tuple[Any, str]:
    text = path_text(path)
    if is_local(text):
        return _LOCAL, text.removeprefix("file://")
    try:
        core = importlib.import_module("fsspec.core")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{text!r} is a URL, which needs fsspec: {extras.command_for('files')}", name="fsspec"
        ) from error
    system, place = core.url_to_fs(text)
    return system, place


_NOT_ONE = "Input filename tensor must be scalar, but had shape: "


def read_file(filename: Any, name: str | None = None) -> Tensor:
    """The contents of a file, as one string."""

    def read(step: Any, path: Any) -> bytes:
        return read_bytes(one_text(path, _NOT_ONE))

    with OpBuilder("ReadFile", name) as builder:
        path = builder.tensor(filename, "filename", dtypes.string)
        builder.rank(path, 0)
        return builder.output(dtypes.string, (), read)


def read_bytes(path: Any) -> bytes:
    system, place = filesystem(path)
    with file_errors(path), system.open(place, "rb") as file:
        contents: bytes = file.read()
    return contents


def write_file(filename: Any, contents: Any, name: str | None = None) -> Operation:
    """Write a string to a file, which is made or replaced, as are directories on the way."""

    def write(step: Any, path: Any, contents: Any) -> None:
        contents = one_text(contents, "Contents tensor must be scalar, but had shape: ")
        system, place = filesystem(one_text(path, _NOT_ONE))
        with file_errors(path):
            if os.path.dirname(place):
                system.makedirs(os.path.dirname(place), exist_ok=True)
            with system.open(place, "wb") as file:
                file.write(contents)

    with OpBuilder("WriteFile", name) as builder:
        for argument, value in (("filename", filename), ("contents", contents)):
            builder.rank(builder.tensor(value, argument, dtypes.string), 0)
        return builder.sink(write)


def matching_files(pattern: Any, name: str | None = None) -> Tensor:
    """The paths of the files that match one or more patterns, in order."""

    def matching(step: Any, patterns: Any) -> Any:
        found: list[bytes] = []
        for one in np.ravel(np.asarray(patterns, object)).tolist():
            found += [os.fsencode(path) for path in glob_files(one)]
        result = np.empty(len(found), object)
        result[:] = sorted(found)
        return result

    with OpBuilder("MatchingFiles", name) as builder:
        builder.tensor(pattern, "pattern", dtypes.string)
        return builder.output(dtypes.string, (None,), matching)


def existing_files(pattern: Any) -> Tensor:
    """The same, which fails if there are none."""
    with name_scope("list_files"):
        patterns = convert_to_tensor(pattern, dtype=dtypes.string, name="file_pattern")
        names = matching_files(patterns)

        def checked(step: Any, names: Any, patterns: Any) -> Any:
            if not len(names):
                shown = ", ".join(map(os.fsdecode, np.ravel(np.asarray(patterns, object)).tolist()))
                raise invalid(f"assertion failed: [No files matched pattern: {shown}]")
            return names

        with OpBuilder("Assert", "assert_not_empty") as builder:
            builder.inputs += [names, patterns]
            return builder.output(dtypes.string, (None,), checked)


def make_directories(path: Any) -> None:
    """Make a directory and those above it; nothing happens if it is there already."""
    system, place = filesystem(path)
    with file_errors(path):
        system.makedirs(place, exist_ok=True)


def glob_files(pattern: Any) -> list[str]:
    """The paths that match a pattern, in order; those of a URL with its protocol."""
    system, place = filesystem(pattern)
    with file_errors(pattern):
        found: list[str] = list(system.glob(place))
    if isinstance(system, Local):
        protocol = path_text(pattern).removesuffix(place)
        found = [f"{protocol}{path}" for path in found]
    else:
        found = [system.unstrip_protocol(path) for path in found]
    return sorted(found)
