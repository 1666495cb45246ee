"""Ray clusters for tests: one machine that pretends to be several, and programs for themselves.

A cluster takes seconds to start. So all tests of a session share one (`tests/conftest.py`), of one
node; those that kill nodes have others join it. What ends the connection runs as a program of its
own.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STORE = 200 * 2**20
"""Bytes of the object store of a node."""

PATIENCE = 300
"""Seconds that a program or a test may take: many times what it does, for machines with much else
to do."""

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "120")
os.environ.setdefault("RAY_worker_register_timeout_seconds", "240")
# Else whatever else the machine does goes before what is tested here, and all that waits for it.
os.environ.setdefault("RAY_worker_niceness", "0")

_QUIET = {"log_to_driver": False, "logging_level": "error"}
_SMALL = {"include_dashboard": False, "no_monitor": True, "include_log_monitor": False}
_HEALTH = {
    # A killed node refuses connections, and so is noticed after two seconds, not after half a
    # minute. One that is slow, on a machine with much else to do, is not taken to be dead.
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 20_000,
    "health_check_failure_threshold": 4,
}


@contextmanager
def one_node(cpus: int = 4, store: int = STORE) -> Iterator[Any]:
    """Ray with a cluster of one node, as users start it on their machine."""
    import ray

    with _quietly():
        # A new one, whatever other clusters this machine has.
        ray.init(
            "local",
            num_cpus=cpus,
            object_store_memory=store,
            include_dashboard=False,
            **_QUIET,
        )
    try:
        yield ray
    finally:
        ray.shutdown()
        _forget_sockets()


def actor_of(one: Any) -> Any:
    """Ray's handle of the actor of a queue, or a coordinator: any program gets it by its name."""
    import ray

    from aioqueue.ray.queues import NAMESPACE

    kind = "queue" if hasattr(one, "leases") else "coordinator"
    return ray.get_actor(f"{kind} {one.name}", namespace=NAMESPACE)


class Head:
    """A cluster of a head, where this program is; nodes may join it.

    Attributes:
        ray: Ray, connected to it.
    """

    def __init__(self, cluster: Any, ray: Any) -> None:
        self._cluster = cluster
        self.ray = ray

    @contextmanager
    def joined(self, count: int) -> Iterator[Nodes]:
        """With so many nodes more, for as long as the block."""
        nodes = Nodes(self._cluster, self.ray, count)
        try:
            yield nodes
        finally:
            nodes.remove()


class Nodes:
    """Nodes that have joined a head: each with two CPUs, the resource ``data``, and a raylet."""

    def __init__(self, cluster: Any, ray: Any, count: int) -> None:
        self._cluster = cluster
        self._ray = ray
        self.workers = [self._add() for _ in range(count)]

    def _add(self) -> Any:
        with _quietly():
            return self._cluster.add_node(
                num_cpus=2, resources={"data": 1000}, object_store_memory=STORE
            )

    def known(self) -> bool:
        """Whether Ray knows which nodes live, and which do not any more."""
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        return len(alive) == len(self.workers) + 1

    def kill(self, node_id: str | None = None) -> None:
        """Kill a node with all that runs on it, the first one if it has no name; another joins."""
        names = [node.node_id for node in self.workers]
        node = self.workers.pop(0 if node_id is None else names.index(node_id))
        self.workers.append(self._add())
        self._cluster.remove_node(node, allow_graceful=False)

    def remove(self) -> None:
        """End all of them."""
        for node in self.workers:
            self._cluster.remove_node(node, allow_graceful=False)


@contextmanager
def head(cpus: int = 4) -> Iterator[Head]:
    """A new cluster of one node, which others may join."""
    import ray
    from ray._common.utils import reset_ray_address
    from ray.cluster_utils import Cluster

    with _quietly():
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": cpus,
                "object_store_memory": STORE,
                "_system_config": _HEALTH,
                **_SMALL,
            },
        )
        reset_ray_address()  # else every `ray.init()` on this machine would find it
        ray.init(address=cluster.address, **_QUIET)
    try:
        yield Head(cluster, ray)
    finally:
        ray.shutdown()
        cluster.shutdown()
        _forget_sockets()


def run_program(text: str) -> list[str]:
    """Run a program beside the tests, to its end; returns the lines that it has printed."""
    from tests.kit.children import ROOT, environment  # which such a program does not need

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def kill(pid: int) -> bool:
    """End a process of the cluster at once; whether it was still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def _quietly() -> Iterator[None]:
    """While Ray starts something: without its warnings, and without its handler of SIGTERM.

    That one ends the program, and other tests of this process send themselves SIGTERM.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _forget_sockets() -> None:
    """Ray leaves files and sockets open, which are noticed when they are collected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
