"""What has been used is freed: the object store holds no more after many batches than after few.

Run it by hand, for so many batches; it needs grpcio, by which Ray tells of its object store::

    python -m tests.ray.cluster.memory 100000
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tests import clusters

ROW = 25_000  # float64s, so that a batch of four is 800 KB: in a store of 200 MB


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
