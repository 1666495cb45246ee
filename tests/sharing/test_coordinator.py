"""A coordinator of several processes: a stop reaches every worker, a failure every process."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import multiprocessing
import os
import pickle
import random
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.sharing.coordinator import Elsewhere
from tests.kit.owners import Owner
from tests.kit.processing import start_the_forkserver
from tests.kit.worlds import PATIENCE, TASK_WORLDS, TaskWorld, spin_until
from tests.sharing import members as does
from tests.sharing.members import FORKSERVER, STARTS, Member, members

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")

Start = Callable[..., Member]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes, which end with the test."""
    start_the_forkserver()
    with members() as starting:
        yield starting
    gc.collect()


@pytest.fixture
def coord() -> Iterator[Any]:
    shared = sync.Coordinator().share()
    yield shared
    end(shared)


def end(coord: Any) -> None:
    """Share it no longer, and end its thread: pytest keeps it for longer than that may live."""
    coord._core.shared.end()


def failures(coord: Any) -> list[BaseException]:
    """What a join raises."""
    try:
        coord.sync.join()
    except BaseExceptionGroup as group:
        return list(group.exceptions)
    return []


@pytest.mark.parametrize("how", [pytest.param(one, marks=pytest.mark.slow) for one in STARTS])
def test_a_stop_reaches_every_worker_of_every_process(coord: Any, start: Start, how: str) -> None:
    started = [start(does.work, coord, how) for _ in range(2)]
    assert [one.reported() for one in started] == ["working"] * 2
    for one in started:
        one.answer()
    coord.request_stop()
    assert [one.reported() for one in started] == ["stopped"] * 2
    for one in started:
        one.answer()
    assert failures(coord) == []
    assert [one.end() for one in started] == [0, 0]


def test_a_stop_elsewhere_reaches_this_process_and_all_others(coord: Any, start: Start) -> None:
    worker = start(does.work, coord)
    worker.reported()
    worker.answer()
    start(does.stop, coord)
    assert coord.wait_for_stop(PATIENCE)
    assert worker.reported() == "stopped"
    worker.answer()
    assert failures(coord) == []


def test_a_failure_is_raised_with_its_traceback_there(coord: Any, start: Start) -> None:
    doomed = start(does.fail, coord)
    assert coord.wait_for_stop(PATIENCE)
    (error,) = failures(coord)
    assert repr(error) == "ValueError('a bad example')"
    there = str(error.__cause__)
    frames = re.findall(r'File "(.*)", line \d+, in (\w+)', there)
    assert [(Path(file).name, name) for file, name in frames] == [("members.py", "fail")]
    assert f"process {doomed.pid} (" in there
    assert f"in worker MainThread (process {doomed.pid} (" in error.__notes__[0]
    assert doomed.end() == 0


@pytest.mark.parametrize("how", [FORKSERVER, pytest.param("spawn", marks=pytest.mark.slow)])
def test_an_exception_that_ends_a_process_is_raised(coord: Any, start: Start, how: str) -> None:
    """Not by its exit code, and without the code of `multiprocessing`."""
    doomed = start(does.fail_unnoticed, coord, how)
    assert doomed.end() == 1
    assert coord.should_stop()
    (error,) = failures(coord)
    assert repr(error) == "ValueError('a bad example')"
    frames = re.findall(r"line \d+, in (\w+)", str(error.__cause__))
    assert frames == ["_run", "fail_unnoticed"]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (does.exit_with_a_code, "has ended with exit code 3"),
        (does.vanish, "has ended with exit code 4"),
    ],
)
def test_an_exit_code_is_a_failure(coord: Any, start: Start, what: Any, text: str) -> None:
    doomed = start(what, coord)
    pid = doomed.pid
    assert coord.wait_for_stop(PATIENCE)
    (error,) = failures(coord)
    assert isinstance(error, aioqueue.WorkerDiedError)
    assert re.search(
        rf"^the coordinator of process {os.getpid()}: process {pid} .*{text}$", str(error)
    )


