"""Going on with another number of ranks: each example of an epoch comes once over all runs."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from aioqueue.inputs import Pipeline, Position, items, merge_positions, numbers, read_lines
from tests.kit.exact import Exact
from tests.kit.going import packed
from tests.kit.resuming import (
    NOT_ELASTIC,
    Batches,
    How,
    examples,
    noisy,
    not_sevens,
    ordered_shapes,
    place_of,
    run,
    shuffled,
    slowly,
    through_json,
    unordered_shapes,
    write_files,
)
from tests.kit.worlds import ThreadWorld, World

EPOCHS = 2

Uneven = Literal["pad", "drop", "allow"]
Made = Callable[[], Pipeline[Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("elastic"))


def on_ranks(
    make: Made,
    ranks: int,
    most: int | None,
    position: Any = None,
    *,
    uneven: Uneven = "allow",
    epochs: int = EPOCHS,
    more: int = 0,
) -> tuple[list[Batches], list[Any]]:
    """What each of so many ranks is given, and where it stands then.

    Args:
        make: the pipeline.
        ranks: how many.
        most: batches that each takes; ``None`` for all.
        position: where they begin.
        uneven: of `shard`.
        epochs: how many there are.
        more: how many each takes besides, in a run that resumes at its own position.
    """
    found, states = [], []
    for rank in range(ranks):
        pipeline = make().shard(rank, ranks, uneven=uneven)
        taken, state = run(pipeline, epochs, most, position)
        if more:
            rest, state = run(pipeline, epochs, more, state)
            taken += rest
        found.append(taken)
        states.append(state)
    return found, states


def merged(states: list[Any], chance: random.Random | None = None, **options: Any) -> Any:
    """The position of all ranks, which come in any order."""
    states = list(states)
    (chance or random.Random(0)).shuffle(states)
    return Position(through_json(merge_positions(states, **options)))


def places(state: Any) -> Any:
    """A position without its counts, which go on while workers of later stages are ahead."""
    return {key: value for key, value in place_of(state).items() if key != "stages"}


def two_of_each(number: int) -> Iterator[int]:
    yield from (2 * number, 2 * number + 1)


ORDERED = [name for name in ordered_shapes(Path()) if name not in NOT_ELASTIC]


class TestEachExampleComesOnce:
    @pytest.mark.slow(but="source alone")
    @pytest.mark.parametrize("name", ORDERED)
    def test_where_the_order_is_kept(self, name: str, folder: Path) -> None:
        shape = ordered_shapes(folder)[name]
        self.check(lambda: shape(How(2)), random.Random(name))

    @pytest.mark.slow(but="lines")
    @pytest.mark.parametrize("name", unordered_shapes(Path()))
    def test_where_it_is_not(self, name: str, folder: Path) -> None:
        shape = unordered_shapes(folder)[name]
        self.check(lambda: shape(How(3)), random.Random(name))

    def check(self, make: Made, chance: random.Random) -> None:
        """Three numbers of ranks in a row, each left after some batches but for the last; and in
        one of two runs most ranks go on by themselves before that."""
        whole = examples([run(make(), EPOCHS)[0]])
        again = chance.choice([3, 0])
        found: list[Batches] = []
        position = None
        for _ in range(2):
            most, more = chance.randint(1, 6), chance.randint(0, again)
            taken, states = on_ranks(make, chance.randint(1, 6), most, position, more=more)
            found += taken
            # Some ranks have less in an epoch; they may be in the next one.
            lockstep = all(len(one) == most + more for one in taken)
            position = merged(states, chance, lockstep=lockstep)
        found += on_ranks(make, chance.randint(1, 6), None, position)[0]
        assert examples(found) == whole

    @pytest.mark.slow(every=3)
    @pytest.mark.parametrize("most", [7, 12, 20])
    def test_parts_of_parts_that_earlier_ranks_have_delivered(self, most: int) -> None:
        """They come no more, also where their item has to come once more, since workers behind a
        shuffle go on from where the epoch began."""

        def make() -> Any:
            doubled = numbers(8, seed=7).prepare(two_of_each).prepare(two_of_each)
            return doubled.shuffle(40).prepare(int).batch(1)

        whole = examples([run(make(), 1)[0]])
        head, states = on_ranks(make, 1, most, epochs=1)
        position = merged(states)
        for middle in range(1, 9):
            rest, _ = on_ranks(make, 1, middle, position, epochs=1, more=32)
            assert examples(head + rest) == whole

    @pytest.mark.slow(every=5)
    @pytest.mark.parametrize("ranks", [1, 3, 8])
    @pytest.mark.parametrize("others", [1, 2, 8])
    def test_any_number_of_ranks(self, ranks: int, others: int) -> None:
        def make() -> Any:
            return shuffled().prepare(not_sevens, workers=2, on_error="skip").shuffle(5).batch(2)

        whole = examples([run(make(), EPOCHS)[0]])
        head, states = on_ranks(make, ranks, 3)
        rest, _ = on_ranks(make, others, None, merged(states, lockstep=ranks < 8))
        assert examples(head + rest) == whole


GLOBAL = 24
"""Examples that all ranks together take in a step."""


def stamped(batch: Any, rng: np.random.Generator) -> tuple[Any, float]:
    return batch, float(rng.random())


def of_steps(runs: list[Batches]) -> list[Any]:
    """What all ranks together were given, step by step, as one rank would have been."""
    return [
        (
            epoch,
            [
                Exact(row)
                for rows in zip(*(batch.value for _, batch in step), strict=True)
                for row in rows
            ],
        )
        for step in zip(*runs, strict=True)
        for epoch in {epoch for epoch, _ in step}
    ]


class TestOrderExact:
    """Source shuffle only, one example of each item: as if the number had never changed."""

    @pytest.mark.slow(but=("1-1", "1-2"))
    @pytest.mark.parametrize("ranks", [1, 2, 3, 8])
    @pytest.mark.parametrize("others", [1, 6, 8])
    def test_steps_of_all_ranks_are_those_of_one(self, ranks: int, others: int) -> None:
        def make(count: int) -> Made:
            source = numbers(5 * GLOBAL, shuffle=True, seed=7)
            return lambda: source.prepare(lambda n: n, workers=2).batch(GLOBAL // count).prefetch(1)

        whole = of_steps(on_ranks(make(1), 1, None)[0])
        for most in (1, 5) if (ranks + others) % 2 else (3, 7):
            head, states = on_ranks(make(ranks), ranks, most, uneven="pad")
            middle, later = on_ranks(make(others), others, 2, merged(states), uneven="pad")
            rest, _ = on_ranks(make(ranks), ranks, None, merged(later), uneven="pad")
            assert of_steps(head) + of_steps(middle) + of_steps(rest) == whole

    def test_of_one_rank_the_others_need_no_merge(self) -> None:
        """The places that are left say the same, whichever rank tells them."""
        _, states = on_ranks(lambda: shuffled().batch(4), 3, 3)
        (source,) = place_of(merged(states))["rest"]["epochs"]["0"]["sources"]
        assert (source["missing"], source["upto"]) == ("", 36)

    def test_generators_of_batches_continue(self) -> None:
        """A function that is given batches gets the generator of the step."""

        def make(count: int) -> Made:
            return lambda: (
                numbers(96, shuffle=True, seed=7).batch(GLOBAL // count).prepare(stamped).prefetch()
            )

        (whole,), _ = on_ranks(make(1), 1, None)
        head, states = on_ranks(make(4), 4, 2)
        rest, _ = on_ranks(make(2), 2, None, merged(states))
        for one in head:
            assert [stamp for _, (_, stamp) in one] == [stamp for _, (_, stamp) in whole[:2]]
        for one in rest:
            assert [stamp for _, (_, stamp) in one] == [stamp for _, (_, stamp) in whole[2:]]


class TestEqualRanks:
    """All ranks make as many batches, also where the items do not divide and some are skipped."""

    @pytest.mark.slow(but="3-pad")
    @pytest.mark.parametrize("uneven", ["pad", "drop"])
    @pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
    def test_whatever_is_left(self, ranks: int, uneven: Uneven) -> None:
        def make() -> Any:
            return shuffled().prepare(noisy, workers=2).shuffle(3).batch(2)

        whole = examples([run(make(), 1)[0]])
        head, states = on_ranks(make, ranks, 3, uneven=uneven, epochs=1)
        for others in (1, 3, 8):
            middle, later = on_ranks(make, others, 1, merged(states), uneven=uneven, epochs=1)
            rest, _ = on_ranks(make, ranks, None, merged(later), uneven=uneven, epochs=1)
            found = examples(head + middle + rest)
            for runs in (head, middle, rest):
                assert len({len(one) for one in runs}) == 1
            if uneven == "pad":
                assert {*found} == {*whole}
                # Copies make the last round of a run full.
                assert sum(found.values()) - sum(whole.values()) < ranks + others
            else:
                assert found.keys() <= whole.keys()
                assert set(found.values()) == {1}
                assert len(whole) - len(found) < max(ranks, others)

    @pytest.mark.slow(but="4-True")
    @pytest.mark.parametrize("ordered", [True, False])
    @pytest.mark.parametrize("ranks", [1, 3, 4, 7])
    def test_that_skip(self, ranks: int, ordered: bool) -> None:
        def make() -> Any:
            prepared = numbers(200, shuffle=True, seed=7).prepare(
                not_sevens, workers=3, on_error="skip", ordered=ordered
            )
            return prepared.batch(4)

        whole = examples([run(make(), 1)[0]])
        head, states = on_ranks(make, ranks, 2, uneven="pad", epochs=1)
        for others in (1, 3, 8):
            rest, _ = on_ranks(make, others, None, merged(states), uneven="pad", epochs=1)
            assert len({len(one) for one in rest}) == 1
            assert {*examples(head + rest)} == {*whole}
            # What came twice are copies, of ranks that have skipped.
            assert set(examples(head).values()) == {1}


class TestAtTheBordersOfEpochs:
    def make(self) -> Any:
        return shuffled().prepare(noisy, workers=2).shuffle(4).batch(3).prefetch(1)

    def test_before_the_first_batch(self) -> None:
        whole = examples([run(self.make(), EPOCHS)[0]])
        states = [
            self.make().shard(rank, 3, uneven="allow").epochs(EPOCHS).state_dict()
            for rank in range(3)
        ]
        assert examples(on_ranks(self.make, 2, None, merged(states))[0]) == whole
        # And once the epoch was begun, with nothing taken.
        states = []
        for rank in range(3):
            with self.make().shard(rank, 3, uneven="allow").epochs(EPOCHS) as epochs:
                next(epochs)
                states.append(epochs.state_dict())
        assert examples(on_ranks(self.make, 2, None, merged(states))[0]) == whole

    @pytest.mark.slow
    @pytest.mark.parametrize("uneven", ["pad", "drop", "allow"])
    def test_behind_the_last_batch_of_an_epoch(self, uneven: Uneven) -> None:
        first = examples([run(self.make(), 1)[0]])
        whole = examples([run(self.make(), EPOCHS)[0]])
        head, states = on_ranks(self.make, 4, None, uneven=uneven, epochs=1)
        for others in range(1, 9):
            position = merged(states, lockstep=uneven != "allow")
            rest, _ = on_ranks(self.make, others, None, position, uneven=uneven)
            if uneven == "allow":
                assert examples(head) == first
                assert examples(head + rest) == whole
            assert {epoch for one in rest for epoch, _ in one} == {1}

    @pytest.mark.slow(every=3)
    @pytest.mark.parametrize("uneven", ["pad", "drop", "allow"])
    def test_before_the_end_of_an_epoch_was_seen(self, uneven: Uneven) -> None:
        """All has been handed out, but nobody has asked for more."""
        _, states = on_ranks(self.make, 3, 7, uneven=uneven)
        assert all(place_of(state)["epoch"] == 0 for state in states)
        for others in range(1, 9):
            rest, _ = on_ranks(self.make, others, None, merged(states), uneven=uneven, epochs=1)
            assert examples(rest) == Counter()

    @pytest.mark.slow
    def test_ranks_in_different_epochs(self) -> None:
        """Steps are in lockstep, and epochs not: ranks have more or fewer batches in one."""

        def make() -> Any:
            return shuffled().filter(lambda n: n % 4 or n < 20).batch(2)

        whole = examples([run(make(), 3)[0]])
        apart = 0
        for most in range(1, 20):
            head, states = on_ranks(make, 3, most, epochs=3)
            apart += len({place_of(state)["epoch"] for state in states}) > 1
            middle, later = on_ranks(make, 2, 3, merged(states), epochs=3)
            lockstep = all(len(one) == 3 for one in middle)
            rest, _ = on_ranks(make, 5, None, merged(later, lockstep=lockstep), epochs=3)
            assert examples(head + middle + rest) == whole
        assert apart


class TestResuming:
    """The position of all ranks is a position like any other."""

    def make(self) -> Any:
        return shuffled().prepare(slowly, workers=3).shuffle(9).batch(4).prefetch(2)

    @pytest.mark.slow
    def test_the_same_rank_continues_after_that(self) -> None:
        _, states = on_ranks(self.make, 3, 2)
        position = merged(states)
        for rank in range(2):
            pipeline = self.make().shard(rank, 2, uneven="allow")
            whole, _ = run(pipeline, EPOCHS, None, position)
            taken: Batches = []
            state = position
            while True:
                more, state = run(pipeline, EPOCHS, 2, state)
                taken += more
                if not more:
                    break
            assert taken == whole

    @pytest.mark.slow
    def test_a_generator_is_cut_twice(self, folder: Path) -> None:
        """Parts of an item that were delivered are left out by all runs that follow."""
        make = ordered_shapes(folder)["generators"]
        for most in range(1, 8):
            head, states = on_ranks(lambda: make(How(1)), 2, most)
            middle, later = on_ranks(lambda: make(How(2)), 3, 1, merged(states))
            more: list[Batches] = []
            again = []
            for rank, state in enumerate(later):  # the same ranks go on before the next change
                pipeline = make(How(2)).shard(rank, 3, uneven="allow")
                taken, state = run(pipeline, EPOCHS, 1, state)
                more.append(taken)
                again.append(state)
            rest, _ = on_ranks(lambda: make(How(3)), 2, None, merged(again, lockstep=False))
            assert examples(head + middle + more + rest) == examples([run(make(How()), EPOCHS)[0]])

    def test_one_piece_of_one_item_was_delivered(self) -> None:
        """No item is done yet, and not all of them is left."""

        def make() -> Any:
            rows = numbers(5, seed=1).prepare(lambda item: np.full(20, item))
            return packed(rows, 8, 1, on_too_long="split").batch(1)

        whole = examples([run(make(), 1)[0]])
        for ranks in (1, 2, 3):
            head, states = on_ranks(make, ranks, 1, epochs=1)
            rest, _ = on_ranks(make, 2, None, merged(states), epochs=1)
            assert examples(head + rest) == whole

    def test_batches_that_are_dropped_are_done(self) -> None:
        """Nothing is made of them that could belong to one item or another."""

        def drop_thirds(batch: Any) -> Any:
            return batch if batch[0] % 3 else None

        def make() -> Any:
            return numbers(30, seed=1).batch(1).prepare(drop_thirds, drop_none=True)

        whole = examples([run(make(), 1)[0]])
        head, states = on_ranks(make, 2, 4, epochs=1)
        rest, _ = on_ranks(make, 3, None, merged(states), epochs=1)
        assert examples(head + rest) == whole

    def test_an_item_without_rows_is_done(self) -> None:
        asked: list[int] = []

        def rows(item: int) -> Any:
            asked.append(item)
            return np.full(item % 2, item)

        def make() -> Any:
            return numbers(6, seed=1).prepare(rows, workers=1).unbatch().batch(1)

        whole = examples([run(make(), 1)[0]])
        head, states = on_ranks(make, 1, 2, epochs=1)
        asked.clear()
        rest, _ = on_ranks(make, 1, None, merged(states), epochs=1)
        assert examples(head + rest) == whole
        assert asked == [4, 5]

    def test_an_item_is_done_whose_parts_were_given_in_two_runs(self) -> None:
        asked: list[int] = []

        def parts(item: int) -> Iterator[int]:
            asked.append(item)
            return two_of_each(item)

        def make() -> Any:
            return numbers(4, seed=1).prepare(lambda n: parts(n), workers=1).batch(1)

        whole = examples([run(make(), 1)[0]])
        head, states = on_ranks(make, 1, 1, epochs=1, more=2)
        asked.clear()
        rest, _ = on_ranks(make, 1, None, merged(states), epochs=1)
        assert examples(head + rest) == whole
        assert asked == [1, 2, 3]

    def test_twice_is_the_same(self) -> None:
        _, states = on_ranks(self.make, 3, 2)
        position = merged(states)
        pipeline = self.make().shard(1, 4, uneven="allow")
        with pipeline.epochs(EPOCHS, resume=position) as epochs:
            before = epochs.state_dict()
            epoch = next(epochs)
            found = [run(pipeline, EPOCHS, 3, one) for one in (before, position)]
            assert found[0][0] == found[1][0]
            assert places(found[0][1]) == places(found[1][1])
            next(epoch)
            assert places(epochs.state_dict()) == places(epochs.state_dict())

    def test_batches_are_left_out(self) -> None:
        _, states = on_ranks(self.make, 3, 2)
        position = merged(states)
        pipeline = self.make().shard(1, 2, uneven="allow")
        whole, _ = run(pipeline, EPOCHS, None, position)
        assert run(pipeline, EPOCHS, None, position.skip(3))[0] == whole[3:]
        skipped = [Position(state).skip(2) for state in states]
        assert run(pipeline, EPOCHS, None, merged(skipped))[0] == whole[2:]

    def test_epochs_have_their_numbers_and_lengths(self) -> None:
        def make() -> Any:
            return numbers(96, seed=1).batch(4)

        _, states = on_ranks(make, 2, 5, epochs=4, uneven="pad")
        with make().shard(0, 4).epochs(4, resume=merged(states)) as epochs:
            seen = [(epoch.number, len(epoch), len(list(epoch))) for epoch in epochs]
        # Of 12 steps of two ranks five were made; 56 items are 14 for each of four.
        assert seen == [(0, 4, 4), (1, 6, 6), (2, 6, 6), (3, 6, 6)]

    def test_the_number_of_the_step_continues(self) -> None:
        _, states = on_ranks(self.make, 2, 3)
        _, later = on_ranks(self.make, 3, 2, merged(states))
        assert place_of(merged(later))["batches"] == 5

    @pytest.fixture
    def whole(self) -> Counter[Any]:
        return examples([run(self.make(), 1)[0]])

    @pytest.mark.slow(every=3)
    async def test_in_every_world(self, world: World, whole: Counter[Any]) -> None:
        pipeline = self.make()
        found = []
        position = None
        for ranks, most in ((3, 2), (2, 2), (4, None)):
            states = []
            for rank in range(ranks):
                of_rank = pipeline.shard(rank, ranks, uneven="allow")
                epochs = of_rank.epochs(1, resume=position)
                batches, state = await self.some(world, epochs, most)
                found.append([(0, batch) for batch in batches])
                states.append(state)
            position = merged(states) if most else None
        assert examples(found) == whole

    async def some(self, world: World, epochs: Any, most: int | None) -> tuple[list[Any], Any]:
        taken: list[Any] = []
        if isinstance(world, ThreadWorld):
            with epochs:
                for batch in next(epochs):
                    taken.append(Exact(batch))
                    if len(taken) == most:
                        break
                return taken, epochs.state_dict()
        async with epochs:
            async for batch in await anext(epochs):
                taken.append(Exact(batch))
                if len(taken) == most:
                    break
            return taken, epochs.state_dict()


class TestWhatItCosts:
    @pytest.mark.slow
    def test_files_are_read_from_near_what_is_left(self, tmp_path: Path) -> None:
        path = tmp_path / "lines.txt"
        path.write_text("".join(f"{line}\n" for line in range(9000)))

        def make() -> Any:
            return read_lines(items([str(path)], seed=1)).prepare(str.strip, workers=2).batch(10)

        _, states = on_ranks(make, 3, 250, epochs=1)
        (source,) = place_of(merged(states))["rest"]["epochs"]["0"]["sources"]
        assert 7500 - 64 * 3 * 2 <= source["start"] <= 7500
        rest, _ = on_ranks(make, 2, None, merged(states), epochs=1)
        assert sorted(int(line) for line in chain(*(b for one in rest for _, b in one))) == [
            *range(7500, 9000)
        ]

    def test_the_state_is_small(self) -> None:
        size = 2000

        def make() -> Any:
            return numbers(10**6, shuffle=True, seed=1).shuffle(size).batch(100)

        _, states = on_ranks(make, 2, 50, epochs=1)
        assert len(json.dumps(states[0])) <= 1024 + 5.5 * size
        assert len(json.dumps(merged(states))) <= 1024 + 2 * 1.5 * size
