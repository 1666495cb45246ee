"""The two faces of a `RolloutQueue`, forks, interrupts, and who sees whose context."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import threading
import weakref
from contextvars import ContextVar
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.rl import Batch, RolloutQueue
from tests.kit.worlds import AsyncioWorld, World, spin_until
from tests.rl.kit import Engine, Trainer, generating
from tests.rl.test_queue import queue


class TestFaces:
    def test_each_leads_to_the_other(self) -> None:
        rollouts = queue(4, name="grpo")
        assert rollouts.aio is rollouts
        assert rollouts.sync.aio is rollouts
        assert rollouts.sync.sync.name == "grpo"
        rollouts.sync.set(max_in_flight=3)
        assert rollouts._core.machine.limit == 3
        assert "RolloutQueue 'grpo', step 0, version 0, 0 groups" in repr(rollouts)

    def test_the_blocking_face_refuses_an_event_loop(self) -> None:
        async def main() -> None:
            rollouts = queue(4).sync
            for call in (rollouts.get, rollouts.publish, lambda: next(rollouts.batches())):
                with pytest.raises(RuntimeError, match="event loop is running"):
                    call()

        asyncio.run(main())

    def test_there_is_no_block(self) -> None:
        rollouts: Any = queue(4)
        with pytest.raises(TypeError, match="has no block"), rollouts.sync:
            pass

        async def enter() -> None:
            async with rollouts:
                pass

        with pytest.raises(TypeError, match="has no block"):
            asyncio.run(enter())

    def test_a_timeout_ends_an_evaluation_and_not_the_training(self) -> None:
        engine = Engine(_threads(), holds=lambda prompt, rollout: True)
        rollouts = queue(2, batch_size=1, group_size=1, steps_ahead=0)
        with sync.Coordinator() as coordinator:
            coordinator.start(rollouts.generate(engine.function))
            with pytest.raises(TimeoutError, match=r"evaluate\(\) of .* its timeout of 0\.01 s"):
                rollouts.sync.evaluate(["a", "b"], timeout=0.01)
            assert rollouts.statistics().evaluating == 0
            engine.end_all()
            assert len(rollouts.sync.evaluate(["a", "b"], timeout=20)) == 2
            assert [batch.step for batch in rollouts.sync.batches()] == [0, 1]

    def test_a_timeout_ends_an_evaluation_without_a_training(self) -> None:
        async def for_ever(prompt: Any, rollout: Any) -> None:
            await asyncio.sleep(1e6)

        rollouts = queue(2)
        with pytest.raises(TimeoutError, match=r"evaluate\(\) of .* its timeout of 0\.01 s"):
            rollouts.sync.evaluate([1], for_ever, timeout=0.01)
        assert rollouts.statistics().running == 0
        assert [group.rollouts[0].result for group in self.evaluated(rollouts)] == [3]

    @staticmethod
    def evaluated(rollouts: Any) -> Any:
        return rollouts.sync.evaluate([3], lambda prompt, rollout: prompt, timeout=20)

    def test_a_timeout_ends_a_publication_that_waits(self) -> None:
        engine = Engine(_threads(), holds=lambda prompt, rollout: True)
        rollouts = queue(2)
        with sync.Coordinator() as coordinator:
            coordinator.start(rollouts.generate(engine.function))
            spin_until(lambda: len(engine.running) == 4)
            with (
                pytest.raises(TimeoutError, match=r"publishing\(\) of .* its timeout of 0\.01 s"),
                rollouts.sync.publishing(drain=True, timeout=0.01),
            ):
                raise AssertionError("the block begins")
            assert not rollouts._core.machine.is_paused
            engine.end_all()
            batch = rollouts.sync.get(timeout=20)
            assert rollouts.sync.publish(timeout=20) == batch.step + 1

    @pytest.mark.parametrize("timeout", [-1, "soon", True])
    def test_a_timeout_is_checked(self, timeout: Any) -> None:
        rollouts = queue(2).sync
        for call in (
            rollouts.get,
            rollouts.publish,
            rollouts.publishing,
            lambda timeout: rollouts.evaluate([1], len, timeout=timeout),
        ):
            with pytest.raises(aioqueue.InvalidArgumentError, match="timeout: got"):
                call(timeout=timeout)

    def test_a_timeout_leaves_the_batch(self) -> None:
        engine = Engine(_threads(), holds=lambda prompt, rollout: True)
        rollouts = queue(4)
        with sync.Coordinator() as coordinator:
            coordinator.start(rollouts.generate(engine.function))
            with pytest.raises(TimeoutError, match=r"has waited its timeout of 0\.01 s"):
                rollouts.sync.get(timeout=0.01)
            engine.end_all()
            assert rollouts.sync.get(timeout=20).step == 0

    def test_a_coroutine_function_generates_for_a_plain_script(self) -> None:
        rollouts = queue(8)

        async def generate(prompt: int, rollout: Any) -> int:
            await asyncio.sleep(0)
            return prompt

        trained = []
        with sync.Coordinator() as coordinator:
            (thread,) = coordinator.start(rollouts.generate(generate))
            for batch in rollouts.sync.batches():
                trained += [group.prompt for group in batch.groups]
                with rollouts.sync.publishing("weights"):
                    pass
            assert len(rollouts.sync.evaluate([1, 2])) == 2
        assert sorted(trained) == list(range(8))
        assert not thread.is_alive()
        assert rollouts.sync.policy.get() == (4, "weights")

    def test_a_trainer_is_interrupted(self) -> None:
        """Ctrl-C ends the wait of a plain script, and loses no batch."""
        engine = Engine(_threads(), holds=lambda prompt, rollout: True)
        rollouts = queue(4)
        with sync.Coordinator() as coordinator:
            coordinator.start(rollouts.generate(engine.function))

            is_over = threading.Event()

            def press() -> None:
                while not rollouts._core.waiting_takers():
                    pass
                # A signal that comes just before the thread sleeps in a lock does not wake it: see
                # CPython's `signal`. So it is pressed again, if the wait goes on.
                while rollouts._core.waiting_takers():
                    os.kill(os.getpid(), signal.SIGINT)
                    is_over.wait(2.0)

            presser = threading.Thread(target=press)
            presser.start()
            with pytest.raises(KeyboardInterrupt):
                rollouts.sync.get()
            is_over.set()
            presser.join()
            assert not rollouts._core.takers
            engine.end_all()
            assert rollouts.sync.get().step == 0

    def test_a_batch_can_be_sent(self, world: World) -> None:
        async def body() -> None:
            rollouts = queue(2)
            async with generating(world, rollouts, Engine(world)):
                batch = await Trainer(world, rollouts).get()
                sent: Batch[Any, Any] = pickle.loads(pickle.dumps(batch.split(2)[1]))
                assert sent.step == 0
                assert [one.result for one in sent.groups[0].rollouts]
                sent.done()
                assert rollouts.statistics().held == 2
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(rollouts)

        world.run(body)


def _threads() -> Any:
    from tests.kit.worlds import ThreadWorld

    return ThreadWorld()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_has_no_queue_that_generates() -> None:
    rollouts, fresh = queue(4), queue(4)
    with sync.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(Engine(_threads()).function))
        rollouts.sync.get()
        child = os.fork()
        if not child:
            code = 1
            try:
                assert "of another process" in repr(rollouts)
                with pytest.raises(RuntimeError, match="fork"):
                    rollouts.statistics()
                assert fresh.statistics().admitted == 0
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert status == 0


def test_no_rollout_sees_the_context_of_another(world: World) -> None:
    async def body() -> None:
        variable: ContextVar[str] = ContextVar("variable", default="nothing")
        token = variable.set("of the program")
        seen = []

        def note(prompt: Any, rollout: Any) -> Any:
            seen.append(variable.get())
            variable.set(f"of {prompt}")
            return prompt

        engine = Engine(world, result=note)
        rollouts = queue(20, max_in_flight=1)
        async with generating(world, rollouts, engine):
            await Trainer(world, rollouts).train_all()
        variable.reset(token)
        assert set(seen) == {"of the program"}

    world.run(body)


def test_nothing_keeps_a_queue_alive() -> None:
    async def main() -> weakref.ref[Any]:
        rollouts: RolloutQueue[int, Any] = queue(4)
        world = AsyncioWorld()
        async with generating(world, rollouts, Engine(world)):
            await Trainer(world, rollouts).train_all()
            await rollouts.evaluate([1])
        str(aioqueue.explain())
        return weakref.ref(rollouts._core)

    core = asyncio.run(main())
    gc.collect()
    assert core() is None
