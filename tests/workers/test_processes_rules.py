"""`ProcessExecutor`, with processes that do what the test says. None is started."""

from __future__ import annotations

import os
import pickle
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError, WorkerDiedError
from aioqueue.items.item import Item
from aioqueue.processes import worker_process
from aioqueue.processes.arena import NO_ITEM, Allocator, Arena, pack
from aioqueue.processes.child import Ready
from aioqueue.processes.fork_server.bootstrap import CannotStartError
from aioqueue.workers.executors import processes as process_executor
from aioqueue.workers.executors.chunks import Assignments, ConnectionLost
from aioqueue.workers.executors.process_child import Outcome, WorkerReport, work
from aioqueue.workers.executors.processes import PreparingProcess, ProcessExecutor
from aioqueue.workers.flow_control import Pending
from aioqueue.workers.job import NothingMore
from aioqueue.workers.key_limits import KeyLimit
from aioqueue.workers.timing import WorkerGauge
from tests.kit.alone import Made
from tests.kit.processing import async_numbers, open_files
from tests.kit.worlds import PATIENCE, spin_until

Replies = Iterator[Ready | WorkerReport]
Life = Callable[["Acted"], Replies]

MEGABYTE = 2**20


class Acted(PreparingProcess):
    """A stand-in for a process. Its life yields the replies; at its end, the process has died."""

    def __init__(self, name: str, arena_size: int, life: Life, exitcode: int) -> None:
        self.name, self.arena_size = name, arena_size
        self.assignments = Assignments()
        self.overdue = None
        self.is_ready = self.has_begun = self.was_of_use = False
        self._copy = None
        self._freed = deque()
        self.arena = Arena(4096)
        self.sent: list[bytes] = []  # the function, and then chunks
        self.chunks: deque[list[tuple[int, Any]]] = deque()  # those that are to be prepared
        self.events: list[str] = []
        self._run_worker = life(self)
        self._exitcode = exitcode

    def send_message(self, message: bytes) -> None:
        if self.sent:
            _, chunk = pickle.loads(message)
            self.chunks.append([(number, pickle.loads(value)) for number, _, _, value in chunk])
        self.sent.append(message)

    def receive_reply(self) -> Any:
        return next(self._run_worker, None)

    def exitcode(self) -> int:
        self.events.append("exit code")
        self.has_begun = True
        return self._exitcode

    def kill(self) -> None:
        self.events.append("kill")

    def kill_at_exit(self) -> None:
        self.events.append("kill at exit")

    def end(self, *, at_once: bool) -> None:
        self.events.append(f"end, at once: {at_once}")

    @property
    def freed(self) -> list[int]:
        """The places in the arena that the latest message freed."""
        freed: list[int] = pickle.loads(self.sent[-1])[0]
        return freed


def outcomes(process: Acted, *, seconds_each: float = 1.0) -> WorkerReport:
    """Return a report with the values of the next chunk."""
    chunk = process.chunks.popleft()
    made: list[Outcome] = [
        (number, pickle.dumps((value,), 5), [], False) for number, value in chunk
    ]
    return WorkerReport(made, seconds_each * len(chunk))


def works(process: Acted) -> Replies:
    return at_a_pace(1.0)(process)


def at_a_pace(seconds_each: float) -> Life:
    """The life of a process that takes this long for an item."""

    def life(process: Acted) -> Replies:
        yield Ready()
        while True:
            yield outcomes(process, seconds_each=seconds_each)

    return life


def dies_of(*numbers: int, seconds_each: float = 1.0) -> Life:
    """The life of a process that dies of some items."""

    def life(process: Acted) -> Replies:
        yield Ready()
        while True:
            for number, _ in process.chunks[0]:
                process.arena.item = number
                if number in numbers:
                    return
            yield outcomes(process, seconds_each=seconds_each)
            process.arena.item = NO_ITEM

    return life


def dies_at_once(process: Acted) -> Replies:
    yield from ()


