"""What a sink is: where a pipeline's rows go, and the folder of files that are committed.

Users make one with `to_parquet` and the functions beside it, which are in `inputs.sinks`.

**The folder** has files that are committed one after another: the *parts* of what a pipeline
writes. A part is written under a temporary name, flushed to the disk (``fsync``) and renamed. Then
the *manifest*, a file beside the parts, is replaced: it lists the committed parts, and says where
the run stands behind the last of them. What the manifest does not list is not committed: a run that
continues removes it, and makes it again. So whenever a process or the machine is stopped, the
manifest and the parts that it lists fit together.

One process at a time writes: it holds a lock, which ends with it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Final, NamedTuple, Self, TypeAlias

import anyio

from aioqueue import DataLossError, InvalidArgumentError, OutOfRangeError, QueueClosedError, sync
from aioqueue.base import extras
from aioqueue.base.arguments import checked_count, checked_flag
from aioqueue.base.display_text import without_secrets
from aioqueue.base.json_files import COUNT, MANIFEST, DocumentError, Schema, check_fields
from aioqueue.base.public_names import public
from aioqueue.items.declared_kinds import KindRegistry
from aioqueue.items.position_file import load_position, save_position
from aioqueue.items.positions import differences


class RowWriter(ABC):
    """Writes rows into one file after another. One thread at a time uses it."""

    rows_at_once: int = 64
    """About how many rows to hand over at a time. It may change."""

    shape: Any = None
    """What is known of the rows, if these are batches: a `BatchShape`."""

    takes_batches: bool = False
    """Whether it has a `write_batch`; else it gets the rows of batches."""

    is_full: bool = False
    """Whether the file should end here. Only writers of sinks with ``_ends_by_itself`` say so."""

    def accepts(self, rows: Sequence[Any]) -> bool:
        """Whether rows fit into the file. If not, they begin the next one; for the same writers."""
        return True

    @abstractmethod
    def open(self, path: Path) -> None:
        """Create a file, which gets the next rows."""

    @abstractmethod
    def write(self, rows: Sequence[Any], first: int) -> None:
        """Write rows.

        Args:
            rows: as the pipeline has made them.
            first: how many rows were written before, to all files.

        Raises:
            InvalidArgumentError: a row does not fit into the format.
        """

    def write_batch(self, batch: Any, begin: int, end: int) -> None:
        """Write some rows of a batch."""
        raise NotImplementedError

    def length_of(self, batch: Any) -> int:
        """How many rows a batch has, for `write_batch`.

        Raises:
            InvalidArgumentError: it is no batch.
        """
        raise NotImplementedError

    @abstractmethod
    def finish(self) -> None:
        """Complete the file, and close it."""

    @abstractmethod
    def abandon(self) -> None:
        """Close the file, if one is open, whatever is in it. It raises nothing."""

    def carried(self) -> dict[str, Any]:
        """What a later run needs to go on in the same way, in plain JSON types."""
        return {}


SINKS: Final = KindRegistry(
    "sink",
    ("_function", "_format", "_extra", "_page", "_read_by"),
    ("aioqueue.sinks",),
)
"""The sinks of the package. `SINKS.kinds()` lists them."""


@public("aioqueue.inputs")
class Sink(ABC):
    """Where `Pipeline.write` writes the rows of a pipeline: a folder of files of one format.

    `to_parquet`, `to_json_lines`, `to_tar` and `to_tfrecord` make it.

    Args:
        path: a local folder.
        rows_per_file: how many rows a file has, >= 1.
        batches: whether the elements are batches; ``None`` to go by the stages of the pipeline.

    Attributes:
        path: the folder.
        rows_per_file: how many rows a file has.
        batches: whether the elements are batches, as far as you have said it.
    """

    _function: ClassVar[str] = "Sink"
    """The function that makes it."""

    _format: ClassVar[str] = "files"
    """The format of the files in words. A run that continues compares it."""

    _extra: ClassVar[str | None] = None
    """The extra that it needs; ``None`` if it needs none."""

    _page: ClassVar[str] = "howto/writing.md"
    """The page of the docs that describes it."""

    _read_by: ClassVar[str | None] = None
    """The function that reads its files."""

    _overwrite: ClassVar[str] = "existing='replace'"
    """The argument by which a user has all written anew."""

    _ends_by_itself: ClassVar[bool] = False
    """Whether the writer says where a file ends, and not the number of its rows."""

    def __init_subclass__(cls, *, is_kind: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        if is_kind:
            SINKS.add(cls, Sink)

    def __init__(
        self, path: str | os.PathLike[str], rows_per_file: int, batches: bool | None
    ) -> None:
        self.path: Final[Path] = _checked_folder(path)
        self.rows_per_file: Final[int] = checked_count(rows_per_file, "rows_per_file", least=1)
        self.batches: Final[bool | None] = (
            None if batches is None else checked_flag(batches, "batches")
        )

    def __repr__(self) -> str:
        return f"<aioqueue.inputs.{self._function}({str(self.path)!r})>"

    @property
    @abstractmethod
    def _suffix(self) -> str:
        """What the names of its files end with, with the dot."""

    @abstractmethod
    def _writer(self, carried: dict[str, Any]) -> RowWriter:
        """What writes the rows of one run.

        Args:
            carried: what the writer of an earlier run has `carried`; empty for a new one.
        """


def _checked_folder(path: Any) -> Path:
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(name, str) or not name or "://" in name:
        given = without_secrets(repr(path))
        raise InvalidArgumentError(
            f"path: got {given}; expected a local folder: to rename a file is one step there, which"
            " most other stores do not have"
        )
    return Path(name)


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
    resume_point: Mapping[str, Any] = {}
    """What a run needs in order to continue behind the last part, in plain JSON types."""


class PartFolder:
    """The parts in one folder. Use it in one thread at a time.

    Args:
        path: the folder.
        stem: what the names of the parts begin with.
        suffix: what they end with, with its dot.
        what: what is written, in plain JSON types: only a run that writes the same may go on.
        overwrite: the argument by which a user has all written anew, for messages.
    """

    def __init__(
        self, path: Path, stem: str, suffix: str, what: Mapping[str, Any], overwrite: str
    ) -> None:
        self._path = path
        self._stem = stem
        self._suffix = suffix
        self._what = dict(what)
        self._overwrite = overwrite
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
            parts = [Part(*map(int, one)) for one in found["parts"]]
        except (DocumentError, TypeError, ValueError) as error:
            fault = f"damaged manifest of parts, or of another version ({error})"
            raise DataLossError(path=str(self._manifest_path), offset=0, fault=fault) from error
        self.manifest = Manifest(parts, found["is_finished"], found["standing"])
        self._identity_there = found["what"]
        return True

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
        """What tells whether the manifest was replaced; ``None`` if there is no manifest."""
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


Job: TypeAlias = Callable[[], object]


class WriteThread:
    """Runs jobs one after another, in a thread of its own.

    Args:
        failed: called in that thread with the failure of a job. No job runs after it.
    """

    def __init__(self, failed: Callable[[BaseException], object]) -> None:
        self._failed = failed
        # One job waits while another runs: memory holds the rows of three.
        self._jobs: Final[sync.FIFOQueue[Any]] = sync.FIFOQueue(1, name="write")
        self._end: Final[sync.FIFOQueue[Any]] = sync.FIFOQueue(1, name="write-end")
        self._is_stopped = False
        self.failure: BaseException | None = None
        """What a job has raised."""
        self._thread = threading.Thread(target=self._run, name="aioqueue-write", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> bool:
        """Hand over a job. Returns false if an earlier one has failed."""
        try:
            self._jobs.enqueue(job)
        except QueueClosedError:
            return False
        return True

    async def aput(self, job: Job) -> bool:
        """Hand over a job. Returns false if an earlier one has failed.

        Cancellation:
            A cancelled call has handed over nothing.
        """
        try:
            await self._jobs.aio.enqueue(job)
        except QueueClosedError:
            return False
        return True

    def join(self) -> None:
        """Wait until all jobs have run, or one has failed. No more are handed over."""
        self._jobs.close()
        try:
            self._end.dequeue()
        except OutOfRangeError:
            self._thread.join()

    async def ajoin(self) -> None:
        """Wait until all jobs have run, or one has failed. No more are handed over.

        Cancellation:
            A cancelled call does not wait.
        """
        self._jobs.close()
        try:
            await self._end.aio.dequeue()
        except OutOfRangeError:
            pass

    def stop(self) -> None:
        """Wait until the job that runs has ended, and drop the others."""
        self._is_stopped = True
        self.join()

    async def astop(self) -> None:
        """Wait until the job that runs has ended, and drop the others. Nothing cancels it."""
        self._is_stopped = True
        with anyio.CancelScope(shield=True):
            await self.ajoin()

    def _run(self) -> None:
        try:
            for job in self._jobs:
                if self._is_stopped:
                    break
                job()
                del job  # it has rows
        except BaseException as error:
            self.failure = error
            self._failed(error)
        finally:
            # First the jobs, so that whoever waits for room gets to know that there is none any
            # more; then the end, which `join` waits for.
            self._jobs.close(cancel_pending_enqueues=True)
            self._end.close()


class ProgressBar:
    """A bar on standard error, as a context manager. If standard error is or becomes unusable, as a
    terminal that is closed, there is no bar, and the work goes on.

    Args:
        description: what goes on.
        unit: what is counted.
        total: how many there will be; ``None`` if that is unknown.
        done: how many there are already.
        progress: whether to show it. ``None`` shows it if tqdm is installed and standard error is
            a terminal.

    Raises:
        InvalidArgumentError: `progress` is neither a bool nor ``None``.
        ModuleNotFoundError: it is to be shown, and tqdm is not installed.
    """

    _bar: Any = None

    def __init__(
        self, description: str, unit: str, total: int | None, done: int, progress: bool | None
    ) -> None:
        if progress is not None and not isinstance(progress, bool):
            raise InvalidArgumentError(f"progress: got {progress!r}; expected a bool or None")
        if progress is False or not _has_stream() or (progress is None and not sys.stderr.isatty()):
            return
        try:
            from tqdm import tqdm
        except ModuleNotFoundError as error:
            if progress is None:
                return
            raise ModuleNotFoundError(
                f"a progress bar needs the module 'tqdm': {extras.command_for('progress')}",
                name="tqdm",
            ) from error
        with self._while_it_can_be_seen():
            self._bar = tqdm(desc=description, unit=f" {unit}", total=total, initial=done)

    def add(self, count: int) -> None:
        """Count some more."""
        if self._bar is not None:
            with self._while_it_can_be_seen():
                self._bar.update(count)

    @contextmanager
    def _while_it_can_be_seen(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) and _has_stream():
                raise
            if self._bar is not None:
                self._bar.disable = True  # so that it writes nothing when it is collected
                self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            with self._while_it_can_be_seen():
                self._bar.close()


def _has_stream() -> bool:
    # A program without a console has no standard error.
    return sys.stderr is not None and not getattr(sys.stderr, "closed", False)
