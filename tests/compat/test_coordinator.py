"""`tf.train.Coordinator` and `LooperThread`: which failure counts, who is joined, and when."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import aioqueue
import aioqueue.compat.v1 as tf
from tests.compat.steps import Step, refused
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

    @pytest.mark.parametrize("bad", ["text", 3, (BoomError, BoomError()), (1, 2, 3)])
    def test_anything_else_is_refused(self, coord: Any, bad: Any) -> None:
        refused(TypeError, "expected an exception", coord.request_stop, bad)
        assert not coord.should_stop()

    def test_aioqueues_own_end_is_clean_too(self, coord: Any) -> None:
        coord.request_stop(aioqueue.OutOfRangeError("end"))
        coord.join()

    def test_the_first_failure_is_raised_and_the_others_are_reported(self, coord: Any) -> None:
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

    def test_clear_stop_forgets(self, coord: Any) -> None:
        coord.request_stop(BoomError())
        refused(BoomError, "", coord.join)
        coord.clear_stop()
        assert not coord.joined
        assert not coord.should_stop()
        coord.raise_requested_exception()
        coord.request_stop()
        coord.join()

    def test_exc_info_is_recorded_with_its_traceback(self, coord: Any) -> None:
        error = BoomError()
        coord.request_stop(exc_info(error))
        with pytest.raises(BoomError) as caught:
            coord.join()
        assert caught.value is error
        assert "exc_info" in [entry.name for entry in caught.traceback]


class TestJoin:
    def test_each_registration_is_for_one_join(self, coord: Any, gate: threading.Event) -> None:
        coord.register_thread(running(gate))
        coord.request_stop()
        refused(RuntimeError, "", coord.join, stop_grace_period_secs=0)
        coord.join(stop_grace_period_secs=0)

    def test_the_registered_threads_can_be_seen_and_added_to(
        self, coord: Any, gate: threading.Event
    ) -> None:
        first, second = running(gate), running(gate)
        coord.register_thread(first)
        assert coord._registered_threads == {first}
        coord._registered_threads.add(second)  # what some runners of old do
        coord.request_stop()
        refused(RuntimeError, "still running: busy busy", coord.join, stop_grace_period_secs=0)
        assert coord._registered_threads == set()

    def test_or_ignored(self, coord: Any, gate: threading.Event) -> None:
        coord.request_stop()
        coord.join([running(gate)], stop_grace_period_secs=0, ignore_live_threads=True)

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
        refused(RuntimeError, "", joining.result)

    def test_it_does_not_request_a_stop(self, coord: Any, gate: threading.Event) -> None:
        thread = running(gate)
        joining = Step(lambda: coord.join([thread]))
        assert not coord.wait_for_stop(0.01)
        assert not joining.done
        gate.set()
        joining.result()
        assert not coord.should_stop()


class TestStopOnException:
    @pytest.mark.parametrize("kind", [BoomError, SystemExit, KeyboardInterrupt, GeneratorExit])
    def test_it_swallows_every_exception_and_join_raises_it(
        self, coord: Any, kind: type[BaseException]
    ) -> None:
        with coord.stop_on_exception():
            fail(kind("x"))
        assert coord.should_stop()
        refused(kind, "x", coord.join)


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
        refused(BoomError, "", coord.join)
        assert steps == ["start", "run", "run"]

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
    refused(BoomError, "", coord.join)
    assert repr(coord) == "<Coordinator joined, 1 failures>"
