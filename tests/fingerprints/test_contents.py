"""The digest of items in a position, which distinguishes them from others of the same number."""

from __future__ import annotations

import json
import time
from array import array
from collections import deque
from copy import copy
from datetime import date
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.fingerprints.contents import MOST_BYTES, digest_of_items
from aioqueue.inputs import Pipeline, arrays, from_iterable, items, merge_positions, numbers

NAMES = [f"file{number:05}" for number in range(10_000)]


def test_tensors_of_torch_are_distinguished() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.int64, torch.bfloat16, torch.bool):
        found = {digest_of_items(torch.tensor([0, one]).to(dtype)) for one in (0, 1)}
        assert len(found) == 2
        assert None not in found


def position_in(given: Any) -> dict[str, Any]:
    """A position within a pipeline, as it comes out of a file."""
    pipeline: Pipeline[Any] = items(given, shuffle=True, seed=1).batch(2, objects=True)
    with pipeline.epochs(1) as epochs:
        next(next(epochs))
        state = json.loads(json.dumps(epochs.state_dict()))
    assert isinstance(state, dict)
    return state


class Sub(list[int]):
    """A list of a class of its own."""


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
        ([np.zeros(3), np.ones(3)], [np.ones(3), np.zeros(3)]),
        ([{"x": np.zeros(3)}, {"x": np.ones(3)}], [{"x": np.zeros(3)}, {"x": np.zeros(3)}]),
        ([Decimal(1), date(2020, 1, 1)], [Decimal(2), date(2020, 1, 1)]),
        ([{1, 2}, {3}], [{1, 2}, {4}]),
        (np.zeros((9, 2)), np.ones((9, 2))),
        (np.zeros((9, 2)), np.zeros((9, 2), np.float32)),
        (np.array(["a", "b"], object), np.array(["a", "c"], object)),
        (deque([1, 2]), deque([2, 1])),
        (array("i", [1, 2]), array("i", [2, 1])),
        (Sub([1, 2]), Sub([2, 1])),
    ],
)
def test_a_position_resumes_only_among_the_same_items(one: Any, other: Any) -> None:
    state = position_in(one)
    again = copy(one)
    with items(again, shuffle=True, seed=1).batch(2).epochs(1, resume=state) as epochs:
        list(next(epochs))
    message = r"position: got source.items '.*the items differ, or their order does"
    with pytest.raises(InvalidArgumentError, match=message):
        items(other, shuffle=True, seed=1).batch(2).epochs(1, resume=state)
    source = items(one)
    with pytest.raises(InvalidArgumentError, match=r"source.items"):
        items(other, seed=source.seed).after(source.position(1))


@pytest.mark.parametrize(
    "make", [str, Path, str.encode, lambda path: (path, 7), lambda path: [path, 7]]
)
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
        items([]),
        items(Dataset()),
        items(range(9)),
        numbers(9),
        items([np.random.default_rng(), 1]),
        items([(number for number in range(3))]),
    ],
)
def test_items_that_are_not_in_memory_have_no_digest(source: Any) -> None:
    assert "items" not in source.fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows["x"].__setitem__((999, 3), 1),
        lambda rows: rows.__setitem__("y", rows["y"].astype(np.int32)),
        lambda rows: rows.__setitem__("z", rows.pop("y")),
        lambda rows: rows.__setitem__("x", rows["x"].reshape(2000, 2, 5)),
    ],
)
def test_of_arrays_every_byte_counts(change: Any) -> None:
    def of(rows: dict[str, Any]) -> Any:
        return arrays(rows, shuffle=True, seed=7).batch(4)

    given = {"x": np.zeros((2000, 10)), "y": np.arange(2000)}
    state = of(given).epochs(1).state_dict()
    of({key: one.copy(order="F") for key, one in given.items()}).epochs(1, resume=state)
    changed = {key: one.copy() for key, one in given.items()}
    change(changed)
    with pytest.raises(InvalidArgumentError, match=r"source\.items .* the items differ"):
        of(changed).epochs(1, resume=state)


@pytest.mark.parametrize("how", ["whole", "by columns", "objects"])
def test_of_a_part_all_items_count(how: str) -> None:
    def of(value: int) -> Any:
        column = np.zeros(100, object if how == "objects" else int)
        column[57] = value
        source: Any = arrays((column, column)) if how == "by columns" else arrays(column)
        return source.split([0.5, 0.5])[1].repeat(2).epoch(1)

    assert of(1).fingerprint()["source"] != of(2).fingerprint()["source"]
    assert (
        of(1).fingerprint()["source"]["source"]["items"]
        == (of(1).fingerprint()["source"]["source"]["items"])
    )


def test_ranges_and_iterables() -> None:
    one = items(range(5, 10), seed=1).batch(2).epochs(1).state_dict()
    with pytest.raises(InvalidArgumentError, match=r"source\.items"):
        items(range(6, 11), seed=1).batch(2).epochs(1, resume=one)
    one = from_iterable([1, 2], seed=1, replay=True).batch(2).epochs(1).state_dict()
    with pytest.raises(InvalidArgumentError, match=r"source\.items"):
        from_iterable([1, 3], seed=1, replay=True).batch(2).epochs(1, resume=one)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["C", "F"])
def test_of_more_than_64_mib_samples_count(order: Any) -> None:
    count = 2 * MOST_BYTES // 8
    large = np.arange(count).reshape(-1, 8).copy(order=order)
    small = np.arange(1000, 1000 + count).reshape(-1, 8).copy(order=order)
    assert digest_of_items(large) != digest_of_items(small)
    assert digest_of_items(large) == digest_of_items(large.copy(order=order))
    for at in (0, -1):  # the ends are samples
        other = large.copy(order=order)
        other[at, -1 if at else 0] = -7
        assert digest_of_items(large) != digest_of_items(other)


def test_what_is_inspected_is_bounded() -> None:
    for given in (
        NAMES,
        ["x" * 10**7] * 99,
        [bytes(10**7)] * 99,
        [np.zeros(10**6)] * 99,
        [list(range(10**5))] * 999,
        [{str(key): key for key in range(99)}] * 99,
    ):
        begin = time.process_time()
        assert digest_of_items(given)
        assert time.process_time() - begin < 1
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
