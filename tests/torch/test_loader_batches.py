"""`DataLoader` gives what PyTorch's gives: batch for batch, and leaves generators as it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.torch.comparison import assert_same, epoch_of, no_thread_is_left, ours, seeded, theirs
from tests.torch.datasets import (
    LENGTH,
    AtOnce,
    EagerSampler,
    EndsLate,
    OwnIterator,
    Sentences,
    Split,
    Tensors,
    padded,
    split_by_info,
)

WORKERS = [0, 1, 2, 3]
MAPS: dict[str, tuple[Callable[[], Any], Any]] = {
    "tensors": (Tensors, None),
    "at once": (AtOnce, None),
    "sentences": (Sentences, padded),
    "list": (lambda: list(range(LENGTH)), None),
}
SIZES: dict[str, dict[str, Any]] = {
    "default": {},
    "4": {"batch_size": 4},
    "5, whole": {"batch_size": 5, "drop_last": True},
    "more than all": {"batch_size": 100},
    "none whole": {"batch_size": 100, "drop_last": True},
    "single": {"batch_size": None},
}
ORDERS: dict[str, Callable[[torch.Generator | None], dict[str, Any]]] = {
    "given": lambda _: {},
    "shuffled": lambda _: {"shuffle": True},
    "list": lambda _: {"sampler": [3, 1, 4, 1, 5, 9, 2, 6]},
    "replacing": lambda rng: {
        "sampler": RandomSampler(range(LENGTH), True, 2 * LENGTH, generator=rng)
    },
    "weighted": lambda rng: {
        "sampler": WeightedRandomSampler([1.0] * LENGTH, 2 * LENGTH, generator=rng)
    },
    "subset": lambda rng: {"sampler": SubsetRandomSampler(range(3, 20), generator=rng)},
}


def states(generator: torch.Generator | None) -> Any:
    """Of the generator of a loader, and of the global one."""
    return torch.cat([torch.get_rng_state(), (generator or seeded()).get_state()])


def epochs_of(
    make: Callable[..., Any], dataset: Any, options: dict[str, Any], order: str, has_generator: bool
) -> list[Any]:
    """Three epochs, each with the state of the generators after it."""
    torch.manual_seed(11)
    generator = seeded() if has_generator else None
    loader = make(dataset, generator=generator, **ORDERS[order](generator), **options)
    epochs = []
    for _ in range(3):
        epochs += [epoch_of(loader), states(generator)]
    return epochs


@pytest.mark.parametrize("has_generator", [True, False], ids=["generator", "global"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MAPS)
def test_map_style(name: str, size: str, order: str, has_generator: bool) -> None:
    """PyTorch's without workers gives what it gives with any, unless a worker draws numbers."""
    kind, collate = MAPS[name]
    options = {"collate_fn": collate, **SIZES[size]}
    expected = epochs_of(theirs, kind(), options, order, has_generator)
    for workers in WORKERS:
        more: dict[str, Any] = {"num_workers": workers}
        if workers:
            more["prefetch_factor"] = (None, 1, 2, 5)[workers]
        found = epochs_of(ours, kind(), {**options, **more}, order, has_generator)
        assert_same(found, expected)
    no_thread_is_left()


@pytest.mark.parametrize("order", [SequentialSampler, RandomSampler])
@pytest.mark.parametrize("workers", WORKERS)
def test_batch_sampler(workers: int, order: type) -> None:
    def of(make: Callable[..., Any], workers: int) -> list[Any]:
        torch.manual_seed(3)
        sampler = BatchSampler(order(range(LENGTH)), 4, False)
        loader = make(Tensors(), batch_sampler=sampler, num_workers=workers)
        return epoch_of(loader) + epoch_of(loader)

    assert_same(of(ours, workers), of(theirs, 0))


class NoArray(list[int]):
    """Indices of which no array can be made."""

    def __array__(self, *given: object, **options: object) -> Any:
        raise LookupError("no array")


@pytest.mark.parametrize("workers", WORKERS)
def test_indices_that_are_no_array(workers: int) -> None:
    """We look at them, to know them again; PyTorch does not."""
    batches = [NoArray([0, 1]), NoArray([2])]
    found, expected = (
        epoch_of(make(Tensors(), batch_sampler=batches, num_workers=number))
        for make, number in ((ours, workers), (theirs, 0))
    )
    assert_same(found, expected)