class Stage:
    """An executor with stand-ins for processes. It has all its items before it begins.

    Attributes:
        processes: those that were started.
        entered: what was enqueued, as the queue was given it.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *lives: Life,
        values: Any = (),
        workers: int = 1,
        takes: bool = True,
        exitcode: int = -9,
        **options: Any,
    ) -> None:
        self.made = Made(workers, source=list(values), **{"limit_bytes": MEGABYTE, **options})
        self.made.window.resize(20, at_once=20)  # so that all come in
        self.entered: list[Any] = []
        enqueue = self.made.queue.enqueue

        def noting(element: Any) -> None:
            self.entered.append(element)
            enqueue(element)

        monkeypatch.setattr(self.made.queue, "enqueue", noting)
        self.executor = ProcessExecutor(self.made.job)
        self.made.job.begin(self.made.run, self.executor)
        self.processes: list[Acted] = []
        self.lives = deque(lives)
        self.exitcode = exitcode
        monkeypatch.setattr(process_executor, "PreparingProcess", self.process)
        *self.workers, take_items = self.executor.enqueue_ops()
        if takes:
            with pytest.raises(NothingMore):
                take_items()

    def process(self, name: str, arena_size: int, gauge: WorkerGauge, copy: Any) -> Acted:
        process = Acted(name, arena_size, self.lives.popleft(), self.exitcode)
        process.gauge, process._copy = gauge, copy
        self.processes.append(process)
        return process

    def play(self) -> list[Any]:
        """Let the only worker work to its end; returns what has arrived."""
        with pytest.raises(NothingMore):
            self.work()
        return self.arrived()

    def work(self) -> None:
        """Let the first worker work to its end, whatever that is."""
        self.workers[0]()

    def failures(self) -> list[BaseException]:
        """Let all work to their ends, at the same time; returns those that are failures."""
        failures: list[BaseException] = []

        def work(worker: Callable[[], object]) -> None:
            try:
                worker()
            except NothingMore:
                pass
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in self.workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        return failures

    def arrived(self) -> list[Any]:
        return [self.made.queue.dequeue() for _ in range(self.made.queue.size())]


def free_places(limit: KeyLimit, most: int) -> int:
    """Return how many more items of the only key could be in preparation."""
    others = [Pending(Item(number, None, 0, number)) for number in range(most)]
    for pending in others:
        limit.note_key(pending)
    return sum(limit.admit(pending) for pending in others)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    def build(*lives: Life, **options: Any) -> Stage:
        return Stage(monkeypatch, *lives, **options)

    return build


class TestItems:
    def test_a_process_gets_the_function_and_then_items_one_by_one(
        self, stage: Callable[..., Stage]
    ) -> None:
        played = stage(works, values="abc")
        assert played.play() == ["a", "b", "c"]
        (process,) = played.processes
        assert pickle.loads(process.sent[0]).function is abs
        chunks = [pickle.loads(message) for message in process.sent[1:]]
        assert [len(chunk) for _, chunk in chunks] == [1, 1, 1]
        assert process.is_ready
        assert process.events == ["end, at once: False"]
        assert played.made.window.items == 0
        assert played.made.progress.statistics().prepared == 3
        played.executor.kill_at_exit()  # it is not ours any more
        assert process.events == ["end, at once: False"]

    def test_fast_items_are_sent_ahead(self, stage: Callable[..., Stage]) -> None:
        had: list[int] = []

        def life(process: Acted) -> Replies:
            yield Ready()
            while True:
                had.append(len(process.assignments))
                yield outcomes(process, seconds_each=0.004)

        played = stage(life, values=range(9))
        assert played.play() == list(range(9))
        # One, until it is known how long they take: then two at a time, and a chunk of two ahead.
        assert had == [1, 4, 4, 4, 2]

    def test_with_limited_keys_items_are_sent_one_by_one(self, stage: Callable[..., Stage]) -> None:
        limit = KeyLimit(lambda value: "all", 3)
        played = stage(at_a_pace(0.002), values=range(5), key_limit=limit)
        assert played.play() == list(range(5))
        assert len(played.processes[0].sent) == 6
        assert free_places(limit, 3) == 3

    def test_the_arena_is_twice_the_limit_of_bytes(self, stage: Callable[..., Stage]) -> None:
        for limit, size in [(1, 2), (MEGABYTE, 2), (5 * MEGABYTE, 10), (2**50, 2 * MEGABYTE)]:
            played = stage(works, limit_bytes=limit)
            played.play()
            assert played.processes[0].arena_size == size * MEGABYTE

    def test_processes_are_numbered(self, stage: Callable[..., Stage]) -> None:
        played = stage(dies_of(0), works, values=[0])
        assert played.play() == [0]
        assert [one.name for one in played.processes] == [
            "aioqueue-prepare-0",
            "aioqueue-prepare-1",
        ]

    def test_a_failure_in_a_process_is_that_of_the_item(self, stage: Callable[..., Stage]) -> None:
        def life(process: Acted) -> Replies:
            yield Ready()
            message = pickle.dumps((pickle.dumps(ValueError("bad")), "there", "name", None))
            process.chunks.popleft()
            yield WorkerReport([(0, message, [], True)], 1.0)
            yield outcomes(process)

        played = stage(life, values="ab", on_error="skip")
        assert played.play() == ["b"]
        (record,) = played.made.progress.quarantine.records()
        assert "ValueError: bad" in record.traceback
        assert (record.item, record.attempts) == ("a", 1)
        assert played.made.window.items == 0

    def test_an_item_that_cannot_be_sent_fails_alone(self, stage: Callable[..., Stage]) -> None:
        played = stage(at_a_pace(0.001), values=[0, lambda: None, 1], on_error="skip")
        assert played.play() == [0, 1]
        assert len(played.processes[0].sent) == 3  # it was on its way with the last one
        (record,) = played.made.progress.quarantine.records()
        assert "while pickling the item" in record.traceback

    def test_a_refusal_names_the_function(self, stage: Callable[..., Stage]) -> None:
        both = threading.Barrier(2, timeout=PATIENCE)

        def refuses(process: Acted) -> Replies:
            refusal = pickle.dumps(
                (pickle.dumps(ImportError("no such module")), "there", "name", None)
            )
            yield Ready(refusal)

        def together(process: Acted) -> Replies:
            both.wait()
            yield from refuses(process)

        played = stage(together, together, values=[1], workers=2)
        (failure,) = played.failures()  # the other has nothing to add
        assert isinstance(failure, InvalidArgumentError)
        assert str(failure).startswith("function: got 'abs'")
        assert isinstance(failure.__cause__, ImportError)
        assert played.processes[0].events[-1] == "end, at once: True"


class TestSharedMemory:
    ARRAY = np.arange(20_000, dtype="int64")

    def blocks(self, process: Acted, examples: Any) -> tuple[bytes, Any]:
        process.arena = Arena(2**20)
        return pack(examples, process.arena, Allocator(2**20))

    def test_blocks_are_free_once_they_were_read(self, stage: Callable[..., Stage]) -> None:
        freed: list[Any] = []

        def life(process: Acted) -> Replies:
            yield Ready()
            message, blocks = self.blocks(process, (self.ARRAY, 2 * self.ARRAY))
            freed.append([start for start, _ in blocks])
            freed.append(process.freed)
            process.chunks.popleft()
            yield WorkerReport([(0, message, blocks, False)], 1.0)
            freed.append(process.freed)
            yield outcomes(process)

        played = stage(life, values="ab")
        played.play()
        assert len(freed[0]) == 2
        assert freed[1:] == [[], freed[0]]

    def test_blocks_count_in_the_size_of_an_item(self, stage: Callable[..., Stage]) -> None:
        sizes: list[float] = []
        expected: list[int] = []

        def life(process: Acted) -> Replies:
            yield Ready()
            message, blocks = self.blocks(process, (self.ARRAY,))
            expected.append(len(message) + self.ARRAY.nbytes)
            yield WorkerReport([(0, message, blocks, False)], 1.0)
            sizes.append(played.made.window.mean_bytes)  # by the only one so far
            process.chunks.popleft()
            yield outcomes(process)

        played = stage(life, values="ab", limit_bytes=10 * MEGABYTE)
        array, _ = played.play()
        assert np.array_equal(array, self.ARRAY)
        assert sizes == expected

    @pytest.mark.parametrize("dtype", [None, "int64"], ids=["kept", "copied"])
    def test_arrays_are_copied_for_a_queue_of_objects(
        self, dtype: str | None, stage: Callable[..., Stage]
    ) -> None:
        """A queue of typed components copies them by itself."""

        def life(process: Acted) -> Replies:
            yield Ready()
            message, blocks = self.blocks(process, (self.ARRAY,))
            yield WorkerReport([(0, message, blocks, False)], 1.0)

        played = stage(life, values="a", dtype=dtype)
        played.play()
        memory = np.frombuffer(played.processes[0].arena.memory, "uint8")
        assert np.shares_memory(played.entered[0], memory) == (dtype is not None)

    def test_blocks_are_free_even_if_they_cannot_be_unpickled(
        self, stage: Callable[..., Stage]
    ) -> None:
        freed: list[Any] = []

        def life(process: Acted) -> Replies:
            yield Ready()
            yield WorkerReport([(0, b"no pickle", [(64, 64)], False)], 1.0)
            freed.append(process.freed)
            process.chunks.popleft()
            yield outcomes(process)

        played = stage(life, values="ab", on_error="skip")
        assert played.play() == ["b"]
        assert freed == [[64]]
        (record,) = played.made.progress.quarantine.records()
        assert "while unpickling what the function returned" in record.traceback


class TestDeaths:
    def test_the_items_of_a_dead_process_are_prepared_again_first(
        self, stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
    ) -> None:
        # The first one tells how long they take: so there are five at a time, and all ahead.
        played = stage(dies_of(2, seconds_each=0.002), works, values=range(7))
        assert played.play() == list(range(7))
        one, other = played.processes
        assert one.events == ["exit code", "end, at once: True"]
        first = pickle.loads(other.sent[1])[1]
        assert [number for number, *_ in first] == list(range(1, 6))
        assert played.made.progress.statistics().workers_died == 1
        assert caplog.messages == [
            "worker process aioqueue-prepare-0 was killed by SIGKILL (out of memory?); 6 of its"
            " items will be prepared again"
        ]

    def test_while_it_starts(
        self, stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
    ) -> None:
        played = stage(dies_at_once, works, values=[5])
        assert played.play() == [5]
        assert played.made.progress.statistics().workers_died == 1
        assert "(out of memory?) while it started; 0 of its items" in caplog.messages[0]

    def test_an_item_that_three_processes_died_of_is_skipped(
        self, stage: Callable[..., Stage]
    ) -> None:
        played = stage(*[dies_of(1)] * 3, works, values=range(3), on_error="skip")
        assert played.play() == [0, 2]
        (record,) = played.made.progress.quarantine.records()
        assert (record.item, record.attempts) == (1, 3)
        assert "3 worker processes have died of one item; the last one was" in record.traceback
        assert played.made.window.items == 0
        assert played.made.progress.statistics().workers_died == 3

    def test_an_item_that_three_processes_died_of_is_a_failure(
        self, stage: Callable[..., Stage]
    ) -> None:
        played = stage(*[dies_of(0)] * 3, values=[0], exitcode=-11)
        with pytest.raises(WorkerDiedError, match=r"the last one was killed by SIGSEGV") as caught:
            played.work()
        assert caught.value.exitcode == -11

    def test_lost_items_give_their_keys_back(self, stage: Callable[..., Stage]) -> None:
        limit = KeyLimit(lambda value: "all", 1)
        played = stage(*[dies_of(1)] * 3, works, values=range(3), on_error="skip", key_limit=limit)
        assert played.play() == [0, 2]
        assert free_places(limit, 1) == 1

    def test_after_ten_useless_processes_there_is_no_other(
        self, stage: Callable[..., Stage]
    ) -> None:
        played = stage(*[dies_at_once] * 20, values=[0])
        with pytest.raises(WorkerDiedError, match=r"-9 .* as did 9 before it") as caught:
            played.work()
        assert caught.value.exitcode == -9
        assert len(played.processes) == 10

    def test_ten_useless_processes_of_each_worker_are_reported_once(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        both = threading.Barrier(2, timeout=PATIENCE)
        monkeypatch.setattr(Acted, "exitcode", lambda process: (both.wait(), -9)[1])
        played = stage(*[dies_at_once] * 20, values=[0], workers=2)
        (failure,) = played.failures()  # the other has nothing to add
        assert isinstance(failure, WorkerDiedError)
        assert len(played.processes) == 20

    @pytest.mark.parametrize("how", ["a stop", "the end of the program"])
    def test_a_process_that_we_end_is_no_death(self, how: str, stage: Callable[..., Stage]) -> None:
        def life(process: Acted) -> Replies:
            yield Ready()
            if how == "a stop":
                played.made.job.stop()
            else:
                played.executor.stop_replacing()

        played = stage(life, values=[1])
        assert played.play() == []
        (process,) = played.processes
        assert process.events[-1] == "end, at once: True"
        assert "exit code" not in process.events
        assert ("kill" in process.events) == (how == "a stop")
        assert played.made.progress.statistics().workers_died == 0


class TestAStop:
    def test_wakes_threads_that_wait_for_items(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        played, waits = stage(works, takes=False), threading.Event()
        wait = threading.Condition.wait

        def noted(condition: threading.Condition, seconds: float | None = None) -> bool:
            if threading.current_thread() is thread:
                waits.set()  # the lock is held: nobody can tell anything before it waits
            return wait(condition, seconds)

        def work() -> None:
            with pytest.raises(NothingMore):
                played.work()

        thread = threading.Thread(target=work)
        monkeypatch.setattr(threading.Condition, "wait", noted)
        thread.start()
        spin_until(waits.is_set)
        played.made.job.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert played.processes[0].events == ["kill", "end, at once: True"]

    def test_at_the_end_of_the_program(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """First no process is started any more, then all are killed."""
        order: list[str] = []

        def refuse_starts() -> None:
            assert not played.processes[0].events
            order.append("no more")

        def life(process: Acted) -> Replies:
            yield Ready()
            worker_process.end_all()
            order.append("ended")

        played = stage(life, works, values=[1])
        monkeypatch.setattr(worker_process, "_owners", {played.executor})
        monkeypatch.setattr(worker_process, "refuse_starts", refuse_starts)
        assert played.play() == []
        assert order == ["no more", "ended"]
        (process,) = played.processes  # which is not replaced
        assert process.events == ["kill at exit", "end, at once: True"]


class TestTheStart:
    @pytest.mark.parametrize("exitcode", [None, 3])
    def test_a_failure_of_all_is_reported_once(
        self, exitcode: int | None, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        played, both = stage(values=[1], workers=2), threading.Barrier(2, timeout=PATIENCE)

        def fail(name: str, arena_size: int, gauge: WorkerGauge, copy: Any) -> None:
            both.wait()
            raise CannotStartError("there is no server", exitcode)

        monkeypatch.setattr(process_executor, "PreparingProcess", fail)
        (failure,) = played.failures()  # one of them tells it for all
        assert isinstance(failure, WorkerDiedError)
        message = r"worker process aioqueue-prepare-[01] cannot be started: there is no server"
        assert re.match(message, str(failure))
        assert ("its error output says more" in str(failure)) == (exitcode is not None)
        assert failure.exitcode == (exitcode or 0)
        assert isinstance(failure.__cause__, CannotStartError)

    def test_after_a_stop_nothing_is_started(self, stage: Callable[..., Stage]) -> None:
        played = stage(works, values=[1])
        played.made.job.stop()
        assert played.play() == []
        assert not played.processes

    def test_a_process_that_a_stop_has_missed_is_killed(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        played = stage(works, values=[1])
        build = played.process

        def halfway(name: str, arena_size: int, gauge: WorkerGauge, copy: Any) -> Acted:
            played.made.job.stop()
            return build(name, arena_size, gauge, copy)

        monkeypatch.setattr(process_executor, "PreparingProcess", halfway)
        assert played.play() == []
        assert played.processes[0].events == ["kill", "end, at once: True"]

    def test_is_refused_while_the_main_module_is_imported(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        both = threading.Barrier(2, timeout=PATIENCE)
        monkeypatch.setattr(worker_process, "is_importing_main", lambda: both.wait() >= 0)
        played = stage(works, values=[1], workers=2)
        (failure,) = played.failures()  # one of them tells it for all
        assert isinstance(failure, RuntimeError)
        assert "the main module is being imported" in str(failure)
        assert not played.processes

    def test_a_function_that_cannot_be_pickled_is_refused(self) -> None:
        job = Made(limit_bytes=1, function=lambda item: item).job
        with pytest.raises(InvalidArgumentError, match=r"^function: got .*cannot be pickled"):
            ProcessExecutor(job)

    def test_the_enqueue_ops(self) -> None:
        job = Made(3, limit_bytes=1).job
        executor = ProcessExecutor(job)
        ops = executor.enqueue_ops()
        names = [getattr(op, "func", op).__name__ for op in ops]
        assert names == [*["prepare_items"] * 3, "take_items"]
        made = Made(3, limit_bytes=1, source=async_numbers(1))
        assert len(ProcessExecutor(made.job).enqueue_ops()) == 5


class Started:
    """A stand-in for a process of multiprocessing, which may not end before it is killed."""

    def __init__(self, *, ends: bool = True) -> None:
        self.events: list[str] = []
        self.pid, self.exitcode = 77, 5
        self.sentinel, self._end = os.pipe()
        self._ends = ends
        self._is_alive = True

    def start(self) -> None:
        self.events.append("start")

    def join(self, seconds: float | None = None) -> None:
        self.events.append("join" if seconds is None else "join for a while")
        self._is_alive = not self._ends and "kill" not in self.events

    def is_alive(self) -> bool:
        return self._is_alive

    def kill(self) -> None:
        self.events.append("kill")

    def disown(self) -> None:
        self.events.append("disown")

    def close(self) -> None:
        self.events.append("close")
        os.close(self.sentinel)
        os.close(self._end)


@pytest.mark.skipif(sys.platform == "win32", reason="what stands for a process has a descriptor")
class TestOneProcess:
    """Its shared memory and its pipe are real. The test has the other ends."""

    def started(self, monkeypatch: pytest.MonkeyPatch, started: Started) -> Any:
        def build(*, target: Any, args: Any, name: str, daemon: bool) -> Started:
            its_work, self.theirs, self.kept, _ = args
            assert its_work is work
            assert daemon
            self.name = name
            end, (connection,) = self.theirs.__reduce__()  # as it is handed over
            self.other = end(connection.dup())  # the one that it had is closed here
            return started

        monkeypatch.setattr(worker_process, "StartedProcess", build)
        return process_executor.PreparingProcess("mine", 4096, WorkerGauge("worker"), None)

    def test_is_asked_to_end_and_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self.started(monkeypatch, started := Started())
        assert (self.name, process.name) == ("mine", "mine (pid 77)")
        with pytest.raises(OSError, match="Bad file descriptor"):
            self.theirs.send(b"it is closed here")
        assert self.kept is process.arena
        process.end(at_once=False)
        assert started.events == ["start", "join for a while", "close"]
        assert self.other.receive() == b""
        with pytest.raises(EOFError):
            self.other.receive()
        assert process.arena.memory.closed
        self.other.close()

    def test_is_killed_if_it_does_not_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self.started(monkeypatch, started := Started(ends=False))
        process.end(at_once=False)
        assert started.events == ["start", "join for a while", "kill", "join", "close"]
        self.other.close()

    def test_is_killed_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self.started(monkeypatch, started := Started())
        process.end(at_once=True)
        assert started.events == ["start", "kill", "join", "close"]
        with pytest.raises(EOFError):
            self.other.receive()
        self.other.close()

    @pytest.mark.parametrize("ends", [True, False])
    def test_has_an_exit_code(self, ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self.started(monkeypatch, started := Started(ends=ends))
        assert not process.has_begun
        process.arena.begin()
        assert process.exitcode() == 5
        assert process.has_begun
        killed = [] if ends else ["kill", "join"]
        assert started.events == ["start", "join for a while", *killed]
        process.end(at_once=True)
        assert started.events == ["start", "join for a while", *killed, "close"]
        self.other.close()

    def test_at_the_end_of_the_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self.started(monkeypatch, started := Started())
        process.kill_at_exit()
        assert started.events == ["start", "disown", "kill"]
        monkeypatch.setattr(worker_process, "is_ending", lambda: True)
        process.end(at_once=True)  # multiprocessing may be about to join it
        assert started.events == ["start", "disown", "kill", "kill", "join"]
        started.close()
        self.other.close()

    def test_may_be_killed_after_its_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self.started(monkeypatch, started := Started())
        process.end(at_once=True)

        def refuse() -> None:
            raise ValueError("process object is closed")

        monkeypatch.setattr(started, "kill", refuse)
        process.kill()
        self.other.close()

    def test_messages_both_ways(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self.started(monkeypatch, Started())
        process.send_message(b"to it")
        assert self.other.receive() == b"to it"
        report = WorkerReport([(1, b"x", [], False)], 0.5)
        self.other.send(pickle.dumps(report))
        assert process.receive() == report
        self.other.close()
        with pytest.raises(ConnectionLost):
            process.receive()
        process.send_message(b"it is gone")
        process.end(at_once=True)

    def test_that_cannot_be_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        started = Started()

        def fail() -> None:
            raise OSError("too many open files")

        monkeypatch.setattr(started, "start", fail)
        before = open_files()
        with pytest.raises(WorkerDiedError, match=r"mine cannot be started: OSError.*too many"):
            self.started(monkeypatch, started)
        self.other.close()
        assert open_files() == before
        started.close()
