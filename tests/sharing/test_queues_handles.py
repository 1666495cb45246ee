"""Handles of queues: how they reach another process, what they are there, how they come home."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import itertools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import InvalidArgumentError, OutOfRangeError, QueueEmpty, QueueFull
from aioqueue.inputs import from_iterable
from aioqueue.sharing import addresses, owner
from aioqueue.testing import until_waiting, wait_until_waiting
from tests.kit.children import ROOT, environment
from tests.kit.owners import Owner
from tests.kit.sharing import METHODS, Child, sharing_ended
from tests.kit.worlds import spin_until

Start = Callable[..., Child]

LARGE = np.arange(1 << 15, dtype="float64")
"""An array of 256 KiB, which goes through shared memory."""


@dataclasses.dataclass
class Request:
    name: str
    image: Any


def use_both_faces(queue: Any) -> Any:
    async def double() -> None:
        number = await queue.aio.dequeue()
        await queue.aio.enqueue(2 * number)

    queue.enqueue(1)
    asyncio.run(double())
    assert isinstance(queue, sync.FIFOQueue)
    assert isinstance(queue.aio, aioqueue.FIFOQueue)
    assert queue.sync is queue
    assert queue.aio.sync is queue
    return queue.dequeue(), repr(queue)


@pytest.mark.parametrize(
    "method", [METHODS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in METHODS[1:])]
)
def test_a_handle_is_its_queue(child: Start, method: str) -> None:
    queue = sync.FIFOQueue(10, name="jobs")
    assert queue.share() is queue
    result = child(use_both_faces, queue, method=method).result()
    text = "<aioqueue.sync.FIFOQueue 'jobs' [objects] 0/10"
    assert result == (2, f"{text}, shared by process {os.getpid()}>")
    assert repr(queue) == f"{text}>"


def twice(queue: Any) -> bool:
    other = pickle.loads(pickle.dumps(queue))
    return other is queue and pickle.loads(pickle.dumps(queue.aio)) is queue.aio


def test_a_process_has_one_handle_of_a_queue(child: Start) -> None:
    assert child(twice, sync.FIFOQueue(1).share()).result()


def test_a_queue_that_is_not_shared_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match=r"queue\.share\(\)"):
        pickle.dumps(sync.FIFOQueue(1))


def put_the_queue_into_itself(queue: Any) -> None:
    queue.enqueue(queue)
    queue.enqueue(queue.aio)


def test_a_handle_that_comes_home_is_the_queue_itself(child: Start) -> None:
    queue = aioqueue.FIFOQueue(3).share()
    child(put_the_queue_into_itself, queue.sync).result()
    assert queue.sync.dequeue() is queue.sync
    assert queue.sync.dequeue() is queue


def test_a_program_that_does_not_share_pays_nothing() -> None:
    program = """
import sys
from aioqueue import sync
queue = sync.FIFOQueue(1)
queue.enqueue(queue)
assert queue.dequeue() is queue
assert not [name for name in sys.modules if name.startswith("aioqueue.sharing")]
assert "multiprocessing" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env=environment())


# Kinds of queues and elements.


def use_typed(queue: Any) -> Any:
    one = queue.dequeue()
    many = queue.dequeue_many(2)
    out = np.zeros((2, 3), "float32"), np.zeros(2, "int64")
    queue.dequeue_many(2, out=out)
    rest = queue.dequeue_up_to(10, 0.0)
    queue.enqueue(([7, 8, 9], 7))
    queue.enqueue_many((np.zeros((2, 3)), [1, 2]))
    return one, many, out, rest


def test_typed_elements(child: Start) -> None:
    queue = sync.FIFOQueue(10, ["float32", "int64"], [(3,), ()]).share()
    queue.enqueue_many((np.arange(18).reshape(6, 3), range(6)))
    one, many, out, rest = child(use_typed, queue).result()
    assert one[0].tolist() == [0, 1, 2]
    assert one[0].dtype == "float32"
    assert many[1].tolist() == [1, 2]
    assert out[0].tolist() == [[9, 10, 11], [12, 13, 14]]
    assert rest[1].tolist() == [5]
    assert queue.dequeue_many(3)[1].tolist() == [7, 1, 2]


