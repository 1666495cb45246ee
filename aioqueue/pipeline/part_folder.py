"""The folder of a sink: the *parts* that it commits, one file after another.

A part is written under a temporary name, flushed to the disk (``fsync``) and renamed. Then the
*manifest*, a file beside the parts, is replaced: it lists the committed parts, and says where the
run stands behind the last of them. What the manifest does not list is not committed: a run that
continues removes it, and makes it again. So whenever a process or the machine is stopped, the
manifest and the parts that it lists fit together.

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
from aioqueue.base.arguments import is_int
from aioqueue.base.json_files import COUNT, MANIFEST, DocumentError, Schema, check_fields
from aioqueue.items.position_file import load_position, save_position
from aioqueue.items.positions import differences

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


_RESUME_POINT: Final = Schema({"state": None, "rows": COUNT, "carried": dict})


class Part(NamedTuple):
    """A committed part."""

    rows: int
    size: int
    """In bytes."""


class Manifest(NamedTuple):
    """What is committed."""

    parts: Sequence[Part] = ()
    is_finished: bool = False
    resume_point: Mapping[str, Any] = {}
    """What a run needs in order to continue behind the last part, in plain JSON types."""


class PartFolder:
    """The parts in one folder. Use it in one thread at a time.

    Args:
        path: the folder.
        stem: what the names of the parts begin with.
        suffix: what they end with, with its dot.
        what: what is written, in plain JSON types: only a run that writes the same may go on.
        carried: the schema of what a writer hands on to that of a later run.
        overwrite: the argument by which a user has all written anew, for messages.
    """

    def __init__(
        self,
        path: Path,
        stem: str,
        suffix: str,
        what: Mapping[str, Any],
        carried: Schema,
        overwrite: str,
    ) -> None:
        self._path = path
        self._stem = stem
        self._suffix = suffix
        self._what = dict(what)
        self._carried = carried
        self._overwrite = overwrite
        self._lock: IO[bytes] | None = None
        self.manifest: Manifest = Manifest()
        """What is committed."""

    def path_of(self, number: int) -> Path:
        return self._path / f"{self._stem}-{number:05}{self._suffix}"

    def paths(self) -> tuple[Path, ...]:
        """Return the paths of the committed parts."""
        return tuple(map(self.path_of, range(len(self.manifest.parts))))

    @property
    def temporary(self) -> Path:
        """The path at which to write the next part, before it is committed."""
        name = self.path_of(len(self.manifest.parts)).name
        return self._path / f".{name}.tmp"

    @property
    def _manifest_path(self) -> Path:
        return self._path / f"_{self._stem}{MANIFEST}"

    def lock(self, *, wait: bool = False) -> bool:
        """Make the folder, and keep other processes from writing there.

        Args:
            wait: whether to wait for another process that writes there.

        Returns:
            Whether that one has written something meanwhile.

        Raises:
            InvalidArgumentError: another process writes there.
            OSError: the folder cannot be made, or not be written to.
        """
        self._path.mkdir(parents=True, exist_ok=True)
        lock = (self._path / f".{self._stem}.aioqueue.lock").open("ab")
        is_locked = _locked(lock, wait=False)
        # The manifest as it is now, while the other process still writes: if it is another one when
        # the lock is free, that process has committed something meanwhile.
        waits, before = wait and not is_locked, self._state()
        if not is_locked and not (wait and _locked(lock, wait=True)):
            lock.close()
            raise InvalidArgumentError(
                f"path: got {str(self._path)!r}, to which another process (or thread) writes now;"
                " expected a folder of its own for each"
            )
        self._lock = lock
        return waits and self._state() != before

    def read(self) -> bool:
        """Read the manifest. Returns whether there is one.

        Raises:
            DataLossError: it is damaged.
            OSError: it cannot be read.
        """
        found = load_position(self._manifest_path, None)
        if found is None:
            return False
        try:
            check_fields(found, _SCHEMA)
            if (found["format"], found["version"]) != (_FORMAT, _VERSION):
                raise DocumentError(f"format {found['format']!r}, version {found['version']!r}")
            parts = list(map(_part_in, found["parts"]))
            if found["standing"]:
                check_fields(found["standing"], _RESUME_POINT)
                check_fields(found["standing"]["carried"], self._carried)
            elif parts:
                raise DocumentError("parts without a point to resume from")
        except DocumentError as error:
            raise self.damaged(error) from error
        self.manifest = Manifest(parts, found["is_finished"], found["standing"])
        self._identity_there = found["what"]
        return True

    def damaged(self, error: DocumentError) -> DataLossError:
        """Return the error for a manifest that no run has written."""
        fault = f"damaged manifest of parts, or of another version ({error})"
        return DataLossError(path=str(self._manifest_path), offset=0, fault=fault)

    def check_same(self) -> None:
        """Check that the same is written as before.

        Raises:
            InvalidArgumentError: the manifest says that something else is.
        """
        for field, there, here in differences(self._identity_there, self._what, ""):
            raise InvalidArgumentError(
                f"path: got {str(self._path)!r}, where something else was written: {field} is"
                f" {there} there, and {here} now; expected another folder, or {self._overwrite}"
            )

    def check_current(self) -> None:
        """Check that no other process has written something else here since.

        Raises:
            InvalidArgumentError: one has.
            DataLossError: the manifest is damaged.
            OSError: it cannot be read.
        """
        seen = self._state()
        if seen is None or seen == self._last_state:
            return  # all of it was removed, or nothing was changed
        found = load_position(self._manifest_path, {"what": self._what})
        for field, there, here in differences(found.get("what"), self._what, ""):
            raise InvalidArgumentError(
                f"path: got {str(self._path)!r}, which another process has rebuilt meanwhile:"
                f" {field} is {there} there, and {here} here; expected another folder for each"
            )
        self._last_state = seen

    def _state(self) -> tuple[int, int, int] | None:
        """Return what changes when the manifest is replaced; ``None`` if there is no manifest."""
        try:
            status = self._manifest_path.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

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
        """Return a file that is named like a part, although no manifest lists it."""
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

    def commit(
        self, rows: int, resume_point: Mapping[str, Any], *, is_finished: bool = False
    ) -> None:
        """Commit the part at `temporary`, or only that the run is finished.

        Args:
            rows: how many rows the part has; 0 for no part.
            resume_point: what a run needs in order to continue behind it, in plain JSON types.
            is_finished: whether this is all.

        Raises:
            OSError: it cannot be written; then it is not committed.
        """
        parts = list(self.manifest.parts)
        if rows:
            temporary = self.temporary
            # First the content, then the name, then the manifest. In any other order, a machine
            # that stops between two steps could leave a manifest that lists a part with less.
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            size = temporary.stat().st_size
            os.replace(temporary, self.path_of(len(parts)))
            parts.append(Part(rows, size))
        before = self.manifest
        self.manifest = Manifest(parts, is_finished, dict(resume_point))
        try:
            self._write()  # it also brings the new name to the disk
        except BaseException:
            self.manifest = before
            raise

    def close(self) -> None:
        """Remove what is not committed of the current part, and let others write."""
        lock, self._lock = self._lock, None
        if lock is not None:
            # Closing the file ends the lock, and another process may begin a part of this name. So
            # the part is removed before.
            with lock, suppress(OSError):
                self.temporary.unlink(missing_ok=True)

    _identity_there: Mapping[str, Any] = {}
    _last_state: tuple[int, int, int] | None = None

    def _write(self) -> None:
        parts, is_finished, resume_point = self.manifest
        save_position(
            self._manifest_path,
            {
                "format": _FORMAT,
                "version": _VERSION,
                "what": self._what,
                "parts": list(map(list, parts)),
                "is_finished": is_finished,
                "standing": resume_point,
            },
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


def _part_in(fields: Any) -> Part:
    """Return the part that a manifest lists so.

    Raises:
        DocumentError: no part is listed so.
    """
    is_part = isinstance(fields, list) and len(fields) == 2 and all(map(is_int, fields))
    if not is_part or min(fields) < 1:
        raise DocumentError(f"parts: got {str(fields)[:40]!r}; expected rows and bytes")
    return Part(*fields)


def _locked(file: IO[bytes], *, wait: bool) -> bool:
    """Lock a file for this process until it is closed. Returns whether that worked."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        else:
            from aioqueue.system import posix

            posix.lock_file(file, wait=wait)
    except BlockingIOError:
        return False
    except OSError:
        if sys.platform == "win32":
            return False
        raise
    return True
