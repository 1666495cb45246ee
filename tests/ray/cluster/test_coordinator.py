"""The coordinator of a cluster: a stop reaches every worker, a failure every program."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aioqueue
from tests.kit import clusters
from tests.ray.marks import MARKS

pytestmark = MARKS

_numbers = itertools.count()


@pytest.fixture
def coord(cluster: Any) -> Iterator[Any]:
    """One, under a name of its own."""
    import aioqueue.ray

    made = aioqueue.ray.Coordinator(f"test {next(_numbers)}")
    yield made
    made.delete()


class Worker:
    """A program in a process of its own, which reports its identity while it works."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._name = ""
        self._coord: Any = None

    def coord(self, name: str) -> Any:
        """Its handle of a coordinator."""
        import aioqueue.ray

        with self._lock:
            if self._name != name:
                self._name, self._coord = name, aioqueue.ray.Coordinator(name).sync
            return self._coord

    def pid(self) -> int:
        return os.getpid()

    def work(self, name: str) -> str:
        """Until the stop."""
        coord = self.coord(name)
        with coord.stop_on_exception():
            coord.wait_for_stop()
        return "stopped"

    def fail(self, name: str) -> None:
        with self.coord(name).stop_on_exception():
            raise ValueError("a bad example")

    def raise_it(self) -> None:
        raise ValueError("a bad example")

    def stop(self, name: str) -> None:
        self.coord(name).request_stop()

    def is_stopped(self, name: str) -> bool:
        return bool(self.coord(name).should_stop())


def new_worker(cluster: Any, **options: Any) -> Any:
    """Start a program that may be killed, or has a name."""
    options = {"num_cpus": 0, "max_concurrency": 3, **options}
    return cluster.remote(**options)(Worker).remote()


@pytest.fixture(scope="module")
def team(cluster: Any) -> Iterator[list[Any]]:
    """Three programs shared by all tests, since each takes a second to start."""
    workers = [new_worker(cluster) for _ in range(3)]
    yield workers
    for worker in workers:
        cluster.kill(worker)


def working(cluster: Any, coord: Any, count: int) -> None:
    """Wait until so many workers are known that are not in this program."""
    ours = re.compile(rf"process {os.getpid()}\b")

    def those() -> list[Any]:
        known = cluster.get(clusters.actor_of(coord).other_workers.remote("nobody"))
        return [worker for worker in known if not ours.search(worker.name)]

    while len(those()) != count:
        pass


def leaf(group: BaseExceptionGroup[Any]) -> BaseException:
    (found,) = group.exceptions
    return found


def test_a_stop_reaches_every_worker(coord: Any, cluster: Any, team: Any) -> None:
    refs = [one.work.remote(coord.name) for one in team]
    for ref in refs:
        coord.register(ref)
    working(cluster, coord, 3)
    coord.request_stop()
    assert cluster.get(refs) == ["stopped"] * 3
    coord.sync.join()
    assert coord.joined


def test_a_stop_elsewhere_reaches_this_program(coord: Any, cluster: Any, team: Any) -> None:
    cluster.get(team[0].stop.remote(coord.name))
    assert coord.sync.wait_for_stop(clusters.PATIENCE)
    assert coord.should_stop()


def test_a_failure_stops_all_programs_and_is_raised(coord: Any, cluster: Any, team: Any) -> None:
    doomed = new_worker(cluster, name=f"doomed {coord.name}")
    refs = [one.work.remote(coord.name) for one in team[:2]]
    for ref in refs:
        coord.register(ref)
    working(cluster, coord, 2)
    coord.register(doomed.fail.remote(coord.name))
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


def test_the_exception_of_a_task_is_raised(coord: Any, cluster: Any, team: Any) -> None:
    """Also if it has not heard of any coordinator."""
    doomed = team[0]
    coord.register(doomed.raise_it.remote())
    with pytest.raises(ExceptionGroup) as caught:
        coord.sync.join()
    error = leaf(caught.value)
    assert type(error) is ValueError
    assert 'raise ValueError("a bad example")' in str(error.__cause__)
    assert f"pid={cluster.get(doomed.pid.remote())}, ip=" in str(error.__cause__)


