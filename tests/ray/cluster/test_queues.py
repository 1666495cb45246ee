"""A queue on a cluster is the queue of one program: order, batches, waiting, closing, errors."""

from __future__ import annotations

import asyncio
import importlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import InvalidArgumentError, OutOfRangeError, QueueClosedError
from aioqueue.inputs import numbers, prepare
from tests.kit.clusters import PATIENCE
from tests.kit.exact import plain_form
from tests.kit.trees import stacked
from tests.queues.test_queue_core_trees import TREES
from tests.ray.marks import MARKS

pytestmark = MARKS

TYPED = (["float32", "int64"], [(3,), ()])


def rows(start: int, stop: int) -> tuple[Any, Any]:
    numbers = np.arange(start, stop)
    return np.repeat(numbers[:, None], 3, axis=1).astype("float32"), numbers


def test_elements_come_in_order(make: Any) -> None:
    queue = make("FIFOQueue", 10).sync
    for number in range(5):
        queue.enqueue(number)
    assert [queue.dequeue() for _ in range(5)] == list(range(5))


@pytest.mark.parametrize("size", [3, 50_000])
def test_batches_of_another_size(share: Any, size: int) -> None:
    """Small ones lie with the actor, large ones in the object store."""
    queue = share("FIFOQueue", 100, "float32", [(size,)]).sync
    for start in range(0, 24, 8):
        queue.enqueue_many(np.repeat(np.arange(start, start + 8.0)[:, None], size, axis=1))
    got = [queue.dequeue_many(6) for _ in range(4)]
    assert [batch.dtype for batch in got] == [np.float32] * 4
    assert np.concatenate(got)[:, -1].tolist() == list(range(24))


def test_elements_of_several_components(share: Any) -> None:
    queue = share("FIFOQueue", 20, *TYPED, ["x", "y"]).sync
    queue.enqueue({"x": [1, 2, 3], "y": 4})
    x, y = rows(0, 4)
    queue.enqueue_many({"x": x, "y": y})
    one = queue.dequeue()
    assert one["x"].tolist() == [1, 2, 3]
    assert one["y"] == 4
    assert queue.dequeue_many(4)["y"].tolist() == [0, 1, 2, 3]


CLASS = """
class Picture:
    def __init__(self, number, extent):
        self.number = number
        self.pixels = bytes(extent)
"""


@pytest.mark.parametrize("extent", [1, 200_000])
def test_the_actor_need_not_import_the_classes_of_elements(
    make: Any, tmp_path: Path, monkeypatch: Any, extent: int
) -> None:
    """Programs may share a queue that another program has made, which has not their modules."""
    (tmp_path / f"of_users_{extent}.py").write_text(CLASS)
    monkeypatch.syspath_prepend(tmp_path)
    picture = importlib.import_module(f"of_users_{extent}").Picture
    objects = make("FIFOQueue", 10).sync
    objects.enqueue(picture(1, extent))
    objects.enqueue_many([picture(2, extent), picture(3, extent)])
    assert [found.number for found in objects.dequeue_many(3)] == [1, 2, 3]
    typed = make("FIFOQueue", 10, [object, "int64"], [(), ()], name="typed").sync
    typed.enqueue_many(([picture(4, extent), None], [5, 6]))
    found, numbers = typed.dequeue_many(2)
    assert (found[0].number, found[1], numbers.tolist()) == (4, None, [5, 6])
    ranked = make("PriorityQueue", 10, name="ranked").sync
    ranked.enqueue((2, picture(7, extent)))
    assert ranked.dequeue()[1].number == 7


class FailsOnce:
    """An object that cannot be unpickled in its consumer's program, for some time."""

    fails = False

    def __reduce__(self) -> Any:
        return FailsOnce.made, ()

    @staticmethod
    def made() -> str:
        if FailsOnce.fails:
            raise ImportError("not here")
        return "made"


def test_an_element_that_cannot_be_unpickled_stays_in_the_queue(
    make: Any, monkeypatch: Any
) -> None:
    queue = make("FIFOQueue", 10).sync
    queue.enqueue_many([FailsOnce(), 2])
    monkeypatch.setattr(FailsOnce, "fails", True)
    with pytest.raises(ImportError, match="not here") as caught:
        queue.dequeue_many(2)
    assert "which keeps it" in caught.value.__notes__[0]
    monkeypatch.undo()
    assert queue.dequeue_many(2) == ["made", 2]


@pytest.mark.parametrize("tree", TREES)
def test_elements_in_containers(share: Any, tree: str) -> None:
    dtypes, shapes, make = TREES[tree]
    queue = share("FIFOQueue", 20, dtypes, shapes).sync
    queue.enqueue(make(0))
    queue.enqueue_many(stacked([make(1), make(2)]))
    assert plain_form(queue.dequeue()) == plain_form(make(0))
    assert plain_form(queue.dequeue_many(2)) == plain_form(stacked([make(1), make(2)]))
    with pytest.raises(InvalidArgumentError, match=r"^element"):
        queue.enqueue(1)


