"""`Restart` starts a failed worker again, and reports one that keeps failing."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue import Restart, sync
from aioqueue.coordination import restarts
from aioqueue.coordination.workers import WorkerPlan
from aioqueue.core.meters import Meter
from aioqueue.errors import InvalidArgumentError, OutOfRangeError
from tests.kit.coordinators import notes
from tests.kit.worlds import PATIENCE, StillClock, spin_until

Op = Callable[[], Any]
LONG = 3600.0  # seconds that no test waits


class CrashError(Exception):
    """What a worker fails with."""


class Script:
    """An op that does what a script says, call by call: an int is enqueued, an error raised."""

    def __init__(self, queue: aioqueue.FIFOQueue, *steps: int | BaseException) -> None:
        self.queue = queue
        self.steps = iter(steps)

    def next(self) -> int:
        step = next(self.steps, None)
        if step is None:
            raise OutOfRangeError("the script has ended")
        if isinstance(step, BaseException):
            raise step
        return step

    def as_op(self, kind: str) -> Op:
        async def in_task() -> None:
            await self.queue.enqueue(self.next())

        def on_thread() -> None:
            self.queue.sync.enqueue(self.next())

        return in_task if kind == "task" else on_thread


async def run_async(queue: aioqueue.FIFOQueue, ops: list[Op], restart: Restart) -> Any:
    async with aioqueue.Coordinator() as coord:
        runner = aioqueue.QueueRunner(queue, ops, restart=restart)
        coord.start(runner)
        taken = [element async for element in queue]
    return taken, runner


def run_blocking(queue: aioqueue.FIFOQueue, ops: list[Op], restart: Restart) -> Any:
    """Run a runner on threads, without a block."""
    coord = sync.Coordinator()
    runner = sync.QueueRunner(queue, ops, restart=restart)
    threads = runner.create_threads(coord=coord, daemon=True, start=True)
    try:
        taken = list(queue.sync)
    finally:
        coord.request_stop()
        coord.join(threads)
    return taken, runner


@pytest.fixture(params=["task-async", "task-trio", "thread-async", "task-sync", "thread-sync"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs scripts to their end: as tasks or on threads, through either face."""
    kind, face = request.param.split("-")

    def to_the_end(queue: aioqueue.FIFOQueue, restart: Restart, *scripts: Script) -> Any:
        ops = [script.as_op(kind) for script in scripts]
        if face == "sync":
            return run_blocking(queue, ops, restart)
        backend = "trio" if face == "trio" else "asyncio"
        return anyio.run(run_async, queue, ops, restart, backend=backend)

    if face == "trio":
        pytest.importorskip("trio")

    return to_the_end


