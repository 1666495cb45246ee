"""Root causes found in wait graphs that the tests make by hand: no thread waits here."""

from __future__ import annotations

from typing import Any

import pytest

from aioqueue.telemetry.explain.explanation import (
    Culprit,
    ExplainedCaller,
    ExplainedCoordinator,
    ExplainedItem,
    ExplainedQueue,
    ExplainedStage,
    ExplainedWorker,
    Explanation,
    format_seconds,
)
from aioqueue.telemetry.explain.stacks import Frame
from aioqueue.telemetry.explain.wait_graph import culprits_of


def caller(
    name: str, key: int, side: Any = "dequeue", seconds: float = 5.0, *, granted: bool = False
) -> ExplainedCaller:
    return ExplainedCaller(name, side, 1, seconds, granted, (), key=key)


def queue(name: str, key: int, *callers: ExplainedCaller, size: int = 0, **more: Any) -> Any:
    return ExplainedQueue(
        name, "FIFOQueue", size, 8, 0, more.pop("least", 0), "open", 9, 9, callers, key=key, **more
    )


def item(text: str, seconds: float) -> ExplainedItem:
    return ExplainedItem(text, 0, 0, 0, 1, seconds)


def worker(name: str, key: int, **more: Any) -> ExplainedWorker:
    stack = (Frame("read.py", 8, "read"),)
    return ExplainedWorker(name, more.pop("state", "running"), stack=stack, key=key, **more)


def stage(name: str, into: int, *workers: ExplainedWorker, source: int = 0) -> ExplainedStage:
    return ExplainedStage(name, f"q{into}", workers, into_key=into, source_key=source)


def kinds(culprits: tuple[Culprit, ...]) -> list[str]:
    return [culprit.kind for culprit in culprits]


class TestWalk:
    def test_leads_through_several_stages(self) -> None:
        """trainer <- q2 <- batch <- q1 <- decode: stuck in an item."""
        queues = [
            queue("q1", 1, caller("batcher", 20)),
            queue("q2", 2, caller("trainer", 30)),
        ]
        stages = [
            stage("decode", 1, worker("decoder", 10, item=item("37", 9.0))),
            stage("batch", 2, worker("batcher", 20), source=1),
        ]
        (culprit,) = culprits_of(queues, stages)
        assert (culprit.kind, culprit.stage, culprit.worker) == ("item", "decode", "decoder")
        assert culprit.sentence == (
            "decode is stuck in item 37 (epoch 0, index 0) for 9.0 s, in decoder, at read.py:8 in"
            " read"
        )
        assert [step.split(",")[0] for step in culprit.chain] == [
            "trainer waits for 1 element in 'q2' (0/8)",
            "'q2' is filled by batch",
            "batcher waits for 1 element in 'q1' (0/8)",
            "'q1' is filled by decode",
        ]

    def test_begins_at_the_consumer_that_has_waited_longest(self) -> None:
        queues = [
            queue("q1", 1, caller("batcher", 20, seconds=99.0), last_end="a"),
            queue("q3", 3, caller("logger", 31, seconds=1.0), last_end="b"),
            queue("q2", 2, caller("trainer", 30, seconds=7.0), last_end="c"),
        ]
        stages = [stage("batch", 9, worker("batcher", 20))]
        names = [culprit.queue for culprit in culprits_of(queues, stages)]
        assert names == ["q2", "q3", "q1"]

    def test_only_the_oldest_items_are_reported(self) -> None:
        workers = [
            worker(f"w{number}", number, item=item(str(number), seconds))
            for number, seconds in ((10, 0.01), (11, 60.0), (12, 50.0))
        ]
        culprits = culprits_of([queue("q1", 1, caller("t", 30))], [stage("decode", 1, *workers)])
        assert [culprit.worker for culprit in culprits] == ["w11", "w12"]

    def test_a_worker_that_waits_for_room_while_it_makes_an_item_is_not_stuck(self) -> None:
        """A generator whose examples are enqueued as they are made."""
        full = queue("q1", 1, caller("maker", 10, "enqueue"), size=8, last_dequeuer="trainer")
        stages = [stage("parts", 1, worker("maker", 10, item=item("1", 9.0)))]
        (culprit,) = culprits_of([full], stages)
        assert culprit.kind == "nobody takes"

    def test_a_caller_that_was_served_and_does_not_run_has_a_blocked_loop(self) -> None:
        culprits = culprits_of([queue("q1", 1, caller("task-1", 30, granted=True))], [])
        assert kinds(culprits) == ["loop"]
        assert "its event loop is blocked" in culprits[0].sentence

    def test_a_queue_that_must_keep_more_than_fits(self) -> None:
        full = queue(
            "q1", 1, caller("trainer", 30), caller("maker", 10, "enqueue"), size=8, least=7
        )
        (first, *_) = culprits_of([full], [])
        assert first.kind == "too few"
        assert "; 7 of them have to stay" in first.sentence

    def test_the_last_consumer_is_followed_to_another_queue(self) -> None:
        """maker waits for room in q1, which trainer empties, who waits at q2, which none fills."""
        queues = [
            queue(
                "q1",
                1,
                caller("maker", 10, "enqueue", 9.0),
                size=8,
                last_dequeuer="trainer",
                last_dequeuer_key=30,
            ),
            queue("q2", 2, caller("trainer", 30)),
        ]
        culprits = culprits_of(queues, [])
        assert kinds(culprits) == ["cycle"]  # it may well be that maker fills q2

    def test_a_cycle_is_reported_once(self) -> None:
        queues = [
            queue("q1", 1, caller("a", 10, "enqueue"), size=8, last_dequeuer_key=20),
            queue("q2", 2, caller("b", 20, "enqueue"), size=8, last_dequeuer_key=10),
        ]
        (culprit,) = culprits_of(queues, [])
        assert culprit.kind == "cycle"
        assert culprit.sentence.startswith("these wait for each other: a waits for room for")

    def test_items_in_progress_are_reported_without_waiting_callers(self) -> None:
        stages = [stage("decode", 1, worker("w", 10, item=item("37", 9.0)))]
        assert kinds(culprits_of([], stages)) == ["item"]
        assert kinds(culprits_of([], [stage("decode", 1, worker("w", 10))])) == []

    def test_a_stage_that_has_ended_fills_nothing(self) -> None:
        ended = stage("decode", 1, worker("w", 0, state="ended"))
        culprits = culprits_of([queue("q1", 1, caller("t", 30), last_end="OSError: x")], [ended])
        assert kinds(culprits) == ["nobody fills"]

    @pytest.mark.parametrize("state", ["stopped", "does not answer"])
    def test_processes_that_do_not_run(self, state: Any) -> None:
        stages = [stage("decode", 1, worker("p", 10, item=item("37", 9.0), state=state))]
        (culprit,) = culprits_of([queue("q1", 1, caller("t", 30))], stages)
        assert culprit.kind == "process"
        assert ("is stopped (SIGSTOP)" if state == "stopped" else state) in culprit.sentence


