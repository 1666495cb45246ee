"""The rules of a `Job`, with a run and an executor that only record their calls."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy as np
import pytest

from aioqueue import OutOfRangeError, QueueClosedError
from aioqueue.coordination.cancellations import Call
from aioqueue.items.item import EpochEnd, Item, ItemCounts, ItemFailure, Prepared
from aioqueue.system.locks import is_held_here
from aioqueue.workers.job import NothingMore
from tests.kit.alone import Made


def another_call() -> Call:
    """The call of a task that does not run now."""
    call = Call()
    call.task = object()
    return call


class TestBeginning:
    def test_the_first_worker_registers_for_the_end(self) -> None:
        made = Made(2)
        assert made.job.state == "idle"
        made.job.enter()
        assert made.run.callbacks == [made.job.stop]
        assert made.job.state == "running"
        assert made.job.is_last_inside
        made.job.enter()
        assert made.run.callbacks == [made.job.stop]
        assert not made.job.is_last_inside

    def test_more_workers_than_it_has(self) -> None:
        made = Made(2)
        made.job.enter()
        made.job.enter()
        with pytest.raises(RuntimeError, match=r"'images' has run already, and its queue"):
            made.job.enter()
        assert made.job.source_ended

    def test_a_worker_that_comes_when_all_is_done(self) -> None:
        made = Made(2)
        made.job.enter()
        made.job.leave(made.exhausted())
        assert made.job.state == "ended"
        with pytest.raises(NothingMore):
            made.job.enter()

    def test_a_queue_that_was_closed_before(self) -> None:
        made = Made(2, in_time=False)
        with pytest.raises(RuntimeError, match=r"'images' was closed before the prepare into it"):
            made.job.enter()
        assert made.job.state == "ended"
        assert made.job.source_ended
        assert not made.run.callbacks
        with pytest.raises(NothingMore):  # one failure is enough
            made.job.enter()
        assert made.executor.ends == 0


class TestEnding:
    def test_the_last_worker_ends_it(self, caplog: pytest.LogCaptureFixture) -> None:
        made = Made(2)
        made.job.enter()
        made.job.enter()
        with caplog.at_level(logging.INFO, "aioqueue"):
            end = made.exhausted()
            assert made.job.leave(end) is end
            assert made.executor.ends == 0
            assert made.job.state == "running"
            assert not caplog.messages
            assert made.job.leave(end, None) is end
        assert made.executor.ends == 1
        assert made.executor.stops == 0
        assert made.job.state == "ended"
        assert len(caplog.messages) == 1
        assert "prepare into 'images' has ended" in caplog.messages[0]

    def test_not_before_the_source_has_ended(self) -> None:
        """Others have not begun yet."""
        made = Made(2)
        made.job.enter()
        made.job.leave(NothingMore("for now"))
        assert made.job.state == "running"
        assert made.executor.ends == 0

    def test_nor_after_a_closed_queue(self) -> None:
        made = Made(2)
        made.job.enter()
        made.queue.close()
        made.job.leave(NothingMore("nobody wants more"))
        assert made.job.state == "ended"

    def test_a_failure_stops_the_others(self) -> None:
        made, failure = Made(2), ValueError("this one")
        made.job.enter()
        made.job.enter()
        assert made.job.leave(failure) is failure
        assert made.job.is_halted
        assert made.executor.stops == 1
        assert made.job.leave(made.job.nothing_more()).args == ("the source has ended",)

    def test_several_failures_of_one_worker(self) -> None:
        made = Made(1)
        made.job.enter()
        one, other, made.executor.failure = ValueError(1), KeyError(2), OSError(3)
        group = made.job.leave(one, other)
        assert isinstance(group, ExceptionGroup)
        assert group.exceptions == (one, other, made.executor.failure)

    def test_the_end_of_something_else_is_a_failure(self) -> None:
        made = Made(1)
        made.job.enter()
        error = made.job.leave(OutOfRangeError("of another queue"))
        assert isinstance(error, RuntimeError)
        assert "a worker has ended by OutOfRangeError: of another queue" in str(error)

    @pytest.mark.parametrize("how", ["its end", "a stop", "a closed queue"])
    def test_the_share_of_skipped_items_is_judged_at_the_end(self, how: str) -> None:
        made = Made(1, on_error="skip", max_failures=0.5)
        made.job.enter()
        prepared = Prepared(made.taken(), is_skipped=True)
        made.progress.give_up(prepared.item, ValueError(), 1)
        made.job.item_delivered(prepared)
        end = made.exhausted()
        if how == "a closed queue":
            made.queue.close()
        if how == "a stop":
            end = asyncio.CancelledError()
        raised = made.job.leave(end)
        if how == "its end":
            assert "1 of 1 item failed" in str(raised)
        else:
            assert raised is end

    def test_a_stop_can_be_repeated(self) -> None:
        made = Made(1)
        made.job.enter()
        made.job.stop()
        made.job.stop()
        assert made.executor.stops == 2
        assert made.job.is_stopping
        assert made.job.source_ended
        made.job.leave(made.job.nothing_more())
        made.job.stop()  # after the end it calls no executor
        assert made.executor.stops == 2


class TestWhatCutItShort:
    def test_nothing_if_all_was_delivered(self) -> None:
        made = Made(1)
        made.job.enter()
        prepared = Prepared(made.taken(), (1,))
        made.job.item_delivered(prepared)
        made.job.leave(made.exhausted(), asyncio.CancelledError())
        assert made.job.truncation_cause() is None

    def test_what_is_left_of_the_source(self) -> None:
        made = Made(1)
        made.job.enter()
        made.job.leave(asyncio.CancelledError())
        assert "'images' was cancelled before" in str(made.job.truncation_cause())

    def test_nothing_of_a_queue_that_has_ended(self) -> None:
        made = Made(1)
        made.job.enter()
        made.window.enter()
        end = made.job.source_raised(OutOfRangeError("the queue has ended"))
        made.job.leave(end, asyncio.CancelledError())
        assert made.job.truncation_cause() is None

    def test_an_item_in_flight(self) -> None:
        made = Made(1)
        made.job.enter()
        made.taken()
        made.job.leave(made.exhausted(), asyncio.CancelledError())
        assert isinstance(made.job.truncation_cause(), RuntimeError)

    def test_not_that_we_have_ended_the_source_ourselves(self) -> None:
        made = Made(1)
        made.job.enter()
        made.job.stop()
        made.window.enter()
        made.job.source_raised(OutOfRangeError("closed by us"))
        assert made.job.truncation_cause() is not None

    def test_nothing_if_the_queue_is_closed(self) -> None:
        made = Made(1)
        made.job.enter()
        made.queue.close()
        assert made.job.truncation_cause() is None


class TestTheSource:
    def test_its_end(self) -> None:
        made = Made()
        assert isinstance(made.exhausted(), NothingMore)
        assert made.job.source_ended
        assert made.window.items == 0
        assert made.executor.rooms == 1

    def test_its_end_by_a_queue_that_failed(self) -> None:
        made, failure, end = Made(), OSError("upstream"), OutOfRangeError()
        end.__cause__ = failure
        made.window.enter()
        error = made.job.source_raised(end)
        assert isinstance(error, NothingMore)
        assert error.__cause__ is failure
        assert made.job.nothing_more().__cause__ is failure

    def test_the_first_cause_counts(self) -> None:
        made, failure = Made(), OSError("upstream")
        made.job.end_source(failure)
        made.job.end_source(ValueError("later"))
        assert made.job.nothing_more().__cause__ is failure

    def test_its_failure(self) -> None:
        made, failure = Made(), OSError("the disk is gone")
        made.window.enter()
        assert made.job.source_raised(failure) is failure
        assert failure.__notes__ == ["in the source of a prepare"]
        assert made.job.source_ended
        assert made.window.items == 0
        assert made.job.nothing_more().__cause__ is failure

    def test_the_end_of_the_loop_of_the_task_that_asked(self) -> None:
        """Its coroutine is closed: nothing has failed, and it must not raise anything else."""
        made, closing = Made(), GeneratorExit()
        made.window.enter()
        assert made.job.source_raised(closing, owner=another_call()) is closing
        assert made.job.source_ended
        assert made.window.items == 0

    def test_what_a_stop_makes_of_it(self) -> None:
        made = Made()
        made.job.stop()
        made.window.enter()
        error = made.job.source_raised(QueueClosedError("by the stop"))
        assert isinstance(error, NothingMore)
        assert error.__cause__ is None


class TestAnItemThatFails:
    def test_by_an_exception(self) -> None:
        made, failure = Made(), ValueError()
        assert made.job.failure_of_item(failure) is failure

    def test_by_what_ends_a_program(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            Made().job.failure_of_item(KeyboardInterrupt())

    def test_not_by_a_stop(self) -> None:
        made = Made()
        made.job.stop()
        with pytest.raises(NothingMore):
            made.job.failure_of_item(QueueClosedError())
        error = ValueError()
        assert made.job.failure_of_item(error) is error

    @pytest.mark.parametrize("closed", [False, True])
    def test_when_it_was_not_enqueued(self, closed: bool) -> None:
        """Nobody wants it, if it is our queue that is closed; else some other queue was."""
        made = Made(on_error="skip")
        if closed:
            made.queue.close()
        prepared = Prepared(made.taken(7), (1, 2), failures=2)
        prepared.entered = 1
        error = QueueClosedError("whichever")
        if closed:
            with pytest.raises(NothingMore):
                made.job.not_enqueued(prepared, error)
            assert not prepared.is_skipped
            assert not made.progress.quarantine.records()
            return
        made.job.not_enqueued(prepared, error)
        assert prepared.is_skipped
        (record,) = made.progress.quarantine.records()
        assert (record.item, record.attempts) == (7, 3)

    def test_when_it_was_refused(self) -> None:
        made, error = Made(on_error="stop"), ValueError("of the wrong shape")
        prepared = Prepared(made.taken(7), (1,))
        with pytest.raises(ValueError, match="of the wrong shape") as caught:
            made.job.not_enqueued(prepared, error)
        assert caught.value.__notes__ == ["while preparing item 7 (epoch 0, index 7)"]
        assert not prepared.is_skipped

    def test_when_the_task_is_cancelled(self) -> None:
        made, cancelled = Made(), asyncio.CancelledError()
        made.job.stop()
        prepared = Prepared(made.taken(), (1,))
        with pytest.raises(asyncio.CancelledError) as caught:
            made.job.not_enqueued(prepared, cancelled, owner=another_call())
        assert caught.value is cancelled  # the task has to end by nothing else
        with pytest.raises(NothingMore):
            made.job.not_enqueued(prepared, cancelled)

    def test_a_refusal_in_a_closed_queue_is_a_refusal(self) -> None:
        made = Made(on_error="skip")
        made.queue.close()
        prepared = Prepared(made.taken(), (1,))
        made.job.not_enqueued(prepared, ValueError())
        assert prepared.is_skipped


class TestAnItemThatLeaves:
    @pytest.mark.parametrize("entered", [0, 1, 3])
    @pytest.mark.parametrize("is_skipped", [False, True])
    def test_is_counted_as_what_it_is(self, entered: int, is_skipped: bool) -> None:
        made = Made()
        prepared = Prepared(made.taken(), (1,) * entered, is_skipped=is_skipped)
        prepared.entered = entered
        made.job.item_delivered(prepared)
        progress = made.progress.statistics()
        assert progress.examples == entered
        assert progress.prepared == (not is_skipped and entered > 0)
        assert progress.left_out == (not is_skipped and entered == 0)
        assert progress.in_flight == 0
        assert made.executor.rooms == 1
        assert not is_held_here(made.job.lock)

    @pytest.mark.parametrize(
        ("is_awaited", "has_ended", "calls"),
        [(True, False, 1), (False, False, 0), (False, True, 1), (True, True, 1)],
    )
    def test_makes_room_for_a_waiter_and_may_be_the_last(
        self, is_awaited: bool, has_ended: bool, calls: int
    ) -> None:
        made = Made()
        prepared = Prepared(made.taken(), (1,))
        if has_ended:
            made.exhausted()
            made.executor.rooms = 0
        made.job.is_room_awaited = is_awaited
        made.job.item_delivered(prepared)
        assert made.executor.rooms == calls

    def test_gives_its_memory_back(self) -> None:
        made, released = Made(limit_bytes=100), []
        item = made.taken()
        prepared = Prepared(item, (np.zeros(40, "uint8"),), release=lambda: released.append(item))
        assert made.job.item_prepared(prepared)
        assert prepared.size == 40
        made.window.enter()
        assert not made.window.has_room()
        made.job.item_delivered(prepared)
        assert released == [item]
        assert made.window.has_room()

    def test_leaves_the_lock_when_interrupted(self) -> None:
        made = Made()

        def inject(prepared: Prepared) -> None:
            raise KeyboardInterrupt

        made.progress.item_delivered = inject  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            made.job.item_delivered(Prepared(made.taken(), (1,)))
        assert not is_held_here(made.job.lock)


class TestDeliveryByItem:
    def test_as_a_whole(self) -> None:
        made = Made(by_item=True)
        assert made.job.records_prepared
        assert not made.job.streams
        made.window.enter()
        prepared = Prepared(Item(3, "path", 1, 7), ("a", "b"))
        assert made.job.item_prepared(prepared)
        assert prepared.examples == ((1, 3, 7, ("a", "b"), None),)
        prepared.entered = 1
        made.job.item_delivered(prepared)
        progress = made.progress.statistics()
        assert (progress.examples, progress.prepared) == (2, 1)

    def test_without_examples(self) -> None:
        made = Made(by_item=True)
        prepared = Prepared(made.taken(), ())
        assert made.job.item_prepared(prepared)
        assert prepared.examples == ((0, 0, 0, (), None),)
        prepared.entered = 1
        made.job.item_delivered(prepared)
        progress = made.progress.statistics()
        assert (progress.examples, progress.prepared, progress.left_out) == (0, 0, 1)

    @pytest.mark.parametrize(("retried", "is_skipped"), [(2, False), (1, True), (0, True)])
    def test_the_failure_is_delivered(self, retried: int, is_skipped: bool) -> None:
        made = Made(by_item=True)
        prepared = Prepared(made.taken(), (), failures=retried, is_skipped=is_skipped)
        assert made.job.item_prepared(prepared)
        assert prepared.examples[0][-1] == ItemFailure(retried, is_skipped)

    def test_an_example_that_is_refused_by_what_would_end_others(self) -> None:
        def fit(example: Any) -> Any:
            raise OutOfRangeError("of another queue")

        made = Made(by_item=True, fit=fit)
        with pytest.raises(RuntimeError) as caught:
            made.job.item_prepared(Prepared(made.taken(), ("a",)))
        assert str(caught.value) == "an example raised OutOfRangeError: of another queue"
        assert caught.value.__notes__ == ["while preparing item 0 (epoch 0, index 0)"]

    def test_what_an_earlier_run_has_counted(self) -> None:
        made = Made(by_item=True)
        made.progress.restore_counts(ItemCounts(5, 9, 1, 2, 3), lambda item: item.number == 0)
        for number in range(2):
            prepared = Prepared(made.taken(number), ("a",))
            assert made.job.item_prepared(prepared)
            prepared.entered = 1
            made.job.item_delivered(prepared)
        found = made.progress.statistics()
        assert (found.prepared, found.examples, found.left_out) == (6, 10, 1)
        assert (found.skipped, found.retried, found.in_flight) == (2, 3, 0)

    def test_the_end_of_an_epoch_is_no_example(self) -> None:
        made = Made(by_item=True)
        made.window.enter()
        end = EpochEnd(0, 9)
        prepared = Prepared(Item(9, end, 0, 9), (end,))
        assert made.job.item_prepared(prepared)
        assert prepared.examples == ((0, 9, 9, (end,), None),)
        prepared.entered = 1
        made.job.item_delivered(prepared)
        progress = made.progress.statistics()
        assert (progress.examples, progress.prepared, progress.left_out) == (0, 0, 0)


class TestOrder:
    def test_the_worker_with_the_next_item_continues_with_the_rest(self) -> None:
        made = Made(ordered=True)
        zero, one, two, three = (Prepared(made.taken(n), (n,)) for n in range(4))
        assert made.job.records_prepared
        assert made.job.item_prepared(one) is None, "its turn has not come"
        assert made.job.item_prepared(zero) is zero
        assert made.job.item_prepared(two) is None, "another worker is enqueuing in order already"
        assert made.job.item_delivered(zero) is one
        assert made.job.item_delivered(one) is two
        assert made.job.item_delivered(two) is None
        assert made.job.item_prepared(three) is three

    def test_a_known_size_is_not_measured(self) -> None:
        made = Made(limit_bytes=100)
        prepared = Prepared(made.taken(), (np.zeros(80, "uint8"),))
        prepared.size = 7
        made.job.item_prepared(prepared)
        assert prepared.size == 7

    def test_the_first_size_lets_others_in(self) -> None:
        made = Made(1, limit_bytes=100)
        first = Prepared(made.taken(), (b"1234",))
        assert not made.window.has_room()
        made.job.item_prepared(first)
        assert made.executor.rooms == 1
        assert made.window.has_room()

    @pytest.mark.parametrize(
        ("options", "streams", "notes"),
        [
            ({}, True, False),
            ({"ordered": True}, False, True),
            ({"limit_bytes": 9}, False, True),
            ({"on_error": "skip"}, False, False),
        ],
    )
    def test_whether_examples_may_go_before_the_last_is_made(
        self, options: dict[str, Any], streams: bool, notes: bool
    ) -> None:
        job = Made(**options).job
        assert (job.streams, job.records_prepared) == (streams, notes)