def test_the_shuffle_is_that_of_one_program(share: Any) -> None:
    local = aioqueue.sync.RandomShuffleQueue(100, 10, "int64", [()], seed=3)
    remote = share("RandomShuffleQueue", 100, 10, "int64", [()], seed=3).sync
    for queue in (local, remote):
        queue.enqueue_many(np.arange(80))
        queue.close()
    ours, theirs = ([list(b) for b in queue.batches(16)] for queue in (remote, local))
    assert ours == theirs


def test_the_smallest_priority_comes_first(share: Any) -> None:
    queue = share("PriorityQueue", 10, "float32", [(2,)]).sync
    queue.enqueue_many((np.array([5, 1, 3]), np.ones((3, 2), "float32")))
    queue.enqueue((2, [7, 7]))
    priorities, values = queue.dequeue_many(4)
    assert priorities.tolist() == [1, 2, 3, 5]
    assert values[1].tolist() == [7, 7]


def test_sizes_are_padded(share: Any) -> None:
    queue = share("PaddingFIFOQueue", 10, "int64", [(None,)]).sync
    for element in ([1, 2, 3], [4], [5, 6]):
        queue.enqueue(element)
    assert queue.dequeue_many(3).tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]]


def test_a_full_queue_blocks_until_there_is_room(share: Any) -> None:
    queue = share("FIFOQueue", 4).sync
    queue.enqueue_many(range(4))
    with pytest.raises(aioqueue.DeadlineExceededError):
        queue.enqueue(4, timeout=0.2)
    assert queue.statistics().size == 4
    blocked = threading.Thread(target=queue.enqueue_many, args=([4, 5],))
    blocked.start()
    while not queue.statistics().waiting_enqueues:
        pass
    assert queue.dequeue_many(4) == [0, 1, 2, 3]
    blocked.join()
    assert queue.dequeue_many(2) == [4, 5]


def test_a_closed_queue_delivers_what_is_left(share: Any) -> None:
    queue = share("FIFOQueue", 10).sync
    queue.enqueue_many(range(5))
    queue.close()
    with pytest.raises(QueueClosedError):
        queue.enqueue(5)
    with pytest.raises(OutOfRangeError):
        queue.dequeue_many(6)
    assert [list(batch) for batch in queue.batches(2)] == [[0, 1], [2, 3], [4]]
    queue.wait_closed()


def test_closing_fails_pending_enqueues_on_request(share: Any) -> None:
    queue = share("FIFOQueue", 2).sync
    caught: list[BaseException] = []

    def put() -> None:
        try:
            queue.enqueue_many(range(5))
        except QueueClosedError as error:
            caught.append(error)

    blocked = threading.Thread(target=put)
    blocked.start()
    while not queue.statistics().waiting_enqueues:
        pass
    queue.close(cancel_pending_enqueues=True, cause=ValueError("why"))
    blocked.join()
    (error,) = caught
    assert error.enqueued == 2  # type: ignore[attr-defined]
    assert isinstance(error.__cause__, ValueError)


def test_one_producer_is_kept_in_order_with_many_calls_in_flight(share: Any) -> None:
    """Ray itself starts the calls of one caller in any order."""
    queue = share("FIFOQueue", 10_000)

    async def main() -> list[int]:
        await asyncio.gather(
            *(queue.enqueue_many([number] * (1 + number % 3 * 50)) for number in range(60))
        )
        await queue.close()
        return [number async for batch in queue.batches(100) for number in batch]

    got = asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert got == sorted(got)
    assert set(got) == set(range(60))


def test_a_thousand_blocked_producers_starve_no_caller(share: Any) -> None:
    queue = share("FIFOQueue", 1)

    async def main() -> None:
        puts = [asyncio.ensure_future(queue.enqueue(number)) for number in range(1100)]
        got = [await queue.dequeue() for _ in range(1100)]
        await asyncio.gather(*puts)
        assert sorted(got) == list(range(1100))

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_a_cancelled_call_takes_nothing(share: Any) -> None:
    queue = share("FIFOQueue", 10)

    async def main() -> None:
        task = asyncio.ensure_future(queue.dequeue_many(3))
        while not (await queue.statistics()).waiting_dequeues:
            pass
        await queue.enqueue_many([1, 2])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await queue.dequeue_many(2) == [1, 2]

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_a_cancelled_call_reports_what_it_has_put_in(share: Any) -> None:
    queue = share("FIFOQueue", 2)

    async def main() -> None:
        task = asyncio.ensure_future(queue.enqueue_many(range(5)))
        while not (await queue.statistics()).waiting_enqueues:
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert caught.value.enqueued == 2  # type: ignore[attr-defined]
        assert await queue.dequeue_many(2) == [0, 1]
        assert (await queue.statistics()).size == 0

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


