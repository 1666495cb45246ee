"""Cases of graphs and sessions: names, static shapes, dtypes, values, order, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.compat.recorded import case, full_outcome, outcome


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
        tf.convert_to_tensor([x, x]), tf.tuple([x, tf.constant(1)]),
        tf.py_func(lambda a, b: a, [x, 1], tf.float32), tf.Print(x, [x, 1]),
        tf.placeholder_with_default([1, 2], [None]), tf.identity(5),
        tf.Assert(tf.constant(True), [1, "a"]) is None,
    ]  # fmt: skip


CONSTANTS: tuple[Any, ...] = (
    *([[1, 2], [3, 4]], [1.0, 2], np.float64(1), [np.float64(1)], [np.int64(1)], np.array([1, 2])),
    *([True, False], [], [[]], "a", ["a", b"b"], 1 + 2j, 2**31, -(2**31), np.float16(1), True),
    *(np.uint64(3), np.array(["ab"]), (1, 2), [1, "a"], [True, 1], [[1], [2.0]], {}, [None, 1]),
    *([[1], [2, 3]], None, ..., np.zeros((2, 0)), b"\xff", "é", [["a"], ["b"]], 1e300),
)


@case
def constants(tf: Any) -> Any:
    return [full_outcome(tf.constant, one) for one in CONSTANTS]


@case
def constants_of_a_dtype(tf: Any) -> Any:
    dtypes = (tf.int32, tf.int64, tf.float32, tf.string, tf.bool, tf.complex64)
    values: tuple[Any, ...] = (
        1, 1.5, "a", True, [1, 2], [1, 2.5], np.float64(3.7), np.int64(3), [], 1j, ["a"],
    )  # fmt: skip
    return [full_outcome(tf.constant, v, d) for d in dtypes for v in values]


@case
def constants_that_are_refused(tf: Any) -> Any:
    x = tf.constant(1)
    calls: list[Callable[[], Any]] = [
        *(lambda: tf.constant([1, None], tf.int32), lambda: tf.constant(x)),
        *(lambda: tf.constant([1], tf.string), lambda: tf.constant([1, 2], shape=[1])),
    ]
    return [*map(full_outcome, calls)]


@case
def constants_of_a_shape(tf: Any) -> Any:
    pairs: tuple[Any, ...] = (
        ([1, 2], [4]), ([1, 2], [1]), (3, [2, 2]), ([1, 2, 3, 4], [2, 2]), (1, []), ([], [0]),
    )  # fmt: skip
    with tf.Session() as sess:
        return [
            full_outcome(lambda v, s: sess.run(tf.constant(v, shape=s, name="c")), v, s)
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
        [[1], [2]], [1, 2], 1, np.zeros((2, 0)), np.zeros((3, 1)), [[[1]], [[2]]],
    )  # fmt: skip
    with tf.Session() as sess:
        return [outcome(lambda one: sess.run(x, {x: one}), one) for one in values]


@case
def bad_fetches_and_feeds(tf: Any) -> Any:
    x = tf.placeholder(tf.float32, name="x")
    with tf.Session() as sess:
        fetches: tuple[Any, ...] = (
            None, 5, 1.5, "zz", "zz:0", "x:1", "x:0:0", [None], [], (), {}, b"x:0", ["x:0"],
        )  # fmt: skip
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
    taken = ("b", "B", "b", "b_1", "a/b", "a", "a/")
    found: list[Any] = [outcome(lambda name: tf.constant(1, name=name).name, one) for one in taken]
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
        lambda: tf.cond(p, lambda: 1, lambda: 2.0), lambda: tf.cond(p, lambda: 1, lambda: [2, 3]),
        lambda: tf.cond(p, 1, 2), lambda: tf.cond(True, lambda: 1, lambda: 2),
        lambda: tf.cond(p, lambda: None, lambda: None), lambda: tf.cond(p, list, list),
    ]  # fmt: skip
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
            sess.run([x, put]), sess.run([put, x, x]), sess.run(size), sess.run(x, {x: 9}),
            sess.run(queue.size()), sess.run(x), outcome(lambda: sess.run(x, options=soon)),
            sess.run(queue.close()), outcome(lambda: sess.run(x)), outcome(lambda: sess.run(put)),
            outcome(lambda: sess.run([put, x])) in ("CancelledError", "OutOfRangeError"),
        ]  # fmt: skip


@case
def names_that_are_taken(tf: Any) -> Any:
    graph = tf.get_default_graph()
    found = [graph.unique_name("x", mark_as_used=look) for look in (False, True, False, True)]
    with tf.name_scope("outer"):
        found.append(tf.no_op(name="else/where/").name)
    return [*found, outcome(lambda: tf.no_op(name="else/where/"))]


@case
def name_scopes(tf: Any) -> Any:
    with tf.Graph().as_default() as other:
        value = tf.constant(1)
    with tf.name_scope(None, "default", [value]) as scope:
        found = [scope, tf.get_default_graph() is other]
    try:
        with tf.name_scope("a"):
            raise KeyError
    except KeyError:
        found.append(tf.constant(1).name)
    bad = (lambda: tf.name_scope("b d").__enter__(), lambda: tf.name_scope(5).__enter__())
    return [*found, *map(outcome, bad)]


@case
def graphs(tf: Any) -> Any:
    x = tf.constant(1)
    graph = tf.get_default_graph()
    with tf.Graph().as_default():
        y = tf.constant(1)
        found = [tf.identity(x).graph is graph, outcome(tf.stack, [x, y])]
    found += [full_outcome(tf.reset_default_graph), outcome(graph.as_graph_element, y)]
    graph.finalize()
    return [
        *(*found, graph.finalized, full_outcome(tf.constant, 1)),
        full_outcome(tf.add_to_collection, "c", 1),
    ]


@case
def looking_up(tf: Any) -> Any:
    x, graph = tf.placeholder(tf.float32, [2, None], name="x"), tf.get_default_graph()
    names = ("x:0", "x", b"x:0", x, "zz", "zz:0", "x:3", "x:0:0", 5, None)
    tensors, operations = ("x:0", "x", "q", 4), ("x", "x:0", 4)
    return [
        *(full_outcome(graph.as_graph_element, one) for one in names),
        *(full_outcome(graph.get_tensor_by_name, one) for one in tensors),
        *(full_outcome(graph.get_operation_by_name, one) for one in operations),
    ]


@case
def tensors(tf: Any) -> Any:
    x, y = tf.placeholder(tf.float32, [2, None], name="x"), tf.placeholder(tf.int32, name="y")
    z = tf.identity(x)
    shaped = tf.placeholder(tf.float32, [None, 3])
    shaped.set_shape([2, None])
    both = tf.unique(y)
    return [
        *(str(x), repr(x), str(y), repr(y), repr(x.op), x == x, x != y, {x: 1, y: 2}[x]),
        *(outcome(len, x), x.consumers() == [z.op]),
        *(
            z.op.inputs[0] is x,
            shaped,
            full_outcome(shaped.set_shape, [3, 3]),
            full_outcome(shaped.set_shape, [3]),
        ),
        *([one.name for one in both], [one.value_index for one in both], x.device),
    ]


@case
def operations(tf: Any) -> Any:
    first, one = tf.no_op(name="first"), tf.constant(1, name="one")
    with tf.control_dependencies([first]):
        made = tf.identity(one, name="made").op
    record = made.node_def
    return [
        *(made.type, made.name, made.control_inputs == [first], made.values(), made.outputs),
        *(record.name, record.op, list(record.input), outcome(made.get_attr, "q")),
    ]


@case
def order(tf: Any) -> Any:
    def controls(tensor: Any) -> list[str]:
        return [one.name for one in tensor.op.control_inputs]

    a, v = tf.no_op("a"), tf.Variable(1, name="v")
    with tf.control_dependencies([a, tf.constant(1, name="b"), v, "a"]):
        found = [controls(tf.constant(1))]
        with tf.control_dependencies([tf.no_op("c")]):
            found.append(controls(tf.constant(1)))
        with tf.control_dependencies(None):
            found.append(controls(tf.constant(1)))
        x = tf.constant(1)
        found.append(controls(tf.identity(x)))
    with tf.control_dependencies([x]):
        found.append(controls(tf.identity(x)))
    bad = (5, ["zz"])
    refused = [
        outcome(lambda given: tf.control_dependencies(given).__enter__(), one) for one in bad
    ]
    return [*found, *refused]


@case
def collections(tf: Any) -> Any:
    found = [tf.get_collection("c")]
    tf.add_to_collection("c", 1)
    tf.add_to_collections(["c", "d", "c"], 2)
    tf.get_collection("c").append(3)
    found += [tf.get_collection("c"), sorted(tf.get_default_graph().get_all_collection_keys())]
    tf.get_collection_ref("c").append(4)
    found.append(tf.get_collection("c"))
    tf.get_default_graph().clear_collection("c")
    found.append(tf.get_collection("c"))
    tf.add_to_collection("e", tf.no_op("ab/x"))
    tf.add_to_collection("e", tf.no_op("cb/x"))
    tf.add_to_collection("e", "no name")
    found.append([one.name for one in tf.get_collection("e", "a./")])
    keys = ("QUEUE_RUNNERS", "GLOBAL_VARIABLES", "LOCAL_VARIABLES", "TABLE_INITIALIZERS")
    return [*found, *(getattr(tf.GraphKeys, key) for key in keys)]


DTYPES: tuple[Any, ...] = (
    *("float32", "float", float, bool, np.int64, np.dtype("uint8")),
    *(np.dtype("S3"), np.dtype("U"), "half", 1, None, "zz", "M8[s]", 999, [], object()),
)


@case
def dtypes(tf: Any) -> Any:
    def about(one: Any) -> Any:
        return [
            *(repr(one), str(one), one.name, one.size, one.base_dtype.name, one.real_dtype.name),
            *(one.is_integer, one.is_floating, one.is_bool, one.is_complex, int(one)),
            *(one.as_numpy_dtype.__name__, one.as_datatype_enum, outcome(lambda: one.min)),
            *(outcome(lambda: one.max), one.is_compatible_with("float32")),
        ]

    known = (tf.float32, tf.int32, tf.complex64, tf.uint8, tf.int64, tf.half)
    return [
        *(outcome(lambda value: tf.as_dtype(value).name, one) for one in DTYPES),
        *(tf.float32 == one for one in ("float32", np.float32, float, "zz", None)),
        *(outcome(about, one) for one in known),
        (tf.uint8.limits, tf.float32.limits),
    ]


@case
def dimensions(tf: Any) -> Any:
    two, unknown = tf.Dimension(2), tf.Dimension(None)
    calls: list[Callable[[], Any]] = [
        *(lambda: two + 3, lambda: 3 + two, lambda: two * 3, lambda: 3 * two, lambda: 7 // two),
        *(lambda: two // 2, lambda: two - 1, lambda: 5 - two, lambda: 5 % two, lambda: two % 2),
        *(lambda: two + unknown, lambda: unknown == 3, lambda: two < 3, lambda: two <= 1),
        *(lambda: two != 2, lambda: two > 1, lambda: two >= 3, lambda: unknown != unknown),
        *(lambda: [0, 1, 2][two], lambda: int(two), lambda: two == "a", lambda: str(unknown)),
        *(lambda: tf.dimension_value(two), lambda: tf.dimension_at_index(tf.TensorShape([4]), 0)),
        lambda: bool(tf.Dimension(0)),
    ]
    return [
        *map(outcome, calls),
        *(full_outcome(two.merge_with, one) for one in (2, None, 3)),
        *(full_outcome(tf.Dimension, one) for one in (-1, "a")),
    ]


@case
def shapes(tf: Any) -> Any:
    shape, unknown = tf.TensorShape([2, None]), tf.TensorShape(None)
    calls: list[Callable[[], Any]] = [
        *(lambda: str(shape), lambda: str(unknown), lambda: repr(shape), lambda: repr(unknown)),
        *(lambda: str(tf.TensorShape([1])), lambda: [one.value for one in shape]),
        *(lambda: shape[0].value, lambda: shape[1:], lambda: len(shape), lambda: shape.ndims),
        *(
            lambda: shape.rank,
            lambda: shape.as_list(),
            lambda: tf.TensorShape([2, 3]).num_elements(),
        ),
        *(lambda: shape.num_elements(), lambda: bool(tf.TensorShape([])), lambda: bool(unknown)),
        *(lambda: tf.TensorShape([1]) == [1], lambda: shape == tf.TensorShape([2, None])),
        *(lambda: hash(tf.TensorShape([1])) == hash(tf.TensorShape([1])),),
        *(lambda: shape.merge_with([None, 3]), lambda: unknown.merge_with([1])),
        *(lambda: shape.concatenate([1]), lambda: shape[:1], lambda: shape[-1]),
        *(lambda: shape[0] + shape[1], lambda: unknown.with_rank(2)),
        *(lambda: shape.is_compatible_with([2, 5]), lambda: unknown[0], lambda: unknown[1:]),
        *(lambda: shape.merge_with([3, 3]), lambda: shape.with_rank(3), lambda: unknown.as_list()),
        *(lambda: tf.TensorShape([]).with_rank_at_least(1), lambda: len(unknown)),
        *(
            lambda: list(unknown),
            lambda: tf.TensorShape([2]).assert_is_compatible_with(tf.TensorShape([3])),
        ),
        *(lambda: shape.assert_is_fully_defined(), lambda: tf.TensorShape([-1])),
        *(lambda: tf.TensorShape(["a"]),),
    ]
    return [*map(full_outcome, calls)]


@case
def conversions(tf: Any) -> Any:
    x = tf.constant(1)
    packed = tf.convert_to_tensor([x, 2, tf.Variable(3).initial_value])
    text = tf.convert_to_tensor([tf.constant("a"), "b"])
    with tf.Session() as sess:
        return [
            *(tf.convert_to_tensor(x) is x, outcome(tf.convert_to_tensor, x, tf.int64)),
            *(packed, *sess.run([packed, text])),
            tf.convert_to_tensor(1, preferred_dtype=tf.float32),
            tf.convert_to_tensor("a", preferred_dtype=tf.float32),
        ]


@case
def seeds(tf: Any) -> Any:
    most = 2**31 - 1
    found = [tf.get_seed(one) for one in (None, 7, 0)]
    tf.set_random_seed(5)
    found += [tf.get_seed(None), tf.get_seed(3)]
    tf.set_random_seed(most)
    return [*found, tf.get_seed(most), tf.get_seed(-1)]


@case
def nests(tf: Any) -> Any:
    nest, structure = tf.nest, {"b": [1, (2, 3)], "a": 4}

    def added(*structures: Any) -> Any:
        return nest.map_structure(lambda one, two: one + two, *structures)

    return [
        *(nest.flatten(structure), nest.flatten("text")),
        *(outcome(nest.pack_sequence_as, structure, flat) for flat in ([40, 10, 20, 30], [1])),
        *(outcome(added, one, two) for one, two in (([1, (2,)], [10, (20,)]), ([1, 2], [1]))),
        outcome(lambda: nest.assert_same_structure([1], (1,), check_types=False)),
        *(
            outcome(nest.assert_same_structure, one, two)
            for one, two in (([1], (1,)), ({"a": 1}, {"b": 1}), ([1, [2]], [1, 2]), ([1], [2]))
        ),
    ]
