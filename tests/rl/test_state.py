"""The state of a `RolloutQueue`: a run that is resumed trains each prompt once over both runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aioqueue.errors import InvalidArgumentError
from aioqueue.inputs import from_iterable, items, mix
from aioqueue.rl import RolloutQueue
from tests.kit.worlds import World
from tests.rl.kit import Engine, Trainer, generating


def refuses_some(group: Any) -> bool:
    return (
        hash(str(group.prompt)) % 3 != 1
        if isinstance(group.prompt, tuple)
        else group.prompt % 3 != 1
    )


def shuffled() -> Any:
    return items(list(range(20)), epochs=2, shuffle=True, seed=3)


def mixture() -> Any:
    return mix([items(list(range(9)), epochs=2), items([100, 101, 102], epochs=1)], seed=5)


def pipeline() -> Any:
    return items(list(range(40)), epochs=1, seed=1).prepare(double, where="thread")


def double(prompt: int) -> int:
    return 2 * prompt


PROMPTS = {
    "a list": lambda: list(range(30)),
    "shuffled epochs": shuffled,
    "a mixture": mixture,
    "a pipeline": pipeline,
}


async def train(
    world: World,
    rollouts: RolloutQueue[Any, Any],
    steps: int | None = None,
    *,
    last_is_trained: bool = True,
) -> tuple[list[Any], dict[str, Any]]:
    """Train some steps; return their prompts and seeds, and the state behind them."""
    trained = []
    state = rollouts.state_dict()
    async with generating(world, rollouts, Engine(world)):
        trainer = Trainer(world, rollouts)
        async for batch in trainer.batches(steps):
            trained.append([(group.prompt, group.rollouts[0].seed) for group in batch.groups])
            if last_is_trained or batch.step + 1 != steps:
                await trainer.publish()
                state = rollouts.state_dict()
    return trained, state


@pytest.mark.parametrize("prompts", list(PROMPTS))
@pytest.mark.parametrize("on_refused", ["replace", "shorten"])
@pytest.mark.slow(every=4)
def test_a_strict_run_that_is_resumed_has_the_same_batches(
    world: World, prompts: str, on_refused: Any
) -> None:
    async def body() -> None:
        def new() -> RolloutQueue[Any, Any]:
            return RolloutQueue(
                PROMPTS[prompts](),
                batch_size=3,
                order="strict",
                accept=refuses_some,
                on_refused=on_refused,
                seed=11,
            )

        whole, _ = await train(world, new())
        assert len(whole) > 4
        for steps in range(1, len(whole)):
            first, state = await train(world, new(), steps)
            rollouts = new()
            rollouts.load_state_dict(json.loads(json.dumps(state)))
            assert (rollouts.step, rollouts.version) == (steps, steps)
            rest, _ = await train(world, rollouts)
            assert first + rest == whole
            counts = rollouts.statistics()
            assert counts.trained == sum(map(len, whole))

    world.run(body)


def test_a_step_that_is_not_done_is_trained_again(world: World) -> None:
    async def body() -> None:
        def new() -> RolloutQueue[Any, Any]:
            return RolloutQueue(list(range(12)), batch_size=3, order="strict", seed=1)

        whole, _ = await train(world, new())
        first, state = await train(world, new(), 2, last_is_trained=False)
        rollouts = new()
        rollouts.load_state_dict(state)
        rest, _ = await train(world, rollouts)
        assert first[:1] + rest == whole
        assert first[1] == rest[0]

    world.run(body)


def test_what_was_overtaken_is_not_lost(world: World) -> None:
    """The lowest prompt still runs when later ones have been trained."""

    async def body() -> None:
        def new() -> RolloutQueue[Any, Any]:
            return RolloutQueue(list(range(8)), batch_size=1, order="ready", seed=1, steps_ahead=2)

        rollouts, engine = new(), Engine(world, holds=lambda prompt, rollout: prompt == 0)
        trained = []
        async with generating(world, rollouts, engine):
            trainer = Trainer(world, rollouts)
            for _ in range(3):
                batch = await trainer.get()
                trained.append(batch.groups[0].prompt)
                batch.done()
            state = rollouts.state_dict()
            engine.end_all()
        again = new()
        again.load_state_dict(state)
        rest, _ = await train(world, again)
        assert sorted(trained + [prompt for batch in rest for prompt, _ in batch]) == list(range(8))
        assert 0 not in trained

    world.run(body)


def test_groups_that_were_ready_are_stored(world: World, tmp_path: Path) -> None:
    async def body() -> None:
        def new() -> RolloutQueue[Any, Any]:
            def score(group: Any) -> bool:
                group.info["reward"] = group.prompt
                return True

            return RolloutQueue(
                list(range(8)), batch_size=2, accept=score, keep_results=tmp_path / "results"
            )

        rollouts, engine = new(), Engine(world)
        async with generating(world, rollouts, engine):
            trainer = Trainer(world, rollouts)
            batch = await trainer.get()
            await world.until(lambda: rollouts.statistics().ready == 2)
            batch.done()
            await world.until(lambda: rollouts.statistics().ready == 4)
            state = rollouts.state_dict()
            names = sorted(path.name for path in (tmp_path / "results").iterdir())
            assert names == state["results"]
            assert len(names) == 4
        rollouts, engine = new(), Engine(world)
        rollouts.load_state_dict(json.loads(json.dumps(state)))
        async with generating(world, rollouts, engine):
            trainer = Trainer(world, rollouts)
            rest = [
                (group.prompt, group.info["reward"], group.rollouts[0].result)
                async for one in trainer.batches()
                for group in one.groups
            ]
            rollouts.state_dict()
            rollouts.state_dict()
        trained = [group.prompt for group in batch.groups]
        assert sorted(prompt for prompt, _, _ in rest) == sorted(set(range(8)) - set(trained))
        assert all((reward, result) == (prompt, (prompt, 0)) for prompt, reward, result in rest)
        assert len(engine.started) == 2
        assert not list((tmp_path / "results").iterdir())

    world.run(body)


class TestRefused:
    def test_the_state_of_other_prompts(self) -> None:
        state = RolloutQueue(items([1, 2, 3], seed=1), batch_size=1, seed=1).state_dict()
        for prompts in (items([1, 2, 4], seed=1), items([1, 2, 3], shuffle=True, seed=1)):
            with pytest.raises(InvalidArgumentError, match="position: got"):
                RolloutQueue(prompts, batch_size=1, seed=1).load_state_dict(state)
        with pytest.raises(InvalidArgumentError, match="one of a source"):
            RolloutQueue(pipeline(), batch_size=1, seed=1).load_state_dict(state)

    def test_the_state_of_another_seed(self) -> None:
        prompts = items([1, 2, 3], seed=1)
        state = RolloutQueue(prompts, batch_size=1, seed=1).state_dict()
        with pytest.raises(InvalidArgumentError, match="it has seed 1; expected 2"):
            RolloutQueue(prompts, batch_size=1, seed=2).load_state_dict(state)
        rollouts = RolloutQueue(prompts, batch_size=1)
        rollouts.load_state_dict(state)
        assert rollouts.seed == 1

    def test_a_damaged_state(self) -> None:
        prompts = items([1, 2, 3], seed=1)
        state = RolloutQueue(prompts, batch_size=1).state_dict()
        rollouts = RolloutQueue(prompts, batch_size=1)
        for damaged in (
            {},
            None,
            {**state, "version": 7},
            {**state, "ordinal": 5},
            {**state, "a": 1},
        ):
            with pytest.raises(InvalidArgumentError, match="state: "):
                rollouts.load_state_dict(damaged)  # type: ignore[arg-type]

    def test_prompts_without_positions(self) -> None:
        rollouts = RolloutQueue(iter([1, 2, 3]), batch_size=1)
        with pytest.raises(InvalidArgumentError, match="can be iterated over only once"):
            rollouts.state_dict()
        generator = from_iterable(one for one in [1, 2])
        with pytest.raises(InvalidArgumentError, match="can be iterated over only once"):
            RolloutQueue(generator, batch_size=1).state_dict()

    def test_a_run_that_has_begun(self, world: World) -> None:
        async def body() -> None:
            rollouts = RolloutQueue([1, 2, 3], batch_size=1)
            state = rollouts.state_dict()
            async with generating(world, rollouts, Engine(world)):
                with pytest.raises(RuntimeError, match="after the generation had begun"):
                    rollouts.load_state_dict(state)

        world.run(body)
