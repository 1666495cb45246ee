"""How much may be in flight, and how large examples are taken to be."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import sync
from aioqueue.inputs import prepare
from aioqueue.workers.flow_control import InFlightWindow
from aioqueue.workers.runner import PrepareRunner
from tests.kit import functions
from tests.kit.preparing import drained
from tests.kit.worlds import PATIENCE, spin_until


def test_an_example_that_is_in_itself_goes_through_a_bounded_pipeline() -> None:
    def make(number: int) -> list[Any]:
        made: list[Any] = [number]
        made.append(made)
        return made

    queue = sync.FIFOQueue(9)
    got = drained(queue, prepare(range(9), make, into=queue, limit_bytes=1000, ordered=True))
    assert [made[0] for made in got] == list(range(9))


def filled(window: InFlightWindow) -> int:
    """How many items come in until there is no room."""
    count = 0
    while window.has_room():
        window.enter()
        count += 1
    return count


def unpacked(text: bytes) -> Any:
    return np.frombuffer(text, "uint8")


class TestBytesInFlight:
    """They are kept, also as long as no size is known; and one item may always come in."""

    def test_before_any_size_is_known(self) -> None:
        """Only what can be worked on at once; nothing has to be there before."""
        assert filled(InFlightWindow(100, 10, at_once=3)) == 3
        assert filled(InFlightWindow(2, 10, at_once=3)) == 2
        assert filled(InFlightWindow(100, None, at_once=3)) == 100

    def test_at_once_when_it_is(self) -> None:
        window = InFlightWindow(100, 10, at_once=3)
        filled(window)
        assert window.mark_ready(2)  # two more are coming: there is room for two beyond them
        assert filled(window) == 2
        assert not window.mark_ready(2)
        assert filled(window) == 0

    @pytest.mark.parametrize(("size", "is_known"), [(0, False), (1, True), (2, True)])
    def test_examples_of_no_bytes_have_no_size(self, size: int, is_known: bool) -> None:
        window = InFlightWindow(100, 10, at_once=3)
        window.enter()
        assert window.mark_ready(size) is is_known
        assert bool(window.mean_bytes) is is_known

    def test_a_monitor_reports_waits_for_the_queue(self) -> None:
        queue = sync.FIFOQueue(1, "uint8", (100,))
        runner = prepare([b"x" * 100] * 9, unpacked, into=queue, workers=1, limit_bytes=1000)
        with sync.Coordinator() as coord, coord.monitor() as monitor:
            coord.start(runner)
            spin_until(lambda: queue.statistics().waiting_enqueues == 1)
            (stage,) = monitor.snapshot().stages
        assert (stage.in_flight_bytes, stage.limit_bytes) == (100, 1000)

    def test_the_size_of_no_examples_is_none(self) -> None:
        window = InFlightWindow(100, 10, at_once=2)
        for _ in range(20):
            filled(window)
            assert not window.mark_ready(0)
            window.release(0)
        filled(window)
        assert window.items == 2
        assert window.mark_ready(5)

    @pytest.mark.parametrize("size", [11, 1000])
    def test_one_item_may_always_come_in(self, size: int) -> None:
        window = InFlightWindow(100, 10, at_once=2)
        assert filled(window) == 2
        for _ in range(2):
            window.mark_ready(size)
        for _ in range(2):
            assert filled(window) == 0
            window.release(size)
        for _ in range(3):
            assert filled(window) == 1
            window.mark_ready(size)
            window.release(size)

    @pytest.mark.parametrize("seed", range(20))
    def test_items_of_one_size_never_exceed_it(self, seed: int) -> None:
        """Whenever they are made, and leave, if as many as are made at once do not."""
        chance = random.Random(seed)
        size, workers = chance.randint(1, 50), chance.randint(1, 6)
        limit = chance.randint(size * workers, 600)
        window = InFlightWindow(chance.randint(1, 100), limit, workers)
        coming = waiting = 0
        for _ in range(2000):
            step = chance.choice(["enter", "enter", "made", "left"])
            if step == "enter" and window.has_room():
                window.enter()
                coming += 1
            elif step == "made" and coming:
                window.mark_ready(size)
                coming, waiting = coming - 1, waiting + 1
            elif step == "left" and waiting:
                window.release(size)
                waiting -= 1
            assert waiting * size <= limit

    def test_items_that_grow_exceed_it_by_their_growth(self) -> None:
        """As many as were in preparation then; the next ones come in as the limit is."""
        window = InFlightWindow(8, 100, at_once=2)
        filled(window)
        window.mark_ready(1)
        window.release(1)
        filled(window)
        assert window.items == 8
        for _ in range(8):
            window.mark_ready(1000)
        for _ in range(8):
            assert filled(window) == 0
            window.release(1000)
        assert filled(window) == 1


class TestBytesInFlightOfPipelines:
    """One item takes long, and others wait behind it, since the order is kept."""

    LIMIT = 8_500_000  # there are eight such examples within it

    def most_in_flight(self, path: Path, where: Any, queue: sync.FIFOQueue) -> int:
        runners: list[PrepareRunner] = []
        most: list[int] = []

        def source() -> Iterator[int]:
            for number in range(300):
                most.append(runners[0].statistics().in_flight)
                yield number

        function = functools.partial(functions.waits_for_seven, str(path))
        options: dict[str, Any] = {"max_in_flight": 256, "limit_bytes": self.LIMIT, "ordered": True}
        runner = prepare(source(), function, into=queue, where=where, workers=2, **options)
        runners.append(runner)
        with sync.Coordinator() as coord:
            coord.start(runner)
            assert [int(example[0]) for example in queue] == [n % 256 for n in range(300)]
        return max(most)

    @pytest.mark.parametrize("where", ["process", "thread"])
    def test_no_size_is_known_for_long(self, where: str, tmp_path: Path) -> None:
        queue = sync.FIFOQueue(2, "uint8", (1_000_000,))
        assert self.most_in_flight(tmp_path, where, queue) == 8

    def test_the_first_size_lets_others_in(self) -> None:
        """Though nothing has left: they need not wait for the slow one."""
        seventh, first = threading.Event(), threading.Event()

        def make(number: int) -> Any:
            if number == 7:
                seventh.set()
            if number == 0:
                assert first.wait(PATIENCE)
            return np.zeros(1_000_000, "uint8")

        queue = sync.FIFOQueue(2)
        with sync.Coordinator() as coord:
            coord.start(
                prepare(range(9), make, into=queue, workers=2, ordered=True, limit_bytes=self.LIMIT)
            )
            spin_until(seventh.is_set)
            first.set()
            assert len(list(queue)) == 9
