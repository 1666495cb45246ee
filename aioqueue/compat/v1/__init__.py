"""The TensorFlow 1 names of the queue system, on NumPy: ``import aioqueue.compat.v1 as tf``.

Scripts that feed their training from TensorFlow's queues run with another import line, or none at
all: ``python -m aioqueue.compat.v1 script.py``. Operations are deferred as they were, and a session
runs them; TensorFlow is not needed. A name that is not here raises an error which says why, and
which names are near it.
"""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

import builtins as _builtins

from aioqueue.compat.v1 import (
    app,
    compat,
    contrib,
    data,
    debugging,
    dtypes,
    errors,
    flags,
    gfile,
    image,
    initializers,
    io,
    logging,
    lookup,
    math,
    nest,
    nn,
    python_io,
    queue,
    random,
    sparse,
    strings,
    summary,
    train,
)
from aioqueue.compat.v1 import core as _core
from aioqueue.compat.v1 import ops as _ops
from aioqueue.compat.v1 import session as _session
from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.core.convert import (
    constant,
    convert_to_tensor,
    register_tensor_conversion_function,
)
from aioqueue.compat.v1.core.default_graph import get_default_graph, reset_default_graph
from aioqueue.compat.v1.core.dtypes import *
from aioqueue.compat.v1.core.graph import Graph, Operation, Tensor
from aioqueue.compat.v1.core.scopes import *
from aioqueue.compat.v1.core.shapes import (
    Dimension,
    TensorShape,
    dimension_at_index,
    dimension_value,
)
from aioqueue.compat.v1.errors import OpError
from aioqueue.compat.v1.ops import operators as _operators  # noqa: F401  # tensors get theirs
from aioqueue.compat.v1.ops.arrays import *
from aioqueue.compat.v1.ops.asserting import *
from aioqueue.compat.v1.ops.asserting import verify_tensor_all_finite
from aioqueue.compat.v1.ops.casting import (
    cast,
    clip_by_value,
    saturate_cast,
    to_double,
    to_float,
    to_int32,
    to_int64,
)
from aioqueue.compat.v1.ops.control import (
    case,
    cond,
    foldl,
    group,
    identity,
    map_fn,
    no_op,
    placeholder,
    placeholder_with_default,
    scan,
    stop_gradient,
    while_loop,
)
from aioqueue.compat.v1.ops.control import tuple_ as tuple
from aioqueue.compat.v1.ops.effects import Assert, Print, numpy_function, print, py_func
from aioqueue.compat.v1.ops.files import matching_files, read_file, write_file
from aioqueue.compat.v1.ops.indexing import *
from aioqueue.compat.v1.ops.indexing import where as select
from aioqueue.compat.v1.ops.math import *
from aioqueue.compat.v1.ops.math import (
    div,
    div_no_nan,
    floor_div,
    mul,
    neg,
    realdiv,
    sub,
)
from aioqueue.compat.v1.ops.products import *
from aioqueue.compat.v1.ops.random import (
    multinomial,
    random_crop,
    random_normal,
    random_shuffle,
    random_uniform,
    truncated_normal,
)
from aioqueue.compat.v1.ops.reductions import *
from aioqueue.compat.v1.ops.reductions import arg_max, arg_min, reduce_join
from aioqueue.compat.v1.ops.serializing import (
    deserialize_many_sparse,
    parse_tensor,
    serialize_many_sparse,
    serialize_sparse,
    serialize_tensor,
)
from aioqueue.compat.v1.ops.sparse import (
    SparseTensor,
    SparseTensorValue,
    convert_to_tensor_or_sparse_tensor,
    is_tensor,
    sparse_placeholder,
    sparse_reorder,
    sparse_reshape,
    sparse_tensor_to_dense,
    sparse_to_dense,
    sparse_to_indicator,
)
from aioqueue.compat.v1.ops.static import constant_value as get_static_value
from aioqueue.compat.v1.ops.text import (
    as_string,
    decode_base64,
    decode_csv,
    decode_raw,
    encode_base64,
    regex_replace,
    string_join,
    string_split,
    string_strip,
    string_to_number,
    substr,
)
from aioqueue.compat.v1.ops.variable_scope import (
    AUTO_REUSE,
    VariableScope,
    get_local_variable,
    get_variable,
    get_variable_scope,
    variable_scope,
)
from aioqueue.compat.v1.ops.variables import (
    Variable,
    all_variables,
    assign,
    assign_add,
    assign_sub,
    count_up_to,
    global_variables,
    global_variables_initializer,
    initialize_all_tables,
    initialize_all_variables,
    initialize_local_variables,
    initialize_variables,
    is_variable_initialized,
    local_variables,
    local_variables_initializer,
    model_variables,
    moving_average_variables,
    report_uninitialized_variables,
    tables_initializer,
    trainable_variables,
    variables_initializer,
)
from aioqueue.compat.v1.parsing import parsing as _parsing
from aioqueue.compat.v1.parsing.parsing import *
from aioqueue.compat.v1.protos import SUMMARY_MESSAGES as _MESSAGES
from aioqueue.compat.v1.protos import summary_classes as _summary_classes
from aioqueue.compat.v1.queue import *
from aioqueue.compat.v1.readers.readers import (
    FixedLengthRecordReader,
    IdentityReader,
    ReaderBase,
    TextLineReader,
    TFRecordReader,
    WholeFileReader,
)
from aioqueue.compat.v1.session.config import *
from aioqueue.compat.v1.session.session import InteractiveSession, Session, get_default_session
from aioqueue.compat.v1.summaries.ops import (
    audio_summary,
    histogram_summary,
    image_summary,
    merge_all_summaries,
    merge_summary,
    scalar_summary,
)

