"""`bucket_by_sequence_length`: batches of examples of similar length, to save padding.

Khomenko et al., "Accelerating recurrent neural network training using sequence bucketing and
multi-GPU data parallelization" (2016), measure what that is worth.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import checked_count, checked_flag, is_int
from aioqueue.pipeline.batches.collation import Collator
from aioqueue.pipeline.batches.layout import checked_objects, values_of
from aioqueue.workers.statistics import BucketStatistics

_log: Final = logging.getLogger("aioqueue")

TooLong = Literal["fail", "skip"]


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest size of the batch of each bucket.

    Args:
        boundaries: the lower bounds of the buckets, except for the first.
        sizes: examples per batch, for each bucket; ``None`` if there is a budget.
        budget: elements per batch, padding included; ``None`` if there are sizes.
        to_boundary: whether to pad examples to the longest that fits their bucket.
    """

    boundaries: tuple[int, ...]
    sizes: tuple[int, ...] | None
    budget: int | None
    to_boundary: bool

    @property
    def buckets(self) -> int:
        return len(self.boundaries) + (not self.to_boundary)

    def bucket(self, length: int) -> int:
        return bisect.bisect_right(self.boundaries, length)

    def padded(self, length: int) -> int:
        return self.boundaries[self.bucket(length)] - 1 if self.to_boundary else length

    def fits(self, rows: int, longest: int) -> bool:
        if self.sizes is not None:
            return rows <= self.sizes[self.bucket(longest)]
        assert self.budget is not None
        return rows * max(self.padded(longest), 1) <= self.budget

    def is_too_long(self, length: int) -> bool:
        if self.to_boundary and length >= self.boundaries[-1]:
            return True
        return self.budget is not None and self.padded(length) > self.budget


class _Group:
    """The examples of the next batch, or their lengths alone."""

    __slots__ = ("examples", "lengths", "longest", "tags", "total")

    def __init__(self) -> None:
        self.examples: list[Any] = []
        self.tags: list[Any] = []
        self.lengths: list[int] = []
        self.longest = 0
        self.total = 0

    def add(self, length: int) -> None:
        self.lengths.append(length)
        self.longest = max(self.longest, length)
        self.total += length

    def takes(self, limit: Limit, length: int) -> bool:
        return limit.fits(len(self.lengths) + 1, max(self.longest, length))

    def padding(self, to: int | None = None) -> int:
        return len(self.lengths) * (self.longest if to is None else to) - self.total


class Buckets:
    """Sorts examples into buckets, and returns the batches of full buckets.

    Only one caller at a time may add examples; any thread may read the statistics meanwhile.

    Args:
        limit: the largest size of batches.
        length: returns the length of an example; ``None`` for the size of the first dimension.
        collate: makes a batch.
        on_too_long: what to do with an example that fits no batch.
    """

    def __init__(
        self,
        limit: Limit,
        *,
        length: Callable[[Any], int] | None,
        collate: Collator,
        on_too_long: TooLong,
    ) -> None:
        self.limit = limit
        self._length = length or _first_dimension
        self.collator: Final = collate
        """Makes a batch, now or later."""
        self._collate: Callable[..., Any] = collate
        self._too_long = on_too_long
        self._lock = threading.Lock()  # guards all below
        self._groups = [_Group() for _ in range(limit.buckets)]
        self._plain = _Group()  # the next batch that there would be without buckets
        self._sorted = self._skipped = self._batches = 0
        self.latest: list[Any] = []
        """The tags of the examples in the latest batch."""
        self._elements = self._padding = 0
        self._plain_elements = self._plain_padding = 0

    def add(self, example: Any, tag: Any = None) -> Iterable[tuple[Any, Any]]:
        """Sort one example; return the batches that it completes: none, one or two.

        Each is a pair ``(lengths, batch)``. If there are two, the second has only this example.

        Args:
            example: the example to sort.
            tag: its tag.
        """
        length = self._checked_length(example)
        if self.limit.is_too_long(length):
            self._refuse(length)
            return
        bucket = self.limit.bucket(length)
        if not self._groups[bucket].takes(self.limit, length):
            yield self._batch_of(bucket)
        with self._lock:
            self._sorted += 1
            self._count_plain(length)
            group = self._groups[bucket]
            group.examples.append(example)
            group.tags.append(tag)
            group.add(length)
        if not group.takes(self.limit, group.longest):
            yield self._batch_of(bucket)

    @property
    def skipped(self) -> int:
        return self._skipped

    @property
    def held(self) -> int:
        """How many examples are in the buckets."""
        return sum([len(group.tags) for group in self._groups])

    def tags(self) -> list[Any]:
        """Return the tags of the examples in the buckets, in order of arrival within a bucket."""
        return [tag for group in self._groups for tag in group.tags]

    def rest(self) -> Iterable[tuple[Any, Any]]:
        """Return the examples that are left in the buckets as batches, the shortest first."""
        for bucket in range(self.limit.buckets):
            if self._groups[bucket].lengths:
                yield self._batch_of(bucket)

    def clear(self) -> None:
        with self._lock:
            self._groups = [_Group() for _ in range(self.limit.buckets)]

    def defer(self) -> None:
        """Make no more batches here: from now on return `Uncollated`, for the consumer to make."""
        self._collate = self.collator.later

    def statistics(self) -> BucketStatistics:
        with self._lock:
            return BucketStatistics(
                examples=self._sorted,
                skipped=self._skipped,
                batches=self._batches,
                waiting=tuple(len(group.lengths) for group in self._groups),
                elements=self._elements,
                padding=self._padding,
                plain_elements=self._plain_elements,
                plain_padding=self._plain_padding + self._plain.padding(),
            )

    def counts(self) -> list[int]:
        with self._lock:
            plain = self._plain
            return [
                *(self._sorted, self._skipped, self._batches),
                *(self._elements, self._padding, self._plain_elements, self._plain_padding),
                *(len(plain.lengths), plain.longest, plain.total),
            ]

    def restore_counts(self, counts: Sequence[int]) -> None:
        with self._lock:
            self._sorted, self._skipped, self._batches, *lengths = counts
            self._elements, self._padding, self._plain_elements, self._plain_padding, *rest = (
                lengths
            )
            self._plain = _Group()
            rows, self._plain.longest, self._plain.total = rest
            if not self.limit.fits(max(rows, 1), self._plain.longest):
                raise ValueError(f"got {rows} rows of a batch, which has fewer")
            self._plain.lengths = [0] * rows  # only their number matters

    def _checked_length(self, example: Any) -> int:
        length = self._length(example)
        if not is_int(length) or length < 0:
            raise InvalidArgumentError(f"length: returned {length!r}; expected an int >= 0")
        return int(length)

    def _refuse(self, length: int) -> None:
        if self._too_long == "fail":
            limit = self.limit
            most = limit.budget if limit.budget is not None else limit.boundaries[-1] - 1
            raise InvalidArgumentError(
                f"example: got one of length {length}; expected at most {most}, for which a batch"
                ' is large enough (on_too_long="skip" leaves such examples out)'
            )
        with self._lock:
            self._skipped += 1

    def _batch_of(self, bucket: int) -> tuple[Any, Any]:
        """Return the bucket's examples as a batch, and empty the bucket."""
        with self._lock:
            group, self._groups[bucket] = self._groups[bucket], _Group()
        self.latest = group.tags
        longest = self.limit.padded(group.longest)
        batch = self._collate(group.examples, lengths=group.lengths, to=longest)
        with self._lock:
            self._batches += 1
            self._elements += group.total
            self._padding += group.padding(longest)
        return np.array(group.lengths, np.int64), batch

    def _count_plain(self, length: int) -> None:
        if self._plain.lengths and not self._plain.takes(self.limit, length):
            self._plain_padding += self._plain.padding()
            self._plain = _Group()
        self._plain.add(length)
        self._plain_elements += length


