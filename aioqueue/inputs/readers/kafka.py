"""Topics of Kafka: their records, from offsets that a position keeps. By way of aiokafka.

Each partition of a topic has an order, but all of them together have none: which one is read next
depends on what has come. To go on exactly, though, a run has to give again what another one has
given, in the same order. So a place has the offsets of all partitions somewhere before it, and the
order in which they were read since: not as far as the place only, but as far as the run has come
when the position is written down, for buffers may want items again from behind the place on. That
is a list which grows, and which all places since those offsets share.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import anyio

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.arguments import is_int
from aioqueue.forks import in_one_process_async
from aioqueue.inputs.core.items import Entry, PlacedEntry
from aioqueue.inputs.core.positions import Place, misplaced
from aioqueue.inputs.readers.compression import required
from aioqueue.inputs.sources.source import Source
from aioqueue.waiting.caller import running_loop

__all__ = ("Kafka", "KafkaRecord", "Order", "Start", "kafka")

Offsets: TypeAlias = dict[int, int]
"""By partition, that of the next record."""

_SEGMENT: Final = 1024
"""Records from which on a place has offsets of its own."""
_AT_ONCE: Final = 500
"""Records that are taken at a time."""
_SILENT: Final = 1.0
"""Seconds after which it is asked whether what a partition still has are no records."""
_OWN: Final = ("auto_offset_reset", "bootstrap_servers", "enable_auto_commit", "group_id")


class KafkaRecord(NamedTuple):
    """A record of a topic.

    Attributes:
        value: what was sent; ``None`` if nothing was.
        key: what it was sent under, if anything.
        partition: of the topic.
        offset: in the partition.
        timestamp: milliseconds since 1970, as the broker or the producer has set it.
        headers: names and values.
    """

    value: bytes | None
    key: bytes | None
    partition: int
    offset: int
    timestamp: int
    headers: tuple[tuple[str, bytes], ...] = ()


class Order:
    """In which order the partitions were read, and where that began.

    Args:
        offsets: where.
        ends: offsets at which to end; ``None`` to go on.
        runs: what comes first, as an earlier run has had it.
    """

    def __init__(
        self, offsets: Offsets, ends: Offsets | None, runs: Iterable[Sequence[int]] = ()
    ) -> None:
        self.offsets = offsets
        self._ends = None if ends is None else _pairs(ends)
        self._begin([list(run) for run in runs])
        self._known = sum(run[2] for run in self._runs)  # records whose order is there already

    def _begin(self, runs: list[Any]) -> None:
        self._first = _pairs(self.offsets)
        self._runs = runs  # each a partition, the offset behind it, and how many records
        self._taken = 0

    def note(self, record: Any) -> None:
        """A record was read."""
        if self._known:
            self._known -= 1
            self._taken += 1
            self.offsets[record.partition] = record.offset + 1
            return
        if self._taken >= _SEGMENT:
            following: list[Any] = []
            self._runs.append(following)  # so places of this segment know what came then
            self._begin(following)
        self._taken += 1
        partition, behind = record.partition, record.offset + 1
        self.offsets[partition] = behind
        runs = self._runs
        if runs and runs[-1][0] == partition:
            # Another list, for this one may just be being written down.
            runs[-1] = [partition, behind, runs[-1][2] + 1]
        else:
            runs.append([partition, behind, 1])

    @property
    def place(self) -> list[Any]:
        """Behind the record that was read last."""
        return self.behind(self._taken)

    def behind(self, taken: int) -> list[Any]:
        """Behind so many of those that it has begun with."""
        return [self._first, self._ends, self._runs, taken]


class Start(NamedTuple):
    """Where a run begins."""

    offsets: Offsets
    ends: Offsets | None
    runs: list[tuple[int, int, int]]
    """Partitions to be read first, in this order, each up to an offset: so many records."""
    skipped: int
    """How many of these records were taken before."""

    @classmethod
    def of(cls, place: Place) -> Start:
        """Where a place is.

        Raises:
            InvalidArgumentError: it is none of such a source.
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