def refuse(queue: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="expected"):
        queue.enqueue("no number")
    with pytest.raises(InvalidArgumentError, match="n: got -1"):
        queue.dequeue_many(-1)


def test_what_is_refused_is_refused_by_the_caller(child: Start) -> None:
    child(refuse, sync.FIFOQueue(1, "float32", [()]).share()).result()


def use_other_kinds(shuffle: Any, padding: Any, priority: Any, tree: Any) -> Any:
    priority.enqueue((3, "c"))
    priority.enqueue((1, Request("a", None)))
    padding.enqueue([1, 2, 3])
    padding.enqueue([4])
    return (
        sorted(shuffle.dequeue_many(5).tolist()),
        padding.dequeue_many(2).tolist(),
        [priority.dequeue() for _ in range(2)],
        tree.dequeue(),
    )


def test_all_kinds(child: Start) -> None:
    shuffle = sync.RandomShuffleQueue(10, 0, "int64", [()], seed=1).share()
    shuffle.enqueue_many(range(5))
    tree = sync.FIFOQueue(3, {"x": {"a": "int64", "b": str}}, {"x": {"a": (), "b": ()}}).share()
    tree.enqueue({"x": {"a": 1, "b": "text"}})
    padding = sync.PaddingFIFOQueue(3, "int64", [(None,)]).share()
    found = child(use_other_kinds, shuffle, padding, sync.PriorityQueue(3).share(), tree).result()
    assert found[0] == [0, 1, 2, 3, 4]
    assert found[1] == [[1, 2, 3], [4, 0, 0]]
    assert found[2] == [(1, Request("a", None)), (3, "c")]
    assert found[3] == {"x": {"a": 1, "b": "text"}}


def use_objects_in_arrays(queue: Any) -> Any:
    first = queue.dequeue()
    queue.enqueue((Request("from the child", 1), 2))
    return first, queue.dequeue_many(2)


def test_components_of_objects(child: Start) -> None:
    queue = sync.FIFOQueue(5, [object, "int64"], [(), ()]).share()
    queue.enqueue((Request("here", 0), 0))
    queue.enqueue((Request("here", 1), 1))
    first, (objects, numbers) = child(use_objects_in_arrays, queue).result()
    assert first[0] == Request("here", 0)
    assert [one.name for one in objects] == ["here", "from the child"]
    assert numbers.tolist() == [1, 2]


def fill_bytes(queue: Any) -> Any:
    queue.enqueue(b"1" * 60)
    with pytest.raises(QueueFull):
        queue.enqueue_nowait(b"2" * 60)
    return queue.statistics().bytes


def test_bytes_are_counted_as_in_one_process(child: Start) -> None:
    queue = sync.FIFOQueue(None, max_bytes=100).share()
    assert child(fill_bytes, queue).result() == 60
    assert queue.dequeue() == b"1" * 60


def large_ones(queue: Any) -> Any:
    array, request = queue.dequeue(), queue.dequeue()
    array += 1  # it is the caller's own, and may be written to
    queue.enqueue(array)
    queue.enqueue(request)
    queue.enqueue_many([array, "small", {"x": array}])
    return request.image.flags.writeable


def test_large_arrays(child: Start) -> None:
    queue = sync.FIFOQueue(10).share()
    queue.enqueue(LARGE)
    queue.enqueue(Request("large", LARGE))
    assert child(large_ones, queue).result()
    assert (queue.dequeue() == LARGE + 1).all()
    assert (queue.dequeue().image == LARGE).all()
    assert (queue.dequeue() == LARGE + 1).all()
    assert queue.dequeue() == "small"
    assert (queue.dequeue()["x"] == LARGE + 1).all()


