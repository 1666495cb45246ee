"""Leaving a coordinator's block, normally and by any exception, in every world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue.errors import OutOfRangeError, QueueClosedError
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from tests.kit.coordinators import Make, Thread, group_of, notes, same, stragglers, throw
from tests.kit.worlds import CancelledError, TaskWorld, TrioWorld, World, spin_until


class TestBlock:
    async def test_a_normal_end(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        """It requests a stop, and joins."""
        async with make() as coord:
            worker = thread("worker", coord.wait_for_stop)
            if isinstance(world, TaskWorld):
                worker.last = coord.sync.wait_for_stop
            else:
                worker.last = coord.face.wait_for_stop
            coord.register(worker)
            worker.release()
            assert not coord.should_stop()
        assert coord.should_stop()
        assert coord.joined
        assert not worker.is_alive()

    async def test_an_exception_is_one_more_member(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        failure, ours = KeyError(), ValueError()

        async def block() -> None:
            async with make() as coord:
                coord.request_stop(failure)
                raise ours

        group = await group_of(block())
        assert same(group.exceptions, [failure, ours])
        assert notes(ours) == ["in the block of the coordinator"]

    async def test_an_exception_alone(self, world: World, make: Make) -> None:
        coord = make()
        ours = ValueError()

        async def block() -> None:
            async with coord:
                raise ours

        group = await group_of(block())
        assert same(group.exceptions, [ours])
        assert ours.__traceback__ is not None
        assert coord.joined

    async def test_failures_of_workers_after_the_stop(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        coord = make()
        ours, theirs = ValueError(), KeyError()

        def last() -> None:
            spin_until(coord.should_stop)
            coord.request_stop(theirs)
            coord.request_stop(QueueClosedError())

        worker = thread("worker", last)
        coord.register(worker)
        worker.release()

        async def block() -> None:
            async with coord:
                raise ours

        assert same((await group_of(block())).exceptions, [ours, theirs])

    async def test_a_clean_stop_ends_it_normally(self, world: World, make: Make) -> None:
        coord = make()
        async with coord:
            throw(OutOfRangeError())
        assert coord.joined
        async with make(KeyError) as other:
            throw(KeyError())
        assert other.joined

    async def test_a_loop_over_a_queue_that_a_failure_closed_is_no_clean_stop(
        self, world: World, make: Make
    ) -> None:
        """No worker reports that failure, and the loop has not seen all elements."""
        queue = world.fifo(3)
        await queue.enqueue(1)
        queue.close(cause=ConnectionError("the feed is down"))
        taken = []

        async def block() -> None:
            async with make():
                async for element in queue:
                    taken.append(element)  # noqa: PERF401

        [end] = (await group_of(block())).exceptions
        assert taken == [1]
        assert isinstance(end, OutOfRangeError)
        assert isinstance(end.__cause__, ConnectionError)

    @pytest.mark.parametrize("first", ["failure", "end"])
    @pytest.mark.parametrize("grouped", [False, True])
    async def test_an_end_caused_by_a_reported_failure_is_not_reported_again(
        self, world: World, make: Make, first: str, grouped: bool
    ) -> None:
        """In either order, and inside groups: the failure is reported once."""
        failure: Exception = ConnectionError("the feed is down")
        queue, next_one = world.fifo(3), world.fifo(3)
        queue.close(cause=failure)
        with pytest.raises(OutOfRangeError) as raised:
            await queue.dequeue()
        next_one.close(cause=raised.value)  # as a chain of queues passes it on
        reported = ExceptionGroup("tasks", [failure]) if grouped else failure

        async def block() -> None:
            async with make() as coord:
                if first == "failure":
                    coord.request_stop(reported)
                try:
                    async for _ in next_one:
                        pass
                except OutOfRangeError as end:
                    if first == "failure":
                        raise
                    coord.request_stop(end)
                    coord.request_stop(reported)

        assert same((await group_of(block())).exceptions, [reported])

    async def test_a_clean_stop_and_failures(self, world: World, make: Make) -> None:
        failure = ValueError()

        async def block() -> None:
            async with make() as coord:
                coord.request_stop(failure)
                raise OutOfRangeError

        assert same((await group_of(block())).exceptions, [failure])

    async def test_consequences_of_the_stop_end_it_normally(self, world: World, make: Make) -> None:
        async with make() as coord:
            coord.request_stop()
            throw(QueueClosedError())
        assert coord.joined

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
    async def test_ctrl_c_leaves_the_block(
        self, world: World, make: Make, kind: type[BaseException]
    ) -> None:
        coord = make()
        failure = ValueError()

        async def block(*failures: Exception) -> None:
            async with coord:
                for error in failures:
                    coord.request_stop(error)
                raise kind

        with pytest.raises(kind):
            await block()
        assert coord.joined
        coord.clear_stop()
        with pytest.raises(kind) as caught:
            await block(failure)
        assert isinstance(caught.value.__context__, ExceptionGroup)
        assert same(caught.value.__context__.exceptions, [failure])

    async def test_ctrl_c_keeps_its_context(self, world: World, make: Make) -> None:
        context = ValueError()

        async def block() -> None:
            async with make():
                try:
                    raise context
                except ValueError:
                    raise KeyboardInterrupt  # noqa: B904  # the context is what this is about

        with pytest.raises(KeyboardInterrupt) as caught:
            await block()
        assert caught.value.__context__ is context

    async def test_a_failing_join_inside(self, world: World, make: Make) -> None:
        coord = make()
        failure = ValueError()

        async def block() -> None:
            async with coord:
                coord.request_stop(failure)
                await coord.join()

        group = await group_of(block())
        assert failure in group.exceptions
        await self.check_reusable(coord)

    async def test_an_exception_after_a_join_inside(self, world: World, make: Make) -> None:
        coord = make()
        failure = ValueError()

        async def block() -> None:
            async with coord:
                await coord.join()
                raise failure

        with pytest.raises((ValueError, ExceptionGroup)) as caught:
            await block()
        assert failure in (caught.value, *getattr(caught.value, "exceptions", ()))
        await self.check_reusable(coord)

    async def check_reusable(self, coord: Any) -> None:
        """Check that the block can be entered again."""
        coord.clear_stop()
        async with coord:
            assert not coord.should_stop()
        assert coord.joined

    async def test_reuse_after_clear_stop(self, world: World, make: Make) -> None:
        coord = make()
        async with coord:
            pass
        await self.check_reusable(coord)

    async def test_its_grace_period(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        async def block() -> None:
            async with make(stop_grace_period=0) as coord:
                coord.register(thread("slow"))

        group = await group_of(block())
        assert stragglers(group) == [("slow",)]

    def test_cannot_be_entered_twice_at_once(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            async with aioqueue.Coordinator() as coord:
                with pytest.raises(RuntimeError, match="entered already"):
                    await coord.__aenter__()

        task_world.run(body)

    @pytest.mark.parametrize("failing", [False, True], ids=["clean", "failing"])
    @pytest.mark.parametrize("by", ["cancel", "timeout", "anyio"])
    def test_cancellation(
        self, task_world: TaskWorld, by: str, failing: bool, thread: Callable[..., Thread]
    ) -> None:
        """The exit still stops and joins. Failures take precedence, as in `asyncio.TaskGroup`."""
        coord = aioqueue.Coordinator()
        failure = ValueError()
        inside = Gate()

        def last() -> None:
            coord.sync.wait_for_stop()
            if failing:
                coord.request_stop(failure)

        worker = thread("worker", last)
        coord.register(worker)
        worker.release()

        async def block() -> None:
            async with coord:
                inside.open()
                await Gate().wait(current_waker())

        async def in_scope() -> None:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(block)
                    await inside.wait(current_waker())
                    scope.cancel()
            raise CancelledError

        async def cancelled() -> None:
            if by == "timeout":
                await task_world.within(0.001, block)
            elif by == "anyio":
                await in_scope()
            else:
                operation = task_world.spawn(block)
                await task_world.until(lambda: inside.is_open)
                operation.cancel()
                await operation.result()

        async def body() -> None:
            if failing:
                group = await group_of(cancelled())
                while by == "anyio" and len(group.exceptions) == 1:
                    inner = group.exceptions[0]
                    if not isinstance(inner, ExceptionGroup):
                        break
                    group = inner  # a task group has wrapped it
                assert same(group.exceptions, [failure])
            else:
                with pytest.raises(CancelledError):
                    await cancelled()
            assert coord.should_stop()
            assert coord.joined
            assert not worker.is_alive()

        task_world.run(body)

    def test_cancellation_during_exit(
        self, task_world: TaskWorld, thread: Callable[..., Thread]
    ) -> None:
        """The join runs to its end; then the block raises the cancellation."""

        async def body() -> None:
            coord = aioqueue.Coordinator()
            worker = thread()
            coord.register(worker)

            async def block() -> None:
                async with coord:
                    pass

            operation = task_world.spawn(block)
            await task_world.until(coord.should_stop)
            for _ in range(3):
                operation.cancel()
                await task_world.tick()
                await task_world.tick()
                assert not operation.done
            worker.release()
            was_cancelled = await operation.was_cancelled()
            # In trio, what was asked for when the last thing is being done is too late.
            assert was_cancelled or isinstance(task_world, TrioWorld)
            assert coord.joined
            assert not worker.is_alive()
            coord.clear_stop()
            async with coord:  # it has been left properly
                assert not coord.should_stop()

        task_world.run(body)
