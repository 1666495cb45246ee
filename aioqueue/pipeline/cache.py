"""`Stages.cache`: what the stages before it have made, as the source of the stages behind it.

Every epoch has the examples of epoch 0, in their order. They are known by their numbers, so a
position is a number, and resuming behind a cache begins to read there.

Who goes through a cache reads what is there, and waits for the rest. While somebody does, a thread
runs the pipeline in front of the cache, once. In files, it does so as `Pipeline.write` does: parts
are committed with the position behind them, one process fills at a time, and others wait for it. If
it is stopped, the next one goes on.

A cache is stale if the source, the stages, or the code and values that they use have changed: see
`compared`. It is refused, or made anew. Who has made it anew while another process, whose code is
another one, reads or fills it, gives that process an error: it never sees the other's examples.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from aioqueue import DataLossError, InvalidArgumentError, OutOfRangeError, sync
from aioqueue.base.arguments import checked_count
from aioqueue.base.tracebacks import reraise, shorten
from aioqueue.core.elements.ownership import copy_shared
from aioqueue.errors import add_note
from aioqueue.items.item import Entry, PlacedEntry, closing_run
from aioqueue.items.positions import Place, misplaced
from aioqueue.pipeline.batches.batch_shape import BatchShape, Promised
from aioqueue.pipeline.build import length_of
from aioqueue.pipeline.cache_file import CacheSink, rows_of_file
from aioqueue.pipeline.epochs import Epochs
from aioqueue.pipeline.fingerprint import code_of, times_of
from aioqueue.pipeline.nodes.rows import EpochRange
from aioqueue.pipeline.progress_bar import ProgressBar
from aioqueue.pipeline.stages.base import BasePipeline, BaseStage, gives_batches
from aioqueue.pipeline.stages.shard import Shard
from aioqueue.pipeline.stages.to_device import ToDevice
from aioqueue.pipeline.state.checkpoint import fingerprint_of
from aioqueue.pipeline.write import LeftError, Writing, fill, taken
from aioqueue.sources.base import BaseSource, Determined, PlacedScan, Scan
from aioqueue.sources.shuffling import derive_seed

_TAG: Final = int.from_bytes(b"cache", "little")

_FAR: Final = 1024
"""Single examples that are further apart are read one by one, and not with those in between."""

_BATCHES_AHEAD: Final = 2
"""How many batches a thread may read ahead, for a coroutine."""

_MISSING: Final = object()


class CachedSource(BaseSource[Any]):
    """The examples of a pipeline, which are made once.

    Args:
        pipeline: makes them.
        path: the folder of the files; ``None`` for the memory of this process.
        key: stands for the code of the functions; ``None`` to look at the code.
        on_stale: what to do if the folder has something else, or is damaged.
        progress: whether a bar shows how it is filled.
        code: what the code was when the user made the cache.

    Raises:
        InvalidArgumentError: an argument is wrong, or the pipeline cannot be cached; or its code
            uses something that cannot be compared with that of another run.
        ModuleNotFoundError: files need pyarrow, and without a key cloudpickle.
    """

    blocking = True
    _waits_in_our_calls = True  # for the filling of the cache
    _code: Mapping[str, Any] | None = None

    def __init__(
        self,
        pipeline: BasePipeline[Any],
        path: Any,
        *,
        key: str | None,
        on_stale: OnStale,
        progress: bool | None,
        code: Mapping[str, Any] | None = None,
    ) -> None:
        _check(pipeline, key, on_stale, progress)
        source = pipeline.source
        name = "cache in memory" if path is None else f"cache at {str(path)!r}"
        super().__init__(name, derive_seed(source._stage_seed, _TAG))
        self._seed_was_drawn = source._has_drawn_seed
        self._pipeline = pipeline
        self._arguments = {"key": key, "on_stale": on_stale, "progress": progress}
        self._path = path
        self._store: CacheStore
        if path is None:
            self._store = MemoryStore(pipeline, progress)
        else:
            sink = CacheSink(path)
            if code is None:
                code = {"key": key} if key is not None else {"code": code_of(pipeline)}
            self._code = code
            self._store = FileStore(pipeline, sink, code, on_stale, progress)
        self._batch_shape = Promised(self._store.shape)
        self._gives_batches = gives_batches(source, pipeline.stages)
        if self._gives_batches:
            self._ahead = _BATCHES_AHEAD

    def __repr__(self) -> str:
        return f"<aioqueue.inputs.{self._name}, of {self._pipeline!r}>"

    def _details(self) -> str:
        return f", of {self._pipeline._described()}"

    def items_per_epoch(self) -> int | None:
        if any(one.may_skip() for one in _stages_of(self._pipeline)):
            return None
        return length_of(self._pipeline)

    def _scan(self, epoch: int | None, after: Place) -> Scan[Any]:
        return PlacedScan(partial(self._read, epoch or 0, after))

    def _read(self, epoch: int, after: Place) -> Iterator[PlacedEntry[Any]]:
        begin = 0 if after is None else checked_count(after, "after")
        with closing_run(self._store.rows(begin)) as rows:
            for number, row in enumerate(rows, begin):
                yield PlacedEntry(Entry(row, epoch, number), number + 1)

    def _pick(self, epoch: int | None, places: Sequence[int]) -> Iterator[Entry[Any]]:
        rows, at = self._store.rows(0), 0  # nothing is read yet
        try:
            for place in places:
                if not at or place - at > _FAR:
                    rows.close()
                    rows, at = self._store.rows(place), place
                row = next(islice(rows, place - at, None), _MISSING)
                if row is _MISSING:
                    raise misplaced(f"example {place} of {self.name}", "one that it has")
                yield Entry(row, epoch or 0, place)
                at = place + 1
        finally:
            rows.close()

    def _taken_at(self, place: Place) -> int:
        return 0 if place is None else int(place)

    def locate(self, index: int) -> str:
        return f"example {index} of {self.name}"

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "cache", "of": fingerprint_of(self._pipeline), "seed": self.seed}

    def _determined(self) -> Determined:
        key: Any = self._arguments["key"]
        return Determined(pipeline=self._pipeline, key=key)

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        of = fingerprint.get("of") if isinstance(fingerprint, Mapping) else None
        theirs = of.get("source") if isinstance(of, Mapping) else None
        return self._of(self._pipeline.source._with_seeds_of(theirs))

    def _seeded_by(self, seed: int) -> Self:
        return self._of(self._pipeline.source._seeded_by(seed))

    def _of(self, source: BaseSource[Any]) -> Self:
        """This cache, of the same pipeline with another source."""
        if source is self._pipeline.source:
            return self
        pipeline = self._pipeline._made_of(source, self._pipeline.stages)
        # The code is not looked at again: what it keeps may have changed since, by a first run.
        return type(self)(pipeline, self._path, code=self._code, **self._arguments)  # type: ignore[arg-type]


def of(
    pipeline: BasePipeline[Any], path: Any, key: Any, on_stale: Any, progress: Any
) -> CachedSource:
    """Make the cache from the user's arguments."""
    return CachedSource(pipeline, path, key=key, on_stale=on_stale, progress=progress)


