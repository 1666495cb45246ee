"""Topics of Kafka: what comes, where a run is, and how it goes on from there.

The broker is librdkafka's, which speaks Kafka's protocol on a socket of this machine and keeps its
records in memory; it has no transactions, and deletes nothing. ``AIOQUEUE_KAFKA=host:port`` runs
the same on a real one.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import inputs
from aioqueue.readers import kafka as module
from tests.kit.worlds import threads_of_work

pytest.importorskip("aiokafka", reason="pip install '.[kafka]'")
clients = pytest.importorskip("confluent_kafka", reason="it has the broker: pip install '.[test]'")
admin = pytest.importorskip("confluent_kafka.admin", reason="pip install '.[test]'")

pytestmark = [
    # Of aiokafka's own: consumers that are stopped while they connect.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PARTITIONS = 4  # as many as that broker gives every topic


class Broker:
    """Where topics are, and who fills them."""

    def __init__(self) -> None:
        address = os.environ.get("AIOQUEUE_KAFKA")
        options: dict[str, Any] = {"bootstrap.servers": address or "none", "log_level": 0}
        if address is None:
            options["test.mock.num.brokers"] = 1
        self._producer = clients.Producer(options)
        if address is None:
            (broker,) = self._producer.list_topics(timeout=20).brokers.values()
            address = f"{broker.host}:{broker.port}"
        else:
            self._admin = admin.AdminClient({"bootstrap.servers": address})
        self.address = address

    def topic(self, name: str) -> str:
        """Make a topic."""
        if hasattr(self, "_admin"):
            for made in self._admin.create_topics([admin.NewTopic(name, PARTITIONS)]).values():
                made.result(20)
        else:
            self._producer.list_topics(name, timeout=20)
        return name

    def fill(self, topic: str, numbers: range, partition: int | None = None) -> None:
        """Send numbers, each to its partition in turn."""
        for number in numbers:
            where = number % PARTITIONS if partition is None else partition
            self._producer.produce(
                topic, str(number).encode(), b"key", where, headers=[("from", b"test")]
            )
        assert not self._producer.flush(20)


@pytest.fixture(scope="module")
def broker() -> Broker:
    return Broker()


_numbers = itertools.count()


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.topic(f"aioqueue-{os.getpid()}-{next(_numbers)}")


def number_of(record: inputs.KafkaRecord) -> int:
    assert record.value is not None
    return int(record.value)


def test_all_that_a_topic_has(broker: Broker, topic: str) -> None:
    broker.fill(topic, range(100))
    source = inputs.kafka(topic, broker.address, end="now")
    found = [number for batch in source.prepare(number_of).batch(7) for number in batch]
    assert sorted(found) == list(range(100))
    for partition in range(PARTITIONS):  # each in its order
        own = [number for number in found if number % PARTITIONS == partition]
        assert own == sorted(own)


def test_what_a_record_has(broker: Broker, topic: str) -> None:
    broker.fill(topic, range(3), partition=1)
    source = inputs.kafka(topic, broker.address, end="now", seed=1)

    async def main() -> list[Any]:
        return [entry async for entry in source._aentries()]

    entries = asyncio.run(asyncio.wait_for(main(), 50))
    assert [entry.index for entry in entries] == [(1 << 64) + at for at in range(3)]
    assert source.locate(entries[2].index) == f"offset 2 of partition 1 of kafka topic '{topic}'"
    record = entries[0].value
    assert record[:4] == (b"0", b"key", 1, 0)
    assert record.headers == (("from", b"test"),)
    assert record.timestamp > 0


def test_a_topic_without_records(broker: Broker, topic: str) -> None:
    assert list(inputs.kafka(topic, broker.address, end="now").batch(3)) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_more_comes_as_it_is_sent(broker: Broker, topic: str) -> None:
    async def main() -> None:
        await asyncio.to_thread(broker.fill, topic, range(2))
        sent = 2
        async for batch in inputs.kafka(topic, broker.address).prepare(number_of).batch(2):
            assert sorted(batch) == [sent - 2, sent - 1]
            if sent == 6:
                break
            await asyncio.to_thread(broker.fill, topic, range(sent, sent + 2))
            sent += 2

    asyncio.run(asyncio.wait_for(main(), 50))
    gc.collect()  # a connection that the end of the loop has cut off: no other test may meet it


@pytest.mark.parametrize(
    ("start", "wanted"),
    [("earliest", range(40)), ("latest", range(0)), ({0: 5, 1: 10}, [*range(20, 40, 4)])],
)
def test_where_it_begins(broker: Broker, topic: str, start: Any, wanted: Any) -> None:
    broker.fill(topic, range(40))
    partitions = [0, 1] if isinstance(start, dict) else None
    source = inputs.kafka(topic, broker.address, partitions=partitions, start=start, end="now")
    assert sorted(number for (number,) in source.prepare(number_of).batch(1)) == list(wanted)


def test_partitions_of_a_rank(broker: Broker, topic: str) -> None:
    broker.fill(topic, range(40))
    found = []
    for rank in range(2):
        own = [rank, rank + 2]
        source = inputs.kafka(topic, broker.address, partitions=own, end="now")
        found += [number for (number,) in source.prepare(number_of).batch(1)]
    assert sorted(found) == list(range(40))


def pipeline_of(broker: Broker, topic: str, **options: Any) -> inputs.Pipeline[Any]:
    source = inputs.kafka(topic, broker.address, seed=5, **options)
    return source.prepare(number_of, where="thread", workers=3)


def taken(
    pipeline: inputs.Pipeline[Any], state: Any, count: int
) -> tuple[list[list[int]], list[Any]]:
    """So many batches from a position on, and the position behind each."""
    found: list[list[int]] = []
    states = []
    with pipeline.epochs(1) as epochs:
        if state is not None:
            epochs.load_state_dict(state)
        for epoch in epochs:
            for batch in epoch:
                found.append([int(number) for number in batch])
                states.append(json.loads(json.dumps(epochs.state_dict())))
                if len(found) == count:
                    return found, states
    return found, states


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_continues_where_it_was(broker: Broker, topic: str, is_shuffled: bool) -> None:
    """Behind a position comes what the first run had not given yet, each record once, also of
    partitions that were read in another order since."""
    # In lumps of one partition each, while the run goes on: their order is that of arrival.
    lumps = iter(range(40))

    def send(count: int) -> None:
        for at in itertools.islice(lumps, count):
            broker.fill(topic, range(at * 40, at * 40 + 40), partition=at * 7 % PARTITIONS)

    def made() -> inputs.Pipeline[Any]:
        pipeline = pipeline_of(broker, topic)
        return (pipeline.shuffle(90) if is_shuffled else pipeline).batch(10)

    send(6)
    first, states = taken(made(), None, 10)
    send(34)
    again, _ = taken(made(), states[3], 145 if is_shuffled else 156)
    found = [number for batch in (*first[:4], *again) for number in batch]
    assert len(set(found)) == len(found)
    if not is_shuffled:
        assert sorted(found) == list(range(1600))
        for partition in range(PARTITIONS):
            own = [one for one in found if one // 40 * 7 % PARTITIONS == partition]
            assert own == sorted(own)


@pytest.mark.slow
def test_nothing_is_lost_or_repeated_over_many_restarts(broker: Broker, topic: str) -> None:
    broker.fill(topic, range(3000))
    state: Any = None
    found: list[int] = []
    for _ in range(4):
        batches, states = taken(
            pipeline_of(broker, topic, end="now").shuffle(200).batch(25), state, 33
        )
        found += [number for batch in batches for number in batch]
        state = states[-1]
    assert sorted(found) == list(range(3000))


def test_ranks_have_no_order_in_common(broker: Broker, topic: str) -> None:
    with pytest.raises(aioqueue.InvalidArgumentError, match="ranks: got 2 for"):
        list(pipeline_of(broker, topic).batch(2).shard(0, 2))


def test_a_position_of_another_topic_is_refused(broker: Broker, topic: str) -> None:
    run = pipeline_of(broker, topic).batch(2).epochs(1)
    state = run.state_dict()
    other = pipeline_of(broker, broker.topic(f"{topic}-other")).batch(2).epochs(1)
    with pytest.raises(aioqueue.InvalidArgumentError, match="topic"):
        other.load_state_dict(state)


def reported(run: Any) -> BaseException:
    """What it fails by, before it gives anything."""
    with pytest.raises(ExceptionGroup) as caught:
        next(iter(run))
    (error,) = caught.value.exceptions
    return error


@pytest.mark.parametrize("offset", [9, 10, 11, 99])
def test_an_offset_that_a_topic_has_not_reached_is_refused(
    broker: Broker, topic: str, offset: int
) -> None:
    """It would be waited for, or be taken for the end."""
    broker.fill(topic, range(40))
    source = inputs.kafka(
        topic, broker.address, partitions=[0], start={0: offset}, end="now"
    ).prepare(number_of)
    if offset <= 10:
        assert [number for (number,) in source.batch(1)] == list(range(36, 40, 4))[: 10 - offset]
        return
    error = reported(source.batch(1))
    assert isinstance(error, aioqueue.InvalidArgumentError)
    assert f"got {offset} of partition 0 of topic '{topic}', which ends before offset 10;" in str(
        error
    )


@pytest.mark.parametrize("end", [None, "now"])
def test_a_position_in_a_recreated_topic_is_refused(
    broker: Broker, topic: str, end: str | None
) -> None:
    broker.fill(topic, range(40))
    _, states = taken(pipeline_of(broker, topic, end=end).batch(10), None, 4)
    other = Broker()  # another one, where the topic has less
    other.topic(topic)
    other.fill(topic, range(8))
    with pipeline_of(other, topic, end=end).batch(10).epochs(1) as epochs:
        epochs.load_state_dict(states[2])
        error = reported(next(epochs))
    assert isinstance(error, aioqueue.InvalidArgumentError)
    assert "which ends before offset 2;" in str(error)


def test_a_position_of_deleted_records_is_reported_with_both_offsets(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here they are said to be: that broker deletes nothing."""
    import aiokafka

    broker.fill(topic, range(40))

    async def beginning_offsets(consumer: Any, partitions: Any) -> Any:
        return dict.fromkeys(partitions, 7)

    monkeypatch.setattr(aiokafka.AIOKafkaConsumer, "beginning_offsets", beginning_offsets)
    source = inputs.kafka(topic, broker.address, partitions=[0], start={0: 5}, end="now")
    error = reported(source.prepare(number_of).batch(1))
    assert isinstance(error, aioqueue.DataLossError)
    assert error.offset == 5
    assert "up to offset 7 were deleted before they were read, from offset 5 on" in str(error)


