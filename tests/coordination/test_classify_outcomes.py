"""The meaning of exceptions: every shape, raised at every place.

An end is one only where it is of the worker's own queue or source; a cancellation only if somebody
has asked for it; all else is a failure, reported once, whatever its class makes of being reported.
And whatever it is: everything stops and is joined, and the queue is closed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.coordination.cancellations import Call
from aioqueue.coordination.classify import Classification, as_failure, classify
from aioqueue.errors import OutOfRangeError, QueueClosedError, add_note
from aioqueue.processes.failures import RemoteTraceback
from aioqueue.workers.runner import prepare
from tests.kit.pipelines import coordinated, joined
from tests.kit.worlds import AsyncioWorld, TaskWorld, ThreadWorld, World


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """An exception that cannot be written to."""

    line: int = 3


class SealedError(Exception):
    """An exception that has nothing in it, and cannot be written to either."""

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError(name)


class UnprintableError(Exception):
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise ValueError("nothing")


class FalseError(Exception):
    """An exception that is false, as one that lists errors and has none."""

    def __len__(self) -> int:
        return 0


class AmbiguousError(Exception):
    """An exception that is neither true nor false, as an array of several numbers."""

    def __bool__(self) -> bool:
        raise ValueError("the truth of this is ambiguous")


class FatalError(BaseException):
    """An exception like `KeyboardInterrupt`."""


def ends() -> list[Exception]:
    return [OutOfRangeError("one"), OutOfRangeError("another")]


SHAPES: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: ValueError("plain"),
    "frozen": FrozenError,
    "mute": UnprintableError,
    "sealed": SealedError,
    "empty": FalseError,
    "ambiguous": AmbiguousError,
    "end": lambda: OutOfRangeError("of another queue"),
    "closed": lambda: QueueClosedError("another queue"),
    "group of ends": lambda: ExceptionGroup("ends", ends()),
    "nested ends": lambda: ExceptionGroup("a", [ExceptionGroup("b", ends()), OutOfRangeError()]),
    "mixed": lambda: ExceptionGroup("mixed", [OutOfRangeError(), ValueError("mixed")]),
    "nested mixed": lambda: ExceptionGroup(
        "a", [*ends(), ExceptionGroup("b", [ExceptionGroup("c", [FrozenError()])])]
    ),
    "fatal": FatalError,
    "exit": lambda: SystemExit(3),
    "fatal group": lambda: BaseExceptionGroup("fatal", [OutOfRangeError(), FatalError()]),
    "generator exit": GeneratorExit,
    "asyncio": lambda: asyncio.CancelledError("stray"),
    "futures": lambda: concurrent.futures.CancelledError("stray"),
    "aioqueue": lambda: aioqueue.CancelledError("stray"),
    "group of strays": lambda: BaseExceptionGroup("strays", [asyncio.CancelledError()]),
    "strays and failures": lambda: BaseExceptionGroup(
        "both", [asyncio.CancelledError(), ValueError("beside")]
    ),
    "stop iteration": lambda: StopIteration(4),
}


def raise_at_two(shape: str, number: int) -> int:
    if number == 2:
        raise SHAPES[shape]()
    return number


ENDS = ("end", "group of ends", "nested ends")
FATAL = ("fatal", "exit", "fatal group")


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["thread", "task"])
def is_task(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def holds(failure: BaseException | None, error: BaseException) -> bool:
    """Return whether a failure is an exception, or names it."""
    if failure is None or failure is error:
        return failure is error
    parts = failure.exceptions if isinstance(failure, BaseExceptionGroup) else ()
    return holds(failure.__cause__, error) or any(holds(part, error) for part in parts)


def check_reported(raised: BaseException | None, error: BaseException) -> None:
    """Check that a block has raised a group with this exception only."""
    assert isinstance(raised, BaseExceptionGroup), repr(raised)
    (failure,) = raised.exceptions
    assert holds(failure, error), repr(failure)


def face_of(queue: Any) -> Any:
    """A queue of a world by the face that it has there."""
    return queue.face if hasattr(queue, "face") else queue


async def run(world: World, runner: Any, *, take: int | None = None) -> BaseException | None:
    """Run a runner in a coordinator, take what comes, and leave; returns what that has raised."""
    queue = runner.queue
    coords = []
    try:
        async with coordinated(world, stop_grace_period=20) as coord:
            coords.append(coord)
            coord.start(runner)
            if take is None and isinstance(world, ThreadWorld):
                list(queue)
            elif take is None:
                async for _ in queue:
                    pass
            else:
                await world.until(lambda: queue.size() >= take)
                queue.close(cancel_pending_enqueues=True)
                # A stop would cancel the tasks, and then a cancellation has been asked for.
                await joined(coord)
    except BaseException as raised:
        return raised
    finally:
        assert queue.is_closed()
        assert coords[0].joined
        assert repr(runner).endswith(("idle>", "ended>"))
    return None


async def test_of_an_op(world: World, shape: str, is_task: bool) -> None:
    error = SHAPES[shape]()

    def op() -> None:
        raise error

    async def op_async() -> None:
        raise error

    kind = sync.QueueRunner if isinstance(world, ThreadWorld) else aioqueue.QueueRunner
    raised = await run(world, kind(face_of(world.fifo(4)), op_async if is_task else op))
    if shape in ENDS:
        assert raised is None
    else:
        check_reported(raised, error)


@pytest.mark.parametrize("is_task", [False, True], ids=["thread", "task"])
def test_of_an_op_that_raises_a_group_too_deep(is_task: bool) -> None:
    """The group is too deep to classify: that error is the worker's failure."""
    error: Exception = ValueError("at the bottom")
    for _ in range(5000):
        error = ExceptionGroup("deep", [error])

    def op() -> None:
        raise error

    async def op_async() -> None:
        raise error

    queue = aioqueue.FIFOQueue(4)

    async def body() -> None:
        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.QueueRunner(queue, [op_async if is_task else op]))
            await queue.wait_closed()
            with pytest.raises(OutOfRangeError) as ended:
                await queue.dequeue()
            assert isinstance(ended.value.__cause__, RecursionError)

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(body())
    (failure,) = raised.value.exceptions
    assert isinstance(failure, RecursionError)


