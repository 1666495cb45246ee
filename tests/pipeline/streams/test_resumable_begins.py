"""Where resumable streams begin, and which positions they refuse."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

import aioqueue
from aioqueue import InvalidArgumentError, OutOfRangeError, sync
from aioqueue.inputs import batch, bucket_by_sequence_length, from_iterable, numbers, shuffle_batch
from tests.kit.exact import Exact
from tests.kit.going import plain
from tests.kit.pipelines import take
from tests.kit.resumable_streams import go, ordered_streams, shuffling, undisturbed
from tests.kit.resuming import How, noisy, through_json
from tests.kit.worlds import ThreadWorld, World


class TestLoading:
    def test_before_the_first_batch(self) -> None:
        whole, _ = go(shuffling, How())
        _, state = go(shuffling, How(), 6)
        with sync.Coordinator() as coord:
            stream = shuffling(How(), coord, resume=None)
            first = stream.queue
            stream.load_state_dict(state)
            assert stream.queue is not first
            assert first.is_closed()
            assert stream.state_dict() == state
            assert [Exact(made) for made in stream] == whole[6:]

    async def test_in_a_task_by_the_other_face(self, world: World) -> None:
        if isinstance(world, ThreadWorld):
            pytest.skip("tasks have another face")
        async with aioqueue.Coordinator() as coord:
            stream = shuffling(How(), coord, resume=None)
            await take(stream)
            state = stream.state_dict()
            whole = [Exact(made) async for made in stream]
        async with aioqueue.Coordinator() as coord:
            stream = shuffling(How(), coord, resume=None)
            stream.sync.load_state_dict(state)
            assert [Exact(made) async for made in stream] == whole
            with pytest.raises(TypeError, match="begun with `async for`"):
                next(stream.sync)

    async def test_where_nothing_can_be_started(self, world: World) -> None:
        """It stays as it was."""
        if isinstance(world, ThreadWorld):
            pytest.skip("coordinators of threads start workers everywhere")

        async def itself(item: int) -> int:
            return item

        async with aioqueue.Coordinator() as coord:
            stream = batch(range(4), 2, coord=coord, function=itself, resume=None)
            state = stream.state_dict()
            found: list[Any] = []

            def load() -> None:
                try:
                    stream.load_state_dict(state)
                except RuntimeError as error:
                    found.append(error)

            thread = threading.Thread(target=load)
            thread.start()
            thread.join()
            assert len(found) == 1
            assert sorted([n async for made in stream for n in plain(made)]) == [0, 1, 2, 3]

    def test_after_the_first_batch_was_asked_for(self) -> None:
        _, state = go(shuffling, How(), 2)
        with sync.Coordinator() as coord:
            stream = shuffling(How(), coord, resume=None)
            next(stream)
            with pytest.raises(RuntimeError, match="resume=state"):
                stream.load_state_dict(state)

    @pytest.mark.parametrize("make", ["batch", "shuffled", "buckets"])
    def test_a_stream_made_without_resume(self, make: str) -> None:
        with sync.Coordinator() as coord:
            stream = ordered_streams(Path())[make](How(), coord)
            with pytest.raises(RuntimeError, match="resume=None"):
                stream.state_dict()
            with pytest.raises(RuntimeError, match="resume=load_position"):
                stream.load_state_dict({})

    def test_outside_of_the_block_of_a_coordinator(self) -> None:
        with pytest.raises(RuntimeError, match="the coordinator's block has not been entered"):
            batch(range(3), 2, coord=aioqueue.Coordinator(), resume=None)


def refused(shape: Any, state: Any) -> str:
    """Why a stream does not begin behind a position."""
    with sync.Coordinator() as coord, pytest.raises(InvalidArgumentError) as refusal:
        shape(How(), coord, resume=state)
    return str(refusal.value)


class TestRefusing:
    def test_a_run_that_ended_does_not_continue(self) -> None:
        def shape(epochs: int | None) -> Any:
            return lambda how, coord, **more: batch(
                numbers(5, epochs, seed=1), 2, coord=coord, **more
            )

        for most in (3, 4):  # once the end was seen, and once it is near
            _, state = go(shape(1), How(), most)
            for longer in (2, None):
                assert "the end of a run of 5 items" in refused(shape(longer), state)
        _, state = go(shape(20), How(), 2)
        assert go(shape(None), How(), 3, state)[0] == [[4, 0], [1, 2], [3, 4]]

    def test_every_field_changed(self) -> None:
        _, state = go(shuffling, How(), 5)
        found = 0
        for path in leaves(state, ()):
            other = json.loads(json.dumps(state))
            at = other
            for key in path[:-1]:
                at = at[key]
            old = at[path[-1]]
            at[path[-1]] = not old if isinstance(old, bool) else [old, "other"]
            found += 1
            message = refused(shuffling, other)
            assert message.startswith("position: got")
            if path[0] == "source":
                assert str(path[-1]) in message
        assert found > 20

    @pytest.mark.parametrize(
        ("field", "changed"),
        [
            ("source.source.seed", {"source": numbers(9, 1, shuffle=True, seed=2)}),
            ("source.source.length", {"source": numbers(8, 1, shuffle=True, seed=1)}),
            ("min_after_dequeue", {"min_after_dequeue": 4}),
            ("seed", {"seed": 8}),
            ("stages[0].kind", {"function": abs}),
        ],
    )
    def test_another_stream(self, field: str, changed: Any) -> None:
        def shape(how: How, coord: Any, **more: Any) -> Any:
            given = {
                "source": numbers(9, 1, shuffle=True, seed=1),
                "min_after_dequeue": 3,
                "seed": 7,
                **more,
            }
            return shuffle_batch(given.pop("source"), 2, coord=coord, **given)

        _, state = go(shape, How(), 2)
        with sync.Coordinator() as coord:
            with pytest.raises(InvalidArgumentError) as refusal:
                shape(How(), coord, **changed, resume=state)
            assert field in str(refusal.value)
            stream = shape(How(), coord, resume=None)
            before = stream.queue
            with pytest.raises(InvalidArgumentError):
                stream.load_state_dict({**state, "checksum": "0"})
            assert stream.queue is before
            assert len(list(stream)) == 5

    def test_the_position_of_a_pipeline(self) -> None:
        with numbers(9, seed=1).batch(2).epochs(1) as epochs:
            next(next(epochs))
            state = epochs.state_dict()
        message = refused(
            lambda how, coord, **more: batch(numbers(9, 1, seed=1), 2, coord=coord, **more), state
        )
        assert "source.kind 'sequence'; expected 'run'" in message

    def test_another_seed_of_the_function(self) -> None:
        def shape(seed: int) -> Any:
            return lambda how, coord, **more: batch(
                numbers(9, 1, seed=3), 2, coord=coord, function=noisy, seed=seed, **more
            )

        _, state = go(shape(1), How(), 2)
        assert "stages[0].seed 1; expected 2" in refused(shape(2), state)

    def test_what_has_no_positions(self) -> None:
        with sync.Coordinator() as coord:
            queue = sync.FIFOQueue(3)
            stream = batch(range(3), 2, coord=coord)
            for given in (queue, queue.aio, stream):
                with pytest.raises(InvalidArgumentError, match="expected the source that fills it"):
                    batch(given, 2, coord=coord, resume=None)
            for other in (iter([1]), {1, 2}, "abc", from_iterable([1, 2]), 5):
                with pytest.raises(InvalidArgumentError, match="has no positions"):
                    batch(other, 2, coord=coord, resume=None)

    def test_what_depends_on_the_clock(self) -> None:
        with sync.Coordinator() as coord:
            with pytest.raises(InvalidArgumentError, match=r"^max_wait: got 0\.1 with resume"):
                batch(range(3), 2, coord=coord, max_wait=0.1, resume=None)
            with pytest.raises(InvalidArgumentError, match="workers: got without a function"):
                batch(range(3), 2, coord=coord, workers=3, resume=None)

    def test_a_drawn_seed_comes_with_the_position(self) -> None:
        def shape(how: How, coord: Any, **more: Any) -> Any:
            source = numbers(20, 1, shuffle=True)
            return shuffle_batch(source, 2, coord=coord, min_after_dequeue=3, **more)

        head, state = go(shape, How(), 3)
        more, _ = go(shape, How(), None, state)
        assert sorted(n for made in head + more for n in made) == list(range(20))


class TestFitting:
    def test_what_does_not_fit_is_skipped_on_request(self) -> None:
        with sync.Coordinator() as coord:
            stream = batch(
                numbers(10, 1, seed=1),
                4,
                coord=coord,
                function=lambda n: np.zeros(3 if n == 5 else 2) + n,
                on_error="skip",
                ordered=True,
                dtypes="float32",
                shapes=[(2,)],
                resume=None,
            )
            found = [made[:, 0].tolist() for made in stream]
            assert stream.runner is not None
            assert found == [[0, 1, 2, 3], [4, 6, 7, 8], [9]]
            assert stream.runner.statistics().skipped == 1
            assert [one.item for one in stream.runner.quarantine] == [5]

    def test_layouts_are_refused_as_without_resume(self) -> None:
        with sync.Coordinator() as coord:
            for wrong in ({"dtypes": "int64"}, {"shapes": [()]}):
                for make in (batch, shuffle_batch):
                    keep: Any = {} if make is batch else {"min_after_dequeue": 3}
                    given: Any = {**wrong, **keep, "coord": coord}
                    with pytest.raises(InvalidArgumentError) as refusal:
                        make(range(3), 2, **given)
                    with pytest.raises(InvalidArgumentError) as refusal_too:
                        make(range(3), 2, **given, resume=None)
                    assert str(refusal.value) == str(refusal_too.value)
            with pytest.raises(InvalidArgumentError, match="shapes"):
                shuffle_batch(
                    range(3),
                    2,
                    coord=coord,
                    min_after_dequeue=3,
                    dtypes="int64",
                    shapes=[(None,)],
                    resume=None,
                )

    def test_what_does_not_fit_ends_all(self) -> None:
        with pytest.raises(ExceptionGroup) as failure, sync.Coordinator() as coord:
            stream = batch([1, 2.5], 2, coord=coord, dtypes="int64", shapes=[()], resume=None)
            list(stream)
        assert failure.group_contains(InvalidArgumentError)


class TestFailing:
    def test_of_a_stage_there_is_no_position_behind(self) -> None:
        with sync.Coordinator() as coord:
            stream = bucket_by_sequence_length(
                [np.zeros(n) for n in (1, 1, 9, 1, 1)],
                [3],
                2,
                coord=coord,
                pad_to_boundary=True,
                resume=None,
            )
            next(stream)
            with pytest.raises(InvalidArgumentError, match="length 9"):
                next(stream)
            for ask in (stream.__next__, stream.state_dict):
                with pytest.raises(RuntimeError, match="a stage has failed"):
                    ask()

    def test_what_is_too_long_is_logged_at_the_end(self, caplog: pytest.LogCaptureFixture) -> None:
        shape = ordered_streams(Path())["buckets of tokens"]
        with caplog.at_level(logging.WARNING, "aioqueue"), sync.Coordinator() as coord:
            stream = shape(How(), coord, resume=None)
            for _ in stream:
                pass
            skipped = stream.statistics().skipped
        assert skipped
        assert f"few: {skipped} of 62 examples were too long" in caplog.text

    def test_an_end_that_a_function_raises_is_a_failure(self) -> None:
        def ends(example: Any) -> int:
            raise OutOfRangeError("mine")

        with sync.Coordinator() as coord:
            stream = bucket_by_sequence_length(
                range(4), [3], 2, coord=coord, length=ends, resume=None
            )
            with pytest.raises(RuntimeError, match="mine"):
                next(stream)


def leaves(value: Any, path: tuple[Any, ...]) -> Any:
    if isinstance(value, dict | list) and value:
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from leaves(value[key], (*path, key))
    else:
        yield path


class Resuming(RuleBasedStateMachine):
    """Take, save, crash and load in any order; the model is the list of all batches."""

    WHOLE = undisturbed(shuffling)

    def __init__(self) -> None:
        super().__init__()
        self.at = self.saved_at = 0
        self.saved: Any = None
        self.coord: Any = None
        self.begin(loads=False)

    def begin(self, *, loads: bool) -> None:
        self.close()
        self.coord = sync.Coordinator()
        self.stream = shuffling(How(2), self.coord, resume=None if loads else self.saved)
        if loads and self.saved is not None:
            self.stream.load_state_dict(self.saved)
        self.at = self.saved_at

    def close(self) -> None:
        if self.coord is not None:
            self.coord.request_stop()
            self.coord.join()

    @rule(count=st.integers(1, 7))
    def take(self, count: int) -> None:
        expected = self.WHOLE[self.at : self.at + count]
        found = [Exact(made) for made in itertools.islice(self.stream, count)]
        assert found == expected
        self.at += len(found)

    @rule()
    def save(self) -> None:
        self.saved, self.saved_at = through_json(self.stream.state_dict()), self.at

    @rule(loads=st.booleans())
    def crash(self, loads: bool) -> None:
        self.begin(loads=loads)

    def teardown(self) -> None:
        self.close()


Resuming.TestCase.settings = settings(
    derandomize=True, deadline=None, max_examples=15, stateful_step_count=15
)
TestResuming = pytest.mark.slow(Resuming.TestCase)
