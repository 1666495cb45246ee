"""What others have reported of their loops, played again: how each ends here, in virtual time.

Each test names the public report. Nothing here depends on how long the machine takes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import pytest

import aioqueue
from aioqueue import inputs
from aioqueue.rl import (
    Batch,
    ItemTimeoutError,
    OutOfRangeError,
    Rollout,
    RolloutQueue,
    StarvedError,
)
from aioqueue.testing import VirtualClock

T = TypeVar("T")

Generate = Callable[[Any, Rollout[Any]], Awaitable[Any]]

TRAINING = 5.0
PUBLICATION = 1.0
GIVE_UP = 10.0**6  # virtual seconds after which a run hangs


def played(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a test's coroutine in virtual time; it fails if it hangs."""
    return VirtualClock().run(asyncio.wait_for(main, GIVE_UP))


async def sample(prompt: T, rollout: Rollout[T]) -> T:
    """A rollout with a long tail, the same in every run."""
    await asyncio.sleep(random.Random(rollout.seed).expovariate(1 / 10))
    return prompt


async def train(
    rollouts: RolloutQueue[Any, Any],
    generate: Generate = sample,
    *,
    steps: int | None = None,
    after: Callable[[Batch[Any, Any]], Awaitable[object]] | None = None,
    **options: Any,
) -> list[list[Any]]:
    """Train until the end; return the prompts of each step."""
    seen = []
    async with aioqueue.Coordinator() as coord:
        coord.start(rollouts.generate(generate, **options))
        async for batch in rollouts.batches(steps):
            await asyncio.sleep(TRAINING)
            seen.append([group.prompt for group in batch.groups])
            async with rollouts.publishing():
                await asyncio.sleep(PUBLICATION)
            if after is not None:
                await after(batch)
    return seen


def flat(seen: list[list[Any]]) -> list[Any]:
    return [prompt for step in seen for prompt in step]


def first_failure(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def test_a_rollout_that_never_returns_is_named() -> None:
    """SkyRL 1173: a buffer stood at 125 of 128 for 29 hours."""

    async def generate(prompt: int, rollout: Rollout[int]) -> int:
        if prompt == 3 and rollout.index == 1:
            await asyncio.Event().wait()
        return await sample(prompt, rollout)

    async def watched() -> str:
        rollouts: RolloutQueue[int, int] = RolloutQueue(range(20), batch_size=4, group_size=2)
        training = asyncio.create_task(train(rollouts, generate))
        await asyncio.sleep(3600)
        text = str(rollouts.explain())
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)
        return text

    text = played(watched())
    assert "prompt 3" in text
    assert "rollout 1" in text
    assert "test_queue_reports_of_others.py" in text


def test_a_timeout_ends_it() -> None:
    async def generate(prompt: int, rollout: Rollout[int]) -> int:
        if prompt == 3:
            await asyncio.Event().wait()
        return await sample(prompt, rollout)

    rollouts: RolloutQueue[int, int] = RolloutQueue(range(12), batch_size=4, on_error="drop")
    seen = played(train(rollouts, generate, timeout=1800))
    assert sorted(flat(seen)) == [number for number in range(12) if number != 3]
    assert rollouts.statistics().dropped == 1

    failing: RolloutQueue[int, int] = RolloutQueue(range(12), batch_size=4)
    with pytest.raises(BaseExceptionGroup) as caught:
        played(train(failing, generate, timeout=1800))
    assert isinstance(first_failure(caught.value), ItemTimeoutError)


def test_when_every_worker_dies_the_trainer_learns_why_at_once() -> None:
    """NeMo-RL 3488: every collector had died, and the trainer polled for 3.7 hours."""

    async def generate(prompt: int, rollout: Rollout[int]) -> int:
        raise ConnectionError("the engine has ended")

    async def measured() -> float:
        rollouts: RolloutQueue[int, int] = RolloutQueue(range(20), batch_size=4)
        with pytest.raises(BaseExceptionGroup) as caught:
            await train(rollouts, generate, retry=inputs.Retry(3))
        failure = first_failure(caught.value)
        assert isinstance(failure, ConnectionError)
        (note,) = [note for note in failure.__notes__ if "attempt 4" in note]
        assert "rollout 0 of prompt" in note
        return asyncio.get_running_loop().time()

    assert played(measured()) < 60


