"""The threads of worker processes, and processes that do as the test says: none is started."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError, WorkerDiedError
from aioqueue.inputs.prepare import process_executor as parent
from aioqueue.inputs.prepare.assignments import Assignments
from aioqueue.inputs.prepare.flow_control import KeyLimit, Pending
from aioqueue.inputs.prepare.job import NothingMore
from aioqueue.inputs.prepare.process_executor import ProcessExecutor
from aioqueue.inputs.prepare.worker_process import Outcome, WorkerReport, work
from aioqueue.inputs.prepare.worker_timing import WorkerGauge
from aioqueue.inputs.sources.items import Item
from aioqueue.processes import worker
from aioqueue.processes.arena import NONE, Allocator, Arena, pack
from aioqueue.processes.channels import Channel
from aioqueue.processes.start import CannotStartError
from tests.inputs.prepare.alone import Made
from tests.inputs.prepare.processing import async_numbers, open_files
from tests.worlds import PATIENCE

Life = Callable[["Acted"], Iterator[WorkerReport | None]]

MEGABYTE = 2**20


class Acted:
    """Stands for a process: its life tells what comes from it. The last is that it has died."""

    def __init__(self, name: str, arena_size: int, life: Life, exitcode: int) -> None:
        self.name, self.arena_size = name, arena_size
        self.gauge: WorkerGauge
        self.books = Assignments()
        self.arena = Arena(4096)
        self.sent: list[bytes] = []  # the function, and then chunks
        self.chunks: deque[list[tuple[int, Any]]] = deque()  # those that are to be prepared
        self.events: list[str] = []
        self._life = life(self)
        self._exitcode = exitcode

    def send(self, message: bytes) -> None:
        if self.sent:
            _, chunk = pickle.loads(message)
            self.chunks.append([(number, pickle.loads(value)) for number, _, _, value in chunk])
        self.sent.append(message)

    def receive(self) -> WorkerReport | None:
        return next(self._life, None)

    def exitcode(self) -> int:
        self.events.append("exit code")
        self.books.has_begun = True
        return self._exitcode

    def kill(self) -> None:
        self.events.append("kill")

    def kill_at_exit(self) -> None:
        self.events.append("kill at exit")

    def end(self, *, at_once: bool) -> None:
        self.events.append(f"end, at once: {at_once}")

    @property
    def freed(self) -> list[int]:
        """The places that it was told at last to be free."""
        freed: list[int] = pickle.loads(self.sent[-1])[0]
        return freed


def outcomes(process: Acted, *, seconds_each: float = 1.0) -> WorkerReport:
    """The next chunk, with nothing changed."""
    chunk = process.chunks.popleft()
    made: list[Outcome] = [
        (number, pickle.dumps((value,), 5), [], False) for number, value in chunk
    ]
    return WorkerReport(made, seconds_each * len(chunk))


def works(process: Acted) -> Iterator[WorkerReport]:
    yield WorkerReport([], 0.0)
    while True:
        yield outcomes(process)


def dies_of(*numbers: int) -> Life:
    """The life of one that dies of some items."""

    def life(process: Acted) -> Iterator[WorkerReport]:
        yield WorkerReport([], 0.0)
        while True:
            for number, _ in process.chunks[0]:
                process.arena.item = number
                if number in numbers:
                    return
            yield outcomes(process)
            process.arena.item = NONE

    return life


def dies_at_once(process: Acted) -> Iterator[WorkerReport]:
    yield from ()


class Stage:
    """An executor whose processes act, and that has all its items before it begins."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *lives: Life,
        values: Any = (),
        exitcode: int = -9,
        **options: Any,
    ) -> None:
        self.made = Made(1, **{"limit_bytes": MEGABYTE, **options})
        self.executor = ProcessExecutor(self.made.job)
        self.made.job.begin(self.made.run, self.executor)
        self.processes: list[Acted] = []
        self.lives = deque(lives)
        self.exitcode = exitcode
        self.inbox = self.executor._inbox._inbox
        monkeypatch.setattr(parent, "_Process", self._process)
        for number, value in enumerate(values):
            self.made.taken()
            self.inbox.put(Pending(Item(number, value, 0, number)))
        self.made.job.end_source(None)

    def _process(self, name: str, arena_size: int, gauge: WorkerGauge) -> Acted:
        process = Acted(name, arena_size, self.lives.popleft(), self.exitcode)
        process.gauge = gauge
        self.processes.append(process)
        return process

    def play(self) -> list[Any]:
        """Let the only worker work to its end; returns what has arrived."""
        with pytest.raises(NothingMore):
            self.executor._work(WorkerGauge("worker"))
        return self.arrived()

    def arrived(self) -> list[Any]:
        return [self.made.queue.dequeue() for _ in range(self.made.queue.size())]

    def at_a_pace(self, seconds: float) -> None:
        """Each item takes so many seconds."""
        self.executor._pace.note(seconds, 1)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    def build(*lives: Life, **options: Any) -> Stage:
        return Stage(monkeypatch, *lives, **options)

    return build


