"""Resumable streams continue behind a position with the batches that would have followed."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import sync
from aioqueue.inputs import (
    AsyncBatchStream,
    BatchStream,
    Position,
    batch,
    bucket_by_sequence_length,
    load_position,
    numbers,
    rng,
    save_position,
    shuffle_batch,
)
from aioqueue.workers.flow_control import ReadPace
from tests.kit.exact import Exact
from tests.kit.going import Counting, plain
from tests.kit.pipelines import coordinated, rest, rest_until_failure, take
from tests.kit.resumable_streams import (
    go,
    ordered_streams,
    shuffling,
    twice,
    undisturbed,
    unordered_streams,
)
from tests.kit.resuming import How, examples, noisy, through_json, write_files
from tests.kit.worlds import TaskWorld, ThreadWorld, World, ctrl_c


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("streaming"))


def any_how(chance: random.Random) -> How:
    return How(chance.randint(1, 5), limit=chance.choice([None, 3, 8]))


def in_pieces(shape: Any, chance: random.Random, most: int) -> list[Any]:
    """All batches, from many streams: each resumes where the one before was left."""
    taken: list[Any] = []
    state = None
    while True:
        more, state = go(shape, any_how(chance), chance.randint(1, most), state)
        taken += more
        if not more:
            return taken


class TestItemsTakenTogether:
    """As many as functions that do next to nothing are given: how many goes by the clock."""

    @pytest.fixture(autouse=True)
    def _eight(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ReadPace, "next", lambda pace, seconds: 8)
        monkeypatch.setattr(ReadPace, "is_quick", True)

    @pytest.mark.slow(every=3)
    @pytest.mark.parametrize("name", ["batch", "batch of a list", "shuffled"])
    def test_the_rest_is_the_same(self, name: str, folder: Path) -> None:
        shape = ordered_streams(folder)[name]
        whole = undisturbed(shape)
        for k in (1, len(whole) // 2, len(whole) - 1):
            head, state = go(shape, How(3), k)
            assert head == whole[:k]
            assert go(shape, How(2, limit=5), None, state)[0] == whole[k:]

    @pytest.mark.parametrize("name", ["batch", "batch of lines"])
    def test_only_of_what_is_in_memory(
        self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else what is ready would wait for what has to be read."""
        asked: list[float] = []

        def eight(pace: ReadPace, seconds: float) -> int:
            asked.append(seconds)
            return 8

        monkeypatch.setattr(ReadPace, "next", eight)
        undisturbed(lambda how, coord: ordered_streams(folder)[name](how, coord, resume=None))
        assert bool(asked) is (name == "batch")


