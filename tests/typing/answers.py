"""A `Batcher`: single calls, which a function of many answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import assert_type

import aioqueue
from aioqueue import sync


def lengths(texts: Sequence[str]) -> list[int]:
    return [len(text) for text in texts]


async def main() -> None:
    async with aioqueue.Batcher(lengths, max_batch=4) as batcher:
        assert_type(batcher, aioqueue.Batcher[str, int])
        answers = await asyncio.gather(*(batcher("x" * n) for n in range(5)))
        assert_type(answers, list[int])
        assert answers == list(range(5))


def in_threads() -> None:
    with sync.Batcher(lengths, max_batch=4) as batcher:
        assert_type(batcher("four"), int)
    with sync.Batcher[str, int](lambda texts: [len(text) for text in texts]) as of_lambda:
        assert_type(of_lambda("four"), int)
    named: sync.Batcher[str, str] = sync.Batcher(lambda texts: [one.upper() for one in texts])
    with named:
        assert_type(named("four"), str)


asyncio.run(main())
in_threads()
