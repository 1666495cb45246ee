"""Preemption: a flag that signals, files and notices set."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from aioqueue import InvalidArgumentError, PreemptedError
from aioqueue.inputs import Preemption, numbers
from aioqueue.preemption import PreemptionAlarm
from aioqueue.system.forks import PROCESS
from tests.kit.going import plain, results
from tests.kit.worlds import ThreadWorld, World, ctrl_c, spin_until

needs_signals = pytest.mark.skipif(
    not hasattr(signal, "SIGUSR1"), reason="this system has no SIGUSR1"
)


@needs_signals
@pytest.mark.parametrize("number", [signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)])
def test_signals_set_it(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Preemption(grace=20) as preempted:
        assert (bool(preempted), preempted.deadline) == (False, None)
        begun = time.monotonic()
        signal.raise_signal(number)
        assert preempted
        assert preempted.reason == number.name
        assert preempted.deadline is not None
        assert preempted.deadline >= begun + 20
    assert preempted
    assert signal.getsignal(number) is before


@needs_signals
def test_earlier_handlers_are_called_too() -> None:
    called: list[Any] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: called.append(number))
    try:
        with Preemption() as outer, Preemption() as inner:
            signal.raise_signal(signal.SIGUSR1)
            assert outer
            assert inner
        assert called == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_in_a_coroutine() -> None:
    async def preempt() -> None:
        async with Preemption() as preempted:
            signal.raise_signal(signal.SIGTERM)
            assert preempted

    anyio.run(preempt)


def test_a_file_sets_it(tmp_path: Path) -> None:
    with Preemption((), file=tmp_path / "stop", every=0.001) as preempted:
        (tmp_path / "stop").touch()
        spin_until(lambda: bool(preempted))
    assert preempted.reason == "file"


def test_a_notice_sets_it_also_after_it_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    answers: Iterator[OSError | bool] = iter([OSError("no network"), False, True])

    def notice() -> bool:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    with Preemption((), notice=notice, every=0.001) as preempted:
        spin_until(lambda: bool(preempted))
    assert preempted.reason == "notice"
    assert "notice failed" in caplog.text


def test_it_calls_back_once() -> None:
    called: list[None] = []
    preempted = Preemption((), callback=lambda: called.append(None), grace=None)
    preempted.request("maintenance")
    preempted.request()
    assert (len(called), preempted.reason, preempted.deadline) == (1, "maintenance", None)


def test_the_watcher_ends() -> None:
    with Preemption((), notice=lambda: False, every=60):
        (thread,) = [one for one in threading.enumerate() if "preemption" in one.name]
    thread.join()


def test_only_the_main_thread_handles_signals() -> None:
    raised: list[BaseException] = []

    def enter() -> None:
        try:
            Preemption().__enter__()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])


def test_a_default_action_of_python_is_not_carried_out_either() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Preemption([signal.SIGINT]) as preempted:
            signal.raise_signal(signal.SIGINT)
            assert preempted
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_an_event_loop_does_not_interrupt_either(library: str) -> None:
    pytest.importorskip(library)

    async def steps() -> int:
        taken = 0
        async with Preemption([signal.SIGINT]) as preempted:
            signal.raise_signal(signal.SIGINT)
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
                taken += 1
            assert preempted
        return taken

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which loops replace
    try:
        assert anyio.run(steps, backend=library) == 3
    finally:
        signal.signal(signal.SIGINT, before)


class TestOtherHandlers:
    @pytest.fixture(autouse=True)
    def handler_put_back(self) -> Iterator[None]:
        before = signal.getsignal(signal.SIGTERM)
        yield
        signal.signal(signal.SIGTERM, before)

    @pytest.mark.parametrize("raised", [SystemExit(15), OSError("a bad\nhandler")])
    def test_an_exception_is_logged_and_does_not_interrupt(
        self, raised: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        def earlier(number: int, frame: object) -> None:
            raise raised

        signal.signal(signal.SIGTERM, earlier)
        with Preemption() as preempted:
            signal.raise_signal(signal.SIGTERM)
            assert preempted
        (record,) = caplog.records
        assert f"the earlier handler of SIGTERM raised {type(raised).__name__}" in record.message
        assert "\n" not in record.message
        with pytest.raises(type(raised)):
            signal.raise_signal(signal.SIGTERM)

    def test_that_of_ray_is_not_called(self) -> None:
        def sigterm_handler(number: int, frame: object) -> None:
            called.append(number)

        called: list[int] = []
        sigterm_handler.__module__ = "ray._private.worker"
        signal.signal(signal.SIGTERM, sigterm_handler)
        with Preemption() as preempted:
            signal.raise_signal(signal.SIGTERM)
            assert preempted
        assert called == []
        assert signal.getsignal(signal.SIGTERM) is sigterm_handler

    def test_a_replacing_handler_is_reported_once_and_kept(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def later(number: int, frame: object) -> None:
            called.append(number)

        called: list[int] = []
        with Preemption() as preempted:
            assert not preempted
            assert not caplog.records
            signal.signal(signal.SIGTERM, later)
            for _ in range(3):
                assert not preempted
        (record,) = caplog.records
        assert "another handler of SIGTERM replaced Preemption's" in record.message
        assert "ray.init()" in record.message
        signal.raise_signal(signal.SIGTERM)
        assert called == [signal.SIGTERM]

    def test_that_of_another_preemption_is_none(self, caplog: pytest.LogCaptureFixture) -> None:
        with Preemption() as outer, Preemption() as inner:
            assert (bool(outer), bool(inner)) == (False, False)
            signal.raise_signal(signal.SIGTERM)
            assert (bool(outer), bool(inner)) == (True, True)
        assert not caplog.records


@needs_signals
def test_what_the_system_handles_is_refused() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(InvalidArgumentError, match="SIGKILL"):
        Preemption([signal.SIGTERM, signal.SIGKILL]).__enter__()
    assert signal.getsignal(signal.SIGTERM) is before


class Sleeper:
    """It may wait for a batch."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def wake(self, reason: str) -> None:
        self.reasons.append(reason)


