"""`tf.train.Server` and `ClusterSpec`: what sessions of one process share, without network."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from aioqueue.compat.v1.session.messages import Message
from aioqueue.compat.v1.session.state import ResourceContainer, register_target

__all__ = ("ClusterDef", "ClusterSpec", "JobDef", "Server", "ServerDef", "replica_device_setter")

_ports = itertools.count(50_000)
_Tasks = dict[int, str]


class JobDef(Message):
    """A job as plain data: its name, and the addresses of its tasks by number."""

    _fields: ClassVar[dict[str, Any]] = {"name": "", "tasks": dict}


class ClusterDef(Message):
    """A cluster as plain data: a list of jobs."""

    _fields: ClassVar[dict[str, Any]] = {"job": list}


class ClusterSpec:
    """Jobs, each with addresses of tasks."""

    def __init__(self, cluster: Any) -> None:
        self._jobs: dict[str, _Tasks] = {}
        if isinstance(cluster, ClusterSpec):
            cluster = cluster._jobs
        elif isinstance(cluster, ClusterDef):
            cluster = {job.name: job.tasks for job in cluster.job}
        if not isinstance(cluster, Mapping):
            raise TypeError(
                "`cluster` must be a dictionary mapping one or more job names to lists of network"
                f" addresses, or a `ClusterDef` protocol buffer: got {cluster!r}"
            )
        for job, tasks in cluster.items():
            if isinstance(tasks, list | tuple):
                self._jobs[job] = dict(enumerate(map(str, tasks)))
            elif isinstance(tasks, Mapping):
                self._jobs[job] = {int(number): str(one) for number, one in tasks.items()}
            else:
                raise TypeError(
                    f"The tasks for job {job!r} must be a list or a dictionary from integers to"
                    " strings."
                )

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and self._jobs == other._jobs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()})"

    def as_dict(self) -> dict[str, list[str] | _Tasks]:
        """Lists of addresses by job name; a dict where task numbers have gaps."""
        return {
            job: list(tasks.values()) if list(tasks) == list(range(len(tasks))) else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    def as_cluster_def(self) -> ClusterDef:
        """The same as plain data."""
        jobs = sorted(self._jobs.items())
        return ClusterDef(job=[JobDef(name=name, tasks=dict(tasks)) for name, tasks in jobs])

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._jobs)

    def num_tasks(self, job_name: str) -> int:
        """How many tasks a job has."""
        return len(self._tasks(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The numbers of a job's tasks, in order."""
        return sorted(self._tasks(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of a task."""
        try:
            return self._tasks(job_name)[task_index]
        except KeyError:
            raise ValueError(f"No task with index {task_index!r} in job {job_name!r}") from None

    def job_tasks(self, job_name: str) -> list[str | None]:
        """The addresses of a job's tasks by number; ``None`` where there is a gap."""
        tasks = self._tasks(job_name)
        return [tasks.get(number) for number in range(max(tasks, default=-1) + 1)]

    def _tasks(self, job: str) -> _Tasks:
        try:
            return self._jobs[job]
        except KeyError:
            raise ValueError(f"No such job in cluster: {job!r}") from None


class ServerDef(Message):
    """What a server is: its cluster, and which task of it."""

    _fields: ClassVar[dict[str, Any]] = {
        "cluster": ClusterDef, "job_name": "", "task_index": 0, "protocol": "",
    }  # fmt: skip


class Server:
    """Where sessions of one process, ``tf.Session(server.target)``, share variables and queues."""

    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
    ) -> None:
        if isinstance(server_or_cluster_def, ServerDef):
            given = server_or_cluster_def
            cluster = ClusterSpec(given.cluster)
            job_name = given.job_name if job_name is None else job_name
            task_index = given.task_index if task_index is None else task_index
            protocol = protocol or given.protocol
        else:
            cluster = ClusterSpec(server_or_cluster_def)
        job_name = _only(job_name, cluster.jobs, "job_name")
        task_index = _only(task_index, cluster.task_indices(job_name), "task_index")
        host, _, port = cluster.task_address(job_name, task_index).rpartition(":")
        if port in ("", "0"):
            port = str(next(_ports))
        self.server_def: ServerDef = ServerDef(
            cluster=cluster.as_cluster_def(),
            job_name=job_name,
            task_index=task_index,
            protocol=protocol or "grpc",
        )
        self.target: str = f"{self.server_def.protocol}://{host or 'localhost'}:{port}"
        self._resources = ResourceContainer()
        if start:
            self.start()

    @staticmethod
    def create_local_server(config: Any = None, start: bool = True) -> Server:
        """A server of its own, for sessions of this process."""
        return Server({"local": ["localhost:0"]}, protocol="grpc", config=config, start=start)

    def start(self) -> None:
        """Let sessions find it."""
        register_target(self.target, self._resources)

    def join(self) -> None:
        """Wait for ever, as in TensorFlow: until the process is ended."""
        threading.Event().wait()


def _only(given: Any, there: Sequence[Any], argument: str) -> Any:
    if given is None and len(there) == 1:
        return there[0]
    if given not in there:
        raise ValueError(f"{argument}: got {given!r}; expected one of {list(there)}")
    return given


def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: Any = None,
    ps_ops: Sequence[str] | None = None,
    ps_strategy: Any = None,
) -> Any:
    """A function for `tf.device`, where it has no effect; None without parameter servers."""
    if cluster is not None:
        _, _, job = ps_device.partition("/job:")
        ps_tasks = len(ClusterSpec(cluster).as_dict().get(job.partition("/")[0], ()))
    if not ps_tasks:
        return None
    if ps_strategy is not None and not callable(ps_strategy):
        raise TypeError("ps_strategy must be callable")
    return lambda operation: worker_device
