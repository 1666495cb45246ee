"""`prepare` in processes: every item once, whichever is killed, and nothing left behind."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue import InvalidArgumentError, sync
from aioqueue.processes.fork_server.spawn import StartedProcess
from aioqueue.sources.kinds.sequences import items
from aioqueue.workers.options import Retry
from aioqueue.workers.runner import PrepareRunner, prepare
from tests.kit import functions
from tests.kit.preparing import drained, failures_of, prepared
from tests.kit.processing import (
    HAS_PROC,
    ROOT,
    async_numbers,
    is_blocked_in_a_write,
    is_running,
    pids,
)
from tests.kit.worlds import PATIENCE, AsyncioWorld, ThreadWorld, World, spin_until, waiting

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def kill_one(dead: set[int], chance: random.Random) -> None:
    """Kill a process that was not killed before."""
    spin_until(lambda: set(pids()) - dead)
    pid = chance.choice(sorted(set(pids()) - dead))
    os.kill(pid, signal.SIGKILL)
    dead.add(pid)


def runner_of(
    function: Callable[..., Any], queue: sync.FIFOQueue, source: Any = range(100), **options: Any
) -> PrepareRunner:
    return prepare(source, function, into=queue, **{"workers": 2, **options}, where="process")


def results(
    function: Callable[..., Any], source: Any = range(100), **options: Any
) -> tuple[list[Any], PrepareRunner]:
    """Run a pipeline to its end; returns what came out, in order, and the runner."""
    queue = sync.FIFOQueue(16)
    runner = runner_of(function, queue, source, **options)
    return drained(queue, runner), runner


def failure(function: Callable[..., Any], source: Any = range(100), **options: Any) -> str:
    with pytest.raises(ExceptionGroup) as caught:
        results(function, source, **options)
    (reported,) = failures_of(caught.value)
    return reported


class TestEveryItemOnce:
    @pytest.mark.slow
    @pytest.mark.parametrize("kind", [AsyncioWorld, ThreadWorld], ids=lambda kind: kind.name)
    def test_in_an_event_loop_and_in_threads(self, kind: type[World]) -> None:
        world = kind()
        got: list[Any] = []

        async def body() -> None:
            got.extend(
                await prepared(world, range(500), functions.double, workers=2, where="process")
            )

        world.run(body)
        assert sorted(got) == list(range(0, 1000, 2))

    def test_of_an_async_source(self) -> None:
        got, _ = results(functions.double, async_numbers(100))
        assert sorted(got) == list(range(0, 200, 2))

    def test_of_a_slow_source(self) -> None:
        """What is done comes through while the source has nothing new."""
        source = sync.FIFOQueue(1)
        queue = sync.FIFOQueue(16)
        with sync.Coordinator() as coord:
            coord.start(runner_of(functions.double, queue, source))
            for number in range(5):
                source.enqueue(number)
                assert queue.dequeue(timeout=PATIENCE) == 2 * number
            source.close()
            assert list(queue) == []

    @pytest.mark.slow("3")
    @pytest.mark.parametrize("workers", [1, 3])
    def test_ordered(self, workers: int) -> None:
        got, _ = results(functions.delayed, range(300), workers=workers, ordered=True)
        assert got == list(range(300))

    @pytest.mark.slow
    def test_ordered_with_failures_and_retries(self, tmp_path: Path) -> None:
        function = functools.partial(functions.fails_at_first, str(tmp_path))
        on_error = Retry(1, lambda failures: random.random() / 1000)
        got, runner = results(function, range(50), ordered=True, on_error=on_error)
        assert got == list(range(50))
        assert runner.statistics().retried == 50

    @pytest.mark.slow
    def test_generators(self) -> None:
        got, runner = results(functions.negative_too, ordered=True)
        assert got == [sign * number for number in range(100) for sign in (1, -1)]
        assert runner.statistics().examples == 200

    def test_rng_is_that_of_the_item(self) -> None:
        source = items(range(50), 2, seed=3)
        got, _ = results(functions.noise, source, workers=3)
        queue = sync.FIFOQueue(16)
        assert sorted(got) == sorted(drained(queue, prepare(source, functions.noise, into=queue)))

    def test_items_in_flight_are_bounded(self) -> None:
        taken: list[int] = []

        def source() -> Iterator[int]:
            for number in range(100):
                taken.append(number)
                yield number

        queue = sync.FIFOQueue(1)
        with sync.Coordinator() as coord:
            coord.start(runner_of(functions.double, queue, source(), max_in_flight=7))
            spin_until(lambda: waiting(queue) > 0 and len(taken) == 8)
            assert sorted(queue) == list(range(0, 200, 2))

    def test_without_a_bound_of_bytes(self) -> None:
        """More than any memory that can be shared."""
        assert results(functions.double, range(3), limit_bytes=2**60, ordered=True)[0] == [0, 2, 4]

    @pytest.mark.slow
    def test_large_items_and_large_results(self) -> None:
        """More than a pipe holds, both ways: neither side waits for the other."""
        source = [bytes([number]) * 1_000_000 for number in range(12)]
        got, _ = results(bytes.upper, source, workers=1, ordered=True)
        assert got == [data.upper() for data in source]

    @pytest.mark.slow
    def test_a_fast_item_does_not_wait_for_a_slow_one(self) -> None:
        """Though both are in one chunk, and would go in one message."""
        queue = sync.FIFOQueue(100)
        with sync.Coordinator() as coord:
            coord.start(runner_of(functions.slow_from_fifty, queue, range(60), workers=1))
            assert sorted(queue.dequeue_many(50, timeout=PATIENCE)) == list(range(50))


class TestArrays:
    """They come through shared memory, which is used again and again."""

    @pytest.mark.slow
    @pytest.mark.parametrize("function", [functions.picture, functions.striped])
    @pytest.mark.parametrize("ordered", [False, True], ids=["as they come", "ordered"])
    def test_into_a_typed_queue(self, function: Callable[..., Any], ordered: bool) -> None:
        queue = sync.FIFOQueue(4, "uint8", (200, 1000, 3))
        runner = runner_of(function, queue, range(120), ordered=ordered, limit_bytes=6_000_000)
        got = []
        with sync.Coordinator() as coord:
            coord.start(runner)
            for image in queue:
                assert (image == image[0, 0, 0]).all()
                got.append(int(image[0, 0, 0]))
        assert (got if ordered else sorted(got)) == list(range(120))

    @pytest.mark.slow
    def test_into_a_queue_that_keeps_them(self) -> None:
        """They are private to the consumer: no later one is written over them."""
        got, _ = results(functions.picture, range(60), limit_bytes=3_000_000)
        assert sorted(int(image[0, 0, 0]) for image in got) == list(range(60))
        for image in got:
            assert (image == image[0, 0, 0]).all()
            image[...] = 0
            assert image.flags.writeable

    @pytest.mark.slow
    def test_no_more_room_than_that(self) -> None:
        """What finds no place in shared memory goes through the pipe."""
        got, _ = results(functions.picture, range(30), limit_bytes=1, ordered=True)
        assert [int(image[0, 0, 0]) for image in got] == list(range(30))


class TestWorkersThatDie:
    @pytest.mark.slow
    def test_killed_at_random(self, caplog: pytest.LogCaptureFixture) -> None:
        """Twenty times in one run of 10,000 items."""
        chance = random.Random(7)
        queue = sync.FIFOQueue(256)
        runner = runner_of(functions.double, queue, range(10_000), max_in_flight=300)
        got: list[int] = []
        dead: set[int] = set()
        with sync.Coordinator() as coord, caplog.at_level(logging.WARNING, "aioqueue"):
            coord.start(runner)
            next_kill = 100
            for example in queue:
                got.append(example)
                if len(got) == next_kill and len(dead) < 20:
                    kill_one(dead, chance)
                    next_kill += chance.randrange(100, 450)
        assert sorted(got) == list(range(0, 20_000, 2))
        assert len(dead) == 20
        # One that was killed when it had nothing left to do is not missed.
        assert 15 <= runner.statistics().workers_died <= 20
        assert "was killed by SIGKILL (out of memory?)" in caplog.text

    def test_in_order(self) -> None:
        queue = sync.FIFOQueue(64)
        got: list[int] = []
        dead: set[int] = set()
        with sync.Coordinator() as coord:
            coord.start(runner_of(functions.delayed, queue, range(600), ordered=True))
            for example in queue:
                got.append(example)
                if example in (50, 200):
                    kill_one(dead, random.Random(example))
        assert got == list(range(600))

    @pytest.mark.slow
    def test_in_the_midst_of_sending(self) -> None:
        """The message is larger than the pipe, and nobody reads it to the end."""
        queue = sync.FIFOQueue(1)
        runner = runner_of(bytes_of, queue, [1, 2_000_000, 3_000_000], workers=1, ordered=True)
        with sync.Coordinator() as coord:
            coord.start(runner)
            spin_until(lambda: waiting(queue) > 0)  # and does not read
            (pid,) = pids()
            spin_until(lambda: is_blocked_in_a_write(pid))
            os.kill(pid, signal.SIGKILL)
            assert [len(example) for example in queue] == [1, 2_000_000, 3_000_000]

    @pytest.mark.slow
    @pytest.mark.parametrize("on_error", ["stop", "skip"])
    def test_an_item_that_kills(self, on_error: Any) -> None:
        if on_error == "stop":
            reported = failure(functions.kills_itself)
            assert reported.startswith("WorkerDiedError('3 worker processes have died of one item")
            assert "the last one was killed by SIGKILL" in reported
            assert "while preparing item 37 (epoch 0, index 37)" in reported
            return
        got, runner = results(functions.kills_itself, on_error=on_error, ordered=True)
        assert got == [number for number in range(100) if number != 37]
        (record,) = runner.quarantine
        assert (record.item, record.attempts) == (37, 3)
        assert runner.statistics().workers_died == 3

    @pytest.mark.slow
    def test_while_they_start(self) -> None:
        """Being killed is not a reason to give up, unless it happens again and again."""
        queue = sync.FIFOQueue(16)
        runner = runner_of(functions.double, queue, workers=1)
        with sync.Coordinator() as coord:
            coord.start(runner)
            spin_until(pids)
            os.kill(pids()[0], signal.SIGKILL)
            assert sorted(queue) == list(range(0, 200, 2))
        assert runner.statistics().workers_died == 1

    @pytest.mark.slow
    def test_before_they_have_done_anything(self) -> None:
        """Again and again, with no item to blame."""
        reported = failure(functions.KillsBefore(), workers=1)
        assert reported.startswith("WorkerDiedError('worker process aioqueue-KillsBefore-")
        assert "was killed by SIGKILL (out of memory?) before it had done anything" in reported
        assert "as did 9 before it" in reported

    @pytest.mark.slow
    @pytest.mark.skipif(not HAS_PROC, reason="only the fork server's exit codes are read once")
    def test_two_that_ask_for_an_exit_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """There is only one to read, and both have seen that it is there."""
        process = StartedProcess(daemon=True)
        process.start()
        wait = multiprocessing.connection.wait
        assert wait([process.sentinel], PATIENCE)
        both = threading.Barrier(2)

        def wait_for_both(objects: Any, timeout: float | None = None) -> Any:
            ready = wait(objects, timeout)
            with suppress(threading.BrokenBarrierError):
                both.wait(0.1)  # in vain, if they are let in one by one
            return ready

        monkeypatch.setattr(multiprocessing.connection, "wait", wait_for_both)
        codes: list[int | None] = []
        threads = [
            threading.Thread(target=lambda: codes.append(process.exitcode), daemon=True)
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert codes == [0, 0]
        process.close()


class TestFailures:
    @pytest.mark.slow
    def test_the_traceback_is_that_of_the_worker(self) -> None:
        with pytest.raises(ExceptionGroup) as caught:
            results(functions.refuses_thirteens, range(1, 20))
        (error,) = caught.value.exceptions
        assert isinstance(error, ValueError)
        assert "while preparing item 13 (epoch 0, index 12)" in error.__notes__
        assert 'raise ValueError(f"{number} is unlucky")' in str(error.__cause__)

    @pytest.mark.slow
    def test_workers_start_no_processes(self) -> None:
        reported = failure(functions.starts_a_process, [1])
        assert reported.startswith("RuntimeError(")
        assert "multiprocessing cannot start processes in a worker process" in reported

    @pytest.mark.slow
    def test_skipped_with_the_traceback_of_the_worker(self) -> None:
        got, runner = results(functions.refuses_thirteens, range(1, 30), on_error="skip")
        assert len(got) == 27
        assert 'raise ValueError(f"{number} is unlucky")' in runner.quarantine[0].traceback

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("function", "name"),
        [(functions.raises_mute_error, "MuteError"), (functions.raises_no_error, "NoError")],
    )
    def test_errors_that_cannot_be_pickled(self, function: Callable[[int], int], name: str) -> None:
        """They are made anew, without what they say of pickling."""
        reported = failure(function, [1])
        assert reported.startswith(f"{name}(")
        assert "while preparing item 1 (epoch 0, index 0)" in reported

    @pytest.mark.slow
    def test_those_of_a_class_that_is_called_otherwise(self) -> None:
        """They are tried again by their class, and caught by it."""
        assert failure(functions.raises_odd_error, [1]).startswith("OddError('1, 1')")
        again = Retry(3, on=functions.OddError, then="skip")
        _, runner = results(functions.raises_odd_error, [1], on_error=again)
        assert (runner.statistics().retried, runner.statistics().skipped) == (3, 1)

    def test_leaving_the_process_is_a_failure(self) -> None:
        assert "RuntimeError('the function raised SystemExit: 3')" in failure(functions.exits, [1])

    def test_results_that_cannot_be_pickled(self) -> None:
        assert "while pickling what the function returned" in failure(
            functions.unpicklable_result, [1]
        )

    def test_items_that_cannot_be_pickled(self) -> None:
        got, runner = results(functions.double, [1, lambda: 2, 3], on_error="skip", ordered=True)
        assert got == [2, 6]
        assert "while pickling the item" in runner.quarantine[0].traceback

    def test_what_the_queue_refuses(self) -> None:
        queue = sync.FIFOQueue(8, "uint8", (5,))
        runner = runner_of(functions.picture, queue, range(3), on_error="skip")
        assert drained(queue, runner) == []
        assert runner.statistics().skipped == 3

    @pytest.mark.parametrize(
        "function",
        [lambda number: number, functools.partial(lambda number: number)],
        ids=["a lambda", "a partial of one"],
    )
    def test_functions_that_cannot_be_pickled(self, function: Callable[..., Any]) -> None:
        with pytest.raises(InvalidArgumentError) as caught:
            runner_of(function, sync.FIFOQueue(8))
        assert "which cannot be pickled and so cannot be sent to a process" in str(caught.value)
        assert "expected a function at the top level of a module" in str(caught.value)
        assert "or use where='thread'" in str(caught.value)

    def test_functions_that_cannot_be_imported_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(functions, "only_here", only_here, raising=False)
        monkeypatch.setattr(only_here, "__module__", functions.__name__)
        reported = failure(only_here)
        assert "function: got 'only_here', which a new process cannot import" in reported


class TestEnds:
    """Whatever ends a pipeline ends its processes at once, also busy ones."""

    def test_a_stop(self) -> None:
        queue = sync.FIFOQueue(16)
        runner = runner_of(functions.never_ends, queue)
        with sync.Coordinator() as coord:
            coord.start(runner)
            assert sorted([queue.dequeue(), queue.dequeue()]) == [0, 1]
        assert runner.statistics().workers_died == 0  # they were ended by us

    def test_a_stop_of_one_that_ignores_signals(self, tmp_path: Path) -> None:
        mark = tmp_path / "begun"
        function = functools.partial(functions.ignores_termination, str(mark))
        with sync.Coordinator(stop_grace_period=PATIENCE) as coord:
            coord.start(runner_of(function, sync.FIFOQueue(16), [9]))
            spin_until(mark.exists)

    def test_a_cancelled_task(self) -> None:
        queue = aioqueue.FIFOQueue(16)

        async def main() -> None:
            async with aioqueue.Coordinator() as coord:
                coord.start(
                    prepare(range(9), functions.never_ends, into=queue, where="process", workers=2)
                )
                await queue.dequeue()
                with anyio.fail_after(0.01):
                    await queue.dequeue_many(5)

        with pytest.raises(ExceptionGroup) as caught:
            anyio.run(main)
        assert "TimeoutError" in failures_of(caught.value)[0]

    def test_a_consumer_that_closes_the_queue(self) -> None:
        queue = sync.FIFOQueue(16)
        with sync.Coordinator() as coord:
            threads = coord.start(runner_of(functions.never_ends, queue))
            queue.dequeue()
            queue.close(cancel_pending_enqueues=True)
            spin_until(lambda: not any(thread.is_alive() for thread in threads))

    def test_a_stop_while_processes_start(self) -> None:
        queue = sync.FIFOQueue(16)
        with sync.Coordinator() as coord:
            coord.start(runner_of(functions.double, queue))

    def test_a_source_that_raises(self) -> None:
        def source() -> Iterator[int]:
            yield 5
            raise OSError("the disk is gone")

        assert failure(functions.never_ends, source()).startswith(
            "OSError('the disk is gone') | in the source of a prepare"
        )

    def test_a_failure_while_others_are_busy(self) -> None:
        assert "is unlucky" in failure(functions.busy_or_unlucky, [5, 13])


@pytest.mark.skipif(not HAS_PROC, reason="looks into /proc")
class TestProgramsThatEnd:
    """Processes of a program of its own, which is ended in some way."""

    @pytest.mark.slow
    @pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGINT", "nothing"])
    def test_no_process_outlives_it(self, how: str) -> None:
        program = """
