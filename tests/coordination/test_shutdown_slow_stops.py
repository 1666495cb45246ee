"""A slow stop logs the workers that it waits for; stragglers are named with their places.

The tests control the clock, and record how long joins would wait.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import aioqueue
from aioqueue import StillRunningError, inputs, sync
from aioqueue.compat.v1 import train
from aioqueue.coordination import aio as aio_module
from aioqueue.coordination import coordinator_core as core_module
from aioqueue.coordination.coordinator_core import CoordinatorCore
from aioqueue.coordination.shutdown import SLOW_STOP
from aioqueue.telemetry.explain import stacks
from tests.kit.worlds import PATIENCE, StillClock, TaskWorld, core_of, ctrl_c, spin_until

HERE = re.escape(__file__)


class Stuck:
    """A thread that is in a call and ignores the stop."""

    def __init__(self, name: str = "decoder") -> None:
        self.go = threading.Event()
        self.is_there = threading.Event()
        self.thread = threading.Thread(target=self.decode, name=name, daemon=True)
        self.thread.start()
        assert self.is_there.wait(PATIENCE)

    def decode(self) -> None:
        self.is_there.set()
        self.go.wait(PATIENCE)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    one = Stuck()
    yield one
    one.go.set()
    one.thread.join(PATIENCE)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StillClock:
    one = StillClock()
    monkeypatch.setattr(core_module, "monotonic", one)
    return one


class TestWarning:
    def test_after_five_seconds(
        self, stuck: Stuck, clock: StillClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        core = CoordinatorCore(None)
        core.request_stop()
        waits = core.joining([stuck.thread], 120.0, False)
        assert next(waits)[0].is_open
        clock.now += 1
        gate, seconds = next(waits)
        assert (gate.is_open, seconds, caplog.messages) == (False, SLOW_STOP - 1, [])
        clock.now += SLOW_STOP
        gate, seconds = next(waits)
        assert (gate.is_open, seconds) == (False, 120 - 1 - SLOW_STOP)
        waits.close()
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("aioqueue", logging.WARNING)
        assert record.getMessage().startswith("1 worker still running 5 s after the stop")
        assert "waiting for 120 s in all" in record.getMessage()
        place = rf"\n  decoder in .*, called from {HERE}:\d+ Stuck\.decode$"
        assert re.search(place, record.getMessage())

    def test_none_if_all_have_ended(
        self, stuck: Stuck, clock: StillClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        core = CoordinatorCore(None)
        core.request_stop()
        waits = core.joining([stuck.thread], 120.0, False)
        next(waits)
        gate, _ = next(waits)
        stuck.go.set()
        assert gate.wait_blocking(PATIENCE), "that is what the join wakes for, and no timer"
        assert list(waits) == []
        assert caplog.messages == []

    def test_none_if_the_grace_is_shorter(
        self, stuck: Stuck, clock: StillClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        core = CoordinatorCore(None)
        core.request_stop()
        waits = core.joining([stuck.thread], SLOW_STOP, False)
        next(waits)
        assert next(waits)[1] == SLOW_STOP
        clock.now += SLOW_STOP
        with pytest.raises(ExceptionGroup):
            list(waits)
        assert caplog.messages == []

    @pytest.mark.parametrize("leave", ["block", "join"])
    def test_of_a_real_stop(
        self,
        stuck: Stuck,
        leave: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(core_module, "SLOW_STOP", 0.0)

        def finish() -> None:
            spin_until(lambda: caplog.messages)
            stuck.go.set()

        release = threading.Thread(target=finish)
        release.start()
        if leave == "block":
            with sync.Coordinator() as coord:
                coord.register(stuck.thread)
        else:
            coord = sync.Coordinator()
            coord.request_stop()
            coord.join([stuck.thread])
        release.join()
        assert "decoder in" in caplog.messages[0]

    async def test_of_a_task(
        self,
        task_world: TaskWorld,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(core_module, "SLOW_STOP", 0.0)
        begun: list[bool] = []

        def ours() -> list[str]:
            """In debug mode, asyncio warns of steps that take long, too."""
            return [one.message for one in caplog.records if one.name == "aioqueue"]

        async def fetch() -> None:
            begun.append(True)
            while not ours():
                await task_world.tick()

        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.LooperTask(None, fetch))
            await task_world.until(lambda: begun)
        assert re.search(r"aioqueue-fetch in .*:\d+ .*tick$", ours()[0])

    def test_of_a_runner_that_is_cancelled(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(aio_module, "SLOW_STOP", 0.0)
        monkeypatch.setattr(aio_module, "DEFAULT_GRACE", 0.0)
        there, go = threading.Event(), threading.Event()

        def decode() -> None:
            there.set()
            go.wait(PATIENCE)

        async def main() -> None:
            runner = aioqueue.QueueRunner(aioqueue.FIFOQueue(1, name="images"), [decode])
            running = asyncio.create_task(runner.run())
            while not there.is_set():
                await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(ExceptionGroup) as caught:
                await running
            (error,) = caught.value.exceptions
            assert isinstance(error, StillRunningError)
            assert error.workers == ("aioqueue-decode-0",)

        try:
            asyncio.run(main())
        finally:
            go.set()
        assert re.search(rf"decode-0 in .*{HERE}:\d+ .*decode$", caplog.messages[0])


class TestStragglers:
    def test_are_named_with_their_place(self, stuck: Stuck) -> None:
        coord = sync.Coordinator()
        coord.request_stop()
        with pytest.raises(ExceptionGroup) as caught:
            coord.join([stuck.thread], stop_grace_period=0)
        (error,) = caught.value.exceptions
        assert isinstance(error, StillRunningError)
        assert error.workers == ("decoder",)
        assert re.search(rf"\n  decoder in .*{HERE}:\d+ Stuck\.decode$", str(error))

    def test_have_one_line_each(self, stuck: Stuck) -> None:
        other, coord = Stuck("reader"), sync.Coordinator()
        coord.request_stop()
        with pytest.raises(ExceptionGroup) as caught:
            coord.join([stuck.thread, other.thread], stop_grace_period=0)
        place = rf"in .*, called from {HERE}:\d+ Stuck\.decode"
        text = rf".*: decoder reader\n  decoder {place}\n  reader {place}"
        assert re.fullmatch(text, str(caught.value.exceptions[0]))
        other.go.set()
        other.thread.join(PATIENCE)

    def test_in_compat_the_places_are_the_cause(self, stuck: Stuck) -> None:
        coord = train.Coordinator()
        coord.request_stop()
        with pytest.raises(RuntimeError) as caught:
            coord.join([stuck.thread], stop_grace_period_secs=0)
        assert str(caught.value) == "Coordinator stopped with threads still running: decoder"
        assert re.search(rf"{HERE}:\d+ Stuck\.decode$", str(caught.value.__cause__))


class TestPlaces:
    def test_of_a_thread_that_is_not_running(self) -> None:
        assert stacks.of_thread(threading.Thread()) == ""

    def test_of_a_call_of_aioqueue_is_the_line_of_the_user(self) -> None:
        place = stacks.of_thread(threading.current_thread())
        assert re.search(rf"^\S*{HERE}:\d+ .*the_line_of_the_user$", place)

    def test_of_a_worker_that_waits_at_a_queue(self) -> None:
        queue = sync.FIFOQueue(1)

        def work() -> None:
            with suppress(aioqueue.OutOfRangeError):
                queue.dequeue()

        thread = threading.Thread(target=work)
        thread.start()
        spin_until(lambda: queue.statistics().waiting_dequeues)
        place = stacks.of_thread(thread)
        queue.close()
        thread.join()
        assert re.search(rf"^\S*{HERE}:\d+ .*work$", place)

    def test_where_python_does_not_know_the_frame(
        self, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr("sys._current_frames")
        assert stacks.of_thread(stuck.thread) == ""

    def test_of_a_task_that_awaits(self) -> None:
        async def inner() -> None:
            await asyncio.sleep(PATIENCE)

        async def outer() -> None:
            await inner()

        async def main() -> None:
            task = asyncio.create_task(outer())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            place = stacks.of_task(task)
            assert re.search(rf"tasks\.py:\d+ sleep, called from {HERE}:\d+ .*inner$", place)
            task.cancel()

        asyncio.run(main())

    @pytest.mark.parametrize("given", [None, 3, asyncio.Future])
    def test_of_an_object_without_code(self, given: Any) -> None:
        assert stacks.of_task(given) == ""


class TestItems:
    def test_the_warning_names_the_item(
        self, clock: StillClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        go = threading.Event()

        def decode(number: int) -> int:
            go.wait(PATIENCE)
            return number

        queue = sync.FIFOQueue(8)
        coord = sync.Coordinator()
        (thread,) = coord.start(inputs.prepare([37], decode, into=queue, workers=1))
        spin_until(lambda: "decode" in stacks.of_thread(thread))
        coord.request_stop()
        waits = core_of(coord).joining(None, 120.0, False)
        next(waits)
        next(waits)
        clock.now += SLOW_STOP
        next(waits)
        text = caplog.messages[-1]
        item = r"at item 37 \(epoch 0, index 0\) for \d+\.\d s"
        assert re.search(rf"\n  {thread.name} {item} in .*\.decode", text)
        go.set()
        thread.join(PATIENCE)
        waits.close()
        coord.join()

    def test_a_join_that_ctrl_c_ended_names_running_workers(
        self, stuck: Stuck, caplog: pytest.LogCaptureFixture
    ) -> None:
        coord = sync.Coordinator()
        coord.register(stuck.thread)
        coord.request_stop()
        joins = [one for one in threading.enumerate() if one.name == "aioqueue-join"]
        with pytest.raises(KeyboardInterrupt), ctrl_c(lambda: is_joined(len(joins))):
            coord.join()
        text = caplog.messages[-1]
        assert text.startswith("the join was interrupted, with 1 worker still running:")
        assert re.search(rf"decoder in .*called from {HERE}:\d+ Stuck\.decode", text)


def is_joined(before: int) -> bool:
    """Return whether a call waits for the end of a thread."""
    return sum(one.name == "aioqueue-join" for one in threading.enumerate()) > before
