"""Graphs, where no record of TensorFlow tells: threads, pickling, what differs, what is ours."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.core.default_graph import op as make_op
from tests.compat.steps import Step, refused


class TestThreads:
    def test_each_has_a_default_graph(self, graph: Any) -> None:
        assert tf.get_default_graph() is graph
        other = Step(tf.get_default_graph).result()
        assert other is not graph

    def test_each_may_reset_it(self) -> None:
        def in_a_new_thread() -> None:
            tf.constant(1)
            before = tf.get_default_graph()
            tf.reset_default_graph()
            assert tf.get_default_graph() is not before
            assert tf.constant(1).name == "Const:0"

        Step(in_a_new_thread).result()

    def test_each_has_scopes(self, graph: Any) -> None:
        def build() -> str:
            with graph.as_default():
                return tf.constant(1, name="inside").name

        with tf.name_scope("a"), tf.control_dependencies([tf.no_op()]):
            assert Step(build).result() == "inside:0"

    def test_many_may_build_at_once(self, graph: Any) -> None:
        start = threading.Barrier(4)

        def build() -> None:
            with graph.as_default():
                start.wait(30)
                for _ in range(200):
                    tf.identity(tf.constant(1))

        for step in [Step(build) for _ in range(4)]:
            step.result()
        assert len({one.name for one in graph.get_operations()}) == graph.version == 1600

    def test_new_ones_may_begin_with_the_callers_order(self, graph: Any) -> None:
        def controls_of_a_new_thread() -> list[str]:
            def build() -> list[str]:
                with graph.as_default():
                    return [one.name for one in tf.no_op().control_inputs]

            return list(Step(build).result())

        first = tf.no_op(name="first")
        with graph.control_dependencies([first]):
            assert controls_of_a_new_thread() == []
            graph.switch_to_thread_local()
            assert controls_of_a_new_thread() == ["first"]
            with graph.control_dependencies(None):
                assert tf.no_op().control_inputs == []
            assert tf.no_op().control_inputs == [first]
        assert tf.no_op().control_inputs == []


class TestTensors:
    def test_have_no_value_of_their_own(self) -> None:
        x = tf.constant([1, 2])
        refused(TypeError, "as a Python `bool` is not allowed", bool, x)
        refused(TypeError, "len is not well defined", len, x)
        refused(TypeError, "Iterating over a symbolic", list, x)

    def test_operations_know_where_they_were_made(self) -> None:
        made = tf.no_op()
        assert made.defined_at is not None
        assert made.defined_at[0] == __file__
        refused(ValueError, "has no attr named 'T'", made.get_attr, "T")
        assert tf.constant(1).op.get_attr("value") == 1
        assert repr(pickle.loads(pickle.dumps(made.node_def))) == repr(made.node_def)

    def test_devices_have_no_effect(self) -> None:
        with tf.device("/gpu:0"), tf.colocate_with(tf.no_op()):
            assert tf.constant(1).device == tf.no_op().device == ""

    def test_inputs_of_two_graphs_are_refused(self, graph: Any) -> None:
        with tf.Graph().as_default():
            y = tf.constant(1)
        with pytest.raises(ValueError, match="not an element of this graph"):
            graph.create_op("Identity", [y], [], lambda step, value: value)


class TestTypesAndShapes:
    @pytest.mark.parametrize(
        ("value", "dtype"),
        [(int, tf.int32), (str, tf.string), (bytes, tf.string), (object, tf.string)],
    )
    def test_python_types_mean_dtypes(self, value: Any, dtype: Any) -> None:
        assert tf.as_dtype(value) is dtype
        assert dtype == value

    def test_survive_pickling(self) -> None:
        assert pickle.loads(pickle.dumps(tf.int64)) is tf.int64
        shape = tf.TensorShape([2, None])
        assert pickle.loads(pickle.dumps(shape)) == shape

    def test_can_be_keys(self) -> None:
        assert {tf.int64: 1, tf.Dimension(2): 2}[tf.Dimension(2)] == 2
        general = tf.TensorShape([2, 3]).most_general_compatible_shape([2, 4])
        assert general.as_list() == [2, None]


def test_constants_are_copies(sess: Any) -> None:
    array = np.array([1, 2])
    made = tf.constant(array)
    array[:] = 9
    assert sess.run(made).tolist() == [1, 2]
    sess.run(made)[:] = 9
    assert sess.run(made).tolist() == [1, 2]


def test_other_types_can_be_registered() -> None:
    class Celsius:
        def __init__(self, degrees: float) -> None:
            self.degrees = degrees

    def convert(value: Celsius, dtype: Any = None, name: Any = None, as_ref: Any = False) -> Any:
        return tf.constant(value.degrees, dtype, name=name)

    tf.register_tensor_conversion_function(Celsius, convert)
    assert tf.identity(Celsius(1.0)).op.inputs[0].name == "Identity/input:0"
    with pytest.raises(TypeError, match="base_type"):
        tf.register_tensor_conversion_function(3, convert)  # type: ignore[arg-type]


def test_the_seed_of_a_graph_counts_operations() -> None:
    tf.set_random_seed(5)
    tf.constant(1)
    tf.Variable(1)
    assert tf.get_seed(None) == (5, 5)


def test_kernels_get_values_and_return_them(sess: Any) -> None:
    x = tf.placeholder(tf.int32, [])
    made = make_op(
        "Both",
        [x, tf.constant("a")],
        [(tf.int32, tf.TensorShape([])), (tf.string, tf.TensorShape([]))],
        lambda step, number, text: (number + 1, text * 2),
    )
    assert sess.run(made.outputs, {x: 3}) == [4, b"aa"]


def test_switches_change_nothing() -> None:
    tf.disable_v2_behavior()
    tf.disable_eager_execution()
    tf.enable_resource_variables()
    assert not tf.executing_eagerly()
    assert tf.__version__.startswith("1.")
