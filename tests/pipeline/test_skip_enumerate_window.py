"""Stages that go by the place of an example: skip, enumerate, window; and functions of batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import arrays, merge_positions, numbers, to_json_lines
from tests.kit.going import epochs_of, plain
from tests.kit.worlds import World


def rows(count: int) -> Any:
    return arrays({"x": np.arange(2 * count, dtype=np.float32).reshape(count, 2)}, seed=1)


async def test_every_epoch_restarts(world: World) -> None:
    pipeline = numbers(7).skip(2).enumerate(1).window(2, 2, collate=list, drop_remainder=False)
    whole = [[(1, 2), (2, 3)], [(3, 4), (4, 5)], [(5, 6)]]
    assert len(pipeline) == 3
    assert await epochs_of(world, pipeline.epochs(2)) == [whole, whole]


def test_windows_are_arrays_that_overlap() -> None:
    found = [window["x"] for window in rows(5).window(3)]
    assert [window.shape for window in found] == [(3, 2)] * 3
    assert [plain(window[:, 0]) for window in found] == [[0, 2, 4], [2, 4, 6], [4, 6, 8]]
    found[0][:] = -1  # each is its own
    assert found[1][0, 0] == 2


def test_a_window_is_one_example(tmp_path: Path) -> None:
    windows = rows(5).window(3)
    (path,) = windows.write(to_json_lines(tmp_path)).paths
    found = [json.loads(line)["x"] for line in path.read_text().splitlines()]
    assert found == [plain(window["x"]) for window in windows]
    assert windows.element_spec()["x"].shape == (3, 2)
    assert rows(5).window(3, drop_remainder=False).element_spec()["x"].shape == (None, 2)
    with pytest.raises(InvalidArgumentError, match=r"no stage before makes batches"):
        windows.map_batches(len)
    assert list(windows.batch(2).map_batches(lambda batch: batch["x"].shape)) == [
        (2, 3, 2),
        (1, 3, 2),
    ]


def test_a_window_of_objects_shares_none_with_the_next() -> None:
    windows = []
    for window in numbers(4).prepare(lambda n: [n]).window(2, collate=list):
        windows.append(plain(window))
        for example in window:
            example.append("mine")
    assert windows == [[[0], [1]], [[1], [2]], [[2], [3]]]


@pytest.mark.parametrize(
    ("size", "stride", "short", "expected"),
    [
        (2, 3, False, [[0, 1], [3, 4]]),
        (2, 3, True, [[0, 1], [3, 4], [6]]),
        (9, 1, False, []),
        (9, 4, True, [[0, 1, 2, 3, 4, 5, 6], [4, 5, 6]]),
    ],
)
def test_strides_and_ends(size: int, stride: int, short: bool, expected: list[Any]) -> None:
    pipeline = numbers(7).window(size, stride, drop_remainder=not short)
    assert [plain(window) for window in pipeline] == expected
    assert len(pipeline) == len(expected)


def test_a_skip_longer_than_the_epoch_leaves_nothing() -> None:
    pipeline = numbers(3).skip(5)
    assert len(pipeline) == 0
    assert [list(epoch) for epoch in pipeline.epochs(2)] == [[], []]


class TestMapBatches:
    def test_the_function_has_whole_batches(self) -> None:
        def doubled(batch: Any) -> Any:
            assert isinstance(batch, np.ndarray)
            return 2 * batch

        one, other = numbers(5).map_batches(doubled, 2), numbers(5).batch(2).map_batches(doubled)
        assert [plain(batch) for batch in one] == [plain(batch) for batch in other]
        assert [plain(row) for row in one.unbatch()] == [0, 2, 4, 6, 8]
        assert "map_batches  " in str(one)
        assert len(one) == 3

    def test_it_fails_and_skips_by_batch(self) -> None:
        def picky(batch: Any) -> Any:
            if 2 in batch:
                raise ValueError("two")
            return batch

        with pytest.raises(ExceptionGroup) as error:
            list(numbers(6).map_batches(picky, 2))
        assert "picky failed" in str(error.value)
        kept = numbers(6).map_batches(picky, 2, on_error="skip")
        assert [plain(batch) for batch in kept] == [[0, 1], [4, 5]]

    def test_without_batches_the_error_has_advice(self) -> None:
        for pipeline in (numbers(3), numbers(3).batch(2).unbatch()):
            with pytest.raises(InvalidArgumentError, match=r"map_batches\(function, size\)"):
                pipeline.map_batches(len)


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda one: one.skip(-1), "count: got -1"),
        (lambda one: one.enumerate("a"), "start: got 'a'"),
        (lambda one: one.window(0), "size: got 0"),
        (lambda one: one.window(2, 0), "stride: got 0"),
        (lambda one: one.window(2, collate=3), "collate: got 3"),
        (lambda one: one.window(2, drop_remainder="no"), "drop_remainder: got 'no'"),
        (lambda one: one.map_batches(len, 0), "size: got 0"),
    ],
)
def test_what_is_refused(add: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        add(numbers(3))


def test_places_and_windows_need_an_order_for_a_position() -> None:
    unordered = numbers(20, seed=1).prepare(lambda n: n, ordered=False)
    for pipeline in (unordered.enumerate().shuffle(4), unordered.window(2)):
        epochs = pipeline.epochs(1)
        next(next(epochs))
        with pytest.raises(RuntimeError, match="no position"):
            epochs.state_dict()
        epochs.close()


@pytest.mark.parametrize("add", ["skip", "enumerate", "window"])
def test_another_number_of_ranks_is_refused(add: str) -> None:
    stage: Any = getattr(numbers(12, seed=1), add)
    pipelines = [stage(2).shard(rank, 2) for rank in range(2)]
    assert len({len(pipeline) for pipeline in pipelines}) == 1
    with pytest.raises(InvalidArgumentError, match=f"`{add}`, w"):
        merge_positions([pipeline.epochs(1).state_dict() for pipeline in pipelines])
