"""Every order in which workers take, deliver and are asked for the state, in small worlds.

A world is a source, workers that have taken some of its items and deliver them, in order or not, a
short queue, and a consumer that takes from it through a stage. `explored` walks through all states
that it can reach, and takes a snapshot in each, as any thread may at any time. Each snapshot has
to be a state that existed: what a new world makes of it is, with what was given before, the list
of all examples, in order or each once; and so again from a snapshot of that.

This is what `proofs.explorer` does with the machine, and not one more move there: a snapshot asks
nodes and what feeds the workers, and never a queue, so in the machine it would be a move that
changes nothing. Nodes are moved step by step under a lock, and a snapshot is taken under it, so
there is none in the middle of a step; between the steps a node may be waiting, and that is a state
here, too. Threads and tasks make the same steps of the same nodes: what differs is how they wait,
and what a cancellation may strike. For that see `TestCancelled` in `test_epochs_resume_anything`,
and `Stepping` for handlers of signals.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest

from aioqueue.core.elements import philox
from aioqueue.inputs import numbers
from aioqueue.items.item import Delivered, EpochEnd
from aioqueue.pipeline import stage_input
from aioqueue.pipeline.nodes import progress
from aioqueue.pipeline.nodes.deferred import settled
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.rows import EpochRange
from aioqueue.pipeline.queue_node import QueueNode
from aioqueue.pipeline.source_node import SourceNode
from aioqueue.pipeline.stage_input import StageInput
from aioqueue.pipeline.stages.batch import BatchNode
from aioqueue.pipeline.stages.shuffle import ShuffleNode
from aioqueue.sources import shuffling
from aioqueue.sources.shards import EpochEntries, Rank

EPOCHS = 2


class Setting(NamedTuple):
    """A world."""

    ordered: bool
    items: int = 3
    window: int = 2
    capacity: int = 2
    several: bool = False
    stage: str = ""
    before: str = ""
    """A stage before the workers: then nothing can be gone back to but marks."""

    def examples(self, item: int) -> tuple[Any, ...]:
        if not self.several:
            return (item,)
        return tuple((item, number) for number in range((item + 2) % 4))


class Queue:
    """What lies between workers and the node, for one thread."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.items: deque[Delivered] = deque()

    def dequeue_up_to(self, n: int, max_wait: float | None) -> list[Delivered]:
        assert self.items, "it would wait for ever"
        return [self.items.popleft() for _ in range(min(n, len(self.items)))]


STAGES: dict[str, Callable[[Node], Node]] = {
    "": lambda node: node,
    "shuffle": lambda node: ShuffleNode(node, 2, 5),
    "batch": lambda node: BatchNode(node, 2, list, drop_remainder=False, across_epochs=False),
}


class World:
    """One that is somewhere."""

    def __init__(self, setting: Setting, state: Any = None) -> None:
        self.setting = setting
        entries = EpochEntries(numbers(setting.items, shuffle=True, seed=3), Rank())
        fed = STAGES[setting.before](SourceNode(entries, EpochRange(0, EPOCHS)))
        workers = StageInput(fed, 0, blocking=False)
        self.queue = Queue(setting.capacity)
        node = QueueNode(
            self.queue,  # type: ignore[arg-type]  # as much of a queue as it needs
            workers,
            items=lambda _: setting.items,
            is_one_to_one=not setting.several,
            keeps_order=setting.ordered,
        )
        self.node = STAGES[setting.stage](node)
        if state is not None:
            self.node.restore(state)
        self.entries: Iterator[Any] = enumerate(workers.entries())
        self.window: list[Delivered] = []
        self.has_ended = False
        self.given: list[Any] = []
        self.ends = 0 if state is None else state["epoch"]

    def moves(self) -> list[tuple[str, int]]:
        """What can happen now."""
        found = []
        if not self.has_ended and len(self.window) < self.setting.window:
            found.append(("begin", 0))
        if len(self.queue.items) < self.queue.capacity:
            count = min(1, len(self.window)) if self.setting.ordered else len(self.window)
            found += [("deliver", place) for place in range(count)]
        if self.ends < EPOCHS:
            found.append(("take", 0))
        return found

    def move(self, kind: str, place: int) -> None:
        """Let it happen."""
        if kind == "begin":
            self._begin()
        elif kind == "deliver":
            self.queue.items.append(self.window.pop(place))
        else:
            self._take()

    def _begin(self) -> None:
        number, entry = next(self.entries, (0, None))
        if entry is None:
            self.has_ended = True
            return
        value, epoch, index = entry
        is_end = isinstance(value, EpochEnd)
        examples = (value,) if is_end else self.setting.examples(value)
        self.window.append((epoch, number, index, examples, None))

    def _take(self) -> bool:
        """Take a row; where one would have to wait, the call is cut short."""
        flow = self.node.take(1)
        try:
            want = flow.send(None)
            while self.queue.items:
                want = flow.send(want.take())
        except StopIteration as ended:
            if isinstance(ended.value, EpochEnd):
                self.ends += 1
            else:
                self.given += [(self.ends, value) for value in self._values(ended.value[0][0])]
            return True
        flow.close()
        return False

    def _values(self, value: Any) -> list[Any]:
        return value if self.setting.stage == "batch" else [value]

    def snapshot(self) -> Any:
        """The state, as it comes back from a file."""
        return json.loads(json.dumps(settled(self.node.state())))

    def key(self) -> str:
        """What tells it from others: what was given, and where all the rest is."""
        return repr((self.given, self.ends, self.has_ended, self.window, self.queue.items)) + repr(
            self.snapshot()
        )

    def rest(self, most: int | None = None) -> None:
        """Go on to the end, or until so many more were given."""
        stop = None if most is None else len(self.given) + most
        while self.ends < EPOCHS and (stop is None or len(self.given) < stop):
            if not self._take():
                while not self.window:
                    self._begin()
                self.move("deliver", len(self.window) - 1 if not self.setting.ordered else 0)


