"""`tf.train.Coordinator` and `LooperThread`: which failure counts, who is joined, and when."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import aioqueue
import aioqueue.compat.v1 as tf
from tests.compat.steps import Step
from tests.kit.worlds import spin_until


class BoomError(Exception):
    """A failure."""


@pytest.fixture
def coord() -> Any:
    """A coordinator."""
    return tf.train.Coordinator()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Keeps threads running until the test ends."""
    event = threading.Event()
    yield event
    event.set()


def fail(error: BaseException) -> None:
    raise error


def running(gate: threading.Event, name: str = "busy") -> threading.Thread:
    thread = threading.Thread(target=gate.wait, name=name, daemon=True)
    thread.start()
    return thread


def exc_info(error: BaseException) -> Any:
    try:
        raise error
    except BaseException:
        return sys.exc_info()


class TestRequestStop:
    def test_it_sets_the_flag(self, coord: Any) -> None:
        assert not coord.should_stop()
        coord.request_stop()
        coord.request_stop()
        assert coord.should_stop()
        assert coord.wait_for_stop()
        coord.join()
        assert coord.joined

    def test_the_object_is_recorded_whether_or_not_it_is_being_handled(self, coord: Any) -> None:
        """TensorFlow recorded whatever was being handled, and broke if nothing was."""
        error = BoomError("this one")
        try:
            raise KeyError("another one")
        except KeyError:
            coord.request_stop(error)
        with pytest.raises(BoomError, match="this one") as caught:
            coord.join()
        assert caught.value is error

    def test_exc_info_is_recorded_with_its_traceback(self, coord: Any) -> None:
        error = BoomError()
        coord.request_stop(exc_info(error))
        with pytest.raises(BoomError) as caught:
            coord.join()
        assert caught.value is error
        assert "exc_info" in [entry.name for entry in caught.traceback]

    def test_a_tuple_needs_no_traceback(self, coord: Any) -> None:
        coord.request_stop((BoomError, BoomError("x"), None))
        with pytest.raises(BoomError, match="x"):
            coord.raise_requested_exception()

    @pytest.mark.parametrize("bad", ["text", 3, (BoomError, BoomError()), (1, 2, 3)])
    def test_anything_else_is_refused(self, coord: Any, bad: Any) -> None:
        with pytest.raises(TypeError, match="expected an exception"):
            coord.request_stop(bad)
        assert not coord.should_stop()

    @pytest.mark.parametrize("as_tuple", [False, True])
    def test_a_clean_stop_is_none(self, coord: Any, as_tuple: bool) -> None:
        error = tf.errors.OutOfRangeError(None, None, "end")
        coord.request_stop(exc_info(error) if as_tuple else error)
        assert coord.should_stop()
        coord.join()

    def test_aioqueues_own_end_is_clean_too(self, coord: Any) -> None:
        coord.request_stop(aioqueue.OutOfRangeError("end"))
        coord.join()

    def test_clean_types_are_what_is_given(self) -> None:
        coord = tf.train.Coordinator(clean_stop_exception_types=[BoomError])
        coord.request_stop(BoomError())
        coord.join()
        coord = tf.train.Coordinator(clean_stop_exception_types=())
        coord.request_stop(tf.errors.OutOfRangeError(None, None, "end"))
        with pytest.raises(tf.errors.OutOfRangeError):
            coord.join()

    @pytest.mark.parametrize("clean", [False, True])
    def test_after_a_stop_without_a_failure_later_ones_are_dropped(
        self, coord: Any, clean: bool
    ) -> None:
        coord.request_stop(tf.errors.OutOfRangeError(None, None, "end") if clean else None)
        coord.request_stop(BoomError())
        coord.join()

    def test_the_first_failure_is_raised_and_the_others_are_told(self, coord: Any) -> None:
        first, second = BoomError("first"), KeyError("second")
        coord.request_stop(first)
        coord.request_stop(second)
        coord.request_stop(tf.errors.CancelledError(None, None, "because of the stop"))
        coord.request_stop(first)
        for _ in range(2):
            with pytest.raises(BoomError) as caught:
                coord.join()
            group = caught.value.__cause__
            assert isinstance(group, ExceptionGroup)
            assert group.exceptions == (first, second)

    def test_its_own_cause_is_not_lost(self, coord: Any) -> None:
        cause, first = ValueError("why"), BoomError()
        first.__cause__ = cause
        coord.request_stop(first)
        coord.request_stop(KeyError())
        with pytest.raises(BoomError) as caught:
            coord.join()
        assert caught.value.__cause__ is not None
        assert caught.value.__cause__.__cause__ is cause

    def test_a_single_failure_is_left_as_it_is(self, coord: Any) -> None:
        coord.request_stop(BoomError())
        with pytest.raises(BoomError) as caught:
            coord.join()
        assert caught.value.__cause__ is None

    @pytest.mark.parametrize("as_tuple", [False, True])
    def test_after_a_join_a_failure_is_raised_at_once(self, coord: Any, as_tuple: bool) -> None:
        coord.join()
        error = BoomError()
        with pytest.raises(BoomError) as caught:
            coord.request_stop(exc_info(error) if as_tuple else error)
        assert caught.value is error
        assert not coord.should_stop()
        coord.request_stop(tf.errors.OutOfRangeError(None, None, "end"))
        assert coord.should_stop()

    def test_clear_stop_forgets(self, coord: Any) -> None:
        coord.request_stop(BoomError())
        with pytest.raises(BoomError):
            coord.join()
        coord.clear_stop()
        assert not coord.joined
        assert not coord.should_stop()
        coord.raise_requested_exception()
        coord.request_stop()
        coord.join()