def checked_buckets(
    boundaries: Any,
    batch_size: Any,
    tokens_per_batch: Any,
    *,
    length: Any,
    padding_value: Any,
    pad_to_boundary: Any,
    on_too_long: Any,
    objects: Any = False,
) -> Buckets:
    """Make buckets from the user's arguments.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """
    limit = _checked_limit(boundaries, batch_size, tokens_per_batch, pad_to_boundary)
    if on_too_long not in ("fail", "skip"):
        raise InvalidArgumentError(f'on_too_long: got {on_too_long!r}; expected "fail" or "skip"')
    if length is not None and not callable(length):
        raise InvalidArgumentError(f"length: got {length!r}; expected a function or None")
    collate = Collator(pad=True, padding_value=padding_value, objects=checked_objects(objects))
    return Buckets(limit, length=length, collate=collate, on_too_long=on_too_long)


def _checked_limit(boundaries: Any, batch_size: Any, budget: Any, to_boundary: Any) -> Limit:
    checked_flag(to_boundary, "pad_to_boundary")
    is_listed = isinstance(boundaries, Sequence | np.ndarray) and not isinstance(boundaries, str)
    if not is_listed or not len(boundaries):
        raise InvalidArgumentError(f"boundaries: got {boundaries!r}; expected at least one int")
    limits = tuple(checked_count(one, "boundaries", least=1) for one in boundaries)
    if any(after <= before for before, after in pairwise(limits)):
        raise InvalidArgumentError(f"boundaries: got {boundaries!r}; expected ascending ints")
    if (batch_size is None) == (budget is None):
        raise InvalidArgumentError(
            f"batch_size, tokens_per_batch: got {batch_size!r} and {budget!r}; expected just one"
        )
    count = len(limits) + (not to_boundary)
    if budget is not None:
        budget = checked_count(budget, "tokens_per_batch", least=1)
        if to_boundary and limits[-1] - 1 > budget:
            raise InvalidArgumentError(
                f"tokens_per_batch: got {budget}; expected at least {limits[-1] - 1}, one example"
                " padded to the last boundary"
            )
        return Limit(limits, None, budget, to_boundary)
    sizes = [batch_size] * count if is_int(batch_size) else batch_size
    if not isinstance(sizes, Sequence | np.ndarray) or len(sizes) != count:
        raise InvalidArgumentError(
            f"batch_size: got {batch_size!r}; expected an int >= 1, or a list of {count}, one for"
            " each bucket"
        )
    checked = tuple(checked_count(size, "batch_size", least=1) for size in sizes)
    return Limit(limits, checked, None, to_boundary)


def _first_dimension(example: Any) -> int:
    """Return the size of axis 0 of the first component that has one."""
    for value in values_of(example):
        if isinstance(value, list) or len(getattr(value, "shape", ())):
            return len(value)
    raise InvalidArgumentError(
        f"example: got {example!r}, which has no sequence; expected one, or a function `length`"
    )


def log_skipped(name: str, progress: BucketStatistics) -> None:
    if progress.skipped:
        _log.warning(
            "%s: %d of %d examples were too long and were skipped",
            name,
            progress.skipped,
            progress.skipped + progress.examples,
        )
