"""What users read of a failure: their own lines, and one line that says what failed."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import random
import re
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

import aioqueue
from aioqueue import inputs, sync
from aioqueue.base.tracebacks import (
    PACKAGE_FOLDER,
    SHORTENED,
    FailureNote,
    reraise,
    shorten,
    title_of,
)
from aioqueue.inputs import items, numbers
from aioqueue.testing import wait_until_waiting

ROOT = Path(PACKAGE_FOLDER).parent


def bad_pixel() -> NoReturn:
    raise ValueError("bad pixel")


def decode(item: int) -> int:
    if item == 5:
        bad_pixel()
    return item


async def decode_async(item: int) -> int:
    return decode(item)


def frames_of(error: BaseException) -> list[str]:
    """The functions in the traceback of an exception, outermost first."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def ours_in(error: BaseException) -> list[str]:
    """The lines of our own files that Python would print of an exception."""
    shown = "".join(traceback.format_exception(error))
    return [line for line in shown.splitlines() if f'File "{PACKAGE_FOLDER}' in line]


def caught(kind: type[BaseException], call: Callable[[], object]) -> Any:
    """What a call raises."""
    try:
        call()
    except kind as error:
        return error
    pytest.fail(f"no {kind.__name__}")


def by_a_pipeline(**options: Any) -> None:
    for epoch in numbers(20).prepare(decode, workers=2).batch(4).epochs(1, **options):
        list(epoch)


def by_a_pipeline_alone() -> None:
    for _ in numbers(20).prepare(decode, workers=2).batch(4):
        pass


def by_a_filter(**options: Any) -> None:
    for epoch in numbers(20).filter(decode).batch(4).epochs(1, **options):
        list(epoch)


def by_tasks(**options: Any) -> None:
    async def main() -> None:
        async for epoch in numbers(20).prepare(decode_async).batch(4).epochs(1, **options):
            async for _ in epoch:
                pass

    asyncio.run(main())


def by_a_runner(**options: Any) -> None:
    queue = sync.FIFOQueue(3)
    with sync.Coordinator(**options) as coord:
        coord.start(sync.QueueRunner(queue, [bad_pixel]))
        coord.wait_for_stop()


def by_a_runner_of_tasks(**options: Any) -> None:
    async def fail() -> None:
        bad_pixel()

    async def main() -> None:
        queue = aioqueue.FIFOQueue(3)
        async with aioqueue.Coordinator(**options) as coord:
            coord.start(aioqueue.QueueRunner(queue, [fail]))
            await coord.wait_for_stop()

    asyncio.run(main())


def by_a_join(**options: Any) -> None:
    coord = sync.Coordinator(**options)
    threads = sync.QueueRunner(sync.FIFOQueue(3), [bad_pixel]).create_threads(
        coord=coord, start=True
    )
    coord.join(threads)


def by_a_join_of_tasks(**options: Any) -> None:
    async def main() -> None:
        coord = aioqueue.Coordinator(**options)
        task = asyncio.create_task(asyncio.to_thread(bad_pixel))
        await coord.join([task])

    asyncio.run(main())


def by_asking(**options: Any) -> None:
    coord = sync.Coordinator(**options)
    with coord.stop_on_exception():
        bad_pixel()
    coord.raise_requested_exception()


def by_the_block(**options: Any) -> None:
    with sync.Coordinator(**options):
        bad_pixel()


WAYS = (
    by_a_pipeline,
    by_a_filter,
    by_tasks,
    by_a_runner,
    by_a_runner_of_tasks,
    by_a_join,
    by_a_join_of_tasks,
    by_asking,
    by_the_block,
)


@pytest.fixture
def full() -> Iterator[None]:
    aioqueue.full_tracebacks(True)
    yield
    aioqueue.full_tracebacks(False)


