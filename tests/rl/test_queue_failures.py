"""What a `RolloutQueue` says when something fails, and where."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Literal

import anyio
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import (
    InvalidArgumentError,
    ItemTimeoutError,
    StarvedError,
    StillRunningError,
    WorkerDiedError,
)
from aioqueue.rl import Retry, RolloutQueue
from tests.kit.worlds import AsyncioWorld, TaskWorld, ThreadWorld, World
from tests.rl.kit import Engine, Trainer, generating
from tests.rl.test_queue import check_sums, queue


def fails_for(*prompts: Any) -> Callable[[Any, Any], Any]:
    def result(prompt: Any, rollout: Any) -> Any:
        if prompt in prompts:
            raise ConnectionError(f"engine of prompt {prompt}")
        return prompt

    return result


def only(group: BaseExceptionGroup[Any]) -> BaseException:
    (error,) = group.exceptions
    return error


class TestRollouts:
    def test_a_failure_ends_the_run_and_is_reported_once(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(8, name="grpo")
            with pytest.raises(ExceptionGroup) as caught:
                async with generating(world, rollouts, Engine(world, result=fails_for(5))):
                    await Trainer(world, rollouts).train_all()
            error = only(caught.value)
            assert isinstance(error, ConnectionError)
            notes = "\n".join(error.__notes__)
            assert "of prompt 5 (ordinal 5), attempt 1, version" in notes
            assert "in RolloutQueue 'grpo'" in notes
            assert rollouts.statistics().running == 0
            check_sums(rollouts)

        world.run(body)

    def test_the_trainer_gets_the_failure(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(8, batch_size=8, group_size=1)
            with pytest.raises(ExceptionGroup):
                async with generating(world, rollouts, Engine(world, result=fails_for(1))):
                    with pytest.raises(ConnectionError):
                        await Trainer(world, rollouts).get()
                    with pytest.raises(ConnectionError):
                        await Trainer(world, rollouts).train_all()

        world.run(body)

    def test_a_failure_is_reported_without_a_trainer(self, world: World) -> None:
        async def body() -> None:
            rollouts = RolloutQueue([0, 1], batch_size=1, order="strict")
            with pytest.raises(ExceptionGroup) as caught:
                async with generating(world, rollouts, Engine(world, result=fails_for(1))) as one:
                    joining = one.join()
                    if joining is not None:
                        await joining
            assert isinstance(only(caught.value), ConnectionError)

        world.run(body)

    def test_retries_continue_until_they_are_used_up(self, world: World) -> None:
        async def body() -> None:
            def fail_twice(prompt: Any, rollout: Any) -> Any:
                if rollout.attempt < 3:
                    raise ConnectionError("engine")
                return prompt

            rollouts, engine = queue(2), Engine(world, result=fail_twice)
            async with generating(world, rollouts, engine, retry=Retry(2)):
                assert len(await Trainer(world, rollouts).train_all()) == 1
            attempts = sorted(attempt for _, _, attempt in engine.started)
            assert attempts == [1] * 4 + [2] * 4 + [3] * 4

            rollouts, engine = queue(1), Engine(world, result=fails_for(0))
            with pytest.raises(ExceptionGroup) as caught:
                async with generating(world, rollouts, engine, retry=Retry(2)):
                    await Trainer(world, rollouts).train_all()
            assert "attempt 3" in str(only(caught.value).__notes__)

        world.run(body)

    def test_a_retry_waits_for_its_backoff(self, world: World) -> None:
        async def body() -> None:
            def fail_once(prompt: Any, rollout: Any) -> Any:
                if rollout.attempt == 1:
                    raise ConnectionError("engine")
                return prompt

            delays: list[int] = []

            def backoff(failures: int) -> float:
                delays.append(failures)
                return 0.001

            rollouts = queue(2, group_size=1)
            engine = Engine(world, result=fail_once)
            async with generating(world, rollouts, engine, retry=Retry(1, backoff)):
                await Trainer(world, rollouts).train_all()
            assert delays == [1, 1]

        world.run(body)

    def test_what_fails_for_good_can_be_dropped(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(7, on_error="drop", order="strict")
            engine = Engine(world, result=fails_for(2))
            async with generating(world, rollouts, engine):
                batches = await Trainer(world, rollouts).train_all()
            assert batches == [[0, 1], [3, 4], [5, 6]]
            assert rollouts.statistics().dropped_by == {"failed": 1}
            check_sums(rollouts)

        world.run(body)

    def test_the_others_of_a_group_can_be_kept(self, world: World) -> None:
        async def body() -> None:
            def fail_some(prompt: Any, rollout: Any) -> Any:
                if rollout.index < prompt:
                    raise ConnectionError("engine")
                return rollout.index

            rollouts = queue(4, group_size=4, on_error="partial", batch_size=1, order="strict")
            async with generating(world, rollouts, Engine(world, result=fail_some)):
                trainer = Trainer(world, rollouts)
                found = {
                    batch.groups[0].prompt: [one.index for one in batch.groups[0].rollouts]
                    async for batch in trainer.batches()
                }
            assert found == {0: [0, 1, 2, 3], 1: [1, 2, 3], 2: [2, 3]}
            assert rollouts.statistics().dropped == 1

        world.run(body)

    def test_a_rollout_that_takes_too_long_fails(self, world: World) -> None:
        async def body() -> None:
            engine = Engine(
                world, holds=lambda prompt, rollout: (prompt, rollout.attempt) == (0, 1)
            )
            rollouts = queue(2, group_size=1)
            options = {"timeout": 0.01, "retry": Retry(1)}
            async with generating(world, rollouts, engine, **options):
                batch = await Trainer(world, rollouts).get()
                assert [group.rollouts[0].attempt for group in batch.groups] == [2, 1]
                if engine.is_threaded:
                    assert rollouts.statistics().running == 1  # a thread cannot be cut short
                engine.end_all()

            engine = Engine(world, holds=lambda prompt, rollout: True)
            rollouts = queue(1, group_size=1)
            with pytest.raises(ExceptionGroup) as caught:
                async with generating(world, rollouts, engine, timeout=0.01):
                    with pytest.raises(ItemTimeoutError):
                        await Trainer(world, rollouts).get()
                    engine.end_all()
            error = only(caught.value)
            assert isinstance(error, ItemTimeoutError)
            assert (
                "rollout 0 of prompt 0 (ordinal 0) was not generated within timeout=0.01 s"
                in str(error)
            )
            assert "kit.py" in error.where

        world.run(body)

    def test_a_stray_cancellation_is_a_failure(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            async def generate(prompt: int, rollout: Any) -> int:
                raise asyncio.CancelledError

            rollouts = queue(2)
            with pytest.raises(ExceptionGroup) as caught:
                async with generating(task_world, rollouts, generate):
                    await Trainer(task_world, rollouts).train_all()
            assert "was not cancelled by the queue" in str(only(caught.value))

        if not task_world.name.startswith("trio"):
            task_world.run(body)


class TestOtherFunctions:
    def test_the_prompts_fail(self, world: World) -> None:
        def prompts() -> Iterator[int]:
            yield from range(5)
            raise OSError("the disk")

        async def body() -> None:
            rollouts = queue(prompts(), group_size=1)
            trained: list[Any] = []
            with pytest.raises(ExceptionGroup) as caught:
                engine = Engine(world, holds=lambda prompt, rollout: prompt == 4)
                async with generating(world, rollouts, engine):
                    async for batch in Trainer(world, rollouts).batches():
                        trained += [group.prompt for group in batch.groups]
                        if batch.step == 1:
                            batch.done()
                            await world.until(lambda: rollouts._core.machine.error)
                            assert "have failed with OSError: the disk" in str(rollouts.explain())
                            engine.end_all()
            assert sorted(trained) == [0, 1, 2, 3, 4]
            assert isinstance(only(caught.value), OSError)
            assert "in the prompts of RolloutQueue" in str(only(caught.value).__notes__)

        world.run(body)

    @pytest.mark.parametrize("what", ["accept", "weigh", "group_size"])
    def test_a_function_fails(self, world: World, what: str) -> None:
        async def body() -> None:
            def fail(value: Any) -> Any:
                raise LookupError("my bug")

            rollouts = queue(4, **{what: fail})
            with pytest.raises(ExceptionGroup) as caught:
                async with generating(world, rollouts, Engine(world)):
                    await Trainer(world, rollouts).train_all()
            assert isinstance(only(caught.value), LookupError)
            assert what in str(only(caught.value).__notes__)
            assert rollouts.statistics().refused == 0
            check_sums(rollouts)

        world.run(body)

    @pytest.mark.parametrize("is_async", [False, True])
    def test_accept_returns_nothing(self, world: World, is_async: bool) -> None:
        async def body() -> None:
            def forget(group: Any) -> Any: ...

            async def forget_async(group: Any) -> Any: ...

            rollouts = queue(4, accept=forget_async if is_async else forget)
            with pytest.raises(ExceptionGroup) as caught:
                async with generating(world, rollouts, Engine(world)):
                    await Trainer(world, rollouts).train_all()
            assert "accept: returned None" in str(only(caught.value))

        world.run(body)

    def test_a_plain_function_returns_a_coroutine(self) -> None:
        async def generate(prompt: int, rollout: Any) -> int:
            return prompt

        def plain(prompt: int, rollout: Any) -> Any:
            return generate(prompt, rollout)

        rollouts = queue(2)
        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coordinator:
            coordinator.start(rollouts.generate(plain))
            list(rollouts.sync.batches())
        assert "make it a coroutine function" in str(only(caught.value))

    def test_an_async_accept_fails(self, world: World) -> None:
        async def body() -> None:
            async def fail(group: Any) -> bool:
                raise LookupError("my bug")

            rollouts = queue(4, accept=fail)
            with pytest.raises(ExceptionGroup) as caught:
                async with generating(world, rollouts, Engine(world)):
                    await Trainer(world, rollouts).train_all()
            assert isinstance(only(caught.value), LookupError)

        world.run(body)

    def test_the_publication_of_a_trainer_fails_without_the_run(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(8)
            async with generating(world, rollouts, Engine(world)):
                trainer = Trainer(world, rollouts)
                with pytest.raises(ConnectionError):
                    async with trainer.publishing():
                        raise ConnectionError("engine")
                assert len(await trainer.train_all()) == 4

        world.run(body)


class TestStarving:
    @pytest.mark.parametrize(
        ("on_refused", "outcome"),
        [("replace", "no batch would ever be complete"), ("shorten", "batches stay empty")],
    )
    def test_everything_is_refused(
        self, world: World, on_refused: Literal["replace", "shorten"], outcome: str
    ) -> None:
        async def body() -> None:
            endless = aioqueue.inputs.items(list(range(10)))
            rollouts = RolloutQueue(
                endless,
                batch_size=2,
                accept=lambda group: False,
                on_refused=on_refused,
                max_refused=3,
            )
            with pytest.raises(ExceptionGroup) as caught:
                async with generating(world, rollouts, Engine(world)):
                    await Trainer(world, rollouts).train_all()
            error = only(caught.value)
            assert isinstance(error, StarvedError)
            assert "6 groups in a row were refused or dropped (max_refused=3 batches)" in str(error)
            assert f", so {outcome}; in the whole run: 6 refused by accept=" in str(error)
            assert (error.refused, error.dropped) == (6, {})

        world.run(body)

    def test_prompts_that_end_before_that_are_logged(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def body() -> None:
            rollouts = queue(4, accept=lambda group: False, name="grpo")
            async with generating(world, rollouts, Engine(world)):
                assert await Trainer(world, rollouts).train_all() == []
            text = (
                "RolloutQueue 'grpo' has ended without a step: 4 groups refused, 0 groups dropped"
            )
            assert text in caplog.text

        world.run(body)

    def test_one_that_is_accepted_restarts_the_count(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(
                40, accept=lambda group: group.prompt % 4 == 0, max_refused=6, order="strict"
            )
            async with generating(world, rollouts, Engine(world)):
                assert len(await Trainer(world, rollouts).train_all()) == 5

        world.run(body)


class TestTheGeneration:
    def test_a_thread_that_does_not_end_is_reported(self) -> None:
        engine = Engine(ThreadWorld(), holds=lambda prompt, rollout: True)
        rollouts = queue(1, group_size=1)
        coordinator = sync.Coordinator(stop_grace_period=0.05)
        with pytest.raises(ExceptionGroup) as caught, coordinator:
            coordinator.start(rollouts.generate(engine.function))
            while not engine.running:
                pass
        error = only(caught.value)
        assert isinstance(error, StillRunningError)
        assert rollouts.name in str(error)
        engine.end_all()

    def test_it_is_started_once(self, world: World) -> None:
        async def body() -> None:
            rollouts, engine = queue(2), Engine(world)
            async with generating(world, rollouts, engine) as coordinator:
                with pytest.raises(RuntimeError, match="is generated already"):
                    coordinator.start(rollouts.generate(engine.function))
                await Trainer(world, rollouts).train_all()

        world.run(body)

    def test_other_code_cancels_it(self) -> None:
        async def main() -> None:
            rollouts = queue(8)
            engine = Engine(AsyncioWorld(), holds=lambda prompt, rollout: True)
            async with aioqueue.Coordinator() as coordinator:
                coordinator.start(rollouts.generate(engine.function))
                while not engine.running:
                    await asyncio.sleep(0)
                for task in asyncio.all_tasks():
                    if task.get_name() == f"aioqueue-{rollouts.name}":
                        task.cancel()
                with pytest.raises(WorkerDiedError, match="nobody had asked it to stop"):
                    await rollouts.get()
                with pytest.raises(WorkerDiedError, match="nobody had asked it to stop"):
                    await rollouts.get()
            assert not engine.running
            check_sums(rollouts)

        asyncio.run(main())

    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_a_cancelled_program_leaves_nothing_behind(self, backend: str) -> None:
        async def main() -> None:
            rollouts = queue(8)
            engine = Engine(AsyncioWorld(), holds=lambda prompt, rollout: True)
            with anyio.move_on_after(0.05) as scope:
                async with aioqueue.Coordinator() as coordinator:
                    coordinator.start(rollouts.generate(engine.function))
                    await rollouts.get()
            assert scope.cancelled_caught
            assert not engine.running
            assert rollouts.statistics().running == 0
            check_sums(rollouts)

        anyio.run(main, backend=backend)


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"batch_size": 0}, "batch_size: got 0"),
            ({"batch_size": 1.5}, "batch_size: got 1.5"),
            ({"group_size": 0}, "group_size: got 0"),
            ({"steps_ahead": -1}, "steps_ahead: got -1"),
            ({"steps_ahead": "1"}, "steps_ahead: got '1'"),
            ({"max_in_flight": -1}, "max_in_flight: got -1"),
            ({"order": "newest"}, "order: got 'newest'; expected 'ready', 'oldest' or 'strict'"),
            ({"on_stale": "wait"}, "on_stale: got 'wait' without max_staleness"),
            ({"max_staleness": 3}, "max_staleness: got 3 with on_stale='train'"),
            (
                {"max_staleness": 1, "steps_ahead": 1.5, "on_stale": "drop"},
                "max_staleness: got 1 with steps_ahead=1.5; expected at least 2",
            ),
            (
                {"max_staleness": 2, "on_stale": "wait", "weigh": len},
                "on_stale: got 'wait' with weigh",
            ),
            ({"max_weight": 3}, "max_weight: given without weigh"),
            ({"max_refused": 0}, "max_refused: got 0"),
            ({"accept": 3}, "accept: got 3"),
            ({"on_error": "skip"}, "on_error: got 'skip'"),
            ({"on_refused": "drop"}, "on_refused: got 'drop'"),
            ({"min_group_size": 0}, "min_group_size: got 0"),
            ({"seed": -1}, "seed: got -1"),
            ({"name": 3}, "name: got 3"),
            ({"drop_remainder": 1}, "drop_remainder: got 1"),
        ],
    )
    def test_of_the_constructor(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidArgumentError) as caught:
            queue(4, **options)
        assert str(caught.value).startswith(message)

    @pytest.mark.parametrize("prompts", ["abc", 3, {"a": 1}, None])
    def test_of_prompts(self, prompts: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="prompts: got"):
            RolloutQueue(prompts, batch_size=2)

    def test_of_generate(self) -> None:
        async def task(prompt: Any, rollout: Any) -> None: ...

        def plain(prompt: Any, rollout: Any) -> None: ...

        rollouts = queue(4)
        for function, options, message in (
            (3, {}, "generate: got 3"),
            (plain, {"where": "task"}, "where: got 'task' for .*plain"),
            (task, {"where": "thread"}, "where: got 'thread' for .*task"),
            (plain, {"where": "gpu"}, "where: got 'gpu'"),
            (plain, {"timeout": 0}, "timeout: got 0"),
            (plain, {"retry": 3}, "retry: got 3"),
            (plain, {"retry": Retry(1, then="skip")}, "retry: got then='skip'"),
            (task, {"workers": 3}, "workers: got 3 for a coroutine function"),
            (plain, {"workers": 0}, "workers: got 0"),
        ):
            with pytest.raises(InvalidArgumentError, match=message):
                rollouts.generate(function, **options)  # type: ignore[arg-type]

    def test_of_other_methods(self) -> None:
        rollouts = queue(4)
        for call, message in (
            (lambda: rollouts.batches(-1), "steps: got -1"),
            (lambda: rollouts.publishing(drain="yes"), "drain: got 'yes'"),  # type: ignore[arg-type]
            (lambda: rollouts.set(batch_size=0), "batch_size: got 0"),
            (lambda: rollouts.set(max_in_flight=-1), "max_in_flight: got -1"),
        ):
            with pytest.raises(InvalidArgumentError, match=message):
                call()

    def test_names_of_other_libraries_are_explained(self) -> None:
        with pytest.raises(AttributeError, match=r"publishing\(\); the version counts steps"):
            queue(4).update_weights  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(TypeError, match="here that is steps_ahead="):
            queue(4, max_head_offpolicyness=4)