import multiprocessing, sys
from aioqueue import sync
from aioqueue.workers.runner import prepare
from tests.kit.functions import never_ends

if __name__ == "__main__":
    queue = sync.FIFOQueue(16)
    with sync.Coordinator() as coord:
        coord.start(prepare(range(9), never_ends, into=queue, where="process", workers=1))
        queue.dequeue(), queue.dequeue()
        print(*[child.pid for child in multiprocessing.active_children()], flush=True)
        if sys.argv[1] != "nothing":
            queue.dequeue()
"""
        with subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program, how],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            workers = [int(pid) for pid in running.stdout.readline().split()]
            assert len(workers) == 1
            if how == "SIGINT":
                press_until_it_ends(running)
            elif how != "nothing":
                os.kill(running.pid, getattr(signal, how))
            running.wait(PATIENCE)
            spin_until(lambda: not any(map(is_running, workers)))
            errors = running.stderr.read()
        assert ("KeyboardInterrupt" in errors) == (how == "SIGINT")
        assert errors == "" or how == "SIGINT"
        assert "resource_tracker" not in errors

    @pytest.mark.slow
    def test_a_program_without_a_guard(self, tmp_path: Path) -> None:
        """It cannot work, since processes import the main module; but it says so."""
        ran = run_script(
            tmp_path / "unguarded.py",
            """
