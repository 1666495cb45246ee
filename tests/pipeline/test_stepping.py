"""One lock for the steps of a run and for the turns of its users: how often it is passed, and that
it is free again whatever happens."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from aioqueue.inputs import Epoch, numbers
from aioqueue.pipeline.nodes.stepping import RunLock
from tests.kit.striking import interrupted_everywhere
from tests.kit.worlds import spin_until


def locks_passed(call: Callable[[], object], lock: Any) -> int:
    """How often a call passes a lock."""
    passed = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal passed
        if event == "call" and frame.f_code.co_name == "call_with_lock":
            passed += frame.f_locals["lock"] is lock

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return passed


@pytest.mark.parametrize("size", [None, 4])
def test_a_batch_that_is_ready_passes_the_lock_once(size: int | None) -> None:
    pipeline: Any = numbers(600).prepare(float, workers=2, buffer_size=600)
    if size is not None:
        pipeline = pipeline.batch(size)
    with pipeline.epochs(1) as epochs:
        epoch = next(epochs)
        next(epoch)
        spin_until(lambda: epochs.statistics()[0].prepared == 600)
        passed = Counter(
            locks_passed(partial(next, epoch), epoch._run_lock.lock) for _ in range(140)
        )
    # The others take the next burst of rows out of the queue of the workers: that is a wait.
    assert passed[1] > sum(passed.values()) * 0.7
    assert passed.keys() <= {1, 3}


@pytest.mark.slow
@pytest.mark.parametrize("is_ready", [True, False])
def test_the_turn_is_free_after_an_interrupt_anywhere(is_ready: bool) -> None:
    """Another thread gets the next batch then, or learns that the run was interrupted."""

    def case() -> tuple[Callable[[], Any], Callable[[], None]]:
        # To read the source is a wait; a row of a batch that was taken apart is ready.
        pipeline: Any = numbers(100).batch(10)
        pipeline = pipeline.unbatch() if is_ready else pipeline
        epochs = pipeline.epochs(1)
        epoch = next(epochs)
        assert isinstance(epoch, Epoch)
        next(epoch)
        outcomes: list[object] = []

        def take() -> None:
            try:
                outcomes.append(next(epoch))
            except RuntimeError as error:
                outcomes.append(str(error))

        def check() -> None:
            other = threading.Thread(target=take, daemon=True)
            other.start()
            spin_until(lambda: not other.is_alive())
            (outcome,) = outcomes
            assert not isinstance(outcome, str) or "interrupted" in outcome
            epochs.close()
            gc.collect()  # here, and not while the next call is struck

        return partial(next, epoch), check

    gc.disable()
    try:
        assert interrupted_everywhere(case) > 10
    finally:
        gc.enable()


@pytest.mark.slow
def test_the_turn_of_a_call_is_free_after_an_interrupt_anywhere() -> None:
    def case() -> tuple[Callable[[], Any], Callable[[], None]]:
        lock = RunLock()

        def check() -> None:
            assert lock.lock.acquire(blocking=False)
            lock.wait_until_free()
            lock.lock.release()

        return partial(lock.turn, list), check

    assert interrupted_everywhere(case) > 10


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no such signal here")
def test_a_handler_cannot_take_a_batch_in_the_middle_of_a_step() -> None:
    refused: list[str] = []

    def handle(*_: object) -> None:
        try:
            next(epoch)
        except RuntimeError as error:
            refused.append(str(error))

    def interrupting(n: int) -> bool:
        if n == 3:
            signal.raise_signal(signal.SIGUSR1)
        return True

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with numbers(6).filter(interrupting).epochs(1) as epochs:
            epoch = next(epochs)
            assert list(epoch) == [0, 1, 2, 3, 4, 5]
    finally:
        signal.signal(signal.SIGUSR1, before)
    (message,) = refused
    assert "a signal handler asked for a batch while its thread was making one" in message


def test_threads_that_wait_for_a_turn_get_every_batch_once() -> None:
    found: list[int] = []
    with numbers(300).prepare(float, workers=2, buffer_size=1).epochs(1) as epochs:
        epoch = next(epochs)

        def consume() -> None:
            found.extend(int(value) for value in epoch)

        consumers = [threading.Thread(target=consume) for _ in range(4)]
        for consumer in consumers:
            consumer.start()
        for consumer in consumers:
            consumer.join()
    assert sorted(found) == list(range(300))
