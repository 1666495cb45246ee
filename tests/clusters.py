"""Ray clusters for tests: one machine that pretends to be several."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STORE = 200 * 2**20
"""Bytes of the object store of a node."""

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

QUIET = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}


@contextmanager
def one_node(cpus: int = 4, store: int = STORE) -> Iterator[Any]:
    """Ray with a cluster of one node."""
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's own
        # A new one, whatever other clusters this machine has.
        ray.init("local", num_cpus=cpus, object_store_memory=store, **QUIET)
    try:
        yield ray
    finally:
        ray.shutdown()
        _forget_sockets()


class Nodes:
    """A head, which runs no workers, and nodes that do, each with a raylet of its own."""

    def __init__(self, cluster: Any, count: int) -> None:
        self._cluster = cluster
        self.workers = [self._add() for _ in range(count)]

    def _add(self) -> Any:
        return self._cluster.add_node(
            num_cpus=2, resources={"data": 1000}, object_store_memory=STORE
        )

    def known(self) -> int:
        """How many nodes, the head among them, live as far as Ray knows."""
        import ray

        return sum(node["Alive"] for node in ray.nodes())

    def kill(self, node_id: str | None = None) -> None:
        """Kill a node with all that runs on it, the first one if it has no name; another joins."""
        names = [node.node_id for node in self.workers]
        node = self.workers.pop(0 if node_id is None else names.index(node_id))
        self.workers.append(self._add())
        self._cluster.remove_node(node, allow_graceful=False)


@contextmanager
def several_nodes(count: int = 2) -> Iterator[Nodes]:
    """A cluster of a head and several nodes, which have the resource ``data``."""
    import ray
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "object_store_memory": STORE,
                # A dead node is noticed after seconds, not after half a minute.
                "_system_config": {
                    "health_check_initial_delay_ms": 0,
                    "health_check_period_ms": 500,
                    "health_check_timeout_ms": 1000,
                    "health_check_failure_threshold": 3,
                },
            },
        )
        nodes = Nodes(cluster, count)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    try:
        yield nodes
    finally:
        ray.shutdown()
        cluster.shutdown()
        _forget_sockets()


def kill(pid: int) -> bool:
    """End a process of the cluster at once; whether it was still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _forget_sockets() -> None:
    """Ray leaves files and sockets open, which are noticed when they are collected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
