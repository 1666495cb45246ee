"""A coordinator of a cluster: a stop reaches every worker, and every failure comes home."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aioqueue
from tests import clusters
from tests.test_docs import ROOT, environment

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),
    # Of Ray's own.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_numbers = itertools.count()


@pytest.fixture
def coord(cluster: Any) -> Iterator[Any]:
    """One, under a name of its own."""
    import aioqueue.ray

    made = aioqueue.ray.Coordinator(f"test {next(_numbers)}")
    yield made
    made.delete()


class Worker:
    """Somebody elsewhere."""

    def __init__(self, name: str) -> None:
        import aioqueue.ray

        self.coord = aioqueue.ray.Coordinator(name).sync

    def pid(self) -> int:
        return os.getpid()

    def work(self) -> str:
        """Until the stop."""
        with self.coord.stop_on_exception():
            self.coord.wait_for_stop()
        return "stopped"

    def fail(self) -> None:
        with self.coord.stop_on_exception():
            raise ValueError("a bad example")

    def raise_it(self) -> None:
        raise ValueError("a bad example")

    def stop(self) -> None:
        self.coord.request_stop()

    def is_stopped(self) -> bool:
        return self.coord.should_stop()


def other(cluster: Any, coord: Any, **options: Any) -> Any:
    """One, in a process of its own, which can be asked who it is while it works."""
    options = {"num_cpus": 0, "max_concurrency": 3, **options}
    return cluster.remote(**options)(Worker).remote(coord.name)


def working(cluster: Any, coord: Any, count: int) -> None:
    """Wait until so many workers are known that are not in this program."""
    while len(cluster.get(coord._core.link.actor.others.remote(coord._core._life))) != count:
        pass


def leaf(group: BaseExceptionGroup[Any]) -> BaseException:
    (found,) = group.exceptions
    return found


def test_a_stop_reaches_every_worker(coord: Any, cluster: Any) -> None:
    others = [other(cluster, coord) for _ in range(3)]
    refs = [one.work.remote() for one in others]
    for ref in refs:
        coord.register(ref)
    working(cluster, coord, 3)
    coord.request_stop()
    assert cluster.get(refs) == ["stopped"] * 3
    coord.sync.join()
    assert coord.joined


def test_a_stop_elsewhere_reaches_this_program(coord: Any, cluster: Any) -> None:
    cluster.get(other(cluster, coord).stop.remote())
    assert coord.sync.wait_for_stop(60)
    assert coord.should_stop()


def test_a_failure_stops_all_and_comes_home(coord: Any, cluster: Any) -> None:
    doomed = other(cluster, coord, name=f"doomed {coord.name}")
    refs = [other(cluster, coord).work.remote() for _ in range(2)]
    for ref in refs:
        coord.register(ref)
    working(cluster, coord, 2)
    coord.register(doomed.fail.remote())
    with pytest.raises(ExceptionGroup) as caught:
        coord.sync.join()
    assert cluster.get(refs) == ["stopped"] * 2
    error = leaf(caught.value)
    assert isinstance(error, ValueError)
    there = str(error.__cause__)
    assert 'raise ValueError("a bad example")' in there
    assert "in fail" in there
    pid = cluster.get(doomed.pid.remote())
    node = cluster.get_runtime_context().get_node_id()
    for text in (there, str(error.__notes__)):
        assert f"actor doomed {coord.name}, process {pid} on node {node}" in text


def test_what_a_task_raises_comes_home(coord: Any, cluster: Any) -> None:
    """Also if it has not heard of any coordinator."""
    doomed = other(cluster, coord)
    coord.register(doomed.raise_it.remote())
    with pytest.raises(ExceptionGroup) as caught:
        coord.sync.join()
    error = leaf(caught.value)
    assert type(error) is ValueError
    assert 'raise ValueError("a bad example")' in str(error.__cause__)
    assert f"pid={cluster.get(doomed.pid.remote())}, ip=" in str(error.__cause__)


def test_failures_come_to_every_program(coord: Any, cluster: Any) -> None:
    """Not to this one alone, nor twice."""
    import aioqueue.ray

    second = aioqueue.ray.Coordinator(coord.name)
    for _ in range(3):
        cluster.get(other(cluster, coord).fail.remote())
    for one in (coord, second):
        with pytest.raises(ExceptionGroup) as caught:
            one.sync.join()
        assert [str(error) for error in caught.value.exceptions] == ["a bad example"] * 3


def test_what_stopping_causes_is_no_failure(coord: Any, cluster: Any) -> None:
    coord.request_stop()
    coord.request_stop(aioqueue.QueueClosedError("closed"))
    coord.sync.join()


def test_a_failure_here_is_told_elsewhere(coord: Any, cluster: Any) -> None:
    ref = other(cluster, coord).work.remote()
    working(cluster, coord, 1)
    with pytest.raises(ExceptionGroup) as caught, coord.sync:
        raise KeyError("here")
    assert isinstance(leaf(caught.value), KeyError)
    assert cluster.get(ref) == "stopped"


def test_a_join_waits_for_workers_that_only_others_know(coord: Any, cluster: Any) -> None:
    one = other(cluster, coord)
    ref = one.work.remote()
    working(cluster, coord, 1)
    joining = threading.Thread(target=coord.sync.join)
    joining.start()
    while cluster.get(coord._core.link.actor.joining.remote()) != 1:
        pass
    assert joining.is_alive()
    cluster.get(one.stop.remote())
    joining.join(60)
    assert not joining.is_alive()
    assert cluster.get(ref) == "stopped"


def test_a_killed_worker_is_told_and_stops_all(coord: Any, cluster: Any) -> None:
    doomed = other(cluster, coord, name=f"killed {coord.name}")
    pid = cluster.get(doomed.pid.remote())
    ref = other(cluster, coord).work.remote()
    for one in (ref, doomed.work.remote()):
        coord.register(one)
    working(cluster, coord, 2)
    clusters.kill(pid)
    with pytest.raises(ExceptionGroup) as caught:
        coord.sync.join()
    error = leaf(caught.value)
    assert isinstance(error, aioqueue.WorkerDiedError)
    assert f"killed {coord.name}" in str(error)
    assert str(pid) in str(error)
    assert cluster.get(ref) == "stopped"


def test_a_killed_task_is_told_with_its_place(coord: Any, cluster: Any) -> None:
    name = coord.name

    @cluster.remote(num_cpus=0, max_retries=0)  # type: ignore[untyped-decorator]
    def work() -> None:
        import aioqueue.ray

        found = aioqueue.ray.Coordinator(name).sync
        with found.stop_on_exception():
            found.wait_for_stop()

    ref = work.remote()
    actor = coord._core.link.actor
    coord.register(ref)
    while not (where := cluster.get(actor.who.remote(ref.task_id().hex()))):
        pass
    clusters.kill(int(where.split("process ")[1].split()[0]))
    with pytest.raises(ExceptionGroup) as caught:
        coord.sync.join()
    assert isinstance(leaf(caught.value), aioqueue.WorkerDiedError)
    assert where in str(leaf(caught.value))


def test_a_death_that_nobody_waits_for_is_told(coord: Any, cluster: Any) -> None:
    """By silence; here at once, as if that time had passed."""
    doomed = other(cluster, coord)
    doomed.work.remote()
    working(cluster, coord, 1)
    pid = cluster.get(doomed.pid.remote())
    clusters.kill(pid)
    actor = coord._core.link.actor
    while cluster.get(actor.silence.remote()) < 6:  # others are heard of every five seconds
        pass
    cluster.get(actor.expire.remote(6.0))
    with pytest.raises(ExceptionGroup) as caught:
        coord.sync.join()
    assert isinstance(leaf(caught.value), aioqueue.WorkerDiedError)
    assert f"process {pid}" in str(leaf(caught.value))


def test_the_actor_dies(coord: Any, cluster: Any) -> None:
    """Every wait ends, with an error that says so."""
    import aioqueue.ray

    owner = aioqueue.ray.Coordinator(f"{coord.name} too")
    doomed = aioqueue.ray.Coordinator(owner.name)
    remote = other(cluster, owner)
    ref = remote.work.remote()
    working(cluster, owner, 1)
    owner.delete()
    assert doomed.sync.wait_for_stop(60)
    assert cluster.get(ref) == "stopped"
    with pytest.raises(ExceptionGroup) as caught:
        doomed.sync.join()
    assert isinstance(leaf(caught.value), aioqueue.WorkerDiedError)
    assert f"coordinator '{owner.name}': its actor" in str(leaf(caught.value))


def test_coroutines(coord: Any, cluster: Any) -> None:
    """The async face: its block stops and joins all of the cluster."""
    queue: aioqueue.FIFOQueue[int] = aioqueue.FIFOQueue(4)

    async def put() -> None:
        await queue.enqueue(1)

    async def main() -> None:
        async with coord:
            coord.start(aioqueue.QueueRunner(queue, [put]))
            refs = [other(cluster, coord).work.remote() for _ in range(2)]
            for ref in refs:
                coord.register(ref)
            assert await queue.dequeue() == 1
            await asyncio.to_thread(working, cluster, coord, 2)
        assert await asyncio.gather(*refs) == ["stopped"] * 2

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_cancelled_wait_changes_nothing(coord: Any, cluster: Any) -> None:
    ref = other(cluster, coord).work.remote()
    coord.register(ref)

    async def main() -> None:
        for wait in (coord.join, coord.wait_for_stop):
            task = asyncio.ensure_future(wait())
            for _ in range(3):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not coord.should_stop()
        coord.request_stop()
        await coord.join()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert cluster.get(ref) == "stopped"


def test_workers_that_do_not_end_in_time_are_named(coord: Any, cluster: Any) -> None:
    one = other(cluster, coord)

    class Stubborn:
        def __init__(self, name: str) -> None:
            import aioqueue.ray

            self.coord = aioqueue.ray.Coordinator(name).sync
            self.go_on = threading.Event()

        def work(self) -> None:
            with self.coord.stop_on_exception():
                self.go_on.wait()

        def end(self) -> None:
            self.go_on.set()

    stubborn = cluster.remote(num_cpus=0, max_concurrency=2)(Stubborn).remote(coord.name)
    ref = stubborn.work.remote()
    working(cluster, coord, 1)
    cluster.get(one.stop.remote())
    with pytest.raises(ExceptionGroup) as caught:
        coord.sync.join(stop_grace_period=0.1)
    error = leaf(caught.value)
    assert isinstance(error, aioqueue.StillRunningError)
    assert "Stubborn.work" in str(error)
    cluster.get(stubborn.end.remote())
    cluster.get(ref)


def test_it_can_be_used_again(coord: Any, cluster: Any) -> None:
    """By all, when somebody has said so."""
    one = other(cluster, coord)
    cluster.get(one.fail.remote())
    with pytest.raises(ExceptionGroup):
        coord.sync.join()
    coord.clear_stop()
    while cluster.get(one.is_stopped.remote()):
        pass
    cluster.get(one.fail.remote())
    with pytest.raises(ExceptionGroup) as caught:
        coord.sync.join()
    assert len(caught.value.exceptions) == 1


def test_who_comes_later_hears_of_the_stop(coord: Any, cluster: Any) -> None:
    coord.request_stop()
    assert cluster.get(other(cluster, coord).work.remote()) == "stopped"


def test_programs_that_leave_a_block_together_do_not_wait_for_each_other(
    coord: Any, cluster: Any
) -> None:
    class Rank:
        def __init__(self, name: str) -> None:
            self.name = name

        def train(self) -> None:
            import aioqueue.ray

            with aioqueue.ray.Coordinator(self.name).sync:
                return

    ranks = [cluster.remote(num_cpus=0)(Rank).remote(coord.name) for _ in range(2)]
    refs = [rank.train.remote() for rank in ranks]
    for ref in refs:
        coord.register(ref)
    coord.sync.join()


def test_it_is_forgotten_when_nobody_uses_it_any_more(coord: Any, cluster: Any) -> None:
    """Whoever comes then begins anew."""
    import gc

    import aioqueue.ray

    name = f"{coord.name} again"
    first = aioqueue.ray.Coordinator(name)
    actor = first._core.link.actor
    first.request_stop()
    first.sync.join()
    del first
    gc.collect()
    while cluster.get(actor.programs.remote()):
        pass
    second = aioqueue.ray.Coordinator(name)
    assert not second.sync.wait_for_stop(0.1)
    second.delete()


def test_it_cannot_be_sent(coord: Any, cluster: Any) -> None:
    import pickle

    for face in (coord, coord.sync):
        with pytest.raises(TypeError, match="cannot be sent elsewhere"):
            pickle.dumps(face)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda kind: kind(""), "name: got ''"),
        (lambda kind: kind("x", [1]), "clean_stop_exception_types: got"),
        (lambda kind: kind("x", stop_grace_period="x"), "stop_grace_period: got"),
    ],
)
def test_wrong_arguments(cluster: Any, make: Callable[[Any], Any], message: str) -> None:
    import aioqueue.ray

    with pytest.raises(aioqueue.InvalidArgumentError, match=message):
        make(aioqueue.ray.Coordinator)


CUT_OFF = """
import os
import threading
import aioqueue
import aioqueue.ray
from tests import clusters

