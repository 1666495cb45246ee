"""Batches on a device: what they are, that they stay so, and how far ahead they are made."""

from __future__ import annotations

import gc
import sys
import threading
from collections import namedtuple
from types import ModuleType, SimpleNamespace
from typing import Any

import anyio
import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import Pipeline, arrays, items, numbers
from aioqueue.pipeline.stages.to_device import ToDevice
from tests.kit.copiers import LateCopier, LateTarget
from tests.kit.frameworks import FRAMEWORKS, Framework, host
from tests.kit.worlds import ThreadWorld, World, spin_until, threads_of_work

Pair = namedtuple("Pair", "image label")


@pytest.fixture(params=FRAMEWORKS, ids=lambda framework: framework.name)
def framework(request: pytest.FixtureRequest) -> Framework:
    """Each of the frameworks in turn; skipped where it is not installed."""
    kind: type[Framework] = request.param
    return kind()


def example(number: int, rng: np.random.Generator) -> dict[str, Any]:
    return {"image": rng.random((3, 2), dtype=np.float32), "label": number, "name": f"n{number}"}


async def batches_of(world: World, pipeline: Any) -> list[Any]:
    if isinstance(world, ThreadWorld):
        return list(pipeline)
    return [batch async for batch in pipeline]


async def epochs_of(world: World, epochs: Any) -> list[list[Any]]:
    if isinstance(world, ThreadWorld):
        return [list(epoch) for epoch in epochs]
    return [[batch async for batch in epoch] async for epoch in epochs]


