"""Iterables of other libraries: resumed by their own state, or from the start, or refused."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import from_iterable, merge_positions, read_lines
from aioqueue.sources.kinds.iterables import decoded, encoded
from tests.kit.exact import Exact
from tests.kit.resuming import Batches, noisy, run, through_json
from tests.kit.worlds import TaskWorld

SIZE = 200
EPOCHS = 2


class Dataset:
    """An iterable that tells where it is; it counts what it is asked."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.at = self.begin = 0
        self.given: list[int] = []
        self.asked = 0

    def __iter__(self) -> Iterator[int]:
        self.at, self.begin = self.begin, 0
        while self.at < self.size:
            self.at += 1
            self.given.append(self.at - 1)
            yield self.at - 1

    def state_dict(self) -> Any:
        self.asked += 1
        return {"at": self.at, "words": np.arange(3, dtype="uint32"), "more": (self.at, b"\0")}

    def load_state_dict(self, state: Any) -> None:
        assert state["words"].tolist() == [0, 1, 2]
        assert state["more"] == (state["at"], b"\0")
        self.begin = state["at"]


class Iterating:
    """An iterable whose iterators tell where they are."""

    def __iter__(self) -> Iterator[int]:
        return Steps()


class Steps:
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == SIZE:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def state_dict(self) -> Any:
        return self.at

    def load_state_dict(self, state: Any) -> None:
        self.at = state


class Arriving:
    """One for ``async for``."""

    def __init__(self) -> None:
        self.at = self.begin = 0

    async def __aiter__(self) -> AsyncIterator[int]:
        self.at, self.begin = self.begin, 0
        while self.at < SIZE:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.begin = state["at"]


async def arriving() -> AsyncIterator[int]:
    for number in range(SIZE):
        yield number


MAKE: dict[str, Any] = {
    "iterable": lambda: from_iterable(Dataset(), seed=1),
    "made by a function": lambda: from_iterable(Dataset, seed=1),
    "iterator of an iterable": lambda: from_iterable(Iterating(), seed=1),
    "iterator": lambda: from_iterable(lambda: Steps(), seed=1),
    "read again": lambda: from_iterable(range(SIZE), seed=1, replay=True),
    "async": lambda: from_iterable(Arriving(), seed=1),
    "async, read again": lambda: from_iterable(arriving, seed=1, replay=True),
}

SHAPES: dict[str, Any] = {
    "batches": lambda source: source.batch(7),
    "prepared": lambda source: source.prepare(noisy, workers=3).batch(7),
    "shuffled": lambda source: source.prepare(noisy).shuffle(30).batch(7),
    "shuffled before": lambda source: source.shuffle(100).prepare(noisy).batch(7).prefetch(2),
    "a rank": lambda source: source.shard(1, 3).prepare(noisy).batch(7),
}


async def iterated(epochs: Any, most: int | None) -> tuple[Batches, Any]:
    taken: Batches = []
    async with epochs:
        async for epoch in epochs:
            async for batch in epoch:
                taken.append((epoch.number, Exact(batch)))
                if len(taken) == most:
                    return taken, through_json(epochs.state_dict())
        return taken, through_json(epochs.state_dict())


