"""Resuming: what comes behind a position is what would have come, and everything of it."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from aioqueue import InvalidArgumentError
from aioqueue.inputs import Pipeline, items, numbers, read_lines
from aioqueue.pipeline.nodes.progress import NUMBER, packed, packed_within, unpacked
from aioqueue.pipeline.stage_input import StageInput
from aioqueue.workers.flow_control import ReadPace
from tests.kit.exact import Exact
from tests.kit.going import Counting, plain
from tests.kit.going import packed as packed_rows
from tests.kit.resuming import (
    Batches,
    How,
    examples,
    noisy,
    not_sevens,
    of_every_kind,
    ordered_shapes,
    place_of,
    run,
    several,
    shuffled,
    slowly,
    through_json,
    unordered_shapes,
    write_files,
)
from tests.kit.worlds import PATIENCE, ThreadWorld, World

EPOCHS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("resuming"))


def how(chance: random.Random) -> How:
    return How(chance.randint(1, 5), limit=chance.choice([None, 3, 8]))


def in_pieces(shape: Any, chance: random.Random, most: int) -> Batches:
    """All batches, by many runs each of which goes on where the one before was left."""
    taken: Batches = []
    state = None
    while True:
        more, state = run(shape(how(chance)), EPOCHS, chance.randint(1, most), state)
        taken += more
        if not more:
            return taken


def begun(pipeline: Any, state: Any) -> Any:
    """What stands in place of a state once its run goes on, and has given nothing."""
    with pipeline.epochs(EPOCHS, resume=state) as epochs:
        next(epochs, None)
        return through_json(epochs.state_dict())


class TestOrderExact:
    @pytest.mark.slow(but=("a padded rank of full batches", "one epoch of a source"))
    @pytest.mark.parametrize("name", ordered_shapes(Path()))
    def test_the_rest_is_the_same(self, name: str, folder: Path) -> None:
        shape = ordered_shapes(folder)[name]
        whole, _ = run(shape(How()), EPOCHS)
        count = len(whole)
        places = {1, 2, 5, count // 2 - 1, count // 2, count // 2 + 1, count - 1, count}
        # A third of them, and other ones for the next shape.
        for k in sorted(places)[len(name) % 3 :: 3]:
            if 0 < k <= count:
                head, state = run(shape(How(2)), EPOCHS, k)
                assert head == whole[:k]
                state = begun(shape(How(3)), state)
                rest, _ = run(shape(How(4, limit=5)), EPOCHS, None, state)
                assert rest == whole[k:]

    @pytest.mark.slow(but="a padded rank of full batches")
    @pytest.mark.parametrize("name", ordered_shapes(Path()))
    def test_many_times(self, name: str, folder: Path) -> None:
        shape = ordered_shapes(folder)[name]
        assert in_pieces(shape, random.Random(name), 7) == run(shape(How()), EPOCHS)[0]

    @pytest.mark.slow(every=26)
    @pytest.mark.parametrize("name", ordered_shapes(Path()))
    def test_while_workers_have_not_begun(
        self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Until they have, no state of the nodes before them is known, but where epochs begin."""
        monkeypatch.setattr(StageInput, "_note_mark", lambda stage_input: None)
        shape = ordered_shapes(folder)[name]
        whole, _ = run(shape(How()), EPOCHS + 1)
        first = sum(epoch == 0 for epoch, _ in whole)
        head, state = run(shape(How(1)), EPOCHS + 1, min(first + 1, len(whole)))
        middle, state = run(shape(How(2)), EPOCHS + 1, 2, state)
        rest, _ = run(shape(How(4, limit=5)), EPOCHS + 1, None, state)
        assert head + middle + rest == whole

    @pytest.mark.slow(every=9)
    @pytest.mark.parametrize("stages", ["plain", "several of one", "skips", "ranks", "time limit"])
    @pytest.mark.parametrize("together", [8, 64])
    def test_items_that_are_taken_together(
        self, stages: str, together: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As many as functions that do next to nothing are given: how many goes by the clock."""
        monkeypatch.setattr(ReadPace, "next", lambda pace, seconds: together)
        monkeypatch.setattr(ReadPace, "is_quick", True)
        shapes: dict[str, Any] = {
            "plain": lambda how: how.prepare(shuffled(), noisy).shuffle(9).batch(4),
            "several of one": lambda how: how.prepare(shuffled(), several).batch(4),
            "skips": lambda how: how.prepare(shuffled(), not_sevens, on_error="skip").batch(4),
            "ranks": lambda how: how.prepare(shuffled(), noisy).batch(4).shard(1, 3),
            "time limit": lambda how: how.prepare(shuffled(), noisy, item_timeout=PATIENCE).batch(
                4
            ),
        }
        shape = shapes[stages]
        whole, _ = run(shape(How(1)), EPOCHS)
        for k in (1, len(whole) // 2 + 1):
            head, state = run(shape(How(3)), EPOCHS, k)
            assert head == whole[:k]
            assert run(shape(How(2, limit=5)), EPOCHS, None, state)[0] == whole[k:]

    def test_with_processes(self) -> None:
        def pipeline(**options: Any) -> Any:
            return shuffled().prepare(noisy, **options).shuffle(8).batch(4)

        whole, _ = run(pipeline(), EPOCHS)
        head, state = run(pipeline(where="process", workers=2), EPOCHS, 9)
        middle, state = run(pipeline(workers=1), EPOCHS, 5, state)
        rest, _ = run(pipeline(where="process", workers=1), EPOCHS, None, state)
        assert head + middle + rest == whole

    def test_the_last_batches_may_have_another_size(self) -> None:
        def pipeline(size: int) -> Any:
            return shuffled().prepare(noisy).shuffle(8).batch(size)

        rows = [row for _, batch in run(pipeline(1), 1)[0] for row in zip(*batch, strict=True)]
        head, state = run(pipeline(4), 1, 3)
        rest, _ = run(pipeline(5), 1, None, state)
        found = [row for _, batch in head + rest for row in zip(*batch, strict=True)]
        assert found == rows

    def test_smaller_batches_may_continue_what_an_epoch_has_left(self) -> None:
        """Nine rows came back, and no position behind one of their batches drops the others."""

        def batches(size: int) -> Any:
            return numbers(9, seed=1).batch(size, across_epochs=True, collate=list)

        with batches(10).epochs(4) as epochs:
            assert not list(next(epochs))
            state = through_json(epochs.state_dict())
        found, states = [], []
        with batches(2).epochs(4, resume=state) as epochs:
            for epoch in epochs:
                for batch in epoch:
                    found.append((epoch.number, Exact(batch)))
                    states.append(through_json(epochs.state_dict()))
        assert [one for _, batch in found[:4] for one in batch.value] == list(range(8))
        for at, one in enumerate(states, 1):
            assert run(batches(2), 4, None, one)[0] == found[at:]


def twenty(item: int) -> Any:
    return np.full(20, item + 1)


class TestSetExact:
    @pytest.mark.slow(but="lines")
    @pytest.mark.parametrize("name", unordered_shapes(Path()))
    def test_each_example_comes_once(self, name: str, folder: Path) -> None:
        shape = unordered_shapes(folder)[name]
        whole = examples([run(shape(How()), EPOCHS)[0]])
        for seed in range(2):
            assert examples([in_pieces(shape, random.Random(seed), 6)]) == whole

    def test_what_has_no_position_raises_an_error(self) -> None:
        freely = shuffled().prepare(noisy, ordered=False)
        for pipeline in (
            freely.prepare(lambda pair: pair, ordered=False).batch(2),
            freely.prefetch().shuffle(4).batch(2),
        ):
            with pipeline.epochs(1) as epochs:
                next(next(epochs))
                with pytest.raises(RuntimeError, match="no position"):
                    epochs.state_dict()

    def test_a_sequence_that_waits_in_pieces_is_held_once(self) -> None:
        """It comes again once, and so counts once among what the workers have given."""

        def pipeline() -> Any:
            sequences = numbers(6).prepare(twenty, ordered=False, workers=1)
            return packed_rows(sequences, 8, 2, on_too_long="split")

        whole, _ = run(pipeline(), 1)
        for most in range(1, len(whole)):
            head, state = run(pipeline(), 1, most)
            rest, _ = run(pipeline(), 1, None, state)
            assert examples([head, rest]) == examples([whole])

    def test_an_item_that_was_given_in_part_has_none(self) -> None:
        """Another one would come in its place: so its rest would be lost, and others come twice."""

        def fourfold(pair: tuple[int, float]) -> list[int]:
            return [4 * pair[0] + place for place in range(4)]

        pipeline = shuffled().prepare(slowly, ordered=False).flat(fourfold, workers=1)
        whole = sorted(
            4 * number + place for number, _ in shuffled().prepare(noisy) for place in range(4)
        )
        for count in range(1, 13):
            with pipeline.epochs(1) as epochs:
                epoch = next(epochs)
                taken = [next(epoch) for _ in range(count)]
                if count % 4:
                    with pytest.raises(RuntimeError, match="no position here: only some examples"):
                        epochs.state_dict()
                    continue
                state = through_json(epochs.state_dict())
            with pipeline.epochs(1, resume=state) as epochs:
                assert sorted(taken + [one for epoch in epochs for one in epoch]) == whole

    def test_what_has_no_position_is_replayed(self) -> None:
        """Also where a stage behind marks where it stands: only a caller of `state_dict` sees
        that."""
        freely = shuffled().prepare(noisy, ordered=False)
        for pipeline in (
            freely.prepare(lambda pair: pair, ordered=False).prepare(lambda pair: pair),
            freely.batch(3).unbatch().prepare(lambda pair: pair),
            freely.prefetch().shuffle(4).prepare(lambda pair: pair).prepare(lambda pair: pair),
        ):
            assert len(list(pipeline)) == len(list(shuffled()))
            with pipeline.batch(2).epochs(1) as epochs:
                next(next(epochs))
                for _ in range(2):
                    with pytest.raises(RuntimeError, match="no position"):
                        epochs.state_dict()


class TestInEveryWorld:
    @pytest.mark.slow(every=3)
    async def test_leaving_and_resuming(self, world: World) -> None:
        pipeline = shuffled().prepare(slowly).shuffle(9).batch(4).prefetch(2)
        whole, _ = await self.some(world, pipeline.epochs(EPOCHS), None)
        taken: Batches = []
        state = None
        while len(taken) < len(whole):
            epochs = pipeline.epochs(EPOCHS, resume=state)
            more, state = await self.some(world, epochs, 5)
            taken += more
        assert taken == whole

    async def some(self, world: World, epochs: Any, most: int | None) -> tuple[Batches, Any]:
        taken: Batches = []
        if isinstance(world, ThreadWorld):
            with epochs:
                for epoch in epochs:
                    for batch in epoch:
                        taken.append((epoch.number, Exact(batch)))
                        if len(taken) == most:
                            return taken, epochs.state_dict()
            return taken, epochs.state_dict()
        async with epochs:
            async for epoch in epochs:
                async for batch in epoch:
                    taken.append((epoch.number, Exact(batch)))
                    if len(taken) == most:
                        return taken, epochs.state_dict()
        return taken, epochs.state_dict()


class TestWhen:
    PIPELINE = shuffled().prepare(noisy, workers=2).shuffle(9).batch(4)

    def test_before_the_first_batch(self) -> None:
        epochs = self.PIPELINE.epochs(2)
        state = through_json(epochs.state_dict())
        assert run(self.PIPELINE, 2, None, state)[0] == run(self.PIPELINE, 2)[0]
        with epochs:
            next(epochs)
            state = through_json(epochs.state_dict())
        assert run(self.PIPELINE, 2, None, state)[0] == run(self.PIPELINE, 2)[0]

    def test_twice_is_the_same_also_after_a_restart(self) -> None:
        _, state = run(self.PIPELINE, 2, 5)
        with self.PIPELINE.epochs(2, resume=state) as epochs:
            assert epochs.state_dict() == state
            next(epochs)
            assert place_of(epochs.state_dict())["node"] == place_of(state)["node"]
            assert epochs.state_dict() == epochs.state_dict()

    def test_after_the_last(self) -> None:
        whole, state = run(self.PIPELINE, 2)
        assert run(self.PIPELINE, 2, None, state)[0] == []
        assert run(self.PIPELINE, 3, None, state)[0] == run(self.PIPELINE, 3)[0][len(whole) :]

    def test_one_epoch(self) -> None:
        whole = [Exact(batch) for batch in self.PIPELINE]
        epoch: Any = iter(self.PIPELINE)
        head = [Exact(next(epoch)) for _ in range(3)]
        assert head + [Exact(one) for one in self.PIPELINE.resume(epoch.state_dict())] == whole

    def test_while_another_thread_waits_for_a_batch(self) -> None:
        allow_to_end, waits = threading.Event(), threading.Event()

        def waiting(item: int) -> int:
            if item == 6:
                waits.set()
                allow_to_end.wait()
            return item

        pipeline = numbers(10).prepare(waiting, workers=1).batch(4)
        with pipeline.epochs(1) as epochs:
            epoch = next(epochs)
            assert plain(next(epoch)) == [0, 1, 2, 3]
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(plain(next(epoch))))
            thread.start()
            waits.wait()
            state = epochs.state_dict()  # 4 and 5 may be on their way
            allow_to_end.set()
            thread.join()
        assert found == [[4, 5, 6, 7]]
        assert run(pipeline, 1, None, state)[0] == [(0, [4, 5, 6, 7]), (0, [8, 9])]

    def test_an_epoch_that_was_left(self) -> None:
        with self.PIPELINE.epochs(2) as epochs:
            next(next(epochs))
            next(epochs)
            state = epochs.state_dict()
        whole = run(self.PIPELINE, 2)[0]
        assert run(self.PIPELINE, 2, None, state)[0] == [one for one in whole if one[0] == 1]

    def test_only_what_is_held_is_prepared_again(self) -> None:
        counting = Counting(lambda item: item)
        source = numbers(2000, shuffle=True, seed=3)
        _, state = run(source.prepare(lambda item: item).shuffle(50).batch(10), 1, 150)
        pipeline = (
            source.prepare(counting, workers=1, max_in_flight=1, buffer_size=1)
            .shuffle(50)
            .batch(10)
        )
        with pipeline.epochs(1, resume=state) as epochs:
            next(next(epochs))
        assert len(counting.calls) <= 50 + 10 + 10

    def test_nothing_of_what_was_passed_is_read(self) -> None:
        class Sequence:
            def __init__(self) -> None:
                self.asked: list[int] = []

            def __len__(self) -> int:
                return 10**7

            def __getitem__(self, index: int) -> int:
                self.asked.append(index)
                return index

        state = through_json(iter_state(items(Sequence(), seed=1).shuffle(20).batch(10), 3))
        sequence = Sequence()
        state_at = items(sequence, seed=1)
        with state_at.shuffle(20).batch(10).epochs(1, resume=state) as epochs:
            next(next(epochs))
        assert len(sequence.asked) <= 60


def iter_state(pipeline: Any, count: int) -> Any:
    epoch: Any = iter(pipeline)
    for _ in range(count):
        next(epoch)
    return epoch.state_dict()


class TestRefusing:
    def changed(self, state: Any) -> Iterator[tuple[str, Any]]:
        """The state with every leaf changed, one at a time."""

        def leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
            if isinstance(value, dict | list) and value:
                keys = value if isinstance(value, dict) else range(len(value))
                for key in keys:
                    yield from leaves(value[key], (*path, key))
            else:
                yield path

        def each(whole: Any) -> Iterator[tuple[str, Any]]:
            for path in leaves(whole, ()):
                other = json.loads(json.dumps(whole))
                at = other
                for key in path[:-1]:
                    at = at[key]
                old = at[path[-1]]
                at[path[-1]] = not old if isinstance(old, bool) else [old, "other"]
                yield ".".join(map(str, path)), other

        yield from each(state)

    def test_every_field_changed(self) -> None:
        pipeline = shuffled().prepare(noisy).shuffle(9).batch(4)
        _, state = run(pipeline, 2, 5)
        found = 0
        for path, other in self.changed(state):
            found += 1
            with pytest.raises(InvalidArgumentError, match=r"^position: got") as refused:
                pipeline.epochs(2, resume=other)
            if path.startswith("source.") or path.endswith(".buffer"):
                assert path.split(".")[-1] in str(refused.value)
        assert found > 40

    def test_every_field_missing(self) -> None:
        pipeline = shuffled().prepare(noisy).shuffle(9).batch(4)
        _, state = run(pipeline, 2, 5)
        for key in state:
            with pytest.raises(InvalidArgumentError, match=r"^position: got"):
                pipeline.epochs(2, resume={k: v for k, v in state.items() if k != key})

    @pytest.mark.parametrize(
        ("field", "make"),
        [
            ("source.seed", lambda: numbers(61, shuffle=True, seed=8).shuffle(9).batch(4)),
            ("source.length", lambda: numbers(60, shuffle=True, seed=7).shuffle(9).batch(4)),
            ("buffer", lambda: shuffled().shuffle(10).batch(4)),
            ("stages", lambda: shuffled().batch(4)),
            ("seed", lambda: shuffled().shuffle(9, seed=4).batch(4)),
        ],
    )
    def test_another_pipeline(self, field: str, make: Any) -> None:
        _, state = run(shuffled().shuffle(9).batch(4), 1, 2)
        with pytest.raises(InvalidArgumentError, match=field.replace(".", r"\.")):
            make().epochs(1, resume=state)

    def test_other_files(self, tmp_path: Path) -> None:
        path = tmp_path / "lines"
        path.write_text("a\nb\nc\nd\n")
        _, state = run(read_lines(str(path)).batch(1), 1, 2)
        path.write_text("a\nb\nc\n")
        with pytest.raises(InvalidArgumentError, match="files"):
            read_lines(str(path)).batch(1).epochs(1, resume=state)

    def test_after_the_first_epoch_was_asked_for(self) -> None:
        pipeline = shuffled().batch(4)
        _, state = run(pipeline, 2, 2)
        with pipeline.epochs(2) as epochs:
            next(epochs)
            with pytest.raises(RuntimeError, match="resume=state"):
                epochs.load_state_dict(state)

    def test_before_it_is_loaded(self) -> None:
        pipeline = shuffled().batch(4)
        _, state = run(pipeline, 2, 2)
        epochs = pipeline.epochs(2)
        epochs.load_state_dict(state)
        with epochs:
            found = [Exact(batch) for epoch in epochs for batch in epoch]
        assert found == [batch for _, batch in run(pipeline, 2)[0]][2:]

    def test_a_source_that_comes_once(self) -> None:
        pipeline: Pipeline[Any] = Pipeline(read_lines(iter([]))).batch(2)
        with pytest.raises(InvalidArgumentError, match="paths"):
            pipeline.epochs(1).state_dict()

    def test_a_drawn_seed_comes_with_the_position(self) -> None:
        head, state = run(numbers(20, shuffle=True).shuffle(3).batch(2), 1, 3)
        rest, _ = run(numbers(20, shuffle=True).shuffle(3).batch(2), 1, None, state)
        assert sorted(n for _, batch in head + rest for n in batch) == list(range(20))


def test_the_state_is_small() -> None:
    size = 2000
    pipeline = numbers(10**6, shuffle=True, seed=1).shuffle(size).batch(100)
    state = iter_state(pipeline, 100)
    assert len(json.dumps(state)) <= 1024 + 4.2 * size


@given(
    st.lists(st.integers(-(2**62), 2**62), max_size=9)
    | st.lists(st.integers(-100, 100), max_size=99)
    | st.lists(st.integers(10**12, 10**12 + 2**15), max_size=9)
    | st.lists(st.integers(0, 2**32), max_size=9).map(sorted)
)
@example([*range(1000)])
@example([7])
@example([2**62, 2**62 - 1, 2**62])
@example([0, 2**15, 0])
@example([0, 2**15 - 1, 2**15 - 1 - 2**15])
def test_numbers_are_packed(found: list[int]) -> None:
    assert unpacked(packed(found)) == found


@given(
    st.integers(0, 2**62),
    st.sampled_from([1, 2**7, 2**15 - 1, 2**15, 2**20]).flatmap(
        lambda span: st.tuples(st.just(span), st.lists(st.integers(0, span), max_size=40))
    ),
)
@example(2**16 - 1, (2**15 - 1, [0, 2**15 - 1] * 9))
@example(2**31 - 5, (2**15 - 1, [2**15 - 1, 0] * 9))
def test_numbers_that_are_near_each_other_are_packed(
    least: int, spread: tuple[int, list[int]]
) -> None:
    span, offsets = spread
    found = [least + offset for offset in offsets]
    assert unpacked(packed_within(np.array(found, NUMBER), span)) == found


class Resuming(RuleBasedStateMachine):
    """Take, save, crash and load in any order; the model is the list of all batches."""

    PIPELINE = shuffled().prepare(of_every_kind, workers=2).shuffle(7).batch(3).prefetch(1)
    WHOLE, _ = run(PIPELINE, EPOCHS)

    def __init__(self) -> None:
        super().__init__()
        self.at = self.saved_at = 0
        self.saved: Any = None
        self.begin()

    def begin(self) -> None:
        self.epochs = self.PIPELINE.epochs(EPOCHS, resume=self.saved)
        self.epoch: Any = None

    @rule(count=st.integers(1, 9))
    def take(self, count: int) -> None:
        for _ in range(count):
            while True:
                if self.epoch is None:
                    self.epoch = next(self.epochs, None)
                    if self.epoch is None:
                        assert self.at == len(self.WHOLE)
                        return
                batch = next(self.epoch, None)
                if batch is not None:
                    break
                self.epoch = None
            assert (self.epoch.number, Exact(batch)) == self.WHOLE[self.at]
            self.at += 1

    @rule()
    def save(self) -> None:
        self.saved, self.saved_at = through_json(self.epochs.state_dict()), self.at

    @rule()
    def crash(self) -> None:
        self.epochs.close()
        self.at = self.saved_at
        self.begin()

    def teardown(self) -> None:
        self.epochs.close()


Resuming.TestCase.settings = settings(
    derandomize=True, deadline=None, max_examples=15, stateful_step_count=15
)
TestResuming = pytest.mark.slow(Resuming.TestCase)