def test_failures_reach_every_program(coord: Any, cluster: Any, team: Any) -> None:
    """Not to this one alone, nor twice."""
    import aioqueue.ray

    second = aioqueue.ray.Coordinator(coord.name)
    for one in team:
        cluster.get(one.fail.remote(coord.name))
    for face in (coord, second):
        with pytest.raises(ExceptionGroup) as caught:
            face.sync.join()
        assert [str(error) for error in caught.value.exceptions] == ["a bad example"] * 3


def test_what_stopping_causes_is_no_failure(coord: Any, cluster: Any) -> None:
    coord.request_stop()
    coord.request_stop(aioqueue.QueueClosedError("closed"))
    coord.sync.join()


def test_a_local_failure_reaches_other_programs(coord: Any, cluster: Any, team: Any) -> None:
    ref = team[0].work.remote(coord.name)
    working(cluster, coord, 1)
    with pytest.raises(ExceptionGroup) as caught, coord.sync:
        raise KeyError("here")
    assert isinstance(leaf(caught.value), KeyError)
    assert cluster.get(ref) == "stopped"


def test_a_join_waits_for_workers_that_only_others_know(
    coord: Any, cluster: Any, team: Any
) -> None:
    one = team[0]
    ref = one.work.remote(coord.name)
    working(cluster, coord, 1)
    joining = threading.Thread(target=coord.sync.join)
    joining.start()
    while cluster.get(clusters.actor_of(coord).joining.remote()) != 1:
        pass
    assert joining.is_alive()
    cluster.get(one.stop.remote(coord.name))
    joining.join(clusters.PATIENCE)
    assert not joining.is_alive()
    assert cluster.get(ref) == "stopped"


def test_a_killed_worker_is_reported_and_stops_all(coord: Any, cluster: Any, team: Any) -> None:
    doomed = new_worker(cluster, name=f"killed {coord.name}")
    pid = cluster.get(doomed.pid.remote())
    ref = team[0].work.remote(coord.name)
    for one in (ref, doomed.work.remote(coord.name)):
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


def test_a_killed_task_is_reported_with_its_place(coord: Any, cluster: Any) -> None:
    name = coord.name

    @cluster.remote(num_cpus=0, max_retries=0)  # type: ignore[untyped-decorator]
    def work() -> None:
        import aioqueue.ray

        found = aioqueue.ray.Coordinator(name).sync
        with found.stop_on_exception():
            found.wait_for_stop()

    ref = work.remote()
    actor = clusters.actor_of(coord)
    coord.register(ref)
    while not (where := cluster.get(actor.place_of.remote(ref.task_id().hex()))):
        pass
    clusters.kill(int(where.split("process ")[1].split()[0]))
    with pytest.raises(ExceptionGroup) as caught:
        coord.sync.join()
    assert isinstance(leaf(caught.value), aioqueue.WorkerDiedError)
    assert where in str(leaf(caught.value))


def grow_silent(actor: Any, pid: int) -> None:
    """In the actor: as if nothing had been heard of a process for a minute."""
    for life, member in actor._register._members.items():
        if f"process {pid} " in member.place:
            actor._heard[life] -= 60


def test_a_death_is_reported_without_a_join(coord: Any, cluster: Any) -> None:
    """By silence; here at once, as if that time had passed."""
    doomed = new_worker(cluster)
    doomed.work.remote(coord.name)
    working(cluster, coord, 1)
    pid = cluster.get(doomed.pid.remote())
    clusters.kill(pid)
    actor = clusters.actor_of(coord)
    while not coord.should_stop():
        cluster.get(actor.__ray_call__.remote(grow_silent, pid))
        cluster.get(actor.expire.remote(30.0))
    with pytest.raises(ExceptionGroup) as caught:
        coord.sync.join()
    assert isinstance(leaf(caught.value), aioqueue.WorkerDiedError)
    assert f"process {pid}" in str(leaf(caught.value))


