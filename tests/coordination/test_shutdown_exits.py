"""Programs that end without a stop: they end, and computing workers finish their calls."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path

import pytest

import aioqueue
from aioqueue import inputs, sync
from aioqueue.coordination import shutdown
from aioqueue.testing import until_waiting, wait_until_waiting
from tests.kit.children import complaints
from tests.kit.coordinators import Thread
from tests.kit.worlds import PATIENCE, TaskWorld, core_of, spin_until

ROOT = Path(aioqueue.__file__).parents[1]

START = """
import threading, time
import aioqueue
from aioqueue import sync
queue = sync.FIFOQueue(4, name="examples")
coord = sync.Coordinator()
def fill():
    queue.enqueue(1)
"""

LEGACY = """
import aioqueue.compat.v1 as tf
queue = tf.FIFOQueue(4, "float32", shapes=[()])
runner = tf.train.QueueRunner(queue, [queue.enqueue(1.0)] * 2)
tf.train.add_queue_runner(runner)
sess = tf.Session()
coord = tf.train.Coordinator()
"""

ENDS = {
    "runner": "sync.QueueRunner(queue, [fill] * 2).create_threads(coord=coord, start=True)",
    "runner, no coordinator": "sync.QueueRunner(queue, [fill] * 2).create_threads(start=True)",
    "runner of coroutine functions": """
async def fill_too():
    await queue.aio.enqueue(1)
sync.QueueRunner(queue, [fill, fill_too]).create_threads(coord=coord, start=True)
""",
    "coroutine functions, no coordinator": """
async def fill_too():
    await queue.aio.enqueue(1)
sync.QueueRunner(queue, [fill_too]).create_threads(start=True)
""",
    "daemons": "coord.start(sync.QueueRunner(queue, [fill] * 2))",
    "a thread that waits for the stop": """
thread = threading.Thread(target=coord.wait_for_stop)
thread.start()
coord.register(thread)
""",
    "a looper": "sync.LooperThread.loop(coord, 1000, print)",
    "started late": """
threads = sync.QueueRunner(queue, [fill] * 2).create_threads(coord=coord)
for thread in threads:
    thread.start()
""",
    "never started": "sync.QueueRunner(queue, [fill]).create_threads(coord=coord)",
    "main raises": """
sync.QueueRunner(queue, [fill] * 2).create_threads(coord=coord, start=True)
import sys
sys.excepthook = lambda *_: None
raise ValueError
""",
    "a pool beside it": """
import concurrent.futures
pool = concurrent.futures.ThreadPoolExecutor(2)
pool.submit(print, "in the pool").result()
sync.QueueRunner(queue, [fill] * 2).create_threads(coord=coord, start=True)
""",
    "who waits for the main thread": """
sync.QueueRunner(queue, [fill] * 2).create_threads(coord=coord, start=True)
threading.Thread(target=lambda: threading.main_thread().join()).start()
""",
    "garbage": """
sync.QueueRunner(queue, [fill] * 2).create_threads(coord=coord, start=True)
del coord
""",
}

ENDS_OF_OLD = {
    "queue runners": "threads = tf.train.start_queue_runners(sess=sess, coord=coord, daemon=False)",
    "create_threads": "runner.create_threads(sess, coord=coord, start=True)",
    "daemons": "threads = tf.train.start_queue_runners(sess=sess, coord=coord)",
}


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        timeout=50,
    )


@pytest.mark.slow
@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_workers_that_wait_do_not_keep_the_process(program: str) -> None:
    raised = "raise ValueError" in program
    done = run(START + program)
    assert complaints(done.stderr) == ""
    assert done.returncode == int(raised)


@pytest.mark.slow
@pytest.mark.parametrize("program", ENDS_OF_OLD.values(), ids=ENDS_OF_OLD)
def test_waiting_workers_of_tensorflow_do_not_keep_the_process(program: str) -> None:
    done = run(f"{LEGACY}{program}\nprint(sess.run(queue.dequeue()))")
    assert (done.stdout.strip(), done.returncode) == ("1.0", 0), done.stderr


@pytest.mark.slow
def test_a_computing_worker_ends_its_call() -> None:
    done = run(
        START
        + """
