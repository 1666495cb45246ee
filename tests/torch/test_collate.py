"""Batches that are written while their samples come are those of `default_collate`."""

from __future__ import annotations

import gc
import mmap
import sys
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from aioqueue.torch import collate
from aioqueue.torch.collate import BatchMemory, gathering_for
from tests.kit.worlds import PATIENCE, spin_until
from tests.torch.comparison import assert_same, epoch_of, ours, same, seeded, theirs

SIDE = 80
"""Of pictures that are large enough to be written to their place at once."""

Pair = namedtuple("Pair", ("picture", "label"))


def picture(number: int, dtype: str = "uint8", side: int = SIDE) -> Any:
    return np.random.default_rng(number).integers(0, 99, (side, side, 3)).astype(dtype)


def tensor(number: int, **options: Any) -> torch.Tensor:
    return torch.from_numpy(picture(number, **options))


def unwritable(number: int) -> Any:
    array = picture(number)
    array.flags.writeable = False
    return array


SAMPLES: dict[str, Callable[[int], Any]] = {
    "an array": picture,
    "a tensor": tensor,
    "with a label": lambda n: (picture(n), n),
    "channels first": lambda n: (tensor(n).permute(2, 0, 1), float(n)),
    "channels first, an array": lambda n: [picture(n).transpose(2, 0, 1), np.int16(n)],
    "channels last": lambda n: torch.rand(
        2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(n)
    ).to(memory_format=torch.channels_last),
    "every second": lambda n: tensor(n)[::2, :, 1:],
    "a dict": lambda n: {"name": f"{n}", "picture": picture(n, "float32"), "label": n},
    "two views": lambda n: ([tensor(n), tensor(n + 50)], {"seen": (picture(n), str(n))}),
    "a named tuple": lambda n: Pair(picture(n), n),
    "a named tuple within": lambda n: (Pair(picture(n), n), b"x"),
    "small": lambda n: (torch.ones(3) * n, np.ones(3), "x"),
    "half": lambda n: tensor(n, dtype="float16"),
    "bfloat16": lambda n: tensor(n).to(torch.bfloat16),
    "complex": lambda n: picture(n, "complex64"),
    "bool": lambda n: picture(n) > 40,
    "another dtype": lambda n: (tensor(n, dtype="float32" if n < 2 else "float64"), n),
    "an array, then a tensor": lambda n: (picture(n), n) if n < 2 else (tensor(n), n),
    "small, and large": lambda n: n if n < 2 else torch.tensor(n),
    "a parameter": lambda n: torch.nn.Parameter(tensor(n, dtype="float32")),
    "with a gradient": lambda n: tensor(n, dtype="float32").requires_grad_(),
    "other keys": lambda n: {"picture": picture(n), "n": n} | ({"more": 1} if n == 2 else {}),
    "a tuple and a list": lambda n: (tensor(n), n) if n < 2 else [tensor(n), n],
    "a conjugate": lambda n: tensor(n, dtype="complex64").conj(),
    "empty": lambda n: (),
}
WRONG: dict[str, Callable[[int], Any]] = {
    "large, and small": lambda n: (picture(n), n) if n < 2 else (n, n),
    "a tensor, then an array": lambda n: (tensor(n), n) if n < 2 else (picture(n), n),
    "another shape": lambda n: (picture(n, side=SIDE + (n == 2)), n),
    "another rank": lambda n: tensor(n) if n < 2 else tensor(n)[0],
    "another size": lambda n: (picture(n), n) if n < 2 else (picture(n), n, n),
    "no such key": lambda n: {"picture": picture(n)} if n < 2 else {"photo": picture(n)},
    "another byte order": lambda n: picture(n, ">f4"),
    "the other way round": lambda n: picture(n)[::-1],
    "objects": lambda n: picture(n, "object"),
    "sparse": lambda n: tensor(n).to_sparse(),
    "nothing": lambda n: None,
}


def gathered(samples: list[Any], size: int | None = None) -> Any:
    gathering = gathering_for(default_collate, range(size or len(samples)), BatchMemory())
    for sample in samples:
        gathering.add(sample)
    return gathering.batch()