async def _in_trio(queue: Any) -> list[int]:
    await queue.enqueue_many(range(4))
    await queue.close()
    return [number async for number in queue]


def test_trio(share: Any) -> None:
    trio = pytest.importorskip("trio")
    assert trio.run(_in_trio, share("FIFOQueue", 10)) == [0, 1, 2, 3]


def test_waits_only_so_long_for_a_full_batch(share: Any) -> None:
    queue = share("FIFOQueue", 10).sync
    queue.enqueue_many([1, 2])
    assert queue.dequeue_up_to(5, 0.1) == [1, 2]


def test_what_was_taken_counts_when_it_is_used(share: Any) -> None:
    queue = share("FIFOQueue", 2).sync
    queue.enqueue_many([1, 2])
    putting = threading.Thread(target=queue.enqueue, args=(3,))
    putting.start()
    while not queue.statistics().waiting_enqueues:
        pass
    assert queue.dequeue() == 1
    putting.join()
    found = queue.statistics()
    assert (found.size, found.enqueued, found.dequeued) == (2, 3, 0)
    assert found.enqueue_wait > 0
    queue.commit()
    assert queue.statistics().dequeued == 1
    assert queue.dequeue_many(2) == [2, 3]
    taking = threading.Thread(target=queue.dequeue)
    taking.start()
    while not queue.statistics().waiting_dequeues:
        pass
    queue.enqueue(4)
    taking.join()
    assert queue.statistics().dequeue_wait > 0


def test_rows_of_any_shape(share: Any) -> None:
    """Also where one batch of them is large, and where several become one."""
    queue = share("PaddingFIFOQueue", 10, ["int64", "float32"], [(None,), ()]).sync
    queue.enqueue_many(([[1], [2, 3]], [0.5, 1.5]))
    queue.enqueue_many((np.ones((2, 20_000), "int64"), [2.5, 3.5]))
    queue.enqueue_many(([np.ones(30_000, "int64"), [7]], [4.5, 5.5]))
    first, numbers = queue.dequeue_many(2)
    assert first.tolist() == [[1, 0], [2, 3]]
    assert numbers.tolist() == [0.5, 1.5]
    second, numbers = queue.dequeue_many(3)
    assert second.shape == (3, 30_000)
    assert second.sum(axis=1).tolist() == [20_000, 20_000, 30_000]
    assert numbers.tolist() == [2.5, 3.5, 4.5]
    assert queue.dequeue()[0].tolist() == [7]


def test_wrong_elements_change_nothing(share: Any) -> None:
    queue = share("FIFOQueue", 10, *TYPED).sync
    with pytest.raises(InvalidArgumentError):
        queue.enqueue(([1, 2], 3))
    with pytest.raises(InvalidArgumentError):
        queue.enqueue_many((np.zeros((2, 3), "float32"), np.zeros(3, "int64")))
    assert queue.statistics().enqueued == 0


def test_a_second_handle_must_agree(share: Any) -> None:
    first = share("FIFOQueue", 10).sync
    first.enqueue(1)
    same = share("FIFOQueue", 10, name=first.name).sync
    assert same.dequeue() == 1
    with pytest.raises(InvalidArgumentError, match="capacity: got 11 for queue"):
        share("FIFOQueue", 11, name=first.name).sync.enqueue(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "name: got ''"),
        ({"last_committed": 3}, "last_committed: got 3 without consumer"),
        ({"owned": 1}, "owned: got 1"),
    ],
)
def test_wrong_arguments(cluster: Any, options: Any, message: str) -> None:
    import aioqueue.ray

    options = {"name": "wrong", **options}
    with pytest.raises(InvalidArgumentError, match=message):
        aioqueue.ray.FIFOQueue(options.pop("name"), 10, **options)


def test_a_queue_without_its_actor_raises(make: Any) -> None:
    queue = make("FIFOQueue", 10)

    async def main() -> None:
        waiting = asyncio.ensure_future(queue.dequeue())
        while not (await queue.statistics()).waiting_dequeues:
            pass
        await queue.delete()
        with pytest.raises(aioqueue.WorkerDiedError, match="the actor of queue"):
            await waiting

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_what_is_prepared_goes_in_by_batches(share: Any) -> None:
    """`prepare` fills queues of this program; the error says what to write, and that works."""
    queue = share("FIFOQueue", 100)
    for face in (queue, queue.sync):
        with pytest.raises(InvalidArgumentError, match=r"into: got .*queue\.sync\.enqueue_many"):
            prepare(numbers(10), abs, into=face, where="thread")
    for batch in numbers(10).prepare(abs, where="thread").batch(4):
        queue.sync.enqueue_many(batch)
    assert queue.sync.dequeue_many(10) == list(range(10))