def many_large_ones(queue: Any, n: int) -> None:
    for _ in range(n):
        queue.enqueue(queue.dequeue())
    queue.join()


def test_large_arrays_give_their_place_back(child: Start) -> None:
    """Else the shared memory would be full after some hundred arrays."""
    queue = sync.FIFOQueue(4, "float64", [LARGE.shape]).share()
    queue.enqueue(LARGE)
    worker = child(many_large_ones, queue, 600)
    spin_until(lambda: queue.statistics().enqueued == 601)
    queue.dequeue()
    queue.task_done(601)
    worker.result()
    for client in owner.server().clients:  # unless it has left, and its memory with it
        assert client.memory is not None
        assert client.memory.is_empty


def iterate(queue: Any) -> Any:
    return list(queue), [batch.tolist() for batch in queue.batches(2)]


def test_iterating(child: Start) -> None:
    queue = sync.FIFOQueue(10, "int64", [()]).share()
    queue.enqueue_many(range(3))
    queue.close()
    elements, batches = child(iterate, queue).result()
    assert [int(one) for one in elements] == [0, 1, 2]
    assert batches == []


# What never waits.


def without_waiting(queue: Any) -> Any:
    queue.enqueue_nowait(1)
    with pytest.raises(QueueFull):
        queue.enqueue_nowait(2)
    assert queue.size() == len(queue) == 1
    queue.capacity = 2
    queue.enqueue_nowait(2)
    assert queue.capacity == 2
    assert [queue.dequeue_nowait(), queue.dequeue_nowait()] == [1, 2]
    with pytest.raises(QueueEmpty):
        queue.dequeue_nowait()
    queue.task_done(2)
    queue.join()
    with pytest.raises(InvalidArgumentError, match="0 unfinished elements"):
        queue.task_done()
    assert not queue.is_closed()
    queue.close(cause=ValueError("the reason"))
    assert queue.state is aioqueue.QueueState.CLOSED
    queue.wait_closed()
    with pytest.raises(OutOfRangeError) as end:
        queue.dequeue_nowait()
    return repr(end.value.__cause__), queue.statistics()


def test_what_never_waits(child: Start) -> None:
    queue = sync.FIFOQueue(1).share()
    cause, statistics = child(without_waiting, queue).result()
    assert cause == "ValueError('the reason')"
    assert statistics == queue.statistics()
    with pytest.raises(OutOfRangeError) as end:
        queue.dequeue()
    assert isinstance(end.value.__cause__, ValueError)


def in_an_event_loop(queue: Any) -> Any:
    async def main() -> Any:
        queue.enqueue(1)
        with pytest.raises(RuntimeError, match=r"await queue\.aio\.enqueue"):
            queue.enqueue(2)
        return queue.dequeue()

    return asyncio.run(main())


def test_a_thread_whose_loop_runs_may_not_wait(child: Start) -> None:
    assert child(in_an_event_loop, sync.FIFOQueue(1).share()).result() == 1


# Names.


def dequeue_by_name(name: str, timeout: float | None) -> Any:
    queue = sync.connect(name, timeout)
    return queue.dequeue(), isinstance(aioqueue.connect(name), aioqueue.FIFOQueue)


def name_of(test: str) -> str:
    return f"{test}-{os.getpid()}"


def test_a_queue_is_found_by_its_name(child: Start) -> None:
    queue = sync.FIFOQueue(1).share(name=name_of("found"))
    queue.enqueue(1)
    assert child(dequeue_by_name, name_of("found"), None, method="spawn").result() == (1, True)
    assert sync.connect(name_of("found")) is queue


def test_a_name_that_is_not_taken_yet_is_waited_for(child: Start) -> None:
    waiting = child(dequeue_by_name, name_of("waited"), 30.0)
    queue = sync.FIFOQueue(1)
    queue.share(name=name_of("waited"))
    queue.enqueue(1)
    assert waiting.result() == (1, True)