def strides(batch: Any) -> Any:
    """Those of all tensors in a batch."""
    if isinstance(batch, torch.Tensor):
        return batch.stride()
    if isinstance(batch, dict):
        return [strides(one) for one in batch.values()]
    return [strides(one) for one in batch] if isinstance(batch, list | tuple) else None


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize(("count", "size"), [(1, 1), (4, 4), (3, 7)])
def test_the_batch_is_the_same(name: str, count: int, size: int) -> None:
    samples = [SAMPLES[name](number) for number in range(count)]
    batch, expected = gathered(samples, size), default_collate(samples)
    assert same(batch, expected)
    assert strides(batch) == strides(expected)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused_is_refused_by_the_same_error(name: str) -> None:
    samples = [WRONG[name](number) for number in range(4)]
    with pytest.raises(Exception) as expected:  # noqa: PT011  # whatever PyTorch raises
        default_collate(samples)
    with pytest.raises(expected.type) as raised:
        gathered(samples)
    assert str(raised.value) == str(expected.value)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_an_array_that_cannot_be_written_to() -> None:
    samples = [unwritable(number) for number in range(3)]
    assert same(gathered(samples), default_collate(samples))


def test_no_samples() -> None:
    with pytest.raises(IndexError):
        gathered([])


def test_a_short_batch_keeps_no_memory_of_what_did_not_come() -> None:
    batch = gathered([tensor(number) for number in range(3)], 50)
    assert batch.untyped_storage().nbytes() == batch.nbytes


def test_an_incomplete_batch_is_refused() -> None:
    assert same(gathered([tensor(1)], 2**50), default_collate([tensor(1)]))


