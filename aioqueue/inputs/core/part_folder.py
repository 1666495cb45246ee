"""A folder of files that are committed one after another: the *parts* of what a pipeline writes.

A part is written under a temporary name, flushed to the disk (``fsync``) and renamed. Then the
*manifest*, a file beside the parts, is replaced: it lists the committed parts, and says where the
run stands behind the last of them. What the manifest does not list is not committed: whoever goes
on removes it, and makes it again. So whenever a process or the machine is stopped, the manifest and
the parts that it lists fit together.

One process at a time writes: it holds a lock, which ends with it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.documents import COUNT, DocumentError, Schema, check_fields
from aioqueue.inputs.core.positions import differences, load_position, save_position

__all__ = ("Manifest", "Part", "PartFolder")

_FORMAT: Final = "aioqueue.parts"
_VERSION: Final = 1
_SCHEMA: Final = Schema(
    {
        "format": str,
        "version": COUNT,
        "what": dict,
        "parts": list,
        "is_finished": bool,
        "standing": dict,
    }
)


class Part(NamedTuple):
    """A committed part."""

    rows: int
    size: int
    """In bytes."""


class Manifest(NamedTuple):
    """What is committed."""

    parts: Sequence[Part] = ()
    is_finished: bool = False
    standing: Mapping[str, Any] = {}
    """What a run needs in order to go on behind the last part, in plain JSON types."""


class PartFolder:
    """The parts in one folder. Use it in one thread at a time.

    Args:
        path: the folder.
        stem: what the names of the parts begin with.
        suffix: what they end with, with its dot.
        what: what is written, in plain JSON types: only a run that writes the same may go on.
    """

    def __init__(self, path: Path, stem: str, suffix: str, what: Mapping[str, Any]) -> None:
        self._path = path
        self._stem = stem
        self._suffix = suffix
        self._what = dict(what)
        self._lock: IO[bytes] | None = None
        self.manifest: Manifest = Manifest()
        """What is committed."""

    def path_of(self, number: int) -> Path:
        """Where a part is."""
        return self._path / f"{self._stem}-{number:05}{self._suffix}"

    def paths(self) -> tuple[Path, ...]:
        """Where the committed parts are."""
        return tuple(map(self.path_of, range(len(self.manifest.parts))))

    @property
    def temporary(self) -> Path:
        """Where to write the next part, before it is committed."""
        name = self.path_of(len(self.manifest.parts)).name
        return self._path / f".{name}.tmp"

    @property
    def _manifest_path(self) -> Path:
        return self._path / f"_{self._stem}.aioqueue.json"

    def open(self, *, wait: bool = False) -> bool:
        """Make the folder, lock it, and read its manifest. Returns whether there is a manifest.

        Args:
            wait: whether to wait for another process that writes there.

        Raises:
            InvalidArgumentError: another process writes there; or something else is written there.
            DataLossError: the manifest is damaged, or a committed part is not as it was written.
            OSError: the folder cannot be made or read.
        """
        self._path.mkdir(parents=True, exist_ok=True)
        self._lock = (self._path / f".{self._stem}.aioqueue.lock").open("ab")
        if not _locked(self._lock, wait=wait):
            self.close()
            raise InvalidArgumentError(
                f"path: got {str(self._path)!r}, to which another process (or thread) writes now;"
                " expected a folder of its own for each"
            )
        return self._read()

    def check_same(self) -> None:
        """Check that the same is written as before.

        Raises:
            InvalidArgumentError: the manifest says that something else is.
        """
        for field, theirs, ours in differences(self._theirs, self._what, ""):
            raise InvalidArgumentError(
                f"path: got {str(self._path)!r}, where something else was written: {field} is"
                f" {theirs} there, and {ours} now; expected another folder, or existing='replace'"
            )

    def check_whole(self) -> None:
        """Check that the committed parts are there, and have the sizes that they had.

        Raises:
            DataLossError: they are not as they were written.
        """
        for path, part in zip(self.paths(), self.manifest.parts, strict=True):
            size = path.stat().st_size if path.exists() else None
            if size != part.size:
                fault = "missing part" if size is None else f"{size} bytes, {part.size} written"
                raise DataLossError(path=str(path), offset=size or 0, fault=fault)

    def foreign(self) -> Path | None:
        """A file that is named like a part, without a manifest that lists it."""
        return next(iter(self._uncommitted()), None)

    def clear(self) -> None:
        """Write a manifest of no parts, and remove what was committed before."""
        self.manifest = Manifest()
        self._write()
        self.remove_uncommitted()

    def remove_uncommitted(self) -> None:
        """Remove what an earlier run has left that was stopped before it could commit it."""
        for path in self._uncommitted():
            path.unlink()
        for path in self._path.glob(f".{self._stem}-*.tmp"):
            path.unlink(missing_ok=True)

    def commit(self, rows: int, standing: Mapping[str, Any], *, is_finished: bool = False) -> None:
        """Commit the part at `temporary`, or only that the run is finished.

        Args:
            rows: how many rows the part has; 0 for no part.
            standing: where the run stands behind it, in plain JSON types.
            is_finished: whether this is all.

        Raises:
            OSError: it cannot be written; then it is not committed.
        """
        parts = list(self.manifest.parts)
        if rows:
            temporary = self.temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            size = temporary.stat().st_size
            os.replace(temporary, self.path_of(len(parts)))
            parts.append(Part(rows, size))
        before = self.manifest
        self.manifest = Manifest(parts, is_finished, dict(standing))
        try:
            self._write()  # it also brings the new name to the disk
        except BaseException:
            self.manifest = before
            raise

    def close(self) -> None:
        """Remove what is not committed of the part at hand, and let others write."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with lock:
                if self._is_ours:
                    with suppress(OSError):
                        self.temporary.unlink(missing_ok=True)

    _theirs: Mapping[str, Any] = {}
    _is_ours = False

    def _read(self) -> bool:
        found = load_position(self._manifest_path, None)
        self._is_ours = True
        if found is None:
            return False
        try:
            check_fields(found, _SCHEMA)
            if (found["format"], found["version"]) != (_FORMAT, _VERSION):
                raise DocumentError(f"format {found['format']!r}, version {found['version']!r}")
            parts = [Part(*map(int, one)) for one in found["parts"]]
        except (DocumentError, TypeError, ValueError) as error:
            fault = f"damaged manifest of parts, or of another version ({error})"
            raise DataLossError(path=str(self._manifest_path), offset=0, fault=fault) from error
        self.manifest = Manifest(parts, found["is_finished"], found["standing"])
        self._theirs = found["what"]
        return True

    def _write(self) -> None:
        content = {"format": _FORMAT, "version": _VERSION, "what": self._what}
        save_position(
            self._manifest_path,
            {**content, **self.manifest._asdict(), "parts": list(map(list, self.manifest.parts))},
        )

    def _uncommitted(self) -> list[Path]:
        """The files that are named like parts, and are behind the committed ones."""
        named = re.compile(rf"{re.escape(self._stem)}-(\d{{5,}}){re.escape(self._suffix)}")
        found = []
        for path in self._path.iterdir():
            match = named.fullmatch(path.name)
            if match and int(match[1]) >= len(self.manifest.parts):
                found.append(path)
        return sorted(found)


def _locked(file: IO[bytes], *, wait: bool) -> bool:
    """Lock a file for this process until it is closed. Returns whether that worked."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        if sys.platform == "win32":
            return False
        raise
    return True