def test_a_process_that_ends_well_is_no_failure(coord: Any, start: Start) -> None:
    assert start(does.return_at_once, coord).end() == 0
    spin_until(lambda: not multiprocessing.active_children())
    assert not coord.should_stop()
    coord.request_stop()
    assert failures(coord) == []


@pytest.mark.parametrize("is_working", [True, False], ids=["working", "idle"])
def test_a_killed_process_is_reported_with_its_signal(
    coord: Any, start: Start, is_working: bool
) -> None:
    doomed = start(does.work if is_working else does.hold, coord)
    doomed.reported()
    doomed.kill()
    (error,) = (
        failures(coord) if is_working else (coord.wait_for_stop(PATIENCE), *failures(coord))[1:]
    )
    assert isinstance(error, aioqueue.WorkerDiedError)
    assert error.exitcode == -signal.SIGKILL
    text = str(error)
    assert f"process {doomed.pid} (" in text
    assert text.endswith("was killed by SIGKILL")
    assert ("1 worker (MainThread) died: process" in text) == is_working


def test_a_process_that_was_waited_for_still_has_its_signal(coord: Any, start: Start) -> None:
    """Its parent asks the kernel for the status, which then forgets it."""
    doomed = start(does.hold, coord)
    doomed.reported()
    doomed.kill()
    assert doomed.end() == -signal.SIGKILL
    assert coord.wait_for_stop(PATIENCE)
    assert "SIGKILL" in str(failures(coord))


def test_terminating_a_process_after_the_stop_is_no_failure(coord: Any, start: Start) -> None:
    kept = start(does.hold, coord)
    kept.reported()
    coord.request_stop()
    kept.process.terminate()
    kept.end()
    assert failures(coord) == []


def test_ctrl_c_in_a_process_is_a_stop(coord: Any, start: Start) -> None:
    worker = start(does.press_ctrl_c, coord)
    worker.reported()
    worker.answer()
    os.kill(worker.pid, signal.SIGINT)
    assert coord.wait_for_stop(PATIENCE)
    assert worker.end() == 1
    assert failures(coord) == []


def test_a_join_waits_for_the_workers_of_all_processes(coord: Any, start: Start) -> None:
    worker = start(does.work, coord)
    worker.reported()
    joining = threading.Thread(target=coord.join)
    joining.start()
    spin_until(lambda: bool(coord._core._waiting_joins))
    assert joining.is_alive()
    worker.answer()
    coord.request_stop()
    worker.reported()
    joining.join(PATIENCE)
    assert not joining.is_alive()
    worker.answer()


def test_a_join_waits_for_threads_that_were_registered_before_they_started(
    coord: Any, start: Start
) -> None:
    """Until they end, and not until something else changes."""
    other = start(does.work_in_a_late_thread, coord)
    other.reported()
    joining = threading.Thread(target=coord.join)
    joining.start()
    spin_until(lambda: bool(coord._core._waiting_joins))
    other.answer()
    joining.join(PATIENCE)
    assert not joining.is_alive()


def test_a_worker_counts_although_no_thread_could_wait_for_its_end(
    coord: Any, start: Start
) -> None:
    other = start(does.work_while_no_thread_can_be_started, coord)
    assert other.reported() == "registered"
    joining = threading.Thread(target=coord.join)
    joining.start()
    spin_until(lambda: bool(coord._core._waiting_joins))
    other.answer()
    assert other.reported() is False
    joining.join(PATIENCE)
    assert not joining.is_alive()
    other.answer()


def test_joins_in_several_processes_do_not_wait_for_each_other(coord: Any, start: Start) -> None:
    others = [start(does.join_too, coord) for _ in range(2)]
    for one in others:
        one.reported()
        one.answer()
    assert failures(coord) == []
    assert [one.reported() for one in others] == [[], []]
    for one in others:
        one.answer()


def test_a_failure_here_is_raised_in_every_process(coord: Any, start: Start) -> None:
    others = [start(does.join_too, coord) for _ in range(2)]
    for one in others:
        one.reported()
    coord.request_stop(KeyError("here"))
    for one in others:
        one.answer()
    assert [one.reported() for one in others] == [["KeyError('here')"]] * 2
    assert [repr(error) for error in failures(coord)] == ["KeyError('here')"]
    for one in others:
        one.answer()


