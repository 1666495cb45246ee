"""Explanations of many callers: the records name all of them, the text the longest waits."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

import aioqueue
from aioqueue import Explanation
from aioqueue.coordination.watchdog import Watchdog
from aioqueue.telemetry.explain import gather
from aioqueue.telemetry.explain.explanation import (
    Culprit,
    ExplainedCoordinator,
    ExplainedQueue,
    ExplainedWait,
)
from aioqueue.telemetry.explain.wait_graph import culprits_of, split_hints
from aioqueue.worlds.scopes import Gate
from tests.kit.worlds import World
from tests.telemetry.explain.test_wait_graph_root_causes import (
    caller,
    item,
    kinds,
    queue,
    stage,
    worker,
)


def explained(name: str) -> ExplainedQueue:
    """What the explanation of this process says of a queue."""
    (found,) = (one for one in aioqueue.explain().queues if one.name == name)
    return found


class TestFolding:
    async def begin_all(self, world: World, method: Any, n: int, *arguments: Any) -> list[Any]:
        return [await world.begin(method, *arguments) for _ in range(n)]

    def test_callers_of_a_queue(self, world: World) -> None:
        async def body() -> None:
            examples = world.fifo(1, name="examples")
            await self.begin_all(world, examples.dequeue, 40)
            found = explained("examples")
            assert len(found.callers) == 40
            *shown, last = [line for line in found.lines() if line.startswith("  ")]
            assert len(shown) == 3
            longest = found.callers[:3]
            assert [line.split(" waits")[0].strip() for line in shown] == [c.name for c in longest]
            assert last == "  and 37 others"

        world.run(body)

    def test_a_pause_in_between_does_not_order_callers(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As when the garbage collector runs: one moment is taken for all of them."""

        async def body() -> None:
            examples = world.fifo(1, name="examples")
            await self.begin_all(world, examples.dequeue, 7)
            monkeypatch.setattr(gather, "perf_counter", itertools.count(1e9).__next__)
            found = explained("examples")
            waits = [caller.seconds for caller in found.callers]
            assert waits == sorted(waits, reverse=True)

        world.run(body)

    def test_producers(self, world: World) -> None:
        async def body() -> None:
            examples = world.fifo(1, name="examples")
            await examples.enqueue(0)
            await self.begin_all(world, examples.enqueue, 7, 1)
            found = explained("examples")
            assert len(found.callers) == 7
            lines = [line.split("\n")[0] for line in found.lines()]
            assert sum("waits to put in 1 element" in line for line in lines) == 3
            assert lines[-1] == "  and 4 others"

        world.run(body)

    def test_joins_of_a_queue(self, world: World) -> None:
        async def body() -> None:
            examples = world.fifo(8, name="examples")
            await examples.enqueue(1)
            joins = [world.spawn(examples.join) for _ in range(7)]
            await world.until(lambda: len(aioqueue.explain().waits) == 7)
            found = aioqueue.explain()
            text = str(found)
            assert text.count("waits in join of 'examples', for") == 1 + 3
            assert "\n  and 4 others\n" in f"{text}\n"
            await examples.dequeue()
            examples.task_done()
            for one in joins:
                await one.result()

        world.run(body)

    def test_the_log_of_a_watchdog(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        class Watched:
            explain = staticmethod(aioqueue.explain)
            progress = dict
            longest_wait = staticmethod(lambda: 99.0)

        async def body() -> None:
            examples = world.fifo(1, name="examples")
            await self.begin_all(world, examples.dequeue, 12)
            dog = Watchdog(watched, 60.0, Gate(), lambda: None)
            dog.check()
            dog.check()
            (message,) = [one.message for one in caplog.records if one.name == "aioqueue"]
            assert "    and 9 others" in message
            assert message.count("waits for 1 element, for") == 3

        watched: Any = Watched()
        caplog.set_level(logging.WARNING, "aioqueue")
        world.run(body)


def text_of(**parts: Any) -> list[str]:
    found = Explanation(
        parts.pop("culprits", ()), parts.pop("queues", ()), parts.pop("stages", ()), (), 42
    )
    return str(found).splitlines()


class TestText:
    """Its length has a bound, whatever there are many of."""

    def test_the_longest_waits_are_shown_in_their_order(self) -> None:
        callers = [caller(f"c{number}", number, seconds=number % 7) for number in range(1, 21)]
        lines = text_of(queues=(queue("q", 1, *callers),))
        assert [line.split()[0] for line in lines[4:]] == ["c6", "c13", "c20", "and"]

    def test_one_other(self) -> None:
        callers = [caller(f"c{number}", number) for number in range(1, 5)]
        assert text_of(queues=(queue("q", 1, *callers),))[-1] == "    and 1 other"

    def test_those_that_were_served_are_no_kin_of_those_that_wait(self) -> None:
        callers = [caller(f"c{number}", number, granted=number % 2 == 0) for number in range(1, 11)]
        lines = text_of(queues=(queue("q", 1, *callers),))
        assert lines.count("    and 2 others") == 2

    def test_workers_of_a_stage(self) -> None:
        at_items = [worker(f"a{n}", n, item=item(str(n), float(n))) for n in range(1, 9)]
        idle = [worker(f"b{n}", 10 + n) for n in range(1, 6)]
        ended = [worker(f"c{n}", 20 + n, state="ended") for n in range(1, 4)]
        lines = text_of(stages=(stage("decode", 1, *at_items, *idle, *ended),))
        names = [line.split()[0] for line in lines if not line.startswith("      ")]
        assert names[-9:] == ["a6", "a7", "a8", "and", "b1", "b2", "b3", "and", "3"]
        assert [line.strip() for line in lines if "others" in line] == [
            "and 5 others",
            "and 2 others",
        ]

    def test_root_causes_of_one_kind(self) -> None:
        busy = [worker(f"w{n}", n, item=item(str(n), 9.0)) for n in range(1, 1001)]
        culprits = culprits_of([queue("q1", 1, caller("t", 2000))], [stage("decode", 1, *busy)])
        assert len(culprits) == 1000
        lines = text_of(culprits=culprits)
        assert sum("is stuck in item" in line for line in lines) == 3
        assert lines[-1] == "  and 997 others"

    def test_queues(self) -> None:
        queues = tuple(
            queue(f"q{n}", n, caller(f"c{n}", n, seconds=float(n))) for n in range(1, 101)
        )
        lines = text_of(queues=queues)
        assert lines[-1] == "  and 80 more"
        assert "  FIFOQueue 'q100': 0/8, 9 in, 9 out" in lines, "those with the longest waits"
        assert "  FIFOQueue 'q80': 0/8, 9 in, 9 out" not in lines

    def test_failures_workers_and_coordinators(self) -> None:
        failures = tuple(f"OSError: {number}" for number in range(50))
        workers = tuple(worker(f"w{n}", n) for n in range(1, 51))
        busy = ExplainedCoordinator("running", None, 0.0, failures, workers)
        idle = ExplainedCoordinator("joined", None, 0.0, (), ())
        found = Explanation((), (), (), (busy, *[idle] * 50), 42)
        lines = str(found).splitlines()
        assert "    and 30 more" in lines
        assert "    and 47 others" in lines
        assert lines[-1] == "  and 47 others"

    def test_other_waits(self) -> None:
        waits = tuple(ExplainedWait(f"c{n}", "waits for Latest", 1.0) for n in range(50))
        lines = str(Explanation((), (), (), (), 42, waits)).splitlines()
        assert lines[-1] == "  and 47 others"

    def test_a_path(self) -> None:
        chain = tuple(f"step {number}" for number in range(5000))
        lines = text_of(culprits=(Culprit("item", "it is stuck", chain),))
        assert [line.strip() for line in lines[2:]] == [
            *[f"step {number}" for number in range(6)],
            "... 4,988 more ...",
            *[f"step {number}" for number in range(4994, 5000)],
        ]


class TestWalk:
    """It comes to each caller once."""

    def test_along_a_chain_longer_than_the_stack_of_python(self) -> None:
        n = 5 * sys.getrecursionlimit()
        queues = [
            queue(
                f"q{i}", i, caller(f"c{i}", i), last_enqueuer=f"c{i + 1}", last_enqueuer_key=i + 1
            )
            for i in range(1, n)
        ]
        (culprit,) = culprits_of([*queues, queue("end", n, caller("last", n), last_end="x")], [])
        assert (culprit.kind, culprit.queue) == ("nobody fills", "end")
        assert len(culprit.chain) == 2 * n - 1

    def test_around_a_long_cycle(self) -> None:
        n = 5 * sys.getrecursionlimit()
        queues = [
            queue(f"q{i}", i, caller(f"c{i}", i), last_enqueuer="c", last_enqueuer_key=(i + 1) % n)
            for i in range(n)
        ]
        queues[0] = queue("q0", 0, caller("c0", n), last_enqueuer="c", last_enqueuer_key=1)
        queues[-1] = queue("qn", n, caller("cn", n - 1), last_enqueuer="c0", last_enqueuer_key=n)
        (culprit,) = culprits_of(queues, [])
        assert culprit.kind == "cycle"
        assert " more ...; " in culprit.sentence
        assert len(culprit.sentence) < 2000
        assert len(culprit.chain) > n, "a program gets the whole of it"

    def test_of_workers_that_wait_for_each_other(self) -> None:
        """Two stages of many workers feed each other: as many paths as there are orders of them."""
        first = [worker(f"a{n}", n) for n in range(1, 41)]
        second = [worker(f"b{n}", 100 + n) for n in range(1, 41)]
        queues = [
            queue("q1", 1, *[caller(one.name, one.key) for one in second]),
            queue("q2", 2, *[caller(one.name, one.key) for one in first], caller("t", 999)),
        ]
        stages = [stage("s1", 1, *first, source=2), stage("s2", 2, *second, source=1)]
        assert kinds(culprits_of(queues, stages)) == ["cycle"]

    @pytest.mark.parametrize("shape", ["consumers", "producers", "crossed", "stages", "queues"])
    def test_its_steps_are_linear_in_the_callers(self, shape: str) -> None:
        small = calls_of(lambda: culprits(shape, 200)) / 200
        large = calls_of(lambda: culprits(shape, 2000)) / 2000
        assert large < 1.1 * small


def culprits(shape: str, n: int) -> object:
    """Find the root causes where n callers wait."""
    stages: list[Any] = []
    takes = [caller(f"c{i}", i, seconds=i) for i in range(1, n + 1)]
    puts = [caller(f"p{i}", n + i, "enqueue", i) for i in range(1, n + 1)]
    if shape == "consumers":
        queues = [queue("q", 1, *takes)]
    elif shape == "producers":
        queues = [queue("q", 1, *puts), queue("r", 2, *takes)]
    elif shape == "crossed":
        queues = [queue("q", 1, *puts, *takes)]
    elif shape == "stages":
        workers = [worker(f"p{i}", n + i) for i in range(1, n + 1)]
        queues = [queue("q", 1, *takes), queue("r", 2, *puts)]
        stages = [stage("s", 1, *workers)]
    else:
        queues = [queue(f"q{i}", i, takes[i - 1]) for i in range(1, n + 1)]
    return split_hints(culprits_of(queues, stages), queues, could_fill=True)


def calls_of(run: Callable[[], object]) -> int:
    """Count the calls of functions, of C too, that a call makes."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count
