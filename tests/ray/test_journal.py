"""The file of an actor: what is durable, what a crash leaves of it, and that it does not grow."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from aioqueue.errors import DataLossError, WorkerDiedError
from aioqueue.ray import journal as journals
from aioqueue.ray.journal import QueueJournal
from aioqueue.ray.queue_actor import QueueActor
from tests.ray.local_handles import LocalHandle
from tests.ray.test_queue_actor import looped
from tests.ray.test_recovery import FIFO


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.journal"


def files(path: Path) -> list[str]:
    """What lies in its folder."""
    return sorted(file.name for file in path.parent.iterdir())


def records(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def filled(journal: QueueJournal, count: int = 3) -> None:
    journal.append("meet", "p", "p")
    for number in range(count):
        journal.append("put", "p", number, 0, 2, 8, None)
        journal.append("in", "p", number, [0, 2])
    await journal.flushed()


@looped
async def test_flushed_records_are_read_again(path: Path) -> None:
    journal = QueueJournal(path, is_new=True)
    await filled(journal)
    again = QueueJournal(
        path, is_new=False
    )  # while the first one has it open still, as after a kill
    assert again.starts == 2
    assert list(again.ledger.batches) == [("p", 0), ("p", 1), ("p", 2)]
    for one in (journal, again):
        one.end(remove=True)
    assert files(path) == []


@looped
async def test_nothing_is_freed_before_it_is_on_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor that comes back would ask for it, and its producer would not have it any more."""
    journal = QueueJournal(path, is_new=True)
    await filled(journal)
    journal.append("lease", "c", 0, [["p", 0, [0, 2]], ["p", 1, [0, 2]]])
    await journal.flushed()
    begun, continues = threading.Event(), threading.Event()
    put_down = journal._write_lines

    def slowly(lines: list[str], compacted: list[Any] | None) -> None:
        begun.set()
        continues.wait()
        put_down(lines, compacted)

    monkeypatch.setattr(journal, "_write_lines", slowly)
    journal.append("used", "c", [0])
    begun.wait()
    assert journal.freed("p") == []
    assert journal.droppable_of("p", [0, 1, 2]) == []
    continues.set()
    await journal.flushed()
    assert journal.droppable_of("p", [0, 1, 2]) == [0, 1]
    assert journal.freed("p") == [0, 1]
    assert journal.freed("p") == []
    journal.end(remove=True)


@pytest.mark.parametrize("half", ['["in","p",2', "[", "\x00\x00\x00"])
@looped
async def test_an_incomplete_last_line_is_ignored(path: Path, half: str) -> None:
    journal = QueueJournal(path, is_new=True)
    await filled(journal)
    journal.end(remove=False)
    with path.open("a") as file:
        file.write(half)
    again = QueueJournal(path, is_new=False)
    assert len(again.ledger.batches) == 3
    again.end(remove=True)


@pytest.mark.parametrize(
    "damage",
    [
        *("{}", '["what"]', '["in"]', "no", "[]", "[[1]]", "[" * 10**5, '["start", "x"]'),
        *('["meet", 1, "p"]', '["in", "p", 0, [2, 1]]', '["put", "p", 0, 0, 2.5, 8, null]'),
        *('["lease", "p", 0, [["p", 0]]]', '["close", 1]', '["gone", "p", "p"]'),
    ],
    ids=lambda damage: damage[:30],
)
@looped
async def test_damage_is_reported(path: Path, damage: str) -> None:
    QueueJournal(path, is_new=True).end(remove=False)
    with path.open("a") as file:
        file.write(damage + "\n")
    with pytest.raises(DataLossError, match="is damaged in line 3"):
        QueueJournal(path, is_new=False)


def test_another_file_is_refused(path: Path) -> None:
    path.write_text("something\n")
    with pytest.raises(DataLossError, match="is not a queue journal"):
        QueueJournal(path, is_new=False)


def test_a_missing_file_is_reported(path: Path) -> None:
    with pytest.raises(WorkerDiedError, match="a folder that all nodes share"):
        QueueJournal(path, is_new=False)


@looped
async def test_a_full_disk_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = QueueJournal(path, is_new=True)
    actor = QueueActor("desk", FIFO, journal)
    producer = LocalHandle(actor, FIFO, "p")
    await producer.rejoin(actor)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    answer = await producer.put(1).call()
    assert isinstance(answer.error, WorkerDiedError)
    assert "cannot be written" in str(answer.error)
    journal.end(remove=True)


@looped
async def test_nothing_is_freed_after_the_disk_has_failed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted actor reads what the disk has, and asks for what is unfinished there."""
    journal = QueueJournal(path, is_new=True)
    await filled(journal)
    journal.append("lease", "c", 0, [["p", 0, [0, 2]]])
    await journal.flushed()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal, "_write_lines", full)
    journal.append("used", "c", [0])
    for _ in range(2):
        with pytest.raises(WorkerDiedError, match="cannot be written"):
            await journal.flushed()
        assert journal.freed("p") == []
        assert journal.droppable_of("p", [0, 1, 2]) == []
    journal.end(remove=False)
    restarted = QueueJournal(path, is_new=False)
    assert ("p", 0) in restarted.ledger.batches
    restarted.end(remove=True)


@looped
async def test_it_is_rewritten_when_most_records_are_obsolete(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "_MIN_REWRITE", 50)
    journal = QueueJournal(path, is_new=True)
    actor = QueueActor("desk", FIFO, journal)
    producer, consumer = LocalHandle(actor, FIFO, "p"), LocalHandle(actor, FIFO, "c")
    for handle in (producer, consumer):
        await handle.rejoin(actor)
    for number in range(200):
        put = producer.put(number)
        producer.received(put)
        assert (await put.call()).error is None
        taken = consumer.take(1, used=[number - 1])
        consumer.received(taken)
        assert (await taken.call()).error is None
    found = records(path)
    assert len(found) < 80
    assert sum(record[0] == "start" for record in found) == 1
    again = QueueJournal(path, is_new=False)
    assert again.ledger.leases == {"c": {199: [["p", 199, [0, 1]]]}}
    assert files(path) == [path.name]
    for one in (journal, again):
        one.end(remove=False)
