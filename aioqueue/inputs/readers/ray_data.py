"""Datasets of Ray, as they come: a source that cannot be resumed, for what is made there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_count, checked_flag
from aioqueue.inputs.readers.compression import required
from aioqueue.inputs.sources.iterables import OfIterable

__all__ = ("RayDataset", "ray_dataset")


class RayDataset(OfIterable[Any]):
    """A source over a dataset of Ray. See `ray_dataset`, which makes it."""

    _is_repeatable = False

    def fingerprint(self) -> dict[str, Any]:
        """Refused.

        Raises:
            InvalidArgumentError: always.
        """
        raise InvalidArgumentError(
            f"source: got {self!r}, of which there is no position: Ray does not say where a split"
            " is. Expected items(...) or a reader of files, with prepare(..., where='ray'), which"
            " resume exactly; or a run without positions"
        )


def ray_dataset(
    dataset: Any,
    *,
    batch_size: int | None = None,
    copy: bool = False,
    seed: int | None = None,
) -> RayDataset:
    """What a dataset of Ray has, by reference: blocks come out of the object store as they are.

    For data that are made by Ray Data already. It cannot be resumed, and has the faults of
    ``streaming_split``: its consumers wait for each other at the beginning of each epoch, so one
    that does not ask holds up all (ray#41973, #42008), and one that pauses may lose rows (ray PR
    62456). For training that has to go on exactly where it was, use `items` or a reader of files,
    with ``prepare(..., where="ray")``.

    Args:
        dataset: a ``ray.data.Dataset``, all of which is read here; or what its
            ``streaming_split(n, equal=True)`` gives for one rank of n: a ``ray.data.DataIterator``.
        batch_size: how many rows an item has, >= 1: a dict of arrays by column. ``None`` gives rows
            one by one, as dicts.
        copy: whether the arrays of batches are copied, and can be written to; else they are mapped
            from the object store where that can be.
        seed: for the generators of the items; ``None`` takes fresh entropy, once.

    Returns:
        A source of one epoch, each of which reads the dataset anew.

    Raises:
        InvalidArgumentError: an argument is wrong.
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
            f"dataset: got {dataset!r}; expected a ray.data.Dataset, or one of those that its"
            " streaming_split() gives"
        )

    def epoch() -> Iterable[Any]:
        # Rows are never cut off: whether there is a last batch that is not full, `batch` decides.
        return _rows_of(dataset, batch_size, copy=copy)

    return RayDataset(epoch, "ray_dataset", seed=seed, blocking=True)


def _rows_of(dataset: Any, batch_size: int | None, *, copy: bool) -> Iterable[Any]:
    """The rows of a dataset, or its batches."""
    if batch_size is None:
        rows: Iterable[Any] = dataset.iter_rows()
        return rows
    batches: Iterable[Any] = dataset.iter_batches(
        batch_size=batch_size, batch_format="numpy", prefetch_batches=1
    )
    if copy:
        return ({name: one.copy() for name, one in batch.items()} for batch in batches)
    return batches
