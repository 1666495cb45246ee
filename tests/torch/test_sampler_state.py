"""The states of samplers are saved; several threads iterate; a closed iterator keeps nothing."""

from __future__ import annotations

import functools
import gc
import itertools
import json
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler, Sampler

from aioqueue import InvalidArgumentError
from aioqueue.torch import DataLoader
from aioqueue.torch.batch_pickle import packed, unpacked
from aioqueue.torch.loader_state import index_checksum

DATA = list(range(12))


class Stateful(Sampler[int]):
    def __init__(self) -> None:
        self.epoch = self.at = 0

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng(self.epoch).permutation(12).tolist()
        while self.at < 12:
            self.at += 1
            yield order[self.at - 1]
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


def seeded() -> Any:
    return RandomSampler(DATA, generator=torch.Generator().manual_seed(1))


class Counting(Sampler[int]):
    """Has no state to ask for: it counts, as many do."""

    def __init__(self, *, at_the_end: bool = False) -> None:
        self.epoch = 0
        self.at_the_end = at_the_end

    def __iter__(self) -> Iterator[int]:
        self.epoch += not self.at_the_end
        yield from np.random.default_rng(self.epoch).permutation(12).tolist()
        self.epoch += self.at_the_end

    def __len__(self) -> int:
        return 12


class Within(Sampler[int]):
    """Another one is within it, by a name of its own."""

    def __init__(self) -> None:
        self.inner = Counting(at_the_end=True)

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)


@pytest.mark.parametrize("sampler", [Stateful, seeded, Counting, Within])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_resumes(sampler: Any, workers: int) -> None:
    def made() -> Any:
        return DataLoader(DATA, 2, sampler=sampler(), num_workers=workers)

    loader = made()
    expected = [batch.tolist() for _ in range(3) for batch in loader]
    for stop in range(14):
        loader, got = made(), list[list[int]]()
        while len(got) < stop:
            for batch in loader:
                got.append(batch.tolist())
                if len(got) == stop and stop % 6:
                    break
        state = json.loads(json.dumps(loader.state_dict()))
        loader = made()
        loader.load_state_dict(state)
        while len(got) < 18:
            got += [batch.tolist() for batch in loader]
        assert got == expected, stop


def by_number(number: int) -> Any:
    return np.random.default_rng(number).permutation(12).tolist()


def counted_in(value: Callable[[], Any]) -> Callable[[], Any]:
    """Orders by a number that a list, say, has at 0."""

    def drawn(held: Any) -> Any:
        held[0] += 1
        return by_number(int(held[0]))

    return lambda: (value(), drawn)


def legacy(generator: Any) -> Any:
    return generator.permutation(12).tolist()


def closure() -> Any:
    generator = torch.Generator().manual_seed(3)
    return lambda: torch.randperm(12, generator=generator).tolist()


def counter() -> Any:
    return [itertools.count(7, -2)], lambda held: by_number(100 + next(held[0]))


def rotated(held: Any) -> Any:
    held.rotate(1)
    return by_number(held[0])


def shuffled_in_place(held: Any) -> Any:
    order, generator = held
    generator.shuffle(order)
    return list(order)


PLACES: dict[str, Callable[[], Any]] = {
    "a legacy generator": lambda: (np.random.RandomState(3), legacy),
    "bits": lambda: (np.random.PCG64(3), lambda bits: legacy(np.random.Generator(bits))),
    "other bits": lambda: (np.random.MT19937(3), lambda bits: legacy(np.random.Generator(bits))),
    "a list": lambda: ([np.random.default_rng(3)], lambda held: legacy(held[0])),
    "a dict": lambda: ({"rng": random.Random(3)}, lambda held: held["rng"].sample(DATA, 12)),
    "an object": lambda: (
        SimpleNamespace(inner=[np.random.default_rng(3)]),
        lambda held: legacy(held.inner[0]),
    ),
    "a sampler in a list": lambda: ([seeded()], lambda held: held[0]),
    "a closure": lambda: (closure(), lambda function: function()),
    "a partial": lambda: (
        functools.partial(legacy, np.random.default_rng(3)),
        lambda function: function(),
    ),
    "a method": lambda: (np.random.default_rng(3).permutation, lambda drawn: drawn(12).tolist()),
    "a count": counter,
    "a number in a list": counted_in(lambda: [0]),
    "a number in an array": counted_in(lambda: np.zeros(1, np.int16)),
    "a number in a tensor": counted_in(lambda: torch.zeros(1, dtype=torch.int64)),
    "a number in a dict": counted_in(lambda: {0: np.int64(0)}),
    "a deque": lambda: (deque([1, 2, 3]), rotated),
    "its own order": lambda: ((list(DATA), np.random.default_rng(3)), shuffled_in_place),
}