def explored(setting: Setting) -> int:
    """Try all; returns how many states there were."""
    whole = World(setting)
    whole.rest()
    paths: deque[tuple[tuple[str, int], ...]] = deque([()])
    seen = set()
    while paths:
        path = paths.popleft()  # the shortest ones first, for each is walked from the beginning
        world = World(setting)
        for move in path:
            world.move(*move)
        key = world.key()
        if key in seen:
            continue
        seen.add(key)
        if len(seen) % 2:  # every other one, to have it cheap
            check(setting, world, whole.given)
        paths.extend((*path, move) for move in world.moves())
    return len(seen)


def check(setting: Setting, world: World, whole: list[Any]) -> None:
    """A snapshot leads to the rest, and so does one of what was made of it."""
    before = world.key()
    state = world.snapshot()
    assert world.key() == before, "a snapshot changes nothing"
    again = World(setting, state)
    again.rest(2)
    third = World(setting, again.snapshot())
    third.rest()
    found = world.given + again.given + third.given
    shown: Any = list if setting.ordered else sorted
    assert shown(found) == shown(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "least"),
    [
        (Setting(ordered=True), 100),
        (Setting(ordered=True, several=True), 100),
        (Setting(ordered=True, stage="shuffle"), 100),
        (Setting(ordered=True, several=True, stage="batch"), 100),
        (Setting(ordered=True, window=3), 100),
        (Setting(ordered=False, items=2), 100),
        (Setting(ordered=False, items=2, window=3), 100),
        (Setting(ordered=False, items=2, several=True), 100),
        (Setting(ordered=False, items=2, stage="shuffle"), 100),
        (Setting(ordered=False, items=2, several=True, stage="batch"), 100),
        (Setting(ordered=True, before="shuffle"), 100),
        (Setting(ordered=True, before="shuffle", several=True, stage="shuffle"), 100),
        (Setting(ordered=False, items=2, before="shuffle", stage="batch"), 100),
    ],
    ids=str,
)
def test_every_snapshot_is_a_state_that_existed(
    setting: Setting, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least number of states keeps the exploration from shrinking unnoticed."""
    # A mark at each row, and each row by itself, are as many states as there can be.
    monkeypatch.setattr(progress, "_EVERY", 1)
    monkeypatch.setattr(stage_input, "_BURST", 1)
    # All worlds shuffle alike.
    monkeypatch.setattr(f"{shuffling.__name__}.philox_blocks", cache(philox.philox_blocks))
    monkeypatch.setattr(philox, "philox_blocks", cache(philox.philox_blocks))
    assert explored(setting) >= least


def test_a_wrong_snapshot_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = QueueNode._ordered_state

    def loses_what_is_ready(node: QueueNode) -> Any:
        return {**right(node), "next": node._next}

    monkeypatch.setattr(QueueNode, "_ordered_state", loses_what_is_ready)
    with pytest.raises(AssertionError):
        explored(Setting(ordered=True))
