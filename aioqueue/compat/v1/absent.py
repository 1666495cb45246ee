"""Absent names: an error that says why a name is missing, what to use instead, and what is near.

Namespaces end with ``__getattr__ = names_of(__name__)``, which raises `AbsentNameError`: an
`AttributeError`, so that ``hasattr`` and ``getattr`` with a default work as on any module.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

__all__ = ("REASONS", "AbsentNameError", "explain", "names_of", "namespace", "reason_of")

PACKAGE = "aioqueue.compat.v1"
MOST_NEAR = 3

TRAINING = (
    "gradients and optimisers belong to your framework: run the training step between two"
    " session runs, or within one in a tf.py_func"
)
LAYERS = (
    "layers and models belong to your framework: give it the arrays that Session.run returns,"
    " or call it in a tf.py_func"
)
CHECKPOINTS = (
    "tf.train.Saver saves and restores variables, and reads TensorFlow's checkpoints, too: call it"
    " in the training loop"
)
GRAPHS = (
    "graphs cannot be written to files or read from them: build the graph with the functions that"
    " built the original"
)
PROFILES = "nothing is traced: use cProfile or py-spy, because every op here is Python code"
EVENTS = "summaries are written by tf.summary.FileWriter, from ops of tf.summary"
IMAGES = (
    "only cropping, flipping, resizing, colours, decoding and encoding of images are here; for the"
    " rest use Pillow or OpenCV in a tf.py_func"
)
LOOPS = "use tf.while_loop, tf.map_fn, a NumPy function on the tensor, or a loop around Session.run"
DEVICES = "everything runs on NumPy in this process; tf.device is accepted and has no effect"
NUMPY = "NumPy's functions work on tensors: np.linalg.norm(x) is an op that a session runs"
EXAMPLES = (
    "TensorFlow's example data sets are not included: read the files with NumPy, and put the"
    " arrays into a queue or a tf.data.Dataset"
)
PYTHON = "use tf.py_func: its function gets arrays and bytes, so leave out the calls of `.numpy()`"
BFLOATS = "NumPy has no bfloat16: cast to tf.float32 here, and to bfloat16 in your framework"
RAGGED = (
    "use tf.SparseTensor for rows of different lengths, and tf.sparse_tensor_to_dense to pad them"
)
TESTS = "use unittest or pytest"
EAGER = "ops are deferred here: build them, then run them with tf.Session"
ESTIMATORS = "estimators are out of scope: loop over tf.train.MonitoredSession instead"
LMDB = "it would need the package lmdb: read the database yourself in a tf.py_func"
DATASETS = (
    "tf.data has the part that scripts with queues use: from_tensor_slices, from_tensors, range,"
    " from_generator, list_files, zip, concatenate, map, filter, apply, batch, shuffle, repeat,"
    " take, skip, shard, enumerate, cache, padded_batch, flat_map, interleave, unbatch, prefetch;"
    " for the rest use Dataset.from_generator with a Python function"
)
LOOKUPS = "use tf.contrib.lookup.index_table_from_tensor, whose table is run like any other"
SEQUENCES = "call tf.io.parse_single_sequence_example in Dataset.map, and pad with padded_batch"
NEVER_NAMED = (
    "it is outside the scope (input pipelines, queues, coordination and variables), and no known"
    " script with queues uses it: compute it with NumPy in a tf.py_func"
)
ADVICE = (
    "compute it with NumPy in a tf.py_func; or leave the script as it is, and run it from a"
    f" program that first sets the name in {PACKAGE} to a function of its own"
)
"""The advice for a name without a reason of its own in `REASONS`."""

PRIVATE = (
    "it is private to TensorFlow, and has no public name: copy the code that you use into your"
    " script; or put a module of this name into sys.modules before you run the script"
)


def _named(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


REASONS: dict[str, str] = {
    **_named(
        TRAINING,
        "AggregationMethod ConditionalAccumulator GradientTape IndexedSlices NoGradient "
        "NotDifferentiable RegisterGradient clip_by_average_norm clip_by_global_norm "
        "clip_by_norm contrib.opt global_norm no_gradient custom_gradient gradients hessians "
        "train.AdadeltaOptimizer train.AdagradOptimizer train.AdamOptimizer "
        "train.ExponentialMovingAverage train.AdagradDAOptimizer train.FtrlOptimizer "
        "train.GradientDescentOptimizer train.MomentumOptimizer train.Optimizer "
        "train.ProximalAdagradOptimizer train.ProximalGradientDescentOptimizer "
        "train.RMSPropOptimizer train.SyncReplicasOptimizer train.cosine_decay "
        "train.exponential_decay train.inverse_time_decay train.linear_cosine_decay "
        "train.natural_exp_decay train.noisy_linear_cosine_decay train.piecewise_constant "
        "train.piecewise_constant_decay train.polynomial_decay",
    ),
    **_named(
        LAYERS,
        "contrib.layers contrib.learn contrib.rnn contrib.seq2seq contrib.slim make_template "
        "no_regularizer "
        "feature_column keras layers losses metrics nn",
    ),
    **_named(
        CHECKPOINTS,
        "saved_model train.Checkpoint train.CheckpointManager train.NewCheckpointReader "
        "train.init_from_checkpoint train.list_variables train.load_checkpoint "
        "train.load_variable train.warm_start",
    ),
    **_named(
        GRAPHS,
        "GraphDef MetaGraphDef graph_util import_graph_def io.write_graph "
        "train.export_meta_graph train.import_meta_graph train.write_graph",
    ),
    **_named(PROFILES, "profiler train.ProfilerHook"),
    **_named(EVENTS, "contrib.summary"),
    **_named(IMAGES, "contrib.image image"),
    **_named(LOOPS, "TensorArray foldr"),
    **_named(
        DEVICES, "config distribute tpu train.GlobalStepWaiterHook train.WorkerSessionCreator"
    ),
    **_named(
        NUMPY,
        "argsort broadcast_to confusion_matrix diag einsum fft linalg math.reduce_std "
        "math.reduce_variance norm repeat roll setdiff1d signal sort spectral svd tensordot",
    ),
    **_named(EXAMPLES, "examples models"),
    **_named(PYTHON, "py_function"),
    **_named(BFLOATS, "bfloat16 to_bfloat16"),
    **_named(RAGGED, "ragged RaggedTensor"),
    **_named(TESTS, "test"),
    **_named(EAGER, "contrib.eager enable_eager_execution enable_v2_behavior"),
    **_named(ESTIMATORS, "contrib.training.train estimator"),
    **_named(LMDB, "LMDBReader"),
    **_named(LOOKUPS, "contrib.lookup.string_to_index contrib.lookup.index_to_string"),
    **_named(SEQUENCES, "parse_sequence_example io.parse_sequence_example"),
    **_named(
        NEVER_NAMED,
        "NodeDef accumulate_n assert_integer assert_near assert_proper_iterable assert_rank_in "
        "decode_compressed identity_n random.categorical reduce_logsumexp regex_full_match "
        "sparse_concat sparse_retain strings.regex_full_match truncatediv truncatemod "
        "assert_same_float_dtype assert_scalar assert_type audio batch_gather bincount bitwise "
        "broadcast_dynamic_shape broadcast_static_shape dynamic_partition dynamic_stitch "
        "ensure_shape histogram_fixed_width image.image_gradients image.psnr image.total_variation "
        "invert_permutation is_non_decreasing is_numeric_tensor is_strictly_increasing "
        "make_ndarray make_tensor_proto reverse_sequence scatter_div scatter_max scatter_min "
        "scatter_mul searchsorted segment_max segment_mean segment_min segment_prod "
        "segment_sum shape_n sparse_add sparse_fill_empty_rows sparse_maximum sparse_merge "
        "sparse_minimum sparse_reduce_max sparse_reduce_max_sparse sparse_reduce_sum "
        "sparse_reduce_sum_sparse sparse_reset_shape sparse_slice sparse_split "
        "sparse_tensor_dense_matmul sparse_transpose string_to_hash_bucket "
        "string_to_hash_bucket_fast tensor_scatter_add tensor_scatter_sub "
        "tensor_scatter_update train.SessionLog train.StepCounterHook "
        "unsorted_segment_max unsorted_segment_mean unsorted_segment_min "
        "unsorted_segment_prod unsorted_segment_sqrt_n unsorted_segment_sum",
    ),
    **_named(DATASETS, "contrib.data data.experimental"),
}
"""Why a name, or all below it, is absent; names as after ``tf.``."""


class AbsentNameError(AttributeError, NotImplementedError):
    """The name is not in this module. TensorFlow 1 may have had it."""


def names_of(
    module: str, deferred: Mapping[str, Callable[[], Any]] | None = None
) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a namespace."""
    makers = dict(deferred or {})

    def __getattr__(name: str) -> Any:  # noqa: N807  # the name that tracebacks know it by
        if name in makers:
            return makers[name]()
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise AbsentNameError(explain(_path(module, name)))

    return __getattr__