def _check(pipeline: BasePipeline[Any], key: Any, on_stale: Any, progress: Any) -> None:
    if on_stale not in ("error", "rebuild"):
        raise InvalidArgumentError(f"on_stale: got {on_stale!r}; expected 'error' or 'rebuild'")
    if key is not None and not isinstance(key, str):
        raise InvalidArgumentError(f"key: got {key!r}; expected a string, or None")
    if progress is not None and not isinstance(progress, bool):
        raise InvalidArgumentError(f"progress: got {progress!r}; expected a bool or None")
    source = pipeline.source
    if not source._is_repeatable or source._is_async:
        raise InvalidArgumentError(
            f"cache: got a pipeline of {source!r}, which has no positions; expected a source that"
            " gives the same items again"
        )
    for stage in pipeline.stages:
        if isinstance(stage, ToDevice | Shard):
            raise InvalidArgumentError(
                f"cache: got it behind `{stage.name}`; expected it before: a cache has what all"
                " ranks and devices share"
            )


def _stages_of(pipeline: BasePipeline[Any]) -> Iterator[BaseStage]:
    """All stages of a pipeline, also of those that are mixed in."""
    for stage in pipeline.stages:
        yield stage
        for branch in stage.branches():
            yield from _stages_of(branch)


OnStale = Literal["error", "rebuild"]
_Part: TypeAlias = Generator[tuple[Iterable[Any], int], None, None]
"""Some examples after others, with their number."""

_log: Final = logging.getLogger("aioqueue")

_ADVICE: Final = "cache(..., on_stale='rebuild') makes the examples anew"
_AT_ONCE: Final = 256
"""The most examples that are taken at a time in order to keep them in memory."""


def _nothing() -> None:
    pass


class _Filling:
    """One attempt to fill a cache. Readers wait until it has made what they want."""

    def __init__(self) -> None:
        self.news: sync.Latest[None] = sync.Latest(None, name="cache")
        self.failure: BaseException | None = None
        self.is_left = False
        """Whether nobody waits for it any more."""
        self.stop: Callable[[], object] = _nothing
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
        self._shape: BatchShape | None = None  # what is known of them, if they are batches

    def shape(self) -> BatchShape | None:
        """Return the shape of the examples, if they are batches and some are cached."""
        return self._shape

    def rows(self, begin: int) -> Generator[Any, None, None]:
        """The examples from a number on, in order. They belong to the caller.

        If a part turns out to be damaged, and the user has asked for it, all are made anew, once,
        and the run goes on behind the last example that it gave.

        Raises:
            Exception: what has failed while they were made or read.
        """
        filling, was_repaired = self._join(), False
        try:
            while True:
                version = filling.news.version
                ends, is_complete = self._ends, self._is_complete
                if ends and begin < ends[-1]:
                    part = bisect_right(ends, begin)
                    start = ends[part - 1] if part else 0
                    try:
                        with closing(self._part(part, begin - start, ends[part] - start)) as found:
                            for rows, count in found:
                                yield from rows
                                begin += count
                    except DataLossError as damage:
                        if was_repaired:
                            raise
                        repaired = self._repaired(filling, part, damage)
                        if repaired is None:
                            raise
                        filling, was_repaired = repaired, True
                elif is_complete:
                    return
                else:
                    filling = self._wait(filling, version)
        finally:
            self._leave()

    @abstractmethod
    def _part(self, number: int, begin: int, end: int) -> _Part:
        """The examples of a part from a number on, to its end.

        Raises:
            DataLossError: the part is damaged.
        """

    @abstractmethod
    def _fill(self, filling: _Filling) -> None:
        """Make what is missing, and note each part."""

    def _repaired(self, filling: _Filling, number: int, damage: DataLossError) -> _Filling | None:
        """Rebuild a damaged part; return the new filling, or ``None`` if nothing rebuilds it."""
        return None

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
                filling = self._begin()
            return filling

    def _begin(self) -> _Filling:
        """Begin to fill it, if anything is missing. The lock is held."""
        filling = self._filling = _Filling()
        if not self._is_complete:
            threading.Thread(
                target=self._run, args=(filling,), name="aioqueue-cache", daemon=True
            ).start()
        return filling

    def _leave(self) -> None:
        with self._lock:
            self._readers -= 1
            filling = self._filling
            if self._readers or self._is_complete or filling is None:
                return
            filling.is_left = True
        filling.stop()

    def _wait(self, filling: _Filling, version: int) -> _Filling:
        """Wait for more examples; return the filling that makes them from now on."""
        try:
            filling.news.wait_newer(version)
        except OutOfRangeError:
            if filling.failure is not None:
                reraise(filling.failure, is_kept=True)
            with self._lock:
                current = self._filling
                if current is not None and current is not filling:
                    return current  # somebody has found damage
                if not self._is_complete:
                    raise LeftError("the filling of this cache was stopped") from None
        return filling

    def _run(self, filling: _Filling) -> None:
        try:
            self._fill(filling)
        except BaseException as error:
            if filling.is_left:
                if not isinstance(error, LeftError):
                    _log.debug("a cache that nobody reads any more has failed", exc_info=error)
            else:
                add_note(error, f"while {self!r} was filled")
                shorten(error)
                filling.failure = error
        finally:
            filling.stop = _nothing  # it has the run, which is over
            filling.news.close()
            # Break a circle: filling -> failure -> traceback -> this frame -> filling.
            del self, filling


