"""The suite's tests of all queues, on queues of a cluster: one world more.

Their queues share an actor: see `tests.ray.cluster.shared_actor`. Left out is what a queue on a
cluster does not have; and all kinds of queues where one is enough.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.bodies import Body, bodies_of
from tests.kit.worlds import KINDS, AwaitedQueue, ThreadWorld
from tests.queues import test_queue_core as bodies
from tests.ray.marks import MARKS

pytestmark = MARKS


class AwaitedRayQueue(AwaitedQueue):
    """With the few things more that bodies ask a queue for."""

    def __len__(self) -> int:
        return int(self.face.statistics().size)

    def __bool__(self) -> bool:
        return True


class RayWorld(ThreadWorld):
    """Threads, and queues on a cluster.

    Args:
        make: makes them.
    """

    name = "ray"

    def __init__(self, make: Callable[..., Any]) -> None:
        super().__init__()
        self._make = make

    def _new(self, kind: str, arguments: Any, options: Any) -> Any:
        queue = self._make(kind, *arguments, **options).sync
        self._queues.append(queue)
        return AwaitedRayQueue(queue)

    def fifo(self, *arguments: Any, **options: Any) -> Any:
        return self._new("FIFOQueue", arguments, options)

    def shuffle(self, *arguments: Any, **options: Any) -> Any:
        return self._new("RandomShuffleQueue", arguments, options)

    def padding(self, *arguments: Any, **options: Any) -> Any:
        return self._new("PaddingFIFOQueue", arguments, options)

    def priority(self, *arguments: Any, **options: Any) -> Any:
        return self._new("PriorityQueue", arguments, options)


LEFT_OUT = {
    "attributes of a queue in memory": {
        "test_describes_itself",
        "test_a_queue_of_objects_has_no_components",
        "test_one_bare_shape_and_dtype",
        "test_without_shapes",
        "test_names_are_made_up",
        "test_unbounded",
        "test_repr",
        "test_min_after_dequeue_is_an_attribute",
        "test_cancel_pending_enqueues",
        "test_state",
        "test_without_waiting_callers_it_is_closed_at_once",
        "test_earlier_enqueues_still_complete",
        "test_wait_closed",
        "test_wait_closed_ends_when_enqueues_have_failed",
        "test_size_is_len",
    },
    "operations that do not wait, which would be calls all the same": {
        "test_closed",
        "test_keeps_min_after_dequeue_inside",
        "test_nowait",
        "test_nowait_wakes_waiting_callers",
        "test_nowait_never_overtakes",
    },
    "elements and causes are pickled, and arrays cannot be written to": {
        "test_objects_are_returned_themselves",
        "test_equal_priorities_never_compare_their_objects",
        "test_the_cause_is_the_cause_of_later_errors",
        "test_a_cause_can_come_with_a_later_close",
        "test_values_are_copied_in_and_private_on_the_way_out",
        "test_a_batch_that_waits_is_private_too",
    },
    "there is no `copy=False`, and no `out=`": {
        "test_arrays_can_be_enqueued_without_a_copy",
        "test_out_is_written_and_returned",
        "test_out_is_written_by_a_batch_that_waits",
        "test_out_of_no_rows",
        "test_later_batches_leave_out_unchanged",
    },
    "what was taken counts when it is committed": {
        "test_counts",
        "test_enqueue_wait",
    },
    "thousands of calls, to count what the machine draws": {
        "test_fresh_entropy",
        "test_each_is_drawn_uniformly",
        "test_many_waiters_of_many_sizes",
    },
}
"""By the reason why."""


def chosen() -> list[Any]:
    left_out = set().union(*LEFT_OUT.values())
    found = bodies_of(bodies, left_out, ["kind"])
    return [parameter for parameter in found if parameter.values[0].case is not None]


def test_what_is_left_out_is_there() -> None:
    names = {name for case in vars(bodies).values() if inspect.isclass(case) for name in vars(case)}
    assert set().union(*LEFT_OUT.values()) <= names


@pytest.mark.parametrize("body", chosen())
def test_is_that_of_one_program(body: Body, share: Any) -> None:
    body.run(RayWorld(share), kind=KINDS[0])
