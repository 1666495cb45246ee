"""`ray_dataset`: a source over a dataset of Ray Data, which cannot be resumed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_count, checked_flag
from aioqueue.extras import required
from aioqueue.inputs.sources.iterables import OfIterable
from aioqueue.public_names import public

__all__ = ("RayDataset", "ray_dataset")


@public("aioqueue.inputs")
class RayDataset(OfIterable[Any]):
    """A source over a dataset of Ray. `ray_dataset` makes it."""

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
    """Return the rows of a dataset, or its batches."""
    if batch_size is None:
        rows: Iterable[Any] = dataset.iter_rows()
        return rows
    batches: Iterable[Any] = dataset.iter_batches(
        batch_size=batch_size, batch_format="numpy", prefetch_batches=1
    )
    if copy:
        return ({name: one.copy() for name, one in batch.items()} for batch in batches)
    return batches
