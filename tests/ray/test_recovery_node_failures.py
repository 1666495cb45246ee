"""Nodes are killed with a producer, a consumer, or the actor of a queue on them.

The output equals that of a queue in one program, or a named error reports the loss; and every wait
ends.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import WorkerDiedError
from tests.kit import clusters
from tests.kit.worlds import spin_until
from tests.ray.marks import MARKS

pytestmark = MARKS

ROW = 20_000
SPEC = (64, "int64", [(ROW,)])
BATCHES = 16


def batch(number: int) -> np.ndarray[Any, Any]:
    """Four rows, of 640 KB together: in the object store of their producer's node."""
    return np.random.default_rng(number).integers(0, 1 << 40, (4, ROW))


def digest(row: Any) -> str:
    return hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).hexdigest()


def local() -> list[str]:
    """What a queue in this program gives."""
    queue = aioqueue.sync.FIFOQueue(4 * BATCHES, "int64", [(ROW,)])
    for number in range(BATCHES):
        queue.enqueue_many(batch(number))
    queue.close()
    return [digest(row) for rows in queue.batches(3) for row in rows]


def node() -> str:
    """Where this is."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


class User:
    """A program on some node."""

    def __init__(self, name: str, **options: Any) -> None:
        import aioqueue.ray

        self.queue = aioqueue.ray.FIFOQueue(name, *SPEC, **options).sync

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.queue.enqueue_many(batch(number))

    def take(self, n: int) -> list[str]:
        return [digest(row) for row in self.queue.dequeue_many(n)]

    def drain(self) -> None:
        self.queue.drain(node(), timeout=60)


@pytest.fixture(scope="module")
def joined(ray_head: clusters.Head) -> Iterator[clusters.Nodes]:
    with ray_head.joined(1) as found:
        yield found


@pytest.fixture
def nodes(joined: clusters.Nodes) -> clusters.Nodes:
    """The nodes, when Ray knows which of them are dead, and starts nothing there any more."""
    spin_until(joined.known)
    return joined


def on(node_id: str, *, soft: bool = True) -> dict[str, Any]:
    """Return the options of an actor on a node; elsewhere if the node is dead, for a soft one."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as Affinity

    return {"scheduling_strategy": Affinity(node_id, soft=soft)}


def far(name: str, **options: Any) -> Any:
    """A program on the node that is going to be killed."""
    import ray

    made = ray.remote(num_cpus=0, resources={"data": 1}, max_concurrency=2)(User)
    return made.remote(name, **options)


def queue_of(name: str, **options: Any) -> Any:
    """Its actor is where this program is, if nothing else is said."""
    import aioqueue.ray

    options = {"ray": on(node(), soft=False), **options}
    return aioqueue.ray.FIFOQueue(name, *SPEC, **options).sync


def give_up_the_dead(queue: Any) -> None:
    """As if the time had passed after which the silent are taken to be dead."""
    import ray

    actor = clusters.actor_of(queue)
    for life in ray.get(actor.clients.remote()):
        if life != queue.consumer:
            ray.get(actor.dismiss.remote(life))


def test_a_node_with_producers_and_consumers(nodes: Any) -> None:
    """What they have not used comes back; what the queue owns is there; the bytes are the same."""
    import ray

    queue = queue_of("both", owned=True)
    queue.statistics()  # its actor is on the head, where this program is
    producer, consumer = far("both", owned=True), far("both", owned=True)
    ray.get(producer.put.remote(*range(BATCHES)))
    taken = ray.get(consumer.take.remote(8))  # which the next one commits
    again = ray.get(consumer.take.remote(8))
    nodes.kill()
    give_up_the_dead(queue)
    queue.close()
    rest = [digest(row) for rows in queue.batches(3) for row in rows]
    assert rest[:8] == again
    assert taken + rest == local()
    queue.delete()


@pytest.mark.long
def test_a_loss_with_a_node_is_reported(nodes: Any) -> None:
    """All rows of each batch arrive, or their loss is reported; and the queue ends."""
    import ray

    queue = queue_of("lost")
    queue.statistics()
    producer = far("lost")
    ray.get(producer.put.remote(0, 1))
    nodes.kill()
    queue.enqueue_many(batch(2))
    queue.close()
    reported, rows = 0, []
    while True:
        try:
            rows += [digest(row) for row in queue.dequeue_up_to(4)]
        except WorkerDiedError as error:
            assert "has died" in str(error)
            reported += 1
        except aioqueue.OutOfRangeError:
            break
    assert reported == 2
    assert rows == [digest(row) for row in batch(2)]
    queue.delete()


@pytest.mark.long
def test_a_node_is_drained_before_it_goes(nodes: Any) -> None:
    """Then nothing is lost with it, and no batch is requested again."""
    import ray

    queue = queue_of("drained")
    queue.statistics()
    producer = far("drained")
    ray.get(producer.put.remote(*range(BATCHES - 1)))
    ray.get(producer.drain.remote())
    ray.get(producer.put.remote(BATCHES - 1))
    nodes.kill()
    queue.close()
    assert [digest(row) for rows in queue.batches(3) for row in rows] == local()
    queue.delete()


def far_node() -> str:
    """The node that is going to be killed."""
    import ray

    return str(ray.get(ray.remote(num_cpus=0, resources={"data": 1})(node).remote()))


def test_the_node_of_the_actor(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The actor restarts elsewhere from its journal, and producers send their batches again."""
    there = far_node()
    queue = queue_of("actor", journal=tmp_path, ray=on(there))
    for number in range(BATCHES):
        queue.enqueue_many(batch(number))
    taken = [digest(row) for row in queue.dequeue_many(6)]
    nodes.kill(there)
    queue.close()
    rest = [digest(row) for rows in queue.batches(3) for row in rows]
    assert taken + rest == local()
    queue.delete()


@pytest.mark.long
def test_waits_end_when_the_node_of_an_actor_without_a_journal_dies(nodes: Any) -> None:
    there = far_node()
    queue = queue_of("no journal", ray=on(there, soft=False))
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            queue.dequeue()
        except WorkerDiedError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not queue.statistics().waiting_dequeues:
        pass
    nodes.kill(there)
    waiting.join(60)
    assert "the actor of queue 'no journal' has died" in str(ended[0])
    queue.delete()


def test_a_coordinator_reports_a_node_that_dies(nodes: Any) -> None:
    """With all that runs on it: the others stop, and the failure says which node it was."""
    import ray

    import aioqueue.ray

    name = "a node dies"
    made = aioqueue.ray.Coordinator(name)
    coord: Any = made.sync

    @ray.remote(num_cpus=0, max_retries=0)  # type: ignore[untyped-decorator]
    def work() -> str:
        found = aioqueue.ray.Coordinator(name).sync
        with found.stop_on_exception():
            found.wait_for_stop()
        return "stopped"

    doomed = far_node()
    refs = [work.options(**on(place, soft=False)).remote() for place in (doomed, node())]
    for ref in refs:
        coord.register(ref)
    actor = clusters.actor_of(made)
    while not all(ray.get(actor.place_of.remote(ref.task_id().hex())) for ref in refs):
        pass
    nodes.kill(doomed)
    with pytest.raises(ExceptionGroup) as caught:
        coord.join()
    (error,) = caught.value.exceptions
    assert isinstance(error, WorkerDiedError)
    assert f"on node {doomed}" in str(error)
    assert ray.get(refs[1]) == "stopped"
    made.delete()
