"""What the parts of a pipeline have done so far: frozen records, each of one moment."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = (
    "BatchStatistics",
    "BucketStatistics",
    "ConsumerStatistics",
    "PrepareStatistics",
    "StageStatistics",
)


@dataclass(frozen=True)
class PrepareStatistics:
    """Counts of a `prepare`.

    Every item that was taken from the source is in just one of ``prepared``, ``left_out``,
    ``skipped`` and ``in_flight`` (but for one that is just moving from there).

    Attributes:
        prepared: items whose examples are in the queue.
        examples: examples that are in the queue; generator functions make several of an item, of
            which some may be there though the item has failed or a stop came between.
        left_out: items of which the function made nothing, as ``drop_none`` allows.
        skipped: items that failed and were given up.
        retried: how often an item was tried again after a failure.
        workers_died: processes that died and were replaced.
        in_flight: items that were taken from the source and have not ended; once a pipeline has
            been stopped, those that the stop has dropped.
        timed_out: how often an item was cut short by ``item_timeout``.
        left_behind: threads that were left behind by that and were still running at the last time.
    """

    prepared: int = 0
    examples: int = 0
    left_out: int = 0
    skipped: int = 0
    retried: int = 0
    workers_died: int = 0
    in_flight: int = 0
    timed_out: int = 0
    left_behind: int = 0


@dataclass(frozen=True)
class _Stage:
    """Which stage of a pipeline; see `StageStatistics`."""

    stage: str
    ready: int


@dataclass(frozen=True)
class StageStatistics(PrepareStatistics, _Stage):
    """Counts of a stage of a pipeline that has workers, over all epochs of a run.

    They are those of a `prepare`, and what is told of the stage. Items are counted when they are
    prepared, which may be an epoch ahead of what is used. In a run that was resumed they go on from
    those of the run before, which are in its state, as far as its items were used: over all runs
    each item is counted once. Only ``workers_died`` and ``in_flight`` are those of this process.

    Attributes:
        stage: its name and details, as drawings of the pipeline have them.
        ready: items whose examples wait to be used.
    """


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """What a stream of batches has done, at one moment."""

    batches: int
    """Batches taken so far."""
    examples: int
    """Examples in them."""
    waiting: int
    """Examples that wait, in queues and in batches that are ready."""


@dataclass(frozen=True, slots=True)
class BucketStatistics:
    """What bucketing has done, at one moment. Lengths are in elements along axis 0."""

    examples: int
    """Examples that have come, without those skipped."""
    skipped: int
    """Examples left out because they were too long."""
    batches: int
    """Batches made, of which some may still wait to be taken."""
    waiting: tuple[int, ...]
    """Examples that wait in each bucket."""
    elements: int
    """The length of all examples in the batches made."""
    padding: int
    """What those batches hold besides."""
    plain_elements: int
    """The length of all examples, in batches or still in buckets."""
    plain_padding: int
    """What batches of all examples, as large but in the order in which they came, would hold
    besides."""

    @property
    def padding_share(self) -> float:
        """Which share of the batches made is padding, from 0 to 1."""
        return _share(self.padding, self.elements)

    @property
    def plain_padding_share(self) -> float:
        """Which share it would be without bucketing."""
        return _share(self.plain_padding, self.plain_elements)


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """What one consumer of a broadcast has got, at one moment. Every batch that has come is taken,
    dropped or waiting."""

    taken: int
    """Batches taken out."""
    dropped: int
    """Batches that it never gets: pushed out by newer ones, or not let in."""
    waiting: int
    """Batches that wait for it."""


def _share(padding: int, elements: int) -> float:
    return padding / (padding + elements) if padding else 0.0
