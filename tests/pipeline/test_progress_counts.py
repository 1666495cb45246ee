"""What was counted and listed before a crash goes on behind it, and nobody is listed twice."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import sync
from aioqueue.inputs import (
    Retry,
    batch,
    bucket_by_sequence_length,
    merge_positions,
    mix,
    numbers,
    shuffle_batch,
)
from aioqueue.items.item import Delivered
from aioqueue.pipeline.nodes.progress import ArrivedItems, id_of
from aioqueue.pipeline.nodes.rows import EpochRange
from aioqueue.pipeline.queue_node import QueueNode
from aioqueue.pipeline.source_node import SourceNode
from aioqueue.pipeline.stage_input import StageInput
from aioqueue.sources.shards import EpochEntries, Rank
from tests.kit.resumable_streams import twice
from tests.kit.resuming import How, noisy, several, shuffled, through_json

EPOCHS = 2
COUNTS = ("prepared", "examples", "left_out", "skipped", "retried")


def fails(item: int, rng: np.random.Generator) -> tuple[int, float] | None:
    """Some fail, some are left out."""
    if item % 7 == 3:
        raise ValueError("seven")
    return None if item % 5 == 1 else noisy(item, rng)


def fails_later(pair: tuple[int, float], rng: np.random.Generator) -> tuple[int, float]:
    if pair[0] % 6 == 2:
        raise ValueError("six")
    return pair


Shape = Callable[[How, Path], Any]


def skipping(how: How, file: Path, source: Any = None, **options: Any) -> Any:
    options = {"on_error": "skip", "drop_none": True, "quarantine": file, **options}
    return how.prepare(shuffled() if source is None else source, fails, **options)


SHAPES: dict[str, Shape] = {
    "batches": lambda how, file: skipping(how, file).batch(4),
    "shuffle after": lambda how, file: skipping(how, file).shuffle(9).batch(4),
    "shuffle before": lambda how, file: skipping(how, file, shuffled().shuffle(9)).batch(4),
    "larger than an epoch": lambda how, file: skipping(how, file).shuffle(100).batch(4),
    "retries": lambda how, file: skipping(how, file, on_error=Retry(2, then="skip")).batch(4),
    "two in a row": lambda how, file: how.prepare(
        skipping(how, file).shuffle(5), fails_later, on_error="skip", quarantine=file
    ).batch(4),
    "of generators": lambda how, file: (
        how.prepare(how.prepare(shuffled(), several), fails_later, on_error="skip", quarantine=file)
        .shuffle(6)
        .batch(4)
    ),
    "mixed in": lambda how, file: (
        how.prepare(shuffled(), noisy)
        .mix(skipping(how, file, numbers(40, seed=2)).shuffle(4))
        .batch(4)
        .prefetch(2)
    ),
    "taken": lambda how, file: skipping(how, file).shuffle(7).take(30).batch(4),
    "across epochs": lambda how, file: skipping(how, file).batch(7, across_epochs=True),
    "a padded rank": lambda how, file: skipping(
        how, file, shuffled().shard(2, 3), drop_none=False
    ).batch(4),
    "unordered": lambda how, file: skipping(how, file, ordered=False).batch(4),
    "unordered, shuffled": lambda how, file: skipping(how, file, ordered=False).shuffle(8).batch(4),
}


def some(pipeline: Any, most: int | None, state: Any = None) -> tuple[int, Any, Any]:
    """Take so many batches; returns how many came, the state, and what was counted."""
    taken = 0
    with pipeline.epochs(EPOCHS, resume=state) as epochs:
        for epoch in epochs:
            for _ in epoch:
                taken += 1
                if taken == most:
                    return taken, through_json(epochs.state_dict()), epochs
        return taken, through_json(epochs.state_dict()), epochs


def counted(epochs: Any) -> list[tuple[int, ...]]:
    return [tuple(getattr(stage, one) for one in COUNTS) for stage in epochs.statistics()]


def listed(file: Path) -> Counter[Any]:
    """Who is in the file, and how often."""
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return Counter((line["run"], line["epoch"], line["index"]) for line in lines)


def named(found: Counter[Any]) -> Counter[Any]:
    return Counter((epoch, index) for _, epoch, index in found.elements())


class TestRanks:
    def test_a_rank_continues(self) -> None:
        pipeline = numbers(60, shuffle=True, seed=1).prepare(float).batch(4).shard(1, 2)
        with pipeline.epochs(1) as epochs:
            batches = iter(next(epochs))
            for _ in range(3):
                next(batches)
            state = through_json(epochs.state_dict())
        with pipeline.epochs(1, resume=state) as epochs:
            assert len(list(next(epochs))) == 5
            (counts,) = epochs.statistics()
        assert (counts.prepared, counts.examples) == (30, 30)

    def test_another_number_of_ranks_restarts(self) -> None:
        """Items are dealt out anew: no rank could say which rank counted which."""

        def make(rank: int, ranks: int) -> Any:
            one = numbers(60, shuffle=True, seed=1).prepare(float).batch(4)
            return one.shard(rank, ranks, uneven="allow")

        states = []
        for rank in range(3):
            with make(rank, 3).epochs(1) as epochs:
                batches = iter(next(epochs))
                next(batches)
                next(batches)
                states.append(through_json(epochs.state_dict()))
        position = merge_positions(states)
        found = []
        for rank in range(2):
            with make(rank, 2).epochs(1, resume=position) as epochs:
                assert sum(len(batch) for epoch in epochs for batch in epoch) == 18
                found += epochs.statistics()
        assert [one.examples for one in found] == [18, 18]


class TestCrashes:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", SHAPES)
    def test_at_each_point(self, name: str, tmp_path: Path) -> None:
        shape = SHAPES[name]
        count, state, epochs = some(shape(How(), tmp_path / "whole"), None)
        total, whole = counted(epochs), named(listed(tmp_path / "whole"))
        assert sum(whole.values()) == sum(one[3] for one in total) > 0
        # Each sixth point, and other ones for the next shape.
        for at in range(1 + [*SHAPES].index(name) % 6, count - 2, 6):
            file = tmp_path / f"{at}"
            _, state, _ = some(shape(How(2), file), at)
            some(shape(How(3), file), 3, state)  # and what it lists is lost to the next state
            _, state, _ = some(shape(How(1, limit=4), file), 2, state)
            _, _, epochs = some(shape(How(4), file), None, state)
            assert max(listed(file).values()) == 1
            if name != "taken":  # of which more is prepared than is used, as luck will have it
                assert named(listed(file)) == whole
                assert counted(epochs) == total

    def test_listed_items_are_still_reported(self, tmp_path: Path) -> None:
        """What a process has skipped, it lists, also where the line was there before."""
        shape, file = SHAPES["batches"], tmp_path / "file"
        _, state, _ = some(shape(How(1), file), 2)
        _, _, epochs = some(shape(How(1), file), None, state)
        before = epochs.quarantine
        again = some(shape(How(1), file), None, state)[2].quarantine
        assert {(one.epoch, one.index) for one in again} == {
            (one.epoch, one.index) for one in before
        }
        assert listed(file).most_common(1)[0][1] == 1

    def test_another_run_lists_its_own(self, tmp_path: Path) -> None:
        shape, file = SHAPES["batches"], tmp_path / "file"
        for _ in range(2):
            some(shape(How(), file), None)
        assert set(named(listed(file)).values()) == {2}
        assert set(listed(file).values()) == {1}

    def test_in_memory(self) -> None:
        """There is nobody in the list who was skipped, and counted, before the state."""
        examples = numbers(40).prepare(fails, on_error="skip", drop_none=True, workers=1)
        pipeline = examples.shuffle(20).batch(1)
        _, state, _ = some(pipeline, 5)
        known = ArrivedItems(*id_of(state["stages"][0]["counts"]["upto"])[:2])
        _, _, epochs = some(pipeline, None, state)
        expected = [(e, n) for e in range(2) for n in range(40) if n % 7 == 3]
        assert [(one.epoch, one.index) for one in epochs.quarantine] == [
            one for one in expected if not known.has(*one)
        ]
        assert len(epochs.quarantine) < len(expected) == epochs.statistics()[0].skipped

    @pytest.mark.parametrize("limits", [{}, {"concurrency_key": int, "max_per_key": 1}])
    def test_retries_of_what_was_cut_short(self, limits: Any) -> None:
        may_end = threading.Event()

        def never_ends_with_1(item: int) -> int:
            if item == 1:
                may_end.wait()
            return item

        again = Retry(2, then="skip")
        pipeline = numbers(12).prepare(
            never_ends_with_1, workers=8, item_timeout=0.05, on_error=again, **limits
        )
        try:
            _, state, _ = some(pipeline.batch(4), 2)
            _, _, epochs = some(pipeline.batch(4), None, state)
        finally:
            may_end.set()
        (counts,) = epochs.statistics()
        assert (counts.retried, counts.skipped) == (2 * EPOCHS, EPOCHS)

    def test_a_torn_line_is_no_line(self, tmp_path: Path) -> None:
        shape, file = SHAPES["batches"], tmp_path / "file"
        _, state, _ = some(shape(How(1), file), 2)
        before = listed(file)
        some(shape(How(1), file), None, state)
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])  # as after a loss of power
        some(shape(How(1), file), None, state)
        found = [line for line in file.read_text().splitlines() if line.endswith("}")]
        assert len(found) == len(lines)
        assert sum(before.values()) < len(lines)


class TestBudget:
    def test_failures_before_the_crash_count(self) -> None:
        def pipeline(most: float) -> Any:
            options: Any = {"on_error": "skip", "drop_none": True, "max_failures": most}
            return numbers(70, seed=1).prepare(
                fails, workers=1, max_in_flight=1, buffer_size=1, **options
            )

        # Ten items of each epoch fail.
        _, state, _ = some(pipeline(20), 60)
        _, _, epochs = some(pipeline(20), None, state)
        assert epochs.statistics()[0].skipped == 20
        with pytest.raises(ExceptionGroup) as failed:
            some(pipeline(19), None, state)
        assert "max_failures allows 19" in str(failed.value.exceptions[0].__notes__)

    def test_of_a_share_those_before_count(self) -> None:
        def pipeline() -> Any:
            # All fail, but late: so a run that began to count anew would stop.
            options: Any = {"on_error": "skip", "max_failures": 0.3}
            return numbers(100).prepare(late, workers=1, max_in_flight=1, buffer_size=1, **options)

        def late(item: int) -> int:
            if item >= 80:
                raise ValueError("late")
            return item

        with pipeline().epochs(1) as epochs:
            epoch = next(epochs)
            for _ in range(79):
                next(epoch)
            state = through_json(epochs.state_dict())
        with pipeline().epochs(1, resume=state) as epochs:
            assert [len(list(epoch)) for epoch in epochs] == [1]
            assert epochs.statistics()[0].skipped == 20


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (ArrivedItems(0, 3), ArrivedItems(1, 1), ArrivedItems(1, 1)),
        (
            ArrivedItems(1, 3, frozenset({5})),
            ArrivedItems(1, 4, frozenset({6})),
            ArrivedItems(1, 4, frozenset({5, 6})),
        ),
        (
            ArrivedItems(1, 3, frozenset({4, 5})),
            ArrivedItems(1, 2, frozenset({3})),
            ArrivedItems(1, 6),
        ),
    ],
)
def test_what_has_arrived_is_joined(
    one: ArrivedItems, other: ArrivedItems, both: ArrivedItems
) -> None:
    assert one.joined(other) == other.joined(one) == both


Making = Callable[..., Any]


def ahead_of(make: Making, source: Any, *arguments: Any, **options: Any) -> Making:
    """A stream made by hand, whose function skips and leaves out."""

    def made(how: How, file: Path, coord: Any, state: Any) -> Any:
        return make(
            source(),
            *arguments,
            coord=coord,
            function=fails,
            workers=how.workers,
            on_error="skip",
            drop_none=True,
            quarantine=file,
            resume=state,
            **options,
        )

    return made


STREAMS: dict[str, Making] = {
    "batch": ahead_of(batch, twice, 4, ordered=True),
    "unordered batch": ahead_of(batch, twice, 4),
    "shuffle_batch": ahead_of(shuffle_batch, twice, 4, min_after_dequeue=9, seed=1, ordered=True),
    "mixture": ahead_of(
        batch, lambda: mix([twice(), numbers(20, 1, seed=1)], seed=5), 4, ordered=True
    ),
    "buckets": ahead_of(
        bucket_by_sequence_length,
        twice,
        [5, 15],
        4,
        ordered=True,
        length=lambda example: example[0],
    ),
    "buckets that leave out": ahead_of(
        bucket_by_sequence_length,
        twice,
        [5, 15],
        None,
        ordered=True,
        tokens_per_batch=25,
        on_too_long="skip",
        length=lambda example: example[0],
    ),
}


def handed(
    shape: Making, how: How, file: Path, most: int | None = None, state: Any = None
) -> tuple[int, Any, Any, Any]:
    """Take so many batches; returns how many came, the state, and which rank counted what."""
    taken = 0
    with sync.Coordinator() as coord:
        stream = shape(how, file, coord, state)
        while most is None or taken < most:
            if next(stream, None) is None:
                break
            taken += 1
        state = through_json(stream.state_dict())
    return taken, state, stream.runner.statistics(), stream.statistics()


class TestStreams:
    @pytest.mark.slow(but=("unordered batch", "mixture"))
    @pytest.mark.parametrize("name", STREAMS)
    def test_at_each_point(self, name: str, tmp_path: Path) -> None:
        """Streams of several epochs, made by hand: their counts, too, are those of one run."""
        shape = STREAMS[name]
        count, _, prepared, batches = handed(shape, How(), tmp_path / "whole")
        whole = named(listed(tmp_path / "whole"))
        assert sum(whole.values()) == prepared.skipped > 0
        for at in range(0, count - 2, 3):
            file = tmp_path / f"{at}"
            _, state, *_ = handed(shape, How(2), file, at)
            handed(shape, How(3), file, 3, state)  # and what it lists is lost to the next state
            _, state, *_ = handed(shape, How(1), file, 2, state)
            *_, found, others = handed(shape, How(4), file, None, state)
            assert [getattr(found, one) for one in COUNTS] == [
                getattr(prepared, one) for one in COUNTS
            ]
            assert named(listed(file)) == whole
            assert max(listed(file).values()) == 1
            assert others == batches

    def test_the_budget_of_failures(self, tmp_path: Path) -> None:
        def stream(most: int) -> Making:
            return ahead_of(batch, twice, 4, ordered=True, max_failures=most)

        total = handed(stream(99), How(1), tmp_path / "whole")[2].skipped
        _, state, *_ = handed(stream(total - 1), How(1), tmp_path / "file", 4)
        with pytest.raises(ExceptionGroup, match="batch failed on item 3"):
            handed(stream(total - 1), How(1), tmp_path / "file", None, state)
        assert handed(stream(total), How(1), tmp_path / "file", None, state)[2].skipped == total

    def test_delivered_batches(self, tmp_path: Path) -> None:
        _, state, *_ = handed(STREAMS["batch"], How(), tmp_path / "file", 3)
        *_, batches = handed(STREAMS["batch"], How(), tmp_path / "file", 2, state)
        assert (batches.batches, batches.examples) == (5, 20)


class TestWhileWorkersTake:
    def test_counts_are_those_of_what_has_arrived(self) -> None:
        """Workers of a later stage move the node, and who takes a snapshot is another thread."""
        entries = EpochEntries(numbers(8), Rank())
        feeding = StageInput(SourceNode(entries, EpochRange(0, 1)), 0, blocking=False)
        node = QueueNode(
            sync.FIFOQueue(8),
            feeding,
            items=lambda _: 8,
            is_one_to_one=False,
            keeps_order=True,
        )
        reported: list[Any] = []
        asks = threading.Thread(target=lambda: reported.append(node.tally()))

        class Arriving(list[Delivered]):
            def __iter__(self) -> Iterator[Delivered]:
                for number, item in enumerate(super().__iter__()):
                    if number == 5 and asks.ident is None:  # they are looked through twice
                        asks.start()
                        asks.join(0.2)  # in vain, unless it is answered in the middle
                    yield item

        node._accept(Arriving((0, number, number, (number,), None) for number in range(8)))
        asks.join()
        (tally,) = reported
        assert (tally["counts"]["prepared"], tally["counts"]["upto"]) == (8, "0:8")
