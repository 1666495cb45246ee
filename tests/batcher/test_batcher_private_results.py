"""A result is its caller's alone: who writes into what it got changes nobody else's.

The generator makes functions that share memory in every way (`tests.batcher.sharing`): kinds of
containers, of wrappers and of sharing, in tasks, threads and processes. Every caller writes its own
number all over its result. In the end every result must show that number, every request what it
showed before, and the next batch must be right: the function's own memory was not written to.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import aioqueue
from aioqueue import sync
from tests.batcher.models import NEVER
from tests.batcher.sharing import CONTAINERS, SHARING, SIZE, WRAPPERS, Sharer, array_of

CALLERS = 4
BATCHES = 2


async def mistakes(batcher: Any, sharer: Sharer) -> list[str]:
    """Ask with several callers in several batches, write into all results, and compare."""
    found: list[str] = []
    held: list[tuple[str, Any, float]] = []
    for batch in range(BATCHES):
        numbers = [100.0 * batch + at for at in range(CALLERS)]
        requests = [np.full(SIZE, number) for number in numbers]
        results = await asyncio.gather(*map(batcher, requests))
        for at, (result, number) in enumerate(zip(results, numbers, strict=True)):
            if not sharer.is_right(array_of(result)[0], number, numbers):
                found.append(f"batch {batch}, caller {at}: got {result}")
        for at, (request, number) in enumerate(zip(requests, numbers, strict=True)):
            if not np.array_equal(request, np.full(SIZE, number)):
                found.append(f"batch {batch}, request {at} was changed: {request}")
        for at, result in enumerate(results):
            array_of(result)[:] = -1.0 - len(held)
            held.append((f"batch {batch}, caller {at}", result, -1.0 - len(held)))
        for at, (request, number) in enumerate(zip(requests, numbers, strict=True)):
            if not np.array_equal(request, np.full(SIZE, number)):
                found.append(f"batch {batch}, a caller wrote into request {at}: {request}")
    for caller, result, written in held:
        if not (array_of(result) == written).all():
            found.append(f"{caller}: another one wrote into its result: {result}")
    return found


async def ask(sharer: Sharer, where: Any) -> list[str]:
    function = sharer.later if where == "task" else sharer
    async with aioqueue.Batcher(
        function, CALLERS, NEVER, where=where if where == "process" else "auto"
    ) as batcher:
        return await mistakes(batcher, sharer)


CASES = [
    (sharing, container, wrapper, is_one)
    for sharing, container, wrapper, is_one in itertools.product(
        SHARING, CONTAINERS, WRAPPERS, (False, True)
    )
    # NumPy gives no writable memory of what it must not: these are not callers' to write to.
    if not (container == "objects" and wrapper == "memory")
]


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("where", ["thread", "task"])
def test_callers_that_write_into_their_results(sharing: str, where: str) -> None:
    chance = random.Random(f"{sharing} {where}")
    cases = [case for case in CASES if case[0] == sharing]

    async def main() -> None:
        for case in chance.sample(cases, 12):
            assert not await ask(Sharer(*case), where), case

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("where", ["thread", "task"])
def test_all_of_them(container: str, where: str) -> None:
    async def main() -> None:
        for case in CASES:
            if case[1] == container:
                assert not await ask(Sharer(*case), where), case

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="processes take too long to start there")
@pytest.mark.parametrize("sharing", SHARING)
def test_in_a_process(sharing: str) -> None:
    chance = random.Random(f"{sharing} in a process")
    cases = [case for case in CASES if case[0] == sharing and case[2] not in UNPICKLABLE]
    case = chance.choice([case for case in cases if case[1] != "values of a dict"])

    async def main() -> None:
        assert not await ask(Sharer(*case), "process"), case

    asyncio.run(main())


UNPICKLABLE = ("memory", "values of a dict")


def overlapping(rows: list[Any]) -> Any:
    """An array whose rows overlap, and which is the only way to its base."""
    base = np.arange(float(len(rows) + SIZE))
    return np.ndarray((len(rows), SIZE), buffer=base, strides=(8, 8))


KEPT = np.zeros((CALLERS, SIZE))


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: np.stack(rows),
        lambda rows: np.broadcast_to(rows[0], (len(rows), SIZE)),
        lambda rows: as_strided(np.arange(9.0), (len(rows), SIZE), (8, 8)),
        lambda rows: np.lib.stride_tricks.sliding_window_view(
            np.arange(len(rows) + SIZE - 1.0), SIZE, writeable=True
        ),
        overlapping,
        lambda rows: np.asfortranarray(np.stack(rows))[::-1],
        lambda rows: KEPT[: len(rows)],
        lambda rows: KEPT.T.T,
        lambda rows: np.ma.masked_array(KEPT, mask=KEPT > 1),
        lambda rows: np.rec.fromarrays([KEPT, KEPT], names="a,b").a,  # type: ignore[call-overload]
    ],
)
def test_arrays_of_results(make: Callable[[list[Any]], Any]) -> None:
    async def main() -> None:
        async with aioqueue.Batcher(make, CALLERS, NEVER) as batcher:
            requests = [np.full(SIZE, float(at)) for at in range(CALLERS)]
            results = await asyncio.gather(*map(batcher, requests))
        for at, result in enumerate(results):
            result[:] = -1.0 - at
        for at, result in enumerate(results):
            assert (result == -1.0 - at).all()
        assert [request[0] for request in requests] == [0, 1, 2, 3]
        assert not KEPT.any()

    asyncio.run(main())


def test_tensors_that_share_their_storage() -> None:
    """A tensor does not know its aliases: only the storage counts them."""
    torch = pytest.importorskip("torch")
    kept = torch.zeros(SIZE)
    makes: list[Callable[[Any], Any]] = [
        lambda n: [kept] * n,
        lambda n: [kept.detach() for _ in range(n)],
        lambda n: [kept.data[:] for _ in range(n)],
        lambda n: (kept.detach() for _ in range(n)),
        lambda n: [torch.from_numpy(kept.numpy()) for _ in range(n)],
        lambda n: kept.expand(n, SIZE),
        lambda n: torch.zeros(SIZE + n - 1).unfold(0, SIZE, 1),
        lambda n: torch.zeros(n, SIZE),
        lambda n: [{"logits": kept.detach()} for _ in range(n)],
    ]

    def inference(n: int) -> Any:
        with torch.inference_mode():
            made = torch.zeros(SIZE + n)
            return [made[at : at + SIZE] for at in range(n)]

    for make in [*makes, inference]:

        def function(rows: list[int], make: Callable[[Any], Any] = make) -> Any:
            return make(len(rows))

        with sync.Batcher(function, 1, 0) as one:
            first, second = one(0), one(1)
        results: list[Any] = [first, second]

        async def several(function: Callable[[list[int]], Any] = function) -> list[Any]:
            async with aioqueue.Batcher(function, 3, NEVER) as batcher:
                return await asyncio.gather(*map(batcher, range(3)))

        results += asyncio.run(several())
        for at, result in enumerate(results):
            with torch.inference_mode():
                (result["logits"] if isinstance(result, dict) else result).fill_(at + 1.0)
        for at, result in enumerate(results):
            tensor = result["logits"] if isinstance(result, dict) else result
            assert (tensor == at + 1.0).all()
        assert not kept.any()


def test_one_result_without_an_end_leaves_the_others_private() -> None:
    kept = np.zeros(SIZE)
    endless: list[Any] = []
    endless.append(endless)

    async def main() -> None:
        def function(rows: list[int]) -> list[Any]:
            return [endless, kept, kept]

        async with aioqueue.Batcher(function, 3, NEVER) as batcher:
            _, one, two = await asyncio.gather(*map(batcher, range(3)))
        one[:] = 1
        assert not two.any()
        assert not kept.any()

    asyncio.run(main())
