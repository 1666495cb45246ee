"""The graph layer: names, scopes, static shapes, dtypes, collections, conversion, seeds."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.core.default_graph import op as make_op
from tests.compat.steps import Step


def names(graph: Any) -> list[str]:
    return [one.name for one in graph.get_operations()]


class TestNames:
    def test_are_made_unique(self) -> None:
        found = [tf.constant(1).op.name for _ in range(3)]
        assert found == ["Const", "Const_1", "Const_2"]
        assert tf.constant(1, name="Const_1").op.name == "Const_1_1"

    def test_differ_by_more_than_case(self) -> None:
        assert tf.constant(1, name="b").name == "b:0"
        assert tf.constant(1, name="B").name == "B_1:0"

    def test_tensors_have_the_index_of_the_output(self) -> None:
        tensors = tf.unstack([1, 2])
        assert [one.name for one in tensors] == ["unstack:0", "unstack:1"]
        assert [one.value_index for one in tensors] == [0, 1]

    @pytest.mark.parametrize("name", ["_bad", "b d", "-x", "é"])
    def test_that_are_none_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="is not a valid node name"):
            tf.constant(1, name=name)

    def test_that_end_in_a_slash_are_taken_as_they_are(self, graph: Any) -> None:
        with tf.name_scope("outer"):
            assert tf.no_op(name="else/where/").name == "else/where"
        with pytest.raises(ValueError, match="Duplicate node name"):
            tf.no_op(name="else/where/")

    def test_unique_name_can_look_only(self, graph: Any) -> None:
        assert graph.unique_name("x", mark_as_used=False) == "x"
        assert graph.unique_name("x") == "x"
        assert graph.unique_name("x", mark_as_used=False) == "x_1"
        assert graph.unique_name("x") == "x_1"


class TestNameScopes:
    def test_nest_and_are_made_unique(self) -> None:
        with tf.name_scope("a") as outer:
            assert outer == "a/"
            assert tf.constant(1, name="b").name == "a/b:0"
            with tf.name_scope("c") as inner:
                assert inner == "a/c/"
        with tf.name_scope("a") as again:
            assert again == "a_1/"

    def test_can_be_entered_again(self) -> None:
        with tf.name_scope("a") as scope:
            tf.constant(1, name="b")
        with tf.name_scope(scope) as again:
            assert again == "a/"
            assert tf.constant(1, name="b").name == "a/b_1:0"

    def test_none_is_the_top(self) -> None:
        with tf.name_scope("a"), tf.name_scope(None) as scope:
            assert scope == ""
            assert tf.constant(1).name == "Const:0"

    def test_default_name_and_graph_of_the_values(self) -> None:
        other = tf.Graph()
        with other.as_default():
            value = tf.constant(1)
        with tf.name_scope(None, "default", [value]) as scope:
            assert scope == "default/"
            assert tf.get_default_graph() is other

    def test_bad_names(self) -> None:
        with pytest.raises(ValueError, match="'b d' is not a valid root scope name"):
            tf.name_scope("b d").__enter__()
        with pytest.raises(TypeError, match="not a string"):
            tf.name_scope(5)  # type: ignore[arg-type]

    def test_an_exception_leaves_the_scope(self) -> None:
        with pytest.raises(KeyError), tf.name_scope("a"):
            raise KeyError
        assert tf.constant(1).name == "Const:0"


class TestDefaultGraph:
    def test_is_per_thread(self, graph: Any) -> None:
        assert tf.get_default_graph() is graph
        other = Step(tf.get_default_graph).result()
        assert other is not graph

    def test_operations_belong_to_the_graph_of_their_inputs(self, graph: Any) -> None:
        x = tf.constant(1)
        with tf.Graph().as_default():
            assert tf.identity(x).graph is graph

    def test_inputs_of_two_graphs_are_refused(self) -> None:
        x = tf.constant(1)
        with tf.Graph().as_default():
            y = tf.constant(1)
        with pytest.raises(ValueError, match=r"must be from the same graph as Tensor\(.Const:0"):
            tf.stack([x, y])

    def test_reset(self) -> None:
        def in_a_new_thread() -> None:
            tf.constant(1)
            before = tf.get_default_graph()
            tf.reset_default_graph()
            assert tf.get_default_graph() is not before
            assert tf.constant(1).name == "Const:0"

        Step(in_a_new_thread).result()

    def test_reset_within_a_nested_graph_is_refused(self) -> None:
        with pytest.raises(AssertionError, match="nested graphs"):
            tf.reset_default_graph()

    def test_finalize(self, graph: Any) -> None:
        graph.finalize()
        assert graph.finalized
        with pytest.raises(RuntimeError, match="Graph is finalized and cannot be modified"):
            tf.constant(1)
        with pytest.raises(RuntimeError, match="finalized"):
            tf.add_to_collection("c", 1)

    def test_threads_have_scopes_of_their_own(self, graph: Any) -> None:
        def build() -> str:
            with graph.as_default():
                return tf.constant(1, name="inside").name

        with tf.name_scope("a"), tf.control_dependencies([tf.no_op()]):
            assert Step(build).result() == "inside:0"

    def test_many_threads_may_build_at_once(self, graph: Any) -> None:
        start = threading.Barrier(4)

        def build() -> None:
            with graph.as_default():
                start.wait(30)
                for _ in range(200):
                    tf.identity(tf.constant(1))

        for step in [Step(build) for _ in range(4)]:
            step.result()
        assert len(set(names(graph))) == graph.version == 1600


class TestLookUp:
    @pytest.fixture(autouse=True)
    def x(self) -> Any:
        return tf.placeholder(tf.float32, [2, None], name="x")

    def test_finds(self, graph: Any, x: Any) -> None:
        assert graph.get_tensor_by_name("x:0") is x
        assert graph.get_operation_by_name("x") is x.op
        assert graph.as_graph_element("x:0") is graph.as_graph_element(b"x:0") is x
        assert graph.as_graph_element("x") is x.op
        assert graph.as_graph_element(x) is x

    @pytest.mark.parametrize(
        ("name", "error", "message"),
        [
            ("zz", KeyError, "The name 'zz' refers to an Operation not in the graph."),
            (
                "zz:0",
                KeyError,
                "The name 'zz:0' refers to a Tensor which does not exist. The operation, 'zz', "
                "does not exist in the graph.",
            ),
            (
                "x:3",
                KeyError,
                "The name 'x:3' refers to a Tensor which does not exist. The operation, 'x', "
                "exists but only has 1 outputs.",
            ),
            (
                "x:0:0",
                ValueError,
                "The name 'x:0:0' looks a like a Tensor name, but is not a valid one. Tensor "
                'names must be of the form "<op_name>:<output_index>".',
            ),
            (5, TypeError, "Can not convert a int into a Tensor or Operation."),
            (None, TypeError, "Can not convert a NoneType into a Tensor or Operation."),
        ],
    )
    def test_what_is_not_there(
        self, graph: Any, name: Any, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error) as caught:
            graph.as_graph_element(name)
        assert caught.value.args == (message,)

    def test_the_wrong_kind(self, graph: Any) -> None:
        with pytest.raises(ValueError, match="'x' refers to an Operation, not a Tensor"):
            graph.get_tensor_by_name("x")
        with pytest.raises(ValueError, match=r"'q' looks like an .invalid. Operation name"):
            graph.get_tensor_by_name("q")
        with pytest.raises(ValueError, match="'x:0' appears to refer to a Tensor"):
            graph.get_operation_by_name("x:0")
        with pytest.raises(TypeError, match=r"Tensor names are strings .or similar., not int"):
            graph.get_tensor_by_name(4)
        with pytest.raises(TypeError, match=r"Operation names are strings .or similar., not int"):
            graph.get_operation_by_name(4)

    def test_of_another_graph(self, graph: Any) -> None:
        with tf.Graph().as_default():
            y = tf.constant(1, name="y")
        with pytest.raises(ValueError, match="is not an element of this graph"):
            graph.as_graph_element(y)


class TestTensors:
    def test_texts(self) -> None:
        x = tf.placeholder(tf.float32, [2, None], name="x")
        y = tf.placeholder(tf.int32, name="y")
        assert str(x) == 'Tensor("x:0", shape=(2, ?), dtype=float32)'
        assert repr(x) == "<tf.Tensor 'x:0' shape=(2, ?) dtype=float32>"
        assert str(y) == 'Tensor("y:0", dtype=int32)'
        assert repr(y) == "<tf.Tensor 'y:0' shape=<unknown> dtype=int32>"
        assert repr(x.op) == "<tf.Operation 'x' type=Placeholder>"

    def test_are_compared_as_objects(self) -> None:
        x, y = tf.constant(1), tf.constant(1)
        assert x == x
        assert x != y
        assert {x: 1, y: 2}[x] == 1

    def test_have_no_value_of_their_own(self) -> None:
        x = tf.constant([1, 2])
        with pytest.raises(TypeError, match="as a Python `bool` is not allowed"):
            bool(x)
        with pytest.raises(TypeError, match="len is not well defined"):
            len(x)
        with pytest.raises(TypeError, match="Iterating over a symbolic"):
            list(x)

    def test_consumers(self) -> None:
        x = tf.constant(1)
        y = tf.identity(x)
        assert x.consumers() == [y.op]
        assert y.op.inputs[0] is x

    def test_set_shape_adds_to_what_is_known(self) -> None:
        x = tf.placeholder(tf.float32, [None, 3])
        x.set_shape([2, None])
        assert x.shape.as_list() == x.get_shape().as_list() == [2, 3]
        message = r"Dimension 0 in both shapes must be equal, but are 2 and 3. Shapes are \[2,3\] "
        with pytest.raises(ValueError, match=message + r"and \[3,3\]"):
            x.set_shape([3, 3])
        with pytest.raises(ValueError, match="Shapes must be equal rank, but are 2 and 1"):
            x.set_shape([3])

    def test_operations_know_what_they_are(self) -> None:
        first = tf.no_op(name="first")
        one = tf.constant(1, name="one")
        with tf.control_dependencies([first]):
            made = tf.identity(one, name="made").op
        assert (made.type, made.name) == ("Identity", "made")
        assert made.control_inputs == [first]
        assert made.values() == tuple(made.outputs)
        record = made.node_def
        assert (record.name, record.op, record.input) == ("made", "Identity", ["one", "^first"])
        with pytest.raises(ValueError, match="has no attr named 'T'"):
            made.get_attr("T")
        assert made.inputs[0].op.get_attr("value") == 1

    def test_operations_know_where_they_were_made(self) -> None:
        made = tf.no_op()
        assert made.defined_at is not None
        assert made.defined_at[0] == __file__

    def test_devices_have_no_effect(self) -> None:
        with tf.device("/gpu:0"), tf.colocate_with(tf.no_op()):
            assert tf.constant(1).device == ""


class TestControlDependencies:
    def controls(self, tensor: Any) -> list[str]:
        return [one.name for one in tensor.op.control_inputs]

    def test_take_operations_tensors_variables_and_names(self) -> None:
        v = tf.Variable(1, name="v")
        with tf.control_dependencies([tf.no_op("a"), tf.constant(1, name="b"), v, "a"]):
            assert self.controls(tf.constant(1)) == ["a", "b", "v"]

    def test_nest(self) -> None:
        with tf.control_dependencies([tf.no_op("a")]):
            b = tf.no_op("b")
            with tf.control_dependencies([b]):
                # b comes after a already, but the rule of TensorFlow looks at inputs only.
                assert self.controls(tf.constant(1)) == ["a", "b"]

    def test_none_is_free_of_those_around(self) -> None:
        with tf.control_dependencies([tf.no_op("a")]), tf.control_dependencies(None):
            assert self.controls(tf.constant(1)) == []

    def test_inputs_are_no_control_inputs_too(self) -> None:
        x = tf.constant(1, name="x")
        with tf.control_dependencies([x]):
            y = tf.identity(x)
            assert self.controls(y) == []

    def test_what_an_input_implies_is_left_out(self) -> None:
        with tf.control_dependencies([tf.no_op("a")]):
            x = tf.constant(1)
            assert self.controls(tf.identity(x)) == []

    def test_bad_ones(self) -> None:
        with pytest.raises(TypeError, match="control_inputs"):
            tf.control_dependencies(5).__enter__()  # type: ignore[arg-type]
        with pytest.raises(KeyError, match="zz"):
            tf.control_dependencies(["zz"]).__enter__()

    def test_threads_may_begin_with_the_callers(self) -> None:
        graph = tf.Graph()

        def controls_of_a_new_thread() -> list[str]:
            def build() -> list[str]:
                with graph.as_default():
                    return [one.name for one in tf.no_op().control_inputs]

            return list(Step(build).result())

        with graph.as_default():
            first = tf.no_op(name="first")
            with graph.control_dependencies([first]):
                assert controls_of_a_new_thread() == []
                graph.switch_to_thread_local()
                assert controls_of_a_new_thread() == ["first"]
                with graph.control_dependencies(None):
                    assert tf.no_op().control_inputs == []
                assert tf.no_op().control_inputs == [first]
            assert tf.no_op().control_inputs == []


class TestCollections:
    def test_keep_what_is_added(self, graph: Any) -> None:
        assert tf.get_collection("c") == []
        tf.add_to_collection("c", 1)
        tf.add_to_collections(["c", "d", "c"], 2)
        assert tf.get_collection("c") == [1, 2]
        assert sorted(graph.get_all_collection_keys()) == ["c", "d"]
        graph.clear_collection("c")
        assert tf.get_collection("c") == []

    def test_one_is_a_copy_the_other_is_not(self) -> None:
        tf.add_to_collection("c", 1)
        tf.get_collection("c").append(2)
        assert tf.get_collection("c") == [1]
        tf.get_collection_ref("c").append(2)
        assert tf.get_collection("c") == [1, 2]

    def test_scope_is_a_regular_expression(self) -> None:
        tf.add_to_collection("c", tf.no_op("ab/x"))
        tf.add_to_collection("c", tf.no_op("cb/x"))
        tf.add_to_collection("c", "no name")
        assert [one.name for one in tf.get_collection("c", "a./")] == ["ab/x"]

    def test_known_names(self) -> None:
        assert tf.GraphKeys.QUEUE_RUNNERS == "queue_runners"
        assert tf.GraphKeys.GLOBAL_VARIABLES == "variables"
        assert tf.GraphKeys.LOCAL_VARIABLES == "local_variables"


class TestDTypes:
    @pytest.mark.parametrize(
        ("value", "dtype"),
        [
            ("float32", tf.float32),
            ("float", tf.float32),
            (float, tf.float32),
            (int, tf.int32),
            (bool, tf.bool),
            (str, tf.string),
            (bytes, tf.string),
            (np.int64, tf.int64),
            (np.dtype("uint8"), tf.uint8),
            (np.dtype("S3"), tf.string),
            (np.dtype("U"), tf.string),
            (object, tf.string),
            ("half", tf.float16),
            (1, tf.float32),
            (tf.int16, tf.int16),
        ],
    )
    def test_what_means_a_dtype(self, value: Any, dtype: Any) -> None:
        assert tf.as_dtype(value) is dtype
        assert dtype == value

    @pytest.mark.parametrize("value", [None, "zz", "M8[s]", 99, [], object()])
    def test_what_means_none(self, value: Any) -> None:
        with pytest.raises(TypeError, match="to a TensorFlow DType"):
            tf.as_dtype(value)
        assert tf.float32 != value

    def test_texts(self) -> None:
        assert repr(tf.float32) == "tf.float32"
        assert str(tf.float32) == "<dtype: 'float32'>"
        assert tf.float32.name == "float32"

    def test_properties(self) -> None:
        assert tf.int32.is_integer
        assert not tf.int32.is_floating
        assert tf.bool.is_bool
        assert tf.complex64.is_complex
        assert tf.complex64.real_dtype is tf.float32
        assert tf.float64.base_dtype is tf.float64
        assert tf.float64.size == 8
        assert tf.float64.as_numpy_dtype is np.float64
        assert tf.string.as_numpy_dtype is np.object_
        assert tf.int64.as_datatype_enum == int(tf.int64) == 9
        assert (tf.int8.min, tf.int8.max, tf.uint8.limits) == (-128, 127, (0, 255))
        assert tf.float32.is_compatible_with("float32")
        with pytest.raises(TypeError, match="minimum value"):
            _ = tf.string.min

    def test_survive_pickling_as_the_same_object(self) -> None:
        assert pickle.loads(pickle.dumps(tf.int64)) is tf.int64


class TestShapes:
    def test_texts(self) -> None:
        shape = tf.TensorShape([2, None])
        assert str(shape) == "(2, ?)"
        assert repr(shape) == "TensorShape([Dimension(2), Dimension(None)])"
        assert str(tf.TensorShape(None)) == "<unknown>"
        assert repr(tf.TensorShape(None)) == "TensorShape(None)"
        assert str(tf.TensorShape([1])) == "(1,)"
        assert str(tf.Dimension(None)) == "?"

    def test_consist_of_dimensions(self) -> None:
        shape = tf.TensorShape([2, None])
        assert [one.value for one in shape] == [2, None]
        assert shape[0].value == 2
        assert shape[0] == 2
        assert shape[1:].as_list() == [None]
        assert len(shape) == shape.ndims == shape.rank == 2
        assert shape.as_list() == [2, None]
        assert tf.TensorShape([2, 3]).num_elements() == 6
        assert shape.num_elements() is None
        assert bool(tf.TensorShape([]))
        assert not tf.TensorShape(None)
        assert tf.TensorShape([1]) == [1]
        assert hash(tf.TensorShape([1])) == hash(tf.TensorShape([1]))
        assert pickle.loads(pickle.dumps(shape)) == shape

    def test_arithmetic(self) -> None:
        two, unknown = tf.Dimension(2), tf.Dimension(None)
        assert (two + 3).value == (3 + two).value == 5
        assert (two * 3).value == 6
        assert (7 // two).value == 3
        assert (two - 1).value == 1
        assert (two + unknown).value is None
        assert (unknown == 3) is None
        assert (two < 3) is True
        assert [0, 1, 2][two] == 2
        assert int(two) == 2
        assert tf.dimension_value(two) == 2
        assert tf.dimension_at_index([4], 0).value == 4

    def test_merging(self) -> None:
        assert tf.TensorShape([2, None]).merge_with([None, 3]).as_list() == [2, 3]
        assert tf.TensorShape(None).merge_with([1]).as_list() == [1]
        assert tf.TensorShape([1]).concatenate([2]).as_list() == [1, 2]
        general = tf.TensorShape([2, 3]).most_general_compatible_shape([2, 4])
        assert general.as_list() == [2, None]

    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            (lambda: tf.TensorShape([2]).merge_with([3]), ValueError, r"\(2,\) and \(3,\) are not"),
            (lambda: tf.TensorShape([2]).with_rank(2), ValueError, r"\(2,\) must have rank 2"),
            (lambda: tf.TensorShape([]).with_rank_at_least(1), ValueError, "rank at least 1"),
            (
                lambda: tf.TensorShape([2]).assert_is_compatible_with([3]),
                ValueError,
                r"\(2,\) and \(3,\) are incompatible",
            ),
            (
                lambda: tf.TensorShape([None]).assert_is_fully_defined(),
                ValueError,
                r"\(\?,\) is not fully defined",
            ),
            (lambda: tf.Dimension(2).merge_with(3), ValueError, "Dimensions 2 and 3 are not"),
            (lambda: tf.TensorShape(None).as_list(), ValueError, r"as_list\(\) is not defined"),
            (lambda: len(tf.TensorShape(None)), ValueError, "unknown rank"),
            (lambda: list(tf.TensorShape(None)), ValueError, "unknown rank"),
            (lambda: tf.TensorShape([-1]), ValueError, "must be >= 0"),
            (lambda: tf.TensorShape(["a"]), TypeError, "must be integer or None"),
        ],
    )
    def test_what_does_not_fit(self, call: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            call()


class TestConstants:
    @pytest.mark.parametrize(
        ("value", "dtype", "shape"),
        [
            (1, tf.int32, []),
            (2**40, tf.int64, []),
            (1.5, tf.float32, []),
            ([1, 2.5], tf.float32, [2]),
            (True, tf.bool, []),
            ("é", tf.string, []),
            ([b"a", "b"], tf.string, [2]),
            (1j, tf.complex128, []),
            (np.float64(1), tf.float64, []),
            (np.zeros((2, 0), np.int8), tf.int8, [2, 0]),
            (np.array(["a", "b"]), tf.string, [2]),
            ([], tf.float32, [0]),
        ],
    )
    def test_take_the_type_that_the_value_suggests(
        self, value: Any, dtype: Any, shape: list[int]
    ) -> None:
        made = tf.constant(value)
        assert (made.dtype, made.shape.as_list()) == (dtype, shape)

    def test_python_values_must_be_of_the_kind_asked_for(self) -> None:
        with pytest.raises(TypeError, match=r"Expected int32, but got 1\.5 of type 'float'"):
            tf.constant([1, 1.5], tf.int32)
        with pytest.raises(TypeError, match="Expected int32, but got a of type 'str'"):
            tf.constant("a", tf.int32)
        with pytest.raises(TypeError, match="Expected bool, but got 1 of type 'int'"):
            tf.constant(1, tf.bool)
        with pytest.raises(TypeError, match="Expected string, but got 1 of type 'int'"):
            tf.constant([1], tf.string)
        assert tf.constant(True, tf.int32).dtype is tf.int32

    def test_numpy_values_are_cast(self, sess: Any) -> None:
        assert sess.run(tf.constant(np.float64(3.7), tf.int32)) == 3

    def test_what_is_no_value(self) -> None:
        with pytest.raises(ValueError, match="None values not supported"):
            tf.constant(None)
        with pytest.raises(TypeError, match="Expected int32, but got None of type 'NoneType'"):
            tf.constant([1, None], tf.int32)
        with pytest.raises(ValueError, match="inhomogeneous"):
            tf.constant([[1], [2, 3]])
        with pytest.raises(TypeError, match="Failed to convert elements"):
            tf.constant(object())
        with pytest.raises(TypeError, match="got a tensor instead"):
            tf.constant(tf.constant(1))

    def test_shape(self, sess: Any) -> None:
        assert sess.run(tf.constant(3, shape=[2, 2])).tolist() == [[3, 3], [3, 3]]
        assert sess.run(tf.constant([1, 2], shape=[3])).tolist() == [1, 2, 2]
        assert sess.run(tf.constant([1, 2, 3, 4], shape=[2, 2])).tolist() == [[1, 2], [3, 4]]
        with pytest.raises(ValueError, match="Takes at most 1, but got 2"):
            tf.constant([1, 2], shape=[1])
        with pytest.raises(TypeError, match="Expected Tensor's shape"):
            tf.constant([1, 2], shape=[3], verify_shape=True)

    def test_are_copies(self, sess: Any) -> None:
        array = np.array([1, 2])
        made = tf.constant(array)
        array[:] = 9
        assert sess.run(made).tolist() == [1, 2]
        sess.run(made)[:] = 9
        assert sess.run(made).tolist() == [1, 2]


class TestConversion:
    def test_tensors_are_taken_as_they_are(self) -> None:
        x = tf.constant(1)
        assert tf.convert_to_tensor(x) is x
        with pytest.raises(ValueError, match="requested dtype int64 for Tensor with dtype int32"):
            tf.convert_to_tensor(x, tf.int64)

    def test_lists_with_tensors_are_packed(self, sess: Any) -> None:
        made = tf.convert_to_tensor([tf.constant(1), 2, tf.Variable(3).initial_value])
        assert made.op.name == "packed"
        assert made.shape.as_list() == [3]
        assert sess.run(made).tolist() == [1, 2, 3]
        text = tf.convert_to_tensor([tf.constant("a"), "b"])
        assert sess.run(text).tolist() == [b"a", b"b"]

    def test_preferred_dtype_is_a_wish(self) -> None:
        assert tf.convert_to_tensor(1, preferred_dtype=tf.float32).dtype is tf.float32
        assert tf.convert_to_tensor("a", preferred_dtype=tf.float32).dtype is tf.string

    def test_other_types_can_be_registered(self) -> None:
        class Celsius:
            def __init__(self, degrees: float) -> None:
                self.degrees = degrees

        def convert(
            value: Celsius, dtype: Any = None, name: Any = None, as_ref: Any = False
        ) -> Any:
            return tf.constant(value.degrees, dtype, name=name)

        tf.register_tensor_conversion_function(Celsius, convert)
        assert tf.identity(Celsius(1.0)).op.inputs[0].name == "Identity/input:0"
        with pytest.raises(TypeError, match="base_type"):
            tf.register_tensor_conversion_function(3, convert)  # type: ignore[arg-type]


class TestSeeds:
    """The rule of TensorFlow 1 for deriving the seeds of an operation."""

    def test_neither(self) -> None:
        assert tf.get_seed(None) == (None, None)

    def test_only_the_operation(self) -> None:
        assert tf.get_seed(7) == (87654321, 7)
        assert tf.get_seed(0) == (87654321, 0)

    def test_only_the_graph_counts_operations(self) -> None:
        tf.set_random_seed(5)
        assert tf.get_seed(None) == (5, 0)
        tf.constant(1)
        tf.Variable(1)
        assert tf.get_seed(None) == (5, 5)

    def test_both(self) -> None:
        tf.set_random_seed(5)
        assert tf.get_seed(3) == (5, 3)
        most = 2**31 - 1
        tf.set_random_seed(most)
        assert tf.get_seed(most) == (0, most)
        assert tf.get_seed(-1) == (0, most - 1)


class TestMakingOperations:
    """What the op library stands on."""

    def test_kernels_get_values_and_return_them(self, sess: Any) -> None:
        x = tf.placeholder(tf.int32, [])
        made = make_op(
            "Both",
            [x, tf.constant("a")],
            [(tf.int32, tf.TensorShape([])), (tf.string, tf.TensorShape([]))],
            lambda step, number, text: (number + 1, text * 2),
        )
        assert sess.run(made.outputs, {x: 3}) == [4, b"aa"]

    def test_inputs_of_a_foreign_graph(self, graph: Any) -> None:
        with tf.Graph().as_default():
            y = tf.constant(1)
        with pytest.raises(ValueError, match="not an element of this graph"):
            graph.create_op("Identity", [y], [], lambda step, value: value)


class TestNest:
    def test_flattening_and_packing(self) -> None:
        structure = {"b": [1, (2, 3)], "a": 4}
        assert tf.nest.flatten(structure) == [4, 1, 2, 3]
        packed = tf.nest.pack_sequence_as(structure, [40, 10, 20, 30])
        assert packed == {"b": [10, (20, 30)], "a": 40}
        assert list(packed) == ["b", "a"]
        assert tf.nest.flatten("text") == ["text"]
        with pytest.raises(ValueError, match="Structure had 4 elements, but flat_sequence had 1"):
            tf.nest.pack_sequence_as(structure, [1])

    def test_mapping(self) -> None:
        assert tf.nest.map_structure(lambda a, b: a + b, [1, (2,)], [10, (20,)]) == [11, (22,)]
        with pytest.raises(ValueError, match="same nested structure"):
            tf.nest.map_structure(lambda a, b: a + b, [1, 2], [1])

    def test_comparing(self) -> None:
        tf.nest.assert_same_structure([1], (1,), check_types=False)
        with pytest.raises(TypeError, match="sequence type"):
            tf.nest.assert_same_structure([1], (1,))
        with pytest.raises(ValueError, match="same keys"):
            tf.nest.assert_same_structure({"a": 1}, {"b": 1})
        with pytest.raises(ValueError, match="is a sequence, while"):
            tf.nest.assert_same_structure([1, [2]], [1, 2])


class TestSwitches:
    def test_change_nothing(self) -> None:
        tf.disable_v2_behavior()
        tf.disable_eager_execution()
        tf.enable_resource_variables()
        assert not tf.executing_eagerly()
        assert tf.__version__.startswith("1.")
