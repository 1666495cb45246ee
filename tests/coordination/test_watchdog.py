"""The watchdog warns once per hang, with an explanation, and never during progress."""

from __future__ import annotations

import gc
import logging
import threading
from typing import Any, ClassVar

import pytest

import aioqueue
from aioqueue import InvalidArgumentError, sync
from aioqueue.coordination.coordinator_core import CoordinatorCore
from aioqueue.coordination.watchdog import Watchdog
from aioqueue.inputs import numbers, prepare
from aioqueue.worlds.scopes import Gate
from tests.kit.worlds import PATIENCE, TASK_WORLDS, TaskWorld, spin_until


class Scene:
    """A watched object whose progress the test controls."""

    def __init__(self) -> None:
        self.counts = {1: 0}
        self.waited = 0.0

    def explain(self) -> aioqueue.Explanation:
        return aioqueue.explain()

    def progress(self) -> dict[int, int]:
        return dict(self.counts)

    def longest_wait(self) -> float:
        return self.waited


@pytest.fixture
def scene() -> Scene:
    return Scene()


def watchdog_of(scene: Scene) -> Watchdog:
    return Watchdog(scene, 60.0, Gate(), lambda: None)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of aioqueue: in debug mode, asyncio warns of slow steps."""
    ours = [one for one in caplog.records if one.name == "aioqueue"]
    return [one.message for one in ours if one.levelno == logging.WARNING]


class TestChecks:
    def test_warns_once_without_progress(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        dog = watchdog_of(scene)
        scene.waited = 59.0
        assert dog.check()
        assert dog.check()
        assert not warnings(caplog)
        scene.waited = 60.0
        for _ in range(3):
            assert dog.check()
        (message,) = warnings(caplog)
        assert message.startswith("nothing has moved for 60.0 s while someone waits (watchdog=60)")
        assert "aioqueue: why process" in message

    def test_warns_again_after_progress(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        dog = watchdog_of(scene)
        scene.waited = 99.0
        for _ in range(2):
            scene.counts[1] += 1
            for _ in range(4):
                dog.check()
        assert len(warnings(caplog)) == 2

    def test_no_warning_during_progress(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        dog = watchdog_of(scene)
        scene.waited = 99.0
        for _ in range(5):
            scene.counts[1] += 1
            dog.check()
        assert not warnings(caplog)

    def test_no_warning_without_a_waiting_caller(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        dog = watchdog_of(scene)
        for _ in range(3):
            dog.check()
        assert not warnings(caplog)

    def test_a_failing_log_handler_does_not_end_it(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Failing(logging.Handler):
            messages: ClassVar[list[str]] = []

            def emit(self, record: logging.LogRecord) -> None:
                self.messages.append(record.getMessage())
                raise RuntimeError("no connection")

        monkeypatch.setattr(logging.getLogger("aioqueue"), "handlers", [Failing()])
        scene.waited = 99.0
        ticks = iter(range(4))

        class OpenAfterFourChecks(Gate):
            """A gate that is open after four checks of the watchdog."""

            def wait_blocking(self, *given: Any) -> bool:
                number = next(ticks, None)
                scene.counts[1] += number == 2
                return number is None

        dog = Watchdog(scene, 60.0, OpenAfterFourChecks(), lambda: None)
        dog._watch()
        hangs = [
            messages for messages in Failing.messages if messages.startswith("nothing has moved")
        ]
        assert len(hangs) == 2

    @pytest.mark.slow
    def test_ends_with_the_watched_object(self, scene: Scene) -> None:
        dog = watchdog_of(scene)
        del scene
        gc.collect()
        # The fixture still refers to this one; the other is freed at once.
        lonely = Watchdog(Scene(), 60.0, Gate(), lambda: None)
        gc.collect()
        assert not lonely.check()
        assert dog.check()


class TestCoordinators:
    def test_threads(self, caplog: pytest.LogCaptureFixture) -> None:
        is_stuck, go = threading.Event(), threading.Event()

        def stuck(number: int) -> int:
            is_stuck.set()
            go.wait(PATIENCE)
            return number

        queue = sync.FIFOQueue(8, name="examples")
        with sync.Coordinator(watchdog=0.05) as coord:
            coord.start(prepare([37], stuck, into=queue, workers=1))
            assert is_stuck.wait(PATIENCE)  # else whoever waits may wait for its thread to start
            trainer = threading.Thread(target=queue.dequeue, name="trainer")
            trainer.start()
            spin_until(lambda: warnings(caplog))
            assert "stuck (1 thread) is stuck in item 37" in warnings(caplog)[0]
            go.set()
            trainer.join(PATIENCE)
        assert len(warnings(caplog)) == 1
        spin_until(lambda: not any(one.name == "aioqueue-watchdog" for one in threads()))

    @pytest.mark.parametrize("world_type", TASK_WORLDS, ids=lambda world: world.name)
    def test_tasks(self, world_type: type[TaskWorld], caplog: pytest.LogCaptureFixture) -> None:
        if world_type.missing():
            pytest.skip(world_type.missing())
        world = world_type()

        async def body() -> None:
            examples = world.fifo(8, name="examples")
            async with aioqueue.Coordinator(watchdog=0.05) as coord:
                coord.start(prepare(examples, float, into=world.fifo(1), workers=1))
                await world.until(lambda: warnings(caplog))
                coord.request_stop()

        world.run(body)
        assert "'examples' is empty, and no runner fills it" in warnings(caplog)[0]

    def test_pipelines(self, caplog: pytest.LogCaptureFixture) -> None:
        go = threading.Event()

        def stuck(number: int) -> int:
            if number == 3:
                go.wait(PATIENCE)
            return number

        epochs = numbers(9).prepare(stuck, workers=1).batch(3).epochs(1, watchdog=0.05)
        taken: list[Any] = []
        trainer = threading.Thread(
            target=lambda: taken.extend(batch for epoch in epochs for batch in epoch),
            name="trainer",
        )
        trainer.start()
        # A warning that the stage takes long to start may come before.
        spin_until(lambda: any("stuck in item 3 " in one for one in warnings(caplog)))
        go.set()
        trainer.join(PATIENCE)
        assert len(taken) == 3

    def test_a_reused_coordinator_is_watched_again(self) -> None:
        core = CoordinatorCore(None, 60.0)
        core.start_watchdog()
        core.start_watchdog()
        dogs = [one for one in threads() if one.name == "aioqueue-watchdog"]
        assert len(dogs) == 1
        core.request_stop()
        spin_until(lambda: not dogs[0].is_alive())
        core.clear_stop()
        core.start_watchdog()
        spin_until(lambda: any(one.name == "aioqueue-watchdog" for one in threads()))
        core.request_stop()

    def test_without_one_no_thread_is_started(self) -> None:
        queue = sync.FIFOQueue(8)
        with sync.Coordinator() as coord:
            coord.start(prepare([1], float, into=queue, workers=1))
            assert queue.dequeue() == 1.0
            assert not any(one.name == "aioqueue-watchdog" for one in threads())

    @pytest.mark.parametrize("wrong", [0, -1, "60", True, float("nan")])
    def test_wrong_periods_are_refused(self, wrong: Any) -> None:
        for make in (sync.Coordinator, aioqueue.Coordinator, numbers(1).batch(1).epochs):
            with pytest.raises(InvalidArgumentError, match=r"^watchdog: got .*expected a number"):
                make(watchdog=wrong)


def threads() -> list[threading.Thread]:
    return threading.enumerate()


class TestWaitsAtNoQueue:
    """It also warns of waits in a batcher, in a join, or in a user's function."""

    def test_of_a_stuck_batcher(self, caplog: pytest.LogCaptureFixture) -> None:
        go = threading.Event()

        def answer(batch: list[int]) -> list[int]:
            go.wait(PATIENCE)
            return batch

        with sync.Batcher(answer, watchdog=0.02) as ask:
            caller = threading.Thread(target=ask, args=(1,))
            caller.start()
            spin_until(lambda: warnings(caplog))
            go.set()
            caller.join(PATIENCE)
        assert "answer: go.wait(PATIENCE)" in warnings(caplog)[0]

    def test_of_a_stuck_filter(self, caplog: pytest.LogCaptureFixture) -> None:
        go = threading.Event()

        def keep(number: int) -> bool:
            return go.wait(PATIENCE)

        epochs = numbers(9).prepare(abs, workers=1).filter(keep).epochs(1, watchdog=0.02)
        trainer = threading.Thread(target=lambda: [list(epoch) for epoch in epochs])
        trainer.start()
        spin_until(lambda: warnings(caplog))
        go.set()
        trainer.join(PATIENCE)
        assert "keep: return go.wait(PATIENCE)" in warnings(caplog)[0]

    def test_of_a_join_of_a_stuck_thread(self, caplog: pytest.LogCaptureFixture) -> None:
        go = threading.Event()

        def work() -> None:
            go.wait(PATIENCE)

        with sync.Coordinator(watchdog=0.02) as coord:
            worker = threading.Thread(target=work)
            worker.start()
            coord.register(worker)
            joiner = threading.Thread(target=coord.join)
            joiner.start()
            spin_until(lambda: warnings(caplog))
            go.set()
            joiner.join(PATIENCE)
        assert "work: go.wait(PATIENCE)" in warnings(caplog)[0]