@pytest.mark.parametrize("order", ["ready", "oldest", "strict"])
def test_a_prompt_that_always_fails_leaves_no_step_short(order: Any) -> None:
    """NeMo-RL 3938: the step of that prompt stayed short for ever."""

    async def generate(prompt: int, rollout: Rollout[int]) -> int:
        if prompt == 2:
            raise ValueError("the prompt is longer than the model allows")
        return await sample(prompt, rollout)

    rollouts: RolloutQueue[int, int] = RolloutQueue(
        range(9), batch_size=2, steps_ahead=0, group_size=2, order=order, on_error="drop"
    )
    seen = played(train(rollouts, generate, retry=inputs.Retry(2)))
    assert [len(step) for step in seen] == [2, 2, 2, 2]
    assert sorted(flat(seen)) == [0, 1, 3, 4, 5, 6, 7, 8]


def test_a_claim_is_no_result() -> None:
    """NeMo-RL 3435 and 3599, OpenRLHF 1322: a resumed run left out what had only been claimed."""

    class KilledError(Exception):
        pass

    states: list[Any] = []

    def queue() -> RolloutQueue[Any, Any]:
        prompts = inputs.items(list(range(24)), 1, shuffle=True, seed=5)
        return RolloutQueue(prompts, batch_size=3, steps_ahead=2, seed=1)

    async def killed() -> list[Any]:
        rollouts = queue()
        trained: list[Any] = []

        async def kill(batch: Batch[Any, Any]) -> None:
            trained.extend(group.prompt for group in batch.groups)
            if batch.step == 2:
                states.append(rollouts.state_dict())
                raise KilledError

        with pytest.raises((KilledError, BaseExceptionGroup)):
            await train(rollouts, after=kill)
        return trained

    before = played(killed())
    resumed = queue()
    resumed.load_state_dict(states[0])
    after = flat(played(train(resumed)))
    assert sorted(before + after) == list(range(24))


def test_refused_groups_give_their_slots_back() -> None:
    """SkyRL, a comment in its code: refused groups still count. AReaL: bursts after a restore."""
    rollouts: RolloutQueue[int, int] = RolloutQueue(
        range(60), batch_size=4, order="strict", accept=lambda group: group.prompt % 3 == 0
    )
    existing = []

    async def note(batch: Batch[Any, Any]) -> None:
        counts = rollouts.statistics()
        existing.append(counts.existing)
        total = counts.trained + counts.refused + counts.dropped + counts.returned
        assert counts.admitted == total + counts.existing

    seen = played(train(rollouts, after=note))
    assert flat(seen) == list(range(0, 60, 3))
    assert max(existing) <= 8


def test_refusing_everything_ends_also_on_an_endless_source() -> None:
    def endless() -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1

    rollouts: RolloutQueue[int, int] = RolloutQueue(
        endless(), batch_size=4, accept=lambda group: False
    )
    with pytest.raises((StarvedError, BaseExceptionGroup)) as caught:
        played(train(rollouts))
    failure = first_failure(caught.value)
    assert isinstance(failure, StarvedError)
    assert "40" in str(failure)


def test_the_data_ends_and_so_does_the_trainer() -> None:
    """tinker-cookbook 107 and 480: the trainer waited for ever."""
    rollouts: RolloutQueue[int, int] = RolloutQueue(range(7), batch_size=3, order="strict")
    assert played(train(rollouts)) == [[0, 1, 2], [3, 4, 5], [6]]
    whole: RolloutQueue[int, int] = RolloutQueue(
        range(7), batch_size=3, order="strict", drop_remainder=True
    )
    assert played(train(whole)) == [[0, 1, 2], [3, 4, 5]]
    assert whole.statistics().dropped == 1


@pytest.mark.parametrize(
    ("options", "trained"),
    [
        ({}, 8),
        ({"max_staleness": 2, "on_stale": "wait"}, 8),
        ({"max_staleness": 1, "on_stale": "drop", "stale_prompt": "drop"}, None),
    ],
)
def test_slow_prompts_are_trained_on(options: dict[str, Any], trained: int | None) -> None:
    """tinker-cookbook 822: what is too old was dropped, so slow prompts were never trained on."""

    async def generate(prompt: int, rollout: Rollout[int]) -> int:
        await asyncio.sleep(60 if prompt % 8 == 5 else 5)
        return prompt

    rollouts: RolloutQueue[int, int] = RolloutQueue(
        range(64), batch_size=4, order="ready", **options
    )
    seen = played(train(rollouts, generate))
    slow = sum(prompt % 8 == 5 for prompt in flat(seen))
    if trained is None:  # the bias that the documentation warns of
        assert slow < 8
        assert rollouts.statistics().dropped == 8 - slow
    else:
        assert slow == trained


