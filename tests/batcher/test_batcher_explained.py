"""Who waits for a batch is seen: by an explanation, and by the watchdog of a batcher."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import aioqueue
from aioqueue import sync
from tests.kit.worlds import PATIENCE, spin_until


class Stuck:
    """A function that is at its batch until the test lets it go on."""

    def __init__(self) -> None:
        self.go, self.has_begun = threading.Event(), threading.Event()

    def __call__(self, batch: list[int]) -> list[int]:
        self.has_begun.set()
        self.go.wait(PATIENCE)
        return batch

    @contextmanager
    def called(self, batcher: sync.Batcher[int, int], n: int) -> Iterator[None]:
        """Some threads wait for it, the others behind the first one."""
        callers = [threading.Thread(target=batcher, args=(number,)) for number in range(n)]
        for caller in callers:
            caller.start()
        try:
            assert self.has_begun.wait(PATIENCE)
            spin_until(lambda: batcher.statistics().waiting == n - 1)
            yield
        finally:
            self.go.set()
            for caller in callers:
                caller.join(PATIENCE)


@pytest.fixture
def stuck() -> Stuck:
    return Stuck()


def test_an_explanation_names_the_batcher_its_worker_and_its_callers(stuck: Stuck) -> None:
    with sync.Batcher(stuck, 1, max_wait=0, name="scores") as batcher:
        with stuck.called(batcher, 3):
            found = aioqueue.explain()
            (wait,) = [one for one in found.waits if "Batcher 'scores'" in one.what]
        assert (wait.name, wait.what) == ("1 caller", "waits for Batcher 'scores'")
        (culprit,) = wait.culprits
        assert culprit.worker is not None
        assert "scores" in culprit.worker
        assert "has been at a batch of 1 for" in culprit.sentence
        assert "test_batcher_explained.py" in culprit.sentence
        assert "2 more in line behind" in culprit.chain[0]
        spin_until(lambda: not [one for one in aioqueue.explain().waits if "scores" in one.what])


def test_its_watchdog_warns_while_a_batch_stands_still(
    stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        sync.Batcher(stuck, 1, max_wait=0, name="scores", watchdog=0.01) as batcher,
        stuck.called(batcher, 1),
    ):
        spin_until(lambda: "nothing has moved" in caplog.text)
    assert "1 caller waits for Batcher 'scores'" in caplog.text


def test_the_watchdog_of_a_coordinator_warns_of_its_workers_that_wait_for_a_batch(
    stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    queue = sync.FIFOQueue(1)
    with (
        sync.Batcher(stuck, 1, max_wait=0, name="scores") as batcher,
        sync.Coordinator(watchdog=0.01) as coord,
    ):
        coord.start(sync.QueueRunner(queue, lambda: queue.enqueue(batcher(1))))
        spin_until(lambda: "nothing has moved" in caplog.text)
        coord.request_stop()
        stuck.go.set()
    assert "1 caller waits for Batcher 'scores'" in caplog.text


@pytest.mark.parametrize("is_thread", [True, False])
def test_the_stop_of_a_coordinator_ends_the_call_of_a_worker_that_was_registered_meanwhile(
    stuck: Stuck, is_thread: bool
) -> None:
    ended: list[BaseException] = []

    def call() -> None:
        with pytest.raises(aioqueue.CancelledError, match="ended by the stop") as raised:
            batcher(1)
        ended.append(raised.value)

    async def call_async() -> None:
        with pytest.raises(aioqueue.CancelledError, match="ended by the stop") as raised:
            await batcher.aio(1)
        ended.append(raised.value)

    async def main() -> None:
        async with aioqueue.Coordinator() as coord:
            task = asyncio.create_task(call_async())
            assert await asyncio.to_thread(stuck.has_begun.wait, PATIENCE)
            coord.register(task)

    with sync.Batcher(stuck, 1, max_wait=0) as batcher:
        try:
            if is_thread:
                with sync.Coordinator() as coord:
                    thread = threading.Thread(target=call)
                    thread.start()
                    assert stuck.has_begun.wait(PATIENCE)
                    coord.register(thread)
            else:
                asyncio.run(main())
            assert len(ended) == 1
        finally:
            stuck.go.set()


def test_calls_that_are_answered_during_a_sample_are_not_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two locks guard the counts of one record."""
    with sync.Batcher[int, int](list, 1, max_wait=0) as batcher:
        core = batcher._core
        sample, left = core._call_counts, [1, 2, 3]

        def slow_sample() -> dict[str, object]:
            seen = sample()
            if left:
                batcher(left.pop())
            return seen

        monkeypatch.setattr(core, "_call_counts", slow_sample)
        counts = batcher.statistics()
        assert (counts.requests, counts.answered, counts.in_flight, counts.waiting) == (3, 3, 0, 0)


def test_a_sample_ends_however_many_calls_are_answered_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with sync.Batcher[int, int](list, 1, max_wait=0) as batcher:
        core = batcher._core
        sample = core._call_counts

        def slow_sample() -> dict[str, object]:
            seen = sample()
            batcher(1)
            return seen

        monkeypatch.setattr(core, "_call_counts", slow_sample)
        counts = batcher.statistics()
        assert counts.requests == counts.answered + counts.in_flight
        assert counts.waiting == 0
