"""Explanations of a `RolloutQueue` in each form: who waits, for what, for how long, at which line.

They are the same wherever rollouts run, and for each caller: a trainer, another thread, a
watchdog, or another process that has a handle of the queue.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.rl import Retry
from aioqueue.rl import sharing as rl_sharing
from tests.kit.processing import start_the_forkserver
from tests.kit.sharing import children, sharing_ended
from tests.kit.worlds import AsyncioWorld, ThreadWorld, World, spin_until
from tests.rl import functions, test_processes
from tests.rl.kit import Engine, Trainer, generating, handle_of
from tests.rl.test_queue import queue

needs_flock = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
Where = Literal["process"] | None
PLACES = [None, pytest.param("process", marks=needs_flock)]


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets `handle_of` stand for a handle in another process."""
    monkeypatch.setattr(rl_sharing, "running_server", lambda: None)
    with sharing_ended():
        yield


class Held:
    """An engine that holds the rollouts of one prompt.

    Attributes:
        function: what generates.
        line: the file of the line at which they are.
    """

    def __init__(self, world: World, where: Where, folder: Path, prompt: Any) -> None:
        self._engine: Any
        if where is None:
            self._engine = Engine(world, holds=lambda value, rollout: value == prompt)
            self.line = "kit.py"
        else:
            start_the_forkserver()
            self._engine = test_processes.Engine(world, folder)
            self._engine.hold(prompt)
            self.line = "functions.py"
        self.function = self._engine.function

    def release(self) -> None:
        self._engine.release()


def named(engine: Held) -> re.Pattern[str]:
    """Match the prompt, the rollout, the seconds and the line."""
    return re.compile(
        r"rollout 0 of prompt 'slow' \(ordinal \d\) runs for [\d.]+ s, at \S*" + engine.line
    )


def asked_elsewhere(ask: Callable[[], object]) -> str:
    """Ask from another thread."""
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(str(ask())))
    thread.start()
    thread.join()
    return answers[0]


@pytest.mark.usefixtures("handles")
@pytest.mark.parametrize("where", PLACES)
def test_each_caller_learns_what_all_wait_for(world: World, where: Where, tmp_path: Path) -> None:
    async def body() -> None:
        rollouts = queue(["a", "slow"], group_size=1, name="grpo")
        async with generating(world, rollouts, engine.function, where=where):
            handle = handle_of(rollouts)
            trainer = Trainer(world, rollouts)
            taking = world.spawn(trainer.get)
            await world.until(lambda: rollouts.statistics().ready == 1)
            await world.until(lambda: rollouts.statistics().running == 1)
            await world.until(lambda: rollouts._core.waiting_takers())
            remote = world.spawn(Trainer(world, handle).get)
            await world.until(lambda: len(rollouts._core.waiting_takers()) == 2)
            asks: tuple[Callable[[], object], ...] = (
                rollouts.explain,
                rollouts.sync.explain,
                aioqueue.explain,
                handle.explain,
                handle.sync.explain,
            )
            for ask in asks:
                for text in (str(ask()), asked_elsewhere(ask)):
                    assert "waits for step 0 of RolloutQueue 'grpo': 1 of 2 groups are" in text
                    assert re.search(r"process \d+ waits for step 1 of RolloutQueue 'grpo'", text)
                    assert rollout.search(text)
            publishing = world.spawn(trainer.publish_drained)
            await world.until(lambda: rollouts._core.machine.is_paused)
            for ask in asks:
                for text in (str(ask()), asked_elsewhere(ask)):
                    assert "publishing() of RolloutQueue 'grpo' is open: it waits for 1" in text
                    assert rollout.search(text)
            engine.release()
            await taking.result()
            await publishing.result()
            with pytest.raises(aioqueue.OutOfRangeError):
                await remote.result()

    engine = Held(world, where, tmp_path, "slow")
    rollout = named(engine)
    try:
        world.run(body)
    finally:
        engine.release()