def test_a_failed_publication_opens_the_gate() -> None:
    """Relax 211: after a failed update of the weights the engine stayed paused."""

    async def main() -> tuple[int, int]:
        rollouts: RolloutQueue[int, int] = RolloutQueue(range(12), batch_size=2)
        async with aioqueue.Coordinator() as coord:
            coord.start(rollouts.generate(sample))
            async for batch in rollouts.batches():
                expected: AbstractContextManager[Any] = nullcontext()
                if batch.step == 1:
                    expected = pytest.raises(ConnectionError)
                before = rollouts.version
                with expected:
                    async with rollouts.publishing():
                        if batch.step == 1:
                            raise ConnectionError("the update has failed")
                if batch.step == 1:
                    assert rollouts.version == before
        return rollouts.statistics().trained, rollouts.version

    assert played(main()) == (12, 6)


def test_an_evaluation_ends_after_the_last_step() -> None:
    """prime-rl 2912, 2263, 1671: the last evaluation waited at the gate of the training."""
    rollouts: RolloutQueue[Any, Any] = RolloutQueue(
        range(4), batch_size=2, steps_ahead=0, max_in_flight=2
    )
    evaluated = []

    async def evaluate(batch: Batch[Any, Any]) -> None:
        groups = await rollouts.evaluate(["q1", "q2", "q3"], group_size=2)
        evaluated.append([group.prompt for group in groups])

    played(train(rollouts, after=evaluate))
    assert evaluated == [["q1", "q2", "q3"]] * 2


def test_what_would_wait_for_itself_is_refused() -> None:
    async def main() -> None:
        rollouts: RolloutQueue[Any, Any] = RolloutQueue(range(4), batch_size=2)
        async with aioqueue.Coordinator() as coord:
            coord.start(rollouts.generate(sample))
            async for _ in rollouts.batches():
                async with rollouts.publishing():
                    with pytest.raises(RuntimeError):
                        await rollouts.evaluate(["q"])
                    with pytest.raises(RuntimeError):
                        await rollouts.get()
                    with pytest.raises(RuntimeError):
                        async with rollouts.publishing():
                            raise AssertionError("it was entered")

    played(main())


def test_a_publication_that_waits_names_what_for() -> None:
    """slime 1800: an update waited for a long rollout, and nobody saw which."""

    async def generate(prompt: int, rollout: Rollout[int]) -> int:
        await asyncio.sleep(3000 if prompt == 5 else 5)
        return prompt

    async def main() -> list[str]:
        rollouts: RolloutQueue[int, int] = RolloutQueue(range(12), batch_size=2)
        texts = []

        async def watch() -> None:
            await asyncio.sleep(600)
            texts.append(str(rollouts.explain()))

        async with aioqueue.Coordinator() as coord:
            coord.start(rollouts.generate(generate))
            watching = asyncio.create_task(watch())
            async for _ in rollouts.batches():
                async with rollouts.publishing(drain=True):
                    pass
            await watching
        return texts

    (text,) = played(main())
    assert "is open: it waits for 1 rollout" in text
    assert "prompt 5" in text


def test_nothing_in_flight_is_cancelled_by_a_new_version() -> None:
    """miles 2372 and 2589: a new version aborted all that ran."""
    cancelled = []

    async def generate(prompt: int, rollout: Rollout[int]) -> int:
        try:
            return await sample(prompt, rollout)
        except asyncio.CancelledError:
            cancelled.append(prompt)
            raise

    rollouts: RolloutQueue[int, int] = RolloutQueue(range(40), batch_size=4, steps_ahead=2)
    played(train(rollouts, generate))
    assert cancelled == []


