"""The private modules of TensorFlow that scripts import from, and our namespaces for them.

Almost all names in a private module, such as ``tensorflow.python.ops.array_ops``, are public as
well. The tables here say in which of our namespaces to look for them, in the order of the search.
The few names that were never public are defined here.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from aioqueue.compat.v1 import gfile
from aioqueue.compat.v1.core import nest
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.scopes import executing_eagerly
from aioqueue.compat.v1.core.shapes import TensorShape, as_dimension, as_shape, unknown_shape
from aioqueue.compat.v1.ops.control import merge, switch, with_dependencies
from aioqueue.compat.v1.ops.sparse import (
    SparseTensor,
    SparseTensorValue,
    convert_to_tensor_or_sparse_tensor,
    is_tensor,
)
from aioqueue.compat.v1.ops.static import constant_value, shape_value
from aioqueue.compat.v1.ops.text import decode_raw
from aioqueue.compat.v1.queues.staging import StagingArea
from aioqueue.compat.v1.readers.readers import RecordInput

__all__ = (
    "ABSENT",
    "MODULES",
    "NAMES",
    "constant_value_as_shape",
    "convert_n_to_tensor",
    "deprecated_alias",
    "deprecated_argument_lookup",
    "is_sparse",
    "make_decorator",
    "read_file_to_string",
    "remove_undocumented",
    "same_function",
    "write_string_to_file",
)


def _listed(package: str, modules: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Entries of `MODULES`: the names of modules, each with the namespaces after it."""
    for names, spaces in modules.items():
        for name in names.split():
            yield f"{package}.{name}", tuple("" if one == "tf" else one for one in spaces.split())


MODULES: dict[str, tuple[str, ...]] = dict(
    (
        *_listed("python.client", {"session": "tf"}),
        *_listed(
            "python.data",
            {"ops.dataset_ops ops.iterator_ops ops.readers": "data", "util.nest": "nest"},
        ),
        *_listed("python.eager", {"context": "tf"}),
        *_listed(
            "python.framework",
            {
                "constant_op dtypes ops random_seed sparse_tensor tensor_shape tensor_util": "tf",
                "errors errors_impl": "errors",
            },
        ),
        *_listed("python.lib.io", {"python_io tf_record": "python_io", "file_io": "gfile"}),
        *_listed(
            "python.ops",
            {
                "array_ops clip_ops control_flow_ops data_flow_ops functional_ops map_fn": "tf",
                "gen_array_ops gen_control_flow_ops gen_data_flow_ops gen_math_ops": "tf math io",
                "gen_io_ops gen_parsing_ops gen_random_ops gen_state_ops": "tf io",
                "gen_sparse_ops gen_string_ops gen_script_ops": "tf strings",
                "check_ops": "tf debugging",
                "gen_image_ops image_ops image_ops_impl": "image",
                "init_ops": "initializers tf",
                "io_ops parsing_ops": "tf io",
                "gen_logging_ops logging_ops": "tf summary",
                "gen_lookup_ops lookup_ops": "lookup contrib.lookup tf",
                "math_ops": "tf math",
                "gen_nn_ops nn nn_impl nn_ops": "nn",
                "random_ops": "tf random",
                "resource_variable_ops script_ops sparse_ops state_ops": "tf",
                "string_ops": "tf strings",
                "summary_ops": "summary tf",
                "variable_scope variables": "tf",
            },
        ),
        *_listed(
            "python.platform",
            {"app": "app", "flags": "flags", "gfile": "gfile", "tf_logging": "logging"},
        ),
        *_listed("python.summary", {"summary": "summary"}),
        *_listed("python.summary", {"writer.writer writer.writer_cache": "summary train"}),
        *_listed(
            "python.training",
            {
                "basic_session_run_hooks coordinator input monitored_session queue_runner": "train",
                "queue_runner_impl server_lib session_run_hook training training_util": "train",
                "checkpoint_management saver supervisor": "train",
                "summary_io": "train summary",
            },
        ),
        *_listed(
            "python.util",
            {
                "compat": "compat",
                "nest": "nest",
                "all_util deprecation tf_contextlib tf_decorator tf_export tf_inspect": "compat",
                "tf_should_use": "compat",
            },
        ),
        *_listed("core.example", {"example_pb2 feature_pb2": "train"}),
        *_listed("core.framework", {"summary_pb2": "tf", "types_pb2": "tf"}),
        *_listed("core.protobuf", {"cluster_pb2 queue_runner_pb2": "train", "config_pb2": "tf"}),
        *_listed("core.util", {"event_pb2": "tf"}),
        *_listed("contrib.data.python.ops", {"batching grouping shuffle_ops": "contrib.data"}),
        *_listed(
            "contrib.framework.python",
            {"framework.tensor_util ops.variables": "contrib.framework"},
        ),
        *_listed("contrib.lookup", {"lookup_ops": "contrib.lookup"}),
        *_listed("contrib.staging", {"staging_area": "contrib.staging"}),
        *_listed(
            "contrib.slim.python.slim.data",
            {
                "data_decoder dataset dataset_data_provider data_provider": "contrib.slim",
                "parallel_reader prefetch_queue tfexample_decoder": "contrib.slim",
            },
        ),
        *_listed(
            "contrib.training.python.training",
            {"bucket_ops hparam": "contrib.training"},
        ),
    )
)
"""Modules below ``tensorflow``, each with our namespaces for it."""