def test_a_name_that_is_not_taken() -> None:
    with pytest.raises(LookupError, match=r"nobody shares anything as 'nothing' \("):
        sync.connect("nothing")
    with pytest.raises(LookupError, match=r"as 'nothing' within 0\.001 s"):
        sync.connect("nothing", 0.001)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", 5])
def test_a_name_that_none_can_have(name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="expected letters, digits"):
        sync.FIFOQueue(1).share(name=name)
    with pytest.raises(InvalidArgumentError, match="expected letters, digits"):
        sync.connect(name)


@pytest.mark.usefixtures("child")
def test_a_long_name() -> None:
    name = name_of("a" * 300)
    queue = sync.FIFOQueue(1).share(name=name)
    assert sync.connect(name) is queue
    with pytest.raises(LookupError):
        sync.connect(name + "b")


@pytest.mark.usefixtures("child")
def test_a_name_is_of_one_object() -> None:
    sync.FIFOQueue(1).share(name=name_of("one"))
    with pytest.raises(InvalidArgumentError, match=f"is taken: process {os.getpid()} shares"):
        sync.FIFOQueue(1).share(name=name_of("one"))


def share_and_wait(name: str, pipe: Any) -> None:
    sync.FIFOQueue(1).share(name=name)
    pipe.send("shared")
    pipe.recv()


def test_a_killed_process_leaves_no_name(child: Start) -> None:
    name = name_of("killed")
    killed = child(share_and_wait, name, talks=True)
    killed.reported()
    killed.kill()
    with pytest.raises(LookupError, match=f"process {killed.pid}, which did, was killed"):
        sync.connect(name)
    left = [path.name for path in addresses.folder().iterdir()]
    assert not [one for one in left if one.startswith((str(killed.pid), name))]
    assert sync.FIFOQueue(1).share(name=name)


def test_a_thread_whose_loop_runs_may_not_wait_for_a_name() -> None:
    async def main() -> None:
        aioqueue.connect("nothing", 5.0)

    with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
        asyncio.run(main())


def loop_and_leave(queue: Any) -> Any:
    """Read a queue by pipelines, of which the first one is left early."""
    left = from_iterable(queue).prepare(str, workers=2, where="thread")
    taken = list(itertools.islice(left, 3))
    gc.collect()
    return taken, [*from_iterable(queue)]


def test_a_pipeline_has_each_element_of_a_handle_once(child: Start) -> None:
    """What it has on lease is its own until it is handed out, or goes back."""
    queue = sync.FIFOQueue(30).share()
    queue.enqueue_many(range(20))
    queue.close()
    taken, rest = child(loop_and_leave, queue).result()
    assert sorted([*map(int, taken), *rest]) == list(range(20))


# Forks.


def use_in_a_fork(queue: Any) -> Any:
    return queue.dequeue(), queue.aio.name


def test_a_fork_of_a_client_connects_again(child: Start) -> None:
    queue = sync.FIFOQueue(3).share()
    assert child(fork_while_connected, queue).result() == ["first", "second"]


def fork_while_connected(queue: Any) -> Any:
    """Wait in a thread, and in a fork of this process."""
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(queue.dequeue()))
    thread.start()
    spin_until(lambda: queue.statistics().waiting_dequeues == 1)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writing, queue.dequeue().encode())
        os._exit(0)
    spin_until(lambda: queue.statistics().waiting_dequeues == 2)
    queue.enqueue("first")
    queue.enqueue("second")
    thread.join()
    os.waitpid(pid, 0)
    return [*got, os.read(reading, 100).decode()]


def test_a_fork_of_the_owner_has_handles_of_its_queues(child: Start) -> None:
    queue = aioqueue.FIFOQueue(3).share()
    face = queue.sync  # both faces are there
    queue.sync.enqueue(1)
    assert child(use_in_a_fork, face).result() == (1, queue.name)
    face.enqueue(2)
    assert queue.sync.dequeue() == 2


