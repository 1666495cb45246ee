"""Monitored sessions and hooks: what happens in which order, who hears of which failure."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import calling, refused


class Recorder(tf.train.SessionRunHook):
    """Notes what it is called with."""

    def __init__(self, fetches: Any = None) -> None:
        self.fetches = fetches
        self.calls: list[str] = []
        self.results: list[Any] = []
        self.stop_next = False

    def begin(self) -> None:
        self.calls.append(f"begin, final: {tf.get_default_graph().finalized}")

    def after_create_session(self, session: Any, coord: Any) -> None:
        assert isinstance(session, tf.Session)
        assert isinstance(coord, tf.train.Coordinator)
        self.coord = coord
        self.calls.append(f"create, final: {session.graph.finalized}")

    def before_run(self, run_context: Any) -> Any:
        self.calls.append("before")
        self.args = run_context.original_args
        return None if self.fetches is None else tf.train.SessionRunArgs(self.fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.calls.append("after")
        self.results.append(run_values.results)
        if self.stop_next:
            run_context.request_stop()

    def end(self, session: Any) -> None:
        assert isinstance(session, tf.Session)
        self.calls.append("end")


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The lines that are logged."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("tensorflow")
    level = tf.logging.get_verbosity()
    tf.logging.set_verbosity(tf.logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False
    yield lines
    logger.propagate = True
    logger.removeHandler(handler)
    logger.setLevel(level)


def failing_runner(error: Exception) -> Any:
    """A runner whose thread fails; the tensor of an element that never comes."""

    def fail() -> Any:
        raise error

    queue = tf.FIFOQueue(3, tf.int32, [()])
    tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(calling(fail, tf.int32))]))
    return queue.dequeue()


def numbers(count: int = 3) -> Any:
    """The tensor of the next of some numbers, whose epoch counter must be initialised."""
    return tf.train.range_input_producer(count, num_epochs=1, shuffle=False).dequeue()


KINDS = [tf.train.MonitoredSession, tf.train.SingularMonitoredSession]


@pytest.mark.parametrize("kind", KINDS)
class TestLife:
    def test_the_order_of_everything(self, kind: Any, graph: Any) -> None:
        number, hook = tf.constant(5), Recorder()
        hook.fetches = {"twice": number * 2}
        with kind(hooks=[hook]) as sess:
            assert sess.graph is graph
            assert sess.run(number) == 5
            assert hook.args == tf.train.SessionRunArgs(number)
        assert hook.calls == [
            "begin, final: False",
            "create, final: True",
            "before",
            "after",
            "end",
        ]
        assert hook.results == [{"twice": 10}]
        assert not graph.finalized
        assert hook.coord.joined

    def test_a_graph_that_was_final_stays_so(self, kind: Any, graph: Any) -> None:
        tf.constant(1)
        scaffold = tf.train.Scaffold().finalize()
        if kind is tf.train.MonitoredSession:
            sess = kind(tf.train.ChiefSessionCreator(scaffold))
        else:
            sess = kind(scaffold=scaffold)
        sess.close()
        assert graph.finalized

    def test_after_close(self, kind: Any) -> None:
        number = tf.constant(1)
        sess = kind()
        sess.close()
        assert sess.should_stop()
        assert sess.graph is None
        refused(RuntimeError, r"Session is already closed\.", sess.close)
        refused(RuntimeError, r"Attempted to use a closed Session\.", sess.run, number)

    @pytest.mark.parametrize("end", [tf.errors.OutOfRangeError(None, None, "x"), StopIteration()])
    def test_the_end_of_the_input_ends_the_block(self, kind: Any, end: Exception) -> None:
        hook = Recorder()

        def block() -> None:
            with kind(hooks=[hook]):
                raise end

        block()
        assert hook.calls[-1] == "end"

    def test_the_failure_of_a_thread_comes_at_the_end(self, kind: Any) -> None:
        """Although the main thread has only seen the end of the input."""
        element = failing_runner(ValueError("in a thread"))
        with pytest.raises(tf.errors.InvalidArgumentError, match="in a thread"), kind() as sess:
            sess.run(element)

    def test_init_ops_that_forget_a_variable(self, kind: Any, graph: Any) -> None:
        tf.Variable(1, name="forgotten")
        scaffold = tf.train.Scaffold(init_op=tf.no_op(name="mine"))
        with pytest.raises(
            RuntimeError,
            match=r"Init operations did not make model ready.*Init op: mine, init fn: None,.*error:"
            r" Variables not initialized: forgotten$",
        ):
            if kind is tf.train.MonitoredSession:
                kind(tf.train.ChiefSessionCreator(scaffold))
            else:
                kind(scaffold=scaffold)
        assert not graph.finalized

    def test_a_hook_that_fails_at_the_beginning(self, kind: Any, graph: Any) -> None:
        """Nothing that was made stays behind."""
        made = []

        class Hook(tf.train.SessionRunHook):
            def after_create_session(self, session: Any, coord: Any) -> None:
                made.append((session, coord))
                raise ValueError("mine")

        numbers()
        refused(ValueError, "mine", lambda: kind(hooks=[Hook()]))
        ((session, coord),) = made
        assert session.closed
        coord.join(stop_grace_period_secs=10)
        assert not graph.finalized

    def test_an_init_function(self, kind: Any) -> None:
        variable = tf.Variable(1)
        value = tf.placeholder(tf.int32, [])
        assign = tf.assign(variable, value)
        scaffold = tf.train.Scaffold(
            init_feed_dict={value: 0}, init_fn=lambda _, sess: sess.run(assign, {value: 7})
        )
        creator = tf.train.ChiefSessionCreator(tf.train.Scaffold(copy_from_scaffold=scaffold))
        with tf.train.MonitoredSession(creator) as sess:
            assert sess.run(variable) == 7

    def test_a_failure_in_the_block_goes_on_and_the_hooks_do_not_end(self, kind: Any) -> None:
        hook = Recorder()
        with pytest.raises(ValueError, match="mine"), kind(hooks=[hook]):
            raise ValueError("mine")
        assert "end" not in hook.calls

    def test_a_subclass_of_it_does_not(self, kind: Any) -> None:
        class OtherEndError(tf.errors.OutOfRangeError):
            pass

        with pytest.raises(OtherEndError), kind():
            raise OtherEndError(None, None, "x")


class TestShouldStop:
    def test_a_monitored_session_says_yes_when_a_thread_has_failed(self) -> None:
        element = failing_runner(ValueError("in a thread"))
        sess = tf.train.MonitoredSession()
        refused(tf.errors.OutOfRangeError, "", sess.run, element)
        assert sess.should_stop() is True
        refused(tf.errors.InvalidArgumentError, "in a thread", sess.close)

    def test_a_failing_run_is_the_callers(self) -> None:
        """The coordinator does not hear of it, and the session goes on."""

        def fail() -> Any:
            raise ValueError("mine")

        hook = Recorder()
        failing, number = tf.py_func(fail, [], tf.int32), tf.constant(1)
        with tf.train.MonitoredSession(hooks=[hook]) as sess:
            refused(tf.errors.InvalidArgumentError, "mine", sess.run, failing)
            assert not sess.should_stop()
            assert sess.run(number) == 1
            hook.coord.raise_requested_exception()

    def test_a_singular_one_raises_the_failure(self) -> None:
        element = failing_runner(ValueError("in a thread"))
        sess = tf.train.SingularMonitoredSession()
        refused(tf.errors.OutOfRangeError, "", sess.run, element)
        refused(tf.errors.InvalidArgumentError, "in a thread", sess.should_stop)
        refused(tf.errors.InvalidArgumentError, "in a thread", sess.close)


class TestPreemption:
    """`AbortedError` and `UnavailableError`: the session is lost, not the program."""

    def aborting(self, times: int) -> Any:
        left = [times]

        def maybe() -> Any:
            if left[0]:
                left[0] -= 1
                raise tf.errors.AbortedError(None, None, "preempted")
            return np.int32(5)

        class Hook(Recorder):
            def before_run(self, run_context: Any) -> None:
                super().before_run(run_context)
                maybe()

        return Hook()

    def test_a_monitored_session_makes_its_session_again(self) -> None:
        variable = tf.Variable(0)
        increment = tf.assign_add(variable, 1)
        hook = self.aborting(2)
        with tf.train.MonitoredSession(hooks=[hook]) as sess:
            assert sess.run(increment) == 1
        assert [call.split(",")[0] for call in hook.calls] == [
            *("begin", "create", "before", "create", "before", "create", "before", "after", "end")
        ]

    def test_the_raw_session_runs_without_hooks(self) -> None:
        number, hook = tf.constant(5), Recorder()
        with tf.train.SingularMonitoredSession(hooks=[hook]) as sess:
            raw, called = sess.raw_session(), len(hook.calls)
            assert isinstance(raw, tf.Session)
            assert raw.run(number) == 5
            assert len(hook.calls) == called
        assert sess.raw_session() is None

    def test_a_preempted_thread_is_why_a_run_has_failed(self) -> None:
        """Which by itself has only met the end of the input."""
        element = failing_runner(tf.errors.AbortedError(None, None, "preempted"))
        sess = tf.train.SingularMonitoredSession()
        refused(tf.errors.AbortedError, "preempted", sess.run, element)
        refused(tf.errors.AbortedError, "preempted", sess.close)

    def test_so_it_does_if_making_it_fails(self) -> None:
        number = tf.constant(1)
        creator = tf.train.ChiefSessionCreator()
        left = [tf.errors.UnavailableError(None, None, "not yet")]

        class Creator(tf.train.SessionCreator):
            def create_session(self) -> Any:
                if left:
                    raise left.pop()
                return creator.create_session()

        with tf.train.MonitoredSession(Creator()) as sess:
            assert sess.run(number) == 1

    def test_a_singular_one_does_not(self) -> None:
        number = tf.constant(1)
        with (
            pytest.raises(tf.errors.AbortedError, match="preempted"),
            tf.train.SingularMonitoredSession(hooks=[self.aborting(1)]) as sess,
        ):
            sess.run(number)


class TestRunStepFn:
    def test_with_hooks_and_without(self) -> None:
        number, hook = tf.constant(1), Recorder()
        with tf.train.MonitoredSession(hooks=[hook]) as sess:

            def step(step_context: Any) -> Any:
                assert step_context.session.run(number) == 1
                assert "before" not in hook.calls
                return step_context.run_with_hooks(fetches=number)

            assert sess.run_step_fn(step) == 1
            assert hook.calls[-2:] == ["before", "after"]

    def test_it_can_end_the_block(self) -> None:
        tf.constant(1)
        with tf.train.MonitoredSession() as sess:
            sess.run_step_fn(lambda step_context: step_context.request_stop())
            pytest.fail("it goes on")

    def test_its_parameter_has_a_name(self) -> None:
        tf.constant(1)
        with (
            tf.train.MonitoredSession() as sess,
            pytest.raises(ValueError, match=r"`step_fn` may either .* Got \('other',\) instead"),
        ):
            sess.run_step_fn(lambda other: None)


class TestFeeds:
    def test_a_hook_can_feed(self) -> None:
        number = tf.placeholder(tf.int32, [])
        with tf.train.MonitoredSession(hooks=[tf.train.FeedFnHook(lambda: {number: 3})]) as sess:
            assert sess.run(number) == 3
            with pytest.raises(RuntimeError, match=r"fed by a SessionRunHook and user\."):
                sess.run(number, {number: 4})

    def test_two_cannot_feed_one_tensor(self) -> None:
        number = tf.placeholder(tf.int32, [])
        hooks = [tf.train.FeedFnHook(lambda: {number: 3}) for _ in range(2)]
        with (
            tf.train.MonitoredSession(hooks=hooks) as sess,
            pytest.raises(RuntimeError, match=r"Same tensor is fed by two hooks"),
        ):
            sess.run(number)


class TestTraining:
    def test_hooks_need_a_global_step(self, tmp_path: Path) -> None:
        tf.constant(1)
        with pytest.raises(RuntimeError, match="Global step should be created to use"):
            tf.train.MonitoredSession(hooks=[tf.train.StopAtStepHook(1)])
        for steps, hook in ((100, "StepCounterHook"), (None, "SummarySaverHook")):
            with pytest.raises(RuntimeError, match=f"should be created to use {hook}"):
                tf.train.MonitoredTrainingSession(
                    checkpoint_dir=str(tmp_path), log_step_count_steps=steps
                )

    @pytest.mark.parametrize(
        ("count", "options", "steps"),
        [
            (13, {}, 12),
            (250, {}, 247),
            (20, {"save_summaries_steps": 3}, 15),
            (20, {"save_summaries_steps": 0}, 20),
            (20, {"save_summaries_steps": None}, 20),
            (20, {"save_summaries_secs": 1000}, 19),
        ],
    )
    def test_summaries_take_their_batches(
        self, count: int, options: Any, steps: int, tmp_path: Path
    ) -> None:
        """As many steps as in TensorFlow, where summaries are run first, and then now and then."""
        queue = tf.train.range_input_producer(count, num_epochs=1, shuffle=False)
        number, other = queue.dequeue(), queue.dequeue()
        increment = tf.assign_add(tf.train.get_or_create_global_step(), 1)
        tf.summary.scalar("other", other)
        found = []
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), save_checkpoint_secs=None, **options
        ) as sess:
            while not sess.should_stop():
                found.append(sess.run([increment, number]))
        assert len(found) == steps

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: tf.train.StopAtStepHook(), "One of num_steps or last_step must be"),
            (lambda: tf.train.StopAtStepHook(1, 2), "Only one of num_steps or last_step can be"),
            (lambda: tf.train.LoggingTensorHook([]), "either at_end and/or exactly one of"),
            (lambda: tf.train.LoggingTensorHook([], 1, 1), "either at_end and/or exactly one of"),
            (lambda: tf.train.LoggingTensorHook([], 0), "invalid every_n_iter=0"),
            (lambda: tf.train.SecondOrStepTimer(), "Either every_secs or every_steps should be"),
            (lambda: tf.train.SecondOrStepTimer(1, 1), "Can not provide both every_secs and"),
        ],
    )
    def test_wrong_arguments(self, make: Any, message: str) -> None:
        refused(ValueError, message, make)

    def test_a_scaffold_takes_the_only_one_of_a_collection(self) -> None:
        make = tf.train.Scaffold.get_or_default
        made = make("summary_op", "key", lambda: tf.constant(1))
        assert make("summary_op", "key", lambda: tf.constant(2)) is made
        tf.add_to_collection("key", 3)
        with pytest.raises(RuntimeError, match=r'in the collection "key".*Scaffold\(summary_op='):
            make("summary_op", "key", lambda: None)

    def test_each_process_is_the_chief(self) -> None:
        with pytest.raises(NotImplementedError, match="is_chief: got False"):
            tf.train.MonitoredTrainingSession(is_chief=False)

    def test_steps_are_counted_from_where_it_begins(self) -> None:
        step = tf.Variable(10, name="global_step", trainable=False)
        increment = tf.assign_add(step, 1)
        with tf.train.MonitoredSession(hooks=[tf.train.StopAtStepHook(num_steps=2)]) as sess:
            while not sess.should_stop():
                last = sess.run(increment)
        assert last == 12


class TestHooks:
    def test_tensors_are_logged(self, logged: list[str]) -> None:
        step = tf.train.get_or_create_global_step()
        increment = tf.assign_add(step, 1)
        half = tf.constant([1.5, 2.0], name="half")
        hooks = [
            tf.train.LoggingTensorHook({"x": half, "y": "half:0"}, every_n_iter=2, at_end=True),
            tf.train.LoggingTensorHook([half], at_end=True, formatter=lambda values: f"{values}"),
        ]
        with tf.train.MonitoredSession(hooks=hooks) as sess:
            for _ in range(3):
                sess.run(increment)
        tensors = [line for line in logged if "x = " in line]
        assert len(tensors) == 3
        assert tensors[0] == "x = [1.5 2. ], y = [1.5 2. ]"
        assert tensors[1].startswith("x = [1.5 2. ], y = [1.5 2. ] (")
        assert tensors[1].endswith(" sec)")
        assert sum(line.startswith("{'half:0': array(") for line in logged) == 1

    def test_a_loss_that_is_no_number(self, logged: list[str]) -> None:
        loss = tf.placeholder(tf.float32, [])
        with tf.train.MonitoredSession(hooks=[tf.train.NanTensorHook(loss, False)]) as sess:
            sess.run(loss, {loss: 1.0})
            assert not sess.should_stop()
            sess.run(loss, {loss: float("nan")})
            assert sess.should_stop()
        with (
            pytest.raises(tf.train.NanLossDuringTrainingError, match="NaN loss during training"),
            tf.train.MonitoredSession(hooks=[tf.train.NanTensorHook(loss)]) as sess,
        ):
            sess.run(loss, {loss: float("nan")})

    def test_summaries_go_to_a_writer(self) -> None:
        written: list[Any] = []

        class Writer:
            def add_summary(self, summary: Any, step: int) -> None:
                written.append((summary, step))

            def flush(self) -> None:
                written.append("flushed")

        increment = tf.assign_add(tf.train.get_or_create_global_step(), 1)
        hook = tf.train.SummarySaverHook(
            2, summary_writer=Writer(), summary_op=[tf.constant(b"a"), tf.constant(b"b")]
        )
        with tf.train.MonitoredSession(hooks=[hook]) as sess:
            for _ in range(4):
                sess.run(increment)
        assert written == [(b"a", 1), (b"b", 1), (b"a", 3), (b"b", 3), "flushed"]
        silent = tf.train.SummarySaverHook(1, scaffold=tf.train.Scaffold())
        with tf.train.MonitoredSession(hooks=[silent]) as sess:
            sess.run(increment)
        with pytest.raises(ValueError, match="Exactly one of scaffold or summary_op"):
            tf.train.SummarySaverHook(save_steps=1)

    def test_final_ops(self) -> None:
        variable = tf.Variable(1)
        increment = tf.assign_add(variable, 1)
        hook = tf.train.FinalOpsHook(variable)
        assert hook.final_ops_values is None
        with tf.train.MonitoredSession(hooks=[hook]) as sess:
            sess.run(increment)
        assert hook.final_ops_values == 2

    def test_the_timer(self) -> None:
        timer = tf.train.SecondOrStepTimer(every_steps=3)
        assert timer.last_triggered_step() is None
        assert timer.should_trigger_for_step(5)
        assert timer.update_last_triggered_step(5) == (None, None)
        assert [timer.should_trigger_for_step(step) for step in (5, 6, 7, 8)] == [
            *(False, False, False, True)
        ]
        seconds, steps = timer.update_last_triggered_step(8)
        assert steps == 3
        assert seconds is not None
        assert seconds >= 0
        timer.reset()
        assert timer.should_trigger_for_step(8)
        eager = tf.train.SecondOrStepTimer(every_secs=0)
        eager.update_last_triggered_step(1)
        assert eager.should_trigger_for_step(2)
        assert not eager.should_trigger_for_step(1)