class TestJoin:
    def test_again_raises_the_same(self, coord: Any) -> None:
        error = BoomError()
        coord.request_stop(error)
        for _ in range(3):
            with pytest.raises(BoomError) as caught:
                coord.join()
            assert caught.value is error
            assert coord.joined

    def test_it_does_not_request_a_stop(self, coord: Any, gate: threading.Event) -> None:
        thread = running(gate)
        joining = Step(lambda: coord.join([thread]))
        assert not coord.wait_for_stop(0.01)
        assert not joining.done
        gate.set()
        joining.result()
        assert not coord.should_stop()

    def test_registered_and_given_threads(self, coord: Any, gate: threading.Event) -> None:
        registered, given = running(gate), running(gate)
        coord.register_thread(registered)
        joining = Step(lambda: coord.join([given, given, registered]))
        gate.set()
        joining.result()
        assert not registered.is_alive()
        assert not given.is_alive()

    def test_threads_that_were_never_started_count_as_ended(self, coord: Any) -> None:
        thread = threading.Thread(target=int)
        coord.register_thread(thread)
        coord.join([thread, threading.Thread(target=int)])

    def test_each_registration_is_for_one_join(self, coord: Any, gate: threading.Event) -> None:
        coord.register_thread(running(gate))
        coord.request_stop()
        with pytest.raises(RuntimeError):
            coord.join(stop_grace_period_secs=0)
        coord.join(stop_grace_period_secs=0)

    def test_the_registered_threads_can_be_seen_and_added_to(
        self, coord: Any, gate: threading.Event
    ) -> None:
        first, second = running(gate), running(gate)
        coord.register_thread(first)
        assert coord._registered_threads == {first}
        coord._registered_threads.add(second)  # what some runners of old do
        coord.request_stop()
        with pytest.raises(RuntimeError, match="still running: busy busy"):
            coord.join(stop_grace_period_secs=0)
        assert coord._registered_threads == set()

    @pytest.mark.parametrize("grace", [0, 0.01, -1])
    def test_stragglers_are_named(self, coord: Any, gate: threading.Event, grace: float) -> None:
        threads = [running(gate, "a"), running(gate, "b")]
        coord.request_stop()
        pattern = r"^Coordinator stopped with threads still running: a b$"
        with pytest.raises(RuntimeError, match=pattern):
            coord.join(threads, stop_grace_period_secs=grace)
        assert coord.joined

    def test_or_ignored(self, coord: Any, gate: threading.Event) -> None:
        coord.request_stop()
        coord.join([running(gate)], stop_grace_period_secs=0, ignore_live_threads=True)

    def test_a_failure_comes_before_stragglers(self, coord: Any, gate: threading.Event) -> None:
        coord.request_stop(BoomError())
        with pytest.raises(BoomError):
            coord.join([running(gate)], stop_grace_period_secs=0)

    def test_grace_counts_from_the_join_not_from_the_stop(
        self, coord: Any, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A join long after the stop still gives threads their time."""
        coord.request_stop()
        thread = running(gate)
        module = sys.modules[tf.train.Coordinator.__module__]
        now = module.monotonic()
        monkeypatch.setattr(module, "monotonic", lambda: now + 1000)
        joining = Step(lambda: coord.join([thread], stop_grace_period_secs=30))
        assert not joining.done
        gate.set()
        joining.result()

    def test_a_stop_from_another_thread_ends_the_wait(
        self, coord: Any, gate: threading.Event
    ) -> None:
        thread = running(gate)
        joining = Step(lambda: coord.join([thread], stop_grace_period_secs=0))
        coord.request_stop()
        with pytest.raises(RuntimeError):
            joining.result()


class TestWaitForStop:
    def test_it_tells_whether(self, coord: Any) -> None:
        assert coord.wait_for_stop(0) is False
        assert coord.wait_for_stop(0.001) is False
        waits = Step(coord.wait_for_stop)
        coord.request_stop()
        assert waits.result() is True
        assert coord.wait_for_stop(0) is True


class TestStopOnException:
    @pytest.mark.parametrize("kind", [BoomError, SystemExit, KeyboardInterrupt, GeneratorExit])
    def test_it_swallows_every_exception_and_join_raises_it(
        self, coord: Any, kind: type[BaseException]
    ) -> None:
        with coord.stop_on_exception():
            fail(kind("x"))
        assert coord.should_stop()
        with pytest.raises(kind, match="x"):
            coord.join()

    def test_none_is_none(self, coord: Any) -> None:
        with coord.stop_on_exception():
            pass
        assert not coord.should_stop()

    def test_after_a_join_it_goes_through(self, coord: Any) -> None:
        coord.join()
        with pytest.raises(BoomError), coord.stop_on_exception():
            raise BoomError


class TestLooperThread:
    def test_it_calls_until_the_stop(self, coord: Any) -> None:
        calls: list[Any] = []

        def target(one: int, *, two: int) -> None:
            calls.append((one, two))
            if len(calls) == 5:
                coord.request_stop()

        looper = tf.train.LooperThread.loop(coord, None, target, args=(1,), kwargs={"two": 2})
        assert looper.daemon
        coord.join()
        assert calls == [(1, 2)] * 5
        assert not looper.is_alive()

    def test_missed_calls_are_made_up_for(self, coord: Any) -> None:
        """The first at once; then as many as the time that has passed is worth."""
        calls: list[int] = []

        def target() -> None:
            calls.append(1)
            if len(calls) == 1:
                coord.wait_for_stop(0.05)
            if len(calls) == 50:
                coord.request_stop()

        tf.train.LooperThread.loop(coord, 0.001, target)
        coord.join()
        assert len(calls) == 50

    def test_a_failure_stops_all_and_skips_stop_loop(self, coord: Any) -> None:
        steps: list[str] = []

        class Looper(tf.train.LooperThread):
            def start_loop(self) -> None:
                steps.append("start")

            def run_loop(self) -> None:
                steps.append("run")
                if steps.count("run") == 2:
                    raise BoomError

            def stop_loop(self) -> None:
                steps.append("stop")

        Looper(coord, None).start()
        with pytest.raises(BoomError):
            coord.join()
        assert steps == ["start", "run", "run"]

    def test_a_stop_runs_stop_loop(self, coord: Any) -> None:
        steps: list[str] = []

        class Looper(tf.train.LooperThread):
            def run_loop(self) -> None:
                coord.request_stop()

            def stop_loop(self) -> None:
                steps.append("stop")

        Looper(coord, 1000).start()
        coord.join()
        assert steps == ["stop"]

    def test_it_waits_for_its_next_call_no_longer_than_until_the_stop(self, coord: Any) -> None:
        calls: list[int] = []
        tf.train.LooperThread.loop(coord, 1000, lambda: calls.append(1))
        spin_until(lambda: calls)
        coord.request_stop()
        coord.join()
        assert calls == [1]

    def test_bad_arguments(self, coord: Any) -> None:
        with pytest.raises(ValueError, match="'coord' argument must be a Coordinator"):
            tf.train.LooperThread(None, 1)  # type: ignore[arg-type]
        for bad in ({"args": (1,)}, {"kwargs": {"a": 1}}):
            with pytest.raises(ValueError, match="require that you also pass 'target'"):
                tf.train.LooperThread(coord, 1, **bad)


def test_repr_tells_how_it_is(coord: Any) -> None:
    assert repr(coord) == "<Coordinator running, 0 failures>"
    coord.request_stop(BoomError())
    assert repr(coord) == "<Coordinator stopped, 1 failures>"
    with pytest.raises(BoomError):
        coord.join()
    assert repr(coord) == "<Coordinator joined, 1 failures>"
