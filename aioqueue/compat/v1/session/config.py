"""The options of sessions and runs: timeouts have an effect, the rest can be read back."""

from __future__ import annotations

from typing import Any, ClassVar

from aioqueue.compat.v1.session.messages import Message

__all__ = (
    "ConfigProto", "GPUOptions", "GraphOptions", "OptimizerOptions", "RunMetadata", "RunOptions",
)  # fmt: skip


class GPUOptions(Message):
    """How GPU memory would be used."""

    _fields: ClassVar[dict[str, Any]] = {
        "per_process_gpu_memory_fraction": 0.0, "allow_growth": False, "allocator_type": "",
        "deferred_deletion_bytes": 0, "visible_device_list": "", "polling_active_delay_usecs": 0,
        "polling_inactive_delay_msecs": 0, "force_gpu_compatible": False,
    }  # fmt: skip


class OptimizerOptions(Message):
    """How graphs would be optimized."""

    L1 = 0
    L0 = -1
    DEFAULT = 0
    OFF = 0
    ON_1 = 1
    ON_2 = 2
    _fields: ClassVar[dict[str, Any]] = {
        "do_common_subexpression_elimination": False, "do_constant_folding": False,
        "max_folded_constant_in_bytes": 0, "do_function_inlining": False, "opt_level": 0,
        "global_jit_level": 0,
    }  # fmt: skip


class GraphOptions(Message):
    """How graphs would be compiled."""

    _fields: ClassVar[dict[str, Any]] = {
        "enable_recv_scheduling": False, "optimizer_options": OptimizerOptions,
        "build_cost_model": 0, "build_cost_model_after": 0, "infer_shapes": False,
        "place_pruned_graph": False, "enable_bfloat16_sendrecv": False, "timeline_step": 0,
        "rewrite_options": None,
    }  # fmt: skip


class ConfigProto(Message):
    """The options of a session; ``operation_timeout_in_ms`` limits each run, 0 does not."""

    _fields: ClassVar[dict[str, Any]] = {
        "device_count": dict, "intra_op_parallelism_threads": 0, "inter_op_parallelism_threads": 0,
        "use_per_session_threads": False, "session_inter_op_thread_pool": list,
        "placement_period": 0, "device_filters": list, "gpu_options": GPUOptions,
        "allow_soft_placement": False, "log_device_placement": False, "graph_options": GraphOptions,
        "operation_timeout_in_ms": 0, "rpc_options": None, "cluster_def": None,
        "isolate_session_state": False, "share_cluster_devices_in_session": False,
        "experimental": None,
    }  # fmt: skip


class RunOptions(Message):
    """The options of one run; ``timeout_in_ms`` limits it, 0 leaves that to the session."""

    NO_TRACE = 0
    SOFTWARE_TRACE = 1
    HARDWARE_TRACE = 2
    FULL_TRACE = 3
    _fields: ClassVar[dict[str, Any]] = {
        "trace_level": 0, "timeout_in_ms": 0, "inter_op_thread_pool": 0,
        "output_partition_graphs": False, "debug_options": None,
        "report_tensor_allocations_upon_oom": False, "experimental": None,
    }  # fmt: skip


class RunMetadata(Message):
    """What a traced run would tell; always empty here."""

    _fields: ClassVar[dict[str, Any]] = {
        "step_stats": None, "cost_graph": None, "partition_graphs": list,
    }  # fmt: skip