class TestAProcessThatLives:
    def test_gets_the_function_and_then_items_one_by_one(self, stage: Callable[..., Stage]) -> None:
        played = stage(works, values="abc")
        assert played.play() == ["a", "b", "c"]
        (process,) = played.processes
        assert pickle.loads(process.sent[0]).function is abs
        chunks = [pickle.loads(message) for message in process.sent[1:]]
        assert [len(chunk) for _, chunk in chunks] == [1, 1, 1]
        assert process.books.is_ready
        assert process.events == ["end, at once: False"]
        assert played.made.window.items == 0
        assert played.made.progress.statistics().prepared == 3
        assert not played.executor._all()

    def test_gets_some_ahead_if_they_take_little(self, stage: Callable[..., Stage]) -> None:
        had: list[int] = []

        def life(process: Acted) -> Iterator[WorkerReport]:
            yield WorkerReport([], 0.0)
            while True:
                had.append(len(process.books))
                yield outcomes(process, seconds_each=0.004)

        played = stage(life, values=range(9))
        played.at_a_pace(0.004)  # so two at a time, and a chunk of two ahead
        assert played.play() == list(range(9))
        assert had == [4, 4, 4, 3, 1]

    def test_tells_how_long_they_take(self, stage: Callable[..., Stage]) -> None:
        def life(process: Acted) -> Iterator[WorkerReport]:
            yield WorkerReport([], 0.0)
            while True:
                yield outcomes(process, seconds_each=0.004)

        played = stage(life, values=range(3))
        played.play()
        assert played.executor._pace.chunk() == (2, 2)

    def test_whatever_their_pace_one_by_one_with_limited_keys(
        self, stage: Callable[..., Stage]
    ) -> None:
        limit = KeyLimit(lambda value: "all", 3)
        played = stage(works, values=range(5), key_limit=limit)
        played.at_a_pace(0.002)
        assert played.play() == list(range(5))
        assert len(played.processes[0].sent) == 6
        assert not limit._inside

    def test_its_memory_is_twice_what_may_wait(self, stage: Callable[..., Stage]) -> None:
        for limit, size in [(1, 2), (MEGABYTE, 2), (5 * MEGABYTE, 10), (2**50, 2 * MEGABYTE)]:
            played = stage(works, limit_bytes=limit)
            played.play()
            assert played.processes[0].arena_size == size * MEGABYTE

    def test_they_are_numbered(self, stage: Callable[..., Stage]) -> None:
        played = stage(dies_of(0), works, values=[0])
        assert played.play() == [0]
        assert [one.name for one in played.processes] == ["aioqueue-images-1", "aioqueue-images-2"]

    @pytest.mark.parametrize("dtype", ["int64", None])
    def test_only_what_a_queue_keeps_is_copied_here(
        self, dtype: str | None, stage: Callable[..., Stage]
    ) -> None:
        played = stage(works, values=[], dtype=dtype)
        assert played.executor._copy is (bytearray if dtype is None else None)

    def test_its_failures_are_those_of_items(self, stage: Callable[..., Stage]) -> None:
        def life(process: Acted) -> Iterator[WorkerReport]:
            yield WorkerReport([], 0.0)
            message = pickle.dumps((pickle.dumps(ValueError("bad")), "there"))
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
        played = stage(works, values=[lambda: None, 1], on_error="skip")
        played.at_a_pace(0.001)
        assert played.play() == [1]
        (record,) = played.made.progress.quarantine.records()
        assert "while pickling the item" in record.traceback

    def test_what_it_was_asked_for_is_told_when_it_cannot_work(
        self, stage: Callable[..., Stage]
    ) -> None:
        def refuses(process: Acted) -> Iterator[WorkerReport]:
            refusal = pickle.dumps((pickle.dumps(ImportError("no such module")), "there"))
            yield WorkerReport([], 0.0, refusal)

        played = stage(refuses, refuses, values=[1])
        with pytest.raises(InvalidArgumentError, match=r"function: got 'abs'") as caught:
            played.executor._work(WorkerGauge("worker"))
        assert isinstance(caught.value.__cause__, ImportError)
        assert played.processes[0].events == ["end, at once: True"]
        with pytest.raises(NothingMore):  # the others have nothing to add
            played.executor._work(WorkerGauge("worker"))