class TestOfPrepare:
    @pytest.mark.slow(every=5)
    @pytest.mark.parametrize("options", [{}, {"ordered": True}], ids=["as they come", "ordered"])
    async def test_the_function(
        self, world: World, shape: str, is_task: bool, options: dict[str, Any]
    ) -> None:
        """No exception of it counts as the end of the source."""
        error = SHAPES[shape]()

        def make(number: int) -> int:
            if number == 2:
                raise error
            return number

        async def make_async(number: int) -> int:
            return make(number)

        queue = face_of(world.fifo(4))
        function = make_async if is_task else make
        check_reported(
            await run(world, prepare(range(9), function, into=queue, workers=2, **options)), error
        )

    @pytest.mark.parametrize(
        "shape", ["end", "nested ends", "closed", "asyncio", "group of strays"]
    )
    def test_the_function_in_a_process(self, shape: str) -> None:
        queue = sync.FIFOQueue(4)
        make = functools.partial(raise_at_two, shape)
        runner = prepare(range(9), make, into=queue, where="process", workers=1)
        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            coord.start(runner)
            list(queue)
        (failure,) = caught.value.exceptions
        assert isinstance(failure, RuntimeError)
        assert any("while preparing item 2" in note for note in failure.__notes__)

    @pytest.mark.parametrize("shape", ["sealed", "mute"])
    def test_a_strange_exception_in_a_process(self, shape: str) -> None:
        queue = sync.FIFOQueue(4)
        make = functools.partial(raise_at_two, shape)
        runner = prepare(range(9), make, into=queue, where="process", workers=1)
        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            coord.start(runner)
            list(queue)
        (failure,) = caught.value.exceptions
        assert type(failure) is type(SHAPES[shape]())
        assert isinstance(failure.__cause__, RemoteTraceback)

    @pytest.mark.slow(every=3)
    async def test_the_function_with_skipped_items(
        self, world: World, shape: str, is_task: bool
    ) -> None:
        error = SHAPES[shape]()

        def make(number: int) -> int:
            if number == 2:
                raise error
            return number

        async def make_async(number: int) -> int:
            return make(number)

        function = make_async if is_task else make
        runner = prepare(range(9), function, into=face_of(world.fifo(4)), on_error="skip")
        raised = await run(world, runner)
        if shape in FATAL:
            check_reported(raised, error)
        else:
            assert raised is None
            assert (runner.statistics().skipped, runner.statistics().prepared) == (1, 8)
            assert len(runner.quarantine) == 1

    @pytest.mark.slow(every=4)
    async def test_the_source(self, world: World, shape: str, is_task: bool) -> None:
        error = SHAPES[shape]()

        def source() -> Iterator[int]:
            yield 1
            raise error

        async def source_async() -> AsyncIterator[int]:
            yield 1
            raise error

        async def make(number: int) -> int:
            return number

        queue = face_of(world.fifo(4))
        for items in (source(), source_async()):
            if queue.is_closed():
                queue = face_of(world.fifo(4))
                error = SHAPES[shape]()
            raised = await run(world, prepare(items, make if is_task else abs, into=queue))
            if shape in ENDS:
                assert raised is None
            else:
                check_reported(raised, error)

    @pytest.mark.slow(every=4)
    async def test_the_clean_up_of_the_source(
        self, world: World, shape: str, is_task: bool
    ) -> None:
        if shape == "generator exit":
            pytest.skip("a generator that raises it has been closed well")
        error = SHAPES[shape]()

        def source() -> Iterator[int]:
            try:
                while True:
                    yield 1
            finally:
                raise error

        async def source_async() -> AsyncIterator[int]:
            try:
                while True:
                    yield 1
            finally:
                raise error

        async def make(number: int) -> int:
            return number

        for items in (source(), source_async()):
            error = SHAPES[shape]()
            queue = face_of(world.fifo(4))
            runner = prepare(items, make if is_task else abs, into=queue, workers=2)
            check_reported(await run(world, runner, take=4), error)

    async def test_the_function_and_the_clean_up(self, world: World, is_task: bool) -> None:
        """Both are reported."""
        errors = [ValueError("of the function"), KeyError("of the clean-up")]

        def source() -> Iterator[int]:
            try:
                while True:
                    yield 1
            finally:
                raise errors[1]

        def make(number: int) -> int:
            raise errors[0]

        async def make_async(number: int) -> int:
            return make(number)

        function = make_async if is_task else make
        raised = await run(
            world, prepare(source(), function, into=face_of(world.fifo(4)), workers=1)
        )
        for error in errors:
            check_reported(raised, error)


