"""Batchers that other processes call: contexts, cancellations, deaths, what cannot be pickled."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from tests.kit.owners import Owner
from tests.kit.worlds import spin_until

pytestmark = pytest.mark.slow(but="quick")


class Poison:
    """A value that only its own process can unpickle; and a result that cannot be pickled."""

    def __reduce__(self) -> Any:
        return _unpickled_by_none_but, (os.getpid(),)


def _unpickled_by_none_but(pid: int) -> Poison:
    if os.getpid() != pid:
        raise ValueError("not here")
    return Poison()


# What the other process does: it is the client.


def called(batcher: Any, value: Any, **options: Any) -> Any:
    return batcher.sync(value, **options)


def called_together(batcher: Any, values: list[Any]) -> list[Any]:
    async def main() -> list[Any]:
        return await asyncio.gather(*map(batcher.aio, values), return_exceptions=True)

    return asyncio.run(main())


def called_in_a_trace(batcher: Any, value: Any) -> Any:
    from opentelemetry import baggage, context, trace
    from opentelemetry.sdk.trace import TracerProvider

    async def main() -> tuple[int, Any]:
        context.attach(baggage.set_baggage("user", "Ada"))
        tracer = TracerProvider().get_tracer("test")
        with tracer.start_as_current_span("request") as span:
            return span.get_span_context().trace_id, await batcher.aio(value)

    assert trace.get_current_span() is not None
    return asyncio.run(main())


def begun(batcher: Any, count: int) -> None:
    """Begin calls that nobody waits for."""
    for number in range(count):
        threading.Thread(target=_ignored, args=(batcher, number), daemon=True).start()


def _ignored(batcher: Any, value: Any) -> None:
    try:
        batcher.sync(value)
    except Exception:
        pass


def timed_out(batcher: Any, value: Any) -> bool:
    async def main() -> bool:
        try:
            async with asyncio.timeout(0.05):
                await batcher.aio(value)
        except TimeoutError:
            return True
        return False

    return asyncio.run(main())


class Model:
    """A function that can be held up, and notes its batches."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.may_go.set()
        self.batches: list[list[Any]] = []

    def __call__(self, values: list[Any]) -> list[Any]:
        self.batches.append(list(values))
        self.may_go.wait(20)
        return [2 * value for value in values]


@contextmanager
def client() -> Iterator[Owner]:
    """Another process, which this one may kill."""
    owner = Owner()
    try:
        yield owner
    finally:
        owner.close()


def test_a_call_of_another_process_quick(owner: Owner) -> None:
    with sync.Batcher(Model()) as batcher:
        batcher.share()
        assert owner.call(called, batcher, 21) == 42
        assert owner.call(called_together, batcher, [*range(50)]) == [*range(0, 100, 2)]
        assert batcher.statistics().answered == 51
    with pytest.raises(aioqueue.QueueClosedError, match="its block has been left"):
        owner.call(called, batcher, 1)


def test_a_handle_comes_home(owner: Owner) -> None:
    with sync.Batcher(Model()) as batcher:
        batcher.share()
        assert pickle.loads(pickle.dumps(batcher)) is batcher
        assert pickle.loads(pickle.dumps(batcher.aio)) is batcher.aio
        assert owner.call(its_repr, batcher).endswith(
            f"batches of up to 32, shared by process {os.getpid()}>"
        )
        with pytest.raises(RuntimeError, match="only the process that has made it enters"):
            owner.call(entered, batcher)


def its_repr(batcher: Any) -> str:
    return repr(batcher)


def entered(batcher: Any) -> None:
    with batcher.sync:
        pass


def test_what_is_not_shared_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match=r"Share it \(`batcher\.share\(\)`\)"):
        pickle.dumps(sync.Batcher(Model()))


def test_one_value_that_cannot_be_unpickled_fails_its_own_caller(owner: Owner) -> None:
    def doubled(values: list[Any]) -> list[Any]:
        return [2 * value if value else Lock() for value in values]

    with sync.Batcher(doubled, max_batch=3, max_wait=60) as batcher:
        batcher.share()
        good, poison, lock = owner.call(called_poisoned, batcher)
        assert good == 2
        assert "not here" in poison
        assert "is unpickled here" in poison
        assert "cannot be pickled for" in lock
        assert batcher.statistics().failed == 2