@pytest.mark.parametrize("how", [does.fail, does.fail_with_a_group])
def test_other_processes_raise_a_failure_without_its_traceback(
    coord: Any, start: Start, how: Any
) -> None:
    """The owner shows it in full, so a terminal has it once, and not once per process."""
    others = [start(does.join_and_report_what_is_printed, coord) for _ in range(2)]
    for one in others:
        one.reported()
    start(how, coord)
    assert coord.wait_for_stop(PATIENCE)
    for one in others:
        one.answer()
    (error,) = failures(coord)
    assert f", in {how.__name__}\n" in str(error.__cause__)
    for one in others:
        (printed,) = one.reported()
        assert repr(error.args[0])[1:-1] in printed
        assert f", in {how.__name__}\n" not in printed
        hint = f"process {os.getpid()}, which shares the coordinator, reports its traceback"
        assert re.search(rf"raised at .*members\.py:\d+; {hint}\n", printed)
        one.answer()


def test_exit_codes_that_follow_from_a_failure_are_no_failures(coord: Any, start: Start) -> None:
    other = start(does.join_under_a_launcher, coord)
    other.reported()
    other.answer()
    doomed = start(does.fail_under_a_launcher, coord)
    assert [one.end() for one in (doomed, other)] == [1, 1]
    spin_until(lambda: not coord._core.connection.service._clients)
    assert [repr(error) for error in failures(coord)] == ["ValueError('a bad example')"]


def test_request_stop_with_a_failure_elsewhere(coord: Any, start: Start) -> None:
    other = start(does.stop_with_a_failure, coord)
    assert other.reported() == "True"
    other.answer()
    assert coord.should_stop()  # it was acknowledged before the call returned
    assert [repr(error) for error in failures(coord)] == ["KeyError('lost')"]


def test_a_late_process_learns_of_the_stop_and_of_the_failures(coord: Any, start: Start) -> None:
    coord.request_stop(KeyError("before"))
    late = start(does.stop_with_a_failure, coord)
    assert late.reported() == "True"
    late.answer()
    spin_until(lambda: len(coord._core.failures()) == 2)
    assert [repr(error) for error in failures(coord)] == ["KeyError('before')", "KeyError('lost')"]


def test_what_began_before_it_was_shared_counts(start: Start) -> None:
    """Workers, a stop and a failure."""
    coord: Any = sync.Coordinator()
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="from before")
    coord.register(thread)
    thread.start()
    coord.request_stop(KeyError("before"))
    coord.share()
    other = start(does.join_too, coord)
    other.reported()
    other.answer()
    spin_until(lambda: coord._core.connection.service._register.joining() == 1)
    go.set()
    assert other.reported() == ["KeyError('before')"]
    other.answer()
    thread.join()
    end(coord)


def test_registered_threads_of_a_process_are_woken_by_a_stop_here(coord: Any, start: Start) -> None:
    other = start(does.wait_in_a_queue, coord)
    other.reported()
    other.answer()
    coord.request_stop()
    assert other.reported() == ["cancelled"] * 2
    other.answer()
    assert failures(coord) == []


def test_a_runner_of_a_process_is_restarted_there_and_reports_to_all(
    coord: Any, start: Start
) -> None:
    other = start(does.run_runners, coord)
    assert other.reported() == 2
    other.answer()
    assert [repr(error) for error in failures(coord)] == ["ValueError('a bad example')"]


def loops() -> list[Any]:
    return [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                importlib.util.find_spec(name) is None, reason=f"{name} is not installed"
            ),
        )
        for name in does.loops()
    ]


@pytest.mark.parametrize("loop", loops())
def test_tasks_of_a_process_report_to_all(coord: Any, start: Start, loop: str) -> None:
    other = start(does.work_in_tasks, coord)
    other.reported()
    other.answer(loop)
    shared = f", shared by process {os.getpid()}>"
    assert other.reported() == f"<aioqueue.sync.Coordinator joined, 1 failure{shared}"
    other.answer()
    assert [repr(error) for error in failures(coord)] == ["ValueError('a bad example')"]


