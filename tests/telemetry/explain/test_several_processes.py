"""Explanations of several processes: a wait leads through shared queues to the one that hangs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from aioqueue import sync
from aioqueue.telemetry.explain.explanation import (
    ExplainedCaller,
    ExplainedQueue,
    ExplainedStage,
    ExplainedWorker,
    Explanation,
)
from aioqueue.telemetry.explain.several_processes import joined
from aioqueue.telemetry.explain.wait_graph import culprits_of, split_hints
from tests.kit.processing import start_the_forkserver
from tests.kit.worlds import spin_until
from tests.sharing.members import FORKSERVER, members

needs_sockets = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")


def queue(name: str, key: int, *callers: ExplainedCaller, **fields: Any) -> ExplainedQueue:
    return ExplainedQueue(name, "FIFOQueue", 0, 4, 0, 0, "open", 0, 0, callers, key=key, **fields)


def consumer(name: str, key: int) -> ExplainedCaller:
    return ExplainedCaller(name, "dequeue", 1, 3.0, False, (), key)


def stage(name: str, into: int, *workers: int, source: int = 0) -> ExplainedStage:
    made = tuple(ExplainedWorker(f"worker {key}", "running", key=key) for key in workers)
    return ExplainedStage(name, "into", made, into_key=into, source_key=source, key=1)


def explanation(pid: int, queues: Any, stages: Any = ()) -> Explanation:
    return Explanation((), tuple(queues), tuple(stages), (), pid)


def sentences(queues: Any, stages: Any, *elsewhere: Explanation) -> list[str]:
    all_queues, all_stages = joined(tuple(queues), tuple(stages), elsewhere)
    found = culprits_of(all_queues, all_stages)
    certain, hints = split_hints(found, all_queues, could_fill=False)
    return [*(one.sentence for one in certain), *(f"hint: {one.sentence}" for one in hints)]


def test_a_consumer_waits_for_the_worker_of_another_process() -> None:
    here = queue("out", 7, consumer("trainer", 1), shared_as="S")
    there = queue("out", 7, shared_as="S", is_owned=False)
    (found,) = sentences([here], [], explanation(40, [there], [stage("make", 7, 1)]))
    assert found == "make in process 40: worker 1 is busy"


def test_equal_numbers_of_two_processes_are_two_things() -> None:
    """Here, the thread 1 waits at the queue 7. In the other process, both belong to others."""
    here = queue("in", 7, consumer("trainer", 1))
    there = explanation(40, [queue("local", 7)], [stage("make", 7, 1)])
    assert sentences([here], [], there)[0].startswith("nobody fills 'in'")


def test_a_chain_leads_through_several_processes() -> None:
    here = [queue("out", 1, consumer("trainer", 1), shared_as="O")]
    waits = consumer("worker 2", 2)
    first = explanation(
        40,
        [
            queue("out", 1, shared_as="O", is_owned=False),
            queue("in", 3, waits, shared_as="I", is_owned=False),
        ],
        [stage("train", 1, 2)],
    )
    second = explanation(
        41,
        [queue("in", 9, replace(waits, name="process 40", key=77), shared_as="I")],
        [stage("read", 9, 5)],
    )
    all_queues, all_stages = joined(here, (), (first, second))
    (culprit,) = culprits_of(all_queues, all_stages)
    assert culprit.sentence == "read in process 41: worker 5 is busy"
    assert [step.split(" (")[0] for step in culprit.chain] == [
        "trainer waits for 1 element in 'out'",
        "'out' is filled by train in process 40",
        "worker 2",
        "'in' is filled by read in process 41",
    ]


def test_a_shared_queue_that_is_empty_is_a_hint() -> None:
    """A process that takes part in no coordinator may fill it."""
    here = queue("out", 7, consumer("trainer", 1), shared_as="S")
    (found,) = sentences([here], [])
    assert found.startswith("hint: 'out' is empty, and no runner that is known here fills it")


@pytest.fixture
def coord() -> Iterator[Any]:
    shared = sync.Coordinator().share()
    yield shared
    shared._core.shared.end()


def _hang(coord: Any, report: Callable[[Any], Any]) -> None:
    """Fill a queue of another process with one element, and then hang."""
    results = report("ready")
    answered = threading.Event()

    def make() -> None:
        results.enqueue("the only one")
        answered.wait()

    coord.start(sync.QueueRunner(results, [make]))
    report("started")
    answered.set()


@needs_sockets
def test_the_line_where_another_process_hangs_is_named(coord: Any) -> None:
    start_the_forkserver()
    results = sync.FIFOQueue(4, name="results")
    reader = threading.Thread(target=lambda: list(results), name="reader")
    with members() as start:
        hanging = start(_hang, coord, FORKSERVER)
        hanging.reported()
        hanging.answer(results.share())
        hanging.reported()
        assert results.dequeue() == "the only one"
        reader.start()
        try:
            spin_until(lambda: "answered.wait()" in str(coord.explain().culprits))
            explanation = coord.explain()
            (culprit,) = explanation.culprits
            assert culprit.kind == "worker"
            worker = f"in process {hanging.pid}: aioqueue-make-0 is busy, at {__file__}"
            assert worker in culprit.sentence
            assert culprit.sentence.endswith("answered.wait()")
            assert explanation.hints == ()
            assert [one.stopped_seconds for one in explanation.coordinators] == [0.0]
        finally:
            coord.request_stop()
            results.close()
            hanging.answer()
            reader.join()
