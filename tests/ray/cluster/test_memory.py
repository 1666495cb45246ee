"""What has been used is freed: the object store holds no more after many batches than after few.

The long form: ``python -m tests.ray.cluster.test_memory 100000``.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tests import clusters

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(120),
    # Of Ray's own.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROW = 25_000  # float64s, so that a batch of four is 800 KB: in a store of 200 MB

FEW = 16
"""Objects that may stay: of the last batches, until the garbage collector comes by."""


def store() -> Any:
    """What Ray says of its object store."""
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    return get_memory_info_reply(get_state_from_address(None)).store_stats


def pass_through(queue: Any, count: int) -> None:
    """Put batches in, and take them out in other sizes."""
    for number in range(count):
        queue.enqueue_many(np.full((4, ROW), number))
        assert queue.dequeue_many(3)[0, 0] == number
        assert queue.dequeue_up_to(1)[0, 0] == number


def until_freed(most: int) -> None:
    """Wait until no more objects than that are left."""
    while store().num_local_objects > most:
        pass


def test_the_store_stays_as_it_is(make: Any) -> None:
    """Twice as much goes through as fits."""
    pytest.importorskip("grpc", reason="Ray tells of its object store by grpcio: not installed")
    queue = make("FIFOQueue", 16, "float64", [(ROW,)]).sync
    pass_through(queue, 5)
    queue.commit()
    until_freed(FEW)
    spilled = store().spilled_bytes_total
    pass_through(queue, 500)
    queue.commit()
    until_freed(FEW)
    assert store().spilled_bytes_total == spilled


if __name__ == "__main__":
    import aioqueue.ray

    count = int(sys.argv[1]) // 10
    with clusters.one_node():
        queue = aioqueue.ray.FIFOQueue("flat", 16, "float64", [(ROW,)]).sync
        for part in range(1, 11):
            pass_through(queue, count)
            found = store()
            used, spilled = found.object_store_bytes_used, found.spilled_bytes_total
            print(
                f"{part * count:,} batches: {found.num_local_objects} objects,"
                f" {used / 2**20:.1f} MiB, {spilled / 2**20:.1f} MiB spilled",
                flush=True,
            )