@pytest.mark.parametrize("loop", loops())
def test_a_stop_here_ends_the_waits_of_tasks_elsewhere(coord: Any, start: Start, loop: str) -> None:
    other = start(does.wait_in_a_task, coord)
    other.reported()
    other.answer(loop)
    other.reported()
    other.answer()
    coord.request_stop()
    assert other.reported() == 1
    other.answer()
    assert failures(coord) == []


@pytest.mark.parametrize("world", [pytest.param(world, id=world.name) for world in TASK_WORLDS])
def test_an_async_block_here_raises_what_failed_elsewhere(
    start: Start, world: type[TaskWorld]
) -> None:
    if world.missing():
        pytest.skip(world.missing())

    async def main() -> None:
        coord = aioqueue.Coordinator()
        with pytest.raises(ExceptionGroup) as caught:
            async with coord:
                start(does.fail, coord.share())
                await coord.wait_for_stop()
        assert [repr(error) for error in caught.value.exceptions] == ["ValueError('a bad example')"]
        end(coord)

    world().run(main)


def test_a_queue_that_a_failure_elsewhere_closes_ends_the_block_with_that_failure_only(
    start: Start,
) -> None:
    """The end of the queue arrives before the failure does, and is its consequence."""
    coord, episodes = sync.Coordinator(), sync.FIFOQueue(10)
    with pytest.raises(ExceptionGroup) as caught, coord:
        actor = start(does.fail_as_a_filler, coord.share())
        assert actor.reported() == "which queue?"
        actor.answer(episodes.share())
        episodes.dequeue_many(8)
    assert [repr(error) for error in caught.value.exceptions] == ["KeyError('boss level')"]
    assert str(caught.value).startswith(f"aioqueue-op-0 (process {actor.pid} (")
    assert actor.reported() == ["'boss level'"]
    actor.answer()
    end(coord)


@pytest.mark.parametrize("world", [pytest.param(world, id=world.name) for world in TASK_WORLDS])
def test_a_queue_that_a_failure_elsewhere_closes_ends_an_async_block_with_that_failure_only(
    start: Start, world: type[TaskWorld]
) -> None:
    if world.missing():
        pytest.skip(world.missing())

    async def main() -> None:
        coord, episodes = aioqueue.Coordinator(), aioqueue.FIFOQueue(10)
        with pytest.raises(ExceptionGroup) as caught:
            async with coord:
                actor = start(does.fail_as_a_filler, coord.share())
                assert actor.reported() == "which queue?"
                actor.answer(episodes.share())
                await episodes.dequeue_many(8)
        assert [repr(error) for error in caught.value.exceptions] == ["KeyError('boss level')"]
        end(coord)

    world().run(main)


def test_a_cleared_stop_is_cleared_everywhere(coord: Any, start: Start) -> None:
    worker = start(does.work, coord)
    worker.reported()
    worker.answer()
    coord.request_stop()
    worker.reported()
    coord.clear_stop()
    assert not coord.should_stop()
    worker.answer()
    worker.end()
    assert not coord.should_stop()
    start(does.fail, coord)
    assert coord.wait_for_stop(PATIENCE)
    assert len(failures(coord)) == 1


# The end of the owner.


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("kill", "was killed by SIGKILL"),
        ("vanish", "has ended with exit code 5"),
        ("exit", ""),
    ],
)
def test_the_end_of_the_owner_ends_all_waits(start: Start, how: str, text: str) -> None:
    context: Any = multiprocessing.get_context(FORKSERVER)
    ours, theirs = context.Pipe()
    owner = context.Process(target=does.own, args=(theirs,))
    owner.start()
    coord = ours.recv()
    waiting = [start(does.learn_of_the_end, coord) for _ in range(2)]
    for one in waiting:
        one.reported()
        one.answer()
    if how == "kill":
        owner.kill()
    else:
        ours.send(how)
    for one in waiting:
        assert one.reported() == "joining"
        one.answer()
        errors = one.reported()
        if text:
            (error,) = errors
            assert error.startswith(f"WorkerDiedError('the coordinator of process {owner.pid}: ")
            assert text in error
        else:
            assert errors == []
        one.answer()
    owner.join(PATIENCE)
    owner.close()