class TestResuming:
    @pytest.mark.slow(every=12)
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("name", [name for name in MAKE if "async" not in name])
    def test_the_rest_is_the_same(self, name: str, shape: str) -> None:
        def pipeline() -> Any:
            return SHAPES[shape](MAKE[name]())

        whole, _ = run(pipeline(), EPOCHS)
        count = len(whole)
        for k in (1, count // 2, count - 3) if len(shape) % 2 else (5, count):
            head, state = run(pipeline(), EPOCHS, k)
            middle, state = run(pipeline(), EPOCHS, 2, state)
            rest, _ = run(pipeline(), EPOCHS, None, state)
            assert head + middle + rest == whole

    @pytest.mark.slow(but=("trio-async-a rank", "uvloop-async, read again-a rank"))
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("name", [name for name in MAKE if "async" in name])
    async def test_for_tasks(self, task_world: TaskWorld, name: str, shape: str) -> None:
        def pipeline() -> Any:
            return SHAPES[shape](MAKE[name]())

        whole, _ = await iterated(pipeline().epochs(EPOCHS), None)
        k = 1 if len(name + shape) % 2 else len(whole) // 2
        head, state = await iterated(pipeline().epochs(EPOCHS), k)
        middle, state = await iterated(pipeline().epochs(EPOCHS, resume=state), 2)
        rest, _ = await iterated(pipeline().epochs(EPOCHS, resume=state), None)
        assert head + middle + rest == whole

    def test_nothing_before_the_last_state_is_read(self) -> None:
        first, second = Dataset(10_000), Dataset(10_000)
        head, state = run(from_iterable(first, seed=1).batch(10), 1, 800)
        rest, _ = run(from_iterable(second, seed=1).batch(10), 1, 1, state)
        assert [one for _, one in head + rest] == [
            list(range(at, at + 10)) for at in range(0, 8010, 10)
        ]
        # States are taken less often where that takes long, as on a busy machine it may seem to.
        assert second.given[0] == state["read"]["start_place"][0]
        assert first.asked <= 8010 // 64

    def test_positions_of_the_source_itself(self) -> None:
        source = from_iterable(Dataset, seed=1)
        found = list(itertools.islice(source.placed(), 150))
        position = through_json(source.position(found[-1].place))
        assert list(from_iterable(Dataset, seed=1).after(position)) == list(range(150, SIZE))


class TestReadingAgain:
    def test_it_is_reported_and_shown(self, caplog: pytest.LogCaptureFixture) -> None:
        shown: list[tuple[int, int]] = []
        _, state = run(from_iterable(range(SIZE), seed=1, replay=True).batch(10), 1, 15)
        source = from_iterable(
            range(SIZE), seed=1, name="rows", replay=lambda done, count: shown.append((done, count))
        )
        with pytest.raises(InvalidArgumentError, match="name"):
            run(source.batch(10), 1, None, state)
        source = from_iterable(
            range(SIZE), seed=1, replay=lambda done, count: shown.append((done, count))
        )
        rest, _ = run(source.batch(10), 1, None, state)
        assert rest[0][1] == list(range(150, 160))
        assert len(shown) == 100
        assert shown[-1] == (150, 150)
        with caplog.at_level(logging.INFO, "aioqueue"):
            run(from_iterable(range(SIZE), seed=1, replay=True).batch(10), 1, None, state)
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert "again from its beginning, 150 items" in warnings[0].getMessage()
        assert any("75 of 150" in record.getMessage() for record in caplog.records)

    def test_there_are_fewer_items_now(self) -> None:
        _, state = run(from_iterable(range(SIZE), seed=1, replay=True).batch(10), 1, 15)
        with pytest.raises(ExceptionGroup) as failed:
            run(from_iterable(range(100), seed=1, replay=True).batch(10), 1, None, state)
        assert "100 at most" in str(failed.value.exceptions[0])

    @pytest.mark.parametrize("wrong", [None, 1, "yes"])
    def test_what_is_wrong(self, wrong: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="replay"):
            from_iterable([], replay=wrong)


class TestRefusing:
    @pytest.mark.parametrize(
        "make", [lambda: from_iterable([1, 2, 3]), lambda: from_iterable(n for n in range(9))]
    )
    def test_what_is_sure_to_have_no_state(self, make: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="replay=True"):
            make().batch(2).epochs(1).state_dict()

    def test_what_turns_out_to_have_none(self) -> None:
        with from_iterable(lambda: range(9)).batch(2).epochs(1) as epochs:
            next(next(epochs))
            with pytest.raises(InvalidArgumentError, match=r"state_dict.*replay=True"):
                epochs.state_dict()

    async def test_what_turns_out_to_have_none_for_tasks(self, task_world: TaskWorld) -> None:
        async with from_iterable(arriving).batch(2).epochs(1) as epochs:
            await anext(await anext(epochs))
            with pytest.raises(InvalidArgumentError, match=r"state_dict.*replay=True"):
                epochs.state_dict()

    @pytest.mark.parametrize("state", [object(), NotImplementedError("no state today")])
    def test_a_state_that_cannot_be_kept(self, state: Any) -> None:
        """A run without positions is not concerned."""

        class Strange(Dataset):
            def state_dict(self) -> Any:
                if isinstance(state, Exception):
                    raise state
                return {"deep": [state]}

        found = "no state today" if isinstance(state, Exception) else r"\['deep'\]\[0\]: got a"
        with from_iterable(Strange()).batch(10).epochs(1) as epochs:
            assert sum(len(batch) for batch in next(epochs)) == SIZE
            with pytest.raises(InvalidArgumentError, match=found):
                epochs.state_dict()

    def test_a_state_for_what_has_none_now(self) -> None:
        _, state = run(from_iterable(Dataset(), seed=1).batch(10), 1, 15)
        with pytest.raises(ExceptionGroup) as failed:
            run(from_iterable(range(SIZE), seed=1, replay=True).batch(10), 1, None, state)
        assert "a state of an iterable" in str(failed.value.exceptions[0])

    def test_files_whose_names_come_once(self, tmp_path: Any) -> None:
        path = tmp_path / "lines"
        path.write_text("a\nb\n")
        paths = iter([str(path)])
        with pytest.raises(InvalidArgumentError, match="no position"):
            read_lines(from_iterable(paths)).batch(1).epochs(1).state_dict()
        assert next(paths) == str(path)  # nobody has gone through them


class TestStates:
    @pytest.mark.parametrize(
        "state",
        [
            None,
            {"a": [1, 2.5, True, None, "x"], "b": {"c": ()}},
            {1: "one", (2, 3): "two"},
            {"!": "mine"},
            (1, [2, (3,)]),
            b"bytes",
            [float("inf"), -float("inf")],
        ],
    )
    def test_they_come_back(self, state: Any) -> None:
        assert decoded(json.loads(json.dumps(encoded(state)))) == state

    @pytest.mark.parametrize(
        "state", [np.arange(6).reshape(2, 3), np.float32(2.5), np.zeros((0, 2), ">i2"), np.array(3)]
    )
    def test_arrays(self, state: Any) -> None:
        found = decoded(through_json(encoded(state)))
        assert np.array_equal(found, state)
        assert found.dtype == state.dtype
        assert found.shape == state.shape

    def test_tensors(self) -> None:
        torch = pytest.importorskip("torch")
        state = {"generator": torch.get_rng_state()}
        found = decoded(through_json(encoded(state)))
        assert torch.equal(found["generator"], state["generator"])

    @pytest.mark.parametrize("state", [object(), {"a": [set()]}, np.array([object()])])
    def test_what_has_no_place_in_json(self, state: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="position can hold"):
            encoded(state)

    def test_arrays_that_would_come_back_as_others(self) -> None:
        fields = np.zeros(2, [("a", "i4"), ("b", "f4")])
        for state in (fields, fields[0], np.zeros(2, "V8")):
            with pytest.raises(InvalidArgumentError, match=r"^state\['a'\]: got an array of dtype"):
                encoded({"a": state}, "state")

    def test_nothing_is_shared(self) -> None:
        state = {"list": [1]}
        kept = encoded(state)
        state["list"].append(2)
        assert kept == {"list": [1]}


class TestAnotherNumberOfRanks:
    @pytest.mark.slow(every=3)
    @pytest.mark.parametrize("kind", ["stateful", "stateful iterators", "read again"])
    def test_each_item_comes_once(self, kind: str) -> None:
        def source() -> Any:
            made = {"stateful": Dataset, "stateful iterators": Iterating}
            if kind in made:
                return from_iterable(made[kind](), seed=1)
            return from_iterable(list(range(SIZE)), seed=1, replay=True)

        def on_ranks(ranks: int, most: int | None, position: Any) -> tuple[Batches, list[Any]]:
            runs = [
                run(
                    source()
                    .prepare(noisy, workers=2)
                    .shuffle(9)
                    .batch(4)
                    .shard(rank, ranks, uneven="allow"),
                    EPOCHS,
                    most,
                    position,
                )
                for rank in range(ranks)
            ]
            return [one for found, _ in runs for one in found], [state for _, state in runs]

        taken, position = [], None
        for ranks, most in ((3, 6), (2, 9), (4, 7), (1, None)):
            found, states = on_ranks(ranks, most, position)
            taken += found
            position = through_json(merge_positions(states))
        counts = Counter((epoch, item) for epoch, batch in taken for item in batch.plain[0])
        assert counts == Counter((epoch, n) for epoch in range(EPOCHS) for n in range(SIZE))

    def test_none_of_what_comes_by_async_for(self) -> None:
        pipeline = from_iterable(Arriving(), seed=1).batch(4).shard(0, 1)

        async def state() -> Any:
            async with pipeline.epochs(1) as epochs:
                async for epoch in epochs:
                    async for _ in epoch:
                        return epochs.state_dict()
            return None

        with pytest.raises(InvalidArgumentError, match="only `async for` can iterate over"):
            merge_positions([asyncio.run(state())])