def test_leaving_ends_the_consumer(broker: Broker, topic: str) -> None:
    broker.fill(topic, range(8))
    before = threads_of_work()
    found, _ = taken(pipeline_of(broker, topic).batch(2), None, 1)
    assert len(found) == 1
    assert threads_of_work() <= before


def test_a_topic_that_is_not_there(broker: Broker, topic: str) -> None:
    broker.fill(topic, range(8))
    source = inputs.kafka(topic, broker.address, partitions=[9])
    with pytest.raises(ExceptionGroup) as caught:
        list(source.batch(1))
    assert "partitions: got [9]" in str(caught.value.exceptions)


def test_for_goes_through_a_pipeline_only(broker: Broker, topic: str) -> None:
    with pytest.raises(aioqueue.InvalidArgumentError, match="supports only `async for`"):
        list(inputs.kafka(topic, broker.address))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topic": ""}, "topic: got ''"),
        ({"partitions": []}, r"partitions: got \[\]"),
        ({"partitions": [-1]}, "partitions: got"),
        ({"start": "middle"}, "start: got 'middle'"),
        ({"start": {0: -1}}, "start: got"),
        ({"end": "later"}, "end: got 'later'"),
        ({"group_id": "mine"}, "group_id: got 'mine'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    arguments = {"topic": "x", "servers": "y", **arguments}
    with pytest.raises(aioqueue.InvalidArgumentError, match=message):
        inputs.kafka(**arguments)


@pytest.mark.parametrize("seed", range(20))
def test_every_place_knows_what_came_behind_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are small, and go on through many segments, and through runs that went on before."""
    monkeypatch.setattr(module, "_SEGMENT", 10)
    random = np.random.default_rng(seed)
    offsets = {0: 0, 1: 3, 2: 0}
    order = module.Order(dict(offsets), None)
    sequence: list[tuple[int, int]] = []
    places = [order.place]
    for _ in range(60):
        partition = sequence[-1][0] if sequence and random.random() < 0.6 else random.integers(3)
        record = SimpleNamespace(partition=int(partition), offset=offsets[int(partition)])
        sequence.append((record.partition, record.offset))
        offsets[record.partition] += 1
        order.note(record)
        places.append(order.place)
    for taken, place in enumerate(places):
        start = module.Start.of(json.loads(json.dumps(place)))
        found = []
        at = dict(start.offsets)
        for partition, upto, _ in start.runs:
            found += [(partition, offset) for offset in range(at[partition], upto)]
            at[partition] = upto
        assert found[start.skipped :] == sequence[taken:]


async def _first_in_trio(broker: Broker, topic: str) -> None:
    async for _ in inputs.kafka(topic, broker.address):
        return


def test_trio_is_reported(broker: Broker, topic: str) -> None:
    trio = pytest.importorskip("trio")
    with pytest.raises(RuntimeError, match="needs asyncio"):
        trio.run(_first_in_trio, broker, topic)