def test_an_owner_that_has_died_is_named(start: Start) -> None:
    context: Any = multiprocessing.get_context(FORKSERVER)
    ours, theirs = context.Pipe()
    owner = context.Process(target=does.own, args=(theirs,))
    owner.start()
    coord = ours.recv()
    owner.kill()
    owner.join(PATIENCE)
    assert repr(coord) == f"<aioqueue.sync.Coordinator shared by process {owner.pid}>"
    with pytest.raises(aioqueue.WorkerDiedError, match=f"pid {owner.pid}"):
        coord.should_stop()
    owner.close()


# Handles.


def test_it_is_itself_where_it_is_unpickled_at_home(coord: Any) -> None:
    assert pickle.loads(pickle.dumps(coord)) is coord
    other = pickle.loads(pickle.dumps(coord.aio))
    assert other.sync is coord or other._core is coord._core
    assert isinstance(other, aioqueue.Coordinator)
    assert coord.share() is coord


def test_the_text_of_both_faces_of_a_handle_has_its_owner(owner: Owner) -> None:
    handle = owner.make("Coordinator")
    assert repr(handle) == f"<aioqueue.Coordinator shared by process {owner.pid}>"
    where = f"shared by process {owner.pid}>"
    assert repr(handle.sync) == f"<aioqueue.sync.Coordinator running, 0 failures, {where}"
    handle.request_stop()
    assert repr(handle) == f"<aioqueue.Coordinator stopped, 0 failures, {where}"


def test_one_that_is_not_shared_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match=r"coord\.share\(\)"):
        pickle.dumps(sync.Coordinator())


def test_it_works_here_when_it_is_no_longer_shared(coord: Any, start: Start) -> None:
    """As at the end of the process, while a thread still joins."""
    other = start(does.learn_of_the_end, coord)
    other.reported()
    coord._core.shared.end()
    other.answer()
    assert other.reported() == "joining"
    other.answer()
    assert other.reported() == []
    other.answer()
    thread = threading.Thread(target=coord.wait_for_stop)
    coord.register(thread)
    thread.start()
    coord.request_stop(KeyError("here"))
    assert [repr(error) for error in failures(coord)] == ["KeyError('here')"]
    assert coord.explain().processes == ()


def test_its_thread_ends_with_it() -> None:
    def ours() -> list[str]:
        return [one.name for one in threading.enumerate() if "shared-coord" in one.name]

    coord = sync.Coordinator().share()
    assert ours()
    del coord
    gc.collect()
    spin_until(lambda: not ours())


@pytest.mark.slow("block")
@pytest.mark.parametrize("leaves", ["block", "nothing"])
def test_a_fork_takes_part_and_leaves_the_block_of_its_parent_alone(leaves: str) -> None:
    code = """
import os, sys
from aioqueue import sync

coord = sync.Coordinator().share()
with coord:
    pid = os.fork()
    if not pid:
        assert not coord.should_stop()
        if sys.argv[1] == "block":
            sys.exit()
        with coord.stop_on_exception():
            raise ValueError("in the fork")
        os._exit(0)
    if sys.argv[1] == "block":
        assert os.waitpid(pid, 0)[1] == 0
        print(coord.wait_for_stop(0), coord)
    else:
        print(coord.wait_for_stop(20))
        os.waitpid(pid, 0)
"""
    ran = does.program(code, leaves)
    if leaves == "block":
        assert ran.stdout == "False <aioqueue.sync.Coordinator running, 0 failures>\n", ran.stderr
        assert not ran.stderr
    else:
        assert ran.stdout == "True\n", ran.stderr
        assert "ValueError: in the fork" in ran.stderr


def test_a_fork_of_a_process_that_takes_part_ends_by_itself(coord: Any, start: Start) -> None:
    """It neither reports for its parent, nor waits for an owner that does not know it."""
    other = start(does.fork, coord)
    assert other.reported() == [0, 0]
    assert not coord.should_stop()
    other.answer()
    assert other.reported() == "working"
    other.answer()
    coord.request_stop()
    assert failures(coord) == []