ABSENT: dict[str, str] = {
    **{
        name: name
        for name in (
            *("contrib.eager", "contrib.image", "contrib.layers", "contrib.learn", "contrib.opt"),
            *("contrib.rnn", "contrib.seq2seq", "contrib.summary"),
        )
    },
    "contrib.framework.python.ops.audio_ops": "audio",
    "core.framework.graph_pb2": "train.write_graph",
    "python.client.device_lib": "config",
    "python.client.timeline": "profiler",
    "python.framework.function": "custom_gradient",
    "python.framework.graph_io": "train.write_graph",
    "python.framework.graph_util": "train.write_graph",
    "python.framework.importer": "train.import_meta_graph",
    "python.framework.meta_graph": "train.import_meta_graph",
    "python.framework.test_util": "test",
    "python.ops.audio_ops": "audio",
    "python.ops.bitwise_ops": "bitwise",
    "python.ops.ctc_ops": "nn.ctc_loss",
    "python.ops.embedding_ops": "nn.embedding_lookup",
    "python.ops.gradients": "gradients",
    "python.ops.gradients_impl": "gradients",
    "python.ops.linalg_ops": "linalg",
    "python.ops.losses": "losses",
    "python.ops.metrics": "metrics",
    "python.ops.metrics_impl": "metrics",
    "python.ops.rnn": "nn.dynamic_rnn",
    "python.ops.rnn_cell": "nn.rnn_cell",
    "python.ops.rnn_cell_impl": "nn.rnn_cell",
    "python.ops.seq2seq": "contrib.rnn",
    "python.ops.spectral_ops": "spectral",
    "python.ops.tensor_array_ops": "TensorArray",
    "python.platform.googletest": "test",
    "python.platform.test": "test",
    "python.pywrap_tensorflow": "train.NewCheckpointReader",
    "python.saved_model": "saved_model",
    "python.tools": "train.NewCheckpointReader",
    "python.training.adam": "train.AdamOptimizer",
    "python.training.checkpoint_utils": "train.Checkpoint",
    "python.training.device_setter": "train.replica_device_setter",
    "python.training.gradient_descent": "train.GradientDescentOptimizer",
    "python.training.learning_rate_decay": "train.exponential_decay",
    "python.training.momentum": "train.MomentumOptimizer",
    "python.training.moving_averages": "train.ExponentialMovingAverage",
    "python.training.optimizer": "train.Optimizer",
    "python.training.rmsprop": "train.RMSPropOptimizer",
    "python.training.session_manager": "train.SessionManager",
    "python.training.sync_replicas_optimizer": "train.SyncReplicasOptimizer",
}
"""Modules that nothing stands for, each with the public name whose reason is theirs.

They can be imported, since many a script imports what it never uses; and have no names.
"""


# Names that never were public.


def constant_value_as_shape(tensor: Tensor) -> TensorShape:
    """What is known of the shape that a vector stands for."""
    return as_shape(shape_value(tensor))


def is_sparse(x: Any) -> bool:
    """Whether something is a sparse tensor, or the value of one."""
    return isinstance(x, SparseTensor | SparseTensorValue)


def convert_n_to_tensor(values: Iterable[Any], dtype: Any = None, name: Any = None) -> list[Tensor]:
    """Tensors for several values."""
    return [
        convert_to_tensor(one, dtype, name=None if name is None else f"{name}_{number}")
        for number, one in enumerate(values)
    ]


def same_function(*arguments: Any, **options: Any) -> Callable[[Any], Any]:
    """A decorator that changes nothing: for what marks functions as exported or deprecated."""
    del arguments, options
    return lambda decorated: decorated


def deprecated_alias(
    deprecated_name: str, name: str, func_or_class: Any, warn_once: bool = True
) -> Any:
    """A function under its old name."""
    del deprecated_name, name, warn_once
    return func_or_class


