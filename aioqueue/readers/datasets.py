"""Datasets of other libraries as sources: `huggingface_dataset`, and `ray_dataset` of Ray Data.

That of Ray cannot be resumed.

A map-style ``Dataset`` is read by index, in small groups, because one row at a time is slow there.
A streaming ``IterableDataset`` says where it is by its own ``state_dict()``. This module looks for
what such a state lacks: the content of a shuffle buffer, and seeds that the library has drawn.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import checked_count, checked_flag
from aioqueue.base.extras import required
from aioqueue.base.public_names import public
from aioqueue.core.elements.ownership import copy_if_shared
from aioqueue.errors import with_article
from aioqueue.fingerprints.contents import digest_of_items
from aioqueue.items.item import Entry
from aioqueue.items.positions import digest_of
from aioqueue.sources.base import Determined
from aioqueue.sources.kinds.iterables import OfIterable, Replay
from aioqueue.sources.kinds.sequences import Sequential, Shard
from aioqueue.sources.kinds.source import Source

_GROUP: Final = 64
"""The rows that are read together."""
_EXACT: Final = (5, 1)
"""The first version of the library whose states lead to the same rows: states of earlier ones lose
rows of some datasets, such as those with a batched ``map``, ``skip`` or ``shuffle``."""
_AT_ONCE: Final = 10_000
_SAMPLES: Final = 1024
"""The rows that a position compares."""


def huggingface_dataset(
    dataset: Any,
    epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard: Shard | None = None,
    *,
    drop_remainder: bool = False,
    replay: Replay = False,
    name: str = "huggingface_dataset",
) -> Source[Any]:
    """Make a source of the rows of a dataset of Hugging Face, with positions.

    A map-style ``datasets.Dataset`` works like `items`: any order, exact resume by index, a length.
    A streaming ``datasets.IterableDataset`` works like `from_iterable`: a resumed run loads the
    last state of the dataset, and reads the rows since then again. Each epoch calls ``set_epoch``
    on a copy, so your dataset stays as it is.

    Rows are what the dataset yields in its format: dicts by column, of Python's values by default,
    of arrays after ``with_format("numpy")``.

    Args:
        dataset: the dataset: one split, such as ``load_dataset(..., split="train")``.
        epochs: as for `items`; so are the rest, which only map-style datasets have. ``None`` for
            streaming.
        shuffle: whether to shuffle each epoch. Streaming datasets shuffle themselves: their
            ``shuffle(seed=..., buffer_size=1)`` shuffles the files, and the pipeline's `shuffle`
            shuffles the rows.
        seed: the seed of the order, and of the rows' generators.
        shard: (index, count) of the shard to yield.
        drop_remainder: leave out rows so that all shards have one length.
        replay: as for `from_iterable`, for a streaming dataset with a shuffle buffer. The state of
            such a dataset lacks the buffer, so its position needs ``replay=True``: a resumed run
            reads the epoch again from its beginning.
        name: the name in messages and in the names of workers.

    Returns:
        A source of rows.

    Raises:
        InvalidArgumentError: an argument is wrong, such as a dict of several splits.
        ModuleNotFoundError: the library ``datasets`` is not installed.
    """
    datasets = required("datasets", "huggingface", "reading datasets of Hugging Face")
    if isinstance(dataset, datasets.Dataset):
        if replay:
            raise InvalidArgumentError(
                f"replay: got {replay!r} for a map-style dataset; expected False, because it is"
                " read by index"
            )
        return HuggingFaceRows(
            dataset,
            name,
            epochs=epochs,
            shuffle=shuffle,
            seed=seed,
            shard=shard,
            drop_remainder=drop_remainder,
        )
    if not isinstance(dataset, datasets.IterableDataset):
        advice = ""
        if isinstance(dataset, datasets.DatasetDict | datasets.IterableDatasetDict):
            advice = f"; choose one of its splits: {', '.join(map(repr, dataset))}"
        elif isinstance(dataset, str):
            advice = f": datasets.load_dataset({dataset!r}, split='train')"
        raise InvalidArgumentError(
            f"dataset: got {with_article(type(dataset).__name__)}; expected a datasets.Dataset or a"
            f" datasets.IterableDataset{advice}"
        )
    given = {
        "epochs": epochs is not None,
        "shuffle": shuffle,
        "shard": shard is not None,
        "drop_remainder": drop_remainder,
    }
    for option, is_given in given.items():
        if is_given:
            raise InvalidArgumentError(
                f"{option}: given with a streaming dataset; {_INSTEAD[option]}"
            )
    return HuggingFaceStream(dataset, name, seed=seed, replay=replay)


_INSTEAD: Final = {
    "epochs": "expected None: pipelines have .epochs(count)",
    "shuffle": (
        "expected dataset.shuffle(seed=..., buffer_size=1), which shuffles its files, and"
        " .shuffle(size) of the pipeline, which shuffles the rows"
    ),
    "shard": "expected .shard(rank, ranks) of a pipeline",
    "drop_remainder": "expected .shard(rank, ranks) of a pipeline, which makes ranks equal",
}


class HuggingFaceRows(Sequential[Any]):
    """A source over a map-style dataset. `huggingface_dataset` makes it."""

    _functions = ("huggingface_dataset",)
    _extra = "huggingface"

    blocking = True

    def _entries_at(self, epoch: int, places: Iterable[int]) -> Iterator[Entry[Any]]:
        found = iter(places)
        while group := list(islice(found, _GROUP)):
            for index, value in zip(group, self._rows(group), strict=True):
                yield Entry(copy_if_shared(value), epoch, index)

    def _rows(self, places: list[int]) -> Iterable[Any]:
        """Return some rows; if one fails, the others come one by one before it."""
        dataset: Any = self._sequence
        if not dataset.column_names:
            return (dataset[place] for place in places)
        try:
            rows: list[Any] = dataset.__getitems__(places)
        except Exception:
            return (dataset[place] for place in places)
        return rows

    def _compare_items(self) -> dict[str, str]:
        """Return digests of the columns, and of some rows as they are stored.

        The library's own fingerprint would not do: it differs from machine to machine.
        """
        dataset: Any = self._sequence
        columns = {name: str(feature) for name, feature in dataset.features.items()}
        found = {"columns": digest_of(columns)}
        count = len(dataset)
        if count and columns:
            places = {(count - 1) * at // (_SAMPLES - 1): None for at in range(_SAMPLES)}
            if count <= 4 * _SAMPLES:
                places = dict.fromkeys(range(count))
            table = dataset.with_format("arrow")[list(places)]
            rows = digest_of_items(table.to_pylist())
            found |= {} if rows is None else {"items": rows}
        return found

    def _determined(self) -> Determined:
        dataset: Any = self._sequence
        return Determined(values={"format": _format_of(dataset), "rows": _Content(dataset)})


class _Content:
    """All rows of a dataset, for comparison: the library's objects say where they are stored."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset.with_format("arrow")

    def __reduce__(self) -> tuple[Any, ...]:
        import pyarrow as pa

        digest = blake2b(digest_size=16)
        for begin in range(0, len(self._dataset), _AT_ONCE):
            table = self._dataset[begin : begin + _AT_ONCE].replace_schema_metadata(None)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table.combine_chunks())
            digest.update(sink.getvalue())
        return str, (digest.hexdigest(),)


