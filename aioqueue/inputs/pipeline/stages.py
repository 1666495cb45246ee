"""The stages of a pipeline: each checks its arguments, and makes the node that does the work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from aioqueue import InvalidArgumentError, sync
from aioqueue.api_misuse import unexpected_keyword
from aioqueue.arguments import checked_count, checked_flag, function_name, is_async, makes_several
from aioqueue.inputs.core.base_source import BaseSource
from aioqueue.inputs.core.buckets import checked_buckets
from aioqueue.inputs.core.collation import Collator, flattened
from aioqueue.inputs.core.example_components import checked_objects
from aioqueue.inputs.core.ranks import EpochEntries, Rank
from aioqueue.inputs.core.shuffling import resolved_seed
from aioqueue.inputs.devices import Target, target_of
from aioqueue.inputs.pipeline.description import BasePipeline, BaseStage, BuildContext
from aioqueue.inputs.pipeline.node import Node
from aioqueue.inputs.pipeline.pack_and_bucket_nodes import BucketNode, PackNode, TooLong
from aioqueue.inputs.pipeline.transform_nodes import (
    BatchNode,
    DeviceArrivalNode,
    DeviceCopyNode,
    FilterNode,
    ShuffleNode,
    UnbatchNode,
)
from aioqueue.inputs.prepare.calls_and_retries import takes_rng
from aioqueue.inputs.prepare.runner import prepare_items
from aioqueue.inputs.prepare_options import PrepareOptions

_LEAST_AHEAD: Final = 64
"""The least number of prepared examples that may wait behind a stage."""


@dataclass(frozen=True)
class Read(BaseStage):
    """Reads an async iterable in a task of its own. `Builder` adds this stage, and not the user."""

    name: ClassVar[str] = "read"
    source: str

    def details(self) -> str:
        return self.source

    def node(self, upstream: Node, building: BuildContext) -> Node:
        options = {"workers": 1, "ordered": True, "max_in_flight": 1}
        return building.workers(upstream, _itself_async, buffer_size=_LEAST_AHEAD, options=options)


@dataclass(frozen=True)
class Prepare(BaseStage):
    """Calls a function with every row, on workers."""

    name: ClassVar[str] = "prepare"
    function: Callable[..., Any]
    buffer_size: int | None
    options: dict[str, Any]

    def __post_init__(self) -> None:
        unknown = self.options.keys() - PrepareOptions.__optional_keys__
        if unknown:
            known = ("function", "buffer_size", *PrepareOptions.__optional_keys__)
            raise unexpected_keyword(self.name, min(unknown), known, "inputs")
        if self.buffer_size is not None:
            checked_count(self.buffer_size, "buffer_size", least=1)
        # A run would check the options, too. But the traceback should lead to the user's line that
        # adds this stage.
        prepare_items((), self.function, into=sync.FIFOQueue(1), **self.options)

    def details(self) -> str:
        options = self.options
        where = options.get("where", "auto")
        if where == "auto":
            where = "task" if is_async(self.function) else "thread"
        count = options.get("workers", 4)
        plural = {"process": "processes"}.get(where, f"{where}s")
        parts = [function_name(self.function), f"on {count} {where if count == 1 else plural}"]
        if not options.get("ordered", True):
            parts.append("unordered")
        if options.get("autotune"):
            parts.append("tuned while it runs")
        if options.get("rate") is not None:
            whose = " for each key" if options.get("concurrency_key") else ""
            parts.append(f"(at most {options['rate']}{whose})")
        if options.get("on_error", "stop") != "stop":
            parts.append(f"on_error={options['on_error']!r}")
        return " ".join(parts)

    def node(self, upstream: Node, building: BuildContext) -> Node:
        options = {"ordered": True, "seed": building.seed("prepare"), **self.options}
        if options["seed"] is None:
            del options["seed"]
        buffer_size = self.buffer_size or max(
            _LEAST_AHEAD, min(2 * building.largest_batch(), sys.maxsize)
        )
        return building.workers(upstream, self.function, buffer_size=buffer_size, options=options)

    def fingerprint(self) -> dict[str, Any]:
        seed = self.options.get("seed")
        own = {} if seed is None else {"seed": seed}
        return own if self.options.get("ordered", True) else {"ordered": False, **own}

    def draws(self) -> bool:
        return takes_rng(self.function)

    def may_skip(self) -> bool:
        """Whether it may skip items that have failed."""
        return bool(self.options.get("on_error", "stop") != "stop")

    def length(self, rows: int | None) -> int | None:
        is_other = makes_several(self.function) or self.options.get("drop_none")
        return None if is_other else rows


class Flat(Prepare):
    """Calls a function with every row, on workers, and flattens the iterables that it returns."""

    name = "flat"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        flat = Prepare(flattened(self.function), self.buffer_size, self.options)
        return flat.node(upstream, building)

    def length(self, rows: int | None) -> int | None:
        return None


class MapBatches(Prepare):
    """Calls a function with every batch, on workers."""

    name = "map_batches"


@dataclass(frozen=True)
class Filter(BaseStage):
    """Keeps the rows for which a function returns a true value."""

    name: ClassVar[str] = "filter"
    predicate: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.predicate) or is_async(self.predicate):
            raise InvalidArgumentError(
                f"predicate: got {self.predicate!r}; expected a plain function (pass a coroutine"
                " function that returns None for unwanted items to prepare(function,"
                " drop_none=True))"
            )

    def function_name(self) -> str:
        return function_name(self.predicate)

    def details(self) -> str:
        return function_name(self.predicate)

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return FilterNode(upstream, self.predicate)

    def length(self, rows: int | None) -> int | None:
        return None


@dataclass(frozen=True)
class Shuffle(BaseStage):
    """Draws rows at random from a buffer."""

    name: ClassVar[str] = "shuffle"
    size: int
    seed: int | None

    def __post_init__(self) -> None:
        checked_count(self.size, "size", least=1)
        resolved_seed(self.seed)

    def details(self) -> str:
        return f"{self.size}" if self.seed is None else f"{self.size} seed={self.seed}"

    def passes_on(self) -> bool:
        return True

    def draws(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        seed = building.seed("shuffle")
        return ShuffleNode(upstream, int(self.size), seed if self.seed is None else int(self.seed))

    def fingerprint(self) -> dict[str, Any]:
        own = {} if self.seed is None else {"seed": self.seed}
        return {"buffer": int(self.size), **own}


@dataclass(frozen=True)
class Batch(BaseStage):
    """Makes batches of consecutive rows."""

    name: ClassVar[str] = "batch"
    size: int
    drop_remainder: bool
    pad: bool
    padding_value: Any
    collate: Callable[[list[Any]], Any] | None
    across_epochs: bool
    objects: Any = False

    @classmethod
    def of_size(cls, size: Any) -> Batch:
        """The stage for who says no more than a size."""
        return cls(size, False, False, 0, None, False)

    def __post_init__(self) -> None:
        checked_count(self.size, "size", least=1)
        for name in ("drop_remainder", "pad", "across_epochs"):
            checked_flag(getattr(self, name), name)
        check_collate(self.collate)
        objects = checked_objects(self.objects)
        if self.collate is not None and (self.pad or objects or not _is_zero(self.padding_value)):
            name = "pad" if self.pad else "objects" if objects else "padding_value"
            raise InvalidArgumentError(
                f"{name}: got {getattr(self, name)!r} beside collate={function_name(self.collate)};"
                " expected only one of them: your function makes the batch, so let it do the"
                f" {'rest' if objects else 'padding'}"
            )
        object.__setattr__(self, "objects", objects)  # as a `Collator` wants it

    def function_name(self) -> str:
        return self.name if self.collate is None else function_name(self.collate)

    def details(self) -> str:
        flags = ("drop_remainder", "pad", "across_epochs")
        return " ".join([str(self.size), *(flag for flag in flags if getattr(self, flag))])

    def copies(self) -> bool:
        return self.collate is None

    def makes_batches(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return BatchNode(
            upstream,
            int(self.size),
            self.collate
            or Collator(
                pad=self.pad,
                padding_value=self.padding_value,
                objects=self.objects,
            ),
            drop_remainder=self.drop_remainder,
            across_epochs=self.across_epochs,
        )

    def length(self, rows: int | None) -> int | None:
        if rows is None or (self.across_epochs and rows % self.size):
            return None
        return rows // self.size if self.drop_remainder else -(-rows // self.size)

    def goes_on(self) -> bool:
        return self.across_epochs

    def fingerprint(self) -> dict[str, Any]:
        return {"across_epochs": True} if self.across_epochs else {}

    def is_elastic(self) -> bool:
        return not self.across_epochs

    def depends_on_data(self) -> bool:
        return False  # across epochs it depends on the epoch, but that is the same on all ranks

    def needs(self) -> int:
        return int(self.size)


@dataclass(frozen=True)
class Bucket(BaseStage):
    """Makes padded batches of rows of similar length."""

    name: ClassVar[str] = "bucket"
    boundaries: Any
    batch_size: Any
    tokens_per_batch: int | None
    of_length: Callable[[Any], int] | None
    padding_value: Any
    pad_to_boundary: bool
    on_too_long: Any
    drop_remainder: bool
    objects: Any = False

    def __post_init__(self) -> None:
        checked_flag(self.drop_remainder, "drop_remainder")
        self._buckets()

    def function_name(self) -> str:
        return self.name if self.of_length is None else function_name(self.of_length)

    def details(self) -> str:
        is_by_rows = self.batch_size is not None
        size = f"{self.batch_size} rows" if is_by_rows else f"{self.tokens_per_batch} tokens"
        return f"{size} by length {[int(one) for one in self.boundaries]}"

    def copies(self) -> bool:
        return True

    def makes_batches(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return BucketNode(upstream, self._buckets(), drop_remainder=self.drop_remainder)

    def fingerprint(self) -> dict[str, Any]:
        limit = self._buckets().limit
        return {
            "boundaries": list(limit.boundaries),
            "batch_size": None if limit.sizes is None else list(limit.sizes),
            "tokens_per_batch": limit.budget,
            "pad_to_boundary": limit.to_boundary,
            "on_too_long": self.on_too_long,
        }

    def length(self, rows: int | None) -> int | None:
        return None

    def _buckets(self) -> Any:
        return checked_buckets(
            self.boundaries,
            self.batch_size,
            self.tokens_per_batch,
            length=self.of_length,
            padding_value=self.padding_value,
            pad_to_boundary=self.pad_to_boundary,
            on_too_long=self.on_too_long,
            objects=self.objects,
        )


@dataclass(frozen=True)
class Pack(BaseStage):
    """Packs sequences into rows of a fixed length."""

    name: ClassVar[str] = "pack"
    row_length: int
    padding_value: Any
    on_too_long: TooLong
    open_rows: int = 8
    """How many rows stay open for more sequences. If one fits in none, the oldest is given out."""

    def __post_init__(self) -> None:
        checked_count(self.row_length, "length", least=1)
        if self.on_too_long not in ("fail", "skip", "split"):
            raise InvalidArgumentError(
                f"on_too_long: got {self.on_too_long!r}; expected 'fail', 'skip' or 'split'"
            )

    def details(self) -> str:
        return f"into rows of {self.row_length}"

    def copies(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return PackNode(
            upstream,
            int(self.row_length),
            int(self.open_rows),
            self.padding_value,
            self.on_too_long,
        )

    def fingerprint(self) -> dict[str, Any]:
        return {
            "length": int(self.row_length),
            "open_rows": int(self.open_rows),
            "on_too_long": self.on_too_long,
        }

    def length(self, rows: int | None) -> int | None:
        return None


@dataclass(frozen=True)
class Unbatch(BaseStage):
    """Splits batches into their rows."""

    name: ClassVar[str] = "unbatch"

    def details(self) -> str:
        return ""

    def makes_batches(self) -> bool:
        return False

    def depth_of_batches(self, depth: int) -> int:
        return max(0, depth - 1)

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return UnbatchNode(upstream)

    def length(self, rows: int | None) -> int | None:
        return None


@dataclass(frozen=True)
class Prefetch(BaseStage):
    """Makes the next rows ahead, in a thread of its own."""

    name: ClassVar[str] = "prefetch"
    buffer_size: int

    def __post_init__(self) -> None:
        checked_count(self.buffer_size, "buffer_size", least=1)

    def details(self) -> str:
        return str(self.buffer_size)

    def passes_on(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        options = {"workers": 1, "ordered": True, "max_in_flight": 1}
        return building.workers(
            upstream, _itself, buffer_size=int(self.buffer_size), options=options
        )


@dataclass(frozen=True)
class ToDevice(BaseStage):
    """Copies the next batches to a device."""

    name: ClassVar[str] = "to_device"
    target: Target
    buffer_size: int

    @classmethod
    def of(cls, device: Any, buffer_size: Any) -> ToDevice:
        """The stage for the arguments of the user."""
        return cls(target_of(device), checked_count(buffer_size, "buffer_size", least=1))

    def details(self) -> str:
        return f"{self.target.name}, {self.buffer_size} ahead"

    def copies(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        upstream.defer()
        copy = DeviceCopyNode(self.target.open()).copy
        # One worker with one batch in flight: so the ring of host memory has one writer, and the
        # device holds `buffer_size` batches and one more that waits for room.
        options = {"workers": 1, "ordered": True, "max_in_flight": 1}
        return DeviceArrivalNode(
            building.workers(
                upstream, copy, buffer_size=self.buffer_size, options=options, at_once=1
            )
        )


@dataclass(frozen=True)
class Shard(BaseStage):
    """Reads one rank's shard of the source."""

    name: ClassVar[str] = "shard"
    rank: Rank

    @classmethod
    def of(cls, rank: Any, ranks: Any, uneven: Any) -> Shard:
        """The stage for the arguments of the user."""
        return cls(Rank.checked(rank, ranks, uneven))

    def details(self) -> str:
        rank, ranks, uneven = self.rank
        return f"{rank} of {ranks}, uneven={uneven!r}"

    def passes_on(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return upstream  # the source node reads only the shard, so there is nothing left to do

    def fingerprint(self) -> dict[str, Any]:
        return dict(self.rank._asdict())


def as_pipeline(given: Any) -> BasePipeline[Any]:
    """Return a pipeline as it is, and a source as a pipeline without stages.

    Raises:
        InvalidArgumentError: the value is neither.
    """
    if isinstance(given, BasePipeline):
        return given
    if isinstance(given, BaseSource):
        return BasePipeline(given)
    raise InvalidArgumentError(
        f"others: got {given!r}; expected pipelines, or sources of aioqueue.inputs"
    )


def rank_of(stages: Iterable[BaseStage]) -> Rank:
    """Which shard of the source some stages read."""
    return next((stage.rank for stage in stages if isinstance(stage, Shard)), Rank())


def length_behind(stages: Iterable[BaseStage], rows: int | None) -> int | None:
    """How many rows some stages make of a number of rows; ``None`` if that is unknown."""
    for stage in stages:
        rows = stage.length(rows)
    return rows


def length_of_source(given: Any) -> int | None:
    """How many rows an epoch of a pipeline or source has, where that is known."""
    pipeline = as_pipeline(given)
    entries = EpochEntries(pipeline.source, rank_of(pipeline.stages))
    return length_behind(pipeline.stages, entries.length())


def check_collate(collate: Any) -> None:
    """Check a function of a user's that makes a batch of examples.

    Raises:
        InvalidArgumentError: it is neither a plain function nor ``None``.
    """
    if collate is not None and (not callable(collate) or is_async(collate)):
        raise InvalidArgumentError(f"collate: got {collate!r}; expected a plain function or None")


def _is_zero(value: Any) -> bool:
    return isinstance(value, int | float) and value == 0


def _itself(row: Any) -> Any:
    return row


async def _itself_async(row: Any) -> Any:
    return row
