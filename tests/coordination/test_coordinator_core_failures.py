"""Failures are recorded and reported once, in order, in every world."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest
import trio

import aioqueue
from aioqueue.errors import InvalidArgumentError, OutOfRangeError, QueueClosedError
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from tests.kit.coordinators import AwaitedCoordinator, Make, group_of, notes, same, throw
from tests.kit.worlds import PATIENCE, AsyncioWorld, TaskWorld, World, waiting_at


class TestFailures:
    async def test_the_object_itself_is_recorded(self, world: World, make: Make) -> None:
        coord = make()
        error = ValueError("x")
        coord.request_stop(error)
        group = await group_of(coord.join())
        assert same(group.exceptions, [error])
        assert str(group).endswith(" failed: ValueError: x (1 sub-exception)")
        assert error.__traceback__ is None

    async def test_the_given_exception_is_recorded_not_the_one_being_handled(
        self, world: World, make: Make
    ) -> None:
        coord = make()
        error = ValueError("x")
        try:
            raise KeyError
        except KeyError:
            coord.request_stop(error)
        assert same((await group_of(coord.join())).exceptions, [error])

    async def test_all_are_reported_in_order(self, world: World, make: Make) -> None:
        coord = make()
        errors: list[BaseException] = [ValueError(number) for number in range(5)]
        for error in errors:
            coord.request_stop(error)
        group = await group_of(coord.join())
        assert same(group.exceptions, errors)
        assert " failed: ValueError: 0, and 4 more failures (5 sub-" in str(group)

    async def test_a_note_names_the_worker(self, world: World, make: Make) -> None:
        coord = make()
        error = ValueError()
        other = threading.Thread(target=coord.request_stop, args=(error,), name="reader-7")
        other.start()
        other.join(PATIENCE)
        assert notes(error) == ["in worker reader-7"]
        assert same((await group_of(coord.join())).exceptions, [error])
        assert notes(error) == ["in worker reader-7"]

    def test_a_note_names_the_task(self, loop_world: AsyncioWorld) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()
            error = ValueError()

            async def fail() -> None:
                coord.request_stop(error)

            await asyncio.create_task(fail(), name="reader-7")
            assert notes(error) == ["in worker reader-7"]

        loop_world.run(body)

    def test_a_note_names_the_trio_task(self) -> None:
        coord = aioqueue.Coordinator()
        error = ValueError()

        async def fail() -> None:
            coord.request_stop(error)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail, name="reader-7")

        trio.run(main)
        assert notes(error) == ["in worker reader-7"]

    async def test_one_object_counts_once(self, world: World, make: Make) -> None:
        coord = make()
        error = ValueError()
        for _ in range(3):
            coord.request_stop(error)
        assert same((await group_of(coord.join())).exceptions, [error])
        assert len(notes(error)) == 1

    async def test_equal_exceptions_are_different_failures(self, world: World, make: Make) -> None:
        class EqualError(Exception):
            def __eq__(self, other: object) -> bool:
                return True

            __hash__ = Exception.__hash__

        coord = make()
        errors: list[BaseException] = [EqualError(), EqualError()]
        for error in errors:
            coord.request_stop(error)
        assert same((await group_of(coord.join())).exceptions, errors)

    async def test_clean_stops_are_left_out(self, world: World, make: Make) -> None:
        coord = make()
        coord.request_stop(OutOfRangeError())
        assert coord.should_stop()
        coord.raise_requested_exception()
        await coord.join()

    async def test_a_failure_after_a_clean_stop(self, world: World, make: Make) -> None:
        coord = make()
        coord.request_stop(OutOfRangeError())
        error = ValueError()
        coord.request_stop(error)
        assert same((await group_of(coord.join())).exceptions, [error])

    async def test_other_clean_types(self, world: World, make: Make) -> None:
        for types in ((KeyError, StopIteration), [KeyError], iter([KeyError]), KeyError):
            coord = make(types)
            coord.request_stop(KeyError())
            out_of_range = OutOfRangeError()
            assert coord.should_stop()
            coord.raise_requested_exception()
            coord.clear_stop()
            coord.request_stop(out_of_range)
            assert same((await group_of(coord.join())).exceptions, [out_of_range])

    async def test_no_clean_types(self, world: World, make: Make) -> None:
        coord = make(())
        error = OutOfRangeError()
        coord.request_stop(error)
        assert same((await group_of(coord.join())).exceptions, [error])

    async def test_failures_after_a_stop_are_recorded(self, world: World, make: Make) -> None:
        coord = make()
        coord.request_stop()
        error = ValueError()
        coord.request_stop(error)
        assert same((await group_of(coord.join())).exceptions, [error])

    @pytest.mark.parametrize(
        "kind",
        [
            QueueClosedError,
            OutOfRangeError,
            asyncio.CancelledError,
            concurrent.futures.CancelledError,
        ],
    )
    async def test_consequences_of_the_stop_are_left_out(
        self, world: World, make: Make, kind: type[BaseException]
    ) -> None:
        coord = make()
        coord.request_stop()
        coord.request_stop(kind())
        await coord.join()

    async def test_consequences_of_the_stop_in_a_task_group_of_a_worker(
        self, world: World, make: Make
    ) -> None:
        coord = make()
        coord.request_stop()
        coord.request_stop(ExceptionGroup("", [QueueClosedError(), OutOfRangeError()]))
        coord.raise_requested_exception()
        mixed = ExceptionGroup("", [QueueClosedError(), ValueError()])
        coord.request_stop(mixed)
        assert same((await group_of(coord.join())).exceptions, [mixed])

    async def test_a_closed_queue_before_the_stop_is_a_failure(
        self, world: World, make: Make
    ) -> None:
        coord = make()
        error = QueueClosedError()
        coord.request_stop(error)
        assert same((await group_of(coord.join())).exceptions, [error])

    def test_the_cancellation_of_a_trio_task_is_a_consequence_of_the_stop(self) -> None:
        async def main() -> None:
            coord = aioqueue.Coordinator()
            coord.request_stop()
            with trio.CancelScope() as scope:
                scope.cancel()
                try:
                    await trio.lowlevel.checkpoint()
                except trio.Cancelled as error:
                    coord.request_stop(error)
                    raise
            await coord.join()
            assert coord.joined

        trio.run(main)

    async def test_raise_requested_exception(self, world: World, make: Make) -> None:
        coord = make()
        coord.raise_requested_exception()
        coord.request_stop()
        coord.raise_requested_exception()
        errors: list[BaseException] = [ValueError(), KeyError()]
        for error in errors:
            coord.request_stop(error)
        for _ in range(2):
            with pytest.raises(ExceptionGroup) as caught:
                coord.raise_requested_exception()
            assert same(caught.value.exceptions, errors)

    async def test_every_join_raises(self, world: World, make: Make) -> None:
        coord = make()
        error = ValueError()
        coord.request_stop(error)
        groups = [await group_of(coord.join()) for _ in range(3)]
        assert all(same(group.exceptions, [error]) for group in groups)
        assert len({id(group) for group in groups}) == 3
        assert coord.joined

    async def test_after_the_join_a_failure_is_raised_at_once(
        self, world: World, make: Make
    ) -> None:
        coord = make()
        await coord.join()
        assert coord.joined
        error = ValueError()
        with pytest.raises(ValueError) as caught:  # noqa: PT011  # the very object
            coord.request_stop(error)
        assert caught.value is error
        assert not coord.should_stop()
        coord.request_stop(OutOfRangeError())
        assert coord.should_stop()
        coord.request_stop()
        await coord.join()

    async def test_base_exceptions_make_a_base_group(self, world: World, make: Make) -> None:
        coord = make()
        error = SystemExit()
        coord.request_stop(error)
        with pytest.raises(BaseExceptionGroup) as caught:
            await coord.join()
        assert not isinstance(caught.value, ExceptionGroup)
        assert same(caught.value.exceptions, [error])

    async def test_refuses_anything_but_exceptions(self, world: World, make: Make) -> None:
        for wrong in ("x", ValueError, (ValueError, ValueError(), None), 0):
            coord = make()
            with pytest.raises(InvalidArgumentError, match=r"error: got .*; expected an exception"):
                coord.request_stop(wrong)
            assert not coord.should_stop()
            await coord.join()

    async def test_repr(self, world: World, make: Make) -> None:
        coord = make()
        face = coord.face if isinstance(coord, AwaitedCoordinator) else coord
        kind = "aioqueue.sync" if isinstance(coord, AwaitedCoordinator) else "aioqueue"
        assert repr(face) == f"<{kind}.Coordinator running, 0 failures>"
        coord.request_stop(ValueError())
        assert repr(face) == f"<{kind}.Coordinator stopped, 1 failure>"
        await group_of(coord.join())
        assert repr(face) == f"<{kind}.Coordinator joined, 1 failure>"

    async def test_wrong_clean_types(self, world: World, make: Make) -> None:
        for wrong in (5, [5], ["ValueError"], [int]):
            with pytest.raises(InvalidArgumentError, match=r"clean_stop_exception_types: got"):
                make(wrong)

    async def test_wrong_grace_periods(self, world: World, make: Make) -> None:
        coord = make()
        for wrong in ("1", None, True, float("nan")):
            with pytest.raises(InvalidArgumentError, match=r"stop_grace_period: got .* seconds"):
                make(stop_grace_period=wrong)
            with pytest.raises(InvalidArgumentError, match=r"stop_grace_period: got .* seconds"):
                await coord.join(stop_grace_period=wrong)
        assert not coord.joined


class TestStopOnException:
    async def test_nothing_happens_without_an_exception(self, world: World, make: Make) -> None:
        coord = make()
        with coord.stop_on_exception():
            pass
        assert not coord.should_stop()

    async def test_a_failure_is_swallowed(self, world: World, make: Make) -> None:
        coord = make()
        error = ValueError()
        with coord.stop_on_exception():
            throw(error)
        assert coord.should_stop()
        assert same((await group_of(coord.join())).exceptions, [error])
        assert error.__traceback__ is not None

    async def test_a_clean_stop(self, world: World, make: Make) -> None:
        coord = make()
        with coord.stop_on_exception():
            throw(OutOfRangeError())
        assert coord.should_stop()
        await coord.join()

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
    async def test_other_exceptions_propagate(
        self, world: World, make: Make, kind: type[BaseException]
    ) -> None:
        coord = make()
        with pytest.raises(kind), coord.stop_on_exception():
            raise kind
        assert coord.should_stop()
        await coord.join()

    def test_a_cancellation_propagates(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()
            never = Gate()

            async def worker() -> None:
                with coord.stop_on_exception():
                    await never.wait(current_waker())

            operation = task_world.spawn(worker)
            await task_world.until(lambda: waiting_at(never))
            operation.cancel()
            assert await operation.was_cancelled()
            assert coord.should_stop()
            await coord.join()

        task_world.run(body)

    async def test_after_the_join_a_failure_propagates(self, world: World, make: Make) -> None:
        coord = make()
        await coord.join()
        error = ValueError()
        with pytest.raises(ValueError) as caught, coord.stop_on_exception():  # noqa: PT011
            raise error
        assert caught.value is error
