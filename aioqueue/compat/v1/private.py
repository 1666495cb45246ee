"""The private modules of TensorFlow that scripts import from, and our namespaces for them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from aioqueue.compat.v1 import gfile
from aioqueue.compat.v1.core import nest
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.scopes import executing_eagerly
from aioqueue.compat.v1.core.shapes import TensorShape, as_dimension, as_shape, unknown_shape
from aioqueue.compat.v1.ops import sparse
from aioqueue.compat.v1.ops.control import merge, switch, with_dependencies
from aioqueue.compat.v1.ops.static import constant_value
from aioqueue.compat.v1.ops.text import decode_raw
from aioqueue.compat.v1.queues.staging import StagingArea
from aioqueue.compat.v1.readers.readers import RecordInput

_SPACES = {
    "python.client": {"session": "tf"},
    "python.data": {"ops.dataset_ops ops.iterator_ops ops.readers": "data", "util.nest": "nest"},
    "python.eager": {"context": "tf"},
    "python.framework": {
        "constant_op dtypes ops random_seed sparse_tensor tensor_shape tensor_util": "tf",
        "errors errors_impl": "errors",
    },
    "python.lib.io": {"python_io tf_record": "python_io", "file_io": "gfile"},
    "python.ops": {
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
    "python.platform": {"app": "app", "flags": "flags", "gfile": "gfile", "tf_logging": "logging"},
    "python.summary": {"summary": "summary", "writer.writer writer.writer_cache": "summary train"},
    "python.training": {
        "basic_session_run_hooks coordinator input monitored_session queue_runner": "train",
        "queue_runner_impl server_lib session_run_hook training training_util": "train",
        "checkpoint_management device_setter saver session_manager supervisor": "train",
        "summary_io": "train summary",
    },
    "python.util": {
        "compat": "compat",
        "nest": "nest",
        "all_util deprecation tf_contextlib tf_decorator tf_export tf_inspect": "compat",
        "tf_should_use": "compat",
    },
    "core.example": {"example_pb2 feature_pb2": "train"},
    "core.framework": {"summary_pb2": "tf", "types_pb2": "tf"},
    "core.protobuf": {"cluster_pb2 queue_runner_pb2 saver_pb2": "train", "config_pb2": "tf"},
    "core.util": {"event_pb2": "tf"},
    "contrib.data.python.ops": {"batching grouping shuffle_ops": "contrib.data"},
    "contrib.framework.python": {"framework.tensor_util ops.variables": "contrib.framework"},
    "contrib.lookup": {"lookup_ops": "contrib.lookup"},
    "contrib.staging": {"staging_area": "contrib.staging"},
    "contrib.slim.python.slim.data": {
        "data_decoder dataset dataset_data_provider data_provider": "contrib.slim",
        "parallel_reader prefetch_queue tfexample_decoder": "contrib.slim",
    },
    "contrib.training.python.training": {"bucket_ops hparam": "contrib.training"},
}
"""Packages below ``tensorflow``, and for their modules our namespaces, in the order of search."""

MODULES: dict[str, tuple[str, ...]] = {
    f"{package}.{name}": tuple("" if one == "tf" else one for one in spaces.split())
    for package, modules in _SPACES.items()
    for names, spaces in modules.items()
    for name in names.split()
}
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
    "python.training.gradient_descent": "train.GradientDescentOptimizer",
    "python.training.learning_rate_decay": "train.exponential_decay",
    "python.training.momentum": "train.MomentumOptimizer",
    "python.training.moving_averages": "train.ExponentialMovingAverage",
    "python.training.optimizer": "train.Optimizer",
    "python.training.rmsprop": "train.RMSPropOptimizer",
    "python.training.sync_replicas_optimizer": "train.SyncReplicasOptimizer",
}
"""Modules that nothing stands for, each with the public name whose reason is theirs.

They can be imported, since many a script imports what it never uses; and have no names.
"""


# Names that never were public.


def _same_function(*arguments: Any, **options: Any) -> Callable[[Any], Any]:
    """A decorator that changes nothing: for what marks functions as exported or deprecated."""
    return lambda decorated: decorated


def _read_file_to_string(filename: Any, binary_mode: bool = False) -> Any:
    with gfile.GFile(filename, "rb" if binary_mode else "r") as file:
        return file.read()


def _write_string_to_file(filename: Any, file_content: str | bytes) -> None:
    with gfile.GFile(filename, "w") as file:
        file.write(file_content)


_FILE_IO = {
    "FileIO": gfile.GFile, "copy": gfile.Copy, "create_dir": gfile.MkDir,
    "delete_file": gfile.Remove, "delete_recursively": gfile.DeleteRecursively,
    "file_exists": gfile.Exists, "get_matching_files": gfile.Glob,
    "is_directory": gfile.IsDirectory, "list_directory": gfile.ListDirectory,
    "read_file_to_string": _read_file_to_string, "recursive_create_dir": gfile.MakeDirs,
    "rename": gfile.Rename, "stat": gfile.Stat, "walk": gfile.Walk,
    "write_string_to_file": _write_string_to_file,
}  # fmt: skip

NAMES: dict[str, dict[str, Any]] = {
    "python.eager.context": {
        "executing_eagerly": executing_eagerly,
        "in_graph_mode": lambda: True,
        "in_eager_mode": lambda: False,
    },
    "python.framework.ops": {
        "internal_convert_to_tensor": convert_to_tensor,
        "get_name_scope": lambda: convert_to_tensor(0).graph.get_name_scope(),
    },
    "python.framework.sparse_tensor": {
        "convert_to_tensor_or_sparse_tensor": sparse.convert_to_tensor_or_sparse_tensor,
        "is_sparse": lambda x: isinstance(x, sparse.SparseTensor | sparse.SparseTensorValue),
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
        "is_tensor": sparse.is_tensor,
    },
    "python.lib.io.file_io": _FILE_IO,
    "python.ops.data_flow_ops": {"RecordInput": RecordInput, "StagingArea": StagingArea},
    "python.ops.parsing_ops": {"decode_raw_v1": decode_raw},
    "python.ops.control_flow_ops": {
        "merge": merge,
        "switch": switch,
        "with_dependencies": with_dependencies,
    },
    "python.data.util.nest": {"is_sequence": nest.is_nested},
    "python.util.all_util": {"remove_undocumented": _same_function},
    "python.util.deprecation": dict.fromkeys(
        ("deprecated", "deprecated_arg_values", "deprecated_args", "deprecated_endpoints"),
        _same_function,
    ),
    "python.util.nest": {"is_sequence": nest.is_nested},
    "python.util.tf_contextlib": {"contextmanager": contextlib.contextmanager},
    "python.util.tf_export": dict.fromkeys(("keras_export", "tf_export"), _same_function),
    "python.util.tf_inspect": {k: v for k, v in vars(inspect).items() if k[0] != "_"},
    "python.util.tf_should_use": {"should_use_result": lambda function: function},
}
"""Names of private modules that no namespace of ours has."""