ITERABLES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "split by itself": (Split, {}),
    "empty": (lambda: Split(0), {}),
    "less than workers": (lambda: Split(2), {}),
    "split by worker_init_fn": (OwnIterator, {"worker_init_fn": split_by_info}),
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("size", ["default", "4", "5, whole", "single"])
@pytest.mark.parametrize("name", ITERABLES)
def test_iterable(name: str, size: str, workers: int) -> None:
    kind, options = ITERABLES[name]
    options = {**options, **SIZES[size], "num_workers": workers}
    expected = epochs_of(theirs, kind(), options, "given", True)
    assert_same(epochs_of(ours, kind(), options, "given", True), expected)
    no_thread_is_left()


SAMPLE: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "shuffled": (Tensors, {"shuffle": True, "batch_size": 4}),
    "persistent": (Tensors, {"shuffle": True, "batch_size": 4, "persistent_workers": True}),
    "sentences": (Sentences, {"collate_fn": padded, "batch_size": 3, "prefetch_factor": 1}),
    "single": (Sentences, {"batch_size": None, "prefetch_factor": 7}),
    "iterable, persistent": (Split, {"batch_size": 2, "persistent_workers": True}),
    "its own iterator, persistent": (
        OwnIterator,
        {"worker_init_fn": split_by_info, "persistent_workers": True},
    ),
}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", SAMPLE)
def test_with_the_same_workers(name: str, workers: int) -> None:
    kind, options = SAMPLE[name]
    options = {**options, "num_workers": workers}
    expected = epochs_of(theirs, kind(), options, "given", True)
    assert_same(epochs_of(ours, kind(), options, "given", True), expected)


@pytest.mark.parametrize("is_persistent", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_draws_at_once_is_asked_as_often(workers: int, is_persistent: bool) -> None:
    def of(make: Callable[..., Any]) -> list[Any]:
        generator = seeded()
        sampler = EagerSampler(generator)
        options = {"persistent_workers": True} if is_persistent and workers else {}
        loader = make(Tensors(), 4, sampler=sampler, num_workers=workers, **options)
        torch.manual_seed(1)
        return [*epoch_of(loader), *epoch_of(loader), generator.get_state()]

    assert_same(of(ours), of(theirs))


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_loop_that_is_left_leaves_the_generator_where_pytorchs_does(taken: int) -> None:
    def of(make: Callable[..., Any]) -> list[Any]:
        generator = seeded()
        sampler = RandomSampler(range(LENGTH), True, 4 * LENGTH, generator=generator)
        loader = make(Tensors(), 4, sampler=sampler, num_workers=2, prefetch_factor=3)
        iterator = iter(loader)
        batches = [next(iterator) for _ in range(taken)]
        return [*batches, generator.get_state()]

    from tests.torch.comparison import quiet

    with quiet():
        assert_same(of(ours), of(theirs))


@pytest.mark.parametrize("workers", [1, 3])
def test_out_of_order_all_are_there(workers: int) -> None:
    loader = ours(Tensors(), 4, num_workers=workers, in_order=False)
    for _ in range(2):
        found = sorted(epoch_of(loader), key=lambda batch: int(batch[1][0]))
        assert_same(found, epoch_of(theirs(Tensors(), 4)))
    loader = ours(Split(), None, num_workers=workers, in_order=False)
    numbers = [int(one) for one, _ in epoch_of(loader)]
    assert sorted(numbers) == sorted(
        int(one) for one, _ in epoch_of(theirs(Split(), None, num_workers=workers))
    )


@pytest.mark.parametrize("is_persistent", [False, True])
def test_out_of_order_a_worker_may_end_before_others(is_persistent: bool) -> None:
    loader = ours(
        EndsLate(),
        None,
        num_workers=2,
        in_order=False,
        prefetch_factor=4,
        persistent_workers=is_persistent,
    )
    for _ in range(2):
        EndsLate.may_end.clear()
        found = []
        for number in loader:
            found.append(int(number))
            if len(found) == 3:
                EndsLate.may_end.set()
        assert found == list(range(LENGTH))


@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"batch_size": 5, "drop_last": True}])
@pytest.mark.parametrize("kind", [Tensors, Split])
def test_lengths(kind: type, options: dict[str, Any]) -> None:
    assert len(ours(kind(), **options)) == len(theirs(kind(), **options))
    if kind is Tensors:
        assert len(iter(ours(kind(), **options))) == len(iter(theirs(kind(), **options)))
