"""`kafka`: the records of a Kafka topic, from offsets that a position stores. Uses aiokafka.

Each partition of a topic has an order, but the topic as a whole has none: which partition is read
next depends on what has arrived. A resumed run must repeat the order of the run before. So a place
has the offsets of all partitions at some earlier point, and the order of reading since then. That
order extends beyond the place, up to the moment when the position is saved, because buffers may
need items after the place again. It is a growing list, which all places since those offsets share.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import anyio

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.arguments import is_int
from aioqueue.base.extras import required
from aioqueue.base.public_names import public
from aioqueue.coordination.cancellations import shielded
from aioqueue.items.item import Entry, PlacedEntry
from aioqueue.items.positions import Place, misplaced
from aioqueue.sources.base import Scan
from aioqueue.sources.kinds.source import BuiltinSource
from aioqueue.worlds.waker import running_loop

Offsets: TypeAlias = dict[int, int]
"""The offset of the next record, by partition."""

_SEGMENT: Final = 1024
"""The number of records after which a place gets new offsets."""
_FETCHED: Final = 500
"""The number of records to fetch at a time."""
_MOST_SILENCE: Final = 1.0
"""Seconds of silence after which to check whether a partition's last offsets hold no records."""
_RESERVED: Final = ("auto_offset_reset", "bootstrap_servers", "enable_auto_commit", "group_id")


@public("aioqueue.inputs")
class KafkaRecord(NamedTuple):
    """A record of a topic.

    Attributes:
        value: the record's value; ``None`` if it has none.
        key: the record's key, if it has one.
        partition: the number of the partition.
        offset: the offset in the partition.
        timestamp: milliseconds since 1970, set by the broker or the producer.
        headers: names and values.
    """

    value: bytes | None
    key: bytes | None
    partition: int
    offset: int
    timestamp: int
    headers: tuple[tuple[str, bytes], ...] = ()


class Order:
    """The order in which the partitions were read, and the offsets where it began.

    Args:
        offsets: the offsets at the beginning.
        ends: the offsets to end at; ``None`` to continue without end.
        runs: the order that an earlier run has read, to repeat first.
    """

    def __init__(
        self, offsets: Offsets, ends: Offsets | None, runs: Iterable[Sequence[int]] = ()
    ) -> None:
        self.offsets = offsets
        self._ends = None if ends is None else _pairs(ends)
        self._begin([list(run) for run in runs])
        self._known = sum(run[2] for run in self._runs)  # records whose order is already noted

    def _begin(self, runs: list[Any]) -> None:
        self._first = _pairs(self.offsets)
        self._runs = runs  # for each: a partition, the offset after it, and the number of records
        self._taken = 0

    def note(self, record: Any) -> None:
        if self._known:  # a record that is read again: the order has it already
            self._known -= 1
            self._taken += 1
            self.offsets[record.partition] = record.offset + 1
            return
        if self._taken >= _SEGMENT:
            # Otherwise a place, and each resume, would grow with the whole run. Earlier places keep
            # the old list, whose last entry is the new one.
            following: list[Any] = []
            self._runs.append(following)  # so places of this segment know the later order
            self._begin(following)
        self._taken += 1
        partition, behind = record.partition, record.offset + 1
        self.offsets[partition] = behind
        runs = self._runs
        if runs and runs[-1][0] == partition:
            # Make a new list, because this one may just be being saved.
            runs[-1] = [partition, behind, runs[-1][2] + 1]
        else:
            runs.append([partition, behind, 1])

    @property
    def place(self) -> list[Any]:
        return self.place_behind(self._taken)

    def place_behind(self, taken: int) -> list[Any]:
        """Return the place after this many of the records that it began with."""
        return [self._first, self._ends, self._runs, taken]


class Start(NamedTuple):
    """The point where a run begins."""

    offsets: Offsets
    ends: Offsets | None
    runs: list[tuple[int, int, int]]
    """What to read first, in order: a partition, the offset to read up to, a number of records."""
    skipped: int
    """How many of these records were already taken."""

    @classmethod
    def of(cls, place: Place) -> Start:
        """Return the start that a place describes.

        Raises:
            InvalidArgumentError: the place does not belong to such a source.
        """
        try:
            first, ends, runs, taken = place
            offsets = {int(partition): int(offset) for partition, offset in first}
            left = [(int(one), int(upto), int(n)) for one, upto, n in _flat(runs)]
            found = None if ends is None else {int(one): int(end) for one, end in ends}
        except (TypeError, ValueError) as error:
            raise misplaced(repr(place), "offsets of a topic") from error
        at = 0
        while at < len(left) and left[at][2] <= taken:
            partition, upto, count = left[at]
            offsets[partition] = upto
            taken -= count
            at += 1
        return cls(offsets, found, left[at:], taken)


@public("aioqueue.inputs")
class Kafka(BuiltinSource[KafkaRecord]):
    """The records of a topic. `kafka` makes it."""

    _functions = ("kafka",)
    _extra = "kafka"
    _page = "howto/sources.md"
    _resumes = "exactly"
    _no_ranks = (
        "whose order differs in each run; expected a source of its own for each rank, such as"
        " partitions of the topic"
    )

    _is_async = True
    blocking = True

    def __init__(
        self,
        topic: str,
        servers: str | list[str],
        *,
        partitions: Sequence[int] | None,
        start: str | Mapping[int, int],
        end: str | None,
        seed: int | None,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(f"kafka topic {topic!r}", seed)
        self._topic = topic
        self._servers = servers
        self._partitions = partitions
        self._start = start
        self._end = end
        self._options = options

    def _details(self) -> str:
        part = "" if self._partitions is None else f" partitions {list(self._partitions)},"
        return f",{part} seed={self.seed}"

    def _scan(self, epoch: int | None, after: Place) -> Scan[KafkaRecord]:
        raise InvalidArgumentError(
            f"source: got {self!r}, which supports only `async for`; expected a source for use in"
            " `for` (a pipeline over it supports both)"
        )

    def _first_place(self) -> Place:
        """Return the place whose content becomes the epoch's offsets and order."""
        return []

    async def _ascan(
        self, epoch: int | None, after: Place
    ) -> AsyncGenerator[PlacedEntry[KafkaRecord], None]:
        """Yield the records of an epoch after a place. Each epoch starts over.

        Raises:
            DataLossError: records were deleted before they were read.
            InvalidArgumentError: there is no such topic, partition or place; or the topic ends
                before the place, because it was recreated.

        Cancellation:
            A cancelled step ends the run. The record that it would have taken comes after the last
            place.
        """
        async with _consumer(self._topic, self._servers, self._options) as reading:
            start = await self._begin(reading, after)
            order = Order(dict(start.offsets), start.ends, start.runs)
            if isinstance(after, list):  # other holders of the place must see the later order
                after[:] = order.place_behind(start.skipped)
            skipped = start.skipped
            try:
                async with aclosing(reading.records(start)) as records:
                    async for record in records:
                        order.note(record)
                        if skipped:
                            skipped -= 1
                            continue
                        index = record.partition << 64 | record.offset
                        yield PlacedEntry(Entry(_record(record), epoch or 0, index), order.place)
            except reading.deleted as error:
                raise _data_loss(self._topic, error) from error

    async def _begin(self, reading: _TopicConsumer, after: Place) -> Start:
        """Return the start, after moving the consumer to its offsets."""
        partitions = await reading.partitions(self._partitions)
        if not after:
            offsets = await reading.offsets(partitions, self._start)
            ends = None if self._end is None else await reading.offsets(partitions, "latest")
            start = Start(offsets, ends, [], 0)
        else:
            start = Start.of(after)
            added = [one for one in partitions if one not in start.offsets]
            if added and start.ends is None:  # partitions that the topic did not have before
                start.offsets.update(await reading.offsets(added, "earliest"))
        reading.check_partitions(start.offsets)
        if after or isinstance(self._start, Mapping):
            await self._check_bounds(reading, start)
        reading.seek(start.offsets)
        return start

    async def _check_bounds(self, reading: _TopicConsumer, start: Start) -> None:
        """Check that the topic has the records: a consumer would wait forever after its end, and
        skip what is missing at its beginning."""
        partitions = list(start.offsets)
        first = await reading.offsets(partitions, "earliest")
        behind = await reading.offsets(partitions, "latest")
        read_up_to = dict(start.offsets)  # how far the earlier run has read
        for partition, offset in (*((run[0], run[1]) for run in start.runs), *_ends_of(start)):
            read_up_to[partition] = max(read_up_to.get(partition, 0), offset)
        for partition, offset in sorted(read_up_to.items()):
            if offset > behind.get(partition, offset):
                raise InvalidArgumentError(
                    f"offset: got {offset} of partition {partition} of topic {self._topic!r}, which"
                    f" ends before offset {behind[partition]}; expected at most that (was the topic"
                    " recreated since?)"
                )
        for partition, offset in sorted(start.offsets.items()):
            if offset < first.get(partition, offset):
                fault = (
                    f"records up to offset {first[partition]} were deleted before they were read"
                )
                where = f"kafka topic {self._topic}, partition {partition}"
                message = f"{where}: {fault}, from offset {offset} on"
                raise DataLossError(message, path=where, offset=offset, fault=fault)

    def fingerprint(self) -> dict[str, Any]:
        partitions = None if self._partitions is None else list(self._partitions)
        return {
            "kind": "kafka",
            "topic": self._topic,
            "partitions": partitions,
            "end": self._end,
            "seed": self.seed,
        }

    def locate(self, index: int) -> str:
        return f"offset {index & 2**64 - 1} of partition {index >> 64} of {self.name}"


class _TopicConsumer:
    """A started consumer.

    Args:
        kafka: the library.
        consumer: the consumer of the topic.
        topic: the topic's name.
    """

    def __init__(self, kafka: Any, consumer: Any, topic: str) -> None:
        self._kafka = kafka
        self._consumer = consumer
        self._topic = topic
        self.deleted: type[Exception] = kafka.errors.OffsetOutOfRangeError

    async def partitions(self, wanted: Sequence[int] | None) -> list[int]:
        """Assign the partitions to read to the consumer, and return them."""
        found = self._consumer.partitions_for_topic(self._topic)
        if not found:
            raise InvalidArgumentError(f"topic: got {self._topic!r}; expected one that exists")
        missing = [one for one in wanted or () if one not in found]
        if missing:
            raise InvalidArgumentError(
                f"partitions: got {missing}, which topic {self._topic!r} does not have; expected"
                f" some of {sorted(found)}"
            )
        partitions = sorted(found if wanted is None else wanted)
        self._consumer.unsubscribe()
        self._consumer.assign([self._partition(one) for one in partitions])
        return partitions

    async def offsets(self, partitions: Sequence[int], where: str | Mapping[int, int]) -> Offsets:
        """Return the partitions' first offsets (``earliest``), ends (``latest``), or the given."""
        ask = self._consumer.end_offsets if where == "latest" else self._consumer.beginning_offsets
        found = await ask([self._partition(one) for one in partitions])
        offsets = {one.partition: int(offset) for one, offset in found.items()}
        if isinstance(where, Mapping):
            offsets.update({one: where[one] for one in partitions if one in where})
        return offsets

    def check_partitions(self, offsets: Offsets) -> None:
        """Check that the topic has these partitions, and that they are assigned."""
        known = {one.partition for one in self._consumer.assignment()}
        missing = sorted(offsets.keys() - known)
        if missing:
            raise misplaced(f"partitions {missing}", f"those of topic {self._topic!r}")

    def seek(self, offsets: Offsets) -> None:
        for partition, offset in offsets.items():
            self._consumer.seek(self._partition(partition), offset)

    async def records(self, start: Start) -> AsyncGenerator[Any, None]:
        """Yield the records of an earlier run in its order; then new records as they arrive."""
        held: dict[int, Any] = {}  # records that were fetched, but come later
        # A run ends at an offset, and not after a number of records: compaction may have removed
        # some since. A record behind that offset waits for its own turn.
        for partition, upto, _ in start.runs:
            while True:
                record = held.pop(partition, None)
                if record is None:
                    record = await self._consumer.getone(self._partition(partition))
                if record.offset >= upto:
                    held[partition] = record
                    break
                yield record
                if record.offset + 1 >= upto:
                    break
        for record in held.values():
            if start.ends is None or record.offset < start.ends.get(record.partition, 0):
                yield record
        if start.ends is None:
            while True:
                for record in await self._fetch(()):
                    yield record
        async with aclosing(self._records_below(start.ends)) as found:
            async for record in found:
                yield record

    async def _records_below(self, ends: Offsets) -> AsyncGenerator[Any, None]:
        # By the consumer's position, and not by the records: the last offsets may hold none.
        while left := [one for one in ends if await self._position(one) < ends[one]]:
            records: list[Any] = []
            with anyio.move_on_after(_MOST_SILENCE):
                records = await self._fetch([self._partition(one) for one in left])
            for record in records:
                if record.offset < ends[record.partition]:
                    yield record

    async def _fetch(self, partitions: Iterable[Any]) -> list[Any]:
        first = await self._consumer.getone(*partitions)
        with anyio.CancelScope(shield=True):  # it does not wait, and `first` is already taken
            more = await self._consumer.getmany(*partitions, timeout_ms=0, max_records=_FETCHED)
        return [first, *(record for records in more.values() for record in records)]

    async def _position(self, partition: int) -> int:
        return int(await self._consumer.position(self._partition(partition)))

    def _partition(self, partition: int) -> Any:
        return self._kafka.TopicPartition(self._topic, partition)


@asynccontextmanager
async def _consumer(
    topic: str, servers: Any, options: Mapping[str, Any]
) -> AsyncGenerator[_TopicConsumer, None]:
    kafka = required("aiokafka", Kafka._extra, "reading topics of Kafka")
    if running_loop() is None:
        raise RuntimeError(f"topic {topic!r}: aiokafka needs asyncio, but trio runs this program")
    consumer = kafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        **options,
    )
    try:
        await consumer.start()
        yield _TopicConsumer(kafka, consumer, topic)
    finally:
        with shielded():
            await consumer.stop()


def kafka(
    topic: str,
    servers: str | list[str],
    *,
    partitions: Sequence[int] | None = None,
    start: str | Mapping[int, int] = "earliest",
    end: str | None = None,
    seed: int | None = None,
    **options: Any,
) -> Kafka:
    """Read a topic of Kafka, or of a compatible server such as Redpanda. Needs the extra ``kafka``,
    and asyncio.

    It joins no consumer group and commits nothing to the broker. The position of the pipeline
    (`state_dict`) stores the offsets by partition. If you save that position together with your
    results, each record counts exactly once, also through shuffles and buffers, as long as the
    topic still has it. Records of several partitions come in the order of arrival. After a resume
    they come in the same order as before, up to the point where the position was saved. Do not
    resume compacted topics: they may have fewer records than before. The index of an item is
    ``partition << 64 | offset``, so each record has its own generator, whenever you read it.

    For data-parallel training, give each rank its own ``partitions``. With `Pipeline.shard`, every
    rank would read all records, in an order of its own.

    Args:
        topic: its name.
        servers: ``host:port``, or a list of them.
        partitions: the partitions to read; ``None`` for all. Partitions that the topic gets later
            are read from the next run on, from their beginning.
        start: where an epoch begins: ``"earliest"``, ``"latest"``, or a dict of offsets by
            partition; partitions that it lacks begin at the earliest.
        end: ``"now"`` ends an epoch at the last record that the topic has at the start; ``None``
            waits for more.
        seed: the seed of the items' generators; ``None`` takes fresh entropy, once.
        options: more arguments of ``aiokafka.AIOKafkaConsumer``: ``security_protocol``,
            ``ssl_context``, ``isolation_level``, and so on.

    Returns:
        A source of one epoch, whose items are `KafkaRecord`. Iterating over it raises
        `DataLossError` if records were deleted before they were read, and `InvalidArgumentError` if
        a position is after the end of the topic.

    Raises:
        InvalidArgumentError: any argument is not as described.
        ModuleNotFoundError: aiokafka is not installed.
    """
    required("aiokafka", "kafka", "reading topics of Kafka")
    if not isinstance(topic, str) or not topic:
        raise InvalidArgumentError(f"topic: got {topic!r}; expected the name of a topic")
    if partitions is not None:
        partitions = list(partitions)
        if not partitions or not all(is_int(one) and one >= 0 for one in partitions):
            raise InvalidArgumentError(
                f"partitions: got {partitions!r}; expected ints >= 0, or None for all"
            )
    if isinstance(start, Mapping):
        is_start = all(is_int(one) and is_int(at) and at >= 0 for one, at in start.items())
    else:
        is_start = start in ("earliest", "latest")
    if not is_start:
        raise InvalidArgumentError(
            f"start: got {start!r}; expected 'earliest', 'latest' or a dict of offsets by partition"
        )
    if end not in (None, "now"):
        raise InvalidArgumentError(f"end: got {end!r}; expected 'now' or None")
    for name in _RESERVED:
        if name in options:
            raise InvalidArgumentError(
                f"{name}: got {options[name]!r}; do not pass it, because the position decides it"
            )
    return Kafka(
        topic,
        servers,
        partitions=partitions,
        start=start,
        end=end,
        seed=seed,
        options=options,
    )


def _record(record: Any) -> KafkaRecord:
    return KafkaRecord(
        *(record.value, record.key, record.partition, record.offset, record.timestamp),
        tuple(record.headers),
    )


def _ends_of(start: Start) -> Iterable[tuple[int, int]]:
    return () if start.ends is None else start.ends.items()


def _pairs(offsets: Offsets) -> list[list[int]]:
    return [[partition, offset] for partition, offset in sorted(offsets.items())]


def _flat(runs: Iterable[Any]) -> Iterator[Sequence[int]]:
    """Return the runs, including those of later segments."""
    pending = [iter(runs)]
    while pending:
        for run in pending[-1]:
            if not run or isinstance(run[0], list | tuple):
                pending.append(iter(run))
                break
            yield run
        else:
            pending.pop()


def _data_loss(topic: str, error: Any) -> DataLossError:
    partition, offset = next(iter(error.args[0].items()), (None, 0)) if error.args else (None, 0)
    where = topic if partition is None else f"{topic}, partition {partition.partition}"
    fault = "records were deleted before they were read"
    return DataLossError(path=f"kafka topic {where}", offset=offset, fault=fault)