def mappings(
    monkeypatch: pytest.MonkeyPatch, given_back: Callable[[Any], object] | None = None
) -> list[weakref.ref[Any]]:
    """All memory that is mapped for batches from now on; calls back when some is given back."""
    mapped: list[weakref.ref[Any]] = []

    def map_and_watch(*arguments: Any, **options: Any) -> Any:
        block = mmap.mmap(*arguments, **options)
        mapped.append(weakref.ref(block, given_back))
        return block

    monkeypatch.setattr(collate, "mmap", SimpleNamespace(**vars(mmap) | {"mmap": map_and_watch}))
    return mapped


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64])
def test_memory_of_a_large_batch_is_given_back_with_its_last_view(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    mapped = mappings(monkeypatch)
    samples = [tensor(number, side=400).to(dtype) for number in range(4)]
    batch = gathered(samples)
    view = batch[1:, 0].numpy() if dtype is not torch.bfloat16 else batch[1:, 0]
    assert same(batch, default_collate(samples))
    del batch
    gc.collect()
    assert [block() is None for block in mapped] == [False]
    del view
    gc.collect()
    assert [block() is None for block in mapped] == [True]


def test_a_worker_reuses_the_memory_of_an_unreferenced_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mapped = mappings(monkeypatch)
    place = BatchMemory()
    first = place.empty((2, 2**20), torch.uint8)
    address, kept = first.data_ptr(), first[1].numpy()
    del first
    second = place.empty((2, 2**20), torch.uint8)
    assert second.data_ptr() != address
    del kept
    gc.collect()
    third = place.empty((2**19,), torch.float32)
    assert (third.data_ptr(), len(mapped)) == (address, 2)
    del second, third
    gc.collect()
    assert place.empty((2**22,), torch.uint8).nbytes == 2**22  # for which it is too small
    assert len(mapped) == 3


def test_memory_that_was_used_again_is_given_back_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = mappings(monkeypatch)
    place = BatchMemory()
    for _ in range(3):
        place.empty((2**21,), torch.uint8)
        gc.collect()
    assert len(mapped) == 1
    huge = place.empty((2**25,), torch.uint8)
    assert [block() is None for block in mapped] == [True, False]  # the first has made way
    del huge
    kept = place.empty((2**21,), torch.uint8)
    gc.collect()
    assert [block() is None for block in mapped] == [True, True, False]
    del place, kept
    gc.collect()
    assert all(block() is None for block in mapped)


def test_nothing_is_kept_between_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: SimpleQueue[Any] = SimpleQueue()
    mapped = mappings(monkeypatch, given_back.put)
    images = [torch.full((512, 1024), number, dtype=torch.uint8) for number in range(32)]
    loader = ours(images, batch_size=4, num_workers=2, persistent_workers=True)
    for _ in range(2):
        before = len(mapped)
        for batch in loader:
            assert batch.shape == (4, 512, 1024)
        assert len(mapped) > before
        del batch
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            # Else it lives as long as the worker waits that has made it; and so does what it has.
            spin_until(lambda: gc.collect() >= 0 and not any(block() for block in mapped))
        for _ in mapped[before:]:  # the worker that has made the last may be about to let go of it
            given_back.get(timeout=PATIENCE)
        assert all(block() is None for block in mapped)


def test_memory_is_given_back_at_once_where_finished_batches_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mapped = mappings(monkeypatch)
    place = BatchMemory(workers=2)
    batches = [place.empty((2**25,), torch.uint8) for _ in range(5)]
    for left in (4, 3):  # of which two could be those of the workers, and one is looked at
        del batches[0]
        gc.collect()
        assert [block() is not None for block in mapped].count(True) == left
    del batches[0]
    gc.collect()
    assert [block() is not None for block in mapped].count(True) == 3
    assert place.empty((2**25,), torch.uint8).nbytes == 2**25
    assert len(mapped) == 5


def test_workers_of_a_loader_have_memory_together(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = mappings(monkeypatch)
    images = [torch.full((512, 1024), number, dtype=torch.uint8) for number in range(8)] * 12
    for number, batch in enumerate(ours(images, batch_size=4, num_workers=2)):
        assert batch[:, 0, 0].tolist() == [image[0, 0] for image in images[4 * number :][:4]]
        del batch
    assert number == 23
    # Of each worker two that are made ahead, and one that it is about to let go of; and the one
    # that is looked at.
    assert len(mapped) <= 7


def test_functions_that_users_have_registered_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(batch: Any, *, collate_fn_map: Any = None) -> list[str]:
        return [type(one).__name__ for one in batch]

    monkeypatch.setitem(default_collate_fn_map, np.ndarray, names)
    assert gathered([picture(1), picture(2)]) == ["ndarray", "ndarray"]


class Watched(Dataset[Any]):
    """Returns with each sample how many others are alive."""

    def __init__(self) -> None:
        self.given: list[weakref.ref[Any]] = []

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Any, int]:
        count = sum(one() is not None for one in self.given)
        sample = torch.full((SIDE, SIDE, 3), index)
        self.given.append(weakref.ref(sample))
        return sample, count


class WatchedStream(IterableDataset[Any]):
    """The same as a stream."""

    def __iter__(self) -> Iterator[Any]:
        watched = Watched()
        for index in range(24):
            yield watched[index]


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("dataset", [Watched, WatchedStream])
def test_a_large_sample_is_not_kept_until_the_last_has_come(
    dataset: Callable[[], Any], workers: int
) -> None:
    counts = torch.cat([labels for _, labels in ours(dataset(), 8, num_workers=workers)])
    assert counts.max() <= 2 * max(1, workers)  # those that workers have in hands


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_give_the_same(workers: int) -> None:
    dataset = [(picture(number), {"number": number}) for number in range(10)]
    options = {"batch_size": 4, "num_workers": workers}
    assert_same(epoch_of(ours(dataset, **options)), epoch_of(theirs(dataset, **options)))


@pytest.mark.parametrize("size", [10, 5000, 300_000])
@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_stay_on_the_cpu_whatever_device_is_the_default(size: int, workers: int) -> None:
    loader = ours([torch.ones(size)] * 4, 2, num_workers=workers, generator=seeded())
    iterator = iter(loader)
    with torch.device("meta"):
        batches = list(iterator)
    assert [batch.device.type for batch in batches] == ["cpu"] * 2
    assert_same(batches, [torch.ones(2, size)] * 2)
