"""A coordinator of several processes: a stop reaches every worker, a failure every process."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
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
from tests.kit.processing import start_the_forkserver
from tests.kit.worlds import PATIENCE, spin_until
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
    shared._core.shared.end()  # pytest keeps it for longer than its thread may live


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
    assert [one.heard() for one in started] == ["working"] * 2
    for one in started:
        one.answer()
    coord.request_stop()
    assert [one.heard() for one in started] == ["stopped"] * 2
    for one in started:
        one.answer()
    assert failures(coord) == []
    assert [one.end() for one in started] == [0, 0]


def test_a_stop_elsewhere_reaches_this_process_and_all_others(coord: Any, start: Start) -> None:
    worker = start(does.work, coord)
    worker.heard()
    worker.answer()
    start(does.stop, coord)
    assert coord.wait_for_stop(PATIENCE)
    assert worker.heard() == "stopped"
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
    ("what", "says"),
    [
        (does.exit_with_a_code, "has ended with exit code 3"),
        (does.vanish, "has ended with exit code 4"),
    ],
)
def test_an_exit_code_is_a_failure(coord: Any, start: Start, what: Any, says: str) -> None:
    doomed = start(what, coord)
    pid = doomed.pid
    assert coord.wait_for_stop(PATIENCE)
    (error,) = failures(coord)
    assert isinstance(error, aioqueue.WorkerDiedError)
    assert re.search(
        rf"^the coordinator of process {os.getpid()}: process {pid} .*{says}$", str(error)
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
    doomed.heard()
    doomed.kill()
    (error,) = (
        failures(coord) if is_working else (coord.wait_for_stop(PATIENCE), *failures(coord))[1:]
    )
    assert isinstance(error, aioqueue.WorkerDiedError)
    text = str(error)
    assert f"process {doomed.pid} (" in text
    assert text.endswith("was killed by SIGKILL")
    assert ("1 worker (MainThread) process" in text) == is_working


def test_who_has_waited_for_a_process_does_not_hide_its_signal(coord: Any, start: Start) -> None:
    """Its parent asks the kernel for the status, which then forgets it."""
    doomed = start(does.hold, coord)
    doomed.heard()
    doomed.kill()
    assert doomed.end() == -signal.SIGKILL
    assert coord.wait_for_stop(PATIENCE)
    assert "SIGKILL" in str(failures(coord))


def test_terminating_a_process_after_the_stop_is_no_failure(coord: Any, start: Start) -> None:
    kept = start(does.hold, coord)
    kept.heard()
    coord.request_stop()
    kept.process.terminate()
    kept.end()
    assert failures(coord) == []


def test_ctrl_c_in_a_process_is_a_stop(coord: Any, start: Start) -> None:
    worker = start(does.press_ctrl_c, coord)
    worker.heard()
    worker.answer()
    os.kill(worker.pid, signal.SIGINT)
    assert coord.wait_for_stop(PATIENCE)
    assert worker.end() == 1
    assert failures(coord) == []


def test_a_join_waits_for_the_workers_of_all_processes(coord: Any, start: Start) -> None:
    worker = start(does.work, coord)
    worker.heard()
    joining = threading.Thread(target=coord.join)
    joining.start()
    spin_until(lambda: bool(coord._core._waiting_joins))
    assert joining.is_alive()
    worker.answer()
    coord.request_stop()
    worker.heard()
    joining.join(PATIENCE)
    assert not joining.is_alive()
    worker.answer()


def test_joins_in_several_processes_do_not_wait_for_each_other(coord: Any, start: Start) -> None:
    others = [start(does.join_too, coord) for _ in range(2)]
    for one in others:
        one.heard()
        one.answer()
    assert failures(coord) == []
    assert [one.heard() for one in others] == [[], []]
    for one in others:
        one.answer()


def test_a_failure_here_is_raised_in_every_process(coord: Any, start: Start) -> None:
    others = [start(does.join_too, coord) for _ in range(2)]
    for one in others:
        one.heard()
    coord.request_stop(KeyError("here"))
    for one in others:
        one.answer()
    assert [one.heard() for one in others] == [["KeyError('here')"]] * 2
    assert [repr(error) for error in failures(coord)] == ["KeyError('here')"]
    for one in others:
        one.answer()


def test_request_stop_with_a_failure_elsewhere(coord: Any, start: Start) -> None:
    other = start(does.stop_with_a_failure, coord)
    assert other.heard() == "True"
    other.answer()
    assert coord.should_stop()  # it was acknowledged before the call returned
    assert [repr(error) for error in failures(coord)] == ["KeyError('lost')"]


def test_a_late_process_learns_of_the_stop_and_of_the_failures(coord: Any, start: Start) -> None:
    coord.request_stop(KeyError("before"))
    late = start(does.stop_with_a_failure, coord)
    assert late.heard() == "True"
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
    other.heard()
    other.answer()
    spin_until(lambda: coord._core.connection.service._register.joining() == 1)
    go.set()
    assert other.heard() == ["KeyError('before')"]
    other.answer()
    thread.join()
    coord._core.shared.end()


def test_registered_threads_of_a_process_are_woken_by_a_stop_here(coord: Any, start: Start) -> None:
    other = start(does.wait_in_a_queue, coord)
    other.heard()
    other.answer()
    coord.request_stop()
    assert other.heard() == ["cancelled"] * 2
    other.answer()
    assert failures(coord) == []


@pytest.mark.parametrize("what", [does.work_in_tasks, does.run_runners])
def test_runners_of_a_process_report_to_all(coord: Any, start: Start, what: Any) -> None:
    other = start(what, coord)
    assert other.heard() in (2, "<aioqueue.sync.Coordinator joined, 1 failure>")
    other.answer()
    assert [repr(error) for error in failures(coord)] == ["ValueError('a bad example')"]


def test_a_cleared_stop_is_cleared_everywhere(coord: Any, start: Start) -> None:
    worker = start(does.work, coord)
    worker.heard()
    worker.answer()
    coord.request_stop()
    worker.heard()
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
    ("how", "says"),
    [
        ("kill", "was killed by SIGKILL"),
        ("vanish", "has ended with exit code 5"),
        ("exit", ""),
    ],
)
def test_the_end_of_the_owner_ends_all_waits(start: Start, how: str, says: str) -> None:
    context: Any = multiprocessing.get_context(FORKSERVER)
    ours, theirs = context.Pipe()
    owner = context.Process(target=does.own, args=(theirs,))
    owner.start()
    coord = ours.recv()
    waiting = [start(does.learn_of_the_end, coord) for _ in range(2)]
    for one in waiting:
        one.heard()
        one.answer()
    if how == "kill":
        owner.kill()
    else:
        ours.send(how)
    for one in waiting:
        assert one.heard() == "joining"
        one.answer()
        errors = one.heard()
        if says:
            (error,) = errors
            assert error.startswith(f"WorkerDiedError('the coordinator of process {owner.pid}: ")
            assert says in error
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


def test_one_that_is_not_shared_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match=r"coord\.share\(\)"):
        pickle.dumps(sync.Coordinator())


def test_its_thread_ends_with_it() -> None:
    def ours() -> list[str]:
        return [one.name for one in threading.enumerate() if "shared-coord" in one.name]

    coord = sync.Coordinator().share()
    assert ours()
    del coord
    gc.collect()
    spin_until(lambda: not ours())


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
    assert ran.stdout == "<aioqueue.sync.Coordinator running, 0 failures>\n", ran.stderr
    assert ran.returncode == 1
    assert sync.connect(name) is coord
    (error,) = failures(coord)
    assert repr(error) == "KeyError('at the end')"
    coord._core.shared.end()


# What it explains.


def test_an_explanation_covers_all_processes(coord: Any, start: Start) -> None:
    started = [start(does.wait_in_a_queue, coord) for _ in range(2)]
    for one in started:
        one.heard()
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
        one.heard()
        one.answer()