class TestTracebacks:
    @pytest.mark.parametrize("way", [*WAYS, by_a_pipeline_alone])
    def test_have_no_line_of_ours(self, way: Callable[[], None]) -> None:
        group = caught(ExceptionGroup, way)
        assert ours_in(group) == []
        (failure,) = group.exceptions
        assert frames_of(failure)[-1] == "bad_pixel"
        assert frames_of(group)[:2] == ["caught", way.__name__]

    @pytest.mark.usefixtures("full")
    @pytest.mark.parametrize("way", [by_a_pipeline, by_a_runner_of_tasks])
    def test_have_all_of_them_on_request(self, way: Callable[[], None]) -> None:
        assert len(ours_in(caught(ExceptionGroup, way))) > 4

    def test_of_a_batcher_are_those_of_the_function(self) -> None:
        def predict(values: list[int]) -> list[int]:
            return [decode(value) for value in values]

        def ask() -> None:
            with sync.Batcher(predict, max_batch=1, max_wait=0) as batcher:
                batcher(5)

        failure = caught(ValueError, ask)
        assert ours_in(failure) == []
        assert frames_of(failure)[:2] == ["caught", "ask"]
        assert frames_of(failure)[-2:] == ["decode", "bad_pixel"]

    def test_of_the_end_of_a_queue_show_its_cause(self) -> None:
        queue = sync.FIFOQueue(3)

        def consume() -> None:
            for _ in queue:
                pass

        async def consume_batches() -> None:
            async for _ in queue.aio.batches(2):
                pass

        runner = sync.QueueRunner(queue, [bad_pixel])
        for thread in runner.create_threads(start=True):
            thread.join()
        for consuming in (consume, lambda: asyncio.run(consume_batches())):
            end = caught(aioqueue.OutOfRangeError, consuming)
            assert ours_in(end) == []
            assert frames_of(end.__cause__) == ["bad_pixel"]

    @pytest.mark.parametrize("what", ["elements", "batches"])
    def test_of_a_loop_over_a_queue_that_a_stop_ends(self, what: str) -> None:
        queue = sync.FIFOQueue(3)
        ended: list[BaseException] = []

        def consume() -> None:
            try:
                for _ in queue if what == "elements" else queue.batches(2):
                    pass
            except aioqueue.CancelledError as error:
                ended.append(error)

        with sync.Coordinator() as coord:
            thread = threading.Thread(target=consume)
            thread.start()
            coord.register(thread)
            wait_until_waiting(queue, dequeues=1)
        (error,) = ended
        assert ours_in(error) == []

    def test_of_a_stream(self) -> None:
        def run() -> None:
            with sync.Coordinator() as coord:
                queue = sync.FIFOQueue(8)
                coord.start(inputs.prepare(range(20), decode, into=queue, workers=1))
                for _ in inputs.batch(queue, 2, coord=coord):
                    pass

        group = caught(ExceptionGroup, run)
        assert ours_in(group) == []
        assert [frames_of(one)[-1] for one in group.exceptions] == ["bad_pixel"]

    @pytest.mark.slow
    def test_of_processes(self) -> None:
        group = caught(
            ExceptionGroup, lambda: list(items(range(9)).prepare(decode, where="process"))
        )
        assert ours_in(group) == []
        assert "in bad_pixel" in str(group.exceptions[0].__cause__)

    def test_a_mistake_of_ours_is_still_found(self) -> None:
        """Where nothing of the user's is left, and the code did not mean to raise."""
        program = compile(
            "def move():\n    return 1 // 0\n", f"{PACKAGE_FOLDER}{os.sep}made_up.py", "exec"
        )
        made: dict[str, Any] = {}
        exec(program, made)
        error = caught(ZeroDivisionError, made["move"])
        error.__traceback__ = error.__traceback__.tb_next
        shorten(error)
        assert frames_of(error) == ["move"]

    def test_of_a_class_that_refuses_to_be_written_to(self) -> None:
        @dataclass(frozen=True)
        class FrozenError(Exception):
            number: int

        def fail() -> None:
            raise FrozenError(3)

        def run() -> None:
            with sync.Coordinator() as coord:
                coord.start(sync.QueueRunner(sync.FIFOQueue(3), [fail]))
                coord.wait_for_stop()

        group = caught(ExceptionGroup, run)
        assert ours_in(group) == []
        assert "failed: FrozenError: 3" in str(group)

    def test_any_chain_keeps_what_is_not_ours(self) -> None:
        """The generator: calls of ours, of a library and of the user's, in any order."""
        draw = random.Random(3)
        places = {
            "ours": f"{PACKAGE_FOLDER}{os.sep}x.py",
            "user": "/home/me/x.py",
            "library": os.__file__,
        }
        for _ in range(50):
            kinds = draw.choices(list(places), k=draw.randint(1, 6))
            call: Any = bad_pixel
            for kind in reversed(kinds):
                made: dict[str, Any] = {"call": call}
                exec(compile(f"def {kind}():\n    call()\n", places[kind], "exec"), made)
                call = made[kind]
            error = caught(ValueError, call)
            whole = [name for name in frames_of(error) if name != "ours"]
            shorten(error)
            shown = frames_of(error)
            assert "ours" not in shown
            assert shown.count("user") == kinds.count("user")
            assert shown[-1] == "bad_pixel"
            is_between = re.search("ours (library )+ours", " ".join(kinds))
            assert (shown == whole) is (is_between is None)