try:
    aioqueue.ray.Coordinator("nowhere")
except RuntimeError as error:
    print(error)
with clusters.one_node(1) as ray:
    coord = aioqueue.ray.Coordinator("cut off").sync
    child = os.fork()
    if not child:
        try:
            coord.request_stop()
        except RuntimeError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
coord.wait_for_stop()
try:
    coord.join()
except ExceptionGroup as group:
    (error,) = group.exceptions
    assert isinstance(error, aioqueue.WorkerDiedError)
    print(error)
assert not ray.is_initialized()
"""


def test_a_connection_that_ends_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CUT_OFF)],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    nowhere, forked, ended = done.stdout.splitlines()
    assert "connected to no Ray cluster" in nowhere
    assert "belongs to the process that this one was forked from" in forked
    assert "ray.shutdown() was called" in ended


NODE_DIES = """
import aioqueue
import aioqueue.ray
from tests import clusters

with clusters.several_nodes(2) as nodes:
    import ray

    coord = aioqueue.ray.Coordinator("nodes").sync

    @ray.remote(num_cpus=0, max_retries=0)
    def work():
        coord = aioqueue.ray.Coordinator("nodes").sync
        with coord.stop_on_exception():
            coord.wait_for_stop()
        return "stopped"

    # By hand, for both must not be on one node.
    ids = [node.node_id for node in nodes.workers]
    place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    refs = [
        work.options(scheduling_strategy=place(node_id=one, soft=False)).remote() for one in ids
    ]
    for ref in refs:
        coord.register(ref)
    actor = coord._core.link.actor
    while not all(ray.get(actor.who.remote(ref.task_id().hex())) for ref in refs):
        pass
    nodes.kill()
    try:
        coord.join()
    except ExceptionGroup as group:
        (error,) = group.exceptions
        assert isinstance(error, aioqueue.WorkerDiedError), error
        assert f"on node {ids[0]}" in str(error), error
    assert ray.get(refs[1]) == "stopped"
    print("done")
"""


def test_a_node_dies() -> None:
    """With all that runs on it: the others stop, and the failure says which node it was."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(NODE_DIES)],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout
