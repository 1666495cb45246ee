"""`Stages.cache`: what the stages before it have made, as the source of the stages behind it.

Every epoch has the examples of epoch 0, in their order. They are known by their numbers, so a
position is a number, and resuming behind a cache begins to read there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, Final, Self

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_count, function_name
from aioqueue.inputs.core.base_source import BaseSource
from aioqueue.inputs.core.cache_file import CacheSink
from aioqueue.inputs.core.code_digest import digest_of_function
from aioqueue.inputs.core.items import Entry, PlacedEntry, closing_run
from aioqueue.inputs.core.positions import Place, digest_of, misplaced
from aioqueue.inputs.core.shuffling import derive_seed
from aioqueue.inputs.pipeline.build import length_of, told_stage
from aioqueue.inputs.pipeline.cache_store import CacheStore, FileStore, MemoryStore, OnStale
from aioqueue.inputs.pipeline.checkpoint import fingerprint_of
from aioqueue.inputs.pipeline.description import BasePipeline, BaseStage
from aioqueue.inputs.pipeline.stages import Prefetch, Prepare, Shard, ToDevice

__all__ = ("CachedSource", "of")

_TAG: Final = int.from_bytes(b"cache", "little")

_FAR: Final = 1024
"""Single examples that are further apart are read one by one, and not with those in between."""

_MISSING: Final = object()

_OF_ROWS: Final = ("drop_none", "seed", "ordered")
"""The options of a `prepare` that decide which examples there are."""


class CachedSource(BaseSource[Any]):
    """The examples of a pipeline, which are made once.

    Args:
        pipeline: makes them.
        path: the folder of the files; ``None`` for the memory of this process.
        key: stands for the code of the functions; ``None`` to look at the code.
        on_stale: what to do if the folder has something else, or is damaged.
        progress: whether a bar shows how it is filled.

    Raises:
        InvalidArgumentError: an argument is wrong, or the pipeline cannot be cached.
        ModuleNotFoundError: files need pyarrow, which is not installed.
    """

    blocking = True

    def __init__(
        self,
        pipeline: BasePipeline[Any],
        path: Any,
        *,
        key: str | None,
        on_stale: OnStale,
        progress: bool | None,
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
            what = {"key": key} if key is not None else {"code": _code_of(pipeline)}
            self._store = FileStore(pipeline, CacheSink(path), what, on_stale, progress)

    def __repr__(self) -> str:
        return f"<aioqueue.inputs.{self._name}, of {self._pipeline!r}>"

    def items_per_epoch(self) -> int | None:
        if any(isinstance(one, Prepare) and one.may_skip() for one in _stages_of(self._pipeline)):
            return None
        return length_of(self._pipeline)

    def entries(self) -> Iterator[Entry[Any]]:
        return self.epoch_entries(0)

    def epoch_entries(self, epoch: int) -> Iterator[Entry[Any]]:
        with closing_run(self._placed_epoch(epoch)) as run:
            for placed in run:
                yield placed.entry

    def _placed_epoch(self, epoch: int, after: Place = None) -> Iterator[PlacedEntry[Any]]:
        begin = 0 if after is None else checked_count(after, "after")
        with closing_run(self._store.rows(begin)) as rows:
            for number, row in enumerate(rows, begin):
                yield PlacedEntry(Entry(row, epoch, number), number + 1)

    def placed_after(self, place: Place) -> Iterator[PlacedEntry[Any]]:
        return self._placed_epoch(0, place)

    def _picked(self, epoch: int, places: Sequence[int]) -> Iterator[Entry[Any]]:
        rows, at = self._store.rows(0), 0  # nothing is read yet
        try:
            for place in places:
                if not at or place - at > _FAR:
                    rows.close()
                    rows, at = self._store.rows(place), place
                row = next(islice(rows, place - at, None), _MISSING)
                if row is _MISSING:
                    raise misplaced(f"example {place} of {self.name}", "one that it has")
                yield Entry(row, epoch, place)
                at = place + 1
        finally:
            rows.close()

    def _taken_at(self, place: Place) -> int:
        return 0 if place is None else int(place)

    def locate(self, index: int) -> str:
        return f"example {index} of {self.name}"

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "cache", "of": fingerprint_of(self._pipeline), "seed": self.seed}

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
        return type(self)(pipeline, self._path, **self._arguments)  # type: ignore[arg-type]


def of(
    pipeline: BasePipeline[Any], path: Any, key: Any, on_stale: Any, progress: Any
) -> CachedSource:
    """The cache for the arguments of the user."""
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


def _code_of(pipeline: BasePipeline[Any]) -> dict[str, str]:
    """What decides which examples the stages make, as digests by the names of the stages.

    Raises:
        InvalidArgumentError: a function holds too much to be told.
    """
    found = {}
    for number, stage in enumerate(_stages_of(pipeline)):
        if not isinstance(stage, Prefetch):
            parts = {name: _digest(value, stage) for name, value in _telling(stage).items()}
            name = f"{number} {stage.name}"
            if isinstance(stage, Prepare):
                name = f"{name} {function_name(stage.function)}"
            found[name] = digest_of(parts)
    source = pipeline.source
    if isinstance(source, CachedSource) and source._arguments["key"] is None:
        found["cache"] = digest_of(_code_of(source._pipeline))
    return found


def _telling(stage: BaseStage) -> dict[str, Any]:
    """The arguments of a stage that decide what it makes."""
    given = {one.name: getattr(stage, one.name) for one in fields(stage)}  # type: ignore[arg-type]
    if isinstance(stage, Prepare):
        options = given.pop("options")
        del given["buffer_size"]
        given |= {name: options[name] for name in _OF_ROWS if name in options}
    given.pop("others", None)  # they come as stages of their own
    return given


def _digest(value: Any, stage: BaseStage) -> str:
    try:
        return digest_of_function(value)
    except RecursionError as error:
        raise InvalidArgumentError(
            f"key: got none, and the function of `{told_stage(stage)}` holds objects nested too"
            " deeply to be compared; expected a string that stands for its code, such as '1'"
        ) from error