class MemoryStore(CacheStore):
    """Examples in the memory of this process."""

    def __init__(self, pipeline: BasePipeline[Any], progress: bool | None) -> None:
        super().__init__(pipeline, progress)
        self._rows: list[Any] = []

    def __repr__(self) -> str:
        return "cache()"

    def _part(self, number: int, begin: int, end: int) -> _Part:
        start = self._ends[number - 1] if number else 0
        rows = self._rows[start + begin : start + end]
        yield map(copy_shared, rows), len(rows)

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
            filling.stop = partial(_stop, run)
            for epoch in run:
                if filling.is_left:  # the run had not begun when it was to stop
                    raise LeftError
                count = 1  # a few at first, as readers wait for them
                while (more := taken(epoch, count)) is not None:
                    rows += more
                    self._shape = run._batch_shape
                    sizes.append(len(more))
                    bar.add(len(more))
                    self._note(filling, sizes)
                    count = min(2 * count, _AT_ONCE)
        self._note(filling, sizes, is_complete=True)


def _stop(epochs: Epochs[Any]) -> None:
    """Ask a run to end, without waiting for it."""
    run = epochs._run
    if run is not None:
        run.request_stop()


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
        self._times: dict[str, str] | None = None
        self._writing: Writing | None = None  # the last one: it knows what the folder should have

    def __repr__(self) -> str:
        return f"cache({str(self._sink.path)!r})"

    def _part(self, number: int, begin: int, end: int) -> _Part:
        path, is_ours = self._paths[number], False
        try:
            for rows in rows_of_file(path, begin, end, self._note_shape):
                if not is_ours:
                    # The file is open. Who rebuilds writes the record first, and then the files.
                    self._check_ours()
                    is_ours = True
                yield rows, len(rows)
        except FileNotFoundError as error:
            self._check_ours()
            raise DataLossError(path=str(path), offset=0, fault="missing part") from error

    def _note_shape(self, shape: BatchShape) -> None:
        self._shape = shape

    def _whole(self) -> Mapping[str, Any]:
        """What must be the same, with the times of files. These are looked at only now: a file may
        have been made since the pipeline was described."""
        if self._times is None:
            self._times = {} if "key" in self._what else times_of(self._pipeline)
        return {**self._what, **({"files": self._times} if self._times else {})}

    def _check_ours(self) -> None:
        if self._writing is not None:
            self._writing.check_current()

    def _repaired(self, filling: _Filling, number: int, damage: DataLossError) -> _Filling | None:
        self._check_ours()
        if self._on_stale == "error":
            add_note(damage, _ADVICE)
            return None
        with self._lock:
            if self._filling is not filling:
                return self._filling  # another reader has found the damage before
            filling.is_left = True
            self._paths[number].unlink(missing_ok=True)  # nobody is to take it for whole
            self._ends, self._is_complete = (), False
            filled_again = self._begin()
        filling.stop()
        return filled_again

    def _fill(self, filling: _Filling) -> None:
        writing = Writing(
            self._pipeline,
            self._sink,
            1,
            "resume" if self._on_stale == "error" else "rebuild",
            True,
            what=self._whole(),
            waits=True,
        )
        filling.stop = writing.leave
        has_begun, self._writing = self._writing is not None, writing
        try:
            if has_begun:  # what was made anew since, is another process's
                writing.check_current()
            if self._is_to_write(writing):
                if filling.is_left:
                    raise LeftError
                self._show(filling, writing)
                writing.files.committed = lambda: self._show(filling, writing)
                with writing.bar(self._progress):
                    fill(writing, writing.start())
            self._show(filling, writing, is_complete=True)
        finally:
            writing.files.committed = _nothing  # it has `writing`: a circle, which nobody would see
            writing.files.close()

    def _is_to_write(self, writing: Writing) -> bool:
        try:
            return not writing.is_written() and writing.begin()
        except DataLossError as damage:
            add_note(damage, _ADVICE)
            raise

    def _show(self, filling: _Filling, writing: Writing, *, is_complete: bool = False) -> None:
        # Parts have the same names when they are made anew, perhaps while somebody reads the last.
        self._paths = max(writing.result().paths, self._paths, key=len)
        self._note(filling, writing.sizes(), is_complete=is_complete)
