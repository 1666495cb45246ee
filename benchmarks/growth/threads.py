"""Threads of a `prepare`: what an item costs with a function that does nothing.

Then all of the cost is the way through the workers: to take the item, to count it as in flight, to
deliver it. It must not grow with the number of workers, whose threads share one interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from benchmarks.growth.rows import Run, instructions

SIZES = (4_000, 6_000, 12_000)
AT_MOST = 33_000


def _pipeline(workers: int, ordered: bool, items: int) -> Run:
    from aioqueue.inputs import numbers

    def run() -> None:
        prepared = numbers(items).prepare(int, workers=workers, where="thread", ordered=ordered)
        for _ in prepared.batch(64):
            pass

    return run


def _into_queue(source: Callable[[int], Iterable[Any]], ordered: bool, items: int) -> Run:
    from aioqueue import sync
    from aioqueue.inputs import prepare

    def run() -> None:
        queue = sync.FIFOQueue(512)
        with sync.Coordinator() as coord:
            options: Any = {"workers": 2, "where": "thread", "ordered": ordered}
            coord.start(prepare(source(items), int, into=queue, **options))
            for _ in queue.batches(64):
                pass

    return run


for _workers, _ordered in ((2, True), (8, True), (8, False)):
    _how = "in order" if _ordered else "as they come"
    instructions(
        f"an item of a pipeline on {_workers} threads, {_how}",
        SIZES,
        partial(_pipeline, _workers, _ordered),
        at_most=AT_MOST,
    )
for _source, _what, _ordered in (
    (range, "a range", False),
    (lambda items: iter(range(items)), "an iterator", True),
):
    _how = "in order" if _ordered else "as they come"
    instructions(
        f"an item of {_what} prepared into a queue on 2 threads, {_how}",
        SIZES,
        partial(_into_queue, _source, _ordered),
        at_most=AT_MOST,
    )
