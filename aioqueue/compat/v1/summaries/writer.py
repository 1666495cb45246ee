"""`FileWriter`: writes event files with tensorboardX or PyTorch, and else nothing."""

from __future__ import annotations

import os
import threading
import warnings
from types import TracebackType
from typing import Any, Self

from aioqueue import extras
from aioqueue.compat.v1 import logging
from aioqueue.compat.v1.summaries.backend import backend

__all__ = ("FileWriter", "FileWriterCache", "SummaryWriter")

_lock = threading.Lock()
_has_said_so = threading.Event()


def _say_so() -> None:
    """Tell, once in a process, that nothing is written."""
    with _lock:
        if not _has_said_so.is_set():
            _has_said_so.set()
            logging.warning(
                f"Summaries are not written; to have event files: {extras.command_for('summaries')}"
            )


class FileWriter:
    """Writes event files, if tensorboardX (``pip install '.[summaries]'``) or PyTorch with
    TensorBoard is installed. If neither is, it writes nothing, and the first one says so.

    Args:
        logdir: the directory for the files.
        graph: accepted; graphs are not written.
        max_queue: how many events are kept in memory before they are written.
        flush_secs: seconds after which they are written anyway.
        graph_def: accepted; graphs are not written.
        filename_suffix: what the files' names end with.
        session: accepted.
    """

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
        del graph, graph_def, session
        self._logdir = os.fspath(logdir)
        self._backend = backend()
        self._writer: Any = None
        self._is_closed = False
        if self._backend is None:
            _say_so()
        else:
            path = os.fsdecode(self._logdir)
            self._writer = self._backend.file_writer(
                path, max_queue, flush_secs, filename_suffix or ""
            )

    def get_logdir(self) -> Any:
        """The directory for the files."""
        return self._logdir

    def add_summary(self, summary: Any, global_step: Any = None) -> None:
        """Write a summary.

        Args:
            summary: a ``tf.Summary``, or what a session gives for a summary op.
            global_step: the step that it belongs to.
        """
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
            if self._is_writable():
                # As it is: the backend's own method would give it the time of now.
                self._writer.event_writer.add_event(made)

    def _add(self, event: Any, global_step: Any) -> None:
        if self._is_writable():
            self._writer.add_event(event, None if global_step is None else int(global_step))

    def _is_writable(self) -> bool:
        if self._is_closed:
            warnings.warn("Attempting to use a closed FileWriter.", stacklevel=4)
        return not self._is_closed

    def add_graph(self, graph: Any, global_step: Any = None, graph_def: Any = None) -> None:
        """Accepted and without effect: graphs are not written."""

    def add_run_metadata(self, run_metadata: Any, tag: str, global_step: Any = None) -> None:
        """Accepted and without effect: nothing is traced."""

    def flush(self) -> None:
        """Write what is kept in memory."""
        if self._writer is not None and not self._is_closed:
            self._writer.flush()

    def close(self) -> None:
        """Write what is kept in memory, and close the file."""
        if self._writer is not None and not self._is_closed:
            self._writer.close()
        self._is_closed = True

    def reopen(self) -> None:
        """Go on in a new file, if it was closed."""
        if self._writer is not None and self._is_closed:
            self._writer.reopen()
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
