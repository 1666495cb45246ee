"""A look at the first elements, and what it tells: `peek` and `element_spec`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError, sync
from aioqueue.inputs import ArraySpec, arrays, from_iterable, items, numbers, read_lines
from tests.kit.going import plain, results
from tests.kit.worlds import ThreadWorld, World


async def test_nothing_is_taken(world: World) -> None:
    pipeline = numbers(50, shuffle=True, seed=1).prepare(str).shuffle(4).batch(3)
    whole = await results(world, pipeline)
    if isinstance(world, ThreadWorld):
        found, none, spec = pipeline.peek(2), pipeline.peek(0), pipeline.element_spec()
    else:
        found, none = await pipeline.apeek(2), await pipeline.apeek(0)
        spec = await pipeline.aelement_spec()
    assert [plain(one) for one in found] == whole[:2]
    assert none == []
    assert spec == ArraySpec((None,), np.dtype(object))
    assert await results(world, pipeline) == whole


def test_few_items_are_prepared() -> None:
    prepared: list[int] = []

    def noted(number: int) -> int:
        prepared.append(number)
        return number

    pipeline = numbers(10_000).prepare(noted, workers=2)
    assert pipeline.peek(3) == [0, 1, 2]
    assert len(prepared) < 1000
    assert numbers(3).shard(1, 2, uneven="allow").peek(5) == [1]


def test_what_would_be_lost_is_refused() -> None:
    queue = sync.FIFOQueue(1)
    for source in (from_iterable(iter([1])), read_lines(queue)):
        for pipeline in (source, numbers(3).concat(source)):
            with pytest.raises(InvalidArgumentError, match="would lose what is looked at"):
                pipeline.peek()
    with pytest.raises(InvalidArgumentError, match="count: got -1"):
        numbers(3).peek(-1)


def test_no_quarantine_is_written(tmp_path: Path) -> None:
    def picky(number: int) -> int:
        if number == 1:
            raise ValueError("one")
        return number

    def kept(source: Any, name: str) -> Any:
        return source.prepare(picky, on_error="skip", quarantine=tmp_path / name)

    pipeline = kept(numbers(4), "first").concat(kept(numbers(3), "second"))
    assert pipeline.peek(9) == [0, 2, 3, 0, 2]
    assert [path.read_text() for path in tmp_path.iterdir()] == ["", ""]
    assert list(pipeline) == [0, 2, 3, 0, 2]
    assert all(path.read_text().count("\n") == 1 for path in tmp_path.iterdir())


@pytest.mark.parametrize("method", ["peek", "element_spec"])
def test_in_an_event_loop_the_other_method_is_named(method: str) -> None:
    async def main() -> None:
        getattr(numbers(3), method)()

    with pytest.raises(RuntimeError, match=rf"{method} would block .*pipeline\.a{method}\("):
        asyncio.run(main())


def test_failures_are_those_of_a_loop() -> None:
    def broken(number: int) -> int:
        raise ValueError("broken")

    with pytest.raises(ExceptionGroup) as error:
        numbers(3).prepare(broken).peek()
    assert isinstance(error.value.exceptions[0], ValueError)


class TestElementSpec:
    def spec(self, *elements: Any) -> Any:
        return items(list(elements)).element_spec(len(elements))

    def test_batches(self) -> None:
        rows = arrays({"x": np.zeros((10, 3), np.float32), "y": np.arange(10)}, seed=1)
        x, y = np.dtype(np.float32), np.dtype(np.int64)
        assert rows.element_spec() == {"x": ArraySpec((3,), x), "y": ArraySpec((), y)}
        batch = {"x": ArraySpec((None, 3), x), "y": ArraySpec((None,), y)}
        assert rows.batch(4).element_spec() == batch
        assert rows.batch(4).shuffle(2).prefetch().element_spec() == batch
        full = {"x": ArraySpec((4, 3), x), "y": ArraySpec((4,), y)}
        assert rows.batch(4, drop_remainder=True).element_spec() == full

    def test_what_differs_is_not_fixed(self) -> None:
        one, other = np.zeros((2, 3), np.int32), np.zeros((4, 3), np.int64)
        assert self.spec(one, other) == ArraySpec((None, 3), np.dtype(np.int64))
        assert self.spec(one, np.zeros(3)) is object
        assert self.spec(["a", 1], ["b", 2]) == [str, int]
        assert self.spec(["a", 1], ["b"]) is list
        assert self.spec(("a", one), ("b", one)) == (str, ArraySpec((2, 3), one.dtype))
        assert self.spec({"a": 1}, {"b": 1}) is object
        assert self.spec(np.float32(1), np.float32(2)) == ArraySpec((), np.dtype(np.float32))

    def test_an_empty_epoch_has_none(self) -> None:
        with pytest.raises(InvalidArgumentError, match="whose first epoch is empty"):
            numbers(0).element_spec()
