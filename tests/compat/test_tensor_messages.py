"""Tensors as messages: `make_tensor_proto` lays them out as TensorFlow does, byte by byte."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.test_docs import ROOT, environment

pytest.importorskip("google.protobuf")


@pytest.mark.parametrize(
    ("value", "options", "bytes_there"),
    [
        (3, {}, "080312003a0103"),
        ([1.5, 2.5], {}, "080112041202080222080000c03f00002040"),
        ("ab", {}, "0807120042026162"),
        (["a", b"bc"], {}, "080712041202080242016142026263"),
        (7, {"shape": [2, 2]}, "0803120812020802120208023a0107"),
        ([1, 2], {"shape": [3]}, "08031204120208033a020102"),
        (True, {}, "080a12005a0101"),
        ([True, False], {}, "080a1204120208025a020100"),
        (np.array([1, 2], "float16"), {}, "08131204120208022204003c0040"),
        (1 + 2j, {}, "081212006210000000000000f03f0000000000000040"),
        ([], {}, "080112021200"),
        (np.array([200], "uint8"), {}, "08041204120208013a02c801"),
        (5, {"dtype": tf.uint64}, "081712008a010105"),
        (5, {"dtype": tf.float16}, "081312006a03808a01"),
        (np.array(["x", "yz"]), {}, "08071204120208024201784202797a"),
        (np.zeros((0, 2)), {}, "08021206120012020802"),
    ],
)
def test_a_message_has_the_bytes_that_it_has_there(
    value: Any, options: dict[str, Any], bytes_there: str
) -> None:
    made = tf.make_tensor_proto(value, **options)
    assert made.SerializeToString().hex() == bytes_there
    found = tf.make_ndarray(made)
    assert found.shape == tuple(options.get("shape", np.shape(value)))
    if not options and not isinstance(value, str | list):
        assert found.tolist() == np.asarray(value).tolist() or found.dtype == object


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "int16", "bool", "float16", "uint32"])
def test_an_array_comes_back(dtype: str) -> None:
    for given in (np.array([[1, 0], [2, 3]], dtype), np.array(1, dtype)):
        found = tf.contrib.util.make_ndarray(tf.contrib.util.make_tensor_proto(given))
        assert found.dtype == given.dtype
        assert found.tolist() == given.tolist()


def test_a_message_can_be_parsed_in_a_graph(sess: Any) -> None:
    data = tf.make_tensor_proto([[1, 2], [3, 4]], tf.int64).SerializeToString()
    assert sess.run(tf.parse_tensor(data, tf.int64)).tolist() == [[1, 2], [3, 4]]


def test_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="Takes at most 2, but got 3"):
        tf.make_tensor_proto([1, 2, 3], shape=[2])
    with pytest.raises(TypeError, match=r"Expected Tensor's shape: \(4,\), but got \(3,\)"):
        tf.make_tensor_proto([1, 2, 3], shape=[4], verify_shape=True)
    with pytest.raises(TypeError, match=r"Expected int32, but got 1\.5 of type 'float'"):
        tf.make_tensor_proto(1.5, tf.int32)
    one = tf.make_tensor_proto(5, shape=[4], verify_shape=True, allow_broadcast=True)
    assert tf.make_ndarray(one).tolist() == [5, 5, 5, 5]


def test_examples_in_json(sess: Any) -> None:
    text = '{"features": {"feature": {"a": {"floatList": {"value": [1, 2]}}}}}'
    made = tf.io.decode_json_example([text, "{}"])
    assert made.shape.as_list() == [2]
    features = {"a": tf.VarLenFeature(tf.float32)}
    assert sess.run(tf.parse_example(made, features))["a"].values.tolist() == [1, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Error while parsing JSON"):
        sess.run(tf.decode_json_example("{]"))


def test_options_of_records_can_be_of_options() -> None:
    options = tf.python_io.TFRecordOptions(tf.python_io.TFRecordOptions("ZLIB"))
    assert options.get_compression_type_string(options) == "ZLIB"


@pytest.mark.slow
def test_messages_have_those_within_them_in_any_protobuf() -> None:
    """Where it has no compiled code, as without the global lock, it does not see to that."""
    ran = subprocess.run(
        [sys.executable, "-c", "import aioqueue.compat.v1 as tf; print(tf.Summary.Value(tag='a'))"],
        cwd=ROOT,
        env={**environment(), "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.stdout.strip(), ran.returncode) == ('tag: "a"', 0), ran.stderr
