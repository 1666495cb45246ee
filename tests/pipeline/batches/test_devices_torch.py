"""What only PyTorch has; and the calls of CUDA, which a stand-in on the CPU answers for.

Whether a real device does what it is asked for, `tests/pipeline/batches` finds out where there is
one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import items, numbers
from aioqueue.pipeline.batches import devices

torch: Any = pytest.importorskip("torch", reason="torch is not installed (pip install '.[torch]')")


class StreamOfCuda:
    """A stream, on which everything has happened at once."""

    def __init__(self, device: Any = None) -> None:
        self.device = device
        self.waited: list[EventOfCuda] = []

    def wait_event(self, event: EventOfCuda) -> None:
        self.waited.append(event)


class EventOfCuda:
    """An event of the stand-in."""

    def __init__(self, *, blocking: bool) -> None:
        self.is_blocking = blocking
        self.recorded: StreamOfCuda | None = None
        self.waits = 0

    def record(self, stream: StreamOfCuda) -> None:
        self.recorded = stream

    def synchronize(self) -> None:
        self.waits += 1


class Cuda:
    """What is used of ``torch.cuda``, with two devices. The current one is that of the thread."""

    Event = EventOfCuda
    Stream = StreamOfCuda

    def __init__(self) -> None:
        self.of_thread = threading.local()
        self.user_stream = StreamOfCuda()

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        return getattr(self.of_thread, "device", 0)

    def current_stream(self, device: Any) -> StreamOfCuda:
        assert device.index == 1
        return self.user_stream

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before, self.of_thread.device = self.current_device(), device.index
        yield
        self.of_thread.device = before

    @contextmanager
    def stream(self, stream: StreamOfCuda) -> Iterator[None]:
        self.of_thread.stream = stream
        yield
        del self.of_thread.stream


class OnTheCpu:
    """PyTorch with a stand-in for CUDA: its tensors are on the CPU."""

    def __init__(self) -> None:
        self.cuda = Cuda()
        self.pinned: list[tuple[int, int]] = []  # the device, and how many bytes
        self.copies: list[tuple[Any, bool, StreamOfCuda]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, size: int, *, dtype: Any, pin_memory: bool) -> Any:
        assert pin_memory
        self.pinned.append((self.cuda.current_device(), size))
        return torch.empty(size, dtype=dtype)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> OnTheCpu:
    stand_in = OnTheCpu()
    to = torch.Tensor.to

    def copied(tensor: Any, device: Any, *, non_blocking: bool, copy: bool) -> Any:
        stand_in.copies.append((device, non_blocking, stand_in.cuda.of_thread.stream))
        return to(tensor, "cpu", copy=copy)

    monkeypatch.setattr(devices, "_torch", lambda: stand_in)
    monkeypatch.setattr(torch.Tensor, "to", copied)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, stream: used.append(stream), raising=False
    )
    used: list[StreamOfCuda] = []
    stand_in.used = used  # type: ignore[attr-defined]
    return stand_in


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 1)])
def test_what_is_asked_of_cuda(stand_in: Any, device: Any) -> None:
    stand_in.cuda.of_thread.device = 1  # as every rank says of its own, in its main thread

    def make(number: int) -> tuple[Any, int, str]:
        return np.full(3, number, np.float32), number, "name"

    found = list(numbers(10).prepare(make).batch(2).to_device(device))
    assert [labels.tolist() for _, labels, _ in found] == [[2 * n, 2 * n + 1] for n in range(5)]
    assert [images[:, 0].tolist() for images, _, _ in found] == [
        [2 * n, 2 * n + 1] for n in range(5)
    ]
    assert stand_in.pinned == [(1, 24), (1, 16)] * 2
    assert {(str(device), is_async) for device, is_async, _ in stand_in.copies} == {
        ("cuda:1", True)
    }
    (side,) = {stream for *_, stream in stand_in.copies}
    assert side.device.index == 1
    events = stand_in.cuda.user_stream.waited
    assert [event.recorded for event in events] == [side] * 5
    assert all(event.is_blocking for event in events)
    assert [event.waits for event in events] == [1, 1, 1, 0, 0]  # its place was needed again
    assert stand_in.used == [stand_in.cuda.user_stream] * 10


def test_what_was_not_made_in_pinned_memory_goes_there_first(stand_in: Any) -> None:
    stand_in.cuda.of_thread.device = 1
    batches = [np.arange(6.0)[::-2], torch.arange(3), np.array(5, ">i2"), np.zeros((0, 2))]
    found = list(items([[batch] for batch in batches]).to_device("cuda"))
    assert [batch.tolist() for (batch,) in found] == [[5.0, 3.0, 1.0], [0, 1, 2], 5, []]
    assert stand_in.pinned == [(1, 24), (1, 1)]


def test_a_device_that_is_not_there(stand_in: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'cuda:2'; .*finds 2 CUDA devices"):
        numbers(3).to_device("cuda:2")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_no_cuda_at_all() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'cuda'; .*finds 0 CUDA devices"):
        numbers(3).to_device("cuda")


@pytest.mark.parametrize("device", ["mps", "xpu", "hpu:3"])
def test_others_that_are_not_there(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except Exception:
        with pytest.raises(InvalidArgumentError, match=rf"'{device}'; .*cannot use it here") as no:
            numbers(3).to_device(device)
        assert len(str(no.value)) < 300
    else:
        pytest.skip(f"there is one: {device}")


def test_other_devices_are_copied_to_as_the_cpu_is() -> None:
    (found,) = items([[np.arange(3)]]).to_device(torch.device("meta"))
    assert (found[0].device.type, found[0].shape) == ("meta", (3,))


def test_arrays_that_cannot_be_written_are_no_reason_to_warn() -> None:
    values = np.arange(3)
    values.flags.writeable = False
    (found,) = items([[values]]).to_device("cpu")
    found[0][:] = 7
    assert values.tolist() == [0, 1, 2]