def _format_of(dataset: Any) -> Any:
    """Return the form in which a dataset gives its rows, perhaps by a function of the user."""
    return {name: dataset.format[name] for name in ("type", "format_kwargs", "columns")}


class HuggingFaceStream(OfIterable[Any]):
    """A source over a streaming dataset. `huggingface_dataset` makes it.

    Args:
        dataset: the dataset.
        name: the name in messages.
        seed: the seed of the rows' generators.
        replay: whether a resumed run may read an epoch again from its beginning.
    """

    _functions = ("huggingface_dataset",)
    _extra = "huggingface"

    def __init__(self, dataset: Any, name: str, *, seed: int | None, replay: Replay) -> None:
        why = _why_inexact(dataset)
        # No bound method: the source would refer to itself.
        begun = partial(_begun, dataset, why is None)
        super().__init__(begun, name, seed=seed, blocking=True, replay=replay)
        self._dataset = dataset
        if why is not None and not replay:
            self._is_repeatable = False
            self._refusal = InvalidArgumentError(
                f"dataset: got {self!r} {why}; or replay=True, which reads an epoch again from its"
                " beginning"
            )

    def _details(self) -> str:
        return f" of a stream, seed={self.seed}"

    def _determined(self) -> Determined:
        return Determined(values={"dataset": list(_parts(self._dataset))})

    def fingerprint(self) -> dict[str, Any]:
        """Return what a position must have in common with this source.

        Raises:
            InvalidArgumentError: the dataset has no exact state; the message says what to do.
        """
        info = self._dataset.info
        generators = [getattr(one, "generator", None) for one in _parts(self._dataset)]
        return {
            **super().fingerprint(),
            "dataset": getattr(info, "dataset_name", None),
            "config": getattr(info, "config_name", None),
            "split": None if self._dataset.split is None else str(self._dataset.split),
            "shards": self._dataset.num_shards,
            "columns": self._dataset.column_names,
            # Without seeds of their own they would shuffle otherwise in another process.
            "seeds": [
                digest_of(str(one.bit_generator.state))
                for one in generators
                if isinstance(one, np.random.Generator)
            ],
        }


def _begun(whole: Any, has_state: bool, epoch: int) -> Any:
    """Return the dataset of an epoch, which has its own state."""
    # `copy.copy` would share the fields: its `__getstate__` returns them themselves.
    dataset = object.__new__(type(whole))
    dataset.__dict__.update(whole.__dict__)
    if hasattr(dataset, "_ex_iterable"):
        dataset._ex_iterable = _copied(dataset._ex_iterable)
    if hasattr(dataset, "_epoch"):
        dataset._epoch = copy.deepcopy(dataset._epoch)  # a tensor, if PyTorch is there
    dataset.set_epoch(epoch)
    return dataset if has_state else _WithoutState(dataset)


