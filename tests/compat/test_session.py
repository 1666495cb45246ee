"""Sessions: fetches and feeds, one step's order and concurrency, timeouts, closing, threads."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import OrderedDict, defaultdict, namedtuple
from functools import partial
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.session.fetches import register_session_run_conversion_functions
from aioqueue.compat.v1.session.state import ResourceContainer
from tests.compat.steps import Step, blocked, refused, waiting
from tests.kit.worlds import spin_until

Pair = namedtuple("Pair", ["first", "second"])  # as scripts have them


def counter() -> tuple[Any, Any]:
    """A tensor that counts how often it is computed, and the list of its values."""
    calls: list[int] = []

    def count() -> np.int32:
        calls.append(len(calls) + 1)
        return np.int32(calls[-1])

    return tf.py_func(count, [], tf.int32), calls


class TestFetches:
    def test_kinds_of_containers_are_kept(self, sess: Any) -> None:
        x = tf.constant(1)
        assert sess.run((x,)) == (1,)
        assert sess.run([x]) == [1]
        assert type(sess.run(Pair(x, x))) is Pair
        assert type(sess.run((x, x))) is tuple
        assert type(sess.run([x, x])) is list
        assert type(sess.run(OrderedDict(a=x))) is OrderedDict
        with_default: Any = defaultdict(int)
        with_default["a"] = x
        made = sess.run(with_default)
        assert made == {"a": 1}
        assert made["b"] == 0
        # Equal keys of a cache would mix these up.
        assert type(sess.run(Pair(x, x))) is Pair
        assert type(sess.run((Pair(x, x), x))[0]) is Pair
        assert type(sess.run(((x, x), x))[0]) is tuple

    @pytest.mark.parametrize(
        ("fetch", "error", "message"),
        [
            (None, TypeError, 'Argument `fetch` = None has invalid type "NoneType". Cannot be'),
            ([None], TypeError, 'Argument `fetch` = None has invalid type "NoneType". Cannot be'),
            (
                5,
                TypeError,
                'Argument `fetch` = 5 has invalid type "int" must be a string or Tensor. (Can not '
                "convert a int into a Tensor or Operation.)",
            ),
            (
                "zz",
                ValueError,
                "Argument `fetch` = zz cannot be interpreted as a Tensor. (\"The name 'zz' refers "
                'to an Operation not in the graph.")',
            ),
            (b"zz", ValueError, "Argument `fetch` = zz cannot be interpreted as a Tensor."),
            ("zz:0", ValueError, "Argument `fetch` = zz:0 cannot be interpreted as a Tensor."),
        ],
    )
    def test_what_cannot_be_fetched(
        self, sess: Any, fetch: Any, error: type[Exception], message: str
    ) -> None:
        tf.constant(1)
        with pytest.raises(error) as caught:
            sess.run(fetch)
        assert str(caught.value).startswith(message)

    def test_tensors_of_another_graph(self, sess: Any) -> None:
        tf.constant(1)
        with tf.Graph().as_default():
            y = tf.constant(1)
        refused(ValueError, "is not an element of this graph", sess.run, y)

    def test_an_empty_graph(self) -> None:
        with (
            tf.Session(graph=tf.Graph()) as sess,
            pytest.raises(RuntimeError, match="The Session graph is empty"),
        ):
            sess.run([])

    def test_other_types_can_be_registered(self, sess: Any) -> None:
        class Box:
            def __init__(self, content: Any) -> None:
                self.content = content

        register_session_run_conversion_functions(
            Box,
            lambda box: ([box.content], lambda values: {"box": values[0]}),
            lambda box, value: [(box.content, value)],
        )
        x = tf.placeholder(tf.int32, [])
        assert sess.run([Box(x)], {Box(x): 3}) == [{"box": 3}]
        with pytest.raises(ValueError, match="already been registered"):
            register_session_run_conversion_functions(Box, lambda box: ([], len))

    def test_results_are_the_callers_own(self, sess: Any) -> None:
        v = tf.Variable([1, 2])
        x = tf.placeholder(tf.int32, [2])
        sess.run(v.initializer)
        mine = np.array([5, 6], np.int32)
        for fetch in (tf.constant([1, 2]), v, v.value(), x, tf.identity(x)):
            before = sess.run(fetch, {x: mine}).tolist()
            sess.run(fetch, {x: mine})[:] = 9
            assert sess.run(fetch, {x: mine}).tolist() == before
        assert mine.tolist() == [5, 6]

    def test_any_nesting(self, sess: Any) -> None:
        x, y = tf.constant(1), tf.constant([2, 3])
        got = sess.run({"a": [x, (y, Pair(x, "Const:0"))], "b": x.op})
        assert got["b"] is None
        first, (second, third) = got["a"]
        assert first == 1
        assert second.tolist() == [2, 3]
        assert isinstance(third, Pair)
        assert third == Pair(1, 1)

    def test_nothing_of_something(self, sess: Any) -> None:
        tf.constant(1)
        assert sess.run([]) == []
        assert sess.run(()) == ()
        assert sess.run({}) == {}

    def test_values(self, sess: Any) -> None:
        number, text, rows = sess.run([tf.constant(3), tf.constant("é"), tf.constant(["a"])])
        assert type(number) is np.int32
        assert text == "é".encode()
        assert rows.dtype == object
        assert rows.tolist() == [b"a"]


class TestFeeds:
    def test_placeholder_with_default(self, sess: Any) -> None:
        x = tf.placeholder_with_default([1, 2], [None])
        assert sess.run(x).tolist() == [1, 2]
        assert sess.run(x, {x: [3]}).tolist() == [3]
        refused(ValueError, "incompatible", tf.placeholder_with_default, [1, 2], [3])

    def test_bad_values(self, sess: Any) -> None:
        i = tf.placeholder(tf.int32, name="i")
        with pytest.raises(TypeError, match=r"value of a feed cannot be a tf\.Tensor object"):
            sess.run(i, {i: tf.constant(1)})
        message = "Type of feed value 1099511627776 with type <class 'int'> is not compatible"
        refused(TypeError, message, sess.run, i, {i: 2**40})
        refused(ValueError, "invalid literal", sess.run, i, {i: "a"})
        refused(ValueError, "inhomogeneous", sess.run, i, {i: [[1], [2, 3]]})
        refused(ValueError, "None values not supported", sess.run, i, {i: None})

    @pytest.mark.parametrize(
        ("key", "message"),
        [
            ("q", "The name 'q' looks like an .invalid. Operation name, not a Tensor"),
            (5, "Can not convert a int into a Tensor."),
        ],
    )
    def test_bad_keys(self, sess: Any, key: Any, message: str) -> None:
        x = tf.placeholder(tf.int32)
        with pytest.raises(TypeError, match=f"Cannot interpret feed_dict key as Tensor: {message}"):
            sess.run(x, {key: 1})
        refused(TypeError, "Can not convert a Operation into a Tensor", sess.run, x, {x.op: 1})
        refused(TypeError, "feed_dict: got", sess.run, x, [1])

    def test_tuples_as_keys(self, sess: Any) -> None:
        x, y = tf.placeholder(tf.int32), tf.placeholder(tf.int32)
        assert sess.run([x, y], {(x, y): (1, 2)}) == [1, 2]

    def test_the_same_fetch_with_other_feeds(self, sess: Any) -> None:
        x, y = tf.placeholder_with_default(1, []), tf.placeholder_with_default(2, [])
        total = x + y
        for _ in range(2):
            assert sess.run(total) == 3
            assert sess.run(total, {x: 10}) == 12
            assert sess.run(total, {y: 10}) == 11
            assert sess.run(total, {y: 10, x: 5}) == 15
            assert sess.run(total, {x: 5, y: 10}) == 15
            assert sess.run([total], {y: 10}) == [11]
            assert sess.run([total, y]) == [3, 2]

    def test_one_of_several_outputs(self, sess: Any) -> None:
        queue = tf.FIFOQueue(3, [tf.int32, tf.int32], [(), ()])
        x, y = queue.dequeue()
        sess.run(queue.enqueue((1, 2)))
        assert sess.run([x, y], {x: 5}) == [5, 2]

    def test_constants_and_variables_too(self, sess: Any) -> None:
        c, v = tf.constant(1), tf.Variable(1)
        assert sess.run(c + v, {c: 10, v: 20}) in (11, 30)  # the read is another tensor
        assert sess.run(c + v.value(), {c: 10, v.value(): 20}) == 30

    def test_a_placeholder_that_is_not_fed(self, sess: Any) -> None:
        x = tf.placeholder(tf.float32, [2, None], name="x")
        message = r"You must feed a value for placeholder tensor 'x' with dtype float and shape \["
        with pytest.raises(tf.errors.InvalidArgumentError, match=message + r"2,\?\]") as caught:
            sess.run(tf.identity(x))
        assert caught.value.op is x.op
        i = tf.placeholder(tf.int32, name="i")
        refused(tf.errors.InvalidArgumentError, "'i' with dtype int32\n", sess.run, i)

    def test_the_operation_of_a_fed_placeholder_can_be_fetched(self, sess: Any) -> None:
        x = tf.placeholder(tf.int32)
        with tf.control_dependencies([x]):
            y = tf.constant(1)
        assert sess.run([x, x.op, y], {x: 3}) == [3, None, 1]

    def test_values_are_made_of_the_dtype(self, sess: Any) -> None:
        i, s = tf.placeholder(tf.int32), tf.placeholder(tf.string)
        assert sess.run(i, {i: 1.5}) == 1
        assert sess.run(i, {i: np.array([1.7])}).tolist() == [1]
        assert type(sess.run(i, {i: 3})) is np.int32
        assert sess.run(s, {s: "é"}) == "é".encode()
        assert sess.run(s, {s: np.array(["a", "b"])}).tolist() == [b"a", b"b"]

    def test_shapes_must_fit(self, sess: Any) -> None:
        x = tf.placeholder(tf.float32, [2, None], name="x")
        message = r"Cannot feed value of shape \(2,\) for Tensor x:0, which has shape \(2, \?\)"
        refused(ValueError, message, sess.run, x, {x: [1, 2]})

    def test_replace_any_tensor_without_running_its_operation(self, sess: Any) -> None:
        counted, calls = counter()
        y = tf.identity(counted)
        assert sess.run([y, counted], {counted: 7}) == [7, 7]
        assert calls == []
        assert sess.run(y, {"PyFunc:0": 8}) == 8


class TestOneStep:
    def test_constants_too_run_what_they_depend_on(self, sess: Any) -> None:
        counted, calls = counter()
        with tf.control_dependencies([counted]):
            c = tf.constant(5)
            y = tf.identity(tf.constant(6))
        assert sess.run(c) == 5
        assert sess.run(y) == 6
        assert calls == [1, 2]

    @pytest.mark.slow
    def test_deep_graphs(self, sess: Any) -> None:
        x = tf.constant(0)
        for _ in range(5000):
            x = tf.identity(x)
        assert sess.run(x) == 0

    def test_what_a_failed_step_has_done_stays(self, sess: Any) -> None:
        v = tf.Variable(0)
        sess.run(v.initializer)
        with tf.control_dependencies([v.assign_add(1)]):
            failing = tf.Assert(False, ["no"])
        refused(tf.errors.InvalidArgumentError, "", sess.run, failing)
        assert sess.run(v) == 1

    def test_runs_each_operation_once(self, sess: Any) -> None:
        counted, calls = counter()
        assert sess.run([counted, tf.identity(counted), counted.op]) == [1, 1, None]
        assert sess.run([counted]) == [2]
        assert calls == [1, 2]

    def test_runs_what_is_needed_only(self, sess: Any) -> None:
        counted, calls = counter()
        assert sess.run(tf.constant(1)) == 1
        assert calls == []
        assert sess.run([counted]) == [1]

    def test_control_dependencies_order_it(self, sess: Any) -> None:
        queue = tf.FIFOQueue(10, tf.int32, ())
        for _ in range(3):
            with tf.control_dependencies([queue.enqueue(1)]):
                size = queue.size()
        assert sess.run(size) == 1

    def test_the_graph_may_grow_between_runs(self, sess: Any) -> None:
        x = tf.constant(1)
        assert sess.run(x) == 1
        assert sess.run(tf.identity(x) + x) == 2


class TestTogether:
    """Operations of one step that wait do so at the same time."""

    def test_several_that_really_block(self, sess: Any) -> None:
        queue = tf.FIFOQueue(10, tf.int32, ())
        fetches = [queue.dequeue(), queue.dequeue(), tf.constant(3)]
        step = Step(lambda: sess.run(fetches))
        spin_until(lambda: waiting(sess, queue) == 2)
        sess.run(queue.enqueue(1))
        assert not step.done
        sess.run(queue.enqueue(2))
        assert sorted(step.result()) == [1, 2, 3]

    def test_threads_are_kept_and_end_with_the_session(self) -> None:
        def workers() -> list[str]:
            names = [one.name for one in threading.enumerate()]
            return [one for one in names if one == "aioqueue-session-worker"]

        with tf.Session() as sess:
            queue = tf.FIFOQueue(10, tf.int32, ())
            fetches = [queue.dequeue(), queue.dequeue()]
            for _ in range(3):
                step = Step(lambda: sess.run(fetches))
                spin_until(lambda: waiting(sess, queue) == 2)
                sess.run(queue.enqueue_many([[1, 2]]))
                step.result()
            assert 0 < len(workers()) <= 2
        spin_until(lambda: not workers())

    def test_what_does_not_wait_is_not_held_up(self, sess: Any) -> None:
        queue = tf.FIFOQueue(10, tf.int32, ())
        counted, calls = counter()
        step = blocked(sess, queue, [queue.dequeue(), counted])
        assert calls == [1]
        sess.run(queue.enqueue(1))
        assert step.result() == [1, 1]

    def test_the_first_error_cancels_the_rest(self, sess: Any) -> None:
        a, b = (tf.FIFOQueue(10, tf.int32, (), name=name) for name in ("a", "b"))
        step = Step(lambda: sess.run([a.dequeue(), b.dequeue()]))
        spin_until(lambda: waiting(sess, a) == waiting(sess, b) == 1)
        sess.run(b.close())
        refused(tf.errors.OutOfRangeError, r"'_.*_b' is closed and has", step.result)
        assert waiting(sess, a) == 0
        sess.run(a.enqueue(1))
        assert sess.run(a.dequeue()) == 1

    def test_a_failure_that_does_not_wait_cancels_too(self, sess: Any) -> None:
        queue = tf.FIFOQueue(10, tf.int32, ())
        with tf.control_dependencies([queue.dequeue()]):
            late = tf.no_op()
        failing = tf.py_func(lambda: 1 / 0, [], tf.float64)
        with pytest.raises(tf.errors.UnknownError, match="ZeroDivisionError"):
            sess.run([late, queue.dequeue(), failing])
        assert waiting(sess, queue) == 0

    def test_an_element_dequeued_in_vain_is_gone(self, sess: Any) -> None:
        queue = tf.FIFOQueue(10, tf.int32, ())
        sess.run(queue.enqueue_many([[1, 2]]))
        with pytest.raises(tf.errors.InvalidArgumentError):
            sess.run(tf.Assert(tf.less(queue.dequeue(), 0), ["no"]))
        assert sess.run(queue.size()) == 1


class TestTimeouts:
    def queue(self) -> Any:
        return tf.FIFOQueue(10, tf.int32, ())

    def test_of_a_run(self, sess: Any) -> None:
        queue = self.queue()
        with pytest.raises(
            tf.errors.DeadlineExceededError, match=r"^Timed out waiting for notification$"
        ) as caught:
            sess.run(queue.dequeue(), options=tf.RunOptions(timeout_in_ms=20))
        assert caught.value.op is None
        assert waiting(sess, queue) == 0

    def test_of_operations_that_wait_together(self, sess: Any) -> None:
        queue = self.queue()
        with pytest.raises(tf.errors.DeadlineExceededError, match="Timed out"):
            sess.run([queue.dequeue(), queue.dequeue()], options=tf.RunOptions(timeout_in_ms=20))
        assert waiting(sess, queue) == 0

    def test_of_a_session_unless_the_run_has_its_own(self) -> None:
        queue = self.queue()
        with tf.Session(config=tf.ConfigProto(operation_timeout_in_ms=20)) as sess:
            for options in (None, tf.RunOptions(), tf.RunOptions(timeout_in_ms=0)):
                with pytest.raises(tf.errors.DeadlineExceededError):
                    sess.run(queue.dequeue(), options=options)
            step = blocked(
                sess, queue, queue.dequeue(), options=tf.RunOptions(timeout_in_ms=60_000)
            )
            sess.run(queue.enqueue(1))
            assert step.result() == 1

    def test_options_must_be_options(self, sess: Any) -> None:
        with pytest.raises(TypeError, match=r"options must be a tf\.RunOptions"):
            sess.run(tf.constant(1), options={"timeout_in_ms": 5})

    def test_config_must_be_config(self) -> None:
        with pytest.raises(TypeError, match=r"config must be a tf\.ConfigProto"):
            tf.Session(config={"operation_timeout_in_ms": 5})  # type: ignore[arg-type]

    def test_do_not_end_what_does_not_wait(self, sess: Any) -> None:
        assert sess.run(tf.constant(1), options=tf.RunOptions(timeout_in_ms=1)) == 1


class TestClosing:
    def test_cancels_what_is_blocked(self) -> None:
        queue = tf.FIFOQueue(1, tf.int32, ())
        with tf.Session() as sess:
            step = blocked(sess, queue, queue.dequeue())
        refused(tf.errors.CancelledError, "Dequeue operation was cancelled", step.result)
        with tf.Session() as sess:
            sess.run(queue.enqueue(1))
            step = blocked(sess, queue, queue.enqueue(1))
        refused(tf.errors.CancelledError, "Enqueue operation was cancelled", step.result)

    def test_cancels_what_is_blocked_in_threads(self) -> None:
        queue = tf.FIFOQueue(1, tf.int32, ())
        with tf.Session() as sess:
            step = Step(lambda: sess.run([queue.dequeue(), queue.dequeue()]))
            spin_until(lambda: waiting(sess, queue) == 2)
        refused(tf.errors.CancelledError, "", step.result)

    def test_later_runs_are_refused(self) -> None:
        x = tf.constant(1)
        sess = tf.Session()
        call = sess.make_callable(x)
        sess.close()
        sess.close()
        assert sess.closed
        for run in (lambda: sess.run(x), call, lambda: sess.make_callable(x)):
            refused(RuntimeError, "Attempted to use a closed Session", run)

    def test_what_the_session_owned_is_gone(self) -> None:
        queue = tf.FIFOQueue(3, tf.int32, (), shared_name="shared")
        v = tf.Variable(1)
        with tf.Session() as sess:
            sess.run([queue.enqueue(1), v.initializer])
        with tf.Session() as sess:
            assert sess.run(queue.size()) == 0
            refused(tf.errors.FailedPreconditionError, "", sess.run, v)

    def test_a_forgotten_session_is_closed(self) -> None:
        queue = tf.FIFOQueue(1, tf.int32, ())
        sess = tf.Session()
        sess.run(queue.enqueue(1))
        gone = weakref.ref(sess._state.own_resources)
        del sess
        gc.collect()
        assert gone() is None


class TestDefaults:
    def test_with_makes_session_and_graph_the_default(self) -> None:
        graph = tf.Graph()
        with tf.Session(graph=graph) as sess:
            assert tf.get_default_session() is sess
            assert tf.get_default_graph() is graph
            x = tf.constant(1)
            assert x.eval() == 1
            x.op.run()
        assert tf.get_default_session() is None
        assert sess.closed

    def test_as_default_leaves_it_open_and_the_graph_alone(self, graph: Any) -> None:
        sess = tf.Session(graph=tf.Graph())
        with sess.as_default() as same:
            assert same is sess
            assert tf.get_default_session() is sess
            assert tf.get_default_graph() is graph
        assert not sess.closed
        sess.close()

    def test_are_per_thread(self, sess: Any) -> None:
        assert tf.get_default_session() is sess
        assert Step(tf.get_default_session).result() is None
        x = tf.constant(1)
        message = r"Cannot evaluate tensor using `eval\(\)`: No default session is registered"
        refused(ValueError, message, lambda: Step(x.eval).result())
        message = r"Cannot execute operation using `run\(\)`: No default session is registered"
        refused(ValueError, message, lambda: Step(x.op.run).result())

    def test_the_graph_must_be_the_sessions(self) -> None:
        x = tf.constant(1)
        with tf.Session(graph=tf.Graph()) as sess:
            message = "default session to evaluate tensor: the tensor's graph is different"
            refused(ValueError, message, x.eval)
            refused(ValueError, "given session to execute operation", x.op.run, session=sess)

    def test_interactive_session(self, graph: Any) -> None:
        sess = tf.InteractiveSession()
        try:
            assert tf.get_default_session() is sess
            assert tf.constant(2).eval() == 2
            with pytest.warns(UserWarning, match="already active"):
                second = tf.InteractiveSession(graph=tf.Graph())
            assert tf.get_default_graph() is second.graph
            second.close()
            assert tf.get_default_graph() is graph
        finally:
            sess.close()
        sess.close()
        assert tf.get_default_session() is None

    def test_bad_arguments(self) -> None:
        with pytest.raises(TypeError, match=r"graph must be a tf\.Graph"):
            tf.Session(graph=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="target must be a string"):
            tf.Session(5)  # type: ignore[arg-type]
        with pytest.raises(tf.errors.NotFoundError, match="No server has the target 'grpc://x'"):
            tf.Session("grpc://x")

    def test_explicit_sessions_and_feeds(self, graph: Any) -> None:
        x = tf.placeholder(tf.int32, [])
        with tf.Session() as sess:
            pass
        with tf.Session(graph=graph) as sess:
            assert Step(lambda: x.eval({x: 3}, session=sess)).result() == 3
            Step(lambda: x.op.run({x: 3}, session=sess)).result()


class TestCallables:
    def test_with_feeds(self, sess: Any) -> None:
        x, y = tf.placeholder(tf.int32), tf.placeholder(tf.int32)
        call = sess.make_callable(x - y, [y, x])
        assert call(1, 10) == 9
        refused(TypeError, "expected 2 values", call, 1)

    def test_with_options(self, sess: Any) -> None:
        queue = tf.FIFOQueue(1, tf.int32, ())
        call = sess.make_callable(queue.dequeue(), accept_options=True)
        with pytest.raises(tf.errors.DeadlineExceededError):
            call(options=tf.RunOptions(timeout_in_ms=10), run_metadata=tf.RunMetadata())

    def test_bad_arguments(self, sess: Any) -> None:
        x = tf.constant(1)
        refused(TypeError, "feed_list", sess.make_callable, x, {x: 1})
        refused(TypeError, "has invalid type", sess.make_callable, 5)
        refused(TypeError, "feed_dict key", sess.make_callable, x, [5])


class TestThreads:
    def test_many_may_run_at_once(self, sess: Any) -> None:
        v = tf.Variable(0)
        sess.run(v.initializer)
        up = v.assign_add(1)
        start = threading.Barrier(4)

        def work() -> None:
            start.wait(30)
            for _ in range(300):
                sess.run(up)

        for step in [Step(work) for _ in range(4)]:
            step.result()
        assert sess.run(v) == 1200


class TestConfig:
    def test_fields_are_kept_and_unknown_ones_refused(self) -> None:
        config = tf.ConfigProto(allow_soft_placement=True, device_count={"GPU": 0})
        config.gpu_options.allow_growth = True
        assert config.gpu_options.allow_growth
        assert config.device_count == {"GPU": 0}
        assert tf.ConfigProto().device_count == {}
        assert "allow_soft_placement=True" in repr(config)
        refused(ValueError, 'no "zz" field', tf.ConfigProto, zz=1)
        with pytest.raises(AttributeError, match='no "zz" field'):
            config.zz = 1
        with pytest.raises(AttributeError, match='no "zz" field'):
            _ = config.zz
        other = tf.ConfigProto()
        assert other != config
        other.CopyFrom(config)
        assert other == config

    def test_run_metadata_is_accepted(self, sess: Any) -> None:
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        assert sess.run(tf.constant(1), options=options, run_metadata=tf.RunMetadata()) == 1


class TestResources:
    def test_are_made_once_and_released_in_reverse(self) -> None:
        container = ResourceContainer()
        log: list[str] = []
        assert container.get("a") is None

        def make(name: str) -> str:
            log.append(name)
            return name

        for name in ("a", "b", "a"):
            container.get_or_create(name, partial(make, name), log.append)
        assert container.get("a") == "a"
        container.clear()
        assert log == ["a", "b", "b", "a"]
        assert container.get("a") is None

    def test_threads_agree_on_one(self) -> None:
        container = ResourceContainer()
        start = threading.Barrier(4)

        def get() -> Any:
            start.wait(30)
            return container.get_or_create("key", object)

        assert len({step.result() for step in [Step(get) for _ in range(4)]}) == 1

    def test_failures_of_releasing_are_reported_together(self) -> None:
        container = ResourceContainer()
        log: list[str] = []
        container.get_or_create("a", lambda: "a", log.append)
        container.get_or_create("b", lambda: "b", lambda _: 1 / 0)
        refused(ExceptionGroup, "could not be released", container.clear)
        assert log == ["a"]

    def test_nothing_is_made_after_closing(self) -> None:
        container = ResourceContainer()
        container.close()
        with pytest.raises(tf.errors.CancelledError, match="Session has been closed"):
            container.get_or_create("a", object)
