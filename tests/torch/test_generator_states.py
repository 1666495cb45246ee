"""Generators of workers go on after a resume as if undisturbed."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from aioqueue import InvalidArgumentError
from aioqueue.torch import DataLoader
from tests.kit.processing import start_the_forkserver


class Noisy(Dataset[Any]):
    """Samples with noise from each generator of the worker; in a process, from the global ones."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> list[float]:
        info = get_worker_info()
        own = info.rng
        drawn = [
            own.random_generator.random(),
            float(own.numpy_generator.random()),
            float(torch.rand((), generator=own.torch_generator)),
        ]
        if info.worker_method == "process":
            drawn += [random.random(), float(np.random.random()), float(torch.rand(()))]
        return [float(index), *drawn]


class Quiet(Dataset[Any]):
    """Samples without noise."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


def loader_of(where: Any, **options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(3)
    given = {"num_workers": 2, "shuffle": True, "collate_fn": list, **options}
    return DataLoader(Noisy(), 4, generator=generator, where=where, **given)


def saved(loader: DataLoader[Any]) -> Any:
    return json.loads(json.dumps(loader.state_dict()))


@pytest.fixture(params=["thread", "process"])
def where(request: pytest.FixtureRequest, few_processes: None) -> Any:
    if request.param == "process":
        start_the_forkserver()
    return request.param


@pytest.mark.slow(but="thread")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("stop", [0, 1, 3, 9, 10])
def test_a_resumed_loader_draws_the_same_numbers(where: Any, persistent: bool, stop: int) -> None:
    undisturbed = loader_of(where, persistent_workers=persistent)
    whole = [batch for _ in range(2) for batch in undisturbed]
    loader, found = loader_of(where, persistent_workers=persistent), []
    iterator = iter(loader)
    found += [next(iterator) for _ in range(stop)]
    if stop == 10:
        assert next(iterator, None) is None
    state = saved(loader)
    iterator.close()
    loader = loader_of(where, persistent_workers=persistent)
    loader.load_state_dict(state)
    assert saved(loader)["generators"] == state["generators"], "before it has begun"
    found += list(loader)
    found += list(loader) if stop < 10 else []
    assert found == whole


def test_twice_in_a_row() -> None:
    whole = list(loader_of("thread"))
    found: list[Any] = []
    state = None
    for _ in range(10):
        loader = loader_of("thread")
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        found.append(next(iterator))
        state = saved(loader)
        iterator.close()
    assert found == whole


def test_other_numbers_of_workers_have_new_generators() -> None:
    loader = loader_of("thread")
    iterator = iter(loader)
    first = [next(iterator), next(iterator)]
    state = saved(loader)
    other = loader_of("thread", num_workers=3)
    other.load_state_dict(state)
    rest = list(other)
    numbers = [sample[0] for batch in first + rest for sample in batch]
    assert sorted(numbers) == list(range(40))


def test_those_that_draw_nothing_are_not_in_the_state() -> None:
    loader = DataLoader(Quiet(), 4, num_workers=2)
    next(iter(loader))
    assert saved(loader)["generators"] is None


def test_a_damaged_state_is_refused() -> None:
    loader = loader_of("thread")
    next(iter(loader))
    state = saved(loader)
    for text in ("zlib+base64:AAAA", 7, "x"):
        state["generators"]["states"]["0"] = text
        with pytest.raises(InvalidArgumentError, match="as the states of a worker's generators"):
            loader_of("thread").load_state_dict(state)
    del state["generators"]  # as in a state from before they were saved
    resumed = loader_of("thread")
    resumed.load_state_dict(state)
    assert len(list(resumed)) == 9