class Lock:
    """A result that cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def called_poisoned(batcher: Any) -> list[Any]:
    outcomes = called_together(batcher, [1, Poison(), 0])
    return [
        f"{one!r} {getattr(one, '__notes__', ())}" if isinstance(one, Exception) else one
        for one in outcomes
    ]


def test_a_cancelled_call_is_in_no_later_batch(owner: Owner) -> None:
    model = Model()
    model.may_go.clear()
    with sync.Batcher(model, max_batch=1, max_wait=0) as batcher:
        batcher.share()
        owner.call(begun, batcher, 1)
        spin_until(lambda: model.batches)
        assert owner.call(timed_out, batcher, "cancelled")
        counts = batcher.statistics()
        assert (counts.cancelled, counts.waiting) == (1, 0)
        model.may_go.set()
        assert owner.call(called, batcher, 4) == 8
    assert model.batches == [[0], [4]]


def test_a_process_that_is_killed_takes_its_calls_and_no_others(owner: Owner) -> None:
    model = Model()
    model.may_go.clear()
    results: list[Any] = []
    with sync.Batcher(model, max_batch=1, max_wait=0) as batcher, client() as victim:
        batcher.share()
        caller = threading.Thread(target=lambda: results.append(batcher(100)))
        caller.start()
        spin_until(lambda: model.batches)
        victim.call(begun, batcher, 5)
        owner.call(begun, batcher, 3)
        spin_until(lambda: batcher.statistics().waiting == 8)
        os.kill(victim.pid, signal.SIGKILL)
        spin_until(lambda: batcher.statistics().cancelled == 5)
        model.may_go.set()
        caller.join(20)
        spin_until(lambda: batcher.statistics().answered == 4)
    assert results == [200]
    assert len(model.batches) == 4


def test_calls_of_an_owner_that_is_killed() -> None:
    with client() as owner:
        batcher = owner.call(served_for_ever)
        errors: list[Exception] = []

        def call() -> None:
            try:
                batcher(1)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        spin_until(lambda: batcher.statistics().requests == 3)
        owner.kill()
        for thread in threads:
            thread.join(20)
        assert {type(error) for error in errors} == {aioqueue.WorkerDiedError}
        assert all(str(owner.pid) in str(error) for error in errors)


def never(values: list[Any]) -> list[Any]:
    threading.Event().wait(60)
    return values


def served_for_ever() -> Any:
    batcher = sync.Batcher(never, max_batch=1)
    batcher.__enter__()
    return batcher.share()


def test_values_are_checked_and_weighed_before_they_come_in(owner: Owner) -> None:
    examined: set[str] = set()

    def check(value: int) -> bool:
        examined.add(threading.current_thread().name)
        return value >= 0

    with sync.Batcher(Model(), check=check, name="checked") as batcher:
        batcher.share()
        assert owner.call(called, batcher, 3) == 6
        with pytest.raises(aioqueue.InvalidArgumentError):
            owner.call(called, batcher, -3)
        assert batcher.statistics().rejected == 1
    assert examined == {"aioqueue-checked-admission"}


def test_the_trace_and_the_baggage_of_the_caller_come_along(owner: Owner) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import baggage, trace

    def traced(values: list[Any], *, contexts: list[Context]) -> list[Any]:
        return [
            (
                context.run(trace.get_current_span).get_span_context().trace_id,
                context.run(baggage.get_baggage, "user"),
            )
            for context in contexts
        ]

    with sync.Batcher(traced) as batcher:
        batcher.share()
        sent, (received, user) = owner.call(called_in_a_trace, batcher, 1)
        assert sent == received != 0
        assert user == "Ada"
        assert owner.call(called, batcher, 1) == (0, None)  # without a trace


def test_a_full_queue_refuses(owner: Owner) -> None:
    model = Model()
    model.may_go.clear()
    queue = sync.FIFOQueue(1)
    with sync.Batcher(model, 1, 0, queue=queue, on_full="refuse") as batcher:
        batcher.share()
        owner.call(begun, batcher, 1)
        spin_until(lambda: model.batches)
        owner.call(begun, batcher, 1)
        spin_until(lambda: batcher.statistics().waiting == 1)
        with pytest.raises(aioqueue.QueueFull):
            owner.call(called, batcher, 5)
        model.may_go.set()


class EndsTheThread:
    """A value whose unpickling, or a result whose pickling, raises what is no `Exception`."""

    def __init__(self, error: type[BaseException], is_value: bool) -> None:
        self.error = error
        self.is_value = is_value

    def __reduce__(self) -> Any:
        if not self.is_value:
            raise self.error("on the way back")
        return _raised, (self.error,)


def _raised(error: type[BaseException]) -> Any:
    raise error("on the way")


def called_with_what_ends_threads(batcher: Any) -> list[str]:
    outcomes: list[str] = []
    for value in (
        *(EndsTheThread(one, is_value=True) for one in (SystemExit, KeyboardInterrupt)),
        *("SystemExit", "GeneratorExit"),
        "fine",
    ):
        try:
            outcomes.append(batcher.sync(value, timeout=20))
        except Exception as error:
            outcomes.append(f"{type(error).__name__}: {error}")
    return outcomes


def results(values: list[Any]) -> list[Any]:
    kinds: dict[str, type[BaseException]] = {
        "SystemExit": SystemExit,
        "GeneratorExit": GeneratorExit,
    }
    return [EndsTheThread(kinds[one], is_value=False) if one in kinds else one for one in values]


@pytest.mark.parametrize("examines", [False, True])
def test_a_value_that_would_end_the_thread_fails_its_own_call(owner: Owner, examines: bool) -> None:
    weighs: dict[str, Any] = {"weight": weight_of_one, "max_batch_weight": 10} if examines else {}
    with sync.Batcher(results, max_batch=4, max_wait=0.001, **weighs) as batcher:
        batcher.share()
        assert owner.call(called_with_what_ends_threads, batcher) == [
            "RuntimeError: SystemExit: on the way",
            "RuntimeError: KeyboardInterrupt: on the way",
            "RuntimeError: SystemExit: on the way back",
            "RuntimeError: GeneratorExit: on the way back",
            "fine",
        ]


def weight_of_one(value: Any) -> float:
    return 1.0