began = threading.Event()
def decode():
    began.set()
    threading.main_thread().join()
    threading.Event().wait(0.2)  # the stop has long come
    print("decoded", flush=True)
    queue.enqueue(1)
sync.QueueRunner(queue, [decode]).create_threads(coord=coord, start=True)
began.wait()
"""
    )
    assert done.stdout.splitlines() == ["decoded"], "called once, and not again"
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_consumers_get_all_their_data() -> None:
    """Other threads belong to the program: the stop comes after their end."""
    done = run(
        START
        + """
numbers = iter(range(1000))
def number():
    queue.enqueue(next(numbers))
runner = sync.QueueRunner(
    queue, [number], queue_closed_exception_types=(StopIteration, aioqueue.OutOfRangeError)
)
runner.create_threads(coord=coord, start=True)
threading.Thread(target=lambda: print(sum(queue))).start()
"""
    )
    assert done.stdout.strip() == str(sum(range(1000))), done.stderr
    assert done.returncode == 0


@pytest.mark.slow
def test_an_explicit_stop_works_as_ever() -> None:
    done = run(
        START
        + """
sync.QueueRunner(queue, [fill] * 2).create_threads(coord=coord, start=True)
queue.dequeue_many(10)
coord.request_stop()
coord.join()
print(coord.joined)
"""
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("True", "", 0)


@pytest.mark.slow
def test_the_log_names_the_workers() -> None:
    done = run(
        f"""
import logging
logging.basicConfig(level="INFO", format="%(name)s %(message)s")
{START}
sync.QueueRunner(queue, [fill] * 2).create_threads(coord=coord, start=True)
"""
    )
    names = "aioqueue-fill-0 aioqueue-fill-1"
    expected = f"aioqueue the program has ended; its workers are asked to stop: {names}"
    assert done.stderr.splitlines() == [expected]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_has_no_workers_of_its_parent() -> None:
    done = run(
        f"""
import os, sys, warnings
{START}
sync.QueueRunner(queue, [fill] * 2).create_threads(coord=coord, start=True)
warnings.simplefilter("ignore")
sys.stdout.flush()
pid = os.fork()
if pid:
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
else:
    queue = sync.FIFOQueue(4, name="examples")
    coord = sync.Coordinator()
    sync.QueueRunner(queue, [fill] * 2).create_threads(coord=coord, start=True)
"""
    )
    assert (done.stdout.strip(), done.returncode) == ("child 0", 0), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_the_wait_for_a_computing_worker() -> None:
    program = (
        START
        + """
def decode():
    print("decoding", flush=True)
    threading.Event().wait()
