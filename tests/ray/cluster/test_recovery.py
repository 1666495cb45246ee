"""The actor of a queue is killed repeatedly, at calls and at answers, and recovers.

The long form: ``python -m tests.ray.cluster.test_recovery 40`` kills it so often.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import InvalidArgumentError, WorkerDiedError
from tests.kit import clusters
from tests.ray.cluster.test_leases import other
from tests.ray.marks import MARKS

pytestmark = MARKS

LARGE = 10_000  # int64s, so that a batch lies in the object store


def arm(actor: Any, moments: list[tuple[int, bool]]) -> int:
    """In the actor: end the process at a moment, one for each of its lives.

    A moment is so many records of the journal from now: before it is written, when a call is being
    made; or after, when its answer is about to be sent.
    """
    journal = actor._journal
    if journal.starts <= len(moments):
        at, at_answer = moments[journal.starts - 1]
        note, flushed, seen = journal.append, journal.flushed, [0]

        def noted(*record: Any) -> None:
            seen[0] += 1
            if seen[0] == at and not at_answer:
                os._exit(1)
            note(*record)

        async def made_safe() -> None:
            await flushed()
            if at_answer and seen[0] >= at:
                os._exit(1)

        journal.append, journal.flushed = noted, made_safe
    return int(journal.starts)


class Life:
    """A queue whose actor dies at the moments that are said, while two producers fill it."""

    def __init__(self, queue: Any, moments: list[tuple[int, bool]]) -> None:
        self.queue = queue
        self.moments = moments
        self.starts = 0

    def arm(self) -> None:
        """See that it dies at the next moment, if it has come back since the last one."""
        import ray

        actor = clusters.actor_of(self.queue)
        self.starts = ray.get(actor.__ray_call__.remote(arm, self.moments))


def pass_through(make: Any, journal: str, count: int, deaths: int) -> int:
    """Two producers and one consumer; what comes out is in order, and each once.

    Returns:
        How often the actor has started.
    """
    choices = random.Random(deaths)
    moments = [(choices.randint(1, 14), choices.random() < 0.5) for _ in range(deaths)]
    options = {"name": f"returning {deaths}", "journal": journal}
    queue = make("FIFOQueue", 12, "int64", [(LARGE,)], **options).sync
    life = Life(queue, moments)
    numbers = range(count)

    def fill(place: int) -> None:
        mine = make("FIFOQueue", 12, "int64", [(LARGE,)], **options).sync
        for number in numbers:
            mine.enqueue_many(np.full((3, LARGE), number * 2 + place))

    producers = [threading.Thread(target=fill, args=(place,)) for place in range(2)]
    for producer in producers:
        producer.start()
    got: list[int] = []
    while len(got) < count * 6:
        life.arm()
        for _ in range(4):
            if len(got) < count * 6:
                got += queue.dequeue_up_to(4)[:, 0].tolist()
    for producer in producers:
        producer.join()
    for place in range(2):
        mine = [number for number in got if number % 2 == place]
        assert mine == sorted(mine)
        assert mine == [number * 2 + place for number in numbers for _ in range(3)]
    return life.starts


def test_the_actor_dies_at_calls_and_at_answers(make: Any, tmp_path: Path) -> None:
    assert pass_through(make, str(tmp_path), 20, 4) == 5


def pid(ray: Any, queue: Any) -> int:
    """The process of its actor."""
    return int(ray.get(clusters.actor_of(queue).__ray_call__.remote(lambda _: os.getpid())))


def test_waiting_calls_continue(make: Any, cluster: Any, tmp_path: Path) -> None:
    """Producers and consumers are blocked; small batches return, too."""
    options = {"name": "waits", "journal": tmp_path}
    queue, other = (make("FIFOQueue", 4, **options).sync for _ in range(2))
    queue.enqueue_many(range(4))
    put = threading.Thread(target=queue.enqueue_many, args=([4, 5],))
    put.start()
    while not queue.statistics().waiting_enqueues:
        pass
    clusters.kill(pid(cluster, queue))
    assert other.dequeue_many(6) == list(range(6))
    put.join()
    taken: list[Any] = []
    take = threading.Thread(target=lambda: taken.extend(other.dequeue_many(2)))
    take.start()
    while not queue.statistics().waiting_dequeues:
        pass
    clusters.kill(pid(cluster, queue))
    queue.enqueue_many([6, 7])
    take.join()
    assert taken == [6, 7]


def test_a_loss_that_was_not_noticed(make: Any, cluster: Any, tmp_path: Path) -> None:
    queue = make("FIFOQueue", 100, name="both die", journal=tmp_path).sync
    producer = other(cluster, queue.name, journal=tmp_path)
    cluster.get(producer.put_numbers.remote(0, 4))
    queue.enqueue(7)
    clusters.kill(cluster.get(producer.pid.remote()))
    clusters.kill(pid(cluster, queue))
    for life in cluster.get(clusters.actor_of(queue).clients.remote()):
        if life != queue.consumer:  # nothing is heard of it
            cluster.get(clusters.actor_of(queue).dismiss.remote(life))
    with pytest.raises(WorkerDiedError, match="call 0 of producer"):
        queue.dequeue()
    assert queue.dequeue() == 7


def test_a_restarted_actor_needs_its_journal(make: Any, cluster: Any, tmp_path: Path) -> None:
    queue = make("FIFOQueue", 4, name="no file", journal=tmp_path).sync
    queue.enqueue(1)
    for file in tmp_path.iterdir():
        file.unlink()
    clusters.kill(pid(cluster, queue))
    with pytest.raises(WorkerDiedError, match="a folder that all nodes share"):
        queue.dequeue()


def test_its_file_goes_with_it(make: Any, tmp_path: Path) -> None:
    queue = make("FIFOQueue", 4, name="deleted", journal=tmp_path).sync
    queue.enqueue(1)
    assert len(list(tmp_path.iterdir())) == 1
    queue.delete()
    assert not list(tmp_path.iterdir())


def test_a_folder_by_its_whole_path(cluster: Any) -> None:
    import aioqueue.ray

    with pytest.raises(InvalidArgumentError, match="journal: got 'here'"):
        aioqueue.ray.FIFOQueue("wrong", 4, journal="here")


def test_a_handle_is_drained(make: Any, cluster: Any) -> None:
    """What it has put in outlives it; of what it has taken, it waits until that is used."""
    queue = make("FIFOQueue", 100, name="drained").sync
    producer = other(cluster, queue.name)
    for number in range(3):
        cluster.get(producer.put.remote(number))
    cluster.get(producer.drain.remote())
    cluster.get(producer.put.remote(3))  # which is copied, too
    clusters.kill(cluster.get(producer.pid.remote()))
    got = [queue.dequeue_many(4) for _ in range(4)]
    assert [int(batch[0][0]) for batch in got] == [0, 1, 2, 3]
    with pytest.raises(aioqueue.DeadlineExceededError, match="there is still 1 lease"):
        queue.drain(timeout=0.1)
    queue.commit()
    queue.drain(timeout=clusters.PATIENCE)


if __name__ == "__main__":
    deaths = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, clusters.one_node():
        import aioqueue.ray

        def make_one(kind: str, *args: Any, name: str, **options: Any) -> Any:
            return getattr(aioqueue.ray, kind)(name, *args, **options)

        count = 8 * deaths
        starts = pass_through(make_one, folder, count, deaths)
        print(f"{6 * count:,} elements, each once and in order; the actor died {starts - 1} times")