def assert_same(framework: Framework, found: Any, expected: Any) -> None:
    """What arrays of numbers have become the framework's, with the same in them; and the rest."""
    if isinstance(expected, tuple | list):
        assert type(found) is type(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(framework, one, other)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        assert_same(framework, list(found.values()), list(expected.values()))
    elif isinstance(expected, np.ndarray | np.generic) and expected.dtype.kind in "biufc":
        assert isinstance(found, framework.kind)
        array, narrow = host(found), framework.narrowed(expected)
        assert (array.dtype, array.shape) == (narrow.dtype.newbyteorder("="), expected.shape)
        np.testing.assert_array_equal(array, narrow)
    else:
        assert type(found) is type(expected)
        assert str(found) == str(expected)


def late(
    pipeline: Pipeline[Any], buffer_size: int = 2, **options: Any
) -> tuple[Pipeline[Any], LateCopier]:
    """A pipeline onto a device whose copies end on request, or at once."""
    copier = LateCopier(**options)
    return pipeline._with(ToDevice(LateTarget(copier), buffer_size)), copier


class TestWhatComes:
    async def test_the_batches_are_the_same(self, world: World, framework: Framework) -> None:
        pipeline = numbers(11, shuffle=True, seed=1).prepare(example, workers=2).batch(4)
        on_device = pipeline.to_device(framework.device)
        assert len(on_device) == 3
        assert_same(
            framework, await batches_of(world, on_device), await batches_of(world, pipeline)
        )

    async def test_no_later_batch_changes_an_earlier_one(
        self, world: World, framework: Framework
    ) -> None:
        def filled(number: int) -> np.ndarray[Any, Any]:
            return np.full((64, 64), number, np.float32)

        pipeline = numbers(64).prepare(filled).batch(4).to_device(framework.device)
        epochs = await epochs_of(world, pipeline.epochs(2))
        for found in epochs:
            for number, batch in enumerate(found):
                rows = host(batch)[:, 0, 0].tolist()
                assert rows == list(range(4 * number, 4 * number + 4))
        kept = [host(batch) for found in epochs for batch in found]
        assert not any(np.shares_memory(kept[0], other) for other in kept[1:])

    async def test_epochs(self, world: World, framework: Framework) -> None:
        pipeline = numbers(10, shuffle=True, seed=3).prepare(example).shuffle(4).batch(4)
        found = await epochs_of(world, pipeline.to_device(framework.device).epochs(3, start=1))
        assert_same(framework, found, await epochs_of(world, pipeline.epochs(3, start=1)))

    async def test_padded_batches_of_all_sizes(self, world: World, framework: Framework) -> None:
        sequences = items([np.arange(n % 9 + 1) for n in range(40)])
        for pipeline in (
            sequences.bucket([4, 7], 3),
            sequences.bucket([4], tokens_per_batch=20, pad_to_boundary=False),
            sequences.batch(3, pad=True, padding_value=-1),
            sequences.pack(12).batch(2),
        ):
            expected = await batches_of(world, pipeline)
            assert_same(
                framework,
                await batches_of(world, pipeline.to_device(framework.device)),
                expected,
            )

    @pytest.mark.parametrize(
        "values",
        [
            np.arange(4, dtype="u1"),
            np.arange(4, dtype=">i4"),
            np.arange(8.0)[::-2],
            np.zeros((4, 0), "f2"),
            np.array([True, False] * 2),
            np.arange(4) * 1j,
            np.broadcast_to(np.float32(3), (4, 2)),
            np.array(7, "i2"),
            np.float64(2.5),
            3,
            2.5,
            "text",
            None,
            ["a", "b"],
            np.array(["a", "b"], object),
            np.array(["2024-01-01"], "M8[D]"),
            [np.zeros(2), {"x": (np.ones(3), "y")}],
            Pair(np.zeros(2), "name"),
        ],
        ids=repr,
    )
    async def test_what_a_function_has_collated(
        self, world: World, framework: Framework, values: Any
    ) -> None:
        pipeline = numbers(4).batch(2, collate=lambda rows: values)
        found = await batches_of(world, pipeline.to_device(framework.device))
        assert_same(framework, found, [values] * 2)

    async def test_what_is_not_a_batch(self, world: World, framework: Framework) -> None:
        source = items([(np.arange(3), "a"), (np.arange(2), "b")])
        found = await batches_of(world, source.to_device(framework.device, buffer_size=1))
        assert_same(framework, found, [(np.arange(3), "a"), (np.arange(2), "b")])

    async def test_arrays_of_the_framework_are_copied(
        self, world: World, framework: Framework
    ) -> None:
        numpy = {"torch": "from_numpy", "jax": "numpy.asarray"}[framework.name]
        make = framework.module
        for name in numpy.split("."):
            make = getattr(make, name)
        made = make(np.arange(3, dtype="i4"))
        pipeline = items([[made]]).to_device(framework.device)
        ((found,),) = await batches_of(world, pipeline)
        assert found is not made
        assert_same(framework, found, np.arange(3, dtype="i4"))

    async def test_other_stages_before_it(self, world: World, framework: Framework) -> None:
        def doubled(batch: Any) -> Any:
            return 2 * batch

        base = numbers(20, seed=1)
        for pipeline in (
            base.batch(4).prepare(doubled),
            base.batch(4).take(2),
            base.batch(4).filter(lambda batch: batch[0] % 8),
            base.batch(4).prefetch(2),
            base.mix(numbers(8)).batch(3),
            arrays({"x": np.arange(12.0).reshape(6, 2)}).batch(4),
        ):
            expected = await batches_of(world, pipeline)
            on_device = pipeline.to_device(framework.device)
            assert_same(framework, await batches_of(world, on_device), expected)

    async def test_take_and_shard_may_follow(self, world: World, framework: Framework) -> None:
        pipeline = numbers(20).batch(2).to_device(framework.device)
        found = await epochs_of(world, pipeline.shard(1, 2).take(2).epochs(2))
        assert [[host(batch).tolist() for batch in epoch] for epoch in found] == [
            [[1, 3], [5, 7]]
        ] * 2

    async def test_skipped_items_are_made_up_for(self, world: World, framework: Framework) -> None:
        def picky(item: int) -> int:
            if item == 4:
                raise ValueError(item)
            return item

        pipeline = numbers(12).prepare(picky, on_error="skip").batch(2)
        ranks = [
            await batches_of(world, pipeline.to_device(framework.device).shard(rank, 2))
            for rank in range(2)
        ]
        assert [len(found) for found in ranks] == [3, 3]


class TestEnding:
    async def test_a_failure_is_raised_where_the_next_is_asked_for(
        self, world: World, framework: Framework
    ) -> None:
        def bad(item: int) -> Any:
            if item == 5:
                raise ValueError("five")
            return item

        for pipeline in (
            numbers(50).prepare(bad).batch(2),
            numbers(50).batch(2, collate=lambda rows: bad(rows[0] + 1)),
        ):
            with pytest.raises(ExceptionGroup) as failure:
                await batches_of(world, pipeline.to_device(framework.device))
            assert failure.group_contains(ValueError, match="five", depth=1)

    async def test_examples_that_do_not_fit_each_other(
        self, world: World, framework: Framework
    ) -> None:
        pipeline = items([np.zeros(2), np.zeros(3)]).batch(2).to_device(framework.device)
        with pytest.raises(ExceptionGroup) as failure:
            await batches_of(world, pipeline)
        assert failure.group_contains(InvalidArgumentError, match="component 0: got a value")

    async def test_a_dtype_that_it_does_not_have(self, world: World, framework: Framework) -> None:
        pipeline = items([np.zeros(2, np.longdouble)]).batch(1).to_device(framework.device)
        with pytest.raises(ExceptionGroup) as failure:
            await batches_of(world, pipeline)
        assert failure.group_contains(InvalidArgumentError, match=r"got an array of .*float128|64")

    def test_break_stops_and_joins_everything(self, framework: Framework) -> None:
        pipeline = numbers(10_000).batch(8).to_device(framework.device)
        next(iter(pipeline))  # what the framework itself needs is there now
        before = threads_of_work()
        for _ in pipeline:
            break
        assert threads_of_work() <= before
        with pytest.raises(KeyError), pipeline.epochs(2) as epochs:
            next(next(iter(epochs)))
            raise KeyError
        assert threads_of_work() <= before

    async def test_leaving_an_async_loop(self, world: World, framework: Framework) -> None:
        if isinstance(world, ThreadWorld):
            pytest.skip("threads leave by `for`")
        before = threads_of_work()
        async for batch in numbers(10_000).batch(8).to_device(framework.device):
            assert host(batch)[0] == 0
            break
        while [t for t in threading.enumerate() if t not in before and "aioqueue" in t.name]:
            await anyio.lowlevel.checkpoint()

    async def test_an_epoch_can_be_left(self, world: World, framework: Framework) -> None:
        pipeline = numbers(10_000).batch(2).to_device(framework.device)
        if isinstance(world, ThreadWorld):
            found = [host(next(epoch)).tolist() for epoch in pipeline.epochs(3)]
        else:
            found = [host(await anext(epoch)).tolist() async for epoch in pipeline.epochs(3)]
        assert found == [[0, 1]] * 3


class TestTheRing:
    """With copies that end on request, as those of a real device do."""

    def test_a_place_is_written_again_only_when_it_was_copied(self) -> None:
        pipeline, copier = late(numbers(12).batch(2), buffer_size=8)
        with pipeline.epochs(1) as epochs:
            epoch = next(iter(epochs))
            assert [next(epoch), next(epoch)] == [1, 2]
            for number in range(4):
                # It waits for the first copy that has not ended, and has begun no other.
                spin_until(lambda n=number: len(copier.waiting) == n + 1)  # type: ignore[misc]
                assert copier.waiting[-1] is copier.copies[number]
                assert len(copier.copies) == number + 2
                copier.copies[number].finish()
            for number in (4, 5):
                spin_until(lambda n=number: len(copier.copies) > n)  # type: ignore[misc]
                copier.copies[number].finish()
            assert len(list(epoch)) == 4
        assert [copy.found for copy in copier.copies] == [[2 * n, 2 * n + 1] for n in range(6)]

    @pytest.mark.parametrize("ahead", [1, 2, 5])
    def test_so_many_are_ahead_and_one_on_its_way(self, ahead: int) -> None:
        pipeline, copier = late(numbers(40).batch(2), ahead, slots=40)
        with pipeline.epochs(1) as epochs:
            epoch = next(iter(epochs))
            for taken in range(1, 20 - ahead):
                next(epoch)
                spin_until(lambda n=taken: len(copier.copies) == n + ahead + 1)  # type: ignore[misc]
            assert len(list(epoch)) == 20 - taken

    def test_batches_are_collated_straight_into_it(self) -> None:
        def make(number: int) -> tuple[np.ndarray[Any, Any], int, list[float], str]:
            return np.zeros(8), number, [1.0], "name"

        examples = numbers(20).prepare(make)
        for pipeline, outside in (
            (examples.batch(4).take(4), 1),  # the names
            (examples.bucket([9], 4), 2),  # the lengths too
        ):
            on_device, copier = late(pipeline, is_prompt=True)
            batches = sum(len(list(epoch)) for epoch in on_device.epochs(2))
            assert copier.outside == outside * batches
            assert copier.allocations == [4 * 64, 4 * 8, 4 * 8] * 2

    def test_a_copy_releases_its_batch(self) -> None:
        """What waits for a place must not keep the arrays of the device alive."""
        pytest.importorskip("torch", reason="torch is not installed")
        import weakref

        epoch = iter(numbers(8).batch(2).to_device("cpu", buffer_size=1))
        first = weakref.ref(next(epoch))
        next(epoch)
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            gc.collect()  # else it is freed when the thread goes on that has made it
        assert first() is None
        list(epoch)


class TestErrors:
    def test_it_is_shown(self) -> None:
        pipeline, _ = late(numbers(4).batch(2), buffer_size=3)
        assert str(pipeline).splitlines()[-1] == "  to_device  late, 3 ahead"

    def test_devices_by_name(self, framework: Framework) -> None:
        pipeline = numbers(4).batch(2).to_device(framework.device)
        assert "cpu" in str(pipeline).splitlines()[-1].lower()

    @pytest.mark.parametrize("device", [None, 0, "cdua", b"cpu", object, "cuda:99"])
    def test_what_is_no_device_is_refused_at_once(self, device: Any) -> None:
        pytest.importorskip("torch", reason="torch is not installed")
        with pytest.raises(InvalidArgumentError, match=r"device: got .*; expected"):
            numbers(4).to_device(device)

    def test_ahead_is_a_number(self) -> None:
        pytest.importorskip("torch", reason="torch is not installed")
        with pytest.raises(InvalidArgumentError, match="buffer_size: got 0"):
            numbers(4).to_device("cpu", buffer_size=0)

    def test_it_comes_last(self) -> None:
        pipeline, _ = late(numbers(4).batch(2))
        for add in (
            lambda: pipeline.prepare(str),
            lambda: pipeline.take(1).unbatch(),
            lambda: late(pipeline),
            lambda: pipeline.mix(numbers(3)),
        ):
            with pytest.raises(InvalidArgumentError, match="after `to_device`; expected it before"):
                add()
        with pytest.raises(InvalidArgumentError, match="`to_device` after `mix`"):
            numbers(3).mix(pipeline)

    def test_what_is_missing_is_reported_with_what_installs_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[torch\]'"):
            numbers(4).to_device("cuda")

    def test_modules_that_only_resemble_frameworks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(device=3))
        with pytest.raises(InvalidArgumentError, match="device: got 3"):
            numbers(4).to_device(3)
