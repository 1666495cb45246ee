"""Batchers whose function runs in processes: what dies with one, and what comes through."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.batcher import processes
from aioqueue.batcher.child import requests_half, results_half
from aioqueue.processes import worker_process
from aioqueue.processes.arena import Arena
from aioqueue.processes.fork_server.spawn import StartedProcess
from tests.batcher import functions
from tests.batcher.models import NEVER, Model, batcher_of
from tests.batcher.test_batcher import Calls, raised_by, workers_alive
from tests.kit.processing import (
    HAS_PROC,
    ROOT,
    is_running,
    open_files,
    pids,
    shared_memory,
    start_the_forkserver,
)
from tests.kit.worlds import PATIENCE, AsyncioWorld, World, spin_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL, no flock")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process, no thread of ours, no shared memory and no open file outlives a test."""
    start_the_forkserver()
    files, shared, threads = open_files(), shared_memory(), {*threading.enumerate()}
    yield
    spin_until(lambda: not pids())
    spin_until(lambda: not [t for t in {*threading.enumerate()} - threads if "Batcher" in t.name])
    gc.collect()
    assert shared_memory() <= shared
    assert open_files() <= files


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    made = Model("process", tmp_path)
    yield made
    made.close()


class TestDeaths:
    @pytest.mark.parametrize("workers", [1, 2])
    async def test_reach_exactly_the_callers_of_that_batch(
        self, world: World, model: Model, workers: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with batcher_of(
            world, model, max_batch=2, max_wait=NEVER, workers=workers, name="scores"
        ) as batcher:
            calls = Calls(world, batcher)
            good = await calls.begin_running(model, 1, 2)
            bad = await calls.begin(3, "die")
            better = await calls.begin(4, 5)
            model.gate.open()
            failures = [await raised_by(operation) for operation in bad]
            assert [await operation.result() for operation in good + better] == [2, 4, 8, 10]
            assert await calls_of(world, batcher, 6, 7) == [12, 14]
        for failure in failures:
            assert isinstance(failure, aioqueue.WorkerDiedError)
            assert failure.exitcode == -signal.SIGKILL
            assert str(failure).startswith("worker process aioqueue-scores-")
            assert str(failure).endswith(
                "was killed by SIGKILL (out of memory?) while it worked on a batch of 2"
            )
        assert sorted(model.batches, key=repr).count([3, "die"]) == 1  # it is not tried again
        counts = batcher.statistics()
        assert (counts.requests, counts.answered, counts.failed) == (8, 6, 2)
        assert (counts.workers_died, counts.in_flight) == (1, 0)
        (message,) = [one for one in caplog.messages if "worker process" in one]
        assert "of Batcher 'scores' was killed by SIGKILL" in message

    async def test_of_an_idle_one_affects_no_call(self, world: World) -> None:
        async with batcher_of(world, functions.whose, where="process", max_wait=0) as batcher:
            first = await batcher(0)
            os.kill(first, signal.SIGKILL)
            await world.until(lambda: not is_running(first))
            assert await batcher(0) != first
        counts = batcher.statistics()
        assert (counts.answered, counts.failed, counts.workers_died) == (2, 0, 1)

    async def test_again_and_again(self, world: World) -> None:
        """More often than a process may die in vain: it is the batches that are to blame."""
        async with batcher_of(
            world, functions.dies_of_words, where="process", max_wait=0
        ) as batcher:
            for _ in range(12):
                with pytest.raises(aioqueue.WorkerDiedError):
                    await batcher("die")
            assert await batcher(3) == 6

    @pytest.mark.parametrize(
        ("dying", "why"),
        [
            (functions.EndsWhenItComes(), "has ended with exit code 3 while it started"),
            (functions.DiesWhenItComes(), "while it started, as did 9 before it"),
        ],
    )
    async def test_of_all_that_start_end_the_batcher(
        self, world: World, dying: Callable[..., Any], why: str
    ) -> None:
        with pytest.raises(aioqueue.WorkerDiedError) as left:
            async with batcher_of(world, dying, where="process", name="scores") as batcher:
                with pytest.raises(aioqueue.WorkerDiedError) as reported:
                    await batcher(1)
                with pytest.raises(aioqueue.WorkerDiedError):
                    await batcher(2)
        assert str(reported.value) == str(left.value)
        assert str(left.value).startswith("a worker of Batcher 'scores' has died: WorkerDiedError:")
        assert why in str(left.value)
        assert left.value.exitcode in (3, -signal.SIGKILL)

    async def test_a_function_that_cannot_be_imported_there(self, world: World) -> None:
        with pytest.raises(aioqueue.WorkerDiedError, match="which a new process cannot import"):
            async with batcher_of(world, functions.CannotBeUnpickled(), where="process") as batcher:
                with pytest.raises(aioqueue.WorkerDiedError) as reported:
                    await batcher(1)
        assert isinstance(reported.value.__cause__, aioqueue.InvalidArgumentError)

    async def test_no_process_can_be_started(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def start(self: object) -> None:
            raise OSError("no descriptors are left")

        monkeypatch.setattr(StartedProcess, "start", start)
        with pytest.raises(aioqueue.WorkerDiedError, match="no descriptors are left"):
            async with batcher_of(world, functions.doubled, where="process") as batcher:
                with pytest.raises(aioqueue.WorkerDiedError):
                    await batcher(1)


async def calls_of(world: World, batcher: aioqueue.Batcher[Any, Any], *values: Any) -> list[Any]:
    """What is answered to calls that come together."""
    operations = await Calls(world, batcher).begin(*values)
    return [await operation.result() for operation in operations]


class TestWhatComesThrough:
    async def test_the_function_may_exit_and_its_process_stays(self, world: World) -> None:
        async with batcher_of(world, functions.exits_of_words, where="process") as batcher:
            first = await batcher(0)
            with pytest.raises(RuntimeError, match="exits_of_words raised SystemExit: enough"):
                await batcher("exit")
            assert await batcher(0) == first

    async def test_requests_and_results_that_cannot_be_pickled_fail_alone(
        self, world: World
    ) -> None:
        odd = [lambda: 1, functions.BadThere(), "return bad", "return lambda"]
        async with batcher_of(
            world, functions.odd_results, max_batch=5, max_wait=NEVER, where="process"
        ) as batcher:
            operations = await Calls(world, batcher).begin(*odd, 4)
            failures = [await raised_by(operation) for operation in operations[:4]]
            assert await operations[4].result() == 4
            notes = [failure.__notes__[-1] for failure in failures]
            assert "while pickling the request" in notes[0]
            assert "unpickling the request" in str(failures[1].__cause__)
            assert "while unpickling what the function returned" in notes[2]
            assert "pickling what the function returned" in str(failures[3].__cause__)
            operations = await Calls(world, batcher).begin(*odd[:1] * 5)  # nothing is called
            assert len([await raised_by(operation) for operation in operations]) == 5
            assert await calls_of(world, batcher, 1, 2, 3, 4, 5) == [1, 2, 3, 4, 5]

    async def test_each_caller_of_a_batch_gets_a_failure_of_its_own(self, world: World) -> None:
        async with batcher_of(
            world, functions.odd_results, max_batch=2, max_wait=NEVER, where="process"
        ) as batcher:
            one, two = await Calls(world, batcher).begin("boom", 1)
            failures = [await raised_by(one), await raised_by(two)]
        assert failures[0] is not failures[1]
        assert repr(failures[0]) == repr(failures[1])
        failures[0].add_note("of one caller")
        assert not hasattr(failures[1], "__notes__")

    @pytest.mark.parametrize("arena", [2**16, 2**27])
    async def test_arrays_are_private_and_can_be_written(
        self, world: World, monkeypatch: pytest.MonkeyPatch, arena: int
    ) -> None:
        """Whether they find a place in shared memory or not."""
        monkeypatch.setattr(processes, "_ARENA", arena)
        async with batcher_of(world, functions.doubled, max_wait=0, where="process") as batcher:
            earlier = await batcher(np.ones(20_000))
            for number in range(20):
                result = await batcher(np.full(20_000, number))
                assert result.flags.writeable
                assert (result == 2 * number).all()
            assert (earlier == 2).all()

    async def test_what_is_not_contiguous(self, world: World) -> None:
        async with batcher_of(world, functions.doubled, where="process") as batcher:
            striped = np.arange(60_000.0).reshape(200, 300)[::2]
            assert np.array_equal(await batcher(striped), 2 * striped)

    async def test_several_processes_work_at_the_same_time(
        self, world: World, model: Model
    ) -> None:
        async with batcher_of(world, model, max_batch=1, workers=2) as batcher:
            calls = Calls(world, batcher)
            operations = await calls.begin_running(model, 1)
            operations += await calls.begin(2)
            await world.until(lambda: len(model.batches) == 2)
            assert len(set(pids())) == 2
            model.gate.open()
            assert [await operation.result() for operation in operations] == [2, 4]

    def test_the_two_halves_of_an_arena(self) -> None:
        arena = Arena(2**20)
        requests, results = requests_half(arena), results_half(arena)
        assert requests.allocate(2**19 - 64) is not None
        assert requests.allocate(1) is None
        assert results.allocate(2**19) == 2**19
        assert results.allocate(1) is None
        arena.close()


class TestEnds:
    async def test_a_function_that_cannot_be_sent_is_refused(self, world: World) -> None:
        with pytest.raises(aioqueue.InvalidArgumentError, match="which cannot be pickled and so"):
            batcher_of(world, lambda values: values, where="process")

    def test_nor_is_a_coroutine_function(self) -> None:
        with pytest.raises(aioqueue.InvalidArgumentError, match="expected a plain function, or"):
            aioqueue.Batcher(Model("task").function, where="process")

    def test_a_process_that_imports_the_program_has_none(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker_process, "is_importing_main", lambda: True)
        batcher = sync.Batcher(functions.doubled, where="process")
        with pytest.raises(RuntimeError, match="the main module is being imported by a new proc"):
            batcher.__enter__()

    async def test_left_while_processes_start(self, world: World) -> None:
        async with batcher_of(world, functions.doubled, where="process", workers=2) as batcher:
            operations = await Calls(world, batcher).begin(1, 2)
        assert [await operation.result() for operation in operations] == [2, 4]

    def test_cancelled_while_processes_start(self, tmp_path: Path) -> None:
        """They are not waited for: here, they never come to anything."""
        with closing(functions.FileGate(tmp_path)) as gate:
            gate.shut()

            async def main() -> None:
                with anyio.CancelScope() as scope:
                    async with aioqueue.Batcher(
                        functions.WaitsToCome(tmp_path), where="process"
                    ) as batcher:
                        asking = asyncio.create_task(batcher(1))
                        while not (tmp_path / "begun").exists():
                            await asyncio.sleep(0)
                        scope.cancel()
                        await anyio.sleep_forever()
                with pytest.raises(aioqueue.QueueClosedError):
                    await asking

            asyncio.run(main())

    def test_those_that_outlive_their_block_are_killed(
        self, model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("aioqueue.batcher.batcher.DEFAULT_GRACE", 0.01)
        world = AsyncioWorld()

        async def body() -> None:
            with caplog.at_level(logging.WARNING, "aioqueue"), anyio.CancelScope() as scope:
                async with aioqueue.Batcher(
                    model.function, 1, where="process", name="scores"
                ) as batcher:
                    (caller,) = await Calls(world, batcher).begin_running(model, 1)
                    scope.cancel()
                    await anyio.sleep_forever()
            failure = await raised_by(caller)
            assert isinstance(failure, aioqueue.WorkerDiedError)
            assert "was ended with its batcher while it worked on a batch of 1" in str(failure)

        world.run(body)
        (message,) = caplog.messages
        first, place = message.splitlines()
        assert first == "Batcher 'scores' stopped with workers still running: aioqueue-scores-0"
        assert place.startswith("  aioqueue-scores-0 in /")
        spin_until(lambda: not workers_alive("scores"))

    def test_at_the_end_of_the_program(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its processes are killed then, and none is started any more."""
        owners: list[worker_process.HasProcesses] = []
        monkeypatch.setattr(processes, "end_at_exit", owners.append)
        with sync.Batcher(model.function, 1, where="process") as batcher:
            assert batcher(1) == 2
            (owner,) = owners
            owner.stop_replacing()
            owner.kill_at_exit()
            with pytest.raises(aioqueue.QueueClosedError):
                batcher(2)


SIGNALLED = """
import os, signal, sys, threading
from functools import partial
from pathlib import Path
from aioqueue import sync
from tests.batcher import functions

if __name__ == "__main__":
    folder, heard = Path(sys.argv[1]), []
    gate = functions.FileGate(folder)
    gate.shut()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), lambda number, frame: heard.append(number))
    answers = []
    function = partial(functions.modelled, folder)
    with sync.Batcher(function, 1, where="process", workers=2) as batcher:
        askers = [threading.Thread(target=lambda n=n: answers.append(batcher(n))) for n in range(4)]
        for asker in askers:
            asker.start()
        while len(list(functions.noted(folder))) < 2:
            pass
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            os.killpg(os.getpid(), getattr(signal, name))
        while len(heard) < 3:
            pass
        gate.open()
    for asker in askers:
        asker.join()
    gate.close()
    print(sorted(answers), batcher.statistics().workers_died, len(heard))
"""

LEFT_RUNNING = """
import sys
from functools import partial
from pathlib import Path
from aioqueue import sync
from tests.batcher import functions

batcher = sync.Batcher(functions.whose, 1, where="process")  # as the new process does, too

if __name__ == "__main__":
    batcher.__enter__()
    print(batcher(0))
"""


@pytest.mark.skipif(not HAS_PROC, reason="looks into /proc")
class TestPrograms:
    def run(self, text: str, path: Path) -> tuple[str, str]:
        script = path / "program.py"
        script.write_text(text)
        ran = subprocess.run(
            [sys.executable, "-W", "error", str(script), str(path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            start_new_session=True,
            timeout=6 * PATIENCE,
            check=False,
        )
        return ran.stdout, ran.stderr

    @pytest.mark.slow
    def test_signals_to_all_processes_disturb_no_answer(self, tmp_path: Path) -> None:
        assert self.run(SIGNALLED, tmp_path) == ("[0, 2, 4, 6] 0 3\n", "")

    def test_a_program_that_ends_without_leaving_the_block(self, tmp_path: Path) -> None:
        output, errors = self.run(LEFT_RUNNING, tmp_path)
        assert errors == ""
        pid = int(output)
        spin_until(lambda: not is_running(pid))
