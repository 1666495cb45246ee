"""A generation as monitors see it: a stage, with what its queue knows."""

from __future__ import annotations

import gc
import io
import weakref
from pathlib import Path
from typing import Any

import pytest

from aioqueue import Monitor
from aioqueue.rl import Retry
from aioqueue.telemetry import GenerationNumbers, StageNumbers
from tests.kit.worlds import AsyncioWorld, ThreadWorld, World
from tests.rl.kit import Engine, Trainer, generating
from tests.rl.test_queue import queue


def stage_of(monitor: Monitor) -> tuple[StageNumbers, GenerationNumbers]:
    (stage,) = monitor._collector.snapshot().stages
    assert stage.generation is not None
    return stage, stage.generation


def where(world: World) -> str:
    return "thread" if isinstance(world, ThreadWorld) else "task"


def test_rollouts_in_flight_and_done(world: World) -> None:
    async def body() -> None:
        engine = Engine(world, holds=lambda prompt, rollout: True)
        rollouts = queue(6, name="grpo", max_in_flight=3)
        async with generating(world, rollouts, engine) as coordinator:
            with Monitor(coordinator) as monitor:
                await world.until(lambda: len(engine.running) == 3)
                await world.until(lambda: rollouts.statistics().existing == 4)
                stage, generation = stage_of(monitor)
                assert (stage.name, stage.where, stage.workers) == ("grpo", where(world), ())
                assert (stage.in_flight, stage.max_in_flight, stage.delivered) == (3, 3, 0)
                assert (generation.steps, generation.existing, generation.slots) == (0, 4, 4)
                assert monitor.verdict().cause == "nothing"
                engine.end_all()
                trainer = Trainer(world, rollouts)
                async for batch in trainer.batches():
                    stage, generation = stage_of(monitor)
                    assert generation.steps == batch.step + 1
                    assert generation.publish_lag == generation.steps - generation.version
                    await trainer.publish()
            # Also the time after the last rollout counts: the trainer took what was ready.
            stage, generation = stage_of(monitor)
            assert (stage.taken, stage.delivered, stage.in_flight) == (12, 12, 0)
            assert (generation.steps, generation.version, generation.groups) == (3, 3, 6)
            counts = rollouts.statistics()
            assert generation.worst_staleness == counts.worst_staleness
            assert generation.mean_staleness == counts.mean_staleness
            assert stage.service.count >= 12 - 3  # those of before the monitor do not measure
            assert monitor.snapshot().steps is not None
            assert monitor.snapshot().steps.steps == 3  # type: ignore[union-attr]
            assert monitor.verdict().cause in ("stage", "step", "gate")

    world.run(body)


def test_a_monitor_of_before_the_generation_and_two_at_once(world: World) -> None:
    async def body() -> None:
        rollouts = queue(4, name="grpo")
        async with generating(world, queue(2, name="other"), Engine(world)) as coordinator:
            with Monitor(coordinator) as one, Monitor(coordinator) as two:
                coordinator.start(rollouts.generate(Engine(world).function))
                await Trainer(world, rollouts).train_all()
            for monitor in (one, two):
                stage = monitor.snapshot().stage("grpo")
                assert stage.delivered == 8
                assert stage.busy + stage.blocked + stage.starved <= stage.alive

    world.run(body)


def test_retries_and_failures_are_counted(world: World) -> None:
    def fails(prompt: Any, rollout: Any) -> Any:
        if prompt == 1 or (prompt == 0 and rollout.attempt == 1):
            raise ConnectionError("engine")
        return prompt

    async def body() -> None:
        rollouts = queue(3, group_size=1, batch_size=1, on_error="drop", name="grpo")
        engine = Engine(world, result=fails)
        async with generating(world, rollouts, engine, retry=Retry(1)) as coordinator:
            with Monitor(coordinator) as monitor:
                await Trainer(world, rollouts).train_all()
            stage, _ = stage_of(monitor)
            assert (stage.delivered, stage.skipped, stage.retried) == (2, 1, 2)

    world.run(body)


def test_a_waiting_trainer_names_the_slowest_rollout(world: World) -> None:
    async def body() -> None:
        engine = Engine(world, holds=lambda prompt, rollout: (prompt, rollout.index) == (3, 1))
        rollouts = queue(4, name="grpo")
        async with generating(world, rollouts, engine) as coordinator:
            with Monitor(coordinator) as monitor:
                trainer = Trainer(world, rollouts)
                (await trainer.get()).done()
                taking = world.spawn(trainer.get)
                await world.until(lambda: rollouts.statistics().ready == 1)
                await world.until(lambda: rollouts.statistics().running == 1)
                await world.until(lambda: rollouts._core.waiting_takers())
                _, generation = stage_of(monitor)
                assert generation.missing.startswith(
                    "1 of 2 groups are missing: rollout 1 of prompt 3 (ordinal 3) runs for"
                )
                assert generation.waiting > 0
                verdict = rollouts.statistics().verdict
                if verdict.startswith("generation"):
                    assert "1 of 2 groups are missing: rollout 1 of prompt 3" in verdict
                    assert "kit.py" in verdict
                engine.end_all()
                await taking.result()

    world.run(body)


def test_views_and_exports_of_a_real_run(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="needs the extra `rich`")
    from rich.console import Console

    async def body() -> None:
        rollouts = queue(8, name="grpo")
        async with generating(world, rollouts, Engine(world)) as coordinator:
            with Monitor(coordinator) as monitor:
                await Trainer(world, rollouts).train_all()
        stream = io.StringIO()
        Console(file=stream, width=120).print(monitor.table())
        assert "grpo" in stream.getvalue()
        assert "staleness" in stream.getvalue()
        assert monitor.scalars()["data/grpo/publish_lag"] == 0.0
        monitor.save(tmp_path / "run.html")
        assert "grpo" in (tmp_path / "run.html").read_text(encoding="utf-8")

    world = AsyncioWorld()
    world.run(body)


def test_a_monitor_does_not_keep_the_queue_alive() -> None:
    async def run() -> tuple[Monitor, weakref.ref[Any]]:
        rollouts = queue(2, name="grpo")
        async with generating(world, rollouts, Engine(world)) as coordinator:
            monitor = Monitor(coordinator)
            await Trainer(world, rollouts).train_all()
        return monitor, weakref.ref(rollouts._core)

    async def body() -> None:
        monitor, core = await run()
        gc.collect()
        assert core() is None
        assert stage_of(monitor)[0].delivered == 4
        monitor.close()

    world = AsyncioWorld()
    world.run(body)
