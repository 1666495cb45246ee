"""The counts of a pipeline's parts: frozen records, each a snapshot of one moment."""

from __future__ import annotations

from dataclasses import dataclass

from aioqueue.base.public_names import public


@public("aioqueue.inputs")
@dataclass(frozen=True)
class PrepareStatistics:
    """Counts of a `prepare`.

    Every item taken from the source is in exactly one of ``prepared``, ``left_out``, ``skipped``
    and ``in_flight``, except for an item that is just moving from one to another.

    Attributes:
        prepared: items whose examples are in the queue.
        examples: examples in the queue. A generator function makes several per item; some may be
            there although the item failed or a stop came in between.
        left_out: items for which the function returned nothing, as ``drop_none`` allows.
        skipped: items that failed and were given up.
        retried: retries after failures.
        workers_died: processes that died and were replaced.
        in_flight: items taken from the source that are not done. After a stop, these are the items
            that the stop dropped.
        timed_out: items cut short by ``item_timeout``, counted per attempt.
        left_behind: threads abandoned after a timeout that were still running when last checked.
        refused: calls that failed with a refusal, if the rate is an `AdaptiveRate`.
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
    refused: int = 0


@dataclass(frozen=True)
class _Stage:
    """The stage that the counts belong to; see `StageStatistics`."""

    stage: str
    ready: int


@public("aioqueue.inputs")
@dataclass(frozen=True)
class StageStatistics(PrepareStatistics, _Stage):
    """Counts of a pipeline stage that has workers, over all epochs of a run.

    These are the counts of a `prepare`, plus details of the stage. An item counts when it is
    prepared, which may be an epoch before you use it. A resumed run continues the counts of the run
    before, which its state contains as far as you used the items: so over all runs each item counts
    once. Only ``workers_died``, ``refused`` and ``in_flight`` concern this process alone.

    Attributes:
        stage: the stage's name and details, as drawings of the pipeline show them.
        ready: items whose examples wait to be used.
    """


@public("aioqueue.inputs")
@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Counts of a stream of batches, at one moment."""

    batches: int
    """Batches taken so far."""
    examples: int
    """Examples in them."""
    waiting: int
    """Examples that wait, in queues and in finished batches."""


@public("aioqueue.inputs")
@dataclass(frozen=True, slots=True)
class BucketStatistics:
    """Counts of bucketing, at one moment. Lengths are in elements along axis 0."""

    examples: int
    """Examples received, without the skipped ones."""
    skipped: int
    """Examples left out because they were too long."""
    batches: int
    """Batches made; some may still wait to be taken."""
    waiting: tuple[int, ...]
    """Examples that wait in each bucket."""
    elements: int
    """The total length of the examples in the batches made."""
    padding: int
    """The padding in those batches, in elements."""
    plain_elements: int
    """The total length of all examples, in batches or still in buckets."""
    plain_padding: int
    """The padding that batches of the same size would hold without bucketing, with all examples in
    the order of arrival."""

    @property
    def padding_share(self) -> float:
        """The share of padding in the batches made, from 0 to 1."""
        return _share(self.padding, self.elements)

    @property
    def plain_padding_share(self) -> float:
        """The share of padding that there would be without bucketing."""
        return _share(self.plain_padding, self.plain_elements)


@public("aioqueue.inputs")
@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """Counts of one consumer of a broadcast, at one moment. Every batch is either taken, dropped or
    waiting."""

    taken: int
    """Batches taken out."""
    dropped: int
    """Batches that the consumer never gets: newer ones replaced them, or there was no room."""
    waiting: int
    """Batches that wait for the consumer."""


def _share(padding: int, elements: int) -> float:
    return padding / (padding + elements) if padding else 0.0