class TestText:
    def test_of_a_full_explanation(self) -> None:
        waits = queue("examples", 1, caller("trainer", 30), last_end=None)
        decode = stage("decode", 1, worker("w", 10, item=item("37", 9.0)))
        explanation = Explanation(
            culprits_of([waits], [decode]),
            (waits,),
            (decode,),
            (ExplainedCoordinator("stopping", "MainThread", 3.0, ("OSError: x",), ()),),
            42,
        )
        assert str(explanation).splitlines() == [
            "aioqueue: why process 42 waits",
            "  decode is stuck in item 37 (epoch 0, index 0) for 9.0 s, in w, at read.py:8 in read",
            "    trainer waits for 1 element in 'examples' (0/8), for 5.0 s",
            "    'examples' is filled by decode",
            "queues",
            "  FIFOQueue 'examples': 0/8, 9 in, 9 out",
            "    trainer waits for 1 element, for 5.0 s",
            "stages",
            "  decode into 'q1'",
            "    w has been at item 37 (epoch 0, index 0) for 9.0 s",
            "        read.py:8 in read",
            "coordinators",
            "  stopping, 1 failure, stop requested by MainThread 3.0 s ago",
            "    OSError: x",
        ]

    def test_of_an_empty_explanation(self) -> None:
        text = str(Explanation((), (), (), (), 42))
        assert text == "aioqueue: why process 42 waits\n  nobody waits"

    @pytest.mark.parametrize(
        ("seconds", "words"),
        [(0.04, "0.0 s"), (119.9, "119.9 s"), (600, "10 min"), (9e4, "25.0 h")],
    )
    def test_of_durations(self, seconds: float, words: str) -> None:
        assert format_seconds(seconds) == words


def test_names_stay_on_one_line() -> None:
    """The name of a task, a queue or an item cannot forge a line of the log."""
    forged = "x\nqueues\n  all is well \x1b[2J"
    item_of_user = item(forged, 7.0)
    parts = (
        stage(forged, 1, worker(forged, 10, item=item_of_user, note=forged)),
        queue(forged, 1, caller(forged, 2), last_dequeuer=forged, last_end=forged),
    )
    answer = Explanation(culprits_of(parts[1:], parts[:1], ()), parts[1:], parts[:1], (), 1)
    assert "all is well" in str(answer)
    assert not any("all is well" in line.split("x")[0] for line in str(answer).splitlines())
    assert "\n" not in answer.culprits[0].sentence
