"""The graph layer and sessions beside TensorFlow itself: names, static shapes, values, errors.

Each case builds a graph, and may run it, with TensorFlow's module and with ours. Runs where
TensorFlow is installed: ``pip install '.[oracle]'``.
"""

from __future__ import annotations

import importlib
import os
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as ours

Case = Callable[[Any], Any]
CASES: dict[str, Case] = {}
MADE_BY_COND = re.compile(r"(^|/)(Switch(_\d+)?|switch_[tf]|pred_id|Merge_\d+)$")
"""Operations by which TensorFlow spells a ``cond``; there is one here."""


@pytest.fixture(scope="module")
def theirs() -> Any:
    """TensorFlow, in graph mode."""
    pytest.importorskip("tensorflow", reason="compares with TensorFlow: pip install '.[oracle]'")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module("tensorflow.compat.v1")
        module.disable_v2_behavior()
        module.logging.set_verbosity(module.logging.ERROR)
    return module


def case(function: Case) -> Case:
    """Register a case: what it returns is compared, and the names of all operations."""
    CASES[function.__name__] = function
    return function


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call returns, in comparable form, or the kind of error that it raises."""
    try:
        return plain(function(*arguments))
    except Exception as error:
        return type(error).__name__


def plain(value: Any) -> Any:
    """Tensors as their texts, arrays as dtype and lists, nested things part by part."""
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        kind = "string" if value.dtype.kind in "OS" else value.dtype.name
        return kind, [*map(plain_string, np.asarray(value).reshape(-1).tolist())], np.shape(value)
    if isinstance(value, str | bytes):
        return "string", [plain_string(value)], ()
    if isinstance(value, int | float | bool | type(None)):
        return value
    return re.sub(r"_ref\b|Dimension\((\w+)\)", r"\1", repr(value))


def plain_string(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def run(tf: Any, function: Case) -> tuple[Any, list[str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with tf.Graph().as_default() as graph:
            returned = outcome(lambda: function(tf))
    names = [one.name for one in graph.get_operations()]
    return returned, [one for one in names if not MADE_BY_COND.search(one)]


@case
def variables(tf: Any) -> Any:
    v = tf.Variable(3, name="n")
    made = [v.assign_add(2), tf.assign(v, 4, name="as"), v.count_up_to(3), tf.identity(v, name="i")]
    w = tf.Variable([1.0, 2.0])
    return [v, w, v.value(), v.initial_value, v.initializer.name, v.read_value(), *made]


@case
def variables_in_scopes(tf: Any) -> Any:
    with tf.name_scope("s"):
        v = tf.Variable(tf.zeros([2]), name="n")
        w = tf.Variable(lambda: tf.ones([2]), dtype=tf.float32)
        v.assign_sub([1.0, 1.0])
        with tf.name_scope("t"):
            tf.group(v.initializer, tf.placeholder(tf.int32))
            return [v, w, tf.no_op().name]


@case
def variable_scopes(tf: Any) -> Any:
    with tf.variable_scope("a"):
        with tf.variable_scope("b"):
            v = tf.get_variable("v", [2], initializer=tf.zeros_initializer())
            tf.constant(1)
        with tf.name_scope("c"):
            w = tf.get_variable("w", initializer=3)
            tf.constant(2)
    with tf.variable_scope("a", reuse=tf.AUTO_REUSE) as scope:
        again = tf.get_variable("b/v", [2])
        tf.constant(3)
    with tf.variable_scope(scope):
        tf.constant(4)
    with tf.variable_scope(scope, auxiliary_name_scope=False):
        tf.constant(5)
    return [v, w, again is v, scope.name, scope.original_name_scope]


@case
def the_global_step(tf: Any) -> Any:
    step = tf.train.get_or_create_global_step()
    return [step, tf.train.get_global_step() is step, tf.get_collection("global_step")]


@case
def initializing(tf: Any) -> Any:
    v, w = tf.Variable(1), tf.Variable(2, collections=["local_variables"])
    made = [tf.global_variables_initializer(), tf.local_variables_initializer()]
    with tf.Session() as sess:
        return [
            [one.name for one in made],
            outcome(lambda: sess.run(v)),
            sess.run(tf.report_uninitialized_variables()),
            sess.run(made),
            sess.run([v, w, tf.is_variable_initialized(v)]),
            sess.run(tf.report_uninitialized_variables()),
        ]


@case
def counting(tf: Any) -> Any:
    v = tf.Variable(0)
    count = v.count_up_to(2)
    with tf.Session() as sess:
        found = [outcome(lambda: sess.run(count))]
        sess.run(v.initializer)
        return found + [outcome(lambda: sess.run(count)) for _ in range(4)] + [sess.run(v)]


@case
def assignments_in_order(tf: Any) -> Any:
    v = tf.Variable([1, 2])
    with tf.control_dependencies([v.assign_add([1, 1])]):
        by_name, own = tf.identity(v), v.read_value()
    up = v.assign_add([10, 10])
    with tf.Session() as sess:
        sess.run(v.initializer)
        found = [sess.run([by_name, own]), sess.run([v, up]), sess.run(tf.assign(v, [7, 7]))]
        found.append(outcome(lambda: v.assign([1, 2, 3])))
        found.append(outcome(lambda: v.assign(1.5)))
        found.append(outcome(lambda: v.assign(tf.constant([1.0, 2.0]))))
        return [*found, sess.run(v)]


@case
def operations_of_arguments(tf: Any) -> Any:
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    return [
        tf.convert_to_tensor([x, x]),
        tf.tuple([x, tf.constant(1)]),
        tf.py_func(lambda a, b: a, [x, 1], tf.float32),
        tf.Print(x, [x, 1]),
        tf.placeholder_with_default([1, 2], [None]),
        tf.identity(5),
        tf.Assert(tf.constant(True), [1, "a"]) is None,
    ]


CONSTANTS: tuple[Any, ...] = (
    *([[1, 2], [3, 4]], [1.0, 2], np.float64(1), [np.float64(1)], [np.int64(1)], np.array([1, 2])),
    *([True, False], [], [[]], "a", ["a", b"b"], 1 + 2j, 2**31, -(2**31), np.float16(1), True),
    *(np.uint64(3), np.array(["ab"]), (1, 2), [1, "a"], [True, 1], [[1], [2.0]], {}, [None, 1]),
    *([[1], [2, 3]], None, object(), np.zeros((2, 0)), b"\xff", "é", [["a"], ["b"]], 1e300),
)


@case
def constants(tf: Any) -> Any:
    return [outcome(lambda one: tf.constant(one), one) for one in CONSTANTS]


@case
def constants_of_a_dtype(tf: Any) -> Any:
    dtypes = (tf.int32, tf.int64, tf.float32, tf.string, tf.bool, tf.complex64)
    values: tuple[Any, ...] = (
        1,
        1.5,
        "a",
        True,
        [1, 2],
        [1, 2.5],
        np.float64(3.7),
        np.int64(3),
        [],
        1j,
        ["a"],
    )
    return [outcome(lambda v, d: tf.constant(v, d), v, d) for d in dtypes for v in values]


@case
def constants_of_a_shape(tf: Any) -> Any:
    pairs: tuple[Any, ...] = (
        ([1, 2], [4]),
        ([1, 2], [1]),
        (3, [2, 2]),
        ([1, 2, 3, 4], [2, 2]),
        (1, []),
        ([], [0]),
    )
    with tf.Session() as sess:
        return [
            outcome(lambda v, s: sess.run(tf.constant(v, shape=s, name="c")), v, s)
            for v, s in pairs
        ]


FEEDS: dict[str, tuple[Any, ...]] = {
    "int32": (
        *(True, [1, 2], np.float64(2.7), "3", [], [[1], [1, 2]], -(2**31), 2**31, object()),
        *(np.arange(3), np.zeros((1, 2), np.int64), 1.9),
    ),
    "float32": (1, "1.5", True, [True], np.arange(3), 1e50, [[1, 2]], np.float64(0.1), "a"),
    "string": ("a", b"a", ["a", b"b"], np.array([["a"]]), np.array([b"x"]), ["é"], 1),
    "bool": (1, [0, 2], True, np.array([1])),
}


@case
def feeding(tf: Any) -> Any:
    with tf.Session() as sess:
        return [
            outcome(lambda x, one: np.asarray(sess.run(x, {x: one})), x, one)
            for dtype, values in FEEDS.items()
            for x in [tf.placeholder(dtype)]
            for one in values
        ]


@case
def feeding_shapes(tf: Any) -> Any:
    x = tf.placeholder(tf.int32, [2, None])
    values: tuple[Any, ...] = (
        [[1], [2]],
        [1, 2],
        1,
        np.zeros((2, 0)),
        np.zeros((3, 1)),
        [[[1]], [[2]]],
    )
    with tf.Session() as sess:
        return [outcome(lambda one: sess.run(x, {x: one}), one) for one in values]


@case
def bad_fetches_and_feeds(tf: Any) -> Any:
    x = tf.placeholder(tf.float32, name="x")
    with tf.Session() as sess:
        fetches: tuple[Any, ...] = (
            None,
            5,
            1.5,
            "zz",
            "zz:0",
            "x:1",
            "x:0:0",
            [None],
            [],
            (),
            {},
            b"x:0",
            ["x:0"],
        )
        keys: tuple[Any, ...] = ("q", "x", "x:0", 5, x.op, "x:3")
        return [
            *[outcome(lambda one: sess.run(one, {x: 1}), one) for one in fetches],
            *[outcome(lambda one: np.asarray(sess.run(x, {one: 1})), one) for one in keys],
            outcome(lambda: sess.run(x, {x: tf.constant(1.0)})),
            outcome(lambda: sess.run(x)),
        ]


@case
def control_dependencies(tf: Any) -> Any:
    x = tf.constant(1, name="x")
    with tf.control_dependencies([x]):
        with tf.control_dependencies([tf.no_op("n")]):
            made = [tf.constant(2), tf.identity(x)]
            made.append(tf.identity(made[0]))
        with tf.control_dependencies(None):
            made.append(tf.constant(3))
    return [[one.name for one in tensor.op.control_inputs] for tensor in made]


@case
def names(tf: Any) -> Any:
    found = [tf.constant(1, name=one).name for one in ("b", "B", "b", "b_1", "a/b", "a", "a/")]
    with tf.name_scope("a") as first, tf.name_scope("b") as second:
        found += [first, second, tf.constant(1).name, tf.get_default_graph().unique_name("u")]
    with tf.name_scope("a"), tf.name_scope(None), tf.name_scope(first) as third:
        found += [third, tf.constant(1).name]
    bad = ("_x", "a b", "é", "-", "a/_b", ".x", "x:0")
    return found + [outcome(lambda one: tf.no_op(name=one).name, one) for one in bad]


@case
def conds(tf: Any) -> Any:
    p, x = tf.placeholder(tf.bool, [], name="p"), tf.constant(1)
    made = [
        tf.cond(p, lambda: x + 1, lambda: x),
        tf.cond(p, lambda: [x], lambda: [2]),
        tf.cond(p, lambda: {"a": 1}, lambda: {"a": 2}),
        tf.cond(p, tf.no_op, tf.no_op),
        tf.cond(p, lambda: tf.zeros([2]), lambda: tf.zeros([3])),
        tf.cond(p, lambda: tf.zeros([2]), lambda: tf.zeros([3, 1])),
    ]
    bad: list[Callable[[], Any]] = [
        lambda: tf.cond(p, lambda: 1, lambda: 2.0),
        lambda: tf.cond(p, lambda: 1, lambda: [2, 3]),
        lambda: tf.cond(p, 1, 2),
        lambda: tf.cond(True, lambda: 1, lambda: 2),
        lambda: tf.cond(p, lambda: None, lambda: None),
        lambda: tf.cond(p, list, list),
    ]
    with tf.Session() as sess:
        values = [sess.run(made, {p: one}) for one in (True, False)]
    return [made, values, [outcome(one) for one in bad]]


@case
def python_functions(tf: Any) -> Any:
    def failing(error: BaseException) -> Callable[[], Any]:
        def function() -> Any:
            raise error

        return function

    errors = (
        *(ValueError("v"), TypeError("t"), StopIteration(), KeyError("k"), RuntimeError("r")),
        *(NotImplementedError("n"), MemoryError("m"), OSError(2, "x")),
    )
    results: tuple[Any, ...] = (np.int32(1), np.float64(1), (1, 2), None, np.array([1], np.int32))
    with tf.Session() as sess:
        return [
            *[outcome(lambda e: sess.run(tf.py_func(failing(e), [], tf.int32)), e) for e in errors],
            *[outcome(lambda r: sess.run(tf.py_func(lambda: r, [], tf.int32)), r) for r in results],
            sess.run(tf.py_func(lambda a, b: b, [1, "é"], tf.string)),
        ]


@case
def steps_with_queues(tf: Any) -> Any:
    queue = tf.FIFOQueue(3, tf.int32, ())
    x, put = queue.dequeue(), queue.enqueue(5)
    with tf.control_dependencies([queue.enqueue(6)]):
        size = queue.size()
    soon = tf.RunOptions(timeout_in_ms=50)
    with tf.Session() as sess:
        return [
            sess.run([x, put]),
            sess.run([put, x, x]),
            sess.run(size),
            sess.run(x, {x: 9}),
            sess.run(queue.size()),
            sess.run(x),
            outcome(lambda: sess.run(x, options=soon)),
            sess.run(queue.close()),
            outcome(lambda: sess.run(x)),
            outcome(lambda: sess.run(put)),
            outcome(lambda: sess.run([put, x])) in ("CancelledError", "OutOfRangeError"),
        ]


@case
def shapes(tf: Any) -> Any:
    shape, unknown = tf.TensorShape([2, None]), tf.TensorShape(None)
    calls: list[Callable[[], Any]] = [
        lambda: str(shape),
        lambda: str(unknown),
        lambda: repr(shape),
        lambda: shape.merge_with([None, 3]),
        lambda: shape.merge_with([3, 3]),
        lambda: shape.concatenate([1]),
        lambda: shape[0] + shape[1],
        lambda: shape[1:],
        lambda: unknown.as_list(),
        lambda: len(unknown),
        lambda: bool(unknown),
        lambda: shape.num_elements(),
        lambda: shape.with_rank(3),
        lambda: unknown.with_rank(2),
        lambda: shape.is_compatible_with([2, 5]),
        lambda: shape == tf.TensorShape([2, None]),
        lambda: tf.TensorShape([-1]),
        lambda: tf.TensorShape(["a"]),
        lambda: tf.Dimension(3) // 2,
        lambda: tf.Dimension(None) < 3,
    ]
    return [outcome(one) for one in calls]


NAMED_OTHERWISE = {
    "initializing": "TensorFlow spells report_uninitialized_variables with many operations",
    "conds": "TensorFlow gives operations in a branch a control dependency of their own",
}
"""Cases in which the names of operations differ, and why."""


@pytest.mark.parametrize("name", CASES)
def test_does_as_tensorflow(theirs: Any, name: str) -> None:
    (mine, my_names), (their, their_names) = run(ours, CASES[name]), run(theirs, CASES[name])
    assert mine == their
    assert (my_names == their_names) == (name not in NAMED_OTHERWISE)
