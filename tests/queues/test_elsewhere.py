"""Names of other queues lead to those of ours."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import aioqueue
from aioqueue import sync


@pytest.fixture(params=[aioqueue.FIFOQueue, sync.FIFOQueue], ids=["async", "threads"])
def queue(request: pytest.FixtureRequest) -> Any:
    return request.param(4)


@pytest.mark.parametrize(
    ("there", "here"),
    [("put", "enqueue(element)"), ("get", "dequeue()"), ("qsize", "size()"), ("sync_q", "sync")],
)
def test_what_is_meant_is_named(queue: Any, there: str, here: str) -> None:
    with pytest.raises(AttributeError) as error:
        getattr(queue, there)
    assert str(error.value) == f"a queue has no {there!r}; here that is .{here}"
    assert not hasattr(queue, there)


def test_others_are_not_there(queue: Any) -> None:
    with pytest.raises(AttributeError, match=r"a queue has no 'wrong'$"):
        _ = queue.wrong
    for refused in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            refused(queue)