def test_cancelling_waits_until_the_engine_runs_again() -> None:
    """prime-rl 2841: a rollout that was cancelled while the engine was paused killed the engine."""
    publishing: list[int] = []
    cancelled_inside: list[bool] = []

    async def generate(prompt: int, rollout: Rollout[int]) -> int:
        try:
            await asyncio.sleep(50 if prompt % 4 == 1 else 1)
        except asyncio.CancelledError:
            cancelled_inside.append(bool(publishing))
            raise
        return prompt

    async def main() -> None:
        rollouts: RolloutQueue[int, int] = RolloutQueue(
            range(40), batch_size=2, order="ready", max_staleness=1, on_stale="cancel"
        )
        async with aioqueue.Coordinator() as coord:
            coord.start(rollouts.generate(generate))
            async for _ in rollouts.batches(steps=8):
                async with rollouts.publishing():
                    publishing.append(1)
                    await asyncio.sleep(PUBLICATION)
                    publishing.clear()
            cancelled_inside.append(False)

    played(main())
    assert not any(cancelled_inside)


def test_the_tokens_of_each_version_are_distinguished() -> None:
    """slime 2092: one sample had tokens of three versions, and nobody could tell which."""

    async def generate(prompt: int, rollout: Rollout[int]) -> int:
        for _ in range(3):
            await asyncio.sleep(10)
            rollout.mark(100)
        return prompt

    async def main() -> list[Any]:
        rollouts: RolloutQueue[int, int] = RolloutQueue(range(8), batch_size=1, steps_ahead=3)
        spans = []
        async with aioqueue.Coordinator() as coord:
            coord.start(rollouts.generate(generate))
            async for batch in rollouts.batches():
                await asyncio.sleep(TRAINING)
                spans += [one.spans for group in batch.groups for one in group.rollouts]
                await rollouts.publish()
        return spans

    spans = played(main())
    assert all(sum(tokens for _, tokens in one) == 300 for one in spans)
    assert any(len(one) > 1 for one in spans)
    assert all(list(one) == sorted(one) for one in spans)


def test_the_prompts_fail_after_all_that_exists_is_trained() -> None:
    def prompts() -> Iterator[int]:
        yield from range(7)
        raise OSError("the disk has failed")

    trained: list[int] = []

    async def note(batch: Batch[Any, Any]) -> None:
        trained.extend(group.prompt for group in batch.groups)

    rollouts: RolloutQueue[int, int] = RolloutQueue(prompts(), batch_size=2)
    with pytest.raises((OSError, BaseExceptionGroup)) as caught:
        played(train(rollouts, after=note))
    assert isinstance(first_failure(caught.value), OSError)
    assert sorted(trained) == list(range(7))


def test_a_trainer_that_reads_ahead_learns_what_it_waits_for() -> None:
    async def main() -> str:
        rollouts: RolloutQueue[int, int] = RolloutQueue(range(12), batch_size=2, steps_ahead=0)
        async with aioqueue.Coordinator() as coord:
            coord.start(rollouts.generate(sample))
            first = await rollouts.get()
            second = asyncio.create_task(rollouts.get())
            await asyncio.sleep(500)
            text = str(rollouts.explain())
            assert not second.done()
            first.done()
            (await second).done()
            coord.request_stop()
        return text

    text = played(main())
    assert "step 1" in text
    assert "done() of step 0" in text


def test_get_raises_at_the_end() -> None:
    async def main() -> None:
        rollouts: RolloutQueue[int, int] = RolloutQueue(range(2), batch_size=2)
        async with aioqueue.Coordinator() as coord:
            coord.start(rollouts.generate(sample))
            (await rollouts.get()).done()
            with pytest.raises(OutOfRangeError):
                await rollouts.get()

    played(main())


def test_a_plain_function_waits_for_no_clock() -> None:
    """NeMo-RL, TRL, prime-rl, AReaL: admission polls every 5 ms to 1 s. Here no timer runs."""

    async def main() -> float:
        rollouts: RolloutQueue[int, int] = RolloutQueue(range(40), batch_size=4)

        async def generate(prompt: int, rollout: Rollout[int]) -> int:
            await asyncio.sleep(1)
            return prompt

        async with aioqueue.Coordinator() as coord:
            coord.start(rollouts.generate(generate))
            async for _ in rollouts.batches():
                await rollouts.publish()
        return asyncio.get_running_loop().time()

    # Ten steps; two are generated at the same time. A timer anywhere would add to it.
    assert played(main()) == pytest.approx(5, abs=1e-6)
