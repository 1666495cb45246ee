"""Pipelines that nobody has thought of, left anywhere and resumed in any way.

Chains of stages are drawn, and where the run is left, and how it goes on: by which workers, how
many, in threads or in tasks of asyncio or trio. What all runs have given together is, value by
value, what one undisturbed run gives.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioqueue.inputs import Pipeline, merge_positions, numbers
from tests.kit.exact import Exact
from tests.kit.examples import (
    HAS_PYARROW,
    Add,
    Combine,
    Make,
    elastic_stages,
    noised,
    random_sources,
    random_stages,
    rich,
)
from tests.kit.resuming import Batches, How, examples, run, shuffled, slowly, through_json
from tests.kit.worlds import HAS_TRIO, needs_trio, switching_often

if TYPE_CHECKING or HAS_TRIO:
    import trio

EPOCHS = 2


STAGES: dict[str, Add] = random_stages()
"""Those of the examples of each stage, so that a new stage is in random pipelines."""

COMBINED: dict[str, Combine] = random_stages(combines=True)

SOURCES: dict[str, Make] = random_sources()


def in_files(pipeline: Any) -> Any:
    """The pipeline with a cache, in a folder of its own."""
    if not HAS_PYARROW:
        return pipeline.cache(key="1")
    name = f"{zlib.crc32(repr(pipeline).encode())}.cache"
    return pipeline.cache(FOLDER[0] / name, key="1", on_stale="rebuild")


CACHES: dict[str, Add] = {
    "cache": lambda one, how, n: one.cache(key="1"),
    "cache in files": lambda one, how, n: in_files(how.prepare(one, noised)),
}
STAGES.update(CACHES)


class StageCall(NamedTuple):
    """A stage, a number, and what is mixed in."""

    stage: str
    number: int = 1
    others: tuple[StageCall, ...] = ()


def calls(depth: int = 0) -> st.SearchStrategy[list[StageCall]]:
    """Some stages, one after another."""
    plain_ones = st.builds(StageCall, st.sampled_from(sorted(STAGES)), st.integers(1, 6))
    if depth:
        return st.lists(plain_ones, max_size=2)
    mixed = st.builds(
        StageCall, st.sampled_from(sorted(COMBINED)), st.integers(1, 6), calls(1).map(tuple)
    )
    return st.lists(plain_ones | plain_ones | plain_ones | mixed, max_size=5)


FOLDER: list[Path] = []
"""Where the files are that some read."""


@pytest.fixture(scope="module", autouse=True)
def _many_switches() -> Iterator[None]:
    with switching_often(2e-5):
        yield


@pytest.fixture(scope="module", autouse=True)
def files(tmp_path_factory: pytest.TempPathFactory) -> None:
    FOLDER[:] = [tmp_path_factory.mktemp("anything")]


def made(chain: list[StageCall] | tuple[StageCall, ...], how: How, source: Any) -> Any:
    """The pipeline that was said."""
    pipeline: Any = Pipeline(source)
    for one in chain:
        if one.stage in COMBINED:
            other = made(one.others, how, numbers(9, seed=one.number))
            pipeline = COMBINED[one.stage](pipeline, other, one.number)
        else:
            pipeline = STAGES[one.stage](pipeline, how, one.number)
    return pipeline


class Leg(NamedTuple):
    """A run: how many values it takes, and how."""

    most: int | None
    world: str
    how: How


hows = st.builds(How, st.integers(1, 4), st.just("auto"), st.sampled_from([None, 4, 9]))
WORLDS_OF_LEGS = ["threads", "asyncio", *(["trio"] if HAS_TRIO else [])]
legs = st.builds(Leg, st.integers(0, 9), st.sampled_from(WORLDS_OF_LEGS), hows)


async def in_tasks(pipeline: Any, most: int | None, state: Any) -> tuple[Batches, Any]:
    taken: Batches = []
    async with pipeline.epochs(EPOCHS, resume=state) as epochs:
        if most != 0:
            async for epoch in epochs:
                async for value in epoch:
                    taken.append((epoch.number, Exact(value)))
                    if len(taken) == most:
                        return taken, through_json(epochs.state_dict())
        return taken, through_json(epochs.state_dict())


def continued(pipeline: Any, leg: Leg, state: Any) -> tuple[Batches, Any]:
    """What a run gives, and where it was left."""
    if leg.world == "asyncio":
        return asyncio.run(in_tasks(pipeline, leg.most, state))
    if leg.world == "trio":
        return trio.run(in_tasks, pipeline, leg.most, state)
    if leg.most == 0:
        with pipeline.epochs(EPOCHS, resume=state) as epochs:
            return [], through_json(epochs.state_dict())
    return run(pipeline, EPOCHS, leg.most, state)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(calls(), st.sampled_from(sorted(SOURCES)), st.lists(legs, min_size=1, max_size=3), legs)
def test_the_rest_is_what_would_have_come(
    chain: list[StageCall], source: str, before: list[Leg], last: Leg
) -> None:
    def pipeline(how: How) -> Any:
        return made(chain, how, SOURCES[source](FOLDER[0]))

    whole, _ = run(pipeline(How(1)), EPOCHS)
    found: Batches = []
    state = None
    for leg in before:
        more, state = continued(pipeline(leg.how), leg, state)
        found += more
    more, end = continued(pipeline(last.how), last._replace(most=None), state)
    assert found + more == whole
    assert continued(pipeline(last.how), last._replace(most=None), end)[0] == []


ROW_BY_ROW = [*elastic_stages(), *CACHES]
"""Stages that any number of ranks can continue, and that give examples one by one."""

AT_THE_END: dict[str, Callable[[Any, How, int], Any]] = {
    "batch": lambda one, how, n: how.prepare(one, noised).batch(n),
    "rich": lambda one, how, n: how.prepare(one, rich).batch(n),
    "bucket": STAGES["bucket"],
    "pack": lambda one, how, n: STAGES["pack"](one, how, n).batch(2),
    "pieces": lambda one, how, n: STAGES["pieces"](one, how, n).batch(2),
}


ranks = st.lists(legs, min_size=1, max_size=4)
"""As many as these, each of which goes its own way."""


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.builds(StageCall, st.sampled_from(ROW_BY_ROW), st.integers(1, 6)), max_size=4),
    st.sampled_from(sorted(SOURCES.keys() - {"mixture that stops"})),
    st.sampled_from(sorted(AT_THE_END)),
    st.lists(ranks, min_size=1, max_size=3),
    ranks,
)
def test_ranks_of_any_number_give_each_example_once(
    chain: list[StageCall], source: str, end: str, before: list[list[Leg]], last: list[Leg]
) -> None:
    def pipeline(how: How) -> Any:
        return AT_THE_END[end](made(chain, how, SOURCES[source](FOLDER[0])), how, 3)

    def on_ranks(those: list[Leg], position: Any) -> list[tuple[Batches, Any]]:
        return [
            continued(pipeline(leg.how).shard(rank, len(those), uneven="allow"), leg, position)
            for rank, leg in enumerate(those)
        ]

    found: list[Batches] = []
    position = None
    for those in before:
        runs = on_ranks(those, position)
        found += [taken for taken, _ in runs]
        position = through_json(merge_positions([state for _, state in runs], lockstep=False))
    to_the_end = [leg._replace(most=None) for leg in last]
    found += [taken for taken, _ in on_ranks(to_the_end, position)]
    assert examples(found) == examples([run(pipeline(How(1)), EPOCHS)[0]])


class TestCancelled:
    """A call for a batch that is cancelled at each of its awaits, one after another."""

    PIPELINE = shuffled().prepare(slowly, workers=2).shuffle(9).batch(4).prefetch(1)

    @pytest.mark.slow
    @pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=needs_trio)])
    def test_at_each_await(self, backend: Any) -> None:
        whole, _ = run(self.PIPELINE, 1)
        for first in (0, 3):
            for checkpoints in range(24):
                handed, state = anyio.run(self._cancelled_at, first, checkpoints, backend=backend)
                rest, _ = run(self.PIPELINE, 1, None, state)
                assert handed + [batch for _, batch in rest] == [batch for _, batch in whole]

    async def _cancelled_at(self, first: int, checkpoints: int) -> tuple[list[Any], Any]:
        """Batches that came, with one call among them that was cancelled after so many turns of
        the event loop, if it was not done by then; and the state behind that call."""
        handed: list[Any] = []
        async with self.PIPELINE.epochs(1) as epochs:
            epoch = await anext(epochs)

            async def take() -> None:
                handed.append(Exact(await anext(epoch)))

            for _ in range(first):
                await take()
            async with anyio.create_task_group() as group:
                group.start_soon(take)
                for _ in range(checkpoints):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            return handed, through_json(epochs.state_dict())


class TestTwoRunsOfOnePipeline:
    def test_each_has_its_own_position(self) -> None:
        pipeline = shuffled().prepare(slowly, workers=2).shuffle(9).batch(4)
        whole = [batch for _, batch in run(pipeline, 1)[0]]
        with pipeline.epochs(1) as one, pipeline.epochs(1) as other:
            mine, theirs = next(one), next(other)
            heads: tuple[list[Any], list[Any]] = [], []
            for _ in range(3):
                heads[0].append(Exact(next(mine)))
                heads[1].append(Exact(next(theirs)))
                heads[1].append(Exact(next(theirs)))
            states = through_json(one.state_dict()), through_json(other.state_dict())
        for head, state in zip(heads, states, strict=True):
            assert head + [batch for _, batch in run(pipeline, 1, None, state)[0]] == whole

    def test_one_resumes_while_the_other_is_still_there(self) -> None:
        pipeline = shuffled().prepare(slowly, workers=2).shuffle(9).batch(4)
        whole = [batch for _, batch in run(pipeline, 1)[0]]
        with pipeline.epochs(1) as one:
            epoch = next(one)
            head = [Exact(next(epoch)) for _ in range(4)]
            with pipeline.epochs(1, resume=one.state_dict()) as other:
                rest = [Exact(batch) for batch in next(other)]
            assert head + rest == whole
            assert head + [Exact(batch) for batch in epoch] == whole
