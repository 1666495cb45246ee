"""The options of sessions and runs, under TensorFlow's names.

Only the timeouts have an effect. The other options describe devices, memory and tracing, which do
not exist here. Scripts set them, so they are kept and can be read back.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = (
    "ConfigProto",
    "GPUOptions",
    "GraphOptions",
    "OptimizerOptions",
    "RunMetadata",
    "RunOptions",
)


class _Message:
    """Fields by name, as in a protocol buffer: a known set, each with a default."""

    _fields: ClassVar[dict[str, Any]] = {}

    def __init__(self, **fields: Any) -> None:
        for name, default in self._fields.items():
            self.__dict__[name] = default() if isinstance(default, type) else default
        for name, value in fields.items():
            self._check(name, ValueError)
            self.__dict__[name] = value

    def _check(self, name: str, error: type[Exception]) -> None:
        if name not in self._fields:
            kind = type(self).__name__
            raise error(
                f'Protocol message {kind} has no "{name}" field; it has: {sorted(self._fields)}'
            )

    def __getattr__(self, name: str) -> Any:
        self._check(name, AttributeError)
        raise AssertionError(f"{name} was deleted")

    def __setattr__(self, name: str, value: Any) -> None:
        self._check(name, AttributeError)
        self.__dict__[name] = value

    def CopyFrom(self, other: Any) -> None:  # noqa: N802  # protocol buffers' name
        """Take over all fields of another one."""
        self.__dict__.update(other.__dict__)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        raise TypeError(f"unhashable object: {type(self).__name__} can be changed")

    def __repr__(self) -> str:
        given = (
            f"{name}={value!r}"
            for name, value in self.__dict__.items()
            if isinstance(value, _Message) or value != self._fields[name]
        )
        return f"{type(self).__name__}({', '.join(given)})"


class GPUOptions(_Message):
    """How GPU memory would be used."""

    _fields: ClassVar[dict[str, Any]] = {
        "per_process_gpu_memory_fraction": 0.0,
        "allow_growth": False,
        "allocator_type": "",
        "deferred_deletion_bytes": 0,
        "visible_device_list": "",
        "polling_active_delay_usecs": 0,
        "polling_inactive_delay_msecs": 0,
        "force_gpu_compatible": False,
    }


class OptimizerOptions(_Message):
    """How graphs would be optimized."""

    L1 = 0
    L0 = -1
    DEFAULT = 0
    OFF = 0
    ON_1 = 1
    ON_2 = 2
    _fields: ClassVar[dict[str, Any]] = {
        "do_common_subexpression_elimination": False,
        "do_constant_folding": False,
        "max_folded_constant_in_bytes": 0,
        "do_function_inlining": False,
        "opt_level": 0,
        "global_jit_level": 0,
    }


class GraphOptions(_Message):
    """How graphs would be compiled."""

    _fields: ClassVar[dict[str, Any]] = {
        "enable_recv_scheduling": False,
        "optimizer_options": OptimizerOptions,
        "build_cost_model": 0,
        "build_cost_model_after": 0,
        "infer_shapes": False,
        "place_pruned_graph": False,
        "enable_bfloat16_sendrecv": False,
        "timeline_step": 0,
        "rewrite_options": None,
    }


class ConfigProto(_Message):
    """The options of a session.

    ``operation_timeout_in_ms`` limits each run of the session, unless the run's own options do;
    0 is no limit. All other fields are accepted and have no effect.
    """

    _fields: ClassVar[dict[str, Any]] = {
        "device_count": dict,
        "intra_op_parallelism_threads": 0,
        "inter_op_parallelism_threads": 0,
        "use_per_session_threads": False,
        "session_inter_op_thread_pool": list,
        "placement_period": 0,
        "device_filters": list,
        "gpu_options": GPUOptions,
        "allow_soft_placement": False,
        "log_device_placement": False,
        "graph_options": GraphOptions,
        "operation_timeout_in_ms": 0,
        "rpc_options": None,
        "cluster_def": None,
        "isolate_session_state": False,
        "share_cluster_devices_in_session": False,
        "experimental": None,
    }


class RunOptions(_Message):
    """The options of one run.

    ``timeout_in_ms`` limits it; 0 is the session's limit. Tracing has no effect.
    """

    NO_TRACE = 0
    SOFTWARE_TRACE = 1
    HARDWARE_TRACE = 2
    FULL_TRACE = 3
    _fields: ClassVar[dict[str, Any]] = {
        "trace_level": 0,
        "timeout_in_ms": 0,
        "inter_op_thread_pool": 0,
        "output_partition_graphs": False,
        "debug_options": None,
        "report_tensor_allocations_upon_oom": False,
        "experimental": None,
    }


class RunMetadata(_Message):
    """What a traced run would tell; always empty here."""

    _fields: ClassVar[dict[str, Any]] = {
        "step_stats": None,
        "cost_graph": None,
        "partition_graphs": list,
    }
