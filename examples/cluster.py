"""Decode JPEG files on a Ray cluster, and lose a machine on the way.

The cluster is on this machine and pretends to be three: a head, where this program is, and two
nodes that decode. Each has an object store and a raylet of its own.

* A folder of JPEG files is drawn, or taken as it is.
* A `Pipeline` decodes and crops them, with ``where="ray"``; all the rest is as on one machine.
* When a third of the batches have come, one node is killed, with all that it was preparing and all
  that lay in its object store. Another one joins.
* The same pipeline on threads tells what should have come: the batches are compared byte by byte.

Run it (``pip install '.[ray]' pillow``)::

    python examples/cluster.py                        # 2,000 images
    python examples/cluster.py --root ~/pictures --count 500
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

os.environ.setdefault(
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
)  # else Ray warns of what it will do

import ray
from ray.cluster_utils import Cluster

from aioqueue import inputs

SIZE = 96
BATCH = 32
NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 200 * 2**20, "resources": {"data": 2}}
# A dead node is noticed after two seconds, not after half a minute.
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


def draw(path: Path, number: int) -> None:
    """Write one file: stripes and noise."""
    rng = np.random.default_rng(number)
    x, y = np.mgrid[:128, :128]
    stripes = 127 + 100 * np.sin((x * rng.normal() + y * rng.normal()) / 8)
    pixels = stripes[..., None] + rng.integers(0, 28, (128, 128, 3))
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=85)


def decode(path: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Read one file, and cut a random square out of it: the same one wherever it is prepared."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB").resize((128, 128)))
    top, left = rng.integers(0, 128 - SIZE, 2)
    return pixels[top : top + SIZE, left : left + SIZE]


def pipeline(paths: list[str], where: Any, **options: Any) -> inputs.Pipeline[Any]:
    """What is done, wherever that is."""
    source = inputs.items(paths, shuffle=True, seed=7)
    return source.prepare(decode, where=where, workers=4, **options).batch(BATCH)


def digests(batches: Any) -> Iterator[str]:
    for batch in batches:
        yield hashlib.blake2b(np.ascontiguousarray(batch).tobytes(), digest_size=16).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--root", type=Path, help="a folder of JPEG files")
    parser.add_argument("--count", type=int, default=2000, help="how many of them")
    given = parser.parse_args()
    logging.basicConfig(format="  %(message)s")  # what is said of workers that are lost
    with tempfile.TemporaryDirectory() as folder:
        root = given.root or Path(folder)
        if given.root is None:
            for number in range(given.count):
                draw(root / f"{number:05}.jpg", number)
        paths = [str(path) for path in sorted(root.glob("*.jpg"))[: given.count]]
        print(f"{len(paths)} JPEG files", flush=True)
        wanted = list(digests(pipeline(paths, "thread")))
        found = on_cluster(paths, len(wanted))
    is_same = found == wanted
    print(
        f"{len(found)} batches, {'the same as' if is_same else 'DIFFERENT from'} those of threads"
    )
    if not is_same:
        raise SystemExit(1)


def on_cluster(paths: list[str], count: int) -> list[str]:
    """The digests of all batches, though a node is killed on the way."""
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH},
    )
    nodes = [cluster.add_node(**NODE) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    print("a head and two nodes", flush=True)
    try:
        found = []
        began = perf_counter()
        # Only where there are data nodes: one of them takes two such workers.
        batches = pipeline(paths, "ray", ray={"resources": {"data": 1}})
        for digest in digests(batches):
            found.append(digest)
            if len(found) == count // 3:
                print(f"batch {len(found)} of {count}: a node is killed, another joins", flush=True)
                cluster.remove_node(nodes[0], allow_graceful=False)
                cluster.add_node(**NODE)
        print(f"{len(paths) / (perf_counter() - began):,.0f} images/s, the loss included")
        return found
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
