"""Private modules of TensorFlow, which copied sources import: public names, or their reasons."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.absent import REASONS, reason_of
from aioqueue.compat.v1.private import ABSENT, MODULES, NAMES
from tests.compat.warm import WARM
from tests.kit.children import ROOT, environment

ASKED = """
from tensorflow.python.summary import summary as s
from tensorflow.python.framework import (
    sparse_tensor, ops, dtypes, constant_op, tensor_shape, random_seed, tensor_util, errors)
from tensorflow.python.ops import (
    array_ops, math_ops, control_flow_ops, sparse_ops, image_ops, map_fn, data_flow_ops, io_ops,
    parsing_ops, string_ops, variables, random_ops, variable_scope, check_ops, init_ops,
    clip_ops, logging_ops, lookup_ops, nn_ops, script_ops, state_ops, summary_ops)
from tensorflow.python.training import (
    input, queue_runner, queue_runner_impl, coordinator, training, training_util,
    basic_session_run_hooks, session_run_hook, monitored_session, server_lib, summary_io)
from tensorflow.python.platform import app, flags, gfile, tf_logging
from tensorflow.python.util import compat, nest, deprecation, tf_decorator, tf_inspect
from tensorflow.python.util.tf_export import tf_export
from tensorflow.python.lib.io import file_io, tf_record
from tensorflow.core.example import example_pb2
import tensorflow as tf
assert s.scalar is tf.summary.scalar
assert sparse_tensor.SparseTensor is tf.SparseTensor
assert ops.convert_to_tensor is tf.convert_to_tensor and ops.GraphKeys is tf.GraphKeys
assert dtypes.float32 is tf.float32 and constant_op.constant is tf.constant
assert tensor_shape.TensorShape is tf.TensorShape and tensor_shape.scalar() == []
assert tensor_shape.vector(3) == [3] and tensor_shape.unknown_shape(ndims=2).ndims == 2
assert random_seed.get_seed is tf.get_seed
assert tensor_util.constant_value(tf.constant(3)) == 3
assert array_ops.reshape is tf.reshape and math_ops.cast is tf.cast
assert math_ops.reduce_mean is tf.math.reduce_mean and string_ops.string_join is tf.string_join
assert control_flow_ops.with_dependencies([tf.no_op()], tf.constant(1)).dtype == tf.int32
assert sparse_ops.sparse_tensor_to_dense is tf.sparse_tensor_to_dense
assert image_ops.decode_png is tf.image.decode_png
assert data_flow_ops.QueueBase is tf.QueueBase and io_ops.TextLineReader is tf.TextLineReader
assert parsing_ops.FixedLenFeature is tf.FixedLenFeature and variables.Variable is tf.Variable
assert parsing_ops.decode_raw_v1 is tf.decode_raw
assert random_ops.random_shuffle is tf.random_shuffle
assert input.shuffle_batch is tf.train.shuffle_batch
assert queue_runner.QueueRunner is queue_runner_impl.QueueRunner is tf.train.QueueRunner
assert coordinator.Coordinator is tf.train.Coordinator
assert tf_logging.info is tf.logging.info and gfile.GFile is tf.gfile.GFile
assert nest.is_sequence([1]) and compat.as_bytes('a') == b'a'
assert nn_ops.softmax is tf.nn.softmax and logging_ops.Print is tf.Print
@tf_export('mine')
@deprecation.deprecated('2020-01-01', 'Use another.')
def mine(): return 3
assert mine() == 3 and tf_inspect.isfunction(mine)
assert file_io.file_exists(__file__) and 'assert' in file_io.read_file_to_string(__file__)
assert tf.python.framework.ops.Tensor is tf.Tensor
assert example_pb2.Example is tf.train.Example
from tensorflow.python.ops.array_ops import *
assert reshape is tf.reshape
print('all')
"""


def run(folder: Path, source: str, arguments: Sequence[str] = ()) -> str:
    script = folder / "script.py"
    script.write_text(source, encoding="utf-8")
    done = WARM.run(
        "-m", "aioqueue.compat.v1", str(script), *arguments, cwd=ROOT, environment=environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_they_have_the_public_names(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf", reason="the extra `tfrecord` is not installed")
    assert run(tmp_path, ASKED) == "all\n"


def test_every_one_can_be_imported_and_lists_its_names(tmp_path: Path) -> None:
    source = (
        "import importlib, json, sys\n"
        "found = {}\n"
        "for name in json.loads(sys.argv[1]):\n"
        "    module = importlib.import_module(f'tensorflow.{name}')\n"
        "    found[name] = [one for one in module.__all__ if getattr(module, one, None) is None]\n"
        "print(json.dumps(found))\n"
    )
    found = json.loads(run(tmp_path, source, [json.dumps(sorted(MODULES))]))
    assert set(found) == set(MODULES)
    assert {tuple(none) for none in found.values()} <= {(), ("newaxis",)}


def test_absent_ones_give_the_reason_of_the_public_name(tmp_path: Path) -> None:
    lines = [
        "from tensorflow.python.training import checkpoint_utils; checkpoint_utils.load_variable",
        "from tensorflow.python.training.checkpoint_utils import load_variable",
        "from tensorflow.python.ops import gradients; gradients.gradients",
        "from tensorflow.python.ops.math_ops import gradients",
        "from tensorflow.python.framework import ops; ops.gradients",
        "import tensorflow as tf; tf.python.training.checkpoint_utils.load_variable",
        "from tensorflow.python.platform import test; test.main()",
        "from tensorflow.python import zork",
    ]
    source = (
        "import json, sys\n"
        "for line in json.loads(sys.argv[1]):\n"
        "    try:\n"
        "        exec(line)\n"
        "    except (ImportError, AttributeError) as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    said = run(tmp_path, source, [json.dumps(lines)]).splitlines()
    checkpoints, gradients = REASONS["train.Checkpoint"], REASONS["gradients"]
    assert len(said) == len(lines)
    assert all(checkpoints in said[at] for at in (0, 1, 5))
    assert all(gradients in said[at] for at in (2, 3, 4))
    assert REASONS["test"] in said[6]
    assert "private to TensorFlow" in said[7]


def test_absent_ones_can_be_imported_by_who_does_not_use_them(tmp_path: Path) -> None:
    source = (
        "import importlib, json, sys\n"
        "from tensorflow.contrib import layers, rnn as cells\n"
        "import tensorflow.contrib.seq2seq\n"
        "from tensorflow.python.client import timeline\n"
        "import tensorflow as tf\n"
        "for name in json.loads(sys.argv[1]):\n"
        "    module = importlib.import_module('tensorflow.' + name)\n"
        "    assert not dir(module) or not module.__all__, name\n"
        "    assert not hasattr(module, 'zork')\n"
        "for use in ('layers.conv2d', 'cells.LSTMCell', 'tf.contrib.seq2seq.dynamic_decode',"
        " 'timeline.Timeline'):\n"
        "    try:\n"
        "        eval(use)\n"
        "    except AttributeError as error:\n"
        "        print(error)\n"
        "try:\n"
        "    from tensorflow.contrib.layers import conv2d\n"
        "except ImportError as error:\n"
        "    print(error)\n"
        "print(tf.constant(1).name)\n"
    )
    *said, last = run(tmp_path, source, [json.dumps(sorted(ABSENT))]).splitlines()
    assert [line.split(" is not in ")[0] for line in said] == [
        "tf.contrib.layers.conv2d",
        "tf.contrib.rnn.LSTMCell",
        "tf.contrib.seq2seq.dynamic_decode",
        "tf.python.client.timeline.Timeline",
        "tf.contrib.layers.conv2d",
    ]
    assert all(REASONS["contrib.layers"] in said[at] for at in (0, 1, 2, 4))
    assert REASONS["profiler"] in said[3]
    assert last == "Const:0"


def test_every_absent_one_has_a_reason() -> None:
    assert not set(ABSENT) & set(MODULES)
    assert [one for one in ABSENT if reason_of(ABSENT[one]) is None] == []


def test_what_has_names_of_its_own_is_a_module() -> None:
    assert set(NAMES) <= set(MODULES)


def test_who_runs_a_script_can_add_a_name(tmp_path: Path) -> None:
    script = tmp_path / "theirs.py"
    script.write_text("import tensorflow as tf\nprint(tf.zork(3))\n", encoding="utf-8")
    source = (
        "import sys\n"
        "import aioqueue.compat.v1 as tf\n"
        "from aioqueue.compat.v1.__main__ import main\n"
        "tf.zork = lambda x: x + 1\n"
        f"sys.exit(main([{str(script)!r}]))\n"
    )
    assert run(tmp_path, source) == "4\n"
    assert not hasattr(tf, "zork")