class TestOfABlock:
    async def test_its_body(self, world: World, shape: str) -> None:
        error = SHAPES[shape]()
        raised: BaseException | None = None
        coord: Any
        try:
            if isinstance(world, ThreadWorld):
                coord = sync.Coordinator()
                with coord:
                    raise error
            else:
                coord = aioqueue.Coordinator()
                async with coord:
                    raise error
        except BaseException as got:
            raised = got
        assert coord.joined
        if shape in ENDS:
            assert raised is None
        elif shape in FATAL or shape == "generator exit":
            assert raised is error
        elif isinstance(world, ThreadWorld) and not isinstance(error, Exception):
            assert raised is error  # what is no `Exception` goes on there
        elif shape == "closed" or shape in ("futures", "aioqueue"):
            check_reported(raised, error)  # nothing had stopped it before
        elif shape == "strays and failures":
            assert raised is not None
            assert holds(raised, error)
        else:
            check_reported(raised, error)

    @pytest.mark.parametrize("how", ["registered", "registered at its end", "joined"])
    def test_a_registered_task(self, shape: str, how: str) -> None:
        if shape in ("exit", "asyncio", "stop iteration"):
            pytest.skip("asyncio makes something else of it")
        error = SHAPES[shape]()

        async def work() -> None:
            raise error

        async def body() -> None:
            task = asyncio.create_task(work(), name="given")
            if how != "registered":
                await asyncio.wait([task])
            raised: BaseException | None = None
            coord = aioqueue.Coordinator()
            try:
                async with coord:
                    if how == "joined":
                        coord.request_stop()
                        await coord.join([task])
                    else:
                        coord.register(task)
            except BaseException as got:
                raised = got
            stopping = how == "joined" and shape in ("closed", "futures", "aioqueue")
            if shape in ENDS or stopping or (how, shape) == ("joined", "group of strays"):
                assert raised is None
            elif raised is None:
                # The stop had come before it failed: then it may be what stopping causes.
                assert how == "registered"
                assert shape in ("closed", "futures", "aioqueue", "group of strays")
            else:
                check_reported(raised, error)
                assert "in worker given" in getattr(error, "__notes__", ["in worker given"])

        AsyncioWorld().run(body)


