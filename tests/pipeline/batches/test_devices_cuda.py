"""Pipelines onto a real CUDA device. Run it where there is one: ``pytest
tests/pipeline/batches``."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from aioqueue.inputs import numbers
from tests.kit.worlds import spin_until

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
    pytest.mark.timeout(300),
]

ROWS, SIDE, BATCHES = 32, 224, 40
CYCLES = 200_000_000
"""For which a stream sleeps: about a tenth of a second."""


def image(number: int) -> tuple[Any, int]:
    return np.full((SIDE, SIDE, 3), number % 251, np.uint8), number


def pipeline() -> Any:
    return numbers(ROWS * BATCHES).prepare(image, workers=4).batch(ROWS)


def sums(images: Any) -> Any:
    """One number for each image, computed on the device."""
    return images.reshape(len(images), -1).to(torch.int64).sum(dim=1)


def expected(number: int) -> list[int]:
    first = number * ROWS
    return [n % 251 * SIDE * SIDE * 3 for n in range(first, first + ROWS)]


def test_every_batch_is_itself() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    found = []
    for images, labels in pipeline().to_device("cuda"):
        assert images.device == labels.device == device
        found.append((sums(images), labels))
    assert [labels.tolist() for _, labels in found] == [
        list(range(n * ROWS, (n + 1) * ROWS)) for n in range(BATCHES)
    ]
    assert [total.tolist() for total, _ in found] == [expected(n) for n in range(BATCHES)]


def test_batches_that_are_kept_are_not_written_over() -> None:
    kept = [images for epoch in pipeline().to_device("cuda").epochs(2) for images, _ in epoch]
    assert [sums(images).tolist() for images in kept] == [expected(n) for n in range(BATCHES)] * 2


def test_a_consumer_that_is_late_on_the_device() -> None:
    """The step is queued, and its batch dropped, long before the device gets there."""
    found = []
    for images, _ in pipeline().to_device("cuda", buffer_size=1):
        torch.cuda._sleep(CYCLES // 10)
        found.append(sums(images))
        del images
    assert [total.tolist() for total in found] == [expected(n) for n in range(BATCHES)]


def test_a_consumer_on_a_stream_of_its_own() -> None:
    stream = torch.cuda.Stream()
    found = []
    with torch.cuda.stream(stream):
        for images, _ in pipeline().to_device("cuda"):
            torch.cuda._sleep(CYCLES // 20)
            found.append(sums(images))
            del images
    stream.synchronize()
    assert [total.tolist() for total in found] == [expected(n) for n in range(BATCHES)]


def test_copies_that_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream of the copies sleeps before each: memory is written again only after them."""
    from aioqueue.pipeline.batches.devices import CudaCopier

    copied = CudaCopier.copied

    def late(self: Any, batch: Any, slot: Any) -> Any:
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(CYCLES // 10)
        return copied(self, batch, slot)

    monkeypatch.setattr(CudaCopier, "copied", late)
    found = [sums(images).tolist() for images, _ in pipeline().to_device("cuda")]
    assert found == [expected(n) for n in range(BATCHES)]


def test_taking_a_batch_does_not_wait_for_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    from aioqueue.pipeline.batches.devices import CudaCopier

    copied = CudaCopier.copied
    begun: list[Any] = []

    def late(self: Any, batch: Any, slot: Any) -> Any:
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(20 * CYCLES)
        on_the_way = copied(self, batch, slot)
        begun.append(on_the_way)
        return on_the_way

    monkeypatch.setattr(CudaCopier, "copied", late)
    batches = iter(pipeline().take(1).to_device("cuda"))
    images, _ = next(batches)
    assert not begun[0]._event.query()  # it was given out, and is still on its way
    assert sums(images).tolist() == expected(0)  # which waits, on the device
    assert begun[0]._event.query()


def test_the_ring_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    from aioqueue.pipeline.batches.devices import CudaCopier

    memory = CudaCopier.memory
    made: list[Any] = []

    def noted(self: Any, nbytes: int) -> Any:
        made.append(memory(self, nbytes))
        return made[-1]

    monkeypatch.setattr(CudaCopier, "memory", noted)
    assert len(list(pipeline().to_device("cuda"))) == BATCHES
    assert [piece.owner.is_pinned() for piece in made] == [True] * 4  # two places, two components


def test_no_more_memory_than_documented() -> None:
    """What is in use, two that wait, one on its way; and what the allocator rounds up."""
    nbytes = ROWS * SIDE * SIDE * 3
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    batches = iter(pipeline().to_device("cuda", buffer_size=2))
    for _ in range(10):
        images, labels = next(batches)
        torch.cuda.synchronize()
        spin_until(lambda: torch.cuda.memory_allocated() - before > 3 * nbytes)
        del images, labels
    assert torch.cuda.max_memory_allocated() - before < 4.5 * nbytes


def test_in_coroutines() -> None:
    async def train() -> list[list[int]]:
        found = [sums(images) async for images, _ in pipeline().to_device("cuda")]
        return [total.tolist() for total in found]

    assert asyncio.run(train()) == [expected(n) for n in range(BATCHES)]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two CUDA devices here")
def test_the_current_device_is_that_of_the_consumer() -> None:
    with torch.cuda.device(1):
        assert {images.device.index for images, _ in pipeline().to_device("cuda")} == {1}
    assert {images.device.index for images, _ in pipeline().to_device("cuda:1")} == {1}


def test_leaving_while_copies_are_on_their_way() -> None:
    for _ in range(20):
        for images, _ in pipeline().to_device("cuda"):
            last = images
            break
        assert sums(last).tolist() == expected(0)
