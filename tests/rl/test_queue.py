"""`RolloutQueue`: what it promises, in each world."""

from __future__ import annotations

import asyncio
import threading
from itertools import chain
from typing import Any

import pytest

from aioqueue.errors import OutOfRangeError
from aioqueue.rl import Batch, Group, RolloutQueue
from aioqueue.rl.core import RolloutCore
from tests.kit.worlds import PATIENCE, AsyncioWorld, TaskWorld, ThreadWorld, World
from tests.rl.kit import Engine, Trainer, generating


def queue(prompts: Any = 12, **options: Any) -> RolloutQueue[Any, Any]:
    options = {"batch_size": 2, "group_size": 2, **options}
    prompts = list(range(prompts)) if isinstance(prompts, int) else prompts
    return RolloutQueue(prompts, **options)


def check_sums(rollouts: RolloutQueue[Any, Any]) -> None:
    counts = rollouts.statistics()
    left = counts.trained + counts.refused + counts.dropped + counts.returned + counts.existing
    assert counts.admitted == left
    assert counts.existing == counts.open + counts.judged + counts.ready + counts.held


def prompts_of(batch: Batch[Any, Any]) -> list[Any]:
    return [group.prompt for group in batch.groups]


class TestBatches:
    def test_each_prompt_is_trained_once(self, world: World) -> None:
        async def body() -> None:
            rollouts, engine = queue(), Engine(world)
            async with generating(world, rollouts, engine):
                batches = await Trainer(world, rollouts).train_all()
            assert sorted(chain.from_iterable(batches)) == list(range(12))
            assert len(engine.started) == 24
            counts = rollouts.statistics()
            assert (counts.admitted, counts.trained, counts.existing) == (12, 12, 0)
            assert (counts.step, counts.version, counts.running) == (6, 6, 0)

        world.run(body)

    def test_a_batch_has_what_was_generated(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(2, seed=3, order="strict")
            async with generating(world, rollouts, Engine(world)):
                batch = await Trainer(world, rollouts).get()
                assert (batch.step, batch.version, batch.staleness, len(batch)) == (0, 0, (0, 0), 2)
                assert tuple(batch) == batch.groups
                group = batch.groups[1]
                assert (group.prompt, group.ordinal, group.version) == (1, 1, 0)
                assert [one.result for one in group.rollouts] == [(1, 0), (1, 1)]
                assert [one.attempt for one in group.rollouts] == [1, 1]
                seeds = {one.seed for group in batch.groups for one in group.rollouts}
                assert len(seeds) == 4
            assert seeds == await self.seeds(world)

        world.run(body)

    @staticmethod
    async def seeds(world: World) -> set[int]:
        rollouts = queue(2, seed=3)
        async with generating(world, rollouts, Engine(world)):
            batch = await Trainer(world, rollouts).get()
        return {one.seed for group in batch.groups for one in group.rollouts}

    def test_strict_batches_have_the_order_of_the_prompts(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(7, order="strict", batch_size=3)
            async with generating(world, rollouts, Engine(world)):
                batches = await Trainer(world, rollouts).train_all()
            assert batches == [[0, 1, 2], [3, 4, 5], [6]]

        world.run(body)

    def test_a_short_batch_can_be_dropped(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(7, batch_size=3, drop_remainder=True)
            async with generating(world, rollouts, Engine(world)):
                batches = await Trainer(world, rollouts).train_all()
            assert [len(batch) for batch in batches] == [3, 3]
            assert rollouts.statistics().dropped_by == {"remainder": 1}

        world.run(body)

    def test_steps_end_the_loop_and_nothing_else(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(12)
            async with generating(world, rollouts, Engine(world)):
                trainer = Trainer(world, rollouts)
                assert len(await trainer.train_all(2)) == 2
                assert len(await trainer.train_all(5)) == 3
                assert len(await trainer.train_all()) == 1
                with pytest.raises(OutOfRangeError, match="no more batches"):
                    await trainer.get()

        world.run(body)

    def test_no_more_groups_exist_than_slots(self, world: World) -> None:
        async def body() -> None:
            engine = Engine(world, holds=lambda prompt, rollout: True)
            rollouts = queue(20, steps_ahead=1)
            async with generating(world, rollouts, engine):
                await world.until(lambda: len(engine.running) == 8)
                assert {key[0] for key in engine.started} == {0, 1, 2, 3}
                trainer = Trainer(world, rollouts)
                engine.end_all()
                batch = await trainer.get()
                counts = rollouts.statistics()
                assert counts.existing <= 4
                batch.done()
                assert len(await trainer.train_all()) == 9
            assert engine.most == 8

        world.run(body)

    def test_max_in_flight_bounds_what_runs(self, world: World) -> None:
        async def body() -> None:
            engine = Engine(world, holds=lambda prompt, rollout: True)
            rollouts = queue(8, max_in_flight=3)
            async with generating(world, rollouts, engine):
                await world.until(lambda: len(engine.running) == 3)
                rollouts.set(max_in_flight=4)
                await world.until(lambda: len(engine.running) == 4)
                engine.end_all()
                await Trainer(world, rollouts).train_all()
            assert engine.most == 4

        world.run(body)

    def test_a_closed_queue_trains_what_exists(self, world: World) -> None:
        async def body() -> None:
            engine = Engine(world, holds=lambda prompt, rollout: True)
            rollouts = queue(100)
            async with generating(world, rollouts, engine):
                await world.until(lambda: len(engine.running) == 8)
                rollouts.close()
                engine.end_all()
                batches = await Trainer(world, rollouts).train_all()
            assert sorted(chain.from_iterable(batches)) == [0, 1, 2, 3]

        world.run(body)

    def test_the_stop_returns_what_was_not_handed_out(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(100)
            async with generating(world, rollouts, Engine(world)):
                await Trainer(world, rollouts).get()
            counts = rollouts.statistics()
            assert (counts.held, counts.running, counts.trained) == (2, 0, 0)
            assert counts.returned == counts.admitted - 2
            check_sums(rollouts)

        world.run(body)

    def test_two_trainers_get_different_steps(self, world: World) -> None:
        async def body() -> None:
            engine = Engine(world, holds=lambda prompt, rollout: True)
            rollouts = queue(8)
            async with generating(world, rollouts, engine):
                trainer = Trainer(world, rollouts)
                await world.until(lambda: len(engine.running) == 8)
                first = world.spawn(trainer.get)
                await world.until(lambda: len(rollouts._core.waiting_takers()) == 1)
                second = world.spawn(trainer.get)
                await world.until(lambda: len(rollouts._core.takers) == 2)
                engine.end_all()
                batches = [await first.result(), await second.result()]
                assert [batch.step for batch in batches] == [0, 1]

        world.run(body)


class TestDone:
    def test_a_held_step_keeps_its_slots(self, world: World) -> None:
        async def body() -> None:
            engine, rollouts = Engine(world), queue(8, steps_ahead=0)
            async with generating(world, rollouts, engine):
                trainer = Trainer(world, rollouts)
                batch = await trainer.get()
                taking = world.spawn(trainer.get)
                await world.until(lambda: len(rollouts._core.waiting_takers()) == 1)
                assert len(engine.started) == 4
                assert "waits for done() of step 0" in str(rollouts.explain())
                batch.done()
                batch.done()
                assert (await taking.result()).step == 1
            check_sums(rollouts)

        world.run(body)

    def test_a_step_that_is_given_back_is_handed_out_again(self, world: World) -> None:
        async def body() -> None:
            engine, rollouts = Engine(world), queue(4, order="strict")
            async with generating(world, rollouts, engine):
                trainer = Trainer(world, rollouts)
                batch = await trainer.get()
                batch.give_back()
                batch.give_back()
                batch.done()
                again = await trainer.get()
                assert again.step == batch.step == 0
                assert prompts_of(again) == prompts_of(batch)
            assert len(set(engine.started)) == len(engine.started)

        world.run(body)

    def test_an_older_step_that_is_given_back_is_the_next_as_it_was(self, world: World) -> None:
        async def body() -> None:
            engine, rollouts = Engine(world), queue(8, order="ready", steps_ahead=3)
            async with generating(world, rollouts, engine):
                trainer = Trainer(world, rollouts)
                first, second = await trainer.get(), await trainer.get()
                first.give_back()
                again = await trainer.get()
                assert (again.step, prompts_of(again)) == (0, prompts_of(first))
                third = await trainer.get()
                assert third.step == 2
                first.give_back()  # it is no longer the same
                first.done()
                await trainer.publish(steps=2)
                assert rollouts.statistics().trained == 4
                third.give_back()
                assert (await trainer.get()).step == 2
                del second
            assert len(set(engine.started)) == len(engine.started)
            check_sums(rollouts)

        world.run(body)

    def test_a_part_that_is_given_back_gives_the_step_back_once(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(4, order="strict")
            async with generating(world, rollouts, Engine(world)):
                trainer = Trainer(world, rollouts)
                first, second = (await trainer.get()).split(2)
                first.give_back()
                again = await trainer.get()
                assert again.step == 0
                second.give_back()  # of a step that was handed out again
                second.done()
                assert rollouts.statistics().held == 2
                again.done()
                assert (await trainer.get()).step == 1

        world.run(body)

    def test_parts_can_be_split(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(8, batch_size=4)
            async with generating(world, rollouts, Engine(world)):
                batch = await Trainer(world, rollouts).get()
                first, second = batch.split(2)
                third, fourth = first.split(2)
                for part in (third, second):
                    part.done()
                    assert rollouts.statistics().trained == 0
                fourth.done()
                await world.until(lambda: rollouts.statistics().trained == 4)

        world.run(body)

    def test_a_split_step_is_done_when_all_parts_are(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(8, batch_size=3)
            async with generating(world, rollouts, Engine(world)):
                batch = await Trainer(world, rollouts).get()
                parts = batch.split(4)
                assert [len(part) for part in parts] == [1, 1, 1, 0]
                assert sum((part.groups for part in parts), ()) == batch.groups
                batch.done()
                for part in parts:
                    assert rollouts.statistics().trained == 0
                    part.done()
                    part.done()
                await world.until(lambda: rollouts.statistics().trained == 3)

        world.run(body)


class TestPublishing:
    def test_nothing_starts_inside(self, world: World) -> None:
        async def body() -> None:
            engine, rollouts = Engine(world), queue(20, steps_ahead=0)
            async with generating(world, rollouts, engine):
                trainer = Trainer(world, rollouts)
                async for batch in trainer.batches(3):
                    batch.done()
                    async with trainer.publishing("weights") as publication:
                        before = len(engine.started)
                        rollouts.set(batch_size=2)
                        assert publication == (batch.step + 1, batch.step)
                        assert rollouts.version == batch.step
                        assert before == len(engine.started) or not engine.is_threaded
                    assert rollouts.version == batch.step + 1
            assert rollouts.policy.get_nowait() == (3, "weights")

        world.run(body)

    def test_a_task_that_was_just_started_waits_at_the_gate(self, task_world: TaskWorld) -> None:
        """The decision comes a turn of the event loop before the first step of the function."""
        world = task_world

        async def body() -> None:
            inside: list[bool] = []
            is_open = False

            async def generate(prompt: int, rollout: Any) -> int:
                inside.append(is_open)
                return prompt

            rollouts = queue(40, group_size=1, steps_ahead=0)
            async with generating(world, rollouts, generate):
                async for batch in rollouts.batches():
                    batch.done()  # frees slots: the next rollouts are decided here
                    async with rollouts.publishing():
                        is_open = True
                        await world.tick()
                        await world.tick()
                        is_open = False
            assert len(inside) == 40
            assert not any(inside)

        world.run(body)

    def test_a_thread_asks_the_gate_as_its_last_step(self) -> None:
        """Whatever ran between the two could be interrupted by the block."""
        after_enter: list[str] = []
        is_between = threading.local()

        def profile(frame: Any, event: str, argument: Any) -> None:
            if event in ("call", "c_call") and getattr(is_between, "now", False):
                name = frame.f_code.co_name if event == "call" else argument.__name__
                after_enter.append(name)
                is_between.now = False
            if event == "return" and frame.f_code is RolloutCore.enter.__code__:
                is_between.now = True

        def generate(prompt: Any, rollout: Any) -> Any:
            return prompt

        async def body() -> None:
            threading.setprofile(profile)
            try:
                rollouts = queue(4)
                async with generating(world, rollouts, generate, timeout=60):
                    await Trainer(world, rollouts).train_all()
            finally:
                threading.setprofile(None)

        world = ThreadWorld()
        world.run(body)
        assert set(after_enter) == {"generate"}

    def test_a_failed_publication_changes_nothing(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(8)
            async with generating(world, rollouts, Engine(world)):
                trainer = Trainer(world, rollouts)
                async for batch in trainer.batches():
                    with pytest.raises(ConnectionError):
                        async with trainer.publishing("weights"):
                            raise ConnectionError("the engine")
                    assert rollouts.version == 0
                    assert rollouts.statistics().held == len(batch)
            assert rollouts.policy.version == 0
            assert rollouts.statistics().trained == 8

        world.run(body)

    def test_a_block_of_the_other_face_is_explained(self) -> None:
        rollouts = queue(2)
        block: Any = rollouts.publishing()
        with pytest.raises(TypeError, match=r"write `async with rollouts\.publishing\(\):`"), block:
            pass

        async def body() -> None:
            blocking: Any = rollouts.sync.publishing()
            async with blocking:
                pass

        with pytest.raises(TypeError, match=r"write `with rollouts\.sync\.publishing\(\):`"):
            asyncio.run(body())

    def test_what_would_wait_for_itself_is_refused(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(8)
            async with generating(world, rollouts, Engine(world)):
                trainer = Trainer(world, rollouts)
                async with trainer.publishing():
                    for call in (trainer.get, trainer.publish):
                        with pytest.raises(RuntimeError, match=r"within publishing\(\)"):
                            await call()
                    with pytest.raises(RuntimeError, match=r"evaluate\(\) within"):
                        await trainer.evaluate([1])
                    with pytest.raises(RuntimeError, match=r"publishing\(\) within"):
                        async with trainer.publishing():
                            pass
                assert len(await trainer.train_all()) == 4

        world.run(body)

    @pytest.mark.parametrize("how", ["wait_for", "create_task", "gather"])
    def test_an_evaluation_in_a_task_that_the_block_awaits_is_refused(self, how: str) -> None:
        awaited: dict[str, Any] = {
            "wait_for": lambda call: asyncio.wait_for(call, PATIENCE),
            "create_task": asyncio.create_task,
            "gather": asyncio.gather,
        }
        world = AsyncioWorld()

        async def body() -> None:
            rollouts = queue(8)
            async with generating(world, rollouts, Engine(world)):
                trainer = Trainer(world, rollouts)
                async with rollouts.publishing():
                    with pytest.raises(RuntimeError, match=r"evaluate\(\) within"):
                        await awaited[how](rollouts.evaluate([1]))
                    later = asyncio.create_task(rollouts.evaluate([1]))
                    await asyncio.sleep(0)
                assert len(await later) == 1  # it may wait for the end of the block
                assert len(await trainer.train_all()) == 4

        world.run(body)

    def test_publishing_some_of_the_steps(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(12, steps_ahead=3)
            async with generating(world, rollouts, Engine(world)):
                trainer = Trainer(world, rollouts)
                for _ in range(3):
                    await trainer.get()
                assert await trainer.publish(steps=2) == 2
                counts = rollouts.statistics()
                assert (counts.trained, counts.held, counts.publish_lag) == (4, 2, 1)
                for steps in (1, 4, -1, 2.0):
                    with pytest.raises(ValueError, match="steps: got"):
                        await trainer.publish(steps=steps)
                assert await trainer.publish() == 3

        world.run(body)

    def test_draining_waits_for_the_ends_of_rollouts(self, world: World) -> None:
        async def body() -> None:
            engine = Engine(world, holds=lambda prompt, rollout: prompt == 3)
            rollouts = queue(8)
            async with generating(world, rollouts, engine):
                trainer = Trainer(world, rollouts)
                await trainer.get()
                await world.until(lambda: len(engine.running) == 2 and engine.most >= 2)
                publishing = world.spawn(trainer.publish_drained)
                await world.until(lambda: rollouts._core.machine.is_paused)
                text = str(rollouts.explain())
                assert "is open: it waits for 2 rollouts to end" in text
                assert "rollout 0 of prompt 3" in text
                engine.end_all()
                assert await publishing.result() == (0, 1)
                assert len(await trainer.train_all()) == 3

        world.run(body)

    def test_draining_waits_for_safe_points(self, task_world: TaskWorld) -> None:
        world = task_world

        async def body() -> None:
            turns: dict[int, int] = {}

            async def agent(prompt: int, rollout: Any) -> int:
                for turn in range(1, 40):
                    await world.tick()
                    turns[prompt] = turn
                    await rollout.safe_point()
                return prompt

            rollouts = queue(4, group_size=1)
            async with generating(world, rollouts, agent):
                await world.until(lambda: len(turns) > 0)
                async with rollouts.publishing(drain="safe", steps=0):
                    before = dict(turns)
                    for _ in range(5):
                        await world.tick()
                    assert turns == before
                    assert any(turn < 39 for turn in turns.values())
                assert len(await Trainer(world, rollouts).train_all()) == 2

        world.run(body)


class TestAccept:
    def test_a_group_is_scored_and_refused(self, world: World) -> None:
        async def body() -> None:
            def score(group: Group[int, Any]) -> bool:
                group.info["reward"] = group.prompt * 10
                return group.prompt % 3 != 0

            rollouts = queue(12, accept=score, order="strict")
            async with generating(world, rollouts, Engine(world)):
                trainer = Trainer(world, rollouts)
                found = {
                    group.prompt: group.info["reward"]
                    async for batch in trainer.batches()
                    for group in batch.groups
                }
            assert found == {n: n * 10 for n in range(12) if n % 3}
            assert rollouts.statistics().refused == 4
            check_sums(rollouts)

        world.run(body)

    def test_accept_may_be_a_coroutine_function(self, world: World) -> None:
        async def body() -> None:
            async def score(group: Group[int, Any]) -> bool:
                return group.prompt % 2 == 0

            rollouts = queue(8, accept=score, order="strict")
            async with generating(world, rollouts, Engine(world)):
                assert await Trainer(world, rollouts).train_all() == [[0, 2], [4, 6]]

        world.run(body)

    def test_the_place_of_a_refused_group_may_stay_empty(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(
                10,
                accept=lambda group: group.prompt not in (1, 4, 5),
                on_refused="shorten",
                order="strict",
            )
            async with generating(world, rollouts, Engine(world)):
                batches = await Trainer(world, rollouts).train_all()
            assert batches == [[0], [2, 3], [6, 7], [8, 9]]
            counts = rollouts.statistics()
            assert (counts.trained, counts.refused, counts.step) == (7, 3, 4)

        world.run(body)

    def test_batches_by_weight(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(
                8, batch_size=10, weigh=lambda group: group.prompt + 1, max_weight=8, order="strict"
            )
            async with generating(world, rollouts, Engine(world)):
                batches = await Trainer(world, rollouts).train_all()
            assert batches == [[0, 1, 2, 3], [4, 5], [6, 7]]

        world.run(body)


class TestStaleness:
    def test_what_is_too_old_is_generated_again(self, task_world: TaskWorld) -> None:
        world = task_world

        async def body() -> None:
            engine = Engine(world, holds=lambda prompt, rollout: prompt == 0)
            rollouts = queue(
                6, batch_size=1, group_size=1, max_staleness=1, on_stale="cancel", steps_ahead=1
            )
            async with generating(world, rollouts, engine):
                ages: list[int] = []
                async for batch in rollouts.batches():
                    ages += batch.staleness
                    await rollouts.publish()
                    if engine.started.count((0, 0, 1)) > 1:
                        engine.end_all()
            assert max(ages) <= 1
            counts = rollouts.statistics()
            assert (counts.trained, counts.dropped) == (6, 0)
            assert counts.returned == engine.started.count((0, 0, 1)) - 1 > 0

        world.run(body)

    def test_frozen_rollouts_do_not_grow_old(self, world: World) -> None:
        async def body() -> None:
            def freeze(prompt: int, rollout: Any) -> int:
                if prompt == 0:
                    rollout.frozen()
                return prompt

            engine = Engine(world, holds=lambda prompt, rollout: prompt == 0, result=freeze)
            rollouts = queue(4, batch_size=1, group_size=1)
            async with generating(world, rollouts, engine):
                trainer = Trainer(world, rollouts)
                ages = {}
                async for batch in trainer.batches():
                    ages[batch.groups[0].prompt] = batch.staleness[0]
                    await trainer.publish()
                    if len(ages) == 3:
                        engine.end_all()
            assert ages[0] == 0

        world.run(body)

    def test_marks_have_the_versions_of_tokens(self, world: World) -> None:
        async def body() -> None:
            engine = Engine(world, holds=lambda prompt, rollout: prompt == 0)
            rollouts = queue(4, batch_size=1, group_size=1)
            async with generating(world, rollouts, engine):
                trainer = Trainer(world, rollouts)
                await world.until(lambda: (0, 0, 1) in engine.running)
                engine.rollouts[0, 0, 1].mark(3)
                engine.rollouts[0, 0, 1].mark(4)
                await trainer.get()
                await trainer.publish()
                engine.rollouts[0, 0, 1].mark(5)
                engine.rollouts[0, 0, 1].mark(2, version=1)
                engine.rollouts[0, 0, 1].mark(6, version=2)  # the engine has it already
                with pytest.raises(ValueError, match="n_tokens: got -1"):
                    engine.rollouts[0, 0, 1].mark(-1)
                with pytest.raises(ValueError, match="version: got 'new'"):
                    engine.rollouts[0, 0, 1].mark(1, version="new")  # type: ignore[arg-type]
                engine.end_all()
                batch = await trainer.get()
                while batch.groups[0].prompt:
                    batch.done()
                    batch = await trainer.get()
                assert batch.groups[0].rollouts[0].spans == ((0, 7), (1, 7), (2, 6))

        world.run(body)


class TestEvaluation:
    def test_it_is_trained_on_nowhere(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(4)
            async with generating(world, rollouts, Engine(world)):
                trainer = Trainer(world, rollouts)
                groups = await trainer.evaluate(["a", "b"], group_size=3)
                assert [group.prompt for group in groups] == ["a", "b"]
                assert [one.result for one in groups[1].rollouts] == [("b", 0), ("b", 1), ("b", 2)]
                assert [group.ordinal for group in groups] == [0, 1]
                assert len(await trainer.train_all()) == 2
                # After the last step, when no prompt and no slot is left.
                assert len(await trainer.evaluate(["c"])) == 1
            assert rollouts.statistics().admitted == 4
            assert rollouts.statistics().evaluating == 0

        world.run(body)

    def test_it_has_a_function_of_its_own(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(4)
            other = Engine(world, result=lambda prompt, rollout: "greedy")
            trainer = Trainer(world, rollouts)
            with pytest.raises(RuntimeError, match="has no function yet"):
                await trainer.evaluate([1])
            (group,) = await trainer.evaluate([1], other.function)
            assert group.rollouts[0].result == "greedy"
            async with generating(world, rollouts, Engine(world)):
                (group,) = await trainer.evaluate([1], other.function)
                assert group.rollouts[0].result == "greedy"

        world.run(body)

    def test_its_failure_is_that_of_the_call(self, world: World) -> None:
        async def body() -> None:
            def fail(prompt: Any, rollout: Any) -> Any:
                if prompt == "bad":
                    raise LookupError("no such question")
                return prompt

            rollouts = queue(4)
            async with generating(world, rollouts, Engine(world, result=fail)):
                trainer = Trainer(world, rollouts)
                with pytest.raises(LookupError, match="no such question") as caught:
                    await trainer.evaluate(["good", "bad", "good"])
                assert "rollout 0 of prompt 'bad' (of an evaluation)" in str(caught.value.__notes__)
                assert len(await trainer.train_all()) == 2

        world.run(body)

    def test_it_starts_before_the_training_or_in_its_turn(self, world: World) -> None:
        async def body() -> None:
            engine = Engine(world, holds=lambda prompt, rollout: True)
            rollouts = queue(8, max_in_flight=1, batch_size=1, group_size=1)
            async with generating(world, rollouts, engine):
                trainer = Trainer(world, rollouts)
                await world.until(lambda: engine.running)
                patient = world.spawn(trainer.evaluate_patiently, ["patient"])
                await world.until(lambda: rollouts._core.machine.evaluations)
                urgent = world.spawn(trainer.evaluate, ["urgent"])
                await world.until(lambda: len(rollouts._core.machine.evaluations) == 2)
                engine.end_all()
                await urgent.result()
                await patient.result()
                await trainer.train_all()
            order = [prompt for prompt, _, _ in engine.started]
            assert order[:4] == [0, "urgent", 1, "patient"]

        world.run(body)