class TestMeaning:
    def test_a_requested_cancellation_is_a_stop(self, task_world: TaskWorld) -> None:
        meanings: list[Classification] = []

        async def wait() -> None:
            call = Call()
            try:
                await task_world.until(lambda: False)
            except BaseException as error:
                meanings.append(classify(error, owner=call))
                group = BaseExceptionGroup("with others", [error, ExceptionGroup("ends", ends())])
                meanings.append(classify(group, (OutOfRangeError,), owner=call))
                group = BaseExceptionGroup("failing", [group, ValueError()])
                meanings.append(classify(group, owner=call))
                raise

        async def body() -> None:
            operation = task_world.spawn(wait)
            await task_world.tick()
            operation.cancel()
            assert await operation.was_cancelled()
            assert meanings == [Classification.STOP, Classification.STOP, Classification.FAILURE]
            assert classify(asyncio.CancelledError()) is Classification.FAILURE

        task_world.run(body)

    def test_a_coroutine_that_is_closed(self, task_world: TaskWorld) -> None:
        """Beside one that raises the same exception itself."""
        meanings: list[Classification] = []

        async def wait() -> None:
            owner = Call()
            owner.task = object()  # a task that is not running now
            try:
                await asyncio.Future[None]()
            except GeneratorExit as error:
                meanings.append(classify(error, owner=owner))
                raise

        async def body() -> None:
            coroutine = wait()
            if isinstance(task_world, AsyncioWorld):
                coroutine.send(None)
                coroutine.close()
                assert meanings.pop() is Classification.STOP
            coroutine.close()
            assert classify(GeneratorExit(), owner=Call()) is Classification.FAILURE
            assert classify(GeneratorExit()) is Classification.FAILURE

        task_world.run(body)

    def test_consequences_of_the_stop_count_during_the_stop(self) -> None:
        for error in (OutOfRangeError(), QueueClosedError(), asyncio.CancelledError()):
            assert classify(error) is Classification.FAILURE
            assert classify(error, stopping=True) is Classification.STOP
        assert classify(ValueError(), stopping=True) is Classification.FAILURE

    def test_unmistakable_failures_are_not_wrapped(self) -> None:
        for error in (ValueError(), FatalError(), ExceptionGroup("mixed", [ValueError(), *ends()])):
            assert as_failure(error, "wrapped") is error
        for shape in ("end", "closed", "nested ends", "asyncio", "generator exit"):
            mistakable = SHAPES[shape]()
            wrapped = as_failure(mistakable, "wrapped")
            assert isinstance(wrapped, RuntimeError)
            assert wrapped.__cause__ is mistakable

    def test_a_note_is_added_once_and_where_one_can_be(self) -> None:
        error = ValueError()
        add_note(error, "once")
        add_note(error, "once")
        assert error.__notes__ == ["once"]
        frozen = FrozenError()
        add_note(frozen, "never")
        assert not hasattr(frozen, "__notes__")


@pytest.mark.parametrize("shape", SHAPES)
def test_stop_on_exception_does_not_change_other_exceptions(shape: str) -> None:
    """A failure after the last join, and anything but an `Exception`, propagates unchanged."""
    coord = sync.Coordinator()
    error = SHAPES[shape]()
    if isinstance(error, Exception):
        coord.request_stop()
        coord.join()
    raised = None
    try:
        with coord.stop_on_exception():
            raise error
    except BaseException as caught:
        raised = caught
    is_clean = shape in ENDS
    assert raised is (None if is_clean else error)
    assert coord.should_stop()


def test_stop_on_exception_as_a_decorator() -> None:
    coord = sync.Coordinator()

    @coord.stop_on_exception()
    def fail() -> None:
        raise ValueError("said once")

    fail()
    with pytest.raises(ExceptionGroup):
        coord.join()
