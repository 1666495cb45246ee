"""`ChunkExecutor`: its rules, with connections that do what the test says. No worker is started."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from aioqueue import ItemTimeoutError, WorkerDiedError
from aioqueue.items.item import Item, Prepared
from aioqueue.workers.executors.chunks import (
    Assignments,
    ChunkExecutor,
    Chunking,
    ConnectionLost,
    Loss,
    ResultNotSent,
    SendPace,
    WhyNotReplaced,
)
from aioqueue.workers.executors.process_child import Sent
from aioqueue.workers.flow_control import Pending
from aioqueue.workers.job import NothingMore
from aioqueue.workers.timing import WorkerGauge
from tests.kit.alone import Made


class TestSendPace:
    @pytest.mark.parametrize(
        ("seconds", "chunk"),
        [
            (1e-9, (64, 64)),
            (0.00015, (64, 64)),
            (0.0004, (25, 25)),
            (0.002, (5, 5)),
            (0.009, (1, 1)),
            (0.0199, (1, 1)),
            (0.02, (1, 0)),
            (3.0, (1, 0)),
        ],
    )
    def test_a_chunk_is_about_ten_milliseconds_of_work(
        self, seconds: float, chunk: tuple[int, int]
    ) -> None:
        pace = SendPace()
        pace.note(7 * seconds, 7)
        assert pace.chunk() == chunk

    def test_one_item_is_sent_as_long_as_nothing_is_known(self) -> None:
        assert SendPace().chunk() == (1, 0)

    def test_an_item_that_took_no_time(self) -> None:
        pace = SendPace()
        pace.note(0.0, 1)
        assert pace.chunk() == (64, 64)

    def test_the_latest_report_is_a_fifth_of_the_estimate(self) -> None:
        pace = SendPace()
        pace.note(0.001, 1)
        pace.note(0.006, 1)  # so 2 ms
        assert pace.chunk() == (5, 5)
        pace.note(0.006, 3)
        assert pace.chunk() == (5, 5)
        pace.note(10.0, 1)
        assert pace.chunk() == (1, 0)


class TestAssignments:
    def test_an_item_is_there_from_its_sending_until_its_outcome(self) -> None:
        assignments = Assignments()
        items = [Pending(Item(number, None, 2, number + 100)) for number in range(3)]
        for item in items:
            assignments.add(item)
        assert len(assignments) == 3
        assert assignments.find(1) is items[1]
        assert assignments.remove(1) is items[1]
        assert assignments.find(1) is None
        assert len(assignments) == 2
        assert assignments.clear() == [items[0], items[2]]
        assert len(assignments) == 0

    def test_suspects_do_not_count_as_sent(self) -> None:
        assignments = Assignments()
        sent, suspect = (Pending(Item(number, None, 0, number)) for number in range(2))
        assignments.suspects.append(suspect)
        assert not assignments
        assignments.add(sent)
        assert assignments.clear() == [sent, suspect]
        assert not assignments.suspects


class Echoed(NamedTuple):
    outcomes: list[tuple[int, Any]]
    seconds: float = 1.0
    cpu: float = 1.0
    cpu_sampled: float = 1.0


Event = Callable[["Connection"], Echoed]


def answers(connection: Connection) -> Echoed:
    """Answer the oldest chunk."""
    chunk = connection.chunks.popleft()
    return Echoed([(number, pickle.loads(value)) for number, _, _, value in chunk])


def answers_fast(connection: Connection) -> Echoed:
    report = answers(connection)
    return report._replace(seconds=0.002 * len(report.outcomes))


def dies(loss: Loss) -> Event:
    def event(connection: Connection) -> Echoed:
        connection.lost = loss
        raise ConnectionLost

    return event


def dies_of_its_chunk(connection: Connection) -> Echoed:
    """Die, so that only the chunk is known that has killed the worker."""
    suspects = [number for number, *_ in connection.chunks[0]]
    return dies(Loss("has died", suspects=suspects))(connection)


def cannot_send(connection: Connection) -> Echoed:
    numbers = [number for number, *_ in connection.chunks.popleft()]
    raise ResultNotSent(numbers, TypeError("cannot be pickled"))


class Connection:
    """A worker that does what its events say, one for each `receive`; then it answers."""

    def __init__(self, gauge: WorkerGauge, events: Sequence[Event]) -> None:
        self.gauge = gauge
        self.assignments = Assignments()
        self.was_of_use = False
        self.events = deque(events)
        self.chunks: deque[list[Sent]] = deque()
        self.sent: list[list[int]] = []
        self.lost = Loss("has died")
        self.ended_at_once: bool | None = None

    def pickled(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def send(self, chunk: list[Sent]) -> None:
        self.chunks.append(chunk)
        self.sent.append([number for number, *_ in chunk])

    def receive(self) -> Echoed:
        event = self.events.popleft() if self.events else answers
        return event(self)

    def unpacked(self, pending: Pending, outcome: tuple[int, Any]) -> Prepared | Exception:
        _, value = outcome
        if isinstance(value, Exception):
            return value
        prepared = Prepared(pending.item, (value,), failures=pending.failures)
        prepared.size = len(value) if isinstance(value, bytes) else 0
        return prepared

    def loss(self) -> Loss:
        return self.lost

    def loss_message(self, loss: Loss, items: int) -> str:
        return f"a worker {loss.how}; {items} left"


class Executor(ChunkExecutor[Connection], registered=False):
    """Each of its workers has the next list of events.

    Attributes:
        deaths: the losses after which it was asked for another worker.
    """

    def __init__(
        self, made: Made, *lives: Sequence[Event], exact: bool = True, **chunking: Any
    ) -> None:
        super().__init__(made.job, Chunking(**chunking), "workers")
        self.made = made
        self.knows_culprits = exact  # type: ignore[misc]  # of this one
        self.lives = deque(lives)
        self.connections: list[Connection] = []
        self.deaths: list[Loss] = []

    def connect(self, gauge: WorkerGauge) -> Connection:
        self.connections.append(Connection(gauge, self.lives.popleft()))
        return self.connections[-1]

    def wait_until_ready(self, connection: Connection) -> None:
        connection.gauge.process_ready()

    def disconnect(self, connection: Connection, *, at_once: bool) -> None:
        connection.ended_at_once = at_once

    def replacements(self) -> WhyNotReplaced[Connection]:
        def note(connection: Connection, loss: Loss) -> WorkerDiedError | None:
            self.deaths.append(loss)
            return None

        return note

    def play(self) -> list[Any]:
        """Let the only worker work to its end; return what has arrived."""
        worker, take_items = self.enqueue_ops()
        with pytest.raises(NothingMore):
            take_items()
        with pytest.raises(NothingMore):
            worker()
        queue = self.made.queue
        return [queue.dequeue() for _ in range(queue.size())]

    @property
    def sent(self) -> list[list[list[int]]]:
        return [connection.sent for connection in self.connections]


def executor(
    *lives: Sequence[Event],
    values: Sequence[Any],
    exact: bool = True,
    chunking: dict[str, Any] | None = None,
    **options: Any,
) -> Executor:
    made = Made(1, source=list(values), **{"limit_bytes": 2**20, **options})
    made.window.resize(20, at_once=20)  # so that all items are taken at first
    made_executor = Executor(made, *lives, exact=exact, **(chunking or {}))
    made.job.begin(made.run, made_executor)
    return made_executor


class TestResults:
    def test_all_arrive_in_order(self) -> None:
        played = executor([], values="abc")
        assert played.play() == ["a", "b", "c"]
        (connection,) = played.connections
        assert connection.was_of_use
        assert connection.ended_at_once is False
        assert played.made.window.items == 0

    def test_fast_items_are_sent_ahead(self) -> None:
        played = executor([answers_fast] * 9, values=range(7))
        assert played.play() == list(range(7))
        assert played.sent == [[[0], [1, 2, 3, 4, 5], [6]]]

    def test_a_failure_of_an_item_is_its_own(self) -> None:
        played = executor([], values=["a", ValueError("bad"), "c"], on_error="skip")
        assert played.play() == ["a", "c"]
        (record,) = played.made.progress.quarantine.records()
        assert "ValueError: bad" in record.traceback

    def test_an_item_that_cannot_be_pickled_fails_alone(self) -> None:
        played = executor(
            [answers_fast] * 9, values=[0, lambda: None, 2, lambda: None], on_error="skip"
        )
        assert played.play() == [0, 2]
        assert played.sent == [[[0], [2]]]
        first, second = played.made.progress.quarantine.records()
        assert "while pickling the item" in first.traceback
        assert "while pickling the item" in second.traceback


class TestLosses:
    def test_the_items_of_a_lost_worker_go_to_the_next_one_first(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        life = [answers_fast, dies(Loss("has died"))]
        played = executor(life, [], values=range(9))
        assert played.play() == list(range(9))
        one, other = played.connections
        assert one.sent == [[0], [1, 2, 3, 4, 5], [6, 7, 8]]
        assert one.ended_at_once is True
        assert [number for chunk in other.sent for number in chunk] == list(range(1, 9))
        assert played.made.progress.statistics().workers_died == 1
        assert caplog.messages == ["a worker has died; 8 left"]

    def test_an_item_with_an_arrived_outcome_is_not_blamed(self) -> None:
        life = [answers, dies(Loss("has died", suspects=[0], is_certain=True))]
        played = executor(life, [], values=range(2), on_error="skip")
        assert played.play() == [0, 1]
        assert not played.made.progress.quarantine.records()
        assert played.connections[1].sent == [[1]]

    @pytest.mark.parametrize("exact", [True, False])
    def test_an_item_that_three_workers_died_of_fails(self, exact: bool) -> None:
        killed = dies(Loss("was killed", -9, suspects=[1], is_certain=exact))
        lives = [[answers, killed], [killed], [killed], []]
        played = executor(*lives, values=range(3), exact=exact, on_error="skip")
        assert played.play() == [0, 2]
        (record,) = played.made.progress.quarantine.records()
        assert (record.item, record.attempts) == (1, 3)
        assert "3 workers have died of one item; the last one was killed" in record.traceback
        assert played.connections[1].was_of_use is exact
        assert played.made.window.items == 0

    def test_suspects_are_sent_one_at_a_time(self) -> None:
        life = [answers_fast, dies_of_its_chunk]
        played = executor(life, [answers_fast] * 20, values=range(9), exact=False)
        assert sorted(played.play()) == list(range(9))
        one, other = played.connections
        assert one.sent == [[0], [1, 2, 3, 4, 5], [6, 7, 8]]
        # The suspects have nothing beside them; the others are sent together.
        assert [chunk for chunk in other.sent if set(chunk) & {1, 2, 3, 4, 5}] == [
            [1], [2], [3], [4], [5],
        ]  # fmt: skip

    def test_a_worker_that_was_ended_for_a_slow_item_is_no_death(self) -> None:
        late = ItemTimeoutError("too slow", seconds=1.0)
        life = [answers_fast, dies(Loss("was killed", overdue=(2, late)))]
        played = executor(life, [], values=range(5), on_error="skip")
        assert played.play() == [0, 1, 3, 4]
        statistics = played.made.progress.statistics()
        assert (statistics.workers_died, statistics.timed_out) == (0, 1)
        assert played.connections[0].was_of_use
        assert len(played.deaths) == 1

    def test_a_slow_item_that_ended_after_all_does_not_fail(self) -> None:
        late = ItemTimeoutError("too slow", seconds=1.0)
        life = [answers, dies(Loss("was killed", overdue=(0, late)))]
        played = executor(life, [], values=range(3))
        assert played.play() == [0, 1, 2]
        assert played.made.progress.statistics().timed_out == 0


class TestResultsThatCannotBeSent:
    def test_one_item_fails(self) -> None:
        played = executor([answers, cannot_send], values=range(3), exact=False, on_error="skip")
        assert played.play() == [0, 2]
        (record,) = played.made.progress.quarantine.records()
        assert "cannot be pickled" in record.traceback

    def test_of_several_each_is_sent_alone(self) -> None:
        life = [answers_fast, cannot_send]
        played = executor(life, values=range(5), exact=False)
        assert sorted(played.play()) == list(range(5))
        ((first, chunk, *alone),) = played.sent
        assert (first, chunk) == ([0], [1, 2, 3, 4])
        assert alone == [[1], [2], [3], [4]]
        assert played.made.progress.statistics().workers_died == 0


class TestChunks:
    def test_a_filled_chunk_takes_more_than_a_share(self) -> None:
        made = Made(3, source=list(range(8)), limit_bytes=2**20)
        made.window.resize(20, at_once=20)
        played = Executor(made, [answers_fast] * 20, is_filled=True)
        made.job.begin(made.run, played)
        *(worker, _, _), take_items = played.enqueue_ops()
        with pytest.raises(NothingMore):
            take_items()
        with pytest.raises(NothingMore):
            worker()
        assert [len(chunk) for chunk in played.connections[0].sent][:2] == [1, 5]

    def test_large_examples_make_small_chunks(self) -> None:
        played = executor(
            [answers_fast] * 20,
            values=[bytes(100)] * 9,
            chunking={"most_bytes": 1, "few": 2, "few_bytes": 1000},
        )
        played.play()
        assert [len(chunk) for chunk in played.connections[0].sent] == [1, 2, 2, 2, 2]


def test_a_failure_of_all_workers_is_reported_once() -> None:
    played = executor([], values=[])
    error = ValueError("no worker can import it")
    assert played.report_once(error) is error
    assert isinstance(played.report_once(error), NothingMore)
