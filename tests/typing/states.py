"""Positions, journals and statistics: plain types, which a program keeps beside its own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, assert_type

import aioqueue
from aioqueue import inputs, sync

path = Path(tempfile.mkdtemp()) / "position"

assert_type(inputs.load_position(path, None), inputs.Position | None)

train = inputs.items(range(8), shuffle=True, seed=1).batch(2)
with train.epochs(1, journal=path.with_name("journal")) as epochs:
    for epoch in epochs:
        assert_type(epoch.number, int)
        for _ in epoch:
            state = epochs.state_dict()
            assert_type(state, dict[str, Any])
            inputs.save_position(path, {"step": 1, "data": state})

found = inputs.load_position(path)
assert_type(found, inputs.Position)
assert_type(inputs.read_journal(path.with_name("journal"))[0].items, tuple[inputs.Origin, ...])

queue = sync.FIFOQueue[int](4)
assert_type(queue.statistics(), aioqueue.Statistics)
assert_type(queue.statistics().enqueued, int)
assert_type(queue.state, aioqueue.QueueState)
assert_type(queue.capacity, int | None)

newest: sync.Latest[int] = sync.Latest(name="newest")
newest.publish(1)
assert_type(newest.get().value, int)
assert_type(sync.Latest(name="of anything"), sync.Latest[Any])
assert_type(aioqueue.Latest[str](name="of text"), aioqueue.Latest[str])
assert_type(sync.Latest(0.5, name="of a number"), sync.Latest[float])
