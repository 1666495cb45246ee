"""What a cache holds, in files or in memory, and the thread that fills it.

Who goes through a cache reads what is there, and waits for the rest. While somebody does, a thread
runs the pipeline in front of the cache, once. In files, it does so as `Pipeline.write` does: parts
are committed with the position behind them, one process fills at a time, and others wait for it. If
it is stopped, the next one goes on.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Literal

from aioqueue import OutOfRangeError, sync
from aioqueue.coordination.classify import add_note
from aioqueue.inputs.core.cache_file import CacheSink, rows_of_file
from aioqueue.inputs.core.sink import ProgressBar
from aioqueue.inputs.ownership import unshared
from aioqueue.inputs.pipeline.description import BasePipeline
from aioqueue.inputs.pipeline.epochs import Epochs
from aioqueue.inputs.pipeline.node import EpochRange
from aioqueue.inputs.pipeline.writing import LeftError, Writing, fill, taken
from aioqueue.tracebacks import raise_again

__all__ = ("CacheStore", "FileStore", "MemoryStore", "OnStale")

OnStale = Literal["error", "rebuild"]

_log: Final = logging.getLogger("aioqueue")

_AT_ONCE: Final = 256
"""The most examples that are taken at a time in order to keep them in memory."""


class _Filling:
    """One attempt to fill a cache. Readers wait until it has made what they want."""

    def __init__(self) -> None:
        self.news: sync.Latest[None] = sync.Latest(None, name="cache")
        self.failure: BaseException | None = None
        self.is_left = False
        """Whether nobody waits for it any more."""
        self.stop: Callable[[], object] = lambda: None
        """Has it end soon, after it was left."""


class CacheStore(ABC):
    """Examples that are made once. Any thread may read them.

    Args:
        pipeline: makes the examples.
        progress: whether a bar shows how it is filled; see `ProgressBar`.
    """

    def __init__(self, pipeline: BasePipeline[Any], progress: bool | None) -> None:
        self._pipeline = pipeline
        self._progress = progress
        self._lock = threading.Lock()
        self._readers = 0
        self._filling: _Filling | None = None
        self._ends: tuple[int, ...] = ()  # behind each part, the number of rows
        self._is_complete = False

    def rows(self, begin: int) -> Generator[Any, None, None]:
        """The examples from a number on, in order. They belong to the caller.

        Raises:
            Exception: what has failed while they were made or read.
        """
        filling = self._join()
        try:
            while True:
                version = filling.news.version
                ends, is_complete = self._ends, self._is_complete
                if ends and begin < ends[-1]:
                    part = bisect_right(ends, begin)
                    start = ends[part - 1] if part else 0
                    with closing(self._part(part, begin - start)) as found:
                        yield from found
                    begin = ends[part]
                elif is_complete:
                    return
                else:
                    self._wait(filling, version)
        finally:
            self._leave(filling)

    @abstractmethod
    def _part(self, number: int, begin: int) -> Generator[Any, None, None]:
        """The examples of a part from a number on."""

    @abstractmethod
    def _fill(self, filling: _Filling) -> None:
        """Make what is missing, and note each part."""

    def _note(self, filling: _Filling, sizes: Sequence[int], *, is_complete: bool = False) -> None:
        """Note which parts there are, and wake the readers.

        Raises:
            LeftError: there are none any more.
        """
        with self._lock:
            if filling.is_left:
                raise LeftError
            self._ends = tuple(accumulate(sizes))
            self._is_complete = is_complete
        filling.news.publish(None)

    def _join(self) -> _Filling:
        with self._lock:
            self._readers += 1
            filling = self._filling
            if filling is None or filling.failure is not None or filling.is_left:
                filling = self._filling = _Filling()
                if not self._is_complete:
                    threading.Thread(
                        target=self._run, args=(filling,), name="aioqueue-cache", daemon=True
                    ).start()
            return filling

    def _leave(self, filling: _Filling) -> None:
        with self._lock:
            self._readers -= 1
            if self._readers or self._is_complete:
                return
            filling.is_left = True
        filling.stop()

    def _wait(self, filling: _Filling, version: int) -> None:
        try:
            filling.news.wait_newer(version)
        except OutOfRangeError:
            if filling.failure is not None:
                raise_again(filling.failure, is_kept=True)
            if not self._is_complete:
                raise LeftError("the filling of this cache was stopped") from None

    def _run(self, filling: _Filling) -> None:
        try:
            self._fill(filling)
        except BaseException as error:
            if filling.is_left:
                if not isinstance(error, LeftError):
                    _log.debug("a cache that nobody reads any more has failed", exc_info=error)
            else:
                add_note(error, f"while {self!r} was filled")
                filling.failure = error
        finally:
            filling.news.close()


class MemoryStore(CacheStore):
    """Examples in the memory of this process."""

    def __init__(self, pipeline: BasePipeline[Any], progress: bool | None) -> None:
        super().__init__(pipeline, progress)
        self._rows: list[Any] = []

    def __repr__(self) -> str:
        return "cache()"

    def _part(self, number: int, begin: int) -> Generator[Any, None, None]:
        rows = self._rows
        start = self._ends[number - 1] if number else 0
        return (unshared(rows[at]) for at in range(start + begin, self._ends[number]))

    def _fill(self, filling: _Filling) -> None:
        rows: list[Any] = []
        with self._lock:
            if filling.is_left:
                raise LeftError
            self._rows, self._ends = rows, ()
        sizes: list[int] = []
        with (
            Epochs(self._pipeline, EpochRange(0, 1), raise_single=True) as run,
            ProgressBar("filling a cache", "examples", None, 0, self._progress) as bar,
        ):
            for epoch in run:
                while (more := taken(epoch, _AT_ONCE)) is not None:
                    rows += more
                    sizes.append(len(more))
                    bar.add(len(more))
                    self._note(filling, sizes)
        self._note(filling, sizes, is_complete=True)


class FileStore(CacheStore):
    """Examples in the files of a folder.

    Args:
        pipeline: makes the examples.
        sink: where they are.
        what: what must be the same for what is there to be used, in plain JSON types.
        on_stale: what to do if something else is there, or it is damaged.
        progress: whether a bar shows how it is filled.
    """

    def __init__(
        self,
        pipeline: BasePipeline[Any],
        sink: CacheSink,
        what: Mapping[str, Any],
        on_stale: OnStale,
        progress: bool | None,
    ) -> None:
        super().__init__(pipeline, progress)
        self._sink = sink
        self._what = what
        self._on_stale = on_stale
        self._paths: tuple[Path, ...] = ()

    def __repr__(self) -> str:
        return f"cache({str(self._sink.path)!r})"

    def _part(self, number: int, begin: int) -> Generator[Any, None, None]:
        for rows in rows_of_file(self._paths[number], begin):
            yield from rows

    def _fill(self, filling: _Filling) -> None:
        writing = Writing(
            self._pipeline,
            self._sink,
            1,
            "resume" if self._on_stale == "error" else "rebuild",
            True,
            what=self._what,
            waits=True,
        )
        filling.stop = writing.leave
        try:
            if not writing.is_written() and writing.begin():
                if filling.is_left:
                    raise LeftError
                self._show(filling, writing)
                writing.files.committed = lambda: self._show(filling, writing)
                with writing.bar(self._progress):
                    fill(writing, writing.start())
            self._show(filling, writing, is_complete=True)
        finally:
            writing.files.close()

    def _show(self, filling: _Filling, writing: Writing, *, is_complete: bool = False) -> None:
        self._paths = writing.result().paths
        self._note(filling, writing.sizes(), is_complete=is_complete)