def test_the_actor_dies(coord: Any, cluster: Any, team: Any) -> None:
    """Every wait ends, with an error that says so."""
    import aioqueue.ray

    owner = aioqueue.ray.Coordinator(f"{coord.name} too")
    doomed = aioqueue.ray.Coordinator(owner.name)
    ref = team[0].work.remote(owner.name)
    working(cluster, owner, 1)
    owner.delete()
    assert doomed.sync.wait_for_stop(clusters.PATIENCE)
    assert cluster.get(ref) == "stopped"
    with pytest.raises(ExceptionGroup) as caught:
        doomed.sync.join()
    assert isinstance(leaf(caught.value), aioqueue.WorkerDiedError)
    assert f"coordinator '{owner.name}': its actor" in str(leaf(caught.value))


def test_coroutines(coord: Any, cluster: Any, team: Any) -> None:
    """The async face: its block stops and joins all of the cluster."""
    queue: aioqueue.FIFOQueue[int] = aioqueue.FIFOQueue(4)

    async def put() -> None:
        await queue.enqueue(1)

    async def main() -> None:
        async with coord:
            coord.start(aioqueue.QueueRunner(queue, [put]))
            refs = [one.work.remote(coord.name) for one in team[:2]]
            for ref in refs:
                coord.register(ref)
            assert await queue.dequeue() == 1
            await asyncio.to_thread(working, cluster, coord, 2)
        assert await asyncio.gather(*refs) == ["stopped"] * 2

    asyncio.run(asyncio.wait_for(main(), clusters.PATIENCE))


def test_a_cancelled_wait_changes_nothing(coord: Any, cluster: Any, team: Any) -> None:
    ref = team[0].work.remote(coord.name)
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

    asyncio.run(asyncio.wait_for(main(), clusters.PATIENCE))
    assert cluster.get(ref) == "stopped"


def test_workers_that_do_not_end_in_time_are_named(coord: Any, cluster: Any, team: Any) -> None:
    one = team[0]

    class Stubborn:
        def __init__(self, name: str) -> None:
            import aioqueue.ray

            self.coord = aioqueue.ray.Coordinator(name).sync
            self.release_turn = threading.Event()

        def work(self) -> None:
            with self.coord.stop_on_exception():
                self.release_turn.wait()

        def end(self) -> None:
            self.release_turn.set()

    stubborn = cluster.remote(num_cpus=0, max_concurrency=2)(Stubborn).remote(coord.name)
    ref = stubborn.work.remote()
    working(cluster, coord, 1)
    cluster.get(one.stop.remote(coord.name))
    with pytest.raises(ExceptionGroup) as caught:
        coord.sync.join(stop_grace_period=0.1)
    error = leaf(caught.value)
    assert isinstance(error, aioqueue.StillRunningError)
    assert "Stubborn.work" in str(error)
    cluster.get(stubborn.end.remote())
    cluster.get(ref)


def test_it_can_be_used_again(coord: Any, cluster: Any, team: Any) -> None:
    """One program's call ends it for all programs."""
    one = team[0]
    cluster.get(one.fail.remote(coord.name))
    with pytest.raises(ExceptionGroup):
        coord.sync.join()
    coord.clear_stop()
    while cluster.get(one.is_stopped.remote(coord.name)):
        pass
    cluster.get(one.fail.remote(coord.name))
    with pytest.raises(ExceptionGroup) as caught:
        coord.sync.join()
    assert len(caught.value.exceptions) == 1


def test_a_later_program_learns_of_the_stop(coord: Any, cluster: Any, team: Any) -> None:
    coord.request_stop()
    assert cluster.get(team[0].work.remote(coord.name)) == "stopped"


def test_programs_that_leave_a_block_together_do_not_deadlock(coord: Any, cluster: Any) -> None:
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


def test_it_is_removed_after_its_last_user(coord: Any, cluster: Any) -> None:
    """The next program starts afresh."""
    import gc

    import aioqueue.ray

    name = f"{coord.name} again"
    first = aioqueue.ray.Coordinator(name)
    actor = clusters.actor_of(first)
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
        with pytest.raises(TypeError, match="make one there with the same name"):
            face.share()


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