class Kafka(Source[KafkaRecord]):
    """The records of a topic. See `kafka`, which makes it."""

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

    def __repr__(self) -> str:
        part = "" if self._partitions is None else f" partitions {list(self._partitions)},"
        return f"<aioqueue.inputs.{self.name},{part} seed={self.seed}>"

    def entries(self) -> Iterator[Entry[KafkaRecord]]:
        """Refused: records come by ``async for``."""
        raise InvalidArgumentError(
            f"source: got {self!r}, whose items come by `async for`; expected another source where"
            " `for` goes through the source itself (a pipeline of it can be gone through by both)"
        )

    def _aentries(self) -> AsyncIterator[Entry[KafkaRecord]]:
        """One run through it: that is one epoch."""
        return self._epoch_aentries(0)

    def __aiter__(self) -> AsyncIterator[KafkaRecord]:
        return self._values()

    async def _values(self) -> AsyncGenerator[KafkaRecord, None]:
        records = in_one_process_async(self._placed_aepoch(0), self)
        async with aclosing(records) as run:  # type: ignore[type-var]
            async for placed in run:
                yield placed.entry.value

    async def _epoch_aentries(self, epoch: int) -> AsyncGenerator[Entry[KafkaRecord], None]:
        """The records of an epoch: each begins anew."""
        async with aclosing(self._placed_aepoch(epoch)) as run:
            async for placed in run:
                yield placed.entry

    def _first_place(self) -> Place:
        """What becomes the offsets at which an epoch begins, and the order from there on."""
        return []

    async def _placed_aepoch(
        self, epoch: int, after: Place = None
    ) -> AsyncGenerator[PlacedEntry[KafkaRecord], None]:
        """The records of an epoch behind a place, each with the place behind it.

        Args:
            epoch: which, from 0.
            after: of this epoch; ``None`` for its beginning.

        Raises:
            DataLossError: records were deleted before they were read.
            InvalidArgumentError: there is no such topic, partition or place; or the topic does not
                reach as far as the place, since it was made anew.

        Cancellation:
            A cancelled step ends the run; what it would have taken is behind its last place.
        """
        async with _consumer(self._topic, self._servers, self._options) as reading:
            start = await self._begin(reading, after)
            order = Order(dict(start.offsets), start.ends, start.runs)
            if isinstance(after, list):  # others know it as well, and have to know what comes
                after[:] = order.behind(start.skipped)
            skipped = start.skipped
            try:
                async with aclosing(reading.records(start)) as records:
                    async for record in records:
                        order.note(record)
                        if skipped:
                            skipped -= 1
                            continue
                        index = record.partition << 64 | record.offset
                        yield PlacedEntry(Entry(_record(record), epoch, index), order.place)
            except reading.deleted as error:
                raise _data_loss(self._topic, error) from error

    async def _begin(self, reading: _Reading, after: Place) -> Start:
        """Where to begin; with the consumer at all of these offsets."""
        partitions = await reading.partitions(self._partitions)
        if not after:
            offsets = await reading.offsets(partitions, self._start)
            ends = None if self._end is None else await reading.offsets(partitions, "latest")
            start = Start(offsets, ends, [], 0)
        else:
            start = Start.of(after)
            fresh = [one for one in partitions if one not in start.offsets]
            if fresh and start.ends is None:  # which the topic had not then
                start.offsets.update(await reading.offsets(fresh, "earliest"))
        reading.check_partitions(start.offsets)
        if after or isinstance(self._start, Mapping):
            await self._check_bounds(reading, start)
        reading.seek(start.offsets)
        return start

    async def _check_bounds(self, reading: _Reading, start: Start) -> None:
        """See that the topic has what is to be read: a consumer waits where it ends, for ever, and
        skips what is missing at its beginning."""
        partitions = list(start.offsets)
        first = await reading.offsets(partitions, "earliest")
        behind = await reading.offsets(partitions, "latest")
        reach = dict(start.offsets)  # how far it went by then
        for partition, offset in (*((run[0], run[1]) for run in start.runs), *_ends_of(start)):
            reach[partition] = max(reach.get(partition, 0), offset)
        for partition, offset in sorted(reach.items()):
            if offset > behind.get(partition, offset):
                raise InvalidArgumentError(
                    f"offset: got {offset} of partition {partition} of topic {self._topic!r}, which"
                    f" ends before offset {behind[partition]}; expected no more than that: was the"
                    " topic made anew since?"
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


class _Reading:
    """A consumer that was started.

    Args:
        kafka: the library.
        consumer: of the topic.
        topic: which.
    """

    def __init__(self, kafka: Any, consumer: Any, topic: str) -> None:
        self._kafka = kafka
        self._consumer = consumer
        self._topic = topic
        self.deleted: type[Exception] = kafka.errors.OffsetOutOfRangeError

    async def partitions(self, wanted: Sequence[int] | None) -> list[int]:
        """The partitions to be read, which are assigned by that."""
        found = self._consumer.partitions_for_topic(self._topic)
        if not found:
            raise InvalidArgumentError(f"topic: got {self._topic!r}, which the servers have not")
        missing = [one for one in wanted or () if one not in found]
        if missing:
            raise InvalidArgumentError(
                f"partitions: got {missing}, which topic {self._topic!r} has not; expected some of"
                f" {sorted(found)}"
            )
        partitions = sorted(found if wanted is None else wanted)
        self._consumer.unsubscribe()
        self._consumer.assign([self._of(one) for one in partitions])
        return partitions

    async def offsets(self, partitions: Sequence[int], where: str | Mapping[int, int]) -> Offsets:
        """Where partitions begin (``earliest``), where they end (``latest``), or as is said."""
        ask = self._consumer.end_offsets if where == "latest" else self._consumer.beginning_offsets
        found = await ask([self._of(one) for one in partitions])
        offsets = {one.partition: int(offset) for one, offset in found.items()}
        if isinstance(where, Mapping):
            offsets.update({one: where[one] for one in partitions if one in where})
        return offsets

    def check_partitions(self, offsets: Offsets) -> None:
        """See that the topic has some partitions, and that they are read."""
        known = {one.partition for one in self._consumer.assignment()}
        missing = sorted(offsets.keys() - known)
        if missing:
            raise misplaced(f"partitions {missing}", f"those of topic {self._topic!r}")

    def seek(self, offsets: Offsets) -> None:
        """Read each partition from an offset on."""
        for partition, offset in offsets.items():
            self._consumer.seek(self._of(partition), offset)

    async def records(self, start: Start) -> AsyncGenerator[Any, None]:
        """Those that another run has given, in its order; then whatever comes."""
        next_ones: dict[int, Any] = {}  # that were read, and come later
        for partition, upto, _ in start.runs:
            while True:
                record = next_ones.pop(partition, None)
                if record is None:
                    record = await self._consumer.getone(self._of(partition))
                if record.offset >= upto:
                    next_ones[partition] = record
                    break
                yield record
                if record.offset + 1 >= upto:
                    break
        for record in next_ones.values():
            if start.ends is None or record.offset < start.ends.get(record.partition, 0):
                yield record
        if start.ends is None:
            while True:
                for record in await self._some(()):
                    yield record
        async with aclosing(self._upto(start.ends)) as found:
            async for record in found:
                yield record

    async def _upto(self, ends: Offsets) -> AsyncGenerator[Any, None]:
        """What the partitions have below some offsets."""
        while left := [one for one in ends if await self._position(one) < ends[one]]:
            records: list[Any] = []
            with anyio.move_on_after(_SILENT):  # the last ones may be marks of transactions
                records = await self._some([self._of(one) for one in left])
            for record in records:
                if record.offset < ends[record.partition]:
                    yield record

    async def _some(self, partitions: Iterable[Any]) -> list[Any]:
        """The next records, as soon as there are some."""
        first = await self._consumer.getone(*partitions)
        with anyio.CancelScope(shield=True):  # which waits for nothing, and `first` is taken
            more = await self._consumer.getmany(*partitions, timeout_ms=0, max_records=_AT_ONCE)
        return [first, *(record for records in more.values() for record in records)]

    async def _position(self, partition: int) -> int:
        return int(await self._consumer.position(self._of(partition)))

    def _of(self, partition: int) -> Any:
        return self._kafka.TopicPartition(self._topic, partition)


@asynccontextmanager
async def _consumer(
    topic: str, servers: Any, options: Mapping[str, Any]
) -> AsyncGenerator[_Reading, None]:
    kafka = required("aiokafka", "kafka", "reading topics of Kafka")
    if running_loop() is None:
        raise RuntimeError(f"topic {topic!r}: aiokafka needs asyncio, and this is a run of trio")
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
        yield _Reading(kafka, consumer, topic)
    finally:
        with anyio.CancelScope(shield=True):
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
    """The records of a topic of Kafka, or of what speaks like it (Redpanda). Needs the extra
    ``kafka``, and asyncio.

    It belongs to no consumer group, and commits nothing to the broker: where it is, is in the
    position of the pipeline (`state_dict`), as offsets by partition. Relative to a position that
    was saved with what was made of the batches, each record comes exactly once, also through
    shuffles and buffers, as long as the topic still has it. Records of several partitions come in
    the order in which they arrive, and after a resume in the same one as before, up to where the
    position was written; those of compacted topics may be fewer than before, and should not be
    resumed. The index of an item is ``partition << 64 | offset``, so the generator of a record is
    its own, whenever it is read.

    Ranks of data-parallel training have partitions each; `Pipeline.shard` would have each of them
    read all, in an order of its own.

    Args:
        topic: its name.
        servers: ``host:port``, or several.
        partitions: those to be read; ``None`` for all. Those that the topic gets later are read
            from the next run on, from their beginning.
        start: where an epoch begins: ``"earliest"``, ``"latest"``, or offsets by partition, and the
            earliest of all others.
        end: ``"now"`` ends it at what the topic has when it begins; ``None`` waits for more.
        seed: for the generators of the items; ``None`` takes fresh entropy, once.
        options: more arguments of ``aiokafka.AIOKafkaConsumer``: ``security_protocol``,
            ``ssl_context``, ``isolation_level``, and so on.

    Returns:
        A source of one epoch, whose items are `KafkaRecord`. Going through it raises
        `DataLossError` where records were deleted before they were read, and `InvalidArgumentError`
        where a position lies behind the end of the topic.

    Raises:
        InvalidArgumentError: an argument is wrong.
        ModuleNotFoundError: aiokafka is not installed.
    """
    required("aiokafka", "kafka", "reading topics of Kafka")
    if not isinstance(topic, str) or not topic:
        raise InvalidArgumentError(f"topic: got {topic!r}; expected the name of one")
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
    for name in _OWN:
        if name in options:
            raise InvalidArgumentError(
                f"{name}: got {options[name]!r}; expected it to be left out: positions say it"
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
    """Runs, with those that came in later segments."""
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
