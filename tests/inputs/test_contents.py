"""What tells some items from others of the same number: in a position, which is small."""

from __future__ import annotations

import json
import time
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import Pipeline, arrays, items, merge_positions, numbers
from aioqueue.inputs.core.positions import digest_of_items

NAMES = [f"file{number:05}" for number in range(10_000)]


def position_in(given: Any) -> dict[str, Any]:
    """A position within a pipeline, as it comes out of a file."""
    pipeline: Pipeline[Any] = items(given, shuffle=True, seed=1).batch(2, objects=True)
    with pipeline.epochs(1) as epochs:
        next(next(epochs))
        state = json.loads(json.dumps(epochs.state_dict()))
    assert isinstance(state, dict)
    return state


@pytest.mark.slow(every=9)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (NAMES, NAMES[::-1]),
        (NAMES, [name.upper() for name in NAMES]),
        (NAMES, [*NAMES[:-1], "another"]),
        ([(name, 1) for name in NAMES], [(name, 0) for name in NAMES]),
        ([{"path": name} for name in NAMES], [{"path": name} for name in NAMES[::-1]]),
        ([PurePosixPath(name) for name in NAMES], [PurePosixPath(name) for name in NAMES[::-1]]),
        ([b"\xff" * 9999, b"\xfe" * 9999], [b"\xfe" * 9999, b"\xff" * 9999]),
        (["long" * 999 + "a", "b"], ["long" * 999 + "b", "a"]),
        ([0.5, float("nan")], [float("nan"), 0.5]),
        (np.arange(9), np.arange(9)[::-1].copy()),
        (np.array(NAMES), np.array(NAMES[::-1])),
        ([np.int64(3), 4], [4, np.int64(3)]),
        ([[1, 2], [3, 4]], [[3, 4], [1, 2]]),
    ],
)
def test_a_position_goes_on_among_the_same_items_alone(one: Any, other: Any) -> None:
    state = position_in(one)
    again = one[:] if isinstance(one, list) else one.copy()
    with items(again, shuffle=True, seed=1).batch(2).epochs(1, resume=state) as epochs:
        list(next(epochs))
    message = r"position: got source.items '.*the items differ, or their order does"
    with pytest.raises(InvalidArgumentError, match=message):
        items(other, shuffle=True, seed=1).batch(2).epochs(1, resume=state)
    source = items(one)
    with pytest.raises(InvalidArgumentError, match=r"source.items"):
        items(other, seed=source.seed).after(source.position(1))


@pytest.mark.parametrize("make", [str, Path, str.encode, lambda path: (path, 7)])
def test_folders_may_be_moved(make: Any) -> None:
    names = [f"{kind}/{number}.jpg" for kind in "ab" for number in range(50)]
    state = position_in([make(f"/old/place/{name}") for name in names])
    moved = [make(f"/new/{name}") for name in names]
    pipeline = items(moved, shuffle=True, seed=1).batch(2, objects=True)
    with pipeline.epochs(1, resume=state) as epochs:
        assert len(list(next(epochs))) == 49
    renamed = [make(f"/new/{name}".replace("b/", "c/")) for name in names]
    with pytest.raises(InvalidArgumentError, match="the items differ"):
        items(renamed, shuffle=True, seed=1).batch(2).epochs(1, resume=state)


class Dataset:
    """One whose items take long to get."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        raise AssertionError("it was asked for an item")


@pytest.mark.parametrize(
    "source",
    [
        items([object(), object()]),
        items([{1: 2}, {3: 4}]),
        items([]),
        items(Dataset()),
        items(range(9)),
        numbers(9),
        arrays(np.zeros((9, 2))),
        arrays({"a": np.arange(9)}),
    ],
)
def test_of_what_is_not_at_hand_nothing_is_told(source: Any) -> None:
    assert "items" not in source.fingerprint()


def test_what_is_looked_at_is_little() -> None:
    for given in (
        NAMES,
        ["x" * 10**7] * 99,
        [bytes(10**7)] * 99,
        [list(range(10**5))] * 99,
        [{str(key): key for key in range(99)}] * 99,
    ):
        took = []
        for _ in range(5):
            begin = time.perf_counter()
            assert digest_of_items(given)
            took.append(time.perf_counter() - begin)
        assert min(took) < 0.01
    source = items(NAMES)
    assert source.fingerprint()["items"] is source.fingerprint()["items"]  # found out once


def test_ranks_have_one_order() -> None:
    def of_rank(rank: int, given: list[str]) -> Any:
        pipeline = items(given, seed=1).shard(rank, 2).batch(2)
        with pipeline.epochs(1) as epochs:
            next(next(epochs))
            return epochs.state_dict()

    merged = merge_positions([of_rank(0, NAMES), of_rank(1, NAMES)])
    with items(NAMES, seed=1).batch(2).epochs(1) as epochs:
        assert next(next(epochs)).tolist() == NAMES[:2]
    with items(NAMES, seed=1).shard(0, 3).batch(2).epochs(1, resume=merged) as epochs:
        assert next(next(epochs)).tolist() == [NAMES[4], NAMES[7]]
    with pytest.raises(InvalidArgumentError, match=r"source\.items .* different runs"):
        merge_positions([of_rank(0, NAMES), of_rank(1, NAMES[::-1])])