class TestAlarm:
    def test_it_wakes_present_and_later_sleepers(self) -> None:
        alarm, early, late = PreemptionAlarm(), Sleeper(), Sleeper()
        alarm.sleepers.add(early)
        alarm.wake(early)  # it does not ring
        alarm.ring("a", "because")
        alarm.ring("b", "also")
        alarm.wake(late)
        alarm.turn_off("a")
        alarm.turn_off("a")
        alarm.wake(late)
        assert (early.reasons, late.reasons) == (["because", "also"], ["because", "also"])
        alarm.turn_off("b")
        assert not alarm.reasons

    def test_it_keeps_no_sleeper_alive(self) -> None:
        alarm = PreemptionAlarm()
        alarm.sleepers.add(Sleeper())
        assert alarm.sleepers.listed() == []

    def test_in_a_fork_it_wakes_no_sleeper_of_the_parent(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Their threads do not run there, and their loops share a socket with the parent's."""
        alarm, of_parent, of_child = PreemptionAlarm(), Sleeper(), Sleeper()
        alarm.sleepers.add(of_parent)
        monkeypatch.setattr(PROCESS, "number", PROCESS.number + 1)
        alarm.sleepers.add(of_child)
        alarm.ring("a", "because")
        assert (of_parent.reasons, of_child.reasons) == ([], ["because"])


def test_it_is_entered_once_at_a_time() -> None:
    preempted = Preemption(())
    with preempted, pytest.raises(RuntimeError, match="entered already"):
        preempted.__enter__()
    with preempted:
        assert not preempted


def test_loops_leave_by_it() -> None:
    preempted = Preemption((), grace=None)
    preempted.check()
    preempted.request("maintenance", seconds=5)
    with pytest.raises(PreemptedError, match="maintenance") as raised:
        preempted.check()
    assert raised.value.reason == "maintenance"
    assert preempted.seconds_left is not None
    assert 0 < preempted.seconds_left <= 5
    assert Preemption(()).seconds_left is None


def test_a_thread_that_fails_reports_it(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("of the callback")

    reported: list[Any] = []
    before, threading.excepthook = threading.excepthook, reported.append
    try:
        with Preemption((), notice=lambda: True, callback=fail) as preempted:
            spin_until(lambda: reported)
            assert preempted
    finally:
        threading.excepthook = before
    assert "the check for preemption has ended" in caplog.text


class Held:
    """A function whose calls wait from some item on, until they are let go."""

    def __init__(self, first: int) -> None:
        self._first = first
        self.calls = 0
        self.go = threading.Event()

    def __call__(self, number: int) -> int:
        self.calls += 1
        if number >= self._first:
            self.go.wait()
        return number


class HeldSource:
    """The same in a pipeline of batches of four, of which the first ones can be made."""

    def __init__(self) -> None:
        self.function = Held(10)
        self.pipeline = numbers(40).prepare(self.function, workers=2).batch(4)


async def taken_until_preempted(world: World, epochs: Any) -> tuple[list[Any], PreemptedError]:
    """The batches until nobody is to wait any more, of one epoch."""
    taken: list[Any] = []
    with pytest.raises(PreemptedError) as raised:
        if isinstance(world, ThreadWorld):
            for epoch in epochs:
                for batch in epoch:
                    taken.append(plain(batch))  # noqa: PERF401  # some, and then it raises
        else:
            async for epoch in epochs:
                async for batch in epoch:
                    taken.append(plain(batch))  # noqa: PERF401  # as above
    return taken, raised.value


async def closed(world: World, epochs: Any) -> None:
    if isinstance(world, ThreadWorld):
        epochs.close()
    else:
        await epochs.aclose()


def rest_of(pipeline: Any, state: Any) -> list[Any]:
    with pipeline.epochs(1, resume=state) as epochs:
        return [plain(batch) for epoch in epochs for batch in epoch]


WHOLE = [[*range(first, first + 4)] for first in range(0, 40, 4)]


class TestSleepers:
    """``on_wait="stop"``: a loop that waits for a batch comes back, and its position is right."""

    def test_is_woken(self, world: World) -> None:
        held, found = HeldSource(), list[Any]()

        async def body() -> None:
            epochs = held.pipeline.epochs(2)
            with Preemption((), on_wait="stop") as preempted:
                loop = world.spawn(taken_until_preempted, world, epochs)
                await world.until(lambda: held.function.calls >= 12)
                preempted.request("maintenance")
                taken, error = await loop.result()
                assert error.reason == "maintenance"
                assert taken == WHOLE[: len(taken)]
                state = epochs.state_dict()
                with pytest.raises(PreemptedError):  # and it stays so
                    if isinstance(world, ThreadWorld):
                        next(epochs)
                    else:
                        await anext(epochs)
                held.function.go.set()
                assert epochs.state_dict() == state
                await closed(world, epochs)
            found.append((taken, state))

        world.run(body)
        ((taken, state),) = found
        assert taken + rest_of(held.pipeline, state) == WHOLE

    def test_is_woken_by_the_thread_that_polls(self, world: World) -> None:
        held, found = HeldSource(), list[Any]()

        def is_held() -> bool:
            return held.function.calls >= 12

        async def body() -> None:
            epochs = held.pipeline.epochs(1)
            with Preemption((), notice=is_held, every=0.001, on_wait="stop"):
                taken, error = await taken_until_preempted(world, epochs)
                assert error.reason == "notice"
                found.append((taken, epochs.state_dict()))
                held.function.go.set()
                await closed(world, epochs)

        world.run(body)
        ((taken, state),) = found
        assert taken + rest_of(held.pipeline, state) == WHOLE

    def test_later_would_have_to_wait(self, world: World) -> None:
        """It was set before, and the run has begun since."""
        held, found = HeldSource(), list[Any]()

        async def body() -> None:
            with Preemption((), on_wait="stop") as preempted:
                preempted.request()
                epochs = held.pipeline.epochs(1)
                taken, _ = await taken_until_preempted(world, epochs)
                state = epochs.state_dict()
                held.function.go.set()
                await closed(world, epochs)
            found.append((taken, state))

        world.run(body)
        ((taken, state),) = found
        assert taken + rest_of(held.pipeline, state) == WHOLE

    def test_continues_unless_it_was_preempted(self, world: World) -> None:
        async def body() -> None:
            held = HeldSource()

            async def whole() -> list[Any]:
                return [await results(world, held.pipeline)]

            with Preemption((), on_wait="wait") as preempted:
                loop = world.spawn(whole)
                await world.until(lambda: held.function.calls >= 12)
                preempted.request()
                held.function.go.set()
                assert await loop.result() == [WHOLE]
            with Preemption((), on_wait="stop"):
                pass
            assert await whole() == [WHOLE]

        world.run(body)

    def test_a_preemption_that_was_left_wakes_no_sleeper(self, world: World) -> None:
        async def body() -> None:
            held = HeldSource()
            held.function.go.set()
            with Preemption((), on_wait="stop") as preempted:
                preempted.request()
            assert await results(world, held.pipeline) == WHOLE

        world.run(body)

    @needs_signals
    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_by_a_signal_in_a_loop(self, backend: str) -> None:
        pytest.importorskip(backend)
        held, taken = HeldSource(), list[Any]()

        async def train() -> Any:
            epochs = held.pipeline.epochs(1)
            async with Preemption(on_wait="stop") as preempted, epochs:
                with (
                    pressed(signal.SIGTERM, lambda: held.function.calls >= 12),
                    pytest.raises(PreemptedError, match="SIGTERM"),
                ):
                    async for epoch in epochs:
                        async for batch in epoch:
                            taken.append(plain(batch))
                            preempted.check()
                state = epochs.state_dict()
                held.function.go.set()
            return state

        state = anyio.run(train, backend=backend)
        assert taken + rest_of(held.pipeline, state) == WHOLE

    @needs_signals
    def test_by_a_signal_in_the_main_thread(self) -> None:
        held, taken = HeldSource(), list[Any]()
        with Preemption(on_wait="stop") as preempted, held.pipeline.epochs(1) as epochs:
            with (
                pressed(signal.SIGTERM, lambda: held.function.calls >= 12),
                pytest.raises(PreemptedError, match="SIGTERM"),
            ):
                for epoch in epochs:
                    for batch in epoch:
                        taken.append(plain(batch))
                        preempted.check()
            state = epochs.state_dict()
            held.function.go.set()
        assert taken + rest_of(held.pipeline, state) == WHOLE


@pytest.mark.slow
@needs_signals
def test_ctrl_c_in_next_ends_the_run_and_its_position_is_right() -> None:
    held, taken = HeldSource(), list[Any]()
    epochs: Any = held.pipeline.epochs(2)

    def waits() -> bool:
        return len(taken) == 2 and bool(monitor.snapshot().queues[-1].dequeue_waiting)

    with held.pipeline.monitor() as monitor, ctrl_c(when=waits):
        try:
            for batch in next(epochs):
                taken.append(plain(batch))
        except KeyboardInterrupt:
            held.function.go.set()
    with pytest.raises(RuntimeError, match="is over: it was interrupted in the middle of a step"):
        next(epochs)
    assert len(taken) == 2
    assert taken + rest_of(held.pipeline, epochs.state_dict()) == WHOLE
    epochs.close()


@contextmanager
def pressed(number: int, when: Callable[[], object]) -> Iterator[None]:
    """Send a signal to the main thread once a condition holds, until the block is left.

    One that comes just before that thread falls asleep does not wake it.
    """
    is_left = threading.Event()

    def press() -> None:
        spin_until(lambda: when() or is_left.is_set())
        while not is_left.is_set():
            signal.pthread_kill(main, number)
            is_left.wait(0.02)

    main = threading.main_thread().ident or 0
    presser = threading.Thread(target=press)
    presser.start()
    try:
        yield
    finally:
        is_left.set()
        presser.join()


@pytest.mark.parametrize(
    "options",
    [
        {"signals": ["TERM"]},
        {"notice": 3},
        {"callback": "x"},
        {"every": -1},
        {"grace": "long"},
        {"on_wait": "sleep"},
    ],
)
def test_what_is_refused(options: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        Preemption(**options)
