"""Whole files: `read_file`, `write_file`, `matching_files`."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.ops.building import OpBuilder, invalid, one_text
from aioqueue.compat.v1.ops.filesystems import Local, failing_as, filesystem, path_text

__all__ = (
    "existing_files",
    "glob_files",
    "make_directories",
    "matching_files",
    "read_bytes",
    "read_file",
    "write_file",
)

_NOT_ONE = "Input filename tensor must be scalar, but had shape: "


def read_file(filename: Any, name: str | None = None) -> Tensor:
    """The contents of a file, as one string.

    Args:
        filename: a path, or a URL.
        name: name of the op.

    Raises:
        NotFoundError: when it runs: there is no such file.
    """

    def read(step: Any, path: Any) -> bytes:
        return read_bytes(one_text(path, _NOT_ONE))

    with OpBuilder("ReadFile", name) as builder:
        path = builder.tensor(filename, "filename", dtypes.string)
        builder.rank(path, 0)
        return builder.output(dtypes.string, (), read)


def read_bytes(path: Any) -> bytes:
    """The contents of a file, at once.

    Raises:
        NotFoundError: there is no such file.
    """
    system, place = filesystem(path)
    with failing_as(path), system.open(place, "rb") as file:
        contents: bytes = file.read()
    return contents


def write_file(filename: Any, contents: Any, name: str | None = None) -> Operation:
    """Write a string to a file, which is made or replaced, as are directories on the way.

    Args:
        filename: a path, or a URL.
        contents: a string.
        name: name of the op.
    """

    def write(step: Any, path: Any, contents: Any) -> None:
        contents = one_text(contents, "Contents tensor must be scalar, but had shape: ")
        system, place = filesystem(one_text(path, _NOT_ONE))
        with failing_as(path):
            if os.path.dirname(place):
                system.makedirs(os.path.dirname(place), exist_ok=True)
            with system.open(place, "wb") as file:
                file.write(contents)

    with OpBuilder("WriteFile", name) as builder:
        for argument, value in (("filename", filename), ("contents", contents)):
            builder.rank(builder.tensor(value, argument, dtypes.string), 0)
        return builder.sink(write)


def matching_files(pattern: Any, name: str | None = None) -> Tensor:
    """The paths of the files that match one or more patterns, in order.

    Args:
        pattern: a pattern such as ``"/data/*.csv"``, or a vector of them.
        name: name of the op.
    """

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
    """The same, which fails if there are none.

    Args:
        pattern: as for `matching_files`.
    """
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
    """Make a directory and those above it; nothing happens if it is there already.

    Raises:
        AlreadyExistsError: a file has that name.
    """
    system, place = filesystem(path)
    with failing_as(path):
        system.makedirs(place, exist_ok=True)


def glob_files(pattern: Any) -> list[str]:
    """The paths that match a pattern, in order; those of a URL with its protocol."""
    system, place = filesystem(pattern)
    with failing_as(pattern):
        found: list[str] = list(system.glob(place))
    if isinstance(system, Local):
        protocol = path_text(pattern).removesuffix(place)
        found = [f"{protocol}{path}" for path in found]
    else:
        found = [system.unstrip_protocol(path) for path in found]
    return sorted(found)