def test_a_failed_worker_is_started_again(
    run: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue = aioqueue.FIFOQueue(8)
    script = Script(queue, 1, CrashError("a"), 2, 3, CrashError("b"), 4)
    taken, runner = run(queue, Restart(2), script)
    assert taken == [1, 2, 3, 4]
    assert runner.times_restarted == 2
    assert not runner.exceptions_raised
    reported = [record for record in caplog.records if record.name == "aioqueue"]
    failures = [record.exc_info[1] for record in reported if record.exc_info]
    assert [str(failure) for failure in failures] == ["a", "b"]
    assert "started again at once (restart 2 of 2)" in reported[1].getMessage()


def test_a_worker_that_keeps_failing_is_reported(run: Callable[..., Any]) -> None:
    queue = aioqueue.FIFOQueue(8)
    last = CrashError("c")
    script = Script(queue, 1, CrashError("a"), CrashError("b"), last, 2)
    heard = []

    def listen(failures: int, *, error: Exception) -> float:
        heard.append((failures, str(error)))
        return failures / 1e4

    with pytest.raises(ExceptionGroup) as caught:
        run(queue, Restart(2, backoff=listen), script)
    assert heard == [(1, "a"), (2, "b")]
    assert last in caught.value.exceptions
    assert any("started again 2 times before" in note for note in notes(last))
    assert any("after CrashError: b" in note for note in notes(last))
    with pytest.raises(OutOfRangeError) as ended:
        queue.sync.dequeue()
    assert ended.value.__cause__ is last


@pytest.mark.parametrize(
    "error", [ValueError("not among `on`"), SystemExit(3), OutOfRangeError("the end")]
)
def test_what_restarts_nothing(error: BaseException) -> None:
    async def main() -> None:
        queue = aioqueue.FIFOQueue(8)
        runner = aioqueue.QueueRunner(
            queue, [Script(queue, error, 1).as_op("thread")], restart=Restart(5, on=CrashError)
        )
        if isinstance(error, OutOfRangeError):
            await runner.run()
        else:
            with pytest.raises(BaseExceptionGroup) as caught:
                await runner.run()
            assert caught.value.exceptions == (error,)
        assert runner.times_restarted == 0
        assert queue.size() == 0

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["task", "thread"])
@pytest.mark.parametrize("ending", ["stop", "drain", "close", "leave"])
def test_what_ends_a_run_ends_the_pause_at_once(kind: str, ending: str) -> None:
    """The pause is an hour; each of these ends it."""
    paused = threading.Event()

    def pause(failures: int) -> float:
        paused.set()
        return LONG

    async def main() -> int:
        queue = aioqueue.FIFOQueue(8)
        script = Script(queue, CrashError("a"), 1)
        runner = aioqueue.QueueRunner(queue, [script.as_op(kind)], restart=Restart(5, pause))
        try:
            async with aioqueue.Coordinator() as c:
                c.start(runner)
                await asyncio.to_thread(paused.wait, PATIENCE)
                if ending == "stop":
                    c.request_stop()
                elif ending == "drain":
                    c.drain()
                elif ending == "close":
                    queue.close()
                if ending != "leave":
                    await c.join()
            assert ending != "close"
        except* CrashError:  # no restart follows, so it is final
            assert (ending, runner.times_restarted) == ("close", 0)
        assert list(script.steps) == [1], "the op was called again"
        return queue.size()

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == 0


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_a_queue_that_is_closed_in_between_loses_nothing(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Ops move elements from one queue to another, and crash before they take one; the other queue
    is closed at any moment of their pauses. No element is lost or repeated."""
    caplog.set_level(logging.CRITICAL, "aioqueue")
    for seed in range(40):
        random = Random(seed)
        upstream, queue = sync.FIFOQueue(None), sync.FIFOQueue(None)
        upstream.enqueue_many(range(20))
        crashes_at, closes_at = random.randint(1, 8), random.randint(1, 3)
        calls = [0]

        def pause(
            failures: int, queue: Any = queue, closes_at: int = closes_at, seed: int = seed
        ) -> float:
            if failures < closes_at:
                return 0.0
            if seed % 2:
                queue.close()
                return 0.0
            threading.Timer(0.0005, queue.close).start()
            return LONG

        def step(calls: Any = calls, crashes_at: int = crashes_at) -> None:
            calls[0] += 1
            if calls[0] >= crashes_at:
                raise CrashError("x")

        def on_thread(step: Any = step, upstream: Any = upstream, queue: Any = queue) -> None:
            step()
            queue.enqueue(upstream.dequeue())

        async def in_task(step: Any = step, upstream: Any = upstream, queue: Any = queue) -> None:
            step()
            await queue.aio.enqueue(await upstream.aio.dequeue())

        op: Op = in_task if kind == "task" else on_thread
        runner = sync.QueueRunner(queue, [op], restart=Restart(9, pause))
        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            coord.start(runner)
            coord.join()
        (failure,) = caught.value.exceptions
        assert type(failure) is CrashError
        assert any("in step" in note for note in notes(failure)), "its traceback is lost"
        assert queue.size() + upstream.size() == 20, seed
        assert calls[0] == crashes_at + closes_at - 1
        assert runner.times_restarted == closes_at - 1


def test_the_queue_stays_open_during_a_pause() -> None:
    """All other workers have ended."""
    queue = sync.FIFOQueue(8)
    may_enqueue = threading.Event()

    def pause(failures: int) -> float:
        assert may_enqueue.wait(PATIENCE)
        return 0.0

    scripts = [Script(queue.aio, CrashError("a"), 1), Script(queue.aio)]
    ops = [script.as_op("thread") for script in scripts]
    runner = sync.QueueRunner(queue, ops, restart=Restart(1, pause))
    threads = runner.create_threads(daemon=True, start=True)
    threads[1].join(PATIENCE)
    assert not queue.is_closed()
    may_enqueue.set()
    assert list(queue) == [1]
    threads[0].join(PATIENCE)


def test_random_crashes_lose_and_repeat_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Any mixture of workers, crashes and pauses."""
    caplog.set_level(logging.CRITICAL, "aioqueue")
    for seed in range(12):
        random = Random(seed)
        queue = aioqueue.FIFOQueue(random.randint(1, 4))
        steps: list[list[Any]] = [[] for _ in range(random.randint(1, 4))]
        for number in range(30):
            random.choice(steps).append(number)
        crashes = 0
        for one in steps:
            for _ in range(random.randint(0, 4)):
                one.insert(random.randint(0, len(one)), CrashError("x"))
                crashes += 1
        kinds = [random.choice(["task", "thread"]) for _ in steps]
        ops = [Script(queue, *one).as_op(kind) for one, kind in zip(steps, kinds, strict=True)]
        restart = Restart(4, random.choice([0.0, 1e-4]), jitter=random.random(), seed=seed)
        taken, runner = asyncio.run(run_async(queue, ops, restart))
        assert Counter(taken) == Counter(range(30)), seed
        assert runner.times_restarted == crashes, seed


def pauses(restart: Restart, times: int, number: int = 0) -> list[float | None]:
    """The pauses of a worker that fails again and again."""
    policy, plan = (
        restarts.RestartPolicy(restart),
        WorkerPlan(print, number, "print", is_task=False),
    )
    meter = Meter(plan.name)
    return [policy.pause_after(plan, meter, CrashError("x")) for _ in range(times)]


def test_jitter_is_seeded_and_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "aioqueue")
    restart = Restart(8, backoff=lambda failures: 2.0**failures, jitter=0.5, seed=7)
    of_one = pauses(restart, 8)
    assert of_one == pauses(restart, 8)
    assert of_one != pauses(restart, 8, number=1)  # workers do not come back together
    assert of_one != pauses(Restart(8, restart.backoff, jitter=0.5, seed=8), 8)
    for failures, pause in enumerate(of_one, 1):
        assert pause is not None
        assert 2.0**failures <= pause <= 1.5 * 2.0**failures
    assert pauses(Restart(2, 3.0), 3) == [3.0, 3.0, None]