from aioqueue import sync
from aioqueue.workers.runner import prepare
from tests.kit.functions import double

queue = sync.FIFOQueue(16)
with sync.Coordinator() as coord:
    coord.start(prepare(range(9), double, into=queue, where="process", workers=1))
    print(list(queue))
""",
        )
        assert ran.returncode == 1
        assert "the main module is being imported by a new process" in ran.stderr
        assert "has ended with exit code 1 while it started" in ran.stderr
        assert 'put that under `if __name__ == "__main__":`' in ran.stderr

    @pytest.mark.slow
    @pytest.mark.parametrize("is_cold", [False, True])
    def test_only_what_starts_them_needs_the_guard(self, is_cold: bool, tmp_path: Path) -> None:
        """A pipeline, or what `prepare` makes, is a description: processes may import it."""
        a_thread = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
        ran = run_script(
            tmp_path / "guarded.py",
            f"""
import threading
from aioqueue import sync
from aioqueue.inputs import numbers, prepare

def double(number):
    return 2 * number

PIPELINE = numbers(4).prepare(double, where="process", workers=2).batch(4)
QUEUE = sync.FIFOQueue(4)
RUNNER = prepare(range(4), double, into=QUEUE, where="process", workers=1, ordered=True)
{a_thread if is_cold else ""}

if __name__ == "__main__":
    for batch in PIPELINE:
        print(batch.tolist())
    with sync.Coordinator() as coord:
        coord.start(RUNNER)
        print(list(QUEUE))
""",
        )
        assert (ran.stdout, ran.stderr) == ("[0, 2, 4, 6]\n[0, 2, 4, 6]\n", "")
        assert ran.returncode == 0


def run_script(path: Path, text: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    return subprocess.run(
        [sys.executable, str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def press_until_it_ends(running: subprocess.Popen[str]) -> None:
    """Press Ctrl-C in a program, as a terminal does it: for all of its processes.

    CPython 3.14 without the global lock spins for a millisecond when a thread begins to wait for a
    lock, and handles a Ctrl-C that comes then only when it wakes: there, and only there, try again,
    but not while a slow machine is still ending it.
    """
    has_global_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    for _ in range(1 if has_global_lock else 3):
        os.killpg(running.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            running.wait(PATIENCE / 4)
            break


def only_here(number: int) -> int:
    return number


def bytes_of(size: int) -> bytes:
    return bytes(size)
