"""Variables: initialising, reading, changing, counting, finding again by name."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import refused

UNINITIALIZED = "Attempting to use uninitialized value v\n"


class TestWhatARunFetches:
    """A fetched variable is what it is at the end of the run, as is what TensorFlow keeps in its
    memory. What computes without depending on a change has the value from before it.

    TensorFlow gives these values on 60 of 60 runs.
    """

    def fetched(self, sess: Any, queue: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """What can be fetched of a training step, each with its value in the first run; apart what
        races with "again", a second change.
        """
        step, w = tf.Variable(0, trainable=False), tf.Variable([1.0, 2.0])
        x = tf.py_func(lambda: np.float32(1), [], tf.float32) if queue is None else queue.dequeue()
        loss = tf.reduce_sum(w) * x
        rate = 0.1 * tf.pow(0.5, tf.floor(tf.cast(step, tf.float32)))
        update = tf.assign_sub(w, tf.ones_like(w) * loss * rate)
        with tf.control_dependencies([update]):
            train = tf.assign_add(step, 1)
        with tf.control_dependencies([train]):
            after = [step * 10, tf.identity(step), w * 2, w.read_value(), tf.reshape(w, [1, 2])]
            again = tf.assign_add(step, 100)
        sess.run(tf.global_variables_initializer())
        if queue is not None:
            sess.run(queue.enqueue_many([np.ones(9, np.float32)]))
        new = np.array([0.7, 1.7])
        once = {
            "train": (train.op, None), "loss": (loss, 3), "rate": (rate, 0.1),
            "old": (step * 10, 0), "w": (w, new), "shaped": (tf.expand_dims(w, 0), [new]),
            "squeezed": (tf.squeeze(tf.reshape(w, [1, 2, 1])), new), "old w": (w * 2, [2, 4]),
            "update": (update, new), "doubled update": (update * 2, 2 * new),
            "c": (after[2], 2 * new), "d": (after[3], new), "e": (after[4], [new]),
            "again": (again, 101),
        }  # fmt: skip
        before_again = {
            "step": (step, 1), "read": (step.read_value(), 1), "value": (step.value(), 1),
            "identity": (tf.identity(tf.identity(step)), 1),
            "kept gradient": (tf.stop_gradient(step), 1), "changed": (train, 1),
            "a": (after[0], 10), "b": (after[1], 1),
        }  # fmt: skip
        return once, before_again

    @pytest.mark.parametrize("is_beside_a_queue", [False, True])
    def test_in_any_order(self, sess: Any, is_beside_a_queue: bool) -> None:
        draw = random.Random(46)
        queue = tf.FIFOQueue(99, tf.float32, [[]]) if is_beside_a_queue else None
        once, before_again = self.fetched(sess, queue)
        values = once | before_again
        for _ in range(40):
            sess.run(tf.global_variables_initializer())
            if queue is not None:
                sess.run(queue.enqueue(1.0))
            names = ["train", *draw.sample([*values], draw.randint(1, len(values)))]
            if "again" in names:
                names = [one for one in names if one not in before_again]
            found = sess.run([values[name][0] for name in names])
            for name, value in zip(names, found, strict=True):
                if value is not None:
                    np.testing.assert_allclose(value, values[name][1], rtol=1e-6, err_msg=name)

    def test_of_two_changes_the_last_one_is_fetched(self, sess: Any) -> None:
        v = tf.Variable(0)
        one = v.assign_add(1)
        with tf.control_dependencies([one]):
            ten = v.assign_add(10)
        with tf.control_dependencies([ten]):
            beyond = one * 2
        sess.run(v.initializer)
        assert sess.run([one, ten, v, beyond]) == [11, 11, 11, 22]
        assert sess.run(one) == 12

    def test_what_waits_sees_what_was_changed_meanwhile(self, sess: Any) -> None:
        """One run fills the queue that it takes from: the others do not wait for that."""
        queue = tf.FIFOQueue(1, tf.float32, [[]])
        g = tf.Variable(1.0)
        with tf.control_dependencies([tf.py_func(lambda: np.float32(1), [], tf.float32)]):
            put = queue.enqueue(0.5)
        used = g * queue.dequeue()
        change = g.assign_add(2.0)
        sess.run(g.initializer)
        assert sess.run([used, g, change, put]) == [1.5, 3, 3, None]

    def test_a_variable_that_is_only_fetched_may_be_initialized_in_the_same_run(
        self, sess: Any
    ) -> None:
        v = tf.Variable(5, name="v")
        assert sess.run([v, v.initializer]) == [5, None]


class TestReadingBehindAChange:
    """An operation that runs after a change finds the new value, however it reads the variable."""

    @pytest.mark.parametrize(
        "read",
        [
            lambda v: v * 1.0,
            lambda v: tf.add(v, 0.0),
            lambda v: tf.reduce_sum(v),
            lambda v: v.value() * 1.0,
            lambda v: tf.identity(v),
            lambda v: v.read_value(),
        ],
    )
    @pytest.mark.parametrize(
        "change",
        [lambda v: v.assign_add(1.0), lambda v: tf.assign(v, 5.0), lambda v: v.assign_sub(2.0)],
    )
    def test_what_is_read(self, sess: Any, read: Any, change: Any) -> None:
        v = tf.Variable(0.0)
        changed = change(v)
        with tf.control_dependencies([changed]):
            found = read(v)
        for _ in range(2):
            sess.run(tf.global_variables_initializer())
            assert sess.run(found) == sess.run(v)
            assert sess.run(v) != 0

    def test_what_does_not_depend_on_it_is_as_it_was(self, sess: Any) -> None:
        v, w = tf.Variable(1.0), tf.Variable(10.0)
        with tf.control_dependencies([w.assign_add(1.0)]):
            both = v * w
        sess.run(tf.global_variables_initializer())
        assert sess.run([both, v * 1.0]) == [11.0, 1.0]

    def test_a_value_that_is_fed_stays(self, sess: Any) -> None:
        v = tf.Variable(1.0)
        with tf.control_dependencies([v.assign_add(1.0)]):
            found = v * 3.0
        sess.run(tf.global_variables_initializer())
        assert sess.run(found, {v.value(): 7.0}) == 21.0
        assert sess.run(v) == 2.0

    def test_further_changes(self, sess: Any) -> None:
        v = tf.Variable(1.0)
        with tf.control_dependencies([v.assign_add(1.0)]):
            again = v.assign(v * 10.0)
        with tf.control_dependencies([again]):
            found = [v + 0.5, tf.stack([v, again])]
        sess.run(tf.global_variables_initializer())
        assert [one.tolist() for one in sess.run(found)] == [20.5, [20.0, 20.0]]


class TestMaking:
    def test_names_are_made_unique(self) -> None:
        made = [tf.Variable(1) for _ in range(2)]
        assert [one.op.name for one in made] == ["Variable", "Variable_1"]
        assert (made[0].graph, made[0].device) == (tf.get_default_graph(), "")

    def test_initial_values(self, sess: Any) -> None:
        from_function = tf.Variable(lambda: [1.0, 2.0], name="f")
        cast = tf.Variable(np.float64(1.7), dtype=tf.int32)
        text = tf.Variable("a")
        tensor = tf.Variable(tf.constant(3) + 1)
        sess.run(tf.global_variables_initializer())
        assert sess.run(from_function).tolist() == [1.0, 2.0]
        assert from_function.initial_value.name == "f/Initializer/initial_value:0"
        assert sess.run([cast, text, tensor]) == [1, b"a", 4]

    def test_collections(self) -> None:
        trained, fixed = tf.Variable(1), tf.Variable(1, trainable=False)
        local = tf.Variable(1, trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES])
        assert tf.global_variables() == tf.all_variables() == [trained, fixed]
        assert tf.trainable_variables() == [trained]
        assert tf.local_variables() == [local]
        assert (trained.trainable, fixed.trainable) == (True, False)
        assert tf.model_variables() == tf.moving_average_variables() == []

    def test_in_a_branch_they_belong_to_the_outside(self, sess: Any) -> None:
        made: list[Any] = []

        def build() -> Any:
            made.append(tf.Variable(3))
            return made[0] + 1

        y = tf.cond(tf.constant(True), build, lambda: tf.constant(0))
        sess.run(made[0].initializer)
        assert sess.run([y, made[0]]) == [4, 3]


class TestInitialising:
    def test_is_needed_first(self, sess: Any) -> None:
        v = tf.Variable(1, name="v")
        unread = (v, v.value(), v + 1, v.read_value(), v.assign_add(1), v.count_up_to(3))
        for fetch in (*unread, tf.reshape(v, [1]), [v, tf.constant(1)]):
            refused(tf.errors.FailedPreconditionError, UNINITIALIZED, sess.run, fetch)
        sess.run(v.initializer)
        assert sess.run(v) == 1

    def test_is_not_needed_by_an_assignment(self, sess: Any) -> None:
        v = tf.Variable(1)
        assert sess.run(v.assign(5)) == 5
        assert sess.run(v) == 5

    def test_names_of_the_operations(self) -> None:
        v = tf.Variable(1)
        assert tf.global_variables_initializer().name == "init"
        assert tf.local_variables_initializer().name == "init_1"
        assert tf.variables_initializer([v], name="mine").name == "mine"
        assert tf.tables_initializer().name == "init_all_tables"
        assert tf.initialize_all_variables().name == "init_2"

    def test_from_another_variable(self, sess: Any) -> None:
        v = tf.Variable(3)
        w = tf.Variable(v.initialized_value() * 2)
        sess.run(w.initializer)
        assert sess.run(w) == 6
        sess.run([v.assign(10)])
        sess.run(w.initializer)
        assert sess.run(w) == 20

    def test_initializers_are_free_of_control_dependencies(self, sess: Any) -> None:
        with tf.control_dependencies([tf.Assert(False, ["no"])]):
            v = tf.Variable(1)
            init = tf.global_variables_initializer()
        sess.run(init)
        assert sess.run(v) == 1

    def test_load(self, sess: Any) -> None:
        v = tf.Variable([1, 2])
        v.load([7, 8])
        assert v.eval().tolist() == [7, 8]
        with tf.Session() as other:
            v.load([3, 4], other)
            assert v.eval(other).tolist() == [3, 4]
        assert v.eval().tolist() == [7, 8]
        refused(ValueError, "Cannot feed value of shape", v.load, [1])


class TestChanging:
    def test_of_what_an_assignment_gives(self, sess: Any) -> None:
        v = tf.Variable(1)
        assert sess.run(tf.assign_add(v.assign(5), 1)) == 6
        assert sess.run(tf.assign_sub(v, 2)) == 4
        assert v.assign(1, read_value=False).type == "Assign"

    def test_another_shape_if_it_is_not_validated(self, sess: Any) -> None:
        v = tf.Variable([1, 2])
        wider = tf.assign(v, [1, 2, 3], validate_shape=False)
        assert wider.shape.as_list() == [3]
        assert sess.run(wider).tolist() == [1, 2, 3]

    def test_values_are_copies(self, sess: Any) -> None:
        v = tf.Variable([0, 0])
        x = tf.placeholder(tf.int32, [2])
        mine = np.array([1, 2], np.int32)
        sess.run(v.assign(x), {x: mine})[:] = 9
        mine[:] = 9
        assert sess.run(v).tolist() == [1, 2]
        sess.run(v)[:] = 9
        assert sess.run(v).tolist() == [1, 2]

    def test_integers_wrap_around(self, sess: Any) -> None:
        v = tf.Variable(np.int8(127))
        sess.run(v.initializer)
        assert sess.run(v.assign_add(np.int8(1))) == -128

    def test_as_a_tensor(self, sess: Any) -> None:
        v = tf.Variable([1.0, 2.0])
        sess.run(v.initializer)
        assert sess.run(v * 2 + v[0]).tolist() == [3.0, 5.0]
        assert sess.run(np.sqrt(v * v)).tolist() == [1.0, 2.0]
        assert sess.run(tf.reduce_sum(v)) == 3.0
        v.set_shape([2])

    def test_are_compared_as_objects(self) -> None:
        v, w = tf.Variable(1), tf.Variable(1)
        assert v == v
        assert v != w
        assert {v: 1, w: 2}[w] == 2


class TestCountUpTo:
    def test_returns_the_value_before(self, sess: Any) -> None:
        v = tf.Variable(0, name="v")
        count = v.count_up_to(2)
        assert (count.op.type, count.name) == ("CountUpTo", "CountUpTo:0")
        sess.run(v.initializer)
        assert [sess.run(count), sess.run(count)] == [0, 1]
        for _ in range(2):
            with pytest.raises(tf.errors.OutOfRangeError, match=r"^Reached limit of 2\n") as caught:
                sess.run(count)
            assert caught.value.op is count.op
        assert sess.run(v) == 2

    def test_int64(self, sess: Any) -> None:
        v = tf.Variable(np.int64(0))
        sess.run(v.initializer)
        assert type(sess.run(tf.count_up_to(v, 3))) is np.int64


@pytest.mark.parametrize("change", [lambda v: v.assign_add(1), lambda v: v.count_up_to(401)])
def test_changes_in_several_threads_are_all_different(sess: Any, change: Any) -> None:
    v = tf.Variable(1)
    changed = change(v)
    sess.run(v.initializer)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: int(sess.run(changed)), range(400)))
    first = min(found)
    assert sorted(found) == list(range(first, first + 400))
    assert sess.run(v) == 401


class TestVariableScopes:
    def test_reuse(self) -> None:
        with tf.variable_scope("s"):
            w = tf.get_variable("w", [2, 3])
            with pytest.raises(ValueError, match="Variable s/w already exists, disallowed"):
                tf.get_variable("w", [2, 3])
        with tf.variable_scope("s", reuse=True):
            assert tf.get_variable("w", [2, 3]) is w
            assert tf.constant(1).name == "s_1/Const:0"
            refused(ValueError, "Variable s/q does not exist", tf.get_variable, "q", [1])
            with pytest.raises(
                ValueError, match=r"specified shape \(3,\) and found shape \(2, 3\)"
            ):
                tf.get_variable("w", [3])
            with pytest.raises(ValueError, match="specified dtype int32 and found dtype float32"):
                tf.get_variable("w", [2, 3], tf.int32)
        with tf.variable_scope("s", reuse=tf.AUTO_REUSE):
            assert tf.get_variable("w", [2, 3]) is w
            assert tf.get_variable("q", initializer=tf.constant(3)).name == "s/q:0"

    def test_reuse_from_now_on_and_inherited(self) -> None:
        with tf.variable_scope("s") as scope:
            w = tf.get_variable("w", [])
            scope.reuse_variables()
            assert tf.get_variable("w", []) is w
        with tf.variable_scope(scope, reuse=True), tf.variable_scope("inner") as inner:
            assert inner.reuse is True

    def test_default_names_are_made_unique(self) -> None:
        found = []
        for _ in range(2):
            with tf.variable_scope(None, "d"):
                found.append(tf.get_variable("i", []).name)
        assert found == ["d/i:0", "d_1/i:0"]

    def test_initial_values(self, sess: Any) -> None:
        made = [
            tf.get_variable("zeros", [2], initializer=tf.zeros_initializer()),
            tf.get_variable("class", [2], initializer=tf.ones_initializer),
            tf.get_variable("int", [2], tf.int32),
            tf.get_variable("text", [1], tf.string),
            tf.get_variable("constant", [2], initializer=tf.constant_initializer([3, 4])),
            tf.get_variable("value", initializer=[5.0]),
            tf.get_variable("function", initializer=lambda: tf.constant([6])),
            tf.get_variable("given", [2], initializer=lambda shape, dtype: tf.ones(shape, dtype)),
        ]
        sess.run(tf.global_variables_initializer())
        assert [sess.run(one).tolist() for one in made] == [
            *([0, 0], [1, 1], [0, 0], [b""], [3, 4], [5], [6], [1, 1])
        ]

    def test_default_is_glorots(self, sess: Any) -> None:
        w = tf.get_variable("w", [30, 20])
        sess.run(w.initializer)
        values = sess.run(w)
        limit = np.sqrt(6 / 50)
        assert np.abs(values).max() <= limit
        assert np.abs(values).max() > limit * 0.9
        with tf.variable_scope("s", initializer=tf.ones_initializer()):
            v = tf.get_variable("v", [2])
        sess.run(v.initializer)
        assert sess.run(v).tolist() == [1, 1]

    def test_local_variables(self) -> None:
        v = tf.get_local_variable("v", [])
        assert tf.local_variables() == [v]
        assert tf.global_variables() == tf.trainable_variables() == []

    def test_each_graph_has_its_own(self) -> None:
        tf.get_variable("w", [])
        with tf.Graph().as_default():
            assert tf.get_variable("w", []).name == "w:0"


class TestGlobalStep:
    def test_is_made_once(self, sess: Any) -> None:
        assert tf.train.get_global_step() is None
        step = tf.train.get_or_create_global_step()
        assert tf.train.get_or_create_global_step() is step
        refused(ValueError, "already exists", tf.train.create_global_step)
        sess.run(step.initializer)
        sess.run(tf.assign_add(step, 1))
        assert tf.train.global_step(sess, step) == 1

    def test_has_an_old_place(self) -> None:
        step = tf.contrib.framework.get_or_create_global_step()
        assert tf.train.get_global_step() is step

    def test_is_found_by_name(self) -> None:
        v = tf.Variable(0, name="global_step")
        assert tf.train.get_global_step() is v


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda v: tf.Variable(), ValueError, "initial_value must be specified"),
        (
            lambda v: tf.Variable(tf.placeholder(tf.int32)),
            ValueError,
            "must have a shape specified",
        ),
        (lambda v: tf.Variable(1, collections="local"), ValueError, "collections argument"),
        (
            lambda v: v.assign([1, 2, 3]),
            ValueError,
            r"Dimension 0 in both shapes must be equal, but are 2 and 3. Shapes are \[2\] and",
        ),
        (lambda v: v.assign_add(1), ValueError, "Shapes must be equal rank"),
        (
            lambda v: v.assign(1.5),
            TypeError,
            "Expected int32 passed to parameter 'value' of op 'Assign', got 1.5 of type 'float'",
        ),
        (
            lambda v: v.assign(tf.constant([1, 2], tf.int64)),
            TypeError,
            "Input 'value' of 'Assign' Op has type int64 that does not match type int32 of",
        ),
        (lambda v: tf.assign(tf.constant(1), 2), TypeError, r"expected a tf\.Variable"),
        (lambda v: tf.convert_to_tensor(v, tf.int64), ValueError, "Incompatible type conversion"),
        (bool, TypeError, "as a Python `bool` is not allowed"),
        (list, TypeError, "not iterable"),
        (lambda v: v.set_shape([3]), ValueError, "must be equal"),
        (lambda v: v.count_up_to(3), ValueError, "Shape must be rank 0 but is rank 1"),
        (lambda v: tf.Variable(1.0).count_up_to(3), TypeError, "has DataType float32 not in list"),
        (lambda v: tf.get_variable("a"), ValueError, "its `shape` argument must be specified"),
        (lambda v: tf.get_variable("a", [None]), ValueError, "must be fully defined"),
        (
            lambda v: tf.get_variable("a", [1], initializer=tf.constant(1.0)),
            ValueError,
            "do not specify shape",
        ),
        (lambda v: tf.variable_scope(5), TypeError, "name_or_scope"),
        (lambda v: tf.variable_scope(None), TypeError, "name_or_scope is required"),
        (lambda v: tf.train.assert_global_step(tf.Variable(0.0)), TypeError, "integer type"),
        (tf.train.assert_global_step, TypeError, "not scalar"),
        (lambda v: tf.train.assert_global_step(5), TypeError, "Variable or Tensor"),
    ],
)
def test_what_cannot_be(call: Any, error: type[Exception], message: str) -> None:
    refused(error, message, lambda: call(tf.Variable([1, 2])))