def test_a_healthy_period_resets_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("aioqueue"), "disabled", True)
    clock = StillClock()
    monkeypatch.setattr(restarts, "perf_counter", clock)
    restart = Restart(2, backoff=lambda failures: float(failures), reset_after=60)
    policy, plan = restarts.RestartPolicy(restart), WorkerPlan(print, 0, "print", is_task=False)
    meter = Meter(plan.name)
    meter.began = clock.now

    def fails_after(seconds: float) -> float | None:
        clock.now += seconds
        pause = policy.pause_after(plan, meter, CrashError("x"))
        policy.wait_blocking(plan, meter, 0.0)
        return pause

    ran = [5.0, 5.0, 61.0, 59.0, 60.0, 1.0, 1.0]
    assert [*map(fails_after, ran)] == [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, None]


def test_during_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The objects of the failed call are freed, and an explanation names the failure."""
    monkeypatch.setattr(logging.getLogger("aioqueue"), "disabled", True)  # it would keep them
    queue = sync.FIFOQueue(8)
    held: list[weakref.ref[Script]] = []

    def fail() -> None:
        mine = Script(queue.aio)
        held.append(weakref.ref(mine))
        raise CrashError("a")

    runner, coord = sync.QueueRunner(queue, [fail], restart=Restart(1, LONG)), sync.Coordinator()
    threads = runner.create_threads(coord=coord, daemon=True, start=True)
    spin_until(lambda: runner.times_restarted == 1 and held[0]() is None)
    message = "aioqueue-fail-0 waits for its restart: for 3.6e+03 s, after CrashError: a"
    spin_until(lambda: message in str(aioqueue.explain()))
    assert coord.explain().coordinators[0].workers == ()  # the stage of its runner lists it
    queue.close()
    threads[0].join(PATIENCE)
    with pytest.raises(ExceptionGroup):
        coord.join()


def test_monitors_count_restarts() -> None:
    async def main() -> None:
        queue = aioqueue.FIFOQueue(8)
        script = Script(queue, CrashError("a"), 1, CrashError("b"), 2)
        async with aioqueue.Coordinator() as coord:
            monitor = coord.monitor()
            coord.start(aioqueue.QueueRunner(queue, [script.as_op("thread")], restart=Restart(2)))
            assert [element async for element in queue] == [1, 2]
            (stage,) = monitor.snapshot().stages
        assert stage.deaths == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("times", 0),
        ("times", 1.5),
        ("backoff", -1),
        ("backoff", "1"),
        ("on", BaseException),
        ("on", ()),
        ("reset_after", -1),
        ("jitter", 2),
        ("jitter", "much"),
        ("seed", 1.5),
    ],
)
def test_wrong_arguments(argument: str, given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{argument}: got "):
        Restart(**{"times": 1, argument: given})


def test_the_runner_refuses_other_restarts() -> None:
    wrong: Any = 3
    for runner in (aioqueue.QueueRunner, sync.QueueRunner):
        with pytest.raises(
            InvalidArgumentError, match=r"^restart: got 3; expected an aioqueue\.Restart"
        ):
            runner(aioqueue.FIFOQueue(1), [print], restart=wrong)