def test_programs_find_it_by_its_name(start: Start) -> None:
    coord = sync.Coordinator()
    name = f"coordinator-{os.getpid()}"
    coord.share(name=name)
    code = """
import sys
from aioqueue import sync

coord = sync.connect(sys.argv[1], timeout=20)
with coord.stop_on_exception():
    print(repr(coord))
    coord.request_stop()
raise KeyError("at the end")
"""
    ran = does.program(code, name)
    shared = f", shared by process {os.getpid()}>"
    assert ran.stdout == f"<aioqueue.sync.Coordinator running, 0 failures{shared}\n", ran.stderr
    assert ran.returncode == 1
    assert sync.connect(name) is coord
    (error,) = failures(coord)
    assert repr(error) == "KeyError('at the end')"
    end(coord)


@pytest.mark.slow
def test_ctrl_c_at_the_terminal_ends_all_processes_at_once() -> None:
    """It reaches all of them. None reports that of another one as a failure."""
    code = """
import multiprocessing, os, signal, sys
from aioqueue import sync


def work(coord, connection):
    with coord.stop_on_exception():
        connection.send("working")
        coord.wait_for_stop()


if __name__ == "__main__":
    os.setsid()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    try:
        with sync.Coordinator() as coord:
            coord.share()
            started = [context.Process(target=work, args=(coord, theirs)) for _ in range(3)]
            for one in started:
                one.start()
            for one in started:
                ours.recv()
            os.killpg(0, signal.SIGINT)
            coord.wait_for_stop()
            coord.join()
    except KeyboardInterrupt:
        for one in started:
            one.join()
        print([one.exitcode for one in started], coord)
"""
    ran = does.program(code)
    assert ran.stdout == "[1, 1, 1] <aioqueue.sync.Coordinator joined, 0 failures>\n", ran.stderr
    assert "Died" not in ran.stderr


# What it explains.


def test_an_explanation_covers_all_processes(coord: Any, start: Start) -> None:
    started = [start(does.wait_in_a_queue, coord) for _ in range(2)]
    for one in started:
        one.reported()
    found = coord.explain()
    assert sorted(one.pid for one in found.processes) == sorted(one.pid for one in started)
    for one in found.processes:
        assert [queue.name for queue in one.queues] == ["quiet"]
        assert len(one.queues[0].callers) == 2
    text = str(found)
    for one in started:
        assert f"why process {one.pid} waits" in text
        one.answer()
    coord.request_stop()
    for one in started:
        one.reported()
        one.answer()


# What a monitor counts.


def delivered_in_all(monitor: Any) -> int:
    monitor._ask_elsewhere(wait=True)
    return sum(stage.delivered for stage in monitor.snapshot().stages)


@pytest.mark.parametrize("ends", [False, True], ids=["running", "ended"])
def test_the_numbers_of_all_processes_add_up(coord: Any, start: Start, ends: bool) -> None:
    shared: Any = sync.FIFOQueue(100, name="shared")
    shared.share()
    started = [start(does.fill, coord) for _ in range(2)]
    with coord.monitor() as monitor:
        for one in started:
            one.reported()
            one.answer(shared)
        for one in started:
            one.reported()
        # A process that is busy may answer the next question only.
        spin_until(lambda: delivered_in_all(monitor) == 20)
        if ends:
            coord.request_stop()
            for one in started:
                one.answer()
                one.end()
    found = monitor.snapshot()
    assert {stage.name for stage in found.stages} == {"op", "op-2"}
    assert sum(stage.delivered for stage in found.stages) == 20
    local = found.queue("local")
    assert local.enqueued == 10
    assert local.size == (0 if ends else 10)
    assert shared.size() == 10
    assert found.queue("shared").enqueued == 10
    shared.close()
    if not ends:
        for one in started:
            one.answer()


def watched(coord: Any, start: Start, monitor: Any) -> tuple[Member, Any]:
    """A process that has delivered ten elements, which a monitor has seen; and a shared queue."""
    shared: Any = sync.FIFOQueue(100, name="shared")
    shared.share()
    other = start(does.fill, coord)
    other.reported()
    other.answer(shared)
    other.reported()
    spin_until(lambda: delivered_in_all(monitor) == 10)
    return other, shared


