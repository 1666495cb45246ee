"""The contexts of the callers reach the function, one beside each value."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar
from functools import partial
from random import Random
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import InvalidArgumentError

caller: ContextVar[int] = ContextVar("caller")

Function = Callable[..., Any]


def plain(values: list[int], contexts: list[Context]) -> list[tuple[int, int]]:
    return [(value, one[caller]) for value, one in zip(values, contexts, strict=True)]


async def awaited(values: list[int], *, contexts: list[Context]) -> list[tuple[int, int]]:
    await asyncio.sleep(0)
    return plain(values, contexts)


class Object:
    def __call__(self, values: list[int], contexts: list[Context]) -> list[tuple[int, int]]:
        return plain(values, contexts)


def bound(weight: int, values: list[int], *, contexts: list[Context]) -> list[tuple[int, int]]:
    return plain(values, contexts)


FUNCTIONS: dict[str, Function] = {
    "plain": plain,
    "awaited": awaited,
    "object": Object(),
    "partial": partial(bound, 3),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tasks_and_threads_are_seen_side_by_side(name: str) -> None:
    """Each value meets the context of its caller, in batches of any size."""
    random = Random(len(name))

    async def call(batcher: aioqueue.Batcher[int, tuple[int, int]], number: int) -> None:
        caller.set(number)
        for _ in range(random.randint(1, 4)):
            value = random.randrange(1000)
            assert await batcher(value) == (value, number)

    def call_blocking(batcher: sync.Batcher[int, tuple[int, int]], number: int) -> None:
        caller.set(number)
        assert batcher(7) == (7, number)

    async def main() -> None:
        async with aioqueue.Batcher(FUNCTIONS[name], 5, 0.001, workers=2) as batcher:
            threads = [
                threading.Thread(target=call_blocking, args=(batcher.sync, number))
                for number in range(100, 104)
            ]
            for thread in threads:
                thread.start()
            await asyncio.gather(*[call(batcher, number) for number in range(20)])
            for thread in threads:
                await asyncio.to_thread(thread.join)

    asyncio.run(main())


def test_the_blocking_face() -> None:
    def call(number: int) -> Any:
        caller.set(number)
        return batcher(number)

    for function in (plain, awaited):
        with sync.Batcher(function, 8) as batcher, ThreadPoolExecutor(4) as pool:
            assert list(pool.map(call, range(12))) == [(number, number) for number in range(12)]


def test_it_is_a_copy_from_the_time_of_the_call() -> None:
    """A caller that goes on changing its context, and a function that does, see nothing of it."""

    def change(values: list[int], contexts: list[Context]) -> list[int]:
        before = [one[caller] for one in contexts]
        for one in contexts:
            one.run(caller.set, -1)
        return before

    async def main() -> None:
        async with aioqueue.Batcher(change, 2, 60) as batcher:
            caller.set(1)
            first = asyncio.create_task(batcher(0))
            while not batcher.statistics().requests:
                await asyncio.sleep(0)
            caller.set(2)
            assert await batcher(0) == 2
            assert await first == 1
            assert caller.get() == 2

    asyncio.run(main())


def test_other_functions_get_none() -> None:
    """Neither those without the parameter, nor a partial that has bound it."""

    def without(values: list[int]) -> list[int]:
        assert caller.get(None) is None  # the function runs in the context of its worker
        return values

    def unbound(values: list[int], contexts: Any = None) -> list[bool]:
        return [contexts is None] * len(values)

    def call() -> None:
        with sync.Batcher(without) as batcher:
            caller.set(5)
            assert batcher(3) == 3
        with sync.Batcher(partial(unbound, contexts=None)) as other:
            assert other(3) is True

    contextvars.Context().run(call)


def test_processes_are_refused() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        aioqueue.Batcher(plain, where="process")
    reported = str(caught.value)
    assert reported.startswith(
        "function: got 'plain', which has a parameter 'contexts', with where='p"
    )
    assert reported.endswith("put what it needs of them into the values, or use where='thread'")


def test_a_span_of_a_batch_links_those_of_its_requests() -> None:
    """As `docs/howto/requests.md` shows it."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")

    def traced(values: list[int], *, contexts: list[Context]) -> list[int]:
        spans = [one.run(trace.get_current_span) for one in contexts]
        links = [trace.Link(span.get_span_context()) for span in spans]
        with tracer.start_as_current_span("batch", links=links):
            return values

    async def request(batcher: aioqueue.Batcher[int, int], number: int) -> None:
        with tracer.start_as_current_span(f"request {number}"):
            assert await batcher(number) == number

    async def main() -> None:
        async with aioqueue.Batcher(traced, 4, 60) as batcher:
            await asyncio.gather(*[request(batcher, number) for number in range(8)])

    asyncio.run(main())
    spans = exporter.get_finished_spans()
    requests = {one.context.span_id: one.name for one in spans if one.name != "batch"}
    batches = [one for one in spans if one.name == "batch"]
    linked = [requests[link.context.span_id] for one in batches for link in one.links]
    assert [len(one.links) for one in batches] == [4, 4]
    assert sorted(linked) == [f"request {number}" for number in range(8)]
    provider.shutdown()
