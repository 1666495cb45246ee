"""Pipelines: what an example costs does not depend on how many a stage holds, or how far it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from benchmarks.growth.rows import Run, count, instructions

ROWS_OF_A_BATCH = 100
BATCHES = 50
PATIENCE = 60
"""Seconds after which a run has failed that would wait for ever."""


def _drained(iterator: Iterator[Any]) -> Run:
    """The rest of an epoch, whose first batch has filled all buffers."""
    next(iterator)

    def drain() -> None:
        for _ in iterator:
            pass

    return drain


def _shuffled(size: int) -> Run:
    from aioqueue.inputs import numbers

    return _drained(iter(numbers(size).shuffle(size).batch(ROWS_OF_A_BATCH)))


class _Read:
    """A sequence that counts its items when they are read, and how far that is ahead of a loop."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.read = 0
        self.received = 0
        self.most_ahead = 0

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, at: int) -> int:
        with self._changed:
            self.read += 1
            self.most_ahead = max(self.most_ahead, self.read - self.received)
            self._changed.notify_all()
        return at

    def receive(self, items: int, ahead: int) -> None:
        """Receive items, and wait until so many more were read."""
        with self._changed:
            self.received += items
            if not self._changed.wait_for(lambda: self.read >= self.received + ahead, PATIENCE):
                raise TimeoutError(f"{self.read} items were read, {self.received} received")


def _in_batches(source: _Read, size: int) -> Any:
    from aioqueue.inputs import items

    return items(source, seed=1).map_batches(sum, size, workers=1)


def _ahead(size: int) -> int:
    source = _Read()
    batches = iter(_in_batches(source, size))
    for _ in range(BATCHES):
        next(batches)
        source.receive(size, 2 * size)  # the next one is ready, and one is made or waits
    return source.most_ahead


def _resumed(batches: int) -> int:
    size = 10
    with _in_batches(_Read(), size).epochs(1) as epochs:
        epoch = iter(next(epochs))
        for _ in range(batches):
            next(epoch)
        state = epochs.state_dict()
    source = _Read()
    with _in_batches(source, size).epochs(1, resume=state) as epochs:
        next(iter(next(epochs)))
        return source.read


def _looped(pipeline: Any) -> Run:
    """A whole epoch in a loop."""

    def loop() -> None:
        for _ in pipeline:
            pass

    return loop


def _zipped(examples: int) -> Run:
    from aioqueue.inputs import numbers

    return _looped(numbers(examples).zip(numbers(examples)).batch(ROWS_OF_A_BATCH))


def _zipped_directly(examples: int) -> Run:
    """The pairs of the same two pipelines, by a loop that stacks a hundred of them."""
    import numpy as np

    from aioqueue.inputs import numbers

    def loop() -> None:
        pairs: list[tuple[int, int]] = []
        for pair in zip(numbers(examples), numbers(examples), strict=True):
            pairs.append(pair)
            if len(pairs) == ROWS_OF_A_BATCH:
                for column in zip(*pairs, strict=True):
                    np.stack([np.asarray(value) for value in column])
                pairs = []

    return loop


def _is_even(number: int) -> bool:
    return number % 2 == 0


def _filtered(examples: int) -> Run:
    from aioqueue.inputs import numbers

    return _looped(numbers(examples).filter(_is_even).batch(ROWS_OF_A_BATCH))


def _filtered_directly(examples: int) -> Run:
    import numpy as np

    from aioqueue.inputs import numbers

    def loop() -> None:
        kept: list[int] = []
        for number in numbers(examples):
            if _is_even(number):
                kept.append(number)
            if len(kept) == ROWS_OF_A_BATCH:
                np.stack([np.asarray(value) for value in kept])
                kept = []

    return loop


def _filtered_singly(examples: int) -> Run:
    from aioqueue.inputs import numbers

    return _looped(numbers(examples).filter(_is_even))


def _shuffled_singly(examples: int) -> Run:
    from aioqueue.inputs import numbers

    return _looped(numbers(examples).shuffle(100))


instructions(
    "a pair of a zip, in batches",
    (2_000, 4_000, 8_000),
    _zipped,
    at_most=28_500,
    peer=("by hand", _zipped_directly),
    times=1.7,
)
instructions(
    "an example into a filter, in batches",
    (2_000, 4_000, 8_000),
    _filtered,
    at_most=11_500,
    peer=("by hand", _filtered_directly),
    times=2,
)
instructions(
    "an example into a filter, one by one", (2_000, 4_000, 8_000), _filtered_singly, at_most=77_000
)
instructions(
    "an example of a small shuffle, one by one",
    (2_000, 4_000, 8_000),
    _shuffled_singly,
    at_most=48_000,
)
instructions(
    "an example out of a shuffle at the end of an epoch", (12_500, 25_000, 50_000), _shuffled
)
count(
    "batches that map_batches has read and the loop has not, by their size",
    "batches",
    (8, 32, 128),
    _ahead,
    at_most=3,
)
count(
    "items that map_batches reads to resume, for each batch before",
    "items",
    (64, 128, 250),
    _resumed,
    at_most=1,
)
