"""`FileWriter`: writes event files with tensorboardX or PyTorch, and else nothing."""

from __future__ import annotations

import importlib.util
import itertools
import os
import threading
import warnings
from functools import cache
from types import TracebackType
from typing import Any, NamedTuple, Self

from aioqueue.base import extras
from aioqueue.compat.v1 import logging
from aioqueue.compat.v1.errors import AlreadyExistsError, FailedPreconditionError
from aioqueue.compat.v1.ops.files import filesystem, is_local, make_directories

CHOICES = (("tensorboardX",), ("torch", "tensorboard"))
"""Libraries that write event files, each with what it needs; the first one that is there is used"""


class Backend(NamedTuple):
    file_writer: Any
    """``FileWriter(directory, max_queue, flush_secs, filename_suffix)``."""
    event: Any
    """The class of the messages that it takes."""


@cache
def can_write() -> bool:
    """Whether anything is installed that writes event files: if not, summaries are empty."""
    return any(
        all(importlib.util.find_spec(name) is not None for name in names) for names in CHOICES
    )


def backend() -> Backend | None:
    """What writes event files; None if nothing does. Importing it takes its time."""
    if not can_write():
        return None
    try:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.writer import FileWriter
    except ImportError:
        from tensorboard.compat.proto.event_pb2 import Event
        from torch.utils.tensorboard import FileWriter
    return Backend(FileWriter, Event)


_lock = threading.Lock()
_has_said_so = threading.Event()
_numbers = itertools.count()


def _say_so() -> None:
    with _lock:
        if not _has_said_so.is_set():
            _has_said_so.set()
            logging.warning(
                f"Summaries are not written; to have event files: {extras.command_for('summaries')}"
            )


def _made_directory(logdir: Any) -> str:
    text = os.fsdecode(logdir)
    if not is_local(text):
        return text  # the backend makes it, if it can write there
    path = filesystem(text)[1]
    try:
        make_directories(path)
    except AlreadyExistsError as error:
        raise FailedPreconditionError(None, None, f"{path} is not a directory") from error
    return path


class FileWriter:
    """Writes event files by tensorboardX (the extra ``summaries``) or PyTorch; else nothing."""

    def __init__(
        self,
        logdir: Any,
        graph: Any = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        graph_def: Any = None,
        filename_suffix: str | None = None,
        session: Any = None,
    ) -> None:
        self._logdir = os.fspath(logdir)
        self._path = _made_directory(self._logdir)
        self._options = (max_queue, flush_secs)
        self._suffix = filename_suffix or ""
        self._backend = backend()
        self._opening = threading.Lock()  # a supervisor's thread writes beside the script
        self._writer: Any = None
        self._is_closed = False
        if self._backend is None:
            _say_so()
        else:
            self._writer = self._opened()

    def _opened(self) -> Any:
        """The backend's writer of a new file; process and number keep two of one second apart."""
        assert self._backend is not None
        suffix = f".{os.getpid()}.{next(_numbers)}{self._suffix}"
        return self._backend.file_writer(self._path, *self._options, suffix)

    def get_logdir(self) -> Any:
        """The directory for the files."""
        return self._logdir

    def add_summary(self, summary: Any, global_step: Any = None) -> None:
        """Write a summary."""
        if self._backend is None:
            return
        data = summary if isinstance(summary, bytes) else summary.SerializeToString()
        event = self._backend.event()
        event.summary.ParseFromString(data)
        self._add(event, global_step)

    def add_event(self, event: Any) -> None:
        """Write a ``tf.Event``."""
        if self._backend is not None:
            made = self._backend.event()
            made.ParseFromString(event.SerializeToString())
            writer = self._open_writer()
            if writer is not None:
                # As it is: the backend's own method would give it the time of now.
                writer.event_writer.add_event(made)

    def _add(self, event: Any, global_step: Any) -> None:
        writer = self._open_writer()
        if writer is not None:
            writer.add_event(event, None if global_step is None else int(global_step))

    def _open_writer(self) -> Any:
        """The backend's writer, which a reopened one gets with its first event; None if closed."""
        with self._opening:
            if not self._is_closed:
                if self._writer is None:
                    self._writer = self._opened()
                return self._writer
        warnings.warn("Attempting to use a closed FileWriter.", stacklevel=4)
        return None

    def add_graph(self, graph: Any, global_step: Any = None, graph_def: Any = None) -> None:
        """Accepted and without effect: graphs are not written."""

    def add_run_metadata(self, run_metadata: Any, tag: str, global_step: Any = None) -> None:
        """Accepted and without effect: nothing is traced."""

    def flush(self) -> None:
        """Write what is kept in memory; of a closed writer, that is nothing."""
        with self._opening:
            if self._writer is not None:
                self._writer.flush()

    def close(self) -> None:
        """Write what is kept in memory, and close the file. A second call does nothing."""
        with self._opening:
            writer, self._writer, self._is_closed = self._writer, None, True
            if writer is not None:
                writer.close()

    def reopen(self) -> None:
        """Go on in a new file, if it was closed."""
        with self._opening:
            self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


SummaryWriter = FileWriter


class FileWriterCache:
    """One writer for each directory, for all who ask."""

    _writers: dict[Any, FileWriter] = {}  # noqa: RUF012  # one for the process

    @classmethod
    def get(cls, logdir: Any) -> FileWriter:
        """The writer for a directory."""
        with _lock:
            found = cls._writers.get(logdir)
        if found is None:
            made = FileWriter(logdir)
            with _lock:
                found = cls._writers.setdefault(logdir, made)
        return found

    @classmethod
    def clear(cls) -> None:
        """Close all writers, and forget them."""
        with _lock:
            writers, cls._writers = cls._writers, {}
        for one in writers.values():
            one.close()