def in_a_fork(call: Callable[[], object]) -> str:
    """What a call in a fork of this process raises."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            call()
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)
    with os.fdopen(reading) as refusal:
        return refusal.read()


def fork_in_iterations(queue: Any) -> Any:
    """Fork in the middle of loops; return what the fork's next step raises, and what is taken."""

    async def in_a_loop() -> tuple[Any, ...]:
        batches = queue.aio.batches(2)
        taken = [await anext(batches)]
        refusal = in_a_fork(lambda: next(batches.__anext__().__await__()))
        return refusal, [*taken, await anext(batches)]

    batches, later = queue.batches(2), queue.batches(2)
    taken = [next(batches)]
    refusal = in_a_fork(lambda: next(batches))
    begun_there = in_a_fork(lambda: next(later))
    taken += [next(batches)]
    loop = iter(from_iterable(queue))
    leases = queue._leases()
    lent = [next(loop), leases.take("a lease")]
    in_loops = in_a_fork(lambda: next(loop)), in_a_fork(lambda: leases.take("another"))
    lent += [next(loop), leases.take("the next")]
    leases.give_back()
    return refusal, taken, begun_there, asyncio.run(in_a_loop()), in_loops, lent


@pytest.mark.slow("owner")
@pytest.mark.parametrize("where", ["client", "owner"])
def test_an_iteration_refuses_in_a_fork_and_continues_in_its_process(
    child: Start, where: str
) -> None:
    queue = sync.FIFOQueue(30, name="numbers").share()
    queue.enqueue_many(range(20))
    if where == "owner":
        found = fork_in_iterations(queue)
    else:
        found = child(fork_in_iterations, queue).result()
    refusal, taken, begun_there, (refusal_in_a_loop, taken_in_a_loop), in_loops, lent = found
    hint = "was begun in the parent process and continues there: begin a new one in this fork"
    assert refusal.startswith(f"<aioqueue.sync.Batches of 2 from 'numbers'> {hint}")
    assert refusal_in_a_loop.startswith(f"<aioqueue.AsyncBatches of 2 from 'numbers'> {hint}")
    assert begun_there == ""
    assert all(hint in one for one in in_loops)
    assert taken == [[0, 1], [4, 5]]  # in between, the fork's own iteration has taken a batch
    assert lent == [6, 7, 8, 9]
    assert taken_in_a_loop == [[7, 9], [10, 11]]  # first what the leases have given back


@pytest.mark.parametrize("make", [partial(sync.FIFOQueue[Any], 3), sync.Latest[Any]])
def test_what_is_shared_lives_until_its_process_ends(child: Start, make: Any) -> None:
    """A pickled handle may be anywhere, so nothing here need refer to it."""
    shared = make().share()
    if isinstance(shared, sync.Latest):
        shared.publish("the value")
    else:
        shared.enqueue("the value")
    pickled = pickle.dumps(shared)
    del shared
    gc.collect()
    assert "the value" in child(read_pickled, pickled).result()


def read_pickled(pickled: bytes) -> Any:
    thing = pickle.loads(pickled)
    return repr(thing.get() if isinstance(thing, sync.Latest) else thing.dequeue())


def test_an_object_that_has_the_name_already_may_be_shared_by_it_again() -> None:
    name = f"again-{os.getpid()}"
    with sharing_ended():
        queue = sync.FIFOQueue(3)
        for one in (name, f"{name}-2", name):
            assert queue.share(name=one) is queue
        with pytest.raises(InvalidArgumentError, match=f"taken: process {os.getpid()} shares"):
            sync.FIFOQueue(3).share(name=name)
        assert sync.connect(name) is queue


def test_helpers_that_wait_for_callers_refuse_handles(owner: Owner) -> None:
    handle = owner.make("FIFOQueue", 1)
    with pytest.raises(InvalidArgumentError, match="expected a queue of this process"):
        wait_until_waiting(handle, dequeues=1)
    with pytest.raises(InvalidArgumentError, match="expected a queue of this process"):
        asyncio.run(until_waiting(handle, dequeues=1))