class TestTitles:
    def test_name_the_stage_and_the_item(self) -> None:
        group = caught(ExceptionGroup, by_a_pipeline)
        assert group.message == "decode failed on item 5: ValueError: bad pixel"
        assert "while preparing item 5 (epoch 0, index 5)" in group.exceptions[0].__notes__

    def test_name_the_stage_of_a_function_without_workers(self) -> None:
        group = caught(ExceptionGroup, by_a_filter)
        assert group.message == "filter decode failed on item 5: ValueError: bad pixel"

    def test_name_the_source(self) -> None:
        def source() -> Iterator[int]:
            yield 1
            bad_pixel()

        pipeline = inputs.from_iterable(source).prepare(decode)
        assert caught(ExceptionGroup, lambda: list(pipeline)).message == (
            "the source failed: ValueError: bad pixel"
        )

    def test_name_the_worker(self) -> None:
        group = caught(ExceptionGroup, by_a_runner)
        assert group.message == "aioqueue-bad_pixel-0 failed: ValueError: bad pixel"

    def test_count_further_failures(self) -> None:
        coord = sync.Coordinator()
        for number in range(3):
            coord.request_stop(ValueError(number))
        group = caught(ExceptionGroup, coord.join)
        assert group.message.endswith(" failed: ValueError: 0, and 2 more failures")

    def test_are_one_line_of_bounded_length(self) -> None:
        title = title_of([ValueError("x" * 1000 + "\n more"), KeyError()])
        assert title.startswith("a worker failed: ValueError: xxx")
        assert title.endswith("..., and 1 more failure")
        assert len(title) < 300

    def test_notes_arrive_as_plain_strings(self) -> None:
        arrived = pickle.loads(pickle.dumps(FailureNote("in worker x", "x failed")))
        assert (arrived, type(arrived)) == ("in worker x", str)


class TestNames:
    def test_queues_and_workers_are_named_after_the_function(self) -> None:
        names: set[str] = set()

        def same(item: int) -> int:
            names.add(threading.current_thread().name)
            return item

        pipeline = numbers(8).prepare(same, workers=1).prepare(same, workers=1)
        pipeline = pipeline.prepare(lambda item: same(item), workers=1).prefetch()
        with pipeline.monitor() as monitor:
            list(pipeline)
        assert [queue.name for queue in monitor.history[-1].queues] == [
            "same",
            "same-2",
            "prepare",
            "prefetch",
        ]
        assert names == {"aioqueue-same-0", "aioqueue-same-2-0", "aioqueue-prepare-0"}

    def test_those_of_what_is_mixed_in_as_well(self) -> None:
        other = numbers(4).prepare(decode_none)
        pipeline = numbers(4).prepare(decode_none).mix(other)
        with pipeline.monitor() as monitor:
            list(pipeline)
        assert sorted(queue.name for queue in monitor.history[-1].queues) == [
            "decode_none",
            "decode_none-2",
        ]


def decode_none(item: int) -> int:
    return item