sync.QueueRunner(queue, [decode]).create_threads(coord=coord, start=True)
"""
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "decoding\n"
        for _ in range(1000):
            process.send_signal(signal.SIGINT)
            try:
                process.wait(0.02)
                break
            except subprocess.TimeoutExpired:
                continue
        assert process.poll() is not None


class OnTheMainThread:
    """Workers on a thread that is no daemon."""

    def worker_threads(self) -> list[threading.Thread]:
        return [threading.main_thread()]

    def stop_at_exit(self) -> None:
        """Do nothing."""


def reports_of(threads: Iterable[threading.Thread]) -> str:
    names = " ".join(sorted(thread.name for thread in threads))
    return f"the program has ended; its workers are asked to stop: {names}"


class TestParts:
    def test_a_watcher_that_cannot_be_started_is_tried_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class NoThread:
            tries = 0

            def __init__(self, **options: object) -> None:
                """Take the arguments of a thread."""

            def start(self) -> None:
                NoThread.tries += 1
                raise RuntimeError("can't start new thread")

        workers = OnTheMainThread()
        monkeypatch.setattr(shutdown, "_watcher", None)
        monkeypatch.setattr(threading, "Thread", NoThread)
        shutdown.stop_at_exit(workers)
        shutdown.stop_at_exit(workers)
        assert NoThread.tries == 2

    def test_a_failing_stop_does_not_prevent_the_others(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        go = threading.Event()
        thread = threading.Thread(target=go.wait, daemon=True)
        thread.start()

        class Fails:
            def worker_threads(self) -> list[threading.Thread]:
                return [thread]

            def stop_at_exit(self) -> None:
                raise ValueError("not now")

        class Ends(Fails):
            def stop_at_exit(self) -> None:
                go.set()

        both = Fails(), Ends()
        for one in both:
            shutdown.stop_at_exit(one)
        shutdown.stop_daemons()
        thread.join(PATIENCE)
        assert "could not be stopped" in caplog.text

    def test_daemons_get_a_moment_to_end(self) -> None:
        waited: list[float | None] = []

        class Worker(Thread):
            def join(self, timeout: float | None = None) -> None:
                waited.append(timeout)
                self.release()  # it ends now that somebody waits for it
                super().join(PATIENCE)

        worker, coord = Worker("worker"), sync.Coordinator()
        worker.start()
        coord.register(worker)
        shutdown.stop_daemons()
        assert coord.should_stop()
        assert not worker.is_alive()
        (seconds,) = waited
        assert seconds is not None
        assert 0 <= seconds <= shutdown.DAEMON_GRACE

    def test_daemons_of_a_runner_without_a_coordinator(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "aioqueue")
        queue = sync.FIFOQueue(1)

        def fill() -> None:
            queue.enqueue(1)

        async def fill_too() -> None:
            await queue.aio.enqueue(1)

        threads = sync.QueueRunner(queue, [fill, fill_too]).create_threads(daemon=True, start=True)
        wait_until_waiting(queue, enqueues=2)
        shutdown.stop_daemons()
        assert reports_of(threads) in caplog.messages
        assert queue.is_closed()
        for thread in threads:
            thread.join(PATIENCE)

    def test_daemons_that_were_added_to_a_run(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        caplog.set_level(logging.INFO, "aioqueue")
        monkeypatch.setattr(shutdown, "DAEMON_GRACE", 0.0)
        empty, begun = sync.FIFOQueue(1), list[threading.Thread]()

        def take(number: int) -> int:
            begun.append(threading.current_thread())
            return int(empty.dequeue())

        runner = inputs.prepare(range(9), take, into=sync.FIFOQueue(9), workers=1, ordered=False)
        threads = runner.create_threads(daemon=True, start=True)
        runner.resize(2)
        spin_until(lambda: len(begun) == 2)
        shutdown.stop_daemons()
        empty.close()
        assert reports_of({*threads, *begun}) in caplog.messages
        for thread in {*threads, *begun}:
            thread.join(PATIENCE)

    def test_threads_of_an_async_runner_without_a_coordinator(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = task_world.fifo(1)

            def fill() -> None:
                queue.sync.enqueue(1)

            run = task_world.spawn(aioqueue.QueueRunner(queue, [fill]).run)
            await until_waiting(queue, enqueues=1)
            shutdown.stop_daemons()
            assert queue.is_closed()
            await run.result()

        task_world.run(body)

    def test_one_daemon_watches_the_main_thread(self) -> None:
        workers = OnTheMainThread()
        shutdown.stop_at_exit(workers)
        before = threading.enumerate()
        shutdown.stop_at_exit(workers)
        assert set(threading.enumerate()) <= set(before)
        (watcher,) = filter(shutdown.is_watcher, before)
        assert (watcher.name, watcher.daemon) == ("MainThreadWatcher", True)

    def test_a_coordinator_is_not_kept_alive(self) -> None:
        queue = sync.FIFOQueue(1)
        coord = sync.Coordinator()
        coord.start(sync.QueueRunner(queue, [lambda: queue.enqueue(1)]))
        core = core_of(coord)
        (thread,) = core.worker_threads()
        coord.request_stop()
        coord.join()
        assert core.worker_threads() == []
        reference = weakref.ref(core)
        del coord, core
        spin_until(lambda: not thread.is_alive())
        gc.collect()
        assert reference() is None
