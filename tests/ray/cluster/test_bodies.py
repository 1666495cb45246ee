"""The suite's own tests of what queues do, on queues of a cluster: one world more.

Left out is what a queue on a cluster does not have: operations that do not wait (``_nowait``),
which would be a call there all the same; ``out=``, ``copy=False``; attributes of a queue in memory
(``state``, ``dtypes``, ``len``); arrays that can be written to; the two faces of one queue in one
program. And what would only be slow here: all kinds where one does, and hundreds of elements one by
one.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest

from tests.queues import test_queues as bodies
from tests.worlds import KINDS, AwaitedQueue, ThreadWorld

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(120),
    # Of Ray's own.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_numbers = itertools.count()


class AwaitedRayQueue(AwaitedQueue):
    """With the few things more that bodies ask a queue for."""

    def __len__(self) -> int:
        return int(self.face.statistics().size)

    def __bool__(self) -> bool:
        return True


class RayWorld(ThreadWorld):
    """Threads, and queues on a cluster."""

    name = "ray"

    def _new(self, kind: str, arguments: Any, options: Any) -> Any:
        import aioqueue.ray

        options.pop("name", None)
        queue = getattr(aioqueue.ray, kind)(f"body {next(_numbers)}", *arguments, **options)
        self._queues.append(queue.sync)
        return AwaitedRayQueue(queue.sync)

    def fifo(self, *arguments: Any, **options: Any) -> Any:
        return self._new("FIFOQueue", arguments, options)

    def shuffle(self, *arguments: Any, **options: Any) -> Any:
        return self._new("RandomShuffleQueue", arguments, options)

    def padding(self, *arguments: Any, **options: Any) -> Any:
        return self._new("PaddingFIFOQueue", arguments, options)

    def priority(self, *arguments: Any, **options: Any) -> Any:
        return self._new("PriorityQueue", arguments, options)

    def close_all(self) -> None:
        for queue in self._queues:
            queue.close(cancel_pending_enqueues=True)

    def delete_all(self) -> None:
        """End their actors."""
        for queue in self._queues:
            queue.delete()  # type: ignore[attr-defined]


CHOSEN = {
    "test_waits_while_full",
    "test_many_may_exceed_the_capacity",
    "test_rows_stay_together",
    "test_waits_for_one",
    "test_many_waits_for_exactly_n",
    "test_producers_get_their_room_back_at_once",
    "test_a_priority_queue_takes_nothing_early",
    "test_priorities",
    "test_to_the_largest_in_this_batch",
    "test_waits_for_n_while_open",
    "test_what_is_left_after_close",
    "test_what_is_left_when_closed_meanwhile",
    "test_what_is_there_when_max_wait_has_passed",
    "test_the_first_one_when_nothing_was_there",
    "test_elements",
    "test_drop_remainder",
    "test_enqueues_proceed_as_they_began",
    "test_dequeues_proceed_as_they_began",
    "test_a_mixture_of_dequeues",
    "test_a_mixture_of_enqueues",
    "test_a_smaller_one_does_not_overtake",
    "test_enqueues_are_tried_before_dequeues",
    "test_consumers_that_wait_are_told",
    "test_rows_of_a_failed_batch_serve_the_next",
    "test_pending_enqueues_can_be_cancelled_later",
    "test_many_that_wait_are_all_told",
}

BODIES = [
    pytest.param(case, method, id=f"{case.__name__}.{name}")
    for case in vars(bodies).values()
    if inspect.isclass(case) and case.__module__ == bodies.__name__
    for name, method in vars(case).items()
    if name in CHOSEN
]


def test_all_that_were_chosen_are_there() -> None:
    assert {str(body.id).split(".")[1] for body in BODIES} == CHOSEN


@pytest.mark.parametrize(("case", "method"), BODIES)
def test_is_that_of_one_program(case: Any, method: Any, cluster: Any) -> None:
    world = RayWorld()
    arguments = {"world": world, "kind": KINDS[0]}
    taken = {
        name: arguments[name] for name in inspect.signature(method).parameters if name != "self"
    }
    try:
        world.run(lambda: method(case(), **taken))
    finally:
        world.delete_all()