class Holding(Sampler[int]):
    """Its state is somewhere within it."""

    __slots__ = ("draw", "held")

    def __init__(self, place: str) -> None:
        self.held, self.draw = PLACES[place]()

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw(self.held))


@pytest.mark.parametrize("place", PLACES)
def test_state_that_is_further_within(place: str) -> None:
    def made() -> Any:
        return DataLoader(DATA, 2, sampler=Holding(place))

    loader = made()
    expected = [[batch.tolist() for batch in loader] for _ in range(4)]
    assert expected[0] != expected[1]
    for epochs, batches in ((1, 0), (2, 0), (1, 3), (2, 5)):
        loader = made()
        for _ in range(epochs):
            list(loader)
        for _ in zip(range(batches), loader, strict=False):
            pass
        state = json.loads(json.dumps(loader.state_dict()))
        loader = made()
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == expected[epochs][batches:]
        assert [batch.tolist() for batch in loader] == expected[epochs + 1]


class Trainer:
    steps = 0


class OfTrainer(Counting):
    """Refers to an object that counts, and that restores itself."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.trainer = trainer


def test_what_other_objects_count_is_not_restored() -> None:
    trainer = Trainer()
    trainer.steps = 100
    loader = DataLoader(DATA, 2, sampler=OfTrainer(trainer))
    batches = iter(loader)
    for _ in range(3):
        next(batches)
        trainer.steps += 1
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = Trainer()
    resumed.steps = 103
    loader = DataLoader(DATA, 2, sampler=OfTrainer(resumed))
    loader.load_state_dict(state)
    assert len(list(loader)) == 3
    assert resumed.steps == 103


def test_a_dataset_is_not_inspected() -> None:
    class Counts(list[int]):
        samples = 0

        def __iter__(self) -> Iterator[int]:
            Counts.samples += 1
            return super().__iter__()

    loader = DataLoader(DATA, 2, sampler=RandomSampler(Counts(DATA)))
    list(loader)
    loader.state_dict()
    assert Counts.samples == 0


def test_what_is_set_between_epochs_is_left_alone() -> None:
    class AnnouncedSampler(Sampler[int]):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter(np.random.default_rng(self.epoch).permutation(12).tolist())

    def iterated(loader: Any, epochs: range) -> list[list[int]]:
        given = []
        for epoch in epochs:
            loader.sampler.set_epoch(epoch)
            given += [batch.tolist() for batch in loader]
        return given

    expected = iterated(DataLoader(DATA, 2, sampler=AnnouncedSampler()), range(4))
    loader = DataLoader(DATA, 2, sampler=AnnouncedSampler())
    iterated(loader, range(2))
    state = json.loads(json.dumps(loader.state_dict()))
    loader = DataLoader(DATA, 2, sampler=AnnouncedSampler())
    loader.load_state_dict(state)
    assert iterated(loader, range(2, 4)) == expected[12:]


@pytest.mark.parametrize("version", [1, 2, 4])
def test_a_state_of_another_version(version: int) -> None:
    loader = DataLoader(DATA, 2)
    state = {**loader.state_dict(), "version": version}
    message = rf"^state: got version {version}, which .* aioqueue has written; expected version 3:"
    with pytest.raises(InvalidArgumentError, match=message):
        loader.load_state_dict(state)


def test_several_threads_take_turns() -> None:
    iterator, got = iter(DataLoader(range(100), 1, num_workers=2)), list[int]()
    takers = [
        threading.Thread(target=lambda: got.extend(int(b) for b in iterator)) for _ in range(3)
    ]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join(10)
    assert sorted(got) == list(range(100))


@pytest.mark.parametrize("workers", [0, 2])
def test_close_ends_the_generators(workers: int) -> None:
    class File:
        pass

    files: list[weakref.ref[File]] = []

    class Lines(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            file = File()
            files.append(weakref.ref(file))
            yield from range(50)

    gc.disable()
    try:
        iterator = iter(DataLoader(Lines(), 2, num_workers=workers))
        next(iterator)
        iterator.close()
        assert files
        assert not any(file() for file in files)
    finally:
        gc.enable()


def test_strides_survive_processes() -> None:
    whole = torch.arange(120.0).reshape(2, 3, 4, 5)
    for tensor in (whole.to(memory_format=torch.channels_last), whole.mT, whole[:, ::2]):
        sent = unpacked(packed(tensor))
        assert torch.equal(sent, tensor)
        assert sent.stride() == tensor.stride()


def test_indices_that_are_objects_have_checksums() -> None:
    marks = [
        index_checksum(index) for index in (("a", 1, None), ("a", 2, None), [{"x": 1}], [{"x": 2}])
    ]
    assert len(set(marks)) == 4
    assert 0 not in marks
