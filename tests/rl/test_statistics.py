"""What a `RolloutQueue` counts, explains and exports."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import aioqueue
from aioqueue.errors import InvalidArgumentError
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from tests.kit.worlds import AsyncioWorld, TaskWorld, World
from tests.rl.kit import Engine, Trainer, generating
from tests.rl.test_queue import check_sums, queue


class TestExplanations:
    def test_it_names_the_rollouts_that_a_step_waits_for(self, world: World) -> None:
        async def body() -> None:
            engine = Engine(world, holds=lambda prompt, rollout: (prompt, rollout.index) == (1, 1))
            rollouts = queue(2, name="grpo")
            async with generating(world, rollouts, engine):
                taking = world.spawn(Trainer(world, rollouts).get)
                await world.until(lambda: rollouts.statistics().ready == 1)
                await world.until(lambda: (1, 1, 1) in engine.running)
                await world.until(lambda: rollouts._core.waiting_takers())
                for text in (str(rollouts.explain()), str(aioqueue.explain())):
                    assert (
                        "waits for step 0 of RolloutQueue 'grpo': 1 of 2 groups are ready" in text
                    )
                    assert "rollout 1 of prompt 1 (ordinal 1) runs for" in text
                    assert "kit.py" in text
                verdict = rollouts.statistics()
                assert verdict.ready == 1
                engine.end_all()
                await taking.result()

        world.run(body)

    def test_nothing_generates(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(2)
            taking = world.spawn(Trainer(world, rollouts).get)
            await world.until(lambda: rollouts._core.waiting_takers())
            for text in (str(rollouts.explain()), str(aioqueue.explain())):
                assert "nothing generates for RolloutQueue" in text
            async with generating(world, rollouts, Engine(world)):
                assert (await taking.result()).step == 0

        world.run(body)

    def test_accept_decides(self, task_world: TaskWorld) -> None:
        async def accept(group: Any) -> bool:
            await gate.wait(current_waker())
            return True

        async def body() -> None:
            rollouts = queue(4, accept=accept, name="grpo", order="strict")
            async with generating(task_world, rollouts, Engine(task_world)):
                trainer = Trainer(task_world, rollouts)
                taking = task_world.spawn(trainer.get)
                await task_world.until(lambda: len(rollouts._core.judging) == 4)
                await task_world.until(lambda: rollouts._core.waiting_takers())
                for text in (str(rollouts.explain()), str(aioqueue.explain())):
                    assert "accept= of RolloutQueue 'grpo' decides about 4 groups: that of" in text
                    assert "test_statistics.py" in text
                gate.open()
                (await taking.result()).done()
                assert len(await trainer.train_all()) == 1
                assert not rollouts._core.judging

        gate = Gate()
        task_world.run(body)

    def test_a_pause_and_a_publication(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(2, max_in_flight=0)
            async with generating(world, rollouts, Engine(world)):
                trainer = Trainer(world, rollouts)
                async with trainer.publishing():
                    taking = world.spawn(trainer.get)
                    await world.until(lambda: rollouts._core.waiting_takers())
                    text = str(rollouts.explain())
                    assert "max_in_flight of RolloutQueue" in text
                    assert "is open for" in text
                    assert "nothing starts in it" in text
                rollouts.set(max_in_flight=None)
                await taking.result()
                text = str(rollouts.explain())
                assert "nobody waits for a step" in text

        world.run(body)

    def test_an_evaluation_that_waits_for_a_publication(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(2, name="grpo")
            async with generating(world, rollouts, Engine(world)):
                trainer = Trainer(world, rollouts)
                async with trainer.publishing():
                    evaluating = world.spawn(trainer.evaluate, [1, 2])
                    await world.until(lambda: len(rollouts._core.machine.evaluations) == 2)
                    for text in (str(rollouts.explain()), str(aioqueue.explain())):
                        assert "waits in evaluate() of RolloutQueue 'grpo' for 2 prompts" in text
                        assert "publishing() of RolloutQueue 'grpo' is open for" in text
                        assert "nothing starts in it" in text
                assert len(await evaluating.result()) == 2
                assert "waits in evaluate()" not in str(rollouts.explain())
                await trainer.train_all()

        world.run(body)

    def test_the_watchdog_reports_a_rollout_that_hangs(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def body() -> None:
            engine = Engine(world, holds=lambda prompt, rollout: True)
            rollouts = queue(2)
            with caplog.at_level(logging.WARNING, "aioqueue"):
                async with aioqueue.Coordinator(watchdog=0.05) as coordinator:
                    coordinator.start(rollouts.generate(engine.function))
                    taking = world.spawn(rollouts.get)
                    await world.until(lambda: "rollout 0 of prompt 0" in caplog.text)
                    engine.end_all()
                    await taking.result()

        world = AsyncioWorld()
        world.run(body)


class TestStatistics:
    def test_they_add_up_in_each_state(self, world: World) -> None:
        async def body() -> None:
            engine = Engine(world, holds=lambda prompt, rollout: prompt % 2 == 0)
            rollouts = queue(12, accept=lambda group: group.prompt != 3, steps_ahead=2)
            async with generating(world, rollouts, engine):
                trainer = Trainer(world, rollouts)
                await world.until(lambda: engine.running)
                check_sums(rollouts)
                engine.end_all()
                async for batch in trainer.batches():
                    check_sums(rollouts)
                    if batch.step % 2:
                        await trainer.publish()
                    check_sums(rollouts)
            counts = rollouts.statistics()
            assert (counts.trained, counts.refused, counts.step) == (11, 1, 6)
            assert sum(counts.staleness.values()) == 11
            assert counts.worst_staleness == max(counts.staleness)
            assert 0 <= counts.mean_staleness <= counts.worst_staleness
            assert counts.seconds >= counts.publishing >= 0
            assert counts.verdict
            scalars = counts.scalars()
            assert scalars["rollouts/trained"] == 11
            assert all(isinstance(value, float) for value in scalars.values())

        world.run(body)


class TestTheCollector:
    def test_of_two_queues(self) -> None:
        pytest.importorskip("prometheus_client")
        from prometheus_client import CollectorRegistry, generate_latest

        from aioqueue.rl import RolloutCollector

        async def body() -> None:
            one, two = queue(4, name="one"), queue(4, name="two")
            registry = CollectorRegistry()
            registry.register(RolloutCollector(one, two.sync))
            world = AsyncioWorld()
            async with generating(world, one, Engine(world)):
                await Trainer(world, one).train_all()
            text = generate_latest(registry).decode()
            for line in (
                'aioqueue_rollout_groups_total{outcome="trained",rollouts="one"} 4.0',
                'aioqueue_rollout_groups_total{outcome="stale",rollouts="two"} 0.0',
                'aioqueue_rollout_existing_groups{rollouts="two",state="ready"} 0.0',
                'aioqueue_rollout_step{rollouts="one"} 2.0',
                'aioqueue_rollout_staleness_count{rollouts="one"} 4.0',
                'aioqueue_rollout_wait_seconds_total{rollouts="one",what="publishing"}',
            ):
                assert line in text
            with pytest.raises(InvalidArgumentError, match="expected different ones"):
                RolloutCollector(one, one)
            bad: Any = 3
            with pytest.raises(InvalidArgumentError, match="rollouts: got 3"):
                RolloutCollector(bad)

        AsyncioWorld().run(body)


def test_a_drain_ends_the_prompts(world: World) -> None:
    async def body() -> None:
        engine = Engine(world, holds=lambda prompt, rollout: True)
        rollouts = queue(100)
        async with generating(world, rollouts, engine) as coordinator:
            await world.until(lambda: len(engine.running) == 8)
            coordinator.drain()
            engine.end_all()
            assert len(await Trainer(world, rollouts).train_all()) == 2

    world.run(body)