__all__: _builtins.tuple[str, ...] = (
    "AUTO_REUSE",
    "VERSION",
    "Assert",
    "Dimension",
    "FixedLengthRecordReader",
    "Graph",
    "IdentityReader",
    "InteractiveSession",
    "OpError",
    "Operation",
    "Print",
    "ReaderBase",
    "Session",
    "SparseTensor",
    "SparseTensorValue",
    "TFRecordReader",
    "Tensor",
    "TensorShape",
    "TextLineReader",
    "Variable",
    "VariableScope",
    "WholeFileReader",
    "__version__",
    "all_variables",
    "app",
    "arg_max",
    "arg_min",
    "as_string",
    "assign",
    "assign_add",
    "assign_sub",
    "audio_summary",
    "case",
    "cast",
    "clip_by_value",
    "compat",
    "cond",
    "constant",
    "constant_initializer",
    "contrib",
    "convert_to_tensor",
    "convert_to_tensor_or_sparse_tensor",
    "count_up_to",
    "data",
    "debugging",
    "decode_base64",
    "decode_csv",
    "decode_raw",
    "deserialize_many_sparse",
    "dimension_at_index",
    "dimension_value",
    "div",
    "div_no_nan",
    "dtypes",
    "encode_base64",
    "errors",
    "flags",
    "floor_div",
    "foldl",
    "get_default_graph",
    "get_default_session",
    "get_local_variable",
    "get_static_value",
    "get_variable",
    "get_variable_scope",
    "gfile",
    "global_variables",
    "global_variables_initializer",
    "glorot_normal_initializer",
    "glorot_uniform_initializer",
    "group",
    "histogram_summary",
    "identity",
    "image",
    "image_summary",
    "initialize_all_tables",
    "initialize_all_variables",
    "initialize_local_variables",
    "initialize_variables",
    "initializers",
    "io",
    "is_tensor",
    "is_variable_initialized",
    "local_variables",
    "local_variables_initializer",
    "logging",
    "lookup",
    "map_fn",
    "matching_files",
    "math",
    "merge_all_summaries",
    "merge_summary",
    "model_variables",
    "moving_average_variables",
    "mul",
    "multinomial",
    "neg",
    "nest",
    "newaxis",
    "nn",
    "no_op",
    "numpy_function",
    "ones_initializer",
    "parse_tensor",
    "placeholder",
    "placeholder_with_default",
    "print",
    "py_func",
    "python_io",
    "queue",
    "random",
    "random_crop",
    "random_normal",
    "random_normal_initializer",
    "random_shuffle",
    "random_uniform",
    "random_uniform_initializer",
    "read_file",
    "realdiv",
    "reduce_join",
    "regex_replace",
    "register_tensor_conversion_function",
    "report_uninitialized_variables",
    "reset_default_graph",
    "saturate_cast",
    "scalar_summary",
    "scan",
    "select",
    "serialize_many_sparse",
    "serialize_sparse",
    "serialize_tensor",
    "sparse",
    "sparse_placeholder",
    "sparse_reorder",
    "sparse_reshape",
    "sparse_tensor_to_dense",
    "sparse_to_dense",
    "sparse_to_indicator",
    "stop_gradient",
    "string_join",
    "string_split",
    "string_strip",
    "string_to_number",
    "strings",
    "sub",
    "substr",
    "summary",
    "tables_initializer",
    "to_double",
    "to_float",
    "to_int32",
    "to_int64",
    "train",
    "trainable_variables",
    "truncated_normal",
    "truncated_normal_initializer",
    "tuple",
    "variable_scope",
    "variables_initializer",
    "variance_scaling_initializer",
    "verify_tensor_all_finite",
    "while_loop",
    "write_file",
    "zeros_initializer",
)
__all__ += _core.dtypes.__all__
__all__ += _core.scopes.__all__
__all__ += _ops.arrays.__all__
__all__ += _ops.asserting.__all__
__all__ += _ops.indexing.__all__
__all__ += _ops.math.__all__
__all__ += _ops.products.__all__
__all__ += _ops.reductions.__all__
__all__ += _parsing.__all__
__all__ += queue.__all__
__all__ += _session.config.__all__

__version__ = "1.15.0"
"""The version of TensorFlow whose names these are: scripts compare it."""

VERSION = __version__

newaxis = None
"""A new axis in an index: ``x[:, tf.newaxis]``."""

constant_initializer = initializers.constant
glorot_normal_initializer = initializers.glorot_normal
glorot_uniform_initializer = initializers.glorot_uniform
ones_initializer = initializers.ones
random_normal_initializer = initializers.random_normal
random_uniform_initializer = initializers.random_uniform
truncated_normal_initializer = initializers.truncated_normal
variance_scaling_initializer = initializers.variance_scaling
zeros_initializer = initializers.zeros

# They need protobuf, an extra, and are made when they are asked for.
_DEFERRED = {name: lambda name=name: _summary_classes()[name] for name in _MESSAGES}

__getattr__ = names_of(__name__, deferred=_DEFERRED)


def __dir__() -> list[str]:
    """The public names, those among them that are made when they are asked for."""
    return sorted({*__all__, *_DEFERRED})