def test_numbers_stay_when_a_process_ends_that_is_asked_for_them(coord: Any, start: Start) -> None:
    """Its end is what the question has waited for."""
    with coord.monitor() as monitor:
        other, shared = watched(coord, start, monitor)
        other.kill(signal.SIGSTOP)
        answered = coord._core.watch.elsewhere.ask()
        other.kill()
        other.end()
        assert answered.wait(PATIENCE)
        assert sum(stage.delivered for stage in monitor._collector.snapshot().stages) == 10
        assert delivered_in_all(monitor) == 10
    shared.close()
    failures(coord)


def test_numbers_that_come_late_count(coord: Any, start: Start) -> None:
    """A process that is always busy answers when its question is over."""
    service = coord._core.connection.service
    with coord.monitor() as monitor:
        other, shared = watched(coord, start, monitor)
    # Closed, it asks no questions of its own.
    (state,) = service._clients.values()
    state.numbers = None
    other.kill(signal.SIGSTOP)
    assert coord._core.watch.elsewhere.ask().wait(PATIENCE)
    assert state.numbers is None
    other.kill(signal.SIGCONT)
    spin_until(lambda: state.numbers is not None)
    other.kill()
    other.end()
    spin_until(lambda: delivered_in_all(monitor) == 10)
    shared.close()
    failures(coord)


def test_each_question_for_numbers_has_its_answer() -> None:
    """A monitor that ends does not take the answer to an earlier question for its own."""
    requests: list[Any] = []

    class Connection:
        def schedule_request(self, then: Any, *_: Any) -> None:
            requests.append(then)

    class Core:
        life = "a program"
        connection = Connection()

    core: Any = Core()
    others = Elsewhere(core)
    first, second = others.ask(), others.ask()
    requests[0]([])
    assert first.is_set()
    assert not second.is_set()
    requests[1]([])
    assert second.is_set()


# At random.


def _act(coord: Any, report: Callable[[Any], Any]) -> None:
    """Do one of the things that workers do, soon or later."""
    choice = random.Random(os.getpid())
    pause = choice.random() * 0.02
    match choice.randrange(6):
        case 0:
            with coord.stop_on_exception():
                coord.sync.wait_for_stop(pause)
                raise ValueError(os.getpid())
        case 1:
            with coord.stop_on_exception():
                coord.sync.wait_for_stop(pause)
        case 2:
            with contextlib.suppress(ExceptionGroup):
                coord.sync.join()
        case 3:
            coord.sync.wait_for_stop(pause)
            coord.request_stop()
        case 4:
            threads = [threading.Thread(target=coord.sync.wait_for_stop) for _ in range(3)]
            for thread in threads:
                coord.register(thread)
                thread.start()
            for thread in threads:
                thread.join()
        case _:
            with coord.stop_on_exception():
                coord.sync.wait_for_stop()


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(i, marks=pytest.mark.slow) for i in range(4, 60))]
)
def test_processes_that_come_fail_and_are_killed(coord: Any, start: Start, seed: int) -> None:
    """All of them end, and what is reported has happened."""
    choice = random.Random(seed)
    started = [start(_act, coord) for _ in range(choice.randint(2, 6))]
    threading.Event().wait(choice.random() * 0.1)
    killed = [one for one in started if choice.random() < 0.3]
    for one in killed:
        one.kill()
    coord.wait_for_stop(0.1)
    coord.request_stop()
    errors = failures(coord)
    codes = [one.end() for one in started]
    assert all(code in (0, -signal.SIGKILL) for code in codes)
    pids = {one.pid for one in started}
    dead = {str(one.pid) for one in killed}
    for error in errors:
        if isinstance(error, ValueError):
            assert error.args[0] in pids
        else:
            assert isinstance(error, aioqueue.WorkerDiedError)
            assert "was killed by SIGKILL" in str(error)
            assert any(f"process {pid} " in str(error) for pid in dead)
    assert len({repr(error) for error in errors}) == len(errors), "reported twice"
