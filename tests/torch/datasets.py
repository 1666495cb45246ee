"""Datasets and functions for the tests of `aioqueue.torch`, which are sent to processes too."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

LENGTH = 23


class Tensors(Dataset[Any]):
    """A picture and a label, of which a batch can be stacked."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if not 0 <= index < LENGTH:
            raise IndexError(index)
        return torch.arange(6.0).reshape(2, 3) + 100 * index, index


class AtOnce(Tensors):
    """The same by whole batches."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(self[index][0] + 0.5, index) for index in indices]


class Sentences(Dataset[Any]):
    """Dicts whose parts differ in length, with strings and arrays in them."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "tokens": torch.arange(index % 5),
            "text": "word " * (index % 3),
            "nested": [np.float32(index), {"half": torch.tensor(index / 2, dtype=torch.bfloat16)}],
        }


def padded(samples: Any) -> Any:
    """Return a batch of sentences, or a single one unchanged."""
    if not isinstance(samples, list):
        return samples
    tokens = [sample["tokens"] for sample in samples]
    return {
        "tokens": torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=-1),
        "texts": [sample["text"] for sample in samples],
        "nested": tuple(sample["nested"] for sample in samples),
    }


class Split(IterableDataset[Any]):
    """Numbers, divided among the workers, of which the later ones have less."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        for one in range(number, self.length - 4 * number, count):
            yield torch.tensor([one, number])


class EndsLate(IterableDataset[Any]):
    """All is with the second worker. The first one has nothing, and finds out only when it may."""

    may_end = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        if info.id:
            yield from map(torch.tensor, range(LENGTH))
        else:
            self.may_end.wait()


class OwnIterator(IterableDataset[Any]):
    """A dataset that is its own iterator, whose part `split_by_info` assigns."""

    def __init__(self) -> None:
        self.start, self.stop = 0, LENGTH
        self.draws = random.Random(5)

    def __iter__(self) -> Iterator[Any]:
        self.next = self.start
        return self

    def __next__(self) -> Any:
        if self.next >= self.stop:
            raise StopIteration
        self.next += 1
        return torch.tensor([self.next, self.draws.randrange(1000)])


def shared_or_not(samples: list[Any]) -> Any:
    """Whether PyTorch's own function makes batches in shared memory; and who is said to ask."""
    info = get_worker_info()
    pictures, numbers = default_collate(samples)
    arrays = default_collate([np.ones(2), np.ones(2)])
    shared = [one.is_shared() for one in (pictures, numbers, arrays)]
    return shared, None if info is None else info.id


def split_by_info(worker: int) -> None:
    """As the documentation of PyTorch shows it: by writing to the worker's dataset."""
    info = get_worker_info()
    assert info is not None
    assert info.id == worker
    each = -(-info.dataset.stop // info.num_workers)
    info.dataset.start = worker * each
    info.dataset.stop = min(info.dataset.stop, (worker + 1) * each)


class Draws(Dataset[Any]):
    """What the generators of a worker give, the global ones or those of its information."""

    def __init__(self, own: bool) -> None:
        self.own = own

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if info is None:
            return index, 0, 0, 0.0, 0.0, 0.0
        if self.own:
            rng = info.rng
            drawn: tuple[Any, ...] = (
                rng.random_generator.random(),
                rng.torch_generator.initial_seed() % 1000 + rng.numpy_generator.random(),
                torch.rand((), generator=rng.torch_generator).item(),
            )
        else:
            drawn = random.random(), float(np.random.rand()), torch.rand(()).item()
        return index, info.id, info.seed, *drawn


class Stateful(IterableDataset[Any]):
    """A dataset with a state."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length
        self.place = 0
        self.begins_at = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        self.place, self.begins_at = self.begins_at, 0
        while (one := number + self.place * count) < self.length:
            self.place += 1
            yield one

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begins_at = state["place"]


class _Counter:
    def __init__(self, numbers: range) -> None:
        self.numbers = numbers
        self.state: dict[str, list[int]] = {"done": [0]}

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        done = self.state["done"]
        if done[0] == len(self.numbers):
            raise StopIteration
        done[0] += 1
        return self.numbers[done[0] - 1]

    def state_dict(self) -> dict[str, list[int]]:
        return self.state  # the very object that it goes on writing to

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self.state = state


class StatefulIterator(IterableDataset[Any]):
    """A dataset whose iterator has a state."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        return _Counter(range(number, LENGTH, count))


class Broken(Tensors):
    """Fails at some of its items."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index in self.bad:
            raise KeyError(f"sample {index}")
        return super().__getitem__(index)


class Held(Tensors):
    """Waits at one item until the test releases it."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.begun = threading.Event()
        self.may_continue = threading.Event()

    def __copy__(self) -> Held:
        return self  # the events are to be seen by the test

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index == self.at:
            self.begun.set()
            self.may_continue.wait()
        return super().__getitem__(index)


def refuses(worker: int) -> None:
    """An initialisation that fails in one worker."""
    if worker == 1:
        raise RuntimeError("worker 1 is not to be")


class EagerSampler:
    """Draws its order when `iter` is called."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(LENGTH, generator=self.generator).tolist())


class Unreadable:
    """Can be sent by a process, and not be read by another."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def unreadable_from_four_to_seven(samples: list[Any]) -> Any:
    """Makes batches of four."""
    numbers = [number for _, number in samples]
    return Unreadable() if numbers == [4, 5, 6, 7] else numbers


class IndexedByTensor(Dataset[Any]):
    """Gets its epoch through a tensor in shared memory, as datasets of Hugging Face do."""

    def __init__(self) -> None:
        self.epoch = torch.tensor(0).share_memory_()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return 100 * int(self.epoch) + index
