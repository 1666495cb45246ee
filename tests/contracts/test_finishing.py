"""Elements of a queue that a stage takes in come once: those that it drops, too.

A run takes elements of a queue on lease. Those of rows that the user receives are done. A stage
that drops a row says so (`finish`), or the element goes back to the queue at the end of the run.
"""

from __future__ import annotations

from pathlib import Path

from aioqueue import sync
from aioqueue.inputs import from_iterable
from tests.contracts.programs import Program, asked
from tests.kit.resuming import How

COUNT = 12


@asked("finishing", of="stage")
def test_nothing_goes_back_that_a_whole_run_has_taken(program: Program, folder: Path) -> None:
    queue = sync.FIFOQueue(None)
    queue.enqueue_many(list(range(COUNT)))
    queue.close()
    for _ in program.pipeline(How(2), folder, from_iterable(queue)):
        pass
    left = [queue.dequeue() for _ in range(queue.size())]
    # What combines queues may end with the shortest one. Then the last elements are left, in order.
    expected = list(range(COUNT - len(left), COUNT)) if program.kind.cls.combines else []
    assert left == expected, f"{program.kind} does not finish the rows that it drops"
