"""Order and choice: group, tuple, cond, case, while_loop, Assert, Print, py_func."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.ops.control import merge, switch
from tests.compat.steps import Step, blocked, refused, waiting
from tests.kit.worlds import spin_until


def noted(log: list[str], what: str, value: Any = 1) -> Any:
    """A tensor that notes that it was computed."""

    def note() -> Any:
        log.append(what)
        return value

    return tf.py_func(note, [], tf.as_dtype(type(value)))


class TestGrouping:
    def test_no_op(self, sess: Any) -> None:
        assert sess.run(tf.no_op()) is None
        assert tf.no_op("nn").name == "nn"

    def test_group_runs_all(self, sess: Any) -> None:
        log: list[str] = []
        made = tf.group(noted(log, "a"), [noted(log, "b").op, tf.Variable(1).initializer])
        assert made.name == "group_deps"
        sess.run(made)
        assert sorted(log) == ["a", "b"]
        assert tf.group(name="gg").name == "gg"

    def test_identity(self, sess: Any) -> None:
        x = tf.placeholder(tf.float32, [2, None])
        made = tf.identity(x, name="idn")
        assert (made.name, made.shape.as_list(), made.dtype) == ("idn:0", [2, None], tf.float32)
        assert sess.run(tf.identity([1, 2])).tolist() == [1, 2]

    def test_tuple_waits_for_all(self, sess: Any) -> None:
        log: list[str] = []
        a, _, none = tf.tuple([noted(log, "a", 1), noted(log, "b", 2), None])
        assert none is None
        assert a is not None
        assert a.name == "tuple/control_dependency:0"
        assert sess.run(a) == 1
        assert sorted(log) == ["a", "b"]


class TestCond:
    def test_runs_one_branch(self, sess: Any) -> None:
        log: list[str] = []
        p = tf.placeholder(tf.bool, [], name="p")
        y = tf.cond(p, lambda: noted(log, "true", 1), lambda: noted(log, "false", 2))
        assert (y.name, y.dtype) == ("cond/Merge:0", tf.int32)
        assert sess.run(y, {p: True}) == 1
        assert sess.run(y, {p: False}) == 2
        assert log == ["true", "false"]

    def test_what_is_outside_runs_in_any_case(self, sess: Any) -> None:
        log: list[str] = []
        x = noted(log, "outside", 3)
        p, v = tf.placeholder(tf.bool, []), tf.Variable(7)
        y = tf.cond(p, fn1=lambda: (x,), fn2=lambda: (v,))
        assert sess.run(tf.cond(p, lambda: [1], lambda: [3], strict=True), {p: True}) == [1]
        sess.run(v.initializer)
        assert [sess.run(y, {p: one}) for one in (False, True)] == [7, 3]
        assert sess.run(y, {p: True, x: 50}) == 50
        assert log == ["outside"] * 2

    def test_operations_give_a_bool(self, sess: Any) -> None:
        log: list[str] = []
        p = tf.placeholder(tf.bool, [])
        made = tf.cond(p, lambda: noted(log, "ran").op, tf.no_op)
        assert made.dtype is tf.bool
        assert sess.run(made, {p: False}) == np.False_
        assert log == []
        assert sess.run(made, {p: True}) == np.True_
        assert log == ["ran"]

    def test_nested(self, sess: Any) -> None:
        p, q = tf.placeholder(tf.bool, []), tf.placeholder(tf.bool, [])
        x = tf.constant(10)
        y = tf.cond(
            p,
            lambda: tf.cond(q, lambda: x + 1, lambda: x + 2),
            lambda: tf.cond(q, lambda: x + 3, lambda: x + 4),
        )
        found = [sess.run(y, {p: a, q: b}) for a in (True, False) for b in (True, False)]
        assert found == [11, 12, 13, 14]

    def test_order_within_and_around(self, sess: Any) -> None:
        log: list[str] = []
        outside = noted(log, "outside")

        def branch() -> Any:
            with tf.control_dependencies([outside]):
                first = noted(log, "inside")
            with tf.control_dependencies([first]):
                return noted(log, "after")

        with tf.control_dependencies([noted(log, "before")]):
            y = tf.cond(tf.constant(True), branch, lambda: tf.constant(1))
        sess.run(y)
        assert [one for one in log if one != "outside"] == ["before", "inside", "after"]
        assert log.index("outside") < log.index("inside")

    def test_assignments_are_lazy(self, sess: Any) -> None:
        v = tf.Variable(0)
        p = tf.placeholder(tf.bool, [])
        y = tf.cond(p, lambda: v.assign_add(1), lambda: v.read_value())
        sess.run(v.initializer)
        assert [sess.run(y, {p: one}) for one in (True, False, True)] == [1, 1, 2]

    def test_queues_in_a_branch(self, sess: Any) -> None:
        queue = tf.FIFOQueue(1, tf.int32, ())
        p = tf.placeholder(tf.bool, [])
        put = tf.cond(p, lambda: queue.enqueue(1), tf.no_op)
        sess.run(put, {p: False})
        assert sess.run(queue.size()) == 0
        sess.run(put, {p: True})
        assert sess.run(queue.size()) == 1
        step = blocked(sess, queue, put, {p: True})
        sess.run(queue.dequeue())
        step.result()
        step = blocked(sess, queue, put, {p: True})
        sess.close()
        refused(tf.errors.CancelledError, "Enqueue operation was cancelled", step.result)

    def test_branches_that_block_together(self, sess: Any) -> None:
        queue = tf.FIFOQueue(9, tf.int32, ())
        p = tf.constant(True)
        take = [tf.cond(p, queue.dequeue, lambda: tf.constant(0)) for _ in range(2)]
        step = Step(lambda: sess.run(take))
        spin_until(lambda: waiting(sess, queue) == 2)
        sess.run(queue.enqueue_many([[1, 2]]))
        assert sorted(step.result()) == [1, 2]
        assert sess.run([take[0], queue.enqueue(3)])[0] == 3

    def test_what_is_inside_stays_inside(self, sess: Any) -> None:
        inside: list[Any] = []

        def branch() -> Any:
            inside.append(tf.placeholder_with_default(3, [], name="inside"))
            return inside[0]

        tf.cond(tf.constant(True), branch, lambda: tf.constant(1))
        refused(ValueError, "'cond/inside' has been marked as not fetchable", sess.run, inside[0])
        refused(ValueError, "may not be fed", lambda: sess.run(tf.constant(1), {inside[0]: 1}))
        with pytest.raises(ValueError, match="'cond/inside' is part of another function body"):
            tf.cond(tf.constant(True), lambda: inside[0] + 1, lambda: tf.constant(1))

    def test_the_condition_must_be_a_scalar(self, sess: Any) -> None:
        p = tf.placeholder(tf.bool)
        y = tf.cond(p, lambda: 1, lambda: 2)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"must be a scalar.*\[2\]"):
            sess.run(y, {p: [True, False]})

    def test_several_sessions(self) -> None:
        v = tf.Variable(0)
        y = tf.cond(tf.constant(True), lambda: v.assign_add(1), lambda: tf.constant(0))
        with tf.Session() as one, tf.Session() as two:
            for sess in (one, two):
                sess.run(v.initializer)
            assert [one.run(y), one.run(y), two.run(y)] == [1, 2, 1]


Q: Any = tf  # what is called with what it refuses


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: Q.group(5), TypeError, r"'inputs' should be zero or more .* Received '5'"),
        (lambda p: tf.tuple([None]), ValueError, "at least one Tensor"),
        (lambda p: Q.cond(p, 1, 2), TypeError, "'true_fn' must be callable."),
        (lambda p: tf.cond(True, int, int), TypeError, "'pred' must not be a Python bool."),
        (lambda p: tf.cond(tf.constant(1), int, int), TypeError, "has type int32"),
        (lambda p: tf.cond(p, lambda: None, int), ValueError, "'true_fn' must have a return value"),
        (
            lambda p: tf.cond(p, lambda: 1, lambda: 2.0),
            ValueError,
            "Received int32 from 'true_fn' and float32 from 'false_fn'",
        ),
        (lambda p: tf.cond(p, lambda: 1, lambda: [2, 3]), ValueError, "same nested structure"),
        (lambda p: tf.cond(p, lambda: (1, 2), lambda: [2, 3]), TypeError, "sequence type"),
        (lambda p: tf.cond(p, lambda: {"a": 1}, lambda: {"b": 1}), ValueError, "same keys"),
        (lambda p: switch(1.0, 1), TypeError, "'pred' of 'Switch' Op has type int32"),
        (lambda p: merge([]), ValueError, "with length 0"),
        (lambda p: merge([p, None]), ValueError, "inputs is None"),
        (lambda p: merge([p, 1.0]), TypeError, r"\[bool, float32\] that don't all match"),
        (lambda p: tf.case([(p, 5)]), TypeError, r"expected \(predicate, function\)"),
        (lambda p: tf.case([]), ValueError, "no pairs"),
        (lambda p: Q.while_loop(1, int, [0]), TypeError, "'cond' must be callable"),
        (lambda p: tf.while_loop(bool, int, []), ValueError, "'loop_vars' must be provided"),
        (lambda p: tf.while_loop(lambda i: p, lambda i: 1.0, [0]), Exception, "float|1.0"),
        (lambda p: Q.map_fn(1, [1]), TypeError, "fn must be callable."),
        (lambda p: tf.map_fn(bool, []), ValueError, "elems: got none"),
        (
            lambda p: tf.map_fn(lambda n: (n, n), tf.zeros([1])),
            ValueError,
            "returned 2 tensors; expected 1",
        ),
        (lambda p: tf.Assert(1, []), TypeError, "Expected bool"),
        (lambda p: tf.print(p, output_stream="somewhere"), ValueError, "output_stream"),
        (lambda p: Q.py_func(5, [], tf.int32), TypeError, "func: got 5"),
    ],
)
def test_what_cannot_be(call: Any, error: type[Exception], message: str) -> None:
    refused(error, message, lambda: call(tf.placeholder(tf.bool, [])))


class TestSwitchAndMerge:
    def test_a_merge_has_the_side_that_is_alive(self, sess: Any) -> None:
        pred = tf.placeholder(tf.bool, [])
        off, on = switch(tf.constant([1.0, 2.0]), pred)
        merged = merge([off * 2, on * 3])
        assert merged.output.shape.as_list() == [2]
        value, index = sess.run(merged, {pred: True})
        assert (value.tolist(), index) == ([3.0, 6.0], 1)
        value, index = sess.run(merged, {pred: False})
        assert (value.tolist(), index) == ([2.0, 4.0], 0)

    def test_what_is_dead_does_not_run(self, sess: Any) -> None:
        ran: list[int] = []

        def noted(value: Any, case: int) -> Any:
            def note(one: Any) -> Any:
                ran.append(case)
                return one + np.float32(case)

            return tf.py_func(note, [value], tf.float32)

        case = tf.placeholder(tf.int32, [])
        sides = [switch(7.0, tf.equal(case, one))[1] for one in range(4)]
        merged = merge([noted(one, at) for at, one in enumerate(sides)])
        for one in (2, 0, 3):
            assert sess.run(merged.output, {case: one}) == 7 + one
        assert ran == [2, 0, 3]

    def test_what_has_no_switch_is_always_alive(self, sess: Any) -> None:
        off, on = switch(1, tf.constant(True))
        assert sess.run(merge([off, tf.constant(5), on])) == (5, 1)

    def test_switches_within_a_side(self, sess: Any) -> None:
        outer, inner = tf.placeholder(tf.bool, []), tf.placeholder(tf.bool, [])
        off, on = switch(10, outer)
        pair = switch(on, inner)
        within = merge([pair.output_false + 1, pair.output_true + 2]).output
        merged = merge([off, within]).output
        found = [sess.run(merged, {outer: a, inner: b}) for a in (0, 1) for b in (0, 1)]
        assert found == [10, 10, 11, 12]

    def test_a_side_may_wait(self, sess: Any) -> None:
        queue = tf.FIFOQueue(2, tf.int32, [()])
        off, on = switch(3, tf.constant(True))
        merged = merge([off, on + queue.dequeue()]).output
        sess.run(queue.enqueue(4))
        assert sess.run(merged) == 7

    def test_nothing_is_alive(self, sess: Any) -> None:
        off, _ = switch(3, tf.constant(True))
        for dead in (off, merge([off, off + 1]).output):
            refused(tf.errors.InvalidArgumentError, "does not have value", sess.run, dead)


class TestCase:
    def test_takes_the_first_true_one(self, sess: Any) -> None:
        x = tf.placeholder(tf.int32, [])
        y = tf.case([(x < 1, lambda: 10), (x < 2, lambda: 20)], default=lambda: 30)
        assert [sess.run(y, {x: one}) for one in (0, 1, 2)] == [10, 20, 30]

    def test_without_a_default_one_must_be_true(self, sess: Any) -> None:
        x = tf.placeholder(tf.int32, [])
        y = tf.case({x < 1: lambda: 10, x > 5: lambda: 20})
        assert [sess.run(y, {x: one}) for one in (0, 6)] == [10, 20]
        refused(tf.errors.InvalidArgumentError, "None of the conditions", sess.run, y, {x: 3})
        alone = tf.case([(x < 1, lambda: tf.constant(10))])
        assert sess.run(alone, {x: 0}) == 10
        refused(tf.errors.InvalidArgumentError, "None of the conditions", sess.run, alone, {x: 3})

    def test_exclusive(self, sess: Any) -> None:
        x = tf.placeholder(tf.int32, [])
        pairs = [(x < 1, lambda: 10), (x < 2, lambda: 20)]
        y = tf.case(pairs, default=lambda: 30, exclusive=True)
        assert sess.run(y, {x: 1}) == 20
        refused(tf.errors.InvalidArgumentError, "More than one condition", sess.run, y, {x: 0})


class TestWhileLoop:
    def test_counts(self, sess: Any) -> None:
        made = tf.while_loop(lambda i, j: i < 3, lambda i, j: (i + 1, j * 2), [0, 1])
        assert made[0].name == "while/Exit:0"
        assert sess.run(made) == (3, 8)
        assert sess.run(tf.while_loop(lambda i: i < 3, lambda i: i + 1, [0])) == 3

    def test_may_not_run_at_all(self, sess: Any) -> None:
        log: list[str] = []
        y = tf.while_loop(lambda i: i < 0, lambda i: tf.reshape(noted(log, "body"), []), [5])
        assert sess.run(y) == 5
        assert log == []

    def test_uses_what_is_outside(self, sess: Any) -> None:
        n, by = tf.placeholder(tf.int32, []), tf.constant(3)
        y = tf.while_loop(lambda i: i < n, lambda i: i + by, [0])
        assert [sess.run(y, {n: one}) for one in (1, 7)] == [3, 9]

    def test_structures_and_limits(self, sess: Any) -> None:
        made = tf.while_loop(
            lambda a, b: tf.constant(True),
            lambda a, b: (a + 1, {"x": b["x"] * 2}),
            (0, {"x": 1.0}),
            maximum_iterations=4,
        )
        assert sess.run(made) == (4, {"x": 16.0})
        same = tf.while_loop(lambda i: i < 3, lambda i: [i + 1], [0], return_same_structure=True)
        assert sess.run(same) == [3]

    def test_within_each_other(self, sess: Any) -> None:
        def outer(i: Any, total: Any) -> Any:
            inner = tf.while_loop(lambda j, t: j < i, lambda j, t: (j + 1, t + j), [0, total])
            return i + 1, inner[1]

        assert sess.run(tf.while_loop(lambda i, t: i < 4, outer, [0, 0]))[1] == 0 + 0 + 1 + 3

    def test_drains_a_queue(self, sess: Any) -> None:
        queue = tf.FIFOQueue(9, tf.int32, ())
        sess.run(queue.enqueue_many([[1, 2, 3, 4]]))
        total = tf.while_loop(
            lambda t: queue.size() > 1, lambda t: t + queue.dequeue(), [tf.constant(0)]
        )
        assert sess.run(total) == 6
        assert sess.run(queue.size()) == 1

    def test_shapes_hold_in_every_iteration(self, sess: Any) -> None:
        def grow(x: Any) -> Any:
            return tf.concat([x, x], 0)

        def small(x: Any) -> Any:
            return tf.size(x) < 5

        with pytest.raises(ValueError, match="not an invariant for the loop"):
            tf.while_loop(small, grow, [tf.zeros([1])])
        y = tf.while_loop(small, grow, [tf.zeros([1])], shape_invariants=[tf.TensorShape([None])])
        assert y.shape.as_list() == [None]
        assert sess.run(y).shape == (8,)

    def test_closing_the_session_ends_it(self) -> None:
        started = threading.Event()

        def spin(i: Any) -> Any:
            with tf.control_dependencies([tf.py_func(started.set, [], [])]):
                return tf.identity(i)

        y = tf.while_loop(lambda i: tf.constant(True), spin, [0])
        sess = tf.Session()
        step = Step(lambda: sess.run(y))
        assert started.wait(30)
        sess.close()
        refused(tf.errors.CancelledError, "Run call was cancelled", step.result)


class TestRows:
    """A function of each row, and of what has been accumulated."""

    def test_each_row(self, sess: Any) -> None:
        x, by = tf.constant([[1, 2], [3, 4], [5, 6]]), tf.placeholder_with_default(10, [])
        squares = tf.map_fn(lambda row: row * row + by, x)
        assert squares.shape.as_list() == [3, 2]
        assert sess.run(squares).tolist() == [[11, 14], [19, 26], [35, 46]]
        rows = {"a": x, "b": tf.constant(["p", "q", "r"])}
        kinds = {"sum": tf.int32, "b": tf.string}
        both = tf.map_fn(
            lambda r: {"sum": tf.reduce_sum(r["a"]), "b": r["b"]}, rows, kinds, infer_shape=False
        )
        assert both["sum"].shape.ndims is None
        found = sess.run(both)
        assert (found["sum"].tolist(), found["b"].tolist()) == ([3, 7, 11], [b"p", b"q", b"r"])
        assert sess.run(tf.map_fn(lambda one: one, tf.zeros([0, 2]))).shape == (0, 2)

    def test_accumulated(self, sess: Any) -> None:
        x = tf.constant([1, 2, 3])
        made = [
            tf.foldl(lambda a, n: a * 10 + n, x),
            tf.scan(lambda a, n: a + n, x),
            tf.scan(lambda a, n: a + n, x, 10, reverse=True),
        ]
        assert [np.asarray(one).tolist() for one in sess.run(made)] == [
            *(123, [1, 3, 6], [16, 15, 13])
        ]
        pair = tf.foldl(lambda a, n: (a[0] + n, a[1] * n), x, (0, 1))
        assert sess.run(pair) == (6, 6)

    def test_rows_that_do_not_fit(self, sess: Any) -> None:
        x, some = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [None])
        for made, fed, message in (
            (
                tf.map_fn(lambda r: r[0] + r[1], (x, some), tf.int32),
                {x: [1], some: []},
                "in length",
            ),
            (tf.map_fn(lambda n: tf.zeros([n]), x, tf.float32), {x: [1, 2]}, "differ in shape"),
            (tf.foldl(lambda a, n: a + n, x), {x: []}, "got no rows"),
        ):
            refused(tf.errors.InvalidArgumentError, message, sess.run, made, fed)


class TestAssert:
    def test_shows_the_data(self, sess: Any) -> None:
        p = tf.placeholder_with_default(False, [])
        made = tf.Assert(p, ["hello", [1, 2, 3, 4], 1.5, True, [[1, 2], [3, 4]]], summarize=4)
        assert made.name == "Assert/Assert"
        assert sess.run(made, {p: True}) is None
        message = r"^assertion failed: \[hello\] \[1 2 3 4\] \[1.5\] \[1\] \[\[1 2\]\[3 4\]\]\n"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message) as caught:
            sess.run(made)
        assert caught.value.op is made

    def test_a_few_elements(self, sess: Any) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"failed: \[1 2 3\.\.\.\]\n"):
            sess.run(tf.Assert(tf.constant([True, False]), [[1, 2, 3, 4]]))


class TestPrinting:
    def test_print_passes_the_value_on(self, sess: Any, capsys: Any) -> None:
        x = tf.Print(tf.constant(5), [[1, 2, 3, 4], "a"], "got ", first_n=2)
        assert [sess.run(x) for _ in range(3)] == [5, 5, 5]
        assert capsys.readouterr().err == "got [1 2 3...][a]\n" * 2
        with tf.Session() as other:
            other.run(x)
        assert capsys.readouterr().err == "got [1 2 3...][a]\n"

    def test_new_print(self, sess: Any, capsys: Any, tmp_path: Path) -> None:
        x = tf.constant([1, 2])
        sess.run(tf.print("x =", x, {"b": [x, 3]}, (x,), end="!\n"))
        assert capsys.readouterr().err == "x = [1 2] {'b': [[1 2], 3]} ([1 2],)!\n"
        sess.run(tf.print(tf.range(8), tf.constant("é"), tf.zeros([2, 1]), sep="|", summarize=2))
        assert capsys.readouterr().err == "[0 1 ... 6 7]|é|[[0]\n [0]]\n"
        sess.run(tf.print(tf.range(8), summarize=-1))
        assert capsys.readouterr().err == "[0 1 2 3 4 5 6 7]\n"
        stream = io.StringIO()
        sess.run(tf.print(x, output_stream=stream))
        assert stream.getvalue() == "[1 2]\n"
        path = tmp_path / "out"
        for _ in range(2):
            sess.run(tf.print(x, output_stream=f"file://{path}"))
        assert path.read_text() == "[1 2]\n[1 2]\n"


class TestPyFunc:
    def test_gets_what_a_user_sees(self, sess: Any) -> None:
        seen: list[Any] = []
        fetch = tf.py_func(
            lambda *values: seen.extend(values), [1, "é", [1.0, 2.0], ["a"]], [], name="look"
        )
        assert (fetch.name, fetch.type) == ("look", "PyFunc")
        sess.run(fetch)
        assert (type(seen[0]), seen[1]) == (np.int32, "é".encode())
        assert seen[2].dtype == np.float32
        assert seen[3].tolist() == [b"a"]

    def test_results(self, sess: Any) -> None:
        one = tf.py_func(lambda: np.array([1, 2], np.int32), [], tf.int32)
        assert one.shape.ndims is None
        assert sess.run(one).tolist() == [1, 2]
        several = tf.py_func(lambda: ("é", np.float32(2)), [], [tf.string, tf.float32])
        assert [one.name for one in several] == ["PyFunc_1:0", "PyFunc_1:1"]
        assert sess.run(several) == ["é".encode(), 2.0]
        listed = tf.py_func(lambda: np.int32(1), [], [tf.int32])
        assert sess.run(listed) == [1]
        python = tf.numpy_function(lambda: (1, 2.5, [1, 2]), [], [tf.int64, tf.float32, tf.int32])
        assert [np.asarray(one).tolist() for one in sess.run(python)] == [1, 2.5, [1, 2]]

    def test_arrays_are_the_functions_own(self, sess: Any) -> None:
        c = tf.constant([1, 2])

        def change(array: Any) -> Any:
            array[:] = 9
            return array

        assert sess.run(tf.py_func(change, [c], tf.int32)).tolist() == [9, 9]
        assert sess.run(c).tolist() == [1, 2]

    def test_the_function_may_keep_what_it_returns(self, sess: Any) -> None:
        kept = np.array([1, 2], np.int32)
        fetch = tf.py_func(lambda: kept, [], tf.int32)
        got = sess.run(fetch)
        kept[:] = 9
        assert got.tolist() == [1, 2]

    @pytest.mark.parametrize(
        ("result", "promised", "message"),
        [
            (np.float64(1), tf.int32, r"0-th value returned by pyfunc_\d+ is double, but expects"),
            (np.zeros(2), tf.float32, r"is double, but expects float\n"),
            ((1, 2), tf.int32, r"pyfunc_\d+ returns 2 values, but expects to see 1 values"),
            (1, [tf.int32, tf.int32], "returns 1 values, but expects to see 2 values"),
            (None, tf.int32, "returns 0 values, but expects to see 1 values"),
            (1.5, tf.int32, "Expected int32, but got 1.5 of type 'float'"),
        ],
    )
    def test_results_must_be_as_promised(
        self, sess: Any, result: Any, promised: Any, message: str
    ) -> None:
        fetch = tf.py_func(lambda: result, [], promised)
        refused(tf.errors.InvalidArgumentError, message, sess.run, fetch)

    def test_runs_in_the_callers_thread(self, sess: Any) -> None:
        fetch = tf.py_func(threading.get_ident, [], tf.int64)
        assert sess.run(fetch) == threading.get_ident()