class TestWhatLiesInSharedMemory:
    ARRAY = np.arange(20_000, dtype="int64")

    def blocks(self, process: Acted, examples: Any) -> tuple[bytes, Any]:
        process.arena = Arena(2**20)
        return pack(examples, process.arena, Allocator(2**20))

    def test_is_free_when_it_has_been_read(self, stage: Callable[..., Stage]) -> None:
        freed: list[Any] = []

        def life(process: Acted) -> Iterator[WorkerReport]:
            yield WorkerReport([], 0.0)
            message, blocks = self.blocks(process, (self.ARRAY, 2 * self.ARRAY))
            freed.append([start for start, _ in blocks])
            freed.append(process.freed)
            process.chunks.popleft()
            yield WorkerReport([(0, message, blocks, False)], 1.0)
            freed.append(process.freed)
            yield outcomes(process)

        played = stage(life, values="ab")
        with pytest.raises(NothingMore):
            played.executor._work(WorkerGauge("worker"))
        assert len(freed[0]) == 2
        assert freed[1:] == [[], freed[0]]

    def test_counts_with_the_message(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected: list[int] = []

        def life(process: Acted) -> Iterator[WorkerReport]:
            yield WorkerReport([], 0.0)
            message, blocks = self.blocks(process, (self.ARRAY,))
            expected.append(len(message) + self.ARRAY.nbytes)
            yield WorkerReport([(0, message, blocks, False)], 1.0)
            expected.append(0)
            yield WorkerReport([(1, pickle.dumps(()), [], False)], 1.0)

        played = stage(life, values="ab")
        sizes: list[int] = []
        deliver = played.executor._delivery.deliver

        def noting(prepared: Any) -> None:
            sizes.append(prepared.size)
            deliver(prepared)

        monkeypatch.setattr(played.executor._delivery, "deliver", noting)
        (array,) = played.play()
        assert np.array_equal(array, self.ARRAY)
        assert sizes == expected

    @pytest.mark.parametrize("dtype", [None, "int64"], ids=["kept", "copied"])
    def test_is_copied_for_a_queue_that_keeps_it(
        self, dtype: str | None, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Any other queue copies it by itself, so that once is enough."""

        def life(process: Acted) -> Iterator[WorkerReport]:
            yield WorkerReport([], 0.0)
            message, blocks = self.blocks(process, (self.ARRAY,))
            yield WorkerReport([(0, message, blocks, False)], 1.0)

        played, shared = stage(life, values="a", dtype=dtype), list[bool]()

        def look(prepared: Any) -> None:
            memory = np.frombuffer(played.processes[0].arena.memory, "uint8")
            shared.append(np.shares_memory(prepared.examples[0], memory))
            played.made.job.left(prepared)

        monkeypatch.setattr(played.executor._delivery, "deliver", look)
        played.play()
        assert shared == [dtype is not None]

    def test_is_free_also_if_it_cannot_be_read(self, stage: Callable[..., Stage]) -> None:
        freed: list[Any] = []

        def life(process: Acted) -> Iterator[WorkerReport]:
            yield WorkerReport([], 0.0)
            yield WorkerReport([(0, b"no pickle", [(64, 64)], False)], 1.0)
            freed.append(process.freed)
            process.chunks.popleft()
            yield outcomes(process)

        played = stage(life, values="ab", on_error="skip")
        assert played.play() == ["b"]
        assert freed == [[64]]
        (record,) = played.made.progress.quarantine.records()
        assert "while unpickling what the function returned" in record.traceback


class TestAProcessThatDies:
    def test_what_it_had_is_prepared_again_and_first(
        self, stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
    ) -> None:
        played = stage(dies_of(1), works, values=range(6))
        played.at_a_pace(0.002)  # so five at a time
        assert played.play() == list(range(6))
        one, other = played.processes
        assert one.events == ["exit code", "end, at once: True"]
        first = pickle.loads(other.sent[1])[1]
        assert [number for number, *_ in first] == list(range(5))
        assert played.made.progress.statistics().workers_died == 1
        assert caplog.messages == [
            "worker process aioqueue-images-1 was killed by SIGKILL (out of memory?); 6 items that"
            " it had are prepared again"
        ]

    def test_while_it_starts(
        self, stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
    ) -> None:
        played = stage(dies_at_once, works, values=[5])
        assert played.play() == [5]
        assert played.made.progress.statistics().workers_died == 1
        assert "(out of memory?) while it started; 0 items" in caplog.messages[0]

    def test_an_item_that_three_have_died_of(self, stage: Callable[..., Stage]) -> None:
        played = stage(*[dies_of(1)] * 3, works, values=range(3), on_error="skip")
        assert played.play() == [0, 2]
        (record,) = played.made.progress.quarantine.records()
        assert (record.item, record.attempts) == (1, 3)
        assert "3 worker processes have died of one item; the last one was" in record.traceback
        assert played.made.window.items == 0
        assert played.made.progress.statistics().workers_died == 3

    def test_which_ends_all_if_none_may_be_skipped(self, stage: Callable[..., Stage]) -> None:
        played = stage(*[dies_of(0)] * 3, values=[0], exitcode=-11)
        with pytest.raises(WorkerDiedError, match=r"the last one was killed by SIGSEGV") as caught:
            played.executor._work(WorkerGauge("worker"))
        assert caught.value.exitcode == -11

    def test_its_items_give_their_places_to_others(self, stage: Callable[..., Stage]) -> None:
        limit = KeyLimit(lambda value: "all", 1)
        played = stage(*[dies_of(1)] * 3, works, values=range(3), on_error="skip", key_limit=limit)
        assert played.play() == [0, 2]
        assert not limit._inside

    def test_ten_in_vain(self, stage: Callable[..., Stage]) -> None:
        played = stage(*[dies_at_once] * 20, values=[0])
        with pytest.raises(WorkerDiedError, match=r"-10 .* as did 9 before it") as caught:
            played.executor._work(WorkerGauge("worker"))
        assert caught.value.exitcode == -9
        assert len(played.processes) == 10
        with pytest.raises(NothingMore):
            played.executor._work(WorkerGauge("worker"))

    @pytest.mark.parametrize("how", ["a stop", "the end of the program"])
    def test_of_us(self, how: str, stage: Callable[..., Stage]) -> None:
        def life(process: Acted) -> Iterator[WorkerReport]:
            yield WorkerReport([], 0.0)
            if how == "a stop":
                played.made.job.stop()
            else:
                played.executor.start_no_more()

        played = stage(life, values=[1])
        assert played.play() == []
        (process,) = played.processes
        assert process.events[-1] == "end, at once: True"
        assert "exit code" not in process.events
        assert ("kill" in process.events) == (how == "a stop")
        assert played.made.progress.statistics().workers_died == 0


class TestAStop:
    def test_of_threads_that_have_nothing_to_do(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        played, ended = stage(works), list[BaseException]()
        played.made.job.source_ended = False  # something may come, by what they know
        came, waits = played.executor._inbox._work_came, threading.Event()
        wait = came.wait

        def noted(seconds: float | None) -> bool:
            waits.set()  # the lock is held: nobody can tell anything before we wait
            return wait(seconds)

        monkeypatch.setattr(came, "wait", noted)

        def work() -> None:
            try:
                played.executor._work(WorkerGauge("worker"))
            except NothingMore as end:
                ended.append(end)

        thread = threading.Thread(target=work)
        thread.start()
        assert waits.wait(PATIENCE)
        played.made.job.stop()
        thread.join(PATIENCE)
        assert len(ended) == 1
        assert played.processes[0].events == ["kill", "end, at once: True"]

    def test_at_the_end_of_the_program(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order: list[str] = []
        played = stage(works)
        process = played.executor._started_process(WorkerGauge("worker"))
        monkeypatch.setattr(worker, "_owners", {played.executor})

        def no_more() -> None:
            assert played.executor._is_over()  # nothing is replaced
            assert not played.processes[0].events
            order.append("no more")

        monkeypatch.setattr(worker, "no_more", no_more)
        worker._end_all()
        assert order == ["no more"]
        assert played.processes[0].events == ["kill at exit"]
        with pytest.raises(NothingMore):
            played.executor._started_process(WorkerGauge("worker"))
        assert played.executor._all() == [process]


class TestTheStart:
    @pytest.mark.parametrize("exitcode", [None, 3])
    def test_that_fails_for_all(
        self, exitcode: int | None, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        played = stage(values=[1])

        def fail(name: str, arena_size: int, gauge: WorkerGauge) -> None:
            raise CannotStartError("there is no server", exitcode)

        monkeypatch.setattr(parent, "_Process", fail)
        with pytest.raises(WorkerDiedError) as caught:
            played.executor._work(WorkerGauge("worker"))
        message = "worker process aioqueue-images-1 cannot be started: there is no server"
        assert str(caught.value).startswith(message)
        assert ("its error output says more" in str(caught.value)) == (exitcode is not None)
        assert caught.value.exitcode == (exitcode or 0)
        assert isinstance(caught.value.__cause__, CannotStartError)
        with pytest.raises(NothingMore):
            played.executor._work(WorkerGauge("worker"))

    def test_that_is_too_late(self, stage: Callable[..., Stage]) -> None:
        played = stage(works, values=[1])
        played.made.job.stop()
        assert played.play() == []
        assert not played.processes

    def test_that_a_stop_has_missed(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        played = stage(works, values=[1])
        build = played._process

        def halfway(name: str, arena_size: int, gauge: WorkerGauge) -> Acted:
            played.made.job._halt()
            return build(name, arena_size, gauge)

        monkeypatch.setattr(parent, "_Process", halfway)
        assert played.play() == []
        assert played.processes[0].events == ["kill", "end, at once: True"]

    def test_in_what_imports_the_main_module(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "is_importing_main", lambda: True)
        played = stage(works, values=[1])
        with pytest.raises(RuntimeError, match="the main module is being imported"):
            played.executor._work(WorkerGauge("worker"))
        with pytest.raises(NothingMore):  # one of them tells it for all
            played.executor._work(WorkerGauge("worker"))
        assert not played.processes

    def test_of_a_function_that_cannot_be_sent(self) -> None:
        job = Made(limit_bytes=1, function=lambda item: item).job
        with pytest.raises(InvalidArgumentError, match=r"^function: got .*cannot be pickled"):
            ProcessExecutor(job)

    def test_who_is_needed(self) -> None:
        job = Made(3, limit_bytes=1).job
        executor = ProcessExecutor(job)
        ops = executor.enqueue_ops()
        names = [getattr(op, "func", op).__name__ for op in ops]
        assert names == [*["prepare_items"] * 3, "take_items"]
        made = Made(3, limit_bytes=1, source=async_numbers(1))
        assert len(ProcessExecutor(made.job).enqueue_ops()) == 5


class Started:
    """Stands for what multiprocessing knows of a process, which may not end before it is killed."""

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
    """Its shared memory and its pipe are real, and the other ends of both are here."""

    def started(self, monkeypatch: pytest.MonkeyPatch, started: Started) -> Any:
        def build(*, target: Any, args: Any, name: str, daemon: bool) -> Started:
            its_work, self.theirs, self.kept, _ = args
            assert its_work is work
            assert daemon
            self.name = name
            self.other = Channel(self.theirs._socket.dup())  # the one that it had is closed here
            return started

        monkeypatch.setattr(worker, "StartedProcess", build)
        return parent._Process("mine", 4096, WorkerGauge("worker"))

    def test_is_told_to_end_and_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self.started(monkeypatch, started := Started())
        assert (self.name, process.name) == ("mine", "mine (pid 77)")
        assert self.theirs._socket.fileno() == -1
        assert self.kept is process.arena
        process.end(at_once=False)
        assert started.events == ["start", "join for a while", "close"]
        assert self.other.receive() == b""
        with pytest.raises(EOFError):
            self.other.receive()
        assert process.arena.memory.closed
        self.other.close()

    def test_is_killed_if_that_takes_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self.started(monkeypatch, started := Started(ends=False))
        process.end(at_once=False)
        assert started.events == ["start", "join for a while", "kill", "join", "close"]
        self.other.close()

    def test_or_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self.started(monkeypatch, started := Started())
        process.end(at_once=True)
        assert started.events == ["start", "kill", "join", "close"]
        with pytest.raises(EOFError):
            self.other.receive()
        self.other.close()

    @pytest.mark.parametrize("ends", [True, False])
    def test_has_an_exit_code(self, ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self.started(monkeypatch, started := Started(ends=ends))
        assert not process.books.has_begun
        process.arena.begin()
        assert process.exitcode() == 5
        assert process.books.has_begun
        killed = [] if ends else ["kill", "join"]
        assert started.events == ["start", "join for a while", *killed]
        process.end(at_once=True)
        assert started.events == ["start", "join for a while", *killed, "close"]
        self.other.close()

    def test_at_the_end_of_the_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self.started(monkeypatch, started := Started())
        process.kill_at_exit()
        assert started.events == ["start", "disown", "kill"]
        monkeypatch.setattr(worker, "is_ending", lambda: True)
        process.end(at_once=True)  # multiprocessing may be about to join it
        assert started.events == ["start", "disown", "kill", "kill", "join"]
        started.close()
        self.other.close()

    def test_may_be_killed_when_it_is_gone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self.started(monkeypatch, started := Started())
        process.end(at_once=True)

        def refuse() -> None:
            raise ValueError("process object is closed")

        monkeypatch.setattr(started, "kill", refuse)
        process.kill()
        self.other.close()

    def test_messages_both_ways(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self.started(monkeypatch, Started())
        process.send(b"to it")
        assert self.other.receive() == b"to it"
        report = WorkerReport([(1, b"x", [], False)], 0.5)
        self.other.send(pickle.dumps(report))
        assert process.receive() == report
        self.other.close()
        assert process.receive() is None
        process.send(b"it is gone")
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