@pytest.mark.parametrize("where", PLACES)
def test_the_watchdog_names_it_in_the_log(
    world: World, where: Where, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        rollouts = queue(["a", "slow"], group_size=1, name="grpo")
        trainer = Trainer(world, rollouts)
        generation = rollouts.generate(engine.function, where=where)
        if isinstance(world, ThreadWorld):
            with sync.Coordinator(watchdog=0.05) as threads:
                threads.start(generation)
                await wait(rollouts, trainer)
            return
        async with aioqueue.Coordinator(watchdog=0.05) as coordinator:
            coordinator.start(generation)
            await wait(rollouts, trainer)

    async def wait(rollouts: Any, trainer: Trainer) -> None:
        """Wait for a batch, and then, without one, for the body of a publication."""
        taking = world.spawn(trainer.get)
        await world.until(lambda: rollout.search(caplog.text))
        assert "waits for step 0 of RolloutQueue 'grpo': 1 of 2 groups are ready" in caplog.text
        publishing = world.spawn(trainer.publish_drained)
        await world.until(lambda: rollouts._core.machine.is_paused)
        engine.release()
        await taking.result()
        await publishing.result()

    engine = Held(world, where, tmp_path, "slow")
    rollout = named(engine)
    with caplog.at_level(logging.WARNING, "aioqueue"):
        try:
            world.run(body)
        finally:
            engine.release()


class TestPublications:
    """The trainer waits for the body, without a drain and with one, and nobody for a batch."""

    @pytest.mark.parametrize("where", PLACES)
    def test_the_watchdog_names_the_rollout_that_a_drain_waits_for(
        self, where: Where, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        world = AsyncioWorld()
        engine = Held(world, where, tmp_path, "slow")

        async def body() -> None:
            rollouts = queue(["slow"], group_size=1, batch_size=1, name="grpo")
            async with aioqueue.Coordinator(watchdog=0.05) as coordinator:
                coordinator.start(rollouts.generate(engine.function, where=where))
                await world.until(lambda: rollouts.statistics().running == 1)
                publishing = world.spawn(Trainer(world, rollouts).publish_drained)
                await world.until(lambda: named(engine).search(caplog.text))
                text = "publishing() of RolloutQueue 'grpo' is open: it waits for 1 rollout to end"
                assert text in caplog.text
                engine.release()
                await publishing.result()

        with caplog.at_level(logging.WARNING, "aioqueue"):
            world.run(body)

    @needs_flock
    def test_a_process_that_does_not_confirm_is_named_with_the_line_that_blocks_it(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A coroutine function that blocks its event loop holds up each publication."""
        start_the_forkserver()
        world = AsyncioWorld()
        engine = test_processes.Engine(ThreadWorld(), tmp_path)
        engine.hold("slow")

        async def body() -> None:
            rollouts = queue(["slow"], group_size=1, batch_size=1, name="grpo")
            function = partial(functions.blocking_its_loop, tmp_path)
            async with aioqueue.Coordinator(watchdog=0.05) as coordinator:
                coordinator.start(rollouts.generate(function, where="process"))
                await world.until(lambda: rollouts.statistics().running == 1)
                publishing = world.spawn(rollouts.publish)
                await world.until(lambda: rollouts._core.is_revoking)
                text = str(rollouts.explain())
                assert re.search(
                    r"publishing\(\) of RolloutQueue 'grpo' is open: it waits for process"
                    r" aioqueue-grpo \(pid \d+\) to confirm that nothing starts there",
                    text,
                )
                assert "functions.py" in text
                await world.until(lambda: "to confirm that nothing starts" in caplog.text)
                engine.release()
                await publishing.result()

        try:
            with caplog.at_level(logging.WARNING, "aioqueue"):
                world.run(body)
        finally:
            engine.release()

    def test_a_waiting_publication_names_the_open_one(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def body() -> None:
            rollouts = queue(2, name="grpo")
            async with generating(world, rollouts, Engine(world)):
                trainer = Trainer(world, rollouts)
                async with trainer.publishing():
                    publishing = world.spawn(trainer.publish)
                    await world.until(lambda: rollouts._core.publishers)
                    for text in (str(rollouts.explain()), str(aioqueue.explain())):
                        assert "waits in publishing() of RolloutQueue 'grpo' for another" in text
                        assert re.search(r"'grpo' is open for .*, in .*, at .*tests.rl", text)
                    assert rollouts._core.waits.longest_of_waits() > 0  # type: ignore[attr-defined]
                await publishing.result()

        world.run(body)


class TestOtherWaits:
    @pytest.mark.parametrize("where", PLACES)
    def test_a_rollout_that_waits_for_its_next_attempt(
        self, world: World, where: Where, tmp_path: Path
    ) -> None:
        async def body() -> None:
            rollouts = queue(["boom"], group_size=1, batch_size=1, name="grpo")
            options = {"where": where, "retry": Retry(3, backoff=5000)}
            async with generating(world, rollouts, function, **options) as coordinator:
                taking = world.spawn(Trainer(world, rollouts).get)
                await world.until(lambda: rollouts._core.retried)
                await world.until(lambda: rollouts._core.waiting_takers())
                for text in (str(rollouts.explain()), str(aioqueue.explain())):
                    assert re.search(
                        r"rollout 0 of prompt 'boom' \(ordinal 0\) waits [\d.]+ \w+ more for"
                        r" attempt 2: attempt 1 has failed with ConnectionError: engine of prompt",
                        text,
                    )
                    assert "functions.py" in text or where is not None
                coordinator.request_stop()
                with pytest.raises(aioqueue.OutOfRangeError):
                    await taking.result()
            assert not rollouts._core.backoffs

        if where is None:
            function = Engine(world, result=functions.result).function
        else:
            start_the_forkserver()
            function = test_processes.Engine(world, tmp_path).function
        world.run(body)

    @pytest.mark.parametrize("what", ["accept", "weigh"])
    def test_a_plain_function_that_sees_a_group(self, what: str) -> None:
        def sees(group: Any) -> Any:
            gate.wait()
            return 1

        gate = threading.Event()
        rollouts = queue(["slow"], group_size=1, batch_size=1, name="grpo", **{what: sees})
        with sync.Coordinator() as coordinator:
            coordinator.start(rollouts.generate(Engine(ThreadWorld()).function))
            taking = threading.Thread(target=rollouts.sync.get)
            taking.start()
            spin_until(rollouts._core.waiting_takers)
            spin_until(lambda: rollouts._core.judging)
            text = str(rollouts.explain())
            gate.set()
            taking.join()
        does = {"accept": "decides about", "weigh": "weighs"}[what]
        assert f"{what}= of RolloutQueue 'grpo' {does} 1 group: that of prompt 'slow' for" in text
        assert "test_explanations.py" in text
        assert not rollouts._core.judging

    @needs_flock
    def test_a_process_that_is_not_ready(self) -> None:
        start_the_forkserver()
        rollouts = queue(["a"], group_size=1, batch_size=1, name="grpo")
        with sync.Coordinator() as coordinator:
            coordinator.start(rollouts.generate(SlowToImport(), where="process"))
            taking = threading.Thread(target=rollouts.sync.get)
            taking.start()
            spin_until(rollouts._core.waiting_takers)
            spin_until(lambda: "has been starting for" in str(rollouts.explain()))
            taking.join()
        assert "has been starting for" not in str(rollouts.explain())


class SlowToImport:
    """A function that takes the process some time to unpickle."""

    async def __call__(self, prompt: Any, rollout: Any) -> Any:
        return prompt

    def __reduce__(self) -> Any:
        return functions.made_slowly, (SlowToImport,)


def explain_there(rollouts: Any) -> str:
    return str(rollouts.explain())


@needs_flock
@pytest.mark.parametrize("where", PLACES)
def test_another_process_asks(where: Where, tmp_path: Path) -> None:
    world = ThreadWorld()
    engine = Held(world, where, tmp_path, "slow")
    rollouts = queue(["slow"], group_size=1, batch_size=1, name="grpo").share()
    try:
        with sharing_ended(), children() as start, sync.Coordinator() as coordinator:
            coordinator.start(rollouts.generate(engine.function, where=where))
            taking = threading.Thread(target=rollouts.sync.get)
            taking.start()
            spin_until(rollouts._core.waiting_takers)
            spin_until(lambda: rollouts.statistics().running == 1)
            text = start(explain_there, rollouts).result()
            engine.release()
            taking.join()
    finally:
        engine.release()
    assert "waits for step 0 of RolloutQueue 'grpo': 0 of 1 groups are ready" in text
    assert named(engine).search(text)