class TestOrderExact:
    @pytest.mark.slow(every=22)
    @pytest.mark.parametrize("name", ordered_streams(Path()))
    def test_the_rest_is_the_same(self, name: str, folder: Path) -> None:
        """As in a stream that cannot be resumed: nothing in it depends on that."""
        shape = ordered_streams(folder)[name]
        if "without" in name:
            shape = without_workers(shape)
        whole = undisturbed(shape)
        count = len(whole)
        # Half of the places, and the other half for half of the shapes.
        for k in sorted({0, 1, 2, 5, count // 2, count - 1, count})[len(name) % 2 :: 2]:
            head, state = go(shape, How(2), k)
            assert head == whole[:k]
            assert go(shape, How(4, limit=5), None, state)[0] == whole[k:]

    @pytest.mark.slow(every=11)
    @pytest.mark.parametrize("name", ordered_streams(Path()))
    def test_many_times(self, name: str, folder: Path) -> None:
        shape = ordered_streams(folder)[name]
        assert in_pieces(shape, random.Random(name), 4) == undisturbed(shape)

    @pytest.mark.slow
    def test_with_processes(self) -> None:
        def shape(how: How, coord: Any, **more: Any) -> Any:
            return shuffle_batch(
                twice(),
                4,
                coord=coord,
                min_after_dequeue=8,
                seed=1,
                function=noisy,
                ordered=True,
                workers=how.workers,
                where=how.where,
                **more,
            )

        whole = undisturbed(shape)
        head, state = go(shape, How(2, "process"), 6)
        middle, state = go(shape, How(1), 4, state)
        assert head + middle + go(shape, How(1, "process"), None, state)[0] == whole

    @pytest.mark.parametrize("shuffles", [False, True])
    def test_batches_may_have_another_size(self, shuffles: bool) -> None:
        def shape(size: int) -> Any:
            if shuffles:
                return lambda how, coord, **more: shuffle_batch(
                    twice(), size, coord=coord, min_after_dequeue=9, seed=1, **more
                )
            return lambda how, coord, **more: batch(twice(), size, coord=coord, **more)

        rows = [row for made in undisturbed(shape(1)) for row in made]
        head, state = go(shape(4), How(), 3)
        middle, state = go(shape(2), How(), 3, state)
        more = go(shape(7), How(), None, state)[0]
        assert [row for made in head + middle + more for row in made] == rows

    def test_a_run_without_an_end(self) -> None:
        def shape(how: How, coord: Any, **more: Any) -> Any:
            source = numbers(7, shuffle=True, seed=2)
            return shuffle_batch(source, 5, coord=coord, min_after_dequeue=6, seed=1, **more)

        with sync.Coordinator() as coord:
            stream = shape(How(), coord)
            whole = [Exact(next(stream)) for _ in range(40)]
        head, state = go(shape, How(), 25)
        assert head + go(shape, How(), 15, state)[0] == whole

    def test_generators_are_those_of_the_items(self) -> None:
        """Also behind the first epoch of the source, and after a restart."""

        def shape(how: How, coord: Any, **more: Any) -> Any:
            source = numbers(3, 2, seed=5)
            return batch(source, 4, coord=coord, function=noisy, ordered=True, **more)

        _, state = go(shape, How(), 1)
        ((_, drawn),), _ = go(shape, How(), 1, state)
        assert drawn == [rng(5, 1, 1).random(), rng(5, 1, 2).random()]


def without_workers(shape: Any) -> Any:
    return lambda how, coord, **more: shape(How(), coord, **more)


def rows_of(batches: list[Any]) -> Counter[Any]:
    return examples([[(0, made) for made in batches]])


class TestSetExact:
    @pytest.mark.slow(but="typed batch")
    @pytest.mark.parametrize("name", unordered_streams())
    def test_each_example_comes_once(self, name: str) -> None:
        shape = unordered_streams()[name]
        whole = rows_of(undisturbed(shape))
        for seed in range(4):
            assert rows_of(in_pieces(shape, random.Random(seed), 6)) == whole

    @pytest.mark.slow
    def test_buckets(self) -> None:
        def shape(how: How, coord: Any, **more: Any) -> Any:
            return bucket_by_sequence_length(
                twice(),
                [10, 20],
                3,
                coord=coord,
                function=np.arange,
                workers=how.workers,
                **more,
            )

        for seed in range(4):
            found = in_pieces(shape, random.Random(seed), 5)
            assert Counter(n for lengths, _ in found for n in lengths) == Counter([*range(31)] * 2)


class TestInEveryWorld:
    @pytest.mark.slow(but=("asyncio-buckets", "threads"))
    @pytest.mark.parametrize("name", ["shuffled lines", "buckets", "batch of a mixture"])
    async def test_leaving_and_resuming(self, world: World, name: str, folder: Path) -> None:
        shape = ordered_streams(folder)[name]
        async with coordinated(world) as coord:
            whole = [Exact(made) for made in await rest(shape(How(), coord))]
        taken: list[Any] = []
        state = None
        while len(taken) < len(whole):
            async with coordinated(world) as coord:
                stream = shape(How(2), coord, resume=state)
                taken += [Exact(await take(stream)) for _ in range(min(5, len(whole) - len(taken)))]
                state = through_json(stream.state_dict())
        assert taken == whole

    @pytest.mark.slow(every=3)
    async def test_a_coroutine_function(self, world: World) -> None:
        if isinstance(world, ThreadWorld):
            pytest.skip("it runs on tasks")

        async def awaited(item: int, rng: np.random.Generator) -> tuple[int, float]:
            return noisy(item, rng)

        async def some(state: Any, most: int) -> tuple[list[Any], Any]:
            async with coordinated(world) as coord:
                stream: Any = batch(
                    twice(), 4, coord=coord, function=awaited, ordered=True, resume=state
                )
                return [Exact(await take(stream)) for _ in range(most)], stream.state_dict()

        whole, _ = await some(None, 16)
        head, state = await some(None, 7)
        assert head + (await some(state, 9))[0] == whole

    async def test_it_is_a_stream_like_others(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream: Any = batch(range(8), 4, coord=coord, name="some", resume=None)
            kind = BatchStream if isinstance(world, ThreadWorld) else AsyncBatchStream
            assert isinstance(stream, kind)
            assert repr(stream).startswith(f"<aioqueue.inputs.{kind.__name__} of batch 4 from")
            assert isinstance(stream.sync, BatchStream)
            assert isinstance(stream.aio, AsyncBatchStream)
            assert stream.name == stream.queue.name == "some"
            assert stream.runner is None
            assert stream.sync.state_dict() == stream.aio.state_dict()
            assert [plain(made) for made in await rest(stream)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
            statistics = stream.statistics()
            assert (statistics.batches, statistics.examples, statistics.waiting) == (2, 8, 0)

    async def test_a_stop_ends_it_behind_a_whole_batch(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream: Any = batch(numbers(10, 1, seed=1), 4, coord=coord, resume=None)
            assert plain(await take(stream)) == [0, 1, 2, 3]
            coord.request_stop()
            more = [Exact(made) for made in await rest(stream)]
            state = stream.state_dict()
        async with coordinated(world) as coord:
            stream = batch(numbers(10, 1, seed=1), 4, coord=coord, resume=state)
            more += [Exact(made) for made in await rest(stream)]
        assert more == [[4, 5, 6, 7], [8, 9]]

    async def test_closing_it_ends_its_workers(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream: Any = shuffle_batch(
                numbers(9), 2, coord=coord, min_after_dequeue=3, function=abs, resume=None
            )
            await take(stream)
            stream.close()
            await rest(stream)
            stream.state_dict()

    async def test_a_worker_that_fails(self, world: World) -> None:
        def bad(item: int) -> int:
            return 1 // (13 - item)

        with pytest.raises(ExceptionGroup) as failure:
            async with coordinated(world) as coord:
                stream: Any = batch(
                    range(20), 4, coord=coord, function=bad, ordered=True, resume=None
                )
                taken = await rest_until_failure(stream)
                state = stream.state_dict()
        assert failure.group_contains(ZeroDivisionError)
        assert len(taken) <= 3
        async with coordinated(world) as coord:
            stream = batch(range(20), 4, coord=coord, function=abs, ordered=True, resume=state)
            found = [number for made in await rest(stream) for number in plain(made)]
        assert found == list(range(4 * len(taken), 20))

    async def test_what_was_cancelled_has_lost_nothing(self, world: World) -> None:
        if not isinstance(world, TaskWorld):
            pytest.skip("threads are not cancelled")
        allow_to_end = threading.Event()

        def waiting(item: int) -> int:
            if item == 6:
                allow_to_end.wait()
            return item

        async with coordinated(world) as coord:
            stream: Any = batch(range(10), 4, coord=coord, function=waiting, workers=1, resume=None)
            assert plain(await take(stream)) == [0, 1, 2, 3]
            operation = world.spawn(stream.__anext__)
            await world.until(lambda: stream.queue.statistics().waiting_dequeues)
            operation.cancel()
            assert await operation.was_cancelled()
            state = stream.state_dict()
            allow_to_end.set()
            assert plain(await take(stream)) == [4, 5, 6, 7]
        async with coordinated(world) as coord:
            stream = batch(range(10), 4, coord=coord, resume=None, function=abs, workers=1)
            stream.load_state_dict(state)
            assert [plain(made) for made in await rest(stream)] == [[4, 5, 6, 7], [8, 9]]


class TestWhen:
    def test_twice_is_the_same_also_after_a_restart(self) -> None:
        _, state = go(shuffling, How(), 5)
        with sync.Coordinator() as coord:
            stream = shuffling(How(), coord, resume=state)
            assert stream.state_dict() == state
            next(stream)
            assert stream.state_dict() == stream.state_dict() != state

    def test_after_the_last(self) -> None:
        whole, state = go(shuffling, How())
        assert go(shuffling, How(), None, state) == ([], state)
        _, state = go(shuffling, How(), len(whole))  # the end was not seen
        assert go(shuffling, How(), None, state)[0] == []

    def test_while_another_thread_waits_for_a_batch(self) -> None:
        allow_to_end, waits = threading.Event(), threading.Event()

        def waiting(item: int) -> int:
            if item == 6:
                waits.set()
                allow_to_end.wait()
            return item

        with sync.Coordinator() as coord:
            stream = batch(
                numbers(10, 1, seed=1), 4, coord=coord, function=waiting, workers=1, resume=None
            )
            assert plain(next(stream)) == [0, 1, 2, 3]
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(plain(next(stream))))
            thread.start()
            waits.wait()
            state = stream.state_dict()
            allow_to_end.set()
            thread.join()
        assert found == [[4, 5, 6, 7]]
        with sync.Coordinator() as coord:
            stream = batch(
                numbers(10, 1, seed=1), 4, coord=coord, function=abs, workers=1, resume=state
            )
            assert [plain(made) for made in stream] == [[4, 5, 6, 7], [8, 9]]

    def test_threads_share_it(self) -> None:
        found: list[Any] = []
        with sync.Coordinator() as coord:
            stream = shuffling(How(), coord, resume=None)

            def consume() -> None:
                for items, _ in stream:
                    found.extend(items.tolist())
                    stream.state_dict()

            threads = [threading.Thread(target=consume) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert Counter(found) == Counter([*range(31)] * 2)

    def test_some_batches_are_left_out(self, tmp_path: Path) -> None:
        whole, _ = go(shuffling, How())
        _, state = go(shuffling, How(), 3)
        save_position(tmp_path / "position", state)
        kept = load_position(tmp_path / "position")
        assert go(shuffling, How(), None, kept.skip(batches=5))[0] == whole[8:]
        assert go(shuffling, How(), None, Position(state).skip(batches=500))[0] == []

    def test_only_what_is_held_is_prepared_again(self) -> None:
        def shape(function: Any) -> Any:
            return lambda how, coord, **more: shuffle_batch(
                numbers(3000, 1, shuffle=True, seed=3),
                10,
                coord=coord,
                min_after_dequeue=50,
                capacity=60,
                seed=1,
                function=function,
                workers=1,
                max_in_flight=1,
                ordered=True,
                **more,
            )

        _, state = go(shape(abs), How(), 150)
        counting = Counting(abs)
        go(shape(counting), How(), 1, state)
        assert len(counting.calls) <= 50 + 10 + 10 + 2

    def test_the_state_is_small(self) -> None:
        size = 2000

        def shape(how: How, coord: Any, **more: Any) -> Any:
            source = numbers(10**6, shuffle=True, seed=1)
            return shuffle_batch(source, 100, coord=coord, min_after_dequeue=size, **more)

        _, state = go(shape, How(), 30)
        assert len(json.dumps(state)) <= 1024 + 4.2 * size

    def test_with_workers_that_overtake_each_other_in_the_middle_of_a_batch(self) -> None:
        """What has been drawn, and the buffer that it was drawn from, come again."""
        allow_to_end, waits = threading.Event(), threading.Event()

        def waiting(item: int) -> int:
            if item == 6:
                waits.set()
                allow_to_end.wait()
            return item

        def shape(how: How, coord: Any, **more: Any) -> Any:
            source = numbers(20, 1, seed=1)
            options: Any = {"min_after_dequeue": 2, "seed": 1, "workers": 1, **more}
            return shuffle_batch(source, 6, coord=coord, function=waiting, **options)

        with sync.Coordinator() as coord:
            stream = shape(How(), coord, resume=None)
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(plain(next(stream))))
            thread.start()
            waits.wait()
            state = stream.state_dict()
            allow_to_end.set()
            thread.join()
            state_behind = stream.state_dict()
        more, _ = go(shape, How(), None, state)
        assert sorted(n for made in more for n in made) == list(range(20))
        more, _ = go(shape, How(), None, state_behind)
        assert sorted(n for made in found + more for n in made) == list(range(20))

    def test_after_ctrl_c(self) -> None:
        """What had just come out of the queue may be lost: so nothing more is taken, but the
        position is good."""
        allow_to_end = threading.Event()

        def waiting(item: int) -> int:
            if item == 6:
                allow_to_end.wait()
            return item

        def shape(how: How, coord: Any, **more: Any) -> Any:
            source = numbers(10, 1, seed=1)
            return batch(source, 4, coord=coord, function=waiting, workers=1, **more)

        with sync.Coordinator() as coord:
            stream = shape(How(), coord, resume=None)
            next(stream)
            with (
                pytest.raises(KeyboardInterrupt),
                ctrl_c(lambda: stream.queue.statistics().waiting_dequeues),
            ):
                next(stream)
            state = stream.state_dict()
            allow_to_end.set()
            with pytest.raises(RuntimeError, match="was interrupted while it made a batch"):
                next(stream)
        assert go(shape, How(), None, state)[0] == [[4, 5, 6, 7], [8, 9]]

    def test_a_step_that_was_interrupted(self) -> None:
        def length(item: int) -> int:
            if item == 3:
                raise KeyboardInterrupt
            return 1

        with sync.Coordinator() as coord:
            stream = bucket_by_sequence_length(
                range(9), [5], 2, coord=coord, length=length, resume=None
            )
            next(stream)
            with pytest.raises(KeyboardInterrupt):
                next(stream)
            with pytest.raises(RuntimeError, match="interrupted in a step; resume from an earlier"):
                stream.state_dict()