def namespace(path: str, text: str, *things: Any) -> ModuleType:
    """A namespace without a file: a module of things under their own names, to import by `path`."""
    made = ModuleType(path, text)
    names = {one.__name__.rpartition(".")[2]: one for one in things}
    made.__dict__.update(names, __all__=tuple(sorted(names)), __getattr__=names_of(path))
    sys.modules[path] = made
    return made


def explain(path: str, public: str | None = None) -> str:
    """Say that a name is absent, why or what to do, and which names are similar."""
    reason = reason_of(public or path)
    near = _near(path)
    sentences = [f"tf.{path} is not in {PACKAGE}: {reason or _advice(public or path)}"]
    if near:
        sentences.append(f"Near it: {', '.join(near)}")
    return ". ".join(sentences)


def reason_of(path: str) -> str | None:
    """Why a name is absent; ``None`` if there is no reason for this name."""
    while path:
        if path in REASONS:
            return REASONS[path]
        path = path.rpartition(".")[0]
    return None


def _advice(path: str) -> str:
    return PRIVATE if path.split(".")[0] in ("python", "core") else ADVICE


def _path(module: str, name: str) -> str:
    return f"{module.removeprefix(PACKAGE)}.{name}".lstrip(".")


def _near(path: str) -> list[str]:
    """Names that may be meant: the same name in another namespace, then similar ones in its own."""
    space, _, name = path.rpartition(".")
    spaces = dict(_namespaces(sys.modules[PACKAGE], ""))
    same = [
        _join(other, found)
        for other, names in spaces.items()
        for found in names
        if found.lower() == name.lower() and _join(other, found) != path
    ]
    near = sorted(same, key=len)[:MOST_NEAR]
    similar = difflib.get_close_matches(name, spaces.get(space, ()), n=MOST_NEAR, cutoff=0.75)
    near += [_join(space, found) for found in similar]
    return [f"tf.{found}" for found in dict.fromkeys(near)]


def _namespaces(module: ModuleType, path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The public namespaces from one on, as ``("train", ("Coordinator", ...))``."""
    yield path, module.__all__
    for name in module.__all__:
        found = vars(module).get(name)
        if isinstance(found, ModuleType):
            yield from _namespaces(found, _join(path, name))


def _join(space: str, name: str) -> str:
    return f"{space}.{name}" if space else name