def deprecated_argument_lookup(new_name: str, new_value: Any, old_name: str, old_value: Any) -> Any:
    """The one of an argument's two names that was used."""
    if old_value is None:
        return new_value
    if new_value is not None:
        raise ValueError(f"Cannot specify both '{old_name}' and '{new_name}'")
    return old_value


def make_decorator(target: Any, decorator_func: Any, *arguments: Any, **options: Any) -> Any:
    """A decorated function with what its target says of itself."""
    del arguments, options
    decorator_func.__wrapped__ = target
    for name in ("__name__", "__module__", "__doc__"):
        setattr(decorator_func, name, getattr(target, name, None))
    return decorator_func


def remove_undocumented(module_name: str, *arguments: Any, **options: Any) -> None:
    """Accepted and without effect: nothing is taken out of a module."""
    del module_name, arguments, options


def read_file_to_string(filename: Any, binary_mode: bool = False) -> Any:
    """The contents of a file."""
    with gfile.GFile(filename, "rb" if binary_mode else "r") as file:
        return file.read()


def write_string_to_file(filename: Any, file_content: str | bytes) -> None:
    """Write a file."""
    with gfile.GFile(filename, "w") as file:
        file.write(file_content)


_DEPRECATION = {
    "deprecated": same_function,
    "deprecated_alias": deprecated_alias,
    "deprecated_arg_values": same_function,
    "deprecated_args": same_function,
    "deprecated_argument_lookup": deprecated_argument_lookup,
    "deprecated_endpoints": same_function,
}

NAMES: dict[str, dict[str, Any]] = {
    "python.eager.context": {
        "executing_eagerly": executing_eagerly,
        "in_graph_mode": lambda: True,
        "in_eager_mode": lambda: False,
    },
    "python.framework.ops": {
        "convert_n_to_tensor": convert_n_to_tensor,
        "internal_convert_to_tensor": convert_to_tensor,
        "get_name_scope": lambda: convert_to_tensor(0).graph.get_name_scope(),
    },
    "python.framework.sparse_tensor": {
        "convert_to_tensor_or_sparse_tensor": convert_to_tensor_or_sparse_tensor,
        "is_sparse": is_sparse,
    },
    "python.framework.tensor_shape": {
        "as_dimension": as_dimension,
        "as_shape": as_shape,
        "matrix": lambda rows, cols: TensorShape([rows, cols]),
        "scalar": lambda: TensorShape([]),
        "unknown_shape": lambda rank=None, **ndims: unknown_shape(ndims.get("ndims", rank)),
        "vector": lambda length: TensorShape([length]),
    },
    "python.framework.tensor_util": {
        "constant_value": constant_value,
        "constant_value_as_shape": constant_value_as_shape,
        "is_tensor": is_tensor,
    },
    "python.lib.io.file_io": {
        "FileIO": gfile.GFile,
        "copy": gfile.Copy,
        "create_dir": gfile.MkDir,
        "delete_file": gfile.Remove,
        "delete_recursively": gfile.DeleteRecursively,
        "file_exists": gfile.Exists,
        "get_matching_files": gfile.Glob,
        "is_directory": gfile.IsDirectory,
        "list_directory": gfile.ListDirectory,
        "read_file_to_string": read_file_to_string,
        "recursive_create_dir": gfile.MakeDirs,
        "rename": gfile.Rename,
        "stat": gfile.Stat,
        "walk": gfile.Walk,
        "write_string_to_file": write_string_to_file,
    },
    "python.ops.data_flow_ops": {"RecordInput": RecordInput, "StagingArea": StagingArea},
    "python.ops.parsing_ops": {"decode_raw_v1": decode_raw},
    "python.ops.control_flow_ops": {
        "merge": merge,
        "switch": switch,
        "with_dependencies": with_dependencies,
    },
    "python.data.util.nest": {"is_sequence": nest.is_nested},
    "python.util.all_util": {"remove_undocumented": remove_undocumented},
    "python.util.deprecation": _DEPRECATION,
    "python.util.nest": {"is_sequence": nest.is_nested},
    "python.util.tf_contextlib": {"contextmanager": contextlib.contextmanager},
    "python.util.tf_decorator": {"make_decorator": make_decorator},
    "python.util.tf_export": {"keras_export": same_function, "tf_export": same_function},
    "python.util.tf_inspect": {
        name: getattr(inspect, name)
        for name in (
            "getfullargspec",
            "getsource",
            "isclass",
            "isfunction",
            "ismethod",
            "signature",
        )
    },
    "python.util.tf_should_use": {"should_use_result": lambda function: function},
}
"""Names of private modules that no namespace of ours has."""