class _WithoutState:
    """The rows of a dataset whose state would not lead to the same rows."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset)


def _why_inexact(dataset: Any) -> str | None:
    """Return why the state of a dataset does not lead to the same rows, and what to use instead."""
    version = required("datasets", "huggingface", "reading datasets of Hugging Face").__version__
    if tuple(map(int, version.split(".")[:2])) < _EXACT:
        return (
            f"of datasets {version}, whose states lose rows; expected datasets"
            f" {'.'.join(map(str, _EXACT))} or later"
        )
    if any(getattr(one, "buffer_size", 1) > 1 for one in _parts(dataset)):
        return (
            "with a shuffle buffer, which is not part of its state; expected"
            " dataset.shuffle(seed=..., buffer_size=1), which shuffles its files, and"
            " .shuffle(size) of the pipeline"
        )
    return None


def _parts(dataset: Any) -> Iterator[Any]:
    """Yield the steps that a streaming dataset consists of."""
    pending = [getattr(dataset, "_ex_iterable", None)]
    while pending:
        part = pending.pop()
        if part is not None:
            yield part
            pending += [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", ())]


def _copied(part: Any) -> Any:
    """Copy the steps of a streaming dataset, with the state of a run, but without its data."""
    made = copy.copy(part)
    if hasattr(part, "ex_iterable"):
        made.ex_iterable = _copied(part.ex_iterable)
    if hasattr(part, "ex_iterables"):
        made.ex_iterables = [_copied(one) for one in part.ex_iterables]
    return made


@public("aioqueue.inputs")
class RayDataset(OfIterable[Any]):
    """A source over a dataset of Ray. `ray_dataset` makes it."""

    _functions = ("ray_dataset",)
    _extra = "ray-data"
    _page = "howto/cluster.md"
    _resumes = "never"

    _is_repeatable = False

    def fingerprint(self) -> dict[str, Any]:
        """Refuse: there are no positions.

        Raises:
            InvalidArgumentError: always.
        """
        raise InvalidArgumentError(
            f"source: got {self!r}, which has no positions, because Ray does not say where a split"
            " is; expected items(...) or a reader of files, with prepare(..., where='ray'), which"
            " resume exactly; or a run without positions"
        )


def ray_dataset(
    dataset: Any,
    *,
    batch_size: int | None = None,
    copy: bool = False,
    seed: int | None = None,
) -> RayDataset:
    """Read a dataset of Ray Data, by reference: blocks come from the object store without a copy.

    Use it for data that Ray Data already makes. It cannot be resumed, and it shares the limits of
    ``streaming_split``: its consumers wait for each other at the beginning of each epoch, so a slow
    consumer holds up all others (ray#41973, #42008), and a consumer that pauses may lose rows (ray
    PR 62456). For training that must resume exactly, use `items` or a reader of files, with
    ``prepare(..., where="ray")``.

    Args:
        dataset: a ``ray.data.Dataset``, which is read as a whole here; or one rank's
            ``ray.data.DataIterator`` from ``streaming_split(n, equal=True)``.
        batch_size: the number of rows per item, >= 1; an item is then a dict of arrays by column.
            ``None`` yields single rows, as dicts.
        copy: whether to copy the arrays of batches, so that you can write to them. Otherwise they
            are mapped from the object store if possible.
        seed: the seed of the items' generators; ``None`` takes fresh entropy, once.

    Returns:
        A source of one epoch. Each pass over it reads the dataset anew.

    Raises:
        InvalidArgumentError: any argument is not as described.
        ModuleNotFoundError: Ray Data is not installed.
    """
    data = required("ray.data", "ray-data", "reading datasets of Ray")
    checked_flag(copy, "copy")
    if batch_size is not None:
        batch_size = checked_count(batch_size, "batch_size", least=1)
    if isinstance(dataset, data.Dataset):
        (dataset,) = dataset.streaming_split(1)
    if not isinstance(dataset, data.DataIterator):
        raise InvalidArgumentError(
            f"dataset: got {dataset!r}; expected a ray.data.Dataset, or one of the results of its"
            " streaming_split()"
        )

    def epoch() -> Iterable[Any]:
        # Keep all rows: `batch` decides what happens to a last batch that is not full.
        return _rows_of(dataset, batch_size, copy=copy)

    return RayDataset(epoch, "ray_dataset", seed=seed, blocking=True)


def _rows_of(dataset: Any, batch_size: int | None, *, copy: bool) -> Iterable[Any]:
    if batch_size is None:
        rows: Iterable[Any] = dataset.iter_rows()
        return rows
    batches: Iterable[Any] = dataset.iter_batches(
        batch_size=batch_size, batch_format="numpy", prefetch_batches=1
    )
    if copy:
        return ({name: one.copy() for name, one in batch.items()} for batch in batches)
    return batches