class TestSingle:
    @pytest.mark.parametrize("way", WAYS)
    def test_failure_is_raised_as_itself(self, way: Callable[..., None]) -> None:
        failure = caught(ValueError, lambda: way(raise_single=True))
        assert str(failure) == "bad pixel"
        assert ours_in(failure) == []
        assert frames_of(failure)[-1] == "bad_pixel"
        assert frames_of(failure).count("bad_pixel") == 1
        assert way.__name__ in frames_of(failure)
        assert failure.__notes__
        assert failure.__context__ is None
        assert failure.__cause__ is None

    @pytest.mark.parametrize("is_entered", [True, False])
    def test_failure_is_the_same_object_with_its_cause_and_context(self, is_entered: bool) -> None:
        error = KeyError("x")
        error.__cause__ = OSError("why")
        error.__context__ = ValueError("meanwhile")

        def run() -> None:
            coord = sync.Coordinator(raise_single=True)
            if is_entered:
                with coord:
                    coord.request_stop(error)
                    raise aioqueue.OutOfRangeError("a clean stop")
            coord.request_stop(error)
            coord.join()

        assert caught(KeyError, run) is error
        assert str(error.__cause__) == "why"
        assert str(error.__context__) == "meanwhile"

    def test_several_are_a_group(self) -> None:
        coord = sync.Coordinator(raise_single=True)
        coord.request_stop(ValueError(1))
        coord.request_stop(ValueError(2))
        assert len(caught(ExceptionGroup, coord.join).exceptions) == 2

    def test_join_within_the_block_is_reported_once(self) -> None:
        async def main() -> None:
            async with aioqueue.Coordinator(raise_single=True) as coord:
                coord.request_stop(error)
                await coord.join()

        def run() -> None:
            with sync.Coordinator(raise_single=True) as coord:
                coord.request_stop(error)
                coord.join()

        for way in (run, lambda: asyncio.run(main())):
            error = KeyError("x")
            assert caught(KeyError, way) is error
            assert len(error.__notes__) == 1

    def test_a_second_join_has_one_of_its_own(self) -> None:
        coord = sync.Coordinator(raise_single=True)
        coord.request_stop(KeyError("x"))
        first, second = caught(KeyError, coord.join), caught(KeyError, coord.join)
        assert first is not second
        assert frames_of(first) == frames_of(second)

    def test_both_faces_do_so(self) -> None:
        coord = aioqueue.Coordinator(raise_single=True).sync
        coord.request_stop(KeyError("x"))
        caught(KeyError, coord.join)

    def test_wrong_arguments(self) -> None:
        for make in (sync.Coordinator, aioqueue.Coordinator, numbers(3).epochs):
            with pytest.raises(aioqueue.InvalidArgumentError, match="raise_single: got 1; expec"):
                make(raise_single=1)  # type: ignore[arg-type]

    @pytest.mark.parametrize("way", ["pipeline", "runner"])
    def test_nothing_is_left_of_what_the_failure_has_seen(self, way: str) -> None:
        known: list[Any] = []

        class Data:
            pass

        def run() -> None:
            data = Data()
            known.append(weakref.ref(data))
            if way == "pipeline":
                epochs = numbers(20).prepare(decode, workers=2).epochs(1, raise_single=True)
                with epochs:
                    for epoch in epochs:
                        list(epoch)
            queue = sync.FIFOQueue(3)
            with sync.Coordinator(raise_single=True) as coord:
                coord.start(sync.QueueRunner(queue, [bad_pixel]))
                coord.wait_for_stop()

        gc.collect()
        gc.disable()
        try:
            for _ in range(2):
                caught(ValueError, run)
            assert [one() for one in known] == [None, None]
        finally:
            gc.enable()


def test_raising_again_adds_nothing() -> None:
    error = KeyError("x")

    def run() -> None:
        with SHORTENED:
            reraise(error)

    try:
        raise OSError("handled just now")
    except OSError:
        assert caught(KeyError, run) is error
    assert error.__context__ is None
    assert frames_of(error) == ["caught", "run"]


INTERRUPTED = """
import os, signal, sys, threading
from aioqueue import sync
from aioqueue.inputs import numbers

begun = threading.Event()
queue = sync.FIFOQueue(4)

def wait(item=None):
    begun.set()
    threading.Event().wait(0.05)
    return item

def strike():
    begun.wait()
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(10)
    os.kill(os.getpid(), signal.SIGINT)  # CPython misses one just before it sleeps at a lock

threading.Thread(target=strike, daemon=True).start()
if sys.argv[1] == "pipeline":
    for batch in numbers(10**6).prepare(wait, workers=2).batch(4):
        pass
elif sys.argv[1] == "block":
    with sync.Coordinator() as coord:
        coord.start(sync.QueueRunner(queue, [wait]))
        for element in queue:
            pass
elif sys.argv[1] == "join":
    coord = sync.Coordinator()
    runner = sync.QueueRunner(queue, [threading.Event().wait])
    threads = runner.create_threads(coord=coord, start=True, daemon=True)
    begun.set()
    coord.join(threads)
else:
    begun.set()
    queue.dequeue()
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["pipeline", "block", "join", "dequeue"])
def test_ctrl_c_prints_ten_lines_at_most(way: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(INTERRUPTED)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, str(program), way],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=50,
    )
    lines = ran.stderr.splitlines()
    assert lines[-1] == "KeyboardInterrupt"
    assert len(lines) <= 10, ran.stderr
    assert PACKAGE_FOLDER not in ran.stderr


@pytest.mark.slow
def test_the_environment_shows_all() -> None:
    program = "from aioqueue.inputs import numbers\nlist(numbers(3).prepare(lambda item: 1 / item))"
    for full in ("", "1"):
        ran = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "AIOQUEUE_FULL_TRACEBACKS": full},
            timeout=50,
        )
        assert "prepare failed on item 0: ZeroDivisionError" in ran.stderr
        assert (PACKAGE_FOLDER in ran.stderr) is bool(full)
