"""The suite's tests of all queues, on queues of another process: one world more, in each world.

Left out is what looks into a queue in memory, or relies on objects being the same.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest

from aioqueue.errors import DeadlineExceededError
from tests.kit.bodies import Body, bodies_of
from tests.kit.owners import PROCESS_WORLDS, InAnotherProcess, Owner, ThreadProcessWorld
from tests.kit.worlds import KINDS, Kind

pytest.importorskip("trio", reason="trio is not installed")

from tests.queues import (  # they import trio
    test_queue_core,
    test_queue_core_bad_input,
    test_queue_core_cancellation,
    test_queue_core_joins,
    test_queue_core_max_bytes,
    test_queue_core_resizing,
    test_queue_core_trees,
)

MODULES = (
    test_queue_core,
    test_queue_core_bad_input,
    test_queue_core_cancellation,
    test_queue_core_joins,
    test_queue_core_max_bytes,
    test_queue_core_resizing,
    test_queue_core_trees,
)
LEFT_OUT: dict[str, set[str]] = {
    "the text of a handle also says who shares it: see `test_queues_handles.py`": {"test_repr"},
    "looks at the state of a queue in memory": {
        "test_storages_are_those_of_queues_without",
        "test_returned_elements_stay_unfinished",
        "test_of_what_is_granted",
        "test_while_tasks_are_cancelled",
        "test_of_a_task_that_is_registered_while_it_waits",
    },
    "cancellations of one turn of the loop reach the owner one after the other": {
        "test_the_next_in_line_is_served",
    },
    "an answer takes more than one turn of the loop": {"test_tasks_see_the_same"},
    "the owner checks how much a batch can have, when it is asked for one": {
        "test_more_than_a_priority_queue_can_hold",
    },
    "objects and causes are pickled on their way": {
        "test_objects_are_returned_themselves",
        "test_equal_priorities_never_compare_their_objects",
        "test_the_cause_is_the_cause_of_later_errors",
        "test_a_cause_can_come_with_a_later_close",
        "test_an_element_without_a_size_is_refused",
        "test_ends_by_a_failure_for_each_caller",
    },
}
"""By the reason why."""

BODIES = [
    parameter
    for module in MODULES
    for parameter in bodies_of(module, set().union(*LEFT_OUT.values()), ["kind"])
]


def cases() -> Any:
    """Each body in each world that it fits; all kinds of queues in the first one."""
    turns = itertools.count()
    for parameter, world in itertools.product(BODIES, PROCESS_WORLDS):
        body: Body = parameter.values[0]
        if not body.fits(world):
            continue
        kinds = KINDS if "kind" in body.parameters and world is PROCESS_WORLDS[0] else KINDS[:1]
        for kind in kinds:
            name = f"{world.name}-{kind.name}" if len(kinds) > 1 else world.name
            # Threads, and each kind of queue on asyncio in turn, show nearly all.
            is_usual = world is ThreadProcessWorld or next(turns) % (4 * len(PROCESS_WORLDS)) == 0
            marks = [*parameter.marks, *([] if is_usual else [pytest.mark.long])]
            yield pytest.param(world, body, kind, id=f"{parameter.id}-{name}", marks=marks)


def waiting_joins(queue: Any) -> int:
    return test_queue_core_joins.joins(queue)


def test_what_is_left_out_is_there() -> None:
    places = [
        place
        for module in MODULES
        for place in (module, *(case for _, case in inspect.getmembers(module, inspect.isclass)))
    ]
    names = {name for place in places for name in vars(place)}
    assert set().union(*LEFT_OUT.values()) <= names


@pytest.mark.slow(but="test_nowait")
@pytest.mark.parametrize(
    ("process_world", "body", "kind"), list(cases()), indirect=["process_world"]
)
def test_is_that_of_one_process(
    process_world: InAnotherProcess, body: Body, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The body counts joins that wait by a look into the queue: the owner has to look.
    owner = process_world.owner
    monkeypatch.setattr(
        test_queue_core_joins,
        "joins",
        lambda queue: owner.call(waiting_joins, getattr(queue, "face", queue)),
    )
    body.run(process_world, kind=kind)


def test_without_time_to_wait_what_can_be_done_at_once_is_done(owner: Owner) -> None:
    queue = owner.make("FIFOQueue", 20).sync
    for number in range(20):
        queue.enqueue(number, timeout=0)
    with pytest.raises(DeadlineExceededError):
        queue.enqueue(20, timeout=0)
    assert [queue.dequeue(timeout=0) for _ in range(10)] == list(range(10))
    assert queue.dequeue_many(10, timeout=0) == list(range(10, 20))
    for call in (queue.dequeue, queue.join, queue.wait_closed):
        with pytest.raises(DeadlineExceededError):
            call(timeout=0)
    queue.task_done(20)
    queue.close()
    queue.join(timeout=0)
    queue.wait_closed(timeout=0)
